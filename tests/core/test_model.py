"""The core against a naive model, over whatever histories Hypothesis thinks of; the invariants after every step.

Scenes of two classes, of folding, of sub-trees, of lock-delays; leases are renewed in other modes, handed over, broken.
Three agents act, and sessions of two of them.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.core.opening import start_steps
from gateway.core.outcome import Recorded, Replay, Unreceipted
from gateway.core.records import Delay, Handover, Principal
from tests.core.hall import Hall
from tests.core.model import HELD_MAX, IDLE_MS, Held, Model, Reading, Scheme, facts
from tests.core.requests import (
    NOW_MS,
    Ask,
    accept,
    acquire,
    break_,
    did_of,
    release,
    renew,
    set_scheme,
    transfer,
)
from tests.scale import drawn

AGENTS, SESSIONS = "ABC", {"s": "A", "t": "A", "u": "B"}
PEOPLE = "ABCstu"
BEHIND = {did_of(name): did_of(agent) for name, agent in SESSIONS.items()}
SCHEMES = {
    "doc": Scheme("read-safe", folds=True, unicode=True),
    "log": Scheme("append-only", delay_ms=3_000),
    "slow": Scheme(delay_ms=2_000),
}
WHO = st.sampled_from(PEOPLE)
POOL = [
    "repo:a", "repo:a/**", "repo:a/b", "repo:c", "repo:\u00e4", "doc:x", "doc:X", "doc:x/Y", "doc:X/**", "doc:**",
    "doc:\u00e9", "log:l", "log:l/m", "log:L", "slow:s", "slow:s/t", "slow:**",
]  # fmt: skip
NAMES = st.lists(st.sampled_from(POOL), min_size=1, max_size=3, unique=True)
MODES = st.sampled_from(["read", "append", "write", "write", "delete"])
TTLS = st.sampled_from([1_000, 1_500, 5_000, 30_000, 200_000])
STEPS_MS = st.sampled_from([0, 0, 1, 400, 999, 1_000, 5_000, 29_999, 60_000])
KINDS = [
    "acquire", "acquire", "acquire", "renew", "renew", "release", "release id", "transfer", "accept", "accept", "break",
]  # fmt: skip
Command = tuple[str, str, dict[str, Any]]  # kind, who, what the model is told


def opened_book() -> Hall:
    """Return a ledger with the schemes of this file set and its sessions open."""
    book = Hall(AGENTS, held_per_principal=HELD_MAX, session_idle_ms=IDLE_MS)
    for name, scheme in SCHEMES.items():
        more = {"isFolding": scheme.folds, "isUnicode": scheme.unicode, "lockDelayMs": scheme.delay_ms}
        book.play(NOW_MS - 1_000, set_scheme("op", name, scheme.kind, at_ms=NOW_MS - 1_000, **more))
    for name, agent in SESSIONS.items():
        book.open(name, agent, expiresAtMs=NOW_MS + IDLE_MS)
    return book


def ask_for(command: Command, signed_ms: int) -> Ask:
    """Return the request of a command."""
    kind, who, told = command
    match kind:
        case "acquire":
            return acquire(who, *told["names"], at_ms=signed_ms, ttlMs=told["ttl_ms"], mode=told["mode"])
        case "renew":
            mode = {} if told["mode"] is None else {"mode": told["mode"]}
            return renew(who, told["lease_id"], at_ms=signed_ms, ttlMs=told["ttl_ms"], **mode)
        case "release":
            more = {} if told["lease_id"] is None else {"leaseId": told["lease_id"]}
            return release(who, *told["names"], at_ms=signed_ms, **more)
        case "transfer":
            return transfer(who, told["lease_id"], told["token"], told["to"], at_ms=signed_ms)
        case "accept":
            return accept(who, told["lease_id"], at_ms=signed_ms, ttlMs=told["ttl_ms"])
    return break_(who, told["resource"], told["token"], at_ms=signed_ms)


def wanted_of(model: Model, command: Command, t_ms: int, created: int) -> dict[str, Any]:
    """Let the model decide one command."""
    kind, who, told = command
    if kind == "transfer":
        told = told | {"to": did_of(told["to"])}
    if kind == "release":
        told = told | {"created": created}
    decide = {
        "acquire": model.acquire, "renew": model.renew, "release": model.release, "transfer": model.transfer,
        "accept": model.accept, "break": model.break_,
    }[kind]  # fmt: skip
    entry: dict[str, Any] = decide(did_of(who), t_ms, **told)  # type: ignore[operator]  # each takes its own words
    return entry


class Coordination(RuleBasedStateMachine):
    """One ledger, one model, one reader of leaves; time and commands are Hypothesis's."""

    @initialize()
    def open(self) -> None:
        self.book = opened_book()
        self.t_ms = NOW_MS
        self.model = Model(len(self.book.leaves), SCHEMES, (did_of("op"),), behind=BEHIND)
        self.reading = Reading()
        self.read_to = 0
        self.answered: list[tuple[Ask, Recorded]] = []

    def play(self, *commands: Command, signed_ms: int | None = None) -> None:
        """Run the commands as one batch in both worlds and compare every entry."""
        asks = [ask_for(command, signed_ms or self.t_ms) for command in commands]
        first = len(self.book.leaves)
        batch = self.book.run(self.t_ms, *asks)
        wanted = self.model.sweep(self.t_ms)
        for command, ask in zip(commands, asks, strict=True):
            wanted.append(wanted_of(self.model, command, self.t_ms, ask.created))
        seen = [facts(self.book.leaf(first + n), entry) for n, entry in enumerate(wanted)]
        assert seen == wanted, [(a, b) for a, b in zip(seen, wanted, strict=True) if a != b]
        assert len(self.book.leaves) == first + len(wanted) == self.model.seq
        self.pass_on(first)
        for ask, answer in zip(asks, batch.answers, strict=True):
            assert isinstance(answer, Recorded)
            self.answered.append((ask, answer))

    def command(self, data: st.DataObject) -> Command:
        kind, who = data.draw(st.sampled_from(KINDS)), data.draw(WHO)
        leases = self.model.leases[-6:]
        lease_id = data.draw(st.sampled_from(["L3", "L999", *(lease.lease_id for lease in leases)]))
        token = data.draw(st.sampled_from([1, *(lease.token for lease in leases)]))
        own = [lease.names for lease in leases if lease.holder == did_of(who)]
        match kind:
            case "acquire":
                return kind, who, {"names": data.draw(NAMES), "ttl_ms": data.draw(TTLS), "mode": data.draw(MODES)}
            case "renew":
                mode = data.draw(st.none() | MODES)
                return kind, who, {"lease_id": lease_id, "ttl_ms": data.draw(TTLS), "mode": mode}
            case "transfer":
                by = data.draw(st.sampled_from([who, "op"]))
                if data.draw(st.booleans()):
                    token = next((x.token for x in leases if x.lease_id == lease_id), token)
                return kind, by, {"lease_id": lease_id, "token": token, "to": data.draw(WHO)}
            case "accept":
                offered = [(x.lease_id, x.offer[0]) for x in leases if x.offer]
                is_theirs: bool = data.draw(st.booleans())
                if offered and is_theirs:
                    lease_id, to = offered[-1]
                    who = next(name for name in PEOPLE if did_of(name) == to)
                return kind, who, {"lease_id": lease_id, "ttl_ms": data.draw(TTLS)}
            case "break":
                names = next((x.names for x in leases if x.token == token), POOL)
                by, resource = data.draw(st.sampled_from(["op", "op", who])), data.draw(st.sampled_from(names))
                return kind, by, {"resource": resource, "token": token}
        if by_id := kind == "release id":
            own += [x.names for x in leases if x.lease_id == lease_id]
        names = data.draw(st.sampled_from(own) if own else NAMES)
        return "release", who, {"names": names, "lease_id": lease_id if by_id else None}

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
        self.pass_on(first)

    def pass_on(self, first: int) -> None:
        if len(self.book.leaves) > first:
            self.model.pass_on(self.t_ms)

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
        other = remade(ask, self.t_ms)
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
        due, first = self.model.sweep(self.t_ms), len(self.book.leaves)
        answer = self.book.play(self.t_ms, ask)
        self.pass_on(first)
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
        assert {key: (x.holder, list(x.resources), x.mode) for key, x in self.book.leases().items()} == {
            key: (x.holder, x.names, x.mode) for key, x in live.items()
        }
        records = list(self.book.shelf.records.values())
        names = {did_of(who): self.model.held_names(did_of(who), 0) for who in AGENTS}
        for record in records:
            if isinstance(record, Principal):
                assert record.held == names.pop(record.did)
                assert (
                    record.trust == self.model.scores[record.did].trust if record.did in self.model.scores else 50_000
                )
        assert not any(names.values()), "whoever keeps anything is counted"
        offers = {x.lease_id: x.to_did for x in records if isinstance(x, Handover)}
        assert offers == {x.lease_id: x.offer[0] for x in live.values() if x.offer}
        kept_out = sorted(x.seq for x in records if isinstance(x, Delay))
        assert kept_out == [x.seq for x in self.model.closed]

    def teardown(self) -> None:
        if hasattr(self, "book"):
            assert self.book.audited() == []


Coordination.TestCase.settings = settings(
    max_examples=drawn(40, share=20), stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCoordination = Coordination.TestCase


def remade(ask: Ask, t_ms: int) -> Ask:
    """Return other work under the idempotency key of `ask`, by the same key."""
    name = next(n for n in (*PEOPLE, "op") if did_of(n) == ask.key.did)
    other = transfer(name, "L999", 77, "A", at_ms=t_ms)
    return other.but(idempotency_key=ask.idempotency_key)


@cache
def long_history(seed: int) -> tuple[frozenset[str], frozenset[Any]]:
    """Play a long history in both worlds; return the types of its entries and the errors it told."""
    dice = random.Random(seed)
    book, reading, t_ms = opened_book(), Reading(), NOW_MS
    model = Model(len(book.leaves), SCHEMES, (did_of("op"),), behind=BEHIND)
    for _ in range(150):
        t_ms += dice.choice((0, 0, 10, 700, 3_000))
        commands = [_thrown(dice, model) for _ in range(dice.randint(1, 4))]
        first = len(book.leaves)
        asks = [ask_for(command, t_ms) for command in commands]
        book.run(t_ms, *asks)
        wanted = model.sweep(t_ms)
        wanted += [wanted_of(model, one, t_ms, ask.created) for one, ask in zip(commands, asks, strict=True)]
        assert [facts(book.leaf(first + n), entry) for n, entry in enumerate(wanted)] == wanted
        model.pass_on(t_ms)
    for seq in range(len(book.leaves)):
        reading.read(book.leaf(seq))
    assert book.audited() == []
    errors = frozenset(book.leaf(seq).value.get("error") for seq in range(len(book.leaves)))
    return frozenset(book.types()), errors


@pytest.mark.parametrize("seed", range(6))
def test_a_long_crowded_history_keeps_every_invariant(seed: int) -> None:
    """Hypothesis prefers short histories; these are long ones with many agents on few resources."""
    assert {"lease.granted", "lease.refused", "lease.expired", "lease.broken"} <= long_history(seed)[0]


def test_the_long_histories_see_everything_that_can_happen_to_a_lease() -> None:
    types, errors = (frozenset[Any]().union(*kinds) for kinds in zip(*map(long_history, range(6)), strict=True))
    assert {
        "lease.granted", "lease.extended", "lease.refused", "lease.renewed", "lease.expired", "lease.changed",
        "lease.transferred", "lease.broken", "renewal.refused", "release.refused", "transfer.refused",
        "acceptance.refused", "break.refused",
    } <= types  # fmt: skip
    assert {
        "lease_held", "lock_delayed", "deadlock", "mode_not_allowed", "name_not_allowed", "token_stale", "not_offered",
        "operator_required", "too_many_held", "not_holder",
    } <= errors  # fmt: skip


def _thrown(dice: random.Random, model: Model) -> Command:
    who, kind = dice.choice(PEOPLE), dice.choice([*KINDS, "acquire", "acquire"])
    names, mode = dice.sample(POOL, dice.randint(1, 2)), dice.choice(["read", "append", "write", "delete"])
    live: list[Held | None] = [*model.live()[-5:]]
    lease = dice.choice(live or [None])
    lease_id, token = ("L4", 1) if lease is None else (lease.lease_id, lease.token)
    holder = who if lease is None else next(p for p in PEOPLE if did_of(p) == lease.holder)
    match kind:
        case "acquire" if lease is not None and dice.random() < 0.1:
            return kind, holder, {"names": lease.names, "ttl_ms": 4_000, "mode": lease.mode}
        case "acquire":
            return kind, who, {"names": names, "ttl_ms": dice.choice((1_000, 4_000, 9_000)), "mode": mode}
        case "renew":
            return kind, holder, {"lease_id": lease_id, "ttl_ms": 2_000, "mode": dice.choice((None, mode))}
        case "transfer":
            return kind, dice.choice((holder, "op")), {"lease_id": lease_id, "token": token, "to": who}
        case "accept":
            to = lease.offer[0] if lease is not None and lease.offer else did_of(who)
            return kind, next(p for p in PEOPLE if did_of(p) == to), {"lease_id": lease_id, "ttl_ms": 3_000}
        case "break":
            by, resource = dice.choice(("op", who)), dice.choice(names if lease is None else lease.names)
            return kind, by, {"resource": resource, "token": dice.choice((token, 1))}
    mine = names if lease is None else lease.names
    return "release", holder, {"names": mine, "lease_id": lease_id if kind == "release id" else None}
