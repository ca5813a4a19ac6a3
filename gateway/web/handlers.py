"""One handler per route: it reads what the route needs, asks the room below, and writes bytes.

No rule of the ledger lives here. A decision goes to the desk as it arrived; a read is first allowed (`_reader`), then
answered from the read thread or from memory; a report is believed only as far as our own log key signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import orjson
from aiohttp import web

from gateway.actions import ACTIONS, Action
from gateway.core import waitview
from gateway.core.dispute import is_contradiction, open_own_checkpoint
from gateway.core.intake import RawRequest, SignedRead, intake_read, is_inside_window
from gateway.core.state import Agent, agent_at, operator_key
from gateway.ledger.sequencer import Sequencer
from gateway.service import Desk, Ledger, WallClock
from gateway.signer import Signer
from gateway.web.limits import Buckets, read_body
from gateway.web.openapi import openapi, origin_prefix
from gateway.web.problem import BASE_HEADERS, Refusable
from gateway.web.reads import ReadThread, bundle_bytes, receipt_bytes, root_at, tile_bytes
from gateway.web.routes import Call, Handler, Route, plain
from gateway.web.tiles import Tile, is_within, parse_tile_path
from verifier.checkpoint import Checkpoint
from verifier.did import decode_did
from verifier.wire import Malformed, decode_decimal

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
BYTES = "application/octet-stream"
FOREVER = "public, max-age=31536000, immutable"
PRIVATE = "private, no-store"
READ_LIFE_S_MEMBERS = 15
_REPLAYED = {"Idempotency-Replayed": "true"}
_HEADERS = {**BASE_HEADERS, "Content-Type": JSON}
_EVERYBODY = "everybody"


@dataclass(frozen=True, slots=True)
class House:
    """The rooms a handler may ask. `published` maps a path to its content type and bytes."""

    ledger: Ledger
    desk: Desk
    sequencer: Sequencer
    signer: Signer
    clock: WallClock
    reads: ReadThread
    reports: Buckets
    published: Mapping[str, tuple[str, bytes]]
    body_seconds: float
    shelf: waitview.Shelf
    is_draining: Callable[[], bool]


def routes(house: House) -> tuple[Route, ...]:
    """Return every route of the gateway: the rows of the action table, then what stands below the origin and apart."""
    handlers: Mapping[str, Handler] = {
        "coordination.wait": partial(wait, house), "lease.list": partial(leases, house),
        "agent.list": partial(agents, house), "receipt.get": partial(receipt, house),
        "ledger.dispute": partial(report, house), "ledger.seen": partial(report, house),
    }
    rows = [_action_route(house, action, handlers) for action in ACTIONS.values()]
    prefix = origin_prefix(house.ledger.origin)
    document = orjson.dumps(openapi(house.ledger.origin))
    files = {**house.published, "/openapi.json": (JSON, document)}
    return (
        *rows,
        Route("ledger.checkpoint", "GET", f"{prefix}/checkpoint", partial(checkpoint, house)),
        Route("ledger.tile", "GET", f"{prefix}/tile/", partial(tile, house), is_prefix=True),
        Route("livez", "GET", "/livez", livez),
        Route("readyz", "GET", "/readyz", partial(readyz, house)),
        *(Route("published", "GET", path, partial(file, kind, body)) for path, (kind, body) in files.items()),
    )


def _action_route(house: House, action: Action, handlers: Mapping[str, Handler]) -> Route:
    if action.kind == "decision":
        return Route(action.name, action.method, action.path, partial(decide, house, action))
    fixed, brace, _ = action.path.partition("{")
    return Route(action.name, action.method, fixed, handlers[action.name], is_prefix=bool(brace))


# -- decisions ---------------------------------------------------------------------------------------------------------


async def decide(house: House, action: Action, call: Call) -> web.Response:
    """Read the body once, let the desk decide, write its bytes."""
    if house.is_draining():
        raise Refusable("draining", "This gateway is stopping.", {"Retry-After": "5", "Connection": "close"})
    body = await read_body(call.request, house.body_seconds)
    answered = await house.desk.decide(raw_request(call, body), action)
    call.fields["seq"] = answered.seq
    call.fields["actor"] = answered.actor
    headers = _HEADERS | _REPLAYED if answered.is_replay else _HEADERS
    return web.Response(status=answered.status, body=answered.body, headers=headers)


def raw_request(call: Call, body: bytes) -> RawRequest:
    """Return the request as it came over the wire: names in lower case, values as Latin-1, nothing merged."""
    request = call.request
    fields = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in request.raw_headers)
    authority = next((value for name, value in fields if name == "host"), "")
    return RawRequest(request.method, authority, call.path, call.raw_query, fields, body)


# -- files of the log --------------------------------------------------------------------------------------------------


async def checkpoint(house: House, call: Call) -> web.Response:
    """Serve the newest checkpoint; on every ledger to everybody."""
    return plain(house.sequencer.confirmed.note, TEXT)


async def tile(house: House, call: Call) -> web.Response:
    """Serve a tile of hashes to everybody, or an entry bundle to whoever may read the entries."""
    found = parse_tile_path(f"tile/{call.rest}")
    if found is None:
        raise Refusable("not_found", "Not the path of a tile.")
    if found.level is None:
        _reader(house, call)
    if not is_within(found, house.sequencer.confirmed.size):
        raise Refusable("not_found", "The ledger does not reach that far.")
    read = bundle_bytes if found.level is None else tile_bytes
    body = await house.reads.call(lambda reader: read(reader, found))
    return plain(body, BYTES, Cache_Control=_tile_cache(house, found))


def _tile_cache(house: House, found: Tile) -> str:
    if found.level is None and not house.ledger.is_public:
        return PRIVATE
    return FOREVER if found.is_full else "no-store"


async def receipt(house: House, call: Call) -> web.Response:
    """Serve the receipt of one entry with its proof in the newest checkpoint."""
    _reader(house, call)
    confirmed = house.sequencer.confirmed
    try:
        seq = decode_decimal(call.rest)
    except Malformed:
        raise Refusable("not_found", "A receipt has a decimal number.") from None
    if seq >= confirmed.size:
        raise Refusable("not_found", "The ledger does not reach that far.")
    body = await house.reads.call(
        lambda reader: receipt_bytes(reader, house.signer, seq=seq, size=confirmed.size, note=confirmed.note)
    )
    return plain(body, JSON, Cache_Control=_cache(house))


# -- pictures of the live state ----------------------------------------------------------------------------------------


async def wait(house: House, call: Call) -> web.Response:
    """Show who holds what and who was refused, for every resource or the one of `?resource=`."""
    _reader(house, call)
    name, _, value = call.query.partition("=")
    if name not in ("", "resource"):
        raise Refusable("query_malformed", "The query is empty or resource=<name>.")
    resource = unquote(value) if name else None
    parameters = house.ledger.parameters
    return _picture(house, waitview.wait_view(house.shelf, house.sequencer.time_ms, parameters, resource))


async def leases(house: House, call: Call) -> web.Response:
    """List the live leases of the holder that the query names."""
    name, _, holder = call.query.partition("=")
    if name != "holder" or not (holder == "me" or _is_did(holder)):
        raise Refusable("query_malformed", "The query is holder=me or holder=<did:key>.")
    reader = _reader(house, call, is_signed=holder == "me")
    did = reader.keyid if holder == "me" and reader else holder
    return _picture(house, waitview.leases_view(house.shelf, house.sequencer.time_ms, did))


async def agents(house: House, call: Call) -> web.Response:
    """List every key that was ever enrolled, in the order of enrolment."""
    _reader(house, call)
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


def _picture(house: House, members: Mapping[str, object]) -> web.Response:
    return plain(orjson.dumps({"ok": True, **members}), JSON, Cache_Control=_cache(house))


def _cache(house: House) -> str:
    return "no-store" if house.ledger.is_public else PRIVATE


def _reader(house: House, call: Call, *, is_signed: bool = False) -> SignedRead | None:
    """Return who reads, or None for a stranger on a public ledger; raises when this one may not read.

    A signed read leaves no record: repeating it changes nothing.
    """
    if house.ledger.is_public and not is_signed:
        return None
    ledger = house.ledger
    read = intake_read(raw_request(call, b""), origin=ledger.origin, authorities=ledger.authorities)
    call.fields["actor"] = read.keyid
    _check_window(house, read)
    _check_in_force(house, read.keyid)
    return read


def _check_window(house: House, read: SignedRead) -> None:
    """A members' read lives 15 s at most, so that a captured one is soon worthless."""
    is_short = house.ledger.is_public or read.expires - read.created <= READ_LIFE_S_MEMBERS
    if not is_short or not is_inside_window(read, house.clock.now_ms(), house.ledger.parameters.skew_ms):
        raise Refusable("outside_window", f"A signed read lives {READ_LIFE_S_MEMBERS} s at most.")


def _check_in_force(house: House, did: str) -> None:
    view = house.shelf
    agent = agent_at(view, did)
    is_agent = agent is not None and agent.removed_seq is None
    if not is_agent and view.get(operator_key(did)) is None:
        raise Refusable("reader_unknown", "The key is not enrolled, or was removed.")


def _is_did(text: str) -> bool:
    try:
        return bool(decode_did(text))
    except Malformed:
        return False


# -- reports -----------------------------------------------------------------------------------------------------------


async def report(house: House, call: Call) -> web.Response:
    """Take a checkpoint that somebody holds, and stop granting when our own log key contradicts us in it.

    Only our own signature counts. Without it nobody, whatever they claim, can stop this ledger; with it the ledger has
    two histories, by theft of the key or by an old back-up, and granting on either would break promises.
    """
    house.reports.take(_EVERYBODY)
    if not call.request.headers.get("Content-Type", "").startswith("text/plain"):
        raise Refusable("content_type_wrong", "A checkpoint is sent as text/plain.")
    body = await read_body(call.request, house.body_seconds)
    found = _our_checkpoint(house, body)
    is_contradiction = await _contradicts(house, found)
    if is_contradiction:
        await house.sequencer.dispute(body, found)
    call.fields["isContradiction"] = is_contradiction
    return plain(orjson.dumps({"ok": True, "isContradiction": is_contradiction, "size": found.size}), JSON)


def _our_checkpoint(house: House, body: bytes) -> Checkpoint:
    """Return the checkpoint in `body` if our log key signed it."""
    try:
        return open_own_checkpoint(body, house.signer.log_key)
    except Malformed as error:
        raise Refusable("not_a_checkpoint", str(error)) from None


async def _contradicts(house: House, found: Checkpoint) -> bool:
    """Say whether the (size, root) is not ours. What we signed we had committed, so a larger tree is not ours."""
    if found.size > house.sequencer.confirmed.size:
        return is_contradiction(found, None)
    return is_contradiction(found, await house.reads.call(lambda reader: root_at(reader, found.size)))


# -- health and documents ----------------------------------------------------------------------------------------------


async def livez(call: Call) -> web.Response:
    """Say that the process runs."""
    return plain(b"ok\n", TEXT)


async def readyz(house: House, call: Call) -> web.Response:
    """Say whether decisions can be asked for: not while stopping, not after a Fatal."""
    if house.is_draining():
        raise Refusable("draining", "This gateway is stopping.", {"Retry-After": "5"})
    if not house.sequencer.is_ready:
        raise Refusable("recovering", "Decisions have stopped.", {"Retry-After": "5"})
    return plain(b"ready\n", TEXT)


async def file(content_type: str, body: bytes, call: Call) -> web.Response:
    """Serve bytes that stay the same while the gateway runs."""
    return plain(body, content_type)
