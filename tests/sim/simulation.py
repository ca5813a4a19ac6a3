"""One object that owns all chance and all time, and everybody in the world of one seed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from random import Random
from typing import Any

from gateway import news
from gateway.client.batch import cut_batch
from gateway.core import append, expiry
from gateway.core.append import Imprint, build_batch
from gateway.core.opening import Opening, opened
from gateway.core.record_codec import encode_record
from gateway.core.record_keys import ticket_key
from gateway.errors import Busy, Fatal
from gateway.ledger import batches as batches_module
from gateway.ledger import follower
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.live import Live
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.service import Answered, Ledger
from gateway.signer import Signer, key_name
from gateway.store.contract import StoredBatch, StoredHead
from keys.forms import root_vkey
from tests.core.requests import AUTHORITIES, NOW_MS, ORIGIN
from tests.sim.agent import Agent, digest_of
from tests.sim.asking import Asked
from tests.sim.book import Violation
from tests.sim.cheap import cheap_key, cheap_signatures, signing_key
from tests.sim.client import Client, Letter
from tests.sim.company import Trial, Twin, Worker
from tests.sim.config import ADMISSION_FAULTS, KEY_FAULTS, NODE_FAULTS, Config, draw
from tests.sim.engine import Connection, Database
from tests.sim.guard import Guard
from tests.sim.invariants import Checker
from tests.sim.judge import judge
from tests.sim.keeper import Keeper, Room
from tests.sim.loop import VirtualLoop
from tests.sim.node import MachineClock, Node, Process, Reply
from tests.sim.office import Enroller, Operator
from tests.sim.reader import check_picture
from tests.sim.server import Server
from tests.sim.several import Several
from tests.sim.shared import Shared
from tests.sim.telling import Telling
from tests.sim.witnesses import Witness, policy_of
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import ZERO_HASH
from verifier.keyring import KeyDocument, KeyLine
from verifier.merkle import leaf_hash
from verifier.note import Note, make_vkey
from verifier.receipt import check_receipt
from verifier.replay import due

LINES_KEPT = 60
DOWN_S = 20  # how long a machine is away at most
WAKE_S = 7  # a slow engine takes six of them
LATE_MS = 100  # an engine's calls take some ms each
# How long after a fault its traces may last; any other is over when it has happened.
HINDERED_MS = {
    "slow": 7_000, "half_open": 15_000, "in_flight": 5_000, "confirm_lost": 4_000, "lingers": 4_000, "lost": 1_000,
    "kept": 1_000, "unreplicated": 1_000, "confirm_kept": 1_000, "look_fails": 1_000,
}  # fmt: skip
HINDERING = frozenset(
    (
        "busy", "lost", "kept", "unreplicated", "lock_busy", "load_busy", "keep_fails", "slow", "key_lost", "key_kept",
        "witness_slow", "half_open", "in_flight", "confirm_lost", "confirm_kept", "look_fails", "news_busy", "lingers",
        "fail_over", "unreachable",
    )
)  # fmt: skip
WORKERS_MAX = 5  # sessions at a time
QUIET_S = 25  # how long everybody may take to finish when nothing fails any more


@dataclass(frozen=True)
class Result:
    """What a seed gave: the hash of everything that happened, what was decided how often, and what went wrong."""

    seed: int
    trace: str
    counts: dict[str, int]
    violation: Violation | None
    lines: Sequence[str]

    def story(self) -> str:
        """Return the last steps and how to see them again."""
        return "\n".join([*self.lines, "", f"seed {self.seed}: {self.violation}", f"again: make sim SEED={self.seed}"])


def _hand_over(reply_to: asyncio.Future[Reply], reply: Reply) -> None:
    if not reply_to.done():
        reply_to.set_result(reply)


class Network:
    """Carries requests and replies: late, twice, in any order, or not at all."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.swallowed: dict[str, int] = {}  # client: until when everything it sends and gets is lost

    def send(self, letter: Letter) -> None:
        simulation = self._simulation
        if simulation.chance("drop") or self._is_swallowed(letter.client):
            return
        for _ in range(1 + simulation.chance("duplicate")):
            simulation.loop.call_later(self._delay_s(), self._arrive, letter)

    def _delay_s(self) -> float:
        rng = self._simulation.rng
        return rng.uniform(0.5, 8) if self._simulation.chance("late") else rng.uniform(0.001, 0.03)

    def _is_swallowed(self, client: str) -> bool:
        return self._simulation.loop.now_ms < self.swallowed.get(client, 0)

    def _arrive(self, letter: Letter) -> None:
        simulation = self._simulation
        node = simulation.some_node()

        def respond(reply: Reply) -> None:
            if not (simulation.chance("drop_reply") or self._is_swallowed(letter.client)):
                simulation.loop.call_later(self._delay_s(), _hand_over, letter.reply_to, reply)

        if node is None or node.process is None:
            respond(ConnectionRefusedError("no gateway"))
            return
        node.process.handle(letter, respond, may_leave=simulation.chance("leave"))


class Simulation:
    """The world of one seed."""

    start_ms = NOW_MS

    def __init__(self, config: Config, loop: VirtualLoop) -> None:
        self.config = config
        self.loop = loop
        self.rng = Random(f"simulation {config.seed}")
        self.is_over = False
        self.is_calm = True  # no fault happens before everybody is enrolled, and none after the end
        self.violation: Violation | None = None
        self.lines: deque[str | tuple[int, int, int, bytes]] = deque(maxlen=LINES_KEPT)
        self.trace = hashlib.sha256()
        self.hindered_ms = 0  # when the engine last kept a gateway from its work
        self.durable: set[bytes] = set()
        self._decided: Counter[tuple[int, str]] = Counter()  # by process and principal
        self.answers: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.guard = Guard()
        self.checker = Checker(config.due_max)
        self.checker.slack_ms = self._slack_ms()
        self.checker.is_engine_flaky = not ADMISSION_FAULTS.keys().isdisjoint(config.faults)
        self.database = self._database()
        self.folder = {"log": ["log"], "receipt": ["receipt"]}  # the names of the private keys that are there
        self.witnessed_by = self._witnesses()
        self.witnesses = policy_of(self.witnessed_by, config.witnesses // 2 + 1) if self.witnessed_by else None
        self.checker.policy = None if self.witnesses is None else self.witnesses.policy
        self.cosigned: list[tuple[int, bytes, bytes]] = []  # size, root, note: what a quorum cosigned, as it came
        self.signed_size = 0  # of the largest checkpoint signed
        self.is_surely_older = False  # the file in place ends before what the quorum has seen
        self.keeper = Keeper(self)
        self.processes: list[Process] = []  # all that ever were
        self.genesis = self._open()
        self.ledger = Ledger(
            ORIGIN, self.genesis, AUTHORITIES, (self.key("op").did,), self.key("enroller").did, True, False,
            config.parameters, root_vkey(ORIGIN, self.key("root").public_key),
        )  # fmt: skip
        self.network = Network(self)
        self.several = Several(self)
        self.nodes = [
            Node(self, f"node{at}", MachineClock(lambda: loop.now_ms, self.start_ms, offset_ms))
            for at, offset_ms in enumerate(config.offsets_ms[: config.nodes])
        ]
        self.custodial = config.agents[-1] if config.is_custodial else ""
        self.agents = [Agent(self, name) for name in config.agents]
        self.operators = [Operator(self, name) for name in config.operators]
        self.enroller = Enroller(self, "enroller")
        self.asked: list[Asked] = []  # what somebody wants to have approved
        self.workers: list[Worker] = []  # those who still do something
        self._hired: list[asyncio.Task[None]] = []
        self._keys: list[str] = []  # of all sessions so far
        self._number = 0

    def _database(self) -> Database:
        if not self.config.is_replicated:
            return Database(self, self.rng, self._committed, self.loop)
        server = Server(
            self, self.rng, self._committed, self.loop, journal_max=self.config.journal_max, start_ms=self.start_ms
        )
        server.accuse = self.fail
        return server

    @property
    def server(self) -> Server | None:
        """Return the database, where several nodes may write to it."""
        return self.database if isinstance(self.database, Server) else None

    def connect(self) -> Connection:
        """Return the store of a new process."""
        return Connection(self.database) if self.server is None else Shared(self.server)

    def wall_ms(self, node: Node) -> int:
        """Return the wall clock that log time follows where a node writes."""
        return node.clock.now_ms() if self.server is None else self.server.wall_ms

    @property
    def actors(self) -> Sequence[Agent]:
        """Return whoever may hold a lease."""
        return [*self.agents, *self.workers]

    def hire(self, boss: Client) -> None:
        """Let a key of short life begin to act for somebody."""
        if self.is_over or len(self.workers) >= WORKERS_MAX or (isinstance(boss, Worker) and self.rng.random() < 0.8):
            return
        name, key_name, above = f"key{len(self._hired)}", f"key{len(self._hired)}", ""
        if self.rng.random() < 0.15:  # a key that has been, or is, something here
            key_name = self.rng.choice([*self._keys, *self.config.agents, self.config.operators[-1]])
        self._keys.append(key_name)
        if isinstance(boss, Agent) and self.rng.random() < 0.4:
            above = self.rng.choice(self.config.operators)
        worker = Worker(self, name, key_name, boss, above)
        if isinstance(boss, Agent | Operator):
            boss.hired.append(worker.did)
        self._begin(worker)

    def hire_twin(self, first: Worker) -> None:
        """Let a second process use the key of a session."""
        self._begin(Twin(self, first))

    def _begin(self, worker: Worker) -> None:
        async def live() -> None:
            await worker.live()
            self.workers.remove(worker)

        self.workers.append(worker)
        self._hired.append(self._task(live()))

    def _slack_ms(self) -> int:
        """How much sooner in true time a lease may end, beyond one step: each small step of a clock may be followed."""
        is_own = self.config.nodes > 1 and not self.config.is_replicated  # else it is the server's clock that counts
        offsets = [abs(one) for one in self.config.offsets_ms] if is_own else [0]
        is_set = "step_boot" in self.config.faults
        return 2 * max(offsets) + (1 << 40 if is_set else 0)

    def key(self, name: str) -> Any:
        return signing_key(name) if self.config.is_real else cheap_key(name)

    # -- entry 0 ------------------------------------------------------------------------------------------------------

    def _open(self) -> bytes:
        """Write entry 0, as `tallystick init` does; return its leaf hash."""
        lines = tuple(
            KeyLine(purpose, make_vkey(key_name(ORIGIN, purpose), self.key(purpose).public_key))
            for purpose in ("log", "receipt")
        )
        root = root_vkey(ORIGIN, self.key("root").public_key).vkey
        opening = Opening(
            root, tuple(sorted(line.text for line in lines)), (self.key("op").did,), self.key("enroller").did,
            tuple(sorted(AUTHORITIES)), True, False, "14.0.0", self.config.parameters,
            {purpose: self.keeper.promise(purpose) for purpose in self.config.promised},
        )  # fmt: skip
        batch = build_batch(
            Live(), (), None, batch_id="opening", t_ms=self.start_ms, epoch=0,
            imprint=Imprint(ORIGIN, ZERO_HASH, Connection.durability), parameters=self.config.parameters,
            encode=encode_leaf, steps=(opened(opening),),
        )  # fmt: skip
        growth = Growth(EMPTY_EDGE, [leaf_hash(leaf) for leaf in batch.leaves])
        assert batch.head is not None
        head = StoredHead(1, growth.root, batch.head.prev_hash, self.start_ms, 0, batch.batch_id)
        changes = tuple((key, encode_record(record) if record else None, due) for key, record, due in batch.changes)
        self.database.write(StoredBatch(head, batch.leaves, growth.hashes, changes), self.connect())
        self.keeper.open(KeyDocument(ORIGIN, growth.root, 1, None, lines))
        return growth.root

    def _witnesses(self) -> list[Witness]:
        offsets_ms = self.config.witness_offsets_ms
        names = ("north", "south", "west")[: self.config.witnesses]
        honest = [Witness(self, name, at_ms, lies=False) for name, at_ms in zip(names, offsets_ms, strict=False)]
        return [*honest, *(Witness(self, f"liar{at}", 0, lies=True) for at in range(self.config.liars))]

    # -- the gateway's keys -------------------------------------------------------------------------------------------

    def new_signer(self, number: int) -> Telling:
        """Return the signer of a new process, with what lies in the folder; seldom a key in force is missing."""
        newest = [key.vkey for key in self.checker.signing if key.ended_seq is None and key.announced_seq]
        lacking = newest[-1] if newest and self.chance("lacking") else ""
        return Telling(self, lacking)

    def room(self, signer: Signer) -> Room:
        return Room(self, signer)

    def put_key(self, purpose: str, name: str) -> None:
        """Put a private key into the folder; who is not asked at the door takes it at once."""
        if name in self.folder[purpose] or (purpose, name) == ("log", "receipt"):
            return
        self.folder[purpose].append(name)
        for node in self.nodes if self.config.is_past_desk else ():
            if node.process is not None:
                self.room(node.process.signer).has(purpose, self.keeper.vkey(purpose, name))

    def stolen(self) -> tuple[Any, int] | None:
        """Return a log key that was disowned, and the last size that it might have signed."""
        for key in self.checker.signing:
            if key.status == "compromised" and key.purpose == "log" and key.ended_seq is not None:
                names = (name for name in self.folder["log"] if self.key(name).public_key == key.raw)
                return self.key(next(names)), key.ended_seq
        return None

    def cosigns(self, note: bytes, checkpoint: Checkpoint) -> None:
        """A quorum has cosigned, and each line counts: from now on no older copy may be started."""
        try:
            self.checker.cosigned_as_it_must(checkpoint)
        except Violation as violation:
            return self.fail(violation.name, str(violation))
        if not self.cosigned or self.cosigned[-1][0] < checkpoint.size:
            self.cosigned.append((checkpoint.size, checkpoint.root, note))

    # -- chance and time ----------------------------------------------------------------------------------------------

    def chance(self, fault: str) -> bool:
        """Say whether `fault` happens now."""
        if self.is_calm or fault not in self.config.faults:
            return False
        is_now = self.rng.random() < self.config.faults[fault]
        if is_now and (fault in KEY_FAULTS or fault in NODE_FAULTS):
            self.checker.count(f"fault {fault}")
        if is_now and fault in HINDERING:
            self.hindered_ms = max(self.hindered_ms, self.loop.now_ms + HINDERED_MS.get(fault, 0))
        return is_now

    def engine_delay_s(self) -> float:
        return self.rng.uniform(0.1, 3) if self.chance("slow") else self.rng.uniform(0.000_1, 0.004)

    def downtime_s(self) -> float:
        return self.rng.choice([0.05, 1.0, self.rng.uniform(1, DOWN_S)])

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def say(self, *words: object) -> None:
        """Note a step in the trace."""
        line = f"{self.loop.now_ms:7} " + " ".join(map(str, words))
        self.lines.append(line)
        self.trace.update(line.encode())

    # -- what is demanded ---------------------------------------------------------------------------------------------

    def fail(self, name: str, text: str) -> None:
        """Note the first violation and end the run."""
        if self.violation is None:
            self.violation = Violation(name, text)
            self.say("VIOLATION", name, text)
            self.loop.stop()

    def must(self, is_so: bool, name: str, text: str) -> None:
        if not is_so:
            self.fail(name, text)

    def _committed(self, first_seq: int, leaves: Sequence[bytes], decided_ms: int, number: int) -> None:
        self.durable.update(leaves)
        for at, leaf in enumerate(leaves, first_seq):
            self.trace.update(leaf)
            self.lines.append((self.loop.now_ms, at, number, leaf))
        if self.violation is not None:
            return
        try:
            self.checker.batch(first_seq, leaves, decided_ms, number)
        except Violation as violation:
            return self.fail(violation.name, str(violation))
        except Exception as error:  # else it would be taken for the engine's
            self.fail("checker", f"{type(error).__name__}: {error}")
            self.violation.__cause__ = error  # type: ignore[attr-defined]
            return
        self._kill_at_key(first_seq, number)
        self._count(self.checker.leaves[first_seq:], number)
        for entry in self.checker.leaves[first_seq:]:
            if entry["type"].split("/")[1] == "wait.offered":
                self.loop.call_later(WAKE_S, self._must_be_awake, entry["ticketId"], number)
                if self.server is not None:
                    self.several.offered(entry)

    def _kill_at_key(self, first_seq: int, number: int) -> None:
        """Perhaps kill the process that has just committed an entry about a key, before it can sign with it."""
        entries = self.checker.leaves[first_seq:]
        is_key = any(entry["type"].startswith("tallystick/key.") for entry in entries)
        if is_key and self.chance("key_kill"):
            for node in self.nodes:
                if node.process is not None and node.process.number == number:
                    self.loop.call_soon(node.kill)

    def _count(self, entries: Sequence[dict[str, Any]], number: int) -> None:
        """No process lets a principal decide more often than entry 0 says, counted from its start."""
        numbers, now_ms = self.config.parameters, self.loop.now_ms
        if self.config.is_past_desk or not self.config.is_rated or number == 0:  # 0 is who wrote entry 0
            return
        for entry in entries:
            self._decided[number, payer_of(entry)] += cost_of(entry)
        largest = max(entry.get("count", 0) for entry in self.checker.leaves)
        debt = max(0, largest - numbers.rate_burst)  # a batch that costs more than there can be leaves one
        for node in self.nodes:
            if node.process is not None and node.process.number == number:
                most = numbers.rate_burst + debt + numbers.rate_per_second * (now_ms - node.process.since_ms) / 1_000
                for (process, principal), count in self._decided.items():
                    is_so = process != number or count <= most
                    self.must(is_so, "I16", f"{principal[-6:]} had {count} decisions of process {number}, not {most}")

    def _must_be_awake(self, ticket_id: str, number: int) -> None:
        """A claim that is parked with the process that made the offer is not parked any more."""
        for node in self.nodes:
            process = node.process
            if node.is_up and process is not None and process.number == number:
                is_parked = ticket_key(ticket_id) in process.sequencer.parking._spots
                self.must(not is_parked, "I14", f"the claim of {ticket_id} sleeps on")

    def signs(self, text: str | None, leaf: bytes) -> None:
        """A signature is made: what it speaks for is durable already, whoever gets to see it."""
        roots = self.checker.roots.at
        if text is None:
            self.must(leaf in self.durable, "I4", "a leaf is signed that is not durable")
        else:
            _, size, root, *_ = text.split("\n")
            is_ours = int(size) < len(roots) and b64encode(roots[int(size)]).decode() == root
            self.must(is_ours, "I4", f"a checkpoint of size {size} is signed that is not durable")

    def signed(self, note: Note, size: int) -> None:
        """A checkpoint is signed: by whom it must be."""
        self.signed_size = max(self.signed_size, size)
        if self.violation is None and size <= len(self.checker.raw):
            try:
                self.checker.signed_as_it_must(note, size)
            except Violation as violation:
                self.fail(violation.name, str(violation))

    def signed_leaf(self, seq: int, vkey: str) -> None:
        """A leaf is signed: by the oldest receipt key whose bounds its number lies in."""
        if seq < len(self.checker.raw):
            wanted = [key.vkey for key in self.checker.signers("receipt", seq)][:1]
            self.must([vkey] == wanted, "I17", f"entry {seq} is signed by {vkey}, not {wanted}")

    def answered(self, reply: Answered) -> None:
        """An answer leaves a gateway: from now on it must be true for ever."""
        self.must(reply.seq < len(self.checker.raw), "I4", f"entry {reply.seq} is answered and not durable")

    def received(self, client: str, key: str, raw: Sequence[bytes], reply: Answered) -> None:
        """A client has an answer: it is in the ledger, it answers this key, and it always has the same bytes.

        `raw` is its leaf, for a batch with those of its commands behind.
        """
        for seq, leaf in enumerate(raw, reply.seq):
            self.answers[seq] = leaf
            self.must(self.checker.raw[seq] == leaf, "I4", f"the answer of entry {seq} is not in the ledger")
        first = self.bodies.setdefault(reply.seq, reply.body)
        self.must(first == reply.body, "I4", f"entry {reply.seq} was answered in two ways")
        if self.config.is_real:
            cut = cut_batch(reply.body) if len(raw) > 1 else None
            for receipt in cut.receipts if cut else (reply.body.partition(b'"receipt":')[2][:-1],):
                self.keeper.publish()  # who has an older document fetches the new one
                report = check_receipt(receipt, self.keeper.keyring)
                is_so = report.exit_code == 0 or (report.exit_code == 3 and self.config.is_rotating)
                self.must(is_so, "I4", report.as_text())
        is_its = self.checker.leaves[reply.seq]["request"]["idempotencyKey"] == key
        self.must(is_its, "I5", f"{client} got entry {reply.seq} under key {key}")

    def turned_away(self, did: str, row: str) -> None:
        """Somebody is refused without an entry: what the refusal says must have come about by now."""
        self.checker.count(row)
        fault = self.checker.fault_of_row(did, row)
        self.must(fault is None, "stranger", f"{did[-6:]} is told {row}, but {fault}")

    def history_denied(self, client: str, anchor: str) -> None:
        """A gateway does not know an anchor: it was never a checkpoint of this ledger, or an older file is there."""
        _, size, root = anchor.split(" ")
        roots = self.checker.roots.at

        is_ours = int(size) < len(roots) and b64encode(roots[int(size)]).decode() == root
        self.must(not is_ours or self.database.is_older, "I4", f"the gateway denies its own checkpoint at {size}")

    def nothing_overdue(self) -> None:
        """While a process is up and nothing hinders it, its sweeper ends whatever is due, and true time is the judge.

        Worlds whose clocks are set differently are left out: there log time is not true time.
        """
        late_ms, now_ms = 2 * self.config.parameters.sweep_ms + LATE_MS, self.loop.now_ms
        since_ms = max(self.hindered_ms, *(node.process.ready_ms if node.process else now_ms for node in self.nodes))
        is_judged = now_ms - since_ms > late_ms and self.checker.slack_ms == 0 and all(one.is_up for one in self.nodes)
        if is_judged and not self.database.is_failing and not self.database.is_older:
            try:
                wall_ms = min(map(self.wall_ms, self.nodes)) - late_ms
                self.checker.nothing_overdue(now_ms - late_ms, wall_ms)
            except Violation as violation:
                self.fail(violation.name, str(violation))

    # -- the world's own faults ---------------------------------------------------------------------------------------

    def some_node(self) -> Node | None:
        """Return a node that serves, any of them."""
        up = [node for node in self.nodes if node.is_up]
        return self.rng.choice(up) if up else None

    def node_skew_ms(self, now_ms: int) -> int:
        return self.wall_ms(self.nodes[0]) - now_ms

    def before_start(self, node: Node) -> None:
        """What a person does before a gateway is started again: the newest file is there, the clock is about right.

        Behind witnesses the older file may stay: where it ends before what their quorum has seen, nothing starts.
        """
        seen = self.cosigned[-1][0] if self.cosigned else 0
        is_older = self.database.is_older and len(self.database.disk.leaves) < seen
        self.is_surely_older = is_older and self.chance("stay_older")
        if self.is_surely_older:
            self.say(node.name, "an older copy stays in place")
        else:
            self.database.put_newest_file()
        if abs(node.clock.offset_ms) > 20_000:
            node.clock.offset_ms = self.rng.randint(-2_000, 2_000)
        if self.server is not None and abs(self.server.clock_offset_ms) > 20_000:
            self.server.clock_offset_ms = self.rng.randint(-2_000, 2_000)
            self.checker.slack_ms += 2_000

    async def direct(self) -> None:
        """Let happen what happens to machines."""
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.2, 5))
            node = self.rng.choice(self.nodes)
            self._look(node)
            if self.chance("kill"):
                node.kill()
            if self.chance("kill_at_step"):
                self.loop.at_step(self.rng.randrange(1, 60), node.kill)
            if self.chance("graceful") and node.is_up and node.process:
                self.loop.create_task(node.process.stop())
            if self.chance("dispute") and node.is_up and node.process:
                self._task(self._dispute(node.process))
            if self.witnessed_by and self.chance("witness_down"):
                down = self.rng.choice(self.witnessed_by)
                down.down_until_ms = self.loop.now_ms + self.rng.randint(500, 15_000)
            if self.chance("failing_disk"):
                self.database.is_failing = True
                self.loop.call_later(self.rng.uniform(0.1, 4), self._heal_disk)
            self._clocks_and_files(node)
            if self.server is not None:
                self.several.let_happen(self.server, node)
            if self.chance("partition"):
                self.network.swallowed[self.rng.choice(self.config.agents)] = self.loop.now_ms + self.rng.randint(
                    1, 9_000
                )

    def hinder(self, ms: int) -> None:
        """Whatever is demanded of gateways that nothing hinders is not demanded for so long."""
        self.hindered_ms = max(self.hindered_ms, self.loop.now_ms + ms)

    def _look(self, node: Node) -> None:
        """Compare what people are shown with the leaves, when nothing is on its way between the two."""
        process = node.process
        if not node.is_up or process is None or process.sequencer.confirmed.size != len(self.checker.raw):
            return
        live, t_ms = process.sequencer.view, process.sequencer.time_ms
        try:
            check_picture(live, self.checker.book, t_ms, self.config.parameters)
        except Violation as violation:
            self.fail(violation.name, str(violation))

    async def _dispute(self, process: Process) -> None:
        """Show a gateway the checkpoint of another history that it signed: from then on nothing is granted."""
        size = process.sequencer.confirmed.size
        note = Signer.sign_checkpoint(process.signer, size, b"\x07" * 32)
        with suppress(Busy, Fatal, asyncio.CancelledError):
            await process.sequencer.dispute(note, parse_checkpoint(note))

    def _clocks_and_files(self, node: Node) -> None:
        rng = self.rng
        if self.chance("step_wall"):
            node.clock.offset_ms += rng.choice([-3_600_000, -10_000, -1_000, 1_000, 10_000, 3_600_000])
            self.say(node.name, "wall clock is off by", node.clock.offset_ms)
            self.checker.slack_ms += 2_000
        if self.chance("step_boot"):
            node.clock.boot_offset_ms += rng.choice([500, 5_000, 60_000])
            self.say(node.name, "boot clock is off by", node.clock.boot_offset_ms)
        if "older_file" in self.config.faults:
            if self.chance("older_file"):
                if node.is_up and self.database.put_older_file():
                    self.say("an older file is put in place of the ledger")
            elif not self.database.is_older:
                self.database.back_up()

    def _heal_disk(self) -> None:
        self.database.is_failing = False
        self.hindered_ms = max(self.hindered_ms, self.loop.now_ms)

    # -- the run ------------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        """The whole life of a world: set up, faults, calm, end."""
        for node in self.nodes:
            self._task(node.supervise())
        while self.some_node() is None:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        await self._set_up()
        self.is_calm = False
        self.loop.each_turn = self.several.look if self.server is not None else None
        lives = [self._task(one.live()) for one in self.agents]
        lives += [self._task(one.live()) for one in self.operators]
        lives += [self._task(self.keeper.live())] if self.config.is_rotating else []
        director = self._task(self.direct())
        end_s = self.config.duration_ms / 1_000
        while self.loop.time() < end_s and len(self.checker.raw) < self.config.requests_max:
            await asyncio.sleep(0.25)
            self.nothing_overdue()
        self._calm_down()
        quiet_s = self._quiet_s()
        lives += self._hired
        _, late = await asyncio.wait([*lives, director], timeout=quiet_s)
        self.must(
            not late, "I14", f"{len(late)} of {len(lives)} are still not answered, {quiet_s} s after the last fault"
        )
        await self._rest()

    async def _set_up(self) -> None:
        """Enrol everybody; in good company each operator has agents of its own."""
        first, *others = self.operators
        for operator in others:
            await first.insist("operator.add", operator=operator.did, name=operator.name)
        for at, agent in enumerate(self.agents):
            await self.operators[at % len(self.operators)].enrol(agent)
        for scheme in self.config.schemes:
            await first.set_scheme(scheme)
        if "api_keys" in self.config.faults or self.config.trial_names:
            for kind in ("live", "trial"):
                await first.insist("apikey.issue", keyDigest=digest_of(kind), kind=kind)
        if self.config.trial_names:
            self.agents.append(Trial(self, "tri"))

    def _quiet_s(self) -> float:
        """Return how long after the last fault everything that lives has ended by itself."""
        config, numbers = self.config, self.config.parameters
        longest_ms = max(30_000, config.ttl_ms[1]) + (numbers.session_idle_ms if config.session_share else 0)
        if config.is_rated and config.batch_share:
            longest_ms += 60_000  # what is owed for batches is paid slowly
        return QUIET_S + (longest_ms + numbers.holiday_ms + config.give_up_ms) / 1_000

    def _calm_down(self) -> None:
        """End every fault, and bring back what a person would bring back."""
        self.say("calm")
        self.is_calm = True
        self.is_over = True
        self.database.is_failing = False
        self.checker.slack_ms += 2_000  # the step that sets the clocks right
        for node in self.nodes:
            node.clock.offset_ms = 0
        if self.server is not None:
            self.server.heal()
        elif len(self.nodes) > 1:  # two that do not follow each other take turns for ever: one goes on, anew
            self.nodes[1].is_held_down = True
            self.nodes[1].kill()
            self.nodes[0].kill()
        if self.database.is_older:
            for node in self.nodes:
                node.kill()
            self.database.put_newest_file()
        self.network.swallowed.clear()
        for witness in self.witnessed_by:
            witness.down_until_ms = 0

    async def _rest(self) -> None:
        """After all leases have run out: nothing is left, and one more start finds everything in order."""
        book, end_s = self.checker.book, self.loop.time() + self._quiet_s()
        while (book.leases or book.tickets or book.open_sessions()) and self.loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(1)
        self.checker.at_rest()
        for machine in self.nodes:
            machine.kill()
        await asyncio.sleep(DOWN_S + 1)
        node = self.some_node()
        if node is None or node.process is None:
            return self.fail("I14", "no gateway runs although nothing fails any more")
        judge(self, node.process)
        for seq, raw in self.answers.items():
            self.must(self.database.disk.leaves[seq] == raw, "I4", f"entry {seq} was answered and is gone")

    def _task(self, coroutine: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, Violation):
                self.fail(error.name, str(error))
            elif self.violation is None:
                self.fail("crash", f"{type(error).__name__}: {error}")
                self.violation.__cause__ = error  # type: ignore[attr-defined]


def payer_of(entry: dict[str, Any]) -> str:
    """Return whose allowance a request takes from."""
    match entry["type"].split("/")[1], entry.get("body", {}):
        case "session.opened", {"delegations": [*_, {"statement": {"iss": str(issuer)}}]}:
            return issuer
        case _, {"keyDigest": str(digest), "proof": _}:
            return f"apikey {digest}"
    return str(entry["principal"])


def cost_of(entry: dict[str, Any]) -> int:
    """Return what an entry costs at least: a batch as much as its commands, which have entries of their own."""
    kind = entry["type"].split("/")[1]
    if kind == "batch.refused":
        return int(entry["count"])
    return int("request" in entry and kind != "batch.received")


def _line(line: str | tuple[int, int, int, bytes]) -> str:
    """Return a step of the trace as text; entries are put in words only for those that are read."""
    if isinstance(line, str):
        return line
    now_ms, seq, number, raw = line
    return f"{now_ms:7}   entry {seq} by process {number}: {_short(raw)}"


def _short(raw: bytes) -> str:
    leaf = json.loads(raw)
    facts = [f"t={leaf['timeMs'] - NOW_MS}", leaf["type"].split("/")[1], leaf["actor"][-6:]]
    for name in ("error", "resources", "mode", "leaseId", "ticketId", "fencingToken", "expiresAtMs", "untilMs"):
        if name in leaf:
            facts.append(f"{name}={leaf[name]}")
    return " ".join(facts)


def run(
    seed: int, change: Callable[[Config], Config] | None = None, watch: Callable[[Simulation], None] | None = None
) -> Result:
    """Play one seed to its end and say what came of it; `change` edits the drawn configuration."""
    config = draw(seed)
    if change is not None:
        config = change(config)
    loop = VirtualLoop()
    was_disabled, batch_max = logging.root.manager.disable, batches_module.BATCH_MAX
    due_max = expiry.EXPIRIES_MAX
    real = news.monotonic, follower.random  # type: ignore[attr-defined]
    news.monotonic, follower.random = loop.time, Random(f"following {seed}")  # type: ignore[attr-defined,assignment]
    logging.disable(logging.CRITICAL)
    batches_module.BATCH_MAX = config.batch_max
    _let_lapse(config.due_max)
    try:
        with nullcontext() if config.is_real else cheap_signatures():
            simulation = Simulation(config, loop)
            if watch is not None:
                watch(simulation)
            asyncio.set_event_loop(loop)
            main = simulation._task(simulation.play())
            main.add_done_callback(lambda _: loop.stop())
            loop.run_forever()
    finally:
        for process in simulation.processes:
            process.thread.kill()
        asyncio.set_event_loop(None)
        news.monotonic, follower.random = real  # type: ignore[attr-defined]
        batches_module.BATCH_MAX = batch_max
        _let_lapse(due_max)
        _put_away(loop)
        logging.disable(was_disabled)
    counts = simulation.checker.counts
    return Result(seed, simulation.trace.hexdigest(), counts, simulation.violation, tuple(map(_line, simulation.lines)))


def _let_lapse(most: int) -> None:
    """Set how many ends a batch writes before it goes on to commands."""
    for module in (append, expiry):
        module.EXPIRIES_MAX = most  # type: ignore[attr-defined]
    due.ENDS_MAX = most  # what an auditor demands of it (17.9)


def _put_away(loop: VirtualLoop) -> None:
    """Cancel what still runs, so that nothing is left of a world."""
    loop._scheduled.clear()  # type: ignore[attr-defined]
    for task in asyncio.all_tasks(loop):
        task.cancel()
    for _ in range(20):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()
