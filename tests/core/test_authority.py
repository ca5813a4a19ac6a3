"""Who may act: every role and every way to lose it, by the order of the ledger alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.authority import Who, identify
from gateway.core.draft import Draft
from gateway.core.lookup import counter_at
from gateway.core.record_keys import ENROLLER_KEY, OPERATORS_KEY
from gateway.core.records import Enroller, Lease, Principal, Session, Ticket
from gateway.core.refusal import Refusal
from tests.core.crew import Crew
from tests.core.requests import (
    Ask,
    acquire,
    add,
    add_operator,
    ask,
    beat,
    break_,
    chain,
    close,
    did_of,
    enrol,
    open_session,
    release,
    remove,
    remove_operator,
    set_scheme,
    transfer,
)

A, OP, OP2 = (did_of(name) for name in ("A", "op", "op2"))


def cast() -> Crew:
    """Return a ledger in which everybody there can be is there, in force and not."""
    one = Crew()
    one.open("s", "A")
    one.open("o", "op")
    one.open("closed", "A")
    one.close("closed")
    one.open("of-gone", "B")
    one.tell(remove("op", "B"))
    one.tell(add("op", "C", agentCustody="gateway"))
    one.tell(enrol("E", one.key("k", "trial")))
    one.tell(add_operator("op", "op3"))
    one.tell(add("op3", "Y"))
    one.open("of-op3", "op3")
    one.tell(remove_operator("op", "op3"))
    return one


WHO = {
    "A": (A, OP),
    "s": (A, OP),
    "o": (did_of("o"), OP),
    "C": (did_of("C"), OP),
    "E": (did_of("E"), OP),
    "X": (did_of("X"), OP2),
    "B": "agent_removed",
    "closed": "session_ended",
    "of-gone": "session_ended",
    "of-op3": "session_ended",
    "Y": "operator_removed",
    "op": "agent_unknown",  # an operator holds nothing
    "op3": "agent_unknown",
    "enroller": "agent_unknown",
    "nobody": "agent_unknown",
}


@pytest.mark.parametrize(("name", "wanted"), WHO.items(), ids=WHO)
def test_who_acts_for_whom(name: str, wanted: str | tuple[str, str]) -> None:
    one = cast()
    who = identify(Draft(one.shelf), acquire(name, "repo:x").signed(), one.t_ms)
    if isinstance(who, Refusal):
        assert who.name == wanted and not who.is_receipted
        return
    assert (who.principal, who.on_behalf_of) == wanted
    assert who.is_custodial == (name == "C")
    assert (who.session is not None, who.trial is not None) == (name in "so", name == "E")


OPERATORS_OWN: list[Callable[[str], Ask]] = [
    lambda by: add(by, "new"),
    lambda by: remove(by, "A"),
    lambda by: add_operator(by, "new"),
    lambda by: remove_operator(by, "op2"),
    lambda by: ask("apikey.issue", by, keyDigest="0" * 64, kind="live"),
    lambda by: ask("apikey.revoke", by, keyDigest="0" * 64),
    lambda by: set_scheme(by, "doc", "read-safe"),
    lambda by: break_(by, "repo:x", 7),
]


@pytest.mark.parametrize("number", range(len(OPERATORS_OWN)))
def test_what_only_operators_do_is_refused_to_all_others(number: int) -> None:
    one, make = cast(), OPERATORS_OWN[number]
    for name, wanted in WHO.items():
        if name == "op":
            assert identify(Draft(one.shelf), make("op").signed(), one.t_ms) == Who(OP, OP)
            continue
        told = one.refuses(make(name))
        if name == "enroller" and number == 0:
            assert told == "operator_required"
        else:
            assert told == (wanted if isinstance(wanted, str) else "operator_required"), name


def test_the_enroller_stands_in_entry_0_and_has_no_role() -> None:
    one = Crew()
    assert one.shelf.get(ENROLLER_KEY) == Enroller(did_of("enroller"))


def test_authority_counts_from_the_next_entry_on_and_ends_with_the_entry_that_ends_it() -> None:
    """All in one batch: each command is judged by what was written before it, whoever sent what first."""
    one = Crew()
    batch = one.run(
        one.t_ms,
        acquire("E", "repo:e"),
        add("op", "E"),
        acquire("E", "repo:e"),
        open_session("s", chain("E", "s")),
        beat("s"),
        remove("op", "E"),
        beat("s"),
        acquire("E", "repo:f"),
        add("op2", "E"),
        acquire("E", "repo:e"),
        beat("s"),
    )
    assert [getattr(getattr(answer, "refusal", None), "name", "") for answer in batch.answers] == [
        "agent_unknown", "", "", "", "", "", "session_ended", "agent_removed", "", "", "session_ended",
    ]  # fmt: skip


def test_a_session_of_another_operators_agent_is_closed_by_any_operator_but_transfers_need_the_holder() -> None:
    one = Crew()
    one.open("x", "X")
    lease_id = one.hold("x", "repo:x")
    token = one.leases()[lease_id].fencing_token
    assert one.refuses(transfer("X", lease_id, token, "A")) == "lease_not_yours", "its agent is another holder"
    assert one.tell(transfer("op", lease_id, token, "A")) == "transfer.offered"
    assert one.tell(close("op", "x")) == "session.closed"


def test_replays_of_a_key_that_may_not_act_any_more_are_not_answered() -> None:
    one = Crew()
    one.open("s", "A")
    asked = one.now(acquire("s", "repo:x"))
    one.tell(asked)
    assert one.tell(asked.again()) == "replay"
    one.close("s")
    assert one.refuses(asked.again()) == "session_ended"


# --- a model of its own ---------------------------------------------------------------------------------------------

OPERATORS, AGENTS, SESSIONS = ("op", "op2", "op3"), ("A", "B", "X"), ("s1", "s2", "s3", "s4")
KEYS = (*OPERATORS, *AGENTS, *SESSIONS)


@dataclass
class Model:
    """Roles as sets and maps of names; times never matter, because no delegation ends in a run."""

    operators: set[str] = field(default_factory=lambda: {"op", "op2"})
    agents: dict[str, str] = field(default_factory=lambda: {"A": "op", "B": "op", "X": "op2"})  # in force
    sessions: dict[str, tuple[str, str]] = field(default_factory=dict)  # open: principal, operator
    ended: set[str] = field(default_factory=set)

    def may_act(self, key: str) -> bool:
        if key in self.sessions:
            return True
        return key not in self.ended and self.agents.get(key) in self.operators

    def add_operator(self, by: str, key: str) -> None:
        if by in self.operators and key not in (*self.agents, *self.sessions, *self.ended):
            self.operators.add(key)

    def remove_operator(self, by: str, key: str) -> None:
        if by in self.operators and key in self.operators and len(self.operators) > 1:
            self.operators.discard(key)
            self._end({name for name, (_, operator) in self.sessions.items() if operator == key})

    def add(self, by: str, key: str) -> None:
        if by not in self.operators or key in (*self.operators, *self.sessions, *self.ended):
            return
        if self.agents.get(key, by) == by or self.agents[key] not in self.operators:
            self.agents[key] = by

    def remove(self, by: str, key: str) -> None:
        if by in self.operators and key in self.agents:
            del self.agents[key]
            self._end({name for name, (principal, _) in self.sessions.items() if principal == key})

    def open(self, by: str, key: str) -> None:
        if key in (*self.operators, *self.agents, *self.sessions, *self.ended):
            return
        if by in self.operators:
            self.sessions[key] = (key, by)
        elif by in self.agents and self.agents[by] in self.operators:
            self.sessions[key] = (by, self.agents[by])

    def close(self, by: str, key: str) -> None:
        is_known = by in self.operators or by in self.sessions or self.may_act(by)
        if key in self.sessions and is_known and (by in self.operators or by in (key, self.sessions[key][0])):
            self._end({key})

    def _end(self, names: set[str]) -> None:
        for name in names:
            del self.sessions[name]
            self.ended.add(name)


def asked(word: str, by: str, key: str) -> Ask:
    match word:
        case "add_operator":
            return add_operator(by, key)
        case "remove_operator":
            return remove_operator(by, key)
        case "add":
            return add(by, key)
        case "remove":
            return remove(by, key)
        case "open":
            return open_session(key, chain(by, key))
        case _:
            return close(by, key)


ACT = st.one_of(
    st.tuples(st.sampled_from(["add_operator", "remove_operator"]), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(["add", "remove", "close"]), st.sampled_from(KEYS), st.sampled_from(KEYS)),
    st.tuples(st.just("open"), st.sampled_from((*OPERATORS, *AGENTS)), st.sampled_from((*SESSIONS, "A"))),
    st.tuples(st.just("acquire"), st.sampled_from(KEYS), st.sampled_from(["repo:1", "repo:2", "repo:**"])),
    st.tuples(st.just("release"), st.sampled_from(KEYS), st.sampled_from(["repo:1", "repo:2", "repo:**"])),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ACT, max_size=25))
def test_whatever_operators_agents_and_sessions_do_roles_are_those_of_a_plain_model(
    acts: list[tuple[str, str, str]],
) -> None:
    """And nobody who may not act holds anything, waits for anything, or is counted for anything."""
    one, model = Crew(), Model()
    for word, by, what in acts:
        if word == "acquire":
            told = one.tell(acquire(by, what, wait=True, onDeadlock="wait"))
            assert (told in NOT_ALLOWED) != model.may_act(by), (told, by)
        elif word == "release":
            one.tell(release(by, what))
        else:
            one.tell(asked(word, by, what))
            getattr(model, word)(by, what)
        check(one, model)
    assert one.audited() == []


NOT_ALLOWED = ("agent_unknown", "agent_removed", "operator_removed", "session_ended")


def check(one: Crew, model: Model) -> None:
    records = one.shelf.records.values()
    open_ = {r.did: (r.principal, r.on_behalf_of) for r in records if isinstance(r, Session) and r.is_open}
    assert open_ == {did_of(k): (did_of(p), did_of(o)) for k, (p, o) in model.sessions.items()}
    assert counter_at(one.shelf, OPERATORS_KEY) == len(model.operators) >= 1
    alive = {did_of(key) for key in KEYS if model.may_act(key)}
    assert {r.holder for r in records if isinstance(r, Lease)} <= alive
    assert {r.actor for r in records if isinstance(r, Ticket)} <= alive
    held = dict.fromkeys((r.did for r in records if isinstance(r, Principal)), 0)
    for lease in (r for r in records if isinstance(r, Lease)):
        held[lease.principal] += len(lease.resources)
    assert {r.did: r.held for r in records if isinstance(r, Principal)} == held
