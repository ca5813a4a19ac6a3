"""Sends bytes, returns bytes: the one file of the client that knows aiohttp.

Nothing is followed, guessed or decoded here. Redirects are not followed (a signature must not travel to another host),
proxies and cookies of the environment are ignored, and an answer longer than its bound is cut off unread.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import TracebackType

import aiohttp
from yarl import URL

from gateway.client.errors import Unreachable
from gateway.client.exchange import REPLY_BYTES_MAX, TOO_LONG, why
from gateway.client.exchange import Reply as Reply
from gateway.client.exchange import Transport as Transport


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
    """Return what a person may do something about, of the library's own errors too."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return why(ssl.SSLCertVerificationError())
    if isinstance(error, aiohttp.ClientSSLError):
        return why(ssl.SSLError())
    if isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientPayloadError):
        return "the connection broke"
    return why(error)


async def _reply(response: aiohttp.ClientResponse) -> Reply:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > REPLY_BYTES_MAX:
            raise Unreachable(TOO_LONG)
    return Reply(response.status, {name.lower(): value for name, value in response.headers.items()}, bytes(body))
