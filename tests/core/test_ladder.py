"""Which refusal wins: a request that is wrong in every way, repaired fault by fault, climbs the table in its order.

The rows that every request climbs first are in tests/core/test_decide.py; here are those of each action.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.core.dispute import disputed
from gateway.core.refusal import BY_NAME, TABLE
from tests.core.book import vkey_of
from tests.core.crew import digest
from tests.core.hall import Hall
from tests.core.requests import (
    Ask,
    accept,
    acquire,
    add,
    add_operator,
    beat,
    break_,
    cancel,
    claim,
    close,
    did_of,
    enrol,
    issue,
    key_note,
    release,
    remove,
    remove_operator,
    renew,
    revoke,
    set_scheme,
    state_key,
    transfer,
)
from verifier.checkpoint import parse_checkpoint

NOTE = b"gateway.example/main\n9\n" + b"A" * 43 + b"=\n\n\xe2\x80\x94 gateway.example/main AAAAAAAA\n"
E = did_of("E")


class Scene(Hall):
    """A hall, and the lease that the request is about, where more than one rung needs it."""

    lease_id = ""


Rung = tuple[Callable[[Scene], Ask], str]
"""What is repaired, with the request as it stands then, and the refusal that it meets ("" for none)."""


def scene() -> Scene:
    """Return a ledger in which a name may be wrong in every way, and E may hold four names."""
    made = Scene(held_per_principal=4, lock_delay_ms=0, queue_per_resource=8, max_hold_ms=20_000)
    made.say(set_scheme("op", "log", "append-only"))
    made.say(set_scheme("op", "slow", "exclusive", lockDelayMs=5_000))
    made.hold("E", "repo:own", ttlMs=1_000_000)
    return made


def dispute(one: Scene) -> None:
    one.run(one.t_ms, steps=[disputed(NOTE, parse_checkpoint(NOTE), [vkey_of("log", "log")])])


def settled(one: Scene) -> None:
    del one.shelf.records["ledger/dispute"]


def acquiring() -> list[Rung]:
    def disputes(one: Scene) -> Ask:
        dispute(one)
        return acquire("E", "log:\u00e4", "log:b", "slow:c", "slow:d")

    def settles(one: Scene) -> Ask:
        settled(one)
        return acquire("E", "log:\u00e4", "log:b", "slow:c", "slow:d")

    def spells(one: Scene) -> Ask:
        return acquire("E", "log:a", "log:b", "slow:c", "slow:d")

    def appends(one: Scene) -> Ask:
        return acquire("E", "log:a", "log:b", "slow:c", "slow:d", mode="append")

    def names_fewer(one: Scene) -> Ask:
        one.hold("A", "slow:c")
        one.ask_for("A", "repo:own")  # A waits for E now
        return acquire("E", "slow:c")

    def forgets_the_circle(one: Scene) -> Ask:
        one.later(10_000)
        return acquire("E", "slow:c")

    def breaks(one: Scene) -> Ask:
        ticket = one.line("B", "slow:c")
        one.say(break_("op", "slow:c", next(x.fencing_token for x in one.leases().values() if x.holder != E)))
        assert ticket in one.tickets()
        return acquire("E", "slow:c")

    def lets_the_delay_end(one: Scene) -> Ask:
        one.later(5_000)
        return acquire("E", "slow:c")

    def cancels(one: Scene) -> Ask:
        (ticket,) = one.tickets()
        one.cancel("B", ticket)
        return acquire("E", "slow:c")

    return [
        (disputes, "ledger_disputed"), (settles, "name_not_allowed"), (spells, "mode_not_allowed"),
        (appends, "too_many_held"), (names_fewer, "deadlock"), (forgets_the_circle, "lease_held"),
        (breaks, "lock_delayed"), (lets_the_delay_end, "queued"), (cancels, ""),
    ]  # fmt: skip


def waiting() -> list[Rung]:
    def stands_twice(one: Scene) -> Ask:
        one.hold("A", "repo:x")
        for name in "BCDF":
            one.line(name, "repo:x")
        one.line("E", "repo:x")
        one.line("A", "repo:own", onDeadlock="wait")
        return acquire("E", "repo:x", wait=True)

    def leaves(one: Scene) -> Ask:
        one.cancel("E", max(one.tickets(), key=lambda ticket_id: one.tickets()[ticket_id].actor == E))
        one.parameters = type(one.parameters)(queue_per_resource=4)
        return acquire("E", "repo:x", wait=True)

    def makes_room(one: Scene) -> Ask:
        one.parameters = type(one.parameters)(queue_per_resource=8)
        return acquire("E", "repo:x", wait=True)

    def waits_it_out(one: Scene) -> Ask:
        return acquire("E", "repo:x", wait=True, onDeadlock="wait")

    return [(stands_twice, "already_waiting"), (leaves, "queue_full"), (makes_room, "deadlock"), (waits_it_out, "")]


def extending() -> list[Rung]:
    def holds_too_long(one: Scene) -> Ask:
        one.line("A", "repo:own", "repo:other")
        one.later(20_000)
        return acquire("E", "repo:own")

    def lets_go(one: Scene) -> Ask:
        (ticket,) = one.tickets()
        one.cancel("A", ticket)
        return acquire("E", "repo:own")

    return [(holds_too_long, "hold_exceeded"), (lets_go, "")]


def changing() -> list[Rung]:
    def disputes(one: Scene) -> Ask:
        dispute(one)
        return renew("E", "L999", mode="write")

    def settles(one: Scene) -> Ask:
        settled(one)
        return renew("E", "L999", mode="write")

    def names_anothers(one: Scene) -> Ask:
        return renew("E", one.hold("A", "log:l", "doc:d", mode="read"), mode="write")

    def names_a_broken(one: Scene) -> Ask:
        lease_id = one.hold("E", "slow:b")
        one.say(break_("op", "slow:b", one.leases()[lease_id].fencing_token))
        return renew("E", lease_id, mode="read")

    def names_a_transferred(one: Scene) -> Ask:
        lease_id = one.hold("E", "repo:t")
        one.say(transfer("E", lease_id, one.leases()[lease_id].fencing_token, "B"))
        one.say(accept("B", lease_id))
        return renew("E", lease_id, mode="read")

    def names_a_changed(one: Scene) -> Ask:
        lease_id = one.hold("E", "repo:u")
        one.renew("E", lease_id, mode="read")
        return renew("E", lease_id, mode="read")

    def names_a_returned(one: Scene) -> Ask:
        lease_id = one.hold("E", "repo:v")
        one.say(remove("op", "E"))
        one.say(add("op", "E"))
        return renew("E", lease_id, mode="read")

    return [
        (disputes, "ledger_disputed"), (settles, "lease_unknown"), (names_anothers, "lease_not_yours"),
        (names_a_broken, "lease_broken"), (names_a_transferred, "lease_transferred"),
        (names_a_changed, "lease_changed"), (names_a_returned, "lease_returned"),
    ]  # fmt: skip


def strengthening() -> list[Rung]:
    """Of a lease that is there only its scheme and others can be in the way."""

    def asks_for_too_much(one: Scene) -> Ask:
        one.lease_id = one.hold("E", "log:l", mode="read")
        return renew("E", one.lease_id, mode="write")

    def shares(one: Scene) -> Ask:
        return renew("E", one.lease_id, mode="append")

    return [(asks_for_too_much, "mode_not_allowed"), (shares, "")]


def offering() -> list[Rung]:
    def disputes(one: Scene) -> Ask:
        dispute(one)
        return transfer("E", "L999", 7, "E")

    def settles(one: Scene) -> Ask:
        settled(one)
        return transfer("E", "L999", 7, "E")

    def names_anothers(one: Scene) -> Ask:
        return transfer("E", one.hold("A", "repo:x"), 7, "E")

    def names_a_released(one: Scene) -> Ask:
        lease_id = one.hold("E", "repo:r")
        one.free("E", lease_id)
        return transfer("E", lease_id, 7, "E")

    def names_its_own(one: Scene) -> Ask:
        return transfer("E", one.hold("E", "repo:y"), 7, "E")

    def looks_again(one: Scene) -> Ask:
        lease_id, lease = max(one.leases().items(), key=lambda item: item[1].fencing_token)
        return transfer("E", lease_id, lease.fencing_token, "E")

    def offers_to_another(one: Scene) -> Ask:
        lease_id, lease = max(one.leases().items(), key=lambda item: item[1].fencing_token)
        return transfer("E", lease_id, lease.fencing_token, "B")

    return [
        (disputes, "ledger_disputed"), (settles, "lease_unknown"), (names_anothers, "lease_not_yours"),
        (names_a_released, "lease_released"), (names_its_own, "token_stale"), (looks_again, "not_offered"),
        (offers_to_another, ""),
    ]  # fmt: skip


def accepting() -> list[Rung]:
    """A hands four names over: E holds too much, then A's other lease, a delay and a ticket stand in its way."""

    def offer(one: Scene, to: str = "E") -> None:
        token = one.leases()[one.lease_id].fencing_token
        one.say(transfer("A", one.lease_id, token, to))

    def disputes(one: Scene) -> Ask:
        one.lease_id = one.hold("A", "slow:a", "slow:b", "slow:c", "slow:d")
        dispute(one)
        return accept("E", "L999")

    def settles(one: Scene) -> Ask:
        settled(one)
        return accept("E", "L999")

    def names_an_expired(one: Scene) -> Ask:
        lease_id = one.hold("E", "repo:z", ttlMs=1_000)
        one.later(1_000)
        return accept("E", lease_id)

    def names_it(one: Scene) -> Ask:
        return accept("E", one.lease_id)

    def is_offered(one: Scene) -> Ask:
        offer(one)
        return accept("E", one.lease_id)

    def lets_go_of_its_own(one: Scene) -> Ask:
        mine = next(lease_id for lease_id, lease in one.leases().items() if lease.holder == E)
        one.free("E", mine)
        one.free("A", one.lease_id)
        one.lease_id = one.hold("A", "slow:a")
        one.hold("A", "slow:**")
        offer(one)
        return accept("E", one.lease_id)

    def meets_a_delay(one: Scene) -> Ask:
        wide = next(x for x in one.leases().values() if x.resources == ("slow:**",))
        one.say(break_("op", "slow:**", wide.fencing_token))
        return accept("E", one.lease_id, at_ms=one.t_ms)

    def meets_a_ticket(one: Scene) -> Ask:
        one.line("C", "slow:a")
        one.later(5_000)
        return accept("E", one.lease_id)

    def an_operator_offers(one: Scene) -> Ask:
        lease = one.leases()[one.lease_id]
        one.say(transfer("op", lease.lease_id, lease.fencing_token, "E"))
        return accept("E", one.lease_id)

    return [
        (disputes, "ledger_disputed"), (settles, "lease_unknown"), (names_an_expired, "lease_expired"),
        (names_it, "not_offered"), (is_offered, "too_many_held"), (lets_go_of_its_own, "lease_held"),
        (meets_a_delay, "lock_delayed"), (meets_a_ticket, "queued"), (an_operator_offers, ""),
    ]  # fmt: skip


def breaking() -> list[Rung]:
    """A dispute does not stop it: nothing is granted by it."""

    def by_an_agent(one: Scene) -> Ask:
        dispute(one)
        return break_("E", "repo:own", 7)

    def by_an_operator(one: Scene) -> Ask:
        return break_("op", "repo:own", 7)

    def having_looked(one: Scene) -> Ask:
        (lease,) = one.leases().values()
        return break_("op", "repo:own", lease.fencing_token)

    return [(by_an_agent, "operator_required"), (by_an_operator, "token_stale"), (having_looked, "")]


def setting() -> list[Rung]:
    return [
        (lambda one: set_scheme("E", "repo", "read-safe"), "operator_required"),
        (lambda one: set_scheme("op", "repo", "read-safe"), "scheme_busy"),
        (lambda one: release("E", "repo:own"), ""),
        (lambda one: set_scheme("op", "repo", "read-safe"), ""),
    ]


def keeping_to_a_scope(ask: Callable[[], Ask], repaired: Callable[[], Ask], told: str) -> list[Rung]:
    """Outside its scope a session learns nothing of the ledger, not even that it is disputed."""

    def is_outside(one: Scene) -> Ask:
        one.open("S", "E", verbs=["lease"], resources=["repo:s/**"])
        dispute(one)
        return ask()

    def is_inside(one: Scene) -> Ask:
        return repaired()

    def settles(one: Scene) -> Ask:
        settled(one)
        return repaired()

    return [(is_outside, "outside_scope"), (is_inside, "ledger_disputed"), (settles, told)]


def administering() -> dict[str, list[Rung]]:
    """What operators do to keys."""

    def another(one: Scene) -> Ask:
        one.say(add_operator("op", "op2"))
        return remove_operator("op", "op")

    return {
        "add an operator": [
            (lambda one: add_operator("A", "E"), "operator_required"),
            (lambda one: add_operator("op", "E"), "key_taken"),
            (lambda one: add_operator("op", "op2"), ""),
        ],
        "remove an operator": [
            (lambda one: remove_operator("A", "op2"), "operator_required"),
            (lambda one: remove_operator("op", "op2"), "operator_not_found"),
            (lambda one: remove_operator("op", "op"), "operator_last"),
            (another, ""),
        ],
        "add an agent": [
            (lambda one: add("A", "op"), "operator_required"),
            (lambda one: add("op", "op"), "key_taken"),
            (lambda one: add("op", "Z"), ""),
        ],
        "remove an agent": [
            (lambda one: remove("A", "Z"), "operator_required"),
            (lambda one: remove("op", "Z"), "agent_not_found"),
            (lambda one: remove("op", "A"), ""),
        ],
    }


def issuing() -> dict[str, list[Rung]]:
    """What comes of API keys."""

    def named_twice(one: Scene) -> Ask:
        one.say(issue("op", digest("k"), "trial"))
        return issue("op", digest("k"), "live", agent=E)

    def used(one: Scene) -> Ask:
        one.say(issue("op", digest("k"), "trial"))
        one.say(enrol("Y", digest("k")))
        return enrol("Z", digest("k"))

    def unused(one: Scene) -> Ask:
        one.say(issue("op", digest("k2"), "trial"))
        return enrol("Z", digest("k2"))

    return {
        "enrol by an API key": [
            (lambda one: enrol("op", digest("k")), "key_taken"),
            (lambda one: enrol("Z", digest("k")), "apikey_not_found"),
            (used, "apikey_used"),
            (unused, ""),
        ],
        "issue an API key": [
            (lambda one: issue("A", digest("k"), "live", agent=E), "operator_required"),
            (named_twice, "agent_not_found"),
            (lambda one: issue("op", digest("k"), "live"), "apikey_known"),
            (lambda one: issue("op", digest("k2"), "live"), ""),
        ],
        "revoke an API key": [
            (lambda one: revoke("A", digest("k")), "operator_required"),
            (lambda one: revoke("op", digest("k")), "apikey_not_found"),
            (lambda one: issue("op", digest("k"), "live"), ""),
            (lambda one: revoke("op", digest("k")), ""),
        ],
    }


def presence() -> dict[str, list[Rung]]:
    """What sessions and those behind them say of them."""

    def opened(one: Scene) -> Ask:
        one.open("S", "E")
        return close("A", "S")

    def opens(one: Scene) -> Ask:
        one.open("S", "E")
        return beat("S")

    return {
        "close a session": [
            (lambda one: close("A", "S"), "session_unknown"),
            (opened, "session_not_yours"),
            (lambda one: close("E", "S"), ""),
        ],
        "beat": [(lambda one: beat("E"), "session_required"), (opens, "")],
    }


def lining(word: Callable[..., Ask]) -> list[Rung]:
    """Claims and cancels alike."""

    def names_anothers(one: Scene) -> Ask:
        one.hold("A", "repo:x")
        return word("E", one.line("B", "repo:x"))

    def names_an_ended(one: Scene) -> Ask:
        ticket_id = one.line("E", "repo:x")
        one.cancel("E", ticket_id)
        return word("E", ticket_id)

    return [
        (lambda one: word("E", "T999"), "ticket_unknown"), (names_anothers, "ticket_not_yours"),
        (names_an_ended, "ticket_ended"), (lambda one: word("E", one.line("E", "repo:x")), ""),
    ]  # fmt: skip


def stated(verb: str, purpose: str, name: str, following: str | None = None, by: str = "op") -> Callable[[Scene], Ask]:
    """Return a rung's request for what the root states about a key."""

    def request(one: Scene) -> Ask:
        return state_key(by, verb, key_note(verb, purpose, name, one.imprint.genesis, following))

    return request


def after(first: Callable[[Scene], Ask], then: Callable[[Scene], Ask]) -> Callable[[Scene], Ask]:
    """Return a rung that does something that is granted before it asks."""

    def request(one: Scene) -> Ask:
        assert "error" not in one.say(first(one)).value
        return then(one)

    return request


def announcing() -> list[Rung]:
    second, third = stated("announce", "log", "log 2", "log 3"), stated("announce", "log", "log 3")
    return [
        (stated("announce", "log", "receipt", by="A"), "operator_required"),
        (stated("announce", "log", "receipt"), "key_known"),
        (after(second, stated("announce", "log", "log 4")), "key_not_committed"),
        (third, "key_overlap"),
        (after(stated("retire", "log", "log"), third), ""),
    ]


def ending(verb: str) -> list[Rung]:
    return [
        (stated(verb, "receipt", "log", by="A"), "operator_required"),
        (stated(verb, "receipt", "log"), "key_unknown"),
        (stated(verb, "receipt", "receipt"), "key_last"),
        (after(stated("announce", "receipt", "receipt 2"), stated(verb, "receipt", "receipt")), ""),
    ]


LADDERS: dict[str, list[Rung]] = {
    "announce a key": announcing(),
    "retire a key": ending("retire"),
    "disown a key": ending("compromise"),
    "acquire": acquiring(),
    "acquire and wait": waiting(),
    "extend": extending(),
    "renew in another mode": changing(),
    "renew in a stronger mode": strengthening(),
    "transfer": offering(),
    "accept": accepting(),
    "break": breaking(),
    "set a scheme": setting(),
    "claim": lining(claim),
    "cancel": lining(cancel),
    "acquire as a session": keeping_to_a_scope(lambda: acquire("S", "repo:x"), lambda: acquire("S", "repo:s/x"), ""),
    "renew as a session": keeping_to_a_scope(
        lambda: transfer("S", "L999", 7, "A"), lambda: renew("S", "L999"), "lease_unknown"
    ),
    **administering(),
    **issuing(),
    **presence(),
}


@pytest.mark.parametrize("rungs", LADDERS.values(), ids=LADDERS)
def test_a_request_meets_every_row_in_order(rungs: list[Rung]) -> None:
    one = scene()
    for prepare, expected in rungs:
        assert one.say(prepare(one)).value.get("error", "") == expected, prepare.__name__
    one.audit()
    places = [TABLE.index(BY_NAME[expected]) for _, expected in rungs if expected]
    # How a lease ended is one row of several; deadlock, lease_held, lock_delayed and queued come in this order.
    assert all(before <= after for before, after in pairwise(places))


def test_the_ladders_meet_the_whole_table() -> None:
    """But for rows of one action that tests/core/test_decide.py meets, for those of admissions, rules and asks for
    approval (test_admission_ladder.py, test_rules.py, test_approval.py), and for decision_failed."""
    met = {expected for rungs in LADDERS.values() for _, expected in rungs} - {""}
    elsewhere = {row.name for row in TABLE if not row.is_receipted}
    elsewhere |= {"lease_mismatch", "not_holder", "decision_failed"}
    elsewhere |= {row.name for row in TABLE if 600 < row.number < 650}
    assert met | elsewhere == set(BY_NAME) and not met & elsewhere
