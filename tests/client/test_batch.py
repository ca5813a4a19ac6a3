"""Batches: one signed request, one receipt for each command, usable alone; nothing unproven is believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.client.batch import acquiring, releasing, renewing
from gateway.client.errors import AnswerRefused, BatchRefused, LeaseHeld, NotEnrolled, SplitView
from gateway.client.exits import HELD, exit_code_of, explain
from gateway.client.fence import Answer, FenceGuard, answer_challenge
from tests.client.world import ALICE, BATCH, BOB, FILE, Book, LocalGateway, ManualClock, forged, lost_answer, status
from verifier.envelope import PAYLOAD_TYPE
from verifier.proof import Proof, encode_proof
from verifier.receipt import check_receipt
from verifier.wire import JsonObject, JsonValue, Malformed, decode_base64, encode_base64, parse_json

NAMES = ("repo:a", "repo:b", "repo:c")


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


async def test_each_command_gets_a_receipt_that_can_be_handed_on_alone(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        outcomes = await agent.batch([acquiring(name, ttl_ms=60_000) for name in NAMES])
    assert [outcome.is_ok for outcome in outcomes] == [True] * 3
    assert [request.target for request in gateway.requests] == [BATCH]
    for index, (name, outcome) in enumerate(zip(NAMES, outcomes, strict=True)):
        assert outcome.grant is not None
        assert (outcome.grant.resources, outcome.grant.trust_ends_ms) == ((name,), outcome.sent_ms + 54_000)
        assert outcome.receipt.leaf.batch == (1, index)
        assert outcome.receipt.seq == 2 + index
        report = check_receipt(outcome.receipt.data, gateway.book.keyring)
        assert (report.exit_code, report.direct_signature) == (0, "valid")
        guard = FenceGuard(gateway.book.keyring, gateway.book.origin, wall_ms=gateway.clock.wall_ms)
        challenge = guard.challenge()
        answer = answer_challenge(ALICE, challenge, name, outcome.receipt.data)
        with guard.permit(outcome.receipt.data, name, Answer(challenge, answer)):
            pass
        guard.close()


async def test_each_is_decided_with_the_effects_of_those_before_and_refusals_are_outcomes(
    gateway: LocalGateway,
) -> None:
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        await bob.acquire("repo:b", ttl_ms=60_000)
        held = await agent.acquire("repo:x")
        outcomes = await agent.batch(
            [acquiring("repo:a"), acquiring("repo:b"), renewing(held.lease_id, ttl_ms=90_000), releasing("repo:a")]
        )
    assert [outcome.is_ok for outcome in outcomes] == [True, False, True, True]
    refused = outcomes[1].refused
    assert isinstance(refused, LeaseHeld)
    assert (refused.holder, outcomes[1].grant, outcomes[0].refused) == (BOB.did, None, None)
    assert "stand in line with tallystick lease acquire … --wait 60s" in explain(refused), "a batch has no --wait"
    assert outcomes[2].grant is not None
    assert (outcomes[2].grant.lease_id, outcomes[2].grant.ttl_ms) == (held.lease_id, 90_000)
    assert {name for live in gateway.live.values() for name in live.names} == {"repo:b", "repo:x"}


async def test_a_bare_answer_rests_on_the_checkpoint_alone(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        outcomes = await agent.batch([acquiring(name) for name in NAMES], bare=True)
    for outcome in outcomes:
        report = check_receipt(outcome.receipt.data, gateway.book.keyring)
        assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "left_out")


async def test_a_retry_after_a_lost_answer_gets_the_same_bytes(gateway: LocalGateway) -> None:
    gateway.clock.is_automatic = True
    gateway.faults = [lost_answer]
    async with gateway.agent() as agent:
        outcomes = await agent.batch([acquiring(name) for name in NAMES])
    first, second = gateway.requests
    assert (first.key, first.body) == (second.key, second.body)
    assert first.nonce != second.nonce
    assert len(gateway.book.leaves) == 1 + 1 + 3
    assert outcomes[0].sent_ms < gateway.clock.steady_ms(), "trust counts from the first attempt"


async def test_the_anchor_of_the_next_request_is_the_checkpoint_of_the_batch(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.batch([acquiring(name) for name in NAMES])
        await agent.acquire(FILE)
    assert [request.headers["tallystick-anchor"].split()[1] for request in gateway.requests] == ["1", "5"]


async def test_a_batch_of_a_session_keeps_it_present(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent, agent.open_session() as session:
        for _ in range(5):
            await gateway.clock.advance(30_000)
            (outcome,) = await session.batch([acquiring("repo:a", ttl_ms=600_000)])
            assert outcome.grant is not None
            assert session.trust_ends_ms(outcome.grant) == outcome.sent_ms + 108_000
    assert not any(request.target.endswith("/beat") for request in gateway.requests)


async def test_an_atomic_batch_that_was_refused_did_nothing_and_says_which_command(gateway: LocalGateway) -> None:
    async with gateway.agent(BOB) as bob, gateway.agent() as agent:
        await bob.acquire("repo:b", ttl_ms=60_000)
        held = gateway.desk.held_by(gateway.desk.on("repo:b"), ("repo:b",), "write")
        told: JsonObject = {"count": 2, "isAtomic": True, "index": 1, "action": "lease.acquire", **held}
        gateway.desk.script = [("batch.refused", told)]
        with pytest.raises(BatchRefused) as refused:
            await agent.batch([acquiring("repo:a"), acquiring("repo:b")], atomic=True)
    error = refused.value
    assert (error.index, error.action, error.error) == (1, "lease.acquire", "lease_held")
    assert isinstance(error.cause, LeaseHeld)
    assert error.cause.holder == BOB.did
    assert exit_code_of(error) == HELD
    text = explain(error)
    assert text.startswith(
        "nothing of the batch was done, for command 1 (lease.acquire) was refused. repo:b is held by"
    )
    assert "Submit the whole batch again" in text


WRONG: list[tuple[list[JsonObject], str]] = [
    ([], "1 to 256"),
    ([acquiring("repo:a")] * 257, "1 to 256"),
    ([acquiring("repo:a"), acquiring("no-scheme")], r"commands\[1\]"),
    ([{"action": "lease.transfer"}], r"commands\[0\]"),
    ([{**acquiring("repo:a"), "wait": True}], r"commands\[0\].*wait"),
]


@pytest.mark.parametrize(("commands", "text"), WRONG)
async def test_a_wrong_command_is_named_before_anything_is_sent(
    gateway: LocalGateway, commands: list[JsonObject], text: str
) -> None:
    async with gateway.agent() as agent:
        with pytest.raises(Malformed, match=text):
            await agent.batch(commands)
    assert not gateway.requests


async def test_a_rejected_batch_is_told_as_any_other_request(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        gateway.faults = [status(401, "agent_unknown")]
        with pytest.raises(NotEnrolled):
            await agent.batch([acquiring("repo:a")])


# -- forged answers ----------------------------------------------------------------------------------------------------


def rows(batch: JsonObject, name: str) -> list[JsonValue]:
    found = batch[name]
    assert isinstance(found, list)
    return found


def drop_last(batch: JsonObject) -> None:
    for name in ("leaves", "paths", "signatures"):
        rows(batch, name).pop()


def swap(batch: JsonObject) -> None:
    for name in ("leaves", "paths", "signatures"):
        row = rows(batch, name)
        row[1], row[2] = row[2], row[1]


def change_leaf(batch: JsonObject) -> None:
    leaf = rows(batch, "leaves")[2]
    rows(batch, "leaves")[2] = str(leaf)[:40] + ("A" if str(leaf)[40] != "A" else "B") + str(leaf)[41:]


def change_path(batch: JsonObject) -> None:
    rows(batch, "paths")[1] = [encode_base64(bytes(32))]


def no_header(batch: JsonObject) -> None:
    for name in ("leaves", "paths", "signatures"):
        rows(batch, name).pop(0)


def no_paths(batch: JsonObject) -> None:
    del batch["paths"]


def other_note(batch: JsonObject) -> None:
    batch["checkpoint"] = str(batch["checkpoint"]).replace("\n5\n", "\n6\n")


def no_number(batch: JsonObject) -> None:
    batch["index"] = "1"


@pytest.mark.parametrize(
    "change", [drop_last, swap, change_leaf, change_path, no_header, no_paths, other_note, no_number]
)
async def test_an_answer_that_does_not_prove_every_command_is_refused(
    gateway: LocalGateway, change: Callable[[JsonObject], None]
) -> None:
    def forge(answer: JsonObject) -> None:
        batch = answer["batch"]
        assert isinstance(batch, dict)
        change(batch)

    async with gateway.agent() as agent:
        gateway.faults = [forged(forge)]
        with pytest.raises(AnswerRefused):
            await agent.batch([acquiring(name) for name in NAMES])


async def test_the_receipt_of_the_header_alone_is_no_answer(gateway: LocalGateway) -> None:
    """It proves that the batch was decided, and of no command what became of it."""

    def only_header(answer: JsonObject) -> JsonObject:
        batch = answer["batch"]
        assert isinstance(batch, dict) and isinstance(batch["index"], int)
        leaf, signature, path = (rows(batch, name)[0] for name in ("leaves", "signatures", "paths"))
        assert isinstance(path, list)
        hashes = tuple(decode_base64(str(part), 32) for part in path)
        proof = encode_proof(Proof(batch["index"], hashes, str(batch["checkpoint"]).encode())).decode()
        signed: JsonObject = {"keyid": batch["keyid"], "sig": signature}
        receipt: JsonObject = {"payloadType": PAYLOAD_TYPE, "payload": leaf, "signatures": [signed], "proof": proof}
        return {"ok": True, "receipt": receipt}

    async with gateway.agent() as agent:
        gateway.faults = [forged(only_header)]
        with pytest.raises(AnswerRefused, match="no command of the batch"):
            await agent.batch([acquiring(name) for name in NAMES])


async def test_the_genuine_answer_to_another_batch_is_refused(gateway: LocalGateway) -> None:
    async with gateway.agent() as agent:
        await agent.batch([acquiring(name) for name in NAMES])
        (old,) = (reply.unverified_body for reply in gateway.answers.values())
        gateway.faults = [forged(lambda answer: parse_json(old, bytes_max=10**6))]
        with pytest.raises(AnswerRefused, match="is not that of the request sent"):
            await agent.batch([acquiring(name) for name in NAMES])


async def test_a_batch_out_of_another_history_is_found_out_by_the_next_proof(gateway: LocalGateway) -> None:
    with pytest.raises(SplitView):
        async with gateway.agent() as agent:
            await agent.acquire("repo:x")
            other = LocalGateway(Book(), gateway.clock)
            async with other.agent(BOB) as bob:
                await bob.acquire("repo:y")
            await agent.prove_history()
            gateway.book = other.book
            await agent.batch([acquiring("repo:a")])
