"""Random days of admissions: the auditor finds nothing, and a second opinion by lists and loops agrees.

The oracle reads the leaves as JSON and nothing else: it imports neither the core nor the auditor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.rules.engine import open_engine
from tests.core.requests import acquire, admit, approved, batch, did_of, load_rules, release, set_scheme, with_approvals
from tests.lies.kit import House, Json
from tests.lies.table_admissions import RULES
from tests.lies.test_rederivation import judged

MINUTE_MS, DAY_MS = 60_000, 86_400_000
AGENTS, NAMES = ("A", "B", "C", "X", "s"), ("repo:a", "repo:a/b", "doc:x", "prod:db", "lock:z")
SETS = (
    RULES,
    RULES.replace("agentCostDay", "schemeCostDay"),
    '@id("few") permit(principal, action, resource) when { context.agentCountMinute < 3 };\n'
    '@id("team") forbid(principal, action, resource) when { context.operatorCountDay > 9 };',
    '@id("held") @obligation("log") permit(principal, action, resource) when { context.leaseAgeMs >= 0 };\n'
    '@id("asleep") forbid(principal, action, resource in Scheme::"doc") when { context.minuteOfDay > 700 };\n'
    '@id("eyes") forbid(principal, action, resource in Scheme::"prod") unless { context.approvals > 0 };',
)


class Day:
    """Plays at random to the real core."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.house = House(session_idle_ms=600_000)
        self.version = 0
        self.held: dict[str, list[tuple[str, tuple[str, ...], int]]] = {name: [] for name in AGENTS}
        self.house.rules = open_engine()
        self.house.say(set_scheme("op", "prod", "irreversible"))
        self.house.say(set_scheme("op", "doc", "read-safe", isFolding=True))
        self.house.open("s", "A")

    def play(self, steps: int) -> House:
        for _ in range(steps):
            self.house.t_ms += self.dice.choice((0, 3, 900, 900, 20_000, 61_000))
            if self.dice.random() < 0.02:
                self.house.t_ms += self.dice.choice((DAY_MS // 2, DAY_MS))
            if self.house.session("s").due_at_ms <= self.house.t_ms:
                self.held["s"] = []
            act = self.dice.choices((self._admit, self._take, self._give, self._batch, self._load), (12, 4, 1, 2, 1))[0]
            act()
        return self.house

    def _tell(self, ask: Any) -> str:
        return self.house.tell(ask)

    def _take(self) -> None:
        who, name = self.dice.choice(AGENTS), self.dice.choice(NAMES)
        mode = self.dice.choice(("read", "write", "write"))
        if self._tell(acquire(who, name, mode=mode, ttlMs=self.dice.choice((5_000, 600_000)))) == "lease.granted":
            last = self.house.last()
            self.held[who].append((last["leaseId"], (name,), last["fencingToken"]))

    def _give(self) -> None:
        who = self.dice.choice(AGENTS)
        if self.held[who]:
            lease, names, _ = self.dice.choice(self.held[who])
            self._tell(release(who, *names, leaseId=lease))

    def _one(self, who: str) -> Any:
        """Return an admission that may be good: of a lease that the agent had at some time, or a read."""
        cost = self.dice.choice((0, 1, 7))
        if self.held[who] and self.dice.random() < 0.8:
            lease, names, token = self.dice.choice(self.held[who])
            shown = lease, token + self.dice.choice((0, 0, 0, 0, -1, 1))
            one = admit(who, *names, lease=shown, cost=cost, mode=self.dice.choice(("read", "write", "write")))
        else:
            one = admit(who, *self.dice.sample(NAMES, self.dice.choice((1, 1, 2))), cost=cost, mode="read")
        return self._with_approval(one, who)

    def _with_approval(self, one: Any, who: str) -> Any:
        if self.dice.random() < 0.5:
            return one
        by = self.dice.choice(("op2", "X", "A"))
        digest = self.house.shelf.records["ledger/rules"].digest if self.version else "0" * 64  # type: ignore[union-attr]
        agent = "A" if who == "s" else None
        signed = approved(by, one, self.house.imprint.genesis, digest, agent, at_ms=self.house.t_ms)
        return with_approvals(one, signed)

    def _admit(self) -> None:
        self._tell(self._one(self.dice.choice(AGENTS)))

    def _batch(self) -> None:
        who = self.dice.choice(AGENTS)
        asked = [self._one(who) for _ in range(self.dice.choice((1, 2, 3)))]
        self._tell(batch(who, *asked, isAtomic=self.dice.random() < 0.5))

    def _load(self) -> None:
        mode = self.dice.choice(("enforce", "enforce", "shadow"))
        if self._tell(load_rules("op", self.dice.choice(SETS), self.version + 1, mode)) == "rules.loaded":
            self.version += 1


# --- the oracle ---


def allowed(entries: list[Json]) -> list[Json]:
    return [entry for entry in entries if entry["type"] == "tallystick/admission.allowed/1"]


def counts(before: list[Json], now: Json, mine: Any) -> tuple[int, int, int]:
    """Count by loops: this minute's, this day's, and what those cost."""
    same = [entry for entry in before if mine(entry)]
    day = [entry for entry in same if entry["timeMs"] // DAY_MS == now["timeMs"] // DAY_MS]
    minute = [entry for entry in same if entry["timeMs"] // MINUTE_MS == now["timeMs"] // MINUTE_MS]
    return len(minute), len(day), sum(entry["cost"] for entry in day)


def expected(entries: list[Json], place: int) -> dict[str, int]:
    now, before = entries[place], allowed(entries[:place])
    agent = counts(before, now, lambda entry: entry["principal"] == now["principal"])
    operator = counts(before, now, lambda entry: entry["onBehalfOf"] == now["onBehalfOf"])
    names = ("CountMinute", "CountDay", "CostDay")
    return {
        **{f"agent{name}": count for name, count in zip(names, agent, strict=True)},
        **{f"operator{name}": count for name, count in zip(names, operator, strict=True)},
        "trust": trust(entries[:place], now["principal"]),
    }


def trust(before: list[Json], did: str) -> int:
    """Return the trust that the last entry about it left."""
    rows = [row for entry in before for row in entry.get("trust", []) if isinstance(row, dict) and row["did"] == did]
    return int(rows[-1]["after"]) if rows else 50_000


def of_schemes(entries: list[Json], place: int) -> Iterator[tuple[str, tuple[int, int, int]]]:
    now, before = entries[place], allowed(entries[:place])
    for scheme in sorted({name.partition(":")[0] for name in now["resources"]}):
        yield (
            scheme,
            counts(
                before, now, lambda entry, scheme=scheme: any(n.startswith(scheme + ":") for n in entry["resources"])
            ),
        )


def is_fenced(entries: list[Json], place: int) -> bool:
    """I3: the token of an admission is of a grant that no entry before has ended."""
    now = entries[place]
    if "grantSeq" not in now:
        return bool(now["mode"] == "read")
    grant = entries[now["grantSeq"]]
    ends = ("lease.released", "lease.expired", "lease.broken", "lease.returned")
    over = [entry for entry in entries[:place] if entry["type"].split("/")[1] in ends]
    is_over = any(entry["leaseId"] == now["leaseId"] for entry in over)
    return not is_over and bool((grant["fencingToken"], grant["actor"]) == (now["fencingToken"], now["actor"]))


@pytest.mark.parametrize("seed", range(6))
def test_a_random_day_is_audited_without_a_finding_and_the_oracle_agrees(seed: int, tmp_path: Path) -> None:
    house = Day(seed).play(160)
    report = judged(house, tmp_path, has_rules=True)
    assert [(f.code, f.seq, f.text) for f in report.findings if f.outcome > 0] == []
    entries = [json.loads(leaf) for leaf in house.leaves]
    told = [place for place, entry in enumerate(entries) if "facts" in entry]
    for place in told:
        entry, facts = entries[place], entries[place]["facts"]
        wanted = expected(entries, place)
        assert {name: facts[name] for name in wanted} == wanted
        rows = [(row["name"], (row["countMinute"], row["countDay"], row["costDay"])) for row in entry["schemes"]]
        assert rows == list(of_schemes(entries, place))
    assert all(is_fenced(entries, place) for place, entry in enumerate(entries) if entry in allowed(entries))


def test_the_random_days_have_something_of_everything() -> None:
    """A test that never meets a stale fence, a budget or an approval would prove little."""
    entries = [json.loads(leaf) for seed in range(6) for leaf in Day(seed).play(160).leaves]
    errors = {entry.get("error") for entry in entries if entry["type"] == "tallystick/admission.denied/1"}
    wanted = {"stale_fence", "fence_unknown", "lease_too_narrow", "admission_conflict", "approval_required",
              "approver_unfit", "forbidden_by_rules", "not_permitted"}  # fmt: skip
    assert wanted <= errors
    assert any("approvals" in entry for entry in allowed(entries))
    assert any(entry["request"].get("batch") for entry in allowed(entries))
    assert any(entry["rules"]["mode"] == "shadow" for entry in allowed(entries) if "rules" in entry)
    assert any(entry["actor"] == did_of("s") for entry in allowed(entries))
    refused = [entry for entry in entries if entry["type"] == "tallystick/batch.refused/1"]
    assert {entry["error"] for entry in refused} & {"forbidden_by_rules", "not_permitted"}
