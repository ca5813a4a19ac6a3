"""Cases about step 10: signed requests, sessions and their delegations, batches, enrolment.

Unless a comment says otherwise, the request is really signed by the actor: a genuine signature does not make evidence
fit that was given for something else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.vectors.corpus import Case, Expect, holds, of, receipt, wrong
from tests.vectors.corpus_leaves import STAFFED
from tests.vectors.corpus_notes import of_identity, plus_l
from tests.verifier import maker
from tests.verifier.delegation_stories import STORIES
from tests.verifier.maker import ALICE, BOB, CAROL, OPERATOR, ORIGIN, SESSION, T0, Json, b64, canonical

T0_S = T0 // 1000  # the entries judged here are of T0 + 1,010 ms
READ_SET = ("@method", "@authority", "@path", "@query", "tallystick-anchor")
ALL_BUT_DIGEST = tuple(name for name in maker._COMPONENTS if name != "content-digest")
Change = Callable[[Json], None]


def granted(name: str, comment: str, expect: Expect, change: Change | None = None, **over: Any) -> Case:
    """A grant of lock:a to ALICE whose request was made with `over`, and whose leaf was edited by `change`."""
    ledger = maker.opened()
    return of(ledger, ledger.grant(ALICE, "lock:a", change=change, **over), f"evidence-{name}", comment, expect)


def lie(name: str, comment: str, code: str, change: Change | None = None, **over: Any) -> Case:
    return granted(name, comment, wrong(10, code), change, **over)


def asked(name: str, comment: str, code: str | None, **body: Any) -> Case:
    """A grant of lock:a that says ttl 30 s and mode write, for a body of these members."""
    expect = holds() if code is None else wrong(10, code)
    return granted(f"body-{name}", comment, expect, body_members=body)


def raw(name: str, comment: str, code: str | None, text: str) -> Case:
    """The same for a body of any spelling; %s stands for the members that say whom it is for."""
    whom = json.dumps({"ledger": ORIGIN, "actorDid": ALICE.did})[1:-1]
    expect = holds() if code is None else wrong(10, code)
    return granted(f"body-{name}", comment, expect, raw_body=text.replace("%s", whom))


def forged(make: Callable[[bytes], bytes]) -> Change:
    """Replace the request's signature by one of our choice over the same base."""

    def change(leaf: Json) -> None:
        evidence = leaf["request"]
        values, params = maker.component_values(evidence), evidence["signatureInput"].removeprefix("sig=")
        base = "".join(f'"{name}": {values[name]}\n' for name in maker._COMPONENTS) + f'"@signature-params": {params}'
        evidence["signature"] = b64(make(base.encode()))

    return change


def evidence(**changes: str) -> Change:
    return lambda leaf: leaf["request"].update(changes)


REQUESTS = [
    granted("plain", "The signed body asks for exactly what the leaf grants.", holds()),
    granted(
        "skew-before",
        "Created 30 s after the entry's second: the widened window still has it (4.10).",
        holds(),
        created=T0_S + 31,
    ),
    granted("skew-after", "Expired, but not for longer than 30 s.", holds(), created=T0_S - 43),
    granted("first-anchor", "A newcomer anchors at size 1: the root is the hash of entry 0.", holds(), anchor_size=1),
    granted("query", "A query is signed like everything else.", holds(), query="?a=b"),
    lie(
        "missing",
        "A decision for an actor who never asked: no evidence at all.",
        "evidence_missing",
        lambda leaf: leaf.pop("request"),
    ),
    lie("signed-by-another", "The request is in ALICE's name, signed by BOB.", "request_signature_invalid", signer=BOB),
    lie(
        "s-plus-l",
        "The malleable form of the actor's signature.",
        "request_signature_invalid",
        forged(lambda m: plus_l(ALICE.sign(m))),
    ),
    lie(
        "r-identity",
        "R of small order in the actor's signature, and the equation holds.",
        "request_signature_invalid",
        forged(lambda m: of_identity(ALICE, m)),
    ),
    lie(
        "of-a-read",
        "A signed read as evidence of a grant: nothing in it asks for a lease.",
        "components_wrong",
        method="GET",
        components=READ_SET,
    ),
    lie("method", "PUT where the action is a POST.", "target_wrong", method="PUT"),
    lie(
        "path-of-another-action",
        "The request went to the path of releases.",
        "target_wrong",
        path=maker.PATHS["lease.release"],
    ),
    lie(
        "path-that-proxies-rewrite",
        "// in a path is spelled otherwise by some proxies.",
        "evidence_malformed",
        path="/api//v1",
    ),
    lie("query-without-mark", "@query always begins with its question mark.", "evidence_malformed", query="a=b"),
    lie("authority-in-capitals", "An authority is lower case.", "evidence_malformed", authority="Gateway.example"),
    lie("content-type", "text/plain is not what the door takes.", "content_type_wrong", contentType="text/plain"),
    lie(
        "body-not-covered",
        "The signature does not cover content-digest, so the body could be anybody's.",
        "components_wrong",
        components=ALL_BUT_DIGEST,
    ),
    lie(
        "component-more",
        "A component beyond the profile's set.",
        "components_wrong",
        components=(*maker._COMPONENTS, "host"),
    ),
    lie("tag", "Signed for another profile.", "evidence_malformed", tag="web-bot-auth"),
    lie("nonce-short", "A nonce of 21 characters.", "evidence_malformed", nonce="n" * 21),
    lie(
        "created-twice",
        "The parameter created twice: two readers could see two times.",
        "evidence_malformed",
        lambda leaf: evidence(signatureInput=leaf["request"]["signatureInput"] + ";created=1")(leaf),
    ),
    lie(
        "signature-input-of-two",
        "A second member of Signature-Input.",
        "evidence_malformed",
        lambda leaf: evidence(signatureInput=leaf["request"]["signatureInput"] + ", b=()")(leaf),
    ),
    lie(
        "anchor-of-another",
        "The signer saw another ledger.",
        "anchor_wrong",
        anchor=f"other.example/x 2 {b64(bytes(32))}",
    ),
    lie(
        "anchor-ahead",
        "An anchor above the entry's own place: the signer can't have seen it.",
        "anchor_wrong",
        anchor=f"{ORIGIN} 6 {b64(bytes(32))}",
    ),
    lie(
        "anchor-not-genesis",
        "An anchor of size 1 whose root is not entry 0's hash.",
        "anchor_wrong",
        anchor=f"{ORIGIN} 1 {b64(bytes(32))}",
    ),
    lie(
        "anchor-leading-zero",
        "A size with a leading zero.",
        "evidence_malformed",
        anchor=f"{ORIGIN} 01 {b64(bytes(32))}",
    ),
    lie("window-future", "Created 31 s after the entry.", "outside_window", created=T0_S + 32),
    lie(
        "window-past",
        "Expired 30 s before the entry: a stored request, used late.",
        "outside_window",
        created=T0_S - 44,
    ),
    lie("window-long", "A life of 301 s; 300 s are the most.", "outside_window", expires=T0_S + 302),
    lie("window-empty", "Expires when it is created.", "outside_window", expires=T0_S + 1),
    lie(
        "for-another-actor",
        "A genuine request of ALICE is booked to BOB.",
        "actor_differs",
        lambda leaf: leaf.update(actor=BOB.did, principal=BOB.did),
    ),
    lie(
        "method-edited",
        "The method in the evidence was changed after it was signed; it fits the action no more.",
        "target_wrong",
        evidence(method="PUT"),
    ),
    lie(
        "anchor-edited",
        "An anchor that fits, but is not the one that was signed.",
        "request_signature_invalid",
        evidence(anchor=f"{ORIGIN} 2 {b64(bytes(32))}"),
    ),
    lie(
        "key-edited",
        "Another idempotency key than the signed one.",
        "request_signature_invalid",
        evidence(idempotencyKey="another"),
    ),
    lie(
        "body-edited",
        "A body that means the same in another spelling: its digest is another.",
        "request_signature_invalid",
        lambda leaf: evidence(body=json.dumps(json.loads(leaf["request"]["body"]), indent=1))(leaf),
    ),
]
BODIES = [
    asked("defaults", "mode and ttlMs may be left out: the defaults are the protocol's.", None, resource="lock:a"),
    asked("as-list", "One name as a list of one.", None, resources=["lock:a"]),
    raw(
        "spelled-freely",
        "A body is spelled as its sender likes: spaces, escapes, order (5.2).",
        None,
        '{ "resource" : "l\\u006fck:a",\n %s }',
    ),
    asked("other-resource", "Asked was lock:b, granted is lock:a.", "body_differs", resource="lock:b"),
    asked("other-ttl", "Asked was one millisecond more.", "body_differs", resource="lock:a", ttlMs=30_001),
    asked("other-mode", "Asked was a shared lease.", "body_differs", resource="lock:a", mode="read"),
    asked(
        "one-of-two", "Asked were two names at once, granted is one.", "body_differs", resources=["lock:a", "lock:b"]
    ),
    asked("other-ledger", "Signed for another ledger.", "wrong_ledger", resource="lock:a", ledger="other.example/x"),
    asked(
        "other-actor", "actorDid names another than who signed.", "actor_differs", resource="lock:a", actorDid=BOB.did
    ),
    asked(
        "both-spellings",
        "resource and resources: which one counts would be a choice.",
        "body_malformed",
        resource="lock:a",
        resources=["lock:a"],
    ),
    asked(
        "unknown-member", "A member that the table does not know.", "body_malformed", resource="lock:a", sessionId="x"
    ),
    asked("float", "30000.0 is no integer.", "body_malformed", resource="lock:a", ttlMs=30000.0),
    asked(
        "give-up-without-wait", "giveUpMs stands only beside wait.", "body_malformed", resource="lock:a", giveUpMs=5_000
    ),
    raw(
        "duplicate-member",
        "resource twice: the gateway might have read the other one.",
        "body_malformed",
        '{%s,"resource":"lock:b","resource":"lock:a"}',
    ),
    raw("no-json", "A body in the form of a web form is no JSON.", "body_malformed", "resource=lock:a"),
    raw("minus-zero", "-0 is two spellings of nothing.", "body_malformed", '{%s,"resource":"lock:a","ttlMs":-0}'),
    granted(
        "body-too-long",
        "A body of more than 24,576 bytes would not fit beside the rest of a leaf.",
        wrong(9, "leaf_malformed"),
        raw_body='{"ledger":"' + ORIGIN + '","actorDid":"' + ALICE.did + '","resource":"lock:a"' + " " * 24_500 + "}",
    ),
    raw(
        "surrogate",
        "Half of a surrogate pair, spelled by an escape.",
        "body_malformed",
        '{%s,"resource":"lock:\\ud83d"}',
    ),
]


def released(name: str, comment: str, expect: Expect, after_s: int, with_id: bool) -> Case:
    """A release that was signed `after_s` seconds before the lease was granted."""
    ledger = maker.opened()
    ledger.time_ms = T0 + 5_000
    seq = ledger.grant(ALICE, "lock:a")
    body = {"resource": "lock:a", **({"leaseId": f"L{seq}"} if with_id else {})}
    members = ledger.later(seq, "resources", "leaseId", "fencingToken", "grantSeq", "grantedAtMs")
    created = ledger.time_ms // 1000 - after_s
    end = ledger.decision("lease.released", ALICE, "lease.release", body, members, created=created)
    return of(ledger, end, name, comment, expect)


RELEASES = [
    released(
        "release-unseen",
        "A delayed release without the lease's id ends a lease that its signer did not know of.",
        wrong(10, "released_unseen"),
        1,
        False,
    ),
    released("release-same-second", "Signed in the second of the grant: it may have been seen.", holds(), 0, False),
    released(
        "release-by-id",
        "With the lease's id there is no doubt what was meant, whenever it was signed.",
        holds(),
        1,
        True,
    ),
]


def session(name: str, comment: str, code: str, change: Change) -> Case:
    """A session opened by OPERATOR through ALICE, to lease repo:a; the leaf says something else."""
    ledger = maker.opened()
    seq = ledger.open_session(SESSION, OPERATOR, ALICE, change=change, verbs=["lease"], resources=["repo:a"])
    return of(ledger, seq, f"session-{name}", comment, wrong(10, code))


def story(name: str, comment: str) -> Case:
    """A chain of delegations of the stories, behind a session that the gateway opened all the same."""
    told = next(story for story in STORIES if story.name == name)
    ledger = maker.opened()
    at_ms = ledger.time_ms
    ledger.time_ms += told.after_ms
    seq = ledger.open_with(SESSION, told.build(at_ms))
    file = "delegation-" + "".join(c if c.isalnum() else "-" for c in name.lower())
    expect = holds() if told.refusal is None else wrong(10, told.refusal)
    return of(ledger, seq, file, comment, expect)


def update(**members: Any) -> Change:
    return partial(dict.update, **members)


SESSIONS = [
    session(
        "verb-more",
        "The statement allows lease; the leaf says transfer as well.",
        "body_differs",
        update(verbs=["lease", "transfer"]),
    ),
    session("other-scope", "Another name than the statement's.", "body_differs", update(scope=["repo:b"])),
    session("every-name", "No scope at all: everything.", "body_differs", lambda leaf: leaf.pop("scope")),
    session(
        "longer",
        "One millisecond longer than the statement.",
        "body_differs",
        lambda leaf: leaf.update(expiresAtMs=leaf["expiresAtMs"] + 1),
    ),
    session(
        "for-another-agent", "The chain was signed by ALICE, not by BOB.", "issuer_differs", update(principal=BOB.did)
    ),
    session(
        "on-behalf-of-another",
        "The operator at the chain's head is another.",
        "issuer_differs",
        update(onBehalfOf=CAROL.did),
    ),
]


def command(name: str, comment: str, expect: Expect, index: int, change: Change | None = None, **over: Any) -> Case:
    """A command of a batch of three (acquire, renew, release), its leaf edited by `change`."""
    ledger = maker.opened()
    ledger.time_ms += 5_000
    held = ledger.grant(ALICE, "lock:mine")
    acquire = {"action": "lease.acquire", "resource": "lock:a", "ttlMs": 9_000}
    renew, release = {"action": "lease.renew", "leaseId": f"L{held}"}, {"action": "lease.release", "resource": "lock:a"}
    header = ledger.batch(ALICE, acquire, renew, release, **over)
    changes = [change if index == n else None for n in range(3)]
    first = ledger.answer("lease.granted", header, ledger.new_lease("lock:a", ttl_ms=9_000), changes[0])
    ledger.answer("lease.renewed", header, ledger.renewed(held), changes[1])
    ledger.answer("lease.released", header, ledger.released(ALICE, first), changes[2])
    return of(ledger, header + 1 + index, f"batch-{name}", comment, expect)


def enveloped(name: str, comment: str, expect: Expect, seq: int = 17, **changes: Any) -> Case:
    """The receipt of an entry of the staffed day (17 answers command 0 of batch 16), its envelope edited."""
    whole = {n: v for n, v in {**STAFFED.envelope(seq), **changes}.items() if v is not ...}
    return receipt(f"batch-{name}", comment, canonical(whole), expect, ledger=STAFFED)


PART = STAFFED.batch_part(16)
NOTHING = b64(bytes(32))


def counted() -> Case:
    """The header of a batch that miscounts."""
    ledger = maker.opened()
    ask = {"action": "lease.acquire", "resource": "lock:a"}
    seq = ledger.batch(ALICE, ask, ask, change=lambda leaf: leaf.update(count=3))
    return of(ledger, seq, "batch-count-differs", "A batch of two commands that says three.", wrong(10, "body_differs"))


def queued_unasked() -> Case:
    """A place in line for who did not ask to wait."""
    ledger = maker.opened()
    ledger.grant(BOB, "lock:a")
    until = {"pollByMs": ledger.time_ms + 30_000, "giveUpByMs": ledger.time_ms + 3_600_000, "position": 1}
    asked = {"resources": ["lock:a"], "mode": "write", "ttlMs": 30_000, "giveUpMs": 3_600_000}
    members = {**asked, "ticketId": f"T{len(ledger.leaves)}", **until}
    seq = ledger.decision("wait.queued", ALICE, "lease.acquire", {"resource": "lock:a"}, members)
    return of(
        ledger, seq, "body-not-waiting", "Queued, though the request did not ask to wait.", wrong(10, "body_differs")
    )


BATCHES = [
    counted(),
    queued_unasked(),
    command("acquire", "The first command of a batch.", holds(), 0),
    command(
        "release-of-the-same-batch",
        "A release of what the same batch acquired: its signer knew of it.",
        wrong(10, "released_unseen"),
        2,
        created=T0_S - 20,
    ),
    enveloped(
        "bare",
        "Signatures left out, as the batch asked (14.2): inclusion speaks alone.",
        holds(direct_signature="left_out"),
        signatures=[],
    ),
    enveloped(
        "bare-and-broken",
        "Without its signature a broken proof leaves nothing.",
        wrong(8, "not_included"),
        signatures=[],
        proof=STAFFED.proof(17).replace("index 17", "index 18"),
    ),
    enveloped(
        "missing", "The answer to a command without its batch has no evidence.", wrong(10, "batch_missing"), batch=...
    ),
    enveloped(
        "unexpected", "A batch beside an entry that answers no command.", wrong(10, "batch_unexpected"), 14, batch=PART
    ),
    enveloped(
        "member-more", "An unknown member inside batch.", wrong(2, "envelope_malformed"), batch={**PART, "more": 1}
    ),
    enveloped(
        "short-hash",
        "A path element of 3 bytes inside batch.",
        wrong(2, "envelope_malformed"),
        batch={**PART, "path": ["AAAA"]},
    ),
    enveloped(
        "leaf-too-large",
        "The header's leaf has the bound of every leaf.",
        wrong(1, "too_large"),
        batch={**PART, "leaf": b64(b" " * 65_536)},
    ),
    enveloped(
        "not-included",
        "The header is not in the tree.",
        wrong(10, "batch_not_included"),
        batch={**PART, "path": [NOTHING] * len(PART["path"])},
    ),
    enveloped("malformed", "A header that is no leaf.", wrong(10, "batch_malformed"), batch={**PART, "leaf": "AAAA"}),
    enveloped(
        "of-another-batch",
        "Another batch of the same ledger, really in the tree.",
        wrong(10, "batch_differs"),
        batch=STAFFED.batch_part(22),
    ),
    enveloped("of-no-batch", "An entry that is no batch.", wrong(10, "batch_differs"), batch=STAFFED.batch_part(14)),
    command(
        "other-resource", "The command asked for lock:a.", wrong(10, "body_differs"), 0, update(resources=["lock:b"])
    ),
    command(
        "other-actor",
        "The answer is booked to another than the batch.",
        wrong(10, "batch_differs"),
        0,
        update(actor=BOB.did, principal=BOB.did),
    ),
    command(
        "other-time",
        "All of a batch is decided in one moment.",
        wrong(10, "batch_differs"),
        1,
        lambda leaf: leaf.update(timeMs=leaf["timeMs"] + 1, expiresAtMs=leaf["expiresAtMs"] + 1),
    ),
    command(
        "signed-by-another",
        "The batch's signature is BOB's; it is found from each command.",
        wrong(10, "request_signature_invalid"),
        0,
        signer=BOB,
    ),
]


def enrolled(name: str, comment: str, expect: Expect, proof: str) -> Case:
    """CAROL's key, enrolled by API key, with a proof of our choice."""
    ledger = maker.opened()
    ledger.issue(maker.LIVE)
    return of(ledger, ledger.enrol(CAROL, maker.LIVE, proof=proof), f"enrolment-{name}", comment, expect)


ENROLMENTS = [
    enrolled(
        "proven",
        "The new key signed for this ledger and this API key.",
        holds(),
        maker.enrolment_proof(CAROL, maker.LIVE),
    ),
    enrolled(
        "by-another-key",
        "The proof is BOB's: CAROL's key may be nobody's.",
        wrong(10, "proof_invalid"),
        maker.enrolment_proof(BOB, maker.LIVE),
    ),
    enrolled(
        "for-another-api-key",
        "The proof was given for another API key.",
        wrong(10, "proof_invalid"),
        maker.enrolment_proof(CAROL, maker.TRIAL),
    ),
    enrolled(
        "for-another-ledger",
        "The proof was given to another ledger.",
        wrong(10, "proof_invalid"),
        maker.enrolment_proof(CAROL, maker.LIVE, "other.example/x"),
    ),
    enrolled(
        "r-identity", "A proof whose R is of small order.", wrong(10, "proof_invalid"), b64(bytes([1]) + bytes(63))
    ),
]
DELEGATIONS = [
    story("operator to agent to session", "Operator to agent, agent to session: two statements that fit each other."),
    story("scope within the parent's", "A child may allow less than its parent."),
    story("its last moment", "The last millisecond of a statement is its own."),
    story("another ledger", "The statement names another ledger: it is worth nothing here (28.4)."),
    story("three statements", "Three statements in a row; two are the most."),
    story("a parent that must not be a parent", "The first statement says maxDepth 0, and has a child."),
    story("a verb more", "A child allows a verb that its parent does not."),
    story("a name more", "A child allows a name that its parent does not."),
    story("every name below a parent of some", "A child without resources allows every name."),
    story("a sibling with the same beginning", "repo:app does not cover repo:apple: segments count, not letters."),
    story("letters count as written", "No folding between statements, whatever the scheme does."),
    story("longer at its beginning", "A child begins before its parent."),
    story("longer at its end", "A child ends after its parent."),
    story("not yet", "The statement does not hold yet at the time of the entry."),
    story("a flipped signature", "One letter of the issuer's signature was changed."),
    story("a changed statement", "A genuine signature, of another statement."),
    story("a signature of small order", "R of small order in the signature of a statement."),
    story("signed as something else", "Signed without the first line that says what is signed."),
    story("for another session", "The statement was made for another session's key."),
    story("the hash of another parent", "A child names another parent than the one that comes with it."),
    story("a broken link", "The child's issuer is not the parent's subject."),
    story("the chain backwards", "Both statements, in the other order."),
    story("an unknown member", "Statements are closed: an unknown member is refused."),
]
CASES = [*REQUESTS, *BODIES, *RELEASES, *SESSIONS, *DELEGATIONS, *BATCHES, *ENROLMENTS]
