"""What lies between the entries of one ledger: each is the one that those before it call for.

Fed in order with every leaf and its evidence; keeps live state, and for a day what must not come again.
Source: docs/protocol.md 17.5, 12.5 to 12.9, 9, 17.9, 18.3, 18.4, 23.3, 23.5, 28 to 31.
"""

from __future__ import annotations

from verifier.entries import PARAMETER_DEFAULTS, Leaf
from verifier.replay import ends, rules, sessions, setting, tickets
from verifier.replay.admissions import allowed_faults
from verifier.replay.approvals import answered_faults
from verifier.replay.authority import authority_faults, scope_faults
from verifier.replay.batch import Batch
from verifier.replay.by_leaf import BY_LEAF
from verifier.replay.due import Due
from verifier.replay.judged import Judged, texts
from verifier.replay.once import Spent
from verifier.replay.overdue import end_delays, overdue_faults
from verifier.replay.people import People
from verifier.replay.refusals import ERRORS, refusal_faults
from verifier.replay.rehearsal import batch_refused_faults
from verifier.replay.returns import Returns, removal
from verifier.replay.roles import role_faults
from verifier.replay.settle import Call, Line
from verifier.replay.starts import Starts
from verifier.replay.state import State
from verifier.replay.things import Faults


class Relations:
    """The state that entries so far have built; `faults` moves it by one entry, `remarks` are of that entry."""

    def __init__(self) -> None:
        self.remarks: list[tuple[str, str]] = []
        self._starts = Starts()
        self._set(State())

        self._late: list[tuple[str, str]] = []  # what no entry ended before the one looked at

    def _set(self, state: State) -> None:
        self.state = state
        self._line = Line(state)
        self._call: Call | None = None  # what has to come next
        self._returns = Returns(state)
        self._batch = Batch()
        self._due = Due()
        self._spent = Spent(state.numbers["idempotencyMs"])

    def open(self, leaf: Leaf, genesis: bytes) -> None:
        """Take entry 0's operators, keys, and the parameters that relations depend on; `genesis` is its leaf hash."""
        parameters = leaf.value.get("parameters")
        own = parameters if isinstance(parameters, dict) else {}
        numbers = {name: n for name, n in own.items() if isinstance(n, int)}
        people = People(texts(leaf, "operators"), leaf.text("enroller"))
        self._set(State({**PARAMETER_DEFAULTS, **numbers}, people))
        self.state.keys.open(leaf, genesis)

    def faults(self, leaf: Leaf, entry: Judged) -> Faults:
        """Yield (code, text) of everything in which `leaf`, the one of `entry`, does not fit the entries before it."""
        self._late = []
        found = [*self._faults(leaf, entry)]
        yield from found or self._late  # what is wrong with the entry itself says more
        self._due.leave(self.state, leaf)
        self._starts.leave(leaf)

    def _faults(self, leaf: Leaf, entry: Judged) -> Faults:
        entry_type, state = leaf.entry_type, self.state
        name = entry_type.name
        state.now_ms = leaf.time_ms
        if self.remarks:
            self.remarks = []
        if self._starts:
            yield from self._starts.come_to(name)
        if leaf.value["durability"] != self._starts.durability:
            yield from self._starts.promise_faults(leaf)
        self._returns.is_called = False
        if self._batch or self._returns or leaf.batch is not None:  # nothing comes between these
            yield from self._batch.place_faults(leaf)
            yield from self._returns.faults(leaf, name)
        if self._call is not None or name == "wait.offered":
            yield from self._call_faults(leaf, name)
        is_request = entry_type.cause == "request"
        written = self._due.come_to(leaf.time_ms, is_request)
        if is_request:
            if leaf.batch is not None and self._batch.is_known:
                yield from self._batch.answer_faults(leaf)
                entry = self._batch.answer(leaf)
            yield from self._request_faults(name, leaf, entry, written)
        yield from self._decision_faults(name, leaf, entry)
        is_complete = not self._returns and not self._batch  # nothing is settled before that
        self._call = self._line.next() if state.ticket and is_complete else None

    def end_faults(self) -> Faults:
        """Yield what is missing when no entry comes any more: no checkpoint is signed in the middle of these."""
        if self._batch:
            yield "batch_broken", "the ledger ends before all commands of its last batch are answered (31.2)"
        if self._returns:
            yield "return_missing", "the ledger ends before everything is given back that has to be (29.4)"

    def _request_faults(self, name: str, leaf: Leaf, entry: Judged, written: int | None) -> Faults:
        """`written` entries of its own the gateway wrote at this moment; None where a request came before this one."""
        state, people = self.state, self.state.people
        if people.sessions:
            people.forget(state.now_ms)
        state.pleas.forget(state.now_ms)
        if leaf.action != "session.open":  # who opens one is new here
            yield from authority_faults(state, leaf)
        if leaf.batch is None:
            yield from self._spent.faults(leaf, entry)
            if written is not None:
                self._late = [*self._due.faults(state, written)]
            yield from overdue_faults(state, self._line, name, leaf, entry)
        if "error" not in leaf.value and (people.sessions or people.keys):  # without these nobody has a scope
            yield from scope_faults(state, leaf)
        if "holdUntilMs" in leaf.value and (people.sessions or "endsIfIdleAtMs" in leaf.value):
            yield from sessions.idle_faults(state, leaf)

    def _call_faults(self, leaf: Leaf, name: str) -> Faults:
        """What is offered is offered in the very next entries, in order of number.

        An offer of a lower number may come between them: that of a ticket that a delay has let go meanwhile. Whether
        it may be made at all is asked elsewhere.
        """
        call = self._call
        if call is None:
            if name == "wait.offered":
                end_delays(self.state, self._line, leaf.number("ticketSeq"))
            return
        self._call = None
        number = leaf.number("ticketSeq")
        if (name, number) == (call.entry, call.ticket.seq) or (name == "wait.offered" and number < call.ticket.seq):
            return
        self._line.rest()
        yield call.code, f"the entry before calls for {call.entry} of T{call.ticket.seq} right after it (23.5, 23.8)"

    def _decision_faults(self, name: str, leaf: Leaf, entry: Judged) -> Faults:
        rule = BY_LEAF.get(name)
        if rule is not None:
            yield from rule(self.state, leaf)
        elif name in ERRORS:
            yield from refusal_faults(self.state, leaf, entry)
        else:
            yield from self._rarer_faults(name, leaf, entry)
        if leaf.actor in self.state.people.sessions and sessions.hear(self.state, leaf, entry):
            self.remarks.append(("session_shared", "the session's key signed later with an older anchor: two users"))

    def _rarer_faults(self, name: str, leaf: Leaf, entry: Judged) -> Faults:
        """What needs the request as well, or tells of more than one entry."""
        state = self.state
        match name:
            case "lease.released":
                yield from ends.released_faults(state, leaf, entry)
            case "wait.queued":
                yield from tickets.queued_faults(state, leaf, entry.nonce or "")
            case "scheme.set":
                yield from setting.set_faults(state, leaf, entry.asked)
            case "admission.allowed":
                yield from allowed_faults(state, leaf, entry)
            case "approval.given" | "approval.declined" | "approval.withdrawn":
                yield from answered_faults(state, leaf, entry)
            case "rules.loaded":
                yield from rules.loaded_faults(state, leaf, entry.asked)
            case "session.opened":
                yield from sessions.opened_faults(state, leaf, entry)
            case "batch.received":
                self._batch.begin(leaf, entry)
            case "batch.refused":
                yield from batch_refused_faults(state, leaf, entry)
            case "service.started":
                yield from self._starts.start_faults(state, self._line, leaf)
            case "lease.holiday":
                yield from self._starts.holiday_faults(state, leaf)
            case "ledger.disputed":
                state.is_disputed = True
            case _:
                yield from self._end_faults(name, leaf)

    def _end_faults(self, name: str, leaf: Leaf) -> Faults:
        """What ends an actor, and what is given back then."""
        state, returns = self.state, self._returns
        match name:
            case "agent.removed" | "operator.removed":
                actors, behind = removal(state, leaf)
                yield from role_faults(state, leaf)
                returns.begin(leaf.seq, actors, behind)
            case "session.closed":
                yield from sessions.closed_faults(state, leaf, returns)
            case "session.ended":
                yield from sessions.ended_faults(state, leaf, returns)
            case "lease.returned":
                yield from returns.returned_faults(leaf)
            case "wait.removed":
                yield from tickets.removed_faults(state, leaf, is_gone=returns.is_called)
