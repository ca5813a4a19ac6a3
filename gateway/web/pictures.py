"""Pictures of the live state: waits, leases, agents. They write nothing and prove nothing."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

import orjson

from gateway.core import waitview
from gateway.core.intake import SignedRead
from gateway.core.state import Agent
from gateway.web.access import reader_of
from gateway.web.connection import Reply
from gateway.web.house import JSON, House
from gateway.web.problem import Refusable
from gateway.web.routes import Call, plain
from verifier.did import decode_did
from verifier.wire import Malformed


async def wait(house: House, call: Call) -> Reply:
    """Show who holds what and who was refused, for every resource or the one of `?resource=`."""
    await _admit(house, call)
    name, _, value = call.query.partition("=")
    if name not in ("", "resource") or "&" in value:
        raise Refusable("query_malformed", "The query is empty or resource=<name>.")
    resource = unquote(value) if name else None
    parameters = house.ledger.parameters
    return _picture(house, waitview.wait_view(house.shelf, house.sequencer.time_ms, parameters, resource))


async def leases(house: House, call: Call) -> Reply:
    """List the live leases of the holder that the query names."""
    name, _, holder = call.query.partition("=")
    if name != "holder" or not (holder == "me" or _is_did(holder)):
        raise Refusable("query_malformed", "The query is holder=me or holder=<did:key>.")
    reader = await _admit(house, call, is_signed=holder == "me")
    did = reader.keyid if holder == "me" and reader else holder
    return _picture(house, waitview.leases_view(house.shelf, house.sequencer.time_ms, did))


async def agents(house: House, call: Call) -> Reply:
    """List every key that was ever enrolled, in the order of enrolment."""
    await _admit(house, call)
    enrolled = [record for record in house.shelf.scan("agent/") if isinstance(record, Agent)]
    rows = [_agent_row(agent) for agent in sorted(enrolled, key=lambda agent: agent.added_seq)]
    return _picture(house, {"agents": rows})


def _agent_row(agent: Agent) -> dict[str, object]:
    row: dict[str, object] = {"did": agent.did, "addedSeq": agent.added_seq}
    if agent.name is not None:
        row["name"] = agent.name
    if agent.removed_seq is not None:
        row["removedSeq"] = agent.removed_seq
    return row


async def _admit(house: House, call: Call, *, is_signed: bool = False) -> SignedRead | None:
    """Return who looks, unless its address looks too often: a picture walks through every live record."""
    house.pictures.take(call.request.remote)
    return await reader_of(house, call, is_signed=is_signed)


def _picture(house: House, members: Mapping[str, object]) -> Reply:
    return plain(orjson.dumps({"ok": True, **members}), JSON, Cache_Control=house.cache)


def _is_did(text: str) -> bool:
    try:
        return bool(decode_did(text))
    except Malformed:
        return False
