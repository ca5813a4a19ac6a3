"""One whole check of a data directory, and the mending of what it found.

Source: docs/operating.md, fsck.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from gateway.errors import Fatal
from gateway.export import backup
from gateway.fsck.findings import Flaws
from gateway.fsck.history import History, Progress, Step
from gateway.fsck.keys import Signers
from gateway.fsck.records import Records
from gateway.initialise import LEDGER_FILE
from gateway.keyroom import KEYS, SEAL_KEY
from gateway.signer import seal_secret
from gateway.store.contract import SIGNATURE_BYTES, SignedBatch, StoredHead
from gateway.store.raw import Mending, RawFile
from gateway.store.sqlite import Reader
from keys.files import load_key


@dataclass(frozen=True, slots=True)
class Folder:
    """What a check reads: the file, the data directory with its keys, and how to get the seal's secret from them.

    `seal_key` gets the origin; None from it means that the key is not here, and the seal is passed over.
    """

    database: Path
    data: Path
    seal_key: Callable[[str], bytes | None]

    @classmethod
    def of(cls, data: Path) -> Folder:
        """Return what lies where in a data directory."""

        def seal_key(origin: str) -> bytes | None:
            path = data / KEYS / SEAL_KEY
            return seal_secret(load_key(path, purpose="seal"), origin) if path.exists() else None

        return cls(data / LEDGER_FILE, data, seal_key)


@dataclass(slots=True)
class Check:
    """What a check found; `size` entries of `origin` were looked at, `proven` of them by signed roots."""

    size: int = 0
    origin: str = ""
    proven: int = 0
    records: int = 0
    types: dict[str, int] = field(default_factory=dict)
    is_sealed: bool = False  # whether the seal could be checked
    flaws: Flaws = field(default_factory=Flaws)

    @property
    def is_sound(self) -> bool:
        return not self.flaws.found

    def facts(self) -> dict[str, object]:
        """Return what a program reads."""
        return {
            "isSound": self.is_sound,
            "origin": self.origin,
            "size": self.size,
            "provenSize": self.proven,
            "records": self.records,
            "isSealChecked": self.is_sealed,
            "flaws": [
                {
                    "code": flaw.code,
                    "seq": flaw.seq,
                    "text": flaw.text,
                    "advice": flaw.advice,
                    "isRepairable": flaw.is_mendable,
                }
                for flaw in self.flaws.found
            ],
            "counts": self.flaws.counts,
        }


def check_file(folder: Folder, progress: Progress = lambda done, total: None) -> Check:
    """Check everything in a ledger file, up to the head that stands when it begins. Reads only."""
    check = Check()
    with closing(RawFile(folder.database)) as file:
        try:
            _check(file, folder, check, progress)
        except sqlite3.Error as error:
            check.flaws.say("file_damaged", f"SQLite can't read it: {error}")
    return check


def _check(file: RawFile, folder: Folder, check: Check, progress: Progress) -> None:
    for text in file.file_faults():
        check.flaws.say("file_damaged", text)
    for name in file.schema_faults():
        check.flaws.say("schema_differs", f"its schema is not ours: {name}")
    head = file.head()
    if head is None:
        check.flaws.say("head_missing", "the file has no head, so nothing says how long the ledger is")
        return
    history = History(file, head.size, check.flaws, progress)
    for _ in history.walk():
        pass
    check.size, check.origin, check.proven, check.types = head.size, history.origin, history.proven, history.types
    _check_head(file, head, history, check.flaws)
    with closing(Reader(folder.database)) as reader:
        seal_key = folder.seal_key(history.origin)
        records = Records(file, reader, check.flaws, seal_key)
        check.is_sealed = seal_key is not None
        check.records = records.check()
    if records.is_seal_whole and history.is_pure and history.edge.root == head.root and head.size == history.edge.size:
        check.proven = head.size  # the seal is over size and root, by a key of ours


def _check_head(file: RawFile, head: StoredHead, history: History, flaws: Flaws) -> None:
    """Compare the head with the last batch and entry, and look for rows that neither knows."""
    last = history.last_batch
    if last is not None and history.edge.size == head.size:
        told = (head.root, head.prev_hash, head.time_ms, head.epoch, head.batch_id)
        expected = (history.edge.root, history.previous, history.time_ms, history.epoch, last.batch_id)
        if told != expected:
            flaws.say("head_differs", "the head does not fit the last entry and its batch", head.size)
    if file.is_clean() not in (0, 1):
        flaws.say("head_differs", "the head does not say whether it was closed cleanly", head.size)
    for table, number in file.strays():
        flaws.say("row_stray", f"a row of `{table}` is of no batch below the head", number)
    for batch_id in file.repeated_batch_ids():
        flaws.say("batch_id_wrong", f"two batches have the id {batch_id[:64]}")


def mend(folder: Folder, check: Check, progress: Progress = lambda done, total: None) -> tuple[Path, int]:
    """Copy the file, then make again what the leaves below `check.proven` give; return the copy and how many batches.

    StoreOwned while a gateway runs. Leaves, head and records are never touched.
    """
    mending = Mending(folder.database)
    try:
        copy = _copy_name(folder.database)
        backup(folder.database, copy)
        signers = Signers(folder.data)
    except BaseException:
        mending.close()
        raise
    count = 0
    with mending, closing(RawFile(folder.database)) as file:
        history = History(file, check.proven, Flaws(), progress)
        for step in history.walk():
            if not history.is_pure:
                raise Fatal("the leaves changed while the file was being mended; nothing was written")
            count += _mend_step(mending, history.origin, step, signers)
    return copy, count


def _mend_step(mending: Mending, origin: str, step: Step, signers: Signers) -> bool:
    """Write what differs of one batch; say whether anything did."""
    stored, made = step.stored, step.made
    is_new = made != stored and stored.first_seq == step.growth.before.size
    if is_new:
        mending.put_batch(made)
    note = signers.note(step.logs, origin, stored.size, step.growth.root)
    signatures = [
        signers.signature(key, leaf) for key, leaf in zip(step.receipts, step.leaves, strict=True) if leaf is not None
    ]
    if note is None or None in signatures:
        return is_new  # a key is gone: what it signed can't be made again
    whole = tuple(one for one in signatures if one is not None and len(one) == SIGNATURE_BYTES)
    if (stored.note, stored.signatures) != (note, b"".join(whole)):
        mending.put_signed(SignedBatch(stored.size, note, whole))
        return True
    return is_new


def _copy_name(database: Path) -> Path:
    """Return a free name beside the file."""
    number = 1
    while os.path.lexists(path := database.with_name(f"{database.name}.before-fsck-{number}")):
        number += 1
    return path
