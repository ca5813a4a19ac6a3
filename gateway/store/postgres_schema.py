"""The schema in PostgreSQL: its version, its migrations, and which ledgers it holds.

Migrations are the numbered files of `schema_postgres/`, each applied once, all in one transaction. Only `tallystick db
migrate` and `tallystick init` do it; a gateway never changes a schema by itself.
"""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import NamedTuple, cast

from gateway.errors import Fatal, StartError, Unknown
from gateway.store.postgres_fit import greet
from gateway.store.postgres_link import BEGIN, MIGRATE, Link, Statement, plain

_MIGRATION_LOCK = 7_221_873  # any number: who migrates waits for whoever migrates already
_MAKE = (
    "CREATE SCHEMA IF NOT EXISTS tallystick",
    "CREATE TABLE IF NOT EXISTS tallystick.schema_version (number integer NOT NULL)",
    "CREATE UNIQUE INDEX IF NOT EXISTS schema_version_one ON tallystick.schema_version ((true))",
    "INSERT INTO tallystick.schema_version SELECT 0 WHERE NOT EXISTS (SELECT FROM tallystick.schema_version)",
)


class Ledger(NamedTuple):
    """A ledger of the database. `genesis` is None before its entry 0."""

    number: int
    origin: str
    genesis: bytes | None
    size: int
    epoch: int
    manner: str


class Node(NamedTuple):
    """A node that serves or served a ledger: its manner and version, and seconds since its start and its last word."""

    name: str
    manner: str
    version: str
    age_s: int
    silence_s: int


def scripts() -> list[str]:
    """Return the migrations, oldest first."""
    folder = files("gateway.store").joinpath("schema_postgres")
    found = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [file.read_text("utf-8") for file in found]


def version_of(link: Link) -> int | None:
    """Return the schema's version; None where there is no schema."""
    if link.rows("SELECT to_regclass('tallystick.schema_version') IS NOT NULL")[0][0]:
        return cast(int, link.rows("SELECT number FROM tallystick.schema_version")[0][0])
    return None


def check_version(link: Link) -> None:
    """Fatal when the schema is not the one this gateway knows."""
    found, known = version_of(link), len(scripts())
    if found is None:
        raise Fatal(f"the database holds no ledgers yet; {MIGRATE}")
    if found < known:
        raise Fatal(f"the database's schema is version {found}, this gateway needs {known}; {MIGRATE}")
    if found > known:
        raise Fatal(f"the database's schema is version {found}, this gateway knows {known}; update the gateway")


def migrate(link: Link) -> tuple[int, int]:
    """Bring the schema up to date and return its version before and after. Does nothing when it is."""
    known = scripts()
    link.run(plain(BEGIN))
    link.run(Statement("SELECT pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,), False))
    for statement in _MAKE:
        link.run(plain(statement))
    before: int = link.rows("SELECT number FROM tallystick.schema_version FOR UPDATE")[0][0]
    if before > len(known):
        link.roll_back()
        raise Fatal(f"the database's schema is version {before}, this program knows {len(known)}; update it")
    for script in known[before:]:
        link.script(script)
    link.run(Statement("UPDATE tallystick.schema_version SET number = %s", (len(known),), False))
    _commit(link)
    return before, len(known)


def ledger_of(link: Link, origin: str) -> int:
    """Return the number of a ledger in this database. Fatal when it is not there."""
    rows = link.rows("SELECT id FROM tallystick.ledger WHERE origin = %s", (origin,))
    if not rows:
        raise Fatal(f"the database holds no ledger {origin}; `tallystick init --store URL` makes one")
    return cast(int, rows[0][0])


def ledgers_of(link: Link) -> list[Ledger]:
    """Return the ledgers of the database, by name."""
    rows = link.rows(
        "SELECT id, origin, genesis, size, epoch, manner FROM tallystick.ledger JOIN tallystick.head ON ledger = id"
        " ORDER BY origin"
    )
    return [Ledger(*row) for row in rows]


def nodes_of(link: Link, ledger: int) -> list[Node]:
    """Return the nodes of a ledger, the one that wrote last first."""
    rows = link.rows(
        "SELECT node, manner, version, (now.ms - started_ms) / 1000, (now.ms - seen_ms) / 1000 FROM tallystick.node,"
        " (SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now (ms)"
        " WHERE ledger = %s ORDER BY seen_ms DESC",
        (ledger,),
    )
    return [Node(*row) for row in rows]


def create(url: str, origin: str, durability: str | None = None) -> None:
    """Make room for a ledger, and the schema if there is none. Fatal: there is such a ledger. Busy: server away.

    With a `durability` that the server would not keep: Unfit, and nothing was made.
    """
    link = Link(url)
    try:
        if durability is not None:
            greet(link, secrets.token_hex(8), durability)
        if version_of(link) is None:
            migrate(link)
        check_version(link)
        add_ledger(link, origin)
    finally:
        link.close()


def add_ledger(link: Link, origin: str) -> None:
    """Make room for a ledger. Fatal when there is one of that name; one without an entry 0 is taken as it is."""
    link.run(plain(BEGIN))
    link.run(Statement("INSERT INTO tallystick.ledger (origin) VALUES (%s) ON CONFLICT DO NOTHING", (origin,), False))
    link.run(
        plain("INSERT INTO tallystick.head (ledger) SELECT id FROM tallystick.ledger ON CONFLICT DO NOTHING"),
    )
    size = link.rows(
        "SELECT size FROM tallystick.ledger JOIN tallystick.head ON ledger = id WHERE origin = %s", (origin,)
    )
    if size[0][0]:
        link.roll_back()
        raise Fatal(f"the database holds a ledger {origin} already; choose another origin or another database")
    _commit(link)


def _commit(link: Link) -> None:
    """Commit what does no harm when it is done twice. StartError when nobody knows whether it was kept."""
    try:
        link.commit(is_bounded=True)
    except Unknown as unknown:
        raise StartError(
            f"whether the database kept what was made there could not be found out ({unknown}); run this again"
        ) from unknown
