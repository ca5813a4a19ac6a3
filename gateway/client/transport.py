"""Sends bytes, returns bytes: the one file of the client that knows aiohttp.

Nothing is followed, guessed or decoded here. Redirects are not followed (a signature must not travel to another host),
proxies and cookies of the environment are ignored, and an answer longer than its bound is cut off unread.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import aiohttp
from yarl import URL

from gateway.client.errors import Unreachable

# The largest answer there is, that to a batch; what is parsed of it has bounds of its own.
REPLY_BYTES_MAX = 16_777_216


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer as it came: header names in lower case, nothing of it trusted."""

    status: int
    headers: Mapping[str, str]
    unverified_body: bytes


class Transport(Protocol):
    """What the agent needs of a network; tests bring one that loses, delays and forges."""

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        """Send one request to `target` (path with query); Unreachable when no whole answer came in time.

        Unreachable says nothing about what the gateway did with the request.
        """

    async def close(self) -> None:
        """Close all connections."""


class HttpTransport:
    """Keep-alive connections to one gateway; usable inside a running event loop only."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
        )

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=max(timeout_ms, 1) / 1000)
        try:
            async with self._session.request(
                method,
                URL(self._url + target, encoded=True),
                headers={**headers, "accept-encoding": "identity"},
                data=body,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                return await _reply(response)
        except TimeoutError as error:
            raise Unreachable(f"{self._url} gave no answer within {timeout_ms} ms") from error
        except (aiohttp.ClientError, OSError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            is_refused = isinstance(cause, ConnectionRefusedError)
            is_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError)
            text = f"{self._url} can't be reached: {_why(cause)}"
            raise Unreachable(text, is_refused=is_refused, is_unknown=is_sent) from error

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> HttpTransport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _why(error: Exception) -> str:
    """Return what a person may do something about; the names and numbers inside a library help nobody."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return "its certificate is not trusted by this machine"
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return "it does not speak TLS as asked"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()  # the resolver's
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "the connection broke"
    return "it does not answer as an HTTP server does"


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > REPLY_BYTES_MAX:
            raise Unreachable(f"the answer is longer than {REPLY_BYTES_MAX} bytes; this is no Tallystick gateway")
    return Reply(response.status, {name.lower(): value for name, value in response.headers.items()}, bytes(body))
