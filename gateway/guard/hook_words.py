"""What the hook says when the gateway says no: sentences for a model and a person, a line each.

Source: docs/guards.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.client.errors import (
    ClientError,
    Deadlock,
    LeaseHeld,
    LockDelayed,
    Queued,
    Refused,
    RequestRejected,
    Unreachable,
)
from gateway.client.exits import explain, moment, seconds, shown
from gateway.guard.hook_state import Need


def told(error: ClientError) -> str:
    """Return who is in the way, until when, and what to do next, in sentences for a model and a person.

    Others are named by their keys: a label may have been chosen by whoever bears it, and a model reads it as words.
    """
    match error:
        case Deadlock():
            order = " ".join(shown(name) for name in error.acquire_order)
            return (
                f"{shown(error.resource)} is held by {shown(error.holder)}, who waits for what this key holds (entry "
                f"{error.receipt.seq}). Give something back; taken in this order nobody waits for ever: {order}"
            )
        case LeaseHeld():
            return (
                f"{shown(error.resource)} is held by {shown(error.holder)} for "
                f"{shown(str(error.conflict.get('mode')))} until {moment(error.expires_at_ms)} (entry "
                f"{error.receipt.seq}). Work on something else, or try again in {seconds(error.retry_after_ms)}; to "
                f"wait in line: tallystick lease acquire {shown(error.resource)} --wait 60s"
            )
        case LockDelayed():
            return (
                f"{shown(error.resource)} may be had by its last holder {shown(error.holder)} alone until "
                f"{moment(error.delay_until_ms)} (entry {error.receipt.seq}). Try again after that."
            )
        case Queued():
            return (
                f"{shown(error.resource)}: {shown(str(error.ahead.get('actor')))} waits for it and comes first (entry "
                f"{error.receipt.seq}). Stand in line: tallystick lease acquire {shown(error.resource)} --wait 60s"
            )
        case Unreachable() | RequestRejected():
            return f"the gateway did not decide: {_line(explain(error))}"
        case _:
            return _line(explain(error))


def lost(needs: Sequence[Need], refused: Refused) -> str:
    """Return that a lease on these is over, by which entry, and what to do before it is taken again."""
    return (
        f"{named(needs)}: the lease was lost ({refused.error}, entry {refused.receipt.seq}), and others may have "
        f"written since. Read it again, then repeat the call: it takes the lease anew."
    )


def unclaimed(need: Need) -> str:
    """Return that nothing that may be relied on covers a need, and how to take it."""
    return (
        f"{need.name}: no lease of this key is on it for {need.mode}, or it can't be relied on any more. Take one: "
        f"tallystick lease acquire {need.name}" + ("" if need.mode == "write" else f" --mode {need.mode}")
    )


def named(needs: Sequence[Need]) -> str:
    """Return the first names."""
    return " ".join(need.name for need in needs[:3]) + (" …" if len(needs) > 3 else "")


def _line(text: str) -> str:
    return " ".join(text.split())
