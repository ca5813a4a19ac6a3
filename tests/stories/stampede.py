"""Containing a stampede of fifty."""

from __future__ import annotations

from tests.scenarios.stage import Stage, did, kind, member
from tests.stories.teller import Teller
from verifier.entries import Leaf

LOCK = "lock:cache/rebuild"
CROWD = tuple(f"w{number:02}" for number in range(1, 51))
FIRST, LAST = CROWD[0], CROWD[-1]
HOLD_MS = 100


async def tell(stage: Stage) -> tuple[Teller, str]:
    """Fifty want one lock: first they all come back as told, then they stand in line."""
    told = Teller(stage, "stampede", "Containing a stampede of fifty", LOCK, CROWD)
    await told.enrols()
    lease = await told.asks(
        FIRST, f"tallystick lease acquire {LOCK} --ttl 1m --home {FIRST}", "takes the lock", "lease.acquire",
        resource=LOCK, ttlMs=60_000, show="leaseId fencingToken", keep="granted",
    )  # fmt: skip
    rows = await _rounds(told)
    tickets = await _line(told)
    served = await _turns(told, lease, tickets)
    assert served == [did(name) for name in CROWD[1:]], "first come, first served"
    told.steps.sort(key=lambda step: step.at_ms)
    return told, told.page(
        f"""
        The cache is empty, and fifty agents want to fill it, in the same moment. One gets the lock. If the other
        {len(CROWD) - 1} asked again as fast as they can, nobody would do anything else. So each refusal says when to
        come back, later each time, and the ninth that coming back makes no sense any more.
        """,
        f"""
        What {LAST} was told, one refusal after the other (`waitMs` is 25 · 2ⁿ, and 800 at most; the command line adds
        jitter, so that they don't come back in step):

        TABLE

        {len(CROWD) - 1} agents asked {len(rows)} times each and got nothing: {(len(CROWD) - 1) * len(rows)} refusals.
        In line it took one request to get a ticket and one to take the turn, and each was served in the moment in which
        the one before gave back, in the order in which they had come. That is the cure: `--wait`, not a loop.
        """,
        "last-refused",
    ).replace("TABLE", _table(rows))


async def _rounds(told: Teller) -> list[int]:
    """Let all but the first ask again and again, as they are told to; return what the last one was told."""
    waits: list[int] = []
    is_admitted = True
    while is_admitted:
        for name in CROWD[1:]:
            is_told = name == LAST and len(waits) in (0, 8)
            leaf = await _refused(told, name, len(waits)) if is_told else await told.plays(
                name, "lease.acquire", resource=LOCK, ttlMs=60_000
            )  # fmt: skip
            assert leaf.text("error") == "lease_held" and leaf.text("holder") == did(FIRST), leaf.value
            is_admitted = member(leaf, "stampede", "admitted")
        waits.append(member(leaf, "stampede", "waitMs"))
        told.stage.world.clock.advance(waits[-1])
    return waits


async def _refused(told: Teller, name: str, before: int) -> Leaf:
    return await told.asks(
        name, f"tallystick lease acquire {LOCK} --ttl 1m --home {name}",
        f"is refused, as {len(CROWD) - 2} others" if before == 0 else "is refused once more", "lease.acquire",
        resource=LOCK, ttlMs=60_000, show="error holder stampede retryAfterMs",
        keep="first-refused" if before == 0 else "last-refused",
        why="All fifty asked in one millisecond. `admitted` says that asking again makes sense, `waitMs` when."
        if before == 0
        else "The ninth time: `admitted` is false, and `retryAfterMs` is the end of the lease.",
    )  # fmt: skip


async def _line(told: Teller) -> dict[str, str]:
    """Let them stand in line; return their tickets."""
    tickets = {}
    for name in CROWD[1:-1]:
        leaf = await told.plays(name, "lease.acquire", resource=LOCK, ttlMs=60_000, wait=True, giveUpMs=600_000)
        tickets[name] = leaf.text("ticketId")
    leaf = await told.asks(
        LAST, f"tallystick lease acquire {LOCK} --ttl 1m --wait 10m --home {LAST}", "stands in line", "lease.acquire",
        resource=LOCK, ttlMs=60_000, wait=True, giveUpMs=600_000, show="ticketId position pollByMs", keep="ticket",
        why="Now they stand in line instead, all of them, one request each.",
    )  # fmt: skip
    return tickets | {LAST: leaf.text("ticketId")}


async def _turns(told: Teller, lease: Leaf, tickets: dict[str, str]) -> list[str]:
    """Let each give back and the next one take its turn; return who was served, in order."""
    served, holder = [], FIRST
    for name in CROWD[1:]:
        told.stage.world.clock.advance(HOLD_MS)
        await told.plays(holder, "lease.release", resource=LOCK, leaseId=lease.text("leaseId"))
        offered = told.newest("wait.offered")
        assert (kind(offered), offered.text("ticketId")) == ("wait.offered", tickets[name])
        if name != LAST:
            lease = await told.plays(name, "wait.claim", ticketId=tickets[name])
        else:
            told.finds("wait.offered", "offers it to the last", show="waiter ticketId")
            lease = await told.asks(
                name, f"tallystick wait claim {tickets[name]} --home {name}", "is served", "wait.claim",
                ticketId=tickets[name], show="leaseId fencingToken", keep="last-served",
                why=f"The last of {len(CROWD) - 1}. (With `--wait` the command line does this by itself.)",
            )  # fmt: skip
        served.append(lease.actor)
        holder = name
    return served


def _table(waits: list[int]) -> str:
    """Return the numbers of one agent's refusals as a table."""
    count = range(1, len(waits) + 1)
    rows = (
        ("refusal", map(str, count)),
        ("---", ("---" for _ in count)),
        ("`waitMs`", map(str, waits)),
        ("`admitted`", ("yes" if number < len(waits) else "no" for number in count)),
    )
    return "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)
