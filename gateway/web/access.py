"""Who reads: nobody in particular on a public ledger, a key in force on a members' ledger."""

from __future__ import annotations

from gateway.core.intake import DECIDING, RawRequest, SignedRead, intake_read, is_inside_window
from gateway.core.outcome import Unreceipted
from gateway.core.refusal import UNKNOWN_HISTORY
from gateway.core.state import agent_at, operator_key
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


async def reader_of(house: House, call: Call, *, is_signed: bool = False) -> SignedRead | None:
    """Return who reads, or None for a stranger on a public ledger; raises when this one may not read.

    A signed read leaves no record: repeating it changes nothing.
    """
    if house.ledger.is_public and not is_signed:
        return None
    ledger = house.ledger
    read = intake_read(raw_request(call, b""), origin=ledger.origin, authorities=ledger.authorities)
    call.fields["actor"] = read.keyid
    _check_window(house, read)
    _check_in_force(house, read.keyid)
    await _check_anchor(house, read.anchor)
    return read


def _check_window(house: House, read: SignedRead) -> None:
    """A members' read lives 15 s at most, so that a captured one is soon worthless."""
    is_short = house.ledger.is_public or read.expires - read.created <= READ_LIFE_S_MEMBERS
    if not is_short or not is_inside_window(read, house.sequencer.time_ms, house.ledger.parameters.skew_ms):
        raise Refusable("outside_window", f"A signed read lives {READ_LIFE_S_MEMBERS} s at most.")


async def _check_anchor(house: House, anchor: Anchor) -> None:
    """A reader that saw another history is told so, as a signer of a decision would be."""
    if anchor.size <= house.sequencer.confirmed.size:
        ours = await house.reads.call(lambda reader: reader.batch_at(anchor.size))
        if ours is not None and ours.root == anchor.root:
            return
    raise Refused(Unreceipted(UNKNOWN_HISTORY, {}))


def _check_in_force(house: House, did: str) -> None:
    view = house.shelf
    agent = agent_at(view, did)
    is_agent = agent is not None and agent.removed_seq is None
    is_newcomer = agent is None and house.ledger.is_dev and house.ledger.is_public  # its first decision enrols it
    if not (is_agent or is_newcomer) and view.get(operator_key(did)) is None:
        raise Refusable("reader_unknown", "The key is not enrolled, or was removed.")
