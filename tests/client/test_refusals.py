"""Every refusal has an exception with facts from its verified leaf, a code, and a sentence that says what is next."""

from __future__ import annotations

import pytest

from gateway.client import errors, exits
from gateway.client.errors import (
    AlreadyWaiting,
    ClientError,
    Deadlock,
    HoldExceeded,
    InTheWay,
    LeaseBroken,
    LeaseChanged,
    LeaseEnded,
    LeaseHeld,
    LeaseTransferred,
    LockDelayed,
    Queued,
    QueueFull,
    Refused,
    StillWaiting,
    TicketEnded,
    TokenStale,
    refusal_of,
)
from gateway.client.exits import (
    ADVICE,
    DEADLOCK,
    HELD,
    MEANINGS,
    REFUSED,
    code_name,
    exit_code_of,
    explain,
    moment,
    shown,
)
from gateway.client.line import queued
from gateway.client.receipts import VerifiedReceipt
from gateway.client.words import error_facts
from gateway.core.refusal import TABLE
from gateway.web.problem import ROWS
from tests.client.desk import Decision
from tests.client.world import ALICE, BOB, FILE, NOW_MS, Book, LocalGateway, ManualClock
from verifier.entries import MemberError, check_body
from verifier.wire import JsonObject

TTL_MS = 30_000
UNTIL_MS = NOW_MS + 60_000
ADVISED: JsonObject = {"stampede": {"admitted": True, "waitMs": 50}, "retryAfterMs": 1_234}
CONFLICT: JsonObject = {
    "leaseId": "L1", "resource": FILE, "heldAs": "repo:app/**", "fencingToken": 4_711, "mode": "write",
    "grantedAtMs": NOW_MS, "expiresAtMs": UNTIL_MS,
}  # fmt: skip
HOLDER: JsonObject = {"holder": BOB.did, "holderName": "worker-7", "conflict": CONFLICT, "conflicts": 3, **ADVISED}
RING: JsonObject = {
    "waitingOn": "repo:b",
    "acquireOrder": [FILE, "repo:b"],
    "cycle": [
        {"actor": ALICE.did, "resource": FILE, "mode": "write", "fencingToken": 4_711},
        {"actor": BOB.did, "resource": "repo:b", "mode": "read", "fencingToken": 4_000, "ticketId": "T1"},
    ],
}
AHEAD: JsonObject = {"ticketId": "T1", "actor": BOB.did, "resource": FILE, "mode": "write", "queuedAtMs": NOW_MS}


def acquire(error: str, number: int, members: JsonObject, wait: bool = False) -> Decision:
    asked: JsonObject = {"resources": [FILE], "mode": "write", "ttlMs": TTL_MS, "wait": wait}
    return "lease.refused", {**asked, "error": error, "number": number, **members}


async def receipt_of(
    decision: Decision, wait: bool = False, asked: tuple[str, JsonObject] | None = None
) -> VerifiedReceipt:
    """Let the little gateway decide so, and return the receipt after the client has verified it.

    `asked`: another action than an acquire, and its members.
    """
    gateway = LocalGateway(Book(), ManualClock())
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        await bob.acquire("repo:first")
        gateway.desk.script = [decision]
        body: JsonObject = {"resource": FILE, "ttlMs": TTL_MS, **({"wait": True} if wait else {})}
        return (await agent.caller.decide(*(asked or ("lease.acquire", body)))).receipt


async def refused(decision: Decision, wait: bool = False) -> Refused:
    return refusal_of(await receipt_of(decision, wait))


@pytest.mark.parametrize(
    ("error", "number", "members", "is_waiting"),
    [
        ("lease_held", 408, HOLDER, False),
        ("deadlock", 502, {**HOLDER, **RING}, False),
        ("lock_delayed", 415, {"holder": BOB.did, "delayUntilMs": UNTIL_MS, "endedSeq": 1, **ADVISED}, False),
        ("queued", 501, {"ahead": AHEAD, **ADVISED}, False),
        ("queue_full", 503, ADVISED, True),
        ("already_waiting", 504, {"ticketId": "T1"}, True),
    ],
)
async def test_who_is_in_the_way_is_told_with_the_entry_that_says_so(
    error: str, number: int, members: JsonObject, is_waiting: bool
) -> None:
    """There one can look it up; to a program it is `seq`."""
    found = await refused(acquire(error, number, members, wait=is_waiting), wait=is_waiting)
    assert f"(entry {found.receipt.seq})" in explain(found)
    assert error_facts(found)["seq"] == found.receipt.seq


async def test_a_held_lease_is_told_with_everything_that_a_break_needs() -> None:
    """Scenario L47: holder, token, since, until; under which name it is held; how many more there are."""
    held = await refused(acquire("lease_held", 408, HOLDER))
    assert isinstance(held, LeaseHeld)
    assert (held.holder, held.holder_name, held.resource, held.conflicts) == (BOB.did, "worker-7", FILE, 3)
    assert (held.expires_at_ms, held.stampede.wait_ms, held.retry_after_ms) == (UNTIL_MS, 50, 1_234)
    text = explain(held)
    for word in (f"worker-7 ({BOB.did})", moment(UNTIL_MS), "2 more", "token 4711", "repo:app/**", "tallystick wait"):
        assert word in text
    assert exit_code_of(held) == HELD


async def test_a_deadlock_shows_the_ring_and_the_way_out() -> None:
    """Scenarios 35 and 36: who waits for what of whom, DIDs only, and the order that has no ring in it."""
    found = await refused(acquire("deadlock", 502, {**HOLDER, **RING}))
    assert isinstance(found, Deadlock)
    assert not isinstance(found, LeaseHeld), "who waits for a held lease must not wait here"
    assert (found.waiting_on, found.acquire_order) == ("repo:b", (FILE, "repo:b"))
    assert [(row.ticket_id, row.ahead_id) for row in found.cycle] == [(None, None), ("T1", None)]
    lines = explain(found).splitlines()
    assert lines[0].startswith(f"waiting for {FILE} would never end (entry 2)")
    assert lines[1] == f"  {ALICE.did} waits for {FILE} (write), which {BOB.did} holds (token 4711)"
    assert lines[2] == f"  {BOB.did} waits for repo:b (read), which {ALICE.did} holds (token 4000)"
    assert lines[-1] == f"  {FILE} repo:b"
    assert exit_code_of(found) == DEADLOCK == 79
    assert error_facts(found)["acquireOrder"] == [FILE, "repo:b"]


async def test_a_ring_about_one_name_has_no_order() -> None:
    found = await refused(acquire("deadlock", 502, {**HOLDER, **RING}))
    assert isinstance(found, Deadlock)
    found.acquire_order = (FILE,)
    assert explain(found).endswith("then take all you need in one request.")


async def test_a_delay_names_the_former_holder_and_its_end() -> None:
    delay: JsonObject = {"holder": BOB.did, "delayUntilMs": UNTIL_MS, "endedSeq": 1, **ADVISED}
    delayed = await refused(acquire("lock_delayed", 415, delay))
    assert isinstance(delayed, LockDelayed)
    assert (delayed.holder, delayed.delay_until_ms, delayed.ended_seq, delayed.resource) == (BOB.did, UNTIL_MS, 1, FILE)
    assert moment(UNTIL_MS) in explain(delayed)
    assert exit_code_of(delayed) == HELD


async def test_who_comes_first_is_named() -> None:
    ahead = await refused(acquire("queued", 501, {"ahead": AHEAD, **ADVISED}))
    assert isinstance(ahead, Queued)
    assert (ahead.ahead["ticketId"], ahead.resource) == ("T1", FILE)
    assert f"ticket T1 of {BOB.did} comes first" in explain(ahead)
    assert "--wait 60s" in explain(ahead)
    assert exit_code_of(ahead) == HELD


async def test_a_full_line_and_a_ticket_that_is_there_already() -> None:
    full = await refused(acquire("queue_full", 503, ADVISED, wait=True), wait=True)
    assert isinstance(full, QueueFull)
    assert isinstance(full, InTheWay)
    assert "Come back in 2 s." in explain(full)
    already = await refused(acquire("already_waiting", 504, {"ticketId": "T1"}, wait=True), wait=True)
    assert isinstance(already, AlreadyWaiting)
    assert not isinstance(already, InTheWay), "nobody else is"
    assert "tallystick wait claim T1" in explain(already)
    assert "tallystick wait cancel T1" in explain(already)
    assert [exit_code_of(error) for error in (full, already)] == [HELD, HELD]


async def test_a_place_that_is_kept_is_no_refusal() -> None:
    decision: Decision = (
        "wait.queued",
        {
            "resources": [FILE], "mode": "write", "ttlMs": TTL_MS, "giveUpMs": 3_600_000, "ticketId": "T2",
            "pollByMs": NOW_MS + 30_000, "giveUpByMs": NOW_MS + 3_600_000, "position": 4,
        },
    )  # fmt: skip
    waiting = StillWaiting(queued(await receipt_of(decision, wait=True)))
    text = explain(waiting)
    for word in ("ticket T2 is number 4", moment(NOW_MS + 30_000), "wait claim T2", "wait cancel T2"):
        assert word in text
    assert (exit_code_of(waiting), code_name(waiting)) == (HELD, "still_waiting")
    told = error_facts(waiting)
    assert (told["error"], told["ticketId"], told["position"]) == ("still_waiting", "T2", 4)


LEASE: JsonObject = {"leaseId": "L1", "ttlMs": TTL_MS}
OTHER_DOORS: dict[str, tuple[str, JsonObject, str]] = {
    "renewal.refused": ("lease.renew", LEASE | {"mode": "write"}, "release it and stand in line"),
    "acceptance.refused": ("lease.accept", LEASE, "the offer stands until the lease ends"),
}


@pytest.mark.parametrize("entry", OTHER_DOORS)
@pytest.mark.parametrize(
    "members",
    [
        {"error": "lease_held", "number": 408, **HOLDER},
        {"error": "queued", "number": 501, "ahead": AHEAD, **ADVISED},
        {"error": "lock_delayed", "number": 415, "holder": BOB.did, "delayUntilMs": UNTIL_MS, "endedSeq": 1, **ADVISED},
    ],
    ids=["held", "queued", "delayed"],
)
async def test_who_can_not_stand_in_line_is_not_told_to(entry: str, members: JsonObject) -> None:
    """A renewal and an acceptance never queue, so their commands have no --wait."""
    action, asked, advice = OTHER_DOORS[entry]
    text = explain(refusal_of(await receipt_of((entry, asked | members), asked=(action, asked))))
    assert advice in text
    assert "in 2 s" in text
    assert "wait in line with --wait" not in text


THERE = [
    ("lease.transfer", "transfer.refused", "not_offered", 416, "holds the lease already"),
    ("lease.transfer", "transfer.refused", "token_stale", 413, "not the token of this lease"),
    ("lease.transfer", "transfer.refused", "lease_not_yours", 403, "or an operator, may hand it over"),
    ("lease.accept", "acceptance.refused", "lease_transferred", 411, "It was accepted already"),
    ("lease.accept", "acceptance.refused", "lease_broken", 410, "The offer ended with the lease"),
]


@pytest.mark.parametrize(("action", "entry", "error", "number", "advice"), THERE)
async def test_advice_is_for_what_was_asked(action: str, entry: str, error: str, number: int, advice: str) -> None:
    handing: JsonObject = {"leaseId": "L1", "seenToken": 17, "toDid": BOB.did, "reason": "shift-over"}
    asked = handing if action == "lease.transfer" else LEASE
    receipt = await receipt_of((entry, {**asked, "error": error, "number": number}), asked=(action, asked))
    assert advice in explain(refusal_of(receipt))


async def test_the_entry_that_ended_it_is_told() -> None:
    told: JsonObject = LEASE | {"error": "lease_transferred", "number": 411, "endedSeq": 1}
    receipt = await receipt_of(("renewal.refused", told), asked=("lease.renew", LEASE))
    assert explain(refusal_of(receipt)).startswith("refused: lease_transferred (entry 2; it ended with entry 1). ")


async def test_what_is_outside_its_scope_is_told_to_a_session_and_to_a_trial_as_what_it_is() -> None:
    outside = await refused(acquire("outside_scope", 118, {}))
    assert "does not cover that" in explain(outside, is_session=True)
    assert explain(outside, is_session=False).endswith(
        f"on trial: leases on names below trial:{ALICE.did}/ only, with --ttl 60s at most."
    )
    assert explain(outside).endswith(ADVICE["outside_scope"]), "the entry does not tell them apart"


EXCLUSIVE: list[JsonObject] = [
    {"resource": "a:a", "resources": ["a:b"]},
    {"resource": "a:a", "giveUpMs": 5_000},
    {"resources": [f"a:{number}" for number in range(17)], "wait": True},
]


@pytest.mark.parametrize("members", EXCLUSIVE)
def test_members_that_exclude_each_other_are_told_what_to_do_in_the_detail(members: JsonObject) -> None:
    """No one piece of advice fits them all: one of two names, a time without a wait, too many names to wait for."""
    body: JsonObject = {"ledger": "gateway.example/main", "actorDid": ALICE.did, **members}
    with pytest.raises(MemberError, match=r"leave one out|leave it out|name fewer") as conflict:
        check_body("lease.acquire", body)
    assert (conflict.value.code, ROWS["member_conflict"].advice) == ("member_conflict", "Do what the detail says.")


def test_who_releases_by_the_id_alone_is_told_what_to_send() -> None:
    body: JsonObject = {"ledger": "gateway.example/main", "actorDid": ALICE.did, "leaseId": "L1"}
    with pytest.raises(MemberError, match=r"^send resource or resources \(all names of the lease, whose id alone"):
        check_body("lease.release", body)
    with pytest.raises(MemberError, match=r"^send resource or resources \(exactly one\): neither is there$"):
        check_body("lease.acquire", {name: value for name, value in body.items() if name != "leaseId"})


@pytest.mark.parametrize("name", [row.name for row in TABLE if row.is_receipted])
def test_every_receipted_refusal_has_a_sentence_and_says_what_is_next(name: str) -> None:
    assert (name in ADVICE) != (name in exits._SENTENCES), "one sentence each"
    if name in ADVICE:
        assert len(ADVICE[name]) > 20


def test_there_is_advice_for_no_other_refusal() -> None:
    assert {*ADVICE, *exits._SENTENCES} == {row.name for row in TABLE if row.is_receipted}
    assert set(errors._BY_NAME) <= {row.name for row in TABLE}


KINDS = {
    "lease_broken": (LeaseBroken, LeaseEnded),
    "lease_transferred": (LeaseTransferred, LeaseEnded),
    "lease_changed": (LeaseChanged, LeaseEnded),
    "lease_expired": (LeaseEnded, Refused),
    "hold_exceeded": (HoldExceeded, Refused),
    "ticket_ended": (TicketEnded, Refused),
    "token_stale": (TokenStale, Refused),
}


@pytest.mark.parametrize(("name", "kinds"), KINDS.items())
def test_what_a_caller_does_differently_is_a_class_of_its_own(name: str, kinds: tuple[type, type]) -> None:
    assert errors._BY_NAME[name] is kinds[0]
    assert issubclass(kinds[0], kinds[1])
    assert issubclass(kinds[0], ClientError)
    assert not issubclass(kinds[0], InTheWay)


async def test_what_has_no_class_of_its_own_is_a_refusal_with_advice() -> None:
    many = await refused(acquire("too_many_held", 417, {}))
    assert type(many) is Refused
    assert exit_code_of(many) == REFUSED
    assert explain(many).startswith("refused: too_many_held (entry 2). This key holds as much as one key may")


async def test_a_stale_token_shows_the_lease_that_is_there_or_that_none_is() -> None:
    gateway = LocalGateway(Book(), ManualClock())
    async with gateway.agent(BOB) as bob, gateway.agent() as operator:
        grant = await bob.acquire(FILE)
        with pytest.raises(TokenStale) as stale:
            await operator.break_lease(FILE, 1, "holder-gone")
        asked: JsonObject = {"resource": "repo:free", "seenToken": 1, "reason": "holder-gone"}
        gateway.desk.script = [("break.refused", {**asked, "error": "token_stale", "number": 413})]
        with pytest.raises(TokenStale) as gone:
            await operator.break_lease("repo:free", 1, "holder-gone")
    assert f"{grant.lease_id} of worker-7 ({BOB.did}), token {grant.fencing_token}" in explain(stale.value)
    assert (gone.value.holder, gone.value.holder_name, gone.value.conflict) == ("", None, {})
    assert "No live lease has that token" in explain(gone.value)


async def test_a_broken_lease_names_the_entry_that_says_why() -> None:
    gateway = LocalGateway(Book(), ManualClock())
    async with gateway.agent(BOB) as operator, gateway.agent() as agent:
        grant = await agent.acquire(FILE)
        broken = await operator.break_lease(FILE, grant.fencing_token, "holder-gone")
        with pytest.raises(LeaseBroken) as ended:
            await agent.renew(grant.lease_id)
    assert f"(entry {broken.seq} says who and why)" in explain(ended.value)


def test_the_codes_are_told_in_the_help() -> None:
    assert DEADLOCK in MEANINGS
    assert "give something back" in MEANINGS[DEADLOCK]


def test_what_comes_from_outside_is_fit_for_a_terminal() -> None:
    """Names beyond ASCII stay readable; what moves the cursor or can't be seen does not come through."""
    assert shown("repo:Größe/日本 x") == "repo:Größe/日本 x"
    assert shown("a\x1b[2J\nb\u202ec\ud800") == "a\\x1b[2J\\nb\\u202ec\\ud800"
    assert len(shown("x" * 10_000)) < 3_000
