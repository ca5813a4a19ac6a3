"""A book with a clock and short words, for stories about waiting; and a view with a real index, for crowds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from gateway.core.filing import terms_of
from gateway.core.outcome import Context
from gateway.core.parameters import Parameters
from gateway.core.record_keys import ask_key, claim_key
from gateway.core.records import Lease, Pending, Record, Ticket, Timed
from tests.core.book import Book
from tests.core.requests import (
    NOW_MS,
    Ask,
    acquire,
    cancel,
    chain,
    claim,
    close,
    did_of,
    open_session,
    release,
    renew,
)
from verifier.entries import Leaf
from verifier.replay.judged import judge
from verifier.replay.relations import Relations

Told = tuple[str, str]  # the noun.participle of an entry, and the ticket or lease it is about


class Hall(Book):
    """Agents who hold things and stand in line for them. Every word is a batch of one command, now."""

    def __init__(self, agents: Sequence[str] = "ABCDEF", **numbers: int) -> None:
        super().__init__(agents, Parameters(**numbers))
        self.t_ms = NOW_MS
        self.names = {did_of(name): name for name in agents}

    def say(self, ask: Ask) -> Leaf:
        """Sign a request now, decide it, and return its entry."""
        created = self.t_ms // 1_000
        return self.entry(self.t_ms, ask.but(created=created, expires=created + 60))

    def hold(self, name: str, *resources: str, mode: str = "write", **members: Any) -> str:
        """Acquire, which has to succeed, and return the id of the lease."""
        leaf = self.say(acquire(name, *resources, mode=mode, **({"ttlMs": 3_600_000} | members)))
        assert leaf.type.split("/")[1] == "lease.granted", leaf.value
        return leaf.text("leaseId")

    def ask_for(self, name: str, *resources: str, mode: str = "write", **members: Any) -> Leaf:
        """Acquire without waiting, and return what comes of it."""
        return self.say(acquire(name, *resources, mode=mode, **members))

    def line(self, name: str, *resources: str, mode: str = "write", **members: Any) -> str:
        """Stand in line, which has to succeed, and return the id of the ticket."""
        leaf = self.say(acquire(name, *resources, mode=mode, wait=True, **members))
        assert leaf.type.split("/")[1] == "wait.queued", leaf.value
        return leaf.text("ticketId")

    def claim(self, name: str, ticket_id: str) -> Leaf:
        return self.say(claim(name, ticket_id))

    def cancel(self, name: str, ticket_id: str) -> Leaf:
        return self.say(cancel(name, ticket_id))

    def free(self, name: str, lease_id: str) -> list[Told]:
        """Release a lease and return the entries that follow at once."""
        mark = len(self.leaves)
        self.say(release(name, *self.leases()[lease_id].resources, leaseId=lease_id))
        return self.told(mark)[1:]

    def renew(self, name: str, lease_id: str, **members: Any) -> Leaf:
        return self.say(renew(name, lease_id, **members))

    def open(self, name: str, *issuers: str, label: str | None = None, **changes: Any) -> Leaf:
        """Open a session, which has to succeed: its key is that of `name`, the issuers are an agent, an operator, or an
        operator and an agent; `changes` are of the delegation to the session."""
        lent = chain(*issuers, name, at_ms=self.t_ms, **changes)
        named: dict[str, Any] = {} if label is None else {"name": label}
        leaf = self.say(open_session(name, lent, **named))
        self.names[did_of(name)] = name
        return leaf

    def close(self, name: str, session: str | None = None, **members: Any) -> list[Told]:
        """Close a session, by itself unless another is named, and return the entries that follow at once."""
        mark = len(self.leaves)
        self.say(close(name, session or name, **members))
        return self.told(mark)[1:]

    def later(self, ms: int) -> list[Told]:
        """Let time pass and return what the sweeper writes then."""
        self.t_ms += ms
        mark = len(self.leaves)
        self.run(self.t_ms)
        return self.told(mark)

    def told(self, mark: int = 0) -> list[Told]:
        """Return the entries from `mark` on in short."""
        leaves = map(self.leaf, range(mark, len(self.leaves)))
        return [(one.type.split("/")[1], one.text("ticketId") or one.text("leaseId")) for one in leaves]

    def tickets(self) -> dict[str, Ticket]:
        return {one.ticket_id: one for one in self.shelf.records.values() if isinstance(one, Ticket)}

    def asks(self) -> list[str]:
        """Return the ids of all asks for approval that are remembered, the oldest first."""
        found = [one for one in self.shelf.records.values() if isinstance(one, Pending)]
        return [one.ask_id for one in sorted(found, key=lambda one: one.seq)]

    def offered(self) -> list[str]:
        """Return the tickets that may claim now, lowest number first."""
        return [one.ticket_id for one in sorted(self.tickets().values(), key=number) if one.claim_by_ms is not None]

    def audited(self) -> list[tuple[str, str]]:
        """Return what the auditor's own rules find wrong in these entries; they share nothing with the core."""
        self.audit()
        relations, found = Relations(), []
        for seq, data in enumerate(self.leaves):
            entry = judge(data, frozenset(self.opening().authorities))
            assert entry.leaf is not None
            if seq == 0:
                relations.open(entry.leaf, entry.leaf_hash)
            found += [*entry.faults, *relations.faults(entry.leaf, entry)]
        return found


def number(ticket: Ticket) -> int:
    return ticket.seq


def side_of(name: str) -> str:
    """Return the operator of somebody in a crowd."""
    return str((ord(name[0]) - ord("A")) // 2)


class Crowd:
    """A view of many records with the index of a store, which counts how often it is asked."""

    def __init__(self, records: Iterable[tuple[str, Record]] = ()) -> None:
        self.records: dict[str, Record] = {}
        self.index: dict[str, dict[str, None]] = {}
        self.asked = 0
        for key, record in records:
            self.put(key, record)

    def put(self, key: str, record: Record) -> None:
        self.records[key] = record
        for term in terms_of(record):
            self.index.setdefault(term, {})[key] = None

    def hold(self, actor: str, seq: int, *resources: str, mode: str = "write") -> None:
        """Let an actor hold something since long ago."""
        lease = Lease(
            f"L{seq}", actor, actor, actor, tuple(sorted(resources)), mode, seq, seq, NOW_MS - 1_000, 30_000,
            NOW_MS + 29_000, NOW_MS + 3_600_000,
        )  # fmt: skip
        self.put(claim_key(lease), lease)

    def line(self, actor: str, seq: int, *resources: str, mode: str = "write") -> None:
        """Let an actor stand in line."""
        ticket = Ticket(
            f"T{seq}", actor, actor, actor, tuple(sorted(resources)), mode, 30_000, seq, NOW_MS - 500, NOW_MS + 29_500,
            NOW_MS + 3_600_000,
        )  # fmt: skip
        self.put(claim_key(ticket), ticket)

    def plead(
        self, actor: str, seq: int, *of: str, quorum: int = 1, given: tuple[str, ...] = (),
        declined: tuple[str, ...] = (),
    ) -> Pending:  # fmt: skip
        """Let an actor wait for approvals by these; A and B are of one operator, C and D of another, and so on."""
        pending = Pending(
            f"A{seq}", actor, actor, actor, "file.write", (f"db:{seq}",), "write", "", 0, "", "", of,
            tuple(map(side_of, of)), quorum, seq, NOW_MS - 500, NOW_MS + 1, given, (), declined,
        )  # fmt: skip
        self.put(ask_key(pending.ask_id), pending)
        return pending

    def get(self, key: str) -> Record | None:
        self.asked += 1
        return self.records.get(key)

    def near(self, term: str) -> Collection[str]:
        self.asked += 1
        return self.index.get(term, ())

    def due(self, t_ms: int, limit: int) -> Iterable[Timed]:
        return ()


def now(seq: int = 1_000_000, **numbers: int) -> Context:
    return Context(NOW_MS, seq, Parameters(**numbers))
