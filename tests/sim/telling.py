"""A signer that tells what it signs, and with which keys, before anybody sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.core.record_codec import decode_record
from gateway.core.records import LedgerKey
from gateway.signer import Signer
from tests.core.requests import ORIGIN
from tests.sim.keeper import take_all
from verifier import sig
from verifier.checkpoint import checkpoint_text
from verifier.note import parse_note
from verifier.receipt import pre_authentication

if TYPE_CHECKING:
    from gateway.store.contract import Store
    from tests.sim.simulation import Simulation


class Telling(Signer):
    """The keys of one process: all that lie in the folder when it begins, but for the one that it is `lacking`."""

    def __init__(self, simulation: Simulation, lacking: str = "") -> None:
        log, receipt, seal = (simulation.key(name) for name in ("log", "receipt", "seal"))
        super().__init__(ORIGIN, log=(log,), receipt=(receipt,), seal=seal)
        self.lacking = lacking
        self._simulation = simulation
        take_all(simulation, self, lacking)

    def heed_store(self, store: Store) -> None:
        """Know the keys before the start, as the gateway does that asks its witnesses first."""
        records = [decode_record(key, value) for key, value in store.records(("key/",))]
        self.heed(record for record in records if isinstance(record, LedgerKey))

    def sign_checkpoint(self, size: int, root: bytes) -> bytes:
        self._simulation.signs(checkpoint_text(ORIGIN, size, root), b"")
        note = super().sign_checkpoint(size, root)
        self._simulation.signed(parse_note(note), size)
        return note

    def sign_leaf(self, seq: int, leaf: bytes) -> bytes:
        self._simulation.signs(None, leaf)
        signature, key = super().sign_leaf(seq, leaf), self.receipt_key(seq)
        is_its = sig.is_valid(key.public_key, pre_authentication(leaf), signature)
        self._simulation.signed_leaf(seq, key.vkey if is_its else "nobody")
        return signature
