"""One machine that runs gateways, one process after the other: its clocks, its kills, its supervisor.

A process is the real shell: Desk, Sequencer, LogClock, signer. Only the commit thread is another one: it does the same
calls in the same order, in virtual time, and when it is killed a call that is under way may still reach the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from gateway.actions import ACTIONS
from gateway.core.intake import intake
from gateway.core.outcome import Ruling
from gateway.core.records import RuleSet
from gateway.errors import Busy, Fatal
from gateway.ledger.cosigned import open_own
from gateway.ledger.history import Answer, kept_cosigned
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.witness import Pace, Witnessing
from gateway.ledger.witness_start import check_clock, check_sightings, look_around
from gateway.news import News
from gateway.rules.check import check
from gateway.rules.engine import open_engine
from gateway.service import Answered, Desk, Limiter
from gateway.web.limits import Buckets
from gateway.web.reads import root_at
from tests.core.requests import AUTHORITIES, ORIGIN
from tests.sim.engine import Connection
from tests.sim.shared import Shared
from tests.sim.thread import Thread
from tests.sim.witnesses import Wire, tree_of
from verifier.checkpoint import Checkpoint
from verifier.rules import Question

if TYPE_CHECKING:
    from tests.sim.client import Letter
    from tests.sim.simulation import Simulation

Reply = Answered | Exception
BOOT_MS = 1_000_000
ACCEPT_CLOCK_AFTER = 3  # failed starts, then a person has looked at the clock
WITNESS_TIMEOUT_MS, WITNESS_REFRESH_MS = 2_000, 30_000


class MachineClock:
    """Both clocks of a machine, which follow true time until somebody steps them."""

    def __init__(self, true_ms: Callable[[], int], start_ms: int, offset_ms: int) -> None:
        self._true_ms = true_ms
        self._start_ms = start_ms
        self.offset_ms = offset_ms
        self.boot_offset_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + self._true_ms() + self.offset_ms

    def boottime_ms(self) -> int:
        return BOOT_MS + self._true_ms() + self.boot_offset_ms


class Free:
    """A limiter that lets everybody in, where rates are not what is simulated."""

    def take(self, principal: str, cost: int = 1) -> int:
        return 0


class Shaky:
    """The engine of rules; now and then it raises, or says nothing."""

    def __init__(self, simulation: Simulation) -> None:
        engine = open_engine()
        assert engine is not None, "tests have the extra `rules`"
        self.name, self.count, self._says = engine.name, engine.count, engine
        self._simulation = simulation

    def __call__(self, rule_set: RuleSet, question: Question) -> Ruling:
        if self._simulation.chance("engine_raises"):
            raise MemoryError("the engine has no room")
        if self._simulation.chance("engine_silent"):
            return None  # type: ignore[return-value]
        return self._says(rule_set, question)


class Reviewer:
    """Looks rules through at once: what another process does has no place in simulated time."""

    async def review(self, text: str, folding: Collection[str]) -> list[str]:
        return list(map(str, check(text, folding.__contains__).faults))


class Process:
    """One gateway process. It serves from `start` until `kill`, a Fatal, or `stop`."""

    def __init__(self, simulation: Simulation, node: Node, number: int) -> None:
        self.number = number
        self.node = node
        self.is_dead = False
        self.gone = asyncio.Event()
        self._simulation = simulation
        self._handlers: dict[asyncio.Task[None], None] = {}
        self.store: Connection = simulation.connect()
        self.store.decided = lambda: (self.thread.handed_over_ms, number)
        self.signer = simulation.new_signer(number)
        self.is_clock_accepted = node.failed_starts >= ACCEPT_CLOCK_AFTER
        self.witnessing: Witnessing | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self.sequencer = Sequencer(
            self.store,
            self.signer,
            node.clock,
            simulation.config.parameters,
            origin=ORIGIN,
            genesis=simulation.genesis,
            is_clock_accepted=self.is_clock_accepted,
            evaluate=Shaky(simulation),
            follow_ms=simulation.config.follow_ms,
            has_key=simulation.room(self.signer).has,
        )
        self.thread = Thread(simulation, self.store)
        if isinstance(self.store, Shared):
            self.store.sleep, self.store.wake = self.thread.sleep, self.thread.wake
        self.sequencer._thread = self.thread  # type: ignore[assignment]
        self.since_ms = self.ready_ms = simulation.loop.now_ms
        room = simulation.room(self.signer)
        news = News(self.sequencer, is_shared=self.store.is_shared)
        self.desk = Desk(self.sequencer, simulation.ledger, self._limiter(), None, room, news, Reviewer())
        self._start: asyncio.Task[None] | None = None
        simulation.processes.append(self)

    def _limiter(self) -> Limiter:
        """Return what the gateway has, in virtual time; a process that starts has forgiven everybody."""
        config = self._simulation.config
        if not config.is_rated:
            return Free()
        numbers, loop = config.parameters, self._simulation.loop
        return Buckets(rate_per_s=numbers.rate_per_second, burst=numbers.rate_burst, clock=loop.time)

    async def start(self) -> None:
        """Start, or raise what the sequencer raises; CancelledError when it was killed meanwhile."""
        loop = asyncio.get_running_loop()
        self._start, gone = loop.create_task(self._begin()), loop.create_task(self.gone.wait())
        await asyncio.wait([self._start, gone], return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        if self.is_dead:  # what ends with it takes no step any more, also not those of an orderly end
            raise asyncio.CancelledError
        await self._start
        self.ready_ms = self._simulation.loop.now_ms
        asyncio.get_running_loop().create_task(self._watch())

    async def _begin(self) -> None:
        """Ask the witnesses, then open the ledger, then let them see more: as the gateway does it."""
        witnesses = self._simulation.witnesses
        if witnesses is None:
            return await self.sequencer.start()
        wire = Wire(self._simulation, self._simulation.witnessed_by)
        head, signer = self.store.load().head, self.signer
        signer.heed_store(self.store)
        seen = await look_around(witnesses, ORIGIN, wire, signer.own_keys, WITNESS_TIMEOUT_MS)
        assert head is not None, "there is a ledger"
        check_sightings(witnesses, seen, head.size, lambda size: root_at(self.store, size), True)
        shown = {one.witness.name: one.checkpoint for one in seen if one.checkpoint is not None}
        kept = open_own(kept_cosigned(self.store) or b"", ORIGIN, signer.own_keys)
        known = [*shown.values(), *([] if kept is None else [kept])]
        check_clock(witnesses, known, self.node.clock.now_ms(), is_accepted=self.is_clock_accepted)
        await self.sequencer.start()
        pace = Pace(
            WITNESS_REFRESH_MS, self._simulation.config.witness_entry_ms, WITNESS_TIMEOUT_MS,
            self._simulation.config.parameters.witness_ms,
        )  # fmt: skip
        self.witnessing = Witnessing(
            self.sequencer, ORIGIN, witnesses, web=wire, tree=tree_of(self.store), clock=self.node.clock, pace=pace,
            own_keys=signer.own_keys,
        )  # fmt: skip
        await self.witnessing.start(self.sequencer.cosigned, {name: one.size for name, one in shown.items()})
        self._tell_cosigned()
        self._watch_task = asyncio.get_running_loop().create_task(self.witnessing.run())

    def _tell_cosigned(self) -> None:
        """Let the world hear of each note that a quorum has cosigned, as it is kept."""
        keep = self.sequencer.keep_cosigned

        def told(note: bytes, checkpoint: Checkpoint) -> None:
            self._simulation.cosigns(note, checkpoint)
            keep(note, checkpoint)

        self.sequencer.keep_cosigned = told  # type: ignore[method-assign]

    async def _watch(self) -> None:
        await self.sequencer.failed.wait()
        if not self.is_dead:
            self._simulation.say(self.node.name, "fatal", str(self.sequencer.failure)[:60])
            self.kill()

    def kill(self) -> None:
        """End at this very moment: no task of the process takes another step."""
        if self.is_dead:
            return
        self.is_dead = True
        self.thread.kill()
        started = [self._start] if self._start is not None else []
        watching = [self._watch_task] if self._watch_task is not None else []
        for task in (*started, *watching, *self.sequencer._tasks, *self._handlers):
            task.cancel()
        self.gone.set()

    @property
    def frozen_s(self) -> float:
        """Return for how long the process is stopped by a signal yet: nothing goes in or out."""
        return max(0.0, self.thread.frozen_until_ms / 1_000 - self._simulation.loop.time())

    def freeze(self, seconds: float) -> None:
        self.thread.frozen_until_ms = self._simulation.loop.now_ms + int(seconds * 1_000)

    async def stop(self) -> None:
        """End as a supervisor asks for it: drain, keep, close."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        await self.sequencer.stop()
        self.is_dead = True
        self.gone.set()

    def handle(self, letter: Letter, respond: Callable[[Reply], None], *, may_leave: bool) -> None:
        """Serve one request in a task of its own; a client that leaves cancels it."""
        if self.frozen_s:
            self._simulation.loop.call_later(self.frozen_s, partial(self.handle, letter, respond, may_leave=may_leave))
            return
        if self.is_dead:
            return
        task = asyncio.get_running_loop().create_task(self._serve(letter, respond))
        self._handlers[task] = None
        task.add_done_callback(lambda task: self._handlers.pop(task, None))
        if may_leave:
            self._simulation.loop.at_step(self._simulation.rng.randrange(1, 9), task.cancel)

    async def _serve(self, letter: Letter, respond: Callable[[Reply], None]) -> None:
        try:
            reply: Reply = await self._decide(letter)
        except Exception as error:
            reply = error
        while self.frozen_s:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(self.frozen_s)
        if isinstance(reply, Answered):
            self._simulation.answered(reply)
        respond(reply)

    async def _decide(self, letter: Letter) -> Answered:
        action = ACTIONS[letter.action]
        if not self._simulation.config.is_past_desk:
            return await self.desk.decide(letter.raw, action, wait_ms=letter.wait_ms)
        request = intake(letter.raw, origin=ORIGIN, authorities=AUTHORITIES, action=letter.action)
        answer: Answer = await self.sequencer.submit(request, action)
        return Answered(answer.status, answer.body(), answer.seq, request.keyid, answer.is_replay)


class Node:
    """A machine: at most one process at a time, started again whenever it ends."""

    def __init__(self, simulation: Simulation, name: str, clock: MachineClock) -> None:
        self.name = name
        self.clock = clock
        self.failed_starts = 0
        self.process: Process | None = None
        self.is_held_down = False
        self._simulation = simulation

    async def supervise(self) -> None:
        """Keep a process running."""
        while not self.is_held_down:
            if not await self._start():
                await asyncio.sleep(0.3)
                continue
            assert self.process is not None
            await self.process.gone.wait()
            self.process = None
            await asyncio.sleep(self._simulation.downtime_s())

    async def _start(self) -> bool:
        simulation = self._simulation
        simulation.before_start(self)
        self.process = process = Process(simulation, self, simulation.next_number())
        try:
            await process.start()
        except (Busy, Fatal, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not process.is_dead:
                raise
            simulation.say(self.name, "start failed", type(error).__name__, str(error)[:60])
            if "an older copy was put in place" in str(error):
                simulation.checker.count("older copy refused")
            self.failed_starts += 1
            process.kill()
            self.process = None
            return False
        self.failed_starts = 0
        is_whole = not process.signer.lacking or process.store.is_shared  # there it waits until somebody brings the key
        simulation.must(is_whole, "start", "a start without a private key that is in force")
        simulation.must(not simulation.is_surely_older, "start", "an older copy was started behind its witnesses")
        simulation.say(self.name, "started", simulation.database.disk.head.size)  # type: ignore[union-attr]
        return True

    @property
    def is_up(self) -> bool:
        return self.process is not None and not self.process.is_dead and self.process.sequencer.is_ready

    def kill(self) -> None:
        if self.process is not None and not self.process.is_dead:
            self._simulation.say(self.name, "killed")
            self.process.kill()
