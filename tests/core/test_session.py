"""Sessions: with which delegation one opens, what it may do, and how it comes to its end."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.intake import Rejection
from gateway.core.lookup import session_at
from gateway.core.opening import start_steps
from gateway.core.records import Session
from gateway.core.refusal import BY_NAME
from keys.signing import SigningKey
from tests.core.book import own_members
from tests.core.crew import Crew
from tests.core.requests import (
    NOW_MS,
    Ask,
    acquire,
    add,
    add_operator,
    anchor_text,
    ask,
    beat,
    cancel,
    chain,
    claim,
    close,
    delegated,
    did_of,
    open_session,
    release,
    remove,
    remove_operator,
    set_scheme,
    statement,
    transfer,
)
from tests.verifier.delegation_stories import INVALID, STORIES, Story
from tests.verifier.maker import ALICE, BOB, OPERATOR, SESSION
from verifier.entries import covers
from verifier.wire import JsonObject, encode_canonical

A, B, S, OP, OP2 = (did_of(name) for name in ("A", "B", "s", "op", "op2"))
IDLE_MS, HOUR_MS, DAY_MS = 120_000, 3_600_000, 86_400_000


# --- opening --------------------------------------------------------------------------------------------------------


def test_a_session_acts_for_its_agent_and_for_the_operator_that_answers_for_both() -> None:
    one = Crew()
    leaf = one.open("s", "A", label="worker-1", verbs=["lease"], resources=["repo:app/**"])
    assert (leaf.type, leaf.actor, leaf.principal, leaf.on_behalf_of) == ("tallystick/session.opened/1", S, A, OP)
    assert own_members(leaf) == {
        "verbs": ["lease"],
        "scope": ["repo:app/**"],
        "expiresAtMs": NOW_MS + HOUR_MS,
        "endsIfIdleAtMs": NOW_MS + IDLE_MS,
        "name": "worker-1",
    }
    opened = Session(
        S, "worker-1", A, OP, ("lease",), ("repo:app/**",), leaf.seq, NOW_MS + HOUR_MS, NOW_MS + IDLE_MS,
        anchor_size=1, signed_s=NOW_MS // 1_000,
    )  # fmt: skip
    assert one.session("s") == opened


def test_an_operators_own_session_is_its_own_principal() -> None:
    one = Crew()
    leaf = one.open("s", "op")
    assert (leaf.actor, leaf.principal, leaf.on_behalf_of) == (S, S, OP)
    assert own_members(leaf) == {
        "verbs": ["admit", "lease", "transfer"], "expiresAtMs": NOW_MS + HOUR_MS, "endsIfIdleAtMs": NOW_MS + IDLE_MS,
    }  # fmt: skip


def test_an_operator_may_lend_to_its_agent_what_that_lends_to_a_session() -> None:
    one = Crew()
    leaf = one.open("s", "op", "A", resources=["repo:**"])
    assert (leaf.actor, leaf.principal, leaf.on_behalf_of) == (S, A, OP)
    assert one.session("s").resources == ("repo:**",)


def test_a_session_never_outlives_its_delegation() -> None:
    """What it can hold ends with it, and the entries say so."""
    one = Crew()
    leaf = one.open("s", "A", expiresAtMs=NOW_MS + 5_000)
    assert (leaf.value["expiresAtMs"], leaf.value["endsIfIdleAtMs"]) == (NOW_MS + 5_000, NOW_MS + 5_000)
    granted = one.ask_for("s", "repo:x", ttlMs=60_000)
    assert (granted.value["expiresAtMs"], granted.value["endsIfIdleAtMs"]) == (NOW_MS + 60_000, NOW_MS + 5_000)


def story_book() -> Crew:
    """Return a ledger with the cast of the stories: OPERATOR is one, ALICE and BOB are its agents."""
    one = Crew()
    assert one.tell(ask("operator.add", "op", operator=OPERATOR.did)) == "operator.added"
    for key in (ALICE, BOB):
        assert one.tell(signed_by(OPERATOR.seed_byte, "agent.add", agent=key.did)) == "agent.added"
    return one


def signed_by(seed_byte: int, action: str, **members: Any) -> Ask:
    key = SigningKey(bytes([seed_byte]) * 32)
    return ask(action, "", actorDid=key.did, **members).but(key=key)


@pytest.mark.parametrize("story", STORIES, ids=[story.name for story in STORIES])
def test_every_story_of_a_delegation_ends_as_it_is_told(story: Story) -> None:
    one = story_book()
    opening = signed_by(SESSION.seed_byte, "session.open", delegations=story.build(NOW_MS))
    one.t_ms += story.after_ms
    if story.refusal == INVALID:
        with pytest.raises(Rejection) as rejected:
            opening.signed()
        assert rejected.value.code == INVALID
        return
    if story.refusal is not None:
        size = len(one.leaves)
        assert one.refuses(opening) == story.refusal
        assert len(one.leaves) == size, "a bad delegation makes no entry"
        return
    assert one.tell(opening) == "session.opened"
    session = session_at(one.shelf, SESSION.did)
    assert session is not None
    assert (session.verbs, session.resources) == (story.verbs, story.scope or ())


def test_a_delegation_for_another_ledger_opens_nothing_here() -> None:
    one = Crew()
    lent = chain("A", "s", aud="gateway.example/other")
    assert one.refuses(open_session("s", lent)) == "delegation_wrong_ledger"


def wrong_in_every_way() -> tuple[Crew, dict[str, Any]]:
    """Return a ledger, and what is said by op to X and by X to `s` that is wrong in every way.

    X is an agent of op2, and `s` is an agent already.
    """
    one = Crew(sessions_per_principal=1)
    one.tell(add("op", "s"))
    far = NOW_MS + 2 * HOUR_MS
    return one, {
        "parent": {"aud": "gateway.example/other", "maxDepth": 0, "verbs": ["lease"]},
        "child": {"notBeforeMs": far, "expiresAtMs": far + 2 * HOUR_MS},
    }


def linked(parent: dict[str, Any], child: dict[str, Any], *names: str, at_ms: int = NOW_MS) -> list[dict[str, Any]]:
    """Return a chain over three names with what each of its two statements says otherwise."""
    root, agent, session = names
    first = statement(root, agent, at_ms, **{"maxDepth": 1, **parent})
    hashed = sha256(encode_canonical(first)).hexdigest()
    second = statement(agent, session, at_ms, **{"parent": hashed, **child})
    return [delegated(root, first), delegated(agent, second)]


def test_the_first_row_of_the_table_wins_over_all_later_ones() -> None:
    """An opening that is wrong in every way is repaired fault by fault, and climbs in the order of the table."""
    one, said = wrong_in_every_way()
    met = []

    def meets(root: str, agent: str, key: str) -> None:
        met.append(one.refuses(open_session(key, linked(said["parent"], said["child"], root, agent, key))))

    meets("op", "X", "s")
    del said["parent"]["aud"]
    meets("op", "X", "s")
    said["parent"]["maxDepth"] = 1
    meets("op", "X", "s")
    said["child"]["verbs"] = ["lease"]
    meets("op", "X", "s")
    said["parent"] |= said["child"]
    meets("op", "X", "s")
    for one_said in said.values():
        one_said |= {"notBeforeMs": NOW_MS, "expiresAtMs": NOW_MS + HOUR_MS}
    meets("op", "X", "s")
    one.tell(remove("op", "B"))
    meets("op", "B", "s")
    one.open("t", "A")
    meets("op", "A", "s")
    one.tell(remove("op", "s"))
    meets("op", "A", "s")
    one.close("t")
    assert one.tell(open_session("s", linked(said["parent"], said["child"], "op", "A", "s"))) == "session.opened"
    assert met == [
        "delegation_wrong_ledger", "delegation_too_deep", "delegation_wider", "delegation_longer",
        "delegation_expired", "issuer_unknown", "issuer_removed", "session_taken", "too_many_sessions",
    ]  # fmt: skip
    numbers = [BY_NAME[name].number for name in met]
    assert numbers == [107, 108, 109, 110, 111, 112, 113, 114, 119]


@pytest.mark.parametrize(
    ("issuers", "told"),
    [
        (("s0",), "delegation_too_deep"),  # a session lends nothing
        (("s0", "A"), "delegation_too_deep"),
        (("A", "B"), "issuer_unknown"),  # an agent lends to no other agent
        (("op2", "A"), "issuer_unknown"),  # of another operator
        (("op", "op2"), "issuer_unknown"),
        (("op", "nobody"), "issuer_unknown"),
        (("nobody",), "issuer_unknown"),
        (("enroller",), "issuer_unknown"),
        (("op2", "X"), "session.opened"),
    ],
)
def test_only_operators_and_their_agents_make_sessions(issuers: tuple[str, ...], told: str) -> None:
    one = Crew()
    one.open("s0", "A")
    assert one.tell(open_session("s", chain(*issuers, "s"))) == told


@pytest.mark.parametrize("issuers", [("A",), ("op", "A"), ("op",)])
def test_who_was_removed_makes_no_sessions(issuers: tuple[str, ...]) -> None:
    one = Crew()
    one.tell(remove_operator("op2", "op"))
    assert one.refuses(open_session("s", chain(*issuers, "s"))) == "issuer_removed"


def test_a_removed_agent_makes_no_sessions_until_it_is_enrolled_again() -> None:
    one = Crew()
    one.tell(remove("op", "A"))
    lent = chain("A", "s")
    assert one.refuses(open_session("s", lent)) == "issuer_removed"
    one.tell(add("op", "A"))
    assert one.tell(open_session("s", lent)) == "session.opened"


@pytest.mark.parametrize("key", ["A", "B", "X", "op", "op2", "enroller"])
def test_a_key_with_a_role_is_no_session(key: str) -> None:
    assert Crew().refuses(open_session(key, chain("A", key))) == "session_taken"


def test_a_session_key_lives_once() -> None:
    """Neither while it is open nor after its end does it open again, not even for the same agent."""
    one = Crew()
    one.open("s", "A")
    assert one.refuses(open_session("s", chain("A", "s"))) == "session_taken"
    assert one.refuses(open_session("s", chain("B", "s"))) == "session_taken"
    one.close("s")
    assert one.refuses(open_session("s", chain("A", "s"))) == "session_taken"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_session_key_is_new_again_when_its_delegation_is_worth_nothing_any_more(is_kept: bool) -> None:
    """Then nobody could take one life for the other; whether the store still has the record does not matter."""
    one = Crew()
    one.open("s", "A", resources=["repo:a"], expiresAtMs=NOW_MS + 10_000)
    one.close("s")
    one.t_ms += 9_999
    assert one.refuses(beat("s")) == "session_ended"
    one.t_ms += 86_400_000
    assert one.refuses(open_session("s", chain("B", "s", at_ms=one.t_ms))) == "session_taken"
    assert one.refuses(beat("s")) == "session_expired"
    one.t_ms += 1
    if not is_kept:
        del one.shelf.records[f"session/{S}"]
    assert one.refuses(beat("s")) == "agent_unknown"
    assert one.refuses(close("A", "s")) == "session_unknown"
    assert one.open("s", "B", label="again").principal == B
    assert one.ask_for("s", "repo:b").type == "tallystick/lease.granted/1"


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_was_a_session_may_become_an_agent_and_nothing_of_it_is_left(is_kept: bool) -> None:
    one = Crew()
    one.open("s", "A", verbs=["transfer"], resources=["repo:a"], expiresAtMs=NOW_MS + 10_000)
    one.later(10_000)
    assert one.tell(add("op", "s")) == "key_taken"
    one.later(86_400_000)
    if not is_kept:
        del one.shelf.records[f"session/{S}"]
    assert one.tell(add("op", "s")) == "agent.added"
    leaf = one.ask_for("s", "doc:b")
    assert (leaf.type, leaf.principal) == ("tallystick/lease.granted/1", S)
    assert "endsIfIdleAtMs" not in leaf.value


def test_sessions_of_one_agent_have_a_bound_and_each_end_makes_room() -> None:
    one = Crew(sessions_per_principal=2)
    one.open("s1", "A")
    one.open("s2", "op", "A")
    third = open_session("s3", chain("A", "s3"))
    assert one.refuses(third) == "too_many_sessions"
    one.open("s4", "B")  # another's
    for name in ("o1", "o2", "o3"):
        one.open(name, "op")  # an operator's are principals of their own
    one.close("s1")
    assert one.tell(third) == "session.opened"
    assert one.refuses(open_session("s5", chain("A", "s5"))) == "too_many_sessions"


def test_the_bound_also_counts_sessions_of_the_same_batch() -> None:
    one = Crew(sessions_per_principal=2)
    asks = [open_session(name, chain("A", name)) for name in ("s1", "s2", "s3")]
    batch = one.run(one.t_ms, *asks)
    assert [getattr(answer, "refusal", None) for answer in batch.answers] == [
        None, None, BY_NAME["too_many_sessions"],
    ]  # fmt: skip


def had(one: Crew, count: int, *issuers: str, first: int = 0) -> None:
    """Open and close so many sessions; each delegation is over 1 ms after the one before it."""
    for number in range(first, first + count):
        name = "-".join((*issuers, str(number)))
        one.open(name, *issuers, expiresAtMs=NOW_MS + 600_000 + number)
        one.close(name)


def bounded(issuers: tuple[str, ...], name: str, t_ms: int) -> Ask:
    return open_session(name, chain(*issuers, name, at_ms=t_ms))


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("issuers", [("A",), ("op", "A"), ("op",)])
def test_ended_sessions_count_until_they_are_forgotten(issuers: tuple[str, ...], is_kept: bool) -> None:
    """Each makes room at the very moment from which it is not remembered, whether the store still has it or not."""
    one = Crew(sessions_per_principal=1)
    had(one, 16, *issuers)
    assert one.refuses(bounded(issuers, "s", one.t_ms)) == "too_many_sessions"
    one.t_ms = NOW_MS + 600_000 + DAY_MS - 1
    assert one.refuses(bounded(issuers, "s", one.t_ms)) == "too_many_sessions"
    one.t_ms += 1
    if not is_kept:
        del one.shelf.records[f"session/{did_of('-'.join((*issuers, '0')))}"]
    assert one.tell(bounded(issuers, "s", one.t_ms)) == "session.opened"
    one.close("s")
    assert one.refuses(bounded(issuers, "t", one.t_ms)) == "too_many_sessions"


def test_open_sessions_are_remembered_too() -> None:
    one = Crew(sessions_per_principal=2)
    one.open("s", "A")
    had(one, 30, "A")
    assert one.session("s").is_open
    one.open("t", "A")
    one.close("t")
    assert one.refuses(open_session("u", chain("A", "u"))) == "too_many_sessions"


def test_nobody_else_pays_for_the_sessions_that_are_remembered_of_one() -> None:
    """An operator's agents are not the operator, and an agent stays the same under whom it acts."""
    one = Crew(sessions_per_principal=1)
    had(one, 16, "A")
    had(one, 16, "op")
    for issuers in (("B",), ("op2",), ("op", "B"), ("X",)):
        had(one, 1, *issuers)
    one.tell(remove("op", "A"))
    one.tell(add("op2", "A"))
    assert one.refuses(open_session("s", chain("A", "s"))) == "too_many_sessions"
    assert one.refuses(open_session("s", chain("op", "s"))) == "too_many_sessions"


def test_who_was_an_agent_and_is_an_operator_is_counted_as_each() -> None:
    one = Crew(sessions_per_principal=1)
    had(one, 15, "A")
    one.tell(remove("op", "A"))
    assert one.tell(add_operator("op", "A")) == "operator.added"
    had(one, 16, "A", first=20)
    assert one.refuses(open_session("s", chain("A", "s"))) == "too_many_sessions"
    one.tell(remove_operator("op", "A"))
    assert one.tell(add("op", "A")) == "agent.added"
    had(one, 1, "A", first=40)
    assert one.refuses(open_session("s", chain("A", "s"))) == "too_many_sessions"


def test_sessions_that_ended_in_the_same_batch_count_once() -> None:
    one = Crew(sessions_per_principal=1)
    had(one, 14, "A")
    one.open("s", "A")
    opening = {name: open_session(name, chain("A", name)) for name in "tu"}
    batch = one.run(one.t_ms, close("s", "s"), opening["t"], close("t", "t"), opening["u"])
    assert [getattr(answer, "refusal", None) for answer in batch.answers] == [
        None, None, None, BY_NAME["too_many_sessions"],
    ]  # fmt: skip


@pytest.mark.parametrize(("issuer", "other"), [("op", "op2"), ("A", "B")])
def test_a_key_that_another_opens_again_in_the_same_batch_is_not_counted(issuer: str, other: str) -> None:
    """It is still filed where it was when the batch began."""
    one = Crew(sessions_per_principal=1)
    had(one, 16, issuer)
    one.t_ms = NOW_MS + 600_000 + DAY_MS
    again = open_session(f"{issuer}-0", chain(other, f"{issuer}-0", at_ms=one.t_ms))
    asks = [one.now(ask) for ask in (again, bounded((issuer,), "s", one.t_ms))]
    batch = one.run(one.t_ms, *asks)
    assert [getattr(answer, "refusal", None) for answer in batch.answers] == [None, None]


def test_a_key_that_was_a_session_of_another_is_counted_for_who_lets_it_act_now() -> None:
    one = Crew(sessions_per_principal=1)
    one.open("s", "A", expiresAtMs=NOW_MS + 1_000)
    one.close("s")
    one.t_ms += 1_000 + DAY_MS
    one.open("s", "B", expiresAtMs=one.t_ms + HOUR_MS)
    one.close("s")
    for number in range(16):
        one.open(f"a{number}", "A", expiresAtMs=one.t_ms + HOUR_MS)
        one.close(f"a{number}")
    assert one.refuses(bounded(("A",), "t", one.t_ms)) == "too_many_sessions"


def test_opening_again_with_the_same_key_is_a_replay_and_costs_nothing() -> None:
    """A lost answer is repeated: the ladder knows the request before it judges the delegation."""
    one = Crew()
    opening = open_session("s", chain("A", "s"))
    assert one.tell(opening) == "session.opened"
    assert one.tell(opening.again()) == "replay"
    one.t_ms += 30_000
    assert one.tell(opening.again()) == "replay"


# --- what it may do -------------------------------------------------------------------------------------------------


def test_two_sessions_of_one_agent_are_two_holders() -> None:
    one = Crew()
    one.open("s1", "A")
    one.open("s2", "A")
    one.hold("s1", "repo:x")
    leaf = one.ask_for("s2", "repo:x")
    assert (leaf.value["error"], leaf.value["holder"]) == ("lease_held", did_of("s1"))
    assert one.ask_for("s1", "repo:x").type == "tallystick/lease.extended/1"
    assert one.ask_for("A", "repo:x").value["error"] == "lease_held"


def test_idempotency_keys_and_nonces_belong_to_the_key_that_signs() -> None:
    """The body names the actor, so that another session of the agent could never repeat it."""
    one = Crew()
    one.open("s1", "A")
    one.open("s2", "A")
    first = acquire("s1", "repo:x")
    assert one.tell(first) == "lease.granted"
    other = acquire("s2", "repo:y").but(idempotency_key=first.idempotency_key, nonce=first.nonce)
    assert one.tell(other) == "lease.granted"


@pytest.mark.parametrize(
    ("verbs", "names", "make", "told"),
    [
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:app/src"), "lease.granted"),
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:app/**"), "lease.granted"),
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:apple"), "outside_scope"),
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:**"), "outside_scope"),
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:app/a", "repo:b"), "outside_scope"),
        (["lease"], ["repo:app/**"], lambda: acquire("s", "repo:App/a"), "outside_scope"),
        (["lease"], ["repo:a", "repo:b"], lambda: acquire("s", "repo:a", "repo:b"), "lease.granted"),
        (["transfer"], None, lambda: acquire("s", "repo:app/src"), "outside_scope"),
        (["lease"], None, lambda: transfer("s", "L1", 7, "A"), "outside_scope"),
        (["transfer"], ["repo:x"], lambda: transfer("s", "L1", 7, "A"), "lease_unknown"),
        (["transfer"], None, lambda: beat("s"), "session.seen"),
        (["transfer"], None, lambda: close("s", "s"), "session.closed"),
        (["lease"], ["repo:a"], lambda: release("s", "repo:zzz"), "not_holder"),
        (["transfer"], None, lambda: release("s", "repo:zzz"), "outside_scope"),
        (["transfer"], None, lambda: release("s", "repo:zzz", leaseId="L1"), "outside_scope"),
        (["transfer"], None, lambda: claim("s", "T1"), "outside_scope"),
        (["transfer"], None, lambda: cancel("s", "T1"), "outside_scope"),
    ],
)
def test_a_session_keeps_to_its_verbs_and_names(
    verbs: list[str], names: list[str] | None, make: Any, told: str
) -> None:
    one = Crew()
    one.open("s", "A", verbs=verbs, resources=names)
    assert one.tell(make()) == told


@pytest.mark.parametrize(
    "make",
    [
        lambda: add("s", "E"),
        lambda: remove("s", "A"),
        lambda: ask("operator.add", "s", operator=did_of("E")),
        lambda: ask("operator.remove", "s", operator=OP2),
        lambda: ask("apikey.issue", "s", keyDigest="0" * 64, kind="live"),
        lambda: ask("apikey.revoke", "s", keyDigest="0" * 64),
        lambda: set_scheme("s", "doc", "read-safe"),
        lambda: ask("lease.break", "s", resource="repo:x", seenToken=7, reason="stuck"),
    ],
)
def test_no_session_does_what_operators_do(make: Any) -> None:
    """Not even the session of an operator: a delegation lends leases and nothing else."""
    one = Crew()
    one.open("s", "op")
    assert one.refuses(make()) == "operator_required"


# --- beating --------------------------------------------------------------------------------------------------------


def test_a_beat_says_that_a_session_lives_and_what_it_is_at() -> None:
    one = Crew()
    one.open("s", "A")
    one.t_ms += 60_000
    leaf = one.say(beat("s", activity="thinking"))
    assert (leaf.type, own_members(leaf)) == (
        "tallystick/session.seen/1", {"endsIfIdleAtMs": one.t_ms + IDLE_MS, "activity": "thinking"},
    )  # fmt: skip
    assert (one.session("s").idle_by_ms, one.session("s").activity) == (one.t_ms + IDLE_MS, "thinking")
    assert own_members(one.say(beat("s"))) == {"endsIfIdleAtMs": one.t_ms + IDLE_MS}
    assert one.session("s").activity == "thinking", "a plain beat takes nothing back"


def test_only_a_session_beats() -> None:
    one = Crew()
    leaf = one.say(beat("A"))
    assert (leaf.type, own_members(leaf)) == (
        "tallystick/beat.refused/1", {"error": "session_required", "number": 130},
    )  # fmt: skip
    assert one.refuses(beat("A")) == "session_required"
    assert one.refuses(beat("op")) == "agent_unknown"


@pytest.mark.parametrize("is_refused", [False, True])
def test_every_entry_of_a_session_moves_its_end_even_a_refusal(is_refused: bool) -> None:
    one = Crew()
    one.open("s", "A", resources=["repo:app/**"])
    one.t_ms += IDLE_MS - 1
    assert one.tell(acquire("s", "repo:x" if is_refused else "repo:app/x")) in ("outside_scope", "lease.granted")
    one.t_ms += IDLE_MS - 1
    assert one.tell(beat("s")) == "session.seen"
    before = one.session("s").idle_by_ms
    replayed = one.now(beat("s").but(idempotency_key="k-of-a-replay"))
    one.tell(replayed)
    one.t_ms += 5_000
    assert one.tell(replayed.again()) == "replay"
    assert one.session("s").idle_by_ms == before, "a replay writes nothing, so it moves nothing"


@pytest.mark.parametrize(("ms", "told"), [(IDLE_MS - 1, []), (IDLE_MS, ["session.ended"])])
def test_a_session_ends_when_nothing_was_heard_of_it_for_so_long_and_not_a_moment_before(
    ms: int, told: list[str]
) -> None:
    one = Crew()
    opened = one.open("s", "A")
    assert [word for word, _ in one.later(ms)] == told
    assert one.session("s").is_open == (not told)
    if told:
        assert own_members(one.leaf(len(one.leaves) - 1)) == {
            "session": S, "openedSeq": opened.seq, "reason": "idle", "leases": 0, "tickets": 0,
        }  # fmt: skip
        assert one.refuses(beat("s")) == "session_ended"


def test_what_ends_a_session_comes_before_the_command_that_comes_too_late() -> None:
    one = Crew()
    one.open("s", "A")
    one.hold("s", "repo:x")
    mark = len(one.leaves)
    one.t_ms += IDLE_MS
    assert one.tell(beat("s")) == "session_ended"
    assert [word for word, _ in one.told(mark)] == ["session.ended", "lease.returned"]
    mark = len(one.leaves)
    one.t_ms += 1
    assert one.tell(acquire("B", "repo:x")) == "lease.granted"


def test_the_agent_answers_once_for_all_leases_that_an_idle_session_left() -> None:
    one = Crew()
    one.open("s", "A")
    for name in "xyz":
        one.hold("s", f"repo:{name}")
    one.later(IDLE_MS)
    ended = one.leaf(len(one.leaves) - 4)
    assert own_members(ended)["trust"] == [{"did": A, "change": -5_000, "after": 45_000}]
    assert (ended.value["leases"], ended.value["tickets"]) == (3, 0)
    assert one.types(-3) == ["lease.returned"] * 3
    assert all("trust" not in one.leaf(seq).value for seq in range(len(one.leaves) - 3, len(one.leaves)))


def test_a_delegations_end_is_an_end_even_for_the_busiest() -> None:
    one = Crew()
    one.open("s", "A", expiresAtMs=NOW_MS + 10_000)
    one.t_ms += 9_999
    assert one.tell(beat("s")) == "session.seen"
    assert [word for word, _ in one.later(1)] == ["session.ended"]
    assert one.leaf(len(one.leaves) - 1).value["reason"] == "expired"


def holiday(one: Crew, away_ms: int) -> None:
    """Let the service be away after its last entry, and start again."""
    assert one.head is not None
    one.t_ms += away_ms
    steps = start_steps("start", is_clean=False, before_ms=one.head.time_ms)
    one.run(one.t_ms, steps=steps, epoch=one.head.epoch + 1)


def test_in_a_holiday_no_session_ends_and_whoever_is_back_lives_on() -> None:
    one = Crew()
    one.open("s", "A")
    one.open("gone", "A")
    one.t_ms += IDLE_MS - 10_000
    one.tell(beat("B"))
    holiday(one, 30_000)  # both are idle by now
    assert one.session("s").is_open and one.session("gone").is_open
    one.t_ms += 29_999
    assert one.tell(beat("s")) == "session.seen"
    mark = len(one.leaves)
    assert [word for word, _ in one.later(1)] == ["session.ended"]
    assert one.leaf(mark).value["session"] == did_of("gone")
    assert one.session("s").is_open


def test_in_a_holiday_authority_ends_at_its_time_and_what_it_holds_follows_the_holiday() -> None:
    one = Crew()
    one.open("s", "A", expiresAtMs=NOW_MS + 10_000)
    one.hold("s", "repo:x")
    holiday(one, 20_000)
    assert one.refuses(beat("s")) == "session_expired"
    assert one.refuses(acquire("s", "repo:y")) == "session_expired"
    assert one.tell(acquire("B", "repo:x")) == "lease_held"
    assert [word for word, _ in one.later(19_999)] == []
    assert [word for word, _ in one.later(1)] == ["session.ended", "lease.returned"]
    assert one.leaf(len(one.leaves) - 2).value["reason"] == "expired"


def test_a_lease_that_ends_before_its_session_just_expires() -> None:
    one = Crew()
    one.open("s", "A")
    one.hold("s", "repo:x", ttlMs=5_000)
    one.later(5_000)
    leaf = one.leaf(len(one.leaves) - 1)
    assert leaf.type == "tallystick/lease.expired/1"
    assert leaf.value["trust"] == [{"did": A, "change": -5_000, "after": 45_000}]
    assert one.session("s").is_open


# --- closing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("s", "session.closed"),
        ("A", "session.closed"),
        ("op", "session.closed"),
        ("op2", "session.closed"),  # any operator
        ("B", "session_not_yours"),
        ("X", "session_not_yours"),
        ("t", "session_not_yours"),  # another session of the same agent
        ("nobody", "agent_unknown"),
        ("enroller", "agent_unknown"),
    ],
)
def test_a_session_is_closed_by_itself_its_agent_or_an_operator(by: str, told: str) -> None:
    one = Crew()
    one.open("s", "A")
    one.open("t", "A")
    asked = close(by, "s", reason="work-done")
    if told != "session.closed":
        assert one.refuses(asked) == told
        return
    assert one.tell(asked) == told
    leaf = one.leaf(len(one.leaves) - 1)
    assert own_members(leaf) == {
        "session": S, "openedSeq": one.session("s").opened_seq, "leases": 0, "tickets": 0, "reason": "work-done",
    }  # fmt: skip
    assert one.session("s").ended_seq == leaf.seq
    assert one.refuses(beat("s")) == "session_ended"


def test_an_operators_session_is_closed_by_that_operator() -> None:
    one = Crew()
    one.open("s", "op")
    assert one.tell(close("op", "s")) == "session.closed"


def test_closing_twice_is_a_success_without_effect_for_who_may() -> None:
    one = Crew()
    one.open("s", "A")
    first = one.say(close("A", "s"))
    before = one.lasting()
    for by in ("A", "op", "op2"):
        leaf = one.say(close(by, "s"))
        assert (leaf.type, own_members(leaf)) == (
            "tallystick/closing.repeated/1", {"session": S, "endedSeq": first.seq},
        )  # fmt: skip
    assert one.refuses(close("B", "s")) == "session_not_yours"
    assert one.refuses(close("s", "s")) == "session_ended"
    assert one.lasting() == before


def test_closing_what_was_never_open_finds_nothing() -> None:
    one = Crew()
    leaf = one.say(close("A", "B"))
    assert own_members(leaf) == {"session": B, "error": "session_unknown", "number": 128}
    assert one.refuses(close("op", "nobody")) == "session_unknown"


# --- two processes behind one key -----------------------------------------------------------------------------------


def seen(one: Crew, size: int, created_s: int) -> int | None:
    """Let `s` beat with a history of this size, signed then; return the entry from which on it counts as shared."""
    one.entry(one.t_ms, beat("s").but(anchor=anchor_text(size=size), created=created_s, expires=created_s + 60))
    return one.session("s").shared_seq


def test_a_key_that_signs_later_with_an_older_history_has_two_processes() -> None:
    one = Crew()
    one.open("s", "A")
    now_s = one.t_ms // 1_000
    assert seen(one, 5, now_s + 2) is None
    assert seen(one, 3, now_s + 1) is None, "signed before, and late on its way"
    assert seen(one, 3, now_s + 2) is None, "in the same second nobody knows"
    assert seen(one, 5, now_s + 5) is None
    assert seen(one, 4, now_s + 3) == len(one.leaves) - 1
    first = len(one.leaves) - 1
    assert seen(one, 1, now_s + 9) == first, "the first entry that shows it stays"


# --- properties -----------------------------------------------------------------------------------------------------

BEGIN_MS = NOW_MS + 10
NAMES = st.lists(
    st.sampled_from(["repo:**", "repo:a/**", "repo:a", "repo:a/b", "repo:ab", "doc:**", "doc:x"]),
    min_size=1,
    max_size=3,
    unique=True,
).map(sorted)
SAID = st.fixed_dictionaries(
    {
        "verbs": st.sampled_from([["lease"], ["lease", "transfer"], ["transfer"]]),
        "resources": st.none() | NAMES,
        "notBeforeMs": st.integers(-3, 3).map(lambda n: BEGIN_MS + n),
        "expiresAtMs": st.integers(4, 8).map(lambda n: BEGIN_MS + n),
    }
)
ASKED = st.sampled_from(["repo:a", "repo:a/b", "repo:a/b/c", "repo:ab", "repo:b", "doc:x", "repo:a/**", "doc:**"])


@settings(max_examples=150, deadline=None)
@given(SAID, SAID, st.integers(-4, 9), ASKED)
def test_whatever_a_chain_says_verbs_names_and_time_only_shrink(
    parent: JsonObject, child: JsonObject, at: int, asked: str
) -> None:
    """An opened session is never granted what any statement above it does not give, at no time it does not give."""
    one = Crew()
    one.t_ms = BEGIN_MS + at
    told = one.tell(open_session("s", linked(parent, child, "op", "A", "s")))
    if told != "session.opened":
        assert told in ("delegation_wider", "delegation_longer", "delegation_expired")
        assert _gives_more(child, parent) or not _is_inside(child, one.t_ms)
        return
    assert not _gives_more(child, parent)
    for said in (parent, child):
        assert _is_inside(said, one.t_ms)
    is_granted = one.tell(acquire("s", asked)) == "lease.granted"
    assert is_granted == ("lease" in child["verbs"] and _gives(child, asked))  # type: ignore[operator]
    if is_granted:
        assert "lease" in parent["verbs"] and _gives(parent, asked)  # type: ignore[operator]


def _gives(said: JsonObject, name: str) -> bool:
    names = said["resources"]
    return names is None or any(covers(str(wide), name) for wide in names)  # type: ignore[union-attr]


def _gives_more(child: JsonObject, parent: JsonObject) -> bool:
    """By a model of its own: what a name set gives is the set of sample names below it."""
    samples = ["repo:a", "repo:a/b", "repo:a/b/c", "repo:ab", "repo:zz", "doc:x", "doc:y", "other:z"]
    is_wider = any(_gives(child, name) and not _gives(parent, name) for name in samples)
    is_wider = is_wider or not set(child["verbs"]) <= set(parent["verbs"])  # type: ignore[arg-type]
    times = child["notBeforeMs"], parent["notBeforeMs"], child["expiresAtMs"], parent["expiresAtMs"]
    return is_wider or times[0] < times[1] or times[2] > times[3]  # type: ignore[operator]


def _is_inside(said: JsonObject, t_ms: int) -> bool:
    return said["notBeforeMs"] <= t_ms < said["expiresAtMs"]  # type: ignore[operator]
