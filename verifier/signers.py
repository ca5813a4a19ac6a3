"""Ladder steps 5 to 7: who signed a checkpoint, and whether the reader's pins let those signatures count.

Shared by receipts and ledgers, so that a checkpoint means the same in both. Source: docs/protocol.md 16.2, 15.6, 13.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verifier.checkpoint import Checkpoint
from verifier.keyring import KeyLine, Keyring, covers
from verifier.note import VerifierKey, line_is_valid, line_matches
from verifier.policy import is_quorum_met
from verifier.verdict import Finding, Outcome


@dataclass(frozen=True, slots=True)
class Signers:
    """`is_signed`: steps 5 and 6 hold. `level`: what the checkpoint reaches once inclusion holds too."""

    findings: tuple[Finding, ...]
    is_signed: bool
    level: str
    ignored_lines: int


def check_signers(checkpoint: Checkpoint, keyring: Keyring) -> Signers:
    """Judge every signature line of `checkpoint` whose key is pinned, each once. Never raises."""
    logs = [(line, _marks(checkpoint, line.key)) for line in keyring.log_keys(checkpoint.origin)]
    pinned = {} if keyring.policy is None else keyring.policy.witnesses
    witnesses = {name: _marks(checkpoint, key) for name, key in pinned.items()}
    good = {name for name, marks in witnesses.items() if marks and all(marks)}
    is_met = keyring.policy is not None and is_quorum_met(keyring.policy, good)
    signed = [line for line, marks in logs if marks == [True]]
    findings = [*_log_findings(checkpoint, logs), *_size_findings(checkpoint, keyring, signed, is_met)]
    # A key that may not speak for this size, or was stolen, convicts nobody of a split view.
    is_signed = not any(finding.outcome > Outcome.VALID for finding in findings)
    bad = [name for name, marks in witnesses.items() if not all(marks)]
    findings += [Finding(7, "witness_invalid", Outcome.INVALID, f"witness {name}: a line is invalid") for name in bad]
    if not is_met:
        text = f"the policy's quorum is not met: {len(good)} of {len(witnesses)} witnesses signed"
        findings.append(Finding(7, "not_witnessed", Outcome.VALID, text if witnesses else "no witness is pinned"))
    level = f"witnessed {len(good)}/{len(witnesses)}" if is_met else "included"
    known = sum(len(marks) for marks in (*(marks for _, marks in logs), *witnesses.values()))
    ignored = len(checkpoint.note.lines) - known
    return Signers(tuple(findings), is_signed, level if is_signed and not bad else "none", ignored)


def _marks(checkpoint: Checkpoint, key: VerifierKey) -> list[bool]:
    """One bool per line that claims to be by `key`: does it verify?"""
    note = checkpoint.note
    return [line_is_valid(row, key, note.text) for row in note.lines if line_matches(row, key)]


def _log_findings(checkpoint: Checkpoint, logs: list[tuple[KeyLine, list[bool]]]) -> Iterator[Finding]:
    """Step 5: known lines all verify, exactly once each, and there is at least one."""
    if not logs:
        text = f"no key is pinned for origin {checkpoint.origin}; no pinned key, no pass"
        yield Finding(5, "origin_unknown", Outcome.INVALID, text)
        return
    if any(marks not in ([], [True]) for _, marks in logs):
        text = "a line of a pinned log key does not verify, or is there twice"
        yield Finding(5, "log_signature_invalid", Outcome.INVALID, text)
    if not any(marks == [True] for _, marks in logs):
        yield Finding(5, "log_signature_missing", Outcome.INVALID, "no valid signature by a pinned log key")


def _size_findings(checkpoint: Checkpoint, keyring: Keyring, signed: list[KeyLine], is_met: bool) -> Iterator[Finding]:
    """Step 6: at least one signing key may speak for this size; a compromised one needs more than its signature."""
    bounded = [] if keyring.document is None else [line for line in signed if line in keyring.document.keys]
    if signed and not bounded:
        yield Finding(6, "size_not_checked", Outcome.VALID, "key sizes: not checked, a policy does not say them")
        return
    verdicts = [_may_speak(checkpoint, line, is_met) for line in bounded]
    if None not in verdicts:
        yield from sorted(filter(None, verdicts), key=lambda finding: finding.outcome)[:1]


def _may_speak(checkpoint: Checkpoint, line: KeyLine, is_met: bool) -> Finding | None:
    """Return why the signature of `line` does not count at this size, or None when it does."""
    if not covers(line, checkpoint.size):
        text = f"size {checkpoint.size} is outside the sizes that the log key may sign"
        return Finding(6, "size_outside_key", Outcome.INVALID, text)
    if line.final_size is None:
        return None
    if checkpoint.size > line.final_size or (checkpoint.size == line.final_size and checkpoint.root != line.final_root):
        return Finding(6, "key_compromised", Outcome.INVALID, "not in the history that ends at the key's final root")
    if is_met or checkpoint.size == line.final_size:
        return None
    text = "disowned, unproven: the log key is compromised; needs witnesses or a proof to its final root"
    return Finding(6, "key_compromised", Outcome.INDETERMINATE, text)
