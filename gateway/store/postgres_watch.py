"""Ends connections whose answers were lost, which TCP does not notice when something in between still says yes.

A thread looks at every call that lasts. When the server, asked on a new connection, has no session any more that works
for it, the answer was sent and lost: our end of the connection is shut, the call fails, and a COMMIT is `Unknown`. A
session at work, as one that waits for a stand-by, is waited for as long as who called said, else however long; it is
never cancelled. Nor is anything else ended while no server can be asked: then nobody knows more than we do. After a
fail-over the new primary is asked, which has no such session: so nobody waits for ever at an old one that lost its
stand-bys.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic

import psycopg

PATIENCE_SECONDS = 5.0  # of a call, before the server is asked; and between questions
LOOK_SECONDS = 1.0
_log = logging.getLogger("tallystick.store")


class Watched:
    """A connection, and since when a call on it waits for its answer."""

    def __init__(self, db: psycopg.Connection[tuple[object, ...]], parameters: dict[str, object], pid: int) -> None:
        self.parameters = parameters
        self.pid = pid
        self._db = db
        self._since: float | None = None
        self._until: float | None = None
        self.is_given_up = False  # because nobody waits for it any more
        self._asked = 0.0
        _watch.add(self)

    @contextmanager
    def call(self, seconds_max: float | None = None) -> Iterator[None]:
        """Mark a call that waits for its answer, for `seconds_max` at most or as long as its session is at work."""
        self._since = self._asked = monotonic()
        self._until = None if seconds_max is None else self._since + seconds_max
        try:
            yield
        finally:
            self._since = None

    def is_due(self) -> bool:
        """Say whether it is time to ask about the call that waits, if one does."""
        now = monotonic()
        if self._since is None or (now - self._asked < PATIENCE_SECONDS and not self._is_over()):
            return False
        self._asked = now
        return True

    def _is_over(self) -> bool:
        return self._until is not None and monotonic() >= self._until

    def look(self) -> None:
        """Ask the server about the session; shut our end when it has nothing to do for us, or nobody waits for it."""
        since = self._since
        is_over = self._is_over()
        is_lost = is_over or is_at_work(self.parameters, self.pid) is False
        if is_lost and since is not None and since == self._since:
            self.is_given_up = is_over
            _log.error("the answer of a database session was lost, or not waited for; its connection is given up")
            self._shut()

    def _shut(self) -> None:
        """Shut the socket under the call, which then fails. (To close it would be to free what the call still uses.)"""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._db.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)


def is_at_work(parameters: dict[str, object], pid: int) -> bool | None:
    """Say whether a session works on a statement of ours; None when no server can be asked."""
    try:
        with psycopg.connect(autocommit=True, **parameters) as db:  # type: ignore[arg-type]  # libpq's own words
            rows = db.execute("SELECT state = 'active' FROM pg_stat_activity WHERE pid = %s", (pid,)).fetchall()
    except psycopg.Error:
        return None
    return bool(rows and rows[0][0])


class _Watch:
    """The one thread that looks, begun with the first connection."""

    def __init__(self) -> None:
        self._watched: weakref.WeakSet[Watched] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, watched: Watched) -> None:
        with self._lock:
            self._watched.add(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tallystick-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_SECONDS):
            with self._lock:
                due = [one for one in self._watched if one.is_due()]
            for one in due:
                try:
                    one.look()
                except Exception:
                    _log.exception("a connection could not be looked at")


_watch = _Watch()
