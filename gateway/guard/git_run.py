"""What our hooks do when git runs them.

    pre-commit    compares the index with the leases that are held; refuses, or notes what covers it
    commit-msg    writes the receipts into the message; a merge, which has no pre-commit, is compared here
    post-commit   gives back the leases that were taken for this one commit
    pre-push      compares the commits that the other side does not have
    pre-receive   the same, on the side that is pushed to

Between them stands one file, in the folder that is this worktree's alone. Whatever goes wrong refuses: the gateway is
away, git's answer is not understood, the settings are not there. $TALLYSTICK_GUARD=off lets a commit or a push pass
uncompared, and says so each time; the message of such a commit says so too.

Source: docs/guards.md; githooks(5).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import ClientError, Unreachable
from gateway.client.exits import DONE, REFUSED, UNREACHABLE, exit_code_of, explain, shown
from gateway.guard.changes import Need, needs_of
from gateway.guard.check import Covered, NotCovered, Pushed, Scope, Update, check_staged
from gateway.guard.git import Git, GitFailed
from gateway.guard.held import Desk
from gateway.guard.hooks import run_before
from gateway.guard.paths import PathRefused
from gateway.guard.settings import Settings, Unset, home_of, read_settings
from gateway.guard.trailer import SEQS_MAX, add_trailer, add_unchecked
from keys.files import replace_file

SWITCH = "TALLYSTICK_GUARD"
STATE = "tallystick-commit.json"
INPUT_BYTES_MAX = 16_777_216  # what git says to a hook that is pushed to: a line for each branch


@dataclass(slots=True)
class State:
    """What pre-commit found, for the hooks after it: of which tree, in which ledger, and what was taken for it."""

    tree: str = ""
    origin: str = ""
    seqs: list[int] = field(default_factory=list)
    claimed: list[tuple[str, list[str]]] = field(default_factory=list)


def run_hook(name: str, arguments: Sequence[str]) -> int:
    """Run one of our hooks, after the one that was there before; return its exit status."""
    git = Git(Path.cwd())
    given = sys.stdin.buffer.read(INPUT_BYTES_MAX) if name in _READING else b""
    status = run_before(git.hooks_folder / name, arguments, given)
    if status != DONE:
        return status
    return guarded(name, lambda: _HOOKS[name](git, arguments, given))


def guarded(what: str, check: Callable[[], Coroutine[object, object, int]]) -> int:
    """Run a check and return its exit code; whatever goes wrong is told, and refuses."""
    import asyncio

    try:
        return asyncio.run(check())
    except (PathRefused, Unset, GitFailed, NotCovered) as error:
        return _refuse(what, str(error), REFUSED)
    except Unreachable as error:
        return _refuse(what, f"{error}\n{_AWAY}", UNREACHABLE)
    except ClientError as error:
        return _refuse(what, explain(error), exit_code_of(error) or REFUSED)
    except OSError as error:
        return _refuse(what, shown(str(error)), REFUSED)


_AWAY = (
    "What is not compared is not let pass. Is the gateway there? To go on without it, this once, say "
    f"{SWITCH}=off; the commit's message will say so."
)


def _refuse(what: str, text: str, code: int) -> int:
    print(f"tallystick {what}: {text}", file=sys.stderr)
    return code


def _is_off(what: str) -> bool:
    if os.environ.get(SWITCH) != "off":
        return False
    print(f"tallystick {what}: {SWITCH}=off: NOT COMPARED WITH LEASES, let pass", file=sys.stderr)
    return True


# -- commits -----------------------------------------------------------------------------------------------------------


async def _pre_commit(git: Git, arguments: Sequence[str], given: bytes) -> int:
    if _is_off("pre-commit"):
        _save_state(git, State(claimed=_open_state(git).claimed))
        return DONE
    await _compare(git)
    return DONE


async def _commit_msg(git: Git, arguments: Sequence[str], given: bytes) -> int:
    message = Path(arguments[0])
    if _is_off("commit-msg"):
        add_unchecked(git, message, f"{SWITCH}=off")
        return DONE
    state = _open_state(git)
    if state.tree != git.index_tree():
        state = await _compare(git)
    if state.seqs:
        add_trailer(git, message, state.origin, state.seqs)
    return DONE


async def _post_commit(git: Git, arguments: Sequence[str], given: bytes) -> int:
    """The commit is made: whatever can't be given back ends by itself, and refuses nothing any more."""
    state = _open_state(git)
    try:
        if state.claimed:
            async with Agent.open(home_of(git)) as agent:
                for lease_id, names in state.claimed:
                    await agent.release(names, lease_id)
    except ClientError as error:
        text = "what was claimed for this commit is not given back, and runs out by itself"
        _refuse("post-commit", f"{text}: {explain(error)}", DONE)
    _forget(git)
    return DONE


async def _compare(git: Git) -> State:
    """Compare the index with what is held, and note what covers it."""
    settings = read_settings(git)
    needs = staged_needs(git, settings)
    if not needs:
        state = State(git.index_tree())
    else:
        async with Agent.open(home_of(git)) as agent:
            covered = await check_staged(Desk(agent), settings, needs)
            state = State(git.index_tree(), agent.profile.address.origin, covered.seqs, _claims(git, covered))
        if len(state.seqs) > SEQS_MAX:
            raise NotCovered(f"more than {SEQS_MAX} leases would be named by one commit: make smaller ones")
        print(told(needs, covered), file=sys.stderr)
    _save_state(git, state)
    return state


def staged_needs(git: Git, settings: Settings) -> list[Need]:
    """Return what the commit in the making needs."""
    return needs_of(settings, git.staged(git.parents()), git.index_links)


def told(needs: Sequence[Need], covered: Covered) -> str:
    """Return in one line what covers a commit."""
    paths = "1 path is" if len(needs) == 1 else f"{len(needs)} paths are"
    taken = f", {len(covered.claimed)} of them taken for this commit" if covered.claimed else ""
    entries = " ".join(map(str, covered.seqs))
    return f"tallystick: {paths} covered by {' '.join(covered.lease_ids)}{taken} (verified: {entries})"


def _claims(git: Git, covered: Covered) -> list[tuple[str, list[str]]]:
    """Return what is to be given back: what was taken now, and for an earlier commit that was never made."""
    claimed = dict(_open_state(git).claimed) | {grant.lease_id: list(grant.resources) for grant in covered.claimed}
    return list(claimed.items())


def _open_state(git: Git) -> State:
    try:
        return State(**json.loads((git.own_folder / STATE).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return State()


def _save_state(git: Git, state: State) -> None:
    content = {"tree": state.tree, "origin": state.origin, "seqs": state.seqs, "claimed": state.claimed}
    replace_file(git.own_folder / STATE, json.dumps(content).encode(), 0o600)


def _forget(git: Git) -> None:
    (git.own_folder / STATE).unlink(missing_ok=True)


# -- pushes ------------------------------------------------------------------------------------------------------------


async def _pre_push(git: Git, arguments: Sequence[str], given: bytes) -> int:
    if _is_off("pre-push"):
        return DONE
    rows = _rows(given, 4)
    updates = [_update(git, remote_name, old, new) for _, new, remote_name, old in rows]
    known = (f"--remotes={arguments[0]}",) if arguments and arguments[0] else ()
    await check_push(git, updates, known, is_server=False)
    return DONE


async def _pre_receive(git: Git, arguments: Sequence[str], given: bytes) -> int:
    updates = [_update(git, name, old, new) for old, new, name in _rows(given, 3)]
    await check_push(git, updates, ("--all",), is_server=True)
    return DONE


async def check_push(git: Git, updates: Sequence[Update], known: tuple[str, ...], *, is_server: bool) -> int:
    """Compare the commits of some updates with their receipts and with what is held; return how many there were."""
    settings = read_settings(git)
    since = None if settings.since is None else git.commit_id(settings.since)
    async with Agent.open(home_of(git, is_server=is_server)) as agent:
        pushed = Pushed(git, Desk(agent), settings, Scope(known, since), is_server=is_server)
        await pushed.check(updates)
    return pushed.count


def _rows(given: bytes, width: int) -> list[list[str]]:
    """Return the lines of what git says to a hook, each of `width` words."""
    rows = [os.fsdecode(line).split(" ") for line in given.split(b"\n") if line]
    if any(len(row) != width for row in rows) or len(given) == INPUT_BYTES_MAX:
        raise GitFailed("git says to the hook what is not understood")
    return rows


def _update(git: Git, name: str, old: str, new: str) -> Update:
    """Return an update by what git says of it; a tag of something else than a commit changes no path."""
    was_there = bool(old.strip("0"))
    old_id = git.commit_id(old) if was_there else None
    if was_there and old_id is None and name.startswith("refs/heads/"):
        raise GitFailed(f"{shown(name)} is at a commit there that is not here: git fetch first")
    return Update(name, old_id, git.commit_id(new) if new.strip("0") else None)


_Hook = Callable[[Git, Sequence[str], bytes], Coroutine[object, object, int]]
_HOOKS: Mapping[str, _Hook] = {
    "pre-commit": _pre_commit,
    "commit-msg": _commit_msg,
    "post-commit": _post_commit,
    "pre-push": _pre_push,
    "pre-receive": _pre_receive,
}
_READING = ("pre-push", "pre-receive")
