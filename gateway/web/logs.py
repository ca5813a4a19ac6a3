"""One JSON object per line on stderr: what an operator greps, and nothing that is anybody's secret.

A line carries names, numbers and codes only. Bodies, signatures, keys and header values never come near a logger; a
test sends recognisable ones and reads every line.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping
from typing import TextIO

import orjson

ACCESS = logging.getLogger("tallystick.access")


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


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Send every logger of this program through one JSON handler on `stream`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel("WARNING")


def access_line(fields: Mapping[str, object]) -> None:
    """Write the one line of a finished request.

    The record is made directly, because `Logger.info` walks the stack for a caller nobody asked for (5 µs of the
    request's 100).
    """
    if ACCESS.isEnabledFor(logging.INFO):
        record = logging.LogRecord(ACCESS.name, logging.INFO, "", 0, "request", None, None)
        record.__dict__["fields"] = fields
        ACCESS.handle(record)
