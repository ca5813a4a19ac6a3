"""A ledger moves from its file into a database: the same bytes, before the same auditor, and its leases go on."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway import db_copy
from gateway.__main__ import main
from gateway.config import load_settings
from gateway.stores import open_reader
from tests.pg.conftest import database_url as database_url
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
