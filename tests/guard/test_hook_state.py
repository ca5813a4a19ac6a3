"""What a session's file keeps: trust by the steady clock, claims between sessions, and calls side by side."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.client.clock import SystemClock
from gateway.client.profile import HOME_VARIABLE, default_home
from gateway.guard import hook_state
from gateway.guard.hook_paths import HOME_FILE, home_of
from gateway.guard.hook_state import Kept, Need, Shelf, State, around, steady_ms
from gateway.guard.settings import HOME_FILE as NOTED_BY_GIT
from verifier.entries import MODES

NOW_MS = 1_000_000


def kept(*names: str, mode: str = "write", trust_ends_ms: int = NOW_MS + 1, ends_ms: int = NOW_MS + 2) -> Kept:
    return Kept("L1", names, mode, 7, NOW_MS, trust_ends_ms, ends_ms, 0)


def test_what_is_written_twice_is_the_same() -> None:
    """The hook says a few things anew, so that it need not load the client or the table of entries."""
    assert hook_state.MODES == MODES
    assert HOME_FILE == NOTED_BY_GIT
    assert abs(steady_ms() - SystemClock().steady_ms()) < 1_000


def test_the_profile_is_the_one_that_the_client_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    assert home_of(str(tmp_path)) == default_home()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / HOME_FILE).write_text(f"{tmp_path}/noted\n")
    assert home_of(str(tmp_path)) == tmp_path / "noted"
    worktree = tmp_path / "other"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {tmp_path}/.git\n")
    assert home_of(f"{worktree}") == tmp_path / "noted"
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "named"))
    assert home_of(str(tmp_path)) == default_home() == tmp_path / "named"


@pytest.mark.parametrize(
    ("names", "mode", "need", "is_covered"),
    [
        (("repo:a/b",), "write", Need("repo:a/b", "write"), True),
        (("repo:a/**",), "write", Need("repo:a/b/c", "write"), True),
        (("repo:a/**",), "write", Need("repo:a", "write"), True),
        (("repo:**",), "write", Need("repo:a/b", "write"), True),
        (("repo:a/b",), "write", Need("repo:a/b/**", "write"), False),
        (("repo:a/b/**",), "write", Need("repo:a/**", "write"), False),
        (("repo:a/bc",), "write", Need("repo:a/b", "write"), False),
        (("repo:a/b/**",), "write", Need("repo:a/bc", "write"), False),
        (("other:**",), "write", Need("repo:a", "write"), False),
        (("repo:a/b",), "append", Need("repo:a/b", "write"), False),
        (("repo:a/b",), "delete", Need("repo:a/b", "write"), True),
    ],
)
def test_a_lease_covers_its_names_and_what_is_below_them(
    names: tuple[str, ...], mode: str, need: Need, is_covered: bool
) -> None:
    assert kept(*names, mode=mode).covers(need) is is_covered


def test_a_name_lies_within_itself_and_every_tree_above() -> None:
    assert list(around("repo:a/b")) == ["repo:a/b", "repo:a/b/**", "repo:a/**", "repo:**"]


def test_trust_ends_at_its_instant_and_the_claim_later() -> None:
    """A lease may live on at the ledger when it may no longer be relied on here."""
    state = State([kept("repo:a")])
    need = Need("repo:a", "write")
    assert state.uncovered([need], NOW_MS) == []
    assert state.uncovered([need], NOW_MS + 1) == [need]
    assert list(state.live_names(NOW_MS + 1)) == ["repo:a"]
    assert list(state.live_names(NOW_MS + 2)) == []


def test_a_file_is_read_back_as_it_was(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "s")
    state = State([kept("repo:a", "repo:b/**")], ("repo:c",), 5, {"/top": ("repo", "app", False, "write")})
    with shelf.turn():
        shelf.save(state)
    assert shelf.load() == state
    assert os.stat(shelf.folder).st_mode & 0o777 == 0o700
    assert os.stat(shelf.path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "change", [{"boot": "another"}, {"version": 2}, {"leases": [[1]]}, {"claims": 3}, {"places": []}]
)
def test_a_file_of_another_kind_is_no_file(tmp_path: Path, change: dict[str, object]) -> None:
    shelf = Shelf(tmp_path, "s")
    with shelf.turn():
        shelf.save(State([kept("repo:a")]))
    shelf.path.write_text(json.dumps({**json.loads(shelf.path.read_text()), **change}))
    assert shelf.load() == State()


def test_without_a_boot_id_nothing_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_state, "_BOOT_ID", tmp_path / "none")
    shelf = Shelf(tmp_path, "s")
    with shelf.turn():
        shelf.save(State([kept("repo:a")]))
    assert shelf.load() == State()


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "s")
    shelf.folder.mkdir()
    victim = tmp_path / "victim"
    victim.write_text("x")
    (shelf.folder / f"{shelf.name}.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"), shelf.turn():
        raise AssertionError("entered")
    assert victim.read_text() == "x"


@pytest.mark.parametrize("name", ["repo:a", "repo:A", "repo:a/b", "repo:**"])
def test_sessions_claim_in_turn(tmp_path: Path, name: str) -> None:
    """Overlapping names, in any case, are one session's; what it claimed ends with it or by itself."""
    first, second = Shelf(tmp_path, "1"), Shelf(tmp_path, "2")
    later_ms = steady_ms() + 60_000
    with first.turn():
        assert first.claim(State(), ["repo:a/**"], later_ms) is None
    with second.turn():
        assert second.claim(State(), [name], later_ms) == "repo:a/**"
        assert second.claim(State(), ["repo:b"], later_ms) is None
    with first.turn():
        assert first.claim(State(), ["repo:b"], later_ms) == "repo:b"
        first.forget()
    with second.turn():
        second.forget()
        assert second.claim(State(), [name], steady_ms()) is None
    assert first.claim(State(), [name], later_ms) is None
    assert not second.path.exists(), "what was over is swept"


def _race(home: Path, session: str, started: multiprocessing.synchronize.Barrier, won: list[str]) -> None:
    shelf = Shelf(home, session)
    started.wait()
    for number in range(50):
        with shelf.turn():
            state = shelf.load()
            if shelf.claim(state, [f"repo:{number}"], steady_ms() + 600_000) is None:
                state.leases.append(kept(f"repo:{number}", ends_ms=steady_ms() + 600_000))
                state.claims = ()
                shelf.save(state)
                won.append(f"{session}:{number}")


def test_calls_and_sessions_side_by_side_lose_nothing_and_share_nothing(tmp_path: Path) -> None:
    """Four processes of two sessions: each name goes to one session, and no call's lease is overwritten."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        won = manager.list()
        started = context.Barrier(4)
        work = [context.Process(target=_race, args=(tmp_path, f"{n % 2}", started, won)) for n in range(4)]
        for process in work:
            process.start()
        for process in work:
            process.join(120)
            assert process.exitcode == 0
        owners = {number: {row.split(":")[0] for row in won if row.endswith(f":{number}")} for number in range(50)}
        assert all(len(found) == 1 for found in owners.values()), owners
        for session in ("0", "1"):
            held = sorted(name for lease in Shelf(tmp_path, session).load().leases for name in lease.names)
            assert held == sorted(f"repo:{row.split(':')[1]}" for row in won if row.startswith(f"{session}:"))


def test_what_is_over_stays_until_it_is_missed_and_wakes_nobody(tmp_path: Path) -> None:
    """The session that held it is told; it bars no other one, and no other one sweeps it away."""
    live, over = kept("repo:a", ends_ms=NOW_MS + 2), kept("repo:b", trust_ends_ms=0, ends_ms=NOW_MS)
    missing = [Need("repo:b", "write")]
    assert (
        not over.is_due(NOW_MS, ())
        and over.is_due(NOW_MS, missing)
        and not over.is_due(NOW_MS, [Need("repo:c", "write")])
    )
    assert live.is_due(NOW_MS, ()) and not live.is_due(NOW_MS - 1, missing)
    assert State([over]).is_quiet(NOW_MS) and not State([over, live]).is_quiet(NOW_MS)
    assert list(State([over]).live_names(NOW_MS)) == []
    shelf, other = Shelf(tmp_path, "one"), Shelf(tmp_path, "two")
    with shelf.turn():
        shelf.save(State([over]))
    with other.turn():
        assert other.claim(State(), ["repo:b"], steady_ms() + 1_000) is None
    assert shelf.load().leases == [over]
    os.utime(shelf.path, (0, 0))
    with other.turn():
        assert other.claim(State(), ["repo:b"], steady_ms() + 1_000) is None
    assert not shelf.path.exists(), "after a week nobody comes back"


def test_what_lasts_is_told_by_what_may_be_relied_on() -> None:
    state = State([kept("repo:a", trust_ends_ms=NOW_MS + 10), kept("repo:b", trust_ends_ms=NOW_MS)])
    assert state.lasts(NOW_MS, NOW_MS + 10) and not state.lasts(NOW_MS, NOW_MS + 11)


def test_what_speaks_to_the_gateway_loads_no_more_than_it_needs() -> None:
    """A process is started for each call: aiohttp alone would cost as much as all that it does."""
    heavy = ("aiohttp", "sqlite3", "gateway.client.transport", "gateway.client.session")
    code = f"import sys, gateway.guard.hook_keep; print([name for name in {heavy} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
