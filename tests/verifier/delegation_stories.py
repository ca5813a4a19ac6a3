"""Chains of delegation as a table of stories: who signs what for whom, and which refusal that earns.

Core, auditor and verifier all run the same stories. A story's `build` takes the time from which the statements hold and
returns the value of member `delegations`; `refusal` is None where the session opens. The cast: OPERATOR answers for
agent ALICE, whom it enrolled; SESSION is the new key that signs the request. Nothing of verifier/ helps here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.verifier.maker import (
    ALICE,
    BOB,
    HELPER,
    OPERATOR,
    OTHER_SESSION,
    SESSION,
    T0,
    Json,
    Key,
    b64,
    canonical,
    signed_statement,
    statement,
)

HOUR_MS, WEEK_MS = 3_600_000, 604_800_000
INVALID = "delegation_invalid"
# A public key of small order (the point of order 1): a strict reader takes no signature by it.
_SMALL_ORDER = b"\1" + bytes(31)


def digest(said: Json) -> str:
    return hashlib.sha256(canonical(said)).hexdigest()


def alone(issuer: Key = ALICE, subject: Key = SESSION, at_ms: int = T0, **over: Any) -> list[Json]:
    """One statement: by an agent, or by an operator, for a session."""
    return [signed_statement(statement(issuer, subject, at_ms, **over), issuer)]


def chain(at_ms: int, parent: Json | None = None, child: Json | None = None, agent: Key = ALICE) -> list[Json]:
    """Two statements: operator to agent, agent to session; `parent` and `child` are what each says otherwise."""
    first = statement(OPERATOR, agent, at_ms, **{"maxDepth": 1, **(parent or {})})
    second = statement(agent, SESSION, at_ms, **{"parent": digest(first), **(child or {})})
    return [signed_statement(first, OPERATOR), signed_statement(second, agent)]


def _three(at_ms: int) -> list[Json]:
    first = statement(OPERATOR, ALICE, at_ms, maxDepth=1)
    second = statement(ALICE, HELPER, at_ms, maxDepth=1, parent=digest(first))
    third = statement(HELPER, SESSION, at_ms, parent=digest(second))
    return [signed_statement(first, OPERATOR), signed_statement(second, ALICE), signed_statement(third, HELPER)]


def _broken_link(at_ms: int) -> list[Json]:
    """The second statement is by BOB, the first was for ALICE."""
    first = statement(OPERATOR, ALICE, at_ms, maxDepth=1)
    return [
        signed_statement(first, OPERATOR),
        signed_statement(statement(BOB, SESSION, at_ms, parent=digest(first)), BOB),
    ]


def _flipped(at_ms: int) -> list[Json]:
    (one,) = alone(at_ms=at_ms)
    last = "A" if one["signature"][0] != "A" else "B"
    return [{**one, "signature": last + one["signature"][1:]}]


def _changed(at_ms: int) -> list[Json]:
    """A good signature, of another statement."""
    (one,) = alone(at_ms=at_ms)
    return [{**one, "statement": {**one["statement"], "expiresAtMs": at_ms + HOUR_MS + 1}}]


def _small_order_key(at_ms: int) -> list[Json]:
    """The issuer is a key under which one signature fits every message, for readers that are lax."""
    said = {**statement(ALICE, SESSION, at_ms), "iss": _did(_SMALL_ORDER)}
    return [{"statement": said, "signature": b64(_SMALL_ORDER + bytes(32))}]


def _small_order_signature(at_ms: int) -> list[Json]:
    (one,) = alone(at_ms=at_ms)
    return [{**one, "signature": b64(_SMALL_ORDER + bytes(32))}]


def _other_domain(at_ms: int) -> list[Json]:
    """The issuer signed the hash, but as something else than a delegation."""
    said = statement(ALICE, SESSION, at_ms)
    message = b"tallystick.enrolment/1\n" + hashlib.sha256(canonical(said)).digest()
    return [{"statement": said, "signature": b64(ALICE.sign(message))}]


def _did(public: bytes) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number, text = int.from_bytes(b"\xed\x01" + public, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = alphabet[digit] + text
    return "did:key:z" + text


@dataclass(frozen=True)
class Story:
    """`build(at_ms)` makes the chain; at log time at_ms + `after_ms` the answer is `refusal` (None: it opens).

    `verbs` and `scope` are what the session may do then; `is_stateless` says whether a chain alone shows the refusal.
    """

    name: str
    build: Callable[[int], list[Json]]
    refusal: str | None = None
    after_ms: int = 0
    verbs: tuple[str, ...] = ("lease", "transfer")
    scope: tuple[str, ...] | None = None
    is_stateless: bool = True


def _narrowed(parent: Json, child: Json) -> Callable[[int], list[Json]]:
    return lambda at_ms: chain(at_ms, parent, child)


def _scoped(parent: list[str] | None, child: list[str] | None) -> Callable[[int], list[Json]]:
    return _narrowed({"resources": parent}, {"resources": child})


_GOOD = (
    Story("agent to session", lambda at_ms: alone(at_ms=at_ms)),
    Story("operator to session", lambda at_ms: alone(OPERATOR, at_ms=at_ms)),
    Story("operator to agent to session", chain),
    Story("one verb", lambda at_ms: alone(at_ms=at_ms, verbs=["lease"]), verbs=("lease",)),
    Story("one name", lambda at_ms: alone(at_ms=at_ms, resources=["lock:a"]), scope=("lock:a",)),
    Story("scope the same as the parent's", _scoped(["repo:app/**"], ["repo:app/**"]), scope=("repo:app/**",)),
    Story("scope within the parent's", _scoped(["repo:app/**"], ["repo:app", "repo:app/a/**"]),
          scope=("repo:app", "repo:app/a/**")),
    Story("scope below a parent for every name", _scoped(None, ["repo:**"]), scope=("repo:**",)),
    Story("each name below another of the parent's", _scoped(["doc:a/**", "repo:b"], ["doc:a/x", "repo:b"]),
          scope=("doc:a/x", "repo:b")),
    Story("time within the parent's",
          lambda at_ms: chain(at_ms, {"notBeforeMs": at_ms - 1, "expiresAtMs": at_ms + HOUR_MS + 1})),
    Story("seven days", lambda at_ms: alone(at_ms=at_ms, expiresAtMs=at_ms + WEEK_MS)),
    Story("its first moment", lambda at_ms: alone(at_ms=at_ms, notBeforeMs=at_ms)),
    Story("its last moment", lambda at_ms: alone(at_ms=at_ms), after_ms=HOUR_MS - 1),
    Story("maxDepth 1 without a child", lambda at_ms: alone(at_ms=at_ms, maxDepth=1)),
)  # fmt: skip
_REFUSED = (
    Story("another ledger", lambda at_ms: alone(at_ms=at_ms, aud="other.example/main"), "delegation_wrong_ledger"),
    Story("the parent for another ledger", _narrowed({"aud": "other.example/main"}, {}), "delegation_wrong_ledger"),
    Story("three statements", _three, "delegation_too_deep"),
    Story("a parent that must not be a parent", _narrowed({"maxDepth": 0}, {}), "delegation_too_deep"),
    Story("a verb more", _narrowed({"verbs": ["lease"]}, {}), "delegation_wider"),
    Story("another verb", _narrowed({"verbs": ["lease"]}, {"verbs": ["transfer"]}), "delegation_wider"),
    Story("a name more", _scoped(["repo:app/**"], ["repo:app/**", "repo:lib"]), "delegation_wider"),
    Story("every name below a parent of some", _scoped(["repo:app/**"], None), "delegation_wider"),
    Story("a sibling with the same beginning", _scoped(["repo:app/**"], ["repo:apple"]), "delegation_wider"),
    Story("a name without sub-tree does not cover below", _scoped(["repo:app"], ["repo:app/a"]), "delegation_wider"),
    Story("a sub-tree around the parent's", _scoped(["repo:app/**"], ["repo:**"]), "delegation_wider"),
    Story("letters count as written", _scoped(["repo:app/**"], ["repo:App/a"]), "delegation_wider"),
    Story("longer at its beginning", lambda at_ms: chain(at_ms, {"notBeforeMs": at_ms + 1}), "delegation_longer", 1),
    Story("longer at its end", lambda at_ms: chain(at_ms, {"expiresAtMs": at_ms + HOUR_MS - 1}), "delegation_longer"),
    Story("not yet", lambda at_ms: alone(at_ms=at_ms, notBeforeMs=at_ms + 1), "delegation_expired"),
    Story("its end is no longer its own", lambda at_ms: alone(at_ms=at_ms), "delegation_expired", HOUR_MS),
    Story("an unknown issuer", lambda at_ms: alone(HELPER, at_ms=at_ms), "issuer_unknown", is_stateless=False),
    Story("a chain through a stranger", lambda at_ms: chain(at_ms, agent=HELPER), "issuer_unknown",
          is_stateless=False),
)  # fmt: skip
_INVALID = (
    Story("a flipped signature", _flipped, INVALID),
    Story("a changed statement", _changed, INVALID),
    Story("an issuer of small order", _small_order_key, INVALID),
    Story("a signature of small order", _small_order_signature, INVALID),
    Story("signed as something else", _other_domain, INVALID),
    Story("signed by another", lambda at_ms: [signed_statement(statement(ALICE, SESSION, at_ms), BOB)], INVALID),
    Story("for another session", lambda at_ms: alone(subject=OTHER_SESSION, at_ms=at_ms), INVALID),
    Story("the hash of another parent", _narrowed({}, {"parent": "5a" * 32}), INVALID),
    Story("no hash of the parent", _narrowed({}, {"parent": None}), INVALID),
    Story("a parent of the first", lambda at_ms: alone(at_ms=at_ms, parent="5a" * 32), INVALID),
    Story("a broken link", _broken_link, INVALID),
    Story("the chain backwards", lambda at_ms: chain(at_ms)[::-1], INVALID),
    Story("an unknown member", lambda at_ms: alone(at_ms=at_ms, admin=True), INVALID),
    Story("another type", lambda at_ms: alone(at_ms=at_ms, type="tallystick/delegation/2"), INVALID),
    Story("no verbs", lambda at_ms: alone(at_ms=at_ms, verbs=[]), INVALID),
    Story("an unknown verb", lambda at_ms: alone(at_ms=at_ms, verbs=["admin", "lease"]), INVALID),
    Story("verbs out of order", lambda at_ms: alone(at_ms=at_ms, verbs=["transfer", "lease"]), INVALID),
    Story("a verb twice", lambda at_ms: alone(at_ms=at_ms, verbs=["lease", "lease"]), INVALID),
    Story("names out of order", lambda at_ms: alone(at_ms=at_ms, resources=["lock:b", "lock:a"]), INVALID),
    Story("seventeen names", lambda at_ms: alone(at_ms=at_ms, resources=[f"lock:{n:02}" for n in range(17)]), INVALID),
    Story("no name", lambda at_ms: alone(at_ms=at_ms, resources=[]), INVALID),
    Story("no time", lambda at_ms: alone(at_ms=at_ms, expiresAtMs=at_ms), INVALID),
    Story("more than seven days", lambda at_ms: alone(at_ms=at_ms, expiresAtMs=at_ms + WEEK_MS + 1), INVALID),
    Story("deeper than is allowed", lambda at_ms: alone(at_ms=at_ms, maxDepth=2), INVALID),
    Story("a boolean for a number", lambda at_ms: alone(at_ms=at_ms, maxDepth=False), INVALID),
)
STORIES = (*_GOOD, *_REFUSED, *_INVALID)
