"""I1 to I16, and the rules they stand for, asserted leaf by leaf. Reads leaves and nothing else.

I1 no two incompatible live grants; I2 tokens rise, by the formula; I3 nothing is done under a token that is not live;
I4 what was answered stays; I5 one decision per key, one use per nonce; I6 time never falls; I7 no end before its time,
none later than the next entry that touches it; I8 no grant outside a claim window; I9 first come first served; I10 a
refusal names a real holder; I11 a deadlock is a real cycle; I12 epochs don't interleave; I13 no gap, one chain; I14
nobody who waits is forgotten; I15 breaks and transfers say who and why; I16 no bound is exceeded.

By name: *who* an entry says for whom its actor acts; *authority* nobody acts who may not, or beyond its scope; *once*
what somebody has who ends is given back in the very next entries, in order, each once, and nobody holds anything who
has ended; *idle* a session ends neither before its time nor late; *role* who is enrolled, and every refusal of it;
*batch* the entries of one request follow each other, and an atomic one is all or nothing; *trial* and the rest as said.
Source: docs/protocol.md 6 to 9, 28 to 31.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import orjson

from tests.sim.admissions import Admissions
from tests.sim.book import Book, Delay, Ended, Lease, Ticket, Trust, Violation
from tests.sim.names import allowed, scheme_of
from tests.sim.refusals import REASON, demand, is_weaker

Leaf = dict[str, Any]
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


class Checker(Admissions):
    """Told of every durable batch, in order. `due_max`: so many ends a batch writes before it goes on to commands."""

    def __init__(self, due_max: int = 256) -> None:
        super().__init__()
        self._due_max = due_max
        self.raw: list[bytes] = []
        self.leaves: list[Leaf] = []
        self.roots = Roots()
        self.book = Book({}, [])
        self.keys: dict[tuple[str, str], tuple[int, int]] = {}
        self.nonces: dict[tuple[str, str], int] = {}
        self.written: dict[int, tuple[int, int]] = {}  # seq: true time and process
        self.counts: dict[str, int] = {}
        self.looked: dict[str, bool] = {}
        self.delays_gone = 0
        self.slack_ms = 0  # how much sooner than STEP_MS a lease may end, because clocks were set
        self._last_hash = b"\x00" * 32
        self.entering = b""  # the leaf that is looked at

    # -- batches ------------------------------------------------------------------------------------------------------

    def batch(self, first_seq: int, leaves: Sequence[bytes], true_ms: int = 0, process: int = 0) -> None:
        """Check one batch; the first thing that does not hold raises Violation."""
        demand(first_seq == len(self.raw), "I4", f"entry {first_seq} is written again, {len(self.raw)} are durable")
        for raw in leaves:
            self.written[len(self.raw)] = (true_ms, process)
            self._entry(raw)
        is_one = self.leaves[first_seq]["timeMs"] == self.book.t_ms
        demand(is_one, "I6", f"the batch of entry {first_seq} has more than one log time")
        self._after_batch(len(leaves))

    def _entry(self, raw: bytes) -> None:
        leaf: Leaf = orjson.loads(raw)
        seq, kind = leaf["seq"], leaf["type"].split("/")[1]
        book = self.book
        demand(seq == len(self.raw), "I13", f"entry {len(self.raw)} has number {seq}")
        demand(leaf["prev"] == self._last_hash.hex(), "I13", f"entry {seq} does not follow the one before it")
        demand(leaf["timeMs"] >= book.t_ms, "I6", f"log time falls at entry {seq}")
        epoch = self.leaves[-1]["epoch"] if self.leaves else leaf["epoch"]
        demand(leaf["epoch"] == epoch + (kind == "service.started"), "I12", f"epoch {leaf['epoch']} at entry {seq}")
        book.t_ms = leaf["timeMs"]
        if not self.leaves or leaf["timeMs"] > self.leaves[-1]["timeMs"]:
            self.delays_gone = 0
        if kind not in ("service.started", "lease.holiday"):  # what ran out while nobody served has its holiday first
            self.delays_gone += book.let_delays_go()
        self.count(kind)
        if kind not in ("wait.offered", "wait.reserved"):
            self.looked.clear()
        if "error" in leaf:
            self.count(leaf["error"])
        if "searchBounded" in leaf:
            self.count("searchBounded")
        if len(leaf.get("cycle", ())) > 2:
            self.count("cycle of more than two")
        self.begins(leaf, kind)
        if "request" in leaf:
            self._evidence(leaf)
        handler: Callable[[Leaf], None] | None = getattr(self, "on_" + kind.replace(".", "_"), None)
        demand(handler, "I13", f"entry {seq} is of unknown type {kind}")
        assert handler is not None
        self.entering = raw
        handler(leaf)
        self.ends(leaf, kind)
        self._last_hash = sha256(raw).digest()
        self.raw.append(raw)
        self.leaves.append(leaf)
        self.roots.append(raw)

    def _evidence(self, leaf: Leaf) -> None:
        request, seq, actor = leaf["request"], leaf["seq"], leaf["actor"]
        if "batch" in request:
            return self.answers_command(leaf)
        leaf["body"], leaf["signed"] = orjson.loads(request["body"]), request["signatureInput"]
        key = (actor, request["idempotencyKey"])
        since_ms = self.keys.get(key, (0, -(1 << 60)))[1]
        is_free = leaf["timeMs"] >= since_ms + self.book.rules["idempotencyMs"]
        demand(is_free, "I5", f"entry {seq} decides key {key[1]} again, it was entry {self.keys.get(key)}")
        self.keys[key] = (seq, leaf["timeMs"])
        nonce = (actor, request["signatureInput"].split('nonce="')[1].split('"')[0])
        demand(nonce not in self.nonces, "I5", f"entry {seq} takes a nonce again, entry {self.nonces.get(nonce)}")
        self.nonces[nonce] = seq
        _, size, root = request["anchor"].split(" ")
        demand(
            int(size) < len(self.roots.at) and self.roots.at[int(size)] == b64decode(root),
            "anchor",
            f"entry {seq} answers a request that saw another history at size {size}",
        )
        self.acts(leaf)
        for body in leaf["body"].get("commands", [leaf["body"]]):
            self._touched(leaf, body)

    def _after_batch(self, count: int) -> None:
        """What must hold between batches: nothing is overdue, and nobody is forgotten."""
        book = self.book
        overdue = [lease for lease in book.leases if book.end_ms(lease) <= book.t_ms]
        self.nobody_left()
        if count >= self._due_max:
            return
        demand(not overdue, "I7", f"lease {[one.lease_id for one in overdue]} is overdue")
        self.no_session_overdue()
        self.nobody_forgotten()

    def _touched(self, leaf: Leaf, body: Leaf) -> None:
        """Everything that a request touches and whose time has come has ended before it."""
        book = self.book
        self.touched_sessions(leaf, body)
        names = body.get("resources") or ([body["resource"]] if "resource" in body else [])
        for ticket in book.tickets:
            is_touched = any(book.meets(name, other) for name in names for other in ticket.names)
            demand(not is_touched or book.is_live(ticket), "I8", f"entry {leaf['seq']} meets a dead {ticket.ticket_id}")
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
        self.book = Book(leaf["parameters"], list(leaf["operators"]), leaf["timeMs"], leaf["enroller"])
        self.open_vault(leaf, self.entering)

    def on_service_started(self, leaf: Leaf) -> None:
        last = self.leaves[-1]["timeMs"]
        demand(leaf["gapMs"] == leaf["timeMs"] - last, "I12", f"gap of entry {leaf['seq']}")
        self.engine = ""

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

    # -- grants -------------------------------------------------------------------------------------------------------

    def on_lease_granted(self, leaf: Leaf) -> None:
        own = self.own(leaf["actor"], leaf["resources"], leaf["mode"])
        demand(own is None, "I1", f"entry {leaf['seq']} grants what {own and own.lease_id} holds already")
        self._enters(leaf)
        tickets = self.book.tickets_in_the_way(leaf["actor"], leaf["resources"], leaf["mode"], None)
        demand(not tickets, "I9", f"entry {leaf['seq']} passes {[one.ticket_id for one in tickets]}")
        self._new_lease(leaf)
        self.passed(leaf["actor"], leaf["resources"], leaf["mode"], leaf["seq"])

    def on_lease_claimed(self, leaf: Leaf) -> None:
        self.claimed(leaf)
        self._enters(leaf)
        self._new_lease(leaf)

    def on_lease_changed(self, leaf: Leaf) -> None:
        book, seq, before = self.book, leaf["seq"], self._from(leaf)
        demand(
            before.actor == leaf["actor"] and before.names == leaf["resources"], "I3", f"entry {seq} changes another"
        )
        demand(before.mode != leaf["mode"], "I1", f"entry {seq} changes nothing")
        self._enters(leaf, before)
        if not is_weaker(leaf["mode"], before.mode):
            tickets = book.tickets_in_the_way(leaf["actor"], leaf["resources"], leaf["mode"], None)
            demand(not tickets, "I9", f"entry {seq} passes {[one.ticket_id for one in tickets]}")
        self._leave(before, "changed", seq)
        self._new_lease(leaf, before)

    def on_lease_transferred(self, leaf: Leaf) -> None:
        book, seq, before = self.book, leaf["seq"], self._from(leaf)
        to_did, is_operators, offer_seq = book.offers.get(before.lease_id, ("", False, 0))
        demand((to_did, offer_seq) == (leaf["actor"], leaf["offerSeq"]), "I15", f"entry {seq}: nobody offered that")
        demand(leaf["giver"] == before.actor, "I15", f"entry {seq} names another giver")
        facts = (leaf["resources"], leaf["mode"])
        demand(facts == (before.names, before.mode), "I3", f"entry {seq} transfers something else")
        self._enters(leaf, before)
        tickets = [] if is_operators else self.before_receiver(leaf["actor"], before)
        demand(not tickets, "I9", f"entry {seq} passes {[one.ticket_id for one in tickets]}")
        self._leave(before, "transferred", seq)
        lease = self._new_lease(leaf, before)
        lease.giver, lease.giver_until_ms = before.principal, leaf["timeMs"] + leaf["ttlMs"]

    def _from(self, leaf: Leaf) -> Lease:
        """Return the live lease whose place a new one takes."""
        before = self.live(leaf["fromLeaseId"])
        is_so = before is not None and before.seq == leaf["fromSeq"]
        demand(is_so, "I3", f"entry {leaf['seq']} goes on from {leaf['fromLeaseId']}, which is not live")
        assert before is not None
        demand(self.book.t_ms < self.book.end_ms(before), "I7", f"entry {leaf['seq']} brings back {before.lease_id}")
        return before

    def _enters(self, leaf: Leaf, besides: Lease | None = None) -> None:
        """Nothing but tickets may stand in the way of a new lease."""
        book, seq = self.book, leaf["seq"]
        actor, names, mode = leaf["actor"], leaf["resources"], leaf["mode"]
        demand(not book.is_disputed, "I1", f"entry {seq} grants on a disputed ledger")
        for name in names:
            demand(allowed(book.scheme(name)["class"], mode), "I1", f"entry {seq}: {mode} is not a mode of its class")
            demand(name.isascii() or book.scheme(name)["isUnicode"], "I1", f"entry {seq}: the name may not be")
        leases = [lease for lease in book.leases_in_the_way(actor, names, mode) if lease is not besides]
        demand(not leases, "I1", f"entry {seq} grants {names} beside {[lease.lease_id for lease in leases]}")
        delays = book.delays_in_the_way(actor, names, mode)
        demand(not delays, "delay", f"entry {seq} grants {names} in the lock-delay of {[one.seq for one in delays]}")
        if besides is None or besides.principal != leaf["principal"]:
            most = book.rules["heldPerPrincipal"]
            held = self.held(leaf["principal"])
            demand(held + len(names) <= most, "I16", f"entry {seq}: more than {most} names held")

    def _new_lease(self, leaf: Leaf, before: Lease | None = None) -> Lease:
        book, seq, t_ms = self.book, leaf["seq"], leaf["timeMs"]
        token = max(book.token + 1, t_ms * 1_000)
        demand(leaf["fencingToken"] > book.token, "I2", f"token of entry {seq} does not rise")
        demand(leaf["fencingToken"] == token, "I2", f"token of entry {seq} is {leaf['fencingToken']}, not {token}")
        book.token = token
        hold_ms = min(book.scheme(name)["maxHoldMs"] for name in leaf["resources"])
        hold_until_ms = before.hold_until_ms if before else t_ms + hold_ms
        demand(leaf["leaseId"] == f"L{seq}", "I2", f"lease id {leaf['leaseId']} of entry {seq}")
        demand(leaf["expiresAtMs"] == t_ms + leaf["ttlMs"], "I7", f"expiry of entry {seq}")
        demand(leaf["holdUntilMs"] == hold_until_ms, "hold", f"holdUntilMs of entry {seq} is not {hold_until_ms}")
        lease = Lease(
            leaf["leaseId"], leaf["actor"], leaf["resources"], leaf["mode"], token, seq, t_ms,
            leaf["ttlMs"], leaf["expiresAtMs"], hold_until_ms, principal=leaf["principal"],
        )  # fmt: skip
        book.leases.append(lease)
        self._schemes(leaf)
        for name in leaf["resources"]:
            book.waits.pop((leaf["principal"], name), None)
        book.edges.pop(leaf["actor"], None)
        return lease

    def _schemes(self, leaf: Leaf) -> None:
        """A lease's entry names class and folding of exactly its schemes."""
        names = sorted({scheme_of(name) for name in leaf["resources"]})
        schemes = [(name, self.book.scheme(f"{name}:x")) for name in names]
        rows = [{"class": one["class"], "isFolding": one["isFolding"], "name": name} for name, one in schemes]
        demand(leaf["schemes"] == rows, "I1", f"entry {leaf['seq']} says schemes {leaf['schemes']}, not {rows}")

    def on_lease_extended(self, leaf: Leaf) -> None:
        self._prolonged(leaf, self.own(leaf["actor"], leaf["resources"], leaf["mode"]))

    def on_lease_renewed(self, leaf: Leaf) -> None:
        self._prolonged(leaf, self.live(leaf["body"]["leaseId"]))

    def _prolonged(self, leaf: Leaf, own: Lease | None) -> None:
        book, seq = self.book, leaf["seq"]
        demand(own is not None and own.actor == leaf["actor"], "I3", f"entry {seq} prolongs a lease that is not live")
        assert own is not None
        demand(book.t_ms < book.end_ms(own), "I7", f"entry {seq} brings back {own.lease_id}")
        demand(not book.is_disputed, "I1", f"entry {seq} prolongs on a disputed ledger")
        demand(not self.is_hold_over(own), "hold", f"entry {seq} prolongs {own.lease_id} past its hold")
        facts = (leaf["leaseId"], leaf["fencingToken"], leaf["grantedAtMs"], leaf["grantSeq"], leaf["holdUntilMs"])
        wanted = (own.lease_id, own.token, own.granted_ms, own.seq, own.hold_until_ms)
        demand(facts == wanted, "I3", f"entry {seq} prolongs {own.lease_id} with other facts: {facts}, not {wanted}")
        own.ttl_ms = leaf["ttlMs"]
        own.expires_ms = max(own.expires_ms, book.t_ms + own.ttl_ms)
        demand(leaf["expiresAtMs"] == own.expires_ms, "I7", f"expiry of entry {seq}")
        if not self.is_rehearsal:
            self.written[own.seq] = self.written[seq]  # its end is counted from here
        self._schemes(leaf)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, leaf: Leaf, how: str) -> Lease:
        seq, lease = leaf["seq"], self.live(leaf["leaseId"])
        demand(lease is not None, "I3", f"entry {seq} ends {leaf['leaseId']}, which is not live")
        assert lease is not None
        facts = (leaf["fencingToken"], leaf["grantSeq"], self.book.keys(leaf["resources"]))
        is_it = facts == (lease.token, lease.seq, self.book.keys(lease.names))
        demand(is_it, "I3", f"entry {seq} ends {lease.lease_id}: {facts}")
        self._leave(lease, how, seq)
        return lease

    def _leave(self, lease: Lease, how: str, seq: int) -> None:
        book = self.book
        book.leases.remove(lease)
        book.offers.pop(lease.lease_id, None)
        book.ended[lease.lease_id] = Ended(lease.actor, how, seq, book.t_ms, lease.token)

    def on_lease_released(self, leaf: Leaf) -> None:
        lease, t_ms = self._end(leaf, "released"), leaf["timeMs"]
        demand(lease.actor == leaf["actor"], "I3", f"entry {leaf['seq']} releases another's lease")
        self.book.edges.pop(leaf["actor"], None)
        is_real = t_ms - lease.granted_ms >= self.book.rules["trustGainHoldMs"]
        self.trust(leaf, [(lease.principal, self.gain(lease.principal))] if is_real else [])

    def on_release_repeated(self, leaf: Leaf) -> None:
        ended = self.book.ended.get(leaf["leaseId"])
        is_own = ended is not None and (ended.actor, ended.how) == (leaf["actor"], "released")
        is_own = is_own and ended is not None and self.is_remembered(ended)
        demand(is_own, "I3", f"entry {leaf['seq']} repeats a release that was none")

    def on_lease_expired(self, leaf: Leaf) -> None:
        book, lease = self.book, self.live(leaf["leaseId"])
        demand(lease is not None, "I3", f"entry {leaf['seq']} ends {leaf['leaseId']}, which is not live")
        assert lease is not None
        end_ms = book.end_ms(lease)
        demand(leaf["timeMs"] >= end_ms, "I7", f"{lease.lease_id} ends {end_ms - leaf['timeMs']} ms early")
        demand(leaf["expiresAtMs"] == lease.expires_ms, "I7", f"entry {leaf['seq']} says another end")
        self._end(leaf, "expired")
        self._delay(leaf, lease)
        self._in_true_time(leaf, lease)
        losers = [lease.principal]
        if lease.giver is not None and lease.giver != lease.principal and lease.expires_ms <= lease.giver_until_ms:
            losers.append(lease.giver)
        self.trust(leaf, [(did, -min(book.rules["trustLoss"], self.trusted(did).value)) for did in losers])

    def _in_true_time(self, leaf: Leaf, lease: Lease) -> None:
        since_ms, process = self.written[lease.seq]
        now_ms, now_process = self.written[leaf["seq"]]
        if process == now_process:  # one process, whose clocks can't both be set
            early_ms = lease.ttl_ms - (now_ms - since_ms)
            demand(
                early_ms <= STEP_MS + self.slack_ms, "I7", f"{lease.lease_id} ended {early_ms} ms early in true time"
            )

    def on_lease_returned(self, leaf: Leaf) -> None:
        demand(self.is_owed, "once", f"entry {leaf['seq']} returns a lease although nobody is gone")
        due = self.live(leaf["leaseId"])
        is_late = due is not None and self.book.t_ms >= self.book.end_ms(due) and self.is_asked_for
        demand(not is_late, "I7", f"entry {leaf['seq']} returns {leaf['leaseId']}, which had run out")
        lease = self._end(leaf, "returned")
        demand(leaf["holder"] == lease.actor, "once", f"entry {leaf['seq']} names another holder")
        cause_seq, is_tidy = self.cause_of(lease.actor)
        demand(leaf["causeSeq"] == cause_seq, "once", f"entry {leaf['seq']}: causeSeq is not {cause_seq}")
        self._delay(leaf, lease, is_none=is_tidy)

    def _delay(self, leaf: Leaf, lease: Lease, *, is_none: bool = False) -> None:
        """After a bad end the names stay closed to others for as long as the slowest scheme says."""
        book = self.book
        longest_ms = 0 if is_none else max(book.scheme(name)["lockDelayMs"] for name in lease.names)
        wanted = book.t_ms + longest_ms if longest_ms else None
        demand(leaf.get("delayUntilMs") == wanted, "delay", f"entry {leaf['seq']}: delayUntilMs is not {wanted}")
        if wanted is not None:
            book.delays.append(Delay(lease.actor, lease.names, lease.mode, wanted, leaf["seq"], lease.principal))

    # -- breaks and transfers -----------------------------------------------------------------------------------------

    def on_lease_broken(self, leaf: Leaf) -> None:
        self.by_operator(leaf)
        self._reason_given(leaf)
        lease = self._end(leaf, "broken")
        self.book.broken[lease.token] = self.book.ended[lease.lease_id]
        is_meant = lease.token == leaf["seenToken"] and any(
            self.book.meets(leaf["resource"], name) for name in lease.names
        )
        demand(is_meant, "I15", f"entry {leaf['seq']} breaks another lease than was seen")
        facts = (leaf["holder"], leaf["grantedAtMs"])
        demand(facts == (lease.actor, lease.granted_ms), "I15", f"entry {leaf['seq']} says {facts}")
        self._delay(leaf, lease)

    def on_break_repeated(self, leaf: Leaf) -> None:
        self.by_operator(leaf)
        self._reason_given(leaf)
        ended = self.book.broken.get(leaf["seenToken"])
        is_so = ended is not None and ended.seq == leaf["endedSeq"] and self.is_remembered(ended)
        demand(is_so, "I15", f"entry {leaf['seq']} repeats a break that was none")

    def on_transfer_offered(self, leaf: Leaf) -> None:
        book, seq, lease = self.book, leaf["seq"], self.live(leaf["leaseId"])
        self._reason_given(leaf)
        demand(lease is not None, "I3", f"entry {seq} offers {leaf['leaseId']}, which is not live")
        assert lease is not None
        is_operators = leaf["actor"] in book.operators
        demand(is_operators or leaf["actor"] == lease.actor, "I15", f"entry {seq} offers another's lease")
        facts = (leaf["seenToken"], leaf["holder"], leaf["grantSeq"])
        demand(facts == (lease.token, lease.actor, lease.seq), "I15", f"entry {seq} offers {facts}")
        demand(leaf["toDid"] != lease.actor, "I15", f"entry {seq} offers a lease to its holder")
        book.offers[lease.lease_id] = (leaf["toDid"], is_operators, seq)

    def _reason_given(self, leaf: Leaf) -> None:
        demand(REASON.fullmatch(leaf.get("reason", "")), "I15", f"entry {leaf['seq']} gives no reason")

    # -- schemes and trust --------------------------------------------------------------------------------------------

    def on_scheme_set(self, leaf: Leaf) -> None:
        self.by_operator(leaf)
        wanted = {name: leaf[name] for name in ("class", "isFolding", "isUnicode", "lockDelayMs", "maxHoldMs")}
        is_same = wanted == self.book.scheme(f"{leaf['name']}:x")
        demand(is_same or not self.is_busy(leaf["name"]), "scheme", f"entry {leaf['seq']} changes a scheme that lives")
        self.book.schemes[leaf["name"]] = wanted

    def trusted(self, did: str) -> Trust:
        return self.book.trust.setdefault(did, Trust(self.book.rules["trustStart"]))

    def gain(self, did: str) -> int:
        """Return what a release earns now, and open a window for it when none is open."""
        rules, trust = self.book.rules, self.trusted(did)
        is_open = trust.gained > 0 and self.book.t_ms < trust.gain_since_ms + rules["trustGainWindowMs"]
        gained = trust.gained if is_open else 0
        change = min(rules["trustGain"], rules["trustGainMax"] - gained, rules["trustMax"] - trust.value)
        if change > 0:
            trust.gain_since_ms = trust.gain_since_ms if is_open else self.book.t_ms
            trust.gained = gained + change
        return max(0, change)

    def trust(self, leaf: Leaf, changes: list[tuple[str, int]]) -> None:
        """The entry lists exactly those whose trust moved, with the value after."""
        rows = []
        for did, change in changes:
            trust = self.trusted(did)
            if change:
                row: Leaf = {"did": did, "change": change, "after": trust.value + change}
                rows.append(row if trust.seq is None else row | {"previousSeq": trust.seq})
                trust.value, trust.seq = trust.value + change, leaf["seq"]
                is_bounded = 0 <= trust.value <= self.book.rules["trustMax"]
                demand(is_bounded, "trust", f"entry {leaf['seq']}: trust {trust.value}")
        is_told = leaf.get("trust", []) == rows or self.is_rehearsal
        demand(is_told, "trust", f"entry {leaf['seq']} says {leaf.get('trust')}, not {rows}")

    # -- refusals ------------------------------------------------------------------------------------------------------

    def on_lease_refused(self, leaf: Leaf) -> None:
        self.refused(leaf, leaf["resources"], leaf["mode"])

    def on_renewal_refused(self, leaf: Leaf) -> None:
        lease = self.live(leaf["leaseId"])
        self.refused(leaf, lease.names if lease else [], leaf.get("mode") or (lease.mode if lease else ""))

    def on_release_refused(self, leaf: Leaf) -> None:
        self.refused(leaf, leaf["resources"], "")

    def on_break_refused(self, leaf: Leaf) -> None:
        self.or_no_operator(leaf)
        self.refused(leaf, [leaf["resource"]], "")

    def on_transfer_refused(self, leaf: Leaf) -> None:
        self.refused(leaf, [], "")

    def before_receiver(self, receiver: str, lease: Lease) -> list[Ticket]:
        """Return the tickets that stop a receiver: not those behind a live ticket of its own that overlaps them."""
        book = self.book
        own = [one for one in book.tickets if one.actor == receiver and book.is_live(one)]
        return [
            one
            for one in book.tickets_in_the_way(receiver, lease.names, lease.mode, None)
            if not any(
                mine.seq < one.seq and any(book.meets(a, b) for a in mine.names for b in one.names) for mine in own
            )
        ]

    def on_acceptance_refused(self, leaf: Leaf) -> None:
        lease = self.live(leaf["leaseId"])
        self.refused(leaf, lease.names if lease else [], lease.mode if lease else "", lease)

    def on_scheme_refused(self, leaf: Leaf) -> None:
        self.or_no_operator(leaf)
        self.refused(leaf, [], "")

    # -- the sweeper --------------------------------------------------------------------------------------------------

    def nothing_overdue(self, true_ms: int, wall_ms: int) -> None:
        """What was due at a moment of true time, long enough ago, has its entry. Clocks must not have been set.

        `wall_ms` is what a machine's clock said then: log time stands still until a slow one has caught up.
        """
        book, (since_ms, _) = self.book, self.written[len(self.raw) - 1]
        t_ms, delays = book.t_ms, book.delays
        book.t_ms = min(wall_ms, t_ms + true_ms - since_ms)  # as if the log had gone on
        if self._due_max >= 256:  # else the last batch may have left something to the next
            book.t_ms = max(t_ms, book.t_ms)
        book.let_delays_go()
        leases = [lease.lease_id for lease in book.leases if book.end_ms(lease) <= book.t_ms]
        sessions = [one.did for one in book.open_sessions() if book.session_end_ms(one) <= book.t_ms]
        tickets = [one.ticket_id for one in book.tickets if not book.is_live(one) or book.is_resuming(one)]
        is_over = len(book.delays) < len(delays)
        free = [one.ticket_id for one in book.tickets if is_over and not one.is_offered and not self.is_stopped(one)]
        demand(not leases, "I7", f"nobody ends {leases}, {book.t_ms - t_ms} ms after the last entry")
        demand(not sessions, "idle", f"nobody ends {sessions}, {book.t_ms - t_ms} ms after the last entry")
        demand(not tickets, "I14", f"nobody looks after {tickets}, {book.t_ms - t_ms} ms after the last entry")
        demand(not free, "I14", f"nobody offers to {free}, whose delay is over")
        book.t_ms, book.delays = t_ms, delays

    # -- the end ------------------------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Long after the last fault and the last request: nothing lives, nobody waits."""
        demand(not self.book.leases, "I14", f"leases never ended: {[one.lease_id for one in self.book.leases]}")
        demand(not self.book.open_sessions(), "idle", "a session never ended")
        demand(not self.book.tickets, "I14", f"tickets never ended: {[one.ticket_id for one in self.book.tickets]}")
