"""Lies about leases: who holds what, until when, by which token, and why somebody does not."""

from __future__ import annotations

from tests.core.requests import accept, break_, did_of, release, set_scheme, transfer
from tests.lies.kit import House, Lie, Telling

OLD, NEW = "repo:a", "repo:b"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def asked_twice() -> House:
    """A holds, B asks three times in vain."""
    house = House()
    house.hold("A", OLD)
    for _ in range(3):
        house.ask_for("B", OLD)
    return house


def ran_out() -> House:
    """A's lease runs out and B gets it; A renews too late."""
    house = House()
    lease = house.hold("A", OLD, ttlMs=5_000)
    house.later(5_000)
    house.renew("A", lease)
    house.hold("B", OLD)
    return house


def short() -> House:
    """A holds for five seconds."""
    house = House()
    house.hold("A", OLD, ttlMs=5_000)
    return house


def given_back() -> House:
    """A gives back after a real hold, in the moment in which B takes; then B changes its mode."""
    house = House()
    lease = house.hold("A", OLD)
    house.t_ms += 2_000
    house.free("A", lease)
    lease = house.hold("B", OLD)
    house.renew("B", lease, mode="read")
    return house


def handed_over() -> House:
    """A offers its lease to C, who accepts; B asks in vain."""
    house = House()
    lease = house.hold("A", OLD)
    token = house.last()["fencingToken"]
    house.say(transfer("A", lease, token, "C"))
    house.say(accept("B", lease))
    house.say(accept("C", lease))
    return house


def two_held() -> House:
    """A and C hold one each, C for longer; B asks for both."""
    house = House()
    house.hold("A", OLD, ttlMs=60_000)
    house.hold("C", NEW, ttlMs=90_000)
    house.ask_for("B", OLD, NEW)
    return house


def renewed() -> House:
    """A holds, extends and renews."""
    house = House()
    lease = house.hold("A", OLD, ttlMs=60_000)
    house.t_ms += 1_000
    house.ask_for("A", OLD, ttlMs=60_000)
    house.renew("A", lease, ttlMs=60_000)
    return house


def held_long() -> House:
    """A held for longer than it may while B waits, so its renewal is refused."""
    house = House(max_hold_ms=10_000)
    lease = house.hold("A", OLD, ttlMs=60_000)
    house.line("B", OLD)
    house.t_ms += 10_000
    house.renew("A", lease)
    return house


def kept_closed() -> House:
    """A's lease runs out and its scheme keeps others out for a while: B asks in vain."""
    house = House()
    house.say(set_scheme("op", "repo", "exclusive", lockDelayMs=20_000))
    house.hold("A", OLD, ttlMs=5_000)
    house.later(5_000)
    house.ask_for("B", OLD)
    return house


def at_the_bound() -> House:
    """A may hold two names and asks for a third."""
    house = House(held_per_principal=2)
    house.hold("A", OLD, NEW)
    house.ask_for("A", "repo:c")
    return house


def blind_release() -> House:
    """A signs a release without an id before its lease is granted; it comes after that."""
    house = House()
    early = house.now(release("A", OLD))
    house.t_ms += 2_000
    house.hold("A", OLD)
    house.play(house.t_ms, early)
    return house


def broken() -> House:
    """The operator breaks A's lease; A renews."""
    house = House()
    lease = house.hold("A", OLD)
    house.say(break_("op", OLD, house.last()["fencingToken"]))
    house.renew("A", lease)
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _double(t: Telling) -> int:
    t.forget("lease/")
    return t.go_on(lambda house: house.hold("B", OLD))


def _early(t: Telling) -> int:
    """The core takes the renewal for never made."""
    lease = t.own(t.at("lease.granted"))
    t.pretend(f"lease/{lease['leaseId']}", expires_at_ms=lease["expiresAtMs"])
    return t.go_on(lambda house: house.later(59_000))


def _zombie(t: Telling) -> int:
    """The expiry is left out, and what followed it answered as if the lease lived."""
    grant = t.own(t.at("lease.granted", 0))
    t.drop(t.at("lease.expired"))
    place = t.at("renewal.refused")
    kept = {name: grant[name] for name in ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs")}
    time_ms = t.entries[place]["timeMs"]
    seq = t.at("lease.granted", 0)
    more = {"ttlMs": 30_000, "expiresAtMs": time_ms + 30_000, "grantedAtMs": t.entries[seq]["timeMs"], "grantSeq": seq}
    t.turn(place, "lease.renewed", **kept, **more)
    t.drop(t.at("lease.granted"))
    return place


def _token_of_before(t: Telling) -> int:
    """Two grants of one moment get one token."""
    t.go_on(lambda house: house.hold("C", NEW))
    place = t.go_on(lambda house: house.hold("D", "repo:c"))
    return t.edit(place, fencingToken=t.own(place - 1)["fencingToken"])


def _token_skipped(t: Telling) -> int:
    t.go_on(lambda house: house.hold("C", NEW))
    place = t.go_on(lambda house: house.hold("D", "repo:c"))
    return t.edit(place, fencingToken=t.own(place)["fencingToken"] + 1)


def _old_token(t: Telling) -> int:
    place = t.at("lease.changed")
    return t.edit(place, fencingToken=t.own(t.at("lease.granted"))["fencingToken"])


def _old_token_over(t: Telling) -> int:
    place = t.at("lease.transferred")
    return t.edit(place, fencingToken=t.own(t.at("lease.granted"))["fencingToken"])


def _forged_refusal(t: Telling) -> int:
    """B is refused in the name of a lease that was given back."""
    seq, place = t.at("lease.granted", 0), t.at("lease.granted", 1)
    lease, time_ms = t.own(seq), t.entries[place]["timeMs"]
    t.cut(place + 1)
    row = {name: lease[name] for name in ("leaseId", "fencingToken", "mode", "expiresAtMs")}
    row |= {"resource": OLD, "heldAs": OLD, "grantedAtMs": t.entries[seq]["timeMs"]}
    asked = {"resources": [OLD], "mode": "write", "ttlMs": 3_600_000, "wait": False}
    told = {"error": "lease_held", "number": 408, "holder": did_of("A"), "conflict": row, "conflicts": 1}
    assert lease["expiresAtMs"] > time_ms
    return t.turn(place, "lease.refused", **asked, **told, stampede={"admitted": True, "waitMs": 25}, retryAfterMs=25)


def _wrong_holder(t: Telling) -> int:
    place, seq = t.at("lease.refused"), t.at("lease.granted", 0)
    lease = t.own(seq)
    row = {name: lease[name] for name in ("leaseId", "fencingToken", "mode", "expiresAtMs")}
    row |= {"resource": OLD, "heldAs": OLD, "grantedAtMs": t.entries[seq]["timeMs"]}
    return t.edit(place, holder=did_of("A"), conflict=row)


def _stampede(t: Telling) -> int:
    return t.edit(t.at("lease.refused"), stampede={"admitted": True, "waitMs": 50}, retryAfterMs=50)


def _long_retry(t: Telling) -> int:
    return t.edit(t.at("lease.refused"), retryAfterMs=3_600_000)


def _conflicts(t: Telling) -> int:
    return t.edit(t.at("lease.refused"), conflicts=2)


def _long_end(t: Telling) -> int:
    place = t.at("lease.renewed")
    return t.edit(place, expiresAtMs=t.own(place)["expiresAtMs"] + 10_000)


def _hold_moved(t: Telling) -> int:
    place = t.at("lease.extended")
    return t.edit(place, holdUntilMs=t.own(place)["holdUntilMs"] + 1)


def _hold_ignored(t: Telling) -> int:
    t.forget("ticket/")
    return t.go_on(lambda house: house.renew("A", t.own(t.at("lease.granted"))["leaseId"]))


def _granted_anew(t: Telling) -> int:
    t.forget("lease/")
    return t.go_on(lambda house: house.hold("A", OLD))


def _delay_ignored(t: Telling) -> int:
    t.forget("delay/")
    return t.go_on(lambda house: house.hold("B", OLD))


def _delay_hidden(t: Telling) -> int:
    place = t.at("lease.expired")
    t.cut(place + 1)
    return t.edit(place, delayUntilMs=None)


def _no_loss(t: Telling) -> int:
    return t.edit(t.at("lease.expired"), trust=None)


def _more_gain(t: Telling) -> int:
    place = t.at("lease.released")
    [row] = t.own(place)["trust"]
    return t.edit(place, trust=[row | {"change": row["change"] + 100, "after": row["after"] + 100}])


def _previous_change(t: Telling) -> int:
    place = t.at("lease.released")
    [row] = t.own(place)["trust"]
    return t.edit(place, trust=[row | {"previousSeq": 1}])


def _too_much(t: Telling) -> int:
    t.pretend(f"principal/{did_of('A')}", held=0)
    return t.go_on(lambda house: house.hold("A", "repo:c"))


def _others_lease(t: Telling) -> int:
    """A request of B to give back ends the lease of A."""
    seq = t.at("lease.granted")
    lease = t.own(seq)
    place = t.go_on(lambda house: house.say(release("B", OLD)))
    kept = {name: lease[name] for name in ("resources", "leaseId", "fencingToken")}
    return t.turn(place, "lease.released", **kept, grantedAtMs=t.entries[seq]["timeMs"], grantSeq=seq)


def _unseen(t: Telling) -> int:
    seq, place = t.at("lease.granted"), t.at("release.refused")
    kept = {name: t.own(seq)[name] for name in ("resources", "leaseId", "fencingToken")}
    return t.turn(place, "lease.released", **kept, grantedAtMs=t.entries[seq]["timeMs"], grantSeq=seq)


def _not_offered(t: Telling) -> int:
    """B, to whom nothing was offered, gets the lease that was offered to C."""
    whole, place = t.own(t.at("lease.transferred")), t.at("acceptance.refused")
    t.cut(place + 1)
    return t.turn(place, "lease.transferred", **whole | {"leaseId": f"L{place}"})


def _resurrected(t: Telling) -> int:
    """The expiry stays on record, and the lease goes on all the same."""
    seq, place = t.at("lease.granted", 0), t.at("renewal.refused")
    t.cut(place + 1)
    names = ("resources", "mode", "schemes", "leaseId", "fencingToken", "holdUntilMs")
    kept = {name: t.own(seq)[name] for name in names}
    time_ms = t.entries[place]["timeMs"]
    more = {"ttlMs": 30_000, "expiresAtMs": time_ms + 30_000, "grantedAtMs": t.entries[seq]["timeMs"], "grantSeq": seq}
    return t.turn(place, "lease.renewed", **kept, **more)


def _shorter(t: Telling) -> int:
    """A gets less time than it signed for."""
    place = t.at("lease.granted", 0)
    t.cut(place + 1)
    return t.edit(place, ttlMs=59_000, expiresAtMs=t.own(place)["expiresAtMs"] - 1_000)


def _break_denied(t: Telling) -> int:
    """The operator named the right token and is told that it is stale."""
    place = t.at("lease.broken")
    asked = {name: t.own(place)[name] for name in ("resource", "seenToken", "reason")}
    t.cut(place + 1)
    return t.turn(place, "break.refused", **asked, error="token_stale", number=413)


def _swapped(t: Telling) -> int:
    """B's grant is put before the release that made it possible."""
    t.cut(t.at("lease.granted") + 1)
    return t.swap(t.at("lease.released"), t.at("lease.granted"))


def _release_dropped(t: Telling) -> int:
    t.cut(t.at("lease.granted") + 1)
    t.drop(t.at("lease.released"))
    return t.at("lease.granted")


def _refusal_dropped(t: Telling) -> int:
    """One refusal is kept quiet, and the next one counts it all the same."""
    return t.drop(t.at("lease.refused", 1))


def _forgotten(t: Telling) -> int:
    """No entry says that A's lease ran out, so that A pays nothing for it; C asks for another name."""
    t.forget("lease/")
    t.house.t_ms += 100_000
    return t.go_on(lambda house: house.hold("C", NEW))


LIES = (
    Lie("forgotten lease", "It never wrote the expiry of A's lease, which nobody asked for again.", short, _forgotten,
        "expiry_overdue", "17.9"),
    Lie("double grant", "It granted B what A still held.", asked_twice, _double, "double_grant", "7.2"),
    Lie("early expiry", "It ended A's lease at the end it had before its renewal.", renewed, _early, "end_wrong",
        "7.4", ("expired_early",)),
    Lie("late expiry hidden", "It left out the expiry and renewed the dead lease.", ran_out, _zombie, "already_over",
        "7.14"),
    Lie("lease resurrected", "It renewed a lease after its own lease.expired.", ran_out, _resurrected,
        "citation_wrong", "12.6"),
    Lie("token reuse", "It gave two leases of one moment the same token.", given_back, _token_of_before,
        "token_not_rising", "8.1"),
    Lie("token not by formula", "It skipped a token.", given_back, _token_skipped, "token_wrong", "8.1"),
    Lie("old token after a change of mode", "It let the new lease keep the old token.", given_back, _old_token,
        "token_not_rising", "8.1"),
    Lie("old token after a transfer", "It let the receiver's lease keep the giver's token.", handed_over,
        _old_token_over, "token_not_rising", "8.1"),
    Lie("forged refusal", "It refused B in the name of a lease that had been given back.", given_back,
        _forged_refusal, "refusal_wrong", "10.1"),
    Lie("wrong holder named", "It named A, though C's lease ends later.", two_held, _wrong_holder, "conflict_wrong",
        "7.6", ("holder_wrong",)),
    Lie("conflicts miscounted", "It told of two leases in the way where one was.", asked_twice, _conflicts,
        "conflict_wrong", "7.6"),
    Lie("stampede count off by one", "It advised the third refusal as if it were the second.", asked_twice, _stampede,
        "stampede_wrong", "7.6"),
    Lie("sent away for too long", "It told B to wait an hour.", asked_twice, _long_retry, "stampede_wrong", "7.6"),
    Lie("refusal dropped", "It kept one refusal quiet and counted it in the next.", asked_twice, _refusal_dropped,
        "stampede_wrong", "7.6"),
    Lie("renewed for longer than asked", "It moved the end ten seconds too far.", renewed, _long_end, "end_wrong",
        "7.4"),
    Lie("shorter than signed", "It gave A less time than A's body asks for.", two_held, _shorter, "body_differs",
        "16.5"),
    Lie("hold bound moved", "It moved the bound of the hold with an extension.", renewed, _hold_moved, "hold_wrong",
        "7.2"),
    Lie("hold bound ignored", "It renewed past the bound while B waited.", held_long, _hold_ignored, "hold_exceeded",
        "7.13"),
    Lie("granted twice to one", "It granted A anew what A held, instead of extending it.", asked_twice, _granted_anew,
        "not_extended", "7.3"),
    Lie("lock-delay ignored", "It let B in while the names were closed.", kept_closed, _delay_ignored,
        "delay_ignored", "7.12"),
    Lie("lock-delay hidden", "It wrote an expiry without the delay of its scheme.", kept_closed, _delay_hidden,
        "delay_wrong", "7.12"),
    Lie("wrong trust", "It wrote an expiry that cost A nothing.", ran_out, _no_loss, "trust_wrong", "25.1"),
    Lie("trust inflated", "It paid A a hundred more for a release.", given_back, _more_gain, "trust_wrong", "25.1"),
    Lie("history of trust rewritten", "It cited a change of A's trust that never was.", given_back, _previous_change,
        "trust_wrong", "25.1"),
    Lie("more than one may hold", "It granted A a third name where two are the bound.", at_the_bound, _too_much,
        "too_many_held", "7.2"),
    Lie("another's lease released", "It took B's request to give back for A's lease.", asked_twice, _others_lease,
        "holder_wrong", "7.6"),
    Lie("late release hits a newer lease", "It let a release end a lease granted after it was signed.", blind_release,
        _unseen, "released_unseen", "7.5"),
    Lie("transfer to another", "It gave B the lease that was offered to C.", handed_over, _not_offered, "not_offered",
        "27.1"),
    Lie("break denied", "It told the operator that the token it named was stale.", broken, _break_denied,
        "refusal_wrong", "10.1"),
    Lie("swapped order", "It put B's grant before A's release.", given_back, _swapped, "double_grant", "7.2"),
    Lie("dropped entry", "It left out A's release.", given_back, _release_dropped, "double_grant", "7.2"),
)  # fmt: skip
