"""Stories about the keys of a ledger over time, as data: what is pinned, what is held, and the verdict typed by hand.

The ledger has 21 entries. LOG was its log key from the beginning; NEW_LOG was announced at 9, LOG ended at 12: so
checkpoints of 10 to 12 have both lines. Likewise RECEIPT and NEW_RECEIPT, at 10 and 13. The final tree of a disowned
LOG is that of size 14, signed by NEW_LOG.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tests.verifier import maker
from tests.verifier.maker import ALICE, LOG, NEW_LOG, NEW_RECEIPT, RECEIPT, STRANGER, Ledger, Logs, b64, key_line

WITNESSED = ("w1", "w2")
FINAL = 14


def grown(ledger: Ledger, names: str) -> Ledger:
    number = count()
    while len(ledger.leaves) < 21:
        ledger.time_ms += 1
        ledger.grant(ALICE, f"lock:{names}{next(number)}")
    return ledger


HONEST = grown(maker.opened(), "a")
THIEVES = grown(Ledger(leaves=HONEST.leaves[:6], time_ms=HONEST.time_ms, epoch=2, counter=900), "b")


def final(
    ledger: Ledger = HONEST, size: int = FINAL, witnesses: tuple[str, ...] = WITNESSED, log: Logs = NEW_LOG
) -> str:
    """What stands behind `compromised` on the line of LOG, with the checkpoint that proves it."""
    return f"{size} {b64(ledger.root(size))} {b64(ledger.checkpoint(size, witnesses, log))}"


def lines(log: str, receipt: str = "0 13 retired", new_log: str = "10 - active") -> list[str]:
    return [
        key_line("log", LOG, log),
        key_line("log", NEW_LOG, new_log),
        key_line("receipt", RECEIPT, receipt),
        key_line("receipt", NEW_RECEIPT, "11 - active"),
    ]


RETIRED = lines("0 12 retired")
DISOWNED = lines(f"0 12 compromised {final()}")
UNSHOWN = lines(f"0 12 compromised {FINAL} {b64(HONEST.root(FINAL))}")
OVERLAP = lines("0 - active", "0 - active")
LATER_RECEIPT = maker.Key(39)
# Another receipt key was announced at 15: what happened before that the document knows (17.8).
LATER = [*lines("0 - active"), key_line("receipt", LATER_RECEIPT, "16 - active")]
OLDER = [key_line("log", LOG), key_line("receipt", RECEIPT)]


@dataclass(frozen=True)
class Story:
    """A receipt of entry `seq` at `size` under the `logs`, judged by who pinned the document with these `lines`.

    `also` are the other files at hand. `codes` are the findings that are more than remarks, in order.
    """

    name: str
    lines: list[str]
    size: int
    verdict: str
    codes: tuple[str, ...] = ()
    seq: int = 6
    logs: Logs = LOG
    key: maker.Key = RECEIPT
    is_stolen: bool = False
    witnesses: tuple[str, ...] = ()
    also: tuple[Callable[[], bytes], ...] = field(default=())
    quorum: int | None = 2
    version: int = 2

    @property
    def ledger(self) -> Ledger:
        """The history that the receipt is of: the honest one, or one that a thief signed with LOG."""
        return THIEVES if self.is_stolen else HONEST


def proof(old: int, new: int = FINAL, ledger: Ledger = HONEST, log: Logs = NEW_LOG) -> Callable[[], bytes]:
    return lambda: ledger.consistency(old, new, log=log)


def note(
    size: int, ledger: Ledger = HONEST, logs: Logs = NEW_LOG, witnesses: tuple[str, ...] = WITNESSED
) -> Callable[[], bytes]:
    return lambda: ledger.checkpoint(size, witnesses, logs)


BOTH = (LOG, NEW_LOG)
COMPROMISED = ("key_compromised",)
MISSING = ("log_line_missing",)
STORIES = [
    # --- planned ---
    Story("an old receipt after the rotation", RETIRED, 9, "valid"),
    Story("the last size of the old key", RETIRED, 12, "valid", logs=BOTH),
    Story("the first size of the overlap, both lines", RETIRED, 10, "valid", logs=BOTH),
    Story("the overlap, lines in the other order", RETIRED, 11, "valid", logs=(NEW_LOG, LOG)),
    Story("the overlap without the new line", RETIRED, 11, "invalid", ("log_line_missing",)),
    Story("the overlap without the old line", RETIRED, 11, "invalid", ("log_line_missing",), logs=NEW_LOG),
    Story("a new receipt", RETIRED, 21, "valid", seq=20, logs=NEW_LOG, key=NEW_RECEIPT),
    Story("an old entry at a new size", RETIRED, 21, "valid", logs=NEW_LOG),
    Story("a new size under the old key", RETIRED, 13, "invalid", ("size_outside_key",)),
    Story("a new size under the old key, witnessed", RETIRED, 13, "invalid", ("size_outside_key",),
          witnesses=WITNESSED),
    Story("a new size under both", RETIRED, 13, "valid", logs=BOTH),
    Story("an old size under the new key", RETIRED, 9, "invalid", ("size_outside_key",), logs=NEW_LOG),
    Story("an old size under both, a later signature", RETIRED, 9, "valid", logs=BOTH),
    Story("a new entry directly signed by the old receipt key", RETIRED, 21, "invalid", ("seq_outside_key",),
          seq=14, logs=NEW_LOG),
    Story("the last entry of the old receipt key", RETIRED, 21, "valid", seq=13, logs=NEW_LOG),
    Story("the first entry of the new receipt key", RETIRED, 21, "valid", seq=11, logs=NEW_LOG, key=NEW_RECEIPT),
    Story("an entry before the new receipt key", RETIRED, 21, "invalid", ("seq_outside_key",),
          seq=10, logs=NEW_LOG, key=NEW_RECEIPT),
    # --- documents that are old, or say something else ---
    Story("an older document, an old receipt", OLDER, 9, "valid", version=1),
    Story("an older document, both lines", OLDER, 11, "valid", logs=BOTH, version=1),
    Story("an older document, new keys only", OLDER, 21, "invalid", ("receipt_key_unknown", "log_signature_missing"),
          seq=20, logs=NEW_LOG, key=NEW_RECEIPT, version=1),
    Story("an unknown log key", RETIRED, 9, "invalid", ("log_signature_missing",), logs=STRANGER),
    Story("an unknown receipt key", RETIRED, 9, "invalid", ("receipt_key_unknown",), key=STRANGER),
    Story("a key resurrected by nobody's document", lines("0 9 retired"), 13, "invalid", ("size_outside_key",)),
    Story("a document without the old key, which the policy still has", RETIRED[1:], 9, "valid"),
    # --- the document of the overlap: both keys still open, so it may not know yet that one has ended ---
    Story("the document of the overlap, after the retirement", OVERLAP, 14, "indeterminate", MISSING, logs=NEW_LOG),
    Story("the document of the overlap, after the retirement, witnessed", OVERLAP, 14, "indeterminate", MISSING,
          logs=NEW_LOG, witnesses=WITNESSED),
    Story("the document of the overlap, the new key disowned", OVERLAP, 14, "indeterminate", MISSING),
    Story("the document of the overlap, both lines", OVERLAP, 14, "valid", logs=BOTH),
    Story("the document of the overlap, before it", OVERLAP, 9, "valid"),
    Story("the document of the overlap, a stranger's line instead", OVERLAP, 14, "indeterminate", MISSING,
          logs=(NEW_LOG, STRANGER)),
    Story("the document shows a later end than this size, a key is open", RETIRED, 12, "invalid", MISSING),
    Story("the document shows a later announcement than this size", LATER, 16, "invalid", MISSING, logs=NEW_LOG),
    Story("the document shows an announcement before this size", LATER, 17, "indeterminate", MISSING, logs=NEW_LOG),
    # --- disowned: proven ---
    Story("disowned, nothing more at hand", DISOWNED, 9, "indeterminate", COMPROMISED),
    Story("disowned, but witnessed", DISOWNED, 9, "valid", witnesses=WITNESSED),
    Story("disowned, witnessed by too few", DISOWNED, 9, "indeterminate", COMPROMISED, witnesses=("w3",)),
    Story("disowned, a proof to the final tree", DISOWNED, 9, "valid", also=(proof(9),)),
    Story("disowned, a proof whose checkpoint nobody signed", DISOWNED, 9, "valid", also=(proof(9, log=STRANGER),)),
    Story("disowned, a proof from another size", DISOWNED, 9, "indeterminate", COMPROMISED, also=(proof(8),)),
    Story("disowned, a proof that calls itself one from another size", DISOWNED, 9, "indeterminate", COMPROMISED,
          also=(lambda: proof(9)().replace(b"old 9", b"old 8"),)),
    Story("disowned, a proof to another tree", DISOWNED, 9, "indeterminate", COMPROMISED, also=(proof(9, 16),)),
    Story("disowned, a tree of the thief, a proof in it", DISOWNED, 9, "indeterminate", COMPROMISED, is_stolen=True,
          also=(proof(9, ledger=THIEVES),)),
    Story("disowned, a tree of the thief, an honest proof", DISOWNED, 9, "indeterminate", COMPROMISED, is_stolen=True,
          also=(proof(9),)),
    Story("disowned, in the overlap under both keys", DISOWNED, 11, "valid", logs=BOTH),
    Story("disowned, in the overlap under the stolen key", DISOWNED, 11, "indeterminate", COMPROMISED),
    Story("disowned, the same entry at a new size", DISOWNED, 21, "valid", logs=NEW_LOG),
    Story("disowned, beyond the key's sizes", DISOWNED, 13, "invalid", ("size_outside_key",)),
    Story("disowned, beyond the key's sizes, witnessed", DISOWNED, 13, "invalid", ("size_outside_key",),
          witnesses=WITNESSED),
    Story("disowned, the final tree at the key's last size", lines(f"0 12 compromised {final(size=12)}"), 12, "valid",
          logs=BOTH),
    Story("disowned, the final tree, but under the stolen key only", lines(f"0 12 compromised {final(size=12)}"), 12,
          "invalid", ("log_line_missing",)),
    Story("disowned, another tree of the final size", lines(f"0 12 compromised {final(size=12)}"), 12, "invalid",
          COMPROMISED, is_stolen=True),
    Story("disowned, another tree of the final size, a proof in it", lines(f"0 12 compromised {final(size=12)}"), 12,
          "invalid", COMPROMISED, is_stolen=True, also=(proof(12, 12, THIEVES),)),
    # --- disowned: unproven ---
    Story("no checkpoint of the final tree is shown", UNSHOWN, 9, "indeterminate", COMPROMISED, also=(proof(9),)),
    Story("none is shown, but the receipt is witnessed", UNSHOWN, 9, "valid", witnesses=WITNESSED),
    Story("the final tree is not witnessed", lines(f"0 12 compromised {final(witnesses=('w1',))}"), 9, "indeterminate",
          COMPROMISED, also=(proof(9),)),
    Story("the final tree has the line of the stolen key only", lines(f"0 12 compromised {final(log=LOG)}"), 9,
          "indeterminate", COMPROMISED, also=(proof(9),)),
    Story("the final tree is signed by a stranger", lines(f"0 12 compromised {final(log=STRANGER)}"), 9,
          "indeterminate", COMPROMISED, also=(proof(9),)),
    Story("the final tree lies outside the other key's sizes",
          lines(f"0 12 compromised {final()}", new_log="15 - active"), 9, "indeterminate", COMPROMISED,
          also=(proof(9),)),
    Story("the final tree, of a reader without quorum", DISOWNED, 9, "indeterminate", COMPROMISED, also=(proof(9),),
          quorum=None),
    Story("unproven, another tree of the final size", lines(f"0 12 compromised 12 {b64(HONEST.root(12))}"), 12,
          "indeterminate", COMPROMISED, is_stolen=True),
    Story("witnesses saw another tree of the final size", DISOWNED, 9, "indeterminate", COMPROMISED,
          also=(proof(9), note(FINAL, THIEVES, LOG))),
    Story("witnesses saw a larger tree that has another one in it", DISOWNED, 9, "indeterminate", COMPROMISED,
          also=(proof(9), lambda: THIEVES.receipt(13, 17, WITNESSED, NEW_LOG))),
    Story("the final size falsely low: witnesses saw more under the key", DISOWNED, 9, "indeterminate", COMPROMISED,
          also=(proof(9), note(17, logs=LOG))),
    Story("witnesses saw more, under the new key", DISOWNED, 9, "valid", also=(proof(9), note(17))),
    Story("nobody saw the larger tree that is at hand, which is said", DISOWNED, 9, "indeterminate",
          also=(proof(9), note(17, logs=LOG, witnesses=()))),
    # --- a disowned receipt key ---
    Story("a disowned receipt key: inclusion still speaks", lines("0 12 retired", "0 13 compromised"), 9, "valid"),
    Story("a disowned receipt key, witnessed", lines("0 12 retired", "0 13 compromised"), 9, "valid",
          witnesses=WITNESSED),
    Story("both keys disowned, nothing more at hand", lines(f"0 12 compromised {final()}", "0 13 compromised"), 9,
          "indeterminate", COMPROMISED),
]  # fmt: skip
