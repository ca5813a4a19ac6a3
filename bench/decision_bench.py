"""What one decision costs when much is live or many wait: the core alone, beside a plain decision of the same run.

A *plain* decision grants one exact name on a ledger where nothing is live. All rows of a table are decided in turn, a
hundred times, on a state that stays as it is.
"""

from collections.abc import Iterator

from bench.core import Case, Core, times_us
from gateway.core.intake import SignedRequest

LEASES = 10_000
AGENTS = 100  # who hold them, LEASES / AGENTS each
FOLDERS = 50
WAITERS = 200
STRANGER, HOLDER, LAST = AGENTS + 1, AGENTS + 2, WAITERS + 1
ROUNDS = 100
TTL_MS = 3_600_000


def take(core: Core, agent: int, name: str, **members: bool | str) -> SignedRequest:
    return core.request(agent, "lease.acquire", resource=name, ttlMs=TTL_MS, **members)


def report(rounds: int = ROUNDS) -> Iterator[str]:
    """Yield both tables."""
    empty = Core(WAITERS + 2)
    plain = Case("plain: an exact name, nothing is live", empty, take(empty, 1, "repo:plain"), "lease.granted")
    for title, cases in (("with many leases", trees(plain)), ("with and without a line", lines(plain))):
        yield f"  {title}"
        for case in cases:
            case.check()
        taken = times_us(*((case.core, case.request) for case in cases), rounds=rounds)
        yield ""
        yield f"| decision, {title} | entry | ms | ratio to plain |"
        yield "| --- | --- | --: | --: |"
        for case, used in zip(cases, taken, strict=True):
            yield f"| {case.what} | `{case.entry}` | {used / 1_000:.3f} | {used / taken[0]:.1f} |"


def trees(plain: Case) -> list[Case]:
    full, waited, below = Core(AGENTS + 2), Core(AGENTS + 2), Core(AGENTS + 2)
    for core in (full, waited):
        core.run([take(core, 1 + n % AGENTS, f"repo:big/{n % FOLDERS}/{n}") for n in range(LEASES)])
    waited.run([take(waited, STRANGER, "repo:big/**", wait=True)])
    below.run([take(below, HOLDER, "repo:big/**")])
    return [
        plain,
        Case(f"an exact name among {LEASES:,} leases", full, take(full, STRANGER, "repo:big/1/new"), "lease.granted"),
        Case("an exact name that is held", full, take(full, STRANGER, "repo:big/1/1"), "lease.refused"),
        Case("an exact name below a held sub-tree", below, take(below, STRANGER, "repo:big/1/1"), "lease.refused"),
        Case("a sub-tree that is free", full, take(full, STRANGER, "repo:small/**"), "lease.granted"),
        Case(
            f"a sub-tree with {LEASES // FOLDERS} leases below it",
            full,
            take(full, STRANGER, "repo:big/1/**"),
            "lease.refused",
        ),
        Case(f"a sub-tree with {LEASES:,} leases below it", full, take(full, STRANGER, "repo:big/**"), "lease.refused"),
        Case("the same, standing in line for it", full, take(full, STRANGER, "repo:big/**", wait=True), "wait.queued"),
        Case(
            f"giving one of {LEASES:,} back while somebody waits for all",
            waited,
            waited.request(2, "lease.release", resource="repo:big/1/1"),
            "lease.released",
        ),
    ]


def lines(plain: Case) -> list[Case]:
    held, crowd, offered = Core(WAITERS + 2), Core(WAITERS + 2), Core(WAITERS + 2)
    for core in (held, crowd, offered):
        core.run([take(core, LAST + 1, "repo:x")])
    tickets = [core.run([take(core, n, "repo:x", wait=True) for n in range(1, LAST)]) for core in (crowd, offered)]
    offered.run([giving(offered)])
    last, first = tickets[0][-1].text("ticketId"), tickets[1][0].text("ticketId")
    return [
        plain,
        Case("refused: held, nobody waits", held, take(held, LAST, "repo:x"), "lease.refused"),
        Case(f"refused: held, {WAITERS} wait", crowd, take(crowd, LAST, "repo:x"), "lease.refused"),
        Case("first in line", held, take(held, LAST, "repo:x", wait=True), "wait.queued"),
        Case(f"in line behind {WAITERS}", crowd, take(crowd, LAST, "repo:x", wait=True), "wait.queued"),
        Case(f"asking again as the last of {WAITERS}", crowd, claim(crowd, WAITERS, last), "wait.polled"),
        Case("given back, nobody waits", held, giving(held), "lease.released"),
        Case(f"given back, {WAITERS} wait, one is offered it", crowd, giving(crowd), "lease.released"),
        Case(f"taken up by the first of {WAITERS}", offered, claim(offered, 1, first), "lease.claimed"),
    ]


def giving(core: Core) -> SignedRequest:
    return core.request(LAST + 1, "lease.release", resource="repo:x")


def claim(core: Core, agent: int, ticket_id: str) -> SignedRequest:
    return core.request(agent, "wait.claim", ticketId=ticket_id)
