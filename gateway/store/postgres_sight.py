"""A ledger in PostgreSQL opened as a start opens it, by somebody who won't write: for `tallystick db check`."""

from __future__ import annotations

from gateway.store.postgres import PostgresStore
from gateway.store.postgres_link import Link


class PostgresSight(PostgresStore):
    """A store whose `load` writes no barrier and asks nothing of the settings. Nothing but reads is called on it."""

    def _greet(self, link: Link) -> None:
        """What settings would break is told by the rest of the check."""

    def _announce(self, link: Link) -> None:
        """What is seen may not be replicated yet; who looks is told so by the next look."""
