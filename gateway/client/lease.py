"""A lease that is held: heartbeats while the work runs, and one clear answer to "may I still rely on it?".

House rules of this file:

* `is_trusted` reads the steady clock each time it is asked. It needs no task to run, so a blocked event loop, a
  suspended machine or a cut network can't leave it saying yes.
* Lost is for ever. Once trust has ended, no later renewal brings it back; the work must acquire again and gets a new
  token. `lost` is set before anybody can see `is_trusted` turn False through this object.
* Lost is loud. Leaving `async with` raises LeaseLost when the body did not end by an exception of its own.
* One key holds a resource once on one machine: from before the first request until after the release this lease has
  the locks of claim.py. A lease that was lost keeps them until its work has ended.
* A lease that goes over to another mode (`change`) gets an id and a token of its own. Heartbeats, changes and the
  release take turns, so none of them speaks of a lease that has just been replaced; a change that is cancelled is
  finished all the same, for nobody could say otherwise which of the two leases is held.
* A lease of a session ends with the session, and is told so (session.py); its agent says until when it is trusted.
* A lease past its longest time (`hold_exceeded`) is still ours until its end: the work may finish, and is told.
* A release is retried until the gateway confirms it or trust has ended; an unconfirmed one costs only the rest of the
  ttl, so it is logged and not raised.

A busy event loop: heartbeats are a task of the same loop. Work that blocks it for longer than two thirds of the ttl
loses the lease, which is noticed the moment the work looks. Put blocking work into a thread, or take a longer ttl.
Source: docs/protocol.md 20; scenarios 20, L8, L10, L17, L19, L22, L24, L25, L33, L48, L52.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from gateway.client.admission import Admission
from gateway.client.approval import SignedApproval
from gateway.client.claim import claim_until
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    FenceStale,
    HoldExceeded,
    LeaseEnded,
    LeaseLost,
    Refused,
    RequestRejected,
    SessionEnded,
    Unreachable,
)
from gateway.client.line import OnWait, Wish
from gateway.client.trust import HELD_TTL_MS_MIN, Grant, beat_period_ms
from verifier.wire import Malformed

if TYPE_CHECKING:  # agent.py makes these
    from gateway.client.agent import Agent

# Called once, synchronously, with the reason, in the moment the loss is noticed.
OnLost = Callable[[str], None]
OnGrant = Callable[[Grant], None]  # called with the first grant and with every renewal
# The longest nap of the heartbeats: timers stand still while a machine is suspended, so the end is looked for often.
NAP_MS = 1_000
PROOF_MS = 2_000
RELEASE_MS = 10_000  # how long a release is retried at the end; the lease runs out by itself anyway

_log = logging.getLogger("tallystick.client")


class HeldLease:
    """Made by Agent.lease; use it with `async with`. `reason` says why it was lost, `beats` counts renewals."""

    def __init__(
        self,
        agent: Agent,
        wish: Wish,
        *,
        wait_ms: int,
        on_lost: OnLost | None = None,
        on_grant: OnGrant | None = None,
        on_wait: OnWait | None = None,
    ) -> None:
        if wish.ttl_ms < HELD_TTL_MS_MIN:
            raise ValueError(f"a held lease needs ttl_ms of at least {HELD_TTL_MS_MIN}: a second of it is margin")
        self._agent = agent
        self._wish = wish
        self._ttl_ms = wish.ttl_ms
        self._wait_ms = wait_ms
        self._on_lost = on_lost
        self._on_grant = on_grant
        self._on_wait = on_wait
        self._grant: Grant | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()
        self._locks = ExitStack()
        self._turn = asyncio.Lock()  # of renewals, changes and the release
        self._is_released = False
        # Why trust will have ended if nothing better comes in time: only a blocked loop leaves this word standing.
        self._doubt = "blocked"
        self.lost = asyncio.Event()
        self.reason = ""
        self.beats = 0
        self._refused: Refused | None = None

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def grant(self) -> Grant:
        """The newest verified grant or renewal; only inside `async with`."""
        assert self._grant is not None, "use the lease inside `async with`"
        return self._grant

    @property
    def lease_id(self) -> str:
        return self.grant.lease_id

    @property
    def fencing_token(self) -> int:
        """The number that goes with every write; it stays the same as long as the lease is held in one mode."""
        return self.grant.fencing_token

    @property
    def mode(self) -> str:
        return self.grant.mode

    @property
    def resources(self) -> tuple[str, ...]:
        return self.grant.resources

    @property
    def receipt(self) -> bytes:
        """The newest receipt: what a FenceGuard wants to see."""
        return self.grant.receipt.data

    def answer(self, challenge: str, resource: str) -> bytes:
        """Return the answer to a FenceGuard's challenge, for one write to `resource`; LeaseLost after trust ended."""
        self.check()
        from gateway.client.fence import answer_challenge  # with a database, which few need

        return answer_challenge(self._agent.profile.key, challenge, resource, self.receipt)

    # -- whether it still holds ----------------------------------------------------------------------------------------

    @property
    def is_trusted(self) -> bool:
        """Whether work that relies on this lease may go on right now."""
        return self.trust_ends_in_ms > 0

    @property
    def trust_ends_in_ms(self) -> int:
        """Milliseconds of trust left if no renewal comes through any more; 0 once the lease is lost or released."""
        if self.lost.is_set() or self._is_released or self._grant is None:
            return 0
        left_ms = self._agent.trust_ends_ms(self._grant) - self._agent.clock.steady_ms()
        if left_ms <= 0:
            self._lose(self._agent.doubt or self._doubt)
        return max(left_ms, 0)

    def check(self) -> int:
        """Return the fencing token, or raise LeaseLost: call it right before each effect."""
        if not self.is_trusted:
            raise LeaseLost(self.lease_id, self.reason or "released", self._refused)
        return self.fencing_token

    async def admit(
        self,
        operation: str,
        resources: str | Sequence[str] | None = None,
        *,
        mode: str | None = None,
        arguments: bytes | None = None,
        arguments_digest: str | None = None,
        cost: int = 0,
        approvals: Sequence[SignedApproval] = (),
    ) -> Admission:
        """Ask whether one act may be done now under this lease, on all of it and in its mode unless said.

        LeaseLost after trust ended, AdmissionDenied (agent.admit) when it may not; then a FenceStale ends the trust
        here as well.
        """
        self.check()
        names = self.resources if resources is None else resources
        try:
            return await self._agent.admit(
                operation, names, mode=mode or self.mode, arguments=arguments, arguments_digest=arguments_digest,
                cost=cost, lease=self.grant, approvals=approvals,
            )  # fmt: skip
        except FenceStale as denied:
            self._lose(denied.error, denied)
            raise

    def _lose(self, reason: str, refused: Refused | None = None) -> None:
        if self.lost.is_set():
            return
        self.reason, self._refused = reason, refused
        self.lost.set()
        is_told = self._on_lost is not None
        _log.log(logging.INFO if is_told else logging.WARNING, "lease %s is lost: %s", self.lease_id, reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> HeldLease:
        agent = self._agent
        deadline_ms = agent.clock.steady_ms() + self._wait_ms
        locks = await claim_until(
            agent.profile,
            self._wish.resources,
            deadline_ms,
            clock=agent.clock,
            jitter=agent.caller.jitter,
            on_wait=self._on_wait,
        )
        with locks:  # until it is ours
            grant = await self._acquire(max(0, deadline_ms - agent.clock.steady_ms()))
            self._take(grant)
            await self._group.__aenter__()
            self._heartbeats = self._group.create_task(self._beat(), name=f"heartbeats of {grant.lease_id}")
            self._locks = locks.pop_all()
        return self

    async def _acquire(self, wait_ms: int) -> Grant:
        wish = self._wish
        grant = await self._agent.wait_for(
            wish.resources,
            mode=wish.mode,
            ttl_ms=wish.ttl_ms,
            wait_ms=wait_ms,
            on_deadlock=wish.on_deadlock,
            on_wait=self._on_wait,
        )
        if self._agent.trust_ends_ms(grant) > self._agent.clock.steady_ms():
            return grant
        # The answer took longer than the trust it gives: renew before anything is done under it.
        return await self._agent.renew(grant.lease_id, ttl_ms=self._ttl_ms)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._heartbeats is not None, "entered"
        if not self.is_trusted and not self._is_released:
            self._lose(self._agent.doubt or self._doubt)
        self._heartbeats.cancel()
        try:
            await self.release()
        finally:
            # Without the body's exception: the group would wrap it, and it goes on by itself.
            with self._locks:
                await self._group.__aexit__(None, None, None)
        if self.lost.is_set() and error is None:
            raise LeaseLost(self.lease_id, self.reason, self._refused)

    async def release(self) -> None:
        """Give the lease back before the end of `async with`; calling it again does nothing.

        Until the gateway has confirmed, the lease counts as held here (a cancelled release can be called again).
        """
        if self._is_released:
            return
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        async with self._turn:
            until_ms = self._agent.clock.steady_ms() + RELEASE_MS
            try:
                await self._agent.release(self.resources, self.lease_id, until_ms=until_ms)
            except Refused as refused:
                self._lose(refused.error, refused)  # it was not ours any more, whatever we believed
            except SessionEnded as ended:
                self._lose(ended.code)  # given back already
            except (Unreachable, RequestRejected) as error:
                _log.warning("lease %s was not released, it runs out by itself: %s", self.lease_id, error)
            self._is_released = True
            self._locks.close()

    async def change(self, mode: str) -> Grant:
        """Go over to another mode: a stronger one (others must be gone) or a weaker one (lets others in).

        From its return on this lease has another id and another token; receipts from before open no guard once another
        has written. LeaseHeld, Deadlock, LockDelayed or Queued: it stays as it was. LeaseLost when trust has ended,
        also while the change was under way.
        """
        self.check()
        outcome = await asyncio.shield(self._group.create_task(self._change(mode)))
        if not isinstance(outcome, Grant):
            raise outcome
        self.check()
        return outcome

    async def _change(self, mode: str) -> Grant | ClientError | Malformed:
        """Return the lease in its new mode, or why there is none: a task of the group must not fail."""
        async with self._turn:
            held = self.grant
            try:
                grant = await self._agent.renew(
                    held.lease_id, mode=mode, ttl_ms=self._ttl_ms, until_ms=self._agent.trust_ends_ms(held)
                )
                if (grant.resources, grant.mode) != (held.resources, mode):
                    raise AnswerRefused(f"entry {grant.receipt.seq} is another lease than the one that was to change")
            except (LeaseEnded, AnswerRefused) as error:
                refused = error if isinstance(error, LeaseEnded) else None
                self._lose(refused.error if refused else type(error).__name__, refused)
                return error
            except (ClientError, Malformed) as error:
                return error
            if self.is_trusted:
                self._take(grant)
            else:
                self._grant = grant  # too late to be relied on, in time to be given back
            return grant

    async def _beat(self) -> None:
        """Renew at a third of the ttl until trust ends; an error in one beat never ends the beating."""
        clock = self._agent.clock
        while self.is_trusted:
            due_ms = self._agent.renewal_due_ms(self.grant)
            if due_ms > clock.steady_ms():
                await clock.sleep(min(due_ms - clock.steady_ms(), self.trust_ends_in_ms, NAP_MS))
            elif await self._renew() and self._agent.is_proof_due:
                await self._prove_history()

    async def _renew(self) -> bool:
        """Renew once, retrying until trust ends; return whether the lease is still trusted."""
        async with self._turn:
            rest_ms = await self._renew_in_turn()
        await self._nap(rest_ms)
        return self.is_trusted

    async def _renew_in_turn(self) -> int:
        """Return how long to rest before the next beat may be tried."""
        until_ms = self._agent.trust_ends_ms(self.grant)
        self._doubt = "unreachable"
        try:
            grant = await self._agent.renew(self.lease_id, ttl_ms=self._ttl_ms, until_ms=until_ms)
            self._check_same(grant)
        except HoldExceeded as refused:
            self._doubt = refused.error
            return beat_period_ms(self.grant.ttl_ms)  # whoever waits may leave
        except Refused as refused:
            self._lose(refused.error, refused)
        except Unreachable as error:
            self._doubt = error.reason
            return self.trust_ends_in_ms
        except SessionEnded as ended:
            self._lose(ended.code)  # everything it held was given back
        except ClientError as error:
            # Unproven answers, a split view, a key that was removed: nothing that one more try would mend.
            _log.error("lease %s can't be renewed: %s", self.lease_id, error)
            self._lose(type(error).__name__)
        else:
            self._extend(grant)
        return 0

    async def _nap(self, duration_ms: int) -> None:
        """Rest for a while, in short naps, and no longer than trust lasts."""
        clock = self._agent.clock
        end_ms = clock.steady_ms() + duration_ms
        while self.is_trusted and clock.steady_ms() < end_ms:
            await clock.sleep(min(self.trust_ends_in_ms, end_ms - clock.steady_ms(), NAP_MS))

    def _check_same(self, renewed: Grant) -> None:
        """A renewal moves the end and nothing else: token, resources and mode stay (docs/protocol.md 8.2)."""
        held = self.grant
        same = (held.fencing_token, held.resources, held.mode)
        if (renewed.fencing_token, renewed.resources, renewed.mode) != same:
            raise AnswerRefused(f"entry {renewed.receipt.seq} renews {self.lease_id} with other resources or token")

    async def _prove_history(self) -> None:
        """Check now and then that the ledger this lease stands in has only grown; never at the cost of a heartbeat."""
        until_ms = self._agent.clock.steady_ms() + min(PROOF_MS, self.trust_ends_in_ms // 4)
        try:
            await self._agent.prove_history(until_ms=until_ms)
        except (Unreachable, RequestRejected) as error:
            _log.info("history could not be proven just now: %s", error)
        except ClientError as error:
            _log.error("lease %s stands in a ledger that can't be trusted: %s", self.lease_id, error)
            self._lose(type(error).__name__)

    def _extend(self, grant: Grant) -> None:
        """Take a renewal that came before trust ended; one that came later brings nothing back."""
        if self.is_trusted:
            self.beats += 1
            self._take(grant)

    def _take(self, grant: Grant) -> None:
        self._grant = grant
        self._doubt = "blocked"
        if self._on_grant is not None:
            self._on_grant(grant)
