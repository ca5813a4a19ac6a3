"""What agents and operators do all day: take leases, work under them, forget them, and get in each other's way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.sim.client import Client, Leaf
from tests.sim.guard import Pass

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Agent(Client):
    """One key, one thing after the other, until the simulation ends; a crash forgets everything but the key."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.held: dict[str, Leaf] = {}
        self.old: list[Leaf] = []

    async def live(self) -> None:
        simulation = self.simulation
        while not simulation.is_over:
            await self.think()
            if simulation.chance("crash"):
                simulation.say(self.name, "crashes")
                self.held.clear()
                await asyncio.sleep(simulation.rng.uniform(0.1, 4))
            elif simulation.chance("replay") and self.sent:
                await self._replay()
            elif simulation.chance("stray") and self.old:
                await self._stray()
            else:
                await self._job()
        await self.tidy_up()

    async def think(self) -> None:
        await asyncio.sleep(self.simulation.rng.uniform(0, self.simulation.config.think_ms / 500))

    # -- ordinary work ------------------------------------------------------------------------------------------------

    async def _job(self) -> None:
        """Take a lease, work, give it back; or not."""
        lease = await self._acquire()
        if lease is None:
            return
        for _ in range(self.simulation.rng.randrange(3)):
            await self._work(lease)
            if self.simulation.rng.random() < 0.4:
                lease = await self._renew(lease)
        if self.simulation.chance("forget"):
            self.old.append(lease)
            self.held.pop(lease["leaseId"], None)
            return
        await self._release(lease)

    def choose(self) -> Leaf:
        """Return the members of an acquire."""
        rng, config = self.simulation.rng, self.simulation.config
        names = rng.sample(config.names, min(len(config.names), rng.randint(1, config.set_max)))
        members: Leaf = {"resource": names[0]} if len(names) == 1 else {"resources": names}
        if rng.random() < 0.8:
            members["ttlMs"] = rng.randint(*config.ttl_ms)
        elif config.parameters.ttl_max_ms < 30_000:
            members["ttlMs"] = config.parameters.ttl_max_ms
        return members

    async def _acquire(self) -> Leaf | None:
        members = self.choose()
        for _ in range(self.simulation.rng.randint(1, 4)):
            leaf = await self.ask("lease.acquire", **members)
            if leaf is None or self.simulation.is_over:
                return None
            if "leaseId" in leaf:
                self.held[leaf["leaseId"]] = leaf
                return leaf
            if not self.simulation.chance("ignore_retry"):
                await asyncio.sleep(leaf.get("retryAfterMs", 100) * self.simulation.rng.random() / 1_000)
        return None

    async def _renew(self, lease: Leaf) -> Leaf:
        leaf = await self.ask("lease.renew", leaseId=lease["leaseId"], **self._ttl())
        return leaf if leaf is not None and "expiresAtMs" in leaf and "error" not in leaf else lease

    def _ttl(self) -> Leaf:
        config = self.simulation.config
        is_needed = config.parameters.ttl_max_ms < 30_000
        if is_needed or self.simulation.rng.random() < 0.8:
            return {"ttlMs": self.simulation.rng.randint(*config.ttl_ms)}
        return {}

    async def _release(self, lease: Leaf) -> Leaf | None:
        members: Leaf = {"resources": lease["resources"]}
        if self.simulation.rng.random() < 0.7:
            members["leaseId"] = lease["leaseId"]
        self.held.pop(lease["leaseId"], None)
        self.old.append(lease)
        return await self.ask("lease.release", **members)

    async def _work(self, lease: Leaf) -> None:
        """Read, think, write: under the lease, or long after it, as a process does that was paused."""
        simulation, guard = self.simulation, self.simulation.guard
        passport = pass_of(lease)
        name = simulation.rng.choice(lease["resources"])
        version = guard.read(passport, name)
        if simulation.chance("pause"):
            simulation.say(self.name, "is paused")
            await asyncio.sleep(lease["ttlMs"] / 1_000 + simulation.rng.uniform(0, 5))
        else:
            await asyncio.sleep(simulation.rng.uniform(0, 0.4))
        if version is not None:
            is_in = guard.write(passport, name, version)
            simulation.say(self.name, "writes" if is_in else "may not write", name, version)

    # -- what agents should not do ------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        """Send the very bytes of an earlier request again."""
        raw, action = self.simulation.rng.choice(self.sent[-12:])
        try:
            reply = await self.exchange(raw, action)
        except Exception as error:
            reply = error
        self.simulation.say(self.name, "replayed", type(reply).__name__)
        self.simulation.replayed(self.name, raw, reply)

    async def _stray(self) -> None:
        """Use a lease that is long gone, or another's."""
        simulation = self.simulation
        lease = simulation.rng.choice(self.old[-6:])
        if simulation.rng.random() < 0.3:
            lease = simulation.rng.choice(simulation.agents).any_lease() or lease
        if simulation.rng.random() < 0.5:
            await self.ask("lease.renew", leaseId=lease["leaseId"], **self._ttl())
        else:
            await self.ask("lease.release", leaseId=lease["leaseId"], resources=lease["resources"])

    def any_lease(self) -> Leaf | None:
        return next(iter(self.held.values()), None) or (self.old[-1] if self.old else None)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def tidy_up(self) -> None:
        """When faults have stopped: give back what is held; everybody must be answered."""
        for lease in list(self.held.values()):
            answer = await self._release(lease)
            self.simulation.must(answer is not None, "I14", f"{self.name} got no answer when all was well")


class Operator(Client):
    """Enrols the agents, and now and then uses its power."""

    async def enrol(self, agent: Agent) -> None:
        while await self.ask("agent.add", agent=agent.did, name=agent.name) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def live(self) -> None:
        simulation = self.simulation
        while not simulation.is_over:
            await asyncio.sleep(simulation.rng.uniform(1, 8))
            if simulation.chance("remove"):
                agent = simulation.rng.choice(simulation.agents)
                await self.ask("agent.remove", agent=agent.did)
                await asyncio.sleep(simulation.rng.uniform(0, 3))
                await self.enrol(agent)


def pass_of(leaf: Leaf) -> Pass:
    """Return what a guard reads out of a verified leaf."""
    rows: list[dict[str, Any]] = leaf["schemes"]
    classes = tuple((row["name"], row["class"]) for row in rows)
    return Pass(leaf["actor"], leaf["fencingToken"], leaf["mode"], tuple(leaf["resources"]), classes)
