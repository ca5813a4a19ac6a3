"""Stories of the field that need neither store nor socket: a dead holder, a long piece of work, a captured request."""

from gateway.core.outcome import Unreceipted
from gateway.core.refusal import NONCE_REUSED, OUTSIDE_WINDOW
from tests.core.book import Book
from tests.core.requests import NOW_MS, acquire, did_of, renew

TTL_MS = 30_000
WAITERS = tuple(f"w{number}" for number in range(9))


def test_the_first_of_nine_who_wait_for_a_dead_holder_gets_the_lease_at_its_stated_end() -> None:
    """Scenarios 3, L28, L43 (openclaw#60258): expiry is on record, then the grant; the rest meet it."""
    book = Book(agents=("A", *WAITERS))
    end_ms = NOW_MS + TTL_MS
    lease_id = book.entry(NOW_MS, acquire("A", "repo:x", ttlMs=TTL_MS)).text("leaseId")
    for number, name in enumerate(WAITERS):
        refusal = book.entry(NOW_MS + 1_000 + number, acquire(name, "repo:x", at_ms=NOW_MS + 1_000))
        assert (refusal.value["holder"], refusal.value["conflict"]["expiresAtMs"]) == (did_of("A"), end_ms)  # type: ignore[call-overload, index]  # JSON
    size = len(book.leaves)
    book.run(end_ms, *(acquire(name, "repo:x", at_ms=end_ms) for name in WAITERS))
    assert book.types(size) == ["lease.expired", "lease.granted", *["lease.refused"] * 8]
    assert (book.leaf(size).text("leaseId"), book.leaf(size).text("holder")) == (lease_id, did_of("A"))
    assert book.leaf(size + 1).actor == did_of(WAITERS[0])
    assert {book.leaf(seq).text("holder") for seq in range(size + 2, size + 10)} == {did_of(WAITERS[0])}
    book.audit()


def test_work_of_ninety_minutes_is_never_taken_away_while_its_heartbeats_arrive() -> None:
    """Scenarios 8, 9, L36, L38 (gascity#3616): every sweep and every contender meets the same holder and token."""
    book = Book(agents=("A", "B"))
    grant = book.entry(NOW_MS, acquire("A", "repo:x", ttlMs=TTL_MS))
    for t_ms in range(NOW_MS + 20_000, NOW_MS + 90 * 60_000, 20_000):
        book.run(t_ms - 1)
        beat = book.entry(t_ms, renew("A", grant.text("leaseId"), at_ms=t_ms, ttlMs=TTL_MS))
        assert (beat.number("expiresAtMs"), beat.value["fencingToken"]) == (t_ms + TTL_MS, grant.value["fencingToken"])
    refusal = book.entry(t_ms, acquire("B", "repo:x", at_ms=t_ms))
    assert refusal.value["holder"] == did_of("A")
    assert "lease.expired" not in book.types()
    book.audit()


def test_a_captured_request_is_worth_nothing() -> None:
    """Scenario 20 (AgentParty#3): the nonce refuses it while its signature counts, the window refuses it afterwards."""
    book = Book()
    captured = acquire("A", "repo:x", ttlMs=1_000)
    book.play(NOW_MS, captured)
    book.run(NOW_MS + 1_000)
    size, last_ms = len(book.leaves), captured.expires * 1_000 + book.parameters.skew_ms - 1
    for t_ms, refusal in ((NOW_MS + 2_000, NONCE_REUSED), (last_ms, NONCE_REUSED), (last_ms + 1, OUTSIDE_WINDOW)):
        answer = book.play(t_ms, captured)
        assert isinstance(answer, Unreceipted) and answer.refusal is refusal
    assert len(book.leaves) == size and book.leases() == {}
    book.audit()
