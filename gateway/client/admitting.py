"""What an agent asks before it acts: verbs of an Agent.

What is asked under which lease is taken from verified entries. Only who knows of none here asks the gateway's list,
whose lie costs a refusal.

Source: docs/protocol.md 37.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from gateway.actions import ACTIONS
from gateway.client.admission import Admission
from gateway.client.approval import SignedApproval, digest_of_arguments, rows_of_approvals
from gateway.client.approving import MODE_DEFAULT as MODE_DEFAULT
from gateway.client.approving import Approving, act_members
from gateway.client.holdings import SeenLease, Tokened, are_covered, is_strong_enough
from verifier.entries import resources_of
from verifier.wire import JsonObject


class Admitting(Approving):
    """Mixed into Agent."""

    @property
    @abstractmethod
    def principal(self) -> str:
        """Whom it acts for."""

    @abstractmethod
    async def leases(self, holder: str = "me", *, is_patient: bool = False) -> list[JsonObject]:
        """Return the live leases of one holder, unverified."""

    async def admit(
        self,
        operation: str,
        resources: str | Sequence[str],
        *,
        mode: str = MODE_DEFAULT,
        arguments: bytes | None = None,
        arguments_digest: str | None = None,
        cost: int = 0,
        lease: Tokened | None = None,
        approvals: Sequence[SignedApproval] = (),
        until_ms: int | None = None,
    ) -> Admission:
        """Ask whether one act may be done now, once; AdmissionDenied says why not, with a receipt of its own.

        `operation` names what is done, as a code; `arguments` is what exactly, of which only the SHA-256 leaves this
        process, or that digest is given. Without `lease` the newest one of this key that covers all `resources` in a
        mode that is strong enough is presented; only what is done in mode "read" may be done without one. FenceStale:
        the lease is over, stop. `cost` counts towards budgets that the rules may have.
        """
        names = (resources,) if isinstance(resources, str) else tuple(resources)
        digest = digest_of_arguments(arguments, arguments_digest)
        held = await self.covering(names, mode) if lease is None else lease
        members = act_members(operation, names, mode, digest, cost)
        if held is not None:
            members |= {"leaseId": held.lease_id, "fencingToken": held.fencing_token}
        members |= rows_of_approvals(approvals)
        decided = await self.caller.decide("coordination.admit", members, until_ms=until_ms)
        return Admission(decided.in_favour().receipt, decided.sent_ms)

    async def covering(self, resources: Sequence[str], mode: str = MODE_DEFAULT) -> Tokened | None:
        """Return the newest lease of this key that covers all of the names in a mode that is strong enough, or None.

        One that this process took counts even when it is over: then an admission is refused under it, and says by
        which entry it ended.
        """
        return self.caller.holdings.covering(resources, mode) or await self._listed(resources, mode)

    async def _listed(self, resources: Sequence[str], mode: str) -> Tokened | None:
        """Ask the gateway's list, for a lease that another process of this key took."""
        found: list[SeenLease] = []
        for row in await self.leases(is_patient=True):
            token, names = row.get("fencingToken"), resources_of(row)
            is_fit = is_strong_enough(str(row.get("mode")), mode) and are_covered(resources, names, _schemes(resources))
            if isinstance(token, int) and is_fit:
                found.append(SeenLease(str(row.get("leaseId")), token))
        return max(found, key=lambda seen: seen.fencing_token, default=None)

    async def usage(self, did: str | None = None) -> JsonObject:
        """Return what was admitted so far, of one agent or operator or of all, unverified."""
        return await self.caller.read(ACTIONS["usage.get"].path, "" if did is None else f"did={did}")

    async def rules(self) -> JsonObject:
        """Return the rule set in force with its text, unverified: compare its digest with a receipt's."""
        return await self.caller.read(ACTIONS["rules.show"].path)


def _schemes(names: Sequence[str]) -> list[str]:
    """The list does not say which schemes fold case: a lease that would cover in either case is worth trying."""
    return [name.partition(":")[0] for name in names]
