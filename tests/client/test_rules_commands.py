"""`tallystick rules`: at a desk without a gateway, and with one."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.client import rules_commands
from gateway.client.agent import Agent
from gateway.client.commands import main
from gateway.client.exits import DONE, NOT_ENROLLED, REFUSED, UNFIT, UNPROVEN, USAGE
from gateway.client.join import join
from gateway.rules.starter import starter_rules
from tests.rules.questions import ALL, policy
from tests.web.world import World, make, world
from verifier.rules import SCHEMA

BROKEN = policy("forbid", "context.trvst < 3", name="mine")


def run(*arguments: str) -> int:
    return main(["rules", *arguments])


def written(folder: Path, text: str, name: str = "rules.cedar") -> str:
    (folder / name).write_text(text, "utf-8")
    return str(folder / name)


# -- without a gateway -------------------------------------------------------------------------------------------------


def test_a_newcomer_begins_with_the_starter_set_and_its_cases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("starter") == DONE
    file = written(tmp_path, capsys.readouterr().out)
    assert Path(file).read_text("utf-8") == starter_rules()
    assert run("starter", "--cases") == DONE
    cases = written(tmp_path, capsys.readouterr().out, "cases.jsonl")
    assert run("check", file) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "permit  anyone-may-read  (line 4)"
    assert lines[2] == "permit  approved-may-delete  (line 13)  obliges to notify:on-call"
    assert lines[-1].startswith("valid: 7 policies, by cedar/4.")
    assert lines[-1].endswith(sha256(starter_rules().encode()).hexdigest())
    assert run("test", file, cases) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "ok     no lease, no write                    deny   nothing permits it"
    assert lines[-1] == "16 cases, as expected"
    assert all(line.startswith("ok ") for line in lines[:-1])


def test_what_is_wrong_is_told_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, f"{ALL}\n{BROKEN}")
    words = "line 2, policy mine: there is no fact `trvst`; did you mean trust? (all of them: tallystick rules schema)"
    for command in (["check", file], ["test", file, "unread"]):
        assert run(*command) == UNFIT
        assert capsys.readouterr().err == f"{file}: {words}\n"
    assert run("check", file, "--json") == UNFIT
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["error"], told["exitCode"], len(told["faults"])) == (False, "rules_invalid", UNFIT, 1)
    assert (told["faults"][0]["line"], told["faults"][0]["policy"]) == (2, "mine")


def test_a_valid_set_is_told_to_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", written(tmp_path, ALL), "--json") == DONE
    told = json.loads(capsys.readouterr().out)
    assert told["policies"] == [{"id": "all", "effect": "permit", "line": 1}]
    assert (told["ok"], told["digest"]) == (True, sha256(ALL.encode()).hexdigest())


def test_a_file_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Input:
        buffer = io.BytesIO(ALL.encode())

    monkeypatch.setattr(sys, "stdin", Input)
    assert run("check", "-") == DONE
    assert "valid: 1 policy, by" in capsys.readouterr().out


CASES = [
    ({"expect": "deny"}, "ok     line 1                                deny   forbidden by dear; obliges to tell:x",
     DONE),
    ({"case": "x", "expect": "allow", "cost": 1}, "ok     x ", DONE),
    ({"case": "x", "expect": "allow", "matched": ["all"]}, "WRONG  x ", UNFIT),
    ({"case": "x", "expect": "deny", "matched": ["all"]}, "(line 1 expects deny by all)", UNFIT),
    ({"case": "x", "expect": "deny", "obligations": []}, "(line 1 expects deny obliging to nothing)", UNFIT),
    ({"case": "x", "expect": "deny", "obligations": ["tell:x"]}, "ok     x ", DONE),
    ({"case": "x", "expect": "allow", "cost": 9 * 10**11}, "integer overflow", UNFIT),
    ({"case": "x", "expect": "error", "cost": 9 * 10**11}, "ok     x ", DONE),
    ({"case": "\x1b[31mred", "expect": "allow", "cost": 1}, "\\x1b[31mred", DONE),
]  # fmt: skip
RULES = ALL + (
    '@id("dear") @obligation("tell:x") forbid(principal, action, resource) '
    "when { context.cost == 0 || context.cost * context.cost * 1000000 < 0 };"
)


@pytest.mark.parametrize(("case", "words", "code"), CASES)
def test_a_case_says_what_it_expects_and_what_came(
    case: dict[str, Any], words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, cases = written(tmp_path, RULES), written(tmp_path, f"\n// a comment\n{json.dumps(case)}", "cases.jsonl")
    assert run("test", file, cases) == code
    assert words.replace("line 1", "line 3") in capsys.readouterr().out
    assert run("test", file, cases, "--json") == code
    told = json.loads(capsys.readouterr().out)
    assert (told["ok"], told["cases"][0]["ok"], told["cases"][0]["line"]) == (code == DONE, code == DONE, 3)


BAD_CASES = [
    ("{}", 'line 1: "expect" is "allow", "deny" or "error"'),
    ('{"expect": "maybe"}', 'line 1: "expect" is "allow", "deny" or "error"'),
    ('{"expect": "deny", "trvst": 1}', "line 1: a case has no `trvst`; did you mean trust?"),
    ('{"expect": "deny", "trust": "much"}', "line 1: trust is an integer from 0"),
    ('{"expect": "deny", "mode": "wite"}', "line 1: mode is one of read, append, write, delete"),
    ('{"expect": "deny", "at": "Monday 10"}', 'line 1: "at" is a time of a week in UTC, such as "Mon 10:30"'),
    ('{"expect": "deny", "at": "Foo 10:00"}', 'line 1: "at" is a time of a week'),
    ('{"expect": "deny", "matched": "all"}', "line 1: matched is a list of texts"),
    ('{"expect": "deny", "isFolding": 1}', "line 1: isFolding is true or false"),
    ('{"expect": "deny", "resource": "app"}', "line 1: resource is scheme:path"),
    ('{"expect": "deny"}\nnonsense', "line 2: JSON text is malformed"),
    ("// nothing", "there are 0 cases"),
]


@pytest.mark.parametrize(("cases", "words"), BAD_CASES)
def test_a_case_that_can_not_be_read_is_told_with_its_line(
    cases: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("test", written(tmp_path, ALL), written(tmp_path, cases, "cases.jsonl")) == USAGE
    assert f"cases.jsonl: {words}" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 16_385])
def test_a_file_that_can_not_be_read_is_wrong_usage(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.cedar"
    if content is not None:
        file.write_bytes(content)
    assert run("check", str(file)) == USAGE
    assert str(file) in capsys.readouterr().err


def test_the_schema_is_what_sets_are_checked_by(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema") == DONE
    assert capsys.readouterr().out == SCHEMA


def test_without_the_engine_the_command_that_brings_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rules_commands, "engine_name", lambda: None)
    assert run("check", written(tmp_path, ALL)) == USAGE
    assert "pip install 'tallystick[rules]'" in capsys.readouterr().err
    assert run("schema") == DONE


# -- at a gateway ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway, its operator's profile, and another's."""

    place: World
    operator: Path
    other: Path

    async def run(self, *arguments: str, home: Path | None = None) -> int:
        return await asyncio.to_thread(main, ["rules", *arguments, "--home", str(home or self.operator)])

    @property
    def size(self) -> int:
        return self.place.gateway.house.sequencer.confirmed.size


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        homes = tmp_path / "op", tmp_path / "other"
        for home in homes:
            await join(place.gateway.url, made.root_vkey, home)
        (homes[0] / "agent.key").unlink()
        for name in ("agent.key", "agent.pass"):
            (homes[0] / name).unlink(missing_ok=True)
            (homes[0] / name).write_bytes((tmp_path / "data" / "operator" / name).read_bytes())
            (homes[0] / name).chmod(0o600)
        yield Scene(place, *homes)
        place.audit()


async def test_a_set_is_loaded_shown_with_proof_and_loaded_again(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await scene.run("show") == DONE
    assert capsys.readouterr().out == "No rules are loaded: the hard ones alone decide.\n"
    file, receipt = written(tmp_path, starter_rules()), tmp_path / "receipt.json"
    assert await scene.run("load", file, "--mode", "shadow", "--receipt", str(receipt)) == DONE
    said = capsys.readouterr().out
    assert said.startswith("rules.loaded  (entry ")
    assert "It denies nothing" in said
    assert receipt.exists()
    assert await scene.run("load", file, "--mode", "enforce") == DONE
    assert "approvals that name another text count no more" in capsys.readouterr().out
    assert await scene.run("show") == DONE
    first, second, text = capsys.readouterr().out.split("\n", 2)
    assert first == f"// version 2, enforce, loaded by entry {scene.size - 1} (verified)"
    assert second == f"// SHA-256 {sha256(starter_rules().encode()).hexdigest()} of what follows this line"
    assert text == starter_rules()
    assert await scene.run("show", "--json") == DONE
    assert json.loads(capsys.readouterr().out)["rules"]["version"] == 2


async def test_what_is_not_valid_is_not_even_sent(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, file = scene.size, written(tmp_path, BROKEN)
    assert await scene.run("load", file, "--mode", "enforce") == UNFIT
    assert "did you mean trust?" in capsys.readouterr().err
    monkeypatch.setattr(rules_commands, "engine_name", lambda: None)
    assert await scene.run("load", file, "--mode", "enforce") == REFUSED
    assert "did you mean trust?" in capsys.readouterr().err, "the gateway says the same"
    assert scene.size == size


async def test_a_set_is_an_operators_and_has_the_next_number(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, ALL)
    assert await scene.run("load", file, "--mode", "enforce", home=scene.other) == NOT_ENROLLED
    assert "--home DATA/operator" in capsys.readouterr().err
    assert await scene.run("load", file, "--mode", "enforce", "--rules-version", "7") == REFUSED
    assert "rules_out_of_turn" in capsys.readouterr().err


LIES = [
    {"text": ALL + " "},
    {"text": 7},
    {"text": ALL + "\x1b"},
    {"digest": "0" * 64},
    {"mode": "shadow"},
    {"version": 2},
    {"seq": 0},
    {"seq": None},
]


@pytest.mark.parametrize("lie", LIES)
async def test_rules_that_no_entry_put_in_force_are_not_shown(
    lie: dict[str, Any],
    scene: Scene,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await scene.run("load", written(tmp_path, ALL), "--mode", "enforce") == DONE
    truth = Agent.rules

    async def lying(agent: Any) -> Any:
        view = await truth(agent)
        return {**view, "rules": {**view["rules"], **lie}}  # type: ignore[dict-item]

    monkeypatch.setattr(Agent, "rules", lying)
    capsys.readouterr()
    assert await scene.run("show") == UNPROVEN
    assert ALL not in capsys.readouterr().out
