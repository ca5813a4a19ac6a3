"""The witness's door: statuses, bounds, deadlines, and what one client can't do to another."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession

from gateway.witness import limits as witness_limits
from gateway.witness.limits import Buckets
from gateway.witness.server import Limits, running
from gateway.witness.shelf import origin_hash
from gateway.witness.submission import BODY_BYTES_MAX
from tests.witness.logbook import ORIGIN, Log, Post

LOG, OTHER = Log(), Log("other", fork=5)
ADD = "/add-checkpoint"
NO_LIMIT = Limits(requests_per_second=0)


@asynccontextmanager
async def door(folder: Path, limits: Limits = NO_LIMIT) -> AsyncIterator[tuple[Post, ClientSession]]:
    post = Post(folder, LOG)
    async with running(post.witness, post.shelf, limits, "127.0.0.1", 0) as (url, _), ClientSession(url) as session:
        yield post, session
    post.shelf.close()


async def post_body(session: ClientSession, body: bytes) -> tuple[int, str, str]:
    async with session.post(ADD, data=body) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_a_log_is_cosigned_monitored_and_told_where_it_stands(tmp_path: Path) -> None:
    async with door(tmp_path) as (post, session):
        monitored = f"/{origin_hash(ORIGIN)}/checkpoint"
        async with session.get(monitored) as answer:
            assert answer.status == 404
        status, kind, text = await post_body(session, LOG.request(0, 10))
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        assert text.startswith("— witness.example/t1 ")
        assert await post_body(session, LOG.request(0, 20)) == (409, "text/x.tlog.size", "10\n")
        async with session.get(monitored) as answer:
            assert await answer.read() == post.witness.newest(origin_hash(ORIGIN))
            assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", ADD, 405),
        ("POST", f"/{origin_hash(ORIGIN)}/checkpoint", 405),
        ("GET", "/", 404),
        ("POST", "/add-checkpoint/", 404),
        ("GET", f"/{origin_hash(ORIGIN).upper()}/checkpoint", 404),
        ("GET", f"/../{origin_hash(ORIGIN)}/checkpoint/", 404),
    ],
)
async def test_there_are_two_routes_and_no_others(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with door(tmp_path) as (_, session), session.request(method, path) as answer:
        assert answer.status == status
        assert ("Allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"old x\n\n"),
        (403, Log(seed=9).request(0, 3)),
        (404, Log(origin="log.example/b").request(0, 3)),
        (409, LOG.request(3, 10)),
        (413, b"old 0\n" + b"A" * BODY_BYTES_MAX),
        (422, OTHER.request(10, 20)),
    ],
)
async def test_each_status_of_the_rules_reaches_the_client(tmp_path: Path, status: int, body: bytes) -> None:
    async with door(tmp_path) as (_, session):
        await post_body(session, LOG.request(0, 10))
        assert (await post_body(session, body))[0] == status


async def test_a_body_without_a_length_is_bounded_as_it_comes(tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b"old 0\n"
        while True:
            yield b"A" * 4_096

    async with door(tmp_path) as (_, session), session.post(ADD, data=endless()) as answer:
        assert (answer.status, answer.headers["Connection"]) == (413, "close")


async def test_a_compressed_body_is_not_opened(tmp_path: Path) -> None:
    async with door(tmp_path) as (_, session):
        headers = {"Content-Encoding": "gzip"}
        async with session.post(ADD, data=b"\x1f\x8b" + b"\0" * 100, headers=headers) as answer:
            assert answer.status == 400


async def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with door(tmp_path, Limits(requests_per_second=0.01)) as (_, session):
        answers = [await post_body(session, b"old x\n\n") for _ in range(101)]
        assert [status for status, _, _ in answers] == [400] * 100 + [429]
        async with session.post(ADD, data=b"") as answer:
            assert 0 < int(answer.headers["Retry-After"]) <= 100


def test_a_bucket_fills_with_time_and_a_crowd_of_addresses_is_forgotten() -> None:
    now = 0.0
    buckets = Buckets(rate_per_s=2, burst=2, clock=lambda: now)
    assert [buckets.wait_s("a") for _ in range(3)] == [0, 0, 0.5]
    now = 0.5
    assert [buckets.wait_s("a") for _ in range(2)] == [0, 0.5]
    for number in range(10_000):
        buckets.wait_s(str(number))
    assert len(buckets._levels) == witness_limits.ADDRESSES_MAX


async def raw(session: ClientSession) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert session._base_url is not None
    return await asyncio.open_connection(session._base_url.host, session._base_url.port)


async def test_a_connection_that_says_nothing_or_never_ends_its_head_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness_limits, "HEAD_SECONDS", 0.1)
    async with door(tmp_path) as (_, session):
        silent, half = await raw(session), await raw(session)
        half[1].write(b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\n")
        for reader, writer in (silent, half):
            assert await _ends(reader)
            writer.close()


async def test_a_body_that_trickles_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_limits, "BODY_SECONDS", 0.1)
    async with door(tmp_path) as (_, session):
        reader, writer = await raw(session)
        writer.write(b"POST /add-checkpoint HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nold")
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"Connection: close" in head
        writer.close()


async def test_a_connection_that_has_spoken_may_rest_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness_limits, "HEAD_SECONDS", 0.1)
    async with door(tmp_path) as (_, session):
        reader, writer = await raw(session)
        silent = await raw(session)
        for _ in range(2):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 404 ")
            await reader.readexactly(len("there is nothing here\n"))
            assert await _ends(silent[0]), "by now the time of a first head is over"
        writer.close()
        silent[1].close()


async def test_connections_are_capped_and_those_inside_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness_limits, "HEAD_SECONDS", 1_000.0)
    async with door(tmp_path, Limits(connections_max=2, requests_per_second=0)) as (_, session):
        assert (await post_body(session, LOG.request(0, 10)))[0] == 200
        inside, outside = await raw(session), await raw(session)
        assert await asyncio.wait_for(_ends(outside[0]), 10)
        assert (await post_body(session, LOG.request(10, 20)))[0] == 200
        for _, writer in (inside, outside):
            writer.close()


async def _ends(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes, politely or not."""
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


async def test_requests_at_the_same_time_have_one_winner(tmp_path: Path) -> None:
    async with door(tmp_path) as (_, session):
        await post_body(session, LOG.request(0, 5))
        bodies = [log.request(5, size) for log in (LOG, OTHER) for size in range(6, 16)]
        statuses = [status for status, _, _ in await asyncio.gather(*(post_body(session, body) for body in bodies))]
        assert sorted(statuses) == [200, *[409] * 19]


async def test_a_disk_that_fails_is_503_and_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(tmp_path, LOG)
    async with (
        running(post.witness, post.shelf, NO_LIMIT, "127.0.0.1", 0) as (url, failed),
        ClientSession(url) as session,
    ):
        assert (await post_body(session, LOG.request(0, 10)))[0] == 200
        assert not failed.is_set()

        def fail(*_: object) -> None:
            raise OSError("the disk is broken")

        monkeypatch.setattr(os, "replace", fail)
        assert (await post_body(session, LOG.request(10, 20)))[0] == 503
        await asyncio.wait_for(failed.wait(), 10)
    post.shelf.close()


async def test_a_line_of_log_names_status_and_code_and_repeats_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with door(tmp_path) as (_, session):
        await post_body(session, LOG.request(0, 10))
        async with session.get("/s3cret?a=s3cret"):
            pass
    lines = [vars(record)["fields"] for record in caplog.records if record.name == "tallystick.access"]
    assert [(line["method"], line["path"], line["status"], line["code"]) for line in lines] == [
        ("POST", ADD, 200, "cosigned"),
        ("GET", "other", 404, "no_such_path"),
    ]
    assert "s3cret" not in str(lines)
