"""The only map from a refusal or an error to a status and JSON (RFC 9457).

Four kinds, never mixed (docs/protocol.md, errors): what the sender got wrong (Rejection, and the door's own rows
below), what the ledger refused without an entry (Refused), what did not happen (Busy, RateLimited), and what we no
longer know (Fatal). Refusals with an entry are not problems: they are signed receipts and are rendered by
gateway/ledger/receipts.py with the status of their table row.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson
from aiohttp import web

from gateway.core.intake import Rejection
from gateway.core.refusal import TRIAL_USED_UP, Retry
from gateway.errors import Busy, Damaged, Fatal
from gateway.ledger.parking import Draining
from gateway.ledger.sequencer import Refused
from gateway.web.connection import CLOSE, Reply
from gateway.web.limits import BODY_BYTES_MAX, BodyTooLarge, BodyTooSlow, RateLimited
from verifier.request import BODY_COMPONENTS

CONTENT_TYPE = "application/problem+json"
BASE_HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Server": "tallystick",
}
_COMPONENT_ORDER = (
    "@method",
    "@authority",
    "@path",
    "@query",
    "content-type",
    "content-digest",
    "idempotency-key",
    "tallystick-anchor",
)
ACCEPT_SIGNATURE = (
    "sig=("
    + " ".join(f'"{name}"' for name in _COMPONENT_ORDER)
    + ');created;expires;keyid;alg="ed25519";nonce;tag="tallystick-v1"'
)
CHALLENGE = 'Signature realm="tallystick"'
BEARER_CHALLENGE = 'Bearer error="invalid_token"'
QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"
assert frozenset(_COMPONENT_ORDER) == BODY_COMPONENTS, "the challenge must ask for what the profile demands"
RECOVERY_SECONDS = 5
DRAINING_SECONDS = 5
DAMAGED_SECONDS = 300  # a person has to look first

_log = logging.getLogger("tallystick.web")


@dataclass(frozen=True, slots=True)
class Row:
    """One problem: `title` says what is wrong, `advice` what the caller does next, `retry` the same to a program.

    As for refusals: the same request later (signed anew, the same idempotency key), a new one, or never. Most are
    *never*: as it is, such a request is wrong at any time.
    """

    code: str
    status: int
    title: str
    advice: str
    retry: Retry = "never"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem ready to be written: the row, what this request got wrong, further members and headers.

    `type` is the URI of a kind that others know too, empty for a kind of ours.
    """

    row: Row
    detail: str
    members: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = ""


class Refusable(Exception):
    """A problem met by a handler of the door itself, by its code in ROWS."""

    def __init__(self, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(code)
        self.problem = Problem(ROWS[code], detail, headers=headers or {})


SAME: Retry = "same_request"
NEW: Retry = "new_request"
_SIGN_AGAIN = "Sign the request as docs/protocol.md says and send it again."
_RATE_USED_UP = (
    "This key's rate is used up. Wait, or name less: what much is held or waited for on costs more to ask for."
)
_DAMAGED = "Its own audit found {}, so it decides nothing until its operator has looked. Reads are still answered."
# By the reason of a Busy: those that have a row of their own, and what is told of them. What an operator must change
# is in the log and not said to strangers.
STORE_ROWS: Mapping[str, str] = {
    "store_unreachable": "The database is away, or fails over just now.",
    "store_stalled": "An earlier batch waits for its stand-by; until it is safe, nothing new is begun.",
    "store_unfit": "Its settings, or a missing key, stop all decisions until the operator has acted.",
    "outcome_unknown": "The database did not say whether the batch with this request was written.",
}
_RETRY = "Nothing happened. Send it again after Retry-After, signed anew with the same Idempotency-Key."

# fmt: off
_TABLE: tuple[Row, ...] = (
    # The request as a message.
    Row("bad_http", 400, "Not an HTTP request this gateway reads", "Use an ordinary HTTP/1.1 client."),
    Row("target_malformed", 400, "The request target is not a plain path", "Start the target with a single slash."),
    Row("header_repeated", 400, "A header that decides stands twice", "Send each of these headers once."),
    Row("encoded_body", 400, "The body is encoded", "Send the body as it was digested, without Content-Encoding."),
    Row("body_incomplete", 400, "The body did not arrive whole", "Send the request again.", SAME),
    Row("body_too_slow", 408, "The body did not arrive in time", "Send the body together with its header.", SAME),
    Row("body_too_large", 413, "The body is too large", "Ask for fewer resources in one request."),
    Row("content_type_wrong", 415, "This path takes another Content-Type", "Send the type named in the detail."),
    Row("expectation_failed", 417, "Expect says what is not done here", "Say 100-continue, or leave it out."),
    Row("not_found", 404, "Nothing is here", "See /openapi.json for what is."),
    Row("bundle_pruned", 410, "These entries are not served any more",
        "Hash tiles and receipts are; ask the operator, or who keeps a copy, for the entries."),
    Row("method_not_allowed", 405, "This path has another method", "Use a method of the Allow header."),
    Row("query_malformed", 400, "The query is not one this path understands", "See /openapi.json for its parameters."),
    # The signature.
    Row("signature_missing", 401, "The request is not signed", _SIGN_AGAIN),
    Row("signature_malformed", 400, "Signature or Signature-Input can't be read", _SIGN_AGAIN),
    Row("components_wrong", 400, "The signature covers other components", "Cover exactly those of Accept-Signature."),
    Row("signature_invalid", 401, "The signature does not hold", _SIGN_AGAIN),
    Row("key_malformed", 401, "The key is no strict Ed25519 key", "Make another with `tallystick keys new`."),
    Row("outside_window", 401, "The signature is not of this time", "Set this machine's clock and sign again.", NEW),
    Row("digest_missing", 400, "There is no Content-Digest", _SIGN_AGAIN),
    Row("digest_mismatch", 400, "Content-Digest is not the digest of this body", "Send the very bytes you digested."),
    Row("authority_wrong", 400, "This gateway does not go by that name", "Use the host name given when you joined."),
    Row("path_wrong", 400, "The path is not one of the grammar", "Use the path exactly as printed in /openapi.json."),
    Row("authorization_present", 400, "A signed request carries no Authorization", "Leave that header out."),
    Row("token_invalid", 401, "The API key does not do this", "Ask the operator for a key, or sign the request."),
    Row("idempotency_key_missing", 400, "There is no Idempotency-Key", "Send a new quoted string per intended change."),
    Row("idempotency_key_malformed", 400, "Idempotency-Key is not a quoted string", "Quote 1 to 255 printable ASCII."),
    Row("anchor_missing", 400, "There is no Tallystick-Anchor", "Send the newest checkpoint you verified."),
    Row("anchor_malformed", 400, "Tallystick-Anchor can't be read", "Send `<origin> <size> <base64 root>`."),
    Row("wrong_anchor", 400, "The anchor is of another ledger", "Anchor in this ledger."),
    # The body.
    Row("body_malformed", 400, "The body is not the JSON this gateway reads", "Send one JSON object, each name once."),
    Row("member_missing", 400, "A member of the body is missing", "Add it."),
    Row("member_unknown", 400, "A member of the body is not known", "Leave it out."),
    Row("member_invalid", 400, "A member of the body is out of its bound", "Keep to the bound in the detail."),
    Row("member_conflict", 400, "Members of the body do not go together", "Do what the detail says."),
    Row("wrong_ledger", 400, "The body names another ledger", "Put this ledger's origin into `ledger`."),
    Row("actor_mismatch", 403, "actorDid is not the key that signed", "Act only as the key you sign with."),
    Row("delegation_invalid", 400, "The delegations do not hold by themselves",
        "Let the issuer sign them anew, outermost first, the last one to the session's key."),
    Row("proof_invalid", 400, "The new key did not sign its enrolment",
        "Sign the proof with the key that is to be enrolled, for this API key and this ledger."),
    Row("approval_invalid", 400, "An approval does not hold by itself",
        "Have its approver sign it anew, with this version: tallystick approve."),
    Row("key_statement_invalid", 400, "The statement is not one of this ledger's root for this action",
        "Make it with `tallystick keys rotate`, `retire` or `compromise`, and the folder of this ledger's root."),
    Row("key_unready", 409, "The gateway has no private key for what is to be announced",
        "Put the key and its passphrase into keys/ of the data directory, then send the same request again.", SAME),
    Row("rules_invalid", 400, "The text is no rule set", "Mend what the detail names: tallystick rules check FILE"),
    Row("rules_unready", 409, "The gateway has no engine for rules",
        "Install the extra `rules` beside it and start it again, then send the same request again.", SAME),
    Row("rules_unchecked", 409, "The text could not be looked through",
        "Make it smaller, or send the same request again when the gateway's machine has less to do.", SAME),
    # Who may read.
    Row("reader_unknown", 403, "This key reads nothing here", "Ask the operator for `tallystick agent add`."),
    Row("reader_limited", 403, "This key does not read this",
        "Operators read API keys, and a trial agent what is its own: ask the operator."),
    Row("not_a_checkpoint", 400, "This is not a checkpoint of this ledger", "Send the note as you received it."),
    # Not now.
    Row("rate_limited", 429, "Too many requests", _RETRY, SAME),
    Row("busy", 503, "The gateway has too much to do", _RETRY, SAME),
    Row("draining", 503, "The gateway is stopping", _RETRY, SAME),
    Row("timed_out", 503, "The answer was not ready in time",
        "It may have happened. Send it again with the same Idempotency-Key; you get the first answer.", SAME),
    Row("store_unreachable", 503, "The gateway does not reach its database", _RETRY, SAME),
    Row("store_stalled", 503, "The database has not confirmed what was written", _RETRY, SAME),
    Row("store_unfit", 503, "The database would not keep what is promised",
        "Nothing happened. Reads go on; tell the operator, and send it again later with the same Idempotency-Key.",
        SAME),
    Row("outcome_unknown", 503, "Nobody knows yet whether it happened",
        "Send it again with the same Idempotency-Key: if it happened you get its answer, if not it is decided then.",
        SAME),
    Row("recovering", 503, "The gateway is finding out what it last wrote",
        "It may have happened. Send it again with the same Idempotency-Key; you get the first answer.", SAME),
    Row("ledger_damaged", 503, "The gateway found its own ledger damaged",
        "Nothing was decided. Tell the operator, who finds in the log what to do; receipts that you have stay good.",
        SAME),
    Row("entry_damaged", 500, "The stored entry no longer holds",
        "Tell the operator, who finds the cause in the log; your own copy of the receipt is still good."),
    Row("internal_error", 500, "The gateway failed",
        "Tell the operator; send it again with the same Idempotency-Key.", SAME),
)
# fmt: on
ROWS: Mapping[str, Row] = {row.code: row for row in _TABLE}


def problem_of(error: BaseException) -> Problem:
    """Return what the client is told about `error`; an unknown one is logged and tells nothing."""
    match error:
        case Refusable():
            return error.problem
        case Rejection():
            return _of_rejection(error)
        case Refused():
            return _of_refused(error)
        case RateLimited():
            spent = {"RateLimit": f'"{error.policy}";r=0'} if error.policy else {}
            return Problem(ROWS["rate_limited"], _RATE_USED_UP, headers={**_retry(error.retry_after_s), **spent})
        case Busy():
            row = ROWS[error.reason if error.reason in STORE_ROWS else "busy"]
            return Problem(row, STORE_ROWS.get(error.reason, error.reason), headers=_retry(error.retry_after_s))
        case BodyTooLarge():
            return Problem(ROWS["body_too_large"], f"At most {BODY_BYTES_MAX} bytes are read.")
        case BodyTooSlow():
            return Problem(ROWS["body_too_slow"], "The deadline for the body has passed.")
        case TimeoutError():
            return Problem(ROWS["timed_out"], "The deadline for the whole request has passed.", headers=_retry(1))
        case Draining():
            headers = {**_retry(DRAINING_SECONDS), **dict([CLOSE])}
            return Problem(ROWS["draining"], "This gateway is stopping.", headers=headers)
        case Damaged():
            return Problem(ROWS["ledger_damaged"], _DAMAGED.format(error), headers=_retry(DAMAGED_SECONDS))
        case Fatal():
            return Problem(ROWS["recovering"], "Decisions have stopped.", headers=_retry(RECOVERY_SECONDS))
        case web.RequestPayloadError():
            return Problem(ROWS["body_incomplete"], "The body's framing is wrong or it broke off.")
        case _:
            _log.error("internal_error", exc_info=error)
            return Problem(ROWS["internal_error"], "The request id finds the cause in the gateway's log.")


def render_problem(problem: Problem, request_id: str, now_ms: int) -> Reply:
    """Return the response for `problem`; 401 also carries how to sign and the gateway's time."""
    row = problem.row
    body = {
        "type": problem.type or f"urn:tallystick:problem:{row.code}",
        "title": row.title,
        "status": row.status,
        "code": row.code,
        "detail": problem.detail,
        "advice": row.advice,
        "retry": row.retry,
        "requestId": request_id,
        **problem.members,
    }
    headers = {**BASE_HEADERS, "Content-Type": CONTENT_TYPE, **problem.headers}
    if row.status == 401:
        body["nowMs"] = now_ms
        challenge = BEARER_CHALLENGE if row.code == "token_invalid" else CHALLENGE
        headers |= {"Accept-Signature": ACCEPT_SIGNATURE, "WWW-Authenticate": challenge}
    return Reply(row.status, orjson.dumps(body), tuple(headers.items()), request_id)


def _of_rejection(error: Rejection) -> Problem:
    row = ROWS.get(error.code)
    if row is None:
        row = Row(error.code, error.status, "The request is not acceptable", "See docs/protocol.md.")
    return Problem(row, error.detail)


def _of_refused(error: Refused) -> Problem:
    refusal = error.unreceipted.refusal
    title = refusal.name.replace("_", " ").capitalize()
    row = Row(refusal.name, refusal.status, title, refusal.advice, refusal.retry)
    members: dict[str, object] = {"number": refusal.number, **error.unreceipted.detail}
    detail = refusal.advice.partition(":")[0]
    if refusal is TRIAL_USED_UP:  # nothing refills, so there is no Retry-After
        members["violated-policies"] = ["trial"]
        return Problem(row, detail, members, {"RateLimit": f'"trial";r={members["left"]}'}, QUOTA_EXCEEDED)
    return Problem(row, detail, members=members)


def _retry(seconds: float) -> Mapping[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
