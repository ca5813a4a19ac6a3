"""How words on a command line are read: as options of a program, and as the paths that it writes.

A row of a program lists its options, and no others are known: an unknown one may mean a file. Paths are as they were
written; shell.py puts them into their folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gateway.guard.shell_words import CantSee, Word


@dataclass(frozen=True, slots=True)
class Write:
    """A path that is written; `is_tree`: with all below it; not `is_followed`: a link there is meant itself.

    `is_gone`: nothing is there afterwards. `like`, of a tree: the folder that tells by what lies in it what is touched,
    which is the tree itself or where it comes from; None where that can't be told before it runs.
    """

    path: str
    is_tree: bool = False
    is_followed: bool = True
    is_gone: bool = False
    like: str | None = None


IsFolder = Callable[[str], bool]
_GLOB = re.compile(r"[*?[]")


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one program: letters without and with a value, and long ones likewise."""

    flags: str = ""
    valued: str = ""
    long: str = ""
    long_valued: str = ""


def literal(word: Word) -> str:
    """Return a word that the shell leaves as it is; CantSee."""
    if word.is_dynamic:
        raise CantSee("a name that is an expansion ($…, ~ or {…})")
    if word.is_glob:
        raise CantSee("a pattern where one name is needed")
    return word.text


Found = dict[str, list[str]]


def split(words: Sequence[Word], options: Options) -> tuple[Found, list[Word]]:
    """Return the options that are set, with their values, and the operands; CantSee for an option that has no row."""
    found: Found = {}
    operands: list[Word] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.is_dynamic:
            raise CantSee("a name that is an expansion ($…, ~ or {…})")
        if word.text == "--":
            return found, operands + [_operand(one) for one in rest]
        if word.text.startswith("--"):
            _long(word, rest, options, found)
        elif word.text.startswith("-") and word.text != "-":
            _short(word.text[1:], rest, options, found)
        else:
            operands.append(word)
    return found, operands


def _operand(word: Word) -> Word:
    if word.is_dynamic:
        raise CantSee("a name that is an expansion ($…, ~ or {…})")
    return word


def _long(word: Word, rest: list[Word], options: Options, found: Found) -> None:
    name, is_equal, value = literal(word)[2:].partition("=")
    if name in options.long.split():
        found.setdefault(name, []).append(value)
    elif name in options.long_valued.split():
        found.setdefault(name, []).append(value if is_equal else _next(rest))
    else:
        raise CantSee(f"the option --{name}")


def _short(letters: str, rest: list[Word], options: Options, found: Found) -> None:
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter in options.flags:
            found.setdefault(letter, [])
        elif letter in options.valued:
            found.setdefault(letter, []).append(letters or _next(rest))
            return
        else:
            raise CantSee(f"the option -{letter}")


def _next(rest: list[Word]) -> str:
    if not rest:
        raise CantSee("an option without its value")
    return literal(rest.pop(0))


def place(word: Word, is_tree: bool = False, is_followed: bool = True, is_gone: bool = False) -> Write:
    """Return what is written at a word; a pattern stands for all below the folder before it."""
    if word.is_dynamic:
        raise CantSee("a name that is an expansion ($…, ~ or {…})")
    if word.is_glob:
        before = word.text[: _GLOB.search(word.text).start()]  # type: ignore[union-attr]  # it is a pattern
        return Write(before.rpartition("/")[0] or ("/" if before.startswith("/") else "."), True, True, is_gone)
    if not word.text:
        raise CantSee("an empty name")
    return Write(word.text, is_tree, is_followed, is_gone)


def as_it_is(write: Write) -> Write:
    """Return a write that touches only what is there already."""
    return replace(write, like=write.path) if write.is_tree else write
