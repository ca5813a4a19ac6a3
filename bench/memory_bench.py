"""Does the gateway's memory grow with the ledger? It should grow with live state only."""

from collections.abc import Iterator

from bench.gateway_bench import running

SETTLE_RECEIPTS = 10_000


def report(receipts: int) -> Iterator[str]:
    """Yield the memory after some receipts and after many more; the live state is the same both times."""
    with running() as bench:
        bench.run_load(64, SETTLE_RECEIPTS)
        before = bench.server.ask("mark")
        yield f"  settled at {before['memoryKiB'] / 1024:.1f} MiB; {receipts:,} receipts more"
        bench.run_load(64, receipts)
        after = bench.server.ask("mark")
    yield ""
    yield "| receipts | resident MiB | live records |"
    yield "| --: | --: | --: |"
    for mark in (before, after):
        yield f"| {mark['receipts']:,} | {mark['memoryKiB'] / 1024:.1f} | {mark['live']} |"
    grown = (after["memoryKiB"] - before["memoryKiB"]) * 1024 / max(1, after["receipts"] - before["receipts"])
    yield ""
    yield f"Grown by {grown:.1f} bytes per receipt."
