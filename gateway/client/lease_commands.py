"""`tallystick lease acquire | renew | release | list | transfer | accept | break | batch`.

Thin: arguments in, one verb of the agent, words or JSON out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial

from gateway.actions import ACTIONS
from gateway.client.admitting import MODE_DEFAULT
from gateway.client.agent import TTL_MS_DEFAULT, Agent
from gateway.client.batch_commands import add_batch, batch
from gateway.client.errors import NotHeld, RequestRejected, StillWaiting
from gateway.client.exits import DONE, shown
from gateway.client.holdings import SeenLease, Tokened
from gateway.client.line import poll_until, waiting_words
from gateway.client.outcome import add_receipt, check_receipt_path, done, give_back, interruptible
from gateway.client.private import add_reason, asked_reason
from gateway.client.terminal import (
    A_DID,
    OPERATOR_HELP,
    PROFILE_HELP,
    Handler,
    command_parser,
    duration_ms,
    patient,
    say_waiting,
    sub_parser,
)
from gateway.client.trust import Grant
from gateway.client.words import offer_words, shown_moment, silence_words, texts, who
from verifier.entries import (
    ACTION_BODIES,
    DID,
    HOLDING,
    LEASE_ID,
    MODES,
    REASON_CODE,
    TOKEN,
    TTL_MS_MAX,
    TTL_MS_MIN,
    check_resource,
)
from verifier.wire import JsonObject, Malformed


def lease_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick lease`."""
    parser = command_parser(
        "lease", "Acquire, renew, release, list, hand over and break leases, one by one or many at once."
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(_VERBS))
    for name, (action, handler) in _VERBS.items():
        row = ACTIONS[action]
        profile = OPERATOR_HELP if row.signer == "operator" else PROFILE_HELP
        verb = sub_parser(verbs, name, row.summary, _DESCRIPTIONS.get(action, row.description), profile)
        (add_batch if name == "batch" else partial(_add_members, action=action))(verb)
        verb.set_defaults(handler=handler)
    _add_waiting(verbs.choices["acquire"])
    verbs.choices["renew"].add_argument(
        "--mode", choices=MODES, help="go over to this mode: another lease, with a token of its own (default: as it is)"
    )
    verbs.choices["list"].add_argument(
        "--holder", default="me", metavar="DID", help="whose leases (default: this profile's)"
    )
    return parser, lambda arguments: _call(arguments.handler, arguments)


async def _call(handler: Handler, arguments: argparse.Namespace) -> int:
    if "ttl" in arguments and not TTL_MS_MIN <= arguments.ttl <= TTL_MS_MAX:
        raise Malformed("--ttl: 1s to 1h")
    if "receipt" in arguments:
        check_receipt_path(arguments.receipt)
    arguments.private = asked_reason(arguments)
    return await handler(arguments)


def _add_members(parser: argparse.ArgumentParser, action: str) -> None:
    """Add what the entry table lets a body of `action` say; who and where come from the profile."""
    names = {member.name for member in ACTION_BODIES.get(action, ())}
    if action == "lease.accept":
        parser.add_argument("lease", metavar="ID", help="the lease that was offered, such as L42")
    elif action == "lease.break":
        meaning = "a name that the lease is on, or overlaps; or its id"
        parser.add_argument("resource", metavar="RESOURCE", help=meaning)
    elif "leaseId" in names:
        meaning = "all that the lease is on, or its id, such as L42"
        parser.add_argument("resources", nargs="+", metavar="RESOURCE|ID", help=meaning)
    elif "resource" in names:
        parser.add_argument("resources", nargs="+", metavar="RESOURCE", help=_RESOURCE_HELP)
    if "resources" in names and "leaseId" in names:
        parser.add_argument("--lease", metavar="ID", help="its id (default: looked up by what it is on)")
    if "ttlMs" in names:
        default = f"{TTL_MS_DEFAULT // 1000}s"
        parser.add_argument(
            "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
            help=f"how long it lasts: 1s to 1h (default {default})",
        )  # fmt: skip
    if "seenToken" in names:
        _add_compared(parser)
    if "reasonDigest" in names:
        add_reason(parser)
    if "toDid" in names:
        parser.add_argument("--to", required=True, metavar="DID", help=f"the key that may take it over: {A_DID}")
    if names:
        add_receipt(parser)


# What the table of actions says in words of the protocol.
_DESCRIPTIONS = {
    "lease.acquire": "Brings the lease with a fencing token, or says who has it and how long to wait. With --wait it "
    "stands in line; with --give-up the place in line outlives the command. Asking again for what one holds extends it "
    "and keeps the token.",
    "lease.renew": "It lasts for --ttl from now on, and never ends sooner than before. Another mode makes another "
    "lease with a new token. A lease that ended is never brought back to life.",
    "lease.release": "Name what it is on or, better, its id. Repeating a finished release is a success without effect.",
    "lease.list": "What the gateway says, without a proof.",
    "batch.submit": "Up to 256 commands, signed once and decided at once, each with the effects of those before; none "
    "of them waits. Each gets a receipt of its own.",
}
_RESOURCE_HELP = "scheme:path, or scheme:path/** for a whole sub-tree; all of them or none"


def _add_waiting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mode", choices=MODES, default=MODE_DEFAULT,
        help=f"what for (default {MODE_DEFAULT}); who may share it is the scheme's: tallystick scheme list",
    )  # fmt: skip
    parser.add_argument(
        "--wait", type=duration_ms, default=0, metavar="TIME",
        help="wait in line for so long, then leave the line (default: don't wait)",
    )  # fmt: skip
    parser.add_argument(
        "--give-up", type=duration_ms, default=None, metavar="TIME",
        help="take a place in line that outlives this command, for so long at most (1s to 1h); when --wait is over the "
        "ticket is printed, to go on with: tallystick wait claim TICKET",
    )  # fmt: skip
    parser.add_argument(
        "--on-deadlock", choices=("refuse", "wait"), default="refuse",
        help="when waiting would close a deadlock: say so (default), or wait for some lease of it to run out",
    )  # fmt: skip


def _add_compared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token", type=int, metavar="N",
        help="the fencing token you saw: nothing happens when another lease is there by now (default: that of the "
        "lease you name by its id)",
    )  # fmt: skip
    parser.add_argument("--reason", required=True, metavar="CODE", help=f"why: {REASON_CODE.bound}")


# -- verbs -------------------------------------------------------------------------------------------------------------


async def _acquire(arguments: argparse.Namespace) -> int:
    if arguments.private is not None and (arguments.wait or arguments.give_up is not None):
        raise Malformed("a reason in words goes with what is decided at once: leave out --wait and --give-up")
    async with patient(arguments.home) as agent:
        grant = await (_take(agent, arguments) if arguments.give_up is None else _queue(agent, arguments))
    return done("lease", arguments, grant.receipt, give_back(grant, arguments.home))


async def _take(agent: Agent, arguments: argparse.Namespace) -> Grant:
    if arguments.private is not None:
        return await agent.acquire(
            arguments.resources, mode=arguments.mode, ttl_ms=arguments.ttl, reason_digest=_digest(arguments)
        )
    with interruptible(None):
        return await agent.wait_for(
            arguments.resources, mode=arguments.mode, ttl_ms=arguments.ttl, wait_ms=arguments.wait,
            on_deadlock=arguments.on_deadlock, on_wait=lambda what: say_waiting("lease", what, arguments.wait),
        )  # fmt: skip


async def _queue(agent: Agent, arguments: argparse.Namespace) -> Grant:
    """Take a place in line and keep it, whoever goes on with it."""
    deadline_ms = agent.clock.steady_ms() + arguments.wait
    with interruptible(None):
        answer = await agent.acquire(
            arguments.resources, mode=arguments.mode, ttl_ms=arguments.ttl, wait=True, give_up_ms=arguments.give_up,
            on_deadlock=arguments.on_deadlock,
        )  # fmt: skip
    if not isinstance(answer, Grant) and arguments.wait > 0:
        say_waiting("lease", waiting_words(answer), arguments.wait)
        with interruptible(answer.ticket_id):
            answer = await poll_until(agent, answer, deadline_ms)
    if isinstance(answer, Grant):
        return answer
    raise StillWaiting(answer)


async def _renew(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as agent:
        names = tuple(arguments.resources)
        lease_id = names[0] if _is_id(names) else (await _find_lease(agent, names))[0].lease_id
        grant = await agent.renew(lease_id, mode=arguments.mode, ttl_ms=arguments.ttl)
    return done("lease", arguments, grant.receipt)


async def _release(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as agent:
        lease_id, names = arguments.lease, tuple(arguments.resources)
        if lease_id is None:
            lease, names = await _named_lease(agent, names)
            lease_id = lease.lease_id
        receipt = await agent.release(names, lease_id, reason_digest=_digest(arguments))
    return done("lease", arguments, receipt)


async def _transfer(arguments: argparse.Namespace) -> int:
    if not DID.check(arguments.to):
        raise Malformed(f"--to: {A_DID}")
    async with patient(arguments.home) as agent:
        lease = await _lease_to_transfer(agent, arguments)
        receipt = await agent.transfer(lease, arguments.to, _reason(arguments), reason_digest=_digest(arguments))
    step = f"{arguments.to} takes it over with:  tallystick lease accept {lease.lease_id}"
    return done("lease", arguments, receipt, step)


async def _lease_to_transfer(agent: Agent, arguments: argparse.Namespace) -> Tokened:
    if arguments.token is None:
        try:
            return (await _named_lease(agent, arguments.resources))[0]
        except NotHeld as error:
            raise NotHeld(f"{error}\nAs an operator name the lease by its id: see tallystick wait") from error
    _check_token(arguments.token)
    if not _is_id(arguments.resources):
        raise Malformed("with --token name the lease by its id, such as L42")
    return SeenLease(arguments.resources[0], arguments.token)


async def _accept(arguments: argparse.Namespace) -> int:
    if not LEASE_ID.check(arguments.lease):
        raise Malformed(f"the lease is named by its id: {LEASE_ID.bound}")
    async with patient(arguments.home) as agent:
        grant = await agent.accept(arguments.lease, ttl_ms=arguments.ttl)
    return done("lease", arguments, grant.receipt, give_back(grant, arguments.home))


async def _break(arguments: argparse.Namespace) -> int:
    if arguments.token is not None:
        _check_token(arguments.token)
    if not LEASE_ID.check(arguments.resource):
        check_resource(arguments.resource)
        if arguments.token is None:
            raise Malformed("--token N is missing: the one you saw, or name the lease by its id, such as L42")
    async with patient(arguments.home) as agent:
        resource, token = await _seen_to_break(agent, arguments)
        receipt = await agent.break_lease(resource, token, _reason(arguments), reason_digest=_digest(arguments))
    return done("lease", arguments, receipt)


async def _seen_to_break(agent: Agent, arguments: argparse.Namespace) -> tuple[str, int]:
    """Return a resource and the token seen there; those of a lease named by its id are from its verified entry."""
    if not LEASE_ID.check(arguments.resource):
        return arguments.resource, arguments.token
    lease, names = await _lease_of_id(agent, arguments.resource)
    return names[0], lease.fencing_token if arguments.token is None else arguments.token


async def _list(arguments: argparse.Namespace) -> int:
    if arguments.holder != "me" and not DID.check(arguments.holder):
        raise Malformed(f"--holder: me, or {A_DID}")
    async with Agent.open(arguments.home) as agent:
        leases = await agent.leases(arguments.holder)
        offered = await agent.offered() if arguments.holder == "me" else []
    if arguments.json:
        print(json.dumps({"ok": True, "leases": leases, "offered": offered}))
        return DONE
    if not leases:
        print("This key holds no lease." if arguments.holder == "me" else f"{arguments.holder} holds no lease.")
    for lease in leases:
        print(_lease_line(lease) + offer_words(lease))
    for lease in offered:
        print(f"offered to you by {who(lease, 'holder', 'holderName')}: {_lease_line(lease)}")
        print(f"  take it over with tallystick lease accept {shown(str(lease.get('leaseId')))}")
    return DONE


def _lease_line(lease: JsonObject) -> str:
    names = " ".join(texts(lease.get("resources")))
    until = shown_moment(lease.get("endsAtMs")) + silence_words(lease, "endsAtMs")
    token = lease.get("fencingToken")
    return shown(f"{lease.get('leaseId')}  {names}  {lease.get('mode')}  token {token}  until {until}")


# -- arguments ---------------------------------------------------------------------------------------------------------


def _is_id(names: Sequence[str]) -> bool:
    return len(names) == 1 and LEASE_ID.check(names[0])


async def _named_lease(agent: Agent, names: Sequence[str]) -> tuple[Tokened, tuple[str, ...]]:
    """Return the lease meant and its resources; named by its id it may have ended, and the gateway will say how."""
    return await _lease_of_id(agent, names[0]) if _is_id(names) else await _find_lease(agent, names)


async def _lease_of_id(agent: Agent, lease_id: str) -> tuple[Tokened, tuple[str, ...]]:
    """Return what the verified entry that began a lease says; one that nothing began is refused with a receipt."""
    try:
        began = await agent.receipt(int(lease_id[1:]), is_patient=True)
    except RequestRejected:  # no such entry, or none for this key: the question below is answered all the same
        began = None
    if began is not None and began.type in HOLDING and began.leaf.text("leaseId") == lease_id:
        return SeenLease(lease_id, began.leaf.number("fencingToken")), began.resources
    grant = await agent.renew(lease_id)
    return grant, grant.resources


async def _find_lease(agent: Agent, names: Sequence[str]) -> tuple[SeenLease, tuple[str, ...]]:
    """Return the live lease of this key that is on exactly `names`, in any order, and its resources.

    The list is unverified; a lie in it costs a refusal or names a lease of our own, and the receipt says which.
    """
    for name in names:
        check_resource(name)
    leases = await agent.leases(is_patient=True)
    found = [lease for lease in leases if set(names) == set(texts(lease.get("resources")))]
    if len(found) == 1:
        token = found[0].get("fencingToken")
        seen = SeenLease(str(found[0].get("leaseId")), token if isinstance(token, int) else 0)
        return seen, texts(found[0].get("resources"))
    if found:
        ids = ", ".join(f"{lease.get('leaseId')} ({shown(str(lease.get('mode')))})" for lease in found)
        raise NotHeld(f"this key holds more than one lease on {' '.join(names)}: name one by its id, {ids}")
    held = ", ".join(shown(" ".join(texts(lease.get("resources")))) for lease in leases)
    raise NotHeld(
        f"this key holds no lease that is exactly {' '.join(names)}; it holds: {held or 'nothing'}.\n"
        "It may have run out, been broken or been handed over. Named by its id, such as L42, it says how it ended; "
        "or acquire again."
    )


def _reason(arguments: argparse.Namespace) -> str:
    if not REASON_CODE.check(arguments.reason):
        raise Malformed(f"--reason: {REASON_CODE.bound}; for more there are --reason-text and --reason-file")
    return str(arguments.reason)


def _check_token(token: int) -> None:
    if not TOKEN.check(token):
        raise Malformed(f"--token: {TOKEN.bound}")


def _digest(arguments: argparse.Namespace) -> str | None:
    """Return what the ledger gets of a reason in words."""
    return None if arguments.private is None else str(arguments.private.digest)


_VERBS: dict[str, tuple[str, Handler]] = {
    "acquire": ("lease.acquire", _acquire),
    "renew": ("lease.renew", _renew),
    "release": ("lease.release", _release),
    "list": ("lease.list", _list),
    "transfer": ("lease.transfer", _transfer),
    "accept": ("lease.accept", _accept),
    "break": ("lease.break", _break),
    "batch": ("batch.submit", batch),
}
