"""`tallystick lease batch FILE`: many commands in one request, a line of JSON each."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gateway.client.batch import Outcome
from gateway.client.errors import BatchRefused, InTheWay
from gateway.client.exits import DONE, HELD, PROFILE, REFUSED, exit_code_of, explain
from gateway.client.seen import read_bounded
from gateway.client.session import is_session
from gateway.client.terminal import patient
from gateway.client.words import facts, sentence
from keys.files import replace_file
from verifier.wire import JsonObject, Malformed, parse_json

FILE_BYTES_MAX = 262_144  # a request carries less; spaces and comments of a file are not counted there
REFUSED_FILE = "refused.json"
EXAMPLE = '{"action": "lease.acquire", "resource": "repo:app/a.py"}'


def add_batch(parser: argparse.ArgumentParser) -> None:
    """Add what a batch is made from."""
    parser.add_argument(
        "file", metavar="FILE|-",
        help="one JSON object a line, the body of lease.acquire, lease.renew, lease.release or coordination.admit: "
        f"{EXAMPLE}",
    )  # fmt: skip
    parser.add_argument("--atomic", action="store_true", help="all of it or nothing: the first refusal undoes the rest")
    parser.add_argument(
        "--bare", action="store_true", help="leave out the receipts' own signatures; they rest on the checkpoint alone"
    )
    parser.add_argument(
        "--receipts", type=Path, metavar="DIR",
        help=f"write the receipts into this folder, as 0.json, 1.json and so on, or as {REFUSED_FILE} the one of an "
        "atomic batch that was refused",
    )  # fmt: skip
    parser.add_argument(
        "--receipt", type=Path, metavar="FILE", help="with --atomic: write the receipt of a refusal there instead"
    )


async def batch(arguments: argparse.Namespace) -> int:
    """Submit a batch; the exit code is that of its refusals, if there are any."""
    commands = _commands(arguments.file)
    if arguments.receipts is not None and not arguments.receipts.is_dir():
        raise Malformed(f"--receipts: there is no folder {arguments.receipts}: make it first; nothing was sent")
    if arguments.receipt is not None and not arguments.atomic:
        raise Malformed("--receipt: only with --atomic; --receipts DIR has one for each command")
    async with patient(arguments.home) as agent:
        try:
            outcomes = await agent.batch(commands, atomic=arguments.atomic, bare=arguments.bare)
        except BatchRefused as refused:
            _keep_refused(arguments, refused)
            raise
    unwritten = _write(arguments.receipts, outcomes)
    code = PROFILE if unwritten else _code(outcomes)
    if arguments.json:
        trouble: JsonObject = {} if code == DONE else {"exitCode": code}
        rows = [{"ok": outcome.is_ok, **facts(outcome.receipt)} for outcome in outcomes]
        print(json.dumps({"ok": code == DONE, "results": rows, **trouble}))
    else:
        for index, outcome in enumerate(outcomes):
            no, by = outcome.refused, is_session(agent.profile)
            told = sentence(outcome.receipt) if no is None else explain(no, is_session=by)
            print(f"{index}  " + told.replace("\n", "\n   "))
    if unwritten:
        print(f"tallystick lease batch: {unwritten}", file=sys.stderr)
    return code


def _commands(place: str) -> list[JsonObject]:
    """Return the object of every line that is not empty; Malformed names the line."""
    try:
        content = (
            sys.stdin.buffer.read(FILE_BYTES_MAX + 1) if place == "-" else read_bounded(Path(place), FILE_BYTES_MAX)
        )
    except OSError as error:
        raise Malformed(f"{place} can't be read: {error.strerror}") from error
    commands: list[JsonObject] = []
    for number, line in enumerate(content.splitlines(), 1):
        try:
            if line.strip():
                commands.append(parse_json(line, bytes_max=FILE_BYTES_MAX))
        except Malformed as error:
            raise Malformed(f"{place}, line {number}: {error}; write for example {EXAMPLE}") from error
    return commands


def _code(outcomes: tuple[Outcome, ...]) -> int:
    """What stands in the way may go away, anything else does not; different reasons have the plain code."""
    refused = [outcome.refused for outcome in outcomes if outcome.refused is not None]
    if not refused:
        return DONE
    codes = {HELD if isinstance(each, InTheWay) else exit_code_of(each) for each in refused}
    return codes.pop() if len(codes) == 1 else REFUSED


def _keep_refused(arguments: argparse.Namespace, refused: BatchRefused) -> None:
    """Write the one receipt of a batch of which nothing was done, if receipts are asked for, and say where it is."""
    path = arguments.receipt or (arguments.receipts and arguments.receipts / REFUSED_FILE)
    if path is None:
        return
    try:
        replace_file(path, refused.receipt.data)
        told = f"the receipt of the refusal is in {path}"
    except OSError as error:
        told = f"the receipt of the refusal can't be written to {path}: {error.strerror}"
    print(f"tallystick lease batch: {told}", file=sys.stderr)


def _write(folder: Path | None, outcomes: tuple[Outcome, ...]) -> str:
    """Return why the receipts could not be written, or "": what was decided stands, and must still be told."""
    try:
        for index, outcome in enumerate(outcomes if folder is not None else ()):
            assert folder is not None
            replace_file(folder / f"{index}.json", outcome.receipt.data)
    except OSError as error:
        return f"the batch was decided, and its receipts can't be written to {folder}: {error.strerror}"
    return ""
