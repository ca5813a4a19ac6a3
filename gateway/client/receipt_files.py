"""`tallystick receipt export | private`: a receipt for tools that don't know ours, and the private texts beside one.

An export is weaker than the receipt: it is the exporter's word, without the ledger's signatures, witnesses and the
agent's request. The command says so each time. Nothing here needs the gateway.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from gateway.adapters.material import PURPOSE, Exporter, Material, NotExported, verified
from gateway.client.errors import AnswerRefused
from gateway.client.exits import DONE, shown
from gateway.client.private import erase_private, read_private
from gateway.client.profile import open_profile
from gateway.client.seen import read_bounded
from gateway.client.terminal import sub_parser
from keys.files import KeyFileError, load_key, replace_file
from verifier.wire import RECEIPT_BYTES_MAX, JsonValue, Malformed

Verbs = argparse._SubParsersAction  # argparse has no other name for it
_WEAKER = (
    "This is your word, not the ledger's: who reads it trusts the key that you signed with. It has no quorum of "
    "witnesses, and the agent's request is not checked by its reader. Hand on the receipt itself where you can."
)


def add_export(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `receipt export`."""
    export = sub_parser(
        verbs, "export", "Write a receipt for other tools",
        "It is verified first, under the pins of the profile; then you sign, with a key of your own, what was found. "
        "in-toto: a Statement in a DSSE envelope. cose: a COSE receipt of inclusion, with the leaf in a file beside.",
    )  # fmt: skip
    export.add_argument("file", type=Path, metavar="FILE", help="the receipt")
    export.add_argument("--format", required=True, choices=("in-toto", "cose"), help="what the reader understands")
    export.add_argument(
        "--key", required=True, type=Path, metavar="KEY", help=f"your key (tallystick keys new --purpose {PURPOSE})"
    )
    export.add_argument("--out", required=True, type=Path, metavar="OUT", help="the file to write; must not exist yet")
    export.set_defaults(handler=_export)


def add_private(verbs: Verbs[argparse.ArgumentParser]) -> None:
    """Add `receipt private`."""
    private = sub_parser(
        verbs, "private", "Show, or erase for ever, the private texts of a receipt",
        "They lie in the file FILE.private beside the receipt FILE, and nowhere else. Without them the receipt is as "
        "good as ever; nobody can say any more what the texts were.",
    )  # fmt: skip
    private.add_argument("file", type=Path, metavar="FILE", help="the file with the texts, such as r.json.private")
    private.add_argument("--erase", action="store_true", help="erase salts and texts; this can't be undone")
    private.set_defaults(handler=_private)


# -- export ------------------------------------------------------------------------------------------------------------


async def _export(arguments: argparse.Namespace) -> int:
    _check_free(arguments.out)
    write = _writer(arguments.format)
    keyring = open_profile(arguments.home).keyring
    try:
        material = verified(read_given(arguments.file, RECEIPT_BYTES_MAX), keyring)
        exporter = Exporter(load_key(arguments.key, purpose=PURPOSE))
    except NotExported as error:
        raise AnswerRefused(f"the receipt does not verify, so nothing was exported:\n{error}") from error
    except KeyFileError as error:
        raise Malformed(f"--key: {error}") from error
    files = [(arguments.out, write(material, exporter))]
    if arguments.format == "cose":  # its reader hashes the leaf itself
        files.append((arguments.out.with_name(f"{arguments.out.name}.leaf"), material.leaf_bytes))
    for path, content in files:
        _write(path, content)
    _tell(arguments, material, exporter, [path for path, _ in files])
    return DONE


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise Malformed(f"--out: {path} exists; name another file")


def _writer(name: str) -> Callable[[Material, Exporter], bytes]:
    """Return what writes a format; Malformed when its package is not here."""
    if name == "in-toto":
        from gateway.adapters import intoto

        return intoto.export
    try:
        from gateway.adapters import cose
    except ModuleNotFoundError as error:
        raise Malformed(
            f"{error.name} is not installed. Install what --format cose needs:\n    pip install 'tallystick[export]'"
        ) from error
    return cose.export


def _tell(arguments: argparse.Namespace, material: Material, exporter: Exporter, paths: list[Path]) -> None:
    if arguments.json:
        facts = {"seq": material.leaf.seq, "level": material.level, "exporter": exporter.key.did}
        print(json.dumps({"ok": True, **facts, "files": [str(path) for path in paths], "warning": _WEAKER}))
        return
    print(f"entry {material.leaf.seq} of {material.leaf.origin} ({material.level}): {' and '.join(map(str, paths))}")
    print(f"signed by {exporter.key.did}\n{_WEAKER}")


# -- private -----------------------------------------------------------------------------------------------------------


async def _private(arguments: argparse.Namespace) -> int:
    digest, fields = read_private(arguments.file)
    if arguments.erase:
        try:
            count = erase_private(arguments.file)
        except OSError as error:
            raise Malformed(f"{arguments.file} can't be written: {error.strerror}") from error
        said = f"{count} erased from {arguments.file}; copies and back-ups of that file are for you to find"
        print(json.dumps({"ok": True, "erased": count}) if arguments.json else said)
        return DONE
    if arguments.json:
        rows: list[JsonValue] = [
            {"name": one.name, "index": one.index, "value": one.value if one.salt is not None else None}
            for one in fields
        ]
        print(json.dumps({"ok": True, "leafHash": digest.hex(), "fields": rows}))
        return DONE
    for one in fields:
        print(f"{shown(one.name)}: {shown(one.value) if one.salt is not None else 'erased'}")
    return DONE


# -- files -------------------------------------------------------------------------------------------------------------


def read_given(path: Path, bytes_max: int) -> bytes:
    """Return a file that somebody named, of at most so many bytes; Malformed says why it can't be had."""
    try:
        return read_bounded(path, bytes_max)
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error


def _write(path: Path, content: bytes) -> None:
    try:
        replace_file(path, content)
    except OSError as error:
        raise Malformed(f"--out: {path} can't be written: {error.strerror}") from error
