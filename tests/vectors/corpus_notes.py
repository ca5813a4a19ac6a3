"""Cases about the receipt's own spelling: envelope, strict JSON, base64, proof, notes, inclusion, signatures."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.vectors import curve
from tests.vectors.corpus import DAY, GRANT, Case, Expect, File, Repeated, below, holds, receipt, wrong
from tests.verifier import maker
from tests.verifier.maker import LOG, ORIGIN, RECEIPT, STRANGER, WITNESSES, Key, b64, canonical

GOOD = DAY.envelope(GRANT)
TEXT = canonical(GOOD)


def edited(**changes: object) -> bytes:
    return canonical({**GOOD, **changes})


def proof(edit: Callable[[str], str], *witnesses: str) -> bytes:
    return edited(proof=edit(DAY.proof(GRANT, witnesses=witnesses)))


def note(edit: Callable[[str, list[str]], str], *witnesses: str) -> bytes:
    """A receipt whose checkpoint's signature lines were edited: `edit` takes the text and its lines."""

    def inside(whole: str) -> str:
        head, body = whole.split("\n\n", 1)
        text, lines = body.split("\n\n")
        return f"{head}\n\n{text}\n\n{edit(text + chr(10), [line + chr(10) for line in lines.split(chr(10))[:-1]])}"

    return proof(inside, *witnesses)


def signed_as(signature: bytes, key: Key = RECEIPT) -> bytes:
    return edited(signatures=[{"keyid": key.thumbprint, "sig": b64(signature)}])


def dsse(key: Key = RECEIPT) -> bytes:
    """What a receipt key signs for the grant."""
    return b"DSSEv1 39 application/vnd.tallystick.leaf.v1+json %d " % len(DAY.leaves[GRANT]) + DAY.leaves[GRANT]


def plus_l(signature: bytes) -> bytes:
    """The same signature with S + L for S, which a lax verifier takes."""
    return signature[:32] + (int.from_bytes(signature[32:], "little") + curve.L).to_bytes(32, "little")


def of_identity(key: Key, message: bytes, spelling: bytes = curve.encode(curve.IDENTITY)) -> bytes:
    """A signature whose R is the identity and for which the equation holds: only the rule about R refuses it."""
    return curve.sign_as(key.public, curve.secret_scalar(bytes([key.seed_byte]) * 32), 0, message, spelling)


def line(name: str, key: Key, signature: bytes, kind: int = 1, stamp: bytes = b"") -> str:
    return f"— {name} {b64(key.key_id(name, kind) + stamp + signature)}\n"


def log_line(signature: Callable[[bytes], bytes]) -> bytes:
    """A receipt whose checkpoint has one line of the log, with a signature of our choice."""
    return note(lambda text, lines: line(ORIGIN, LOG, signature(text.encode())))


def cosigned(signature: Callable[[bytes], bytes], time_s: int = 1_700_000_000) -> bytes:
    """A receipt with the log's line and one of w1, with a signature of our choice over the cosigned text."""
    stamp = time_s.to_bytes(8, "big")

    def added(text: str, lines: list[str]) -> str:
        message = f"cosignature/v1\ntime {time_s}\n{text}".encode()
        return lines[0] + line("w1", WITNESSES["w1"], signature(message), 4, stamp)

    return note(added)


def extended(extension: str) -> bytes:
    """A checkpoint with one more line of text, really signed by the log."""
    head, _ = DAY.proof(GRANT).split("\n\n", 1)
    text = DAY.checkpoint().decode().split("\n\n")[0] + "\n" + extension
    return edited(proof=f"{head}\n\n{text}\n{LOG.note_line(ORIGIN, text)}")


def row(name: str, comment: str, content: File, step: int, code: str) -> Case:
    return receipt(name, comment, content, wrong(step, code))


_SPELLED_ANEW = json.dumps(dict(reversed(GOOD.items())), indent=2).encode()
_ESCAPED = TEXT.replace(b'"payloadType"', b'"\\u0070ayloadType"').replace(b"application/vnd", b"application\\/vnd")
_ODD_BITS = GOOD["signatures"][0]["sig"][:-3] + chr(ord(GOOD["signatures"][0]["sig"][-3]) + 1) + "=="
ENVELOPES = [
    receipt(
        "envelope-plain",
        "An honest receipt of a grant: included in a tree that the pinned log key signed, and directly signed.",
        TEXT,
        holds(direct_signature="valid"),
    ),
    receipt(
        "envelope-spaced",
        "Member order and spaces of the envelope are free (protocol 14.1): only what is inside is signed.",
        _SPELLED_ANEW,
        holds(),
    ),
    receipt(
        "envelope-escaped",
        "Escapes in the envelope are other spellings of the same strings: decoded before they are compared.",
        _ESCAPED,
        holds(),
    ),
    receipt(
        "envelope-too-large",
        "One byte above 262,144 is refused at step 1, before anything reads it.",
        Repeated(" ", 262_145),
        wrong(1, "too_large"),
    ),
    row(
        "leaf-too-large",
        "A payload of 65,536 bytes can't be a leaf: 65,535 is the bound of step 1.",
        edited(payload=b64(b" " * 65_536)),
        1,
        "too_large",
    ),
    row(
        "proof-too-large",
        "A proof text above 65,536 bytes is refused at step 1, though each of its lines would be legal.",
        proof(lambda t: t + STRANGER.note_line("x", "y") * 720),
        1,
        "too_large",
    ),
    row("envelope-empty", "No bytes at all are no receipt.", b"", 2, "envelope_malformed"),
    row(
        "envelope-list",
        "The envelope inside a list: the top level must be an object.",
        b"[" + TEXT + b"]",
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-not-utf8", "A stray byte that is no UTF-8 behind the object.", TEXT + b"\xff", 2, "envelope_malformed"
    ),
    row(
        "envelope-bom",
        "A byte order mark before the object is refused (2.3).",
        b"\xef\xbb\xbf" + TEXT,
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-trailing-text",
        "Two objects in one file: a reader that stops at the first would believe the second never came.",
        TEXT + TEXT,
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-trailing-comma",
        "A trailing comma is no JSON, though many readers take it.",
        TEXT[:-1] + b",}",
        2,
        "envelope_malformed",
    ),
    row("envelope-comment", "A comment is no JSON.", b"/* receipt */" + TEXT, 2, "envelope_malformed"),
    row(
        "envelope-duplicate-member",
        "payload twice, once honest: two readers could see two leaves in one receipt.",
        TEXT[:-1] + b',"payload":"e30="}',
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-duplicate-by-escape",
        "The second payload is spelled with an escape; names are compared after decoding.",
        TEXT[:-1] + b',"\\u0070ayload":"e30="}',
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-member-unknown",
        "An unknown member is refused: nothing unsigned may ride along.",
        edited(note="trust me"),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-member-inherited",
        "A member named like something every JavaScript object inherits is unknown like any other.",
        edited(constructor=1),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-member-missing",
        "Without proof there is no receipt.",
        canonical({n: v for n, v in GOOD.items() if n != "proof"}),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-other-type",
        "Another payloadType is another kind of document, whatever its bytes.",
        edited(payloadType="application/vnd.tallystick.leaf.v2+json"),
        2,
        "envelope_malformed",
    ),
    row("envelope-number", "payload as a number instead of a text.", edited(payload=7), 2, "envelope_malformed"),
    row(
        "envelope-float",
        "A fraction anywhere in the envelope is refused, even where no number belongs.",
        edited(proof=1.5),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-null-signature",
        "signatures is null instead of a list.",
        edited(signatures=None),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-no-signature",
        "An empty list of signatures is for answers of a batch only (14.2).",
        edited(signatures=[]),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-two-signatures",
        "Exactly one signature; a second, even the same, is refused.",
        edited(signatures=GOOD["signatures"] * 2),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-signature-member",
        "A third member beside keyid and sig.",
        edited(signatures=[{**GOOD["signatures"][0], "cert": ""}]),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-deep",
        "Nine levels of nesting; eight are allowed.",
        edited(proof=[[[[[[[[1]]]]]]]]),
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-surrogate",
        "A lone surrogate half can be written in JSON and in no text.",
        TEXT[:-1] + b',"x":"\\ud800"}',
        2,
        "envelope_malformed",
    ),
    row(
        "envelope-control",
        "A raw newline inside a JSON string.",
        TEXT.replace(b"\\nindex", b"\nindex"),
        2,
        "envelope_malformed",
    ),
]
BASE64 = [
    row(
        "base64-newline",
        "Line breaks in base64: lenient decoders skip them, and two spellings would be one leaf.",
        edited(payload=GOOD["payload"][:76] + "\n" + GOOD["payload"][76:]),
        2,
        "envelope_malformed",
    ),
    row(
        "base64-unpadded",
        "A signature without its padding.",
        edited(signatures=[{**GOOD["signatures"][0], "sig": GOOD["signatures"][0]["sig"].rstrip("=")}]),
        2,
        "envelope_malformed",
    ),
    row(
        "base64-odd-bits",
        "The bits behind the last byte are not zero: the same 64 bytes in a second spelling.",
        edited(signatures=[{**GOOD["signatures"][0], "sig": _ODD_BITS}]),
        2,
        "envelope_malformed",
    ),
    row(
        "base64-url-alphabet",
        "- and _ belong to another alphabet.",
        edited(payload="-_" + GOOD["payload"][2:]),
        2,
        "envelope_malformed",
    ),
    row(
        "base64-foreign-character",
        "A space inside base64 is refused, not skipped.",
        edited(payload=" " + GOOD["payload"]),
        2,
        "envelope_malformed",
    ),
    row(
        "base64-short-signature",
        "63 bytes are no signature.",
        edited(signatures=[{**GOOD["signatures"][0], "sig": b64(bytes(63))}]),
        2,
        "envelope_malformed",
    ),
]
SIGNATURES = [
    row(
        "direct-key-unknown",
        "The direct signature is genuine, by a key nobody pinned.",
        canonical(maker.envelope(DAY.leaves[GRANT], DAY.proof(GRANT), STRANGER)),
        3,
        "receipt_key_unknown",
    ),
    row(
        "direct-key-of-the-log",
        "The log key has another purpose: as a receipt key it is unknown, though it is pinned.",
        canonical(maker.envelope(DAY.leaves[GRANT], DAY.proof(GRANT), LOG)),
        3,
        "receipt_key_unknown",
    ),
    row(
        "direct-of-another-leaf",
        "A genuine signature of the next leaf: it can't be moved.",
        edited(signatures=DAY.envelope(GRANT + 1)["signatures"]),
        3,
        "signature_invalid",
    ),
    row(
        "direct-without-type",
        "Signed are the bytes of the leaf alone, without the DSSE header that binds the type.",
        signed_as(RECEIPT.sign(DAY.leaves[GRANT])),
        3,
        "signature_invalid",
    ),
    row(
        "direct-flipped",
        "One bit of the signature is turned.",
        signed_as(bytes([RECEIPT.sign(dsse())[0] ^ 1]) + RECEIPT.sign(dsse())[1:]),
        3,
        "signature_invalid",
    ),
    row(
        "direct-s-plus-l",
        "S + L verifies under a lax rule: a second signature from the first, without the key (15.1).",
        signed_as(plus_l(RECEIPT.sign(dsse()))),
        3,
        "signature_invalid",
    ),
    row(
        "direct-r-identity",
        "R is the identity and the equation holds: the strict rule refuses R of small order (15.1).",
        signed_as(of_identity(RECEIPT, dsse())),
        3,
        "signature_invalid",
    ),
    row(
        "direct-r-second-spelling",
        "R is the identity, spelled with y = p + 1: not canonical (15.1).",
        signed_as(of_identity(RECEIPT, dsse(), curve.spell(curve.P + 1, 0))),
        3,
        "signature_invalid",
    ),
    row(
        "log-s-plus-l",
        "The malleable form in the log's line: step 5 uses the strict rule as well.",
        log_line(lambda m: plus_l(LOG.sign(m))),
        5,
        "log_signature_invalid",
    ),
    row(
        "log-r-identity",
        "R of small order in the log's line.",
        log_line(lambda m: of_identity(LOG, m)),
        5,
        "log_signature_invalid",
    ),
    row(
        "witness-r-identity",
        "R of small order in a witness's line.",
        cosigned(lambda m: of_identity(WITNESSES["w1"], m)),
        7,
        "witness_invalid",
    ),
]
_ROOT_AGAIN = proof(lambda t: t.replace(f"\n{len(DAY.leaves)}\n", f"\n{len(DAY.leaves) + 1}\n"))
PROOFS = [
    receipt(
        "proof-extra",
        "An extra line is allowed, and nothing rests on it (14.3).",
        proof(lambda t: t.replace("@v1\n", "@v1\nextra aGk=\n")),
        holds(),
    ),
    row(
        "proof-crlf",
        "Carriage returns: a text that mail changed is another text.",
        proof(lambda t: t.replace("\n", "\r\n")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-leading-zero",
        "index 05 is a second spelling of 5.",
        proof(lambda t: t.replace("index 5", "index 05")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-plus-sign",
        "index +5: a lenient number reader takes it.",
        proof(lambda t: t.replace("index 5", "index +5")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-arabic-digit",
        "index ٥: a digit to Unicode, not to the protocol.",
        proof(lambda t: t.replace("index 5", "index ٥")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-index-too-large",
        "index 2^53 is above what every JSON reader holds exactly.",
        proof(lambda t: t.replace("index 5", f"index {2**53}")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-short-hash",
        "A path element of 31 bytes could move bytes between siblings.",
        proof(lambda t: t.replace("index 5\n", f"index 5\n{b64(bytes(31))}\n")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-64-hashes",
        "64 path elements; no tree is deeper than 63.",
        proof(lambda t: t.replace("index 5\n", "index 5\n" + (b64(bytes(32)) + "\n") * 64)),
        4,
        "proof_malformed",
    ),
    row(
        "proof-version",
        "Another version of the proof's first line.",
        proof(lambda t: t.replace("@v1", "@v2")),
        4,
        "proof_malformed",
    ),
    row(
        "proof-no-checkpoint",
        "A path without the checkpoint it leads to.",
        proof(lambda t: t.split("\n\n")[0] + "\n"),
        4,
        "proof_malformed",
    ),
    row(
        "proof-empty",
        "No proof: a direct signature alone does not make up for a missing one.",
        edited(proof=""),
        4,
        "proof_malformed",
    ),
    row(
        "inclusion-index-moved",
        "The path proves index 5, not 4.",
        proof(lambda t: t.replace("index 5", "index 4")),
        8,
        "not_included",
    ),
    row(
        "inclusion-index-outside",
        "An index that is not below the tree's size.",
        proof(lambda t: t.replace("index 5", f"index {len(DAY.leaves)}")),
        8,
        "not_included",
    ),
    row(
        "inclusion-path-short",
        "The last path element is missing.",
        proof(lambda t: "\n".join(x for n, x in enumerate(t.split("\n")) if n != 5)),
        8,
        "not_included",
    ),
    row(
        "inclusion-path-long",
        "One path element too many, though the others lead to the root.",
        proof(lambda t: t.replace("\n\n", f"\n{b64(bytes(32))}\n\n", 1)),
        8,
        "not_included",
    ),
    row(
        "inclusion-path-swapped",
        "Two path elements exchanged.",
        proof(lambda t: "\n".join((lambda x: [*x[:2], x[3], x[2], *x[4:]])(t.split("\n")))),
        8,
        "not_included",
    ),
    row(
        "inclusion-of-another-leaf",
        "Leaf 6 with the path of leaf 5, directly signed: included is only what the root says.",
        canonical(maker.envelope(DAY.leaves[6], DAY.proof(GRANT))),
        8,
        "not_included",
    ),
    row(
        "inclusion-node-as-leaf",
        "An inner node posing as a leaf: 0x00 before leaves keeps it out.",
        canonical(maker.envelope(b"".join(DAY.hashes[:2]), DAY.proof(0))),
        8,
        "not_included",
    ),
    row(
        "size-changed",
        "The size in the checkpoint is raised by one: the log's signature breaks.",
        _ROOT_AGAIN,
        5,
        "log_signature_invalid",
    ),
]
_FOREIGN = STRANGER.note_line("witness.of.nobody", "x")
NOTES = [
    receipt(
        "note-unknown-lines",
        "Lines by keys that nobody pinned are ignored, valid or not (13.3).",
        note(lambda t, lines: lines[0] + _FOREIGN + STRANGER.note_line("y", t)),
        holds(),
    ),
    receipt(
        "note-unknown-first", "The order of lines means nothing.", note(lambda t, lines: _FOREIGN + lines[0]), holds()
    ),
    receipt(
        "note-same-id-other-name",
        "A line with the log's key id under another name is another's: the id is only a hint.",
        note(lambda t, lines: lines[0] + f"— gateway.example/other {b64(LOG.key_id(ORIGIN) + bytes(64))}\n"),
        holds(),
    ),
    receipt(
        "note-extension",
        "A line after the root is allowed in checkpoints of other logs; ours never write one.",
        extended("extension of a log\n"),
        holds(),
    ),
    receipt(
        "note-63-strangers",
        "64 lines are the most a note may carry.",
        note(lambda t, lines: lines[0] + _FOREIGN * 63),
        holds(),
    ),
    row(
        "note-65-lines",
        "65 signature lines, one more than any note may carry.",
        note(lambda t, lines: lines[0] + _FOREIGN * 64),
        4,
        "proof_malformed",
    ),
    row("note-no-line", "A checkpoint that nobody signed is no note.", note(lambda t, lines: ""), 4, "proof_malformed"),
    row(
        "note-hyphen",
        "A hyphen instead of the em dash.",
        note(lambda t, lines: lines[0].replace("—", "-")),
        4,
        "proof_malformed",
    ),
    row(
        "note-two-spaces",
        "Two spaces in a signature line.",
        note(lambda t, lines: lines[0].replace("— ", "—  ")),
        4,
        "proof_malformed",
    ),
    row(
        "note-line-unended",
        "The last line lacks its newline: a cut text.",
        proof(lambda t: t[:-1]),
        4,
        "proof_malformed",
    ),
    row(
        "note-control-byte",
        "A tab in the text: no control byte but the newline is allowed.",
        extended("an\textension\n"),
        4,
        "proof_malformed",
    ),
    row(
        "note-empty-extension",
        "An empty line in the text would let the signatures begin elsewhere.",
        extended("\nx\n"),
        4,
        "proof_malformed",
    ),
    row(
        "note-of-nobody",
        "A genuine note line by a key that is not pinned, and none by the log.",
        note(lambda t, lines: STRANGER.note_line(ORIGIN, t)),
        5,
        "log_signature_missing",
    ),
    row(
        "note-log-twice",
        "The log's line twice: exactly one is required.",
        note(lambda t, lines: lines[0] * 2),
        5,
        "log_signature_invalid",
    ),
    row(
        "note-log-good-and-bad",
        "A good and a bad line by the log's key: a bad one by a known key is never ignored.",
        note(lambda t, lines: lines[0] + line(ORIGIN, LOG, LOG.sign(b"x"))),
        5,
        "log_signature_invalid",
    ),
    row(
        "note-log-of-another-size",
        "The log's genuine line of a smaller checkpoint.",
        note(lambda t, lines: DAY.checkpoint(9).decode().split("\n\n")[1]),
        5,
        "log_signature_invalid",
    ),
    row(
        "note-log-in-cosigner-form",
        "The log's key with a time before the signature: of kind 1 there are exactly 64 bytes.",
        note(lambda t, lines: line(ORIGIN, LOG, bytes(8) + LOG.sign(t.encode()))),
        5,
        "log_signature_invalid",
    ),
    row(
        "note-origin-of-another",
        "A tree of a log that nobody pinned, signed by that log.",
        edited(proof=DAY.proof(GRANT).replace(ORIGIN, "gateway.example/none")),
        5,
        "origin_unknown",
    ),
]


def witnessed(name: str, comment: str, expect: Expect, *witnesses: str, content: bytes | None = None) -> Case:
    made = DAY.receipt(GRANT, witnesses=witnesses) if content is None else content
    return receipt(name, comment, made, expect, "--level", "witnessed")


WITNESSED = [
    witnessed("witnessed-2-of-3", "Two of three pinned witnesses are the quorum.", holds("witnessed 2/3"), "w1", "w3"),
    witnessed(
        "witnessed-3-of-3", "More than the quorum is as good, and is counted.", holds("witnessed 3/3"), "w1", "w2", "w3"
    ),
    witnessed(
        "witnessed-1-of-3",
        "One of the two that are needed: valid, but below the level that was asked for.",
        below("included"),
        "w2",
    ),
    witnessed("witnessed-0-of-3", "No witness at all: included, not witnessed.", below("included")),
    witnessed(
        "witnessed-by-one-twice",
        "One witness twice counts once, at two times.",
        below("included"),
        content=note(
            lambda t, lines: (
                lines[0]
                + WITNESSES["w1"].cosignature("w1", t, 1_700_000_000)
                + WITNESSES["w1"].cosignature("w1", t, 1_700_000_009)
            )
        ),
    ),
    witnessed(
        "witnessed-at-time-0",
        "A cosignature at second 0 is valid: the time is the witness's claim.",
        holds("witnessed 2/3"),
        content=note(
            lambda t, lines: lines[0] + WITNESSES["w1"].cosignature("w1", t, 0) + WITNESSES["w2"].cosignature("w2", t)
        ),
    ),
    receipt(
        "cosignature-time-too-large",
        "A time of 2^63 seconds is above the bound of C2SP.",
        cosigned(lambda m: WITNESSES["w1"].sign(m), 2**63),
        wrong(7, "witness_invalid"),
    ),
    receipt(
        "cosignature-of-another-size",
        "A genuine cosignature of a smaller tree: a known witness's bad line is never ignored.",
        note(lambda t, lines: lines[0] + WITNESSES["w1"].cosignature("w1", "another\n")),
        wrong(7, "witness_invalid"),
    ),
    receipt(
        "cosignature-without-time",
        "A witness's plain signature over the text, without a time.",
        note(lambda t, lines: lines[0] + line("w1", WITNESSES["w1"], WITNESSES["w1"].sign(t.encode()), 4)),
        wrong(7, "witness_invalid"),
    ),
    receipt(
        "cosignature-time-changed",
        "The time before the signature is covered by it.",
        cosigned(lambda m: WITNESSES["w1"].sign(m.replace(b"time 17", b"time 16"))),
        wrong(7, "witness_invalid"),
    ),
    receipt(
        "witnessed-but-bad-line",
        "Two good witnesses and a bad line of the third: something is wrong, and it is said.",
        note(lambda t, lines: "".join(lines) + line("w3", WITNESSES["w3"], bytes(64), 4, bytes(8)), "w1", "w2"),
        wrong(7, "witness_invalid"),
        "--level",
        "witnessed",
    ),
]
LEVELS = [
    receipt("level-signed", "--level signed asks for less than what is there.", TEXT, holds(), "--level", "signed"),
    receipt(
        "level-signed-is-not-enough",
        "The direct signature holds, but a receipt is not valid with a broken proof.",
        proof(lambda t: t.replace("index 5", "index 4")),
        wrong(8, "not_included", direct_signature="valid"),
        "--level",
        "signed",
    ),
]
CASES = [*ENVELOPES, *BASE64, *SIGNATURES, *PROOFS, *NOTES, *WITNESSED, *LEVELS]
