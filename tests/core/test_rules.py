"""What rules decide, and what no rule, fact or error can: a write that conflicts, or one without its live fence."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core import admission
from gateway.core.outcome import Context, Recorded, Rules, Ruling
from gateway.core.record_codec import decode_record, encode_record
from gateway.core.record_keys import RULES_KEY
from gateway.core.records import RuleSet
from tests.core.book import Book, own_members
from tests.core.court import ALLOW, ENGINE, ERROR, FORBID, NOTHING, TEXT, Court, Judge
from tests.core.requests import (
    ARGUMENTS,
    NOW_MS,
    Ask,
    acquire,
    admit,
    approved,
    batch,
    break_,
    did_of,
    load_rules,
    release,
    set_scheme,
    with_approvals,
)
from verifier.entries import covers
from verifier.wire import INT_MAX

READ: dict[str, Any] = {"mode": "read"}
DIGEST = hashlib.sha256(TEXT.encode()).hexdigest()


# -- loading ---


def test_a_set_is_in_force_from_the_next_entry_on_and_the_next_one_takes_its_place() -> None:
    one = Court()
    assert own_members(one.load()) == {
        "rulesVersion": 1, "rulesMode": "enforce", "digest": DIGEST, "engine": ENGINE, "count": 1,
    }  # fmt: skip
    assert one.shelf.records[RULES_KEY] == RuleSet(1, DIGEST, TEXT, "enforce", ENGINE, len(one.leaves) - 1)
    two = TEXT + '@id("two")\nforbid (principal, action, resource);\n'
    assert own_members(one.load("shadow", two, 2))["count"] == 2
    assert one.shelf.records[RULES_KEY].version == 2  # type: ignore[union-attr]
    assert own_members(one.load("enforce", two, 3))["rulesMode"] == "enforce", "the same text in another mode"


@pytest.mark.parametrize("version", [2, 7, INT_MAX])
def test_the_first_set_is_number_one(version: int) -> None:
    one = Court()
    assert one.refuses(load_rules("op", TEXT, version)) == "rules_out_of_turn"


def test_of_two_operators_who_load_at_once_only_one_does() -> None:
    one = Court()
    asks = [one.now(load_rules(name, TEXT + f"// {name}\n", 1)) for name in ("op", "op2")]
    first, second = one.run(one.t_ms, *asks).answers
    assert isinstance(first, Recorded) and isinstance(second, Recorded)
    assert (first.status, second.status) == (200, 409)
    assert own_members(one.leaf(second.seq)) == {
        "rulesVersion": 1, "rulesMode": "enforce", "error": "rules_out_of_turn", "number": 631,
    }  # fmt: skip
    assert one.shelf.records[RULES_KEY].text.endswith("// op\n")  # type: ignore[union-attr]


def test_only_operators_load_rules() -> None:
    one = Court()
    assert one.refuses(load_rules("A", TEXT, 2)) == "operator_required"
    assert one.refuses(load_rules("Z", TEXT, 1)) == "agent_unknown"


def test_nothing_is_loaded_where_nothing_evaluates_rules() -> None:
    """The door lets none in; if one came through all the same, it would be an error of the gateway."""
    one = Court()
    one.rules = None
    assert one.refuses(load_rules("op", TEXT, 1)) == "decision_failed"


def test_a_replay_of_a_loading_loads_nothing_again() -> None:
    one = Court()
    asked = one.now(load_rules("op", TEXT, 1))
    assert [one.tell(asked), one.tell(asked.again())] == ["rules.loaded", "replay"]
    assert one.shelf.records[RULES_KEY].version == 1  # type: ignore[union-attr]


# -- what the judge is asked ---


def test_the_judge_is_asked_once_about_everything_that_the_entry_then_tells() -> None:
    one = Court()
    one.load()
    fence = one.fence("E", "repo:b", "doc:a")
    one.open("S", "E", label="shell")
    leaf = one.allowed(admit("E", "repo:b", "doc:a", lease=fence, cost=9, operation="deploy"))
    ((rule_set, question),) = one.judge.asked
    assert rule_set == one.shelf.records[RULES_KEY]
    assert question.principal == did_of("E") and question.on_behalf_of == did_of("op")
    assert (question.operation, question.resources, question.mode) == ("deploy", ("doc:a", "repo:b"), "write")
    assert (question.arguments_digest, question.cost, question.time_ms) == (ARGUMENTS, 9, one.t_ms)
    assert dict(question.facts) == leaf.value["facts"]
    assert [(row.name, row.class_name, row.count_day) for row in question.schemes] == [
        ("doc", "exclusive", 0), ("repo", "exclusive", 0),
    ]  # fmt: skip
    assert leaf.value["rules"] == {
        "version": 1, "digest": DIGEST, "mode": "enforce", "engine": ENGINE, "decision": "allow", "matched": ["all"],
        "obligations": [],
    }  # fmt: skip


def test_about_what_the_hard_rules_refuse_no_rule_is_asked() -> None:
    one = Court()
    one.load()
    one.hold("B", "repo:x")
    for ask in (admit("A", "repo:y"), admit("A", "repo:x", mode="read"), admit("A", "repo:x", lease=("L9", 7))):
        assert one.denied(ask).value.keys().isdisjoint({"rules", "facts", "schemes"})
    assert one.judge.asked == []


def test_the_rules_see_what_was_approved_and_approvals_name_the_rules() -> None:
    """An approval that was given under other rules is for another action."""
    one = Court()
    fence = one.fence("A", "repo:x")
    genesis = one.imprint.genesis
    asked = one.now(admit("A", "repo:x", lease=fence))
    early = approved("X", asked, genesis)
    one.load()
    assert one.denied(with_approvals(asked, early)).text("error") == "approval_wrong"
    asked = one.now(admit("A", "repo:x", lease=fence))
    given = [approved(by, asked, genesis, DIGEST) for by in ("X",)]
    leaf = one.allowed(with_approvals(asked, *given))
    assert dict(one.judge.asked[-1][1].facts)["approvals"] == 1
    rows: Any = leaf.value["approvals"]
    assert [(row["approver"], row["operator"]) for row in rows] == [(did_of("X"), did_of("op2"))]


def test_what_the_rules_deny_burns_no_approval() -> None:
    one = Court()
    one.load()
    fence = one.fence("A", "repo:x")
    asked = one.now(admit("A", "repo:x", lease=fence))
    given = approved("X", asked, one.imprint.genesis, DIGEST)
    one.judge.answer = FORBID
    assert one.denied(with_approvals(asked, given)).text("error") == "forbidden_by_rules"
    one.judge.answer = ALLOW
    again = with_approvals(one.now(admit("A", "repo:x", lease=fence)), given)
    one.allowed(again)
    assert (
        one.denied(with_approvals(one.now(admit("A", "repo:x", lease=fence)), given)).text("error") == "approval_used"
    )


# -- what comes of the answer ---


def ruling(*answer: object) -> Ruling:
    return Ruling(*answer)  # type: ignore[arg-type]


class Odd(Exception):
    """What an engine raises is its own business."""


NONSENSE: dict[str, object] = {
    "nothing": None,
    "yes": True,
    "a word": "allow",
    "a plain tuple": ("allow", ("all",), (), ENGINE),
    "an allow that nothing permits": ruling("allow", (), (), ENGINE),
    "no decision": ruling("NoDecision", ("all",), (), ENGINE),
    "a decision in capitals": ruling("Allow", ("all",), (), ENGINE),
    "ids that are no ids": ruling("allow", ("ALL",), (), ENGINE),
    "ids out of order": ruling("allow", ("b", "a"), (), ENGINE),
    "the same id twice": ruling("allow", ("a", "a"), (), ENGINE),
    "ids in a text": ruling("allow", "a", (), ENGINE),
    "too many ids": ruling("allow", tuple(f"r{n:02}" for n in range(65)), (), ENGINE),
    "obligations that are none": ruling("allow", ("all",), ("Tell somebody",), ENGINE),
    "obligations in a list": ruling("allow", ("all",), ["tell"], ENGINE),
    "an unknown engine": ruling("allow", ("all",), (), "oracle"),
    "no engine": ruling("allow", ("all",), (), None),
    "an error": Odd("no"),
    "a failed assertion": AssertionError(),
    "too deep": RecursionError(),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
def test_what_is_no_good_answer_denies(answer: object) -> None:
    one = Court()
    one.load()
    one.judge.answer = answer
    leaf = one.denied(admit("A", "repo:x", **READ))
    assert leaf.text("error") == "policy_error"
    assert leaf.value["rules"] == {
        "version": 1, "digest": DIGEST, "mode": "enforce", "engine": "none", "decision": "error", "matched": [],
        "obligations": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "error"),
    [(ALLOW, ""), (FORBID, "forbidden_by_rules"), (NOTHING, "not_permitted"), (ERROR, "policy_error")],
)
def test_in_force_only_an_allow_allows(answer: Ruling, error: str) -> None:
    one = Court()
    one.load()
    one.judge.answer = answer
    leaf = one.say(admit("A", "repo:x", **READ))
    assert leaf.value.get("error", "") == error
    told: Any = leaf.value["rules"]
    assert Ruling(told["decision"], tuple(told["matched"]), tuple(told["obligations"]), told["engine"]) == answer


@pytest.mark.parametrize("answer", [ALLOW, FORBID, NOTHING, ERROR, Odd(), None])
def test_in_the_shadow_the_answer_is_written_down_and_nothing_hangs_on_it(answer: object) -> None:
    one = Court()
    one.load("shadow")
    one.judge.answer = answer
    told: Any = one.allowed(admit("A", "repo:x", **READ)).value["rules"]
    assert told["mode"] == "shadow"
    assert told["decision"] == (answer.decision if isinstance(answer, Ruling) else "error")
    assert one.denied(admit("A", "repo:x")).text("error") == "lease_required"


def test_where_nothing_evaluates_the_rules_in_force_nothing_is_admitted() -> None:
    one = Court()
    one.load()
    one.rules = None
    leaf = one.denied(admit("A", "repo:x", **READ))
    told: Any = leaf.value["rules"]
    assert (leaf.text("error"), told["engine"], told["decision"]) == ("policy_error", "none", "error")


def test_the_reason_of_an_error_goes_to_the_log_and_never_into_the_ledger() -> None:
    one = Court()
    one.load()
    one.judge.answer = Odd("secret of the engine")
    answer = one.play(one.t_ms, one.now(admit("A", "repo:x", **READ)))
    assert isinstance(answer, Recorded) and answer.fault is one.judge.answer
    assert b"secret" not in one.leaves[answer.seq]


def test_a_fact_that_is_missing_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Court()
    one.load()
    real = admission._facts

    def without_trust(*args: Any) -> Any:
        facts = real(*args)
        del facts["trust"]
        return facts

    monkeypatch.setattr(admission, "_facts", without_trust)
    answer = one.play(one.t_ms, one.now(admit("A", "repo:x", **READ)))
    assert isinstance(answer, Recorded) and answer.status == 403
    assert b'"policy_error"' in one.leaves[answer.seq] and one.judge.asked == []
    Court.made.clear()  # no such leaf is well-formed


@pytest.mark.parametrize("broken", ["_facts", "count_allowed", "burn", "_valid_until_ms"])
def test_an_error_on_the_way_grants_nothing_and_counts_nothing(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    one = Court()
    one.load()

    def fails(*_: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(admission, broken, fails)
    before = one.lasting()
    answer = one.play(one.t_ms, one.now(admit("A", "repo:x", **READ)))
    assert isinstance(answer, Recorded) and answer.status == 500
    assert one.leaf(answer.seq).text("error") == "decision_failed" and one.lasting() == before


def test_rules_decide_each_admission_of_a_batch_by_what_came_before_it() -> None:
    one = Court()
    one.load()
    one.judge.answer = ALLOW
    one.say(batch("A", *(admit("A", f"repo:{name}", **READ) for name in "abc")))
    assert [dict(question.facts)["agentCountDay"] for _, question in one.judge.asked] == [0, 1, 2]


def test_records_of_rules_and_counts_come_back_from_the_store() -> None:
    """The shelf encodes and decodes each record on its way in; here the bytes are looked at as well."""
    one = Court()
    one.load()
    fence = one.fence("A", "repo:x")
    one.allowed(admit("A", "repo:x", lease=fence, cost=12))
    for key, record in one.shelf.records.items():
        if key.startswith(("usage/", RULES_KEY)):
            assert decode_record(key, encode_record(record)) == record
    assert {key for key in one.shelf.records if key.startswith("usage/")} == {
        f"usage/agent/{did_of('A')}", f"usage/operator/{did_of('op')}", "usage/scheme/repo",
    }  # fmt: skip


# -- whatever the rules say ---

NAMES = ("repo:a", "repo:a/b", "repo:a/**", "repo:c", "doc:a", "doc:**")
SHARING = {"doc"}  # read-safe
MODES = ("read", "append", "write", "delete")
ANSWERS = (ALLOW, FORBID, NOTHING, ERROR, *NONSENSE.values())


class Held(NamedTuple):
    """A lease as a bystander remembers it."""

    lease_id: str
    holder: str
    names: tuple[str, ...]
    mode: str
    token: int


class Bystander:
    """Who looks on and remembers, by entries alone, who holds what."""

    def __init__(self) -> None:
        self.live: list[Held] = []
        self.ever: list[Held] = []

    def sees(self, one: Book, mark: int) -> None:
        for leaf in map(one.leaf, range(mark, len(one.leaves))):
            kind = leaf.type.split("/")[1]
            if kind == "lease.granted":
                names = tuple(map(str, leaf.value["resources"]))  # type: ignore[arg-type]
                held = Held(leaf.text("leaseId"), leaf.actor, names, leaf.text("mode"), leaf.number("fencingToken"))
                self.live.append(held)
                self.ever.append(held)
            elif kind in ("lease.released", "lease.broken", "lease.expired"):
                self.live = [held for held in self.live if held.lease_id != leaf.text("leaseId")]

    def lets(self, actor: str, names: tuple[str, ...], mode: str, fence: tuple[str, int] | None) -> bool:
        """Say whether it can hurt nobody: a live lease with this token covers it, and nobody is in the way."""
        shown = [h for h in self.live if (h.lease_id, h.token, h.holder) == (*(fence or ("", 0)), actor)]
        if fence is None and mode != "read":
            return False
        if fence is not None and not any(self._is_enough(held, names, mode) for held in shown):
            return False
        return not any(self._excludes(held, names, mode) for held in self.live if held.holder != actor)

    def _is_enough(self, held: Held, names: tuple[str, ...], mode: str) -> bool:
        is_strong = MODES.index(held.mode) >= MODES.index(mode)
        return is_strong and all(any(covers(wide, name) for wide in held.names) for name in names)

    def _excludes(self, held: Held, names: tuple[str, ...], mode: str) -> bool:
        for name in names:
            shares = name.split(":")[0] in SHARING and held.mode == mode == "read"
            if not shares and any(covers(name, other) or covers(other, name) for other in held.names):
                return True
        return False


def is_yes(answer: object) -> bool:
    return isinstance(answer, Ruling) and answer == ALLOW


names = st.sets(st.sampled_from(NAMES), min_size=1, max_size=3).map(lambda found: tuple(sorted(found)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_ruling_fact_or_error_admits_a_write_that_conflicts_or_lacks_its_live_fence(data: st.DataObject) -> None:
    """And what is neither is admitted exactly when there are no rules, they look on, or they say a good yes."""
    one, seen, judge, t_ms = Book(("A", "B")), Bystander(), Judge(), NOW_MS
    one.rules = judge
    one.play(t_ms, set_scheme("op", "doc", "read-safe"))
    rules = data.draw(st.sampled_from(["none", "shadow", "enforce"]))
    if rules != "none":
        one.play(t_ms, load_rules("op", TEXT, 1, rules))
    for _ in range(data.draw(st.integers(2, 10))):
        mark = len(one.leaves)
        who = data.draw(st.sampled_from("AB"))
        match data.draw(st.sampled_from(["hold", "hold", "hold", "end", "break", "time", "admit", "admit", "admit"])):
            case "hold":
                mode, ttl_ms = data.draw(st.sampled_from(MODES)), data.draw(st.sampled_from([1_000, 60_000]))
                one.play(t_ms, acquire(who, *data.draw(names), at_ms=t_ms, mode=mode, ttlMs=ttl_ms))
            case "end" if seen.live:
                held = data.draw(st.sampled_from(seen.live))
                holder = "A" if held.holder == did_of("A") else "B"
                one.play(t_ms, release(holder, *held.names, at_ms=t_ms, leaseId=held.lease_id))
            case "break" if seen.live:
                held = data.draw(st.sampled_from(seen.live))
                one.play(t_ms, break_("op", held.names[0], held.token, at_ms=t_ms))
            case "time":
                t_ms += data.draw(st.sampled_from([999, 1_000, 60_000]))
                one.run(t_ms)
            case "admit":
                ask, fence = _drawn(data, seen, who, t_ms)
                one.rules = None if data.draw(st.integers(0, 9)) == 0 else judge
                judge.answer = data.draw(st.sampled_from(ANSWERS))
                _check(one, seen, who, ask, fence, t_ms, is_ruled=rules == "enforce")
        seen.sees(one, mark)


def _drawn(data: st.DataObject, seen: Bystander, who: str, t_ms: int) -> tuple[Ask, tuple[str, int] | None]:
    """Return an admission with a fence that is mostly nearly right."""
    fence = None
    wanted, mode = data.draw(names), data.draw(st.sampled_from(MODES))
    is_fenced = data.draw(st.sampled_from([True, True, True, False]))
    if seen.ever and is_fenced:
        held, other = data.draw(st.sampled_from(seen.ever)), data.draw(st.sampled_from(seen.ever))
        token = data.draw(st.sampled_from([held.token, held.token, held.token, other.token, held.token + 1]))
        fence = (held.lease_id, token)
        if data.draw(st.booleans()):
            wanted, mode = held.names, held.mode
    wanted = tuple(sorted({name.replace("**", "x") for name in wanted}))  # it names objects, never a sub-tree
    return admit(who, *wanted, at_ms=t_ms, mode=mode, lease=fence), fence


def _check(
    one: Book, seen: Bystander, who: str, ask: Ask, fence: tuple[str, int] | None, t_ms: int, *, is_ruled: bool
) -> None:
    leaf = one.entry(t_ms, ask)
    is_allowed = leaf.type.split("/")[1] == "admission.allowed"
    body = ask.members()
    wanted = tuple(body.get("resources") or [body["resource"]])
    is_harmless = seen.lets(did_of(who), wanted, body["mode"], fence)
    is_permitted = not is_ruled or (one.rules is not None and is_yes(one.rules.answer))  # type: ignore[attr-defined]
    assert is_allowed == (is_harmless and is_permitted), own_members(leaf)


def test_the_core_asks_through_the_context_alone() -> None:
    """What evaluates rules is handed in, so that the core stays pure."""
    context = Context(0, 0, Book(()).parameters)
    assert context.rules is None
    judge: Rules = Judge()
    assert context._replace(rules=judge).rules is judge
