"""Live things by the keys they name, so that whatever overlaps a name is found without looking at the rest.

A plain key is met by itself and by the sub-trees around it, at most one for each of its segments, looked for only at
depths at which there is one. A sub-tree is met by those, and by every key that begins with it: a range of the sorted
keys, which are sorted from the first question about a sub-tree on. A ledger without sub-trees never pays for them.
Source: docs/protocol.md 3.3.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


def is_tree(key: str) -> bool:
    """Say whether a key names a sub-tree; nothing else ends with an asterisk."""
    return key.endswith("*")


class Index(Generic[Thing]):
    """Things by key. A thing is compared by identity, so two that claim one number stay two."""

    __slots__ = ("_at", "_order", "_trees")

    def __init__(self) -> None:
        self._at: dict[str, dict[Thing, None]] = {}
        self._trees: dict[int, int] = {}  # by how many slashes they have, how many of the keys are sub-trees
        self._order: list[str] | None = None

    def __bool__(self) -> bool:
        return bool(self._at)

    def add(self, thing: Thing, keys: Iterable[str]) -> None:
        for key in keys:
            things = self._at.get(key)
            if things is not None:
                things[thing] = None
                continue
            self._at[key] = {thing: None}
            if is_tree(key):
                self._trees[key.count("/")] = self._trees.get(key.count("/"), 0) + 1
            if self._order is not None:
                insort(self._order, key)

    def remove(self, thing: Thing, keys: Iterable[str]) -> None:
        for key in keys:
            things = self._at.get(key)
            if things is None or thing not in things:  # one key may stand twice in a set that folds
                continue
            del things[thing]
            if not things:
                del self._at[key]
                if is_tree(key):
                    self._fell(key.count("/"))
                if self._order is not None:
                    del self._order[bisect_left(self._order, key)]

    def _fell(self, slashes: int) -> None:
        self._trees[slashes] -= 1
        if not self._trees[slashes]:
            del self._trees[slashes]

    def on(self, key: str) -> Iterable[Thing]:
        """Return the things that name exactly this key, the oldest first."""
        return self._at.get(key, ())

    def near(self, key: str) -> Iterable[Thing]:
        """Return the things that name something overlapping `key`; one that names several may come again."""
        if not self._trees and not is_tree(key):
            return self._at.get(key, ())
        return self._around(key)

    def _around(self, key: str) -> Iterator[Thing]:
        at = self._at
        if is_tree(key):
            yield from self._below(key)
        elif key in at:
            yield from at[key]
        for tree in self._over(key) if self._trees else ():
            if tree in at and tree != key:
                yield from at[tree]

    def _over(self, key: str) -> Iterator[str]:
        """Yield the sub-trees that cover a key, the widest first, as far as there are any of their depth."""
        slashes, end = 0, key.find(":")
        while end >= 0:
            if slashes in self._trees:
                yield key[: end + 1] + "**"
            slashes, end = slashes + 1, key.find("/", end + 1)
        if slashes in self._trees and not is_tree(key):
            yield key + "/**"

    def _below(self, tree: str) -> Iterator[Thing]:
        """Yield what names the top of a sub-tree or anything in it."""
        inside = tree[:-2]  # ends with the slash or the colon
        yield from self._at.get(inside[:-1], ())
        if self._order is None:
            self._order = sorted(self._at)
        beyond = inside[:-1] + chr(ord(inside[-1]) + 1)
        for key in self._order[bisect_left(self._order, inside) : bisect_left(self._order, beyond)]:
            yield from self._at[key]


def are_overlapping(keys: Iterable[str], others: Iterable[str]) -> bool:
    """Say whether any of some keys overlaps any of others."""
    index: Index[str] = Index()
    for key in keys:
        index.add(key, (key,))
    return any(True for other in others for _ in index.near(other))


def drop(things: dict[str, dict[Thing, None]], who: str, thing: Thing) -> None:
    """Take a thing out of what somebody has; nothing is kept of who has nothing."""
    things[who].pop(thing, None)
    if not things[who]:
        del things[who]
