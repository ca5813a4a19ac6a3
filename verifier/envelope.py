"""The DSSE envelope of a receipt: ladder steps 1 and 2. Source: docs/protocol.md 14.1, 14.2, 31.5 (batches)."""

from __future__ import annotations

from dataclasses import dataclass

from verifier import wire
from verifier.merkle import HASH_BYTES
from verifier.wire import JsonObject, JsonValue, Malformed, decode_base64

PAYLOAD_TYPE = "application/vnd.tallystick.leaf.v1+json"
_MEMBERS = {"payloadType", "payload", "signatures", "proof"}


class TooLarge(Malformed):
    """Step 1: a part of the receipt is above its bound."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a receipt of a command has of its batch, *unverified*: the leaf of `batch.received`, and its path."""

    leaf: bytes
    path: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a receipt, *unverified*; `proof` is the text of a C2SP tlog-proof.

    `signature` is keyid and 64 bytes; None where the answer to a batch left it out. `header` is there for a command.
    """

    leaf: bytes
    signature: tuple[str, bytes] | None
    proof: bytes
    header: Header | None


def pre_authentication(leaf: bytes) -> bytes:
    """Return the bytes that a receipt key signs: the DSSE PAE of the leaf."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode("ascii"), len(leaf), leaf)


def open_envelope(unverified_bytes: bytes) -> Envelope:
    """Return the parts of a receipt: exactly the members, exactly one signature. Malformed; TooLarge above a bound.

    Only a receipt with `batch` may come without its signature.
    """
    _check_size("receipt", len(unverified_bytes), wire.RECEIPT_BYTES_MAX)
    envelope = wire.parse_json(unverified_bytes, bytes_max=wire.RECEIPT_BYTES_MAX)
    if envelope.keys() - {"batch"} != _MEMBERS or envelope["payloadType"] != PAYLOAD_TYPE:
        raise Malformed(
            f"a receipt has exactly payloadType ({PAYLOAD_TYPE}), payload, signatures, proof; perhaps batch"
        )
    leaf, proof = decode_base64(_text(envelope["payload"])), _text(envelope["proof"]).encode("utf-8")
    _check_size("leaf", len(leaf), wire.LEAF_BYTES_MAX)
    _check_size("proof", len(proof), wire.PROOF_BYTES_MAX)
    header = _header(envelope["batch"]) if "batch" in envelope else None
    return Envelope(leaf, _signature(envelope), proof, header)


def _signature(envelope: JsonObject) -> tuple[str, bytes] | None:
    signatures = envelope["signatures"]
    if signatures == [] and "batch" in envelope:
        return None
    row: JsonValue = signatures[0] if isinstance(signatures, list) and len(signatures) == 1 else None
    if not isinstance(row, dict) or row.keys() != {"keyid", "sig"}:
        raise Malformed("signatures: exactly one, with exactly keyid and sig; none at all only with batch")
    return _text(row["keyid"]), decode_base64(_text(row["sig"]), 64)


def _header(value: JsonValue) -> Header:
    path = value.get("path") if isinstance(value, dict) else None
    if not isinstance(value, dict) or value.keys() != {"leaf", "path"} or not isinstance(path, list) or len(path) > 63:
        raise Malformed("batch: an object with exactly leaf and path, a list of at most 63 hashes")
    leaf = decode_base64(_text(value["leaf"]))
    _check_size("leaf of the batch", len(leaf), wire.LEAF_BYTES_MAX)
    return Header(leaf, tuple(decode_base64(_text(part), HASH_BYTES) for part in path))


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise Malformed("payload, proof, keyid, sig, and in batch leaf and the parts of path are strings")
    return value


def _check_size(part: str, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise TooLarge(f"the {part} has {size} bytes, at most {bytes_max} are allowed")
