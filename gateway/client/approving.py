"""Asking others to approve, and approving: verbs of an Agent.

House rules of this file:

* An approval that came by the ledger is read out of the verified entry that gave it, and checked against the act again.
* Who waits for approvals keeps the lease meanwhile, and withdraws what nobody waits for any more: as long as it is
  open, it counts as waiting for its approvers.
* An approver signs what the verified entry of the request says, after its digest was computed here anew.

Source: docs/protocol.md 38.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Sequence
from urllib.parse import quote

from gateway.actions import ACTIONS
from gateway.client.admission import Ask
from gateway.client.approval import TTL_MS_DEFAULT, SignedApproval, approve, digest_of_arguments, is_for
from gateway.client.clock import Clock
from gateway.client.errors import AnswerRefused, AskEnded, AskOver, ClientError, NotApproved, NotHeld
from gateway.client.holdings import Tokened
from gateway.client.lease import HeldLease
from gateway.client.office import Office, rows_in
from gateway.client.profile import Profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.trust import Grant, beat_period_ms
from gateway.client.waiting import pause_before_look_ms
from verifier.approval import parse_approvals
from verifier.entries import ASK_ID, full_type
from verifier.wire import BODY_BYTES_MAX, JsonObject, Malformed, parse_json

MODE_DEFAULT = "write"
KEPT_TTL_MS = 300_000  # of the lease under which approvals are waited for
LEAVE_MS = 2_000  # how long withdrawing is tried; a request lapses anyway
_ASKED, _GIVEN = full_type("approval.asked"), full_type("approval.given")
_OPEN, _REACHED = "open", "given"  # as the list says it
_log = logging.getLogger("tallystick.client")


class Approving(Office):
    """Mixed into Agent."""

    clock: Clock

    @property
    @abstractmethod
    def profile(self) -> Profile:
        """The profile."""

    @abstractmethod
    async def renew(
        self, lease_id: str, *, mode: str | None = None, ttl_ms: int = ..., until_ms: int | None = None
    ) -> Grant:
        """Extend a lease of one's own."""

    @abstractmethod
    async def receipt(self, seq: int, *, is_patient: bool = False) -> VerifiedReceipt:
        """Return the receipt of any entry, verified."""

    # -- asking for approval -------------------------------------------------------------------------------------------

    async def ask_approval(
        self,
        operation: str,
        resources: str | Sequence[str],
        approvers: Sequence[str],
        *,
        quorum: int = 1,
        mode: str = MODE_DEFAULT,
        arguments: bytes | None = None,
        arguments_digest: str | None = None,
        cost: int = 0,
        give_up_ms: int | None = None,
    ) -> Ask:
        """Ask `approvers` (DIDs) to approve of one act, `quorum` of them; Deadlock when that would never end.

        What is approved is exactly what `admit` is then asked with the same values. It lapses after `give_up_ms`, an
        hour by default; until then this key waits for them, so keep the lease and see `gather_approvals`.
        """
        names = (resources,) if isinstance(resources, str) else tuple(resources)
        members = act_members(operation, names, mode, digest_of_arguments(arguments, arguments_digest), cost)
        members |= {"approvers": [*sorted(set(approvers))], "quorum": quorum}
        if give_up_ms is not None:
            members["giveUpMs"] = give_up_ms
        return Ask(await self._decided("approval.ask", members))

    async def gather_approvals(
        self, ask: Ask, *, wait_ms: int, lease: Tokened | None = None
    ) -> tuple[SignedApproval, ...]:
        """Return the approvals of an ask once there are enough; NotApproved when it ended otherwise, or too late.

        `lease` is renewed meanwhile, unless it is a HeldLease, which looks after itself. However this ends but well,
        the ask is withdrawn.
        """
        kept = None if lease is None or isinstance(lease, HeldLease) else _Kept(self, lease)
        try:
            return await self._gather(ask, self.clock.steady_ms() + wait_ms, kept)
        except BaseException:
            await self._leave(ask)
            raise

    async def _gather(self, ask: Ask, deadline_ms: int, kept: _Kept | None) -> tuple[SignedApproval, ...]:
        found: dict[int, SignedApproval] = {}
        while True:
            row = await self._ask_row(ask.ask_id)
            for seq in _given_seqs(row):
                if seq not in found:
                    found[seq] = self._approval_in(await self.receipt(seq), ask)
            how = str(row.get("state"))
            if how == _REACHED and len(found) >= ask.quorum:
                return tuple(found.values())
            if how not in (_OPEN, _REACHED):
                ended = row.get("endedSeq")
                raise NotApproved(ask.ask_id, how, ended if isinstance(ended, int) else None)
            left_ms = deadline_ms - self.clock.steady_ms()
            if left_ms <= 0:
                raise NotApproved(ask.ask_id, "waited")
            if kept is not None:
                await kept.beat()
            await self.clock.sleep(min(pause_before_look_ms(self.caller.jitter), left_ms))

    async def _ask_row(self, ask_id: str) -> JsonObject:
        rows = await self.asks(ask_id=ask_id)
        if len(rows) != 1:
            raise AnswerRefused(f"the gateway shows {len(rows)} requests for approval named {ask_id}")
        return rows[0]

    def _approval_in(self, receipt: VerifiedReceipt, ask: Ask) -> SignedApproval:
        """Return the statement that a verified approval.given brought; AnswerRefused when it is of something else."""
        leaf = receipt.leaf
        if receipt.type != _GIVEN or leaf.text("askId") != ask.ask_id:
            raise AnswerRefused(f"entry {receipt.seq} gives no approval of {ask.ask_id}")
        try:
            body = parse_json(str((leaf.request or {}).get("body", "")).encode(), bytes_max=BODY_BYTES_MAX)
            row = body.get("approval")
            says = parse_approvals([row])[0]
        except Malformed as error:
            raise AnswerRefused(f"entry {receipt.seq} has no approval that can be read: {error}") from error
        if not isinstance(row, dict) or not is_for(says, ask.act, self.profile.genesis):
            raise AnswerRefused(f"entry {receipt.seq} approves of something else than was asked for")
        return SignedApproval(row, says)

    async def _leave(self, ask: Ask) -> None:
        """Withdraw what nobody waits for any more; best effort, for it lapses by itself."""
        try:
            await self.withdraw(ask, until_ms=self.clock.steady_ms() + LEAVE_MS)
        except AskEnded:
            pass
        except ClientError as error:
            _log.warning("%s was not withdrawn, it lapses by itself: %s", ask.ask_id, error)

    async def withdraw(self, ask: Ask | str, *, until_ms: int | None = None) -> VerifiedReceipt:
        """Take back a request for approval; AskEnded when it is over already. What was given until then stays good."""
        ask_id = ask if isinstance(ask, str) else ask.ask_id
        return await self._decided("approval.withdraw", {"askId": ask_id}, until_ms)

    # -- approving -----------------------------------------------------------------------------------------------------

    async def asked(self, ask_id: str) -> Ask:
        """Return a request for approval out of its verified entry, with its digest computed anew; AnswerRefused."""
        if not ASK_ID.check(ask_id):
            raise Malformed(f"a request for approval is named {ASK_ID.bound}")
        receipt = await self.receipt(int(ask_id[1:]), is_patient=True)
        return open_ask(receipt)

    async def give_approval(self, ask: Ask, *, ttl_ms: int = TTL_MS_DEFAULT) -> tuple[SignedApproval, VerifiedReceipt]:
        """Approve of what an ask is about, with this key, and tell the ledger; return the statement and the entry.

        Whoever calls this has read `ask.act`. This key must be one of those asked, an agent's or an operator's, and of
        another operator than the agent.
        """
        made = await self.sign_approval(ask, ttl_ms=ttl_ms)
        return made, await self.hand_in(ask.ask_id, made)

    async def sign_approval(self, ask: Ask, *, ttl_ms: int = TTL_MS_DEFAULT) -> SignedApproval:
        """Return the statement that `give_approval` gives. AskOver, and nothing is signed, when nobody waits for it.

        What the gateway says of that is unverified: it can only keep somebody from signing.
        """
        states = [str(row.get("state")) for row in await self.asks(ask_id=ask.ask_id)]
        if states != [_OPEN]:
            raise AskOver(ask.ask_id, states[0] if states else "forgotten")
        return approve(
            self.profile.key,
            ask.act,
            genesis=self.profile.genesis,
            now_ms=self.caller.ledger_now_ms,
            ttl_ms=ttl_ms,
            nonce=ask.nonce_of(self.profile.key.did),
        )

    async def hand_in(self, ask_id: str, approval: SignedApproval) -> VerifiedReceipt:
        """Give an approval that was signed before, with the key that signed it."""
        return await self._decided("approval.give", {"askId": ask_id, "approval": approval.row})

    async def decline(self, ask: Ask | str, reason: str | None = None) -> VerifiedReceipt:
        """Say no; when no quorum can be reached without this key the request is over. `reason` is a code."""
        members: JsonObject = {"askId": ask if isinstance(ask, str) else ask.ask_id}
        return await self._decided("approval.decline", members | ({} if reason is None else {"reason": reason}))

    # -- views ---------------------------------------------------------------------------------------------------------

    async def asks(
        self, *, ask_id: str | None = None, of: str | None = None, by: str | None = None
    ) -> list[JsonObject]:
        """Return requests for approval, unverified: one, those `of` an asker, or those that wait for `by`."""
        query = next((f"{name}={value}" for name, value in (("askId", ask_id), ("of", of), ("by", by)) if value), "")
        answer = await self.caller.read(ACTIONS["approval.list"].path, quote(query, safe="=:"))
        return rows_in(answer, "approvals")


class _Kept:
    """Renews a lease beside the waiting; one that can't be kept ends it."""

    def __init__(self, agent: Approving, lease: Tokened) -> None:
        self._agent = agent
        self._lease = lease
        self._due_ms = 0

    async def beat(self) -> None:
        """Renew when a third of its time is over."""
        clock = self._agent.clock
        if clock.steady_ms() < self._due_ms:
            return
        grant = await self._agent.renew(self._lease.lease_id, ttl_ms=KEPT_TTL_MS)
        if grant.fencing_token != self._lease.fencing_token:
            raise NotHeld(f"lease {self._lease.lease_id} has another token by now, {grant.fencing_token}: look again")
        self._due_ms = grant.sent_ms + beat_period_ms(min(grant.ttl_ms, grant.idle_ms))


def open_ask(receipt: VerifiedReceipt) -> Ask:
    """Return the request in a verified receipt; AnswerRefused unless its digest is that of what it says."""
    ask = Ask(receipt)
    if receipt.type != _ASKED:
        raise AnswerRefused(f"entry {receipt.seq} is {receipt.type}, which asks for no approval")
    if ask.act.digest != receipt.leaf.text("actionDigest"):
        raise AnswerRefused(f"entry {receipt.seq} has another digest than that of what it says")
    return ask


def act_members(operation: str, names: Sequence[str], mode: str, digest: str, cost: int) -> JsonObject:
    """Return what an admission and a request for approval say alike; defaults are left out."""
    named: JsonObject = {"resource": names[0]} if len(names) == 1 else {"resources": [*names]}
    members: JsonObject = {"operation": operation, **named, "argumentsDigest": digest}
    return members | ({} if mode == MODE_DEFAULT else {"mode": mode}) | ({} if cost == 0 else {"cost": cost})


def _given_seqs(row: JsonObject) -> list[int]:
    """Return which entries gave the approvals of a row in the list."""
    return [seq for given in rows_in(row, "given") if isinstance(seq := given.get("seq"), int)]
