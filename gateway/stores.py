"""Which store a data directory means: the file that lies in it, or a PostgreSQL database that other nodes write too.

Everybody who opens a ledger asks here, so that a ledger moves from one to the other by one setting, `store`. What
PostgreSQL needs is imported when a ledger is there, and no sooner: the file needs nothing installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from socket import gethostname
from typing import Any, Protocol

from gateway.config import SETTINGS_FILE, Settings, load_settings
from gateway.errors import Busy, StartError, Unfit
from gateway.keyroom import PUBLIC
from gateway.store.contract import Reading, Store, StoredHead
from gateway.store.raw import RawFile
from gateway.store.sqlite import Reader, SqliteStore
from keys.forms import NOTE_FILE, ROOT_FILE
from verifier.keyring import open_key_document
from verifier.note import parse_vkey
from verifier.wire import TEXT_BYTES_MAX, Malformed

LEDGER_FILE = "ledger.sqlite3"
INSTALL = "pip install 'tallystick[gateway,postgres]'"


class LedgerReader(Reading, Protocol):
    """A ledger to be read beside its gateways or without any, from any thread."""

    def head(self) -> StoredHead | None:
        """Return the committed head. It may be newer than what a gateway has signed and shown."""

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (key, value) of every record whose key begins with one of the prefixes, as of one moment."""

    def counts(self) -> Mapping[str, int]:
        """Return figures of the store, by their names: batches, batchesSigned, signatures, bytes."""

    def take_duty(self, name: str, holder: str, ms: int) -> bool:
        """Take or keep for `ms` what one node of a ledger does at a time; False: another one does it. 0: give it back.

        Only a hint: who was stopped for long goes on for a moment. Nothing may be wrong when two do it.
        """

    def close(self) -> None:
        """Give the connection back."""


class FileReader(Reader):
    """Reads the file of a data directory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path = path

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        with closing(RawFile(self._path)) as file, file.moment():
            found = [(row.key, row.value) for prefix in prefixes for row in file.records(prefix)]
        yield from sorted(found)

    def counts(self) -> Mapping[str, int]:
        wal = self._path.with_name(f"{self._path.name}-wal")
        sizes = {"databaseBytes": self._path.stat().st_size, "walBytes": wal.stat().st_size if wal.exists() else 0}
        with closing(RawFile(self._path)) as file:
            return {**sizes, **file.counts()}

    def take_duty(self, name: str, holder: str, ms: int) -> bool:
        """A file has one gateway."""
        return True


def durability_of(settings: Settings) -> str:
    """Return the word for what a commit survives, as every entry will carry it."""
    return settings.durability if settings.store else SqliteStore.durability


def open_store(
    folder: Path, settings: Settings, engine: str | None = None, *, is_manner_accepted: bool = False
) -> Store:
    """Take the ledger of a data directory, to decide in it. `engine` names what evaluates rules here, if anything does;
    `is_manner_accepted` lets the start change that, and the durability, under other nodes.

    StartError: it can't be, and the text says what to look at. StoreOwned: another gateway has it.
    """
    if not settings.store:
        return SqliteStore(folder / LEDGER_FILE)
    return _postgres(settings, origin_of(folder), engine, is_manner_accepted=is_manner_accepted)


def open_reader(
    folder: Path, settings: Settings | None = None, shown: Callable[[], tuple[int, bytes]] | None = None
) -> LedgerReader:
    """Return a reader of a data directory's ledger, by the settings in it unless others are given.

    With `shown`, the size and root of the newest head that others were shown, it reads from no server without it.
    """
    settings = settings or _settings_of(folder)
    if not settings.store:
        return FileReader(folder / LEDGER_FILE)
    reader: LedgerReader = with_psycopg("gateway.store.postgres_ledger").PostgresLedger(
        settings.store, origin_of(folder), shown
    )
    return reader


def create_store(folder: Path, settings: Settings, origin: str) -> Store:
    """Return the empty store of a new ledger. StartError, StoreOwned: that can't be made there."""
    if not settings.store:
        return SqliteStore(folder / LEDGER_FILE, may_create=True)
    with reaching(settings):
        with_psycopg("gateway.store.postgres").create(settings.store, origin, settings.durability)
    return _postgres(settings, origin, None)


def _postgres(settings: Settings, origin: str, engine: str | None, *, is_manner_accepted: bool = False) -> Store:
    store: Store = with_psycopg("gateway.store.postgres").PostgresStore(
        settings.store,
        origin,
        durability=settings.durability,
        manner=f"{settings.durability} {engine or 'none'}",
        node=f"{gethostname()}:{settings.listen_port}",
        is_manner_accepted=is_manner_accepted,
    )
    return store


def origin_of(folder: Path) -> str:
    """Return the origin in the key document of a data directory, which its root signed."""
    public = folder / PUBLIC
    try:
        root = parse_vkey((public / ROOT_FILE).read_text("ascii").strip())
        with (public / NOTE_FILE).open("rb") as file:
            return open_key_document(file.read(TEXT_BYTES_MAX + 1), root).origin
    except (Malformed, UnicodeDecodeError, OSError) as error:
        raise StartError(
            f"{public} does not say which ledger this is ({error}); bring back the folder that was published"
        ) from error


def needs_file(folder: Path, command: str, instead: str) -> Path:
    """Return the ledger's file for what only a file can have done to it. StartError, with what to do `instead`."""
    if _settings_of(folder).store:
        raise StartError(f"this ledger is in PostgreSQL, and `{command}` is for one in a file. {instead}")
    return folder / LEDGER_FILE


@contextmanager
def reaching(settings: Settings) -> Iterator[None]:
    """Tell who starts without a database what to look at, as a StartError. What a file's disk says stays as it is."""
    try:
        yield
    except Unfit:
        raise  # it says itself what to change
    except Busy as busy:
        if not settings.store:
            raise
        if busy.reason == "outcome_unknown":
            raise StartError(
                f"the database at {settings.store} did not say whether it kept what was written; a stand-by is lost, or"
                f" slow. Run this again when `tallystick db check --store {settings.store}` says that it is fit: that"
                " is right whether it was kept or not"
            ) from busy
        why = " ".join(str(getattr(busy, "text", busy)).split())
        raise StartError(
            f"the database at {settings.store} can't be used now ({why}). Check that it runs and takes connections from"
            " here, and that PGPASSFILE or PGPASSWORD has what it asks for; `tallystick db check --data DIR` tells more"
        ) from busy


def _settings_of(folder: Path) -> Settings:
    """Return the settings of a data directory; one without any means a file, as a copy of it alone may be looked at."""
    return load_settings(folder) if (folder / SETTINGS_FILE).exists() else Settings()


def with_psycopg(module: str) -> Any:
    """Return a module that needs psycopg. StartError where that is not installed, with the command."""
    try:
        return import_module(module)
    except ImportError as error:
        raise StartError(
            f"psycopg can't be used ({error}). Install what a ledger in PostgreSQL needs:\n    {INSTALL}"
        ) from error
