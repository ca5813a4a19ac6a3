"""What agents and operators do all day: take leases, stand in line, work, forget, and get in each other's way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.service import Answered
from tests.sim.client import Client, Leaf
from tests.sim.guard import Pass
from tests.sim.names import key_of, scheme_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

OTHER: Leaf = {"name": "lock", "class": "read-safe"}
REASONS = ("incident-7", "holder_gone", "hand.over")
GRANTS = ("lease.granted", "lease.extended", "lease.claimed", "lease.changed", "lease.transferred")


class Agent(Client):
    """One key, one thing after the other, until the simulation ends; a crash forgets everything but the key."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.held: dict[str, Leaf] = {}
        self.waiting: dict[str, Leaf] = {}
        self.old: list[Leaf] = []
        self.offered: list[str] = []  # lease ids that others said they offered

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
            elif self.offered:
                await self._accept(self.offered.pop(0))
            else:
                await self._job()
        await self.tidy_up()

    async def think(self) -> None:
        await asyncio.sleep(self.simulation.rng.uniform(0, self.simulation.config.think_ms / 500))

    # -- ordinary work ------------------------------------------------------------------------------------------------

    async def _job(self, depth: int = 0) -> None:
        """Take a lease, work, perhaps take another one meanwhile, give it back; or not."""
        rng, simulation = self.simulation.rng, self.simulation
        lease = await self._acquire(depth)
        if lease is None:
            return
        for _ in range(rng.randrange(3)):
            await self._work(lease)
            if rng.random() < 0.4:
                lease = await self._renew(lease)
        await self._meanwhile(depth)
        if simulation.chance("transfer") and await self._offer(lease):
            return
        if simulation.chance("forget"):
            self.old.append(lease)
            self.held.pop(lease["leaseId"], None)
            return
        await self._release(lease)

    async def _meanwhile(self, depth: int) -> None:
        """Perhaps do another job, with a lease or a ticket of its own."""
        simulation = self.simulation
        if depth < 2 and not simulation.is_over and simulation.rng.random() < simulation.config.nest_share:
            await self._job(depth + 1)

    def choose(self) -> Leaf:
        """Return the members of an acquire."""
        rng, config = self.simulation.rng, self.simulation.config
        own = {name for leaf in (*self.held.values(), *self.waiting.values()) for name in leaf["resources"]}
        pool = [name for name in config.names if name not in own] if rng.random() < 0.8 else []
        pool = pool or list(config.names)  # mostly something new
        names = rng.sample(pool, min(len(pool), rng.randint(1, config.set_max)))
        members: Leaf = {"resource": names[0]} if len(names) == 1 else {"resources": names}
        members |= self._ttl()
        if len(config.modes) > 1:
            members["mode"] = rng.choice(config.modes)
        if rng.random() < config.wait_share:
            members |= {"wait": True, "giveUpMs": rng.randint(1_000, config.give_up_ms)}
            if rng.random() < 0.5:
                members["onDeadlock"] = rng.choice(["wait", "refuse"])
        return members

    def _ttl(self) -> Leaf:
        config = self.simulation.config
        is_needed = config.parameters.ttl_max_ms < 30_000
        if is_needed or self.simulation.rng.random() < 0.9:
            return {"ttlMs": self.simulation.rng.randint(*config.ttl_ms)}
        return {}

    async def _acquire(self, depth: int) -> Leaf | None:
        members, simulation = self.choose(), self.simulation
        for _ in range(simulation.rng.randint(1, 4)):
            leaf = await self.ask("lease.acquire", **members)
            if leaf is not None and leaf["type"].split("/")[1] == "wait.queued":
                granted, _ = await asyncio.gather(self._wait(leaf), self._meanwhile(depth))
                return granted
            if leaf is None or self._hold(leaf) or simulation.is_over:
                return leaf if leaf is not None and "leaseId" in leaf else None
            if not simulation.chance("ignore_retry"):
                await asyncio.sleep(leaf.get("retryAfterMs", 100) * simulation.rng.random() / 1_000)
        return None

    def _hold(self, leaf: Leaf) -> bool:
        """Take note of a lease, if the leaf grants one."""
        if leaf["type"].split("/")[1] not in GRANTS:
            return False
        self.held[leaf["leaseId"]] = leaf
        return True

    async def _wait(self, queued: Leaf) -> Leaf | None:
        """Stand in line until the ticket is granted or has ended; some forget it, some give their place up."""
        ticket_id = queued["ticketId"]
        self.waiting[ticket_id] = queued
        try:
            return await self._claim(ticket_id)
        finally:
            del self.waiting[ticket_id]

    async def _claim(self, ticket_id: str) -> Leaf | None:
        simulation, config = self.simulation, self.simulation.config
        while not simulation.chance("forget"):
            rng = simulation.rng
            if simulation.chance("cancel"):
                await self.ask("wait.cancel", ticketId=ticket_id)
                return None
            wait_ms = rng.choice([0, 0, 1_000, 20_000])
            leaf = await self.ask("wait.claim", wait_ms=wait_ms, ticketId=ticket_id)
            if leaf is not None and (self._hold(leaf) or "error" in leaf):
                return None if "error" in leaf else leaf
            most_ms = config.parameters.poll_ms * (1.5 if simulation.chance("poll_late") else 0.5)
            await asyncio.sleep(rng.uniform(0, min(most_ms, 3_000)) / 1_000)
        return None

    async def _renew(self, lease: Leaf) -> Leaf:
        """Renew, perhaps with another mode; return the lease that goes on."""
        members = {"leaseId": lease["leaseId"], **self._ttl()}
        modes = self.simulation.config.modes
        if len(modes) > 1 and self.simulation.rng.random() < 0.4:
            members["mode"] = self.simulation.rng.choice(modes)
        leaf = await self.ask("lease.renew", **members)
        if leaf is None or "error" in leaf:
            return lease
        if self._hold(leaf):
            self.old.append(lease)
            self.held.pop(lease["leaseId"], None)
        return leaf

    async def _release(self, lease: Leaf) -> Leaf | None:
        members: Leaf = {"resources": lease["resources"]}
        if self.simulation.rng.random() < 0.7:
            members["leaseId"] = lease["leaseId"]
            if self.simulation.chance("stray"):
                members["resources"] = [self.simulation.rng.choice(self.simulation.config.names)]
        self.held.pop(lease["leaseId"], None)
        self.old.append(lease)
        return await self.ask("lease.release", **members)

    async def _work(self, lease: Leaf) -> None:
        """Read, think, write: under the lease, or long after it, as a process does that was paused."""
        simulation, guard = self.simulation, self.simulation.guard
        passport = pass_of(lease)
        name = simulation.rng.choice(passport.names)
        name = name[:-2] + "x" if name.endswith("**") else name
        version = guard.read(passport, name)
        if simulation.chance("pause"):
            simulation.say(self.name, "is paused")
            await asyncio.sleep(lease["ttlMs"] / 1_000 + simulation.rng.uniform(0, 5))
        else:
            await asyncio.sleep(simulation.rng.uniform(0, 0.4))
        if version is not None and lease["mode"] in ("write", "delete"):
            is_in = guard.write(passport, name, version)
            simulation.say(self.name, "writes" if is_in else "may not write", name, version)
            simulation.must(not guard.lost, "I3", f"lost update: {guard.lost}")

    # -- handing over -------------------------------------------------------------------------------------------------

    async def _offer(self, lease: Leaf) -> bool:
        """Offer a lease to somebody who will hear of it; say whether it was offered."""
        to = self.simulation.rng.choice(self.simulation.agents)
        leaf = await self.ask(
            "lease.transfer",
            leaseId=lease["leaseId"],
            seenToken=lease["fencingToken"] - (self.simulation.rng.random() < 0.1),
            toDid=to.did,
            reason=self.simulation.rng.choice(REASONS),
        )
        if leaf is None or "error" in leaf:
            return False
        to.offered.append(lease["leaseId"])
        self.held.pop(lease["leaseId"], None)
        self.old.append(lease)
        return True

    async def _accept(self, lease_id: str) -> None:
        leaf = await self.ask("lease.accept", leaseId=lease_id, **self._ttl())
        if leaf is not None and self._hold(leaf):
            await self._work(leaf)
            await self._release(leaf)

    # -- what agents should not do ------------------------------------------------------------------------------------

    async def _replay(self) -> None:
        """Send the very bytes of an earlier request again."""
        raw, action = self.simulation.rng.choice(self.sent[-12:])
        try:
            reply = await self.exchange(raw, action)
        except Exception as error:
            reply = error
        self.simulation.say(self.name, "replayed", type(reply).__name__)
        if isinstance(reply, Answered):
            self.learn(reply, dict(raw.headers)["idempotency-key"].strip('"'))

    async def _stray(self) -> None:
        """Use what is long gone, what is another's, what never was, or a power that one has not."""
        simulation, rng = self.simulation, self.simulation.rng
        lease = rng.choice(self.old[-6:])
        if rng.random() < 0.4:
            lease = rng.choice(simulation.agents).any_lease() or lease
        lease_id = lease["leaseId"] if rng.random() < 0.9 else f"L{rng.randrange(1, 9_999)}"
        match rng.randrange(7):
            case 0 | 1:
                await self.ask("lease.renew", leaseId=lease_id, **self._ttl())
            case 2 | 3:
                names = lease["resources"] if rng.random() < 0.8 else [rng.choice(simulation.config.names)]
                await self.ask("lease.release", leaseId=lease_id, resources=names)
            case 4:
                await self.ask("lease.accept", leaseId=lease_id, **self._ttl())
            case 5:
                await self._usurp(lease)
            case _:
                waiting = [one.ticket_id for one in simulation.checker.book.tickets]
                ticket_id = rng.choice([*waiting, f"T{rng.randrange(1, 120)}"])
                await self.ask(rng.choice(["wait.claim", "wait.cancel"]), ticketId=ticket_id)

    async def _usurp(self, lease: Leaf) -> None:
        """Try what only operators may."""
        rng = self.simulation.rng
        match rng.randrange(4):
            case 0:
                await self.ask("agent.add", agent=self.did)
            case 1:
                await self.ask("agent.remove", agent=rng.choice(self.simulation.agents).did)
            case 2:
                await self.ask("scheme.set", **OTHER)
            case _:
                token, resource = lease["fencingToken"], lease["resources"][0]
                await self.ask("lease.break", resource=resource, seenToken=token, reason=REASONS[1])

    def any_lease(self) -> Leaf | None:
        return next(iter(self.held.values()), None) or (self.old[-1] if self.old else None)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def tidy_up(self) -> None:
        """When faults have stopped: give back what is held; everybody must be answered."""
        for lease in list(self.held.values()):
            answer = await self._release(lease)
            self.simulation.must(answer is not None, "I14", f"{self.name} got no answer when all was well")


class Operator(Client):
    """Enrols the agents, sets the schemes, and now and then uses its power."""

    async def enrol(self, agent: Agent) -> None:
        while await self.ask("agent.add", agent=agent.did, name=agent.name) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def set_scheme(self, scheme: Leaf) -> None:
        await self.ask("scheme.set", **scheme)

    async def live(self) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        while not simulation.is_over:
            await asyncio.sleep(rng.uniform(0.5, 6))
            if simulation.chance("remove"):
                agent = rng.choice(simulation.agents)
                await self.ask("agent.remove", agent=agent.did)
                if rng.random() < 0.3:
                    await self.ask("agent.remove", agent=agent.did)
                await asyncio.sleep(rng.uniform(0, 3))
                await self.enrol(agent)
            if simulation.chance("break"):
                await self._break()
            if simulation.chance("transfer"):
                await self._give()
            if simulation.chance("set_scheme") and simulation.config.schemes:
                other = {"class": rng.choice(["exclusive", "read-safe"])} if rng.random() < 0.5 else {}
                await self.set_scheme(rng.choice(simulation.config.schemes) | other)

    def _some_lease(self) -> Leaf | None:
        return self.simulation.rng.choice(self.simulation.agents).any_lease()

    async def _break(self) -> None:
        lease = self._some_lease()
        if lease is None:
            return
        members = {
            "resource": self.simulation.rng.choice(lease["resources"]),
            "seenToken": lease["fencingToken"],
            "reason": self.simulation.rng.choice(REASONS),
        }
        if self.simulation.rng.random() < 0.3:
            members["reasonDigest"] = "ab" * 32
        await self.ask("lease.break", **members)
        if self.simulation.rng.random() < 0.3:
            await self.ask("lease.break", **members)

    async def _give(self) -> None:
        lease, to = self._some_lease(), self.simulation.rng.choice(self.simulation.agents)
        if lease is None:
            return
        leaf = await self.ask(
            "lease.transfer",
            leaseId=lease["leaseId"],
            seenToken=lease["fencingToken"],
            toDid=to.did,
            reason=REASONS[0],
        )
        if leaf is not None and "error" not in leaf:
            to.offered.append(lease["leaseId"])


def pass_of(leaf: Leaf) -> Pass:
    """Return what a guard reads out of a verified leaf."""
    rows: list[dict[str, Any]] = leaf["schemes"]
    folding = {row["name"]: row["isFolding"] for row in rows}
    names = tuple(key_of(name, folding[scheme_of(name)]) for name in leaf["resources"])
    classes = tuple((row["name"], row["class"]) for row in rows)
    return Pass(leaf["actor"], leaf["fencingToken"], leaf["mode"], names, classes)
