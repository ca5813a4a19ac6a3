"""What operators set about schemes: how modes share, whether case counts, and two durations.

A scheme that nobody set is exclusive, counts case, is ASCII, and has the durations of entry 0.
Source: docs/protocol.md 3, 7.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from verifier.entries import is_mode_allowed, key_of, scheme_of
from verifier.wire import JsonObject, JsonValue


class Scheme(NamedTuple):
    """The five values of a scheme; durations in ms."""

    scheme_class: str
    is_folding: bool
    is_unicode: bool
    lock_delay_ms: int
    max_hold_ms: int


class Schemes:
    """Every scheme, set or not; `numbers` are the parameters of entry 0."""

    __slots__ = ("_folding", "_rows", "_set", "_unset")

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self._unset = Scheme("exclusive", False, False, numbers["lockDelayMs"], numbers["maxHoldMs"])
        self._set: dict[str, Scheme] = {}
        self._folding = 0  # how many schemes fold
        self._rows: dict[str, JsonObject] = {}  # those made so far, by scheme

    def named(self, scheme: str) -> Scheme:
        return self._set.get(scheme, self._unset)

    def put(self, scheme: str, values: Scheme) -> None:
        self._folding += values.is_folding - self.named(scheme).is_folding
        self._set[scheme] = values
        self._rows.pop(scheme, None)

    def class_of(self, key: str) -> str:
        """Return the class of the scheme of a name or key."""
        return self._set.get(scheme_of(key), self._unset).scheme_class if self._set else self._unset.scheme_class

    def keys(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the key of each name, in their order."""
        if not self._folding:
            return names
        return tuple(key_of(name, self.named(scheme_of(name)).is_folding) for name in names)

    def rows(self, names: tuple[str, ...]) -> list[JsonValue]:
        """Return the member `schemes` of a lease on `names`."""
        if len(names) == 1:
            return [self._row(scheme_of(names[0]))]
        return [self._row(scheme) for scheme in sorted({scheme_of(name) for name in names})]

    def _row(self, scheme: str) -> JsonObject:
        if scheme not in self._rows:
            values = self.named(scheme)
            self._rows[scheme] = {"class": values.scheme_class, "isFolding": values.is_folding, "name": scheme}
        return self._rows[scheme]

    def lock_delay_ms(self, names: tuple[str, ...]) -> int:
        """Return how long others are kept out after a bad end: the longest of the schemes."""
        if not self._set:
            return self._unset.lock_delay_ms
        return max(self.named(scheme).lock_delay_ms for scheme in {scheme_of(name) for name in names})

    def max_hold_ms(self, names: tuple[str, ...]) -> int:
        """Return how long a lease may be held while others wait: the shortest of the schemes."""
        if not self._set:
            return self._unset.max_hold_ms
        return min(self.named(scheme).max_hold_ms for scheme in {scheme_of(name) for name in names})

    def name_error(self, names: tuple[str, ...], mode: str) -> str | None:
        """Return the refusal that names and mode alone call for."""
        if not all(map(str.isascii, names)):
            if not all(name.isascii() or self.named(scheme_of(name)).is_unicode for name in names):
                return "name_not_allowed"
        if not self._set or all(is_mode_allowed(self.class_of(name), mode) for name in names):
            return None
        return "mode_not_allowed"
