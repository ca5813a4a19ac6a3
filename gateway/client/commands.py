"""The client's commands: `tallystick join | lease | admit | approve | receipt | wait | run | …` and those of operators.

Thin: arguments in, one verb of the agent, words or JSON out. What is in the way goes to standard error with what to do
next; with --json the outcome, good or bad, is one line on standard output. The larger ones have files of their own.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gateway.client.admit_commands import admit_parser, usage_parser
from gateway.client.admitting import MODE_DEFAULT
from gateway.client.agent import TTL_MS_DEFAULT
from gateway.client.approve_commands import approve_parser
from gateway.client.exits import DONE
from gateway.client.join import join, read_root
from gateway.client.lease_commands import lease_parser
from gateway.client.office_commands import apikey_parser, operator_parser
from gateway.client.outcome import check_receipt_path
from gateway.client.receipt_commands import receipt_parser
from gateway.client.rules_commands import rules_parser
from gateway.client.run import Job, run
from gateway.client.scheme_commands import scheme_parser, trust_parser
from gateway.client.session_commands import session_parser
from gateway.client.terminal import Handler, add_home, command_parser, duration_ms, home_option, patient, perform
from gateway.client.trust import HELD_TTL_MS_MIN
from gateway.client.wait_commands import cancel_parser, claim_parser, wait_parser
from gateway.client.words import joined_text
from verifier.entries import MODES, TTL_MS_MAX
from verifier.wire import Malformed

RUN_WAIT_MS_DEFAULT = 3_600_000


def main(argv: Sequence[str]) -> int:
    """Run one command; `argv` begins with its name. Returns a code of exits.py, or the status of the run command."""
    both = " ".join(argv[:2])
    name = both if both in _COMMANDS else argv[0]
    parser, handler = _COMMANDS[name]()
    arguments = parser.parse_args(argv[len(name.split()) :])
    return perform(name, handler, arguments)


# -- join --------------------------------------------------------------------------------------------------------------


def _join_parser() -> tuple[argparse.ArgumentParser, Handler]:
    parser = command_parser("join", "Make the profile with which this machine's agent speaks to a gateway.")
    parser.add_argument("url", metavar="URL", help="where the gateway listens, such as https://gateway.example")
    parser.add_argument(
        "--root", required=True, metavar="VKEY|@FILE",
        help="the ledger's root key, from its operator and not from the gateway itself",
    )  # fmt: skip
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _join


async def _join(arguments: argparse.Namespace) -> int:
    joined = await join(arguments.url, read_root(arguments.root), arguments.home)
    if arguments.json:
        made = {"did": joined.did, "home": str(joined.home), "isDev": joined.is_dev, "origin": joined.origin}
        print(json.dumps({"ok": True, **made}))
    else:
        print(joined_text(joined, home_option(joined.home)))
    return DONE


# -- run ---------------------------------------------------------------------------------------------------------------


def _run_parser() -> tuple[argparse.ArgumentParser, Handler]:
    parser = command_parser(
        "run",
        "Hold a lease while a command runs. The command finds TALLYSTICK_FENCING_TOKEN, TALLYSTICK_LEASE_ID, "
        "TALLYSTICK_RESOURCE and TALLYSTICK_RECEIPT (a file with the newest receipt) in its environment. Signals are "
        "passed on. When the lease is lost the command's process group gets SIGTERM and, before anybody else can have "
        "the lease, SIGKILL; so does what is left of the group when the command ends. What leaves the group (setsid, a "
        "daemon) is not stopped. One key holds a resource once on one machine: while another process with this "
        "profile holds it, or something that overlaps it, or waits for that, the command waits as for others. "
        "The exit status is the command's, 128 + signal when one ended it.",
        "Put -- between the options and the command: tallystick run --resource R -- COMMAND …\n",
    )
    parser.add_argument(
        "--resource", action="append", required=True, dest="resources", metavar="R",
        help="scheme:path, or scheme:path/** for a whole sub-tree; give it several times for a set, all or none",
    )  # fmt: skip
    parser.add_argument(
        "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
        help=f"how long the lease outlives a crash of this machine: {HELD_TTL_MS_MIN // 1000}s to 1h, renewed at a "
        f"third (default {TTL_MS_DEFAULT // 1000}s)",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=MODES, default=MODE_DEFAULT,
        help=f"what for (default {MODE_DEFAULT}); who may share it is the scheme's: tallystick scheme list",
    )  # fmt: skip
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument(
        "--wait", type=duration_ms, default=RUN_WAIT_MS_DEFAULT, metavar="TIME",
        help="wait in line for so long (default 1h); leaving, also by a signal, gives the place up",
    )  # fmt: skip
    waiting.add_argument(
        "--no-wait", dest="wait", action="store_const", const=0, help="end at once when others have it"
    )
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="keep the newest receipt there")
    add_home(parser)
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    return parser, _run


async def _run(arguments: argparse.Namespace) -> int:
    if not HELD_TTL_MS_MIN <= arguments.ttl <= TTL_MS_MAX:
        raise Malformed(f"--ttl: {HELD_TTL_MS_MIN // 1000}s to 1h; a second of it is margin")
    check_receipt_path(arguments.receipt)
    job = Job(
        tuple(arguments.resources),
        tuple(arguments.command),
        arguments.ttl,
        arguments.wait,
        arguments.receipt,
        arguments.mode,
    )
    async with patient(arguments.home) as agent:
        return await run(agent, job)


_COMMANDS: Mapping[str, Callable[[], tuple[argparse.ArgumentParser, Handler]]] = {
    "join": _join_parser,
    "lease": lease_parser,
    "admit": admit_parser,
    "approve": approve_parser,
    "usage": usage_parser,
    "receipt": receipt_parser,
    "wait": wait_parser,
    "wait claim": claim_parser,
    "wait cancel": cancel_parser,
    "run": _run_parser,
    "scheme": scheme_parser,
    "rules": rules_parser,
    "trust": trust_parser,
    "session": session_parser,
    "operator": operator_parser,
    "apikey": apikey_parser,
}
