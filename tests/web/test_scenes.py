"""Many who look cost no more than one: a scene is made once per head, and under load not often."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.core.parameters import Parameters
from gateway.core.record_keys import agent_key
from gateway.core.records import Agent, Record
from gateway.ledger.sequencer import Sequencer
from gateway.web.scenes import AGE_SECONDS_MAX, GAP_SECONDS, KEPT_MAX, Scenes
from keys.signing import SigningKey
from tests.core.book import Shelf
from tests.web.test_problems import check_problem
from tests.web.world import World

WAIT = "/api/v1/acp/coordination/wait"


class CountingShelf(Shelf):
    scans = 0

    def scan(self, prefix: str) -> Iterable[Record]:
        self.scans += prefix == "lease/"
        return super().scan(prefix)


@dataclass
class Stage:
    """Scenes over records of our own, with a clock and a head that the test moves."""

    shelf: CountingShelf
    sequencer: Any
    scenes: Scenes
    now_s: float = 0.0

    def move_head(self) -> None:
        self.sequencer.confirmed.size += 1

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    shelf = CountingShelf()
    sequencer = SimpleNamespace(confirmed=SimpleNamespace(size=1), time_ms=0)
    made = Stage(shelf, sequencer, None)  # type: ignore[arg-type]
    made.scenes = Scenes(shelf, cast(Sequencer, sequencer), Parameters(), clock=made)

    async def sleep(seconds: float) -> None:
        made.now_s += seconds

    monkeypatch.setattr("gateway.web.scenes.asyncio", SimpleNamespace(sleep=sleep))
    return made


async def test_while_the_head_stands_everybody_gets_the_same_bytes(stage: Stage) -> None:
    first = await stage.scenes.everything()
    for _ in range(100):
        assert await stage.scenes.everything() is first
        await stage.scenes.resource("lock:x")
        await stage.scenes.holder("did:key:x")
        await stage.scenes.agents()
    assert stage.shelf.scans == 1


async def test_under_load_a_scene_is_made_once_in_a_while_and_nobody_sees_less_than_before(stage: Stage) -> None:
    for number in range(20):
        stage.move_head()
        did = f"did:{number}"
        stage.shelf.records[agent_key(did)] = Agent(did, None, number, None, "did:op")
        rows = json.loads(await stage.scenes.agents())["agents"]
        assert [row["addedSeq"] for row in rows] == list(range(number + 1))
    assert stage.shelf.scans == 20
    assert stage.now_s >= 19 * GAP_SECONDS


async def test_many_who_come_together_share_the_next_scene(stage: Stage) -> None:
    await stage.scenes.everything()
    stage.move_head()
    await asyncio.gather(*(stage.scenes.resource(f"lock:{number}") for number in range(100)))
    assert stage.shelf.scans == 2


async def test_on_a_ledger_that_stands_still_a_scene_grows_old(stage: Stage) -> None:
    await stage.scenes.everything()
    stage.now_s += AGE_SECONDS_MAX
    await stage.scenes.everything()
    assert stage.shelf.scans == 2


async def test_a_dear_scene_is_made_the_more_rarely(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = CountingShelf.scan

    def slow(shelf: CountingShelf, prefix: str) -> Iterable[Record]:
        stage.now_s += 0.5
        return scan(shelf, prefix)

    monkeypatch.setattr(CountingShelf, "scan", slow)
    for _ in range(10):
        stage.move_head()
        await stage.scenes.everything()
    assert stage.now_s > 9 * 20


async def test_only_some_answers_are_kept(stage: Stage) -> None:
    for number in range(10 * KEPT_MAX):
        await stage.scenes.resource(f"lock:{number}")
    assert len(stage.scenes._kept) == KEPT_MAX


async def test_a_picture_over_the_socket_is_bounded_and_shared(public: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's address could keep the loop from deciding: each picture walked through every resource held."""
    for tag in range(5):
        resources = [f"lock:{tag}/{number}" for number in range(256)]
        reply = await public.send(
            public.signed(await public.agent("ab"[tag // 3]), "lease.acquire", resources=resources)
        )
        assert reply.status == 200, reply.body
    first = await public.get(WAIT)
    assert (len(first.json["resources"]), first.json["isTruncated"]) == (1_000, True)
    assert first.json["counts"] == {
        "leases": 5,
        "held": 1_280,
        "delays": 0,
        "waiting": 0,
        "queued": 0,
        "offered": 0,
        "asked": 0,
    }
    (row,) = (await public.get(f"{WAIT}?resource=lock:4/255")).json["resources"]
    assert row["leases"][0]["holder"] == public.agents["b"].did
    monkeypatch.setattr("gateway.web.scenes.AGE_SECONDS_MAX", 60)
    monkeypatch.setattr("gateway.web.scenes.look", None)
    again = await asyncio.gather(*(public.get(WAIT) for _ in range(20)))
    assert {reply.body for reply in again} == {first.body}


async def test_who_may_not_look_uses_up_nobodys_share(members: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members.gateway.house.pictures, "_burst", 3)
    monkeypatch.setattr(members.gateway.house.pictures, "_rate_per_s", 0.001)
    key, other = await members.agent("a"), await members.agent("b")
    stranger = SigningKey.generate()
    for _ in range(5):
        check_problem(await members.get(WAIT), "signature_missing", 401)
        check_problem(await members.send(members.signed_read(stranger, WAIT)), "reader_unknown", 403)
    replies = [await members.send(members.signed_read(key, WAIT)) for _ in range(4)]
    assert [reply.status for reply in replies] == [200] * 3 + [429]
    assert (await members.send(members.signed_read(other, WAIT))).status == 200
