"""Asking before acting: an old token, an act that somebody must approve, an approval that is used twice.

Liv holds a file and hangs; the operator breaks her lease, Max takes it, and Liv goes on as if nothing had happened.
Then Max wants to delete the file. The starter rules let nobody do that alone, so Olga, another operator, approves of
just that, and it counts once. Without the engine of the rules there are none, and only what the code forbids is denied.
"""

from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec

from gateway.client import (
    Admission,
    AdmissionDenied,
    Agent,
    ApprovalRefused,
    FenceStale,
    Grant,
    RulesDenied,
    SignedApproval,
    VerifiedReceipt,
)
from gateway.client.profile import Profile
from gateway.demo.company import agent
from gateway.demo.recorder import Record
from gateway.rules.starter import starter_rules
from keys.signing import SigningKey

FILE = "repo:burst/gate/old.py"
CONTENT = b"git rm old.py"
HAS_RULES = find_spec("cedarpy") is not None


@dataclass(frozen=True, slots=True)
class Gate:
    """What happened, as the receipts say. `alone` is None where there are no rules."""

    old: Grant
    broken: VerifiedReceipt
    new: Grant
    late: AdmissionDenied
    alone: AdmissionDenied | None
    allowed: Admission
    again: AdmissionDenied

    def lines(self) -> list[str]:
        """Tell it."""
        alone = "" if self.alone is None else f"Max may not delete old.py alone ({self.alone.error}); "
        return [
            f"Liv's lease on old.py was broken, and Max got it. Liv came back with token {self.old.fencing_token}: "
            f"{self.late.error}, {self.late.current_token} counts.",
            f"{alone}Olga approved, and it was admitted, once. With the same approval again: {self.again.error}.",
        ]


async def play(operator: Agent, pins: Profile, record: Record) -> Gate:
    """Play the scene with fresh keys and return what came of it."""
    async with AsyncExitStack() as stack:
        liv, max_ = [await stack.enter_async_context(agent(pins, record)) for _ in range(2)]
        olga = await stack.enter_async_context(Agent(replace(pins, key=SigningKey.generate(), home=None)))
        await operator.add_operator(olga.did, "olga")
        if HAS_RULES:
            await operator.load_rules(starter_rules(), "enforce", 1)
        old = await liv.acquire(FILE)
        broken = await operator.break_lease(FILE, old.fencing_token, "liv-hangs")
        new = await max_.acquire(FILE, mode="delete")
        late = await _denied(liv, old, "file.write", "write", FenceStale)
        alone = await _denied(max_, new, "file.remove", "delete", RulesDenied) if HAS_RULES else None
        approval = await _approved(max_, olga)
        allowed = await max_.admit("file.remove", FILE, mode="delete", arguments=CONTENT, approvals=[approval])
        again = await _denied(max_, new, "file.remove", "delete", ApprovalRefused, approval)
        await max_.release(FILE, new.lease_id)
        return Gate(old, broken, new, late, alone, allowed, again)


async def _approved(asker: Agent, approver: Agent) -> SignedApproval:
    ask = await asker.ask_approval("file.remove", FILE, [approver.did], mode="delete", arguments=CONTENT)
    approval, _ = await approver.give_approval(ask)
    return approval


async def _denied(
    who: Agent, lease: Grant, operation: str, mode: str, kind: type[AdmissionDenied], *approvals: SignedApproval
) -> AdmissionDenied:
    try:
        await who.admit(operation, FILE, mode=mode, arguments=CONTENT, lease=lease, approvals=approvals)
    except kind as denied:
        return denied
    raise RuntimeError("what must be denied was admitted")
