"""The OpenAPI 3.1 document, made from the tables of actions and of entry types; nothing is listed here twice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from gateway.actions import ACTIONS, Action
from gateway.core.refusal import TABLE, Retry
from gateway.web.problem import ROWS
from verifier.entries import ENTRY_TYPES, body_schema, leaf_schema

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
        "responses": {"200": _answer(action), **_refused_answers(action), "default": _PROBLEM},
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
    rows += [
        {"name": name, "in": "header", "required": is_required, "description": text, "schema": {"type": "string"}}
        for name, text in headers.items()
    ]
    return rows


def _body(content_type: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {"required": True, "content": {content_type: {"schema": schema}}}


def _answer(action: Action) -> dict[str, object]:
    if action.kind == "decision":
        return _json("The decision with its receipt; its leaf is one of the types below.", _answer_schema(action))
    if action.name == "receipt.get":
        return _json("The receipt.", {"$ref": "#/components/schemas/Receipt"})
    return _json("The answer.", {"type": "object"})


def _refused_answers(action: Action) -> dict[str, object]:
    """Return one response per status that a receipted refusal may have."""
    if action.kind != "decision":
        return {}
    statuses = sorted({row.status for row in TABLE if row.is_receipted})
    text = "Refused, with a receipt (`ok` is false), or a problem."
    schema = {"$ref": "#/components/schemas/Answer"}
    content = {"application/json": {"schema": schema}, "application/problem+json": {"schema": _PROBLEM_REF}}
    return {str(status): {"description": text, "content": content} for status in statuses}


_PROBLEM_REF = {"$ref": "#/components/schemas/Problem"}


def _answer_schema(action: Action) -> dict[str, object]:
    return {"allOf": [{"$ref": "#/components/schemas/Answer"}], "x-tallystick-leaves": list(action.answers)}


def _json(text: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


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
        "properties": {
            "ok": {"type": "boolean"},
            "error": text,
            "message": text,
            "receipt": {"$ref": "#/components/schemas/Receipt"},
        },
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
    return {"Receipt": receipt, "Answer": answer, "Problem": problem, **leaves}


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
