"""The door for those who have no key of their own: a token comes in, an ordinary signed request goes on to the desk.

House rules of this file:

* A token decides nothing. What it asks for is signed with a key that this gateway holds, and from there on it is one
  more request: desk, core, leaf and verifier know one kind. The leaf says `custody: gateway`, because who holds the key
  could have signed without being asked.
* A key with an agent speaks for that agent. A key without one lets new keys be enrolled, and if it is no trial key, it
  reads. No token ever signs what an operator signs.
* Tokens are not kept, logged or repeated; all that is known of one is its SHA-256. It is looked up under that, and the
  time which that takes tells nobody how much of a guess was right: one that is nearly right has another digest.

Source: docs/protocol.md 30.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gateway.actions import ACTIONS, Action
from gateway.client.signing import Draft, new_idempotency_key
from gateway.core.authority import agent_fault, is_operator
from gateway.core.draft import View
from gateway.core.intake import RawRequest, Rejection
from gateway.core.lookup import agent_at, apikey_at
from gateway.core.records import ApiKey
from gateway.ledger.sequencer import Sequencer
from gateway.news import News
from gateway.service import Answered, Desk, Ledger, signed_here
from keys.files import CUSTODY, KeyFileError, load_key
from keys.signing import SigningKey
from keys.token import digest_of, kind_of
from verifier.entries import DID
from verifier.request import parse_idempotency_key
from verifier.wire import JsonObject, Malformed, encode_base64, encode_canonical

ENROLMENT_MEMBERS = ("agent", "name", "proof")  # of agent.add; the rest is the gateway's to add
T = TypeVar("T")
_log = logging.getLogger("tallystick.bearer")


class Custody:
    """The keys that this gateway holds for agents: `<folder>/<DID>.key`, opened when first needed and kept then."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[str, SigningKey] = {}

    def key(self, did: str) -> SigningKey | None:
        """Return the key of an agent; None, and a line in the log for the operator, when it can't be used."""
        if did not in self._keys:
            try:
                key = load_key(self._folder / f"{did}.key", purpose=CUSTODY)
            except KeyFileError as error:
                _log.error("a custodial agent can't act: %s", error)
                return None
            if key.did != did:
                _log.error("a custodial agent can't act: the file of %s holds the key %s", did, key.did)
                return None
            self._keys[did] = key
        return self._keys[did]


class BearerDoor:
    """Turns what a token asks for into a signed request, and lets the desk decide it."""

    def __init__(
        self, sequencer: Sequencer, ledger: Ledger, desk: Desk, *, enroller: SigningKey, custody: Custody, news: News
    ) -> None:
        assert enroller.did == ledger.enroller, "entry 0 names the key that enrols"
        self._sequencer = sequencer
        self._ledger = ledger
        self._desk = desk
        self._enroller = enroller
        self._custody = custody
        self._news = news

    async def known(self, token: str, look: Callable[[str], T]) -> T:
        """Return what `look` finds out about a token; where another node knows more, once that is known here, too."""
        if kind_of(token) is None:
            return look(token)
        return await self._news.known(lambda: look(token), Rejection)

    async def decide(
        self, token: str, action: Action, members: JsonObject, *, idempotency_key: str | None, wait_ms: int
    ) -> Answered:
        """Decide `action` for the agent behind `token`; raises what the desk raises, and Rejection `token_invalid`.

        `members` are those of the body; ledger and actorDid may be left out. `idempotency_key` may be in quotes;
        without one every call is an intention of its own.
        """
        if action.signer != "agent":
            raise Rejection("signature_missing", "an API key does only what agents do; this is asked with a signature")
        key = self._custody.key(await self.known(token, self.agent_of))
        if key is None:
            raise Rejection("token_invalid", "this gateway does not hold the key of the agent behind this API key")
        raw = self._signed(key, action, members, _bare(idempotency_key) or new_idempotency_key())
        return await self._desk.decide(raw, action, wait_ms=wait_ms, check=lambda view: self.agent_of(token, view))

    async def enrol(self, token: str, members: JsonObject) -> Answered:
        """Enrol the key `agent`, which signed `proof`, in the name of an API key that stands for no agent itself.

        Asking again for the same pair gets the first answer, until the agent is removed.
        """
        key = await self.known(token, self.key_of)
        if key.agent is not None:
            raise Rejection("token_invalid", "this API key speaks for one agent; use one that was issued for enrolment")
        unknown = sorted(members.keys() - set(ENROLMENT_MEMBERS))
        if unknown:
            raise Rejection("member_unknown", f"member {unknown[0][:64]!r} is not known here; leave it out")
        did = members.get("agent")
        if not isinstance(did, str) or not DID.check(did):
            raise Rejection("member_invalid", f"member agent must be {DID.bound}")
        if key.kind == "trial" and key.used_by not in (None, did):  # a refusal of the core would be an entry
            raise Rejection("token_invalid", "this trial key has enrolled another agent; ask an operator for one more")
        agent = agent_at(self._sequencer.view, did)
        life = "" if agent is None or agent.removed_seq is None else f":{agent.removed_seq}"
        idempotency_key = f"enrol:{key.digest[:32]}:{did}{life}"
        action = ACTIONS["agent.add"]
        raw = self._signed(self._enroller, action, {**members, "keyDigest": key.digest}, idempotency_key)
        return await self._desk.decide(raw, action)

    def agent_of(self, token: str, view: View | None = None) -> str:
        """Return the DID of the agent that a token speaks for; Rejection when it speaks for none that may act.

        By the records that are shown, unless others are given.
        """
        view = self._sequencer.view if view is None else view
        key = self.key_of(token, view)
        if key.agent is None:
            raise Rejection("token_invalid", "this API key enrols and reads; one that was issued for an agent decides")
        agent = agent_at(view, key.agent)
        is_theirs = agent is not None and agent.is_custodial and agent.operator == key.operator
        if agent is None or not is_theirs or agent_fault(view, agent, self._sequencer.time_ms) is not None:
            raise Rejection("token_invalid", "the agent behind this API key was removed, or has another operator now")
        return key.agent

    def reader_of(self, token: str) -> ApiKey:
        """Return the API key of a token that reads; Rejection when it does not."""
        key = self.key_of(token)
        if key.kind != "live":
            raise Rejection("token_invalid", "a trial key enrols one agent and reads nothing; sign as that agent")
        if key.agent is not None:
            self.agent_of(token)
        return key

    def key_of(self, token: str, view: View | None = None) -> ApiKey:
        """Return the API key in force that a token is; Rejection when it is none."""
        view = self._sequencer.view if view is None else view
        if kind_of(token) is None:
            raise Rejection("token_invalid", "this is no API key as one is spelled; copy it again, whole and unchanged")
        key = apikey_at(view, digest_of(token))
        if key is None or key.revoked_seq is not None:
            raise Rejection("token_invalid", "no such API key is in force here")
        if not is_operator(view, key.operator):
            raise Rejection("token_invalid", "the operator that issued this API key was removed")
        return key

    def _signed(self, key: SigningKey, action: Action, members: JsonObject, idempotency_key: str) -> RawRequest:
        """Return the request as its agent would have sent it, anchored in the newest history that there is."""
        newest = self._sequencer.confirmed
        named: JsonObject = {"ledger": self._ledger.origin, "actorDid": key.did, **members}
        try:
            body = encode_canonical(named)
        except Malformed as error:
            raise Rejection("body_malformed", str(error)) from error
        anchor = f"{self._ledger.origin} {newest.size} {encode_base64(newest.root)}"
        draft = Draft("POST", min(self._ledger.authorities), action.path, "", anchor, body, idempotency_key)
        return signed_here(draft, key, self._sequencer.time_ms)


def _bare(idempotency_key: str | None) -> str | None:
    """Return an idempotency key without its quotes, which few HTTP clients send."""
    if idempotency_key is None:
        return None
    is_quoted = len(idempotency_key) >= 2 and idempotency_key[0] == idempotency_key[-1] == '"'
    try:
        return parse_idempotency_key(idempotency_key if is_quoted else f'"{idempotency_key}"')
    except Malformed as error:
        raise Rejection("idempotency_key_malformed", str(error)) from error
