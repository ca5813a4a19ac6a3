"""Lies about admissions: what was live, counted and in force, what rules said, who approved, and for how long."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from gateway.core import admission
from gateway.core.approval import Approved
from gateway.core.outcome import Ruling
from gateway.rules.engine import open_engine
from tests.core.requests import NOW_MS, admit, approved, batch, did_of, load_rules, set_scheme, with_approvals
from tests.lies.kit import House, Json, Lie, Story, Telling

NAME, LASTING_MS = "repo:a", 600_000
RULES = """@id("work") permit(principal, action, resource in Resource::"repo:**") when { context.trust >= 40000 };
@id("cheap") @obligation("notify:oncall") permit(principal, action == Action::"read", resource);
@id("budget") forbid(principal, action, resource) when { context.agentCostDay + context.cost > 20 };
"""
STRICTER = RULES.replace("40000", "60000")


# --- the honest ledgers ---------------------------------------------------------------------------------------------


def lease_of(house: House, lease_id: str) -> tuple[str, int]:
    return lease_id, house.leases()[lease_id].fencing_token


def held(house: House, who: str, *names: str, **members: Any) -> tuple[str, int]:
    """Acquire and return what an admission shows of it."""
    return lease_of(house, house.hold(who, *names, **{"ttlMs": LASTING_MS} | members))


def working() -> House:
    """No rules: A holds, is admitted thrice, and B reads elsewhere."""
    house = House()
    lease = held(house, "A", NAME)
    house.t_ms += 1_500
    for cost in (3, 0, 5):
        house.say(admit("A", NAME, lease=lease, cost=cost))
    house.say(admit("B", "repo:c", mode="read", cost=1))
    return house


def superseded() -> House:
    """The accident: A pauses, its lease runs out, B acquires and works, and A comes back with its old token."""
    house = House()
    lease = held(house, "A", NAME, ttlMs=4_000)
    house.t_ms += 5_000
    newer = held(house, "B", NAME)
    house.say(admit("B", NAME, lease=newer))
    house.say(admit("A", NAME, lease=lease))
    return house


def policed() -> House:
    """Rules are in force: they allow, forbid and do not permit."""
    house = House()
    house.rules = open_engine()
    house.say(load_rules("op", RULES, 1))
    lease = held(house, "A", NAME)
    for cost in (6, 6, 6, 6):
        house.say(admit("A", NAME, lease=lease, cost=cost))
    house.say(admit("B", "doc:x", mode="read"))
    return house


def replaced() -> House:
    """A second set follows the first, and an agent tries to load one of its own."""
    house = policed()
    house.say(load_rules("op", STRICTER, 2))
    house.say(load_rules("A", RULES, 3))
    return house


def shadowed() -> House:
    """Rules in the shadow would deny what is allowed."""
    house = House()
    house.rules = open_engine()
    house.say(load_rules("op", STRICTER, 1, "shadow"))
    house.say(admit("A", NAME, lease=held(house, "A", NAME)))
    return house


def vetoed() -> House:
    """A batch is refused as a whole, because rules forbid its second command; one that is not, goes through in part."""
    house = policed()
    asked = [admit("B", "repo:q", mode="read", cost=cost) for cost in (1, 40)]
    house.say(batch("B", *asked, isAtomic=True))
    house.say(batch("B", *(one.again() for one in asked)))
    return house


def consented() -> House:
    """What can't be undone: X's operator approves of what A does, once."""
    house = House()
    house.say(set_scheme("op", "prod", "irreversible"))
    lease = held(house, "A", "prod:db")
    house.say(approved_by(house, admit("A", "prod:db", lease=lease), "op2"))
    return house


def approved_by(house: House, one: Any, by: str, **changes: Any) -> Any:
    """Return an admission with an approval of exactly it."""
    return with_approvals(one, approved(by, one, house.imprint.genesis, at_ms=house.t_ms, **changes))


def hurried() -> House:
    """An approval that holds for another half minute."""
    house = House()
    lease = held(house, "A", NAME)
    house.say(approved_by(house, admit("A", NAME, lease=lease), "X", expiresAtMs=house.t_ms + 30_000))
    return house


def in_session() -> House:
    """A session of A is admitted: the admission ends with it."""
    house = House(session_idle_ms=30_000)
    house.open("s", "A", resources=["repo:**"])
    house.say(admit("s", NAME, lease=held(house, "s", NAME)))
    return house


# --- the lies -------------------------------------------------------------------------------------------------------


def fact(name: str, value: Any) -> Callable[[Telling], int]:
    """The last admission of A states another fact."""

    def tell(t: Telling) -> int:
        place = t.at("admission.allowed", 2)
        return t.edit(place, facts=t.entries[place]["facts"] | {name: value})

    return tell


def counted(name: str) -> Callable[[Telling], int]:
    """The last admission of A states another count of its scheme."""

    def tell(t: Telling) -> int:
        place = t.at("admission.allowed", 2)
        row = t.entries[place]["schemes"][0]
        return t.edit(place, schemes=[row | {name: row[name] + 1}])

    return tell


def changed(nth: int = -1, **members: Any) -> Callable[[Telling], int]:
    return lambda t: t.edit(t.at("admission.allowed", nth), **members)


def ruled(kind: str = "admission.allowed", **members: Any) -> Callable[[Telling], int]:
    """An entry states another ruling."""

    def tell(t: Telling) -> int:
        place = t.at(kind, 0)
        return t.edit(place, rules=t.entries[place]["rules"] | members)

    return tell


def _class_changed(t: Telling) -> int:
    place = t.at("admission.allowed", 2)
    return t.edit(place, schemes=[t.entries[place]["schemes"][0] | {"class": "read-safe"}])


def _valid_too_long(t: Telling) -> int:
    place = t.at("admission.allowed", 0)
    return t.edit(place, validUntilMs=t.entries[place]["validUntilMs"] + 1)


def _one_dropped(t: Telling) -> int:
    """The first admission never was; the second, of the same moment, shows the gap."""
    return t.drop(t.at("admission.allowed", 0))


def _as_if_live(t: Telling) -> int:
    """The gateway has A's lease back and B's is gone, for one decision."""
    lease: Any = working().shelf.records[f"lease/{working().own_lease('A')}"]
    ended = t.own(t.at("admission.denied"))["leaseId"]
    t.forget("lease/", "ended/")
    t.recall({f"lease/{ended}": lease._replace(lease_id=ended, granted_at_ms=t.house.t_ms - 5_000,
                                               expires_at_ms=t.house.t_ms + 60_000)})  # fmt: skip
    return t.go_on(lambda house: house.say(admit("A", NAME, lease=lease_of(house, ended))))


def _after_its_end(t: Telling) -> int:
    """A's lease ran out and nobody says so."""
    t.house.t_ms += LASTING_MS
    t.pretend(_own_key(t), expires_at_ms=t.house.t_ms + 1_000)
    return _admitted_to(t, "A")


def _forged_denial(t: Telling) -> int:
    """B's token was the newest of all."""
    place = t.at("admission.allowed")
    kept = ("operation", "resources", "mode", "argumentsDigest", "cost", "leaseId", "fencingToken")
    own = {name: t.own(place)[name] for name in kept}
    t.drop(t.at("admission.denied"))
    return t.turn(place, "admission.denied", **own, error="stale_fence", number=602)


def _own_key(t: Telling) -> str:
    return f"lease/{t.house.own_lease('A')}"


def _above(t: Telling) -> int:
    """It takes a token of nobody for A's."""
    t.pretend(_own_key(t), fencing_token=t.record(_own_key(t)).fencing_token + 1)
    return _admitted_to(t, "A")


def _below(t: Telling) -> int:
    """It takes an older token for A's."""
    t.pretend(_own_key(t), fencing_token=t.record(_own_key(t)).fencing_token - 1)
    return _admitted_to(t, "A")


def _foreign(t: Telling) -> int:
    """It takes A's lease for B's."""
    lease = t.house.own_lease("A")
    t.pretend(f"lease/{lease}", holder=did_of("B"), principal=did_of("B"))
    return _admitted_to(t, "B", lease=lease)


def _narrow(t: Telling) -> int:
    t.pretend(_own_key(t), resources=("repo:**",))
    return _admitted_to(t, "A", "repo:b")


def _unknown_lease(t: Telling) -> int:
    t.copy(_own_key(t), "lease/L3", lease_id="L3", grant_seq=3)
    return _admitted_to(t, "A", lease="L3")


def _admitted_to(t: Telling, who: str, name: str = NAME, lease: str = "") -> int:
    shown = lease_of(t.house, lease or _own_key(t)[len("lease/") :])
    place = t.go_on(lambda house: house.say(admit(who, name, lease=shown)))
    assert t.entries[place]["type"] == "tallystick/admission.allowed/1", t.own(place)
    return place


def _overlooked(t: Telling) -> int:
    """B reads what A is about to write."""
    t.forget("lease/")
    return t.go_on(lambda house: house.say(admit("B", NAME, mode="read")))


def _beyond_scope(t: Telling) -> int:
    t.pretend(f"session/{did_of('s')}", resources=("lock:**",))
    return t.go_on(lambda house: house.say(admit("s", "lock:x", mode="read")))


def _told(**members: Any) -> Callable[[Telling], int]:
    """The denial of A tells something else."""
    return lambda t: t.edit(t.at("admission.denied"), **members)


class Liar:
    """The engine of a gateway that says of rules what it likes."""

    def __init__(self, *said: Any) -> None:
        self._said = said
        engine = open_engine()
        assert engine is not None
        self.name = engine.name
        self._engine = engine

    def count(self, text: str) -> int:
        return self._engine.count(text)

    def __call__(self, rule_set: Any, question: Any) -> Ruling:
        decision, matched, obligations = self._said
        return Ruling(decision, matched, obligations, self.name)


def liar(decision: str, *matched: str, who: str = "A", cost: int = 0) -> Callable[[Telling], int]:
    """The gateway's engine says something else of one admission."""

    def tell(t: Telling) -> int:
        t.house.rules = Liar(decision, matched, ())
        shown = {"lease": lease_of(t.house, t.house.own_lease("A"))} if who == "A" else {"mode": "read"}
        place = t.go_on(lambda house: house.say(admit(who, NAME if who == "A" else "doc:x", cost=cost, **shown)))
        t.house.rules = open_engine()
        return place

    return tell


def _unlocked_by_mode(t: Telling) -> int:
    """Rules that are enforced count as a shadow, for one admission that they forbid."""
    t.pretend("ledger/rules", mode="shadow")
    shown = lease_of(t.house, t.house.own_lease("A"))
    return t.go_on(lambda house: house.say(admit("A", NAME, lease=shown, cost=6)))


def _enforced_anyway(t: Telling) -> int:
    t.pretend("ledger/rules", mode="enforce")
    shown = lease_of(t.house, t.house.own_lease("A"))
    return t.go_on(lambda house: house.say(admit("A", NAME, lease=shown)))


def _ruled_by_agent(t: Telling) -> int:
    place = t.at("rules.refused")
    kept = {name: t.own(place)[name] for name in ("rulesVersion", "rulesMode")}
    t.cut(place + 1)
    told = {name: t.own(t.at("rules.loaded", 0))[name] for name in ("digest", "engine", "count")}
    return t.edit(t.turn(place, "rules.loaded", **kept, **told), onBehalfOf=did_of("A"))


def _out_of_turn(t: Telling) -> int:
    t.pretend("ledger/rules", version=5)
    return t.go_on(lambda house: house.say(load_rules("op", RULES, 6)))


def _older_rules(t: Telling) -> int:
    """The set that was replaced decides once more."""
    t.recall({"ledger/rules": policed().shelf.records["ledger/rules"]})
    return t.go_on(lambda house: house.say(admit("B", "repo:c", mode="read")))


class Credulous(Liar):
    """The engine of a gateway that puts any text in force, as one policy."""

    def count(self, text: str) -> int:
        return 1


def loads(text: str) -> Callable[[Telling], int]:
    """A set comes into force that the gateway should have turned away."""

    def tell(t: Telling) -> int:
        t.house.rules = Credulous("allow", (), ())
        return t.go_on(lambda house: house.say(load_rules("op", text, 2)))

    return tell


def _vetoed_for_nothing(t: Telling) -> int:
    """The batch is refused by rules that forbid none of its commands."""
    t.house.rules = Liar("deny", ("budget",), ())
    asked = (admit("C", "repo:q", mode="read"), admit("C", "repo:r", mode="read"))
    place = t.go_on(lambda house: house.say(batch("C", *asked, isAtomic=True)))
    t.house.rules = open_engine()
    return place


def _burnt_twice(t: Telling) -> int:
    """The approval that A used is used again, for the same action."""
    entry = t.entries[t.at("admission.allowed")]
    t.forget("burnt/")
    return _credulous(t, _bodies(entry)["approvals"][0])


def _bodies(entry: Json) -> Json:
    body: Json = json.loads(entry["request"]["body"])
    return body


def _credulous(t: Telling, approval: Json | None, **members: Any) -> int:
    """The gateway believes an approval of whoever it is about whatever it is."""
    shown = lease_of(t.house, t.house.own_lease("A"))
    one = admit("A", "prod:db", lease=shown, **members)
    one = one if approval is None else with_approvals(one, approval)
    with patch.object(admission, "judge_approvals", _believe):
        place = t.go_on(lambda house: house.say(one))
    assert t.entries[place]["type"] == "tallystick/admission.allowed/1", t.own(place)
    return place


def _believe(draft: Any, request: Any, context: Any, *digests: str) -> tuple[Approved, ...]:
    given = request.approvals
    return tuple(Approved(one.approver, did_of("op2"), one.nonce, one.digest, one.expires_at_ms) for one in given)


def approval(by: str = "op2", **changes: Any) -> Callable[[Telling], int]:
    """An approval that does not count is taken for one that does."""

    def tell(t: Telling) -> int:
        shown = lease_of(t.house, t.house.own_lease("A"))
        one = admit("A", "prod:db", lease=shown)
        genesis = changes.get("genesis", t.house.imprint.genesis)
        members = {name: value for name, value in changes.items() if name != "genesis"}
        if "late_ms" in members:
            t.house.t_ms += members.pop("late_ms")
        signed = approved(by, one, genesis, at_ms=t.house.t_ms, **members)
        return _credulous(t, signed)

    return tell


def _another_operator(t: Telling) -> int:
    place = t.at("admission.allowed")
    return t.edit(place, approvals=[t.entries[place]["approvals"][0] | {"operator": did_of("stranger")}])


def _unapproved(t: Telling) -> int:
    """What can't be undone counts as exclusive, for one admission."""
    t.pretend("scheme/prod", class_name="exclusive")
    shown = lease_of(t.house, t.house.own_lease("A"))
    return t.go_on(lambda house: house.say(admit("A", "prod:db", lease=shown)))


FACTS: tuple[tuple[str, Any], ...] = (
    ("trust", 50_001),
    ("leaseMode", "delete"),
    ("leaseAgeMs", 0),
    ("leaseLeftMs", 999_999_999),
    ("agentName", "somebody"),
    ("actorKind", "session"),
    ("custody", "gateway"),
    ("agentCountMinute", 0),
    ("agentCountDay", 7),
    ("agentCostDay", 0),
    ("operatorCountMinute", 1),
    ("operatorCountDay", 9),
    ("operatorCostDay", 1),
)
_FENCES = (
    Lie("admission under a dead token", "It took A's lease, which had run out, for live while B worked.", superseded,
        _as_if_live, "stale_fence", "37.2"),
    Lie("admission after the end", "It let A through when its lease was over, and wrote no end.", working,
        _after_its_end, "stale_fence", "37.2"),
    Lie("admission denied", "It called B's token stale, though none was newer.", superseded, _forged_denial,
        "refusal_wrong", "10.1"),
    Lie("stale token told wrong", "It told A another newest token than B's.", superseded, _told(currentToken=7),
        "conflict_wrong", "7.6"),
    Lie("stale token without its end", "It kept from A which entry ended its lease.", superseded, _told(endedSeq=None),
        "citation_wrong", "12.6"),
    Lie("admission under a token of nobody", "It let A through with a token that was never given.", working, _above,
        "fence_unknown", "37.2"),
    Lie("admission under an older token", "It let A through with a token below that of its lease.", working, _below,
        "stale_fence", "37.2"),
    Lie("admission under another's token", "It let B through with A's lease.", working, _foreign,
        "lease_not_yours", "7.14"),
    Lie("admission under no lease", "It let A through with a lease that no entry granted.", working, _unknown_lease,
        "lease_unknown", "7.14"),
    Lie("admission beyond its lease", "It let A write beside what its lease covers.", working, _narrow,
        "lease_too_narrow", "37.2"),
    Lie("conflict overlooked", "It let B read what A held for writing.", working, _overlooked,
        "admission_conflict", "37.2"),
    Lie("admission beyond the scope", "It let a session read what its delegation does not name.", in_session,
        _beyond_scope, "outside_scope", "28.5"),
)  # fmt: skip
_WORDS = (
    Lie("admission for longer", "It let an admission live a millisecond too long.", working, _valid_too_long,
        "valid_wrong", "37.7"),
    Lie("admission beyond its session", "It let an admission outlive the session that asked.", in_session,
        _valid_too_long, "valid_wrong", "37.7"),
    Lie("admission for two", "It let one admission count for two executions.", working, changed(uses=2),
        "leaf_malformed", "2.3"),
    Lie("arguments changed", "It admitted other arguments than A signed.", working, changed(argumentsDigest="1" * 64),
        "body_differs", "16.5", also=("action_digest_wrong",)),
    Lie("action digest changed", "It stated the digest of another action.", working, changed(actionDigest="1" * 64),
        "action_digest_wrong", "38.2"),
    Lie("class of an admission changed", "It told rules that the scheme is shared by readers.", working,
        _class_changed, "schemes_wrong", "26.4"),
    Lie("admission not counted", "It kept an admission quiet and counted on without it.", working, _one_dropped,
        "fact_wrong", "37.5"),
    *(Lie(f"another fact: {name}", f"It told rules another {name}.", working, fact(name, value), "fact_wrong", "37.5")
      for name, value in FACTS),
    *(Lie(f"another count of a scheme: {name}", f"It told rules another {name} of the scheme.", working, counted(name),
          "fact_wrong", "37.5")
      for name in ("countMinute", "countDay", "costDay")),
    Lie("another fact: approvals", "It told rules of an approval that nobody gave.", working, fact("approvals", 1),
        "leaf_malformed", "2.3", also=("fact_wrong",)),
    Lie("another fact: leaseState", "It told rules that A holds nothing.", working, fact("leaseState", "none"),
        "leaf_malformed", "2.3", also=("fact_wrong",)),
)  # fmt: skip


def _by_rules(
    name: str,
    did: str,
    story: Story,
    tell: Callable[[Telling], int],
    code: str,
    clause: str,
    also: tuple[str, ...] = (),
) -> Lie:
    return Lie(name, did, story, tell, code, clause, also=also, has_rules=True)


_RULED = (
    _by_rules("allowed against the rules", "It said that the rules allow what they forbid.", policed,
              liar("allow", "work", cost=6), "ruling_wrong", "40.3"),
    _by_rules("forbidden for nothing", "It said that the rules forbid what they allow.", policed,
              liar("deny", "budget", who="B"), "ruling_wrong", "40.3"),
    _by_rules("not permitted for nothing", "It said that no rule permits what one does.", policed,
              liar("deny", who="B"), "ruling_wrong", "40.3"),
    _by_rules("an error of the rules made up", "It said that the rules can't be evaluated.", policed,
              liar("error", who="B"), "ruling_wrong", "40.3"),
    _by_rules("another rule that matched", "It named a rule that did not decide.", policed, ruled(matched=["cheap"]),
              "ruling_wrong", "40.3"),
    _by_rules("an obligation dropped", "It left out what a rule obliges to.", policed,
              lambda t: t.edit(t.at("admission.allowed"),
                               rules=t.entries[t.at("admission.allowed")]["rules"] | {"obligations": []}),
              "ruling_wrong", "40.3"),
    _by_rules("shadow passed off", "It let rules only look on that an operator had put in force.", policed,
              _unlocked_by_mode, "rules_wrong", "37.6", also=("forbidden_by_rules",)),
    _by_rules("a shadow that denies", "It denied by rules that were to look on.", shadowed, _enforced_anyway,
              "rules_wrong", "37.6", also=("refusal_wrong",)),
    _by_rules("rules of another version", "It named another version than the one in force.", policed,
              ruled(version=2), "rules_wrong", "37.6"),
    _by_rules("rules of another digest", "It named another text than the one in force.", policed,
              ruled(digest="1" * 64), "action_digest_wrong", "38.2", also=("rules_wrong",)),
    _by_rules("rules left out", "It admitted as if no rules were in force.", policed, changed(0, rules=None),
              "action_digest_wrong", "38.2", also=("rules_wrong",)),
    _by_rules("older rules", "It let a set decide that had been replaced.", replaced, _older_rules,
              "rules_wrong", "37.6"),
    _by_rules("another engine", "It named another engine than the one that it had started with.", policed,
              ruled(engine="cedar/4.0.0"), "rules_wrong", "37.6", also=("rules_not_rederived",)),
    _by_rules("an answer without an engine", "It named no engine, and an answer all the same.", policed,
              ruled(engine="none"), "rules_wrong", "37.6", also=("rules_not_rederived",)),
    _by_rules("rules without an operator", "It put a set in force that an agent had signed.", replaced,
              _ruled_by_agent, "operator_required", "28.2", also=("on_behalf_wrong",)),
    _by_rules("rules out of turn", "It put a set in force four numbers too early.", policed, _out_of_turn,
              "rules_out_of_turn", "37.10"),
    _by_rules("digest of other rules", "It stated the digest of another text than was signed.", policed,
              lambda t: t.edit(t.at("rules.loaded"), digest="1" * 64), "rules_digest_wrong", "37.10",
              also=("rules_wrong",)),
    _by_rules("rules miscounted", "It stated one rule more than there are.", policed,
              lambda t: t.edit(t.at("rules.loaded"), count=4), "rules_wrong", "37.6"),
    _by_rules("rules that are not valid", "It put a set in force that names what no fact is.", policed,
              loads('@id("a") forbid(principal, action, resource) when { context.trvst < 3 };'),
              "rules_invalid", "37.10"),
    _by_rules("a rule without a name", "It put a rule in force that no entry could name.", policed,
              loads("permit(principal, action, resource);"), "rules_invalid", "37.10"),
    _by_rules("batch refused for nothing", "It refused a batch by rules that forbid none of it.", policed,
              _vetoed_for_nothing, "ruling_wrong", "40.3"),
)  # fmt: skip
_APPROVED = (
    Lie("approval used twice", "It let A use one approval for two executions.", consented, _burnt_twice,
        "approval_used", "38.4"),
    Lie("approval in another's name", "It named another operator than the one who answers for the approver.", consented,
        _another_operator, "approvals_wrong", "37.7"),
    Lie("approval of another ledger", "It took an approval that was given in another ledger.", consented,
        approval(genesis="1" * 64), "approval_wrong", "38.4"),
    Lie("approval under other rules", "It took an approval that was given under other rules.", consented,
        approval(rules_digest="1" * 64), "approval_wrong", "38.4"),
    Lie("approval before its time", "It took an approval that does not hold yet.", consented,
        approval(notBeforeMs=NOW_MS + LASTING_MS), "approval_expired", "38.4"),
    Lie("admission beyond its approval", "It let an admission outlive the approval that it used.", hurried,
        _valid_too_long, "approval_expired", "38.4", also=("valid_wrong",)),
    Lie("approval by the own operator", "It took A's own operator for another one.", consented, approval("op"),
        "approver_unfit", "38.4"),
    Lie("approval by a stranger", "It took the approval of a key that nobody knows.", consented, approval("stranger"),
        "approver_unfit", "38.4"),
    Lie("approval needed", "It took what can't be undone for exclusive.", consented, _unapproved,
        "approval_required", "37.2"),
)  # fmt: skip
LIES = (*_FENCES, *_WORDS, *_RULED, *_APPROVED)
