"""Many commands in one request: their entries stand together, and an atomic batch is all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from tests.sim.book import Lease
from tests.sim.names import scheme_of
from tests.sim.refusals import demand
from tests.sim.waiting import Waiting

Leaf = dict[str, Any]
TTL_MS = 30_000
KINDS = {
    "lease.acquire": {"lease.granted", "lease.extended", "lease.refused"},
    "lease.renew": {"lease.renewed", "lease.changed", "renewal.refused"},
    "lease.release": {"lease.released", "release.repeated", "release.refused"},
    "coordination.admit": {"admission.allowed", "admission.denied"},
}
REFUSED = {
    "lease.acquire": "lease.refused", "lease.renew": "renewal.refused", "lease.release": "release.refused",
    "coordination.admit": "admission.denied",
}  # fmt: skip
ASKED: dict[str, Leaf] = {
    "lease.acquire": {"mode": "write", "ttlMs": TTL_MS, "wait": False}, "lease.renew": {"ttlMs": TTL_MS},
    "lease.release": {"ttlMs": TTL_MS}, "coordination.admit": {"mode": "write", "cost": 0},
}  # fmt: skip
SAME = ("timeMs", "epoch", "actor", "principal", "onBehalfOf", "custody")


class Batches(Waiting):
    """Handlers of batches. An atomic one that is refused is played on a copy of the book up to that command."""

    raw: list[bytes]
    in_scope: Callable[[Leaf], None]

    def __init__(self) -> None:
        self.is_rehearsal = False
        self._open: tuple[Leaf, int] | None = None  # the batch whose entries come now, and which command is next

    # -- place --------------------------------------------------------------------------------------------------------

    def in_its_place(self, leaf: Leaf) -> None:
        """The entries of commands stand right behind their header, in order, and nowhere else."""
        told = leaf.get("request", {})
        if self._open is None:
            demand("batch" not in told, "batch", f"entry {leaf['seq']} answers a command of no batch")
            return
        header, index = self._open
        wanted = {"batch": header["seq"], "index": index}
        demand(told == wanted, "batch", f"entry {leaf['seq']} stands in the place of {wanted}")

    def out_of_its_place(self, leaf: Leaf, kind: str) -> None:
        """Go on to the next command."""
        if kind == "batch.received":
            self._open = (leaf, 0)
        elif self._open is not None:
            header, index = self._open
            self._open = (header, index + 1) if index + 1 < header["count"] else None

    def is_whole(self) -> None:
        demand(self._open is None, "batch", f"the batch of {self._open and self._open[0]['seq']} is not whole")

    def answers_command(self, leaf: Leaf) -> None:
        """Give the entry of a command what is in its header's evidence."""
        assert self._open is not None, "it is in its place"
        header, index = self._open
        seq, kind = leaf["seq"], leaf["type"].split("/")[1]
        leaf["signed"] = header["signed"]
        leaf["action"], leaf["body"] = _command(header, index)
        is_same = all(leaf.get(name) == header.get(name) for name in SAME)
        demand(is_same, "batch", f"entry {seq} is by another, or of another time")
        demand(kind in KINDS[leaf["action"]], "batch", f"entry {seq} does not answer {leaf['action']}")
        is_undone = header["isAtomic"] and "error" in leaf
        demand(not is_undone, "batch", f"entry {seq} is a refusal in a batch that is all or nothing")
        self.acts(leaf)

    acts: Callable[[Leaf], None]

    # -- headers ------------------------------------------------------------------------------------------------------

    def on_batch_received(self, leaf: Leaf) -> None:
        self._as_asked(leaf)

    def _as_asked(self, leaf: Leaf) -> None:
        body = leaf["body"]
        told = (leaf["count"], leaf["isAtomic"])
        wanted = (len(body["commands"]), body.get("isAtomic", False))
        demand(told == wanted, "batch", f"entry {leaf['seq']} says {told}, not {wanted}")

    def on_batch_refused(self, leaf: Leaf) -> None:
        """All before the command that is named would have been granted, this one is refused, nothing is left."""
        self._as_asked(leaf)
        demand(leaf["isAtomic"], "batch", f"entry {leaf['seq']} refuses a batch that is not atomic")
        book, self.book, self.is_rehearsal = self.book, deepcopy(self.book), True
        try:
            for index in range(leaf["index"]):
                self._rehearse(self._granted(leaf, index))
            self._rehearse(self._refused(leaf))
        finally:
            self.book, self.is_rehearsal = book, False
        if leaf["index"]:
            self.count("batch.refused by the second or a later command")

    def _rehearse(self, leaf: Leaf) -> None:
        self.in_scope(leaf)
        getattr(self, "on_" + leaf["kind"].replace(".", "_"))(leaf)

    def _refused(self, leaf: Leaf) -> Leaf:
        """Return the refusal of the command by which the batch failed, as it would stand by itself."""
        action, body = _command(leaf, leaf["index"])
        demand(leaf["action_of"] == action, "batch", f"entry {leaf['seq']} names another action")
        seq = leaf["seq"] + 1 + leaf["index"]
        asked = ASKED[action] | body | {"resources": names_of(body)}
        told = {name: value for name, value in leaf.items() if name not in ("count", "index", "isAtomic")}
        return asked | told | {
            "seq": seq, "kind": REFUSED[action], "type": f"tallystick/{REFUSED[action]}/1", "action": action,
            "body": body, "endsBefore": leaf["seq"],
        }  # fmt: skip

    def _granted(self, header: Leaf, index: int) -> Leaf:
        """Return the entry that a command would have had if it succeeded."""
        action, body = _command(header, index)
        leaf = {name: header[name] for name in SAME if name in header}
        leaf |= {"seq": header["seq"] + 1 + index, "signed": header["signed"], "action": action, "body": body}
        wanted = {
            "lease.acquire": self._acquired, "lease.renew": self._renewed, "lease.release": self._released,
            "coordination.admit": self._admitted,
        }[action](leaf)  # fmt: skip
        return leaf | wanted

    def _acquired(self, leaf: Leaf) -> Leaf:
        body, names = leaf["body"], names_of(leaf["body"])
        mode, ttl_ms = body.get("mode", "write"), body.get("ttlMs", TTL_MS)
        own = self.own(leaf["actor"], names, mode)
        if own is not None:
            return {"kind": "lease.extended", "resources": names, "mode": mode} | self._longer(own, ttl_ms)
        return {"kind": "lease.granted"} | self._new(leaf, names, mode, ttl_ms, None)

    def _renewed(self, leaf: Leaf) -> Leaf:
        body, own = leaf["body"], self.live(leaf["body"]["leaseId"])
        demand(own is not None, "batch", f"the batch that failed could not have come to {leaf['seq']}")
        assert own is not None
        mode, ttl_ms = body.get("mode", own.mode), body.get("ttlMs", TTL_MS)
        if mode == own.mode:
            return {"kind": "lease.renewed", "resources": own.names, "mode": mode} | self._longer(own, ttl_ms)
        new = self._new(leaf, own.names, mode, ttl_ms, own)
        return {"kind": "lease.changed", "fromLeaseId": own.lease_id, "fromSeq": own.seq} | new

    def _admitted(self, leaf: Leaf) -> Leaf:
        body = leaf["body"]
        asked = ASKED["coordination.admit"] | body | {"resources": names_of(body)}
        return {"kind": "admission.allowed"} | {
            name: asked[name] for name in asked if name not in ("ledger", "actorDid")
        }

    def _longer(self, own: Lease, ttl_ms: int) -> Leaf:
        return {
            "leaseId": own.lease_id, "fencingToken": own.token, "grantedAtMs": own.granted_ms, "grantSeq": own.seq,
            "ttlMs": ttl_ms, "holdUntilMs": own.hold_until_ms, "schemes": self._rows(own.names),
            "expiresAtMs": max(own.expires_ms, self.book.t_ms + ttl_ms),
        }  # fmt: skip

    def _new(self, leaf: Leaf, names: list[str], mode: str, ttl_ms: int, before: Lease | None) -> Leaf:
        book, t_ms = self.book, self.book.t_ms
        hold_ms = t_ms + min(book.scheme(name)["maxHoldMs"] for name in names)
        return {
            "resources": names, "mode": mode, "ttlMs": ttl_ms, "leaseId": f"L{leaf['seq']}",
            "fencingToken": max(book.token + 1, t_ms * 1_000), "expiresAtMs": t_ms + ttl_ms,
            "holdUntilMs": hold_ms if before is None else before.hold_until_ms, "schemes": self._rows(names),
        }  # fmt: skip

    def _rows(self, names: list[str]) -> list[Leaf]:
        schemes = [(name, self.book.scheme(f"{name}:x")) for name in sorted(set(map(scheme_of, names)))]
        return [{"class": one["class"], "isFolding": one["isFolding"], "name": name} for name, one in schemes]

    def _released(self, leaf: Leaf) -> Leaf:
        body, names, book = leaf["body"], names_of(leaf["body"]), self.book
        if "leaseId" in body:
            own = self.live(body["leaseId"])
            if own is None:
                return {"kind": "release.repeated", "leaseId": body["leaseId"], "resources": names}
        else:
            signed_ms = int(leaf["signed"].split("created=")[1].split(";")[0]) * 1_000
            own = next(
                (
                    one
                    for one in reversed(book.leases)
                    if one.actor == leaf["actor"] and book.keys(one.names) == book.keys(names)
                    and one.granted_ms < signed_ms + 1_000
                ),
                None,
            )  # fmt: skip
        demand(own is not None, "batch", f"the batch that failed could not have come to {leaf['seq']}")
        assert own is not None
        known = {"leaseId": own.lease_id, "fencingToken": own.token, "grantSeq": own.seq}
        return {"kind": "lease.released", "resources": names} | known


def names_of(body: Leaf) -> list[str]:
    """Return the names in a body, sorted."""
    return sorted(body.get("resources") or ([body["resource"]] if "resource" in body else []))


def _command(header: Leaf, index: int) -> tuple[str, Leaf]:
    """Return the action of a command, and its body as it would stand by itself."""
    body = header["body"]
    command = dict(body["commands"][index])
    action = command.pop("action")
    return action, {name: body[name] for name in ("actorDid", "ledger")} | command
