"""How much of what is drawn by lot one run plays: a share each time, and all of it where TALLYSTICK_FULL is set.

The share is the first part of the whole, so that whoever sees it fail sees the whole fail as well.
"""

from __future__ import annotations

import os

IS_FULL = bool(os.environ.get("TALLYSTICK_FULL"))


def drawn(full: int, share: int) -> int:
    """Return how many of `full` examples, seeds or edits to play: `share` of them, unless all are asked for."""
    assert 0 < share <= full
    return full if IS_FULL else share
