"""What tests with PostgreSQL are given. Others import these fixtures by name."""

from collections.abc import Iterator

import pytest

from tests.pg.server import Server, fresh_database, shared_server


@pytest.fixture
def server() -> Server:
    """The run's one server: for tests that don't harm it."""
    return shared_server()


@pytest.fixture
def database_url() -> Iterator[str]:
    """An empty database of the run's one server, by its URL."""
    with fresh_database() as url:
        yield url
