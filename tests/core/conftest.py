"""Each scene of a crew ends with the auditor, whose rules share nothing with the core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.core.crew import Crew


@pytest.fixture(autouse=True)
def _audited() -> Iterator[None]:
    Crew.made.clear()
    yield
    for one in Crew.made:
        assert one.audited() == []
