"""Start and stop: nothing listens before decisions can be made, and stopping loses nothing that was asked."""

import asyncio
import contextlib
import os
import socket
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.actions import Action
from gateway.app import running
from gateway.config import Settings
from gateway.core.intake import SignedRequest
from gateway.errors import Busy, Fatal, StartError, StoreOwned
from gateway.ledger.history import Answer
from gateway.store.contract import StoredBatch, StoredHead
from gateway.store.sqlite import Reader, SqliteStore
from gateway.stores import open_reader
from gateway.web.limits import Deadlines
from keys.files import KeyFileError
from tests.web.test_problems import check_problem
from tests.web.world import Message, Reply, World, make, parse_reply, world

SETTINGS = Settings(listen_port=0, metrics_port=0)


async def test_every_request_under_way_when_the_gateway_stops_is_answered_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 18."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        key = await place.agent("a")
        all_submitted = count_submits(place, monkeypatch, 20)
        messages = [
            place.signed(key, "lease.acquire", resource=f"lock:{n}", idempotency_key=f"k{n}") for n in range(20)
        ]
        connections = [await send_only(place, message) for message in messages]
        await all_submitted.wait()
        agents = place.agents
    replies = [await read_reply(*connection) for connection in connections]
    assert [reply and reply.status for reply in replies] == [200] * 20
    async with world(tmp_path / "data", made) as place:
        place.agents = agents
        again = [await place.acquire("a", f"lock:{n}", idempotency_key=f"k{n}") for n in range(20)]
    assert [reply.body for reply in again] == [reply and reply.body for reply in replies]


@pytest.mark.parametrize("which", ["listen_port", "metrics_port", "both"])
async def test_a_port_that_is_taken_is_found_out_before_the_start_is_written(which: str, tmp_path: Path) -> None:
    make(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        if which == "both":
            taken.close()
            settings, names = replace(SETTINGS, listen_port=port, metrics_port=port), f"metrics port {port} is in use"
        else:
            settings, names = replace(SETTINGS, **{which: port}), f"port {port} is in use"
        with pytest.raises(StartError, match=names):
            async with running(tmp_path / "data", settings):
                pass
    with contextlib.closing(open_reader(tmp_path / "data")) as reader:
        assert len(reader.entries(0, 9)) == 1, "entry 0 alone"
    async with running(tmp_path / "data", replace(SETTINGS, listen_port=port)) as gateway:
        assert gateway.url.endswith(f":{port}")


def count_submits(place: World, monkeypatch: pytest.MonkeyPatch, wanted: int) -> asyncio.Event:
    """Return an event that is set when the sequencer has been handed `wanted` requests."""
    reached, submit, counted = asyncio.Event(), place.gateway.house.sequencer.submit, []

    async def counting(request: SignedRequest, action: Action, check: None) -> Answer:
        counted.append(request)
        if len(counted) == wanted:
            reached.set()
        return await submit(request, action, check)

    monkeypatch.setattr(place.gateway.house.sequencer, "submit", counting)
    return reached


async def send_only(place: World, message: Message) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = place.gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(message.encode())
    await writer.drain()
    return reader, writer


async def read_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Reply | None:
    """Return the answer, or None when the connection was closed without one."""
    try:
        content = await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return None
    finally:
        writer.close()
    return parse_reply(content) if content else None


async def test_while_draining_readyz_says_so_and_decisions_are_refused_but_reads_go_on(public: World) -> None:
    key = await public.agent("a")
    assert (await public.get("/readyz")).body == b"ready\n"
    public.gateway.drain.is_draining = True
    check_problem(await public.get("/readyz"), "draining", 503)
    reply = await public.send(public.signed(key, "lease.acquire", resource="lock:x"))
    check_problem(reply, "draining", 503)
    assert int(reply.headers["retry-after"]) >= 1
    assert (await public.get("/livez")).status == 200
    assert (await public.get("/main/checkpoint")).status == 200


async def test_a_second_gateway_on_the_same_ledger_is_told_who_has_it(public: World) -> None:
    with pytest.raises(StoreOwned, match=str(os.getpid())):
        async with running(public.folder, SETTINGS):
            raise AssertionError("it must not start")
    assert (await public.get("/readyz")).status == 200


async def test_a_ledger_of_other_rules_is_refused_at_start_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an older version decided is decided again by its rules, or by nobody's."""
    make(tmp_path / "data")
    path = tmp_path / "data" / "ledger.sqlite3"
    (leaf,) = (entry.leaf for entry in Reader(path).entries(0, 1))
    assert leaf.count(b'"rules":5') == 1
    with sqlite3.connect(path) as database:
        database.execute("DROP TRIGGER entry_is_history")
        database.execute("UPDATE entry SET leaf = ?", (leaf.replace(b'"rules":5', b'"rules":3'),))
    database.close()
    for _ in range(2):  # the second start finds the file free
        with pytest.raises(StartError, match=r"opened with rules 3, .* rules 5; make a new ledger .* or serve it with"):
            async with running(tmp_path / "data", SETTINGS):
                raise AssertionError("it must not start")


async def test_keys_of_another_ledger_are_refused_at_start(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    for name in ("log.key", "log.pass"):
        (tmp_path / "one" / "keys" / name).write_bytes((tmp_path / "two" / "keys" / name).read_bytes())
    with pytest.raises(StartError, match="no private half of the log key"):
        async with running(tmp_path / "one", SETTINGS):
            raise AssertionError("it must not start")


async def test_a_ledger_that_does_not_hold_together_says_so_and_frees_the_file(tmp_path: Path) -> None:
    """What `start` found must reach the operator, not what stopping a sequencer that never started would add."""
    make(tmp_path / "data")
    with sqlite3.connect(tmp_path / "data" / "ledger.sqlite3") as database:
        database.execute("UPDATE head SET root = zeroblob(32)")
    database.close()
    for _ in range(2):  # the second start finds the file free
        with pytest.raises(Fatal, match="restore a good back-up"):
            async with running(tmp_path / "data", SETTINGS):
                raise AssertionError("it must not start")


async def test_a_published_folder_of_another_ledger_is_refused_at_start(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    (tmp_path / "one" / "public").unlink()
    (tmp_path / "one" / "public").symlink_to(tmp_path / "two" / "public")
    with pytest.raises(StartError, match="another ledger"):
        async with running(tmp_path / "one", SETTINGS):
            raise AssertionError("it must not start")


async def test_a_readable_key_file_is_refused_at_start(tmp_path: Path) -> None:
    make(tmp_path / "data")
    (tmp_path / "data" / "keys" / "log.key").chmod(0o644)
    with pytest.raises(KeyFileError, match="chmod 600"):
        async with running(tmp_path / "data", SETTINGS):
            raise AssertionError("it must not start")


async def test_a_handler_that_takes_too_long_says_that_it_may_have_happened(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", never)
    monkeypatch.setattr(public.gateway.door, "_deadlines", Deadlines(0.05))
    reply = await public.send(public.signed(public.operator, "agent.add", agent=public.operator.did))
    check_problem(reply, "timed_out", 503)
    assert "may have happened" in reply.json["advice"]


async def test_what_the_sequencer_says_becomes_503_without_its_text(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fatal(*_: object) -> None:
        raise Fatal("the disk is on fire at /secret/path")

    async def busy(*_: object) -> None:
        raise Busy("queue_full", 7)

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", fatal)
    reply = await public.send(public.signed(public.operator, "agent.add", agent=public.operator.did))
    check_problem(reply, "recovering", 503)
    assert b"secret" not in reply.body
    monkeypatch.setattr(public.gateway.house.sequencer, "submit", busy)
    reply = await public.send(public.signed(public.operator, "agent.add", agent=public.operator.did))
    check_problem(reply, "busy", 503)
    assert reply.headers["retry-after"] == "7"


async def test_an_error_nobody_foresaw_tells_the_client_nothing(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret text")

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", broken)
    reply = await public.send(public.signed(public.operator, "agent.add", agent=public.operator.did))
    check_problem(reply, "internal_error", 500)
    assert b"secret" not in reply.body


async def test_a_deadline_that_passes_during_the_commit_cancels_the_answer_and_never_the_commit(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await public.agent("a")
    size = public.gateway.house.sequencer.confirmed.size
    may_commit, commit = threading.Event(), SqliteStore.commit

    def slow_commit(store: SqliteStore, batch: StoredBatch, expected: StoredHead | None) -> None:
        assert may_commit.wait(30)
        commit(store, batch, expected)

    monkeypatch.setattr(SqliteStore, "commit", slow_commit)
    monkeypatch.setattr(public.gateway.door, "_deadlines", Deadlines(0.05))
    message = public.signed(key, "lease.acquire", resource="lock:x", idempotency_key="k")
    check_problem(await public.send(message), "timed_out", 503)
    monkeypatch.setattr(public.gateway.door, "_deadlines", Deadlines(30))
    may_commit.set()
    first = await public.acquire("a", "lock:x", idempotency_key="k")
    second = await public.acquire("a", "lock:x", idempotency_key="k")
    assert (first.status, first.headers["idempotency-replayed"]) == (200, "true")
    assert second.body == first.body
    assert public.gateway.house.sequencer.confirmed.size == size + 1
