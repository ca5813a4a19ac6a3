"""Cases about two files of one log (compare), evidence files, and texts that stay outside the ledger (--private)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.vectors.corpus import Case, Expect, File, holds, receipt, unreadable, wrong
from tests.verifier import maker
from tests.verifier.key_stories import HONEST, THIEVES
from tests.verifier.maker import ALICE, BOB, LOG, NEW_LOG, ORIGIN, STRANGER, Json, Ledger, b64, canonical, key_line

SIZE = len(HONEST.leaves)  # two histories of 21 entries that part at seq 6
SALT = bytes(range(32))
ONE_HISTORY = Expect(0, "valid", "none")
OPEN = Expect(3, "indeterminate", "none", 12, "consistency_not_proven")
MALFORMED = unreadable("compare_malformed")


def split(code: str) -> Expect:
    return Expect(4, "split", "none", 12, code)


def unsigned(step: int, code: str) -> Expect:
    return Expect(1, "invalid", "none", step, code)


def compared(
    name: str, comment: str, expect: Expect, a: File, b: File | None, proof: File | None = None, policy: bytes = b""
) -> Case:
    """Two files under a policy that pins the log."""
    files: dict[str, File] = {"a": a, "policy.txt": policy or maker.policy()}
    arguments = ["compare", "a"]
    if b is not None:
        files["b"] = b
        arguments.append("b")
    if proof is not None:
        files["proof"] = proof
        arguments += ["--proof", "proof"]
    return Case(f"compare-{name}", comment, (*arguments, "--policy", "policy.txt"), files, expect=expect)


def evidence(first: bytes, second: bytes, **over: Any) -> bytes:
    files = {"a": first.decode(), "b": second.decode()}
    return canonical({"type": "tallystick/evidence/1", "code": "two_roots", "origin": ORIGIN, **files, **over})


def anchored(size: int, root: bytes) -> bytes:
    """The receipt of a grant at 21 whose signer had seen this tree."""
    ledger = Ledger(leaves=list(HONEST.leaves), time_ms=HONEST.time_ms, counter=5_000)
    ledger.grant(BOB, "lock:anchor", anchor=f"{ORIGIN} {size} {b64(root)}")
    return ledger.receipt(SIZE)


def edited(seq: int, size: int, **changes: Any) -> bytes:
    """The receipt of an entry that was changed before the log signed its tree."""
    leaves = [*HONEST.leaves[:seq], canonical({**HONEST.value(seq), **changes}), *HONEST.leaves[seq + 1 :]]
    return Ledger(leaves=leaves).receipt(seq, size)


def new_beginning() -> Ledger:
    """Another entry 0 under the same name and keys."""
    ledger = Ledger()
    ledger.open(isDev=True)
    for number in range(10):
        ledger.grant(ALICE, f"lock:{number}")
    return ledger


TRUNK, FORK = HONEST, THIEVES
WHOLE, OTHER = TRUNK.checkpoint(), FORK.checkpoint()
GOOD_PROOF = TRUNK.consistency(7, 13)
SAME = [
    compared("same", "One checkpoint twice is one history.", ONE_HISTORY, WHOLE, WHOLE),
    compared(
        "proven",
        "Two sizes, joined by a consistency proof.",
        ONE_HISTORY,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        GOOD_PROOF,
    ),
    compared(
        "proof-as-file",
        "A consistency proof brings its newer checkpoint along, so it is one of the two files.",
        ONE_HISTORY,
        TRUNK.checkpoint(7),
        GOOD_PROOF,
    ),
    compared(
        "proof-by-nobody",
        "A proof convinces by hashes alone: its note's signature is not needed, only its tree.",
        ONE_HISTORY,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        TRUNK.consistency(7, 13, log=STRANGER),
    ),
    compared(
        "beginning-shown",
        "The path of entry 13 at size 15 shows the root of size 14, and so one history.",
        ONE_HISTORY,
        TRUNK.receipt(13, 15),
        TRUNK.checkpoint(14),
    ),
    compared(
        "empty-tree", "The tree of nothing is the beginning of every tree.", ONE_HISTORY, TRUNK.checkpoint(0), OTHER
    ),
    compared("two-receipts", "Two receipts of one tree.", ONE_HISTORY, TRUNK.receipt(7), TRUNK.receipt(13)),
]
UNDECIDED = [
    compared(
        "no-proof",
        "Nothing contradicts, but only a proof would show one history.",
        OPEN,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
    ),
    compared(
        "no-proof-of-a-fork",
        "Two histories whose files share nothing: not proven either way.",
        OPEN,
        TRUNK.checkpoint(7),
        FORK.checkpoint(13),
    ),
    compared(
        "proof-from-another-size",
        "A proof from size 6 joins other trees.",
        OPEN,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        TRUNK.consistency(6, 13),
    ),
    compared(
        "proof-to-another-size",
        "A proof to size 14 joins other trees.",
        OPEN,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        TRUNK.consistency(7, 14),
    ),
    compared(
        "proof-of-the-fork",
        "A proof of the other history.",
        OPEN,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        FORK.consistency(7, 13),
    ),
    compared(
        "two-logs",
        "Two logs say nothing about each other, though both are pinned.",
        Expect(3, "indeterminate", "none", 12, "origins_differ"),
        WHOLE,
        f"other.example/x\n1\n{b64(bytes(32))}\n\n".encode()
        + STRANGER.note_line("other.example/x", f"other.example/x\n1\n{b64(bytes(32))}\n").encode(),
        policy=f"log {LOG.vkey(ORIGIN)}\nlog {STRANGER.vkey('other.example/x')}\nquorum none\n".encode(),
    ),
]
SPLITS = [
    compared(
        "two-roots",
        "Two roots of one size, both signed by the log: it keeps two histories.",
        split("two_roots"),
        WHOLE,
        OTHER,
    ),
    compared(
        "two-leaves",
        "Two leaves of one seq in trees of different sizes.",
        split("two_leaves"),
        TRUNK.receipt(13, 15),
        FORK.receipt(13, 18),
    ),
    compared(
        "two-hashes",
        "A checkpoint of a size whose root the other's path shows to be another.",
        split("two_hashes"),
        TRUNK.receipt(13, 15),
        FORK.checkpoint(14),
    ),
    compared(
        "sibling",
        "A sibling in one path against a node in the other.",
        split("two_hashes"),
        TRUNK.receipt(3, 16),
        FORK.receipt(2, 16),
    ),
    compared(
        "two-geneses",
        "Leaves that name two entries 0.",
        split("two_geneses"),
        TRUNK.receipt(6, 7),
        new_beginning().receipt(9),
    ),
    compared(
        "anchor",
        "A signed request had seen another tree of size 14 than the other file shows.",
        split("anchor_differs"),
        anchored(14, FORK.root(14)),
        TRUNK.checkpoint(14),
    ),
    compared(
        "previous",
        "Entry 14 names another entry before it than the log signed as 13.",
        split("prev_differs"),
        edited(14, 15, prev="5a" * 32),
        TRUNK.receipt(13, 14),
    ),
    compared(
        "other-order",
        "The order of the two files means nothing.",
        split("two_leaves"),
        FORK.receipt(13, 18),
        TRUNK.receipt(13, 15),
    ),
    compared(
        "signed-part-of-a-broken-receipt",
        "A receipt with a wrong leaf: its checkpoint is still the log's, and convicts it.",
        split("two_roots"),
        WHOLE,
        canonical({**FORK.envelope(13), "payload": b64(TRUNK.leaves[13])}),
    ),
]
UNSIGNED = [
    compared(
        "by-a-stranger",
        "A contradicting checkpoint by a stranger convicts nobody.",
        unsigned(5, "log_signature_missing"),
        WHOLE,
        FORK.checkpoint(log=STRANGER),
    ),
    compared(
        "changed",
        "A checkpoint whose size was changed: the log never signed it.",
        unsigned(5, "log_signature_invalid"),
        WHOLE,
        WHOLE.replace(f"\n{SIZE}\n".encode(), f"\n{SIZE + 1}\n".encode()),
    ),
    compared(
        "rubbish",
        "A file that is neither receipt nor checkpoint nor proof.",
        unsigned(4, "checkpoint_malformed"),
        WHOLE,
        b"rubbish\n",
    ),
    compared("empty-file", "An empty file against a checkpoint.", unsigned(4, "checkpoint_malformed"), WHOLE, b""),
    compared(
        "not-included",
        "A receipt whose path leads elsewhere, in the other's own tree.",
        unsigned(8, "not_included"),
        TRUNK.receipt(13),
        canonical({**TRUNK.envelope(13), "payload": b64(FORK.leaves[13])}),
    ),
]
EVIDENCE = [
    compared(
        "evidence", "An evidence file is judged anew, and convicts.", split("two_roots"), evidence(WHOLE, OTHER), None
    ),
    compared(
        "evidence-of-nothing",
        "An evidence file whose two files agree: what it states is not believed.",
        ONE_HISTORY,
        evidence(WHOLE, WHOLE),
        None,
    ),
    compared(
        "evidence-other-code",
        "It states another code than is found; the split stands all the same.",
        split("two_roots"),
        evidence(WHOLE, OTHER, code="two_leaves"),
        None,
    ),
    compared(
        "evidence-forged",
        "An evidence file with a checkpoint that the log did not sign.",
        unsigned(5, "log_signature_missing"),
        evidence(WHOLE, FORK.checkpoint(log=STRANGER)),
        None,
    ),
    compared("evidence-member-more", "Evidence files are closed.", MALFORMED, evidence(WHOLE, OTHER, more=1), None),
    compared(
        "evidence-type",
        "Another version of evidence files.",
        MALFORMED,
        evidence(WHOLE, OTHER, type="tallystick/evidence/2"),
        None,
    ),
    compared("evidence-number", "A file inside it is no text.", MALFORMED, evidence(WHOLE, OTHER, b=7), None),
    compared("one-checkpoint", "One checkpoint alone can't be compared.", MALFORMED, WHOLE, None),
    compared(
        "proof-malformed",
        "A proof with a leading zero is not read around.",
        MALFORMED,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        GOOD_PROOF.replace(b"old 7", b"old 07"),
    ),
    compared(
        "proof-short-hash",
        "A proof with a hash of 31 bytes.",
        MALFORMED,
        TRUNK.checkpoint(7),
        TRUNK.checkpoint(13),
        GOOD_PROOF.replace(b"old 7\n", f"old 7\n{b64(bytes(31))}\n".encode()),
    ),
]


def stolen() -> Case:
    """A fork that whoever stole the log key signed, under a document that disowns the key without proof."""
    final = f"0 {SIZE} compromised {SIZE} {b64(TRUNK.root())}"
    keys = TRUNK.keys(2, [key_line("log", LOG, final), key_line("log", NEW_LOG, "19 - active")])
    files: dict[str, File] = {
        "a": TRUNK.checkpoint(12),
        "b": FORK.checkpoint(14),
        "root.txt": f"{maker.root_vkey()}\n".encode(),
    }
    arguments = ("compare", "a", "b", "--root", "@root.txt", "--keys", "keys.txt", "--policy", "policy.txt")
    comment = "A stolen key convicts nobody: neither checkpoint counts, so there are no two histories of the log."
    pins: dict[str, File] = {"keys.txt": keys, "policy.txt": maker.policy()}
    return Case(
        "compare-stolen-key",
        comment,
        arguments,
        {**files, **pins},
        expect=Expect(3, "indeterminate", "none", 6, "key_compromised"),
    )


def digest(value: str) -> str:
    return hashlib.sha256(SALT + value.encode()).hexdigest()


def reasons() -> Ledger:
    """An acquire (5) and a batch (7 to 9), each with a reason that only its digest stands for."""
    ledger = maker.opened()
    ledger.grant(ALICE, "lock:a", body_members={"resource": "lock:a", "reasonDigest": digest("to deploy")})
    ledger.grant(BOB, "lock:b")
    release: Json = {"action": "lease.release", "resource": "lock:b", "reasonDigest": digest("all done")}
    acquire: Json = {"action": "lease.acquire", "resource": "lock:c", "reasonDigest": digest("again, ümläut")}
    header = ledger.batch(BOB, release, acquire)
    ledger.answer("lease.released", header, ledger.released(BOB, 6))
    ledger.answer("lease.granted", header, ledger.new_lease("lock:c"))
    return ledger


REASONS = reasons()


def field(value: str | None = "to deploy", **over: Any) -> Json:
    shown: Json = {"salt": None} if value is None else {"salt": b64(SALT), "value": value}
    return {"name": "reasonDigest", **shown, **over}


def private(name: str, comment: str, expect: Expect, *fields: Json, seq: int = 5, **over: Any) -> Case:
    whole = {
        "type": "tallystick/private/1",
        "leafHash": maker.leaf_hash(REASONS.leaves[seq]).hex(),
        "fields": [*fields],
    }
    also: dict[str, File] = {"private.json": json.dumps({**whole, **over}).encode()}
    made = REASONS.receipt(seq)
    return receipt(f"private-{name}", comment, made, expect, "--private", "private.json", ledger=REASONS, also=also)


PRIVATE = [
    private("opened", "Salt and text give the digest that ALICE signed.", holds(), field()),
    private("erased", "The salt is gone: not opened, and everything else holds.", holds(), field(None)),
    private("none", "A file without texts asks nothing.", holds()),
    private("command", "A command's text is that of its own command.", holds(), field("again, ümläut"), seq=9),
    private(
        "header",
        "The header of a batch has the texts of all its commands, by their places.",
        holds(),
        field("all done", index=0),
        field("again, ümläut", index=1),
        seq=7,
    ),
    private("other-text", "Another text does not give the digest.", wrong(12, "private_differs"), field("to delay")),
    private(
        "other-salt",
        "Nor does the right text with another salt.",
        wrong(12, "private_differs"),
        field(salt=b64(bytes(32))),
    ),
    private(
        "byte-moved",
        "A byte moved from the salt to the text: the salt has exactly 32 bytes.",
        unreadable("private_malformed"),
        field("\u001fto deploy", salt=b64(SALT[:31])),
    ),
    private(
        "of-another-command",
        "The text of the other command of the same batch.",
        wrong(12, "private_differs"),
        field("all done"),
        seq=9,
    ),
    private("unsigned-name", "A name that nothing signed has.", wrong(12, "private_unknown"), field(name="note")),
    private(
        "place-of-no-command",
        "A place beyond the batch's commands.",
        wrong(12, "private_unknown"),
        field("all done", index=2),
        seq=7,
    ),
    private(
        "other-leaf", "The texts belong to another leaf.", wrong(12, "private_other_leaf"), field(), leafHash="00" * 32
    ),
    private(
        "text-without-salt",
        "A text whose salt is null: an erased field has no text either.",
        unreadable("private_malformed"),
        field(value="x", salt=None),
    ),
    private("member-more", "Files of private texts are closed.", unreadable("private_malformed"), field(), more=1),
]
ALSO = [
    receipt(
        "also-proof",
        "A consistency proof among the other files joins the receipt's tree to a larger one.",
        TRUNK.receipt(7, 13),
        holds(),
        "--also",
        "proof",
        ledger=TRUNK,
        also={"proof": TRUNK.consistency(13, 21)},
    ),
    receipt(
        "also-path-contradicts",
        "A path in another receipt shows a root that this receipt's tree does not have.",
        TRUNK.receipt(9, 14),
        Expect(4, "split", "none", 12, "two_hashes"),
        "--also",
        "other",
        ledger=TRUNK,
        also={"other": FORK.receipt(14, 15)},
    ),
    receipt(
        "also-of-another-genesis",
        "Another entry 0 under the same keys, in a receipt that is signed.",
        TRUNK.receipt(9, 14),
        Expect(4, "split", "none", 12, "two_geneses"),
        "--also",
        "other",
        ledger=TRUNK,
        also={"other": new_beginning().receipt(9)},
    ),
    receipt(
        "also-proof-unsigned",
        "A proof whose checkpoint nobody signed neither agrees nor contradicts; it is not held against the receipt.",
        TRUNK.receipt(7, 13),
        holds(),
        "--also",
        "proof",
        ledger=TRUNK,
        also={"proof": TRUNK.consistency(13, 21, log=STRANGER)},
    ),
]
CASES = [*SAME, *UNDECIDED, *SPLITS, *UNSIGNED, *EVIDENCE, stolen(), *PRIVATE, *ALSO]
