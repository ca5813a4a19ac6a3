"""Work that somebody else has to agree to: what was agreed to, once, and nobody stuck meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.core.requests import approved
from tests.scenarios.stage import Stage, did, kind, member, stage
from tests.world import World
from verifier.entries import Leaf

PAY = {"operation": "invoice.pay", "resource": "pay:invoice/7", "cost": 82_000}
SMALL, LARGE = "1" * 64, "2" * 64  # digests of what would be paid
TWO = '@id("two")\npermit (principal, action, resource)\nwhen { context.approvals >= 2 };\n'


@asynccontextmanager
async def office(folder: Path) -> AsyncIterator[Stage]:
    """A and B answer to op, X and Y to two others; what is paid can't be undone."""
    async with stage(folder) as scene:
        await move_in(scene)
        yield scene


async def move_in(scene: Stage) -> None:
    await scene.scheme("pay", "irreversible")
    for operator, name in (("op2", "X"), ("op3", "Y")):
        await scene.does("op", "operator.add", operator=did(operator))
        await scene.does(operator, "agent.add", agent=did(name))


async def admit(scene: Stage, lease: Leaf, *approvals: dict[str, Any], **members: Any) -> Leaf:
    fence = {"leaseId": lease.text("leaseId"), "fencingToken": lease.number("fencingToken")}
    given = {"approvals": list(approvals)} if approvals else {}
    asked = {"argumentsDigest": SMALL, **PAY, **fence, **given, **members}
    return await scene.does("A", "coordination.admit", **asked)


def word(scene: Stage, by: str, /, **changes: Any) -> dict[str, Any]:
    """Return what `by` signs who agrees that A pays the small sum, once, within the next ten minutes."""
    asked = scene.request("A", "coordination.admit", argumentsDigest=SMALL, **PAY)
    genesis = scene.world.leaves()[1].genesis.hex()
    return approved(by, asked, genesis, at_ms=scene.now_ms, **({"expiresAtMs": scene.now_ms + 600_000} | changes))


async def test_what_was_approved_is_done_once_as_it_was_approved(tmp_path: Path) -> None:
    """Scenario 62 (yc-software/qm#219): $82,000 were approved; nobody pays $820,000, or twice, or later."""
    async with office(tmp_path) as scene:
        lease = await scene.acquire("A", "pay:invoice/7", ttlMs=3_600_000)
        assert (await admit(scene, lease)).text("error") == "approval_required"
        given = word(scene, "X")
        for members in ({"argumentsDigest": LARGE}, {"cost": 820_000}, {"operation": "invoice.pay-all"}):
            assert (await admit(scene, lease, given, **members)).text("error") == "approval_wrong"
        assert (await admit(scene, lease, word(scene, "B"))).text("error") == "approver_unfit"
        allowed = await admit(scene, lease, given, word(scene, "Y"))
        assert kind(allowed) == "admission.allowed" and allowed.number("uses") == 1
        assert [row["approver"] for row in member(allowed, "approvals")] == [
            did(name) for _, name in sorted((did(operator), name) for operator, name in (("op2", "X"), ("op3", "Y")))
        ]
        assert (await admit(scene, lease, given)).text("error") == "approval_used"
        fresh = word(scene, "X")
        await scene.wait(600_000)
        assert (await admit(scene, lease, fresh)).text("error") == "approval_expired"
        assert len(scene.entries("admission.allowed")) == 1


async def test_a_quorum_that_is_short_by_one_operator_pays_nothing(tmp_path: Path) -> None:
    """Scenario 62: rules want two operators; one of them is not two, nor are two of its agents. None is used up."""
    async with World(tmp_path, agents=("A",)) as world:
        scene = Stage(world)
        await move_in(scene)
        await scene.does("op2", "agent.add", agent=did("Z"))
        await scene.does("op", "rules.load", rules=TWO, rulesMode="enforce", rulesVersion=1)
        lease = await scene.acquire("A", "pay:invoice/7", ttlMs=3_600_000)
        of_x, of_y, of_z = (word(scene, by, rules_digest=sha256(TWO.encode()).hexdigest()) for by in "XYZ")
        short = await admit(scene, lease, of_x)
        assert (short.text("error"), short.number("number")) == ("not_permitted", 623)
        assert (await admit(scene, lease, of_x, of_z)).text("error") == "approver_unfit"
        allowed = await admit(scene, lease, of_x, of_y)
        assert kind(allowed) == "admission.allowed" and len(member(allowed, "approvals")) == 2


async def test_an_approval_is_of_a_text_of_rules_whenever_that_is_in_force(tmp_path: Path) -> None:
    """security.md §15: it names the rules' digest. Another text in between takes it away and the old one gives it back;
    what was used stays used."""
    other = TWO.replace("approvals >= 2", "approvals >= 1")
    assert other != TWO
    async with World(tmp_path, agents=("A",)) as world:
        scene = Stage(world)
        await move_in(scene)
        for version, text in enumerate((TWO, other), 1):
            await scene.does("op", "rules.load", rules=text, rulesMode="enforce", rulesVersion=version)
        lease = await scene.acquire("A", "pay:invoice/7", ttlMs=3_600_000)
        given = [word(scene, by, rules_digest=sha256(TWO.encode()).hexdigest()) for by in "XY"]
        assert (await admit(scene, lease, *given)).text("error") == "approval_wrong"
        await scene.does("op", "rules.load", rules=TWO, rulesMode="enforce", rulesVersion=3)
        allowed = await admit(scene, lease, *given)
        assert kind(allowed) == "admission.allowed" and member(allowed, "rules")["version"] == 3
        await scene.does("op", "rules.load", rules=TWO, rulesMode="enforce", rulesVersion=4)
        assert (await admit(scene, lease, *given)).text("error") == "approval_used"
        world.audit(has_rules=True)


async def test_a_lease_is_kept_by_heartbeats_while_a_person_is_waited_for(tmp_path: Path) -> None:
    """Scenario 9 (gastown#4851): the approval takes an hour, the lease lasts half a minute; nobody takes it away."""
    async with office(tmp_path) as scene:
        lease = await scene.acquire("A", "pay:invoice/7", ttlMs=30_000)
        asked = await scene.does(
            "A", "approval.ask", argumentsDigest=SMALL, **PAY, approvers=sorted(map(did, "XY")), quorum=2,
            giveUpMs=7_200_000,
        )  # fmt: skip
        ticket = await scene.queue("B", "pay:invoice/7", giveUpMs=3_600_000)
        for minute in range(30):
            for _ in range(6):
                await scene.wait(10_000)
                assert kind(await scene.renew("A", lease, ttlMs=30_000)) == "lease.renewed", minute
                assert kind(await scene.claim("B", ticket)) == "wait.polled"
        for by in "XY":
            given = await scene.does(by, "approval.give", askId=asked.text("askId"), approval=word(scene, by))
            assert kind(given) == "approval.given"
        words = [word(scene, by) for by in "XY"]
        assert kind(await admit(scene, lease, *words)) == "admission.allowed"
        assert scene.entries("lease.expired", "lease.returned") == []
        assert all(leaf.actor != "gateway" for leaf in scene.entries("lease.renewed", "approval.given"))


async def test_who_has_to_approve_is_told_not_to_wait_for_who_asked(tmp_path: Path) -> None:
    """Scenario 37 (oh-my-pi#6031): a lease, a place in line and an approval that wait for each other are one circle."""
    async with office(tmp_path) as scene:
        for name in "ABX":
            await scene.acquire(name, f"repo:{name}", ttlMs=3_600_000)
        asked = await scene.does("A", "approval.ask", argumentsDigest=SMALL, **PAY, approvers=[did("X")])
        ticket = await scene.queue("B", "repo:A")
        refused = await scene.acquire("X", "repo:B", wait=True)
        assert (refused.text("error"), refused.text("waitingOn")) == ("deadlock", "repo:A")
        rows = [(row["actor"], row.get("ticketId"), row.get("askId")) for row in member(refused, "cycle")]
        assert rows == [(did("X"), None, None), (did("B"), ticket, None), (did("A"), None, asked.text("askId"))]
        assert kind(await scene.does("A", "approval.withdraw", askId=asked.text("askId"))) == "approval.withdrawn"
        assert kind(await scene.acquire("X", "repo:B", wait=True)) == "wait.queued"
