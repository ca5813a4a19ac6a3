"""Reads a command line before a shell runs it: which paths it writes, and what of it can't be seen.

    read("cd src && sed -i s/a/b/ app.py > log", "/repo", is_folder)   writes /repo/src/app.py and /repo/src/log

House rules of this file:

* It never guesses. What it can't follow (an expansion in a name, a subshell, a loop, a script, an interpreter, a
  program it has no row for) is listed as unseen, with the reason; the hook's setting says what then happens.
* What it sees is a lower bound only where something is unseen as well. Aliases, functions and a PATH of the person's
  own are outside of what a line can tell, and so is what a program does to files that its words don't name.
* `is_folder` is the one thing it asks of the file system: whether a target is a folder to put things into.

Source: docs/guards.md (the list of what it sees is compared with this code); scenario 15.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gateway.guard.shell_git import git
from gateway.guard.shell_options import IsFolder, Write, literal, place
from gateway.guard.shell_programs import NUMBER, PROGRAMS
from gateway.guard.shell_words import CantSee, Operator, Redirect, Token, Word, cut

_KEYWORDS = frozenset("if then elif else fi for while until do done case esac select function { } [[ coproc in".split())
# Assignments that change no program's ways: lower-case names, and these.
_ASSIGNMENT = re.compile(r"(?:[a-z][a-z0-9_]*|LC_[A-Z]+|LANG|TZ|TERM|NO_COLOR|FORCE_COLOR|CI|COLUMNS)\+?=")
_ANY_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_BIN = re.compile(r"(?:/usr(?:/local)?)?/bin/([a-z0-9_.\[-]+)")
_DURATION = re.compile(r"[0-9]+(?:\.[0-9]+)?[smhd]?")
_NOWHERE = re.compile(r"/dev/(?:null|stdout|stderr|tty|fd/[0-9]+)")
_COPIED = re.compile(r"[0-9]*-?")  # behind >&: another descriptor, or none


@dataclass(slots=True)
class Reading:
    """What a line writes, as absolute paths that may still hold `..` and links, and why more can't be seen."""

    writes: list[Write] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    moved: list[tuple[str, bool]] = field(default_factory=list)  # what may lead elsewhere by now; whether it itself may


def read(line: str, folder: str, is_folder: IsFolder = os.path.isdir) -> Reading:
    """Return what `line` writes when a shell runs it in `folder`, an absolute path. Never raises for any text."""
    reading = Reading()
    try:
        _Reader(reading, folder, is_folder).run(cut(line))
    except CantSee as reason:
        reading.unseen.append(str(reason))
    except RecursionError:
        reading.unseen.append("a command nested too deep")
    return reading


class _Reader:
    def __init__(self, reading: Reading, folder: str | None, is_folder: IsFolder) -> None:
        self._reading = reading
        self._folder = folder  # None: a `cd` before this may have failed
        self._is_folder = is_folder
        self._began_in = folder  # where the list of && and || began that is being read
        self._is_sure = True  # whether the folder stays what it is after this list of && and ||
        self._before = ""  # the operator before this command
        self._name = ""  # of the program that was read last

    def run(self, tokens: Sequence[Token]) -> None:
        """Read a list of commands."""
        command: list[Token] = []
        for token in [*tokens, Operator("\n")]:
            if not isinstance(token, Operator):
                command.append(token)
                continue
            self._command(command, token.text)
            command = []

    def _command(self, command: list[Token], after: str) -> None:
        if not command and after == "\n":
            return
        if after in ("(", ")", ";;"):
            self._reading.unseen.append("a subshell, a function or a case")
        try:
            self._simple(command, after)
        except CantSee as reason:
            self._reading.unseen.append(str(reason))
        if after != "&&" and not self._is_sure:
            self._folder = None
        if after == "&":
            self._folder = self._began_in  # the whole list ran in a process of its own
        if after not in ("&&", "||", "|", "|&"):
            self._began_in = self._folder
        self._before = after

    def _simple(self, command: list[Token], after: str) -> None:
        words = [token for token in command if isinstance(token, Word)]
        for token in command:
            word = token.target if isinstance(token, Redirect) else token
            for inner in word.inner if isinstance(word, Word) else ():
                _Reader(self._reading, self._folder, self._is_folder).run(inner)
        for redirect in command:
            if isinstance(redirect, Redirect):
                self._redirect(redirect)
        words = self._without_prefix(words)
        if not words:
            return
        if words[0].text == "cd" and not words[0].is_dynamic:
            self._change_folder(words[1:], after)
            return
        known = len(self._reading.writes)
        self._add(self._program(words))
        if self._name in _MOVING:
            is_put = self._name not in _REMOVING
            self._reading.moved += [(os.path.normpath(one.path), is_put) for one in self._reading.writes[known:]]

    def _redirect(self, redirect: Redirect) -> None:
        if redirect.text in ("<", "<<", "<<-", "<<<", "<&"):
            return
        target = redirect.target
        if redirect.text == ">&" and not target.is_dynamic and _COPIED.fullmatch(target.text):
            return
        if _NOWHERE.fullmatch(literal(target)):
            return
        self._add([place(target)])

    def _add(self, writes: Sequence[Write]) -> None:
        for write in writes:
            path = self._absolute(write.path)
            self._check_leads(path, write)
            like = None if write.like is None else self._absolute(write.like)
            self._reading.writes.append(replace(write, path=path, like=like))

    def _absolute(self, path: str) -> str:
        if path.startswith("/"):
            return path
        if self._folder is None:
            raise CantSee("a relative name after a cd that may not have happened")
        return f"{self._folder.rstrip('/')}/{path}"

    def _check_leads(self, path: str, write: Write) -> None:
        """Where a name leads is looked up before the line runs, and may change by what it moves or links."""
        here = os.path.normpath(path)
        for moved, is_put in self._reading.moved:
            if here.startswith(moved.rstrip("/") + "/") or (here == moved and is_put and write.is_followed):
                raise CantSee("a name behind one that the same line moves, copies or links")

    # -- commands ------------------------------------------------------------------------------------------------------

    def _without_prefix(self, words: list[Word]) -> list[Word]:
        """Return the words behind assignments, `!` and `time`."""
        rest = list(words)
        while rest:
            if _is_bare(rest[0]) and rest[0].text in ("!", "time"):
                rest.pop(0)
            elif _ANY_ASSIGNMENT.match(rest[0].text):
                if not _ASSIGNMENT.match(rest[0].text):
                    raise CantSee(f"an assignment to {rest[0].text.partition('=')[0]}")
                rest.pop(0)
            else:
                break
        return rest

    def _program(self, words: list[Word]) -> list[Write]:
        name = words[0].text if words[0].text == "[" else literal(words[0])
        if _is_bare(words[0]) and name in _KEYWORDS:
            raise CantSee(f"{name}: a part of a larger construct")
        found = _BIN.fullmatch(name)
        name = self._name = found[1] if found else name
        if name in _WRAPPERS:
            return self._wrapped(name, words[1:])
        if name == "export":
            return self._program_after_export(words[1:])
        if name == "git":
            return git(words[1:], self._is_folder_here)
        if name not in PROGRAMS:
            raise CantSee(f"{_shown(name)} is no program that this reader knows")
        return PROGRAMS[name](words[1:], self._is_folder_here)

    def _program_after_export(self, words: list[Word]) -> list[Write]:
        if not all(_ASSIGNMENT.match(word.text) for word in words):
            raise CantSee("export of a name that may change a program's ways")
        return []

    def _wrapped(self, name: str, words: list[Word]) -> list[Write]:
        """Return what the program behind `env`, `nice`, `timeout` or `command` writes."""
        rest = list(words)
        if name == "env":
            rest = self._without_prefix(rest)
        elif name == "nice" and rest and literal(rest[0]) == "-n":
            rest = rest[2:]
        elif name == "nice" and rest and NUMBER.fullmatch(literal(rest[0])):
            rest = rest[1:]
        elif name == "timeout":
            if not rest or not _DURATION.fullmatch(literal(rest[0])):
                raise CantSee("timeout with options")
            rest = rest[1:]
        elif name == "command" and rest and rest[0].text in ("-v", "-V"):
            return []
        if rest and rest[0].text.startswith("-"):
            raise CantSee(f"{name} with options")
        if rest and rest[0].text == "cd":
            raise CantSee("cd behind another command")
        return self._program(rest) if rest else []

    def _is_folder_here(self, path: str) -> bool:
        if path.startswith("/"):
            return self._is_folder(path)
        return self._folder is not None and self._is_folder(f"{self._folder.rstrip('/')}/{path}")

    # -- cd ------------------------------------------------------------------------------------------------------------

    def _change_folder(self, words: list[Word], after: str) -> None:
        """Follow a `cd`: certain when it comes first and its folder is there, else as far as && reaches."""
        if after in ("|", "|&", "&"):
            return  # in a process of its own; the last of a pipe is one for some shells and not for others
        path = words[0].text if len(words) == 1 and _is_plain(words[0]) else ""
        is_first = not (self._reading.writes or self._reading.unseen) and self._before not in ("&&", "||")
        if not path or path.startswith("-") or (self._folder is None and not path.startswith("/")):
            self._folder = None
            raise CantSee("a cd to a folder that the line does not name")
        # A shell takes `..` off the name, and does not look where a link leads.
        target = os.path.normpath(os.path.join(self._folder or "/", path))
        is_there = self._is_folder(target)
        self._is_sure = self._is_sure and is_first and is_there
        self._folder = None if self._before in ("||", "|", "|&") else target


def _is_plain(word: Word) -> bool:
    return not word.is_dynamic and not word.is_glob


def _is_bare(word: Word) -> bool:
    return not word.is_dynamic and not word.is_quoted


def _shown(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name[:40]) or "an empty name"


_REMOVING = frozenset(("rm", "rmdir", "unlink"))
_MOVING = frozenset(("ln", "mv", "cp", "rsync", "install", "git")) | _REMOVING
_WRAPPERS = frozenset(("env", "nice", "timeout", "command"))
