"""Moves a ledger from its file into a database: entries, batches, signatures and records, byte for byte.

One transaction, so a copy that was stopped left nothing behind. Each batch's tree is computed again from its leaves on
the way, and the setting that makes gateways use the database is changed last, after the ledger there was opened as a
start opens it. The file stays, under a name that no gateway opens: two stores that go on are two histories.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import LiteralString, NamedTuple, TypeVar

from gateway.config import SETTINGS_FILE, Settings
from gateway.errors import Fatal, StartError, Unknown
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.store.contract import StoredHead
from gateway.store.postgres import create
from gateway.store.postgres_fit import greet
from gateway.store.postgres_link import BEGIN, Link, Statement, plain
from gateway.store.postgres_schema import ledger_of, ledgers_of
from gateway.store.raw import RawBatch, RawFile
from gateway.store.sqlite import SqliteStore
from gateway.stores import LEDGER_FILE, reaching
from keys.files import replace_file, sync_folder
from verifier.merkle import leaf_hash

MOVED_FILE = f"{LEDGER_FILE}.moved"
MANNER = "file none"  # until the first start on the database says what nodes there write
BATCHES_PER_LOT = 256
RECORDS_PER_LOT = 4_096
T = TypeVar("T")
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


def copy_ledger(data: Path, settings: Settings, origin: str) -> Copied:
    """Copy the stopped ledger of a data directory into the database of `settings`, if it is not there already.

    StoreOwned: a gateway runs on it. StartError, Unfit, Fatal: nothing was copied, and why.
    """
    with closing(SqliteStore(data / LEDGER_FILE)), closing(RawFile(data / LEDGER_FILE)) as file, reaching(settings):
        head = file.head()
        if head is None:
            raise StartError(f"{data / LEDGER_FILE} has no entry 0; make a new ledger with `tallystick init`")
        with closing(_opened(settings, origin)) as link:
            ledger = ledger_of(link, origin)
            link.run(plain(BEGIN), plain("SET LOCAL idle_in_transaction_session_timeout = 0"))
            there = StoredHead(*link.rows(_THERE, (ledger,))[0])
            if there.size == 0:
                _fill(file, head, link, ledger)
            elif there != head:
                raise StartError(
                    f"the database holds a ledger {origin} that is not this one as it stands here ({there.size} entries"
                    f" there, {head.size} here). Nothing was changed"
                )
            return Copied(*link.rows(_COUNTS, (ledger,))[0])


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


def _fill(file: RawFile, head: StoredHead, link: Link, ledger: int) -> None:
    """Write all of it, compare, and commit."""
    with file.moment():
        copied = Copied(head.size, *_copy_history(file, head, link, ledger), _copy_records(file, link, ledger))
        is_clean = bool(file.is_clean())
    found = Copied(*link.rows(_COUNTS, (ledger,))[0])
    if found != copied:
        raise Fatal(f"{found} came into the database, of {copied}; nothing was kept of it")
    try:
        link.commit(Statement(_HEAD, (*_moved(head), is_clean, MANNER, ledger)))
    except Unknown as unknown:
        raise StartError(f"whether the copy was kept could not be found out ({unknown}); run this again") from unknown


def _moved(head: StoredHead) -> tuple[object, ...]:
    return head.size, head.root, head.prev_hash, head.time_ms, head.epoch, head.batch_id, head.seal


def _copy_history(file: RawFile, head: StoredHead, link: Link, ledger: int) -> tuple[int, int]:
    """Copy entries, batches and signatures; return how many batches there are, and how many are signed."""
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
        count, signed = (
            count + len(lot),
            signed + _write(link, ledger, lot, [leaves[seq] for seq in range(first, stop)]),
        )
    if (edge.size, edge.root) != (head.size, head.root):
        raise _damaged("the head is not that of the last batch")
    return count, signed


def _write(link: Link, ledger: int, lot: Sequence[RawBatch], leaves: Sequence[bytes]) -> int:
    """Write some batches with all that belongs to them; return how many are signed."""
    signed = [batch for batch in lot if batch.note is not None]
    link.rows(_ENTRIES, (ledger, lot[0].first_seq, list(leaves)))
    link.rows(_BATCHES, (ledger, *map(list, zip(*(batch[:7] for batch in lot), strict=True))))
    columns = [one.size for one in signed], [one.note for one in signed], [one.signatures for one in signed]
    link.rows(_SIGNED, (ledger, *columns))
    return len(signed)


def _copy_records(file: RawFile, link: Link, ledger: int) -> int:
    count = 0
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
    """Let gateways of the data directory use the database from their next start, and the file never again."""
    path = data / SETTINGS_FILE
    values = json.loads(path.read_bytes())
    values |= {"store": settings.store, "durability": settings.durability}
    mode = path.stat().st_mode & 0o777
    replace_file(path, (json.dumps(values, indent=2) + "\n").encode())
    path.chmod(mode)
    for end in ("-wal", "-shm", ""):
        beside = data / f"{LEDGER_FILE}{end}"
        if beside.exists():
            os.replace(beside, data / f"{MOVED_FILE}{end}")
    sync_folder(data)
