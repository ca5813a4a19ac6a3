"""Operators, who answer for others: they enrol, set, break, remove and take back; and the gateway's own enroller."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from tests.core.requests import ORIGIN
from tests.sim.agent import OUT, REASONS, Agent, digest_of
from tests.sim.asking import Asking
from tests.sim.client import Client, Leaf
from tests.sim.limits import some_rules

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Operator(Asking):
    """Enrols agents, sets the schemes, and now and then uses its power."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__(simulation, name)
        self.hired: list[str] = []

    async def insist(self, action: str, **members: Any) -> None:
        """Ask until there is an answer, as long as this operator may ask at all."""
        while await self.ask(action, **members) is None:
            if self.refusal in OUT or self.simulation.is_over:
                return
            await asyncio.sleep(0.1)

    async def enrol(self, agent: Client) -> None:
        is_kept = agent.name == self.simulation.custodial
        custody = {"agentCustody": "gateway"} if is_kept else {}
        await self.insist("agent.add", agent=agent.did, name=agent.name, **custody)

    async def set_scheme(self, scheme: Leaf) -> None:
        await self.ask("scheme.set", **scheme)

    async def live(self) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        while not simulation.is_over:
            await asyncio.sleep(rng.uniform(0.5, 6))
            if simulation.chance("remove"):
                await self._remove(rng.choice(simulation.agents))
            if simulation.chance("break"):
                await self._break()
            if simulation.chance("transfer"):
                await self._give()
            if simulation.chance("set_scheme") and simulation.config.schemes:
                other = {"class": rng.choice(["exclusive", "read-safe"])} if rng.random() < 0.5 else {}
                await self.set_scheme(rng.choice(simulation.config.schemes) | other)
            if simulation.asked and rng.random() < 2 * simulation.config.plead_share:
                await self.answer()
            if simulation.config.is_policed and rng.random() < 0.3:
                await self._load_rules()
            await self._with_company()

    async def _load_rules(self) -> None:
        """Load the next set of rules, or one that somebody else was faster with."""
        rng, following = self.simulation.rng, self.simulation.checker.next_version()
        number = following + rng.choice([0, 0, 0, 1])
        mode = rng.choice(["enforce", "enforce", "shadow"])
        await self.ask("rules.load", rules=some_rules(rng), rulesMode=mode, rulesVersion=number)

    async def _with_company(self) -> None:
        """Do what there is to do where one is not alone."""
        simulation, rng = self.simulation, self.simulation.rng
        if simulation.chance("dismiss"):
            await self._dismiss(rng.choice(simulation.operators))
        if simulation.chance("take_over"):
            await self.enrol(rng.choice(simulation.agents))
        if simulation.chance("api_keys"):
            await self._api_keys()
        if simulation.chance("close"):
            await self.ask("session.close", session=rng.choice(simulation.actors).did, reason=REASONS[0])
        if rng.random() < simulation.config.session_share:
            simulation.hire(self)

    async def _remove(self, agent: Agent) -> None:
        rng = self.simulation.rng
        await self.ask("agent.remove", agent=agent.did)
        if rng.random() < 0.3:
            await self.ask("agent.remove", agent=agent.did)
        await asyncio.sleep(rng.uniform(0, 3))
        await self.enrol(agent)

    async def _dismiss(self, other: Operator) -> None:
        """Remove an operator and add it again, mostly."""
        rng, simulation = self.simulation.rng, self.simulation
        await self.ask("operator.remove", operator=other.did)
        if rng.random() < 0.3:
            await self.ask("operator.remove", operator=rng.choice([other.did, simulation.agents[0].did]))
        if rng.random() < 0.3:
            await self.enrol(rng.choice(simulation.agents))
        await asyncio.sleep(rng.uniform(0, 5))
        await self.insist("operator.add", operator=other.did, name=other.name)
        if rng.random() < 0.3:
            await self.ask("operator.add", operator=rng.choice(simulation.actors).did)

    async def _api_keys(self) -> None:
        """Issue and revoke API keys, and let the enroller enrol with them; some of it makes no sense."""
        rng, simulation = self.simulation.rng, self.simulation
        name = rng.choice(["live", "trial", "other"])
        match rng.randrange(5):
            case 0:
                bound = rng.choice([simulation.custodial, simulation.agents[0].name, "nobody"])
                bearer = {"agent": simulation.key(bound).did} if bound else {}
                await self.ask("apikey.issue", keyDigest=digest_of(f"of {bound}"), kind="live", **bearer)
            case 1:
                await self.ask("apikey.revoke", keyDigest=digest_of(name))
            case 2:
                await self.ask("apikey.issue", keyDigest=digest_of(name), kind="trial" if name == "trial" else "live")
            case 3:
                await simulation.enroller.enrol(rng.choice(["zed", "yan", *simulation.config.agents]), name)
            case _:
                await simulation.enroller.ask("agent.add", agent=rng.choice(simulation.operators).did)

    def _some_lease(self) -> Leaf | None:
        return self.simulation.rng.choice(self.simulation.actors).any_lease()

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
        lease, to = self._some_lease(), self.simulation.rng.choice(self.simulation.actors)
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


class Enroller(Client):
    """The gateway's own key, which enrols whoever comes with an API key."""

    async def enrol(self, name: str, key: str, patience: int = 4) -> Leaf | None:
        """Enrol the key of `name` by the API key of `key`, with the word of the new one."""
        new, digest = self.simulation.key(name), digest_of(key)
        wanted = orjson.dumps({"agent": new.did, "keyDigest": digest, "ledger": ORIGIN}, option=orjson.OPT_SORT_KEYS)
        proof = b64encode(new.sign(b"tallystick.enrolment/1\n" + sha256(wanted).digest())).decode()
        return await self.ask("agent.add", patience=patience, agent=new.did, keyDigest=digest, proof=proof)
