"""What the contract promises of a ledger that several nodes write, as exercises for every engine that can be shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from gateway.errors import Busy, HeadMoved
from gateway.store.contract import RecordChange, Store, StoredBatch, StoredEntry, Upkeep
from tests.store.exercise import EXERCISES, Engine, Exercise, Writer, records, signatures, told

SHARED: list[Exercise] = []


def exercises_of(is_shared: bool) -> list[Exercise]:
    return [*EXERCISES, *(SHARED if is_shared else [])]


def shared(function: Exercise) -> Exercise:
    SHARED.append(function)
    return function


def put(store: Store, writer: Writer, count: int, changes: Sequence[RecordChange] = (), name: str = "x") -> StoredBatch:
    """Lock, catch up with what others wrote, write one batch."""
    for batch in store.lock(writer.head, [], []).moved:
        writer.take(batch)
    batch = writer.batch(count, changes, name=name)
    store.commit(batch, writer.head)
    writer.take(batch)
    return batch


@shared
def while_one_has_the_head_no_other_gets_it(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    put(one, writer, 1)
    one.lock(writer.head, [], [])
    with pytest.raises(Busy) as busy:
        other.lock(writer.head, [], [])
    assert busy.value.reason == "store_busy"
    writer.write(one, 1)
    other.lock(writer.head, [], [])
    other.close()
    one.close()


@shared
def a_head_is_free_again_after_unlock_commit_close_and_every_failure(engine: Engine) -> None:
    one, writer = engine.open(), Writer()
    put(one, writer, 1)
    head = writer.head
    assert head is not None
    false = replace(head, root=bytes(32))

    def fail(call: Callable[[], object]) -> None:
        with pytest.raises(HeadMoved):
            call()

    endings: list[Callable[[], object]] = [
        one.unlock,
        lambda: fail(lambda: one.lock(false, [], [])),
        lambda: fail(lambda: one.commit(writer.batch(1), false)),
        lambda: writer.write(one, 1),
        one.close,
    ]
    for ending in endings:
        one.lock(writer.head, [], [])
        ending()
        other = engine.open()
        assert other.lock(writer.head, [], []).moved == ()
        other.close()


@shared
def what_others_wrote_is_told_with_the_head(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    first = put(one, writer, 2, [("a/1", b"one", None), ("a/2", b"two", 9)])
    second = put(other, writer, 1, [("a/1", None, None), ("a/2", b"new", None)], "second")
    third = put(other, writer, 3, [("a/3", b"\x00\xff", 5)], "third")
    locked = one.lock(first.head, ["a/1", "a/2", "a/3"], [2, 3, 6])
    assert locked.moved == (second, third)
    assert locked.records == {"a/2": b"new", "a/3": b"\x00\xff"}
    assert locked.roots == {batch.head.size: batch.head.root for batch in (first, second, third)}
    writer.write(one, 1)
    assert [entry.leaf for entry in other.entries(0, 9)] == writer.leaves
    assert [batch.head for batch in other.lock(third.head, [], []).moved] == [writer.head]
    other.close()
    one.close()


@shared
def news_are_told_without_the_head(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    first = put(one, writer, 1)
    assert first.head == other.load().head and other.news(first.head) == ()
    written = [put(one, writer, 2, [("a/1", b"%d" % at, None)]) for at in range(3)]
    one.lock(writer.head, [], [])
    seen: list[StoredBatch] = []
    while found := other.news(seen[-1].head if seen else first.head):
        seen += found
    assert seen == written
    other.confirm()
    one.unlock()
    with pytest.raises(HeadMoved):
        other.news(replace(written[0].head, root=bytes(32)))
    other.close()
    one.close()


@shared
def a_head_of_another_history_is_not_followed(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    first = put(one, writer, 1)
    put(one, writer, 1)
    wrong = [replace(first.head, root=bytes(32)), replace(first.head, epoch=7), replace(first.head, size=9), None]
    for seen in wrong:
        with pytest.raises(HeadMoved):
            other.lock(seen, [], [])
    assert told(other.lock(writer.head, [], [])) == ({}, {})
    other.close()
    one.close()


@shared
def of_two_that_decided_on_one_head_one_writes(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    put(one, writer, 1)
    late, seen = writer.batch(2, [("a/1", b"late", None)], name="late"), writer.head
    put(one, writer, 1)
    with pytest.raises(HeadMoved):
        other.commit(late, seen)
    assert records(other) == {}
    assert other.entries(0, 9) == [StoredEntry(at, leaf, None) for at, leaf in enumerate(writer.leaves)]
    assert not other.landed(late.head.batch_id)
    other.close()
    one.close()


@shared
def many_writers_make_one_chain(engine: Engine) -> None:
    nodes, rounds, faults = 3, 15, list[BaseException]()

    def work(name: str) -> None:
        try:
            store, mine = engine.open(), Writer()
            entries = [entry.leaf for entry in store.entries(0, 1 << 20)]
            assert entries == [] or mine.head is None
            for batch in _all_batches(store, first):
                mine.take(batch)
            for number in range(rounds):
                put(store, mine, 2, [(f"a/{name}", b"%d" % number, None), ("b/last", name.encode(), None)], name)
            store.close()
        except BaseException as error:
            faults.append(error)

    store, writer = engine.open(), Writer()
    first = put(store, writer, 1)
    threads = [threading.Thread(target=work, args=(f"n{at}",)) for at in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    for batch in _all_batches(store, first)[1:]:
        writer.take(batch)
    assert len(writer.leaves) == 1 + nodes * rounds * 2
    assert [entry.leaf for entry in store.entries(0, 1 << 20)] == writer.leaves
    assert writer.head is not None and writer.head.root == writer.tree.root() and store.load().head == writer.head
    assert records(store, "a/") == {f"a/n{at}": b"14" for at in range(nodes)}
    store.close()


def _all_batches(store: Store, first: StoredBatch) -> list[StoredBatch]:
    found = [first]
    while more := store.news(found[-1].head):
        found += more
    return found


@shared
def the_first_batch_is_written_once(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    rival = writer.batch(1, name="rival")
    writer.write(one, 1)
    with pytest.raises(HeadMoved):
        other.lock(None, [], [])
    with pytest.raises(HeadMoved):
        other.commit(rival, None)
    assert other.load().head == writer.head
    other.close()
    one.close()


@shared
def anybody_keeps_signatures_and_the_first_ones_stay(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    first = put(one, writer, 2)
    assert [batch.size for batch in one.unsigned()] == [2]
    other.keep(Upkeep(signed=(signatures(first),)))
    one.keep(Upkeep(signed=(signatures(first, salt=9),)))
    assert [entry.signature for entry in one.entries(0, 9)] == list(signatures(first).signatures)
    assert one.unsigned() == ()
    other.close()
    one.close()


@shared
def one_closes_and_the_other_goes_on(engine: Engine) -> None:
    one, other, writer = engine.open(), engine.open(), Writer()
    put(one, writer, 1)
    one.keep(Upkeep(is_closing=True))
    one.close()
    assert other.load().is_clean
    put(other, writer, 1)
    assert not other.load().is_clean
    other.close()
