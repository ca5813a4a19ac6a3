"""Enrolment by an API key, and what is said to keys that may not act: only an entry about this key enrols it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gateway.client.agent import Agent
from gateway.client.caller import ADVICE_UNSIGNED, ENROL_PATH
from gateway.client.errors import (
    AnswerRefused,
    NotEnrolled,
    Refused,
    RequestRejected,
    SessionEnded,
    SessionRefused,
    TrialOver,
    Unreachable,
)
from gateway.client.exits import ENDED, NOT_ENROLLED, exit_code_of, explain
from gateway.client.signing import Draft, new_nonce, sign_request
from gateway.client.transport import Reply
from gateway.core.refusal import TABLE
from keys.token import digest_of, new_token
from tests.client.world import ALICE, AUTHORITY, BOB, FILE, Book, LocalGateway, ManualClock, Request, key, status
from verifier.delegation import is_enrolment_proof
from verifier.entries import ACTION_PATHS
from verifier.wire import JsonObject, encode_canonical, parse_json

TOKEN, OTHER = new_token("live"), new_token("live")
ENROLLER, OPERATOR = key(8), key(9)


class Door(LocalGateway):
    """A gateway that enrols by API key; `digest` and `answer` let a test make it answer about something else."""

    def __init__(self) -> None:
        super().__init__(Book(), ManualClock())
        self.asked: list[tuple[Mapping[str, str], JsonObject]] = []
        self.losses = 0
        self.swap: JsonObject = {}
        self.decision: tuple[str, JsonObject] | None = None

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        if target != ENROL_PATH:
            return await super().send(method, target, headers, body, timeout_ms)
        members = parse_json(body or b"", bytes_max=10_000)
        self.asked.append((dict(headers), members))
        reply = self.enrolled(headers["authorization"].removeprefix("Bearer "), {**members, **self.swap})
        if self.losses:
            self.losses -= 1
            raise Unreachable("the connection broke")
        return reply

    def enrolled(self, token: str, members: JsonObject) -> Reply:
        asked: JsonObject = {
            "ledger": self.book.origin,
            "actorDid": ENROLLER.did,
            "keyDigest": digest_of(token),
            **members,
        }
        content = encode_canonical(asked)
        path = ACTION_PATHS["agent.add"]
        draft = Draft("POST", AUTHORITY, path, "", self.anchor, content, "enrol:1")
        signed = sign_request(draft, ENROLLER, created_s=self.now_ms // 1_000, nonce=new_nonce())
        kept: JsonObject = {name: asked[name] for name in ("agent", "name", "keyDigest") if name in asked}
        kept["custody"] = "gateway"
        name, entry = self.decision or ("agent.added", kept)
        seq = self.book.append(
            name, entry, actor=ENROLLER.did, time_ms=self.now_ms,
            request=Request("POST", path, signed, content).evidence,
        )  # fmt: skip
        return Reply(200, {}, encode_canonical({"ok": True, "receipt": self.book.receipt(seq)}))

    @property
    def anchor(self) -> str:
        with_genesis = self.agent().profile.open_seen()
        return with_genesis.anchor


@pytest.fixture
def door() -> Door:
    return Door()


async def test_a_key_proves_itself_and_is_enrolled_by_a_verified_entry(door: Door) -> None:
    async with door.agent() as agent:
        receipt = await agent.enrol(TOKEN, "worker")
        assert agent.caller.seen.newest.size == receipt.seq + 1
    leaf = receipt.leaf
    assert (leaf.text("agent"), leaf.text("name"), leaf.actor) == (ALICE.did, "worker", ENROLLER.did)
    ((headers, members),) = door.asked
    assert headers["authorization"] == f"Bearer {TOKEN}"
    assert "signature" not in headers
    assert is_enrolment_proof(ALICE.did, digest_of(TOKEN), door.book.origin, str(members["proof"]))
    assert not is_enrolment_proof(ALICE.did, digest_of(OTHER), door.book.origin, str(members["proof"]))


async def test_a_lost_answer_is_asked_for_again(door: Door) -> None:
    door.clock.is_automatic = True
    door.losses = 2
    async with door.agent() as agent:
        await agent.enrol(TOKEN)
    assert [members for _, members in door.asked] == [door.asked[0][1]] * 3


async def test_an_entry_about_another_key_or_another_api_key_enrols_nobody(door: Door) -> None:
    async with door.agent(BOB) as bob:
        await bob.enrol(TOKEN)
        proof = door.asked[0][1]["proof"]
    door.swap = {"agent": BOB.did, "proof": proof}
    async with door.agent() as agent:
        with pytest.raises(AnswerRefused, match="does not enrol this key by this API key"):
            await agent.enrol(TOKEN)
    door.swap = {"keyDigest": digest_of(OTHER), "agent": BOB.did, "proof": proof}
    async with door.agent() as agent:
        with pytest.raises(AnswerRefused, match="proof_invalid"):
            await agent.enrol(TOKEN)


async def test_a_refused_enrolment_is_raised_as_one(door: Door) -> None:
    door.decision = ("agent.refused", {"agent": ALICE.did, "error": "apikey_used", "number": 127})
    async with door.agent() as agent:
        with pytest.raises(Refused) as refused:
            await agent.enrol(TOKEN)
    assert explain(refused.value).startswith(
        "refused: apikey_used (entry 1). This trial key has enrolled its one agent."
    )


# -- keys that may not act ---------------------------------------------------------------------------------------------

GENERAL = {
    "outside_window",
    "unknown_history",
    "nonce_reused",
    "idempotency_mismatch",
    "agent_unknown",
    "agent_removed",
}
KINDS: dict[str, tuple[type[RequestRejected], int]] = {
    "session_ended": (SessionEnded, ENDED),
    "session_expired": (SessionEnded, ENDED),
    "trial_used_up": (TrialOver, NOT_ENROLLED),
    "trial_over": (TrialOver, NOT_ENROLLED),
    "operator_removed": (NotEnrolled, NOT_ENROLLED),
    "token_invalid": (NotEnrolled, NOT_ENROLLED),
    "reader_limited": (NotEnrolled, NOT_ENROLLED),
}


@pytest.mark.parametrize("code", ADVICE_UNSIGNED)
async def test_what_keeps_a_key_from_acting_has_a_class_a_code_and_a_next_step(code: str) -> None:
    gateway = LocalGateway(Book(), ManualClock())
    number = next((row.status for row in TABLE if row.name == code), 403)
    kind, exit_code = KINDS.get(code, (SessionRefused, NOT_ENROLLED))
    async with gateway.agent() as agent:
        gateway.faults = [status(number, code)]
        with pytest.raises(kind) as rejected:
            await agent.acquire(FILE)
    assert len(gateway.requests) == 1, "nothing refills, so nothing is tried again"
    assert exit_code_of(rejected.value) == exit_code
    assert explain(rejected.value).endswith(f"not now. {ADVICE_UNSIGNED[code]}")
    assert isinstance(rejected.value, RequestRejected)
    assert rejected.value.code == code


def test_every_refusal_without_an_entry_has_advice() -> None:
    unsigned = {row.name for row in TABLE if not row.is_receipted}
    assert unsigned - set(ADVICE_UNSIGNED) == GENERAL
    assert set(ADVICE_UNSIGNED) - unsigned == {"delegation_invalid", "token_invalid", "reader_limited"}


def test_an_agent_opens_offline_what_it_lends() -> None:
    """A statement needs no gateway: the operator's key may live on a machine without a network."""
    profile = Book().profile(OPERATOR)
    lent = Agent(profile).delegate(ALICE.did, may_delegate=True)
    assert (lent.says.iss, lent.says.sub, lent.says.aud) == (OPERATOR.did, ALICE.did, profile.address.origin)
