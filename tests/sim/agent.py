"""What agents do all day: take leases, stand in line, work, forget, and get in each other's way."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gateway.service import Answered
from tests.sim.asking import Asking
from tests.sim.client import Leaf
from tests.sim.guard import Pass
from tests.sim.names import key_of, scheme_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

OTHER: Leaf = {"name": "lock", "class": "read-safe"}
# Rows without entry that end what a key can do, for now or for good.
OUT = frozenset(
    (
        "agent_unknown", "agent_removed", "operator_removed", "session_ended", "session_expired", "trial_used_up",
        "trial_over",
    )
)  # fmt: skip
REASONS = ("incident-7", "holder_gone", "hand.over")
BATCH_BYTES = 38_000  # of commands; the door takes somewhat more
GRANTS = ("lease.granted", "lease.extended", "lease.claimed", "lease.changed", "lease.transferred")


class Agent(Asking):
    """One key, one thing after the other, until the simulation ends; a crash forgets everything but the key."""

    most = 256  # commands in a batch, where there are so many

    def __init__(self, simulation: Simulation, name: str, key_name: str = "") -> None:
        super().__init__(simulation, name, key_name)
        self.held: dict[str, Leaf] = {}
        self.waiting: dict[str, Leaf] = {}
        self.offered: list[str] = []  # lease ids that others said they offered
        self.hired: list[str] = []  # the sessions that it let act for it

    async def live(self) -> None:
        while not self.simulation.is_over:
            await self.think()
            await self.step()
        await self.tidy_up()

    async def step(self) -> None:
        """Do one thing."""
        simulation, config = self.simulation, self.simulation.config
        if simulation.chance("crash"):
            simulation.say(self.name, "crashes")
            self.held.clear()
            await asyncio.sleep(simulation.rng.uniform(0.1, 4))
        elif simulation.chance("replay") and self.sent:
            await self._replay()
        elif simulation.chance("stray") and self.old:
            await self._stray()
        elif simulation.chance("meddle"):
            await self._meddle()
        elif simulation.asked and simulation.rng.random() < config.plead_share:
            await self.answer()
        elif self.offered:
            await self._accept(self.offered.pop(0))
        elif config.session_share and simulation.rng.random() < config.session_share:
            simulation.hire(self)
        elif self.hired and simulation.chance("close"):
            await self.ask("session.close", session=simulation.rng.choice(self.hired[-3:]), reason=REASONS[2])
        elif config.batch_share and simulation.rng.random() < config.batch_share:
            await self.ask_for_many()
        else:
            await self._job()

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
        pool = [name for name in self.pool() if name not in own] if rng.random() < 0.8 else []
        pool = pool or list(self.pool())  # mostly something new
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
            if leaf is None and self.refusal in OUT:
                return None
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

    async def _release(self, lease: Leaf, patience: int = 6) -> Leaf | None:
        members: Leaf = {"resources": lease["resources"]}
        if self.simulation.rng.random() < 0.7:
            members["leaseId"] = lease["leaseId"]
            if self.simulation.chance("stray"):
                members["resources"] = [self.simulation.rng.choice(self.simulation.config.names)]
        self.held.pop(lease["leaseId"], None)
        self.old.append(lease)
        return await self.ask("lease.release", patience=patience, **members)

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
        if simulation.config.admit_share and simulation.rng.random() < simulation.config.admit_share:
            for _ in range(simulation.rng.randint(1, 5)):
                await self.admit(lease, name)
            if simulation.rng.random() < simulation.config.plead_share:
                await self.ask_approval(lease, name)
        if version is not None and lease["mode"] in ("write", "delete"):
            is_in = guard.write(passport, name, version)
            simulation.say(self.name, "writes" if is_in else "may not write", name, version)
            simulation.must(not guard.lost, "I3", f"lost update: {guard.lost}")

    # -- many at once -------------------------------------------------------------------------------------------------

    async def ask_for_many(self) -> None:
        """Send some commands in one request, and take note of what came of each."""
        rng, members = self.simulation.rng, Leaf()
        admit_share = self.simulation.config.admit_share
        count = rng.randint(1, min(48 if admit_share else 24, self.simulation.config.commands_max))
        if self.simulation.config.commands_max == self.most and rng.random() < 0.3:
            count = self.most
        if rng.random() < 0.5:
            members["isAtomic"] = rng.random() < 0.9
        if rng.random() < 0.3:
            members["isBare"] = True
        if admit_share and "isAtomic" in members:
            count = min(count, 4)
        asked = dict(self.held)
        # A batch that is refused does not tell which engine said so, so one that failed would look like a lie (40.3).
        share = 0.0 if members.get("isAtomic") and self.simulation.checker.is_engine_flaky else admit_share
        commands = [self._command(asked, share) for _ in range(count)]
        while admit_share and len(json.dumps(commands)) > BATCH_BYTES:
            commands.pop()
        leaf = await self.ask("batch.submit", commands=commands, **members)
        for answer in leaf["answers"] if leaf is not None else ():
            if answer["type"].split("/")[1] == "lease.released":
                self._let_go(answer["leaseId"])
            elif self._hold(answer) and "fromLeaseId" in answer:
                self._let_go(answer["fromLeaseId"])

    def _let_go(self, lease_id: str) -> None:
        lease = self.held.pop(lease_id, None)
        if lease is not None:
            self.old.append(lease)

    def _command(self, held: dict[str, Leaf], admit_share: float) -> Leaf:
        """Return one command; `held` is what those before it have not given back."""
        rng, modes = self.simulation.rng, self.simulation.config.modes
        if admit_share and held and rng.random() < admit_share:
            lease = rng.choice(list(held.values())[-3:])
            return {"action": "coordination.admit", **self.admission(lease, rng.choice(lease["resources"]))}
        if not held or rng.random() < 0.5:
            wanted = self.choose()
            return {"action": "lease.acquire"} | {
                name: value for name, value in wanted.items() if name not in ("wait", "giveUpMs", "onDeadlock")
            }
        lease = rng.choice(list(held.values()))
        if self.old and rng.random() < 0.15:
            lease = rng.choice(self.old[-6:])
        if rng.random() < 0.5:
            mode = {"mode": rng.choice(modes)} if len(modes) > 1 and rng.random() < 0.4 else {}
            return {"action": "lease.renew", "leaseId": lease["leaseId"], **self._ttl(), **mode}
        if rng.random() < 0.7:
            held.pop(lease["leaseId"], None)
        named = {"leaseId": lease["leaseId"]} if rng.random() < 0.6 else {}
        return {"action": "lease.release", "resources": lease["resources"], **named}

    # -- handing over -------------------------------------------------------------------------------------------------

    async def _offer(self, lease: Leaf) -> bool:
        """Offer a lease to somebody who will hear of it; say whether it was offered."""
        to = self.simulation.rng.choice(self.simulation.actors)
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
            lease = rng.choice(simulation.actors).any_lease() or lease
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

    async def _meddle(self) -> None:
        """Try what only operators and sessions may, and to end others' sessions."""
        rng, simulation = self.simulation.rng, self.simulation
        other = rng.choice(simulation.actors).did
        match rng.randrange(6):
            case 0:
                await self.ask("session.beat", activity="idle")
            case 1 | 2:
                await self.ask("session.close", session=other)
            case 3:
                await self.ask(rng.choice(["operator.add", "operator.remove"]), operator=other)
            case 4:
                await self.ask("apikey.issue", keyDigest=digest_of("stray"), kind="live")
            case _:
                await self.ask("apikey.revoke", keyDigest=digest_of("live"))

    def any_lease(self) -> Leaf | None:
        return next(iter(self.held.values()), None) or (self.old[-1] if self.old else None)

    # -- the end ------------------------------------------------------------------------------------------------------

    async def tidy_up(self) -> None:
        """When faults have stopped: give back what is held; everybody must be answered."""
        for lease in list(self.held.values()):
            answer = await self._release(lease, patience=40)
            is_answered = answer is not None or self.refusal in OUT
            self.simulation.must(is_answered, "I14", f"{self.name} got no answer when all was well")


def digest_of(name: str) -> str:
    """Return by which digest the API key of a name is known."""
    return sha256(f"tsk {name}".encode()).hexdigest()


def pass_of(leaf: Leaf) -> Pass:
    """Return what a guard reads out of a verified leaf."""
    rows: list[dict[str, Any]] = leaf["schemes"]
    folding = {row["name"]: row["isFolding"] for row in rows}
    names = tuple(key_of(name, folding[scheme_of(name)]) for name in leaf["resources"])
    classes = tuple((row["name"], row["class"]) for row in rows)
    return Pass(leaf["actor"], leaf["fencingToken"], leaf["mode"], names, classes)
