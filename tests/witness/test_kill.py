"""kill −9 of a witness under a storm of two histories: what it said holds, and it never says both.

A cheating log shows both of its histories to one witness, in parallel, over and over. Whatever line any client ever
got must be of one history, sizes may not go back over a kill, and what was answered is on the disk at the next start.
"""

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.witness.shelf import origin_hash
from tests.witness.logbook import ORIGIN, Log, Post
from tests.witness.process import Server
from verifier.checkpoint import parse_checkpoint
from verifier.note import is_signed_once

SIZES = 4_000
KILLS = 8
CLIENTS = 6
ANSWERS_BETWEEN_KILLS = (8, 40)
HISTORIES = (Log(size=SIZES), Log("other", fork=1, size=SIZES))


@dataclass(slots=True)
class Storm:
    """Both histories, shown by many clients. `cosigned` is every (size, root) that some client has a line for."""

    url: str
    chance: random.Random
    cosigned: list[tuple[int, bytes]] = field(default_factory=list)
    answers: int = 0
    bell: asyncio.Condition = field(default_factory=asyncio.Condition)
    is_over: bool = False

    @property
    def largest(self) -> int:
        return max((size for size, _ in self.cosigned), default=0)

    async def client(self, log: Log) -> None:
        """Show this history as far beyond the witness's size as one dares, until the storm is over."""
        known = 0
        async with ClientSession(self.url, timeout=ClientTimeout(5)) as session:
            while not self.is_over:
                size = min(SIZES, known + self.chance.randint(0, 3))
                try:
                    async with session.post("/add-checkpoint", data=log.request(known, size)) as answer:
                        status, text = answer.status, await answer.text()
                except (ClientError, TimeoutError, ConnectionError):
                    await asyncio.sleep(0.01)  # the witness is dead at the moment
                    continue
                if status == 200:
                    self.cosigned.append((size, log.tree.root(size)))
                assert status in (200, 409, 422), text
                known = size if status == 200 else int(text) if status == 409 else known
                async with self.bell:
                    self.answers += 1
                    self.bell.notify_all()

    async def until(self, answers: int) -> None:
        async with self.bell:
            await self.bell.wait_for(lambda: self.answers >= answers)


def size_of(folder: Path) -> int:
    """What a start would read: the disk's word."""
    post = Post(folder)
    note = post.witness.newest(origin_hash(ORIGIN))
    post.shelf.close()
    assert note is not None
    checkpoint = parse_checkpoint(note)
    assert is_signed_once(checkpoint.note, post.vkey)
    return checkpoint.size


@pytest.mark.system
@pytest.mark.serial
async def test_kill_9_in_a_storm_of_two_histories_leaves_one(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    Post(folder, HISTORIES[0]).shelf.close()
    server = Server(folder, "--rate", "0", "--log-level", "WARNING")
    server.start()
    chance = random.Random(5)
    storm = Storm(server.url, chance)
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(storm.client(HISTORIES[number % 2]))
            for _ in range(KILLS):
                await storm.until(storm.answers + chance.randint(*ANSWERS_BETWEEN_KILLS))
                await asyncio.to_thread(server.kill)
                assert size_of(folder) >= storm.largest, "a line left before its note was on the disk"
                await asyncio.to_thread(server.start)
            storm.is_over = True
    finally:
        server.kill()
    roots = dict(storm.cosigned)
    assert len(set(storm.cosigned)) == len(roots), "two roots of one size were cosigned"
    assert any(all(log.tree.root(size) == root for size, root in roots.items()) for log in HISTORIES)
    assert size_of(folder) >= storm.largest > KILLS
