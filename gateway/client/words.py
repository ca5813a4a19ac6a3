"""What the client's commands say: sentences for people, facts for programs.

Facts of a receipt come from its verified leaf. What comes from a view is somebody's bare word; it is escaped, and the
sentence around it claims nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.client.admission import names_in, rules_in
from gateway.client.errors import ClientError, Interrupted, Refused, RequestRejected, StillWaiting
from gateway.client.exits import code_name, moment, shown
from gateway.client.receipts import VerifiedReceipt
from gateway.client.score import TrustChange
from verifier.entries import HOLDING, full_type
from verifier.wire import JsonObject, JsonValue

if TYPE_CHECKING:
    from gateway.client.join import Joined

TIME_MS_SHOWN_MAX = 253_402_300_800_000  # the year 10000, where calendars end
_UNITS = ((3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms"))
# What a program reads nothing from, and the evidence, which is long.
_LEFT_OUT = frozenset({"request", "prev", "genesis", "durability"})
_ADMITTED = full_type("admission.allowed")
_BEHIND = frozenset({"principal", "onBehalfOf"})


def sentence(receipt: VerifiedReceipt) -> str:
    """Return what was decided, in one line, and in a second one what a holder needs."""
    leaf = receipt.leaf
    named = (leaf.text("leaseId") or leaf.text("name"), leaf.text("ticketId") or leaf.text("askId"))
    words = (leaf.type.split("/")[1], leaf.text("operation"), " ".join(receipt.resources), *named)
    line = "  ".join(word for word in (*words, f"(entry {receipt.seq}, verified)") if word)
    if leaf.type in HOLDING:
        line += f"\nfencing token {leaf.number('fencingToken')}  {leaf.text('mode')}"
        line += f"  until {moment(leaf.number('expiresAtMs'))}{silence_words(leaf.value, 'expiresAtMs')}"
    return line + (f"\n{_admitted_words(receipt)}" if leaf.type == _ADMITTED else "")


def _admitted_words(receipt: VerifiedReceipt) -> str:
    """Return for how long one execution is admitted, and what the rules say of it."""
    rules, until = rules_in(receipt), moment(receipt.leaf.number("validUntilMs"))
    once = f"once, until {until}"
    if rules is None:
        return f"{once}  no rule set was ever loaded: what is always forbidden was looked at, and nothing else"
    said = f"rule set {rules.get('version')} ({rules.get('mode')}): {rules.get('decision')}"
    matched, obligations = names_in(rules.get("matched")), names_in(rules.get("obligations"))
    by = f" by {' '.join(matched)}" if matched else ""
    owed = f"\nobliged to: {' '.join(obligations)}" if obligations else ""
    return f"{once}  {said}{by}{owed}"


def silence_words(row: JsonObject, end: str) -> str:
    """Return when a session's lease ends if nothing is heard of the session any more, where that is before its end."""
    idle_ms, ends_ms = row.get("endsIfIdleAtMs"), row.get(end)
    is_sooner = isinstance(idle_ms, int) and isinstance(ends_ms, int) and idle_ms < ends_ms
    return f", or {shown_moment(idle_ms)} if its session stays silent" if is_sooner else ""


def facts(receipt: VerifiedReceipt) -> JsonObject:
    """Return the facts of a verified leaf under the names they have there; who acts for itself is named once."""
    leaf = receipt.leaf
    left_out = _LEFT_OUT | {name for name in _BEHIND if leaf.value[name] == leaf.actor}
    return {name: value for name, value in leaf.value.items() if name not in left_out}


def error_facts(error: ClientError) -> JsonObject:
    """Return what a program may ask of a failure: the leaf of a refusal, the code of a problem, or its kind."""
    if isinstance(error, Refused):
        return facts(error.receipt)
    if isinstance(error, StillWaiting):
        return {**facts(error.ticket.receipt), "error": code_name(error)}
    if isinstance(error, Interrupted) and error.ticket_id is not None:
        return {"error": code_name(error), "ticketId": error.ticket_id}
    return {"error": error.code if isinstance(error, RequestRejected) else code_name(error)}


def joined_text(joined: Joined, home_option: str = "") -> str:
    """Return what `tallystick join` made, and what is still missing; `home_option` ends the printed commands."""
    made = "made a key" if joined.is_new_key else "kept the key that was there"
    next_step = (
        f"Any key may act on this throw-away ledger. Next:\n  tallystick lease acquire lock:demo{home_option}"
        if joined.is_dev
        else f"Ask an operator to enrol it:\n  tallystick agent add {joined.did} --name LABEL"
    )
    entries = "1 entry" if joined.size == 1 else f"{joined.size} entries"
    return (
        f"Joined {joined.origin}: {entries}, checkpoint verified under the root key; {made}.\n\n"
        f"  profile  {joined.home}\n  DID      {joined.did}\n\n{next_step}"
    )


def wait_lines(row: JsonObject, own: str = "") -> list[str]:
    """Return one resource of the wait view: who holds it, who is in line, who was refused lately; `own` is "(you)"."""
    leases, delays, queue, refused = (objects(row.get(name)) for name in ("leases", "delays", "queue", "waiting"))
    taken = [_held(lease, own) for lease in leases] + [_delayed(delay, own) for delay in delays]
    first, *others = taken or ["free"]
    lines = [f"{shown(str(row.get('resource')))}  {first}", *(f"  {other}" for other in others)]
    lines += [_place(ticket, own) for ticket in queue]
    lately = ", ".join(who(one, "actor", "actorName", own) for one in refused)
    return [*lines, f"  refused lately: {lately}"] if lately else lines


def _held(lease: JsonObject, own: str) -> str:
    under = f" as {lease['heldAs']}" if "heldAs" in lease else ""
    return shown(
        f"held by {who(lease, 'holder', 'holderName', own)}{under}, {lease.get('mode')}, {lease.get('leaseId')}, token "
        f"{lease.get('fencingToken')}, until {shown_moment(lease.get('endsAtMs'))}"
        f"{silence_words(lease, 'endsAtMs')}{offer_words(lease, own)}"
    )


def offer_words(lease: JsonObject, own: str = "") -> str:
    """Return to whom a lease of a view is offered, as the end of its line; nothing when it is not."""
    offer = lease.get("offer")
    return f", offered to {who(offer, 'offeredTo', 'offeredToName', own)}" if isinstance(offer, dict) else ""


def _delayed(delay: JsonObject, own: str) -> str:
    under = f" as {delay['heldAs']}" if "heldAs" in delay else ""
    until = shown_moment(delay.get("endsAtMs"))
    return shown(
        f"closed{under} until {until} to all but {who(delay, 'holder', 'holderName', own)}, "
        f"who did not give it back (entry {delay.get('endedSeq')})"
    )


def _place(ticket: JsonObject, own: str) -> str:
    wanted = f" for {ticket['resource']}" if "resource" in ticket else ""
    return shown(
        f"  {ticket.get('position')}. {ticket.get('ticketId')} of {who(ticket, 'actor', 'actorName', own)}{wanted}, "
        f"{ticket.get('mode')}, {ticket.get('state')}, kept until {shown_moment(ticket.get('endsAtMs'))}"
    )


def asked_line(row: JsonObject, own: str = "") -> str:
    """Return one request for approval of the wait view."""
    for_whom = " ".join(did + _you(did, own) for did in texts(row.get("waitsFor"))) or "any of those asked"
    return shown(
        f"approval {row.get('askId')}: {who(row, 'actor', 'actorName', own)} would do {row.get('operation')} "
        f"({row.get('mode')}) on {' '.join(texts(row.get('resources')))}, and waits for {for_whom} until "
        f"{shown_moment(row.get('giveUpByMs'))}"
    )


def deadlock_line(pair: JsonObject, own: str = "") -> str:
    """Return two that wait for each other."""
    actors = " and ".join(did + _you(did, own) for did in texts(pair.get("actors")))
    return shown(f"deadlock: {actors} wait for each other, for {' '.join(texts(pair.get('resources')))}")


def standing(row: JsonObject) -> str:
    """Return whether a key of a list is in force; an agent is as long as its operator is."""
    if "removedSeq" in row:
        return f"removed by entry {row['removedSeq']}"
    return f"operator removed (entry {row['operatorRemovedSeq']})" if "operatorRemovedSeq" in row else "in force"


def scheme_line(row: JsonObject) -> str:
    """Return one scheme of the list."""
    marks = [word for name, word in (("isFolding", "folding"), ("isUnicode", "unicode")) if row.get(name) is True]
    times = f"lock-delay {duration(row.get('lockDelayMs'))}  max-hold {duration(row.get('maxHoldMs'))}"
    return shown("  ".join((str(row.get("name")), str(row.get("class")), *marks, times)))


def usage_line(row: JsonObject, own: str = "") -> str:
    """Return what was admitted to one agent or operator, or on one scheme, in one line."""
    name = str(row.get("did", row.get("scheme")))
    is_scheme = row.get("of") == "scheme"  # of which only the day is known
    ever = "" if is_scheme else f"  ever {row.get('count')}, cost {row.get('cost')}  denied {row.get('denied')}"
    return (
        f"{row.get('of')} {name}{_you(name, own)}  this minute {row.get('countMinute')}  today {row.get('countDay')}, "
        f"cost {row.get('costDay')}{ever}"
    )


def duration(value: JsonValue) -> str:
    """Return milliseconds as the options take them, such as 500ms, 30s, 5m or 8h; "?" for what is no number."""
    if not isinstance(value, int):
        return "?"
    size, unit = next((size, unit) for size, unit in _UNITS if value % size == 0 and (value or unit == "s"))
    return f"{value // size}{unit}"


def points(value: object) -> str:
    """Return trust in points; the ledger counts thousandths."""
    return f"{value / 1000:.3f}" if isinstance(value, int) else "?"


def trust_line(change: TrustChange) -> str:
    """Return one verified change of trust: when, why, by how much, what it left, and in which entry that stands."""
    leaf = change.receipt.leaf
    what = f"{leaf.type.split('/')[1]}  {' '.join(change.receipt.resources)}"
    return f"{moment(leaf.time_ms)}  {what}  {change.change / 1000:+.3f}  {points(change.after)}  (entry {leaf.seq})"


def who(row: JsonObject, did: str, name: str, own: str = "") -> str:
    """Return the label and the DID that two members of a view name, and the agent behind; DIDs alone are identities."""
    label, key = row.get(name), str(row.get(did))
    behind = f" for {row['principal']}" if "principal" in row else ""
    return shown((f"{label} ({key})" if isinstance(label, str) else key) + _you(key, own) + behind)


def _you(did: str, own: str) -> str:
    return " (you)" if did == own else ""


def texts(value: JsonValue) -> tuple[str, ...]:
    """Return the items of a list in a view as texts; nothing for what is no list."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


def objects(value: JsonValue) -> list[JsonObject]:
    """Return the objects of a list in a view; nothing for what is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def shown_moment(value: JsonValue) -> str:
    """Return an instant out of a view; "?" for what is none."""
    return moment(value) if isinstance(value, int) and 0 <= value < TIME_MS_SHOWN_MAX else "?"
