"""Who is known in a ledger, in which role and since when: operators, the enroller, agents, API keys, sessions.

Nothing is judged here. Removed agents and operators stay known, because they are refused in other words than strangers;
of ended sessions that is true for a day longer than their delegation, so memory follows live state.
Source: docs/protocol.md 28, 29.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from verifier.entries import SESSION_MEMORY_MS

OPERATOR_SHARES_MAX = 4  # into so many parts a queue is divided at most


class Who(NamedTuple):
    """For whom an actor acts, as its entries have to say."""

    principal: str
    on_behalf_of: str
    is_custodial: bool = False


@dataclass(slots=True)
class Agent:
    """`operator` answers for it; `key_digest` is the API key that enrolled it; a trial ends at `trial_until_ms`."""

    operator: str
    is_custodial: bool = False
    key_digest: str | None = None
    trial_until_ms: int | None = None
    is_removed: bool = False


@dataclass(slots=True)
class ApiKey:
    """A bearer key by its digest. A key with `agent` speaks for that one; `used_by` is whom a trial key enrolled."""

    kind: str
    agent: str | None
    operator: str
    issued_seq: int
    is_revoked: bool = False
    used_by: str | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A key that acts for `principal`. `resources` is None where it may ask for every name.

    `anchor_size` and `signed_s` are of the request with the newest anchor. `is_tidy` says that it was closed by itself
    or its agent, so that nobody is kept out by what it held.
    """

    did: str
    principal: str
    operator: str
    verbs: frozenset[str]
    resources: tuple[str, ...] | None
    opened_seq: int
    expires_at_ms: int
    idle_by_ms: int
    anchor_size: int = 0
    signed_s: int = 0
    is_shared: bool = False
    ended_seq: int | None = None
    is_tidy: bool = False
    name: str | None = None

    @property
    def due_at_ms(self) -> int:
        """When it ends by time alone, before any holiday."""
        return min(self.idle_by_ms, self.expires_at_ms)

    @property
    def let_by(self) -> tuple[str, bool]:
        """Who lets it act, and whether that is an operator rather than an agent: a key can have been both."""
        is_direct = self.principal == self.did
        return (self.operator if is_direct else self.principal), is_direct


class People:
    """`operators` are those in force, `agents` and `sessions` by DID, `keys` by digest, `open` by openedSeq."""

    def __init__(self, operators: frozenset[str] = frozenset(), enroller: str = "") -> None:
        self.operators = set(operators)
        self.former: set[str] = set()  # operators that were removed
        self.enroller = enroller
        self.agents: dict[str, Agent] = {}
        self.keys: dict[str, ApiKey] = {}
        self.sessions: dict[str, Session] = {}  # ended ones too, for a while
        self.open: dict[int, Session] = {}
        self.of: dict[str, dict[Session, None]] = {}  # by principal, the open ones
        self.used: dict[str, int] = {}  # by trial agent, how many entries it caused
        self.labels: dict[str, str] = {}  # the last label of each agent
        self.remembered: Counter[tuple[str, bool]] = Counter()  # by who lets them act, how many of `sessions`
        self._forgettable: list[tuple[int, int, Session]] = []  # a heap: from when on, openedSeq

    @property
    def shares(self) -> int:
        """Into how many parts a queue is divided among operators."""
        return min(OPERATOR_SHARES_MAX, max(1, len(self.operators)))

    def principal(self, actor: str) -> str:
        """Return whose trust, names and waits an actor's count as."""
        session = self.sessions.get(actor) if self.sessions else None
        return actor if session is None else session.principal

    def label(self, did: str) -> str | None:
        """Return what a key is called: a session without a name as its agent."""
        session = self.sessions.get(did) if self.sessions else None
        if session is None:
            return self.labels.get(did)
        return session.name or self.labels.get(session.principal)

    def agent(self, did: str) -> Agent | None:
        """Return an agent that is in force."""
        agent = self.agents.get(did)
        return None if agent is None or agent.is_removed else agent

    def who(self, actor: str) -> Who | None:
        """Return for whom a known actor acts, in force or not."""
        session = self.sessions.get(actor)
        if session is not None:
            return Who(session.principal, session.operator)
        agent = self.agents.get(actor)
        if agent is not None and actor not in self.operators:
            return Who(actor, agent.operator, agent.is_custodial)
        is_own = actor in self.operators or actor in self.former
        return Who(actor, actor, actor == self.enroller) if is_own or actor == self.enroller else None

    def begin(self, session: Session) -> None:
        self.sessions[session.did] = session
        self.open[session.opened_seq] = session
        self.of.setdefault(session.principal, {})[session] = None
        self.remembered[session.let_by] += 1

    def end(self, session: Session, seq: int) -> None:
        """A session ends by the entry `seq`."""
        session.ended_seq = seq
        self.open.pop(session.opened_seq, None)
        behind = self.of.get(session.principal, {})
        behind.pop(session, None)
        if not behind:
            self.of.pop(session.principal, None)
        heappush(self._forgettable, (session.expires_at_ms + SESSION_MEMORY_MS, session.opened_seq, session))

    def forget(self, now_ms: int) -> None:
        """Forget the ended sessions whose delegation is long over: their keys may be opened again."""
        while self._forgettable and self._forgettable[0][0] <= now_ms:
            *_, session = heappop(self._forgettable)
            self.remembered[session.let_by] -= 1
            if not self.remembered[session.let_by]:
                del self.remembered[session.let_by]
            if self.sessions.get(session.did) is session:
                del self.sessions[session.did]


def operators(did: str) -> str:
    """Return under what things are found that all have together for whom an operator answers; no DID begins so."""
    return "@" + did
