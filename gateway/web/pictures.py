"""Pictures of the live state: who holds, waits and acts, what is trusted, admitted and asked for, and the rules.

They write nothing and prove nothing.
"""

from __future__ import annotations

from urllib.parse import unquote

import orjson

from gateway.core.admissionview import ask_view, rules_view, usage_view
from gateway.core.waitview import trust_view
from gateway.errors import Busy
from gateway.store.contract import Reading
from gateway.web.access import Reader, check_unlimited, reader_of
from gateway.web.connection import Reply
from gateway.web.house import JSON, House
from gateway.web.problem import Refusable
from gateway.web.routes import Call, plain
from verifier.did import decode_did
from verifier.entries import ASK_ID, resource_hint, rows_of
from verifier.wire import JsonObject, Malformed


async def wait(house: House, call: Call) -> Reply:
    """Show who holds what, who stands in line and who was refused: all of it, or what overlaps `?resource=`."""
    name, _, value = call.query.partition("=")
    if name not in ("", "resource") or "&" in value:
        raise Refusable("query_malformed", "The query is empty or resource=<name>.")
    check_unlimited(house, await _admit(house, call))
    return _picture(house, await (house.scenes.resource(_resource(value)) if name else house.scenes.everything()))


async def leases(house: House, call: Call) -> Reply:
    """List the live leases of the holder that the query names."""
    name, _, holder = call.query.partition("=")
    if name != "holder" or not (holder == "me" or _is_did(holder)):
        raise Refusable("query_malformed", "The query is holder=me or holder=<did:key>.")
    reader = await _admit(house, call, is_signed=holder == "me")
    if holder == "me" and reader is not None:
        return _picture(house, await house.scenes.holder(_own_did(reader)))
    check_unlimited(house, reader)
    return _picture(house, await house.scenes.holder(holder))


async def sessions(house: House, call: Call) -> Reply:
    """List the sessions, all of them or those of `?agent=`."""
    name, _, did = call.query.partition("=")
    if name not in ("", "agent") or (name and not _is_did(did)):
        raise Refusable("query_malformed", "The query is empty or agent=<did:key>.")
    check_unlimited(house, await _admit(house, call))
    return _picture(house, await house.scenes.sessions(did))


async def operators(house: House, call: Call) -> Reply:
    """List every key that ever was an operator, in the order of their entries."""
    check_unlimited(house, await _admit(house, call))
    return _picture(house, await house.scenes.operators())


async def keys(house: House, call: Call) -> Reply:
    """List the keys that sign, or signed, for the ledger, in the order of their entries."""
    await _admit(house, call)
    return _picture(house, await house.scenes.keys())


async def agents(house: House, call: Call) -> Reply:
    """List every key that was ever enrolled, in the order of enrolment."""
    check_unlimited(house, await _admit(house, call))
    return _picture(house, await house.scenes.agents())


async def apikeys(house: House, call: Call) -> Reply:
    """List the API keys by their digests; on a members' ledger for operators, whose they are."""
    reader = await _admit(house, call)
    if reader is not None and reader.role != "operator" and not house.ledger.is_public:
        raise Refusable("reader_limited", "Only an operator sees the API keys.")
    return _picture(house, await house.scenes.apikeys())


async def schemes(house: House, call: Call) -> Reply:
    """List the schemes that an operator set."""
    check_unlimited(house, await _admit(house, call))
    return _picture(house, await house.scenes.schemes())


async def trust(house: House, call: Call) -> Reply:
    """Show the trust of one agent."""
    name, _, did = call.query.partition("=")
    if name != "did" or not _is_did(did):
        raise Refusable("query_malformed", "The query is did=<did:key>.")
    reader = await _admit(house, call)
    if reader is not None and reader.did != did:
        check_unlimited(house, reader)
    found = trust_view(house.shelf, did, house.sequencer.time_ms, house.ledger.parameters)
    return _now(house, found)


async def usage(house: House, call: Call) -> Reply:
    """Show what was admitted: to each key and on each scheme, or to the one of `?did=`."""
    name, _, did = call.query.partition("=")
    if name not in ("", "did") or (name and not _is_did(did)):
        raise Refusable("query_malformed", "The query is empty or did=<did:key>.")
    reader = await _admit(house, call)
    if reader is None or reader.did != did:
        check_unlimited(house, reader)
    if not name:
        return _picture(house, await house.scenes.usages())
    return _now(house, usage_view(house.shelf, did, house.sequencer.time_ms))


async def approvals(house: House, call: Call) -> Reply:
    """List the requests for approval: all, the one of `?askId=`, those of an asker, those that wait for an approver."""
    name, _, value = call.query.partition("=")
    if name not in ("", "askId", "of", "by") or (
        name and not (ASK_ID.check(value) if name == "askId" else _is_did(value))
    ):
        raise Refusable("query_malformed", "The query is empty, askId=A<seq>, of=<did:key> or by=<did:key>.")
    reader = await _admit(house, call)
    if name == "askId":
        await house.news.reached(int(value[1:]) + 1)  # it is named after its entry
        found = ask_view(house.shelf, value, house.sequencer.time_ms)
        _check_own_ask(house, reader, found)
        return _now(house, await with_statements(house, found))
    if reader is None or (name, reader.did) != ("of", value):
        check_unlimited(house, reader)
    return _picture(house, await house.scenes.asks(value if name == "of" else "", value if name == "by" else ""))


def _check_own_ask(house: House, reader: Reader | None, found: JsonObject) -> None:
    """Raise when who sees only what is its own asks for another's request."""
    rows = rows_of(found["approvals"])
    if reader is None or not all(reader.did == row["actor"] for row in rows) or not rows:
        check_unlimited(house, reader)


async def with_statements(house: House, found: JsonObject) -> JsonObject:
    """Return one request of a view with the signed statements that were given for it, as they are presented."""
    return await house.reads.call(lambda entries: _with_statements(entries, found))


def _with_statements(entries: Reading, found: JsonObject) -> JsonObject:
    """Add to each approval the statement that the entry which gave it has in its evidence."""
    for row in rows_of(found["approvals"]):
        for given in rows_of(row["given"]):
            seq = given["seq"]
            assert isinstance(seq, int), "a view made it"
            (entry,) = entries.entries(seq, seq + 1)
            given["approval"] = orjson.loads(orjson.loads(entry.leaf)["request"]["body"])["approval"]
    return found


async def rules(house: House, call: Call) -> Reply:
    """Show the rule set in force with its text."""
    check_unlimited(house, await _admit(house, call))
    return _now(house, rules_view(house.shelf, house.sequencer.time_ms))


def _now(house: House, found: JsonObject) -> Reply:
    """Answer with a picture that costs a look-up only, so that nobody else shares it."""
    return _picture(house, orjson.dumps({"ok": True, **found}))


async def _admit(house: House, call: Call, *, is_signed: bool = False) -> Reader | None:
    """Return who looks, unless it looks too often: a picture is large, and strangers may look at a public ledger.

    Who is known pays under its name, others under their address; so nobody uses up what a member may ask for. Busy
    while there is nothing to look at: a node that was just started, whose newest entries may not be durable.
    """
    if not len(house.sequencer.view):
        raise house.sequencer.unfit or Busy("store_busy")
    reader = await reader_of(house, call, is_signed=is_signed)
    house.pictures.take(reader.payer if reader else call.request.remote)
    return reader


def _own_did(reader: Reader) -> str:
    if not reader.did:
        raise Refusable("query_malformed", "This API key speaks for no agent, so nothing is its own; name a holder.")
    return reader.did


def _picture(house: House, body: bytes) -> Reply:
    return plain(body, JSON, Cache_Control=house.cache)


def _resource(value: str) -> str:
    """Return the name that a query spells; only names that could be held are looked for."""
    name = unquote(value, errors="surrogateescape")
    hint = resource_hint(name)
    if hint is not None:
        raise Refusable("query_malformed", f"The name is not one of a resource: {hint}.")
    return name


def _is_did(text: str) -> bool:
    try:
        return bool(decode_did(text))
    except Malformed:
        return False
