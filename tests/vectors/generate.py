"""Writes the committed vectors beside this file: python -m tests.vectors.generate

Every verdict is typed by hand, never asked of the code under test; only bytes are computed. A test regenerates the
files and finds no difference. Other implementations may read them: bytes are base64 (`bytes`) or hex where named so.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.vectors import curve
from tests.vectors.documents import KEY_DOCUMENTS, POLICIES, QUORUMS
from tests.vectors.names import NAMES, OVERLAPS
from tests.vectors.statements import LEDGER, STATEMENTS
from tests.vectors.texts import CHECKPOINTS, CONSISTENCY, JSON_TEXTS, NOTES, PROOFS, VKEYS
from tests.verifier.delegation_stories import STORIES
from tests.verifier.maker import ORIGIN, SESSION, T0, root_vkey
from tests.verifier.samples import public_key, sign, tree_of

HERE = Path(__file__).parent
Case = dict[str, Any]


def signature_case(comment: str, key: bytes, message: bytes, signature: bytes, is_valid: bool, is_key: bool) -> Case:
    return {
        "comment": comment,
        "publicKeyHex": key.hex(),
        "messageHex": message.hex(),
        "signatureHex": signature.hex(),
        "isStrictKey": is_key,
        "isValid": is_valid,
    }


def odd_key_cases() -> list[Case]:
    """Signatures that satisfy the plain equation under keys nobody should have."""
    cases = []
    for spelling in sorted(curve.small_order_spellings()):
        message = b"any message" if spelling[:1] != b"\x00" else b"any message at all"
        signature = curve.sign_as(spelling, 0, 5, message)
        cases.append(
            signature_case("a key of small order, or its second spelling", spelling, message, signature, False, False)
        )
    secret = curve.secret_scalar(b"\x01" * 32)
    for index, tail in enumerate(curve.torsion()[1:], 1):
        mixed = curve.encode(curve.add(curve.multiply(secret, curve.BASE), tail))
        # The plain equation holds when the challenge is a multiple of 8, since the torsion part then vanishes.
        number, signature = 0, b""
        while not signature or curve.challenge(signature[:32], mixed, b"%d" % number) % 8:
            number += 1
            signature = curve.sign_as(mixed, secret, 5, b"%d" % number)
        comment = f"a key of mixed order, torsion part {index}, at a message where the equation holds"
        cases.append(signature_case(comment, mixed, b"%d" % number, signature, False, False))
    return cases


def odd_signature_cases() -> list[Case]:
    key, message, secret = public_key(1), b"message", curve.secret_scalar(b"\x01" * 32)
    good = sign(1, message)
    s = int.from_bytes(good[32:], "little")
    identity, identity_again = curve.encode(curve.IDENTITY), curve.spell(curve.P + 1, 0)
    rows = [
        ("S + L instead of S", good[:32] + (s + curve.L).to_bytes(32, "little")),
        ("S = L", good[:32] + curve.L.to_bytes(32, "little")),
        ("R is the identity, and the equation holds", curve.sign_as(key, secret, 0, message, identity)),
        ("R is the identity in its second spelling", curve.sign_as(key, secret, 0, message, identity_again)),
        ("R is not canonical: y = P + 3", curve.spell(curve.P + 3, 0) + good[32:]),
        ("one byte short", good[:-1]),
        ("one byte long", good + b"\x00"),
        ("empty", b""),
        ("signature of another message", sign(1, b"massage")),
        ("R with its last bit turned", good[:31] + bytes([good[31] ^ 0x80]) + good[32:]),
        ("R and S exchanged", good[32:] + good[:32]),
        ("all zero", bytes(64)),
    ]
    return [signature_case(comment, key, message, signature, False, True) for comment, signature in rows]


def ed25519_cases() -> list[Case]:
    rfc = [  # RFC 8032 7.1, TEST 1 and TEST 2
        (
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ]
    valid = [
        signature_case("RFC 8032 7.1", bytes.fromhex(key), bytes.fromhex(message), bytes.fromhex(good), True, True)
        for key, message, good in rfc
    ]
    valid += [
        signature_case(f"seed {n} × 32", public_key(n), b"m" * n, sign(n, b"m" * n), True, True) for n in (1, 2, 3)
    ]
    key, good = public_key(1), sign(1, b"m")
    wrong_keys = [
        ("a key one byte short", key[:31]),
        ("a key one byte long", key + b"\x00"),
        ("no key", b""),
        ("a y that no point has", curve.spell(2, 0)),
        ("a y of P + 3: a second spelling", curve.spell(curve.P + 3, 0)),
        ("all bits set", b"\xff" * 32),
    ]
    keys = [signature_case(comment, wrong, b"m", good, False, False) for comment, wrong in wrong_keys]
    return valid + keys + odd_signature_cases() + odd_key_cases()


def merkle_cases() -> Case:
    tree = tree_of(9)
    inclusion = [
        {"index": index, "size": size, "pathHex": [part.hex() for part in tree.path(index, size)]}
        for size in range(1, 10)
        for index in range(size)
    ]
    consistency = [
        {"size1": size1, "size2": size2, "pathHex": [part.hex() for part in tree.consistency(size1, size2)]}
        for size2 in range(10)
        for size1 in range(size2 + 1)
    ]
    return {
        "comment": "entries are leaf-0, leaf-1, …; a proof belongs to no other index, size or pair of sizes",
        "rootsHex": [tree.root(size).hex() for size in range(10)],
        "inclusion": inclusion,
        "consistency": consistency,
    }


def delegation_cases() -> list[Case]:
    """What a chain shows without a ledger: stories that only a ledger can tell from good ones are left out."""
    return [
        {
            "comment": story.name,
            "delegations": story.build(T0),
            "actorDid": SESSION.did,
            "ledger": ORIGIN,
            "timeMs": T0 + story.after_ms,
            "isValid": story.refusal is None,
            "error": story.refusal,
            "verbs": list(story.verbs) if story.refusal is None else None,
            "scope": list(story.scope) if story.refusal is None and story.scope is not None else None,
        }
        for story in STORIES
        if story.is_stateless
    ]


def as_bytes(rows: list[tuple[str, bytes, bool]]) -> list[Case]:
    return [
        {"comment": comment, "bytes": base64.b64encode(value).decode(), "isWellFormed": verdict}
        for comment, value, verdict in rows
    ]


def files() -> dict[str, bytes]:
    """The name and the exact bytes of every vector file."""
    contents: dict[str, Any] = {
        "ed25519.json": ed25519_cases(),
        "merkle.json": merkle_cases(),
        "json.json": [
            {"comment": comment, "bytes": base64.b64encode(text).decode(), "isStrict": strict, "isCanonical": canonical}
            for comment, text, strict, canonical in JSON_TEXTS
        ],
        "vkey.json": [{"comment": comment, "vkey": text, "isWellFormed": verdict} for comment, text, verdict in VKEYS],
        "note.json": as_bytes(NOTES),
        "checkpoint.json": as_bytes(CHECKPOINTS),
        "proof.json": as_bytes(PROOFS),
        "consistency.json": as_bytes(CONSISTENCY),
        "statement.json": [
            {**case, "origin": ORIGIN, "genesisHex": LEDGER.genesis, "root": root_vkey()}
            for case in as_bytes(STATEMENTS)
        ],
        "policy.json": as_bytes(POLICIES),
        "delegation.json": delegation_cases(),
        "quorum.json": [
            {"comment": comment, "bytes": base64.b64encode(policy).decode(), "witnesses": names, "isMet": verdict}
            for comment, policy, names, verdict in QUORUMS
        ],
        "keys.json": as_bytes(KEY_DOCUMENTS),
        "names.json": [{"comment": comment, "name": name, "isWellFormed": verdict} for comment, name, verdict in NAMES],
        "overlap.json": [
            {"comment": comment, "a": a, "b": b, "isFolding": folds, "overlaps": together, "aCoversB": covers}
            for comment, a, b, folds, together, covers in OVERLAPS
        ],
    }
    return {name: (json.dumps(value, indent=1) + "\n").encode() for name, value in contents.items()}


if __name__ == "__main__":
    for name, content in files().items():
        (HERE / name).write_bytes(content)
