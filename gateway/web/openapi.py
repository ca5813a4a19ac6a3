"""The OpenAPI 3.1 document, made from the tables of actions and of entry types; nothing is listed here twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from gateway.actions import ACTIONS, Action
from gateway.bearer import ENROLMENT_MEMBERS
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
_ALLOWANCE = {
    "RateLimit-Policy": '`"decisions";q=…;w=…`: how many decisions are free at once, and in how many seconds they are '
    'again; a trial agent has `"trial"`: its entries in all, and how long it lasts',
    "RateLimit": '`"decisions";r=…`, or `"trial";r=…`: how many are left',
}
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
        "components": {
            "schemas": _schemas(),
            "responses": {"Problem": _problem_response()},
            "securitySchemes": _SECURITY_SCHEMES,
        },
    }


_SECURITY_SCHEMES = {
    "signature": {"type": "apiKey", "in": "header", "name": "Signature", "description": "RFC 9421, by one's own key"},
    "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "tsk_live_… or tsk_trial_…"},
}
_BY_SIGNATURE: dict[str, list[str]] = {"signature": []}
_BY_TOKEN: dict[str, list[str]] = {"bearer": []}
_BY_NOBODY: dict[str, list[str]] = {}
# Who may ask, in the order of x-tallystick-signer. On a public ledger reads need nothing.
_SECURITY: Mapping[str, list[dict[str, list[str]]]] = {
    "agent": [_BY_SIGNATURE, _BY_TOKEN],
    "session": [_BY_SIGNATURE],
    "operator": [_BY_SIGNATURE],
    "reader": [_BY_SIGNATURE, _BY_TOKEN, _BY_NOBODY],
    "bearer": [_BY_TOKEN],
    "anyone": [_BY_NOBODY],
}


def _operation(action: Action) -> dict[str, object]:
    operation: dict[str, object] = {
        "operationId": action.name,
        "summary": action.summary,
        "description": action.description,
        "tags": [action.name.partition(".")[0]],
        "parameters": _parameters(action),
        "responses": {**_answers(action), **_refused_answers(action), "default": _PROBLEM},
        "security": _SECURITY[action.signer],
        "x-tallystick-signer": action.signer,
    }
    if action.kind == "enrolment":
        operation["requestBody"] = _body("application/json", _enrolment_schema())
    if action.kind == "decision":
        operation["requestBody"] = _body("application/json", body_schema(action.name))
    if action.kind == "report":
        operation["requestBody"] = _body("text/plain", {"type": "string", "maxLength": 20480})
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
    headers = dict(_HEADERS) if _BY_SIGNATURE in _SECURITY[action.signer] else {}
    if action.kind == "decision":
        headers |= _BODY_HEADERS
    is_required = _SECURITY[action.signer] == [_BY_SIGNATURE]
    rows += [_header_parameter(name, text, is_required=is_required) for name, text in headers.items()]
    if action.is_held:
        rows += [_header_parameter(name, text, is_required=False) for name, text in _PREFER.items()]
    return rows


def _header_parameter(name: str, text: str, *, is_required: bool) -> dict[str, object]:
    return {"name": name, "in": "header", "required": is_required, "description": text, "schema": {"type": "string"}}


def _body(content_type: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _enrolment_schema() -> dict[str, object]:
    """Return what an enrolment by API key says."""
    properties = body_schema("agent.add")["properties"]
    assert isinstance(properties, dict), "a body is an object"
    said = {name: properties[name] for name in ENROLMENT_MEMBERS}
    return {"type": "object", "additionalProperties": False, "required": ["agent", "proof"], "properties": said}


def _answers(action: Action) -> dict[str, object]:
    """Return one response per status that a success may have."""
    if action.kind not in ("decision", "enrolment"):
        return {"200": _answer(action)}
    waiting = [full_type(name) for name in _WAITING.get(action.name, ())]
    done = [name for name in _leaves(action) if name not in waiting and not _is_refusal(name)]
    headers = {**_ALLOWANCE, **_applied(action)}
    text = "The decision with its receipt; its leaf is one of the types below."
    answers: dict[str, object] = {"200": _json(text, _answer_schema(done, action), headers)}
    if waiting:
        text = "A place in line, with its receipt: nothing is granted yet."
        answers["202"] = _json(text, _answer_schema(waiting, action), headers)
    return answers


def _leaves(action: Action) -> Sequence[str]:
    """Return the entry types of an action's answers; the gateway answers an enrolment with what it asked for."""
    return ACTIONS["agent.add"].answers if action.kind == "enrolment" else action.answers


def _is_refusal(entry_type: str) -> bool:
    return any(member.name == "error" for member in ENTRY_TYPES[entry_type].members)


def _applied(action: Action) -> Mapping[str, str]:
    return _APPLIED if action.is_held else {}


def _answer(action: Action) -> dict[str, object]:
    if action.name == "receipt.get":
        return _json("The receipt.", {"$ref": "#/components/schemas/Receipt"})
    if action.name == "ledger.consistency":
        return {"description": "The proof.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return _json("The answer.", {"type": "object"})


def _refused_answers(action: Action) -> dict[str, object]:
    """Return one response per status that a receipted refusal may have."""
    leaves = [name for name in _leaves(action) if _is_refusal(name)]
    if not leaves:  # a session that may not open leaves no entry
        return {}
    is_admission = action.name == "coordination.admit"  # what is not admitted is forbidden, whatever the reason
    statuses = [_FORBIDDEN] if is_admission else sorted({row.status for row in TABLE if row.is_receipted})
    text = "Refused, with a receipt, or a problem."
    said = ["Refusal", "Ruled"] if is_admission else ["Refusal"]
    schema = {"allOf": [{"$ref": f"#/components/schemas/{name}"} for name in said], "x-tallystick-leaves": leaves}
    content = {"application/json": {"schema": schema}, "application/problem+json": {"schema": _PROBLEM_REF}}
    answer = {"description": text, "content": content, "headers": _headers(_ALLOWANCE)}
    later = answer | {"headers": _headers({**_ALLOWANCE, **_RETRY_AFTER})}
    return {str(status): later if status in _MAY_BE_LATER else answer for status in statuses}


_MAY_BE_LATER = (409, 429)
_FORBIDDEN = 403


def _headers(rows: Mapping[str, str]) -> dict[str, object]:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in rows.items()}


_PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}
_NO_HEADERS: Mapping[str, str] = {}


def _answer_schema(leaves: Sequence[str], action: Action) -> dict[str, object]:
    kinds = _SAID.get(action.name, ("Answer",))
    return {"allOf": [{"$ref": f"#/components/schemas/{kind}"} for kind in kinds], "x-tallystick-leaves": list(leaves)}


_SAID: Mapping[str, tuple[str, ...]] = {"batch.submit": ("BatchAnswer",), "coordination.admit": ("Answer", "Ruled")}


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
            "signatures": {"type": "array", "maxItems": 1, "items": signature},
            "proof": text,
            "batch": {
                "type": "object",
                "additionalProperties": False,
                "required": ["leaf", "path"],
                "properties": {"leaf": _BASE64, "path": {"type": "array", "items": _BASE64}},
            },
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
            "left": number,
            "violated-policies": {"type": "array", "items": text},
        },
    }
    return {
        "Receipt": receipt,
        "Answer": answer,
        "BatchAnswer": _batch_schema(),
        "Refusal": _refusal_schema(),
        "Ruled": _ruled_schema(),
        "Problem": problem,
        **leaves,
    }


_BASE64: Mapping[str, object] = {"type": "string", "contentEncoding": "base64"}


def _batch_schema() -> dict[str, object]:
    """Return the answer to a batch: what a single answer would say of each command, and one proof for all of them."""
    base64s = {"type": "array", "items": _BASE64}
    result = {
        "type": "object",
        "required": ["ok", "status", "seq"],
        "properties": {"ok": {"type": "boolean"}, "status": {"type": "integer"}, "seq": {"type": "integer"}},
    }
    proof = {
        "checkpoint": {"type": "string"},
        "index": {"type": "integer"},
        "keyid": {"type": "string"},
        "leaves": base64s,
        "signatures": base64s,
        "paths": {"type": "array", "items": base64s},
    }
    return {
        "type": "object",
        "required": ["ok", "results", "batch"],
        "properties": {
            "ok": {"type": "boolean"},
            "results": {"type": "array", "items": result},
            "batch": {"type": "object", "required": list(proof), "properties": proof},
        },
    }


def _ruled_schema() -> dict[str, object]:
    """Return what an admission and a denial say alike: whether it may be done, and what the rules said of it."""
    allowed = leaf_schema(full_type("admission.allowed"))["properties"]
    assert isinstance(allowed, dict), "a leaf is an object"
    texts = {"type": "array", "items": {"type": "string"}}
    properties: dict[str, object] = {
        "allowed": {"type": "boolean"},
        "isPoliced": {"type": "boolean", "description": "Whether a rule set decided, and did not only watch"},
        "matched": texts,
        "obligations": texts,
        **{name: allowed[name] for name in ("rules", "facts", "schemes")},
    }
    return {"type": "object", "required": ["allowed", "isPoliced", "matched", "obligations"], "properties": properties}


def _refusal_schema() -> dict[str, object]:
    """Return what a refusal with a receipt says; the members beyond the first are those of its leaf."""
    told = sorted({name for row in HELD_MEMBERS.values() for names in row for name in names} | _TOLD_BESIDE)
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


_TOLD_BESIDE = frozenset({"leaseId", "ticketId", "currentToken", "askId", "rulesVersion"})


def _public_paths(origin: str) -> dict[str, dict[str, object]]:
    prefix = origin_prefix(origin)
    rows = [
        (f"{prefix}/checkpoint", "ledger.checkpoint", "The newest signed checkpoint", "text/plain"),
        (f"{prefix}/witnessed", "ledger.witnessed", "The newest checkpoint that witnesses cosigned", "text/plain"),
        ("/.well-known/tallystick-keys", "keys.document", "The key document, signed by the root", "text/plain"),
        ("/.well-known/tallystick-policy.txt", "keys.policy", "Log keys and witnesses as a C2SP policy", "text/plain"),
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
