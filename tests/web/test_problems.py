"""Every way to be turned away, through a real socket: right code, right status, the whole problem and nothing else."""

import gzip
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.client.approval import Act, approve
from gateway.client.delegation import delegate
from gateway.core.intake import REJECTIONS
from gateway.core.refusal import TABLE
from gateway.rules.apart import Apart
from gateway.rules.engine import Engine
from gateway.web.problem import ACCEPT_SIGNATURE, ROWS
from keys.files import load_key
from keys.rotation import signed_statement
from keys.signing import SigningKey
from tests.core.requests import key_note
from tests.web.world import AUTHORITY, ORIGIN, Message, Reply, World, make, world
from tests.world import StillClock
from verifier.delegation import statement_bytes
from verifier.did import encode_did
from verifier.note import make_vkey
from verifier.request import content_digest
from verifier.statement import KeyStatement
from verifier.wire import encode_base64

MEMBERS = {"type", "title", "status", "detail", "code", "requestId", "advice", "retry"}
RETRY = {code: row.retry for code, row in ROWS.items()} | {row.name: row.retry for row in TABLE}
RULES = '@id("all") permit(principal, action, resource);'
Bend = Callable[[World, SigningKey], Message]


def acquire(world: World, key: SigningKey, **changes: Any) -> Message:
    return world.signed(key, "lease.acquire", **{"resource": "lock:a/b", **changes})


def check_problem(reply: Reply, code: str, status: int, *further: str) -> None:
    """Assert the whole shape of a problem."""
    assert (reply.status, reply.json["code"]) == (status, code), reply.body
    assert reply.headers["content-type"] == "application/problem+json"
    assert set(reply.json) == MEMBERS | set(further) | ({"nowMs"} if status == 401 else set())
    assert reply.json["type"] == f"urn:tallystick:problem:{code}"
    assert reply.json["status"] == status
    assert reply.json["retry"] == RETRY[code]
    assert reply.json["requestId"] == reply.headers["x-request-id"]
    assert reply.json["detail"] and reply.json["advice"] and reply.json["title"]
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert reply.headers["server"] == "tallystick"
    assert "date" in reply.headers
    assert (reply.headers.get("accept-signature") == ACCEPT_SIGNATURE) == (status == 401)
    assert ("www-authenticate" in reply.headers) == (status == 401)


def unapproved(world: World, key: SigningKey) -> Message:
    """An admission with a statement that says something else than what was signed."""
    act = Act(ORIGIN, key.did, "deploy", ("lock:a",), "read", "a" * 64)
    row: Any = approve(key, act, genesis=world.made.genesis, now_ms=world.now_ms).row
    bent = {**row, "statement": {**row["statement"], "operation": "other"}}
    asked: dict[str, Any] = {"operation": "deploy", "resource": "lock:a", "mode": "read", "argumentsDigest": "a" * 64}
    return world.signed(key, "coordination.admit", **asked, approvals=[bent])


def other_body(world: World, key: SigningKey, body: bytes) -> Message:
    return acquire(world, key, body=body)


def bent_digest(world: World, key: SigningKey) -> Message:
    message = acquire(world, key)
    return message.having("content-digest", content_digest(message.body + b" "))


def stated(world: World, key: SigningKey) -> str:
    """What the real root states of a log key that nobody has."""
    root = load_key(world.folder / "root" / "root.key", purpose="root")
    statement = KeyStatement("announce", "log", make_vkey(ORIGIN, key.public_key))
    return signed_statement(statement, root, ORIGIN, world.made.genesis)


def load_rules(world: World, text: str) -> Message:
    return world.signed(world.operator, "rules.load", rules=text, rulesMode="enforce", rulesVersion=1)


def without_engine(world: World) -> World:
    """A gateway beside which nobody installed the extra `rules`."""
    sequencer = world.gateway.house.sequencer
    sequencer._rules = replace(sequencer._rules, evaluate=None)
    return world


def with_a_slow_reviewer(world: World) -> World:
    """A gateway that has no time to look a rule set through."""
    desk = world.gateway.house.desk
    desk._reviewer = Apart(Engine("cedar/x"), seconds=0.0)
    return world


def weak_key(world: World, key: SigningKey) -> Message:
    """A key id of small order: the identity, under which some libraries accept one signature for all messages."""
    message = acquire(world, key)
    weak = encode_did(b"\x01" + bytes(31))
    return message.having("signature-input", message.field("signature-input").replace(key.did, weak))


def flipped(world: World, key: SigningKey) -> Message:
    message = acquire(world, key)
    return message.having("signature", f"sig=:{encode_base64(key.sign(b'something else'))}:")


BENT: dict[str, Bend] = {
    "header_repeated": lambda w, k: acquire(w, k).adding("Signature", acquire(w, k).field("signature")),
    "authorization_present": lambda w, k: acquire(w, k).adding("authorization", "Bearer x"),
    "encoded_body": lambda w, k: acquire(w, k).adding("content-encoding", "gzip"),
    "signature_missing": lambda w, k: acquire(w, k).without("signature"),
    "signature_malformed": lambda w, k: acquire(w, k).having("signature-input", "sig=()"),
    "components_wrong": lambda w, k: acquire(w, k).having(
        "signature-input", acquire(w, k).field("signature-input").replace('"content-digest" ', "")
    ),
    "authority_wrong": lambda w, k: acquire(w, k).having("host", "evil.example"),
    "path_wrong": lambda w, k: Message(
        "POST", acquire(w, k).target + "?" + "x" * 300, acquire(w, k).fields, acquire(w, k).body
    ),
    "content_type_wrong": lambda w, k: acquire(w, k).having("content-type", "text/plain"),
    "idempotency_key_missing": lambda w, k: acquire(w, k).without("idempotency-key"),
    "idempotency_key_malformed": lambda w, k: acquire(w, k).having("idempotency-key", "no-quotes"),
    "anchor_missing": lambda w, k: acquire(w, k).without("tallystick-anchor"),
    "anchor_malformed": lambda w, k: acquire(w, k).having("tallystick-anchor", f"{ORIGIN} 01 x"),
    "digest_missing": lambda w, k: acquire(w, k).without("content-digest"),
    "digest_mismatch": bent_digest,
    "body_too_large": lambda w, k: other_body(w, k, b'{"a":"' + b"x" * 24_576 + b'"}'),
    "body_malformed": lambda w, k: other_body(w, k, b'{"a":1,"a":2}'),
    "member_missing": lambda w, k: acquire(w, k, actorDid=None),
    "member_unknown": lambda w, k: acquire(w, k, colour="red"),
    "member_invalid": lambda w, k: acquire(w, k, ttlMs=1),
    "member_conflict": lambda w, k: acquire(w, k, resources=["lock:a/c"]),
    "key_malformed": weak_key,
    "signature_invalid": flipped,
    "actor_mismatch": lambda w, k: acquire(w, k, actorDid=SigningKey.generate().did),
    "wrong_ledger": lambda w, k: acquire(w, k, ledger="gateway.example/other"),
    "wrong_anchor": lambda w, k: acquire(w, k, anchor=w.newcomers_anchor.replace("/main", "/other")),
    "delegation_invalid": lambda w, k: w.signed(
        k, "session.open", delegations=[w.delegation(w.operator, SigningKey.generate().did).row]
    ),
    "proof_invalid": lambda w, k: w.signed(
        w.operator, "agent.add", agent=k.did, keyDigest="a" * 64, proof=encode_base64(k.sign(b"something else"))
    ),
    "approval_invalid": unapproved,
    "key_statement_invalid": lambda w, k: w.signed(
        w.operator, "key.announce", statement=key_note("announce", "log", "new", w.made.genesis.hex(), by="thief")
    ),
    "key_unready": lambda w, k: w.signed(w.operator, "key.announce", statement=stated(w, SigningKey.generate())),
    "rules_invalid": lambda w, k: load_rules(w, "permit(principal, action, resource);"),
    "rules_unready": lambda w, k: load_rules(without_engine(w), RULES),
    "rules_unchecked": lambda w, k: load_rules(with_a_slow_reviewer(w), RULES),
    "token_invalid": lambda w, k: Message(
        "POST",
        acquire(w, k).target,
        (("host", AUTHORITY), ("content-type", "application/json"), ("authorization", "Bearer tsk_live_x")),
        acquire(w, k).body,
    ),
}


def test_the_scenes_below_are_every_rejection_there_is() -> None:
    assert set(BENT) == set(REJECTIONS)


def test_the_door_has_a_title_for_every_rejection_and_the_same_status() -> None:
    assert {code: ROWS[code].status for code in REJECTIONS} == dict(REJECTIONS)


def test_only_what_may_be_accepted_later_as_it_is_may_be_sent_again() -> None:
    assert {code for code, row in ROWS.items() if row.retry == "same_request"} == {
        "body_incomplete", "body_too_slow", "rate_limited", "busy", "draining", "timed_out", "recovering",
        "ledger_damaged", "internal_error", "key_unready",
        "rules_unready", "rules_unchecked", "store_unreachable", "store_stalled", "store_unfit", "outcome_unknown",
    }  # fmt: skip
    assert {code for code, row in ROWS.items() if row.retry == "new_request"} == {"outside_window"}
    assert all(ROWS[row.name].retry == row.retry for row in TABLE if row.name in ROWS)


@pytest.mark.parametrize("code", BENT)
async def test_a_bent_request_is_turned_away_and_leaves_no_entry(public: World, code: str) -> None:
    key = await public.agent("worker")
    size = public.gateway.house.sequencer.confirmed.size
    reply = await public.send(BENT[code](public, key))
    check_problem(reply, code, REJECTIONS[code])
    assert public.gateway.house.sequencer.confirmed.size == size
    assert (await public.send(acquire(public, key))).status == 200, "the unbent request passes"


async def test_a_stranger_is_unknown(public: World) -> None:
    reply = await public.send(acquire(public, SigningKey.generate()))
    check_problem(reply, "agent_unknown", 401, "number", "retry")
    assert (reply.json["number"], reply.json["retry"]) == (102, "never")


async def test_a_removed_agent_is_told_so(public: World) -> None:
    key = await public.agent("worker")
    assert (await public.send(public.signed(public.operator, "agent.remove", agent=key.did))).status == 200
    check_problem(await public.send(acquire(public, key)), "agent_removed", 403, "number", "retry")


@pytest.mark.parametrize("created_s", [1_000_000_000, 4_000_000_000])
async def test_a_signature_of_another_time_is_refused_with_the_gateways_time(public: World, created_s: int) -> None:
    reply = await public.send(acquire(public, await public.agent("worker"), created_s=created_s))
    check_problem(reply, "outside_window", 401, "number", "retry")
    assert abs(reply.json["nowMs"] / 1000 - created_s) > 300


async def test_an_anchor_that_was_never_signed_is_unknown_history(public: World) -> None:
    anchor = f"{ORIGIN} 2 {encode_base64(bytes(32))}"
    reply = await public.send(acquire(public, await public.agent("worker"), anchor=anchor))
    check_problem(reply, "unknown_history", 409, "number", "retry")


async def test_a_nonce_is_good_once(public: World) -> None:
    key = await public.agent("worker")
    nonce = "n" * 22
    first = await public.send(acquire(public, key, nonce=nonce))
    reply = await public.send(acquire(public, key, nonce=nonce))
    check_problem(reply, "nonce_reused", 409, "number", "retry", "seq")
    assert first.status == 200


async def test_an_idempotency_key_belongs_to_one_request(public: World) -> None:
    key = await public.agent("worker")
    await public.send(acquire(public, key, idempotency_key="once"))
    reply = await public.send(acquire(public, key, idempotency_key="once", resource="lock:other"))
    check_problem(reply, "idempotency_mismatch", 422, "number", "retry", "seq")


def test_every_refusal_without_a_receipt_has_a_scene_here() -> None:
    here = {
        "outside_window", "agent_unknown", "agent_removed", "unknown_history", "nonce_reused", "idempotency_mismatch",
    }  # fmt: skip
    assert {row.name for row in TABLE if not row.is_receipted} == here | set(OPENINGS) | {
        "session_expired", "session_ended", "operator_removed", "trial_over", "trial_used_up", "too_many_sessions",
    }  # fmt: skip  # those are met where sessions and trials are


async def lent(world: World) -> Message:
    """Return the opening of a session that an enrolled agent lets act."""
    key = SigningKey.generate()
    row = world.delegation(await world.agent("worker"), key.did).row
    return world.signed(key, "session.open", delegations=[row])


async def wrong_ledger(world: World) -> Message:
    key = SigningKey.generate()
    row = delegate(await world.agent("worker"), key.did, origin="other.example/x", now_ms=world.now_ms).row
    return world.signed(key, "session.open", delegations=[row])


async def through(world: World, *, may_delegate: bool, issuer: str = "op", **changes: Any) -> Message:
    """Return the opening of a session by a chain of two, over the agent `worker`."""
    agent, key = await world.agent("worker"), SigningKey.generate()
    first = world.operator if issuer == "op" else await world.agent(issuer)
    above = world.delegation(first, agent.did, may_delegate=may_delegate, resources=("lock:x/**",))
    said: dict[str, Any] = {**above.row["statement"], "iss": agent.did, "sub": key.did, "parent": above.says.digest}  # type: ignore[dict-item]
    said |= {"maxDepth": 0, **changes}
    signature = encode_base64(agent.sign(statement_bytes(said)))
    return world.signed(key, "session.open", delegations=[above.row, {"statement": said, "signature": signature}])


async def from_removed(world: World) -> Message:
    message = await lent(world)
    assert (await world.ask("op", "agent.remove", agent=world.agents["worker"].did)).status == 200
    return message


async def again(world: World) -> Message:
    agent = await world.agent("worker")
    key = await world.session(agent)
    return world.signed(key, "session.open", delegations=[world.delegation(agent, key.did).row])


OPENINGS: dict[str, tuple[Callable[[World], Awaitable[Message]], int]] = {
    "delegation_wrong_ledger": (wrong_ledger, 403),
    "delegation_too_deep": (lambda w: through(w, may_delegate=False), 403),
    "delegation_wider": (lambda w: through(w, may_delegate=True, resources=["lock:y"]), 403),
    "delegation_longer": (lambda w: through(w, may_delegate=True, expiresAtMs=w.now_ms + 7_200_000), 403),
    "delegation_expired": (lambda w: through(w, may_delegate=True, expiresAtMs=w.now_ms - 1_000), 403),
    "issuer_unknown": (lambda w: through(w, may_delegate=True, issuer="other"), 403),
    "issuer_removed": (from_removed, 403),
    "session_taken": (again, 409),
}


@pytest.mark.parametrize("code", OPENINGS)
async def test_a_session_that_may_not_open_leaves_no_entry(public: World, code: str) -> None:
    prepare, status = OPENINGS[code]
    message = await prepare(public)
    size = public.gateway.house.sequencer.confirmed.size
    check_problem(await public.send(message), code, status, "number", "retry")
    assert public.gateway.house.sequencer.confirmed.size == size


async def test_one_session_too_many_is_refused_until_another_ends(tmp_path: Path) -> None:
    made = make(tmp_path / "data", sessions_per_principal=2)
    async with world(tmp_path / "data", made) as place:
        agent = await place.agent("worker")
        keys = [await place.session(agent) for _ in range(2)]
        check_problem(await place.send(await lent(place)), "too_many_sessions", 429, "number", "retry")
        assert (await place.ask("worker", "session.close", session=keys[0].did)).status == 200
        assert (await place.send(await lent(place))).status == 200


async def test_a_silent_session_has_ended(tmp_path: Path) -> None:
    """And a day after its delegation nobody remembers it."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, StillClock(int(time.time() * 1_000))) as place:
        assert place.clock is not None
        key = await place.session(await place.agent("worker"), ttl_ms=600_000)
        place.clock.advance(120_000)
        check_problem(await place.send(acquire(place, key)), "session_ended", 403, "number", "retry")
        place.clock.advance(480_000)
        check_problem(await place.send(acquire(place, key)), "session_expired", 403, "number", "retry")
        place.clock.advance(86_400_000)
        check_problem(await place.send(acquire(place, key)), "agent_unknown", 401, "number", "retry")


async def test_a_compressed_body_is_refused_before_it_is_inflated(public: World) -> None:
    key = await public.agent("worker")
    message = acquire(public, key)
    bomb = gzip.compress(bytes(10_000_000))
    sent = Message("POST", message.target, message.adding("content-encoding", "gzip").fields, bomb)
    check_problem(await public.send(sent), "encoded_body", 400)


async def test_a_path_nobody_serves(public: World) -> None:
    check_problem(await public.get("/api/v1/acp/nothing"), "not_found", 404)


async def test_a_method_the_path_does_not_have(public: World) -> None:
    reply = await public.get("/api/v1/acp/coordination/lease")
    check_problem(reply, "method_not_allowed", 405)
    assert reply.headers["allow"] == "POST"


@pytest.mark.parametrize("target", [f"http://{AUTHORITY}/livez", "http://evil.example/livez"])
async def test_a_target_that_is_no_path_is_refused(public: World, target: str) -> None:
    reply = await public.send(Message("GET", target, (("host", AUTHORITY),)))
    check_problem(reply, "target_malformed", 400)


async def test_a_stranger_never_reaches_the_queue(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def reached(*_: object) -> None:
        raise AssertionError("a stranger is turned away at the desk")

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", reached)
    stranger = SigningKey.generate()
    for message in (
        public.signed(stranger, "lease.acquire", resource="lock:x"),
        public.signed(stranger, "agent.add", agent=stranger.did),
    ):
        check_problem(await public.send(message), "agent_unknown", 401, "number", "retry")


async def test_an_operator_is_no_agent_until_enrolled(public: World) -> None:
    check_problem(await public.send(acquire(public, public.operator)), "agent_unknown", 401, "number", "retry")
