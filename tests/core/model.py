"""A deliberately naive model of the rules, and the invariants read off the leaves alone.

Lists and loops, no keys, no indexes, nothing shared with the core: slow, and easy to believe.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from verifier.entries import Leaf

DAY_MS, RESET_MS = 86_400_000, 60_000


@dataclass
class Held:
    """One lease for ever: it stays in the list when it ends."""

    lease_id: str
    holder: str
    names: list[str]
    token: int
    granted_ms: int
    expires_ms: int
    ended: str = ""
    ended_ms: int = 0
    ended_seq: int = 0


@dataclass
class Model:
    """What the ledger should say next. Each method returns what the entry must hold, as a small dict."""

    seq: int
    token: int = 0
    holiday_ms: int = 0
    leases: list[Held] = field(default_factory=list)
    refusals: list[tuple[str, str, int]] = field(default_factory=list)
    forgiven: list[tuple[str, str, int]] = field(default_factory=list)

    def live(self) -> list[Held]:
        return [lease for lease in self.leases if not lease.ended]

    def end_ms(self, lease: Held) -> int:
        return lease.expires_ms if lease.expires_ms > self.holiday_ms else self.holiday_ms

    def sweep(self, t_ms: int) -> list[dict[str, Any]]:
        """End what is due, oldest first; return the entries."""
        due = [lease for lease in self.live() if self.end_ms(lease) <= t_ms]
        due.sort(key=lambda lease: (lease.expires_ms, lease.token))
        entries = []
        for lease in due:
            lease.ended, lease.ended_ms, lease.ended_seq = "expired", t_ms, self.seq
            entries.append({"type": "lease.expired", "leaseId": lease.lease_id, "expiresAtMs": lease.expires_ms})
            self.seq += 1
        return entries

    def waits_before(self, who: str, name: str, t_ms: int) -> int:
        """Count the unbroken run of refusals: each less than a minute before the next, none before a grant."""
        since = max((t for w, n, t in self.forgiven if (w, n) == (who, name)), default=-1)
        times = [t for w, n, t in self.refusals[since + 1 if since >= 0 else 0 :] if (w, n) == (who, name)]
        count, later = 0, t_ms
        for time_ms in reversed(times):
            if later - time_ms >= RESET_MS:
                break
            count, later = count + 1, time_ms
        return count

    def acquire(self, who: str, names: list[str], ttl_ms: int, t_ms: int) -> dict[str, Any]:
        names = sorted(names)
        blocking = [x for x in self.live() if x.holder != who and any(n in x.names for n in names)]
        if blocking:
            worst = blocking[0]
            for lease in blocking:
                later = self.end_ms(lease) > self.end_ms(worst)
                same_but_older = self.end_ms(lease) == self.end_ms(worst) and lease.token < worst.token
                if later or same_but_older:
                    worst = lease
            name = next(n for n in names if n in worst.names)
            waits = self.waits_before(who, name, t_ms)
            self.refusals.append((who, name, t_ms))
            wait_ms = 25
            for _ in range(waits):
                wait_ms = min(800, wait_ms * 2)
            retry_ms = wait_ms if waits < 8 else max(wait_ms, self.end_ms(worst) - t_ms)
            self.seq += 1
            return {
                "type": "lease.refused", "error": "lease_held", "holder": worst.holder, "conflicts": len(blocking),
                "conflict": worst.lease_id, "resource": name, "waitMs": wait_ms, "admitted": waits < 8,
                "retryAfterMs": retry_ms,
            }  # fmt: skip
        for lease in self.live():
            if lease.holder == who and lease.names == names:
                return self.prolong("lease.extended", lease, ttl_ms, t_ms)
        self.token = max(self.token + 1, t_ms * 1_000)
        lease = Held(f"L{self.seq}", who, names, self.token, t_ms, t_ms + ttl_ms)
        self.leases.append(lease)
        for name in names:
            self.forgiven.append((who, name, len(self.refusals) - 1))
        return self.entry("lease.granted", lease)

    def prolong(self, kind: str, lease: Held, ttl_ms: int, t_ms: int) -> dict[str, Any]:
        if t_ms + ttl_ms > lease.expires_ms:
            lease.expires_ms = t_ms + ttl_ms
        return self.entry(kind, lease)

    def entry(self, kind: str, lease: Held) -> dict[str, Any]:
        self.seq += 1
        return {
            "type": kind, "leaseId": lease.lease_id, "resources": lease.names, "fencingToken": lease.token,
            "expiresAtMs": lease.expires_ms,
        }  # fmt: skip

    def refuse(self, kind: str, error: str, **more: Any) -> dict[str, Any]:
        self.seq += 1
        return {"type": kind, "error": error, **more}

    def known(self, lease_id: str, t_ms: int) -> Held | None:
        for lease in self.leases:
            if lease.lease_id == lease_id and (not lease.ended or t_ms - lease.ended_ms < DAY_MS):
                return lease
        return None

    def renew(self, who: str, lease_id: str, ttl_ms: int, t_ms: int) -> dict[str, Any]:
        lease = self.known(lease_id, t_ms)
        if lease is None:
            return self.refuse("renewal.refused", "lease_unknown")
        if lease.holder != who:
            return self.refuse("renewal.refused", "lease_not_yours")
        if lease.ended:
            return self.refuse("renewal.refused", f"lease_{lease.ended}", endedSeq=lease.ended_seq)
        return self.prolong("lease.renewed", lease, ttl_ms, t_ms)

    def release(self, who: str, names: list[str], lease_id: str | None, t_ms: int, created: int) -> dict[str, Any]:
        names = sorted(names)
        if lease_id is None:
            for lease in self.live():
                if lease.holder == who and lease.names == names and lease.granted_ms < (created + 1) * 1_000:
                    return self.finish(lease, t_ms)
            return self.refuse("release.refused", "not_holder")
        found = self.known(lease_id, t_ms)
        if found is None:
            return self.refuse("release.refused", "lease_unknown")
        if found.holder != who:
            return self.refuse("release.refused", "lease_not_yours")
        if found.ended == "released":
            self.seq += 1
            return {"type": "release.repeated", "leaseId": lease_id, "endedSeq": found.ended_seq}
        if found.ended:
            return self.refuse("release.refused", "lease_expired", endedSeq=found.ended_seq)
        if found.names != names:
            return self.refuse("release.refused", "lease_mismatch")
        return self.finish(found, t_ms)

    def finish(self, lease: Held, t_ms: int) -> dict[str, Any]:
        lease.ended, lease.ended_ms, lease.ended_seq = "released", t_ms, self.seq
        self.seq += 1
        return {"type": "lease.released", "leaseId": lease.lease_id, "fencingToken": lease.token}


def facts(leaf: Leaf, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return from a leaf what the model has an opinion about, in the model's words."""
    conflict: Any = leaf.value.get("conflict", {})
    stampede: Any = leaf.value.get("stampede", {})
    words: dict[str, Any] = {
        **leaf.value, **stampede,
        "type": leaf.type.split("/")[1], "conflict": conflict.get("leaseId"), "resource": conflict.get("resource"),
    }  # fmt: skip
    seen = {name: words.get(name) for name in wanted}
    if "error" in leaf.value:
        seen["error"] = leaf.value["error"]
    return seen


class Reading:
    """The invariants of coordination.md 9, from the leaves alone, one leaf after the other."""

    def __init__(self) -> None:
        self.live: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, int] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.nonces: set[tuple[str, str]] = set()
        self.time_ms = 0
        self.holiday_ms = 0

    def read(self, leaf: Leaf) -> None:
        assert leaf.time_ms >= self.time_ms, "I6: time never goes back"
        self.time_ms = leaf.time_ms
        if leaf.request is not None:
            self._one_decision(leaf)
        match leaf.type.split("/")[1]:
            case "lease.granted":
                self._granted(leaf)
            case "lease.extended" | "lease.renewed":
                self._prolonged(leaf)
            case "lease.released":
                assert self.live.pop(leaf.text("leaseId"))["holder"] == leaf.actor, "only the holder releases"
            case "lease.expired":
                self._expired(leaf)
            case "lease.refused":
                self._refused(leaf)
            case "lease.holiday":
                self.holiday_ms = max(self.holiday_ms, leaf.number("untilMs"))

    def _one_decision(self, leaf: Leaf) -> None:
        assert leaf.request is not None
        key = (leaf.actor, leaf.request["idempotencyKey"])
        assert self.time_ms - self.keys.get(key, -DAY_MS) >= DAY_MS, "I5: one decision for each key in a day"
        self.keys[key] = self.time_ms
        nonce = (leaf.actor, leaf.request["signatureInput"].split('nonce="')[1].split('"')[0])
        assert nonce not in self.nonces, "no nonce is used twice"
        self.nonces.add(nonce)

    def _granted(self, leaf: Leaf) -> None:
        names: Any = leaf.value["resources"]
        for lease in self.live.values():
            clash = set(lease["names"]) & set(names)
            assert not clash or lease["holder"] == leaf.actor, "I1: one incompatible live grant for each resource"
        token = leaf.number("fencingToken")
        for name in names:
            assert token > self.tokens.get(name, 0), "I2: tokens rise for ever"
            self.tokens[name] = token
        self.live[leaf.text("leaseId")] = {
            "holder": leaf.actor, "names": names, "token": token, "ends": leaf.number("expiresAtMs"),
        }  # fmt: skip

    def _prolonged(self, leaf: Leaf) -> None:
        lease = self.live[leaf.text("leaseId")]
        assert (lease["holder"], lease["token"]) == (leaf.actor, leaf.number("fencingToken")), "same holder, same token"
        assert leaf.number("expiresAtMs") >= lease["ends"], "no lease is shortened"
        lease["ends"] = leaf.number("expiresAtMs")

    def _expired(self, leaf: Leaf) -> None:
        lease = self.live.pop(leaf.text("leaseId"))
        assert leaf.time_ms >= max(lease["ends"], self.holiday_ms), "I7: no expiry before its time"
        assert lease["ends"] == leaf.number("expiresAtMs")

    def _refused(self, leaf: Leaf) -> None:
        conflict: Any = leaf.value["conflict"]
        lease = self.live[conflict["leaseId"]]
        assert lease["holder"] == leaf.text("holder") != leaf.actor, "I10: a refusal names a real holder"
        assert conflict["resource"] in lease["names"] and conflict["fencingToken"] == lease["token"]
        assert leaf.request is not None
        body = json.loads(leaf.request["body"])
        assert conflict["resource"] in (body.get("resources") or [body["resource"]])
