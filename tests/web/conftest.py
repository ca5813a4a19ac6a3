"""The gateways that the scenes of the door play in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.world import World, make, world


@pytest.fixture
async def public(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway with a public ledger and one operator."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as found:
        yield found


@pytest.fixture
async def members(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway whose entries only members may read."""
    made = make(tmp_path / "data", is_public=False)
    async with world(tmp_path / "data", made) as found:
        yield found


@pytest.fixture
async def dev(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway with throw-away keys."""
    made = make(tmp_path / "data", is_dev=True)
    async with world(tmp_path / "data", made) as found:
        yield found
