"""Two files of one log against each other, and the small file that keeps a proven contradiction.

A forged file convicts nobody: only parts count that a pinned log key signed. Whoever gets the evidence judges it anew,
with pins of his own. Source: docs/protocol.md 33.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verifier.consistency import Consistency, parse_consistency
from verifier.keyring import Keyring
from verifier.shown import is_receipt
from verifier.sides import Side, contradictions, is_one_history, origin_of, read_side
from verifier.verdict import Finding, Outcome, Report, unreadable
from verifier.wire import JsonValue, Malformed, encode_canonical, parse_json

EVIDENCE_TYPE = "tallystick/evidence/1"
EVIDENCE_BYTES_MAX = 1_048_576
_MEMBERS = {"type", "code", "origin", "a", "b"}


def check_compare(
    unverified_a: bytes, unverified_b: bytes | None, keyring: Keyring, *, proof: bytes | None = None
) -> tuple[Report, bytes | None]:
    """Compare two receipts or checkpoints, or judge an evidence file (then there is no `unverified_b`).

    Returns the report, and the evidence file when the log signed two histories. Never raises on any bytes.
    """
    stated = None
    try:
        if unverified_b is None:
            unverified_a, unverified_b, stated = open_evidence(unverified_a)
        proofs = () if proof is None else (parse_consistency(proof),)
    except Malformed as error:
        return unreadable("compare", str(error), "compare_malformed"), None
    files = [unverified_a, unverified_b, *([] if proof is None else [proof])]
    sides = [read_side(data, keyring, files) for data in (unverified_a, unverified_b)]
    split = contradictions(*sides) if origin_of(sides[0]) == origin_of(sides[1]) is not None else {}
    findings = (*_of_parts(sides), *_of_both(sides, split, proofs), *_of_statement(stated, split))
    evidence = None
    if split:
        evidence = make_evidence(next(iter(split)), origin_of(sides[0]) or "", unverified_a, unverified_b)
    return Report("compare", findings, statement=tuple(_statement(sides, findings)), facts=_facts(sides)), evidence


def open_evidence(data: bytes) -> tuple[bytes, bytes, str]:
    """Return the two files in an evidence file, and the code that it states. Malformed: it is none."""
    value = parse_json(data, bytes_max=EVIDENCE_BYTES_MAX) if is_receipt(data) else {}
    a, b, code = (value.get(name) for name in ("a", "b", "code"))
    if value.keys() != _MEMBERS or value["type"] != EVIDENCE_TYPE:
        raise Malformed("give two files to compare, or one evidence file: type, code, origin, a and b")
    if not isinstance(a, str) or not isinstance(b, str) or not isinstance(code, str):
        raise Malformed("an evidence file's code, a and b are strings")
    return a.encode(), b.encode(), code


def make_evidence(code: str, origin: str, a: bytes, b: bytes) -> bytes:
    """Return the evidence file: the two files as they came, whose proven parts contradict each other."""
    files: dict[str, JsonValue] = {"a": a.decode("utf-8"), "b": b.decode("utf-8")}
    return encode_canonical({"type": EVIDENCE_TYPE, "code": code, "origin": origin, **files}) + b"\n"


def _of_parts(sides: Sequence[Side]) -> Iterator[Finding]:
    """What the ladder's steps 1 to 8 say of each file: whether it is signed at all."""
    for name, side in zip("AB", sides, strict=True):
        for finding in side.walk.findings:
            if finding.step <= 8:
                yield Finding(finding.step, finding.code, finding.outcome, f"{name}: {finding.text}")


def _of_both(sides: Sequence[Side], split: dict[str, str], proofs: Sequence[Consistency]) -> Iterator[Finding]:
    if split:
        for code, text in split.items():
            yield Finding(12, code, Outcome.SPLIT, f"the log signed two histories: {text}")
        return
    a, b = (side.tree for side in sides)
    if a is None or b is None:
        return  # said already
    if a.origin != b.origin:
        text = "the files are of two logs, which say nothing about each other"
        yield Finding(12, "origins_differ", Outcome.INDETERMINATE, text)
    elif not is_one_history(sides[0], sides[1], proofs):
        text = f"sizes {a.size} and {b.size}: nothing contradicts, but only a consistency proof shows one history"
        yield Finding(12, "consistency_not_proven", Outcome.INDETERMINATE, text)


def _of_statement(stated: str | None, split: dict[str, str]) -> Iterator[Finding]:
    if stated is not None and stated not in split:
        yield Finding(12, "evidence_differs", Outcome.VALID, "the evidence file states something else than is found")


def _statement(sides: Sequence[Side], findings: Sequence[Finding]) -> Iterator[str]:
    for name, side in zip("AB", sides, strict=True):
        if side.tree is not None:
            level = "" if side.walk.signers is None else side.walk.signers.level
            yield f"{name}: {side.tree.origin} at size {side.tree.size}, {level}"
    if all(finding.outcome is Outcome.VALID for finding in findings):
        yield "A and B are of one history"


def _facts(sides: Sequence[Side]) -> dict[str, JsonValue]:
    return {
        "origin": origin_of(sides[0]),
        "sizes": [None if side.tree is None else side.tree.size for side in sides],
        "sharedRanges": len(sides[0].ranges.keys() & sides[1].ranges.keys()),
    }
