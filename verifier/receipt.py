"""One receipt: the ladder's steps 1 to 10 (ladder.py), then the reader's clock and other files, then the report.

Nothing inside a receipt is a source of trust; every level is reached through a key the reader pinned.
Source: docs/protocol.md 16 (ladder), 14 (receipts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from verifier.checkpoint import parse_checkpoint
from verifier.entries import HOLDING, Leaf, moment, resources_of, sentences
from verifier.envelope import PAYLOAD_TYPE, pre_authentication
from verifier.keyring import Keyring
from verifier.ladder import Walk, walk_ladder
from verifier.merkle import leaf_hash
from verifier.signers import check_signers
from verifier.verdict import Outcome, Report
from verifier.wire import JsonValue, Malformed

__all__ = ["PAYLOAD_TYPE", "check_receipt", "pre_authentication"]


def check_receipt(
    unverified_bytes: bytes,
    keyring: Keyring,
    *,
    level: str = "included",
    now_ms: int | None = None,
    others: Sequence[bytes] = (),
) -> Report:
    """Walk the ladder and report; never raises on any bytes.

    `others` are receipts or checkpoints of the same origin for step 12; `now_ms` is the caller's clock for step 11.
    """
    files = [unverified_bytes, *others]
    walk = walk_ladder(unverified_bytes, keyring, files)
    if now_ms is not None and walk.leaf is not None:
        _check_end(walk, walk.leaf, now_ms)
    for number, other in enumerate(others, 1):
        _compare(walk, _walk_other(other, keyring), number)
    is_whole = not any(finding.outcome >= Outcome.INVALID for finding in walk.findings)
    reached = "signed" if walk.level == "none" and walk.direct_signature == "valid" else walk.level
    said = tuple(_statement(walk.leaf)) if is_whole and walk.leaf is not None else ()
    report = Report("receipt", tuple(walk.findings), level, reached if is_whole else "none", walk.direct_signature)
    return replace(report, statement=said, facts=_facts(walk, keyring))


def _check_end(walk: Walk, leaf: Leaf, now_ms: int) -> None:
    """Step 11. What a session holds ends with its silence too, unless a later entry says otherwise."""
    end_ms = leaf.number("endsIfIdleAtMs" if "endsIfIdleAtMs" in leaf.value else "expiresAtMs")
    if leaf.type not in HOLDING:
        walk.note(11, "no_lease", "this entry grants nothing that could end")
    elif now_ms >= end_ms:
        text = f"the stated end {moment(end_ms)} is not after --now {moment(now_ms)}"
        walk.say(11, "expired", text, Outcome.INDETERMINATE)


def _walk_other(other: bytes, keyring: Keyring) -> Walk:
    """Read a receipt or a bare checkpoint for step 12."""
    if other.lstrip()[:1] == b"{":
        return walk_ladder(other, keyring)
    walk = Walk()
    try:
        walk.checkpoint = parse_checkpoint(other)
        walk.signers = check_signers(walk.checkpoint, keyring)
    except Malformed as error:
        walk.say(12, "other_malformed", str(error))
    return walk


def _compare(walk: Walk, other: Walk, number: int) -> None:
    """Step 12: two signed statements of one origin agree, contradict each other, or leave it open."""
    if not other.is_leaf_proven and not other.is_log_signed:
        text = f"other file {number} carries no valid signature that is pinned"
        walk.say(12, "other_unusable", text, Outcome.INDETERMINATE)
    elif other.leaf_bytes and not other.is_leaf_proven:
        walk.note(12, "other_leaf_unproven", f"other file {number}: its leaf is not proven")
    if walk.is_leaf_proven and other.is_leaf_proven and walk.leaf is not None and other.leaf is not None:
        is_same_place = (walk.leaf.origin, walk.leaf.seq) == (other.leaf.origin, other.leaf.seq)
        if is_same_place and walk.leaf_bytes != other.leaf_bytes:
            walk.say(12, "two_leaves", f"two different leaves were signed as seq {walk.leaf.seq}", Outcome.SPLIT)
    mine, theirs = walk.checkpoint, other.checkpoint
    if mine is None or theirs is None or mine.origin != theirs.origin:
        return
    if not (walk.is_log_signed and other.is_log_signed) or (mine.size, mine.root) == (theirs.size, theirs.root):
        return
    if mine.size == theirs.size:
        walk.say(12, "two_roots", f"the log signed two roots for size {mine.size}", Outcome.SPLIT)
        return
    text = f"sizes {mine.size} and {theirs.size}: consistency not checked, needs a proof or the ledger"
    walk.note(12, "consistency_not_checked", text)


def _statement(leaf: Leaf) -> Iterator[str]:
    """Say in words what the receipt says; the claims are the gateway's and the actor's."""
    yield f"entry {leaf.seq} of {leaf.origin}: {leaf.type} at {moment(leaf.time_ms)} by {leaf.actor}"
    if leaf.on_behalf_of != leaf.actor:
        yield f"for principal {leaf.principal}, on behalf of operator {leaf.on_behalf_of}"
    yield from (f"resource {name}" for name in resources_of(leaf.value))
    yield from sentences(leaf)
    if "custody" in leaf.value:
        yield "key held by the gateway: consent not proven"


def _facts(walk: Walk, keyring: Keyring) -> dict[str, JsonValue]:
    """Figures for machines; null where a step could not read them."""
    leaf = {} if walk.leaf is None else walk.leaf.value
    return {
        "leafHash": leaf_hash(walk.leaf_bytes).hex() if walk.leaf_bytes else None,
        **{name: leaf.get(name) for name in ("origin", "seq", "type")},
        "size": None if walk.checkpoint is None else walk.checkpoint.size,
        "ignoredLines": 0 if walk.signers is None else walk.signers.ignored_lines,
        "keysVersion": keyring.version,
    }
