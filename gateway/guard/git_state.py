"""What one hook of a commit leaves for the next: one file, in the folder that is this worktree's alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from gateway.guard.git import Git
from keys.files import replace_file

STATE = "tallystick-commit.json"


@dataclass(slots=True)
class State:
    """What was compared (`Git.making`), the entries of which ledger cover it, and the leases that were taken for it."""

    making: str = ""
    origin: str = ""
    seqs: list[int] = field(default_factory=list)
    claimed: list[tuple[str, list[str]]] = field(default_factory=list)


def open_state(git: Git) -> State:
    """Return what was left; an empty state when nothing was, or nothing that can be read: then it is compared again."""
    try:
        said = json.loads((git.own_folder / STATE).read_bytes())
        claimed = [(str(lease_id), [str(name) for name in names]) for lease_id, names in said["claimed"]]
        return State(str(said["making"]), str(said["origin"]), [int(seq) for seq in said["seqs"]], claimed)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return State()


def save_state(git: Git, state: State) -> None:
    content = {"making": state.making, "origin": state.origin, "seqs": state.seqs, "claimed": state.claimed}
    replace_file(git.own_folder / STATE, json.dumps(content).encode(), 0o600)


def forget_state(git: Git) -> None:
    (git.own_folder / STATE).unlink(missing_ok=True)
