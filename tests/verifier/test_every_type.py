"""One honest leaf of every entry type: built, bent in every member, contradicted, and compared with its body."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.verifier import admissions, maker
from tests.verifier.judging import audit, faults, pins
from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, Json, Ledger
from verifier.entries import (
    COMMON_MEMBERS,
    ENTRY_TYPES,
    HELD_MEMBERS,
    REFUSAL_NUMBERS,
    body_difference,
    check_body,
    parse_leaf,
)
from verifier.evidence import check_command, check_evidence
from verifier.wire import JsonObject, Malformed

STAMPEDE = {"stampede": {"admitted": True, "waitMs": 25}, "retryAfterMs": 25}


STRANGE: list[Any] = [None, -1, 0.5, "", [], {}, [[]], {"a": 1}, "\u0000", 2**53 - 1, True]


def deadlock(ledger: Ledger, grant_seq: int) -> Json:
    """The members of a refusal by the grant on `lock:b`, whose holder waits for `lock:a` of the actor."""
    rows = [
        {"actor": ALICE.did, "resource": "lock:b", "mode": "write", "fencingToken": ledger.token},
        {"actor": BOB.did, "resource": "lock:a", "mode": "write", "fencingToken": ledger.token - 1, "ticketId": "T4"},
    ]
    held = {"holder": BOB.did, "conflict": ledger.conflict(grant_seq, "lock:b"), "conflicts": 1, **STAMPEDE}
    return {**held, "waitingOn": "lock:a", "cycle": rows, "acquireOrder": ["lock:a", "lock:b"], "searchBounded": True}


def refusals(ledger: Ledger) -> None:
    """Leaves of the refusing types: each agrees with itself, though no ledger would have them in this order."""
    grant = ledger.grant(BOB, "lock:b")
    asked = {"resources": ["lock:b"], "mode": "write", "ttlMs": 30_000, "wait": False}
    body = {"resources": ["lock:b"]}
    late = {"leaseId": "L5", "ttlMs": 30_000}
    hand = {"leaseId": "L5", "seenToken": 1, "toDid": BOB.did, "reason": "shift.ends"}
    hold = {"resource": "lock:b", "seenToken": 1, "reason": "holder.gone", "reasonDigest": "5a" * 32}
    named = {"holder": BOB.did, "holderName": "bob", "conflict": ledger.conflict(grant, "lock:b")}
    delay = {"holder": BOB.did, "delayUntilMs": ledger.time_ms + 5, "endedSeq": 5, **STAMPEDE}
    refused = ledger.refused
    refused("lease.refused", ALICE, "lease.acquire", body, "deadlock", 502, **asked, **deadlock(ledger, grant))
    refused("lease.refused", ALICE, "lease.acquire", body, "lock_delayed", 415, **asked, **delay)
    queue = {**body, "wait": True}
    refused("lease.refused", ALICE, "lease.acquire", queue, "queue_full", 503, **{**asked, "wait": True}, **STAMPEDE)
    refused(
        "lease.refused", ALICE, "lease.acquire", queue, "already_waiting", 504, **{**asked, "wait": True}, ticketId="T4"
    )
    refused("renewal.refused", ALICE, "lease.renew", {"leaseId": "L5"}, "lease_broken", 410, **late, endedSeq=6)
    refused("renewal.refused", ALICE, "lease.renew", {**late, "mode": "read"}, "mode_not_allowed", 302)
    refused("release.refused", ALICE, "lease.release", body, "not_holder", 407, holder=BOB.did)
    members = {"resources": ["lock:b"], "leaseId": "L5", "endedSeq": 6}
    ledger.decision("release.repeated", ALICE, "lease.release", {**body, "leaseId": "L5"}, members)
    refused("acceptance.refused", ALICE, "lease.accept", late, "not_offered", 416)
    refused("transfer.refused", ALICE, "lease.transfer", hand, "lease_expired", 405, endedSeq=6)
    refused("break.refused", OPERATOR, "lease.break", hold, "token_stale", 413, **named)
    ledger.decision("break.repeated", OPERATOR, "lease.break", hold, {**hold, "endedSeq": 6})
    refused("claim.refused", ALICE, "wait.claim", {"ticketId": "T6"}, "ticket_ended", 507, endedSeq=6)
    refused("cancel.refused", ALICE, "wait.cancel", {"ticketId": "T6"}, "ticket_unknown", 505)
    scheme = {"name": "doc", "class": "exclusive"}
    refused("scheme.refused", ALICE, "scheme.set", scheme, "operator_required", 105, **{"class": None})
    refused("agent.refused", ALICE, "agent.add", {"agent": CAROL.did}, "operator_required", 105)
    refused("removal.refused", ALICE, "agent.remove", {"agent": CAROL.did}, "operator_required", 105)
    failed = {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    ledger.decision("decision.failed", ALICE, "lease.acquire", body, failed)
    key_digest = {"keyDigest": "5a" * 32}
    refused("operator.refused", ALICE, "operator.add", {"operator": CAROL.did}, "operator_required", 105)
    refused("dismissal.refused", OPERATOR, "operator.remove", {"operator": OPERATOR.did}, "operator_last", 123)
    issue = {**key_digest, "kind": "live"}
    refused("apikey.refused", OPERATOR, "apikey.issue", issue, "apikey_known", 126, kind=None)
    refused("revocation.refused", OPERATOR, "apikey.revoke", key_digest, "apikey_not_found", 125)
    refused("beat.refused", ALICE, "session.beat", {"activity": "idle"}, "session_required", 130, activity=None)
    vkey = maker.NEW_LOG.vkey(maker.ORIGIN)
    for name, verb, error, number, rest in (
        ("announcement.refused", "announce", "key_known", 131, " -"),
        ("retirement.refused", "retire", "key_unknown", 134, ""),
        ("disowning.refused", "compromise", "key_last", 135, ""),
    ):
        stated: Json = {"statement": ledger.key_statement(f"{verb} log {vkey}{rest}")}
        members = {"purpose": "log", "key": vkey, "error": error, "number": number}
        ledger.decision(name, OPERATOR, f"key.{verb}", stated, members)
    refused("closing.refused", BOB, "session.close", {"session": CAROL.did}, "session_not_yours", 129)


def others(ledger: Ledger) -> None:
    """The types that neither a working nor a busy day has."""
    grant = ledger.grant(ALICE, "lock:x")
    names = ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs", "expiresAtMs", "grantSeq")
    again = {**ledger.later(grant, *names, "grantedAtMs"), "ttlMs": 30_000}
    ledger.decision("lease.extended", ALICE, "lease.acquire", {"resource": "lock:x"}, again)
    ticket = ledger.queue(BOB, "lock:x", "lock:y")
    ledger.waiting("wait.reserved", ticket, untilMs=ledger.time_ms + 30_000)
    ledger.time_ms += 29_999
    ledger.waiting("wait.resumed", ticket)
    ledger.time_ms += 1
    ledger.waiting("wait.removed", ticket, reason="poll_lapsed")
    ledger.dispute(ledger.checkpoint())
    row = {"actor": BOB.did, "resource": "lock:y", "mode": "write"}
    back = {"actor": ALICE.did, "resource": "lock:x", "mode": "write", "fencingToken": 1, "ticketId": "T6"}

    def softly(leaf: Json) -> None:
        cycle = [{**row, "ticketId": leaf["ticketId"], "aheadId": "T6"}, back]
        leaf.update(cycle=cycle, softCycle=True)

    ledger.queue(BOB, "lock:y", change=softly)


HEADERS: dict[bytes, bytes] = {}  # of what answers a command: the leaf of its batch


@cache
def every() -> dict[str, tuple[bytes, ...]]:
    """The leaves of each type, by its short name."""
    extra = maker.opened()
    refusals(extra)
    others(extra)
    found: dict[str, tuple[bytes, ...]] = {}
    for ledger in (
        maker.worked(), maker.busy(), extra, maker.staffed(), maker.keyed(), admissions.day(), admissions.circle()
    ):  # fmt: skip
        for encoded in ledger.leaves:
            leaf = json.loads(encoded)
            name = leaf["type"].split("/")[1]
            found[name] = (*found.get(name, ()), encoded)
            if "batch" in leaf.get("request", {}):
                HEADERS[encoded] = ledger.leaves[leaf["request"]["batch"]]
    return found


NAMES = sorted(row.name for row in ENTRY_TYPES.values())
LEAVES = [pytest.param(encoded, id=f"{name} {n}") for name in NAMES for n, encoded in enumerate(every()[name])]


@pytest.mark.parametrize("make", [maker.worked, maker.busy, maker.staffed])
def test_the_days_that_the_leaves_come_from_are_honest(make: Callable[[], Ledger]) -> None:
    ledger = make()
    assert faults(audit(ledger.export(), pins(ledger))) == []


def test_so_is_the_day_on_which_the_keys_change() -> None:
    ledger = maker.keyed()
    keyring = pins(ledger, keys=ledger.keys(lines=maker.keyed_lines()))
    assert faults(audit(ledger.export(ledger.checkpoint(log=maker.NEW_LOG)), keyring)) == []


def test_there_is_a_leaf_of_every_type() -> None:
    assert sorted(every()) == NAMES


@pytest.mark.parametrize("encoded", LEAVES)
def test_an_honest_leaf_parses_and_its_evidence_fits(encoded: bytes) -> None:
    leaf = parse_leaf(encoded)
    assert leaf.is_known
    if leaf.batch is not None:
        assert check_command(leaf, parse_leaf(HEADERS[encoded])) == ()
    elif leaf.entry_type.cause == "request":
        assert check_evidence(leaf, [maker.AUTHORITY]).faults == ()


@pytest.mark.parametrize("encoded", LEAVES)
def test_every_member_is_needed_or_optional_as_the_table_says_and_of_its_kind(encoded: bytes) -> None:
    good: Json = json.loads(encoded)
    required = {m.name for m in (*COMMON_MEMBERS, *ENTRY_TYPES[good["type"]].members) if m.is_required}
    for name in good:
        rest = {other: value for other, value in good.items() if other != name}
        if name in required:
            with pytest.raises(Malformed):
                parse_leaf(maker.canonical(rest))
        for value in STRANGE:
            if type(value) is not type(good[name]) and (type(value) is not bool or not isinstance(good[name], bool)):
                with pytest.raises(Malformed):
                    parse_leaf(maker.canonical({**good, name: value}))
    with pytest.raises(Malformed, match="not known here"):
        parse_leaf(maker.canonical({**good, "novelty": 1}))


@pytest.mark.parametrize("encoded", LEAVES)
def test_what_a_leaf_repeats_it_repeats_from_its_body(encoded: bytes) -> None:
    """A body that asks for anything else than the leaf says is another body."""
    leaf = parse_leaf(encoded)
    if leaf.request is None:
        return
    body: Json = json.loads(leaf.request["body"])
    assert body_difference(leaf, body) is None
    repeated: Json = {
        "leaseId": "L77",
        "ticketId": "T77",
        "seenToken": 77,
        "toDid": maker.STRANGER.did,
        "reason": "other",
    }
    repeated |= {
        "reasonDigest": "77" * 32,
        "ttlMs": 77_777,
        "giveUpMs": 77_777,
        "class": "exclusive" if body.get("class") == "irreversible" else "irreversible",
        "name": "other",
    }
    repeated |= {"agent": maker.STRANGER.did, "isFolding": not body.get("isFolding", False), "resource": "lock:other"}
    repeated |= {"operator": maker.STRANGER.did, "session": maker.STRANGER.did, "keyDigest": "77" * 32}
    repeated |= {"kind": "trial" if body.get("kind") == "live" else "live", "activity": "other"}
    repeated |= {"statement": maker.keyed().key_statement("retire log x")}
    repeated |= {"operation": "other", "argumentsDigest": "77" * 32, "cost": 77, "askId": "A77", "fencingToken": 77}
    repeated |= {"approvers": [maker.STRANGER.did], "quorum": 2, "rulesVersion": 77, "rulesMode": "shadow"}
    if body.get("rulesMode") == "shadow":
        repeated["rulesMode"] = "enforce"
    repeated |= {"commands": [], "isAtomic": not body.get("isAtomic", False)}
    said = {member.name for member in leaf.entry_type.members} | {"resource", "commands"}
    for name in body.keys() & repeated.keys():
        if leaf.entry_type.name in ("decision.failed", "scheme.refused") and name != "name":
            continue
        if "agent" in body and name == "name":
            continue
        if name not in said | {"leaseId"}:  # a refusal repeats what it is about, not all that was asked
            continue
        assert body_difference(leaf, {**body, name: repeated[name]}) in (name, "fromLeaseId", "resources", "count"), (
            name
        )


def leaf_of(name: str, number: int = 0, **change: Any) -> Json:
    return {**json.loads(every()[name][number]), **change}


def cycle_with(row: int, name: str = "lease.refused", number: int = 2, **change: Any) -> Json:
    leaf = leaf_of(name, number)
    leaf["cycle"][row] |= change
    leaf["cycle"][row] = {member: value for member, value in leaf["cycle"][row].items() if value is not None}
    return leaf


SOFT = next(n for n, encoded in enumerate(every()["wait.queued"]) if b"softCycle" in encoded)
CONTRADICTIONS: list[tuple[Json, str]] = [
    (leaf_of("lease.claimed", ticketId="T9"), "ticketId"),
    (leaf_of("lease.claimed", ticketSeq=16, ticketId="T16"), "ticketSeq"),
    (leaf_of("lease.claimed", leaseId="L10"), "leaseId"),
    (leaf_of("lease.claimed", holdUntilMs=0), "holdUntilMs"),
    (leaf_of("lease.claimed", expiresAtMs=maker.T0 * 2), "expiresAtMs"),
    (leaf_of("lease.changed", fromLeaseId="L6"), "fromLeaseId"),
    (leaf_of("lease.changed", fromSeq=21, fromLeaseId="L21"), "fromSeq"),
    (leaf_of("lease.changed", leaseId="L7"), "leaseId"),
    (leaf_of("lease.changed", fencingToken=1), "fencingToken"),
    (leaf_of("lease.transferred", offerSeq=15), "offerSeq"),
    (leaf_of("lease.transferred", offerSeq=19), "offerSeq"),
    (leaf_of("lease.transferred", giver=CAROL.did), "giver"),
    (leaf_of("lease.broken", seenToken=7), "seenToken"),
    (leaf_of("lease.broken", resource="repo:c"), "resource"),
    (leaf_of("lease.broken", delayUntilMs=0), "delayUntilMs"),
    (leaf_of("lease.broken", grantSeq=13, leaseId="L13"), "grantSeq"),
    (leaf_of("transfer.offered", leaseId="L7"), "leaseId"),
    (leaf_of("transfer.offered", toDid=BOB.did), "toDid"),
    (leaf_of("wait.queued", ticketId="T9"), "ticketId"),
    (leaf_of("wait.queued", giveUpByMs=maker.T0), "giveUpByMs"),
    (leaf_of("wait.queued", pollByMs=maker.T0), "pollByMs"),
    (leaf_of("wait.queued", position=0), "position"),
    (leaf_of("wait.queued", softCycle=True), "softCycle"),
    (leaf_of("wait.queued", resources=[f"repo:{n:02}" for n in range(17)]), "resources"),
    (leaf_of("wait.queued", resources=["repo:" + f"{n:02}" + "a" * 250 for n in range(16)]), "together at most 4,096"),
    (leaf_of("wait.polled", ticketId="T11"), "ticketId"),
    (leaf_of("wait.cancelled", ticketSeq=17, ticketId="T17"), "ticketSeq"),
    (leaf_of("wait.offered", claimByMs=maker.T0), "claimByMs"),
    (leaf_of("wait.reserved", untilMs=maker.T0), "untilMs"),
    (leaf_of("wait.resumed", ticketId="T5"), "ticketId"),
    (leaf_of("wait.removed", reason="bored"), "reason"),
    (leaf_of("wait.removed", reason="reserve_lapsed"), "reason"),
    ({**leaf_of("claim.refused"), "error": "ticket_unknown", "number": 505}, "endedSeq"),
    ({**leaf_of("cancel.refused"), "error": "ticket_ended", "number": 507}, "endedSeq"),
    (leaf_of("break.repeated", endedSeq=99), "endedSeq"),
    (leaf_of("transfer.refused", endedSeq=99), "endedSeq"),
    ({**leaf_of("break.refused"), "error": "lease_unknown", "number": 402}, "holder, conflict"),
    (leaf_of("break.refused", conflict={**leaf_of("break.refused")["conflict"], "resource": "lock:c"}), "conflict"),
    (leaf_of("break.refused", conflict={**leaf_of("break.refused")["conflict"], "heldAs": "lock:c"}), "conflict"),
    (leaf_of("break.refused", conflict={**leaf_of("break.refused")["conflict"], "leaseId": "L99"}), "conflict"),
    (leaf_of("renewal.refused", 0, holder=BOB.did), "holder: not for this error"),
    (leaf_of("renewal.refused", 1, endedSeq=5), "endedSeq: not for this error"),
    (leaf_of("lease.refused", 1, wait=True), "wait, error"),
    (leaf_of("lease.refused", 1, ahead={**leaf_of("lease.refused", 1)["ahead"], "actor": ALICE.did}), "ahead"),
    (leaf_of("lease.refused", 1, ahead={**leaf_of("lease.refused", 1)["ahead"], "ticketId": "T15"}), "ahead"),
    (leaf_of("lease.refused", 1, ahead={**leaf_of("lease.refused", 1)["ahead"], "resource": "repo:b"}), "ahead"),
    (leaf_of("lease.refused", 1, ahead={**leaf_of("lease.refused", 1)["ahead"], "queuedAtMs": maker.T0 * 2}), "ahead"),
    (leaf_of("lease.refused", 3, delayUntilMs=maker.T0), "delayUntilMs"),
    (leaf_of("lease.refused", 3, endedSeq=99), "endedSeq"),
    (leaf_of("lease.refused", 4, wait=False), "wait, error"),
    (leaf_of("lease.refused", 5, ticketId="T99"), "ticketId"),
    (leaf_of("lease.refused", 2, waitingOn="lock:b"), "waitingOn"),
    (leaf_of("lease.refused", 2, acquireOrder=["lock:a"]), "acquireOrder"),
    (leaf_of("lease.refused", 2, acquireOrder=["lock:b", "lock:a"]), "acquireOrder"),
    (leaf_of("lease.refused", 2, searchBounded=False), "searchBounded"),
    (leaf_of("checkpoint.witnessed", size=0), "size: of earlier entries"),
    (leaf_of("checkpoint.witnessed", size=8), "size: of earlier entries"),
    (leaf_of("key.announced", purpose="receipt"), "purpose: as the statement says"),
    (leaf_of("key.announced", key=maker.NEW_RECEIPT.vkey(maker.ORIGIN)), "key: as the statement says"),
    (leaf_of("key.announced", next="5a" * 32), "next: as the statement says"),
    (leaf_of("key.announced", 1, next="5a" * 32), "next: as the statement says"),
    (leaf_of("key.announced", statement=leaf_of("key.retired")["statement"]), "statement: for another action"),
    (leaf_of("key.announced", statement="x"), "statement: a note is"),
    (leaf_of("key.retired", announcedSeq=8), "announcedSeq: an earlier entry"),
    (leaf_of("key.compromised", announcedSeq=99), "announcedSeq: an earlier entry"),
    (leaf_of("key.compromised", genesis="5a" * 32), "statement: a key statement is of another ledger"),
    (cycle_with(0, actor=CAROL.did), "begins with the actor"),
    (cycle_with(1, actor=ALICE.did), "every actor once"),
    (cycle_with(0, ticketId="T6"), "what was asked for"),
    (cycle_with(0, resource="lock:a"), "what was asked for"),
    (cycle_with(1, ticketId="T99"), "of earlier entries"),
    (cycle_with(0, aheadId="T6"), "cycle"),
    (cycle_with(0, fencingToken=None), "cycle"),
    (cycle_with(0, fencingToken=None, aheadId="T4"), "softCycle"),
    (cycle_with(1, "wait.queued", SOFT, fencingToken=None, aheadId="T6"), "the last without aheadId"),
    (cycle_with(0, "wait.queued", SOFT, ticketId="T6"), "what was asked for"),
    (cycle_with(0, "wait.queued", SOFT, fencingToken=1, aheadId=None), "softCycle"),
]


@pytest.mark.parametrize(("leaf", "words"), CONTRADICTIONS, ids=range(len(CONTRADICTIONS)))
def test_a_leaf_that_contradicts_itself_is_malformed(leaf: Json, words: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_leaf(maker.canonical(leaf))
    assert words in str(caught.value)


@pytest.mark.parametrize("error", sorted(HELD_MEMBERS))
def test_the_members_of_a_refusal_are_exactly_those_of_its_error(error: str) -> None:
    """Whatever group a refusal has, only the error that goes with it takes it."""
    wanted, may = set(HELD_MEMBERS[error].always), set(HELD_MEMBERS[error].perhaps)
    group = {name for told in HELD_MEMBERS.values() for name in (*told.always, *told.perhaps)}
    good = leaf_of("lease.refused", 2)
    base = leaf_of("batch.refused") if "currentToken" in wanted | may else good
    bare = {name: value for name, value in base.items() if name not in group}
    leaf = {**bare, "error": error, "number": REFUSAL_NUMBERS[error]}
    if base is good:
        leaf["wait"] = error in ("queue_full", "already_waiting")
    values = {**{name: good[name] for name in group & good.keys()}, "endedSeq": 1, "delayUntilMs": maker.T0 * 2}
    ahead = {"ticketId": "T4", "actor": BOB.did, "resource": "lock:b", "mode": "write", "queuedAtMs": 1}
    values |= {"ahead": ahead, "ticketId": "T4", "holderName": "bob", "currentToken": 1}
    values |= {} if base is good else {"holder": CAROL.did}
    leaf |= {name: values[name] for name in wanted}
    parse_leaf(maker.canonical(leaf))
    for name in wanted:
        with pytest.raises(Malformed):
            parse_leaf(maker.canonical({member: value for member, value in leaf.items() if member != name}))
    for name in group - wanted - may:
        with pytest.raises(Malformed):
            parse_leaf(maker.canonical({**leaf, name: values[name]}))
    for name in may:
        named = {"holder", "conflict"} if error == "stale_fence" and name.startswith(("holder", "conflict")) else set()
        parse_leaf(maker.canonical({**leaf, **{other: values[other] for other in named | {name}}}))


# --- what only a signature allows ---


def signed_for(name: str, key: maker.Key, body: Json, number: int = 0, **change: Any) -> list[str]:
    """The faults of a leaf whose request was signed, genuinely, with another body."""
    ledger = maker.busy()
    leaf = leaf_of(name, number, **change)
    action = ENTRY_TYPES[leaf["type"]].action or ""
    leaf["request"] = ledger.request(key, action, body, created=leaf["timeMs"] // 1000, anchor_size=1)
    check_body(action, json.loads(leaf["request"]["body"]))
    return [text for _, text in check_evidence(parse_leaf(maker.canonical(leaf))).faults]


def hard_cycle() -> dict[str, Any]:
    """What makes the soft queueing a hard one."""
    rows = leaf_of("wait.queued", SOFT)["cycle"]
    first = {name: value for name, value in rows[0].items() if name != "aheadId"}
    return {"cycle": [{**first, "fencingToken": 1}, rows[1]]}


def test_a_place_in_the_queue_is_only_for_who_asked_to_wait() -> None:
    assert signed_for("wait.queued", BOB, {"resource": "repo:a", "wait": True}) == []
    faults = signed_for("wait.queued", BOB, {"resource": "repo:a"})
    assert faults == ["member wait of the leaf is not what the body asks for"]


def test_a_mode_changes_only_for_who_named_the_new_one() -> None:
    assert signed_for("lease.changed", ALICE, {"leaseId": "L7", "mode": "write"}) == []
    assert signed_for("lease.changed", ALICE, {"leaseId": "L7"}) == [
        "member mode of the leaf is not what the body asks for"
    ]


def test_a_renewal_may_leave_its_mode_open_but_gets_no_other() -> None:
    body = {"leaseId": "L5", "ttlMs": 30_000}
    assert signed_for("lease.renewed", ALICE, {**body, "mode": "write"}) == []
    assert signed_for("lease.renewed", ALICE, {**body, "mode": "read"}) == [
        "member mode of the leaf is not what the body asks for"
    ]


def test_a_deadlock_is_waited_out_only_on_the_actors_word() -> None:
    body: JsonObject = {"resource": "lock:y", "wait": True}
    leaf = leaf_of("wait.queued", SOFT)
    hard = {name: value for name, value in {**leaf, **hard_cycle()}.items() if name != "softCycle"}
    parsed = parse_leaf(maker.canonical(hard))
    whom: JsonObject = {"ledger": maker.ORIGIN, "actorDid": BOB.did}
    assert body_difference(parsed, {**whom, **body, "onDeadlock": "wait"}) is None
    assert body_difference(parsed, {**whom, **body}) == "onDeadlock"
    assert body_difference(parse_leaf(maker.canonical(leaf)), {**whom, **body}) is None


def test_a_deadlock_is_refused_only_to_who_did_not_want_to_wait_it_out() -> None:
    refused = parse_leaf(maker.canonical(leaf_of("lease.refused", 2, wait=True)))
    body: JsonObject = {"ledger": maker.ORIGIN, "actorDid": ALICE.did, "resource": "lock:b", "wait": True}
    assert body_difference(refused, {**body}) is None
    assert body_difference(refused, {**body, "onDeadlock": "wait"}) == "onDeadlock"


def test_a_scheme_may_leave_its_durations_open_and_nothing_else() -> None:
    body = {"name": "doc", "class": "read-safe", "isFolding": True}
    assert signed_for("scheme.set", OPERATOR, body) == []
    assert signed_for("scheme.set", OPERATOR, {**body, "maxHoldMs": 5_000}) != []
    assert signed_for("scheme.set", OPERATOR, {**body, "lockDelayMs": 5_000}) != []
    assert signed_for("scheme.set", OPERATOR, {**body, "isFolding": False}) != []
    assert signed_for("scheme.set", OPERATOR, {**body, "isUnicode": True}) != []
