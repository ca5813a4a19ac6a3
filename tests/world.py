"""A gateway in memory, without HTTP: a store of choice, a clock that stands still, seeded keys, faults on demand.

A scene does things to a `World` and ends in `audit()`, which exports the ledger and lets the real verifier judge it:
every entry, the chain, the tree, the checkpoint, and each request's signature.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from gateway.actions import ACTIONS
from gateway.core.append import Imprint, build_batch
from gateway.core.opening import Opening, opened
from gateway.core.outcome import Rules
from gateway.core.parameters import Parameters
from gateway.core.record_codec import encode_record
from gateway.errors import Busy, Fatal, HeadMoved, Unfit, Unknown
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.history import Answer
from gateway.ledger.live import Live
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.rules.engine import open_engine
from gateway.signer import Signer
from gateway.store.contract import (
    Loaded,
    Locked,
    Reading,
    Store,
    StoredBatch,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    Upkeep,
)
from gateway.store.memory import MemoryDisk, MemoryStore
from gateway.store.sqlite import Reader, SqliteStore
from keys.forms import root_vkey, signed_key_document
from tests.core.requests import AUTHORITIES, NOW_MS, ORIGIN, Ask, acquire, add, anchor_text, did_of, key_of
from verifier.entries import ZERO_HASH, Leaf, parse_leaf
from verifier.keyring import KeyDocument, KeyLine, Keyring, open_keyring
from verifier.merkle import leaf_hash
from verifier.note import VerifierKey
from verifier.replay.ledger import check_ledger

Engine = Literal["memory", "sqlite"]
ENGINES: tuple[Engine, ...] = ("memory", "sqlite")
Fault = Literal["lost", "kept", "busy", "unfit", "moved", "fatal"]
OPENED_MS = NOW_MS  # no outage before the first start, hence no holiday


def signer_of(log: str, receipt: str, origin: str = ORIGIN) -> Signer:
    """Return a signer as at entry 0, with the keys of these names."""
    return Signer(origin, log=(key_of(log),), receipt=(key_of(receipt),), seal=key_of("seal"))


class StillClock:
    """Both clocks, moved by hand; `jump` moves the wall clock alone."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.wall = now_ms
        self.boot = 1_000_000

    def now_ms(self) -> int:
        return self.wall

    def boottime_ms(self) -> int:
        return self.boot

    def advance(self, ms: int) -> None:
        self.wall += ms
        self.boot += ms

    def jump(self, ms: int) -> None:
        self.wall += ms


class FaultyStore:
    """A store that does what its plan says at the next call of a method, and is honest otherwise.

    "lost": fails and did not persist. "kept": fails but did persist (of `lock`: the head is taken, though nobody was
    told). "busy", "unfit", "moved", "fatal": says so, did nothing. `unlock` never says anything.
    `plan` is used up in order, each at the next call of its method; `storm` names the nth call (from 1) of a method,
    counted over restarts. `before` is called at the start of each method with its name, in the commit thread.
    """

    def __init__(self, store: Store) -> None:
        self.honest = store
        self.plan: deque[tuple[str, Fault]] = deque()
        self.storm: dict[tuple[str, int], Fault] = {}
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda name: None

    @property
    def durability(self) -> str:
        return self.honest.durability

    @property
    def is_shared(self) -> bool:
        return self.honest.is_shared

    def _do(self, name: str, call: Callable[[], Any]) -> Any:
        self.calls[name] += 1
        self.before(name)
        fault = self.storm.get((name, self.calls[name]))
        if self.plan and self.plan[0][0] == name:
            fault = self.plan.popleft()[1]
        match fault:
            case "busy":
                raise Busy("planned")
            case "moved":
                raise HeadMoved("planned")
            case "fatal":
                raise Fatal("planned")
            case "unfit":
                raise Unfit("planned: a setting is wrong")
            case "lost":
                raise _unclear(name, fault)
            case "kept":
                call()
                raise _unclear(name, fault)
            case None:
                return call()

    def load(self) -> Loaded:
        return self._do("load", self.honest.load)  # type: ignore[no-any-return]

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        return self.honest.records(prefixes)

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        return self._do("lock", lambda: self.honest.lock(seen, keys, sizes))  # type: ignore[no-any-return]

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        return self._do("look", lambda: self.honest.look(keys, sizes))  # type: ignore[no-any-return]

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        try:
            self._do("commit", lambda: self.honest.commit(batch, expected))
        finally:
            self.honest.unlock()

    def unlock(self) -> None:
        try:
            self._do("unlock", self.honest.unlock)
        except (Busy, HeadMoved):
            return

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        return self._do("news", lambda: self.honest.news(seen))  # type: ignore[no-any-return]

    def listen(self, hint: Callable[[], None]) -> None:
        self.honest.listen(hint)

    def confirm(self) -> None:
        self._do("confirm", self.honest.confirm)

    def unsigned(self) -> tuple[StoredCheckpoint, ...]:
        return self.honest.unsigned()

    def landed(self, batch_id: str) -> bool:
        return self._do("landed", lambda: self.honest.landed(batch_id))  # type: ignore[no-any-return]

    def keep(self, upkeep: Upkeep) -> int:
        return self._do("keep", lambda: self.honest.keep(upkeep))  # type: ignore[no-any-return]

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        return self._do("entries", lambda: self.honest.entries(start, stop))  # type: ignore[no-any-return]

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        return self.honest.nodes(wanted)

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        return self.honest.batch_of(seq)

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        return self.honest.batch_at(size)

    def last_note(self, size_max: int) -> bytes | None:
        return self.honest.last_note(size_max)

    def close(self) -> None:
        self.honest.close()


def _unclear(name: str, fault: Fault) -> Exception:
    """Return what a store says that does not know whether it did something: what only looks is just busy."""
    return Unknown(f"planned: {fault}") if name in ("commit", "keep", "confirm") else Busy(f"planned: {fault}")


class World:
    """One ledger and the gateway on it. `op` is its operator; `agents` are enrolled by `start` when it is new.

    On a `disk` that is shared it is one node of several. Nothing follows there by itself unless `follow_ms` says so.
    """

    def __init__(
        self,
        folder: Path,
        engine: Engine = "memory",
        *,
        agents: Sequence[str] = ("A", "B", "C"),
        clock: StillClock | None = None,
        disk: MemoryDisk | None = None,
        follow_ms: int = 0,
        **parameters: int,
    ) -> None:
        self.folder = folder
        self.engine = engine
        self.clock = clock or StillClock()
        self.signer = signer_of("log", "receipt")
        self.parameters = Parameters(**parameters)
        self.disk = disk or MemoryDisk()
        self.follow_ms = follow_ms
        self.has_key: Callable[[str, VerifierKey], bool] | None = None
        self.ask_witnesses: Callable[[], Awaitable[Callable[[Reading, int], None]]] | None = None
        self.agents = agents
        self._is_new = self.disk.head is None if engine == "memory" else not self.path.exists()
        self.genesis = self._open() if self._is_new else self._genesis()
        self.keyring = self._keyring()
        self.is_clock_accepted = False
        self.trace: Any = None
        self.rules: Rules | None = open_engine()
        self.sequencer: Sequencer
        self.store: FaultyStore = None  # type: ignore[assignment]  # made by `start`

    @property
    def path(self) -> Path:
        return self.folder / "ledger.sqlite3"

    def open_store(self, *, may_create: bool = False) -> Store:
        """Return a store on this world's disk; StoreOwned while another has it."""
        return MemoryStore(self.disk) if self.engine == "memory" else SqliteStore(self.path, may_create=may_create)

    def _open(self) -> bytes:
        """Write entry 0, as `tallystick init` does; return its leaf hash."""
        store = self.open_store(may_create=True)
        batch = build_batch(
            Live(),
            (),
            None,
            batch_id="opening",
            t_ms=OPENED_MS,
            epoch=0,
            imprint=Imprint(ORIGIN, ZERO_HASH, store.durability),
            parameters=self.parameters,
            encode=encode_leaf,
            steps=(opened(self.opening),),
        )
        growth = Growth(EMPTY_EDGE, [leaf_hash(leaf) for leaf in batch.leaves])
        assert batch.head is not None
        head = StoredHead(1, growth.root, batch.head.prev_hash, OPENED_MS, 0, batch.batch_id)
        changes = tuple((key, encode_record(record) if record else None, due) for key, record, due in batch.changes)
        store.commit(StoredBatch(head, batch.leaves, growth.hashes, changes), None)
        store.close()
        return growth.root

    def _genesis(self) -> bytes:
        if self.engine == "memory":
            return leaf_hash(self.disk.leaves[0])
        reader = Reader(self.path)
        (entry,) = reader.entries(0, 1)
        reader.close()
        return leaf_hash(entry.leaf)

    @property
    def opening(self) -> Opening:
        return Opening(
            root=root_vkey(ORIGIN, key_of("root").public_key).vkey,
            keys=tuple(sorted(line.text for line in self._lines())),
            operators=(did_of("op"),),
            enroller=did_of("enroller"),
            authorities=tuple(sorted(AUTHORITIES)),
            is_public=True,
            is_dev=False,
            unicode_version="14.0.0",
            parameters=self.parameters,
        )

    def _lines(self) -> tuple[KeyLine, ...]:
        return signer_of("log", "receipt").lines

    def _keyring(self) -> Keyring:
        document = KeyDocument(ORIGIN, self.genesis, 1, None, self._lines())
        root = root_vkey(ORIGIN, key_of("root").public_key).vkey
        return open_keyring(root=root, document=signed_key_document(document, key_of("root")))

    # -- running ------------------------------------------------------------------------------------------------------

    async def start(self, plan: Sequence[tuple[str, Fault]] = ()) -> None:
        """Start the gateway; the first time, let the operator enrol the agents. `plan` are faults during the start."""
        before, self.store = self.store, FaultyStore(self.open_store())
        if before is not None:
            self.store.storm, self.store.calls, self.store.before = before.storm, before.calls, before.before
        self.store.plan.extend(plan)
        self.sequencer = Sequencer(
            self.store,
            self.signer,
            self.clock,
            self.parameters,
            origin=ORIGIN,
            genesis=self.genesis,
            trace=self.trace,
            is_clock_accepted=self.is_clock_accepted,
            sweeps=False,
            evaluate=self.rules,
            follow_ms=self.follow_ms,
            has_key=self.has_key,
            ask_witnesses=self.ask_witnesses,
        )
        try:
            await self.sequencer.start()
        except BaseException:
            self.store.close()
            raise
        if self._is_new:
            self._is_new = False
            await asyncio.gather(*(self.ask(add("op", name, self.clock.wall)) for name in self.agents))

    async def stop(self) -> None:
        await self.sequencer.stop()

    async def crash(self) -> None:
        """End the gateway as a power cut would between two calls of the store: nothing is finished, nothing kept."""
        for task in self.sequencer._tasks:
            task.cancel()
        await asyncio.gather(*self.sequencer._tasks, return_exceptions=True)
        self.sequencer._thread.shutdown(wait=True)
        self.store.close()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def __aenter__(self) -> World:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- asking -------------------------------------------------------------------------------------------------------

    def anchored(self, ask: Ask) -> Ask:
        """Return `ask` with the newest checkpoint as its anchor."""
        confirmed = self.sequencer.confirmed
        return ask.but(anchor=anchor_text(ORIGIN, confirmed.size, confirmed.root))

    async def ask(self, ask: Ask) -> Answer:
        """Sign, verify and submit one request, and wait for its answer."""
        signed = self.anchored(ask).signed()
        return await self.sequencer.submit(signed, ACTIONS[ask.action])

    async def acquire(self, name: str, *resources: str, **members: Any) -> Answer:
        return await self.ask(acquire(name, *resources, at_ms=self.clock.wall, **members))

    async def settle(self) -> None:
        """Tick, and return when the tick's work is done."""
        self.sequencer.tick()
        while self.sequencer._has_tick or not self.is_idle():  # noqa: ASYNC110  # turns of the loop, no time passes
            await asyncio.sleep(0)

    def is_idle(self) -> bool:
        """Say whether the sequencer waits for something to do."""
        waiter = self.sequencer._wake
        return bool(waiter._waiters) or self.sequencer._tasks[0].done()

    # -- looking ------------------------------------------------------------------------------------------------------

    def leaves(self) -> list[Leaf]:
        """Return every entry of the ledger, parsed."""
        return [parse_leaf(entry.leaf) for entry in self.store.honest.entries(0, 1 << 40)]

    def types(self, first: int = 0) -> list[str]:
        return [leaf.type.split("/")[1] for leaf in self.leaves()[first:]]

    def export(self) -> bytes:
        """Return the one-file export up to the confirmed head."""
        confirmed = self.sequencer.confirmed
        leaves = b"".join(entry.leaf + b"\n" for entry in self.store.honest.entries(0, confirmed.size))
        return f"tallystick-ledger/v1 {ORIGIN} {confirmed.size}\n".encode() + leaves + b"\n" + confirmed.note

    def audit(self, *, has_rules: bool = False) -> None:
        """Let the real verifier judge the whole ledger. Works while the store is open. `has_rules`: rules too."""
        file = self.folder / "audit.ledger"
        file.write_bytes(self.export())
        report = check_ledger(file, self.keyring, self.sequencer.confirmed.note, has_rules=has_rules)
        assert report.exit_code == 0, report.as_text()
