"""Moves a ledger from its file into a database: entries, batches, signatures and records, byte for byte.

Two stores that go on are two histories, so the file is taken, as a gateway takes it, until all of this is done:

1. One transaction copies; each batch's tree is computed again from its leaves on the way. Stopped, it left nothing.
2. The ledger there is opened as a start opens it.
3. The file gets a name that no gateway opens. From here on nothing is served, until
4. the setting `store` leads to the database.

Whoever is stopped runs it again. After 1 the file may have gone on: what the database lacks is added to what it has.
After 3 the file is compared, and the setting changed.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import LiteralString, NamedTuple, TypeVar

from gateway.config import SETTINGS_FILE, Settings
from gateway.errors import Fatal, StartError, Unknown
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.store.contract import StoredHead
from gateway.store.postgres import create
from gateway.store.postgres_fit import REPLICATED, greet
from gateway.store.postgres_link import BEGIN, Link, Statement, plain
from gateway.store.postgres_schema import ledger_of, ledgers_of
from gateway.store.postgres_text import UNDEMANDED
from gateway.store.raw import RawBatch, RawFile
from gateway.store.sqlite import MOVED, Reader, own
from gateway.stores import LEDGER_FILE, reaching
from keys.files import replace_file, sync_folder
from verifier.merkle import leaf_hash

MOVED_FILE = f"{LEDGER_FILE}{MOVED}"
MANNER = "file none"  # until the first start on the database says what nodes there write
BATCHES_PER_LOT = 256
RECORDS_PER_LOT = 4_096
T = TypeVar("T")
_PATIENT = (
    plain("SET LOCAL idle_in_transaction_session_timeout = 0"),
    plain("SET LOCAL lock_timeout = '15s'"),  # of a copy that was killed, the server notices within a second or two
)
_ENTRIES: LiteralString = (
    "INSERT INTO tallystick.entry SELECT %s::integer, %s::bigint + one.at - 1, one.leaf"
    " FROM unnest(%s::bytea[]) WITH ORDINALITY AS one (leaf, at)"
)
_BATCHES: LiteralString = (
    "INSERT INTO tallystick.batch SELECT %s::integer, one.* FROM"
    " unnest(%s::bigint[], %s::bigint[], %s::bytea[], %s::bigint[], %s::bigint[], %s::text[], %s::bytea[]) AS one"
)
_SIGNED: LiteralString = (
    "INSERT INTO tallystick.signed SELECT %s::integer, one.* FROM unnest(%s::bigint[], %s::bytea[], %s::bytea[]) AS one"
    " ON CONFLICT DO NOTHING"
)
_RECORDS: LiteralString = (
    "INSERT INTO tallystick.record SELECT %s::integer, one.* FROM unnest(%s::text[], %s::bytea[], %s::bigint[]) AS one"
)
_HEAD: LiteralString = (
    "UPDATE tallystick.head SET size = %s, root = %s, prev_hash = %s, time_ms = %s, epoch = %s, batch_id = %s,"
    " seal = %s, is_clean = %s, manner = %s WHERE ledger = %s"
)
_THERE: LiteralString = (
    "SELECT size, root, prev_hash, time_ms, epoch, batch_id, seal FROM tallystick.head WHERE ledger = %s FOR UPDATE"
)
_COUNTS: LiteralString = """
SELECT
    (SELECT count(*) FROM tallystick.entry WHERE ledger = id),
    (SELECT count(*) FROM tallystick.batch WHERE ledger = id),
    (SELECT count(*) FROM tallystick.signed WHERE ledger = id),
    (SELECT count(*) FROM tallystick.record WHERE ledger = id)
FROM tallystick.ledger WHERE id = %s
"""


class Copied(NamedTuple):
    """How much there is of a ledger."""

    entries: int
    batches: int
    signed: int
    records: int


@contextmanager
def taken(data: Path) -> Iterator[Path]:
    """Keep gateways, and other copies, from the ledger of a data directory, and give the path of its file.

    StoreOwned: one has it.
    """
    path, moved = data / LEDGER_FILE, data / MOVED_FILE
    lock = own(path.resolve())
    try:
        yield moved if moved.exists() and not path.exists() else path
    finally:
        os.close(lock)


def copy_ledger(path: Path, settings: Settings, origin: str) -> Copied:
    """Let the database of `settings` hold the ledger of a file that is `taken`; what it has of it stays as it is.

    StartError, Unfit, Fatal: nothing was copied, and why.
    """
    with closing(RawFile(path)) as file, reaching(settings):
        head = file.head()
        if head is None:
            raise StartError(f"{path} has no entry 0; make a new ledger with `tallystick init`")
        with closing(_opened(settings, origin)) as link:
            ledger = ledger_of(link, origin)
            link.run(plain(BEGIN), *_PATIENT)
            there = StoredHead(*link.rows(_THERE, (ledger,))[0])
            if not (there == head or (path.name != MOVED_FILE and _is_beginning(path, there))):
                raise StartError(
                    f"the database holds a ledger {origin} that is not this one as it stands here, in {path.name}"
                    f" ({there.size} entries there, {head.size} here). Nothing was changed"
                )
            fault = UNDEMANDED if settings.durability == REPLICATED else None
            return _fill(file, head, link, ledger, there.size, fault)


def _is_beginning(path: Path, there: StoredHead) -> bool:
    """Say whether what the database holds is how this ledger began, which nobody went on with there."""
    with closing(Reader(path)) as reader:
        batch = reader.batch_at(there.size)
    return there.size == 0 or (batch is not None and batch.root == there.root)


def _opened(settings: Settings, origin: str) -> Link:
    """Return a connection to the database, in which there is room for the ledger, if it may be written."""
    link = Link(settings.store)
    try:
        greet(link, secrets.token_hex(8), settings.durability)
        if not _is_known(link, origin):
            create(settings.store, origin)
    except BaseException:
        link.close()
        raise
    return link


def _is_known(link: Link, origin: str) -> bool:
    has_schema = link.rows("SELECT to_regclass('tallystick.ledger') IS NOT NULL")[0][0]
    return bool(has_schema) and any(one.origin == origin for one in ledgers_of(link))


def _fill(file: RawFile, head: StoredHead, link: Link, ledger: int, start: int, fault: Statement | None) -> Copied:
    """Write what comes after the first `start` entries, and all records; compare, and commit."""
    with file.moment():
        history = _copy_history(file, head, link, ledger, start)
        copied = Copied(head.size, *history, _copy_records(file, link, ledger))
        is_clean = bool(file.is_clean())
    found = Copied(*link.rows(_COUNTS, (ledger,))[0])
    if found != copied:
        raise Fatal(f"{found} came into the database, of {copied}; nothing was kept of it")
    try:
        link.commit(Statement(_HEAD, (*_moved(head), is_clean, MANNER, ledger)), fault=fault, is_bounded=True)
    except Unknown as unknown:
        raise StartError(f"whether the copy was kept could not be found out ({unknown}); run this again") from unknown
    return copied


def _moved(head: StoredHead) -> tuple[object, ...]:
    return head.size, head.root, head.prev_hash, head.time_ms, head.epoch, head.batch_id, head.seal


def _copy_history(file: RawFile, head: StoredHead, link: Link, ledger: int, start: int) -> tuple[int, int]:
    """Copy batches that end after `start`, and all signatures; return how many batches there are, and how many are
    signed."""
    edge, count, signed = EMPTY_EDGE, 0, 0
    for lot in lots(file.batches(head.size), BATCHES_PER_LOT):
        first, stop = lot[0].first_seq, lot[-1].size
        leaves = file.leaves(first, stop)
        for batch in lot:
            own = [leaves.get(seq) for seq in range(batch.first_seq, batch.size)]
            growth = Growth(edge, [leaf_hash(leaf) for leaf in own if leaf is not None])
            if None in own or (growth.root, b"".join(growth.hashes)) != (batch.root, batch.hashes):
                raise _damaged(f"the batch that ends at {batch.size} entries does not fit them")
            edge = growth.edge
        if first == 0:
            link.rows("UPDATE tallystick.ledger SET genesis = %s WHERE id = %s", (leaf_hash(leaves[0]), ledger))
        _write(link, ledger, [batch for batch in lot if batch.size > start], leaves)
        count, signed = count + len(lot), signed + _sign(link, ledger, lot)
    if (edge.size, edge.root) != (head.size, head.root):
        raise _damaged("the head is not that of the last batch")
    return count, signed


def _write(link: Link, ledger: int, lot: Sequence[RawBatch], leaves: Mapping[int, bytes]) -> None:
    """Write some batches with their entries."""
    if lot:
        first = lot[0].first_seq
        link.rows(_ENTRIES, (ledger, first, [leaves[seq] for seq in range(first, lot[-1].size)]))
        link.rows(_BATCHES, (ledger, *map(list, zip(*(batch[:7] for batch in lot), strict=True))))


def _sign(link: Link, ledger: int, lot: Sequence[RawBatch]) -> int:
    """Write what was signed of some batches, unless it is there; return how many are signed."""
    signed = [batch for batch in lot if batch.note is not None]
    columns = [one.size for one in signed], [one.note for one in signed], [one.signatures for one in signed]
    link.rows(_SIGNED, (ledger, *columns))
    return len(signed)


def _copy_records(file: RawFile, link: Link, ledger: int) -> int:
    count = 0
    link.rows("DELETE FROM tallystick.record WHERE ledger = %s", (ledger,))
    for lot in lots(file.records(), RECORDS_PER_LOT):
        columns = ([one.key for one in lot], [one.value for one in lot], [one.due_ms for one in lot])
        link.rows(_RECORDS, (ledger, *columns))
        count += len(lot)
    return count


def _damaged(what: str) -> Fatal:
    return Fatal(f"{what}, so nothing was copied; `tallystick ledger fsck` says what is wrong and what to do")


def lots(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    rest = iter(items)
    while lot := list(islice(rest, size)):
        yield lot


def switch(data: Path, settings: Settings) -> None:
    """Let nobody open the file any more, then let gateways of the data directory use the database."""
    if (data / LEDGER_FILE).exists():
        _put_aside(data)
    path = data / SETTINGS_FILE
    values = json.loads(path.read_bytes())
    values |= {"store": settings.store, "durability": settings.durability}
    mode = path.stat().st_mode & 0o777
    replace_file(path, (json.dumps(values, indent=2) + "\n").encode())
    path.chmod(mode)


def _put_aside(data: Path) -> None:
    """Give the file its last name, when it holds all that SQLite kept in the log beside it. StartError: it is read."""
    path = data / LEDGER_FILE
    with closing(sqlite3.connect(path)) as db:
        is_read: int = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if is_read:
        raise StartError(f"{path} is being read by another program; end that, and run this again")
    os.replace(path, data / MOVED_FILE)
    sync_folder(data)
