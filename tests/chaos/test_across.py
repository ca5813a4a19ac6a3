"""What is asked of both nodes at the same moment is decided once, and what one was told counts at the other at once.

While a crowd works: in peace, and while one node after another sleeps, is killed, or loses its sessions.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.client.approval import Act, approve
from gateway.client.transport import Reply
from keys.files import CUSTODY, new_key_in
from keys.token import digest_of, new_token
from tests.chaos.hands import AWAY, Hands, kind, nonce_of, told
from tests.chaos.size import size
from tests.chaos.stage import Stage
from tests.pg.nodes import ORIGIN, Node
from tests.pg.server import ROLE, fresh_database, shared_server
from tests.rules.questions import policy
from verifier.entries import Leaf

pytestmark = [pytest.mark.postgres, pytest.mark.system]
DOES = sha256(b"deploy 17").hexdigest()
LEASE = "/api/v1/acp/coordination/lease"
ENDS = f"select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = '{ROLE}'"
SLEEP_S = 1.0
Scene = Callable[[Hands, int], Awaitable[None]]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        url = stack.enter_context(fresh_database())
        yield await stack.enter_async_context(Stage(tmp_path, [url, url]))


async def play(stage: Stage, scenes: Sequence[Scene], rounds: int) -> tuple[list[Leaf], int]:
    """Play all scenes in turn while a crowd works, a few times in peace and then under faults, until each fault struck.

    Return the ledger's leaves, which were audited, and how often each scene was played.
    """
    harm, played = Harm(stage), 0

    async def scene() -> None:
        nonlocal played
        async with Hands(stage.ledger) as hands, asyncio.TaskGroup() as group:
            while played < rounds or harm.count < len(harm.faults):
                if played == rounds // 2:
                    group.create_task(harm.strike())
                for one in scenes:
                    await one(hands, played)
                played += 1
            harm.is_over = True

    leaves = await stage.play(scene, agents=3)
    return leaves, played


class Harm:
    """One fault after another, to the nodes in turn. Whoever was killed is started again."""

    def __init__(self, stage: Stage) -> None:
        self.faults = (self._end_sessions, self._sleep, self._kill)
        self.count = 0
        self.is_over = False
        self._stage = stage

    async def strike(self) -> None:
        """Strike until it is over."""
        while not self.is_over:
            await self._stage.crowd.until(5)
            node = self._stage.nodes[self.count // len(self.faults) % len(self._stage.nodes)]
            await self.faults[self.count % len(self.faults)](node)
            self.count += 1

    async def _end_sessions(self, _: Node) -> None:
        """Of both nodes."""
        await self._stage.thread(lambda: shared_server().sql(ENDS))

    async def _sleep(self, node: Node) -> None:
        node.pause()
        await asyncio.sleep(SLEEP_S)
        node.resume()

    async def _kill(self, node: Node) -> None:
        await self._stage.thread(node.kill)
        await self._stage.crowd.until(5)
        await self._stage.thread(node.start)


# -- once --------------------------------------------------------------------------------------------------------------


async def copies_of_a_request(hands: Hands, number: int) -> None:
    """The same bytes at both nodes, and again: one decides, the others know the nonce."""
    one = hands.signed("a", "lease.acquire", resource=f"lock:copy/{number}", nonce=f"copy-{number}-".ljust(24, "x"))
    replies = [*await hands.both(one), *await hands.both(one)]
    assert [reply.status for reply in replies].count(200) <= 1
    assert all(is_reused(reply) for reply in replies if reply.status not in (200, *AWAY)), replies


def is_reused(reply: Reply) -> bool:
    return reply.status == 409 and told(reply)["code"] == "nonce_reused"


async def retries_of_a_request(hands: Hands, number: int) -> None:
    """One key, signed twice, at both nodes: the same bytes for both. Copies of the two, at the other node each, are
    refused, or get the same once more where that node can't know yet that its twin answered a retry."""
    key, members = f"retry-{number}", {"resource": f"lock:retry/{number}"}
    here, there = (hands.signed("a", "lease.acquire", key, **members) for _ in range(2))
    first = [*await hands.both(here, there), *await hands.both(there, here)]
    answer = await hands.ask(number % 2, "a", "lease.acquire", key, **members)
    for reply in (answer, *first):
        if not is_reused(reply) and reply.status not in AWAY:
            assert (reply.status, reply.unverified_body) == (200, answer.unverified_body)


async def one_nonce_for_two_requests(hands: Hands, number: int) -> None:
    """Two requests that are not the same bear one nonce, at both nodes: one of them is decided."""
    nonce = f"twice-{number}-".ljust(24, "x")
    pair = [hands.signed("b", "lease.acquire", resource=f"lock:{side}/{number}", nonce=nonce) for side in "lr"]
    replies = await hands.both(*pair)
    assert [reply.status for reply in replies].count(200) <= 1
    assert all(is_reused(reply) for reply in replies if reply.status not in (200, *AWAY))


async def one_approval_for_two_acts(hands: Hands, number: int) -> None:
    """What was approved once is presented at both nodes: one may, and the other is told that it was used."""
    name = f"lock:approved/{number}"
    if number == 0:
        await hands.does(0, "op", "operator.add", operator=hands.did("op2"))
    lease = (await hands.does(number % 2, "a", "lease.acquire", resource=name, ttlMs=600_000))["lease"]
    act = Act(ORIGIN, hands.did("a"), "deploy.run", (name,), "write", DOES)
    row = approve(hands.key("op2"), act, genesis=hands.genesis, now_ms=time.time_ns() // 1_000_000).row
    asked: dict[str, Any] = {"operation": "deploy.run", "argumentsDigest": DOES, "resource": name, "approvals": [row]}
    asked |= {"leaseId": lease["leaseId"], "fencingToken": lease["fencingToken"]}
    replies = await asyncio.gather(*(hands.ask(at, "a", "coordination.admit", **asked) for at in (0, 1)))
    assert sorted(reply.status for reply in replies) == [200, 403], replies
    assert {told(reply).get("error") for reply in replies} == {None, "approval_used"}


async def a_lease_renewed_here_and_there(hands: Hands, number: int) -> None:
    """It keeps its token, its end moves on, and who gave it back at one node has given it back."""
    name = f"lock:renewed/{number}"
    lease = (await hands.does(number % 2, "b", "lease.acquire", resource=name))["lease"]
    until_ms = lease["expiresAtMs"]
    for at in (0, 1, 0, 1):
        renewed = (await hands.does(at, "b", "lease.renew", leaseId=lease["leaseId"], ttlMs=60_000))["lease"]
        assert renewed["fencingToken"] == lease["fencingToken"] and renewed["expiresAtMs"] >= until_ms
        until_ms = renewed["expiresAtMs"]
    await hands.does(number % 2, "b", "lease.release", resource=name, leaseId=lease["leaseId"])
    late = await hands.ask(1 - number % 2, "b", "lease.renew", leaseId=lease["leaseId"], ttlMs=60_000)
    assert late.status == 409, late.unverified_body


async def a_session_opened_here_and_closed_there(hands: Hands, number: int) -> None:
    """While it is closed at one node it asks at the other one; after that nobody decides anything for it."""
    at, name = number % 2, f"session-{number}"
    await hands.opens(at, name, "a")
    lease = (await hands.does(1 - at, name, "lease.acquire", resource=f"lock:{name}", ttlMs=60_000))["lease"]
    renewals = [hands.ask(side, name, "lease.renew", leaseId=lease["leaseId"], ttlMs=60_000) for side in (at, 1 - at)]
    closed, *renewed = await asyncio.gather(
        hands.ask(1 - at, name, "session.close", session=hands.did(name)), *renewals
    )
    assert closed.status == 200 and {reply.status for reply in renewed} <= {200, 403}, (closed, renewed)
    for side in (0, 1):
        reply = await hands.ask(side, name, "lease.acquire", resource=f"lock:{name}/more")
        assert (reply.status, told(reply)["code"]) == (403, "session_ended"), reply
    assert (await hands.ask(at, "b", "lease.acquire", resource=f"lock:{name}")).status == 200, "it was given back"


ONCE: tuple[Scene, ...] = (
    copies_of_a_request,
    retries_of_a_request,
    one_nonce_for_two_requests,
    one_approval_for_two_acts,
    a_lease_renewed_here_and_there,
    a_session_opened_here_and_closed_there,
)


def check_once(leaves: Sequence[Leaf], rounds: int) -> None:
    """No nonce stands in two entries, one approval admits once, and a closed session acts no more."""
    nonces = [(leaf.actor, nonce_of(leaf)) for leaf in leaves if nonce_of(leaf)]
    assert len(nonces) > rounds and len(set(nonces)) == len(nonces)
    used = [
        str(row["nonce"]) for leaf in leaves if kind(leaf) == "admission.allowed" for row in rows(leaf, "approvals")
    ]
    assert len(used) == len(set(used)) == rounds
    closed = {leaf.actor: leaf.seq for leaf in leaves if kind(leaf) == "session.closed"}
    assert len(closed) == rounds
    assert all(leaf.seq <= closed.get(leaf.actor, leaf.seq) for leaf in leaves)


def rows(leaf: Leaf, name: str) -> list[dict[str, Any]]:
    found = leaf.value.get(name)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


async def test_what_both_nodes_are_asked_at_once_is_decided_once(stage: Stage) -> None:
    check_once(*await play(stage, ONCE, size(4, 60)))


# -- at once -----------------------------------------------------------------------------------------------------------


class Words:
    """What an operator says at one node, while the other one decides."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def a_key_is_revoked(self, hands: Hands, number: int) -> None:
        """From the answer on its token decides nothing at either node."""
        did, token, at = self._custodial(), new_token("live"), number % 2
        await hands.does(at, "op", "agent.add", agent=did, name=f"ci-{number}", agentCustody="gateway")
        await hands.does(1 - at, "op", "apikey.issue", keyDigest=digest_of(token), kind="live", agent=did)
        calls = [hands.call(side % 2, token, LEASE, resource=f"lock:ci-{number}/{side}") for side in range(4)]
        revoked, *before = await asyncio.gather(
            hands.ask(at, "op", "apikey.revoke", keyDigest=digest_of(token)), *calls
        )
        assert revoked.status == 200 and {reply.status for reply in before} <= {200, 401, *AWAY}
        for side in (1 - at, at):
            after = await hands.call(side, token, LEASE, resource=f"lock:ci-{number}/after")
            assert after.status in (401, *AWAY), after

    def _custodial(self) -> str:
        """Make a key that both nodes hold."""
        here, *others = (node.folder / CUSTODY for node in self._stage.nodes)
        did = new_key_in(here, purpose=CUSTODY).did
        for other in others:
            shutil.copytree(here, other, dirs_exist_ok=True)
        return did

    async def rules_are_loaded(self, hands: Hands, number: int) -> None:
        """Each admission is judged by the newest set, whichever node took that."""
        effect = ("permit", "forbid")[number % 2]
        loaded: dict[str, Any] = {"rules": policy(effect, name=f"set-{number}"), "rulesMode": "enforce"}
        asked: dict[str, Any] = {"operation": "look", "argumentsDigest": DOES, "resource": "lock:seen", "mode": "read"}
        admissions = [hands.ask(side % 2, "a", "coordination.admit", **asked) for side in range(6)]
        await asyncio.gather(hands.does(number % 2, "op", "rules.load", **loaded, rulesVersion=number + 1), *admissions)
        for side in (0, 1):
            reply = await hands.ask(side, "a", "coordination.admit", **asked)
            assert reply.status == (200 if effect == "permit" else 403), reply

    async def a_scheme_is_set(self, hands: Hands, number: int) -> None:
        """A grant is of the class that its scheme has at that moment: what one reads, two may read."""
        name, at = f"s{number}", number % 2
        reads = [
            hands.ask(side % 2, "b", "lease.acquire", resource=f"{name}:x/{side}", mode="read", ttlMs=600_000)
            for side in range(4)
        ]
        await asyncio.gather(hands.ask(at, "op", "scheme.set", name=name, **{"class": "read-safe"}), *reads)


def check_words(leaves: Sequence[Leaf], rounds: int) -> None:
    """A naive reading: what was revoked is silent, and each set of rules and each class holds from its entry on."""
    revoked: set[str] = set()
    owners: dict[str, str] = {}
    classes: dict[str, str] = {}
    version = 0
    seen: set[int] = set()
    for leaf in leaves:
        assert leaf.actor not in revoked, f"entry {leaf.seq} is of a revoked key"
        if kind(leaf) == "apikey.issued":
            owners[leaf.text("keyDigest")] = str(leaf.value.get("agent", ""))
        elif kind(leaf) == "apikey.revoked":
            revoked.add(owners[leaf.text("keyDigest")])
        elif kind(leaf) == "rules.loaded":
            version = leaf.number("rulesVersion")
        elif kind(leaf) == "scheme.set":
            classes[leaf.text("name")] = leaf.text("class")
        elif kind(leaf) == "lease.granted":
            for row in rows(leaf, "schemes"):
                assert row["class"] == classes.get(str(row["name"]), "exclusive"), leaf.seq
        elif kind(leaf) in ("admission.allowed", "admission.denied"):
            by = leaf.value.get("rules")
            assert (by["version"] if isinstance(by, dict) else 0) == version, leaf.seq
            seen.add(version)
    assert len(revoked) == rounds and version == rounds and len(seen) >= rounds and classes


async def test_what_an_operator_says_at_one_node_counts_at_the_other_at_once(stage: Stage) -> None:
    words = Words(stage)
    check_words(
        *await play(stage, (words.a_key_is_revoked, words.rules_are_loaded, words.a_scheme_is_set), size(4, 40))
    )
