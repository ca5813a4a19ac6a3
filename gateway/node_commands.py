"""`tallystick node add`: makes the data directory of one more node of a ledger in PostgreSQL.

A node needs the private keys that sign, those that it keeps for agents, and what is published. It never needs the root
or the operator: these stay where they are.
Source: docs/operating.md, several nodes.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gateway.administration import guarded, overridden
from gateway.app import open_ledger
from gateway.config import Settings, load_settings, save_settings
from gateway.errors import StartError
from gateway.initialise import InitialiseError
from gateway.keyroom import KEYS, PUBLIC
from gateway.ledger.cosigned import WITNESSES_FILE
from gateway.service import Ledger
from gateway.stores import open_reader
from keys.files import CUSTODY, sync_folder

_EPILOG = """\
The new directory holds private keys: bring it to the other machine as you would a key (scp -rp, rsync -a), and remove
it here. What changes on one node later, the others need as well, and it is for you to bring it there: files in keys/
and custody/, the folder that public leads to with the link itself, and witnesses.txt."""


def main(argv: Sequence[str]) -> int:
    """Run one of the commands on nodes."""
    parser = argparse.ArgumentParser(prog="tallystick node", description="Several gateways on one ledger.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="add")
    add = commands.add_parser(
        "add", help="make the data directory of one more node", epilog=_EPILOG,
        description="Copy what another gateway of a ledger in PostgreSQL needs, and nothing else.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add.add_argument("--data", type=Path, required=True, metavar="DIR", help="the data directory of a node")
    add.add_argument("--out", type=Path, required=True, metavar="NEWDIR", help="the new one; must not exist yet")
    add.add_argument("--listen", default=None, metavar="HOST:PORT", help="where the new node listens (default: as DIR)")
    add.add_argument(
        "--metrics-port", type=int, default=None, metavar="N", help="its loopback port of metrics, 0: none"
    )
    arguments = parser.parse_args(argv)
    return guarded("node add", lambda: _add(arguments))


def _add(arguments: argparse.Namespace) -> None:
    settings = load_settings(arguments.data)
    if not settings.store:
        raise StartError(
            f"the ledger of {arguments.data} is in a file, which has one gateway. Move it into PostgreSQL first:"
            f" tallystick db copy --data {arguments.data} --store URL"
        )
    settings = overridden(settings, arguments)
    with closing(open_reader(arguments.data, settings)) as reader:
        ledger = open_ledger(reader)
    if ledger.is_dev:
        raise StartError("a throw-away ledger enrols whoever comes, with its operator's key, on one node")
    if os.path.lexists(arguments.out):
        raise InitialiseError(f"{arguments.out} exists; nothing is overwritten. Choose another directory.")
    copy_node(arguments.data, arguments.out, settings)
    _tell(arguments.out, ledger, settings)


def copy_node(source: Path, folder: Path, settings: Settings) -> None:
    """Make the data directory `folder` of a node with these settings, from that of another one; whole or not at all."""
    stage = folder.with_name(f".{folder.name}.new-{secrets.token_hex(4)}")
    stage.mkdir(mode=0o700, parents=True)
    try:
        for name in (KEYS, CUSTODY):
            shutil.copytree(source / name, stage / name)
        published = (source / PUBLIC).resolve()
        shutil.copytree(published, stage / published.name)
        if published.name != PUBLIC:
            (stage / PUBLIC).symlink_to(published.name)
        if (source / WITNESSES_FILE).exists():
            shutil.copy2(source / WITNESSES_FILE, stage / WITNESSES_FILE)
        save_settings(stage, settings)
        os.replace(stage, folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _tell(folder: Path, ledger: Ledger, settings: Settings) -> None:
    here = f"{settings.listen_host}:{settings.listen_port}"
    names = ", ".join(sorted(ledger.authorities))
    print(
        f"""\
Made the data directory of one more node of {ledger.origin} in {folder}.

It holds the ledger's private keys: move it to its machine as you would a key, and keep no copy here.

Next, there:
  tallystick db check --data {folder.name}
  tallystick serve --data {folder.name}
"""
    )
    if here in ledger.authorities:
        return
    print(
        f"Requests are signed for {names}, and entry 0 does not name {here}: clients come through a proxy that passes\n"
        "the header Host on unchanged to whichever node it likes."
    )
