"""`tallystick wait [RESOURCE]`, `tallystick wait claim TICKET`, `tallystick wait cancel TICKET`.

A ticket taken with `lease acquire --give-up` outlives its command. Whoever has the profile goes on with it from here; a
script outside of a model's time limits waits here as long as it likes.
"""

from __future__ import annotations

import argparse
import json

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.errors import StillWaiting
from gateway.client.exits import DONE
from gateway.client.line import HOLD_MS, poll_until
from gateway.client.outcome import add_receipt, check_receipt_path, done, give_back, interruptible
from gateway.client.terminal import Handler, add_home, command_parser, duration_ms, patient
from gateway.client.trust import Grant
from gateway.client.words import asked_line, deadlock_line, objects, wait_lines
from verifier.entries import TICKET_ID, check_resource
from verifier.wire import Malformed


def wait_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of the view; `claim` and `cancel` have parsers of their own."""
    row = ACTIONS["coordination.wait"]
    parser = command_parser(
        "wait",
        f"{row.summary}. {row.description} With a ticket: `tallystick wait claim TICKET` goes on waiting, "
        "`tallystick wait cancel TICKET` leaves the line.",
    )
    parser.add_argument("resource", nargs="?", metavar="RESOURCE", help="only what overlaps this one")
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser, _view


async def _view(arguments: argparse.Namespace) -> int:
    if arguments.resource is not None:
        check_resource(arguments.resource)
    async with Agent.open(arguments.home) as agent:
        view = await agent.wait_view(arguments.resource)
    if arguments.json:
        print(json.dumps({**view, "ok": True}))
        return DONE
    rows = objects(view.get("resources"))
    for row in rows:
        print("\n".join(wait_lines(row, agent.did)))
    for ask in objects(view.get("approvals")):
        print(asked_line(ask, agent.did))
    for pair in objects(view.get("deadlocks")):
        print(deadlock_line(pair, agent.did))
    if not rows:
        name = arguments.resource
        print("Nothing is held and nobody waits." if name is None else f"{name} is free, and nobody waits for it.")
    return DONE


def claim_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick wait claim`."""
    parser = _ticket_parser(
        "claim", "wait.claim", "the ticket that acquire printed, such as T42",
        "Brings the lease when it is one's turn within --wait, else keeps the place and says where it stands.",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=duration_ms, default=HOLD_MS, metavar="TIME",
        help=f"how long to wait for one's turn (default {HOLD_MS // 1000}s); after it the place is still kept",
    )  # fmt: skip
    return parser, _claim


async def _claim(arguments: argparse.Namespace) -> int:
    ticket_id = _checked_ticket(arguments)
    async with patient(arguments.home) as agent:
        with interruptible(ticket_id):
            answer = await poll_until(agent, ticket_id, agent.clock.steady_ms() + arguments.wait)
    if not isinstance(answer, Grant):
        raise StillWaiting(answer)
    return done("wait claim", arguments, answer.receipt, give_back(answer, arguments.home))


def cancel_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick wait cancel`."""
    about = ACTIONS["wait.cancel"].description
    return _ticket_parser("cancel", "wait.cancel", "the ticket to give up, such as T42", about), _cancel


async def _cancel(arguments: argparse.Namespace) -> int:
    ticket_id = _checked_ticket(arguments)
    async with patient(arguments.home) as agent:
        receipt = await agent.cancel(ticket_id)
    return done("wait cancel", arguments, receipt)


def _ticket_parser(verb: str, action: str, meaning: str, about: str) -> argparse.ArgumentParser:
    parser = command_parser(f"wait {verb}", f"{ACTIONS[action].summary}. {about}")
    parser.add_argument("ticket", metavar="TICKET", help=meaning)
    add_receipt(parser)
    add_home(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _checked_ticket(arguments: argparse.Namespace) -> str:
    if not TICKET_ID.check(arguments.ticket):
        raise Malformed(f"a ticket is {TICKET_ID.bound}")
    check_receipt_path(arguments.receipt)
    return str(arguments.ticket)
