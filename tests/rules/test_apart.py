"""A set that is looked through in a process of its own: the same words, a bound on its time, nothing left behind."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from gateway.rules import apart
from gateway.rules import engine as module
from gateway.rules.apart import Apart, Unchecked
from gateway.rules.check import check
from gateway.rules.engine import Engine
from tests.rules.questions import ALL, policy, question
from tests.rules.test_engine import rule_set

HANGING = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
BROKEN = policy("forbid", "context.trvst < 3", name="mine") + policy("permit", name="mine")
CAPITALS = ALL + policy("forbid", 'resource == Resource::"doc:Plan"', name="mine")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the other process never end; return the pipe into which it says its number."""
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", HANGING, str(pipe)))
    return pipe


async def begun(told: Path) -> int:
    return int(await asyncio.to_thread(told.read_text))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(("text", "folding"), [(ALL, ()), (BROKEN, ()), ("", ()), (CAPITALS, ("a", "doc"))])
async def test_what_is_wrong_is_told_as_by_the_check_itself(text: str, folding: tuple[str, ...]) -> None:
    due = list(map(str, check(text, folding.__contains__).faults))
    assert await Apart(Engine("cedar/x")).review(text, folding) == due
    assert bool(due) == (text != ALL)


async def test_a_valid_set_is_kept_and_nothing_of_it_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("cedar/x")
    assert await Apart(engine).review(ALL, ()) == []
    in_force = rule_set(ALL)
    monkeypatch.setattr(module, "check", None)
    monkeypatch.setattr(module, "Rules", None)
    assert engine.count(ALL) == 1
    assert engine(in_force, question()).decision == "allow"


async def test_a_set_with_faults_is_not_kept() -> None:
    engine = Engine("cedar/x")
    assert await Apart(engine).review(BROKEN, ())
    with pytest.raises(ValueError, match="line 1"):
        engine.count(BROKEN)


async def test_what_takes_too_long_is_ended_and_nothing_is_known(told: Path) -> None:
    reviewer = Apart(Engine("cedar/x"), seconds=2.0)
    found, pid = await asyncio.gather(reviewer.review(ALL, ()), begun(told), return_exceptions=True)
    assert isinstance(found, Unchecked) and "longer than 2 s" in str(found)
    assert isinstance(pid, int) and is_gone(pid)


async def test_who_goes_away_leaves_no_process(told: Path) -> None:
    asking = asyncio.create_task(Apart(Engine("cedar/x")).review(ALL, ()))
    pid = await begun(told)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert is_gone(pid)


async def test_one_is_looked_through_at_a_time_and_waiting_counts(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a hundred sets has one process, and the hundredth is told that there was no time for it."""
    reviewer = Apart(Engine("cedar/x"))
    first = asyncio.create_task(reviewer.review(ALL, ()))
    pid = await begun(told)
    monkeypatch.setattr(apart, "_review", None)
    reviewer._seconds = 0.2
    with pytest.raises(Unchecked, match="longer than"):
        await reviewer.review(ALL, ())
    assert not is_gone(pid)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_process_that_ends_by_itself_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that brings down who reads it brings down no gateway."""
    monkeypatch.setattr(apart, "_COMMAND", (sys.executable, "-c", "import os; os.abort()"))
    with pytest.raises(Unchecked, match="ended with status -6"):
        await Apart(Engine("cedar/x")).review(ALL, ())


async def test_where_no_process_can_be_started_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "_COMMAND", (str(tmp_path / "none"),))
    with pytest.raises(Unchecked, match="no process could be started to look it through: No such file"):
        await Apart(Engine("cedar/x")).review(ALL, ())
