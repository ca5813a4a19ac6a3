"""Statements by which a key lets another key act for it: made here, without any network, and read again from a file.

    [agent → session]                         an agent's session
    [operator → session]                      a session that an operator answers for, without an agent
    [operator → agent, agent → session]       an agent's session within what an operator lent to that agent

A statement is no secret and no ticket: only the key that it names can use it, and only until it ends. It can narrow
what its signer may do and never widen it. Who holds neither key can't change it; who reads it learns who works for
whom. What is signed, and every check of it, is the verifier's (verifier/delegation.py).

Source: docs/protocol.md 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keys.signing import SigningKey
from verifier.delegation import Delegation, is_wider, parse_delegations, statement_bytes
from verifier.entries import DELEGATION_MS_MAX, DELEGATION_TYPE, VERBS
from verifier.wire import TEXT_BYTES_MAX, JsonObject, JsonValue, Malformed, encode_base64, encode_canonical, parse_json

TTL_MS_DEFAULT = 28_800_000  # eight hours: a working day, and what a lost session key is worth to its finder
TTL_MS_MIN = 1_000
# The ledger allows no skew here, so a statement begins a little before this machine believes it is signed.
BACKDATE_MS = 120_000


@dataclass(frozen=True, slots=True)
class Scope:
    """What is lent: verbs of "admit", "lease" and "transfer", and names (None: all that the signer itself may use)."""

    verbs: tuple[str, ...] = VERBS
    resources: tuple[str, ...] | None = None

    @property
    def members(self) -> JsonObject:
        verbs: list[JsonValue] = [*sorted(set(self.verbs))]
        names: list[JsonValue] = [*sorted(set(self.resources or ()))]
        return {"verbs": verbs} if self.resources is None else {"verbs": verbs, "resources": names}


@dataclass(frozen=True, slots=True)
class SignedDelegation:
    """A statement with its signature: `row` is the JSON object of both, as a body and a file have it."""

    row: JsonObject
    says: Delegation

    def encode(self) -> bytes:
        """Return the bytes of a file that hands it over."""
        return encode_canonical(self.row) + b"\n"


def delegate(
    key: SigningKey,
    subject: str,
    *,
    origin: str,
    now_ms: int,
    ttl_ms: int = TTL_MS_DEFAULT,
    scope: Scope | None = None,
    may_delegate: bool = False,
    parent: SignedDelegation | None = None,
) -> SignedDelegation:
    """Return the statement with which `key` lets `subject` act in the ledger `origin`, for `ttl_ms` from `now_ms` on.

    `parent` is what `key` itself was lent: the statement ends with it at the latest and, without a `scope`, lends all
    of it. Malformed for what the ledger would refuse: more than seven days, an unknown verb, names out of bounds,
    anything that the parent does not lend.
    """
    if not TTL_MS_MIN <= ttl_ms <= DELEGATION_MS_MAX:
        raise Malformed("a delegation lasts from 1 second to 7 days")
    if parent is not None and parent.says.sub != key.did:
        raise Malformed(f"the statement was handed to {parent.says.sub}, not to this profile's key, {key.did}")
    begins_ms, ends_ms = _span(now_ms, ttl_ms, parent)
    above = None if parent is None else parent.says
    lent = scope or (Scope() if above is None else Scope(above.verbs, above.resources))
    statement: JsonObject = {
        "type": DELEGATION_TYPE, "iss": key.did, "sub": subject, "aud": origin, **lent.members,
        "notBeforeMs": begins_ms, "expiresAtMs": ends_ms, "maxDepth": int(may_delegate),
        **({} if above is None else {"parent": above.digest}),
    }  # fmt: skip
    row: JsonObject = {"statement": statement, "signature": encode_base64(key.sign(statement_bytes(statement)))}
    made = _checked([*([] if parent is None else [parent.row]), row], subject)
    if above is not None and is_wider(made.says, above):
        raise Malformed("the statement that was handed over lends less: ask for fewer verbs, or names within its own")
    return made


def open_delegation(content: bytes) -> SignedDelegation:
    """Return the statement in a file; Malformed unless its grammar and its signature are good and nothing is above it.

    Whether its issuer may lend anything is the ledger's to say.
    """
    row = parse_json(content, bytes_max=TEXT_BYTES_MAX)
    statement = row.get("statement")
    subject = statement.get("sub") if isinstance(statement, dict) else None
    return _checked([row], str(subject))


def _span(now_ms: int, ttl_ms: int, parent: SignedDelegation | None) -> tuple[int, int]:
    """Return beginning and end: seven days at most altogether, and within the parent's."""
    ends_ms, earliest_ms = now_ms + ttl_ms, 0
    if parent is not None:
        ends_ms, earliest_ms = min(ends_ms, parent.says.expires_at_ms), parent.says.not_before_ms
        if ends_ms <= now_ms:
            raise Malformed("the statement that was handed over has ended: ask for a new one")
    return max(now_ms - BACKDATE_MS, ends_ms - DELEGATION_MS_MAX, earliest_ms), ends_ms


def _checked(rows: Sequence[JsonObject], subject: str) -> SignedDelegation:
    """Return the last of a chain that leads to `subject`, as the ledger will read it."""
    return SignedDelegation(rows[-1], parse_delegations([*rows], subject)[-1])
