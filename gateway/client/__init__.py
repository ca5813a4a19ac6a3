"""What an agent runs: leases that are held, verified and let go, and the guard on the other side.

from gateway.client import Agent

async with Agent.open() as agent:
    async with agent.lease("repo:app/src/a.py") as lease:
        ...
"""

from gateway.client.admission import Admission, Ask
from gateway.client.agent import TTL_MS_DEFAULT, Agent
from gateway.client.approval import Act, SignedApproval, approve, open_approval
from gateway.client.batch import Outcome, acquiring, admitting, releasing, renewing
from gateway.client.delegation import SignedDelegation, open_delegation
from gateway.client.errors import (
    AdmissionDenied,
    AlreadyWaiting,
    AnswerRefused,
    ApprovalRefused,
    AskEnded,
    BatchRefused,
    ClientError,
    ClockWrong,
    Deadlock,
    Fenced,
    FenceStale,
    HeldHere,
    HoldExceeded,
    InTheWay,
    LeaseBroken,
    LeaseChanged,
    LeaseEnded,
    LeaseHeld,
    LeaseLost,
    LeaseReturned,
    LeaseTransferred,
    LedgerBehind,
    LockDelayed,
    NotApproved,
    NotEnrolled,
    ProfileError,
    Queued,
    QueueFull,
    Refused,
    RequestRejected,
    RulesDenied,
    SessionEnded,
    SessionRefused,
    SplitView,
    StillWaiting,
    TicketEnded,
    TokenStale,
    TrialOver,
    UnknownHistory,
    Unreachable,
    Waits,
)
from gateway.client.fence import Answer, FenceGuard, Permit, SignedWrite, answer_challenge, sign_write
from gateway.client.holdings import SeenLease
from gateway.client.lease import HeldLease
from gateway.client.line import Ticket
from gateway.client.private import Private, erase_private, save_private
from gateway.client.profile import Address, Profile, open_profile
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.client.score import TrustChange
from gateway.client.session import Session
from gateway.client.trust import Grant

__all__ = [
    "TTL_MS_DEFAULT",
    "Act",
    "Address",
    "Admission",
    "AdmissionDenied",
    "Agent",
    "AlreadyWaiting",
    "Answer",
    "AnswerRefused",
    "ApprovalRefused",
    "Ask",
    "AskEnded",
    "BatchRefused",
    "ClientError",
    "ClockWrong",
    "Deadlock",
    "FenceGuard",
    "FenceStale",
    "Fenced",
    "Grant",
    "HeldHere",
    "HeldLease",
    "HoldExceeded",
    "InTheWay",
    "LeaseBroken",
    "LeaseChanged",
    "LeaseEnded",
    "LeaseHeld",
    "LeaseLost",
    "LeaseReturned",
    "LeaseTransferred",
    "LedgerBehind",
    "LockDelayed",
    "NotApproved",
    "NotEnrolled",
    "Outcome",
    "Permit",
    "Private",
    "Profile",
    "ProfileError",
    "QueueFull",
    "Queued",
    "Refused",
    "RequestRejected",
    "RulesDenied",
    "SeenLease",
    "Session",
    "SessionEnded",
    "SessionRefused",
    "SignedApproval",
    "SignedDelegation",
    "SignedWrite",
    "SplitView",
    "StillWaiting",
    "Ticket",
    "TicketEnded",
    "TokenStale",
    "TrialOver",
    "TrustChange",
    "UnknownHistory",
    "Unreachable",
    "VerifiedReceipt",
    "Waits",
    "acquiring",
    "admitting",
    "answer_challenge",
    "approve",
    "erase_private",
    "open_approval",
    "open_delegation",
    "open_profile",
    "open_receipt",
    "releasing",
    "renewing",
    "save_private",
    "sign_write",
]
