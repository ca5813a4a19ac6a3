"""The desk: what a client can do, in words.

One signed request comes in as it arrived and is verified once; what leaves the desk is the finished answer. Malformed
and forged requests end here and cost no lock. The desk knows no HTTP beyond the signed fields, and decides nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import orjson

from gateway.actions import ACTIONS, Action
from gateway.client.signing import Draft, new_nonce, sign_request
from gateway.core.authority import OPERATOR_ACTIONS, is_operator, operator_share
from gateway.core.draft import Draft as Records
from gateway.core.draft import View
from gateway.core.intake import (
    RawRequest,
    Rejection,
    SignedRequest,
    check_ttl,
    commands_of,
    intake_first,
    is_inside_window,
    weight_of,
    with_approvals,
)
from gateway.core.lookup import agent_at, lease_at, quota_at, rule_set_at, session_at, ticket_at
from gateway.core.outcome import Context, Unreceipted
from gateway.core.parameters import Parameters
from gateway.core.record_keys import agent_key, operator_key
from gateway.core.records import Scheme
from gateway.core.refusal import AGENT_UNKNOWN, ISSUER_UNKNOWN, OUTSIDE_WINDOW, Refusal
from gateway.core.session import opening_fault
from gateway.core.terms import met_by
from gateway.errors import Busy
from gateway.ledger.history import Answer
from gateway.ledger.line import QUEUE_MAX, QUEUE_RESERVED, RESERVED_ACTIONS
from gateway.ledger.live import Live
from gateway.ledger.parking import Spot
from gateway.ledger.sequencer import Refused, Sequencer
from gateway.news import News
from gateway.rules.apart import Unchecked
from gateway.rules.evaluate import INSTALL
from keys.signing import SigningKey
from verifier.entries import is_assigned
from verifier.note import VerifierKey
from verifier.statement import open_key_statement
from verifier.wire import Malformed, encode_base64, encode_canonical

Policy = Literal["decisions", "trial"]
Check = Callable[[SignedRequest], None]

SIGNED_HERE_LIFE_S = 60  # a claim may wait 20 s for its turn, and half of what is left at most
ROWS_PER_RULING = 32  # each name that rules are asked about: half a decision, for asking anew costs about that much
ROWS_PER_DECISION = 64  # names that a request has, and leases, delays and tickets that they meet
RULES_FAULTS_MAX = 8  # that are told of a rule set at once
NONCES_MAX = 32_768  # in each of two generations; a lease call can be sent again for 45 s, 700 per second fit


class Limiter(Protocol):
    """Takes `cost` decisions from a principal's allowance and returns how many are left, or raises."""

    def take(self, principal: str, cost: int = 1) -> int: ...


class WallClock(Protocol):
    """A clock, as far as the doors need it."""

    def now_ms(self) -> int: ...


class Answered(NamedTuple):
    """A finished answer: `body` is a pure function of what is stored, so a replay has the same bytes.

    `error` names the refusal, if it is one, and `retry_after_ms` what that advises. `held_ms`: for how long at most the
    request was kept waiting before it was decided. `left` is what remains of the allowance `policy`: decisions that may
    be asked for at once, or for a trial agent entries in all.
    """

    status: int
    body: bytes
    seq: int
    actor: str
    is_replay: bool
    error: str = ""
    retry_after_ms: int | None = None
    held_ms: int = 0
    policy: Policy = "decisions"
    left: int = 0


@dataclass(frozen=True, slots=True)
class Ledger:
    """What entry 0 says, and its hash: everything about the ledger that never changes."""

    origin: str
    genesis: bytes
    authorities: frozenset[str]
    operators: Sequence[str]
    enroller: str
    is_public: bool
    is_dev: bool
    parameters: Parameters
    root: VerifierKey


class KeyRoom(Protocol):
    """Where the private keys are that sign for the ledger."""

    def has(self, purpose: str, key: VerifierKey) -> bool:
        """Say whether the private half of a key of this purpose is here, also if it came just now."""


class Reviewer(Protocol):
    """Looks rule sets through, off the loop."""

    async def review(self, text: str, folding: Collection[str]) -> Sequence[str]:
        """Return what is wrong with a text, where the schemes in `folding` fold case. Unchecked: nobody knows."""


class FirstUse:
    """On a `--dev` ledger the throw-away operator enrols any key that signs a request.

    It signs an ordinary `agent.add` that goes through the same desk, so that even here no agent exists without an
    operator's signature, and the verifier needs no exception.
    """

    def __init__(self, operator: SigningKey, ledger: Ledger) -> None:
        assert ledger.is_dev, "entry 0 must say that this is a throw-away ledger"
        self._operator = operator
        self._ledger = ledger

    def request_for(self, did: str, t_ms: int) -> RawRequest:
        """Return the operator's request, signed at `t_ms`, that enrols `did`; one idempotency key per DID, so it
        happens once."""
        ledger = self._ledger
        draft = Draft(
            method="POST",
            authority=min(ledger.authorities),
            path=ACTIONS["agent.add"].path,
            query="",
            anchor=f"{ledger.origin} 1 {encode_base64(ledger.genesis)}",
            body=encode_canonical({"actorDid": self._operator.did, "agent": did, "ledger": ledger.origin}),
            idempotency_key=f"first-use:{did}",
        )
        return signed_here(draft, self._operator, t_ms)


def signed_here(draft: Draft, key: SigningKey, t_ms: int) -> RawRequest:
    """Return a request that the gateway signs with a key of its own at `t_ms`, as it would have come over the wire."""
    headers = sign_request(draft, key, created_s=t_ms // 1_000, nonce=new_nonce(), life_s=SIGNED_HERE_LIFE_S)
    return RawRequest(draft.method, draft.authority, draft.path, "?", tuple(headers.items()), draft.body or b"")


class Taken(NamedTuple):
    """What a request took from an allowance: whether it is a copy of an earlier one, and what is left."""

    is_copy: bool
    left: int


class Allowance:
    """Rates requests by who pays for them; copies of one request share an allowance of their own.

    Who reads a public ledger can send any request in it again, as long as its window lasts. The core answers that the
    nonce was used, but if copies took from the payer's own rate, anybody could keep a holder from renewing its lease.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._seen: set[int] = set()  # keyed hashes of (key, nonce): a few MiB, and nobody outside can aim at one
        self._seen_before: set[int] = set()

    def take(self, request: SignedRequest, payer: str, cost: int) -> Taken:
        """Take what a verified request of a known key costs, or raise what the limiter raises."""
        mark = hash((request.keyid, request.nonce))
        if mark in self._seen or mark in self._seen_before:
            return Taken(True, self._limiter.take(f"{payer} again", cost))
        left = self._limiter.take(payer, cost)
        self._seen.add(mark)
        if len(self._seen) >= NONCES_MAX:
            self._seen, self._seen_before = set(), self._seen
        return Taken(False, left)


class Shares:
    """How much of the line each operator's agents take up, so that those of one leave room for the others'.

    An operator alone is bounded by the line itself; two have half each, from four on each has a quarter. Who renews or
    gives back is let in whatever its share, as the line itself does. Somebody who went away is no longer counted, but
    what was asked for is still decided; the line's own bound holds for that.
    """

    def __init__(self, size: int = QUEUE_MAX - QUEUE_RESERVED) -> None:
        self._size = size
        self._waiting: dict[str, int] = {}

    def enter(self, view: Live, operator: str, request: SignedRequest) -> int:
        """Count a request as waiting and return for how much; Busy when its operator's share is used up."""
        weight = weight_of(request)
        waiting = self._waiting.get(operator, 0) + weight
        share = operator_share(view, self._size)
        is_alone = share == self._size  # then the line's own bound holds, and its answer is the better one
        if waiting > share and not is_alone and request.action not in RESERVED_ACTIONS:
            raise Busy("share_full")
        self._waiting[operator] = waiting
        return weight

    def leave(self, operator: str, weight: int) -> None:
        """Whoever waited has its answer, or went away."""
        left = self._waiting[operator] - weight
        if left:
            self._waiting[operator] = left
        else:
            del self._waiting[operator]


class Account(NamedTuple):
    """Whose allowance a known key takes from, which operator answers for it, and whether it is on trial."""

    payer: str
    operator: str
    is_trial: bool = False


class Desk:
    """Takes raw requests, returns finished answers.

    It asks no clock: a signature is of this time when it is so by log time, which a wall clock that was set moves not.
    """

    def __init__(
        self,
        sequencer: Sequencer,
        ledger: Ledger,
        limiter: Limiter,
        first_use: FirstUse | None,
        keys: KeyRoom | None = None,
        news: News | None = None,
        reviewer: Reviewer | None = None,
    ) -> None:
        """`keys` is asked before a key is announced; None: whoever decides must be able to sign with any. `news` is
        asked before anybody counts as unknown; None: nobody else writes. `reviewer` is asked before rules are loaded;
        None: none are."""
        self._keys = keys
        self._reviewer = reviewer
        self._news = news or News(sequencer, is_shared=False)
        self._sequencer = sequencer
        self._ledger = ledger
        self._allowance = Allowance(limiter)
        self._first_use = first_use
        self._shares = Shares()

    async def decide(
        self, raw: RawRequest, action: Action, *, wait_ms: int = 0, check: Callable[[View], object] | None = None
    ) -> Answered:
        """Verify, decide, commit and answer one request; a claim may be kept waiting for its turn up to `wait_ms`.

        `check` raises when, by the records that it is decided on, nothing may be decided for who asks.

        Raises Rejection (the sender's fault), RateLimited and Busy (nothing happened), Draining (nothing happened, no
        more), Refused (no entry), Fatal. A caller that stops waiting abandons the answer, never the commit; a claim
        that still waits for its turn then leaves nothing behind.
        """
        request = self._verified(raw, action)
        account = self._account(request) or await self._account_elsewhere(request) or await self._enrol(request)
        taken = self._allowance.take(request, account.payer, request_cost(self._sequencer.view, request))
        request = with_approvals(request)
        if request.action.startswith("key."):
            self._check_key(request)
        if request.action == "rules.load":
            await self._check_rules(request)
        spot = None if taken.is_copy or not action.is_held else await self._place(request, wait_ms)
        if spot is not None:
            await self._sequencer.parking.wait(self._sequencer.view, spot)
        weight = self._shares.enter(self._sequencer.view, account.operator, request)
        try:
            answer = await self._sequencer.submit(request, action, check)
        finally:
            self._shares.leave(account.operator, weight)
        policy, left = self._left(request.keyid, taken) if account.is_trial else ("decisions", taken.left)
        return _answered(answer, request.keyid, spot, policy, left)

    async def _account_elsewhere(self, request: SignedRequest) -> Account | None:
        """Return on whose account a request goes, if another node let its sender in a moment ago."""
        return self._account(request) if await self._news.catch_up() else None

    async def _place(self, request: SignedRequest, wait_ms: int) -> Spot | None:
        """Return where a claim waits; its ticket may be of another node's line, which is the same one."""
        if wait_ms and ticket_at(self._sequencer.view, request.text("ticketId")) is None:
            await self._news.catch_up()
        return self._spot(request, wait_ms)

    def _spot(self, request: SignedRequest, wait_ms: int) -> Spot | None:
        """Return where a claim waits for its turn, if it may; a signature must still count when it is decided."""
        parameters, now_ms = self._ledger.parameters, self._sequencer.time_ms
        left_ms = request.expires * 1_000 + parameters.skew_ms - now_ms
        patience_ms = min(wait_ms, left_ms // 2)
        ticket_id, view = request.text("ticketId"), self._sequencer.view
        return self._sequencer.parking.spot(view, ticket_id, request.actor, now_ms, patience_ms, parameters)

    def _verified(self, raw: RawRequest, action: Action) -> SignedRequest:
        ledger = self._ledger
        request = intake_first(raw, origin=ledger.origin, authorities=ledger.authorities, action=action.name)
        check_each(request, self._check)
        if not is_inside_window(request, self._sequencer.time_ms, ledger.parameters.skew_ms):
            raise Refused(Unreceipted(OUTSIDE_WINDOW, {}))  # an early exit; the core asks again, by its moment
        return request

    def _check(self, request: SignedRequest) -> None:
        """Raise Rejection when a request asks for more than this ledger gives anybody."""
        parameters = self._ledger.parameters
        check_ttl(request, parameters.ttl_min_ms, parameters.ttl_max_ms)
        check_give_up(request, parameters.wait_max_ms)
        check_assigned(request)

    def _check_key(self, request: SignedRequest) -> None:
        """Raise Rejection unless the root states just this, and the key to be announced could sign at once.

        Asked of those that have an account only: to look for a key costs milliseconds.
        """
        ledger, note = self._ledger, request.text("statement").encode()
        try:
            stated = open_key_statement(note, ledger.root, ledger.origin, ledger.genesis)
        except Malformed as error:
            raise Rejection("key_statement_invalid", str(error)) from error
        if request.action != f"key.{stated.verb}":
            raise Rejection("key_statement_invalid", f"the statement says {stated.verb}, which is another action")
        if stated.verb == "announce" and self._keys is not None and not self._keys.has(stated.purpose, stated.key):
            raise Rejection("key_unready", f"keys/ has no private {stated.purpose} key of {stated.key.vkey}")

    async def _check_rules(self, request: SignedRequest) -> None:
        """Raise Rejection unless the text is a rule set, and there is an engine that can evaluate it.

        Asked of operators only, whoever else the core refuses: to look a set through costs up to a second of another
        process, and the loop goes on meanwhile. What moves in that time the core sees when it decides.
        """
        if not is_operator(self._sequencer.view, request.actor):
            await self._news.catch_up()  # what is not checked here must be refused by the core
        if not is_operator(self._sequencer.view, request.actor):
            return
        if self._sequencer.evaluator is None or self._reviewer is None:
            raise Rejection("rules_unready", f"no engine for rules is installed beside this gateway: {INSTALL}")
        schemes = (record for _, record in self._sequencer.view.scan("scheme/"))
        folding = [scheme.name for scheme in schemes if isinstance(scheme, Scheme) and scheme.is_folding]
        try:
            faults = await self._reviewer.review(request.text("rules"), folding)
        except Unchecked as error:
            raise Rejection("rules_unchecked", str(error)) from error
        if faults:
            more = f"; and {len(faults) - RULES_FAULTS_MAX} more" if len(faults) > RULES_FAULTS_MAX else ""
            raise Rejection("rules_invalid", "; ".join(faults[:RULES_FAULTS_MAX]) + more)

    def _account(self, request: SignedRequest) -> Account | None:
        """Return on whose account a request goes, None for a key that the core would not know: strangers end here, so
        that they can't fill the queue.

        A session pays from its principal's allowance, so no agent gains any by more sessions; one that has ended takes
        nothing from it any more, for its key may be in wrong hands. What the gateway enrols, an API key pays.
        """
        view, did, action = self._sequencer.view, request.keyid, request.action
        agent, session = agent_at(view, did), session_at(view, did)
        if action == "session.open":
            lender = self._lender(request)
            if lender is None or session is None:
                return lender
        elif agent is not None and agent.removed_seq is None:
            return Account(did, agent.operator, agent.trial_until_ms is not None)
        if session is not None:
            payer = session.principal if session.is_open else f"{session.principal} ended"
            return Account(payer, session.on_behalf_of)
        if action in OPERATOR_ACTIONS and view.get(operator_key(did)) is not None:
            return Account(did, did)
        if action == "agent.add" and did == self._ledger.enroller:
            return Account(f"apikey {request.text('keyDigest')}", did)
        return None if agent is None else Account(did, agent.operator, agent.trial_until_ms is not None)

    def _lender(self, request: SignedRequest) -> Account | None:
        """Return on whose account a session is opened, by a key that nobody has seen yet: who let it in pays.

        Who begins the chain of its delegations must be known. Whoever else is no agent here can be made up, each time
        another one.
        """
        view, root = self._sequencer.view, request.delegations[0].iss
        agent, issuer = agent_at(view, root), request.delegations[-1].iss
        if agent is None and view.get(operator_key(root)) is None:
            return None
        payer = issuer if view.get(agent_key(issuer)) is not None else root
        return Account(payer, root if agent is None else agent.operator)

    def _left(self, did: str, taken: Taken) -> tuple[Policy, int]:
        """Return the allowance of an agent on trial, and what is left of it now; that may be over meanwhile."""
        view = self._sequencer.view
        agent = agent_at(view, did)
        if agent is None or agent.trial_until_ms is None:
            return "decisions", taken.left
        return "trial", max(0, self._ledger.parameters.trial_decisions - quota_at(view, did).used)

    def _chain_fault(self, request: SignedRequest) -> Refusal:
        """Return the row of the table that the core would find for delegations whose first issuer is unknown here."""
        context = Context(self._sequencer.time_ms, 0, self._ledger.parameters)
        return opening_fault(Records(self._sequencer.view), request, context) or ISSUER_UNKNOWN

    async def _enrol(self, request: SignedRequest) -> Account:
        """Enrol a stranger where any key may join, and return its account; elsewhere refuse it, as the core would.

        Sessions come by a delegation, and a key that is something else here already stays that.
        """
        if request.action == "session.open":
            raise Refused(Unreceipted(self._chain_fault(request), {}))
        did = request.keyid
        is_taken = did == self._ledger.enroller or self._sequencer.view.get(operator_key(did)) is not None
        if self._first_use is None or is_taken:
            raise Refused(Unreceipted(AGENT_UNKNOWN, {}))
        action = ACTIONS["agent.add"]
        enrolment = self._verified(self._first_use.request_for(did, self._sequencer.time_ms), action)
        await self._sequencer.submit(enrolment, action)
        return self._account(request) or Account(did, enrolment.actor)


def decision_cost(row_count: int) -> int:
    """Return how many decisions a command counts as: every 64 rows it has or meets are one, and none is one too."""
    return max(1, -(-row_count // ROWS_PER_DECISION))


def request_cost(view: Live, request: SignedRequest) -> int:
    """Return how many decisions a request counts as: by its names, and by what is filed where it has to look around.

    Whoever keeps, gives back or waits, and says by an id what, pays for no crowd that others make around it.
    """
    if request.action == "batch.submit":
        return sum(request_cost(view, one) for one in commands_of(request))
    names = request.body.get("resources")
    own = len(names) if isinstance(names, list) else 1
    if request.action == "coordination.admit" and rule_set_at(view) is not None:
        own *= ROWS_PER_RULING
    return decision_cost(own + sum(len(view.near(term)) for name in _asked(view, request) for term in met_by(name)))


def _asked(view: Live, request: SignedRequest) -> Sequence[str]:
    """Return the names that a decision looks around at: those of the body, or of the lease that is to be changed."""
    action, body = request.action, request.body
    if action in ("lease.acquire", "coordination.admit") or (action == "lease.release" and "leaseId" not in body):
        return request.resources
    if action == "lease.accept" or (action == "lease.renew" and "mode" in body):
        lease = lease_at(view, request.text("leaseId"))
        return lease.resources if lease else ()
    return ()


def check_each(request: SignedRequest, check: Check) -> None:
    """Make a check of a request, or of each command of a batch; then the text says in which one the fault is."""
    if request.action != "batch.submit":
        check(request)
        return
    for index, command in enumerate(commands_of(request)):
        try:
            check(command)
        except Rejection as rejection:
            raise Rejection(rejection.code, f"in commands[{index}]: {rejection.detail}") from rejection


def check_give_up(request: SignedRequest, wait_max_ms: int) -> None:
    """Raise Rejection unless a request that would wait gives up within this ledger's own bound, stated in entry 0."""
    if request.action != "lease.acquire" or not request.flag("wait"):
        return
    give_up_ms = request.number("giveUpMs")
    if give_up_ms > wait_max_ms:
        raise Rejection(
            "member_invalid", f"giveUpMs must be at most {wait_max_ms:,} on this ledger, not {give_up_ms}; state it"
        )


def check_assigned(request: SignedRequest) -> None:
    """Raise Rejection when a name has a character that this Unicode version does not know.

    A later version may find that its normal form is another one; then two spellings would have been two names.
    """
    if not all(map(is_assigned, request.resources)):
        known = f"Unicode {unicodedata.unidata_version}"
        raise Rejection("member_invalid", f"a resource has a character that {known} does not know; choose another name")


def _answered(answer: Answer, actor: str, spot: Spot | None, policy: Policy, left: int) -> Answered:
    error, retry_after_ms = "", None
    if answer.status >= 400:
        leaf = orjson.loads(answer.leaf)
        error, retry_after_ms = str(leaf["error"]), leaf.get("retryAfterMs")
    return Answered(
        status=answer.status,
        body=answer.body(),
        seq=answer.seq,
        actor=actor,
        is_replay=answer.is_replay,
        error=error,
        retry_after_ms=retry_after_ms,
        held_ms=spot.hold_ms if spot else 0,
        policy=policy,
        left=left,
    )
