"""Sends bytes, returns bytes, with the standard library alone: for a process that asks once or twice and ends.

The same promises as transport.py: nothing is followed, guessed or decoded, proxies of the environment are ignored. It
blocks while it waits, so nothing else may be at work on its event loop: no heartbeats, no second task.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection, IncompleteRead, RemoteDisconnected
from time import monotonic
from urllib.parse import urlsplit

from gateway.client.errors import Unreachable
from gateway.client.exchange import REPLY_BYTES_MAX, TOO_LONG, Reply, why

PIECE_BYTES = 65_536


class PlainTransport:
    """One connection to one gateway, kept while it lasts."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        parts = urlsplit(self._url)
        assert parts.hostname is not None, "a profile has an address with a host"
        self._path = parts.path
        self._connection = (
            HTTPSConnection(parts.hostname, parts.port, context=ssl.create_default_context())
            if parts.scheme == "https"
            else HTTPConnection(parts.hostname, parts.port)
        )

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        connection, until_s = self._connection, monotonic() + max(timeout_ms, 1) / 1000
        is_sent = False
        try:
            if connection.sock is None:
                connection.timeout = until_s - monotonic()
                connection.connect()
            is_sent = True
            self._allow(until_s)
            connection.request(method, self._path + target, body, dict(headers))
            return self._reply(until_s)
        except TimeoutError as error:
            connection.close()
            raise Unreachable(f"{self._url} gave no answer within {timeout_ms} ms", is_unknown=is_sent) from error
        except (OSError, HTTPException) as error:
            connection.close()
            text = f"{self._url} can't be reached: {_why(error)}"
            raise Unreachable(text, is_refused=isinstance(error, ConnectionRefusedError), is_unknown=is_sent) from error

    async def close(self) -> None:
        self._connection.close()

    def _reply(self, until_s: float) -> Reply:
        response = self._connection.getresponse()
        body = bytearray()
        while piece := response.read1(PIECE_BYTES):
            body += piece
            if len(body) > REPLY_BYTES_MAX:
                self._connection.close()
                raise Unreachable(TOO_LONG)
            self._allow(until_s)
        if response.length:
            raise IncompleteRead(bytes(body), response.length)
        response.close()  # the connection is kept
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, bytes(body))

    def _allow(self, until_s: float) -> None:
        """Let the next step on the socket take what is left; TimeoutError when that is nothing."""
        left_s = until_s - monotonic()
        if left_s <= 0:
            raise TimeoutError
        if self._connection.sock is not None:
            self._connection.sock.settimeout(left_s)


def _why(error: Exception) -> str:
    return "the connection broke" if isinstance(error, RemoteDisconnected | IncompleteRead) else why(error)
