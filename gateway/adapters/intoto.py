"""A receipt as an in-toto Statement v1 in a DSSE envelope, signed by the exporter.

The subject is the leaf, by the SHA-256 of its bytes; the predicate says what the exporter found, and carries the whole
receipt, so that who has our verifier can find it again. Sources: in-toto attestation framework, Statement v1; DSSE v1.
"""

from __future__ import annotations

from hashlib import sha256

from gateway.adapters.material import Exporter, Material
from verifier.entries import RULES_VERSION
from verifier.merkle import leaf_hash
from verifier.wire import JsonObject, encode_base64, encode_canonical

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE = "urn:tallystick:receipt:v1"


def export(material: Material, exporter: Exporter) -> bytes:
    """Return the envelope as JSON."""
    payload = encode_canonical(statement(material, exporter))
    signature = exporter.key.sign(pre_authentication(payload))
    envelope: JsonObject = {
        "payloadType": PAYLOAD_TYPE,
        "payload": encode_base64(payload),
        "signatures": [{"keyid": exporter.key_id, "sig": encode_base64(signature)}],
    }
    return encode_canonical(envelope)


def statement(material: Material, exporter: Exporter) -> JsonObject:
    """Return what is signed: about which leaf, and what was found."""
    leaf, checkpoint = material.leaf, material.checkpoint
    predicate: JsonObject = {
        "origin": leaf.origin,
        "genesis": (leaf_hash(material.leaf_bytes) if leaf.seq == 0 else leaf.genesis).hex(),
        "seq": leaf.seq,
        "type": leaf.type,
        "timeMs": leaf.time_ms,
        "leafHash": leaf_hash(material.leaf_bytes).hex(),
        "checkpoint": {"size": checkpoint.size, "root": encode_base64(checkpoint.root)},
        "level": material.level,
        "rules": RULES_VERSION,
        "exporter": exporter.key.did,
        "receipt": encode_base64(material.receipt),
    }
    digest: JsonObject = {"sha256": sha256(material.leaf_bytes).hexdigest()}
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": f"{leaf.origin}#{leaf.seq}", "digest": digest}],
        "predicateType": PREDICATE_TYPE,
        "predicate": predicate,
    }


def pre_authentication(payload: bytes) -> bytes:
    """Return the bytes that are signed, DSSE's PAE."""
    return b"DSSEv1 %d %b %d %b" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)
