"""Hints that another node may have written: a thread with a connection of its own, which nothing rests on.

A connection may be silent because nothing happens, or because nobody is there any more, or because a pool swallowed the
LISTEN. So the thread notifies itself, and begins anew when it does not hear itself.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from time import monotonic

import psycopg
from psycopg import sql

from gateway.errors import Busy, Fatal
from gateway.store.postgres_link import Link, Lost
from gateway.store.postgres_schema import ledger_of

PROBE_SECONDS = 5.0
SILENCE_SECONDS = 10.0
RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.5  # how long `stop` may have to wait
_log = logging.getLogger("tallystick.store")


def channel_of(ledger: int) -> str:
    """Return the channel on which the batches of a ledger are told."""
    return f"tallystick_{ledger}"


class Listener:
    """Calls `hint` in its own thread, until `stop`: at each notice of a session other than `own_pid`, and after each
    new connection."""

    def __init__(
        self, url: str, origin: str, hint: Callable[[], None], own_pid: Callable[[], int], *,
        probe: float = PROBE_SECONDS, silence: float = SILENCE_SECONDS,
    ) -> None:  # fmt: skip
        self._url, self._origin, self._hint = url, origin, hint
        self._own_pid = own_pid
        self._probe, self._silence = probe, silence
        self._is_stopping = threading.Event()
        self._own = f"tallystick_{secrets.token_hex(8)}"
        self.connections = 0
        self._thread = threading.Thread(target=self._run, name="tallystick-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns at once, for it may be waiting for a server that is away."""
        self._is_stopping.set()

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except (Busy, Fatal, psycopg.Error) as error:
                _log.info("hints of other nodes pause: %s", getattr(error, "text", error))
            except Exception:
                _log.exception("hints of other nodes pause")
            self._is_stopping.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        """Hear hints on one connection, until it is silent for too long."""
        link = Link(self._url)
        try:
            channel = channel_of(ledger_of(link, self._origin))
            for name in (channel, self._own):
                link.db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(name)))
            self.connections += 1
            self._hint()  # whatever was told while nobody listened
            self._hear(link.db, channel)
        finally:
            link.close()

    def _hear(self, db: psycopg.Connection[tuple[object, ...]], channel: str) -> None:
        heard = probed = monotonic()
        while not self._is_stopping.is_set():
            if monotonic() - heard > self._silence:
                raise Lost("nothing was heard, not even this node's own notices")
            if monotonic() - probed > self._probe:
                probed = monotonic()
                db.execute("SELECT pg_notify(%s, '')", (self._own,))
            for notice in db.notifies(timeout=_LOOK_SECONDS, stop_after=1):
                heard = monotonic()
                if notice.channel == channel and notice.pid != self._own_pid():
                    self._hint()
