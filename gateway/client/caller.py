"""One signed exchange with the gateway: sign, send, retry, verify.

House rules of this file:

* One intention is one idempotency key. Every attempt of it is signed anew, with a fresh nonce and time, so a retry can
  neither be decided twice nor be refused as a replay. A time-out says nothing about the outcome; only an answer does.
* Nothing that came back is believed before receipts.py has accepted it. A problem document is the gateway's bare word:
  it may make this client wait, give up or complain, never act.
* Of a session's own entries each one is told to its presence (presence.py), and so is the word that it is over.
* Time is corrected from verified first answers only, at most SKEW_MS_MAX. A gateway could otherwise talk a client into
  signing for some later hour.

Source: docs/protocol.md 4 (signed requests), 9 (idempotency), 20 (trust).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeVar

from gateway.actions import ACTIONS
from gateway.client.batch import Cut, cut_batch
from gateway.client.clock import Clock
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    ClockWrong,
    NotEnrolled,
    RequestRejected,
    SessionEnded,
    SessionRefused,
    SplitView,
    TrialOver,
    UnknownHistory,
    Unreachable,
    refusal_of,
)
from gateway.client.exchange import Reply, Transport
from gateway.client.holdings import Holdings
from gateway.client.presence import Presence
from gateway.client.profile import KEYS_PATH, Profile, refreshed
from gateway.client.receipts import (
    ANSWER_BYTES_MAX,
    Sent,
    VerifiedReceipt,
    check_is_answer_to,
    check_is_whole,
    has_other_signers,
    open_receipt,
    receipt_in,
)
from gateway.client.seen import Seen
from gateway.client.signing import Draft, new_idempotency_key, new_nonce, sign_request
from gateway.client.waiting import Jitter, pause_after_silence_ms
from verifier.checkpoint import Checkpoint
from verifier.entries import ACTION_PATHS, Leaf, check_body
from verifier.keyring import Keyring
from verifier.note import encode_note
from verifier.wire import JsonObject, Malformed, encode_canonical, parse_json

ATTEMPT_MS = 10_000  # one attempt; a gateway that needs longer for a decision is in trouble
RETRY_MS = 30_000  # all attempts of one call, unless the caller names a deadline
REFRESH_MS, REFRESH_PAUSE_MS = 3_000, 250  # for a newer key document
REFRESHES_MAX = 2  # for one answer
DISPUTE_MS = 5_000  # all notes of one dispute; whoever found it must be told soon
SKEW_MS_MAX = 120_000
LEASE_LIFE_S, OTHER_LIFE_S = 15, 60  # docs/protocol.md 4.10
LONG_AGO_MS = -(2**53)  # on the steady clock
DISPUTE_PATH = ACTIONS["ledger.dispute"].path
ENROL_PATH = ACTIONS["agent.enrol"].path
# Hears, once, that the gateway does not answer, and for how many milliseconds it will be tried.
OnSilence = Callable[[int], None]
# The gateway said "not now"; 409 counts when it comes with Retry-After (in flight) or says the nonce was seen.
_BUSY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_NOT_ENROLLED = frozenset({"agent_unknown", "agent_removed", "reader_unknown"})
_SESSION_REFUSED = frozenset(
    {
        "delegation_invalid",
        "delegation_wrong_ledger",
        "delegation_too_deep",
        "delegation_wider",
        "delegation_longer",
        "delegation_expired",
        "issuer_unknown",
        "issuer_removed",
        "session_taken",
        "too_many_sessions",
    }
)
# What is final though its status is one of those that come with a later try.
_FINAL: Mapping[str, type[RequestRejected]] = {
    **dict.fromkeys(_SESSION_REFUSED, SessionRefused),
    **dict.fromkeys(("session_ended", "session_expired"), SessionEnded),
    **dict.fromkeys(("trial_used_up", "trial_over"), TrialOver),
}

_log = logging.getLogger("tallystick.client")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decided:
    """A verified decision; `sent_ms` is the steady-clock instant at which the first attempt was sent."""

    receipt: VerifiedReceipt
    sent_ms: int

    def in_favour(self) -> Decided:
        """Return this decision if it is in our favour; a refusal is raised as the exception of its kind."""
        if self.receipt.leaf.text("error"):
            raise refusal_of(self.receipt)
        return self


@dataclass(slots=True)
class _Call:
    """One intention and what was sent for it so far."""

    action: str
    body: bytes
    idempotency_key: str
    sent_ms: int
    hold_s: int = 0
    nonces: set[str] = field(default_factory=set)
    outside_window: int = 0
    is_resumed: bool = False

    @property
    def path(self) -> str:
        return ACTION_PATHS[self.action]

    def sent(self, did: str) -> Sent:
        """Return what an answer must fit; one to an earlier process of this key was sent with a nonce that it knew."""
        nonces = None if self.is_resumed else self.nonces
        return Sent(self.action, did, self.path, self.body, self.idempotency_key, nonces)


class _Posted(NamedTuple):
    """One attempt and what came back; `wall_ms` is this machine's time at which it was sent."""

    reply: Reply
    nonce: str
    wall_ms: int


class _Again(Exception):
    """This attempt settled nothing; try again after `after_ms`, or give up with `error`."""

    def __init__(self, error: ClientError, after_ms: int = 0) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_ms = after_ms


class Caller:
    """Speaks to one gateway with one key. Safe for any number of tasks of one event loop."""

    def __init__(
        self,
        profile: Profile,
        transport: Transport,
        clock: Clock,
        jitter: Jitter,
        on_silence: OnSilence | None = None,
        seen: Seen | None = None,
    ) -> None:
        """`seen` is the memory of another caller of this process for the same ledger, to be shared with it."""
        self._on_silence = on_silence
        self.profile = profile
        self.clock = clock
        self.jitter = jitter
        self.seen: Seen = profile.open_seen() if seen is None else seen
        self.presence: Presence | None = None
        self.holdings = Holdings()
        self._transport = transport
        self._skew_ms = 0

    @property
    def did(self) -> str:
        return self.profile.key.did

    async def decide(
        self,
        action: str,
        members: JsonObject,
        *,
        until_ms: int | None = None,
        hold_ms: int = 0,
        idempotency_key: str | None = None,
    ) -> Decided:
        """Send one intention until the ledger has decided it; return the verified decision, refusals included.

        `until_ms` is a steady-clock deadline, RETRY_MS from now by default. `hold_ms`, in whole seconds, is how long
        the gateway may keep a claim waiting for a better answer; attempts and retries get that much longer. Malformed
        for a body that breaks the entry table (nothing was sent); Unreachable when the deadline came first (the outcome
        is unknown). `idempotency_key` is that of an earlier call that is to be gone on with; a new one by default.
        """
        call = self._call(action, members, hold_ms, idempotency_key)
        until_ms = call.sent_ms + RETRY_MS + hold_ms if until_ms is None else until_ms
        attempt_ms = ATTEMPT_MS + hold_ms
        with self._watched():
            receipt = await self._retrying(
                lambda timeout_ms: self._attempt(call, timeout_ms), until_ms, attempt_ms=attempt_ms
            )
        self._note_entry(receipt, call)
        self.holdings.note(receipt, call.sent_ms)
        return Decided(receipt, call.sent_ms)

    async def submit(
        self, members: JsonObject, *, until_ms: int | None = None, idempotency_key: str | None = None
    ) -> tuple[Decided, ...]:
        """Send one batch until the ledger has decided it; return the verified decision of each command, in order.

        Refusals are among them. A batch of which nothing was done is raised as BatchRefused.
        """
        call = self._call("batch.submit", members, idempotency_key=idempotency_key)
        with self._watched():
            receipts = await self._retrying(lambda timeout_ms: self._attempt_batch(call, timeout_ms), until_ms)
        self._note_entry(receipts[-1], call)
        if receipts[0].leaf.batch is None:
            raise refusal_of(receipts[0])
        for receipt in receipts:
            self.holdings.note(receipt, call.sent_ms)
        return tuple(Decided(receipt, call.sent_ms) for receipt in receipts)

    async def enrol(self, token: str, members: JsonObject, *, until_ms: int | None = None) -> VerifiedReceipt:
        """Send an enrolment under an API key until it is decided; return the verified decision.

        The key names the intention, so that a retry never enrols twice. Whether the decision is about this key is the
        caller's to check.
        """
        content = encode_canonical(members)
        headers = {
            "host": self.profile.address.authority, "content-type": "application/json",
            "authorization": f"Bearer {token}",
        }  # fmt: skip
        return await self._retrying(lambda timeout_ms: self._enrol(headers, content, timeout_ms), until_ms)

    async def _enrol(self, headers: Mapping[str, str], content: bytes, timeout_ms: int) -> VerifiedReceipt:
        try:
            reply = await self._transport.send("POST", ENROL_PATH, headers, content, timeout_ms)
        except Unreachable as error:
            raise _Again(error) from error
        receipt_bytes = receipt_in(reply.unverified_body)
        if receipt_bytes is None:
            raise await self._problem(reply, None)
        receipt = await self.open_receipt(receipt_bytes)
        await self.remember(receipt.checkpoint)
        return receipt

    async def open_receipt(self, data: bytes) -> VerifiedReceipt:
        """Return a verified receipt; AnswerRefused. Keys that are not known yet are looked up."""
        return await self.verified(data, partial(open_receipt, data))

    async def verified(self, data: bytes, opened: Callable[[Keyring], T]) -> T:
        """Return what `opened` makes of `data` under the pinned keys.

        If it is not accepted, and other keys of this ledger signed it than those the pinned document has in force, the
        ledger may have changed its keys: the document is fetched anew, checked under the pinned root, and `data` looked
        at again. Twice at most: the first newer document may be the one before the last step of a rotation.
        """
        for _ in range(REFRESHES_MAX):
            pinned = self.profile.keyring
            try:
                return opened(pinned)
            except (AnswerRefused, Malformed):
                is_news = has_other_signers(data, pinned, self.profile.address.origin)
                if not is_news or not await self._refresh_keys(pinned):
                    raise
        return opened(self.profile.keyring)

    async def _refresh_keys(self, pinned: Keyring) -> bool:
        """Fetch the key document; say whether another than `pinned` is kept now, newer and of the pinned root.

        Between the entry that ends a key and the document that says so is a moment: for so long it is asked for again.
        Another call of this agent may have found it meanwhile.
        """
        until_ms = self.clock.steady_ms() + REFRESH_MS
        while self.profile.keyring is pinned:
            try:
                keyring = refreshed(self.profile, await self.fetch(KEYS_PATH, until_ms=until_ms))
            except (ClientError, Malformed, OSError) as error:
                _log.warning(
                    "other keys signed than those known here, and no newer key document is to be had: %s", error
                )
                return False
            if keyring is not None:
                self.pin(keyring)
            elif self.clock.steady_ms() + REFRESH_PAUSE_MS >= until_ms:
                return self.profile.keyring is not pinned
            else:
                await self.clock.sleep(REFRESH_PAUSE_MS)
        return True

    def pin(self, keyring: Keyring) -> None:
        """Judge by these keys from now on; they are of the same root and ledger."""
        self.profile = replace(self.profile, keyring=keyring)
        self.seen.keyring = keyring

    def _call(self, action: str, members: JsonObject, hold_ms: int = 0, idempotency_key: str | None = None) -> _Call:
        body: JsonObject = {"ledger": self.profile.address.origin, "actorDid": self.did, **members}
        check_body(action, body)
        call = _Call(action, encode_canonical(body), new_idempotency_key(), self.clock.steady_ms(), hold_ms // 1000)
        if idempotency_key is not None:
            call.idempotency_key, call.is_resumed = idempotency_key, True
        return call

    @property
    def ledger_now_ms(self) -> int:
        """The ledger's time as far as this machine knows it."""
        return self.clock.wall_ms() + self._skew_ms

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell a session's presence that the session is over, whoever of its tasks hears it."""
        try:
            yield
        except (SessionEnded, NotEnrolled) as error:
            if self.presence is not None:
                self.presence.end(error.code)
            raise

    def _note_entry(self, receipt: VerifiedReceipt, call: _Call) -> None:
        if self.presence is not None:
            self.presence.note(receipt.leaf.time_ms, call.sent_ms)

    async def read(
        self, path: str, query: str = "", *, until_ms: int | None = None, is_patient: bool = False
    ) -> JsonObject:
        """Return the answer to a signed read: a picture for people, proven by nothing.

        Where nobody listens it fails after one more try; `is_patient` goes on as a decision does.
        """
        return await self._retrying(lambda timeout_ms: self._read(path, query, timeout_ms), until_ms, is_patient)

    async def fetch(self, path: str, *, until_ms: int | None = None) -> bytes:
        """Return the unverified bytes of a public document; where nobody listens it fails after one more try."""
        return await self._retrying(lambda timeout_ms: self._fetch(path, timeout_ms), until_ms, is_patient=False)

    def tell_silence(self, left_ms: int) -> None:
        """Say once, to whoever asked to hear it, that the gateway does not answer and for how long to go on."""
        if self._on_silence is not None:
            self._on_silence(left_ms)
            self._on_silence = None

    async def dispute(self, *notes: bytes) -> None:
        """Show the gateway checkpoints that its own key signed, each until it is taken or DISPUTE_MS are over.

        Best effort: a gateway in trouble says "not now", a lying one won't listen.
        """
        until_ms = self.clock.steady_ms() + DISPUTE_MS
        for note in notes:
            try:
                await self._retrying(partial(self._post_dispute, note), until_ms)
            except (Unreachable, RequestRejected) as error:
                _log.warning("the dispute could not be posted: %s", error)

    async def _post_dispute(self, note: bytes, timeout_ms: int) -> None:
        headers = {"host": self.profile.address.authority, "content-type": "text/plain"}
        try:
            reply = await self._transport.send("POST", DISPUTE_PATH, headers, note, timeout_ms)
        except Unreachable as error:
            raise _Again(error) from error
        if reply.status in _BUSY_STATUSES:
            raise _Again(Unreachable(f"the gateway says: not now ({_parse_problem(reply)})"), _retry_after_ms(reply))
        if reply.status != 200:
            raise _parse_problem(reply)

    async def remember(self, checkpoint: Checkpoint) -> None:
        """Keep a verified checkpoint; a contradiction is posted as a dispute and raised as SplitView."""
        try:
            self.seen.remember(checkpoint)
        except SplitView as split:
            await self.dispute(split.ours, split.theirs)
            raise

    async def _retrying(
        self,
        attempt: Callable[[int], Awaitable[T]],
        until_ms: int | None,
        is_patient: bool = True,
        attempt_ms: int = ATTEMPT_MS,
    ) -> T:
        deadline_ms = self.clock.steady_ms() + RETRY_MS if until_ms is None else until_ms
        is_unknown = False  # of any attempt: a later one that says no does not say what became of an earlier one
        for number in itertools.count():
            try:
                return await attempt(min(attempt_ms, deadline_ms - self.clock.steady_ms()))
            except ClientError as error:
                error.is_unknown = error.is_unknown or is_unknown
                raise
            except _Again as again:
                is_unknown = again.error.is_unknown = again.error.is_unknown or is_unknown
                if isinstance(again.error, Unreachable):
                    if again.error.is_refused and not is_patient and number > 0:
                        raise again.error from again.error.__cause__
                    if again.error.reason == "unreachable" and is_patient:
                        self.tell_silence(deadline_ms - self.clock.steady_ms())
                pause_ms = pause_after_silence_ms(number, again.after_ms, self.jitter)
                if self.clock.steady_ms() + pause_ms >= deadline_ms:
                    raise again.error from again.error.__cause__
                await self.clock.sleep(pause_ms)
        raise AssertionError("count() does not end")

    async def _attempt(self, call: _Call, timeout_ms: int) -> VerifiedReceipt:
        sent = await self._post(call, timeout_ms)
        receipt_bytes = receipt_in(sent.reply.unverified_body)
        if receipt_bytes is None:
            raise await self._problem(sent.reply, call)
        receipt = await self.open_receipt(receipt_bytes)
        await self._accept(receipt.leaf, receipt.checkpoint, call, sent)
        return receipt

    async def _attempt_batch(self, call: _Call, timeout_ms: int) -> tuple[VerifiedReceipt, ...]:
        """Return the receipts of all commands, or the one of a batch that was refused as a whole."""
        sent = await self._post(call, timeout_ms)
        receipt_bytes = receipt_in(sent.reply.unverified_body)
        if receipt_bytes is not None:
            receipt = await self.open_receipt(receipt_bytes)
            await self._accept(receipt.leaf, receipt.checkpoint, call, sent)
            if not receipt.leaf.text("error"):
                raise AnswerRefused(f"entry {receipt.seq} is {receipt.type}, which answers no command of the batch")
            return (receipt,)
        cut = cut_batch(sent.reply.unverified_body)
        if cut is None:
            raise await self._problem(sent.reply, call)
        return await self._open_batch(cut, call, sent)

    async def _open_batch(self, cut: Cut, call: _Call, sent: _Posted) -> tuple[VerifiedReceipt, ...]:
        """Each receipt proves the header, and with it the request, beside its own command."""
        receipts = tuple([await self.open_receipt(content) for content in cut.receipts])
        await self._accept(cut.header, receipts[0].checkpoint, call, sent)
        check_is_whole(cut.header, receipts)
        return receipts

    async def _post(self, call: _Call, timeout_ms: int) -> _Posted:
        nonce = new_nonce()
        call.nonces.add(nonce)
        address = self.profile.address
        draft = Draft("POST", address.authority, call.path, "", self.seen.anchor, call.body, call.idempotency_key)
        life_s = LEASE_LIFE_S if call.action.startswith(("lease.", "batch.")) else OTHER_LIFE_S
        sent_wall_ms = self.clock.wall_ms()
        reply = await self._send(draft, nonce, life_s, timeout_ms, call.hold_s)
        return _Posted(reply, nonce, sent_wall_ms)

    async def _accept(self, leaf: Leaf, checkpoint: Checkpoint, call: _Call, sent: _Posted) -> None:
        """Take a verified leaf as the answer to what was sent, or raise AnswerRefused."""
        nonce = check_is_answer_to(leaf, call.sent(self.did))
        if nonce == sent.nonce:
            self._note_time(leaf.time_ms, sent.wall_ms, self.clock.wall_ms())
        elif nonce not in call.nonces:
            call.sent_ms = LONG_AGO_MS  # by an earlier process, nobody knows when: it gives no trust
        await self.remember(checkpoint)

    async def _read(self, path: str, query: str, timeout_ms: int) -> JsonObject:
        draft = Draft("GET", self.profile.address.authority, path, query, self.seen.anchor)
        reply = await self._send(draft, new_nonce(), LEASE_LIFE_S, timeout_ms)
        if reply.status != 200:
            raise await self._problem(reply, None)
        try:
            return parse_json(reply.unverified_body, bytes_max=ANSWER_BYTES_MAX)
        except Malformed as error:
            raise AnswerRefused(f"the answer to {path} can't be read: {error}") from error

    async def _fetch(self, path: str, timeout_ms: int) -> bytes:
        try:
            reply = await self._transport.send("GET", path, {"host": self.profile.address.authority}, None, timeout_ms)
        except Unreachable as error:
            raise _Again(error) from error
        if reply.status != 200:
            raise await self._problem(reply, None)
        return reply.unverified_body

    async def _send(self, draft: Draft, nonce: str, life_s: int, timeout_ms: int, hold_s: int = 0) -> Reply:
        created_s = (self.clock.wall_ms() + self._skew_ms) // 1000
        headers = sign_request(draft, self.profile.key, created_s=created_s, nonce=nonce, life_s=life_s)
        if hold_s:
            headers["prefer"] = f"wait={hold_s}"  # a wish, and nothing a signature has to cover
        target = f"{draft.path}?{draft.query}" if draft.query else draft.path
        try:
            return await self._transport.send(draft.method, target, headers, draft.body, timeout_ms)
        except Unreachable as error:
            raise _Again(error) from error

    async def _problem(self, reply: Reply, call: _Call | None) -> Exception:
        """Return what to raise for an answer without a receipt."""
        problem = _parse_problem(reply)
        after_ms = _retry_after_ms(reply)
        if problem.code in _FINAL:
            return _FINAL[problem.code](problem.status, problem.code, problem.detail, ADVICE_UNSIGNED[problem.code])
        if reply.status in _BUSY_STATUSES or (reply.status == 409 and (after_ms or problem.code == "nonce_reused")):
            reason = "throttled" if reply.status in (429, 503) else "unreachable"
            error = Unreachable(f"the gateway says: not now ({problem})", reason, is_unknown=reply.status != 429)
            return _Again(error, after_ms)
        if reply.status < 400:
            return AnswerRefused(f"the gateway answered {reply.status} without a receipt, which proves nothing")
        if problem.code == "outside_window":
            return self._outside_window(problem, call)
        if problem.code == "unknown_history":
            return await self._unknown_history(problem)
        if problem.code in ("operator_removed", "token_invalid", "reader_limited"):
            return NotEnrolled(problem.status, problem.code, problem.detail, ADVICE_UNSIGNED[problem.code])
        if problem.code in _NOT_ENROLLED:
            return await self._not_enrolled(problem, call)
        return problem

    async def _not_enrolled(self, problem: RequestRejected, call: _Call | None) -> RequestRejected:
        if self.presence is not None:  # a ledger forgets a session some time after its end
            return SessionEnded(problem.status, problem.code, problem.detail, ADVICE_UNSIGNED["session_ended"])
        enrolment = f"tallystick agent add {self.did} --name LABEL"
        advice = f"Give your DID to an operator: {enrolment}"
        if problem.code == "agent_removed":
            advice = f"What the operator would do: {enrolment}"
        elif call is not None and await self._is_operator():
            advice = "This is an operator's key: it enrols agents and holds no leases. Join with a profile of your own."
        return NotEnrolled(problem.status, problem.code, problem.detail, advice)

    async def _is_operator(self) -> bool:
        """Return whether this key is listed as an operator in force; not proven, for it only words a sentence."""
        try:
            rows = (await self._read(ACTIONS["operator.list"].path, "", ATTEMPT_MS)).get("operators")
        except (ClientError, _Again):
            return False
        listed = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return any(row.get("did") == self.did and "removedSeq" not in row for row in listed)

    def _outside_window(self, problem: RequestRejected, call: _Call | None) -> Exception:
        """Sign once more (the attempt may have been held up on its way); the second time it is the clock."""
        self._skew_ms = 0
        error = ClockWrong(problem.status, problem.code, problem.detail, _FIX_CLOCK)
        if call is None or call.outside_window:
            return error
        call.outside_window += 1
        return _Again(error)

    async def _unknown_history(self, problem: RequestRejected) -> Exception:
        """The gateway denies a checkpoint: show it the note, whose signature is its own."""
        if self.seen.newest.note.lines:  # a newcomer's entry 0 is pinned, not signed
            await self.dispute(encode_note(self.seen.newest.note))
        return UnknownHistory(problem.status, problem.code, problem.detail, _KEEP_NOTE)

    def _note_time(self, time_ms: int, sent_ms: int, received_ms: int) -> None:
        """Take the smallest skew that explains a log time outside [sent, received]; ignore more than SKEW_MS_MAX."""
        skew_ms = min(time_ms - sent_ms, 0) + max(time_ms - received_ms, 0)
        if abs(skew_ms) <= SKEW_MS_MAX:
            self._skew_ms = skew_ms
        else:
            _log.warning(
                "this machine's clock differs from the ledger's by %d s: fix this machine's clock", skew_ms // 1000
            )


# What is next after a rejection that somebody can do something about.
ADVICE_UNSIGNED: Mapping[str, str] = {
    "delegation_invalid": "Make the statement anew with this version: tallystick session delegate.",
    "delegation_wrong_ledger": "The statement names another ledger: make it with a profile of this one.",
    "delegation_too_deep": "A session lends nothing on; an operator lends to an agent, and that to a session.",
    "delegation_wider": "Ask for no more than the statement above lends: fewer names, or less with --may. "
    "An agent on trial opens no sessions.",
    "delegation_longer": "Ask for no longer than the statement above lasts.",
    "delegation_expired": "Fix this machine's clock (NTP) if it is wrong; else ask for a new statement.",
    "issuer_unknown": "Its signer is no agent or operator here: tallystick agent list",
    "issuer_removed": "Its signer, or the operator behind it, was removed: ask an operator who is in force.",
    "session_taken": "A session needs a key that was nothing here before: open it anew, with a fresh folder.",
    "too_many_sessions": "Close what is not needed: tallystick session list, tallystick session revoke DID",
    "session_ended": "Open another: tallystick session open",
    "session_expired": "Open another: tallystick session open",
    "trial_used_up": "Enrol with a live API key to go on: tallystick agent enrol",
    "trial_over": "Enrol with a live API key to go on: tallystick agent enrol",
    "token_invalid": "Ask an operator for an API key that is in force: tallystick apikey issue",
    "reader_limited": "An agent on trial sees its own entries only, and API keys are seen by operators.",
    "operator_removed": "Ask one that is in force to enrol this key: tallystick agent add DID",
}
_FIX_CLOCK = "Fix this machine's clock (NTP), then try again."
_KEEP_NOTE = "Keep seen.note: it carries the log's signature, and it was posted to the ledger's dispute door."


def _parse_problem(reply: Reply) -> RequestRejected:
    """Return what a problem document says; a body that is none gives the bare status."""
    try:
        members = parse_json(reply.unverified_body, bytes_max=ANSWER_BYTES_MAX)
    except Malformed:
        members = {}
    code, detail = members.get("code"), members.get("detail")
    return RequestRejected(reply.status, _plain(code, "no_answer"), _plain(detail, "no reason given"))


def _plain(value: object, default: str) -> str:
    """Return unverified text fit for a terminal: short, printable, on one line."""
    if not isinstance(value, str):
        return default
    return "".join(letter if letter.isprintable() else "?" for letter in value[:500])


def _retry_after_ms(reply: Reply) -> int:
    """Return Retry-After in milliseconds, 0 when it is absent or a date."""
    text = reply.headers.get("retry-after", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) <= 6 else 0
