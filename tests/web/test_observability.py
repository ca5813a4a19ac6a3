"""Logs and metrics say what happened to each request, and nothing that is anybody's secret."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import FIGURES
from gateway.ledger.sequencer import Counters
from gateway.web import logs
from gateway.web.metrics import Metrics
from keys.signing import SigningKey
from tests.system.process import free_port
from tests.web.world import World, make, send_raw, world


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything that any logger writes, as the gateway would write it; the loggers are put back afterwards."""
    root = logging.getLogger()
    before, level, stream = root.handlers[:], root.level, io.StringIO()
    logs.configure("DEBUG", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    for handler in logging.getLogger().handlers:
        handler.flush()
    return [json.loads(line) for line in lines.getvalue().splitlines()]


async def test_one_line_per_request_with_its_fields_and_no_others(public: World, lines: io.StringIO) -> None:
    reply = await public.acquire("a", "lock:x")
    mine = [line for line in read(lines) if line.get("requestId") == reply.headers["x-request-id"]]
    assert len(mine) == 1
    assert set(mine[0]) == {
        "timeMs", "level", "logger", "event", "requestId", "route", "status", "code", "seq", "actor", "durationMs",
    }  # fmt: skip
    assert (mine[0]["route"], mine[0]["status"], mine[0]["code"]) == ("lease.acquire", 200, "")
    assert mine[0]["actor"] == public.agents["a"].did
    assert isinstance(mine[0]["durationMs"], float) and isinstance(mine[0]["seq"], int)


async def test_a_refused_request_is_logged_with_its_code(public: World, lines: io.StringIO) -> None:
    await public.get("/nowhere")
    (line,) = [line for line in read(lines) if line["logger"] == "tallystick.access"]
    assert (line["route"], line["status"], line["code"]) == ("none", 404, "not_found")


async def test_nothing_secret_or_private_is_ever_logged(public: World, lines: io.StringIO) -> None:
    """Scenario 60: recognisable bodies, signatures, nonces, keys and bearer values; then every line is read."""
    key = await public.agent("a")
    message = public.signed(key, "lease.acquire", resource="lock:SECRETNAME", idempotency_key="SECRETKEY",
                            nonce="SECRETNONCE" * 3)  # fmt: skip
    await public.send(message)
    await public.send(message)
    await public.send(message.having("authorization", "Bearer SECRETBEARER"))
    await public.send(message.having("content-digest", "SECRETDIGEST"))
    await public.send(public.signed(key, "lease.acquire", body=b"SECRETBODY"))
    await public.send(public.signed(key, "lease.acquire", resource="lock:x", SECRETMEMBER="SECRETVALUE"))
    await public.get("/nowhere/SECRETPATH?SECRETQUERY")
    await send_raw(public.gateway.url, b"GET /SECRETLINE HTTP/9.9\r\nSECRETFIELD: x\r\n\r\n")
    assert len(read(lines)) >= 9
    text = lines.getvalue()
    assert "SECRET" not in text
    assert dict(message.fields)["signature"].removeprefix("sig=:") not in text
    for folder in ("keys", "operator", "root"):
        for path in (public.folder / folder).glob("*.pass"):
            assert path.read_text("ascii").strip() not in text


async def test_an_unforeseen_error_is_logged_with_places_but_without_its_text(
    public: World, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("SECRET")

    monkeypatch.setattr(public.gateway.house.sequencer, "submit", broken)
    await public.send(public.signed(public.operator, "agent.add", agent=SigningKey.generate().did))
    (line,) = [line for line in read(lines) if line["event"] == "internal_error"]
    assert line["trace"][-1] == "ZeroDivisionError"
    assert any("service.py" in frame for frame in line["trace"])
    assert "SECRET" not in lines.getvalue()


async def test_metrics_are_on_a_port_of_their_own_and_count_what_happened(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, metrics_port=free_port()) as place:
        await place.acquire("a", "lock:x")
        await place.acquire("b", "lock:x")
        await place.get("/nowhere")
        assert (await place.get("/metrics")).status == 404, "never on the public port"
        url = place.gateway.metrics_url.removesuffix("/metrics")
        reply = await send_raw(url, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        other = await send_raw(url, b"GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        size = place.gateway.house.sequencer.confirmed.size
    assert (reply.status, other.status) == (200, 404)
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }
    assert found["tallystick_requests_total", "", "200", "lease.acquire"] == 1
    assert found["tallystick_requests_total", "409", "lease.acquire", "lease_held"] == 1
    assert found["tallystick_requests_total", "404", "none", "not_found"] == 2
    assert found[("tallystick_ledger_size",)] == size
    assert found[("tallystick_ready",)] == 1
    assert found[("tallystick_receipts_total",)] >= 4
    assert found[("tallystick_commits_total",)] >= 4
    assert {field.name for field in fields(Counters)} == set(FIGURES), "each counter has its metric"
    assert "tallystick_batches_total" not in reply.body.decode(), "a batch is what one client sends"
    assert place.agents["a"].did not in reply.body.decode(), "labels come from our tables only"


async def test_metrics_show_the_line_those_who_are_parked_and_what_became_of_them(tmp_path: Path) -> None:
    made = make(tmp_path / "data", poll_ms=6_000)
    async with world(tmp_path / "data", made, metrics_port=free_port()) as place:
        held = (await place.acquire("a", "lock:x")).json["lease"]
        await place.acquire("b", "lock:y")
        tickets = [(await place.acquire(name, "lock:x", wait=True)).json["ticket"]["ticketId"] for name in "bc"]
        assert (await place.acquire("a", "lock:y")).json["error"] == "deadlock"
        claim = place.signed(place.agents["b"], "wait.claim", ticketId=tickets[0])
        assert (await place.send(claim.adding("Prefer", "wait=1"))).status == 202
        await place.ask("a", "lease.release", resource="lock:x", leaseId=held["leaseId"])
        reply = await send_raw(
            place.gateway.metrics_url.removesuffix("/metrics"),
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        )
        place.audit()
    found = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }
    assert found[("tallystick_tickets",)] == 2
    assert found[("tallystick_tickets_offered",)] == 1
    assert found[("tallystick_parked",)] == 0
    assert [found[(f"tallystick_parked_{name}_total",)] for name in ("parked", "woken", "lapsed", "left")] == [
        1,
        0,
        1,
        0,
    ]
    assert found["tallystick_entries_total", "wait.queued"] == 2
    assert found["tallystick_entries_total", "wait.offered"] == 1
    assert found["tallystick_requests_total", "409", "deadlock", "lease.acquire"] == 1
    assert found["tallystick_requests_total", "", "202", "wait.claim"] == 1


def test_times_are_counted_into_every_bucket_that_holds_them() -> None:
    metrics = Metrics()
    for seconds in (0.0, 0.001, 0.0011, 0.3, 7.0):
        metrics.observe("lease.acquire", 200, "", seconds)
    metrics.observe("livez", 200, "", 0.02)
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    samples = [sample for family in families for sample in family.samples if sample.labels["route"] == "lease.acquire"]
    buckets = {sample.labels["le"]: sample.value for sample in samples if sample.name.endswith("_bucket")}
    assert buckets == {
        "0.001": 2, "0.002": 3, "0.005": 3, "0.01": 3, "0.025": 3, "0.05": 3, "0.1": 3, "0.25": 3, "1.0": 4, "5.0": 4,
        "+Inf": 5,
    }  # fmt: skip
    others = {sample.name: sample.value for sample in samples if not sample.name.endswith("_bucket")}
    assert others["tallystick_request_seconds_count"] == 5
    assert others["tallystick_request_seconds_sum"] == pytest.approx(7.3021)
    assert others["tallystick_requests_total"] == 5
