"""Lies about those who wait: whose turn it is, until when, and who waits for whom."""

from __future__ import annotations

from gateway.core.records import Lease, Ticket
from tests.core.requests import accept, acquire, cancel, did_of, transfer
from tests.lies.kit import House, Json, Lie, Telling

ONE, TWO = "repo:a", "repo:b"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def in_line() -> House:
    """A holds; B and C stand in line."""
    house = House()
    house.hold("A", ONE)
    house.line("B", ONE)
    house.line("C", ONE)
    return house


def full() -> House:
    """A holds, and B stands in a line of one."""
    house = House(queue_per_resource=1)
    house.hold("A", ONE)
    house.line("B", ONE)
    return house


def next_one() -> House:
    """A gives back, B is offered what it waits for; C stands behind and D asks in vain."""
    house = in_line()
    house.free("A", house.own_lease())
    house.ask_for("D", ONE)
    return house


def turn_over() -> House:
    """B is offered what it waits for and does not come in time: then it asks."""
    house = House()
    lease = house.hold("A", ONE)
    ticket = house.line("B", ONE)
    house.free("A", lease)
    house.later(30_000)
    house.claim("B", ticket)
    return house


def turn_used() -> House:
    """B claims what it was offered, gives it back, and claims again."""
    house = House()
    lease = house.hold("A", ONE)
    ticket = house.line("B", ONE)
    house.free("A", lease)
    house.free("B", house.claim("B", ticket).text("leaseId"))
    house.claim("B", ticket)
    return house


def fell_silent() -> House:
    """B stands in line and is not heard of; then C joins."""
    house = in_line()
    house.cancel("C", house.own_ticket("C"))
    house.later(30_000)
    house.line("D", ONE)
    return house


def crossed() -> House:
    """A and B hold one each and want the other's: the second who asks is told of the circle."""
    house = House()
    house.hold("A", ONE)
    house.hold("B", TWO)
    house.ask_for("A", TWO)
    house.ask_for("B", ONE)
    return house


def not_crossed() -> House:
    """A and B hold one each; B wants A's, A wants nothing."""
    house = House()
    house.hold("A", ONE)
    house.hold("B", TWO)
    house.ask_for("B", ONE)
    return house


def once_crossed() -> House:
    """A waited for B's and gave up; B asks for A's."""
    house = House()
    house.hold("A", ONE)
    house.hold("B", TWO)
    house.cancel("A", house.line("A", TWO))
    house.ask_for("B", ONE)
    return house


def crossed_in_line() -> House:
    """A waits for what B holds; B would wait for what A holds, and is refused."""
    house = House()
    house.hold("A", ONE)
    house.hold("B", TWO)
    house.line("A", TWO)
    house.ask_for("B", ONE, wait=True)
    return house


def offered_on() -> House:
    """A offers its lease to C while B stands in line for it; C's acceptance is refused."""
    house = House()
    lease = house.hold("A", ONE)
    house.line("B", ONE)
    house.say(transfer("A", lease, house.leases()[lease].fencing_token, "C"))
    house.say(accept("C", lease))
    return house


def many_names() -> House:
    """B waits for two names of which one is free."""
    house = House()
    house.hold("A", ONE)
    house.line("B", ONE, TWO)
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _skip(t: Telling) -> int:
    """The core has forgotten B, who is the first, while A gives back."""
    t.forget("ticket/" + t.house.own_ticket("B"))
    return t.go_on(lambda house: house.free("A", house.own_lease())) + 1


def _jump(t: Telling) -> int:
    t.forget("ticket/", "ledger/tickets")
    return t.go_on(lambda house: house.hold("D", ONE))


def _withhold(t: Telling) -> int:
    place = t.at("wait.offered")
    t.drop(place)
    t.cut(place + 1)
    return place


def _offer_taken(t: Telling) -> int:
    ticket = t.house.tickets()[t.house.own_ticket("B")]
    until_ms = max(ticket.poll_by_ms, t.house.t_ms + 10_000)
    about: Json = {"ticketId": ticket.ticket_id, "ticketSeq": ticket.seq, "waiter": ticket.actor}
    return t.invent("wait.offered", **about, claimByMs=until_ms)


def _after_give_up(t: Telling) -> int:
    """The removal is left out, and the claim that came after it granted."""
    offer, asked = t.at("wait.offered"), t.own(t.at("wait.queued"))
    place = t.at("claim.refused")
    lease = _lease(t, place, asked)
    t.turn(place, "lease.claimed", **lease, ticketId=asked["ticketId"], ticketSeq=t.at("wait.queued"))
    assert offer < place
    t.edit(place, leaseId=f"L{place}")
    return t.drop(t.at("wait.removed"))


def _lease(t: Telling, place: int, asked: Json) -> Json:
    """Return the members of a lease of one exclusive name that an entry begins."""
    time_ms = t.entries[place]["timeMs"]
    return {
        "resources": asked["resources"],
        "mode": asked["mode"],
        "schemes": [{"name": "repo", "class": "exclusive", "isFolding": False}],
        "leaseId": f"L{t.entries[place]['seq']}",
        "fencingToken": max(time_ms * 1_000, t.record("ledger/token").value + 1),
        "ttlMs": asked["ttlMs"],
        "expiresAtMs": time_ms + asked["ttlMs"],
        "holdUntilMs": time_ms + 3_600_000,
    }


def _twice(t: Telling) -> int:
    place, queued = t.at("claim.refused"), t.at("wait.queued")
    asked = t.own(queued)
    return t.turn(place, "lease.claimed", **_lease(t, place, asked), ticketId=asked["ticketId"], ticketSeq=queued)


def _dead_kept(t: Telling) -> int:
    """The silent one is not removed, and counts before the next."""
    place = t.at("wait.queued")
    t.edit(place, position=2)
    t.drop(t.at("wait.removed"))
    return place - 1


def _position(t: Telling) -> int:
    return t.edit(t.at("wait.queued"), position=3)


def _short_poll(t: Telling) -> int:
    place = t.at("wait.queued")
    return t.edit(place, pollByMs=t.own(place)["pollByMs"] - 20_000)


def _short_claim(t: Telling) -> int:
    t.cut(t.at("wait.offered") + 1)
    place = t.at("wait.offered")
    return t.edit(place, claimByMs=t.own(place)["claimByMs"] - 1)


def _removed_early(t: Telling) -> int:
    t.pretend("ticket/" + t.house.own_ticket("B"), poll_by_ms=t.house.t_ms + 1_000)
    return t.go_on(lambda house: house.later(1_000))


def _skipped_early(t: Telling) -> int:
    """B's time to claim is taken for over, and it is C's turn."""
    t.pretend("ticket/" + t.house.own_ticket("B"), claim_by_ms=t.house.t_ms + 1_000)
    return t.go_on(lambda house: house.later(1_000))


def _fake_cycle(t: Telling) -> int:
    """The graph of the core is told that A waits for what B holds."""
    ticket = next(one for one in crossed_in_line().tickets().values())
    t.recall({f"ticket/{ticket.ticket_id}": ticket, f"actor/{ticket.actor}": ticket})
    del t.house.shelf.records[f"actor/{ticket.actor}"]
    return t.go_on(lambda house: house.ask_for("B", ONE))


def _overlooked(t: Telling) -> int:
    """A's refusal is forgotten, so the circle is not found."""
    t.cut(t.at("lease.refused"))
    t.forget("edge/")
    return _answered_again(t)


def _answered_again(t: Telling) -> int:
    place = t.go_on(lambda house: house.ask_for("B", ONE))
    told = t.own(place)
    assert told["error"] == "lease_held", told
    return t.edit(place, stampede={"admitted": True, "waitMs": 25}, retryAfterMs=25)


def _dead_cycle(t: Telling) -> int:
    """The ticket that A gave up is put back, and B refused for the circle that it would make."""
    records = crossed_in_line().shelf.records
    ticket = next(one for one in records.values() if isinstance(one, Ticket))
    assert ticket.ticket_id == t.own(t.at("wait.queued"))["ticketId"]
    t.recall({f"ticket/{ticket.ticket_id}": ticket})
    return t.go_on(lambda house: house.ask_for("B", ONE))


def _queued_in_circle(t: Telling) -> int:
    """The ticket of A is forgotten, and B queued behind A's lease for ever."""
    t.cut(t.at("lease.refused"))
    t.forget("ticket/")
    return t.go_on(lambda house: house.line("B", ONE)) + 0


def _past_the_line(t: Telling) -> int:
    place = t.at("acceptance.refused")
    t.cut(place)
    t.forget("ticket/", "ledger/tickets")
    lease = t.house.own_lease()
    return t.go_on(lambda house: house.say(accept("C", lease)))


def _claim_denied(t: Telling) -> int:
    """B was offered it and is told to go on waiting."""
    ticket = t.own(t.at("wait.offered"))
    poll_by_ms = t.house.t_ms + 30_000
    place = t.go_on(lambda house: house.claim("B", ticket["ticketId"]))
    about = {"ticketId": ticket["ticketId"], "ticketSeq": ticket["ticketSeq"]}
    return t.turn(place, "wait.polled", **about, pollByMs=poll_by_ms, position=1)


def _full(t: Telling) -> int:
    """D is sent away from a line of two as if it were full."""
    t.house.parameters = t.house.parameters.__class__(queue_per_resource=2)
    return t.go_on(lambda house: house.ask_for("D", ONE, wait=True))


def _squeezed_in(t: Telling) -> int:
    """C is taken into a line that is full, as if eight had room in it."""
    t.house.parameters = t.house.parameters.__class__(queue_per_resource=8)
    return t.go_on(lambda house: house.line("C", ONE))


def _reserved(t: Telling) -> int:
    """B's ticket for two names gets its reservation at once."""
    ticket = t.own(t.at("wait.queued"))
    about = {"ticketId": ticket["ticketId"], "ticketSeq": t.at("wait.queued"), "waiter": did_of("B")}
    return t.invent("wait.reserved", **about, untilMs=t.house.t_ms + 30_000)


def _cancelled(t: Telling) -> int:
    """D's request to cancel ends the ticket of B."""
    ticket = t.house.own_ticket("B")
    place = t.go_on(lambda house: house.say(cancel("D", ticket)))
    return t.turn(place, "wait.cancelled", ticketId=ticket, ticketSeq=t.at("wait.queued", 0))


def _queued_needlessly(t: Telling) -> int:
    """D asks for what is free and is put in line behind a lease that is not there."""
    lease = next(one for one in t.house.shelf.records.values() if isinstance(one, Lease))
    t.recall({"lease/L9": lease._replace(lease_id="L9", resources=(TWO,))})
    return t.go_on(lambda house: house.say(acquire("D", TWO, wait=True)))


LIES = (
    Lie("skipped waiter", "It offered C what B was first in line for.", in_line, _skip, "offer_missing", "23.5",
        ("queue_jumped",)),
    Lie("plain acquire past a ticket", "It granted D what was offered to B.", next_one, _jump, "queue_jumped",
        "23.4"),
    Lie("offer withheld", "It offered the free name to nobody.", next_one, _withhold, "offer_missing", "23.5"),
    Lie("offer of what is taken", "It offered B what A still held.", in_line, _offer_taken, "offer_wrong", "23.5"),
    Lie("grant after give-up", "It granted a claim that came after the ticket's end.", turn_over, _after_give_up,
        "ticket_over", "23.6"),
    Lie("ticket consumed twice", "It granted a second lease for one ticket.", turn_used, _twice, "citation_wrong",
        "12.6"),
    Lie("dead ticket kept", "It let a ticket that had lapsed stand before D's.", fell_silent, _dead_kept,
        "removal_missing", "23.3", ("position_wrong",)),
    Lie("position off by one", "It told C that two are before it.", in_line, _position, "position_wrong", "23.1"),
    Lie("patience cut", "It gave C ten seconds to come back instead of thirty.", in_line, _short_poll,
        "deadline_wrong", "23.1"),
    Lie("claim window cut", "It gave B a millisecond less to claim.", next_one, _short_claim, "deadline_wrong",
        "23.1"),
    Lie("ticket removed early", "It removed B's ticket after a second.", in_line, _removed_early, "removed_early",
        "23.3"),
    Lie("skip before its time", "It took B's turn away after a second, and offered it to C.", next_one, _skipped_early,
        "removed_early", "23.3"),
    Lie("ticket cancelled by another", "It let D cancel B's ticket.", in_line, _cancelled, "citation_wrong", "12.6"),
    Lie("claim denied", "It told B to go on waiting for what it was offered.", next_one, _claim_denied,
        "claim_denied", "23.6"),
    Lie("line said to be full", "It sent D away from a line of two.", in_line, _full, "refusal_wrong", "10.1"),
    Lie("squeezed into a full line", "It put C in a line that had no room.", full, _squeezed_in, "refusal_due", "6.3"),
    Lie("reserved without cause", "It reserved for B what others might have had.", many_names, _reserved,
        "reservation_wrong", "23.8"),
    Lie("queued for what is free", "It put D in line behind nobody.", in_line, _queued_needlessly,
        "queued_needlessly", "23.1"),
    Lie("fake cycle", "It refused B for a circle that it made up.", not_crossed, _fake_cycle, "refusal_wrong",
        "10.1"),
    Lie("cycle of dead tickets", "It refused B for a circle through a ticket that A had cancelled.", once_crossed,
        _dead_cycle, "refusal_wrong", "10.1"),
    Lie("cycle overlooked", "It told B to wait for A, who waits for B.", crossed, _overlooked, "refusal_wrong",
        "10.1"),
    Lie("queued into a circle", "It put B in line for what A holds, who waits for B.", crossed_in_line,
        _queued_in_circle, "cycle_wrong", "24.5"),
    Lie("transfer past a queue", "It gave C by transfer what B stood in line for.", offered_on, _past_the_line,
        "queue_jumped", "23.4"),
)  # fmt: skip
