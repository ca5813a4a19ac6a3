"""Every refusal is so, and names what is really there (I10, I11, I16)."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tests.sim.book import RANK, Book, Delay, Ended, Lease, Ticket, Violation
from tests.sim.graph import CYCLE_BYTES_MAX, Wait, closes, fault_of_cycle
from tests.sim.names import allowed, scheme_of

Leaf = dict[str, Any]
REASON = re.compile(r"[a-z0-9._-]{1,64}")
LONG_AGO = -(1 << 60)


def demand(is_so: object, name: str, text: str) -> None:
    if not is_so:
        raise Violation(name, text)


class Refusals:
    """Handlers by row of the table. `names` and `mode` are what was asked for, `besides` what does not count."""

    book: Book
    counts: dict[str, int]

    def count(self, what: str) -> None:
        """Note that something was seen."""
        self.counts[what] = self.counts.get(what, 0) + 1

    def refused(self, leaf: Leaf, names: list[str], mode: str, besides: Lease | None = None) -> None:
        """Check a refusal by its own row."""
        error = leaf["error"]
        check: Callable[[Leaf, Ask], None] | None = getattr(self, "refused_" + error, None)
        demand(check, "I10", f"entry {leaf['seq']}: nobody knows how to check {error}")
        assert check is not None
        check(leaf, Ask(names, mode, besides))

    def live(self, lease_id: str) -> Lease | None:
        return next((lease for lease in self.book.leases if lease.lease_id == lease_id), None)

    def ticket(self, ticket_id: str) -> Ticket | None:
        return next((ticket for ticket in self.book.tickets if ticket.ticket_id == ticket_id), None)

    def leases_in_the_way(self, leaf: Leaf, ask: Ask) -> list[Lease]:
        found = self.book.leases_in_the_way(leaf["actor"], ask.names, ask.mode)
        return [lease for lease in found if lease is not ask.besides]

    # -- leases in the way --------------------------------------------------------------------------------------------

    def refused_lease_held(self, leaf: Leaf, ask: Ask) -> None:
        self._held(leaf, ask)
        is_search = leaf["type"].split("/")[1] != "acceptance.refused" and not self._waits(leaf)
        if is_search and not leaf.get("searchBounded"):
            is_cycle = closes(self.book, self._newcomer(leaf, ask), with_plain=True, with_soft=False)
            demand(not is_cycle, "I11", f"entry {leaf['seq']} overlooks a deadlock")
        self.book.edges[leaf["actor"]] = (leaf["conflict"]["resource"], ask.mode, self.book.t_ms)

    def refused_deadlock(self, leaf: Leaf, ask: Ask) -> None:
        self._held(leaf, ask)
        rows, seq = leaf["cycle"], leaf["seq"]
        fault = fault_of_cycle(self.book, rows, self._newcomer(leaf, ask), is_plain=not self._waits(leaf))
        demand(fault is None, "I11", f"entry {seq} tells a cycle that is none: {fault}")
        demand(not any("aheadId" in row for row in rows), "I11", f"entry {seq} refuses for a soft edge")
        if any("askId" in row for row in rows):
            self.count("circle with an ask")
        demand(leaf["waitingOn"] == rows[1]["resource"], "I11", f"entry {seq}: waitingOn")
        demand(leaf["acquireOrder"] == sorted({row["resource"] for row in rows}), "I11", f"entry {seq}: acquireOrder")
        demand(sum(len(row["resource"].encode()) for row in rows) <= CYCLE_BYTES_MAX, "I11", f"entry {seq}: too long")
        if not self._waits(leaf):
            self.book.edges[leaf["actor"]] = (leaf["conflict"]["resource"], ask.mode, self.book.t_ms)

    def _waits(self, leaf: Leaf) -> bool:
        return leaf.get("wait") is True

    def _newcomer(self, leaf: Leaf, ask: Ask) -> Wait:
        return Wait(leaf["actor"], tuple(ask.names), ask.mode)

    def _held(self, leaf: Leaf, ask: Ask) -> None:
        """Of the leases in the way the one with the latest end is named, then the lowest token."""
        book, seq = self.book, leaf["seq"]
        found = self.leases_in_the_way(leaf, ask)
        demand(found, "I10", f"entry {seq} refuses {ask.names}, which nobody holds")
        self._conflict(leaf, found[0], ask.names, ask.mode)
        demand(leaf["conflicts"] == len(found), "I10", f"entry {seq} counts {leaf['conflicts']} conflicts")
        self.stampede(leaf, leaf["conflict"]["resource"], book.end_ms(found[0]) - book.t_ms)

    def _conflict(self, leaf: Leaf, lease: Lease, names: list[str], mode: str) -> None:
        book = self.book
        resource = book.least(names, mode, lease) if mode else names[0]
        assert resource is not None, "what is in the way excludes"
        wanted = {
            "leaseId": lease.lease_id,
            "resource": resource,
            "heldAs": min(held for held in lease.names if book.meets(resource, held)),
            "fencingToken": lease.token,
            "mode": lease.mode,
            "grantedAtMs": lease.granted_ms,
            "expiresAtMs": lease.expires_ms,
        }
        demand(leaf["conflict"] == wanted, "I10", f"entry {leaf['seq']} names {leaf['conflict']}, not {wanted}")
        demand(leaf["holder"] == lease.actor, "I10", f"entry {leaf['seq']} names another holder")

    def stampede(self, leaf: Leaf, name: str, rest_ms: int, retry_ms: int | None = None) -> None:
        """The count of earlier refusals, and the advice that follows from it."""
        book, place = self.book, (leaf["principal"], name)
        count, last_ms = book.waits.get(place, (0, LONG_AGO))
        if book.t_ms >= last_ms + book.rules["stampedeResetMs"]:
            count = 0
        wait_ms = min(book.rules["stampedeMaxMs"], book.rules["stampedeBaseMs"] * 2 ** min(count, 40))
        is_admitted = count < book.rules["stampedeAdmitted"]
        wanted = {"admitted": is_admitted, "waitMs": wait_ms}
        demand(leaf["stampede"] == wanted, "I10", f"entry {leaf['seq']}: stampede {leaf['stampede']}, not {wanted}")
        if retry_ms is None:
            retry_ms = wait_ms if is_admitted else max(wait_ms, rest_ms)
        demand(leaf["retryAfterMs"] == retry_ms, "I10", f"entry {leaf['seq']}: retryAfterMs is not {retry_ms}")
        book.waits[place] = (count + 1, book.t_ms)

    def waits_before(self, leaf: Leaf, name: str) -> int:
        count, last_ms = self.book.waits.get((leaf["principal"], name), (0, LONG_AGO))
        return 0 if self.book.t_ms >= last_ms + self.book.rules["stampedeResetMs"] else count

    # -- delays and tickets in the way --------------------------------------------------------------------------------

    def refused_lock_delayed(self, leaf: Leaf, ask: Ask) -> None:
        book, seq = self.book, leaf["seq"]
        demand(not self.leases_in_the_way(leaf, ask), "I10", f"entry {seq}: a lease comes first")
        delays = book.delays_in_the_way(leaf["actor"], ask.names, ask.mode)
        demand(delays, "I10", f"entry {seq} is delayed by nothing")
        last = sorted(delays, key=lambda delay: (-max(delay.until_ms, book.holiday_ms), delay.seq))[0]
        until_ms = max(last.until_ms, book.holiday_ms)
        facts = (leaf["holder"], leaf["delayUntilMs"], leaf["endedSeq"])
        wanted = (last.actor, until_ms, last.seq)
        demand(facts == wanted, "I10", f"entry {seq} names the delay {facts}, not {wanted}")
        count = self.waits_before(leaf, ask.names[0])
        wait_ms = min(book.rules["stampedeMaxMs"], book.rules["stampedeBaseMs"] * 2 ** min(count, 40))
        self.stampede(leaf, ask.names[0], 0, retry_ms=max(wait_ms, until_ms - book.t_ms))

    def refused_queued(self, leaf: Leaf, ask: Ask) -> None:
        book, seq = self.book, leaf["seq"]
        demand(not self.leases_in_the_way(leaf, ask), "I10", f"entry {seq}: a lease comes first")
        delays = book.delays_in_the_way(leaf["actor"], ask.names, ask.mode)
        demand(not delays, "I10", f"entry {seq}: a delay comes first")
        tickets = sorted(self.tickets_in_the_way(leaf, ask), key=lambda ticket: ticket.seq)
        demand(tickets, "I10", f"entry {seq} stands behind nobody")
        first = tickets[0]
        resource = book.least(ask.names, ask.mode, first)
        assert resource is not None, "what is in the way excludes"
        wanted = {
            "ticketId": first.ticket_id,
            "actor": first.actor,
            "resource": resource,
            "mode": first.mode,
            "queuedAtMs": first.queued_ms,
        }
        demand(leaf["ahead"] == wanted, "I10", f"entry {seq} is behind {leaf['ahead']}, not {wanted}")
        self.stampede(leaf, resource, book.deadline_ms(first) - book.t_ms)

    def tickets_in_the_way(self, leaf: Leaf, ask: Ask) -> list[Ticket]:
        return self.book.tickets_in_the_way(leaf["actor"], ask.names, ask.mode, None)

    # -- waiting ------------------------------------------------------------------------------------------------------

    def refused_already_waiting(self, leaf: Leaf, ask: Ask) -> None:
        same = self.same_key(leaf["actor"], ask.names)
        demand(same, "I10", f"entry {leaf['seq']} waits for nothing yet")
        demand(leaf["ticketId"] == min(same, key=lambda one: one.seq).ticket_id, "I10", f"entry {leaf['seq']}: ticket")

    def same_key(self, actor: str, names: list[str]) -> list[Ticket]:
        """Return the live tickets of an actor that name one of the same keys."""
        book, keys = self.book, self.book.keys(names)
        return [
            one
            for one in book.tickets
            if one.actor == actor and book.is_live(one) and any(key in keys for key in book.keys(one.names))
        ]

    def refused_queue_full(self, leaf: Leaf, ask: Ask) -> None:
        seq, name = leaf["seq"], ask.names[0]
        demand(self.is_full(leaf, ask.names), "I16", f"entry {seq}: no bound is reached")
        nonce = leaf["signed"].split('nonce="')[1].split('"')[0]
        base = min(60_000, 1_000 * 2 ** min(self.waits_before(leaf, name), 40))
        jitter = int.from_bytes(sha256(nonce.encode()).digest()[:2], "big")
        self.stampede(leaf, name, 0, retry_ms=base + base * jitter // 65_536 // 4)

    def is_full(self, leaf: Leaf, names: list[str]) -> bool:
        """Say whether one more ticket would be beyond a bound."""
        book, rules = self.book, self.book.rules
        live = [one for one in book.tickets if book.is_live(one)]
        own = [one for one in live if one.principal == leaf["principal"]]
        of_operator = [one for one in live if one.operator == leaf["onBehalfOf"]]
        if len(own) >= rules["queuePerPrincipal"] or len(live) >= rules["queueTotal"]:
            return True
        if len(of_operator) >= book.share(rules["queueTotal"]):
            return True
        for key in book.keys(names):
            here = [one for one in live if key in book.keys(one.names)]
            theirs = [one for one in here if one.operator == leaf["onBehalfOf"]]
            if len(here) >= rules["queuePerResource"] or len(theirs) >= book.share(rules["queuePerResource"]):
                return True
        return False

    def is_remembered(self, ended: Ended) -> bool:
        return self.book.t_ms < ended.at_ms + self.book.rules["idempotencyMs"]

    def _ended_ticket(self, leaf: Leaf) -> Ended | None:
        ended = self.book.ended_tickets.get(leaf["ticketId"])
        return ended if ended and self.is_remembered(ended) else None

    def refused_ticket_unknown(self, leaf: Leaf, ask: Ask) -> None:
        is_known = self.ticket(leaf["ticketId"]) or self._ended_ticket(leaf)
        demand(not is_known, "I10", f"entry {leaf['seq']}: {leaf['ticketId']} is known")

    def refused_ticket_not_yours(self, leaf: Leaf, ask: Ask) -> None:
        ticket, ended = self.ticket(leaf["ticketId"]), self._ended_ticket(leaf)
        waiter = ticket.actor if ticket else ended.actor if ended else None
        demand(waiter is not None and waiter != leaf["actor"], "I10", f"entry {leaf['seq']}: it is the actor's own")

    def refused_ticket_ended(self, leaf: Leaf, ask: Ask) -> None:
        ended = self._ended_ticket(leaf)
        is_so = ended is not None and self.ticket(leaf["ticketId"]) is None and ended.actor == leaf["actor"]
        demand(is_so, "I10", f"entry {leaf['seq']}: {leaf['ticketId']} has not ended")
        assert ended is not None
        demand(leaf["endedSeq"] == ended.seq, "I10", f"entry {leaf['seq']}: endedSeq is not {ended.seq}")

    # -- by lease id --------------------------------------------------------------------------------------------------

    def _ended(self, leaf: Leaf) -> Ended | None:
        ended = self.book.ended.get(leaf["leaseId"])
        return ended if ended and self.is_remembered(ended) else None

    def refused_lease_unknown(self, leaf: Leaf, ask: Ask) -> None:
        is_known = self.live(leaf["leaseId"]) or self._ended(leaf)
        demand(not is_known, "I10", f"entry {leaf['seq']}: {leaf['leaseId']} is known")

    def refused_lease_not_yours(self, leaf: Leaf, ask: Ask) -> None:
        lease, ended = self.live(leaf["leaseId"]), self._ended(leaf)
        holder = lease.actor if lease else ended.actor if ended else None
        demand(holder is not None and holder != leaf["actor"], "I10", f"entry {leaf['seq']}: it is the actor's own")

    def _by_id(self, leaf: Leaf, how: str) -> None:
        ended = self._ended(leaf)
        demand(ended and ended.how == how, "I10", f"entry {leaf['seq']}: {leaf['leaseId']} was not {how}")
        assert ended is not None
        # What was undone with the rest of an atomic batch is no entry.
        wanted = ended.seq if ended.actor == leaf["actor"] and ended.seq < leaf.get("endsBefore", 1 << 60) else None
        demand(leaf.get("endedSeq") == wanted, "I10", f"entry {leaf['seq']}: endedSeq is not {wanted}")

    def refused_lease_released(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "released")

    def refused_lease_expired(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "expired")

    def refused_lease_broken(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "broken")

    def refused_lease_transferred(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "transferred")

    def refused_lease_changed(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "changed")

    def refused_lease_returned(self, leaf: Leaf, ask: Ask) -> None:
        self._by_id(leaf, "returned")

    def refused_lease_mismatch(self, leaf: Leaf, ask: Ask) -> None:
        lease = self.live(leaf["leaseId"])
        is_other = lease is not None and self.book.keys(lease.names) != self.book.keys(leaf["resources"])
        demand(is_other, "I10", f"entry {leaf['seq']}: the lease covers exactly these")

    def refused_not_holder(self, leaf: Leaf, ask: Ask) -> None:
        keys = self.book.keys(leaf["resources"])
        created_ms = int(leaf["signed"].split("created=")[1].split(";")[0]) * 1_000
        own = [one for one in self.book.leases if one.actor == leaf["actor"] and self.book.keys(one.names) == keys]
        meant = [one.lease_id for one in own if one.granted_ms < created_ms + 1_000]
        demand(not meant, "I10", f"entry {leaf['seq']}: the actor holds {meant}")

    # -- the rest -----------------------------------------------------------------------------------------------------

    def refused_ledger_disputed(self, leaf: Leaf, ask: Ask) -> None:
        demand(self.book.is_disputed, "I10", f"entry {leaf['seq']}: no dispute is known")

    def refused_name_not_allowed(self, leaf: Leaf, ask: Ask) -> None:
        is_odd = any(not name.isascii() and not self.book.scheme(name)["isUnicode"] for name in ask.names)
        demand(is_odd, "I10", f"entry {leaf['seq']}: every name may be")

    def refused_mode_not_allowed(self, leaf: Leaf, ask: Ask) -> None:
        is_odd = any(not allowed(self.book.scheme(name)["class"], ask.mode) for name in ask.names)
        demand(is_odd, "I10", f"entry {leaf['seq']}: every class has the mode")

    def refused_scheme_busy(self, leaf: Leaf, ask: Ask) -> None:
        demand(self.is_busy(leaf["name"]), "I10", f"entry {leaf['seq']}: nothing of the scheme lives")

    def is_busy(self, scheme: str) -> bool:
        book = self.book
        live = [one.names for one in book.leases]
        live += [one.names for one in book.delays]
        live += [one.names for one in book.tickets if book.is_live(one)]
        return any(scheme_of(name) == scheme for names in live for name in names)

    def refused_hold_exceeded(self, leaf: Leaf, ask: Ask) -> None:
        own = self.live(leaf["leaseId"]) if "leaseId" in leaf else self.own(leaf["actor"], ask.names, ask.mode)
        demand(own is not None and self.is_hold_over(own), "hold", f"entry {leaf['seq']}: the hold is not over")

    def own(self, actor: str, names: list[str], mode: str) -> Lease | None:
        keys = self.book.keys(names)
        for lease in reversed(self.book.leases):  # of several the newest
            if lease.actor == actor and lease.mode == mode and self.book.keys(lease.names) == keys:
                return lease
        return None

    def is_hold_over(self, lease: Lease) -> bool:
        book = self.book
        return book.t_ms >= lease.hold_until_ms and any(
            ticket.actor != lease.actor
            and book.is_live(ticket)
            and book.clashes(ticket.names, ticket.mode, lease.names, lease.mode)
            for ticket in book.tickets
        )

    def refused_too_many_held(self, leaf: Leaf, ask: Ask) -> None:
        held = self.held(leaf["principal"])
        is_over = held + self.more(leaf, ask) > self.book.rules["heldPerPrincipal"]
        demand(is_over, "I16", f"entry {leaf['seq']}: {held} names are held")

    def more(self, leaf: Leaf, ask: Ask) -> int:
        """Return how many names would be added: none where keys of one principal hand over to each other."""
        is_among = ask.besides is not None and ask.besides.principal == leaf["principal"]
        return 0 if is_among else len(ask.names)

    def held(self, principal: str) -> int:
        """Return how many names a principal holds or keeps closed by a lock-delay."""
        claims: list[Lease | Delay] = [*self.book.leases, *self.book.delays]
        return sum(len(claim.names) for claim in claims if claim.principal == principal)

    def refused_token_stale(self, leaf: Leaf, ask: Ask) -> None:
        book, token = self.book, leaf["seenToken"]
        if "leaseId" in leaf:
            lease = self.live(leaf["leaseId"])
            demand(lease and lease.token != token, "I10", f"entry {leaf['seq']}: the token is not stale")
            return
        name = leaf["resource"]
        found = [one for one in book.leases if any(book.meets(name, held) for held in one.names)]
        demand(all(one.token != token for one in found), "I10", f"entry {leaf['seq']}: the token is live")
        if found:
            self._conflict(leaf, sorted(found, key=lambda one: (-book.end_ms(one), one.token))[0], [name], "")
        else:
            demand("conflict" not in leaf and "holder" not in leaf, "I10", f"entry {leaf['seq']} names nobody's lease")

    def refused_not_offered(self, leaf: Leaf, ask: Ask) -> None:
        lease_id, offer = leaf["leaseId"], self.book.offers.get(leaf["leaseId"])
        lease = self.live(lease_id)
        if "toDid" in leaf:
            demand(lease and lease.actor == leaf["toDid"], "I10", f"entry {leaf['seq']}: it is not the holder")
        else:
            demand(offer is None or offer[0] != leaf["actor"], "I10", f"entry {leaf['seq']}: it is offered")


class Ask:
    """What a refused request asked for."""

    __slots__ = ("besides", "mode", "names")

    def __init__(self, names: list[str], mode: str, besides: Lease | None) -> None:
        self.names = names
        self.mode = mode
        self.besides = besides


def is_weaker(mode: str, than: str) -> bool:
    return RANK[mode] < RANK[than]
