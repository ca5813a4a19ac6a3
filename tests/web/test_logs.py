"""The log writer: lines are gathered, urgent ones don't wait, none is lost, each is one JSON object."""

import asyncio
import io
import json
import logging
import threading
from typing import Any

from gateway.web.logs import GATHER_SECONDS, GatheringHandler, JsonFormatter


class Stream(io.StringIO):
    """Counts how often it is written to, and says when."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.written = asyncio.Event()

    def write(self, text: str) -> int:
        self.writes += 1
        self.written.set()
        return super().write(text)


def logger_on(stream: io.StringIO) -> tuple[logging.Logger, GatheringHandler]:
    handler = GatheringHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("tallystick.test", logging.INFO)
    logger.addHandler(handler)
    return logger, handler


def events(stream: io.StringIO) -> list[Any]:
    return [json.loads(line)["event"] for line in stream.getvalue().splitlines()]


async def test_lines_of_one_moment_are_written_together() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    for number in range(100):
        logger.info("line %d", number)
    assert stream.writes == 0
    await asyncio.wait_for(stream.written.wait(), 100 * GATHER_SECONDS)
    assert stream.writes == 1
    assert events(stream) == [f"line {number}" for number in range(100)]


async def test_the_next_moment_is_written_too() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    for word in ("first", "second"):
        stream.written.clear()
        logger.info(word)
        await asyncio.wait_for(stream.written.wait(), 100 * GATHER_SECONDS)
    assert events(stream) == ["first", "second"]


async def test_a_warning_is_written_at_once_with_all_before_it() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    logger.info("before")
    logger.warning("urgent")
    assert events(stream) == ["before", "urgent"]


def test_outside_a_loop_every_line_is_written_at_once() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    logger.info("one")
    assert events(stream) == ["one"]


async def test_another_thread_writes_at_once_and_nothing_is_lost() -> None:
    stream = Stream()
    logger, handler = logger_on(stream)

    def write(name: str) -> None:
        for number in range(200):
            logger.info("%s %d", name, number)

    threads = [threading.Thread(target=write, args=(f"thread {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    write("loop")
    for thread in threads:
        thread.join()
    handler.flush()
    found = events(stream)
    assert len(found) == 1_000
    assert len(set(found)) == 1_000
    for name in ("loop", "thread 0", "thread 3"):
        assert [event for event in found if event.startswith(f"{name} ")] == [f"{name} {n}" for n in range(200)]


def test_a_line_is_one_json_object_whatever_it_holds() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    logger.info("a\nb\u2028\x00 %s", object, extra={"fields": {"seq": 1, "odd": {1, 2}}})
    assert stream.getvalue().count("\n") == 1
    value = json.loads(stream.getvalue())
    assert value["event"].startswith("a\nb\u2028\x00 ")
    assert value["seq"] == 1
    assert value["odd"] == "{1, 2}"


def test_an_exception_is_named_with_places_and_without_its_text_or_source() -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    try:
        raise ValueError("SECRET")
    except ValueError:
        logger.exception("it failed")
    value = json.loads(stream.getvalue())
    assert value["trace"][-1] == "ValueError"
    assert "test_logs.py" in value["trace"][0]
    assert "SECRET" not in stream.getvalue()


def test_a_line_that_can_not_be_formatted_breaks_nobody(capsys: Any) -> None:
    stream = Stream()
    logger, _ = logger_on(stream)
    logger.info("%d", "no number")
    logger.info("next")
    assert events(stream) == ["next"]
