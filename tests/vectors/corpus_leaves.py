"""Cases about step 9 and the leaf itself: every kind of entry that holds, and leaves that contradict the table.

The trees are real: the log signed each leaf as it stands, as a gateway that cheats would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.vectors import curve
from tests.vectors.corpus import DAY, GRANT, Case, Expect, holds, of, receipt, unknown, wrong
from tests.verifier import maker
from tests.verifier.maker import ALICE, BOB, CAROL, T0, Json, Ledger, canonical

BUSY, STAFFED = maker.busy(), maker.staffed()


def in_tree(leaf: bytes, seq: int, day: Ledger = DAY) -> bytes:
    """A receipt whose leaf is really in a tree that the log signed."""
    told = Ledger(leaves=[*day.leaves[:seq], leaf, *day.leaves[seq + 1 :]])
    return canonical(maker.envelope(leaf, told.proof(seq)))


def leaf(name: str, comment: str, code: str, seq: int = GRANT, day: Ledger = DAY, **changes: Any) -> Case:
    """An entry of `day` in which members were replaced; ... leaves one out."""
    value = {n: v for n, v in {**day.value(seq), **changes}.items() if v is not ...}
    return receipt(name, comment, in_tree(canonical(value), seq, day), wrong(9, code), ledger=day)


def spelled(name: str, comment: str, edit: Callable[[bytes], bytes]) -> Case:
    return receipt(name, comment, in_tree(edit(DAY.leaves[GRANT]), GRANT), wrong(9, "leaf_malformed"))


def entry(day: Ledger, seq: int, name: str, comment: str) -> Case:
    return of(day, seq, f"entry-{name}", comment, holds())


_VALUE = DAY.value(GRANT)


def did_of(public: bytes) -> str:
    """The did:key of any 32 bytes, strict or not."""

    class Weak(maker.Key):
        @property
        def public(self) -> bytes:
            return public

    return Weak(0).did


def named(*names: str) -> Json:
    """What a grant says of these names, all of one scheme."""
    scheme = names[0].partition(":")[0]
    return {"resources": [*names], "schemes": [row for row in _VALUE["schemes"] if row["name"] == scheme]}


def alone(did: str) -> Json:
    """Who acts for himself, by any DID."""
    return {"actor": did, "principal": did}


def deadlock(name: str, comment: str, expect: Expect, **changes: Any) -> Case:
    """ALICE holds a, BOB holds b and waits for a; ALICE asks for b, and is told of the circle."""
    ledger = maker.opened()
    ours, theirs = ledger.grant(ALICE, "lock:a"), ledger.grant(BOB, "lock:b")
    ticket = ledger.queue(BOB, "lock:a")
    rows = [
        {
            "actor": ALICE.did,
            "resource": "lock:b",
            "mode": "write",
            "fencingToken": ledger.value(theirs)["fencingToken"],
        },
        {"actor": BOB.did, "resource": "lock:a", "mode": "write", "fencingToken": ledger.value(ours)["fencingToken"]},
    ]
    rows[1]["ticketId"] = f"T{ticket}"
    told = {**ledger.held_members(theirs, "lock:b"), "error": "deadlock", "number": 502, "cycle": rows}
    told |= {"waitingOn": "lock:a", "acquireOrder": ["lock:a", "lock:b"], **changes}
    body = {"resources": ["lock:b"], "wait": True}
    said = {"resources": ["lock:b"], "mode": "write", "ttlMs": 30_000, "wait": True, **told}
    seq = ledger.decision("lease.refused", ALICE, "lease.acquire", body, said)
    return of(ledger, seq, f"deadlock-{name}", comment, expect)


_CIRCLE = [
    {"actor": ALICE.did, "resource": "lock:b", "mode": "write", "fencingToken": T0 * 1000},
    {"actor": BOB.did, "resource": "lock:a", "mode": "write", "fencingToken": T0 * 1000, "ticketId": "T7"},
]


def refused(
    name: str, comment: str, entry_name: str, action: str, body: Json, error: str, number: int, **told: Any
) -> Case:
    """A refusal by OPERATOR's or ALICE's request that says too little or too much."""
    ledger = maker.opened()
    ledger.grant(BOB, "lock:b")
    key = maker.OPERATOR if action == "lease.break" else ALICE
    seq = ledger.refused(entry_name, key, action, body, error, number, **told)
    return of(ledger, seq, name, comment, wrong(9, "leaf_malformed"))


def answered(name: str, comment: str, entry_name: str, members: Json, expect: Expect) -> Case:
    """An entry that says it answers command 0 of a batch by the operator."""
    ledger = maker.opened()
    header = ledger.batch(maker.OPERATOR, {"action": "lease.acquire", "resource": "lock:a"})
    return of(ledger, ledger.answer(entry_name, header, members), name, comment, expect)


GOOD = [
    entry(DAY, 0, "ledger-opened", "Entry 0 is compared with the pinned hash of itself."),
    entry(DAY, 1, "service-started", "An entry of the gateway has no evidence, and needs none."),
    entry(DAY, 3, "agent-added", "An operator enrols an agent; he acts for himself."),
    entry(DAY, 6, "lease-refused", "A refusal is a signed decision as well; it names who holds what was asked for."),
    entry(DAY, 7, "lease-renewed", "A renewal repeats the grant's id, token and time."),
    entry(DAY, 8, "lease-released", "A release that raises its actor's trust."),
    entry(DAY, 10, "lease-expired", "An expiry lowers the holder's trust."),
    entry(DAY, len(DAY.leaves) - 1, "last", "The last leaf of a tree that is no power of two."),
    receipt("entry-tree-of-one", "A tree of one leaf: the path is empty.", DAY.receipt(0, 1), holds()),
    entry(BUSY, 6, "scheme-set", "A scheme with the defaults that its body left out."),
    entry(BUSY, 7, "read-lease", "A shared lease on a sub-tree, in mode read."),
    entry(BUSY, 10, "wait-queued", "A place in line names its own ticket."),
    entry(BUSY, 13, "lease-broken", "An operator breaks a lease and says why."),
    entry(BUSY, 15, "queued-refusal", "Refused, because somebody waits in front."),
    entry(BUSY, 16, "lease-claimed", "A claim turns a ticket into a lease."),
    entry(BUSY, 19, "lease-transferred", "A lease that was handed over keeps its bound of holding."),
    entry(BUSY, 21, "lease-changed", "A change of mode is a new lease in place of the old one."),
    entry(STAFFED, 9, "trial", "An agent enrolled by an API key: the gateway's key signed, the new key proved itself."),
    entry(STAFFED, 12, "custody", "A lease by a key in custody says so: consent is not proven."),
    entry(STAFFED, 13, "session-opened", "A session that lives by a chain of two statements."),
    entry(STAFFED, 14, "session-lease", "A lease of a session ends with its silence too."),
    entry(STAFFED, 16, "batch-received", "The header of a batch carries the evidence of all its commands."),
    entry(STAFFED, 17, "batch-command", "The answer to a command brings its batch along (31.5)."),
    entry(STAFFED, 21, "batch-refused", "An atomic batch that was refused by its second command."),
    entry(STAFFED, 25, "session-closed", "Who closes a session gives its leases back."),
    entry(STAFFED, 32, "session-ended", "The gateway ends a silent session; that costs its principal trust."),
    entry(STAFFED, 43, "apikey-revoked", "The revocation of an API key names where it was issued."),
]
SPELLINGS = [
    spelled(
        "leaf-space",
        "A leaf with one space: not the canonical spelling (2.3), though the tree has it.",
        lambda b: b.replace(b'":', b'": ', 1),
    ),
    spelled(
        "leaf-unsorted",
        "Members of a leaf out of order: a second spelling.",
        lambda b: b'{"seq":5,' + b.replace(b'"seq":5,', b"")[1:],
    ),
    spelled("leaf-escaped", "A letter spelled as an escape.", lambda b: b.replace(b'"local"', b'"loc\\u0061l"')),
    spelled(
        "leaf-duplicate",
        "The same member twice, with the same value.",
        lambda b: b.replace(b'"seq":5,', b'"seq":5,"seq":5,'),
    ),
    spelled(
        "leaf-exponent",
        "5e0 for 5: an exponent is no integer's spelling.",
        lambda b: b.replace(b'"seq":5,', b'"seq":5e0,'),
    ),
    spelled(
        "leaf-minus-zero", "-0 is read as 0 and written otherwise.", lambda b: b.replace(b'"epoch":2', b'"epoch":-0')
    ),
    spelled("leaf-newline", "A newline behind the leaf.", lambda b: b + b"\n"),
    spelled("leaf-empty", "An empty leaf, really in the tree.", lambda b: b""),
    spelled(
        "leaf-huge-number",
        "An integer of 400 digits: bounded before it is computed.",
        lambda b: b.replace(b'"epoch":2', b'"epoch":' + b"9" * 400),
    ),
]
MEMBERS = [
    leaf("leaf-member-unknown", "Every type is closed: an unknown member is refused.", "leaf_malformed", novelty=1),
    leaf(
        "leaf-member-inherited",
        "A member named constructor is unknown like any other.",
        "leaf_malformed",
        constructor=1,
    ),
    leaf("leaf-member-missing", "A grant without its token.", "leaf_malformed", fencingToken=...),
    leaf(
        "leaf-boolean-for-number",
        "true is no integer, though it counts as 1 in some languages.",
        "leaf_malformed",
        epoch=True,
    ),
    leaf(
        "leaf-time-too-large",
        "A time after the year 2229: microseconds would leave the exact integers.",
        "leaf_malformed",
        timeMs=9_000_000_000_000,
    ),
    leaf("leaf-hash-in-capitals", "Hexadecimal digits are lower case.", "leaf_malformed", prev=_VALUE["prev"].upper()),
    leaf(
        "leaf-ttl-too-long",
        "An hour is the longest lease.",
        "leaf_malformed",
        ttlMs=3_600_001,
        expiresAtMs=_VALUE["timeMs"] + 3_600_001,
    ),
    leaf(
        "leaf-resources-unsorted",
        "Resources of a leaf are sorted.",
        "leaf_malformed",
        resources=_VALUE["resources"][::-1],
    ),
    leaf("leaf-resource-twice", "A resource is named once.", "leaf_malformed", **named("lock:a", "lock:a")),
    leaf(
        "leaf-resource-dots",
        "The segment .. is refused: two names would be one.",
        "leaf_malformed",
        **named("repo:a/../b"),
    ),
    leaf(
        "leaf-resource-not-nfc",
        "é as e and a combining accent: not the normal form NFC.",
        "leaf_malformed",
        **named("repo:e\u0301"),
    ),
    leaf(
        "leaf-resource-invisible",
        "A zero-width joiner in a name looks like nothing.",
        "leaf_malformed",
        **named("repo:a\u200db"),
    ),
    leaf(
        "leaf-did-of-small-order",
        "The actor's key is of small order: anything would verify for it.",
        "leaf_malformed",
        **alone(did_of(curve.encode(curve.IDENTITY))),
    ),
    leaf(
        "leaf-did-second-spelling",
        "A DID that encodes a y of p + 3.",
        "leaf_malformed",
        **alone(did_of(curve.spell(curve.P + 3, 0))),
    ),
    leaf("leaf-did-of-another-length", "A DID with one character more.", "leaf_malformed", **alone(ALICE.did + "a")),
    leaf("leaf-zeros-outside-entry-0", "Only entry 0 has nothing before it.", "leaf_malformed", prev="0" * 64),
    receipt(
        "leaf-opened-again",
        "ledger.opened is entry 0 and only entry 0.",
        in_tree(
            canonical({**DAY.value(0), **{n: DAY.value(4)[n] for n in ("seq", "epoch", "timeMs", "prev", "genesis")}}),
            4,
        ),
        wrong(9, "leaf_malformed"),
    ),
    leaf("leaf-id-of-another", "A grant is named by its own seq.", "leaf_malformed", leaseId="L4"),
    leaf(
        "leaf-token-before-its-time",
        "A fencing token is never below the time of its grant.",
        "leaf_malformed",
        fencingToken=_VALUE["timeMs"] * 1000 - 1,
    ),
    leaf(
        "leaf-token-too-high",
        "Nor more than the number of grants above it: tokens can't be burnt.",
        "leaf_malformed",
        fencingToken=_VALUE["timeMs"] * 1000 + GRANT + 1,
    ),
    leaf(
        "leaf-end-differs", "The stated end is timeMs + ttlMs.", "leaf_malformed", expiresAtMs=_VALUE["expiresAtMs"] + 1
    ),
    leaf(
        "leaf-schemes-differ",
        "schemes are exactly those of the resources.",
        "leaf_malformed",
        schemes=_VALUE["schemes"][:1],
    ),
    leaf(
        "leaf-gateway-with-evidence",
        "An entry of the gateway has no evidence.",
        "leaf_malformed",
        seq=1,
        request=DAY.value(GRANT)["request"],
    ),
    leaf(
        "leaf-gateway-poses",
        "A decision in the gateway's own name.",
        "leaf_malformed",
        actor="gateway",
        principal="gateway",
        onBehalfOf="gateway",
    ),
    leaf(
        "leaf-operator-for-another", "An operator acts for himself only.", "leaf_malformed", seq=3, onBehalfOf=BOB.did
    ),
    leaf(
        "leaf-idle-end-of-no-session",
        "Only what a session holds ends with its silence.",
        "leaf_malformed",
        endsIfIdleAtMs=_VALUE["expiresAtMs"],
        onBehalfOf=ALICE.did,
        principal=ALICE.did,
    ),
    leaf("leaf-refusal-number", "A refusal's number is that of its name.", "leaf_malformed", seq=6, number=409),
    leaf(
        "leaf-refusal-unexplained",
        "lease_held names the conflict; without it nobody can check.",
        "leaf_malformed",
        seq=6,
        conflict=...,
    ),
    leaf("leaf-held-by-oneself", "Nobody is refused for his own lease.", "leaf_malformed", seq=6, holder=BOB.did),
    leaf(
        "leaf-expired-early",
        "No lease expires before its time.",
        "leaf_malformed",
        seq=10,
        timeMs=DAY.value(10)["expiresAtMs"] - 1,
    ),
    leaf(
        "leaf-trust-for-a-release",
        "A release never lowers trust.",
        "leaf_malformed",
        seq=8,
        trust=[{**DAY.value(8)["trust"][0], "change": -1}],
    ),
    leaf(
        "leaf-cites-the-future", "A renewal cites an earlier entry.", "leaf_malformed", seq=7, grantSeq=7, leaseId="L7"
    ),
    leaf(
        "leaf-ticket-of-another",
        "A queueing entry names its own ticket.",
        "leaf_malformed",
        seq=10,
        day=BUSY,
        ticketId="T9",
    ),
    leaf(
        "leaf-broken-elsewhere",
        "A break names something that the lease has.",
        "leaf_malformed",
        seq=13,
        day=BUSY,
        resource="repo:z",
    ),
    leaf(
        "leaf-transferred-to-oneself",
        "The giver is not the receiver.",
        "leaf_malformed",
        seq=19,
        day=BUSY,
        giver=CAROL.did,
    ),
    leaf(
        "leaf-command-out-of-place",
        "The answer to command 0 stands right behind its batch.",
        "leaf_malformed",
        seq=17,
        day=STAFFED,
        request={"batch": 15, "index": 0},
    ),
    leaf(
        "leaf-session-without-idle-end",
        "A session's lease says when silence ends it.",
        "leaf_malformed",
        seq=14,
        day=STAFFED,
        endsIfIdleAtMs=...,
    ),
]
_OTHER_ORIGIN = canonical({**_VALUE, "origin": "gateway.example/other"})
HALF_WIDTH, ASTRAL = "repo:\uff71", "repo:\U00010000"  # in this order by code points, in the other by UTF-16 units


def of_two(*names: str) -> tuple[Ledger, int]:
    """A grant of two names, in the order in which its leaf gives them."""
    ledger = maker.opened()
    return ledger, ledger.grant(ALICE, *names, change=lambda leaf: leaf.update(resources=[*names]))


_CONFLICT, _AHEAD = DAY.value(6)["conflict"], BUSY.value(15)["ahead"]
_TOLD_BREAK = {"resource": "lock:b", "seenToken": T0 * 1000, "reason": "gone"}
AGREEMENT = [
    of(
        *of_two(HALF_WIDTH, ASTRAL),
        "entry-names-astral",
        "Names are sorted by code points: U+FF71 comes before U+10000.",
        holds(),
    ),
    of(
        *of_two(ASTRAL, HALF_WIDTH),
        "leaf-resources-astral",
        "The same names in the order of UTF-16 units.",
        wrong(9, "leaf_malformed"),
    ),
    leaf("leaf-common-member-missing", "A member that every leaf has is left out.", "leaf_malformed", durability=...),
    leaf(
        "leaf-gateway-for-another",
        "An entry of the gateway that names somebody else's principal.",
        "leaf_malformed",
        seq=1,
        principal=ALICE.did,
    ),
    leaf(
        "leaf-operator-is-actor",
        "onBehalfOf equals the principal, but not the actor: nobody is his own operator alone.",
        "leaf_malformed",
        principal=BOB.did,
        onBehalfOf=BOB.did,
        endsIfIdleAtMs=_VALUE["expiresAtMs"],
    ),
    leaf(
        "leaf-hold-until-before",
        "A hold that may last until before it began.",
        "leaf_malformed",
        holdUntilMs=_VALUE["timeMs"] - 1,
    ),
    leaf(
        "leaf-granted-later",
        "A renewal of a grant that is later than itself.",
        "leaf_malformed",
        seq=7,
        grantedAtMs=DAY.value(7)["timeMs"] + 1,
        fencingToken=(DAY.value(7)["timeMs"] + 1) * 1000,
    ),
    leaf(
        "leaf-trust-of-the-future",
        "Trust that builds on the entry itself.",
        "leaf_malformed",
        seq=8,
        trust=[{**DAY.value(8)["trust"][0], "previousSeq": 8}],
    ),
    leaf(
        "leaf-conflict-of-the-future",
        "The lease in the way is of this very entry.",
        "leaf_malformed",
        seq=6,
        conflict={**_CONFLICT, "leaseId": "L6"},
    ),
    leaf(
        "leaf-conflict-not-asked",
        "The lease in the way holds what nobody asked for.",
        "leaf_malformed",
        seq=6,
        conflict={**_CONFLICT, "resource": "repo:z", "heldAs": "repo:z"},
    ),
    leaf(
        "leaf-ahead-of-the-future",
        "The ticket in front is of this very entry.",
        "leaf_malformed",
        seq=15,
        day=BUSY,
        ahead={**_AHEAD, "ticketId": "T15"},
    ),
    leaf(
        "leaf-polled-another-ticket",
        "A poll names a ticket that is not of the entry it cites.",
        "leaf_malformed",
        seq=12,
        day=BUSY,
        ticketId="T9",
    ),
    leaf(
        "leaf-give-up-differs",
        "giveUpByMs is timeMs + giveUpMs.",
        "leaf_malformed",
        seq=10,
        day=BUSY,
        giveUpByMs=BUSY.value(10)["giveUpByMs"] + 1,
    ),
    leaf(
        "leaf-broken-by-another-token",
        "A break of a lease that its operator had not seen.",
        "leaf_malformed",
        seq=13,
        day=BUSY,
        seenToken=BUSY.value(13)["seenToken"] + 1,
    ),
    leaf(
        "leaf-offered-another-lease",
        "An offer names another lease than the grant it cites.",
        "leaf_malformed",
        seq=18,
        day=BUSY,
        leaseId="L9",
    ),
    leaf(
        "leaf-transferred-from-another",
        "A transfer names another lease than the entry it cites.",
        "leaf_malformed",
        seq=19,
        day=BUSY,
        fromLeaseId="L8",
    ),
    leaf(
        "leaf-offered-before-granted",
        "The offer is not later than the grant that it offers.",
        "leaf_malformed",
        seq=19,
        day=BUSY,
        offerSeq=16,
    ),
    leaf(
        "leaf-returned-before-granted",
        "A lease is given back because of something from before it was granted.",
        "leaf_malformed",
        seq=26,
        day=STAFFED,
        causeSeq=13,
    ),
    leaf(
        "leaf-returned-by-the-future",
        "A lease is given back because of a later entry.",
        "leaf_malformed",
        seq=26,
        day=STAFFED,
        causeSeq=27,
    ),
    leaf(
        "leaf-idle-with-a-cause",
        "A session that ended by silence, and names a removal.",
        "leaf_malformed",
        seq=32,
        day=STAFFED,
        causeSeq=31,
    ),
    answered(
        "leaf-answer-of-another-kind",
        "A removal can't be the answer to a command of a batch.",
        "agent.removed",
        {"agent": ALICE.did},
        wrong(9, "leaf_malformed"),
    ),
    refused(
        "leaf-already-waiting-later",
        "Already waiting by a ticket that is not earlier.",
        "lease.refused",
        "lease.acquire",
        {"resources": ["lock:b"], "wait": True},
        "already_waiting",
        504,
        mode="write",
        ttlMs=30_000,
        ticketId="T6",
    ),
    refused(
        "leaf-break-conflict-elsewhere",
        "A break that was refused names a lease on what nobody named.",
        "break.refused",
        "lease.break",
        _TOLD_BREAK,
        "token_stale",
        413,
        holder=BOB.did,
        conflict={**_CONFLICT, "leaseId": "L5", "resource": "lock:c", "heldAs": "lock:c", "grantedAtMs": T0},
    ),
    refused(
        "leaf-break-holder-alone",
        "A break that was refused names a holder and no conflict.",
        "break.refused",
        "lease.break",
        _TOLD_BREAK,
        "token_stale",
        413,
        holder=BOB.did,
    ),
    deadlock("told", "A circle of two: who asks comes first, everybody is in it once.", holds()),
    deadlock(
        "of-another",
        "The circle does not begin with who asks.",
        wrong(9, "leaf_malformed"),
        cycle=[{**_CIRCLE[0], "actor": CAROL.did}, _CIRCLE[1]],
    ),
    deadlock(
        "not-asked",
        "The circle begins with what was not asked for.",
        wrong(9, "leaf_malformed"),
        cycle=[{**_CIRCLE[0], "resource": "lock:c"}, _CIRCLE[1]],
        acquireOrder=["lock:a", "lock:c"],
    ),
    deadlock(
        "of-the-future",
        "A ticket in the circle is of this very entry.",
        wrong(9, "leaf_malformed"),
        cycle=[_CIRCLE[0], {**_CIRCLE[1], "ticketId": "T8"}],
    ),
    deadlock(
        "order-differs",
        "acquireOrder is not the sorted names of the circle.",
        wrong(9, "leaf_malformed"),
        acquireOrder=["lock:a"],
    ),
    deadlock(
        "soft-unsaid",
        "A circle in which somebody stands behind a ticket is soft, and that is said.",
        wrong(9, "leaf_malformed"),
        cycle=[{**{n: v for n, v in _CIRCLE[0].items() if n != "fencingToken"}, "aheadId": "T7"}, _CIRCLE[1]],
    ),
]
PLACES = [
    leaf(
        "leaf-genesis-of-another",
        "The leaf belongs to a ledger with another entry 0.",
        "genesis_differs",
        genesis="ab" * 32,
    ),
    receipt(
        "leaf-seq-of-another-place",
        "Leaf 5 stands at index 7 of a tree that the log really signed.",
        in_tree(DAY.leaves[GRANT], 7),
        wrong(9, "seq_differs"),
    ),
    receipt(
        "leaf-origin-of-another",
        "A leaf of another ledger in this one's tree.",
        in_tree(_OTHER_ORIGIN, GRANT),
        wrong(9, "origin_differs"),
    ),
]


def strange(name: str, comment: str, expect: Expect, **changes: Any) -> Case:
    """An entry of a type that this version does not know."""
    value: Json = {**_VALUE, "type": "tallystick/lease.lent/1", **changes}
    return receipt(name, comment, in_tree(canonical(value), GRANT), expect)


UNKNOWN = [
    strange(
        "type-unknown",
        "A type of a later version is no lie but a gap in our knowledge: indeterminate, and nothing is said of it.",
        unknown(9, "type_unknown"),
    ),
    strange(
        "type-unknown-version",
        "The same name in version 2 is another type.",
        unknown(9, "type_unknown"),
        type="tallystick/lease.granted/2",
    ),
    strange(
        "type-unknown-new-members",
        "What an unknown type says beside the common members is not judged.",
        unknown(9, "type_unknown"),
        lender="x",
        terms=[1, {"a": None}],
    ),
    strange(
        "type-unknown-not-a-type",
        "But the common members are: a type string has its grammar.",
        wrong(9, "leaf_malformed"),
        type="lent",
    ),
    strange(
        "type-unknown-bad-name",
        "Member names of unknown types keep their grammar too.",
        wrong(9, "leaf_malformed"),
        Lender=1,
    ),
    strange(
        "type-unknown-common-member",
        "A common member out of its bounds.",
        wrong(9, "leaf_malformed"),
        durability="somewhere",
    ),
    strange(
        "type-unknown-deep",
        "An unknown member nested eight levels deep, the leaf counted, is read.",
        unknown(9, "type_unknown"),
        terms=[[[[[[[1]]]]]]],
    ),
    strange(
        "type-unknown-too-deep",
        "One level more is refused before anybody reads it.",
        wrong(9, "leaf_malformed"),
        terms=[[[[[[[[1]]]]]]]],
    ),
    strange(
        "type-unknown-of-another-history",
        "Where it stands is still checked.",
        wrong(9, "genesis_differs"),
        genesis="ab" * 32,
    ),
    receipt(
        "type-unknown-surrogate",
        "Half of a surrogate pair, in the only spelling that JSON has for it: no text, and so no leaf.",
        in_tree(
            canonical({**_VALUE, "type": "tallystick/lease.lent/1", "x": "?"}).replace(b'"x":"?"', b'"x":"\\ud800"'),
            GRANT,
        ),
        wrong(9, "leaf_malformed"),
    ),
    receipt(
        "type-unknown-unproven",
        "An unknown type does not excuse a broken proof: invalid is graver than indeterminate.",
        canonical({**maker.envelope(canonical({**_VALUE, "type": "tallystick/lease.lent/1"}), DAY.proof(GRANT))}),
        wrong(8, "not_included"),
    ),
]
CASES = [*GOOD, *SPELLINGS, *MEMBERS, *AGREEMENT, *PLACES, *UNKNOWN]
