"""Writes the conformance corpus, accept/ and reject/ beside this file: python -m tests.vectors.corpus

A case is one call of a verifier's command line: files, arguments, and what must come out. Every expectation is typed
by hand and argued by the comment; the verifier under test is never asked. Every byte is made by tests/verifier/maker.py
and curve.py, which share nothing with verifier/; keys are seeds of one repeated byte, so a second run writes the same.
How another verifier runs the corpus: docs/conformance.md.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.verifier import maker
from tests.verifier.maker import Json, Ledger

HERE = Path(__file__).parent
DAY = maker.worked()
GRANT = 5  # ALICE's grant of two resources in DAY


@dataclass(frozen=True)
class Repeated:
    """A file of one text many times over, so that a file above a bound need not be stored whole."""

    text: str
    times: int


File = bytes | Repeated


@dataclass(frozen=True)
class Expect:
    """`code` is one finding that decides the verdict, at step `failed_step`; both None when nothing failed."""

    exit_code: int
    verdict: str | None
    level: str | None
    failed_step: int | None = None
    code: str | None = None
    direct_signature: str | None = None  # where the case is about it

    def as_object(self) -> Json:
        said: Json = {
            "exitCode": self.exit_code,
            "verdict": self.verdict,
            "level": self.level,
            "failedStep": self.failed_step,
            "code": self.code,
        }
        return said if self.direct_signature is None else {**said, "directSignature": self.direct_signature}


@dataclass(frozen=True)
class Case:
    name: str
    comment: str
    arguments: tuple[str, ...]
    files: dict[str, File]
    expect: Expect = field(kw_only=True)

    def as_object(self) -> Json:
        return {
            "comment": self.comment,
            "arguments": list(self.arguments),
            "files": {name: _as_value(file) for name, file in self.files.items()},
            "expect": self.expect.as_object(),
        }


def holds(level: str = "included", **over: Any) -> Expect:
    return Expect(0, "valid", level, **over)


def below(level: str) -> Expect:
    """Everything is in order, but less is reached than was asked for."""
    return Expect(3, "valid", level)


def wrong(step: int, code: str, **over: Any) -> Expect:
    return Expect(1, "invalid", "none", step, code, **over)


def unknown(step: int, code: str, level: str = "included", **over: Any) -> Expect:
    return Expect(3, "indeterminate", level, step, code, **over)


def split(code: str, step: int = 12) -> Expect:
    return Expect(4, "split", "none", step, code)


def unreadable(code: str = "pins_malformed") -> Expect:
    return Expect(2, "unreadable", "none", 0, code)


USAGE = Expect(2, None, None)  # nothing but the exit code: there may be no report at all


def receipt(
    name: str,
    comment: str,
    content: File,
    expect: Expect,
    *arguments: str,
    ledger: Ledger = DAY,
    also: Mapping[str, File] | None = None,
    **pins: File | None,
) -> Case:
    """A receipt under the honest pins of `ledger`; `pins` replaces root, keys or policy, None leaves one out."""
    pinned: dict[str, File | None] = {
        "root": f"{maker.root_vkey()}\n".encode(),
        "keys": ledger.keys(),
        "policy": maker.policy(),
        **pins,
    }
    files: dict[str, File] = {"receipt.json": content}
    options: list[str] = []
    for pin, file in pinned.items():
        if file is not None:
            files[f"{pin}.txt"] = file
            options += [f"--{pin}", f"@{pin}.txt" if pin == "root" else f"{pin}.txt"]
    return Case(
        name, comment, ("receipt", "receipt.json", *options, *arguments), {**files, **(also or {})}, expect=expect
    )


def of(ledger: Ledger, seq: int, name: str, comment: str, expect: Expect, *arguments: str, **over: Any) -> Case:
    """The receipt of one entry at the ledger's size."""
    return receipt(name, comment, ledger.receipt(seq), expect, *arguments, ledger=ledger, **over)


def cases() -> list[Case]:
    """Every case, in the order of its families."""
    from tests.vectors import (
        corpus_admissions,
        corpus_compare,
        corpus_evidence,
        corpus_keys,
        corpus_leaves,
        corpus_notes,
        corpus_pins,
    )

    single = (corpus_notes, corpus_pins, corpus_keys, corpus_leaves, corpus_evidence, corpus_admissions)
    families = (*single, corpus_compare)
    return [case for family in families for case in family.CASES]


def files() -> Iterator[tuple[Path, bytes]]:
    """The path and the exact bytes of every case."""
    for case in cases():
        folder = "accept" if case.expect.exit_code == 0 else "reject"
        yield HERE / folder / f"{case.name}.json", (json.dumps(case.as_object(), indent=1) + "\n").encode()


def _as_value(file: File) -> Any:
    if isinstance(file, Repeated):
        return {"repeat": file.text, "times": file.times}
    try:
        return file.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(file).decode()}


def main() -> None:
    """Write every case, and remove what no case is behind."""
    made = dict(files())
    for folder in ("accept", "reject"):
        (HERE / folder).mkdir(exist_ok=True)
        for path in (HERE / folder).glob("*.json"):
            if path not in made:
                path.unlink()
    for path, content in made.items():
        path.write_bytes(content)


if __name__ == "__main__":
    main()
