"""Two release agents want the same deployment."""

from __future__ import annotations

from tests.scenarios.stage import Stage
from tests.stories.teller import Teller, digest

LOCK = "lock:deploy/production"
COMMAND = "ship release 7"


async def tell(stage: Stage) -> tuple[Teller, str]:
    """Ada pauses past her lease, Bob deploys, Ada wakes up."""
    told = Teller(stage, "release", "Two release agents, one deployment", LOCK, ("ada", "bob"))
    await told.enrols()
    first = await told.asks(
        "ada", f"tallystick lease acquire {LOCK} --ttl 20s --home ada", "takes the lock", "lease.acquire",
        resource=LOCK, ttlMs=20_000, keep="ada-granted", show="resources leaseId fencingToken expiresAtMs",
        why="Nobody has it, so she gets it. Call her token 41.",
    )  # fmt: skip
    await told.time_passes(1_000)
    await told.asks(
        "bob", f"tallystick lease acquire {LOCK} --ttl 20s --home bob", "is refused", "lease.acquire",
        resource=LOCK, ttlMs=20_000, keep="bob-refused", show="error number holder conflict",
        why="No is an entry too. It says who has it, since when, and until when at most.",
    )  # fmt: skip
    await told.time_passes(2_000)
    ticket = await told.asks(
        "bob", f"tallystick lease acquire {LOCK} --ttl 20s --give-up 10m --home bob", "stands in line", "lease.acquire",
        resource=LOCK, ttlMs=20_000, wait=True, giveUpMs=600_000, show="ticketId position pollByMs",
    )  # fmt: skip
    told.says(
        "ada",
        "falls asleep",
        "Her machine swaps, her model thinks, her laptop is shut: she doesn't know that time passes.",
    )
    await _bob_deploys(told, ticket.text("ticketId"))
    await told.time_passes(30_000)
    lease, token = first.text("leaseId"), first.number("fencingToken")
    await told.asks(
        "ada",
        f'echo "{COMMAND}" | tallystick admit deploy {LOCK} --arguments - --lease {lease} --token {token} --home ada',
        "wakes up and is denied", "coordination.admit",
        operation="deploy", resource=LOCK, argumentsDigest=digest(COMMAND), leaseId=lease, fencingToken=token,
        keep="ada-denied", show="error number fencingToken currentToken holder endedSeq",
        why="41 after 42. For her no second has passed. The denial names the entry in which her lease ended, who has "
        "the lock by now, and the token that counts. Exit code 81, and nothing is deployed twice.",
    )  # fmt: skip
    return told, told.page(
        """
        Two agents may release to production, and only one of them at a time. The classic accident: the first takes
        the lock and is stopped for a while. Its lock runs out, the second one deploys, and then the first wakes up
        and deploys over it, because nobody told it.
        """,
        f"""
        Bob's deployment is *admitted*: allowed for one execution, of exactly the text whose SHA-256 he named, until his
        lease ends at the latest. Ada's was not, and both answers are signed. Here both asked by themselves. Where they
        might not, whatever deploys has an `AdmissionGuard` ([protocol 41](../protocol.md#41-admission-guard)) or one of
        the other [guards](../guards.md): a lease that nobody checks stops nobody.

        No [rules](../operating.md#rules) were loaded here, so what decided is in code alone: the lease, the token,
        and that nobody else was in the way. The text was `{COMMAND}` and the end of the line; the ledger has only its
        digest.
        """,
        "ada-denied",
    )


async def _bob_deploys(told: Teller, ticket: str) -> None:
    await told.time_passes(20_000)
    told.finds(
        "lease.expired", "takes it back", show="leaseId holder fencingToken trust",
        why="Ada's lease is over. Its end is an entry, written whether she comes back or not.", keep="ada-expired",
    )  # fmt: skip
    told.finds("wait.offered", "offers it to Bob", show="waiter ticketId claimByMs")
    await told.time_passes(21_000)
    lease = await told.asks(
        "bob", f"tallystick wait claim {ticket} --home bob", "takes his turn", "wait.claim", ticketId=ticket,
        keep="bob-claimed", show="leaseId fencingToken expiresAtMs", why="A greater token, as always: call it 42.",
    )  # fmt: skip
    await told.time_passes(22_000)
    await told.asks(
        "bob", f'echo "{COMMAND}" | tallystick admit deploy {LOCK} --arguments - --home bob', "deploys, admitted",
        "coordination.admit", operation="deploy", resource=LOCK, argumentsDigest=digest(COMMAND),
        leaseId=lease.text("leaseId"), fencingToken=lease.number("fencingToken"), keep="bob-admitted",
        show="operation argumentsDigest fencingToken grantSeq uses validUntilMs",
    )  # fmt: skip
