"""Every safeguard is switched off once, and then the simulator must notice: a check that never fails proves nothing.

Only the tests can switch a safeguard off, by putting something else in its place. Each row says why the safeguard is
there, and which invariant is lost without it. The same worlds, with it, hold.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from gateway import signer
from gateway.clock import LogClock
from gateway.core import (
    admission,
    agent,
    apikey,
    append,
    approval,
    asking,
    authority,
    breaking,
    decide,
    denial,
    expiry,
    handover,
    holding,
    key,
    lease,
    lookup,
    operator,
    record_keys,
    records,
    refusal,
    resource,
    rules,
    scheme,
    session,
    settle,
    terms,
    trust,
    usage,
    wait,
    windup,
)
from gateway.core.append import Command
from gateway.core.deadlock import NO_CYCLE, Search, find_cycle
from gateway.core.draft import Draft
from gateway.core.holding import Found, find_lease
from gateway.core.outcome import Context, Decision, Ruling
from gateway.core.parameters import Parameters
from gateway.ledger import batches, cosigned, history, turn, witness_ask
from gateway.ledger.checkpoint import sign_batch
from gateway.ledger.parking import Parking
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.witness import Witnessing
from gateway.signer import Signer
from gateway.store.contract import StoredBatch
from gateway.web.limits import Buckets
from tests.sim import node
from tests.sim.config import AGENTS, LOCKS, Config
from tests.sim.engine import Connection
from tests.sim.guard import Guard
from tests.sim.simulation import run
from verifier.keyring import covers

SEEDS = range(40)  # at most; the first that notices ends the search

Patch = pytest.MonkeyPatch
Change = Callable[[Config], Config]


@dataclass(frozen=True)
class Ablation:
    """`switch` takes the safeguard `name` away; then some world of `change` loses one of the invariants `lost`."""

    name: str
    why: str
    lost: tuple[str, ...]
    switch: Callable[[Patch], None]
    change: Change

    def __str__(self) -> str:
        return self.name


# -- worlds ------------------------------------------------------------------------------------------------------------


def world(
    *,
    faults: dict[str, float] | None = None,
    parameters: dict[str, int] | None = None,
    names: Sequence[str] = ("lock:a", "lock:b"),
    schemes: Sequence[dict[str, Any]] = (),
    wait: float = 0.0,
    **changes: Any,
) -> Change:
    """Return what makes of any seed a small crowded world with just these faults."""

    def change(config: Config) -> Config:
        numbers = replace(PLAIN, **(parameters or {}))
        return config.but(
            parameters=numbers, faults=faults or {}, names=tuple(names), schemes=tuple(schemes), wait_share=wait,
            is_real=False, is_replicated=False, is_past_desk=True, is_rated=False, offsets_ms=(0, 0), think_ms=100,
            set_max=1, ttl_ms=(1_000, 3_000), nest_share=0.0, give_up_ms=20_000, modes=("write",), batch_max=256,
            agents=("ann", "bob", "cyd", "dee"), duration_ms=30_000, requests_max=150, operators=("op",),
            session_share=0.0, scope_share=0.0, batch_share=0.0, admit_share=0.0, is_policed=False, commands_max=6,
            trial_names=0, is_custodial=False,
            lives_ms=(600_000,), due_max=256, is_rotating=False, promised=(), witnesses=0, liars=0,
            witness_offsets_ms=(0, 0, 0), witness_entry_ms=1_000, nodes=1, follow_ms=500, journal_max=1_024,
        ).but(**changes)  # fmt: skip

    return change


PLAIN = Parameters(
    sweep_ms=1_000, holiday_ms=5_000, poll_ms=4_000, claim_ms=3_000, wait_max_ms=40_000, session_idle_ms=2_000,
    trial_decisions=8,
)  # fmt: skip
LINES = world(wait=0.7, faults={"forget": 0.1, "cancel": 0.05})
RINGS = world(
    wait=1.0, nest_share=0.9, names=LOCKS[:3], set_max=2, ttl_ms=(5_000, 20_000), agents=AGENTS[:5],
    parameters={"poll_ms": 20_000},
)  # fmt: skip
THREE = ("lock:a", "lock:b", "lock:c")
COMPANY = partial(world, agents=("ann", "bob", "cyd"), operators=("op", "ola"), session_share=0.4)
MANY = partial(world, batch_share=0.6, agents=("ann", "bob", "cyd"))
KEYS = partial(world, agents=("ann", "bob"), operators=("op", "ola"), is_rotating=True, think_ms=300)
ROTATING = KEYS(faults={"rotate": 0.9})
ODD_KEYS = KEYS(faults={"odd_key": 0.9}, promised=("log", "receipt"), duration_ms=60_000)
WATCHED = partial(world, agents=("ann", "bob"), witnesses=3, think_ms=300)
READERS = [{"name": "lock", "class": "read-safe"}]
FINAL = [{"name": "lock", "class": "irreversible"}]
ADMITTING = partial(
    world, agents=("ann", "bob", "cyd"), operators=("op", "ola", "pia"), admit_share=0.9, think_ms=50,
    modes=("read", "write"), ttl_ms=(2_000, 8_000), duration_ms=60_000, requests_max=300,
)  # fmt: skip
POLICED = partial(ADMITTING, is_policed=True)
APPROVED = ADMITTING(schemes=FINAL)
PLEADING = ADMITTING(schemes=FINAL, plead_share=0.5, wait=0.7, nest_share=0.5, duration_ms=90_000, requests_max=500)


class AnyToken(int):
    """A token that equals all others."""

    def __gt__(self, _: object) -> bool:
        return False

    __lt__ = __gt__


def any_token(draft: Draft, lease_id: str, t_ms: int) -> Found:
    """Take whatever token is shown for the lease's."""
    found = find_lease(draft, lease_id, t_ms)
    return found if found.lease is None else found._replace(lease=found.lease._replace(fencing_token=AnyToken(1)))


def denied_uses_up(draft: Draft, request: Any) -> None:
    key = record_keys.usage_key("operator", request.on_behalf_of)
    before = lookup.usage_at(draft, "operator", request.on_behalf_of)
    draft.put(key, before._replace(day_count=before.day_count + 1, denied=before.denied + 1))


def one_too_many(view: Any, of: Any, name: str, t_ms: int) -> records.Usage:
    found = usage.used(view, of, name, t_ms)
    return found._replace(day_count=found.day_count + 1)


DENIAL = rules._denial


def error_allows(ruling: Ruling) -> Any:
    return None if ruling.decision == "error" else DENIAL(ruling)


# -- switches ----------------------------------------------------------------------------------------------------------


def everywhere(patch: Patch, package: str, name: str, value: object) -> None:
    """Put `value` in the place of `name` in every module of a package that has it."""
    for path, module in sorted(sys.modules.items()):
        if path.startswith(package) and hasattr(module, name):
            patch.setattr(module, name, value)


def never(*_: object, **__: object) -> bool:
    return False


def nothing(*_: object, **__: object) -> None:
    return None


def nobody(*_: object, **__: object) -> tuple[()]:
    return ()


def guard_without_fence(patch: Patch) -> None:
    patch.setattr(Guard, "_enter", lambda self, lease, name: True)


def no_expiry(patch: Patch) -> None:
    patch.setattr(append, "touched_claims", nobody)
    patch.setattr(append, "due_claims", nobody)


def no_line(patch: Patch) -> None:
    real = settle.Line.standing
    patch.setattr(settle.Line, "standing", lambda self, ask, n: real(self, ask, n) if n is None else iter(()))


def no_holiday(patch: Patch) -> None:
    def counter_at(view: Any, key: str) -> int:
        return 0 if key == record_keys.HOLIDAY_KEY else lookup.counter_at(view, key)

    everywhere(patch, "gateway.core.expiry", "counter_at", counter_at)
    everywhere(patch, "gateway.core.resource", "counter_at", counter_at)


def tickets_for_ever(patch: Patch) -> None:
    def lapse(draft: Draft, claim: records.Claim, context: Any) -> Decision | None:
        return None if isinstance(claim, records.Ticket) else expiry.lapse(draft, claim, context)

    patch.setattr(append, "lapse", lapse)


def every_anchor(patch: Patch) -> None:
    patch.setattr(turn, "Command", lambda request, decide, known: Command(request, decide, True))


def answer_first(patch: Patch) -> None:
    async def commit(self: Sequencer, book: history.Book, stored: StoredBatch) -> None:
        done = self._thread.call(partial(self._store.commit, stored, book.head))
        done.add_done_callback(lambda done: done.exception())

    patch.setattr(Sequencer, "_commit", commit)


def sign_first(patch: Patch) -> None:
    real = Sequencer._commit

    async def commit(self: Sequencer, book: history.Book, stored: StoredBatch) -> None:
        sign_batch(self._signer, stored.head.size, stored.head.root, stored.leaves)
        await real(self, book, stored)

    patch.setattr(Sequencer, "_commit", commit)


def slow_sweeper(patch: Patch) -> None:
    async def sweep(self: Sequencer) -> None:
        while True:
            await asyncio.sleep(15 * self._rules.parameters.sweep_ms / 1_000)
            self.tick()

    patch.setattr(Sequencer, "_sweep", sweep)


async def landed(self: Sequencer, batch_id: str) -> bool:
    return True


def no_lock_delay(patch: Patch) -> None:
    real = resource.way_of
    everywhere(patch, "gateway.core", "way_of", lambda *args: real(*args)._replace(delays=[]))


def no_trust_cap(patch: Patch) -> None:
    def gain(draft: Any, did: str, held_ms: int, context: Any) -> Any:
        numbers = replace(context.parameters, trust_gain_max=1 << 40)
        return trust.gain(draft, did, held_ms, context._replace(parameters=numbers))

    patch.setattr(lease, "gain", gain)


resume = settle._resume


def resume_anew(draft: Draft, ticket: records.Ticket) -> Decision:
    decision = resume(draft, ticket)
    draft.put(record_keys.ticket_key(ticket.ticket_id), ticket._replace(reserve_until_ms=None))
    return decision


def reservations_end_early(patch: Patch) -> None:
    due_at_ms = records.Ticket.due_at_ms.fget  # type: ignore[attr-defined]

    def earlier(ticket: records.Ticket) -> int:
        until_ms = ticket.reserve_until_ms
        at_ms: int = due_at_ms(ticket._replace(reserve_until_ms=until_ms and until_ms - 500))
        return at_ms

    patch.setattr(records.Ticket, "due_at_ms", property(earlier))


def exact_names(patch: Patch) -> None:
    everywhere(patch, "gateway.core", "met_by", lambda name: terms.filed_under(name)[:1])


def token_of_time(patch: Patch) -> None:
    patch.setattr(holding, "counter_at", lambda view, key: 0)


def no_search(patch: Patch) -> None:
    for module in (denial, wait):
        patch.setattr(module, "find_cycle", lambda *args, **how: Search([], False))


def no_soft_search(patch: Patch) -> None:
    patch.setattr(wait, "find_cycle", lambda *args, **how: find_cycle(*args, **{**how, "soft": False}))


def edges_for_ever(patch: Patch) -> None:
    everywhere(
        patch, "gateway.core.deadlock", "edge_at", lambda view, actor, t_ms: view.get(record_keys.edge_key(actor))
    )


def no_sessions_of_the_removed(patch: Patch) -> None:
    for module in (agent, operator):
        patch.setattr(module, "open_sessions", nobody)


def agents_are_remembered_only(patch: Patch) -> None:
    real = session._is_well_remembered
    patch.setattr(session, "_is_well_remembered", lambda draft, who, *now: bool(who.agent) and real(draft, who, *now))


def sessions_due(at_ms: Callable[[records.Session], int]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(records.Session, "due_at_ms", property(at_ms))


def forgiving(module: object, name: str, *rows: refusal.Refusal) -> Callable[[Patch], None]:
    """Return the switch that lets a check overlook these rows."""
    real = getattr(module, name)

    def check(*args: Any) -> Any:
        why = real(*args)
        return None if why in rows else why

    return lambda patch: patch.setattr(module, name, check)


def settle_inside(patch: Patch) -> None:
    def follow(self: Any, decision: Decision | None) -> None:
        if decision is not None:
            header_seq = self.tail.seq
            self.write(decision)
            for index, part in enumerate(decision.parts):
                for consequence in settle.settle(self.draft, self.context):
                    self.write(consequence)
                self.write(part, {"batch": header_seq, "index": index})
        for consequence in (*windup.wind_up(self.draft, self.context), *settle.settle(self.draft, self.context)):
            self.write(consequence)

    patch.setattr(append._Page, "follow", follow)


def offers_before_returns(patch: Patch) -> None:
    """Look at those in line in the middle of what is given back."""
    real = windup._return

    def wind_up(draft: Draft, context: Callable[[], Context]) -> Any:
        for decision in windup.wind_up(draft, context):
            yield decision
            yield from settle.settle(draft, context)

    patch.setattr(windup, "_return", real)
    patch.setattr(append, "wind_up", wind_up)


def touched_names_only(patch: Patch) -> None:
    real = expiry.touched_claims

    def touched(*args: Any) -> Any:
        return tuple(one for one in real(*args) if not isinstance(one, records.Session))

    patch.setattr(append, "touched_claims", touched)


def one_set_of_keys(patch: Patch) -> None:
    """Let the idempotency keys of everybody be one set."""
    real = record_keys.idempotency_key
    everywhere(patch, "gateway", "idempotency_key", lambda actor, key: real("", key))


def is_operator_or_session(view: Any, did: str) -> bool:
    return authority.is_operator(view, did) or lookup.session_at(view, did) is not None


def one_key_many_roles(patch: Patch) -> None:
    for name in ("is_agent", "is_spoken_for"):
        patch.setattr(operator, name, never)


def lenient(args: Any) -> Any:
    """Forget whom a trial key enrolled."""
    key = apikey.enrolling_key(*args)
    return None if key is None else key._replace(used_by=None)


def authority_without_custody(*args: Any, **more: Any) -> authority.Who:
    return WHO(*args, **more)._replace(is_custodial=False)


WHO = authority.Who


def off(target: object, name: str, value: object) -> Callable[[Patch], None]:
    """Return the switch that puts `value` in the place of one function."""
    return lambda patch: patch.setattr(target, name, value)


def one_promise_kept(patch: Patch) -> None:
    """Forget what was committed to."""
    patch.setattr(key, "keys_at", lambda draft, purpose: lookup.keys_at(draft, purpose)._replace(next_hash=None))


def newest_signs(self: Signer, seq: int) -> Any:
    return [line.key for line in self._receipts if covers(line, seq)][-1]


LOG_KEYS = Signer.log_keys


def one_more(record: records.LedgerKey) -> Any:
    """Let a key sign one entry, and one size, more than it may."""
    ended_seq = record.ended_seq
    return key.line_of(record._replace(ended_seq=ended_seq and ended_seq + 1))


def seal_of_the_newest(self: Signer) -> bytes:
    return list(self._private.values())[-1].sign(b"seal" * 8)


def is_entry_due(self: Witnessing) -> bool:
    """Enter whatever is new, also what covers entries of its own kind alone."""
    is_time = self._entered_ms is None or self._clock.boottime_ms() - self._entered_ms >= self._pace.entry_ms
    return self.newest is not None and not self._is_entering and is_time


def every_clock(patch: Patch) -> None:
    patch.setattr(witness_ask, "EARLY_MS_MAX", 1 << 40)
    patch.setattr(witness_ask, "LATE_MS_MAX", 1 << 40)


RESERVING = world(
    wait=0.8, names=THREE, set_max=2, ttl_ms=(5_000, 10_000),
    parameters={"passes_max": 1, "claim_ms": 500, "poll_ms": 20_000},
)  # fmt: skip
ABLATIONS = (
    Ablation(
        "fencing", "a paused holder wakes up after another was served, and writes",
        ("I3",), guard_without_fence, world(faults={"pause": 0.5}),
    ),
    Ablation(
        "expiry", "a lease whose time is over would stop others, or come back to life",
        ("I7",), no_expiry, world(faults={"forget": 0.5}),
    ),
    Ablation(
        "sweeper", "what runs out while nobody asks would stay for long",
        ("I7", "I14"), slow_sweeper, world(faults={"forget": 0.8}, think_ms=6_000, agents=("ann", "bob")),
    ),
    Ablation(
        "rates", "one agent would keep the gateway from all others",
        ("I16",), off(Buckets, "take", nothing),
        world(is_rated=True, is_past_desk=False, think_ms=20, parameters={"rate_per_second": 1, "rate_burst": 3}),
    ),
    Ablation(
        "idempotency", "a retry after a lost answer would be a second decision",
        ("I5",), off(decide, "idempotency_at", nothing), world(faults={"drop_reply": 0.3}),
    ),
    Ablation(
        "nonce", "when a key is forgotten, whoever recorded the bytes could have them decided again",
        ("I5",), off(decide, "nonce_at", nothing),
        world(faults={"replay": 0.5, "late": 0.3}, parameters={"idempotency_ms": 200}),
    ),
    Ablation(
        "first come", "who waits longest would be passed for ever",
        ("I9",), no_line, LINES,
    ),
    Ablation(
        "no passing", "a plain request would take what somebody waits for",
        ("I9",), off(lease, "standing", nobody), LINES,
    ),
    Ablation(
        "claim window", "a ticket would be granted what another holds, or before its turn",
        ("I1", "I8"), off(wait, "_is_claimable", lambda *_: True), LINES,
    ),
    Ablation(
        "ticket deadlines", "a dead waiter would stop everybody behind it",
        ("I8", "I14"), tickets_for_ever, LINES,
    ),
    Ablation(
        "edge expiry", "who stopped asking would make others' waits look like a deadlock",
        ("I11",), edges_for_ever,
        world(nest_share=0.8, faults={"ignore_retry": 0.5}, parameters={"wait_edge_ms": 100}, names=THREE),
    ),
    Ablation(
        "deadlock search", "two who wait for each other would wait until something runs out",
        ("I11",), no_search, world(nest_share=0.9, wait=0.5, names=THREE),
    ),
    Ablation(
        "soft search", "who joins behind somebody that waits for it would not hear of it",
        ("I11",), no_soft_search, RINGS,
    ),
    Ablation(
        "offer test", "a grant would put two into a deadlock who stand in line without one",
        ("I11",), off(settle, "closes_cycle", never), RINGS,
    ),
    Ablation(
        "holiday", "a restart would end every lease that ran out while nobody could renew",
        ("I7", "I8"), no_holiday, world(faults={"kill": 0.8, "forget": 0.3}, ttl_ms=(1_000, 10_000)),
    ),
    Ablation(
        "anchor", "a request signed for another history would be decided in this one",
        ("anchor",), every_anchor, world(faults={"foreign_anchor": 0.3}),
    ),
    Ablation(
        "clock clamp", "whoever sets the wall clock would end everybody's lease at once",
        ("I7",), off(LogClock, "_clamped_ms", lambda self: self._clock.now_ms()),
        world(faults={"step_wall": 0.9}, ttl_ms=(5_000, 20_000)),
    ),
    Ablation(
        "high-water mark", "an older file in the ledger's place would be gone on from, and answers would be lost",
        ("I4",), off(history, "_check_not_behind", nothing), world(faults={"older_file": 0.3}),
    ),
    Ablation(
        "commit before answer", "an answer would leave that a crash can undo",
        ("I4",), answer_first, world(faults={"slow": 0.3}),
    ),
    Ablation(
        "sign after commit", "a signature would be made for what may never have happened",
        ("I4",), sign_first, world(faults={"lost": 0.1, "busy": 0.1}),
    ),
    Ablation(
        "unclear commits", "an answer would leave for a batch that was lost",
        ("I4",), off(Sequencer, "_landed", landed), world(faults={"lost": 0.2}),
    ),
    Ablation(
        "entries only", "a record that changes without an entry would break the seal: the ledger could not be opened",
        ("I14",), off(batches, "COLD_PREFIXES", ("",)),
        world(
            faults={"forget": 0.7, "kill": 0.7}, parameters={"lock_delay_ms": 700, "sweep_ms": 300},
            agents=("ann", "bob"), think_ms=4_000, ttl_ms=(1_000, 1_500),
        ),
    ),
    Ablation(
        "compare-and-set", "two gateways on one store would write one number twice",
        ("I4", "I12", "I13", "I6"), off(Connection, "_expect", nothing),
        world(nodes=2),
    ),
    Ablation(
        "passes", "who waits for several names would be passed for ever",
        ("I9", "I13"), off(settle, "_pass", lambda *_: []),
        world(wait=0.8, names=THREE, set_max=2, parameters={"passes_max": 1}),
    ),
    Ablation(
        "one reservation", "who waits for several names would keep what is free of them again and again",
        ("I9", "I13"), off(settle, "_resume", resume_anew), RESERVING,
    ),
    Ablation(
        "end of a reservation", "who keeps a name in vain would keep it from all others for as long as it waits",
        ("I14",), off(records.Ticket, "due_at_ms", property(lambda ticket: ticket.deadline_ms)), RESERVING,
    ),
    Ablation(
        "time of a reservation", "it would end before the holder whom it waits for could be done",
        ("I9", "I13"), reservations_end_early, RESERVING,
    ),
    Ablation(
        "wake-up", "a claim that is parked would sleep through its turn",
        ("I14",), off(Parking, "tell", nothing),
        world(wait=0.9, parameters={"poll_ms": 30_000}, is_past_desk=False, requests_max=120),
    ),
    Ablation(
        "lock-delay", "after a bad end others would come in before the old holder has noticed",
        ("delay",), no_lock_delay, world(faults={"forget": 0.4, "break": 0.5}, parameters={"lock_delay_ms": 4_000}),
    ),
    Ablation(
        "hold until", "a holder that renews for ever would starve who waits",
        ("hold",), off(lease, "_is_hold_exceeded", never),
        world(wait=0.6, parameters={"max_hold_ms": 1_000}, ttl_ms=(2_000, 6_000), names=("lock:a",)),
    ),
    Ablation(
        "trust cap", "empty pairs of acquire and release would buy back a lease that was left to run out",
        ("trust",), no_trust_cap, world(parameters={"trust_gain_hold_ms": 0}, agents=("ann", "bob")),
    ),
    Ablation(
        "sub-trees", "a lease on a folder would not keep others from its files",
        ("I1",), exact_names, world(names=("repo:src/**", "repo:src/x", "repo:src/y/z", "repo:**")),
    ),
    Ablation(
        "token formula", "two grants of one millisecond would have one token, and the guard could not tell them apart",
        ("I2",), token_of_time, world(names=(*THREE, "lock:d"), think_ms=2),
    ),
    Ablation(
        "operator's share", "one operator's agents would fill every queue",
        ("I16",), off(wait, "operator_share", lambda view, total: total),
        world(
            wait=1.0, parameters={"queue_total": 8}, names=(*THREE, "lock:d"), faults={"forget": 0.9},
            operators=("op", "ola", "pia", "quy"),
        ),
    ),
    Ablation(
        "one ticket a name", "one agent would stand in a line many times",
        ("I16",), off(wait, "_double", nothing), world(wait=1.0, names=("lock:a",), faults={"forget": 0.7}),
    ),
    Ablation(
        "queue bounds", "a queue would grow without end",
        ("I16",), off(wait, "_is_full", never),
        world(wait=1.0, names=("lock:a",), parameters={"queue_per_resource": 1}, faults={"forget": 0.7}),
    ),
    Ablation(
        "names held", "one agent would take everything",
        ("I16",), lambda patch: everywhere(patch, "gateway.core", "is_too_many", never),
        world(parameters={"held_per_principal": 2}, names=THREE, set_max=3),
    ),
    Ablation(
        "sharing", "a writer would be let in beside a reader",
        ("I1",), off(resource, "_sharing", lambda *_: frozenset(("read",))),
        world(modes=("read", "write"), schemes=READERS),
    ),
    Ablation(
        "busy schemes", "what may share would change under those who share it",
        ("scheme",), off(scheme, "is_any_live", never),
        world(modes=("read", "write"), schemes=READERS, faults={"set_scheme": 0.9}),
    ),
    Ablation(
        "operators", "anybody could take a lease from its holder",
        ("I15",), off(breaking, "is_operator", lambda *_: True), world(faults={"stray": 0.6}),
    ),
    Ablation(
        "transfers behind the line", "a friend would be let in before who waits",
        ("I9",), off(handover, "_is_behind", lambda *_: True), world(wait=0.5, faults={"transfer": 0.6, "forget": 0.2}),
    ),
    Ablation(
        "tickets of the gone", "who will never claim would stop everybody behind it",
        ("once",), off(windup, "_leave", nobody), COMPANY(wait=0.8, faults={"remove": 0.8, "close": 0.6}),
    ),
    Ablation(
        "leases of the gone", "what a dead process holds would stay closed to all others",
        ("once",), off(windup, "_oldest_first", lambda *_: []), COMPANY(faults={"remove": 0.5, "close": 0.6}),
    ),
    Ablation(
        "sessions of the removed", "a key would go on in the name of an agent that was stopped",
        ("once",), no_sessions_of_the_removed, COMPANY(faults={"remove": 0.8, "dismiss": 0.8}),
    ),
    Ablation(
        "order of giving back", "offers would be made while half of what is free is still held",
        ("once",), offers_before_returns,
        COMPANY(wait=0.8, set_max=2, names=THREE, faults={"remove": 0.8, "close": 0.6}),
    ),
    Ablation(
        "idle sessions", "a process that died would hold what it has until its delegation ends",
        ("idle",), sessions_due(lambda one: one.expires_at_ms), COMPANY(faults={"silent": 0.9}),
    ),
    Ablation(
        "holiday of sessions", "a restart would end every session that could not say that it is alive",
        ("idle", "I7", "I8"), no_holiday, COMPANY(faults={"kill": 0.9, "silent": 0.5}, ttl_ms=(10_000, 20_000)),
    ),
    Ablation(
        "keys of each actor", "two sessions that number their requests alike would get each other's answers",
        ("stranger", "I5"), one_set_of_keys, COMPANY(session_share=0.8),
    ),
    Ablation(
        "time of idle sessions", "a process that is a little late would lose what it holds",
        ("idle",), sessions_due(lambda one: min(one.idle_by_ms, one.expires_at_ms) - 500),
        COMPANY(faults={"silent": 0.5}),
    ),
    Ablation(
        "signs of life", "who works all the time would count as dead",
        ("idle",), off(decide, "_heard", lambda session, *_: session), COMPANY(),
    ),
    Ablation(
        "ends of sessions", "a key would work for longer than it was lent",
        ("authority",), forgiving(authority, "session_fault", refusal.SESSION_EXPIRED),
        COMPANY(faults={"kill": 0.9, "let_run": 0.9}, lives_ms=(3_000, 5_000), think_ms=50),
    ),
    Ablation(
        "ended sessions", "a process that was closed would go on",
        ("authority",), forgiving(authority, "session_fault", refusal.SESSION_ENDED),
        COMPANY(faults={"close": 0.9, "let_run": 0.9}),
    ),
    Ablation(
        "removed agents", "an agent that was stopped would go on",
        ("authority",), forgiving(authority, "agent_fault", refusal.AGENT_REMOVED), COMPANY(faults={"remove": 0.9}),
    ),
    Ablation(
        "removed operators", "agents whose operator was stopped would go on",
        ("authority",), forgiving(authority, "agent_fault", refusal.OPERATOR_REMOVED), COMPANY(faults={"dismiss": 0.9}),
    ),
    Ablation(
        "last operator", "a ledger would be without anybody who can change it",
        ("role",), off(operator, "operator_count", lambda view: 2), COMPANY(faults={"dismiss": 0.9}, operators=("op",)),
    ),
    Ablation(
        "scope", "a key would take what it was not lent",
        ("authority",), lambda patch: everywhere(patch, "gateway.core", "is_outside_scope", never),
        COMPANY(scope_share=1.0, names=THREE),
    ),
    Ablation(
        "wider delegations", "who may do little would let others do more",
        ("authority",), off(session, "_is_wider", never), COMPANY(scope_share=1.0, faults={"odd_chain": 0.9}),
    ),
    Ablation(
        "longer delegations", "who is let for an hour would let others for a week",
        ("authority",), off(session, "_is_longer", never), COMPANY(faults={"odd_chain": 0.9}),
    ),
    Ablation(
        "deep delegations", "a key would be passed on from process to process",
        ("authority",), off(session, "_is_too_deep", never), COMPANY(faults={"odd_chain": 0.9}),
    ),
    Ablation(
        "issuers in force", "a removed agent would let new processes act for it",
        ("authority",), off(session, "_is_in_force", lambda *_: True),
        COMPANY(faults={"remove": 0.9, "dismiss": 0.9}, session_share=0.8),
    ),
    Ablation(
        "sessions per principal", "one agent would have any number of processes",
        ("authority",), off(session, "_is_too_many", never), COMPANY(parameters={"sessions_per_principal": 1}),
    ),
    Ablation(
        "remembered sessions", "who opens and closes in turn would fill the memory",
        ("authority",), off(session, "_is_well_remembered", never),
        COMPANY(parameters={"sessions_per_principal": 1}, agents=("ann",), session_share=0.8),
    ),
    Ablation(
        "remembered sessions of operators", "an operator's own would have no bound at all",
        ("authority",), agents_are_remembered_only,
        COMPANY(
            parameters={"sessions_per_principal": 1}, agents=("ann",), operators=("op",), session_share=0.6,
            think_ms=2_000, duration_ms=240_000, requests_max=900,
        ),
    ),
    Ablation(
        "who closes", "anybody could end another's session",
        ("authority",), off(session, "is_operator", is_operator_or_session), COMPANY(faults={"meddle": 0.8}),
    ),
    Ablation(
        "trust of the silent", "an agent whose processes are left to die would lose nothing by it",
        ("trust",), off(windup, "lose", lambda *_: {}), COMPANY(faults={"silent": 0.9}, ttl_ms=(10_000, 20_000)),
    ),
    Ablation(
        "touched sessions", "a decision would meet a lease of a process that is dead",
        ("idle",), touched_names_only, COMPANY(faults={"silent": 0.9}, due_max=1, think_ms=50, ttl_ms=(5_000, 10_000)),
    ),
    Ablation(
        "one role", "a key would be operator and agent, and answer for itself",
        ("role",), one_key_many_roles, COMPANY(faults={"dismiss": 0.9}, agents=("ann",)),
    ),
    Ablation(
        "trial of one", "one trial key would let in a crowd",
        ("role",), off(agent, "enrolling_key", lambda *args: lenient(args)),
        COMPANY(trial_names=2, faults={"api_keys": 0.9}),
    ),
    Ablation(
        "decisions of a trial", "who tries for free would never stop",
        ("trial",), off(decide, "quota_at", lambda view, did: records.Quota(did, 0)), COMPANY(trial_names=2),
    ),
    Ablation(
        "mark of custody", "nobody would see that the gateway holds the key",
        ("who",), off(authority, "Who", lambda *args, **more: authority_without_custody(*args, **more)),
        COMPANY(is_custodial=True),
    ),
    Ablation(
        "all or nothing", "half of a batch would be in force that was refused",
        ("I1", "I10", "I13", "I14", "batch"), off(Draft, "rollback", nothing), MANY(names=THREE, think_ms=50),
    ),
    Ablation(
        "atomic batches", "a batch would be half done that was to be all or nothing",
        ("batch",), lambda patch: patch.setattr(Decision, "is_refusal", property(never)), MANY(),
    ),
    Ablation(
        "nothing inside a batch", "who waits would be offered what the next command takes back",
        ("batch",), settle_inside, MANY(wait=0.8),
    ),
    Ablation(
        "what batches touch", "a command would be decided on a lease that had run out",
        ("I7", "I8"), off(expiry, "commands_of", nobody),
        MANY(due_max=1, faults={"forget": 0.9}, think_ms=50, names=(*THREE, "lock:d"), ttl_ms=(1_000, 1_200)),
    ),
    Ablation(
        "operators bring keys", "whoever has a copy of the root's word would choose when it counts",
        ("role",), off(key, "is_operator", lambda *_: True), ODD_KEYS,
    ),
    Ablation(
        "known keys", "a signature would have two senses",
        ("role",), off(key, "_is_known", never), ODD_KEYS,
    ),
    Ablation(
        "promised keys", "who stole the keys and the root would announce one of his own",
        ("role",), one_promise_kept, ODD_KEYS,
    ),
    Ablation(
        "two keys at a time", "nobody could tell which of many keys are meant to last",
        ("role",), off(key, "OVERLAP_MAX", 9), ODD_KEYS,
    ),
    Ablation(
        "keys in force", "a key that has ended would end again, and its bounds would move",
        ("role",), forgiving(key, "_unendable", refusal.KEY_UNKNOWN), ODD_KEYS,
    ),
    Ablation(
        "last key", "a ledger would be without anybody who can sign for it",
        ("role",), forgiving(key, "_unendable", refusal.KEY_LAST), ODD_KEYS,
    ),
    Ablation(
        "oldest receipt key", "who reads with the document of yesterday could not check a receipt of today",
        ("I17",), off(Signer, "receipt_key", newest_signs), ROTATING,
    ),
    Ablation(
        "every log key", "a reader would not know whether a line is missing or was never made",
        ("I17",), off(Signer, "log_keys", lambda self, size: LOG_KEYS(self, size)[:1]), ROTATING,
    ),
    Ablation(
        "end of a key", "a key that was retired would go on for one batch, and every reader would refuse it",
        ("I17",), off(signer, "line_of", one_more), ROTATING,
    ),
    Ablation(
        "keys of a batch", "what a batch announced would sign only after a restart",
        ("I17",), off(Signer, "heed_changes", nothing), ROTATING,
    ),
    Ablation(
        "keys of a start", "after a restart the keys of entry 0 would sign again",
        ("I17", "I14"), off(history, "_heed", nothing), KEYS(faults={"rotate": 0.9, "kill": 0.7, "key_kill": 0.5}),
    ),
    Ablation(
        "missing keys", "a gateway would commit what it can't sign",
        ("start",), off(Signer, "missing", lambda self: []), KEYS(faults={"rotate": 0.9, "kill": 0.9, "lacking": 0.9}),
    ),
    Ablation(
        "key of the seal", "after a rotation nobody could open the ledger any more",
        ("I14",), off(Signer, "seal_secret", seal_of_the_newest), KEYS(faults={"rotate": 0.9, "kill": 0.7}),
    ),
    Ablation(
        "valid cosignatures", "a line that anybody can write would count as a witness",
        ("witness",), off(cosigned, "line_is_valid", lambda *_: True), WATCHED(liars=1),
    ),
    Ablation(
        "quorum", "one witness would speak for all",
        ("witness",), off(cosigned, "is_quorum_met", lambda *_: True), WATCHED(faults={"witness_down": 0.9}),
    ),
    Ablation(
        "lines of one checkpoint", "what a witness said of an older tree would be said of a newer one",
        ("witness",), off(cosigned.Gathering, "is_of", lambda *_: True), WATCHED(duration_ms=90_000),
    ),
    Ablation(
        "clocks of witnesses", "a witness with a wrong clock would make an honest ledger look dishonest",
        ("audit",), every_clock, WATCHED(witnesses=1, witness_offsets_ms=(90_000, 0, 0)),
    ),
    Ablation(
        "nothing but its own kind", "a quiet ledger would grow for ever",
        ("witness",), off(Witnessing, "_is_entry_due", is_entry_due), WATCHED(),
    ),
    Ablation(
        "what witnesses have seen", "an older copy would be gone on from, and every number be given twice",
        ("I4", "start"), off(node, "check_sightings", nothing),
        WATCHED(faults={"older_file": 0.6, "kill": 0.5, "stay_older": 0.9}, duration_ms=60_000),
    ),
    Ablation(
        "disowned keys are silent", "who stole a key could stop the gateway by it",
        ("I14", "audit", "start"), off(Signer, "own_keys", LOG_KEYS),
        KEYS(faults={"disown": 0.9, "kill": 0.5}, witnesses=3, liars=1, duration_ms=60_000),
    ),
    Ablation(
        "token of an admission", "who was overtaken would be told to go on",
        ("I3",), off(admission, "find_lease", any_token), ADMITTING(),
    ),
    Ablation(
        "width of its lease", "a lease on one thing would do for all",
        ("I3",), off(admission, "_is_wide_enough", lambda *_: True), ADMITTING(),
    ),
    Ablation(
        "leases in its way", "somebody would read what another one is just writing",
        ("I3",), off(admission, "way_of", lambda *_: resource.Way([], [], [])), ADMITTING(),
    ),
    Ablation(
        "lease of a write", "nothing would be kept apart",
        ("I3",), off(admission, "NO_LEASE_MODE", "write"), ADMITTING(),
    ),
    Ablation(
        "end of an admission", "it would outlive the lease that it rests on",
        ("I3",), off(admission, "_valid_until_ms", lambda _draft, _case, context: context.t_ms + 60_000), ADMITTING(),
    ),
    Ablation(
        "counts", "a budget would never be used up",
        ("I16",), off(admission, "count_allowed", nothing), POLICED(),
    ),
    Ablation(
        "counts of denials", "who is denied all the time would look like one who never asks",
        ("I16",), off(admission, "count_denied", nothing), POLICED(),
    ),
    Ablation(
        "denials are free", "what was denied would use a budget up",
        ("I16",), off(admission, "count_denied", denied_uses_up), POLICED(),
    ),
    Ablation(
        "counts before", "an admission would be counted before it is asked whether it may be",
        ("I16",), off(admission, "used", one_too_many), POLICED(),
    ),
    Ablation(
        "what rules deny", "rules would be there to be looked at",
        ("I16",), off(rules, "_denial", nothing), POLICED(),
    ),
    Ablation(
        "errors deny", "whoever makes the engine fail would be let in",
        ("I16",), off(rules, "_denial", error_allows), POLICED(faults={"engine_raises": 0.2, "engine_silent": 0.2}),
    ),
    Ablation(
        "burnt approvals", "one yes would do for ever",
        ("I3", "once"), off(admission, "burn", nothing), APPROVED,
    ),
    Ablation(
        "what approvals bind", "a yes to one thing would be a yes to another",
        ("I3",), off(approval, "_is_about", lambda *_: True), APPROVED,
    ),
    Ablation(
        "time of approvals", "a yes of last year would count",
        ("I3",), off(approval, "out_of_use", nothing), APPROVED,
    ),
    Ablation(
        "who approves", "an agent would say yes to itself",
        ("I3", "once"), off(approval, "fit_operator", lambda _view, approver, *_: approver), APPROVED,
    ),
    Ablation(
        "circles with asks", "an asker would wait for the word of one who waits for its lease",
        ("approval", "I11"), off(asking, "find_plea_cycle", lambda *_: NO_CYCLE), PLEADING,
    ),
    Ablation(
        "end of an ask", "an ask that has enough would go on to keep others waiting",
        ("approval", "I11"), lambda patch: patch.setattr(records.Pending, "has_quorum", property(never)), PLEADING,
    ),
    Ablation(
        "answered once", "one approver would be two",
        ("approval",), off(asking, "_has_answered", never), PLEADING,
    ),
)  # fmt: skip


# Worlds that noticed when they were last looked through. They go first, so that the search is short; the others follow.
LIKELY = {
    "answered once": 25, "keys in force": 30, "touched sessions": 27, "soft search": 9, "token formula": 11,
    "what batches touch": 11, "trial of one": 11, "leases in its way": 4, "burnt approvals": 4,
}  # fmt: skip


def first_violation(change: Change, seeds: Sequence[int]) -> Any:
    for seed in seeds:
        result = run(seed, change)
        if result.violation is not None:
            return result
    return None


def test_who_is_likely_to_notice_is_said_of_ablations_that_are_there() -> None:
    assert LIKELY.keys() <= {ablation.name for ablation in ABLATIONS}


@pytest.mark.parametrize("ablation", ABLATIONS, ids=str)
def test_without_it_the_simulator_finds_the_violation(ablation: Ablation, monkeypatch: Patch) -> None:
    """Scenarios L5 and L40, among others: without the compare-and-set two owners of one log write one number twice."""
    with monkeypatch.context() as patch:
        ablation.switch(patch)
        found = first_violation(ablation.change, [*SEEDS[LIKELY.get(ablation.name, 0) :], *SEEDS])
    assert found is not None, f"nobody missed {ablation.name}: {ablation.why}"
    assert found.violation.name in ablation.lost, found.story()
    held = run(found.seed, ablation.change)
    assert held.violation is None, f"with {ablation.name}: {held.story()}"
