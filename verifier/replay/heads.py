"""The checkpoints of a whole ledger: its own, the one a reader pinned, and the one that a dispute shows.

Source: docs/protocol.md 17.2, 12.9, 16.2 (steps 4 to 8, 12).
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import Leaf
from verifier.note import is_signed_once
from verifier.replay.audit import Audit
from verifier.signers import check_signers
from verifier.verdict import Outcome
from verifier.wire import Malformed, encode_base64


def _open_checkpoint(audit: Audit, note: bytes, whose: str) -> Checkpoint | None:
    """Steps 4 to 7 for a checkpoint that must be this ledger's; None when it does not count."""
    try:
        checkpoint = parse_checkpoint(note)
    except Malformed as error:
        audit.say(4, "checkpoint_malformed", f"{whose} checkpoint: {error}")
        return None
    signers = check_signers(checkpoint, audit.keyring)
    audit.findings += signers.findings
    if checkpoint.origin != audit.source.origin:
        audit.say(5, "origin_differs", f"{whose} checkpoint is of another origin")
        return None
    audit.level = signers.level if audit.level == "none" else audit.level
    return checkpoint if signers.is_signed else None


def check_own_checkpoint(audit: Audit) -> None:
    """The checkpoint that came with the ledger must fit exactly what came with it."""
    size = audit.tree.size
    if audit.source.is_longer:
        audit.say(2, "too_long", f"the source promises {audit.source.size} entries and has more; the rest was not read")
        return
    if size == 0:
        audit.say(9, "empty", "no entries; an empty ledger is never complete", None, Outcome.INDETERMINATE)
    if size != audit.source.size:
        audit.say(8, "truncated", f"the source promises {audit.source.size} entries and has {size}")
    checkpoint = _open_checkpoint(audit, audit.source.checkpoint, "the ledger's own")
    if checkpoint is None:
        return
    if (checkpoint.size, checkpoint.root) != (size, audit.tree.root()):
        audit.say(8, "root_differs", f"the entries do not give the root of the own checkpoint ({checkpoint.size})")
    elif audit.level.startswith("witnessed") and size:
        audit.completeness = f"to size {size}, {audit.level}"


def check_pinned_checkpoint(audit: Audit, note: bytes) -> None:
    """The reader's own checkpoint: the ledger must reach it and agree with it."""
    is_own_sound = not any(finding.step in (4, 5, 6, 8) and finding.outcome for finding in audit.findings)
    pinned = _open_checkpoint(audit, note, "the given")
    if pinned is None:
        return
    if pinned.size > audit.tree.size:
        audit.say(8, "truncated", f"the ledger has {audit.tree.size} entries, the given checkpoint {pinned.size}")
    elif pinned.root == audit.tree.root(pinned.size):
        if pinned.size and audit.completeness == "unknown":
            audit.completeness = f"to size {pinned.size} of the given checkpoint"
    elif is_own_sound:
        audit.say(12, "two_roots", f"the log signed two roots for size {pinned.size}", None, Outcome.SPLIT)
    else:
        audit.say(8, "checkpoint_differs", f"the ledger's root at size {pinned.size} is not the given checkpoint's")


def dispute_faults(audit: Audit, leaf: Leaf) -> Iterator[tuple[str, str]]:
    """Yield (code, text) of why a `ledger.disputed` proves no second history.

    Neither size nor status of the log key matters here: it signed, and that is what stops the ledger.
    """
    try:
        shown = parse_checkpoint(leaf.text("checkpoint").encode("utf-8"))
    except Malformed as error:
        yield "dispute_unproven", str(error)
        return
    keys = audit.keyring.log_keys(leaf.origin)
    if shown.origin != leaf.origin or not any(is_signed_once(shown.note, line.key) for line in keys):
        yield "dispute_unproven", "the checkpoint shown is not of this ledger and signed by its pinned log key"
    if (leaf.number("size"), leaf.text("root")) != (shown.size, encode_base64(shown.root)):
        yield "dispute_unproven", "size and root are not those of the checkpoint shown"
    if shown.size <= min(leaf.seq, audit.tree.size) and audit.root_at(shown.size) == shown.root:
        yield "dispute_unproven", "the checkpoint shown is this ledger's own, so it contradicts nothing"
