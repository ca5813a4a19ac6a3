"""I1 to I16, and the rules they stand for, asserted leaf by leaf. Reads leaves and nothing else.

I1 no two incompatible live grants; I2 tokens rise, by the formula; I3 nothing is done under a token that is not live;
I4 what was answered stays; I5 one decision per key, one use per nonce; I6 time never falls; I7 no end before its time,
none later than the next entry that touches it; I8 no grant outside a claim window; I9 first come first served; I10 a
refusal names a real holder; I11 a deadlock is a real cycle; I12 epochs don't interleave; I13 no gap, one chain; I14
nobody who waits is forgotten; I15 breaks and transfers say who and why; I16 no bound is exceeded.
Source: docs/protocol.md 6 to 9.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from tests.sim.book import Book, Ended, Lease, Violation
from tests.sim.names import allowed

Leaf = dict[str, Any]
DUE_MAX = 256  # so many ends a batch writes before it goes on to commands
STEP_MS = 2_000  # how far log time may run ahead of elapsed time


class Roots:
    """The tree's root at every size, by peaks of its own."""

    def __init__(self) -> None:
        self.at = [sha256(b"").digest()]
        self._peaks: list[tuple[int, bytes]] = []

    def append(self, leaf: bytes) -> None:
        node, width = sha256(b"\x00" + leaf).digest(), 1
        while self._peaks and self._peaks[-1][0] == width:
            node, width = sha256(b"\x01" + self._peaks.pop()[1] + node).digest(), 2 * width
        self._peaks.append((width, node))
        root = self._peaks[-1][1]
        for _, peak in reversed(self._peaks[:-1]):
            root = sha256(b"\x01" + peak + root).digest()
        self.at.append(root)


def demand(is_so: object, name: str, text: str) -> None:
    if not is_so:
        raise Violation(name, text)


class Checker:
    """Told of every durable batch, in order."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.leaves: list[Leaf] = []
        self.roots = Roots()
        self.book = Book({}, [])
        self.keys: dict[tuple[str, str], tuple[int, int]] = {}
        self.nonces: dict[tuple[str, str], int] = {}
        self.cited: dict[tuple[str, str, int], int] = {}
        self.written: dict[int, tuple[int, int]] = {}  # seq: true time and process
        self.counts: dict[str, int] = {}
        self._before = b"\x00" * 32

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch(self, first_seq: int, leaves: Sequence[bytes], true_ms: int = 0, process: int = 0) -> None:
        """Check one batch; the first thing that does not hold raises Violation."""
        demand(first_seq == len(self.raw), "I4", f"entry {first_seq} is written again, {len(self.raw)} are durable")
        for raw in leaves:
            self.written[len(self.raw)] = (true_ms, process)
            self._entry(raw)
        times = {json.loads(raw)["timeMs"] for raw in (leaves[0], leaves[-1])}
        demand(len(times) == 1, "I6", "one batch has one log time")
        self._after_batch(len(leaves))

    def _entry(self, raw: bytes) -> None:
        leaf: Leaf = json.loads(raw)
        seq, kind = leaf["seq"], leaf["type"].split("/")[1]
        book = self.book
        demand(seq == len(self.raw), "I13", f"entry {len(self.raw)} has number {seq}")
        demand(leaf["prev"] == self._before.hex(), "I13", f"entry {seq} does not follow the one before it")
        demand(leaf["timeMs"] >= book.t_ms, "I6", f"log time falls at entry {seq}")
        epoch = self.leaves[-1]["epoch"] if self.leaves else leaf["epoch"]
        demand(leaf["epoch"] == epoch + (kind == "service.started"), "I12", f"epoch {leaf['epoch']} at entry {seq}")
        book.t_ms = leaf["timeMs"]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if "error" in leaf:
            self.counts[leaf["error"]] = self.counts.get(leaf["error"], 0) + 1
        if "request" in leaf:
            self._evidence(leaf)
        handler: Callable[[Leaf], None] | None = getattr(self, "on_" + kind.replace(".", "_"), None)
        demand(handler, "I13", f"entry {seq} is of unknown type {kind}")
        assert handler is not None
        handler(leaf)
        self._before = sha256(raw).digest()
        self.raw.append(raw)
        self.leaves.append(leaf)
        self.roots.append(raw)

    def _evidence(self, leaf: Leaf) -> None:
        request, seq, principal = leaf["request"], leaf["seq"], leaf["principal"]
        body = leaf["body"] = json.loads(request["body"])
        key = (principal, request["idempotencyKey"])
        since_ms = self.keys.get(key, (0, -(1 << 60)))[1]
        is_free = leaf["timeMs"] >= since_ms + self.book.rules["idempotencyMs"]
        demand(is_free, "I5", f"entry {seq} decides key {key[1]} again, it was entry {self.keys.get(key)}")
        self.keys[key] = (seq, leaf["timeMs"])
        nonce = (principal, request["signatureInput"].split('nonce="')[1].split('"')[0])
        demand(nonce not in self.nonces, "I5", f"entry {seq} takes a nonce again, entry {self.nonces.get(nonce)}")
        self.nonces[nonce] = seq
        _, size, root = request["anchor"].split(" ")
        demand(
            int(size) < len(self.roots.at) and self.roots.at[int(size)] == b64decode(root),
            "anchor",
            f"entry {seq} answers a request that saw another history at size {size}",
        )
        is_in = body["actorDid"] in self.book.operators or self.book.agents.get(body["actorDid"], False)
        demand(is_in, "I3", f"entry {seq} is by a key that is not enrolled")
        if "leaseId" in body or "resource" in body or "resources" in body:
            self._touched(leaf)

    def _after_batch(self, count: int) -> None:
        """What must hold between batches: nothing is overdue, and nobody is forgotten."""
        book = self.book
        overdue = [lease for lease in book.leases if book.end_ms(lease) <= book.t_ms]
        demand(not overdue or count >= DUE_MAX, "I7", f"lease {[one.lease_id for one in overdue]} is overdue")

    def _touched(self, leaf: Leaf) -> None:
        """Everything that a request touches and whose time has come has ended before it."""
        book, body = self.book, leaf["body"]
        names = body.get("resources") or ([body["resource"]] if "resource" in body else [])
        for lease in book.leases:
            is_touched = lease.lease_id == body.get("leaseId") or any(
                book.meets(name, held) for name in names for held in lease.names
            )
            demand(
                not is_touched or book.t_ms < book.end_ms(lease),
                "I7",
                f"entry {leaf['seq']} was decided although {lease.lease_id} had run out",
            )

    # -- the gateway's own --------------------------------------------------------------------------------------------

    def on_ledger_opened(self, leaf: Leaf) -> None:
        self.book = Book(leaf["parameters"], leaf["operators"], leaf["timeMs"])

    def on_service_started(self, leaf: Leaf) -> None:
        last = self.leaves[-1]["timeMs"]
        demand(leaf["gapMs"] == leaf["timeMs"] - last, "I12", f"gap of entry {leaf['seq']}")

    def on_lease_holiday(self, leaf: Leaf) -> None:
        started = self.leaves[-1]
        demand(started["type"].startswith("tallystick/service.started"), "I7", "a holiday follows a start")
        until_ms = leaf["timeMs"] + min(self.book.rules["holidayMs"], started["gapMs"])
        demand(leaf["untilMs"] == until_ms, "I7", f"holiday until {leaf['untilMs']}, not {until_ms}")
        self.book.holiday_ms = max(self.book.holiday_ms, until_ms)

    def on_ledger_disputed(self, leaf: Leaf) -> None:
        self.book.is_disputed = True

    def on_decision_failed(self, leaf: Leaf) -> None:
        raise Violation("decision_failed", f"entry {leaf['seq']}: an error inside a decision")

    # -- people -------------------------------------------------------------------------------------------------------

    def on_agent_added(self, leaf: Leaf) -> None:
        self._by_operator(leaf)
        self.book.agents[leaf["agent"]] = True

    def on_agent_removed(self, leaf: Leaf) -> None:
        self._by_operator(leaf)
        demand(self.book.agents.get(leaf["agent"]), "I3", "who is removed was enrolled")
        self.book.agents[leaf["agent"]] = False

    def on_agent_refused(self, leaf: Leaf) -> None:
        demand(leaf["actor"] not in self.book.operators, "I10", "an operator may enrol")

    def on_removal_refused(self, leaf: Leaf) -> None:
        is_unknown = not self.book.agents.get(leaf["agent"])
        demand(leaf["actor"] not in self.book.operators or is_unknown, "I10", "an operator may remove")

    def _by_operator(self, leaf: Leaf) -> None:
        demand(leaf["actor"] in self.book.operators, "I15", f"entry {leaf['seq']} is not by an operator")

    # -- grants -------------------------------------------------------------------------------------------------------

    def on_lease_granted(self, leaf: Leaf) -> None:
        book, actor, names, mode = self.book, leaf["actor"], leaf["resources"], leaf["mode"]
        own = self._own(actor, names, mode)
        demand(own is None, "I1", f"entry {leaf['seq']} grants what {own and own.lease_id} holds already")
        self._enters(leaf, number=None)
        self._new_lease(leaf)
        for name in names:
            book.waits.pop((leaf["principal"], name), None)
        book.edges.pop(actor, None)

    def _own(self, actor: str, names: list[str], mode: str) -> Lease | None:
        keys = self.book.keys(names)
        for lease in self.book.leases:
            if lease.actor == actor and lease.mode == mode and self.book.keys(lease.names) == keys:
                return lease
        return None

    def _enters(self, leaf: Leaf, number: int | None, besides: Lease | None = None) -> None:
        """Nothing may stand in the way of a new lease."""
        book, seq = self.book, leaf["seq"]
        actor, names, mode = leaf["actor"], leaf["resources"], leaf["mode"]
        demand(not book.is_disputed, "I1", f"entry {seq} grants on a disputed ledger")
        for name in names:
            demand(allowed(book.scheme(name)["class"], mode), "I1", f"entry {seq}: {mode} is not a mode of its class")
        leases = [lease for lease in book.leases_in_the_way(actor, names, mode) if lease is not besides]
        demand(not leases, "I1", f"entry {seq} grants {names} beside {[lease.lease_id for lease in leases]}")
        delays = book.delays_in_the_way(actor, names, mode)
        demand(
            not delays, "delay", f"entry {seq} grants {names} within the lock-delay of entry {delays and delays[0].seq}"
        )
        held = sum(len(lease.names) for lease in book.leases if lease.actor == actor and lease is not besides)
        most = book.rules.get("heldPerPrincipal", 1 << 60)
        demand(held + len(names) <= most, "I16", f"entry {seq}: more than {most} names held")
        if number is None:
            tickets = book.tickets_in_the_way(actor, names, mode, None)
            demand(not tickets, "I9", f"entry {seq} passes {[ticket.ticket_id for ticket in tickets]}")

    def _new_lease(self, leaf: Leaf, before: Lease | None = None) -> Lease:
        book, seq, t_ms = self.book, leaf["seq"], leaf["timeMs"]
        token = max(book.token + 1, t_ms * 1_000)
        demand(leaf["fencingToken"] > book.token, "I2", f"token of entry {seq} does not rise")
        demand(leaf["fencingToken"] == token, "I2", f"token of entry {seq} is {leaf['fencingToken']}, not {token}")
        book.token = token
        hold = min(book.scheme(name)["maxHoldMs"] for name in leaf["resources"])
        hold_until_ms = before.hold_until_ms if before else t_ms + hold
        demand(leaf["leaseId"] == f"L{seq}", "I2", f"lease id {leaf['leaseId']} of entry {seq}")
        demand(leaf["expiresAtMs"] == t_ms + leaf["ttlMs"], "I7", f"expiry of entry {seq}")
        demand(leaf["holdUntilMs"] == hold_until_ms, "hold", f"holdUntilMs of entry {seq}")
        lease = Lease(
            leaf["leaseId"], leaf["actor"], leaf["resources"], leaf["mode"], token, seq, t_ms,
            leaf["ttlMs"], leaf["expiresAtMs"], hold_until_ms,
        )  # fmt: skip
        book.leases.append(lease)
        return lease

    def on_lease_extended(self, leaf: Leaf) -> None:
        own = self._own(leaf["actor"], leaf["resources"], leaf["mode"])
        self._prolonged(leaf, own)

    def on_lease_renewed(self, leaf: Leaf) -> None:
        own = self._live(leaf["body"]["leaseId"])
        self._prolonged(leaf, own)

    def _live(self, lease_id: str) -> Lease | None:
        return next((lease for lease in self.book.leases if lease.lease_id == lease_id), None)

    def _prolonged(self, leaf: Leaf, own: Lease | None) -> None:
        book, seq = self.book, leaf["seq"]
        demand(own is not None and own.actor == leaf["actor"], "I3", f"entry {seq} prolongs a lease that is not live")
        assert own is not None
        demand(book.t_ms < book.end_ms(own), "I7", f"entry {seq} brings back {own.lease_id}")
        demand(not self._hold_is_over(own), "hold", f"entry {seq} prolongs {own.lease_id} past its hold")
        facts = (leaf["leaseId"], leaf["fencingToken"], leaf["grantedAtMs"], leaf["grantSeq"], leaf["holdUntilMs"])
        wanted = (own.lease_id, own.token, own.granted_ms, own.seq, own.hold_until_ms)
        demand(facts == wanted, "I3", f"entry {seq} prolongs {own.lease_id} with other facts: {facts}, not {wanted}")
        own.ttl_ms = leaf["ttlMs"]
        own.expires_ms = max(own.expires_ms, book.t_ms + own.ttl_ms)
        demand(leaf["expiresAtMs"] == own.expires_ms, "I7", f"expiry of entry {seq}")
        self.written[own.seq] = self.written[seq]  # its end is counted from here

    def _hold_is_over(self, lease: Lease) -> bool:
        book = self.book
        return book.t_ms >= lease.hold_until_ms and any(
            ticket.actor != lease.actor
            and book.is_live(ticket)
            and book.clashes(ticket.names, ticket.mode, lease.names, lease.mode)
            for ticket in book.tickets
        )

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, leaf: Leaf, how: str) -> Lease:
        book, seq = self.book, leaf["seq"]
        lease = self._live(leaf["leaseId"])
        demand(lease is not None, "I3", f"entry {seq} ends {leaf['leaseId']}, which is not live")
        assert lease is not None
        facts = (leaf["fencingToken"], leaf["grantSeq"], leaf["resources"])
        demand(facts == (lease.token, lease.seq, lease.names), "I3", f"entry {seq} ends {lease.lease_id}: {facts}")
        book.leases.remove(lease)
        book.offers.pop(lease.lease_id, None)
        book.ended[lease.lease_id] = Ended(lease.actor, how, seq, book.t_ms, lease.token)
        return lease

    def on_lease_released(self, leaf: Leaf) -> None:
        lease = self._end(leaf, "released")
        demand(lease.actor == leaf["actor"], "I3", f"entry {leaf['seq']} releases another's lease")
        self.book.edges.pop(leaf["actor"], None)

    def on_release_repeated(self, leaf: Leaf) -> None:
        ended = self.book.ended.get(leaf["leaseId"])
        is_own = ended is not None and (ended.actor, ended.how) == (leaf["actor"], "released")
        demand(is_own, "I3", f"entry {leaf['seq']} repeats a release that was none")

    def on_lease_expired(self, leaf: Leaf) -> None:
        lease = self._live(leaf["leaseId"])
        demand(lease is not None, "I3", f"entry {leaf['seq']} ends {leaf['leaseId']}, which is not live")
        assert lease is not None
        end_ms = self.book.end_ms(lease)
        demand(leaf["timeMs"] >= end_ms, "I7", f"{lease.lease_id} ends {end_ms - leaf['timeMs']} ms early")
        self._end(leaf, "expired")
        since_ms, process = self.written[lease.seq]
        now_ms, now_process = self.written[leaf["seq"]]
        if process == now_process:  # one process, whose clocks can't both be set
            early_ms = lease.ttl_ms - (now_ms - since_ms)
            demand(
                early_ms <= STEP_MS + self.slack_ms, "I7", f"{lease.lease_id} ended {early_ms} ms early in true time"
            )

    slack_ms = 0

    # -- refusals -----------------------------------------------------------------------------------------------------

    def on_lease_refused(self, leaf: Leaf) -> None:
        self._refused(leaf, leaf["resources"], leaf["mode"])

    def on_renewal_refused(self, leaf: Leaf) -> None:
        lease = self._live(leaf["leaseId"])
        self._refused(leaf, lease.names if lease else [], leaf.get("mode") or "")

    def on_release_refused(self, leaf: Leaf) -> None:
        self._refused(leaf, [], "")

    def _refused(self, leaf: Leaf, names: list[str], mode: str) -> None:
        """A refusal must be so, and name what is there."""
        error = leaf["error"]
        check: Callable[[Leaf, list[str], str], None] | None = getattr(self, "refused_" + error, None)
        demand(check, "I10", f"entry {leaf['seq']}: nobody knows how to check {error}")
        assert check is not None
        check(leaf, names, mode)

    def refused_lease_held(self, leaf: Leaf, names: list[str], mode: str) -> None:
        book, seq, conflict = self.book, leaf["seq"], leaf["conflict"]
        found = book.leases_in_the_way(leaf["actor"], names, mode)
        demand(found, "I10", f"entry {seq} refuses {names}, which nobody holds")
        first = found[0]
        requested = [name for name in names if any(book.meets(name, held) for held in first.names)]
        wanted = {
            "leaseId": first.lease_id,
            "resource": min(requested),
            "fencingToken": first.token,
            "mode": first.mode,
            "grantedAtMs": first.granted_ms,
            "expiresAtMs": first.expires_ms,
        }
        if "heldAs" in conflict:
            wanted["heldAs"] = min(held for held in first.names if book.meets(min(requested), held))
        demand(conflict == wanted, "I10", f"entry {seq} names {conflict}, not {wanted}")
        facts = (leaf["holder"], leaf["conflicts"])
        demand(facts == (first.actor, len(found)), "I10", f"entry {seq} says {facts}")
        self._stampede(leaf, conflict["resource"], book.end_ms(first) - book.t_ms)
        if leaf["body"].get("wait", False) is False:
            book.edges[leaf["actor"]] = (conflict["resource"], mode, book.t_ms)

    def _stampede(self, leaf: Leaf, name: str, rest_ms: int) -> None:
        """The count of earlier refusals, and the advice that follows from it."""
        book, place = self.book, (leaf["principal"], name)
        count, last_ms = book.waits.get(place, (0, -(1 << 60)))
        if book.t_ms >= last_ms + book.rules["stampedeResetMs"]:
            count = 0
        wait_ms = min(book.rules["stampedeMaxMs"], book.rules["stampedeBaseMs"] * 2 ** min(count, 40))
        is_admitted = count < book.rules["stampedeAdmitted"]
        wanted = {"admitted": is_admitted, "waitMs": wait_ms}
        demand(leaf["stampede"] == wanted, "I10", f"entry {leaf['seq']}: stampede {leaf['stampede']}, not {wanted}")
        retry_ms = wait_ms if is_admitted else max(wait_ms, rest_ms)
        demand(leaf["retryAfterMs"] == retry_ms, "I10", f"entry {leaf['seq']}: retryAfterMs is not {retry_ms}")
        book.waits[place] = (count + 1, book.t_ms)

    def refused_ledger_disputed(self, leaf: Leaf, names: list[str], mode: str) -> None:
        demand(self.book.is_disputed, "I10", "no dispute is known")

    def _by_id(self, leaf: Leaf, how: str) -> None:
        ended = self.book.ended.get(leaf["leaseId"])
        demand(ended and ended.how == how, "I10", f"entry {leaf['seq']}: {leaf['leaseId']} was not {how}")
        assert ended is not None
        if ended.actor == leaf["actor"]:
            demand(leaf.get("endedSeq") == ended.seq, "I10", f"entry {leaf['seq']}: endedSeq is not {ended.seq}")
        else:
            demand("endedSeq" not in leaf, "I10", f"entry {leaf['seq']} tells of another's end")

    def refused_lease_unknown(self, leaf: Leaf, names: list[str], mode: str) -> None:
        demand(self._live(leaf["leaseId"]) is None, "I10", f"entry {leaf['seq']}: {leaf['leaseId']} is live")
        ended = self.book.ended.get(leaf["leaseId"])
        is_forgotten = ended is None or ended.at_ms + self.book.rules["idempotencyMs"] <= self.book.t_ms
        demand(is_forgotten, "I10", f"entry {leaf['seq']}: {leaf['leaseId']} is known")

    def refused_lease_not_yours(self, leaf: Leaf, names: list[str], mode: str) -> None:
        lease = self._live(leaf["leaseId"])
        ended = self.book.ended.get(leaf["leaseId"])
        holder = lease.actor if lease else ended.actor if ended else None
        demand(holder is not None and holder != leaf["actor"], "I10", f"entry {leaf['seq']}: it is the actor's own")

    def refused_lease_released(self, leaf: Leaf, names: list[str], mode: str) -> None:
        self._by_id(leaf, "released")

    def refused_lease_expired(self, leaf: Leaf, names: list[str], mode: str) -> None:
        self._by_id(leaf, "expired")

    def refused_lease_mismatch(self, leaf: Leaf, names: list[str], mode: str) -> None:
        lease = self._live(leaf["leaseId"])
        demand(
            lease is not None and self.book.keys(lease.names) != self.book.keys(leaf["resources"]),
            "I10",
            f"entry {leaf['seq']}: the lease covers exactly these",
        )

    def refused_not_holder(self, leaf: Leaf, names: list[str], mode: str) -> None:
        keys = self.book.keys(leaf["resources"])
        created_ms = int(leaf["request"]["signatureInput"].split("created=")[1].split(";")[0]) * 1_000
        for lease in self.book.leases:
            is_own = lease.actor == leaf["actor"] and self.book.keys(lease.names) == keys
            is_seen = lease.granted_ms < created_ms + 1_000
            demand(not (is_own and is_seen), "I10", f"entry {leaf['seq']}: the actor holds {lease.lease_id}")

    # -- the end ------------------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Long after the last fault and the last request: nothing lives, nobody waits."""
        demand(not self.book.leases, "I14", f"leases never ended: {[one.lease_id for one in self.book.leases]}")
        demand(not self.book.tickets, "I14", f"tickets never ended: {[one.ticket_id for one in self.book.tickets]}")
