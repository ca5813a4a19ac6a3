"""Sends bytes to a witness, returns bytes: the one file of this folder that knows the network.

Nothing is followed or decoded: redirects are answers, proxies and cookies of the environment are ignored, and an answer
that is longer than its bound is cut off unread. Connections are kept open, as C2SP asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import aiohttp
from yarl import URL

ANSWER_BYTES_MAX = 65_536  # a note is at most so long; what add-checkpoint answers is shorter
RETRY_AFTER_S_MAX = 3_600


class Unanswered(Exception):
    """No answer that settles anything: perhaps another time, not before `retry_after_s`. The text says why."""

    def __init__(self, text: str, retry_after_s: int = 0) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it came. `retry_after_s` is what the header says, at most an hour; 0 without one."""

    status: int
    body: bytes
    retry_after_s: int = 0


class Web(Protocol):
    """What the client of witnesses needs of a network; tests bring one that lies."""

    async def ask(self, method: str, url: str, body: bytes | None, timeout_ms: int) -> Answer:
        """Return the answer to one request, or raise Unanswered when none came in time."""


class HttpWeb:
    """Keep-alive connections to a few witnesses; usable inside a running event loop only."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(keepalive_timeout=75),  # who asks has one request at a time for each
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
        )

    async def ask(self, method: str, url: str, body: bytes | None, timeout_ms: int) -> Answer:
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                data=body,
                headers={"accept-encoding": "identity"},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout_ms / 1_000),
            ) as response:
                content = await _bounded(response)
                return Answer(response.status, content, _retry_after_s(response.headers.get("Retry-After", "")))
        except TimeoutError as error:
            raise Unanswered(f"no answer within {timeout_ms} ms") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unanswered(f"{type(error).__name__}: {error}"[:200]) from error

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise Unanswered(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)


def _retry_after_s(text: str) -> int:
    return min(int(text), RETRY_AFTER_S_MAX) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
