"""`tallystick witness init | add | serve | show`: run a witness for ledgers, one's own or anybody's.

Exit codes: 0 done, 1 refused or failed (the reason and what to do on standard error), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.witness.books import LOGS_FILE, Books, add_line, parse_logs
from gateway.witness.replay import Replays, read_position
from gateway.witness.server import CONNECTIONS_MAX, REQUESTS_PER_SECOND, Limits, serve
from gateway.witness.shelf import EVIDENCE_FOLDER, REFUSED_FOLDER, Shelf, ShelfError, origin_hash, read_state
from gateway.witness.witness import Witness
from keys.files import KeyFileError, load_key, new_key, replace_file, sync_folder
from verifier.note import KIND_COSIGNATURE, VerifierKey, is_key_name, make_vkey, parse_vkey
from verifier.wire import Malformed, encode_base64

EXIT_OK, EXIT_FAILED = 0, 1
KEY_FILE, VKEY_FILE = "witness.key", "witness.vkey"
DEFAULT_LISTEN = "127.0.0.1:8430"
_LOGS_HEADER = """\
# The logs that this witness answers for, one a line; read again whenever this file changes.
#   log <vkey> [<url>]          a key that signs checkpoints of the origin it is named after
#   replay <root vkey> <url>    a public ledger: every entry is fetched and audited before it is cosigned
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except (ShelfError, KeyFileError, Malformed) as error:
        print(f"tallystick witness: {error}", file=sys.stderr)
    except OSError as error:
        where = error.filename or "the address"
        print(f"tallystick witness: {where}: {error.strerror}. Check the path, the disk and the port.", file=sys.stderr)
    return EXIT_FAILED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all four commands."""
    parser = argparse.ArgumentParser(
        prog="tallystick witness",
        description="Run a C2SP witness: it signs how far it has seen a ledger, and never signs two histories of one.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (_add_init, _add_add, _add_serve, _add_show):
        add(commands)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str, text: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=summary, description=text)
    command.add_argument("--data", type=Path, required=True, metavar="DIR", help="the witness's folder")
    return command


def _add_init(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Make the folder of a new witness: its key, an empty list of logs. Nothing is overwritten."
    init = _command(commands, "init", "make a witness: its folder and its key", text)
    init.add_argument("--name", required=True, help="the witness's name for ever, such as witness.example/w1")
    init.set_defaults(command=_init)


def _add_add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Answer for one more log. A running witness notices by itself."
    add = _command(commands, "add", "answer for one more log", text)
    key = add.add_mutually_exclusive_group(required=True)
    key.add_argument("--log", metavar="VKEY|@FILE", help="a log's verifier key; its name is the origin")
    key.add_argument("--replay", metavar="ROOT-VKEY|@FILE", help="a ledger's root key: audit everything, then cosign")
    add.add_argument("--url", default="", help="address of the ledger's tiles, such as https://ledger.example/main")
    add.set_defaults(command=_add)


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serving = _command(commands, "serve", "answer requests", "Answer add-checkpoint requests until stopped.")
    serving.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    serving.add_argument("--connections", type=int, default=CONNECTIONS_MAX, metavar="N", help="open at one time")
    serving.add_argument(
        "--rate",
        type=float,
        default=REQUESTS_PER_SECOND,
        metavar="N",
        help=f"requests per second of one address, 0 for no limit (default {REQUESTS_PER_SECOND:g})",
    )
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    serving.add_argument("--log-level", default="INFO", choices=levels, help="INFO has a line for each request")
    serving.set_defaults(command=_serve)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Print the witness's key and, for each log, size, root, time of the newest cosignature, and evidence."
    _command(commands, "show", "print key, sizes, roots, times, evidence", text).set_defaults(command=_show)


# -- commands ----------------------------------------------------------------------------------------------------------


def _init(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.data
    make_witness(folder, arguments.name)
    print(f"made the witness {arguments.name} in {folder}; logs and readers pin this key:")
    print((folder / VKEY_FILE).read_text("utf-8"), end="")
    print(f"Next: tallystick witness add --data {folder} --log VKEY, then: tallystick witness serve --data {folder}")
    return EXIT_OK


def make_witness(folder: Path, name: str) -> VerifierKey:
    """Make a witness's folder and return its key; KeyFileError when there is one already."""
    if not is_key_name(name):
        raise Malformed("--name can name a key only without spaces, plus signs and control characters")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if any((folder / name).exists() for name in (LOGS_FILE, VKEY_FILE, "state")):
        raise ShelfError(f"{folder} holds a witness already; a new one is made in a folder of its own")
    key = new_key(folder / KEY_FILE, purpose="witness")
    vkey = make_vkey(name, key.public_key, KIND_COSIGNATURE)
    replace_file(folder / VKEY_FILE, f"{vkey.vkey}\n".encode())
    replace_file(folder / LOGS_FILE, _LOGS_HEADER.encode())
    sync_folder(folder)
    return vkey


def _add(arguments: argparse.Namespace) -> int:
    word, text = ("log", arguments.log) if arguments.log else ("replay", arguments.replay)
    if word == "replay" and not arguments.url:
        raise Malformed("a ledger is replayed from its tiles: add --url, such as https://ledger.example/main")
    key = parse_vkey(Path(text[1:]).read_text("utf-8").strip() if text.startswith("@") else text)
    add_line(arguments.data, " ".join(part for part in (word, key.vkey, arguments.url) if part))
    print(f"this witness now answers for {key.name.removesuffix('/root') if word == 'replay' else key.name}")
    return EXIT_OK


def _serve(arguments: argparse.Namespace) -> int:
    host, _, port = arguments.listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise Malformed("--listen is HOST:PORT, such as 127.0.0.1:8430")
    configure_log(arguments.log_level)
    folder: Path = arguments.data
    vkey = read_vkey(folder)
    key = load_key(folder / KEY_FILE, purpose="witness")
    if key.public_key != vkey.public_key:
        raise ShelfError(f"{folder / KEY_FILE} is not the key of {folder / VKEY_FILE}; restore both together")
    shelf = Shelf(folder, vkey)
    replays = Replays(folder, shelf)
    try:
        books = Books(folder)
        witness = Witness(key, vkey, books=books, shelf=shelf, clock_s=lambda: int(time.time()), replays=replays)
        limits = Limits(arguments.connections, arguments.rate)
        is_well = asyncio.run(serve(witness, shelf, limits, host, int(port)))
    finally:
        replays.close()
        shelf.close()
    return EXIT_OK if is_well else EXIT_FAILED


def read_vkey(folder: Path) -> VerifierKey:
    """Return the witness's public key; ShelfError when `folder` is none of a witness."""
    try:
        return parse_vkey((folder / VKEY_FILE).read_text("utf-8").strip())
    except FileNotFoundError as error:
        raise ShelfError(f"{folder} holds no witness. Make one: tallystick witness init --data {folder}") from error


def _show(arguments: argparse.Namespace) -> int:
    """Read the files as they lie; a running witness is not disturbed."""
    folder: Path = arguments.data
    vkey = read_vkey(folder)
    kept = read_state(folder, vkey)
    print(f"witness   {vkey.vkey}")
    for origin, log in parse_logs((folder / LOGS_FILE).read_bytes()).items():
        digest = origin_hash(origin)
        print(f"\norigin    {origin}{'' if log.root is None else ' (replayed)'}\nhash      {digest}")
        if digest in kept:
            found = kept[digest]
            print(f"size      {found.size}\nroot      {encode_base64(found.checkpoint.root)}")
            print(f"cosigned  {datetime.fromtimestamp(found.time_s, UTC):%Y-%m-%dT%H:%M:%SZ}")
        else:
            print("size      0, never cosigned")
        if log.root is not None:
            print(f"audited   {read_position(folder, origin)} entries")
        for path in sorted((folder / EVIDENCE_FOLDER / digest).glob("*")):
            print(f"evidence  {path}")
        if (folder / REFUSED_FOLDER / f"{digest}.json").exists():
            print(f"REFUSED   {folder / REFUSED_FOLDER / digest}.json says why")
    return EXIT_OK


# -- logs --------------------------------------------------------------------------------------------------------------


class _Lines(logging.Formatter):
    """One JSON object a line: names, numbers and codes; what a stranger sent is never repeated."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timeMs": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line, default=str)


def configure_log(level: str) -> None:
    """Send every logger of this program through one handler on standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel("WARNING")
