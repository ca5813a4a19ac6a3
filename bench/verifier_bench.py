"""The offline verifier beside the bare signature check it is made of, on one core and on two.

The receipts and the ledger come from a real gateway under load. The bare check is measured in the same process before
and after. A receipt makes three checks (direct signature, checkpoint, request), an entry of a ledger one.
"""

import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.floor import floor_us
from bench.gateway_bench import Bench, running
from gateway.export import export_file
from gateway.store.sqlite import Reader
from verifier.keyring import Keyring, open_keyring
from verifier.receipt import check_receipt
from verifier.replay.ledger import check_ledger

CHECKS_PER_RECEIPT = 3
RECEIPTS = 2_000
FIRST_SEQ = 100  # past entry 0 and the entries of the start, which nobody signed a request for


@dataclass(frozen=True, slots=True)
class Line:
    """One row: what was verified, on how many cores, per second, and per signature over the bare check."""

    what: str
    cores: int
    per_second: float
    us_per_check: float
    bare_us: float


def report(receipts: int) -> Iterator[str]:
    """Yield the lines of the verifier's table."""
    with running() as bench:
        bench.run_load(64, max(receipts, RECEIPTS + FIRST_SEQ))
        samples = fetch(bench, range(FIRST_SEQ, FIRST_SEQ + RECEIPTS))
        keyring, export, entries = publish(bench)
        lines = [
            timed("receipts", 1, CHECKS_PER_RECEIPT, len(samples), lambda: verify(samples, keyring)),
            timed("receipts", 2, CHECKS_PER_RECEIPT, len(samples), lambda: verify_on_two(samples, keyring)),
            timed("ledger entries", 1, 1, entries, lambda: audit(export, keyring, 1)),
            timed("ledger entries", 2, 1, entries, lambda: audit(export, keyring, 2)),
        ]
    yield ""
    yield "| verified | cores | per second | wall µs × cores per signature | bare check µs | ratio |"
    yield "| --- | --: | --: | --: | --: | --: |"
    for line in lines:
        yield (
            f"| {line.what} | {line.cores} | {line.per_second:,.0f} | {line.us_per_check:.0f} | {line.bare_us:.0f} "
            f"| {line.us_per_check / line.bare_us:.2f} |"
        )


def fetch(bench: Bench, seqs: range) -> list[bytes]:
    """Return the receipts of `seqs` as the gateway serves them."""
    base = f"http://127.0.0.1:{bench.port}/api/v1/acp/ledger/receipts/"
    receipts = []
    for seq in seqs:
        with urllib.request.urlopen(f"{base}{seq}", timeout=10) as answer:
            receipts.append(answer.read())
    return receipts


def publish(bench: Bench) -> tuple[Keyring, Path, int]:
    """Return the pins, the exported ledger and how many entries it has."""
    public = bench.folder / "public"
    keyring = open_keyring(
        root=(public / "root.vkey").read_text("ascii").strip(),
        document=(public / "keys.note").read_bytes(),
        policy=(public / "policy.txt").read_bytes(),
    )
    reader = Reader(bench.folder / "ledger.sqlite3")
    extent = export_file(reader, bench.folder / "bench.export")
    reader.close()
    return keyring, bench.folder / "bench.export", extent.size


def verify(receipts: Sequence[bytes], keyring: Keyring) -> None:
    for receipt in receipts:
        report = check_receipt(receipt, keyring)
        if report.exit_code:
            raise SystemExit(f"bench: a receipt does not verify:\n{report.as_text()}")


def verify_on_two(receipts: Sequence[bytes], keyring: Keyring) -> None:
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(verify, (receipts[0::2], receipts[1::2]), (keyring, keyring)))


def audit(export: Path, keyring: Keyring, jobs: int) -> None:
    report = check_ledger(export, keyring, jobs=jobs)
    if report.exit_code:
        raise SystemExit(f"bench: the ledger does not verify:\n{report.as_text()}")


def timed(what: str, cores: int, checks: int, count: int, run: Callable[[], None]) -> Line:
    """Run once between two measurements of the bare check."""
    bare = floor_us()["verify"]
    started_s = time.perf_counter()
    run()
    wall_s = time.perf_counter() - started_s
    bare = (bare + floor_us()["verify"]) / 2
    return Line(what, cores, count / wall_s, wall_s * cores / (count * checks) * 1e6, bare)
