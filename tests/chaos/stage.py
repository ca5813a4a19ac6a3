"""What every scene stands on: a ledger, its nodes, each on a wire of its own to the database, and a crowd at work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from tests.pg.audit import audit
from tests.pg.crowd import TTL_MS, Crowd
from tests.pg.nodes import Ledger, Node
from tests.pg.proxy import Proxy
from tests.pg.server import ROLE, Server
from verifier.entries import Leaf

AGENTS = 6


class Stage:
    """`async with Stage(...)` founds the ledger and starts the nodes; leaving stops them, and fails if one fell.

    `urls` are the addresses of the database, one for each node.
    """

    def __init__(self, folder: Path, urls: Sequence[str], *, durability: str = "local") -> None:
        self.folder = folder
        self.ledger = Ledger(folder, durability=durability)
        self.crowd = Crowd(self.ledger)
        self._urls = urls

    @property
    def nodes(self) -> list[Node]:
        return self.ledger.nodes

    async def __aenter__(self) -> Stage:
        try:
            await asyncio.to_thread(self.ledger.found, self._urls[0])
            for url in self._urls:
                self.ledger.add_node(url)
            await asyncio.gather(*(asyncio.to_thread(node.start) for node in self.nodes))
        except BaseException:
            self.ledger.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.ledger.close)

    async def play(
        self, scene: Callable[[], Awaitable[None]], *, agents: int = AGENTS, resources: int = 3, ttl_ms: int = TTL_MS
    ) -> list[Leaf]:
        """Let a crowd work while the scene plays, then bring all nodes up and audit; the ledger's leaves."""
        self.crowd.resources, self.crowd.ttl_ms = resources, ttl_ms
        try:
            await self.crowd.run(agents, scene)
            await self.recover()
            return await audit(self.crowd, self.folder)
        except BaseException:
            for node in self.nodes:
                print(f"--- {node.folder.name}\n{node.tail()}")
            raise

    async def recover(self) -> None:
        """Return when every node is ready; one that was killed is started, one that ended by itself is a failure."""
        for node in self.nodes:
            if not node.is_alive:
                assert node.process.returncode == -9, f"{node.folder.name} ended by itself"
                await self.thread(node.launch)
        for node in self.nodes:
            await self.ready(node)

    async def ready(self, node: Node, status: int = 200) -> None:
        await asyncio.to_thread(node.until, lambda: node.ready_status() == status)

    async def thread(self, call: Callable[[], object]) -> None:
        await asyncio.to_thread(call)


def wired(server: Server, database: str, count: int, stack: AsyncExitStack) -> tuple[list[Proxy], list[str]]:
    """Return so many wires to a server, and the address of a database through each."""
    wires = [stack.enter_context(Proxy(server.port)) for _ in range(count)]
    return wires, [f"postgresql://{ROLE}@127.0.0.1:{wire.port}/{database}" for wire in wires]
