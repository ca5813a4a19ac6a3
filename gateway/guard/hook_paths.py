"""From the paths that a call writes to the resources it needs: where the path really leads, in which work tree.

* A path belongs to the work tree in which it ends after all links: the nearest folder above it that holds `.git`. All
  worktrees and clones of one repository give the same names (paths.py).
* A path that begins inside a work tree and leads out of it, by a link, is refused, and so is what lies in `.git`.
* A path in no work tree is outside: the command's --outside says what then happens.

Source: docs/guards.md; scenarios 24, 28, 29.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.guard.hook_state import Need, State
from gateway.guard.paths import PathRefused, Place, is_tree, resource_of, shown_path
from gateway.guard.shell_options import Write
from verifier.entries import resource_hint

OBJECTS_MAX = 256  # that one call may touch, where they are asked about one by one
_ENTRIES_MAX = 4_096  # of folders, that are looked at for that
HOME_FILE = "tallystick-home"  # of guard git, in the folder that is one worktree's alone


class NotListed(Exception):
    """What a call touches can't be named object by object; the text says why."""


class NoPlace(Exception):
    """The repository has no name on the ledger; the text says what to do."""


@dataclass(slots=True)
class Found:
    """What a call needs, and what of it lies in no work tree."""

    needs: list[Need] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def find(writes: Iterable[Write], state: State) -> Found:
    """Return what the writes need; PathRefused, NoPlace. New work trees are noted in the state."""
    found = Found()
    for write in writes:
        real = _real(write)
        top = top_of(real if write.is_tree else os.path.dirname(real))
        _check_stays(write.path, real)
        if top is None:
            found.outside.append(write.path)
            continue
        need = _need(write, real, top, state)
        if need not in found.needs:
            found.needs.append(need)
    return found


# -- objects -----------------------------------------------------------------------------------------------------------


def objects_of(writes: Iterable[Write], state: State) -> list[Need]:
    """Return what the writes touch, object by object, as an admission names it; NotListed, and what `find` raises.

    What lies below a folder is looked up: files, and links as such; with the folder's own name.
    """
    found = dict.fromkeys(need for write in writes for need in find(_singles(write), state).needs)
    for need in found:
        if is_tree(need.name):
            raise NotListed(f"{need.name} stands for a path that is too long or too deep for a name of its own")
    if len(found) > OBJECTS_MAX:
        raise NotListed(f"this touches more than {OBJECTS_MAX} objects")
    return list(found)


def _singles(write: Write) -> Iterator[Write]:
    """Yield one write for each object that a write touches."""
    if not write.is_tree:
        yield write
        return
    real = _real(write)
    top = top_of(real)
    if top is None:
        return
    if write.like is None:
        raise NotListed(f"which objects below {shown_path(os.fsencode(write.path))} this touches can't be listed")
    names = _below(write.like)
    if top != real:  # the top of a work tree is no object
        yield replace(write, is_tree=False)
    elif not names:
        raise NotListed(f"{shown_path(os.fsencode(write.path))} holds no object")
    for name in names:
        yield Write(f"{write.path.rstrip('/')}/{name}", False, False, write.is_gone)


def _below(folder: str) -> list[str]:
    """Return the paths of all files and links below a folder, from there; NotListed. Its own `.git` is left out."""
    names, todo, seen = list[str](), [""], 0
    while todo:
        inner = todo.pop()
        try:
            with os.scandir(os.path.join(folder, inner)) as entries:
                for entry in entries:
                    seen += 1
                    if len(names) > OBJECTS_MAX or seen > _ENTRIES_MAX:
                        raise NotListed(f"{shown_path(os.fsencode(folder))} holds more than {OBJECTS_MAX} objects")
                    path = os.path.join(inner, entry.name)
                    if path != ".git":
                        (todo if entry.is_dir(follow_symlinks=False) else names).append(path)
        except (OSError, ValueError) as error:
            raise NotListed(f"{shown_path(os.fsencode(folder))} can't be listed") from error
    return sorted(names)


# -- names -------------------------------------------------------------------------------------------------------------


def _need(write: Write, real: str, top: str, state: State) -> Need:
    inside = os.fsencode(real)[len(os.fsencode(top)) :].lstrip(b"/")
    if b".git" in inside.lower().split(b"/"):
        raise PathRefused(f"{shown_path(os.fsencode(write.path))} leads into .git")
    scheme, repository, is_unicode, delete_mode = _place_of(top, state)
    place = Place(scheme, repository, is_unicode)
    mode = delete_mode if write.is_gone else "write"
    if not inside:
        return Need(place.whole, mode)
    name = resource_of(place, inside)
    return Need(_tree(name, place) if write.is_tree else name, mode)


def _tree(name: str, place: Place) -> str:
    """Return the name of all below a name, or of more where that would be too long."""
    while not name.endswith("/**"):
        if resource_hint(f"{name}/**") is None:
            return f"{name}/**"
        name = name.rpartition("/")[0]
        if len(name) < len(place.prefix):
            return place.whole
    return name


def _real(write: Write) -> str:
    """Return where a write arrives: behind all links, but for the last one where the link itself is meant."""
    path = write.path.rstrip("/") or "/"
    folder, _, last = path.rpartition("/")
    try:
        if write.is_followed or last in ("", ".", ".."):
            return os.path.realpath(path)
        return os.path.join(os.path.realpath(folder or "/"), last)
    except (OSError, ValueError) as error:
        raise PathRefused(f"{shown_path(os.fsencode(write.path))} can't be followed") from error


def _check_stays(path: str, real: str) -> None:
    """A link must not lead out of the work tree in which the path begins."""
    begin = top_of(os.path.dirname(os.path.normpath(path)))
    if begin is None:
        return
    root = os.path.realpath(begin)
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise PathRefused(f"{shown_path(os.fsencode(path))} leads out of the work tree")


def top_of(folder: str) -> str | None:
    """Return the nearest folder, this one or above, that is the top of a work tree."""
    while True:
        if os.path.lexists(os.path.join(folder, ".git")) and os.path.basename(folder) != ".git":
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def _place_of(top: str, state: State) -> tuple[str, str, bool, str]:
    """Return the repository's name on the ledger; it is read once for a session."""
    if top not in state.places:
        from gateway.guard.git import Git, GitFailed  # these load the client, and run git
        from gateway.guard.settings import Unset, read_settings

        git = Git(Path(top), is_called_by_git=False)
        try:
            if not os.path.samefile(git.top, top):  # something called .git that is no repository: git looks further up
                raise Unset("its .git is no repository's")
            settings = read_settings(git)
        except (Unset, GitFailed, OSError) as error:
            raise NoPlace(f"{shown_path(os.fsencode(top))}: {error}") from error
        place = settings.place
        state.places[top] = (place.scheme, place.repository, place.is_unicode, settings.delete_mode)
    return state.places[top]


def home_of(folder: str) -> Path:
    """Return whose profile it is, as guard git does: $TALLYSTICK_HOME, the worktree's own note, ~/.tallystick."""
    named = os.environ.get("TALLYSTICK_HOME")
    return Path(named) if named else _noted_home(folder) or Path.home() / ".tallystick"


def _noted_home(folder: str) -> Path | None:
    top = top_of(folder)
    if top is None:
        return None
    own = Path(top) / ".git"
    try:
        if own.is_file():
            own = Path(top) / os.fsdecode(own.read_bytes()[:4096].removeprefix(b"gitdir:").strip())
        return Path(os.fsdecode((own / HOME_FILE).read_bytes().removesuffix(b"\n")))
    except (OSError, ValueError):
        return None
