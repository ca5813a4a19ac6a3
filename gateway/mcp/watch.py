"""Looking at who holds and who waits, until there is news; and what to do then.

Nothing is remembered between calls, so "news" is what differs from the first look of the same call. What came between
two calls is not missed where it matters: a resource that is free is told at once, and so is a turn in line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Protocol

from verifier.entries import may_wait, resources_of, rows_of
from verifier.wire import JsonObject, JsonValue

_IN_THE_WAY = ("lease_held", "lock_delayed", "queued")


class Looker(Protocol):
    """Who looks (tools.Caller)."""

    @property
    def did(self) -> str:
        """The agent that looks."""

    @property
    def look_s(self) -> float:
        """How long to wait between two looks."""

    async def read(self, action: str, arguments: JsonObject) -> JsonObject:
        """Return the answer to a read."""


async def watch(looker: Looker, arguments: JsonObject, *, wait_s: int, names: Mapping[str, str]) -> JsonObject:
    """Return the picture when it changes, at once when its resource is free or it is the caller's turn, at the latest
    after `wait_s`; with `isChanged`, and with `next` where one resource is asked about.

    `names` spells the tools by their actions.
    """
    resource = arguments.get("resource")
    query: JsonObject = {} if resource is None else {"resource": resource}
    until_s = monotonic() + wait_s
    first = picture = await looker.read("coordination.wait", query)
    while _key(picture) == _key(first) and not _is_open(picture, resource, looker.did):
        left_s = until_s - monotonic()
        if left_s <= 0:
            break
        await asyncio.sleep(min(looker.look_s, left_s))
        picture = await looker.read("coordination.wait", query)
    told: JsonObject = {**picture, "isChanged": _key(picture) != _key(first)}
    return told if resource is None else {**told, "next": _advice(picture, resource, looker.did, names)}


def _key(picture: JsonObject) -> tuple[object, ...]:
    """Return what news is: leases and offers, delays, places in line, approvals, deadlocks. Renewals and refusals are
    none."""
    rows = rows_of(picture.get("resources"))
    asks = (
        repr((row.get("askId"), row.get("given"), row.get("declined"))) for row in rows_of(picture.get("approvals"))
    )
    return (*(_row_key(row) for row in rows), *asks, repr(picture.get("deadlocks")))


def _row_key(row: JsonObject) -> tuple[object, ...]:
    leases = tuple((lease.get("leaseId"), repr(lease.get("offer"))) for lease in rows_of(row.get("leases")))
    delays = tuple(delay.get("endedSeq") for delay in rows_of(row.get("delays")))
    queue = tuple((ticket.get("ticketId"), ticket.get("state")) for ticket in rows_of(row.get("queue")))
    return row.get("resource"), leases, delays, queue


def _is_open(picture: JsonObject, resource: JsonValue, did: str) -> bool:
    """Say whether waiting longer is of no use: nobody is there, or it is the caller's turn."""
    if resource is None:
        return False
    stand = _Stand(picture)
    return stand.is_free or any(ticket.get("state") == "offered" for ticket in stand.own_tickets(did))


class _Stand:
    """What stands on the one resource of a picture."""

    def __init__(self, picture: JsonObject) -> None:
        rows = rows_of(picture.get("resources"))
        self.leases = [lease for row in rows for lease in rows_of(row.get("leases"))]
        self.delays = [delay for row in rows for delay in rows_of(row.get("delays"))]
        self.queue = [ticket for row in rows for ticket in rows_of(row.get("queue"))]

    @property
    def is_free(self) -> bool:
        return not (self.leases or self.delays or self.queue)

    def own_tickets(self, did: str) -> list[JsonObject]:
        return [ticket for ticket in self.queue if ticket.get("actor") == did]


def _advice(picture: JsonObject, resource: JsonValue, did: str, names: Mapping[str, str]) -> JsonObject:
    """Return what to do next about one resource."""
    stand = _Stand(picture)
    for ticket in stand.own_tickets(did):
        return _claim(ticket, names["wait.claim"])
    for lease in stand.leases:
        if lease.get("holder") == did:
            arguments: JsonObject = {"leaseId": lease.get("leaseId")}
            return _next(names["lease.renew"], arguments, "You hold this: renew it before it ends, or release it.")
    acquire = names["lease.acquire"]
    if stand.is_free:
        return _next(acquire, {"resource": resource}, "Nothing is in the way.")
    return _next(acquire, {"resource": resource, "wait": True}, "Others hold it or stand in line: stand in line too.")


def advice(answer: JsonObject, action: str, members: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """Return `next` for the answer to a decision: a place in line is to be claimed, and who is in somebody's way stands
    in line too; nothing for others.
    """
    ticket = answer.get("ticket")
    if isinstance(ticket, dict):
        return {"next": _claim(ticket, names["wait.claim"])}
    ask = answer.get("ask")
    if isinstance(ask, dict) and action == "approval.ask":
        return {"next": _look_again(ask.get("askId"), names["approval.list"])}
    if answer.get("error") == "lease_required":
        wanted: JsonObject = {name: members[name] for name in ("resource", "resources", "mode") if name in members}
        return {"next": _next(names["lease.acquire"], wanted, "Take a lease that covers it, then ask again.")}
    is_waiting = members.get("wait") is True or not may_wait(resources_of(members))
    if action == "lease.acquire" and answer.get("error") in _IN_THE_WAY and not is_waiting:
        return {"next": _next(names[action], {**members, "wait": True}, "Stand in line, and claim your turn.")}
    return {}


def advice_on_ask(answer: JsonObject, arguments: JsonObject, names: Mapping[str, str]) -> JsonObject:
    """Return `next` for the list of one request: to ask for admission once it is approved, until then to look again."""
    rows = rows_of(answer.get("approvals"))
    if "askId" not in arguments or len(rows) != 1:
        return {}
    (row,) = rows
    if row.get("state") == "open":
        return {"next": _look_again(row.get("askId"), names["approval.list"])}
    if row.get("state") != "given":
        return {}
    asked: JsonObject = {name: row.get(name) for name in ("operation", "resources", "mode", "argumentsDigest", "cost")}
    given: list[JsonValue] = [one.get("approval") for one in rows_of(row.get("given"))]
    why = "It is approved. Add leaseId and fencingToken of the lease that you hold on it."
    return {"next": _next(names["coordination.admit"], {**asked, "approvals": given}, why)}


def _look_again(ask_id: JsonValue, tool: str) -> JsonObject:
    return _next(tool, {"askId": ask_id}, "Renew your lease, wait half a minute, and look whether it was approved.")


def _claim(ticket: JsonObject, claim: str) -> JsonObject:
    arguments: JsonObject = {"ticketId": ticket.get("ticketId"), "waitSeconds": 20}
    return _next(claim, arguments, "Claim your place in line until the lease comes; each claim keeps it.")


def _next(tool: str, arguments: JsonObject, why: str) -> JsonObject:
    return {"tool": tool, "arguments": arguments, "why": why}
