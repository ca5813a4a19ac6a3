"""What `gateway/store/contract.py` promises, as exercises that every engine must pass. Counted; none is ever skipped.

An exercise gets an `Engine`: how to open a store on one disk again and again, and to read beside it. It never looks
inside. `tests/store/test_engines.py` runs every exercise on every engine.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import pytest

from gateway.errors import HeadMoved, StoreOwned
from gateway.ledger.tree import EMPTY_EDGE, Edge, Growth, load_edge, prove_consistency, prove_inclusion
from gateway.store.contract import (
    Locked,
    Reading,
    RecordChange,
    SignedBatch,
    Store,
    StoredBatch,
    StoredCheckpoint,
    StoredEntry,
    StoredHead,
    Upkeep,
)
from verifier.merkle import is_consistent, leaf_hash, root_from_inclusion
from verifier.replay.tree import Tree


class Engine(Protocol):
    """One disk. A store of it that several may open is loaded, for before that it says nothing."""

    is_shared: bool

    def open(self) -> Store: ...

    def read(self) -> Reading: ...


Exercise = Callable[[Engine], None]
EXERCISES: list[Exercise] = []


def exercise(function: Exercise) -> Exercise:
    EXERCISES.append(function)
    return function


class Writer:
    """Makes batches that fit one another, as a sequencer would."""

    def __init__(self) -> None:
        self.head: StoredHead | None = None
        self.edge: Edge = EMPTY_EDGE
        self.leaves: list[bytes] = []
        self.tree = Tree()

    def batch(
        self, count: int, changes: Sequence[RecordChange] = (), signed: Sequence[SignedBatch] = (), name: str = "batch"
    ) -> StoredBatch:
        """Return the next batch, without taking it for granted."""
        size = self.edge.size
        leaves = tuple(f'{{"seq":{size + at},"by":"{name}"}}'.encode() for at in range(count))
        growth = Growth(self.edge, [leaf_hash(leaf) for leaf in leaves])
        head = StoredHead(
            growth.edge.size, growth.root, hashlib.sha256(leaves[-1]).digest(), 1_000 + size, 1, f"{name}-{size}"
        )
        return StoredBatch(head, leaves, growth.hashes, tuple(changes), tuple(signed))

    def take(self, batch: StoredBatch) -> None:
        """The batch was committed."""
        growth = Growth(self.edge, [leaf_hash(leaf) for leaf in batch.leaves])
        self.head, self.edge = batch.head, growth.edge
        self.leaves += batch.leaves
        for leaf in batch.leaves:
            self.tree.append(leaf_hash(leaf))

    def write(self, store: Store, count: int, **how: Sequence[RecordChange] | Sequence[SignedBatch]) -> StoredBatch:
        batch = self.batch(count, **how)  # type: ignore[arg-type]  # passes keywords on
        store.commit(batch, self.head)
        self.take(batch)
        return batch


def signatures(batch: StoredBatch, salt: int = 7) -> SignedBatch:
    size = batch.head.size
    count = len(batch.leaves)
    return SignedBatch(size, b"note %d\n" % size, tuple(bytes([salt, at]) * 32 for at in range(count)))


def told(locked: Locked) -> tuple[dict[str, bytes], dict[int, bytes]]:
    """Return the records and roots of a head that nobody else moved."""
    assert locked.moved == ()
    return dict(locked.records), dict(locked.roots)


def records(store: Store, *prefixes: str) -> dict[str, bytes]:
    return dict(store.records(prefixes or ("a/", "b/", "c/")))


@exercise
def an_empty_store_holds_nothing(engine: Engine) -> None:
    store = engine.open()
    loaded = store.load()
    assert (loaded.head, loaded.is_clean, loaded.unsigned) == (None, True, ())
    assert store.entries(0, 10) == []
    assert store.nodes([(0, 0)]) == {}
    assert store.batch_of(0) is None
    assert store.batch_at(0) is None and store.batch_at(1) is None
    assert store.last_note(1 << 40) is None
    assert records(store) == {}
    assert told(store.lock(None, ["a/1"], [1])) == ({}, {})
    assert store.landed("batch-0") is False
    store.load()
    assert store.keep(Upkeep()) == 0
    store.close()


@exercise
def what_was_committed_is_there_at_once_and_after_a_restart(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    first = writer.write(store, 3, changes=[("a/1", b"one", None), ("b/1", b"two", 50)])
    second = writer.write(store, 2, changes=[("a/1", None, None), ("b/1", b"three", 60)])
    for _ in range(2):
        assert store.load().head == second.head
        assert store.entries(0, 99) == [StoredEntry(at, leaf, None) for at, leaf in enumerate(writer.leaves)]
        assert records(store) == {"b/1": b"three"}
        assert store.batch_at(3) == StoredCheckpoint(0, 3, first.head.root, None)
        assert store.batch_at(5) == StoredCheckpoint(3, 5, second.head.root, None)
        store.close()
        store = engine.open()
    store.close()


@exercise
def a_range_excludes_its_end_and_may_reach_past_the_ledger(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 5)
    assert [entry.seq for entry in store.entries(1, 3)] == [1, 2]
    assert [entry.seq for entry in store.entries(4, 99)] == [4]
    assert store.entries(5, 99) == [] and store.entries(3, 3) == []
    store.close()


@exercise
def every_entry_has_its_batch_and_only_batch_ends_are_batches(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    for count in (1, 4, 2):
        writer.write(store, count)
    found = [store.batch_of(seq) for seq in range(7)]
    assert [(batch.first_seq, batch.size) for batch in found if batch] == [(0, 1)] + [(1, 5)] * 4 + [(5, 7)] * 2
    assert store.batch_of(7) is None
    assert [size for size in range(9) if store.batch_at(size)] == [1, 5, 7]
    store.close()


@exercise
def stored_nodes_prove_every_entry_at_every_size(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    for count in (1, 2, 3, 7, 1, 16, 3):
        writer.write(store, count)
        assert load_edge(store, writer.edge.size).root == writer.tree.root()
    total = len(writer.leaves)
    for size in range(1, total + 1):
        root = writer.tree.root(size)
        for index in range(size):
            path = prove_inclusion(store, index, size)
            assert root_from_inclusion(index, size, leaf_hash(writer.leaves[index]), path) == root
        assert is_consistent(size, root, total, writer.tree.root(), prove_consistency(store, size, total))
    store.close()


@exercise
def nodes_beyond_the_tree_are_absent(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 3)
    found = store.nodes([(0, 3), (1, 1), (2, 0), (1, 0), (0, 2)])
    assert found == {(1, 0): writer.tree.node(1, 0), (0, 2): writer.tree.node(0, 2)}
    store.close()


@exercise
def a_commit_on_another_head_changes_nothing(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    with pytest.raises(HeadMoved):
        store.commit(writer.batch(1), StoredHead(4, bytes(32), bytes(32), 1, 1, "other"))
    assert store.load().head is None
    first = writer.write(store, 2, changes=[("a/1", b"one", None)])
    wrong = [
        None,
        StoredHead(1, first.head.root, first.head.prev_hash, 1_000, 1, "batch-0"),
        StoredHead(2, bytes(32), first.head.prev_hash, 1_000, 1, "batch-0"),
        StoredHead(2, first.head.root, first.head.prev_hash, 1_000, 2, "batch-0"),
    ]
    for expected in wrong:
        with pytest.raises(HeadMoved):
            store.commit(writer.batch(1, [("a/1", b"two", None)], [signatures(first)], name="rival"), expected)
        assert store.load().head == first.head
        assert store.entries(0, 9) == [StoredEntry(at, leaf, None) for at, leaf in enumerate(writer.leaves)]
        assert records(store) == {"a/1": b"one"}
    writer.write(store, 1)
    store.close()


@exercise
def a_lock_on_another_head_says_so(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    first = writer.write(store, 1, changes=[("a/1", b"one", None)])
    with pytest.raises(HeadMoved):
        store.lock(None, ["a/1"], [])
    writer.write(store, 1)
    if store.is_shared:
        assert [batch.head for batch in store.lock(first.head, ["a/1"], []).moved] == [writer.head]
    else:
        with pytest.raises(HeadMoved):
            store.lock(first.head, ["a/1"], [])
    assert told(store.lock(writer.head, ["a/1"], [])) == ({"a/1": b"one"}, {})
    store.close()


@exercise
def a_lock_finds_the_records_and_roots_that_exist(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    changes = [(f"a/{number}", b"%d" % number, None) for number in range(700)]
    first = writer.write(store, 3, changes=[*changes, ("b/é", b"not ascii", None)])
    writer.write(store, 2)
    asked = [f"a/{number}" for number in range(0, 1_400, 2)]
    locked = store.lock(writer.head, [*asked, "b/é", "b/e", "a/0"], [1, 3, 5, 5, 6])
    assert locked.records == {f"a/{number}": b"%d" % number for number in range(0, 700, 2)} | {"b/é": b"not ascii"}
    assert writer.head is not None
    assert locked.roots == {3: first.head.root, 5: writer.head.root}
    store.close()


@exercise
def records_come_by_prefix_in_order_of_key(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    keys = ["a/2", "a/10", "a0", "b/1", "a/", "ab/1", "a/\U0001f40d"]
    writer.write(store, 1, changes=[(key, key.encode(), None) for key in keys])
    assert [key for key, _ in store.records(["a/"])] == ["a/", "a/10", "a/2", "a/\U0001f40d"]
    assert [key for key, _ in store.records(["b/", "ab/"])] == ["ab/1", "b/1"]
    assert list(store.records([])) == []
    store.close()


@exercise
def signatures_come_with_a_later_batch(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    first = writer.write(store, 2)
    assert [batch.size for batch in store.load().unsigned] == [2]
    second = writer.write(store, 3, signed=[signatures(first)])
    assert [batch.size for batch in store.load().unsigned] == [5]
    expected = [*signatures(first).signatures, None, None, None]
    assert [entry.signature for entry in store.entries(0, 9)] == expected
    assert store.entries(1, 2) == [StoredEntry(1, writer.leaves[1], expected[1])]
    assert store.batch_of(1) == StoredCheckpoint(0, 2, first.head.root, b"note 2\n")
    assert store.batch_of(2) == StoredCheckpoint(2, 5, second.head.root, None)
    assert store.last_note(9) == b"note 2\n"
    store.close()


@exercise
def signatures_may_be_kept_at_idle_and_are_never_replaced(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    first, second = writer.write(store, 2), writer.write(store, 1)
    store.keep(Upkeep(signed=(signatures(first), signatures(second))))
    store.keep(Upkeep(signed=(signatures(first, salt=9),)))
    writer.write(store, 1, signed=[signatures(second, salt=9)])
    kept = [*signatures(first).signatures, *signatures(second).signatures, None]
    assert [entry.signature for entry in store.entries(0, 9)] == kept
    assert [store.last_note(size) for size in (1, 2, 3, 9)] == [None, b"note 2\n", b"note 3\n", b"note 3\n"]
    assert [batch.size for batch in store.load().unsigned] == [4]
    store.close()


@exercise
def a_batch_landed_if_and_only_if_it_was_committed(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1)
    lost = writer.batch(1, name="lost")
    assert store.landed("batch-0") and not store.landed(lost.head.batch_id)
    store.load()
    store.commit(lost, writer.head)
    assert store.landed(lost.head.batch_id)
    store.close()


@exercise
def a_store_is_clean_only_after_closing_and_until_the_next_commit(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1)
    assert not store.load().is_clean
    store.keep(Upkeep())
    assert not store.load().is_clean
    store.keep(Upkeep(is_closing=True))
    store.close()
    store = engine.open()
    assert store.load().is_clean
    writer.write(store, 1)
    assert not store.load().is_clean
    store.close()


@exercise
def upkeep_forgets_what_is_due_below_its_prefixes_oldest_first_in_bounded_steps(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    due = [(f"a/{number}", b"x", 100 - number) for number in range(10)]
    others: list[RecordChange] = [("b/1", b"x", 1), ("c/1", b"x", 1), ("a/free", b"x", None), ("a/later", b"x", 101)]
    writer.write(store, 1, changes=[*due, *others])
    upkeep = Upkeep(forget_prefixes=("a/", "c/"), forget_due_ms=100, forget_max=4)
    assert store.keep(upkeep) == 4
    assert sorted(records(store)) == [*(f"a/{n}" for n in range(7)), "a/free", "a/later", "b/1"]
    assert [store.keep(upkeep) for _ in range(3)] == [4, 3, 0]
    assert sorted(records(store)) == ["a/free", "a/later", "b/1"]
    assert store.keep(Upkeep(forget_due_ms=1_000, forget_max=9)) == 0
    store.close()


@exercise
def upkeep_changes_records_and_may_be_repeated(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1, changes=[("a/1", b"one", None), ("a/2", b"two", None)])
    for _ in range(2):
        store.keep(Upkeep(changes=(("a/1", None, None), ("a/2", b"new", 5), ("a/3", b"three", None))))
        assert records(store) == {"a/2": b"new", "a/3": b"three"}
    assert store.load().head == writer.head
    store.close()


@exercise
def a_changed_due_time_counts_as_last_written(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1, changes=[("a/1", b"x", 10), ("a/2", b"x", 10)])
    writer.write(store, 1, changes=[("a/1", b"x", 90), ("a/2", b"x", None)])
    assert store.keep(Upkeep(forget_prefixes=("a/",), forget_due_ms=50, forget_max=9)) == 0
    assert store.keep(Upkeep(forget_prefixes=("a/",), forget_due_ms=90, forget_max=9)) == 1
    assert sorted(records(store)) == ["a/2"]
    store.close()


@exercise
def after_many_changes_each_record_is_as_last_written_and_forgotten_when_last_due(engine: Engine) -> None:
    """Far more keys than any engine holds back, written again, deleted and forgotten, with restarts between."""
    store, writer, rng = engine.open(), Writer(), random.Random(7)
    expected: dict[str, tuple[bytes, int | None]] = {}
    for step in range(60):
        changes: dict[str, RecordChange] = {}
        for _ in range(700):
            key = f"{rng.choice('abc')}/{rng.randrange(30_000):05}"
            value = None if rng.random() < 0.3 else b"%d" % step
            changes[key] = (key, value, None if value is None or rng.random() < 0.2 else step + rng.randrange(40))
        writer.write(store, 1, changes=list(changes.values()))
        for key, value, due_ms in changes.values():
            expected.pop(key, None)
            if value is not None:
                expected[key] = (value, due_ms)
        asked = rng.sample(sorted(expected), 50) + [f"a/{number:05}" for number in range(50)]
        found = {key: expected[key][0] for key in asked if key in expected}
        assert told(store.lock(writer.head, asked, [])) == (found, {})
        if step % 7 == 3:
            due = {key for key, (_, due_ms) in expected.items() if due_ms is not None and due_ms <= step}
            wanted = {key for key in due if not key.startswith("c/")}
            upkeep = Upkeep(forget_prefixes=("a/", "b/"), forget_due_ms=step, forget_max=100_000)
            assert store.keep(upkeep) == len(wanted)
            for key in wanted:
                del expected[key]
        if step % 20 == 9:
            store.close()
            store = engine.open()
        assert step % 5 or list(store.records(["a/", "b/", "c/"])) == [
            (key, expected[key][0]) for key in sorted(expected)
        ]
    store.close()


@exercise
def a_second_owner_is_refused_and_let_in_after_the_first_closed(engine: Engine) -> None:
    store = engine.open()
    if engine.is_shared:
        engine.open().close()
    else:
        with pytest.raises(StoreOwned) as refused:
            engine.open()
        assert "in use" in str(refused.value)
    store.close()
    store.close()
    engine.open().close()


@exercise
def a_reader_sees_all_of_a_batch_or_nothing(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 1)
    reader = engine.read()
    seen: list[tuple[int, int]] = []
    is_done = threading.Event()

    def look() -> None:
        while not is_done.is_set():
            entries = reader.entries(0, 1 << 20)
            batch = reader.batch_of(len(entries) - 1)
            assert batch is not None
            seen.append((len(entries), batch.size))

    thread = threading.Thread(target=look)
    thread.start()
    for _ in range(50):
        writer.write(store, 7)
    is_done.set()
    thread.join()
    assert seen and all((size - 1) % 7 == 0 and size == batch for size, batch in seen)
    assert [entry.leaf for entry in reader.entries(0, 1 << 20)] == writer.leaves
    getattr(reader, "close", lambda: None)()
    store.close()


@exercise
def the_largest_batch_fits(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    batch = writer.batch(512, [(f"a/{at}", bytes(60_000), at) for at in range(8)])
    store.commit(batch, None)
    writer.take(batch)
    assert len(store.entries(0, 512)) == 512
    assert load_edge(store, 512).root == writer.tree.root()
    store.close()


@exercise
def more_is_looked_up_while_the_head_is_taken_and_a_head_given_back_can_be_taken_again(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    writer.write(store, 2, changes=[("a/1", b"one", None)])
    assert store.lock(writer.head, [], []).moved == ()
    assert store.look(["a/1", "a/2"], [1, 2]).records == {"a/1": b"one"}
    assert writer.head is not None and store.look([], [1, 2]).roots == {2: writer.head.root}
    store.unlock()
    store.unlock()
    assert store.lock(writer.head, ["a/1"], []).records == {"a/1": b"one"}
    writer.write(store, 1, changes=[("a/1", b"two", None)])
    assert store.lock(writer.head, ["a/1"], []).records == {"a/1": b"two"}
    store.unlock()
    store.close()


@exercise
def nobody_else_wrote_so_there_are_no_news_and_what_is_seen_is_durable(engine: Engine) -> None:
    store, writer = engine.open(), Writer()
    store.listen(lambda: None)
    writer.write(store, 2)
    assert writer.head is not None and store.news(writer.head) == ()
    store.confirm()
    assert [one.size for one in store.unsigned()] == [2]
    store.close()
