"""The rooms that handlers may ask, and the constants that their answers share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.bearer import BearerDoor
from gateway.core.parameters import Parameters
from gateway.core.waitview import Shelf
from gateway.errors import Fatal
from gateway.ledger.history import Confirmed, stored_receipt
from gateway.ledger.sequencer import Sequencer
from gateway.news import News
from gateway.service import Desk, Ledger, Policy, WallClock
from gateway.signer import Signer
from gateway.web.connection import Fields
from gateway.web.limits import Buckets
from gateway.web.problem import BASE_HEADERS, Refusable
from gateway.web.reads import ReadThread
from gateway.web.scenes import Scenes
from gateway.web.tiles import Tile

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
BYTES = "application/octet-stream"
FOREVER = "public, max-age=31536000, immutable"
PRIVATE = "private, no-store"
_log = logging.getLogger("tallystick.web")


@dataclass(frozen=True, slots=True)
class House:
    """The rooms a handler may ask. `published` maps a path to its content type and to what gives its newest bytes;
    `answer_fields` are the headers that every decision's answer has, by the allowance that it was taken from;
    `newest_witnessed` gives the newest checkpoint that a quorum of witnesses cosigned, with the whole note;
    `is_denied` says of an entry bundle that the published retention policy lets us refuse it."""

    ledger: Ledger
    desk: Desk
    bearer: BearerDoor
    sequencer: Sequencer
    news: News
    signer: Signer
    clock: WallClock
    reads: ReadThread
    reports: Buckets
    all_reports: Buckets
    pictures: Buckets
    scenes: Scenes
    newest_witnessed: Callable[[], Confirmed | None]
    published: Mapping[str, tuple[str, Callable[[], bytes]]]
    answer_fields: Mapping[Policy, Fields]
    body_seconds: float
    shelf: Shelf
    is_draining: Callable[[], bool]
    is_denied: Callable[[Tile], bool]

    @property
    def cache(self) -> str:
        """Return Cache-Control of what entries say: never kept by anybody, and on a members' ledger nobody else's."""
        return "no-store" if self.ledger.is_public else PRIVATE


async def receipt_at(house: House, seq: int) -> bytes:
    """Return the receipt of an entry with its proof in the newest witnessed checkpoint, or while that does not reach it
    in the newest one; Refusable when there is none to give."""
    if not await house.news.reached(seq + 1):
        raise Refusable("not_found", f"The ledger has {house.sequencer.confirmed.size} entries so far.")
    confirmed, witnessed = house.sequencer.confirmed, house.newest_witnessed()
    at = confirmed if witnessed is None or seq >= witnessed.size else witnessed
    try:
        return await house.reads.call(
            lambda reader: stored_receipt(reader, house.signer, seq=seq, size=at.size, note=at.note)
        )
    except Fatal as damage:
        _log.error("a stored entry can't be served: %s", damage)
        raise Refusable("entry_damaged", f"Entry {seq} of the store is not the one that was signed.") from damage


def answer_fields(parameters: Parameters) -> Mapping[Policy, Fields]:
    """Return the headers of a decision's answer, with its allowance in the words of RateLimit-Policy.

    `w` is in how many seconds a spent allowance is whole again; a trial's is when it is over, for it never is.
    """
    window_s = max(1, -(-parameters.rate_burst // parameters.rate_per_second))
    policies: Mapping[Policy, str] = {
        "decisions": f'"decisions";q={parameters.rate_burst};w={window_s}',
        "trial": f'"trial";q={parameters.trial_decisions};w={parameters.trial_ms // 1_000}',
    }
    fields = (*BASE_HEADERS.items(), ("Content-Type", JSON))
    return {name: (*fields, ("RateLimit-Policy", text)) for name, text in policies.items()}
