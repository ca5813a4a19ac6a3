"""Puts our hooks into a repository, in front of those that are there, and takes them out again.

A hook of git is one file. Ours is a line of shell that runs this program; one that was there before is kept beside it
as NAME.before-tallystick and runs first, with the same arguments and the same input. When this program is gone the
line fails, and with it the commit: a guard that is not there holds nothing open.

Source: githooks(5); docs/guards.md.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.guard.git import Git
from keys.files import replace_file

CLIENT_HOOKS = ("pre-commit", "commit-msg", "post-commit", "post-merge", "pre-push")
SERVER_HOOKS = ("pre-receive",)
MARK = "# tallystick guard git"
_BEFORE = ".before-tallystick"


class HooksElsewhere(Exception):
    """The folder of hooks is not this repository's own."""


def hooks_of(git: Git) -> tuple[str, ...]:
    """Return the hooks that a repository gets: a bare one is pushed to, another one is committed in."""
    return SERVER_HOOKS if git.is_bare else CLIENT_HOOKS


def install_hooks(git: Git, *, is_shared: bool = False) -> list[Path]:
    """Put our hooks into place, or renew them; return them. HooksElsewhere unless the folder is the repository's own.

    `is_shared`: other repositories use the same folder, and that is meant.
    """
    folder = git.hooks_folder
    if not is_shared and not _is_own(git, folder):
        raise HooksElsewhere(
            f"core.hooksPath leads to {folder}, which other repositories may use as well. With --shared-hooks the "
            "hooks go there, and hold all of them to leases; or set core.hooksPath for this repository alone."
        )
    folder.mkdir(parents=True, exist_ok=True)
    return [_install(folder / name) for name in hooks_of(git)]


def uninstall_hooks(git: Git) -> list[Path]:
    """Take our hooks out, and put back those that were there before; return those that were ours."""
    ours = [git.hooks_folder / name for name in hooks_of(git) if is_ours(git.hooks_folder / name)]
    for hook in ours:
        kept = before(hook)
        hook.unlink()
        if kept is not None:
            kept.rename(hook)
    return ours


def before(hook: Path) -> Path | None:
    """Return the hook that runs before ours, or None."""
    kept = hook.with_name(hook.name + _BEFORE)
    return kept if kept.exists() or kept.is_symlink() else None


def is_ours(hook: Path) -> bool:
    try:
        return MARK.encode() in hook.read_bytes()
    except OSError:
        return False


def run_before(hook: Path, arguments: Sequence[str], given: bytes) -> int:
    """Run the hook that was there before; return its exit status, 0 when there is none."""
    kept = before(hook)
    if kept is None or not os.access(kept, os.X_OK):  # git passes over one that can't be executed
        return 0
    return subprocess.run([str(kept), *arguments], input=given, check=False).returncode


def _is_own(git: Git, folder: Path) -> bool:
    """Say whether a folder lies in the repository, or in its work tree."""
    homes = [git.common_folder] if git.is_bare else [git.common_folder, git.top]
    return any(folder.resolve().is_relative_to(home.resolve()) for home in homes)


def _install(hook: Path) -> Path:
    if not is_ours(hook) and (hook.exists() or hook.is_symlink()):
        hook.rename(hook.with_name(hook.name + _BEFORE))
    # -P: a folder of the work tree called gateway is none of ours.
    program = shlex.join((sys.executable, "-P", "-m", "gateway", "guard", "git", "run", hook.name))
    replace_file(hook, f'#!/bin/sh\n{MARK}: see docs/guards.md\nexec {program} "$@"\n'.encode())
    hook.chmod(0o755)
    return hook
