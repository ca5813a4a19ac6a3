"""Takes, renews and gives back what a session of a coding agent needs: the part that speaks to the gateway.

House rules of this file:

* Everything a call has to ask goes into one request: renewals of what the session holds and wants renewed, and one new
  lease for all that is missing in a mode. All of what is missing or nothing of it.
* A lease that this key had before, on just these names, is only extended by that. Whoever took it gives it back.
* What was needed and is found lost stops the call once, with the reason: others may have written meanwhile, so the
  agent has to read again. The next call takes it anew.
* While it asks for something new it has the client's claim on this machine (claim.py), so that it never shares a lease
  with a `tallystick run` beside it. A lease of a `tallystick run` around the agent itself is borrowed: renewed, used
  and never given back.
* Facts come from verified entries. The list of leases only says where to look.

Source: docs/protocol.md 20; docs/guards.md; docs/adr/0060-what-a-hook-gives-back-and-tells.md; scenarios 1, 14, L19.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.batch import Outcome, acquiring, releasing, renewing
from gateway.client.claim import claim
from gateway.client.errors import ClientError, FenceStale, HeldHere, LeaseEnded, Refused
from gateway.client.holdings import SeenLease
from gateway.client.plain import PlainTransport
from gateway.client.trust import Grant, beat_period_ms
from gateway.client.words import texts
from gateway.guard.changes import Need as Wanted
from gateway.guard.changes import requests_of
from gateway.guard.held import held_of
from gateway.guard.hook_state import Kept, Need, State, around, steady_ms
from gateway.guard.hook_words import lost, named, told, unclaimed
from verifier.entries import ADMIT_RESOURCES_MAX, BATCH_COMMANDS_MAX, LEASE_ID, full_type
from verifier.wire import JsonObject

ASK_MS = 6_000  # a gateway that gives no answer for so long is away; the host is not kept waiting longer
LIVE_MS_MIN = 500  # for the last step: writing down what came
RUN_TTL_MS_MAX = 3_600_000  # a ledger's own bound may be lower
LEASES_MAX = 128  # of one session that are renewed; the oldest beyond that run out
_EXTENDED = full_type("lease.extended")
LEASE_VARIABLE = "TALLYSTICK_LEASE_ID"  # what `tallystick run` tells the command that it runs


class Denied(Exception):
    """The call may not go on; the text says why, until when, and what to do."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How the hook was set up. `until_ms` is the steady-clock instant at which the answer has to be there, `run_ms` how
    long the call may take after that, as it says."""

    home: Path
    is_taking: bool
    ttl_ms: int
    until_ms: int
    run_ms: int = 0


@dataclass(frozen=True, slots=True)
class Act:
    """What is to be admitted: the tool as an operation, the keyed digest of what it is given, and what it touches."""

    operation: str
    digest: str
    objects: tuple[Need, ...]


def act_of(tool: str, given: object, secret: bytes, objects: Sequence[Need]) -> Act:
    """Return the act of one call: HMAC-SHA-256 over the JSON of tool and input, names sorted and without spaces."""
    exact = json.dumps({"input": given, "tool": tool}, sort_keys=True, separators=(",", ":")).encode()
    code = re.sub("[^a-z0-9._-]", "-", tool.lower())[:59]
    return Act(f"tool.{code}", hmac.new(secret, exact, "sha256").hexdigest(), tuple(objects))


async def keep(terms: Terms, state: State, needs: Sequence[Need], act: Act | None = None) -> None:
    """Bring the state up to date so that it covers `needs`, and have `act` admitted; Denied, or what the client raises.

    Without an act nothing is asked beyond leases.
    """
    logging.getLogger("tallystick.client").addHandler(logging.NullHandler())
    async with Agent.open(terms.home, connect=PlainTransport) as agent:
        missing = state.uncovered(needs, steady_ms())
        if missing and not terms.is_taking:
            await _check(agent, terms, state, missing)
            missing = state.uncovered(needs, steady_ms())
        with ExitStack() as claims:
            borrowed = _claim(agent, claims, missing)
            await _ask(agent, terms, state, needs, missing, borrowed)
        await _lengthen(agent, terms, state)
        if act is not None:
            await _admit(agent, terms, state, act)


async def give_back(terms: Terms, state: State) -> None:
    """Give back what the session took itself; what can't be sent costs only the rest of its ttl."""
    logging.getLogger("tallystick.client").addHandler(logging.NullHandler())
    own = [lease for lease in state.leases if lease.is_own and steady_ms() < lease.ends_ms]
    if not own:
        return
    async with Agent.open(terms.home, connect=PlainTransport) as agent:
        for part in _parts([releasing(lease.names, lease.lease_id) for lease in own]):
            await _submit(agent, terms, part)


# -- asking ------------------------------------------------------------------------------------------------------------


def _claim(agent: Agent, claims: ExitStack, missing: Sequence[Need]) -> str | None:
    """Claim what is missing on this machine; return the id of the lease around this process if that has it already."""
    if not missing:
        return None
    try:
        claims.enter_context(claim(agent.profile, [need.name for need in missing]))
    except HeldHere:
        ours = os.environ.get(LEASE_VARIABLE, "")
        if not LEASE_ID.check(ours):
            raise
        return ours
    return None


async def _ask(
    agent: Agent, terms: Terms, state: State, needs: Sequence[Need], missing: Sequence[Need], borrowed: str | None
) -> None:
    now_ms = steady_ms()
    state.leases = state.leases[-LEASES_MAX:]
    due = [lease for lease in state.leases if lease.is_due(now_ms, missing)]
    commands = [renewing(lease.lease_id, ttl_ms=terms.ttl_ms) for lease in due]
    fresh = [need for need in missing if not any(lease.covers(need) for lease in due)]
    if borrowed is not None:
        commands.append(renewing(borrowed, ttl_ms=terms.ttl_ms))
    elif terms.is_taking:
        commands += [_acquiring(fresh, mode, terms) for mode in dict.fromkeys(need.mode for need in fresh)]
    ended: list[Refused] = []
    refused: list[Refused] = []
    for index, outcome in enumerate(await _submit(agent, terms, commands)):
        if index < len(due):
            _renewed(agent, state, due[index], outcome, needs, ended)
        elif outcome.grant is not None:
            is_own = borrowed is None and outcome.receipt.type != _EXTENDED
            state.leases.append(_kept(agent, outcome.grant, is_own))
        elif outcome.refused is not None:
            refused.append(outcome.refused)
    _judge(state, needs, ended, refused)


async def _lengthen(agent: Agent, terms: Terms, state: State) -> None:
    """Let all that is held last for as long as the call may take; where the ledger gives nothing for so long, or no
    answer, it is as it was."""
    now_ms = steady_ms()
    short = [lease for lease in state.leases if now_ms < lease.trust_ends_ms < now_ms + terms.run_ms]
    ttl_ms = min(RUN_TTL_MS_MAX, (terms.run_ms + ASK_MS) * 10 // 9)  # the last tenth of a lease is not relied on
    with suppress(ClientError):
        outcomes = await _submit(agent, terms, [renewing(lease.lease_id, ttl_ms=ttl_ms) for lease in short])
        for lease, outcome in zip(short, outcomes, strict=True):
            _renewed(agent, state, lease, outcome, (), [])


def _acquiring(needs: Iterable[Need], mode: str, terms: Terms) -> JsonObject:
    return acquiring([need.name for need in needs if need.mode == mode], mode=mode, ttl_ms=terms.ttl_ms)


def _renewed(
    agent: Agent, state: State, lease: Kept, outcome: Outcome, needs: Sequence[Need], ended: list[Refused]
) -> None:
    """Take in one renewal. That a lease ended is told to the first call that needs it, be it this one."""
    at = state.leases.index(lease)
    if outcome.grant is not None:
        state.leases[at] = _kept(agent, outcome.grant, lease.is_own)
    elif isinstance(outcome.refused, LeaseEnded):
        if any(lease.covers(need) for need in needs):
            del state.leases[at]
            ended.append(outcome.refused)
        else:
            state.leases[at] = replace(lease, trust_ends_ms=0, ends_ms=0)


def _judge(state: State, needs: Sequence[Need], ended: Sequence[Refused], refused: Sequence[Refused]) -> None:
    if ended:
        raise Denied(lost(needs, ended[0]))
    if refused:
        raise Denied(told(refused[0]))
    left = state.uncovered(needs, steady_ms())
    if left:
        raise Denied(unclaimed(left[0]))


async def _submit(agent: Agent, terms: Terms, commands: Sequence[JsonObject]) -> list[Outcome]:
    """Send commands as one request; return what became of each."""
    if not commands:
        return []
    until_ms = _ask_until_ms(terms)
    if len(commands) > 1:
        return list(await agent.batch(commands, bare=True, until_ms=until_ms))
    members = {name: value for name, value in commands[0].items() if name != "action"}
    decided = await agent.caller.decide(str(commands[0]["action"]), members, until_ms=until_ms)
    return [Outcome(decided.receipt, decided.sent_ms)]


def _ask_until_ms(terms: Terms) -> int:
    return min(terms.until_ms - LIVE_MS_MIN, steady_ms() + ASK_MS)


def _parts(commands: Sequence[JsonObject]) -> list[Sequence[JsonObject]]:
    return [commands[at : at + BATCH_COMMANDS_MAX] for at in range(0, len(commands), BATCH_COMMANDS_MAX)]


def _kept(agent: Agent, grant: Grant, is_own: bool) -> Kept:
    """A grant as the session's file keeps it. What is left of it at its entry is over so long after its answer came."""
    left_ms = max(grant.ttl_ms, grant.expires_at_ms - grant.receipt.leaf.time_ms)
    return Kept(
        grant.lease_id, grant.resources, grant.mode, grant.fencing_token,
        grant.sent_ms + beat_period_ms(min(grant.ttl_ms, grant.idle_ms)), agent.trust_ends_ms(grant),
        steady_ms() + left_ms, grant.expires_at_ms, is_own,
    )  # fmt: skip


async def _admit(agent: Agent, terms: Terms, state: State, act: Act) -> None:
    """Ask whether the act may be done to every object, under each lease for what it covers."""
    left = list(act.objects)
    for lease in reversed(state.leases):
        covered = [need for need in left if lease.covers(need) and steady_ms() < lease.trust_ends_ms]
        left = [need for need in left if need not in covered]
        for names, mode in requests_of(((need.name, need.mode) for need in covered), ADMIT_RESOURCES_MAX):
            try:
                await agent.admit(
                    act.operation, names, mode=mode, arguments_digest=act.digest,
                    lease=SeenLease(lease.lease_id, lease.token), until_ms=_ask_until_ms(terms),
                )  # fmt: skip
            except FenceStale as refused:
                state.leases.remove(lease)
                raise Denied(lost(covered, refused)) from refused
    if left:
        raise Denied(f"{named(left)}: no lease that may be relied on covers it any more, so it was not asked about")


# -- checking only -----------------------------------------------------------------------------------------------------


async def _check(agent: Agent, terms: Terms, state: State, missing: Sequence[Need]) -> None:
    """Find live leases of this key that cover what is missing, and renew them: a renewal proves that one is live."""
    wanted = [Wanted(b"", need.name, need.mode) for need in missing]
    names = {name for need in missing for name in _folded(need.name)}
    for row in await agent.leases():
        lease_id = str(row.get("leaseId"))
        if not LEASE_ID.check(lease_id) or names.isdisjoint(text.lower() for text in texts(row.get("resources"))):
            continue
        (outcome,) = await _submit(agent, terms, [renewing(lease_id, ttl_ms=terms.ttl_ms)])
        held = held_of(outcome.receipt)
        if outcome.grant is not None and held is not None and any(held.covers(need) for need in wanted):
            state.leases.append(_kept(agent, outcome.grant, False))


def _folded(name: str) -> set[str]:
    return {one.lower() for one in around(name)}
