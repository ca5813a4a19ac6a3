"""The same gateway on PostgreSQL by one URL: made, served by several nodes, read, exported, audited by a stranger.

The server is a real one (tests/pg), without a stand-by, so what is decided says that it is "local".
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.client.exits import DONE, REFUSED
from gateway.config import SETTINGS_FILE, load_settings
from gateway.errors import Fatal, StartError, Unfit, Unknown
from gateway.initialise import DOUBT_FILE
from gateway.key_commands import rotate
from gateway.node_commands import copy_node
from gateway.store import postgres_text
from gateway.store.contract import Loaded, StoredBatch, StoredHead, Upkeep
from gateway.store.postgres import PostgresStore
from gateway.stores import open_reader
from keys.files import CUSTODY
from keys.signing import SigningKey
from keys.token import digest_of
from tests.pg.conftest import database_url as database_url
from tests.pg.server import free_port, fresh_database
from tests.system.test_rotation import Place
from tests.web.test_decisions import check_holds, leaf_of
from tests.web.test_problems import check_problem
from tests.web.world import AUTHORITY, ORIGIN, Message, World, make, world
from verifier.entries import parse_leaf
from verifier.receipt import check_receipt
from verifier.wire import encode_base64

pytestmark = pytest.mark.postgres
FOLLOW_MS = 10_000  # so long that what a node knows sooner, it found out by itself


@pytest.fixture
async def nodes(tmp_path: Path, database_url: str) -> AsyncIterator[tuple[World, World]]:
    """Two gateways of one members' ledger, which tell each other nothing."""
    async with pair(tmp_path, database_url, is_public=False) as found:
        yield found


@contextlib.asynccontextmanager
async def pair(tmp_path: Path, url: str, **options: Any) -> AsyncIterator[tuple[World, World]]:
    made = make(tmp_path / "data", store=url, **options)
    copy_node(tmp_path / "data", tmp_path / "other", load_settings(tmp_path / "data"))
    shutil.copytree(tmp_path / "data" / "operator", tmp_path / "other" / "operator")  # a test's World reads it
    quiet: dict[str, Any] = {"follow_ms": FOLLOW_MS, "self_audit": False}
    async with world(tmp_path / "data", made, **quiet) as here, world(tmp_path / "other", made, **quiet) as there:
        here.gateway.house.sequencer._hear = there.gateway.house.sequencer._hear = lambda: None  # no hints
        there.agents = here.agents
        yield here, there


def verify(copy: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the verifier as a stranger would."""
    root = (folder / "public" / "root.vkey").read_text("ascii").strip()
    command = ["-m", "verifier", "ledger", str(copy), "--root", root, "--keys", str(folder / "public" / "keys.note")]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)


def init(folder: Path, url: str, *options: str) -> int:
    return main(["init", "--data", str(folder), "--origin", ORIGIN, "--store", url, *options])


# -- made --------------------------------------------------------------------------------------------------------------


def test_init_writes_entry_0_into_the_database_and_the_url_into_the_settings(tmp_path: Path, database_url: str) -> None:
    assert init(tmp_path / "data", database_url, "--durability", "local") == 0
    assert not list((tmp_path / "data").glob("ledger*"))
    settings = load_settings(tmp_path / "data")
    assert (settings.store, settings.durability) == (database_url, "local")
    with contextlib.closing(open_reader(tmp_path / "data")) as reader:
        head, entries = reader.head(), reader.entries(0, 9)
    assert head is not None and head.size == len(entries) == 1
    assert parse_leaf(entries[0].leaf).text("durability") == "local"
    assert entries[0].signature is not None, "every newcomer's anchor is signed"


def test_an_origin_has_one_ledger_in_a_database_and_nothing_is_left_of_a_second_attempt(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "data", database_url, "--durability", "local") == 0
    assert init(tmp_path / "again", database_url, "--durability", "local") == 1
    said = capsys.readouterr().err
    assert said.startswith("tallystick init: ") and ORIGIN in said and "choose another" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert main(["init", "--data", str(tmp_path / "b"), "--origin", "gateway.example/b", "--store", database_url,
                 "--durability", "local"]) == 0  # fmt: skip


def test_of_two_who_open_one_ledger_at_once_one_is_told_that_nothing_of_it_was_written(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PostgresStore.load

    def overtaken(store: PostgresStore) -> Loaded:
        found = load(store)
        monkeypatch.setattr(PostgresStore, "load", load)
        assert init(tmp_path / "first", database_url, "--durability", "local") == 0
        return found

    monkeypatch.setattr(PostgresStore, "load", overtaken)
    assert init(tmp_path / "data", database_url, "--durability", "local") == 1
    said = capsys.readouterr().err
    assert "nothing was written" in said and "choose another --origin" in said and "lost" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


@pytest.mark.parametrize("has_landed", [True, False])
@pytest.mark.parametrize("end", [Unknown("the stand-by"), KeyboardInterrupt()])
def test_an_init_that_does_not_know_whether_entry_0_landed_keeps_its_keys_and_the_next_one_finds_out(
    end: BaseException, has_landed: bool, tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    commit, folder = PostgresStore.commit, tmp_path / "data"

    def doubtful(store: PostgresStore, batch: StoredBatch, expected: StoredHead | None) -> None:
        if has_landed:
            commit(store, batch, expected)
        raise end

    monkeypatch.setattr(PostgresStore, "commit", doubtful)
    with contextlib.suppress(KeyboardInterrupt):
        assert init(folder, database_url, "--durability", "local") == 1
    root = (folder / "public" / "root.vkey").read_text("ascii").strip()
    monkeypatch.setattr(PostgresStore, "commit", commit)
    assert main(["init", "--data", str(folder), "--origin", "gateway.example/b", "--store", database_url]) == 1
    assert f"{folder} has the keys of {ORIGIN}" in capsys.readouterr().err
    assert init(folder, database_url, "--durability", "local") == 0
    assert (root in capsys.readouterr().out) == has_landed
    assert [path.name for path in tmp_path.iterdir()] == ["data"] and not (folder / DOUBT_FILE).exists()
    with contextlib.closing(open_reader(folder)) as reader:
        (entry,) = reader.entries(0, 9)
    made = (folder / "public" / "root.vkey").read_text("ascii").strip()
    assert parse_leaf(entry.leaf).text("root") == made and (made == root) == has_landed
    assert init(folder, database_url, "--durability", "local") == 1, "what is there is never touched"
    assert "is not empty" in capsys.readouterr().err


async def test_entry_0_is_signed_by_the_first_start_when_init_could_not_keep_its_signature(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = PostgresStore.keep

    def lost(store: PostgresStore, upkeep: Upkeep) -> int:
        raise Unknown("the stand-by")

    monkeypatch.setattr(PostgresStore, "keep", lost)
    made = make(tmp_path / "data", store=database_url)
    monkeypatch.setattr(PostgresStore, "keep", keep)
    monkeypatch.setattr(postgres_text, "LIVE_MS", 0)  # of who made it, which could not take its row away
    async with world(tmp_path / "data", made) as place:
        check_holds(place, await place.acquire("a", "lock:x"))
        assert (await place.get("/api/v1/acp/ledger/receipts/0")).status == 200
        place.audit()


def test_a_database_that_would_not_keep_what_is_promised_gets_no_ledger(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "data", database_url) == 1
    said = capsys.readouterr().err
    assert "synchronous_standby_names" in said and "ALTER SYSTEM" in said
    assert list(tmp_path.iterdir()) == []
    assert init(tmp_path / "data", database_url, "--durability", "local") == 0, "the name is not used up by that"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://tally:s3cret@127.0.0.1/x", "it has a password in it"),
        ("postgresql://tally@127.0.0.1:{port}/x", "can't be used now"),
        ("mysql://tally@127.0.0.1/x", "it does not begin with postgresql://"),
    ],
)
def test_init_says_what_is_wrong_with_a_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, says: str
) -> None:
    assert init(tmp_path / "data", url.format(port=free_port())) == 1
    said = capsys.readouterr().err
    assert says in said and "s3cret" not in said
    assert list(tmp_path.iterdir()) == []


def test_without_psycopg_the_pip_command_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("gateway.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert init(tmp_path / "data", "postgresql://tally@127.0.0.1/x") == 1
    assert "pip install 'tallystick[gateway,postgres]'" in capsys.readouterr().err


# -- served ------------------------------------------------------------------------------------------------------------


async def test_a_gateway_decides_exports_and_is_audited_as_on_a_file(tmp_path: Path, database_url: str) -> None:
    made = make(tmp_path / "data", store=database_url)
    command = ["ledger", "export", str(tmp_path / "export"), "--data", str(tmp_path / "data")]
    async with world(tmp_path / "data", made) as place:
        reply = await place.acquire("a", "lock:x")
        check_holds(place, reply)
        assert leaf_of(reply)["durability"] == "local"
        await place.acquire("b", "lock:x")
        assert await asyncio.to_thread(main, command) == 0, "beside the running gateway"
        assert (await asyncio.to_thread(verify, tmp_path / "export", place.folder)).returncode == 0
        place.audit()
        size = place.gateway.house.sequencer.confirmed.size
    assert main(command) == 0, "of the stopped one"
    assert (tmp_path / "export").read_bytes().startswith(f"tallystick-ledger/v1 {ORIGIN} {size}\n".encode())
    assert verify(tmp_path / "export", tmp_path / "data").returncode == 0
    async with world(tmp_path / "data", made) as place:
        started = [leaf for leaf in place.types(size) if leaf == "service.started"]
        assert started and (await place.acquire("b", "lock:y")).status == 200
        place.audit()


def test_what_only_a_file_can_have_done_to_it_names_the_right_way(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "data", database_url, "--durability", "local")
    capsys.readouterr()
    for words, right in (
        (["fsck"], "tallystick db check"),
        (["fsck", "--repair"], "tallystick-verify ledger"),
        (["backup", str(tmp_path / "copy")], "pg_basebackup"),
    ):
        assert main(["ledger", *words, "--data", str(tmp_path / "data")]) == 1
        said = capsys.readouterr().err
        assert right in said and "PostgreSQL" in said
    assert not (tmp_path / "copy").exists()
    assert main(["ledger", "stats", "--json", "--data", str(tmp_path / "data")]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["entries"], figures["batches"], figures["signatures"]) == (1, 1, 1)
    assert len(figures["keysInForce"]) == 2 and figures["databaseBytes"] > 100_000


async def test_a_start_without_a_database_says_what_to_look_at(tmp_path: Path, database_url: str) -> None:
    made = make(tmp_path / "data", store=database_url)
    gone = f"postgresql://tally@127.0.0.1:{free_port()}/x"
    with pytest.raises(StartError, match=r"can't be used now.*PGPASSFILE.*tallystick db check"):
        async with world(tmp_path / "data", made, store=gone):
            pass
    with fresh_database() as empty, pytest.raises((StartError, Fatal), match="tallystick db migrate"):
        async with world(tmp_path / "data", made, store=empty):
            pass


async def test_settings_that_break_the_promise_stop_decisions_and_nothing_else(
    tmp_path: Path, database_url: str
) -> None:
    made = make(tmp_path / "data", store=database_url)
    async with world(tmp_path / "data", made) as place:
        reply = await place.acquire("a", "lock:x")
        size = place.gateway.house.sequencer.confirmed.size
        agents = place.agents
    async with world(tmp_path / "data", made, durability="replicated", metrics_port=free_port()) as place:
        place.agents = agents
        ready = await place.get("/readyz")
        check_problem(ready, "store_unfit", 503)
        assert "synchronous_standby_names" in ready.json["detail"] and "ALTER SYSTEM" in ready.json["detail"]
        fields = (("host", AUTHORITY), ("x-forwarded-for", "192.0.2.7"))
        stranger = await place.send(Message("GET", "/readyz", fields))
        check_problem(stranger, "store_unfit", 503)
        assert "standby" not in stranger.json["detail"], "for the operator's eyes"
        check_problem(await place.acquire("a", "lock:y"), "store_unfit", 503)
        seq = leaf_of(reply)["seq"]
        again = await place.get(f"/api/v1/acp/ledger/receipts/{seq}")
        assert again.status == 200, "receipts"
        assert (await place.get("/main/checkpoint")).status == 200
        assert (await place.get("/.well-known/tallystick-keys")).status == 200
        assert (await place.get("/main/tile/entries/000.p/1")).status == 200
        assert place.gateway.house.sequencer.confirmed.size == size, "nothing was written"


# -- several nodes -----------------------------------------------------------------------------------------------------


async def test_a_node_with_another_engine_for_rules_does_not_start_beside_the_right_ones_unless_it_is_told_to(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of the engine, node by node: the first one is told, the others follow."""
    made = make(tmp_path / "data", store=database_url)
    for name in ("second", "third"):
        copy_node(tmp_path / "data", tmp_path / name, load_settings(tmp_path / "data"))
        shutil.copytree(tmp_path / "data" / "operator", tmp_path / name / "operator")
    async with world(tmp_path / "data", made, self_audit=False) as old:
        await old.agent("a")
        size = old.gateway.house.sequencer.confirmed.size
        monkeypatch.setattr("gateway.app.engine_name", lambda: "cedarpy 99")
        with pytest.raises(Unfit, match=r'it writes "local cedarpy 99".*:0 writes "local .*--accept-manner'):
            async with world(tmp_path / "second", made, listen_port=free_port()):
                pass
        assert (await old.acquire("a", "lock:x")).status == 200
        assert len(old.types()) == size + 1, "nothing else was written"
        async with world(
            tmp_path / "second", made, listen_port=free_port(), is_manner_accepted=True, self_audit=False
        ) as new:
            new.agents = old.agents
            async with asyncio.timeout(20):
                while (await old.get("/readyz")).status == 200:  # noqa: ASYNC110  # nobody asks it for a decision
                    await asyncio.sleep(0.1)
            check_problem(await old.get("/readyz"), "store_unfit", 503)
            assert (await new.acquire("a", "lock:y")).status == 200
            check_problem(await old.acquire("a", "lock:z"), "store_unfit", 503)
            async with world(tmp_path / "third", made, listen_port=free_port(), self_audit=False) as more:
                more.agents = old.agents
                assert (await more.acquire("a", "lock:z")).status == 200
                new.audit()


async def test_who_was_enrolled_at_one_node_acts_and_reads_at_the_other_at_once(nodes: tuple[World, World]) -> None:
    here, there = nodes
    agent = await here.agent("a")
    taken = await there.send(there.signed(agent, "lease.acquire", resource="lock:x"))
    assert taken.status == 200, taken.body
    other = await there.agent("b")
    assert (await here.send(here.signed_read(other, "/api/v1/acp/coordination/leases?holder=me"))).status == 200
    session = await here.session(agent)
    assert (await there.send(there.signed(session, "lease.acquire", resource="lock:z"))).status == 200
    here.audit()


async def test_what_one_node_showed_the_other_one_serves(nodes: tuple[World, World]) -> None:
    here, there = nodes
    key = await here.agent("a")
    assert (await there.send(there.signed_read(key, "/api/v1/acp/agents"))).status == 200, "it knows who reads"
    seq = leaf_of(await here.acquire("a", "lock:x"))["seq"]
    shown = here.gateway.house.sequencer.confirmed
    assert there.gateway.house.sequencer.confirmed.size < shown.size
    read = await there.send(there.signed_read(key, f"/api/v1/acp/ledger/receipts/{seq}"))
    assert read.status == 200 and check_receipt(read.body, here.keyring).exit_code == 0
    await here.acquire("a", "lock:y")
    shown = here.gateway.house.sequencer.confirmed
    anchor = f"{ORIGIN} {shown.size} {encode_base64(shown.root)}"
    assert there.gateway.house.sequencer.confirmed.size < shown.size
    read = await there.send(there.signed_read(key, "/api/v1/acp/agents", anchor=anchor))
    assert read.status == 200, "a reader of a history that this node has not seen yet"


async def test_tiles_and_proofs_beyond_what_a_node_knows_are_looked_for(tmp_path: Path, database_url: str) -> None:
    async with pair(tmp_path, database_url) as (here, there):
        await here.agent("a")
        size = here.gateway.house.sequencer.confirmed.size
        assert there.gateway.house.sequencer.confirmed.size < size
        assert (await there.get(f"/main/tile/0/000.p/{size}")).status == 200
        await here.acquire("a", "lock:x")
        size = here.gateway.house.sequencer.confirmed.size
        assert (await there.get(f"/api/v1/acp/ledger/consistency?from={size}")).status == 200
        check_problem(await there.get(f"/main/tile/0/000.p/{size + 1}"), "not_found", 404)


async def test_a_checkpoint_of_the_other_node_is_no_second_history(nodes: tuple[World, World]) -> None:
    here, there = nodes
    await here.agent("a")
    note = here.gateway.house.sequencer.confirmed.note
    assert there.gateway.house.sequencer.confirmed.size < here.gateway.house.sequencer.confirmed.size
    fields = (("host", AUTHORITY), ("content-type", "text/plain"))
    reply = await there.send(Message("POST", "/api/v1/acp/ledger/seen", fields, note))
    assert (reply.status, reply.json["isContradiction"]) == (200, False)
    assert "ledger.disputed" not in there.types()


async def test_api_keys_are_known_everywhere(nodes: tuple[World, World]) -> None:
    here, there = nodes
    token = await here.token()
    assert (await there.look(token, "/api/v1/acp/coordination/leases?holder=" + here.operator.did)).status == 200
    trial = await here.token("trial")
    assert (await there.enrol(trial, SigningKey.generate(), name="t")).status == 200
    size = there.gateway.house.news.looks
    check_problem(
        await there.look("tsk_live_" + "A" * 43, "/api/v1/acp/coordination/leases?holder=me"), "token_invalid", 401
    )
    assert there.gateway.house.news.looks <= size + 1
    check_problem(await there.look("nonsense", "/api/v1/acp/coordination/leases?holder=me"), "token_invalid", 401)
    assert there.gateway.house.news.looks <= size + 1, "what is no token at all costs no look"


async def test_an_api_key_that_one_node_revoked_decides_nothing_at_the_other(nodes: tuple[World, World]) -> None:
    """The other one still believes in it when it is asked, and finds out under the head."""
    here, there = nodes
    _, token = await here.custodial("ci")
    shutil.copytree(here.folder / CUSTODY, there.folder / CUSTODY, dirs_exist_ok=True)
    lease = "/api/v1/acp/coordination/lease"
    assert (await there.call(token, lease, resource="lock:x")).status == 200
    assert (await here.ask("op", "apikey.revoke", keyDigest=digest_of(token))).status == 200
    size = here.gateway.house.sequencer.confirmed.size
    assert there.gateway.house.sequencer.confirmed.size < size
    check_problem(await there.call(token, lease, resource="lock:y"), "token_invalid", 401)
    check_problem(await there.call(token, lease, resource="lock:y"), "token_invalid", 401)
    assert there.gateway.house.sequencer.confirmed.size == size, "nothing was written"


async def test_a_retry_at_the_other_node_gets_the_first_answer(nodes: tuple[World, World]) -> None:
    here, there = nodes
    key = await here.agent("a")
    first = await here.send(here.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    again = await there.send(there.signed(key, "lease.acquire", resource="lock:x", idempotency_key="once"))
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotency-replayed"] == "true"


# -- a node more -------------------------------------------------------------------------------------------------------


def test_node_add_copies_what_a_node_needs_and_never_the_root(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    init(data, database_url, "--durability", "local")
    (data / "witnesses.txt").write_text("mine")
    capsys.readouterr()
    command = ["node", "add", "--data", str(data), "--out", str(other), "--listen", "127.0.0.1:9420"]
    assert main([*command, "--metrics-port", "0"]) == 0
    assert "passes\nthe header Host on unchanged" in capsys.readouterr().out
    assert {path.name for path in other.iterdir()} == {
        "keys", "custody", "public", (data / "public").resolve().name, SETTINGS_FILE, "witnesses.txt",
    }  # fmt: skip
    for path in (data / "keys").iterdir():
        copy = other / "keys" / path.name
        assert (copy.read_bytes(), copy.stat().st_mode) == (path.read_bytes(), path.stat().st_mode)
    assert other.stat().st_mode & 0o077 == (other / "keys").stat().st_mode & 0o077 == 0
    assert os.readlink(other / "public") == os.readlink(data / "public")
    settings = load_settings(other)
    assert (settings.listen_port, settings.metrics_port, settings.store) == (9420, 0, database_url)
    assert main(command) == 1
    assert "exists; nothing is overwritten" in capsys.readouterr().err


def test_a_ledger_in_a_file_has_one_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "data")
    assert main(["node", "add", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "other")]) == 1
    assert "tallystick db copy" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


async def test_a_rotation_waits_until_every_node_has_the_next_key(
    nodes: tuple[World, World], capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = nodes
    place = Place(here)
    assert await place.run(rotate) == REFUSED
    assert "into keys/ of every other node" in capsys.readouterr().err
    assert (here.folder / "keys" / "log.2.key").exists() and "key.announced" not in here.types()
    assert await place.run(rotate, purpose="receipt", copied=True) == DONE
    await here.agent("a")
    refused = await there.acquire("a", "lock:x")
    check_problem(refused, "store_unfit", 503)
    assert "has no private half" in (await there.get("/readyz")).json["detail"]
    for name in ("receipt.2.key", "receipt.2.pass"):
        shutil.copy2(here.folder / "keys" / name, there.folder / "keys" / name)
    async with asyncio.timeout(20):
        while (await there.get("/readyz")).status != 200:  # noqa: ASYNC110  # it tells nobody by itself
            await asyncio.sleep(0.1)
    check_holds(here, await here.acquire("a", "lock:x"))
    assert (await there.acquire("a", "lock:y")).status == 200


# -- duties ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def readers(tmp_path: Path, database_url: str) -> Iterator[tuple[Any, Any]]:
    make(tmp_path / "data", store=database_url)
    with (
        contextlib.closing(open_reader(tmp_path / "data")) as one,
        contextlib.closing(open_reader(tmp_path / "data")) as two,
    ):
        yield one, two


def test_a_duty_is_one_nodes_until_it_is_given_back_or_runs_out(readers: tuple[Any, Any]) -> None:
    one, two = readers
    assert one.take_duty("witness", "one", 60_000) and one.take_duty("witness", "one", 60_000)
    assert not two.take_duty("witness", "two", 60_000)
    assert two.take_duty("other", "two", 60_000)
    assert one.take_duty("witness", "one", 0), "given back"
    assert two.take_duty("witness", "two", 0), "and run out at once"
    assert one.take_duty("witness", "one", 1)


def test_records_are_those_below_the_prefixes(readers: tuple[Any, Any]) -> None:
    keys = [key for key, _ in readers[0].records(("key/", "operator/"))]
    assert keys == sorted(keys) and {key.split("/")[0] for key in keys} == {"key", "operator"}
    assert list(readers[0].records(("nothing/",))) == []
