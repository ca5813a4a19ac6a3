"""Standing in line: a ticket, claimed by long polls until it is served, and given up when its holder leaves.

House rules of this file:

* Whoever leaves gives the ticket up: at the end of the budget, on an error, when cancelled. A ticket that nobody claims
  any more costs others its claim window. One whose cancel can't be sent ends by itself when its `pollByMs` is over.
* Who is cancelled in the middle of an acquire waits a moment for its answer, and gives back what it brought.
* A claim whose answer never came may have been granted. Then the ticket can't be cancelled, the refusal says by which
  entry it ended, and if that entry is a grant to this key, the lease is given back.
* A lease that was claimed is of the resources and the mode that were queued for; a claim names neither, so this is
  checked here against the receipt of the queueing.
* Trust in such a lease counts from the first attempt of the claim that was granted (trust.py): a long poll uses some of
  it up, and the heartbeats renew so much the sooner.

Source: docs/protocol.md 20; scenarios 2, 32, 33, 35, 39, L32.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gateway.client.errors import (
    AlreadyWaiting,
    AnswerRefused,
    ClientError,
    QueueFull,
    Refused,
    TicketEnded,
    Waits,
    cycle_in,
)
from gateway.client.receipts import VerifiedReceipt
from gateway.client.trust import Grant
from gateway.client.waiting import LOOK_MS, pause_before_look_ms
from verifier.entries import full_type

if TYPE_CHECKING:  # agent.py uses this file
    from gateway.client.agent import Agent
    from gateway.client.caller import Decided

HOLD_MS = 20_000  # the longest a gateway keeps a claim waiting for its answer
LEAVE_MS = 2_000  # how long giving up a ticket is tried; it lapses anyway
GIVE_UP_MS_MIN, GIVE_UP_MS_MAX = 1_000, 3_600_000

OnWait = Callable[[str], None]  # hears in a sentence what is waited for
_GRANTED, _CLAIMED, _QUEUED = map(full_type, ("lease.granted", "lease.claimed", "wait.queued"))
_log = logging.getLogger("tallystick.client")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A place in line, as the newest verified entry about it (wait.queued, wait.polled) says.

    `resources` and `mode` are those that were queued for; () and "" for a ticket known by its id only.
    """

    ticket_id: str
    receipt: VerifiedReceipt
    resources: tuple[str, ...] = ()
    mode: str = ""

    @property
    def position(self) -> int:
        """How many have to go before, and itself: 1 is the head of the line."""
        return self.receipt.leaf.number("position")

    @property
    def poll_by_ms(self) -> int:
        """Until when, in the gateway's time, it must be claimed again to be kept."""
        return self.receipt.leaf.number("pollByMs")

    @property
    def cycle(self) -> tuple[Waits, ...]:
        """The deadlock that was waited into knowingly (`on_deadlock="wait"`), or a possible one; else empty."""
        return cycle_in(self.receipt.leaf.value)


@dataclass(frozen=True, slots=True)
class Wish:
    """What to queue for."""

    resources: tuple[str, ...]
    mode: str
    ttl_ms: int
    on_deadlock: str = "refuse"


def queued(receipt: VerifiedReceipt) -> Ticket:
    """Return the ticket of a verified wait.queued."""
    return Ticket(receipt.leaf.text("ticketId"), receipt, receipt.resources, receipt.leaf.text("mode"))


def answer_to_claim(ticket: Ticket | str, receipt: VerifiedReceipt, sent_ms: int) -> Grant | Ticket:
    """Return what a claim brought: the lease, or the ticket as it stands; AnswerRefused for another lease."""
    if receipt.type != _CLAIMED:
        return replace(ticket, receipt=receipt) if isinstance(ticket, Ticket) else Ticket(ticket, receipt)
    grant = Grant(receipt, sent_ms)
    asked = ticket.resources if isinstance(ticket, Ticket) else ()
    if isinstance(ticket, Ticket) and asked and (asked, ticket.mode) != (grant.resources, grant.mode):
        raise AnswerRefused(f"entry {receipt.seq} grants another lease than {ticket.ticket_id} was queued for")
    return grant


def waiting_words(ticket: Ticket) -> str:
    """Return what is told of a place in line."""
    return f"waiting in line with ticket {ticket.ticket_id}, number {ticket.position}"


def give_up_ms(budget_ms: int) -> int:
    """Return how long to ask a ticket to be kept, for a budget of any length."""
    return min(max(budget_ms, GIVE_UP_MS_MIN), GIVE_UP_MS_MAX)


async def wait_in_line(agent: Agent, wish: Wish, deadline_ms: int, on_wait: OnWait | None = None) -> Grant | None:
    """Return the lease, or None when the budget ended first (`deadline_ms`, steady clock) and the place was given up.

    `on_wait` hears, once, which ticket was taken. Queues anew when the place was lost, when there was no room, or when
    an earlier place of this key is still kept, as long as the budget lasts. Deadlock at once: it is the one case that
    no patience mends.
    """
    clock = agent.clock
    while True:
        began_ms = clock.steady_ms()
        try:
            answer = await agent.acquire(
                wish.resources,
                mode=wish.mode,
                ttl_ms=wish.ttl_ms,
                wait=True,
                give_up_ms=give_up_ms(deadline_ms - began_ms),
                on_deadlock=wish.on_deadlock,
            )
            if isinstance(answer, Grant):
                return answer
            if on_wait is not None:
                on_wait(waiting_words(answer))
                on_wait = None
            return await claim_until(agent, answer, deadline_ms)
        except (TicketEnded, QueueFull, AlreadyWaiting) as refused:
            left_ms = deadline_ms - clock.steady_ms()
            if left_ms <= 0:
                raise
            _log.info("queueing anew: %s", refused)
            await clock.sleep(min(_pause_ms(agent, refused, clock.steady_ms() - began_ms), left_ms))


def _pause_ms(agent: Agent, refused: Refused, took_ms: int) -> int:
    """A full queue names the time; a place that was kept a while may be asked for again at once."""
    if isinstance(refused, QueueFull):
        return max(refused.retry_after_ms, 1)
    is_lost_place = isinstance(refused, TicketEnded) and took_ms >= LOOK_MS
    return 0 if is_lost_place else 4 * pause_before_look_ms(agent.caller.jitter)


async def claim_until(agent: Agent, ticket: Ticket, deadline_ms: int) -> Grant | None:
    """Claim until served; None when the budget ended first. However this ends, no ticket of ours is left in line."""
    try:
        answer = await poll_until(agent, ticket, deadline_ms)
    except TicketEnded:
        raise
    except BaseException:
        await leave(agent, ticket.ticket_id)
        raise
    if isinstance(answer, Grant):
        return answer
    await leave(agent, ticket.ticket_id)
    return None


async def poll_until(agent: Agent, ticket: Ticket | str, deadline_ms: int) -> Grant | Ticket:
    """Claim at least once, and again until served or `deadline_ms`; the ticket is kept."""
    clock = agent.clock
    while True:
        began_ms = clock.steady_ms()
        answer = await agent.claim(ticket, hold_ms=max(0, min(HOLD_MS, deadline_ms - began_ms)))
        if isinstance(answer, Grant):
            return answer
        ticket = answer
        if clock.steady_ms() - began_ms < LOOK_MS:  # it was not kept waiting: don't ask without a breath
            await clock.sleep(min(pause_before_look_ms(agent.caller.jitter), deadline_ms - clock.steady_ms()))
        if clock.steady_ms() >= deadline_ms:
            return ticket


async def leave(agent: Agent, ticket_id: str) -> None:
    """Give up a place in line, or the lease that it brought unnoticed; best effort, for both end by themselves."""
    until_ms = agent.clock.steady_ms() + LEAVE_MS
    try:
        await agent.cancel(ticket_id, until_ms=until_ms)
    except TicketEnded as ended:
        await _give_back(agent, ended, until_ms)
    except ClientError as error:
        _log.warning("ticket %s was not cancelled, it lapses by itself: %s", ticket_id, error)


async def undo(agent: Agent, asking: asyncio.Future[Decided]) -> None:
    """Give back what an acquire brings that nobody waits for any more: a new lease, or a place in line; best effort."""
    patience = asyncio.ensure_future(agent.clock.sleep(LEAVE_MS))
    try:
        either: set[asyncio.Future[Any]] = {asking, patience}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not asking.done() or asking.cancelled() or asking.exception() is not None:
            return
        receipt = asking.result().receipt
        if receipt.type == _QUEUED:
            await leave(agent, receipt.leaf.text("ticketId"))
        elif receipt.type == _GRANTED:  # an extended one was held before
            until_ms = agent.clock.steady_ms() + LEAVE_MS
            await agent.release(receipt.resources, receipt.leaf.text("leaseId"), until_ms=until_ms)
    except ClientError as error:
        _log.warning("a lease acquired unnoticed runs out by itself: %s", error)
    finally:
        asking.cancel()
        patience.cancel()


async def _give_back(agent: Agent, ended: TicketEnded, until_ms: int) -> None:
    if ended.ended_seq is None:
        return
    try:
        claimed = await agent.receipt(ended.ended_seq)
        if claimed.type == _CLAIMED and claimed.leaf.actor == agent.did:
            await agent.release(claimed.resources, claimed.leaf.text("leaseId"), until_ms=until_ms)
    except ClientError as error:
        _log.warning("a lease claimed unnoticed (entry %d) runs out by itself: %s", ended.ended_seq, error)
