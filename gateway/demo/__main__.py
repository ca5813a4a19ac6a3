"""`tallystick demo`: the whole promise in half a minute, and exit code 0 only if every part of it held.

A gateway with throw-away keys, a swarm that replays real work under leases, two workers killed, a session that falls
silent and one that is revoked, a program without a key, many commands at once; then, with the gateway
gone, every receipt and the whole ledger are verified offline, and one flipped byte is refused. What it made stays in a
folder, so that you can verify it again yourself. It asserts relations, never counts: the counts depend on the machine.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.join import join
from gateway.client.profile import open_profile
from gateway.demo import company, scene
from gateway.demo.checks import (
    GRANTS,
    Life,
    Span,
    Wait,
    count,
    expired_holders,
    is_all_returned,
    is_real,
    kind,
    lives,
    out_of_turn,
    overlaps,
    path_of,
    resources,
    seq,
    spans,
    waits,
)
from gateway.demo.recorder import Record, leaf_of
from gateway.demo.server import IDLE_MS, running
from gateway.demo.swarm import TTL_MS, Swarm
from gateway.demo.trace import read_pieces
from verifier.entries import ACTION_PATHS
from verifier.keyring import open_keyring
from verifier.receipt import check_receipt
from verifier.replay.source import open_source
from verifier.wire import (
    LEAF_BYTES_MAX,
    RECEIPT_BYTES_MAX,
    JsonObject,
    JsonValue,
    decode_base64,
    encode_base64,
    parse_canonical,
    parse_json,
)

COMPRESSION = 600  # the trace's 107 minutes pass in 11 s, and what collides waits a little longer
EXPIRY_SECONDS_MAX = 30
PROGRESS_PIECES = 10
COMPRESSION_MIN, COMPRESSION_MAX = 0.1, 100_000.0
PUBLISHED = ("root.vkey", "keys.note", "policy.txt")
RECEIPTS = ("receipt.json", "flipped.json", "command.json", "custodial.json")
KEPT = frozenset({*PUBLISHED, *RECEIPTS, "ledger.export"})


@dataclass(slots=True)
class Verdict:
    """What the demo saw; `failures` is empty when every promise held."""

    failures: list[str] = field(default_factory=list)

    def expect(self, is_true: bool, promise: str) -> None:
        """Print a promise and whether it held."""
        print(f"  {'ok  ' if is_true else 'FAIL'}  {promise}")
        if not is_true:
            self.failures.append(promise)


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
        verdict = asyncio.run(play(Path(folder), told.out, told.compression))
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
        strange = sorted(path.name for path in out.iterdir() if path.name not in KEPT or path.is_dir())
    except OSError as error:
        return f"{out} can't be used ({error.strerror}); choose another folder with --out DIR"
    if strange:
        return f"{out} holds {strange[0]!r}, which no demo made; choose a new or an empty folder with --out DIR"
    return None


async def play(folder: Path, out: Path, compression: float) -> Verdict:
    """Run the swarm against a fresh gateway in `folder`, then judge what it left, with the gateway stopped."""
    pieces = read_pieces(compression)
    workers = len({piece.worker for piece in pieces})
    print(
        f"1. A gateway with throw-away keys, and {workers} workers with {len(pieces)} pieces of real work "
        f"({compression:g} times as fast as it was)."
    )
    data = folder / "data"
    async with running(data, folder / "gateway.log") as url:
        root = (data / "public" / "root.vkey").read_text("ascii").strip()
        await join(url, root, folder / "visitor")
        pins, record = open_profile(folder / "visitor"), Record()
        async with company.operating(data, record) as operator:
            swarm = Swarm(pins, operator, root, (data / "public" / "keys.note").read_bytes(), folder, record)
            started_s = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                people = group.create_task(company.play(operator, pins, data, record))
                await swarm.run(pieces, lambda: _progress(swarm, len(pieces)))
            told = await scene.play(pins, record)
            await _await_expiries(folder / "visitor", swarm)
            seconds = time.perf_counter() - started_s
    _progress(swarm, len(pieces), end="\n")
    _keep(data, out, record, people.result())
    verdict = Verdict()
    leaves = _read_ledger(out / "ledger.export")
    _tell(swarm, leaves, seconds)
    print("   Two more workers met in a circle.\n" + "".join(f"     {line}\n" for line in told.lines()))
    print("   And others of the same operator.\n" + "".join(f"     {line}\n" for line in people.result().lines()))
    _judge(verdict, swarm, leaves)
    _judge_waiting(verdict, told, waits(leaves))
    _judge_sessions(verdict, swarm, people.result(), leaves)
    _verify(verdict, out, record)
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


def _keep(data: Path, out: Path, record: Record, people: company.Company) -> None:
    """Put what a stranger needs into `out`: pins, ledger, one receipt, the same with one byte flipped, and two more."""
    out.mkdir(parents=True, exist_ok=True)
    for name in KEPT:
        (out / name).unlink(missing_ok=True)  # also so that nothing is written through a link
    for name in PUBLISHED:
        shutil.copyfile(data / "public" / name, out / name)
    _run("gateway", "ledger", "export", "--data", str(data), "--out", str(out / "ledger.export"), check=True)
    grants = [seq for seq, leaf in record.leaves.items() if "lease.granted" in str(leaf["type"])]
    receipt = record.receipts[max(grants)]
    (out / "receipt.json").write_bytes(receipt)
    (out / "flipped.json").write_bytes(_flip(receipt))
    (out / "command.json").write_bytes(people.command)
    (out / "custodial.json").write_bytes(people.custodial)


def _flip(receipt: bytes) -> bytes:
    """Return the receipt with one bit changed in the middle byte of its leaf."""
    payload = str(parse_json(receipt, bytes_max=RECEIPT_BYTES_MAX)["payload"])
    leaf = bytearray(decode_base64(payload))
    leaf[len(leaf) // 2] ^= 1
    return receipt.replace(payload.encode(), encode_base64(bytes(leaf)).encode())


def _read_ledger(export: Path) -> list[JsonObject]:
    with open_source(export) as source:
        return [parse_canonical(leaf, bytes_max=LEAF_BYTES_MAX) for leaf in source.leaves]


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


def _judge(verdict: Verdict, swarm: Swarm, leaves: list[JsonObject]) -> None:
    """Check the relations that must hold however fast the machine is."""
    leases, tickets = spans(leaves), waits(leaves)
    asked = [leaf for leaf in leaves if path_of(leaf) == ACTION_PATHS["lease.acquire"]]
    refusals = [leaf for leaf in leaves if kind(leaf) == "lease.refused"]
    verdict.expect(
        all(kind(leaf) in ("lease.granted", "lease.extended", "lease.refused", "wait.queued") for leaf in asked),
        "every request was granted, refused, or given a place in line",
    )
    verdict.expect(
        bool(refusals) and all(is_real(leaf, leases, tickets) for leaf in refusals),
        "work did collide, and each refusal names who really holds it, or who is first in line",
    )
    verdict.expect(
        expired_holders(leaves) == set(swarm.killed) and len(swarm.killed) == 2,
        f"leases expired for the killed workers ({', '.join(sorted(swarm.killed.values()))}) and nobody else",
    )
    verdict.expect(overlaps(leases) == [], "no two workers ever held one path at the same time")


def _judge_waiting(verdict: Verdict, told: scene.Scene, tickets: list[Wait]) -> None:
    """Check what must hold of those who waited, and of the two who met in a circle."""
    verdict.expect(
        any(ticket.is_served for ticket in tickets)
        and all(ticket.to_seq is not None and ticket.is_offered >= ticket.is_served for ticket in tickets),
        "everyone who stood in line was served, after an offer, or left it",
    )
    verdict.expect(out_of_turn(tickets) == [], "nobody was served before somebody who had waited longer for that path")
    rows = told.refusal.cycle
    verdict.expect(
        {row.actor for row in rows} == set(told.names)
        and {row.fencing_token for row in rows} >= {told.given.fencing_token}
        and told.refusal.acquire_order == tuple(sorted((scene.SERVER, scene.BROWSER))),
        "the circle was refused by name, with the order to take its paths in",
    )
    verdict.expect(
        told.taken.fencing_token > told.served.fencing_token > told.given.fencing_token,
        "a lease changed hands, and each new holder got a greater token",
    )


def _judge_sessions(verdict: Verdict, swarm: Swarm, people: company.Company, leaves: list[JsonObject]) -> None:
    """Check what must hold of those who act for the operator, and of what they leave behind."""
    leases, sessions = spans(leaves), {life.did: life for life in lives(leaves)}
    own = [leaf for leaf in leaves if leaf["actor"] in swarm.sessions]
    verdict.expect(
        any(kind(leaf) in GRANTS for leaf in own) and {leaf["onBehalfOf"] for leaf in own} == {people.operator},
        "every second worker was a session, and each of its entries names the operator that answers for it",
    )
    verdict.expect(
        swarm.sessions < set(sessions) and all(is_all_returned(life, leases) for life in sessions.values()),
        "every session ended, and what it held was given back right then, once",
    )
    silent, revoked = (sessions[grant.receipt.leaf.actor] for grant in (people.silent, people.revoked))
    last_ms = max(_time_ms(leaf) for leaf in leaves if leaf["actor"] == silent.did)
    verdict.expect(
        silent.end is not None and silent.end.get("reason") == "idle" and _time_ms(silent.end) >= last_ms + IDLE_MS,
        "the session that fell silent was given up after its time, and no earlier",
    )
    verdict.expect(
        _is_followed(silent, people.after_silence, leases) and _is_followed(revoked, people.after_revocation, leases),
        "what the silent and the revoked one held went to the next in line, and to nobody before",
    )
    commands = [
        leaf for leaf in leaves if isinstance(leaf.get("request"), dict) and "batch" in _object(leaf["request"])
    ]
    verdict.expect(
        {_object(leaf["request"])["batch"] for leaf in commands} == {seq(commands[0]) - 1}
        and [seq(leaf) for leaf in commands] == list(range(seq(commands[0]), seq(commands[0]) + len(commands))),
        "the commands of the batch stand in a row behind the request that asked for them",
    )


def _is_followed(life: Life, after: bytes, leases: list[Span]) -> bool:
    """Say whether a session's one lease came back, and the next of that file is the one that was waited for."""
    grant, (returned,) = leaf_of(after), life.returned
    later = [one.from_seq for one in leases if one.resources == resources(returned) and one.from_seq > seq(returned)]
    return kind(grant) == "lease.claimed" and min(later) == seq(grant)


def _time_ms(leaf: JsonObject) -> int:
    return int(str(leaf["timeMs"]))


def _object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value


def _verify(verdict: Verdict, out: Path, record: Record) -> None:
    """Verify everything as a stranger would: from files, with the gateway stopped."""
    print("\n3. The gateway is gone. What a stranger can check with the files alone")
    pins = open_keyring(
        root=(out / "root.vkey").read_text("ascii").strip(),
        document=(out / "keys.note").read_bytes(),
        policy=(out / "policy.txt").read_bytes(),
    )
    valid = sum(check_receipt(receipt, pins).exit_code == 0 for receipt in record.receipts.values())
    verdict.expect(valid == len(record.receipts), f"{valid} of {len(record.receipts)} receipts verify")
    arguments = [
        "--root",
        f"@{out / 'root.vkey'}",
        "--keys",
        str(out / "keys.note"),
        "--policy",
        str(out / "policy.txt"),
    ]
    ledger = _run("verifier", "ledger", str(out / "ledger.export"), *arguments)
    verdict.expect(
        ledger.returncode == 0, "the whole ledger verifies: chain, tree, checkpoint, every request's signature"
    )
    good = _run("verifier", "receipt", str(out / "receipt.json"), *arguments)
    verdict.expect(good.returncode == 0, f"{out / 'receipt.json'} verifies")
    command = _run("verifier", "receipt", str(out / "command.json"), *arguments)
    verdict.expect(command.returncode == 0, f"{out / 'command.json'}, one command of the batch, verifies alone")
    kept = _run("verifier", "receipt", str(out / "custodial.json"), *arguments)
    told = [line.strip() for line in kept.stdout.splitlines() if "consent" in line]
    verdict.expect(
        kept.returncode == 0 and len(told) == 1 and "consent" not in good.stdout,
        f"{out / 'custodial.json'} verifies, and says what no other does: {'; '.join(told)}",
    )
    bad = _run("verifier", "receipt", str(out / "flipped.json"), *arguments)
    verdict.expect(bad.returncode == 1, f"{out / 'flipped.json'}, with one bit flipped, is refused:")
    print("\n" + "\n".join(f"        {line}" for line in bad.stdout.strip().splitlines()))


def _run(module: str, *arguments: str, check: bool = False) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", module, *arguments], text=True, capture_output=True, check=check)


def _close(verdict: Verdict, out: Path) -> int:
    if verdict.failures:
        print(f"\nThe demo FAILED: {len(verdict.failures)} of its promises did not hold (marked above).")
        return 1
    leaf = leaf_of((out / "receipt.json").read_bytes())
    pins = f"--root @{out}/root.vkey --keys {out}/keys.note --policy {out}/policy.txt"
    print(f"""
Everything held. Look at it yourself ({out}/receipt.json is the receipt of entry {leaf["seq"]}):
  tallystick-verify receipt {out}/receipt.json {pins}
  tallystick-verify ledger {out}/ledger.export {pins}""")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
