"""One JSON object per line on stderr: what an operator greps, and nothing that is anybody's secret.

A line carries names, numbers and codes only. Bodies, signatures, keys and header values never come near a logger; a
test sends recognisable ones and reads every line.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TextIO

import orjson

ACCESS = logging.getLogger("tallystick.access")
GATHER_SECONDS = 0.05


class JsonFormatter(logging.Formatter):
    """Formats a record as `{"timeMs":…,"level":…,"logger":…,"event":…, fields…}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON without its newline; the members of `extra={"fields": …}` stand beside the event."""
        line: dict[str, object] = {
            "timeMs": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["trace"] = _trace(record)
        return orjson.dumps(line, default=str).decode("utf-8", "replace")


def _trace(record: logging.LogRecord) -> list[str]:
    """Return file, line and function of each frame and the exception's class; never its text or a source line."""
    assert record.exc_info
    kind, _, tail = record.exc_info
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(tail)]
    return [*frames, kind.__name__ if kind else "unknown"]


class GatheringHandler(logging.Handler):
    """Writes the lines of GATHER_SECONDS at once: a system call per line is most of what a line costs.

    A warning, a line from another thread or outside an event loop is written at once, with all before it. A process
    that is killed loses at most the access lines of that moment; the ledger, not the log, is the record.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: list[str] = []
        self._scheduled_on: asyncio.AbstractEventLoop | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record; called under the handler's lock."""
        try:
            self.take(self.format(record), is_urgent=record.levelno >= logging.WARNING)
        except Exception:
            self.handleError(record)

    def take(self, line: str, *, is_urgent: bool = False, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Take one finished line, from any thread; who knows that it runs in `loop` saves us the question."""
        with self.lock or nullcontext():
            self._lines.append(line)
            if is_urgent or not self._schedule(loop):
                self.flush()

    def flush(self) -> None:
        """Write what was gathered."""
        with self.lock or nullcontext():
            lines, self._lines = self._lines, []
            if lines:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()

    def _schedule(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Make sure that the loop of this thread will flush; False when there is none."""
        try:
            loop = loop or asyncio.get_running_loop()
        except RuntimeError:
            return False
        if loop is not self._scheduled_on:
            loop.call_later(GATHER_SECONDS, self._on_time)
            self._scheduled_on = loop
        return True

    def _on_time(self) -> None:
        self._scheduled_on = None
        self.flush()


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Send every logger of this program through one JSON handler on `stream`."""
    handler = GatheringHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel("WARNING")


def access_line(time_ms: int, fields: Mapping[str, object], loop: asyncio.AbstractEventLoop) -> None:
    """Write the one line of a finished request; called within `loop`.

    It goes round `logging`, whose record and walk through handlers cost five times the line (6 µs of a request's 100).
    """
    if not ACCESS.isEnabledFor(logging.INFO):
        return
    for handler in logging.root.handlers:
        if isinstance(handler, GatheringHandler):
            line = {"timeMs": time_ms, "level": "INFO", "logger": ACCESS.name, "event": "request", **fields}
            handler.take(orjson.dumps(line).decode(), loop=loop)
