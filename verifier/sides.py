"""Two files of one log against each other: what each proves by itself, and where they can't both be true.

Only what a pinned key signed speaks: a tree under a log key that counts for its size, a leaf in such a tree or under a
receipt key. What a proven leaf says of the history before it is the log's word as well.
Source: docs/protocol.md 33.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.consistency import Consistency, is_consistency, parse_consistency
from verifier.entries import Leaf
from verifier.keyring import Keyring
from verifier.ladder import Walk, walk_ladder
from verifier.merkle import leaf_hash
from verifier.request import parse_anchor
from verifier.shown import is_receipt, read_shown
from verifier.signers import check_signers
from verifier.wire import Malformed

_Range = tuple[int, int]  # leaves [start, stop)
# The ways in which two signed files can't be of one history, the plainest first.
SPLITS = ("two_leaves", "two_roots", "two_hashes", "two_geneses", "anchor_differs", "prev_differs")


@dataclass(frozen=True, slots=True)
class Side:
    """What one file proves. `tree` and `ranges` are of a log-signed tree, `leaves` of it or directly signed.

    `claims` are hashes of ranges that proven leaves state, with the code that a contradiction has.
    """

    walk: Walk
    tree: Checkpoint | None
    ranges: Mapping[_Range, bytes]
    leaves: tuple[tuple[Leaf, bytes], ...]
    proof: Consistency | None

    @property
    def claims(self) -> Iterator[tuple[_Range, bytes, str]]:
        """What the leaves say of the tree before them: the hash of entry 0, and the root their signers had seen."""
        for leaf, _ in self.leaves:
            if leaf.seq:
                yield (0, 1), leaf.genesis, "two_geneses"
            try:
                anchor = parse_anchor((leaf.request or {}).get("anchor", ""))
            except Malformed:
                continue
            if anchor.origin == leaf.origin and anchor.size <= leaf.seq:
                yield (0, anchor.size), anchor.root, "anchor_differs"


def read_side(data: bytes, keyring: Keyring, files: Sequence[bytes]) -> Side:
    """Judge a receipt, a checkpoint or a consistency proof; never raises. `files` are all that is at hand."""
    if is_receipt(data):
        return side_of(walk_ladder(data, keyring, files), data)
    walk = Walk()
    try:
        walk.checkpoint = parse_consistency(data).checkpoint if is_consistency(data) else parse_checkpoint(data)
        walk.signers = check_signers(walk.checkpoint, keyring, files)
        walk.findings += walk.signers.findings
    except Malformed as error:
        walk.say(4, "checkpoint_malformed", str(error))
    return side_of(walk, data)


def side_of(walk: Walk, data: bytes) -> Side:
    """Return what the file `data`, walked before, proves."""
    shown, tree = read_shown(data), walk.checkpoint if walk.is_log_signed else None
    ranges = {} if shown is None or tree is None else dict(shown.ranges)
    if walk.direct_signature == "valid" and walk.leaf is not None:
        ranges.setdefault((walk.leaf.seq, walk.leaf.seq + 1), leaf_hash(walk.leaf_bytes))
    known = [] if walk.leaf is None else [(walk.leaf, walk.leaf_bytes)]
    known += [] if shown is None else shown.leaves[len(known) :]
    leaves = tuple(row for row in known if ranges.get((row[0].seq, row[0].seq + 1)) == leaf_hash(row[1]))
    ours = tuple(row for row in leaves if row[0].origin == (leaves[0][0].origin if tree is None else tree.origin))
    return Side(walk, tree, ranges, ours, None if shown is None else shown.proof)


def origin_of(side: Side) -> str | None:
    """Return the log that a file is about; None when it proves nothing."""
    if side.tree is not None:
        return side.tree.origin
    return side.leaves[0][0].origin if side.leaves else None


def contradictions(a: Side, b: Side) -> dict[str, str]:
    """Return how two sides of one origin contradict each other: a sentence by code, in the order of SPLITS.

    Everything here is in the words of one log about one history, so any of them proves two.
    """
    rows: list[tuple[str, str]] = []
    for place in sorted(a.ranges.keys() & b.ranges.keys()):
        if a.ranges[place] != b.ranges[place]:
            rows.append((_code(a, b, place), f"two different hashes of the entries {place[0]} to {place[1] - 1}"))
    rows += [*_claimed(a, b), *_claimed(b, a), *_unlinked(a, b), *_unlinked(b, a)]
    first = dict(reversed(rows))
    return {code: first[code] for code in SPLITS if code in first}


def _code(a: Side, b: Side, place: _Range) -> str:
    if place[1] - place[0] == 1:
        return "two_leaves"
    is_root = a.tree is not None and b.tree is not None and a.tree.size == b.tree.size and place == (0, a.tree.size)
    return "two_roots" if is_root else "two_hashes"


def _claimed(a: Side, b: Side) -> Iterator[tuple[str, str]]:
    """What a leaf of `a` says of earlier entries, against what `b` shows or says of them."""
    said = [*b.ranges.items(), *((place, claimed) for place, claimed, _ in b.claims)]
    for place, claimed, code in a.claims:
        if any(where == place and hashed != claimed for where, hashed in said):
            what = "another entry 0" if code == "two_geneses" else f"another tree of size {place[1]}"
            yield code, f"a leaf speaks of {what} than the other file"


def _unlinked(a: Side, b: Side) -> Iterator[tuple[str, str]]:
    """A leaf that names another one before it than the log signed."""
    for leaf, _ in a.leaves:
        for before, encoded in b.leaves:
            if before.seq + 1 == leaf.seq and sha256(encoded).digest() != leaf.prev:
                yield "prev_differs", f"entry {leaf.seq} does not follow the signed entry {before.seq}"


def is_one_history(a: Side, b: Side, proofs: Sequence[Consistency]) -> bool:
    """Say whether the trees of two sides that don't contradict each other are proven to be of one history."""
    if a.tree is None or b.tree is None or a.tree.origin != b.tree.origin:
        return False
    (old, _), (new, larger) = sorted(((a.tree, a), (b.tree, b)), key=lambda pair: pair[0].size)
    if old.size == 0 or larger.ranges.get((0, old.size)) == old.root:  # the same, or a beginning that its path shows
        return True
    every = [*proofs, *(side.proof for side in (a, b) if side.proof is not None)]
    return any(proof.leads_from(old) and proof.checkpoint.note.text == new.note.text for proof in every)
