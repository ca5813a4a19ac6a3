"""Guards in front of HTTP services: one door, two ways to hang it (aiohttp_guard.py, asgi.py), and what an agent sends.

    Door(guard, describe, authorities)      which requests are guarded, and what each is about to do
    guard_middleware(door)                  for aiohttp.web
    GuardedApp(app, door)                   for ASGI
    guarded_request(agent, method, url, …)  by the agent: admitted, signed, with the receipt

Source: docs/protocol.md 41.
"""

from gateway.client.guards.aiohttp_guard import PASSED, guard_middleware
from gateway.client.guards.asgi import GuardedApp
from gateway.client.guards.calling import GuardedRequest, fenced_request, guarded_request
from gateway.client.guards.door import Door, Guarded, Passed
from gateway.client.guards.request import Call, arguments_of

__all__ = [
    "PASSED",
    "Call",
    "Door",
    "Guarded",
    "GuardedApp",
    "GuardedRequest",
    "Passed",
    "arguments_of",
    "fenced_request",
    "guard_middleware",
    "guarded_request",
]
