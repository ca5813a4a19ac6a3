"""What people and a node's side tasks ask of a ledger in PostgreSQL, beside deciding and reading entries.

Source: gateway/store/schema_postgres/0001.sql.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import LiteralString

from gateway.store.contract import SIGNATURE_BYTES
from gateway.store.postgres_link import BEGIN, Statement, plain
from gateway.store.postgres_reader import PostgresReader

_RECORDS: LiteralString = (
    "SELECT r.key, r.value FROM (SELECT %s::integer AS ledger) of"
    " CROSS JOIN unnest(%s::text[], %s::text[]) AS range (low, high) JOIN tallystick.record r"
    ' ON r.ledger = of.ledger AND r.key >= range.low COLLATE "C" AND r.key < range.high COLLATE "C" ORDER BY r.key'
)
_COUNTS: LiteralString = (
    "SELECT pg_database_size(current_database()), count(*), count(s.size), coalesce(sum(length(s.signatures)), 0)"
    " FROM tallystick.batch b LEFT JOIN tallystick.signed s USING (ledger, size) WHERE b.ledger = %s"
)
_NOW_MS: LiteralString = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_TAKE_DUTY: LiteralString = (
    f"INSERT INTO tallystick.duty AS d (ledger, name, holder, until_ms) VALUES (%s, %s, %s, {_NOW_MS} + %s)"
    " ON CONFLICT (ledger, name) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms"
    f" WHERE d.holder = excluded.holder OR d.until_ms <= {_NOW_MS} RETURNING holder"
)


class PostgresLedger(PostgresReader):
    """A reader that also knows records, figures and duties."""

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (key, value) of every record whose key begins with one of the prefixes, as of one moment."""
        ends = [prefix[:-1] + chr(ord(prefix[-1]) + 1) for prefix in prefixes]
        yield from self._rows(_RECORDS, (list(prefixes), ends))

    def counts(self) -> Mapping[str, int]:
        """Return figures of the ledger, and the size of the database that it lies in."""
        size, batches, signed, length = self._rows(_COUNTS, ())[0]
        return {
            "databaseBytes": size,
            "batches": batches,
            "batchesSigned": signed,
            "signatures": length // SIGNATURE_BYTES,
        }

    def take_duty(self, name: str, holder: str, ms: int) -> bool:
        """Take or keep a duty for `ms`, by the database's clock; False: another one has it. 0 gives it back.

        Nothing hangs on its being kept, so it waits for no stand-by.
        """
        with self._one_at_a_time:
            link = self._connected()
            taken = link.run(
                plain(BEGIN),
                plain("SET LOCAL synchronous_commit = off"),
                Statement(_TAKE_DUTY, (self._ledger, name, holder, ms)),
                plain("COMMIT"),
            )
        return bool(taken[2])
