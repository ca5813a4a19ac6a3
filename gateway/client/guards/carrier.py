"""A receipt in the header of a request: `Tallystick-Receipt`, small enough for servers that take 8,190 bytes in a line.

The receipt's own form is base64 inside JSON, and its leaf repeats the body of the request it answers, so the leaf is
taken out of its base64, the whole is deflated, and written in base64url. A receipt of one name takes some 3,000
characters. What does not fit in one line goes on in the next, which HTTP reads as one list joined by commas, so a proxy
may join them. It is the same receipt in another spelling: its leaf, signature and proof are what counts.
Source: docs/protocol.md 41.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence

from gateway.client.errors import Fenced
from verifier.receipt import PAYLOAD_TYPE
from verifier.wire import (
    RECEIPT_BYTES_MAX,
    JsonObject,
    Malformed,
    decode_base64,
    encode_base64,
    encode_canonical,
    parse_json,
)

HEADER = "tallystick-receipt"
LINE_CHARACTERS_MAX = 7_936  # with the name a header line below 8,190 bytes
LINES_MAX = 4  # what is longer is the receipt of a large batch: admit such an act by itself
_PART = re.compile(r"[A-Za-z0-9_-]{1,7936}")


def receipt_lines(receipt: bytes) -> tuple[str, ...]:
    """Return the values of the header lines that carry a receipt; Malformed when it is no receipt, or too large."""
    value = parse_json(receipt, bytes_max=RECEIPT_BYTES_MAX)
    if value.pop("payloadType", None) != PAYLOAD_TYPE:
        raise Malformed("this is no receipt")
    compact = encode_canonical({**_leaf_as_text(value, "payload"), **_batch(value, _leaf_as_text)})
    text = urlsafe_b64encode(zlib.compress(compact, 9)).rstrip(b"=").decode("ascii")
    if len(text) > LINES_MAX * LINE_CHARACTERS_MAX:
        raise Malformed(
            f"this receipt takes {len(text)} characters of a header, and {LINES_MAX * LINE_CHARACTERS_MAX} are taken: "
            "admit the act by itself instead of in a batch, or name less"
        )
    return tuple(text[at : at + LINE_CHARACTERS_MAX] for at in range(0, len(text), LINE_CHARACTERS_MAX))


def receipt_in_lines(lines: Sequence[str]) -> bytes:
    """Return the receipt that header lines carry, unverified; Fenced when there is none or it can't be read."""
    parts = [part.strip(" \t") for line in lines for part in line.split(",")]
    if not parts:
        raise Fenced("the request carries no receipt", "receipt_missing")
    if len(parts) > LINES_MAX or sum(map(len, parts)) > LINES_MAX * LINE_CHARACTERS_MAX:
        raise Fenced(f"the receipt is larger than {LINES_MAX} × {LINE_CHARACTERS_MAX} characters", "receipt_too_large")
    if not all(map(_PART.fullmatch, parts)):
        raise Fenced("the receipt is not base64url", "receipt_malformed")
    try:
        value = parse_json(_inflated("".join(parts)), bytes_max=RECEIPT_BYTES_MAX)
        whole: JsonObject = {**_leaf_as_base64(value, "payload"), **_batch(value, _leaf_as_base64)}
        return encode_canonical({**whole, "payloadType": PAYLOAD_TYPE})
    except (ValueError, zlib.error) as error:
        raise Fenced(f"the receipt in the header can't be read: {error}", "receipt_malformed") from error


def _inflated(text: str) -> bytes:
    """Return what was deflated; never more than a receipt may have, whatever it claims to hold."""
    inflater = zlib.decompressobj()
    content = inflater.decompress(urlsafe_b64decode(text + "=" * (-len(text) % 4)), RECEIPT_BYTES_MAX)
    if not inflater.eof or inflater.unused_data or inflater.unconsumed_tail:
        raise Malformed(f"it is not one deflated text of at most {RECEIPT_BYTES_MAX} bytes")
    return content


def _batch(value: JsonObject, change: object) -> JsonObject:
    """Return the member `batch`, changed by one of the two below; nothing where there is none."""
    batch = value.get("batch")
    assert callable(change)
    return {"batch": change(batch, "leaf")} if isinstance(batch, dict) else {}


def _leaf_as_text(value: JsonObject, name: str) -> JsonObject:
    return {**value, name: decode_base64(str(value.get(name))).decode("utf-8")}


def _leaf_as_base64(value: JsonObject, name: str) -> JsonObject:
    return {**value, name: encode_base64(str(value.get(name)).encode("utf-8"))}
