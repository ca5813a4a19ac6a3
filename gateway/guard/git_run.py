"""What our hooks do when git runs them.

    pre-commit    compares the index with the leases that are held; refuses, or notes what covers it
    commit-msg    writes the receipts into the message; a merge, which has no pre-commit, is compared here
    post-commit   gives back the leases that were taken for this one commit; post-merge does for a merge
    pre-push      compares the commits that the other side does not have
    pre-receive   the same, on the side that is pushed to

$TALLYSTICK_GUARD=off lets a commit or a push pass uncompared, and says so each time; the message of such a commit says
so too. A server is not asked to look away: whoever pushes may set its variables.

Only what speaks to a gateway loads the client, for that takes longer than all the rest.

Source: docs/guards.md; githooks(5).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.guard.git import Git, GitFailed
from gateway.guard.git_state import State, forget_state, open_state, save_state
from gateway.guard.hooks import run_before
from gateway.guard.trailer import add_trailer, add_unchecked

SWITCH = "TALLYSTICK_GUARD"
DONE, REFUSED = 0, 1  # exits.py of the client, which takes long to load


def main(argv: Sequence[str]) -> int:
    """`tallystick guard git …`: one of our hooks, called by git, or a verb of git_commands.py."""
    if argv[:1] == ["run"] and argv[1:2] and argv[1] in _HOOKS:
        return run_hook(argv[1], argv[2:])
    from gateway.guard.git_commands import main as command

    return command(argv)


def run_hook(name: str, arguments: Sequence[str]) -> int:
    """Run one of our hooks, after the one that was there before; return its exit status."""
    git = Git(Path.cwd())
    given = sys.stdin.buffer.read() if name in _READING else b""
    try:
        status = run_before(git.hooks_folder / name, arguments, given)
        return _HOOKS[name](git, arguments, given) if status == DONE else status
    except (GitFailed, OSError) as error:
        print(f"tallystick {name}: {error}", file=sys.stderr)
    except ModuleNotFoundError as error:
        print(f"tallystick {name}: {error.name} is not installed: pip install 'tallystick[client]'", file=sys.stderr)
    except Exception as error:
        print(f"tallystick {name}: the guard itself failed ({type(error).__name__})", file=sys.stderr)
    return REFUSED


def _pre_commit(git: Git, arguments: Sequence[str], given: bytes) -> int:
    if _is_off("pre-commit"):
        save_state(git, State(claimed=open_state(git).claimed))
        return DONE
    return _compare(git, "pre-commit")


def _commit_msg(git: Git, arguments: Sequence[str], given: bytes) -> int:
    message = Path(arguments[0])
    if _is_off("commit-msg"):
        add_unchecked(git, message, f"{SWITCH}=off")
        return DONE
    if open_state(git).making != git.making:
        status = _compare(git, "commit-msg")
        if status != DONE:
            return status
    state = open_state(git)
    if state.seqs:
        add_trailer(git, message, state.origin, state.seqs)
    return DONE


def _post_commit(git: Git, arguments: Sequence[str], given: bytes) -> int:
    if not open_state(git).claimed:
        forget_state(git)
        return DONE
    from gateway.guard.git_compare import give_back, guarded

    return guarded("post-commit", lambda: give_back(git))


def _pre_push(git: Git, arguments: Sequence[str], given: bytes) -> int:
    if _is_off("pre-push"):
        return DONE
    from gateway.guard.git_compare import guarded, pre_push

    return guarded("pre-push", lambda: pre_push(git, arguments[0] if arguments else "", given))


def _pre_receive(git: Git, arguments: Sequence[str], given: bytes) -> int:
    from gateway.guard.git_compare import guarded, pre_receive

    return guarded("pre-receive", lambda: pre_receive(git, given))


def _compare(git: Git, what: str) -> int:
    from gateway.guard.git_compare import compare, guarded

    return guarded(what, lambda: compare(git))


def _is_off(what: str) -> bool:
    if os.environ.get(SWITCH) != "off":
        return False
    print(f"tallystick {what}: {SWITCH}=off: NOT COMPARED WITH LEASES, let pass", file=sys.stderr)
    return True


_HOOKS: Mapping[str, Callable[[Git, Sequence[str], bytes], int]] = {
    "pre-commit": _pre_commit,
    "commit-msg": _commit_msg,
    "post-commit": _post_commit,
    "post-merge": _post_commit,
    "pre-push": _pre_push,
    "pre-receive": _pre_receive,
}
_READING = ("pre-push", "pre-receive")
