"""What an agent runs: leases that are held, verified and let go, and the guard on the other side.

from gateway.client import Agent

async with Agent.open() as agent:
    async with agent.lease("repo:app/src/a.py") as lease:
        ...


What is offered stands in api.py, and is loaded when something of it is asked for: who imports one file of the client,
as a guard that is started for each call, does not load all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client.api import *  # noqa: F403


def __getattr__(name: str) -> object:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(import_module("gateway.client.api"), name)
