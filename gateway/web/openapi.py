"""The OpenAPI 3.1 document, made from the tables of actions and of entry types; nothing is listed here twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from gateway.actions import ACTIONS, Action
from gateway.core.refusal import TABLE, Retry
from gateway.web.problem import ROWS
from verifier.entries import ENTRY_TYPES, HELD_MEMBERS, body_schema, full_type, leaf_schema

VERSION = "1"
_PROBLEM = {"$ref": "#/components/responses/Problem"}
_HEADERS = {
    "Signature-Input": "RFC 9421, profile tallystick-v1",
    "Signature": "The Ed25519 signature under the same label",
    "Tallystick-Anchor": "`<origin> <size> <base64 root>` of the newest checkpoint the signer verified",
}
_BODY_HEADERS = {
    "Content-Digest": "`sha-256=:…:` of the body",
    "Idempotency-Key": "A quoted string; the same one for every retry of one intention",
}
_PREFER = {"Prefer": "`wait=N`: for how many seconds the answer may be held back (RFC 7240). It is not signed"}
_APPLIED = {"Preference-Applied": "`wait=N`: the answer was held back, for N seconds at most"}
_RETRY_AFTER = {"Retry-After": "Seconds until asking again makes sense; as `retryAfterMs`, rounded up"}
# What is answered with 202: the asker has a ticket, and comes back with it.
_WAITING = {"lease.acquire": ("wait.queued",), "wait.claim": ("wait.polled",)}


def openapi(origin: str) -> dict[str, object]:
    """Return the document for the ledger `origin`."""
    paths: dict[str, dict[str, object]] = {}
    for action in ACTIONS.values():
        paths.setdefault(action.path, {})[action.method.lower()] = _operation(action)
    paths |= _public_paths(origin)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tallystick",
            "version": VERSION,
            "description": f"Leases with signed receipts on the ledger {origin}. Normative text: docs/protocol.md.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(), "responses": {"Problem": _problem_response()}},
    }


def _operation(action: Action) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": action.name,
        "summary": action.summary,
        "description": action.description,
        "tags": [action.name.partition(".")[0]],
        "parameters": _parameters(action),
        "responses": {**_answers(action), **_refused_answers(action), "default": _PROBLEM},
        "x-tallystick-signer": action.signer,
    }
    if action.kind == "decision":
        operation["requestBody"] = _body("application/json", body_schema(action.name))
    if action.kind == "report":
        operation["requestBody"] = _body("text/plain", {"type": "string", "maxLength": 4096})
    return operation


def _parameters(action: Action) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "name": row.name,
            "in": row.place,
            "required": row.is_required,
            "description": row.meaning,
            "schema": {"type": "string", "pattern": row.pattern},
        }
        for row in action.parameters
    ]
    headers = dict(_HEADERS) if action.signer != "anyone" else {}
    if action.kind == "decision":
        headers |= _BODY_HEADERS
    is_required = action.kind == "decision"
    rows += [_header_parameter(name, text, is_required=is_required) for name, text in headers.items()]
    if action.is_held:
        rows += [_header_parameter(name, text, is_required=False) for name, text in _PREFER.items()]
    return rows


def _header_parameter(name: str, text: str, *, is_required: bool) -> dict[str, object]:
    return {"name": name, "in": "header", "required": is_required, "description": text, "schema": {"type": "string"}}


def _body(content_type: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _answers(action: Action) -> dict[str, object]:
    """Return one response per status that a success may have."""
    if action.kind != "decision":
        return {"200": _answer(action)}
    waiting = [full_type(name) for name in _WAITING.get(action.name, ())]
    done = [name for name in action.answers if name not in waiting and not _is_refusal(name)]
    text = "The decision with its receipt; its leaf is one of the types below."
    answers: dict[str, object] = {"200": _json(text, _answer_schema(done), _applied(action))}
    if waiting:
        text = "A place in line, with its receipt: nothing is granted yet."
        answers["202"] = _json(text, _answer_schema(waiting), _applied(action))
    return answers


def _is_refusal(entry_type: str) -> bool:
    return any(member.name == "error" for member in ENTRY_TYPES[entry_type].members)


def _applied(action: Action) -> Mapping[str, str]:
    return _APPLIED if action.is_held else {}


def _answer(action: Action) -> dict[str, object]:
    if action.name == "receipt.get":
        return _json("The receipt.", {"$ref": "#/components/schemas/Receipt"})
    return _json("The answer.", {"type": "object"})


def _refused_answers(action: Action) -> dict[str, object]:
    """Return one response per status that a receipted refusal may have."""
    if action.kind != "decision":
        return {}
    statuses = sorted({row.status for row in TABLE if row.is_receipted})
    text = "Refused, with a receipt, or a problem."
    leaves = [name for name in action.answers if _is_refusal(name)]
    schema = {"allOf": [{"$ref": "#/components/schemas/Refusal"}], "x-tallystick-leaves": leaves}
    content = {"application/json": {"schema": schema}, "application/problem+json": {"schema": _PROBLEM_REF}}
    answer = {"description": text, "content": content}
    later = answer | {"headers": _headers(_RETRY_AFTER)}
    return {str(status): later if status in _MAY_BE_LATER else answer for status in statuses}


_MAY_BE_LATER = (409, 429)


def _headers(rows: Mapping[str, str]) -> dict[str, object]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in rows.items()}


_PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
_NO_HEADERS: Mapping[str, str] = {}


def _answer_schema(leaves: Sequence[str]) -> dict[str, object]:
    return {"allOf": [{"$ref": "#/components/schemas/Answer"}], "x-tallystick-leaves": list(leaves)}


def _json(text: str, schema: Mapping[str, object], headers: Mapping[str, str] = _NO_HEADERS) -> dict[str, object]:
    answer: dict[str, object] = {"description": text, "content": {"application/json": {"schema": schema}}}
    return answer | ({"headers": _headers(headers)} if headers else {})


def _problem_response() -> dict[str, object]:
    return {
        "description": "Nothing was decided (RFC 9457).",
        "content": {"application/problem+json": {"schema": _PROBLEM_REF}},
    }


def _schemas() -> dict[str, object]:
    text, number = {"type": "string"}, {"type": "integer"}
    leaves = {f"Leaf.{row.name}": leaf_schema(row.type) for row in ENTRY_TYPES.values()}
    signature = {"type": "object", "required": ["keyid", "sig"], "properties": {"keyid": text, "sig": text}}
    receipt = {
        "type": "object",
        "additionalProperties": False,
        "required": ["payloadType", "payload", "signatures", "proof"],
        "properties": {
            "payloadType": {"const": "application/vnd.tallystick.leaf.v1+json"},
            "payload": {"type": "string", "contentEncoding": "base64"},
            "signatures": {"type": "array", "minItems": 1, "maxItems": 1, "items": signature},
            "proof": text,
        },
    }
    answer = {
        "type": "object",
        "required": ["ok", "receipt"],
        "properties": {"ok": {"const": True}, "receipt": {"$ref": "#/components/schemas/Receipt"}},
    }
    codes = sorted({*ROWS, *(row.name for row in TABLE if not row.is_receipted)})
    problem = {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "requestId", "advice", "retry"],
        "properties": {
            "type": text,
            "title": text,
            "status": number,
            "detail": text,
            "code": {"type": "string", "enum": codes},
            "requestId": text,
            "advice": text,
            "retry": {"type": "string", "enum": list(get_args(Retry))},
            "nowMs": number,
            "number": number,
            "seq": number,
        },
    }
    return {"Receipt": receipt, "Answer": answer, "Refusal": _refusal_schema(), "Problem": problem, **leaves}


def _refusal_schema() -> dict[str, object]:
    """Return what a refusal with a receipt says; the members beyond the first are those of its leaf."""
    told = sorted({name for row in HELD_MEMBERS.values() for names in row for name in names} | {"leaseId", "ticketId"})
    members = [leaf_schema(row.type)["properties"] for row in ENTRY_TYPES.values()]
    kinds = {name: kind for known in members if isinstance(known, dict) for name, kind in known.items()}
    properties: dict[str, object] = {
        "ok": {"const": False},
        "error": {"type": "string", "enum": sorted(row.name for row in TABLE if row.is_receipted)},
        "number": {"type": "integer"},
        "message": {"type": "string"},
        "retry": {"type": "string", "enum": list(get_args(Retry))},
        "receipt": {"$ref": "#/components/schemas/Receipt"},
    }
    required = list(properties)
    return {
        "type": "object",
        "required": required,
        "properties": {**{name: kinds[name] for name in told}, **properties},
    }


def _public_paths(origin: str) -> dict[str, dict[str, object]]:
    prefix = origin_prefix(origin)
    rows = [
        (f"{prefix}/checkpoint", "ledger.checkpoint", "The newest signed checkpoint", "text/plain"),
        ("/.well-known/tallystick-keys", "keys.document", "The key document, signed by the root", "text/plain"),
        ("/.well-known/tallystick-policy.txt", "keys.policy", "The same keys as a C2SP policy", "text/plain"),
        ("/.well-known/jwks.json", "keys.jwks", "The same keys as JWKS", "application/json"),
        ("/.well-known/did.json", "keys.did", "The same keys as a DID document", "application/json"),
        ("/openapi.json", "openapi", "This document", "application/json"),
        ("/livez", "livez", "Whether the process runs", "text/plain"),
        ("/readyz", "readyz", "Whether decisions can be asked for", "text/plain"),
    ]
    paths: dict[str, dict[str, object]] = {path: {"get": _public_read(*row)} for path, *row in rows}
    tile = f"{prefix}/tile/{{level}}/{{index}}"
    text = "A tile of hashes, or with the level `entries` a bundle"
    read = _public_read("ledger.tile", text, "application/octet-stream")
    read["parameters"] = [
        {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}
        for name, text in (("level", "0 to 6, or `entries`"), ("index", "As `x001/234`, with `.p/17` for a part"))
    ]
    return {**paths, tile: {"get": read}}


def _public_read(name: str, text: str, content_type: str) -> dict[str, object]:
    content = {content_type: {"schema": {"type": "string"}}}
    answer = {"description": text, "content": content}
    return {"operationId": name, "summary": text, "responses": {"200": answer, "default": _PROBLEM}}


def origin_prefix(origin: str) -> str:
    """Return the path below which the ledger's public files lie: what follows the host in its origin."""
    _, slash, rest = origin.partition("/")
    return slash + rest
