"""What all processes of one test run share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tallies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "sim-tallies"
    folder.mkdir(exist_ok=True)
    return folder
