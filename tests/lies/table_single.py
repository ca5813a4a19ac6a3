"""One lie for each rule that no other table breaks, so that every finding about entries is shown by a lie."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.core.requests import (
    NOW_MS,
    beat,
    chain,
    close,
    delegated,
    did_of,
    enrol,
    open_session,
    release,
    remove,
    remove_operator,
    set_scheme,
    statement,
)
from tests.lies.kit import House, Json, Lie, Telling
from tests.lies.table_people import closed, idle
from tests.lies.table_waiting import many_names, next_one, turn_over, turn_used

ONE, TWO = "repo:a", "repo:b"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def asked_when_over() -> House:
    """A's lease is over when B asks, so its expiry comes first."""
    house = House()
    house.hold("A", ONE, ttlMs=5_000)
    house.t_ms += 5_500
    house.hold("B", ONE)
    return house


def asked_when_resumed() -> House:
    """B's reservation is over when D asks, so it is resumed first."""
    house = House(reserve_after_ms=10_000, claim_ms=5_000)
    house.hold("A", ONE, ttlMs=600_000)
    house.line("B", ONE, TWO)
    house.later(10_000)
    house.t_ms += 15_500
    house.hold("D", TWO)
    return house


def in_two_modes() -> House:
    """A holds one name in two modes, renews the first, and gives back without saying which."""
    house = House()
    first = house.hold("A", "doc:x", mode="read")
    house.renew("A", first)
    house.hold("A", "doc:x", mode="write")
    house.t_ms += 1_000
    house.say(release("A", "doc:x"))
    return house


def narrow() -> House:
    """A scheme takes ASCII only and is never overwritten: A is refused for either."""
    house = House()
    house.say(set_scheme("op", "doc", "append-only"))
    house.ask_for("A", "doc:é", mode="append")
    house.ask_for("A", "doc:x", mode="write")
    return house


def short_ttl() -> House:
    """Nobody may hold for more than ten seconds at a time."""
    house = House(ttl_max_ms=10_000)
    house.hold("A", ONE, ttlMs=10_000)
    return house


def closed_by_another() -> House:
    """B tries to close A's session, and to be present without one."""
    house = House()
    house.open("s", "A")
    house.say(close("B", "s"))
    house.say(beat("B"))
    house.say(remove("op", "Z"))
    house.say(remove_operator("op", "Z"))
    return house


def one_session() -> House:
    """A may have one session."""
    house = House(sessions_per_principal=1)
    house.open("s", "A")
    return house


def tried() -> House:
    """A trial of a minute."""
    house = House(trial_ms=60_000)
    house.say(enrol("T", house.key("trial", "trial")))
    house.ask_for("T", f"trial:{did_of('T')}/x", ttlMs=60_000)
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _expiry_left_out(t: Telling) -> int:
    return t.drop(t.at("lease.expired"))


def _resumption_left_out(t: Telling) -> int:
    return t.drop(t.at("wait.resumed"))


def _resumed(t: Telling) -> int:
    queued = t.at("wait.queued")
    return t.invent("wait.resumed", ticketId=f"T{queued}", ticketSeq=queued, waiter=did_of("B"))


def _offered_twice(t: Telling) -> int:
    place = t.at("wait.offered")
    t.cut(place + 1)
    return t.invent("wait.offered", **t.own(place))


def _ticket_differs(t: Telling) -> int:
    place = t.at("lease.claimed")
    t.cut(place + 1)
    return t.edit(place, ttlMs=20_000, expiresAtMs=t.entries[place]["timeMs"] + 20_000)


def _too_long(t: Telling) -> int:
    t.house.parameters = t.house.parameters.__class__()
    return t.go_on(lambda house: house.hold("B", TWO, ttlMs=20_000))


def _mode_differs(t: Telling) -> int:
    place = t.at("lease.renewed")
    t.cut(place + 1)
    return t.edit(place, mode="write")


def _overwritten(t: Telling) -> int:
    t.pretend("scheme/doc", class_name="exclusive")
    return t.go_on(lambda house: house.hold("A", "doc:x", mode="write"))


def _beyond_ascii(t: Telling) -> int:
    t.pretend("scheme/doc", is_unicode=True)
    return t.go_on(lambda house: house.hold("A", "doc:é", mode="append"))


def _released_other(t: Telling) -> int:
    seq, place = t.at("lease.granted", 0), t.at("lease.released")
    lease = t.own(seq)
    kept = {name: lease[name] for name in ("leaseId", "fencingToken")}
    return t.edit(place, **kept, grantSeq=seq, grantedAtMs=t.entries[seq]["timeMs"])


def _other_reason(t: Telling) -> int:
    return t.edit(t.at("wait.removed"), reason="given_up")


def _other_ending(t: Telling) -> int:
    return t.edit(t.at("session.ended"), reason="expired")


def _returned_late(t: Telling) -> int:
    place = t.at("lease.returned")
    t.cut(place + 1)
    return t.edit(place, timeMs=t.entries[place]["timeMs"] + 1)


def _returned(t: Telling) -> int:
    """A still holds, and what it holds is given back."""
    place = t.go_on(lambda house: house.hold("A", "repo:c"))
    kept = {name: t.own(place)[name] for name in ("resources", "leaseId", "fencingToken")}
    t.go_on(lambda house: house.hold("B", "repo:d"))
    return t.invent("lease.returned", **kept, holder=did_of("A"), grantSeq=place, causeSeq=place + 1)


def _closed_by_another(t: Telling) -> int:
    place = t.at("closing.refused")
    t.cut(place + 1)
    opened = t.at("session.opened")
    return t.turn(place, "session.closed", session=did_of("s"), openedSeq=opened, leases=0, tickets=0)


def _present(t: Telling) -> int:
    place = t.at("beat.refused")
    t.cut(place + 1)
    return t.turn(place, "session.seen", endsIfIdleAtMs=t.entries[place]["timeMs"] + 120_000)


def _removed_nobody(t: Telling) -> int:
    place = t.at("removal.refused")
    t.cut(place + 1)
    return t.turn(place, "agent.removed", agent=did_of("Z"))


def _removed_no_operator(t: Telling) -> int:
    return t.turn(t.at("dismissal.refused"), "operator.removed", operator=did_of("Z"))


def _strange_error(t: Telling) -> int:
    return t.edit(t.at("beat.refused"), error="agent_not_found", number=106)


def _second_session(t: Telling) -> int:
    t.forget(f"session/{did_of('s')}")
    return t.go_on(lambda house: house.open("u", "A"))


def _trial_goes_on(t: Telling) -> int:
    t.house.t_ms += 61_000
    t.pretend(f"agent/{did_of('T')}", trial_until_ms=t.house.t_ms + 1_000)
    t.go_on(lambda house: house.later(0))
    return t.go_on(lambda house: house.ask_for("T", f"trial:{did_of('T')}/y", ttlMs=60_000))


def _opened(t: Telling, links: list[dict[str, Any]], principal: str = "A", operator: str = "op") -> int:
    """Open a session by a chain that allows none."""
    last = links[-1]["statement"]
    time_ms = t.house.t_ms
    said: Json = {"verbs": last["verbs"], "expiresAtMs": last["expiresAtMs"]}
    said["endsIfIdleAtMs"] = min(time_ms + 120_000, last["expiresAtMs"])
    said |= {"scope": last["resources"]} if "resources" in last else {}
    sides = {"principal": did_of(principal), "onBehalfOf": did_of(operator)}
    return t.answer(t.sign(open_session("u", links)), "session.opened", **said, **sides)


def _narrowed(parent: Json, child: Json) -> list[dict[str, Any]]:
    """An operator lets A, who lets u, each with what it says otherwise."""
    first = delegated("op", statement("op", "A", NOW_MS, **{"maxDepth": 1} | parent))
    link = chain("op", "A", "u", **child)[1]["statement"] | {"parent": _parent(first)}
    return [first, delegated("A", link)]


def _parent(link: Json) -> str:
    text = json.dumps(link["statement"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _forged(t: Telling) -> int:
    """The gateway signs with its own key what A should."""
    said = statement("A", "u", NOW_MS)
    return _opened(t, [delegated("enroller", said)])


LIES = (
    Lie("expiry left out", "It granted B what was over without saying that it was.", asked_when_over,
        _expiry_left_out, "expiry_missing", "7.7"),
    Lie("resumption left out", "It granted D what B's reservation had kept, without ending that.", asked_when_resumed,
        _resumption_left_out, "resumption_missing", "23.8", ("queue_jumped",)),
    Lie("resumed what was not reserved", "It ended a reservation that B did not have.", many_names, _resumed,
        "resumption_wrong", "23.8"),
    Lie("offered twice", "It offered B the same thing again.", next_one, _offered_twice, "offered_twice", "23.5"),
    Lie("claim of something else", "It gave B less time than B's ticket asks for.", turn_used, _ticket_differs,
        "ticket_differs", "23.1"),
    Lie("longer than anybody may", "It granted twenty seconds where entry 0 allows ten.", short_ttl, _too_long,
        "ttl_wrong", "7.2"),
    Lie("mode made up", "It renewed A's lease in another mode.", in_two_modes, _mode_differs, "mode_differs", "7.11"),
    Lie("what is only appended to", "It granted to write what may only be appended to.", narrow, _overwritten,
        "schemes_wrong", "26.4", ("mode_not_allowed",)),
    Lie("name beyond ASCII", "It granted a name that the scheme does not take.", narrow, _beyond_ascii,
        "name_not_allowed", "3.6"),
    Lie("wrong one of two released", "It ended the older of A's two leases.", in_two_modes, _released_other,
        "released_other", "7.5"),
    Lie("wrong reason of a removal", "It said that B had given up.", turn_over, _other_reason, "removal_wrong",
        "23.3"),
    Lie("wrong reason of an end", "It said that the delegation of an idle session was over.", idle, _other_ending,
        "ending_wrong", "29.2"),
    Lie("given back late", "It gave back a millisecond after the session had closed.", closed, _returned_late,
        "return_late", "29.4"),
    Lie("given back though held", "It gave back what A still held.", closed, _returned, "return_wrong", "29.4"),
    Lie("session closed by another", "It let B close A's session.", closed_by_another, _closed_by_another,
        "session_not_yours", "29.5"),
    Lie("presence without session", "It took B, an agent, for a session.", closed_by_another, _present,
        "session_required", "29.5", ("idle_wrong",)),
    Lie("removed nobody", "It removed an agent that there is not.", closed_by_another, _removed_nobody,
        "agent_not_found", "28.8"),
    Lie("removed no operator", "It removed an operator that there is not.", closed_by_another, _removed_no_operator,
        "operator_not_found", "28.7"),
    Lie("refusal that cannot be", "It refused a beat with the name of another refusal.", closed_by_another,
        _strange_error, "error_unknown", "10.1"),
    Lie("one session too many", "It opened a second session of A.", one_session, _second_session, "too_many_sessions",
        "28.4"),
    Lie("trial after its days", "It granted something to a trial that was over.", tried, _trial_goes_on, "trial_over",
        "30.4"),
    Lie("delegation for another ledger", "It opened a session by a statement for another ledger.", one_session,
        lambda t: _opened(t, chain("A", "u", aud="gateway.example/other")), "delegation_wrong_ledger", "28.4"),
    Lie("delegation too deep", "It opened a session by a statement that was not to be passed on.", one_session,
        lambda t: _opened(t, _narrowed({"maxDepth": 0}, {})), "delegation_too_deep", "28.4"),
    Lie("delegation wider", "It opened a session for every name, where A was let some.", one_session,
        lambda t: _opened(t, _narrowed({"resources": ["repo:**"]}, {})), "delegation_wider", "28.4"),
    Lie("delegation longer", "It opened a session for longer than A was let.", one_session,
        lambda t: _opened(t, _narrowed({"expiresAtMs": NOW_MS + 1_800_000}, {})), "delegation_longer", "28.4"),
    Lie("delegation not begun", "It opened a session before its time.", one_session,
        lambda t: _opened(t, chain("A", "u", notBeforeMs=NOW_MS + 60_000)), "delegation_expired", "28.4"),
    Lie("delegation by a stranger", "It opened a session that a stranger had let act.", one_session,
        lambda t: _opened(t, chain("Z", "u"), "Z"), "issuer_unknown", "28.4"),
    Lie("delegation made up", "It signed itself what A should have signed.", one_session, _forged,
        "delegation_invalid", "28.3"),
    Lie("session of another", "It put a session that A let on the account of C.", closed,
        lambda t: _opened(t, chain("A", "u"), "C"), "issuer_differs", "16.5", ("principal_wrong",)),
)  # fmt: skip
