"""The agent's side of the protocol, in verbs.

    async with Agent.open() as agent:
        async with agent.lease("repo:app/src/a.py", wait_ms=60_000) as lease:
            ...                                  # heartbeats run; lease.is_trusted, lease.lost
            write(lease.fencing_token, lease.receipt)

Facts come from verified receipts (receipts.py). The views (`wait_view`, `leases`, `agents`) are pictures: nobody signs
them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from gateway.actions import ACTIONS
from gateway.client.caller import RETRY_MS, Caller, Decided, OnSilence
from gateway.client.clock import Clock, SystemClock
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    LeaseEnded,
    LeaseHeld,
    LedgerBehind,
    ProfileError,
    Refused,
    RequestRejected,
    SplitView,
    Unreachable,
)
from gateway.client.history import is_extension
from gateway.client.lease import HeldLease, OnGrant, OnLost
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.client.seen import open_checkpoint
from gateway.client.transport import HttpTransport, Transport
from gateway.client.trust import Grant
from gateway.client.waiting import LOOK_MS, Jitter, pause_after_refusal_ms, pause_before_look_ms
from verifier.checkpoint import Checkpoint
from verifier.note import encode_note
from verifier.wire import JsonObject, JsonValue, Malformed, encode_canonical

# Long enough that heartbeats are rare, short enough that a crashed holder blocks nobody for long. Renewed at a third.
TTL_MS_DEFAULT = 300_000
START_CHECK_MS = 5_000  # a gateway that is away must not hold up the start; the first call will say so
END_CHECK_MS = 2_000
PROOF_PERIOD_MS = 60_000
WAIT_PATH = ACTIONS["coordination.wait"].path
LEASES_PATH = ACTIONS["lease.list"].path
AGENTS_PATH = ACTIONS["agent.list"].path
RECEIPT_PATH = ACTIONS["receipt.get"].path
_log = logging.getLogger("tallystick.client")
_ENDED = frozenset(
    {"lease_unknown", "lease_not_yours", "lease_released", "lease_expired", "lease_mismatch", "not_holder"}
)


class Agent:
    """One key at one gateway; an async context manager. Any number of tasks of its event loop may use it."""

    def __init__(
        self,
        profile: Profile,
        *,
        clock: Clock | None = None,
        jitter: Jitter = random.random,
        connect: Callable[[str], Transport] = HttpTransport,
        on_silence: OnSilence | None = None,
    ) -> None:
        self.profile = profile
        self.clock: Clock = SystemClock() if clock is None else clock
        self._jitter = jitter
        self._connect = connect
        self._on_silence = on_silence
        self._transport: Transport | None = None
        self._caller: Caller | None = None
        self._proven_ms = 0

    @classmethod
    def open(cls, profile: Profile | Path | str | None = None, *, on_silence: OnSilence | None = None) -> Agent:
        """Return the agent of a profile: a folder, an opened profile, or the default one. Use it with `async with`.

        `on_silence` is called once, with the milliseconds still to be tried, when the gateway does not answer.
        """
        if not isinstance(profile, Profile):
            profile = open_profile(None if profile is None else Path(profile))
        return cls(profile, on_silence=on_silence)

    @property
    def did(self) -> str:
        return self.profile.key.did

    # -- leases --------------------------------------------------------------------------------------------------------

    async def acquire(self, resources: str | Sequence[str], *, ttl_ms: int = TTL_MS_DEFAULT, wait_ms: int = 0) -> Grant:
        """Take a lease on one resource, or on all of a set or none.

        LeaseHeld when another holds it; with `wait_ms`, only after following the ledger's advice for that long, and
        a last try at the end. Nothing renews the lease afterwards: see `lease` for one that is held. Malformed, before
        anything is sent, for a name or ttl out of bounds.
        """
        deadline_ms = self.clock.steady_ms() + wait_ms
        members: JsonObject = {**_named(resources), "ttlMs": ttl_ms}
        while True:
            try:
                return _grant(await self.caller.decide("lease.acquire", members))
            except LeaseHeld as held:
                left_ms = deadline_ms - self.clock.steady_ms()
                if left_ms <= 0:
                    raise
                await self._pause(held, left_ms)

    async def _pause(self, held: LeaseHeld, left_ms: int) -> None:
        """Wait as advised; while the ledger wants no more tries, look (it writes nothing) for an early release."""
        now_ms = self.clock.steady_ms()
        end_ms = now_ms + min(pause_after_refusal_ms(held, self._jitter), left_ms)
        while now_ms < end_ms:
            is_looking = not held.stampede.is_admitted and end_ms - now_ms > 2 * LOOK_MS
            await self.clock.sleep(pause_before_look_ms(self._jitter) if is_looking else end_ms - now_ms)
            if is_looking and await self._looks_free(held.resource):
                return
            now_ms = self.clock.steady_ms()

    async def _looks_free(self, resource: str) -> bool:
        """Return whether the wait view shows no lease on `resource`: a hint to try, never a fact."""
        try:
            rows = _rows(await self.wait_view(resource), "resources")
        except ClientError:
            return False
        return not any(row.get("lease") for row in rows)

    def lease(
        self,
        resources: str | Sequence[str],
        *,
        ttl_ms: int = TTL_MS_DEFAULT,
        wait_ms: int = 0,
        on_lost: OnLost | None = None,
        on_grant: OnGrant | None = None,
    ) -> HeldLease:
        """Return a lease to hold: `async with` acquires it, renews it at a third of its ttl, and releases it.

        Entering raises what `acquire` raises, and HeldHere when another HeldLease of this profile, in this process or
        another one of this machine, has one of the resources (after `wait_ms`).
        """
        return HeldLease(self, resources, ttl_ms=ttl_ms, wait_ms=wait_ms, on_lost=on_lost, on_grant=on_grant)

    async def renew(self, lease_id: str, *, ttl_ms: int = TTL_MS_DEFAULT, until_ms: int | None = None) -> Grant:
        """Extend a lease of one's own; LeaseEnded when it can't be (never retried: it does not come back)."""
        members: JsonObject = {"leaseId": lease_id, "ttlMs": ttl_ms}
        return _grant(await self.caller.decide("lease.renew", members, until_ms=until_ms))

    async def release(
        self, resources: str | Sequence[str], lease_id: str | None = None, *, until_ms: int | None = None
    ) -> VerifiedReceipt:
        """Give a lease back. Releasing again what this key already released succeeds (`release.repeated`)."""
        members: JsonObject = _named(resources) if lease_id is None else {**_named(resources), "leaseId": lease_id}
        return _checked(await self.caller.decide("lease.release", members, until_ms=until_ms)).receipt

    async def wait_view(self, resource: str | None = None) -> JsonObject:
        """Return who holds what and who was refused, on one resource or all, unverified."""
        return await self.caller.read(WAIT_PATH, "" if resource is None else f"resource={quote(resource, safe='/:')}")

    async def leases(self, holder: str = "me", *, is_patient: bool = False) -> list[JsonObject]:
        """Return the live leases of one holder, unverified; `holder` is "me" or a DID.

        `is_patient`: a gateway that is away is tried for as long as for a decision.
        """
        return _rows(await self.caller.read(LEASES_PATH, f"holder={holder}", is_patient=is_patient), "leases")

    # -- agents --------------------------------------------------------------------------------------------------------

    async def add_agent(self, did: str, name: str | None = None) -> VerifiedReceipt:
        """Enrol a key; this agent's own key must be an operator's."""
        members: JsonObject = {"agent": did} if name is None else {"agent": did, "name": name}
        return _checked(await self.caller.decide("agent.add", members)).receipt

    async def remove_agent(self, did: str) -> VerifiedReceipt:
        """Stop a key from acting; what it holds runs out."""
        return _checked(await self.caller.decide("agent.remove", {"agent": did})).receipt

    async def agents(self) -> list[JsonObject]:
        """Return the enrolled keys, unverified."""
        return _rows(await self.caller.read(AGENTS_PATH), "agents")

    # -- history -------------------------------------------------------------------------------------------------------

    async def receipt(self, seq: int) -> VerifiedReceipt:
        """Return the receipt of any entry, verified, with a proof at the gateway's newest checkpoint."""
        answer = await self.caller.read(RECEIPT_PATH.format(seq=seq))
        receipt = open_receipt(encode_canonical(answer.get("receipt", answer)), self.profile.keyring)
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
        fetched, known = self._open_checkpoint(note), self.caller.seen.newest
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

    def _open_checkpoint(self, note: bytes) -> Checkpoint:
        try:
            return open_checkpoint(note, self.profile.keyring, self.profile.address.origin)
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
            self._caller = Caller(self.profile, self._transport, self.clock, self._jitter, self._on_silence)
            await self.check_history(until_ms=self.clock.steady_ms() + START_CHECK_MS)
        except Unreachable:
            self.caller.tell_silence(RETRY_MS)  # whoever needs the gateway will hear it from the first call
        except BaseException:
            await self._transport.close()
            raise
        self._proven_ms = self.clock.steady_ms()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transport is not None, "entered"
        try:
            await self.prove_history(until_ms=self.clock.steady_ms() + END_CHECK_MS)
        except (Unreachable, RequestRejected) as unproven:
            _log.warning("the end of this session could not be proven; the next one starts before it: %s", unproven)
        finally:
            await self._transport.close()


def _named(resources: str | Sequence[str]) -> JsonObject:
    if isinstance(resources, str):
        return {"resource": resources}
    names: list[JsonValue] = list(resources)
    return {"resource": names[0]} if len(names) == 1 else {"resources": names}


def _checked(decided: Decided) -> Decided:
    """Return a decision in our favour; a refusal is raised as the exception of its kind."""
    error = decided.receipt.leaf.text("error")
    if not error:
        return decided
    if error == "lease_held":
        raise LeaseHeld(decided.receipt)
    raise LeaseEnded(decided.receipt) if error in _ENDED else Refused(decided.receipt)


def _grant(decided: Decided) -> Grant:
    return Grant(_checked(decided).receipt, decided.sent_ms)


def _rows(answer: JsonObject, name: str) -> list[JsonObject]:
    rows = answer.get(name)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _split(ours: Checkpoint, theirs: Checkpoint) -> SplitView:
    return SplitView(
        f"the ledger's tree of {theirs.size} entries does not contain its tree of {ours.size} entries. Keep both "
        f"checkpoints: together they prove it to anyone.",
        encode_note(ours.note),
        encode_note(theirs.note),
    )
