"""Finding what overlaps a name: the index agrees with the definition, pair by pair, and a sub-tree is a range."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from verifier.entries import overlaps
from verifier.replay.under import Index

_SEGMENTS = st.lists(st.sampled_from(["a", "b", "a-", "a.b", "ä"]), min_size=0, max_size=3)


@st.composite
def keys(draw: st.DrawFn) -> str:
    path = draw(_SEGMENTS)
    if not path or draw(st.booleans()):
        path = [*path, "**"]
    return draw(st.sampled_from(["s:", "s-x:"])) + "/".join(path)


@given(st.lists(st.lists(keys(), min_size=1, max_size=3), max_size=12), st.lists(st.integers(0, 11)), keys())
def test_what_is_near_is_what_overlaps(things: list[list[str]], gone: list[int], asked: str) -> None:
    index: Index[tuple[int, ...]] = Index()
    named = {(number,): tuple(names) for number, names in enumerate(things)}
    for thing, names in named.items():
        index.add(thing, names)
    for number in gone:
        list(index.near("s:**"))  # from here on its keys are sorted
        index.remove((number,), named.pop((number,), ()))
    wanted = {thing for thing, names in named.items() if any(overlaps(asked, name) for name in names)}
    assert set(index.near(asked)) == wanted
    assert set(index.on(asked)) == {thing for thing, names in named.items() if asked in names}
    assert bool(index) == bool(named)


def test_a_sub_tree_among_many_leases_is_found_in_no_time() -> None:
    """10,000 leases; a thousand questions about small sub-trees, each with a lease that comes and goes, in a second."""
    index: Index[int] = Index()
    for number in range(10_000):
        index.add(number, (f"repo:m{number // 10}/f{number % 10}.py",))
    started_s = time.process_time()
    for number in range(1_000):
        assert len(list(index.near(f"repo:m{number}/**"))) == 10
        index.add(-1, (f"repo:m{number}/new",))
        index.remove(-1, (f"repo:m{number}/new",))
    assert time.process_time() - started_s < 1
