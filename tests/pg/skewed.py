"""A gateway on a machine whose wall clock is wrong by as many milliseconds as a file says at each moment.

Usage: python -m tests.pg.skewed FILE COMMAND … The one function that reads the wall clock is wrapped; time that only
counts forward is not, for that is what a step of the wall clock leaves alone.
"""

import sys
from pathlib import Path

from gateway import clock
from gateway.__main__ import main

_FILE = Path(sys.argv[1])
_real = clock.Clock.now_ms


def _skewed(self: clock.Clock) -> int:
    return _real(self) + int(_FILE.read_text("ascii") or "0")


clock.Clock.now_ms = _skewed  # type: ignore[method-assign]  # what this file is for

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:]))
