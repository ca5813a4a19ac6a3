"""Exit codes of the client's commands, and the sentences that go with them.

The numbers are those of sysexits.h where one fits, so that a script can tell "somebody else has it" from "it broke"
without reading text. `tallystick run` returns the command's own status; codes of this table then come from tallystick,
which always says so on standard error.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.client.errors import (
    AdmissionDenied,
    AlreadyWaiting,
    AnswerRefused,
    AskOver,
    BatchRefused,
    ClientError,
    ClockWrong,
    Deadlock,
    HeldHere,
    Interrupted,
    InTheWay,
    LeaseBroken,
    LeaseHeld,
    LeaseLost,
    LedgerBehind,
    LockDelayed,
    NotApproved,
    NotEnrolled,
    NotHeld,
    NotWitnessed,
    ProfileError,
    Queued,
    QueueFull,
    Refused,
    RulesDenied,
    SessionEnded,
    SessionRefused,
    SplitView,
    StillWaiting,
    TokenStale,
    TrialOver,
    Unreachable,
    Waits,
)
from verifier.verdict import TEXT_CHARACTERS_MAX, escape

DONE, REFUSED, USAGE, UNWITNESSED, UNFIT = 0, 1, 2, 3, 65
UNREACHABLE, HELD, LOST, UNPROVEN, NOT_ENROLLED, PROFILE, DEADLOCK, ENDED, DENIED = 69, 73, 75, 76, 77, 78, 79, 80, 81
NOT_EXECUTABLE, NOT_FOUND, SIGNAL_BASE, INTERRUPTED, UNREAD = 126, 127, 128, 130, 141

MEANINGS: Mapping[int, str] = {
    DONE: "done",
    REFUSED: "refused, with a receipt; the text names the refusal",
    USAGE: "wrong usage",
    UNWITNESSED: "no quorum of witnesses stands for the receipt yet (after --wait)",
    UNFIT: "the rule set is not valid, or a case came out otherwise than it expects",
    UNREACHABLE: "the gateway could not be reached in time; nothing is known",
    HELD: "others hold the lease or come first, or another process with this key does (after --wait)",
    LOST: "the lease was lost while the command ran; the command was stopped",
    UNPROVEN: "the gateway's answer does not prove what it says, or two histories were shown",
    NOT_ENROLLED: "this key may not act here (not enrolled, removed, nothing lent to it, a trial that is over): ask an "
    "operator",
    PROFILE: "the profile, its key or this machine's clock is not usable",
    DEADLOCK: "waiting would never end: those in the way wait for this key; give something back",
    ENDED: "this session is over and what it held is given back: open another with `tallystick session open`",
    DENIED: "the act may not be done: its admission was denied, with a receipt, or it was not approved",
}
# What to do about a receipted refusal. A test compares the names, and those of _SENTENCES, with the table.
ADVICE: Mapping[str, str] = {
    "operator_required": "Only an operator may do this: use the operator's profile: --home DATA/operator",
    "agent_not_found": "No such key is in force (never enrolled, or removed already): tallystick agent list",
    "operator_not_found": "No such operator is in force: tallystick operator list",
    "operator_last": "One operator must stay: add another first: tallystick operator add DID",
    "key_taken": "This key is something else here, or another operator's agent, who has to remove it first: "
    "tallystick agent list, tallystick operator list",
    "apikey_not_found": "No such API key is in force: tallystick apikey list",
    "apikey_known": "This API key was issued before, and is issued once: make a new one: tallystick apikey issue",
    "apikey_used": "This trial key has enrolled its one agent. Ask an operator for another API key.",
    "session_unknown": "There is no such session: tallystick session list",
    "session_not_yours": "Only itself, the agent behind it or an operator may end it: tallystick session list",
    "session_required": "Only a session says that it is there, and this key is none: --home with a session's folder.",
    "key_known": "This key was something else here: make another one: tallystick keys new",
    "key_not_committed": "The ledger wants the key it was told of before: use the folder of the root that has it.",
    "key_overlap": "Two keys of this purpose are in force: tallystick keys retire, when readers have the new document.",
    "key_unknown": "No such key is in force: see public/vkeys.txt of the data directory.",
    "key_last": "It is the only one in force: tallystick keys rotate comes first.",
    "outside_scope": "What was lent to this key does not cover that: open a session that may. A trial key: keep to "
    "names below trial:<its DID>/, for a minute at most.",
    "scheme_busy": "A lease, a ticket or a delay of this scheme lives: see tallystick wait; try again without them.",
    "name_not_allowed": "Names beyond ASCII need an operator's word: tallystick scheme set SCHEME --unicode",
    "mode_not_allowed": "What is append-only is neither written nor deleted: --mode append, or --mode read",
    "ledger_disputed": "Two histories of this ledger are known and nothing is granted: ask its operator.",
    "lease_unknown": "No such lease is known. What you hold: tallystick lease list; what others hold: tallystick wait",
    "lease_not_yours": "Only its holder may renew or release it: tallystick lease list",
    "lease_released": "It was released and does not come back: acquire again.",
    "lease_expired": "It ran out: stop the work it covered, then acquire again.",
    "lease_transferred": "It was handed over and is another's now: stop the work it covered.",
    "lease_returned": "Its session, or its holder, came to an end and it was given back: stop the work it covered.",
    "lease_changed": "It went over to another mode under another id: tallystick lease list",
    "lease_mismatch": "Name exactly the resources it was granted for: tallystick lease list",
    "not_holder": "You hold no lease on exactly these resources: tallystick lease list",
    "not_offered": "Nobody offers you this lease: its holder does that with tallystick lease transfer",
    "hold_exceeded": "It had its longest time and others wait: let it end, then tallystick lease acquire … --wait 60s",
    "too_many_held": "This key holds as much as one key may: give something back, see tallystick lease list",
    "fence_unknown": "This token was never given for the lease: tallystick lease list shows the one it has.",
    "stale_fence": "The lease is over, or has another token by now: stop the work, then acquire again.",
    "lease_too_narrow": "The lease does not cover all of it, or not in this mode: acquire what the act needs.",
    "lease_required": "Only what is read is admitted without a lease, and no lease of this key covers all of it: "
    "acquire one first.",
    "admission_conflict": "Somebody else holds what the act would touch: wait for it with tallystick lease acquire … "
    "--wait 60s",
    "approval_wrong": "The approval is for something else, or the rules changed since: have exactly this approved.",
    "approver_unfit": "Who approves has a key of its own, in force, and another operator than this agent; each "
    "operator counts once.",
    "approval_expired": "The approval is over, or does not hold yet: ask for a new one.",
    "approval_used": "An approval is good for one admission, and this one was used: ask for a new one.",
    "approval_required": "What can't be undone needs an approval: --ask DID, or --approval FILE",
    "policy_error": "The rules could not be evaluated, so nothing is allowed: tell an operator the entry's number.",
    "forbidden_by_rules": "The rules forbid it: tallystick rules show",
    "not_permitted": "No rule permits it, or only with an approval (--ask DID): tallystick rules show",
    "rules_out_of_turn": "Another rule set was loaded meanwhile: look at it, and load yours as the one after it.",
    "ask_unknown": "There is no such request for approval, or it ended long ago: tallystick approve list",
    "ask_not_yours": "Only who was asked may approve or decline, and only who asked withdraws: tallystick approve list",
    "ask_ended": "The request is over: approved, declined, withdrawn, or nobody answered in time.",
    "too_many_asked": "This key asks for as much as one key may: withdraw something, see tallystick approve list",
    "ticket_unknown": "There is no such ticket, or it ended a day ago: queue again.",
    "ticket_not_yours": "The ticket is another key's: see tallystick wait",
    "ticket_ended": "It was served, cancelled, or not claimed in time: see tallystick lease list, or queue again.",
    "decision_failed": "The gateway could not decide, and granted nothing: tell its operator the entry's number.",
}
# Where another entry than the usual one says no, and the usual advice would not work there.
_ADVICE_THERE: Mapping[tuple[str, str], str] = {
    ("apikey.refused", "agent_not_found"): "An API key speaks only for an agent in force that you answer for "
    "and whose key the gateway keeps: tallystick agent list",
    ("admission.denied", "lease_not_yours"): "An act is done under a lease of one's own: tallystick lease list",
    (
        "approval.refused",
        "approver_unfit",
    ): "Who approves has a key of its own, in force, and another operator than this agent: name others: "
    "tallystick operator list",
    (
        "giving.refused",
        "approver_unfit",
    ): "Your operator answers for the agent too, or has approved already: another has to approve.",
    ("transfer.refused", "lease_not_yours"): "Only its holder, or an operator, may hand it over: tallystick wait",
    ("transfer.refused", "not_offered"): "That key holds the lease already.",
    ("transfer.refused", "token_stale"): "That is not the token of this lease: see tallystick wait",
    ("acceptance.refused", "lease_transferred"): "It was accepted already, by you or by another: tallystick lease list",
    **{
        ("acceptance.refused", f"lease_{how}"): "The offer ended with the lease: acquire it, or ask who has it: "
        "tallystick wait"
        for how in ("released", "expired", "broken", "changed", "returned")
    },
}
_KINDS: tuple[tuple[type[ClientError], int], ...] = (
    (AdmissionDenied, DENIED),
    (NotApproved, DENIED),
    (Deadlock, DEADLOCK),
    (InTheWay, HELD),
    (AlreadyWaiting, HELD),
    (StillWaiting, HELD),
    (HeldHere, HELD),
    (Interrupted, INTERRUPTED),
    (LeaseLost, LOST),
    (Unreachable, UNREACHABLE),
    (AnswerRefused, UNPROVEN),
    (NotWitnessed, UNWITNESSED),
    (NotEnrolled, NOT_ENROLLED),
    (SessionRefused, NOT_ENROLLED),
    (TrialOver, NOT_ENROLLED),
    (SessionEnded, ENDED),
    (ClockWrong, PROFILE),
    (ProfileError, PROFILE),
)
_NAMES: tuple[tuple[type[ClientError], str], ...] = (
    (StillWaiting, "still_waiting"),
    (NotHeld, "not_held"),
    (AskOver, "ask_ended"),
    (NotApproved, "not_approved"),
    (NotWitnessed, "not_witnessed"),
    (HeldHere, "held_here"),
    (Interrupted, "interrupted"),
    (LeaseLost, "lease_lost"),
    (Unreachable, "unreachable"),
    (LedgerBehind, "ledger_behind"),
    (SplitView, "split_view"),
    (AnswerRefused, "answer_unproven"),
    (ProfileError, "profile_unusable"),
)


def exit_code_of(error: ClientError) -> int:
    """Return the exit code for an error of the client; who waited into a deadlock knowingly was only refused."""
    if isinstance(error, BatchRefused):
        return exit_code_of(error.cause)
    if isinstance(error, InTheWay) and error.waited_ms:
        return HELD
    return next((code for kind, code in _KINDS if isinstance(error, kind)), REFUSED)


def code_name(error: ClientError) -> str:
    """Return a failure's name for programs; refusals and rejections have the gateway's own."""
    return next((name for kind, name in _NAMES if isinstance(error, kind)), "failed")


def exit_table() -> str:
    """Return the codes as the epilog of --help."""
    return "exit codes:\n" + "".join(f"  {code:>3}  {meaning}\n" for code, meaning in MEANINGS.items())


def explain(error: ClientError, *, is_session: bool | None = None) -> str:
    """Return what happened and what to do next, for a person; strings from outside are escaped.

    `is_session` says what the caller's key is; None: no more than the entry tells.
    """
    if isinstance(error, HeldHere):
        return f"{shown(str(error))}\nWait with --wait 60s, or give what runs beside it a key of its own (--home)."
    if isinstance(error, StillWaiting):
        return _explain_waiting(error)
    if isinstance(error, BatchRefused):
        return (
            f"nothing of the batch was done, for command {error.index} ({error.action}) was refused. "
            f"{_explain_refusal(error.cause, is_session)}"
        )
    if isinstance(error, Refused):
        return _explain_refusal(error, is_session)
    if isinstance(error, LeaseLost) and isinstance(error.refused, LeaseBroken):
        return f"lease {error.lease_id} is lost, {_broken(error.refused)} Ask the operator, then acquire again."
    return "\n".join(shown(line) for line in str(error).splitlines())


def _explain_refusal(refused: Refused, is_session: bool | None) -> str:
    advice = _ADVICE_THERE.get((_entry_of(refused), refused.error)) or _scope_advice(refused, is_session)
    if isinstance(refused, AdmissionDenied):
        return _explain_denied(refused, advice or ADVICE.get(refused.error, ""))
    say = _SENTENCES.get(refused.error)
    if isinstance(refused, InTheWay) and refused.waited_ms:
        say = _explain_held if isinstance(refused, Deadlock) else say
        waited = f"Waited {seconds(refused.waited_ms)} in line; the place is given up. "
    else:
        waited = ""
    if say is not None and advice is None:
        return waited + say(refused)
    ended = "" if refused.ended_seq is None else f"; it ended with entry {refused.ended_seq}"
    why = f"refused: {shown(refused.error)} (entry {refused.receipt.seq}{ended})."
    return f"{why} {advice or ADVICE.get(refused.error, '')}".strip()


def _explain_denied(denied: AdmissionDenied, advice: str) -> str:
    """What was not admitted and why: who is in the way, which entry ended the lease, which rules forbid it."""
    ended = "" if denied.ended_seq is None else f"; the lease ended with entry {denied.ended_seq}"
    lines = [f"denied: {shown(denied.error)} (entry {denied.receipt.seq}{ended}). {advice}".strip()]
    if denied.conflict:
        lines.append(
            f"{shown(str(denied.conflict.get('resource')))} is held by {_who(denied.holder, denied.holder_name)}, "
            f"{denied.conflict.get('mode')}, token {denied.conflict.get('fencingToken')}."
        )
    elif denied.current_token is not None:
        lines.append(f"The highest live token there is {denied.current_token}.")
    if isinstance(denied, RulesDenied):
        by = f"forbids it by {shown(' '.join(denied.matched))}" if denied.matched else "has nothing that permits it"
        said = "could not be evaluated" if denied.decision == "error" else by
        lines.append(f"Rule set {denied.rules_version} {said}.")
    return "\n".join(lines)


def _scope_advice(refused: Refused, is_session: bool | None) -> str | None:
    """Return what a session or an agent on trial may do instead of what lies outside; None: it is not known which."""
    leaf = refused.receipt.leaf
    if refused.error != "outside_scope":
        return None
    if is_session or leaf.principal != leaf.actor:
        return "What was lent to this session does not cover that: open one that may, with tallystick session open."
    if is_session is None:  # an operator's session is its own principal, as an agent is
        return None
    return f"This key is on trial: leases on names below trial:{leaf.actor}/ only, with --ttl 60s at most."


def _entry_of(refused: Refused) -> str:
    """Return which kind of entry says no, such as renewal.refused: it tells what was asked for."""
    return refused.receipt.type.split("/")[1]


def _explain_held(held: LeaseHeld | Deadlock) -> str:
    others = f", and {held.conflicts - 1} more in the way" if held.conflicts > 1 else ""
    return (
        f"{shown(held.resource)} is held by {_who(held.holder, held.holder_name)} until "
        f"{moment(held.expires_at_ms)} unless renewed{others} (entry {held.receipt.seq}).\n"
        f"It is a {held.conflict.get('mode')} lease on {shown(str(held.conflict.get('heldAs')))}, token "
        f"{held.conflict.get('fencingToken')}.\n{_again(held)}"
    )


def _explain_deadlock(deadlock: Deadlock) -> str:
    """Who waits for whom, as a ring, and the way out."""
    rows = deadlock.cycle
    is_ask = _entry_of(deadlock) == "approval.refused"
    what = "this approval" if is_ask else shown(deadlock.resource)
    ring = "".join(_ring_line(row, rows[(at + 1) % len(rows)]) for at, row in enumerate(rows))
    if is_ask:
        return (
            f"waiting for {what} would never end (entry {deadlock.receipt.seq}):\n{ring}"
            f"Give back what they wait for, or have others approve."
        )
    order = deadlock.acquire_order
    ways = "in one request" + (f", or in this order:\n  {shown(shlex.join(order))}" if len(order) > 1 else ".")
    return (
        f"waiting for {what} would never end (entry {deadlock.receipt.seq}):\n{ring}"
        f"Give back what you hold of these, then take all you need {ways}"
    )


def _ring_line(row: Waits, following: Waits) -> str:
    """One waits for the next; the last one for the first."""
    other = following.actor
    why = (
        f"behind ticket {row.ahead_id} of {other}"
        if row.ahead_id
        else f"which {other} has to approve ({row.ask_id})"
        if row.ask_id
        else f"which {other} holds (token {row.fencing_token})"
    )
    return f"  {row.actor} waits for {shown(row.resource)} ({row.mode}), {why}\n"


def _explain_delay(delayed: LockDelayed) -> str:
    name = shown(delayed.resource) or "what the lease is on"
    return (
        f"{name} was held by {delayed.holder} until its lease ran out or was broken; others have to wait until "
        f"{moment(delayed.delay_until_ms)}, in case its work goes on (entry {delayed.receipt.seq}).\n{_again(delayed)}"
    )


def _explain_queued(queued: Queued) -> str:
    ahead = queued.ahead
    return (
        f"others wait in line for {shown(queued.resource)}: ticket {ahead.get('ticketId')} of {ahead.get('actor')} "
        f"comes first (entry {queued.receipt.seq}).\n{_again(queued)}"
    )


def _explain_full(full: QueueFull) -> str:
    return f"there is no room in line (entry {full.receipt.seq}). Come back in {seconds(full.retry_after_ms)}."


def _explain_already(already: AlreadyWaiting) -> str:
    ticket = already.ticket_id
    return (
        f"this key waits in line for one of these already, with ticket {ticket} (entry {already.receipt.seq}).\n"
        f"Go on with it: tallystick wait claim {ticket}, or leave the line: tallystick wait cancel {ticket}"
    )


def _explain_broken(broken: LeaseBroken) -> str:
    return f"{_broken(broken)} Stop the work it covered, ask the operator, then acquire again."


def _broken(broken: LeaseBroken) -> str:
    """Who broke it and why, from the entry that did, if that was to be had."""
    refused = f"refused: lease_broken (entry {broken.receipt.seq})."
    if broken.ending is not None:
        leaf = broken.ending.leaf
        return f"{refused} It was broken by the operator {leaf.actor}: {leaf.text('reason')} (entry {leaf.seq})."
    where = "" if broken.ended_seq is None else f" (entry {broken.ended_seq} says who and why)"
    return f"{refused} An operator broke this lease{where}."


def _explain_stale(stale: TokenStale) -> str:
    if not stale.conflict:
        return f"refused: token_stale (entry {stale.receipt.seq}). No live lease has that token: see tallystick wait"
    return (
        f"refused: token_stale (entry {stale.receipt.seq}). The lease there now is {stale.conflict.get('leaseId')} of "
        f"{_who(stale.holder, stale.holder_name)}, token {stale.conflict.get('fencingToken')}: look again."
    )


def _explain_waiting(waiting: StillWaiting) -> str:
    ticket = waiting.ticket
    return (
        f"not yet: ticket {ticket.ticket_id} is number {ticket.position} in line, kept until "
        f"{moment(ticket.poll_by_ms)}.\n"
        f"Go on with: tallystick wait claim {ticket.ticket_id}, or leave the line: tallystick wait cancel "
        f"{ticket.ticket_id}"
    )


def _again(refused: InTheWay) -> str:
    """What to do when others are in the way; only who acquires can stand in line."""
    if refused.waited_ms:
        return "Stand in line for longer with --wait, or see who waits: tallystick wait"
    after = f"in {seconds(refused.retry_after_ms)}"
    match _entry_of(refused):
        case "lease.refused":
            if refused.receipt.leaf.batch is not None:  # which never waits
                line = "stand in line with tallystick lease acquire … --wait 60s"
                return f"Submit it again {after}, or {line}. Who waits: tallystick wait"
            return f"Try again {after}, wait in line with --wait 60s, or see who waits: tallystick wait"
        case "batch.refused":
            return f"Submit the whole batch again {after}. See who waits: tallystick wait"
        case "renewal.refused":
            return (
                f"The lease is as it was. Ask again {after}, or release it and stand in line with tallystick lease "
                f"acquire … --wait 60s. Who waits: tallystick wait"
            )
        case _:
            return f"Ask again {after}; the offer stands until the lease ends. Who waits: tallystick wait"


def _who(did: str, name: str | None) -> str:
    return f"{shown(name)} ({did})" if name else did


# The refusals that need more than a row of ADVICE; each function takes the exception that errors.py has for the name.
_SENTENCES: Mapping[str, Callable[[Any], str]] = {
    "lease_held": _explain_held,
    "deadlock": _explain_deadlock,
    "lock_delayed": _explain_delay,
    "queued": _explain_queued,
    "queue_full": _explain_full,
    "already_waiting": _explain_already,
    "lease_broken": _explain_broken,
    "token_stale": _explain_stale,
}


def shown(text: str) -> str:
    """Return a text from outside fit for a terminal: what can be printed stays, the rest is escaped; bounded."""
    cut = text if len(text) <= TEXT_CHARACTERS_MAX else text[:TEXT_CHARACTERS_MAX] + "..."
    return "".join(letter if letter.isprintable() else escape(letter) for letter in cut)


def seconds(duration_ms: int) -> str:
    """Return a duration as a person reads it, rounded up; programs get milliseconds."""
    return f"{max(1, -(-duration_ms // 1000))} s"


def moment(time_ms: int) -> str:
    """Return an instant of the gateway's time as a person reads it."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
