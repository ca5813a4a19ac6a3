"""The swarm: one asyncio task per worker of the trace, each with a key of its own, all at once.

Every second worker is a session that the operator lets act; the others are agents.

A worker does its pieces in order: it waits for the piece's time, takes all its paths as one lease, works for the
piece's time, and gives them back. When the paths are held, two of three workers wait in line; the others ask again as
the refusals advise. Two workers are killed with SIGKILL at fixed lines,
in the middle of their work; nobody gives back what they held.
"""

import asyncio
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gateway.client import Agent
from gateway.client.errors import InTheWay
from gateway.client.profile import AGENT_KEY, Profile, open_profile, write_profile
from gateway.client.waiting import pause_after_refusal_ms
from gateway.demo.recorder import Record, RecordingTransport
from gateway.demo.trace import Piece
from keys.files import new_key
from keys.signing import SigningKey

KILLED_AT_LINES = (13, 20)
"""Line numbers of the trace whose workers die in them; others want the same paths soon after."""

TTL_MS = 5_000
WAIT_MS = 60_000


@dataclass(slots=True)
class Swarm:
    """Runs the pieces; `killed` maps the DID of each killed worker to its name, `told` is the last printed `done`.

    `sessions` are the DIDs of the workers that `operator` let act.
    """

    pins: Profile
    operator: Agent
    root: str
    document: bytes
    folder: Path
    record: Record = field(default_factory=Record)
    killed: dict[str, str] = field(default_factory=dict)
    sessions: set[str] = field(default_factory=set)
    is_half_done: asyncio.Event = field(default_factory=asyncio.Event)
    done: int = 0
    told: int = 0
    half: int = 0
    started_s: float = 0.0

    async def run(self, pieces: Sequence[Piece], progress: Callable[[], None]) -> None:
        """Return when every piece is done or its worker dead."""
        self.half = len(pieces) // 2
        by_worker: dict[str, list[Piece]] = defaultdict(list)
        for piece in pieces:
            by_worker[piece.worker].append(piece)
        victims = {piece.line: await self._victim(piece) for piece in pieces if piece.line in KILLED_AT_LINES}
        self.started_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            ticker = group.create_task(_tick(progress))
            workers = [
                group.create_task(
                    self._work(
                        self._worker(name, victims, is_session=number % 2 == 1),
                        todo,
                        victims,
                        wait_ms=WAIT_MS if number % 3 else 0,
                    )
                )
                for number, (name, todo) in enumerate(by_worker.items())
            ]
            await asyncio.wait(workers)
            ticker.cancel()

    def _worker(self, name: str, victims: dict[int, "Victim"], *, is_session: bool) -> Agent:
        """Return who works under a name of the trace; who will be killed has a key already, in a process of its own."""
        key = next((victim.key for victim in victims.values() if victim.piece.worker == name), None)
        if is_session and key is None:
            session = self.operator.open_session(name=name, resources=["repo:burst/**"])
            self.sessions.add(session.did)
            return session
        profile = replace(self.pins, key=key or SigningKey.generate(), home=None)
        return Agent(profile, connect=lambda url: RecordingTransport(url, self.record))

    async def _work(
        self, worker: Agent, pieces: Sequence[Piece], victims: dict[int, "Victim"], *, wait_ms: int
    ) -> None:
        async with worker as agent:
            for piece in pieces:
                await self._until(piece.starts_at_s)
                if piece.line in victims:
                    await self._die(victims[piece.line])
                    return
                await self._do(agent, piece, wait_ms)
                self._count_one()

    async def _do(self, agent: Agent, piece: Piece, wait_ms: int) -> None:
        """Work under a lease: in line for up to `wait_ms`, or, with 0, asking again as advised."""
        while True:
            try:
                async with agent.lease(piece.resources, ttl_ms=TTL_MS, wait_ms=wait_ms):
                    return await asyncio.sleep(piece.hold_s)
            except InTheWay as refused:
                if wait_ms:
                    raise
                await asyncio.sleep(pause_after_refusal_ms(refused, random.random) / 1_000)

    def _count_one(self) -> None:
        self.done += 1
        if self.done >= self.half:
            self.is_half_done.set()

    async def _until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, self.started_s + at_s - asyncio.get_running_loop().time()))

    async def _victim(self, piece: Piece) -> "Victim":
        """Start the process that will do `piece` until it is killed; it has its key in a profile on disk, as usual."""
        home = self.folder / piece.worker
        write_profile(home, self.pins.address, root=self.root, document=self.document)
        new_key(home / AGENT_KEY, purpose="agent")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.demo.victim",
            str(home),
            str(TTL_MS),
            *piece.resources,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**20,
        )
        victim = Victim(piece, open_profile(home).key, process)
        await victim.says()
        return victim

    async def _die(self, victim: "Victim") -> None:
        """Let the worker take its lease, and kill it in the middle of its work."""
        victim.begin()
        self.record.keep((await victim.says()).strip())
        await asyncio.sleep(victim.piece.hold_s / 2)
        victim.process.kill()
        await victim.process.wait()
        self.killed[victim.key.did] = victim.piece.worker
        self._count_one()


@dataclass(frozen=True, slots=True)
class Victim:
    """A worker in its own process, and the key it signs with."""

    piece: Piece
    key: SigningKey
    process: asyncio.subprocess.Process

    async def says(self) -> bytes:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("a worker's process ended before it was killed; its message is above")
        return line

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"go\n")


async def _tick(progress: Callable[[], None]) -> None:
    while True:
        progress()
        await asyncio.sleep(0.25)
