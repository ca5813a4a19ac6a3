"""API keys come from files or the environment, go to files for their owner alone, and stand in no message."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from gateway.client.errors import ProfileError
from gateway.client.secret import VARIABLE, check_new, read_token, write_token
from keys.token import new_token
from verifier.wire import Malformed

TOKEN = new_token("live")


def test_a_file_and_the_environment_are_read_and_an_argument_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_token(tmp_path / "key", TOKEN)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert read_token(f"@{tmp_path}/key") == TOKEN
    monkeypatch.setenv(VARIABLE, TOKEN)
    assert read_token(None) == TOKEN
    assert capsys.readouterr().err == ""
    assert read_token(TOKEN) == TOKEN
    told = capsys.readouterr().err
    assert "can read an API key given like that" in told
    assert TOKEN not in told


NO_TOKENS = {
    "short": TOKEN[:-1],
    "long": TOKEN + "x",
    "no file": "@/no/such/file",
    "no name": "@",
    "a DID": "did:key:z6Mk",
}


@pytest.mark.parametrize("text", NO_TOKENS.values(), ids=NO_TOKENS.keys())
def test_what_is_no_api_key_is_said_without_repeating_it(text: str) -> None:
    with pytest.raises(Malformed) as refused:
        read_token(text)
    assert TOKEN[9:30] not in str(refused.value)


def test_without_any_the_two_ways_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Malformed, match=f"--key @FILE, or set {VARIABLE}"):
        read_token(None)


def test_nothing_is_overwritten_and_no_link_followed(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "there", tmp_path / "link", tmp_path / "none" / "key"):
        with pytest.raises(ProfileError, match="Nothing was sent"):
            check_new(path)
        with pytest.raises(ProfileError):
            write_token(path, TOKEN)
    assert not (tmp_path / "elsewhere").exists()
    check_new(None)
    check_new(tmp_path / "new")
