"""Standing in line, and standing in a circle."""

from __future__ import annotations

from pathlib import Path

from tests.scenarios.stage import Stage, did, kind, member, stage
from verifier.entries import Leaf

WAITERS = tuple(f"w{number:02}" for number in range(50))


async def test_fifty_who_wait_are_served_in_their_order_whatever_their_patience(tmp_path: Path) -> None:
    """Scenario 32 (objectstack#9661): who has more patience does not go first; who ran out of it is let go on time."""
    async with stage(tmp_path, agents=("A", *WAITERS)) as scene:
        lease, holder = await scene.acquire("A", "repo:x"), "A"
        tickets = {}
        for number, name in enumerate(WAITERS):
            tickets[await scene.queue(name, "repo:x", giveUpMs=1_000 * (3 + number * 37 % 60))] = name
        while tickets:
            await scene.wait(1_000)
            await scene.release(holder, lease)
            for ticket, name in list(tickets.items()):
                told = await scene.claim(name, ticket)
                if kind(told) == "lease.claimed":
                    lease, holder = told, name
                if kind(told) != "wait.polled":
                    del tickets[ticket]
        check_order(scene.entries())
        assert len(scene.entries("lease.claimed")) > 10 < len(scene.entries("wait.removed"))


def check_order(leaves: list[Leaf]) -> None:
    """Nobody is served while an earlier one waits, and nobody waits past the time it gave itself."""
    waiting: dict[str, Leaf] = {}
    for leaf in leaves:
        ticket = leaf.text("ticketId")
        if kind(leaf) == "wait.queued":
            waiting[ticket] = leaf
        elif kind(leaf) in ("lease.claimed", "wait.removed"):
            first = min(waiting.values(), key=lambda queued: queued.seq)
            is_late = leaf.time_ms >= waiting[ticket].number("giveUpByMs")
            assert kind(leaf) == "wait.removed" or (first.text("ticketId") == ticket and not is_late)
            assert kind(leaf) == "lease.claimed" or (leaf.text("reason") == "given_up" and is_late)
            del waiting[ticket]
    assert waiting == {}


async def test_who_would_close_a_circle_is_told_so_in_one_call(tmp_path: Path) -> None:
    """Scenario 35 (bernstein#4673): A holds x and waits for y, B holds y and asks for x."""
    async with stage(tmp_path) as scene:
        x, y = await scene.acquire("A", "repo:x"), await scene.acquire("B", "repo:y")
        ticket = await scene.queue("A", "repo:y")
        for members in ({}, {"wait": True}):
            refused = await scene.acquire("B", "repo:x", **members)
            assert (refused.text("error"), refused.text("holder")) == ("deadlock", did("A"))
            assert (refused.text("waitingOn"), refused.value["acquireOrder"]) == ("repo:y", ["repo:x", "repo:y"])
            assert refused.value["cycle"] == [
                {"actor": did("B"), "resource": "repo:x", "mode": "write", "fencingToken": token(x)},
                {
                    "actor": did("A"),
                    "resource": "repo:y",
                    "mode": "write",
                    "fencingToken": token(y),
                    "ticketId": ticket,
                },
            ]
        await scene.release("B", y)
        assert kind(await scene.claim("A", ticket)) == "lease.claimed"


def token(lease: Leaf) -> int:
    return lease.number("fencingToken")


async def test_a_wait_that_is_over_closes_no_circle(tmp_path: Path) -> None:
    """Scenario 36 (bernstein#4706): cancelling, lapse, a refusal grown old, the end of a lease: each takes the edge."""
    async with stage(tmp_path) as scene:
        await scene.acquire("A", "repo:x", ttlMs=600_000)
        await scene.acquire("B", "repo:y", ttlMs=600_000)
        ticket = await scene.queue("A", "repo:y")
        assert await error(scene, "B", "repo:x") == "deadlock"
        await scene.does("A", "wait.cancel", ticketId=ticket)
        assert await error(scene, "B", "repo:x") == "lease_held"
        await scene.wait(10_000)
        await scene.queue("A", "repo:y")
        assert await error(scene, "B", "repo:x") == "deadlock"
        await scene.wait(30_000)
        assert kind(scene.entries()[-1]) == "wait.removed"
        assert await error(scene, "B", "repo:x") == "lease_held"
        assert await error(scene, "A", "repo:y") == "deadlock"
        await scene.wait(10_000)
        assert await error(scene, "A", "repo:y") == "lease_held"
        assert await error(scene, "B", "repo:x") == "deadlock"
        await scene.wait(600_000)
        assert kind(await scene.acquire("B", "repo:x")) == "lease.granted"


async def error(scene: Stage, name: str, resource: str) -> str:
    return (await scene.acquire(name, resource)).text("error")


async def test_a_circle_through_a_ticket_and_a_refusal_is_one_circle(tmp_path: Path) -> None:
    """Scenario 37 (oh-my-pi#6031): A was refused and asks again, B stands in line, C asks: one graph for all waits."""
    async with stage(tmp_path) as scene:
        leases = {name: await scene.acquire(name, f"repo:{name}") for name in "ABC"}
        assert await error(scene, "A", "repo:B") == "lease_held"
        ticket = await scene.queue("B", "repo:C")
        refused = await scene.acquire("C", "repo:A")
        assert (refused.text("error"), refused.text("waitingOn")) == ("deadlock", "repo:B")
        rows = [(row["actor"], row["resource"], row["fencingToken"]) for row in member(refused, "cycle")]
        assert rows == [
            (did("C"), "repo:A", token(leases["A"])),
            (did("A"), "repo:B", token(leases["B"])),
            (did("B"), "repo:C", token(leases["C"])),
        ]
        assert [row.get("ticketId") for row in member(refused, "cycle")] == [None, None, ticket]
