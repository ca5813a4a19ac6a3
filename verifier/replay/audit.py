"""What an audit of one ledger knows after the entries read so far, and how one more entry moves it.

Findings carry the ladder's numbers: 9 leaf and chain, 10 evidence and relations. What is about one reading (its source
and the checkpoint that came with it) is in auditor.py and heads.py.
Source: docs/protocol.md 17.1, 17.3, 17.5.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from verifier.entries import ALLOWED, Leaf, full_type
from verifier.keyring import Keyring
from verifier.merkle import is_consistent
from verifier.replay.judged import Judged
from verifier.replay.relations import Relations
from verifier.replay.ruling import Engine
from verifier.replay.things import Faults
from verifier.replay.tree import NodesDamaged, Tree
from verifier.replay.witnessed import Witnessed, dispute_faults, record_faults
from verifier.verdict import Finding, Outcome

FINDINGS_MAX = 1_000  # a forged ledger must not fill memory with complaints
REMARKS_MAX = 500  # nor hide a fault behind remarks
ROOTS_MAX = 1_024
ENGINES_MAX = 64  # told apart; an honest ledger names a handful
ZEROS = bytes(32)
_STARTED, _FAILED, _DENIED = map(full_type, ("service.started", "decision.failed", "admission.denied"))
_DISPUTED, _WITNESSED = map(full_type, ("ledger.disputed", "checkpoint.witnessed"))


@dataclass(slots=True)
class Audit:
    """What is known after the entries read so far; `findings` are about entries, in order."""

    keyring: Keyring
    tree: Tree = field(default_factory=Tree)
    relations: Relations = field(default_factory=Relations)
    findings: list[Finding] = field(default_factory=list)
    origin: str = ""  # of the source that entry 0 came from
    root_key: str = ""  # entry 0's
    authorities: frozenset[str] = frozenset()  # entry 0's
    previous: bytes = ZEROS  # SHA-256 of the last leaf
    genesis: bytes = ZEROS
    time_ms: int = 0
    epoch: int = 0
    stopped_at: int | None = None  # the first entry of unknown type
    requests: int = 0
    custodial: int = 0  # entries of actors whose key the gateway holds
    unexplained: int = 0  # decision.failed: nobody can say whether it had to fail
    is_name_unchecked: bool = False  # told once
    witnessed: Witnessed = field(default_factory=Witnessed)
    confirmed: bytes = b""  # the newest checkpoint that a pinned log key signed and these entries gave
    confirmed_size: int = 0
    engine: Engine | None = None  # asks what entries say of rules again, if the reader wants that
    admissions: Counter[str] = field(default_factory=Counter)  # allowed, denied; of the allowed unpoliced, shadowed
    rulings: int = 0  # how often entries say what a rule set says of an admission
    unruled: Counter[str] = field(default_factory=Counter)  # of these, by engine, what was not asked again
    roots: dict[int, bytes] = field(default_factory=dict)  # of sizes that anchors name; neighbours often name one

    @property
    def is_sound(self) -> bool:
        """Nothing was found so far that makes an entry invalid."""
        return not any(finding.outcome >= Outcome.INVALID for finding in self.findings)

    def root_at(self, size: int) -> bytes:
        if len(self.roots) >= ROOTS_MAX:
            self.roots.clear()
        return self.roots.get(size) or self.roots.setdefault(size, self.tree.root(size))

    def root_seen(self, size: int, seq: int) -> bytes | None:
        """Return the root of a size that entry `seq` may speak of, None for one that lies beyond it."""
        return None if size > min(seq, self.tree.size) else self.root_at(size)  # a forged seq may lie anywhere

    def say(self, step: int, code: str, text: str, seq: int, outcome: Outcome = Outcome.INVALID) -> None:
        places = REMARKS_MAX if outcome is Outcome.VALID else FINDINGS_MAX
        if len(self.findings) < places:
            self.findings.append(Finding(step, code, outcome, text, seq))

    def take(self, entry: Judged) -> None:
        """Move by the next entry."""
        leaf = _link(self, entry)
        if leaf is not None:
            _relate(self, leaf, entry)


def _link(audit: Audit, entry: Judged) -> Leaf | None:
    """Steps 8 and 9 for the next entry; None when nothing more is to be judged about it."""
    index, leaf = audit.tree.size, entry.leaf
    audit.tree.append(entry.leaf_hash)
    previous, audit.previous = audit.previous, entry.link
    if leaf is None:
        for code, text in entry.faults:
            audit.say(9, code, text, index)
        return None
    if index == 0:
        _open(audit, leaf, entry.leaf_hash)
    genesis = audit.genesis if index else ZEROS
    epoch = audit.epoch + (leaf.type == _STARTED) if index else leaf.epoch
    expected = (index, previous, genesis, audit.origin, epoch)
    if (leaf.seq, leaf.prev, leaf.genesis, leaf.origin, leaf.epoch) != expected or leaf.time_ms < audit.time_ms:
        _say_what_differs(audit, leaf, expected)
    audit.time_ms, audit.epoch = max(leaf.time_ms, audit.time_ms), leaf.epoch
    if not leaf.is_known and audit.stopped_at is None:
        audit.stopped_at = index
        audit.say(9, "type_unknown", f"{leaf.type}: checked to {index - 1}", index, Outcome.INDETERMINATE)
    return leaf if audit.stopped_at is None else None


def _say_what_differs(audit: Audit, leaf: Leaf, expected: tuple[int, bytes, bytes, str, int]) -> None:
    index, previous, genesis, origin, epoch = expected
    for code, is_wrong, text in (
        ("seq_differs", leaf.seq != index, f"seq is {leaf.seq}, its place is {index}"),
        ("chain_broken", leaf.prev != previous, "prev is not the hash of the entry before"),
        ("genesis_differs", leaf.genesis != genesis, "genesis is not this ledger's entry 0"),
        ("origin_differs", leaf.origin != origin, "origin is not the ledger's"),
        ("time_backwards", leaf.time_ms < audit.time_ms, "timeMs is smaller than that of the entry before"),
        ("epoch_wrong", leaf.epoch != epoch, "epoch changes only at service.started, by one"),
    ):
        if is_wrong:
            audit.say(9, code, text, index)


def _open(audit: Audit, leaf: Leaf, entry_hash: bytes) -> None:
    """Entry 0 against the pins."""
    audit.genesis, audit.root_key = entry_hash, leaf.text("root")
    audit.relations.open(leaf, entry_hash)
    pinned, root = audit.keyring.genesis(leaf.origin), audit.keyring.root
    if pinned is not None and pinned != entry_hash:
        audit.say(9, "genesis_differs", "entry 0 is not the one that the key document names", 0)
    if root is not None and audit.root_key != root.vkey:
        audit.say(9, "root_differs", "entry 0 names another root key than the pinned one", 0)


def _relate(audit: Audit, leaf: Leaf, entry: Judged) -> None:
    """Step 10 for one entry: its own evidence, then what earlier entries say about it."""
    audit.requests += entry.nonce is not None
    audit.custodial += "custody" in leaf.value
    audit.unexplained += leaf.type == _FAILED
    if entry.is_unchecked and not audit.is_name_unchecked:
        audit.is_name_unchecked = True
        text = "a name has characters that this Python does not know: its normal form was not checked, here and later"
        audit.say(9, "name_not_checked", text, leaf.seq, Outcome.VALID)
    for code, text in (*entry.faults, *audit.relations.faults(leaf, entry), *_note_faults(audit, leaf)):
        audit.say(10, code, text, leaf.seq)
    if leaf.type in (ALLOWED, _DENIED):
        _count(audit, leaf)
    if audit.relations.state.claims:
        _ask_again(audit, leaf.seq)
    for code, text in (*audit.relations.remarks, *audit.witnessed.remarks):
        audit.say(10, code, text, leaf.seq, Outcome.VALID)
    anchor = entry.anchor
    if anchor is not None and audit.root_seen(anchor.size, leaf.seq) not in (anchor.root, None):
        _check_nodes(audit, anchor.size)
        audit.say(10, "anchor_root_wrong", f"the ledger's root at size {anchor.size} is not the anchor's", leaf.seq)


def _count(audit: Audit, leaf: Leaf) -> None:
    is_allowed = leaf.type == ALLOWED
    audit.admissions["allowed" if is_allowed else "denied"] += 1
    ruling = leaf.value.get("rules")
    mode = ruling["mode"] if isinstance(ruling, dict) else None
    if is_allowed and mode != "enforce":
        audit.admissions["unpoliced" if mode is None else "shadowed"] += 1


def _ask_again(audit: Audit, seq: int) -> None:
    """What an entry says of rules is asked of the same engine again, and counted where there is none."""
    state = audit.relations.state
    for claim in state.claims:
        is_ruling = claim.question is not None
        audit.rulings += is_ruling
        if audit.engine is not None and claim.engine == audit.engine.name:
            for code, text in audit.engine.faults(claim):
                audit.say(10, code, text, seq)
        elif is_ruling:
            is_known = claim.engine in audit.unruled or len(audit.unruled) < ENGINES_MAX
            audit.unruled[claim.engine if is_known else "others"] += 1
    state.claims = []


def _note_faults(audit: Audit, leaf: Leaf) -> Faults:
    """An entry that shows a checkpoint, and what checkpoints shown before say about the time of this one."""
    if leaf.type == _DISPUTED:
        yield from dispute_faults(audit.relations.state.keys, leaf, audit.root_seen)
    if leaf.type == _WITNESSED:
        yield from record_faults(audit.relations.state, audit.witnessed, leaf, audit.root_seen, audit.keyring.policy)
    yield from audit.witnessed.faults(leaf, is_record=leaf.type == _WITNESSED)


def _check_nodes(audit: Audit, size: int) -> None:
    """Before anybody is accused: do the nodes still fit the root, which was never read from the file?"""
    tree = audit.tree
    if not is_consistent(size, audit.root_at(size), tree.size, tree.root(), tree.consistency(size, tree.size)):
        raise NodesDamaged("the file of tree nodes is damaged: audit again from the beginning, with an empty folder")
