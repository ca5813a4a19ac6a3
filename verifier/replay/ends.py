"""The entries that go on with a lease or end it.

Ends are followed, not believed: a lease lives until the later of its stated end and the holiday, and only an entry that
may end it takes it away before.
Source: docs/protocol.md 7.3 to 7.7, 7.12, 7.13, 18.4, 25, 27.4.
"""

from __future__ import annotations

from verifier.entries import Leaf, rows_of
from verifier.replay.decide import is_hold_exceeded, lease_ask
from verifier.replay.judged import Judged
from verifier.replay.leases import against, ttl_faults
from verifier.replay.state import State
from verifier.replay.things import Faults, Lease, names_in
from verifier.wire import JsonObject


def prolonged_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.extended`, `lease.renewed`: the end moves to timeMs + ttlMs, never back, and nothing else moves."""
    lease = state.lease.get(leaf.number("grantSeq"))
    if lease is None:
        yield "citation_wrong", "grantSeq is not a grant that is still live (12.6)"
        return
    yield from same_faults(state, leaf, lease)
    yield from _live_faults(state, lease)
    if leaf.text("mode") != lease.mode:
        yield "mode_differs", "mode is not the lease's; another mode makes another lease (7.11)"
    if leaf.value["schemes"] != state.schemes.rows(lease.names):
        yield "schemes_wrong", "schemes are not the classes and the folding in force (26.4)"
    if state.is_disputed:
        yield against("ledger_disputed")
    elif is_hold_exceeded(state, lease):
        yield against("hold_exceeded")
    lease.expires_at_ms = max(lease.expires_at_ms, leaf.time_ms + leaf.number("ttlMs"))
    if leaf.number("expiresAtMs") != lease.expires_at_ms:
        yield (
            "end_wrong",
            f"expiresAtMs is not the later of the old end and timeMs + ttlMs, {lease.expires_at_ms} (7.3)",
        )
    if leaf.number("holdUntilMs") != lease.hold_until_ms:
        yield "hold_wrong", "holdUntilMs is not the grant's (7.3)"
    yield from ttl_faults(state, leaf)


def released_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """`lease.released`: its holder's lease, and the newest that a request without lease id can have meant."""
    lease = state.lease.get(leaf.number("grantSeq"))
    if lease is None:
        yield "citation_wrong", "grantSeq is not a grant that is still live (12.6)"
        return
    yield from same_faults(state, leaf, lease)
    yield from _live_faults(state, lease)
    if entry.is_blind and state.meant(lease_ask(lease), entry.created_s) not in (lease, None):
        yield "released_other", "of several own leases on these names the one with the highest token ends (7.5)"
    held_ms = leaf.time_ms - lease.granted_at_ms
    yield from _trust_faults(leaf, state.trust.gain(lease.principal, held_ms, leaf.time_ms, leaf.seq))
    state.end(lease, "released", leaf.seq)
    state.edges.pop(lease.actor, None)


def expired_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.expired`: not before the end that was promised last."""
    lease = state.lease.get(leaf.number("grantSeq"))
    if lease is None:
        yield "citation_wrong", "grantSeq is not a grant that is still live (12.6)"
        return
    yield from same_faults(state, leaf, lease)
    if leaf.number("expiresAtMs") != lease.expires_at_ms:
        yield "end_wrong", "expiresAtMs is not the end that was promised last (7.7)"
    session = state.people.sessions.get(lease.actor)
    if session is not None and session.ended_seq is None and session.due_at_ms <= lease.expires_at_ms:
        yield "ending_missing", "the session of the lease was over first, and its session.ended gives it back (29.2)"
    state.endings.lapse(state.now_ms - state.end_ms(lease))
    if state.is_live(lease):
        yield "expired_early", f"the lease lives until {state.end_ms(lease)} (7.7)"
    losers = [lease.principal]
    if lease.giver and lease.expires_at_ms <= lease.giver_until_ms:
        losers.append(lease.giver)
    yield from _trust_faults(leaf, state.trust.lose(losers, leaf.seq))
    yield from delay_faults(state, leaf, lease)
    state.end(lease, "expired", leaf.seq, delay_until_ms(leaf))


def broken_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.broken`: a live lease on `resource`; that it is the one whose token was seen, the leaf shows."""
    lease = state.lease.get(leaf.number("grantSeq"))
    if lease is None:
        yield "citation_wrong", "grantSeq is not a grant that is still live (12.6)"
        return
    yield from same_faults(state, leaf, lease)
    yield from _live_faults(state, lease)
    [key] = state.schemes.keys((leaf.text("resource"),))
    if lease not in state.leases.near(key):
        yield "citation_wrong", "resource overlaps no name of the lease (27.4)"
    yield from delay_faults(state, leaf, lease)
    state.end(lease, "broken", leaf.seq, delay_until_ms(leaf))


def same_faults(state: State, leaf: Leaf, lease: Lease) -> Faults:
    """A later word about a lease repeats what was granted."""
    if leaf.number("fencingToken") != lease.token:
        yield "token_wrong", "fencingToken is not the grant's (8.2)"
    if (leaf.text("holder") or leaf.actor) != lease.actor:
        yield "holder_wrong", "the lease is another actor's (7.4)"
    names = names_in(leaf)
    is_same = names == lease.names or (
        leaf.entry_type.name in ("lease.extended", "lease.released")
        and set(state.schemes.keys(names)) == set(lease.keys)
    )
    if leaf.number("grantedAtMs") not in (-1, lease.granted_at_ms) or not is_same:
        yield "citation_wrong", "grantedAtMs or resources are not the grant's (12.6)"


def _live_faults(state: State, lease: Lease) -> Faults:
    if not state.is_live(lease):
        yield "already_over", f"the lease was over at {state.end_ms(lease)}; first comes its lease.expired (7.7)"


def _trust_faults(leaf: Leaf, rows: list[JsonObject]) -> Faults:
    if rows_of(leaf.value.get("trust")) != rows:
        yield "trust_wrong", f"trust is not {rows or 'unchanged'} (25)"


def delay_faults(state: State, leaf: Leaf, lease: Lease, *, is_none: bool = False) -> Faults:
    """Who did not give back keeps others out for a while; `is_none` for one that did."""
    delay_ms = 0 if is_none else state.schemes.lock_delay_ms(lease.names)
    if delay_until_ms(leaf) != (leaf.time_ms + delay_ms if delay_ms else None):
        yield "delay_wrong", f"delayUntilMs is not timeMs + the longest lockDelayMs of its schemes, {delay_ms} (7.12)"


def delay_until_ms(leaf: Leaf) -> int | None:
    return leaf.number("delayUntilMs") if "delayUntilMs" in leaf.value else None
