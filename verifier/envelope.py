"""The DSSE envelope of a receipt: ladder steps 1 and 2. Source: docs/protocol.md 14.1, 14.2."""

from __future__ import annotations

from dataclasses import dataclass

from verifier import wire
from verifier.wire import JsonValue, Malformed, decode_base64

PAYLOAD_TYPE = "application/vnd.tallystick.leaf.v1+json"
_MEMBERS = {"payloadType", "payload", "signatures", "proof"}


class TooLarge(Malformed):
    """Step 1: a part of the receipt is above its bound."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of a receipt, *unverified*; `proof` is the text of a C2SP tlog-proof."""

    leaf: bytes
    keyid: str
    signature: bytes
    proof: bytes


def pre_authentication(leaf: bytes) -> bytes:
    """Return the bytes that a receipt key signs: the DSSE PAE of the leaf."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode("ascii"), len(leaf), leaf)


def open_envelope(unverified_bytes: bytes) -> Envelope:
    """Return the parts of a receipt: exactly the members, exactly one signature. Malformed; TooLarge above a bound."""
    _check_size("receipt", len(unverified_bytes), wire.RECEIPT_BYTES_MAX)
    envelope = wire.parse_json(unverified_bytes, bytes_max=wire.RECEIPT_BYTES_MAX)
    if envelope.keys() != _MEMBERS or envelope["payloadType"] != PAYLOAD_TYPE:
        raise Malformed(f"a receipt has exactly payloadType ({PAYLOAD_TYPE}), payload, signatures and proof")
    signatures = envelope["signatures"]
    row: JsonValue = signatures[0] if isinstance(signatures, list) and len(signatures) == 1 else None
    if not isinstance(row, dict) or row.keys() != {"keyid", "sig"}:
        raise Malformed("signatures: exactly one, with exactly keyid and sig")
    leaf, proof = decode_base64(_text(envelope["payload"])), _text(envelope["proof"]).encode("utf-8")
    _check_size("leaf", len(leaf), wire.LEAF_BYTES_MAX)
    _check_size("proof", len(proof), wire.PROOF_BYTES_MAX)
    return Envelope(leaf, _text(row["keyid"]), decode_base64(_text(row["sig"]), 64), proof)


def _text(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise Malformed("payload, proof, keyid and sig are strings")
    return value


def _check_size(part: str, size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise TooLarge(f"the {part} has {size} bytes, at most {bytes_max} are allowed")
