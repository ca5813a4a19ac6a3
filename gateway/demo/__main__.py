"""`tallystick demo`: the whole promise in half a minute, and exit code 0 only if every part of it held.

A gateway with throw-away keys and a witness beside it, a swarm that replays real work under leases, two workers killed,
a session that falls silent and one that is revoked, a program without a key, many commands at once, an act that needs
an approval; in the middle of all that the log key is changed. Then, with everything gone, every receipt and the whole
ledger are verified offline, a thief's other history is proven to be one, and a flipped bit is refused. What it made
stays in a folder, so that you can verify it again yourself. It asserts relations, never counts: the counts depend on
the machine.
"""

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import LeaseLost
from gateway.client.join import join
from gateway.client.profile import open_profile
from gateway.demo import admissions, company, scene
from gateway.demo.checks import GRANTS, count, waits
from gateway.demo.judge import Verdict, judge_gate, judge_sessions, judge_waiting, judge_work
from gateway.demo.offline import judge_audits, judge_rules, judge_theft, pins_of, verify
from gateway.demo.recorder import Record, leaf_of
from gateway.demo.server import free_url, gateway, make_ledger, witness
from gateway.demo.swarm import TTL_MS, Swarm
from gateway.demo.trace import Piece, read_pieces
from gateway.demo.watch import Audit, Theft, Watch, rules_option, upgrade
from verifier.replay.source import open_source
from verifier.wire import (
    LEAF_BYTES_MAX,
    RECEIPT_BYTES_MAX,
    JsonObject,
    decode_base64,
    encode_base64,
    parse_canonical,
    parse_json,
)

COMPRESSION = 600  # the trace's 107 minutes pass in 11 s, and what collides waits a little longer
EXPIRY_SECONDS_MAX = 30
TOO_BUSY = f"""
tallystick demo: a worker could not renew its lease within {TTL_MS // 1_000} s, so it stopped, as it should.
This machine has too much else to do. Run it again, or more slowly: tallystick demo --compression {COMPRESSION // 6}"""
PROGRESS_PIECES = 10
COMPRESSION_MIN, COMPRESSION_MAX = 0.1, 100_000.0
PUBLISHED = ("root.vkey", "keys.note", "policy.txt")
RECEIPTS = ("receipt.json", "flipped.json", "command.json", "custodial.json")
THEFT = ("witnessed.checkpoint", "forged.checkpoint", "evidence.json")
KEPT = frozenset({*PUBLISHED, *RECEIPTS, *THEFT, "ledger.export"})  # the last one earlier demos left; it goes
TILES, AUDIT = "tiles", "audit"
# Folders that a demo leaves, and what lies in them.
FOLDERS = {TILES: {"checkpoint", "tile"}, AUDIT: {"nodes", "position"}}


def main(argv: Sequence[str]) -> int:
    """Run the demo; 0 when everything it promises was true, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="tallystick demo",
        description="A swarm replays real work under leases; then everything is verified offline.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo-out"),
        metavar="DIR",
        help="folder for the receipt, the ledger and the keys; new, empty or of an earlier demo (default ./demo-out)",
    )
    parser.add_argument(
        "--compression",
        type=_compression,
        default=COMPRESSION,
        metavar="N",
        help=f"how many times faster than life the trace is replayed (default {COMPRESSION})",
    )
    told = parser.parse_args(argv)
    refusal = refusal_of(told.out)
    if refusal:
        print(f"tallystick demo: {refusal}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="tallystick-demo-") as folder:
        try:
            verdict = asyncio.run(play(Path(folder), told.out, told.compression))
        except* LeaseLost:
            verdict = None
    if verdict is None:
        print(TOO_BUSY, file=sys.stderr)
        return 1
    return _close(verdict, told.out)


def _compression(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not COMPRESSION_MIN <= number <= COMPRESSION_MAX:  # what is no number at all is not between them either
        raise argparse.ArgumentTypeError(f"must be a number from {COMPRESSION_MIN:g} to {COMPRESSION_MAX:,.0f}")
    return number


def refusal_of(out: Path) -> str | None:
    """Make `out` if need be, or say why the demo can't leave its files there: it never replaces what is not its own."""
    try:
        if not os.path.lexists(out):
            out.mkdir(parents=True)  # now, so that a place where nothing can be made costs nobody a run
        if not out.is_dir():
            return f"{out} is not a folder; choose another with --out DIR"
        strange = sorted(path.name for path in out.iterdir() if not _is_own(path))
    except OSError as error:
        return f"{out} can't be used ({error.strerror}); choose another folder with --out DIR"
    if strange:
        return f"{out} holds {strange[0]!r}, which no demo made; choose a new or an empty folder with --out DIR"
    return None


def _is_own(path: Path) -> bool:
    """Say whether something looks as a demo leaves it."""
    if path.name in FOLDERS and not path.is_symlink() and path.is_dir():
        return {inner.name for inner in path.iterdir()} <= FOLDERS[path.name]
    return path.name in KEPT and not path.is_dir()


@dataclass(frozen=True, slots=True)
class Day:
    """What came of the work, for the judges."""

    swarm: Swarm
    record: Record
    told: scene.Scene
    gate: admissions.Gate
    people: company.Company
    first_audit: Audit
    seconds: float


async def play(folder: Path, out: Path, compression: float) -> Verdict:
    """Run the swarm against a fresh gateway and its witness in `folder`, then judge what they left, both stopped."""
    pieces = read_pieces(compression)
    workers = len({piece.worker for piece in pieces})
    print(
        f"1. A gateway with throw-away keys, a witness, and {workers} workers with {len(pieces)} pieces of real work "
        f"({compression:g} times as fast as it was)."
    )
    watch = Watch(folder / "data", folder / "witness", free_url(), folder / TILES, folder / AUDIT)
    url = make_ledger(watch.data)
    watch.set_up()
    async with witness(watch.witness, watch.witness_url):
        async with gateway(watch.data, url):
            day = await _work(folder, url, watch, pieces)
            _keep(watch, out, day)
            await upgrade(out / "receipt.json", out / "policy.txt", folder / "visitor")
        last_audit, leaves = watch.audit(), _read_ledger(watch.tiles)
        theft = watch.steal(leaves)
    _keep_last(watch, out, theft)
    return _judge(out, day, [parse_canonical(leaf, bytes_max=LEAF_BYTES_MAX) for leaf in leaves], last_audit, theft)


async def _work(folder: Path, url: str, watch: Watch, pieces: Sequence[Piece]) -> Day:
    """Let all of them work, and change the log key under their hands."""
    root = (watch.data / "public" / "root.vkey").read_text("ascii").strip()
    await join(url, root, folder / "visitor")
    pins, record = open_profile(folder / "visitor"), Record()
    async with company.operating(watch.data, record) as operator:
        swarm = Swarm(pins, operator, root, (watch.data / "public" / "keys.note").read_bytes(), folder, record)
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            people = group.create_task(company.play(operator, pins, watch.data, record))
            audit = group.create_task(_change_key(swarm, watch))
            await swarm.run(pieces, lambda: _progress(swarm, len(pieces)))
        told = await scene.play(pins, record)
        gate = await admissions.play(operator, pins, record)
        await _await_expiries(folder / "visitor", swarm)
    _progress(swarm, len(pieces), end="\n")
    return Day(swarm, record, told, gate, people.result(), audit.result(), time.perf_counter() - started_s)


async def _change_key(swarm: Swarm, watch: Watch) -> Audit:
    """Change the log key when half of the work is done, and have the ledger audited up to there."""
    await swarm.is_half_done.wait()
    await asyncio.to_thread(watch.change_log_key)
    return await asyncio.to_thread(watch.audit)


def _judge(out: Path, day: Day, leaves: list[JsonObject], last_audit: Audit, theft: Theft) -> Verdict:
    """Tell what happened, and say of every promise whether it held."""
    verdict = Verdict()
    _tell(day.swarm, leaves, day.seconds)
    print("   Two more workers met in a circle.\n" + "".join(f"     {line}\n" for line in day.told.lines()))
    print("   Before acting it is asked.\n" + "".join(f"     {line}\n" for line in day.gate.lines()))
    print("   And others of the same operator.\n" + "".join(f"     {line}\n" for line in day.people.lines()))
    judge_work(verdict, day.swarm, leaves)
    judge_waiting(verdict, day.told, waits(leaves))
    judge_sessions(verdict, day.swarm, day.people, leaves)
    judge_gate(verdict, day.gate)
    print(f"\n3. Gateway and witness are gone. What a stranger can check with the files in {out} alone")
    verify(verdict, out, day.record)
    judge_audits(verdict, day.first_audit, last_audit)
    if admissions.HAS_RULES:
        judge_rules(verdict, last_audit)
    judge_theft(verdict, out, theft)
    return verdict


async def _await_expiries(home: Path, swarm: Swarm) -> None:
    """Wait until the ledger has taken back what the killed workers held."""
    async with Agent.open(home) as agent, asyncio.timeout(EXPIRY_SECONDS_MAX):
        for did in swarm.killed:
            await _await_nothing_held(agent, did)


async def _await_nothing_held(agent: Agent, did: str) -> None:
    if await agent.leases(did):
        await asyncio.sleep(TTL_MS / 10_000)
        await _await_nothing_held(agent, did)


def _progress(swarm: Swarm, pieces: int, end: str = "") -> None:
    """Rewrite one line at a terminal; elsewhere print a line each PROGRESS_PIECES pieces."""
    counts = count(swarm.record.leaves.values())
    line = (
        f"   {swarm.done}/{pieces} pieces, {_granted(counts)} leases granted, {counts.get('lease.refused', 0)} requests"
        f" refused, {counts.get('wait.queued', 0)} given a ticket, {len(swarm.killed)} workers killed"
    )
    if sys.stdout.isatty():
        print(f"\r{line}", end=end, flush=True)
    elif end or swarm.done >= swarm.told + PROGRESS_PIECES:
        swarm.told = swarm.done
        print(line, flush=True)


def _granted(counts: Mapping[str, int]) -> int:
    return sum(counts.get(kind, 0) for kind in GRANTS)


def _keep(watch: Watch, out: Path, day: Day) -> None:
    """Put what a stranger needs into `out`: pins and three receipts, one of which will be proven by the witness."""
    for name in KEPT:
        (out / name).unlink(missing_ok=True)  # also so that nothing is written through a link
    for name in ("root.vkey", "keys.note"):
        shutil.copyfile(watch.data / "public" / name, out / name)
    (out / "policy.txt").write_bytes(watch.policy())
    grants = [seq for seq, leaf in day.record.leaves.items() if "lease.granted" in str(leaf["type"])]
    (out / "receipt.json").write_bytes(day.record.receipts[max(grants)])
    (out / "command.json").write_bytes(day.people.command)
    (out / "custodial.json").write_bytes(day.people.custodial)


def _keep_last(watch: Watch, out: Path, theft: Theft) -> None:
    """Add what came when the work was done: the ledger and its audit, one flipped bit, the thief's history."""
    for folder in (watch.tiles, watch.audit_folder):
        shutil.rmtree(out / folder.name, ignore_errors=True)
        shutil.copytree(folder, out / folder.name)
    (out / "flipped.json").write_bytes(_flip((out / "receipt.json").read_bytes()))
    (out / "witnessed.checkpoint").write_bytes(theft.witnessed)
    (out / "forged.checkpoint").write_bytes(theft.forged)


def _flip(receipt: bytes) -> bytes:
    """Return the receipt with one bit changed in the middle byte of its leaf."""
    payload = str(parse_json(receipt, bytes_max=RECEIPT_BYTES_MAX)["payload"])
    leaf = bytearray(decode_base64(payload))
    leaf[len(leaf) // 2] ^= 1
    return receipt.replace(payload.encode(), encode_base64(bytes(leaf)).encode())


def _read_ledger(tiles: Path) -> list[bytes]:
    with open_source(tiles) as source:
        return list(source.leaves)


def _tell(swarm: Swarm, leaves: list[JsonObject], seconds: float) -> None:
    counts, times_ms = count(leaves), sorted(swarm.record.latencies_ms)
    holders = {leaf["holder"] for leaf in leaves if "conflict" in leaf}
    print(f"""
2. What the ledger says
   granted {_granted(counts)} (to {counts.get("lease.claimed", 0)} who stood in line), \
refused {counts.get("lease.refused", 0)} (naming {len(holders)} different holders), \
expired {counts.get("lease.expired", 0)}, renewed {counts.get("lease.renewed", 0)}, \
released {counts.get("lease.released", 0)}; {len(leaves)} entries
   answer times p50 {times_ms[len(times_ms) // 2]:.1f} ms, p99 {times_ms[len(times_ms) * 99 // 100]:.1f} ms; \
{len(swarm.record.receipts) / seconds:.0f} receipts/s over {seconds:.0f} s (the trace sets the pace, not the gateway)
""")


def _close(verdict: Verdict, out: Path) -> int:
    if verdict.failures:
        print(f"\nThe demo FAILED: {len(verdict.failures)} of its promises did not hold (marked above).")
        return 1
    leaf, pins = leaf_of((out / "receipt.json").read_bytes()), " ".join(pins_of(out))
    print(f"""
Everything held. Look at it yourself ({out}/receipt.json is the receipt of entry {leaf["seq"]}):
  . .venv/bin/activate
  tallystick-verify receipt {out}/receipt.json {pins}
  tallystick-verify ledger {out}/{TILES} {" ".join((*rules_option(), pins))}
  tallystick-verify compare {out}/evidence.json {pins}""")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
