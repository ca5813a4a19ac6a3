"""Texts that stay with their author: the ledger gets a salted digest, and the text and its salt lie beside the receipt.

The salt is 32 random bytes, so nobody guesses the text from the digest, however short it is. It never leaves this
machine. Who gets receipt and companion file can check that the text is the one that was meant; erasing the companion's
salt makes that impossible for ever, and leaves the receipt as good as it was.
Source: docs/protocol.md 34; verifier/private.py.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from gateway.client.receipts import VerifiedReceipt
from gateway.client.seen import read_bounded
from keys.files import replace_file
from verifier.private import PRIVATE_TYPE, SALT_BYTES, Field, open_private
from verifier.wire import RECEIPT_BYTES_MAX, JsonObject, JsonValue, Malformed, encode_base64

REASON = "reasonDigest"
VALUE_CHARACTERS_MAX = 4_096
_OWN_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Private:
    """A text that is not to stand in the ledger, and its salt; neither is shown by `repr`."""

    value: str = field(repr=False)
    salt: bytes = field(repr=False)
    name: str = REASON

    @classmethod
    def of(cls, value: str, name: str = REASON) -> Private:
        """Return a text with a fresh salt. Malformed: empty, or longer than VALUE_CHARACTERS_MAX."""
        if not 1 <= len(value) <= VALUE_CHARACTERS_MAX:
            raise Malformed(f"a private text has 1 to {VALUE_CHARACTERS_MAX:,} characters, this one has {len(value)}")
        return cls(value, secrets.token_bytes(SALT_BYTES), name)

    @property
    def digest(self) -> str:
        """Return what is signed and stands in the ledger: hex SHA-256 of salt and text."""
        return sha256(self.salt + self.value.encode()).hexdigest()


def companion_path(receipt: Path) -> Path:
    """Return where the texts of a receipt lie."""
    return receipt.with_name(f"{receipt.name}.private")


def save_private(path: Path, receipt: VerifiedReceipt, *texts: Private) -> Path:
    """Write the texts of a receipt that was, or will be, saved at `path`; return where. OSError when it can't be done.

    In a command of a batch the verifier takes the command's own digests.
    """
    rows: list[JsonValue] = [
        {"name": text.name, "salt": encode_base64(text.salt), "value": text.value} for text in texts
    ]
    companion = companion_path(path)
    _replace(companion, {"type": PRIVATE_TYPE, "leafHash": receipt.leaf_hash.hex(), "fields": rows})
    return companion


def read_private(path: Path) -> tuple[bytes, tuple[Field, ...]]:
    """Return the leaf hash and the texts of a companion file. Malformed when it is none or can't be read."""
    try:
        return open_private(read_bounded(path, RECEIPT_BYTES_MAX))
    except OSError as error:
        raise Malformed(f"{path} can't be read: {error.strerror}") from error


def erase_private(path: Path) -> int:
    """Erase salts and texts of a companion file for ever and return how many; names and leaf hash stay.

    The old bytes are written over before the file is replaced. What a file system or a back-up keeps of them is beyond
    a program's reach.
    """
    digest, fields = read_private(path)
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())
    rows: list[JsonValue] = [
        {"name": one.name, "salt": None, **({} if one.index is None else {"index": one.index})} for one in fields
    ]
    _replace(path, {"type": PRIVATE_TYPE, "leafHash": digest.hex(), "fields": rows})
    return sum(one.salt is not None for one in fields)


def _replace(path: Path, content: JsonObject) -> None:
    replace_file(path, json.dumps(content, indent=2).encode() + b"\n", _OWN_MODE)


# -- for commands ------------------------------------------------------------------------------------------------------


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Add --reason-text and --reason-file; the text is never an argument, which other users of a machine can read."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--reason-text", action="store_true",
        help="ask on the terminal for a reason in words: the ledger gets a salted digest of it, and text and salt are "
        "kept beside the file of --receipt",
    )  # fmt: skip
    how.add_argument("--reason-file", type=Path, metavar="FILE", help="the same with the text of a file; - for stdin")


def asked_reason(arguments: argparse.Namespace) -> Private | None:
    """Return the reason that the command line asks for; None without one. Malformed: nowhere to keep it, or none."""
    if not getattr(arguments, "reason_text", False) and getattr(arguments, "reason_file", None) is None:
        return None
    if arguments.receipt is None:
        raise Malformed("a reason in words is kept beside the receipt: name a file with --receipt; nothing was sent")
    return Private.of(_asked() if arguments.reason_text else _from_file(arguments.reason_file))


def _asked() -> str:
    if not sys.stdin.isatty():
        raise Malformed("--reason-text asks on a terminal, and this is none: use --reason-file FILE, or - for stdin")
    print("Reason (kept here, the ledger gets a digest): ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().removesuffix("\n")


def _from_file(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read(RECEIPT_BYTES_MAX) if str(path) == "-" else read_bounded(path)
        return content.decode().removesuffix("\n")
    except OSError as error:
        raise Malformed(f"--reason-file: {path} can't be read: {error.strerror}; nothing was sent") from error
    except UnicodeDecodeError as error:
        raise Malformed(f"--reason-file: {path} is not UTF-8 text; nothing was sent") from error
