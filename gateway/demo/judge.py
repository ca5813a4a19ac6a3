"""What the demo promises of the ledger that the swarm left: relations, never counts, which depend on the machine."""

from dataclasses import dataclass, field

from gateway.demo import admissions, company, scene
from gateway.demo.checks import (
    GRANTS,
    Life,
    Span,
    Wait,
    expired_holders,
    is_all_returned,
    is_real,
    kind,
    lives,
    out_of_turn,
    overlaps,
    path_of,
    resources,
    seq,
    spans,
    waits,
)
from gateway.demo.recorder import leaf_of
from gateway.demo.server import IDLE_MS
from gateway.demo.swarm import Swarm
from verifier.entries import ACTION_PATHS
from verifier.wire import JsonObject, JsonValue


@dataclass(slots=True)
class Verdict:
    """What the demo saw; `failures` is empty when every promise held."""

    failures: list[str] = field(default_factory=list)

    def expect(self, is_true: bool, promise: str) -> None:
        """Print a promise and whether it held."""
        print(f"  {'ok  ' if is_true else 'FAIL'}  {promise}")
        if not is_true:
            self.failures.append(promise)


def judge_work(verdict: Verdict, swarm: Swarm, leaves: list[JsonObject]) -> None:
    """Check the relations that must hold however fast the machine is."""
    leases, tickets = spans(leaves), waits(leaves)
    asked = [leaf for leaf in leaves if path_of(leaf) == ACTION_PATHS["lease.acquire"]]
    refusals = [leaf for leaf in leaves if kind(leaf) == "lease.refused"]
    verdict.expect(
        all(kind(leaf) in ("lease.granted", "lease.extended", "lease.refused", "wait.queued") for leaf in asked),
        "every request was granted, refused, or given a place in line",
    )
    verdict.expect(
        bool(refusals) and all(is_real(leaf, leases, tickets) for leaf in refusals),
        "work did collide, and each refusal names who really holds it, or who is first in line",
    )
    verdict.expect(
        expired_holders(leaves) == set(swarm.killed) and len(swarm.killed) == 2,
        f"leases expired for the killed workers ({', '.join(sorted(swarm.killed.values()))}) and nobody else",
    )
    verdict.expect(overlaps(leases) == [], "no two workers ever held one path at the same time")


def judge_waiting(verdict: Verdict, told: scene.Scene, tickets: list[Wait]) -> None:
    """Check what must hold of those who waited, and of the two who met in a circle."""
    verdict.expect(
        any(ticket.is_served for ticket in tickets)
        and all(ticket.to_seq is not None and ticket.is_offered >= ticket.is_served for ticket in tickets),
        "everyone who stood in line was served, after an offer, or left it",
    )
    verdict.expect(out_of_turn(tickets) == [], "nobody was served before somebody who had waited longer for that path")
    rows = told.refusal.cycle
    verdict.expect(
        {row.actor for row in rows} == set(told.names)
        and {row.fencing_token for row in rows} >= {told.given.fencing_token}
        and told.refusal.acquire_order == tuple(sorted((scene.SERVER, scene.BROWSER))),
        "the circle was refused by name, with the order to take its paths in",
    )
    verdict.expect(
        told.taken.fencing_token > told.served.fencing_token > told.given.fencing_token,
        "a lease changed hands, and each new holder got a greater token",
    )


def judge_sessions(verdict: Verdict, swarm: Swarm, people: company.Company, leaves: list[JsonObject]) -> None:
    """Check what must hold of those who act for the operator, and of what they leave behind."""
    leases, sessions = spans(leaves), {life.did: life for life in lives(leaves)}
    own = [leaf for leaf in leaves if leaf["actor"] in swarm.sessions]
    verdict.expect(
        any(kind(leaf) in GRANTS for leaf in own) and {leaf["onBehalfOf"] for leaf in own} == {people.operator},
        "every second worker was a session, and each of its entries names the operator that answers for it",
    )
    verdict.expect(
        swarm.sessions < set(sessions) and all(is_all_returned(life, leases) for life in sessions.values()),
        "every session ended, and what it held was given back right then, once",
    )
    silent, revoked = (sessions[grant.receipt.leaf.actor] for grant in (people.silent, people.revoked))
    last_ms = max(_time_ms(leaf) for leaf in leaves if leaf["actor"] == silent.did)
    verdict.expect(
        silent.end is not None and silent.end.get("reason") == "idle" and _time_ms(silent.end) >= last_ms + IDLE_MS,
        "the session that fell silent was given up after its time, and no earlier",
    )
    verdict.expect(
        _is_followed(silent, people.after_silence, leases) and _is_followed(revoked, people.after_revocation, leases),
        "what the silent and the revoked one held went to the next in line, and to nobody before",
    )
    commands = [
        leaf for leaf in leaves if isinstance(leaf.get("request"), dict) and "batch" in _object(leaf["request"])
    ]
    verdict.expect(
        {_object(leaf["request"])["batch"] for leaf in commands} == {seq(commands[0]) - 1}
        and [seq(leaf) for leaf in commands] == list(range(seq(commands[0]), seq(commands[0]) + len(commands))),
        "the commands of the batch stand in a row behind the request that asked for them",
    )


def judge_gate(verdict: Verdict, told: admissions.Gate) -> None:
    """Check what must hold of those who asked before they acted."""
    late, allowed = told.late.receipt.leaf, told.allowed.receipt.leaf
    verdict.expect(
        told.late.current_token == told.new.fencing_token > told.old.fencing_token
        and late.number("endedSeq") == told.broken.seq,
        "an old token was denied, with the token that counts and the entry that ended the old one",
    )
    verdict.expect(
        (told.alone is None or told.alone.error == "not_permitted")
        and allowed.number("fencingToken") == told.new.fencing_token
        and told.again.error == "approval_used",
        "what nobody may do alone was admitted once it was approved, and the approval bought nothing more",
    )


def _is_followed(life: Life, after: bytes, leases: list[Span]) -> bool:
    """Say whether a session's one lease came back, and the next of that file is the one that was waited for."""
    grant, (returned,) = leaf_of(after), life.returned
    later = [one.from_seq for one in leases if one.resources == resources(returned) and one.from_seq > seq(returned)]
    return kind(grant) == "lease.claimed" and min(later) == seq(grant)


def _time_ms(leaf: JsonObject) -> int:
    return int(str(leaf["timeMs"]))


def _object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value
