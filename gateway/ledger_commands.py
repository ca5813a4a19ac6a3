"""`tallystick ledger export | backup | stats | fsck | prune`: what an operator does with a ledger as a file.

All but `fsck --repair` may run beside a gateway. Exit codes: 0 done, 1 not done or not sound, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic, sleep

from gateway.administration import guarded
from gateway.damage import Marker
from gateway.errors import Fatal
from gateway.export import (
    ExportError,
    Extent,
    TileFolder,
    await_signed,
    backup,
    cosigned_of,
    export_file,
    extent_of,
    newer_than,
    stats,
    stats_table,
)
from gateway.fsck.check import Check, Folder, check_file, mend
from gateway.retention import RETENTION_FILE, open_retention, prune
from gateway.stores import LedgerReader, needs_file, open_reader

PROGRESS_SECONDS = 0.5
FOLLOW_SECONDS_MAX = 86_400
BACKUP_INSTEAD = (
    "Copy its database with pg_basebackup, as docs/operating.md says; `tallystick ledger export` copies the entries"
)
FSCK_INSTEAD = (
    "`tallystick db check` looks at the database's settings, `tallystick-verify ledger` over an export at every entry"
)


def ledger(argv: Sequence[str]) -> int:
    """Run one of the commands on a ledger's file."""
    arguments = _parser().parse_args(argv)
    codes: list[int] = []
    failed = guarded(f"ledger {arguments.command}", lambda: codes.append(_COMMANDS[arguments.command](arguments)))
    return failed or codes[0]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tallystick ledger",
        description="Check a ledger's file, copy it out, show its figures; the gateway may run meanwhile.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join(_COMMANDS))
    _add_export(commands.add_parser("export", help="write what `tallystick-verify ledger` checks"))
    copy = commands.add_parser("backup", help="copy the database of a running or stopped gateway")
    copy.add_argument("file", type=Path, metavar="FILE", help="the copy; must not exist yet")
    figures = commands.add_parser("stats", help="show figures: entries by type, sizes, keys, times")
    figures.add_argument("--json", action="store_true", help="print JSON")
    _add_fsck(commands.add_parser("fsck", help="hash every value again and say what is damaged"))
    pruning = commands.add_parser(
        "prune", help="remove old entry bundles of a static copy", description=_PRUNE_DESCRIPTION
    )
    pruning.add_argument("--tiles", type=Path, required=True, metavar="DIR", help="the static copy")
    pruning.add_argument("--below", type=int, required=True, metavar="SEQ", help="remove what lies wholly below this")
    for command in commands.choices.values():
        command.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data directory")
    return parser


_PRUNE_DESCRIPTION = (
    "Remove full entry bundles of a static copy that end at or below SEQ and below the minimum of the published "
    "retention policy (`tallystick keys retention`). Hash tiles stay, and so does everything in the database."
)


def _add_export(export: argparse.ArgumentParser) -> None:
    place = export.add_mutually_exclusive_group(required=True)
    place.add_argument("file", nargs="?", type=Path, metavar="FILE", help="write one file")
    place.add_argument("--out", type=Path, metavar="FILE", help="write one file; the same as FILE alone")
    place.add_argument(
        "--tiles", type=Path, metavar="DIR", help="write a directory of C2SP tiles, or bring it up to date"
    )
    export.add_argument(
        "--witnessed", action="store_true", help="end exactly at the newest checkpoint that witnesses cosigned"
    )
    export.add_argument(
        "--follow", type=_seconds, metavar="SECONDS", help="with --tiles: go on, and look for more that often"
    )


def _add_fsck(fsck: argparse.ArgumentParser) -> None:
    fsck.description = (
        "Read only, and beside a running gateway up to where the ledger ended when it began. Exit code 1: something is "
        "damaged; what, where, and what to do is printed."
    )
    doing = fsck.add_mutually_exclusive_group()
    doing.add_argument(
        "--repair", action="store_true",
        help="make again what the leaves prove (hashes, checkpoints, signatures), after a back-up; gateway stopped",
    )  # fmt: skip
    doing.add_argument(
        "--clear-damage", action="store_true", help="let a gateway start again that saw damage, if all is sound now"
    )
    fsck.add_argument("--json", action="store_true", help="print JSON")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= FOLLOW_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds between 0.1 and {FOLLOW_SECONDS_MAX}")
    return seconds


# -- export, backup, stats ---------------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace) -> int:
    with closing(open_reader(arguments.data)) as reader:
        await_signed(reader)
        extent = _extent(reader, arguments)
        if arguments.tiles:
            folder = TileFolder(arguments.tiles)
            folder.update(reader, extent)
        elif arguments.follow:
            raise ExportError("--follow brings a tile directory up to date; say --tiles DIR")
        else:
            export_file(reader, arguments.out or arguments.file, extent)
        _tell_extent(reader, extent, arguments)
        if arguments.follow:
            with suppress(KeyboardInterrupt):
                _follow(reader, folder, arguments, extent.size)
    return 0


def _extent(reader: LedgerReader, arguments: argparse.Namespace) -> Extent:
    return extent_of(reader, cosigned_of(reader), is_witnessed=arguments.witnessed)


def _tell_extent(reader: LedgerReader, extent: Extent, arguments: argparse.Namespace) -> None:
    place, seen = arguments.tiles or arguments.out or arguments.file, " witnessed" if extent.is_witnessed else ""
    print(f"{extent.size}{seen} entries of {extent.origin} written to {place}", flush=True)
    newer, cosigned = newer_than(reader, extent), cosigned_of(reader)
    if newer:
        entries = "newer entry is" if newer == 1 else "newer entries are"
        lack = "not witnessed yet" if arguments.witnessed else "their checkpoint is not kept yet; run again"
        print(f"{newer} {entries} committed, {lack}")
    if cosigned is not None and not extent.is_witnessed and cosigned.size < extent.size:
        print(f"witnesses have seen {cosigned.size} of them so far; to end exactly there, with their signatures, add")
        print("  --witnessed")


def _follow(reader: LedgerReader, folder: TileFolder, arguments: argparse.Namespace, size: int) -> None:
    """Bring a tile directory up to date until interrupted; what is not new costs one look at the newest checkpoint."""
    while True:
        sleep(arguments.follow)
        extent = folder.update(reader, _extent(reader, arguments))
        if extent.size != size:
            size = extent.size
            print(f"{size} entries", flush=True)


def _backup(arguments: argparse.Namespace) -> int:
    backup(needs_file(arguments.data, "ledger backup", BACKUP_INSTEAD), arguments.file)
    print(f"copied to {arguments.file}. Without a witness only clients can notice that a restored copy is old.")
    return 0


def _stats(arguments: argparse.Namespace) -> int:
    with closing(open_reader(arguments.data)) as reader:
        figures = stats(reader)
    print(json.dumps(figures, indent=2) if arguments.json else stats_table(figures))
    return 0


# -- fsck --------------------------------------------------------------------------------------------------------------


def _fsck(arguments: argparse.Namespace) -> int:
    needs_file(arguments.data, "ledger fsck", FSCK_INSTEAD)
    folder, marker = Folder.of(arguments.data), Marker(arguments.data)
    check = check_file(folder, _Progress())
    if arguments.clear_damage:
        return _clear(marker, check, arguments)
    if arguments.repair and not check.is_sound:
        check = _repair(folder, check)
    if (told := marker.read()) is not None:
        check.flaws.say("damage_marked", f"the gateway found at {told.found}: {told.text}", told.seq)
    _print_check(check, arguments)
    return 0 if check.is_sound else 1


def _clear(marker: Marker, check: Check, arguments: argparse.Namespace) -> int:
    """Remove the marker of a gateway that saw damage: only of a file that is sound by all that can be computed."""
    if not check.is_sound:
        _print_check(check, arguments)
        print("the marker stays, for the ledger is not sound", file=sys.stderr)
        return 1
    print(f"removed {marker.path}" if marker.clear() else "there is no marker of damage", file=sys.stderr)
    _print_check(check, arguments)
    return 0


def _repair(folder: Folder, check: Check) -> Check:
    """Mend what can be mended, and check again."""
    if not any(flaw.is_mendable for flaw in check.flaws.found):
        raise Fatal("nothing of what is damaged can be made again; `tallystick ledger fsck` says what to do")
    copy, count = mend(folder, check, _Progress())
    print(f"{copy} is the file as it was; {count} batches were made again from their leaves", file=sys.stderr)
    return check_file(folder, _Progress())


def _print_check(check: Check, arguments: argparse.Namespace) -> None:
    flaws = check.flaws
    if arguments.json:
        print(json.dumps(check.facts(), indent=2))
        return
    for line in flaws.lines():
        print(line)
    print(
        f"{check.size} entries of {check.origin or 'an unknown ledger'}, up to where it ended when this began, and "
        f"{check.records} records checked; "
        f"{check.proven} entries are under a checkpoint that this ledger signed"
        + ("" if check.is_sealed else "; the seal was not checked, for its key is not here")
    )
    total = sum(flaws.counts.values())
    print("sound" if check.is_sound else f"{total} flaw{'s' if total > 1 else ''} found")


class _Progress:
    """Tells on standard error how far it is, where that is a terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._told_s = 0.0

    def __call__(self, done: int, total: int) -> None:
        is_last = done >= total
        if not self._is_shown or (monotonic() - self._told_s < PROGRESS_SECONDS and not is_last):
            return
        self._told_s = monotonic()
        print(f"\r{done:,} of {total:,} entries", end="\n" if is_last else "", file=sys.stderr, flush=True)


# -- prune -------------------------------------------------------------------------------------------------------------


def _prune(arguments: argparse.Namespace) -> int:
    retention = open_retention(arguments.data / "public")
    if retention is None:
        raise ExportError(
            f"{arguments.data}/public/{RETENTION_FILE} does not exist, and without a published policy nothing is"
            " pruned; make one with `tallystick keys retention`"
        )
    count, end = prune(arguments.tiles, retention, arguments.below)
    print(f"{count} bundles removed from {arguments.tiles}; entries below {end} are only in the database now")
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "export": _export,
    "backup": _backup,
    "stats": _stats,
    "fsck": _fsck,
    "prune": _prune,
}
