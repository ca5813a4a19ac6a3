"""The published forms of one key document, each made from it and read back against it. Pure: bytes in, bytes out.

`keys.note`, signed by the root, is the only form that carries its own proof. The others repeat its keys for tools that
know JWKS, DIDs or C2SP policies. They can't say "compromised" or "up to size n", so a compromised key is left out of
them, a retired one stays (old receipts must still verify), and only `keys.note` bounds it.
Sources: RFC 7517 and 8037 (JWK), RFC 9864 (alg "Ed25519"), W3C CID 1.0 (verification methods), C2SP tlog-policy.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from keys.signing import SigningKey
from verifier.did import decode_did, encode_did, thumbprint
from verifier.keyring import KeyDocument, KeyLine, Keyring, key_document_text, open_key_document
from verifier.note import Note, VerifierKey, encode_note, make_vkey, parse_vkey, signature_line
from verifier.policy import parse_policy
from verifier.sig import is_strict_key
from verifier.wire import TEXT_BYTES_MAX, JsonObject, JsonValue, Malformed, decode_base64, parse_json

NOTE_FILE = "keys.note"
ROOT_FILE = "root.vkey"
FORM_FILES = (NOTE_FILE, ROOT_FILE, "vkeys.txt", "policy.txt", "jwks.json", "did.json")

_CONTEXTS: list[JsonValue] = ["https://www.w3.org/ns/did/v1", "https://www.w3.org/ns/cid/v1"]
_POLICY_COMMENT = """\
# The logs that a reader of {origin} accepts; made from key document version {version}.
# A policy is worth what its source is worth: compare it with a copy that did not come from the gateway.
#
# To demand witnesses, add a line for each, a group that says how many are enough, and replace the last line:
#   witness north <vkey of kind 4>
#   witness south <vkey of kind 4>
#   group mine 2 north south
#   quorum mine
"""


# -- making ------------------------------------------------------------------------------------------------------------


def root_vkey(origin: str, public_key: bytes) -> VerifierKey:
    """Return the root key under the one name that readers accept for it."""
    return make_vkey(f"{origin}/root", public_key)


def signed_key_document(document: KeyDocument, root: SigningKey) -> bytes:
    """Return the note that readers open with `open_key_document`."""
    text = key_document_text(document)
    line = signature_line(root_vkey(document.origin, root.public_key), root.sign(text.encode("utf-8")))
    return encode_note(Note(text, (line,)))


def published_forms(document: KeyDocument, note: bytes, root: VerifierKey) -> dict[str, bytes]:
    """Return every published file by its name; `note` is the signed `document`."""
    return {
        NOTE_FILE: note,
        ROOT_FILE: f"{root.vkey}\n".encode(),
        "vkeys.txt": vkeys_text(document).encode("utf-8"),
        "policy.txt": policy_text(document).encode("utf-8"),
        "jwks.json": jwks(document),
        "did.json": did_document(document),
    }


def vkeys_text(document: KeyDocument) -> str:
    """Return one C2SP verifier key a line, in the order of the key document; the names tell the purposes."""
    return "".join(f"{line.key.vkey}\n" for line in _published(document))


def policy_text(document: KeyDocument) -> str:
    """Return a C2SP tlog-policy: the log keys and `quorum none`, with comments on how to demand witnesses."""
    rows = [_POLICY_COMMENT.format(origin=document.origin, version=document.version)]
    for line in _log_lines(document):
        if line.status == "retired":
            rows.append(
                f"# retired, for checkpoints up to size {line.to_size}; only --root with keys.note enforces it\n"
            )
        rows.append(f"log {line.key.vkey}\n")
    return "".join([*rows, "quorum none\n"])


def jwks(document: KeyDocument) -> bytes:
    """Return the JWK set (RFC 7517); `kid` is the RFC 7638 thumbprint, which is also the keyid of a receipt."""
    return _json({"keys": [_jwk(line.key.public_key) for line in _published(document)]})


def did_document(document: KeyDocument) -> bytes:
    """Return the did:web document of the gateway: each key as Multikey and as JsonWebKey; active ones may assert."""
    did = did_web(document.origin)
    return _json(
        {
            "@context": _CONTEXTS,
            "id": did,
            "verificationMethod": [
                method for line in _published(document) for method in _methods(did, line.key.public_key)
            ],
            "assertionMethod": _assertion_ids(document),
        }
    )


def did_web(origin: str) -> str:
    """Return the did:web that resolves to /.well-known/did.json of the origin's host; a port's colon is escaped."""
    return "did:web:" + quote(origin.partition("/")[0], safe="")


def _published(document: KeyDocument) -> list[KeyLine]:
    lines = sorted(document.keys, key=lambda line: line.text)
    return [line for line in lines if line.status != "compromised"]


def _log_lines(document: KeyDocument) -> list[KeyLine]:
    return [line for line in _published(document) if line.purpose == "log"]


def _jwk(public_key: bytes) -> JsonObject:
    x = urlsafe_b64encode(public_key).rstrip(b"=").decode("ascii")
    return {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": thumbprint(public_key), "alg": "Ed25519", "use": "sig"}


def _methods(did: str, public_key: bytes) -> list[JsonValue]:
    multibase = encode_did(public_key).removeprefix("did:key:")
    common: JsonObject = {"controller": did}
    return [
        {"id": f"{did}#{multibase}", "type": "Multikey", **common, "publicKeyMultibase": multibase},
        {"id": f"{did}#{thumbprint(public_key)}", "type": "JsonWebKey", **common, "publicKeyJwk": _jwk(public_key)},
    ]


def _assertion_ids(document: KeyDocument) -> list[JsonValue]:
    did = did_web(document.origin)
    active = [line.key.public_key for line in _published(document) if line.status == "active"]
    return [method["id"] for key in active for method in _methods(did, key) if isinstance(method, dict)]


def _json(value: JsonObject) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


# -- reading back ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FormCheck:
    """What was found about one published file. `problem` is None when it agrees with keys.note."""

    file: str
    problem: str | None
    text: str = ""


def check_forms(files: Mapping[str, bytes], root: VerifierKey) -> tuple[FormCheck, ...]:
    """Check every published file against the key document that `root` signed; one row for each file, none skipped.

    Each file is read by the verifier's own parsers and must name exactly the document's keys; after that it must be
    byte-equal to what the document gives, so that nothing the parsers overlook (a comment, a `use`) differs either.
    """
    try:
        document = open_key_document(files.get(NOTE_FILE, b""), root)
        Keyring(root, document)
    except Malformed as error:
        unread = [FormCheck(name, f"not compared, because {NOTE_FILE} does not open") for name in FORM_FILES[1:]]
        return (FormCheck(NOTE_FILE, _absent(files, NOTE_FILE) or str(error)), *unread)
    expected = published_forms(document, files[NOTE_FILE], root)
    text = f"version {document.version} of {document.origin}, {_count(len(document.keys))}, signed by {root.name}"
    return (
        FormCheck(NOTE_FILE, None, text),
        *(_check_form(name, files, expected[name], document, root) for name in FORM_FILES[1:]),
    )


def _check_form(
    name: str, files: Mapping[str, bytes], expected: bytes, document: KeyDocument, root: VerifierKey
) -> FormCheck:
    problem = _absent(files, name)
    if problem is not None:
        return FormCheck(name, problem)
    try:
        text = _READERS[name](files[name], document, root)
    except (Malformed, UnicodeDecodeError) as error:
        return FormCheck(name, str(error))
    return FormCheck(name, None if files[name] == expected else f"is not what {NOTE_FILE} gives", text)


def _absent(files: Mapping[str, bytes], name: str) -> str | None:
    return None if name in files else "is missing, unreadable or longer than 64 KiB"


def _read_root(data: bytes, document: KeyDocument, root: VerifierKey) -> str:
    if parse_vkey(_one_line(data)) != root:
        raise Malformed(f"holds another root key than the one that signed {NOTE_FILE}")
    return f"thumbprint {thumbprint(root.public_key)}"


def _read_vkeys(data: bytes, document: KeyDocument, root: VerifierKey) -> str:
    found = [parse_vkey(row).public_key for row in data.decode("utf-8").splitlines()]
    return _same_keys(found, _published(document))


def _read_policy(data: bytes, document: KeyDocument, root: VerifierKey) -> str:
    policy = parse_policy(data)
    Keyring(root, document, policy)
    return _same_keys([key.public_key for key in policy.logs], _log_lines(document)) + ", quorum none"


def _read_jwks(data: bytes, document: KeyDocument, root: VerifierKey) -> str:
    found = [_read_jwk(jwk) for jwk in _objects(parse_json(data, bytes_max=TEXT_BYTES_MAX), "keys")]
    return _same_keys(found, _published(document))


def _read_did(data: bytes, document: KeyDocument, root: VerifierKey) -> str:
    value = parse_json(data, bytes_max=TEXT_BYTES_MAX)
    methods = _objects(value, "verificationMethod")
    multikeys = [decode_did(f"did:key:{m.get('publicKeyMultibase')}") for m in methods if m.get("type") == "Multikey"]
    jwk_keys = [_read_jwk(m.get("publicKeyJwk")) for m in methods if m.get("type") == "JsonWebKey"]
    if value.get("assertionMethod") != _assertion_ids(document):
        raise Malformed("its assertionMethod does not list exactly the active keys")
    _same_keys(multikeys, _published(document))
    return f"{value.get('id')}, {_same_keys(jwk_keys, _published(document))}"


def _read_jwk(jwk: JsonValue) -> bytes:
    """Return the strict public key of one JWK; its x, kid and alg must be exactly what we write."""
    x = jwk.get("x") if isinstance(jwk, dict) else None
    if not isinstance(jwk, dict) or not isinstance(x, str):
        raise Malformed("a JWK has no x")
    public_key = decode_base64(x.replace("-", "+").replace("_", "/") + "=", 32)
    if not is_strict_key(public_key) or jwk != _jwk(public_key):
        raise Malformed("a JWK is not a strict Ed25519 key with its own thumbprint as kid, alg Ed25519 and use sig")
    return public_key


def _objects(value: JsonObject, name: str) -> list[JsonObject]:
    rows = value.get(name)
    objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not isinstance(rows, list) or len(objects) != len(rows):
        raise Malformed(f"its {name} is not a list of objects")
    return objects


def _same_keys(found: list[bytes], lines: list[KeyLine]) -> str:
    if found != [line.key.public_key for line in lines]:
        raise Malformed(f"names other keys, or in another order, than {NOTE_FILE}")
    return _count(len(found))


def _count(keys: int) -> str:
    return "1 key" if keys == 1 else f"{keys} keys"


def _one_line(data: bytes) -> str:
    text = data.decode("utf-8")
    if not text.endswith("\n") or text.count("\n") != 1:
        raise Malformed("is not exactly one line")
    return text[:-1]


_READERS: Mapping[str, Callable[[bytes, KeyDocument, VerifierKey], str]] = {
    ROOT_FILE: _read_root,
    "vkeys.txt": _read_vkeys,
    "policy.txt": _read_policy,
    "jwks.json": _read_jwks,
    "did.json": _read_did,
}
