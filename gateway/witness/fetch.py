"""Gets single files of a ledger over HTTP: bounded, timed, from one place, and never led elsewhere.

It runs in the thread of an audit, which has nothing else to do; so it needs no loop. Whatever is wrong is `Unfetched`:
what a stranger's server sends must end neither the thread nor the witness.
"""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from time import monotonic
from urllib.parse import urlsplit

WAIT_SECONDS = 10.0  # for a connection, and for each next part of an answer
FETCH_SECONDS = 60.0  # for one whole file; a full bundle has 16 MiB at most
_PART_BYTES = 65_536


class Unfetched(Exception):
    """The file did not come: perhaps another time. The text says why, in our words."""


class Files:
    """The files below an address. One connection is kept open; a broken one is opened again, once.

    Once `is_stopping` says so nothing more is fetched.
    """

    def __init__(self, url: str, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._parts = urlsplit(url)
        self._is_stopping = is_stopping
        self._connection: HTTPConnection | None = None

    def get(self, path: str, bytes_max: int) -> bytes | None:
        """Return the file at `path` below the address, None for 404. Unfetched: anything else."""
        return self._get(f"{self._parts.path.rstrip('/')}/{path}", bytes_max)

    def get_from_host(self, path: str, bytes_max: int) -> bytes | None:
        """Return the file at `path` below the host itself, as well-known files are."""
        return self._get(path, bytes_max)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _get(self, target: str, bytes_max: int) -> bytes | None:
        if self._is_stopping():
            raise Unfetched("the witness is stopping")
        until_s = monotonic() + FETCH_SECONDS
        is_kept = self._connection is not None
        try:
            try:
                response = self._ask(target)
            except (HTTPException, OSError):
                if not is_kept:
                    raise
                self.close()  # a kept connection may have been closed meanwhile
                response = self._ask(target)
            return _read(response, bytes_max, until_s)
        except (HTTPException, OSError, ValueError) as error:
            self.close()
            raise Unfetched(f"{target}: {type(error).__name__}") from error
        except Unfetched:
            self.close()
            raise

    def _ask(self, target: str) -> HTTPResponse:
        if self._connection is None:
            kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
            assert self._parts.hostname, "an address was looked at when it was read"
            self._connection = kind(self._parts.hostname, self._parts.port, timeout=WAIT_SECONDS)
        self._connection.request("GET", target, headers={"Accept-Encoding": "identity"})
        return self._connection.getresponse()


def _read(response: HTTPResponse, bytes_max: int, until_s: float) -> bytes | None:
    """Return the body. A redirect is not followed: a ledger's files are where its address says."""
    body = bytearray()
    while part := response.read1(_PART_BYTES):
        body += part
        if len(body) > bytes_max:
            raise Unfetched(f"an answer of status {response.status} is longer than {bytes_max} bytes")
        if monotonic() > until_s:
            raise Unfetched(f"an answer did not come whole within {FETCH_SECONDS:g} seconds")
    response.read()  # nothing is left; http.client takes the next request only after it has heard so
    if response.status == 404:
        return None
    if response.status != 200 or response.getheader("Content-Encoding", "identity") != "identity":
        raise Unfetched(f"status {response.status}, or an encoding that was not asked for")
    return bytes(body)
