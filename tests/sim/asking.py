"""How agents ask before they do something, and how others approve: rightly, wrongly, late, twice, or not at all."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import orjson

from tests.core.requests import ORIGIN
from tests.sim.client import Client, Leaf

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

LONG_MS = 60_000  # clocks differ by less
ODD = ("arguments", "cost", "agent", "ledger", "genesis", "rules", "late", "early", "unfit", "own", "twice")
ARGUMENTS = tuple(sha256(name.encode()).hexdigest() for name in ("one", "two"))
ZEROS = "0" * 64


def digest_of(value: Leaf) -> str:
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Act:
    """One exact action of an agent, as an admission, an ask and an approval name it."""

    def __init__(self, simulation: Simulation, members: Leaf, principal: str, operator: str) -> None:
        self.members = {name: members[name] for name in ("operation", "mode", "argumentsDigest", "cost")}
        self.names = sorted(members.get("resources") or [members["resource"]])
        self.principal, self.operator = principal, operator
        self._simulation = simulation

    def named(self) -> Leaf:
        return {"resources": self.names, **self.members}

    def approved(self, by: str, now_ms: int, odd: str = "") -> Leaf:
        """Return the statement of the key of `by`, signed; `odd` says what is wrong with it."""
        simulation, rng = self._simulation, self._simulation.rng
        genesis, limits = simulation.genesis.hex(), simulation.checker.book.limits
        rules = limits.digest if limits is not None and odd != "rules" else ZEROS
        said: Leaf = self.members | {"agent": self.principal, "ledger": ORIGIN, "resources": self.names}
        said |= {"cost": said["cost"] + 1} if odd == "cost" else {}
        said |= {"argumentsDigest": "cd" * 32} if odd == "arguments" else {}
        key, life_ms = simulation.key(by), rng.choice([5_000, 60_000, 600_000])
        from_ms = now_ms + {"late": -2 * LONG_MS - life_ms, "early": LONG_MS}.get(odd, -LONG_MS)
        statement: Leaf = {
            "type": "tallystick/approval/1", "ledger": "other.example/main" if odd == "ledger" else ORIGIN,
            "genesis": ZEROS if odd == "genesis" else genesis,
            "agent": key.did if odd == "agent" else self.principal, "operation": said["operation"],
            "actionDigest": digest_of(said | {"rulesDigest": rules}), "argumentsDigest": said["argumentsDigest"],
            "rulesDigest": rules, "approver": key.did, "nonce": f"{simulation.next_number():024d}",
            "notBeforeMs": from_ms, "expiresAtMs": from_ms + LONG_MS + life_ms,
        }  # fmt: skip
        signed = key.sign(b"tallystick.approval/1\n" + bytes.fromhex(digest_of(statement)))
        return {"statement": statement, "signature": b64encode(signed).decode()}


class Asked:
    """An ask that is known to those who may answer it; what they say yes by comes back in `given`."""

    def __init__(self, ask_id: str, act: Act, approvers: dict[str, str]) -> None:
        self.ask_id = ask_id
        self.act = act
        self.approvers = approvers  # names of keys by DID
        self.open_to = set(approvers)  # who has not answered yet
        self.given: list[Leaf] = []


class Asking(Client):
    """Whoever asks for admissions and approvals, and whoever answers."""

    def __init__(self, simulation: Simulation, name: str, key_name: str = "") -> None:
        super().__init__(simulation, name, key_name)
        self.old: list[Leaf] = []
        self.signed_with = key_name or name
        self._statements: list[Leaf] = []  # approvals that came along before

    def pool(self) -> tuple[str, ...]:
        return self.simulation.config.names

    def _ttl(self) -> Leaf:
        config = self.simulation.config
        is_needed = config.parameters.ttl_max_ms < 30_000
        if is_needed or self.simulation.rng.random() < 0.9:
            return {"ttlMs": self.simulation.rng.randint(*config.ttl_ms)}
        return {}

    # -- admissions ---------------------------------------------------------------------------------------------------

    def admission(self, lease: Leaf, name: str) -> Leaf:
        """Return the members of an admission under a lease, or under one that is long gone, or with a made-up token."""
        rng = self.simulation.rng
        if self.old and rng.random() < 0.1:
            lease = rng.choice(self.old[-6:])
        if rng.random() < 0.1:
            others = self.simulation.checker.book.leases
            lease = _shown(rng.choice(others), lease) if others else lease
        names = [name, rng.choice(self.pool())] if rng.random() < 0.1 else [name]
        names = [rng.choice(self.pool())] if rng.random() < 0.1 else names
        names = list(map(inside, names))
        members: Leaf = {"operation": "file.write", "mode": rng.choice([lease["mode"], lease["mode"], "read", "write"])}
        members |= {"argumentsDigest": rng.choice(ARGUMENTS), "cost": rng.choice([0, 1, 1, 4])}
        members |= {"resource": names[0]} if len(set(names)) == 1 else {"resources": sorted(set(names))}
        if rng.random() < 0.9:
            token = lease["fencingToken"] + rng.choice([0] * 12 + [1, -1])
            members |= {"leaseId": lease["leaseId"], "fencingToken": token}
        approvals = self._approvals(Act(self.simulation, members, lease["principal"], lease["onBehalfOf"]))
        return members | ({"approvals": approvals} if approvals else {})

    async def admit(self, lease: Leaf, name: str) -> None:
        await self.ask("coordination.admit", **self.admission(lease, name))

    def _approvals(self, act: Act) -> list[Leaf]:
        """Return what comes along: mostly good where it is needed, sometimes what was used before, or is odd."""
        simulation, rng = self.simulation, self.simulation.rng
        schemes = simulation.checker.book.schemes
        is_final = any(schemes.get(name.split(":")[0], {}).get("class") == "irreversible" for name in act.names)
        if rng.random() > (0.8 if is_final else 0.08):
            return []
        if self._statements and rng.random() < 0.15:
            return [rng.choice(self._statements[-4:])]
        odd = rng.choice(ODD) if rng.random() < 0.25 else ""
        rows = [act.approved(by, self.now_ms + self.skew_ms, odd) for by in self._approvers(act, odd)]
        self._statements += rows
        return rows

    def _approvers(self, act: Act, odd: str) -> list[str]:
        """Return the names of keys that approve, of one operator each, or of some that may not."""
        simulation, rng = self.simulation, self.simulation.rng
        book, config = simulation.checker.book, simulation.config
        if odd == "unfit":
            return [rng.choice([self.signed_with, "nobody", "tri", simulation.custodial or "zed"])]
        by_operator: dict[str, list[str]] = {}
        for name in (*config.operators, *config.agents):
            did = simulation.key(name).did
            agent = book.agent(did)
            operator = did if did in book.operators else agent.operator if agent else ""
            by_operator.setdefault(operator, []).append(name)
        if odd in ("own", "twice"):
            found = by_operator.get(act.operator, [self.signed_with])
            return rng.sample(found, min(len(found), 2)) if odd == "twice" else [rng.choice(found)]
        others = [names for operator, names in by_operator.items() if operator not in ("", act.operator)]
        return [rng.choice(names) for names in rng.sample(others, min(len(others), rng.choice([1, 1, 2])))]

    # -- asks ---------------------------------------------------------------------------------------------------------

    async def ask_approval(self, lease: Leaf, name: str) -> None:
        """Ask others whether they approve, keep the lease meanwhile or not, and do it with what they said."""
        simulation, rng = self.simulation, self.simulation.rng
        members: Leaf = {"operation": "file.write", "mode": lease["mode"], "argumentsDigest": ARGUMENTS[0], "cost": 1}
        act = Act(simulation, members | {"resource": inside(name)}, lease["principal"], lease["onBehalfOf"])
        names = [*self._approvers(act, rng.choice(ODD) if rng.random() < 0.1 else "")]
        approvers = {simulation.key(one).did: one for one in names}
        if not approvers:
            return
        quorum = len(approvers) if rng.random() < 0.9 else rng.randint(1, len(approvers))
        leaf = await self.ask(
            "approval.ask", **act.named(), approvers=sorted(approvers), quorum=quorum,
            giveUpMs=rng.choice([1_000, 5_000, 60_000]),
        )  # fmt: skip
        if leaf is None or "askId" not in leaf:
            return
        asked = Asked(leaf["askId"], act, approvers)
        simulation.asked.append(asked)
        for _ in range(rng.randint(1, 4)):
            await asyncio.sleep(rng.uniform(0.2, 2))
            if len(asked.given) >= quorum or simulation.is_over:
                break
            await self.ask("lease.renew", leaseId=lease["leaseId"], **self._ttl())
        if rng.random() < 0.3:
            await self.ask("approval.withdraw", askId=rng.choice([asked.ask_id, asked.ask_id, self._some_ask().ask_id]))
        if asked.given:
            fence = {"leaseId": lease["leaseId"], "fencingToken": lease["fencingToken"]}
            for _ in range(rng.choice([1, 1, 2])):
                await self.ask("coordination.admit", **act.named(), **fence, approvals=asked.given[-4:])

    def _some_ask(self) -> Asked:
        return self.simulation.rng.choice(self.simulation.asked[-8:])

    async def answer(self) -> None:
        """Say yes or no to an ask, mostly one's own to answer, with a statement that is mostly about it."""
        simulation, rng = self.simulation, self.simulation.rng
        own = [one for one in simulation.asked[-6:] if self.did in one.open_to]
        if not own and rng.random() < 0.9:
            return
        asked = rng.choice(own) if own and rng.random() < 0.9 else self._some_ask()
        asked.open_to.discard(self.did)
        ask_id = f"A{1 + rng.randrange(900)}" if rng.random() < 0.05 else asked.ask_id
        if rng.random() < 0.2:
            reason: Leaf = {"reason": "too_risky"} if rng.random() < 0.5 else {}
            await self.ask("approval.decline", askId=ask_id, **reason)
            return
        odd = rng.choice(ODD) if rng.random() < 0.15 else ""
        row = asked.act.approved(self.signed_with, self.now_ms + self.skew_ms, odd)
        if self._statements and rng.random() < 0.1:
            row = rng.choice(self._statements[-4:])
        self._statements.append(row)
        leaf = await self.ask("approval.give", askId=ask_id, approval=row)
        if leaf is not None and "error" not in leaf:
            asked.given.append(row)


def inside(name: str) -> str:
    """Return an object in a sub-tree, or the object itself: what is done is done to something."""
    return f"{name[:-2]}x" if name.endswith("**") else name


def _shown(other: Any, lease: Leaf) -> Leaf:
    """Return somebody else's lease, as one's own would be shown."""
    return lease | {"leaseId": other.lease_id, "fencingToken": other.token, "mode": other.mode}
