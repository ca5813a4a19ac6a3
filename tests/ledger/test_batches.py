"""Many commands in one request: one answer, the same for ever, and a receipt for each command that holds by itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Busy, Fatal
from gateway.ledger.checkpoint import check_release, encode_leaf
from gateway.ledger.history import Answer, stored_answer, stored_receipt
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.signer import Signer
from tests.core.requests import Ask, acquire, batch, chain, did_of, open_session, release, renew
from tests.ledger.test_history import drop_triggers
from tests.ledger.test_sequencer import Gate, outcome
from tests.world import ENGINES, Engine, Fault, World, signer_of
from verifier.merkle import leaf_hash
from verifier.receipt import check_receipt

AGENTS = 6  # entries before the first of a scene: entry 0, start, holiday, and three agents


@pytest.fixture(params=ENGINES)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    engine: Engine = request.param
    async with World(tmp_path, engine) as world:
        yield world


def three(name: str = "A", /, **members: Any) -> Ask:
    """Return a batch that takes two leases and gives back what it does not hold."""
    return batch(
        name, acquire(name, "lock:1"), release(name, "lock:9"), acquire(name, "lock:2", ttlMs=9_000), **members
    )


def said(answer: Answer) -> dict[str, Any]:
    decoded = json.loads(answer.body())
    assert isinstance(decoded, dict)
    return decoded


def cut(answer: Answer, index: int) -> bytes:
    """Return the receipt of one command, as a client cuts it out of the answer to the batch."""
    parts, at = said(answer)["batch"], index + 1
    rows = parts["paths"][at]
    note = parts["checkpoint"]
    proof = "".join(
        [f"c2sp.org/tlog-proof@v1\nindex {parts['index'] + at}\n", *[f"{row}\n" for row in rows], "\n", note]
    )
    signatures = [{"keyid": parts["keyid"], "sig": parts["signatures"][at]}] if parts["signatures"] else []
    receipt = {
        "payloadType": "application/vnd.tallystick.leaf.v1+json",
        "payload": parts["leaves"][at],
        "signatures": signatures,
        "proof": proof,
        "batch": {"leaf": parts["leaves"][0], "path": parts["paths"][0]},
    }
    return json.dumps(receipt).encode()


async def test_a_batch_says_of_each_command_what_it_would_have_said_alone(world: World) -> None:
    answer = await world.ask(three())
    told = said(answer)
    assert [(row["seq"], row["status"], row["ok"]) for row in told["results"]] == [
        (7, 200, True),
        (8, 409, False),
        (9, 200, True),
    ]
    assert (told["ok"], answer.status, answer.seq, told["results"][1]["error"]) == (False, 200, 6, "not_holder")
    alone = json.loads((await world.acquire("B", "lock:3")).body())["lease"]
    assert set(told["results"][0]["lease"]) == set(alone)
    assert told["results"][2]["lease"]["expiresAtMs"] == world.clock.wall + 9_000
    assert world.types(AGENTS)[:4] == ["batch.received", "lease.granted", "release.refused", "lease.granted"]
    for leaf in world.leaves()[7:10]:
        assert leaf.batch == (6, leaf.seq - 7) and leaf.request is None and leaf.actor == did_of("A")
    world.audit()


async def test_all_went_well_is_said_at_the_top(world: World) -> None:
    assert said(await world.ask(batch("A", acquire("A", "lock:1"))))["ok"] is True


@pytest.mark.parametrize("is_bare", [False, True])
async def test_a_command_has_a_receipt_that_a_stranger_accepts_at_once_and_later(world: World, is_bare: bool) -> None:
    answer = await world.ask(three(isBare=True) if is_bare else three())
    assert bool(said(answer)["batch"]["signatures"]) is not is_bare
    for number in range(5):
        await world.acquire("B", f"lock:b{number}")
    confirmed = world.sequencer.confirmed
    for index in range(3):
        place = {"seq": 7 + index, "size": confirmed.size}
        later = stored_receipt(world.store.honest, world.signer, **place, note=confirmed.note)
        assert json.loads(later)["batch"]["leaf"] == said(answer)["batch"]["leaves"][0]
        for file in (cut(answer, index), later):
            report = check_receipt(file, world.keyring, level="included")
            assert report.exit_code == 0, report.as_text()
    own = stored_receipt(world.store.honest, world.signer, seq=6, size=confirmed.size, note=confirmed.note)
    assert "batch" not in json.loads(own), "the header's own receipt is like any other"
    assert check_receipt(own, world.keyring, level="included").exit_code == 0
    world.audit()


async def test_the_receipt_cut_out_is_the_one_that_is_served_at_that_checkpoint(world: World) -> None:
    answer = await world.ask(three())
    confirmed = world.sequencer.confirmed
    for index in range(3):
        place = {"seq": 7 + index, "size": confirmed.size}
        served = stored_receipt(world.store.honest, world.signer, **place, note=confirmed.note)
        assert json.loads(served) == json.loads(cut(answer, index))


# -- the same for ever -------------------------------------------------------------------------------------------------


async def test_a_retry_gets_the_same_bytes_also_after_a_restart_and_after_a_crash(world: World) -> None:
    asked = [three(), three("B", isBare=True), three("C", isAtomic=True)]
    first = [await world.ask(one) for one in asked]
    assert [answer.status for answer in first] == [200, 200, 409]
    size = len(world.leaves())

    async def retry() -> None:
        for one, answer in zip(asked, first, strict=True):
            again = await world.ask(one.again())
            assert again == answer._replace(is_replay=True)
            assert again.body() == answer.body()

    await retry()
    await world.acquire("A", "lock:other")
    await retry()
    await world.restart()
    await retry()
    await world.crash()
    await world.start()
    await retry()
    assert len(world.leaves()) == size + 1 + 4, "but for another's grant and two starts nothing is new"
    world.audit()


async def test_a_repeat_inside_one_turn_is_one_batch_and_equal_answers(world: World) -> None:
    asked = three()
    answers = await asyncio.gather(*(world.ask(asked.again()) for _ in range(4)))
    assert {answer.body() for answer in answers} == {answers[0].body()}
    assert sorted(answer.is_replay for answer in answers) == [False] + [True] * 3
    assert len(world.leaves()) == AGENTS + 4


@pytest.mark.parametrize("fault", ["lost", "kept", "moved"])
async def test_a_batch_whose_commit_is_unclear_is_there_once_and_whole(world: World, fault: Fault) -> None:
    world.store.plan.append(("commit", fault))
    asked = three()
    answer = await world.ask(asked)
    batches = [leaf for leaf in world.leaves() if leaf.type == "tallystick/batch.received/1"]
    assert [leaf.seq for leaf in batches] == [answer.seq]
    assert [leaf.batch for leaf in world.leaves()[answer.seq + 1 : answer.seq + 4]] == [
        (answer.seq, index) for index in range(3)
    ]
    assert (await world.ask(asked.again())).body() == answer.body()
    world.audit()


@pytest.mark.parametrize("fault", ["lost", "kept"])
async def test_a_kill_before_the_outcome_is_known_leaves_all_of_a_batch_or_nothing(world: World, fault: Fault) -> None:
    world.store.plan.extend([("commit", fault), ("landed", "busy")])
    asked = three()
    assert isinstance(await outcome(world.ask(asked)), Fatal)
    await world.crash()
    await world.start()
    assert ("batch.received" in world.types()) is (fault == "kept")
    answer = await world.ask(asked.again())
    assert (answer.is_replay, len(answer.rest)) == (fault == "kept", 3)
    assert world.types().count("batch.received") == 1
    assert (await world.ask(asked.again())).body() == answer.body()
    world.audit()


async def test_a_batch_that_the_store_did_not_take_changes_nothing(world: World) -> None:
    world.store.plan.append(("commit", "busy"))
    asked = three()
    assert isinstance(await outcome(world.ask(asked)), Busy)
    assert len(world.leaves()) == AGENTS and not list(world.sequencer.view.scan("lease/"))
    assert len((await world.ask(asked.again())).rest) == 3
    world.audit()


# -- all or nothing, and one after the other ---------------------------------------------------------------------------


async def test_an_atomic_batch_that_is_refused_is_one_entry_and_leaves_nothing(world: World) -> None:
    answer = await world.ask(three(isAtomic=True))
    assert (answer.status, answer.rest, world.types(AGENTS)) == (409, (), ["batch.refused"])
    told = said(answer)
    assert (told["ok"], told["error"], told["index"]) == (False, "not_holder", 1)
    assert not list(world.sequencer.view.scan("lease/"))
    assert check_receipt(json.dumps(told["receipt"]).encode(), world.keyring).exit_code == 0
    world.audit()


async def test_nothing_comes_between_a_batch_and_its_commands(world: World) -> None:
    """What they touch and is due ends before, who waits is offered what they free afterwards."""
    lease = json.loads((await world.acquire("A", "lock:1", ttlMs=3_600_000)).body())["lease"]["leaseId"]
    await world.acquire("C", "lock:2", ttlMs=1_000)
    await world.acquire("B", "lock:1", wait=True)
    size = len(world.leaves())
    world.clock.advance(1_000)
    at_ms = world.clock.wall
    both = batch("A", release("A", "lock:1", leaseId=lease), acquire("A", "lock:2"), at_ms=at_ms)
    answers = await asyncio.gather(world.ask(both), world.acquire("C", "lock:3"))
    assert said(answers[0])["ok"] is True
    assert world.types(size) == [
        "lease.expired",
        "batch.received",
        "lease.released",
        "lease.granted",
        "wait.offered",
        "lease.granted",
    ]
    world.audit()


async def test_a_command_about_a_lease_that_ended_long_ago_is_told_how(world: World) -> None:
    """How it ended is cold: it must be looked up for each command."""
    leases = [json.loads((await world.acquire("A", f"lock:{n}")).body())["lease"]["leaseId"] for n in range(2)]
    await world.ask(batch("A", *(release("A", f"lock:{n}", leaseId=lease) for n, lease in enumerate(leases))))
    await world.restart()
    answer = await world.ask(batch("A", *(renew("A", lease) for lease in leases)))
    assert [(row["error"], row["endedSeq"]) for row in said(answer)["results"]] == [
        ("lease_released", 9),
        ("lease_released", 10),
    ]
    world.audit()


# -- the line ----------------------------------------------------------------------------------------------------------


async def test_the_largest_batch_is_one_turn_and_others_are_served_beside_it(world: World) -> None:
    gate = Gate(world)
    held = asyncio.create_task(world.acquire("C", "lock:c"))
    await gate.reached.wait()
    many = [batch(name, *(acquire(name, f"lock:{name}/{n}") for n in range(256))) for name in ("A", "B")]
    tasks = [asyncio.create_task(world.ask(one)) for one in many]
    tasks.append(asyncio.create_task(world.acquire("C", "lock:last")))
    for _ in range(1_000):  # turns of the loop, no time passes
        await asyncio.sleep(0)
    assert world.sequencer.queue_depth == 513
    gate.open()
    answers = await asyncio.gather(held, *tasks)
    sizes = [one.checkpoint.split(b"\n")[1] for one in answers[1:]]
    assert [len(one.rest) for one in answers] == [0, 256, 256, 0]
    assert len(set(sizes)) == 3, "one such batch fills a turn"
    assert max(len(one.body()) for one in answers) < 1_048_576
    world.audit()


async def test_a_batch_is_decided_whole_when_the_time_is_over_and_the_rest_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World(tmp_path) as world:
        monkeypatch.setattr("gateway.ledger.batches.DECIDE_MS_MAX", 0)
        answers = await asyncio.gather(*(world.ask(three(name)) for name in ("A", "B", "C")))
        assert [len(one.rest) for one in answers] == [3, 3, 3]
        assert len({one.checkpoint for one in answers}) == 3
        world.audit()


# -- looked at before it leaves ----------------------------------------------------------------------------------------


def signed_batch() -> tuple[Signer, list[bytes], list[bytes]]:
    signer = signer_of("log", "receipt")
    header = encode_leaf({"type": "tallystick/batch.received/1", "seq": 0, "count": 2, "request": {"body": ""}})
    rest = [encode_leaf({"type": "x", "seq": 1 + n, "request": {"batch": 0, "index": n}}) for n in range(2)]
    leaves = [header, *rest]
    return signer, leaves, [signer.sign_leaf(seq, leaf) for seq, leaf in enumerate(leaves)]


def test_the_receipt_of_a_command_is_looked_at_with_its_header() -> None:
    signer, leaves, signatures = signed_batch()
    growth = Growth(EMPTY_EDGE, [leaf_hash(leaf) for leaf in leaves])
    for at in range(3):
        check_release(signer, growth, 0, leaves, signatures, at)
    spoilt = [leaves[0].replace(b"count", b"caunt"), *leaves[1:]]
    with pytest.raises(Fatal, match="path just made for entry 0"):
        check_release(signer, growth, 0, spoilt, signatures, 2)
    with pytest.raises(Fatal, match="signature just made over entry 1"):
        check_release(signer, growth, 0, leaves, [*signatures[:1], *signatures[:2]], 1)


SPOILT = [
    "UPDATE entry SET leaf = CAST(replace(leaf, 'lock:2', 'lock:3') AS BLOB) WHERE seq = 9",
    "UPDATE entry SET leaf = CAST(replace(leaf, 'lock:1', 'lock:3') AS BLOB) WHERE seq = 6",
    "DELETE FROM entry WHERE seq = 8",
]


@pytest.mark.parametrize("statement", SPOILT)
async def test_a_batch_of_which_a_part_was_spoilt_is_never_served(statement: str, tmp_path: Path) -> None:
    async with World(tmp_path, "sqlite") as world:
        asked = three()
        await world.ask(asked)
        for number in range(4):
            await world.acquire("B", f"lock:b{number}")
        drop_triggers(world.path, statement)
        with pytest.raises(Busy, match="answer_unreadable"):
            await world.ask(asked.again())
        with pytest.raises(Fatal):
            stored_answer(world.store.honest, world.signer, world.sequencer.confirmed, 6, 200)
        spoilt, confirmed = int(statement.rsplit(" ", 1)[1]), world.sequencer.confirmed
        for seq in {7, 9, spoilt} if spoilt == 6 else {spoilt}:
            with pytest.raises(Fatal):  # without its header a command's receipt is worth nothing
                stored_receipt(world.store.honest, world.signer, seq=seq, size=confirmed.size, note=confirmed.note)


async def test_a_session_submits_batches_as_its_agent_would(world: World) -> None:
    await world.ask(open_session("S", chain("A", "S")))
    answer = await world.ask(three("S"))
    assert [leaf.principal for leaf in world.leaves()[answer.seq :]] == [did_of("A")] * 4
    assert "endsIfIdleAtMs" in said(answer)["results"][0]["lease"]
    assert (await world.ask(three("S").again())).seq != answer.seq
    world.audit()
