"""What a ledger's entries so far have made: who may act, what stands on names, and what is remembered for a while.

Nothing is judged here. Every rule of verifier/replay/ reads this, and moves it by what an entry says, right or not.
Source: docs/protocol.md 17.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from operator import attrgetter
from typing import TypeAlias

from verifier.entries import PARAMETER_DEFAULTS
from verifier.replay.burnt import Burnt
from verifier.replay.people import People, operators
from verifier.replay.pleas import Pleas
from verifier.replay.ruling import Claim, RuleSet
from verifier.replay.schemes import Schemes
from verifier.replay.signing import Keys
from verifier.replay.stampede import Edge, Stampede
from verifier.replay.things import Ask, Delay, Ended, Endings, Lease, Ticket
from verifier.replay.trust import Trust
from verifier.replay.under import Index, drop
from verifier.replay.usage import Usage

Thing: TypeAlias = Lease | Delay | Ticket

_token = attrgetter("token")


class State:
    """`numbers` are the parameters of entry 0. `lease` and `ticket` are by the seq of the entry that made them."""

    def __init__(self, numbers: Mapping[str, int] = PARAMETER_DEFAULTS, people: People | None = None) -> None:
        self.numbers = numbers = dict(numbers)  # which can be saved
        self.people = people or People()
        self.keys = Keys()
        self.schemes = Schemes(numbers)
        self.stampede = Stampede(numbers)
        self.trust = Trust(numbers)
        self.usage = Usage()
        self.burnt = Burnt()
        self.pleas = Pleas()
        self.rule_set: RuleSet | None = None
        self.claims: list[Claim] = []  # of the entry looked at, until somebody takes them
        self.engine = ""  # of rules, since the service started: one process has one
        self.endings = Endings()
        self.lease: dict[int, Lease] = {}
        self.ticket: dict[int, Ticket] = {}
        self.leases: Index[Lease] = Index()
        self.delays: Index[Delay] = Index()
        self._ending: list[tuple[int, int, Delay]] = []  # a heap: when a delay ends, its number here, and itself
        self.tickets: Index[Ticket] = Index()
        self.leases_of: dict[str, dict[Lease, None]] = {}
        self.tickets_of: dict[str, dict[Ticket, None]] = {}
        self.tickets_under: dict[str, dict[Ticket, None]] = {}  # by principal and, with a sign before it, by operator
        self.passed: dict[Ticket, None] = {}  # those that were passed over
        self.names_held: dict[str, int] = {}  # by principal, how many names its leases have
        self.delays_of: dict[str, dict[Delay, None]] = {}  # by principal, what its leases left behind
        self.edges: dict[str, Edge] = {}  # by actor, the refused acquire for which it counts as waiting
        self.token = 0  # the last one
        self.now_ms = 0  # of the entry that is looked at
        self.holiday_ms = 0  # until when nothing lapses
        self.is_disputed = False
        self._count = 0
        # What has changed since those in line were looked at, and the tickets that have to be looked at themselves.
        self._stirred: list[Thing] = []
        self._summoned: list[Ticket] = []

    def stir(self, thing: Thing) -> None:
        """Something has changed that may concern those in line, if there are any."""
        if self.ticket:
            self._stirred.append(thing)

    def summon(self, ticket: Ticket) -> None:
        """A ticket has to be looked at, though nothing has changed for others."""
        self._summoned.append(ticket)

    def take_changes(self) -> tuple[list[Thing], list[Ticket]]:
        """Return what was stirred and who was summoned since this was asked last."""
        changes = self._stirred, self._summoned
        self._stirred, self._summoned = [], []
        return changes

    def mark(self) -> tuple[int, int, int]:
        """Return where `reset` leads back to; what stands on names is put back one by one."""
        return self.token, len(self._stirred), len(self._summoned)

    def reset(self, mark: tuple[int, int, int]) -> None:
        self.token = mark[0]
        del self._stirred[mark[1] :]
        del self._summoned[mark[2] :]

    def end_ms(self, thing: Thing) -> int:
        """Return the effective end."""
        return max(thing.end_ms, self.holiday_ms)

    def is_live(self, thing: Thing) -> bool:
        return self.now_ms < thing.end_ms or self.now_ms < self.holiday_ms

    def ask(self, actor: str, names: tuple[str, ...], mode: str) -> Ask:
        return Ask(actor, names, self.schemes.keys(names), mode)

    def own(self, ask: Ask) -> Lease | None:
        """Return the actor's newest live lease on the same keys in the same mode."""
        return max((it for it in self._on(ask) if it.mode == ask.mode), key=_token, default=None)

    def meant(self, ask: Ask, created_s: int) -> Lease | None:
        """Return the lease that a release without lease id ends: none that began after it was signed."""
        return max((it for it in self._on(ask) if it.granted_at_ms < (created_s + 1) * 1000), key=_token, default=None)

    def _on(self, ask: Ask) -> Iterator[Lease]:
        """Yield the live leases of an actor on exactly the same keys."""
        for lease in self.leases.on(ask.keys[0]):
            if lease.actor == ask.actor and self.is_live(lease):
                if lease.keys == ask.keys or set(lease.keys) == set(ask.keys):
                    yield lease

    def ended(self, name: str) -> Ended | None:
        """Return how the lease or ticket of an id ended, as long as that is told."""
        return self.endings.of(name, self.now_ms)

    def held(self, principal: str) -> int:
        """Return how many names a principal's leases have, with those that they keep closed after a bad end."""
        delayed = (len(delay.names) for delay in self.delays_of.get(principal, ()) if self.is_live(delay))
        return self.names_held.get(principal, 0) + sum(delayed)

    def holds(self, actor: str) -> bool:
        """Say whether an actor has a live lease."""
        return any(self.is_live(lease) for lease in self.leases_of.get(actor, ()))

    def waiting(self, actor: str) -> list[Ticket]:
        """Return the live tickets of an actor, the lowest number first."""
        found = [ticket for ticket in self.tickets_of.get(actor, ()) if self.is_live(ticket)]
        return sorted(found, key=lambda ticket: ticket.seq)

    def are_waiting(self, who: str, bound: int) -> bool:
        """Say whether a principal, or everybody an operator answers for, has as many live tickets as `bound`."""
        tickets = self.tickets_under.get(who, ())
        return len(tickets) >= bound and sum(map(self.is_live, tickets)) >= bound

    def begin(self, lease: Lease) -> None:
        """A lease is granted: whoever has it waits no more for what refused it before."""
        self.token = max(self.token, lease.token)
        self.place(lease)
        self.stampede.forget(lease.principal, lease.names)
        self.edges.pop(lease.actor, None)
        self.stir(lease)

    def place(self, lease: Lease) -> None:
        """Put a lease where it is found, and nothing else."""
        self.lease[lease.seq] = lease
        self.leases.add(lease, lease.keys)
        self.leases_of.setdefault(lease.actor, {})[lease] = None
        self.names_held[lease.principal] = self.names_held.get(lease.principal, 0) + len(lease.names)

    def displace(self, lease: Lease) -> None:
        if self.lease.get(lease.seq) is lease:  # a forged ledger may have two under one number
            del self.lease[lease.seq]
        self.leases.remove(lease, lease.keys)
        drop(self.leases_of, lease.actor, lease)
        self.names_held[lease.principal] -= len(lease.names)
        if not self.names_held[lease.principal]:
            del self.names_held[lease.principal]

    def end(self, lease: Lease, how: str, seq: int, delay_until_ms: int | None = None) -> None:
        """A lease ends by the entry `seq`, perhaps with a delay for others."""
        self.displace(lease)
        self.stir(lease)
        self._note(f"L{lease.seq}", lease.actor, how, seq)
        if how == "broken":
            self._note(f"B{lease.token}", lease.actor, how, seq)
        if delay_until_ms is not None:
            who = lease.actor, lease.principal
            self.delay(Delay(seq, *who, lease.names, lease.keys, lease.mode, delay_until_ms))

    def delay(self, delay: Delay) -> None:
        self.delays.add(delay, delay.keys)
        self.delays_of.setdefault(delay.principal, {})[delay] = None
        self._count += 1
        heappush(self._ending, (delay.end_ms, self._count, delay))

    def undelay(self) -> Delay | None:
        """Let go the delay that ended first, if one has, and return it: it ends without an entry."""
        if not self._ending or self.is_live(self._ending[0][2]):
            return None
        delay = heappop(self._ending)[2]
        self.delays.remove(delay, delay.keys)
        drop(self.delays_of, delay.principal, delay)
        self.stir(delay)
        return delay

    def delays_by_end(self) -> Iterator[Delay]:
        return (delay for _, _, delay in self._ending)

    def queue(self, ticket: Ticket) -> None:
        self.ticket[ticket.seq] = ticket
        self.tickets.add(ticket, ticket.keys)
        self.tickets_of.setdefault(ticket.actor, {})[ticket] = None
        for who in (ticket.principal, operators(ticket.operator)):
            self.tickets_under.setdefault(who, {})[ticket] = None
        self.summon(ticket)  # behind all others

    def unqueue(self, ticket: Ticket, how: str, seq: int) -> None:
        """A ticket ends by the entry `seq`."""
        self.stir(ticket)
        del self.ticket[ticket.seq]
        self.tickets.remove(ticket, ticket.keys)
        drop(self.tickets_of, ticket.actor, ticket)
        for who in (ticket.principal, operators(ticket.operator)):
            drop(self.tickets_under, who, ticket)
        self.passed.pop(ticket, None)
        self._note(f"T{ticket.seq}", ticket.actor, how, seq)

    def _note(self, name: str, actor: str, how: str, seq: int) -> None:
        until_ms = self.now_ms + self.numbers["idempotencyMs"]
        self.endings.note(name, Ended(actor, how, seq, until_ms), self.now_ms)
