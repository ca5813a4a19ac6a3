"""All lies together, and the page that tells of them (docs/lies.md): `python -m tests.lies.table` writes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.lies import (
    table_admissions,
    table_approvals,
    table_batches,
    table_evidence,
    table_finer,
    table_keys,
    table_leases,
    table_limits,
    table_people,
    table_receipts,
    table_service,
    table_single,
    table_waiting,
)
from tests.lies.kit import Lie
from tests.lies.table_receipts import ReceiptLie

PAGE = Path(__file__).resolve().parents[2] / "docs/lies.md"
TABLES = (
    ("Leases", table_leases.LIES),
    ("Waiting", table_waiting.LIES),
    ("People and rules", table_people.LIES),
    ("Evidence", table_evidence.LIES),
    ("Batches", table_batches.LIES),
    ("Service and ledger", table_service.LIES),
    ("Keys and witnesses", table_keys.LIES),
    ("Admissions", table_admissions.LIES),
    ("Approvals", table_approvals.LIES),
    ("Two things together", table_finer.LIES),
    ("Rule by rule", table_single.LIES),
)
LIES = tuple(lie for _, lies in TABLES for lie in lies)
_HEAD = """# Lies, and how they are found

Each row is a ledger that a cheating gateway made: the real core wrote an honest one, with requests that agents really
signed; then the gateway told the lie, and sealed everything anew with its own keys. Places, chain, tree and checkpoint
are valid. It owns the log key, the receipt key and the enroller's; it owns no key of an agent, an operator, the root or
a witness. `tallystick-verify` finds each lie by the evidence of others or by deciding again, and passes the honest
ledger beside it. The tests are `tests/lies`, and this page is generated from them (`python -m tests.lies.table`).
*Exit* is the verifier's exit code, *clause* that of [the protocol](protocol.md) which the finding names.
"""


_LIMITS = """## What no audit of one ledger finds

The honest ledger changed in one of these ways passes too: no entry shows it.

| name | what the gateway did | who or what shows it |
| --- | --- | --- |
"""


def row(lie: Lie | ReceiptLie) -> str:
    code = "not found yet" if isinstance(lie, Lie) and lie.why_open else f"`{lie.code}`"
    return f"| {lie.name} | {lie.did} | {code} | {lie.exit_code} | {lie.clause} |"


def page() -> str:
    """Return the text of docs/lies.md."""
    parts = [_HEAD]
    sections: list[tuple[str, Sequence[Lie | ReceiptLie]]] = [*TABLES, ("Receipts", table_receipts.LIES)]
    for title, lies in sections:
        head = "| lie | what the gateway did | finding | exit | clause |\n| --- | --- | --- | --: | --- |"
        parts.append(f"## {title}\n\n{head}\n" + "\n".join(map(row, lies)) + "\n")
    parts.append(_LIMITS + "".join(f"| {one.name} | {one.did} | {one.shown_by} |\n" for one in table_limits.LIMITS))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
