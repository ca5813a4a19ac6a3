"""What an agent runs: leases that are held, verified and let go, and the guard on the other side.

from gateway.client import Agent

async with Agent.open() as agent:
    async with agent.lease("repo:app/src/a.py") as lease:
        ...
"""

from gateway.client.agent import TTL_MS_DEFAULT, Agent
from gateway.client.errors import (
    AnswerRefused,
    ClientError,
    ClockWrong,
    Fenced,
    HeldHere,
    LeaseEnded,
    LeaseHeld,
    LeaseLost,
    LedgerBehind,
    NotEnrolled,
    ProfileError,
    Refused,
    RequestRejected,
    SplitView,
    UnknownHistory,
    Unreachable,
)
from gateway.client.fence import Answer, FenceGuard, Permit, SignedWrite, answer_challenge, sign_write
from gateway.client.lease import HeldLease
from gateway.client.profile import Address, Profile, open_profile
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.client.trust import Grant

__all__ = [
    "TTL_MS_DEFAULT",
    "Address",
    "Agent",
    "Answer",
    "AnswerRefused",
    "ClientError",
    "ClockWrong",
    "FenceGuard",
    "Fenced",
    "Grant",
    "HeldHere",
    "HeldLease",
    "LeaseEnded",
    "LeaseHeld",
    "LeaseLost",
    "LedgerBehind",
    "NotEnrolled",
    "Permit",
    "Profile",
    "ProfileError",
    "Refused",
    "RequestRejected",
    "SignedWrite",
    "SplitView",
    "UnknownHistory",
    "Unreachable",
    "VerifiedReceipt",
    "answer_challenge",
    "open_profile",
    "open_receipt",
    "sign_write",
]
