"""The real core decides what comes to its mind, and the rules, written from the protocol alone, find nothing in it.

Seeded: a failure is found again by its number. Parameters are small, so that every bound is met.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from gateway.core.opening import start_steps
from gateway.core.parameters import Parameters
from gateway.core.records import Lease, Ticket
from tests.core import requests
from tests.core.book import OPENED_MS, Book
from tests.core.requests import Ask, did_of
from tests.scale import drawn
from tests.verifier.maker import canonical
from verifier.entries import CLASSES, MODES
from verifier.replay.judged import Judged, judge
from verifier.replay.relations import Relations

AGENTS = "ABCD"
CLAUSE = re.compile(r"\([0-9]+(?:\.[0-9]+)?(?:, [0-9]+(?:\.[0-9]+)?)*\)\Z")  # of docs/protocol.md
SEEDS = range(drawn(60, share=20))
STEPS = 90
TREES = ("lock:a", "lock:b", "lock:**", "repo:x", "repo:x/a", "repo:x/**", "repo:x/a/**", "doc:p", "doc:**", "log:l")
CIRCLES = ("lock:a", "lock:b", "lock:c", "lock:d")
MIXED = ("lock:a", "lock:b", "doc:p", "doc:q")


def judged(leaves: Sequence[bytes]) -> list[Judged]:
    """Every entry alone, with entry 0's list of authorities."""
    authorities = json.loads(leaves[0])["authorities"]
    return [judge(leaf_bytes, frozenset(authorities)) for leaf_bytes in leaves]


def audited(entries: Sequence[Judged]) -> Iterator[tuple[int, str]]:
    """Yield (seq, code) of everything that does not fit."""
    relations = Relations()
    for seq, entry in enumerate(entries):
        if entry.leaf is None:
            yield seq, "leaf_malformed"
            continue
        if seq == 0:
            relations.open(entry.leaf, entry.leaf_hash)
        yield from ((seq, code) for code, _ in (*entry.faults, *relations.faults(entry.leaf, entry)))


class Whim:
    """What four agents and an operator do for no reason, at times that jump."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        moods: tuple[tuple[tuple[str, ...], tuple[int, ...], tuple[int, ...]], ...] = (
            (TREES, (1_000, 5_000, 30_000), (0, 50, 300, 1_000, 2_500)),
            (CIRCLES, (20_000, 60_000), (0, 20, 300, 1_500)),
            (MIXED, (2_000, 20_000), (0, 50, 300, 1_000)),
        )
        self.names, self.ttls_ms, self.jumps_ms = moods[seed % 3]
        self.agents: Sequence[str] = AGENTS
        self.book = Book(parameters=self._parameters())
        self.t_ms, self.epoch = OPENED_MS + 1_000, 0
        self.offers: dict[str, str] = {}  # by lease, to whom

    def _parameters(self) -> Parameters:
        pick = self.dice.choice
        return Parameters(
            poll_ms=pick((3_000, 30_000)),
            claim_ms=pick((1_000, 2_000)),
            queue_per_resource=pick((2, 256)),
            queue_per_principal=pick((2, 64)),
            queue_total=pick((4, 10_000)),
            lock_delay_ms=pick((0, 1_500)),
            deadlock_nodes=pick((2, 3, 1_000)),
            passes_max=pick((1, 2, 32)),
            reserve_after_ms=pick((1_500, 60_000)),
            held_per_principal=pick((5, 4_096)),
            max_hold_ms=pick((4_000, 3_600_000)),
            stampede_admitted=pick((1, 8)),
            stampede_reset_ms=pick((3_000, 60_000)),
            trust_gain_window_ms=pick((3_000, 3_600_000)),
            wait_edge_ms=pick((2_000, 10_000)),
            idempotency_ms=pick((6_000, 86_400_000)),
        )

    def run(self) -> list[bytes]:
        for scheme in ("lock", "repo", "doc", "log"):
            if self.dice.random() < 0.4:
                self.play(self.set_scheme(scheme, "op"))
        for _ in range(STEPS):
            self.t_ms += self.dice.choice(self.jumps_ms)
            if self.dice.random() < 0.01:
                self.restart()
            self.play(*(self.ask() for _ in range(self.dice.choice((0, 1, 1, 1, 2, 3)))))
        return self.book.leaves

    def play(self, *asks: Ask) -> None:
        self.book.run(self.t_ms, *asks, epoch=self.epoch)

    def restart(self) -> None:
        assert self.book.head is not None
        before_ms = self.book.head.time_ms
        self.t_ms += self.dice.choice((10, 2_000, 40_000))
        self.epoch += 1
        steps = start_steps("start", is_clean=True, before_ms=before_ms)
        self.book.run(self.t_ms, steps=steps, epoch=self.epoch)

    def ask(self) -> Ask:
        records = self.book.shelf.records.values()
        leases = [record for record in records if isinstance(record, Lease)]
        tickets = [record for record in records if isinstance(record, Ticket)]
        moves: list[Any] = [self.acquire] * 7
        if leases:
            moves += [self.renew] * 2 + [self.release] * 3 + [self.transfer, self.accept, self.accept, self.take_away]
        if tickets:
            moves += [self.claim] * 4 + [self.cancel]
        move = self.dice.choice([*moves, self.late, lambda *_: self.set_scheme(self.dice.choice(("doc", "log")), "A")])
        one: Ask = move(leases, tickets)
        return one

    def whose(self, did: str) -> str:
        """The actor of a DID mostly, sometimes another."""
        return (
            next(n for n in self.agents if did_of(n) == did)
            if self.dice.random() < 0.9
            else self.dice.choice(self.agents)
        )

    def maybe(self, chance: float, **member: Any) -> dict[str, Any]:
        return member if self.dice.random() < chance else {}

    def acquire(self, leases: list[Lease], _tickets: object) -> Ask:
        pick = self.dice.choice
        if leases and self.dice.random() < 0.1:
            again = pick(leases)
            return requests.acquire(self.whose(again.holder), *again.resources, at_ms=self.t_ms, mode=again.mode)
        names = self.dice.sample(self.names, pick((1, 1, 1, 2, 3)))
        if self.dice.random() < 0.1:
            names = [f"{scheme}:{path.upper()}" for scheme, _, path in (name.partition(":") for name in names)]
        members = {"ttlMs": pick(self.ttls_ms), **self.maybe(0.4, mode=pick(MODES))}
        if self.dice.random() < 0.5:
            members |= {"wait": True, **self.maybe(0.5, giveUpMs=pick((1_000, 3_000, 20_000)))}
            members |= self.maybe(0.4, onDeadlock="wait")
        return requests.acquire(pick(self.agents), *names, at_ms=self.t_ms, **members)

    def renew(self, leases: list[Lease], _: object) -> Ask:
        lease = self.dice.choice(leases)
        members = {**self.maybe(0.5, mode=self.dice.choice(MODES)), **self.maybe(0.5, ttlMs=1_000)}
        return requests.renew(self.whose(lease.holder), lease.lease_id, self.t_ms, **members)

    def release(self, leases: list[Lease], _: object) -> Ask:
        lease = self.dice.choice(leases)
        by_id = self.maybe(0.5, leaseId=lease.lease_id)
        return requests.release(self.whose(lease.holder), *lease.resources, at_ms=self.t_ms, **by_id)

    def transfer(self, leases: list[Lease], _: object) -> Ask:
        lease, to = self.dice.choice(leases), self.dice.choice(self.agents)
        self.offers[lease.lease_id] = to
        who = self.dice.choice((self.whose(lease.holder), "op"))
        token = lease.fencing_token + (self.dice.random() < 0.1)
        return requests.transfer(who, lease.lease_id, token, to, self.t_ms)

    def accept(self, leases: list[Lease], _: object) -> Ask:
        lease = self.dice.choice([one for one in leases if one.lease_id in self.offers] or leases)
        who = self.offers.get(lease.lease_id, self.dice.choice(self.agents))
        return requests.accept(who, lease.lease_id, self.t_ms, **self.maybe(0.5, ttlMs=1_000))

    def take_away(self, leases: list[Lease], _: object) -> Ask:
        lease = self.dice.choice(leases)
        name = self.dice.choice((lease.resources[0], self.dice.choice(self.names)))
        return requests.break_(self.dice.choice(("op", "op", "A")), name, lease.fencing_token, self.t_ms)

    def claim(self, _: object, tickets: list[Ticket]) -> Ask:
        ticket = self.dice.choice(tickets)
        return requests.claim(self.whose(ticket.actor), ticket.ticket_id, self.t_ms)

    def cancel(self, _: object, tickets: list[Ticket]) -> Ask:
        ticket = self.dice.choice(tickets)
        return requests.cancel(self.whose(ticket.actor), ticket.ticket_id, self.t_ms)

    def late(self, *_: object) -> Ask:
        number, who = self.dice.randrange(5, len(self.book.leaves) + 2), self.dice.choice(self.agents)
        late = (
            requests.renew(who, f"L{number}", self.t_ms),
            requests.accept(who, f"L{number}", self.t_ms),
            requests.release(who, "lock:a", at_ms=self.t_ms, leaseId=f"L{number}"),
            requests.claim(who, f"T{number}", self.t_ms),
            requests.cancel(who, f"T{number}", self.t_ms),
        )
        return self.dice.choice(late)

    def set_scheme(self, scheme: str, who: str) -> Ask:
        members = {**self.maybe(0.3, isFolding=True), **self.maybe(0.3, lockDelayMs=1_000)}
        members |= self.maybe(0.3, maxHoldMs=5_000)
        who = self.dice.choice(("op", who))
        return requests.set_scheme(who, scheme, self.dice.choice(CLASSES), self.t_ms, **members)


class Crowd(Whim):
    """Many tickets each, for parts of a tree of which H holds one and for what P holds, who waits behind them all.

    When H lets go, many an offer would close a cycle: tickets are passed over, with others behind them.
    """

    TREE = ("q:**", "q:x", "q:y", "q:z")

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.jumps_ms, self.agents = (0, 0, 20), "ABCDEF"
        bounds = {"queue_per_resource": 1_000, "passes_max": self.dice.choice((2, 32))}
        self.book = Book(f"{self.agents}HP", Parameters(**bounds))

    def run(self) -> list[bytes]:
        for _ in range(3):
            kept = self.dice.choice(self.TREE[1:])
            self.play(*(requests.acquire(who, it, at_ms=self.t_ms) for who, it in (("H", kept), ("P", "e:1"))))
            line = [
                (who, self.dice.choice(self.TREE))
                for who in self.dice.choices(self.agents, k=self.dice.randrange(4, 12))
            ]
            line += [("P", name) for name in self.dice.sample(self.TREE, self.dice.choice((2, 3)))]
            line += [(who, "e:1") for who in self.agents if self.dice.random() < 0.7]
            if self.dice.random() < 0.2:
                self.dice.shuffle(line)
            self.play(*(self.join(*one) for one in line))
            self.play(requests.release("H", kept, at_ms=self.t_ms))
            for _ in range(12):
                self.t_ms += self.dice.choice(self.jumps_ms)
                self.play(self.go_on())
        return self.book.leaves

    def join(self, who: str, name: str) -> Ask:
        names = {name, self.dice.choice(self.TREE)} if self.dice.random() < 0.1 else {name}
        return requests.acquire(who, *names, at_ms=self.t_ms, wait=True, onDeadlock="wait")

    def go_on(self) -> Ask:
        records = list(self.book.shelf.records.values())
        leases = [record for record in records if isinstance(record, Lease)]
        tickets = [record for record in records if isinstance(record, Ticket)]
        move = self.dice.choice(
            [self.release] * bool(leases) + [self.claim, self.claim, self.cancel] * bool(tickets) or [self.late]
        )
        one: Ask = move(leases, tickets)
        return one

    def whose(self, did: str) -> str:
        return next(name for name in f"{self.agents}HP" if did_of(name) == did)


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_passed_over_in_a_crowd_lets_those_behind_go_first(seed: int) -> None:
    assert list(audited(judged(Crowd(seed).run()))) == []


def test_a_ticket_comes_to_be_passed_over_behind_another_that_does() -> None:
    """A waits for the whole tree and B for x, both behind P's e:1; P waits for both: C, D behind B, and P go first."""
    book, now_ms = Book("ABCDHP"), OPENED_MS + 1_000
    line = "A q:**, B q:x, C q:y, D q:x, P q:z, P q:x, A e:1, B e:1"
    book.run(now_ms, requests.acquire("H", "q:y", at_ms=now_ms), requests.acquire("P", "e:1", at_ms=now_ms))
    for who, name in (one.split() for one in line.split(", ")):
        book.run(now_ms, requests.acquire(who, name, at_ms=now_ms, wait=True, onDeadlock="wait"))
    first = len(book.leaves) - line.count(",") - 1
    book.run(now_ms, requests.release("H", "q:y", at_ms=now_ms))
    offered = [leaf["ticketSeq"] for leaf in map(json.loads, book.leaves) if "wait.offered" in leaf["type"]]
    assert offered == [first + 2, first + 3, first + 4]
    assert list(audited(judged(book.leaves))) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_core_decides_is_what_the_protocol_calls_for(seed: int) -> None:
    assert list(audited(judged(Whim(seed).run()))) == []


def changes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, other value) for each number and flag in a leaf; None for a member that may be left out."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        here = (*path, name)
        if here in (("seq",), ("timeMs",), ("epoch",), ("request",)):
            continue
        if isinstance(inner, bool):
            yield here, not inner
        elif isinstance(inner, int):
            yield from ((here, inner + 1), (here, inner - 1))
        elif isinstance(inner, dict | list):
            yield from changes(inner, here)
        if here in (("trust",), ("delayUntilMs",), ("cycle",), ("softCycle",), ("searchBounded",), ("endedSeq",)):
            yield here, None


def changed(leaf_bytes: bytes, path: tuple[Any, ...], other: Any) -> bytes:
    leaf = json.loads(leaf_bytes)
    inner = leaf
    for name in path[:-1]:
        inner = inner[name]
    if other is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return canonical(leaf)


@pytest.mark.parametrize("seed", range(12))
def test_no_number_that_the_core_decided_may_be_another(seed: int) -> None:
    """One number or flag of one entry is changed; chain and tree are left out of it, so the rules alone find it."""
    leaves = Whim(seed).run()
    entries, dice = judged(leaves), Random(seed)
    every = [(seq, *how) for seq in range(1, len(leaves)) for how in changes(json.loads(leaves[seq]))]
    authorities = frozenset(json.loads(leaves[0])["authorities"])
    for seq, path, other in dice.sample(every, 40):
        if path == ("isClean",):  # how a gateway stopped is its own word
            continue
        lie = judge(changed(leaves[seq], path, other), authorities)
        assert next(audited([*entries[:seq], lie, *entries[seq + 1 :]]), None) is not None, (seq, path, other)


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_entries_makes_the_rules_fall_over(seed: int) -> None:
    """Entries dropped, doubled, swapped and renumbered: findings that each name a clause, and never an exception."""
    entries, dice = judged(Whim(seed).run()), Random(seed)
    for _ in range(10):
        forged = list(entries)
        for _ in range(10):
            one, two = dice.randrange(1, len(forged)), dice.randrange(1, len(forged))
            leaf = forged[two].leaf
            assert leaf is not None
            match dice.randrange(4):
                case 0:
                    del forged[one]
                case 1:
                    forged[one], forged[two] = forged[two], forged[one]
                case 2:
                    forged.insert(one, forged[two])
                case 3:
                    forged.insert(one, forged[two]._replace(leaf=leaf._replace(seq=one)))
        relations, texts = Relations(), []
        for entry in forged:
            assert entry.leaf is not None
            texts += [text for _, text in relations.faults(entry.leaf, entry)]
        assert texts and [text for text in texts if not CLAUSE.search(text)] == []
