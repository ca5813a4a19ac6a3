"""kill −9 at any moment: what was answered is there, byte for byte, and nothing was granted twice."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.ledger.history import stored_answer
from tests.ledger.victim import AGENTS
from tests.world import World
from verifier.entries import Leaf

ROOT = Path(__file__).parents[2]
KILLS = 8
SEED = 20261129


def run_and_kill(folder: Path, number: int, answers: int) -> list[tuple[str, str, int, bytes]]:
    """Start the victim, kill it after so many answers were read, and return all it managed to say."""
    command = [sys.executable, "-m", "tests.ledger.victim", str(folder), str(number)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "ready\n"
        lines = [victim.stdout.readline() for _ in range(answers)]
        assert victim.poll() is None and all(lines), "it works until it is killed"
        victim.kill()
        lines += victim.stdout.readlines()
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(did, key, int(status), base64.b64decode(body)) for did, key, status, body in whole]


def check_grants(leaves: list[Leaf]) -> None:
    """A naive reading of the ledger: never two holders, tokens rise, what ends was held, who claims had the turn.

    One actor may hold a name twice: it asked plainly while its ticket was offered, and claimed that too.
    """
    held: dict[str, tuple[str, str]] = {}
    turns: dict[str, str] = {}
    last_token = 0
    for leaf in leaves:
        kind = leaf.type.split("/")[1]
        resource = str(leaf.value.get("resources", [""])[0])  # type: ignore[index]  # the table makes it a list
        if kind == "wait.offered":
            turns[str(leaf.value["ticketId"])] = str(leaf.value["waiter"])
        if kind == "lease.claimed":
            assert turns.pop(str(leaf.value["ticketId"])) == leaf.actor
        if kind in ("lease.granted", "lease.claimed"):
            assert {who for name, who in held.values() if name == resource} <= {leaf.actor}, (
                f"double grant at {leaf.seq}"
            )
            assert leaf.number("fencingToken") > last_token
            held[str(leaf.value["leaseId"])], last_token = (resource, leaf.actor), leaf.number("fencingToken")
        elif kind in ("lease.extended", "lease.released"):
            assert held[str(leaf.value["leaseId"])] == (resource, leaf.actor)
        if kind in ("lease.released", "lease.expired"):
            del held[str(leaf.value["leaseId"])]


@pytest.mark.serial
@pytest.mark.system
async def test_what_was_answered_survives_a_kill_at_any_moment(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    said: list[tuple[str, str, int, bytes]] = []
    for number in range(KILLS):
        said += run_and_kill(tmp_path, number, dice.randrange(1, 120))
    world = World(tmp_path, "sqlite", agents=AGENTS)
    world.clock.wall += 400_000_000_000
    await world.start()
    leaves = world.leaves()
    asked = {(leaf.actor, leaf.request["idempotencyKey"]): leaf.seq for leaf in leaves if leaf.request}
    for did, key, status, body in said:
        answer = stored_answer(world.store, world.signer, world.sequencer.confirmed, asked[did, key], status)
        assert answer.body() == body, (SEED, did, key)
    assert len(said) > KILLS
    assert len(asked) == len([leaf for leaf in leaves if leaf.request]), "each request was decided once"
    epochs = [leaf.epoch for leaf in leaves if leaf.type == "tallystick/service.started/1"]
    assert epochs == list(range(1, KILLS + 2))
    check_grants(leaves)
    for leaf in leaves:
        if leaf.batch is not None:
            assert leaves[leaf.batch[0]].type == "tallystick/batch.received/1", "no command without its batch"
    counts = [leaf.number("count") for leaf in leaves if leaf.type == "tallystick/batch.received/1"]
    assert sum(counts) == sum(leaf.batch is not None for leaf in leaves), "no batch without all its commands"
    types = {leaf.type.split("/")[1] for leaf in leaves}
    assert {"wait.queued", "wait.polled", "wait.offered", "lease.claimed", "wait.cancelled"} <= types
    assert {"batch.received", "batch.refused", "session.opened"} <= types
    world.audit()
    await world.stop()
