"""Two workers in a circle: each holds what the other needs. The gateway says so at once, and one of them gives way.

Then a lease changes hands. All of it is decided by the swarm's gateway and stands in the swarm's ledger.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from gateway.client import Agent, Deadlock, Grant, Ticket
from gateway.client.errors import Waits
from gateway.client.profile import Profile
from gateway.demo.recorder import Record, RecordingTransport
from keys.signing import SigningKey

SERVER, BROWSER = "repo:burst/scene/server.py", "repo:burst/scene/browser.py"
HOLD_MS = 5_000


@dataclass(frozen=True, slots=True)
class Scene:
    """What happened, as the receipts say. `names` maps DIDs to the names of this page."""

    names: dict[str, str]
    refusal: Deadlock
    ticket: Ticket
    served: Grant
    given: Grant
    taken: Grant

    def lines(self) -> list[str]:
        """Tell it."""
        rows = self.refusal.cycle
        return [
            "Ben asked for server.py and was refused, because waiting would never have ended:",
            *(f"  {self._wait(row, holder)}" for row, holder in zip(rows, (*rows[1:], rows[0]), strict=True)),
            f"Ben gave browser.py back; Ada's ticket {self.ticket.ticket_id} was served in the same moment.",
            f"Ada handed server.py over to Ben: token {self.given.fencing_token} is dead, his is "
            f"{self.taken.fencing_token}.",
        ]

    def _wait(self, row: Waits, holder: Waits) -> str:
        how = f"in line, ticket {row.ticket_id}" if row.ticket_id else "now"
        file = row.resource.rpartition("/")[2]
        held = f"{self.names[holder.actor]} holds it with token {row.fencing_token}"
        return f"{self.names[row.actor]} wants {file} ({how}); {held}"


async def play(pins: Profile, record: Record) -> Scene:
    """Play the scene with two fresh keys and return what came of it."""
    async with AsyncExitStack() as stack:
        ada, ben = [await stack.enter_async_context(_agent(pins, record)) for _ in range(2)]
        given, held = await ada.acquire(SERVER), await ben.acquire(BROWSER)
        ticket = await ada.acquire(BROWSER, wait=True)
        assert isinstance(ticket, Ticket), "somebody else holds it"
        refusal = await _refused(ben)
        await ben.release(BROWSER, held.lease_id)
        served = await ada.claim(ticket, hold_ms=HOLD_MS)
        assert isinstance(served, Grant), "there is nobody else in line"
        await ada.transfer(given, ben.did, "handover")
        taken = await ben.accept(given.lease_id)
        await ada.release(BROWSER, served.lease_id)
        await ben.release(SERVER, taken.lease_id)
        return Scene({ada.did: "Ada", ben.did: "Ben"}, refusal, ticket, served, given, taken)


def _agent(pins: Profile, record: Record) -> Agent:
    profile = replace(pins, key=SigningKey.generate(), home=None)
    return Agent(profile, connect=lambda url: RecordingTransport(url, record))


async def _refused(agent: Agent) -> Deadlock:
    try:
        await agent.acquire(SERVER, wait=True)
    except Deadlock as refusal:
        return refusal
    raise RuntimeError("a circle was not found")
