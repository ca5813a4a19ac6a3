"""A worker in a process of its own, so that it can really be killed.

`python -m gateway.demo.victim HOME TTL_MS RESOURCE…` says `ready`, waits for a line, takes the lease, prints its
receipt on one line and then works, with heartbeats, until somebody kills it. It never releases anything.
"""

import asyncio
import sys
from pathlib import Path

from gateway.client import Agent

WAIT_MS = 60_000


async def work(home: Path, ttl_ms: int, resources: tuple[str, ...]) -> None:
    async with Agent.open(home) as agent:
        print("ready", flush=True)
        sys.stdin.readline()
        async with agent.lease(resources, ttl_ms=ttl_ms, wait_ms=WAIT_MS) as lease:
            print(lease.receipt.decode().replace("\n", " "), flush=True)
            await lease.lost.wait()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), tuple(sys.argv[3:])))
