"""The real core among operators, sessions, trials and batches: the auditor finds nothing in what it decides.

As in test_replay_core.py, with everybody who acts for somebody else. Seeded: a failure is found again by its number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from gateway.core.parameters import Parameters
from gateway.core.records import Lease, Session, Ticket
from tests.core import requests
from tests.core.book import Book
from tests.core.requests import ENROLLER, Ask, did_of
from tests.scale import drawn
from tests.verifier.test_replay_core import CLAUSE, Whim, audited, changed, changes, judged
from verifier.replay.judged import judge
from verifier.replay.relations import Relations

SEEDS = range(drawn(40, share=14))
NAMES = ("lock:a", "lock:b", "doc:p", "doc:q/**", "doc:q/r")
SCOPES = (None, None, None, ["lock:**"], ["doc:**", "lock:a"], ["doc:p"])
DIGESTS = tuple(sha256(bytes([n])).hexdigest() for n in range(5))


class Company(Whim):
    """Two operators, five agents of theirs, one that comes and goes by API keys, and sessions that never live long."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.names, self.ttls_ms, self.jumps_ms = NAMES, (1_000, 9_000, 30_000), (0, 0, 50, 300, 300, 1_000, 2_500)
        self.book = Book(parameters=self._parameters())
        self.count = 0  # of sessions
        self.keys = ["A", "B", "C", "D", "X", "T"]
        self.play(requests.add_operator("op", "op2", self.t_ms), requests.add("op2", "X", self.t_ms))
        self.play(
            requests.issue("op2", DIGESTS[0], "trial", self.t_ms), requests.issue("op", DIGESTS[1], "live", self.t_ms)
        )
        self.play(requests.enrol("T", DIGESTS[0], self.t_ms))

    def _parameters(self) -> Parameters:
        pick = self.dice.choice
        return Parameters(
            session_idle_ms=pick((4_000, 8_000)),
            sessions_per_principal=pick((2, 1_024)),
            trial_decisions=pick((6, 35)),
            trial_ms=pick((8_000, 604_800_000)),
            trial_ttl_max_ms=pick((1_000, 60_000)),
            poll_ms=pick((3_000, 30_000)),
            claim_ms=pick((1_000, 2_000)),
            queue_per_resource=pick((2, 2, 256)),
            queue_per_principal=pick((1, 2, 64)),
            queue_total=pick((4, 10_000)),
            lock_delay_ms=pick((0, 1_500)),
            passes_max=pick((1, 32)),
            reserve_after_ms=pick((1_500, 60_000)),
            held_per_principal=pick((3, 4_096)),
            max_hold_ms=pick((4_000, 3_600_000)),
            wait_edge_ms=pick((2_000, 10_000)),
            idempotency_ms=pick((6_000, 86_400_000)),
        )

    @property
    def sessions(self) -> list[str]:
        """Those that are open, and the newest, whatever has become of it."""
        records = self.book.shelf.records.values()
        alive = {record.did for record in records if isinstance(record, Session) and record.is_open}
        return [f"s{n}" for n in range(self.count) if did_of(f"s{n}") in alive or n == self.count - 1]

    def ask(self) -> Ask:
        self.agents = [*self.keys, *self.sessions * 3]
        records = self.book.shelf.records.values()
        leases = [record for record in records if isinstance(record, Lease)]
        tickets = [record for record in records if isinstance(record, Ticket)]
        moves = [self.open, self.open, self.beat, self.close, self.batch, self.batch, self.batch, *[self.acquire] * 6]
        moves += [self.renew, self.release, self.release, self.transfer, self.accept, self.accept] if leases else []
        moves += [self.claim] * 3 + [self.cancel] if tickets else []
        rare = [self.hire, self.fire, self.promote, self.demote, self.enrol, self.issue, self.revoke, self.late]
        move: Any = self.dice.choice(rare if self.dice.random() < 0.12 else moves)
        one: Ask = move(leases, tickets)
        return one

    def whose(self, did: str) -> str:
        everybody = [*self.keys, "op", "op2", *(f"s{n}" for n in range(self.count))]
        return next(name for name in everybody if did_of(name) == did) if self.dice.random() < 0.9 else self.anybody()

    def anybody(self) -> str:
        return self.dice.choice(self.agents)

    def acquire(self, leases: list[Lease], tickets: object) -> Ask:
        """Sometimes what a trial may have."""
        if self.dice.random() < 0.1:
            name = f"trial:{did_of('T')}/{self.dice.choice('ab')}"
            return requests.acquire("T", name, at_ms=self.t_ms, ttlMs=self.dice.choice(self.ttls_ms))
        return super().acquire(leases, tickets)

    def open(self, *_: object) -> Ask:
        """Mostly by a chain that holds."""
        pick = self.dice.choice
        self.count += self.dice.random() < 0.8
        name = f"s{max(0, self.count - 1)}"
        issuers: Sequence[str] = pick(
            (("A",), ("A",), ("B",), ("op", "C"), ("op2", "X"), ("op",), ("X",), ("T",), ("op2", "A"))
        )
        scope, lasts_ms = pick(SCOPES), pick((1_500, 8_000, 3_600_000))
        verbs = pick((["lease"], *[["lease", "transfer"]] * 3, ["transfer"]))
        if self.dice.random() < 0.1:
            issuers = (*issuers, self.anybody())
        more: dict[str, Any] = {} if scope is None else {"resources": scope}
        said = {"verbs": verbs, **more, "notBeforeMs": self.t_ms, "expiresAtMs": self.t_ms + lasts_ms}
        chain = requests.chain(*issuers, name, at_ms=self.t_ms, **said)
        return requests.open_session(name, chain, self.t_ms, **self.maybe(0.5, name=name))

    def beat(self, *_: object) -> Ask:
        return requests.beat(self.anybody(), self.t_ms, **self.maybe(0.5, activity="testing"))

    def close(self, *_: object) -> Ask:
        name = self.dice.choice(self.sessions or ["s0"])
        by = self.dice.choice((name, name, "A", "op", "op2", "B"))
        return requests.close(by, name, self.t_ms, **self.maybe(0.5, reason="done"))

    def batch(self, leases: list[Lease], _: object) -> Ask:
        """By one who acts, about what it has and what it may get."""
        who = self.anybody()
        own = [lease for lease in leases if lease.holder == did_of(who)] or leases
        commands = [self.command(who, own) for _ in range(self.dice.choice((1, 2, 3, 5)))]
        return requests.batch(
            who, *commands, at_ms=self.t_ms, **self.maybe(0.5, isAtomic=True), **self.maybe(0.2, isBare=True)
        )

    def command(self, who: str, leases: list[Lease]) -> Ask:
        pick = self.dice.choice
        members: dict[str, Any] = {"ttlMs": pick(self.ttls_ms)}
        match pick("aaarrl" if leases else "aal"):
            case "a":
                names = self.dice.sample(self.names, pick((1, 1, 2)))
                return requests.acquire(who, *names, at_ms=self.t_ms, **members, **self.maybe(0.3, mode="read"))
            case "r":
                ahead = f"L{len(self.book.leaves) + pick((0, 1, 2, 3))}"  # perhaps of a command before
                lease_id = ahead if self.dice.random() < 0.2 else pick(leases).lease_id
                return requests.renew(
                    who, lease_id, self.t_ms, **members, **self.maybe(0.4, mode=pick(("read", "write")))
                )
            case _:
                lease = pick(leases) if leases else None
                names = list(lease.resources) if lease else [pick(self.names)]
                by_id = {} if lease is None else self.maybe(0.5, leaseId=lease.lease_id)
                return requests.release(who, *names, at_ms=self.t_ms, **by_id)

    def operator(self) -> str:
        return self.dice.choice(("op", "op", "op", "op2", "op2", "A", *self.sessions[-1:]))

    def hire(self, *_: object) -> Ask:
        more = {**self.maybe(0.1, agentCustody="gateway"), **self.maybe(0.5, name="label")}
        who = self.dice.choice((*self.keys, *self.sessions[-1:], "op2"))
        return requests.add(self.operator(), who, self.t_ms, **more)

    def fire(self, *_: object) -> Ask:
        return requests.remove(self.operator(), self.dice.choice(self.keys), self.t_ms)

    def promote(self, *_: object) -> Ask:
        return requests.add_operator(self.operator(), self.dice.choice(("op2", "op2", "op", "A", "s0")), self.t_ms)

    def demote(self, *_: object) -> Ask:
        return requests.remove_operator("op", self.dice.choice(("op2", "op2", "op", "A")), self.t_ms)

    def enrol(self, *_: object) -> Ask:
        who, digest = self.dice.choice(("T", "T", "D", "X")), self.dice.choice(DIGESTS)
        if self.dice.random() < 0.1:
            return requests.add(ENROLLER, who, self.t_ms)
        return requests.enrol(who, digest, self.t_ms)

    def issue(self, *_: object) -> Ask:
        kind = self.dice.choice(("live", "trial"))
        more = self.maybe(0.3, agent=did_of(self.dice.choice(self.keys))) if kind == "live" else {}
        return requests.issue(self.operator(), self.dice.choice(DIGESTS), kind, self.t_ms, **more)

    def revoke(self, *_: object) -> Ask:
        return requests.revoke(self.operator(), self.dice.choice(DIGESTS), self.t_ms)

    def late(self, *_: object) -> Ask:
        """About what is over: anybody may accept, so anybody is told."""
        number, who = self.dice.randrange(5, len(self.book.leaves) + 2), self.anybody()
        late = (
            requests.renew(who, f"L{number}", self.t_ms),
            requests.claim(who, f"T{number}", self.t_ms),
            *[requests.accept(who, f"L{number}", self.t_ms)] * 4,
        )
        return self.dice.choice(late)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_core_decides_is_what_the_protocol_calls_for(seed: int) -> None:
    assert list(audited(judged(Company(seed).run()))) == []


def test_the_company_meets_nearly_everything() -> None:
    """What these tests say depends on what happens in them."""
    met = Counter[str]()
    for seed in range(20):
        met.update(_said(leaf) for leaf in map(json.loads, Company(seed).run()))
    wanted = {
        "session.opened", "session.seen", "session.closed", "session.ended idle", "session.ended expired",
        "session.ended revoked", "lease.returned", "wait.removed holder_gone", "batch.received", "batch.refused",
        "operator.added", "operator.removed", "agent.added", "agent.removed", "apikey.issued", "closing.repeated",
        "operator_required", "key_taken", "outside_scope", "session_required", "session_not_yours", "lease_returned",
        "apikey_not_found", "operator_not_found", "queue_full", "too_many_held",
    }  # fmt: skip
    assert wanted - met.keys() == set()


def _said(leaf: Any) -> str:
    name = leaf["type"].split("/")[1]
    if name in ("session.ended", "wait.removed"):
        return f"{name} {leaf['reason']}"
    return str(leaf.get("error", name)) if name != "batch.refused" else name


@pytest.mark.parametrize("seed", range(8))
def test_no_number_that_the_core_decided_may_be_another(seed: int) -> None:
    """One number or flag of one entry is changed; chain and tree are left out of it, so the rules alone find it."""
    leaves = Company(seed).run()
    entries, dice = judged(leaves), Random(seed)
    every = [(seq, *how) for seq in range(1, len(leaves)) for how in changes(json.loads(leaves[seq]))]
    authorities = frozenset(json.loads(leaves[0])["authorities"])
    for seq, path, other in dice.sample(every, 30):
        if path == ("isClean",):  # how a gateway stopped is its own word
            continue
        lie = judge(changed(leaves[seq], path, other), authorities)
        assert next(audited([*entries[:seq], lie, *entries[seq + 1 :]]), None) is not None, (seq, path, other)


@pytest.mark.parametrize("seed", range(5))
def test_no_order_of_entries_makes_the_rules_fall_over(seed: int) -> None:
    """Entries dropped, doubled and swapped: findings that each name a clause, and never an exception."""
    entries, dice = judged(Company(seed).run()), Random(seed)
    for _ in range(10):
        forged = list(entries)
        for _ in range(10):
            one, two = dice.randrange(1, len(forged)), dice.randrange(1, len(forged))
            match dice.randrange(3):
                case 0:
                    del forged[one]
                case 1:
                    forged[one], forged[two] = forged[two], forged[one]
                case _:
                    forged.insert(one, forged[two])
        relations, texts = Relations(), []
        for entry in forged:
            assert entry.leaf is not None
            texts += [text for _, text in relations.faults(entry.leaf, entry)]
        assert texts and [text for text in texts if not CLAUSE.search(text)] == []


def test_a_session_in_the_record_has_a_name_here() -> None:
    """The company knows whom it has opened."""
    company = Company(3)
    company.run()
    known = {did_of(f"s{n}") for n in range(company.count)}
    assert {r.did for r in company.book.shelf.records.values() if isinstance(r, Session)} <= known
