"""A second history stops all grants; nothing that our own key did not sign stops anything."""

import json
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.core.dispute import open_own_checkpoint
from gateway.signer import Signer
from keys.files import load_key
from keys.signing import SigningKey
from tests.ledger.witness_fake import FakeWitness
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, ORIGIN, Message, Reply, World, make, world
from verifier.checkpoint import Checkpoint, checkpoint_text, parse_checkpoint
from verifier.note import VerifierKey
from verifier.receipt import check_receipt

DISPUTE, SEEN = "/api/v1/acp/ledger/dispute", "/api/v1/acp/ledger/seen"
WRONG_ROOT = b"\x07" * 32


async def post(place: World, path: str, note: bytes, content_type: str = "text/plain") -> Reply:
    return await place.send(Message("POST", path, (("host", AUTHORITY), ("content-type", content_type)), note))


def stranger_of(origin: str, log: SigningKey | None = None) -> Signer:
    new = SigningKey.generate
    return Signer(origin, log=(log or new(),), receipt=(new(),), seal=new())


def our_note(place: World, size: int, root: bytes) -> bytes:
    """What a thief of the log key, or our own younger self, would sign."""
    return place.gateway.house.signer.sign_checkpoint(size, root)


async def grants(place: World) -> bool:
    reply = await place.acquire("a", f"lock:{place.gateway.house.sequencer.confirmed.size}")
    assert reply.status == 200 or reply.json["error"] == "ledger_disputed"
    return reply.status == 200


@pytest.mark.parametrize("path", [DISPUTE, SEEN])
@pytest.mark.parametrize("size", [1, 2, 10_000])
async def test_our_own_signature_under_another_history_stops_all_grants(public: World, path: str, size: int) -> None:
    assert await grants(public)
    note = our_note(public, size, WRONG_ROOT)
    reply = await post(public, path, note)
    assert (reply.status, reply.json) == (200, {"ok": True, "isContradiction": True, "size": size})
    assert not await grants(public)
    size = public.gateway.house.sequencer.confirmed.size
    assert (await post(public, path, note)).status == 200
    assert public.gateway.house.sequencer.confirmed.size == size, "a second report writes nothing"


async def test_the_proof_is_in_the_ledger_and_stops_grants_after_a_restart_too(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await place.agent("a")
        await post(place, DISPUTE, our_note(place, 2, WRONG_ROOT))
        size = place.gateway.house.sequencer.confirmed.size
        receipt = await place.get(f"/api/v1/acp/ledger/receipts/{size - 1}")
        assert check_receipt(receipt.body, place.keyring).exit_code == 0
        agents = place.agents
    async with world(tmp_path / "data", made) as place:
        place.agents = agents
        assert not await grants(place)


async def test_a_released_lease_can_still_be_given_back(public: World) -> None:
    lease = (await public.acquire("a", "lock:x")).json["lease"]
    await post(public, DISPUTE, our_note(public, 2, WRONG_ROOT))
    key = await public.agent("a")
    reply = await public.send(public.signed(key, "lease.release", resource="lock:x", leaseId=lease["leaseId"]))
    assert reply.status == 200


async def test_our_own_checkpoints_of_every_size_change_nothing(public: World) -> None:
    notes = []
    for number in range(3):
        await public.acquire("a", f"lock:{number}")
        notes.append((await public.get("/main/checkpoint")).body)
    for note in notes:
        reply = await post(public, SEEN, note)
        assert reply.json == {"ok": True, "isContradiction": False, "size": parse_checkpoint(note).size}
    assert await grants(public)


async def test_our_true_root_at_a_size_we_never_signed_is_no_contradiction(public: World) -> None:
    await public.acquire("a", "lock:x")
    hashes = (await public.get("/main/tile/0/000.p/2")).body
    from verifier.merkle import node_hash

    reply = await post(public, DISPUTE, our_note(public, 2, node_hash(hashes[:32], hashes[32:])))
    assert reply.json["isContradiction"] is False


async def test_what_our_key_did_not_sign_stops_nothing(public: World) -> None:
    stranger = stranger_of(ORIGIN)
    foreign = stranger.sign_checkpoint(9_999, WRONG_ROOT)
    ours = our_note(public, 9_999, WRONG_ROOT)
    other_origin = stranger_of("gateway.example/other", load_key(public.folder / "keys" / "log.key"))
    for note in (
        b"", b"nonsense", foreign, ours.replace(b"9999", b"9998"), ours + b"\n",
        checkpoint_text(ORIGIN, 9_999, WRONG_ROOT).encode(), b"x" * 5_000,
        other_origin.sign_checkpoint(9_999, WRONG_ROOT),
    ):  # fmt: skip
        check_problem(await post(public, DISPUTE, note), "not_a_checkpoint", 400)
    assert await grants(public)


async def test_the_lines_of_witnesses_keep_no_proof_out_and_come_into_no_entry(public: World) -> None:
    """Clients keep whole notes; with many witnesses these are longer than what an entry may hold."""
    assert await grants(public)
    note = our_note(public, 9_999, WRONG_ROOT)
    text = parse_checkpoint(note).note.text
    lines = [FakeWitness(f"w{number}", lambda: 1_800_000_000_000).signed(text) for number in range(40)]
    whole = note + b"".join(lines)
    assert len(whole) > 4_096
    reply = await post(public, DISPUTE, whole)
    assert (reply.status, reply.json["isContradiction"]) == (200, True)
    assert not await grants(public)
    receipt = (await public.get(f"/api/v1/acp/ledger/receipts/{disputed_seq(public)}")).json
    leaf = json.loads(b64decode(receipt["payload"]))
    assert leaf["checkpoint"] == note.decode()


def disputed_seq(place: World) -> int:
    return place.types().index("ledger.disputed")


async def test_a_report_is_plain_text(public: World) -> None:
    note = our_note(public, 2, WRONG_ROOT)
    check_problem(await post(public, DISPUTE, note, "application/json"), "content_type_wrong", 415)
    assert await grants(public)


async def test_reports_are_limited_before_they_cost_a_verification(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[bytes] = []

    def counting(note: bytes, key: Sequence[VerifierKey]) -> Checkpoint:
        verified.append(note)
        return open_own_checkpoint(note, key)

    monkeypatch.setattr("gateway.web.reports.open_own_checkpoint", counting)
    forged = our_note(public, 9_999, WRONG_ROOT).replace(b"9999", b"9998")
    replies = [await post(public, SEEN, forged) for _ in range(40)]
    assert {reply.status for reply in replies} == {400, 429}
    assert int(replies[-1].headers["retry-after"]) >= 1
    assert len(verified) == [reply.status for reply in replies].count(400) <= 25
    assert await grants(public)


async def test_what_does_not_claim_to_be_ours_silences_nobody(public: World) -> None:
    """A stranger took the tokens of everybody by 20 posts of nothing, and the proof of a fork was turned away."""
    stranger = stranger_of(ORIGIN)
    foreign = stranger.sign_checkpoint(9_999, WRONG_ROOT)
    for _ in range(60):
        check_problem(await post(public, DISPUTE, b"x", "application/json"), "content_type_wrong", 415)
        for note in (b"", b"x", b"x" * 5_000, foreign):
            check_problem(await post(public, DISPUTE, note), "not_a_checkpoint", 400)
    reply = await post(public, DISPUTE, our_note(public, 10_000, WRONG_ROOT))
    assert reply.json == {"ok": True, "isContradiction": True, "size": 10_000}


async def test_one_address_can_not_use_up_what_is_for_all(public: World) -> None:
    """Forged lines under our own name and key id cost a verification each: then their sender's address pays."""
    forged = our_note(public, 9_999, WRONG_ROOT).replace(b"9999", b"9998")
    replies = [await post(public, DISPUTE, forged) for _ in range(40)]
    assert replies[-1].status == 429
    house = public.gateway.house
    house.reports.take("192.0.2.1")
    house.all_reports.take("everybody", 100)
