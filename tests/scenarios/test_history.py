"""Ledgers, receipts and keys before those who trust nobody: real gateways, and the verifier on what they left."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.initialise import LEDGER_FILE
from keys.files import load_key
from keys.signing import SigningKey
from tests.system.process import Gateway, run_cli, run_module
from verifier.checkpoint import checkpoint_text
from verifier.note import Note, encode_note, make_vkey, signature_line

pytestmark = pytest.mark.system
ORIGIN = "localhost/dev"
PAIRS = 70  # of lease and release in one batch; two batches are more than one bundle of entries


class Scene:
    """A throw-away gateway, an agent, and a folder for what is published and kept."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "agent"
        self.gateway = Gateway(folder / "data", "--metrics-port", "0")

    def lease(self, name: str, *options: str, home: Path | None = None) -> Path:
        """Take a lease; its receipt."""
        receipt = self.folder / f"{name}.json"
        words = ("lease", "acquire", f"lock:{name}", "--receipt", str(receipt), *options)
        self.gateway.cli(home or self.home, *words)
        return receipt

    def tiles(self, name: str) -> Path:
        """Write the ledger as it is now, as a folder of tiles."""
        folder = self.folder / name
        run_cli("ledger", "export", "--tiles", str(folder), "--data", str(self.gateway.data)).check_returncode()
        return folder

    def pins(self, name: str = "") -> list[str]:
        """Return the arguments that pin the root and the key document of now, or the one that was kept as `name`."""
        keys = self.folder / name if name else self.gateway.data / "public" / "keys.note"
        return ["--root", self.gateway.root_vkey(), "--keys", str(keys)]

    def keep_document(self, name: str) -> None:
        shutil.copyfile(self.gateway.data / "public" / "keys.note", self.folder / name)

    def judge(self, *words: str | Path) -> tuple[int, dict[str, object]]:
        """Let the real verifier speak; exit code and report."""
        done = run_module("verifier", *map(str, words), "--json")
        return done.returncode, json.loads(done.stdout)

    def audit(self) -> None:
        """Whatever happened, the ledger of the gateway is in order."""
        report = self.gateway.verify_ledger(self.folder / "audit.export")
        assert (report["exitCode"], report["failedStep"]) == (0, None)


def codes(report: dict[str, object]) -> set[str]:
    findings = report["findings"]
    assert isinstance(findings, list)
    return {finding["code"] for finding in findings if finding["outcome"] != "valid"}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with made.gateway:
        made.gateway.join(made.home)
        yield made
        made.audit()


def test_a_ledger_that_was_cut_or_emptied_never_passes_for_a_whole_one(scene: Scene) -> None:
    """Scenario 52 (obsigna#171, treeship): valid, valid as far as shown, cut and empty are told apart."""
    scene.lease("a")
    older = scene.tiles("older")
    scene.lease("b")
    newer = scene.tiles("newer")
    scene.gateway.stop()
    exit_code, whole = scene.judge("ledger", newer, *scene.pins(), "--checkpoint", newer / "checkpoint")
    assert exit_code == 0 and str(whole["completeness"]).startswith("to size "), whole
    exit_code, shown = scene.judge("ledger", older, *scene.pins())
    assert (exit_code, shown["completeness"]) == (0, "unknown"), shown
    exit_code, cut = scene.judge("ledger", older, *scene.pins(), "--checkpoint", newer / "checkpoint")
    assert (exit_code, codes(cut)) == (1, {"truncated"}), cut
    shutil.copyfile(newer / "checkpoint", older / "checkpoint")
    assert scene.judge("ledger", older, *scene.pins())[0] in (1, 2)
    shutil.rmtree(newer / "tile")
    assert scene.judge("ledger", newer, *scene.pins())[0] in (1, 2)
    (scene.folder / "empty.export").touch()
    assert scene.judge("ledger", scene.folder / "empty.export", *scene.pins())[0] in (1, 2, 3)


def test_a_receipt_under_a_key_that_came_along_with_it_convinces_nobody(scene: Scene) -> None:
    """Scenario 56 (autogen#7353): who makes a ledger of the same name signs what he likes, and is not pinned."""
    honest = scene.lease("a")
    other = Scene(scene.folder / "other")
    other.folder.mkdir()
    with other.gateway:
        other.gateway.join(other.home)
        forged = other.lease("a")
        other.audit()
    assert scene.judge("receipt", forged, *other.pins())[0] == 0, "it is well made"
    assert scene.judge("receipt", honest, *scene.pins())[0] == 0
    mixed = ["--root", scene.gateway.root_vkey(), "--keys", str(other.gateway.data / "public" / "keys.note")]
    for receipt, pins in ((forged, scene.pins()), (forged, mixed), (honest, other.pins())):
        exit_code, report = scene.judge("receipt", receipt, *pins)
        assert exit_code != 0 and report["verdict"] != "valid", report
    exit_code, alone = scene.judge("receipt", honest)
    assert exit_code != 0 and alone["verdict"] != "valid", "no pinned key, no pass"


def test_keys_come_and_go_and_each_receipt_is_judged_by_those_of_its_time(scene: Scene) -> None:
    """Scenario 58 (bernstein#4211, taOS#1505): retired, disowned, unknown and resurrected keys are four things."""
    data = str(scene.gateway.data)
    before = scene.lease("before")
    scene.keep_document("first.note")
    scene_keys(data, "rotate")
    overlap = scene.lease("overlap")
    scene_keys(data, "retire")
    after = scene.lease("after")
    for receipt in (before, overlap, after):
        assert scene.judge("receipt", receipt, *scene.pins())[0] == 0, "under the newest document all are good"
    assert scene.judge("receipt", before, *scene.pins("first.note"))[0] == 0
    exit_code, unknown = scene.judge("receipt", after, *scene.pins("first.note"))
    strange = {"log_signature_missing", "receipt_key_unknown"}
    assert (exit_code, codes(unknown)) == (1, strange), "a document that knows none of its keys"
    later = checkpoint_by(load_key(scene.gateway.data / "keys" / "log.key", purpose="log"), 1_000)
    (scene.folder / "later").write_bytes(later)
    exit_code, _ = scene.judge("compare", after, scene.folder / "later", *scene.pins())
    assert exit_code == 1, "a retired key signs no new tree, and convicts nobody"
    assert scene.judge("compare", before, overlap, *scene.pins())[0] in (0, 3)
    scene_keys(data, "compromise", "--purpose", "receipt", "--wait", "1s")
    exit_code, disowned = scene.judge("receipt", after, *scene.pins())
    assert exit_code == 0 and disowned["directSignature"] != "valid", (
        "the tree proves it; that key's word counts no more"
    )


def test_a_gateway_without_its_keys_makes_no_new_ones(scene: Scene) -> None:
    """Scenario 58: a key that is missing or unset is named, and nothing else is signed with."""
    scene.lease("a")
    scene.gateway.stop()
    keys, aside = scene.gateway.data / "keys" / "log.key", scene.folder / "aside"
    keys.rename(aside)
    with pytest.raises(RuntimeError, match=r"log\.key"):
        scene.gateway.start()
    assert not keys.exists()
    aside.rename(keys)
    scene.gateway.start()
    scene.lease("b")


def test_secrets_end_up_in_no_file_that_anybody_else_reads(scene: Scene) -> None:
    """Scenario 60 (treeship#284, obsigna#1012): nested, in argv, in an address, in a reason; only digests stay."""
    secret = "sk-live-0123456789abcdef"
    token = scene.folder / "token"
    run_cli(
        "agent", "add", "--custodial", "ci", "--data", str(scene.gateway.data), "--out", str(token)
    ).check_returncode()
    bodies: tuple[dict[str, object], ...] = (
        {"resource": "lock:a", "meta": {"env": {"aws": {"keys": {"live": {"value": secret}}}}}},
        {"resource": "lock:a", "headers": [["Authorization", f"Bearer {secret}"]]},
    )
    for body in bodies:
        assert posted(scene.gateway.url, token.read_text().strip(), body) == 400
    assert posted(f"{scene.gateway.url}/{secret}?token={secret}", token.read_text().strip(), {}) in (400, 404, 405)
    run_cli(
        "run", "--home", str(scene.home), "--resource", "lock:run", "--ttl", "30s", "--", "true", "--password", secret
    ).check_returncode()
    (scene.folder / "why.txt").write_text(f"because of {secret}", "utf-8")
    receipt = scene.lease("private", "--reason-file", str(scene.folder / "why.txt"))
    private = receipt.with_name("private.json.private")
    opened = scene.judge("receipt", receipt, *scene.pins(), "--private", private)
    assert opened[0] == 0
    run_cli("receipt", "private", str(private), "--erase").check_returncode()
    exit_code, erased = scene.judge("receipt", receipt, *scene.pins(), "--private", private)
    assert exit_code == 0 and "erased: not opened" in json.dumps(erased), erased
    tiles = scene.tiles("tiles")
    scene.gateway.stop()
    public = [receipt, private, scene.gateway.log, *files(tiles), *files(scene.gateway.data)]
    assert [path for path in public if secret.encode() in path.read_bytes()] == []
    scene.gateway.start()


def test_two_people_who_were_shown_two_histories_find_out_by_their_receipts(scene: Scene) -> None:
    """A gateway is set back behind its clients' backs and goes on: each history is in order, both convict it."""
    run_cli("join", scene.gateway.url, "--root", scene.gateway.root_vkey(), "--home", str(scene.folder / "bob"))
    copy = scene.folder / "copy"
    run_cli("ledger", "backup", str(copy), "--data", str(scene.gateway.data)).check_returncode()
    alice = scene.lease("alice")
    scene.audit()
    first = scene.tiles("first")
    scene.gateway.stop()
    for path in scene.gateway.data.glob(f"{LEDGER_FILE}*"):
        path.unlink()
    shutil.copyfile(copy, scene.gateway.data / LEDGER_FILE)
    scene.gateway.start()
    bob = scene.lease("bob", home=scene.folder / "bob")
    scene.audit()
    assert [scene.judge("receipt", one, *scene.pins())[0] for one in (alice, bob)] == [0, 0], "alone each is good"
    evidence = scene.folder / "evidence.json"
    exit_code, split = scene.judge("compare", alice, bob, *scene.pins(), "--evidence", evidence)
    assert (exit_code, split["verdict"]) == (4, "split"), split
    assert scene.judge("compare", evidence, *scene.pins())[0] == 4
    exit_code, tree = scene.judge("ledger", scene.tiles("second"), *scene.pins(), "--checkpoint", first / "checkpoint")
    assert exit_code in (1, 4), tree


def test_an_auditor_with_a_position_goes_on_when_old_entries_are_no_longer_served(scene: Scene) -> None:
    """Whoever audited them needs them no more; a copy without them is no whole ledger to who begins anew."""
    rows = [
        json.dumps({"action": f"lease.{verb}", "resource": f"lock:{number}"})
        for number in range(PAIRS)
        for verb in ("acquire", "release")
    ]
    batch, data = scene.folder / "batch.jsonl", str(scene.gateway.data)
    batch.write_text("\n".join(rows), "utf-8")
    position = ("--state", scene.folder / "position")
    for size in (2 * PAIRS, 4 * PAIRS):
        scene.gateway.cli(scene.home, "lease", "batch", str(batch))
        tiles = scene.tiles("tiles")
        exit_code, report = scene.judge("ledger", tiles, *scene.pins(), *position)
        assert exit_code == 0, (size, report)
    run_cli("keys", "retention", "--data", data, "--minimum", "256").check_returncode()
    run_cli("ledger", "prune", "--tiles", str(tiles), "--below", "256", "--data", data).check_returncode()
    assert not (tiles / "tile" / "entries" / "000").exists()
    scene.lease("a")
    exit_code, report = scene.judge("ledger", scene.tiles("tiles"), *scene.pins(), *position)
    assert exit_code == 0 and any("were audited earlier" in line for line in lines(report)), report
    exit_code, anew = scene.judge("ledger", tiles, *scene.pins())
    assert exit_code == 1 and "source_malformed" in codes(anew), anew
    assert "tile/entries/000" in json.dumps(anew["findings"]), "it names the file that is not there"
    with pytest.raises(urllib.error.HTTPError, match="410"):
        urllib.request.urlopen(f"{scene.gateway.url}/dev/tile/entries/000", timeout=5)


def lines(report: dict[str, object]) -> list[str]:
    statement = report["statement"]
    assert isinstance(statement, list)
    return statement


def scene_keys(data: str, verb: str, *options: str) -> None:
    done = run_cli("keys", verb, "--data", data, *options)
    assert done.returncode in (0, 3), done.stderr


def checkpoint_by(key: SigningKey, size: int) -> bytes:
    """Return a checkpoint of a tree of nobody's, signed as the log's."""
    text = checkpoint_text(ORIGIN, size, bytes(32))
    return encode_note(Note(text, (signature_line(make_vkey(ORIGIN, key.public_key), key.sign(text.encode())),)))


def posted(url: str, token: str, body: dict[str, object]) -> int:
    """Ask as any HTTP client would; the status."""
    target = url if "?" in url else f"{url}/api/v1/acp/coordination/lease"
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(target, json.dumps(body).encode(), headers), timeout=30
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
