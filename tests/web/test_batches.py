"""Batches over HTTP: one answer with a result and a proof for each command, one price, one retry."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.web.test_problems import check_problem
from tests.web.world import Reply, World, make, world
from verifier.receipt import check_receipt
from verifier.wire import decode_base64


def takes(*names: str, **members: Any) -> list[dict[str, Any]]:
    return [{"action": "lease.acquire", "resource": name, **members} for name in names]


async def submit(place: World, name: str, commands: list[dict[str, Any]], **options: Any) -> Reply:
    return await place.ask(name, "batch.submit", commands=commands, **options)


async def test_every_command_gets_its_result_and_a_receipt_that_verifies(public: World) -> None:
    await public.acquire("b", "lock:2")
    reply = await submit(public, "a", takes("lock:1", "lock:2", "lock:3"))
    answer = reply.json
    assert (reply.status, answer["ok"], [row["status"] for row in answer["results"]]) == (200, False, [200, 409, 200])
    assert [row.get("error") for row in answer["results"]] == [None, "lease_held", None]
    leaves = [orjson.loads(decode_base64(leaf)) for leaf in answer["batch"]["leaves"]]
    header = answer["batch"]["index"]
    assert [leaf["seq"] for leaf in leaves] == [header, header + 1, header + 2, header + 3]
    for seq in range(header, header + 4):
        receipt = await public.get(f"/api/v1/acp/ledger/receipts/{seq}")
        assert ("batch" in receipt.json) == (seq > header)
        assert check_receipt(receipt.body, public.keyring).exit_code == 0
    public.audit()


async def test_a_retry_of_a_batch_has_the_same_bytes(public: World) -> None:
    first = await submit(public, "a", takes("lock:1", "lock:2"), idempotency_key="once")
    again = await submit(public, "a", takes("lock:1", "lock:2"), idempotency_key="once")
    assert (again.status, again.body, again.headers["idempotency-replayed"]) == (200, first.body, "true")


async def test_an_atomic_batch_that_is_refused_is_refused_as_its_command_was(public: World) -> None:
    await public.acquire("b", "lock:2")
    reply = await submit(public, "a", takes("lock:1", "lock:2"), isAtomic=True)
    assert (reply.status, reply.json["error"], reply.json["index"]) == (409, "lease_held", 1)
    assert int(reply.headers["retry-after"]) >= 1
    assert (await public.acquire("c", "lock:1")).status == 200, "nothing of it was granted"
    public.audit()


@pytest.mark.parametrize(
    ("command", "code", "where"),
    [
        ({"ttlMs": 1}, "member_invalid", "commands[1]"),
        ({"ttlMs": 2_000}, "member_invalid", "commands[1]"),
        ({"wait": True}, "member_unknown", "commands[1]"),
        ({"resource": "lock:\u0378"}, "member_invalid", "commands[1]"),
        ({"action": "wait.claim"}, "member_invalid", "commands[1]"),
    ],
)
async def test_a_fault_in_one_command_is_named_and_nothing_is_decided(
    tmp_path: Path, command: dict[str, Any], code: str, where: str
) -> None:
    made = make(tmp_path / "data", ttl_min_ms=5_000)
    async with world(tmp_path / "data", made) as place:
        await place.agent("a")
        size = place.gateway.house.sequencer.confirmed.size
        bad = {"action": "lease.acquire", "resource": "lock:2", **command}
        reply = await submit(place, "a", [*takes("lock:1"), bad])
        check_problem(reply, code, 400)
        assert where in reply.json["detail"]
        assert place.gateway.house.sequencer.confirmed.size == size


async def test_a_batch_costs_what_its_commands_cost(tmp_path: Path) -> None:
    made = make(tmp_path / "data", rate_per_second=1, rate_burst=10)
    async with world(tmp_path / "data", made) as place:
        await place.agent("a")
        reply = await submit(place, "a", takes("lock:1", "lock:2", "lock:3"))
        assert reply.headers["ratelimit"] == '"decisions";r=7'
        assert reply.headers["ratelimit-policy"] == '"decisions";q=10;w=10'
        wide = {"action": "lease.acquire", "resources": [f"lock:w/{number}" for number in range(129)]}
        assert (await submit(place, "a", [wide])).headers["ratelimit"] == '"decisions";r=4'
        refused = await submit(place, "a", takes(*(f"lock:{number}" for number in range(5))))
        check_problem(refused, "rate_limited", 429)


async def test_a_batch_larger_than_the_burst_needs_a_full_allowance_and_leaves_a_debt(tmp_path: Path) -> None:
    made = make(tmp_path / "data", rate_per_second=1, rate_burst=10)
    async with world(tmp_path / "data", made) as place:
        await place.agent("a")
        reply = await submit(place, "a", takes(*(f"lock:{number}" for number in range(256))))
        assert (reply.status, reply.json["ok"], reply.headers["ratelimit"]) == (200, True, '"decisions";r=0')
        refused = await place.acquire("a", "lock:more")
        check_problem(refused, "rate_limited", 429)
        assert 240 <= int(refused.headers["retry-after"]) <= 247
        place.audit()
