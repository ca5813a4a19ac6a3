"""Many commands of one actor in one signed request: each is decided as if it came alone, after those before it.

The header has the evidence, the commands' entries follow it and say which of its commands they answer. An atomic batch
is all or nothing: the first refusal undoes the others, and one entry says which it was.

Source: docs/protocol.md 31.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gateway.core import admission, lease, refusal
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest, commands_of
from gateway.core.lookup import counter_at
from gateway.core.outcome import ActionDecide, Context, Decision, granted, refused
from gateway.core.record_keys import TOKEN_KEY
from verifier.entries import HELD_MEMBERS, Told
from verifier.wire import JsonObject

DECIDES: Mapping[str, ActionDecide] = MappingProxyType(
    {
        "coordination.admit": admission.admit,
        "lease.acquire": lease.acquire,
        "lease.renew": lease.renew,
        "lease.release": lease.release,
    }
)


class Last(NamedTuple):
    """The highest numbers that stand when a batch is undone: of an entry, of a token."""

    seq: int
    token: int


def submit(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Decide the commands in order. The header's number is that of `context`; theirs follow it."""
    mark, parts = draft.savepoint(), []
    is_atomic = request.flag("isAtomic")
    commands = commands_of(request)
    said: JsonObject = {"count": len(commands), "isAtomic": is_atomic}
    for index, command in enumerate(commands):
        part = decide_safely(draft, command, DECIDES[command.action], context._replace(seq=context.seq + 1 + index))
        if is_atomic and part.is_refusal:
            draft.rollback(mark)
            last = Last(context.seq, counter_at(draft, TOKEN_KEY))
            return _refused(said | {"action": command.action, "index": index}, part, last)
        parts.append(part)
    return granted("batch.received", said | request.repeat("isBare"))._replace(parts=tuple(parts))


def _refused(said: JsonObject, part: Decision, last: Last) -> Decision:
    """Return the one entry of a batch that is refused as a whole, with what explains the refusal of its command.

    An end of a lease by an earlier command is undone with it, so there is no entry to be cited; a lease that one
    acquired as well, and its token will be another's.
    """
    row = refusal.BY_NAME[str(part.members["error"])]
    explains = HELD_MEMBERS.get(row.name, Told(()))
    names = (*explains.always, *explains.perhaps)
    told: JsonObject = {name: part.members[name] for name in names if name in part.members}
    for name, highest in (("endedSeq", last.seq), ("currentToken", last.token)):
        number = told.get(name)
        if isinstance(number, int) and number > highest:
            del told[name]
    return refused("batch.refused", row, said | told)._replace(status=part.status, fault=part.fault)


def decide_safely(draft: Draft, request: SignedRequest, action_decide: ActionDecide, context: Context) -> Decision:
    """Run an action's own rows of the table; whatever it raises undoes its changes and is `decision_failed`."""
    mark = draft.savepoint()
    try:
        decision = action_decide(draft, request, context)
    except Exception as error:
        draft.rollback(mark)
        failed = refused("decision.failed", refusal.DECISION_FAILED, {"action": request.action})
        decision = failed._replace(fault=error)
    return decision._replace(asked=request)
