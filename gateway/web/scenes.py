"""What pictures are made of, once per head: many who look cost no more than one.

House rules of this file:

* A walk through the live records happens on the thread that decides, so readers share it: whoever comes while the head
  stands gets the same bytes. Under load a new scene is made at most every GAP_SECONDS, and a dear one so rarely that
  looking takes a twentieth of the thread at most.
* Nobody is shown less than it has seen: who comes after the head moved waits for the next scene.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from heapq import nlargest
from time import monotonic
from typing import Protocol

import orjson

from gateway.core.admissionview import Shelf, asks_view, usages_view
from gateway.core.lookup import operator_at
from gateway.core.parameters import Parameters
from gateway.core.records import Agent, ApiKey, Keys, LedgerKey, Operator, Scheme, Session
from gateway.core.waitview import Scene, leases_view, look, wait_view
from gateway.core.waitview import Shelf as Walked
from gateway.ledger.sequencer import Sequencer

GAP_SECONDS = 0.25
AGE_SECONDS_MAX = 1.0  # on a ledger that stands still: leases and refusals run out without an entry
GAP_PER_COST = 20
KEPT_MAX = 32  # finished answers of one scene
ENDED_SESSIONS_MAX = 1_000  # told in one list; a busy agent leaves thousands a day behind, remembered for a week

Question = tuple[str, str]


class Shelves(Walked, Shelf, Protocol):
    """The live records, to be walked through with their keys or without."""


class Scenes:
    """Answers questions about the live state from the scene of the newest head, with finished bytes."""

    def __init__(
        self, shelf: Shelves, sequencer: Sequencer, parameters: Parameters, clock: Callable[[], float] = monotonic
    ) -> None:
        self._shelf = shelf
        self._sequencer = sequencer
        self._parameters = parameters
        self._clock = clock
        self._scene: Scene | None = None
        self._size = 0  # of the ledger when the scene was made
        self._made_s = 0.0
        self._number = 0
        self._not_before_s = 0.0
        self._kept: dict[Question, bytes] = {}

    async def everything(self) -> bytes:
        """Return who holds what and who waits."""
        return await self._answer(("wait", ""), wait_view)

    async def resource(self, name: str) -> bytes:
        """Return who holds and who waits for one resource."""
        return await self._answer(("resource", name), lambda scene: wait_view(scene, name))

    async def holder(self, did: str) -> bytes:
        """Return the leases of one holder."""
        return await self._answer(("holder", did), lambda scene: leases_view(scene, did))

    async def agents(self) -> bytes:
        """Return every key that was ever enrolled, in the order of enrolment."""
        return await self._answer(("agents", ""), lambda _: self._agents())

    async def sessions(self, agent: str) -> bytes:
        """Return the open sessions and those that ended last, or those of one principal, in the order of opening."""
        return await self._answer(("sessions", agent), lambda _: self._sessions(agent))

    async def operators(self) -> bytes:
        """Return every key that ever was an operator, in the order of their entries."""
        return await self._answer(("operators", ""), lambda _: self._operators())

    async def keys(self) -> bytes:
        """Return every key of the ledger, in the order of their entries, and what may come next."""
        return await self._answer(("keys", ""), lambda _: self._keys())

    async def apikeys(self) -> bytes:
        """Return every API key, in the order of issue."""
        return await self._answer(("apikeys", ""), lambda _: self._apikeys())

    async def usages(self) -> bytes:
        """Return what was admitted to each agent and operator and on each scheme."""
        return await self._answer(("usages", ""), lambda scene: usages_view(self._shelf, scene.t_ms))

    async def asks(self, of: str, by: str) -> bytes:
        """Return the requests for approval: all, those of one asker, those that one approver has still to answer."""
        return await self._answer(
            ("asks", f"{of} {by}"), lambda scene: asks_view(self._shelf, scene.t_ms, of=of, by=by)
        )

    async def schemes(self) -> bytes:
        """Return every scheme that an operator set, by name."""
        return await self._answer(("schemes", ""), lambda _: self._schemes())

    async def _answer(self, question: Question, draw: Callable[[Scene], Mapping[str, object]]) -> bytes:
        scene = await self._newest()
        if question not in self._kept:
            begun_s = self._clock()
            answer = orjson.dumps({"ok": True, **draw(scene)})
            if len(self._kept) == KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[question] = answer
            self._rest(begun_s)
        return self._kept[question]

    async def _newest(self) -> Scene:
        """Return a scene of the newest head, or one that was made after the caller came."""
        number = self._number
        while self._scene is None or (self._number == number and not self._is_fresh()):
            pause_s = self._not_before_s - self._clock()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            else:
                self._look()
        return self._scene

    def _is_fresh(self) -> bool:
        is_young = self._clock() - self._made_s < AGE_SECONDS_MAX
        return is_young and self._size == self._sequencer.confirmed.size

    def _look(self) -> None:
        begun_s = self._clock()
        self._scene = look(self._shelf, self._sequencer.time_ms, self._parameters)
        self._size, self._made_s = self._sequencer.confirmed.size, begun_s
        self._number += 1
        self._kept.clear()
        self._rest(begun_s)

    def _rest(self, begun_s: float) -> None:
        """Put the next look off for as long as this one makes due."""
        now_s = self._clock()
        self._not_before_s = max(self._not_before_s, now_s + max(GAP_SECONDS, GAP_PER_COST * (now_s - begun_s)))

    def _agents(self) -> Mapping[str, object]:
        enrolled = [record for record in self._shelf.scan("agent/") if isinstance(record, Agent)]
        operators = {agent.operator: operator_at(self._shelf, agent.operator) for agent in enrolled}
        told = sorted(enrolled, key=lambda agent: agent.added_seq)
        return {"agents": [_agent_row(agent, operators[agent.operator]) for agent in told]}

    def _sessions(self, agent: str) -> Mapping[str, object]:
        found = [record for record in self._shelf.scan("session/") if isinstance(record, Session)]
        asked = [session for session in found if agent in ("", session.principal)]
        ended = nlargest(
            ENDED_SESSIONS_MAX, (one for one in asked if not one.is_open), key=lambda one: one.ended_seq or 0
        )
        told = [one for one in asked if one.is_open] + ended
        return {"sessions": [_session_row(one) for one in sorted(told, key=lambda session: session.opened_seq)]}

    def _operators(self) -> Mapping[str, object]:
        found = [record for record in self._shelf.scan("operator/") if isinstance(record, Operator)]
        return {"operators": [_operator_row(one) for one in sorted(found, key=lambda one: (one.added_seq, one.did))]}

    def _keys(self) -> Mapping[str, object]:
        found = [record for record in self._shelf.scan("key/") if isinstance(record, LedgerKey)]
        told = sorted(found, key=lambda key: (key.announced_seq, key.vkey))
        sets = [record for record in self._shelf.scan("ledger/keys/") if isinstance(record, Keys)]
        following = {keys.purpose: keys.next_hash for keys in sets if keys.next_hash is not None}
        return {"keys": [_key_row(key) for key in told], "next": following}

    def _apikeys(self) -> Mapping[str, object]:
        found = [record for record in self._shelf.scan("apikey/") if isinstance(record, ApiKey)]
        return {"apikeys": [_apikey_row(one) for one in sorted(found, key=lambda key: key.issued_seq)]}

    def _schemes(self) -> Mapping[str, object]:
        schemes = [record for record in self._shelf.scan("scheme/") if isinstance(record, Scheme)]
        return {"schemes": [_scheme_row(scheme) for scheme in sorted(schemes, key=lambda scheme: scheme.name)]}


def _scheme_row(scheme: Scheme) -> dict[str, object]:
    return {
        "name": scheme.name,
        "class": scheme.class_name,
        "isFolding": scheme.is_folding,
        "isUnicode": scheme.is_unicode,
        "lockDelayMs": scheme.lock_delay_ms,
        "maxHoldMs": scheme.max_hold_ms,
        "seq": scheme.seq,
    }


def _agent_row(agent: Agent, operator: Operator | None) -> dict[str, object]:
    perhaps = {
        "name": agent.name,
        "agentCustody": "gateway" if agent.is_custodial else None,
        "keyDigest": agent.key_digest,
        "trialUntilMs": agent.trial_until_ms,
        "removedSeq": agent.removed_seq,
        "operatorRemovedSeq": None if operator is None else operator.removed_seq,
    }
    return {"did": agent.did, "addedSeq": agent.added_seq, "operator": agent.operator, **_told(perhaps)}


def _session_row(session: Session) -> dict[str, object]:
    row: dict[str, object] = {
        "did": session.did,
        "agent": session.principal,
        "onBehalfOf": session.on_behalf_of,
        "verbs": list(session.verbs),
        "openedSeq": session.opened_seq,
        "expiresAtMs": session.expires_at_ms,
        "endsIfIdleAtMs": session.due_at_ms,
        "isShared": session.shared_seq is not None,
    }
    perhaps = {
        "name": session.name,
        "scope": list(session.resources) or None,
        "activity": session.activity,
        "sharedSeq": session.shared_seq,
        "endedSeq": session.ended_seq,
    }
    return {**row, **_told(perhaps)}


def _operator_row(operator: Operator) -> dict[str, object]:
    perhaps = {"name": operator.name, "removedSeq": operator.removed_seq}
    return {"did": operator.did, "addedSeq": operator.added_seq, **_told(perhaps)}


def _key_row(key: LedgerKey) -> dict[str, object]:
    row: dict[str, object] = {"purpose": key.purpose, "key": key.vkey, "announcedSeq": key.announced_seq}
    return {**row, **_told({"endedSeq": key.ended_seq, "isCompromised": key.is_compromised or None})}


def _apikey_row(key: ApiKey) -> dict[str, object]:
    perhaps = {"name": key.name, "agent": key.agent, "usedBy": key.used_by, "revokedSeq": key.revoked_seq}
    row: dict[str, object] = {"keyDigest": key.digest, "kind": key.kind, "operator": key.operator}
    return {**row, "issuedSeq": key.issued_seq, **_told(perhaps)}


def _told(members: Mapping[str, object]) -> dict[str, object]:
    """Return the members that there are."""
    return {name: value for name, value in members.items() if value is not None}
