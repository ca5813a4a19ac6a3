"""`tallystick db copy` that is killed at one of the points where it changes something. Run by `test_db_copy.py`.

Usage: python -m tests.web.copy_victim POINTS NUMBER ARGUMENT... Writes the name of each point it comes to into the file
POINTS, and dies of SIGKILL at the one of that number, counted from 0; a number beyond the last lets it end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from gateway import db_copy
from gateway.__main__ import main
from gateway.store.postgres_link import Link
from keys import files

P = ParamSpec("P")
T = TypeVar("T")


class Points:
    """The points that a run comes to, in order."""

    def __init__(self, told: Path, last: int) -> None:
        self._told, self._last = told, last
        self._count = 0

    def reach(self, name: str) -> None:
        with self._told.open("a") as file:
            file.write(f"{name}\n")
        if self._count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self._count += 1

    def around(self, name: str, call: Callable[P, T]) -> Callable[P, T]:
        """Return a call with a point before it and one after it."""

        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            self.reach(f"before {name}")
            result = call(*args, **kwargs)
            self.reach(f"after {name}")
            return result

        return called


def run(told: str, number: str, *arguments: str) -> int:
    points = Points(Path(told), int(number))
    Link.run = points.around("statement", Link.run)  # type: ignore[method-assign]
    Link.commit = points.around("commit", Link.commit)  # type: ignore[method-assign]
    db_copy._put_aside = points.around("file", db_copy._put_aside)
    files.os.replace = points.around("name", os.replace)  # type: ignore[attr-defined]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
