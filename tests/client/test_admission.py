"""Asking before acting: which lease is presented, what is believed of the answer, how approvals come and are kept."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from gateway.client.approval import Act, approve
from gateway.client.batch import acquiring, admitting
from gateway.client.errors import (
    AdmissionDenied,
    AnswerRefused,
    ApprovalRefused,
    AskEnded,
    AskOver,
    BatchRefused,
    Deadlock,
    FenceStale,
    LeaseLost,
    NotApproved,
    Refused,
    RulesDenied,
)
from gateway.client.exits import DEADLOCK, DENIED, code_name, exit_code_of, explain
from gateway.client.words import sentence
from tests.client.desk import Decision
from tests.client.world import (
    ADMIT,
    ALICE,
    BOB,
    FILE,
    ORIGIN,
    RELEASE,
    RENEW,
    Book,
    LocalGateway,
    ManualClock,
    forged,
    key,
    lost_answer,
    rest,
)
from verifier.receipt import check_receipt
from verifier.wire import JsonObject, Malformed, parse_json

CAROL, DAVE = key(21), key(22)
DOES = b"git push origin main"
DIGEST = sha256(DOES).hexdigest()
LEASES = "/api/v1/acp/coordination/leases?holder=me"


@pytest.fixture
def gateway() -> LocalGateway:
    found = LocalGateway(Book(), ManualClock())
    found.views[LEASES] = {"ok": True, "leases": []}
    return found


def body_of(gateway: LocalGateway, at: int = -1) -> JsonObject:
    return parse_json(gateway.requests[at].body or b"", bytes_max=10**6)


# -- which lease -------------------------------------------------------------------------------------------------------


async def test_it_is_asked_under_the_lease_and_only_the_digest_of_the_arguments_leaves(gateway: LocalGateway) -> None:
    """Scenario 60."""
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE)
        admission = await agent.admit("git.push", FILE, arguments=DOES, cost=3)
    assert gateway.requests[-1].target == ADMIT
    assert body_of(gateway) == {
        "ledger": ORIGIN, "actorDid": ALICE.did, "operation": "git.push", "resource": FILE, "argumentsDigest": DIGEST,
        "cost": 3, "leaseId": grant.lease_id, "fencingToken": grant.fencing_token,
    }  # fmt: skip
    assert (admission.operation, admission.resources, admission.mode) == ("git.push", (FILE,), "write")
    assert (admission.arguments_digest, admission.lease_id) == (DIGEST, grant.lease_id)
    assert (admission.fencing_token, admission.rules, admission.obligations) == (grant.fencing_token, None, ())
    assert admission.valid_until_ms == admission.receipt.leaf.time_ms + 30_000 * 2
    assert admission.trust_ends_ms == admission.sent_ms + 54_000
    assert check_receipt(admission.receipt.data, gateway.book.keyring).exit_code == 0
    assert "no rule set was ever loaded" in sentence(admission.receipt)


async def test_of_several_leases_the_newest_that_covers_all_of_it_is_presented(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire("repo:app/**", mode="read")
        tree = await agent.acquire("repo:app/**")
        await agent.acquire(["repo:app/x", "repo:b"], mode="append")
        await agent.acquire("repo:b")
        file = await agent.acquire("repo:app/z")
        for names, mode, lease_id in (
            (("repo:app/z",), "write", file.lease_id),
            (("repo:app/z", "repo:app/x"), "write", tree.lease_id),
            (("repo:app/x",), "write", tree.lease_id),
            (("repo:app/x", "repo:app/y"), "append", tree.lease_id),
            (("repo:app/x", "repo:b"), "append", f"L{tree.receipt.seq + 1}"),
            (("repo:b",), "write", f"L{tree.receipt.seq + 2}"),
        ):
            assert (await agent.admit("act", names, mode=mode, arguments=b"")).lease_id == lease_id


async def test_names_of_a_scheme_that_folds_case_are_covered_in_either(gateway: LocalGateway) -> None:
    gateway.desk.folding = {"doc"}
    async with gateway.agent() as agent:
        lease = await agent.acquire("doc:Plan")
        assert (await agent.admit("act", "doc:plan", arguments=b"")).lease_id == lease.lease_id
        await agent.acquire("repo:Plan")
        with pytest.raises(AdmissionDenied, match="lease_required"):
            await agent.admit("act", "repo:plan", arguments=b"")


async def test_after_a_renewal_or_a_release_it_is_known_what_is_held(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        grant = await agent.acquire(FILE)
        await agent.renew(grant.lease_id)
        assert (await agent.admit("act", FILE, arguments=b"")).lease_id == grant.lease_id
        await agent.release(FILE, grant.lease_id)
        with pytest.raises(AdmissionDenied, match="lease_required"):
            await agent.admit("act", FILE, arguments=b"")


async def test_a_lease_of_another_process_is_found_in_the_list(gateway: LocalGateway) -> None:
    async with gateway.agent() as other, gateway.agent() as agent:
        lease = await other.acquire("repo:app/**")
        row: JsonObject = {
            "leaseId": lease.lease_id, "fencingToken": lease.fencing_token, "resources": ["repo:app/**"],
            "mode": "write",
        }  # fmt: skip
        older: JsonObject = {**row, "leaseId": "L9", "fencingToken": 1}
        gateway.views[LEASES] = {"leases": [{**row, "mode": "read", "fencingToken": 2**52}, row, older, {"mode": "x"}]}
        assert (await agent.admit("act", FILE, arguments=b"")).lease_id == lease.lease_id


async def test_reading_needs_no_lease(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        admission = await agent.admit("look", FILE, mode="read", arguments=b"")
    assert (admission.lease_id, admission.fencing_token) == ("", None)


async def test_what_breaks_the_table_is_never_sent(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        for bad in (
            {"operation": "Push"}, {"cost": -1}, {"arguments_digest": "x"}, {"mode": "own"},
            {"arguments": b"", "arguments_digest": DIGEST},
        ):  # fmt: skip
            asked = {"operation": "push", "resources": FILE, "arguments_digest": DIGEST, **bad}
            with pytest.raises(Malformed):
                await agent.admit(**asked)  # type: ignore[arg-type]  # a table of arguments
        with pytest.raises(Malformed, match="its bytes, or their SHA-256"):
            await agent.admit("push", FILE)
    assert gateway.requests == []


# -- what is believed --------------------------------------------------------------------------------------------------


async def test_a_superseded_fence_is_refused_and_ends_the_trust_in_a_held_lease(gateway: LocalGateway) -> None:
    """The canonical accident: 41 comes after 42."""
    heard: list[str] = []
    async with gateway.agent() as agent, gateway.agent(BOB) as bob:
        with pytest.raises(LeaseLost, match="stale_fence"):
            async with agent.lease(FILE, ttl_ms=60_000, on_lost=heard.append) as lease:
                assert (await lease.admit("act", arguments=b"")).fencing_token == lease.fencing_token
                gateway.desk.ended[lease.lease_id] = ("lease_broken", 1)
                del gateway.live[lease.lease_id]
                newer = await bob.acquire(FILE)
                gateway.desk.script = [denied("stale_fence", 602, lease, currentToken=newer.fencing_token, endedSeq=1)]
                with pytest.raises(FenceStale) as stale:
                    await lease.admit("act", arguments=b"")
                assert not lease.is_trusted
                with pytest.raises(LeaseLost):
                    await lease.admit("act", arguments=b"")
    assert heard == ["stale_fence"]
    assert (stale.value.current_token, stale.value.ended_seq) == (newer.fencing_token, 1)
    assert exit_code_of(stale.value) == DENIED
    told = explain(stale.value)
    assert told.startswith(f"denied: stale_fence (entry {stale.value.receipt.seq}; the lease ended with entry 1).")
    assert f"The highest live token there is {newer.fencing_token}." in told


def denied(error: str, number: int, lease: object, **more: object) -> Decision:
    named = {"leaseId": lease.lease_id, "fencingToken": lease.fencing_token} if lease else {}  # type: ignore[attr-defined]
    members = {
        "operation": "act", "resources": [FILE], "mode": "write", "cost": 0, "argumentsDigest": sha256(b"").hexdigest(),
        **named, "error": error, "number": number, **more,
    }  # fmt: skip
    return "admission.denied", members  # type: ignore[return-value]  # texts and numbers


DENIALS: list[tuple[str, int, type[AdmissionDenied]]] = [
    ("outside_scope", 118, AdmissionDenied),
    ("lease_required", 604, AdmissionDenied),
    ("lease_unknown", 402, FenceStale),
    ("fence_unknown", 601, FenceStale),
    ("approval_wrong", 611, ApprovalRefused),
    ("approver_unfit", 612, ApprovalRefused),
    ("approval_expired", 613, ApprovalRefused),
    ("approval_used", 614, ApprovalRefused),
    ("approval_required", 615, ApprovalRefused),
]


@pytest.mark.parametrize(("error", "number", "kind"), DENIALS)
async def test_each_denial_is_told_apart_by_what_to_do_next(
    gateway: LocalGateway, error: str, number: int, kind: type[AdmissionDenied]
) -> None:
    gateway.desk.script = [denied(error, number, None)]
    async with gateway.agent() as agent:
        with pytest.raises(AdmissionDenied) as refused:
            await agent.admit("act", FILE, arguments=b"")
    assert (type(refused.value), exit_code_of(refused.value)) == (kind, DENIED)
    assert explain(refused.value).startswith(f"denied: {error} (entry {refused.value.receipt.seq}). ")


def ruled(error: str, number: int, decision: str, *matched: str) -> Decision:
    rules = {
        "version": 3, "digest": "a" * 64, "mode": "enforce", "engine": "cedar/4.12.0", "decision": decision,
        "matched": [*matched], "obligations": [],
    }  # fmt: skip
    facts = {
        "trust": 50_000, "approvals": 0, "leaseState": "none", "leaseMode": "none", "leaseAgeMs": 0, "leaseLeftMs": 0,
        "agentName": "", "actorKind": "agent", "custody": "agent",
        **{f"{who}{what}": 0 for who in ("agent", "operator") for what in ("CountMinute", "CountDay", "CostDay")},
    }  # fmt: skip
    scheme = {"name": "repo", "class": "exclusive", "isFolding": False, "countMinute": 0, "countDay": 0, "costDay": 0}
    name, members = denied(error, number, None, rules=rules, facts=facts, schemes=[scheme])
    return name, {**members, "mode": "read"}


@pytest.mark.parametrize(
    ("error", "number", "decision", "matched", "words"),
    [
        ("forbidden_by_rules", 622, "deny", ("no-push",), "Rule set 3 forbids it by no-push."),
        ("not_permitted", 623, "deny", (), "Rule set 3 has nothing that permits it."),
        ("policy_error", 621, "error", (), "Rule set 3 could not be evaluated."),
    ],
)
async def test_what_the_rules_say_no_to_names_the_rules(
    gateway: LocalGateway, error: str, number: int, decision: str, matched: tuple[str, ...], words: str
) -> None:
    gateway.desk.script = [ruled(error, number, decision, *matched)]
    async with gateway.agent() as agent:
        with pytest.raises(RulesDenied) as refused:
            await agent.admit("act", FILE, mode="read", arguments=b"")
    assert (refused.value.decision, refused.value.matched, refused.value.rules_version) == (decision, matched, 3)
    assert explain(refused.value).endswith(words)


async def test_what_the_rules_say_of_a_yes_is_told_with_what_they_oblige_to(gateway: LocalGateway) -> None:
    gateway.desk.gate.rules = {
        "version": 2, "digest": "a" * 64, "mode": "enforce", "engine": "cedar/4.12.0", "decision": "allow",
        "matched": ["may-look"], "obligations": ["notify:on-call"],
    }  # fmt: skip
    async with gateway.agent() as agent:
        admission = await agent.admit("act", FILE, mode="read", arguments=b"")
    assert (admission.rules, admission.obligations) == (gateway.desk.gate.rules, ("notify:on-call",))
    told = sentence(admission.receipt)
    assert told.endswith("  rule set 2 (enforce): allow by may-look\nobliged to: notify:on-call")


async def test_a_yes_beside_the_receipt_of_a_no_is_a_no(gateway: LocalGateway) -> None:
    """The convenience members are for people with curl; what counts is the leaf."""

    def lie(value: JsonObject) -> None:
        value["ok"] = value["allowed"] = True
        value.pop("error", None)

    gateway.faults = [forged(lie)]
    async with gateway.agent() as agent:
        with pytest.raises(AdmissionDenied, match="lease_required"):
            await agent.admit("act", FILE, arguments=b"")


async def test_the_receipt_of_yesterdays_yes_is_no_answer_today(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        first = await agent.admit("act", FILE, arguments=b"same")

        def old(value: JsonObject) -> JsonObject:
            return {**value, "receipt": gateway.book.receipt(first.seq)}

        gateway.faults = [forged(old)]
        with pytest.raises(AnswerRefused, match="is not that of the request sent"):
            await agent.admit("act", FILE, arguments=b"same")


async def test_an_answer_that_was_lost_is_asked_for_again_and_admitted_once(gateway: LocalGateway) -> None:
    gateway.clock.is_automatic = True
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.faults = [lost_answer]
        admission = await agent.admit("act", FILE, arguments=b"")
    first, second = gateway.requests[-2:]
    assert (first.key, first.body) == (second.key, second.body)
    assert admission.seq == len(gateway.book.leaves) - 1 == 2


# -- batches -----------------------------------------------------------------------------------------------------------


async def test_in_a_batch_each_admission_has_an_outcome_of_its_own(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        held = await agent.acquire(FILE)
        yes, no = await agent.batch(
            [admitting("act", FILE, arguments=DOES, lease=held), admitting("act", ["repo:b"], arguments=DOES, cost=2)]
        )
        assert yes.admission is not None and no.admission is None
        assert (yes.admission.arguments_digest, yes.admission.lease_id, yes.grant) == (DIGEST, held.lease_id, None)
        assert isinstance(no.refused, AdmissionDenied)
        (grant, *_) = await agent.batch([acquiring("repo:b"), acquiring("repo:c")])
        assert grant.grant is not None
        assert (await agent.admit("act", "repo:b", arguments=b"")).lease_id == grant.grant.lease_id


async def test_an_atomic_batch_that_failed_for_a_denial_is_denied(gateway: LocalGateway) -> None:
    gateway.desk.script = [
        (
            "batch.refused",
            {
                "index": 0, "action": "coordination.admit", "error": "lease_required", "number": 604, "count": 1,
                "isAtomic": True,
            },
        )
    ]  # fmt: skip
    async with gateway.agent() as agent:
        with pytest.raises(BatchRefused) as refused:
            await agent.batch([admitting("act", FILE, arguments=b"")], atomic=True)
    assert (type(refused.value.cause), exit_code_of(refused.value)) == (AdmissionDenied, DENIED)


# -- approvals ---------------------------------------------------------------------------------------------------------


async def test_an_approval_is_asked_for_given_gathered_and_used(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        await agent.acquire(FILE)
        ask = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES, cost=4)
        assert (ask.ask_id, ask.approvers, ask.quorum) == (f"A{ask.receipt.seq}", (CAROL.did,), 1)
        waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=60_000))
        await rest()
        seen = await carol.asked(ask.ask_id)
        assert seen.act == Act(ORIGIN, ALICE.did, "push", (FILE,), "write", DIGEST, 4)
        made, given = await carol.give_approval(seen)
        assert (given.type, given.leaf.text("digest")) == ("tallystick/approval.given/1", made.says.digest)
        await gateway.clock.advance(2_000)
        (approval,) = await waiting
        assert approval == made
        admission = await agent.admit("push", FILE, arguments=DOES, cost=4, approvals=[approval])
        assert admission.receipt.leaf.value["facts"]["approvals"] == 1  # type: ignore[index,call-overload]
        with pytest.raises(ApprovalRefused, match="approval_used"):
            await agent.admit("push", FILE, arguments=DOES, cost=4, approvals=[approval])
    assert not any(request.target.endswith("/withdraw") for request in gateway.requests)


async def test_saying_yes_twice_to_one_request_lets_it_be_done_once(gateway: LocalGateway) -> None:
    """A giving that is refused leaves its statement where everybody can read it."""
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        await agent.acquire(FILE)
        ask = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
        seen = await carol.asked(ask.ask_id)
        first, later = await carol.sign_approval(seen), await carol.sign_approval(seen, ttl_ms=7_200_000)
        await carol.hand_in(ask.ask_id, first)
        with pytest.raises(Refused, match="ask_ended"):
            await carol.hand_in(ask.ask_id, later)
        await agent.admit("push", FILE, arguments=DOES, approvals=[first])
        with pytest.raises(ApprovalRefused, match="approval_used"):
            await agent.admit("push", FILE, arguments=DOES, approvals=[later])
        other = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
        assert other.nonce_of(CAROL.did) not in (first.says.nonce, other.nonce_of(DAVE.did))


async def test_a_quorum_is_waited_for_and_each_entry_read_once(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol, gateway.agent(DAVE) as dave:
        ask = await agent.ask_approval("push", FILE, [DAVE.did, CAROL.did], quorum=2, mode="read", arguments=DOES)
        assert ask.approvers == tuple(sorted([CAROL.did, DAVE.did]))
        waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=60_000))
        await carol.give_approval(await carol.asked(ask.ask_id))
        await gateway.clock.advance(10_000)
        assert not waiting.done()
        await dave.give_approval(await dave.asked(ask.ask_id))
        await gateway.clock.advance(2_000)
        assert {one.says.approver for one in await waiting} == {CAROL.did, DAVE.did}


async def test_while_it_waits_the_lease_is_kept_far_beyond_its_ttl(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        lease = await agent.acquire(FILE, ttl_ms=60_000)
        ask = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
        waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=3_600_000, lease=lease))
        await gateway.clock.advance(1_800_000)
        assert gateway.live[lease.lease_id].expires_at_ms > gateway.now_ms
        await carol.give_approval(await carol.asked(ask.ask_id))
        await gateway.clock.advance(2_000)
        admission = await agent.admit("push", FILE, arguments=DOES, approvals=await waiting)
    assert admission.fencing_token == lease.fencing_token
    renewals = sum(request.target == RENEW for request in gateway.requests)
    assert 17 <= renewals <= 20, "a third of five minutes apart"


async def test_a_held_lease_looks_after_itself_while_approvals_are_waited_for(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        async with agent.lease(FILE, ttl_ms=60_000) as lease:
            ask = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
            waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=3_600_000, lease=lease))
            await gateway.clock.advance(300_000)
            assert (lease.is_trusted, lease.beats) == (True, 15)
            assert sum(request.target == RENEW for request in gateway.requests) == lease.beats
            await carol.give_approval(await carol.asked(ask.ask_id))
            await gateway.clock.advance(2_000)
            await lease.admit("push", arguments=DOES, approvals=await waiting)
    assert gateway.requests[-1].target == RELEASE


@pytest.mark.parametrize("how", ["declined", "waited", "withdrawn"])
async def test_what_is_not_approved_says_how_and_leaves_nothing_behind(gateway: LocalGateway, how: str) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        ask = await agent.ask_approval("push", FILE, [CAROL.did], mode="read", arguments=DOES)
        waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=20_000))
        await gateway.clock.advance(5_000)
        ended = None
        if how == "declined":
            ended = (await carol.decline(ask, "not-today")).seq
        elif how == "withdrawn":
            ended = (await agent.withdraw(ask)).seq
        await gateway.clock.advance(20_000)
        with pytest.raises(NotApproved) as not_approved:
            await waiting
    assert (not_approved.value.how, not_approved.value.ended_seq) == (how, ended)
    assert gateway.desk.gate.asks[ask.ask_id].state == ("withdrawn" if how == "waited" else how)
    assert (exit_code_of(not_approved.value), code_name(not_approved.value)) == (DENIED, "not_approved")


async def test_who_is_cancelled_while_waiting_withdraws(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        ask = await agent.ask_approval("push", FILE, [CAROL.did], mode="read", arguments=DOES)
        waiting = asyncio.create_task(agent.gather_approvals(ask, wait_ms=60_000))
        await gateway.clock.advance(3_000)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert gateway.desk.gate.asks[ask.ask_id].state == "withdrawn"


async def test_what_is_over_is_told_as_such(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        ask = await agent.ask_approval("push", FILE, [CAROL.did], mode="read", arguments=DOES)
        seen = await carol.asked(ask.ask_id)
        made = await carol.sign_approval(seen)
        seq = (await agent.withdraw(ask)).seq
        with pytest.raises(AskOver, match="withdrawn"):
            await carol.give_approval(seen)
        with pytest.raises(AskEnded) as ended:
            await carol.hand_in(ask.ask_id, made)
        with pytest.raises(Refused, match="ask_unknown"):
            await carol.decline("A7777")
    assert ended.value.ended_seq == seq
    assert "is over" in explain(ended.value)


async def test_an_approval_of_something_else_is_not_gathered(gateway: LocalGateway) -> None:
    """By the key that was asked, for the same agent and operation, and of other arguments."""
    act = Act(ORIGIN, ALICE.did, "push", (FILE,), "read", "0" * 64)
    made = approve(CAROL, act, genesis=gateway.book.genesis, now_ms=gateway.now_ms)
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        ask = await agent.ask_approval("push", FILE, [CAROL.did], mode="read", arguments=DOES)
        await carol.hand_in(ask.ask_id, made)
        with pytest.raises(AnswerRefused, match="approves of something else"):
            await agent.gather_approvals(ask, wait_ms=1_000)


async def test_a_list_that_points_at_another_entry_is_not_believed(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        other = await agent.acquire(FILE)
        ask = await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
        row = gateway.desk.gate.asks[ask.ask_id]
        row.given, row.state = {CAROL.did: other.receipt.seq}, "given"
        with pytest.raises(AnswerRefused, match=f"entry {other.receipt.seq} gives no approval of {ask.ask_id}"):
            await agent.gather_approvals(ask, wait_ms=1_000)


async def test_an_approver_signs_only_what_the_entry_of_the_request_says(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, gateway.agent(CAROL) as carol:
        lease = await agent.acquire(FILE)
        with pytest.raises(AnswerRefused, match="asks for no approval"):
            await carol.asked(f"A{lease.receipt.seq}")
        with pytest.raises(Malformed, match="such as A44"):
            await carol.asked("L1")


async def test_a_wait_for_an_approval_that_would_never_end_names_the_ring(gateway: LocalGateway) -> None:
    cycle = [
        {"actor": ALICE.did, "resource": FILE, "mode": "write", "askId": "A2"},
        {"actor": CAROL.did, "resource": "repo:b", "mode": "write", "fencingToken": 7},
    ]
    refusal = {
        "operation": "push", "resources": [FILE], "mode": "write", "cost": 0, "argumentsDigest": DIGEST,
        "error": "deadlock", "number": 502, "waitingOn": "repo:b", "cycle": cycle, "acquireOrder": [FILE, "repo:b"],
    }  # fmt: skip
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        gateway.desk.script = [("approval.refused", refusal)]  # type: ignore[list-item]  # texts and numbers
        with pytest.raises(Deadlock) as deadlock:
            await agent.ask_approval("push", FILE, [CAROL.did], arguments=DOES)
    assert [row.ask_id for row in deadlock.value.cycle] == ["A2", None]
    assert (deadlock.value.resource, exit_code_of(deadlock.value)) == (FILE, DEADLOCK)
    told = explain(deadlock.value)
    assert f"{ALICE.did} waits for {FILE} (write), which {CAROL.did} has to approve (A2)" in told
    assert f"{CAROL.did} waits for repo:b (write), which {ALICE.did} holds (token 7)" in told
