"""The parts of the simulator by themselves: virtual time, cheap keys, a commit's four fates, the checker's own eyes."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from random import Random
from typing import Any

import pytest

from gateway.core import intake
from gateway.errors import Busy, HeadMoved, Unknown
from gateway.store.contract import StoredBatch, StoredHead
from tests.sim.book import Book, Lease, Violation
from tests.sim.cheap import cheap_key, cheap_signatures, signing_key
from tests.sim.engine import Connection, Database, Told
from tests.sim.guard import Guard, Pass
from tests.sim.invariants import Checker, Roots
from tests.sim.loop import Stalled, VirtualLoop
from tests.sim.names import covers, key_of, overlap, share
from tests.sim.simulation import run
from verifier import sig
from verifier.merkle import leaf_hash, node_hash

# -- time ----------------------------------------------------------------------------------------------------------


def test_time_passes_only_when_nobody_has_anything_to_do() -> None:
    loop, seen = VirtualLoop(), list[tuple[str, int]]()

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((name, loop.now_ms))

    async def both() -> None:
        await asyncio.gather(sleeper("a", 3_600), sleeper("b", 0.25), sleeper("c", 0.25))

    loop.run_until_complete(both())
    loop.close()
    assert seen == [("b", 250), ("c", 250), ("a", 3_600_000)]


def test_a_program_that_hangs_is_told() -> None:
    loop = VirtualLoop()
    with pytest.raises(Stalled):
        loop.run_until_complete(loop.create_future())
    loop.close()


def test_something_may_happen_between_any_two_steps() -> None:
    loop, seen = VirtualLoop(), list[str]()

    async def walker() -> None:
        for step in range(4):
            seen.append(str(step))
            await asyncio.sleep(0)

    loop.at_step(3, lambda: seen.append("hook"))
    loop.run_until_complete(walker())
    loop.close()
    assert seen.index("hook") not in (0, len(seen) - 1)


# -- keys ----------------------------------------------------------------------------------------------------------


def test_cheap_signatures_are_checked_like_dear_ones_and_leave_nothing_behind() -> None:
    strict, key, door = sig.is_valid, cheap_key("ann"), vars(intake)
    with cheap_signatures():
        assert door["is_valid"](key.public_key, b"word", key.sign(b"word"))
        assert not door["is_valid"](key.public_key, b"another", key.sign(b"word"))
        assert not door["is_valid"](cheap_key("bob").public_key, b"word", key.sign(b"word"))
    assert door["is_valid"] is strict
    assert not door["is_valid"](key.public_key, b"word", key.sign(b"word"))
    assert key.did == signing_key("ann").did


# -- the database ----------------------------------------------------------------------------------------------------


class Planned:
    """Lets exactly the planned faults happen."""

    def __init__(self, *faults: str) -> None:
        self.faults = list(faults)

    def chance(self, fault: str) -> bool:
        if fault in self.faults:
            self.faults.remove(fault)
            return True
        return False


def told(durable: list[int]) -> Told:
    def note(first_seq: int, leaves: Any, decided_ms: int, number: int) -> None:
        durable.extend(range(first_seq, first_seq + len(leaves)))

    return note


def database(*faults: str) -> tuple[Database, list[int]]:
    durable: list[int] = []
    return Database(Planned(*faults), Random(1), told(durable)), durable


def batch(seq: int) -> tuple[StoredBatch, StoredHead]:
    leaf = b"leaf %d" % seq
    head = StoredHead(seq + 1, leaf_hash(leaf), sha256(leaf).digest(), seq, 0, f"batch {seq}")
    return StoredBatch(head, (leaf,), (leaf_hash(leaf),), ((f"agent/{seq}", b"{}", None),)), head


def committed(one: Database) -> tuple[Connection, StoredHead]:
    connection, (first, head) = Connection(one), batch(0)
    connection.commit(first, None)
    return connection, head


@pytest.mark.parametrize("fault", ["busy", "lost"])
def test_what_failed_before_it_began_is_absent(fault: str) -> None:
    one, durable = database()
    connection, head = committed(one)
    one._chances = Planned(fault)
    with pytest.raises((Busy, Unknown)):
        connection.commit(batch(1)[0], head)
    assert durable == [0] and not connection.landed("batch 1")


def test_an_acknowledgement_may_be_lost() -> None:
    one, durable = database()
    connection, head = committed(one)
    one._chances = Planned("kept")
    with pytest.raises(Unknown):
        connection.commit(batch(1)[0], head)
    assert durable == [0, 1] and connection.landed("batch 1")


def test_two_connections_never_both_write() -> None:
    """Scenarios L5 and L40: an owner that was replaced and wakes up again writes nothing."""
    one, _ = database()
    first, head = committed(one)
    second = Connection(one)
    second.commit(batch(1)[0], head)
    with pytest.raises(HeadMoved):
        first.commit(batch(1)[0], head)


def test_an_older_file_comes_and_goes() -> None:
    one, _ = database()
    connection, head = committed(one)
    one.back_up()
    assert not one.put_older_file(), "it would be the same"
    connection.commit(batch(1)[0], head)
    assert one.put_older_file() and len(one.disk.leaves) == 1
    one.put_newest_file()
    assert len(one.disk.leaves) == 2 and not one.is_older


# -- the checker -----------------------------------------------------------------------------------------------------


def test_the_tree_of_the_checker_is_the_tree() -> None:
    leaves, roots = [b"%d" % n for n in range(9)], Roots()
    for leaf in leaves:
        roots.append(leaf)

    def root(of: list[bytes]) -> bytes:
        if len(of) == 1:
            return leaf_hash(of[0])
        half = 1 << (len(of) - 1).bit_length() - 1
        return node_hash(root(of[:half]), root(of[half:]))

    assert roots.at[1:] == [root(leaves[:n]) for n in range(1, 10)]


@pytest.mark.parametrize(
    ("held", "asked", "is_met"),
    [
        ("s:a", "s:a", True), ("s:a", "s:b", False), ("s:a/**", "s:a/b/c", True), ("s:a/**", "s:a", True),
        ("s:a/**", "s:ab", False), ("s:**", "s:x", True), ("s:**", "t:x", False), ("s:a/**", "s:a/b/**", True),
    ],
)  # fmt: skip
def test_names_meet(held: str, asked: str, is_met: bool) -> None:
    assert overlap(held, asked) == overlap(asked, held) == is_met
    assert covers(held, asked) == is_met


def test_keys_and_classes() -> None:
    assert key_of("s:Ä/B", True) == "s:Ä/b"
    assert share("read-safe", "read", "read") and not share("read-safe", "read", "write")
    assert share("append-only", "read", "append") and not share("exclusive", "read", "read")


def lease(**changes: Any) -> Lease:
    facts: dict[str, Any] = {
        "lease_id": "L1", "actor": "a", "names": ["s:a"], "mode": "write", "token": 1, "seq": 1, "granted_ms": 0,
        "ttl_ms": 1_000, "expires_ms": 1_000, "hold_until_ms": 9_000,
    }  # fmt: skip
    return Lease(**(facts | changes))


def test_the_book_finds_what_is_in_the_way() -> None:
    book = Book({"maxHoldMs": 1_000}, [], leases=[lease(), lease(lease_id="L2", actor="b", expires_ms=5_000)])
    assert [one.lease_id for one in book.leases_in_the_way("c", ["s:a/**", "s:a"], "read")] == ["L2", "L1"]
    assert [one.lease_id for one in book.leases_in_the_way("a", ["s:**"], "read")] == ["L2"]
    assert book.leases_in_the_way("c", ["s:b"], "write") == []


COMPANY = 54  # a seed with sessions, batches and things given back


def ledger(seed: int) -> list[bytes]:
    """Return the leaves of one world; without witnesses, whom a new checker would not know."""
    found: list[Any] = []
    assert run(seed, lambda config: config.but(witnesses=0, liars=0), watch=found.append).violation is None
    return [bytes(leaf) for leaf in found[0].checker.raw]


def test_the_checker_sees_who_is_named_wrongly() -> None:
    """Each member that says who acted, in a world with sessions and batches."""
    leaves = ledger(COMPANY)
    kinds = {json.loads(leaf)["type"].split("/")[1] for leaf in leaves}
    assert {"session.opened", "batch.received", "lease.returned"} <= kinds
    for at in range(len(leaves) - 1, 0, -5):
        for name in ("actor", "principal", "onBehalfOf"):
            value = json.loads(leaves[at])
            value[name] = cheap_key("nobody").did
            with pytest.raises(Violation):
                read([*leaves[:at], json.dumps(value).encode()])
    read(leaves)


def test_the_checker_reads_a_ledger_again_and_sees_what_was_changed() -> None:
    leaves = ledger(3)
    assert len(leaves) > 20
    for at, leaf in list(enumerate(leaves[:-1]))[::7]:  # what follows names the hash of each
        value = json.loads(leaf)
        value["timeMs"] -= 1
        with pytest.raises(Violation):
            read([*leaves[:at], json.dumps(value).encode(), *leaves[at + 1 :]])
    read(leaves)


def read(leaves: list[bytes]) -> None:
    """Let a new checker read the leaves, each run of one log time as a batch."""
    checker, start = Checker(), 0
    checker.slack_ms = 1 << 40
    times = [json.loads(leaf)["timeMs"] for leaf in leaves]
    for at in range(1, len(leaves) + 1):
        if at == len(leaves) or times[at] != times[start]:
            checker.batch(start, leaves[start:at], times[start])
            start = at


# -- the guard -------------------------------------------------------------------------------------------------------


def test_the_guard_keeps_out_who_was_overtaken() -> None:
    guard = Guard()
    old, new = (Pass(who, token, "write", ("s:a",), (("s", "exclusive"),)) for who, token in (("a", 1), ("b", 2)))
    assert guard.read(old, "s:a") == 0
    assert guard.read(new, "s:a") == 0 and guard.write(new, "s:a", 0)
    assert not guard.write(old, "s:a", 0) and guard.lost == []
    guard.is_fencing = False
    assert guard.write(old, "s:a", 0) and len(guard.lost) == 1
