"""What an operator may ask of a ledger, and what it tells of its people: the verbs of an Agent with an operator's key.

Operators say who may act: agents, further operators, API keys, the meaning of schemes; they and agents end sessions.
The lists are pictures, as all views: nobody signs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.actions import ACTIONS
from gateway.client.caller import Caller
from gateway.client.receipts import VerifiedReceipt
from verifier.wire import JsonObject

AGENTS_PATH, OPERATORS_PATH, API_KEYS_PATH, SESSIONS_PATH = (
    ACTIONS[f"{noun}.list"].path for noun in ("agent", "operator", "apikey", "session")
)


class Office(ABC):
    """Mixed into Agent."""

    @property
    @abstractmethod
    def caller(self) -> Caller:
        """The exchange with the gateway."""

    # -- who may act ---------------------------------------------------------------------------------------------------

    async def add_agent(self, did: str, name: str | None = None, *, is_custodial: bool = False) -> VerifiedReceipt:
        """Enrol a key; this agent's own key must be an operator's.

        `is_custodial`: the gateway keeps that key and signs with it for who has the API key. Every entry of it says so.
        """
        custody: JsonObject = {"agentCustody": "gateway"} if is_custodial else {}
        return await self._decided("agent.add", {"agent": did, **_name(name), **custody})

    async def remove_agent(self, did: str) -> VerifiedReceipt:
        """Stop a key from acting; what it and its sessions hold is given back."""
        return await self._decided("agent.remove", {"agent": did})

    async def agents(self) -> list[JsonObject]:
        """Return the enrolled keys, unverified."""
        return rows_in(await self.caller.read(AGENTS_PATH), "agents")

    async def add_operator(self, did: str, name: str | None = None) -> VerifiedReceipt:
        """Let a key do all that operators do, as this one's equal."""
        return await self._decided("operator.add", {"operator": did, **_name(name)})

    async def remove_operator(self, did: str) -> VerifiedReceipt:
        """Take it away again; its agents are refused from now on, its sessions end, all is given back.

        The last operator can't be removed. Adding it again brings its agents back, and none of the sessions.
        """
        return await self._decided("operator.remove", {"operator": did})

    async def operators(self) -> list[JsonObject]:
        """Return the operators there ever were, unverified."""
        return rows_in(await self.caller.read(OPERATORS_PATH), "operators")

    # -- API keys ------------------------------------------------------------------------------------------------------

    async def issue_api_key(
        self, digest: str, kind: str, *, name: str | None = None, agent: str | None = None
    ) -> VerifiedReceipt:
        """Put an API key in force by the digest of its token (keys/token.py); nobody but its bearer has the token.

        A "live" key enrols agents and reads; with `agent`, a custodial agent, its bearer acts as that one. A "trial"
        key enrols one agent for a try.
        """
        bound: JsonObject = {} if agent is None else {"agent": agent}
        return await self._decided("apikey.issue", {"keyDigest": digest, "kind": kind, **_name(name), **bound})

    async def revoke_api_key(self, digest: str) -> VerifiedReceipt:
        """End an API key; agents that it enrolled stay."""
        return await self._decided("apikey.revoke", {"keyDigest": digest})

    async def api_keys(self) -> list[JsonObject]:
        """Return the API keys there ever were, by their digests, unverified."""
        return rows_in(await self.caller.read(API_KEYS_PATH), "apikeys")

    # -- keys of the ledger --------------------------------------------------------------------------------------------

    async def state_key(self, verb: str, statement: str) -> VerifiedReceipt:
        """Bring a statement of the root: `verb` is announce, retire or compromise (docs/protocol.md 15.7)."""
        return await self._decided(f"key.{verb}", {"statement": statement})

    async def ledger_keys(self) -> JsonObject:
        """Return which entries announced and ended the ledger's keys, and what may come next, unverified."""
        return await self.caller.read(ACTIONS["key.list"].path)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def close_session(
        self, did: str, reason: str | None = None, *, until_ms: int | None = None
    ) -> VerifiedReceipt:
        """End a session, as itself, as the agent behind it, or as an operator; what it held is given back.

        Ending it again is a success without effect (`closing.repeated`).
        """
        members: JsonObject = {"session": did, **({} if reason is None else {"reason": reason})}
        return await self._decided("session.close", members, until_ms)

    async def sessions(self, agent: str | None = None) -> list[JsonObject]:
        """Return the sessions, of one agent or of all, open and lately ended ones, unverified."""
        query = "" if agent is None else f"agent={agent}"
        return rows_in(await self.caller.read(SESSIONS_PATH, query), "sessions")

    # -- what applies --------------------------------------------------------------------------------------------------

    async def set_scheme(
        self,
        name: str,
        scheme_class: str,
        *,
        is_folding: bool = False,
        is_unicode: bool = False,
        lock_delay_ms: int | None = None,
        max_hold_ms: int | None = None,
    ) -> VerifiedReceipt:
        """Say, as an operator, what the names of a scheme mean and who may share them; None: the ledger's own value.

        Refused (scheme_busy) while a lease, a ticket or a delay of the scheme lives.
        """
        members: JsonObject = {"name": name, "class": scheme_class, "isFolding": is_folding, "isUnicode": is_unicode}
        bounds = {"lockDelayMs": lock_delay_ms, "maxHoldMs": max_hold_ms}
        members |= {member: value for member, value in bounds.items() if value is not None}
        return await self._decided("scheme.set", members)

    async def schemes(self) -> list[JsonObject]:
        """Return the registered schemes, unverified."""
        return rows_in(await self.caller.read(ACTIONS["scheme.list"].path), "schemes")

    async def load_rules(self, text: str, mode: str, version: int) -> VerifiedReceipt:
        """Put a rule set in force, as an operator; `version` is one more than that of the set before, 1 for the first.

        `mode` is "enforce", or "shadow": then what it says is written down and denies nothing.
        """
        return await self._decided("rules.load", {"rules": text, "rulesMode": mode, "rulesVersion": version})

    async def _decided(self, action: str, members: JsonObject, until_ms: int | None = None) -> VerifiedReceipt:
        """Return a decision in our favour; a refusal is raised as the exception of its kind."""
        return (await self.caller.decide(action, members, until_ms=until_ms)).in_favour().receipt


def rows_in(answer: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects of a list in an unverified answer; nothing for what is no list."""
    rows = answer.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _name(name: str | None) -> JsonObject:
    return {} if name is None else {"name": name}
