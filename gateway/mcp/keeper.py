"""Keeps one agent open for all calls of a conversation: one task enters it and leaves it.

A session says in the background that it is there, so it is opened at once and not by the first call. What stands in
the way is told to the calls that wait for it, and tried again by the next.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.client.agent import Agent
from gateway.client.errors import ClientError
from gateway.client.profile import Profile

CLOSE_S = 0.4  # for the last look at the ledger's history; the next conversation makes up for it
_log = logging.getLogger("tallystick.mcp")


class Keeper:
    """The agent of a profile; an async context manager, in which `agent` is asked for by any number of tasks."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._agent: Agent | None = None
        self._waiting: set[asyncio.Future[Agent]] = set()
        self._is_wanted, self._is_over = asyncio.Event(), asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Keeper:
        self._is_wanted.set()
        self._owner = asyncio.create_task(self._own(), name="agent")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the agent go: compare histories a last time, if that is quickly done."""
        assert self._owner is not None, "entered"
        self._is_over.set()
        self._is_wanted.set()
        await asyncio.wait((self._owner,), timeout=CLOSE_S)
        self._owner.cancel()
        await asyncio.gather(self._owner, return_exceptions=True)

    async def agent(self) -> Agent:
        """Return the agent, opened; raises what stands in the way of that."""
        if self._agent is not None:
            return self._agent
        waiting: asyncio.Future[Agent] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        self._is_wanted.set()
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)

    async def _own(self) -> None:
        while not self._is_over.is_set():
            await self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                await self._hold()
            except Exception as error:  # a session's background may fail as well, which ends all of it
                self._tell(error)

    async def _hold(self) -> None:
        if self._is_over.is_set():
            return
        try:
            async with Agent.open(self._profile) as agent:
                self._agent = agent
                for waiting in self._waiting:
                    if not waiting.done():
                        waiting.set_result(agent)
                await self._is_over.wait()
        finally:
            self._agent = None

    def _tell(self, error: Exception) -> None:
        if not self._waiting:
            _log.warning("%s", error)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(error if isinstance(error, ClientError) else RuntimeError(str(error)))
