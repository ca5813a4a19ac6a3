"""The operator's commands `tallystick init | serve`, and how an operator's command tells what went wrong.

Each function takes the arguments after its name and returns an exit code: 0 done, 1 failed with a sentence on standard
error that says what to do, 2 wrong usage (argparse).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop

from gateway.app import check_ports
from gateway.app import serve as serve_until_stopped
from gateway.clock import Clock
from gateway.config import (
    DURABILITIES,
    SETTINGS,
    SETTINGS_FILE,
    SettingError,
    Settings,
    check_parameters,
    load_settings,
    settings_from,
)
from gateway.core.parameters import Parameters
from gateway.errors import Busy, Fatal, StartError, StoreOwned
from gateway.export import ExportError
from gateway.initialise import (
    DEFAULT_DEV_ORIGIN,
    LEDGER_FILE,
    InitialiseError,
    Made,
    Plan,
    default_authorities,
    initialise,
)
from gateway.web import logs
from gateway.web.limits import UnsafeParser
from keys.files import KeyFileError
from keys.publish import PublishError
from verifier.entries import PARAMETER_DEFAULTS
from verifier.wire import Malformed

NUMBER_DIGITS_MAX = 15
_EXPECTED = (
    SettingError,
    InitialiseError,
    StartError,
    ExportError,
    StoreOwned,
    Fatal,
    Busy,
    KeyFileError,
    PublishError,
    Malformed,
    UnsafeParser,
    OSError,
    sqlite3.Error,
)
_ADVICE: Mapping[int, str] = {
    errno.ENOENT: "does not exist, or its folder does not; check the path, or make the folder first",
    errno.EACCES: "may not be used by this user; change owner or mode, or choose another place",
    errno.EPERM: "may not be used by this user; change owner or mode, or choose another place",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOTDIR: "leads through a file as if it were a folder; check the path",
    errno.EEXIST: "exists already; choose another place",
    errno.ENOSPC: "can't be written, for the disk is full; make room or choose another place",
    errno.EROFS: "lies on a disk that is read-only; choose another place",
}


def guarded(name: str, run: Callable[[], None]) -> int:
    """Return 0, or print what went wrong in a sentence and return 1."""
    try:
        run()
    except _EXPECTED as error:
        print(f"tallystick {name}: {_sentence(error)}", file=sys.stderr)
        return 1
    return 0


def _sentence(error: Exception) -> str:
    """Return what went wrong and what to do; the house's own errors say it themselves."""
    if isinstance(error, sqlite3.Error):
        return f"the ledger can't be read ({error}); is it a ledger.sqlite3 of this version, and is the disk well?"
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    path = str(error.filename or "a file").removesuffix(".new")  # a copy is written beside its place first
    return f"{path} {_ADVICE.get(error.errno, f'failed ({error.strerror}); check the path and the disk')}"


# -- init --------------------------------------------------------------------------------------------------------------


def init(argv: Sequence[str]) -> int:
    """Make a ledger and tell what to do with its keys."""
    parser = argparse.ArgumentParser(
        prog="tallystick init", description="Make a ledger: keys, entry 0, key document, the operator's profile."
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="data directory; must not exist yet")
    parser.add_argument("--origin", required=True, help="the ledger's name for ever, such as gateway.example/main")
    _add_opening(parser)
    parser.add_argument(
        "--store", metavar="URL", help="keep the ledger in PostgreSQL: postgresql://USER@HOST:PORT/DATABASE"
    )
    parser.add_argument(
        "--durability", choices=DURABILITIES, help="what its commits must survive there (default: a lost server, too)"
    )
    parser.add_argument("--public", action="store_true", help="let everybody read entries and receipts")
    parser.add_argument("--dev", action="store_true", help="a throw-away ledger: public, enrols any key that asks")
    arguments = parser.parse_args(argv)
    return guarded("init", lambda: _print_made(_make(arguments, arguments.origin, is_dev=arguments.dev)))


def _add_opening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--listen", default=None, metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8420)")
    parser.add_argument("--metrics-port", type=int, default=None, metavar="N", help="loopback port of metrics, 0: none")
    parser.add_argument(
        "--authority",
        action="append",
        metavar="HOST[:PORT]",
        help="a name that clients sign requests for; repeatable (default: the origin's host and the listen address)",
    )
    parser.add_argument(
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"a parameter of entry 0, fixed for ever: {', '.join(PARAMETER_DEFAULTS)}",
    )


def _make(arguments: argparse.Namespace, origin: str, *, is_dev: bool) -> Made:
    logging.getLogger("tallystick").addHandler(logging.NullHandler())  # what the store warns of, the start says again
    settings = overridden(Settings(metrics_port=0) if is_dev else Settings(), arguments)
    plan = Plan(
        folder=arguments.data,
        origin=origin,
        settings=settings,
        is_dev=is_dev,
        authorities=tuple(arguments.authority or default_authorities(origin, settings)),
        is_public=is_dev or getattr(arguments, "public", False),
        parameters=_parameters(arguments.parameter),
    )
    return initialise(plan, Clock().now_ms())


def overridden(settings: Settings, arguments: argparse.Namespace) -> Settings:
    """Return the settings with what the command line says instead."""
    named: dict[str, object] = {}
    if arguments.listen is not None:
        host, _, port = arguments.listen.rpartition(":")
        if not host or not port:
            raise SettingError(f"--listen is HOST:PORT, such as 127.0.0.1:8420; found {arguments.listen[:40]!r}")
        named |= {"listenHost": host.strip("[]"), "listenPort": int(port) if port.isdecimal() else port}
    options = {"metricsPort": "metrics_port", "store": "store", "durability": "durability"}
    said = {name: getattr(arguments, option, None) for name, option in options.items()}
    named |= {name: value for name, value in said.items() if value is not None}
    checked = settings_from(named, "the command line")
    changes = {row.attribute: getattr(checked, row.attribute) for row in SETTINGS if row.name in named}
    return replace(settings, **changes)


def _parameters(texts: Sequence[str]) -> Parameters:
    members = dict(PARAMETER_DEFAULTS)
    for text in texts:
        name, _, number = text.partition("=")
        if name not in members or not (number.isascii() and number.isdecimal() and len(number) <= NUMBER_DIGITS_MAX):
            raise InitialiseError(
                f"--parameter is NAME=N with a whole number and a name of {', '.join(PARAMETER_DEFAULTS)}; "
                f"found {text[:60]!r}"
            )
        members[name] = int(number)
    check_parameters(members)
    return Parameters.from_members({**members})


def _print_made(made: Made) -> None:
    folder = made.folder
    print(
        f"""\
Made the ledger in {folder}.

  root key   {made.root_vkey}
  genesis    {made.genesis.hex()}
  operator   {made.operator}

Move offline now, and keep two copies: {folder}/root/ (root.key, root.pass). It signs key documents and nothing else.
Move to the operator's machine: {folder}/operator/ (a client profile that may add and remove agents and
operators, issue API keys, set schemes and break leases).
Give the root key above to your users by another way than this server.

Next:
  tallystick serve --data {folder}
  tallystick agent add DID --name LABEL --home {folder}/operator
  {_join_command(made)}{_proxy_rule(made)}"""
    )


def _proxy_rule(made: Made) -> str:
    scheme, _, authority = made.url.partition("://")
    if scheme == "http":
        return ""
    return f"\n\nThe proxy in front, which has the TLS, must pass the header `Host: {authority}` on unchanged."


# -- serve -------------------------------------------------------------------------------------------------------------


def serve(argv: Sequence[str]) -> int:
    """Run the gateway in the foreground."""
    parser = argparse.ArgumentParser(
        prog="tallystick serve", description="Run the gateway of a data directory until SIGTERM or SIGINT."
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data directory")
    parser.add_argument("--dev", action="store_true", help="make a throw-away ledger there when there is none")
    parser.add_argument(
        "--accept-clock",
        action="store_true",
        help="start although this machine's clock is behind the ledger's, because the ledger's is the wrong one, or is "
        "behind the newest time that a witness signed or more than a day after it",
    )
    parser.add_argument(
        "--accept-manner",
        action="store_true",
        help="start although other nodes of the ledger have another durability or another cedarpy, because all are to "
        "have this one's; they decide nothing until they are started anew with the same",
    )
    parser.add_argument("--origin", default=DEFAULT_DEV_ORIGIN, help=f"with --dev: its name ({DEFAULT_DEV_ORIGIN})")
    _add_opening(parser)
    arguments = parser.parse_args(argv)
    return guarded("serve", lambda: _serve(arguments))


def _serve(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.data
    made = None
    if arguments.dev and not any((folder / name).exists() for name in (LEDGER_FILE, SETTINGS_FILE)):
        check_ports(overridden(Settings(metrics_port=0), arguments))  # a ledger names its address for ever
        made = _make(arguments, arguments.origin, is_dev=True)
    settings = overridden(load_settings(folder), arguments)
    logs.configure(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            serve_until_stopped(
                folder,
                settings,
                is_clock_accepted=arguments.accept_clock,
                is_manner_accepted=arguments.accept_manner,
                is_address_told=arguments.listen is not None,
                on_listening=lambda: _print_joining(made),
            )
        )


def _print_joining(made: Made | None) -> None:
    if made is not None:
        print(f"A throw-away ledger with throw-away keys: any key may join.\n\n  {_join_command(made)}\n", flush=True)


def _join_command(made: Made) -> str:
    return f"tallystick join {made.url} --root @{made.folder}/public/root.vkey"
