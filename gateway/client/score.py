"""The trust of a key: a number that the ledger keeps, and every change of it, each proven by the entry that made it.

The number that a gateway tells is its bare word. Its history is not: a change stands in the entry that caused it (a
release, an expiry) with the value after it and the number of the entry before. So the way back is walked from receipt
to receipt, and what doesn't add up is refused.
Source: docs/protocol.md 7 (trust); scenario 47.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.client.errors import AnswerRefused
from gateway.client.receipts import VerifiedReceipt
from verifier.wire import JsonObject

if TYPE_CHECKING:  # agent.py uses this file
    from gateway.client.agent import Agent


@dataclass(frozen=True, slots=True)
class TrustChange:
    """One verified change of a key's trust, in thousandths of a point: `after` is the value it left.

    `previous_seq` is the entry of the change before, None at the first.
    """

    receipt: VerifiedReceipt
    change: int
    after: int
    previous_seq: int | None


async def changes(agent: Agent, did: str, last_seq: int) -> AsyncIterator[TrustChange]:
    """Yield the changes of `did` from the one in entry `last_seq` back to the first; AnswerRefused when one lies."""
    newer: TrustChange | None = None
    seq: int | None = last_seq
    while seq is not None:
        found = change_in(await agent.receipt(seq), did)
        if newer is not None and found.after + newer.change != newer.after:
            raise AnswerRefused(f"the trust of {did} after entry {seq} does not lead to that after {newer.receipt.seq}")
        yield found
        newer, seq = found, found.previous_seq


def change_in(receipt: VerifiedReceipt, did: str) -> TrustChange:
    """Return what an entry did to the trust of one key; AnswerRefused when it did nothing to it."""
    rows = receipt.leaf.value.get("trust")
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("did") == did:
            return _change(receipt, row)
    raise AnswerRefused(f"entry {receipt.seq} does not change the trust of {did}")


def _change(receipt: VerifiedReceipt, row: JsonObject) -> TrustChange:
    change, after, previous = row.get("change"), row.get("after"), row.get("previousSeq")
    if not isinstance(change, int) or not isinstance(after, int):
        raise AnswerRefused(f"entry {receipt.seq} states no change of trust")
    if isinstance(previous, int) and previous >= receipt.seq:
        raise AnswerRefused(f"entry {receipt.seq} names a later entry as the change before it")
    return TrustChange(receipt, change, after, previous if isinstance(previous, int) else None)
