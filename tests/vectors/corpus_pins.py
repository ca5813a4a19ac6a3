"""Cases about what a reader pins, and steps 3, 5, 6, 11, 12, which depend on it: documents, policies, other files."""

from __future__ import annotations

import hashlib

from tests.vectors import curve
from tests.vectors.corpus import (
    DAY,
    GRANT,
    USAGE,
    Case,
    Expect,
    Repeated,
    below,
    holds,
    of,
    receipt,
    split,
    unknown,
    unreadable,
    wrong,
)
from tests.vectors.corpus_notes import TEXT, edited
from tests.verifier import maker
from tests.verifier.maker import LOG, ORIGIN, RECEIPT, ROOT, STRANGER, WITNESSES, Key, Ledger, b64

SIZE = len(DAY.leaves)
OLD_LOG, OLD_RECEIPT = Key(41), Key(42)
LOG_LINE, RECEIPT_LINE = (
    f"key log {LOG.vkey(ORIGIN)} 0 - active",
    f"key receipt {RECEIPT.vkey(ORIGIN + '/receipt')} 0 - active",
)


def document(*lines: str, version: int = 1) -> bytes:
    return DAY.keys(version, lines)


def log(rest: str, key: Key = LOG) -> str:
    return f"key log {key.vkey(ORIGIN)} {rest}"


def of_receipts(rest: str, key: Key = RECEIPT) -> str:
    return f"key receipt {key.vkey(ORIGIN + '/receipt')} {rest}"


def raw_vkey(name: str, public: bytes, kind: int = 1) -> str:
    """A vkey of any 32 bytes, strict or not, with a fitting key id."""
    key_id = hashlib.sha256(name.encode() + b"\n" + bytes([kind]) + public).digest()[:4]
    return f"{name}+{key_id.hex()}+{b64(bytes([kind]) + public)}"


def pinned(name: str, comment: str, expect: Expect, keys: bytes, *arguments: str) -> Case:
    """The honest grant under another key document."""
    return receipt(name, comment, TEXT, expect, *arguments, keys=keys)


def policy(name: str, comment: str, expect: Expect, text: str, *witnesses: str) -> Case:
    """The honest grant, cosigned, under another policy and no root; asked for is a witnessed receipt."""
    made = DAY.receipt(GRANT, witnesses=witnesses)
    return receipt(name, comment, made, expect, "--level", "witnessed", root=None, keys=None, policy=text.encode())


def unsorted() -> bytes:
    """The key document with its lines in the other order, really signed so."""
    text = (
        DAY.keys().decode().split("\n\n")[0].replace(f"{LOG_LINE}\n{RECEIPT_LINE}", f"{RECEIPT_LINE}\n{LOG_LINE}")
        + "\n"
    )
    return f"{text}\n{ROOT.note_line(ORIGIN + '/root', text)}".encode()


IDENTITY = curve.encode(curve.IDENTITY)
MIXED = curve.encode(curve.add(curve.multiply(curve.secret_scalar(bytes([11]) * 32), curve.BASE), curve.torsion()[1]))
SECOND_SPELLING = curve.spell(curve.P + 3, 0)
RANGES = [
    pinned(
        "keys-range-exact",
        "A range that begins and ends at the checkpoint's size and at the leaf's seq: both bounds belong to it.",
        holds(),
        document(log(f"{SIZE} {SIZE} retired"), of_receipts(f"{GRANT} {GRANT} retired")),
    ),
    pinned(
        "keys-log-ended",
        "The log key ended one size before: it may not speak for this tree.",
        wrong(6, "size_outside_key"),
        document(log(f"0 {SIZE - 1} retired"), RECEIPT_LINE),
    ),
    pinned(
        "keys-log-too-young",
        "The log key begins one size later.",
        wrong(6, "size_outside_key"),
        document(log(f"{SIZE + 1} - active"), RECEIPT_LINE),
    ),
    pinned(
        "keys-receipt-ended",
        "The receipt key ended one seq before.",
        wrong(3, "seq_outside_key"),
        document(LOG_LINE, of_receipts(f"0 {GRANT - 1} retired")),
    ),
    pinned(
        "keys-receipt-too-young",
        "The receipt key begins one seq later.",
        wrong(3, "seq_outside_key"),
        document(LOG_LINE, of_receipts(f"{GRANT + 1} - active")),
    ),
    pinned(
        "keys-of-two-ages",
        "Older keys beside the ones in force change nothing for a receipt of today.",
        holds(),
        document(
            log("0 3 retired", OLD_LOG),
            log("4 - active"),
            of_receipts("0 3 retired", OLD_RECEIPT),
            of_receipts("4 - active"),
            version=2,
        ),
    ),
    pinned(
        "keys-receipt-compromised",
        "A compromised receipt key: its signature counts for nothing, the tree speaks alone.",
        holds(direct_signature="not_checked"),
        document(LOG_LINE, of_receipts("0 9 compromised"), version=2),
    ),
    pinned(
        "keys-receipt-compromised-signed",
        "The same, and only a signature was asked for: included is more, so it holds.",
        holds(direct_signature="not_checked"),
        document(LOG_LINE, of_receipts("0 9 compromised"), version=2),
        "--level",
        "signed",
    ),
    pinned(
        "keys-no-receipt-key",
        "A key document without the receipt key: the keyid is unknown.",
        wrong(3, "receipt_key_unknown"),
        document(LOG_LINE),
    ),
    pinned(
        "keys-no-log-key",
        "A key document without log keys, and a policy that names it: the policy's log key counts, without sizes.",
        holds(),
        document(RECEIPT_LINE),
    ),
    receipt(
        "keys-no-log-key-at-all",
        "No pinned source names a key of this origin: no pinned key, no pass.",
        TEXT,
        wrong(5, "origin_unknown"),
        keys=document(RECEIPT_LINE),
        policy=None,
    ),
    pinned(
        "keys-of-another-genesis",
        "The document pins another entry 0: another history under the same name and keys.",
        wrong(9, "genesis_differs"),
        DAY.keys(genesis="ab" * 32),
    ),
    receipt(
        "keys-genesis-of-entry-0",
        "Entry 0 itself is compared by its own hash.",
        DAY.receipt(0),
        wrong(9, "genesis_differs"),
        keys=DAY.keys(genesis="ab" * 32),
    ),
]


def signed(text: str, name: str = f"{ORIGIN}/root") -> bytes:
    """Any text, really signed by the root key under a name."""
    return f"{text}\n{ROOT.note_line(name, text)}".encode()


def honest_text() -> str:
    return DAY.keys().decode().split("\n\n")[0] + "\n"


DOCUMENTS = [
    pinned(
        "keys-genesis-in-capitals",
        "The hash of entry 0 is spelled in lower case, by the root too.",
        unreadable(),
        signed(honest_text().replace(DAY.genesis, DAY.genesis.upper())),
    ),
    receipt(
        "keys-root-of-another-name",
        "Document and pin agree on a root key that is not named <origin>/root: it may be another ledger's.",
        TEXT,
        unreadable(),
        root=f"{ROOT.vkey('gateway.example/other/root')}\n".encode(),
        keys=signed(honest_text(), "gateway.example/other/root"),
    ),
    pinned(
        "keys-version-enough",
        "Version 3 where at least 3 is asked for.",
        holds(),
        DAY.keys(3),
        "--min-keys-version",
        "3",
    ),
    pinned(
        "keys-version-too-old",
        "A document of version 2 where 3 is asked for: an old one hides what was disowned since.",
        unreadable(),
        DAY.keys(2),
        "--min-keys-version",
        "3",
    ),
    pinned(
        "keys-unsorted", "Key lines in another order are a second spelling of one document.", unreadable(), unsorted()
    ),
    pinned(
        "keys-changed",
        "One digit of a range was changed after the root had signed.",
        unreadable(),
        DAY.keys().replace(b" 0 - active", b" 1 - active"),
    ),
    receipt(
        "keys-root-of-another",
        "The document is genuine, by a root that is not the pinned one.",
        TEXT,
        unreadable(),
        root=f"{STRANGER.vkey(ORIGIN + '/root')}\n".encode(),
    ),
    receipt(
        "keys-root-named-otherwise",
        "The right key under another name than <origin>/root.",
        TEXT,
        unreadable(),
        root=f"{ROOT.vkey(ORIGIN + '/key')}\n".encode(),
    ),
    receipt(
        "keys-root-of-small-order",
        "A root of small order: one signature by it fits every document, so nobody may pin it (15.1).",
        TEXT,
        unreadable(),
        root=f"{raw_vkey(ORIGIN + '/root', IDENTITY)}\n".encode(),
    ),
    receipt(
        "keys-root-damaged",
        "The key id does not fit name and key: a typing error, caught.",
        TEXT,
        unreadable(),
        root=maker.root_vkey().replace("+", "+0", 1).encode(),
    ),
    receipt(
        "keys-without-root",
        "A key document and no root key: who signed it would be anybody's word.",
        TEXT,
        unreadable(),
        root=None,
    ),
    receipt("keys-root-alone", "A root key and no document: it signs nothing else.", TEXT, unreadable(), keys=None),
    receipt(
        "pins-none", "Nothing pinned: nothing can be judged.", TEXT, unreadable(), root=None, keys=None, policy=None
    ),
    pinned(
        "keys-small-order",
        "The root signed a log key of small order: the document is refused as a whole.",
        unreadable(),
        document(f"key log {raw_vkey(ORIGIN, IDENTITY)} 0 - active", RECEIPT_LINE),
    ),
    pinned(
        "keys-mixed-order",
        "A log key outside the prime-order subgroup, which lax libraries take.",
        unreadable(),
        document(f"key log {raw_vkey(ORIGIN, MIXED)} 0 - active", RECEIPT_LINE),
    ),
    pinned(
        "keys-not-canonical",
        "A log key whose y is p + 3, a second spelling of 3.",
        unreadable(),
        document(f"key log {raw_vkey(ORIGIN, SECOND_SPELLING)} 0 - active", RECEIPT_LINE),
    ),
    pinned(
        "keys-two-purposes",
        "One raw key as log key and as receipt key: a signature for one could pose as the other.",
        unreadable(),
        document(LOG_LINE, of_receipts("0 - active", LOG)),
    ),
    receipt(
        "keys-log-is-a-witness",
        "The log's raw key is also a pinned witness: it would vouch for itself.",
        TEXT,
        unreadable(),
        policy=maker.policy().replace(WITNESSES["w1"].vkey("w1", 4).encode(), LOG.vkey("w1", 4).encode()),
    ),
    pinned(
        "keys-name-of-another",
        "A log key named otherwise than the origin.",
        unreadable(),
        document(f"key log {LOG.vkey('gateway.example/other')} 0 - active", RECEIPT_LINE),
    ),
    pinned(
        "keys-kind-of-a-witness",
        "A log key of kind 4, the kind of witnesses.",
        unreadable(),
        document(f"key log {LOG.vkey(ORIGIN, 4)} 0 - active", RECEIPT_LINE),
    ),
    pinned(
        "keys-retired-open",
        "Retired, but for ever: a retired key has an end.",
        unreadable(),
        document(log("0 - retired"), RECEIPT_LINE),
    ),
    pinned(
        "keys-range-backwards",
        "A range that ends before it begins.",
        unreadable(),
        document(log("9 8 retired"), RECEIPT_LINE),
    ),
    pinned(
        "keys-status-unknown",
        "A status that the protocol does not know.",
        unreadable(),
        document(log("0 - suspended"), RECEIPT_LINE),
    ),
    pinned(
        "keys-compromised-without-final",
        "A compromised log key must say in which tree its honest history ends.",
        unreadable(),
        document(log("0 9 compromised"), RECEIPT_LINE),
    ),
    receipt("keys-too-large", "A key document above 65,536 bytes.", TEXT, unreadable(), keys=Repeated("x", 65_537)),
]
_LOG = f"log {LOG.vkey(ORIGIN)}\n"
_W = "".join(f"witness {name} {key.vkey(name, 4)}\n" for name, key in WITNESSES.items())
_TREE = "group inner any w1 w2\ngroup outer all inner w3\n"
POLICIES = [
    receipt(
        "policy-alone",
        "A policy alone pins log and witnesses: included; the direct signature is not checked.",
        TEXT,
        holds(direct_signature="not_checked"),
        root=None,
        keys=None,
    ),
    receipt("keys-alone", "Root and key document without a policy.", TEXT, holds(), policy=None),
    receipt(
        "keys-alone-witnessed",
        "Without a policy no witness is known: nothing is ever witnessed.",
        DAY.receipt(GRANT, witnesses=("w1", "w2", "w3")),
        below("included"),
        "--level",
        "witnessed",
        policy=None,
    ),
    policy(
        "policy-one-witness",
        "A witness as the quorum, without a group.",
        holds("witnessed 1/3"),
        f"{_LOG}{_W}quorum w2\n",
        "w2",
    ),
    policy(
        "policy-another-witness",
        "Two others signed, the one that counts did not.",
        below("included"),
        f"{_LOG}{_W}quorum w2\n",
        "w1",
        "w3",
    ),
    policy(
        "policy-groups-nested",
        "One of the inner group, and w3: both branches of the tree.",
        holds("witnessed 2/3"),
        f"{_LOG}{_W}{_TREE}quorum outer\n",
        "w2",
        "w3",
    ),
    policy(
        "policy-one-branch-twice",
        "Both of the inner group count as one branch; the other is missing.",
        below("included"),
        f"{_LOG}{_W}{_TREE}quorum outer\n",
        "w1",
        "w2",
    ),
    policy(
        "policy-quorum-none",
        "quorum none: nothing is ever witnessed, whoever signed.",
        below("included"),
        f"{_LOG}{_W}quorum none\n",
        "w1",
        "w2",
        "w3",
    ),
    policy(
        "policy-spelled-freely",
        "Tabs, comments, empty lines and URLs are allowed.",
        holds("witnessed 1/3"),
        f"# pins\n\n{_LOG[:-1]}\thttps://log.example/\n{_W}quorum\tw1\n",
        "w1",
    ),
    policy(
        "policy-without-logs",
        "A policy without the log: no pinned key, no pass.",
        wrong(5, "origin_unknown"),
        f"{_W}quorum w1\n",
        "w1",
    ),
    policy(
        "policy-later-line",
        "A group of a witness that a later line names.",
        unreadable(),
        f"{_LOG}group g any w1\n{_W}quorum g\n",
    ),
    policy(
        "policy-member-twice",
        "A witness that is a member of two groups would count twice.",
        unreadable(),
        f"{_LOG}{_W}group a any w1\ngroup b any w1\nquorum b\n",
    ),
    policy(
        "policy-two-quorums",
        "Two quorum lines leave open which one counts.",
        unreadable(),
        f"{_LOG}{_W}quorum w1\nquorum w2\n",
    ),
    policy(
        "policy-threshold-of-0",
        "A group that nobody needs to be in.",
        unreadable(),
        f"{_LOG}{_W}group g 0 w1\nquorum g\n",
    ),
    policy(
        "policy-witness-again",
        "The same witness key under a second name would count twice.",
        unreadable(),
        f"{_LOG}{_W}witness w4 {WITNESSES['w1'].vkey('w4', 4)}\nquorum w4\n",
    ),
    policy(
        "policy-witness-of-small-order",
        "A witness of small order vouches for everything.",
        unreadable(),
        f"{_LOG}witness w1 {raw_vkey('w1', IDENTITY, 4)}\nquorum w1\n",
    ),
    policy("policy-crlf", "Carriage returns are refused, not read around.", unreadable(), f"{_LOG}{_W}quorum w1\r\n"),
]
TIMES = [
    receipt(
        "now-before-the-end",
        "One millisecond before the stated end the receipt still holds.",
        TEXT,
        holds(),
        "--now",
        str(DAY.value(GRANT)["expiresAtMs"] - 1),
    ),
    receipt(
        "now-at-the-end",
        "At the stated end the lease may be over; a later entry may say otherwise: not enough is known.",
        TEXT,
        unknown(11, "expired"),
        "--now",
        str(DAY.value(GRANT)["expiresAtMs"]),
    ),
    of(
        DAY,
        8,
        "now-of-a-release",
        "A release grants nothing that could end: the clock changes nothing.",
        holds(),
        "--now",
        "4102444800000",
    ),
    receipt(
        "now-with-underscores",
        "1_0 is a number to some languages: a usage error, nothing is judged.",
        TEXT,
        USAGE,
        "--now",
        "1_0",
    ),
    receipt("now-negative", "No sign is allowed in a number of the command line.", TEXT, USAGE, "--now=-1"),
    receipt("level-unknown", "A level that does not exist is a usage error.", TEXT, USAGE, "--level", "notarised"),
    receipt(
        "level-none",
        "Nothing to ask for: --level none is a usage error, not a receipt that always holds.",
        TEXT,
        USAGE,
        "--level",
        "none",
    ),
    receipt(
        "option-abbreviated",
        "Abbreviated options would change their meaning with the next option that is added.",
        TEXT,
        USAGE,
        "--lev",
        "signed",
    ),
    Case(
        "file-missing",
        "A receipt that is not there: exit 2, never a verdict.",
        ("receipt", "nowhere.json", "--policy", "policy.txt"),
        {"policy.txt": maker.policy()},
        expect=unreadable("unreadable"),
    ),
    Case(
        "root-not-a-vkey",
        "--root with a file name and no @: said, not guessed.",
        ("receipt", "receipt.json", "--root", "root.txt", "--keys", "keys.txt"),
        {"receipt.json": TEXT, "keys.txt": DAY.keys()},
        expect=unreadable(),
    ),
    Case(
        "root-on-the-command-line",
        "The root key itself instead of a file.",
        ("receipt", "receipt.json", "--root", maker.root_vkey(), "--keys", "keys.txt"),
        {"receipt.json": TEXT, "keys.txt": DAY.keys()},
        expect=holds(),
    ),
]


def other_history(seq: int = GRANT) -> Ledger:
    """The same day with another entry at `seq`: the gateway told somebody else another story."""
    told = Ledger(leaves=[*DAY.leaves[:seq]], time_ms=DAY.value(seq)["timeMs"], epoch=DAY.value(seq)["epoch"])
    while len(told.leaves) < SIZE:
        told.grant(maker.BOB, f"lock:other-{len(told.leaves)}")
    return told


def also(name: str, comment: str, expect: Expect, *others: bytes, content: bytes = TEXT) -> Case:
    named = {f"other-{number}": file for number, file in enumerate(others, 1)}
    return receipt(name, comment, content, expect, "--also", *named, also=named)


def unsigned(checkpoint: bytes) -> bytes:
    return checkpoint[: checkpoint.rindex("—".encode())] + maker.Key(77).note_line(ORIGIN, "x").encode()


ALSO = [
    also("also-same", "Another receipt of the same tree agrees.", holds(), DAY.receipt(6)),
    also(
        "also-larger",
        "A checkpoint of another size neither agrees nor contradicts without a proof: a remark.",
        holds(),
        DAY.checkpoint(9),
    ),
    also(
        "also-other-origin",
        "A checkpoint of a log that nobody pinned says nothing: not enough is known.",
        unknown(12, "other_unusable"),
        b"other.example/x\n1\n" + b64(bytes(32)).encode() + "\n\n— other.example/x aGVsbG8gd29ybGQ=\n".encode(),
    ),
    also(
        "also-unsigned",
        "A contradicting checkpoint that the log did not sign proves nothing against the log.",
        unknown(12, "other_unusable"),
        unsigned(other_history().checkpoint()),
    ),
    also(
        "also-malformed",
        "A file that is no receipt and no checkpoint neither agrees nor contradicts: not enough is known for yes.",
        unknown(12, "other_unusable"),
        b"hello\n",
    ),
    also(
        "also-two-roots",
        "The log signed two roots for one size: a split view, proven.",
        split("two_roots"),
        other_history().checkpoint(),
    ),
    also(
        "also-two-leaves",
        "Two different leaves were signed as one seq, in trees of different sizes.",
        split("two_leaves"),
        other_history().receipt(GRANT, SIZE - 1),
    ),
    also(
        "also-second-of-two",
        "The second of two files convicts.",
        split("two_roots"),
        DAY.checkpoint(),
        other_history().checkpoint(),
    ),
    also(
        "also-split-beats-invalid",
        "A broken receipt beside two roots: the split is the graver finding.",
        split("two_roots"),
        other_history().checkpoint(),
        content=edited(signatures=DAY.envelope(6)["signatures"]),
    ),
]


CASES = [*RANGES, *DOCUMENTS, *POLICIES, *TIMES, *ALSO]
