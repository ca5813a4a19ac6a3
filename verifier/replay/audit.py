"""What an audit of one ledger knows after the entries read so far. Memory: docs in ledger.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.keyring import Keyring
from verifier.replay.relations import Relations
from verifier.replay.source import Source
from verifier.replay.tree import Tree
from verifier.verdict import Finding, Outcome

FINDINGS_MAX = 1_000  # a forged ledger must not fill memory with complaints
ROOTS_MAX = 1_024
ZEROS = bytes(32)


@dataclass(slots=True)
class Audit:
    """What is known after the entries read so far."""

    keyring: Keyring
    source: Source
    findings: list[Finding] = field(default_factory=list)
    tree: Tree = field(default_factory=Tree)
    relations: Relations = field(default_factory=Relations)
    previous: bytes = ZEROS  # SHA-256 of the last leaf
    genesis: bytes = ZEROS
    time_ms: int = 0
    epoch: int = 0
    stopped_at: int | None = None  # the first entry of unknown type
    requests: int = 0
    custodial: int = 0  # entries of actors whose key the gateway holds
    is_name_unchecked: bool = False  # told once
    level: str = "none"
    completeness: str = "unknown"
    roots: dict[int, bytes] = field(default_factory=dict)  # of sizes that anchors name; neighbours often name one

    def root_at(self, size: int) -> bytes:
        if len(self.roots) >= ROOTS_MAX:
            self.roots.clear()
        return self.roots.get(size) or self.roots.setdefault(size, self.tree.root(size))

    def say(self, step: int, code: str, text: str, seq: int | None = None, outcome: Outcome = Outcome.INVALID) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(step, code, outcome, text, seq))
