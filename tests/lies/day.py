"""One long day by the real core, with nearly every type of entry: what mutations are tried on."""

from __future__ import annotations

from gateway.rules.engine import open_engine
from tests.core.crew import digest
from tests.core.requests import (
    accept,
    acquire,
    add,
    add_operator,
    admit,
    approved,
    ask,
    batch,
    beat,
    break_,
    cancel,
    claim,
    close,
    decline,
    enrol,
    give,
    issue,
    load_rules,
    plead,
    release,
    remove,
    remove_operator,
    renew,
    revoke,
    set_scheme,
    state_key,
    transfer,
    with_approvals,
    withdraw,
)
from tests.lies.kit import LOG_2, RECEIPT_2, House
from tests.verifier import maker

RULES = """@id("work") @obligation("log")
permit(principal, action, resource in Scheme::"work") when { context.trust > 9 };
@id("prod") permit(principal, action, resource in Scheme::"prod");
@id("doc") permit(principal, action == Action::"read", resource in Resource::"doc:**");
@id("budget") forbid(principal, action, resource) when { context.agentCostDay + context.cost > 20 };
"""
RESERVE_AFTER_MS, MAX_HOLD_MS = 10_000, 40_000  # so short that a day sees both


def day(house: House | None = None, *, has_keys: bool = True) -> House:
    """Every type of entry but a dispute and a failure, in about a hundred entries; `house` is one of these numbers."""
    house = house or House(reserve_after_ms=RESERVE_AFTER_MS, max_hold_ms=MAX_HOLD_MS)
    house.start(3_000)
    _leases(house)
    _waiting(house)
    _many_names(house)
    _people(house)
    _sessions(house)
    _refusals(house)
    _admissions(house)
    _approvals(house)
    if has_keys:
        _keys(house)
    return house


def _leases(house: House) -> None:
    house.say(set_scheme("op", "doc", "read-safe", isFolding=True, lockDelayMs=5_000))
    house.say(set_scheme("B", "doc", "exclusive"))
    reader = house.hold("A", "doc:Plan/**", mode="read", ttlMs=60_000)
    house.hold("B", "doc:plan/a", mode="read", ttlMs=4_000)
    house.ask_for("C", "doc:plan/a")
    house.ask_for("C", "doc:plan/a")
    house.say(set_scheme("op", "doc", "exclusive"))
    house.later(4_000)
    house.ask_for("A", "doc:PLAN/**", mode="read", ttlMs=50_000)
    house.renew("A", reader, mode="write")
    house.renew("A", reader)
    house.renew("A", house.own_lease("A"), ttlMs=30_000)
    held = house.hold("D", "repo:a", "repo:b", ttlMs=30_000)
    house.t_ms += 1_500
    house.say(release("D", "repo:a", "repo:b"))
    house.say(release("D", "repo:a", "repo:b", leaseId=held))
    house.say(release("D", "repo:a", "repo:b"))


def _waiting(house: House) -> None:
    first = house.hold("A", "lock:x", ttlMs=60_000)
    ticket = house.line("B", "lock:x")
    behind = house.line("C", "lock:x")
    house.t_ms += 5_000
    house.claim("B", ticket)
    token = house.leases()[first].fencing_token
    house.say(break_("op", "lock:x", token))
    house.say(break_("op", "lock:x", token))
    house.ask_for("D", "lock:x")
    house.claim("B", ticket)
    house.claim("B", ticket)
    house.cancel("C", behind)
    house.say(cancel("C", behind))
    lease = house.own_lease("B")
    token = house.leases()[lease].fencing_token
    house.say(transfer("B", lease, token + 1, "C"))
    house.say(transfer("B", lease, token, "C"))
    house.say(accept("D", lease))
    house.say(accept("C", lease))
    house.hold("B", "lock:y", ttlMs=20_000)
    house.ask_for("C", "lock:y")
    house.ask_for("B", "lock:x")
    house.line("D", "lock:y")


def _many_names(house: House) -> None:
    house.hold("A", "many:a", ttlMs=25_000)
    house.line("B", "many:a", "many:b")
    house.later(10_000)
    house.later(16_000)
    house.later(14_000)


def _people(house: House) -> None:
    house.say(add_operator("op", "op3", name="third"))
    house.say(add("B", "E"))
    house.say(add_operator("op", "A"))
    house.say(enrol("T", house.key("live", "live"), name="newcomer"))
    house.say(enrol("U", house.key("trial", "trial")))
    house.ask_for("U", "repo:prod")
    house.say(enrol("V", digest("trial")))
    house.say(issue("op", digest("live"), "live"))
    house.say(revoke("op", digest("live")))
    house.say(revoke("op", digest("live")))
    house.say(add("op", "E", agentCustody="gateway"))
    house.hold("E", "repo:e", ttlMs=30_000)
    house.say(remove("op", "Z"))
    house.say(remove_operator("op", "op3"))
    house.say(remove_operator("op", "op3"))


def _sessions(house: House) -> None:
    house.open("s", "op", "A", label="desk", resources=["repo:**"])
    house.hold("s", "repo:a", ttlMs=600_000)
    house.say(beat("s", activity="building"))
    house.say(beat("A"))
    more = [acquire("s", "repo:b"), renew("s", house.own_lease("s")), release("s", "repo:b"), acquire("s", "repo:e")]
    house.say(batch("s", *more))
    house.say(batch("C", acquire("C", "repo:c"), acquire("C", "repo:a"), isAtomic=True))
    house.open("u", "B")
    house.hold("u", "repo:u")
    house.say(close("B", "u", reason="done"))
    house.say(close("B", "u"))
    house.say(close("B", "v"))
    house.later(120_000)
    house.open("w", "B")
    house.hold("C", "repo:v")
    house.line("w", "repo:v")
    house.hold("w", "repo:w")
    house.say(remove("op", "B"))


def _refusals(house: House) -> None:
    house.say(claim("D", "T5"))
    house.say(renew("D", "L5"))
    house.say(ask("lease.break", "D", resource="repo:w", seenToken=5, reason="mine"))
    house.hold("A", "loop:a")
    house.hold("C", "loop:c")
    house.line("A", "loop:c")
    house.ask_for("C", "loop:a", wait=True)
    house.say(acquire("C", "loop:a", wait=True, onDeadlock="wait"))
    house.ask_for("D", "loop:a")
    house.renew("D", house.hold("D", "lock:z"), mode="read")
    house.say(renew("A", house.own_lease("A"), ttlMs=60_000))


def _admissions(house: House) -> None:
    house.rules = open_engine()
    house.t_ms += 61_000
    shown = _shown(house, house.hold("A", "work:a", "work:b"))
    old = _shown(house, house.hold("C", "work:c", ttlMs=20_000))
    house.say(release("C", "work:c", leaseId=old[0]))
    house.say(admit("A", "work:a", lease=shown, cost=2))
    house.say(load_rules("op", RULES, 1))
    house.say(load_rules("D", RULES, 2))
    house.say(admit("A", "work:b", lease=shown, cost=3))
    house.say(admit("A", "work:a", "work:b", lease=shown, cost=30))
    house.say(admit("C", "work:c", lease=old))
    house.say(admit("D", "work:a", mode="read"))
    house.say(admit("D", "work:a"))
    house.say(admit("D", "other:x", mode="read"))
    house.say(admit("X", "doc:Plan", mode="read", cost=1))
    house.say(load_rules("op", RULES.replace("> 9", "> 60000"), 2, "shadow"))
    house.say(batch("A", admit("A", "work:a", lease=shown), admit("A", "work:a", lease=(shown[0], shown[1] - 1))))
    house.say(batch("A", admit("A", "work:a", lease=shown), admit("A", "lock:w"), isAtomic=True))
    house.open("z", "A", resources=["work:**"])
    house.say(admit("z", "work:q", mode="read"))
    house.say(admit("z", "lock:q", mode="read"))


def _approvals(house: House) -> None:
    house.say(set_scheme("op", "prod", "irreversible"))
    shown = _shown(house, house.hold("A", "prod:db"))
    house.say(admit("A", "prod:db", lease=shown))
    asked = house.say(plead("A", "prod:db", of=("op2", "X")))
    one = admit("A", "prod:db", lease=shown)
    word = approved("op2", one, house.imprint.genesis, house.rules_digest(), at_ms=house.t_ms)
    house.say(give("D", asked.text("askId"), word))
    house.say(give("op2", asked.text("askId"), word))
    house.say(withdraw("A", asked.text("askId")))
    house.say(with_approvals(one, word))
    house.say(with_approvals(one.again().but(idempotency_key="again"), word))
    asked = house.say(plead("A", "prod:db", of=("X",)))
    house.say(decline("X", asked.text("askId"), reason="no"))
    asked = house.say(plead("A", "prod:db", of=("X",)))
    house.say(withdraw("A", asked.text("askId")))
    house.say(plead("A", "prod:db", of=("D",)))


def _shown(house: House, lease_id: str) -> tuple[str, int]:
    return lease_id, house.leases()[lease_id].fencing_token


def _keys(house: House) -> None:
    house.witness()
    house.announce(RECEIPT_2, "receipt")
    house.say(state_key("op", "announce", house.state("announce", maker.RECEIPT, "receipt")))
    house.retire(maker.RECEIPT, "receipt")
    house.say(state_key("op", "retire", house.state("retire", maker.LOG)))
    house.say(state_key("A", "compromise", house.state("compromise", maker.LOG)))
    house.announce(LOG_2)
    house.t_ms += 1_500
    house.witness()
