"""The one table of actions: what can be asked of a gateway, under which path, and which pure function decides it.

REST routes, command-line commands and the OpenAPI document are read from these rows. Path, body and entry types of a
decision stand in `verifier.entries` under the action's name, because an auditor must know them too. A new capability is
a file in the core, a row here, its entry types, a replay file and a chapter of the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from verifier.entries import ACTION_PATHS, ENTRY_TYPES

if TYPE_CHECKING:
    from gateway.core.draft import Draft
    from gateway.core.intake import SignedRequest
    from gateway.core.outcome import ActionDecide, Context, Decision

PREFIX = "/api/v1/acp"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query or path parameter of a read."""

    name: str
    place: Literal["query", "path"]
    meaning: str
    pattern: str
    is_required: bool = True


@dataclass(frozen=True, slots=True)
class Action:
    """One row.

    `signer` says who may ask: an agent (an enrolled key, or a session of one), a session, an operator, a reader (anyone
    on a public ledger, a key in force on a members' ledger), whoever has an API key, or anyone at all. With `is_held`
    the door may keep the request waiting before it is decided, for as long as its `Prefer: wait` says. An enrolment
    is answered as the decision that the gateway asks for in the name of an API key.
    """

    name: str
    method: Literal["GET", "POST"]
    path: str
    kind: Literal["decision", "enrolment", "read", "report"]
    signer: Literal["agent", "session", "operator", "reader", "bearer", "anyone"]
    summary: str
    description: str
    decide: ActionDecide | None = None
    parameters: tuple[Parameter, ...] = ()
    is_held: bool = False

    @property
    def answers(self) -> tuple[str, ...]:
        """Return the entry types that an answer may be, none for a read; `decision.failed` may answer any decision."""
        return tuple(row.type for row in ENTRY_TYPES.values() if row.action == self.name)


def load_deciders() -> None:
    """Load what decides. A client reads this table too, decides nothing, and may be started for each call."""
    for action in _TABLE:
        if isinstance(action.decide, partial):
            _decider(*action.decide.args)


@cache
def _decider(name: str) -> ActionDecide:
    module, _, function = name.partition(".")
    found: ActionDecide = getattr(import_module(f"gateway.core.{module}"), function)
    return found


def _decide(name: str, draft: Draft, request: SignedRequest, context: Context) -> Decision:
    return _decider(name)(draft, request, context)


def _core(name: str) -> ActionDecide:
    """Return the pure function MODULE.NAME of the core, which is loaded when it is needed."""
    return partial(_decide, name)


_RESOURCE = Parameter(
    "resource", "query", "Show only what overlaps this name; UTF-8, percent-encoded", r"^.{1,1024}$", is_required=False
)
_HOLDER = Parameter(
    "holder", "query", "`me` (signed), or the DID of an agent", r"^(me|did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44})$"
)
_AGENT = Parameter(
    "agent",
    "query",
    "Show only the sessions of this agent",
    r"^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$",
    is_required=False,
)
_DID = Parameter("did", "query", "The DID of an agent", r"^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$")
_ANYBODY = Parameter(
    "did", "query", "Show only what is counted of this agent or operator", _DID.pattern, is_required=False
)
_ASK = Parameter("askId", "query", "Show only this request for approval", r"^A[1-9][0-9]{0,15}$", is_required=False)
_ASKED_BY = Parameter(
    "of", "query", "Show only what this agent and its sessions asked for", _DID.pattern, is_required=False
)
_ASKED_OF = Parameter("by", "query", "Show only what this key may approve", _DID.pattern, is_required=False)
_SIZE = r"^(0|[1-9][0-9]{0,15})$"
_FROM = Parameter("from", "query", "Size of the older tree", _SIZE)
_TO = Parameter("to", "query", "Size of the newer checkpoint", _SIZE, is_required=False)
_SEQ = Parameter("seq", "path", "Index of the entry in the ledger", r"^(0|[1-9][0-9]{0,15})$")

# fmt: off
_TABLE: tuple[Action, ...] = (
    Action(
        "lease.acquire", "POST", ACTION_PATHS["lease.acquire"], "decision", "agent",
        "Take a lease on one resource or on all of a set, or stand in line for it",
        "Grants the lease with a fencing token, or refuses with the holder and how long to wait. With `wait: true` it "
        "hands out a ticket (202) instead. The holder asking again for the same set extends its lease and keeps the "
        "token.",
        _core("lease.acquire"),
    ),
    Action(
        "lease.renew", "POST", ACTION_PATHS["lease.renew"], "decision", "agent",
        "Extend a live lease of one's own, or change its mode",
        "Moves the expiry to now + ttlMs, never back. Another mode makes another lease with a new token. A lease that "
        "ended is never brought back to life.",
        _core("lease.renew"),
    ),
    Action(
        "lease.release", "POST", ACTION_PATHS["lease.release"], "decision", "agent",
        "Give a lease back",
        "Names the resources and, better, the lease. Repeating a finished release is a success without effect.",
        _core("lease.release"),
    ),
    Action(
        "lease.transfer", "POST", ACTION_PATHS["lease.transfer"], "decision", "agent",
        "Offer a live lease to another agent",
        "By its holder, or by an operator, who names the token that was seen. It changes hands when the other accepts.",
        _core("handover.transfer"),
    ),
    Action(
        "lease.accept", "POST", ACTION_PATHS["lease.accept"], "decision", "agent",
        "Take over a lease that was offered",
        "Ends the giver's lease and grants one with a new token on the same resources, with nothing in between.",
        _core("handover.accept"),
    ),
    Action(
        "lease.break", "POST", ACTION_PATHS["lease.break"], "decision", "operator",
        "End another's lease",
        "Names a resource and the token that was seen there, so that no lease is broken that nobody looked at. The "
        "holder learns of it at its next call, a guard when a later token comes.",
        _core("breaking.break_lease"),
    ),
    Action(
        "wait.claim", "POST", ACTION_PATHS["wait.claim"], "decision", "agent",
        "Claim what one stands in line for",
        "Grants the lease when the ticket is offered, else keeps the ticket alive and says where it stands (202). With "
        "`Prefer: wait=N` the answer comes when the turn does, at the latest after N seconds, 20 at most.",
        _core("wait.claim"),
        is_held=True,
    ),
    Action(
        "wait.cancel", "POST", ACTION_PATHS["wait.cancel"], "decision", "agent",
        "Leave the line",
        "Ends a ticket of one's own, offered or not.",
        _core("wait.cancel"),
    ),
    Action(
        "coordination.admit", "POST", ACTION_PATHS["coordination.admit"], "decision", "agent",
        "Ask whether one exact action may be done now",
        "Hard rules first: the lease is live, its token is the one that counts, and nobody else holds what would be "
        "touched. Then the rules that an operator loaded. What is allowed is allowed once, until `validUntilMs`; what "
        "is denied is a receipt as well (403).",
        _core("admission.admit"),
    ),
    Action(
        "approval.ask", "POST", ACTION_PATHS["approval.ask"], "decision", "agent",
        "Ask others to approve one exact action",
        "Names who may approve and how many must. It holds nothing and keeps no lease: renew what you hold meanwhile. "
        "Asking for what only somebody can approve who waits for you is refused as a deadlock.",
        _core("asking.ask"),
    ),
    Action(
        "approval.give", "POST", ACTION_PATHS["approval.give"], "decision", "agent",
        "Approve what was asked for",
        "By a key that the request names, of an agent or an operator, with a signed statement of its own. That is good "
        "for one admission of exactly this action, within its time, under the rules that it names.",
        _core("asking.give"),
    ),
    Action(
        "approval.decline", "POST", ACTION_PATHS["approval.decline"], "decision", "agent",
        "Decline what was asked for",
        "The request goes on as long as enough others are left who may approve.",
        _core("asking.decline"),
    ),
    Action(
        "approval.withdraw", "POST", ACTION_PATHS["approval.withdraw"], "decision", "agent",
        "Ask for an approval no longer",
        "By whoever asked. Statements that were given already are still good.",
        _core("asking.withdraw"),
    ),
    Action(
        "batch.submit", "POST", ACTION_PATHS["batch.submit"], "decision", "agent",
        "Take, renew and give back many leases, and ask for admissions, in one request",
        "Each command is decided as if it had come alone, after those before it, and gets an entry of its own. With "
        "`isAtomic: true` the first refusal undoes them all, and one entry says which it was. Nothing in it waits.",
        _core("batch.submit"),
    ),
    Action(
        "session.open", "POST", ACTION_PATHS["session.open"], "decision", "session",
        "Begin to act for an agent, with a key of a short life",
        "Signed by the new key, with the delegations that lead to it: who lets it do what, on which names, until when. "
        "The session ends then, or when it is silent for too long, and what it holds is given back.",
        _core("session.open_session"),
    ),
    Action(
        "session.beat", "POST", ACTION_PATHS["session.beat"], "decision", "session",
        "Say that a session is alive, and what it is at",
        "Any entry of its own keeps a session alive; this is for one that has nothing else to say.",
        _core("session.beat"),
    ),
    Action(
        "session.close", "POST", ACTION_PATHS["session.close"], "decision", "agent",
        "End a session and give back what it holds",
        "By itself, its agent or an operator. The key can't be used again here while its delegation lasts and for a "
        "day after. Closing a session that has ended is a success without effect.",
        _core("session.close"),
    ),
    Action(
        "operator.add", "POST", ACTION_PATHS["operator.add"], "decision", "operator",
        "Let another key answer for agents",
        "From this entry on it may do what operators do. The line for resources is shared among the operators.",
        _core("operator.add"),
    ),
    Action(
        "operator.remove", "POST", ACTION_PATHS["operator.remove"], "decision", "operator",
        "Stop an operator, and everybody it answers for",
        "Its agents are refused and its sessions end; what they hold is given back. The last operator stays.",
        _core("operator.remove"),
    ),
    Action(
        "scheme.set", "POST", ACTION_PATHS["scheme.set"], "decision", "operator",
        "Say how the names of a scheme share and fold",
        "Only while nothing of the scheme is held or waited for; the values that stand already may be set at any time.",
        _core("scheme.set_scheme"),
    ),
    Action(
        "rules.load", "POST", ACTION_PATHS["rules.load"], "decision", "operator",
        "Put a set of rules in force",
        "Cedar text, checked against the published schema before it is let in. `enforce` decides from the next entry "
        "on, `shadow` only writes down what it would have decided. The text is in the ledger.",
        _core("rules.load"),
    ),
    Action(
        "agent.add", "POST", ACTION_PATHS["agent.add"], "decision", "operator",
        "Let a key act on this ledger",
        "Enrols the DID, with a label for people. A removed key may be enrolled again, also by another operator. An "
        "agent with `agentCustody: gateway` has its key here, and acts by an API key.",
        _core("agent.add"),
    ),
    Action(
        "agent.remove", "POST", ACTION_PATHS["agent.remove"], "decision", "operator",
        "Stop a key from acting on this ledger",
        "From this entry on the key decides and reads nothing; what it and its sessions hold is given back.",
        _core("agent.remove"),
    ),
    Action(
        "apikey.issue", "POST", ACTION_PATHS["apikey.issue"], "decision", "operator",
        "Let an API key be used here",
        "Names the key by its SHA-256; the key itself stays with whoever made it. With an agent in the gateway's "
        "custody it speaks for that one; without, it enrols new agents and reads. A trial key enrols one.",
        _core("apikey.issue"),
    ),
    Action(
        "apikey.revoke", "POST", ACTION_PATHS["apikey.revoke"], "decision", "operator",
        "Stop an API key",
        "From this entry on it does nothing. Agents that it enrolled stay; remove those that should not.",
        _core("apikey.revoke"),
    ),
    Action(
        "key.announce", "POST", ACTION_PATHS["key.announce"], "decision", "operator",
        "Put a further key of the gateway in force",
        "Carries a statement that the root signed. From the next entry on the key signs beside the one in force; the "
        "key that must come after it is committed to by its hash.",
        _core("key.announce"),
    ),
    Action(
        "key.retire", "POST", ACTION_PATHS["key.retire"], "decision", "operator",
        "Take a key of the gateway out of force",
        "Carries a statement that the root signed. What the key signed stays valid; it can't sign anything newer.",
        _core("key.retire"),
    ),
    Action(
        "key.compromise", "POST", ACTION_PATHS["key.compromise"], "decision", "operator",
        "Disown a key of the gateway that others may have",
        "Carries a statement that the root signed. What the key signed then needs witnesses, or a proof to a tree that "
        "a later key signed.",
        _core("key.compromise"),
    ),
    Action(
        "agent.enrol", "POST", f"{PREFIX}/agents/enrol", "enrolment", "bearer",
        "Enrol a key of one's own with an API key",
        "The new key proves itself by a signature; the gateway then signs `agent.add` in the name of the API key, for "
        "whose operator the agent acts. Everything after is signed with the new key.",
    ),
    Action(
        "coordination.wait", "GET", f"{PREFIX}/coordination/wait", "read", "reader",
        "See who holds what, who stands in line and who was refused",
        "A picture of the live leases, of the queues and of recent refusals. It writes nothing and proves nothing.",
        parameters=(_RESOURCE,),
    ),
    Action(
        "lease.list", "GET", f"{PREFIX}/coordination/leases", "read", "reader",
        "List the live leases of one holder",
        "With `holder=me` the request is signed on every ledger. It writes nothing and proves nothing.",
        parameters=(_HOLDER,),
    ),
    Action(
        "trust.get", "GET", f"{PREFIX}/coordination/trust", "read", "reader",
        "See how far an agent kept its leases in order",
        "The figure in milli-points and the entry that changed it last. It writes nothing and proves nothing.",
        parameters=(_DID,),
    ),
    Action(
        "scheme.list", "GET", ACTION_PATHS["scheme.set"], "read", "reader",
        "List the schemes that an operator set",
        "Schemes that are not listed are exclusive, with plain names. It writes nothing and proves nothing.",
    ),
    Action(
        "usage.get", "GET", f"{PREFIX}/usage", "read", "reader",
        "See how much was admitted",
        "Admissions of each agent, operator and scheme: this minute, this day and in all. Nothing else is metered. It "
        "writes nothing and proves nothing.",
        parameters=(_ANYBODY,),
    ),
    Action(
        "approval.list", "GET", ACTION_PATHS["approval.ask"], "read", "reader",
        "List the requests for approval, waiting and lately ended",
        "What each would do, who may approve it, who has, and until when it stands. It writes nothing and proves "
        "nothing.",
        parameters=(_ASK, _ASKED_BY, _ASKED_OF),
    ),
    Action(
        "rules.show", "GET", ACTION_PATHS["rules.load"], "read", "reader",
        "Show the rules in force",
        "The text with its version, digest and mode, and the entry that loaded it. It writes nothing and proves "
        "nothing.",
    ),
    Action(
        "agent.list", "GET", f"{PREFIX}/agents", "read", "reader",
        "List the enrolled keys",
        "Every key that was ever enrolled, with its label and the entries that added and removed it.",
    ),
    Action(
        "session.list", "GET", ACTION_PATHS["session.open"], "read", "reader",
        "List the sessions, open and lately ended",
        "For whom each acts, what it may do, until when, what it says it is at, and whether two processes seem to use "
        "its key. It writes nothing and proves nothing.",
        parameters=(_AGENT,),
    ),
    Action(
        "operator.list", "GET", ACTION_PATHS["operator.add"], "read", "reader",
        "List the operators",
        "Every key that ever was one, with the entries that added and removed it.",
    ),
    Action(
        "apikey.list", "GET", ACTION_PATHS["apikey.issue"], "read", "reader",
        "List the API keys by their digests",
        "What each is for, who issued it, and the entries that issued and revoked it. On a members' ledger for "
        "operators only.",
    ),
    Action(
        "key.list", "GET", f"{PREFIX}/keys", "read", "reader",
        "List the ledger's own keys",
        "Which entries put them in force and ended them, and the hash of the one that must come next. Pin the key "
        "document, not this: it writes nothing and proves nothing.",
    ),
    Action(
        "receipt.get", "GET", f"{PREFIX}/ledger/receipts/{{seq}}", "read", "reader",
        "Get the receipt of an entry again",
        "The same leaf and signature as in the answer, with an inclusion proof at the newest checkpoint that witnesses "
        "cosigned, or at the newest one while that does not reach it.",
        parameters=(_SEQ,),
    ),
    Action(
        "ledger.consistency", "GET", f"{PREFIX}/ledger/consistency", "read", "anyone",
        "Get the proof that a checkpoint extends an older tree",
        "In the form that witnesses are sent: `old`, hashes, an empty line, the newer checkpoint. Without `to` that is "
        "the newest one that witnesses cosigned.",
        parameters=(_FROM, _TO),
    ),
    Action(
        "ledger.dispute", "POST", f"{PREFIX}/ledger/dispute", "report", "anyone",
        "Report a checkpoint that contradicts this ledger",
        "The body is the note. Validly signed by this log's own key and not this log's at that size, it stops all "
        "grants; anything else stops nothing.",
    ),
    Action(
        "ledger.seen", "POST", f"{PREFIX}/ledger/seen", "report", "anyone",
        "Offer the newest checkpoint one holds",
        "As a dispute: a gateway restored from an old back-up learns here that it is behind, and stops granting.",
    ),
)
# fmt: on
ACTIONS: Mapping[str, Action] = {action.name: action for action in _TABLE}
