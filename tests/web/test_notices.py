"""What the operator is told without asking."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from gateway.app import serve
from gateway.config import Settings
from tests.web.test_reports import DISPUTE, SEEN, WRONG_ROOT, our_note, post
from tests.web.world import AUTHORITY, make, world


async def start_and_stop(folder: Path, *, is_address_told: bool = False) -> None:
    listening = asyncio.Event()
    settings = Settings(listen_port=0, metrics_port=0)
    serving = asyncio.create_task(serve(folder, settings, is_address_told=is_address_told, on_listening=listening.set))
    await asyncio.wait_for(listening.wait(), 30)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


async def test_a_proven_dispute_is_an_error_once_a_gauge_and_an_error_at_every_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await place.agent("a")
        assert b"tallystick_disputed 0.0" in generate_latest(place.gateway.metrics.registry)
        for path in (DISPUTE, SEEN):
            await post(place, path, our_note(place, 2, WRONG_ROOT))
        assert b"tallystick_disputed 1.0" in generate_latest(place.gateway.metrics.registry)
    (said,) = errors(caplog)
    assert said.startswith("this ledger is disputed and grants nothing: a checkpoint of 2 entries was shown")
    for count in (2, 3):
        await start_and_stop(tmp_path / "data")
        assert len(errors(caplog)) == count


@pytest.mark.parametrize("is_address_told", [True, False])
async def test_an_address_that_entry_0_does_not_name_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_address_told: bool
) -> None:
    make(tmp_path / "data")
    await start_and_stop(tmp_path / "data", is_address_told=is_address_told)
    warned = [record.getMessage() for record in caplog.records if "entry 0 does not name 127.0.0.1:" in record.message]
    assert len(warned) == is_address_told
    assert all(f"only requests signed for {AUTHORITY} are taken" in text for text in warned)
