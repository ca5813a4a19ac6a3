"""What rules said is asked again, or said to be unknown; what they were told is found anew in either case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.rules.engine import open_engine
from tests.core.requests import admit, batch, did_of, load_rules
from tests.lies import table_admissions as told
from tests.lies.kit import House, Telling, checkpoint, sealed
from tests.lies.test_lies import audit, findings
from tests.verifier import maker
from verifier.keyring import Keyring, open_keyring
from verifier.replay import auditor as auditors
from verifier.replay.cedar import Cedar
from verifier.replay.ledger import check_ledger
from verifier.verdict import Report

ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "rules_not_rederived"


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in findings(report)]


def judged(house: House, place: Path, size: int | None = None, **how: Any) -> Report:
    """Audit the first entries of a ledger."""
    place.mkdir(exist_ok=True)
    leaves = house.leaves[:size]
    (place / "ledger").write_bytes(sealed(leaves).export(checkpoint(leaves, house.log_keys)))
    return check_ledger(place / "ledger", pins(house), **how)


def pins(house: House) -> Keyring:
    return open_keyring(root=maker.root_vkey(), document=house.document())


# --- with the engine and without it ---


def test_with_the_engine_a_policed_ledger_is_valid_and_says_what_was_asked(tmp_path: Path) -> None:
    exit_code, report = audit(tmp_path, Telling(told.vetoed()), "--rules")
    assert (exit_code, findings(report)) == (0, [])
    count = report["facts"]["rulings"]["count"]
    assert report["facts"]["rulings"] == {"count": count, "derivedAgain": count} and count == 9
    assert report["facts"]["admissions"] == {"allowed": 5, "denied": 2, "unpoliced": 0, "shadowed": 0}
    told_of = report["facts"]["usage"][did_of("op")]
    assert told_of == {"allowed": 5, "denied": 2, "cost": 19}
    assert f"what rules said of admissions was derived again: {count} of {count}" in report["statement"]


def test_without_being_asked_it_is_never_valid_and_names_count_and_command(tmp_path: Path) -> None:
    exit_code, report = audit(tmp_path, Telling(told.vetoed()))
    assert (exit_code, report["verdict"], codes(report)) == (3, "indeterminate", [UNKNOWN])
    [said] = findings(report)
    assert "not derived again: 9 of 9 admissions that rules judged, by cedar/" in said["text"]
    assert "pip install 'tallystick[rules]' cedarpy==" in said["text"]
    assert "`tallystick-verify ledger ... --rules`" in said["text"]


def test_without_the_package_it_is_never_valid_either(tmp_path: Path) -> None:
    """The real command, on a machine that has the verifier and PyNaCl alone."""
    house = told.policed()
    judged(house, tmp_path, has_rules=True)
    (tmp_path / "keys").write_bytes(house.document())
    (tmp_path / "none").mkdir()
    (tmp_path / "none/cedarpy.py").write_text("raise ImportError('not installed')\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "none")}
    pinned = ["--root", maker.root_vkey(), "--keys", str(tmp_path / "keys")]
    command = [sys.executable, "-m", "verifier", "ledger", str(tmp_path / "ledger"), *pinned, "--rules", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (done.returncode, codes(json.loads(done.stdout))) == (3, [UNKNOWN])


def test_another_version_of_the_engine_is_no_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that two versions might give differently convicts nobody."""
    engine = Cedar()
    version = engine.name
    engine.name = "cedar/0.0.1"
    monkeypatch.setattr(auditors, "open_engine", lambda: engine)
    telling = Telling(told.policed())
    place = told.liar("allow", "work", cost=6)(telling)
    assert place > 0
    exit_code, report = audit(tmp_path, telling, "--rules")
    assert (exit_code, codes(report)) == (3, [UNKNOWN])
    assert f"by {version}: `pip install cedarpy=={version.partition('/')[2]}`" in findings(report)[0]["text"]


@pytest.mark.parametrize("more", [(), ("--rules",)], ids=["without the engine", "with it"])
def test_a_changed_fact_is_found_by_whoever_audits(more: tuple[str, ...], tmp_path: Path) -> None:
    telling = Telling(told.policed())
    told.fact("trust", 60_000)(telling)
    exit_code, report = audit(tmp_path, telling, *more)
    assert exit_code == 1
    assert codes(report) == (["fact_wrong"] if more else ["fact_wrong", UNKNOWN])


def test_rules_are_asked_about_the_facts_that_were_found_anew(tmp_path: Path) -> None:
    """A denial by facts that never were is wrong twice: the facts, and what the rules say of the real ones."""
    house = told.policed()
    telling = Telling(house)
    house.shelf.records[f"usage/agent/{did_of('B')}"] = house.shelf.records[f"usage/agent/{did_of('A')}"]
    place = telling.go_on(lambda house: house.say(admit("B", "repo:c", mode="read", cost=6)))
    assert telling.own(place)["error"] == "forbidden_by_rules"
    _, report = audit(tmp_path, telling, "--rules")
    assert {finding["seq"] for finding in findings(report)} == {place}
    assert sorted(set(codes(report))) == ["fact_wrong", "ruling_wrong"]


def test_an_unpoliced_ledger_needs_no_engine_and_says_so(tmp_path: Path) -> None:
    exit_code, report = audit(tmp_path, Telling(told.working()))
    assert (exit_code, findings(report)) == (0, [])
    assert "admissions: 4 allowed, 0 denied; unpoliced, by hard rules alone: 4" in report["statement"]


def test_a_set_that_judged_nobody_needs_no_engine(tmp_path: Path) -> None:
    house = House()
    house.rules = open_engine()
    house.say(load_rules("op", told.RULES, 1))
    assert audit(tmp_path, Telling(house))[0] == 0


def test_a_shadow_is_asked_again_too(tmp_path: Path) -> None:
    _, report = audit(tmp_path, Telling(told.shadowed()))
    assert codes(report) == [UNKNOWN] and report["facts"]["admissions"]["unpoliced"] == 0
    count = report["facts"]["admissions"]["shadowed"]
    assert count > 0, "the rules saw it and did not decide: whoever reads on must not take it for policed"
    assert f"allowed by hard rules alone while rules only watched, in shadow: {count}" in report["statement"]
    telling = Telling(told.shadowed())
    told.ruled(decision="allow", matched=["work"])(telling)
    exit_code, report = audit(tmp_path, telling, "--rules")
    assert (exit_code, codes(report)) == (1, ["ruling_wrong"])


def test_a_service_may_come_back_with_another_engine_and_says_so(tmp_path: Path) -> None:
    house = told.policed()
    house.start(2_000)
    engine = open_engine()
    assert engine is not None
    engine.name = "cedar/0.0.2"
    house.rules = engine
    house.say(admit("B", "repo:c", mode="read"))
    exit_code, report = audit(tmp_path, Telling(house), "--rules")
    assert (exit_code, codes(report)) == (3, [UNKNOWN])
    assert "1 of 6 admissions that rules judged, by cedar/0.0.2" in findings(report)[0]["text"]


def test_a_gateway_that_had_no_engine_denies_and_nobody_can_ask_again(tmp_path: Path) -> None:
    house = told.policed()
    house.rules = None
    assert house.say(admit("B", "repo:c", mode="read")).text("error") == "policy_error"
    exit_code, report = audit(tmp_path, Telling(house), "--rules")
    assert (exit_code, codes(report)) == (3, [UNKNOWN])
    assert "by none: no entry says which engine it was, or there was none" in findings(report)[0]["text"]


def test_an_engine_that_failed_within_a_batch_is_not_asked_why(tmp_path: Path) -> None:
    """An atomic batch that is refused tells of no ruling: a failure by chance must not pass for a lie."""
    house = told.policed()
    house.rules = None
    leaf = house.say(batch("B", admit("B", "repo:c", mode="read"), isAtomic=True))
    assert (leaf.type, leaf.text("error")) == ("tallystick/batch.refused/1", "policy_error")
    exit_code, report = audit(tmp_path, Telling(house), "--rules")
    assert (exit_code, codes(report)) == (3, [UNKNOWN])


def test_a_text_that_would_end_the_engine_ends_in_a_finding(tmp_path: Path) -> None:
    """A hostile gateway loads what no door lets in: brackets and operators without end."""
    for text in ("(" * 5_000, "1+" * 4_000 + "1==1", "[" * 20 + "]" * 20 + "(" * 4):
        house = told.policed()
        house.rules = told.Credulous("allow", ("a",), ())
        house.say(load_rules("op", f'@id("a") permit(principal, action, resource) when {{ {text} }};', 2))
        exit_code, report = audit(tmp_path, Telling(house), "--rules")
        assert (exit_code, codes(report)) == (1, ["rules_invalid"])


# --- positions and processes ---


def test_whoever_goes_on_from_any_entry_finds_what_is_found_at_once(tmp_path: Path) -> None:
    house = told.vetoed()
    house.say(batch("B", admit("B", "repo:q", mode="read"), admit("B", "doc:q", mode="read", cost=3)))
    whole = judged(house, tmp_path, has_rules=True)
    assert whole.exit_code == 0
    for size in range(1, len(house.leaves)):
        place = tmp_path / str(size)
        first = judged(house, place, size, has_rules=True, folder=place / "state")
        then = judged(house, place, has_rules=True, folder=place / "state")
        assert (then.findings, {**then.facts, "start": 0}) == (whole.findings, dict(whole.facts))
        assert then.facts["start"] == (size if first.exit_code == 0 else 0)


def test_what_was_not_asked_stays_unknown_until_one_begins_anew(tmp_path: Path) -> None:
    house = told.policed()
    size, state = len(house.leaves), tmp_path / "state"
    assert judged(house, tmp_path, folder=state).exit_code == 3
    house.say(admit("B", "repo:c", mode="read"))
    later = judged(house, tmp_path, folder=state, has_rules=True)
    assert (later.exit_code, later.facts["start"], later.facts["rulings"]) == (
        3, size, {"count": 6, "derivedAgain": 1}
    )  # fmt: skip
    assert judged(house, tmp_path, folder=tmp_path / "anew", has_rules=True).exit_code == 0


def test_a_wrong_answer_after_a_position_is_found_by_the_set_that_was_kept(tmp_path: Path) -> None:
    house = told.policed()
    judged(house, tmp_path, folder=tmp_path / "state", has_rules=True)
    house.rules = told.Liar("deny", ("budget",), ())
    house.say(admit("B", "repo:c", mode="read"))
    report = judged(house, tmp_path, folder=tmp_path / "state", has_rules=True)
    assert [finding.code for finding in report.findings if finding.outcome > 0] == ["ruling_wrong"]


@pytest.mark.parametrize("story", [told.vetoed, told.consented, told.in_session, told.replaced])
def test_more_processes_find_the_same(story: Callable[[], House], tmp_path: Path) -> None:
    house = story()
    one, two = (judged(house, tmp_path, has_rules=True, jobs=jobs) for jobs in (1, 2))
    assert (one.findings, one.facts) == (two.findings, two.facts)
    assert one.exit_code == 0
