"""What leaves the house: a receipt, and the whole answer around it.

Pure. First answer and replay are made by the same function from the same stored bytes (leaf, signature, checkpoint
as first committed, path at that checkpoint's size), so they are equal, after a restart too. Everything an answer says
beside its receipt is read out of the leaf (core/facts.py), for convenience; clients take facts from the leaf only.

A batch of commands has one checkpoint, so its answer has one too: the leaves, signatures and paths of its entries stand
side by side, the header's first, and a client cuts the receipt of one command out of them. Such a receipt carries the
header as well, which holds the request that was signed. Source: docs/protocol.md 14, 31.5, 31.6.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import orjson

from gateway.core.facts import facts_of, result_of
from verifier.entries import full_type
from verifier.proof import Proof, encode_proof
from verifier.receipt import PAYLOAD_TYPE
from verifier.wire import JsonObject, JsonValue

_HEADER_TYPE = full_type("batch.received")
_HEADER_MARK = _HEADER_TYPE.encode()

Path: TypeAlias = Sequence[bytes]


class Proven(NamedTuple):
    """An entry as it leaves the house: its leaf, our signature over it, and its path in the tree of some checkpoint."""

    leaf: bytes
    signature: bytes
    path: tuple[bytes, ...]


def count_of(leaf: bytes) -> int:
    """Return how many entries of commands follow a batch's header; 0 for every other entry."""
    value: JsonObject = orjson.loads(leaf) if _HEADER_MARK in leaf else {}
    count = value["count"] if value.get("type") == _HEADER_TYPE else 0
    assert isinstance(count, int), "the table says so"
    return count


def header_of(leaf: bytes) -> int | None:
    """Return the number of the header of the batch that an entry is a command of; None for every other entry."""
    request = orjson.loads(leaf).get("request")
    header = request.get("batch") if isinstance(request, dict) else None
    return header if isinstance(header, int) else None


def render(
    leaf: bytes,
    signature: bytes,
    checkpoint: bytes,
    path: Path,
    *,
    key_id: str,
    header: tuple[bytes, Path] | None = None,
) -> bytes:
    """Return the receipt file: exactly the member `receipt` of an answer.

    A DSSE envelope over the leaf, with a C2SP tlog-proof beside the signature. `path` proves the leaf in the tree of
    the note `checkpoint`; `key_id` names the key that made `signature`. An entry of a batch's command comes with the
    leaf of the batch's `header`, and its path in the same tree.
    """
    receipt = _render(orjson.loads(leaf)["seq"], leaf, signature, checkpoint, path, key_id)
    if header is None:
        return receipt
    return b'%b,"batch":{"leaf":%b,"path":%b}}' % (receipt[:-1], _base64s(header[:1])[1:-1], _base64s(header[1]))


def answer(leaf: bytes, signature: bytes, checkpoint: bytes, path: Path, *, key_id: str) -> bytes:
    """Return the body of the HTTP answer to the request that caused `leaf`."""
    value: JsonObject = orjson.loads(leaf)
    receipt = _render(value["seq"], leaf, signature, checkpoint, path, key_id)
    return b'%b,"receipt":%b}' % (orjson.dumps(facts_of(value))[:-1], receipt)


def batch_answer(entries: Sequence[Proven], checkpoint: bytes, *, key_id: str) -> bytes:
    """Return the body of the HTTP answer to a batch: `entries` are its header and the entry of each command, in order.

    A bare batch gets no direct signatures: its receipts rest on the checkpoint alone.
    """
    header: JsonObject = orjson.loads(entries[0].leaf)
    results = [result_of(orjson.loads(entry.leaf)) for entry in entries[1:]]
    is_ok = all(result["ok"] for result in results)
    said = orjson.dumps({"ok": is_ok, "results": results})
    around = orjson.dumps({"checkpoint": checkpoint.decode(), "index": header["seq"], "keyid": key_id})
    leaves = _base64s([entry.leaf for entry in entries])
    signatures = _base64s([] if header.get("isBare") else [entry.signature for entry in entries])
    paths = b",".join(_base64s(entry.path) for entry in entries)
    batch = b'%b,"leaves":%b,"signatures":%b,"paths":[%b]}' % (around[:-1], leaves, signatures, paths)
    return b'%b,"batch":%b}' % (said[:-1], batch)


def _base64s(values: Sequence[bytes]) -> bytes:
    """Return a JSON list of base64 texts."""
    return b"[%b]" % b",".join(b'"%b"' % b2a_base64(value, newline=False) for value in values)


def _render(seq: JsonValue, leaf: bytes, signature: bytes, checkpoint: bytes, path: Path, key_id: str) -> bytes:
    """Return the receipt's JSON. Base64 needs no escape, and what surrounds the path is made once for each note."""
    assert isinstance(seq, int), "a leaf carries its number"
    before, after = _proof_around(checkpoint)
    return b'{"payloadType":"%b","payload":"%b","signatures":[{"keyid":"%b","sig":"%b"}],"proof":"%b%d\\n%b%b"}' % (
        PAYLOAD_TYPE.encode(),
        b2a_base64(leaf, newline=False),
        key_id.encode(),
        b2a_base64(signature, newline=False),
        before,
        seq,
        b"".join(map(b2a_base64, path)).replace(b"\n", b"\\n"),
        after,
    )


@lru_cache(maxsize=16)
def _proof_around(checkpoint: bytes) -> tuple[bytes, bytes]:
    """Return what stands before the index and after the path in every proof to this note, escaped for JSON.

    A batch has one note, so the verifier's encoder runs once for it and not once for each receipt.
    """
    text = encode_proof(Proof(0, (), checkpoint)).decode()
    before, _, after = text.partition("0\n")
    return orjson.dumps(before)[1:-1], orjson.dumps(after)[1:-1]
