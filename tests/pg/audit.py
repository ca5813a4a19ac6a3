"""The end of every scene: whatever happened, the ledger is one, and holds all that was answered, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tests.chaos.size import size
from tests.pg.crowd import Answered, Crowd, Member
from verifier.entries import Leaf, parse_leaf
from verifier.merkle import leaf_hash
from verifier.note import encode_note
from verifier.replay.source import open_source
from verifier.replay.tree import Tree

T = TypeVar("T")
REPLAYS_MAX = size(60, 2_000)  # answers that are asked for again
MEMBERS_MAX = size(6, 50)  # by so many of those who got them


async def audit(crowd: Crowd, folder: Path) -> list[Leaf]:
    """Check all promises; return the ledger's leaves for what a scene has to say beside. The nodes must be up."""
    await check_replays(crowd)
    export = await asyncio.to_thread(crowd.ledger.export, folder / "ledger.export")
    with open_source(export) as source:
        texts = [bytes(leaf) for leaf in source.leaves]
    leaves = [parse_leaf(text) for text in texts]
    check_answers(crowd.answers, texts)
    check_tree(crowd.answers, texts)
    check_order(crowd.answers)
    check_once(leaves)
    check_grants(leaves)
    newest = max((answer.receipt.checkpoint for answer in crowd.answers), key=lambda checkpoint: checkpoint.size)
    checkpoint = folder / "newest.checkpoint"
    checkpoint.write_bytes(encode_note(newest.note))
    report = await asyncio.to_thread(crowd.ledger.verify, export, checkpoint)
    assert report["exitCode"] == 0, report
    return leaves


async def check_replays(crowd: Crowd) -> None:
    """The same request again gets the same bytes again, from whichever node."""
    numbers = _spread(sorted({answer.number for answer in crowd.answers}), MEMBERS_MAX)
    asked = _spread([answer for answer in crowd.answers if answer.number in numbers], REPLAYS_MAX)
    room = asyncio.Semaphore(8)

    async def check(number: int) -> None:
        async with room, Member(crowd, number) as member:
            for answer in [one for one in asked if one.number == number]:
                again = await member.put(answer.action, answer.members, answer.key)
                assert (again.status, again.body) == (answer.status, answer.body), (answer.receipt.seq, answer.action)

    async with asyncio.TaskGroup() as group:
        for number in numbers:
            group.create_task(check(number))


def _spread(found: Sequence[T], count_max: int) -> Sequence[T]:
    """Return about so many of them, from all over."""
    return found[:: max(1, len(found) // count_max)]


def check_answers(answers: Sequence[Answered], texts: Sequence[bytes]) -> None:
    """Every answered entry is in the ledger, byte for byte, and answers one request."""
    for answer in answers:
        assert leaf_hash(texts[answer.receipt.seq]) == answer.receipt.leaf_hash, answer.receipt.seq
    assert len({answer.receipt.seq for answer in answers}) == len(answers), "one receipt answers one request"


def check_tree(answers: Sequence[Answered], texts: Sequence[bytes]) -> None:
    """Every checkpoint that anybody was given is a root of this one tree."""
    shown: dict[int, set[bytes]] = {}
    for answer in answers:
        shown.setdefault(answer.receipt.checkpoint.size, set()).add(answer.receipt.checkpoint.root)
    tree = Tree()
    for count, text in enumerate(texts, start=1):
        tree.append(leaf_hash(text))
        if count in shown:
            assert shown.pop(count) == {tree.root()}, f"two histories at size {count}"
    assert not shown, "a checkpoint is beyond the ledger's end"


def check_order(answers: Iterable[Answered]) -> None:
    """What was asked after something had been answered was decided after it, on whichever nodes the two were."""
    events = [(answer.asked_ns, 0, answer.receipt.seq) for answer in answers]
    events += [(answer.answered_ns, 1, answer.receipt.seq) for answer in answers]
    newest = -1
    for _, is_answered, seq in sorted(events):
        if not is_answered:
            assert seq > newest, f"entry {seq} was asked for after entry {newest} was answered"
        else:
            newest = max(newest, seq)


def check_once(leaves: Sequence[Leaf]) -> None:
    """Each request was decided once: retries over several nodes never became a second decision."""
    asked = [(leaf.actor, str(leaf.request["idempotencyKey"])) for leaf in leaves if leaf.request]
    assert len(set(asked)) == len(asked)


def check_grants(leaves: Sequence[Leaf]) -> None:
    """A naive reading: nobody is granted what another holds, tokens rise, and what ends was held."""
    held: dict[str, tuple[str, str]] = {}
    token = 0
    for leaf in leaves:
        kind, resource = leaf.type.split("/")[1], _resource(leaf.value)
        if kind in ("lease.granted", "lease.claimed"):
            others = {who for name, who in held.values() if name == resource} - {leaf.actor}
            assert not others, f"double grant at {leaf.seq}"
            assert leaf.number("fencingToken") > token, f"token at {leaf.seq}"
            held[leaf.text("leaseId")], token = (resource, leaf.actor), leaf.number("fencingToken")
        elif kind in ("lease.released", "lease.expired", "lease.returned"):
            del held[leaf.text("leaseId")]


def _resource(value: Mapping[str, object]) -> str:
    resources = value.get("resources")
    return str(resources[0]) if isinstance(resources, list) and resources else str(value.get("resource", ""))
