"""What the commands that got a receipt do with it: words or JSON on standard output, and the file of --receipt."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.client.errors import Interrupted
from gateway.client.exits import DONE, PROFILE
from gateway.client.private import Private, companion_path, save_private
from gateway.client.receipts import VerifiedReceipt
from gateway.client.terminal import home_option
from gateway.client.trust import Grant
from gateway.client.words import facts, sentence
from keys.files import replace_file
from verifier.wire import JsonObject, Malformed


def done(
    command: str,
    arguments: argparse.Namespace,
    receipt: VerifiedReceipt,
    next_step: str = "",
    also: JsonObject | None = None,
) -> int:
    """Tell a decision in our favour and keep its receipt; return the exit code. `also` goes into the JSON."""
    private = getattr(arguments, "private", None)
    unwritten = _write_receipt(arguments.receipt, receipt, private)
    code = PROFILE if unwritten else DONE
    if arguments.json:
        trouble = {"error": "receipt_not_written", "message": unwritten, "exitCode": code} if unwritten else {}
        print(json.dumps({"ok": not unwritten, **facts(receipt), **(also or {}), **trouble}))
        return code
    print(sentence(receipt))
    if unwritten:
        print(f"tallystick {command}: {unwritten}", file=sys.stderr)
    elif arguments.receipt is not None:
        home = arguments.home
        words = (str(arguments.receipt), "--root", f"@{home}/root.vkey", "--keys", f"{home}/keys.note")
        also_private = () if private is None else ("--private", str(companion_path(arguments.receipt)))
        print(f"Check the receipt with:  tallystick-verify receipt {shlex.join((*words, *also_private))}")
    if next_step:
        print(next_step)
    return code


def give_back(grant: Grant, home: Path) -> str:
    """Return the next step of a holder, by the lease's id: of two leases on the same names it means this one."""
    return f"Give it back with:  tallystick lease release {grant.lease_id}{home_option(home)}"


@contextmanager
def interruptible(ticket_id: str | None) -> Iterator[None]:
    """Tell who ends a wait from the keyboard what becomes of the place in line: `ticket_id` is kept, None is left."""
    try:
        yield
    except CancelledError as interrupt:
        if ticket_id is None:
            raise Interrupted("interrupted; left the line, and nothing is taken.") from interrupt
        raise Interrupted(
            f"interrupted; ticket {ticket_id} keeps its place in line for a while.\n"
            f"Go on with: tallystick wait claim {ticket_id}, or leave the line: tallystick wait cancel {ticket_id}",
            ticket_id,
        ) from interrupt


def add_receipt(parser: argparse.ArgumentParser) -> None:
    """Add --receipt FILE."""
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="write the receipt there")


def keep_receipt(path: Path, receipt: VerifiedReceipt, private: Private | None = None) -> None:
    """Write a receipt, and first the private text of its request, which nobody else has. OSError."""
    if private is not None:
        save_private(path, receipt, private)
    replace_file(path, receipt.data)


def check_receipt_path(path: Path | None) -> None:
    """Malformed when the receipt could not be kept: better said before anything is decided than after."""
    if path is None:
        return
    if not path.parent.is_dir():
        raise Malformed(f"--receipt: there is no folder {path.parent}: make it first; nothing was sent")
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise Malformed(f"--receipt: {path} can't be written; nothing was sent")


def _write_receipt(path: Path | None, receipt: VerifiedReceipt, private: Private | None) -> str:
    """Return why the receipt could not be written, or "": what was decided stands, and must still be told."""
    try:
        if path is not None:
            keep_receipt(path, receipt, private)
    except OSError as error:
        return f"entry {receipt.seq} was decided, and its receipt can't be written to {path}: {error.strerror}"
    return ""
