"""A deliberately naive model of the rules, and the invariants read off the leaves alone.

Lists and loops, no keys, no indexes, nothing shared with the core: slow, and easy to believe. Nobody stands in line
here; tests/core/test_queue_model.py has a model of lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from verifier.entries import Leaf

DAY_MS, HOUR_MS, RESET_MS, EDGE_MS = 86_400_000, 3_600_000, 60_000, 10_000
IDLE_MS = 6 * DAY_MS  # sessions of these histories do not end
HELD_MAX = 6  # names that one principal may hold, so that a short history reaches the bound
STRENGTH = ["read", "append", "write", "delete"]


@dataclass(frozen=True)
class Scheme:
    """How names of one scheme behave; `delay_ms` keeps others out after a bad end."""

    kind: str = "exclusive"
    folds: bool = False
    unicode: bool = False
    delay_ms: int = 0


def overlap(a: str, b: str) -> bool:
    """Two keys: the same, or one ends with ** and the other begins with what stands before that."""
    first, second = (key.replace(":", "/", 1).split("/") for key in (a, b))
    for wide, narrow in ((first, second), (second, first)):
        if wide[-1] == "**" and narrow[: len(wide) - 1] == wide[:-1]:
            return True
    return first == second


def share(kind: str, mode: str, other: str) -> bool:
    if kind == "read-safe":
        return (mode, other) == ("read", "read")
    return kind == "append-only" and mode in ("read", "append") and other in ("read", "append")


@dataclass
class Held:
    """One lease for ever: it stays in the list when it ends. `offer` is to whom, by which entry, by an operator?"""

    lease_id: str
    holder: str
    names: list[str]
    mode: str
    token: int
    granted_ms: int
    expires_ms: int
    hold_ms: int
    giver: str = ""
    giver_ms: int = 0
    offer: tuple[str, int] | None = None
    ended: str = ""
    ended_ms: int = 0
    ended_seq: int = 0


@dataclass
class Closed:
    """What a lease leaves behind that ended badly."""

    holder: str
    names: list[str]
    mode: str
    seq: int
    ends_ms: int


@dataclass
class Score:
    """One principal's trust, the entry that changed it last, and what the running window has earned."""

    trust: int = 50_000
    seq: int | None = None
    since_ms: int = 0
    gained: int = 0


@dataclass
class Model:
    """What the ledger should say next. Each method returns what the entry must hold, as a small dict."""

    seq: int
    schemes: dict[str, Scheme] = field(default_factory=dict)
    operators: tuple[str, ...] = ()
    token: int = 0
    holiday_ms: int = 0
    leases: list[Held] = field(default_factory=list)
    closed: list[Closed] = field(default_factory=list)
    scores: dict[str, Score] = field(default_factory=dict)
    edges: dict[str, tuple[str, str, int]] = field(default_factory=dict)  # name, mode, until: why somebody waits
    refusals: list[tuple[str, str, int]] = field(default_factory=list)
    forgiven: list[tuple[str, str, int]] = field(default_factory=list)
    broken: dict[int, tuple[int, int]] = field(default_factory=dict)  # token: entry, time
    behind: dict[str, str] = field(default_factory=dict)  # by session, its agent; an agent is behind itself

    # --- looking ------------------------------------------------------------------------------------------------------

    def principal(self, who: str) -> str:
        return self.behind.get(who, who)

    def scheme(self, name: str) -> Scheme:
        return self.schemes.get(name.split(":")[0], Scheme())

    def key(self, name: str) -> str:
        folded = "".join(c.lower() if c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" else c for c in name)
        return folded if self.scheme(name).folds else name

    def keys(self, names: list[str]) -> set[str]:
        return {self.key(name) for name in names}

    def clash(self, names: list[str], mode: str, other: Held | Closed) -> tuple[str, str] | None:
        """Return the least name that can't stand beside `other`, and the least name of that which it overlaps."""
        for name in sorted(names):
            for theirs in sorted(other.names):
                if overlap(self.key(name), self.key(theirs)) and not share(self.scheme(name).kind, mode, other.mode):
                    return name, theirs
        return None

    def live(self) -> list[Held]:
        return [lease for lease in self.leases if not lease.ended]

    def end_ms(self, lease: Held) -> int:
        return lease.expires_ms if lease.expires_ms > self.holiday_ms else self.holiday_ms

    def in_the_way(self, who: str, names: list[str], mode: str) -> list[Held]:
        return [x for x in self.live() if x.holder != who and self.clash(names, mode, x)]

    def closed_to(self, who: str, names: list[str], mode: str, t_ms: int) -> list[Closed]:
        ends = [x for x in self.closed if t_ms < max(x.ends_ms, self.holiday_ms)]
        return [x for x in ends if x.holder != who and self.clash(names, mode, x)]

    def known(self, lease_id: str, t_ms: int) -> Held | None:
        for lease in self.leases:
            if lease.lease_id == lease_id and (not lease.ended or t_ms - lease.ended_ms < DAY_MS):
                return lease
        return None

    def held_names(self, who: str, t_ms: int) -> int:
        """Count the names of the leases of all its keys, and of what they left behind that still keeps others out."""
        kept: list[Held | Closed] = [*self.live(), *(x for x in self.closed if t_ms < max(x.ends_ms, self.holiday_ms))]
        return sum(len(x.names) for x in kept if self.principal(x.holder) == self.principal(who))

    # --- telling ------------------------------------------------------------------------------------------------------

    def entry(self, kind: str, lease: Held, t_ms: int, **more: Any) -> dict[str, Any]:
        self.seq += 1
        return {
            "type": kind, "leaseId": lease.lease_id, "resources": lease.names, "fencingToken": lease.token,
            "mode": lease.mode, "expiresAtMs": lease.expires_ms, "holdUntilMs": lease.hold_ms,
            "endsIfIdleAtMs": min(lease.expires_ms, t_ms + IDLE_MS) if lease.holder in self.behind else None,
            "principal": self.principal(lease.holder), **more,
        }  # fmt: skip

    def refuse(self, kind: str, error: str, **more: Any) -> dict[str, Any]:
        self.seq += 1
        return {"type": kind, "error": error, **more}

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

    def advice(self, who: str, name: str, rest_ms: int, t_ms: int) -> dict[str, Any]:
        who = self.principal(who)
        waits = self.waits_before(who, name, t_ms)
        self.refusals.append((who, name, t_ms))
        wait_ms = 25
        for _ in range(waits):
            wait_ms = min(800, wait_ms * 2)
        retry_ms = wait_ms if waits < 8 else max(wait_ms, rest_ms)
        return {"waitMs": wait_ms, "admitted": waits < 8, "retryAfterMs": retry_ms}

    def told(self, names: list[str], mode: str, lease: Held) -> dict[str, Any]:
        name, theirs = self.clash(names, mode, lease) or ("", "")
        return {"holder": lease.holder, "conflict": lease.lease_id, "resource": name, "heldAs": theirs}

    def denied(
        self, kind: str, who: str, names: list[str], mode: str, t_ms: int, blocking: list[Held], may_circle: bool
    ) -> dict[str, Any] | None:
        """Refuse because of leases or of what they left behind, or return None."""
        shut = self.closed_to(who, names, mode, t_ms)
        if blocking:
            worst = min(blocking, key=lambda x: (-self.end_ms(x), x.token))
            told = self.told(names, mode, worst)
            rows = self.circles(who, names, mode, t_ms) if may_circle else []
            self.edges[who] = (told["resource"], mode, t_ms + EDGE_MS)
            told |= self.advice(who, told["resource"], self.end_ms(worst) - t_ms, t_ms) | {"conflicts": len(blocking)}
            if not rows:
                return self.refuse(kind, "lease_held", **told)
            order = sorted({row["resource"] for row in rows})
            circle = {"cycle": rows, "waitingOn": rows[1]["resource"], "acquireOrder": order}
            return self.refuse(kind, "deadlock", **told, **circle)
        if shut:
            last = min(shut, key=lambda x: (-max(x.ends_ms, self.holiday_ms), x.seq))
            until_ms = max(last.ends_ms, self.holiday_ms)
            told = self.advice(who, sorted(names)[0], 0, t_ms)
            told["retryAfterMs"] = max(told["waitMs"], until_ms - t_ms)
            told |= {"holder": last.holder, "delayUntilMs": until_ms, "endedSeq": last.seq}
            return self.refuse(kind, "lock_delayed", **told)
        return None

    def circles(self, who: str, names: list[str], mode: str, t_ms: int) -> list[dict[str, Any]]:
        """Return the circle that a wait of `who` would close: depth first, lowest token first, each actor once."""
        if not any(x.holder == who for x in self.live()):
            return []
        seen = {who}

        def search(actor: str, wanted: list[str], in_mode: str) -> list[dict[str, Any]]:
            for lease in sorted(self.in_the_way(actor, wanted, in_mode), key=lambda x: x.token):
                name, _ = self.clash(wanted, in_mode, lease) or ("", "")
                row = {"actor": actor, "resource": name, "mode": in_mode, "fencingToken": lease.token}
                if lease.holder == who:
                    return [row]
                if lease.holder not in seen:
                    seen.add(lease.holder)
                    waits = self.edges.get(lease.holder)
                    rest = search(lease.holder, [waits[0]], waits[1]) if waits and t_ms < waits[2] else []
                    if rest:
                        return [row, *rest]
            return []

        return search(who, names, mode)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def sweep(self, t_ms: int) -> list[dict[str, Any]]:
        """End what is due, oldest first; return the entries."""
        due = [lease for lease in self.live() if self.end_ms(lease) <= t_ms]
        due.sort(key=lambda lease: (lease.expires_ms, lease.token))
        entries = []
        for lease in due:
            losers = [self.principal(lease.holder)]
            if lease.giver and lease.expires_ms <= lease.giver_ms:
                losers.append(self.principal(lease.giver))
            rows = [row for did in dict.fromkeys(losers) for row in self.moved(did, -5_000)]
            delay = self.shut(lease, t_ms)
            self.close(lease, "expired", t_ms)
            told: dict[str, Any] = {"type": "lease.expired", "leaseId": lease.lease_id, "trust": rows or None}
            entries.append(told | {"expiresAtMs": lease.expires_ms, "delayUntilMs": delay, "resources": lease.names})
            self.seq += 1
        return entries

    def shut(self, lease: Held, t_ms: int) -> int | None:
        delay_ms = max(self.scheme(name).delay_ms for name in lease.names)
        if not delay_ms:
            return None
        self.closed.append(Closed(lease.holder, lease.names, lease.mode, self.seq, t_ms + delay_ms))
        return t_ms + delay_ms

    def pass_on(self, t_ms: int) -> None:
        """Forget after a batch with entries what is over by then: no later holiday brings it back."""
        self.closed = [x for x in self.closed if t_ms < max(x.ends_ms, self.holiday_ms)]

    def moved(self, did: str, change: int) -> list[dict[str, Any]]:
        score = self.scores.setdefault(did, Score())
        after = min(100_000, max(0, score.trust + change))
        row = {"did": did, "change": after - score.trust, "after": after}
        if after == score.trust:
            return []
        if score.seq is not None:
            row["previousSeq"] = score.seq
        score.trust, score.seq = after, self.seq
        return [row]

    def earned(self, lease: Held, t_ms: int) -> list[dict[str, Any]]:
        """A release after a second of holding: 500, at most 1,000 within an hour of the first."""
        score = self.scores.setdefault(self.principal(lease.holder), Score())
        if t_ms - lease.granted_ms < 1_000:
            return []
        if score.gained == 0 or t_ms - score.since_ms >= HOUR_MS:
            gained, since_ms = 0, t_ms
        else:
            gained, since_ms = score.gained, score.since_ms
        rows = self.moved(self.principal(lease.holder), min(500, 1_000 - gained))
        if rows:
            score.gained, score.since_ms = gained + rows[0]["change"], since_ms
        return rows

    def close(self, lease: Held, how: str, t_ms: int) -> None:
        lease.ended, lease.ended_ms, lease.ended_seq, lease.offer = how, t_ms, self.seq, None

    def begin(self, kind: str, lease: Held, **more: Any) -> dict[str, Any]:
        self.token = lease.token = max(self.token + 1, lease.granted_ms * 1_000)
        self.leases.append(lease)
        self.edges.pop(lease.holder, None)
        for name in lease.names:
            self.forgiven.append((self.principal(lease.holder), name, len(self.refusals) - 1))
        return self.entry(kind, lease, lease.granted_ms, **more)

    def unfit(self, names: list[str], mode: str) -> str | None:
        if any(not name.isascii() and not self.scheme(name).unicode for name in names):
            return "name_not_allowed"
        if any(self.scheme(name).kind == "append-only" and mode in ("write", "delete") for name in names):
            return "mode_not_allowed"
        return None

    def acquire(self, who: str, t_ms: int, names: list[str], ttl_ms: int, mode: str) -> dict[str, Any]:
        names = sorted(names)
        why = self.unfit(names, mode)
        if why is not None:
            return self.refuse("lease.refused", why)
        own = [x for x in self.live() if (x.holder, x.mode) == (who, mode) and self.keys(x.names) == self.keys(names)]
        if own:
            return self.prolong("lease.extended", own[-1], ttl_ms, t_ms) | {"resources": names}
        if self.held_names(who, t_ms) + len(names) > HELD_MAX:
            return self.refuse("lease.refused", "too_many_held")
        blocking = self.in_the_way(who, names, mode)
        denied = self.denied("lease.refused", who, names, mode, t_ms, blocking, True)
        if denied is not None:
            return denied
        lease = Held(f"L{self.seq}", who, names, mode, 0, t_ms, t_ms + ttl_ms, t_ms + HOUR_MS)
        return self.begin("lease.granted", lease)

    def prolong(self, kind: str, lease: Held, ttl_ms: int, t_ms: int) -> dict[str, Any]:
        if t_ms + ttl_ms > lease.expires_ms:
            lease.expires_ms = t_ms + ttl_ms
        return self.entry(kind, lease, t_ms)

    def late(self, kind: str, who: str, lease_id: str, t_ms: int) -> dict[str, Any] | Held:
        """Return a live lease of `who`, or the refusal of a call by its id."""
        lease = self.known(lease_id, t_ms)
        if lease is None:
            return self.refuse(kind, "lease_unknown", endedSeq=None)
        if lease.holder != who:
            return self.refuse(kind, "lease_not_yours", endedSeq=None)
        return self.refuse(kind, f"lease_{lease.ended}", endedSeq=lease.ended_seq) if lease.ended else lease

    def renew(self, who: str, t_ms: int, lease_id: str, ttl_ms: int, mode: str | None) -> dict[str, Any]:
        lease = self.late("renewal.refused", who, lease_id, t_ms)
        if isinstance(lease, dict):
            return lease
        if mode is None or mode == lease.mode:
            return self.prolong("lease.renewed", lease, ttl_ms, t_ms)
        why = self.unfit([], mode) or self.unfit(lease.names, mode)
        if why is not None:
            return self.refuse("renewal.refused", why)
        blocking = self.in_the_way(who, lease.names, mode)
        denied = self.denied("renewal.refused", who, lease.names, mode, t_ms, blocking, True)
        if denied is not None:
            return denied
        self.close(lease, "changed", t_ms)
        after = Held(f"L{self.seq}", who, lease.names, mode, 0, t_ms, t_ms + ttl_ms, lease.hold_ms)
        return self.begin("lease.changed", after, fromLeaseId=lease.lease_id)

    def release(self, who: str, t_ms: int, names: list[str], lease_id: str | None, created: int) -> dict[str, Any]:
        names = sorted(names)
        if lease_id is None:
            own = [x for x in self.live() if x.holder == who and self.keys(x.names) == self.keys(names)]
            own = [x for x in own if x.granted_ms < (created + 1) * 1_000]
            if own:
                return self.finish(own[-1], names, t_ms)
            return self.refuse("release.refused", "not_holder", endedSeq=None)
        found = self.late("release.refused", who, lease_id, t_ms)
        if isinstance(found, dict):
            if found["error"] == "lease_released":
                return {"type": "release.repeated", "leaseId": lease_id, "endedSeq": found["endedSeq"]}
            return found
        if self.keys(found.names) != self.keys(names):
            return self.refuse("release.refused", "lease_mismatch")
        return self.finish(found, names, t_ms)

    def finish(self, lease: Held, names: list[str], t_ms: int) -> dict[str, Any]:
        rows = self.earned(lease, t_ms)
        self.close(lease, "released", t_ms)
        self.edges.pop(lease.holder, None)
        self.seq += 1
        return {
            "type": "lease.released", "leaseId": lease.lease_id, "fencingToken": lease.token, "resources": names,
            "trust": rows or None,
        }  # fmt: skip

    def transfer(self, who: str, t_ms: int, lease_id: str, token: int, to: str) -> dict[str, Any]:
        known = self.known(lease_id, t_ms)
        asker = known.holder if known is not None and who in self.operators else who
        lease = self.late("transfer.refused", asker, lease_id, t_ms)
        if isinstance(lease, dict):
            return lease | ({"endedSeq": None} if asker != who else {})
        if lease.token != token:
            return self.refuse("transfer.refused", "token_stale")
        if lease.holder == to:
            return self.refuse("transfer.refused", "not_offered")
        lease.offer = (to, self.seq)
        self.seq += 1
        return {"type": "transfer.offered", "holder": lease.holder, "leaseId": lease_id, "toDid": to}

    def accept(self, who: str, t_ms: int, lease_id: str, ttl_ms: int) -> dict[str, Any]:
        known = self.known(lease_id, t_ms)
        lease = self.late("acceptance.refused", known.holder if known else who, lease_id, t_ms)
        if isinstance(lease, dict):
            return lease | ({"endedSeq": None} if known is not None and known.holder != who else {})
        if lease.offer is None or lease.offer[0] != who:
            return self.refuse("acceptance.refused", "not_offered")
        more = 0 if self.principal(who) == self.principal(lease.holder) else len(lease.names)
        if self.held_names(who, t_ms) + more > HELD_MAX:
            return self.refuse("acceptance.refused", "too_many_held")
        blocking = [x for x in self.in_the_way(who, lease.names, lease.mode) if x is not lease]
        denied = self.denied("acceptance.refused", who, lease.names, lease.mode, t_ms, blocking, False)
        if denied is not None:
            return denied
        _, offer_seq = lease.offer
        self.close(lease, "transferred", t_ms)
        after = Held(f"L{self.seq}", who, lease.names, lease.mode, 0, t_ms, t_ms + ttl_ms, lease.hold_ms)
        after.giver, after.giver_ms = lease.holder, t_ms + ttl_ms
        told = {"fromLeaseId": lease.lease_id, "giver": lease.holder, "offerSeq": offer_seq}
        return self.begin("lease.transferred", after, **told)

    def break_(self, who: str, t_ms: int, resource: str, token: int) -> dict[str, Any]:
        if who not in self.operators:
            return self.refuse("break.refused", "operator_required", holder=None)
        on_it = [x for x in self.live() if any(overlap(self.key(resource), self.key(name)) for name in x.names)]
        for lease in on_it:
            if lease.token == token:
                delay = self.shut(lease, t_ms)
                self.close(lease, "broken", t_ms)
                self.broken[token] = (self.seq, t_ms)
                self.seq += 1
                return {"type": "lease.broken", "leaseId": lease.lease_id, "delayUntilMs": delay, "trust": None}
        seq, broken_ms = self.broken.get(token, (0, -DAY_MS))
        if t_ms - broken_ms < DAY_MS:
            self.seq += 1
            return {"type": "break.repeated", "endedSeq": seq}
        if not on_it:
            return self.refuse("break.refused", "token_stale", holder=None, conflict=None)
        worst = min(on_it, key=lambda x: (-self.end_ms(x), x.token))
        theirs = min(name for name in worst.names if overlap(self.key(resource), self.key(name)))
        told = {"holder": worst.holder, "conflict": worst.lease_id, "resource": resource, "heldAs": theirs}
        return self.refuse("break.refused", "token_stale", **told)


def facts(leaf: Leaf, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return from a leaf what the model has an opinion about, in the model's words."""
    conflict: Any = leaf.value.get("conflict", {})
    stampede: Any = leaf.value.get("stampede", {})
    words: dict[str, Any] = {
        **leaf.value, **stampede,
        "type": leaf.type.split("/")[1], "conflict": conflict.get("leaseId"),
        "resource": conflict.get("resource"), "heldAs": conflict.get("heldAs"),
    }  # fmt: skip
    seen = {name: words.get(name) for name in wanted}
    if "error" in leaf.value:
        seen["error"] = leaf.value["error"]
    return seen


class Reading:
    """The invariants of coordination.md 9, from the leaves alone, one leaf after the other."""

    def __init__(self) -> None:
        self.live: dict[str, dict[str, Any]] = {}
        self.token = 0
        self.keys: dict[tuple[str, str], int] = {}
        self.nonces: set[tuple[str, str]] = set()
        self.trust: dict[str, tuple[int, int | None]] = {}
        self.time_ms = 0
        self.holiday_ms = 0

    def read(self, leaf: Leaf) -> None:
        assert leaf.time_ms >= self.time_ms, "I6: time never goes back"
        self.time_ms = leaf.time_ms
        if leaf.request is not None:
            self._one_decision(leaf)
        self._trusted(leaf)
        match leaf.type.split("/")[1]:
            case "lease.granted" | "lease.claimed":
                self._granted(leaf)
            case "lease.changed" | "lease.transferred":
                old = self.live.pop(leaf.text("fromLeaseId"))
                assert old["holder"] == (leaf.text("giver") or leaf.actor), "who gives is who holds"
                self._granted(leaf)
            case "lease.extended" | "lease.renewed":
                self._prolonged(leaf)
            case "lease.released":
                assert self.live.pop(leaf.text("leaseId"))["holder"] == leaf.actor, "only the holder releases"
            case "lease.broken":
                assert self.live.pop(leaf.text("leaseId"))["token"] == leaf.number("seenToken"), "what was seen"
            case "lease.expired":
                self._expired(leaf)
            case "lease.refused" | "renewal.refused" | "acceptance.refused":
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

    def _trusted(self, leaf: Leaf) -> None:
        rows: Any = leaf.value.get("trust", [])
        for row in rows:
            before, seq = self.trust.get(row["did"], (50_000, None))
            assert row.get("previousSeq") == seq, "each change of trust names the one before"
            assert row["after"] == before + row["change"] and 0 <= row["after"] <= 100_000
            self.trust[row["did"]] = row["after"], leaf.seq

    def _granted(self, leaf: Leaf) -> None:
        rows: Any = leaf.value["schemes"]
        schemes = {row["name"]: Scheme(row["class"], row["isFolding"]) for row in rows}
        lease: dict[str, Any] = {
            "holder": leaf.actor, "names": leaf.value["resources"], "mode": leaf.value["mode"],
            "token": leaf.number("fencingToken"), "ends": leaf.number("expiresAtMs"),
        }  # fmt: skip
        judge = Model(0, schemes)
        for other in self.live.values():
            theirs = Held("", other["holder"], other["names"], other["mode"], 0, 0, 0, 0)
            clash = judge.clash(lease["names"], lease["mode"], theirs)
            assert not clash or other["holder"] == leaf.actor, "I1: one incompatible live grant for each resource"
        assert lease["token"] > self.token, "I2: tokens rise for ever"
        self.token = lease["token"]
        self.live[leaf.text("leaseId")] = lease

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
        conflict: Any = leaf.value.get("conflict")
        if conflict is None:
            return
        lease = self.live[conflict["leaseId"]]
        assert lease["holder"] == leaf.text("holder") != leaf.actor, "I10: a refusal names a real holder"
        assert conflict["heldAs"] in lease["names"] and conflict["fencingToken"] == lease["token"]
        cycle: Any = leaf.value.get("cycle", [])
        for row, behind in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
            held = [x for x in self.live.values() if x["token"] == row.get("fencingToken")]
            assert "aheadId" in row or held[0]["holder"] == behind["actor"], "I11: a cycle of live waits"
        assert leaf.request is not None
        body = json.loads(leaf.request["body"])
        names = body.get("resources") or [body["resource"]] if leaf.type.endswith("/lease.refused/1") else None
        assert names is None or conflict["resource"] in names
