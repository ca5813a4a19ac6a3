"""Ladder steps 5 to 7: who signed a checkpoint, and whether the reader's pins let those signatures count.

Shared by receipts and ledgers, so that a checkpoint means the same in both.
Source: docs/protocol.md 16.2, 15.6, 16.10 (disowned keys), 13.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import KeyLine, Keyring, covers
from verifier.note import VerifierKey, line_is_valid, line_matches
from verifier.policy import Policy, is_quorum_met
from verifier.shown import Shown, read_shown
from verifier.verdict import Finding, Outcome


@dataclass(frozen=True, slots=True)
class Signers:
    """`is_signed`: steps 5 and 6 hold. `level`: what the checkpoint reaches once inclusion holds too."""

    findings: tuple[Finding, ...]
    is_signed: bool
    level: str
    ignored_lines: int


def check_signers(checkpoint: Checkpoint, keyring: Keyring, files: Sequence[bytes] = ()) -> Signers:
    """Judge every signature line of `checkpoint` whose key is pinned, each once. Never raises.

    `files` are all that the reader holds: receipts, checkpoints, consistency proofs. Only disowned keys need them.
    """
    logs = [(line, _marks(checkpoint, line.key)) for line in keyring.log_keys(checkpoint.origin)]
    witnesses = {} if keyring.policy is None else _witnesses(checkpoint, keyring.policy)
    good = {name for name, marks in witnesses.items() if marks and all(marks)}
    is_met = keyring.policy is not None and is_quorum_met(keyring.policy, good)
    signed = [line for line, marks in logs if marks == [True]]
    findings = [*_log_findings(checkpoint, logs)]
    findings += _size_findings(checkpoint, keyring, signed, is_met, _Final(keyring, files))
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


def good_witnesses(checkpoint: Checkpoint, policy: Policy) -> set[str]:
    """Return the policy's names of those whose lines are there and all valid."""
    return {name for name, marks in _witnesses(checkpoint, policy).items() if marks and all(marks)}


def _witnesses(checkpoint: Checkpoint, policy: Policy) -> dict[str, list[bool]]:
    return {name: _marks(checkpoint, key) for name, key in policy.witnesses.items()}


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


def _size_findings(
    checkpoint: Checkpoint, keyring: Keyring, signed: list[KeyLine], is_met: bool, final: _Final
) -> Iterator[Finding]:
    """Step 6: one signing key may speak for this size, a compromised one needs more; and all that are in force did."""
    lines = keyring.bounded_log_keys(checkpoint.origin)
    bounded = [line for line in signed if line in lines]
    if signed and not bounded:
        yield Finding(6, "size_not_checked", Outcome.VALID, "key sizes: not checked, a policy does not say them")
        return
    verdicts = [_may_speak(checkpoint, line, is_met, final) for line in bounded]
    if None not in verdicts:
        yield from sorted(filter(None, verdicts), key=lambda finding: finding.outcome)[:1]
    elif missing := [line for line in lines if covers(line, checkpoint.size) and line not in signed]:
        yield _missing_finding(checkpoint.size, missing, keyring.known_seq)


def _missing_finding(size: int, missing: list[KeyLine], known_seq: int) -> Finding:
    """A key without an end in the document may have been retired since, as in every planned rotation.

    Not when the document shows an entry that is no older than the tree's last: it would show the end too (16.12).
    """
    text = f"a log key that is in force at size {size} has not signed it"
    if size - 1 <= known_seq or any(line.to_size is not None for line in missing):
        return Finding(6, "log_line_missing", Outcome.INVALID, text)
    text += ", by a key document that may be older than that key's retirement: get the newest one"
    return Finding(6, "log_line_missing", Outcome.INDETERMINATE, text)


def _may_speak(checkpoint: Checkpoint, line: KeyLine, is_met: bool, final: _Final) -> Finding | None:
    """Return why the signature of `line` does not count at this size, or None when it does."""
    if not covers(line, checkpoint.size):
        text = f"size {checkpoint.size} is outside the sizes that the log key may sign"
        return Finding(6, "size_outside_key", Outcome.INVALID, text)
    if line.final_size is None or is_met:
        return None
    tree = final.of(line)
    if tree is None:
        text = "disowned, unproven: the log key is called compromised, which is not proven, and nothing else speaks"
        return Finding(6, "key_compromised", Outcome.INDETERMINATE, text)
    if checkpoint.size == tree.size:
        text = "disowned: not the tree in which the honest history of the compromised log key ends"
        return None if checkpoint.root == tree.root else Finding(6, "key_compromised", Outcome.INVALID, text)
    if final.is_reached_from(checkpoint, tree):
        return None
    needs = f"needs witnesses, or a consistency proof from size {checkpoint.size} to {tree.size}"
    return Finding(6, "key_compromised", Outcome.INDETERMINATE, f"disowned: the log key is compromised; {needs}")


class _Final:
    """The final trees of compromised log keys, as far as they are proven by what one reader pinned and holds."""

    def __init__(self, keyring: Keyring, files: Sequence[bytes]) -> None:
        self._keyring = keyring
        self._files = files

    def of(self, line: KeyLine) -> Checkpoint | None:
        """Return the final tree of `line`, if another log key signed it, witnesses saw it, and nothing at hand speaks
        against it."""
        if line.final_note is None:
            return None
        tree = parse_checkpoint(line.final_note)
        is_proven = self._is_signed_by_another(tree, line) and self._is_witnessed(tree)
        is_doubted = any(self._contradicts(shown, tree, line) for shown in self._shown())
        return tree if is_proven and not is_doubted else None

    def is_reached_from(self, old: Checkpoint, tree: Checkpoint) -> bool:
        """Say whether a consistency proof at hand leads from `old` to the final tree."""
        proofs = [shown.proof for shown in self._shown() if shown.proof is not None]
        return any(proof.leads_from(old) and proof.checkpoint.note.text == tree.note.text for proof in proofs)

    def _contradicts(self, shown: Shown, tree: Checkpoint, line: KeyLine) -> bool:
        """Witnesses saw another tree of this size, or a larger one for which the disowned key alone vouches."""
        seen = shown.checkpoint
        if seen.origin != tree.origin or not self._is_witnessed(seen):
            return False
        is_other = shown.ranges.get((0, tree.size), tree.root) != tree.root
        is_alone = _marks(seen, line.key) == [True] and not self._is_signed_by_another(seen, line)
        return is_other or (seen.size > tree.size and is_alone)

    def _is_signed_by_another(self, tree: Checkpoint, line: KeyLine) -> bool:
        others = [other for other in self._keyring.bounded_log_keys(tree.origin) if other.key != line.key]
        return any(covers(other, tree.size) and _marks(tree, other.key) == [True] for other in others)

    def _is_witnessed(self, tree: Checkpoint) -> bool:
        policy = self._keyring.policy
        return policy is not None and is_quorum_met(policy, good_witnesses(tree, policy))

    def _shown(self) -> Iterable[Shown]:
        return filter(None, map(read_shown, self._files))
