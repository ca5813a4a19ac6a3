"""One handler per route: it reads what the route needs, asks the room below, and writes bytes.

No rule of the ledger lives here. A decision goes to the desk as it arrived; a read is first allowed (access.py), then
answered from the read thread or from memory (pictures.py); a report (reports.py) is believed as far as our own log key
signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import orjson

from gateway.actions import ACTIONS, Action
from gateway.core.intake import Rejection
from gateway.errors import Damaged
from gateway.ledger.parking import PARK_MS_MAX, Draining
from gateway.service import Answered
from gateway.web.access import bearer_token, check_own, check_unlimited, raw_request, reader_of
from gateway.web.connection import Fields, Reply
from gateway.web.house import BYTES, FOREVER, JSON, PRIVATE, TEXT, House, receipt_at
from gateway.web.mcp import mcp_routes
from gateway.web.openapi import openapi, origin_prefix
from gateway.web.pictures import (
    agents,
    apikeys,
    approvals,
    keys,
    leases,
    operators,
    rules,
    schemes,
    sessions,
    trust,
    usage,
    wait,
)
from gateway.web.prefer import preferred_wait_s
from gateway.web.problem import STORE_ROWS, Refusable
from gateway.web.reads import bundle_bytes, tile_bytes
from gateway.web.reports import report
from gateway.web.routes import Call, Handler, Route, plain
from gateway.web.tiles import Tile, parse_tile_path, size_of
from gateway.web.witnessed import consistency, witnessed
from verifier.entries import body_bytes_max
from verifier.wire import JsonObject, Malformed, decode_decimal, parse_json

_REPLAYED = ("Idempotency-Replayed", "true")
_ENROLMENT_BYTES_MAX = 1_024
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")
_SPEAKS_FOR_SOMEBODY = ("Signature", "Signature-Input", "Authorization")
_NOBODY_ASKS = (
    "headers Signature-Input and Signature are both needed; or send the API key of an agent whose key this gateway "
    "keeps, as Authorization: Bearer tsk_live_…"
)


def routes(house: House) -> tuple[Route, ...]:
    """Return every route of the gateway: the rows of the action table, then what stands below the origin and apart."""
    handlers: Mapping[str, Handler] = {
        "coordination.wait": partial(wait, house),
        "lease.list": partial(leases, house),
        "agent.list": partial(agents, house),
        "agent.enrol": partial(enrol, house),
        "apikey.list": partial(apikeys, house),
        "operator.list": partial(operators, house),
        "key.list": partial(keys, house),
        "session.list": partial(sessions, house),
        "trust.get": partial(trust, house),
        "scheme.list": partial(schemes, house),
        "usage.get": partial(usage, house),
        "approval.list": partial(approvals, house),
        "rules.show": partial(rules, house),
        "receipt.get": partial(receipt, house),
        "ledger.consistency": partial(consistency, house),
        "ledger.dispute": partial(report, house),
        "ledger.seen": partial(report, house),
    }
    rows = [_action_route(house, action, handlers) for action in ACTIONS.values()]
    prefix = origin_prefix(house.ledger.origin)
    document = orjson.dumps(openapi(house.ledger.origin))
    files = {**house.published, "/openapi.json": (JSON, lambda: document)}
    return (
        *rows,
        *mcp_routes(house),
        Route("ledger.checkpoint", "GET", f"{prefix}/checkpoint", partial(checkpoint, house)),
        Route("ledger.witnessed", "GET", f"{prefix}/witnessed", partial(witnessed, house)),
        Route("ledger.tile", "GET", f"{prefix}/tile/", partial(tile, house), is_prefix=True),
        Route("livez", "GET", "/livez", livez),
        Route("readyz", "GET", "/readyz", partial(readyz, house)),
        *(Route("published", "GET", path, partial(file, kind, newest)) for path, (kind, newest) in files.items()),
    )


def _action_route(house: House, action: Action, handlers: Mapping[str, Handler]) -> Route:
    if action.kind == "decision":
        held_seconds = PARK_MS_MAX / 1_000 if action.is_held else 0.0
        return Route(action.name, action.method, action.path, partial(decide, house, action), held_seconds=held_seconds)
    fixed, brace, _ = action.path.partition("{")
    return Route(action.name, action.method, fixed, handlers[action.name], is_prefix=bool(brace))


# -- decisions ---------------------------------------------------------------------------------------------------------


async def decide(house: House, action: Action, call: Call) -> Reply:
    """Read the body once, let the desk decide, write its bytes.

    A claim waits at the desk as long as its client wishes, but not longer than its connection: it is the client's eyes.
    """
    if house.is_draining():
        raise Draining
    body = await call.request.read(house.body_seconds)
    wait_ms = 0
    if action.is_held:
        wait_ms = 1_000 * preferred_wait_s(call.request.raw_headers)
        call.request.is_abandonable = True
    token = bearer_token(call)
    if token is None:
        _check_asked_by_somebody(call, action)
        answered = await house.desk.decide(raw_request(call, body), action, wait_ms=wait_ms)
    else:
        key = call.request.headers.get("Idempotency-Key")
        members = _members(call, body, body_bytes_max(action.name))
        answered = await house.bearer.decide(token, action, members, idempotency_key=key, wait_ms=wait_ms)
    return _answer(house, call, answered)


def _check_asked_by_somebody(call: Call, action: Action) -> None:
    """Tell who sends neither signature nor API key of both; what operators and sessions alone ask is always signed."""
    headers = call.request.headers
    if action.signer == "agent" and not any(name in headers for name in _SPEAKS_FOR_SOMEBODY):
        raise Rejection("signature_missing", _NOBODY_ASKS)


async def enrol(house: House, call: Call) -> Reply:
    """Enrol a key of the caller's own in the name of an API key, which comes this once and signs nothing."""
    if house.is_draining():
        raise Draining
    body = await call.request.read(house.body_seconds)
    token = bearer_token(call)
    if token is None:
        raise Rejection("token_invalid", "this is asked with an API key: Authorization: Bearer tsk_…")
    return _answer(house, call, await house.bearer.enrol(token, _members(call, body, _ENROLMENT_BYTES_MAX)))


def _members(call: Call, body: bytes, bytes_max: int) -> JsonObject:
    """Return the members of a body that nobody signed."""
    kind = call.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != JSON:
        raise Refusable("content_type_wrong", f"The body is sent as {JSON}.")
    if len(body) > bytes_max:
        raise Rejection("body_too_large", f"the body has {len(body)} bytes, at most {bytes_max} are allowed")
    try:
        return parse_json(body, bytes_max=bytes_max)
    except Malformed as error:
        raise Rejection("body_malformed", str(error)) from error


def _answer(house: House, call: Call, answered: Answered) -> Reply:
    call.fields["seq"] = answered.seq
    call.fields["actor"] = answered.actor
    call.code = answered.error
    fields = (*house.answer_fields[answered.policy], *_fields(answered))
    allowance = f'RateLimit: "{answered.policy}";r={answered.left}\r\n'
    return Reply(answered.status, answered.body, fields, allowance=allowance)


def _fields(answered: Answered) -> Fields:
    """Return the further headers of an answer; nearly every one has none."""
    fields: Fields = (_REPLAYED,) if answered.is_replay else ()
    if answered.retry_after_ms is not None:
        fields = (*fields, ("Retry-After", _seconds(answered.retry_after_ms)))
    if answered.held_ms:
        fields = (*fields, ("Preference-Applied", f"wait={_seconds(answered.held_ms)}"))
    return fields


def _seconds(ms: int) -> str:
    return str(-(-ms // 1_000))


# -- files of the log --------------------------------------------------------------------------------------------------


async def checkpoint(house: House, call: Call) -> Reply:
    """Serve the newest checkpoint; on every ledger to everybody."""
    return plain(house.sequencer.confirmed.note, TEXT)


async def tile(house: House, call: Call) -> Reply:
    """Serve a tile of hashes to everybody, or an entry bundle to whoever may read the entries."""
    found = parse_tile_path(f"tile/{call.rest}")
    if found is None:
        raise Refusable("not_found", "Not the path of a tile.")
    if found.level is None:
        check_unlimited(house, await reader_of(house, call))
    if not await house.news.reached(size_of(found)):
        raise Refusable("not_found", "The ledger does not reach that far.")
    if house.is_denied(found):
        raise Refusable("bundle_pruned", "The ledger's retention policy says that these entries are not served.")
    read = bundle_bytes if found.level is None else tile_bytes
    body = await house.reads.call(lambda reader: read(reader, found))
    return plain(body, BYTES, Cache_Control=_tile_cache(house, found))


def _tile_cache(house: House, found: Tile) -> str:
    if found.level is None and not house.ledger.is_public:
        return PRIVATE
    return FOREVER if found.is_full else "no-store"


async def receipt(house: House, call: Call) -> Reply:
    """Serve the receipt of one entry with its proof in the newest checkpoint, if possible a witnessed one."""
    reader = await reader_of(house, call)
    try:
        seq = decode_decimal(call.rest)
    except Malformed:
        raise Refusable("not_found", "A receipt has a decimal number.") from None
    body = await receipt_at(house, seq)
    check_own(house, reader, body)
    return plain(body, JSON, Cache_Control=house.cache)


# -- health and documents ----------------------------------------------------------------------------------------------


async def livez(call: Call) -> Reply:
    """Say that the process runs."""
    return plain(b"ok\n", TEXT)


async def readyz(house: House, call: Call) -> Reply:
    """Say whether decisions can be asked for: not while stopping, not after a Fatal, not while the store is unfit,
    silent, or kept by another node. Who asks on this machine is told what an operator has to change."""
    if house.is_draining():
        raise Refusable("draining", "This gateway is stopping.", {"Retry-After": "5"})
    if house.sequencer.damage:
        raise Damaged(house.sequencer.damage)
    if house.sequencer.unfit is not None:
        detail = house.sequencer.unfit.text if _is_from_here(call) else STORE_ROWS["store_unfit"]
        raise Refusable("store_unfit", detail, {"Retry-After": "5"})
    if house.sequencer.is_stalled:
        raise Refusable("store_stalled", STORE_ROWS["store_stalled"], {"Retry-After": "5"})
    if house.sequencer.is_away:
        raise Refusable("store_unreachable", STORE_ROWS["store_unreachable"], {"Retry-After": "5"})
    if house.sequencer.is_kept_out:
        raise Refusable("busy", "The head of the ledger could not be taken for seconds.", {"Retry-After": "5"})
    if not house.sequencer.is_ready:
        raise Refusable("recovering", "Decisions have stopped.", {"Retry-After": "5"})
    return plain(b"ready\n", TEXT)


def _is_from_here(call: Call) -> bool:
    """Say whether a request comes from this machine, and through no proxy on it."""
    headers = call.request.headers
    return call.request.remote in ("127.0.0.1", "::1") and not any(name in headers for name in _FORWARDED)


async def file(content_type: str, newest: Callable[[], bytes], call: Call) -> Reply:
    """Serve a published file as it is now."""
    return plain(newest(), content_type)
