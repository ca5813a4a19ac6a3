"""The receipts of a commit, as a trailer of its message.

    Tallystick-Receipt: gateway.example/main 57 61

names a ledger and the entries of it that showed, when the commit was made, that its changes were covered. Anybody can
write such a line: it says where to look, and what the entries say decides.

Source: docs/guards.md; git-interpret-trailers(1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.guard.git import Git, GitFailed

TRAILER, UNCHECKED = "Tallystick-Receipt", "Tallystick-Unchecked"
SEQS_MAX = 256  # entries that one commit may name
SKEW_MS = 300_000  # between the clock of who commits and the ledger's
_LINE = re.compile(rf"^{TRAILER}: ?(\S{{1,300}})((?: [0-9]{{1,16}}){{1,{SEQS_MAX}}})[ \r]*$".encode(), re.M)
_TIMES = re.compile(rb"^(author|committer) .*?> (-?[0-9]{1,15}) [+-][0-9]{4}$", re.M)
_TREE = re.compile(rb"tree ([0-9a-f]{40,64})$", re.M)
_SCISSORS = b" ------------------------ >8 ------------------------"


@dataclass(frozen=True, slots=True)
class Making:
    """What a commit says of its making: from when to when, as its maker's clock had it, and the receipts it names.

    `act` is the digest of what was done, for an admission.
    """

    from_ms: int
    until_ms: int
    receipts: tuple[tuple[str, int], ...]
    act: str

    def seqs(self, origin: str) -> list[int]:
        """Return the entries of one ledger, each once, and no more than SEQS_MAX."""
        return list(dict.fromkeys(seq for name, seq in self.receipts if name == origin))[:SEQS_MAX]

    def meets(self, from_ms: int, until_ms: int) -> bool:
        """Say whether the commit may have been made while something held, give or take SKEW_MS."""
        return from_ms <= self.until_ms + SKEW_MS and self.from_ms - SKEW_MS <= until_ms


def making_of(commit: bytes) -> Making:
    """Return what a commit's object says; GitFailed when it is none.

    An amended or rebased commit keeps the time of its first making, so both of its times count.
    """
    header, _, message = commit.partition(b"\n\n")
    times = {name: int(time_s) * 1_000 for name, time_s in _TIMES.findall(header)}
    tree = _TREE.match(header)
    if times.keys() != {b"author", b"committer"} or tree is None:
        raise GitFailed("a commit without its tree or its times")
    found = [
        (line[1].decode("utf-8", "replace"), int(seq)) for line in _LINE.finditer(message) for seq in line[2].split()
    ]
    return Making(min(times.values()), max(times.values()), tuple(found), act_of(tree[1].decode()))


def act_of(tree: str) -> str:
    """Return the arguments digest of the commit of a tree: SHA-256 of the tree's id, as git prints it."""
    return sha256(tree.encode()).hexdigest()


def add_trailer(git: Git, file: Path, origin: str, seqs: Sequence[int]) -> None:
    """Write the receipts into the file of a message; one without a word stays so, for then git makes no commit."""
    _add(git, file, f"{TRAILER}: {origin} {' '.join(map(str, seqs))}")


def add_unchecked(git: Git, file: Path, why: str) -> None:
    """Write into the file of a message that nothing was compared."""
    _add(git, file, f"{UNCHECKED}: {why}")


def _add(git: Git, file: Path, line: str) -> None:
    words = file.read_bytes().split(_SCISSORS)[0]
    if git.run("stripspace", "--strip-comments", given=words).strip():
        git.run(
            "-c", "trailer.ifexists=addIfDifferent", "interpret-trailers", "--in-place", "--trailer", line,
            str(file.absolute()),
        )  # fmt: skip
