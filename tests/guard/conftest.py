"""One gateway for all scenes of a file, audited when they are over; each scene has a repository name of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard.world import World
from tests.system.process import Gateway

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    data = tmp_path_factory.mktemp("ledger") / "data"
    limits = ("--parameter", "ratePerSecond=10000", "--parameter", "rateBurst=10000", "--metrics-port", "0")
    with Gateway(data, *limits) as gateway:
        yield gateway
    gateway.verify_ledger(data.parent / "ledger.txt")


@pytest.fixture
def world(served: Gateway, tmp_path: Path) -> World:
    return World(served, tmp_path, f"app{next(_numbers)}")
