"""The cheating gateway: honest entries by the real core, a small algebra to falsify them, and keys to seal them anew.

It owns the log key, the receipt key and the enroller's, and so every byte that a gateway writes. It owns no key of an
agent, an operator, the root or a witness: whatever those signed it can only leave out, repeat, or put where it does not
belong. After a lie everything that it signs itself is valid again: places, chain, tree, checkpoint. What is left to
find it is the evidence of others, and deciding again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeAlias

from gateway.core.opening import Opening, start_steps
from gateway.core.records import Record
from gateway.core.witnessed import witnessed
from tests.core.crew import Crew
from tests.core.requests import Ask, add, did_of, state_key
from tests.verifier import maker
from verifier.checkpoint import parse_checkpoint

Json: TypeAlias = dict[str, Any]
COMMON = (
    "type", "origin", "seq", "epoch", "timeMs", "prev", "genesis", "durability", "actor", "principal", "onBehalfOf",
    "custody", "request",
)  # fmt: skip
_IDS = ("leaseId", "ticketId", "fromLeaseId", "aheadId", "askId")


# Keys of the ledger that come later, and of nobody.
LOG_2, LOG_3, RECEIPT_2, NOBODY = (maker.Key(number) for number in (41, 42, 43, 44))


class House(Crew):
    """A crew whose gateway has the keys of the maker: operators op and op2; agents A, B, C and D of op, X of op2.

    `log_keys` sign its checkpoints now, `lines` are those of the key document. `committed` is the log key that entry 0
    commits to.
    """

    def __init__(self, *, committed: maker.Key | None = None, **numbers: int) -> None:
        self.committed = committed
        self.log_keys = [maker.LOG]
        self.seen: dict[str, tuple[list[maker.Key], int]] = {}  # by note, who signed it when for the log
        self.lines = {
            purpose + key.did: ("key", purpose, spoken(key, purpose), "0", "-", "active")
            for purpose, key in (("log", maker.LOG), ("receipt", maker.RECEIPT))
        }
        super().__init__(**numbers)
        Crew.made.clear()  # the suite of the core audits what it made itself
        for name in "CD":
            assert self.tell(add("op", name)) == "agent.added"

    def opening(self) -> Opening:
        following = {} if self.committed is None else {"log": hashlib.sha256(self.committed.public).hexdigest()}
        lines = tuple(" ".join(line[1:]) for line in self.lines.values())
        return replace(super().opening(), root=maker.root_vkey(), keys=lines, next_keys=following)

    def start(self, away_ms: int) -> None:
        """The service stops now and comes back later."""
        before_ms = self.t_ms
        self.t_ms += away_ms
        assert self.head is not None
        steps = start_steps("start", is_clean=True, before_ms=before_ms)
        self.run(self.t_ms, steps=steps, epoch=self.head.epoch + 1)

    def state(
        self, verb: str, key: maker.Key, purpose: str = "log", *, by: maker.Key = maker.ROOT, genesis: str = ""
    ) -> str:
        """Return a statement of the root about a key."""
        last = " -" if verb == "announce" else ""
        head = f"tallystick-key/v1\norigin {maker.ORIGIN}\ngenesis {genesis or self.imprint.genesis}\n"
        text = f"{head}{verb} {purpose} {spoken(key, purpose)}{last}\n"
        return f"{text}\n{by.note_line(f'{maker.ORIGIN}/root', text)}"

    def announce(self, key: maker.Key, purpose: str = "log") -> None:
        """The root and op put a key in force."""
        self._brought("announce", key, purpose)
        line = ("key", purpose, spoken(key, purpose), str(len(self.leaves)), "-", "active")
        self.lines[purpose + key.did] = line
        if purpose == "log":
            self.log_keys.append(key)

    def retire(self, key: maker.Key, purpose: str = "log") -> None:
        """The root and op take a key out of force."""
        self._brought("retire", key, purpose)
        line = self.lines[purpose + key.did]
        self.lines[purpose + key.did] = (*line[:4], str(len(self.leaves) - 1), "retired")
        if purpose == "log":
            self.log_keys.remove(key)

    def _brought(self, verb: str, key: maker.Key, purpose: str) -> None:
        word = self.tell(state_key("op", verb, self.state(verb, key, purpose)))
        assert word == {"announce": "key.announced", "retire": "key.retired"}[verb]

    def document(self, version: int = 1, *more: str) -> bytes:
        """Return the key document that shows the keys as they are; `more` are lines beside them."""
        lines = [*(" ".join(line) for line in self.lines.values()), *more]
        return sealed(self.leaves).keys(version, lines)

    def witness(self, behind_ms: int = 0) -> None:
        """Two witnesses have seen what there is, by clocks that are `behind_ms` behind, and that goes on record."""
        cosigned_s = (self.t_ms - behind_ms) // 1_000
        note = checkpoint(self.leaves, self.log_keys, cosigned_s)
        self.seen[note.decode()] = list(self.log_keys), cosigned_s
        self.run(self.t_ms, steps=[witnessed(note, parse_checkpoint(note))])

    def own_lease(self, name: str = "A") -> str:
        """Return the id of the only lease of an actor."""
        [found] = [lease.lease_id for lease in self.leases().values() if lease.holder == did_of(name)]
        return found

    def own_ticket(self, name: str) -> str:
        """Return the id of the only ticket of an actor."""
        [found] = [ticket.ticket_id for ticket in self.tickets().values() if ticket.actor == did_of(name)]
        return found

    def rules_digest(self) -> str:
        """Return what approvals name: the digest of the rules in force."""
        record: Any = self.shelf.records.get("ledger/rules")
        return "0" * 64 if record is None else str(record.digest)

    def last(self) -> Json:
        value: Json = json.loads(self.leaves[-1])
        return value


Story: TypeAlias = Callable[[], House]


def fresh(story: Story) -> House:
    """Return the house of a story as it is at its end, to be falsified; the story is played once in a process."""
    house = _played(story)
    return deepcopy(house, {id(house.rules): house.rules})  # the engine of rules is no state, and can't be copied


@cache
def _played(story: Story) -> House:
    return story()


def spoken(key: maker.Key, purpose: str) -> str:
    """Return the vkey of a key of the ledger."""
    return key.vkey(maker.ORIGIN if purpose == "log" else f"{maker.ORIGIN}/{purpose}")


def checkpoint(leaves: list[bytes], log_keys: list[maker.Key], cosigned_s: int | None = None) -> bytes:
    """Return a checkpoint of these leaves with a line of each key, perhaps with cosignatures of w1 and w2."""
    text = f"{maker.ORIGIN}\n{len(leaves)}\n{maker.b64(sealed(leaves).root())}\n"
    lines = [key.note_line(maker.ORIGIN, text) for key in log_keys]
    if cosigned_s is not None:
        lines += [maker.WITNESSES[name].cosignature(name, text, cosigned_s) for name in ("w1", "w2")]
    return (text + "\n" + "".join(lines)).encode()


@dataclass
class Telling:
    """The entries of an honest ledger, open to be falsified. Places are indices of `entries`, as they stand now."""

    house: House
    entries: list[Json] = field(default_factory=list)
    held: bytes | None = None  # a checkpoint that a reader got before
    log_keys: list[maker.Key] = field(default_factory=list)  # that sign the last checkpoint
    document: bytes = b""  # what the reader takes for the newest key document
    _read: int = 0

    def __post_init__(self) -> None:
        self.read()
        self.log_keys, self.document = list(self.house.log_keys), self.house.document()

    def read(self) -> int:
        """Take in what the house has written since; return the place of the first of it."""
        mark = len(self.entries)
        self.entries += [json.loads(leaf) for leaf in self.house.leaves[self._read :]]
        self._read = len(self.house.leaves)
        return mark

    # --- looking ---

    def at(self, kind: str, nth: int = -1) -> int:
        """Return the place of the nth entry of a type (`noun.participle`), the last unless said otherwise."""
        return [n for n, entry in enumerate(self.entries) if entry["type"].split("/")[1] == kind][nth]

    def own(self, place: int) -> Json:
        """Return what an entry says beside the common members."""
        return {name: value for name, value in self.entries[place].items() if name not in COMMON}

    # --- the algebra ---

    def edit(self, place: int, **members: Any) -> int:
        """Replace members of an entry; None leaves one out."""
        entry = self.entries[place]
        entry.update(members)
        self.entries[place] = {name: value for name, value in entry.items() if value is not None}
        return place

    def turn(self, place: int, kind: str, **members: Any) -> int:
        """Answer the same request otherwise: another type, and members of its own."""
        common = {name: value for name, value in self.entries[place].items() if name in COMMON}
        self.entries[place] = common | {"type": f"tallystick/{kind}/1"} | members
        return place

    def drop(self, *places: int) -> int:
        """Leave entries out; return where the first of them stood."""
        for place in sorted(places, reverse=True):
            del self.entries[place]
        return min(places)

    def cut(self, size: int) -> int:
        del self.entries[size:]
        return size - 1

    def swap(self, one: int, other: int) -> int:
        """Let two entries change places: each gets the time and the epoch of the place it comes to."""
        first, second = self.entries[one], self.entries[other]
        times = [{name: entry[name] for name in ("timeMs", "epoch")} for entry in (first, second)]
        self.entries[one], self.entries[other] = second | times[0], first | times[1]
        return one

    def again(self, place: int, to: int | None = None) -> int:
        """Write an entry a second time, at the end unless said otherwise."""
        to = len(self.entries) if to is None else to
        self.entries.insert(to, json.loads(json.dumps(self.entries[place])) | {"seq": -1})
        self.edit(to, timeMs=max(self.entries[to]["timeMs"], self.entries[to - 1]["timeMs"]))
        return to

    def invent(self, kind: str, to: int | None = None, **members: Any) -> int:
        """Write an entry that the gateway causes itself, at the end unless said otherwise."""
        to = len(self.entries) if to is None else to
        common = {name: self.entries[to - 1][name] for name in COMMON if name in self.entries[to - 1]}
        common |= dict.fromkeys(("actor", "principal", "onBehalfOf"), "gateway")
        common = {name: value for name, value in common.items() if name not in ("custody", "request")}
        self.entries.insert(to, common | {"type": f"tallystick/{kind}/1", "seq": -1} | members)
        return to

    def answer(self, ask: Ask, kind: str, **members: Any) -> int:
        """Write an entry with a genuine request as its evidence, at the end; `members` may replace common ones."""
        evidence, text = ask.headers(), ask.body.decode()
        request = {
            "method": ask.method,
            "authority": ask.authority,
            "path": ask.path,
            "query": ask.query,
            "contentType": ask.content_type,
            "idempotencyKey": ask.idempotency_key,
            "anchor": ask.anchor,
            "body": text,
            "signatureInput": evidence["signature-input"],
            "signature": evidence["signature"].split(":")[1],
        }
        place = self.invent(kind, request=request)
        who = self.house.last() if ask.key.did == self.house.last()["actor"] else _who(self.house, ask.key.did)
        sides = {name: who[name] for name in ("actor", "principal", "onBehalfOf")}
        return self.edit(place, **{"timeMs": self.house.t_ms, **sides, **members})

    def sign(self, ask: Ask) -> Ask:
        """Return a request as its signer signs it now, who has pinned entry 0."""
        return self.house.anchored(self.house.now(ask))

    # --- a core that believes something else ---

    def forget(self, *prefixes: str) -> None:
        """The gateway's records with these beginnings are gone."""
        gone = [key for key in self.house.shelf.records if key.startswith(prefixes)]
        assert gone, prefixes
        for key in gone:
            del self.house.shelf.records[key]

    def record(self, key: str) -> Any:
        return self.house.shelf.records[key]

    def pretend(self, key: str, **changes: Any) -> None:
        """A record of the gateway says something else."""
        self.copy(key, key, **changes)

    def copy(self, key: str, other: str, **changes: Any) -> None:
        """The gateway has a record `other` like another one but for `changes`."""
        self.house.shelf.records[other] = self.record(key)._replace(**changes)

    def recall(self, records: Mapping[str, Record]) -> None:
        """The gateway goes on from records of an earlier moment."""
        self.house.shelf.records.update(records)

    def go_on(self, act: Callable[[House], object]) -> int:
        """Let the real core act on what it now believes; return the place of the first entry that comes of it."""
        act(self.house)
        return self.read()

    # --- sealing ---

    def leaves(self) -> list[bytes]:
        """Return the bytes of all entries: places, what the gateway cites by place, chain and genesis made good."""
        moved = {entry["seq"]: place for place, entry in enumerate(self.entries) if entry["seq"] >= 0}
        previous, genesis, leaves = maker.ZEROS, maker.ZEROS, list[bytes]()
        for place, entry in enumerate(self.entries):
            whole = _cited(entry, moved) | {"seq": place, "prev": previous, "genesis": genesis}
            if whole.get("checkpoint") in self.house.seen:
                whole |= self._seen_anew(whole, leaves)
            leaves.append(maker.canonical(whole))
            previous = hashlib.sha256(leaves[-1]).hexdigest()
            genesis = genesis if place else maker.leaf_hash(leaves[0]).hex()
        return leaves

    def _seen_anew(self, entry: Json, leaves: list[bytes]) -> Json:
        """Return what a record of witnesses says when they saw these leaves: a lie is told before they see any."""
        log_keys, cosigned_s = self.house.seen[entry["checkpoint"]]
        note = checkpoint(leaves[: entry["size"]], log_keys, cosigned_s).decode()
        is_root_told = entry["root"] == entry["checkpoint"].split("\n")[2]
        return {"checkpoint": note, **({"root": note.split("\n")[2]} if is_root_told else {})}


def _who(house: House, did: str) -> Json:
    """Return how the entries of an actor name it, by the last one it has; of a stranger as of an agent of op."""
    found = [entry for entry in map(json.loads, house.leaves) if entry["actor"] == did]
    return found[-1] if found else {"actor": did, "principal": did, "onBehalfOf": did_of("op")}


def _cited(value: Any, moved: Mapping[int, int]) -> Any:
    """Return a value with the places it cites as they are now; what others signed stays as they signed it."""
    if isinstance(value, list):
        return [_cited(part, moved) for part in value]
    if not isinstance(value, dict) or "signature" in value:
        return value
    return {name: _cited_member(name, part, moved) for name, part in value.items()}


def _cited_member(name: str, value: Any, moved: Mapping[int, int]) -> Any:
    if isinstance(value, int) and (name.endswith("Seq") or name == "batch"):
        return moved.get(value, value)
    if name in _IDS and isinstance(value, str) and value[1:].isdecimal():
        return f"{value[0]}{moved.get(int(value[1:]), value[1:])}"
    return _cited(value, moved)


@dataclass(frozen=True)
class Lie:
    """`tell` falsifies the honest ledger of `story` and returns the place where it must be found, -1 for nowhere.

    The finding is `code`, which breaks `clause` of docs/protocol.md; `also` are codes that necessarily come with it.
    `did` says in a sentence what the gateway did.
    """

    name: str
    did: str
    story: Story
    tell: Callable[[Telling], int]
    code: str
    clause: str
    also: tuple[str, ...] = ()
    exit_code: int = 1
    is_tiles: bool = False  # written as a tile directory
    has_policy: bool = False  # the reader has pinned witnesses, two of three
    has_rules: bool = False  # the reader asks the rules again
    why_open: str = ""  # why the auditor does not find it yet


def tiles(leaves: list[bytes], checkpoint: bytes) -> dict[str, bytes]:
    """Return the files of a tile directory of at most 256 entries, by path."""
    bundle = b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in leaves)
    assert len(leaves) <= 256
    part = "tile/entries/000" if len(leaves) == 256 else f"tile/entries/000.p/{len(leaves)}"
    return {"checkpoint": checkpoint, part: bundle}


def sealed(leaves: list[bytes]) -> maker.Ledger:
    """Return a ledger of these leaves that the gateway's own keys can sign."""
    return maker.Ledger(leaves=leaves)
