"""Keys come and go while the ledger lives: who signs what, and that nothing of it is lost or changed by a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.errors import Busy, Fatal
from gateway.ledger.history import Answer, stored_receipt
from gateway.signer import Signer
from keys.rotation import Final, next_document
from keys.signing import SigningKey
from tests.core.book import vkey_of
from tests.core.requests import ORIGIN, Ask, acquire, key_note, key_of, release, state_key
from tests.world import ENGINES, Engine, Fault, World, signer_of
from verifier.did import thumbprint
from verifier.envelope import pre_authentication
from verifier.keyring import Keyring
from verifier.note import VerifierKey, line_matches, parse_note
from verifier.receipt import check_receipt
from verifier.sig import is_valid
from verifier.wire import encode_canonical, parse_json

LOG, LOG_2, RECEIPT, RECEIPT_2 = (
    vkey_of(purpose, name)
    for purpose, name in (("log", "log"), ("log", "log 2"), ("receipt", "receipt"), ("receipt", "receipt 2"))
)


def rotating_signer(*, without: str = "") -> Signer:
    """Return a signer with two log and two receipt keys, of which one may be missing."""
    names = {"log": ["log", "log 2"], "receipt": ["receipt", "receipt 2"]}
    keys = {purpose: [key_of(name) for name in found if name != without] for purpose, found in names.items()}
    return Signer(ORIGIN, log=keys["log"], receipt=keys["receipt"], seal=key_of("seal"))


def stated(world: World, verb: str, purpose: str, name: str, following: str | None = None) -> Ask:
    note = key_note(verb, purpose, name, world.genesis.hex(), following)
    return state_key("op", verb, note, at_ms=world.clock.wall)


def document_of(world: World, finals: dict[VerifierKey, Final] | None = None) -> Keyring:
    """Return the pins of a reader who has the newest document."""
    document = world.keyring.document
    assert document is not None
    following = next_document(document, world.sequencer._signer.lines, finals or {})
    return world.keyring if following is None else replace(world.keyring, document=following)


def receipt_of(answer: Answer) -> bytes:
    return encode_canonical(parse_json(answer.body(), bytes_max=10**6)["receipt"])


def signers_of(note: bytes) -> list[VerifierKey]:
    """Return whose lines a note has, in order."""
    known = (LOG, LOG_2)
    return [key for line in parse_note(note).lines for key in known if line_matches(line, key)]


def signer_of_leaf(leaf: bytes, signature: bytes) -> VerifierKey:
    return next(k for k in (RECEIPT, RECEIPT_2) if is_valid(k.public_key, pre_authentication(leaf), signature))


def made(folder: Path, engine: Engine = "memory", *, without: str = "") -> World:
    world = World(folder, engine)
    world.signer = rotating_signer(without=without)
    return world


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with made(tmp_path, request.param) as world:
        yield world


async def rotated(world: World) -> list[tuple[Ask, Answer]]:
    """Change both keys, with other requests in between; return each request with its answer."""
    said: list[tuple[Ask, Answer]] = []
    steps: tuple[Callable[[], Ask], ...] = (
        lambda: acquire("A", "lock:1", at_ms=world.clock.wall),
        lambda: stated(world, "announce", "log", "log 2"),
        lambda: acquire("A", "lock:2", at_ms=world.clock.wall),
        lambda: stated(world, "announce", "receipt", "receipt 2"),
        lambda: acquire("A", "lock:3", at_ms=world.clock.wall),
        lambda: stated(world, "retire", "receipt", "receipt"),
        lambda: acquire("A", "lock:4", at_ms=world.clock.wall),
        lambda: stated(world, "retire", "log", "log"),
        lambda: release("A", "lock:1", at_ms=world.clock.wall),
    )
    for step in steps:
        ask = step()
        said.append((ask, await insist(world, ask)))
    return said


async def insist(world: World, ask: Ask) -> Answer:
    """Ask until it was decided, as a client does."""
    for _ in range(5):
        try:
            return await world.ask(ask.again())
        except Busy:
            continue
    raise AssertionError("never decided")


# -- who signs what ----------------------------------------------------------------------------------------------------


async def test_each_checkpoint_has_the_line_of_every_log_key_in_force_at_its_size(world: World) -> None:
    said = await rotated(world)
    assert [answer.status for _, answer in said] == [200] * 9
    assert [signers_of(answer.checkpoint) for _, answer in said] == [
        [LOG], [LOG, LOG_2], [LOG, LOG_2], [LOG, LOG_2], [LOG, LOG_2], [LOG, LOG_2], [LOG, LOG_2], [LOG_2], [LOG_2],
    ]  # fmt: skip


async def test_each_leaf_is_signed_by_the_oldest_receipt_key_in_force(world: World) -> None:
    said = await rotated(world)
    signers = [signer_of_leaf(answer.leaf, answer.signature) for _, answer in said]
    assert signers == [RECEIPT] * 6 + [RECEIPT_2] * 3, "the entry that retires a key is the last that it signs"
    assert [answer.key_id for _, answer in said] == [thumbprint(key.public_key) for key in signers]


async def test_every_receipt_holds_under_the_newest_document_fresh_again_and_fetched(world: World) -> None:
    said = await rotated(world)
    pins, confirmed = document_of(world), world.sequencer.confirmed
    assert pins.document is not None and pins.document.version == 2
    for ask, answer in said:
        replay = await world.ask(ask.again())
        assert replay.is_replay and replay.body() == answer.body()
        fetched = stored_receipt(
            world.store.honest, world.signer, seq=answer.seq, size=confirmed.size, note=confirmed.note
        )
        for receipt in (receipt_of(answer), fetched):
            report = check_receipt(receipt, pins)
            assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "valid")


async def test_what_the_old_log_key_signs_later_is_refused(world: World) -> None:
    said = await rotated(world)
    thief = signer_of("log", "receipt 2")
    confirmed = world.sequencer.confirmed
    note = thief.sign_checkpoint(confirmed.size, confirmed.root)
    receipt = parse_json(receipt_of(said[-1][1]), bytes_max=10**6)
    genuine = said[-1][1].checkpoint
    receipt["proof"] = str(receipt["proof"]).replace(genuine.decode(), note.decode())
    report = check_receipt(encode_canonical(receipt), document_of(world))
    assert (report.exit_code, [finding.code for finding in report.findings][:1]) == (1, ["size_outside_key"])


async def test_requests_that_come_together_are_signed_as_if_they_had_come_one_by_one(world: World) -> None:
    """One batch has entries before and after a change of keys in it: each counts by its own number."""
    await world.ask(stated(world, "announce", "receipt", "receipt 2"))
    await world.ask(stated(world, "announce", "log", "log 2"))
    asks = [
        acquire("A", "lock:1", at_ms=world.clock.wall), stated(world, "retire", "receipt", "receipt"),
        acquire("B", "lock:2", at_ms=world.clock.wall), stated(world, "retire", "log", "log"),
        acquire("C", "lock:3", at_ms=world.clock.wall),
    ]  # fmt: skip
    import asyncio

    answers = await asyncio.gather(*map(world.ask, asks))
    assert len({answer.checkpoint for answer in answers}) == 1, "one batch"
    assert signers_of(answers[0].checkpoint) == [LOG_2]
    signers = [signer_of_leaf(answer.leaf, answer.signature) for answer in answers]
    assert signers == [RECEIPT, RECEIPT, RECEIPT_2, RECEIPT_2, RECEIPT_2]
    for answer in answers:
        assert check_receipt(receipt_of(answer), document_of(world)).exit_code == 0


async def test_a_disowned_receipt_key_counts_for_nothing_and_its_receipts_rest_on_the_tree(world: World) -> None:
    first = await world.acquire("A", "lock:1")
    await world.ask(stated(world, "announce", "receipt", "receipt 2"))
    await world.ask(stated(world, "compromise", "receipt", "receipt"))
    report = check_receipt(receipt_of(first), document_of(world))
    assert (report.exit_code, report.level, report.direct_signature) == (0, "included", "not_checked")


async def test_a_disowned_log_key_leaves_its_checkpoints_open_until_witnesses_speak(world: World) -> None:
    first = await world.acquire("A", "lock:1")
    await world.ask(stated(world, "announce", "log", "log 2"))
    await world.ask(stated(world, "compromise", "log", "log"))
    newest = world.sequencer.confirmed
    assert signers_of(newest.note) == [LOG_2]
    pins = document_of(world, {LOG: Final(newest.size, newest.root)})
    assert check_receipt(receipt_of(first), pins).exit_code == 3, "indeterminate"
    fetched = stored_receipt(world.store.honest, world.signer, seq=first.seq, size=newest.size, note=newest.note)
    assert check_receipt(fetched, pins).exit_code == 0, "the new key's word about the same entry"


async def test_an_announcement_that_did_not_land_signs_nothing(tmp_path: Path) -> None:
    async with made(tmp_path) as world:
        world.store.plan.extend([("commit", "lost")] * 3)
        with pytest.raises(Busy):
            await world.ask(stated(world, "announce", "log", "log 2"))
        answer = await world.acquire("A", "lock:1")
        assert signers_of(answer.checkpoint) == [LOG]


# -- crashes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "kept", "busy", "moved"])
@pytest.mark.parametrize("nth", range(1, 10))
async def test_a_failing_commit_anywhere_in_a_rotation_changes_nothing_of_it(
    tmp_path: Path, fault: Fault, nth: int
) -> None:
    async with made(tmp_path) as world:
        world.store.storm[("commit", world.store.calls["commit"] + nth)] = fault
        said = await rotated(world)
        assert [signer_of_leaf(answer.leaf, answer.signature) for _, answer in said] == [RECEIPT] * 6 + [RECEIPT_2] * 3
        for _, answer in said:
            assert check_receipt(receipt_of(answer), document_of(world)).exit_code == 0


@pytest.mark.parametrize("crash_after", range(1, 10))
async def test_what_a_crash_left_unsigned_is_signed_again_by_the_same_keys(tmp_path: Path, crash_after: int) -> None:
    """The signatures of the last batch are not kept yet when the power goes: after it they are the same bytes."""
    world = made(tmp_path, "sqlite")
    await world.start()
    said: list[tuple[Ask, Answer]] = []
    steps = rotation_steps()
    for at, (verb, purpose, name) in enumerate(steps, 1):
        ask = acquire("A", name, at_ms=world.clock.wall) if verb == "acquire" else stated(world, verb, purpose, name)
        said.append((ask, await world.ask(ask)))
        if at == crash_after:
            await world.crash()
            world.signer = rotating_signer()
            await world.start()
    for ask, answer in said:
        assert (await world.ask(ask.again())).body() == answer.body()
        assert check_receipt(receipt_of(answer), document_of(world)).exit_code == 0
    await world.restart()
    assert (await world.ask(said[-1][0].again())).body() == said[-1][1].body()
    await world.stop()


def rotation_steps() -> list[tuple[str, str, str]]:
    return [
        ("acquire", "", "lock:1"), ("announce", "log", "log 2"), ("announce", "receipt", "receipt 2"),
        ("acquire", "", "lock:2"), ("compromise", "receipt", "receipt"), ("acquire", "", "lock:3"),
        ("retire", "log", "log"), ("acquire", "", "lock:4"), ("acquire", "", "lock:5"),
    ]  # fmt: skip


@pytest.mark.parametrize(("purpose", "name"), [("log", "log 2"), ("receipt", "receipt 2"), ("log", "log")])
async def test_a_start_without_the_private_half_of_a_key_in_force_is_refused(
    tmp_path: Path, purpose: str, name: str
) -> None:
    world = made(tmp_path)
    await world.start()
    for each in ("log", "receipt"):
        await world.ask(stated(world, "announce", each, f"{each} 2"))
    await world.stop()
    world.signer = rotating_signer(without=name)
    with pytest.raises(Fatal, match=r"bring it back to keys/") as refused:
        await world.start()
    assert vkey_of(purpose, name).vkey in str(refused.value)
    world.signer = rotating_signer()
    await world.start()
    await world.stop()


async def test_a_retired_keys_file_may_go_once_its_last_signatures_are_kept(tmp_path: Path) -> None:
    """Before that it is needed to sign again what a crash left unsigned, and the start says so."""
    world = made(tmp_path, "sqlite")
    await world.start()
    said = await rotated(world)
    await world.stop()
    world.signer = Signer(ORIGIN, log=[key_of("log 2")], receipt=[key_of("receipt 2")], seal=key_of("seal"))
    await world.start()
    for ask, answer in said:
        assert (await world.ask(ask.again())).body() == answer.body()
    await world.stop()


async def test_a_crash_right_after_a_retirement_needs_the_retired_receipt_key_once_more(tmp_path: Path) -> None:
    world = made(tmp_path, "sqlite")
    await world.start()
    await world.ask(stated(world, "announce", "receipt", "receipt 2"))
    retired = await world.ask(ask := stated(world, "retire", "receipt", "receipt"))
    await world.crash()
    world.signer = rotating_signer(without="receipt")
    with pytest.raises(Fatal, match="needed to sign"):
        await world.start()
    world.signer = rotating_signer()
    await world.start()
    assert (await world.ask(ask.again())).body() == retired.body()
    await world.stop()


# -- the signer --------------------------------------------------------------------------------------------------------


def test_no_key_has_two_purposes() -> None:
    key = SigningKey.generate()
    with pytest.raises(AssertionError, match="one purpose"):
        Signer(ORIGIN, log=[key], receipt=[key], seal=SigningKey.generate())
    with pytest.raises(AssertionError, match="one purpose"):
        Signer(ORIGIN, log=[key], receipt=[SigningKey.generate()], seal=key)


def test_a_key_that_is_handed_over_signs_nothing_before_the_ledger_says_so() -> None:
    signer = signer_of("log", "receipt")
    signer.take("log", key_of("log 2"))
    assert signer.has(LOG_2) and signers_of(signer.sign_checkpoint(7, bytes(32))) == [LOG]
    assert signer.missing() == []


def test_a_size_that_no_key_may_sign_is_fatal() -> None:
    signer = signer_of("log", "receipt")
    signer.heed(())
    with pytest.raises(Fatal, match="no log key"):
        signer.sign_checkpoint(1, bytes(32))
    with pytest.raises(Fatal, match="no receipt key"):
        signer.sign_leaf(1, b"{}")
