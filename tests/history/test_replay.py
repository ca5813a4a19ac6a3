"""Real work of AI workers, replayed: what the gateway refuses is exactly what lists and loops say it must.

How a trace is read: each line is one all-or-nothing request of its worker for all its paths, asked H seconds before the
line's time `t` and held until `t`; a rename takes both names. In this reading the swarm has 196 refused lines at
H = 300 s and 428 at 1,800 s. The description of the trace gives 290 refusals (4.3 % of the lines) and 755 (9.8 %): it
counts each *path* as a request, and lets the work go on all the same, so that whoever finished a path last has it.
Read so, the trace has exactly 290 (211 lines, 4.3 %) and 755 (478 lines, 9.8 %), and that is tested too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.oracle import collisions_by_path, refusals
from tests.history.replay import Ending, Replay, collisions_with_breaks
from tests.history.trace import FOLDER, NAMES, Piece, is_here, read
from tests.scale import drawn
from tests.world import World

needs_swarm = pytest.mark.skipif(not is_here("swarm"), reason=f"swarm.jsonl.gz is not in {FOLDER}; `made` ran instead")
TRACES = [pytest.param(name, marks=needs_swarm if name == "swarm" else ()) for name in NAMES]

HOLDS: list[tuple[int, Ending]] = [(300, "release"), (1_800, "lapse"), (30, "lapse"), (900, "release")]


def exact(piece: Piece) -> frozenset[str]:
    return frozenset(f"repo:town/{path}" for path in piece.paths)


@pytest.mark.parametrize("hold_s, ending", HOLDS[: drawn(4, share=2)])
@pytest.mark.parametrize("name", TRACES)
async def test_refused_is_exactly_what_lists_and_loops_refuse(
    name: str, hold_s: int, ending: Ending, tmp_path: Path
) -> None:
    """Each refusal names the same holder, the same path and the same number of leases in the way."""
    pieces = read(name)
    expected = refusals(pieces, hold_s, exact)
    assert len(pieces) > len(expected) > 0
    async with World(tmp_path, agents=sorted({piece.worker for piece in pieces})) as world:
        assert await Replay(world, hold_s, ending).run(pieces, exact) == expected
        world.audit()


def sub_trees(piece: Piece) -> frozenset[str]:
    """Take the whole folder of each path; every third piece, and what lies in no folder, is taken by its exact name."""
    if piece.line % 3 == 0:
        return exact(piece)
    folders = (path.rpartition("/")[0] for path in piece.paths)
    return frozenset(
        f"repo:town/{folder}/**" if folder else f"repo:town/{path}"
        for folder, path in zip(folders, piece.paths, strict=True)
    )


@pytest.mark.parametrize("name", TRACES)
async def test_folders_are_refused_exactly_where_a_prefix_says_so(name: str, tmp_path: Path) -> None:
    """Sub-trees above sub-trees above exact names, at H = 300 s."""
    pieces = read(name)
    expected = refusals(pieces, 300, sub_trees)
    assert len(pieces) > len(expected) > len(refusals(pieces, 300, exact))
    assert any(refusal.name != refusal.held_as for refusal in expected)
    async with World(tmp_path, agents=sorted({piece.worker for piece in pieces})) as world:
        assert await Replay(world, 300, "lapse").run(pieces, sub_trees) == expected
        world.audit()


@pytest.mark.parametrize("name", [TRACES[1], TRACES[2]])
async def test_work_that_goes_on_all_the_same_breaks_what_it_meets(name: str, tmp_path: Path) -> None:
    """As the description of the trace reads it, at the gateway: a lease for each path, a break for each refusal."""
    pieces = read(name)
    async with World(tmp_path, agents=sorted({piece.worker for piece in pieces})) as world:
        assert await collisions_with_breaks(world, pieces, 300) == collisions_by_path(pieces, 300)
        assert world.types().count("lease.broken") == collisions_by_path(pieces, 300)[0]
        world.audit()


@needs_swarm
@pytest.mark.parametrize("hold_s, paths, lines", [(300, 290, 211), (1_800, 755, 478)])
def test_the_swarm_has_the_figures_of_its_description(hold_s: int, paths: int, lines: int) -> None:
    pieces = read("swarm")
    assert (len(pieces), len({piece.worker for piece in pieces})) == (4_889, 445)
    assert collisions_by_path(pieces, hold_s) == (paths, lines)
