"""A ledger moves from its file into a database: the same bytes, before the same auditor, and its leases go on."""

import errno
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway import db_commands, db_copy
from gateway.__main__ import main
from gateway.config import Settings, load_settings
from gateway.errors import Fatal, StoreOwned
from gateway.store.sqlite import SqliteStore
from gateway.stores import open_reader, open_store
from tests.chaos.size import IS_NIGHTLY
from tests.pg.conftest import database_url as database_url
from tests.pg.proxy import Fault, Proxy
from tests.pg.server import fresh_database, shared_server
from tests.web.test_decisions import leaf_of
from tests.web.test_stores import verify
from tests.web.world import World, make, world

pytestmark = pytest.mark.postgres


def export(folder: Path, name: str) -> Path:
    out = folder.with_name(name)
    assert main(["ledger", "export", str(out), "--data", str(folder)]) == 0
    assert verify(out, folder).returncode == 0
    return out


def copy(folder: Path, url: str) -> int:
    return main(["db", "copy", "--data", str(folder), "--store", url, "--durability", "local"])


def everything(folder: Path) -> tuple[Any, ...]:
    """What a reader of a ledger finds: entries with signatures, checkpoints, records."""
    with closing(open_reader(folder)) as reader:
        head = reader.head()
        assert head is not None
        batches, seq = [], 0
        while seq < head.size:
            batch = reader.batch_of(seq)
            assert batch is not None
            batches.append(batch)
            seq = batch.size
        kinds = ("key/", "agent/", "operator/", "lease/", "nonce/", "idempotency/", "ended/", "principal/", "wait/")
        return head, reader.entries(0, head.size), batches, sorted(reader.records(kinds)), reader.last_note(head.size)


async def lived_in(folder: Path) -> tuple[World, Any]:
    """Return the world of a ledger in a file that was used and stopped, and a lease that is held there."""
    made = make(folder)
    async with world(folder, made, self_audit=False) as place:
        for number in range(12):
            await place.acquire("a", f"lock:{number % 5}")
        await place.acquire("b", "lock:0")
        held = await place.acquire("b", "lock:held", ttlMs=3_600_000)
        assert held.status == 200
    return place, held


async def test_a_moved_ledger_is_the_same_and_goes_on(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    place, held = await lived_in(folder)
    before, bytes_before = everything(folder), export(folder, "before").read_bytes()
    capsys.readouterr()
    assert copy(folder, database_url) == 0
    said = capsys.readouterr().out
    assert f"{before[0].size} entries" in said and "as a start would" in said
    assert load_settings(folder).store == database_url
    assert {path.name for path in folder.glob("ledger.sqlite3*")} >= {db_copy.MOVED_FILE}
    assert not (folder / "ledger.sqlite3").exists()
    assert everything(folder) == before
    assert export(folder, "after").read_bytes() == bytes_before
    async with world(folder, place.made, self_audit=False) as there:
        there.agents = place.agents
        lease = held.json["lease"]
        refused = await there.acquire("a", "lock:held")
        assert (refused.status, refused.json["error"]) == (409, "lease_held")
        given = await there.ask("b", "lease.release", resource="lock:held", leaseId=lease["leaseId"])
        assert given.status == 200, given.body
        taken = await there.acquire("a", "lock:held")
        assert leaf_of(taken)["durability"] == "local"
        assert taken.json["lease"]["fencingToken"] > lease["fencingToken"]
        there.audit()
    assert (
        export(folder, "later").read_bytes().split(b"\n")[1:-1][: before[0].size]
        == (bytes_before.split(b"\n")[1:-1][: before[0].size])
    )
    assert copy(folder, database_url) == 1
    assert "in a database already" in capsys.readouterr().err


async def test_a_copy_that_was_stopped_is_made_again_or_gone_on_with(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    await lived_in(folder)
    before = everything(folder)

    class Killed(BaseException):
        pass

    def killed(*_: object) -> int:
        raise Killed

    for place in ("gateway.db_copy._copy_records", "gateway.db_commands.switch"):
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(place, killed)
            copy(folder, database_url)
        assert load_settings(folder).store == "" and everything(folder) == before
    assert copy(folder, database_url) == 0
    assert everything(folder) == before


# -- killed ------------------------------------------------------------------------------------------------------------


def run_victim(folder: Path, url: str, number: int) -> tuple[int, list[str]]:
    """Copy in a process that is killed at a point; how it ended, and the points that it came to."""
    points = folder.with_name(f"{folder.name}.points")
    copying = ["db", "copy", "--data", str(folder), "--store", url, "--durability", "local"]
    command = [sys.executable, "-m", "tests.web.copy_victim", str(points), str(number), *copying]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode, points.read_text().splitlines()


def chosen(points: Sequence[str]) -> list[int]:
    """Return the numbers of all points; in a short run of the last of each kind that changes something."""
    if IS_NIGHTLY:
        return list(range(len(points)))
    last = {name: number for number, name in enumerate(points)}
    return [last[name] for name in ("before commit", "after commit", "before file", "before name")]


def is_in_file(folder: Path) -> bool:
    """Say whether a gateway that is started now would serve the file."""
    return load_settings(folder).store == "" and (folder / "ledger.sqlite3").exists()


async def test_a_copy_that_was_killed_at_any_point_is_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the two a gateway may have gone on with the file, as long as that is what it would serve."""
    place, _ = await lived_in(tmp_path / "data")
    size = everything(tmp_path / "data")[0].size
    shutil.copytree(tmp_path / "data", tmp_path / "whole")
    with fresh_database() as url:
        status, points = run_victim(tmp_path / "whole", url, 1_000_000)
    assert status == 0 and points[-1] == "after name" and "after file" in points and points.count("after commit") == 3
    for at, number in enumerate(chosen(points)):
        folder = tmp_path / f"killed{number}"
        shutil.copytree(tmp_path / "data", folder)
        with fresh_database() as url:
            assert run_victim(folder, url, number) == (-9, points[: number + 1])
            name = shared_server().sql("select to_regclass('tallystick.head')::text", database=url.rpartition("/")[2])
            has_gone_on = is_in_file(folder) and (at % 2 == 0 or points[number] == "after commit")
            if has_gone_on:
                await go_on(folder, place)
            check_ends(folder, url, size if name[0][0] else None)
            if has_gone_on and points[number] == "after commit":
                export(folder, f"{folder.name}.copied")  # of two runs, and another auditor takes it
    assert "was stopped" not in capsys.readouterr().err


async def go_on(folder: Path, place: World) -> None:
    """Serve the file: it is whole, and something is decided."""
    async with world(folder, place.made, self_audit=False) as there:
        there.agents = dict(place.agents)
        assert (await there.acquire("b", "lock:later")).status == 200


def check_ends(folder: Path, url: str, size: int | None) -> None:
    """What a copy that was killed left is all or nothing; the next run ends, and nobody serves the file after it.

    `size` is that of the ledger when the killed one began; None where there is no schema yet.
    """
    is_done = load_settings(folder).store != ""
    if not is_done and not (folder / "ledger.sqlite3").exists():
        with pytest.raises(Fatal, match="was stopped before the setting `store` led there; restart that command"):
            open_store(folder, Settings())
    before = everything(folder) if is_done or is_in_file(folder) else None
    if size is not None:
        rows = shared_server().sql("select size from tallystick.head", database=url.rpartition("/")[2])
        assert [row[0] for row in rows] in ([], [0], [size]), "all that there was, or nothing"
    assert copy(folder, url) == (1 if is_done else 0)
    assert load_settings(folder).store == url
    assert before is None or everything(folder) == before
    if IS_NIGHTLY:
        export(folder, f"{folder.name}.export")
    assert (folder / db_copy.MOVED_FILE).exists() and not (folder / "ledger.sqlite3").exists()
    assert all(path.stat().st_size == 0 for path in folder.glob("*-wal")), "it is whole without"
    with pytest.raises(Fatal, match="there is no ledger at"):
        SqliteStore(folder / "ledger.sqlite3")


# -- in the way --------------------------------------------------------------------------------------------------------


async def test_the_file_is_taken_until_the_setting_leads_to_the_database(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor starts a gateway while the copy is opened: it would go on with the file, beside the database."""
    folder = tmp_path / "data"
    await lived_in(folder)
    switch = db_copy.switch
    told: list[str] = []

    def meddling(data: Path, settings: Settings) -> None:
        with pytest.raises(StoreOwned, match="in use by another gateway") as refused:
            open_store(folder, Settings())
        told.append(str(refused.value))
        switch(data, settings)

    monkeypatch.setattr(db_commands, "switch", meddling)
    assert copy(folder, database_url) == 0 and told


async def test_a_file_that_somebody_reads_is_not_put_aside(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is in the log beside it would be missing in the back-up."""
    folder = tmp_path / "data"
    place, _ = await lived_in(folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite3", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT size FROM head").fetchall()
        await go_on(folder, place)
        before = everything(folder)
        assert copy(folder, database_url) == 1
        assert "is being read by another program; end that, and run this again" in capsys.readouterr().err
        assert is_in_file(folder)
    assert copy(folder, database_url) == 0 and everything(folder) == before


async def test_a_database_that_is_full_or_goes_away_in_the_middle_has_nothing_of_it(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = tmp_path / "data", database_url.rpartition("/")[2]
    await lived_in(folder)
    before = everything(folder)
    assert main(["db", "migrate", "--store", database_url]) == 0
    server = shared_server()
    server.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
        database=name,
    )
    server.sql(
        "CREATE TRIGGER full_disk BEFORE INSERT ON tallystick.record EXECUTE FUNCTION full_disk()", database=name
    )
    assert copy(folder, database_url) == 1
    assert "can't be used now (disk_full)" in capsys.readouterr().err
    server.sql("DROP TRIGGER full_disk ON tallystick.record", database=name)
    copy_records = db_copy._copy_records

    def cut(*passed: Any) -> int:
        server.sql("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", name)
        return copy_records(*passed)

    with monkeypatch.context() as patch:
        patch.setattr(db_copy, "_copy_records", cut)
        assert copy(folder, database_url) == 1
    assert "can't be used now" in capsys.readouterr().err
    assert server.sql("select size, batch_id from tallystick.head", database=name) == [(0, "")]
    assert server.sql("select count(*) from tallystick.entry", database=name) == [(0,)]
    assert is_in_file(folder) and everything(folder) == before
    assert copy(folder, database_url) == 0 and everything(folder) == before


@pytest.mark.parametrize(
    "about", [b"CREATE TABLE tallystick.ledger", b"INTO tallystick.ledger", b"tallystick.head SET"]
)
async def test_whoever_never_heard_that_it_was_kept_runs_it_again(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str], about: bytes
) -> None:
    """The schema, the room for the ledger, the ledger."""
    folder = tmp_path / "data"
    await lived_in(folder)
    before = everything(folder)
    with Proxy(shared_server().port) as wire:
        struck = wire.strike(Fault.LOSE_ACK, about)
        assert copy(folder, database_url.replace(str(shared_server().port), str(wire.port))) == 1
        assert struck.is_set()
    said = capsys.readouterr().err
    assert "could not be found out" in said and "run this again" in said and is_in_file(folder)
    assert copy(folder, database_url) == 0 and everything(folder) == before


async def test_a_full_disk_at_the_last_step_leaves_nothing_to_serve_until_it_is_done(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    await lived_in(folder)
    before = everything(folder)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(db_copy, "replace_file", full)
        assert copy(folder, database_url) == 1
    assert load_settings(folder).store == "" and not is_in_file(folder)
    assert copy(folder, database_url) == 0 and everything(folder) == before


async def test_a_file_that_was_put_aside_is_never_copied_anew(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its ledger went on in a database, and a second one would be a second history."""
    folder = tmp_path / "data"
    place, _ = await lived_in(folder)
    assert copy(folder, database_url) == 0
    settings = (folder / "tallystick.json").read_text()
    async with world(folder, place.made, self_audit=False):
        pass
    (folder / "tallystick.json").write_text(settings.replace(database_url, ""))
    with fresh_database() as other:
        for url in (database_url, other):
            assert copy(folder, url) == 1
            assert "is not this one as it stands here, in ledger.sqlite3.moved" in capsys.readouterr().err
            assert load_settings(folder).store == ""


async def test_another_ledger_of_the_same_name_is_not_touched(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    await lived_in(folder)
    await lived_in(other)
    assert copy(other, database_url) == 0
    assert copy(folder, database_url) == 1, "of the same name"
    assert "is not this one as it stands here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE entry SET leaf = CAST(replace(CAST(leaf AS TEXT), 'lock:1', 'lock:7') AS BLOB)",
        "UPDATE batch SET hashes = zeroblob(length(hashes)) WHERE first_seq = 4",
        "UPDATE batch SET root = zeroblob(32) WHERE first_seq = 4",
        "DELETE FROM entry WHERE seq = 4",
        "UPDATE journal SET bodies = CAST(replace(CAST(bodies AS TEXT), 'lock:h', 'lock:j') AS BLOB)",
    ],
)
async def test_what_is_damaged_is_not_served_from_the_database(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    folder = tmp_path / "data"
    await lived_in(folder)
    with closing(sqlite3.connect(folder / "ledger.sqlite3")) as file:
        guards = file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            file.execute(f"DROP TRIGGER {name}")
        assert file.execute(change).rowcount > 0
        for _, text in guards:
            file.execute(text)
        file.commit()
    assert copy(folder, database_url) == 1
    assert "nothing was copied; run `tallystick ledger fsck" in capsys.readouterr().err
    assert load_settings(folder).store == "" and (folder / "ledger.sqlite3").exists()


async def test_a_gateway_that_runs_keeps_its_file(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made, self_audit=False):
        assert copy(tmp_path / "data", database_url) == 1
    assert "in use by another gateway" in capsys.readouterr().err
