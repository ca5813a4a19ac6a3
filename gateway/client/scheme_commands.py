"""`tallystick scheme set | list` and `tallystick trust`: what applies to names, and how far a key is trusted."""

from __future__ import annotations

import argparse
import json

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.errors import AnswerRefused
from gateway.client.exits import DONE
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.score import TrustChange
from gateway.client.terminal import (
    A_DID,
    OPERATOR_HELP,
    Handler,
    add_home,
    command_parser,
    duration_ms,
    patient,
    sub_parser,
)
from gateway.client.words import points, scheme_line, trust_line
from verifier.entries import CLASSES, DID, LOCK_DELAY_MS, MAX_HOLD_MS, SCHEME
from verifier.wire import JsonObject, Malformed

LIMIT_DEFAULT = 20

# -- scheme ------------------------------------------------------------------------------------------------------------


def scheme_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick scheme`."""
    parser = command_parser("scheme", "Say what the names of a scheme mean and who may share them, or list that.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="set|list")
    row = ACTIONS["scheme.set"]
    _add_set(sub_parser(verbs, "set", row.summary, row.description, OPERATOR_HELP))
    listing = sub_parser(verbs, "list", ACTIONS["scheme.list"].summary, ACTIONS["scheme.list"].description)
    listing.set_defaults(handler=_list)
    return parser, lambda arguments: arguments.handler(arguments)


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scheme", metavar="NAME", help="what stands before the colon in names, such as repo")
    parser.add_argument(
        "--class", dest="scheme_class", required=True, choices=CLASSES,
        help="read-safe: reads share; append-only: appends and reads share, nothing else is allowed; exclusive and "
        "irreversible: nobody shares",
    )  # fmt: skip
    parser.add_argument("--folding", action="store_true", help="A to Z and a to z are the same in its names")
    parser.add_argument("--unicode", action="store_true", help="its names may go beyond ASCII")
    parser.add_argument(
        "--lock-delay", type=duration_ms, metavar="TIME",
        help="keep others out for so long after a lease ran out or was broken, 0s to 1h (default: the ledger's)",
    )  # fmt: skip
    parser.add_argument(
        "--max-hold", type=duration_ms, metavar="TIME",
        help="how long one holder may renew while others wait, 1s to 720h (default: the ledger's)",
    )  # fmt: skip
    add_receipt(parser)
    parser.set_defaults(handler=_set)


async def _set(arguments: argparse.Namespace) -> int:
    for option, kind, value in (
        ("NAME", SCHEME, arguments.scheme),
        ("--lock-delay", LOCK_DELAY_MS, arguments.lock_delay),
        ("--max-hold", MAX_HOLD_MS, arguments.max_hold),
    ):
        if value is not None and not kind.check(value):
            raise Malformed(f"{option}: {kind.bound}")
    check_receipt_path(arguments.receipt)
    async with patient(arguments.home) as operator:
        receipt = await operator.set_scheme(
            arguments.scheme,
            arguments.scheme_class,
            is_folding=arguments.folding,
            is_unicode=arguments.unicode,
            lock_delay_ms=arguments.lock_delay,
            max_hold_ms=arguments.max_hold,
        )
    return done("scheme set", arguments, receipt)


async def _list(arguments: argparse.Namespace) -> int:
    async with Agent.open(arguments.home) as agent:
        schemes = await agent.schemes()
    if arguments.json:
        print(json.dumps({"ok": True, "schemes": schemes}))
        return DONE
    for row in schemes:
        print(scheme_line(row))
    print("Every other scheme is exclusive: nobody shares." if schemes else "No scheme is set: all are exclusive.")
    return DONE


# -- trust -------------------------------------------------------------------------------------------------------------


def trust_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick trust`."""
    parser = command_parser(
        "trust",
        "See the trust of a key and how it came about. Giving a lease back raises it a little, letting one run out "
        "lowers it more. Each change shown was verified by the receipt of the entry that made it.",
    )
    parser.add_argument("did", nargs="?", metavar="DID", help="whose (default: this profile's)")
    parser.add_argument(
        "--limit", type=int, default=LIMIT_DEFAULT, metavar="N",
        help=f"how many changes, the newest first (default {LIMIT_DEFAULT})",
    )  # fmt: skip
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _trust


async def _trust(arguments: argparse.Namespace) -> int:
    if arguments.did is not None and not DID.check(arguments.did):
        raise Malformed(f"DID: {A_DID}")
    if arguments.limit < 1:
        raise Malformed("--limit: at least 1")
    async with Agent.open(arguments.home) as agent:
        did = agent.principal if arguments.did is None else arguments.did
        view = await agent.trust(did)
        did = str(view.get("principal", did))  # a session's trust is that of the agent behind it
        history = await _history(agent, did, view, arguments.limit)
    if arguments.json:
        rows: list[JsonObject] = [_row(change) for change in history]
        print(json.dumps({"ok": True, **view, "history": rows}))
        return DONE
    print(f"{did}  trust {points(view.get('trust'))}")
    for change in history:
        print(trust_line(change))
    if not history:
        print("It has not changed yet: this is what every key begins with.")
    elif history[-1].previous_seq is not None:
        print(f"There are older changes; see more with --limit {2 * arguments.limit}")
    return DONE


async def _history(agent: Agent, did: str, view: JsonObject, limit: int) -> list[TrustChange]:
    """Return the newest changes; the value that the gateway told must be the one its own entry left."""
    found: list[TrustChange] = []
    last_seq = view.get("lastSeq")
    if not isinstance(last_seq, int):
        return found
    async for change in agent.trust_history(did, last_seq):
        found.append(change)
        if len(found) == limit:
            break
    if found[0].after != view.get("trust"):
        raise AnswerRefused(f"the gateway tells another trust of {did} than its entry {found[0].receipt.seq}")
    return found


def _row(change: TrustChange) -> JsonObject:
    leaf = change.receipt.leaf
    return {
        "seq": leaf.seq, "timeMs": leaf.time_ms, "type": leaf.type, "resources": list(change.receipt.resources),
        "change": change.change, "after": change.after,
    }  # fmt: skip
