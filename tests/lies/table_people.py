"""Lies about who may act, for whom, and by what rules: operators, agents, sessions, API keys, schemes."""

from __future__ import annotations

import json

from tests.core.crew import digest
from tests.core.requests import (
    acquire,
    add,
    break_,
    did_of,
    enrol,
    issue,
    open_session,
    remove,
    remove_operator,
    revoke,
    set_scheme,
)
from tests.lies.kit import House, Lie, Telling

NAME = "repo:a"


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def unarmed() -> House:
    """A holds; B, who is no operator, tries what only operators may."""
    house = House()
    house.hold("A", NAME)
    token = house.last()["fencingToken"]
    house.say(break_("B", NAME, token))
    house.say(set_scheme("B", "doc", "read-safe"))
    house.say(add("B", "E"))
    house.say(remove_operator("op", "op2"))
    house.say(remove_operator("op", "op"))
    return house


def ruled() -> House:
    """Readers share a scheme that is read-safe; while they do, the operator may not change it."""
    house = House()
    house.say(set_scheme("op", "doc", "read-safe"))
    house.hold("A", "doc:x", mode="read")
    house.hold("B", "doc:x", mode="read")
    house.say(set_scheme("op", "doc", "append-only"))
    return house


def exclusive() -> House:
    """A reads what nobody shares; B asks to read it too."""
    house = House()
    house.hold("A", "doc:x", mode="read")
    house.ask_for("B", "doc:x", mode="read")
    return house


def lent() -> House:
    """A session of A holds within its scope and asks beyond it."""
    house = House()
    house.open("s", "A", resources=["repo:**"])
    house.hold("s", NAME, ttlMs=600_000)
    house.ask_for("s", "lock:other")
    return house


def idle() -> House:
    """A session of A falls silent, is ended, and its lease given back."""
    house = lent()
    house.later(120_000)
    house.hold("B", NAME)
    return house


def closed() -> House:
    """A session of A closes and gives back what it held."""
    house = House()
    house.open("s", "A")
    house.hold("s", NAME, ttlMs=600_000)
    house.hold("s", "repo:b", ttlMs=600_000)
    house.close("s")
    return house


def dismissed() -> House:
    """The operator removes B, who holds something and has a session."""
    house = House()
    house.hold("B", NAME)
    house.open("s", "B")
    house.hold("s", "repo:b")
    house.say(remove("op", "B"))
    return house


def on_trial() -> House:
    """A trial agent has used up its entries."""
    house = House(trial_decisions=2)
    house.say(enrol("T", house.key("trial", "trial")))
    for _ in range(2):
        house.ask_for("T", f"trial:{did_of('T')}/x", ttlMs=60_000)
    return house


def keyed() -> House:
    """An agent enrols by API key; then the key is revoked."""
    house = House()
    house.say(enrol("T", house.key("live", "live")))
    house.say(revoke("op", digest("live")))
    return house


def kept_for() -> House:
    """The gateway keeps the key of E, who acts."""
    house = House()
    house.say(add("op", "E", agentCustody="gateway"))
    house.hold("E", NAME)
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def _broken(t: Telling) -> int:
    seq, place = t.at("lease.granted"), t.at("break.refused")
    lease = t.own(seq)
    asked = {name: t.own(place)[name] for name in ("resource", "seenToken", "reason")}
    kept = {name: lease[name] for name in ("resources", "leaseId", "fencingToken")}
    about = {"holder": did_of("A"), "grantSeq": seq, "grantedAtMs": t.entries[seq]["timeMs"]}
    t.cut(place + 1)
    return t.edit(t.turn(place, "lease.broken", **asked, **kept, **about), onBehalfOf=did_of("B"))


def _ruled_by_agent(t: Telling) -> int:
    whole = {"class": "read-safe", "isFolding": False, "isUnicode": False, "lockDelayMs": 0, "maxHoldMs": 3_600_000}
    place = t.at("scheme.refused")
    t.cut(place + 1)
    t.turn(place, "scheme.set", name="doc", **whole, unicodeVersion="14.0.0")
    return t.edit(place, onBehalfOf=did_of("B"))


def _added_by_agent(t: Telling) -> int:
    place = t.at("agent.refused")
    t.cut(place + 1)
    return t.edit(t.turn(place, "agent.added", agent=did_of("E")), onBehalfOf=did_of("B"))


def _last_operator(t: Telling) -> int:
    return t.turn(t.at("dismissal.refused"), "operator.removed", operator=did_of("op"))


def _parameters(t: Telling) -> int:
    """Entry 0 says otherwise how long a hold may last, and every entry names the new entry 0."""
    t.edit(0, parameters=t.entries[0]["parameters"] | {"maxHoldMs": 60_000})
    return 0


def _by_other_numbers(t: Telling) -> int:
    """The core runs on with numbers that entry 0 does not name."""
    t.house.parameters = t.house.parameters.__class__(max_hold_ms=60_000)
    return t.go_on(lambda house: house.hold("C", "repo:c"))


def _scheme_numbers(t: Telling) -> int:
    """The operator signed no such durations."""
    return t.edit(t.at("scheme.set"), maxHoldMs=60_000)


def _loosened(t: Telling) -> int:
    """The scheme is changed while two hold names of it."""
    t.drop(t.at("scheme.refused"))
    kept = {key: record for key, record in t.house.shelf.records.items() if key.startswith("lease/")}
    t.forget("lease/")
    place = t.go_on(lambda house: house.say(set_scheme("op", "doc", "append-only")))
    t.recall(kept)
    return place


def _flipped(t: Telling) -> int:
    """The class is another for the moment of one grant, on the gateway's own word."""
    scheme = ruled().shelf.records["scheme/doc"]
    t.recall({"scheme/doc": scheme})
    place = t.go_on(lambda house: house.hold("B", "doc:x", mode="read"))
    t.forget("scheme/")
    return place


def _flipped_by_operator(t: Telling) -> int:
    """The operator's genuine word is used a second time, when somebody holds."""
    return t.again(t.at("scheme.set"))


def _beyond_scope(t: Telling) -> int:
    t.pretend(f"session/{did_of('s')}", resources=())
    return t.go_on(lambda house: house.hold("s", "lock:third"))


def _ended_early(t: Telling) -> int:
    t.pretend(f"session/{did_of('s')}", idle_by_ms=t.house.t_ms + 60_000)
    return t.go_on(lambda house: house.later(60_000))


def _kept_too_long(t: Telling) -> int:
    """The core counts another ten minutes for the session, and lets it act."""
    t.pretend(f"session/{did_of('s')}", idle_by_ms=t.house.t_ms + 600_000)
    t.house.t_ms += 120_000
    return t.go_on(lambda house: house.ask_for("s", "repo:c"))


def _acts_when_over(t: Telling) -> int:
    """The session has ended, and acts."""
    t.pretend(f"session/{did_of('s')}", ended_seq=None, idle_by_ms=t.house.t_ms + 120_000)
    return t.go_on(lambda house: house.hold("s", "repo:c"))


def _acts_when_expired(t: Telling) -> int:
    """The delegation's time is over, and the session renews."""
    until_ms = t.house.t_ms + 30_000
    place = t.go_on(lambda house: house.open("u", "A", expiresAtMs=until_ms))
    t.pretend(f"session/{did_of('u')}", expires_at_ms=until_ms + 3_600_000)
    t.house.t_ms = until_ms
    assert t.own(place)["expiresAtMs"] == until_ms
    return t.go_on(lambda house: house.hold("u", "repo:c"))


def _not_given_back(t: Telling) -> int:
    t.cut(t.at("lease.returned"))
    return len(t.entries) - 1


def _not_given_back_to_all(t: Telling) -> int:
    return t.drop(t.at("lease.returned", 0))


def _given_back_out_of_order(t: Telling) -> int:
    return t.swap(t.at("lease.returned", 0), t.at("lease.returned", 1))


def _session_survives(t: Telling) -> int:
    """B is removed; its session and what it holds stay."""
    place = t.at("session.ended")
    t.drop(place, t.at("lease.returned"))
    return place


def _back_again(t: Telling) -> int:
    """B was removed, and is granted something."""
    t.pretend(f"agent/{did_of('B')}", removed_seq=None)
    return t.go_on(lambda house: house.hold("B", "repo:c"))


def _opened_for_nobody(t: Telling) -> int:
    """A session is opened by a statement of B, who was removed."""
    t.pretend(f"agent/{did_of('B')}", removed_seq=None)
    return t.go_on(lambda house: house.open("u", "B"))


def _invented(t: Telling) -> int:
    """A key that nobody ever enrolled is granted something."""
    t.copy(f"agent/{did_of('A')}", f"agent/{did_of('Z')}", did=did_of("Z"))
    return t.go_on(lambda house: house.hold("Z", "repo:c"))


def _taken_for_another(t: Telling) -> int:
    """What A did is put on the account of op2."""
    return t.edit(t.at("lease.granted"), onBehalfOf=did_of("op2"))


def _not_for_agent(t: Telling) -> int:
    """What a session of A did is put on the account of C."""
    return t.edit(t.at("lease.granted"), principal=did_of("C"))


def _custody_hidden(t: Telling) -> int:
    return t.edit(t.at("lease.granted"), custody=None)


def _used_up(t: Telling) -> int:
    t.pretend(f"quota/{did_of('T')}", used=0)
    return t.go_on(lambda house: house.ask_for("T", f"trial:{did_of('T')}/y", ttlMs=60_000))


def _beyond_trial(t: Telling) -> int:
    t.pretend(f"quota/{did_of('T')}", used=0)
    t.pretend(f"agent/{did_of('T')}", trial_until_ms=None)
    t.cut(t.at("lease.extended"))
    place = t.go_on(lambda house: house.ask_for("T", "repo:prod"))
    return place


def _revoked_key(t: Telling) -> int:
    t.pretend(f"apikey/{digest('live')}", revoked_seq=None)
    return t.go_on(lambda house: house.say(enrol("E", digest("live"))))


def _key_used_twice(t: Telling) -> int:
    t.pretend(f"apikey/{digest('trial')}", used_by=None)
    return t.go_on(lambda house: house.say(enrol("E", digest("trial"))))


def _key_of_nobody(t: Telling) -> int:
    """The enroller enrols by an API key that no operator issued."""
    t.copy(f"apikey/{digest('live')}", f"apikey/{digest('own')}", digest=digest("own"), revoked_seq=None)
    return t.go_on(lambda house: house.say(enrol("E", digest("own"))))


def _issued_again(t: Telling) -> int:
    t.forget(f"apikey/{digest('live')}")
    return t.go_on(lambda house: house.say(issue("op", digest("live"), "live")))


def _key_taken_over(t: Telling) -> int:
    """op2 enrols an agent that is in force under op."""
    t.forget(f"agent/{did_of('A')}")
    return t.go_on(lambda house: house.say(add("op2", "A")))


def _counted_less(t: Telling) -> int:
    return t.edit(t.at("session.closed"), leases=1)


def _idle_promise(t: Telling) -> int:
    place = t.at("lease.granted")
    return t.edit(place, endsIfIdleAtMs=t.own(place)["endsIfIdleAtMs"] + 60_000)


def _agent_longer(t: Telling) -> int:
    """A session is opened a second time, with the statement of the first."""
    t.forget(f"session/{did_of('s')}")
    lent_once = t.house.leaf(t.at("session.opened")).request
    assert lent_once is not None
    chain = json.loads(lent_once["body"])["delegations"]
    return t.go_on(lambda house: house.say(open_session("s", chain)))


def _refused_by_name(t: Telling) -> int:
    """A is told that it is no longer within its scope, though it has none."""
    place = t.go_on(lambda house: house.say(acquire("C", "repo:c")))
    asked = {"resources": ["repo:c"], "mode": "write", "ttlMs": 30_000, "wait": False}
    return t.turn(place, "lease.refused", **asked, error="outside_scope", number=118)


LIES = (
    Lie("break without operator", "It let B, an agent, break A's lease.", unarmed, _broken, "operator_required",
        "28.2", ("on_behalf_wrong",)),
    Lie("scheme set by an agent", "It let B, an agent, set a scheme.", unarmed, _ruled_by_agent, "operator_required",
        "28.2", ("on_behalf_wrong",)),
    Lie("agent added by an agent", "It let B, an agent, enrol another.", unarmed, _added_by_agent, "on_behalf_wrong",
        "28.1", ("operator_required",)),
    Lie("last operator removed", "It removed the only operator.", unarmed, _last_operator, "operator_last", "28.7"),
    Lie("parameter changed without an operator", "It ran on with another bound of the hold than entry 0's.", unarmed,
        _by_other_numbers, "hold_wrong", "7.2"),
    Lie("entry 0 rewritten", "It changed a parameter in entry 0 and sealed everything anew.", unarmed, _parameters,
        "genesis_differs", "16.2", ("anchor_wrong", "anchor_root_wrong", "hold_wrong")),
    Lie("duration of a scheme made up", "It wrote another bound than the default into the operator's scheme.", ruled,
        _scheme_numbers, "scheme_wrong", "26.1", ("hold_wrong",)),
    Lie("scheme loosened while live", "It changed a scheme while two held names of it.", ruled, _loosened,
        "scheme_busy", "26.3"),
    Lie("class flipped and back", "It let two readers share an exclusive name, and called it read-safe once.",
        exclusive, _flipped, "schemes_wrong", "26.4", ("double_grant",)),
    Lie("operator's word used twice", "It wrote the operator's scheme.set a second time.", ruled,
        _flipped_by_operator, "nonce_reused", "9.3", ("idempotency_key_reused",)),
    Lie("beyond the scope", "It granted a session what was not lent to it.", lent, _beyond_scope, "outside_scope",
        "28.5"),
    Lie("outside a scope that is none", "It refused C for a scope that C does not have.", lent, _refused_by_name,
        "refusal_wrong", "10.1"),
    Lie("session ended too early", "It ended a session after half its patience.", lent, _ended_early, "ended_early",
        "29.2"),
    Lie("session kept too long", "It let a session act that was due.", lent, _kept_too_long, "ending_missing",
        "29.2"),
    Lie("session acts after its end", "It granted something to a session that had ended.", idle, _acts_when_over,
        "session_ended", "28.2", ("idle_wrong",)),
    Lie("session acts after its delegation", "It granted something after the delegation's end.", lent,
        _acts_when_expired, "session_expired", "28.2", ("ending_missing", "idle_wrong")),
    Lie("session opened twice", "It opened a session again with the statement of the first.", closed, _agent_longer,
        "session_taken", "28.4"),
    Lie("promise of presence prolonged", "It promised the session's lease a minute more.", lent, _idle_promise,
        "idle_wrong", "29.2"),
    Lie("nothing given back", "It ended its ledger before the leases of a closed session were given back.", closed,
        _not_given_back, "return_missing", "29.4"),
    Lie("something not given back", "It gave back one lease of two.", closed, _not_given_back_to_all,
        "return_disordered", "29.4"),
    Lie("given back out of order", "It gave back the later lease first.", closed, _given_back_out_of_order,
        "return_disordered", "29.4"),
    Lie("returns miscounted", "It counted one lease of the closed session where there were two.", closed,
        _counted_less, "count_wrong", "29.4"),
    Lie("session outlives its agent", "It removed B and left B's session alive.", dismissed, _session_survives,
        "return_disordered", "29.4"),
    Lie("removed agent acts", "It granted something to B, who was removed.", dismissed, _back_again, "agent_removed",
        "28.2"),
    Lie("session by a removed agent", "It opened a session by a statement of B, who was removed.", dismissed,
        _opened_for_nobody, "issuer_removed", "28.4"),
    Lie("stranger acts", "It granted something to a key that nobody enrolled.", dismissed, _invented, "agent_unknown",
        "28.2"),
    Lie("another's account", "It put what A did on the account of another operator.", exclusive, _taken_for_another,
        "on_behalf_wrong", "28.1"),
    Lie("another principal", "It put what a session of A did on the account of C.", lent, _not_for_agent,
        "principal_wrong", "28.1"),
    Lie("custody hidden", "It left out that it keeps the key that signed.", kept_for, _custody_hidden,
        "custody_wrong", "30.2"),
    Lie("trial without end", "It gave a trial one decision more than entry 0 allows.", on_trial, _used_up,
        "trial_used_up", "30.4"),
    Lie("trial beyond its names", "It granted a trial a name of others.", on_trial, _beyond_trial, "outside_scope",
        "28.5"),
    Lie("revoked key enrols", "It enrolled an agent by a revoked API key.", keyed, _revoked_key, "apikey_not_found",
        "30.1"),
    Lie("key nobody issued", "It enrolled an agent by an API key of its own.", keyed, _key_of_nobody,
        "apikey_not_found", "30.1"),
    Lie("trial key used twice", "It enrolled a second agent by a trial key.", on_trial, _key_used_twice,
        "apikey_used", "30.3"),
    Lie("key issued twice", "It issued the digest of a key that had been revoked.", keyed, _issued_again,
        "apikey_known", "30.1"),
    Lie("agent taken over", "It put A under another operator while A was in force.", keyed, _key_taken_over,
        "key_taken", "28.8"),
)  # fmt: skip
