"""Words under which live things are found again: by name, by sub-tree, by who.

A lease, a delay or a ticket on `repo:app/src/main.py` is filed under `=repo:app/src/main.py` and below each sub-tree
that covers it: `<repo:`, `<repo:app/`, `<repo:app/src/`. Whatever overlaps a name is then found by a handful of
look-ups, however much is live; and a request for a sub-tree meets just what lies in it.

Words are folded to lower case, so that they do not depend on a scheme's setting. Looking up finds too much sometimes,
never too little: who asks compares the keys of names afterwards.

Source: docs/protocol.md 3.3, 3.5.
"""

from __future__ import annotations

from functools import lru_cache

TERMS_CACHE = 4_096  # names; the longest have 18 KB of words, a usual one 300 bytes
TICKETS = "tickets"  # every live ticket
PASSED = "passed"  # tickets that were passed over, because granting them would close a cycle


def by(actor: str) -> str:
    """Return the word for what an actor holds, and for what keeps others out for its sake."""
    return f"by {actor}"


def waited_by(actor: str) -> str:
    """Return the word for the tickets of an actor."""
    return f"for {actor}"


def of_operator(operator: str) -> str:
    """Return the word for the tickets of everybody an operator answers for."""
    return f"of {operator}"


@lru_cache(maxsize=TERMS_CACHE)
def filed_under(name: str) -> tuple[str, ...]:
    """Return the words under which something on `name` is filed: the name, and each sub-tree it lies in."""
    scheme, _, path = _folded(name).partition(":")
    segments = path.split("/")
    above = ("/".join(segments[:depth]) + "/" if depth else "" for depth in range(len(segments)))
    return (f"={scheme}:{path}", *(f"<{scheme}:{prefix}" for prefix in above))


@lru_cache(maxsize=TERMS_CACHE)
def met_by(name: str) -> tuple[str, ...]:
    """Return the words that together find everything that overlaps `name`."""
    scheme, _, path = _folded(name).partition(":")
    segments = path.split("/")
    is_tree = segments[-1] == "**"
    if is_tree:
        segments = segments[:-1]
    covers = ("/".join((*segments[:depth], "**")) for depth in range(len(segments) + 1))
    covering = tuple(f"={scheme}:{cover}" for cover in covers)
    own = f"={scheme}:" + "/".join(segments)
    if not is_tree:
        return (own, *covering)
    below = f"<{scheme}:" + "".join(f"{segment}/" for segment in segments)
    return (own, below, *covering[:-1]) if segments else (below,)


def _folded(name: str) -> str:
    return name.lower() if name.isascii() else "".join(c.lower() if c.isascii() else c for c in name)
