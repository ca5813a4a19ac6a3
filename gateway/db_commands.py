"""What `tallystick db` does with the database that ledgers are in; what may be said to it is in `db.py`.

Nobody is shown a password: a URL has none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gateway.app import open_ledger, signer_of
from gateway.config import DURABILITIES, Settings, load_settings, settings_from
from gateway.db_copy import MOVED_FILE, copy_ledger, switch, taken
from gateway.errors import Fatal, StartError
from gateway.fsck.check import Folder, check_file
from gateway.ledger.history import open_book
from gateway.store.postgres_fit import findings, look
from gateway.store.postgres_link import Link, Lost, place_of
from gateway.store.postgres_schema import Ledger, ledgers_of, migrate, nodes_of, scripts, version_of
from gateway.store.postgres_sight import PostgresSight
from gateway.stores import open_reader, origin_of, reaching


def _open(url: str) -> Link:
    try:
        return Link(url)
    except Lost as lost:
        raise StartError(
            f"{lost.text}. Check that it runs and takes connections from here, and that PGPASSFILE or PGPASSWORD has"
            " what it asks for"
        ) from lost


def _migrate(arguments: argparse.Namespace) -> int:
    with closing(_open(arguments.store)) as link:
        before, after = migrate(link)
    place = place_of(arguments.store)
    if before == after:
        print(f"{place} is at schema version {after}; nothing to do")
    else:
        print(f"{place}: schema version {before} → {after}; gateways may be started")
    return 0


# -- check -------------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    with closing(_open(settings.store)) as link:
        facts = look(link)
        print(f"server    PostgreSQL {facts.version} at {place_of(settings.store)}, as {facts.role}")
        is_fit = _tell_settings([str(one) for one in findings(facts, settings.durability)], settings.durability)
        has_schema = _tell_schema(link)
        if has_schema:
            _tell_ledgers(link)
    if has_schema and arguments.data:
        _open_as_at_start(arguments.data, settings)
    return 0 if is_fit and has_schema else 1


def _settings(arguments: argparse.Namespace) -> Settings:
    if not arguments.data:
        return Settings(store=arguments.store, durability=arguments.durability or DURABILITIES[0])
    settings = load_settings(arguments.data)
    if not settings.store:
        raise StartError(
            f"the ledger of {arguments.data} is in a file, not in a database; `tallystick ledger fsck` checks it"
        )
    return Settings(store=settings.store, durability=arguments.durability or settings.durability)


def _tell_settings(found: Sequence[str], durability: str) -> bool:
    if not found:
        print(f"settings  fit for durability {durability}")
    for finding in found:
        print(f"settings  {finding}")
    return not found


def _tell_schema(link: Link) -> bool:
    version, known = version_of(link), len(scripts())
    if version == known:
        print(f"schema    version {version}")
        return True
    advice = "update this program" if version is not None and version > known else "run `tallystick db migrate`"
    print(f"schema    {'none' if version is None else f'version {version}'}, must be version {known}: {advice}")
    return False


def _tell_ledgers(link: Link) -> None:
    ledgers = ledgers_of(link)
    if not ledgers:
        print("ledgers   none; `tallystick init --store URL` makes one")
    for ledger in ledgers:
        print(f"ledger    {ledger.origin}: {_sentence(ledger)}")
        for node in nodes_of(link, ledger.number):
            version = node.version or "unknown"
            times = f"started {node.age_s} s ago, wrote {node.silence_s} s ago"
            print(f"  node    {node.name}: {node.manner}, version {version}, {times}")


def _sentence(ledger: Ledger) -> str:
    if not ledger.size:
        return "not opened yet"
    return f"{ledger.size} entries, epoch {ledger.epoch}, written as {ledger.manner}"


def _open_as_at_start(data: Path, settings: Settings) -> None:
    """Check the end of the ledger, its hot records and their seal, as a start does. Fatal with what is wrong."""
    with reaching(settings):
        with closing(open_reader(data, settings)) as reader:
            opened = open_ledger(reader)
            signer = signer_of(data, opened, reader)
        with closing(PostgresSight(settings.store, opened.origin, durability=settings.durability, manner="")) as store:
            book = open_book(store, signer, opened.genesis, None)
    print(f"opened    {opened.origin} as a start would: {book.head.size} entries, chain, tree, records and seal fit")


# -- copy --------------------------------------------------------------------------------------------------------------


def _copy(arguments: argparse.Namespace) -> int:
    data, before = arguments.data, load_settings(arguments.data)
    if before.store:
        raise StartError(f"the ledger of {data} is in a database already, at {place_of(before.store)}")
    wanted = {"store": arguments.store, "durability": arguments.durability}
    checked = settings_from(wanted, "the command line")
    settings = replace(before, store=checked.store, durability=checked.durability)
    origin = origin_of(data)
    with taken(data) as path:
        # What is in the database once, nobody takes out again.
        if not check_file(replace(Folder.of(data), database=path)).is_sound:
            raise Fatal(f"the file is not sound, so nothing was copied; run `tallystick ledger fsck --data {data}`")
        copied = copy_ledger(path, settings, origin)
        print(f"copied    {origin}: {copied.entries} entries, {copied.batches} batches, {copied.records} records")
        _open_as_at_start(data, settings)
        switch(data, settings)
    print(
        f"setting   store of {data} leads to {place_of(settings.store)} now; {MOVED_FILE} is a back-up, never serve it"
    )
    return 0


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {"migrate": _migrate, "check": _check, "copy": _copy}
