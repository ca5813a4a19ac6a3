"""After a proven second history nothing begins, goes on or queues; what gives back or takes away still works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR
from tests.verifier.scene import FIRST, Found, Scene, found
from tests.verifier.test_takings import other_history

T = FIRST + 1  # the ticket


def disputed(ledger: Scene) -> int:
    """ALICE holds lock:b and lock:c; BOB is offered lock:a; then the dispute. Returns the offer of lock:c to CAROL."""
    lease = ledger.grant(ALICE, "lock:a")
    ticket = ledger.queue(BOB, "lock:a")
    ledger.release(ALICE, lease)
    ledger.offer(ticket)
    ledger.grant(ALICE, "lock:b")
    offer = ledger.hand_over(ALICE, ledger.grant(ALICE, "lock:c"), CAROL)
    ledger.dispute(other_history(ledger))
    return offer


def test_what_a_dispute_leaves_possible() -> None:
    def tell(ledger: Scene) -> None:
        disputed(ledger)
        ledger.unclaimed(BOB, T, "ledger_disputed")
        ledger.acceptance(CAROL, FIRST + 5, "ledger_disputed")
        ledger.renewal(ALICE, FIRST + 4, "ledger_disputed", "read")
        ledger.deny(CAROL, "ledger_disputed", "lock:a", wait=True)
        body = {"leaseId": f"L{FIRST + 4}", "seenToken": 1, "toDid": BOB.did, "reason": "x"}
        ledger.no("transfer.refused", ALICE, "lease.transfer", body, "ledger_disputed")
        ledger.broken(FIRST + 4)
        ledger.release(ALICE, FIRST + 5)
        ledger.cancel(BOB, T)
        ledger.set_scheme("lock", "read-safe")

    assert found(tell) == []


LIES: list[tuple[str, Callable[[Scene, int], Any], Found]] = [
    ("claimed", lambda ledger, _: ledger.claim(BOB, T), [(14, "granted_in_dispute")]),
    ("polled", lambda ledger, _: ledger.poll(BOB, T), [(14, "refusal_due")]),
    ("changed", lambda ledger, _: ledger.change_mode(ALICE, FIRST + 4, "read"), [(14, "granted_in_dispute")]),
    ("accepted", lambda ledger, offer: ledger.accept(CAROL, offer), [(14, "granted_in_dispute")]),
    ("offered", lambda ledger, _: ledger.hand_over(ALICE, FIRST + 4, BOB), [(14, "refusal_due")]),
    ("queued", lambda ledger, _: ledger.queue(CAROL, "lock:b"), [(14, "queued_needlessly")]),
    ("no break", lambda ledger, _: unbroken(ledger), [(14, "error_unknown")]),
]


def unbroken(ledger: Scene) -> int:
    body = {"resource": "lock:b", "seenToken": 1, "reason": "x"}
    return ledger.no("break.refused", OPERATOR, "lease.break", body, "ledger_disputed")


@pytest.mark.parametrize(("lie", "wanted"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
def test_what_goes_on_in_a_dispute_is_found(lie: Callable[[Scene, int], Any], wanted: Found) -> None:
    assert found(lambda ledger: lie(ledger, disputed(ledger))) == wanted
