"""Entry 0 and what a start writes."""

import pytest

from gateway.core.opening import start_steps
from gateway.core.parameters import Parameters
from gateway.core.record_keys import (
    ENROLLER_KEY,
    HOLIDAY_KEY,
    OPERATORS_KEY,
    ROOT_KEY,
    key_in_ledger,
    keys_key,
    operator_key,
)
from gateway.core.records import Counter, Enroller, Keys, LedgerKey, Operator, Root
from tests.core.book import OPENED_MS, Book, own_members, vkey_of
from tests.core.requests import ENROLLER, NOW_MS, did_of
from verifier.entries import PARAMETER_DEFAULTS


def test_entry_0_fixes_everything_that_decisions_depend_on() -> None:
    book = Book(agents=())
    leaf = book.leaf(0)
    opening = book.opening()
    assert (leaf.type, leaf.seq, leaf.epoch, leaf.time_ms) == ("tallystick/ledger.opened/1", 0, 0, OPENED_MS)
    assert (leaf.prev, leaf.genesis, leaf.actor) == (bytes(32), bytes(32), "gateway")
    assert own_members(leaf) == {
        "rules": 5,
        "root": opening.root,
        "keys": list(opening.keys),
        "operators": [did_of("op")],
        "enroller": did_of(ENROLLER),
        "authorities": ["127.0.0.1:8443", "gateway.example"],
        "isPublic": True,
        "isDev": False,
        "unicodeVersion": "14.0.0",
        "parameters": dict(PARAMETER_DEFAULTS),
    }
    assert book.shelf.records == {
        operator_key(did_of("op")): Operator(did_of("op")),
        OPERATORS_KEY: Counter(1),
        ENROLLER_KEY: Enroller(did_of(ENROLLER)),
        ROOT_KEY: Root(vkey_of("root", "root").vkey),
        **{
            key: record
            for purpose in ("log", "receipt")
            for key, record in (
                (key_in_ledger(did_of(purpose)), LedgerKey(purpose, vkey_of(purpose, purpose).vkey, 0)),
                (keys_key(purpose), Keys(purpose, (vkey_of(purpose, purpose).vkey,), None)),
            )
        },
    }


def test_a_ledger_is_opened_once() -> None:
    book = Book(agents=())
    from gateway.core.opening import opened

    with pytest.raises(AssertionError, match="opened once"):
        book.build(NOW_MS, steps=[opened(book.opening())])


@pytest.mark.parametrize(("away_ms", "holiday_ms"), [(0, 0), (4_000, 4_000), (30_000, 30_000), (90_000, 30_000)])
def test_a_holiday_is_as_long_as_the_outage_and_no_longer_than_the_rule(away_ms: int, holiday_ms: int) -> None:
    book = Book()
    before = OPENED_MS
    t_ms = before + away_ms
    book.run(t_ms, steps=start_steps("recovery", is_clean=False, before_ms=before), epoch=1)
    started, holiday = book.leaf(5), book.leaf(6)
    assert own_members(started) == {"cause": "recovery", "isClean": False, "gapMs": away_ms}
    assert own_members(holiday) == {"untilMs": t_ms + holiday_ms, "startedSeq": 5, "reason": "recovery"}
    assert (started.epoch, holiday.epoch) == (1, 1)
    assert book.shelf.get(HOLIDAY_KEY) == Counter(t_ms + holiday_ms)
    book.audit()


def test_a_gateway_that_restarts_for_ever_gains_nothing() -> None:
    """Restarting each second for a minute never adds up to more than a second of holiday."""
    book = Book()
    for n in range(1, 61):
        t_ms = OPENED_MS + n * 1_000
        book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=t_ms - 1_000), epoch=n)
    assert book.shelf.get(HOLIDAY_KEY) == Counter(OPENED_MS + 61_000)


def test_a_shorter_holiday_never_ends_a_longer_one() -> None:
    book = Book(parameters=Parameters(holiday_ms=30_000))
    book.run(OPENED_MS + 30_000, steps=start_steps("start", is_clean=False, before_ms=OPENED_MS), epoch=1)
    t_ms = OPENED_MS + 31_000
    book.run(t_ms, steps=start_steps("start", is_clean=True, before_ms=t_ms - 1_000), epoch=2)
    assert book.shelf.get(HOLIDAY_KEY) == Counter(OPENED_MS + 60_000)
    assert book.leaf(len(book.leaves) - 1).value["untilMs"] == t_ms + 1_000
