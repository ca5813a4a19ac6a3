"""A whole ledger, entry by entry: chain, tree, checkpoints, every request's evidence, and what lies between entries.

Findings carry the ladder's numbers: 4 to 7 the checkpoints, 8 the tree, 9 leaf and chain, 10 evidence and relations,
12 a split view. Memory grows with 64 bytes per entry (tree nodes) and with live state, not with the ledger's text.
What is not decided again is told in every report (docs/protocol.md 17.4). Source: docs/protocol.md 17.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from itertools import islice
from pathlib import Path

from verifier.entries import Leaf, full_type
from verifier.keyring import Keyring
from verifier.replay.audit import ZEROS, Audit
from verifier.replay.heads import check_own_checkpoint, check_pinned_checkpoint, dispute_faults
from verifier.replay.judged import Judged, judged
from verifier.replay.source import BUNDLE_ENTRIES, open_source
from verifier.verdict import Finding, Outcome, Report, unreadable
from verifier.wire import Malformed

_STARTED, _DISPUTED = full_type("service.started"), full_type("ledger.disputed")
_NOT_REDECIDED = Finding(
    10,
    "decisions_not_redecided",
    Outcome.VALID,
    "not decided again: whether a decision.failed had to fail, rate limits, how soon after its end a lease is expired",
)


def check_ledger(path: Path, keyring: Keyring, checkpoint: bytes | None = None, *, jobs: int = 1) -> Report:
    """Read the export file or tile directory at `path` and report.

    `checkpoint` is a note whose size and root are pinned; `jobs` processes check signatures. A file that cannot be read
    is a report of exit code 2; no content raises.
    """
    try:
        with open_source(path) as source:
            audit = Audit(keyring, source)
            _read_all(audit, jobs)
    except Malformed as error:
        return Report("ledger", (Finding(2, "source_malformed", Outcome.INVALID, str(error)), _NOT_REDECIDED))
    except (OSError, ValueError, BrokenExecutor) as error:  # ValueError: a path that no file can have
        return unreadable("ledger", f"cannot read the ledger: {error}", "unreadable")
    check_own_checkpoint(audit)
    if checkpoint is not None:
        check_pinned_checkpoint(audit, checkpoint)
    return _report(audit)


def _read_all(audit: Audit, jobs: int) -> None:
    """Entries may be judged by other processes; chain, tree and relations follow here, in order."""
    bundles = iter(lambda: list(islice(audit.source.leaves, BUNDLE_ENTRIES)), [])
    try:
        for entry in judged(bundles, jobs):
            leaf = _link(audit, entry)
            if leaf is not None:
                _relate(audit, leaf, entry)
    except Malformed as error:
        audit.say(2, "source_malformed", str(error))
    is_whole = not any(finding.outcome >= Outcome.INVALID for finding in audit.findings)
    if audit.stopped_at is None and is_whole:  # that something is missing is no news where entries are bad
        for code, text in audit.relations.end_faults():
            audit.say(10, code, text, audit.tree.size - 1)


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
    expected = (index, previous, genesis, audit.source.origin, epoch)
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
    audit.genesis = entry_hash
    audit.relations.open(leaf)
    pinned, root = audit.keyring.genesis(leaf.origin), audit.keyring.root
    if pinned is not None and pinned != entry_hash:
        audit.say(9, "genesis_differs", "entry 0 is not the one that the key document names", 0)
    if root is not None and leaf.text("root") != root.vkey:
        audit.say(9, "root_differs", "entry 0 names another root key than the pinned one", 0)


def _relate(audit: Audit, leaf: Leaf, entry: Judged) -> None:
    """Step 10 for one entry: its own evidence, then what earlier entries say about it."""
    audit.requests += entry.nonce is not None
    audit.custodial += "custody" in leaf.value
    if entry.is_unchecked and not audit.is_name_unchecked:
        audit.is_name_unchecked = True
        text = "a name has characters that this Python does not know: its normal form was not checked, here and later"
        audit.say(9, "name_not_checked", text, leaf.seq, Outcome.VALID)
    disputed = dispute_faults(audit, leaf) if leaf.type == _DISPUTED else ()
    for code, text in (*entry.faults, *disputed, *audit.relations.faults(leaf, entry)):
        audit.say(10, code, text, leaf.seq)
    for code, text in audit.relations.remarks:
        audit.say(10, code, text, leaf.seq, Outcome.VALID)
    anchor = entry.anchor
    if anchor is None or anchor.size > min(leaf.seq, audit.tree.size):  # a forged seq may lie anywhere
        return
    if audit.root_at(anchor.size) != anchor.root:
        audit.say(10, "anchor_root_wrong", f"the ledger's root at size {anchor.size} is not the anchor's", leaf.seq)


def _report(audit: Audit) -> Report:
    is_whole = not any(finding.outcome >= Outcome.INVALID for finding in audit.findings)
    completeness = audit.completeness if is_whole else "unknown"
    if audit.stopped_at is not None and is_whole:
        completeness = f"chain and tree {completeness}; checked to {audit.stopped_at - 1}"
    return Report(
        command="ledger",
        findings=(*audit.findings, _NOT_REDECIDED),
        level=audit.level if is_whole else "none",
        completeness=completeness,
        statement=tuple(_statement(audit)),
        facts={
            "origin": audit.source.origin,
            "size": audit.tree.size,
            "root": audit.tree.root().hex(),
            "requests": audit.requests,
            "custodial": audit.custodial,
            "keysVersion": audit.keyring.version,
        },
    )


def _statement(audit: Audit) -> Iterator[str]:
    yield f"{audit.tree.size} entries of {audit.source.origin}, signed requests checked: {audit.requests}"
    if audit.custodial:
        yield f"key held by the gateway: consent not proven, in {audit.custodial} of these entries"
