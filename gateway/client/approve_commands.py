"""`tallystick approve list | give | sign | decline | withdraw`: yes to one exact act of somebody else's agent, or no.

House rules of this file:

* Nothing is signed that was not shown, whole, and nothing is shown that is not signed: the words are made from the very
  statement, the statement from a verified entry or from what the caller typed.
* A person is asked; a program says --yes.
* Names that others chose are escaped, one a line.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.admission import Ask
from gateway.client.admit_commands import add_act, check_act, digest_of_act, digest_of_file
from gateway.client.agent import Agent
from gateway.client.approval import TTL_MS_DEFAULT, TTL_MS_MIN, Act, SignedApproval, approve
from gateway.client.approving import MODE_DEFAULT, open_ask
from gateway.client.errors import ClientError, ProfileError
from gateway.client.exits import DONE, moment, shown
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import open_receipt
from gateway.client.seen import read_bounded
from gateway.client.terminal import A_DID, PROFILE_HELP, Handler, command_parser, duration_ms, patient, sub_parser
from gateway.client.words import objects, shown_moment, texts, who
from keys.files import replace_file
from verifier.entries import APPROVAL_MS_MAX, ASK_ID, DID, HASH, REASON_CODE, ZERO_HASH
from verifier.wire import RECEIPT_BYTES_MAX, JsonObject, Malformed

_ABOUT = (
    "Say yes, or no, to one exact act of an agent. Who approves is an agent with a key of its own, or an operator, and "
    "of another operator than the agent. An approval is good for one admission, and for nothing if anything changes: "
    "the arguments, the names, the cost, the rules."
)
_UNRULED = "none; where any are loaded, it is worth nothing"
_ASK_HELP = "the request, such as A42, as tallystick approve list shows it"


def approve_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick approve`."""
    parser = command_parser("approve", _ABOUT)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="list|give|sign|decline|withdraw")
    _add_list(_verb(verbs, "list", "approval.list", _list))
    give = _verb(verbs, "give", "approval.give", _give)
    give.add_argument("ask", metavar="ASKID", help=_ASK_HELP)
    give.add_argument(
        "--arguments", type=Path, metavar="FILE",
        help="what you were shown: approve only if the request is of exactly this (else you see its SHA-256 alone)",
    )  # fmt: skip
    _add_signing(give)
    add_receipt(give)
    _add_sign(verbs)
    decline = _verb(verbs, "decline", "approval.decline", _decline)
    decline.add_argument("ask", metavar="ASKID", help=_ASK_HELP)
    decline.add_argument("--reason", metavar="CODE", help=f"why: {REASON_CODE.bound}")
    add_receipt(decline)
    withdraw = _verb(verbs, "withdraw", "approval.withdraw", _withdraw)
    withdraw.add_argument("ask", metavar="ASKID", help="your request, such as A42")
    add_receipt(withdraw)
    return parser, _run


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, action: str, handler: Handler
) -> argparse.ArgumentParser:
    row = ACTIONS[action]
    made = sub_parser(verbs, name, row.summary, row.description, PROFILE_HELP + ": an agent's, or DATA/operator")
    made.set_defaults(handler=handler)
    return made


def _add_list(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--of", metavar="DID", help="what this agent asked for")
    whose.add_argument("--by", metavar="DID", help="what waits for this key (default: for the profile's)")
    whose.add_argument("--all", action="store_true", help="every request, those that are over as well")


def _add_signing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
        help="for how long it may be used: 1s to 168h (default 1h)",
    )  # fmt: skip
    parser.add_argument("--yes", action="store_true", help="don't ask: for programs, which have looked themselves")


def _add_sign(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    sign = sub_parser(
        verbs, "sign", "Write an approval into a file, without any network",
        "Of a request whose receipt you were handed (--ask), or of what you write out yourself. Hand the file to the "
        "agent, which presents it with tallystick admit --approval FILE.",
        PROFILE_HELP + ": an agent's, or DATA/operator",
    )  # fmt: skip
    sign.set_defaults(handler=_sign)
    sign.add_argument("--out", type=Path, required=True, metavar="FILE", help="write the approval there")
    sign.add_argument(
        "--ask", type=Path, dest="ask_receipt", metavar="FILE", help="the receipt of the request, in place of the rest"
    )
    sign.add_argument("--agent", metavar="DID", help="the agent that may do it")
    add_act(sign, is_required=False)
    rules = sign.add_mutually_exclusive_group()
    rules.add_argument("--rules", type=Path, metavar="FILE", help="the rule set in force (default: there is none)")
    rules.add_argument("--rules-digest", metavar="HEX", help="its SHA-256, which tallystick rules show prints")
    _add_signing(sign)


async def _run(arguments: argparse.Namespace) -> int:
    check_receipt_path(getattr(arguments, "receipt", None))
    if "ttl" in arguments and not TTL_MS_MIN <= arguments.ttl <= APPROVAL_MS_MAX:
        raise Malformed("--ttl: 1s to 168h")
    if "ask" in arguments and not ASK_ID.check(arguments.ask):
        raise Malformed(f"ASKID: {ASK_ID.bound}")
    reason = getattr(arguments, "reason", None)
    if reason is not None and not REASON_CODE.check(reason):
        raise Malformed(f"--reason: {REASON_CODE.bound}")
    handler: Handler = arguments.handler
    return await handler(arguments)


# -- saying yes or no --------------------------------------------------------------------------------------------------


async def _give(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as approver:
        ask = await approver.asked(arguments.ask)
        _check_is_asked(ask, approver.did)
        _check_is_shown(arguments, ask.act)
        made = await approver.sign_approval(ask, ttl_ms=arguments.ttl)
        _consent(made, ask.act, arguments)
        receipt = await approver.hand_in(arguments.ask, made)
    return done("approve give", arguments, receipt, "", {"approval": made.row})


def _check_is_asked(ask: Ask, did: str) -> None:
    if did not in ask.approvers:
        raise Malformed(f"{ask.ask_id} does not ask this key, {did}, but: {' '.join(ask.approvers)}")


def _check_is_shown(arguments: argparse.Namespace, act: Act) -> None:
    """Malformed when the approver looked at something else than what is asked for."""
    if arguments.arguments is not None and digest_of_file(arguments.arguments) != act.arguments_digest:
        raise Malformed(f"--arguments: the request is not of {arguments.arguments}; nothing was signed")


async def _decline(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as approver:
        receipt = await approver.decline(arguments.ask, arguments.reason)
    return done("approve decline", arguments, receipt)


async def _withdraw(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as asker:
        receipt = await asker.withdraw(arguments.ask)
    return done("approve withdraw", arguments, receipt)


async def _sign(arguments: argparse.Namespace) -> int:
    profile = open_profile(arguments.home)
    ask = _asked(arguments, profile) if arguments.ask_receipt else None
    act = _act_written(arguments, profile) if ask is None else ask.act
    nonce = None if ask is None else ask.nonce_of(profile.key.did)
    now_ms = Agent(profile).clock.wall_ms()
    made = approve(profile.key, act, genesis=profile.genesis, now_ms=now_ms, ttl_ms=arguments.ttl, nonce=nonce)
    _consent(made, act, arguments)
    try:
        replace_file(arguments.out, made.encode())
    except OSError as error:
        raise ProfileError(f"{arguments.out} can't be written: {error.strerror}") from error
    if arguments.json:
        print(json.dumps({"ok": True, "approval": made.row}))
    else:
        print(f"{arguments.out} approves of it until {moment(made.says.expires_at_ms)}.\nThe agent presents it with:")
        print(f"  tallystick admit … --approval {arguments.out}")
    return DONE


def _asked(arguments: argparse.Namespace, profile: Profile) -> Ask:
    """Return a request for approval out of its receipt, verified under the pinned keys."""
    path: Path = arguments.ask_receipt
    said = (arguments.operation, arguments.agent, arguments.arguments_digest, arguments.rules, arguments.rules_digest)
    if any(said) or arguments.cost or arguments.mode != MODE_DEFAULT:
        raise Malformed("--ask: the receipt says what is approved; leave out the rest (but --arguments, to compare)")
    try:
        receipt = open_receipt(read_bounded(path, RECEIPT_BYTES_MAX), profile.keyring)
        ask = open_ask(receipt)
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error
    except (Malformed, ClientError) as error:
        raise Malformed(f"{path} is no receipt of a request for approval: {error}") from error
    _check_is_asked(ask, profile.key.did)
    _check_is_shown(arguments, ask.act)
    return ask


def _act_written(arguments: argparse.Namespace, profile: Profile) -> Act:
    """Return what the caller wrote out."""
    is_whole = arguments.agent and arguments.operation and arguments.resources
    if not is_whole or (arguments.arguments is None and arguments.arguments_digest is None):
        raise Malformed(
            "say what is approved: --ask FILE; or OPERATION RESOURCE… --agent DID --arguments FILE (or "
            "--arguments-digest HEX)"
        )
    check_act(arguments)
    if not DID.check(arguments.agent):
        raise Malformed(f"--agent: {A_DID}")
    return Act(
        profile.address.origin, arguments.agent, arguments.operation, tuple(sorted(set(arguments.resources))),
        arguments.mode, digest_of_act(arguments), arguments.cost, _rules_digest(arguments),
    )  # fmt: skip


def _rules_digest(arguments: argparse.Namespace) -> str:
    if arguments.rules is not None:
        return digest_of_file(arguments.rules)
    if arguments.rules_digest is None:
        return ZERO_HASH
    if not HASH.check(arguments.rules_digest):
        raise Malformed(f"--rules-digest: {HASH.bound}")
    return str(arguments.rules_digest)


# -- what a person sees ------------------------------------------------------------------------------------------------


def _consent(made: SignedApproval, act: Act, arguments: argparse.Namespace) -> None:
    """Show all of what the signature says, and ask; Malformed when nobody says yes."""
    print(f"You sign, with the key {made.says.approver}:\n\n{act_words(made, act)}\n", file=sys.stderr, flush=True)
    if arguments.yes:
        return
    if not sys.stdin.isatty():
        raise Malformed("nobody is there to be asked: --yes approves without asking; nothing left this machine")
    print("Approve of this, once? Type yes: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != "yes":
        raise ClientError("not approved; nothing left this machine")


def act_words(made: SignedApproval, act: Act) -> str:
    """Return everything that a statement binds, a line each; nothing of it is cut."""
    says = made.says
    rows = [
        ("agent", says.agent),
        ("does", f"{says.operation} ({act.mode}), once"),
        *(("on" if at == 0 else "", name) for at, name in enumerate(act.resources)),
        ("arguments", f"SHA-256 {says.arguments_digest}"),
        ("cost", str(act.cost)),
        ("rules", _UNRULED if says.rules_digest == ZERO_HASH else f"SHA-256 {says.rules_digest}"),
        ("action", f"SHA-256 {says.action_digest}"),
        ("ledger", f"{says.ledger}, which began with {says.genesis}"),
        ("from", moment(says.not_before_ms)),
        ("until", moment(says.expires_at_ms)),
        ("nonce", says.nonce),
    ]
    return "\n".join(f"  {name:<11}{_whole(value)}" for name, value in rows)


def _whole(text: str) -> str:
    """Return a text fit for a terminal, however long: what is signed is shown to its end."""
    return "".join(letter if letter.isprintable() else f"\\u{ord(letter):04x}" for letter in text)


# -- list --------------------------------------------------------------------------------------------------------------


async def _list(arguments: argparse.Namespace) -> int:
    for option, did in (("--of", arguments.of), ("--by", arguments.by)):
        if did is not None and not DID.check(did):
            raise Malformed(f"{option}: {A_DID}")
    async with Agent.open(arguments.home) as reader:
        by = arguments.by or (None if arguments.of or arguments.all else reader.did)
        rows = await reader.asks(of=arguments.of, by=by)
    if arguments.json:
        print(json.dumps({"ok": True, "approvals": rows}))
        return DONE
    for row in rows:
        print(ask_line(row, reader.did))
    if not rows:
        print("Nothing waits for approval by this key." if by == reader.did else "There is no such request.")
    return DONE


def ask_line(row: JsonObject, own: str = "") -> str:
    """Return one request of the list; what is approved is the verified entry's to say, not this line's."""
    given, asked = len(objects(row.get("given"))), len(texts(row.get("approvers")))
    names = " ".join(texts(row.get("resources")))
    until = f"until {shown_moment(row.get('giveUpByMs'))}" if row.get("state") == "open" else str(row.get("state"))
    return shown(
        f"{row.get('askId')}  {row.get('operation')} ({row.get('mode')}) on {names}  by "
        f"{who(row, 'actor', 'actorName', own)}  approved by {given}, needs {row.get('quorum')} of {asked}  {until}"
    )
