"""A gateway that can decide nothing any more answers who waits, and ends by itself so that somebody starts it anew."""

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import app
from gateway.administration import serve as serve_command
from gateway.app import Gateway, serve
from gateway.config import Settings
from gateway.errors import Fatal, Unknown
from gateway.ledger.sequencer import Sequencer
from gateway.store.sqlite import SqliteStore
from keys.files import load_key
from tests.system.process import free_port
from tests.web.test_problems import check_problem
from tests.web.world import World, make
from verifier.keyring import open_keyring

SETTINGS = Settings(listen_port=0, metrics_port=0)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> "asyncio.Queue[Gateway]":
    """Every gateway that `serve` starts, once it serves."""
    queue: asyncio.Queue[Gateway] = asyncio.Queue()
    running = app.running

    class Running:
        def __init__(self, *args: object, **options: object) -> None:
            self._context = running(*args, **options)  # type: ignore[arg-type]

        async def __aenter__(self) -> Gateway:
            gateway = await self._context.__aenter__()
            queue.put_nowait(gateway)
            return gateway

        async def __aexit__(self, *error: object) -> bool | None:
            return await self._context.__aexit__(*error)  # type: ignore[arg-type]

    monkeypatch.setattr(app, "running", Running)
    return queue


@pytest.fixture(autouse=True)
def _loggers_are_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def break_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the next commit hang until the event is set, and then let nobody find out what became of it."""
    may_fail = threading.Event()

    def failing(*_: object) -> None:
        assert may_fail.wait(30)
        raise Unknown("no answer")

    def silent(*_: object) -> None:
        raise OSError("the cause")

    monkeypatch.setattr(SqliteStore, "commit", failing)
    monkeypatch.setattr(SqliteStore, "landed", silent)
    return may_fail


async def test_who_waits_is_answered_and_serve_ends_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: "asyncio.Queue[Gateway]"
) -> None:
    made = make(tmp_path / "data")
    serving = asyncio.create_task(serve(tmp_path / "data", SETTINGS))
    gateway = await asyncio.wait_for(started.get(), 30)
    keyring = open_keyring(root=made.root_vkey, document=(made.folder / "public" / "keys.note").read_bytes())
    place = World(gateway, made, made.folder, load_key(made.folder / "operator" / "agent.key"), keyring)
    key = await place.agent("a")
    may_fail = break_commits(monkeypatch)
    asked = [
        asyncio.create_task(place.send(place.signed(key, "lease.acquire", resource=f"lock:{number}")))
        for number in range(5)
    ]
    await asyncio.sleep(0.1)
    may_fail.set()
    for reply in await asyncio.gather(*asked):
        check_problem(reply, "recovering", 503)
    with pytest.raises(Fatal, match=r"no decision can be made any more: .*the cause"):
        await asyncio.wait_for(serving, 30)
    assert not gateway.house.sequencer.is_ready


async def test_a_signal_still_ends_it_without_an_error(tmp_path: Path, started: "asyncio.Queue[Gateway]") -> None:
    make(tmp_path / "data")
    serving = asyncio.create_task(serve(tmp_path / "data", SETTINGS))
    await asyncio.wait_for(started.get(), 30)
    await asyncio.sleep(0)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(serving, 30)


def test_the_command_ends_with_1_and_its_last_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path / "data", sweep_ms=50)
    settle = app.settle

    async def broken(_: Sequencer) -> None:
        raise ZeroDivisionError("the cause")

    def settle_and_break() -> None:
        settle()
        monkeypatch.setattr(Sequencer, "_on_tick", broken)

    monkeypatch.setattr(app, "settle", settle_and_break)
    listen = f"127.0.0.1:{free_port()}"
    assert serve_command(["--data", str(made.folder), "--listen", listen, "--metrics-port", "0"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("tallystick serve: no decision can be made any more: ")
    assert "ZeroDivisionError: the cause" in last
