"""Pictures for people and pollers: who holds what, what is kept free, who is in line, was refused, waits for whom.

A projection of records, and nothing else: it writes nothing and proves nothing. What has lapsed is left out, although
its entry may not be written yet, and so is what a session whose time has come holds, waits for or asks; a refusal
counts as waiting for `wait_edge_ms`.

Strangers may look, on the thread that decides. So the live records are walked through once for a `Scene`, which serves
every reader until the head moves, and what is made of it has at most ROWS_MAX rows with ITEMS_MAX leases, delays and
tickets. A question about one resource or one holder is answered by look-ups in the scene and touches nothing
else; nobody gets more than LOOKS_MAX of them.

Source: docs/protocol.md 19.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Protocol

from gateway.core.draft import View
from gateway.core.holding import label_of
from gateway.core.lookup import counter_at, edge_at, handover_at, principal_at, scheme_at, session_at
from gateway.core.parameters import Parameters
from gateway.core.record_keys import HOLIDAY_KEY
from gateway.core.records import CLAIMS, Claim, Delay, Handover, Lease, Pending, Record, Session, Ticket, Waits
from gateway.core.resource import DEFAULT_CLASS, claims_near, keys_of, lapse_ms
from gateway.core.terms import TICKETS, filed_under, met_by
from verifier.entries import key_of, may_share, overlaps, scheme_of
from verifier.wire import JsonObject, JsonValue

ROWS_MAX = 1_000  # resources in one picture: some 400 kB
ITEMS_MAX = 2_000  # leases, delays and tickets in one picture, each as often as it is shown
ROW_ITEMS_MAX = 20  # leases, and again delays and tickets, in one row of a picture of everything; the oldest
WAITS_MAX = 2_000  # refusals that a scene keeps, the longest first; and waits that are followed in search of deadlocks
ASKS_MAX = 500  # approvals in one picture, the oldest
LOOKS_MAX = 20_000  # names compared for one picture: some 60 ms

_met_by = met_by.__wrapped__  # strangers ask for any name: nothing they ask is to stay in a cache


class Shelf(View, Protocol):
    """A view that can also be walked through, one kind of record at a time."""

    def scan(self, prefix: str) -> Iterable[Record]:
        """Return every record whose key begins with `prefix`, one of HOT_PREFIXES, in any order."""


Pair = tuple[tuple[str, str], tuple[str, ...]]  # two actors, and the resources for which they wait for each other


@dataclass(frozen=True, slots=True)
class Scene:
    """What was live at one head at `t_ms`: leases by holder, and by whom they are offered to, oldest token first;
    refusals by resource, the longest first; tickets and asks for approval, lowest number first; delays, the earliest
    begun first.

    It counts as long as `view` stands at that head: what is on a resource is looked up there. `sessions` are the open
    ones that hold or wait, by key, `gone` those among them whose time has come and whose end is not written yet.
    `leases`, `held` and `waits` are totals: live leases, the resources they name, refusals that count as waiting.
    """

    view: View
    t_ms: int
    holiday_ms: int
    sessions: dict[str, Session]
    gone: frozenset[str]
    by_holder: dict[str, list[Lease]]
    by_receiver: dict[str, list[Lease]]
    waiting: dict[str, list[Waits]]
    tickets: list[Ticket]
    delays: list[Delay]
    asks: list[Pending]
    leases: int
    held: int
    waits: int
    pairs: tuple[Pair, ...] = ()
    is_short: bool = False  # not every wait was followed in search of pairs

    def is_live(self, claim: Claim) -> bool:
        """Say whether the effective end of a lease, delay or ticket has not come. A delay outlives its session."""
        if self.t_ms >= max(lapse_ms(claim), self.holiday_ms):
            return False
        return claim.holder not in self.gone or isinstance(claim, Delay)


class _Lens:
    """Finds what stands on a name, until it has compared LOOKS_MAX names: then it sees no more, and says so."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._looks = LOOKS_MAX
        self.is_cut = False

    def on(self, name: str, *, is_deep: bool) -> Iterator[tuple[Claim, str]]:
        """Yield each live lease, delay and ticket that overlaps `name`, with the least name of it that does.

        `is_deep`: those inside a sub-tree as well, else only those that name it or cover it.
        """
        scene, met = self._scene, set[str]()
        scheme = scheme_at(scene.view, scheme_of(name))
        is_folding = scheme is not None and scheme.is_folding
        key = key_of(name, is_folding)
        for term in _met_by(name) if is_deep else (filed_under(name)[0], *filter(_is_tree, _met_by(name))):
            for place in scene.view.near(term):
                claim = None if place in met else scene.view.get(place)
                if isinstance(claim, CLAIMS) and scene.is_live(claim):
                    meeting = self._meet(claim, key, is_folding=is_folding)
                    if self.is_cut:
                        return
                    if meeting is not None:
                        met.add(place)
                        yield claim, meeting

    def _meet(self, claim: Claim, key: str, *, is_folding: bool) -> str | None:
        """Return the least name of a claim that overlaps the name with this key; one of another scheme never does."""
        if key in claim.resources:
            self.spend(1)
            return key
        self.spend(len(claim.resources))
        return next((name for name in claim.resources if overlaps(key, key_of(name, is_folding))), None)

    def spend(self, looks: int) -> None:
        """Count looks; the one that is too many cuts."""
        self._looks -= looks
        self.is_cut = self._looks < 0


def _is_tree(term: str) -> bool:
    """Say whether a word is that of a sub-tree's own name."""
    return term.endswith("**")


def look(shelf: Shelf, t_ms: int, parameters: Parameters) -> Scene:
    """Walk through the live records once."""
    holiday_ms = counter_at(shelf, HOLIDAY_KEY)
    held_or_lapsed = [record for record in shelf.scan("lease/") if isinstance(record, Lease)]
    queued_or_lapsed = [claim for claim in claims_near(shelf, TICKETS) if isinstance(claim, Ticket)]
    asked = [record for record in shelf.scan("ask/") if isinstance(record, Pending) and record.is_live(t_ms)]
    actors = {lease.holder for lease in held_or_lapsed} | {ticket.actor for ticket in queued_or_lapsed}
    actors |= {pending.actor for pending in asked}
    sessions = _sessions(shelf, actors)
    gone = frozenset(did for did, one in sessions.items() if t_ms >= max(one.due_at_ms, holiday_ms))
    live = (one for one in held_or_lapsed if t_ms < max(lapse_ms(one), holiday_ms) and one.holder not in gone)
    leases = sorted(live, key=lambda lease: lease.fencing_token)
    offers = {record.lease_id: record for record in shelf.scan("handover/") if isinstance(record, Handover)}
    by_holder: dict[str, list[Lease]] = {}
    by_receiver: dict[str, list[Lease]] = {}
    for lease in leases:
        by_holder.setdefault(lease.holder, []).append(lease)
        if lease.lease_id in offers:
            by_receiver.setdefault(offers[lease.lease_id].to_did, []).append(lease)
    waits = sorted(_waiting(shelf, t_ms, parameters), key=lambda one: (one.since_ms, one.actor))
    waiting: dict[str, list[Waits]] = {}
    for one in waits[:WAITS_MAX]:
        waiting.setdefault(one.resource, []).append(one)
    held = sum(len(lease.resources) for lease in leases)
    scene = Scene(
        shelf, t_ms, holiday_ms, sessions, gone, by_holder, by_receiver, waiting, [], [], [], len(leases), held,
        len(waits),
    )  # fmt: skip
    scene.asks.extend(sorted((one for one in asked if one.actor not in gone), key=lambda one: one.seq))
    closed = (record for record in shelf.scan("delay/") if isinstance(record, Delay) and scene.is_live(record))
    scene.delays.extend(sorted(closed, key=lambda delay: delay.seq))
    in_line = filter(scene.is_live, queued_or_lapsed)
    scene.tickets.extend(sorted(in_line, key=lambda ticket: ticket.seq))
    pairs, is_short = _deadlocks(scene)
    return replace(scene, pairs=pairs, is_short=is_short)


def wait_view(scene: Scene, resource: str | None = None) -> JsonObject:
    """Return each resource that is held, kept free or waited for, with its leases, delays, queue and those who were
    refused; the approvals that are waited for; and the deadlocked pairs.

    A row shows what names the resource or covers it. With `resource` there is one row, of everything that overlaps that
    name, and the approvals and deadlocks that touch it. `counts` are of the whole ledger always.
    """
    lens = _Lens(scene)
    if resource is None:
        rows, is_cut = _all_rows(scene, lens)
        pairs, asks = list(scene.pairs), scene.asks
    else:
        rows, is_cut = _one_row(scene, lens, resource)
        pairs = [pair for pair in scene.pairs if any(_is_touched(scene, resource, name) for name in pair[1])]
        asks = [one for one in scene.asks if any(_is_touched(scene, resource, name) for name in one.resources)]
    deadlocks: list[JsonValue] = [{"actors": list(actors), "resources": list(names)} for actors, names in pairs]
    offered = sum(ticket.claim_by_ms is not None for ticket in scene.tickets)
    counts: JsonObject = {
        "leases": scene.leases,
        "held": scene.held,
        "delays": len(scene.delays),
        "waiting": scene.waits,
        "queued": len(scene.tickets) - offered,
        "offered": offered,
        "asked": len(scene.asks),
    }
    return {
        "nowMs": scene.t_ms,
        "resources": rows,
        "approvals": [_ask_row(scene, one) for one in asks[:ASKS_MAX]],
        "deadlocks": deadlocks,
        "isTruncated": is_cut or lens.is_cut or scene.is_short or scene.waits > WAITS_MAX or len(asks) > ASKS_MAX,
        "counts": counts,
    }


def leases_view(scene: Scene, holder: str) -> JsonObject:
    """Return the live leases of one holder, then those that are offered to it, each kind with the oldest token first;
    as many as have ROWS_MAX resources together."""
    leases, offered = scene.by_holder.get(holder, []), scene.by_receiver.get(holder, [])
    room, shown = ROWS_MAX, 0
    for lease in chain(leases, offered):
        room -= len(lease.resources)
        if room < 0:
            break
        shown += 1
    own: list[JsonValue] = [_full_lease_row(scene, lease) for lease in leases[:shown]]
    others: list[JsonValue] = [_full_lease_row(scene, lease) for lease in offered[: shown - len(own)]]
    return {
        "nowMs": scene.t_ms,
        "holder": holder,
        "leases": own,
        "offered": others,
        "isTruncated": shown < len(leases) + len(offered),
        "counts": {"leases": len(leases), "offered": len(offered)},
    }


def trust_view(view: View, did: str, t_ms: int, parameters: Parameters) -> JsonObject:
    """Return the trust of a principal in milli-points, and the entry that changed it last, None before the first.

    A session has that of the agent it acts for.
    """
    session = session_at(view, did)
    principal = principal_at(view, did if session is None else session.principal, parameters)
    seen: JsonObject = {"nowMs": t_ms, "did": did, "trust": principal.trust, "lastSeq": principal.trust_seq}
    return seen | _principal(did, principal.did)


def _sessions(view: View, dids: Iterable[str]) -> dict[str, Session]:
    """Return the open sessions among these keys. Not by a walk: those that ended, a week's, may be very many."""
    found = (session_at(view, did) for did in dids)
    return {session.did: session for session in found if session is not None and session.is_open}


def _waiting(shelf: Shelf, t_ms: int, parameters: Parameters) -> Iterator[Waits]:
    for record in shelf.scan("wait/"):
        if isinstance(record, Waits) and t_ms < min(record.until_ms, record.refused_at_ms + parameters.wait_edge_ms):
            yield record


# -- rows --------------------------------------------------------------------------------------------------------------


def _all_rows(scene: Scene, lens: _Lens) -> tuple[list[JsonValue], bool]:
    """Return the rows of a picture of everything, by name, and whether something was left out."""
    names, is_cut = _shown(scene)
    rows: dict[str, JsonValue] = {}
    room = ITEMS_MAX
    for name in names:
        stand = _Stand(lens.on(name, is_deep=False), ROW_ITEMS_MAX)
        room -= len(stand.leases) + len(stand.delays) + len(stand.queue)
        if room < 0 or lens.is_cut:
            return [rows[name] for name in sorted(rows)], True
        row = _row(scene, name, stand, scene.waiting.get(name, ()))
        is_cut = is_cut or stand.is_cut
        if row is not None:
            rows[name] = row
    return [rows[name] for name in sorted(rows)], is_cut


def _one_row(scene: Scene, lens: _Lens, resource: str) -> tuple[list[JsonValue], bool]:
    stand = _Stand(lens.on(resource, is_deep=True), ITEMS_MAX // 2)
    names = [name for name in scene.waiting if _is_touched(scene, resource, name)]
    refused = sorted(chain.from_iterable(scene.waiting[name] for name in names), key=lambda w: (w.since_ms, w.actor))
    row = _row(scene, resource, stand, refused)
    return [] if row is None else [row], stand.is_cut


def _is_touched(scene: Scene, resource: str, name: str) -> bool:
    return overlaps(*keys_of(scene.view, (resource, name)))


def _shown(scene: Scene) -> tuple[list[str], bool]:
    """Return the names that a picture of everything shows, and whether there are more.

    Those that somebody waits for come first into the picture, then what is kept free, then others as they come.
    """
    claims: Iterable[Claim] = chain(scene.delays, *scene.by_holder.values())
    asked = dict.fromkeys(chain(chain.from_iterable(ticket.resources for ticket in scene.tickets), scene.waiting))
    names = chain(asked, chain.from_iterable(claim.resources for claim in claims))
    shown: dict[str, None] = {}
    for name in islice(names, 2 * ROWS_MAX + len(asked)):  # a name comes again under a second lease
        shown[name] = None
        if len(shown) > ROWS_MAX:
            shown.popitem()
            return list(shown), True
    return list(shown), next(names, None) is not None


class _Stand:
    """What stands on a name, each with its name there: of leases, delays and tickets the `most` oldest."""

    def __init__(self, found: Iterable[tuple[Claim, str]], most: int) -> None:
        leases: list[tuple[Lease, str]] = []
        delays: list[tuple[Delay, str]] = []
        queue: list[tuple[Ticket, str]] = []
        for claim, name in found:
            if isinstance(claim, Lease):
                leases.append((claim, name))
            elif isinstance(claim, Delay):
                delays.append((claim, name))
            else:
                queue.append((claim, name))
        self.leases = sorted(leases, key=lambda pair: pair[0].fencing_token)[:most]
        self.delays = sorted(delays, key=lambda pair: pair[0].seq)[:most]
        self.queue = sorted(queue, key=lambda pair: pair[0].seq)[:most]
        self.is_cut = max(len(leases), len(delays), len(queue)) > most


def _row(scene: Scene, resource: str, stand: _Stand, refused: Iterable[Waits]) -> JsonObject | None:
    """Return the row of a resource, None when nothing is there."""
    leases: list[JsonValue] = [_lease_row(scene, lease) | _as(resource, "heldAs", name) for lease, name in stand.leases]
    delays: list[JsonValue] = [_delay_row(scene, delay) | _as(resource, "heldAs", name) for delay, name in stand.delays]
    queue: list[JsonValue] = [
        {"position": place} | _ticket_row(scene, ticket) | _as(resource, "resource", name)
        for place, (ticket, name) in enumerate(stand.queue, 1)
    ]
    waiting: list[JsonValue] = [_waiting_row(scene, resource, waits) for waits in refused]
    row: JsonObject = {"resource": resource, "leases": leases, "delays": delays, "queue": queue, "waiting": waiting}
    return row if leases or delays or queue or waiting else None


def _as(resource: str, member: str, name: str) -> JsonObject:
    """Return under which name a thing stands on a resource, where that is not the row's own."""
    return {} if name == resource else {member: name}


def _waiting_row(scene: Scene, resource: str, waits: Waits) -> JsonObject:
    row: JsonObject = {
        "actor": waits.actor,
        "waits": waits.waits,
        "sinceMs": waits.since_ms,
        "refusedAtMs": waits.refused_at_ms,
    }
    return row | _who(scene, waits.actor, waits.principal, "actorName") | _as(resource, "resource", waits.resource)


def _delay_row(scene: Scene, delay: Delay) -> JsonObject:
    """Return a delay: who held, and alone may have it, until when, and the entry that ended its lease."""
    row: JsonObject = {
        "holder": delay.holder,
        "mode": delay.mode,
        "endsAtMs": max(delay.ends_at_ms, scene.holiday_ms),
        "endedSeq": delay.seq,
    }
    return row | _who(scene, delay.holder, delay.principal, "holderName")


def _ticket_row(scene: Scene, ticket: Ticket) -> JsonObject:
    """Return a ticket in short. The times are as printed in its entries, `endsAtMs` is what holds in a holiday too."""
    row: JsonObject = {
        "ticketId": ticket.ticket_id,
        "actor": ticket.actor,
        "mode": ticket.mode,
        "state": _state(ticket),
        "queuedAtMs": ticket.queued_at_ms,
        "pollByMs": ticket.poll_by_ms,
        "giveUpByMs": ticket.give_up_by_ms,
        "endsAtMs": max(ticket.deadline_ms, scene.holiday_ms),
        "passes": ticket.passes,
    }
    if ticket.claim_by_ms is not None:
        row["claimByMs"] = ticket.claim_by_ms
    return row | _who(scene, ticket.actor, ticket.principal, "actorName")


def _ask_row(scene: Scene, pending: Pending) -> JsonObject:
    """Return an ask for approval in short: what is to be done, who may approve, and without whom it can't be."""
    row: JsonObject = {
        "askId": pending.ask_id,
        "actor": pending.actor,
        "operation": pending.operation,
        "resources": list(pending.resources),
        "mode": pending.mode,
        "approvers": list(pending.approvers),
        "quorum": pending.quorum,
        "given": list(pending.given),
        "declined": list(pending.declined),
        "waitsFor": list(pending.needed),
        "askedAtMs": pending.asked_at_ms,
        "giveUpByMs": pending.give_up_by_ms,
    }
    return row | _who(scene, pending.actor, pending.principal, "actorName")


def _state(ticket: Ticket) -> str:
    """Say where a ticket stands: its turn has come, it keeps what is free, it was passed over, or it just waits."""
    if ticket.claim_by_ms is not None:
        return "offered"
    if ticket.is_reserved:
        return "reserved"
    return "passed" if ticket.is_passed else "queued"


def _full_lease_row(scene: Scene, lease: Lease) -> JsonObject:
    """Return a lease with everything its holder needs to go on with it."""
    row: JsonObject = {
        "resources": list(lease.resources),
        "ttlMs": lease.ttl_ms,
        "holdUntilMs": lease.hold_until_ms,
    }
    return row | _lease_row(scene, lease)


def _lease_row(scene: Scene, lease: Lease) -> JsonObject:
    """Return a lease in short. `expiresAtMs` is as printed in its entry, `endsAtMs` what holds during a holiday.

    `endsIfIdleAtMs` is when it ends if its session does nothing more, in a holiday too. `offer` says to whom it is
    offered, if it is, and by which entry.
    """
    row: JsonObject = {
        "leaseId": lease.lease_id,
        "holder": lease.holder,
        "fencingToken": lease.fencing_token,
        "mode": lease.mode,
        "grantedAtMs": lease.granted_at_ms,
        "expiresAtMs": lease.expires_at_ms,
        "endsAtMs": max(lease.expires_at_ms, scene.holiday_ms),
    }
    offer = handover_at(scene.view, lease.lease_id)
    if offer is not None:
        row["offer"] = {"offeredTo": offer.to_did, "byOperator": offer.is_operator, "seq": offer.seq}
    session = scene.sessions.get(lease.holder)
    if session is not None:
        row["endsIfIdleAtMs"] = max(min(lease.expires_at_ms, session.due_at_ms), scene.holiday_ms)
    return row | _who(scene, lease.holder, lease.principal, "holderName")


def _who(scene: Scene, did: str, principal: str, member: str) -> JsonObject:
    """Return whom a key acts for, if not for itself, and how people call it, under the name `member`."""
    label = label_of(scene.view, did)
    return _principal(did, principal) | ({} if label is None else {member: label})


def _principal(did: str, principal: str) -> JsonObject:
    return {} if did == principal else {"principal": principal}


# -- who waits for whom ------------------------------------------------------------------------------------------------


def _deadlocks(scene: Scene) -> tuple[tuple[Pair, ...], bool]:
    """Return each pair in which A waits for a lease or approval of B and B for one of A, with the resources they wait
    for; and whether there may be more."""
    lens = _Lens(scene)
    known: dict[str, list[Lease]] = {}
    edges: dict[tuple[str, str], set[str]] = {}
    asks = scene.asks[:WAITS_MAX]
    counting = {*scene.by_holder, *(approver for pending in asks for approver in pending.needed)}
    for actor, resource, mode in islice(_waits(scene, counting), WAITS_MAX):
        scheme = scheme_at(scene.view, scheme_of(resource))
        class_name = scheme.class_name if scheme else DEFAULT_CLASS
        if resource not in known:
            found = lens.on(resource, is_deep=True)
            known[resource] = [claim for claim, _ in found if isinstance(claim, Lease)]
        lens.spend(len(known[resource]))
        for lease in () if lens.is_cut else known[resource]:
            if lease.holder != actor and not may_share(class_name, lease.mode, mode):
                edges.setdefault((actor, lease.holder), set()).add(resource)
    for pending in asks:
        for approver in pending.needed if pending.actor in counting else ():
            edges.setdefault((pending.actor, approver), set()).add(pending.resources[0])
    pairs = sorted((a, b) for a, b in edges if a < b and (b, a) in edges)
    return tuple(((a, b), tuple(sorted(edges[a, b] | edges[b, a]))) for a, b in pairs), lens.is_cut


def _waits(scene: Scene, counting: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield what those who keep others waiting wait for: (actor, resource, mode), of tickets and the last refusals."""
    for ticket in scene.tickets:
        if ticket.claim_by_ms is None and ticket.actor in counting:
            yield from ((ticket.actor, name, ticket.mode) for name in ticket.resources)
    for actor in sorted(counting):
        edge = edge_at(scene.view, actor, scene.t_ms)
        if edge is not None:
            yield actor, edge.resource, edge.mode
