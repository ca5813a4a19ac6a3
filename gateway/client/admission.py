"""An admission and a request for approval, as their verified entries say.

An admission allows one execution of one act: these arguments, under this lease, before `valid_until_ms`. It is no
ticket to write for whoever has the file: a guard wants to see who acts, computes the digest of what is about to be done
by itself, and uses each admission up.
Source: docs/protocol.md 37, 38, 39.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256

from gateway.client.approval import Act
from gateway.client.receipts import VerifiedReceipt
from gateway.client.trust import trusted_ms
from verifier.entries import ZERO_HASH
from verifier.wire import JsonObject, JsonValue


@dataclass(frozen=True, slots=True)
class Admission:
    """A verified admission.allowed. `sent_ms` is the steady-clock instant of its call's first attempt."""

    receipt: VerifiedReceipt
    sent_ms: int

    @property
    def seq(self) -> int:
        return self.receipt.seq

    @property
    def operation(self) -> str:
        return self.receipt.leaf.text("operation")

    @property
    def resources(self) -> tuple[str, ...]:
        return self.receipt.resources

    @property
    def mode(self) -> str:
        return self.receipt.leaf.text("mode")

    @property
    def arguments_digest(self) -> str:
        """The SHA-256 of what may be done, in hex: of nothing else."""
        return self.receipt.leaf.text("argumentsDigest")

    @property
    def lease_id(self) -> str:
        """The lease it was asked under; "" without one."""
        return self.receipt.leaf.text("leaseId")

    @property
    def fencing_token(self) -> int | None:
        """The number that goes with the write; None without a lease."""
        return self.receipt.leaf.number("fencingToken") if self.lease_id else None

    @property
    def valid_until_ms(self) -> int:
        """Until when it may be used, in the gateway's time."""
        return self.receipt.leaf.number("validUntilMs")

    @property
    def trust_ends_ms(self) -> int:
        """The steady-clock instant at which the act must have begun: as for a lease, from the first attempt on."""
        return self.sent_ms + trusted_ms(self.valid_until_ms - self.receipt.leaf.time_ms)

    @property
    def rules(self) -> JsonObject | None:
        """What the rule set in force said (version, digest, mode, decision, matched, obligations); None without one."""
        return rules_in(self.receipt)

    @property
    def obligations(self) -> tuple[str, ...]:
        """What the rules that permit it oblige whoever does it to; to be known by name."""
        return names_in((self.rules or {}).get("obligations"))


@dataclass(frozen=True, slots=True)
class Ask:
    """A verified approval.asked: somebody waits for approvals of one act."""

    receipt: VerifiedReceipt

    @property
    def ask_id(self) -> str:
        return self.receipt.leaf.text("askId")

    @property
    def approvers(self) -> tuple[str, ...]:
        return names_in(self.receipt.leaf.value.get("approvers"))

    @property
    def quorum(self) -> int:
        return self.receipt.leaf.number("quorum")

    @property
    def give_up_by_ms(self) -> int:
        """When it lapses, in the gateway's time."""
        return self.receipt.leaf.number("giveUpByMs")

    def nonce_of(self, approver: str) -> str:
        """Return the nonce with which a key approves of this request: always the same.

        A giving that is refused leaves its statement in the ledger for everybody to read. However often somebody says
        yes to one request, it is burnt with the first use.
        """
        leaf = self.receipt.leaf
        said = f"{leaf.origin}\n{leaf.genesis.hex()}\n{self.ask_id}\n{approver}"
        return urlsafe_b64encode(sha256(said.encode()).digest()).rstrip(b"=").decode()

    @property
    def act(self) -> Act:
        """What an approver signs, read out of the verified entry and nothing else."""
        leaf = self.receipt.leaf
        return Act(
            ledger=leaf.origin, agent=leaf.principal, operation=leaf.text("operation"),
            resources=self.receipt.resources, mode=leaf.text("mode"), arguments_digest=leaf.text("argumentsDigest"),
            cost=leaf.number("cost"), rules_digest=leaf.text("rulesDigest") or ZERO_HASH,
        )  # fmt: skip


def rules_in(receipt: VerifiedReceipt) -> JsonObject | None:
    """Return what an admission, or a denied one, says of the rule set; None when none was ever loaded."""
    rules = receipt.leaf.value.get("rules")
    return rules if isinstance(rules, dict) else None


def names_in(value: JsonValue) -> tuple[str, ...]:
    """Return the items of a list as texts; nothing for what is no list."""
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
