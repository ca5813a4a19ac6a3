"""Which objects a call touches, as an admission names them: no gateway, no git."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.guard.hook_paths import OBJECTS_MAX, NotListed, objects_of
from gateway.guard.hook_state import State
from gateway.guard.paths import PathRefused
from gateway.guard.shell import read


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path.resolve() / "top"
    (top / ".git").mkdir(parents=True)
    (top / "src/in").mkdir(parents=True)
    return top


def touched(top: Path, line: str) -> list[tuple[str, str]]:
    reading = read(line, str(top))
    assert not reading.unseen
    state = State(places={str(top): ("repo", "app", False, "delete")})
    return sorted((need.name.removeprefix("repo:app/"), need.mode) for need in objects_of(reading.writes, state))


def test_hostile_names_below_a_folder_have_names_of_their_own(top: Path) -> None:
    """Scenario 24: what a name can't hold is escaped, byte by byte."""
    for name in (b"a\nb", b"\xff", b"-rf", b"$(x)", b"**", b"%", "é".encode()):
        (top / os.fsdecode(b"src/in/" + name)).touch()
    os.symlink("/etc", top / "src/out")
    names = ["src/in/$(x)", "src/in/a%0Ab", "src/in/%25", "src/in/%2A%2A", "src/in/%C3%A9"]
    names += ["src/in/%FF", "src/in/-rf", "src/out", "src"]
    assert touched(top, "rm -rf src") == sorted((name, "delete") for name in names)


def test_what_moves_or_is_copied_arrives_under_its_own_names(top: Path) -> None:
    (top / "src/in/x").touch()
    assert touched(top, "cp -r src lib") == [("lib", "write"), ("lib/in/x", "write")]
    (top / "lib").mkdir()
    arrived = [("lib/src", "write"), ("lib/src/in/x", "write")]
    assert touched(top, "mv src lib") == sorted([("src", "delete"), ("src/in/x", "delete"), *arrived])


def test_the_top_of_a_work_tree_is_no_object_and_its_git_folder_is_none(top: Path) -> None:
    (top / "a").touch()
    (top / ".git/config").touch()
    assert touched(top, "chmod -R a-w .") == [("a", "write")]


def test_a_repository_inside_is_not_admitted_by_the_names_of_the_outer(top: Path) -> None:
    (top / "src/in/.git").mkdir()
    (top / "src/in/.git/config").touch()
    with pytest.raises(PathRefused):
        touched(top, "rm -rf src")


def test_a_large_folder_is_not_looked_through(top: Path) -> None:
    for number in range(OBJECTS_MAX + 1):
        (top / f"src/{number}").touch()
    with pytest.raises(NotListed, match="more than 256"):
        touched(top, "rm -rf src")
