"""Witnessed checkpoints go into the ledger: two of them bracket every entry between them in time.

The gateway's clock alone says when an entry was written. A cosignature says when somebody else saw everything below a
size; once it stands in the ledger, nobody can write an entry that claims to be older, or older ones that claim to be
newer, without contradicting a witness.

Source: docs/protocol.md 12.5, 32.5; security.md §7.
"""

from __future__ import annotations

from gateway.core.append import GatewayStep
from gateway.core.draft import Draft
from gateway.core.outcome import Context, Decision, granted
from verifier.checkpoint import Checkpoint
from verifier.wire import encode_base64


def witnessed(note: bytes, checkpoint: Checkpoint) -> GatewayStep:
    """Return the step that writes a cosigned checkpoint of this ledger into it.

    `note` is the whole note, with the lines of the log and its witnesses, and `checkpoint` what was parsed out of it.
    """

    def step(draft: Draft, context: Context) -> Decision | None:
        assert 0 < checkpoint.size <= context.seq, "what was witnessed was committed before"
        root = encode_base64(checkpoint.root)
        return granted("checkpoint.witnessed", {"checkpoint": note.decode(), "size": checkpoint.size, "root": root})

    return step
