"""Stories of the field over real sockets: a commit that hangs, readers beside writers, starts and stops without end."""

import asyncio
import threading
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # ships no types
import pytest

from gateway.store.contract import StoredBatch, StoredHead
from gateway.store.sqlite import SqliteStore
from keys.signing import SigningKey
from tests.web.world import World, make, world

WAIT = "/api/v1/acp/coordination/wait"
KEY = SigningKey(b"\x01" * 32).did.removeprefix("did:key:")
READS = (
    "/livez", "/readyz", "/openapi.json", "/main/checkpoint", "/main/tile/0/000.p/1", "/main/tile/entries/000.p/1",
    "/api/v1/acp/ledger/receipts/0", "/api/v1/acp/agents", "/api/v1/acp/schemes", WAIT, f"{WAIT}?resource=lock:x",
    f"/api/v1/acp/coordination/trust?did=did:key:{KEY}", "/.well-known/tallystick-keys",
)  # fmt: skip


async def test_while_a_commit_hangs_reads_are_answered_and_show_nothing_of_it(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios L34, L54 (psycopg#1371): the disk holds up one thread, never the loop that answers everybody."""
    key = await public.agent("a")
    before = (await public.get("/main/checkpoint")).body
    may_commit, is_committing, commit = threading.Event(), threading.Event(), SqliteStore.commit

    def hanging(store: SqliteStore, batch: StoredBatch, expected: StoredHead | None) -> None:
        is_committing.set()
        assert may_commit.wait(30)
        commit(store, batch, expected)

    monkeypatch.setattr(SqliteStore, "commit", hanging)
    asked = asyncio.create_task(public.send(public.signed(key, "lease.acquire", resource="lock:x")))
    try:
        assert await asyncio.to_thread(is_committing.wait, 30)
        replies = [await public.get(target) for target in READS]
        assert [reply.status for reply in replies] == [200] * len(READS)
        assert (await public.get("/main/checkpoint")).body == before
        assert (await public.get(WAIT)).json["resources"] == []
        assert not asked.done()
    finally:
        may_commit.set()
    assert (await asked).status == 200
    assert [row["resource"] for row in (await public.get(WAIT)).json["resources"]] == ["lock:x"]


async def test_no_read_writes_anything(public: World) -> None:
    """Scenario 44 (mcp_agent_mail_rust#241): reads live on a connection that can't write, and leave no entry."""
    await public.acquire("a", "lock:x")
    sequencer = public.gateway.house.sequencer
    size, batches = sequencer.confirmed.size, sequencer.counters.batches
    mine = "/api/v1/acp/coordination/leases?holder=me"
    for _ in range(3):
        assert {(await public.get(target)).status for target in READS} == {200}
        assert (await public.send(public.signed_read(public.agents["a"], mine))).status == 200
    assert (sequencer.confirmed.size, sequencer.counters.batches) == (size, batches)


async def test_the_same_key_in_flight_on_ten_connections_is_decided_once(public: World) -> None:
    """Scenario 41 (mcp-gateway#56): one is executed, the others wait for its answer and get the same bytes."""
    await public.agent("a")
    size = public.gateway.house.sequencer.confirmed.size
    replies = await asyncio.gather(*(public.acquire("a", "lock:x", idempotency_key="once") for _ in range(10)))
    assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
    assert sum("idempotency-replayed" in reply.headers for reply in replies) == 9
    assert public.gateway.house.sequencer.confirmed.size == size + 1


async def test_starts_and_stops_leave_no_descriptor_and_no_thread_behind(tmp_path: Path) -> None:
    """House §8, question 28; the first round may open what a process opens once."""
    made, process = make(tmp_path / "data"), psutil.Process()
    others = {*threading.enumerate()}  # a process keeps one for all databases that it ever spoke to

    async def round_trip(number: int) -> tuple[int, int]:
        async with world(tmp_path / "data", made) as place:
            assert (await place.acquire("a", f"lock:{number}")).status == 200
            assert (await place.get("/api/v1/acp/ledger/receipts/0")).status == 200
        await asyncio.sleep(0)  # transports that were closed give their sockets back in the loop's next turn
        ours = [one for one in threading.enumerate() if one not in others and one.name.startswith("tallystick")]
        return process.num_fds(), len(ours)

    first = await round_trip(0)
    assert [await round_trip(number) for number in (1, 2, 3)] == [first] * 3
    assert first[1] == 0
