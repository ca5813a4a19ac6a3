"""A hall with everybody who may act in it, and short words for what comes of an act.

`op` and `op2` are operators; A and B are agents of `op`, X is one of `op2`; sessions are opened by each test.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from hashlib import sha256
from typing import Any, ClassVar

from gateway.core.lookup import agent_at, operator_at, session_at
from gateway.core.outcome import Recorded, Replay, Unreceipted
from gateway.core.records import Agent, Operator, Record, Session
from tests.core.hall import Hall, Told
from tests.core.requests import Ask, add, add_operator, did_of, issue

Records = dict[str, Record]


def digest(name: str) -> str:
    """Return the digest by which an API key of this name is known."""
    return sha256(f"tsk_{name}".encode()).hexdigest()


class Crew(Hall):
    """Operators op and op2, agents A and B of the first and X of the second.

    The ledgers that were made last are audited when their test is over (conftest.py).
    """

    made: ClassVar[deque[Crew]] = deque(maxlen=4)

    def __init__(self, **numbers: int) -> None:
        super().__init__("AB", **numbers)
        Crew.made.append(self)
        assert self.tell(add_operator("op", "op2")) == "operator.added"
        assert self.tell(add("op2", "X")) == "agent.added"

    def now(self, ask: Ask) -> Ask:
        created = self.t_ms // 1_000
        return replace(ask, created=created, expires=created + 60)

    def tell(self, ask: Ask, **how: Any) -> str:
        """Sign a request now and say in a word what comes of it: the refusal's name, `replay`, or what is written."""
        answer = self.play(self.t_ms, self.now(ask), **how)
        if isinstance(answer, Unreceipted):
            return answer.refusal.name
        if isinstance(answer, Replay):
            return "replay"
        assert isinstance(answer, Recorded)
        leaf = self.leaf(answer.seq)
        return str(leaf.value.get("error", leaf.type.split("/")[1]))

    def after(self, ask: Ask) -> list[Told]:
        """Return the entries that a request causes after its own."""
        mark = len(self.leaves)
        self.say(ask)
        return self.told(mark)[1:]

    def agent(self, name: str) -> Agent:
        agent = agent_at(self.shelf, did_of(name))
        assert agent is not None
        return agent

    def operator(self, name: str) -> Operator:
        operator = operator_at(self.shelf, did_of(name))
        assert operator is not None
        return operator

    def session(self, name: str) -> Session:
        session = session_at(self.shelf, did_of(name))
        assert session is not None
        return session

    def key(self, name: str, kind: str, by: str = "op", **members: Any) -> str:
        """Issue an API key, which has to succeed, and return its digest."""
        assert self.tell(issue(by, digest(name), kind, **members)) == "apikey.issued"
        return digest(name)

    def lasting(self) -> Records:
        """Return what a refused decision must leave as it is: all records but spent keys, quotas and presence."""
        kept = {k: r for k, r in self.shelf.records.items() if not k.startswith(("idem/", "nonce/", "quota/"))}
        return {k: _absent(r) if isinstance(r, Session) else r for k, r in kept.items()}

    def refuses(self, ask: Ask) -> str:
        """Say what comes of a request that must be refused, and see to it that nothing changes by that."""
        before, size = self.lasting(), len(self.leaves)
        told = self.tell(ask)
        assert self.lasting() == before, "a refusal changes nothing"
        assert len(self.leaves) - size <= 1, "a refusal is one entry at most"
        return told


def _absent(session: Session) -> Session:
    return session._replace(idle_by_ms=0, anchor_size=0, signed_s=0, shared_seq=None)
