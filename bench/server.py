"""The process under measurement: a whole gateway with everything on, and an empty aiohttp handler beside it.

`python -m bench.server FOLDER PORT [traced] [audited]` serves a fresh ledger in FOLDER on PORT and an empty handler on
PORT + 1, then obeys lines on standard input: `floor` (measure the bare verify + sign here and now), `mark` (say what
was used so far), `stop`. Each is answered by one JSON line. `audited`: it audits itself, as it does outside a bench.

With `traced` the stages are measured as CPU time of the thread that runs them, from outside: the sequencer's trace hook
for its stages, a wrapper around `intake` and `Answer.body` for the desk's. The wrapper looks at one call in SAMPLE: a
thread's CPU time is a system call, and four for each receipt cost about 20 µs.
"""

import asyncio
import json
import resource
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import ParamSpec, TypeVar

import uvloop
from aiohttp import web

from bench.floor import floor_us
from bench.load import agent_key
from gateway import app, service
from gateway.config import Settings
from gateway.core.parameters import Parameters
from gateway.initialise import Plan, default_authorities, initialise
from gateway.ledger.history import Answer
from gateway.ledger.sequencer import Sequencer
from gateway.web import logs
from verifier.wire import encode_base64

ORIGIN = "localhost/bench"
P = ParamSpec("P")
T = TypeVar("T")

# A stage of the sequencer ends at its mark. What precedes `locked` and `committed` is another thread's work.
LOOP_STAGES = {
    "decided": "decide + encode",
    "built": "hash + tree",
    "signed": "sign",
    "checked": "self-check",
    "delivered": "deliver",
}
SAMPLE = 17  # not a divisor of any number of connections, so that takes and releases are both looked at
DESK_STAGES = ((service, "intake_first", "intake: grammar, digest, verify"), (Answer, "body", "render the answer"))


class Stages:
    """CPU seconds of the loop's thread by stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._since_s = 0.0

    def trace(self, stage: str, count: int) -> None:
        """The sequencer's hook: charge what the loop's thread used since the last mark to `stage`."""
        now_s = time.thread_time()
        if stage in LOOP_STAGES:
            self.seconds[LOOP_STAGES[stage]] += now_s - self._since_s
        self._since_s = now_s

    def timed(self, stage: str, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function`, charging SAMPLE times what every SAMPLE-th call uses to `stage`."""
        calls = count()

        def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
            if next(calls) % SAMPLE:
                return function(*args, **kwargs)
            started_s = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[stage] += SAMPLE * (time.thread_time() - started_s)

        return wrapper


def commit_thread_s() -> float:
    """Return the CPU seconds of the sequencer's commit thread."""
    for thread in threading.enumerate():
        if thread.name.startswith("tallystick-commit") and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def snapshot(stages: Stages, gateway: app.Gateway) -> dict[str, object]:
    """Return everything used since the process began; the bench subtracts two of these."""
    counters = gateway.house.sequencer.counters
    return {
        "cpuS": time.process_time(),
        "stagesS": {**stages.seconds, "store (commit thread)": commit_thread_s()},
        "batches": counters.batches,
        "receipts": counters.receipts,
        "memoryKiB": memory_kib(),
        "peakKiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "live": len(gateway.house.sequencer.view),
    }


def memory_kib() -> int:
    """Return the resident memory now."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def plan(folder: Path, port: int, *, is_audited: bool = False) -> Plan:
    """A ledger like any other, except that one agent may do as much as the machine can."""
    settings = replace(Settings(), listen_port=port, metrics_port=port + 2, self_audit=is_audited)
    parameters = Parameters(rate_per_second=1_000_000, rate_burst=1_000_000)
    return Plan(folder, ORIGIN, default_authorities(ORIGIN, settings), settings, True, True, parameters)


async def empty(request: web.BaseRequest) -> web.Response:
    """What aiohttp costs when nothing is done and nothing is logged: read the body, answer 2 kB."""
    await request.read()
    return web.Response(body=b"x" * 2_000)


async def serve(folder: Path, port: int, *, is_traced: bool, is_audited: bool) -> None:
    stages = Stages()
    if is_traced:
        # The bench measures from outside: it puts its wrappers where the composition looks its parts up.
        vars(app)["Sequencer"] = partial(Sequencer, trace=stages.trace)
        for owner, name, stage in DESK_STAGES:
            setattr(owner, name, stages.timed(stage, getattr(owner, name)))
    made = plan(folder, port, is_audited=is_audited)
    initialise(made, int(time.time() * 1_000))
    async with app.running(folder, made.settings) as gateway:
        runner = web.ServerRunner(web.Server(empty, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port + 1).start()
        ledger = gateway.ledger
        say(
            {
                "origin": ledger.origin,
                "anchor": f"{ledger.origin} 1 {encode_base64(ledger.genesis)}",
                "authority": f"127.0.0.1:{port}",
                "did": agent_key(1).did,
            }
        )
        app.settle()
        await obey(stages, gateway)
        await runner.cleanup()


async def obey(stages: Stages, gateway: app.Gateway) -> None:
    loop = asyncio.get_running_loop()
    while (command := (await loop.run_in_executor(None, sys.stdin.readline)).strip()) not in ("stop", ""):
        say(floor_us() if command == "floor" else snapshot(stages, gateway))


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    logs.configure("INFO", Path(sys.argv[1]).with_suffix(".log").open("w", encoding="utf-8"))
    told = sys.argv[3:]
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2]), is_traced="traced" in told, is_audited="audited" in told))
