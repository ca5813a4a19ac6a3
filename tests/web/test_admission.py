"""Admissions, approvals and what is read of them over HTTP; every scene ends before the real verifier."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway import service
from gateway.client.approval import Act, SignedApproval, approve
from gateway.core.intake import SignedRequest, with_approvals
from keys.signing import SigningKey
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import ORIGIN, Reply, World, make, world
from verifier.entries import ZERO_HASH
from verifier.wire import decode_base64

DOES = sha256(b"deploy 17").hexdigest()
NAME = "lock:deploy/production"
ALIKE = {"ok", "allowed", "isPoliced", "matched", "obligations", "receipt"}
USAGE, APPROVALS, RULES = "/api/v1/acp/usage", "/api/v1/acp/approvals", "/api/v1/acp/rules"


@pytest.fixture
async def place(public: World) -> AsyncIterator[World]:
    yield public
    public.audit()


async def held(place: World, name: str = "a", resource: str = NAME, **options: Any) -> dict[str, Any]:
    """Take a lease; return what an admission says of it."""
    reply = await place.acquire(name, resource, **options)
    assert reply.status == 200, reply.body
    lease = reply.json["lease"]
    return {"leaseId": lease["leaseId"], "fencingToken": lease["fencingToken"]}


async def admit(place: World, name: str = "a", resource: str | None = NAME, **options: Any) -> Reply:
    asked = {"operation": "deploy.run", "argumentsDigest": DOES, "resource": resource, **options}
    return await place.ask(name, "coordination.admit", **asked)


async def second_operator(place: World) -> SigningKey:
    key = SigningKey.generate()
    reply = await place.ask("op", "operator.add", operator=key.did)
    assert reply.status == 200, reply.body
    return key


# -- coordination.admit ------------------------------------------------------------------------------------------------


async def test_what_is_admitted_is_said_with_a_receipt_that_verifies(place: World) -> None:
    lease = await held(place)
    reply = await admit(place, cost=7, **lease)
    assert (reply.status, set(reply.json)) == (200, {*ALIKE, "admission", "facts", "schemes"})
    assert (reply.json["ok"], reply.json["allowed"], reply.json["isPoliced"]) == (True, True, False)
    leaf, admission = leaf_of(reply), reply.json["admission"]
    assert leaf["type"] == "tallystick/admission.allowed/1"
    told = {name: leaf[name] for name in admission if name != "resource"}
    assert told == {name: value for name, value in admission.items() if name != "resource"}
    assert (admission["resource"], admission["uses"], admission["cost"]) == (NAME, 1, 7)
    assert {name: admission[name] for name in lease} == lease
    assert leaf["timeMs"] < admission["validUntilMs"] <= leaf["timeMs"] + 60_000
    assert (leaf["facts"]["agentCountMinute"], leaf["facts"]["leaseState"]) == (0, "live")
    check_holds(place, reply)
    again = leaf_of(await admit(place, **lease))
    assert (again["facts"]["agentCountMinute"], again["facts"]["agentCostDay"]) == (1, 7)


async def test_a_denial_is_forbidden_with_the_same_shape_and_a_receipt_that_verifies(place: World) -> None:
    reply = await admit(place)
    assert (reply.status, reply.json["error"], reply.json["number"]) == (403, "lease_required", 604)
    assert "retry-after" not in reply.headers
    assert ALIKE | {"error", "number", "message", "retry"} == set(reply.json)
    assert (reply.json["ok"], reply.json["allowed"]) == (False, False)
    assert reply.headers["content-type"] == "application/json"
    leaf = leaf_of(reply)
    assert (leaf["type"], leaf["error"]) == ("tallystick/admission.denied/1", "lease_required")
    check_holds(place, reply)


async def test_forty_one_after_forty_two_is_refused_with_the_token_that_counts(place: World) -> None:
    """Scenarios 11 and L1: A was away, B has it now, and A comes back with what it knows."""
    old = await held(place)
    await place.ask("a", "lease.release", resource=NAME, leaseId=old["leaseId"])
    new = await held(place, "b")
    reply = await admit(place, "a", **old)
    assert (reply.status, reply.json["error"], reply.json["number"]) == (403, "stale_fence", 602)
    assert reply.json["currentToken"] == new["fencingToken"]
    assert reply.json["holder"] == place.agents["b"].did
    ended = await place.get(f"/api/v1/acp/ledger/receipts/{reply.json['endedSeq']}")
    assert b"tallystick/lease.released/1" in decode_base64(ended.json["payload"])
    check_holds(place, reply)


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_retry_gets_the_same_bytes_allowed_or_denied(place: World, is_held: bool) -> None:
    lease = await held(place) if is_held else {}
    first = await admit(place, idempotency_key="once", **lease)
    again = await admit(place, idempotency_key="once", **lease)
    assert (first.status, first.body) == (again.status, again.body)
    assert first.status == (200 if is_held else 403)
    assert (again.headers.get("idempotency-replayed"), first.headers.get("idempotency-replayed")) == ("true", None)
    counted = (await place.get(f"{USAGE}?did={place.agents['a'].did}")).json["usage"][0]
    assert (counted["count"], counted["denied"]) == ((1, 0) if is_held else (0, 1))


MALFORMED: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"operation": "Deploy"}, "member_invalid", ("operation", "1 to 64")),
    ({"operation": None}, "member_missing", ("operation",)),
    ({"argumentsDigest": None}, "member_missing", ("argumentsDigest",)),
    ({"argumentsDigest": "aa"}, "member_invalid", ("argumentsDigest", "64")),
    ({"cost": -1}, "member_invalid", ("cost", "0", "1,000,000,000,000")),
    ({"cost": 10**12 + 1}, "member_invalid", ("cost", "1,000,000,000,000")),
    ({"mode": "own"}, "member_invalid", ("mode", "append")),
    ({"leaseId": "L1"}, "member_conflict", ("leaseId", "fencingToken")),
    ({"fencingToken": 1}, "member_conflict", ("leaseId", "fencingToken")),
    ({"leaseId": "1", "fencingToken": 1}, "member_invalid", ("leaseId", "L42")),
    ({"resource": None}, "member_conflict", ("resource", "exactly one")),
    ({"resource": "lock:a/**"}, "member_invalid", ("resource", "sub-tree")),
    ({"resource": None, "resources": ["lock:a", "lock:b/**"]}, "member_invalid", ("name 1", "sub-tree")),
    ({"resource": None, "resources": [f"lock:a/{n}" for n in range(65)]}, "member_invalid", ("resources", "64")),
    ({"approvals": []}, "member_invalid", ("approvals", "1 to 4")),
    ({"tool": "deploy"}, "member_unknown", ("tool",)),
]


@pytest.mark.parametrize(("change", "code", "words"), MALFORMED)
async def test_a_malformed_body_names_the_member_and_the_bound(
    place: World, change: dict[str, Any], code: str, words: tuple[str, ...]
) -> None:
    before = place.gateway.house.sequencer.confirmed.size
    await place.agent("a")
    reply = await admit(place, **change)
    check_problem(reply, code, 400)
    assert all(word in reply.json["detail"] for word in words), reply.json["detail"]
    assert place.gateway.house.sequencer.confirmed.size == before + 1, "nothing but the enrolment"


async def test_a_statement_that_was_changed_ends_at_the_door(place: World) -> None:
    other, lease = await second_operator(place), await held(place)
    row = statement(place, other, place.agents["a"].did).row
    assert isinstance(row["statement"], dict)
    forged = {**row, "statement": {**row["statement"], "operation": "other"}}
    check_problem(await admit(place, approvals=[forged], **lease), "approval_invalid", 400)


async def test_nobody_has_statements_verified_before_it_is_known_who_pays(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch brings forty: a stranger, who pays nothing, could keep the gateway busy with signatures."""
    looked: list[str] = []

    def look(request: SignedRequest) -> SignedRequest:
        looked.append(request.keyid)
        return with_approvals(request)

    monkeypatch.setattr(service, "with_approvals", look)
    other, stranger, lease = await second_operator(place), SigningKey.generate(), await held(place)
    looked.clear()
    row = statement(place, other, place.agents["a"].did).row
    asks = {"operation": "deploy.run", "argumentsDigest": DOES, "resource": NAME, "approvals": [row], **lease}
    commands = [{"action": "coordination.admit", **asks}] * 2
    for action, members in (("coordination.admit", asks), ("batch.submit", {"commands": commands})):
        reply = await place.send(place.signed(stranger, action, **members))
        assert (reply.status, reply.json["code"]) == (401, "agent_unknown")
    assert looked == []
    reply = await place.ask("a", "batch.submit", commands=commands)
    assert [one.get("error") for one in reply.json["results"]] == [None, "approval_used"]
    assert looked == [place.agents["a"].did]


async def test_an_api_key_admits_and_the_facts_say_whose_hands_the_key_is_in(place: World) -> None:
    _, token = await place.custodial("ci")
    path = "/api/v1/acp/coordination/admit"
    reply = await place.call(token, path, operation="look", argumentsDigest=DOES, resource=NAME, mode="read")
    assert (reply.status, reply.json["allowed"]) == (200, True)
    assert leaf_of(reply)["facts"]["custody"] == "gateway"


async def test_in_a_batch_a_denial_says_forbidden_and_the_rest_goes_on(place: World) -> None:
    lease = await held(place)
    asks = {"action": "coordination.admit", "operation": "deploy.run", "argumentsDigest": DOES, "resource": NAME}
    reply = await place.ask("a", "batch.submit", commands=[asks, {**asks, **lease}])
    assert [(row["ok"], row["status"], row["allowed"]) for row in reply.json["results"]] == [
        (False, 403, False), (True, 200, True),
    ]  # fmt: skip


# -- approvals ---------------------------------------------------------------------------------------------------------


def statement(place: World, approver: SigningKey, agent: str, **changes: Any) -> SignedApproval:
    act = {
        "ledger": ORIGIN, "agent": agent, "operation": "deploy.run", "resources": (NAME,), "mode": "write",
        "arguments_digest": DOES, "cost": 0, "rules_digest": ZERO_HASH, **changes,
    }  # fmt: skip
    return approve(approver, Act(**act), genesis=place.made.genesis, now_ms=place.now_ms)


async def test_an_approval_goes_from_asking_to_being_burnt(place: World) -> None:
    other, lease = await second_operator(place), await held(place)
    asked = await place.ask(
        "a", "approval.ask", operation="deploy.run", argumentsDigest=DOES, resource=NAME, approvers=[other.did]
    )
    assert (asked.status, asked.json["ask"]["quorum"]) == (200, 1)
    check_holds(place, asked)
    ask_id = asked.json["ask"]["askId"]
    assert ask_id == f"A{leaf_of(asked)['seq']}"
    mine = (await place.get(f"{APPROVALS}?by={other.did}")).json["approvals"]
    assert [(row["askId"], row["state"], row["given"]) for row in mine] == [(ask_id, "open", [])]
    signed = statement(place, other, place.agents["a"].did)
    given = await place.send(place.signed(other, "approval.give", askId=ask_id, approval=signed.row))
    assert given.status == 200, given.body
    (row,) = (await place.get(f"{APPROVALS}?askId={ask_id}")).json["approvals"]
    assert (row["state"], row["endedSeq"]) == ("given", leaf_of(given)["seq"])
    assert row["given"] == [{"approver": other.did, "seq": leaf_of(given)["seq"], "approval": signed.row}]
    assert (await place.get(f"{APPROVALS}?by={other.did}")).json["approvals"] == []
    assert len((await place.get(f"{APPROVALS}?of={place.agents['a'].did}")).json["approvals"]) == 1
    allowed = await admit(place, approvals=[row["given"][0]["approval"]], **lease)
    assert allowed.status == 200, allowed.body
    assert [used["operator"] for used in allowed.json["admission"]["approvals"]] == [other.did]
    burnt = await admit(place, approvals=[signed.row], **lease)
    assert (burnt.status, burnt.json["error"]) == (403, "approval_used")


async def test_an_approval_of_other_arguments_is_worth_nothing(place: World) -> None:
    other, lease = await second_operator(place), await held(place)
    signed = statement(place, other, place.agents["a"].did, arguments_digest="0" * 64)
    reply = await admit(place, approvals=[signed.row], **lease)
    assert (reply.status, reply.json["error"], reply.json["number"]) == (403, "approval_wrong", 611)


async def test_who_was_not_asked_gives_nothing_and_what_is_unknown_is_not_found(place: World) -> None:
    other, third = await second_operator(place), await second_operator(place)
    await held(place)
    asked = await place.ask(
        "a", "approval.ask", operation="deploy.run", argumentsDigest=DOES, resource=NAME, approvers=[other.did]
    )
    ask_id = asked.json["ask"]["askId"]
    signed = statement(place, third, place.agents["a"].did)
    refused = await place.send(place.signed(third, "approval.give", askId=ask_id, approval=signed.row))
    assert (refused.status, refused.json["error"]) == (403, "ask_not_yours")
    unknown = await place.send(place.signed(third, "approval.decline", askId="A9999"))
    assert (unknown.status, unknown.json["error"]) == (404, "ask_unknown")
    declined = await place.send(place.signed(other, "approval.decline", askId=ask_id, reason="not-today"))
    assert (declined.status, declined.json["ask"]["reason"]) == (200, "not-today")
    late = await place.ask("a", "approval.withdraw", askId=ask_id)
    assert (late.status, late.json["error"], late.json["endedSeq"]) == (409, "ask_ended", leaf_of(declined)["seq"])
    (row,) = (await place.get(f"{APPROVALS}?askId={ask_id}")).json["approvals"]
    assert (row["state"], row["declined"]) == ("declined", [other.did])


# -- reads -------------------------------------------------------------------------------------------------------------


async def test_usage_counts_what_was_admitted_and_nothing_else(place: World) -> None:
    lease = await held(place)
    await admit(place, cost=5, **lease)
    await admit(place, "b")
    rows = {(row["of"], row.get("did", row.get("scheme"))): row for row in (await place.get(USAGE)).json["usage"]}
    a, b, op = place.agents["a"].did, place.agents["b"].did, place.operator.did
    assert set(rows) == {("agent", a), ("agent", b), ("operator", op), ("scheme", "lock")}
    counted = ("countMinute", "countDay", "costDay", "count", "cost", "denied")
    assert [rows["agent", a][name] for name in counted] == [1, 1, 5, 1, 5, 0]
    assert [rows["agent", b][name] for name in counted] == [0, 0, 0, 0, 0, 1]
    assert [rows["operator", op][name] for name in counted] == [1, 1, 5, 1, 5, 1]
    assert [rows["scheme", "lock"].get(name) for name in counted] == [1, 1, 5, None, None, None]
    one = (await place.get(f"{USAGE}?did={a}")).json
    assert (one["did"], one["usage"][0]) == (a, rows["agent", a])


async def test_without_rules_there_are_none_to_show(place: World) -> None:
    reply = await place.get(RULES)
    assert (reply.status, reply.json["rules"]) == (200, None)


@pytest.mark.parametrize(
    "target",
    [
        f"{USAGE}?did=x", f"{USAGE}?of=x", f"{APPROVALS}?askId=T1", f"{APPROVALS}?askId=", f"{APPROVALS}?of=me",
        f"{APPROVALS}?by=x", f"{APPROVALS}?all=1",
    ],
)  # fmt: skip
async def test_a_query_that_is_none_of_ours_is_told_which_are(public: World, target: str) -> None:
    reply = await public.get(target)
    check_problem(reply, "query_malformed", 400)
    assert "did:key" in reply.json["detail"]


async def test_an_unknown_request_has_no_row(public: World) -> None:
    assert (await public.get(f"{APPROVALS}?askId=A7")).json["approvals"] == []


@pytest.mark.parametrize("target", [USAGE, APPROVALS, RULES, f"{APPROVALS}?askId=A7"])
async def test_on_a_members_ledger_these_reads_are_signed(members: World, target: str) -> None:
    assert (await members.get(target)).status == 401
    agent = await members.agent("a")
    reply = await members.send(members.signed_read(agent, target))
    assert (reply.status, reply.headers["cache-control"]) == (200, "private, no-store")
    stranger = SigningKey.generate()
    assert (await members.send(members.signed_read(stranger, target))).status == 403


async def test_a_trial_agent_on_a_members_ledger_sees_its_own_only(tmp_path: Path) -> None:
    async with world(tmp_path / "data", make(tmp_path / "data", is_public=False)) as place:
        trial, other = await place.trial(), await place.agent("a")
        own = await place.send(place.signed_read(trial, f"{USAGE}?did={trial.did}"))
        assert own.status == 200
        for target in (USAGE, f"{USAGE}?did={other.did}", APPROVALS, f"{APPROVALS}?of={other.did}", RULES):
            check_problem(await place.send(place.signed_read(trial, target)), "reader_limited", 403)
        mine = await place.send(place.signed_read(trial, f"{APPROVALS}?of={trial.did}"))
        assert (mine.status, mine.json["approvals"]) == (200, [])
        place.audit()
