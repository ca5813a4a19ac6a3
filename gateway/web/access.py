"""Who reads: nobody in particular on a public ledger, a key in force or an API key on a members' ledger."""

from __future__ import annotations

from binascii import a2b_base64
from dataclasses import dataclass
from typing import Literal

import orjson

from gateway.core.authority import agent_fault, is_operator, remembered_session, session_fault
from gateway.core.intake import DECIDING, RawRequest, Rejection, SignedRead, intake_read, is_inside_window
from gateway.core.lookup import agent_at
from gateway.core.outcome import Unreceipted
from gateway.core.refusal import TRIAL_OVER, UNKNOWN_HISTORY, Refusal
from gateway.ledger.sequencer import Refused
from gateway.web.house import House
from gateway.web.problem import Refusable
from gateway.web.routes import Call
from verifier.request import Anchor

READ_LIFE_S_MEMBERS = 15
# What every HTTP library sends and no signed request is judged by; left out because each would be decoded for nothing.
_SAYS_NOTHING = frozenset(
    {b"accept", b"accept-encoding", b"accept-language", b"connection", b"content-length", b"date", b"user-agent"}
)
# The names that a signed request has, as clients spell them; any other spelling is brought to lower case when it comes.
_NAMES = {spelled: name for name in DECIDING for spelled in (name.encode(), name.title().encode())}


def raw_request(call: Call, body: bytes) -> RawRequest:
    """Return the request as it came over the wire: names in lower case, values as Latin-1, nothing merged."""
    request = call.request
    fields = []
    for raw, value in request.raw_headers:
        name = _NAMES.get(raw)
        if name is None:
            lower = raw.lower()
            if lower in _SAYS_NOTHING:
                continue
            name = lower.decode("latin-1")
        fields.append((name, value.decode("latin-1")))
    authority = request.headers.get("Host", "")
    return RawRequest(request.method, authority, call.path, f"?{call.query}", tuple(fields), body)


Role = Literal["operator", "member", "trial"]


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads, and as what: a trial agent sees its own things only.

    `did` is whose key it is, empty for an API key that stands for nobody; `payer` is whose allowance it uses.
    """

    did: str
    role: Role
    payer: str


def bearer_token(call: Call) -> str | None:
    """Return the token of a request that carries one in place of a signature, else None.

    With both, it goes the way of the signed ones, where it is turned away: which of the two counted, would be a guess.
    """
    headers = call.request.headers
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or "Signature" in headers or "Signature-Input" in headers:
        return None
    _check_single(call)
    return token.strip(" ")


def _check_single(call: Call) -> None:
    """What decides stands once; two readers of two tokens would see two requests."""
    names = [name.lower() for name, _ in call.request.raw_headers]
    for name in (b"authorization", b"content-type", b"idempotency-key"):
        if names.count(name) > 1:
            raise Rejection("header_repeated", f"header {name.decode()} stands there twice; send it once")


async def reader_of(house: House, call: Call, *, is_signed: bool = False) -> Reader | None:
    """Return who reads, or None for a stranger on a public ledger; raises when this one may not read.

    A read leaves no record: repeating it changes nothing. Where it must be a certain key's, `is_signed`, the token of
    an API key that speaks for an agent is as good as a signature of that agent.
    """
    if house.ledger.is_public and not is_signed:
        return None
    token = bearer_token(call)
    reader = await _signer_of(house, call) if token is None else await _holder_of(house, token)
    call.fields["actor"] = reader.did
    return reader


async def _holder_of(house: House, token: str) -> Reader:
    key = await house.bearer.known(token, house.bearer.reader_of)
    return Reader(key.agent or "", "member", f"apikey {key.digest}")


async def _signer_of(house: House, call: Call) -> Reader:
    ledger = house.ledger
    read = intake_read(raw_request(call, b""), origin=ledger.origin, authorities=ledger.authorities)
    call.fields["actor"] = read.keyid
    _check_window(house, read)
    reader = await house.news.known(lambda: _reader(house, read.keyid), Refusable)
    await _check_anchor(house, read.anchor)
    return reader


def _check_window(house: House, read: SignedRead) -> None:
    """A members' read lives 15 s at most, so that a captured one is soon worthless."""
    is_short = house.ledger.is_public or read.expires - read.created <= READ_LIFE_S_MEMBERS
    if not is_short or not is_inside_window(read, house.sequencer.time_ms, house.ledger.parameters.skew_ms):
        raise Refusable("outside_window", f"A signed read lives {READ_LIFE_S_MEMBERS} s at most.")


async def _check_anchor(house: House, anchor: Anchor) -> None:
    """A reader that saw another history is told so, as a signer of a decision would be."""
    if await house.news.reached(anchor.size):
        ours = await house.reads.call(lambda reader: reader.batch_at(anchor.size))
        if ours is not None and ours.root == anchor.root:
            return
    raise Refused(Unreceipted(UNKNOWN_HISTORY, {}))


def _reader(house: House, did: str) -> Reader:
    """Return what a key reads as, by what it is in force as; who was something here is told why it is no more."""
    view, now_ms = house.shelf, house.sequencer.time_ms
    if is_operator(view, did):
        return Reader(did, "operator", did)
    agent, session = agent_at(view, did), remembered_session(view, did, now_ms)
    if session is not None and (agent is None or agent.removed_seq is not None):  # an agent in force is no session
        _check_fault(session_fault(session, now_ms))
        return Reader(did, "member", session.principal)
    if agent is not None:
        fault = agent_fault(view, agent, now_ms)
        _check_fault(None if fault is TRIAL_OVER else fault)  # what it has done on trial, it may see
        return Reader(did, "member" if agent.trial_until_ms is None else "trial", did)
    if house.ledger.is_dev and house.ledger.is_public:
        return Reader(did, "member", did)  # a newcomer: its first decision enrols it
    raise Refusable("reader_unknown", "The key is not enrolled, or was removed.")


def _check_fault(fault: Refusal | None) -> None:
    if fault is not None:
        raise Refused(Unreceipted(fault, {}))


def check_unlimited(house: House, reader: Reader | None) -> None:
    """Raise unless this reader sees what others do; on a public ledger everybody does."""
    if reader is not None and reader.role == "trial" and not house.ledger.is_public:
        raise Refusable("reader_limited", "A trial agent sees what is its own.")


def check_own(house: House, reader: Reader | None, receipt: bytes) -> None:
    """Raise when a trial agent asks for the receipt of an entry that is not its own."""
    if reader is not None and reader.role == "trial":
        leaf = orjson.loads(a2b_base64(orjson.loads(receipt)["payload"]))
        if leaf["actor"] != reader.did:
            check_unlimited(house, reader)
