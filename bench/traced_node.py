"""`tallystick serve` that also tells where the time of a batch goes; `python -m bench.traced_node FOLDER`.

Each line on standard input is answered by one line of figures, all since the start; the bench subtracts two of them.
The wall time of a batch is cut at the sequencer's own marks and at the two calls of the store, as the commit thread
sees them. What lies between a call's end and the mark behind it is the way back to the loop's thread: a queue, the
interpreter's lock, and whatever the loop is at. Looking costs two clock readings for each cut, nothing per receipt.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from gateway import app
from gateway.__main__ import main as tallystick
from gateway.ledger.sequencer import Sequencer
from gateway.store import postgres
from gateway.store.postgres_link import Link
from gateway.store.sqlite import SqliteStore

P = ParamSpec("P")
T = TypeVar("T")

# What ends at each cut, in the order of a batch's life.
STAGES = {
    "lock asked": "gather what has arrived, hand over",
    "lock done": "take the head, look up (store)",
    "locked": "way back to the loop",
    "decided": "decide + encode",
    "built": "hash + tree",
    "commit asked": "hand over",
    "commit done": "commit (store)",
    "committed": "way back to the loop, again",
    "signed": "sign",
    "checked": "self-check",
    "delivered": "deliver",
}
CALLS = ("lock", "commit")


class Cuts:
    """Wall seconds that end at each cut, and CPU seconds of the store's calls. One batch at a time, so one last cut."""

    def __init__(self) -> None:
        self.wall_s: defaultdict[str, float] = defaultdict(float)
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.batches = self.entries = self.trips = 0
        self._last_s = time.perf_counter()

    def cut(self, name: str) -> None:
        now_s = time.perf_counter()
        self.wall_s[name] += now_s - self._last_s
        self._last_s = now_s

    def trace(self, stage: str, count: int) -> None:
        """The sequencer's hook."""
        self.cut(stage)
        if stage == "delivered":
            self.batches += 1
            self.entries += count

    def around(self, name: str, call: Callable[P, T]) -> Callable[P, T]:
        """Return a call of the store, cut before and after."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            self.cut(f"{name} asked")
            began_s = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.cpu_s[name] += time.thread_time() - began_s
                self.cut(f"{name} done")

        return timed

    def counted(self, call: Callable[P, T]) -> Callable[P, T]:
        """Return a call that is a round trip to the server."""

        def counting(*args: P.args, **kwargs: P.kwargs) -> T:
            self.trips += 1
            return call(*args, **kwargs)

        return counting

    def figures(self) -> dict[str, object]:
        """Return everything so far."""
        return {
            "wallS": dict(self.wall_s),
            "cpuS": {**self.cpu_s, "loop's thread": thread_s("MainThread"), "all threads": time.process_time()},
            "batches": self.batches,
            "entries": self.entries,
            "trips": self.trips,
            "nowS": time.perf_counter(),
        }


def thread_s(name: str) -> float:
    """Return the CPU seconds of a thread."""
    for thread in threading.enumerate():
        if thread.name == name and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


def install(cuts: Cuts) -> None:
    """Put the knife where the composition looks its parts up: nothing of it is in the gateway."""
    vars(app)["Sequencer"] = partial(Sequencer, trace=cuts.trace)
    for store in (SqliteStore, postgres.PostgresStore):
        for name in CALLS:
            setattr(store, name, cuts.around(name, getattr(store, name)))
    for name in ("run", "commit"):
        setattr(Link, name, cuts.counted(getattr(Link, name)))


def obey(cuts: Cuts) -> None:
    for _ in sys.stdin:
        print(json.dumps(cuts.figures()), flush=True)


def main() -> int:
    cuts = Cuts()
    install(cuts)
    threading.Thread(target=obey, args=(cuts,), daemon=True).start()
    return tallystick(["serve", "--data", sys.argv[1]])


if __name__ == "__main__":
    sys.exit(main())
