"""Hints that another node may have written: a thread with a connection of its own, which nothing rests on.

A connection may be silent because nothing happens, or because nobody is there any more, or because a pool swallowed the
LISTEN. So the thread notifies itself, and begins anew when it does not hear itself.
"""

from __future__ import annotations

import logging
import secrets
import select
import socket
import threading
from collections.abc import Callable
from time import monotonic

import psycopg
from psycopg.pq.abc import PGconn

from gateway.errors import Busy, Fatal
from gateway.store.postgres_link import Link, Lost
from gateway.store.postgres_schema import ledger_of

PROBE_SECONDS = 5.0
SILENCE_SECONDS = 10.0
RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_END_SECONDS = 0.15  # how long `stop` waits for the thread
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
        self._end, self._ended = socket.socketpair()
        self._own = f"tallystick_{secrets.token_hex(8)}"
        self.connections = 0
        self._thread = threading.Thread(target=self._run, name="tallystick-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, so that none is inside libpq when the process ends; one that waits for a server is left."""
        self._is_stopping.set()
        self._end.close()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except (Busy, Fatal, psycopg.Error) as error:
                _log.info("hints of other nodes pause: %s", getattr(error, "text", error))
            except Exception:
                _log.exception("hints of other nodes pause")
            self._is_stopping.wait(RETRY_SECONDS)
        self._ended.close()

    def _listen(self) -> None:
        """Hear hints on one connection, until it is silent for too long."""
        link = Link(self._url)
        try:
            channel = channel_of(ledger_of(link, self._origin))
            for name in (channel, self._own):
                link.script(f'LISTEN "{name}"')
            self.connections += 1
            self._hint()  # whatever was told while nobody listened
            self._hear(link.db.pgconn, channel)
        finally:
            link.close()

    def _hear(self, wire: PGconn, channel: str) -> None:
        """Wait for notices and send probes, never for an answer: on a half-open connection there is none."""
        heard = monotonic()
        probed = 0.0
        is_answered = True
        while not self._is_stopping.is_set():
            if monotonic() - heard > self._silence:
                raise Lost("nothing was heard, not even this node's own notices")
            if is_answered and monotonic() - probed > self._probe:
                wire.send_query(f'NOTIFY "{self._own}"'.encode())
                probed, is_answered = monotonic(), False
            select.select([wire.socket, self._ended.fileno()], [], [], _LOOK_SECONDS)
            wire.consume_input()
            while not is_answered and not wire.is_busy():
                is_answered = wire.get_result() is None
            while (notice := wire.notifies()) is not None:
                heard = monotonic()
                if notice.relname == channel.encode() and notice.be_pid != self._own_pid():
                    self._hint()
