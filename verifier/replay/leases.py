"""The entries that begin a lease: a grant, a change of mode. Is nothing in the way, and is all as it must be?

Source: docs/protocol.md 7, 8.1, 12.9, 26.4.
"""

from __future__ import annotations

from sys import intern

from verifier.entries import Leaf
from verifier.replay.decide import acquire, lease_ask
from verifier.replay.settle import pass_by
from verifier.replay.state import State
from verifier.replay.things import Ask, Faults, Lease, names_in
from verifier.replay.ways import Way, way_of

# What is said of a grant where a refusal was called for.
_AGAINST = {
    "ledger_disputed": ("granted_in_dispute", "after ledger.disputed nothing is granted, extended or renewed (12.9)"),
    "name_not_allowed": ("name_not_allowed", "a name beyond ASCII in a scheme that does not take it (3.6)"),
    "mode_not_allowed": ("mode_not_allowed", "the class of a scheme does not have this mode (7.9)"),
    "hold_exceeded": ("hold_exceeded", "the hold was over and somebody waits (7.13)"),
    "too_many_held": ("too_many_held", "with it the principal holds more than heldPerPrincipal names (7.2)"),
    "lease_held": ("double_grant", "a resource of the grant is held by a live lease of another actor (7.10)"),
    "lock_delayed": ("delay_ignored", "a lock-delay keeps others out (7.12)"),
    "queued": ("queue_jumped", "a ticket in line stands in the way (23.4)"),
}


def against(error: str) -> tuple[str, str]:
    """Return (code, text) for a success where the entries before call for this refusal."""
    return _AGAINST[error]


def granted_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.granted`: nothing is in the way."""
    ask = state.ask(leaf.actor, names_in(leaf), leaf.text("mode"))
    wanted = acquire(state, ask)
    yield from grant_faults(state, leaf, leaf.time_ms + state.schemes.max_hold_ms(ask.names))
    if isinstance(wanted, Lease):
        yield "not_extended", "the actor holds exactly these names, so its lease is extended, not granted anew (7.3)"
    elif isinstance(wanted, Way):
        yield from way_faults(wanted)
    elif wanted != "lease.granted":
        yield against(wanted)
    begin(state, leaf, ask)
    if state.ticket:
        pass_by(state, ask, None)


def changed_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.changed`: a lease of the actor ends, one in another mode begins."""
    old = state.lease.get(leaf.number("fromSeq"))
    if old is None or old.actor != leaf.actor:
        yield "citation_wrong", "fromSeq is not a live lease of the actor (7.11)"
        return
    ask = lease_ask(old, leaf.text("mode"))
    yield from grant_faults(state, leaf, old.hold_until_ms)
    yield from from_faults(state, leaf, old)
    if ask.mode == old.mode:
        yield "mode_differs", "a renewal in the lease's own mode is no change (7.4)"
    if state.is_disputed:
        yield against("ledger_disputed")
    error = state.schemes.name_error(ask.names, ask.mode)
    if error is not None:
        yield against(error)
    yield from way_faults(change_way(state, ask, old))
    state.end(old, "changed", leaf.seq)
    begin(state, leaf, ask)


def change_way(state: State, ask: Ask, old: Lease) -> Way:
    """Return what is in the way of a lease's new mode; a weaker one goes past those in line."""
    order = ("read", "append", "write", "delete")
    way = way_of(state, ask)
    return way._replace(tickets=[]) if order.index(ask.mode) < order.index(old.mode) else way


def begin(state: State, leaf: Leaf, ask: Ask, giver: str = "") -> None:
    """Put the lease of a leaf in force as it is stated."""
    lease = Lease(
        seq=leaf.seq,
        actor=intern(leaf.actor),
        principal=intern(leaf.principal),
        names=ask.names,
        keys=ask.keys,
        mode=intern(ask.mode),
        token=leaf.number("fencingToken"),
        granted_at_ms=leaf.time_ms,
        expires_at_ms=leaf.number("expiresAtMs"),
        hold_until_ms=leaf.number("holdUntilMs"),
        giver=giver,
        giver_until_ms=leaf.time_ms + leaf.number("ttlMs"),
    )
    state.begin(lease)


def grant_faults(state: State, leaf: Leaf, hold_until_ms: int) -> Faults:
    """What holds for every new lease; that its end is timeMs + ttlMs was a question to the leaf alone."""
    token = leaf.number("fencingToken")
    if token <= state.token:
        yield "token_not_rising", "fencingToken is not above every earlier one (8.1)"
    elif token != max(state.token + 1, leaf.time_ms * 1000):
        yield "token_wrong", "fencingToken is not max(last + 1, timeMs x 1,000) (8.1)"
    if leaf.number("holdUntilMs") != hold_until_ms:
        yield "hold_wrong", f"holdUntilMs is not {hold_until_ms} (7.2, 7.11, 27.3)"
    yield from ttl_faults(state, leaf)
    yield from _schemes_faults(state, leaf)


def _schemes_faults(state: State, leaf: Leaf) -> Faults:
    if leaf.value["schemes"] != state.schemes.rows(names_in(leaf)):
        yield "schemes_wrong", "schemes are not the classes and the folding in force (26.4)"


def ttl_faults(state: State, leaf: Leaf) -> Faults:
    """A time to live within the bounds of entry 0."""
    shortest_ms, longest_ms = state.numbers["ttlMinMs"], state.numbers["ttlMaxMs"]
    if not shortest_ms <= leaf.number("ttlMs") <= longest_ms:
        yield "ttl_wrong", f"ttlMs is outside entry 0's {shortest_ms} to {longest_ms} (5.3)"


def way_faults(way: Way) -> Faults:
    """A lease begins with nothing in its way."""
    if way.error is not None:
        yield against(way.error)


def from_faults(state: State, leaf: Leaf, old: Lease) -> Faults:
    """A lease that takes another's place names what that one named, while it lives."""
    if names_in(leaf) != old.names:
        yield "citation_wrong", "resources are not those of the lease it comes from (7.11, 27.3)"
    if not state.is_live(old):
        yield "already_over", f"the lease was over at {state.end_ms(old)}; first comes its lease.expired (7.7)"
