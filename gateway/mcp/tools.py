"""The tools: which actions a model may ask for, under which names, and what it is told.

House rules of this file:

* A tool is a row of the table of actions (gateway/actions.py) and a row here. Every action is offered, or withheld for
  a reason; a test fails for one that is neither.
* A refusal is an answer, with what to do next; so is an argument out of bounds, and a gateway that can't be reached.
* No word of one actor reaches another's model: labels, reasons and activities of others are left out of answers. Names
  of resources and DIDs stay, because without them nobody knows what is in the way.
* Nothing takes longer than WAIT_S_MAX on purpose: hosts cut calls.

The rooms below are behind Caller: the bearer door over HTTP (web/mcp.py), an agent's own key over stdio (bridge.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol

from gateway.actions import ACTIONS, Action
from gateway.client.signing import new_idempotency_key
from gateway.mcp.protocol import INVALID_PARAMS, Fault, Request, called, plain_result
from gateway.mcp.shapes import input_schema, output_schema
from gateway.mcp.watch import advice, advice_on_ask, watch
from verifier.entries import (
    ACTION_BODIES,
    ASK_ID,
    BOOLEAN,
    DID,
    RESOURCE,
    SEQ,
    Kind,
    Member,
    MemberError,
    check_body,
    check_members,
)
from verifier.wire import INT_MAX, JsonObject, JsonValue, Malformed

WAIT_S_MAX = 20
SHOWN_ROWS_MAX = 50  # resources in one picture for a model
Spelling = Literal["dotted", "underscored"]


class Trouble(Exception):
    """Nothing was decided, as far as is known; `code` and `retry` as in the tables of refusals and problems."""

    def __init__(self, code: str, text: str, retry: str = "never", more: JsonObject | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.retry = retry
        self.more = more or {}


class Caller(Protocol):
    """Who calls, and the way to the gateway for it."""

    @property
    def did(self) -> str:
        """The agent that every call is made for."""

    @property
    def ledger(self) -> str:
        """The origin of the ledger."""

    @property
    def look_s(self) -> float:
        """How long to wait between two looks at the same picture."""

    async def decide(self, action: str, members: JsonObject, *, idempotency_key: str, wait_ms: int) -> JsonObject:
        """Return the answer to a decision as the REST door gives it, with `seq`; Trouble when there is none."""

    async def read(self, action: str, arguments: JsonObject) -> JsonObject:
        """Return the answer to a read; `arguments` are those of the tool."""


@dataclass(frozen=True, slots=True)
class Tool:
    """An action that is offered. `text` says to a model what the table's summary leaves open.

    The hints tell a host what it may call without asking: it changes nothing; it gives something up for good; doing it
    twice is doing it once.
    """

    action: Action
    name: str
    text: str
    members: tuple[Member, ...]
    is_destructive: bool = False
    is_idempotent: bool = False

    @property
    def underscored(self) -> str:
        """The name for hosts that take no dots."""
        return self.name.replace(".", "_")

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing."""
        return self.action.kind == "read"

    def spelled(self, spelling: Spelling) -> str:
        """Return the name in a spelling."""
        return self.name if spelling == "dotted" else self.underscored


_WAIT_SECONDS = Kind(
    "wait",
    lambda value: type(value) is int and 0 <= value <= INT_MAX,
    f"an integer from 0; what is more than {WAIT_S_MAX} counts as {WAIT_S_MAX}",
    {"type": "integer", "minimum": 0},
)
_KEY_CHARACTERS = frozenset(map(chr, range(0x21, 0x7F))) - set('"\\')
_IDEMPOTENCY_KEY = Kind(
    "idempotency key",
    lambda value: type(value) is str and 1 <= len(value) <= 255 and _KEY_CHARACTERS.issuperset(value),
    "1 to 255 printable ASCII characters without space, quote and backslash",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!#-\\[\\]-~]+$"},
)
_OWN = (
    Member("idempotencyKey", _IDEMPOTENCY_KEY, False),
    Member("withReceipt", BOOLEAN, False),
)
_WAITING = Member("waitSeconds", _WAIT_SECONDS, False)
_FILLED_IN = ("ledger", "actorDid")

MEANINGS: Mapping[str, str] = {
    "resource": "The one name to act on: scheme:path, such as repo:app/src/main.py, or scheme:path/** for a sub-tree",
    "resources": "Instead of `resource`: several names, all or none",
    "mode": "What for: read, append, write or delete; what may be shared is the scheme's class. Left out: write",
    "ttlMs": "For how long without a renewal; left out: 30000",
    "wait": "true: stand in line when it can't be had now, and get a ticket to claim",
    "giveUpMs": "With wait: how long the place in line is kept at most",
    "onDeadlock": "With wait: refuse (left out) when waiting would never end, or wait all the same",
    "leaseId": "Which lease, as the grant named it",
    "seenToken": "The fencing token that the lease was last seen with",
    "toDid": "Whom to offer the lease to: the DID of an agent",
    "reason": "Why, as a code",
    "reasonDigest": "SHA-256 of a longer reason that stays with you",
    "ticketId": "Which place in line, as the queueing named it",
    "activity": "What the session is doing, as a code",
    "commands": "What to do, in order: each has an `action` (lease.acquire, lease.renew, lease.release, "
    "coordination.admit) and the members of that tool, without waiting",
    "isAtomic": "true: all or nothing",
    "isBare": "true: leave direct signatures out of the receipts",
    "holder": "Whose leases: the DID of an agent; left out: your own",
    "operation": "What you are about to do, as a code",
    "argumentsDigest": "SHA-256, in hex, of exactly what you will do: the command, the diff, the request",
    "fencingToken": "With leaseId: the fencing token that you have of that lease",
    "cost": "What it costs, for budgets that the rules may have; left out: 0",
    "approvals": "Approvals of exactly this, as coordination.approval.list shows them: each a statement and its "
    "signature",
    "approvers": "Whom to ask: DIDs of agents or operators, sorted",
    "quorum": "How many of them must approve; left out: 1",
    "askId": "Which request for approval, as the asking named it; left out of a list: all of your own",
    "did": "Whose: the DID of an agent; left out: your own",
    "seq": "The number of the entry, `seq` of its answer",
    "waitSeconds": "For how long the answer may be held back until there is news",
    "idempotencyKey": "A name for this one intention: repeat the call with the same one when no answer came, and it "
    "happens once; left out: a new one",
    "withReceipt": "false: leave the signed receipt out of the answer, which coordination.receipt.get gets later",
}


def _tool(action: str, text: str, *, is_destructive: bool = False, is_idempotent: bool = False) -> Tool:
    row = ACTIONS[action]
    name = _NAMES.get(action, action if action.startswith("coordination.") else f"coordination.{action}")
    return Tool(row, name, text, _members(row), is_destructive, is_idempotent or row.kind == "read")


def _members(action: Action) -> tuple[Member, ...]:
    if action.kind == "read":
        return _READS[action.name]
    asked = tuple(member for member in ACTION_BODIES[action.name] if member.name not in _FILLED_IN)
    return (*asked, *((_WAITING,) if action.is_held else ()), *_OWN)


_NAMES: Mapping[str, str] = {"batch.submit": "coordination.batch"}
_READS: Mapping[str, tuple[Member, ...]] = {
    "coordination.wait": (Member("resource", RESOURCE, False), _WAITING),
    "lease.list": (Member("holder", DID, False),),
    "trust.get": (Member("did", DID, False),),
    "receipt.get": (Member("seq", SEQ),),
    "usage.get": (Member("did", DID, False),),
    "approval.list": (Member("askId", ASK_ID, False),),
}

TOOLS: tuple[Tool, ...] = (
    _tool(
        "lease.acquire",
        "Grants it with a fencing token, to be shown to whatever you change; or refuses and says who is in the way and "
        "what to do. Name either `resource` or `resources`. Asking again for what you hold extends it. With wait true "
        "you may get a ticket instead: claim it.",
    ),
    _tool(
        "lease.renew",
        "Do so well before it runs out. A lease that ended never comes back: stop, then acquire again. Another `mode` "
        "makes a new lease with a new token.",
    ),
    _tool(
        "lease.release",
        "As soon as you are done. Name what was granted, by `resource` or `resources`, and the lease's id. Releasing "
        "again what you released is a success.",
        is_idempotent=True,
    ),
    _tool(
        "lease.transfer",
        "It stays yours until the other accepts. A newer offer takes the place of an older one.",
        is_destructive=True,
        is_idempotent=True,
    ),
    _tool("lease.accept", "You get it with a new id and a new fencing token; the other's ends."),
    _tool(
        "wait.claim",
        "The lease when it is your turn, else your place in line, which is kept by claiming before `pollByMs`. With "
        "waitSeconds 20 the answer comes when your turn does.",
    ),
    _tool("wait.cancel", "Whenever you no longer want what you stand in line for.", is_idempotent=True),
    _tool(
        "coordination.admit",
        "Right before you act, each time. Present the lease and its token; only mode read needs none. `allowed` true "
        "is good for one execution of just these arguments, until `validUntilMs`; do what `obligations` name. A denial "
        "says why: don't act.",
    ),
    _tool(
        "approval.ask",
        "What can't be undone, and what the rules say, needs it. People or other agents of another operator answer, "
        "which takes a while: renew your lease meanwhile, look with coordination.approval.list, then ask for admission "
        "with the same values and what they gave.",
    ),
    _tool(
        "approval.withdraw", "As soon as you no longer want it: an open request counts as waiting.", is_idempotent=True
    ),
    _tool("session.beat", "Only a session does: without a sign of life it ends, and gives back what it holds."),
    _tool(
        "batch.submit",
        "Up to 256 commands in one signed request, each decided with the effects of those before it. `ok` is true when "
        "all were done; each of `results` says its own.",
    ),
    _tool(
        "coordination.wait",
        "On one resource, or on all. With waitSeconds the answer comes when the picture changes, and at once when the "
        "resource is free. `next` says what to do. It proves nothing; only a grant is a right.",
    ),
    _tool("lease.list", "Also those that are offered to it."),
    _tool("trust.get", "In thousandths of a point; releases in time raise it, leases that run out lower it."),
    _tool("usage.get", "What the budgets and rates of the rules count."),
    _tool(
        "approval.list",
        "Your own, or one. When its `state` is given, `next` says how to ask for admission with what they gave.",
    ),
    _tool("receipt.get", "Anyone can check it without this gateway."),
)
WITHHELD: Mapping[str, str] = {
    "lease.break": "an operator's",
    "scheme.set": "an operator's",
    "rules.load": "an operator's",
    "rules.show": "for people; a denial names the rules that forbid",
    "approval.give": "for people: whoever approves reads what it is, and signs it outside of any tool",
    "approval.decline": "for people, as giving is",
    "agent.add": "an operator's",
    "agent.remove": "an operator's",
    "operator.add": "an operator's",
    "operator.remove": "an operator's",
    "key.announce": "an operator's",
    "key.retire": "an operator's",
    "key.compromise": "an operator's",
    "apikey.issue": "an operator's",
    "apikey.revoke": "an operator's",
    "session.open": "needs a statement that the agent's key signs outside of any tool",
    "session.close": "ends who calls; a session that is no longer needed is closed by who opened it",
    "session.list": "who else is here is for people, with labels of others",
    "operator.list": "who else is here is for people, with labels of others",
    "apikey.list": "an operator's",
    "key.list": "for clients that verify, without a model",
    "agent.enrol": "comes before there is an agent",
    "agent.list": "who else is here is for people, with labels of others",
    "scheme.list": "for people; a refusal says when a mode is not allowed",
    "ledger.consistency": "for clients that verify, without a model",
    "ledger.dispute": "for clients that verify, without a model",
    "ledger.seen": "for clients that verify, without a model",
}
_BY_NAME: Mapping[str, tuple[Tool, Spelling]] = {
    **{tool.underscored: (tool, "underscored") for tool in TOOLS},
    **{tool.name: (tool, "dotted") for tool in TOOLS},
}


def find(name: str) -> tuple[Tool, Spelling] | None:
    """Return the tool of a name in either spelling, and which that is."""
    return _BY_NAME.get(name)


@cache
def definitions(spelling: Spelling) -> list[JsonValue]:
    """Return what `tools/list` says, the same list each time: to be read only."""
    return [_definition(tool, spelling) for tool in TOOLS]


def _definition(tool: Tool, spelling: Spelling) -> JsonObject:
    return {
        "name": tool.spelled(spelling),
        "title": tool.action.summary,
        "description": f"{tool.action.summary}. {tool.text}",
        "inputSchema": input_schema(tool.members, MEANINGS),
        "outputSchema": output_schema(tool.action.name),
        "annotations": {
            "title": tool.action.summary,
            "readOnlyHint": tool.is_reading,
            "destructiveHint": tool.is_destructive,
            "idempotentHint": tool.is_idempotent,
            "openWorldHint": False,
        },
    }


# -- calling -----------------------------------------------------------------------------------------------------------


async def result_of(request: Request, caller: Caller | None, spelling: Spelling) -> JsonObject:
    """Return the result of any request; Fault for one that is not served. Only a call of a tool needs a `caller`.

    `spelling` is how tools are listed; both are understood.
    """
    if request.method != "tools/call":
        return plain_result(request, definitions(spelling))
    tool, spelling, arguments = find_call(request)
    assert caller is not None, "whoever calls was asked who it is"
    return await call(caller, tool, spelling, arguments)


def find_call(request: Request) -> tuple[Tool, Spelling, JsonObject]:
    """Return which tool a request calls, as it spells it, and with what; Fault when there is none of that name."""
    name, arguments = called(request)
    found = find(name)
    if found is None:
        raise Fault(INVALID_PARAMS, "There is no tool of this name; see tools/list.", request.id)
    return (*found, arguments)


def is_held(request: Request) -> bool:
    """Say whether a call may be kept waiting, so that it is worth nothing once its client has gone."""
    arguments = request.params.get("arguments")
    return isinstance(arguments, dict) and bool(arguments.get("waitSeconds"))


async def call(caller: Caller, tool: Tool, spelling: Spelling, arguments: JsonObject) -> JsonObject:
    """Return the result of a `tools/call`; whatever it is about, a model can read it."""
    try:
        _check(tool, caller, arguments)
        if tool.is_reading:
            return _result(await _read(caller, tool, spelling, arguments))
        return _result(await _decide(caller, tool, spelling, arguments))
    except Trouble as trouble:
        return _result(refused(trouble))


def refused(trouble: Trouble) -> JsonObject:
    """Return what is said of a call that nothing was decided about."""
    return {"ok": False, "error": trouble.code, "message": trouble.text, "retry": trouble.retry, **trouble.more}


def _check(tool: Tool, caller: Caller, arguments: JsonObject) -> None:
    """Raise Trouble for arguments that break the table, in its own words."""
    asked = {name: value for name, value in arguments.items() if name not in _FILLED_IN}
    body: JsonObject = {"ledger": caller.ledger, "actorDid": caller.did, **_body(arguments)}
    try:
        check_members(asked, tool.members)
        if tool.is_reading:
            return
        check_body(tool.action.name, body)
    except MemberError as error:
        raise Trouble(error.code, str(error)) from error
    except Malformed as error:
        raise Trouble("body_malformed", str(error)) from error
    if body["ledger"] != caller.ledger:
        raise Trouble("wrong_ledger", f"This is the ledger {caller.ledger}; leave `ledger` out.")
    if body["actorDid"] != caller.did:
        raise Trouble("actor_mismatch", f"Every call here is made by {caller.did}; leave `actorDid` out.")


def _body(arguments: JsonObject) -> JsonObject:
    """Return the members of the request's body: what is not about the call itself."""
    ours = {member.name for member in (*_OWN, _WAITING)}
    return {name: value for name, value in arguments.items() if name not in ours}


async def _decide(caller: Caller, tool: Tool, spelling: Spelling, arguments: JsonObject) -> JsonObject:
    key = str(arguments.get("idempotencyKey") or new_idempotency_key())
    members = {name: value for name, value in _body(arguments).items() if name not in _FILLED_IN}
    try:
        answer = await caller.decide(tool.action.name, members, idempotency_key=key, wait_ms=1_000 * _wait_s(arguments))
    except Trouble as trouble:
        if trouble.retry == "same_request":
            trouble.more = {**trouble.more, "idempotencyKey": key}
        raise
    if arguments.get("withReceipt") is False:
        answer = {name: value for name, value in answer.items() if name not in _SIGNED}
    return shorn(answer) | advice(answer, tool.action.name, members, names_in(spelling))


async def _read(caller: Caller, tool: Tool, spelling: Spelling, arguments: JsonObject) -> JsonObject:
    if tool.action.name == "approval.list":
        asked = shorn(await caller.read(tool.action.name, arguments))
        return asked | advice_on_ask(asked, arguments, names_in(spelling))
    if tool.action.name != "coordination.wait":
        return shorn(await caller.read(tool.action.name, arguments))
    picture = shorn(await watch(caller, arguments, wait_s=_wait_s(arguments), names=names_in(spelling)))
    rows = picture.get("resources")
    if isinstance(rows, list) and len(rows) > SHOWN_ROWS_MAX:
        return {**picture, "resources": rows[:SHOWN_ROWS_MAX], "isTruncated": True}
    return picture


def _wait_s(arguments: JsonObject) -> int:
    wait_s = arguments.get("waitSeconds", 0)
    assert isinstance(wait_s, int), "the table says so"
    return min(wait_s, WAIT_S_MAX)


@cache
def names_in(spelling: Spelling) -> Mapping[str, str]:
    """Return the names of the tools by their actions."""
    return {tool.action.name: tool.spelled(spelling) for tool in TOOLS}


_SIGNED = frozenset({"receipt", "batch"})  # what is signed is passed on whole, or not at all
_WORDS = frozenset({"activity", "reason", "name"})


def shorn(answer: JsonObject) -> JsonObject:
    """Return an answer without the words that others chose: labels, reasons, activities."""
    return {
        name: value if name in _SIGNED else _shorn(value)
        for name, value in answer.items()
        if name not in _WORDS and not name.endswith("Name")
    }


def _shorn(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return shorn(value)
    return [_shorn(item) for item in value] if isinstance(value, list) else value


def _result(answer: JsonObject) -> JsonObject:
    """Return the result: structured for programs, and without what is signed as text for a model."""
    told = {name: value for name, value in answer.items() if name not in _SIGNED}
    text: JsonObject = {"type": "text", "text": json.dumps(told, separators=(",", ":"), ensure_ascii=False)}
    return {"content": [text], "structuredContent": answer, "isError": answer.get("ok") is not True}
