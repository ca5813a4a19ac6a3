"""What a saved position may hold: a closed list of classes, plain containers and plain values. Nothing is executed.

A pickle names what it wants made and with which values. Here it gets the classes of the list, none of which does more
than keep what it is given; everything else that it asks for is refused before it is looked up.
Source: docs/protocol.md 17.7.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import fields
from pickle import Unpickler
from typing import BinaryIO

from verifier.approval import Approval
from verifier.entries import Leaf
from verifier.keyring import Keyring
from verifier.replay import (
    batch,
    burnt,
    due,
    judged,
    once,
    people,
    pleas,
    relations,
    returns,
    ruling,
    schemes,
    settle,
    signing,
    stampede,
    starts,
    state,
    things,
    trust,
    under,
    usage,
    witnessed,
)
from verifier.replay.audit import Audit
from verifier.verdict import Outcome

BEGIN_ANEW = "begin anew with an empty folder"
FORMAT = 3  # higher with every change of a class that is kept; tests/verifier/test_replay_position.py notices
KEPT_CLASSES = (
    Approval,
    Leaf,
    batch.Batch,
    burnt.Burnt,
    due.Due,
    judged.Judged,
    once.Once,
    once.Spent,
    people.Agent,
    people.ApiKey,
    people.People,
    people.Session,
    pleas.Plea,
    pleas.Pleas,
    relations.Relations,
    returns.Due,
    returns.Returns,
    ruling.RuleSet,
    schemes.Scheme,
    schemes.Schemes,
    settle.Call,
    settle.Line,
    signing.Keys,
    signing.LedgerKey,
    stampede.Edge,
    stampede.Stampede,
    starts.Starts,
    state.State,
    things.Ask,
    things.Delay,
    things.Ended,
    things.Endings,
    things.Lease,
    things.Offer,
    things.Ticket,
    trust.Record,
    trust.Trust,
    under.Index,
    usage.Tally,
    usage.Usage,
    witnessed.Witnessed,
    Counter,
    deque,
)
_BY_NAME = {(kept.__module__, kept.__qualname__): kept for kept in KEPT_CLASSES}
# What an audit knows beside its pins and its tree; findings are kept as plain values, the rest is found again.
_NOT_KEPT = {"keyring", "tree", "roots", "findings", "origin", "genesis", "engine"}
KEPT_MEMBERS = tuple(member.name for member in fields(Audit) if member.name not in _NOT_KEPT)
_ABSENT = object()


class PositionRefused(ValueError):
    """A saved position that must not be gone on from. The text says why, and what to do."""


class _Closed(Unpickler):
    """Makes the classes of the list, plain containers and plain values."""

    def find_class(self, module: str, name: str) -> type:
        kept = _BY_NAME.get((module, name))
        if kept is None:
            raise PositionRefused(f"the saved position asks for {module}.{name}, which is none of its classes")
        return kept


def read_members(file: BinaryIO) -> dict[str, object]:
    """Return the members that the pickle at the file's place holds. PositionRefused for whatever else it is."""
    before = [dict(vars(kept)) for kept in KEPT_CLASSES]
    try:
        members = _Closed(file).load()
        is_whole = _is_whole(members)
    except PositionRefused:
        raise
    except Exception as error:  # an unpickler raises whatever it meets
        raise PositionRefused(f"the saved position cannot be read ({type(error).__name__}): {BEGIN_ANEW}") from error
    finally:
        is_meddled = _restore(before)
    if is_meddled or not is_whole:
        raise PositionRefused(f"the saved position does not hold what an audit knows: {BEGIN_ANEW}")
    return dict(members)


def _restore(before: list[dict[str, object]]) -> bool:
    """A pickle may set attributes of what it names, of classes too: put them back, and say whether that was needed."""
    is_meddled = False
    for kept, own in zip(KEPT_CLASSES, before, strict=True):
        for name, now in dict(vars(kept)).items():
            if own.get(name, _ABSENT) is not now:
                is_meddled = True
                delattr(kept, name) if name not in own else setattr(kept, name, own[name])
    return is_meddled


def _is_whole(members: object) -> bool:
    """Say whether members are all there, each of its type; what lies deeper is believed."""
    if not isinstance(members, dict) or members.keys() != {*KEPT_MEMBERS, "findings"}:
        return False
    new = Audit(Keyring())
    if not all(_is_like(members[name], getattr(new, name)) for name in KEPT_MEMBERS):
        return False
    return all(
        type(step) is int and type(code) is str and Outcome(outcome) < Outcome.INVALID and type(text) is str
        for step, code, outcome, text, seq in members["findings"]
    )


def _is_like(value: object, first: object) -> bool:
    """Say whether a member has the type it has in a new audit; one that is None there is a number later."""
    return type(value) is type(first) or (first is None and type(value) is int)
