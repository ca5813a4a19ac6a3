"""The garbage collector of a running gateway looks rarely, and still looks."""

import gc
import weakref
from pathlib import Path

from gateway.app import GARBAGE_THRESHOLDS
from tests.web.world import make, world


class Knot:
    """An object in a cycle of its own: only the collector frees it."""

    def __init__(self) -> None:
        self.me = self


async def test_cycles_are_freed_while_a_gateway_runs(tmp_path: Path) -> None:
    async with world(tmp_path / "data", make(tmp_path / "data")):
        assert gc.isenabled() and gc.get_threshold() == GARBAGE_THRESHOLDS
        lost = weakref.ref(Knot())
        kept = [[number] for number in range(GARBAGE_THRESHOLDS[0] + 1_000)]
        assert lost() is None and len(kept) == GARBAGE_THRESHOLDS[0] + 1_000
