"""A holder that died."""

from __future__ import annotations

from gateway.client.errors import Fenced
from gateway.client.fence import Answer as Proof
from gateway.client.fence import FenceGuard, answer_challenge
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage
from tests.stories.teller import Teller

FILE = "repo:app/src/main.py"


async def tell(stage: Stage) -> tuple[Teller, str]:
    """Cleo is killed, Dan is next; a write of Cleo's arrives late."""
    told = Teller(stage, "death", "A holder that died", FILE, ("cleo", "dan", "eva", "guard"))
    await told.enrols()
    guard = FenceGuard(stage.world.keyring, ORIGIN, None, wall_ms=stage.world.clock.now_ms)
    first = await told.asks(
        "cleo", f"tallystick run --resource {FILE} --ttl 20s --home cleo -- ./work.sh", "begins her work",
        "lease.acquire", resource=FILE, ttlMs=20_000, show="leaseId fencingToken expiresAtMs", keep="cleo-granted",
    )  # fmt: skip
    cleos = told.receipts["1-cleo-granted.json"]
    tickets = []
    for second, name in ((5, "dan"), (6, "eva")):
        await told.time_passes(second * 1_000)
        ticket = await told.asks(
            name, f"tallystick lease acquire {FILE} --ttl 20s --give-up 10m --home {name}", "stands in line",
            "lease.acquire", resource=FILE, ttlMs=20_000, wait=True, giveUpMs=600_000, show="ticketId position",
        )  # fmt: skip
        tickets.append(ticket.text("ticketId"))
    await told.time_passes(10_000)
    await told.plays("cleo", "lease.renew", leaseId=first.text("leaseId"), ttlMs=20_000)
    told.finds(
        "lease.renewed", "sends her last heartbeat", show="leaseId fencingToken expiresAtMs", by="cleo",
        why="`tallystick run` does so by itself. A moment later the whole machine is gone.",
    )  # fmt: skip
    await _dan_is_served(told, tickets[0], guard, cleos)
    guard.close()
    return told, told.page(
        """
        A holder that is killed can't give anything back, and nobody should have to find out whether it is dead or
        slow. So a lease ends by itself, that end is an entry like everything else, and the next in line is served
        without anybody's help.
        """,
        """
        Nobody searched for a dead process, nobody deleted a lock file. Cleo's agent is known to have left something
        lying: five points of trust less, in the entry that ended the lease (`tallystick trust DID` shows them, each
        with its entry). Eva is still in line behind Dan.

        The late write is the one that no lease can stop by itself: it was on its way. The keeper stopped it, because
        Dan had shown it a greater token before. (Where every write has to be admitted first, as in [the first
        story](release.md), Cleo's would not even have needed Dan's.) The keeper is the `FenceGuard` of the Python
        client.
        """,
        "cleo-expired",
    )


async def _dan_is_served(told: Teller, ticket: str, guard: FenceGuard, cleos: bytes) -> None:
    await told.time_passes(30_000)
    told.finds(
        "lease.expired", "takes it back", show="leaseId holder expiresAtMs trust", keep="cleo-expired",
        why="Twenty seconds after the last heartbeat, at the end that stood in the ledger all along.",
    )  # fmt: skip
    told.finds("wait.offered", "offers it to Dan", show="waiter ticketId claimByMs")
    await told.time_passes(31_000)
    await told.asks(
        "dan", f"tallystick wait claim {ticket} --home dan", "takes his turn", "wait.claim", ticketId=ticket,
        show="leaseId fencingToken expiresAtMs", keep="dan-claimed",
    )  # fmt: skip
    await told.time_passes(32_000)
    _write(guard, "dan", told.receipts["3-dan-claimed.json"])
    told.says(
        "dan", "writes", "The keeper of the file compares the receipt that comes with the write, and keeps its token.",
        asked=f'with guard.permit(receipt, "{FILE}", proof):\n    write(data)',
    )  # fmt: skip
    await told.time_passes(40_000)
    words = told.short(_late(guard, cleos))
    told.says(
        "guard", "refuses Cleo's late write", f"What she had sent before she died arrives now. It says: *{words}*."
    )  # fmt: skip


def _write(guard: FenceGuard, name: str, receipt: bytes) -> None:
    challenge = guard.challenge()
    guard.check(receipt, FILE, Proof(challenge, answer_challenge(key_of(name), challenge, FILE, receipt)))


def _late(guard: FenceGuard, receipt: bytes) -> str:
    try:
        _write(guard, "cleo", receipt)
    except Fenced as refusal:
        return str(refusal)
    raise AssertionError("the late write was let pass")
