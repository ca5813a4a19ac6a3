"""The person who has the root key: makes keys, states what becomes of them, and publishes the key document.

Operators bring what the root states, or somebody does who may not. Some of it makes no sense: a key that is known, one
that nobody was promised, one too many, the end of the last one.
"""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING

from gateway.core.intake import Rejection
from gateway.signer import Signer, key_name
from keys.forms import root_vkey, signed_key_document
from keys.rotation import Final, next_document, signed_statement
from tests.core.requests import ORIGIN
from tests.sim.client import Client
from verifier.keyring import KeyDocument, KeyLine, Keyring, open_keyring
from verifier.note import VerifierKey, make_vkey, parse_vkey
from verifier.statement import KeyStatement

if TYPE_CHECKING:
    from gateway.core.intake import RawRequest
    from tests.sim.simulation import Simulation

PURPOSES = ("log", "receipt")
AT_THE_DOOR = ("key_statement_invalid", "key_unready")


class Bearer(Client):
    """Brings the root's statements with somebody's key. `is_odd`: the door may turn down what it brings."""

    is_odd = False

    def _is_worth_another(self, reply: Exception, raw: RawRequest) -> bool:
        if self.is_odd and isinstance(reply, Rejection) and reply.code in AT_THE_DOOR:
            self.simulation.checker.count(reply.code)
            return False
        return super()._is_worth_another(reply, raw)


class Room:
    """Where a process looks for a private key that is to be announced."""

    def __init__(self, simulation: Simulation, signer: Signer) -> None:
        self._simulation = simulation
        self._signer = signer

    def has(self, purpose: str, key: VerifierKey) -> bool:
        if not self._signer.has(key):
            take_all(self._simulation, self._signer)
        return self._signer.has(key)


def take_all(simulation: Simulation, signer: Signer, lacking: str = "") -> None:
    """Let a signer have every private key that lies in the folder, but for the one that is `lacking`."""
    for purpose, names in simulation.folder.items():
        for name in names:
            key = simulation.key(name)
            vkey = make_vkey(key_name(ORIGIN, purpose), key.public_key)
            if vkey.vkey != lacking and not signer.has(vkey) and not signer.is_used(key.public_key):
                signer.take(purpose, key)


class Keeper:
    """Acts as long as the world lasts. `note` is the key document that is published, `keyring` what readers pin."""

    def __init__(self, simulation: Simulation) -> None:
        self.keyring: Keyring
        self._simulation = simulation
        self._bearers: dict[str, Bearer] = {}
        self._made = dict.fromkeys(PURPOSES, 2)
        self._names: dict[str, str] = {}  # by the hash of its raw key: a key that was promised
        self._document: KeyDocument
        self._root = root_vkey(ORIGIN, simulation.key("root").public_key).vkey
        self.versions: list[Keyring] = []  # of the documents before

    def promise(self, purpose: str) -> str:
        """Make the key that is announced next, and return what the ledger says of it."""
        name = f"{purpose} {self._made[purpose]}"
        self._made[purpose] += 1
        digest = sha256(self._simulation.key(name).public_key).hexdigest()
        self._names[digest] = name
        return digest

    def open(self, document: KeyDocument) -> None:
        self._show(document)

    def _show(self, document: KeyDocument) -> None:
        simulation = self._simulation
        self._document = document
        note = signed_key_document(document, simulation.key("root"))
        keyring = open_keyring(root=self._root, document=note)
        policy = None if simulation.witnesses is None else simulation.witnesses.policy
        self.keyring = Keyring(keyring.root, keyring.document, policy)

    def vkey(self, purpose: str, name: str) -> VerifierKey:
        return make_vkey(key_name(ORIGIN, purpose), self._simulation.key(name).public_key)

    # -- what it does -------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        simulation, rng = self._simulation, self._simulation.rng
        while not simulation.is_over:
            await asyncio.sleep(rng.uniform(0.5, 5))
            purpose = rng.choice(PURPOSES)
            if simulation.chance("rotate"):
                await self._rotate(purpose, "retire")
            if simulation.chance("disown"):
                await self._rotate(purpose, "compromise")
            if simulation.chance("odd_key"):
                await self._odd(purpose)
            if rng.random() < 0.6:
                self.publish()

    async def _rotate(self, purpose: str, verb: str) -> None:
        """Announce the next key where there is only one, let readers fetch the document, and end one of the two."""
        simulation, rng = self._simulation, self._simulation.rng
        if len(simulation.checker.in_force(purpose)) < 2:
            await self._announce(purpose)
            if rng.random() < 0.7:
                self.publish()
            await asyncio.sleep(rng.uniform(0, 4))
        found = simulation.checker.in_force(purpose)
        if len(found) > 1 and rng.random() < 0.8:
            await self.state(verb, purpose, parse_vkey(found[int(rng.random() < 0.2)].vkey))

    async def _announce(self, purpose: str, name: str = "") -> None:
        """Put the key that was promised into the folder, else a new one, and announce it."""
        simulation, rng = self._simulation, self._simulation.rng
        promised = simulation.checker.committed.get(purpose, "")
        name = name or self._names.get(promised) or self._names[self.promise(purpose)]
        simulation.put_key(purpose, name)
        following = self.promise(purpose) if rng.random() < 0.6 else None
        await self.state("announce", purpose, self.vkey(purpose, name), following)

    async def state(
        self,
        verb: str,
        purpose: str,
        key: VerifierKey,
        following: str | None = None,
        *,
        by: str = "",
        root: str = "root",
    ) -> None:
        """State it, and have an operator bring it; `by` somebody else, or signed by something else than the `root`."""
        simulation = self._simulation
        stated = KeyStatement(verb, purpose, key, following)
        note = signed_statement(stated, simulation.key(root), ORIGIN, simulation.genesis)
        by = by or simulation.rng.choice(simulation.config.operators)
        bearer = self._bearers.setdefault(by, Bearer(simulation, f"{by} for root", by))
        bearer.alias = f"{by}-for-root"
        bearer.is_odd = True
        await bearer.ask(f"key.{verb}", statement=note)

    async def _odd(self, purpose: str) -> None:
        """Ask for what must be refused, mostly."""
        simulation, rng = self._simulation, self._simulation.rng
        keys = simulation.checker.signing
        match rng.randrange(10):
            case 0:  # a key that has a role
                other = rng.choice([*simulation.config.agents, "op", "root", "enroller", "log", "receipt"])
                simulation.put_key(purpose, other)
                await self.state("announce", purpose, self.vkey(purpose, other))
            case 1:  # a key of this ledger, past or in force
                key = rng.choice(keys)
                await self.state("announce", key.purpose, parse_vkey(key.vkey))
            case 2:  # one that nobody was promised
                await self._announce(purpose, f"stray {purpose} {simulation.next_number()}")
            case 3 | 4:  # one too many
                await self._announce(purpose)
                await self._announce(purpose)
            case 5:  # the end of a key that never was, or is no more
                ended = [key.vkey for key in keys if key.ended_seq is not None and key.purpose == purpose]
                vkey = rng.choice([self.vkey(purpose, "nobody").vkey, *ended])
                await self.state(rng.choice(["retire", "compromise"]), purpose, parse_vkey(vkey))
            case 6:  # the end of every key
                for key in simulation.checker.in_force(purpose):
                    await self.state(rng.choice(["retire", "compromise"]), purpose, parse_vkey(key.vkey))
            case 7:  # by somebody who is no operator
                by, key = rng.choice(simulation.config.agents), rng.choice(keys)
                verb = rng.choice(["announce", "retire", "compromise"])
                await self.state(verb, key.purpose, parse_vkey(key.vkey), by=by)
            case _:
                await self._at_the_door(purpose)

    async def _at_the_door(self, purpose: str) -> None:
        """Bring what the door turns down, where there is one: behind it nobody could answer for it."""
        simulation, rng = self._simulation, self._simulation.rng
        if simulation.config.is_past_desk:
            return
        if rng.random() < 0.5:
            await self.state("announce", purpose, self.vkey(purpose, "of nobody"))
        else:
            await self.state("retire", purpose, self.vkey(purpose, "log"), root="nobody")

    # -- the document -------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publish what the ledger says of its keys, if that is something new."""
        simulation = self._simulation
        if simulation.violation is not None:
            return
        lines = [
            KeyLine(key.purpose, parse_vkey(key.vkey), key.from_size, key.ended_seq, key.status)
            for key in simulation.checker.signing
        ]
        finals = {
            line.key: final
            for line in lines
            if line.status == "compromised" and line.purpose == "log" and line.to_size is not None
            for final in [self._final(line.to_size)]
            if final is not None
        }
        if any(one.status == "compromised" and one.purpose == "log" and one.key not in finals for one in lines):
            return  # the tree that shows it is not signed yet
        document = next_document(self._document, lines, finals)
        if document is None:
            return
        self.versions.append(self.keyring)
        simulation.checker.count("key document")
        self._show(document)

    def _final(self, ended_seq: int) -> Final | None:
        """Return a tree that has the entry in it which disowned a key: the first witnessed one if there is any."""
        simulation = self._simulation
        for size, root, note in simulation.cosigned:
            if size > ended_seq:
                return Final(size, root, note)
        if simulation.signed_size > ended_seq:
            return Final(simulation.signed_size, simulation.checker.roots.at[simulation.signed_size])
        return None
