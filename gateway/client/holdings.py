"""Which leases this process knows that its key holds, out of verified entries: what an admission is asked under.

The newest one that covers what is to be done is presented, even when trust in it has ended: the ledger then says which
entry ended it, and nothing is done. A lease that came by another process of the same key is not known here.
Source: docs/protocol.md 37.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.client.receipts import VerifiedReceipt
from gateway.client.trust import Grant
from verifier.entries import HOLDING, MODES, covers, full_type, key_of, rows_of, scheme_of
from verifier.wire import JsonObject

KEPT_MAX = 4_096  # leases; an agent may hold a quarter of that at once, and the oldest tokens go first
_OVER = frozenset(map(full_type, ("lease.released", "release.repeated")))


class Tokened(Protocol):
    """What names a lease and the token it was last seen with: a Grant, a HeldLease, a SeenLease."""

    @property
    def lease_id(self) -> str: ...

    @property
    def fencing_token(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SeenLease:
    """Somebody's lease as it was seen, in a view or in a refusal."""

    lease_id: str
    fencing_token: int


class Holdings:
    """The newest verified entry about each lease of one key, by the lease's id."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    def note(self, receipt: VerifiedReceipt, sent_ms: int) -> None:
        """Take in one decision about this key's leases; anything else changes nothing."""
        lease_id = receipt.leaf.text("leaseId")
        if receipt.type in HOLDING:
            self._grants[lease_id] = Grant(receipt, sent_ms)
            if len(self._grants) > KEPT_MAX:
                del self._grants[min(self._grants, key=lambda one: self._grants[one].fencing_token)]
        elif receipt.type in _OVER:
            self._grants.pop(lease_id, None)

    def covering(self, resources: Sequence[str], mode: str) -> Grant | None:
        """Return the newest lease that covers each of the names in a mode that is strong enough, or None."""
        return newest(grant for grant in self._grants.values() if _covers(grant, resources, mode))


def newest(grants: Iterable[Grant]) -> Grant | None:
    """Return the one with the highest token."""
    return max(grants, key=lambda grant: grant.fencing_token, default=None)


def is_strong_enough(held: str, asked: str) -> bool:
    """Say whether a lease of one mode is enough for what another is asked for."""
    return held in MODES and asked in MODES and MODES.index(held) >= MODES.index(asked)


def are_covered(names: Sequence[str], by: Sequence[str], folding: Iterable[str] = ()) -> bool:
    """Say whether each name lies within one of `by`; names of the schemes `folding` are the same in either case."""
    folded = frozenset(folding)

    def key(name: str) -> str:
        return key_of(name, scheme_of(name) in folded)

    return all(any(covers(key(around), key(name)) for around in by) for name in names)


def _covers(grant: Grant, resources: Sequence[str], mode: str) -> bool:
    rows: list[JsonObject] = rows_of(grant.receipt.leaf.value.get("schemes"))
    folding = [str(row["name"]) for row in rows if row.get("isFolding") is True]
    return is_strong_enough(grant.mode, mode) and are_covered(resources, grant.resources, folding)
