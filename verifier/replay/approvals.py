"""Approvals: may those that an admission brings along count, and was every ask for one answered as it had to be?

What a statement's signature and its own members show is the evidence's; whether its approver may approve, whether it
was used before, and who waits for whose approval, only the ledger knows.
Source: docs/protocol.md 38.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from verifier.approval import Approval, action_digest
from verifier.entries import ASKS_REMEMBERED, Leaf, body_value
from verifier.replay.decide import Refused
from verifier.replay.graph import circle, search_plea
from verifier.replay.judged import Judged
from verifier.replay.pleas import Plea
from verifier.replay.rules import digest_in_force
from verifier.replay.state import State
from verifier.replay.things import Faults, names_in
from verifier.wire import JsonObject

_BOUND = 7  # of an approval's members, from the first on: what it is for
_TEXTS = {
    "approval_wrong": "an approval is for another ledger, agent, operation, action, arguments or rules (38.4)",
    "approver_unfit": "an approver is not in force, custodial, on trial, a session, or of an operator that is the"
    " agent's or has answered (38.3, 38.6)",
    "approval_expired": "an approval does not hold at timeMs (38.4)",
    "approval_used": "an approval was used before (38.4)",
}


class Approved(NamedTuple):
    """An approval that counts, with the operator that answers for its approver."""

    operator: str
    approval: Approval

    @property
    def expires_at_ms(self) -> int:
        return self.approval.expires_at_ms

    def row(self) -> JsonObject:
        """Return it as an admission states it."""
        one = self.approval
        return {"approver": one.approver, "operator": self.operator, "nonce": one.nonce, "digest": one.digest}


def judge_approvals(
    state: State, leaf: Leaf, given: tuple[Approval, ...], rules_digest: str
) -> str | tuple[Approved, ...]:
    """Return the approvals of an admission by operator, or the denial that is due for them."""
    bound = _bound(leaf, rules_digest)
    if any(one[:_BOUND] != bound for one in given):
        return "approval_wrong"
    approved: dict[str, Approved] = {}
    for one in given:
        operator = approving(state, one.approver, leaf.on_behalf_of)
        if operator is None or operator in approved:
            return "approver_unfit"
        approved[operator] = Approved(operator, one)
    error = _time_error(state, given)
    return tuple(approved[operator] for operator in sorted(approved)) if error is None else error


def burn(state: State, approved: Iterable[Approved]) -> None:
    """Approvals are used, each for good."""
    for one in approved:
        state.burnt.burn(one.approval)


def approving(state: State, did: str, own_operator: str) -> str | None:
    """Return the operator for whom a key approves; None where it may not."""
    people = state.people
    if did in people.operators:
        return None if did == own_operator else did
    agent = people.agent(did)
    if agent is None or agent.is_custodial or agent.trial_until_ms is not None:
        return None
    return agent.operator if agent.operator in people.operators - {own_operator} else None


def _bound(leaf: Leaf, rules_digest: str) -> tuple[str, ...]:
    """Return what an approval of the action in a leaf has to name."""
    operation, arguments = leaf.text("operation"), leaf.text("argumentsDigest")
    digest = action_digest(
        leaf.principal,
        operation,
        names_in(leaf),
        leaf.text("mode"),
        arguments,
        leaf.number("cost"),
        leaf.origin,
        rules_digest,
    )
    return leaf.origin, leaf.genesis.hex(), leaf.principal, operation, digest, arguments, rules_digest


def _time_error(state: State, given: Iterable[Approval]) -> str | None:
    """Expired is told before used, of whichever it is."""
    now_ms = state.now_ms
    if any(now_ms < one.not_before_ms or now_ms >= one.expires_at_ms for one in given):
        return "approval_expired"
    is_used = any(state.burnt.is_burnt(one, now_ms) for one in given)
    return "approval_used" if is_used else None


# -- asking, and answering ---------------------------------------------------------------------------------------------


def asked_faults(state: State, leaf: Leaf) -> Faults:
    """`approval.asked`: nothing refuses it, and nobody who has to approve waits for the asker."""
    rules_digest = digest_in_force(state)
    if leaf.text("rulesDigest") != rules_digest:
        yield "rules_digest_wrong", "rulesDigest is not that of the rules in force (38.5)"
    wanted = ask_wanted(state, leaf, leaf.value)
    if isinstance(wanted, Refused):
        yield wanted.error, f"asked, but the entries before call for {wanted.error} (38.5)"
    state.pleas.begin(_plea(state, leaf, leaf.value))


def ask_wanted(state: State, leaf: Leaf, asked: JsonObject) -> Refused | None:
    """Return the refusal that an ask calls for; `asked` has its approvers and its quorum."""
    error = "ledger_disputed" if state.is_disputed else state.schemes.name_error(names_in(leaf), leaf.text("mode"))
    if error is not None:
        return Refused(error)
    plea = _plea(state, leaf, asked)
    if "" in plea.approvers.values() or len({*plea.approvers.values()}) < plea.quorum:
        return Refused("approver_unfit")
    live, remembered = state.pleas.counts(leaf.principal, state.now_ms)
    bound = state.numbers["asksPerPrincipal"]
    if live >= bound or remembered >= ASKS_REMEMBERED * bound:
        return Refused("too_many_asked")
    cycle = search_plea(state, plea).cycle
    return None if cycle is None else Refused("deadlock", circle(cycle))


def _plea(state: State, leaf: Leaf, asked: JsonObject) -> Plea:
    """Return the ask of a leaf; who may not approve has no operator in it."""
    named, quorum = asked.get("approvers"), body_value("approval.ask", asked, "quorum")
    dids = [str(did) for did in named] if isinstance(named, list) else []
    return Plea(
        seq=leaf.seq,
        actor=leaf.actor,
        principal=leaf.principal,
        operator=leaf.on_behalf_of,
        name=names_in(leaf)[0],
        mode=leaf.text("mode"),
        bound=_bound(leaf, digest_in_force(state)),
        approvers={did: approving(state, did, leaf.on_behalf_of) or "" for did in dids},
        quorum=quorum if isinstance(quorum, int) else 1,
        give_up_by_ms=leaf.number("giveUpByMs"),
    )


def answered_faults(state: State, leaf: Leaf, entry: Judged) -> Faults:
    """`approval.given`, `approval.declined`, `approval.withdrawn`: a live ask, and the actor's to answer."""
    wanted = answer_wanted(state, leaf, entry)
    if isinstance(wanted, Refused):
        yield wanted.error, _TEXTS.get(wanted.error, f"answered, but {wanted.error} is due (38.6)")
    plea = state.pleas.get(_number(leaf), state.now_ms)
    if plea is None or plea.seq != leaf.number("askSeq"):
        yield "citation_wrong", "askSeq is not the approval.asked of a live ask (12.6)"
    elif plea.ended_seq is None:
        _answer(state, plea, leaf)


def answer_wanted(state: State, leaf: Leaf, entry: Judged) -> Refused | Plea:
    """Return the ask that an answer is about, or the refusal that it calls for."""
    plea = state.pleas.get(_number(leaf), state.now_ms)
    if plea is None:
        return Refused("ask_unknown")
    if leaf.actor not in ([plea.actor] if leaf.action == "approval.withdraw" else plea.approvers):
        return Refused("ask_not_yours")
    if plea.ended_seq is not None:
        return Refused("ask_ended", {"endedSeq": plea.ended_seq})
    if state.now_ms >= plea.give_up_by_ms:
        return Refused("ask_ended")
    error = None
    if leaf.action == "approval.give":
        error = _giving_error(state, plea, leaf, entry)
    elif leaf.action == "approval.decline" and plea.has_answered(leaf.actor):
        error = "approver_unfit"
    return plea if error is None else Refused(error)


def _giving_error(state: State, plea: Plea, leaf: Leaf, entry: Judged) -> str | None:
    given = entry.given[0] if entry.given else ()
    if not given:  # no statement that could be read: the evidence's fault
        return None
    if any((*one[:_BOUND], one.approver) != (*plea.bound, leaf.actor) for one in given):
        return "approval_wrong"
    operator = plea.approvers[leaf.actor]
    is_fit = approving(state, leaf.actor, plea.operator) == operator
    if not is_fit or plea.has_answered(leaf.actor) or operator in {plea.approvers[did] for did in plea.given}:
        return "approver_unfit"
    return _time_error(state, given)


def _answer(state: State, plea: Plea, leaf: Leaf) -> None:
    match leaf.action:
        case "approval.withdraw":
            is_over = True
        case _ if leaf.actor not in plea.approvers:
            is_over = False
        case "approval.give":
            plea.given.add(leaf.actor)
            is_over = plea.is_fulfilled
        case _:
            plea.declined.add(leaf.actor)
            is_over = plea.is_hopeless
    if is_over:
        state.pleas.end(plea, leaf.seq, state.now_ms)


def _number(leaf: Leaf) -> int:
    return int(leaf.text("askId")[1:])
