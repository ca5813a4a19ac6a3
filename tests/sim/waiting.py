"""Tickets: first come first served, nothing granted outside a window, nobody forgotten (I8, I9, I14, I16)."""

from __future__ import annotations

from typing import Any

from tests.sim.book import Book, Ended, Ticket
from tests.sim.graph import Wait, closes, fault_of_cycle, offer_closes
from tests.sim.names import allowed
from tests.sim.refusals import Refusals, demand

Leaf = dict[str, Any]


class Waiting(Refusals):
    """Handlers of the entries about tickets."""

    book: Book
    delays_gone: int  # lock-delays that ended at this log time
    is_owed: bool  # the entry is part of what somebody gives back who has ended
    looked: dict[str, bool]  # in the pass of the last entries: ticket, and whether it was passed over

    # -- joining ------------------------------------------------------------------------------------------------------

    def on_wait_queued(self, leaf: Leaf) -> None:
        book, seq, t_ms = self.book, leaf["seq"], leaf["timeMs"]
        actor, names, mode = leaf["actor"], leaf["resources"], leaf["mode"]
        demand(leaf["ticketId"] == f"T{seq}", "I9", f"ticket id of entry {seq}")
        demand(leaf["pollByMs"] == t_ms + book.rules["pollMs"], "I8", f"pollByMs of entry {seq}")
        demand(leaf["giveUpByMs"] == t_ms + leaf["giveUpMs"], "I8", f"giveUpByMs of entry {seq}")
        demand(not book.is_disputed, "I9", f"entry {seq} queues on a disputed ledger")
        demand(all(allowed(book.scheme(name)["class"], mode) for name in names), "I1", f"entry {seq}: mode {mode}")
        demand(not self.same_key(actor, names), "I16", f"entry {seq} waits twice for one name")
        demand(not self.is_full(leaf, names), "I16", f"entry {seq}: the queue is full")
        is_held = self.held(leaf["principal"]) + len(names) > book.rules["heldPerPrincipal"]
        demand(not is_held, "I16", f"entry {seq}: too many names held")
        way = book.leases_in_the_way(actor, names, mode)
        is_stopped = way or book.delays_in_the_way(actor, names, mode)
        is_behind = book.tickets_in_the_way(actor, names, mode, None)
        demand(is_stopped or is_behind, "I9", f"entry {seq} queues for what is free")
        demand(self.own(actor, names, mode) is None, "I9", f"entry {seq} queues for what the actor holds")
        ticket = Ticket(
            leaf["ticketId"], seq, actor, leaf["onBehalfOf"], names, mode, leaf["ttlMs"], t_ms,
            leaf["pollByMs"], leaf["giveUpByMs"], principal=leaf["principal"],
        )  # fmt: skip
        position = 1 + len(self._before(ticket))
        demand(leaf["position"] == position, "I9", f"entry {seq}: position {leaf['position']}, not {position}")
        book.tickets.append(ticket)
        self._queued_cycle(leaf, ticket)

    def _before(self, ticket: Ticket) -> list[Ticket]:
        """Return others' live tickets of lower numbers that exclude this one."""
        book = self.book
        return [
            one
            for one in book.tickets
            if one.seq < ticket.seq
            and one.actor != ticket.actor
            and book.is_live(one)
            and book.clashes(ticket.names, ticket.mode, one.names, one.mode)
        ]

    def _queued_cycle(self, leaf: Leaf, ticket: Ticket) -> None:
        """A ticket that closes a cycle says so, and only then."""
        newcomer, seq = Wait(ticket.actor, tuple(ticket.names), ticket.mode, ticket), leaf["seq"]
        if "cycle" in leaf:
            fault = fault_of_cycle(self.book, leaf["cycle"], newcomer, is_plain=False)
            demand(fault is None, "I11", f"entry {seq} tells a cycle that is none: {fault}")
        if leaf.get("searchBounded"):
            return
        is_hard = closes(self.book, newcomer, with_plain=False, with_soft=False)
        is_soft = not is_hard and closes(self.book, newcomer, with_plain=False, with_soft=True)
        if is_hard or is_soft:
            self.count("softCycle" if is_soft else "waits in a deadlock")
        is_patient = leaf["body"].get("onDeadlock", "refuse") == "wait"
        demand(not is_hard or is_patient, "I11", f"entry {seq} queues into a deadlock")
        demand(bool(leaf.get("softCycle")) == is_soft, "I11", f"entry {seq}: softCycle is {leaf.get('softCycle')}")
        demand(("cycle" in leaf) == (is_hard or is_soft), "I11", f"entry {seq}: it tells a cycle or not")

    # -- polling and leaving ------------------------------------------------------------------------------------------

    def _of(self, leaf: Leaf) -> Ticket:
        """Return the live ticket that an entry speaks of."""
        ticket = self.ticket(leaf["ticketId"])
        is_so = ticket is not None and ticket.seq == leaf["ticketSeq"]
        demand(is_so, "I9", f"entry {leaf['seq']} speaks of {leaf['ticketId']}, which waits no more")
        assert ticket is not None
        return ticket

    def on_wait_polled(self, leaf: Leaf) -> None:
        ticket, seq = self._of(leaf), leaf["seq"]
        demand(ticket.actor == leaf["actor"], "I9", f"entry {seq} polls another's ticket")
        demand(self.book.is_live(ticket), "I8", f"entry {seq} polls a ticket past its deadline")
        is_free = not self._held_against(ticket)
        demand(not (ticket.is_offered and is_free), "I8", f"entry {seq} polls what is offered")
        ticket.poll_by_ms = leaf["timeMs"] + self.book.rules["pollMs"]
        demand(leaf["pollByMs"] == ticket.poll_by_ms, "I8", f"pollByMs of entry {seq}")
        position = 1 + len(self._before(ticket))
        demand(leaf["position"] == position, "I9", f"entry {seq}: position {leaf['position']}, not {position}")

    def _held_against(self, ticket: Ticket) -> bool:
        """Say whether a lease or a delay is in the way of a ticket: its actor may have handed a lease on it away."""
        leases = self.book.leases_in_the_way(ticket.actor, ticket.names, ticket.mode)
        return bool(leases or self.book.delays_in_the_way(ticket.actor, ticket.names, ticket.mode))

    def on_claim_refused(self, leaf: Leaf) -> None:
        ticket = self.ticket(leaf["ticketId"])
        self.refused(leaf, ticket.names if ticket else [], ticket.mode if ticket else "")

    def on_cancel_refused(self, leaf: Leaf) -> None:
        self.refused(leaf, [], "")

    def on_wait_cancelled(self, leaf: Leaf) -> None:
        ticket = self._of(leaf)
        demand(ticket.actor == leaf["actor"], "I9", f"entry {leaf['seq']} cancels another's ticket")
        self.end_ticket(ticket, leaf)

    def end_ticket(self, ticket: Ticket, leaf: Leaf) -> None:
        self.book.tickets.remove(ticket)
        self.book.ended_tickets[ticket.ticket_id] = Ended(ticket.actor, "ended", leaf["seq"], leaf["timeMs"])

    def on_wait_removed(self, leaf: Leaf) -> None:
        book, ticket, seq = self.book, self._of(leaf), leaf["seq"]
        demand(leaf["waiter"] == ticket.actor, "I9", f"entry {seq} names another waiter")
        deadline_ms = book.deadline_ms(ticket)
        if leaf["reason"] == "holder_gone":
            demand(self.is_owed, "once", f"{ticket.ticket_id} is removed although nobody is gone")
            return self.end_ticket(ticket, leaf)
        demand(book.t_ms >= deadline_ms, "I8", f"{ticket.ticket_id} is removed {deadline_ms - book.t_ms} ms early")
        reason = self._reason(ticket)
        demand(leaf["reason"] == reason, "I8", f"{ticket.ticket_id} is removed as {leaf['reason']}, not {reason}")
        self.end_ticket(ticket, leaf)

    def _reason(self, ticket: Ticket) -> str:
        if ticket.is_offered:
            return "given_up" if ticket.give_up_by_ms <= ticket.claim_by_ms else "claim_lapsed"
        return "given_up" if ticket.give_up_by_ms <= ticket.poll_by_ms else "poll_lapsed"

    # -- being served -------------------------------------------------------------------------------------------------

    def on_wait_offered(self, leaf: Leaf) -> None:
        book, ticket, seq = self.book, self._of(leaf), leaf["seq"]
        demand(leaf["waiter"] == ticket.actor, "I9", f"entry {seq} names another waiter")
        demand(not ticket.is_offered and book.is_live(ticket), "I8", f"entry {seq} offers to {ticket.ticket_id} again")
        leases = book.leases_in_the_way(ticket.actor, ticket.names, ticket.mode)
        demand(not leases, "I1", f"entry {seq} offers what {[one.lease_id for one in leases]} covers")
        delays = book.delays_in_the_way(ticket.actor, ticket.names, ticket.mode)
        demand(not delays, "delay", f"entry {seq} offers within a lock-delay")
        tickets = self._blocking(ticket, doubt=True, looked=self.looked)
        if tickets and self.delays_gone > 1:  # each that ends is one look at everybody
            tickets = self._blocking(ticket, doubt=True)
        demand(not tickets, "I9", f"entry {seq} offers past {[one.ticket_id for one in tickets]}")
        demand(not offer_closes(book, ticket, doubt=False), "I11", f"entry {seq} offers what closes a cycle")
        claim_by_ms = max(book.t_ms + book.rules["claimMs"], ticket.poll_by_ms)
        demand(leaf["claimByMs"] == claim_by_ms, "I8", f"claimByMs of entry {seq} is not {claim_by_ms}")
        ticket.is_offered, ticket.claim_by_ms = True, claim_by_ms
        self.passed(ticket.actor, ticket.names, ticket.mode, ticket.seq)

    def _blocking(self, ticket: Ticket, *, doubt: bool, looked: dict[str, bool] | None = None) -> list[Ticket]:
        """Return the tickets in the way of a ticket; of one that may be passed over or not, `doubt` says that it is.

        `looked` says of those that were looked at before in this pass whether they were passed over then.
        """
        looked = {} if looked is None else looked
        for one in self.book.tickets:
            if one.seq < ticket.seq and one.ticket_id not in looked:
                looked[one.ticket_id] = self._is_passed_over(one, doubt=doubt)
        passed = tuple(ticket_id for ticket_id, is_passed in looked.items() if is_passed)
        return self.book.tickets_in_the_way(ticket.actor, ticket.names, ticket.mode, ticket.seq, passed)

    def _is_passed_over(self, ticket: Ticket, *, doubt: bool) -> bool:
        """Say whether nothing but a cycle that it would close keeps a ticket from being offered."""
        book, names, mode = self.book, ticket.names, ticket.mode
        return (
            not ticket.is_offered
            and offer_closes(book, ticket, doubt=doubt)
            and not book.leases_in_the_way(ticket.actor, names, mode)
            and not book.delays_in_the_way(ticket.actor, names, mode)
            and not self._blocking(ticket, doubt=doubt)
        )

    def passed(self, actor: str, names: list[str], mode: str, number: int) -> None:
        """Count for earlier tickets of several names that somebody goes before them."""
        book = self.book
        for one in book.tickets:
            if one.is_offered or len(one.names) == 1 or one.actor == actor or one.seq > number:
                continue
            if book.clashes(names, mode, one.names, one.mode):
                one.passes += 1

    def on_wait_reserved(self, leaf: Leaf) -> None:
        book, ticket, seq = self.book, self._of(leaf), leaf["seq"]
        demand(leaf["waiter"] == ticket.actor, "I9", f"entry {seq} names another waiter")
        demand(len(ticket.names) > 1 and not ticket.was_reserved, "I9", f"entry {seq} reserves for {ticket.ticket_id}")
        is_passed = ticket.passes >= book.rules["passesMax"]
        is_first = not self._before(ticket) and book.t_ms >= ticket.queued_ms + book.rules["reserveAfterMs"]
        demand(is_passed or is_first, "I9", f"entry {seq} reserves too early, after {ticket.passes} passes")
        until_ms = book.t_ms + 3 * book.rules["claimMs"]
        demand(leaf["untilMs"] == until_ms, "I9", f"entry {seq} reserves until another time than {until_ms}")
        ticket.was_reserved, ticket.reserve_until_ms = True, until_ms
        if not is_passed:  # it is time that began it, and another look at everybody
            self.looked.clear()

    def on_wait_resumed(self, leaf: Leaf) -> None:
        book, ticket, seq = self.book, self._of(leaf), leaf["seq"]
        demand(leaf["waiter"] == ticket.actor, "I9", f"entry {seq} names another waiter")
        demand(book.is_resuming(ticket), "I9", f"entry {seq} ends a reservation of {ticket.ticket_id} that is not over")
        ticket.reserve_until_ms = None

    def claimed(self, leaf: Leaf) -> Ticket:
        """Check a claim against its ticket, and end the ticket."""
        book, ticket, seq = self.book, self._of(leaf), leaf["seq"]
        demand(ticket.actor == leaf["actor"], "I8", f"entry {seq} claims another's ticket")
        demand(ticket.is_offered, "I8", f"entry {seq} claims {ticket.ticket_id}, which is not offered")
        demand(book.is_live(ticket), "I8", f"entry {seq} claims {ticket.ticket_id} after its window")
        facts = (leaf["resources"], leaf["mode"], leaf["ttlMs"])
        demand(facts == (ticket.names, ticket.mode, ticket.ttl_ms), "I8", f"entry {seq} grants what was not asked")
        self.end_ticket(ticket, leaf)
        return ticket

    # -- between batches ----------------------------------------------------------------------------------------------

    def nobody_forgotten(self) -> None:
        """Nothing is past its time, and nobody in line could be offered what it waits for."""
        book = self.book
        for ticket in book.tickets:
            demand(book.is_live(ticket), "I14", f"{ticket.ticket_id} is past its deadline")
            demand(not book.is_resuming(ticket), "I14", f"{ticket.ticket_id} keeps a reservation past its end")
            if ticket.is_offered:
                continue
            demand(self.is_stopped(ticket), "I14", f"{ticket.ticket_id} waits for what is free")
            if self._is_passed_over(ticket, doubt=False):
                self.count("passed over")

    def is_stopped(self, ticket: Ticket) -> bool:
        """Say whether anything keeps a ticket from being offered."""
        book = self.book
        return bool(
            book.leases_in_the_way(ticket.actor, ticket.names, ticket.mode)
            or book.delays_in_the_way(ticket.actor, ticket.names, ticket.mode)
            or self._blocking(ticket, doubt=False)
            or offer_closes(book, ticket, doubt=True)
        )
