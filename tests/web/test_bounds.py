"""The ttl bounds that entry 0 of this ledger states, which may be narrower than the protocol's."""

from pathlib import Path

import pytest

from tests.web.test_problems import check_problem
from tests.web.world import make, world


@pytest.mark.parametrize(("ttl_ms", "is_good"), [(4_999, False), (5_000, True), (60_000, True), (60_001, False)])
async def test_a_ttl_outside_entry_0s_bounds_is_refused_and_changes_nothing(
    tmp_path: Path, ttl_ms: int, is_good: bool
) -> None:
    made = make(tmp_path / "data", ttl_min_ms=5_000, ttl_max_ms=60_000)
    async with world(tmp_path / "data", made) as place:
        lease = (await place.acquire("a", "lock:x")).json["lease"]
        size = place.gateway.house.sequencer.confirmed.size
        renewal = place.signed(place.agents["a"], "lease.renew", leaseId=lease["leaseId"], ttlMs=ttl_ms)
        for reply in (await place.acquire("a", "lock:y", ttlMs=ttl_ms), await place.send(renewal)):
            if is_good:
                assert reply.status == 200, reply.body
            else:
                check_problem(reply, "member_invalid", 400)
                assert "5,000 to 60,000" in reply.json["detail"]
        assert (place.gateway.house.sequencer.confirmed.size == size) is not is_good
