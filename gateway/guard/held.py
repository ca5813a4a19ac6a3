"""What a verified entry shows to be held, and which entries show enough for a set of needs.

The gateway's list of leases only says where to look. That a lease is live, and whose, in which mode and on what, is
taken from the receipt of a renewal that was asked for just now. It lengthens no lease: what it asks for is less than
is left, unless less is left than git needs to finish.

Source: docs/guards.md; security.md §3: facts come from the verified leaf and never from the members beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gateway.client.agent import Agent
from gateway.client.errors import AnswerRefused, HoldExceeded, LeaseEnded, RequestRejected
from gateway.client.receipts import VerifiedReceipt
from gateway.client.words import texts
from gateway.guard.changes import Need, is_enough
from verifier.entries import HOLDING, LEASE_ID, MODES, full_type, key_of, may_share, overlaps, rows_of, scheme_of
from verifier.entries import covers as key_covers
from verifier.wire import JsonObject

FINISH_MS = 30_000  # so long git may take from the check to the end of the commit
GUARD_MS = 10_000  # a gateway that is away for so long is away
LOOKS_MAX = 8  # needs that are looked up one by one; of more, all that stands on the repository is looked at
COMMIT = "git.commit"  # what an admission calls it
_NOT_RENEWED, _ALLOWED = full_type("renewal.refused"), full_type("admission.allowed")


@dataclass(frozen=True, slots=True)
class Held:
    """A lease as a verified entry shows it. `seq` is the entry that shows it, `from_ms` to `until_ms` when it held.

    Of an admission it is what was admitted, and `act` the digest of what exactly; "" of a lease.
    """

    seq: int
    lease_id: str
    fencing_token: int
    actor: str
    mode: str
    resources: tuple[str, ...]
    classes: tuple[tuple[str, str, bool], ...]  # name, class and whether it folds case, of each scheme
    from_ms: int
    until_ms: int
    act: str = ""

    def covers(self, need: Need) -> bool:
        """Say whether the lease is on the need's resource, or all around it, in a mode that serves."""
        is_folding = self._is_folding(need.resource)
        key = key_of(need.resource, is_folding)
        return is_enough(self.mode, need.mode) and any(
            key_covers(key_of(name, is_folding), key) for name in self.resources
        )

    def bars(self, need: Need) -> bool:
        """Say whether the lease, as somebody else's, keeps the need's holder away."""
        is_folding = self._is_folding(need.resource)
        key = key_of(need.resource, is_folding)
        kind = next((row[1] for row in self.classes if row[0] == scheme_of(need.resource)), "exclusive")
        return not may_share(kind, self.mode, need.mode) and any(
            overlaps(key_of(name, is_folding), key) for name in self.resources
        )

    def _is_folding(self, resource: str) -> bool:
        return any(row[2] for row in self.classes if row[0] == scheme_of(resource))


@dataclass(frozen=True, slots=True)
class Rival:
    """Somebody else's lease on what is needed, as a view has it; `held` is what its entry proves, if it does."""

    need: Need
    row: JsonObject
    held: Held | None


def held_of(receipt: VerifiedReceipt) -> Held | None:
    """Return the lease, or what was admitted of a commit, that a verified entry shows; None when it shows neither."""
    leaf = receipt.leaf
    is_admitted = leaf.type == _ALLOWED and leaf.text("operation") == COMMIT
    if leaf.type not in HOLDING and not is_admitted:
        return None
    rows = rows_of(leaf.value.get("schemes"))
    idle_ms = leaf.number("endsIfIdleAtMs")
    until_ms = leaf.number("validUntilMs" if is_admitted else "expiresAtMs")
    return Held(
        receipt.seq, leaf.text("leaseId"), leaf.number("fencingToken"), leaf.actor, leaf.text("mode"),
        receipt.resources, tuple((str(row["name"]), str(row["class"]), row.get("isFolding") is True) for row in rows),
        leaf.time_ms, until_ms if idle_ms < 0 else min(until_ms, idle_ms),
        leaf.text("argumentsDigest") if is_admitted else "",
    )  # fmt: skip


class Desk:
    """Asks one gateway, as one agent, about leases; each answer is verified and asked for once."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._hints: list[JsonObject] | None = None
        self._live: dict[str, Held | None] = {}
        self._shown: dict[int, Held | None] = {}
        self._views: dict[str, list[JsonObject]] = {}

    @property
    def until_ms(self) -> int:
        """The steady-clock instant at which a decision that is asked for now is given up."""
        return self.agent.clock.steady_ms() + GUARD_MS

    async def cover(self, needs: Iterable[Need]) -> tuple[list[Held], list[Need]]:
        """Return live leases of this agent that cover the needs, and the needs that none of them covers."""
        left, used = list(needs), list[Held]()
        tried = set[str]()
        while left and (lease_id := await self._best(left, tried)) is not None:
            tried.add(lease_id)
            held = await self._renewed(lease_id)
            if held is not None and any(held.covers(need) for need in left):
                used.append(held)
                left = [need for need in left if not held.covers(need)]
        return used, left

    async def _best(self, needs: Sequence[Need], tried: set[str]) -> str | None:
        """Return the id of an own lease that seems to cover most of the needs, of those not tried; None: none seems to.

        Case is folded here whatever the scheme says: this finds what is worth asking for, and decides nothing.
        """
        counts = {str(row.get("leaseId")): _count(row, needs) for row in await self._own_leases()}
        found = [(count, lease_id) for lease_id, count in counts.items() if count and lease_id not in tried]
        return max(found)[1] if found else None

    async def _own_leases(self) -> list[JsonObject]:
        if self._hints is None:
            self._hints = await self.agent.leases()
        return self._hints

    async def too_weak(self, needs: Iterable[Need]) -> dict[str, str]:
        """Return, by id, own leases that seem to be on what is needed in too weak a mode, with the mode they want."""
        found: dict[str, str] = {}
        for need in needs:
            for row in await self._own_leases():
                mode, lease_id = str(row.get("mode")), str(row.get("leaseId"))
                if _is_on(row, need) and mode in MODES and not is_enough(mode, need.mode):
                    found[lease_id] = max(found.get(lease_id, mode), need.mode, key=MODES.index)
        return found

    async def _renewed(self, lease_id: str) -> Held | None:
        """Return a lease of this agent's as the entry shows it that was just asked for; None when it is over."""
        if lease_id not in self._live:
            self._live[lease_id] = await self._renew(lease_id)
        return self._live[lease_id]

    async def _renew(self, lease_id: str) -> Held | None:
        if not LEASE_ID.check(lease_id):
            return None
        try:
            grant = await self.agent.renew(lease_id, ttl_ms=FINISH_MS, until_ms=self.until_ms)
        except HoldExceeded as refused:  # which is said of live leases only
            return await self._held_longest(refused.receipt)
        except LeaseEnded:
            return None
        return held_of(grant.receipt)

    async def _held_longest(self, receipt: VerifiedReceipt) -> Held | None:
        """Return the lease that can't be renewed any more, for others wait, and that is live all the same."""
        began = await self.shown(int(receipt.leaf.text("leaseId")[1:]))
        if began is None or (began.lease_id, began.actor) != (receipt.leaf.text("leaseId"), receipt.leaf.actor):
            return None
        time_ms = receipt.leaf.time_ms
        return replace(began, seq=receipt.seq, from_ms=time_ms, until_ms=time_ms)

    async def shown(self, seq: int) -> Held | None:
        """Return the lease that entry `seq` shows, verified; None when it shows none, or isn't there."""
        if seq not in self._shown:
            self._shown[seq] = await self._show(seq)
        return self._shown[seq]

    async def _show(self, seq: int) -> Held | None:
        try:
            receipt = await self.agent.receipt(seq)
        except (RequestRejected, AnswerRefused):
            return None
        leaf = receipt.leaf
        if leaf.type == _NOT_RENEWED and leaf.text("error") == "hold_exceeded":
            return await self._held_longest(receipt)
        return held_of(receipt)

    async def rivals(self, needs: Sequence[Need], own: frozenset[str], whole: str) -> list[Rival]:
        """Return the leases of others that stand on what is needed, as the gateway shows them and their entries prove.

        `own` are the keys that are no rivals; `whole` is a name around all the needs.
        """
        found = []
        for need in needs:
            for row in await self._seen(need.resource if len(needs) <= LOOKS_MAX else whole):
                lease_id = str(row.get("leaseId"))
                if row.get("holder") in own or not LEASE_ID.check(lease_id):
                    continue
                held = await self.shown(int(lease_id[1:]))
                if held is None or held.bars(need):
                    found.append(Rival(need, row, held))
        return found

    async def _seen(self, resource: str) -> list[JsonObject]:
        """Return the rows of all leases around or below a name; ClientError when the gateway leaves some out."""
        if resource not in self._views:
            view = await self.agent.wait_view(resource)
            if view.get("isTruncated") is not False:
                raise AnswerRefused(f"the gateway does not show all that stands on {resource}; ask it again later")
            rows = rows_of(view.get("resources"))
            self._views[resource] = [lease for row in rows for lease in rows_of(row.get("leases"))]
        return self._views[resource]


def folded(need: Need) -> str:
    """Return what a need is looked up by where nothing says whether its scheme folds case."""
    return key_of(need.resource, True)


def _count(row: JsonObject, needs: Sequence[Need]) -> int:
    mode = str(row.get("mode"))
    return sum(mode in MODES and is_enough(mode, need.mode) and _is_on(row, need) for need in needs)


def _is_on(row: JsonObject, need: Need) -> bool:
    """Say whether a lease of a list seems to be on what is needed."""
    return any(key_covers(key_of(name, True), folded(need)) for name in texts(row.get("resources")))
