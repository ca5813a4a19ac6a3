"""Asks git, through its plumbing: what changed, in bytes that can't be mistaken.

Every answer is read with `-z` (or is one line of hex), arguments are a list and never a shell's line, and what a
repository's configuration may hide is asked for by name: changes of submodules (`ignore = all`), and objects that
`refs/replace` puts in place of others. Renames are not looked for: one is a deletion and an addition, which are both of
its names whatever a similarity is set to, and a copy's source is not touched.

Source: docs/guards.md; git-diff-index(1), git-diff-tree(1), "RAW OUTPUT FORMAT" of git-diff(1); scenario 30.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GIT_SECONDS_MAX = 120.0
LINK, GITLINK, NO_MODE = b"120000", b"160000", b"000000"
_RAW = ("--raw", "-z", "--no-abbrev", "--no-renames", "--no-relative", "--ignore-submodules=none", "--no-ext-diff")
_STATUSES = frozenset(b"ADMT")


class GitFailed(Exception):
    """git could not answer, or answered what it should not: whoever asked can't go on."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two trees: `status` is A, D, M or T; modes are git's, as six digits."""

    path: bytes
    status: str
    old_mode: bytes
    new_mode: bytes


class Git:
    """The repository in, or around, a folder; the variables that git gives its hooks are passed on to it.

    Not `is_called_by_git`: such variables are somebody else's, and the folder alone counts.
    """

    def __init__(self, folder: Path, *, is_called_by_git: bool = True) -> None:
        self.folder = folder
        self._is_called_by_git = is_called_by_git

    def run(self, *arguments: str | bytes, given: bytes | None = None) -> bytes:
        """Return what `git ARGUMENTS` prints; GitFailed with what it complained of."""
        answer = self.try_run(*arguments, given=given)
        if answer is None:
            words = " ".join(os.fsdecode(argument) for argument in arguments[:2])
            raise GitFailed(f"git {words} failed in {self.folder}")
        return answer

    def try_run(self, *arguments: str | bytes, given: bytes | None = None) -> bytes | None:
        """Return what `git ARGUMENTS` prints, or None when it says no."""
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=self.folder, input=b"" if given is None else given, capture_output=True,
                timeout=GIT_SECONDS_MAX, check=False, env={**self._variables(), "GIT_NO_REPLACE_OBJECTS": "1"},
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired, ValueError) as error:
            raise GitFailed(f"git can't be run: {error}") from error
        return done.stdout if done.returncode == 0 else None

    def _variables(self) -> dict[str, str]:
        """Return this process's variables; those that lead git elsewhere only where it is git that set them."""
        return {
            name: value for name, value in os.environ.items() if self._is_called_by_git or not name.startswith("GIT_")
        }

    def line(self, *arguments: str) -> str:
        """Return the one line that git prints, as the system's file names are spelled."""
        return os.fsdecode(self.run(*arguments).removesuffix(b"\n"))

    # -- where -------------------------------------------------------------------------------------------------------

    @property
    def own_folder(self) -> Path:
        """The folder that is this worktree's alone, where another worktree never looks."""
        return Path(self.line("rev-parse", "--absolute-git-dir"))

    @property
    def hooks_folder(self) -> Path:
        """The folder of hooks, shared by all worktrees: that of core.hooksPath if it is set."""
        return (self.folder / self.line("rev-parse", "--git-path", "hooks")).absolute()

    @property
    def common_folder(self) -> Path:
        return (self.folder / self.line("rev-parse", "--git-common-dir")).resolve()

    @property
    def is_bare(self) -> bool:
        return self.line("rev-parse", "--is-bare-repository") == "true"

    @property
    def top(self) -> Path:
        """The top of the work tree."""
        return Path(self.line("rev-parse", "--show-toplevel"))

    # -- objects -----------------------------------------------------------------------------------------------------

    def commit_id(self, revision: str) -> str | None:
        """Return the id of the commit that a revision names, or None."""
        found = self.try_run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        return None if found is None else found.decode().strip()

    def empty_tree(self) -> str:
        return self.line("hash-object", "-t", "tree", "--stdin")

    def index_tree(self) -> str:
        """Return the id of the tree that the index would be committed as."""
        return self.line("write-tree")

    def parents(self) -> list[str]:
        """Return what the commit in the making comes after: HEAD if it has a commit, and what is being merged."""
        head = self.commit_id("HEAD")
        try:
            merged = (self.folder / self.line("rev-parse", "--git-path", "MERGE_HEAD")).read_text("ascii").split()
        except FileNotFoundError:
            merged = []
        return ([] if head is None else [head]) + merged

    @property
    def making(self) -> str:
        """The commit in the making: its tree and what it comes after, as ids."""
        return " ".join((self.index_tree(), *self.parents()))

    def message(self, commit: str) -> bytes:
        """Return a commit's object: its header and message."""
        return self.run("cat-file", "commit", commit)

    # -- changes -----------------------------------------------------------------------------------------------------

    def staged(self, parents: Sequence[str]) -> list[Change]:
        """Return what differs between the index and every one of `parents`; of no parent: all that there is."""
        return _common(
            self._raw("diff-index", "--cached", *_RAW, parent, "--") for parent in parents or (self.empty_tree(),)
        )

    def committed(self, commit: str, parents: Sequence[str]) -> list[Change]:
        """Return what differs between a commit and every one of its parents."""
        return _common(self.between(parent, commit) for parent in parents or (self.empty_tree(),))

    def between(self, old: str, new: str) -> list[Change]:
        """Return what differs between two trees."""
        return self._raw("diff-tree", "-r", *_RAW, old, new, "--")

    def _raw(self, *arguments: str) -> list[Change]:
        return list(parse_raw(self.run(*arguments)))

    def index_links(self) -> dict[bytes, bytes]:
        """Return the symbolic links of the index, each with what it says."""
        rows = (row.partition(b"\t") for row in _fields(self.run("ls-files", "-s", "-z")))
        return self._targets({path: meta.split(b" ")[1] for meta, _, path in rows if meta.startswith(LINK)})

    def tree_links(self, tree: str) -> dict[bytes, bytes]:
        """Return the symbolic links of a tree, each with what it says."""
        rows = (row.partition(b"\t") for row in _fields(self.run("ls-tree", "-r", "-z", "--full-tree", tree)))
        return self._targets({path: meta.split(b" ")[2] for meta, _, path in rows if meta.startswith(LINK)})

    def _targets(self, blobs: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return {path: self.run("cat-file", "blob", blob) for path, blob in blobs.items()}

    # -- settings ----------------------------------------------------------------------------------------------------

    def config(self, *source: str) -> dict[str, str] | None:
        """Return a configuration, the last word for each key; None when there is none (`--blob` of no such file)."""
        listed = self.try_run("config", *source, "-z", "--list")
        if listed is None:
            return None
        rows = (os.fsdecode(row).partition("\n") for row in _fields(listed))
        return {key: value for key, _, value in rows}


def parse_raw(answer: bytes) -> Iterator[Change]:
    """Yield the changes of a raw diff with `-z`; GitFailed for what it should not have, as a path that is unmerged."""
    fields = _fields(answer)
    if len(fields) % 2:
        raise GitFailed("git's list of changes is cut off")
    for header, path in zip(fields[::2], fields[1::2], strict=True):
        parts = header.split(b" ")
        if len(parts) != 5 or not header.startswith(b":") or len(parts[4]) != 1 or parts[4][0] not in _STATUSES:
            raise GitFailed(f"git tells of a change that is not understood: {header[-60:]!r}")
        yield Change(path, parts[4].decode(), parts[0][1:], parts[1])


def _fields(answer: bytes) -> list[bytes]:
    """Return the parts of an answer that each end with a zero byte."""
    if answer and not answer.endswith(b"\0"):
        raise GitFailed("git's answer is cut off")
    return answer.split(b"\0")[:-1]


def _common(diffs: Iterator[list[Change]]) -> list[Change]:
    """Return the changes of the first diff whose paths are in all: what a merge has from none of its parents."""
    first, *others = diffs
    paths = [{change.path for change in other} for other in others]
    return [change for change in first if all(change.path in each for each in paths)]
