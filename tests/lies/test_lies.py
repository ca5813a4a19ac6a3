"""Every lie of the cheating gateway is found by the real command, where it was told; its honest twin passes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.lies.kit import Lie, Story, Telling, checkpoint, fresh, sealed, tiles
from tests.lies.table import LIES, PAGE, page
from tests.lies.table_limits import LIMITS, Limit
from tests.lies.table_receipts import LIES as RECEIPT_LIES
from tests.lies.table_receipts import Files, ReceiptLie, other, ours
from tests.verifier import maker
from verifier.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
# What was asked of this kit before it was written, in the words of the tables.
_ASKED_FOR = """
double grant, early expiry, token reuse, forged refusal, swapped order, dropped entry, edited body, foreign
signature, reused nonce, wrong trust, skipped waiter, fake cycle, backdated time, split view, truncated tail, GET as
evidence of a grant, release as grant, other tag, other component set, foreign authority, other ledger's request,
wrong anchor, batch body cited twice, commands out of order, batch cited from afar, one command missing, grant after
give-up, ticket consumed twice, skip before its time, dead ticket kept, plain acquire past a ticket, class flipped
and back, scheme loosened while live, parameter changed without an operator, session ended too early, session kept
too long, holiday without outage, holiday twice, holiday too long, clock ahead of its cosignature, frozen behind a
cosignature, wrong holder named, cycle overlooked, cycle of dead tickets, stampede count off by one, token not by
formula, old token after a change of mode, old token after a transfer, transfer past a queue, break without
operator, key entry without root, older key document, key resurrected, epochs interleaved, entry 0 twice, tail cut
below a held receipt, two leaves of one seq, two leaves by compare, unknown type hides a decision,
approval of another ledger, another fact: trust, rules without an operator, admission under a dead token
"""
ASKED_FOR = {" ".join(name.split()) for name in _ASKED_FOR.split(",")}
# These are judged by a process of their own, all others by the same command within this one: a process costs more than
# what it judges.
APART = {"double grant", "split view", "truncated tail", "GET as evidence of a grant", "rules without an operator"}
STORIES = tuple(dict.fromkeys(lie.story for lie in LIES))
REWRITTEN = [lie for lie in LIES if lie.code in ("two_roots", "truncated")]
TWINS = {lie.honest: lie.command for lie in RECEIPT_LIES}


def verify(
    folder: Path, files: dict[str, bytes], *arguments: str, is_apart: bool = False
) -> tuple[int, dict[str, Any]]:
    """Write files and run the verifier on them as anybody would; return its exit code and its report.

    Without a process of its own, unless `is_apart`: that spares the suite the start of Python.
    """
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    if not is_apart:
        with redirect_stdout(StringIO()) as out:
            code = main([*arguments, "--json"])
        return code, json.loads(out.getvalue())
    command = [sys.executable, "-m", "verifier", *arguments, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.stderr == b"", done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, report


def audit(
    folder: Path, telling: Telling, *more: str, is_tiles: bool = False, has_policy: bool = False, is_apart: bool = False
) -> tuple[int, dict[str, Any]]:
    """Have a ledger judged by who has pinned the root and got its key document before the lie."""
    leaves, held = telling.leaves(), telling.held
    note = checkpoint(leaves, telling.log_keys)
    files = {"keys": telling.document, "policy": maker.policy(), **({} if held is None else {"held": held})}
    if is_tiles:
        files |= {f"ledger/{name}": content for name, content in tiles(leaves, note).items()}
    else:
        files["ledger"] = sealed(leaves).export(note)
    pins = ["--root", maker.root_vkey(), "--keys", str(folder / "keys")]
    pins += ["--policy", str(folder / "policy")] if has_policy else []
    pins += [] if held is None else ["--checkpoint", str(folder / "held")]
    return verify(folder, files, "ledger", str(folder / "ledger"), *pins, *more, is_apart=is_apart)


def findings(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the findings that are more than remarks."""
    return [finding for finding in report["findings"] if finding["outcome"] != "valid"]


def rows() -> list[Any]:
    """One case for each lie; one that is open is expected to fail, and tells when it no longer does."""
    return [pytest.param(lie, id=lie.name, marks=[_open(lie.why_open)] if lie.why_open else []) for lie in LIES]


def _open(why: str) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=why, strict=True)


@pytest.mark.parametrize("lie", rows())
def test_the_lie_is_found_where_it_was_told(lie: Lie, tmp_path: Path) -> None:
    telling = Telling(fresh(lie.story))
    place = lie.tell(telling)
    is_apart = lie.name in APART
    how = {"is_tiles": lie.is_tiles, "has_policy": lie.has_policy, "is_apart": is_apart}
    exit_code, report = audit(tmp_path, telling, *(["--rules"] if lie.has_rules else []), **how)
    found = findings(report)
    assert found
    first = found[0]
    assert (exit_code, first["code"], first["clause"]) == (lie.exit_code, lie.code, lie.clause)
    assert first["seq"] == (None if place < 0 else place)
    assert {finding["code"] for finding in found} == {lie.code, *lie.also}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_honest_ledger_passes_without_a_finding(story: Story, tmp_path: Path) -> None:
    telling = Telling(fresh(story))
    assert telling.leaves() == telling.house.leaves, "sealing changes no byte of what is honest"
    telling.held = checkpoint(telling.leaves(), telling.log_keys)
    has_policy = any(lie.has_policy for lie in LIES if lie.story is story)
    exit_code, report = audit(tmp_path, telling, "--rules", has_policy=has_policy)
    assert (exit_code, findings(report)) == (0, [])
    assert report["completeness"] == f"to size {len(telling.entries)} of the given checkpoint"


@pytest.mark.parametrize("lie", REWRITTEN, ids=lambda lie: lie.name)
def test_an_auditor_that_comes_back_needs_no_checkpoint_to_find_it(lie: Lie, tmp_path: Path) -> None:
    """It has kept where it stood, and what the log had signed for that."""
    state = ("--state", str(tmp_path / "state"))
    telling = Telling(fresh(lie.story))
    assert audit(tmp_path, telling, *state)[0] == 0
    lie.tell(telling)
    telling.held = None
    exit_code, report = audit(tmp_path, telling, *state)
    assert (exit_code, findings(report)[0]["code"]) == (lie.exit_code, lie.code)


def test_an_honest_tile_directory_passes_too(tmp_path: Path) -> None:
    exit_code, report = audit(tmp_path, Telling(fresh(STORIES[0])), is_tiles=True)
    assert (exit_code, findings(report)) == (0, [])


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_what_no_entry_shows_passes_and_is_told_of(limit: Limit, tmp_path: Path) -> None:
    telling = Telling(fresh(limit.story))
    honest = telling.leaves()
    limit.tell(telling)
    assert telling.leaves() != honest
    exit_code, report = audit(tmp_path, telling)
    assert (exit_code, findings(report)) == (0, [])
    assert "decisions_not_redecided" in [finding["code"] for finding in report["findings"]]
    assert limit.fact is None or limit.fact in report["facts"].items()


def check(
    folder: Path, files: Files, command: str = "receipt", *more: str, is_apart: bool = False
) -> tuple[int, dict[str, Any]]:
    """Have a receipt judged, with the other files at hand, by who has pinned the root and the honest key document."""
    pins = ["--root", maker.root_vkey(), "--keys", str(folder / "keys")]
    named = [str(folder / name) for name in ("receipt", "other") if name in files]
    others = [str(folder / name) for name in files if name not in ("receipt", "other", "keys")]
    also = ["--also", *others] if others else []
    arguments = (command, *named, *pins, *also, *more)
    return verify(folder, {"keys": ours().keys(), **files}, *arguments, is_apart=is_apart)


@pytest.mark.parametrize("lie", RECEIPT_LIES, ids=lambda lie: lie.name)
def test_the_lie_told_by_a_receipt_is_found(lie: ReceiptLie, tmp_path: Path) -> None:
    exit_code, report = check(tmp_path, lie.told(), lie.command, is_apart=lie.name in APART or lie is RECEIPT_LIES[0])
    assert exit_code == lie.exit_code
    assert (lie.code, lie.clause) in [(finding["code"], finding["clause"]) for finding in findings(report)]


@pytest.mark.parametrize("honest", TWINS, ids=lambda made: made.__name__)
def test_the_honest_receipt_passes_without_a_finding(honest: Callable[[], Files], tmp_path: Path) -> None:
    exit_code, report = check(tmp_path, honest(), TWINS[honest])
    assert (exit_code, findings(report)) == (0, [])


SPLITS = [lie for lie in RECEIPT_LIES if lie.command == "compare"]


@pytest.mark.parametrize("lie", SPLITS, ids=lambda lie: lie.name)
def test_the_evidence_of_a_split_convicts_whoever_reads_it(lie: ReceiptLie, tmp_path: Path) -> None:
    """Who found it hands on one file; another reader judges it anew under pins of its own."""
    check(tmp_path, lie.told(), "compare", "--evidence", str(tmp_path / "evidence"))
    evidence = (tmp_path / "evidence").read_bytes()
    exit_code, report = check(tmp_path, {"receipt": evidence}, "compare")
    assert (exit_code, findings(report)[0]["outcome"]) == (4, "split")


def test_evidence_that_somebody_made_up_convicts_nobody(tmp_path: Path) -> None:
    """The other history is signed by a stranger: the log answers for nothing of it."""
    forged = {"receipt": ours().checkpoint(), "other": other().checkpoint(log=maker.STRANGER)}
    document = {"type": "tallystick/evidence/1", "code": "two_roots", "origin": maker.ORIGIN}
    evidence = document | {"a": forged["receipt"].decode(), "b": forged["other"].decode()}
    exit_code, report = check(tmp_path, {"receipt": json.dumps(evidence).encode()}, "compare")
    assert exit_code == 1
    assert "log_signature_missing" in [finding["code"] for finding in findings(report)]


def test_every_lie_that_was_asked_for_is_told() -> None:
    assert (ASKED_FOR | APART) - {lie.name for lie in LIES} - {lie.name for lie in RECEIPT_LIES} == set()


# A change of entry 0 is another ledger, which the pinned genesis shows first; the other is a note.
NOT_SHOWN = {"opening_key_wrong", "unwitnessed"}


def test_every_finding_between_entries_is_shown_by_a_lie() -> None:
    """What the auditor says of entries, by its own sources: none of it is only words."""
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "verifier/replay").glob("*.py"))]
    said = {code for text in texts for code in re.findall(r'yield \(?\s*"([a-z_]+)"', text)}
    assert len(said) > 60
    assert said - {code for lie in LIES for code in (lie.code, *lie.also)} == NOT_SHOWN


def test_what_one_lie_does_to_a_house_the_next_does_not_see() -> None:
    """A story is played once in a process; each lie gets a copy of its end."""
    house = fresh(STORIES[0])
    honest = list(house.leaves), dict(house.shelf.records)
    house.shelf.records.clear()
    house.leaves.clear()
    house.lines.clear()
    again = fresh(STORIES[0])
    assert (again.leaves, again.shelf.records) == honest and again.lines


def test_no_lie_is_told_twice() -> None:
    names = Counter([*(lie.name for lie in LIES), *(lie.name for lie in RECEIPT_LIES)])
    assert [name for name, count in names.items() if count > 1] == []
    assert len(LIES) >= 45


def test_the_page_of_the_lies_equals_the_table() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m tests.lies.table`"
