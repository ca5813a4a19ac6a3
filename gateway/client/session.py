"""A session: a fresh key that acts for an agent (or an operator) for some hours, and gives everything back at its end.

    async with agent.open_session(resources=["repo:app/**"]) as session:     # opens itself, signed with its own key
        async with session.lease("repo:app/src/a.py") as lease:              # a session is an Agent
            ...

House rules of this file:

* A session's key is made for it and never used again. In memory it dies with the process; a folder keeps it for
  commands (session_commands.py), and whoever reads that folder is the session until it ends.
* It keeps itself present while it is entered: any accepted entry counts, a renewal as well as a refusal, and only when
  none came for a third of the ledger's patience it says that it is there. So it costs nothing while it works.
* A lease of a session is trusted no longer than the session is (presence.py); once the gateway says that the session
  is over, no lease of it is trusted any more.
* Leaving closes it: the ledger gives back what it still holds, at once. A close that can't be sent costs only the
  ledger's patience, so it is logged and not raised.
* Use it from any number of tasks of its event loop; enter and leave it in one. Two *processes* with one session key are
  one actor to the ledger: each extends what the other holds. The ledger notices (`isShared`) and forbids nothing.

Source: docs/protocol.md 28, 29; decisions.md §11.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from types import TracebackType

from gateway.client.agent import Agent
from gateway.client.caller import Caller, OnSilence
from gateway.client.clock import Clock
from gateway.client.delegation import SignedDelegation
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    NotEnrolled,
    ProfileError,
    SessionEnded,
    Unreachable,
)
from gateway.client.exchange import Connect, Transport, pooled
from gateway.client.presence import Presence
from gateway.client.profile import OPENED, Profile
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.client.seen import Seen, read_bounded
from gateway.client.trust import Grant, beat_period_ms, trusted_ms
from gateway.client.waiting import Jitter
from verifier.entries import full_type
from verifier.wire import RECEIPT_BYTES_MAX, JsonObject, JsonValue, Malformed

CLOSE_MS = 10_000  # how long a close is retried at the end; the session dies by itself anyway
# The longest nap between beats: timers stand still while a machine is suspended, so the due time is looked for often.
NAP_MS = 1_000
_OPENED = full_type("session.opened")
_log = logging.getLogger("tallystick.client")


class Session(Agent):
    """An Agent with a session's key. Made by Agent.open_session, or by Agent.open for a session's folder.

    With `delegations` it opens itself when it is entered; without, it goes on with the session that `opened` began.
    `is_kept`: leaving does not close it.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        delegations: Sequence[SignedDelegation] = (),
        name: str | None = None,
        opened: VerifiedReceipt | None = None,
        is_kept: bool = False,
        seen: Seen | None = None,
        clock: Clock | None = None,
        jitter: Jitter = random.random,
        connect: Connect = pooled,
        on_silence: OnSilence | None = None,
    ) -> None:
        super().__init__(profile, clock=clock, jitter=jitter, connect=connect, on_silence=on_silence)
        self._delegations = tuple(delegations)
        self._name = name
        self._opened = opened
        self._is_kept = is_kept
        self._seen = seen
        self._presence: Presence | None = None
        self._beats: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()
        self._is_closed = False

    @classmethod
    def resume(cls, profile: Profile, *, on_silence: OnSilence | None = None, connect: Connect = pooled) -> Session:
        """Return the session of a folder, to go on with; entering opens nothing and leaving closes nothing."""
        assert profile.home is not None, "a session's folder"
        try:
            opened = open_receipt(read_bounded(profile.home / OPENED, RECEIPT_BYTES_MAX), profile.keyring)
        except (OSError, Malformed, AnswerRefused) as error:
            raise ProfileError(f"{profile.home / OPENED} can't be used: {error}. Open another session.") from error
        if opened.type != _OPENED or opened.leaf.actor != profile.key.did:
            raise ProfileError(f"{profile.home / OPENED} is of another session than the key beside it.")
        return cls(profile, opened=opened, is_kept=True, on_silence=on_silence, connect=connect)

    # -- what it is ----------------------------------------------------------------------------------------------------

    @property
    def opened(self) -> VerifiedReceipt:
        """The verified entry that opened it; only inside `async with` for one that opens itself."""
        assert self._opened is not None, "use the session inside `async with`"
        return self._opened

    @property
    def principal(self) -> str:
        """The agent behind it; its own DID for a session that an operator opened directly."""
        return self.opened.leaf.principal

    @property
    def on_behalf_of(self) -> str:
        """The operator that answers for it."""
        return self.opened.leaf.on_behalf_of

    @property
    def expires_at_ms(self) -> int:
        """The end of its delegation, in the ledger's time."""
        return self.opened.leaf.number("expiresAtMs")

    @property
    def ended(self) -> str:
        """Why it is over, as the gateway said ("session_ended", …); "" as long as it is not known to be."""
        return "" if self._presence is None else self._presence.ended

    # -- trust ---------------------------------------------------------------------------------------------------------

    def trust_ends_ms(self, grant: Grant) -> int:
        """The end of the lease or of the session, whichever comes first; entries after the grant move the second."""
        if self.ended:
            return 0
        present_ms = 0 if self._presence is None else self._presence.ends_ms
        return min(grant.sent_ms + trusted_ms(grant.ttl_ms), max(grant.trust_ends_ms, present_ms))

    def renewal_due_ms(self, grant: Grant) -> int:
        """At a third of the ttl; for the rest its presence is looked after here."""
        return grant.sent_ms + beat_period_ms(grant.ttl_ms)

    @property
    def doubt(self) -> str:
        return "" if self._presence is None else self._presence.ended or self._presence.doubt

    # -- life ----------------------------------------------------------------------------------------------------------

    async def beat(self, activity: str | None = None, *, until_ms: int | None = None) -> VerifiedReceipt:
        """Say that it is there, and perhaps what it does: a code of [a-z0-9._-] that everybody may read."""
        members: JsonObject = {} if activity is None else {"activity": activity}
        return (await self.caller.decide("session.beat", members, until_ms=until_ms)).in_favour().receipt

    async def close(self, reason: str | None = None, *, until_ms: int | None = None) -> VerifiedReceipt:
        """End it before the end of `async with`; what it holds goes back to whoever waits for it, at once."""
        closed = await self.close_session(self.did, reason, until_ms=until_ms)
        self._is_closed = True
        self._look_no_more("session_ended")
        return closed

    async def __aenter__(self) -> Session:
        await super().__aenter__()
        try:
            await self._begin()
        except BaseException:
            await self._disconnect()
            raise
        await self._group.__aenter__()
        self._beats = self._group.create_task(self._stay_present(), name=f"presence of {self.did}")
        return self

    async def _begin(self) -> None:
        sent_ms = self.clock.steady_ms()
        if self._opened is None:
            rows: list[JsonValue] = [signed.row for signed in self._delegations]
            members: JsonObject = {"delegations": rows, **({} if self._name is None else {"name": self._name})}
            decided = (await self.caller.decide("session.open", members)).in_favour()
            self._opened, sent_ms = decided.receipt, decided.sent_ms
            self._presence = self.caller.presence = Presence(self._opened.leaf)
            self._presence.note(self._opened.leaf.time_ms, sent_ms)
        else:
            self._presence = self.caller.presence = Presence(self._opened.leaf)
            self._presence.begin(sent_ms)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beats is not None, "entered"
        self._beats.cancel()
        try:
            if not (self._is_kept or self._is_closed or self.ended):
                await self._close_at_end()
        finally:
            # Without the body's exception: the group would wrap it, and it goes on by itself.
            await self._group.__aexit__(None, None, None)
            await super().__aexit__(kind, error, trace)

    async def _close_at_end(self) -> None:
        try:
            await self.close(until_ms=self.clock.steady_ms() + CLOSE_MS)
        except ClientError as error:
            _log.warning("session %s was not closed, it ends by itself: %s", self.did, error)

    def _look_no_more(self, code: str) -> None:
        if self._presence is not None:
            self._presence.end(code)
        if self._beats is not None:
            self._beats.cancel()

    def _make_caller(self, transport: Transport) -> Caller:
        return Caller(self.profile, transport, self.clock, self._jitter, self._on_silence, self._seen)

    # -- presence ------------------------------------------------------------------------------------------------------

    async def _stay_present(self) -> None:
        """Show itself whenever nothing else has for a third of the ledger's patience, as long as that helps."""
        presence, clock = self._presence, self.clock
        assert presence is not None, "begun"
        while presence.due_ms is not None:
            left_ms = presence.due_ms - clock.steady_ms()
            if left_ms > 0:
                await clock.sleep(min(left_ms, NAP_MS))
            else:
                await self._beat_once(presence)

    async def _beat_once(self, presence: Presence) -> None:
        """An error in one beat never ends the beating, unless one more try would not mend it."""
        now_ms = self.clock.steady_ms()
        try:
            await self.beat(until_ms=max(presence.ends_ms, now_ms + NAP_MS))
        except (SessionEnded, NotEnrolled) as error:
            _log.warning("session %s is over: %s", self.did, error)
        except Unreachable as error:
            presence.doubt = error.reason
            await self.clock.sleep(NAP_MS)
        except ClientError as error:
            _log.error("session %s can't be kept: %s", self.did, error)
            presence.end(type(error).__name__)


def is_session(profile: Profile) -> bool:
    """Say whether a profile's folder is that of a session."""
    return profile.home is not None and (profile.home / OPENED).exists()
