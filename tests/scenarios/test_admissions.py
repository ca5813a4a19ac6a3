"""Who asks before it acts: no update is lost, and neither failing rules nor farmed trust let anybody by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pytest

from gateway.client.admission_guard import AdmissionGuard, Deed, answer_admission
from gateway.client.errors import Fenced
from gateway.client.fence import Answer as Proof
from gateway.core.records import RuleSet
from gateway.ledger.history import Answer
from gateway.rules.engine import open_engine
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage, did, kind, member, receipt_of, stage
from tests.world import World
from verifier.entries import Leaf, parse_leaf
from verifier.replay.ledger import check_ledger
from verifier.rules import Question
from verifier.verdict import Outcome

NAME = "repo:x"
TTL_MS = 30_000
ANYBODY = '@id("anybody")\npermit (principal, action, resource);\n'
# 2^63 - 1 and one more: the engine says Allow, and beside it that this policy could not be evaluated.
OVERFLOW = '@id("never")\nforbid (principal, action, resource)\nwhen { context.cost + 9223372036854775807 > 0 };\n'
TRUSTED = '@id("low")\nforbid (principal, action, resource)\nwhen { context.trust < 40000 };\n'


async def admit(scene: Stage, name: str, lease: Leaf, content: bytes = b"", **members: Any) -> Answer:
    """Ask whether `content` may be written under a lease."""
    asked = {"operation": "file.write", "resource": NAME, "argumentsDigest": sha256(content).hexdigest()}
    fence = {"leaseId": lease.text("leaseId"), "fencingToken": lease.number("fencingToken")}
    return await scene.answer(name, "coordination.admit", **asked, **fence, **members)


def leaf_of(answer: Answer) -> Leaf:
    return parse_leaf(answer.leaf)


class Store:
    """A number that agents read, raise by one and write back; a guard may stand before it."""

    def __init__(self, guard: AdmissionGuard | None) -> None:
        self.number = 0
        self._guard = guard

    def write(self, name: str, content: bytes, receipt: bytes) -> None:
        if self._guard is None:
            self.number = int(content)
            return
        challenge = self._guard.challenge()
        proof = Proof(challenge, answer_admission(key_of(name), challenge, receipt))
        with self._guard.permit(receipt, proof, Deed("file.write", (NAME,)), content):
            self.number = int(content)


@pytest.mark.parametrize("asks", ["never", "before the pause", "after the pause"])
async def test_no_update_is_lost_where_each_write_is_admitted(
    asks: Literal["never", "before the pause", "after the pause"], tmp_path: Path
) -> None:
    """Scenario L3 (etcd#11457): A reads and pauses past its lease, B updates; A's write is lost, or was never done."""
    async with stage(tmp_path) as scene:
        clock = scene.world.clock
        guard = AdmissionGuard(scene.world.keyring, ORIGIN, rules="any", wall_ms=clock.now_ms)
        store = Store(None if asks == "never" else guard)
        lease = await scene.acquire("A", NAME, ttlMs=TTL_MS)
        as_read = b"%d" % (store.number + 1)
        early = receipt_of(await admit(scene, "A", lease, as_read))
        await scene.wait(2 * TTL_MS)
        await update(scene, store, "B")
        if asks == "never":
            store.write("A", as_read, early)
            assert store.number == 1, "B's update is gone"
        elif asks == "before the pause":
            with pytest.raises(Fenced):
                store.write("A", as_read, early)
        else:
            denied = leaf_of(await admit(scene, "A", lease, as_read))
            assert (kind(denied), denied.text("error")) == ("admission.denied", "stale_fence")
        if asks != "never":
            await scene.wait(TTL_MS)
            await update(scene, store, "A")
            assert store.number == 2
        guard.close()


async def update(scene: Stage, store: Store, name: str) -> None:
    """Read, be admitted to write what was read and one more, and write it."""
    lease = await scene.acquire(name, NAME, ttlMs=TTL_MS)
    content = b"%d" % (store.number + 1)
    answer = await admit(scene, name, lease, content)
    assert answer.status == 200, answer.leaf
    store.write(name, content, receipt_of(answer))


async def test_who_was_away_is_told_the_token_that_counts_and_how_its_own_ended(tmp_path: Path) -> None:
    """Scenarios 11, L1 (etcd#10811): A past its ttl, B granted, A comes back; whoever has the denial can prove it."""
    async with stage(tmp_path) as scene:
        first = await scene.acquire("A", NAME, ttlMs=1_000)
        await scene.wait(1_000)
        (expired,) = scene.entries("lease.expired")
        second = await scene.acquire("B", NAME, ttlMs=60_000)
        assert (await admit(scene, "B", second)).status == 200
        answer = await admit(scene, "A", first)
        denied = leaf_of(answer)
        assert (answer.status, denied.text("error"), denied.number("number")) == (403, "stale_fence", 602)
        assert denied.number("currentToken") == second.number("fencingToken") > first.number("fencingToken")
        assert (denied.text("holder"), denied.number("endedSeq")) == (did("B"), expired.seq)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_after_a_break_the_next_admission_of_the_old_holder_is_denied(is_taken: bool, tmp_path: Path) -> None:
    """Scenario L48 (CURATOR-206): also before anybody else has it; the entry of the break lists the token it killed."""
    async with stage(tmp_path) as scene:
        lease = await scene.acquire("A", NAME, ttlMs=600_000)
        token = lease.number("fencingToken")
        assert (await admit(scene, "A", lease)).status == 200
        broken = await scene.does("op", "lease.break", resource=NAME, seenToken=token, reason="holder-gone")
        assert (kind(broken), broken.number("fencingToken")) == ("lease.broken", token)
        if is_taken:
            await scene.acquire("B", NAME)
        denied = leaf_of(await admit(scene, "A", lease))
        assert (denied.text("error"), denied.number("endedSeq")) == ("stale_fence", broken.seq)
        assert denied.text("holder") == (did("B") if is_taken else "")


# -- rules -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def policed(folder: Path, text: str, *, unheard: int = 0) -> AsyncIterator[Stage]:
    """Yield a stage on which rules are in force; in the end it is audited, and the rules asked again.

    Of `unheard` admissions no engine can be asked again, as none was there.
    """
    async with World(folder, agents=("A", "B")) as world:
        scene = Stage(world)
        loaded = await scene.does("op", "rules.load", rules=text, rulesMode="enforce", rulesVersion=1)
        assert kind(loaded) == "rules.loaded", loaded.value
        yield scene
        (folder / "ledger").write_bytes(world.export())
        report = check_ledger(folder / "ledger", world.keyring, has_rules=True)
        assert report.exit_code == (3 if unheard else 0), report.as_text()
        assert [found.code for found in report.findings if found.outcome is Outcome.INDETERMINATE] == (
            ["rules_not_rederived"] if unheard else []
        )
        assert f"not derived again: {unheard} of" in report.as_text() or not unheard


class Failing:
    """An engine that checks rule sets as the real one does, and fails when it is asked."""

    def __init__(self) -> None:
        self._real = open_engine()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, rule_set: RuleSet, question: Question) -> Any:
        raise ArithmeticError("as engines do")


async def test_rules_that_fail_deny_and_the_denial_is_an_entry(tmp_path: Path) -> None:
    """Scenario 61 (cedar#2428): one policy that fails is not skipped, whatever the others say, and nobody is let by."""
    async with policed(tmp_path, ANYBODY + OVERFLOW) as scene:
        lease = await scene.acquire("A", NAME, ttlMs=600_000)
        denied = await admit(scene, "A", lease, cost=1)
        leaf = leaf_of(denied)
        assert (denied.status, leaf.text("error"), leaf.number("number")) == (403, "policy_error", 621)
        assert member(leaf, "rules", "decision") == "error"
        assert scene.entries("admission.allowed") == []


async def test_an_engine_that_throws_or_is_missing_denies(tmp_path: Path) -> None:
    """Scenario 61 (agent-governance-toolkit#2992): what would be allowed is not, as long as nobody can say so."""
    async with policed(tmp_path, ANYBODY, unheard=2) as scene:
        world = scene.world
        lease = await scene.acquire("A", NAME, ttlMs=600_000)
        assert (await admit(scene, "A", lease)).status == 200
        real = world.rules
        for broken in (Failing(), None):
            world.rules = broken
            await world.restart()
            assert leaf_of(await admit(scene, "A", lease)).text("error") == "policy_error"
        world.rules = real
        await world.restart()
        assert (await admit(scene, "A", lease)).status == 200


async def test_trust_that_was_lost_does_not_come_back_by_empty_pairs(tmp_path: Path) -> None:
    """Scenario 47 (pact-ax#6): three leases abandoned, ten taken and given back at once; rules still deny."""
    async with policed(tmp_path, ANYBODY + TRUSTED) as scene:
        for _ in range(3):
            await scene.acquire("A", NAME, ttlMs=1_000)
            await scene.wait(1_000)
        for _ in range(10):
            await scene.release("A", await scene.acquire("A", "repo:other"))
        lease = await scene.acquire("A", NAME, ttlMs=600_000)
        denied = leaf_of(await admit(scene, "A", lease))
        assert (denied.text("error"), member(denied, "rules", "matched")) == ("forbidden_by_rules", ["low"])
        assert member(denied, "facts", "trust") < 40_000
        await scene.release("A", lease)
        lease = await scene.acquire("B", NAME)
        assert (await admit(scene, "B", lease)).status == 200
