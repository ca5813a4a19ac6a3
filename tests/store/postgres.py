"""PostgreSQL as an engine of the exercises: one ledger in a database of the test's own."""

from __future__ import annotations

import psycopg

from gateway.store.postgres import PostgresStore, create
from gateway.store.postgres_reader import PostgresReader
from tests.pg.server import shared_server

ORIGIN = "gateway.example/exercise"
MANNER = "local none"


class Postgres:
    """`url` is an empty database; the ledger is made at once. `victim` ends or cancels sessions as an operator can."""

    is_shared = True

    def __init__(self, url: str, origin: str = ORIGIN) -> None:
        self.url, self.origin = url, origin
        create(url, origin)

    def store(self, *, durability: str = "local", manner: str = MANNER, node: str = "") -> PostgresStore:
        return PostgresStore(self.url, self.origin, durability=durability, manner=manner, node=node)

    def open(self) -> PostgresStore:
        store = self.store()
        store.load()
        return store

    def read(self) -> PostgresReader:
        return PostgresReader(self.url, self.origin)

    def sql(self, query: str, *values: object) -> list[tuple[object, ...]]:
        """Run one statement in a session of its own, as the role that owns the schema."""
        with psycopg.connect(self.url, autocommit=True) as db:
            cursor = db.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []


def pid_of(store: PostgresStore) -> int:
    assert store._link is not None
    return store._link.pid


def terminate(store: PostgresStore) -> None:
    """End the store's session, and wait until it has gone."""
    assert shared_server().sql("select pg_terminate_backend(%s, 5000)", pid_of(store)) == [(True,)]


__all__ = ["MANNER", "ORIGIN", "Postgres", "pid_of", "terminate"]
