"""Settings: every bad value is named at start with its bound, and the document is the table."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import (
    PARAMETERS,
    SETTINGS,
    SETTINGS_BYTES_MAX,
    SETTINGS_FILE,
    ParameterBound,
    SettingError,
    Settings,
    check_parameters,
    load_settings,
    parameters_table,
    save_settings,
    settings_from,
    settings_table,
)
from verifier.entries import PARAMETER_DEFAULTS

ROOT = Path(__file__).resolve().parents[2]
WRONG: list[tuple[str, Any]] = [
    ("listenPort", -1), ("listenPort", 65_536), ("listenPort", "8420"), ("listenPort", True), ("listenPort", 1.0),
    ("listenHost", ""), ("listenHost", "a b"), ("listenHost", 7), ("listenHost", "x" * 300), ("metricsPort", 70_000),
    ("connectionsMax", 0), ("keepaliveSeconds", 0), ("bodySeconds", 61), ("handlerSeconds", 0), ("drainSeconds", 301),
    ("drainDelaySeconds", -1), ("logLevel", "LOUD"), ("logLevel", None), ("witnessRefreshMs", 999),
    ("witnessEntryMs", 3_600_001), ("witnessTimeoutMs", 0), ("witnessRequired", 1), ("witnessRequired", "true"),
    ("selfAudit", 0), ("durability", "file"), ("durability", ""), ("followMs", 49), ("followMs", 10_001),
]  # fmt: skip
STORES = [
    "", "postgresql://gateway@db.example/ledgers", "postgres://h/d", "postgresql:///d?host=/run/postgresql",
    "postgresql://u@a:5432,b:5433/d?target_session_attrs=read-write&sslmode=verify-full",
]  # fmt: skip
WRONG_STORES: list[tuple[Any, str]] = [
    ("postgresql://u:s3cret@h/d", "has a password"), ("postgresql://u@h/d?password=s3cret", "has a password"),
    ("postgresql://u:@h/d", "has a password"), ("postgresql://u@h", "names no database"),
    ("postgresql://u@h/", "names no database"), ("postgresql://u@h/d#s3cret", "names no database"),
    ("mysql://u:s3cret@h/d", "does not begin"), ("postgresql:u@h/d", "does not begin"), ("ledger.sqlite3", "does not"),
    ("postgresql://[h/d", "can't be read"), (7, "is a text"), (None, "is a text"), ("postgresql://h/d\n", "is a text"),
    ("postgresql://h/" + "d" * 1_100, "is a text"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_named_with_its_bound_and_unit(name: str, value: Any) -> None:
    row = next(row for row in SETTINGS if row.name == name)
    with pytest.raises(SettingError) as error:
        settings_from({name: value}, "there")
    assert str(error.value).startswith(f"there: setting {name} must be {row.bound} ({row.unit}), found ")
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("url", STORES)
def test_where_a_ledger_may_be_kept(url: str) -> None:
    assert settings_from({"store": url}).store == url


@pytest.mark.parametrize(("value", "says"), WRONG_STORES)
def test_a_wrong_store_is_named_and_a_password_never_repeated(value: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says) as error:
        settings_from({"store": value}, "there")
    assert str(error.value).startswith("there: setting store must be empty, or postgresql://")
    assert "s3cret" not in str(error.value)


def test_every_setting_is_wrong_in_some_scene_above() -> None:
    assert {name for name, _ in WRONG} | {"store"} == {row.name for row in SETTINGS}


def test_defaults_are_within_their_bounds_and_those_of_the_class() -> None:
    assert all(row.is_allowed(row.default) for row in SETTINGS)
    assert settings_from({row.name: row.default for row in SETTINGS}) == settings_from({}) == Settings()


def test_an_unknown_setting_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"there is no setting 'listenport'; known are .*listenPort"):
        settings_from({"listenport": 1})


def test_what_is_saved_is_loaded_again(tmp_path: Path) -> None:
    chosen = Settings(listen_port=1, log_level="DEBUG")
    save_settings(tmp_path, chosen)
    assert load_settings(tmp_path) == chosen
    assert set(json.loads((tmp_path / SETTINGS_FILE).read_text())) == {row.name for row in SETTINGS}
    with pytest.raises(FileExistsError):
        save_settings(tmp_path, chosen)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "not a JSON object"),
        ("[]", "one JSON object"),
        ('{"listenPort":1,"listenPort":2}', "stands twice"),
        ("\udcff", "not a JSON object"),
        ("{" + " " * SETTINGS_BYTES_MAX + "}", "longer than"),
    ],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / SETTINGS_FILE).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingError, match=says) as error:
        load_settings(tmp_path)
    assert SETTINGS_FILE in str(error.value)


def test_a_directory_without_settings_is_told_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="tallystick init --data"):
        load_settings(tmp_path)


def test_the_document_holds_the_table() -> None:
    assert settings_table() in (ROOT / "docs" / "settings.md").read_text("utf-8")


def test_every_parameter_has_a_bound_that_holds_its_default_and_stands_in_the_document() -> None:
    assert [row.name for row in PARAMETERS] == list(PARAMETER_DEFAULTS)
    check_parameters(PARAMETER_DEFAULTS)
    assert parameters_table() in (ROOT / "docs" / "settings.md").read_text("utf-8")


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: row.name)
def test_one_beyond_each_bound_of_a_parameter_is_refused(row: ParameterBound) -> None:
    for number in (row.low - 1, row.high + 1):
        with pytest.raises(SettingError, match=f"--parameter {row.name} must be .*, found {number}$"):
            check_parameters({**PARAMETER_DEFAULTS, row.name: number})
