"""Breaking a deadlock."""

from __future__ import annotations

from tests.scenarios.stage import Stage
from tests.stories.teller import Teller, digest

ONE, TWO = "repo:app/api.py", "repo:app/client.py"
COMMAND = "write api.py"


async def tell(stage: Stage) -> tuple[Teller, str]:
    """Fay and Gil want what the other has; Fay hangs, and Olga, the operator, breaks her lease."""
    told = Teller(stage, "deadlock", "Breaking a deadlock", ONE, ("fay", "gil", "olga"))
    await told.enrols()
    held = await told.asks(
        "fay", f"tallystick lease acquire {ONE} --ttl 10m --home fay", "takes api.py", "lease.acquire",
        resource=ONE, ttlMs=600_000, show="resources leaseId fencingToken",
    )  # fmt: skip
    await told.time_passes(1_000)
    await told.asks(
        "gil", f"tallystick lease acquire {TWO} --ttl 10m --home gil", "takes client.py", "lease.acquire",
        resource=TWO, ttlMs=600_000, show="resources leaseId fencingToken",
    )  # fmt: skip
    await told.time_passes(2_000)
    ticket = await told.asks(
        "gil", f"tallystick lease acquire {ONE} --ttl 5m --give-up 10m --home gil", "waits for api.py", "lease.acquire",
        resource=ONE, ttlMs=300_000, wait=True, giveUpMs=600_000, show="ticketId position",
    )  # fmt: skip
    await told.time_passes(3_000)
    await told.asks(
        "fay", f"tallystick lease acquire {TWO} --ttl 5m --wait 10m --home fay", "would close the circle",
        "lease.acquire",
        resource=TWO, ttlMs=300_000, wait=True, giveUpMs=600_000, keep="fay-deadlock",
        show="error number waitingOn cycle acquireOrder",
        why="She is told at once (exit code 79), not after ten minutes: each row of `cycle` waits for the holder in "
        "the next one, the last for the first. `acquireOrder` is the order in which nobody gets stuck. "
        "She should give api.py back.",
    )  # fmt: skip
    await _olga_breaks(told, held.number("fencingToken"), ticket.text("ticketId"))
    await told.time_passes(12_000)
    lease, token = held.text("leaseId"), held.number("fencingToken")
    command = f"tallystick admit file.write {ONE} --arguments - --lease {lease} --token {token} --home fay"
    await told.asks(
        "fay", f'echo "{COMMAND}" | {command}',
        "is denied", "coordination.admit", operation="file.write", resource=ONE, argumentsDigest=digest(COMMAND),
        leaseId=lease, fencingToken=token, keep="fay-denied", show="error number currentToken holder endedSeq",
        why="She comes back to life and goes on where she was. `endedSeq` is the entry of the break.",
    )  # fmt: skip
    return told, told.page(
        """
        Fay has api.py and needs client.py, Gil has client.py and needs api.py. Both would wait for ever, politely.
        The one who comes second is told so, with the whole circle; and if that one doesn't give way, a person can end
        it.
        """,
        """
        The circle in the refusal is evidence: whoever audits the ledger finds it again from the entries before. The
        break needs an operator's key, a reason, and the token that the operator *saw*. Had Fay given back and
        somebody else taken the file meanwhile, the break would have hit nobody (`token_stale`).
        """,
        "fay-deadlock",
    )


async def _olga_breaks(told: Teller, token: int, ticket: str) -> None:
    told.says(
        "fay",
        "hangs",
        "But she doesn't read the answer. Her lease lasts for another ten minutes, and Gil stands still.",
    )
    command = f"tallystick lease break {ONE} --token {token} --reason fay-hangs --home data/operator"
    told.stage.world.clock.advance(7_000)
    for label, why, keep in (
        (
            "breaks Fay's lease",
            "Olga looks who holds what (`tallystick wait`), and breaks the lease that she saw there.",
            "broken",
        ),
        ("does it once more", "Her connection was bad, so she sends it again: nothing more happens.", ""),
    ):
        leaf = await told.asks(
            "olga", command, label, "lease.break", resource=ONE, seenToken=token, reason="fay-hangs", why=why,
            keep=keep, show="leaseId holder fencingToken reason endedSeq",
        )  # fmt: skip
        if keep:
            offered = told.finds("wait.offered", "offers it to Gil", show="waiter ticketId claimByMs")
            assert offered.seq == leaf.seq + 1
    await told.time_passes(11_000)
    await told.asks(
        "gil", f"tallystick wait claim {ticket} --home gil", "takes his turn", "wait.claim", ticketId=ticket,
        keep="gil-claimed", show="leaseId fencingToken expiresAtMs",
    )  # fmt: skip
