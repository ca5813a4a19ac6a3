"""Witnesses, honest and not, slow and dead: what comes of their answers, and what never waits for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gateway.core.record_keys import DISPUTE_KEY
from gateway.ledger.cosigned import open_witnesses
from gateway.ledger.tree import load_edge, prove_consistency
from gateway.ledger.witness import ALARM_REST_MS, BACKOFF_MS_MAX, ROUND_MS, Pace, Witnessing
from gateway.ledger.witness_ask import ALARMS, Tree
from gateway.ledger.witness_http import ANSWER_BYTES_MAX, Answer, Unanswered
from tests.core.requests import NOW_MS, ORIGIN, key_of
from tests.ledger.witness_fake import FakeWeb, FakeWitness, policy_of
from tests.world import Engine, Fault, World, signer_of
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import Keyring
from verifier.note import cosignature_time_s
from verifier.policy import parse_policy
from verifier.signers import check_signers

REFRESH_MS, ENTRY_MS, TIMEOUT_MS, OVERDUE_MS = 20_000, 10_000, 5_000, 60_000
PACE = Pace(refresh_ms=REFRESH_MS, entry_ms=ENTRY_MS, timeout_ms=TIMEOUT_MS, overdue_ms=OVERDUE_MS)


class Scene:
    """A gateway and the witnesses of its ledger. No time passes and nobody is asked but by `play`."""

    def __init__(self, world: World, names: Sequence[str], threshold: int, policy: bytes | None = None) -> None:
        self.world = world
        self.witnesses = [FakeWitness(name, lambda: world.clock.wall) for name in names]
        self.web = FakeWeb(self.witnesses, ORIGIN)
        self.policy = policy or policy_of(self.witnesses, threshold)
        self.tasks: set[asyncio.Task[None]] = set()
        self.count = 0
        self.witnessing: Witnessing = self._made()

    def __getitem__(self, name: str) -> FakeWitness:
        return next(one for one in self.witnesses if one.name == name)

    def _made(self) -> Witnessing:
        store = self.world.store.honest

        async def prove(old: int, size: int) -> Sequence[bytes]:
            return prove_consistency(store, old, size)

        async def root_at(size: int) -> bytes:
            return load_edge(store, size).root

        return Witnessing(
            self.world.sequencer, ORIGIN, open_witnesses(self.policy), web=self.web, tree=Tree(prove, root_at),
            clock=self.world.clock, pace=PACE, own_keys=self.world.signer.own_keys,
        )  # fmt: skip

    async def restart(self, *, is_crash: bool = False) -> None:
        """End the gateway, and go on with what the next one finds."""
        await (self.world.crash() if is_crash else self.world.stop())
        await self.world.start()
        self.witnessing = self._made()
        await self.witnessing.start(self.world.sequencer.cosigned, {})

    async def play(self, *, seconds: int = 0) -> None:
        """Let time pass, and see through whatever is due meanwhile and does not wait for a held witness."""
        for _ in range(max(1, seconds)):
            if seconds:
                self.world.clock.advance(1_000)
            for work in self.witnessing.turn():
                task = asyncio.get_running_loop().create_task(work)
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
            for _ in range(200):
                await asyncio.sleep(0)
                if not self.tasks or (self.web.held and self.world.is_idle()):
                    break
            while self.tasks and not self.web.held:  # noqa: ASYNC110  # turns of the loop, no time passes
                await asyncio.sleep(0)

    async def grow(self, count: int = 1) -> None:
        for _ in range(count):
            self.count += 1
            await self.world.acquire("A", f"repo:{self.count}")

    def size(self) -> int:
        """How far the newest note reaches; 0 without one."""
        return 0 if self.witnessing.newest is None else self.witnessing.newest.size

    def newest(self) -> Checkpoint:
        assert self.witnessing.newest is not None, "the quorum was met"
        return parse_checkpoint(self.witnessing.newest.note)

    def level(self) -> str:
        """What the real verifier says of the newest note, with the gateway's own policy pinned."""
        keyring = Keyring(self.world.keyring.root, self.world.keyring.document, parse_policy(self.policy))
        return check_signers(self.newest(), keyring).level

    def is_overdue(self) -> bool:
        return self.witnessing.is_overdue

    def is_disputed(self) -> bool:
        return self.world.sequencer.view.get(DISPUTE_KEY) is not None

    def foreign(self, size: int, log: str = "log") -> bytes:
        """A checkpoint of another history of this origin, signed by a log key."""
        return signer_of(log, "receipt").sign_checkpoint(size, b"\x07" * 32)


@asynccontextmanager
async def scene(
    folder: Path,
    names: Sequence[str] = ("w1", "w2", "w3"),
    threshold: int = 2,
    engine: Engine = "memory",
    **options: Any,
) -> AsyncIterator[Scene]:
    world = World(folder, engine)
    await world.start()
    found = Scene(world, names, threshold, **options)
    try:
        yield found
        for task in found.tasks:
            task.cancel()
        world.audit()
    finally:
        await world.stop()


# -- the honest way ----------------------------------------------------------------------------------------------------


async def test_the_newest_confirmed_checkpoint_is_cosigned_by_everybody_who_answers(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        await place.grow(3)
        size = place.world.sequencer.confirmed.size
        assert place.size() == 0 and place.witnessing.lag_entries == size
        await place.play()
        assert place.size() == size
        assert place.level() == "witnessed 3/3"
        assert [one.size for one in place.witnesses] == [size] * 3
        assert place.witnessing.figures("size") == {"w1": size, "w2": size, "w3": size}


async def test_each_further_checkpoint_comes_with_the_proof_from_what_that_witness_has(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        for _ in range(5):
            await place.grow(7)
            await place.play(seconds=2)
        assert place.size() == place.world.sequencer.confirmed.size
        assert [body.split(b"\n")[0] for body in place["w1"].bodies][:2] == [b"old 0", b"old %d" % 13]
        assert all(not one.script and place.witnessing.figures("failures")[one.name] == 0 for one in place.witnesses)


async def test_a_witnessed_checkpoint_goes_into_the_ledger_and_a_quiet_ledger_stays_as_it_is(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        await place.grow()
        await place.play(seconds=1)
        await place.play(seconds=1)
        leaf = place.world.leaves()[-1]
        assert leaf.type == "tallystick/checkpoint.witnessed/1"
        assert leaf.number("size") == leaf.seq
        size = place.world.sequencer.confirmed.size
        await place.play(seconds=200)
        assert place.world.sequencer.confirmed.size == size, "an entry that covers nothing but its like is not written"
        assert place.witnessing.lag_entries == 0, "the last entry is witnessed too"


async def test_under_load_an_entry_is_written_about_every_ten_seconds(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        for _ in range(60):
            await place.grow()
            await place.play(seconds=1)
        times = [leaf.time_ms for leaf in place.world.leaves() if leaf.type == "tallystick/checkpoint.witnessed/1"]
        assert 5 <= len(times) <= 7
        assert all(later - earlier >= ENTRY_MS for earlier, later in pairwise(times))


async def test_a_quiet_ledger_is_cosigned_again_so_that_its_newest_time_is_fresh(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        await place.grow()
        await place.play(seconds=5)
        assert place.size()
        size, before = place.size(), cosignature_time_s(place.newest().note.lines[-1])
        asked = len(place["w1"].bodies)
        await place.play(seconds=REFRESH_MS // 1_000)
        assert place.size() == size
        assert len(place["w1"].bodies) == asked + 1
        assert cosignature_time_s(place.newest().note.lines[-1]) >= before + REFRESH_MS // 1_000 - 2
        assert place.level() == "witnessed 3/3"


async def test_of_a_quiet_ledger_the_older_lines_stay_until_newer_ones_come(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        await place.grow()
        await place.play(seconds=5)
        place["w3"].script.extend(Unanswered("down") for _ in range(99))
        times = [cosignature_time_s(line) for line in place.newest().note.lines[1:]]
        await place.play(seconds=2 * REFRESH_MS // 1_000)
        later = [cosignature_time_s(line) for line in place.newest().note.lines[1:]]
        assert place.level() == "witnessed 3/3"
        assert later[0] > times[0] and later[1] > times[1] and later[2] == times[2]


async def test_nothing_is_submitted_that_was_not_committed_and_signed(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        faults: tuple[Fault, ...] = ("lost", "kept", "busy")
        for fault in faults:
            place.world.store.plan.append(("commit", fault))
            await asyncio.gather(place.grow(), place.play(), return_exceptions=True)
            await place.play(seconds=2)
        for body in place["w1"].bodies:
            found = parse_checkpoint(body.partition(b"\n\n")[2])
            batch = place.world.store.batch_at(found.size)
            assert batch is not None and batch.root == found.root


async def test_a_quorum_goes_by_groups(tmp_path: Path) -> None:
    names = ("a1", "a2", "b1", "b2")
    rows = [FakeWitness(name, lambda: 0).line for name in names]
    groups = ["group a any a1 a2", "group b any b1 b2", "group both all a b", "quorum both", ""]
    async with scene(tmp_path, names, policy="\n".join([*rows, *groups]).encode()) as place:
        for name in ("b1", "b2"):
            place[name].script.append(Unanswered("down"))
        await place.grow()
        await place.play()
        assert place.size() == 0, "two of one group are not two groups"
        await place.play(seconds=2)
        assert place.level() == "witnessed 4/4"


# -- slow and dead -----------------------------------------------------------------------------------------------------


async def test_a_slow_witness_holds_up_no_decision_and_no_other_witness(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        place.web.held["w3"] = asyncio.Event()
        for _ in range(5):
            await place.grow()
            await place.play(seconds=1)
        assert place.size() >= place.world.sequencer.confirmed.size - 2
        assert place.level() == "witnessed 2/3"
        assert place["w3"].bodies == []


async def test_the_late_line_of_a_slow_witness_is_added_to_the_newest_note_and_to_no_newer_one(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        event = place.web.held["w3"] = asyncio.Event()
        await place.grow()
        await place.play()
        assert place.level() == "witnessed 2/3"
        first = place.size()
        await place.grow()
        event.set()
        del place.web.held["w3"]
        await place.play()
        assert place.size() == first and place.level() == "witnessed 3/3"
        place.web.held["w3"] = asyncio.Event()
        await place.play(seconds=2)
        newer = place.size()
        assert newer > first and place.level() == "witnessed 2/3"
        late = place.web.held.pop("w3")
        await place.grow()
        place.web.held["w3"] = asyncio.Event()
        await place.play(seconds=2)
        note = place.witnessing.newest
        late.set()
        await place.play()
        assert place.witnessing.newest == note, "it was about an older checkpoint"


async def test_however_long_they_sleep_and_however_much_happens_each_witness_costs_one_request(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        for one in place.witnesses:
            place.web.held[one.name] = asyncio.Event()
        for _ in range(50):
            await place.grow()
            await place.play(seconds=1)
        assert (place.web.most_under_way, len(place.tasks)) == (3, 3)


async def test_a_slow_quorum_gets_on_with_one_checkpoint_after_the_other(tmp_path: Path) -> None:
    """All are asked about one checkpoint until it is cosigned; else a busy ledger would never have two lines on one."""
    async with scene(tmp_path, ("w1", "w2"), 2) as place:
        event = place.web.held["w2"] = asyncio.Event()
        await place.grow()
        await place.play()
        first = place.world.sequencer.confirmed.size
        for _ in range(3):
            await place.grow()
            await place.play(seconds=1)
        assert {parse_checkpoint(body.partition(b"\n\n")[2]).size for body in place["w1"].bodies} == {first}
        event.set()
        del place.web.held["w2"]
        await place.play()
        assert place.size() == first
        await place.play(seconds=1)
        assert place.size() > first


async def test_who_never_answers_does_not_keep_the_others_at_an_old_checkpoint(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        place["w2"].script.extend(Unanswered("down") for _ in range(99))
        place.web.held["w3"] = asyncio.Event()
        await place.grow()
        await place.play()
        await place.grow()
        await place.play(seconds=TIMEOUT_MS // 1_000 - 1)
        assert place["w1"].size == place.world.sequencer.confirmed.size - 1, "w3 may still answer"
        await place.play(seconds=1)
        assert place["w1"].size == place.world.sequencer.confirmed.size


async def test_what_does_not_answer_is_asked_ever_more_slowly_and_again_at_once_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path) as place:
        dead = place["w1"]
        dead.script.extend(Unanswered("down") for _ in range(200))
        for _ in range(400):
            await place.grow()
            await place.play(seconds=1)
        tries = 200 - len(dead.script)
        assert 6 <= tries <= 6 + 400_000 // BACKOFF_MS_MAX + 1
        said = [row for row in caplog.records if "w1" in row.getMessage()]
        assert len(said) == 1, "a log that repeats itself is not read"
        assert place.level() == "witnessed 2/3"
        dead.script.clear()
        await place.play(seconds=2 * BACKOFF_MS_MAX // 1_000)
        assert place.level() == "witnessed 3/3"
        assert "answers again" in caplog.text


@pytest.mark.parametrize(
    ("answer", "pause_s"),
    [
        (Answer(500, b""), 1),
        (Answer(503, b"", 7), 7),
        (Answer(429, b"", 30), 30),
        (Answer(302, b""), 1),
        (Answer(401, b""), 1),
        (Answer(204, b""), 1),
        (Answer(409, b"lots\n"), 1),
        (Answer(409, b""), 1),
        (Answer(409, b"1" * 5_000), 1),
        (RuntimeError("a bug of ours"), 1),
    ],
    ids=["500", "503", "429", "302", "401", "204", "409 in words", "409 empty", "409 long", "unforeseen"],
)
async def test_an_answer_that_settles_nothing_is_tried_again_when_it_asks_for_that(
    tmp_path: Path, answer: Answer | Exception, pause_s: int
) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        place["w1"].script.append(answer)
        await place.grow()
        await place.play()
        assert place.size() == 0 and place.witnessing.figures("failures") == {"w1": 1}
        await place.play(seconds=pause_s - 1) if pause_s > 1 else None
        assert len(place["w1"].bodies) == 1
        await place.play(seconds=1)
        assert place.size() and place.witnessing.figures("alarm") == {"w1": 0}


# -- alarms ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", sorted(ALARMS))
async def test_what_a_person_must_look_at_is_said_once_and_not_retried_blindly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        witness = place["w1"]
        witness.script.extend([Answer(status, b"no\n")] * 2)
        for _ in range(30):
            await place.grow()
            await place.play(seconds=1)
        critical = [row for row in caplog.records if row.levelno == logging.CRITICAL and "w1" in row.getMessage()]
        assert len(critical) == 1 and str(status) in critical[0].getMessage()
        assert len(witness.bodies) == 1
        assert place.witnessing.figures("alarm") == {"w1": 1}
        looks = witness.looks
        place.world.clock.advance(ALARM_REST_MS)
        await place.play()
        assert witness.looks > looks, "its own checkpoint is read before anything is sent to it again"
        assert len(witness.bodies) == 2
        assert sum(row.levelno == logging.CRITICAL and "w1" in row.getMessage() for row in caplog.records) == 1
        place.world.clock.advance(ALARM_REST_MS)
        await place.play()
        assert place.size() and place.witnessing.figures("alarm") == {"w1": 0}


def forged(witness: FakeWitness, body: bytes, kind: str) -> Answer:
    text = parse_checkpoint(body.partition(b"\n\n")[2]).note.text
    line, other = witness.signed(text), FakeWitness("other", witness.time_ms).signed(text)
    answers = {
        "signed by somebody else under its name": witness.signed(text, key_of("thief")),
        "over another text": witness.signed(text.replace("\n", "0\n", 1)),
        "of another witness": other,
        "twice": line + line,
        "nothing": b"",
        "a page": b"<html>\n",
        "two paragraphs": line + b"\n" + line,
        "with a tail": line + b"and more",
        "with CRLF": line.replace(b"\n", b"\r\n"),
        "no UTF-8": b"\xff\xfe" + line,
        "a hundred lines": other * 100,
        "the whole note": body.partition(b"\n\n")[2] + line,
    }
    return Answer(200, answers[kind])


FORGERIES = (
    "signed by somebody else under its name", "over another text", "of another witness", "twice", "nothing", "a page",
    "two paragraphs", "with a tail", "with CRLF", "no UTF-8", "a hundred lines", "the whole note",
)  # fmt: skip


@pytest.mark.parametrize("kind", FORGERIES)
async def test_a_line_that_the_pinned_key_did_not_make_never_counts(tmp_path: Path, kind: str) -> None:
    async with scene(tmp_path, ("w1", "w2"), 1) as place:
        witness = place["w1"]
        witness.script.append(lambda _, body: forged(witness, body, kind))
        await place.grow()
        await place.play()
        assert place.level() == "witnessed 1/2"
        assert place.witnessing.figures("alarm") == {"w1": 1, "w2": 0}


async def test_lines_of_others_beside_the_witnesss_own_are_ignored(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        witness, other = place["w1"], FakeWitness("other", lambda: NOW_MS)

        def both(_: str, body: bytes) -> Answer:
            text = parse_checkpoint(body.partition(b"\n\n")[2]).note.text
            return Answer(200, other.signed(text) + witness.honest(body).body)

        witness.script.append(both)
        await place.grow()
        await place.play()
        assert place.level() == "witnessed 1/1"
        assert place.size() and "other" not in place.newest().note.lines[-1].name


@pytest.mark.parametrize("off_s", [-7, -3_600, 31, 86_400])
async def test_a_line_of_a_wrong_clock_is_left_out_because_it_would_convict_our_entries(
    tmp_path: Path, off_s: int
) -> None:
    async with scene(tmp_path, ("w1", "w2"), 1) as place:
        place["w1"].time_ms = lambda: place.world.clock.wall + 1_000 * off_s
        await place.grow()
        await place.play(seconds=3)
        assert place.size()
        assert [line.name for line in place.newest().note.lines] == [ORIGIN, "witness.example/w2"]
        assert place.witnessing.figures("failures")["w1"] > 0


@pytest.mark.parametrize("off_s", [-5, 29])
async def test_a_little_off_is_no_wrong_clock(tmp_path: Path, off_s: int) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        place["w1"].time_ms = lambda: place.world.clock.wall + 1_000 * off_s
        await place.grow()
        await place.play(seconds=3)
        assert place.level() == "witnessed 1/1"


# -- 409 ---------------------------------------------------------------------------------------------------------------


async def test_a_witness_that_knows_more_than_we_remember_says_so_and_is_asked_once_more(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        await place.grow(9)
        await place.play(seconds=2)
        await place.restart()
        await place.grow(2)
        await place.play()
        assert place.size() == place.world.sequencer.confirmed.size
        assert place.witnessing.figures("failures") == {"w1": 0}


async def test_a_storm_of_409_costs_two_requests_a_try(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        witness = place["w1"]
        witness.script.extend(Answer(409, b"%d\n" % (at % 3)) for at in range(1_000))
        for _ in range(60):
            await place.grow()
            await place.play(seconds=1)
        tries = place.witnessing.figures("failures")["w1"]
        assert 5 <= tries <= 8 and len(witness.bodies) == 2 * tries
        assert not place.is_disputed()


@pytest.mark.parametrize("size", [0, 1, 3])
async def test_a_smaller_size_than_it_had_is_believed_for_it_can_only_cost_a_proof(tmp_path: Path, size: int) -> None:
    """A witness that was restored from an older copy accuses nobody, and its line is as good as before."""
    async with scene(tmp_path, ("w1",), 1) as place:
        await place.grow(4)
        await place.play()
        witness = place["w1"]
        witness.size, witness.root = size, load_edge(place.world.store.honest, size).root
        await place.grow()
        await place.play(seconds=2)
        assert place.size() == place.world.sequencer.confirmed.size


async def test_whom_somebody_else_feeds_with_our_newer_checkpoint_is_asked_about_the_newest_and_blamed_for_nothing(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        witness = place["w1"]
        await place.grow()
        for _ in range(5):
            event = place.web.held["w1"] = asyncio.Event()
            await place.play(seconds=1)  # it is asked about what is newest now
            await place.grow(2)
            confirmed = place.world.sequencer.confirmed
            witness.size, witness.root = confirmed.size, confirmed.root  # and is fed with more before it answers
            event.set()
            del place.web.held["w1"]
            await place.play()
        await place.play(seconds=4)
        assert place.size() == place.world.sequencer.confirmed.size
        assert place.witnessing.figures("failures") == {"w1": 0} and not place.is_disputed()


# -- a second history --------------------------------------------------------------------------------------------------


async def test_a_larger_checkpoint_of_our_own_key_at_a_witness_stops_all_grants(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path) as place:
        witness = place["w2"]
        note = place.foreign(500)
        witness.script.append(Answer(409, b"500\n"))
        witness.shows = Answer(200, note + witness.signed(parse_checkpoint(note).note.text))
        await place.grow()
        await place.play()
        await place.play(seconds=1)
        assert place.is_disputed()
        answer = await place.world.acquire("B", "repo:more")
        assert answer.status == 409 and b"ledger_disputed" in answer.leaf
        leaf = next(leaf for leaf in place.world.leaves() if leaf.type == "tallystick/ledger.disputed/1")
        assert leaf.text("checkpoint") == note.decode(), "what speaks against us is our own line, and nobody else's"
        assert place.witnessing.contradictions == 1
        assert "another history" in caplog.text


async def test_another_root_of_our_own_key_at_a_witness_stops_all_grants(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        witness = place["w1"]
        await place.grow(3)
        note = place.foreign(4)
        witness.script.append(Answer(422, b"no\n"))
        witness.shows = Answer(200, note + witness.signed(parse_checkpoint(note).note.text))
        await place.play()
        assert place.is_disputed()


@pytest.mark.parametrize(
    "shown", ["nothing", "no key of ours", "other origin", "our own of this history", "noise", "unreachable", "cut"]
)
async def test_what_our_own_key_did_not_sign_stops_nothing(tmp_path: Path, shown: str) -> None:
    async with scene(tmp_path, ("w1", "w2"), 1) as place:
        witness = place["w1"]
        await place.grow(3)
        note = place.world.sequencer.confirmed.note
        other = signer_of("log", "receipt", "gateway.example/other").sign_checkpoint(500, b"\x07" * 32)
        shows: dict[str, Answer | Exception] = {
            "nothing": Answer(404, b""),
            "no key of ours": Answer(200, place.foreign(500, log="thief")),
            "other origin": Answer(200, other),
            "our own of this history": Answer(200, note),
            "noise": Answer(200, b"\xff" * ANSWER_BYTES_MAX),
            "unreachable": Unanswered("down"),
            "cut": Answer(200, place.foreign(500)[:-3] + b"\n"),
        }
        witness.shows = shows[shown]
        witness.script.extend([Answer(409, b"500\n"), Answer(422, b"")])
        await place.play(seconds=5)
        assert not place.is_disputed() and place.witnessing.contradictions == 0
        assert place.level() == "witnessed 1/2", "and the others go on"


# -- what is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["memory", "sqlite"])
@pytest.mark.parametrize("is_crash", [False, True])
async def test_the_newest_note_is_there_again_after_a_stop_and_after_a_crash(
    tmp_path: Path, engine: Engine, is_crash: bool
) -> None:
    async with scene(tmp_path, engine=engine) as place:
        await place.grow(2)
        await place.play()
        newest = place.witnessing.newest
        assert newest is not None
        await place.world.settle()  # a sweep; in between a crash costs the note and nothing else
        await place.restart(is_crash=is_crash)
        assert place.witnessing.newest == newest
        types = place.world.types()
        await place.play()
        assert place.world.types().count("checkpoint.witnessed") <= types.count("checkpoint.witnessed") + 1


@pytest.mark.parametrize("fault", ["busy", "lost"])
async def test_a_note_that_could_not_be_kept_goes_along_with_the_next_batch(tmp_path: Path, fault: Fault) -> None:
    async with scene(tmp_path) as place:
        await place.grow()
        await place.play()
        newest = place.witnessing.newest
        place.world.store.plan.append(("keep", fault))
        await place.world.settle()
        await place.grow()
        await place.restart(is_crash=True)
        assert newest is not None and place.witnessing.newest == newest


async def test_a_kept_note_counts_for_the_witnesses_of_today_alone(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1", "w2"), 1) as place:
        await place.grow()
        await place.play()
        await place.world.settle()
        place.witnesses = [FakeWitness(name, lambda: place.world.clock.wall) for name in ("w8", "w9")]
        place.web, place.policy = FakeWeb(place.witnesses, ORIGIN), policy_of(place.witnesses, 2)
        await place.restart()
        assert place.witnessing.newest is None
        await place.play()
        assert place.level() == "witnessed 2/2"


@pytest.mark.parametrize("kept", [b"", b"nonsense", "another history", "too large"])
async def test_a_kept_note_that_is_not_of_this_ledger_is_left_aside(tmp_path: Path, kept: bytes | str) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        await place.grow(4)
        if isinstance(kept, str):
            note = place.foreign(5 if kept == "another history" else 500)
            kept = note + place["w1"].signed(parse_checkpoint(note).note.text)
        await place.witnessing.start(kept, {"w1": 1})
        assert place.witnessing.newest is None


# -- overdue -----------------------------------------------------------------------------------------------------------


async def test_entries_that_no_quorum_has_seen_for_too_long_are_an_alarm_and_its_end_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        await place.play(seconds=30)
        assert place.witnessing.lag_ms == 0
        place["w1"].script.extend(Unanswered("down") for _ in range(9))
        await place.grow()
        await place.play(seconds=OVERDUE_MS // 1_000)
        assert not place.is_overdue()
        await place.play(seconds=2)
        assert place.is_overdue() and place.witnessing.lag_entries == 1
        assert OVERDUE_MS < place.witnessing.lag_ms <= OVERDUE_MS + 3_000
        await place.play(seconds=30)
        place["w1"].script.clear()
        await place.play(seconds=2 * BACKOFF_MS_MAX // 1_000)
        assert not place.is_overdue() and place.witnessing.lag_ms <= ROUND_MS
        said = [row.getMessage() for row in caplog.records if "quorum" in row.getMessage()]
        assert len(said) == 2 and "no quorum" in said[0] and "overdue" in said[1]


async def test_a_busy_ledger_that_is_witnessed_all_the_time_is_never_overdue(tmp_path: Path) -> None:
    async with scene(tmp_path, ("w1",), 1) as place:
        for _ in range(2 * OVERDUE_MS // 1_000):
            await place.grow()
            await place.play(seconds=1)
            assert place.witnessing.lag_ms <= 3 * ROUND_MS
        assert not place.is_overdue()


async def test_running_it_asks_by_itself_and_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    async with scene(tmp_path) as place:
        await place.grow()
        place.web.held["w3"] = asyncio.Event()
        task = asyncio.create_task(place.witnessing.run())
        while not place.size():  # noqa: ASYNC110  # the first turn is at once
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and place.web.under_way == 0
