"""Entries, tree, checkpoints and signatures of a ledger file, batch by batch, each value computed again.

The leaves are the truth that the signed roots speak of. Where the leaves do not give a root but the stored hashes do,
it is the leaf that changed; where the leaves give it, it is the value beside them. `proven` is the largest size whose
root was signed by our log keys and comes from the leaves alone: below it everything else can be made again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from gateway.fsck.findings import Flaws
from gateway.fsck.keys import InForce, has_signed_leaf, open_keys
from gateway.ledger.tree import EMPTY_EDGE, Edge, Growth
from gateway.store.contract import HASH_BYTES, SIGNATURE_BYTES, node_count, node_position
from gateway.store.raw import RawBatch, RawFile
from verifier.checkpoint import parse_checkpoint
from verifier.entries import Leaf, full_type, parse_leaf
from verifier.merkle import leaf_hash
from verifier.note import VerifierKey
from verifier.wire import Malformed

_STARTED = full_type("service.started")
_BATCH_ID = re.compile(r"[0-9a-z]{1,64}")  # a random one; old ones are compared with nothing

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Step:
    """One batch as its leaves make it: what was stored, the tree after it, who signs it and each of its leaves."""

    stored: RawBatch
    growth: Growth
    leaves: list[bytes]
    logs: tuple[VerifierKey, ...]
    receipts: list[VerifierKey | None]
    time_ms: int
    epoch: int

    @property
    def made(self) -> RawBatch:
        """The row of `batch` that the leaves give."""
        hashes = b"".join(self.growth.hashes)
        return self.stored._replace(root=self.growth.root, time_ms=self.time_ms, epoch=self.epoch, hashes=hashes)


@dataclass(slots=True)
class History:
    """A walk over the batches of a file up to `size`; `proven` and `is_pure` count only after it."""

    file: RawFile
    size: int
    flaws: Flaws
    progress: Progress = lambda done, total: None
    origin: str = ""
    genesis: bytes = b""
    proven: int = 0
    is_pure: bool = True
    edge: Edge = EMPTY_EDGE
    previous: bytes | None = None
    time_ms: int = 0
    epoch: int = 0
    types: dict[str, int] = field(default_factory=dict)
    in_force: InForce = field(default_factory=InForce)
    last_batch: RawBatch | None = None

    def walk(self) -> Iterator[Step]:
        """Check each batch in order, and yield those whose leaves are all there. Stops where the tree is lost."""
        for batch in self.file.batches(self.size):
            step = self._step(batch)
            if step is None:
                return
            self.edge, self.last_batch = step.growth.edge, batch
            self.progress(self.edge.size, self.size)
            yield step
        if self.edge.size != self.size:
            self.flaws.say("batch_missing", f"entries {self.edge.size} to {self.size - 1} are of no batch", self.size)

    def _step(self, batch: RawBatch) -> Step | None:
        start, stop = self.edge.size, batch.size
        if batch.first_seq != start:
            self.flaws.say("batch_missing", f"it begins at {batch.first_seq}, the one before ended at {start}", stop)
        if _BATCH_ID.fullmatch(batch.batch_id) is None:
            self.flaws.say("batch_id_wrong", "the id of the batch is not one of ours", stop)
        found = self.file.leaves(start, stop)
        nodes = _leaf_nodes(batch)
        leaves, receipts = [], []
        hashes: list[bytes] = []
        for seq in range(start, stop):
            leaf = found.get(seq)
            before = self.in_force.receipt
            node = self._entry(seq, leaf) if leaf is not None else self._missing(seq, nodes)
            receipts.append(before or self.in_force.receipt)  # entry 0 is signed by a key that it names itself
            if node is None:
                return None
            leaves.append(leaf or b"")
            hashes.append(node)
        growth = self._grown(batch, hashes, nodes)
        step = Step(batch, growth, leaves, self.in_force.logs, receipts, self.time_ms, self.epoch)
        self._compare(step)
        self._check_signed(step)
        return step

    def _missing(self, seq: int, nodes: Mapping[int, bytes]) -> bytes | None:
        self.flaws.say("entry_missing", "the entry is not there", seq)
        self.is_pure, self.previous = False, None
        return nodes.get(seq)

    def _entry(self, seq: int, data: bytes) -> bytes:
        """Check one leaf by itself and against the one before; return its hash."""
        previous, self.previous = self.previous, sha256(data).digest()
        try:
            leaf = parse_leaf(data)
        except Malformed as error:
            self.flaws.say("entry_malformed", str(error), seq)
            return leaf_hash(data)
        if seq == 0:
            self.origin, self.genesis = leaf.origin, leaf_hash(data)
            self.time_ms, self.epoch = leaf.time_ms, leaf.epoch
        for fault in self._faults(seq, leaf, previous):
            self.flaws.say("chain_broken" if fault.startswith("prev") else "entry_differs", fault, seq)
        self.time_ms, self.epoch = leaf.time_ms, leaf.epoch
        self.types[leaf.type] = self.types.get(leaf.type, 0) + 1
        wrong = open_keys(self.in_force, leaf)
        if wrong is not None:
            self.flaws.say("entry_malformed", wrong, seq)
        return leaf_hash(data)

    def _faults(self, seq: int, leaf: Leaf, previous: bytes | None) -> Iterator[str]:
        epoch = self.epoch + (leaf.type == _STARTED) if seq else leaf.epoch
        for is_wrong, text in (
            (leaf.seq != seq, f"it says that it is entry {leaf.seq}"),
            (not leaf.is_known, f"{leaf.type} is of no type that this version knows"),
            (leaf.origin != self.origin, "its origin is another ledger"),
            (seq > 0 and leaf.genesis != self.genesis, "its genesis is not this ledger's entry 0"),
            (leaf.time_ms < self.time_ms, "its time is before that of the entry before"),
            (leaf.epoch != epoch, "its epoch changes without a start"),
            (previous is not None and leaf.prev != previous, "prev is not the hash of the entry before"),
        ):
            if is_wrong:
                yield text

    def _grown(self, batch: RawBatch, hashes: Sequence[bytes], nodes: Mapping[int, bytes]) -> Growth:
        """Return the tree after the batch: by its leaves, or by the stored hashes if only those give the root.

        Then the leaves that differ are the ones that were changed, and all later batches can still be judged. The root
        is the one that was signed, and only without a good note the one in the batch's row.
        """
        growth, wanted = Growth(self.edge, hashes), self._signed_root(batch) or batch.root
        start = self.edge.size
        stored = [nodes.get(start + at, node) for at, node in enumerate(hashes)]
        if growth.root == wanted or (by_store := Growth(self.edge, stored)).root != wanted:
            return growth
        self.is_pure = False
        for seq, (ours, theirs) in enumerate(zip(hashes, stored, strict=True), start):
            if ours != theirs:
                self.flaws.say("entry_changed", "its hash is not the one below the batch's root", seq)
        return by_store

    def _signed_root(self, batch: RawBatch) -> bytes | None:
        """Return the root that our log keys signed at the size of a batch; None without a good note."""
        try:
            checkpoint = parse_checkpoint(batch.note or b"")
        except Malformed:
            return None
        is_ours = (checkpoint.origin, checkpoint.size) == (self.origin, batch.size)
        return checkpoint.root if is_ours and self.in_force.has_signed(checkpoint) else None

    def _compare(self, step: Step) -> None:
        """Compare the row of a batch with what its leaves give."""
        batch, size = step.stored, step.stored.size
        if step.growth.root != batch.root:
            self.flaws.say("root_differs", "the leaves give another root than the batch has", size)
        if (batch.time_ms, batch.epoch) != (self.time_ms, self.epoch):
            self.flaws.say("batch_differs", "time or epoch of the batch are not its last entry's", size)
        if b"".join(step.growth.hashes)[-len(batch.hashes) or None :] != batch.hashes or not batch.hashes:
            self.flaws.say("nodes_differ", "the stored hashes of the tree are not those of the leaves", size)

    def _check_signed(self, step: Step) -> None:
        batch, size = step.stored, step.stored.size
        if batch.note is None or batch.signatures is None:
            if size < self.size:  # the newest batch's signatures are kept with the next one
                self.flaws.say("note_missing", "the batch has no checkpoint and no signatures", size)
            return
        if self._is_note(step, batch.note) and self.is_pure:
            self.proven = size
        self._check_signatures(step, batch.signatures)

    def _is_note(self, step: Step, note: bytes) -> bool:
        """Say whether a stored checkpoint is ours and of this very tree."""
        try:
            checkpoint = parse_checkpoint(note)
        except Malformed as error:
            self.flaws.say("note_wrong", f"the checkpoint is malformed: {error}", step.stored.size)
            return False
        expected = (self.origin, step.stored.size, step.growth.root)
        if (checkpoint.origin, checkpoint.size, checkpoint.root) != expected:
            self.flaws.say("note_wrong", "the checkpoint is of another tree than the leaves", step.stored.size)
        elif not self.in_force.has_signed(checkpoint):
            self.flaws.say("note_wrong", "the checkpoint is not signed by the log keys in force", step.stored.size)
        else:
            return True
        return False

    def _check_signatures(self, step: Step, joined: bytes) -> None:
        start = step.growth.before.size
        if len(joined) != SIGNATURE_BYTES * len(step.leaves):
            text = f"{len(step.leaves)} entries have {len(joined)} bytes of signatures"
            self.flaws.say("signature_missing", text, step.stored.size)
            return
        for at, (leaf, key) in enumerate(zip(step.leaves, step.receipts, strict=True)):
            if leaf and not has_signed_leaf(key, leaf, joined[at * SIGNATURE_BYTES : (at + 1) * SIGNATURE_BYTES]):
                text = "the stored signature is not by the receipt key in force"
                self.flaws.say("signature_wrong", text, start + at)


def _leaf_nodes(batch: RawBatch) -> dict[int, bytes]:
    """Return the stored hash of each leaf of a batch, by its number, as far as there are any."""
    first, nodes = node_count(max(0, batch.first_seq)), {}
    for seq in range(max(0, batch.first_seq), batch.size):
        offset = (node_position(0, seq) - first) * HASH_BYTES
        node = batch.hashes[offset : offset + HASH_BYTES]
        if len(node) == HASH_BYTES:
            nodes[seq] = node
    return nodes
