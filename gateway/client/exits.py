"""Exit codes of the client's commands, and the sentences that go with them.

The numbers are those of sysexits.h where one fits, so that a script can tell "somebody else has it" from "it broke"
without reading text. `tallystick run` returns the command's own status; codes of this table then come from tallystick,
which always says so on standard error.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    ClockWrong,
    HeldHere,
    LeaseHeld,
    LeaseLost,
    LedgerBehind,
    NotEnrolled,
    NotHeld,
    ProfileError,
    Refused,
    SplitView,
    Unreachable,
)
from verifier.verdict import escape

DONE, REFUSED, USAGE = 0, 1, 2
UNREACHABLE, HELD, LOST, UNPROVEN, NOT_ENROLLED, PROFILE = 69, 73, 75, 76, 77, 78
NOT_EXECUTABLE, NOT_FOUND, SIGNAL_BASE = 126, 127, 128

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    REFUSED: "refused, with a receipt; the text names the refusal",
    USAGE: "wrong usage",
    UNREACHABLE: "the gateway could not be reached in time; nothing is known",
    HELD: "another agent, or another process with this key, holds the lease (after --wait, if given)",
    LOST: "the lease was lost while the command ran; the command was stopped",
    UNPROVEN: "the gateway's answer does not prove what it says, or two histories were shown",
    NOT_ENROLLED: "this key may not act here: ask an operator for `tallystick agent add`",
    PROFILE: "the profile, its key or this machine's clock is not usable",
}
# What to do about a receipted refusal; lease_held has a sentence of its own. A test compares the names with the table.
ADVICE: Mapping[str, str] = {
    "operator_required": "Only an operator may do this: use the operator's profile: --home DATA/operator",
    "agent_not_found": "No such key is in force (never enrolled, or removed already): tallystick agent list",
    "ledger_disputed": "Two histories of this ledger are known and nothing is granted: ask its operator.",
    "lease_unknown": "See what you hold: tallystick lease list",
    "lease_not_yours": "Only its holder may renew or release it: tallystick lease list",
    "lease_released": "It was released and does not come back: acquire again.",
    "lease_expired": "It ran out: stop the work it covered, then acquire again.",
    "lease_mismatch": "Name exactly the resources it was granted for: tallystick lease list",
    "not_holder": "You hold no lease on exactly these resources: tallystick lease list",
    "decision_failed": "The gateway could not decide, and granted nothing: tell its operator the entry's number.",
}
_KINDS: tuple[tuple[type[ClientError], int], ...] = (
    (LeaseHeld, HELD),
    (HeldHere, HELD),
    (LeaseLost, LOST),
    (Unreachable, UNREACHABLE),
    (AnswerRefused, UNPROVEN),
    (NotEnrolled, NOT_ENROLLED),
    (ClockWrong, PROFILE),
    (ProfileError, PROFILE),
)
_NAMES: tuple[tuple[type[ClientError], str], ...] = (
    (NotHeld, "not_held"),
    (HeldHere, "held_here"),
    (LeaseLost, "lease_lost"),
    (Unreachable, "unreachable"),
    (LedgerBehind, "ledger_behind"),
    (SplitView, "split_view"),
    (AnswerRefused, "answer_unproven"),
    (ProfileError, "profile_unusable"),
)


def exit_code_of(error: ClientError) -> int:
    """Return the exit code for an error of the client."""
    return next((code for kind, code in _KINDS if isinstance(error, kind)), REFUSED)


def code_name(error: ClientError) -> str:
    """Return a failure's name for programs; refusals and rejections have the gateway's own."""
    return next((name for kind, name in _NAMES if isinstance(error, kind)), "failed")


def exit_table() -> str:
    """Return the codes as the epilog of --help."""
    return "exit codes:\n" + "".join(f"  {code:>3}  {meaning}\n" for code, meaning in MEANINGS.items())


def explain(error: ClientError) -> str:
    """Return what happened and what to do next, for a person; strings from outside are escaped."""
    if isinstance(error, LeaseHeld):
        return _explain_held(error)
    if isinstance(error, HeldHere):
        return f"{escape(str(error))}\nWait with --wait 60s, or give what runs beside it a key of its own (--home)."
    if isinstance(error, Refused):
        return f"refused: {escape(error.error)} (entry {error.receipt.seq}). {ADVICE.get(error.error, '')}".strip()
    return "\n".join(escape(line) for line in str(error).splitlines())


def _explain_held(held: LeaseHeld) -> str:
    holder = f"{escape(held.holder_name)} ({held.holder})" if held.holder_name else held.holder
    others = f", and {held.conflicts - 1} more in the way" if held.conflicts > 1 else ""
    return (
        f"{escape(held.resource)} is held by {holder} until {moment(held.expires_at_ms)} unless renewed"
        f"{others}.\nTry again in {held.retry_after_ms} ms, wait with --wait 60s, or see who waits: tallystick wait"
    )


def moment(time_ms: int) -> str:
    """Return an instant of the gateway's time as a person reads it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
