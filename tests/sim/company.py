"""Keys of short life: how they are let in, what they do, and every way in which they end; and the agent on trial."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import orjson

from tests.core.requests import ORIGIN
from tests.sim.agent import OUT, REASONS, Agent
from tests.sim.client import Client, Leaf

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

LONG_MS = 60_000  # clocks differ by less
ODD = ("ledger", "depth", "three", "verb", "names", "longer", "expired", "stranger", "session", "other agent")


class Links:
    """Statements of delegation, outermost first, made one after the other."""

    def __init__(self, simulation: Simulation, now_ms: int, life_ms: int) -> None:
        self.rows: list[Leaf] = []
        self._simulation = simulation
        self._now_ms = now_ms
        self._life_ms = life_ms

    def add(self, by: str, to: str, **changes: object) -> None:
        """Let `by` sign for `to`; None leaves a member out."""
        key = self._simulation.key(by)
        said: Leaf = {
            "type": "tallystick/delegation/1", "iss": key.did, "sub": self._simulation.key(to).did, "aud": ORIGIN,
            "verbs": ["admit", "lease", "transfer"], "notBeforeMs": self._now_ms - LONG_MS,
            "expiresAtMs": self._now_ms + self._life_ms, "maxDepth": 0,
        }  # fmt: skip
        if self.rows:
            said["parent"] = sha256(_canonical(self.rows[-1]["statement"])).hexdigest()
        said = {name: value for name, value in (said | changes).items() if value is not None}
        signed = key.sign(b"tallystick.delegation/1\n" + sha256(_canonical(said)).digest())
        self.rows.append({"statement": said, "signature": b64encode(signed).decode()})


def _canonical(value: Leaf) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


class Worker(Agent):
    """A session with the key of `key_name`, mostly one that nobody has seen yet.

    `boss` lets it act, an agent or an operator; `above` is the operator that lets the boss do so.
    """

    def __init__(self, simulation: Simulation, name: str, key_name: str, boss: Client, above: str = "") -> None:
        super().__init__(simulation, name, key_name)
        self.key_name = key_name
        if key_name == name:
            self.alias = "session"  # they all number their requests alike
        self._boss = boss
        self._above = above
        self._scope: list[str] | None = None

    def pool(self) -> tuple[str, ...]:
        """Return the names of its scope, mostly."""
        names = super().pool()
        if self._scope is None or self.simulation.rng.random() < 0.15:
            return names
        return tuple(self._scope)

    async def live(self) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        odd = rng.choice(ODD) if simulation.chance("odd_chain") else ""
        opened = await self.ask("session.open", delegations=self._chain(odd), name=self.name)
        if opened is None and rng.random() < 0.8:
            return
        if simulation.chance("twin"):
            simulation.hire_twin(self)
        await self._work_on()
        if simulation.chance("silent"):
            simulation.say(self.name, "is silent")
            return
        if simulation.chance("let_run"):
            await self._run_out()
        elif self.refusal not in OUT:
            why: Leaf = {"reason": "done"} if rng.random() < 0.5 else {}
            await self.ask("session.close", session=self.did, **why)
            if rng.random() < 0.3:
                await self.ask("session.close", session=self.did)

    async def _work_on(self) -> None:
        """Do some jobs, as long as one is let."""
        simulation, rng = self.simulation, self.simulation.rng
        for _ in range(rng.randint(1, 5)):
            if simulation.is_over or self.refusal in OUT:
                break
            await self.think()
            if rng.random() < 0.3:
                said: Leaf = {"activity": rng.choice(REASONS)} if rng.random() < 0.5 else {}
                await self.ask("session.beat", **said)
            await self.step()
        if simulation.is_over:
            await self.tidy_up()

    async def _run_out(self) -> None:
        """Beat until the time of the delegation is over."""
        while not self.simulation.is_over and self.refusal not in OUT:
            await asyncio.sleep(self.simulation.rng.uniform(0.3, 2))
            await self.ask("session.beat")

    def _chain(self, odd: str) -> list[Leaf]:
        """Return the delegations that lead to this session; `odd` says what is wrong with them."""
        simulation, rng, config = self.simulation, self.simulation.rng, self.simulation.config
        life_ms = rng.choice(config.lives_ms)
        links = Links(simulation, self.now_ms + self.skew_ms, life_ms)
        self._scope = self._names() if rng.random() < config.scope_share else None
        last: Leaf = {"resources": self._scope}
        if rng.random() < 0.2:
            last["verbs"] = rng.choice([["lease"], ["lease"], ["transfer"]])
        self._above_it(links, odd)
        last |= _oddity(odd, links, self.now_ms)
        links.add("zoe" if odd == "stranger" else self._boss_name(odd), self.key_name, **last)
        return links.rows

    def _above_it(self, links: Links, odd: str) -> None:
        rng, boss = self.simulation.rng, self._boss.name
        above = self._above
        if not above and odd in ("depth", "three", "names", "verb"):
            above = self.simulation.config.operators[0]
        if odd == "three":
            links.add(above, above, maxDepth=1)
        if above and odd not in ("stranger", "session", "other agent"):
            wide = self._wide() if rng.random() < self.simulation.config.scope_share else None
            verbs = ["lease"] if odd == "verb" else ["admit", "lease", "transfer"]
            names = ["lock:nothing"] if odd == "names" else wide
            links.add(above, boss, maxDepth=int(odd != "depth"), resources=names, verbs=verbs)

    def _boss_name(self, odd: str) -> str:
        """Return who signs last: not the boss, when a session or another agent would pass on what it has."""
        workers = [one.key_name for one in self.simulation.workers if one is not self and not isinstance(one, Twin)]
        if odd == "session" and workers:
            return self.simulation.rng.choice(workers)
        return self.simulation.rng.choice(self.simulation.config.agents) if odd == "other agent" else self._boss.name

    def _names(self) -> list[str]:
        rng, names = self.simulation.rng, self.simulation.config.names
        return sorted({_wider(rng.random() < 0.3, name) for name in rng.sample(names, rng.randint(1, len(names)))})

    def _wide(self) -> list[str]:
        """Return a scope around that of this session."""
        return sorted({f"{name.split(':')[0]}:**" for name in self._scope or self.simulation.config.names})


def _wider(is_wide: bool, name: str) -> str:
    return f"{name.split(':')[0]}:**" if is_wide else name


def _oddity(odd: str, links: Links, now_ms: int) -> Leaf:
    match odd:
        case "ledger":
            return {"aud": "other.example/main"}
        case "longer" if links.rows:
            return {"expiresAtMs": links.rows[-1]["statement"]["expiresAtMs"] + 1}
        case "expired":
            return {"notBeforeMs": now_ms - 3 * LONG_MS, "expiresAtMs": now_ms - 2 * LONG_MS}
        case _:
            return {}


class Twin(Worker):
    """Another process with the key of a session. It began when the session did, and hears its own answers only."""

    def __init__(self, simulation: Simulation, first: Worker) -> None:
        Agent.__init__(self, simulation, f"{first.name}-2", first.key_name)
        self._scope = first._scope
        self.anchor = first.anchor

    async def live(self) -> None:
        await self._work_on()


class Trial(Agent):
    """An agent that an API key let in: it has its own names, and so many decisions."""

    most = 24  # its names are long

    def pool(self) -> tuple[str, ...]:
        """Return its own names, and seldom those of others."""
        if self.simulation.rng.random() < 0.1:
            return super().pool()
        return tuple(f"trial:{self.did}/{at}" for at in range(self.simulation.config.trial_names))

    async def live(self) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        while await simulation.enroller.enrol(self.name, "trial") is None and not simulation.is_over:  # noqa: ASYNC110
            await asyncio.sleep(rng.uniform(0.1, 2))
        while not simulation.is_over and self.refusal not in ("trial_used_up", "trial_over", "agent_unknown"):
            await self.think()
            await self.step()
        await self.tidy_up()
