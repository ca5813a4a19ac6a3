"""Statements of delegation: who lets which session do what, on which names and until when, signed by who lets it.

A statement names one ledger and one session key, so it is worth nothing to whoever copies it, and it can't be made to
say more on the way: what is signed is a hash of its one canonical spelling, and a second statement names the hash of
the first. Scope and time may only shrink. What needs the ledger (who is whose agent, who was removed) is not here.
Source: docs/protocol.md 28.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from typing import NamedTuple

from verifier.did import decode_did
from verifier.entries import DELEGATION_MEMBERS, DELEGATION_MS_MAX, DELEGATIONS, MemberError, check_members, covers
from verifier.sig import is_valid
from verifier.wire import JsonObject, JsonValue, decode_base64, encode_canonical

DEPTH_MAX = 2  # statements in a chain
_STATEMENT, _ENROLMENT = b"tallystick.delegation/1\n", b"tallystick.enrolment/1\n"


class Delegation(NamedTuple):
    """One statement whose shape, place in its chain and signature are good. `resources` None is every name.

    It holds at log times in [not_before_ms, expires_at_ms); `digest` is the hex hash that a child names as `parent`.
    """

    iss: str
    sub: str
    aud: str
    verbs: tuple[str, ...]
    resources: tuple[str, ...] | None
    not_before_ms: int
    expires_at_ms: int
    max_depth: int
    parent: str | None
    digest: str


def statement_digest(statement: JsonObject) -> bytes:
    """Return the SHA-256 (32 bytes) of the statement's canonical JSON; in hex it is the `parent` of a child."""
    return sha256(encode_canonical(statement)).digest()


def statement_bytes(statement: JsonObject) -> bytes:
    """Return what the issuer signs; the first line keeps it apart from everything else that this key signs."""
    return _STATEMENT + statement_digest(statement)


def enrolment_bytes(agent: str, key_digest: str, ledger: str) -> bytes:
    """Return what a new key signs to be enrolled by the API key of this digest in the ledger of this origin."""
    document: JsonObject = {"agent": agent, "keyDigest": key_digest, "ledger": ledger}
    return _ENROLMENT + sha256(encode_canonical(document)).digest()


def is_enrolment_proof(agent: str, key_digest: str, ledger: str, proof: str) -> bool:
    """Say whether `proof` (base64) is the strict signature of `enrolment_bytes` by the new key itself. Never raises."""
    try:
        signed = enrolment_bytes(agent, key_digest, ledger)
        return is_valid(decode_did(agent), signed, decode_base64(proof, 64))
    except ValueError:  # Malformed, or a lone surrogate
        return False


def parse_delegations(value: JsonValue, actor: str) -> tuple[Delegation, ...]:
    """Return the chain in member `delegations` of a body, outermost first: 1 to 3 statements that lead to `actor`.

    Raises MemberError (a Malformed) with code `delegation_invalid`: the shape of a statement, a link (the next issuer,
    the hash of the parent, the last subject) or a signature is wrong. Whether the chain may do what it says is
    `chain_fault`'s, and the ledger's.
    """
    if not DELEGATIONS.check(value) or not isinstance(value, list):
        raise _invalid("delegations", f"member delegations must be {DELEGATIONS.bound}")
    chain = tuple(_parse(index, item) for index, item in enumerate(value) if isinstance(item, dict))
    _check_links(chain, actor)
    return chain


def _parse(index: int, item: JsonObject) -> Delegation:
    name, statement = f"delegations[{index}].statement", item["statement"]
    if not isinstance(statement, dict):
        raise _invalid(name, f"member {name} must be an object")
    try:
        check_members(statement, DELEGATION_MEMBERS)
    except MemberError as error:
        raise _invalid(f"{name}.{error.member}", f"in {name}: {error}") from error
    delegation = _delegation(statement)
    if not 0 < delegation.expires_at_ms - delegation.not_before_ms <= DELEGATION_MS_MAX:
        raise _invalid(f"{name}.expiresAtMs", f"in {name}: notBeforeMs + 1 to notBeforeMs + {DELEGATION_MS_MAX:,}")
    signature = decode_base64(str(item["signature"]), 64)
    if not is_valid(decode_did(delegation.iss), _STATEMENT + bytes.fromhex(delegation.digest), signature):
        raise _invalid(f"delegations[{index}].signature", f"in {name}: the signature is not its issuer's")
    return delegation


def _delegation(statement: JsonObject) -> Delegation:
    """Read a statement that keeps its table."""
    resources, parent = statement.get("resources"), statement.get("parent")
    return Delegation(
        iss=str(statement["iss"]),
        sub=str(statement["sub"]),
        aud=str(statement["aud"]),
        verbs=_texts(statement["verbs"]),
        resources=None if resources is None else _texts(resources),
        not_before_ms=_number(statement["notBeforeMs"]),
        expires_at_ms=_number(statement["expiresAtMs"]),
        max_depth=_number(statement["maxDepth"]),
        parent=None if parent is None else str(parent),
        digest=statement_digest(statement).hex(),
    )


def _texts(value: JsonValue) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _number(value: JsonValue) -> int:
    return value if isinstance(value, int) else -1


def _check_links(chain: Sequence[Delegation], actor: str) -> None:
    """Each statement is issued by the subject of the one before, and names its hash; the last one is for the actor."""
    if chain[0].parent is not None:
        raise _invalid("delegations[0].statement.parent", "the first statement has no member parent")
    for index, (before, after) in enumerate(pairwise(chain), 1):
        name = f"delegations[{index}].statement"
        if after.iss != before.sub:
            raise _invalid(f"{name}.iss", f"in {name}: iss is the sub of the statement before")
        if after.parent != before.digest:
            raise _invalid(f"{name}.parent", f"in {name}: parent is the SHA-256 of the statement before")
    if chain[-1].sub != actor:
        raise _invalid(f"delegations[{len(chain) - 1}].statement.sub", "sub of the last statement is actorDid")


def _invalid(member: str, text: str) -> MemberError:
    return MemberError("delegation_invalid", member, text)


def chain_fault(chain: Sequence[Delegation], origin: str, time_ms: int) -> str | None:
    """Return the first refusal that a chain of `parse_delegations` earns at this log time without any ledger state.

    `delegation_too_deep` and `delegation_wider` have more reasons, which only the ledger knows. In the order of the
    refusal table. Source: docs/protocol.md 28.4.
    """
    last, links = chain[-1], list(pairwise(chain))
    rules = (
        ("delegation_wrong_ledger", any(one.aud != origin for one in chain)),
        ("delegation_too_deep", len(chain) > DEPTH_MAX or any(one.max_depth == 0 for one in chain[:-1])),
        ("delegation_wider", any(is_wider(child, parent) for parent, child in links)),
        ("delegation_longer", any(is_longer(child, parent) for parent, child in links)),
        ("delegation_expired", not last.not_before_ms <= time_ms < last.expires_at_ms),
    )
    return next((name for name, is_broken in rules if is_broken), None)


def is_wider(child: Delegation, parent: Delegation) -> bool:
    """Say whether a child allows a verb or a name that its parent does not; names count as written, without folding."""
    is_every = parent.resources is None
    is_within = is_every or (child.resources is not None and is_covered(child.resources, parent.resources or ()))
    return not is_within or not set(child.verbs) <= set(parent.verbs)


def is_covered(names: Sequence[str], scope: Sequence[str]) -> bool:
    """Say whether each name lies within one name of the scope, as written."""
    return all(any(covers(around, name) for around in scope) for name in names)


def is_longer(child: Delegation, parent: Delegation) -> bool:
    """Say whether a child holds at a time when its parent does not."""
    return child.not_before_ms < parent.not_before_ms or child.expires_at_ms > parent.expires_at_ms
