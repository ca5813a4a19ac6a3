"""The same commands one by one and as batches: what is saved by signing, sending and proving once for many.

The rows take turns, and so does the drift of the machine. Single requests come over as many connections as suit them
best; batches over fewer, so that about as many commands are under way.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.gateway_bench import Round, measure, middle, running


@dataclass(frozen=True, slots=True)
class Way:
    """How commands are sent: `commands` in a batch, 0 for single requests."""

    connections: int
    commands: int = 0
    is_bare: bool = False

    @property
    def name(self) -> str:
        if not self.commands:
            return "single requests"
        return f"batches of {self.commands}{', bare' if self.is_bare else ''}"


WAYS = (Way(64), Way(64, 1), Way(64, 1, True), Way(16, 16), Way(16, 16, True), Way(4, 256), Way(4, 256, True))


def report(receipts: int, rounds: int) -> Iterator[str]:
    """Yield the table of batches beside single requests, measuring as it goes."""
    measured: dict[Way, list[Round]] = {way: [] for way in WAYS}
    with running() as bench:
        for number in range(rounds):
            for way, results in measured.items():
                count = receipts // (way.connections * max(1, way.commands)) * way.connections * max(1, way.commands)
                one = measure(bench, way.connections, count, commands=way.commands, is_bare=way.is_bare)
                results.append(one)
                yield f"  round {number + 1}/{rounds}, {way.name}: {one.cpu_us:.0f} µs a receipt"
    yield from _table({way: middle(results) for way, results in measured.items()})


def _table(rounds: dict[Way, Round]) -> Iterator[str]:
    yield ""
    yield (
        "| sent as | connections | receipts/s | p50 of a request ms | receipts per commit | bytes answered per receipt "
        "| CPU µs per receipt | ratio to the floor |"
    )
    yield "| --- | --: | --: | --: | --: | --: | --: | --: |"
    for way, one in rounds.items():
        yield (
            f"| {way.name} | {way.connections} | {one.per_second:,.0f} | {one.p50_ms:.2f} | {one.per_commit:.1f} "
            f"| {one.answer_bytes:,.0f} | {one.cpu_us:.0f} | {one.ratio:.2f} |"
        )
