"""Finer lies: rules that only meet when two things come together."""

from __future__ import annotations

from tests.core.requests import (
    accept,
    acquire,
    add,
    batch,
    break_,
    did_of,
    release,
    remove_operator,
    set_scheme,
    transfer,
)
from tests.lies.kit import House, Json, Lie, Telling

ONE, TWO = "repo:a", "repo:b"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def subtree() -> House:
    """A holds a whole tree; B asks for a leaf of it."""
    house = House()
    house.hold("A", "repo:app/**")
    house.ask_for("B", "repo:app/src/a.py")
    return house


def folding() -> House:
    """A scheme folds case: A holds one spelling, B asks for another."""
    house = House()
    house.say(set_scheme("op", "doc", "exclusive", isFolding=True))
    house.hold("A", "doc:Plan")
    house.ask_for("B", "doc:plan")
    return house


def reading() -> House:
    """A and B read together; a writer waits, and C would read too."""
    house = House()
    house.say(set_scheme("op", "doc", "read-safe"))
    house.hold("A", "doc:x", mode="read")
    house.line("D", "doc:x")
    house.ask_for("C", "doc:x", mode="read")
    return house


def offered_anew() -> House:
    """A offers its lease to B, then to C; B accepts in vain."""
    house = House()
    lease = house.hold("A", ONE, ttlMs=60_000)
    token = house.last()["fencingToken"]
    house.say(transfer("A", lease, token, "B"))
    house.say(transfer("A", lease, token, "C"))
    house.say(accept("B", lease))
    return house


def handed_on() -> House:
    """C got A's lease and let it run out within its first time: that costs both."""
    house = House()
    lease = house.hold("A", ONE, ttlMs=60_000)
    house.t_ms += 5_000
    house.say(transfer("A", lease, house.last()["fencingToken"], "C"))
    house.say(accept("C", lease, ttlMs=10_000))
    house.later(10_000)
    return house


def stale() -> House:
    """The operator saw A's token; by now B holds."""
    house = House()
    lease = house.hold("A", ONE, ttlMs=60_000)
    token = house.last()["fencingToken"]
    house.free("A", lease)
    house.hold("B", ONE, ttlMs=60_000)
    house.say(break_("op", ONE, token))
    return house


def tree_of_two() -> House:
    """A holds for a minute and renews for less."""
    house = House()
    lease = house.hold("A", ONE, ttlMs=60_000)
    house.renew("A", lease, ttlMs=5_000)
    house.say(release("B", ONE, leaseId=lease))
    return house


def orphaned() -> House:
    """op2 is removed, and with it X stands alone."""
    house = House()
    house.hold("X", ONE)
    house.say(remove_operator("op", "op2"))
    return house


def first_of_many() -> House:
    """B waits for two names, first in line and for long; then it may reserve."""
    house = House(reserve_after_ms=10_000, claim_ms=5_000)
    house.hold("A", ONE, ttlMs=600_000)
    house.line("B", ONE, TWO)
    house.later(10_000)
    house.later(15_000)
    return house


def soft_circle() -> House:
    """A waits behind B's ticket for what B waits for, and B for what A holds."""
    house = House()
    house.hold("A", ONE)
    house.hold("C", TWO)
    house.hold("B", "repo:c")
    house.line("B", TWO)
    house.line("B", ONE)
    house.line("A", TWO)
    return house


def second_in_the_way() -> House:
    """B and C stand in line for what is free but reserved to B; D is told of B."""
    house = House()
    lease = house.hold("A", ONE)
    house.line("B", ONE)
    house.line("C", ONE)
    house.free("A", lease)
    house.ask_for("D", ONE)
    return house


def closed_for_two() -> House:
    """Two delays keep two names closed; B is told of the one that ends last."""
    house = House()
    house.say(set_scheme("op", "repo", "exclusive", lockDelayMs=20_000))
    house.hold("A", ONE, ttlMs=5_000)
    house.hold("C", TWO, ttlMs=8_000)
    house.later(5_000)
    house.later(3_000)
    house.ask_for("B", ONE, TWO)
    return house


def two_stand_against() -> House:
    """B holds the second and the third of A's names, and A wants all or nothing."""
    house = House()
    house.hold("B", TWO)
    house.hold("B", "repo:c")
    house.say(batch("A", *(acquire("A", name) for name in (ONE, TWO, "repo:c")), isAtomic=True))
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _without_leases(t: Telling, name: str, resource: str) -> int:
    t.forget("lease/")
    return t.go_on(lambda house: house.hold(name, resource))


def _past_writer(t: Telling) -> int:
    t.forget("ticket/", "ledger/tickets")
    return t.go_on(lambda house: house.hold("C", "doc:x", mode="read"))


def _old_offer(t: Telling) -> int:
    """The core has kept the older offer."""
    lease = t.house.own_lease()
    t.pretend(f"handover/{lease}", to_did=did_of("B"), seq=t.at("transfer.offered", 0))
    return t.go_on(lambda house: house.say(accept("B", lease)))


def _fresh_hold(t: Telling) -> int:
    place = t.at("lease.transferred")
    return t.edit(place, holdUntilMs=t.entries[place]["timeMs"] + 3_600_000)


def _giver_spared(t: Telling) -> int:
    place = t.at("lease.expired")
    return t.edit(place, trust=t.own(place)["trust"][:1])


def _broken_by_old_token(t: Telling) -> int:
    """The lease that is broken is another than the operator saw."""
    place, seq = t.at("break.refused"), t.at("lease.granted")
    asked = {name: t.own(place)[name] for name in ("resource", "seenToken", "reason")}
    kept = {name: t.own(seq)[name] for name in ("resources", "leaseId")}
    about: Json = {"holder": did_of("B"), "grantSeq": seq, "grantedAtMs": t.entries[seq]["timeMs"]}
    return t.turn(place, "lease.broken", **asked, **kept, **about, fencingToken=asked["seenToken"])


def _break_repeated(t: Telling) -> int:
    """The release of the lease is called a break."""
    place = t.at("break.refused")
    asked = {name: t.own(place)[name] for name in ("resource", "seenToken", "reason")}
    return t.turn(place, "break.repeated", **asked, endedSeq=t.at("lease.released"))


def _shortened(t: Telling) -> int:
    """A renewal takes time away."""
    place = t.at("lease.renewed")
    t.cut(place + 1)
    return t.edit(place, expiresAtMs=t.entries[place]["timeMs"] + 5_000)


def _repeated(t: Telling) -> int:
    """B is told that it has released what A holds."""
    place = t.at("release.refused")
    lease = t.own(t.at("lease.granted"))
    return t.turn(place, "release.repeated", resources=[ONE], leaseId=lease["leaseId"], endedSeq=t.at("lease.renewed"))


def _unknown(t: Telling) -> int:
    """B is told that there is no such lease."""
    return t.edit(t.at("release.refused"), error="lease_unknown", number=402)


def _orphan_acts(t: Telling) -> int:
    t.pretend(f"operator/{did_of('op2')}", removed_seq=None)
    t.pretend("ledger/operators", value=2)
    return t.go_on(lambda house: house.hold("X", "repo:x"))


def _orphan_keeps(t: Telling) -> int:
    """What X held is not given back."""
    t.cut(t.at("lease.returned"))
    return len(t.entries) - 1


def _orphan_enrols(t: Telling) -> int:
    t.pretend(f"operator/{did_of('op2')}", removed_seq=None)
    return t.go_on(lambda house: house.say(add("op2", "Z")))


def _no_reservation(t: Telling) -> int:
    """B is not given its reservation, and D gets what it would have kept."""
    t.cut(t.at("wait.reserved"))
    t.forget("ticket/", "ledger/tickets")
    return t.go_on(lambda house: house.hold("D", TWO))


def _resumed_early(t: Telling) -> int:
    place = t.at("wait.resumed")
    return t.edit(place, timeMs=t.entries[place]["timeMs"] - 5_000)


def _reserved_again(t: Telling) -> int:
    place = t.at("wait.reserved")
    about = t.own(place)
    return t.invent("wait.reserved", **about | {"untilMs": t.entries[-1]["timeMs"] + 15_000})


def _soft_hidden(t: Telling) -> int:
    return t.edit(t.at("wait.queued"), softCycle=None, cycle=None)


def _bounded(t: Telling) -> int:
    """The core looks at two actors only, and says that it has looked at as many as it may."""
    t.cut(t.at("wait.queued"))
    t.forget("ticket/T" + str(len(t.entries)))
    t.house.parameters = t.house.parameters.__class__(deadlock_nodes=1)
    return t.go_on(lambda house: house.line("A", TWO))


def _later_ahead(t: Telling) -> int:
    """D is told of C, who is behind B."""
    queued = t.at("wait.queued", 1)
    place = t.at("lease.refused")
    said = t.own(place)["ahead"] | {"ticketId": f"T{queued}", "actor": did_of("C")}
    return t.edit(place, ahead=said)


def _earlier_delay(t: Telling) -> int:
    """B is told of the delay that ends first."""
    place, first = t.at("lease.refused"), t.at("lease.expired", 0)
    until_ms = t.own(first)["delayUntilMs"]
    now_ms = t.entries[place]["timeMs"]
    return t.edit(place, holder=did_of("A"), endedSeq=first, delayUntilMs=until_ms, retryAfterMs=until_ms - now_ms)


def _later_command(t: Telling) -> int:
    """The batch is refused for its third command, though the second stands first."""
    place = t.at("batch.refused")
    third = t.at("lease.granted")
    conflict = t.own(place)["conflict"] | {"resource": "repo:c", "heldAs": "repo:c"}
    conflict |= {"leaseId": f"L{third}", "fencingToken": t.own(third)["fencingToken"]}
    return t.edit(place, index=2, conflict=conflict)


def _clock_forward(t: Telling) -> int:
    """The clock is set forward by an hour, which ends A's lease; then B, who signs by the true time, is granted."""
    ask = t.house.now(acquire("B", ONE))
    t.house.t_ms += 3_600_000
    t.go_on(lambda house: house.run(house.t_ms))
    t.go_on(lambda house: house.hold("B", ONE))
    place = len(t.entries) - 1
    signed = t.answer(t.house.anchored(ask), "lease.granted")
    return t.edit(place, request=t.entries.pop(signed)["request"], ttlMs=30_000,
                  expiresAtMs=t.entries[place]["timeMs"] + 30_000)  # fmt: skip


LIES = (
    Lie("leaf of a held tree", "It granted B a name in the tree that A held.", subtree,
        lambda t: _without_leases(t, "B", "repo:app/src/a.py"), "double_grant", "7.2"),
    Lie("another spelling", "It granted B another spelling of what A held.", folding,
        lambda t: _without_leases(t, "B", "doc:plan"), "double_grant", "7.2"),
    Lie("reader past a writer", "It let C read past the writer in line.", reading, _past_writer, "queue_jumped",
        "23.4"),
    Lie("withdrawn offer accepted", "It let B accept what A had offered to C since.", offered_anew, _old_offer,
        "not_offered", "27.1"),
    Lie("hold begun anew", "It gave C a new bound of the hold with A's lease.", handed_on, _fresh_hold, "hold_wrong",
        "7.2"),
    Lie("giver spared", "It let only C pay for what A had handed on.", handed_on, _giver_spared, "trust_wrong",
        "25.1"),
    Lie("wrong lease broken", "It broke B's lease by a token of A's.", stale, _broken_by_old_token, "token_wrong",
        "8.1"),
    Lie("break said to be repeated", "It called A's release a break.", stale, _break_repeated, "citation_wrong",
        "12.6"),
    Lie("renewal takes time away", "It moved the end of A's lease back.", tree_of_two, _shortened, "end_wrong",
        "7.4"),
    Lie("release said to be repeated", "It told B that it had released what A holds.", tree_of_two, _repeated,
        "citation_wrong", "12.6"),
    Lie("lease denied", "It told B that there is no such lease.", tree_of_two, _unknown, "refusal_wrong", "10.1"),
    Lie("agent without operator acts", "It granted something to X, whose operator was removed.", orphaned,
        _orphan_acts, "operator_removed", "28.2"),
    Lie("agent without operator keeps", "It did not give back what X held when its operator was removed.", orphaned,
        _orphan_keeps, "return_missing", "29.4"),
    Lie("removed operator enrols", "It let op2 enrol an agent after its removal.", orphaned, _orphan_enrols,
        "operator_removed", "28.2", ("operator_required",)),
    Lie("reservation withheld", "It gave D what B had to reserve.", first_of_many, _no_reservation,
        "reservation_missing", "23.8"),
    Lie("reservation cut", "It ended B's reservation five seconds early.", first_of_many, _resumed_early,
        "resumed_early", "23.8"),
    Lie("reserved again", "It gave B a second reservation.", first_of_many, _reserved_again, "reservation_wrong",
        "23.8"),
    Lie("soft circle hidden", "It queued A without telling of the circle that somebody may yet open.", soft_circle,
        _soft_hidden, "cycle_wrong", "24.5"),
    Lie("search said to be bounded", "It looked at one actor only and said that it could look at no more.",
        soft_circle, _bounded, "cycle_wrong", "24.5"),
    Lie("wrong waiter named", "It named C to D, where B is the next.", second_in_the_way, _later_ahead, "ahead_wrong",
        "23.4"),
    Lie("shorter delay named", "It named the delay that ends first.", closed_for_two, _earlier_delay,
        "citation_wrong", "12.6", ("delay_wrong", "stampede_wrong", "holder_wrong")),
    Lie("later command blamed", "It refused a batch for its third command, where the second stood first.",
        two_stand_against, _later_command, "refusal_wrong", "10.1"),
    Lie("clock set forward", "It ended A's lease by setting its clock forward, and granted B's request.", subtree,
        _clock_forward, "outside_window", "4.10"),
)  # fmt: skip
