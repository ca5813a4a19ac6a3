"""Before a gateway writes a word its witnesses are asked: an older copy of a ledger does not start behind them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import pytest

from gateway.errors import Fatal
from gateway.ledger.cosigned import Witnesses, open_witnesses
from gateway.ledger.witness_http import Answer, Unanswered
from gateway.ledger.witness_start import GAP_MS_MAX, Sighting, check_clock, check_sightings, look_around
from gateway.witnessing import with_published
from tests.core.requests import NOW_MS, ORIGIN
from tests.ledger.witness_fake import FakeWeb, FakeWitness, policy_of
from tests.world import signer_of
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import KeyDocument, KeyLine

SIGNER = signer_of("log", "receipt")
SIZE = 9


def root(size: int) -> bytes:
    return hashlib.sha256(b"root of %d" % size).digest()


def shown(witness: FakeWitness, size: int, root_there: bytes | None = None, log: str = "log") -> Answer:
    """What a witness shows of this log."""
    note = signer_of(log, "receipt").sign_checkpoint(size, root_there or root(size))
    return Answer(200, note + witness.signed(parse_checkpoint(note).note.text))


def crew(count: int = 3) -> list[FakeWitness]:
    return [FakeWitness(f"w{number + 1}", lambda: NOW_MS) for number in range(count)]


async def look(witnesses: Sequence[FakeWitness], threshold: int = 2) -> tuple[Witnesses, list[Sighting]]:
    opened = open_witnesses(policy_of(witnesses, threshold))
    web = FakeWeb(witnesses, ORIGIN)
    return opened, await look_around(opened, ORIGIN, web, SIGNER.own_keys, 1_000)


async def check(witnesses: Sequence[FakeWitness], *, is_required: bool = False, threshold: int = 2) -> None:
    opened, sightings = await look(witnesses, threshold)
    check_sightings(opened, sightings, SIZE, root, is_required)


async def test_witnesses_that_never_saw_this_log_keep_nobody_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    await check(crew(), is_required=True)
    assert caplog.records == []


@pytest.mark.parametrize("size", [1, 4, SIZE])
async def test_what_is_seen_of_this_very_history_is_well(size: int) -> None:
    witnesses = crew()
    for one in witnesses:
        one.shows = shown(one, size)
    await check(witnesses, is_required=True)


async def test_one_witness_that_has_seen_more_is_enough_to_refuse() -> None:
    witnesses = crew()
    witnesses[2].shows = shown(witnesses[2], SIZE + 1)
    with pytest.raises(Fatal, match=r"witness w3 holds a checkpoint of 10 entries .* this ledger ends at 9"):
        await check(witnesses)


@pytest.mark.parametrize("size", [1, SIZE])
async def test_one_witness_that_has_seen_another_history_is_enough_to_refuse(size: int) -> None:
    witnesses = crew()
    witnesses[0].shows = shown(witnesses[0], size, b"\x07" * 32)
    with pytest.raises(Fatal, match="another history under the same keys"):
        await check(witnesses)


@pytest.mark.parametrize(
    "lie",
    [
        lambda one: shown(one, 500, log="thief"),
        lambda one: Answer(200, b"500\n"),
        lambda one: Answer(200, b""),
        lambda one: Answer(200, shown(one, 500).body.replace(b"500", b"501")),
        lambda one: Answer(200, one.signed(f"{ORIGIN}\n500\nAAAA\n")),
        lambda one: Answer(302, shown(one, 500).body),
        lambda one: Answer(500, shown(one, 500).body),
        lambda one: Unanswered("down"),
    ],
    ids=["another's key", "a size", "nothing", "changed", "no line of ours", "redirect", "error", "down"],
)
async def test_what_our_own_key_did_not_sign_keeps_nobody_from_starting(
    lie: Callable[[FakeWitness], Answer | Exception], caplog: pytest.LogCaptureFixture
) -> None:
    witnesses = crew()
    for one in witnesses:
        one.shows = lie(one)
    await check(witnesses)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4 and "w1 could not be asked" in said[0] and "may be an older copy" in said[3]
    with pytest.raises(Fatal, match="set witnessRequired to false"):
        await check(witnesses, is_required=True)


async def test_where_they_are_required_the_quorum_is_enough() -> None:
    witnesses = crew()
    witnesses[0].shows = Unanswered("down")
    await check(witnesses, is_required=True)
    witnesses[1].shows = Unanswered("down")
    with pytest.raises(Fatal, match="too few"):
        await check(witnesses, is_required=True)


async def test_a_disowned_key_of_ours_speaks_for_nothing() -> None:
    """Who stole it could otherwise stop every start, with a tree of his own at one witness."""
    witnesses = crew(1)
    witnesses[0].shows = shown(witnesses[0], 500)
    opened = open_witnesses(policy_of(witnesses, 1))
    sightings = await look_around(opened, ORIGIN, FakeWeb(witnesses, ORIGIN), lambda size: [], 1_000)
    assert sightings[0].checkpoint is None
    check_sightings(opened, sightings, SIZE, root, False)


@pytest.mark.parametrize(("status", "is_known"), [("active", True), ("retired", True), ("compromised", False)])
async def test_a_copy_from_before_a_rotation_is_found_out_by_the_key_that_is_published(
    status: str, is_known: bool
) -> None:
    """The copy's own records do not have the newer key, under which its witnesses have seen more."""
    witnesses = crew(1)
    witnesses[0].shows = shown(witnesses[0], SIZE + 3, log="next")
    line = KeyLine("log", signer_of("next", "receipt").log_keys(SIZE)[0], SIZE + 1, status=status)
    own_keys = with_published(SIGNER.own_keys, KeyDocument(ORIGIN, bytes(32), 2, bytes(32), (line,)))
    opened = open_witnesses(policy_of(witnesses, 1))
    sightings = await look_around(opened, ORIGIN, FakeWeb(witnesses, ORIGIN), own_keys, 1_000)
    assert (sightings[0].checkpoint is not None) is is_known
    if is_known:
        with pytest.raises(Fatal, match="older copy"):
            check_sightings(opened, sightings, SIZE, root, False)


# -- the clock ---------------------------------------------------------------------------------------------------------


def seen_at(times_ms: Sequence[int]) -> tuple[Witnesses, list[Checkpoint]]:
    witnesses = crew(len(times_ms))
    note = SIGNER.sign_checkpoint(SIZE, root(SIZE))
    text = parse_checkpoint(note).note.text
    lines = [one.signed(text, time_ms=time_ms) for one, time_ms in zip(witnesses, times_ms, strict=True)]
    return open_witnesses(policy_of(witnesses, 1)), [parse_checkpoint(note + line) for line in lines]


@pytest.mark.parametrize("now_ms", [NOW_MS - 1_500, NOW_MS, NOW_MS + GAP_MS_MAX - 1_000])
def test_a_clock_that_fits_the_newest_witnessed_time_is_followed(now_ms: int) -> None:
    check_clock(*seen_at([NOW_MS - 99_000_000, NOW_MS]), now_ms, is_accepted=False)


@pytest.mark.parametrize("now_ms", [NOW_MS - 3_000, NOW_MS - GAP_MS_MAX, NOW_MS + GAP_MS_MAX + 2_000, 0])
def test_a_clock_behind_it_or_more_than_a_day_after_it_needs_an_operators_word(now_ms: int) -> None:
    witnesses, checkpoints = seen_at([NOW_MS - 99_000_000, NOW_MS])
    with pytest.raises(Fatal, match=r"the newest time that a witness signed \(w2\)"):
        check_clock(witnesses, checkpoints, now_ms, is_accepted=False)
    check_clock(witnesses, checkpoints, now_ms, is_accepted=True)


def test_without_a_line_of_a_pinned_witness_there_is_nothing_to_compare() -> None:
    _, checkpoints = seen_at([NOW_MS])
    strangers = open_witnesses(policy_of([FakeWitness("w9", lambda: 0)], 1))
    check_clock(strangers, checkpoints, 0, is_accepted=False)
    check_clock(strangers, [], 0, is_accepted=False)
