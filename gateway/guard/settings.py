"""What a repository says of itself: its name on the ledger, and what is done about paths that nobody has claimed.

    [tallystick]
        repository = app        the name; its paths are repo:app/…
        scheme = repo
        unclaimed = refuse      or claim: take a lease for the time of the commit
        delete = write          or delete: a deletion asks for a lease in that mode
        names = ascii           or unicode, if the scheme takes other letters

This stands in the committed file `.tallystick`, in git's own format, or in the repository's configuration, which comes
first, and into which `install` writes all of it: a stranger's branch brings a file of its own. Without that the file
counts as it was before the change at hand: whoever changes the rules is held to the old ones.
Nothing of one agent stands in either, for worktrees share them: whose profile it is says $TALLYSTICK_HOME, or a file in
the folder that git keeps for one worktree alone.

Source: docs/guards.md; scenarios 14, 28.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.client.profile import HOME_VARIABLE, default_home
from gateway.guard.git import Git
from gateway.guard.paths import SCHEME_DEFAULT, Place, place_hint

FILE = ".tallystick"
SECTION = "tallystick"
HOME_FILE = "tallystick-home"  # in the folder of one worktree
_CHOICES = {
    "unclaimed": ("refuse", "claim"),
    "delete": ("write", "delete"),
    "names": ("ascii", "unicode"),
    "admit": ("no", "yes"),
}
_KEYS = {"repository", "scheme", "since", *_CHOICES}


class Unset(Exception):
    """The repository has no name on the ledger, or its settings can't be used; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`delete_mode` is what a deletion asks for; commits up to `since` are from before the guard."""

    place: Place
    is_claiming: bool = False
    delete_mode: str = "write"
    since: str | None = None
    is_admitting: bool = False


def read_settings(git: Git, revision: str = "HEAD") -> Settings:
    """Return the settings of a repository, with the committed file as it stands in `revision`.

    Before the first commit the file counts as it is about to be committed. Unset when they can't be used.
    """
    blob = f"{revision}:{FILE}" if git.commit_id(revision) is not None else f":0:{FILE}"
    committed = _section(git.config(f"--blob={blob}") or {})
    if "since" in committed:
        raise Unset(f"{SECTION}.since: stands in git's configuration alone, for a branch must not excuse commits")
    return settings_of(committed | _section(git.config() or {}))


def pin(git: Git, settings: Settings) -> None:
    """Write settings into the repository's configuration, so that another branch's file does not change them."""
    place = settings.place
    said = {
        "repository": place.repository, "scheme": place.scheme,
        "unclaimed": "claim" if settings.is_claiming else "refuse", "delete": settings.delete_mode,
        "names": "unicode" if place.is_unicode else "ascii", "admit": "yes" if settings.is_admitting else "no",
    }  # fmt: skip
    for key, value in said.items():
        git.run("config", "--local", f"{SECTION}.{key}", value)


def settings_of(said: Mapping[str, str]) -> Settings:
    """Return the settings in the section's keys; Unset names the one that is missing or wrong."""
    if "repository" not in said:
        raise Unset(
            "this repository has no name on the ledger: git config tallystick.repository NAME, or commit a file "
            f"{FILE} with it"
        )
    unknown = sorted(said.keys() - _KEYS)
    if unknown:
        raise Unset(f"{SECTION}.{unknown[0]}: there is no such setting")
    for key, choices in _CHOICES.items():
        if said.get(key, choices[0]) not in choices:
            raise Unset(f"{SECTION}.{key}: one of {' or '.join(choices)}")
    place = Place(said.get("scheme", SCHEME_DEFAULT), said["repository"], said.get("names") == "unicode")
    hint = place_hint(place)
    if hint is not None:
        raise Unset(f"{SECTION}.repository: {hint}")
    return Settings(
        place, said.get("unclaimed") == "claim", said.get("delete", "write"), said.get("since"),
        said.get("admit") == "yes",
    )  # fmt: skip


def _section(config: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of our section, without its name."""
    start = f"{SECTION}."
    return {key.removeprefix(start): value for key, value in config.items() if key.startswith(start)}


# -- whose profile -----------------------------------------------------------------------------------------------------


def home_of(git: Git, *, is_server: bool = False) -> Path:
    """Return the folder of the profile that this worktree's commits are compared with.

    $TALLYSTICK_HOME, else what `install --home` noted for this worktree, else the default. On a server the note comes
    first, for a variable may come from whoever pushes.
    """
    noted = _noted_home(git)
    if noted is not None and (is_server or not os.environ.get(HOME_VARIABLE)):
        return noted
    return default_home()


def _noted_home(git: Git) -> Path | None:
    try:
        return Path(os.fsdecode((git.own_folder / HOME_FILE).read_bytes().removesuffix(b"\n")))
    except FileNotFoundError:
        return None


def note_home(git: Git, home: Path) -> None:
    """Note the profile's folder for this worktree alone."""
    (git.own_folder / HOME_FILE).write_bytes(os.fsencode(home.absolute()) + b"\n")
