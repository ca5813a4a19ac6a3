"""One connection to PostgreSQL: how it is made, what its errors mean, and how a COMMIT ends.

A connection is direct or through a pool of sessions, to a server that can write. What a promise hangs on is set when it
begins (`OPTIONS`), and compared with what the server says it is (`postgres_fit.py`) before it is used for writing.

A COMMIT is never cancelled. It is clean when it returns COMMIT and the server said no WARNING meanwhile: a wait for the
stand-by that somebody cancelled ends with success and a WARNING. Everything else after it was sent is `Unknown`.
Source: docs/operating.md, PostgreSQL; https://www.postgresql.org/docs/current/runtime-config-wal.html.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from gateway.errors import Busy, Fatal, HeadMoved, Unfit, Unknown
from gateway.store.postgres_watch import Watched
from keys.files import KeyFileError, read_credential

CONNECT_SECONDS = 2
SILENCE_SECONDS = 5  # of the other machine, after which a connection counts as gone
COMMIT_SECONDS_MAX = 30.0  # that somebody who starts or makes something waits for a stand-by; a fail-over takes twenty
LOCK_MS = 1_500  # less than a node may be silent while it has the head, so that who waits is told so
RETRY_DISK_S = 5
APPLICATION = "tallystick"
PASSWORD_CREDENTIAL = "database.pass"
MIGRATE = "run `tallystick db migrate --store URL`"
# What libpq is told, whatever the URL says: only a server that can write, and a silent one is given up.
PINNED: dict[str, str | int] = {
    "application_name": APPLICATION,
    "target_session_attrs": "read-write",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENCE_SECONDS * 1_000,
}
# What the session is told. The server, too, gives up a silent node; one that stops in a transaction loses it.
OPTIONS: dict[str, str] = {
    "client_min_messages": "warning",
    "synchronous_commit": "on",
    "lock_timeout": f"{LOCK_MS}ms",
    "idle_in_transaction_session_timeout": "2s",
    "statement_timeout": "0",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": f"{SILENCE_SECONDS}s",
    "client_connection_check_interval": "1s",
}
BEGIN: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_BUSY = frozenset({"55P03", "40P01", "40001", "57014", "53200", "53300", "53400"})
_NO_SCHEMA = frozenset({"3F000", "42P01", "42883", "42703", "42804"})
_AWAY = ("08", "57")  # classes: connection, operator's intervention
_OTHER_SESSION = frozenset({"25006", "25P03", "26000"})  # one that can't write, or is not the one we prepared
_log = logging.getLogger("tallystick.store")


class Statement(NamedTuple):
    """One statement and its values; all are prepared but those that begin and end transactions."""

    query: LiteralString
    values: Sequence[Any] = ()
    is_prepared: bool = True


def plain(query: LiteralString) -> Statement:
    return Statement(query, (), False)


class Lost(Busy):
    """The connection is gone, or was never made; nothing of an unfinished transaction is left."""

    def __init__(self, text: str) -> None:
        super().__init__("store_unreachable")
        self.text = text


def parameters_of(url: str) -> dict[str, Any]:
    """Return what libpq is told for a store's URL. Fatal for one that is none, or that has a password in it."""
    try:
        asked = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise Fatal("the store's URL can't be read; it is like postgresql://USER@HOST:PORT/DATABASE") from None
    if asked.get("password") or asked.get("sslpassword"):
        raise Fatal(
            "the store's URL has a password in it, which would end up in files and logs; put it into libpq's passfile"
            " (PGPASSFILE, or ~/.pgpass), into PGPASSWORD, or into the systemd credential database.pass"
        )
    options = " ".join(f"-c {name}={value}" for name, value in OPTIONS.items())
    return {**asked, **PINNED, "options": f"{asked.get('options') or ''} {options}".strip()}


def password_of() -> dict[str, str]:
    """Return the password that systemd hands over, unless libpq is told of one. Fatal when that can't be used."""
    if "PGPASSWORD" in os.environ or "PGPASSFILE" in os.environ:
        return {}
    try:
        password = read_credential(PASSWORD_CREDENTIAL)
    except KeyFileError as error:
        raise Fatal(str(error)) from error
    return {} if password is None else {"password": password}


def place_of(url: str) -> str:
    """Return where a store's URL leads, for people: host, port and database."""
    asked = conninfo_to_dict(url)
    return f"{asked.get('host') or 'the local socket'}:{asked.get('port') or 5432}/{asked.get('dbname') or ''}"


class Link:
    """One open connection. Transactions are begun and ended by statements of ours. psycopg.Error never leaves here."""

    def __init__(self, url: str) -> None:
        """Connect. Fatal: the URL is none of ours. Lost: no server that can write was found."""
        parameters = parameters_of(url) | password_of()
        self._doubts: list[str] = []
        try:
            self._db = psycopg.connect(autocommit=True, **parameters)
            self.pid: int = self._db.execute("SELECT pg_backend_pid()").fetchall()[0][0]  # a pool tells libpq another
        except psycopg.Error as error:
            raise Lost(f"no PostgreSQL server that can write is reached: {str(error).strip()}") from error
        self._db.add_notice_handler(self._hear)
        self._watched = Watched(self._db, parameters, self.pid)

    def _hear(self, notice: psycopg.errors.Diagnostic) -> None:
        """Keep what the server warns of. Runs in the thread that waits for a statement's end; must not raise."""
        if notice.severity_nonlocalized == "WARNING":
            self._doubts.append(f"{notice.sqlstate} {notice.message_primary}")

    @property
    def db(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Return the connection itself, for who hears notices on it."""
        return self._db

    @property
    def is_closed(self) -> bool:
        return self._db.closed

    @property
    def is_in_transaction(self) -> bool:
        return self._db.info.transaction_status is not TransactionStatus.IDLE

    def rows(self, query: LiteralString, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self.run(Statement(query, values))[-1]

    def run(self, *statements: Statement) -> list[list[tuple[Any, ...]]]:
        """Run statements in one round trip and return the rows of each. After an error no transaction is left.

        Several go as one text: a pipeline of psycopg ends with a Flush, which stops the server's clock that ends a
        session that is idle in a transaction (observed with psycopg 3.3.9 and PostgreSQL 18.6).
        """
        try:
            with self._watched.call():
                return [_rows_of(self._execute(statements[0]))] if len(statements) == 1 else self._run_text(statements)
        except psycopg.Error as error:
            raise self._undone(error) from error

    def _run_text(self, statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
        values = [value for one in statements for value in one.values]
        cursor = psycopg.ClientCursor(self._db)
        cursor.execute(";".join(one.query for one in statements), values or None)
        found = [_rows_of(cursor)]
        while cursor.nextset():
            found.append(_rows_of(cursor))
        return found

    def _execute(self, one: Statement) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._db.execute(one.query, one.values or None, prepare=one.is_prepared, binary=True)

    def script(self, text: str) -> None:
        """Run several statements of ours that have no values, in the transaction that is open."""
        try:
            self._db.execute(text.encode())
        except psycopg.Error as error:
            raise self._undone(error) from error

    def commit(
        self,
        *statements: Statement,
        fault: Statement | None = None,
        hint: Statement | None = None,
        is_bounded: bool = False,
    ) -> list[list[tuple[Any, ...]]]:
        """Run statements and COMMIT in one round trip, and then the hint, whose fate does not matter; their rows.

        `fault` is asked right after COMMIT, and says why that may not be durable ("": it is). Unknown when COMMIT was
        sent and did not come back clean, with `is_bounded` soon. Any other error: nothing happened.
        """
        self._check_alive()
        self._doubts.clear()
        sent: list[psycopg.Cursor[tuple[Any, ...]]] = []
        try:
            with self._watched.call(COMMIT_SECONDS_MAX if is_bounded else None), self._db.pipeline():
                for one in (*statements, plain("COMMIT"), fault, hint):
                    if one is not None:
                        sent.append(self._execute(one))
        except psycopg.Error as error:
            if not self._has_committed(sent, len(statements)):
                raise self._lost_or_undone(error) from error
        if fault is not None:
            self._heed(sent[len(statements) + 1 :])
        if self._doubts:
            doubts = "; ".join(self._doubts)
            self.close()
            raise Unknown(f"COMMIT ended with: {doubts}")
        if not self._has_committed(sent, len(statements)):
            self.close()
            raise Unknown("COMMIT did not say how it ended")
        return [_rows_of(cursor) for cursor in sent[: len(statements)]]

    def _check_alive(self) -> None:
        """Lost when the server has already ended this connection: then a COMMIT need not be in doubt."""
        try:
            ready, _, _ = select.select([self._db.fileno()], [], [], 0)
            for _ in range(2 if ready else 0):  # the server's last words, and the end behind them
                self._db.pgconn.consume_input()
        except (psycopg.Error, OSError, ValueError) as error:
            self.close()
            raise Lost(f"the server ended the connection: {error}") from error

    def _heed(self, after: Sequence[psycopg.Cursor[tuple[Any, ...]]]) -> None:
        """Doubt a commit after which the server did not say that nothing is wrong."""
        try:
            said = after[0].fetchall()[0][0]
        except (IndexError, psycopg.Error):
            said = "the server did not say whether it is durable"
        if said:
            self._doubts.append(said)

    def _has_committed(self, sent: Sequence[psycopg.Cursor[tuple[Any, ...]]], at: int) -> bool:
        return len(sent) > at and sent[at].statusmessage == "COMMIT"

    def _lost_or_undone(self, error: psycopg.Error) -> Exception:
        """Tell what an error of a commit means. An error that leaves the session alive undid its transaction."""
        if self._doubts or self._db.broken or self._db.closed:
            self.close()
            if self._watched.is_given_up:
                return Unknown(f"COMMIT was not confirmed within {COMMIT_SECONDS_MAX:.0f} s")
            return Unknown(f"the connection was lost at COMMIT: {_text(error)} {'; '.join(self._doubts)}".strip())
        return self._undone(error)

    def _undone(self, error: psycopg.Error) -> Exception:
        """End the transaction after an error, and say in our words what the error means."""
        self.roll_back()
        told = meaning(error, is_lost=self._db.closed)
        if isinstance(told, Lost):
            self.close()
        return told

    def roll_back(self) -> None:
        """End the transaction, if there is one, without a write. Never raises; a connection that fails is closed."""
        try:
            if not self._db.closed and self.is_in_transaction:
                with self._watched.call():
                    self._db.execute("ROLLBACK")
        except psycopg.Error as error:
            _log.warning("a transaction could not be ended, so its connection is closed: %s", _text(error))
            self.close()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._db.close()


def _rows_of(cursor: psycopg.Cursor[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor.description else []


def _text(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip()


def meaning(error: psycopg.Error, *, is_lost: bool = False) -> Exception:
    """Return what an error means to a sequencer, when nothing of its transaction is left."""
    code, text = error.sqlstate or "", _text(error)
    if code == "TS001":
        return HeadMoved(text)
    if code == "TS002":
        return Unfit(text)
    if is_lost or (code[:2] in _AWAY and code != "57014") or code in _OTHER_SESSION:
        return Lost(text)
    if code in _BUSY:
        return Busy("store_busy")
    if code[:2] == "53":
        return Busy("disk_full", RETRY_DISK_S)
    if code[:2] == "58":
        return Busy("disk_failing", RETRY_DISK_S)
    if code in _NO_SCHEMA:
        return Fatal(f"the database has no ledgers of this version ({text}); {MIGRATE}")
    if code == "42501":
        return Unfit(f"{text}; give the role that connects what it needs (docs/operating.md), or the schema to it")
    return Fatal(f"the database is not as it must be: {text} ({code}); look at the server, restore a good back-up")
