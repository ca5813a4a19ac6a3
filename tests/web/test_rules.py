"""Rules at a running gateway: loaded, in force, in the shadow, wrong, and without what evaluates them."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cedarpy
import pytest
from prometheus_client import generate_latest

from gateway import ruleroom
from gateway.app import running
from gateway.errors import StartError
from gateway.rules import apart, engine
from gateway.rules.check import check
from gateway.rules.engine import Engine
from gateway.rules.starter import starter_rules
from tests.rules.questions import ALL, policy
from tests.web.test_admission import admit, held
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_lifecycle import SETTINGS
from tests.web.test_problems import check_problem
from tests.web.world import Reply, World, make, world

RULES = "/api/v1/acp/rules"
VERSION = version("cedarpy")
SHADOW = policy("forbid", name="none")
WAITING = """
import sys
open(sys.argv[1], "w").close()
open(sys.argv[2]).close()
print('{"faults": []}')
"""


@pytest.fixture
async def place(public: World) -> AsyncIterator[World]:
    yield public
    public.audit()


async def load(place: World, text: str, mode: str = "enforce", version: int = 1) -> Reply:
    members: Any = {"rules": text, "rulesMode": mode, "rulesVersion": version}
    return await place.ask("op", "rules.load", **members)


async def loaded(place: World, text: str, mode: str = "enforce", version: int = 1) -> None:
    reply = await load(place, text, mode, version)
    assert reply.status == 200, reply.body


async def test_a_rule_set_is_in_force_from_the_next_entry_on(place: World) -> None:
    lease = await held(place, resource="repo:app/a.py")
    before = leaf_of(await admit(place, resource="repo:app/a.py", **lease))
    assert "rules" not in before
    reply = await load(place, starter_rules())
    leaf = leaf_of(reply)
    assert (leaf["type"], leaf["count"], leaf["engine"]) == ("tallystick/rules.loaded/1", 7, f"cedar/{VERSION}")
    check_holds(place, reply)
    shown = (await place.get(RULES)).json["rules"]
    assert (shown["text"], shown["digest"], shown["version"]) == (starter_rules(), leaf["digest"], 1)
    after = leaf_of(await admit(place, resource="repo:app/a.py", **lease))
    assert after["rules"] == {
        "version": 1, "digest": leaf["digest"], "mode": "enforce", "engine": f"cedar/{VERSION}", "decision": "allow",
        "matched": ["holders-may-change"], "obligations": [],
    }  # fmt: skip


async def test_what_no_policy_permits_and_what_one_forbids_are_told_apart(place: World) -> None:
    await loaded(
        place, policy("permit", 'context.operation == "look"') + policy("forbid", "context.cost > 5", name="dear")
    )
    assert (await admit(place, mode="read", operation="look")).status == 200
    nobody = await admit(place, mode="read", operation="deploy")
    assert (nobody.status, nobody.json["error"], nobody.json["matched"]) == (403, "not_permitted", [])
    dear = await admit(place, mode="read", operation="look", cost=6)
    assert (dear.status, dear.json["error"], dear.json["matched"]) == (403, "forbidden_by_rules", ["dear"])
    check_holds(place, dear)


async def test_rules_in_the_shadow_are_written_down_and_deny_nothing(place: World) -> None:
    await loaded(place, SHADOW, "shadow")
    leaf = leaf_of(await admit(place, mode="read"))
    assert (leaf["type"], leaf["rules"]["decision"], leaf["rules"]["matched"]) == (
        "tallystick/admission.allowed/1", "deny", ["none"],
    )  # fmt: skip
    await loaded(place, SHADOW, "enforce", 2)
    assert (await admit(place, mode="read")).json["error"] == "forbidden_by_rules"


async def test_no_rule_set_opens_what_the_hard_rules_close(place: World) -> None:
    """Everything is permitted, and still: no lease, no write; another's lease, no write."""
    await loaded(place, ALL)
    assert (await admit(place)).json["error"] == "lease_required"
    lease = await held(place, "a")
    assert (await admit(place, "b")).json["error"] == "lease_required"
    assert (await admit(place, "b", **lease)).json["error"] == "lease_not_yours"
    assert (await admit(place, "b", mode="read")).json["error"] == "admission_conflict"
    assert (await admit(place, "a", **lease)).status == 200


INVALID = [
    (policy("forbid", "context.trvst < 3", name="mine"), "line 1, policy mine: there is no fact `trvst`; did you mean"),
    ("permit(principal, action, resource);", "line 1: this policy has no name"),
    (f"{ALL}\n{ALL}", "line 2, policy all: its name is that of the policy in line 1"),
    ("\n".join(policy("forbid", "context.x > 3", name=f"p{n}") for n in range(12)), "line 8, policy p7: "),
]


@pytest.mark.parametrize(("text", "words"), INVALID)
async def test_what_is_no_rule_set_is_turned_away_and_changes_nothing(place: World, text: str, words: str) -> None:
    await loaded(place, ALL)
    size = place.gateway.house.sequencer.confirmed.size
    reply = await load(place, text, version=2)
    check_problem(reply, "rules_invalid", 400)
    assert words in reply.json["detail"]
    assert ("; and 4 more" in reply.json["detail"]) == (text.count("p7") > 0)
    assert place.gateway.house.sequencer.confirmed.size == size
    assert (await admit(place, mode="read")).status == 200


async def test_the_gateway_knows_which_schemes_fold(place: World) -> None:
    text = ALL + policy("forbid", 'resource == Resource::"doc:Plan"', name="mine")
    await loaded(place, text)
    told = {"name": "doc", "class": "exclusive", "isFolding": True}
    assert (await place.ask("op", "scheme.set", **told)).status == 200
    check_problem(await load(place, text, version=2), "rules_invalid", 400)


async def test_rules_are_an_operators_and_come_in_turn(place: World) -> None:
    await place.agent("a")
    told = {"rules": ALL, "rulesMode": "enforce", "rulesVersion": 1}
    assert (await place.ask("a", "rules.load", **told)).json["error"] == "operator_required"
    assert (await load(place, ALL, version=2)).json["error"] == "rules_out_of_turn"
    await loaded(place, ALL)
    assert (await load(place, ALL, version=1)).json["error"] == "rules_out_of_turn"
    await loaded(place, SHADOW, "shadow", 2)


async def test_nobody_but_an_operator_has_a_text_looked_through(place: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A set costs a hundred times what another request does, and who may not load any pays for one."""
    await place.agent("a")
    looked: list[str] = []

    class Reviewer:
        async def review(self, text: str, _: object) -> list[str]:
            looked.append(text)
            return []

    monkeypatch.setattr(place.gateway.house.desk, "_reviewer", Reviewer())
    told = {"rules": "no rule set", "rulesMode": "enforce", "rulesVersion": 1}
    assert (await place.ask("a", "rules.load", **told)).json["error"] == "operator_required"
    assert looked == []
    assert (await place.ask("op", "rules.load", **told)).status == 500, "and the core looks for itself"
    assert looked == ["no rule set"]


async def test_who_renews_does_not_wait_for_a_set_that_is_looked_through(
    place: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The process that looks it through has begun and does not end; and the loop itself looks through none."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", WAITING, str(begun), str(go)))
    monkeypatch.setattr(engine, "check", None)
    lease = await held(place)
    loading = asyncio.create_task(load(place, ALL))
    await asyncio.to_thread(begun.read_bytes)
    assert (await place.ask("a", "lease.renew", leaseId=lease["leaseId"])).status == 200
    assert not loading.done()
    await asyncio.to_thread(go.write_bytes, b"")
    assert (await loading).status == 200


async def test_no_admission_waits_for_a_set_to_be_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was parsed when it was loaded, or when the gateway started."""
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await loaded(place, ALL)
        monkeypatch.setattr(engine, "Rules", None)
        assert (await admit(place, mode="read")).status == 200
    async with world(tmp_path / "data", made) as place:
        assert (await admit(place, mode="read")).status == 200


async def test_an_overflow_denies_although_cedar_allows_and_the_next_is_answered(place: World) -> None:
    await loaded(place, ALL + policy("forbid", "context.cost * 9223372036854775807 > 0", name="dear"))
    reply = await admit(place, mode="read", cost=2)
    assert (reply.status, reply.json["error"], reply.json["number"]) == (403, "policy_error", 621)
    leaf = leaf_of(reply)
    assert (leaf["rules"]["decision"], leaf["rules"]["matched"]) == ("error", [])
    check_holds(place, reply)
    assert (await admit(place, mode="read")).status == 200
    assert b"\ntallystick_rules_errors_total 1.0\n" in generate_latest(place.gateway.metrics.registry)


async def test_an_engine_that_raises_denies_and_the_ledger_goes_on(
    public: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine finds that the rules allow it; so this scene ends before the auditor without one."""

    class Panic(BaseException):
        pass

    def failing(*_: Any) -> Any:
        raise Panic

    await loaded(public, ALL)
    with monkeypatch.context() as patch:
        patch.setattr(cedarpy, "is_authorized", failing)
        reply = await admit(public, mode="read")
    assert (reply.status, reply.json["error"]) == (403, "policy_error")
    check_holds(public, reply)
    assert (await admit(public, mode="read")).status == 200


async def test_what_is_hostile_in_names_is_a_value(place: World) -> None:
    name = "repo:app/a'b;--|(x){y},$z&/x"
    await loaded(place, ALL + policy("forbid", f'resource == Resource::"{name}"', name="just-that"))
    reply = await admit(place, resource=name, mode="read")
    assert reply.json["matched"] == ["just-that"]
    assert (await admit(place, resource="repo:app/a", mode="read")).status == 200


async def test_a_gateway_with_rules_in_force_does_not_start_without_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(ruleroom, "open_engine", lambda: None)
        async with world(tmp_path / "data", made) as without:
            check_problem(await load(without, ALL), "rules_unready", 409)
            assert (await admit(without, mode="read")).status == 200, "without rules it does all the rest"
    async with world(tmp_path / "data", made) as place:
        await loaded(place, ALL)
        size = place.gateway.house.sequencer.confirmed.size
    with monkeypatch.context() as patch:
        patch.setattr(ruleroom, "open_engine", lambda: None)
        for _ in range(2):  # the second start finds the file free
            with pytest.raises(StartError, match=r"version 1 .* pip install 'tallystick\[rules\]', then start again"):
                async with running(tmp_path / "data", SETTINGS):
                    raise AssertionError("it must not start")
    async with world(tmp_path / "data", made) as place:
        assert place.gateway.house.sequencer.confirmed.size == size + 2, "no start was written but this one"
        assert (await admit(place, mode="read")).status == 200


async def test_rules_that_the_installed_engine_does_not_take_any_more_stop_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await loaded(place, ALL)
    refusing = check("nonsense;")
    monkeypatch.setattr(ruleroom, "check", lambda _: refusing)
    monkeypatch.setattr(ruleroom, "open_engine", lambda: Engine("cedar/9.0.0"))
    with pytest.raises(StartError, match=r"was checked by cedar/4.* not valid for cedar/9\.0\.0"):
        async with running(tmp_path / "data", SETTINGS):
            raise AssertionError("it must not start")
