"""What is counted of admissions: windows of log time, before each admission, for whom, and nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.record_keys import usage_key
from gateway.core.records import Usage, due_ms_of
from gateway.core.usage import DAY_MS, MINUTE_MS
from gateway.ledger.live import Live
from tests.core.court import FORBID, Court
from tests.core.requests import Ask, add, admit, batch, did_of, remove
from verifier.entries import Leaf
from verifier.wire import INT_MAX

READ: dict[str, Any] = {"mode": "read"}
OF_AGENT = ("agentCountMinute", "agentCountDay", "agentCostDay")
OF_OPERATOR = ("operatorCountMinute", "operatorCountDay", "operatorCostDay")
COSTLY = 1_000_000_000_000  # the most that one may cost


def read(name: str, *resources: str, **members: Any) -> Ask:
    return admit(name, *(resources or ("repo:x",)), **READ, **members)


def told(leaf: Leaf, names: tuple[str, ...]) -> list[int]:
    facts: Any = leaf.value["facts"]
    return [facts[name] for name in names]


def of_schemes(leaf: Leaf) -> dict[str, tuple[int, int, int]]:
    rows: Any = leaf.value["schemes"]
    return {row["name"]: (row["countMinute"], row["countDay"], row["costDay"]) for row in rows}


def test_an_entry_tells_what_was_counted_before_it() -> None:
    one = Court()
    assert told(one.allowed(read("A", cost=5)), OF_AGENT) == [0, 0, 0]
    assert told(one.allowed(read("A", cost=2)), OF_AGENT) == [1, 1, 5]
    assert told(one.allowed(read("A")), OF_AGENT) == [2, 2, 7]
    minute, day = one.t_ms // MINUTE_MS, one.t_ms // DAY_MS
    assert one.usage("agent", "A") == Usage(minute, 3, day, 3, 7, 3, 7, 0, len(one.leaves) - 1)


def test_what_an_agent_does_counts_for_its_operator_and_for_no_other() -> None:
    one = Court()
    one.allowed(read("A", cost=5))
    one.open("S", "B")
    one.allowed(read("S", cost=1))
    assert told(one.allowed(read("B")), OF_AGENT) == [1, 1, 1]
    assert told(one.allowed(read("E")), (*OF_AGENT, *OF_OPERATOR)) == [0, 0, 0, 3, 3, 6]
    assert told(one.allowed(read("X")), (*OF_AGENT, *OF_OPERATOR)) == [0] * 6


def test_a_scheme_counts_whoever_asks_and_once_for_all_names() -> None:
    one = Court()
    one.allowed(read("A", "repo:a", "repo:b", "doc:a", cost=5))
    one.allowed(read("X", "repo:c", cost=1))
    assert of_schemes(one.allowed(read("E", "doc:b", "lib:a", "repo:d"))) == {
        "doc": (1, 1, 5), "lib": (0, 0, 0), "repo": (2, 2, 6),
    }  # fmt: skip
    assert one.usage("scheme", "repo").day_count == 3


def test_of_a_scheme_nothing_is_kept_when_its_day_is_over() -> None:
    """Whoever asks may name as many schemes as it likes; who they are that ask, somebody enrolled."""
    one = Court()
    one.allowed(read("A", "doc:a", "lib:a"))
    end_ms = (one.t_ms // DAY_MS + 1) * DAY_MS
    due = {key: due_ms_of(record) for key, record in one.shelf.records.items() if key.startswith("usage/")}
    assert due == {
        usage_key("agent", did_of("A")): None, usage_key("operator", did_of("op")): None,
        usage_key("scheme", "doc"): end_ms, usage_key("scheme", "lib"): end_ms,
    }  # fmt: skip
    live = Live(one.shelf.records.items())
    live.forget(end_ms - 1)
    assert len(live) == len(one.shelf.records)
    live.forget(end_ms)
    assert [key.split("/")[1] for key, _ in live.scan("usage/")] == ["agent", "operator"]


def test_a_minute_and_a_day_begin_where_log_time_says() -> None:
    """A window is a minute on the clock, not the last sixty seconds."""
    one = Court()
    one.t_ms = (one.t_ms // DAY_MS + 1) * DAY_MS - 1
    one.allowed(read("A", cost=5))
    assert told(one.allowed(read("A", cost=5)), OF_AGENT) == [1, 1, 5]
    one.t_ms += 1
    assert told(one.allowed(read("A", cost=3)), (*OF_AGENT, *OF_OPERATOR)) == [0] * 6
    one.t_ms += MINUTE_MS - 1
    assert told(one.allowed(read("A")), OF_AGENT) == [1, 1, 3]
    one.t_ms += 1
    assert told(one.allowed(read("A")), OF_AGENT) == [0, 2, 3]
    assert (one.usage("agent", "A").total, one.usage("agent", "A").total_cost) == (5, 13)


def test_the_same_minute_of_another_day_is_another_minute() -> None:
    one = Court()
    one.allowed(read("A"))
    one.t_ms += DAY_MS
    assert told(one.allowed(read("A")), OF_AGENT) == [0, 0, 0]
    assert of_schemes(one.allowed(read("A"))) == {"repo": (1, 1, 0)}


def test_a_denial_uses_nothing_up_and_is_counted_apart() -> None:
    one = Court()
    one.allowed(read("A", cost=5))
    one.denied(admit("A", "repo:x", cost=9))
    one.load()
    one.judge.answer = FORBID
    leaf = one.denied(read("A", cost=9))
    assert told(leaf, OF_AGENT) == [1, 1, 5]
    assert [one.usage(of, name).denied for of, name in (("agent", "A"), ("operator", "op"))] == [2, 2]  # type: ignore[arg-type]
    assert one.usage("scheme", "repo").denied == 0 and one.usage("agent", "A").total == 1


def test_a_denial_in_another_minute_forgets_the_minute_and_nothing_else() -> None:
    one = Court()
    one.allowed(read("A", cost=5))
    one.t_ms += MINUTE_MS
    one.denied(admit("A", "repo:x"))
    assert told(one.allowed(read("A")), OF_AGENT) == [0, 1, 5]


@pytest.mark.parametrize("left", [0, 1, COSTLY - 1])
def test_a_sum_stops_at_the_largest_number_of_the_wire(left: int) -> None:
    """A budget that is spent stays spent; nothing wraps around, and the entry stays well-formed."""
    one = Court()
    made = Court.made.pop()  # a history in which somebody spent that much would be long
    for key in (usage_key("agent", did_of("A")), usage_key("operator", did_of("op")), usage_key("scheme", "repo")):
        full = INT_MAX - left
        one.shelf.records[key] = Usage(one.t_ms // MINUTE_MS, full, one.t_ms // DAY_MS, full, full, full, full, full)
    one.allowed(read("A", cost=COSTLY))
    leaf = one.allowed(read("A", cost=COSTLY))
    assert told(leaf, ("agentCostDay", "operatorCostDay")) == [INT_MAX, INT_MAX]
    assert of_schemes(leaf)["repo"][2] == INT_MAX
    usage = one.usage("agent", "A")
    assert (usage.total_cost, usage.day_cost) == (INT_MAX, INT_MAX) and usage.total <= INT_MAX
    one.say(admit("A", "repo:x"))
    one.say(admit("A", "repo:x"))
    assert one.usage("agent", "A").denied == min(INT_MAX, INT_MAX - left + 2)
    made.audit()


def test_nothing_but_admissions_is_metered() -> None:
    one = Court()
    lease_id = one.hold("A", "repo:x")
    one.renew("A", lease_id)
    one.ask_for("B", "repo:x")
    one.free("A", lease_id)
    assert not [key for key in one.shelf.records if key.startswith("usage/")]


def test_who_is_enrolled_again_has_what_it_used_up() -> None:
    one = Court()
    one.allowed(read("A", cost=5))
    one.say(remove("op", "A"))
    one.say(add("op", "A"))
    assert told(one.allowed(read("A")), OF_AGENT) == [1, 1, 5]


def test_who_changes_operators_takes_its_own_counts_along_and_not_the_operators() -> None:
    one = Court()
    one.allowed(read("A", cost=5))
    one.say(remove("op", "A"))
    one.say(add("op2", "A"))
    assert told(one.allowed(read("A")), (*OF_AGENT, *OF_OPERATOR)) == [1, 1, 5, 0, 0, 0]


def test_a_batch_counts_each_of_its_admissions_and_each_denial() -> None:
    one = Court()
    one.say(batch("A", read("A", cost=1), admit("A", "repo:x"), read("A", cost=2)))
    usage = one.usage("agent", "A")
    assert (usage.total, usage.total_cost, usage.denied) == (2, 3, 1)
