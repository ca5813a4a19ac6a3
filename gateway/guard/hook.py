"""`tallystick guard hook`: answers a coding agent that asks, on standard input, before it calls a tool.

House rules of this file:

* Every way out is an answer. What can't be read, reached or decided in time is a no with its reason, unless --fail-open
  was set, and then the answer says so. Hosts let a call run when a hook is cut off or ends in an unknown way, so there
  is a deadline of its own, kept by a timer that works whatever this process is waiting for.
* A no that the host's form can carry is an object on standard output and exit code 0; where not even the host is known
  it is exit code 2 and standard error, which block in all of them.
* One process is started for each tool call, so most of them load neither the client nor asyncio: a tool that only
  reads, and a write under a lease that was renewed a moment ago, are answered from the session's file (hook_state.py).

Source: docs/guards.md; docs/adr/0052-a-hook-that-asks-first.md; scenarios 1, 14, 15, 24, 28, 29, 39, 46.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from gateway.guard.hook_hosts import HOSTS, INPUT_BYTES_MAX, BadInput, Call, JsonObject, answer, parse_call, warned
from gateway.guard.hook_options import Settings, parse_settings
from gateway.guard.hook_state import Need, Shelf, State, steady_ms
from gateway.guard.hook_tools import BadTool, touch_of
from gateway.guard.shell_options import Write

if TYPE_CHECKING:
    from gateway.guard.hook_paths import Found

DONE, BLOCKED = 0, 2
NEEDS_MAX = 64  # of one call; what touches more wants a lease on the folder
_PASS, _HELD, _DENY, _ASK = "pass", "held", "deny", "ask"


class Failed(Exception):
    """Nothing was decided; the text says why."""


class Denied(Exception):
    """The call may not go on, whatever leases are held; the text says why."""


def main(argv: Sequence[str]) -> int:
    """Run the hook, or `install` or `status`; returns 0 with an answer, or 2 where the host can't be told otherwise."""
    if argv and argv[0] in ("install", "status"):
        from gateway.guard.hook_install import main as install

        return install(argv)
    return _Hook(parse_settings(argv)).run()


class _Hook:
    """One call. `_call` is None as long as it is not known who asks; `_run_ms` is how long it may take, as it says."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._call: Call | None = None
        self._run_ms = 0
        self._until_ms = steady_ms() + settings.deadline_ms

    def run(self) -> int:
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, self._settings.deadline_ms / 1000)
        try:
            self._call = parse_call(_standard_input(), self._settings.host)
            decision, reason = self._decide(self._call)
        except BadInput as error:
            decision, reason = self._failed(f"the call can't be read: {error}")
        except Denied as error:
            decision, reason = _DENY, f"tallystick: {error}"
        except Failed as error:
            decision, reason = self._failed(str(error))
        except ModuleNotFoundError as error:
            decision, reason = self._failed(f"{error.name} is not installed: pip install 'tallystick[client]'")
        except (Exception, KeyboardInterrupt) as error:
            decision, reason = self._failed(f"the hook itself failed ({type(error).__name__})")
        signal.setitimer(signal.ITIMER_REAL, 0)
        return self._say(decision, reason)

    def _late(self, _number: int, _frame: object) -> NoReturn:
        """The time is over: answer from here, and end without a look back."""
        seconds = self._settings.deadline_ms / 1000
        code = self._say(*self._failed(f"no answer within {seconds:g} s"))
        sys.stdout.flush()
        os._exit(code)

    def _failed(self, why: str) -> tuple[str, str]:
        if self._call is not None and self._call.kind != "tool":
            return _PASS, ""  # nothing is about to happen
        if self._settings.is_open:
            return "open", f"tallystick: leases were NOT checked (--fail-open): {why}"
        return _DENY, f"tallystick: nothing was checked, so nothing is done: {why}"

    def _say(self, decision: str, reason: str) -> int:
        """Print the answer and return the exit code."""
        host = HOSTS[self._settings.host] if self._settings.host else HOSTS["claude-code"]
        if self._call is not None:
            host = self._call.host
        elif decision == _DENY:
            print(reason, file=sys.stderr)
            return BLOCKED
        said: JsonObject = {}
        if decision == "open":
            said = warned(host, answer(host, _PASS, reason), reason)
        elif reason:
            held = "allow" if self._settings.is_allowing else _PASS
            said = answer(host, held if decision == _HELD else decision, reason)
        try:
            print(json.dumps(said), flush=True)
        except (OSError, ValueError):
            return BLOCKED
        return DONE

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _decide(self, call: Call) -> tuple[str, str]:
        if call.kind == "other":
            return _PASS, ""
        if call.kind == "end":
            return self._end(call)
        try:
            touch = touch_of(call, self._settings.tools)
        except BadTool as error:
            raise Denied(str(error)) from error
        if not touch.is_writing:
            return _PASS, ""
        self._run_ms = touch.run_ms
        return self._hold(call, touch.writes, touch.unseen)

    def _hold(self, call: Call, writes: Sequence[Write], unseen: Sequence[str]) -> tuple[str, str]:
        from gateway.guard.hook_paths import home_of

        if unseen and self._settings.unseen == _DENY:
            return self._unseen(unseen, "")
        home = self._settings.home or home_of(call.folder)
        shelf = Shelf(home, call.session)
        state = shelf.load()
        found, objects = self._find(writes, state)
        outside = _outside_words(found.outside) if found.outside and self._settings.outside != "allow" else ""
        if outside and self._settings.outside == _DENY:
            return _DENY, outside
        told = self._covered(shelf, state, found.needs, objects)
        if told is not None:
            raise Denied(told)
        words = _held_words(shelf.load(), found.needs) if found.needs else ""
        if unseen:
            decision, words = self._unseen(unseen, words)
            return (_ASK if outside else decision), f"{words} {outside}".strip()
        return (_ASK, outside) if outside else (_HELD if words else _PASS, words)

    def _find(self, writes: Sequence[Write], state: State) -> tuple[Found, list[Need]]:
        """Return what is needed and, for an admission, object by object."""
        from gateway.guard.hook_paths import NoPlace, NotListed, find, objects_of
        from gateway.guard.paths import PathRefused

        try:
            return find(writes, state), objects_of(writes, state) if self._settings.is_admitting else []
        except NotListed as error:
            raise Denied(f"an admission (--admit) names objects, and {error}. Name the files one by one.") from error
        except PathRefused as error:
            raise Denied(f"{error}. Name the file itself.") from error
        except NoPlace as error:
            raise Failed(str(error)) from error

    def _unseen(self, unseen: Sequence[str], words: str) -> tuple[str, str]:
        why = f"tallystick can't see all that this writes: {'; '.join(dict.fromkeys(unseen))}."
        seen = f" It holds {words.removeprefix('tallystick: ')}." if words else ""
        match self._settings.unseen:
            case "deny":
                return _DENY, f"{why} Name the files in a way it reads, or edit them with the tool for files."
            case "ask":
                return _ASK, f"{why}{seen} Let it run only if it touches nobody's files."
            case _:
                return _PASS, f"{why}{seen} What it changes is compared with leases when it is committed."

    def _covered(self, shelf: Shelf, state: State, needs: Sequence[Need], objects: Sequence[Need]) -> str | None:
        """Return None when leases cover the needs, else why not; asks the gateway only where that is needed."""
        now_ms = steady_ms()
        is_lasting = state.lasts(now_ms, now_ms + self._run_ms)
        is_known = is_lasting and state.is_quiet(now_ms) and not state.uncovered(needs, now_ms)
        if (is_lasting and not needs) or (is_known and not self._settings.is_admitting):
            return None
        if not shelf.home.is_dir():
            raise Failed(f"{shelf.home} holds no profile; make one with: tallystick join URL --root VKEY")
        import_module("gateway.guard.hook_keep")  # takes its time, and the session's other calls need not wait for that
        places = state.places
        with shelf.turn():
            state = shelf.load()  # another call of this session may have brought it meanwhile
            state.places |= places
            return self._ask(shelf, state, needs, objects)

    def _ask(self, shelf: Shelf, state: State, needs: Sequence[Need], objects: Sequence[Need]) -> str | None:
        settings = self._settings
        if len(needs) > NEEDS_MAX:
            return f"this touches {len(needs)} files, more than {NEEDS_MAX}: take a lease on their folder first"
        missing = [need.name for need in state.uncovered(needs, steady_ms())]
        met = shelf.claim(state, missing, self._until_ms + settings.ttl_ms) if missing else None
        if met is not None:
            return f"{met} is held by another session with this same key, which to the ledger would be the same holder"
        import asyncio

        from gateway.client.errors import ClientError
        from gateway.guard.hook_keep import Denied as Refusal
        from gateway.guard.hook_keep import Terms, act_of, keep
        from gateway.guard.hook_words import told
        from verifier.wire import Malformed

        assert self._call is not None, "it is its needs that are asked for"
        call = self._call
        act = act_of(call.tool, call.input, shelf.secret(), objects) if settings.is_admitting else None
        terms = Terms(shelf.home, settings.is_taking, settings.ttl_ms, self._until_ms, self._run_ms)
        try:
            asyncio.run(keep(terms, state, needs, act))
            state.settle(missing)
        except Refusal as error:
            state.settle(missing)
            return str(error)
        except (ClientError, Malformed) as error:
            if not getattr(error, "is_unknown", False):  # else it may have been granted: the claim stays
                state.settle(missing)
            if not needs:  # it touches nothing; what the session holds lasts as long as it does
                return None
            return self._unless_open(told(error) if isinstance(error, ClientError) else str(error), error)
        finally:
            shelf.save(state)
        return None

    def _unless_open(self, words: str, error: Exception) -> str:
        """A word from the ledger, or from this machine's other processes, is a no; all else is a failure."""
        from gateway.client.errors import HeldHere, Refused

        if isinstance(error, Refused | HeldHere):
            return words
        raise Failed(words) from error

    def _end(self, call: Call) -> tuple[str, str]:
        """Give everything back; a session's end can't be held up, so whatever fails is left to the ttl."""
        from gateway.guard.hook_paths import home_of

        shelf = Shelf(self._settings.home or home_of(call.folder), call.session)
        if not shelf.path.exists():
            return _PASS, ""
        with shelf.turn():
            state = shelf.load()
            if any(lease.is_own for lease in state.leases):
                import asyncio

                from gateway.guard.hook_keep import Terms, give_back

                terms = Terms(shelf.home, True, self._settings.ttl_ms, self._until_ms)
                asyncio.run(give_back(terms, state))
            shelf.forget()
        return _PASS, ""


def _outside_words(paths: Sequence[str]) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in paths[0][:200])
    return f"tallystick: {shown} lies in no work tree, and no lease is on it (--outside says what then happens)"


def _held_words(state: State, needs: Sequence[Need]) -> str:
    """Return under which leases the call goes on."""
    said = []
    for lease in state.leases:
        if any(lease.covers(need) for need in needs):
            said.append(f"lease {lease.lease_id} on {' '.join(lease.names[:3])} (token {lease.token})")
    return f"tallystick: {', '.join(said[:3])}"


def _standard_input() -> bytes:
    if sys.stdin is None or sys.stdin.isatty():
        raise BadInput("a coding agent gives it a JSON object on standard input; see tallystick guard hook --help")
    return sys.stdin.buffer.read(INPUT_BYTES_MAX + 1)
