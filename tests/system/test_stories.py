"""Stories of the field with real processes: writers, readers and auditors of one ledger at the same time."""

import asyncio
import json
from pathlib import Path

from gateway.client import Agent
from gateway.client.profile import Profile, open_profile
from keys.signing import SigningKey
from tests.system.process import Gateway
from verifier.replay.source import open_source
from verifier.wire import LEAF_BYTES_MAX, parse_canonical

AGENTS = 6
APPENDS = 8
AUDITS = 3


async def test_writers_readers_and_auditors_of_one_ledger_never_meet_a_lock_and_make_one_chain(tmp_path: Path) -> None:
    """Scenarios 43, 49, L61 (awslabs/mcp#3711, agent-bom#4185): nobody is told busy, and every audit is valid."""
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(tmp_path / "pins")
        pins = open_profile(tmp_path / "pins")
        async with asyncio.TaskGroup() as group:
            audits = group.create_task(audit_again_and_again(gateway, tmp_path))
            workers = [group.create_task(work(pins, number)) for number in range(AGENTS)]
        seqs = sorted(seq for worker in workers for seq in worker.result())
    assert len(set(seqs)) == AGENTS * APPENDS * 2
    assert audits.result() == sorted(audits.result())
    assert gateway.verify_ledger(tmp_path / "last.export")["exitCode"] == 0
    with open_source(tmp_path / "last.export") as source:
        leaves = [parse_canonical(leaf, bytes_max=LEAF_BYTES_MAX) for leaf in source.leaves]
    assert len({leaf["prev"] for leaf in leaves}) == len(leaves)
    lines = [json.loads(line) for line in gateway.log.read_text("utf-8").splitlines() if line.startswith("{")]
    assert {line["status"] for line in lines if line["event"] == "request"} == {200}


async def work(pins: Profile, number: int) -> list[int]:
    """Take and give back a resource of one's own; return the entries."""
    seqs = []
    async with Agent(Profile(pins.address, SigningKey(bytes([number + 1]) * 32), pins.keyring)) as agent:
        for step in range(APPENDS):
            grant = await agent.acquire(f"work:item/{number}/{step}")
            released = await agent.release(f"work:item/{number}/{step}", grant.lease_id)
            seqs += [grant.receipt.seq, released.seq]
    return seqs


async def audit_again_and_again(gateway: Gateway, folder: Path) -> list[int]:
    """Export and verify, in processes of their own, while others write; return the sizes that were seen."""
    sizes = []
    for number in range(AUDITS):
        report = await asyncio.to_thread(gateway.verify_ledger, folder / f"{number}.export")
        assert report["exitCode"] == 0
        facts = report["facts"]
        assert isinstance(facts, dict)
        sizes.append(int(facts["size"]))
    return sizes
