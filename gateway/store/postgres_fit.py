"""Whether a PostgreSQL server would keep what our receipts say: asked on every new connection, and by `db check`.

The write path compares again, in the database, what can change under a session (`schema_postgres/0002.sql`).
Source: docs/operating.md, PostgreSQL; https://www.postgresql.org/docs/current/warm-standby.html.
"""

from __future__ import annotations

from typing import LiteralString, NamedTuple

from gateway.errors import Unfit
from gateway.store.postgres_link import Link, Statement

VERSION_MIN = 150_000
REPLICATED = "replicated"
RELOAD = "SELECT pg_reload_conf()"
_GREET: LiteralString = (
    "SELECT pg_backend_pid(), set_config('tallystick.link', %s, false),"
    " (SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout')"
)
_FACTS: LiteralString = """
SELECT pg_backend_pid(), coalesce(current_setting('tallystick.link', true), ''),
    current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(),
    current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('client_min_messages'), current_setting('synchronous_standby_names'),
    (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')),
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE'), current_user::text
"""


class Facts(NamedTuple):
    """What a server says of itself and of this session."""

    pid: int
    link: str
    version_number: int
    version: str
    is_in_recovery: bool
    synchronous_commit: str
    fsync: str
    full_page_writes: str
    client_min_messages: str
    standby_names: str
    standby_count: int
    may_see_standbys: bool
    role: str


class Finding(NamedTuple):
    """What is, what must be, and what changes it."""

    what: str
    found: str
    wanted: str
    change: str

    def __str__(self) -> str:
        return f"{self.what} is {self.found}, must be {self.wanted}: {self.change}"


def greet(link: Link, name: str, durability: str) -> Facts:
    """Give the session its name, and return what the server is. Unfit, with all findings, when it is not fit."""
    pid = link.run(Statement(_GREET, (name,), False))[0][0][0]
    facts = look(link)
    found = findings(facts, durability)
    if (facts.pid, facts.link) != (pid, name):
        found.insert(0, POOLED)
    if found:
        raise Unfit("; ".join(map(str, found)))
    return facts


def look(link: Link) -> Facts:
    """Ask for the facts, in a transaction of its own."""
    return Facts(*link.run(Statement(_FACTS, (), False))[0][0])


POOLED = Finding(
    "what lies between gateway and server", "a pool of transactions", "a pool of sessions, or nothing",
    "let the store's URL name the server itself, or set pool_mode = session",
)  # fmt: skip


def findings(facts: Facts, durability: str) -> list[Finding]:
    """Return everything that must be changed before this server is written with that durability."""
    found: list[Finding] = []
    if facts.version_number < VERSION_MIN:
        found.append(Finding("the server's version", facts.version, "15 or newer", "upgrade the server"))
    if facts.is_in_recovery:
        found.append(Finding("the server", "a stand-by", "the primary", "let the store's URL name all servers"))
    for name, value in (("fsync", facts.fsync), ("full_page_writes", facts.full_page_writes)):
        if value != "on":
            found.append(Finding(name, value, "on", f"ALTER SYSTEM SET {name} = on; {RELOAD}"))
    if facts.synchronous_commit != "on":
        change = "take it out of the URL's options, and out of what lies between"
        found.append(Finding("synchronous_commit", facts.synchronous_commit, "on", change))
    if facts.client_min_messages in {"error", "fatal", "panic"}:
        change = "take it out of the URL's options, and out of what lies between"
        found.append(Finding("client_min_messages", facts.client_min_messages, "warning or lower", change))
    return found + (_standby_findings(facts) if durability == REPLICATED else [])


def _standby_findings(facts: Facts) -> list[Finding]:
    """Return what hinders a commit from being on a second server when it returns."""
    names = facts.standby_names
    if not names or "*" in names:
        change = f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (NAME, NAME)'; {RELOAD}, or set Patroni's"
        change += " synchronous_mode and synchronous_mode_strict; or state the durability local"
        wanted = "the names of the stand-bys that may take over, without *"
        return [Finding("synchronous_standby_names", f'"{names}"', wanted, change)]
    if facts.standby_count:
        return []
    if not facts.may_see_standbys:
        change = f'GRANT pg_monitor TO "{facts.role}"'
        return [Finding("what this role sees of stand-bys", "nothing", "their state", change)]
    change = "start one of those that synchronous_standby_names names; until then no commit returns"
    return [Finding("the number of synchronous stand-bys", "0", "1 or more", change)]
