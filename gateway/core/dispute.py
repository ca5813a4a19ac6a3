"""A second history: what proves one, and what it stops.

Only our own log key can prove that we signed another history, so a claim without its valid signature never stops
anything. What does prove it stops every grant for good, because nobody can say which history is the true one.

Source: docs/protocol.md 12.9; security.md §1.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.core.append import GatewayStep
from gateway.core.draft import Draft
from gateway.core.key import line_of
from gateway.core.lookup import ledger_key_at
from gateway.core.outcome import Context, Decision, granted
from gateway.core.record_keys import DISPUTE_KEY
from gateway.core.records import Dispute
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.did import encode_did
from verifier.entries import NOTE
from verifier.keyring import covers
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


def disputed(note: bytes, checkpoint: Checkpoint, log_keys: Sequence[VerifierKey]) -> GatewayStep:
    """Return the step that records the proof and stops all grants; a second dispute writes nothing.

    `log_keys` are our own that signed the checkpoint. If all of them were disowned while the proof stood in line, it
    proves nothing any more.
    """

    def step(draft: Draft, context: Context) -> Decision | None:
        if draft.get(DISPUTE_KEY) is not None or not any(_speaks(draft, key, checkpoint.size) for key in log_keys):
            return None
        draft.put(DISPUTE_KEY, Dispute(context.seq))
        root = encode_base64(checkpoint.root)
        return granted("ledger.disputed", {"checkpoint": note.decode(), "size": checkpoint.size, "root": root})

    return step


def _speaks(draft: Draft, key: VerifierKey, size: int) -> bool:
    """Say whether what a log key signed for a tree of this size is our word, as things stand."""
    known = ledger_key_at(draft, encode_did(key.public_key))
    return known is not None and not known.is_compromised and covers(line_of(known), size)
