"""Cases about admissions, approvals and rule sets: what their entries say, and what their requests say instead.

Leaves that contradict themselves fail at step 9, leaves that contradict what was signed at step 10. Whether counts,
leases and approvers are as the ledger has them is not asked here: one receipt cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.vectors.corpus import Case, Expect, below, holds, of, receipt, unknown, wrong
from tests.vectors.corpus_leaves import in_tree
from tests.verifier import admissions, maker
from tests.verifier.admissions import signed_approval
from tests.verifier.maker import ALICE, BOB, CAROL, DEPUTY, Json, canonical

DAY = admissions.day()
WRITE, CONFLICT, RULED, FORBIDDEN, ASKED, GIVEN, APPROVED, SHADOW, STALE, COMMAND = (
    9,
    10,
    14,
    15,
    20,
    21,
    23,
    33,
    37,
    42,
)
Change = Callable[[Json], None]
BOUND_MS = DAY.value(WRITE)["validUntilMs"]


def entry(seq: int, name: str, comment: str, *arguments: str, expect: Expect | None = None) -> Case:
    return of(DAY, seq, f"admission-{name}", comment, expect or holds(), *arguments)


def leaf(name: str, comment: str, seq: int = WRITE, member: str | None = None, **changes: Any) -> Case:
    """An entry of the day in which members were replaced, or those inside one; ... leaves one out."""
    value = DAY.value(seq)
    if member is not None:
        changes = {member: {**value[member], **changes}}
    said = {n: v for n, v in {**value, **changes}.items() if v is not ...}
    content = in_tree(canonical(said), seq, DAY)
    return receipt(f"admission-{name}", comment, content, wrong(9, "leaf_malformed"), ledger=DAY)


def deployed(name: str, comment: str, code: str | None, change: Change | None = None, **said: Any) -> Case:
    """ALICE's deploy under CAROL's statement, which says something else than the action, or whose leaf does."""
    desk = admissions.opened()
    lease = desk.grant(ALICE, "deploy:prod", ttl_ms=600_000)
    desk.time_ms += 5_000
    asked, signer = desk.asked("deploy.run", "deploy:prod", cost=7), said.pop("signer", CAROL)
    signed = signed_approval(desk.statement(CAROL, ALICE, said.pop("asked", asked), **said), signer)
    seq = desk.admit(ALICE, asked, lease, [(signed, DEPUTY)], change)
    return of(desk, seq, f"approval-{name}", comment, holds() if code is None else wrong(10, code))


def loaded(name: str, comment: str, code: str, **over: Any) -> Case:
    desk = admissions.opened()
    return of(desk, desk.load(admissions.NOBODY, **over), f"rules-{name}", comment, wrong(10, code))


def first(leaf: Json, **changes: str) -> None:
    leaf["approvals"][0].update(changes)


NOW_MS = maker.T0 + 1_010 + 5_000
ASK = admissions.opened().asked("deploy.run", "deploy:prod", cost=7)
ENTRIES = [
    entry(WRITE, "allowed", "Allowed before any rule set was loaded: the receipt says unpoliced."),
    entry(CONFLICT, "denied", "A denial names who is in the way, and which token counts."),
    entry(RULED, "ruled", "Allowed by rules in force, which the entry names."),
    entry(FORBIDDEN, "forbidden", "A denial by the rules says which rule, and what it was told."),
    entry(ASKED, "asked", "A request for approval binds the action before anybody approves it."),
    entry(GIVEN, "given", "An approval that was given: the statement is in the signed body."),
    entry(APPROVED, "approved", "Something irreversible, allowed under an approval by another operator's agent."),
    entry(SHADOW, "shadow", "Rules in the shadow deny, and nothing hangs on it."),
    entry(STALE, "stale", "An old token is refused: the entry cites what ended its lease."),
    entry(COMMAND, "command", "An admission as the answer to a command of a batch."),
    entry(12, "rules-loaded", "A rule set is loaded: its digest is that of the text in the signed body."),
    entry(WRITE, "before-its-end", "One millisecond before it ends by the reader's clock.", "--now", str(BOUND_MS - 1)),
    entry(WRITE, "at-its-end", "An admission is over at validUntilMs, exactly.", "--now", str(BOUND_MS),
          expect=unknown(11, "expired")),
    entry(WRITE, "unwitnessed", "What is irreversible wants a witnessed receipt; this one is included.",
          "--level", "witnessed", expect=below("included")),
]  # fmt: skip
LEAVES = [
    leaf("without-lease", "A write without a lease: only reads are admitted so.", leaseId=..., fencingToken=...,
         grantSeq=..., facts={**DAY.value(WRITE)["facts"], "leaseState": "none", "leaseMode": "none", "leaseAgeMs": 0,
                              "leaseLeftMs": 0}),
    leaf("token-left-out", "A lease without its token: later writes could not be compared.", fencingToken=...),
    leaf("grant-not-earlier", "The lease would be granted by this very entry.", grantSeq=9, leaseId="L9"),
    leaf("twice", "An admission is for one execution.", uses=2),
    leaf("past-its-lease", "Valid for longer than the lease.", validUntilMs=DAY.value(8)["expiresAtMs"] + 1),
    leaf("already-over", "Over in the moment it begins.", validUntilMs=DAY.value(WRITE)["timeMs"]),
    leaf("operation-in-capitals", "Operations are written in one way.", operation="File.write"),
    leaf("cost-too-high", "A cost above the bound: sums would leave the exact integers.", cost=10**12 + 1),
    leaf("too-many-names", "Sixty-five names, one more than an admission may have.",
         resources=[f"repo:{n:02}" for n in range(65)]),
    leaf("fact-missing", "Every fact has to be there: a missing one would be a rule's blind spot.",
         facts={n: v for n, v in DAY.value(WRITE)["facts"].items() if n != "trust"}),
    leaf("fact-unknown", "A fact that no schema knows.", WRITE, "facts", mood="good"),
    leaf("fact-no-integer", "Facts are integers and texts.", WRITE, "facts", trust=0.5),
    leaf("lease-weaker", "The lease is for reading, the action writes.", WRITE, "facts", leaseMode="read"),
    leaf("lease-not-live", "A lease is named, and the facts say that none lives.", WRITE, "facts", leaseState="none"),
    leaf("schemes-of-others", "The counts are of another scheme than the names.", resources=["lock:a"]),
    leaf("rules-said-no", "Allowed, though the rules in force said no.", RULED, "rules", decision="deny"),
    leaf("rules-failed", "Allowed, though the rules could not be evaluated.", RULED, "rules", decision="error"),
    leaf("rules-unsorted", "Ids of rules rise: a second order would be a second spelling.", RULED, "rules",
         matched=["b", "a"]),
    leaf("forbidden-by-none", "Forbidden, and no rule is named that did.", FORBIDDEN, "rules", matched=[]),
    leaf("forbidden-in-shadow", "Rules in the shadow deny nothing.", FORBIDDEN, "rules", mode="shadow"),
    leaf("forbidden-without-facts", "A denial by rules without what they were told.", FORBIDDEN, facts=...),
    leaf("rules-beside-a-fence", "A denial that no rule made has no rules.", 11, rules=DAY.value(FORBIDDEN)["rules"]),
    leaf("conflict-without-token", "Who is in the way holds a token, and it is told.", CONFLICT, currentToken=...),
    leaf("stale-half-told", "A holder without what he holds.", STALE, conflict=...),
    leaf("irreversible-alone", "Something irreversible without an approval.", APPROVED, approvals=...,
         facts={**DAY.value(APPROVED)["facts"], "approvals": 0}),
    leaf("approved-at-home", "An approver of the agent's own operator.", APPROVED,
         approvals=[{**DAY.value(APPROVED)["approvals"][0], "operator": maker.OPERATOR.did}]),
    leaf("approvals-miscounted", "The rules were told of one approval more than there was.", APPROVED, "facts",
         approvals=2),
    leaf("ask-of-another", "An ask is named by its own entry.", ASKED, askId="A19"),
    leaf("ask-quorum", "Three have to agree, and two are named.", ASKED, quorum=3),
    leaf("given-by-another", "Only the approver himself gives an approval.", GIVEN, approver=DEPUTY.did),
]  # fmt: skip
APPROVALS = [
    deployed("plain", "An approval for exactly this action, from another operator's agent.", None),
    deployed("other-ledger", "The statement is for another ledger.", "approval_wrong", ledger="other.example/main"),
    deployed("other-genesis", "For a ledger of the same name with another entry 0.", "approval_wrong",
             genesis="5a" * 32),
    deployed("other-agent", "What was approved is an action of BOB.", "approval_wrong", agent=BOB.did),
    deployed("other-arguments", "The arguments were changed after the approval.", "approval_wrong",
             asked={**ASK, "argumentsDigest": "5a" * 32}),
    deployed("other-cost", "Approved was another cost.", "approval_wrong", asked={**ASK, "cost": 8}),
    deployed("other-resource", "Approved was another resource.", "approval_wrong",
             asked={**ASK, "resources": ["deploy:test"]}),
    deployed("other-rules", "Approved under other rules than those in force.", "approval_wrong",
             rulesDigest="5a" * 32),
    deployed("too-late", "The statement ended in the millisecond of the admission.", "approval_expired",
             notBeforeMs=NOW_MS - 9, expiresAtMs=NOW_MS),
    deployed("too-early", "The statement begins one millisecond later.", "approval_expired", notBeforeMs=NOW_MS + 1),
    deployed("outlived", "The admission is valid for longer than the approval.", "approval_expired",
             expiresAtMs=NOW_MS + 59_999),
    deployed("of-eight-days", "A statement holds for seven days at most.", "approval_invalid",
             expiresAtMs=NOW_MS + 604_800_001),
    deployed("signed-by-another", "CAROL's statement, signed by BOB.", "approval_invalid", signer=BOB),
    deployed("unknown-member", "Statements of approval are closed: an unknown member is refused.", "approval_invalid",
             more=1),
    deployed("other-nonce", "The leaf burns another nonce than the one that was sent.", "approval_differs",
             lambda value: first(value, nonce="n" * 16)),
    deployed("other-digest", "The leaf names another statement.", "approval_differs",
             lambda value: first(value, digest="5a" * 32)),
    deployed("action-digest", "actionDigest is not that of the action in the leaf.", "action_digest_wrong",
             lambda value: value.update(actionDigest="5a" * 32)),
]  # fmt: skip
RULES = [
    loaded("other-text", "The digest of another text than the operator signed.", "rules_digest_wrong",
           digest="5a" * 32),
    loaded("other-mode", "Signed to look on, loaded to enforce.", "body_differs", rulesMode="shadow"),
    loaded("other-version", "Another version than was signed.", "body_differs", rulesVersion=2),
]  # fmt: skip
CASES = [*ENTRIES, *LEAVES, *APPROVALS, *RULES]
