"""Fifty agents want one file at the same moment, each for a moment: once with refusals and advice, once in line.

A real gateway in a process of its own; the agents are the client as it is shipped, in this process, one connection
each. What they send is written down as it is sent; what became of it is read out of the exported ledger.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import quantiles, stdev

import uvloop

from bench.gateway_bench import Bench, running
from gateway.client import Agent
from gateway.client.profile import Address, Profile
from gateway.client.transport import HttpTransport, Reply
from gateway.export import export_file
from gateway.store.sqlite import Reader
from keys.signing import SigningKey
from verifier.entries import ACTION_PATHS, Leaf, parse_leaf
from verifier.keyring import open_keyring
from verifier.replay.source import open_source

AGENTS = 50
HOLD_S = 0.04
WAIT_MS = 120_000
TTL_MS = 30_000
FILE = "repo:app/src/main.py"
TRIES = frozenset({ACTION_PATHS["lease.acquire"], ACTION_PATHS["wait.claim"]})
PREFIX = "/api/"
COLUMNS = 60
RUSH_S = 0.1
WINDOW_S = 0.005
BARS = " ▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Crowd:
    """What they did: when each try was sent, how many requests went to each path, how long each agent waited."""

    started_s: float = field(default_factory=time.perf_counter)
    sent_s: list[float] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)

    @property
    def later_s(self) -> list[float]:
        """The tries after the rush at the start, in which all come at once."""
        return [at for at in self.sent_s if at > RUSH_S]

    def note(self, path: str) -> None:
        self.paths[path] += path.startswith(PREFIX)  # proofs of history are read elsewhere, once a session
        if path in TRIES:
            self.sent_s.append(time.perf_counter() - self.started_s)


class NotingTransport(HttpTransport):
    """The client's own transport; it notes what is sent."""

    def __init__(self, url: str, crowd: Crowd) -> None:
        super().__init__(url)
        self._crowd = crowd

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, timeout_ms: int
    ) -> Reply:
        self._crowd.note(target.partition("?")[0])
        return await super().send(method, target, headers, body, timeout_ms)


def report() -> Iterator[str]:
    """Yield the table of both ways, and for each a line that shows when the tries arrived."""
    rows, pictures = [], []
    for way in ("refusals and advice", "in line, by ticket"):
        yield f"  {AGENTS} agents, {way}"
        with running() as bench:
            crowd = uvloop.run(play(bench, is_in_line="ticket" in way))
            leaves = read(bench)
        rows.append(row(way, crowd, leaves))
        pictures += [
            "",
            f"Tries over time, {way} (each column {span_ms(crowd):.0f} ms; the highest bar is {peak(crowd)}):",
        ]
        pictures += ["", "```", histogram(crowd), "```"]
    yield ""
    yield (
        f"| {AGENTS} agents on one file, {HOLD_S * 1_000:.0f} ms each | requests per grant | refused per grant "
        "| woken per release | longest wait s | all done s | between tries ms: median, p90, p99, std | most in 5 ms |"
    )
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    yield from rows
    yield from pictures


async def play(bench: Bench, *, is_in_line: bool) -> Crowd:
    """Let all begin at once; return when each has had the file once."""
    public = bench.folder / "public"
    address = Address(f"http://127.0.0.1:{bench.port}", bench.ledger["origin"], bench.ledger["authority"])
    keyring = open_keyring(
        root=(public / "root.vkey").read_text("ascii").strip(), document=(public / "keys.note").read_bytes()
    )
    crowd, gate = Crowd(), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for _ in range(AGENTS):
            profile = Profile(address, SigningKey.generate(), keyring)
            group.create_task(work(profile, crowd, gate, is_in_line=is_in_line))
        await asyncio.sleep(1)  # until all have opened; what they read before does not count
        crowd.started_s = time.perf_counter()
        crowd.paths.clear()
        gate.set()
    return crowd


async def work(profile: Profile, crowd: Crowd, gate: asyncio.Event, *, is_in_line: bool) -> None:
    async with Agent(profile, connect=lambda url: NotingTransport(url, crowd)) as agent:
        await gate.wait()
        if is_in_line:
            grant = await agent.wait_for(FILE, ttl_ms=TTL_MS, wait_ms=WAIT_MS)
        else:
            grant = await agent.acquire(FILE, ttl_ms=TTL_MS, wait_ms=WAIT_MS)
        crowd.waits_s.append(time.perf_counter() - crowd.started_s)
        await asyncio.sleep(HOLD_S)
        await agent.release(FILE, grant.lease_id)


def read(bench: Bench) -> list[Leaf]:
    """Return the entries that speak of the file."""
    reader = Reader(bench.folder / "ledger.sqlite3")
    export_file(reader, bench.folder / "bench.export")
    reader.close()
    with open_source(bench.folder / "bench.export") as source:
        leaves = [parse_leaf(leaf) for leaf in source.leaves]
    return [
        leaf
        for leaf in leaves
        if FILE in str(leaf.value.get("resources", "")) or leaf.type.startswith("tallystick/wait.")
    ]


def row(way: str, crowd: Crowd, leaves: Sequence[Leaf]) -> str:
    kinds = Counter(leaf.type.split("/")[1] for leaf in leaves)
    grants = kinds["lease.granted"] + kinds["lease.claimed"]
    assert grants == AGENTS == len(crowd.waits_s), kinds
    return (
        f"| {way} | {crowd.paths.total() / grants:.1f} | {kinds['lease.refused'] / grants:.1f} "
        f"| {woken(leaves):.2f} | {max(crowd.waits_s):.2f} | {max(crowd.waits_s) + HOLD_S:.2f} "
        f"| {spread(crowd.later_s)} | {densest(crowd.later_s)} |"
    )


def woken(leaves: Sequence[Leaf]) -> float:
    """Return how many tries each release set off, in the mean: those decided between it and the next release.

    In line that is the offers, for nobody else moves; without a line it is whoever happens to ask.
    """
    kinds = [leaf.type.split("/")[1] for leaf in leaves]
    after = kinds[kinds.index("lease.released") : -1]  # the last release may not be in the export yet
    tries = {"wait.offered"} if "wait.offered" in kinds else {"lease.refused", "lease.granted"}
    return sum(kind in tries for kind in [*after, kinds[-1]]) / after.count("lease.released")


def spread(sent_s: Sequence[float]) -> str:
    """Return median, 90th and 99th percentile and standard deviation of the times between tries, in ms."""
    gaps_ms = [(later - earlier) * 1_000 for earlier, later in pairwise(sent_s)]
    if len(gaps_ms) < 2:
        return "no tries"
    cuts = quantiles(gaps_ms, n=100)
    return f"{cuts[49]:.1f}, {cuts[89]:.1f}, {cuts[98]:.1f}, {stdev(gaps_ms):.1f}"


def densest(sent_s: Sequence[float]) -> int:
    """Return the most tries within any WINDOW_S."""
    return max((sum(at <= other < at + WINDOW_S for other in sent_s) for at in sent_s), default=0)


def span_ms(crowd: Crowd) -> float:
    return max(crowd.sent_s) * 1_000 / COLUMNS


def counts(crowd: Crowd) -> list[int]:
    at = Counter(min(COLUMNS - 1, int(sent * COLUMNS / max(crowd.sent_s))) for sent in crowd.sent_s)
    return [at[column] for column in range(COLUMNS)]


def peak(crowd: Crowd) -> int:
    return max(counts(crowd)[1:])


def histogram(crowd: Crowd) -> str:
    """Return one line from its left border on; the first column holds the common start and is cut off at the top."""
    top = peak(crowd)
    return "|" + "".join(
        BARS[min(len(BARS) - 1, -(-count * (len(BARS) - 1) // max(1, top)))] for count in counts(crowd)
    )
