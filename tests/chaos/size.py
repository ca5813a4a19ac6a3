"""How much of a fault is played: the one switch between `make test` and `make chaos`."""

import os

IS_NIGHTLY = os.environ.get("TALLYSTICK_CHAOS") == "1"


def size(short: int, nightly: int) -> int:
    """Return the size of a scene in this run."""
    return nightly if IS_NIGHTLY else short
