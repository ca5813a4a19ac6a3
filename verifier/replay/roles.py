"""Operators, agents and API keys: what operators and the enroller may change, and what they are refused.

One function for each action says which refusal is due; a success is asked for none, a refusal for exactly that one.
Source: docs/protocol.md 28.7, 28.8, 30.1 to 30.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from verifier.entries import Leaf
from verifier.replay.people import Agent, ApiKey, People
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.wire import JsonObject

_TEXT = "the entries before call for the refusal {} (28.7, 28.8, 30.1, 30.3)"


def role_faults(state: State, leaf: Leaf) -> Faults:
    """`operator.added`, `agent.removed`, `apikey.issued` and their like: nothing refuses it; then it is so."""
    name, people = leaf.entry_type.name, state.people
    error = due_error(state, leaf, leaf.value)
    if error is not None and (error != "operator_required" or name == "agent.added"):  # else said of the actor
        yield error, _TEXT.format(error)
    if name == "apikey.revoked":
        key = people.keys.get(leaf.text("keyDigest"))
        if key is not None and key.issued_seq != leaf.number("issuedSeq"):
            yield "citation_wrong", "issuedSeq is not the apikey.issued of this digest (12.6)"
    _MOVES[name](state, leaf)


def due_error(state: State, leaf: Leaf, asked: JsonObject) -> str | None:
    """Return the refusal that an action calls for; `asked` is its body, or an entry that repeats all that decides.

    A key of the ledger itself gets no role, whatever else stands against it later (15.2).
    """
    error, action = _ERRORS[leaf.action or ""](state.people, leaf.actor, asked), leaf.action or ""
    did = _text(asked, {"agent.add": "agent", "operator.add": "operator"}.get(action, "")) or ""
    return "key_taken" if error != "operator_required" and state.keys.is_own(did) else error


def _text(asked: JsonObject, name: str) -> str | None:
    text = asked.get(name)
    return text if isinstance(text, str) else None


def _operator_add(people: People, actor: str, asked: JsonObject) -> str | None:
    did = _text(asked, "operator") or ""
    if actor not in people.operators:
        return "operator_required"
    is_other = people.agent(did) is not None or did in people.sessions or did == people.enroller
    return "key_taken" if is_other else None


def _operator_remove(people: People, actor: str, asked: JsonObject) -> str | None:
    if actor not in people.operators:
        return "operator_required"
    if _text(asked, "operator") not in people.operators:
        return "operator_not_found"
    return "operator_last" if len(people.operators) == 1 else None


def _agent_add(people: People, actor: str, asked: JsonObject) -> str | None:
    """The enroller acts in the name of an API key, operators in their own."""
    did, digest = _text(asked, "agent") or "", _text(asked, "keyDigest")
    if actor not in people.operators if digest is None else actor != people.enroller:
        return "operator_required"
    key = None if digest is None else _enrolling(people, digest)
    operator = actor if digest is None else None if key is None else key.operator
    if _is_taken(people, did, operator, is_custodial="agentCustody" in asked):
        return "key_taken"
    if operator is None:
        return "apikey_not_found"
    is_used = key is not None and key.kind == "trial" and key.used_by not in (None, did)
    return "apikey_used" if is_used else None


def _enrolling(people: People, digest: str) -> ApiKey | None:
    """Return an API key that may enrol agents: in force like its operator, and not one agent's own."""
    key = people.keys.get(digest)
    is_good = key is not None and not key.is_revoked and key.agent is None and key.operator in people.operators
    return key if is_good else None


def _is_taken(people: People, did: str, operator: str | None, *, is_custodial: bool) -> bool:
    """Say whether a DID has another role, or is an agent in force under another operator, or in other custody."""
    if did in people.operators or did in people.sessions or did == people.enroller:
        return True
    agent = people.agent(did)
    if agent is None:
        return False
    is_anothers = agent.operator != operator and agent.operator in people.operators
    return is_anothers or agent.is_custodial != is_custodial


def _agent_remove(people: People, actor: str, asked: JsonObject) -> str | None:
    if actor not in people.operators:
        return "operator_required"
    return "agent_not_found" if people.agent(_text(asked, "agent") or "") is None else None


def _apikey_issue(people: People, actor: str, asked: JsonObject) -> str | None:
    """A key of one agent is for an agent of that operator whose own key the gateway holds; for others it can't sign."""
    if actor not in people.operators:
        return "operator_required"
    did = _text(asked, "agent")
    agent = None if did is None else people.agent(did)
    if did is not None and (agent is None or not agent.is_custodial or agent.operator != actor):
        return "agent_not_found"
    return "apikey_known" if _text(asked, "keyDigest") in people.keys else None


def _apikey_revoke(people: People, actor: str, asked: JsonObject) -> str | None:
    if actor not in people.operators:
        return "operator_required"
    key = people.keys.get(_text(asked, "keyDigest") or "")
    return "apikey_not_found" if key is None or key.is_revoked else None


_ERRORS: Mapping[str, Callable[[People, str, JsonObject], str | None]] = MappingProxyType(
    {
        "operator.add": _operator_add,
        "operator.remove": _operator_remove,
        "agent.add": _agent_add,
        "agent.remove": _agent_remove,
        "apikey.issue": _apikey_issue,
        "apikey.revoke": _apikey_revoke,
    }
)


def _added(state: State, leaf: Leaf) -> None:
    """An agent is enrolled; a trial that is enrolled again has the days that it had."""
    people, did = state.people, leaf.text("agent")
    before = people.agents.get(did)
    key = people.keys.get(leaf.text("keyDigest"))
    operator = leaf.actor if "keyDigest" not in leaf.value or key is None else key.operator
    people.agents[did] = agent = Agent(operator, "agentCustody" in leaf.value)
    if key is not None and key.kind == "trial":
        known = None if before is None else before.trial_until_ms
        agent.trial_until_ms = leaf.time_ms + state.numbers["trialMs"] if known is None else known
        key.used_by = did
    people.labels.pop(did, None)
    if "name" in leaf.value:
        people.labels[did] = leaf.text("name")


def _removed(state: State, leaf: Leaf) -> None:
    agent = state.people.agents.get(leaf.text("agent"))
    if agent is not None:
        agent.is_removed = True
        state.people.labels.pop(leaf.text("agent"), None)


def _operator_added(state: State, leaf: Leaf) -> None:
    state.people.operators.add(leaf.text("operator"))
    state.people.former.discard(leaf.text("operator"))


def _operator_removed(state: State, leaf: Leaf) -> None:
    state.people.operators.discard(leaf.text("operator"))
    state.people.former.add(leaf.text("operator"))


def _issued(state: State, leaf: Leaf) -> None:
    key = ApiKey(leaf.text("kind"), leaf.text("agent") or None, leaf.actor, leaf.seq)
    state.people.keys[leaf.text("keyDigest")] = key


def _revoked(state: State, leaf: Leaf) -> None:
    key = state.people.keys.get(leaf.text("keyDigest"))
    if key is not None:
        key.is_revoked = True


_MOVES: Mapping[str, Callable[[State, Leaf], None]] = MappingProxyType(
    {
        "agent.added": _added,
        "agent.removed": _removed,
        "operator.added": _operator_added,
        "operator.removed": _operator_removed,
        "apikey.issued": _issued,
        "apikey.revoked": _revoked,
    }
)
