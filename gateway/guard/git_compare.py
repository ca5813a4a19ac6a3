"""The parts of our hooks that speak to a gateway; whatever goes wrong in them refuses, and is told.

Source: docs/guards.md.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Sequence

from gateway.client.agent import Agent
from gateway.client.errors import ClientError, Unreachable
from gateway.client.exits import DONE, REFUSED, UNREACHABLE, exit_code_of, explain, shown
from gateway.guard.changes import Need, needs_of
from gateway.guard.check import Covered, NotCovered, Pushed, Scope, Update, check_staged
from gateway.guard.git import Git, GitFailed
from gateway.guard.git_state import State, forget_state, open_state, save_state
from gateway.guard.held import Desk
from gateway.guard.hooks import HooksElsewhere
from gateway.guard.paths import PathRefused
from gateway.guard.settings import Settings, Unset, home_of, read_settings
from gateway.guard.trailer import SEQS_MAX

INPUT_BYTES_MAX = 16_777_216  # what git says to a hook that is pushed to: a line for each branch
_AWAY = (
    "What is not compared is not let pass. Is the gateway there? To go on without it, this once, say "
    "TALLYSTICK_GUARD=off; the commit's message will say so."
)


def guarded(what: str, check: Callable[[], Coroutine[object, object, int]]) -> int:
    """Run a check and return its exit code; whatever goes wrong is told, and refuses."""
    try:
        return asyncio.run(check())
    except (PathRefused, Unset, GitFailed, NotCovered, HooksElsewhere) as error:
        return _refuse(what, str(error), REFUSED)
    except Unreachable as error:
        return _refuse(what, f"{error}\n{_AWAY}", UNREACHABLE)
    except ClientError as error:
        return _refuse(what, explain(error), exit_code_of(error) or REFUSED)
    except OSError as error:
        return _refuse(what, shown(str(error)), REFUSED)
    except Exception as error:
        return _refuse(what, f"the guard itself failed ({type(error).__name__}), and nothing was compared", REFUSED)


def _refuse(what: str, text: str, code: int) -> int:
    print(f"tallystick {what}: {text}", file=sys.stderr)
    return code


# -- commits -----------------------------------------------------------------------------------------------------------


async def compare(git: Git) -> int:
    """Compare the index with what is held, and note what covers it."""
    settings = read_settings(git)
    needs = staged_needs(git, settings)
    earlier = open_state(git).claimed  # for a commit that was never made
    if not needs:
        save_state(git, State(git.making, claimed=earlier))
        return DONE
    tree = git.index_tree()
    async with Agent.open(home_of(git)) as agent:
        covered = await check_staged(Desk(agent), settings, needs, tree)
        origin = agent.profile.address.origin
    claimed = dict(earlier) | {grant.lease_id: list(grant.resources) for grant in covered.claimed}
    save_state(git, State(git.making, origin, covered.seqs, list(claimed.items())))
    if len(covered.seqs) > SEQS_MAX:
        raise NotCovered(f"more than {SEQS_MAX} leases would be named by one commit: make smaller ones")
    print(told(needs, covered), file=sys.stderr)
    return DONE


def staged_needs(git: Git, settings: Settings) -> list[Need]:
    """Return what the commit in the making needs."""
    return needs_of(settings, git.staged(git.parents()), git.index_links)


def told(needs: Sequence[Need], covered: Covered) -> str:
    """Return in one line what covers a commit."""
    paths = "1 path is" if len(needs) == 1 else f"{len(needs)} paths are"
    taken = f", {len(covered.claimed)} of them taken for this commit" if covered.claimed else ""
    entries = " ".join(map(str, covered.seqs))
    return f"tallystick: {paths} covered by {' '.join(covered.lease_ids)}{taken} (verified: {entries})"


async def give_back(git: Git) -> int:
    """Release what was taken for a commit that is made now; what can't be given back ends by itself."""
    state = open_state(git)
    try:
        async with Agent.open(home_of(git)) as agent:
            for lease_id, names in state.claimed:
                await agent.release(names, lease_id)
    except ClientError as error:
        text = "what was claimed for this commit is not given back, and runs out by itself"
        return _refuse("post-commit", f"{text}: {explain(error)}", DONE)
    finally:
        forget_state(git)
    return DONE


# -- pushes ------------------------------------------------------------------------------------------------------------


async def pre_push(git: Git, remote: str, given: bytes) -> int:
    """Compare what is pushed to a remote, as git tells a pre-push hook."""
    updates = [_update(git, name, old, new) for _, new, name, old in _rows(given, 4)]
    await check_push(git, updates, (f"--remotes={remote}",) if remote else (), is_server=False)
    return DONE


async def pre_receive(git: Git, given: bytes) -> int:
    """Compare what is pushed into this repository, as git tells a pre-receive hook."""
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
    if any(len(row) != width for row in rows) or len(given) >= INPUT_BYTES_MAX:
        raise GitFailed("git says to the hook what is not understood")
    return rows


def _update(git: Git, name: str, old: str, new: str) -> Update:
    """Return an update by what git says of it; a tag of something else than a commit changes no path."""
    was_there = bool(old.strip("0"))
    old_id = git.commit_id(old) if was_there else None
    if was_there and old_id is None and name.startswith("refs/heads/"):
        raise GitFailed(f"{shown(name)} is at a commit there that is not here: git fetch first")
    return Update(name, old_id, git.commit_id(new) if new.strip("0") else None)
