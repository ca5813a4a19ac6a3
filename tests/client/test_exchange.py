"""Both ways to a gateway keep the same promises: aiohttp for what stays, the standard library for what asks once."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from gateway.client import plain, transport
from gateway.client.errors import Unreachable
from gateway.client.exchange import Connect, Reply, pooled
from gateway.client.plain import PlainTransport

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Two-Words: Yes\r\n\r\nok"
BODY = b"{}"
Script = Callable[[socket.socket], object]


@pytest.fixture(params=[pooled, PlainTransport])
def connect(request: pytest.FixtureRequest) -> Connect:
    found: Connect = request.param
    return found


class Listener:
    """A server in a thread of its own, for a transport may block its loop. `heard` has one text a request."""

    def __init__(self, script: Script, context: ssl.SSLContext | None) -> None:
        self.heard: list[str] = []
        self.connections = 0
        self._script, self._context = script, context
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                self.connections += 1
                with suppress(OSError), accepted:
                    taken = self._context.wrap_socket(accepted, server_side=True) if self._context else accepted
                    taken.settimeout(5)
                    while self._listen(taken) and self._script(taken):
                        pass

    def _listen(self, taken: socket.socket) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = taken.recv(1)
            if not piece:
                return False
            head += piece
        self.heard.append((head + taken.recv(len(BODY) if head.startswith(b"POST") else 0)).decode())
        return True

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(30)


@contextmanager
def listening(script: Script, context: ssl.SSLContext | None = None) -> Iterator[Listener]:
    with closing(Listener(script, context)) as listener:
        yield listener


def saying(answer: bytes, *, is_last: bool = False) -> Script:
    def say(taken: socket.socket) -> bool:
        taken.sendall(answer)
        return not is_last

    return say


async def sent(connect: Connect, url: str, *, count: int = 1, timeout_ms: int = 30_000) -> Reply:
    way = connect(url)
    try:
        for _ in range(count):
            reply = await way.send("POST", "/a/b?c=d", {"host": "gateway.example", "x-mine": "1"}, BODY, timeout_ms)
        return reply
    finally:
        await way.close()


async def failed(connect: Connect, url: str, *, timeout_ms: int = 30_000) -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        await sent(connect, url, timeout_ms=timeout_ms)
    return caught.value


async def test_what_is_sent_and_what_comes(connect: Connect) -> None:
    with listening(saying(OK)) as listener:
        reply = await sent(connect, f"http://{listener.host}/", count=2)
    assert (reply.status, reply.unverified_body, reply.headers["x-two-words"]) == (200, b"ok", "Yes")
    assert (len(listener.heard), listener.connections) == (2, 1), "one connection serves both"
    head, _, body = listener.heard[0].lower().partition("\r\n\r\n")
    lines = head.split("\r\n")
    assert (lines[0], body) == ("post /a/b?c=d http/1.1", "{}")
    assert {"host: gateway.example", "x-mine: 1", "accept-encoding: identity", "content-length: 2"} <= set(lines)
    assert sum(line.startswith(("host:", "accept-encoding:")) for line in lines) == 2, "each once"


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302, b""),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
        (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbus\r\n1\r\ny\r\n0\r\n\r\n", 503, b"busy"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end", 200, b"to the end"),
    ],
    ids=["redirect", "encoded", "chunked", "closed"],
)
async def test_nothing_is_followed_or_decoded(connect: Connect, answer: bytes, status: int, body: bytes) -> None:
    with listening(saying(answer, is_last=b"close" in answer)) as listener:
        reply = await sent(connect, f"http://{listener.host}")
    assert (reply.status, reply.unverified_body) == (status, body)


async def test_a_proxy_of_the_environment_is_ignored(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with listening(saying(OK)) as listener:
        assert (await sent(connect, f"http://{listener.host}")).status == 200


async def test_who_hung_up_is_called_again(connect: Connect) -> None:
    with listening(saying(OK.replace(b"\r\n", b"\r\nConnection: close\r\n", 1), is_last=True)) as listener:
        assert (await sent(connect, f"http://{listener.host}", count=2)).status == 200
    assert listener.connections == 2


async def test_where_nobody_listens_nothing_was_sent(connect: Connect) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    error = await failed(connect, f"http://127.0.0.1:{port}")
    assert (error.is_refused, error.is_unknown) == (True, False)
    assert "can't be reached: connection refused" in str(error)


BROKEN = [
    (b"", "the connection broke"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "the connection broke"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok", "the connection broke"),
    (b"220 mail.example ESMTP\r\n\r\n", "it does not answer as an HTTP server does"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 4097\r\n\r\n" + b"x" * 4_097, "longer than"),
]


@pytest.mark.parametrize(("answer", "words"), BROKEN, ids=["none", "cut", "cut-chunk", "other", "long"])
async def test_half_an_answer_is_none(
    connect: Connect, answer: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been decided, so whoever asked asks again under the same key."""
    for module in (plain, transport):
        monkeypatch.setattr(module, "REPLY_BYTES_MAX", 4_096)
    with listening(saying(answer, is_last=True)) as listener:
        error = await failed(connect, f"http://{listener.host}")
    assert words in str(error)
    assert (error.is_refused, error.is_unknown) == (False, True)


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"])
async def test_silence_ends_by_its_time(connect: Connect, begun: bytes) -> None:
    with listening(saying(begun)) as listener:
        error = await failed(connect, f"http://{listener.host}", timeout_ms=300)
    assert "gave no answer within 300 ms" in str(error)
    assert error.is_unknown


async def test_each_request_has_its_own_time(connect: Connect) -> None:
    """Also on a connection that was made with more patience; whoever listens hangs up after a while himself."""
    answers = iter((OK, b""))
    with listening(lambda taken: saying(next(answers))(taken)) as listener:
        way = connect(f"http://{listener.host}")
        assert (await way.send("GET", "/", {}, None, 30_000)).status == 200
        with pytest.raises(Unreachable, match="gave no answer within 300 ms"):
            await way.send("GET", "/", {}, None, 300)
        await way.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused_before_anything_is_sent(
    connect: Connect, tmp_path: Path
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path))
    with listening(saying(OK), context) as listener:
        error = await failed(connect, f"https://{listener.host}")
    assert "its certificate is not trusted by this machine" in str(error)
    assert (listener.heard, error.is_unknown) == ([], False)


def _certificate(folder: Path) -> Path:
    key, now = Ed25519PrivateKey.generate(), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now).not_valid_after(now + timedelta(days=1))
    path = folder / "server.pem"
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem + made.sign(key, None).public_bytes(Encoding.PEM))
    return path
