"""A stage for stories of the field: a gateway in memory whose clock stands still, and words for what its actors do.

Whatever a story does, it ends with the real verifier reading the whole ledger.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from gateway.ledger.history import Answer
from gateway.ledger.receipts import render
from tests.core.requests import ORIGIN, Ask, did_of, key_of
from tests.world import World
from verifier.entries import ACTION_PATHS, Leaf, parse_leaf

_numbers = count()


def request(name: str, action: str, at_ms: int, /, **members: Any) -> Ask:
    """Return a request of any action by the key of `name`, made at `at_ms` and not yet signed."""
    key, number, created_s = key_of(name), next(_numbers), at_ms // 1_000
    body = json.dumps({"ledger": ORIGIN, "actorDid": key.did, **members}, ensure_ascii=False).encode()
    return Ask(
        action, key, body, ACTION_PATHS[action],
        idempotency_key=f"scene-{number}", nonce=f"scene{number:030d}", created=created_s, expires=created_s + 60,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """The world and its actors, named by letters; each word plays one request and returns the entry it became."""

    world: World

    @property
    def now_ms(self) -> int:
        return self.world.clock.wall

    def request(self, name: str, action: str, /, **members: Any) -> Ask:
        """Return a request of `name` made now, not yet signed."""
        return request(name, action, self.now_ms, **members)

    async def answer(self, name: str, action: str, /, **members: Any) -> Answer:
        return await self.world.ask(self.request(name, action, **members))

    async def does(self, name: str, action: str, /, **members: Any) -> Leaf:
        return parse_leaf((await self.answer(name, action, **members)).leaf)

    async def acquire(self, name: str, /, *resources: str, **members: Any) -> Leaf:
        return await self.does(name, "lease.acquire", resources=list(resources), **members)

    async def queue(self, name: str, /, *resources: str, **members: Any) -> str:
        """Wait in line; return the ticket."""
        leaf = await self.acquire(name, *resources, wait=True, **members)
        assert kind(leaf) == "wait.queued", leaf.value
        return leaf.text("ticketId")

    async def claim(self, name: str, ticket_id: str) -> Leaf:
        return await self.does(name, "wait.claim", ticketId=ticket_id)

    async def renew(self, name: str, lease: Leaf, /, **members: Any) -> Leaf:
        return await self.does(name, "lease.renew", leaseId=lease.text("leaseId"), **members)

    async def release(self, name: str, lease: Leaf) -> Leaf:
        return await self.does(name, "lease.release", resources=names_of(lease), leaseId=lease.text("leaseId"))

    async def scheme(self, name: str, class_name: str, /, **members: Any) -> None:
        """Let the operator say how names of a scheme share."""
        leaf = await self.does("op", "scheme.set", name=name, **{"class": class_name}, **members)
        assert kind(leaf) == "scheme.set", leaf.value

    async def wait(self, ms: int) -> None:
        """Let time pass; the sweeper comes once, at the end of it."""
        self.world.clock.advance(ms)
        await self.world.settle()

    def entries(self, *kinds: str, since: int = 0) -> list[Leaf]:
        """Return the entries of these types, all when none is named, from `since` on."""
        return [leaf for leaf in self.world.leaves()[since:] if not kinds or kind(leaf) in kinds]

    @property
    def size(self) -> int:
        """How many entries there are."""
        return self.world.sequencer.confirmed.size


@asynccontextmanager
async def stage(folder: Path, agents: Sequence[str] = ("A", "B", "C", "D")) -> AsyncIterator[Stage]:
    """Yield a stage; a story that got to its end is audited."""
    async with World(folder, agents=agents) as world:
        yield Stage(world)
        world.audit()


def kind(leaf: Leaf) -> str:
    """Return `lease.granted` for an entry of that type."""
    return leaf.type.split("/")[1]


def kinds(leaves: Sequence[Leaf]) -> list[str]:
    return [kind(leaf) for leaf in leaves]


def names_of(leaf: Leaf) -> list[str]:
    names = leaf.value["resources"]
    assert isinstance(names, list)
    return [str(name) for name in names]


def member(leaf: Leaf, *path: str | int) -> Any:
    """Return a value deep in an entry, such as `member(leaf, "conflict", "fencingToken")`."""
    value: Any = leaf.value
    for step in path:
        value = value[step]
    return value


def receipt_of(answer: Answer) -> bytes:
    """Return the receipt file that the holder of an answer has."""
    return render(answer.leaf, answer.signature, answer.checkpoint, answer.path, key_id=answer.key_id)


def did(name: str) -> str:
    return did_of(name)
