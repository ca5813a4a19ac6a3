"""What a gateway with witnesses serves: better receipts, the witnessed checkpoint, proofs, its policy, its figures."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gateway.errors import Fatal, StartError
from gateway.initialise import LEDGER_FILE, Made
from gateway.ledger.cosigned import WITNESSES_FILE
from gateway.ledger.witness_http import Answer
from keys.files import load_key
from tests.ledger.witness_fake import FakeWitness, handler_of, policy_of, serving
from tests.web.test_problems import check_problem
from tests.web.test_reads import fill
from tests.web.world import World, make, world
from verifier.checkpoint import parse_checkpoint
from verifier.keyring import Keyring
from verifier.merkle import is_consistent
from verifier.note import KIND_COSIGNATURE, make_vkey
from verifier.policy import parse_policy
from verifier.receipt import check_receipt
from verifier.wire import decode_base64

RECEIPTS, CONSISTENCY = "/api/v1/acp/ledger/receipts", "/api/v1/acp/ledger/consistency"
POLICY = "/.well-known/tallystick-policy.txt"
FAST: dict[str, Any] = {"witness_timeout_ms": 2_000}


@asynccontextmanager
async def witnesses_at(count: int = 2) -> AsyncIterator[list[FakeWitness]]:
    """Witnesses behind real sockets; their clock is this machine's."""
    found = [FakeWitness(f"w{number + 1}", lambda: time.time_ns() // 1_000_000) for number in range(count)]
    async with AsyncExitStack() as stack:
        for one in found:
            one.url = await stack.enter_async_context(serving(handler_of(one)))
        yield found


@asynccontextmanager
async def witnessed(
    folder: Path, made: Made, witnesses: Sequence[FakeWitness], threshold: int = 2, **settings: Any
) -> AsyncIterator[World]:
    (folder / WITNESSES_FILE).write_bytes(policy_of(witnesses, threshold))
    async with world(folder, made, **(FAST | settings)) as place:
        yield place


async def reached(place: World, size: int) -> None:
    """Wait until the newest witnessed checkpoint has so many entries; a test that waits for ever is stopped."""
    async with asyncio.timeout(20):
        while True:
            newest = place.gateway.house.newest_witnessed()
            if newest is not None and newest.size >= size:
                return
            await asyncio.sleep(0.02)


def judged(place: World, receipt: bytes, policy: bytes) -> str:
    """The level that the real verifier gives a receipt with the policy pinned."""
    keyring = Keyring(place.keyring.root, place.keyring.document, parse_policy(policy))
    return check_receipt(receipt, keyring, level="witnessed").level


@pytest.mark.parametrize("is_public", [True, False])
async def test_a_receipt_that_is_fetched_later_is_witnessed(tmp_path: Path, is_public: bool) -> None:
    made = make(tmp_path / "data", is_public=is_public)
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        answer = (await place.acquire("a", "lock:x")).json
        seq = place.gateway.house.sequencer.confirmed.size - 1
        await reached(place, seq + 1)
        reply = await place.send(place.signed_read(place.agents["a"], f"{RECEIPTS}/{seq}"))
        assert reply.status == 200 and reply.json["payload"] == answer["receipt"]["payload"]
        assert reply.json["signatures"] == answer["receipt"]["signatures"]
        assert judged(place, reply.body, policy_of(witnesses, 2)) == "witnessed 2/2"
        place.audit()


async def test_an_entry_that_no_witness_has_seen_has_the_receipt_it_always_had(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        await reached(place, 1)
        await place.acquire("a", "lock:x")
        newest = place.gateway.house.newest_witnessed()
        assert newest is not None
        for one in witnesses:
            one.script.extend([Answer(500, b"")] * 50)
        while place.gateway.house.sequencer.confirmed.size <= newest.size + 1:
            await place.acquire("a", f"lock:{place.gateway.house.sequencer.confirmed.size}")
        seq = place.gateway.house.sequencer.confirmed.size - 1
        reply = await place.get(f"{RECEIPTS}/{seq}")
        assert check_receipt(reply.body, place.keyring).exit_code == 0
        assert "witness.example" not in reply.json["proof"]
        reply = await place.get(f"{RECEIPTS}/0")
        assert judged(place, reply.body, policy_of(witnesses, 2)) == "witnessed 2/2"


async def test_the_newest_witnessed_checkpoint_is_open_to_everybody(tmp_path: Path) -> None:
    made = make(tmp_path / "data", is_public=False)
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        await reached(place, 3)
        reply = await place.get("/main/witnessed")
        assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert reply.headers["cache-control"] == "no-store"
        names = [line.name for line in parse_checkpoint(reply.body).note.lines]
        assert names == ["gateway.example/main", "witness.example/w1", "witness.example/w2"]


async def test_without_witnesses_nothing_is_witnessed_and_all_else_is_as_before(public: World) -> None:
    check_problem(await public.get("/main/witnessed"), "not_found", 404)
    reply = await public.get(POLICY)
    assert b"quorum none" in reply.body and parse_policy(reply.body).witnesses == {}
    assert (await public.get(f"{RECEIPTS}/0")).status == 200
    assert "tallystick_witness" not in generate_latest(public.gateway.metrics.registry).decode()


async def test_the_policy_that_is_served_names_logs_and_witnesses(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        policy = parse_policy((await place.get(POLICY)).body)
        assert dict(policy.witnesses) == {one.name: one.vkey for one in witnesses}
        assert policy.logs == tuple(place.gateway.house.signer.log_keys(1))
        assert policy.quorum == "enough"


# -- proofs ------------------------------------------------------------------------------------------------------------


def opened(body: bytes) -> tuple[int, list[bytes], bytes]:
    """Size of the older tree, path, newer note; of the form that witnesses are sent."""
    head, _, note = body.partition(b"\n\n")
    first, *rows = head.decode().split("\n")
    return int(first.removeprefix("old ")), [decode_base64(row) for row in rows], note


async def test_a_proof_leads_from_every_signed_size_to_every_later_one(members: World) -> None:
    notes = {}
    while members.gateway.house.sequencer.confirmed.size < 9:
        await fill(members, members.gateway.house.sequencer.confirmed.size + 1)
        note = (await members.get("/main/checkpoint")).body
        notes[parse_checkpoint(note).size] = parse_checkpoint(note)
    for old, first in notes.items():
        for size, second in notes.items():
            reply = await members.get(f"{CONSISTENCY}?from={old}&to={size}")
            if size < old:
                check_problem(reply, "not_found", 404)
                continue
            assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; charset=utf-8")
            found, path, note = opened(reply.body)
            assert (found, parse_checkpoint(note)) == (old, second)
            assert is_consistent(old, first.root, size, second.root, path)


async def test_a_proof_leads_to_the_witnessed_checkpoint_and_from_beyond_it_to_the_newest(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with witnesses_at() as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        await reached(place, 3)
        newest = place.gateway.house.newest_witnessed()
        assert newest is not None
        for one in witnesses:
            one.script.extend([Answer(500, b"")] * 50)
        await fill(place, newest.size + 3)
        now = place.gateway.house.newest_witnessed()
        assert now is not None
        assert opened((await place.get(f"{CONSISTENCY}?from=1")).body)[2] == now.note
        assert opened((await place.get(f"{CONSISTENCY}?from=1&to={now.size}")).body)[2] == now.note
        confirmed = place.gateway.house.sequencer.confirmed
        assert opened((await place.get(f"{CONSISTENCY}?from={confirmed.size}")).body)[1:] == ([], confirmed.note)


@pytest.mark.parametrize(
    "query",
    ["", "from=", "from=01", "from=-1", "from=1&to=", "to=3", "to=3&from=1", "from=1&from=2", "from=1&to=3&x=1",
     "from=%31", "from=1;to=3", "from=9007199254740993", "from=1&to=1e1", "FROM=1"],
)  # fmt: skip
async def test_another_spelling_of_the_query_is_no_query(public: World, query: str) -> None:
    check_problem(await public.get(f"{CONSISTENCY}?{query}"), "query_malformed", 400)


@pytest.mark.parametrize("query", ["from=999", "from=1&to=999", "from=2&to=1", "from=0&to=0", "from=9007199254740991"])
async def test_no_proof_leads_beyond_the_newest_checkpoint_or_back(public: World, query: str) -> None:
    await fill(public, 6)
    check_problem(await public.get(f"{CONSISTENCY}?{query}"), "not_found", 404)


async def test_every_tree_extends_the_empty_one(public: World) -> None:
    reply = await public.get(f"{CONSISTENCY}?from=0")
    assert opened(reply.body) == (0, [], (await public.get("/main/checkpoint")).body)


# -- the start ---------------------------------------------------------------------------------------------------------


async def test_an_older_copy_of_the_ledger_does_not_start_behind_its_witnesses(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    async with witnesses_at() as witnesses:
        async with witnessed(folder, made, witnesses) as place:
            await place.agent("a")
            await reached(place, 4)
        shutil.copy(folder / LEDGER_FILE, tmp_path / "copy")
        async with witnessed(folder, made, witnesses) as place:
            await place.agent("b")
            size = place.gateway.house.sequencer.confirmed.size
            await reached(place, size)
        shutil.copy(tmp_path / "copy", folder / LEDGER_FILE)
        before = (folder / LEDGER_FILE).read_bytes()
        with pytest.raises(Fatal, match="an older copy was put in place"):
            async with witnessed(folder, made, witnesses):
                raise AssertionError("it started")
        assert (folder / LEDGER_FILE).read_bytes() == before, "nothing was written before it was found out"


async def test_where_witnesses_are_required_none_is_no_start(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    dead = [FakeWitness("w1", lambda: 0)]
    dead[0].url = "http://127.0.0.1:9"
    with pytest.raises(Fatal, match="too few"):
        async with witnessed(tmp_path / "data", made, dead, 1, witness_required=True):
            raise AssertionError("it started")
    async with witnessed(tmp_path / "data", made, dead, 1) as place:
        assert (await place.acquire("a", "lock:x")).status == 200


async def test_a_start_and_every_decision_go_on_while_no_witness_answers(tmp_path: Path) -> None:
    made = make(tmp_path / "data")

    async def asleep(request: object) -> object:
        await asyncio.sleep(30)
        raise AssertionError("nobody waits so long")

    async with serving(asleep) as url:
        dead = [FakeWitness("w1", lambda: 0)]
        dead[0].url = url
        async with witnessed(tmp_path / "data", made, dead, 1, witness_timeout_ms=300) as place:
            for number in range(20):
                assert (await place.acquire("a", f"lock:{number}")).status == 200
            assert (await place.get("/readyz")).status == 200


@pytest.mark.parametrize(
    ("key", "says"),
    [("keys/log.key", "two purposes"), ("keys/receipt.key", "two purposes"), ("root/root.key", "two purposes"),
     ("operator/agent.key", "needs its own"), ("keys/enroller.key", "needs its own")],
)  # fmt: skip
async def test_no_key_of_the_ledger_is_its_own_witness(tmp_path: Path, key: str, says: str) -> None:
    made = make(tmp_path / "data")
    purpose = {"agent": "operator"}.get(Path(key).stem, Path(key).stem)
    vkey = make_vkey("w.example/w", load_key(tmp_path / "data" / key, purpose=purpose).public_key, KIND_COSIGNATURE)
    (tmp_path / "data" / WITNESSES_FILE).write_text(f"witness w {vkey.vkey} http://127.0.0.1:9\nquorum w\n", "utf-8")
    with pytest.raises(StartError, match=says):
        async with world(tmp_path / "data", made):
            raise AssertionError("it started")


@pytest.mark.parametrize("text", ["", "nonsense\n", "quorum none\n"])
async def test_a_file_that_names_no_witness_is_no_start(tmp_path: Path, text: str) -> None:
    made = make(tmp_path / "data")
    (tmp_path / "data" / WITNESSES_FILE).write_text(text, "utf-8")
    with pytest.raises(StartError, match=r"witnesses\.txt can't be used"):
        async with world(tmp_path / "data", made):
            raise AssertionError("it started")


# -- figures -----------------------------------------------------------------------------------------------------------


async def test_the_metrics_say_how_far_and_how_well(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with witnesses_at(3) as witnesses, witnessed(tmp_path / "data", made, witnesses) as place:
        witnesses[2].script.extend([Answer(403, b"")] * 50)
        await place.acquire("a", "lock:x")
        await reached(place, place.gateway.house.sequencer.confirmed.size)
        text = generate_latest(place.gateway.metrics.registry).decode()
        rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        size = place.gateway.house.newest_witnessed().size  # type: ignore[union-attr]  # reached
        assert float(rows["tallystick_witnessed_size"]) == size
        assert float(rows['tallystick_witness_size{witness="w1"}']) == size
        assert float(rows['tallystick_witness_alarm{witness="w3"}']) == 1
        assert float(rows['tallystick_witness_failures_total{witness="w3"}']) == 1
        assert float(rows['tallystick_witness_success_seconds{witness="w1"}']) > 1_600_000_000
        assert float(rows['tallystick_witness_success_seconds{witness="w3"}']) == 0
        assert (rows["tallystick_witness_overdue"], rows["tallystick_witness_contradictions_total"]) == ("0.0", "0.0")
