"""Agents without a key of their own: a fixed header is all they send, and what they get is an ordinary receipt."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from gateway.web import logs
from keys.files import new_key_in
from keys.signing import SigningKey
from keys.token import digest_of, new_token
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, ORIGIN, Message, Reply, World
from verifier.delegation import enrolment_bytes
from verifier.receipt import check_receipt
from verifier.wire import encode_base64

LEASE = "/api/v1/acp/coordination/lease"
RELEASE = "/api/v1/acp/coordination/release"
AGENTS = "/api/v1/acp/agents"
ENROL = f"{AGENTS}/enrol"


def check_token_refused(reply: Reply) -> None:
    check_problem(reply, "token_invalid", 401)
    assert reply.headers["www-authenticate"] == 'Bearer error="invalid_token"'


# -- agents in the gateway's custody -----------------------------------------------------------------------------------


async def test_a_fixed_header_is_enough_to_take_and_give_back_a_lease(public: World) -> None:
    did, token = await public.custodial("ci")
    taken = await public.call(token, LEASE, resource="lock:deploy")
    assert (taken.status, taken.json["lease"]["holder"]) == (200, did)
    leaf = leaf_of(taken)
    assert (leaf["actor"], leaf["principal"], leaf["onBehalfOf"]) == (did, did, public.operator.did)
    assert leaf["custody"] == "gateway"
    lease_id = taken.json["lease"]["leaseId"]
    given = await public.call(token, RELEASE, resource="lock:deploy", leaseId=lease_id)
    assert given.status == 200
    check_holds(public, given)
    public.audit()


async def test_the_receipt_says_that_its_agents_consent_is_not_proven(public: World) -> None:
    _, token = await public.custodial("ci")
    receipt = (await public.call(token, LEASE, resource="lock:x")).json["receipt"]
    report = check_receipt(orjson.dumps(receipt), public.keyring)
    assert report.exit_code == 0
    assert "consent not proven" in report.as_text()
    own = (await public.acquire("a", "lock:y")).json["receipt"]
    assert "consent not proven" not in check_receipt(orjson.dumps(own), public.keyring).as_text()


async def test_custodial_agents_stand_in_each_others_way_like_any_two(public: World) -> None:
    first, second = [await public.custodial(name) for name in ("one", "two")]
    assert (await public.call(first[1], LEASE, resource="lock:x")).status == 200
    refused = await public.call(second[1], LEASE, resource="lock:x")
    assert (refused.status, refused.json["error"], refused.json["holder"]) == (409, "lease_held", first[0])
    assert (await public.acquire("a", "lock:x")).json["holder"] == first[0]


@pytest.mark.parametrize("spelled", ["once", '"once"'])
async def test_an_idempotency_key_with_quotes_or_without_makes_a_retry_the_same_call(
    public: World, spelled: str
) -> None:
    _, token = await public.custodial("ci")
    first = await public.call(token, LEASE, resource="lock:x", fields={"idempotency-key": "once"})
    again = await public.call(token, LEASE, resource="lock:x", fields={"idempotency-key": spelled})
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotency-replayed"] == "true"
    fresh = await public.call(token, LEASE, resource="lock:x")
    assert "idempotency-replayed" not in fresh.headers
    wrong = await public.call(token, LEASE, resource="lock:x", fields={"idempotency-key": 'a"b'})
    check_problem(wrong, "idempotency_key_malformed", 400)


async def test_a_signed_anchor_is_the_newest_checkpoint(public: World) -> None:
    _, token = await public.custodial("ci")
    newest = public.gateway.house.sequencer.confirmed
    leaf = leaf_of(await public.call(token, LEASE, resource="lock:x"))
    assert leaf["request"]["anchor"] == f"{ORIGIN} {newest.size} {encode_base64(newest.root)}"


async def test_ledger_and_actor_may_be_named_and_must_then_be_right(public: World) -> None:
    did, token = await public.custodial("ci")
    named = await public.call(token, LEASE, ledger=ORIGIN, actorDid=did, resource="lock:x")
    assert named.status == 200
    check_problem(await public.call(token, LEASE, ledger="other.example/x", resource="lock:x"), "wrong_ledger", 400)
    other = (await public.custodial("other"))[0]
    check_problem(await public.call(token, LEASE, actorDid=other, resource="lock:x"), "actor_mismatch", 403)


async def test_a_revoked_key_stops_at_once_and_its_lease_runs_on(public: World) -> None:
    did, token = await public.custodial("ci")
    assert (await public.call(token, LEASE, resource="lock:x")).status == 200
    assert (await public.ask("op", "apikey.revoke", keyDigest=digest_of(token))).status == 200
    size = public.gateway.house.sequencer.confirmed.size
    check_token_refused(await public.call(token, LEASE, resource="lock:y"))
    assert public.gateway.house.sequencer.confirmed.size == size, "a token that is refused leaves no entry"
    assert (await public.acquire("a", "lock:x")).json["holder"] == did
    public.audit()


async def test_a_token_that_is_none_and_one_of_a_removed_agent_are_refused(public: World) -> None:
    did, token = await public.custodial("ci")
    for wrong in (new_token("live"), token[:-1] + "x", "", "x", "tsk_live_", f"{token} {token}"):
        check_token_refused(await public.call(wrong, LEASE, resource="lock:x"))
    assert (await public.ask("op", "agent.remove", agent=did)).status == 200
    check_token_refused(await public.call(token, LEASE, resource="lock:x"))


async def test_the_token_falls_with_the_operator_that_issued_it(public: World) -> None:
    _, token = await public.custodial("ci")
    other = SigningKey.generate()
    assert (await public.ask("op", "operator.add", operator=other.did)).status == 200
    remove = public.signed(other, "operator.remove", operator=public.operator.did)
    assert (await public.send(remove)).status == 200
    check_token_refused(await public.call(token, LEASE, resource="lock:x"))
    public.audit()


async def test_the_token_falls_with_the_operator_of_its_agent(members: World) -> None:
    other, did = SigningKey.generate(), new_key_in(members.folder / "custody", purpose="custody").did
    assert (await members.ask("op", "operator.add", operator=other.did)).status == 200
    added = members.signed(other, "agent.add", agent=did, agentCustody="gateway")
    assert (await members.send(added)).status == 200
    token = new_token("live")
    issued = members.signed(other, "apikey.issue", keyDigest=digest_of(token), kind="live", agent=did)
    assert (await members.send(issued)).status == 200
    assert (await members.look(token, AGENTS)).status == 200
    assert (await members.ask("op", "operator.remove", operator=other.did)).status == 200
    check_token_refused(await members.look(token, AGENTS))
    check_token_refused(await members.call(token, LEASE, resource="lock:x"))
    assert (await members.ask("op", "operator.add", operator=other.did)).status == 200
    assert (await members.look(token, AGENTS)).status == 200, "it comes back with its operator"
    assert (await members.ask("op", "agent.remove", agent=did)).status == 200
    assert (await members.ask("op", "agent.add", agent=did, agentCustody="gateway")).status == 200
    check_token_refused(await members.look(token, AGENTS))


async def test_the_token_falls_with_the_custody_of_its_agent(public: World) -> None:
    """What the gateway signed for an agent that has its own key now would bear no mark of it."""
    did, token = await public.custodial("ci")
    for action in ("agent.remove", "agent.add"):
        assert (await public.ask("op", action, agent=did)).status == 200
    check_token_refused(await public.call(token, LEASE, resource="lock:x"))
    public.audit()


async def test_a_key_file_that_is_gone_is_the_operators_affair(public: World, caplog: pytest.LogCaptureFixture) -> None:
    did, token = await public.custodial("ci")
    (public.folder / "custody" / f"{did}.key").unlink()
    check_token_refused(await public.call(token, LEASE, resource="lock:x"))
    assert any("custodial agent can't act" in record.getMessage() for record in caplog.records)
    assert token not in caplog.text


async def test_a_key_under_another_agents_name_signs_nothing(public: World, caplog: pytest.LogCaptureFixture) -> None:
    did, token = await public.custodial("ci")
    folder = public.folder / "custody"
    other = new_key_in(folder, purpose="custody").did
    for suffix in ("key", "pass"):
        (folder / f"{did}.{suffix}").write_bytes((folder / f"{other}.{suffix}").read_bytes())
    check_token_refused(await public.call(token, LEASE, resource="lock:x"))
    assert any(f"holds the key {other}" in record.getMessage() for record in caplog.records)


async def test_a_token_and_a_signature_together_are_refused(public: World) -> None:
    """Which of the two counted, two readers would decide differently."""
    _, token = await public.custodial("ci")
    message = public.signed(await public.agent("a"), "lease.acquire", resource="lock:x")
    check_problem(await public.send(message.adding("authorization", f"Bearer {token}")), "authorization_present", 400)
    twice = Message(
        "POST", LEASE,
        (("host", AUTHORITY), ("content-type", "application/json"), ("authorization", f"Bearer {token}"),
         ("Authorization", f"Bearer {new_token('live')}")),
        b'{"resource":"lock:x"}',
    )  # fmt: skip
    check_problem(await public.send(twice), "header_repeated", 400)


async def test_other_authorizations_are_no_tokens(public: World) -> None:
    await public.custodial("ci")
    fields = {"authorization": "Basic dXNlcjpwYXNz"}
    check_problem(await public.call("x", LEASE, resource="lock:x", fields=fields), "authorization_present", 400)


async def test_no_token_signs_what_operators_or_sessions_sign(public: World) -> None:
    did, token = await public.custodial("ci")
    live = await public.token()
    for asked in (token, live):
        for path, members in (
            (AGENTS, {"agent": did}),
            (f"{AGENTS}/remove", {"agent": did}),
            ("/api/v1/acp/operators", {"operator": did}),
            ("/api/v1/acp/apikeys", {"keyDigest": "a" * 64, "kind": "live"}),
            ("/api/v1/acp/schemes", {"name": "a", "class": "exclusive"}),
            ("/api/v1/acp/coordination/break", {"resource": "lock:x", "seenToken": 1, "reason": "x"}),
            ("/api/v1/acp/sessions", {"delegations": []}),
            ("/api/v1/acp/sessions/beat", {}),
        ):
            check_problem(await public.call(asked, path, **members), "signature_missing", 401)


async def test_who_asks_as_nobody_is_told_of_both_ways(public: World) -> None:
    ways = ((LEASE, {"resource": "lock:x"}, True), ("/api/v1/acp/operators", {"operator": public.operator.did}, False))
    for path, members, is_told in ways:
        fields = (("host", AUTHORITY), ("content-type", "application/json"))
        reply = await public.send(Message("POST", path, fields, json.dumps(members).encode()))
        check_problem(reply, "signature_missing", 401)
        assert ("Authorization: Bearer tsk_live_" in reply.json["detail"]) is is_told


async def test_a_key_for_onboarding_takes_no_lease(public: World) -> None:
    for kind in ("live", "trial"):
        check_token_refused(await public.call(await public.token(kind), LEASE, resource="lock:x"))


@pytest.mark.parametrize(
    ("fields", "body", "code", "status"),
    [
        ({"content-type": "text/plain"}, b"{}", "content_type_wrong", 415),
        ({}, b"[]", "body_malformed", 400),
        ({}, b'{"a":1,"a":2}', "body_malformed", 400),
        ({}, b'{"a":1.5}', "body_malformed", 400),
        ({}, b'{"resource":"lock:\xed\xa0\x80"}', "body_malformed", 400),
        ({}, b"{}", "member_conflict", 400),
        ({}, b'{"resource":"lock:x","colour":"red"}', "member_unknown", 400),
        ({}, b'{"resource":"lock:x","ttlMs":1}', "member_invalid", 400),
        ({}, b'{"resource":"' + b"x" * 30_000 + b'"}', "body_too_large", 413),
    ],
)
async def test_a_body_is_judged_as_a_signed_one_is(
    public: World, fields: dict[str, str], body: bytes, code: str, status: int
) -> None:
    _, token = await public.custodial("ci")
    named = {"host": AUTHORITY, "authorization": f"Bearer {token}", "content-type": "application/json"} | fields
    check_problem(await public.send(Message("POST", LEASE, tuple(named.items()), body)), code, status)


async def test_a_content_type_may_name_its_charset(public: World) -> None:
    _, token = await public.custodial("ci")
    fields = {"content-type": "application/json; charset=utf-8"}
    assert (await public.call(token, LEASE, resource="lock:x", fields=fields)).status == 200


async def test_a_custodial_agent_waits_in_line_and_is_kept_waiting_for_its_turn(public: World) -> None:
    _, token = await public.custodial("ci")
    held = (await public.acquire("a", "lock:x")).json["lease"]["leaseId"]
    queued = await public.call(token, LEASE, resource="lock:x", wait=True)
    assert queued.status == 202
    ticket = queued.json["ticket"]["ticketId"]
    assert (await public.ask("a", "lease.release", resource="lock:x", leaseId=held)).status == 200
    claim = await public.call(
        token, "/api/v1/acp/coordination/wait/claim", ticketId=ticket, fields={"prefer": "wait=5"}
    )
    assert claim.status == 200, claim.body
    public.audit()


async def test_a_custodial_agent_sends_batches(public: World) -> None:
    _, token = await public.custodial("ci")
    commands = [{"action": "lease.acquire", "resource": f"lock:{number}"} for number in range(3)]
    reply = await public.call(token, "/api/v1/acp/coordination/batch", commands=commands)
    assert (reply.status, reply.json["ok"], len(reply.json["results"])) == (200, True, 3)
    public.audit()


# -- enrolment ---------------------------------------------------------------------------------------------------------


async def test_an_api_key_enrols_a_key_that_proves_itself(public: World) -> None:
    token, key = await public.token(name="team"), SigningKey.generate()
    reply = await public.enrol(token, key, name="mine")
    leaf = leaf_of(reply)
    assert (reply.status, reply.json["agent"]["did"]) == (200, key.did)
    assert (leaf["actor"], leaf["custody"]) == (public.gateway.ledger.enroller, "gateway")
    assert (leaf["agent"], leaf["name"], leaf["keyDigest"]) == (key.did, "mine", digest_of(token))
    check_holds(public, reply)
    acted = await public.send(public.signed(key, "lease.acquire", resource="lock:x"))
    assert leaf_of(acted)["onBehalfOf"] == public.operator.did
    assert "custody" not in leaf_of(acted)
    assert (await public.enrol(token, SigningKey.generate())).status == 200, "a live key enrols any number"
    public.audit()


async def test_enrolling_again_gives_the_first_answer_until_the_agent_is_removed(public: World) -> None:
    token, key = await public.token(), SigningKey.generate()
    first = await public.enrol(token, key)
    again = await public.enrol(token, key)
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")
    assert (await public.ask("op", "agent.remove", agent=key.did)).status == 200
    anew = await public.enrol(token, key)
    assert (anew.status, "idempotency-replayed" in anew.headers) == (200, False)
    assert (await public.send(public.signed(key, "lease.acquire", resource="lock:x"))).status == 200
    public.audit()


async def test_a_proof_is_of_this_key_for_this_api_key_and_this_ledger(public: World) -> None:
    token, key = await public.token(), SigningKey.generate()
    other_token = await public.token()
    for signer, agent, digest, origin in (
        (SigningKey.generate(), key.did, digest_of(token), ORIGIN),
        (key, key.did, digest_of(other_token), ORIGIN),
        (key, key.did, digest_of(token), "gateway.example/other"),
        (key, SigningKey.generate().did, digest_of(token), ORIGIN),
    ):
        proof = encode_base64(signer.sign(enrolment_bytes(agent, digest, origin)))
        check_problem(await public.enrol(token, key, proof=proof), "proof_invalid", 400)


async def test_what_may_not_enrol_is_refused(public: World) -> None:
    key = SigningKey.generate()
    _, custodial = await public.custodial("ci")
    revoked = await public.token()
    assert (await public.ask("op", "apikey.revoke", keyDigest=digest_of(revoked))).status == 200
    for token in (custodial, revoked, new_token("live"), new_token("trial"), "x"):
        check_token_refused(await public.enrol(token, key))
    unsigned = Message("POST", ENROL, (("host", AUTHORITY), ("content-type", "application/json")), b"{}")
    check_token_refused(await public.send(unsigned))


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"agentCustody": "gateway"}, "member_unknown"),
        ({"keyDigest": "a" * 64}, "member_unknown"),
        ({"agent": "x"}, "member_invalid"),
        ({"agent": None}, "member_invalid"),
        ({"proof": None}, "member_invalid"),
        ({"name": "x" * 100}, "member_invalid"),
    ],
)
async def test_an_enrolment_says_agent_name_and_proof_and_nothing_else(
    public: World, members: dict[str, Any], code: str
) -> None:
    check_problem(await public.enrol(await public.token(), SigningKey.generate(), **members), code, 400)


async def test_a_trial_key_enrols_one_agent_ever(public: World) -> None:
    token, first = await public.token("trial"), SigningKey.generate()
    assert (await public.enrol(token, first)).status == 200
    before = public.types()
    check_problem(await public.enrol(token, SigningKey.generate()), "token_invalid", 401)
    assert public.types() == before, "whoever tries one key after the other does not make the ledger grow"
    assert (await public.ask("op", "agent.remove", agent=first.did)).status == 200
    check_problem(await public.enrol(token, SigningKey.generate()), "token_invalid", 401)
    assert (await public.enrol(token, first)).status == 200, "its own agent comes back by it"
    public.audit()


async def test_of_two_that_come_at_once_with_a_trial_key_one_is_refused(public: World) -> None:
    token = await public.token("trial")
    replies = await asyncio.gather(*(public.enrol(token, SigningKey.generate()) for _ in range(2)))
    assert sorted(reply.status for reply in replies) in ([200, 401], [200, 409])
    assert public.types().count("agent.added") == 1
    public.audit()


async def test_nobody_but_the_gateway_enrols_in_the_name_of_an_api_key(public: World) -> None:
    token, key = await public.token(), SigningKey.generate()
    proof = encode_base64(key.sign(enrolment_bytes(key.did, digest_of(token), ORIGIN)))
    members = {"agent": key.did, "keyDigest": digest_of(token), "proof": proof}
    reply = await public.ask("op", "agent.add", **members)
    assert (reply.status, reply.json["error"]) == (403, "operator_required")


async def test_an_api_key_pays_for_its_enrolments_and_for_nobody_elses(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    limiter = public.gateway.house.desk._allowance._limiter
    first, second = await public.token(), await public.token()
    monkeypatch.setattr(limiter, "_burst", 2.0)
    monkeypatch.setattr(limiter, "_rate_per_s", 0.001)
    replies = [await public.enrol(first, SigningKey.generate()) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert (await public.enrol(second, SigningKey.generate())).status == 200


# -- reads -------------------------------------------------------------------------------------------------------------


async def test_a_live_key_reads_like_a_member_and_a_trial_key_nothing(members: World) -> None:
    live, trial = await members.token(), await members.token("trial")
    _, custodial = await members.custodial("ci")
    for target in ("/main/tile/entries/000.p/1", "/api/v1/acp/ledger/receipts/0", AGENTS, "/api/v1/acp/operators"):
        for token in (live, custodial):
            reply = await members.look(token, target)
            assert (reply.status, reply.headers["cache-control"]) == (200, "private, no-store"), reply.body
        check_token_refused(await members.look(trial, target))
    assert (await members.ask("op", "apikey.revoke", keyDigest=digest_of(live))).status == 200
    check_token_refused(await members.look(live, AGENTS))


async def test_what_i_hold_is_what_the_agent_behind_the_token_holds(public: World) -> None:
    did, token = await public.custodial("ci")
    await public.call(token, LEASE, resource="lock:x")
    target = "/api/v1/acp/coordination/leases?holder=me"
    reply = await public.look(token, target)
    assert (reply.json["holder"], [lease["resources"] for lease in reply.json["leases"]]) == (did, [["lock:x"]])
    check_problem(await public.look(await public.token(), target), "query_malformed", 400)
    check_problem(await public.get(target), "signature_missing", 401)


async def test_reading_with_a_token_and_a_signature_is_refused(members: World) -> None:
    message = members.signed_read(members.operator, AGENTS)
    message = message.adding("authorization", f"Bearer {await members.token()}")
    check_problem(await members.send(message), "authorization_present", 400)


async def test_api_keys_are_listed_by_their_digests_for_operators(members: World) -> None:
    live, trial = await members.token(name="team"), await members.token("trial")
    did, custodial = await members.custodial("ci")
    newcomer = SigningKey.generate()
    await members.enrol(trial, newcomer)
    await members.ask("op", "apikey.revoke", keyDigest=digest_of(live))
    target = "/api/v1/acp/apikeys"
    for message in (
        members.signed_read(await members.agent("a"), target),
        Message("GET", target, (("host", AUTHORITY), ("authorization", f"Bearer {custodial}"))),
    ):
        check_problem(await members.send(message), "reader_limited", 403)
    rows = (await members.send(members.signed_read(members.operator, target))).json["apikeys"]
    assert [(row["keyDigest"], row["kind"], row.get("agent"), row.get("usedBy")) for row in rows] == [
        (digest_of(live), "live", None, None),
        (digest_of(trial), "trial", None, newcomer.did),
        (digest_of(custodial), "live", did, None),
    ]
    assert (rows[0]["name"], rows[0]["operator"]) == ("team", members.operator.did)
    assert rows[0]["revokedSeq"] > rows[2]["issuedSeq"] > rows[0]["issuedSeq"]
    assert "revokedSeq" not in rows[1]
    assert live not in json.dumps(rows)


# -- secrets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything that any logger writes."""
    root = logging.getLogger()
    before, level, stream = root.handlers[:], root.level, io.StringIO()
    logs.configure("DEBUG", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


async def test_tokens_are_nowhere_in_the_log_the_answers_and_the_ledger(members: World, lines: io.StringIO) -> None:
    tokens = [await members.token(), await members.token("trial"), (await members.custodial("ci"))[1]]
    wrong = "tsk_live_" + "A" * 36
    answers = b""
    for token in (*tokens, wrong):
        answers += (await members.call(token, LEASE, resource="lock:x")).body
        answers += (await members.enrol(token, SigningKey.generate())).body
        answers += (await members.look(token, AGENTS)).body
        answers += (await members.call(token, AGENTS, agent="x")).body
    for handler in logging.getLogger().handlers:
        handler.flush()
    leaves = (members.folder / "ledger.sqlite3").read_bytes() + (members.folder / "ledger.sqlite3-wal").read_bytes()
    assert len(lines.getvalue().splitlines()) >= 16
    for token in (*tokens, wrong):
        for part in (token, token[9:30]):
            assert part not in lines.getvalue()
            assert part.encode() not in answers
            assert part.encode() not in leaves
    assert digest_of(tokens[0]).encode() in leaves, "the search would find what is there"
