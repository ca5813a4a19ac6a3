"""Batches: many commands in one signed request, one after the other or all or none, with nothing in between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.draft import Draft
from gateway.core.intake import Rejection, SignedRequest
from gateway.core.outcome import Context, Decision, Recorded
from tests.core.book import own_members
from tests.core.crew import Crew
from tests.core.requests import NOW_MS, Ask, acquire, ask, batch, beat, did_of, release, renew, transfer
from verifier.entries import Leaf

A, B, OP = (did_of(name) for name in ("A", "B", "op"))
IDLE_MS = 120_000


def answers(one: Crew, mark: int) -> list[str]:
    """Return what is written from `mark` on: of a refusal its name, of a success its type."""
    leaves = map(one.leaf, range(mark, len(one.leaves)))
    return [str(leaf.value.get("error", leaf.type.split("/")[1])) for leaf in leaves]


def commands_of(one: Crew, header: Leaf) -> list[Leaf]:
    return [one.leaf(header.seq + 1 + index) for index in range(header.number("count"))]


# --- the shape ------------------------------------------------------------------------------------------------------


def test_a_header_with_the_evidence_then_each_command_in_order() -> None:
    one = Crew()
    one.open("s", "A")
    mark = len(one.leaves)
    header = one.say(batch("s", acquire("s", "repo:x"), acquire("s", "repo:y", mode="read")))
    assert (header.type, header.seq, own_members(header)) == (
        "tallystick/batch.received/1", mark, {"count": 2, "isAtomic": False},
    )  # fmt: skip
    assert header.request is not None
    for index, leaf in enumerate(commands_of(one, header)):
        assert leaf.type == "tallystick/lease.granted/1"
        assert leaf.value["request"] == {"batch": mark, "index": index}
        assert (leaf.actor, leaf.principal, leaf.on_behalf_of, leaf.time_ms) == (did_of("s"), A, OP, header.time_ms)
        assert leaf.value["endsIfIdleAtMs"] == one.t_ms + 30_000
        assert leaf.text("leaseId") == f"L{leaf.seq}"
    assert len(one.leaves) == mark + 3


@pytest.mark.parametrize("count", [1, 2, 256])
def test_a_batch_has_up_to_256_commands(count: int) -> None:
    one = Crew(held_per_principal=300)
    header = one.say(batch("A", *(acquire("A", f"repo:{n}") for n in range(count)), isBare=True))
    assert own_members(header) == {"count": count, "isAtomic": False, "isBare": True}
    assert one.types(header.seq) == ["batch.received", *["lease.granted"] * count]
    tokens = [leaf.number("fencingToken") for leaf in commands_of(one, header)]
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("count", [0, 257])
def test_none_or_more_is_turned_away_at_the_door(count: int) -> None:
    with pytest.raises(Rejection) as rejected:
        batch("A", *(acquire("A", f"r:{n}") for n in range(count))).signed()
    assert (rejected.value.code, rejected.value.status) == ("member_invalid", 400)


@pytest.mark.parametrize(
    ("command", "code", "where"),
    [
        (beat("A"), "member_invalid", "commands[1].action"),
        (transfer("A", "L1", 7, "B"), "member_invalid", "commands[1].action"),
        (acquire("A", "repo:x", ttlMs=1), "member_invalid", "commands[1].ttlMs"),
        (acquire("A", "repo:x", wait=True), "member_unknown", "commands[1].wait"),
        (acquire("A", "repo:x", onDeadlock="wait"), "member_unknown", "commands[1].onDeadlock"),
        (ask("lease.acquire", "A"), "member_conflict", "commands[1]"),
        (ask("lease.renew", "A"), "member_missing", "commands[1].leaseId"),
    ],
)
def test_a_wrong_command_names_its_place(command: Ask, code: str, where: str) -> None:
    """A command has the members of its action, but nothing that waits, and no ledger or actor of its own."""
    with pytest.raises(Rejection) as rejected:
        batch("A", acquire("A", "repo:ok"), command).signed()
    assert rejected.value.code == code
    assert where.split(".")[0] in rejected.value.detail


def test_a_command_for_another_actor_is_no_command() -> None:
    with pytest.raises(Rejection) as rejected:
        ask("batch.submit", "A", commands=[{"action": "lease.release", "resource": "repo:x", "actorDid": B}]).signed()
    assert rejected.value.code == "member_unknown"


# --- one after the other --------------------------------------------------------------------------------------------


def test_each_command_sees_what_those_before_it_did_and_a_refusal_stops_none() -> None:
    one = Crew()
    one.hold("B", "repo:held")
    header = one.say(
        batch(
            "A",
            acquire("A", "repo:x"),
            acquire("A", "repo:held"),
            acquire("A", "repo:x", ttlMs=60_000),
            release("A", "repo:x"),
            release("A", "repo:x"),
            acquire("A", "repo:x/**"),
            renew("A", "L999"),
        )
    )
    assert [str(leaf.value.get("error", leaf.type.split("/")[1])) for leaf in commands_of(one, header)] == [
        "lease.granted", "lease_held", "lease.extended", "lease.released", "not_holder", "lease.granted",
        "lease_unknown",
    ]  # fmt: skip
    assert commands_of(one, header)[1].value["holder"] == B


def test_a_lease_may_be_taken_renewed_changed_and_given_back_within_one_batch() -> None:
    """Its id is known before it is sent: it is the number of the command's entry, if nothing else comes between."""
    one = Crew()
    first = len(one.leaves) + 1
    header = one.say(
        batch(
            "A",
            acquire("A", "repo:x"),
            renew("A", f"L{first}", ttlMs=60_000),
            renew("A", f"L{first}", mode="read"),
            renew("A", f"L{first}"),
            release("A", "repo:x", leaseId=f"L{first + 2}"),
            release("A", "repo:x", leaseId=f"L{first + 2}"),
        )
    )
    assert answers(one, header.seq) == [
        "batch.received", "lease.granted", "lease.renewed", "lease.changed", "lease_changed", "lease.released",
        "release.repeated",
    ]  # fmt: skip
    assert one.leases() == {}


def test_those_who_wait_are_looked_at_after_the_last_command() -> None:
    """What a batch gives back and takes again was never free for anybody else."""
    one = Crew()
    lease_id = one.hold("A", "repo:x")
    other = one.hold("A", "repo:y")
    tickets = [one.line("B", "repo:x", onDeadlock="wait"), one.line("B", "repo:y", onDeadlock="wait")]
    mark = len(one.leaves)
    one.say(batch("A", release("A", "repo:x", leaseId=lease_id), release("A", "repo:y", leaseId=other)))
    assert one.told(mark)[-2:] == [("wait.offered", ticket) for ticket in tickets]
    assert one.types(mark) == ["batch.received", *["lease.released"] * 2, *["wait.offered"] * 2]


def test_who_stands_in_line_is_not_passed_by_a_batch_that_lets_go_and_takes_again() -> None:
    one = Crew()
    lease_id = one.hold("A", "repo:x")
    ticket = one.line("B", "repo:x")
    header = one.say(batch("A", release("A", "repo:x", leaseId=lease_id), acquire("A", "repo:x")))
    assert answers(one, header.seq) == ["batch.received", "lease.released", "queued", "wait.offered"]
    assert one.offered() == [ticket]


def test_what_is_due_goes_before_the_header_never_between() -> None:
    one = Crew()
    one.hold("B", "repo:x", ttlMs=1_000)
    one.t_ms += 1_000
    mark = len(one.leaves)
    one.say(batch("A", acquire("A", "repo:other"), acquire("A", "repo:x")))
    assert one.types(mark) == ["lease.expired", "batch.received", "lease.granted", "lease.granted"]


def crowded() -> Crew:
    """Return a ledger in which so much is due that a sweep is full, and B's lease and s's session are due last."""
    one = Crew(held_per_principal=400)
    one.open("s", "A", expiresAtMs=NOW_MS + 2_000)
    for start in (0, 150):
        one.run(NOW_MS, *(acquire("X", f"repo:{n}", ttlMs=1_000) for n in range(start, start + 150)))
    one.hold("B", "repo:late", ttlMs=2_001)
    one.hold("s", "repo:of-s")
    one.t_ms = NOW_MS + 2_001
    return one


def test_however_much_is_due_a_batch_never_meets_what_its_commands_touch() -> None:
    one = crowded()
    mark = len(one.leaves)
    one.say(batch("A", acquire("A", "repo:new"), acquire("A", "repo:late"), acquire("A", "repo:of-s")))
    told = [word for word in one.types(mark + 256) if word != "lease.expired"]
    assert told == ["session.ended", "lease.returned", "batch.received", *["lease.granted"] * 3]
    assert one.types(-4) == ["batch.received", *["lease.granted"] * 3]


def test_however_much_is_due_a_session_that_is_over_submits_nothing() -> None:
    one = crowded()
    assert one.tell(batch("s", acquire("s", "repo:new"))) == "session_expired"
    assert one.types(-2) == ["session.ended", "lease.returned"]


# --- all or nothing -------------------------------------------------------------------------------------------------


def good(name: str = "A") -> list[Ask]:
    return [acquire(name, "repo:1"), acquire(name, "repo:2"), acquire(name, "repo:3")]


def test_an_atomic_batch_that_succeeds_is_written_like_any_other() -> None:
    one = Crew()
    header = one.say(batch("A", *good(), isAtomic=True))
    assert own_members(header) == {"count": 3, "isAtomic": True}
    assert one.types(header.seq) == ["batch.received", *["lease.granted"] * 3]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_the_first_refusal_of_an_atomic_batch_undoes_all_of_it(place: int) -> None:
    """One entry, and nothing else: no lease, no token, no count, no edge, no wait of the refused command either."""
    one = Crew()
    one.hold("B", "repo:held")
    one.line("X", "repo:held")
    commands = good()
    commands.insert(place, acquire("A", "repo:held"))
    commands.append(acquire("A", "repo:held"))
    before, mark = one.lasting(), len(one.leaves)
    leaf = one.say(batch("A", *commands, isAtomic=True))
    assert one.lasting() == before
    assert len(one.leaves) == mark + 1
    said = own_members(leaf)
    assert leaf.type == "tallystick/batch.refused/1"
    assert {name: said[name] for name in ("count", "isAtomic", "index", "action", "error", "number", "holder")} == {
        "count": 5, "isAtomic": True, "index": place, "action": "lease.acquire", "error": "lease_held", "number": 408,
        "holder": B,
    }  # fmt: skip
    assert leaf.request is not None and "conflict" in said and "retryAfterMs" in said


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (release("A", "repo:nothing"), "not_holder"),
        (release("A", "repo:x", leaseId="L999"), "lease_unknown"),
        (renew("A", "L999"), "lease_unknown"),
        (acquire("A", *(f"repo:a/{n}" for n in range(9))), "too_many_held"),
    ],
)
def test_an_atomic_refusal_says_which_command_and_why(command: Ask, error: str) -> None:
    one = Crew(held_per_principal=8)
    leaf = one.say(batch("A", acquire("A", "repo:1"), command, isAtomic=True))
    said = own_members(leaf)
    assert (said["index"], said["action"], said["error"]) == (1, command.action, error)
    assert one.leases() == {}


def test_what_an_atomic_batch_let_go_and_lost_is_all_there_again() -> None:
    one = Crew()
    kept = one.hold("A", "repo:x")
    one.hold("B", "repo:held")
    ticket = one.line("X", "repo:x")
    before = one.lasting()
    mark = len(one.leaves)
    commands = [release("A", "repo:x", leaseId=kept), acquire("A", "repo:y"), acquire("A", "repo:held")]
    one.say(batch("A", *commands, isAtomic=True))
    assert one.lasting() == before and kept in one.leases() and ticket in one.tickets()
    assert one.types(mark) == ["batch.refused"], "nobody in line was offered what was free for a moment"


def test_the_same_key_repeats_the_whole_batch_and_never_a_part() -> None:
    one = Crew()
    for is_atomic, told in ((False, "batch.received"), (True, "lease_held")):
        asked = batch("A", acquire("A", "repo:x"), acquire("A", "repo:y"), isAtomic=is_atomic)
        if is_atomic:
            one.say(release("A", "repo:x"))
            one.hold("B", "repo:x")
        asked = one.now(asked)
        assert one.tell(asked) == told
        size = len(one.leaves)
        assert one.tell(asked.again()) == "replay"
        assert one.tell(asked) == "nonce_reused"
        assert len(one.leaves) == size


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every acquire of repo:bad grant its lease and then fail."""
    from gateway.core import batch as core_batch

    real = core_batch.DECIDES["lease.acquire"]

    def fails(draft: Draft, request: SignedRequest, context: Context) -> Decision:
        decision = real(draft, request, context)
        if "repo:bad" in request.resources:
            raise ZeroDivisionError("a bug")
        return decision

    monkeypatch.setattr(core_batch, "DECIDES", {**core_batch.DECIDES, "lease.acquire": fails})


@pytest.mark.usefixtures("failing")
def test_an_error_in_one_command_is_that_commands_answer() -> None:
    one = Crew()
    asked = batch("A", acquire("A", "repo:1"), acquire("A", "repo:bad"), acquire("A", "repo:2"))
    done = one.run(one.t_ms, one.now(asked))
    (answer,) = done.answers
    assert isinstance(answer, Recorded) and (answer.status, answer.count) == (200, 3)
    assert isinstance(answer.fault, ZeroDivisionError) and done.faults == (answer.fault,)
    assert answers(one, answer.seq) == ["batch.received", "lease.granted", "decision_failed", "lease.granted"]
    failed = one.leaf(answer.seq + 2)
    assert own_members(failed) == {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    assert failed.value["request"] == {"batch": answer.seq, "index": 1}
    assert sorted(lease.resources[0] for lease in one.leases().values()) == ["repo:1", "repo:2"]
    tokens = sorted(lease.fencing_token for lease in one.leases().values())
    assert tokens[1] == tokens[0] + 1, "what failed took no token"


@pytest.mark.usefixtures("failing")
def test_an_error_in_an_atomic_batch_refuses_all_of_it() -> None:
    one = Crew()
    before = one.lasting()
    done = one.run(one.t_ms, one.now(batch("A", acquire("A", "repo:1"), acquire("A", "repo:bad"), isAtomic=True)))
    (answer,) = done.answers
    assert isinstance(answer, Recorded) and (answer.status, answer.count) == (500, 0)
    assert isinstance(answer.fault, ZeroDivisionError)
    said = own_members(one.leaf(answer.seq))
    assert said == {
        "count": 2, "isAtomic": True, "index": 1, "action": "lease.acquire", "error": "decision_failed", "number": 901,
    }  # fmt: skip
    assert one.lasting() == before


# --- sessions -------------------------------------------------------------------------------------------------------


def test_a_sessions_scope_holds_for_each_command() -> None:
    one = Crew()
    one.open("s", "A", verbs=["lease"], resources=["repo:app/**"])
    header = one.say(batch("s", acquire("s", "repo:app/x"), acquire("s", "repo:lib"), release("s", "repo:zzz")))
    assert answers(one, header.seq) == ["batch.received", "lease.granted", "outside_scope", "not_holder"]
    refused = one.say(batch("s", acquire("s", "repo:app/y"), acquire("s", "repo:lib"), isAtomic=True))
    assert (refused.value["index"], refused.value["error"]) == (1, "outside_scope")


def test_without_the_verb_every_command_is_outside() -> None:
    one = Crew()
    one.open("s", "A", verbs=["transfer"])
    header = one.say(batch("s", acquire("s", "repo:x"), renew("s", "L999")))
    assert answers(one, header.seq) == ["batch.received", "outside_scope", "outside_scope"]


def test_a_batch_moves_the_end_of_its_session_even_when_it_is_refused() -> None:
    one = Crew()
    one.open("s", "A")
    for is_atomic in (False, True):
        one.t_ms += IDLE_MS - 1
        one.say(batch("s", release("s", "repo:none"), isAtomic=is_atomic))
        assert one.session("s").idle_by_ms == one.t_ms + IDLE_MS


# --- property -------------------------------------------------------------------------------------------------------

NAMES = ("repo:a", "repo:b", "repo:a/**", "doc:c")
COMMAND = st.tuples(
    st.sampled_from(["acquire", "renew", "release"]),
    st.sampled_from(NAMES),
    st.sampled_from(["read", "write"]),
    st.integers(5, 16),
)


def made(spec: tuple[str, str, str, int]) -> Ask:
    word, name, mode, number = spec
    if word == "acquire":
        return acquire("A", name, mode=mode)
    return renew("A", f"L{number}") if word == "renew" else release("A", name)


@settings(max_examples=80, deadline=None)
@given(st.lists(COMMAND, min_size=1, max_size=6))
def test_a_batch_answers_what_its_commands_would_answer_one_by_one(specs: list[tuple[str, str, str, int]]) -> None:
    """Nothing but the numbers of entries differs, as long as nobody waits; atomic it is all of that or nothing."""
    alone, together, atomic = Crew(), Crew(), Crew()
    for one in (alone, together, atomic):
        one.hold("B", "doc:c")
    alone.tell(beat("A"))  # as many entries as with a header
    singles = [alone.tell(made(spec)) for spec in specs]
    mark = len(together.leaves)
    together.say(batch("A", *map(made, specs)))
    assert answers(together, mark)[1:] == singles
    assert {k: v for k, v in together.lasting().items() if k.startswith("lease/")} == {
        k: v for k, v in alone.lasting().items() if k.startswith("lease/")
    }
    before = atomic.lasting()
    first = next((index for index, word in enumerate(singles) if "." not in word), None)
    leaf = atomic.say(batch("A", *map(made, specs), isAtomic=True))
    if first is None:
        assert atomic.lasting() == together.lasting()
    else:
        assert (leaf.value["index"], leaf.value["error"]) == (first, singles[first])
        assert atomic.lasting() == before
    for one in (together, atomic):
        assert one.audited() == []
