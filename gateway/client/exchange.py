"""One exchange over HTTP, as the agent needs it of a network, and the way there that each process takes.

What a program keeps open for hours goes over aiohttp (transport.py). It takes longer to load than all the rest of the
client, so it is loaded where somebody connects with it, and a process that asks once and ends takes `plain.py`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

# The largest answer there is, that to a batch; what is parsed of it has bounds of its own.
REPLY_BYTES_MAX = 16_777_216
TOO_LONG = f"the answer is longer than {REPLY_BYTES_MAX} bytes; this is no Tallystick gateway"


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


Connect: TypeAlias = Callable[[str], Transport]


def pooled(url: str) -> Transport:
    """Return keep-alive connections to one gateway, for any number of tasks."""
    from gateway.client.transport import HttpTransport

    return HttpTransport(url)


def why(error: Exception) -> str:
    """Return what a person may do something about; the names and numbers inside a library help nobody."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted by this machine"
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS as asked"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()  # the resolver's
    return "it does not answer as an HTTP server does"
