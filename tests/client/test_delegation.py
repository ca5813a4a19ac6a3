"""Statements made by the client are those that the verifier reads, and a file of one is checked before it is used."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.client.delegation import BACKDATE_MS, Scope, SignedDelegation, delegate, open_delegation
from tests.client.world import ALICE, BOB, NOW_MS, ORIGIN, key
from verifier.delegation import chain_fault, parse_delegations
from verifier.wire import JsonObject, Malformed, encode_canonical, parse_json

HOUR_MS = 3_600_000
OPERATOR, SESSION = key(9), key(5)


def lent(**named: object) -> SignedDelegation:
    asked = {"origin": ORIGIN, "now_ms": NOW_MS, "may_delegate": True, "ttl_ms": 8 * HOUR_MS, **named}
    return delegate(OPERATOR, ALICE.did, **asked)  # type: ignore[arg-type]  # a table of arguments


def test_a_chain_of_two_is_what_the_verifier_reads_and_has_no_fault() -> None:
    parent = lent(scope=Scope(("lease",), ("repo:app/**",)))
    child = delegate(ALICE, SESSION.did, origin=ORIGIN, now_ms=NOW_MS, parent=parent)
    chain = parse_delegations([parent.row, child.row], SESSION.did)
    assert chain_fault(chain, ORIGIN, NOW_MS) is None
    assert (chain[1].verbs, chain[1].resources) == (("lease",), ("repo:app/**",))
    assert chain[1].parent == chain[0].digest
    assert (chain[0].max_depth, chain[1].max_depth) == (1, 0)


@pytest.mark.parametrize("skew_ms", [-BACKDATE_MS + 1, 0, 5 * HOUR_MS])
def test_a_ledger_whose_clock_is_a_little_behind_takes_it_too(skew_ms: int) -> None:
    assert chain_fault(parse_delegations([lent().row], ALICE.did), ORIGIN, NOW_MS + skew_ms) is None


def test_it_never_holds_longer_than_its_parent_or_seven_days() -> None:
    parent = lent(ttl_ms=HOUR_MS)
    child = delegate(ALICE, SESSION.did, origin=ORIGIN, now_ms=NOW_MS + 1_000, ttl_ms=8 * HOUR_MS, parent=parent)
    assert child.says.expires_at_ms == parent.says.expires_at_ms == NOW_MS + HOUR_MS
    assert child.says.not_before_ms >= parent.says.not_before_ms
    week = lent(ttl_ms=7 * 24 * HOUR_MS).says
    assert (week.not_before_ms, week.expires_at_ms) == (NOW_MS, NOW_MS + 7 * 24 * HOUR_MS)
    with pytest.raises(Malformed, match="has ended"):
        delegate(ALICE, SESSION.did, origin=ORIGIN, now_ms=NOW_MS + 2 * HOUR_MS, parent=parent)


@pytest.mark.parametrize(
    ("scope", "child"),
    [
        (Scope(("lease",)), Scope(("lease", "transfer"))),
        (Scope(resources=("repo:a",)), Scope(resources=("repo:b",))),
        (Scope(resources=("repo:a",)), Scope(resources=("repo:A",))),
        (Scope(resources=("repo:a/b",)), Scope(resources=("repo:a/**",))),
        (Scope(resources=("repo:a",)), Scope()),
    ],
)
def test_more_than_the_parent_lends_is_not_even_made(scope: Scope, child: Scope) -> None:
    with pytest.raises(Malformed, match="lends less"):
        delegate(ALICE, SESSION.did, origin=ORIGIN, now_ms=NOW_MS, scope=child, parent=lent(scope=scope))


def test_what_was_handed_to_another_lends_nothing_on() -> None:
    with pytest.raises(Malformed, match=rf"was handed to {ALICE.did}, not to this profile's key, {OPERATOR.did}$"):
        delegate(OPERATOR, SESSION.did, origin=ORIGIN, now_ms=NOW_MS, parent=lent())


def test_a_file_brings_back_the_same_statement() -> None:
    made = lent()
    assert open_delegation(made.encode()) == made


def changed(name: str, value: object) -> Callable[[JsonObject], JsonObject]:
    def change(row: JsonObject) -> JsonObject:
        statement = row["statement"]
        assert isinstance(statement, dict)
        return {**row, "statement": {**statement, name: value}}  # type: ignore[dict-item]  # a table of values

    return change


FORGERIES: list[Callable[[JsonObject], JsonObject]] = [
    changed("sub", BOB.did),
    changed("expiresAtMs", NOW_MS + 9 * HOUR_MS),
    changed("verbs", ["lease"]),
    changed("more", 1),
    changed("parent", "0" * 64),
    lambda row: {**row, "signature": "A" * 86 + "=="},
    lambda row: {"statement": row["statement"]},
    lambda row: {**row, "statement": "text"},
]


@pytest.mark.parametrize("forge", FORGERIES)
def test_a_file_that_was_changed_is_refused(forge: Callable[[JsonObject], JsonObject]) -> None:
    row = parse_json(lent().encode(), bytes_max=10_000)
    with pytest.raises(Malformed):
        open_delegation(encode_canonical(forge(row)))
