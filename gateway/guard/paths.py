"""Turns the paths of a work tree into names of resources, and finds where a link leads.

    src/a b.py   in the repository "app"   is   repo:app/src/a%20b.py

* The same path, counted from the top of the work tree, is the same resource in every worktree and every clone.
* Every path has one name and, unless the scheme is unicode, no two paths share one. Each byte that a name can't hold is
  written as % and two upper-case hex digits; so is % itself, so that nothing else looks like it.
* In a unicode scheme letters beyond ASCII stand for themselves, in the normal form NFC: two paths that only differ in
  their form share a resource, which may be one too careful and never one too few.
* What is longer or deeper than a name may be is held with the deepest folder that fits: `repo:app/src/**`.

Source: docs/guards.md; docs/protocol.md 3; scenarios 24, 28, 29.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from verifier.entries import RESOURCE_BYTES_MAX, is_assigned, resource_hint

SCHEME_DEFAULT = "repo"
LINKS_MAX = 40  # followed for one path, as the kernel does
_OUT, _GIT = "leads out of the work tree", "leads into .git"
# What a segment holds as it is: RESOURCE_PATTERN of verifier.entries without the percent sign.
_OTHERS = re.compile(rb"[^!#-$&-)+-.0-;=?-\[\]-_a-~]")


class PathRefused(Exception):
    """The path names nothing inside the work tree; the text says why. `followed` are the links on the way."""

    def __init__(self, text: str, followed: Iterable[bytes] = ()) -> None:
        super().__init__(text)
        self.followed = frozenset(followed)


@dataclass(frozen=True, slots=True)
class Place:
    """A repository as the ledger knows it: `scheme:repository/…`; `is_unicode` if the scheme takes other letters."""

    scheme: str
    repository: str
    is_unicode: bool = False

    @property
    def prefix(self) -> str:
        """What the names of all its paths begin with."""
        return f"{self.scheme}:{self.repository}/"

    @property
    def whole(self) -> str:
        """The name of all its paths together."""
        return f"{self.prefix}**"


def place_hint(place: Place) -> str | None:
    """Return None for a place whose names can be held, else what to change."""
    if len(place.whole) > RESOURCE_BYTES_MAX // 2 or place.repository.count("/") > 15:
        return "the repository's name is too long; its paths need room behind it"
    if "%" in place.repository or not place.repository.isascii():
        return "a repository's name is of ASCII, without %"
    return resource_hint(f"{place.prefix}a")


def resource_of(place: Place, path: bytes) -> str:
    """Return the name of what lies at `path`, bytes as git has them: relative to the top, with slashes.

    PathRefused for what is no path of a work tree: empty, absolute, with an empty segment.
    """
    segments = path.split(b"/")
    if b"" in segments:
        raise PathRefused(f"{shown_path(path)} is no path inside a work tree")
    names = [_segment(segment, place.is_unicode) for segment in segments]
    whole = place.prefix + "/".join(names)
    if resource_hint(whole) is None and is_assigned(whole):
        return whole
    for depth in range(len(names) - 1, 0, -1):
        around = f"{place.prefix}{'/'.join(names[:depth])}/**"
        if resource_hint(around) is None:
            return around
    return place.whole


def is_tree(name: str) -> bool:
    """Say whether a name stands for all below a folder, and not for one object."""
    return name.endswith("**")


def _segment(segment: bytes, is_unicode: bool) -> str:
    """Return a segment as a name spells it; what the grammar refuses is escaped byte by byte."""
    if segment in (b".", b".."):
        return _escaped(segment, re.compile(rb"\."))
    text = _decoded(segment) if is_unicode else None
    if text is None or text.isascii():
        return _escaped(segment, _OTHERS)
    return "".join(_letter(letter) for letter in unicodedata.normalize("NFC", text))


def _letter(letter: str) -> str:
    """A letter beyond ASCII stands for itself if a name may have it."""
    if not letter.isascii() and is_assigned(letter) and resource_hint(f"a:{letter}") is None:
        return letter
    return _escaped(letter.encode(), _OTHERS)


def _decoded(segment: bytes) -> str | None:
    try:
        return segment.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _escaped(segment: bytes, others: re.Pattern[bytes]) -> str:
    return others.sub(lambda found: b"%%%02X" % found[0][0], segment).decode("ascii")


def shown_path(path: bytes) -> str:
    """Return a path fit for a terminal and a person: what can't be printed is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


# -- links -------------------------------------------------------------------------------------------------------------


def link_end(path: bytes, links: Mapping[bytes, bytes]) -> bytes:
    """Return where `path`, a link or below one, leads in a tree whose links are `links`.

    A path through no link is its own end. PathRefused for one that leaves the tree, by `..` or as an absolute path, for
    a ring, and for one that leads into `.git`.
    """
    todo, done, followed = path.split(b"/"), list[bytes](), list[bytes]()
    while todo:
        step = todo.pop(0)
        why = _misstep(step, done)
        if why is not None:
            raise PathRefused(f"{shown_path(path)} {why}", followed)
        if step == b"..":
            done.pop()
        elif step not in (b"", b"."):
            done.append(step)
        here = b"/".join(done)
        if here in links:
            followed.append(here)
            if len(followed) > LINKS_MAX:
                raise PathRefused(f"{shown_path(path)} goes through too many links, or in a ring", followed)
            if links[here].startswith(b"/"):
                raise PathRefused(f"{shown_path(path)} {_OUT}", followed)
            done.pop()
            todo = links[here].split(b"/") + todo
    return b"/".join(done)


def _misstep(step: bytes, done: list[bytes]) -> str | None:
    """Return why a step from the folder `done` may not be taken, or None."""
    if step == b".." and not done:
        return _OUT
    return _GIT if step.lower() == b".git" else None
