"""Each entry judged alone, here or in other processes: the dear part of an audit, and the part that needs no order.

A process gets the raw bytes of a bundle and gives back little: two hashes and what the relations ask for, without the
evidence itself. So reading and parsing are shared out as well as the signatures.
Source: docs/protocol.md 17.1, 16.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from verifier.approval import Approval, parse_approval, parse_approvals
from verifier.delegation import Delegation, parse_delegations
from verifier.entries import (
    ENTRY_TYPES,
    SKEW_MS,
    Leaf,
    body_bytes_max,
    check_body,
    full_type,
    is_assigned,
    parse_leaf,
    resources_of,
    rows_of,
)
from verifier.evidence import check_evidence
from verifier.merkle import leaf_hash
from verifier.request import Anchor
from verifier.wire import JsonObject, Malformed, parse_json

JOBS_MAX = 64
# The types that do not repeat everything of their body that decides about them.
_WITH_BODY = frozenset(
    map(
        full_type,
        (
            "scheme.set",
            "scheme.refused",
            "agent.refused",
            "apikey.refused",
            "approval.refused",
            "announcement.refused",
            "retirement.refused",
            "disowning.refused",
            "batch.received",
            "batch.refused",
            "rules.loaded",
        ),
    )
)
_RELEASED, _OPENED = full_type("lease.released"), full_type("session.opened")
# Common members that relations ask for and the tuple of a leaf does not hold.
_KEPT = ("custody", "durability")


class Judged(NamedTuple):
    """One entry. `leaf` is None when it does not parse; from another process it has hardly more than its own members.

    `faults` are (code, text) of its evidence, or why it does not parse. From `nonce` on it is a request's: the nonce
    with the end of its life, the idempotency key, the anchor, when it was signed; None or 0 where it could not be read.
    `asked` is the body where the leaf does not repeat it, that of a batch included; `chain` is by what a session opens,
    `is_blind` a release that names no lease id, `is_unchecked` a leaf with a name whose normal form this Python can't
    judge. `given` are the approvals that come along, of each command of a batch.
    """

    leaf_hash: bytes
    link: bytes  # SHA-256 of the leaf: the next entry's `prev`
    leaf: Leaf | None
    faults: tuple[tuple[str, str], ...]
    nonce: str | None = None
    nonce_until_ms: int = 0
    idempotency_key: str = ""
    anchor: Anchor | None = None
    created_s: int = 0
    asked: JsonObject | None = None
    is_blind: bool = False
    is_unchecked: bool = False
    chain: tuple[Delegation, ...] | None = None
    given: tuple[tuple[Approval, ...], ...] = ()


def judge(leaf_bytes: bytes, authorities: frozenset[str]) -> Judged:
    """Parse one entry and check its evidence; `authorities` is entry 0's list."""
    hashes = leaf_hash(leaf_bytes), sha256(leaf_bytes).digest()
    try:
        leaf = parse_leaf(leaf_bytes)
    except Malformed as error:
        return Judged(*hashes, None, (("leaf_malformed", str(error)),))
    if not leaf.is_known:
        return Judged(*hashes, leaf, ())
    if leaf.entry_type.cause == "gateway":
        return Judged(*hashes, leaf, ())
    is_unchecked = not leaf_bytes.isascii() and not all(map(is_assigned, resources_of(leaf.value)))
    if leaf.batch is not None:  # its evidence is the batch's
        return Judged(*hashes, leaf, (), is_unchecked=is_unchecked)
    faults, signed, anchor = check_evidence(leaf, authorities)
    if signed is None or leaf.request is None:
        return Judged(*hashes, leaf, faults)
    until_ms = signed.expires * 1000 + SKEW_MS
    key = leaf.request["idempotencyKey"]
    asked, is_blind = _asked(leaf, leaf.request["body"])
    chain = _chain(leaf) if leaf.type == _OPENED else None
    entry = Judged(
        *hashes, leaf, faults, signed.nonce, until_ms, key, anchor, signed.created, asked, is_blind, is_unchecked, chain
    )
    return entry._replace(given=_given(leaf)) if '"approval' in leaf.request["body"] else entry


def _asked(leaf: Leaf, text: str) -> tuple[JsonObject | None, bool]:
    """Return what of a body the leaf does not repeat, and whether it is a release without lease id."""
    kind = leaf.type
    if kind in _WITH_BODY or (kind == _RELEASED and '"leaseId"' not in text):
        asked = _body(leaf, text)
        return asked, asked is not None and kind == _RELEASED and "leaseId" not in asked
    return None, False


def _body(leaf: Leaf, text: str) -> JsonObject | None:
    """Return a body of the leaf's action, None for what is none: that is a finding of the evidence already."""
    try:
        body = parse_json(text.encode("utf-8"), bytes_max=body_bytes_max(leaf.action))
        check_body(leaf.action or "", body)
    except ValueError:
        return None
    return body


def _chain(leaf: Leaf) -> tuple[Delegation, ...] | None:
    body = None if leaf.request is None else _body(leaf, leaf.request["body"])
    try:
        return None if body is None else parse_delegations(body["delegations"], leaf.actor)
    except Malformed:
        return None


def _given(leaf: Leaf) -> tuple[tuple[Approval, ...], ...]:
    """Return the approvals in a body; none where one is not well-formed, which is a finding of the evidence."""
    body = None if leaf.request is None else _body(leaf, leaf.request["body"])
    if body is None:
        return ()
    try:
        return tuple(map(_approvals, rows_of(body["commands"]) if "commands" in body else [body]))
    except Malformed:
        return ()


def _approvals(body: JsonObject) -> tuple[Approval, ...]:
    if "approval" in body:
        return (parse_approval(body["approval"]),)
    return parse_approvals(body["approvals"]) if "approvals" in body else ()


def judge_afar(bundle: list[bytes], authorities: frozenset[str]) -> list[Judged]:
    """Judge a bundle in another process: what travels back has only the members of its own type."""
    return [entry._replace(leaf=_lightened(entry.leaf)) for entry in (judge(leaf, authorities) for leaf in bundle)]


def _lightened(leaf: Leaf | None) -> Leaf | None:
    if leaf is None:
        return None
    value = leaf.value
    return leaf._replace(value={name: value[name] for name in _own_names(leaf.type) if name in value}, request=None)


@lru_cache(maxsize=256)  # types that nobody knows must not fill it
def _own_names(kind: str) -> tuple[str, ...]:
    """Return what travels back of an entry of a type: its own members, and the common ones that relations ask for."""
    entry_type = ENTRY_TYPES.get(kind)
    return (*(member.name for member in entry_type.members), *_KEPT) if entry_type is not None else _KEPT


def judged(bundles: Iterable[list[bytes]], authorities: frozenset[str], jobs: int) -> Iterator[Iterable[Judged]]:
    """Yield every bundle's entries judged, in order; with `jobs` > 1 other processes judge, few bundles at a time."""
    if jobs <= 1:
        for bundle in bundles:
            yield (judge(leaf_bytes, authorities) for leaf_bytes in bundle)
        return
    waiting: deque[Future[list[Judged]]] = deque()
    with ProcessPoolExecutor(min(jobs, JOBS_MAX)) as pool:
        for bundle in bundles:
            waiting.append(pool.submit(judge_afar, bundle, authorities))
            if len(waiting) > 4 * jobs:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def texts(leaf: Leaf, name: str) -> frozenset[str]:
    """Return a member that the table says is a list of texts; empty when it is absent."""
    value = leaf.value.get(name)
    return frozenset(text for text in value if isinstance(text, str)) if isinstance(value, list) else frozenset()


def authorities_in(bundle: list[bytes]) -> frozenset[str]:
    """Return the list of entry 0, the first of a bundle; nothing is in it when there is none to be read."""
    try:
        return texts(parse_leaf(bundle[0]), "authorities") if bundle else frozenset()
    except Malformed:
        return frozenset()
