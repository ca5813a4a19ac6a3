"""The core against a naive model, over whatever histories Hypothesis thinks of; the invariants after every step."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.opening import start_steps
from gateway.core.outcome import Recorded, Replay, Unreceipted
from gateway.core.state import Principal
from tests.core.book import Book
from tests.core.model import Model, Reading, facts
from tests.core.requests import NOW_MS, Ask, acquire, did_of, release, renew

WHO = st.sampled_from("ABC")
NAMES = st.lists(st.sampled_from(["repo:a", "repo:b", "repo:c", "db:d"]), min_size=1, max_size=3, unique=True)
TTLS = st.sampled_from([1_000, 1_500, 5_000, 30_000, 200_000])
STEPS_MS = st.sampled_from([0, 0, 1, 400, 999, 1_000, 5_000, 29_999, 60_000])
Command = tuple[str, Any]


class Coordination(RuleBasedStateMachine):
    """One ledger, one model, one reader of leaves; time and commands are Hypothesis's."""

    @initialize()
    def open(self) -> None:
        self.book = Book(agents=("A", "B", "C"))
        self.t_ms = NOW_MS
        self.model = Model(len(self.book.leaves))
        self.reading = Reading()
        self.read_to = 0
        self.answered: list[tuple[Ask, Recorded]] = []

    def wanted(self, command: Command, created: int) -> dict[str, Any]:
        """Let the model decide one command."""
        kind, (name, *rest) = command
        who = did_of(name)
        if kind == "acquire":
            return self.model.acquire(who, rest[0], rest[1], self.t_ms)
        if kind == "renew":
            return self.model.renew(who, rest[0], rest[1], self.t_ms)
        return self.model.release(who, rest[0], rest[1], self.t_ms, created)

    def ask(self, command: Command, signed_ms: int) -> Ask:
        kind, (name, *rest) = command
        if kind == "acquire":
            return acquire(name, *rest[0], at_ms=signed_ms, ttlMs=rest[1])
        if kind == "renew":
            return renew(name, rest[0], at_ms=signed_ms, ttlMs=rest[1])
        more = {} if rest[1] is None else {"leaseId": rest[1]}
        return release(name, *rest[0], at_ms=signed_ms, **more)

    def play(self, *commands: Command, signed_ms: int | None = None) -> None:
        """Run the commands as one batch in both worlds and compare every entry."""
        asks = [self.ask(command, signed_ms or self.t_ms) for command in commands]
        first = len(self.book.leaves)
        batch = self.book.run(self.t_ms, *asks)
        wanted = self.model.sweep(self.t_ms)
        wanted += [self.wanted(command, ask.created) for command, ask in zip(commands, asks, strict=True)]
        seen = [facts(self.book.leaf(first + n), entry) for n, entry in enumerate(wanted)]
        assert seen == wanted
        assert len(self.book.leaves) == first + len(wanted) == self.model.seq
        for ask, answer in zip(asks, batch.answers, strict=True):
            assert isinstance(answer, Recorded)
            self.answered.append((ask, answer))

    def lease_ids(self) -> st.SearchStrategy[str]:
        return st.sampled_from(["L3", "L999", *(lease.lease_id for lease in self.model.leases)])

    def command(self, data: st.DataObject) -> Command:
        kind, name = (
            data.draw(st.sampled_from(["acquire", "acquire", "renew", "release", "release id"])),
            data.draw(WHO),
        )
        if kind == "acquire":
            return "acquire", (name, data.draw(NAMES), data.draw(TTLS))
        if kind == "renew":
            return "renew", (name, data.draw(self.lease_ids()), data.draw(TTLS))
        lease_id = data.draw(self.lease_ids()) if kind == "release id" else None
        own = [lease.names for lease in self.model.leases if lease.holder == did_of(name)]
        return "release", (name, data.draw(st.sampled_from(own) if own else NAMES), lease_id)

    @rule(data=st.data(), dt=STEPS_MS)
    def one(self, data: st.DataObject, dt: int) -> None:
        self.t_ms += dt
        self.play(self.command(data))

    @rule(data=st.data(), count=st.integers(2, 5))
    def several_in_one_batch(self, data: st.DataObject, count: int) -> None:
        self.play(*(self.command(data) for _ in range(count)))

    @rule(data=st.data(), age_ms=st.sampled_from([500, 1_000, 20_000]))
    def one_signed_a_while_ago(self, data: st.DataObject, age_ms: int) -> None:
        self.play(self.command(data), signed_ms=self.t_ms - age_ms)

    @rule(dt=STEPS_MS)
    def time_passes(self, dt: int) -> None:
        self.t_ms += dt
        self.play()

    @rule(away_ms=st.sampled_from([0, 1_000, 10_000, 120_000]), cause=st.sampled_from(["start", "recovery"]))
    def the_service_was_away(self, away_ms: int, cause: Any) -> None:
        assert self.book.head is not None
        before_ms = self.book.head.time_ms
        self.t_ms = max(self.t_ms, before_ms) + away_ms
        steps = start_steps(cause, is_clean=True, before_ms=before_ms)
        first = len(self.book.leaves)
        self.book.run(self.t_ms, steps=steps, epoch=self.book.head.epoch + 1)
        self.model.seq += 2
        self.model.holiday_ms = max(self.model.holiday_ms, self.t_ms + min(30_000, self.t_ms - before_ms))
        wanted = self.model.sweep(self.t_ms)
        assert [facts(self.book.leaf(first + 2 + n), entry) for n, entry in enumerate(wanted)] == wanted
        assert len(self.book.leaves) == self.model.seq

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def a_retry_changes_nothing(self, data: st.DataObject) -> None:
        ask, answer = data.draw(st.sampled_from(self.answered[-8:]))
        second = self.t_ms // 1_000
        retry = ask.but(created=second, expires=second + 60).again()
        assert self.unwritten(retry) == Replay(answer.seq, answer.status)

    @precondition(lambda self: self.answered)
    @rule(data=st.data())
    def other_work_under_a_used_key_is_refused(self, data: st.DataObject) -> None:
        ask, answer = data.draw(st.sampled_from(self.answered[-8:]))
        name = next(n for n in "ABC" if did_of(n) == ask.key.did)
        other = acquire(name, "repo:never", at_ms=self.t_ms).but(idempotency_key=ask.idempotency_key)
        refused = self.unwritten(other)
        assert isinstance(refused, Unreceipted)
        assert (refused.refusal.name, dict(refused.detail)) == ("idempotency_mismatch", {"seq": answer.seq})

    @precondition(lambda self: self.answered)
    @rule()
    def the_very_same_bytes_are_refused(self) -> None:
        ask, answer = self.answered[-1]
        refused = self.unwritten(ask)
        assert isinstance(refused, Unreceipted)
        assert refused.refusal.name in ("nonce_reused", "outside_window")
        if refused.refusal.name == "nonce_reused":
            assert dict(refused.detail) == {"seq": answer.seq}

    def unwritten(self, ask: Ask) -> Any:
        """Play a command that must not write, beside the expiries that are due anyway."""
        due = self.model.sweep(self.t_ms)
        answer = self.book.play(self.t_ms, ask)
        assert len(self.book.leaves) == self.model.seq
        assert self.book.types(self.model.seq - len(due)) == ["lease.expired"] * len(due)
        return answer

    @invariant()
    def the_leaves_alone_keep_the_invariants(self) -> None:
        if hasattr(self, "book"):
            for seq in range(self.read_to, len(self.book.leaves)):
                self.reading.read(self.book.leaf(seq))
            self.read_to = len(self.book.leaves)

    @invariant()
    def the_records_are_those_of_the_models_live_leases(self) -> None:
        if not hasattr(self, "book"):
            return
        live = {lease.lease_id: lease for lease in self.model.live()}
        assert {key: (x.holder, list(x.resources)) for key, x in self.book.leases().items()} == {
            key: (x.holder, x.names) for key, x in live.items()
        }
        held = {r.did: r.held for r in self.book.shelf.records.values() if isinstance(r, Principal) and r.held}
        names: dict[str, int] = {}
        for lease in live.values():
            names[lease.holder] = names.get(lease.holder, 0) + len(lease.names)
        assert held == names

    def teardown(self) -> None:
        if hasattr(self, "book"):
            self.book.audit()


Coordination.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCoordination = Coordination.TestCase


@pytest.mark.parametrize("seed", range(6))
def test_a_long_crowded_history_keeps_every_invariant(seed: int) -> None:
    """Hypothesis prefers short histories; these are long ones with many agents on few resources."""
    rng = random.Random(seed)
    book = Book(agents=("A", "B", "C", "D"))
    reading, t_ms, read_to = Reading(), NOW_MS, 0
    for _ in range(120):
        t_ms += rng.choice((0, 0, 10, 700, 3_000))
        asks = []
        for _ in range(rng.randint(1, 4)):
            who, names = rng.choice("ABCD"), rng.sample(["repo:a", "repo:b", "repo:c"], rng.randint(1, 2))
            live = list(book.leases()) or ["L4"]
            kind = rng.random()
            if kind < 0.6:
                asks.append(acquire(who, *names, at_ms=t_ms, ttlMs=rng.choice((1_000, 4_000))))
            elif kind < 0.8:
                asks.append(renew(who, rng.choice(live), at_ms=t_ms, ttlMs=2_000))
            else:
                asks.append(release(who, *names, at_ms=t_ms))
        book.run(t_ms, *asks)
    for seq in range(read_to, len(book.leaves)):
        reading.read(book.leaf(seq))
    book.audit()
    kinds = set(book.types())
    assert {"lease.granted", "lease.extended", "lease.refused", "lease.renewed", "lease.expired"} <= kinds
