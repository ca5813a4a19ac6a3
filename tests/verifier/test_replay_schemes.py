"""Schemes: who sets them, when, and what they mean for names and modes."""

from __future__ import annotations

import unicodedata

import pytest

from tests.verifier.judging import audit, pins, remarks
from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, Json
from tests.verifier.scene import FIRST, NUMBERS, Found, Scene, Tell, edit, found, scene


def busy(ledger: Scene, name: str, scheme_class: str, **asked: object) -> int:
    body: Json = {"name": name, "class": scheme_class, **asked}
    said = {"name": name, "error": "scheme_busy", "number": NUMBERS["scheme_busy"]}
    return ledger.decision("scheme.refused", OPERATOR, "scheme.set", body, said)


def a_day_of_schemes(ledger: Scene) -> None:
    ledger.set_scheme("doc", "read-safe", is_folding=True)
    ledger.set_scheme("log", "append-only", maxHoldMs=5_000)
    read = ledger.grant(ALICE, "doc:Plan/**", mode="read")
    ledger.grant(BOB, "doc:plan/a", mode="read")
    ledger.deny(CAROL, "lease_held", "doc:PLAN/A", **ledger.held(read, "doc:PLAN/A", "doc:Plan/**", conflicts=2))
    busy(ledger, "doc", "exclusive")
    busy(ledger, "doc", "read-safe")  # it folds, and the request does not
    ledger.set_scheme("doc", "read-safe", is_folding=True)  # the same again
    hold_until_ms = ledger.time_ms + 5_000
    ledger.grant(ALICE, "log:a", mode="append", change=edit(holdUntilMs=hold_until_ms))
    ledger.grant(BOB, "log:a", mode="read", change=edit(holdUntilMs=hold_until_ms))
    ledger.deny(CAROL, "mode_not_allowed", "log:b")
    ledger.deny(CAROL, "mode_not_allowed", "log:b", mode="delete", wait=True)
    ledger.deny(CAROL, "name_not_allowed", "log:ä")
    for _ in range(2):
        ledger.release(ALICE if _ == 0 else BOB, FIRST + 2 + _)
    ledger.set_scheme("doc", "exclusive")


def extended_in_another_spelling(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", is_folding=True)
    lease = ledger.grant(ALICE, "doc:Plan")
    names = ("mode", "schemes", "leaseId", "fencingToken", "holdUntilMs", "ttlMs", "expiresAtMs")
    again = {**ledger.later(lease, *names, "grantSeq", "grantedAtMs"), "resources": ["doc:plan"]}
    ledger.decision("lease.extended", ALICE, "lease.acquire", {"resource": "doc:plan"}, again)


def beyond_ascii_where_it_is_taken(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", isUnicode=True)
    ledger.grant(ALICE, "doc:übung")


def busy_while_a_delay_lives(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", lockDelayMs=5_000)
    lease = ledger.grant(ALICE, "doc:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.expire(lease, delayUntilMs=ledger.time_ms + 5_000)
    busy(ledger, "doc", "exclusive")
    ledger.time_ms += 5_000
    ledger.set_scheme("doc", "exclusive")


def busy_while_a_ticket_lives(ledger: Scene) -> None:
    lease = ledger.grant(ALICE, "doc:a", "lock:a")
    ticket = ledger.queue(BOB, "doc:a")
    ledger.release(ALICE, lease)
    ledger.offer(ticket)
    ledger.set_scheme("lock", "read-safe")
    busy(ledger, "doc", "read-safe")


GOOD: list[Tell] = [
    a_day_of_schemes,
    extended_in_another_spelling,
    beyond_ascii_where_it_is_taken,
    busy_while_a_delay_lives,
    busy_while_a_ticket_lives,
]


@pytest.mark.parametrize("tell", GOOD, ids=[tell.__name__ for tell in GOOD])
def test_what_schemes_allow(tell: Tell) -> None:
    assert found(tell) == []


def class_flipped_and_back(ledger: Scene) -> None:
    ledger.grant(ALICE, "doc:a", mode="read")
    ledger.set_scheme("doc", "read-safe")
    ledger.grant(BOB, "doc:a", mode="read")
    ledger.set_scheme("doc", "exclusive")


def set_by_an_agent(ledger: Scene) -> None:
    values = {"isFolding": False, "isUnicode": False, "lockDelayMs": 0, "maxHoldMs": 3_600_000}
    body: Json = {"name": "doc", "class": "read-safe"}
    said = {**body, **values, "unicodeVersion": "14.0.0"}
    ledger.decision("scheme.set", ALICE, "scheme.set", body, said, change=edit(onBehalfOf=ALICE.did))


def a_duration_made_up(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", change=edit(maxHoldMs=9_000))


def busy_with_nothing(ledger: Scene) -> None:
    ledger.grant(ALICE, "lock:a")
    busy(ledger, "doc", "read-safe")


def busy_with_the_same(ledger: Scene) -> None:
    ledger.grant(ALICE, "doc:a")
    busy(ledger, "doc", "exclusive")


def refused_as_no_operator(ledger: Scene) -> None:
    ledger.no("scheme.refused", OPERATOR, "scheme.set", {"name": "doc"}, "operator_required")


def grant_shows_another_class(ledger: Scene) -> None:
    rows = [{"class": "read-safe", "isFolding": False, "name": "doc"}]
    ledger.grant(ALICE, "doc:a", change=edit(schemes=rows))


def grant_shows_other_folding(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", is_folding=True)
    rows = [{"class": "exclusive", "isFolding": False, "name": "doc"}]
    ledger.grant(ALICE, "doc:a", change=edit(schemes=rows))


def renewal_shows_another_class(ledger: Scene) -> None:
    rows = [{"class": "irreversible", "isFolding": False, "name": "doc"}]
    ledger.renew(ALICE, ledger.grant(ALICE, "doc:a"), change=edit(schemes=rows))


def granted_beyond_ascii(ledger: Scene) -> None:
    ledger.grant(ALICE, "doc:übung")


def granted_in_another_spelling(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", is_folding=True)
    ledger.grant(ALICE, "doc:a")
    ledger.grant(BOB, "doc:A")


def shared_in_a_class_that_does_not(ledger: Scene) -> None:
    ledger.grant(ALICE, "doc:a", mode="read")
    ledger.grant(BOB, "doc:a", mode="read")


def longest_hold_of_another_scheme(ledger: Scene) -> None:
    ledger.set_scheme("doc", "exclusive", maxHoldMs=5_000)
    ledger.grant(ALICE, "doc:a", "lock:a")


def changed_before_what_was_over_had_ended(ledger: Scene) -> None:
    ledger.grant(ALICE, "doc:a", ttl_ms=1_000)
    ledger.time_ms += 1_000
    ledger.set_scheme("doc", "read-safe")


LIES: list[tuple[Tell, Found]] = [
    (class_flipped_and_back, [(7, "scheme_busy"), (9, "scheme_busy")]),
    (set_by_an_agent, [(6, "operator_required"), (6, "on_behalf_wrong")]),
    (a_duration_made_up, [(6, "scheme_wrong")]),
    (busy_with_nothing, [(7, "refusal_wrong")]),
    (busy_with_the_same, [(7, "refusal_wrong")]),
    (refused_as_no_operator, [(6, "body_malformed"), (6, "refusal_wrong")]),
    (grant_shows_another_class, [(6, "schemes_wrong")]),
    (grant_shows_other_folding, [(7, "schemes_wrong")]),
    (renewal_shows_another_class, [(7, "schemes_wrong")]),
    (granted_beyond_ascii, [(6, "name_not_allowed")]),
    (granted_in_another_spelling, [(8, "double_grant")]),
    (shared_in_a_class_that_does_not, [(7, "double_grant")]),
    (longest_hold_of_another_scheme, [(7, "hold_wrong")]),
    (changed_before_what_was_over_had_ended, [(7, "expiry_missing")]),
]


@pytest.mark.parametrize(("tell", "wanted"), LIES, ids=[row[0].__name__ for row in LIES])
def test_a_lie_about_a_scheme_is_found_at_its_entry(tell: Tell, wanted: Found) -> None:
    assert found(tell) == wanted


def test_a_name_with_unassigned_characters_is_noted_once_and_is_no_lie() -> None:
    """U+0378 has no category in any Python that this runs on; its normal form is unknown there."""
    assert unicodedata.category("\u0378") == "Cn"
    ledger = scene()
    ledger.set_scheme("doc", "exclusive", isUnicode=True)
    for name in ("doc:a\u0378", "doc:b\u0378"):
        ledger.grant(ALICE, name)
    report = audit(ledger.export(), pins(ledger))
    assert (report.exit_code, remarks(report).count("name_not_checked")) == (0, 1)
    assert [finding.seq for finding in report.findings if finding.code == "name_not_checked"] == [FIRST + 1]


@pytest.mark.parametrize("tell", [a_day_of_schemes, a_duration_made_up, busy_with_nothing])
def test_other_processes_give_back_what_a_leaf_does_not_repeat(tell: Tell) -> None:
    ledger = scene()
    tell(ledger)
    reports = [audit(ledger.export(), pins(ledger), jobs=jobs) for jobs in (1, 2)]
    assert reports[0] == reports[1]
