"""tallystick-verify: check a receipt, two files of one log, or a whole ledger offline, without network and clock.

Exit codes are the protocol with other programs: 0 the requested level holds; 1 invalid; 2 usage or unreadable; 3 valid
below the requested level, or indeterminate; 4 a split view is proven. Source: docs/protocol.md 16.4, 16.7.
"""

from __future__ import annotations

import argparse
import sys
from argparse import BooleanOptionalAction
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

try:
    from verifier.compare import EVIDENCE_BYTES_MAX, check_compare
    from verifier.keyring import Keyring, open_keyring
    from verifier.receipt import check_receipt
    from verifier.replay.ledger import check_ledger, show_progress
    from verifier.replay.source import open_regular, read_bounded
    from verifier.verdict import LEVELS, Report, unreadable
    from verifier.wire import RECEIPT_BYTES_MAX, TEXT_BYTES_MAX, Malformed, decode_decimal
except ImportError as error:  # this folder is made to be copied alone, to machines that may lack its one dependency
    text = "PyNaCl is not installed: pip install PyNaCl" if error.name == "nacl" else error
    sys.stderr.write(f"tallystick-verify: {text}\n")
    sys.exit(2)

VERSION = "0.1.0.dev0"  # pyproject.toml's, which does not come along when this folder is copied; a test compares them


class _Parser(argparse.ArgumentParser):
    """argparse, but a number is the protocol's number and an error is one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """Return the command line of `tallystick-verify`."""
    top = _Parser(prog="tallystick-verify", description=__doc__, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"%(prog)s {VERSION}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND (receipt, compare or ledger)")
    receipt = commands.add_parser("receipt", help="check one receipt file", allow_abbrev=False)
    receipt.add_argument("path", metavar="FILE", type=Path, help="the receipt, as the gateway sent it")
    receipt.add_argument("--level", choices=LEVELS[1:], default="included", help="what must hold for exit 0")
    receipt.add_argument("--now", metavar="MS", type=_number, help="your clock, to judge the end of a lease")
    receipt.add_argument(
        "--also",
        metavar="FILE",
        type=Path,
        nargs="+",
        default=[],
        help="other receipts, checkpoints, consistency proofs",
    )
    receipt.add_argument("--private", metavar="FILE", type=Path, help="texts that only their digests stand for")
    compare = commands.add_parser(
        "compare", help="check two receipts or checkpoints against each other", allow_abbrev=False
    )
    compare.add_argument("path", metavar="A", type=Path, help="a receipt or checkpoint; alone, an evidence file")
    compare.add_argument("other", metavar="B", type=Path, nargs="?", help="another one of the same log")
    compare.add_argument(
        "--proof", metavar="FILE", type=Path, help="a consistency proof from the smaller to the larger"
    )
    compare.add_argument("--evidence", metavar="OUT", type=Path, help="where to write the proof of a split view")
    ledger = commands.add_parser("ledger", help="check an export file or tile directory", allow_abbrev=False)
    ledger.add_argument("path", metavar="PATH", type=Path, help="the export file, or the folder with the tiles")
    ledger.add_argument("--checkpoint", metavar="FILE", type=Path, help="a checkpoint the ledger must reach")
    ledger.add_argument("--jobs", metavar="N", type=_number, default=1, help="processes that check signatures")
    ledger.add_argument(
        "--state", metavar="DIR", type=Path, help="go on from the position saved in DIR, and save there"
    )
    ledger.add_argument(
        "--rules", action="store_true", help="ask the rules again what they say of each admission (needs cedarpy)"
    )
    ledger.add_argument(
        "--progress", action=BooleanOptionalAction, help="how far it is, on stderr; as a rule if that is a terminal"
    )
    for command in (receipt, compare, ledger):
        command.add_argument("--root", metavar="VKEY", help="the pinned root key, or @FILE that holds it")
        command.add_argument("--keys", metavar="FILE", type=Path, help="the key document signed by the root")
        command.add_argument("--policy", metavar="FILE", type=Path, help="log and witness keys (C2SP tlog-policy)")
        command.add_argument("--min-keys-version", metavar="N", type=_number, default=0, help="refuse older documents")
        command.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        report = _run(options)
        print(report.as_json() if options.json else report.as_text(), flush=True)
    except BrokenPipeError:  # the reader has seen enough, as `head` has; the verdict stands, and the exit code says it
        with suppress(BrokenPipeError):  # now, or the interpreter tries again at its end and spoils the exit code
            sys.stdout.close()
    except (MemoryError, KeyboardInterrupt) as error:
        # The one place that ends without a report: there is no memory or no wish for one.
        sys.stderr.write(f"tallystick-verify: stopped by {type(error).__name__}; nothing was judged\n")
        return 2
    return report.exit_code


def _run(options: argparse.Namespace) -> Report:
    """Open the pins, then judge. What cannot be read is a report of exit code 2."""
    command: str = options.command
    try:
        keyring = _pins(options)
        if command == "ledger":
            note = None if options.checkpoint is None else read_bounded(options.checkpoint, TEXT_BYTES_MAX)
            is_shown = sys.stderr.isatty() if options.progress is None else options.progress
            return check_ledger(
                options.path,
                keyring,
                note,
                jobs=options.jobs,
                folder=options.state,
                progress=show_progress if is_shown else None,
                has_rules=options.rules,
            )
        return _compare(options, keyring) if command == "compare" else _receipt(options, keyring)
    except (Malformed, UnicodeDecodeError) as error:
        return unreadable(command, str(error), "pins_malformed")
    except (OSError, ValueError) as error:
        name, reason = getattr(error, "filename", None) or "a file", getattr(error, "strerror", None) or error
        return unreadable(command, f"cannot read {name}: {reason}", "unreadable")


def _receipt(options: argparse.Namespace, keyring: Keyring) -> Report:
    others = [read_bounded(path, RECEIPT_BYTES_MAX) for path in options.also]
    private = None if options.private is None else read_bounded(options.private, RECEIPT_BYTES_MAX)
    with open_regular(options.path) as file:
        content = file.read(RECEIPT_BYTES_MAX + 1)
    return check_receipt(content, keyring, level=options.level, now_ms=options.now, others=others, private=private)


def _compare(options: argparse.Namespace, keyring: Keyring) -> Report:
    """A file that is there already is not written over by evidence; the verdict stands either way."""
    other = None if options.other is None else read_bounded(options.other, RECEIPT_BYTES_MAX)
    content = read_bounded(options.path, EVIDENCE_BYTES_MAX if other is None else RECEIPT_BYTES_MAX)
    proof = None if options.proof is None else read_bounded(options.proof, TEXT_BYTES_MAX)
    report, evidence = check_compare(content, other, keyring, proof=proof)
    if evidence is not None and options.evidence is not None:
        try:
            with options.evidence.open("xb") as file:
                file.write(evidence)
        except (OSError, ValueError) as error:
            sys.stderr.write(f"tallystick-verify: the evidence was not written: {error}\n")
    return report


def _pins(options: argparse.Namespace) -> Keyring:
    root: str | None = options.root
    if root is not None and root.startswith("@"):
        root = read_bounded(Path(root[1:]), TEXT_BYTES_MAX).decode("utf-8").removesuffix("\n")
    elif root is not None and "+" not in root:
        raise Malformed("--root is not a verifier key; to read it from a file write @FILE")
    document = None if options.keys is None else read_bounded(options.keys, TEXT_BYTES_MAX)
    policy = None if options.policy is None else read_bounded(options.policy, TEXT_BYTES_MAX)
    keyring = open_keyring(root=root, document=document, policy=policy)
    if (keyring.version or 0) < options.min_keys_version:
        raise Malformed(f"the key document's version {keyring.version} is below {options.min_keys_version}")
    return keyring


def _number(text: str) -> int:
    try:
        return decode_decimal(text)
    except Malformed as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())
