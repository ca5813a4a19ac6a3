"""Names, keys, overlap and sharing as the specification says them, written anew and slowly for the checker."""

from __future__ import annotations


def scheme_of(name: str) -> str:
    return name.split(":")[0]


def key_of(name: str, is_folding: bool) -> str:
    """Return the key of a name: ASCII letters lowered when its scheme folds."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name) if is_folding else name


def covers(held: str, asked: str) -> bool:
    """Say whether a key is another key, or a sub-tree with it inside."""
    if held == asked:
        return True
    if not held.endswith("**"):
        return False
    beginning = held[:-2]  # "s:a/" or "s:"
    return asked.startswith(beginning) or (beginning.endswith("/") and asked == beginning[:-1])


def overlap(one: str, other: str) -> bool:
    return covers(one, other) or covers(other, one)


def share(cls: str, one: str, other: str) -> bool:
    """Say whether two modes may be held together in a class, by different actors."""
    if cls == "read-safe":
        return one == "read" and other == "read"
    if cls == "append-only":
        return one in ("read", "append") and other in ("read", "append")
    return False


def allowed(cls: str, mode: str) -> bool:
    return not (cls == "append-only" and mode in ("write", "delete"))
