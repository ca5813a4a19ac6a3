"""`tallystick mcp`: the tools for one agent, whose key is in a profile on this machine.

The host starts it and speaks over standard input and output. Every call becomes a request that the agent signs; every
answer's receipt is verified before anything of it is told, and what is told of a decision is read out of the verified
entry. Of the gateway's views nothing is proven, as everywhere. There is no state here but the profile's own.

A gateway that is away does not end the conversation: tools are listed without it, and a call says that it is away.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, get_args
from urllib.parse import quote

from gateway.actions import ACTIONS
from gateway.client.caller import Decided
from gateway.client.errors import BatchRefused, ClientError, RequestRejected, Unreachable
from gateway.client.exits import DONE, code_name, shown
from gateway.client.line import undo
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.terminal import Handler, add_home, command_parser, perform
from gateway.core import facts
from gateway.core.refusal import BY_NAME
from gateway.mcp.keeper import Keeper
from gateway.mcp.protocol import Request
from gateway.mcp.stdio import serve, take_streams
from gateway.mcp.tools import Spelling, Trouble, result_of
from verifier.wire import RECEIPT_BYTES_MAX, JsonObject, JsonValue, Malformed, parse_json

CALL_MS = 20_000  # any call, waiting included: hosts give up some time after
HOLD_MS_MAX = 18_000  # what of it the gateway may hold a claim for
LOOK_MS = 4_000  # one look at a picture
LOOK_S = 1.0  # between two
T = TypeVar("T")


def main(argv: Sequence[str]) -> int:
    """Run `tallystick mcp`; returns a code of exits.py."""
    parser, handler = mcp_parser()
    return perform("mcp", handler, parser.parse_args(argv))


def mcp_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser and what it is for."""
    parser = command_parser(
        "mcp",
        "Serve the tools of one agent to a host of the Model Context Protocol, over standard input and output, until "
        "the input ends. Every call is signed with the profile's key, and every receipt is verified. docs/mcp.md says "
        "what to write into the host's configuration.",
    )
    parser.add_argument(
        "--names", choices=get_args(Spelling), default="underscored",
        help="how tools are listed (default underscored: many hosts take no dots); both are understood",
    )  # fmt: skip
    add_home(parser)
    return parser, _serve


async def _serve(arguments: argparse.Namespace) -> int:
    profile = open_profile(arguments.home)
    streams = take_streams()
    async with Keeper(profile) as keeper:
        await serve(streams, partial(_answer, AgentCaller(profile, keeper), arguments.names))
    return DONE


async def _answer(caller: AgentCaller, spelling: Spelling, request: Request) -> JsonObject:
    return await result_of(request, caller, spelling)


class AgentCaller:
    """The agent of a profile as the one who calls (gateway/mcp/tools.py)."""

    def __init__(self, profile: Profile, keeper: Keeper) -> None:
        self.did = profile.key.did
        self.ledger = profile.address.origin
        self.look_s = LOOK_S
        self._keeper = keeper

    async def decide(self, action: str, members: JsonObject, *, idempotency_key: str, wait_ms: int) -> JsonObject:
        """Sign, send, verify; the answer is read out of the verified entry.

        Called off, a claim leaves the gateway and an acquire gives back what it brings; the rest is finished unheard.
        """
        with _told():
            agent = await self._keeper.agent()
            until_ms = agent.clock.steady_ms() + CALL_MS
            if action == "batch.submit":
                batch = agent.caller.submit(members, until_ms=until_ms, idempotency_key=idempotency_key)
                return await asyncio.shield(_unheard(_batch_said(batch)))
            hold_ms = min(wait_ms, HOLD_MS_MAX)
            asked = agent.caller.decide(
                action, members, until_ms=until_ms, hold_ms=hold_ms, idempotency_key=idempotency_key
            )
            if action == "wait.claim":
                return _said((await asked).receipt)
            asking = _unheard(asked)
            try:
                return _said((await asyncio.shield(asking)).receipt)
            except asyncio.CancelledError:
                if action == "lease.acquire":
                    await undo(agent, asking)
                raise

    async def read(self, action: str, arguments: JsonObject) -> JsonObject:
        """Return the gateway's word, except for a receipt, which is verified."""
        with _told():
            agent = await self._keeper.agent()
            until_ms = agent.clock.steady_ms() + LOOK_MS
            if action == "receipt.get":
                seq = arguments["seq"]
                assert isinstance(seq, int), "the table says so"
                receipt = await agent.receipt(seq)
                return {"ok": True, "seq": seq, "receipt": _parsed(receipt)}
            return await agent.caller.read(ACTIONS[action].path, self._query(action, arguments), until_ms=until_ms)

    def _query(self, action: str, arguments: JsonObject) -> str:
        if action == "coordination.wait":
            name = arguments.get("resource")
            return "" if name is None else f"resource={quote(str(name), safe='')}"
        if action == "lease.list":
            return f"holder={arguments.get('holder', 'me')}"
        if action == "approval.list":
            return f"askId={arguments['askId']}" if "askId" in arguments else f"of={self.did}"
        assert action in ("trust.get", "usage.get"), "tools.py offers six reads"
        return f"did={arguments.get('did', self.did)}"


def _unheard(asked: Coroutine[object, object, T]) -> asyncio.Future[T]:
    """Return a task that may go on without whoever began it; then nobody is told if it fails."""
    asking = asyncio.ensure_future(asked)
    asking.add_done_callback(lambda done: done.cancelled() or done.exception())
    return asking


async def _batch_said(batch: Awaitable[tuple[Decided, ...]]) -> JsonObject:
    """Return what became of each command; its receipts are had one by one, by their `seq`."""
    try:
        decided = await batch
    except BatchRefused as refused:
        return _said(refused.receipt)
    results: list[JsonValue] = [facts.result_of(one.receipt.leaf.value) for one in decided]
    header = decided[0].receipt.leaf.batch
    assert header is not None, "the caller checked that they are a batch's"
    is_ok = all(not one.receipt.leaf.text("error") for one in decided)
    return {"ok": is_ok, "seq": header[0], "results": results}


def _said(receipt: VerifiedReceipt) -> JsonObject:
    return {"seq": receipt.seq, **facts.facts_of(receipt.leaf.value), "receipt": _parsed(receipt)}


def _parsed(receipt: VerifiedReceipt) -> JsonObject:
    return parse_json(receipt.data, bytes_max=RECEIPT_BYTES_MAX)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what the client raises into what a model is told."""
    try:
        yield
    except Unreachable as error:
        raise Trouble(error.reason, f"{_words(error)} It may have happened.", "same_request") from error
    except RequestRejected as error:
        row = BY_NAME.get(error.code)
        raise Trouble(error.code, _words(error), row.retry if row else "never") from error
    except ClientError as error:
        raise Trouble(code_name(error), _words(error)) from error
    except Malformed as error:
        raise Trouble("member_invalid", _words(error)) from error


def _words(error: Exception) -> str:
    text = shown(" ".join(str(error).split()))
    return text if text.endswith((".", "!", "?")) else f"{text}."
