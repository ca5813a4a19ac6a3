"""`tallystick keys rotate | retire | compromise`: changes the keys that sign for a running ledger.

Runs where the data directory is, with the folder of the root at hand and the operator's profile. A command that was
stopped anywhere is simply run again: each step (gateway/rotation.py) leaves something that the next run finds.
Source: docs/operating.md, changing keys.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.client.exits import DONE, REFUSED
from gateway.client.terminal import command_parser, duration_ms, operating, patient, perform
from gateway.config import load_settings
from gateway.keyroom import KEYS
from gateway.ledger.cosigned import WITNESSES_FILE
from gateway.rotation import (
    Office,
    RotationError,
    Stated,
    announce,
    await_witnessed,
    end,
    installed,
    is_proven,
    policy_of,
    publish_stated,
    stated,
    tidy,
)
from keys.files import KeyFileError, load_key
from keys.publish import PublishError
from verifier.entries import PURPOSES
from verifier.keyring import KeyLine
from verifier.wire import Malformed

WITNESSED_MS_DEFAULT = 120_000


async def rotate(office: Office, arguments: argparse.Namespace) -> int:
    """Announce the next key of each purpose, and publish the document that has both in it.

    Where there may be other nodes, they get the key before it is announced: who lacks it then decides nothing any more.
    """
    await publish_stated(office)
    if load_settings(office.data).store and not getattr(arguments, "copied", False):
        return await _install_first(office, _purposes(arguments))
    for purpose in _purposes(arguments):
        in_force = (await stated(office)).in_force(purpose)
        if len(in_force) > 1:
            tidy(office, purpose)
            print(f"two {purpose} keys are in force already, the newest {in_force[-1].key.vkey}")
            continue
        await announce(office, purpose)
        await publish_stated(office)
    if arguments.purpose != "receipt" and (office.data / WITNESSES_FILE).exists():
        print("Have the witnesses add the new log key now: who does not know it cosigns nothing once the old one ends.")
    print("Readers fetch the new document by and by. Then end the old keys:  tallystick keys retire --data DIR")
    return DONE


async def _install_first(office: Office, purposes: Sequence[str]) -> int:
    """Put the keys that come next into `keys/`, and say where else they are needed."""
    now = await stated(office)
    used = {line.key.public_key for line in now.lines}
    for purpose in purposes:
        if len(now.in_force(purpose)) == 1:
            installed(office, purpose, now.following.get(purpose), used)
    print(
        f"the next keys lie in {office.data / KEYS}, and nothing is announced yet. Copy them, each with its passphrase,"
        " into keys/ of every other node of this ledger; then run this again with --copied",
        file=sys.stderr,
    )
    return REFUSED


async def retire(office: Office, arguments: argparse.Namespace) -> int:
    """Take the older of two keys out of force, and publish that.

    The log key last: from its entry on, until the document says so, readers miss its line on new checkpoints.
    """
    await publish_stated(office)
    ended = 0
    for purpose in reversed(_purposes(arguments)):
        in_force = (await stated(office)).in_force(purpose)
        if len(in_force) > 1:
            await end(office, "retire", in_force[0])
            ended += 1
    if not ended:
        print("of each purpose one key is in force: none is older. First comes:  tallystick keys rotate")
        return DONE
    await publish_stated(office)
    print("The retired key's file in keys/ is needed no more once the gateway has kept its last signatures.")
    return DONE


async def compromise(office: Office, arguments: argparse.Namespace) -> int:
    """Disown a key: another one signs first, and in the end the document names a tree that witnesses saw after it."""
    purpose = arguments.purpose
    # Before anything is published: what an earlier run of this command had begun with shows in the document alone.
    target = _target(office, await stated(office), purpose, arguments.key)
    await publish_stated(office)
    if target.to_size is None:
        if len((await stated(office)).in_force(purpose)) == 1:
            await announce(office, purpose)
            await publish_stated(office)
        await end(office, "compromise", target)
        await publish_stated(office)
    if purpose == "receipt":
        return DONE
    if policy_of(office) is None:
        print("Without witnesses nobody can prove that the key was disowned: what it signed alone proves nothing now.")
        return DONE
    if not await await_witnessed(office, purpose, arguments.wait):
        print(
            "no witnessed checkpoint has the disowning in it yet. Have each witness add the new log key (`tallystick "
            "witness add`), restart the gateway or wait until it asks them (up to 10 minutes), and run this again",
            file=sys.stderr,
        )
        return REFUSED
    await publish_stated(office)
    return DONE


def _target(office: Office, now: Stated, purpose: str, vkey: str | None) -> KeyLine:
    """Return the key to be disowned: the one that is named, one that was begun with, or the oldest in force.

    A command that is run once more by mistake must not disown the key that took the stolen one's place.
    """
    if vkey is not None:
        found = next((line for line in now.lines if line.purpose == purpose and line.key.vkey == vkey), None)
        if found is None or found.status == "retired":
            raise RotationError(f"--key: no {purpose} key of this ledger in force has this vkey; see public/vkeys.txt")
        return found
    disowned, in_force = now.disowned(purpose), now.in_force(purpose)
    unproven = [line for line in disowned if purpose == "log" and not is_proven(office, line)]
    if unproven and len(in_force) == 1:
        return unproven[0]
    if disowned and len(in_force) == 1:
        raise RotationError(f"{disowned[-1].key.vkey} is disowned already; name another one with --key")
    return in_force[0]


def _purposes(arguments: argparse.Namespace) -> tuple[str, ...]:
    return PURPOSES if arguments.purpose == "both" else (arguments.purpose,)


_Verb = Callable[[Office, argparse.Namespace], Coroutine[object, object, int]]
_VERBS: Mapping[str, tuple[_Verb, str]] = {
    "rotate": (rotate, "Put the next log and receipt key in force beside those that are, and publish the document."),
    "retire": (retire, "Take the older key out of force, and publish that. What it signed stays valid."),
    "compromise": (compromise, "Disown a key that others may have: another one takes its place, and what it signed "
                   "needs witnesses or a proof from now on."),
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run one command; `argv` begins with its name, such as `keys rotate`."""
    name, verb = argv[0], argv[0].split(" ")[-1]
    arguments = _parser(name, verb).parse_args(argv[1:])
    if arguments.home is None:
        arguments.home = arguments.data / "operator"

    async def handler(arguments: argparse.Namespace) -> int:
        with operating():
            async with _opened(arguments) as office:
                return await _VERBS[verb][0](office, arguments)

    return perform(name, handler, arguments)


def _parser(name: str, verb: str) -> argparse.ArgumentParser:
    parser = command_parser(name, _VERBS[verb][1] + " Run it again if it was stopped: it goes on where it was.")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data directory of the gateway")
    parser.add_argument(
        "--root-folder", type=Path, metavar="DIR", help="where root.key and the next keys are (default DATA/root)"
    )
    parser.add_argument("--home", type=Path, metavar="DIR", help="the operator's profile (default DATA/operator)")
    if verb == "compromise":
        parser.add_argument("--purpose", choices=PURPOSES, required=True, help="what the key signs")
        parser.add_argument("--key", metavar="VKEY", help="the key to disown (default: the oldest in force)")
        parser.add_argument(
            "--wait", type=duration_ms, default=WITNESSED_MS_DEFAULT, metavar="TIME",
            help="how long to wait for a witnessed checkpoint (default 2m)",
        )  # fmt: skip
    else:
        parser.add_argument("--purpose", choices=(*PURPOSES, "both"), default="both", help="which (default both)")
    if verb == "rotate":
        parser.add_argument(
            "--copied", action="store_true", help="every node of a ledger in PostgreSQL has the next keys in its keys/"
        )
    return parser


@asynccontextmanager
async def _opened(arguments: argparse.Namespace) -> AsyncIterator[Office]:
    """Yield the office; what keeps it from working is told as the commands of a client tell it."""
    folder = arguments.root_folder or arguments.data / "root"
    try:
        if not folder.is_dir():
            raise RotationError(f"there is no folder {folder}; name the one that root.key is in with --root-folder")
        root = load_key(folder / "root.key", purpose="root")
        async with patient(arguments.home) as agent:
            office = Office(arguments.data, folder, root, agent)
            if agent.profile.keyring.root != office.root_key:
                raise RotationError(f"{folder}/root.key is not the root that the profile {arguments.home} pins")
            yield office
    except (KeyFileError, PublishError, Malformed, OSError) as error:
        raise RotationError(str(error)) from error
