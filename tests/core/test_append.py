"""Batches: pure, ordered, readable by the verifier, and the same bytes from every encoder."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.append import Imprint, Tail, append, evidence_of
from gateway.core.draft import Head
from gateway.core.outcome import Recorded, Replay, granted
from tests.core.book import Book
from tests.core.hall import Hall
from tests.core.requests import NOW_MS, Ask, acquire, add, ask, break_, did_of, release, renew, set_scheme
from verifier.entries import LEAF_BYTES_LARGEST, parse_leaf
from verifier.evidence import check_evidence
from verifier.wire import BODY_BYTES_MAX, JsonObject, encode_canonical


def encode_fast(value: JsonObject) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def busy_book() -> tuple[Book, list[Ask]]:
    """Return a ledger with a due lease, a held one and a used key, and commands that meet all of them."""
    book = Book()
    used = acquire("A", "repo:held", ttlMs=600_000)
    book.play(NOW_MS, used)
    book.play(NOW_MS, acquire("A", "repo:due", ttlMs=1_000))
    t_ms = NOW_MS + 1_000
    asks = [
        acquire("B", "repo:held", at_ms=t_ms),
        acquire("B", "repo:due", at_ms=t_ms),
        acquire("C", "repo:due", "repo:new", at_ms=t_ms),
        renew("A", "L5", at_ms=t_ms),
        release("A", "repo:held", at_ms=t_ms, leaseId="L5"),
        acquire("C", "repo:held", at_ms=t_ms),
        used.again(),
        acquire("nobody", "repo:new", at_ms=t_ms),
        add("A", "E", t_ms),
        add("op", "E", t_ms, name="e"),
    ]
    return book, asks


def test_building_twice_gives_the_same_batch_and_never_touches_the_view() -> None:
    """After HeadMoved or an unknown commit the sequencer decides again; nothing of the first attempt may be left."""
    book, asks = busy_book()
    before = book.snapshot()
    first, second = book.build(NOW_MS + 1_000, *asks), book.build(NOW_MS + 1_000, *asks)
    assert first == second
    assert book.snapshot() == before
    book.run(NOW_MS + 1_000, *asks)
    assert book.snapshot() != before


def test_the_order_in_which_things_are_found_never_matters() -> None:
    """The shelf shuffles what it finds near, so each building of a batch meets everything in another order."""
    one = Hall(lock_delay_ms=5_000)
    one.say(set_scheme("op", "doc", "read-safe", lockDelayMs=0))
    ids = {name: one.hold(name, "doc:x", "doc:y", mode="read", ttlMs=20_000) for name in "ABC"}
    for name in "ABC":
        one.hold(name, f"repo:{name}/own", ttlMs=1_000)
    one.later(1_000)  # three delays begin
    for name in "DEF":
        one.line(name, "doc:x", f"repo:{name}/x")
    t_ms, token = one.t_ms, one.leases()[ids["A"]].fencing_token
    asks = [
        acquire("D", "doc:**", "repo:**", at_ms=t_ms),
        acquire("A", "doc:x", at_ms=t_ms),
        acquire("A", "repo:B/own", "repo:C/own", at_ms=t_ms, wait=True),
        renew("A", ids["A"], at_ms=t_ms, mode="write"),
        renew("B", ids["B"], at_ms=t_ms, mode="write"),
        break_("op", "doc:**", token, at_ms=t_ms),
        release("B", "doc:x", "doc:y", at_ms=t_ms, leaseId=ids["B"]),
        release("C", "doc:x", "doc:y", at_ms=t_ms),
        set_scheme("op", "doc", "exclusive", at_ms=t_ms),
    ]
    first = one.build(t_ms, *asks)
    assert len(first.leaves) > len(asks), "somebody in line was offered what came free"
    for _ in range(8):
        assert one.build(t_ms, *asks) == first


def test_each_command_sees_what_those_before_it_did() -> None:
    book, asks = busy_book()
    batch = book.run(NOW_MS + 1_000, *asks)
    assert book.types(7) == [
        "lease.expired", "lease.refused", "lease.granted", "lease.refused", "lease.renewed", "lease.released",
        "lease.granted", "agent.refused", "agent.added",
    ]  # fmt: skip
    statuses = [answer.status for answer in batch.answers if isinstance(answer, Recorded)]
    assert statuses == [409, 200, 409, 200, 200, 200, 403, 200]
    assert batch.answers[6] == Replay(5, 200)
    assert [a.seq for a in batch.answers if isinstance(a, Recorded)] == [8, 9, 10, 11, 12, 13, 14, 15]
    book.audit()


def test_the_head_after_a_batch_is_where_the_next_one_begins() -> None:
    book, asks = busy_book()
    batch = book.run(NOW_MS + 1_000, *asks)
    assert (batch.first_seq, len(batch.leaves), batch.time_ms, batch.epoch) == (7, 9, NOW_MS + 1_000, 0)
    last = parse_leaf(batch.leaves[-1])
    following = book.build(NOW_MS + 2_000, acquire("D", "repo:d"))
    leaf = parse_leaf(following.leaves[0])
    assert batch.head == Head(16, leaf.prev, NOW_MS + 1_000, 0, "batch-7")
    assert (last.seq, leaf.seq, leaf.time_ms) == (15, 16, NOW_MS + 2_000)


def test_the_same_key_twice_in_one_batch_is_answered_by_the_first() -> None:
    """Scenario 41 (mcp-gateway#56): a duplicate in flight is a replay, whatever the first one's answer is."""
    book = Book()
    ask = acquire("A", "repo:x")
    other = acquire("A", "repo:y").but(idempotency_key=ask.idempotency_key)
    batch = book.run(NOW_MS, ask, ask.again(), ask, other)
    names = [getattr(getattr(answer, "refusal", None), "name", None) for answer in batch.answers]
    assert batch.answers[:2] == (Recorded(5, 200), Replay(5, 200))
    assert names == [None, None, "nonce_reused", "idempotency_mismatch"]
    assert len(batch.leaves) == 1


def test_an_idle_batch_has_no_leaves_and_no_changes() -> None:
    book = Book()
    batch = book.build(NOW_MS)
    assert (batch.leaves, batch.answers, batch.changes, batch.head) == ((), (), (), book.head)


@pytest.mark.parametrize(("t_ms", "epoch"), [(NOW_MS - 1, 1), (NOW_MS, 0)])
def test_log_time_and_epoch_never_go_back(t_ms: int, epoch: int) -> None:
    book = Book()
    book.run(NOW_MS, acquire("A", "repo:x"), epoch=1)
    with pytest.raises(AssertionError, match="never go back"):
        book.build(t_ms, acquire("B", "repo:y"), epoch=epoch)


def test_every_leaf_parses_and_its_evidence_holds() -> None:
    """What the core writes, ladder steps 9 and 10 accept, for every entry type a request can cause."""
    book, asks = busy_book()
    book.run(NOW_MS + 1_000, *asks)
    t_ms = NOW_MS + 2_000
    more = [
        acquire("C", "repo:held", at_ms=t_ms),
        release("C", "repo:held", at_ms=t_ms),
        release("C", "repo:held", at_ms=t_ms, leaseId="L13"),
        release("D", "repo:held", at_ms=t_ms),
        renew("D", "L13", at_ms=t_ms),
        ask("agent.remove", "op", t_ms, agent=did_of("E")),
        ask("agent.remove", "A", t_ms, agent=did_of("E")),
    ]
    book.run(t_ms, *more)
    book.audit()
    assert book.types(16) == [
        "lease.extended", "lease.released", "release.repeated", "release.refused", "renewal.refused",
        "agent.removed", "removal.refused",
    ]  # fmt: skip


def test_evidence_is_the_request_as_it_was_signed() -> None:
    request = acquire("A", "repo:x").but(query="?a=1").signed()
    assert evidence_of(request) == {
        "method": "POST",
        "authority": "gateway.example",
        "path": "/api/v1/acp/coordination/lease",
        "query": "?a=1",
        "contentType": "application/json",
        "idempotencyKey": request.idempotency_key,
        "anchor": request.anchor_text,
        "body": request.body_text,
        "signatureInput": request.signature_input,
        "signature": request.signature_b64,
    }


@pytest.mark.parametrize(
    "change", [{"body_text": "{}"}, {"path": "/x"}, {"nonce": "y"}, {"signature_b64": "A" * 86 + "=="}]
)
def test_evidence_that_was_touched_is_found_by_step_10(change: dict[str, Any]) -> None:
    """The check above can fail: any other evidence is a finding, unless nothing of it is in the leaf."""
    book = Book()
    request = acquire("A", "repo:x").signed()._replace(**change)
    book.entry(NOW_MS, acquire("A", "repo:y"))
    tail = Tail(6, book.head.prev_hash if book.head else b"", NOW_MS, 0)
    repeated = granted("release.repeated", {"resources": ["repo:x"], "leaseId": "L1", "endedSeq": 1})
    leaf, _ = append(tail, book.imprint, repeated._replace(asked=request), encode_canonical)
    assert check_evidence(parse_leaf(leaf)).faults != ()


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NAME = st.from_regex(r"[a-z][a-zA-Z0-9_]{0,10}", fullmatch=True)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAME, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(st.dictionaries(NAME, VALUE, max_size=6))
def test_the_fast_encoder_writes_the_verifiers_bytes(value: JsonObject) -> None:
    assert encode_fast(value) == encode_canonical(value)


def test_a_batch_is_the_same_whoever_encodes_it() -> None:
    book, asks = busy_book()
    plain = book.build(NOW_MS + 1_000, *asks, encode=encode_canonical)
    assert book.build(NOW_MS + 1_000, *asks, encode=encode_fast) == plain


def test_the_append_only_moves_the_tail_by_one_leaf() -> None:
    tail = Tail(7, b"\x05" * 32, NOW_MS, 3)
    imprint = Imprint("gateway.example/main", "ab" * 32, "local")
    step = granted("service.started", {"cause": "start", "isClean": True, "gapMs": 0})
    data, after = append(tail, imprint, step, encode_canonical)
    assert json.loads(data) == {
        "type": "tallystick/service.started/1",
        "origin": "gateway.example/main",
        "seq": 7,
        "epoch": 3,
        "timeMs": NOW_MS,
        "prev": "05" * 32,
        "genesis": "ab" * 32,
        "durability": "local",
        "actor": "gateway",
        "principal": "gateway",
        "onBehalfOf": "gateway",
        "cause": "start",
        "isClean": True,
        "gapMs": 0,
    }
    assert (after.seq, after.time_ms, after.epoch) == (8, NOW_MS, 3)
    assert len(after.prev) == 32 and after.prev != tail.prev


def test_the_largest_request_still_fits_into_a_leaf() -> None:
    """256 names of 16 KiB together, of 16 schemes, a full body, the longest query, key and nonce."""
    book = Book()
    names = [f"s{n % 16:03d}{'x' * 28}:{n:031d}" for n in range(256)]
    assert sum(map(len, names)) == 16_384
    ask = acquire("A", *names, ttlMs=3_600_000).but(
        query="?" + "q" * 255, idempotency_key="k" * 255, nonce="n" * 64, label="l" * 32
    )
    text = json.dumps(ask.members(), separators=(",", ":"))
    room = BODY_BYTES_MAX - len(json.dumps(text))
    ask = ask.but(body=(text + " " * room).encode())
    leaf = book.entry(NOW_MS, ask)
    assert leaf.type == "tallystick/lease.granted/1"
    assert 44_000 < len(book.leaves[leaf.seq]) <= LEAF_BYTES_LARGEST
    book.audit()
