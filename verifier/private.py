"""Texts that stay outside the ledger: do they fit the digests that the signed leaf or the signed body has of them?

A digest is SHA-256 of a salt of 32 bytes and the text. Without its salt a text can't be opened any more, nor guessed;
the receipt itself holds as ever. Source: docs/protocol.md 16.11, 34.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from verifier.entries import BATCH_BODY_BYTES_MAX, Leaf, rows_of
from verifier.ladder import Walk
from verifier.merkle import leaf_hash
from verifier.wire import RECEIPT_BYTES_MAX, JsonObject, JsonValue, Malformed, decode_base64, decode_hex, parse_json

PRIVATE_TYPE = "tallystick/private/1"
SALT_BYTES = 32
_MEMBERS, _FIELD = {"type", "leafHash", "fields"}, {"name", "index", "salt", "value"}


@dataclass(frozen=True, slots=True)
class Field:
    """One text: `name` is the member that has its digest, `index` the command of a batch; `salt` None when erased."""

    name: str
    index: int | None
    salt: bytes | None
    value: str


def open_private(data: bytes) -> tuple[bytes, tuple[Field, ...]]:
    """Return the leaf hash and the fields of a file of private texts. Malformed: it is none."""
    value = parse_json(data, bytes_max=RECEIPT_BYTES_MAX)
    fields, digest = value.get("fields"), value.get("leafHash")
    if value.keys() != _MEMBERS or value["type"] != PRIVATE_TYPE or not isinstance(fields, list):
        raise Malformed(f"a file of private texts has exactly type ({PRIVATE_TYPE}), leafHash and fields, a list")
    return decode_hex(digest if isinstance(digest, str) else "", 32), tuple(map(_field, fields))


def _field(row: JsonValue) -> Field:
    if not isinstance(row, dict) or row.keys() - _FIELD or not {"name", "salt"} <= row.keys():
        raise Malformed("a private field has name, salt, value, perhaps index")
    name, index, salt, value = row["name"], row.get("index"), row["salt"], row.get("value")
    if not isinstance(name, str) or not isinstance(index, int | None) or not isinstance(value, str | None):
        raise Malformed("of a private field name and value are strings, and index is a number")
    if (salt is None) != (value is None) or isinstance(index, bool) or (index or 0) < 0:
        raise Malformed("a private field has a salt and a value, or salt null and no value; index counts from 0")
    return Field(name, index, None if salt is None else _decoded(salt), value or "")


def _decoded(salt: JsonValue) -> bytes:
    return decode_base64(salt if isinstance(salt, str) else "", SALT_BYTES)


def check_private(walk: Walk, data: bytes) -> Iterator[str]:
    """Step 12 for a file of private texts: say what does not fit; yield a sentence for each that does, or is erased.

    Malformed: the file can't be read.
    """
    digest, fields = open_private(data)
    if digest != leaf_hash(walk.leaf_bytes) or walk.leaf is None:
        walk.say(12, "private_other_leaf", "the private texts belong to another leaf")
        return
    for field in fields:
        stated = _stated(walk.leaf, walk.evidence_leaf or walk.leaf, field)
        if stated is None:
            walk.say(12, "private_unknown", f"nothing that was signed has a digest {field.name}")
        elif field.salt is None:
            yield f"private {field.name}: erased: not opened"
        elif stated != sha256(field.salt + field.value.encode()).hexdigest():
            walk.say(12, "private_differs", f"the text and salt do not give the digest {field.name}")
        else:
            yield f"private {field.name}: {field.value}"


def _stated(leaf: Leaf, signed: Leaf, field: Field) -> str | None:
    """Return the digest by that name: in the leaf, else in the body that was signed, or in its command."""
    own = None if leaf.batch is None else leaf.batch[1]
    index = own if field.index is None else field.index
    asked = _body(signed) if own in (None, index) else {}
    if index is not None:
        commands = rows_of(asked.get("commands"))
        asked = commands[index] if index < len(commands) else {}
    stated = leaf.value.get(field.name, asked.get(field.name))
    return stated if isinstance(stated, str) else None


def _body(signed: Leaf) -> JsonObject:
    try:
        return parse_json((signed.request or {}).get("body", "").encode(), bytes_max=BATCH_BODY_BYTES_MAX)
    except Malformed:
        return {}
