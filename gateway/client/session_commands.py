"""`tallystick session open | delegate | list | beat | revoke`.

A session that outlives its command lives in a folder: the gateway and the pins of the profile it was made from, a key
of its own, and the receipt that opened it. Every other command takes it as its profile: `--home FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from gateway.actions import ACTIONS
from gateway.client.agent import Agent
from gateway.client.delegation import TTL_MS_DEFAULT, SignedDelegation, open_delegation
from gateway.client.errors import ClientError, ProfileError
from gateway.client.exits import DONE, moment, seconds, shown
from gateway.client.office_commands import checked_label, did_of
from gateway.client.outcome import add_receipt, check_receipt_path, done
from gateway.client.profile import AGENT_KEY, KEYS, OPENED, ROOT, Profile, open_profile, write_profile
from gateway.client.seen import read_bounded
from gateway.client.session import Session, is_session
from gateway.client.terminal import (
    PROFILE_HELP,
    Handler,
    command_parser,
    duration_ms,
    home_option,
    patient,
    sub_parser,
)
from gateway.client.words import shown_moment, texts
from keys.files import KeyFileError, new_key, replace_file
from verifier.entries import DELEGATION_MS_MAX, DID, LABEL, REASON_CODE, VERBS
from verifier.wire import TEXT_BYTES_MAX, JsonObject, Malformed

SESSIONS = "sessions"  # the folder below a profile
SESSION_HELP = "the session's folder"
_WHO = (
    "A session acts for the agent of the profile, or, made with an operator's profile, for the operator directly. It "
    "has a key of its own, a short life, and gives everything back when it ends: closed, at the end of its time, or "
    "when nothing is heard of it for two minutes. `run` and every command that decides something keep it; else "
    "`session beat` does."
)


def session_parser() -> tuple[argparse.ArgumentParser, Handler]:
    """Return the parser of `tallystick session`."""
    parser = command_parser("session", _WHO)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="open|delegate|list|beat|revoke")
    _add_open(_verb(verbs, "open", "session.open", PROFILE_HELP + " that lends: an agent's, or DATA/operator"))
    _add_delegate(
        sub_parser(
            verbs, "delegate", "Make a statement that lets another key act for this one",
            "Nothing is sent, and the statement is no secret: only the key that it names can use it. An operator hands "
            "it to an agent, whose sessions then act within it (session open --parent), or to a key that becomes the "
            "session itself (session open --own).", "the profile that lends, such as DATA/operator",
        )
    )  # fmt: skip
    verbs.choices["delegate"].set_defaults(handler=_delegate)
    listing = _verb(verbs, "list", "session.list", PROFILE_HELP)
    listing.add_argument("--agent", metavar="DID", help="only those of this agent")
    beat = _verb(verbs, "beat", "session.beat", SESSION_HELP)
    beat.add_argument("--activity", metavar="CODE", help=f"what it is at: {REASON_CODE.bound}; everybody may read it")
    add_receipt(beat)
    revoke = _verb(verbs, "revoke", "session.close", "the profile of the agent behind it, an operator's, or its own")
    revoke.add_argument("session", nargs="?", metavar="DID", help="which (default: that of --home)")
    revoke.add_argument("--reason", metavar="CODE", help=f"why: {REASON_CODE.bound}")
    add_receipt(revoke)
    return parser, _run


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, action: str, profile: str
) -> argparse.ArgumentParser:
    row = ACTIONS[action]
    made = sub_parser(verbs, name, row.summary, _DESCRIPTIONS.get(action, row.description), profile)
    made.set_defaults(handler=_HANDLERS[name])
    return made


_DESCRIPTIONS = {
    "session.open": "Makes a folder with a fresh key and opens the session with it. The folder is the session: whoever "
    "can read it can use it until it ends. One process at a time: two would be one holder to the ledger, which "
    "extends to the second what the first one holds, and shows the session as shared.",
    "session.beat": "Only needed while nothing else is decided for it: any entry of its own keeps a session alive.",
}


def _add_open(parser: argparse.ArgumentParser) -> None:
    _add_scope(parser, ", or what --parent lends")
    parser.add_argument("--name", metavar="LABEL", help=f"a label for people, and for the folder: {LABEL.bound}")
    parser.add_argument(
        "--into", type=Path, metavar="DIR", help="the session's folder (default: sessions/NAME below the profile)"
    )
    handed = parser.add_mutually_exclusive_group()
    handed.add_argument(
        "--parent", type=Path, metavar="FILE", help="act within this statement, which an operator handed to the agent"
    )
    handed.add_argument(
        "--own", type=Path, metavar="FILE",
        help="use this statement, which names the key of --home itself: that profile becomes the session",
    )  # fmt: skip
    add_receipt(parser)


def _add_delegate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="DID", help="the key that may act: an agent's, or a session's")
    _add_scope(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the statement there (default: print it)")


def _add_scope(parser: argparse.ArgumentParser, less: str = "") -> None:
    parser.add_argument(
        "--ttl", type=duration_ms, default=TTL_MS_DEFAULT, metavar="TIME",
        help=f"how long it lasts at most: 1s to 168h (default {TTL_MS_DEFAULT // 3_600_000}h)",
    )  # fmt: skip
    parser.add_argument(
        "--may", default=None, metavar="VERBS",
        help="some of lease (take, renew, release, wait), transfer (hand over) and admit (ask before acting), with "
        f"commas between (default: all{less})",
    )  # fmt: skip
    parser.add_argument(
        "--resource", action="append", dest="resources", metavar="NAME",
        help=f"a name, or scheme:path/** for a sub-tree; up to 16 of them (default: every name{less})",
    )  # fmt: skip


async def _run(arguments: argparse.Namespace) -> int:
    check_receipt_path(getattr(arguments, "receipt", None))
    if "ttl" in arguments and not 1_000 <= arguments.ttl <= DELEGATION_MS_MAX:
        raise Malformed("--ttl: 1s to 168h")
    reason = getattr(arguments, "reason", None) or getattr(arguments, "activity", None)
    if reason is not None and not REASON_CODE.check(reason):
        raise Malformed(f"--reason, --activity: {REASON_CODE.bound}")
    handler: Handler = arguments.handler
    return await handler(arguments)


# -- open --------------------------------------------------------------------------------------------------------------


async def _open(arguments: argparse.Namespace) -> int:
    name = checked_label(arguments.name)
    if arguments.own is not None:
        return await _open_own(arguments, name)
    parent = None if arguments.parent is None else _statement(arguments.parent)
    home: Path = arguments.home
    folder = arguments.into or home / SESSIONS / (name or secrets.token_hex(4))
    async with patient(home) as lender:
        if is_session(lender.profile):
            raise ProfileError(f"{home} is a session, which lends nothing on: open it with its agent's profile.")
        await _clear(lender, folder)
        profile = _make_folder(home, lender.profile, folder)
        try:
            session = lender.open_session(
                ttl_ms=arguments.ttl, verbs=_verbs(arguments.may), resources=arguments.resources, name=name,
                parent=parent, profile=profile, is_kept=True,
            )  # fmt: skip
            await _enter(session, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return _tell_opened(arguments, session, folder)


async def _open_own(arguments: argparse.Namespace, name: str | None) -> int:
    """The profile's key, to which an operator lent something, becomes the session."""
    own, profile = _statement(arguments.own), open_profile(arguments.home)
    if own.says.sub != profile.key.did:
        raise Malformed(f"--own: the statement names {own.says.sub}, and the key in {arguments.home} is another")
    session = Session(profile, delegations=(own,), name=name, is_kept=True)
    await _enter(session, arguments.home)
    return _tell_opened(arguments, session, arguments.home)


async def _enter(session: Session, folder: Path) -> None:
    async with session:
        replace_file(folder / OPENED, session.opened.data)


def _make_folder(home: Path, lender: Profile, folder: Path) -> Profile:
    """Return the profile in a new folder that only its owner can read: the lender's gateway and pins, a fresh key."""
    try:
        folder.mkdir(mode=0o700, parents=True)
        root = read_bounded(home / ROOT).decode("utf-8").strip()
        keyring = write_profile(folder, lender.address, root=root, document=read_bounded(home / KEYS))
        key = new_key(folder / AGENT_KEY, purpose="agent")
    except (OSError, KeyFileError, Malformed, UnicodeDecodeError) as error:
        raise ProfileError(f"{folder} can't become a session's folder: {error}") from error
    return replace(lender, key=key, keyring=keyring, home=folder)


async def _clear(lender: Agent, folder: Path) -> None:
    """Remove what a session that is over has left; a folder of one that may be open, or of anything else, stays."""
    did = _key_there(folder)
    if did is None:
        return
    if any(row.get("did") == did and "endedSeq" not in row for row in await lender.sessions()):
        raise ProfileError(
            f"{folder} is a session that is open: use it with --home {folder}, or end it first: "
            f"tallystick session revoke {did}"
        )
    shutil.rmtree(folder)


def _key_there(folder: Path) -> str | None:
    """Return whose folder that is, None when there is none; ProfileError for one that is no session's."""
    if not folder.exists():
        return None
    if not (folder / OPENED).exists():
        raise ProfileError(f"{folder} exists and is no session's folder: choose another with --into or --name.")
    return open_profile(folder).key.did


def _tell_opened(arguments: argparse.Namespace, session: Session, folder: Path) -> int:
    leaf, option = session.opened.leaf, home_option(folder)
    idle = seconds(leaf.number("endsIfIdleAtMs") - leaf.time_ms)
    step = (
        f"session  {session.did}\nfor      {session.principal}\nuntil    {moment(session.expires_at_ms)}, or {idle} "
        f"after its last entry\nfolder   {folder}\n\n"
        f"Use it:        tallystick run{option} --resource NAME -- COMMAND …\n"
        f"Keep it:       tallystick session beat{option}\n"
        f"End it:        tallystick session revoke{option}"
    )
    also: JsonObject = {"session": session.did, "principal": session.principal, "home": str(folder)}
    return done("session open", arguments, session.opened, step, also)


# -- the other verbs ---------------------------------------------------------------------------------------------------


async def _delegate(arguments: argparse.Namespace) -> int:
    did, profile = did_of(arguments.key), open_profile(arguments.home)
    made = Agent(profile).delegate(
        did, ttl_ms=arguments.ttl, verbs=_verbs(arguments.may), resources=arguments.resources, may_delegate=True
    )
    if arguments.out is None:
        print(made.encode().decode(), end="")
        return DONE
    try:
        replace_file(arguments.out, made.encode())
    except OSError as error:
        raise ProfileError(f"{arguments.out} can't be written: {error.strerror}") from error
    if arguments.json:
        print(json.dumps({"ok": True, "delegation": made.row}))
    else:
        print(
            f"{arguments.out} lets {did} act for {profile.key.did} until {moment(made.says.expires_at_ms)}.\n"
            f"An agent opens sessions within it:  tallystick session open --parent {arguments.out}\n"
            f"A key that is to be the session:    tallystick session open --own {arguments.out}"
        )
    return DONE


async def _list(arguments: argparse.Namespace) -> int:
    if arguments.agent is not None and not DID.check(arguments.agent):
        raise Malformed(f"--agent: {DID.bound}")
    async with Agent.open(arguments.home) as reader:
        rows = await reader.sessions(arguments.agent)
    if arguments.json:
        print(json.dumps({"ok": True, "sessions": rows}))
        return DONE
    for row in rows:
        print(_line(row, reader.did))
    if not rows:
        print("No session is open.")
    return DONE


def _line(row: JsonObject, own: str) -> str:
    did = row.get("did")
    you = " (you)" if did == own else ""
    ended = "endedSeq" in row
    until = f"ended by entry {row['endedSeq']}" if ended else f"until {shown_moment(row.get('expiresAtMs'))}"
    idle = "" if ended else f", or {shown_moment(row.get('endsIfIdleAtMs'))} if it stays silent"
    scope = " ".join(texts(row.get("scope"))) or "every name"
    doing = f"  at {row['activity']}" if "activity" in row else ""
    shared = "  SHARED: two processes use its key" if row.get("isShared") is True else ""
    verbs = ",".join(texts(row.get("verbs")))
    return shown(
        f"{did}{you}  {row.get('name', '-')}  for {row.get('agent')}  {verbs} on {scope}  {until}{idle}{doing}{shared}"
    )


async def _beat(arguments: argparse.Namespace) -> int:
    async with patient(arguments.home) as session:
        if not isinstance(session, Session):
            raise ProfileError(f"{arguments.home} is no session's folder: name one with --home.")
        receipt = await session.beat(arguments.activity)
    again = f"It is kept until {moment(receipt.leaf.number('endsIfIdleAtMs'))}, and longer by whatever it does."
    return done("session beat", arguments, receipt, again)


async def _revoke(arguments: argparse.Namespace) -> int:
    if arguments.session is not None and not DID.check(arguments.session):
        raise Malformed(f"DID: {DID.bound}")
    async with patient(arguments.home) as closer:
        if isinstance(closer, Session) and arguments.session in (None, closer.did):
            receipt = await closer.close(arguments.reason)
        elif arguments.session is not None:
            receipt = await closer.close_session(arguments.session, arguments.reason)
        else:
            raise Malformed("name the session by its DID, or its folder with --home: see tallystick session list")
    leaf = receipt.leaf
    back = f"Given back: leases {leaf.number('leases')}, places in line {leaf.number('tickets')}."
    step = back if "leases" in leaf.value else "It had ended before."
    return done("session revoke", arguments, receipt, step)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _verbs(text: str | None) -> list[str] | None:
    if text is None:
        return None
    verbs = text.split(",")
    if not set(verbs) <= set(VERBS):
        raise Malformed("--may: some of " + ", ".join(VERBS) + ", with commas between")
    return verbs


def _statement(path: Path) -> SignedDelegation:
    try:
        return open_delegation(read_bounded(path, TEXT_BYTES_MAX))
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error
    except (Malformed, ClientError) as error:
        raise Malformed(f"{path} is no statement that can be used: {error}") from error


_HANDLERS: dict[str, Handler] = {"open": _open, "list": _list, "beat": _beat, "revoke": _revoke}
