"""What witnesses have seen of this ledger, and proofs that one of its trees extends another. Open to everybody.

Hashes and signatures say nothing about what the entries are, so a members' ledger shows them too.
Source: docs/protocol.md 32.8, 32.9.
"""

from __future__ import annotations

import re

from gateway.ledger.cosigned import add_checkpoint_body
from gateway.ledger.history import Confirmed
from gateway.ledger.tree import prove_consistency
from gateway.store.contract import Reading
from gateway.web.connection import Reply
from gateway.web.house import TEXT, House
from gateway.web.problem import Refusable
from gateway.web.routes import Call, plain
from verifier.wire import Malformed, decode_decimal

_QUERY = re.compile(r"from=([^&=]+)(?:&to=([^&=]+))?")


async def witnessed(house: House, call: Call) -> Reply:
    """Serve the newest checkpoint that a quorum of witnesses cosigned, with all its lines."""
    newest = house.newest_witnessed()
    if newest is None:
        raise Refusable("not_found", "No checkpoint of this ledger was witnessed so far.")
    return plain(newest.note, TEXT)


async def consistency(house: House, call: Call) -> Reply:
    """Serve the proof that the tree of one of our checkpoints extends that of the first `from` entries.

    The bytes are those of a request to a witness: `old`, hashes, an empty line, the newer checkpoint.
    """
    old, to = _sizes(call.query)
    await house.news.reached(max(old, to or 0))
    found = await house.reads.call(lambda reader: _checkpoint(house, reader, old, to))
    if found is None or old > found.size:
        raise Refusable("not_found", "No checkpoint of that size was signed, or it is below `from`.")
    proof = await house.reads.call(lambda reader: _proof(reader, old, found.size))
    return plain(add_checkpoint_body(old, proof, found.note), TEXT)


def _sizes(query: str) -> tuple[int, int | None]:
    match = _QUERY.fullmatch(query)
    try:
        if match is not None:
            return decode_decimal(match[1]), None if match[2] is None else decode_decimal(match[2])
    except Malformed:
        pass
    raise Refusable("query_malformed", "The query is from=N or from=N&to=M, two sizes.")


def _checkpoint(house: House, reader: Reading, old: int, size: int | None) -> Confirmed | None:
    """Return our checkpoint of a size; without one the newest witnessed one that reaches `old`, else the newest."""
    confirmed, newest = house.sequencer.confirmed, house.newest_witnessed()
    if size is None:
        return newest if newest is not None and newest.size >= old else confirmed
    for known in (newest, confirmed):
        if known is not None and known.size == size:
            return known
    batch = reader.batch_at(size) if size < confirmed.size else None
    return None if batch is None or batch.note is None else Confirmed(size, batch.root, batch.note)


def _proof(reader: Reading, old: int, size: int) -> tuple[bytes, ...]:
    return prove_consistency(reader, old, size) if 0 < old < size else ()
