"""Who acts for whom, who may, and what is left of whom who may no more. Written from chapters 28 to 31 alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any

import orjson

from tests.sim.batches import Batches
from tests.sim.book import Agent, ApiKey, Lease, Session, Ticket, Trust
from tests.sim.names import covers, scheme_of
from tests.sim.refusals import demand

Leaf = dict[str, Any]
Who = tuple[str, str, bool]  # principal, onBehalfOf, whether the gateway holds the key
ACTIONS = {
    "coordination/lease": "lease.acquire", "coordination/renew": "lease.renew", "coordination/release": "lease.release",
    "coordination/transfer": "lease.transfer", "coordination/accept": "lease.accept",
    "coordination/break": "lease.break", "coordination/wait/claim": "wait.claim",
    "coordination/wait/cancel": "wait.cancel", "coordination/batch": "batch.submit", "schemes": "scheme.set",
    "operators": "operator.add", "operators/remove": "operator.remove", "agents": "agent.add",
    "agents/remove": "agent.remove", "apikeys": "apikey.issue", "apikeys/revoke": "apikey.revoke",
    "sessions": "session.open", "sessions/beat": "session.beat", "sessions/close": "session.close",
    "keys/announce": "key.announce", "keys/retire": "key.retire", "keys/compromise": "key.compromise",
    "coordination/admit": "coordination.admit", "rules": "rules.load", "approvals": "approval.ask",
    "approvals/give": "approval.give", "approvals/decline": "approval.decline",
    "approvals/withdraw": "approval.withdraw",
}  # fmt: skip
# What an operator may sign as such.
OFFICE = {
    "lease.transfer", "lease.break", "scheme.set", "operator.add", "operator.remove", "agent.add", "agent.remove",
    "apikey.issue", "apikey.revoke", "session.close", "key.announce", "key.retire", "key.compromise", "rules.load",
    "approval.give", "approval.decline",
}  # fmt: skip
VERBS = {
    "lease.acquire": "lease", "lease.renew": "lease", "lease.release": "lease", "lease.accept": "lease",
    "wait.claim": "lease", "wait.cancel": "lease", "lease.transfer": "transfer", "coordination.admit": "admit",
    "approval.ask": "admit", "approval.withdraw": "admit",
}  # fmt: skip
HOLDING = {
    "lease.granted", "lease.extended", "lease.claimed", "lease.changed", "lease.transferred", "lease.renewed",
    "session.opened", "session.seen",
}  # fmt: skip
NUMBERS = {"session.ended": "openedSeq", "wait.removed": "ticketSeq", "lease.returned": "grantSeq"}
TTL_MS, STEP_MS = 30_000, 2_000


class People(Batches):
    """Handlers of the entries about operators, agents, API keys and sessions, and what every request must be."""

    written: dict[int, tuple[int, int]]
    slack_ms: int
    trusted: Callable[[str], Trust]
    trust: Callable[[Leaf, list[tuple[str, int]]], None]
    _due_max: int

    def __init__(self) -> None:
        super().__init__()
        self.is_owed = self.is_asked_for = False
        self._owed: list[tuple[str, int]] = []  # what has to come next: type of entry, and what it is about
        self._causes: dict[str, tuple[int, bool]] = {}  # by key that is gone: by which entry, and whether it is tidy
        self._revoked_by = 0
        self._were: dict[str, set[str]] = {"ended": set(), "removed": set(), "former": set()}

    # -- every entry --------------------------------------------------------------------------------------------------

    def begins(self, leaf: Leaf, kind: str) -> None:
        """Nothing comes between what belongs together."""
        self.is_owed = bool(self._owed)
        if self._owed:
            found, wanted = (kind, leaf.get(NUMBERS.get(kind, ""))), self._owed.pop(0)
            demand(found == wanted, "once", f"entry {leaf['seq']} is {found}, and {wanted} has to come")
        self.in_its_place(leaf)
        if "request" not in leaf:
            told = {leaf["actor"], leaf["principal"], leaf["onBehalfOf"]}
            demand(told == {"gateway"} and "custody" not in leaf, "who", f"entry {leaf['seq']} is the gateway's own")

    def acts(self, leaf: Leaf) -> None:
        """The signer of a request may act, and the entry says for whom."""
        if "request" in leaf and "path" in leaf["request"]:
            leaf["action_of"] = leaf.get("action")  # the command that a refused batch names
            leaf["action"] = ACTIONS[leaf["request"]["path"].removeprefix("/api/v1/acp/")]
        told = (leaf["principal"], leaf["onBehalfOf"], leaf.get("custody") == "gateway")
        who = self._opener(leaf) if leaf["action"] == "session.open" else self._who(leaf)
        demand(told == who, "who", f"entry {leaf['seq']} is said to be by {told}, not {who}")
        self._on_trial(leaf)
        if leaf["action"] != "batch.submit":  # its commands are asked one by one
            self.in_scope(leaf)

    def _who(self, leaf: Leaf) -> Who:
        book, did, action, seq = self.book, leaf["actor"], leaf["action"], leaf["seq"]
        if did in book.operators and action in OFFICE:
            return did, did, False
        if did == book.enroller:
            demand(action == "agent.add", "authority", f"entry {seq}: the enroller does {action}")
            return did, did, True
        session = book.session(did)
        if session is not None:
            demand(session.ended_seq is None, "authority", f"entry {seq} is by a session that ended")
            demand(book.t_ms < session.expires_ms, "authority", f"entry {seq} is by a session whose time is over")
            return session.principal, session.operator, False
        agent = book.agent(did)
        demand(agent, "authority", f"entry {seq} is by a key that is not enrolled")
        assert agent is not None
        demand(agent.operator in book.operators, "authority", f"entry {seq} is by an agent without operator")
        is_over = agent.trial_until_ms is not None and book.t_ms >= agent.trial_until_ms
        demand(not is_over, "trial", f"entry {seq}: the days of the trial are over")
        return did, agent.operator, agent.is_custodial

    def _on_trial(self, leaf: Leaf) -> None:
        """Each entry of an agent on trial counts."""
        book, did = self.book, leaf["actor"]
        if book.on_trial(did) is not None and did not in book.operators:
            book.used[did] = book.used.get(did, 0) + 1
            most = book.rules["trialDecisions"]
            demand(book.used[did] <= most, "trial", f"entry {leaf['seq']} is one more than {most} of a trial")

    def in_scope(self, leaf: Leaf) -> None:
        """What is outside the scope of its actor is refused, as that and nothing else."""
        is_outside, is_refused = self._is_outside(leaf), leaf.get("error") == "outside_scope"
        demand(is_outside == is_refused, "authority", f"entry {leaf['seq']}: outside its scope is {is_outside}")

    def _is_outside(self, leaf: Leaf) -> bool:
        book, did, action = self.book, leaf["actor"], leaf["action"]
        verb, session, body = VERBS.get(action), book.session(did), leaf["body"]
        if action in ("approval.give", "approval.decline"):  # nobody lends his word
            return did not in book.operators and session is not None and session.ended_seq is None
        if verb is None or (did in book.operators and action in OFFICE):
            return False
        names = self._asked(action, body)
        if session is not None and session.ended_seq is None:
            return verb not in session.verbs or not are_covered(names, session.names)
        if book.on_trial(did) is None:
            return False
        is_timed = action in ("lease.acquire", "lease.renew", "lease.accept")
        is_long = is_timed and body.get("ttlMs", TTL_MS) > book.rules["trialTtlMaxMs"]
        return verb == "transfer" or is_long or not are_covered(names, [f"trial:{did}/**"])

    def _asked(self, action: str, body: Leaf) -> list[str]:
        if action in ("lease.acquire", "coordination.admit", "approval.ask"):
            return list(body.get("resources") or [body["resource"]])
        lease = self.live(body["leaseId"]) if action == "lease.accept" else None
        return [] if lease is None else lease.names

    def refused_outside_scope(self, leaf: Leaf, _: object) -> None:
        demand(self._is_outside(leaf), "authority", f"entry {leaf['seq']} is within its scope")

    def ends(self, leaf: Leaf, kind: str) -> None:
        """Every entry of its own keeps a session alive, and what it holds says until when."""
        book, session = self.book, self.book.sessions.get(leaf["actor"])
        wanted = None
        if session is not None and session.ended_seq is None and "request" in leaf:
            session.idle_by_ms, session.heard_seq = book.t_ms + book.rules["sessionIdleMs"], leaf["seq"]
            lasts_ms = [session.idle_by_ms, session.expires_ms]
            wanted = min(*lasts_ms, leaf.get("expiresAtMs", lasts_ms[0])) if kind in HOLDING else None
            if "anchor" in leaf["request"]:
                self._shared(session, leaf)
        demand(leaf.get("endsIfIdleAtMs") == wanted, "idle", f"entry {leaf['seq']}: endsIfIdleAtMs is not {wanted}")
        self.out_of_its_place(leaf, kind)

    def _shared(self, session: Session, leaf: Leaf) -> None:
        """Who signs later than the newest anchor was signed with, and knows less, is another process."""
        size, signed_s = int(leaf["request"]["anchor"].split(" ")[1]), created_s(leaf)
        if size > session.anchor_size:
            session.anchor_size, session.signed_s = size, signed_s
        elif size == session.anchor_size:
            session.signed_s = min(session.signed_s, signed_s)
        elif signed_s > session.signed_s and session.shared_seq is None:
            session.shared_seq = leaf["seq"]
            self.count("session shared")

    # -- operators, agents, API keys ----------------------------------------------------------------------------------

    def by_operator(self, leaf: Leaf) -> None:
        demand(leaf["actor"] in self.book.operators, "I15", f"entry {leaf['seq']} is not by an operator")

    def or_no_operator(self, leaf: Leaf) -> None:
        """Who is no operator is told so, and nothing else."""
        if leaf["error"] != "operator_required":
            self.by_operator(leaf)

    def refused_operator_required(self, leaf: Leaf, _: object) -> None:
        demand(leaf["actor"] not in self.book.operators, "I10", f"entry {leaf['seq']}: it is an operator")

    def role(self, leaf: Leaf) -> None:
        """A change of roles is made, or refused for the first reason there is."""
        error = getattr(self, "_why_not_" + leaf["action"].replace(".", "_"))(leaf["actor"], leaf["body"])
        demand(leaf.get("error") == error, "role", f"entry {leaf['seq']} says {leaf.get('error')}, not {error}")

    on_operator_refused = on_dismissal_refused = on_agent_refused = on_removal_refused = role
    on_apikey_refused = on_revocation_refused = role

    def _is_role(self, did: str) -> bool:
        return self.book.session(did) is not None or did == self.book.enroller

    def _why_not_operator_add(self, actor: str, body: Leaf) -> str | None:
        if actor not in self.book.operators:
            return "operator_required"
        did = body["operator"]
        return "key_taken" if self.book.agent(did) is not None or self._is_role(did) else None

    def on_operator_added(self, leaf: Leaf) -> None:
        self.role(leaf)
        book, did = self.book, leaf["operator"]
        if did not in book.operators:
            book.operators.append(did)

    def _why_not_operator_remove(self, actor: str, body: Leaf) -> str | None:
        operators = self.book.operators
        if actor not in operators:
            return "operator_required"
        if body["operator"] not in operators:
            return "operator_not_found"
        return "operator_last" if len(operators) == 1 else None

    def on_operator_removed(self, leaf: Leaf) -> None:
        self.role(leaf)
        book, did = self.book, leaf["operator"]
        book.operators.remove(did)
        self._were["former"].add(did)
        agents = [one for one, agent in book.agents.items() if agent.operator == did and not agent.is_removed]
        self._gone(leaf, agents, [one for one in book.open_sessions() if one.operator == did])

    def _why_not_agent_add(self, actor: str, body: Leaf) -> str | None:
        book, did, digest = self.book, body["agent"], body.get("keyDigest")
        if actor != book.enroller if digest else actor not in book.operators:
            return "operator_required"
        key = self._enrolling(digest) if digest else None
        operator = key.operator if key else None if digest else actor
        known = book.agent(did)
        if did in book.operators or self._is_role(did):
            return "key_taken"
        if known is not None and known.is_custodial != ("agentCustody" in body):
            return "key_taken"
        if known is not None and known.operator in book.operators and known.operator != operator:
            return "key_taken"
        if operator is None:
            return "apikey_not_found"
        return "apikey_used" if key and key.kind == "trial" and key.used_by not in (None, did) else None

    def _enrolling(self, digest: str) -> ApiKey | None:
        key = self.book.api_keys.get(digest)
        is_good = key and key.agent is None and not key.is_revoked and key.operator in self.book.operators
        return key if is_good else None

    def on_agent_added(self, leaf: Leaf) -> None:
        self.role(leaf)
        book, did = self.book, leaf["agent"]
        key, before = book.api_keys.get(leaf.get("keyDigest", "")), book.agents.get(did)
        agent = Agent(key.operator if key else leaf["actor"], "agentCustody" in leaf)
        if key is not None and key.kind == "trial":
            had_ms = before.trial_until_ms if before else None
            agent.trial_until_ms = book.t_ms + book.rules["trialMs"] if had_ms is None else had_ms
            key.used_by = did
        book.agents[did] = agent

    def _why_not_agent_remove(self, actor: str, body: Leaf) -> str | None:
        if actor not in self.book.operators:
            return "operator_required"
        return None if self.book.agent(body["agent"]) else "agent_not_found"

    def on_agent_removed(self, leaf: Leaf) -> None:
        self.role(leaf)
        book, did = self.book, leaf["agent"]
        book.agents[did].is_removed = True
        self._were["removed"].add(did)
        self._gone(leaf, [did], [one for one in book.open_sessions() if one.principal == did])

    def _why_not_apikey_issue(self, actor: str, body: Leaf) -> str | None:
        if actor not in self.book.operators:
            return "operator_required"
        agent = self.book.agent(body["agent"]) if "agent" in body else None
        is_its = agent is not None and agent.is_custodial and agent.operator == actor
        if "agent" in body and not is_its:
            return "agent_not_found"
        return "apikey_known" if body["keyDigest"] in self.book.api_keys else None

    def on_apikey_issued(self, leaf: Leaf) -> None:
        self.role(leaf)
        key = ApiKey(leaf["kind"], leaf.get("agent"), leaf["actor"], leaf["seq"])
        self.book.api_keys[leaf["keyDigest"]] = key

    def _why_not_apikey_revoke(self, actor: str, body: Leaf) -> str | None:
        if actor not in self.book.operators:
            return "operator_required"
        key = self.book.api_keys.get(body["keyDigest"])
        return "apikey_not_found" if key is None or key.is_revoked else None

    def on_apikey_revoked(self, leaf: Leaf) -> None:
        self.role(leaf)
        key = self.book.api_keys[leaf["keyDigest"]]
        demand(leaf["issuedSeq"] == key.seq, "role", f"entry {leaf['seq']}: issuedSeq is not {key.seq}")
        key.is_revoked = True

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _opener(self, leaf: Leaf) -> Who:
        """Return for whom a new session acts, when its delegations let it."""
        chain = [row["statement"] for row in leaf["body"]["delegations"]]
        error, who = self._why_not_open(leaf, chain)
        demand(error is None, "authority", f"entry {leaf['seq']} opens a session in spite of {error}")
        return who

    def _why_not_open(self, leaf: Leaf, chain: Sequence[Leaf]) -> tuple[str | None, Who]:
        book, did, last = self.book, leaf["actor"], chain[-1]
        who = self._issuer(did, chain)
        principal, operator, _ = who or ("", "", False)
        is_gone = principal != did and book.agent(principal) is None
        roles = did in book.operators or book.agent(did) or self._is_role(did)
        bound = book.rules["sessionsPerPrincipal"]
        opened = [one for one in book.open_sessions() if one.principal == principal]
        pairs = list(pairwise(chain))
        issuer = book.agents.get(last["iss"])
        is_trial = issuer is not None and issuer.trial_until_ms is not None and last["iss"] not in book.operators
        is_too_long = any(
            child["notBeforeMs"] < one["notBeforeMs"] or child["expiresAtMs"] > one["expiresAtMs"]
            for one, child in pairs
        )
        rows = (
            ("link", any(not _is_linked(one, child) for one, child in pairs) or last["sub"] != did),
            ("delegation_wrong_ledger", any(one["aud"] != leaf["origin"] for one in chain)),
            ("delegation_too_deep", len(chain) > 2 or any(one["maxDepth"] == 0 for one, _ in pairs)),
            ("delegation_too_deep", book.session(chain[0]["iss"]) is not None),
            ("delegation_wider", any(_is_wider(one, child) for one, child in pairs) or is_trial),
            ("delegation_longer", is_too_long),
            ("delegation_expired", not last["notBeforeMs"] <= book.t_ms < last["expiresAtMs"]),
            ("issuer_unknown", who is None),
            ("issuer_removed", is_gone or operator not in book.operators),
            ("session_taken", bool(roles)),
            ("too_many_sessions", len(opened) >= bound),
            ("too_many_sessions", len(book.remembered(did, principal, operator)) >= 16 * bound),
        )
        return next((name for name, is_so in rows if is_so), None), who or ("", "", False)

    def _issuer(self, did: str, chain: Sequence[Leaf]) -> Who | None:
        book, root = self.book, chain[0]["iss"]
        is_operator = root in book.operators or (root in self._were["former"] and root not in book.agents)
        if len(chain) == 1:
            if not is_operator and root in book.agents:
                return root, book.agents[root].operator, False
            return (did, root, False) if is_operator else None
        agent = book.agents.get(chain[1]["iss"])
        is_its = is_operator and agent is not None and agent.operator == root and chain[1]["iss"] not in book.operators
        return (chain[1]["iss"], root, False) if is_its else None

    def on_session_opened(self, leaf: Leaf) -> None:
        last = leaf["body"]["delegations"][-1]["statement"]
        told = (leaf["verbs"], leaf.get("scope"), leaf["expiresAtMs"])
        wanted = (last["verbs"], last.get("resources"), last["expiresAtMs"])
        demand(told == wanted, "authority", f"entry {leaf['seq']} says {told}, not {wanted}")
        self.book.sessions[leaf["actor"]] = Session(
            leaf["actor"], leaf["principal"], leaf["onBehalfOf"], last["verbs"], last.get("resources"), leaf["seq"],
            last["expiresAtMs"], 0, leaf["seq"], int(leaf["request"]["anchor"].split(" ")[1]), created_s(leaf),
        )  # fmt: skip

    def on_session_seen(self, leaf: Leaf) -> None:
        session = self.book.session(leaf["actor"])
        demand(session is not None, "authority", f"entry {leaf['seq']}: no session is seen")

    def on_beat_refused(self, leaf: Leaf) -> None:
        is_so = self.book.session(leaf["actor"]) is None and leaf["error"] == "session_required"
        demand(is_so, "role", f"entry {leaf['seq']} refuses the beat of a session")

    def _closable(self, leaf: Leaf) -> str | None:
        session = self.book.session(leaf["session"])
        if session is None:
            return "session_unknown"
        is_its = leaf["actor"] in (session.did, session.principal) or leaf["actor"] in self.book.operators
        return None if is_its else "session_not_yours"

    def on_closing_refused(self, leaf: Leaf) -> None:
        error = self._closable(leaf)
        demand(leaf["error"] == error, "role", f"entry {leaf['seq']} says {leaf['error']}, not {error}")

    def on_closing_repeated(self, leaf: Leaf) -> None:
        session = self.book.session(leaf["session"])
        is_so = session is not None and session.ended_seq == leaf["endedSeq"] and self._closable(leaf) is None
        demand(is_so, "once", f"entry {leaf['seq']} repeats a closing that was none")

    def on_session_closed(self, leaf: Leaf) -> None:
        demand(self._closable(leaf) is None, "authority", f"entry {leaf['seq']} closes another's session")
        session = self._over(leaf)
        self._gone(leaf, [session.did], [], is_tidy=leaf["actor"] in (session.did, session.principal))

    def _over(self, leaf: Leaf) -> Session:
        """End the session that an entry is about, and look whether it counts right what is given back."""
        book, seq, did = self.book, leaf["seq"], leaf["session"]
        session = book.sessions.get(did)
        is_so = session is not None and session.ended_seq is None and session.seq == leaf["openedSeq"]
        demand(is_so, "once", f"entry {seq} ends a session that is not open")
        assert session is not None
        counts = sum(one.actor == did for one in book.leases), sum(one.actor == did for one in book.tickets)
        demand((leaf["leases"], leaf["tickets"]) == counts, "once", f"entry {seq} does not give back {counts}")
        session.ended_seq = seq
        self._were["ended"].add(did)
        return session

    def on_session_ended(self, leaf: Leaf) -> None:
        book, seq = self.book, leaf["seq"]
        session = self._over(leaf)
        self.count(leaf["reason"])
        if self.is_owed:
            told = (leaf["reason"], leaf.get("causeSeq"))
            demand(told == ("revoked", self._revoked_by), "once", f"entry {seq} says {told}")
            self._causes[session.did] = (seq, False)
            self._end_pleas([session.did], seq)
            demand("trust" not in leaf, "trust", f"entry {seq}: who is revoked loses no trust")
            return
        early_ms = book.session_end_ms(session) - book.t_ms
        demand(early_ms <= 0, "idle", f"entry {seq} ends a session {early_ms} ms early")
        reason = "expired" if book.t_ms >= session.expires_ms else "idle"
        demand(leaf["reason"] == reason, "idle", f"entry {seq}: the reason is {reason}")
        if reason == "idle":
            self._not_early(leaf, session)
        self._in_order(leaf, session)
        loss = min(book.rules["trustLoss"], self.trusted(session.principal).value) if leaf["leases"] else 0
        self.trust(leaf, [(session.principal, -loss)])
        self._gone(leaf, [session.did], [])

    def _not_early(self, leaf: Leaf, session: Session) -> None:
        """Neither in true time, as far as one process can't be mistaken about it."""
        since_ms, process = self.written[session.heard_seq]
        now_ms, now_process = self.written[leaf["seq"]]
        early_ms = self.book.rules["sessionIdleMs"] - (now_ms - since_ms)
        is_so = process != now_process or early_ms <= STEP_MS + self.slack_ms
        demand(is_so, "idle", f"entry {leaf['seq']} ends a session {early_ms} ms early in true time")

    def _in_order(self, leaf: Leaf, session: Session) -> None:
        """What ran out before the session did has its own end, unless there is too much of it."""
        due = (min(session.idle_by_ms, session.expires_ms), session.seq)
        leases = [one for one in self.book.leases if one.actor == session.did]
        before = [one.lease_id for one in leases if (one.expires_ms, one.seq) < due]
        demand(not before or self._due_max < 256, "idle", f"entry {leaf['seq']}: {before} ran out before")

    # -- giving back --------------------------------------------------------------------------------------------------

    def _gone(self, leaf: Leaf, actors: list[str], sessions: list[Session], *, is_tidy: bool = False) -> None:
        """Note what has to come now: sessions, tickets, leases of all who are gone, each in order of number."""
        book, everybody = self.book, [*actors, *(one.did for one in sessions)]
        self._causes = dict.fromkeys(actors, (leaf["seq"], is_tidy))
        self._revoked_by = leaf["seq"]
        self.is_asked_for = "request" in leaf
        self._owed = [("session.ended", one.seq) for one in sessions]
        self._owed += [("wait.removed", one.seq) for one in book.tickets if one.actor in everybody]
        self._owed += sorted(("lease.returned", one.seq) for one in book.leases if one.actor in everybody)
        for did in everybody:
            book.edges.pop(did, None)
        self._end_pleas(actors, leaf["seq"])

    def _end_pleas(self, actors: Sequence[str], seq: int) -> None:
        """What somebody asked to have approved ends with it."""
        for plea in self.book.live_pleas():
            if plea.actor in actors:
                plea.end(seq, self.book.t_ms)

    def cause_of(self, did: str) -> tuple[int, bool]:
        """Return by which entry a key is gone, and whether its leases leave no delay."""
        return self._causes.get(did, (-1, False))

    def nobody_left(self) -> None:
        """Between batches nothing is owed any more, and whoever holds or waits may."""
        demand(not self._owed, "once", f"{self._owed} did not come")
        self.is_whole()
        claims: list[Lease | Ticket] = [*self.book.leases, *self.book.tickets]
        for claim in claims:
            demand(self.book.may_hold(claim.actor), "once", f"{claim.seq} is of {claim.actor[-6:]}, who is gone")

    def no_session_overdue(self) -> None:
        book = self.book
        overdue = [one.seq for one in book.open_sessions() if book.session_end_ms(one) <= book.t_ms]
        demand(not overdue, "idle", f"the sessions of {overdue} are overdue")

    def touched_sessions(self, leaf: Leaf, body: Leaf) -> None:
        """A session that is over has ended before a request that comes near it."""
        book, kind = self.book, leaf["type"].split("/")[1]
        overdue = [one for one in book.open_sessions() if book.session_end_ms(one) <= book.t_ms]
        if not overdue:
            return
        touched = {leaf["actor"]}
        if body.get("askId") in book.pleas and book.pleas[body["askId"]].is_known(book.t_ms):
            touched.add(book.pleas[body["askId"]].actor)
        names = body.get("resources") or [body[name] for name in ("resource",) if name in body]
        claims: list[Lease | Ticket] = [*book.leases, *book.tickets]
        for one in claims:
            is_named = f"L{one.seq}" == body.get("leaseId") or f"T{one.seq}" == body.get("ticketId")
            is_met = any(book.meets(name, other) for name in names for other in one.names)
            is_scheme = "class" in body and any(scheme_of(name) == body["name"] for name in one.names)
            if is_named or is_met or is_scheme:
                touched.add(one.actor)
        for session in overdue:
            is_ended = session.did == body.get("session") and kind == "session.closed"
            is_ended |= session.principal == body.get("agent") and kind == "agent.removed"
            is_ended |= session.operator == body.get("operator") and kind == "operator.removed"
            is_touched = is_ended or session.did in touched
            demand(not is_touched, "idle", f"entry {leaf['seq']} meets a session that is over")

    # -- refusals without an entry ------------------------------------------------------------------------------------

    def fault_of_row(self, did: str, row: str) -> str | None:
        """Return what is wrong with a refusal that has no entry, if what it says never came about."""
        book = self.book
        facts = {
            "session_ended": did in self._were["ended"],
            "session_expired": did in book.sessions,
            "agent_removed": did in self._were["removed"],
            "operator_removed": bool(self._were["former"]),
            "trial_over": did in book.agents,
            "idempotency_mismatch": False,  # nobody uses a key for two requests
            "session_taken": did in book.sessions or did in book.agents or did in book.operators or self._is_role(did),
        }
        return None if facts.get(row, True) else "that never happened"


def are_covered(names: Sequence[str], scope: Sequence[str] | None) -> bool:
    return scope is None or all(any(covers(wide, name) for wide in scope) for name in names)


def created_s(leaf: Leaf) -> int:
    return int(leaf["signed"].split("created=")[1].split(";")[0])


def _is_wider(one: Leaf, child: Leaf) -> bool:
    names = child.get("resources", [""])  # every name is covered by every name alone
    is_covered = "resources" not in one or ("resources" in child and are_covered(names, one["resources"]))
    return not is_covered or not set(child["verbs"]) <= set(one["verbs"])


def _is_linked(one: Leaf, child: Leaf) -> bool:
    digest = sha256(orjson.dumps(one, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return child["iss"] == one["sub"] and child.get("parent") == digest
