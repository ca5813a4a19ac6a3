"""The gateway's wall clock is set an hour off while it runs; clients with a right clock notice nothing."""

import pytest

from gateway.clock import Clock
from keys.signing import SigningKey
from tests.web.world import World


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
async def test_requests_are_judged_by_log_time_when_the_wall_clock_is_set(
    public: World, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """Scenario 16: grants, renewals and reads go on, the lease lives its stated time, and the alarm counts."""
    key = await public.agent("a")
    first = await public.send(public.signed(key, "lease.acquire", resource="lock:x", ttlMs=60_000))
    real = Clock.now_ms
    monkeypatch.setattr(Clock, "now_ms", lambda clock: real(clock) + step_ms)
    sequencer = public.gateway.house.sequencer
    for _ in range(3):
        again = await public.send(public.signed(key, "lease.acquire", resource="lock:x", ttlMs=60_000))
        assert again.status == 200
        assert again.json["lease"]["fencingToken"] == first.json["lease"]["fencingToken"]
        assert 0 <= again.json["lease"]["expiresAtMs"] - first.json["lease"]["expiresAtMs"] <= 30_000
    mine = await public.send(public.signed_read(key, "/api/v1/acp/coordination/leases?holder=me"))
    assert [row["resources"] for row in mine.json["leases"]] == [["lock:x"]]
    assert sequencer.clock_alarms >= 3
    trust = await public.get(f"/api/v1/acp/coordination/trust?did={key.did}")
    assert abs(trust.json["nowMs"] - mine.json["nowMs"]) <= 30_000


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
async def test_newcomers_are_enrolled_while_the_wall_clock_is_off(
    dev: World, monkeypatch: pytest.MonkeyPatch, step_ms: int
) -> None:
    """The throw-away operator signs by log time too: a signature of its own must get past its own door."""
    real = Clock.now_ms
    monkeypatch.setattr(Clock, "now_ms", lambda clock: real(clock) + step_ms)
    reply = await dev.send(dev.signed(SigningKey.generate(), "lease.acquire", resource="lock:x"))
    assert reply.status == 200, reply.body
