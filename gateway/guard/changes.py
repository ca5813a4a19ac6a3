"""What a set of changes needs: for each path a resource and a mode.

| change | needs |
| --- | --- |
| a new path | `append` |
| other content, another mode, another type, another commit of a submodule | `write` |
| a path that is gone | `write`, or `delete` where the repository asks for it |
| a rename | both of these: one path is gone, another is new |

A lease serves in its own mode and in every weaker one. A link is its own path, and may not lead out of the tree.

Source: docs/guards.md; docs/adr/0051-what-git-changes-need.md; scenarios 29, 30.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.guard.git import LINK, Change
from gateway.guard.paths import PathRefused, link_end, resource_of, shown_path
from gateway.guard.settings import Settings
from verifier.entries import MODES, RESOURCES_BYTES_MAX

Links = Callable[[], Mapping[bytes, bytes]]
"""Reads the links of the new tree; only asked when one of the changed paths is a link."""


@dataclass(frozen=True, slots=True)
class Need:
    """A changed path, the resource it is, and the mode that its change asks for."""

    path: bytes
    resource: str
    mode: str

    @property
    def words(self) -> str:
        """The path as a person knows it, and its name where that differs."""
        told = shown_path(self.path)
        return self.resource if self.resource.endswith(f"/{told}") else f"{self.resource} ({told})"


def needs_of(settings: Settings, changes: Iterable[Change], links: Links) -> list[Need]:
    """Return what the changes need, in their order; PathRefused for a link that may not be."""
    found = list(changes)
    _check_links(found, links)
    return [Need(change.path, resource_of(settings.place, change.path), _mode(settings, change)) for change in found]


def _mode(settings: Settings, change: Change) -> str:
    match change.status:
        case "A":
            return "append"
        case "D":
            return settings.delete_mode
        case _:
            return "write"


def is_enough(held: str, needed: str) -> bool:
    """Say whether a lease in the mode `held` serves for what needs `needed`."""
    return MODES.index(held) >= MODES.index(needed)


def requests_of(wanted: Iterable[tuple[str, str]], names_max: int) -> Iterator[tuple[list[str], str]]:
    """Yield sets of names that fit into one request each, with their mode; `wanted` are names and modes."""
    pairs = sorted(set(wanted))
    for mode in MODES:
        names, size = list[str](), 0
        for name in (name for name, its_mode in pairs if its_mode == mode):
            size += len(name.encode())
            if names and (len(names) == names_max or size > RESOURCES_BYTES_MAX):
                yield names, mode
                names, size = [], len(name.encode())
            names.append(name)
        if names:
            yield names, mode


def _check_links(changes: list[Change], links: Links) -> None:
    """PathRefused for a new link that leads out of the tree, and for an old one that a new one leads out now."""
    new = {change.path for change in changes if change.new_mode == LINK}
    if not new:
        return
    found = links()
    for path in found:
        _check_link(path, found, new)


def _check_link(path: bytes, links: Mapping[bytes, bytes], new: set[bytes]) -> None:
    try:
        link_end(path, links)
    except PathRefused as refused:
        if path in new or new & refused.followed:
            target = shown_path(links[path])
            raise PathRefused(f"the link {shown_path(path)} -> {target}: {refused}") from refused
