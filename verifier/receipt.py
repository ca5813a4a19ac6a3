"""One receipt: the ladder's steps 1 to 10 (ladder.py), then the reader's clock and other files, then the report.

Nothing inside a receipt is a source of trust; every level is reached through a key the reader pinned.
Source: docs/protocol.md 16 (ladder), 14 (receipts).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from verifier.entries import ALLOWED, HOLDING, Leaf, moment, resources_of, sentences
from verifier.envelope import PAYLOAD_TYPE, pre_authentication
from verifier.keyring import Keyring
from verifier.ladder import Walk, walk_ladder
from verifier.merkle import leaf_hash
from verifier.private import check_private
from verifier.sides import Side, contradictions, is_one_history, origin_of, read_side, side_of
from verifier.verdict import Outcome, Report, unreadable
from verifier.wire import JsonValue, Malformed

__all__ = ["PAYLOAD_TYPE", "check_receipt", "pre_authentication"]


def check_receipt(
    unverified_bytes: bytes,
    keyring: Keyring,
    *,
    level: str = "included",
    now_ms: int | None = None,
    others: Sequence[bytes] = (),
    private: bytes | None = None,
) -> Report:
    """Walk the ladder and report; never raises on any bytes.

    `others` are receipts, checkpoints or consistency proofs of the same origin, for steps 6 and 12; `now_ms` is the
    caller's clock for step 11; `private` a file of texts whose digests were signed.
    """
    files = [unverified_bytes, *others]
    walk = walk_ladder(unverified_bytes, keyring, files)
    if now_ms is not None and walk.leaf is not None:
        _check_end(walk, walk.leaf, now_ms)
    mine = side_of(walk, unverified_bytes) if others else None
    for number, other in enumerate(others, 1):
        _compare(walk, mine, read_side(other, keyring, files), number)
    try:
        texts = [] if private is None else list(check_private(walk, private))
    except Malformed as error:
        return unreadable("receipt", str(error), "private_malformed")
    is_whole = not any(finding.outcome >= Outcome.INVALID for finding in walk.findings)
    reached = "signed" if walk.level == "none" and walk.direct_signature == "valid" else walk.level
    said = (*_statement(walk.leaf), *texts) if is_whole and walk.leaf is not None else ()
    report = Report("receipt", tuple(walk.findings), level, reached if is_whole else "none", walk.direct_signature)
    return replace(report, statement=said, facts=_facts(walk, keyring))


def _check_end(walk: Walk, leaf: Leaf, now_ms: int) -> None:
    """Step 11. What a session holds ends with its silence too, unless a later entry says otherwise."""
    names = ("validUntilMs", "endsIfIdleAtMs", "expiresAtMs")  # the first that is there
    end_ms = leaf.number(next((name for name in names if name in leaf.value), ""))
    if leaf.type not in HOLDING and leaf.type != ALLOWED:
        walk.note(11, "no_lease", "this entry grants nothing that could end")
    elif now_ms >= end_ms:
        text = f"the stated end {moment(end_ms)} is not after --now {moment(now_ms)}"
        walk.say(11, "expired", text, Outcome.INDETERMINATE)


def _compare(walk: Walk, mine: Side | None, other: Side, number: int) -> None:
    """Step 12: two signed statements of one origin agree, contradict each other, or leave it open."""
    if other.tree is None and not other.leaves and other.proof is None:
        text = f"other file {number} carries no valid signature that is pinned"
        walk.say(12, "other_unusable", text, Outcome.INDETERMINATE)
    elif other.walk.leaf_bytes and not other.leaves:
        walk.note(12, "other_leaf_unproven", f"other file {number}: its leaf is not proven")
    if mine is None or origin_of(mine) is None or origin_of(mine) != origin_of(other):
        return
    found = contradictions(mine, other)
    for code, text in found.items():
        walk.say(12, code, f"the log signed two histories: {text}", Outcome.SPLIT)
    if mine.tree and other.tree and not found and not is_one_history(mine, other, ()):
        text = f"sizes {mine.tree.size} and {other.tree.size}: consistency not checked, needs a proof or the ledger"
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
