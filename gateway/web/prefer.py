"""How long a client would like to be kept waiting: the header `Prefer: wait=N` (RFC 7240).

It is a wish, so it is not signed and changes nothing but the time of an answer; one that can't be read is no wish.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Every repetition is possessive: what one part took, no other part gets, so a line is read once however it is made.
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
_WORD = rf'(?:{_TOKEN}|"(?:[^"\\]|\\.)*+")'
_PAIR = rf"{_TOKEN}(?:[ \t]*+=[ \t]*+{_WORD}?+)?+"
_PREFERENCE = rf"{_PAIR}(?:[ \t]*+;[ \t]*+(?:{_PAIR})?+)*+"
_ONE = re.compile(rf"[ \t]*+({_PREFERENCE})?+[ \t]*+(?:,|\Z)")
_WAIT = re.compile(r"wait[ \t]*=[ \t]*([0-9]{1,9})[ \t]*(?:;.*)?", re.IGNORECASE | re.ASCII)
_NAME = re.compile(_TOKEN)


def preferred_wait_s(headers: Iterable[tuple[bytes, bytes]]) -> int:
    """Return the seconds that the first `wait` among the preferences asks for; 0 when there is none to be read.

    `headers` are the raw pairs of a request. Several lines are one list; a line that breaks the grammar says nothing.
    """
    for name, value in headers:
        if name.lower() == b"prefer":
            for preference in _preferences(value.decode("latin-1")):
                named = _NAME.match(preference)
                if named is not None and named[0].lower() == "wait":
                    wait = _WAIT.fullmatch(preference)
                    return int(wait[1]) if wait else 0
    return 0


def _preferences(line: str) -> list[str]:
    """Return the preferences of one header line, none when any of it is malformed."""
    found, at = [], 0
    while at < len(line):
        one = _ONE.match(line, at)
        if one is None:
            return []
        if one[1]:
            found.append(one[1])
        at = one.end()
    return found
