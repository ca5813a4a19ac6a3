"""`tallystick db migrate | check`: what they tell, how they end, and that a check writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.store.postgres_schema import scripts
from tests.pg.conftest import database_url
from tests.store.exercise import Writer
from tests.store.postgres import Postgres

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres
KNOWN = len(scripts())


def test_migrate_tells_what_it_did_and_does_it_once(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "migrate", "--store", database_url]) == 0
    assert f"schema version 0 → {KNOWN}" in capsys.readouterr().out
    assert main(["db", "migrate", "--store", database_url]) == 0
    assert f"is at schema version {KNOWN}; nothing to do" in capsys.readouterr().out


def test_migrate_brings_an_older_schema_up_to_date_and_leaves_a_newer_one(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Postgres(database_url)
    engine.sql("DROP VIEW tallystick.live_record CASCADE")
    engine.sql(f"UPDATE tallystick.schema_version SET number = {KNOWN - 1}")
    assert main(["db", "migrate", "--store", database_url]) == 0
    assert f"schema version {KNOWN - 1} → {KNOWN}" in capsys.readouterr().out
    assert engine.sql("SELECT count(*) FROM tallystick.leases") == [(0,)]
    engine.sql("UPDATE tallystick.schema_version SET number = 99")
    assert main(["db", "migrate", "--store", database_url]) == 1
    assert "version 99" in capsys.readouterr().err


def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Postgres(database_url)
    engine.sql(f"UPDATE tallystick.schema_version SET number = {KNOWN - 1}")  # whose views are there already
    assert main(["db", "migrate", "--store", database_url]) == 1
    assert "already exists" in capsys.readouterr().err
    assert engine.sql("SELECT number FROM tallystick.schema_version") == [(KNOWN - 1,)]


def test_check_says_what_is_missing_and_what_makes_it(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["db", "check", "--store", database_url]) == 1
    out = capsys.readouterr().out
    assert "PostgreSQL 1" in out and "as tally" in out
    assert "ALTER SYSTEM SET synchronous_standby_names" in out
    assert "tallystick db migrate" in out
    assert main(["db", "migrate", "--store", database_url]) == 0
    assert main(["db", "check", "--store", database_url]) == 1
    assert main(["db", "check", "--store", database_url, "--durability", "local"]) == 0
    out = capsys.readouterr().out
    assert "fit for durability local" in out and "tallystick init" in out


def test_check_shows_ledgers_and_their_nodes(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Postgres(database_url, "gateway.example/main")
    store = engine.store(node="one.example")
    store.load()
    Writer().write(store, 3)
    assert main(["db", "check", "--store", database_url, "--durability", "local"]) == 0
    out = capsys.readouterr().out
    assert "gateway.example/main: 3 entries, epoch 1, written as local none" in out
    assert "one.example: local none, version" in out
    store.close()


@pytest.mark.parametrize("command", ["migrate", "check"])
def test_a_password_is_refused_and_a_server_that_is_away_is_said(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", command, "--store", "postgresql://tally:secret@127.0.0.1/d"]) == 1
    err = capsys.readouterr().err
    assert "PGPASSFILE" in err and "secret" not in err
    assert main(["db", command, "--store", "postgresql://tally@127.0.0.1:1/d"]) == 1
    assert "takes connections from here" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["db", command])


def test_check_opens_the_ledger_of_a_data_directory_as_a_start_does_and_writes_nothing(
    tmp_path: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    made = ["init", "--data", str(data), "--origin", "gateway.example/main", "--store", database_url]
    assert main([*made, "--durability", "local"]) == 0
    engine = Postgres(database_url, "unused")
    before = engine.sql("SELECT node, barrier, seen_ms FROM tallystick.node")
    capsys.readouterr()
    assert main(["db", "check", "--data", str(data)]) == 0
    out = capsys.readouterr().out
    assert "opened    gateway.example/main as a start would: 1 entries" in out
    assert engine.sql("SELECT node, barrier, seen_ms FROM tallystick.node") == before
    engine.sql("ALTER TABLE tallystick.entry DISABLE TRIGGER ALL")
    engine.sql("UPDATE tallystick.entry SET leaf = leaf || ' '")
    assert main(["db", "check", "--data", str(data)]) == 1
    assert capsys.readouterr().err.startswith("tallystick db check: ")


def test_a_ledger_in_a_file_is_checked_by_another_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    assert main(["init", "--data", str(data), "--origin", "gateway.example/main"]) == 0
    assert main(["db", "check", "--data", str(data)]) == 1
    assert "tallystick ledger fsck" in capsys.readouterr().err
