"""A whole ledger in memory for tests of the core: records in a dict, leaves in a list, no signer and no store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

from gateway.core import (
    admission,
    agent,
    apikey,
    asking,
    batch,
    breaking,
    handover,
    key,
    lease,
    operator,
    rules,
    scheme,
    session,
    wait,
)
from gateway.core.append import Answer, Batch, Command, Encode, GatewayStep, Imprint, build_batch
from gateway.core.draft import Head
from gateway.core.filing import terms_of
from gateway.core.opening import Opening, opened
from gateway.core.outcome import ActionDecide, Recorded, Rules
from gateway.core.parameters import Parameters
from gateway.core.record_codec import decode_record, encode_record
from gateway.core.record_keys import COLD_PREFIXES
from gateway.core.records import TIMED, Lease, Record, Session, Timed
from tests.core.requests import ENROLLER, NOW_MS, ORIGIN, Ask, add, anchor_text, did_of, key_of
from verifier.entries import Leaf, parse_leaf
from verifier.evidence import check_command, check_evidence
from verifier.note import VerifierKey, make_vkey
from verifier.wire import encode_canonical

DECIDERS: dict[str, ActionDecide] = {
    "lease.acquire": lease.acquire,
    "lease.renew": lease.renew,
    "lease.release": lease.release,
    "lease.transfer": handover.transfer,
    "lease.accept": handover.accept,
    "lease.break": breaking.break_lease,
    "wait.claim": wait.claim,
    "wait.cancel": wait.cancel,
    "batch.submit": batch.submit,
    "scheme.set": scheme.set_scheme,
    "operator.add": operator.add,
    "operator.remove": operator.remove,
    "key.announce": key.announce,
    "key.retire": key.retire,
    "key.compromise": key.compromise,
    "agent.add": agent.add,
    "agent.remove": agent.remove,
    "apikey.issue": apikey.issue,
    "apikey.revoke": apikey.revoke,
    "session.open": session.open_session,
    "session.beat": session.beat,
    "session.close": session.close,
    "coordination.admit": admission.admit,
    "approval.ask": asking.ask,
    "approval.give": asking.give,
    "approval.decline": asking.decline,
    "approval.withdraw": asking.withdraw,
    "rules.load": rules.load,
}
OPENED_MS = NOW_MS - 60_000


class Shelf:
    """Records as a store would keep them: every one is encoded and decoded again on its way in.

    What is near is found by walking through everything, in an order that changes: no decision may depend on it.
    """

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._dice = Random(len(__name__))

    def get(self, key: str) -> Record | None:
        return self.records.get(key)

    def near(self, term: str) -> list[str]:
        keys = [key for key, record in self.records.items() if term in terms_of(record)]
        self._dice.shuffle(keys)
        return keys

    def due(self, t_ms: int, limit: int) -> list[Timed]:
        timed = [r for r in self.records.values() if isinstance(r, TIMED) and is_running(r) and r.due_at_ms <= t_ms]
        return sorted(timed, key=lambda one: (one.due_at_ms, one.number))[:limit]

    def scan(self, prefix: str) -> Iterable[Record]:
        return [record for key, record in self.records.items() if key.startswith(prefix)]

    def pairs(self, prefix: str) -> Iterable[tuple[str, Record]]:
        return [(key[len(prefix) :], record) for key, record in self.records.items() if key.startswith(prefix)]

    def apply(self, batch: Batch) -> None:
        for place, record, _ in batch.changes:
            if record is None:
                self.records.pop(place, None)
            else:
                self.records[place] = decode_record(place, encode_record(record))


def vkey_of(purpose: str, name: str) -> VerifierKey:
    """Return the key of a name as the ledger knows a key of this purpose."""
    return make_vkey(ORIGIN if purpose == "log" else f"{ORIGIN}/{purpose}", key_of(name).public_key)


def is_running(timed: Timed) -> bool:
    """Say whether time still does something to it: nothing more to a session that has ended."""
    return not isinstance(timed, Session) or timed.is_open


class Book:
    """A ledger opened with one operator (`op`) and the agents A to D enrolled, unless said otherwise."""

    def __init__(
        self,
        agents: Sequence[str] = ("A", "B", "C", "D"),
        parameters: Parameters | None = None,
        following: Mapping[str, str] | None = None,
    ) -> None:
        """`following` names, by purpose, the keys that entry 0 commits to."""
        self.following = following or {}
        self.shelf = Shelf()
        self.leaves: list[bytes] = []
        self.head: Head | None = None
        self.parameters = parameters or Parameters()
        self.imprint = Imprint(ORIGIN, "0" * 64, "memory")
        self.rules: Rules | None = None  # what evaluates rule sets here
        self.run(OPENED_MS, steps=[opened(self.opening())])
        genesis = hashlib.sha256(b"\x00" + self.leaves[0]).hexdigest()
        self.imprint = replace(self.imprint, genesis=genesis)
        for name in agents:
            self.play(OPENED_MS, add("op", name, OPENED_MS))

    def opening(self) -> Opening:
        keys = {purpose: vkey_of(purpose, purpose).vkey for purpose in ("log", "receipt")}
        return Opening(
            root=vkey_of("root", "root").vkey,
            keys=tuple(f"{purpose} {vkey} 0 - active" for purpose, vkey in keys.items()),
            operators=(did_of("op"),),
            enroller=did_of(ENROLLER),
            authorities=("127.0.0.1:8443", "gateway.example"),
            is_public=True,
            is_dev=False,
            unicode_version="14.0.0",
            parameters=self.parameters,
            next_keys={
                purpose: hashlib.sha256(key_of(name).public_key).hexdigest() for purpose, name in self.following.items()
            },
        )

    def build(
        self,
        t_ms: int,
        *asks: Ask,
        steps: Sequence[GatewayStep] = (),
        encode: Encode = encode_canonical,
        epoch: int | None = None,
        anchors_known: bool = True,
        deciders: dict[str, ActionDecide] = DECIDERS,
    ) -> Batch:
        """Build a batch at `t_ms` and leave the ledger as it is."""
        commands = [Command(self.anchored(a).signed(), deciders[a.action], anchors_known) for a in asks]
        return build_batch(
            self.shelf,
            commands,
            self.head,
            batch_id=f"batch-{len(self.leaves)}",
            t_ms=t_ms,
            epoch=epoch if epoch is not None else (self.head.epoch if self.head else 0),
            imprint=self.imprint,
            parameters=self.parameters,
            encode=encode,
            steps=steps,
            rules=self.rules,
        )

    def anchored(self, one: Ask) -> Ask:
        """Return the request as a newcomer signs it who has pinned entry 0 of this ledger."""
        if one.anchor != anchor_text():
            return one
        return one.but(anchor=anchor_text(root=bytes.fromhex(self.imprint.genesis)))

    def run(self, t_ms: int, *asks: Ask, **how: Any) -> Batch:
        """Build a batch and make it the new end of the ledger."""
        batch = self.build(t_ms, *asks, **how)
        if not batch.leaves:  # hot records change with an entry only
            batch = replace(batch, changes=tuple(one for one in batch.changes if one[0].startswith(COLD_PREFIXES)))
        self.shelf.apply(batch)
        self.leaves += batch.leaves
        self.head = batch.head
        return batch

    def play(self, t_ms: int, one: Ask, **how: Any) -> Answer:
        """Run a batch of one command and return its answer."""
        return self.run(t_ms, one, **how).answers[0]

    def entry(self, t_ms: int, one: Ask, **how: Any) -> Leaf:
        """Run a batch of one command and return the leaf that answers it."""
        answer = self.play(t_ms, one, **how)
        assert isinstance(answer, Recorded), answer
        return self.leaf(answer.seq)

    def leaf(self, seq: int) -> Leaf:
        return parse_leaf(self.leaves[seq])

    def types(self, first: int = 0) -> list[str]:
        """Return the types of all entries from `first` on, as `noun.participle`."""
        return [parse_leaf(leaf).type.split("/")[1] for leaf in self.leaves[first:]]

    def leases(self) -> dict[str, Lease]:
        return {r.lease_id: r for r in self.shelf.records.values() if isinstance(r, Lease)}

    def snapshot(self) -> tuple[dict[str, Record], list[bytes], Head | None]:
        return deepcopy(self.shelf.records), list(self.leaves), self.head

    def audit(self) -> None:
        """Read every leaf back as a verifier would: chain, time, epoch, members, evidence."""
        previous, time_ms, epoch = bytes(32), 0, 0
        for seq, data in enumerate(self.leaves):
            leaf = parse_leaf(data)
            assert (leaf.seq, leaf.prev, leaf.is_known) == (seq, previous, True)
            assert leaf.time_ms >= time_ms and leaf.epoch >= epoch
            if leaf.entry_type.cause == "request":
                assert self.evidence_faults(leaf) == (), leaf.type
            previous, time_ms, epoch = hashlib.sha256(data).digest(), leaf.time_ms, leaf.epoch

    def evidence_faults(self, leaf: Leaf) -> tuple[tuple[str, str], ...]:
        """Return what is wrong with the evidence of a leaf; that of a command is its batch's."""
        if leaf.batch is not None:
            return check_command(leaf, self.leaf(leaf.batch[0]))
        return check_evidence(leaf, self.opening().authorities).faults


def own_members(leaf: Leaf) -> dict[str, Any]:
    """Return what an entry says beyond the common members."""
    common = {"type", "origin", "seq", "epoch", "timeMs", "prev", "genesis", "durability"}
    common |= {"actor", "principal", "onBehalfOf", "custody", "request"}
    return {name: value for name, value in leaf.value.items() if name not in common}
