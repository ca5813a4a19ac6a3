"""Looks a rule set through in a process of its own: up to a second of work, which nobody's renewal may wait for.

A thread is not enough: the engine keeps the interpreter to itself while it checks one policy, a tenth of a second of a
large one. And what takes too long, or brings down whoever reads it, can only be ended as a process.

The text and the schemes that fold go in, what is wrong comes back, each as one JSON object; nothing is shared. What is
valid is then parsed in a thread and kept, so that no decision has to wait for that either.

Source: docs/protocol.md 39.3.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Collection
from contextlib import suppress

from gateway.rules.check import check
from gateway.rules.engine import Engine
from gateway.rules.evaluate import Rules

CHECK_SECONDS = 10.0  # some five times what the worst text takes; well below the deadline of a request
_COMMAND = (sys.executable, "-m", "gateway.rules.apart")


class Unchecked(Exception):
    """Nobody knows whether the text is a rule set: it took too long, or its process ended. The text says which."""


class Apart:
    """Looks through one text at a time; who waits for another's text waits within its own time."""

    def __init__(self, engine: Engine, seconds: float = CHECK_SECONDS) -> None:
        self._engine = engine
        self._seconds = seconds
        self._turn = asyncio.Lock()

    async def review(self, text: str, folding: Collection[str]) -> list[str]:
        """Return what is wrong with a text, a sentence for each fault; `folding` are the schemes that fold case.

        The engine keeps a text that is valid. Unchecked.
        """
        try:
            async with asyncio.timeout(self._seconds), self._turn:
                faults = await _review(text, folding)
                if not faults:
                    self._engine.keep(await asyncio.to_thread(Rules, text))
        except TimeoutError as error:
            raise Unchecked(f"looking it through took longer than {self._seconds:g} s, and was ended") from error
        except OSError as error:
            raise Unchecked(f"no process could be started to look it through: {error.strerror}") from error
        return faults


async def _review(text: str, folding: Collection[str]) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        said, _ = await process.communicate(json.dumps({"text": text, "folding": sorted(folding)}).encode())
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    if process.returncode != 0:
        raise Unchecked(f"the process that looked it through ended with status {process.returncode}")
    return [str(fault) for fault in json.loads(said)["faults"]]


def main() -> None:
    """The other process: one text in, its faults out. It gives way to the gateway's own work."""
    os.nice(10)
    asked = json.load(sys.stdin)
    faults = check(asked["text"], frozenset(asked["folding"]).__contains__).faults
    json.dump({"faults": list(map(str, faults))}, sys.stdout)


if __name__ == "__main__":
    main()
