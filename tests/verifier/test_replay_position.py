"""An audit goes on from where it stands, whatever killed it; and a position that somebody made up convinces nobody."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.judging import faults, pins
from tests.verifier.maker import ALICE, BOB, ORIGIN, Ledger
from verifier.keyring import Keyring, open_keyring
from verifier.replay import folder as folders
from verifier.replay.auditor import Auditor
from verifier.replay.kept import KEPT_CLASSES, KEPT_MEMBERS
from verifier.replay.ledger import check_ledger, show_progress
from verifier.replay.people import People
from verifier.replay.relations import Relations
from verifier.replay.signing import Keys
from verifier.replay.source import Source, open_source
from verifier.replay.state import State
from verifier.replay.witnessed import Witnessed
from verifier.verdict import Outcome, Report

ROOT = Path(__file__).resolve().parents[2]
LEDGERS = {"a day": maker.worked(), "a crowd": maker.busy(), "a company": maker.staffed()}
DAY = LEDGERS["a day"]


def prefix(ledger: Ledger, size: int) -> bytes:
    """An export of the first entries, as it was when they were all."""
    head = f"tallystick-ledger/v1 {ORIGIN} {size}\n".encode()
    return head + b"".join(leaf + b"\n" for leaf in ledger.leaves[:size]) + b"\n" + ledger.checkpoint(size)


def audit(ledger: Ledger, size: int, tmp_path: Path, keyring: Keyring | None = None, jobs: int = 1) -> Report:
    """Audit the first entries, with the position in a folder beside."""
    path = tmp_path / "ledger"
    path.write_bytes(prefix(ledger, size))
    return check_ledger(path, keyring or pins(ledger), jobs=jobs, folder=tmp_path / "state")


def without_start(report: Report) -> tuple[Any, ...]:
    return report.findings, report.level, {name: it for name, it in report.facts.items() if name != "start"}


# --- going on ---


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("name", LEDGERS)
def test_whoever_goes_on_from_any_entry_finds_what_is_found_at_once(name: str, jobs: int, tmp_path: Path) -> None:
    ledger = LEDGERS[name]
    (tmp_path / "0").mkdir()
    whole = audit(ledger, len(ledger.leaves), tmp_path / "0")
    for size in range(1, len(ledger.leaves), 1 if jobs == 1 else 7):
        place = tmp_path / str(size)
        place.mkdir()
        first = audit(ledger, size, place)
        then = audit(ledger, len(ledger.leaves), place, jobs=jobs)
        assert without_start(then) == without_start(whole)
        assert then.facts["start"] == (size if first.outcome < Outcome.INVALID else 0)
        if first.outcome < Outcome.INVALID:
            assert then.statement[1] == f"entries before {size} were audited earlier"


def test_every_entry_can_be_the_last_of_a_reading_of_one_auditor() -> None:
    ledger = maker.busy()
    auditor = Auditor(pins(ledger))
    sizes = [size for size in range(1, len(ledger.leaves) + 1) if size % 3]
    for size in sizes:
        source = Source(ORIGIN, size, iter(ledger.leaves[auditor.size : size]), ledger.checkpoint(size), auditor.size)
        report = auditor.read(source)
    assert (auditor.size, auditor.root, auditor.confirmed) == (size, ledger.root(size), ledger.checkpoint(size))
    assert (report.exit_code, faults(report), report.facts["size"]) == (0, [], size)


def test_a_lie_told_after_a_position_is_found_by_what_was_known_before(tmp_path: Path) -> None:
    ledger = maker.opened()
    ledger.grant(ALICE, "lock:a")
    size = len(ledger.leaves)
    assert audit(ledger, size, tmp_path).exit_code == 0
    ledger.grant(BOB, "lock:a")
    for _ in range(2):  # what is invalid is never gone on from, so it is found every time
        report = audit(ledger, size + 1, tmp_path)
        assert (report.facts["start"], faults(report)) == (size, [(10, "double_grant")])
    assert audit(ledger, size, tmp_path).exit_code == 0


def test_remarks_about_earlier_entries_are_made_again(tmp_path: Path) -> None:
    ledger = maker.opened()
    ledger.grant(ALICE, "menü:suppe")  # a scheme that is not unicode: a finding that stays
    report = audit(ledger, len(ledger.leaves), tmp_path)
    assert report.exit_code == 1
    assert not (tmp_path / "state/position").exists()


def test_an_unknown_type_stays_where_re_decision_ended(tmp_path: Path) -> None:
    ledger = maker.opened()
    ledger.entry("weather.observed", "gateway", {"rain": True})
    stop, size = len(ledger.leaves) - 1, len(ledger.leaves)
    audit(ledger, size, tmp_path)
    ledger.grant(ALICE, "lock:a")
    report = audit(ledger, size + 1, tmp_path)
    assert (report.exit_code, report.facts["start"]) == (3, size)
    assert [f.seq for f in report.findings if f.code == "type_unknown"] == [stop]


# --- sources that fall behind or contradict ---


def test_a_source_below_the_position_is_truncated(tmp_path: Path) -> None:
    size = len(DAY.leaves)
    assert audit(DAY, size, tmp_path).exit_code == 0
    report = audit(DAY, size - 3, tmp_path)
    assert (report.exit_code, faults(report)) == (1, [(8, "truncated")])
    assert f"promises {size - 3} entries, but {size} were audited earlier" in report.as_text()
    assert audit(DAY, size, tmp_path).exit_code == 0, "the position is still there"


def forked(at: int) -> Ledger:
    """Another history of the same gateway, from the entry `at` on."""
    other = maker.worked()
    del other.leaves[at:]
    other.grant(BOB, "lock:fork")
    return other


@pytest.mark.parametrize("extra", [0, 4])
def test_another_root_of_a_size_that_was_audited_proves_a_split_view(extra: int, tmp_path: Path) -> None:
    other = forked(len(DAY.leaves) - 1 - extra)
    assert audit(DAY, len(DAY.leaves), tmp_path).exit_code == 0
    report = audit(other, len(other.leaves), tmp_path, pins(DAY))
    assert (report.exit_code, faults(report)[-1]) == (4, (12, "two_roots"))


def test_a_fork_that_is_not_signed_proves_nothing(tmp_path: Path) -> None:
    other = forked(len(DAY.leaves) - 3)
    assert audit(DAY, len(DAY.leaves), tmp_path).exit_code == 0
    path = tmp_path / "ledger"
    path.write_bytes(other.export(other.checkpoint(log=maker.STRANGER)))
    report = check_ledger(path, pins(DAY), folder=tmp_path / "state")
    assert (report.exit_code, faults(report)) == (1, [(8, "truncated"), (5, "log_signature_missing")])


def test_another_history_above_the_position_is_invalid(tmp_path: Path) -> None:
    assert audit(DAY, 10, tmp_path).exit_code == 0
    other = forked(8)
    while len(other.leaves) < 13:
        other.grant(BOB, f"lock:{len(other.leaves)}")
    found = faults(audit(other, 13, tmp_path, pins(DAY)))
    assert {(9, "chain_broken"), (8, "root_differs")} <= set(found)


# --- what is refused ---

OTHER_ORIGIN = "gateway.example/other"


def refusal(report: Report) -> str:
    assert (report.exit_code, report.level) == (2, "none")
    [finding] = report.findings
    assert finding.code == "position_refused"
    return finding.text


def other_origin() -> Keyring:
    line = f"log {maker.LOG.vkey(OTHER_ORIGIN)}\nquorum none\n"
    return open_keyring(policy=line.encode())


def other_genesis() -> Keyring:
    return pins(DAY, keys=DAY.keys(genesis="77" * 32))


def other_root() -> Keyring:
    text = DAY.keys().rpartition(b"\n\n")[0].decode() + "\n"
    document = (text + "\n" + BOB.note_line(f"{ORIGIN}/root", text)).encode()
    return open_keyring(root=BOB.vkey(f"{ORIGIN}/root"), document=document, policy=maker.policy(2))


PINS = [
    ("another origin", other_origin, "another origin than the pinned"),
    ("another entry 0", other_genesis, "another entry 0 than the pinned"),
    ("another root key", other_root, "another root key than the pinned"),
]


@pytest.mark.parametrize(("keyring", "text"), [row[1:] for row in PINS], ids=[row[0] for row in PINS])
def test_a_position_is_for_its_own_pins(keyring: Callable[[], Keyring], text: str, tmp_path: Path) -> None:
    audit(DAY, len(DAY.leaves), tmp_path)
    assert text in refusal(audit(DAY, len(DAY.leaves), tmp_path, keyring()))


def test_a_position_is_for_its_own_ledger_where_nothing_is_pinned_of_it(tmp_path: Path) -> None:
    both = f"log {maker.LOG.vkey(ORIGIN)}\nlog {maker.CAROL.vkey(OTHER_ORIGIN)}\nquorum none\n"
    keyring = open_keyring(policy=both.encode())
    audit(DAY, len(DAY.leaves), tmp_path, keyring)
    (tmp_path / "ledger").write_bytes(DAY.export().replace(ORIGIN.encode(), OTHER_ORIGIN.encode()))
    report = check_ledger(tmp_path / "ledger", keyring, folder=tmp_path / "state")
    assert refusal(report) == f"the saved position is of {ORIGIN}, not of {OTHER_ORIGIN}"


def test_two_audits_never_use_one_folder(tmp_path: Path) -> None:
    auditor = Auditor(pins(DAY), folder=tmp_path / "state")
    assert refusal(audit(DAY, 10, tmp_path)) == "another audit uses this folder"
    auditor.close()
    assert audit(DAY, 10, tmp_path).exit_code == 0


def saved(tmp_path: Path) -> tuple[Path, bytes, bytes]:
    """The file of a position of the whole day, its head and its pickle."""
    audit(DAY, len(DAY.leaves), tmp_path)
    path = tmp_path / "state/position"
    head, _, rest = path.read_bytes().partition(b"\n\n")
    return path, head + b"\n\n", rest[:-32]


def sealed(path: Path, head: bytes, payload: bytes) -> None:
    """Write a position whose digest is right: whoever can write here can compute it."""
    path.write_bytes(head + payload + sha256(head + payload).digest())


def test_a_position_of_other_rules_or_of_another_format_is_refused(tmp_path: Path) -> None:
    path, head, payload = saved(tmp_path)
    for old, new in ((b"rules 5", b"rules 4"), (b"position/3", b"position/9")):
        sealed(path, head.replace(old, new), payload)
        text = refusal(audit(DAY, len(DAY.leaves), tmp_path))
        assert "the position was saved in format" in text and "begin anew with an empty folder" in text


def test_damage_anywhere_in_a_position_is_refused(tmp_path: Path) -> None:
    path, head, _ = saved(tmp_path)
    whole = path.read_bytes()
    for place in [*range(len(head)), *range(len(head), len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refusal(audit(DAY, len(DAY.leaves), tmp_path))
    for size in (0, 1, len(head), len(head) + 31, len(whole) - 1):
        path.write_bytes(whole[:size])
        refusal(audit(DAY, len(DAY.leaves), tmp_path))
    path.write_bytes(whole)
    assert audit(DAY, len(DAY.leaves), tmp_path).exit_code == 0


def test_damaged_nodes_are_refused_and_accuse_nobody(tmp_path: Path) -> None:
    size = len(DAY.leaves)
    audit(DAY, 8, tmp_path)
    nodes = tmp_path / "state/nodes"
    whole = nodes.read_bytes()
    assert len(whole) == (2 * 8 - 1) * 32
    for bad in (whole[:-1], whole[:-32] + bytes(32), b""):
        nodes.write_bytes(bad)
        assert "tree nodes" in refusal(audit(DAY, size, tmp_path))
    for place in range(0, len(whole) - 32, 32):  # a node that the root of this size does not need
        nodes.write_bytes(whole[:place] + bytes(32) + whole[place + 32 :])
        report = audit(DAY, size, tmp_path)
        assert report.exit_code in (0, 2), "no finding about an honest ledger"
        (tmp_path / "state/position").unlink()
        nodes.write_bytes(b"")
        audit(DAY, 8, tmp_path)


def test_an_anchor_is_not_called_wrong_by_a_damaged_node(tmp_path: Path) -> None:
    """The root of size 5 needs leaf 4, which the root of size 8 does not."""
    ledger = maker.worked()
    del ledger.leaves[8:]
    audit(ledger, 8, tmp_path)
    ledger.grant(BOB, "lock:old", anchor_size=5)
    nodes = tmp_path / "state/nodes"
    place = (2 * 4 - 1) * 32  # four leaves come before it, and three nodes over them
    assert nodes.read_bytes()[place : place + 32] == maker.leaf_hash(ledger.leaves[4])
    nodes.write_bytes(nodes.read_bytes()[:place] + bytes(32) + nodes.read_bytes()[place + 32 :])
    report = audit(ledger, 9, tmp_path)
    assert (report.exit_code, [f.code for f in report.findings]) == (2, ["unreadable"])
    assert "the file of tree nodes is damaged" in report.findings[0].text


class Bomb:
    """Asks for something to be called when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.asked = function, arguments

    def __reduce__(self) -> Any:
        return self.asked


def bombs(marker: Path) -> dict[str, bytes]:
    """Pickles that would touch `marker`, or change how audits judge, if they were believed."""
    code = f"open({str(marker)!r}, 'w')"
    setting = b"\x80\x05cverifier.replay.state\nState\nN}\x8c\x07is_livecbuiltins\nprint\ns\x86b."
    own = b"\x80\x05cverifier.replay.state\nState\nN}\x8c\x07is_livecverifier.replay.things\nAsk\ns\x86b."
    return {
        "a call of the system": pickle.dumps(Bomb(os.system, f"touch {marker}")),
        "code": pickle.dumps(Bomb(exec, code)),
        "code by another door": pickle.dumps(Bomb(eval, code)),
        "one of our functions": pickle.dumps(Bomb(show_progress, 1, 2)),
        "a class of ours that opens files": pickle.dumps(Bomb(Auditor, Keyring())),
        "a name with a dot": b"\x80\x05\x8c\x16verifier.replay.kept\x94\x8c\x0eUnpickler.load\x94\x93.",
        "a class is changed by a stranger": setting,
        "a class is changed by one of the list": own,
        "an extension": b"\x80\x05\x82\x01.",
        "a persistent name": b"\x80\x05Pname\n.",
        "no pickle": b"hello",
        "nothing": b"",
        "an endless list": b"\x80\x05" + b"(" * 100_000 + b".",
        "another thing": pickle.dumps(["a", "list"]),
        "wrong members": pickle.dumps(dict.fromkeys((*KEPT_MEMBERS, "findings"), 0)),
        "too few members": pickle.dumps({}),
    }


@pytest.mark.parametrize("name", bombs(Path("nowhere")))
def test_a_position_that_somebody_made_up_executes_nothing(name: str, tmp_path: Path) -> None:
    path, head, _ = saved(tmp_path)
    marker, before = tmp_path / "marker", {kept: dict(vars(kept)) for kept in KEPT_CLASSES}
    sealed(path, head, bombs(marker)[name])
    refusal(audit(DAY, len(DAY.leaves), tmp_path))
    assert not marker.exists()
    assert {kept: dict(vars(kept)) for kept in KEPT_CLASSES} == before


def test_a_position_that_changes_a_class_on_the_way_is_refused(tmp_path: Path) -> None:
    """The rest of it is as an audit wrote it, so nothing but the change gives it away."""
    path, head, payload = saved(tmp_path)
    change = b"cverifier.replay.state\nState\nN}\x8c\x07is_livecverifier.replay.things\nAsk\ns\x86b0"
    sealed(path, head, b"\x80\x05" + change + payload[2:])
    before = State.is_live
    assert "does not hold what an audit knows" in refusal(audit(DAY, len(DAY.leaves), tmp_path))
    assert State.is_live is before


def test_a_position_that_is_no_state_of_an_audit_ends_in_a_sentence(tmp_path: Path) -> None:
    """The members are of their types, and what lies in them is nonsense: no traceback, and nobody is accused."""
    path, head, payload = saved(tmp_path)
    members = pickle.loads(payload)
    size = len(DAY.leaves)
    del members["relations"].__dict__["state"]
    audit(DAY, size, tmp_path)
    sealed(path, head, pickle.dumps(members))
    later = maker.worked()
    later.grant(BOB, "lock:later")
    assert "cannot be gone on from" in refusal(audit(later, size + 1, tmp_path))


def test_what_is_kept_has_the_layout_of_its_format() -> None:
    """Another layout is another format: raise FORMAT in verifier/replay/kept.py with this digest."""
    rows = []
    for kept in KEPT_CLASSES:
        names = [f.name for f in fields(kept)] if is_dataclass(kept) else list(getattr(kept, "_fields", ()))
        names += [*getattr(kept, "__slots__", ())]
        rows.append(f"{kept.__module__}.{kept.__qualname__} {' '.join(names)}")
    rows += [*KEPT_MEMBERS, *vars(State()), *vars(People()), *vars(Keys()), *vars(Relations()), *vars(Witnessed())]
    digest = sha256("\n".join(rows).encode()).hexdigest()
    assert digest[:16] == "73a5f3c7da46a79f", "the layout of what is kept has changed"


# --- killed ---

_KILLED = """
import os, signal, sys
from pathlib import Path
from verifier.keyring import open_keyring
from verifier.replay import folder, auditor, ledger

left = int(sys.argv[1])
def counted(function):
    def call(*arguments, **named):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return function(*arguments, **named)
    return call

auditor.BUNDLE_ENTRIES = folder.SAVE_ENTRIES = 4
folder.SAVE_BYTES_PER_ENTRY = 1 << 30
os.fsync, os.open, Path.replace, Path.unlink = map(counted, (os.fsync, os.open, Path.replace, Path.unlink))
folder.write_position = counted(folder.write_position)
place = Path(sys.argv[2])
keyring = open_keyring(root=(place / "root").read_text(), document=(place / "keys").read_bytes(),
                       policy=(place / "policy").read_bytes())
report = ledger.check_ledger(place / "ledger", keyring, folder=place / "state")
print(report.exit_code, report.facts["size"], report.facts["start"])
"""


def laid_out(ledger: Ledger, place: Path) -> Path:
    """Everything that a process of its own needs to audit a ledger."""
    place.mkdir(exist_ok=True)
    (place / "ledger").write_bytes(ledger.export())
    (place / "root").write_text(maker.root_vkey())
    (place / "keys").write_bytes(ledger.keys())
    (place / "policy").write_bytes(maker.policy(2))
    return place


def run(steps: int, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _KILLED, str(steps), str(place)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_an_audit_that_is_killed_at_any_step_leaves_a_position_to_go_on_from(tmp_path: Path) -> None:
    """A real process, killed before its n-th step to the disk, for every n; then it is run again, and again."""
    ledger, size, starts = maker.busy(), len(maker.busy().leaves), Counter[int]()
    for steps in range(200):
        place = laid_out(ledger, tmp_path / str(steps))
        first = run(steps, place)
        if first.returncode == 0:
            break
        assert (first.returncode, first.stdout) == (-signal.SIGKILL, "")
        report = check_ledger(place / "ledger", pins(ledger), folder=place / "state")
        assert (report.exit_code, report.facts["size"], faults(report)) == (0, size, [])
        starts[int(str(report.facts["start"]))] += 1
    else:
        pytest.fail("it never ends")
    assert len(starts) > 4 and starts[0] and starts[size], "it went on from many places, the first and the last too"


def test_an_audit_that_is_killed_from_outside_is_gone_on_with(tmp_path: Path) -> None:
    ledger = maker.opened()
    for number in range(700):
        ledger.time_ms += 100
        ledger.release(ALICE, ledger.grant(ALICE, f"lock:{number}"))
    place = laid_out(ledger, tmp_path / "place")
    pinned = ["--root", maker.root_vkey(), "--keys", str(place / "keys"), "--policy", str(place / "policy")]
    command = [sys.executable, "-m", "verifier", "ledger", str(place / "ledger"), "--state", str(place / "state")]
    with subprocess.Popen([*command, *pinned, "--progress"], cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.read(10), "it has begun"
        process.kill()
    again = subprocess.run([*command, *pinned], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stderr == "", "no bar where stderr is no terminal"


def test_a_position_on_the_way_is_given_up_when_anything_is_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of a forged file is no ground to stand on, however sound it looked."""
    monkeypatch.setattr(folders, "SAVE_ENTRIES", 1)
    monkeypatch.setattr("verifier.replay.auditor.BUNDLE_ENTRIES", 2)
    assert audit(DAY, 6, tmp_path).exit_code == 0
    forged = DAY.export().replace(b'"reason":"start"', b'"reason":"stall"').replace(DAY.checkpoint(), b"x")
    (tmp_path / "ledger").write_bytes(forged)
    assert check_ledger(tmp_path / "ledger", pins(DAY), folder=tmp_path / "state").exit_code == 1
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["nodes", "position"]
    report = audit(DAY, len(DAY.leaves), tmp_path)
    assert (report.exit_code, report.facts["start"]) == (0, 6)


# --- the bar ---


def test_progress_is_a_count_and_a_share_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show_progress(65_536, 1_000_000)
    show_progress(1_000_000, 1_000_000)
    said = capsys.readouterr()
    assert said.err == "\r65,536 of 1,000,000 entries, 6 %\r1,000,000 of 1,000,000 entries, 100 %\n"
    assert said.out == ""


def test_progress_is_told_after_every_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.replay.auditor.BUNDLE_ENTRIES", 4)
    path, told = tmp_path / "ledger", []
    path.write_bytes(DAY.export())
    check_ledger(path, pins(DAY), progress=lambda count, total: told.append((count, total)))
    assert told == [(4, 15), (8, 15), (12, 15), (15, 15)]


def test_a_folder_that_cannot_be_used_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(DAY.export())
    (tmp_path / "file").write_text("")
    for bad in (tmp_path / "file", tmp_path / "no\0name"):
        report = check_ledger(path, pins(DAY), folder=bad)
        assert (report.exit_code, [f.code for f in report.findings]) == (2, ["unreadable"])


def test_a_source_starts_where_it_is_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(DAY.export())
    for start in (0, 1, 14, 15, 20):
        with open_source(path, start) as source:
            assert (list(source.leaves), source.start, source.size) == (DAY.leaves[start:], start, 15)
            assert source.checkpoint == DAY.checkpoint()
