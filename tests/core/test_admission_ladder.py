"""An admission that is wrong in every way, repaired fault by fault, climbs the table of refusals in its order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from gateway.core.dispute import disputed
from gateway.core.facts import status_of
from gateway.core.refusal import BY_NAME, TABLE
from tests.core.book import vkey_of
from tests.core.court import ALLOW, ERROR, FORBID, NOTHING, Court
from tests.core.crew import Crew
from tests.core.requests import Ask, admit, approved, set_scheme, with_approvals
from verifier.checkpoint import parse_checkpoint
from verifier.wire import INT_MAX

NOTE = b"gateway.example/main\n9\n" + b"A" * 43 + b"=\n\n\xe2\x80\x94 gateway.example/main AAAAAAAA\n"


class Scene(Court):
    """A court in which S, a session of E, asks to do too much to names that are wrong in every way.

    Its dispute is settled by hand, so it has no history that an auditor could follow.
    """

    fence_of_s = ("L9999", 7)
    approval: dict[str, Any]
    wrong: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        Crew.made.remove(self)

    def final(self) -> Ask:
        return admit("S", "prod:db", lease=self.fence_of_s)


Rung = tuple[Callable[[Scene], Ask], str]


def begins(one: Scene) -> Ask:
    one.say(set_scheme("op", "log", "append-only"))
    one.say(set_scheme("op", "prod", "irreversible"))
    one.open("S", "E", verbs=["admit", "lease"], resources=["log:a/**", "log:c", "prod:**"])
    one.run(one.t_ms, steps=[disputed(NOTE, parse_checkpoint(NOTE), [vkey_of("log", "log")])])
    return admit("S", "log:a/\u00e4", "log:b", lease=one.fence_of_s, mode="delete")


def keeps_to_its_names(one: Scene) -> Ask:
    return admit("S", "log:a/\u00e4", "log:c", lease=one.fence_of_s, mode="delete")


def settles(one: Scene) -> Ask:
    del one.shelf.records["ledger/dispute"]
    return keeps_to_its_names(one)


def spells(one: Scene) -> Ask:
    return admit("S", "log:c", lease=one.fence_of_s, mode="delete")


def appends(one: Scene) -> Ask:
    return admit("S", "log:c", lease=one.fence_of_s, mode="append")


def names_anothers(one: Scene) -> Ask:
    one.fence_of_s = (one.fence("E", "log:d", mode="append")[0], INT_MAX)
    return admit("S", "log:c", lease=one.fence_of_s, mode="append")


def names_its_own(one: Scene) -> Ask:
    one.fence_of_s = (one.fence("S", "log:a/**", mode="read")[0], INT_MAX)
    return admit("S", "log:c", lease=one.fence_of_s, mode="append")


def guesses_lower(one: Scene) -> Ask:
    one.fence_of_s = (one.fence_of_s[0], one.leases()[one.fence_of_s[0]].fencing_token - 1)
    return admit("S", "log:c", lease=one.fence_of_s, mode="append")


def shows_its_token(one: Scene) -> Ask:
    one.fence_of_s = (one.fence_of_s[0], one.fence_of_s[1] + 1)
    return admit("S", "log:c", lease=one.fence_of_s, mode="append")


def shows_none(one: Scene) -> Ask:
    one.hold("A", "prod:db")
    return admit("S", "prod:db")


def reads(one: Scene) -> Ask:
    return admit("S", "prod:db", mode="read")


def waits_for_its_turn(one: Scene) -> Ask:
    one.free("A", next(lease_id for lease_id, lease in one.leases().items() if lease.resources == ("prod:db",)))
    one.fence_of_s = one.fence("S", "prod:db")
    one.load("enforce")
    one.judge.answer = ERROR
    asked, rules = one.final(), one.shelf.records["ledger/rules"].digest  # type: ignore[union-attr]
    signed: dict[str, Any] = {"rules_digest": rules, "agent": "E", "at_ms": one.t_ms}
    over: dict[str, Any] = {"notBeforeMs": one.t_ms - 9_000, "expiresAtMs": one.t_ms}
    genesis = one.imprint.genesis
    one.wrong = {
        "changed": approved("A", asked, genesis, **signed, **over, argumentsDigest="0" * 64),
        "unfit": approved("A", asked, genesis, **signed, **over),
        "late": approved("X", asked, genesis, **signed, **over),
    }
    one.approval = approved("X", asked, genesis, **signed)
    used = one.final()
    one.judge.answer = ALLOW
    one.allowed(with_approvals(used, one.approval))
    one.judge.answer = ERROR
    return with_approvals(one.final(), one.wrong["changed"])


def changes_nothing(one: Scene) -> Ask:
    return with_approvals(one.final(), one.wrong["unfit"])


def asks_another(one: Scene) -> Ask:
    return with_approvals(one.final(), one.wrong["late"])


def asks_in_time(one: Scene) -> Ask:
    return with_approvals(one.final(), one.approval)


def asks_for_none(one: Scene) -> Ask:
    return one.final()


def asks_again(one: Scene) -> Ask:
    rules = one.shelf.records["ledger/rules"].digest  # type: ignore[union-attr]
    asked = one.final()
    again = approved("X", asked, one.imprint.genesis, rules_digest=rules, agent="E", at_ms=one.t_ms)
    return with_approvals(asked, again)


def after(answer: object) -> Callable[[Scene], Ask]:
    def rung(one: Scene) -> Ask:
        one.judge.answer = answer
        return asks_again(one)

    return rung


# What repairs one fault after the other, with the row that is met then.
LADDER: list[Rung] = [
    (begins, "outside_scope"), (keeps_to_its_names, "ledger_disputed"), (settles, "name_not_allowed"),
    (spells, "mode_not_allowed"), (appends, "lease_unknown"), (names_anothers, "lease_not_yours"),
    (names_its_own, "fence_unknown"), (guesses_lower, "stale_fence"), (shows_its_token, "lease_too_narrow"),
    (shows_none, "lease_required"), (reads, "admission_conflict"), (waits_for_its_turn, "approval_wrong"),
    (changes_nothing, "approver_unfit"), (asks_another, "approval_expired"), (asks_in_time, "approval_used"),
    (asks_for_none, "approval_required"), (asks_again, "policy_error"), (after(FORBID), "forbidden_by_rules"),
    (after(NOTHING), "not_permitted"), (after(ALLOW), ""),
]  # fmt: skip


def test_an_admission_meets_every_row_in_order() -> None:
    one, rungs = Scene(), LADDER
    for prepare, expected in rungs:
        leaf = one.say(prepare(one))
        assert leaf.value.get("error", "") == expected, prepare.__name__
        assert status_of(leaf.value) == (403 if expected else 200)
    places = [TABLE.index(BY_NAME[expected]) for _, expected in rungs if expected]
    assert all(before < after for before, after in pairwise(places))
    met = {expected for _, expected in rungs}
    assert {row.name for row in TABLE if 600 <= row.number < 630} <= met
    assert one.usage("agent", "E").denied == len(rungs) - 1
