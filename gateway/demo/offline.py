"""What a stranger finds with the verifier and files alone, when gateway and witness are gone."""

import json
import subprocess
from collections import Counter
from pathlib import Path

from gateway.client.receipts import open_receipt
from gateway.demo.judge import Verdict
from gateway.demo.recorder import Record
from gateway.demo.server import run
from gateway.demo.watch import Audit, Theft
from verifier.keyring import Keyring, open_keyring
from verifier.receipt import check_receipt


def verify(verdict: Verdict, out: Path, record: Record) -> None:
    """Verify every receipt, and those that were kept as a stranger would."""
    pins = open_keyring(
        root=(out / "root.vkey").read_text("ascii").strip(),
        document=(out / "keys.note").read_bytes(),
        policy=(out / "policy.txt").read_bytes(),
    )
    valid = sum(check_receipt(receipt, pins).exit_code == 0 for receipt in record.receipts.values())
    _judge_keys(verdict, record, pins, is_all_valid=valid == len(record.receipts))
    good = _verifier(out, "receipt", "receipt.json", "--level", "witnessed")
    verdict.expect(
        good.returncode == 0 and "level: witnessed 1/1" in good.stdout,
        "receipt.json, upgraded, is witnessed 1/1; the witness is the operator's own, which finds accidents only",
    )
    command = _verifier(out, "receipt", "command.json")
    verdict.expect(command.returncode == 0, "command.json, one command of the batch, verifies alone")
    kept = _verifier(out, "receipt", "custodial.json")
    told = [line.strip() for line in kept.stdout.splitlines() if "consent" in line]
    verdict.expect(
        kept.returncode == 0 and len(told) == 1 and "consent" not in good.stdout,
        f"custodial.json verifies, and says what no other does: {'; '.join(told)}",
    )
    bad = _verifier(out, "receipt", "flipped.json")
    verdict.expect(bad.returncode == 1, f"flipped.json, one bit of it flipped: {bad.stdout.splitlines()[0]}")


def _judge_keys(verdict: Verdict, record: Record, pins: Keyring, *, is_all_valid: bool) -> None:
    """Check that receipts from before and after the change of the log key verify under one key document."""
    signers = {
        seq: frozenset(line.key_id for line in open_receipt(receipt, pins).checkpoint.note.lines)
        for seq, receipt in record.receipts.items()
    }
    before, after = signers[min(signers)], signers[max(signers)]
    counts = Counter(signers.values())
    both = sum(count for keys, count in counts.items() if len(keys) > 1)
    verdict.expect(
        is_all_valid and len(before) == len(after) == 1 and before != after,
        f"{len(signers)} receipts verify: {counts[before]} under the first log key, {both} under two, "
        f"{counts[after]} under the next",
    )


def judge_audits(verdict: Verdict, first: Audit, second: Audit) -> None:
    """Check that the auditor who came back looked at what was new, and at nothing else."""
    verdict.expect(
        first.exit_code == second.exit_code == 0 and second.start == first.size < second.size,
        f"an auditor decided {first.size} entries again during the work, and later only the {second.size - first.size} "
        "that were new",
    )


def judge_rules(verdict: Verdict, audit: Audit) -> None:
    """Check that the auditor asked the rules again, of everything that they had said."""
    verdict.expect(
        0 < audit.rulings == audit.derived,
        f"what rules said of {audit.rulings} admissions was asked again of the engine, with the same answers",
    )


def judge_theft(verdict: Verdict, out: Path, theft: Theft) -> None:
    """Check that the thief's history convinces neither the witness nor anybody who compares."""
    verdict.expect(
        theft.status == 422,
        f"a thief with the log key signed another history of {theft.size} entries, and the witness refused it (422)",
    )
    pair = ("witnessed.checkpoint", str(out / "forged.checkpoint"))
    split = _verifier(out, "compare", *pair, "--evidence", str(out / "evidence.json"))
    again = _verifier(out, "compare", "evidence.json")
    path = out / "evidence.json"
    evidence = path.read_bytes() if path.exists() else b'{"code":"nothing"}'
    verdict.expect(
        split.returncode == again.returncode == 4,
        f"compare says of both: {split.stdout.splitlines()[0]}; evidence.json proves it in {len(evidence):,} bytes "
        f"({json.loads(evidence)['code']})",
    )


def pins_of(out: Path) -> list[str]:
    """Return the arguments that name the pins in a folder."""
    return ["--root", f"@{out}/root.vkey", "--keys", f"{out}/keys.note", "--policy", f"{out}/policy.txt"]


def _verifier(out: Path, verb: str, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return run("verifier", verb, str(out / name), *arguments, *pins_of(out))
