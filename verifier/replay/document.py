"""The pinned key document beside the ledger: both say which key counts from when to when.

The root signs the document, and every step in the ledger; whoever publishes one without the other is found here. A
document may be older than the ledger's end, or newer: what one of them cannot know yet is no fault.
Source: docs/protocol.md 17.8.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.keyring import KeyLine
from verifier.replay.audit import Audit
from verifier.replay.signing import LedgerKey
from verifier.verdict import Finding, Outcome


def document_findings(audit: Audit) -> Iterator[Finding]:
    """Yield what a pinned key document of this ledger says otherwise than its entries."""
    document = audit.keyring.document
    if document is None or document.origin != audit.origin or audit.stopped_at is not None or not audit.tree.size:
        return
    lines = {line.key.vkey: line for line in document.keys if line.purpose != "custodial"}
    keys = {key.vkey: key for key in audit.relations.state.keys.all if key.purpose != "custodial"}
    shown, unshown = _steps(keys, lines)
    for seq, key in unshown:
        if not seq or (shown and seq < max(shown)):  # it shows a later one, so it is not simply older
            yield _wrong(key, f"does not show entry {seq}, though it shows {max(shown, default=0)}")
        else:
            text = f"the key document of version {document.version} does not show entry {seq} about {key.vkey}"
            yield Finding(6, "key_document_older", Outcome.VALID, text, seq)
    missing = [vkey for vkey in lines if vkey not in keys and lines[vkey].from_size <= audit.tree.size]
    for vkey in missing:
        text = f"the key document has the line {lines[vkey].text}, and no entry announced that key"
        yield Finding(6, "key_line_unannounced", Outcome.INVALID, text)
    for vkey, line in lines.items():
        if vkey in keys:
            yield from _line_findings(audit, keys[vkey], line)


def _steps(keys: dict[str, LedgerKey], lines: dict[str, KeyLine]) -> tuple[list[int], list[tuple[int, LedgerKey]]]:
    """Return the entries about keys that the document shows, and those that it does not."""
    shown: list[int] = []
    unshown: list[tuple[int, LedgerKey]] = []
    for vkey, key in keys.items():
        line = lines.get(vkey)
        if line is None:
            unshown.append((key.announced_seq, key))
        else:
            shown.append(key.announced_seq)
        if key.ended_seq is None or line is None:
            continue
        if line.status == "active":
            unshown.append((key.ended_seq, key))
        else:
            shown.append(key.ended_seq)
    return shown, sorted(unshown, key=lambda step: step[0])


def _line_findings(audit: Audit, key: LedgerKey, line: KeyLine) -> Iterator[Finding]:
    """The bounds that both know of, and the final tree of a disowned key."""
    is_later = line.to_size is not None and line.to_size >= audit.tree.size  # by an entry that is not here yet
    is_older = line.status == "active" and line.to_size is None
    if (line.purpose, line.from_size) != (key.purpose, key.from_size):
        yield _wrong(key, f"has it from size {line.from_size}, the ledger from {key.from_size}")
    elif not is_later and not is_older and not key.is_as(line):
        yield _wrong(key, f"has it to size {line.to_size}, {line.status}; the ledger to {key.ended_seq}, {key.status}")
    final, tree = line.final_size, audit.tree
    if final is None or final > tree.size:
        return
    if key.ended_seq is not None and final <= key.ended_seq:
        yield _wrong(key, f"names a final tree of size {final}, in which entry {key.ended_seq} is not yet")
    elif audit.root_at(final) != line.final_root:
        yield _wrong(key, f"names a final tree of size {final} that is not this ledger's")


def _wrong(key: LedgerKey, text: str) -> Finding:
    return Finding(6, "key_line_wrong", Outcome.INVALID, f"the key document's line of {key.vkey} {text}")
