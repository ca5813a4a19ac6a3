"""The running seal equals the one over the records as they are, whatever happened on the way."""

from __future__ import annotations

import random

from gateway.ledger.seal import Seal
from gateway.signer import Signer
from gateway.store.contract import RecordChange
from tests.core.requests import ORIGIN, key_of

KEY = bytes(range(64))
ROOT = bytes(32)


def mark(*records: RecordChange, time_ms: int = 0, key: bytes = KEY) -> bytes:
    return Seal(key, records, time_ms).mark(1, ROOT)


def test_a_running_seal_equals_one_made_anew_whatever_failed_or_faded_on_the_way() -> None:
    rng, records, seal = random.Random(3), dict[str, RecordChange](), Seal(KEY)
    for step in range(400):
        changes: list[RecordChange] = []
        for number in rng.sample(range(40), rng.randrange(6)):
            value = None if rng.random() < 0.4 else b"%d" % rng.randrange(3)
            changes.append((f"lease/{number}", value, None))
            due_ms = step + rng.randrange(20)
            wait: RecordChange = (f"wait/{number}", b"%d" % due_ms, due_ms)
            changes.append(wait if value is not None else (wait[0], None, None))
        seal.after([("lease/1", b"lost", None), ("wait/1", b"lost", step + 90)], step + 50)  # a batch that failed
        sealing = seal.after(changes, step)
        seal.take(sealing)
        records.update({change[0]: change for change in changes})
        records = {key: one for key, one in records.items() if one[1] is not None}
        assert seal.mark(step, ROOT) == seal.mark(step, ROOT, sealing.total)
        assert seal.mark(step, ROOT) == Seal(KEY, records.values(), step).mark(step, ROOT)
    assert len(seal._fading) < 1_024 + 4 * 80


def test_what_is_due_counts_no_more_whether_it_is_there_or_not() -> None:
    lease: RecordChange = ("lease/L1", b"x", None)
    wait: RecordChange = ("wait/a", b"x", 50)
    assert mark(lease, wait, time_ms=50) == mark(lease, time_ms=50)
    assert mark(lease, wait, time_ms=49) != mark(lease, time_ms=49)


def test_cold_records_are_passed_over() -> None:
    cold = [(f"{kind}/1", b"x", 99) for kind in ("idem", "nonce", "ended")]
    assert mark(("lease/L1", b"x", None), *cold) == mark(("lease/L1", b"x", None))


def test_where_a_key_ends_and_its_value_begins_is_sealed() -> None:
    assert mark(("lease/1", b"23", None)) != mark(("lease/12", b"3", None))


def test_a_record_counts_once_in_a_batch_that_names_it_twice() -> None:
    assert mark(("lease/1", b"a", None), ("lease/1", b"b", None)) == mark(("lease/1", b"b", None))


def test_size_root_and_key_are_sealed() -> None:
    seal = Seal(KEY)
    marks = {seal.mark(1, ROOT), seal.mark(2, ROOT), seal.mark(1, bytes([1]) * 32), Seal(KEY[::-1]).mark(1, ROOT)}
    assert len(marks) == 4


def secret(origin: str = ORIGIN, receipt: str = "receipt", seal: str = "seal") -> bytes:
    return Signer(origin, log=(key_of("log"),), receipt=(key_of(receipt),), seal=key_of(seal)).seal_secret()


def test_each_ledger_and_each_key_seals_by_itself_whatever_keys_sign() -> None:
    assert len(secret()) == 64 and secret() == secret(receipt="another receipt")
    assert len({secret(), secret(origin="other/x"), secret(seal="another seal")}) == 3
