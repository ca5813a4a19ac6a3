"""Short stories about many actors: a ledger with three agents, and words for what a gateway says of them.

Every story is written out by hand, numbers included; nothing of verifier/replay/ helps. The first free seq is FIRST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.verifier import maker
from tests.verifier.judging import of_ledger
from tests.verifier.maker import ALICE, BOB, CAROL, Json, Key

FIRST = 6
NUMBERS = {
    "operator_required": 105, "agent_not_found": 106, "outside_scope": 118, "operator_not_found": 122,
    "operator_last": 123, "key_taken": 124, "apikey_not_found": 125, "apikey_known": 126, "apikey_used": 127,
    "session_unknown": 128, "session_not_yours": 129, "session_required": 130, "key_known": 131,
    "key_not_committed": 132, "key_overlap": 133, "key_unknown": 134, "key_last": 135, "lease_returned": 418,
    "name_not_allowed": 301, "mode_not_allowed": 302, "scheme_busy": 303,
    "ledger_disputed": 401, "lease_unknown": 402, "lease_not_yours": 403, "lease_released": 404, "lease_expired": 405,
    "lease_mismatch": 406, "not_holder": 407, "lease_held": 408, "lease_broken": 410, "lease_transferred": 411,
    "lease_changed": 412, "token_stale": 413, "hold_exceeded": 414, "lock_delayed": 415, "not_offered": 416,
    "too_many_held": 417, "queued": 501, "deadlock": 502, "queue_full": 503, "already_waiting": 504,
    "ticket_unknown": 505, "ticket_not_yours": 506, "ticket_ended": 507, "fence_unknown": 601, "stale_fence": 602,
    "lease_too_narrow": 603, "lease_required": 604, "admission_conflict": 605, "approval_wrong": 611,
    "approver_unfit": 612, "approval_expired": 613, "approval_used": 614, "approval_required": 615,
    "policy_error": 621, "forbidden_by_rules": 622, "not_permitted": 623, "rules_out_of_turn": 631,
    "ask_unknown": 641, "ask_not_yours": 642, "ask_ended": 643, "too_many_asked": 644,
}  # fmt: skip


class Scene(maker.Ledger):
    """Methods append one entry each and return its seq, as those of the maker do."""

    def deny(self, key: Key, error: str, *names: str, mode: str = "write", wait: bool = False, **told: Any) -> int:
        """A `lease.refused` that tells `told`."""
        body: Json = {"resources": list(names), "mode": mode, **({"wait": True} if wait else {})}
        said = {"resources": sorted(names), "wait": wait, "ttlMs": 30_000, **told}
        return self.refused("lease.refused", key, "lease.acquire", body, error, NUMBERS[error], **said)

    def no(self, name: str, key: Key, action: str, body: Json, error: str, **told: Any) -> int:
        """Any other refusal."""
        return self.refused(name, key, action, body, error, NUMBERS[error], **told)

    def held(self, seq: int, name: str, held_as: str | None = None, *, conflicts: int = 1, waits: int = 0) -> Json:
        """What `lease_held` tells of a lease, while it is admitted."""
        conflict = self.conflict(seq, name, held_as)
        return {"holder": self.value(seq)["actor"], "conflict": conflict, "conflicts": conflicts, **advice(waits)}

    def ahead(self, ticket: int, name: str) -> Json:
        """What `queued` tells of a ticket, the first time."""
        asked = self.value(ticket)
        row = {"ticketId": f"T{ticket}", "actor": asked["actor"], "resource": name, "mode": asked["mode"]}
        return {"ahead": {**row, "queuedAtMs": asked["timeMs"]}, **advice(0)}

    def line(
        self,
        key: Key,
        *names: str,
        mode: str = "write",
        position: int = 1,
        give_up_ms: int = 3_600_000,
        on_deadlock: str = "refuse",
        change: Callable[[Json], None] | None = None,
        **told: Any,
    ) -> int:
        """A `wait.queued` with what its request may choose."""
        ticket = {"ticketId": f"T{len(self.leaves)}", "position": position}
        until = {"pollByMs": self.time_ms + 30_000, "giveUpByMs": self.time_ms + give_up_ms}
        asked: Json = {"resources": sorted(names), "mode": mode, "ttlMs": 30_000, "giveUpMs": give_up_ms}
        body = {**asked, "wait": True, "onDeadlock": on_deadlock}
        return self.decision("wait.queued", key, "lease.acquire", body, {**asked, **ticket, **until, **told}, change)

    def renewal(self, key: Key, lease: int, error: str, mode: str | None = None, **told: Any) -> int:
        body = {"leaseId": f"L{lease}", "ttlMs": 30_000, **({} if mode is None else {"mode": mode})}
        return self.no("renewal.refused", key, "lease.renew", body, error, **told)

    def acceptance(self, key: Key, lease: int, error: str, **told: Any) -> int:
        body = {"leaseId": f"L{lease}", "ttlMs": 30_000}
        return self.no("acceptance.refused", key, "lease.accept", body, error, **told)

    def unclaimed(self, key: Key, ticket: int, error: str, **told: Any) -> int:
        return self.no("claim.refused", key, "wait.claim", {"ticketId": f"T{ticket}"}, error, **told)

    def remove_ticket(self, ticket: int, reason: str) -> int:
        return self.waiting("wait.removed", ticket, reason=reason)

    def leave(self, session: Key, *leases: int, tickets: tuple[int, ...] = (), by: Key | None = None) -> int:
        """A session is closed and gives back these tickets and leases; return the seq of the close."""
        closed = self.close(session, by, leases=len(leases), tickets=len(tickets))
        self.give_back(closed, *leases, tickets=tickets)
        return closed

    def give_back(self, cause: int, *leases: int, tickets: tuple[int, ...] = ()) -> None:
        for ticket in tickets:
            self.remove_ticket(ticket, "holder_gone")
        for lease in leases:
            self.returned(lease, cause)

    def resume(self, ticket: int) -> int:
        return self.waiting("wait.resumed", ticket)

    def reserve(self, ticket: int, **over: Any) -> int:
        return self.waiting("wait.reserved", ticket, **{"untilMs": self.time_ms + 30_000, **over})


def advice(waits: int, wait_ms: int | None = None) -> Json:
    """`stampede` and `retryAfterMs` of the refusal after `waits` others, below the bound of those admitted."""
    wait_ms = min(800, 25 * 2**waits) if wait_ms is None else wait_ms
    return {"stampede": {"admitted": True, "waitMs": wait_ms}, "retryAfterMs": wait_ms}


def scene(**parameters: int) -> Scene:
    """A ledger with ALICE, BOB and CAROL; `parameters` replace those of entry 0."""
    ledger = Scene()
    ledger.open(parameters={**maker.PARAMETERS, **parameters})
    ledger.time_ms += 10
    ledger.start()
    for key in (ALICE, BOB, CAROL):
        ledger.add(key)
    ledger.time_ms += 500
    return ledger


Found = list[tuple[int, str]]
Tell = Callable[[Scene], Any]


def found(tell: Tell, **parameters: int) -> Found:
    """(seq, code) of every finding in the ledger that `tell` writes."""
    ledger = scene(**parameters)
    tell(ledger)
    return [(-1 if seq is None else seq, code) for _, seq, code in of_ledger(ledger)]


def edit(**changes: Any) -> Callable[[Json], None]:
    """A lie: members of a finished leaf are replaced."""
    return lambda leaf: leaf.update(changes)
