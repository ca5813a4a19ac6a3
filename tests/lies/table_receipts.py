"""Lies told to one reader: receipts of what is not in the ledger, of another's batch, of a second history."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from tests.core.requests import acquire, anchor_text, batch, did_of
from tests.lies.kit import LOG_2, RECEIPT_2, House, Json, Telling, sealed
from tests.verifier import maker

# Content by name: `receipt` is judged, compared with `other`; `keys` is the pinned document, if not that of `ours`;
# what else there is comes by --also.
Files: TypeAlias = dict[str, bytes]


@dataclass(frozen=True)
class ReceiptLie:
    """`told` makes the files of the lie and `honest` those of its twin; both go through the same command.

    The finding is `code`, which breaks `clause` of docs/protocol.md; `did` says in a sentence what the gateway did.
    """

    name: str
    did: str
    told: Callable[[], Files]
    honest: Callable[[], Files]
    code: str
    clause: str
    exit_code: int = 1
    command: str = "receipt"  # or compare


def house() -> House:
    """A, B and C hold one each, C by a batch."""
    made = House()
    made.hold("A", "repo:a", ttlMs=60_000)
    made.hold("B", "repo:b", ttlMs=60_000)
    made.say(batch("C", acquire("C", "repo:c"), acquire("C", "repo:d")))
    made.say(batch("C", acquire("C", "repo:e"), acquire("C", "repo:f")))
    return made


@cache
def base() -> House:
    return house()


@cache
def ours() -> maker.Ledger:
    return sealed(base().leaves)


@cache
def other() -> maker.Ledger:
    """The same ledger with another answer to B, and so another history from there on."""
    telling = Telling(base())
    place = telling.at("lease.granted", 1)
    telling.edit(place, fencingToken=telling.own(place)["fencingToken"] + 1)
    return sealed(telling.leaves())


A, B = 7, 8  # where A and B were granted
FIRST, SECOND = 9, 12  # the headers of the two batches


def _envelope(files_of: Json) -> Files:
    return {"receipt": maker.canonical(files_of)}


def _honest() -> Files:
    return {"receipt": ours().receipt(B)}


def _honest_command() -> Files:
    return {"receipt": ours().receipt(FIRST + 1)}


def _honest_beside() -> Files:
    return {"receipt": ours().receipt(B), "also": ours().receipt(A), "later": ours().checkpoint()}


def _never_entered() -> Files:
    """B's other leaf, signed, with the proof of the one that was written."""
    whole = maker.envelope(other().leaves[B], ours().proof(B))
    return _envelope(whole)


def _at_another_place() -> Files:
    return _envelope(maker.envelope(ours().leaves[B], ours().proof(A)))


def _two_leaves() -> Files:
    return {"receipt": other().receipt(B), "also": ours().receipt(B)}


def _two_roots() -> Files:
    return {"receipt": ours().receipt(A), "also": other().checkpoint()}


def _wrong_key() -> Files:
    """The log key signs what the receipt key should."""
    return _envelope(maker.envelope(ours().leaves[B], ours().proof(B), maker.LOG))


def _wrong_log() -> Files:
    """The receipt key signs what the log key should."""
    return {"receipt": ours().receipt(B, log=maker.RECEIPT)}


def _others_batch() -> Files:
    """A command of the first batch beside the header of the second."""
    whole = ours().envelope(FIRST + 1)
    return _envelope(whole | {"batch": ours().batch_part(SECOND)})


def _no_batch() -> Files:
    whole = ours().envelope(FIRST + 1)
    return _envelope({name: part for name, part in whole.items() if name != "batch"})


def _batch_of_other() -> Files:
    """A header that says something else than the one in the ledger: its leaf with another count."""
    whole = ours().envelope(FIRST + 1)
    header = json.loads(ours().leaves[FIRST]) | {"durability": "replicated"}
    part = ours().batch_part(FIRST) | {"leaf": maker.b64(maker.canonical(header))}
    return _envelope(whole | {"batch": part})


def _needless_batch() -> Files:
    return _envelope(ours().envelope(B) | {"batch": ours().batch_part(FIRST)})


def _unasked() -> Files:
    """B's grant of what B did not ask for, in a ledger of its own."""
    telling = Telling(house())
    telling.edit(telling.at("lease.granted", 1), resources=["repo:z"])
    return {"receipt": sealed(telling.leaves()).receipt(B)}


def _foreign() -> Files:
    """A's request with B's name to it, in a ledger of its own."""
    telling = Telling(house())
    telling.edit(telling.at("lease.granted", 0), actor=did_of("B"), principal=did_of("B"))
    return {"receipt": sealed(telling.leaves()).receipt(A)}


def _compared() -> Files:
    """Two receipts of one history, at two sizes, of which the larger shows the smaller."""
    return {"receipt": ours().receipt(A, 8), "other": ours().receipt(B)}


def _compared_leaves() -> Files:
    return {"receipt": ours().receipt(B, 9), "other": other().receipt(B)}


def _compared_roots() -> Files:
    return {"receipt": ours().checkpoint(), "other": other().receipt(A)}


def _compared_hashes() -> Files:
    """Neither size nor leaf is shared: one range of entries that both paths show has two hashes."""
    return {"receipt": ours().receipt(A, 10), "other": other().receipt(FIRST)}


def _links() -> Files:
    """The leaf after B's in our history, and B's in the other."""
    return {"receipt": ours().receipt(B + 1), "other": other().receipt(B, 9)}


def _links_of_one() -> Files:
    return {"receipt": ours().receipt(B + 1), "other": ours().receipt(B)}


@cache
def anchored() -> maker.Ledger:
    """The ledger, and a grant to D, who had seen its first nine entries."""
    made = deepcopy(base())
    ask = made.now(acquire("D", "repo:g")).but(anchor=anchor_text(size=9, root=sealed(made.leaves).root(9)))
    made.play(made.t_ms, ask)
    return sealed(made.leaves)


def _anchors() -> Files:
    """What D had seen, and what somebody else is shown of the same nine entries."""
    return {"receipt": anchored().receipt(len(anchored().leaves) - 1), "other": other().checkpoint(9)}


def _anchors_of_one() -> Files:
    return {"receipt": anchored().receipt(len(anchored().leaves) - 1), "other": anchored().checkpoint()}


def _begun_twice() -> Files:
    """Two ledgers of one name, each with an entry 0 of its own."""
    again = House(held_per_principal=5)
    return {"receipt": ours().receipt(A), "other": sealed(again.leaves).receipt(3)}


@cache
def rotated() -> House:
    """Both keys were rotated, and D was granted something since."""
    made = deepcopy(base())
    for old, new, purpose in ((maker.LOG, LOG_2, "log"), (maker.RECEIPT, RECEIPT_2, "receipt")):
        made.announce(new, purpose)
        made.retire(old, purpose)
    made.hold("D", "repo:g", ttlMs=60_000)
    return made


def _late(receipt_key: maker.Key, log_key: maker.Key) -> Files:
    """The receipt of what came after both rotations, by these keys."""
    ledger, seq = sealed(rotated().leaves), len(rotated().leaves) - 1
    whole = maker.envelope(ledger.leaves[seq], ledger.proof(seq, log=log_key), receipt_key)
    return {"receipt": maker.canonical(whole), "keys": rotated().document(2)}


def _by_keys_in_force() -> Files:
    return _late(RECEIPT_2, LOG_2)


def _by_retired_receipt_key() -> Files:
    return _late(maker.RECEIPT, LOG_2)


def _by_retired_log_key() -> Files:
    return _late(RECEIPT_2, maker.LOG)


def _too_soon() -> Files:
    """A receipt of before the rotation, by the key that came with it."""
    whole = maker.envelope(ours().leaves[B], ours().proof(B), RECEIPT_2)
    return {"receipt": maker.canonical(whole), "keys": rotated().document(2)}


LIES = (
    ReceiptLie("receipt of what was never entered", "It gave B a receipt of a leaf that its ledger does not have.",
               _never_entered, _honest, "not_included", "16.2"),
    ReceiptLie("receipt at another place", "It proved A's place for B's leaf.", _at_another_place, _honest,
               "not_included", "16.2"),
    ReceiptLie("two leaves of one seq", "It gave two readers two leaves of one place.", _two_leaves, _honest_beside,
               "two_leaves", "12.4", 4),
    ReceiptLie("two roots of one size", "It signed two checkpoints of one size for two readers.", _two_roots,
               _honest_beside, "two_roots", "13.2", 4),
    ReceiptLie("receipt by the log key", "It signed a receipt with its log key.", _wrong_key, _honest,
               "receipt_key_unknown", "14.2"),
    ReceiptLie("checkpoint by the receipt key", "It signed a checkpoint with its receipt key.", _wrong_log, _honest,
               "log_signature_missing", "16.2"),
    ReceiptLie("command of another batch", "It showed the header of another batch beside a command.", _others_batch,
               _honest_command, "batch_differs", "31.5"),
    ReceiptLie("command without its batch", "It showed a command without the request that it belongs to.", _no_batch,
               _honest_command, "batch_missing", "31.5"),
    ReceiptLie("header that is not in the ledger", "It showed a header that differs from the one it entered.",
               _batch_of_other, _honest_command, "batch_not_included", "31.5"),
    ReceiptLie("batch beside a request of its own", "It showed a batch beside a grant that needs none.",
               _needless_batch, _honest, "batch_unexpected", "31.5"),
    ReceiptLie("receipt of what was not asked", "It granted B another name and gave a receipt of it.", _unasked,
               _honest, "body_differs", "16.5"),
    ReceiptLie("receipt of another's request", "It gave B a receipt for what A had asked.", _foreign, _honest,
               "actor_differs", "16.5"),
    ReceiptLie("receipt by a retired key", "It signed a new receipt with the receipt key that it had retired.",
               _by_retired_receipt_key, _by_keys_in_force, "seq_outside_key", "15.6"),
    ReceiptLie("receipt below a retired log key", "It signed a new checkpoint with the log key that it had retired.",
               _by_retired_log_key, _by_keys_in_force, "size_outside_key", "15.6"),
    ReceiptLie("receipt by a key to come", "It signed an old receipt anew with a key that came later.", _too_soon,
               _by_keys_in_force, "seq_outside_key", "15.6"),
    ReceiptLie("two leaves by compare", "It gave two readers two leaves of one place, in trees of two sizes.",
               _compared_leaves, _compared, "two_leaves", "12.4", 4, "compare"),
    ReceiptLie("two roots by compare", "It gave one reader a checkpoint, and another a receipt below another tree.",
               _compared_roots, _compared, "two_roots", "13.2", 4, "compare"),
    ReceiptLie("two hashes by compare", "It gave two readers paths through two histories, at two sizes.",
               _compared_hashes, _compared, "two_hashes", "33.3", 4, "compare"),
    ReceiptLie("broken link by compare", "It gave a reader the leaf after one that another reader has otherwise.",
               _links, _links_of_one, "prev_differs", "33.3", 4, "compare"),
    ReceiptLie("anchor in another history", "It showed a reader other entries than D had signed to have seen.",
               _anchors, _anchors_of_one, "anchor_differs", "33.3", 4, "compare"),
    ReceiptLie("ledger begun twice", "It began two ledgers of one name.", _begun_twice, _compared, "two_geneses",
               "33.3", 4, "compare"),
)  # fmt: skip
