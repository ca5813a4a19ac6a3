"""Real work of AI workers who wait in line: all of it is done, nobody meets anybody, and turns are kept."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.demo.checks import Span, kind, out_of_turn, spans, waits
from tests.history.line import InLine
from tests.history.test_replay import TRACES
from tests.history.trace import read
from tests.world import World

PIECES_MAX = 1_000


@pytest.mark.parametrize("name", TRACES)
async def test_everybody_in_line_is_served_once_alone_and_in_turn(name: str, tmp_path: Path) -> None:
    """Scenario 32 at H = 900 s: the last thousand pieces; the ledger is read by loops and by the verifier.

    A ticket for several paths that has kept them in vain waits on (`wait.resumed`): nobody ever loses a place.
    """
    pieces = read(name)[-PIECES_MAX:]
    async with World(tmp_path, agents=sorted({piece.worker for piece in pieces})) as world:
        line = InLine(world, 900)
        await line.run(pieces)
        world.audit()
        leaves = [leaf.value for leaf in world.leaves()]
    tickets, kinds = waits(leaves), Counter(map(kind, leaves))
    assert sorted(line.served) == [piece.line for piece in pieces]
    assert meetings(spans(leaves)) == []
    assert out_of_turn(tickets) == []
    assert len(tickets) > 10 and all(ticket.is_served for ticket in tickets)
    assert kinds["wait.removed"] == kinds["wait.cancelled"] == 0, "nobody loses a place"
    assert 0 < kinds["wait.resumed"] <= kinds["wait.reserved"]


def meetings(leases: Sequence[Span]) -> list[tuple[Span, Span]]:
    """Return pairs of leases of two holders that had one path at the same time."""
    by_path: defaultdict[str, list[Span]] = defaultdict(list)
    for lease in leases:
        for path in lease.resources:
            by_path[path].append(lease)
    return [
        (one, other)
        for same in by_path.values()
        for index, one in enumerate(same)
        for other in same[index + 1 :]
        if one.holder != other.holder and (one.to_seq is None or one.to_seq > other.from_seq)
    ]
