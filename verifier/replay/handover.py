"""Handing a lease over: the offer, and the new lease of who accepted it.

Source: docs/protocol.md 27.1 to 27.3.
"""

from __future__ import annotations

from verifier.entries import Leaf
from verifier.replay.decide import Refused, is_too_much, late
from verifier.replay.leases import against, begin, from_faults, grant_faults, way_faults
from verifier.replay.state import State
from verifier.replay.things import Ask, Faults, Lease, Offer, Ticket
from verifier.replay.under import are_overlapping
from verifier.replay.ways import Way, way_of


def offered_faults(state: State, leaf: Leaf) -> Faults:
    """`transfer.offered`: a live lease, by its holder or an operator who has seen its token."""
    wanted = transfer(state, leaf)
    if isinstance(wanted, Refused):
        yield "refusal_due", f"offered, but the entries before call for {wanted.error} (27.1)"
    lease = state.lease.get(leaf.number("grantSeq"))
    if lease is None:
        return
    if leaf.text("holder") != lease.actor:
        yield "holder_wrong", "holder is not the lease's (27.1)"
    lease.offer = Offer(leaf.seq, leaf.text("toDid"), leaf.actor in state.people.operators)


def transfer(state: State, leaf: Leaf) -> Lease | Refused:
    """Return the lease that a `lease.transfer` may offer, or its refusal."""
    if state.is_disputed:
        return Refused("ledger_disputed")
    found = late(state, leaf.actor, lease_seq(leaf), by_anyone=leaf.actor in state.people.operators)
    if isinstance(found, Refused):
        return found
    if leaf.number("seenToken") != found.token:
        return Refused("token_stale")
    return Refused("not_offered") if leaf.text("toDid") == found.actor else found


def transferred_faults(state: State, leaf: Leaf) -> Faults:
    """`lease.transferred`: the newest offer was to this actor, and nothing else is in its way."""
    old = state.lease.get(leaf.number("fromSeq"))
    if old is None or old.offer is None:
        yield "citation_wrong", "fromSeq is not a live lease that was offered (27.3)"
        return
    if (leaf.number("offerSeq"), leaf.actor) != (old.offer.seq, old.offer.to):
        yield "not_offered", "the newest offer of the lease is another, or to another actor (27.2)"
    if (leaf.text("giver"), leaf.text("mode")) != (old.actor, old.mode):
        yield "citation_wrong", "giver or mode are not the old lease's (27.3)"
    yield from grant_faults(state, leaf, old.hold_until_ms)
    yield from from_faults(state, leaf, old)
    wanted = acceptance(state, leaf.actor, old)
    if isinstance(wanted, Way):
        yield from way_faults(wanted)
    else:
        yield against(wanted)
    giver = old.principal
    state.end(old, "transferred", leaf.seq)
    begin(state, leaf, receivers(leaf.actor, old), giver)


def receivers(actor: str, lease: Lease) -> Ask:
    """Return what a lease stands for as an ask of who receives it."""
    return Ask(actor, lease.names, lease.keys, lease.mode)


def acceptance(state: State, actor: str, lease: Lease) -> str | Way:
    """Return what refuses the acceptance of a lease that was offered to the actor, or what is in its way."""
    ask = receivers(actor, lease)
    if state.is_disputed:
        return "ledger_disputed"
    if is_too_much(state, ask, lease.principal):
        return "too_many_held"
    way = way_of(state, ask)
    tickets = [] if lease.offer is None or lease.offer.is_operators else way.tickets
    own = state.waiting(actor) if tickets else []
    tickets = [it for it in tickets if not _is_behind(it, own)]
    return Way([other for other in way.leases if other is not lease], way.delays, tickets)


def _is_behind(ticket: Ticket, own: list[Ticket]) -> bool:
    """Say whether the receiver is before a ticket in the line anyway."""
    return any(mine.seq < ticket.seq and are_overlapping(mine.keys, ticket.keys) for mine in own)


def lease_seq(leaf: Leaf) -> int:
    """Return the seq of the grant that a lease id names."""
    return int(leaf.text("leaseId")[1:])
