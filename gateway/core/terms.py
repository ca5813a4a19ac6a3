"""Words under which live things are found again: by name, by sub-tree, by who.

A lease, a delay or a ticket on `repo:app/src/main.py` is filed under `=repo:app/src/main.py` and below each sub-tree
that covers it: `<repo:`, `<repo:app/`, `<repo:app/src/`. Whatever overlaps a name is then found by a handful of
look-ups, however much is live; and a request for a sub-tree meets just what lies in it.

Words are folded to lower case, so that they do not depend on a scheme's setting. Of what is long they have a digest, so
that a deep name costs little. Looking up finds too much sometimes, never too little: who asks compares the keys of
names afterwards.

Source: docs/protocol.md 3.3, 3.5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import accumulate

TERMS_CACHE = 4_096  # names; the longest have 3 KB of words, a usual one 300 bytes
SPELLED_CHARS_MAX = 48  # of a word; what is longer is a digest
DIGEST_BYTES = 12  # who looks for two of one digest (2^48 hashes) makes looking up find too much
DIGEST_MARK = "#"  # no name begins with it
TICKETS = "tickets"  # every live ticket
PASSED = "passed"  # tickets that were passed over, because granting them would close a cycle


def by(actor: str) -> str:
    """Return the word for what an actor holds, and for what keeps others out for its sake."""
    return f"by {actor}"


def waited_by(actor: str) -> str:
    """Return the word for the tickets of an actor."""
    return f"for {actor}"


def waited_behind(principal: str) -> str:
    """Return the word for the tickets of a principal's sessions; its own are found by its own word."""
    return f"for those behind {principal}"


def held_behind(principal: str) -> str:
    """Return the word for what a principal's sessions hold; what it holds itself is found by its own word."""
    return f"by those behind {principal}"


def session_of(principal: str) -> str:
    """Return the word for the open sessions of a principal."""
    return f"session of {principal}"


def session_let_by(did: str) -> str:
    """Return the word for the sessions that an agent or operator let act, those that ended as well."""
    return f"session let by {did}"


def session_under(operator: str) -> str:
    """Return the word for the open sessions that an operator answers for."""
    return f"session under {operator}"


def agent_of(operator: str) -> str:
    """Return the word for the agents in force that an operator answers for."""
    return f"agent of {operator}"


def asked_by(actor: str) -> str:
    """Return the word for the approvals that an actor waits for."""
    return f"asked by {actor}"


def asked_behind(principal: str) -> str:
    """Return the word for what a principal and its sessions asked to have approved, what is over as well."""
    return f"asked for {principal}"


def asked_of(approver: str) -> str:
    """Return the word for the approvals that somebody may give."""
    return f"asked of {approver}"


def of_operator(operator: str) -> str:
    """Return the word for the tickets of everybody an operator answers for."""
    return f"of {operator}"


@lru_cache(maxsize=TERMS_CACHE)
def filed_under(name: str) -> tuple[str, ...]:
    """Return the words under which something on `name` is filed: the name, and each sub-tree it lies in."""
    is_tree, root, trees = _places(name)
    if is_tree:
        return (f"={trees[-1]}**", *[f"<{tree}" for tree in trees])
    return (f"={root}", *[f"<{tree}" for tree in trees[:-1]])


@lru_cache(maxsize=TERMS_CACHE)
def met_by(name: str) -> tuple[str, ...]:
    """Return the words that together find everything that overlaps `name`."""
    is_tree, root, trees = _places(name)
    if not is_tree:
        return (f"={root}", *[f"={tree}**" for tree in trees])
    own = f"<{trees[-1]}"
    return (f"={root}", own, *[f"={tree}**" for tree in trees[:-1]]) if root else (own,)


def is_digest(term: str) -> bool:
    """Say whether a word is the digest of a longer one, so that it may find what is elsewhere altogether."""
    return term.startswith(DIGEST_MARK, 1)


class Index(dict[str, str | dict[str, None]]):
    """Which keys are filed under which words. A word with one key, as most have, has no collection of its own."""

    __slots__ = ()

    def add(self, term: str, key: str) -> bool:
        """File a key under a word; say whether it was not filed there before."""
        count = len(self)
        found = self.setdefault(term, key)
        if type(found) is dict:
            is_new = key not in found
            found[key] = None
            return is_new
        if found == key:
            return len(self) > count
        self[term] = {found: None, key: None}  # type: ignore[dict-item]  # a text, as it is no dictionary
        return True

    def remove(self, term: str, key: str) -> None:
        """Take away a key that is filed under a word."""
        found = self[term]
        if isinstance(found, dict):
            del found[key]
        if found == key or not found:
            del self[term]

    def near(self, term: str) -> Collection[str]:
        """Return the keys filed under a word, in no order."""
        found = self.get(term)
        if found is None:
            return ()
        return (found,) if type(found) is str else found


def _places(name: str) -> tuple[bool, str, list[str]]:
    """Return whether a name is a sub-tree, its root (empty for a whole scheme), and all sub-trees down to its own."""
    scheme, _, path = _folded(name).partition(":")
    segments = path.split("/")
    is_tree = segments[-1] == "**"
    if is_tree:
        segments.pop()
    if not segments:
        return True, "", [f"{scheme}:"]
    pieces = (f"{scheme}:", *[f"{segment}/" for segment in segments[:-1]], segments[-1], "/")
    *trees, root, own = accumulate(pieces) if len(name) < SPELLED_CHARS_MAX else _shortened(pieces)
    return is_tree, root, [*trees, own]


def _shortened(pieces: Iterable[str]) -> Iterator[str]:
    """Yield what the first piece makes, the first two, and so on: spelled out, or a digest of what is long."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    text = ""
    for piece in pieces:
        digest.update(piece.encode())
        text += piece if len(text) <= SPELLED_CHARS_MAX else ""
        yield text if len(text) <= SPELLED_CHARS_MAX else f"{DIGEST_MARK}{digest.hexdigest()}"


def _folded(name: str) -> str:
    return name.lower() if name.isascii() else "".join(c.lower() if c.isascii() else c for c in name)
