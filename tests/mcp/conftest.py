"""The gateways that the scenes play in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.web.world import World, make, world


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[World]:
    """A gateway whose entries only members may read."""
    made = make(tmp_path / "data", is_public=False)
    async with world(tmp_path / "data", made) as found:
        yield found
