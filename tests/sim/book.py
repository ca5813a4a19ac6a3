"""What the checker remembers of the leaves so far: plain lists, walked from end to end each time.

Everything here is written from the specification, with loops that a reader can check by eye. Nothing is imported from
the gateway, so that a mistake there is not repeated here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.sim.limits import Limits
from tests.sim.names import key_of, overlap, scheme_of, share
from tests.sim.pleas import Plea

RANK = {"read": 0, "append": 1, "write": 2, "delete": 3}


class Violation(AssertionError):
    """An invariant does not hold; `name` says which."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


@dataclass(eq=False)
class Lease:
    lease_id: str
    actor: str
    names: list[str]
    mode: str
    token: int
    seq: int
    granted_ms: int
    ttl_ms: int
    expires_ms: int
    hold_until_ms: int
    giver: str | None = None
    giver_until_ms: int = 0
    principal: str = ""


@dataclass(eq=False)
class Ticket:
    ticket_id: str
    seq: int
    actor: str
    operator: str
    names: list[str]
    mode: str
    ttl_ms: int
    queued_ms: int
    poll_by_ms: int
    give_up_by_ms: int
    is_offered: bool = False
    claim_by_ms: int = 0
    reserve_until_ms: int | None = None
    was_reserved: bool = False
    passes: int = 0
    principal: str = ""


@dataclass(eq=False)
class Delay:
    """The lock-delay after an abnormal end: others are kept out until then."""

    actor: str
    names: list[str]
    mode: str
    until_ms: int
    seq: int
    principal: str = ""


@dataclass(eq=False)
class Ended:
    actor: str
    how: str
    seq: int
    at_ms: int
    token: int = 0


@dataclass(eq=False)
class Trust:
    value: int
    seq: int | None = None
    gain_since_ms: int = 0
    gained: int = 0


@dataclass(eq=False)
class Agent:
    """An agent, in force or not; `trial_until_ms` while an API key of a trial answers for it."""

    operator: str
    is_custodial: bool = False
    trial_until_ms: int | None = None
    is_removed: bool = False


@dataclass(eq=False)
class ApiKey:
    kind: str
    agent: str | None
    operator: str
    seq: int
    is_revoked: bool = False
    used_by: str | None = None


@dataclass(eq=False)
class Session:
    """A key of short life; `names` is None where it may ask for any. `is_tidy`: closed by itself or its agent."""

    did: str
    principal: str
    operator: str
    verbs: list[str]
    names: list[str] | None
    seq: int
    expires_ms: int
    idle_by_ms: int
    heard_seq: int
    anchor_size: int
    signed_s: int
    shared_seq: int | None = None
    ended_seq: int | None = None
    is_tidy: bool = False


@dataclass
class Book:
    """The state at the head, by the specification."""

    rules: dict[str, int]
    operators: list[str]  # in force
    t_ms: int = 0
    enroller: str = ""
    former: list[str] = field(default_factory=list)  # operators that were removed
    api_keys: dict[str, ApiKey] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    used: dict[str, int] = field(default_factory=dict)  # by agent on trial: how many entries it caused
    holiday_ms: int = 0
    token: int = 0
    is_disputed: bool = False
    agents: dict[str, Agent] = field(default_factory=dict)
    schemes: dict[str, dict[str, Any]] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)
    tickets: list[Ticket] = field(default_factory=list)
    ended_tickets: dict[str, Ended] = field(default_factory=dict)
    delays: list[Delay] = field(default_factory=list)
    offers: dict[str, tuple[str, bool, int]] = field(default_factory=dict)  # lease id: to, by an operator, seq
    waits: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # (principal, name): count, last
    edges: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # actor: name, mode, refused at
    trust: dict[str, Trust] = field(default_factory=dict)
    broken: dict[int, Ended] = field(default_factory=dict)
    limits: Limits | None = None  # the rule set in force
    used_up: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # by what, whose, and window
    burnt: dict[tuple[str, str], int] = field(default_factory=dict)  # approver and nonce: until when it counts as used
    pleas: dict[str, Plea] = field(default_factory=dict)  # by the id of the ask

    # -- people -------------------------------------------------------------------------------------------------------

    def agent(self, did: str) -> Agent | None:
        """Return an agent that was not removed."""
        agent = self.agents.get(did)
        return None if agent is None or agent.is_removed else agent

    def session(self, did: str) -> Session | None:
        """Return the session of a key that is remembered: open, or ended until a day after its delegation."""
        session = self.sessions.get(did)
        is_over = session is not None and session.ended_seq is not None and self.t_ms >= session.expires_ms + 86_400_000
        return None if is_over else session

    def open_sessions(self) -> list[Session]:
        """Return them as they were opened."""
        found = [one for one in self.sessions.values() if one.ended_seq is None]
        return sorted(found, key=lambda one: one.seq)

    def remembered(self, did: str, principal: str, operator: str) -> list[Session]:
        """Return the sessions of a principal that are remembered; for a session of an operator itself, of all such."""
        known = [one for one in self.sessions.values() if self.session(one.did) is one]
        if principal != did:
            return [one for one in known if one.principal == principal]
        return [one for one in known if one.principal == one.did and one.operator == operator]

    def session_end_ms(self, session: Session) -> int:
        """Return when a session ends unless it is heard of again."""
        return max(min(session.idle_by_ms, session.expires_ms), self.holiday_ms)

    def on_trial(self, did: str) -> Agent | None:
        """Return an agent that an API key of a trial answers for, if this is one and acts as such."""
        agent = self.agents.get(did)
        session = self.session(did)
        is_session = session is not None and session.ended_seq is None
        return None if agent is None or agent.trial_until_ms is None or is_session else agent

    def may_hold(self, actor: str) -> bool:
        """Say whether an actor may have leases and tickets: it is in force, and who answers for it is."""
        session, agent = self.session(actor), self.agent(actor)
        if session is not None:
            return session.ended_seq is None
        return agent is not None and agent.operator in self.operators

    def live_pleas(self) -> list[Plea]:
        """Return the asks for approval that wait for somebody."""
        return [one for one in self.pleas.values() if one.is_live(self.t_ms)]

    def share(self, bound: int) -> int:
        """Return how much of a bound one operator's people may use."""
        return max(1, bound // min(4, len(self.operators)))

    # -- names --------------------------------------------------------------------------------------------------------

    def scheme(self, name: str) -> dict[str, Any]:
        plain = {
            "class": "exclusive",
            "isFolding": False,
            "isUnicode": False,
            "lockDelayMs": self.rules.get("lockDelayMs", 0),
            "maxHoldMs": self.rules["maxHoldMs"],
        }
        return self.schemes.get(scheme_of(name), plain)

    def key(self, name: str) -> str:
        return key_of(name, self.scheme(name)["isFolding"])

    def keys(self, names: list[str]) -> list[str]:
        """Return the keys of a set of names, each once: two spellings may be one key."""
        return sorted({self.key(name) for name in names})

    def meets(self, name: str, other: str) -> bool:
        return overlap(self.key(name), self.key(other))

    def clashes(self, names: list[str], mode: str, others: list[str], other_mode: str) -> bool:
        """Say whether the two sets overlap somewhere in a scheme whose class does not let the modes share."""
        for name in names:
            for other in others:
                if self.meets(name, other) and not share(self.scheme(name)["class"], mode, other_mode):
                    return True
        return False

    def least(self, names: list[str], mode: str, other: Lease | Ticket) -> str | None:
        """Return the least of `names` that excludes a lease or ticket."""
        excluding = [name for name in names if self.clashes([name], mode, other.names, other.mode)]
        return min(excluding, default=None)

    # -- what stands in the way ---------------------------------------------------------------------------------------

    def end_ms(self, lease: Lease) -> int:
        return max(lease.expires_ms, self.holiday_ms)

    def leases_in_the_way(self, actor: str, names: list[str], mode: str) -> list[Lease]:
        """Return them as they are named: latest effective end, then lowest token."""
        found = [
            lease
            for lease in self.leases
            if lease.actor != actor and self.clashes(names, mode, lease.names, lease.mode)
        ]
        return sorted(found, key=lambda lease: (-self.end_ms(lease), lease.token))

    def let_delays_go(self) -> int:
        """A delay ends without an entry: it is over at the first entry at or after its end, outside a holiday.

        Return how many do.
        """
        before = len(self.delays)
        self.delays = [one for one in self.delays if self.t_ms < max(one.until_ms, self.holiday_ms)]
        return before - len(self.delays)

    def delays_in_the_way(self, actor: str, names: list[str], mode: str) -> list[Delay]:
        return [
            delay
            for delay in self.delays
            if delay.actor != actor and self.clashes(names, mode, delay.names, delay.mode)
        ]

    def deadline_ms(self, ticket: Ticket) -> int:
        if ticket.is_offered:
            own = min(ticket.claim_by_ms, ticket.give_up_by_ms)
        else:
            own = min(ticket.poll_by_ms, ticket.give_up_by_ms)
        return max(own, self.holiday_ms)

    def is_live(self, ticket: Ticket) -> bool:
        return self.t_ms < self.deadline_ms(ticket)

    def is_resuming(self, ticket: Ticket) -> bool:
        """Say whether a reservation is over and the ticket has to wait on as it did before."""
        if ticket.reserve_until_ms is None or ticket.is_offered or not self.is_live(ticket):
            return False
        return self.t_ms >= max(ticket.reserve_until_ms, self.holiday_ms)

    def tickets_in_the_way(
        self, actor: str, names: list[str], mode: str, number: int | None, passed: tuple[str, ...] = ()
    ) -> list[Ticket]:
        """Return others' tickets that stand in the way of a plain request (`number` None) or of ticket `number`."""
        found = []
        for ticket in self.tickets:
            if ticket.actor == actor or not self.is_live(ticket):
                continue
            if not self.clashes(names, mode, ticket.names, ticket.mode):
                continue
            if number is not None and ticket.seq > number and not ticket.is_offered:
                continue
            if ticket.is_offered or self.blocks(ticket, is_plain=number is None, passed=passed):
                found.append(ticket)
        return found

    def blocks(self, ticket: Ticket, *, is_plain: bool, passed: tuple[str, ...]) -> bool:
        """Say whether a queued ticket blocks: one name, or reserved, or nothing in its own way."""
        if not is_plain and ticket.ticket_id in passed:
            return False
        if len(ticket.names) == 1 or ticket.reserve_until_ms is not None:
            return True
        return not self.leases_in_the_way(ticket.actor, ticket.names, ticket.mode) and not self.delays_in_the_way(
            ticket.actor, ticket.names, ticket.mode
        )
