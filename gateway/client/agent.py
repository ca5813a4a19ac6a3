"""The agent's side of the protocol, in verbs.

    async with Agent.open() as agent:
        async with agent.lease("repo:app/src/a.py", wait_ms=60_000) as lease:
            ...                                  # heartbeats run; lease.is_trusted, lease.lost
            write(lease.fencing_token, lease.receipt)

Facts come from verified receipts (receipts.py). The views (`wait_view`, `leases`, `trust` and the lists of office.py)
are pictures: nobody signs them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload
from urllib.parse import quote

from gateway.actions import ACTIONS
from gateway.client.admitting import MODE_DEFAULT, Admitting
from gateway.client.batch import Outcome
from gateway.client.caller import RETRY_MS, Caller, Decided, OnSilence
from gateway.client.clock import Clock, SystemClock
from gateway.client.delegation import TTL_MS_DEFAULT as SESSION_MS_DEFAULT
from gateway.client.delegation import Scope, SignedDelegation, delegate
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    InTheWay,
    LedgerBehind,
    ProfileError,
    RequestRejected,
    SplitView,
    Unreachable,
    refusal_of,
)
from gateway.client.exchange import Connect, Transport, pooled
from gateway.client.history import is_extension
from gateway.client.holdings import Tokened
from gateway.client.lease import HeldLease, OnGrant, OnLost
from gateway.client.line import OnWait, Ticket, Wish, answer_to_claim, queued, undo, wait_in_line
from gateway.client.office import rows_in
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.score import TrustChange, changes
from gateway.client.seen import open_checkpoint
from gateway.client.trust import Grant, beat_period_ms
from gateway.client.waiting import LOOK_MS, Jitter, pause_after_refusal_ms, pause_before_look_ms
from keys.signing import SigningKey
from keys.token import digest_of
from verifier.checkpoint import Checkpoint
from verifier.delegation import enrolment_bytes
from verifier.entries import full_type, may_wait
from verifier.note import encode_note
from verifier.wire import JsonObject, JsonValue, Malformed, encode_base64, encode_canonical

if TYPE_CHECKING:  # session.py is built on this file
    from gateway.client.session import Session

# Long enough that heartbeats are rare, short enough that a crashed holder blocks nobody for long. Renewed at a third.
TTL_MS_DEFAULT = 300_000
START_CHECK_MS = 5_000  # a gateway that is away must not hold up the start; the first call will say so
END_CHECK_MS = 2_000
PROOF_PERIOD_MS = 60_000
WAIT_PATH = ACTIONS["coordination.wait"].path
LEASES_PATH = ACTIONS["lease.list"].path
RECEIPT_PATH = ACTIONS["receipt.get"].path
_QUEUED, _ADDED = full_type("wait.queued"), full_type("agent.added")
_log = logging.getLogger("tallystick.client")


class Agent(Admitting):
    """One key at one gateway; an async context manager. Any number of tasks of its event loop may use it."""

    def __init__(
        self,
        profile: Profile,
        *,
        clock: Clock | None = None,
        jitter: Jitter = random.random,
        connect: Connect = pooled,
        on_silence: OnSilence | None = None,
    ) -> None:
        self._profile = profile
        self.clock: Clock = SystemClock() if clock is None else clock
        self._jitter = jitter
        self._connect = connect
        self._on_silence = on_silence
        self._transport: Transport | None = None
        self._caller: Caller | None = None
        self._proven_ms = 0

    @classmethod
    def open(
        cls,
        profile: Profile | Path | str | None = None,
        *,
        on_silence: OnSilence | None = None,
        connect: Connect = pooled,
    ) -> Agent:
        """Return the agent of a profile: a folder, an opened profile, or the default one. Use it with `async with`.

        The folder of a session gives that session, to go on with. `on_silence` is called once, with the milliseconds
        still to be tried, when the gateway does not answer. `connect` is the way there.
        """
        from gateway.client.session import Session, is_session  # it is built on this file

        if not isinstance(profile, Profile):
            profile = open_profile(None if profile is None else Path(profile))
        return (
            Session.resume(profile, on_silence=on_silence, connect=connect)
            if is_session(profile)
            else cls(profile, on_silence=on_silence, connect=connect)
        )

    @property
    def profile(self) -> Profile:
        """The profile, with the newest key document that was needed so far."""
        return self._profile if self._caller is None else self._caller.profile

    @property
    def did(self) -> str:
        return self._profile.key.did

    @property
    def principal(self) -> str:
        """Whom trust and limits are counted for: the key itself, unless it is a session's."""
        return self.did

    def trust_ends_ms(self, grant: Grant) -> int:
        """Return the steady-clock instant at which a lease of this key must no longer be relied on."""
        return grant.trust_ends_ms

    def renewal_due_ms(self, grant: Grant) -> int:
        """Return the steady-clock instant at which a held lease wants its next renewal."""
        return grant.sent_ms + beat_period_ms(min(grant.ttl_ms, grant.idle_ms))

    @property
    def doubt(self) -> str:
        """Why nothing that this key holds can be relied on, beyond what its leases know; "" when nothing is wrong."""
        return ""

    # -- leases --------------------------------------------------------------------------------------------------------

    @overload
    async def acquire(
        self,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait: Literal[False] = False,
        wait_ms: int = 0,
        reason_digest: str | None = None,
    ) -> Grant: ...

    @overload
    async def acquire(
        self,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait: Literal[True],
        give_up_ms: int | None = None,
        on_deadlock: str = "refuse",
        reason_digest: str | None = None,
    ) -> Grant | Ticket: ...

    async def acquire(
        self,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait: bool = False,
        wait_ms: int = 0,
        give_up_ms: int | None = None,
        on_deadlock: str = "refuse",
        reason_digest: str | None = None,
    ) -> Grant | Ticket:
        """Take a lease on one resource, or on all of a set or none.

        With `wait` a place in line is given when it can't be had now: a Ticket, to be claimed before its `poll_by_ms`,
        and kept for `give_up_ms` (an hour by default). Deadlock when waiting would never end, unless `on_deadlock` is
        "wait". Without `wait` LeaseHeld, LockDelayed or Queued say who is in the way; with `wait_ms` only after
        following the ledger's advice for that long, and a last try at the end. `wait_for` does the waiting in line.
        `reason_digest` is that of a `Private` reason, which stays here.

        Nothing renews the lease afterwards: see `lease` for one that is held. Malformed, before anything is sent, for a
        name, mode or ttl out of bounds.
        """
        members: JsonObject = {**_named(resources), **_mode(mode), "ttlMs": ttl_ms, **_digested(reason_digest)}
        if not wait:
            return await self._acquire_as_advised(members, wait_ms)
        members |= {"wait": True, "onDeadlock": on_deadlock}
        if give_up_ms is not None:
            members["giveUpMs"] = give_up_ms
        decided = (await self._ask(members)).in_favour()
        return queued(decided.receipt) if decided.receipt.type == _QUEUED else Grant(decided.receipt, decided.sent_ms)

    async def _acquire_as_advised(self, members: JsonObject, wait_ms: int) -> Grant:
        deadline_ms = self.clock.steady_ms() + wait_ms
        while True:
            try:
                return _grant(await self._ask(members))
            except InTheWay as refused:
                left_ms = deadline_ms - self.clock.steady_ms()
                if left_ms <= 0 or refused.error == "deadlock":
                    raise
                await self._pause(refused, left_ms)

    async def _ask(self, members: JsonObject) -> Decided:
        """Send an acquire; when cancelled meanwhile, what it brought all the same is given back."""
        asking = asyncio.ensure_future(self.caller.decide("lease.acquire", members))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await undo(self, asking)
            raise

    async def _pause(self, refused: InTheWay, left_ms: int) -> None:
        """Wait as advised; while the ledger wants no more tries, look (it writes nothing) for an early release."""
        now_ms = self.clock.steady_ms()
        end_ms = now_ms + min(pause_after_refusal_ms(refused, self._jitter), left_ms)
        while now_ms < end_ms:
            is_looking = not refused.stampede.is_admitted and end_ms - now_ms > 2 * LOOK_MS
            await self.clock.sleep(pause_before_look_ms(self._jitter) if is_looking else end_ms - now_ms)
            if is_looking and await self._looks_free(refused.resource):
                return
            now_ms = self.clock.steady_ms()

    async def _looks_free(self, resource: str) -> bool:
        """Return whether the wait view shows nothing held, closed or in line: a hint to try, never a fact."""
        try:
            rows = rows_in(await self.wait_view(resource), "resources")
        except ClientError:
            return False
        return not any(row.get(what) for row in rows for what in ("leases", "delays", "queue"))

    async def wait_for(
        self,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait_ms: int,
        on_deadlock: str = "refuse",
        on_wait: OnWait | None = None,
    ) -> Grant:
        """Take a lease, standing in line for up to `wait_ms` of this machine's time (0: don't).

        `on_wait` hears, once, with which ticket. Deadlock as soon as it is one. When the time is over the place is
        given up, a last plain try is made, and what that is refused with is raised. A set that is too large
        to queue (`verifier.entries.may_wait`) asks again as advised.
        """
        names = (resources,) if isinstance(resources, str) else tuple(resources)
        if wait_ms <= 0 or not may_wait(names):
            return await self.acquire(names, mode=mode, ttl_ms=ttl_ms, wait_ms=wait_ms)
        wish = Wish(names, mode, ttl_ms, on_deadlock)
        grant = await wait_in_line(self, wish, self.clock.steady_ms() + wait_ms, on_wait)
        if grant is not None:
            return grant
        try:
            return await self.acquire(names, mode=mode, ttl_ms=ttl_ms)
        except InTheWay as refused:
            if on_deadlock == "wait" or refused.error != "deadlock":
                refused.waited_ms = wait_ms
            raise

    def lease(
        self,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait_ms: int = 0,
        on_deadlock: str = "refuse",
        on_lost: OnLost | None = None,
        on_grant: OnGrant | None = None,
        on_wait: OnWait | None = None,
    ) -> HeldLease:
        """Return a lease to hold: `async with` acquires it, renews it at a third of its ttl, and releases it.

        With `wait_ms` it stands in line, and leaves the line however the waiting ends. Entering raises what `wait_for`
        raises, and HeldHere when another HeldLease of this profile, in this process or another one of this machine,
        has something that overlaps the resources (after `wait_ms`).
        """
        wish = Wish((resources,) if isinstance(resources, str) else tuple(resources), mode, ttl_ms, on_deadlock)
        return HeldLease(self, wish, wait_ms=wait_ms, on_lost=on_lost, on_grant=on_grant, on_wait=on_wait)

    async def renew(
        self, lease_id: str, *, mode: str | None = None, ttl_ms: int = TTL_MS_DEFAULT, until_ms: int | None = None
    ) -> Grant:
        """Extend a lease of one's own; LeaseEnded when it can't be (never retried: it does not come back).

        With another `mode` than the lease's a new lease follows it, with an id and a token of its own, or LeaseHeld,
        Deadlock, LockDelayed or Queued leaves it as it was. HoldExceeded when it had its longest time and somebody
        waits.
        """
        members: JsonObject = {"leaseId": lease_id, "ttlMs": ttl_ms, **({} if mode is None else {"mode": mode})}
        return _grant(await self.caller.decide("lease.renew", members, until_ms=until_ms))

    async def release(
        self,
        resources: str | Sequence[str],
        lease_id: str | None = None,
        *,
        until_ms: int | None = None,
        reason_digest: str | None = None,
    ) -> VerifiedReceipt:
        """Give a lease back. Releasing again what this key already released succeeds (`release.repeated`).

        `reason_digest` is that of a `Private` reason, which stays here.
        """
        named: JsonObject = {} if lease_id is None else {"leaseId": lease_id}
        members: JsonObject = {**_named(resources), **named, **_digested(reason_digest)}
        return await self._decided("lease.release", members, until_ms)

    async def transfer(
        self, lease: Tokened, to_did: str, reason: str, *, reason_digest: str | None = None
    ) -> VerifiedReceipt:
        """Offer a lease to another key, which has to `accept` it; until then, and without that, nothing changes.

        A newer offer takes the place of an older one. `reason` is a code of [a-z0-9._-]; `reason_digest` that
        of a `Private` text, which stays here. TokenStale when the lease has another token by now.
        """
        members: JsonObject = {"leaseId": lease.lease_id, "seenToken": lease.fencing_token, "toDid": to_did}
        return await self._decided("lease.transfer", members | _why(reason, reason_digest))

    async def accept(self, lease_id: str, *, ttl_ms: int = TTL_MS_DEFAULT) -> Grant:
        """Take over a lease that was offered to this key; it gets an id and a token of its own.

        To hold it, enter `lease` with its resources and its mode: that takes up this same lease.
        """
        return _grant(await self.caller.decide("lease.accept", {"leaseId": lease_id, "ttlMs": ttl_ms}))

    async def break_lease(
        self, resource: str, seen_token: int, reason: str, *, reason_digest: str | None = None
    ) -> VerifiedReceipt:
        """End somebody's lease on `resource`, as an operator: the one with `seen_token`, and no newer one (TokenStale).

        Doing it again is a success without effect. The holder hears it from its next call.
        """
        members: JsonObject = {"resource": resource, "seenToken": seen_token}
        return await self._decided("lease.break", members | _why(reason, reason_digest))

    async def batch(
        self, commands: Sequence[JsonObject], *, atomic: bool = False, bare: bool = False, until_ms: int | None = None
    ) -> tuple[Outcome, ...]:
        """Have up to 256 commands decided at once, each with the effects of those before; return what became of each.

        `commands` are those of batch.py (`acquiring`, `renewing`, `releasing`). Refusals are among the outcomes and not
        raised; with `atomic` the first one undoes all and is raised as BatchRefused. Each receipt can be handed on
        alone; `bare` leaves out their direct signatures, so that they rest on the ledger's checkpoint only.
        """
        members: JsonObject = {"commands": [*commands], "isAtomic": atomic, **({"isBare": True} if bare else {})}
        return tuple(
            Outcome(decided.receipt, decided.sent_ms)
            for decided in await self.caller.submit(members, until_ms=until_ms)
        )

    # -- sessions and enrolment ----------------------------------------------------------------------------------------

    def delegate(
        self,
        subject: str,
        *,
        ttl_ms: int = SESSION_MS_DEFAULT,
        verbs: Sequence[str] | None = None,
        resources: Sequence[str] | None = None,
        may_delegate: bool = False,
        parent: SignedDelegation | None = None,
    ) -> SignedDelegation:
        """Return a signed statement that lets the key `subject` act for this one; nothing is sent.

        An agent lets a session act; an operator a session, or with `may_delegate` an agent, whose sessions then act for
        the operator within it. `verbs` of "lease", "transfer" and "admit" (all), `resources` (None: every name).
        """
        now_ms = self.clock.wall_ms() if self._caller is None else self._caller.ledger_now_ms
        scope = _scope(verbs, resources, parent)
        return delegate(
            self.profile.key, subject, origin=self.profile.address.origin, now_ms=now_ms, ttl_ms=ttl_ms, scope=scope,
            may_delegate=may_delegate, parent=parent,
        )  # fmt: skip

    def open_session(
        self,
        *,
        ttl_ms: int = SESSION_MS_DEFAULT,
        verbs: Sequence[str] | None = None,
        resources: Sequence[str] | None = None,
        name: str | None = None,
        parent: SignedDelegation | None = None,
        profile: Profile | None = None,
        is_kept: bool = False,
    ) -> Session:
        """Return a session of this agent, or of this operator, with a fresh key; use it with `async with`.

        Entering opens it and leaving closes it, unless `is_kept`. `parent` is a statement that this key was handed by
        an operator. `profile` has the session's key and folder, where it is to outlive this process. Entering raises
        SessionRefused when the ledger allows no such session. Other arguments as in `delegate`.
        """
        from gateway.client.session import Session  # it is built on this file

        profile = replace(self.profile, key=SigningKey.generate(), home=None) if profile is None else profile
        own = self.delegate(profile.key.did, ttl_ms=ttl_ms, verbs=verbs, resources=resources, parent=parent)
        return Session(
            profile, delegations=(own,) if parent is None else (parent, own), name=name, is_kept=is_kept,
            seen=self._caller.seen if self._caller is not None and profile.home is None else None,
            clock=self.clock, jitter=self._jitter, connect=self._connect, on_silence=self._on_silence,
        )  # fmt: skip

    async def enrol(self, token: str, name: str | None = None) -> VerifiedReceipt:
        """Enrol this key by an API key; the gateway's own enroller signs for the operator that issued that.

        Doing it again is a success without effect. The entry that answers names this key and the API key's digest.
        """
        digest = digest_of(token)
        proof = encode_base64(self.profile.key.sign(enrolment_bytes(self.did, digest, self.profile.address.origin)))
        members: JsonObject = {"agent": self.did, "proof": proof, **({} if name is None else {"name": name})}
        receipt = await self.caller.enrol(token, members)
        leaf = receipt.leaf
        if leaf.text("error"):
            raise refusal_of(receipt)
        if (leaf.type, leaf.text("agent"), leaf.text("keyDigest")) != (_ADDED, self.did, digest):
            raise AnswerRefused(f"entry {receipt.seq} is {leaf.type}, which does not enrol this key by this API key")
        return receipt

    # -- the line ------------------------------------------------------------------------------------------------------

    async def claim(self, ticket: Ticket | str, *, hold_ms: int = 0) -> Grant | Ticket:
        """Ask whether it is one's turn: the lease if so, else the ticket, kept for another while.

        The gateway may keep the answer back for up to `hold_ms` (whole seconds, 20 of them at most) until there is a
        better one. TicketEnded when the place is gone.
        """
        ticket_id = ticket if isinstance(ticket, str) else ticket.ticket_id
        decided = (await self.caller.decide("wait.claim", {"ticketId": ticket_id}, hold_ms=hold_ms)).in_favour()
        return answer_to_claim(ticket, decided.receipt, decided.sent_ms)

    async def cancel(self, ticket: Ticket | str, *, until_ms: int | None = None) -> VerifiedReceipt:
        """Leave the line; TicketEnded when the ticket was served, cancelled or removed before."""
        ticket_id = ticket if isinstance(ticket, str) else ticket.ticket_id
        return await self._decided("wait.cancel", {"ticketId": ticket_id}, until_ms)

    async def wait_view(self, resource: str | None = None) -> JsonObject:
        """Return who holds what and who was refused, on one resource or all, unverified."""
        return await self.caller.read(WAIT_PATH, "" if resource is None else f"resource={quote(resource, safe='/:')}")

    async def leases(self, holder: str = "me", *, is_patient: bool = False) -> list[JsonObject]:
        """Return the live leases of one holder, unverified; `holder` is "me" or a DID.

        `is_patient`: a gateway that is away is tried for as long as for a decision.
        """
        return rows_in(await self.caller.read(LEASES_PATH, f"holder={holder}", is_patient=is_patient), "leases")

    async def offered(self) -> list[JsonObject]:
        """Return the live leases that their holders or an operator offer to this key, unverified."""
        return rows_in(await self.caller.read(LEASES_PATH, "holder=me"), "offered")

    # -- trust ---------------------------------------------------------------------------------------------------------

    async def trust(self, did: str) -> JsonObject:
        """Return the trust of a key as the gateway says: nowMs, did, trust, lastSeq (None before the first change)."""
        return await self.caller.read(ACTIONS["trust.get"].path, f"did={did}")

    def trust_history(self, did: str, last_seq: int) -> AsyncIterator[TrustChange]:
        """Yield the changes of a key's trust from entry `last_seq` back, each verified, the newest first."""
        return changes(self, did, last_seq)

    # -- history -------------------------------------------------------------------------------------------------------

    async def receipt(self, seq: int, *, is_patient: bool = False) -> VerifiedReceipt:
        """Return the receipt of any entry, verified, proven at the newest witnessed checkpoint or else at the newest.

        `is_patient`: a gateway that is away is tried for as long as for a decision.
        """
        answer = await self.caller.read(RECEIPT_PATH.format(seq=seq), is_patient=is_patient)
        receipt = await self.caller.open_receipt(encode_canonical(answer.get("receipt", answer)))
        if receipt.seq != seq:
            raise AnswerRefused(f"asked for entry {seq}, the gateway sent entry {receipt.seq}")
        await self.caller.remember(receipt.checkpoint)
        return receipt

    async def check_history(self, *, until_ms: int | None = None) -> Checkpoint:
        """Fetch the newest checkpoint and check that it contains all this agent knew before; return it.

        Runs at the start of every session. LedgerBehind when the gateway shows less than it once signed, SplitView when
        two trees contradict each other; either is shown to the gateway as well.
        """
        try:
            note = await self.caller.fetch(f"{self._prefix}/checkpoint", until_ms=until_ms)
        except RequestRejected as error:
            if error.status != 404:
                raise
            address = self.profile.address
            raise ProfileError(f"the gateway at {address.url} is not ledger {address.origin}") from error
        fetched, known = await self._open_checkpoint(note), self.caller.seen.newest
        if fetched.size < known.size:
            await self.caller.dispute(encode_note(known.note))
            raise LedgerBehind(fetched.size, known.size)
        await self._prove(known, until_ms)
        await self._prove(fetched, until_ms)
        return fetched

    async def prove_history(self, *, until_ms: int | None = None) -> None:
        """Check that the newest checkpoint in hand contains all that was proven before; SplitView when it doesn't.

        Runs at the end of every session and about once a minute beside the heartbeats of a held lease.
        """
        await self._prove(self.caller.seen.newest, until_ms)
        self._proven_ms = self.clock.steady_ms()

    @property
    def is_proof_due(self) -> bool:
        """Whether the last proof of history is more than a minute old."""
        return self.clock.steady_ms() - self._proven_ms >= PROOF_PERIOD_MS

    async def _prove(self, checkpoint: Checkpoint, until_ms: int | None) -> None:
        proven = self.caller.seen.proven
        await self.caller.remember(checkpoint)
        if checkpoint.size <= proven.size:
            return

        async def fetch(path: str) -> bytes:
            return await self.caller.fetch(f"{self._prefix}/{path}", until_ms=until_ms)

        if not await is_extension(fetch, proven, checkpoint):
            notes = [encode_note(known.note) for known in (proven, checkpoint) if known.note.lines]
            await self.caller.dispute(*notes)
            raise _split(proven, checkpoint)
        self.caller.seen.prove(checkpoint)

    @property
    def _prefix(self) -> str:
        """The path below which the ledger's public files lie: what follows the host in its origin."""
        _, slash, path = self.profile.address.origin.partition("/")
        return slash + path

    async def _open_checkpoint(self, note: bytes) -> Checkpoint:
        origin = self.profile.address.origin
        try:
            return await self.caller.verified(note, lambda keyring: open_checkpoint(note, keyring, origin))
        except Malformed as error:
            raise AnswerRefused(f"the gateway's checkpoint does not verify: {error}") from error

    # -- life ----------------------------------------------------------------------------------------------------------

    @property
    def caller(self) -> Caller:
        """The exchange below the verbs, for tools that speak further actions."""
        assert self._caller is not None, "use the agent inside `async with`"
        return self._caller

    async def __aenter__(self) -> Agent:
        self._transport = self._connect(self.profile.address.url)
        try:
            self._caller = self._make_caller(self._transport)
            await self.check_history(until_ms=self.clock.steady_ms() + START_CHECK_MS)
        except Unreachable:
            self.caller.tell_silence(RETRY_MS)  # whoever needs the gateway will hear it from the first call
        except BaseException:
            await self._disconnect()
            raise
        self._proven_ms = self.clock.steady_ms()
        return self

    def _make_caller(self, transport: Transport) -> Caller:
        return Caller(self.profile, transport, self.clock, self._jitter, self._on_silence)

    async def _disconnect(self) -> None:
        assert self._transport is not None, "entered"
        await self._transport.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.prove_history(until_ms=self.clock.steady_ms() + END_CHECK_MS)
        except (Unreachable, RequestRejected) as unproven:
            _log.warning(
                "the gateway did not show, at the end, that its ledger has only grown; the next session checks that "
                "for this one too: %s",
                unproven,
            )
        finally:
            await self._disconnect()


def _named(resources: str | Sequence[str]) -> JsonObject:
    if isinstance(resources, str):
        return {"resource": resources}
    names: list[JsonValue] = list(resources)
    return {"resource": names[0]} if len(names) == 1 else {"resources": names}


def _scope(
    verbs: Sequence[str] | None, resources: Sequence[str] | None, parent: SignedDelegation | None
) -> Scope | None:
    """Return what is lent; what is left out is the parent's, or all."""
    if verbs is None and resources is None:
        return None
    above = Scope() if parent is None else Scope(parent.says.verbs, parent.says.resources)
    return Scope(
        above.verbs if verbs is None else tuple(verbs), above.resources if resources is None else tuple(resources)
    )


def _mode(mode: str) -> JsonObject:
    """The default is left out: what need not be said need not be signed."""
    return {} if mode == MODE_DEFAULT else {"mode": mode}


def _why(reason: str, reason_digest: str | None) -> JsonObject:
    return {"reason": reason, **_digested(reason_digest)}


def _digested(reason_digest: str | None) -> JsonObject:
    return {} if reason_digest is None else {"reasonDigest": reason_digest}


def _grant(decided: Decided) -> Grant:
    return Grant(decided.in_favour().receipt, decided.sent_ms)


def _split(ours: Checkpoint, theirs: Checkpoint) -> SplitView:
    return SplitView(
        f"the ledger's tree of {theirs.size} entries does not contain its tree of {ours.size} entries. Keep both "
        f"checkpoints: together they prove it to anyone.",
        encode_note(ours.note),
        encode_note(theirs.note),
    )
