"""A second history: what proves one, and what it stops.

Only our own log key can prove that we signed another history, so a claim without its valid signature never stops
anything. What does prove it stops every grant for good, because nobody can say which history is the true one.

Source: docs/protocol.md 12.9; security.md §1.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.append import GatewayStep
from gateway.core.outcome import Context, Decision, granted
from gateway.core.state import DISPUTE_KEY, Dispute, Draft
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import NOTE
from verifier.note import VerifierKey, is_signed_once
from verifier.wire import Malformed, encode_base64


def open_own_checkpoint(unverified_bytes: bytes, log_keys: Sequence[VerifierKey]) -> Checkpoint:
    """Return a checkpoint that one of our log keys signed for our origin; Malformed when it is anything else."""
    checkpoint = parse_checkpoint(unverified_bytes)
    if not NOTE.check(unverified_bytes.decode()):
        raise Malformed(f"checkpoint must be {NOTE.bound}")
    if not any(checkpoint.origin == key.name and is_signed_once(checkpoint.note, key) for key in log_keys):
        raise Malformed("checkpoint is not of this ledger and signed by its log key, so it proves nothing")
    return checkpoint


def is_contradiction(checkpoint: Checkpoint, own_root: bytes | None) -> bool:
    """Say whether an opened checkpoint proves a second history.

    `own_root` is this ledger's root at the checkpoint's size, None when the ledger is not that long: then somebody
    holds more than we do, as after the restore of an old back-up.
    """
    return own_root is None or own_root != checkpoint.root


def disputed(note: bytes, checkpoint: Checkpoint) -> GatewayStep:
    """Return the step that records the proof and stops all grants; a second dispute writes nothing."""

    def step(draft: Draft, context: Context) -> Decision | None:
        if draft.get(DISPUTE_KEY) is not None:
            return None
        draft.put(DISPUTE_KEY, Dispute(context.seq))
        root = encode_base64(checkpoint.root)
        return granted("ledger.disputed", {"checkpoint": note.decode(), "size": checkpoint.size, "root": root})

    return step
