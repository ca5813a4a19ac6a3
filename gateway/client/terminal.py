"""What the commands that speak to a gateway share: parsers, the way an error is told, the profile's option.

What is in the way goes to standard error; with --json the outcome, good or bad, is one JSON object on standard output,
with `ok`, and when it is bad with `error`, `message` and `exitCode`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from gateway.client.agent import Agent
from gateway.client.errors import ClientError, LeaseBroken, LeaseLost, NotEnrolled, StillWaiting
from gateway.client.exits import INTERRUPTED, UNREAD, USAGE, exit_code_of, exit_table, explain, seconds, shown
from gateway.client.private import save_private
from gateway.client.profile import OPENED, default_home, open_profile
from gateway.client.receipts import VerifiedReceipt
from gateway.client.words import error_facts
from keys.files import replace_file
from verifier.entries import full_type
from verifier.wire import Malformed

Handler = Callable[[argparse.Namespace], Coroutine[object, object, int]]

A_DID = "a DID, did:key:z6Mk…, as tallystick join printed it"
PROFILE_HELP, OPERATOR_HELP = "the profile", "the operator's profile, such as DATA/operator"
_BROKEN = full_type("lease.broken")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"([0-9]{1,9})(ms|s|m|h)", re.ASCII)
_ADVISED = re.compile(
    r"tallystick (?:(?:lease|agent|operator|apikey|session|approve) list|rules show"
    r"|wait(?: claim T\d+| cancel T\d+)?)\b"
)


def perform(command: str, handler: Handler, arguments: argparse.Namespace) -> int:
    """Run one parsed command and return its exit code; an error is told with what to do next."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that this terminal can't show is no reason to fail
    try:
        with _told_warnings(command):
            code = asyncio.run(handler(arguments))
            sys.stdout.flush()
            return code
    except Malformed as error:
        return _tell(command, arguments, {"error": "wrong_usage"}, shown(str(error)), USAGE)
    except ClientError as error:
        _keep_refusal(error, arguments)
        text = _with_home(explain(error, is_session=(arguments.home / OPENED).exists()), arguments.home)
        return _tell(command, arguments, error_facts(error), text, exit_code_of(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has read enough, as `head` does; what was decided is decided
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still to be flushed at exit
        return UNREAD


def _tell(command: str, arguments: argparse.Namespace, facts: Mapping[str, object], text: str, code: int) -> int:
    if getattr(arguments, "json", False):
        print(json.dumps({"ok": False, **facts, "message": text, "exitCode": code}))
    else:
        print(f"tallystick {command}: {text}", file=sys.stderr)
    return code


def _keep_refusal(error: ClientError, arguments: argparse.Namespace) -> None:
    """A refusal and a place in line have receipts like any decision, and --receipt asks for them."""
    path = getattr(arguments, "receipt", None)
    receipt = error.ticket.receipt if isinstance(error, StillWaiting) else getattr(error, "receipt", None)
    if path is not None and isinstance(receipt, VerifiedReceipt):
        with suppress(OSError):  # the outcome itself is the news
            if (private := getattr(arguments, "private", None)) is not None:
                save_private(path, receipt, private)
            replace_file(path, receipt.data)


@asynccontextmanager
async def patient(home: Path) -> AsyncIterator[Agent]:
    """Yield the agent for a command that decides: it outlasts a gateway that is away for a moment, and says so.

    Of a lease that was broken it finds out by whom and why.
    """
    profile = open_profile(home)
    url = profile.address.url

    def tell(left_ms: int) -> None:
        print(f"{url} does not answer; trying for up to {seconds(left_ms)}", file=sys.stderr, flush=True)

    async with Agent.open(profile, on_silence=tell) as agent:
        try:
            yield agent
        except (LeaseBroken, LeaseLost) as error:
            broken = error.refused if isinstance(error, LeaseLost) else error
            if isinstance(broken, LeaseBroken):
                await _find_ending(agent, broken)
            raise


@contextmanager
def operating() -> Iterator[None]:
    """Tell who does an operator's work with a key that may not act here which profile to use."""
    try:
        yield
    except NotEnrolled as error:
        advice = "Use the operator's profile: --home DATA/operator"
        raise NotEnrolled(error.status, error.code, error.detail, advice) from error


async def _find_ending(agent: Agent, broken: LeaseBroken) -> None:
    """Fetch the verified entry that broke a lease; without it the number of the entry must do."""
    if broken.ended_seq is None:
        return
    with suppress(ClientError):
        ending = await agent.receipt(broken.ended_seq)
        if ending.type == _BROKEN and ending.leaf.text("leaseId") == broken.receipt.leaf.text("leaseId"):
            broken.ending = ending


@contextmanager
def _told_warnings(command: str) -> Iterator[None]:
    """Show what the client warns of as the command's own words."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter(f"tallystick {command}: %(message)s"))
    log = logging.getLogger("tallystick.client")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def say_waiting(command: str, what: str, wait_ms: int) -> None:
    """Tell, on standard error, what a command waits for."""
    words = f"tallystick {command}: {what}; for up to {seconds(wait_ms)}, an interrupt ends it"
    print(words, file=sys.stderr, flush=True)


# -- parsers -----------------------------------------------------------------------------------------------------------


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration such as 500ms, 30s, 5m or 1h; a bare number is refused."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration; write 500ms, 30s, 5m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaints say where the help is, and what is often meant (`hint`)."""

    hint = ""

    def parse_known_args(self, *arguments, **named):  # type: ignore[no-untyped-def]  # argparse has two overloads here
        """Complain of what this very command does not know: a verb's help lists its options, not the command's."""
        found, unknown = super().parse_known_args(*arguments, **named)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}\n{self.hint}See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(USAGE)


def command_parser(command: str, description: str, hint: str = "") -> argparse.ArgumentParser:
    """Return the parser of `tallystick COMMAND`, with the exit codes below its help."""
    parser = _Parser(
        prog=f"tallystick {command}", description=description, epilog=exit_table(), formatter_class=_Formatter
    )
    parser.hint = hint
    return parser


def sub_parser(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    summary: str,
    description: str,
    profile: str = PROFILE_HELP,
) -> argparse.ArgumentParser:
    """Add the parser of one verb, with --home and --json."""
    verb = verbs.add_parser(
        name, help=summary, description=f"{summary}. {description}", epilog=exit_table(), formatter_class=_Formatter
    )
    add_home(verb, profile)
    verb.add_argument("--json", action="store_true", help="print JSON")
    return verb


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the table of exit codes as it is, and fills the description."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("exit codes:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def add_home(parser: argparse.ArgumentParser, what: str = PROFILE_HELP) -> None:
    """Add --home DIR."""
    parser.add_argument(
        "--home", type=Path, default=default_home(), metavar="DIR",
        help=f"{what} (default: $TALLYSTICK_HOME or ~/.tallystick)",
    )  # fmt: skip


def home_option(home: Path) -> str:
    """Return what a printed command needs to use the same profile: nothing for the default one."""
    return "" if home == default_home() else f" --home {shlex.quote(str(home))}"


def _with_home(text: str, home: Path) -> str:
    option = home_option(home)
    return _ADVISED.sub(lambda found: found[0] + option, text)
