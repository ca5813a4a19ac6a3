"""`tallystick admit OPERATION RESOURCE…`: may this be done now, once? And `tallystick usage [DID]`."""

from __future__ import annotations

import argparse
import json
import sys
from hashlib import sha256
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.admitting import MODE_DEFAULT
from gateway.client.agent import Agent
from gateway.client.approval import SignedApproval, open_approval
from gateway.client.errors import Interrupted, NotApproved
from gateway.client.exits import DONE, shown
from gateway.client.holdings import SeenLease, Tokened
from gateway.client.line import GIVE_UP_MS_MIN
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.seen import read_bounded
from gateway.client.terminal import A_DID, Handler, add_home, command_parser, duration_ms, patient, say_waiting
from gateway.client.words import objects, usage_line
from verifier.entries import (
    APPROVALS_MAX,
    APPROVERS_MAX,
    ASK_MS_DEFAULT,
    ASK_MS_MAX,
    COST,
    DID,
    HASH,
    LEASE_ID,
    MODES,
    OPERATION,
    TOKEN,
    check_resource,
)
from verifier.wire import TEXT_BYTES_MAX, Malformed

STDIN = Path("-")


# -- admit -------------------------------------------------------------------------------------------------------------


def admit_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick admit`."""
    row = ACTIONS["coordination.admit"]
    parser = command_parser(
        "admit",
        f"{row.summary}. Asked right before the act, under the newest lease of this key that covers it. The answer is "
        "for one execution of just these arguments; a no has an exit code of its own, and a receipt as a yes has.",
    )
    add_act(parser)
    parser.add_argument("--lease", metavar="ID", help="under this lease, such as L42 (default: looked up)")
    parser.add_argument("--token", type=int, metavar="N", help="with --lease: the fencing token that you have of it")
    parser.add_argument(
        "--approval", action="append", type=Path, default=[], dest="approvals", metavar="FILE",
        help=f"present this approval, which tallystick approve sign wrote; up to {APPROVALS_MAX} of them",
    )  # fmt: skip
    _add_asking(parser)
    add_receipt(parser)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _admit


def add_act(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """Add what is to be done: operation, names, mode, arguments, cost."""
    parser.add_argument(
        "operation", nargs=None if is_required else "?", metavar="OPERATION",
        help="what is done, as a code: deploy, file.write, sql.run",
    )  # fmt: skip
    parser.add_argument("resources", nargs="+" if is_required else "*", metavar="RESOURCE", help="all that it touches")
    parser.add_argument("--mode", choices=MODES, default=MODE_DEFAULT, help=f"how (default {MODE_DEFAULT})")
    what = parser.add_mutually_exclusive_group(required=is_required)
    what.add_argument(
        "--arguments", type=Path, metavar="FILE|-",
        help="exactly what will be done: the command, the diff, the request. Only its SHA-256 leaves this machine",
    )  # fmt: skip
    what.add_argument("--arguments-digest", metavar="HEX", help="the SHA-256 of it, where you have that already")
    parser.add_argument("--cost", type=int, default=0, metavar="N", help="what it costs, for budgets (default 0)")


def _add_asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ask", action="append", default=[], dest="approvers", metavar="DID",
        help=f"first have it approved: ask this key; up to {APPROVERS_MAX} of them. The lease is kept meanwhile",
    )  # fmt: skip
    parser.add_argument("--quorum", type=int, default=1, metavar="N", help="how many of those must approve (default 1)")
    parser.add_argument(
        "--wait", type=duration_ms, default=ASK_MS_DEFAULT, metavar="TIME",
        help="with --ask: wait so long for them, then take the request back (1s to 168h, default 1h)",
    )  # fmt: skip


async def _admit(arguments: argparse.Namespace) -> int:
    check_act(arguments)
    _check_choices(arguments)
    check_receipt_path(arguments.receipt)
    digest = digest_of_act(arguments)
    approvals = [read_approval(path) for path in arguments.approvals]
    async with patient(arguments.home) as agent:
        lease = await _lease(agent, arguments)
        if arguments.approvers:
            approvals += await _have_approved(agent, arguments, digest, lease)
        admission = await agent.admit(
            arguments.operation, arguments.resources, mode=arguments.mode, arguments_digest=digest,
            cost=arguments.cost, lease=lease, approvals=approvals,
        )  # fmt: skip
    return done("admit", arguments, admission.receipt)


async def _lease(agent: Agent, arguments: argparse.Namespace) -> Tokened | None:
    if arguments.lease is not None:
        return SeenLease(arguments.lease, arguments.token)
    return await agent.covering(arguments.resources, arguments.mode)


async def _have_approved(
    agent: Agent, arguments: argparse.Namespace, digest: str, lease: Tokened | None
) -> tuple[SignedApproval, ...]:
    """Ask, tell whom, and wait; an interrupt takes the request back."""
    ask = await agent.ask_approval(
        arguments.operation, arguments.resources, arguments.approvers, quorum=arguments.quorum, mode=arguments.mode,
        arguments_digest=digest, cost=arguments.cost, give_up_ms=arguments.wait,
    )  # fmt: skip
    say_waiting("admit", f"asked for approval: tallystick approve give {ask.ask_id}", arguments.wait)
    interrupted = "interrupted; the request for approval is taken back, and nothing is admitted."
    try:
        return await agent.gather_approvals(ask, wait_ms=arguments.wait, lease=lease)
    except NotApproved:
        raise
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        raise Interrupted(interrupted) from error


# -- what is to be done ------------------------------------------------------------------------------------------------


def check_act(arguments: argparse.Namespace) -> None:
    """Malformed for an act that no ledger would hear of, naming the option."""
    for option, kind, value in (
        ("OPERATION", OPERATION, arguments.operation),
        ("--arguments-digest", HASH, arguments.arguments_digest),
        ("--cost", COST, arguments.cost),
    ):
        if value is not None and not kind.check(value):
            raise Malformed(f"{option}: {kind.bound}")
    for name in arguments.resources:
        check_resource(name)


def _check_choices(arguments: argparse.Namespace) -> None:
    if (arguments.lease is None) != (arguments.token is None):
        raise Malformed("--lease and --token go together: the token is what you have of that lease")
    for option, kind, value in (("--lease", LEASE_ID, arguments.lease), ("--token", TOKEN, arguments.token)):
        if value is not None and not kind.check(value):
            raise Malformed(f"{option}: {kind.bound}")
    if not arguments.approvers and (arguments.quorum, arguments.wait) != (1, ASK_MS_DEFAULT):
        raise Malformed("--quorum and --wait go with --ask: nobody else is waited for")
    if not all(map(DID.check, arguments.approvers)):
        raise Malformed(f"--ask: {A_DID}")
    if arguments.approvers and not 1 <= arguments.quorum <= min(APPROVALS_MAX, len(set(arguments.approvers))):
        raise Malformed(f"--quorum: from 1 to the number of those asked, {APPROVALS_MAX} at most")
    if not GIVE_UP_MS_MIN <= arguments.wait <= ASK_MS_MAX:
        raise Malformed("--wait: 1s to 168h")


def digest_of_act(arguments: argparse.Namespace) -> str:
    """Return the SHA-256 of the arguments, in hex; Malformed when the file can't be read."""
    if arguments.arguments_digest is not None:
        return str(arguments.arguments_digest)
    return digest_of_file(arguments.arguments)


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file of any size, or of standard input for "-", in hex."""
    digest = sha256()
    try:
        if path == STDIN:
            digest.update(sys.stdin.buffer.read())
        else:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error
    return digest.hexdigest()


def read_approval(path: Path) -> SignedApproval:
    """Return the approval in a file; Malformed says which file it is not."""
    try:
        return open_approval(read_bounded(path, TEXT_BYTES_MAX))
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error
    except Malformed as error:
        raise Malformed(f"{path} is no approval that can be used: {error}") from error


# -- usage -------------------------------------------------------------------------------------------------------------


def usage_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick usage`."""
    row = ACTIONS["usage.get"]
    parser = command_parser("usage", f"{row.summary}. Only what was admitted counts. What the gateway says, no proof.")
    parser.add_argument("did", nargs="?", metavar="DID", help="only this agent or operator")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _usage


async def _usage(arguments: argparse.Namespace) -> int:
    if arguments.did is not None and not DID.check(arguments.did):
        raise Malformed(f"DID: {A_DID}")
    async with Agent.open(arguments.home) as agent:
        view = await agent.usage(arguments.did)
    if arguments.json:
        print(json.dumps({**view, "ok": True}))
        return DONE
    rows = objects(view.get("usage"))
    for row in rows:
        print(shown(usage_line(row, agent.did)))
    if not rows:
        print("Nothing was admitted or denied yet.")
    return DONE
