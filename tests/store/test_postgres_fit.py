"""The check of a server's settings, finding by finding; and the settings that no node can be talked out of."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from gateway.errors import Busy, Fatal, HeadMoved, Unfit
from gateway.store.contract import Upkeep
from gateway.store.postgres import PostgresStore
from gateway.store.postgres_fit import Facts, findings
from gateway.store.postgres_link import OPTIONS, PINNED, Lost, meaning, parameters_of, place_of
from tests.pg.conftest import database_url
from tests.pg.server import Server, open_yard, shared_server
from tests.store.exercise import Writer
from tests.store.postgres import ORIGIN, Postgres, pid_of

__all__ = ["database_url"]
pytestmark = pytest.mark.postgres
FIT = Facts(7, "a", 180_006, "18.6", False, "on", "on", "on", "warning", "ANY 1 (a, b)", 1, True, "tally")
UNFIT: list[tuple[str, object, str]] = [
    ("version_number", 140_012, "the server's version"),
    ("is_in_recovery", True, "a stand-by"),
    ("synchronous_commit", "off", "synchronous_commit is off, must be on"),
    ("synchronous_commit", "local", "synchronous_commit is local, must be on"),
    ("synchronous_commit", "remote_write", "synchronous_commit is remote_write, must be on"),
    ("synchronous_commit", "remote_apply", "synchronous_commit is remote_apply, must be on"),
    ("fsync", "off", "fsync is off, must be on: ALTER SYSTEM SET fsync = on"),
    ("full_page_writes", "off", "full_page_writes is off, must be on: ALTER SYSTEM SET full_page_writes = on"),
    ("client_min_messages", "error", "client_min_messages is error"),
    ("standby_names", "", "synchronous_standby_names"),
    ("standby_names", "*", "without \\*"),
    ("standby_names", "FIRST 1 (a, *)", "without \\*"),
    ("standby_count", 0, "the number of synchronous stand-bys is 0"),
]
LOCAL = {"synchronous_standby_names", "without \\*", "the number of synchronous stand-bys is 0"}


@pytest.mark.parametrize(("name", "value", "text"), UNFIT, ids=[f"{name}-{value}" for name, value, _ in UNFIT])
def test_each_setting_that_would_break_the_promise_is_found_alone(name: str, value: object, text: str) -> None:
    facts = FIT._replace(**{name: value})  # type: ignore[arg-type]  # a table of wrong values
    found = findings(facts, "replicated")
    assert len(found) == 1 and text.replace("\\", "") in str(found[0])
    assert (findings(facts, "local") == []) is (text in LOCAL)


def test_a_fit_server_has_no_findings_and_all_are_told_at_once() -> None:
    assert findings(FIT, "replicated") == []
    assert findings(FIT._replace(standby_names="", standby_count=0), "local") == []
    assert len(findings(FIT._replace(fsync="off", full_page_writes="off", standby_names=""), "replicated")) == 3


def test_a_role_that_does_not_see_stand_bys_is_told_what_to_be_given() -> None:
    found = findings(FIT._replace(standby_count=0, may_see_standbys=False), "replicated")
    assert 'GRANT pg_monitor TO "tally"' in str(found[0])


# -- what is pinned ----------------------------------------------------------------------------------------------------


def test_what_promises_hang_on_can_not_be_changed_by_the_url() -> None:
    url = "postgresql://tally@h/d?target_session_attrs=any&connect_timeout=90&options=-c%20synchronous_commit%3Doff"
    parameters = parameters_of(url)
    assert {name: parameters[name] for name in PINNED} == PINNED
    assert str(parameters["options"]).startswith("-c synchronous_commit=off ")
    assert str(parameters["options"]).endswith(" ".join(f"-c {name}={value}" for name, value in OPTIONS.items()))


def test_a_session_has_what_was_pinned_whatever_its_role_and_url_say(database_url: str) -> None:
    server = shared_server()
    name = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    for setting in ("synchronous_commit=off", "client_min_messages=error", "idle_in_transaction_session_timeout=0"):
        server.sql(f"alter role tally in database {name} set {setting}")
    engine = Postgres(f"{database_url}?options=-c%20synchronous_commit%3Dlocal")
    store = engine.open()
    shown = {name: store._rows(f"SELECT current_setting('{name}'), %s", ())[0][0] for name in OPTIONS}
    assert shown["synchronous_commit"] == "on" and shown["client_min_messages"] == "warning"
    assert shown["idle_in_transaction_session_timeout"] == "0", "for the view of `load` alone"
    store.lock(None, [], [])
    assert store._rows("SELECT current_setting('idle_in_transaction_session_timeout'), %s", ())[0][0] == "2s"
    assert store._rows("SELECT current_setting('application_name'), %s", ())[0][0] == "tallystick"
    store.close()


def test_several_hosts_are_tried_until_one_can_write(database_url: str) -> None:
    port = shared_server().port
    url = database_url.replace(f"127.0.0.1:{port}", f"127.0.0.1:1,127.0.0.1:{port}")
    store = Postgres(url).open()
    Writer().write(store, 1)
    store.close()
    assert place_of(url).startswith("127.0.0.1,127.0.0.1:1,")


# -- a server that changes ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server of these tests alone, for they spoil it."""
    yard = open_yard()
    try:
        server = Server(yard, "unfit")
        server.create()
        server.start()
        server.add_role()
        yield server
    finally:
        yard.close()


@pytest.fixture
def engine(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Postgres]:
    monkeypatch.setenv("PGPASSFILE", str(own_server.yard.path / "pgpass"))
    own_server.drop_database("fit")
    yield Postgres(own_server.add_database("fit"))
    for setting in ("fsync", "full_page_writes", "synchronous_standby_names"):
        own_server.sql(f"alter system reset {setting}")
    _reload(own_server)


def _reload(server: Server, name: str = "", value: str = "") -> None:
    if name:
        server.sql(f"alter system set {name} = '{value}'")
    server.sql("select pg_reload_conf()")
    server.yard.until(lambda: not name or server.sql(f"show {name}") == [(value,)], server.name)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_commits_is_not_written_and_heals(
    own_server: Server, engine: Postgres, setting: str
) -> None:
    _reload(own_server, setting, "off")
    store = engine.store()
    assert store.load().head is None and store.entries(0, 1) == [], "reads go on"
    barriers = engine.sql("SELECT count(*) FROM tallystick.node")
    for call in (lambda: store.lock(None, [], []), store.confirm, lambda: store.keep(Upkeep())):
        with pytest.raises(Unfit, match=f"{setting} is off, must be on: ALTER SYSTEM"):
            call()
    assert engine.sql("SELECT count(*) FROM tallystick.node") == barriers == [(0,)]
    _reload(own_server, setting, "on")
    with pytest.raises(HeadMoved, match="load again"):
        store.lock(None, [], [])
    store.load()
    Writer().write(store, 1)
    store.close()


def test_replicated_needs_a_stand_by_at_connect(own_server: Server, engine: Postgres) -> None:
    for names, text in (("", "must be the names"), ("*", "without"), ("ANY 1 (a)", "stand-bys is 0")):
        _reload(own_server, "synchronous_standby_names", names)
        store = engine.store(durability="replicated", manner="replicated none")
        store.load()
        with pytest.raises(Unfit, match=text):
            store.lock(None, [], [])
        with pytest.raises(Unfit, match=text):
            store.landed("some-batch")
        store.close()


def test_stand_bys_that_are_taken_away_are_missed_in_the_lock_and_in_the_batch(
    own_server: Server, engine: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after each COMMIT, as of the barrier of a start."""
    monkeypatch.setattr("gateway.store.postgres_fit.findings", lambda facts, durability: [])
    store, writer = engine.store(durability="replicated", manner="replicated none"), Writer()
    with pytest.raises(Busy, match="outcome_unknown"):
        store.load()
    monkeypatch.setattr("gateway.store.postgres_text.UNDEMANDED", None)
    store.load()
    with pytest.raises(Unfit, match='synchronous_standby_names is ""'):
        store.lock(None, [], [])
    with pytest.raises(Unfit, match='synchronous_standby_names is ""'):
        store.commit(writer.batch(1), None)
    _reload(own_server, "synchronous_standby_names", "*")
    with pytest.raises(Unfit, match='synchronous_standby_names is "\\*"'):
        store.lock(None, [], [])
    store.close()


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("synchronous_commit = off", "synchronous_commit is off"),
        ("synchronous_commit = remote_apply", "synchronous_commit is remote_apply"),
        ("client_min_messages = error", "client_min_messages is error"),
        ("tallystick.link = other", "a pool of transactions"),
    ],
)
def test_a_session_that_changed_is_unfit_in_the_lock_and_in_the_batch(
    database_url: str, setting: str, text: str
) -> None:
    store, writer = Postgres(database_url).open(), Writer()
    store.unlock()
    assert store._link is not None
    store._link.roll_back()
    store._link.db.execute(f"SET {setting}".encode())
    with pytest.raises(Unfit, match=text):
        store.lock(None, [], [])
    with pytest.raises(Unfit, match=text):
        store.commit(writer.batch(1), None)
    store._link.db.execute(b"RESET ALL")
    if "link" not in setting:
        store._link.db.execute(f"SET tallystick.link = '{store._name}'".encode())
        store.lock(None, [], [])
        store.commit(writer.batch(1), None)
    store.close()


def test_a_pool_that_gives_each_transaction_another_session_is_found(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario L56. The second question of a greeting is answered by another session, as such a pool does."""
    store = Postgres(database_url).store()
    monkeypatch.setattr("gateway.store.postgres_fit.look", lambda link: FIT)
    store.load()
    with pytest.raises(Unfit, match="a pool of transactions, must be a pool of sessions"):
        store.lock(None, [], [])
    store.close()


# -- what errors mean --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        ("55P03", Busy, "store_busy"), ("40P01", Busy, "store_busy"), ("57014", Busy, "store_busy"),
        ("40001", Busy, "store_busy"), ("53300", Busy, "store_busy"), ("53100", Busy, "disk_full"),
        ("58030", Busy, "disk_failing"), ("57P01", Lost, "store_unreachable"), ("57P02", Lost, "store_unreachable"),
        ("57P03", Lost, "store_unreachable"), ("08006", Lost, "store_unreachable"),
        ("25006", Lost, "store_unreachable"), ("25P03", Lost, "store_unreachable"),
        ("26000", Lost, "store_unreachable"), ("42501", Unfit, "store_unfit"),
    ],
)  # fmt: skip
def test_an_error_that_passes_is_busy(code: str, kind: type[Busy], reason: str) -> None:
    told = meaning(_error(code))
    assert isinstance(told, kind) and told.reason == reason


@pytest.mark.parametrize("code", ["42P01", "42883", "3F000"])
def test_a_missing_schema_names_the_command(code: str) -> None:
    assert isinstance(told := meaning(_error(code)), Fatal) and "tallystick db migrate" in str(told)


def test_what_is_broken_is_fatal_and_a_moved_head_is_itself() -> None:
    assert isinstance(meaning(_error("XX001")), Fatal) and isinstance(meaning(_error("23505")), Fatal)
    assert isinstance(meaning(psycopg.errors.lookup("22000")()), Fatal)


def _error(code: str) -> psycopg.Error:
    error = psycopg.errors.lookup(code)("planned")
    error.sqlstate = code
    return error


def test_a_role_without_rights_is_told_what_it_lacks(database_url: str) -> None:
    engine = Postgres(database_url)
    server = shared_server()
    server.sql("drop role if exists stranger")
    password = server.yard.environment["PGPASSWORD"]
    server.sql(f"create role stranger login in role pg_monitor password '{password}'")
    store = PostgresStore(engine.url.replace("tally@", "stranger@"), ORIGIN, durability="local", manner="local none")
    with pytest.raises(Unfit, match="permission denied for schema tallystick"):
        store.load()
    with pytest.raises(HeadMoved):
        store.lock(None, [], [])
    assert pid_of(engine.open())
