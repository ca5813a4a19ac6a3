"""What a guard's refusal is over HTTP: one table, problem documents (RFC 9457).

The texts say what the caller does next. Nothing was done whenever one of these is answered, but for `too_slow`.
Source: docs/protocol.md 41.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from gateway.client.errors import AnswerRefused, Fenced

CONTENT_TYPE = "application/problem+json"
RETRY_S = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One refusal: its status, what is wrong, and what to do about it."""

    code: str
    status: int
    title: str
    advice: str


_SIGN = "Sign it by the profile tallystick-v1 with the key that was admitted, and send it again."
_AGAIN = "Ask for a new admission of just this request and send it with that."
_FRESH = "Take or renew the lease, ask for a new admission, and send it with that."
_OWNER = "The owner of this service decides which admissions it takes."

_TABLE = (
    Row("signature_missing", 401, "The request is not signed", _SIGN),
    Row("signature_malformed", 400, "The signature can't be read, or covers other parts", _SIGN),
    Row("signature_invalid", 401, "The signature does not hold", _SIGN),
    Row("outside_window", 401, "The signature is not of this time", "Set this machine's clock and sign again."),
    Row("authority_wrong", 400, "This service does not go by that name", "Use the host name given in the detail."),
    Row("header_repeated", 400, "A header that decides stands there twice", "Send it once."),
    Row("encoded_body", 400, "The body is encoded", "Send it without Content-Encoding."),
    Row("digest_wrong", 400, "The body is not the one that was signed", _SIGN),
    Row("act_malformed", 400, "What is asked for can't be read", "See the detail."),
    Row("body_too_large", 413, "The body is too large", "Send less at once."),
    Row("body_too_slow", 408, "The body did not arrive in time", "Send it again, at once."),
    Row("receipt_missing", 403, "No receipt came along", "Ask for an admission and send its receipt in the header."),
    Row("receipt_malformed", 400, "The receipt can't be read", "Send it as docs/protocol.md 41 says."),
    Row("receipt_too_large", 413, "The receipt is too large for a header", "Admit the act by itself, or name less."),
    Row("receipt_invalid", 403, "The receipt does not verify", "Send the receipt as the gateway gave it."),
    Row("other_ledger", 403, "Another ledger's word", "Ask the ledger that this service is pinned to."),
    Row("not_admitted", 403, "This receipt allows nothing here", _AGAIN),
    Row("not_proven", 403, "Somebody else's receipt", "Show a receipt of the key that signs."),
    Row("other_act", 403, "Another act than was allowed", _AGAIN),
    Row("other_content", 403, "Other content than was allowed", _AGAIN),
    Row("expired", 403, "It is over", _FRESH),
    Row("clock_behind", 503, "The service's clock is behind", "Tell the owner of this service."),
    Row("unpoliced", 403, "No rules in force allowed it", _OWNER),
    Row("other_rules", 403, "Other rules allowed it than count here", _OWNER),
    Row("unwitnessed", 403, "It can't be undone, and no witnesses stand for it", "Send the receipt once witnessed."),
    Row("used", 409, "The admission was used before", f"If that was not you, look at what was done. {_AGAIN}"),
    Row("stale_fence", 409, "Somebody else has a newer lease", "Stop, look at what was written, and take a new lease."),
    Row("busy", 503, "Another guarded call is under way", "Send the same request again soon."),
    Row("too_slow", 504, "It took too long and was stopped", "The admission is used up. Look at what was done."),
    Row("websocket_refused", 403, "No websocket through a guard", "Ask for one act at a time, by ordinary requests."),
    Row("fenced", 403, "The guard refused", "See the detail."),
)
ROWS = {row.code: row for row in _TABLE}


def row_of(error: Fenced | AnswerRefused) -> Row:
    """Return the row of a refusal."""
    return ROWS["receipt_invalid" if isinstance(error, AnswerRefused) else error.code]


def problem(error: Fenced | AnswerRefused) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Return status, headers and body of the answer to a refusal."""
    row = row_of(error)
    body = {
        "type": f"urn:tallystick:problem:{row.code}", "title": row.title, "status": row.status, "code": row.code,
        "detail": str(error), "advice": row.advice,
    }  # fmt: skip
    headers = [("content-type", CONTENT_TYPE), ("cache-control", "no-store"), ("x-content-type-options", "nosniff")]
    if row.status == 503:
        headers.append(("retry-after", str(RETRY_S)))
    if row.status == 401:
        headers.append(("www-authenticate", 'Signature realm="tallystick"'))
    return row.status, tuple(headers), json.dumps(body).encode("ascii")
