"""What lies between the entries of one ledger: each is the one that those before it call for.

Fed in order with every leaf and its evidence; keeps live state, and for a day what must not come again.
Source: docs/protocol.md 17.5, 12.5 to 12.9, 9, 18.3, 18.4, 23.3, 23.5.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256

from verifier.entries import IDEMPOTENCY_MS, PARAMETER_DEFAULTS, SKEW_MS, WINDOW_S_MAX, Leaf
from verifier.replay import ends, handover, leases, setting, tickets
from verifier.replay.judged import Judged, texts
from verifier.replay.overdue import delay_faults, overdue_faults
from verifier.replay.people import People
from verifier.replay.refusals import ERRORS, refusal_faults, repeat_faults
from verifier.replay.settle import Call, Line
from verifier.replay.state import State
from verifier.replay.things import Faults

# No accepted nonce can still be inside its window after this much log time.
_NONCE_MS_MAX = WINDOW_S_MAX * 1000 + 2 * SKEW_MS


class _Once:
    """Keys that must not come again before their time; forgotten after `keep_ms`, so memory stays bounded."""

    __slots__ = ("_keep_ms", "_order", "_until")

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._until: dict[bytes, int] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def is_again(self, text: str, time_ms: int, until_ms: int) -> bool:
        """Note `text` until `until_ms`; say whether an earlier note of it still holds at `time_ms`."""
        while self._order and self._order[0][0] < time_ms:
            _, old = self._order.popleft()
            if self._until.get(old, time_ms) < time_ms:
                del self._until[old]
        key = sha256(text.encode("utf-8")).digest()[:16]
        is_again = self._until.get(key, -1) > time_ms
        self._until[key] = until_ms
        self._order.append((time_ms + self._keep_ms, key))
        return is_again


class Relations:
    """The state that entries so far have built; `faults` moves it by one entry."""

    def __init__(self) -> None:
        self.state = State()
        self._line = Line(self.state)
        self._call: Call | None = None  # what has to come next
        self._nonces = _Once(_NONCE_MS_MAX)
        self._keys = _Once(IDEMPOTENCY_MS)
        self._time_ms: int | None = None  # of the entry before
        self._started: tuple[int, int] | None = None  # of a start whose holiday has not come: its seq, the ms before it

    def open(self, leaf: Leaf) -> None:
        """Take entry 0's operators and the parameters that relations depend on."""
        parameters = leaf.value.get("parameters")
        own = parameters if isinstance(parameters, dict) else {}
        numbers = {name: n for name, n in own.items() if isinstance(n, int)}
        self.state = State({**PARAMETER_DEFAULTS, **numbers}, People(texts(leaf, "operators")))
        self._line = Line(self.state)
        self._keys = _Once(self.state.numbers["idempotencyMs"])

    def faults(self, leaf: Leaf, entry: Judged) -> Faults:
        """Yield (code, text) of everything in which `leaf`, the one of `entry`, does not fit the entries before it."""
        entry_type, state = leaf.entry_type, self.state
        name = entry_type.name
        state.now_ms = leaf.time_ms
        if self._started is not None and name != "lease.holiday":
            yield "holiday_missing", "the entry after service.started is its lease.holiday (18.4)"
            self._started = None
        yield from self._call_faults(leaf, name)
        if entry_type.cause == "request":
            yield from state.people.faults(leaf)
            yield from self._once_faults(leaf, entry)
            yield from overdue_faults(state, self._line, name, leaf)
        yield from self._decision_faults(name, leaf, entry)
        self._call = self._line.next() if state.ticket else None
        self._time_ms = leaf.time_ms

    def _call_faults(self, leaf: Leaf, name: str) -> Faults:
        """What is offered is offered in the very next entries, in order of number.

        An offer of a lower number may come between them: that of a ticket that a delay has let go meanwhile. Whether
        it may be made at all is asked elsewhere.
        """
        call = self._call
        if call is None:
            if name == "wait.offered":
                self._end_delays(leaf)
            return
        self._call = None
        number = leaf.number("ticketSeq")
        if (name, number) == (call.entry, call.ticket.seq) or (name == "wait.offered" and number < call.ticket.seq):
            return
        self._line.rest()
        yield call.code, f"the entry before calls for {call.entry} of T{call.ticket.seq} right after it (23.5, 23.8)"

    def _end_delays(self, leaf: Leaf) -> None:
        """Nothing calls for an offer, so a delay that has ended does: look at who was kept out by it, one by one."""
        left = []
        while (delay := self.state.undelay()) is not None:
            call = self._line.next()
            if call is not None and call.ticket.seq == leaf.number("ticketSeq"):
                break
            self._line.rest()
            if call is not None:
                left.append(delay)
        for delay in left:
            self.state.delay(delay)

    def _decision_faults(self, name: str, leaf: Leaf, entry: Judged) -> Faults:
        state = self.state
        match name:
            case "lease.granted":
                yield from leases.granted_faults(state, leaf)
            case "lease.extended" | "lease.renewed":
                yield from ends.prolonged_faults(state, leaf)
            case "lease.released":
                yield from ends.released_faults(state, leaf, entry)
            case "lease.expired":
                yield from ends.expired_faults(state, leaf)
            case "release.repeated" | "break.repeated":
                yield from repeat_faults(state, leaf)
            case _ if name in ERRORS:
                yield from refusal_faults(state, leaf, entry)
            case "lease.claimed" | "lease.changed" | "lease.transferred" | "lease.broken" | "transfer.offered":
                yield from self._rarer_faults(name, leaf)
            case "wait.queued":
                yield from tickets.queued_faults(state, leaf, entry.nonce or "")
            case _ if name.startswith("wait."):
                yield from self._ticket_faults(name, leaf)
            case _:
                yield from self._setting_faults(name, leaf, entry)

    def _rarer_faults(self, name: str, leaf: Leaf) -> Faults:
        match name:
            case "lease.claimed":
                yield from tickets.claimed_faults(self.state, leaf)
            case "lease.changed":
                yield from leases.changed_faults(self.state, leaf)
            case "lease.transferred":
                yield from handover.transferred_faults(self.state, leaf)
            case "lease.broken":
                yield from ends.broken_faults(self.state, leaf)
            case "transfer.offered":
                yield from handover.offered_faults(self.state, leaf)

    def _ticket_faults(self, name: str, leaf: Leaf) -> Faults:
        match name:
            case "wait.polled":
                yield from tickets.polled_faults(self.state, leaf)
            case "wait.cancelled":
                yield from tickets.cancelled_faults(self.state, leaf)
            case "wait.offered":
                yield from tickets.offered_faults(self.state, leaf)
            case "wait.reserved":
                yield from tickets.reserved_faults(self.state, leaf)
            case "wait.resumed":
                yield from tickets.resumed_faults(self.state, leaf)
            case "wait.removed":
                yield from tickets.removed_faults(self.state, leaf)

    def _setting_faults(self, name: str, leaf: Leaf, entry: Judged) -> Faults:
        match name:
            case "agent.added":
                self.state.people.add(leaf)
            case "agent.removed":
                self.state.people.remove(leaf)
            case "scheme.set":
                yield from setting.set_faults(self.state, leaf, entry.asked)
            case "service.started":
                yield from self._start_faults(leaf)
            case "lease.holiday":
                yield from self._holiday_faults(leaf)
            case "ledger.disputed":
                self.state.is_disputed = True

    def _once_faults(self, leaf: Leaf, entry: Judged) -> Faults:
        if entry.nonce is None:
            return
        if self._nonces.is_again(f"{leaf.principal} {entry.nonce}", leaf.time_ms, entry.nonce_until_ms):
            yield "nonce_reused", "the principal's nonce was used before and is still live (9.3)"
        until_ms = leaf.time_ms + self.state.numbers["idempotencyMs"]
        if self._keys.is_again(f"{leaf.principal} {entry.idempotency_key}", leaf.time_ms, until_ms):
            yield "idempotency_key_reused", "the principal's idempotency key was decided before and is still live (9.2)"

    def _start_faults(self, leaf: Leaf) -> Faults:
        """The gap is the log time that passed since the entry before.

        A delay that had ended by then is over; the holiday moves the end of one that the outage met (7.12).
        """
        gap_ms = leaf.time_ms - (leaf.time_ms if self._time_ms is None else self._time_ms)
        self.state.now_ms -= gap_ms
        yield from delay_faults(self.state, self._line)
        self.state.now_ms = leaf.time_ms
        if leaf.number("gapMs") != gap_ms:
            yield "gap_wrong", f"gapMs is not {gap_ms}, the time since the entry before (18.3)"
        self._started = leaf.seq, leaf.time_ms - gap_ms

    def _holiday_faults(self, leaf: Leaf) -> Faults:
        """One holiday after each start, as long as the outage and no longer than entry 0 allows."""
        started, self._started = self._started, None
        if started is None or leaf.number("startedSeq") != started[0]:
            yield "citation_wrong", "startedSeq is not the service.started right before (18.4)"
            return
        until_ms = leaf.time_ms + min(self.state.numbers["holidayMs"], leaf.time_ms - started[1])
        if leaf.number("untilMs") != until_ms:
            yield "holiday_wrong", f"untilMs is not {until_ms}, timeMs + the shorter of holidayMs and the outage (18.4)"
        self.state.holiday_ms = max(self.state.holiday_ms, until_ms)
