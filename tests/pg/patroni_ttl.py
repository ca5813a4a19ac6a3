"""Patroni with the floors of `ttl` and `retry_timeout` lowered, for tests: a fail-over in five seconds, not twenty.

Run as a program by `patroni_kit.py`, never imported by ours. Lower than this no stand-by dares to take over.
"""

from patroni.__main__ import main
from patroni.config import Config

FLOORS = {"ttl": 5, "retry_timeout": 2}
_real = Config._Config__get_and_maybe_adjust_int_value  # its only seam


def _adjusted(config: Config, section: object, name: str, floor: int) -> object:
    return _real(config, section, name, FLOORS.get(name, floor))


Config._Config__get_and_maybe_adjust_int_value = _adjusted

# Patroni starts the postmaster in a spawned process that imports this file again: that one must not begin a cluster.
if __name__ == "__main__":
    main()
