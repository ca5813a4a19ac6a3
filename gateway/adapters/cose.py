"""A receipt as a COSE receipt of inclusion: the same path, under the exporter's signature over the root.

A reader hashes the leaf (a file beside this one), climbs the path to a root, and checks the signature over just that
root, which is not in the file. It can't see who signed the checkpoint: that is the exporter's word.
Sources: RFC 9942 (COSE receipts; RFC9162_SHA256), RFC 9052 (COSE_Sign1), RFC 9053 (EdDSA).
"""

from __future__ import annotations

import cbor2

from gateway.adapters.material import Exporter, Material

SIGN1_TAG = 18
ALG, KEY_ID, CWT_CLAIMS, VDS, VDP = 1, 4, 15, 395, 396  # header labels
EDDSA = -8
ISSUER, SUBJECT = 1, 2  # CWT claims
RFC9162_SHA256 = 1  # the tree: RFC 9162's is RFC 6962's
INCLUSION = -1


def export(material: Material, exporter: Exporter) -> bytes:
    """Return the tagged COSE_Sign1 with its payload, the root, left out."""
    protected = cbor2.dumps(protected_header(material, exporter), canonical=True)
    signed = ["Signature1", protected, b"", material.checkpoint.root]
    signature = exporter.key.sign(cbor2.dumps(signed, canonical=True))
    proof = cbor2.dumps(
        [material.checkpoint.size, material.proof.index, list(material.proof.path)], canonical=True
    )  # fmt: skip
    message = [protected, {VDP: {INCLUSION: [proof]}}, None, signature]
    return bytes(cbor2.dumps(cbor2.CBORTag(SIGN1_TAG, message), canonical=True))


def protected_header(material: Material, exporter: Exporter) -> dict[int, object]:
    """Return what is signed beside the root: the algorithm, whose key, which kind of tree, of which ledger."""
    claims = {ISSUER: exporter.key.did, SUBJECT: material.leaf.origin}
    return {ALG: EDDSA, KEY_ID: exporter.key_id.encode(), CWT_CLAIMS: claims, VDS: RFC9162_SHA256}
