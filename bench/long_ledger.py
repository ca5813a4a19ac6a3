"""A long ledger for the auditor's bench, made by the real core with real signatures, the same bytes every time.

An entry a second of log time, so that what is remembered for a day is the same for every length beyond that. Agents
take names, are refused, renew and give back; each request is anchored in a checkpoint that is a few entries old.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.load import agent_key
from gateway.actions import ACTIONS
from gateway.client.signing import Draft, sign_request
from gateway.core.append import Batch, Command, GatewayStep, Imprint, build_batch
from gateway.core.draft import Head
from gateway.core.intake import RawRequest, SignedRequest, intake
from gateway.core.opening import Opening, opened
from gateway.core.parameters import Parameters
from gateway.ledger.checkpoint import encode_leaf
from gateway.ledger.live import Live
from keys.signing import SigningKey
from verifier.checkpoint import checkpoint_text
from verifier.entries import ACTION_PATHS
from verifier.keyring import KeyDocument, KeyLine, Keyring, key_document_text, open_keyring
from verifier.merkle import leaf_hash
from verifier.note import Note, encode_note, make_vkey, signature_line
from verifier.replay.tree import Tree
from verifier.wire import JsonValue, encode_base64, encode_canonical

ORIGIN, AUTHORITY = "localhost/long", "localhost"
START_S = 1_800_000_000
AGENTS = 64
GROUP = 8  # agents that work in one batch
OPERATOR = agent_key(2_000_000)
LOG, RECEIPT, ROOT, ENROLLER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3, 4))


def vkeys() -> dict[str, str]:
    names = {"log": ORIGIN, "receipt": f"{ORIGIN}/receipt", "root": f"{ORIGIN}/root"}
    keys = {"log": LOG, "receipt": RECEIPT, "root": ROOT}
    return {purpose: make_vkey(names[purpose], keys[purpose].public_key).vkey for purpose in names}


@dataclass(slots=True)
class Maker:
    """The ledger so far: `leaves` are the last batch's."""

    live: Live
    tree: Tree
    head: Head | None = None
    genesis: bytes = bytes(32)
    time_s: int = START_S
    count: int = 0

    def run(self, *requests: SignedRequest, steps: tuple[GatewayStep, ...] = ()) -> Batch:
        """Decide requests at the present moment, and keep what follows."""
        decided = build_batch(
            self.live,
            [Command(request, ACTIONS[request.action].decide, True) for request in requests],  # type: ignore[arg-type]
            self.head,
            batch_id=str(self.tree.size),
            t_ms=self.time_s * 1_000,
            epoch=0,  # one gateway that never stops
            imprint=Imprint(ORIGIN, self.genesis.hex(), "local"),
            parameters=Parameters(),
            encode=encode_leaf,
            steps=steps,
        )
        self.live.apply(decided.changes)
        self.head = decided.head
        for leaf in decided.leaves:
            self.tree.append(leaf_hash(leaf))
        return decided

    def request(self, key: SigningKey, action: str, anchor: str, /, **members: JsonValue) -> SignedRequest:
        self.count += 1
        body = encode_canonical({"ledger": ORIGIN, "actorDid": key.did, **members})
        draft = Draft("POST", AUTHORITY, ACTION_PATHS[action], "", anchor, body, f"long-{self.count}")
        headers = sign_request(draft, key, created_s=self.time_s, nonce=f"{self.count:032d}", life_s=60)
        raw = RawRequest("POST", AUTHORITY, draft.path, "?", tuple(headers.items()), body)
        return intake(raw, origin=ORIGIN, authorities=frozenset({AUTHORITY}), action=action)

    @property
    def anchor(self) -> str:
        return f"{ORIGIN} {self.tree.size} {encode_base64(self.tree.root())}"


def batches(size: int) -> Iterator[tuple[bytes, ...]]:
    """Yield the leaves of the first `size` entries, batch by batch; the last may be longer than asked for."""
    maker = Maker(Live(), Tree())
    keys = {purpose: vkey for purpose, vkey in vkeys().items() if purpose != "root"}
    first = Opening(
        root=vkeys()["root"],
        keys=tuple(f"{purpose} {vkey} 0 - active" for purpose, vkey in keys.items()),
        operators=(OPERATOR.did,),
        enroller=ENROLLER.did,
        authorities=(AUTHORITY,),
        is_public=True,
        is_dev=False,
        unicode_version="14.0.0",
        parameters=Parameters(),
    )
    opening = maker.run(steps=(opened(first),))
    yield opening.leaves
    maker.genesis = leaf_hash(opening.leaves[0])
    agents = [agent_key(number) for number in range(1, AGENTS + 1)]
    for agent in agents:
        yield maker.run(maker.request(OPERATOR, "agent.add", maker.anchor, agent=agent.did)).leaves
    yield from _work(maker, agents, size)


def _work(maker: Maker, agents: list[SigningKey], size: int) -> Iterator[tuple[bytes, ...]]:
    """Each round has two batches of 16 entries: names are taken and refused, then renewed and given back."""
    for number in itertools.count():
        if maker.tree.size >= size:
            return
        takers = [agents[(number * GROUP + place) % AGENTS] for place in range(GROUP)]
        others = [agents[(number * GROUP + GROUP + place) % AGENTS] for place in range(GROUP)]
        names: list[list[JsonValue]] = [[f"repo:team-{place}/src/file-{number % 997}.py"] for place in range(GROUP)]
        anchor = maker.anchor
        asked = [(key, it) for keys in (takers, others) for key, it in zip(keys, names, strict=True)]
        yield maker.run(*(maker.request(key, "lease.acquire", anchor, resources=it) for key, it in asked)).leaves
        maker.time_s += 2 * GROUP
        leases = [f"L{maker.tree.size - 2 * GROUP + place}" for place in range(GROUP)]
        anchor = maker.anchor
        held = list(zip(takers, leases, strict=True))
        renewed = [maker.request(key, "lease.renew", anchor, leaseId=it) for key, it in held]
        given = [
            maker.request(key, "lease.release", anchor, resources=name, leaseId=it)
            for (key, it), name in zip(held, names, strict=True)
        ]
        yield maker.run(*renewed, *given).leaves
        maker.time_s += 2 * GROUP


def write(path: Path, size: int) -> None:
    """Write an export of the first `size` entries."""
    tree = Tree()
    with open(path, "wb") as file:
        file.write(f"tallystick-ledger/v1 {ORIGIN} {size}\n".encode())
        for leaf in itertools.islice(itertools.chain.from_iterable(batches(size)), size):
            tree.append(leaf_hash(leaf))
            file.write(leaf + b"\n")
        file.write(b"\n" + _signed(checkpoint_text(ORIGIN, size, tree.root()), ORIGIN, LOG))


def _signed(text: str, name: str, key: SigningKey) -> bytes:
    line = signature_line(make_vkey(name, key.public_key), key.sign(text.encode("utf-8")))
    return encode_note(Note(text, (line,)))


def pins() -> Keyring:
    """Return what a reader of this ledger pins."""
    genesis = leaf_hash(next(batches(1))[0])
    lines = tuple(
        KeyLine(purpose, make_vkey(ORIGIN if purpose == "log" else f"{ORIGIN}/{purpose}", key.public_key))
        for purpose, key in (("log", LOG), ("receipt", RECEIPT))
    )
    text = key_document_text(KeyDocument(ORIGIN, genesis, 1, None, lines))
    return open_keyring(root=vkeys()["root"], document=_signed(text, f"{ORIGIN}/root", ROOT))
