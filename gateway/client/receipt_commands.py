"""`tallystick receipt show | upgrade`: what a kept receipt says; the same one with a proof that witnesses stand for.
`export` and `private` are in receipt_files.py.

An answer comes at once and can't wait for witnesses, so its receipt proves inclusion. Soon after, the gateway has the
same leaf in a checkpoint that witnesses cosigned. Which witnesses count is the reader's to say, in a policy file; what
the gateway serves is a list to compare with, never a source of trust.
Source: docs/protocol.md 32.10.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.client.agent import Agent
from gateway.client.errors import NotWitnessed, ProfileError, RequestRejected, SplitView
from gateway.client.exits import DONE
from gateway.client.outcome import check_receipt_path
from gateway.client.receipt_files import add_export, add_private, read_given
from gateway.client.receipts import VerifiedReceipt, open_receipt
from gateway.client.terminal import Handler, command_parser, say_waiting, sub_parser
from gateway.client.words import facts, sentence
from keys.files import replace_file
from verifier.entries import PARAMETER_DEFAULTS
from verifier.keyring import Keyring
from verifier.note import encode_note
from verifier.policy import Policy, parse_policy
from verifier.receipt import check_receipt
from verifier.wire import RECEIPT_BYTES_MAX, TEXT_BYTES_MAX, JsonObject, Malformed

POLICY_FILE = "policy.txt"  # of a profile: the witnesses that its owner trusts
LOOK_EVERY_MS = 1_000
_SERVED = "/.well-known/tallystick-policy.txt"


def receipt_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick receipt`."""
    parser = command_parser(
        "receipt", "Show what a receipt says, have it proven by witnesses, write it for other tools, and keep or erase "
        "the private texts beside it.",
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="show|upgrade|export|private")
    show = sub_parser(verbs, "show", "Show what a receipt says", "Verified under the keys that the profile has pinned.")
    show.set_defaults(handler=_show)
    upgrade = sub_parser(
        verbs, "upgrade", "Put a proof that witnesses stand for in place of a receipt's own",
        "The file is replaced when there is one, and stays as it is otherwise: then the exit code is 3. The entry and "
        "its signature are the same.",
    )  # fmt: skip
    upgrade.add_argument(
        "--wait", action="store_true",
        help="wait for the witnesses, for as long as entry 0 says that it takes at most (witnessMs)",
    )  # fmt: skip
    upgrade.set_defaults(handler=_upgrade)
    for verb in (show, upgrade):
        verb.add_argument("file", type=Path, metavar="FILE", help="the receipt")
        verb.add_argument(
            "--policy", type=Path, metavar="FILE",
            help=f"the witnesses to trust, a C2SP tlog-policy (default: {POLICY_FILE} of the profile, if there is one)",
        )  # fmt: skip
    add_export(verbs)
    add_private(verbs)
    return parser, lambda arguments: arguments.handler(arguments)


@dataclass(frozen=True, slots=True)
class Judge:
    """Says how well a verified receipt is witnessed, by the pinned keys and, if there is one, the reader's policy."""

    keyring: Keyring
    policy: Policy | None

    def level(self, receipt: VerifiedReceipt) -> str:
        """Return `included`, or `witnessed k/n`; without a policy nobody's line counts, and it says `cosigned n`."""
        if self.policy is None:
            names = {line.name for line in receipt.checkpoint.note.lines} - {receipt.checkpoint.origin}
            return f"cosigned {len(names)}" if names else "included"
        return check_receipt(receipt.data, replace(self.keyring, policy=self.policy), level="witnessed").level

    def words(self, receipt: VerifiedReceipt) -> str:
        """Return the level as a sentence."""
        level, size = self.level(receipt), receipt.checkpoint.size
        if level.startswith("witnessed"):
            return f"{level} by the policy, in a checkpoint of {size} entries"
        if level.startswith("cosigned"):
            names = ", ".join(line.name for line in receipt.checkpoint.note.lines[1:])
            return f"in a checkpoint of {size} entries with lines of {names}: not checked, no policy says who they are"
        return f"included in a checkpoint of {size} entries, not witnessed"

    def is_enough(self, receipt: VerifiedReceipt) -> bool:
        """Say whether there is nothing to be made better."""
        return not self.level(receipt).startswith(("included", "none"))


async def _show(arguments: argparse.Namespace) -> int:
    content, policy = read_given(arguments.file, RECEIPT_BYTES_MAX), _policy(arguments)
    async with Agent.open(arguments.home) as agent:
        receipt = open_receipt(content, agent.profile.keyring)
        judge = Judge(agent.profile.keyring, policy)
    if arguments.json:
        print(json.dumps({"ok": True, **facts(receipt), **_judged(receipt, judge)}))
    else:
        print(f"{sentence(receipt)}\n{judge.words(receipt)}")
    return DONE


async def _upgrade(arguments: argparse.Namespace) -> int:
    check_receipt_path(arguments.file)
    content, policy = read_given(arguments.file, RECEIPT_BYTES_MAX), _policy(arguments)
    async with Agent.open(arguments.home) as agent:
        receipt = open_receipt(content, agent.profile.keyring)
        if not Judge(agent.profile.keyring, policy).is_enough(receipt):
            receipt = await _better(agent, receipt, policy, is_waiting=arguments.wait)
        judge = Judge(agent.profile.keyring, policy)
    if not judge.is_enough(receipt):
        raise NotWitnessed(_why_not(receipt, judge, is_waited=arguments.wait))
    if receipt.data != content:
        _write(arguments.file, receipt.data)
    if arguments.json:
        print(json.dumps({"ok": True, "seq": receipt.seq, **_judged(receipt, judge)}))
    else:
        print(f"{arguments.file}: entry {receipt.seq} is {judge.words(receipt)}")
    return DONE


def _why_not(receipt: VerifiedReceipt, judge: Judge, *, is_waited: bool) -> str:
    """Return what to say when no checkpoint that witnesses stand for reaches the entry."""
    lacking = "has a line of a witness" if judge.policy is None else "reaches the quorum of the policy"
    todo = "Try again with --wait."
    if is_waited:
        todo = f"Ask the gateway's operator, and compare your witnesses with those it asks: {_SERVED}"
    return f"no checkpoint over entry {receipt.seq} {lacking} yet; the receipt is as it was. {todo}"


async def _better(
    agent: Agent, receipt: VerifiedReceipt, policy: Policy | None, *, is_waiting: bool
) -> VerifiedReceipt:
    """Return the receipt of the same entry as good as the gateway has it; with `is_waiting` look until it is enough,
    or the time is over that witnesses may take."""
    clock = agent.caller.clock
    until_ms = clock.steady_ms()
    if is_waiting:
        promised_ms = await _promised_ms(agent)
        until_ms += promised_ms
        say_waiting("receipt upgrade", f"for witnesses of entry {receipt.seq}", promised_ms)
    while True:
        found = await agent.receipt(receipt.seq)
        _check_same(receipt, found)
        if Judge(agent.profile.keyring, policy).is_enough(found) or clock.steady_ms() >= until_ms:
            return found
        await clock.sleep(min(LOOK_EVERY_MS, until_ms - clock.steady_ms()))


async def _promised_ms(agent: Agent) -> int:
    """Return the bound in entry 0; an agent that may not read that waits for the usual one."""
    try:
        parameters = (await agent.receipt(0)).leaf.value.get("parameters")
    except RequestRejected:
        parameters = None
    promised = parameters.get("witnessMs") if isinstance(parameters, dict) else None
    return promised if isinstance(promised, int) else PARAMETER_DEFAULTS["witnessMs"]


def _check_same(before: VerifiedReceipt, after: VerifiedReceipt) -> None:
    """SplitView when another entry has the number of the one that the receipt is of: both are proven."""
    if after.leaf_hash != before.leaf_hash:
        raise SplitView(
            f"the gateway shows another entry {before.seq} than the one that this receipt proves. Keep the receipt and "
            "the gateway's newest checkpoint: together they prove it to anyone.",
            encode_note(before.checkpoint.note),
            encode_note(after.checkpoint.note),
        )


def _judged(receipt: VerifiedReceipt, judge: Judge) -> JsonObject:
    return {"level": judge.level(receipt), "size": receipt.checkpoint.size, "isPolicyGiven": judge.policy is not None}


def _policy(arguments: argparse.Namespace) -> Policy | None:
    """Return the policy of --policy, else that of the profile; None where there is neither."""
    path: Path = arguments.policy or arguments.home / POLICY_FILE
    if arguments.policy is None and not path.exists():
        return None
    policy = parse_policy(read_given(path, TEXT_BYTES_MAX))
    if policy.quorum is None:
        raise Malformed(f"{path} says `quorum none`, so nothing is ever witnessed by it: name witnesses and a quorum")
    return policy


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise ProfileError(
            f"the better receipt can't be written to {path}: {error.strerror}; it is as it was"
        ) from error
