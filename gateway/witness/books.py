"""Which logs a witness answers for: the file `logs.txt`, read again whenever it changes.

    log <vkey> [<url>]        a key that signs checkpoints of the origin it is named after; several are allowed
    replay <root vkey> <url>  a ledger that is mirrored and audited before anything of it is cosigned

An origin stands under `log` or under `replay`, never both: the stricter word must not be undone by another line.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keys.files import replace_file
from verifier.note import KIND_ED25519, VerifierKey, is_key_name, parse_vkey
from verifier.wire import TEXT_BYTES_MAX, Malformed, decode_text

LOGS_FILE = "logs.txt"
LOGS_BYTES_MAX = 16 * TEXT_BYTES_MAX
_URL = re.compile(r"https?://[!-~]{1,512}")
_log = logging.getLogger("tallystick.witness")


@dataclass(frozen=True, slots=True)
class Log:
    """What is pinned for one origin: its log keys, or for a replay its root key and where its tiles are."""

    origin: str
    keys: tuple[VerifierKey, ...] = ()
    url: str = ""
    root: VerifierKey | None = None


def parse_logs(data: bytes) -> dict[str, Log]:
    """Return the logs of a file by origin. Malformed names the line and the broken rule."""
    logs: dict[str, Log] = {}
    for number, row in enumerate(decode_text(data, bytes_max=LOGS_BYTES_MAX).split("\n"), 1):
        words = row.split(" ")
        if row.strip(" ") and not row.startswith("#"):
            try:
                _read(logs, [word for word in words if word])
            except Malformed as error:
                raise Malformed(f"{LOGS_FILE} line {number}: {error}") from error
    uses = [key.public_key for log in logs.values() for key in (*log.keys, *([log.root] if log.root else []))]
    if len(set(uses)) != len(uses):
        raise Malformed(f"{LOGS_FILE}: one public key stands in two lines")
    return logs


def _read(logs: dict[str, Log], words: list[str]) -> None:
    match words:
        case ["log", vkey] | ["log", vkey, _]:
            key = _key(vkey)
            log = logs.get(key.name, Log(key.name))
            if log.root is not None:
                raise Malformed("the origin stands in a replay line, too")
            url = _url(words[2]) if len(words) == 3 else log.url
            logs[key.name] = Log(key.name, (*log.keys, key), url)
        case ["replay", vkey, url]:
            root = _key(vkey)
            origin = root.name.removesuffix("/root")
            if origin == root.name or not is_key_name(origin):
                raise Malformed("a root key is named <origin>/root")
            if origin in logs:
                raise Malformed("the origin stands in an earlier line")
            logs[origin] = Log(origin, (), _url(url), root)
        case _:
            raise Malformed("expected `log <vkey> [<url>]` or `replay <root vkey> <url>`")


def _key(text: str) -> VerifierKey:
    key = parse_vkey(text)
    if key.kind != KIND_ED25519:
        raise Malformed("the vkey must be of kind 1; kind 4 is a witness's")
    return key


def _url(text: str) -> str:
    if _URL.fullmatch(text) is None:
        raise Malformed("an address begins with http:// or https://")
    return text.rstrip("/")


class Books:
    """The logs of a running witness. A file that was damaged by an edit changes nothing until it is repaired."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOGS_FILE
        self._seen: tuple[int, int, int] | None = None
        self._logs: Mapping[str, Log] = {}
        self._logs = parse_logs(self._path.read_bytes())
        self._seen = self._stamp()

    def get(self, origin: str) -> Log | None:
        """Return what is pinned for `origin` at this moment."""
        return self.logs.get(origin)

    @property
    def logs(self) -> Mapping[str, Log]:
        """The logs by origin; one look at the file's time and size, and nothing more while it is as it was."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._logs = parse_logs(self._path.read_bytes())
                _log.info("logs_read", extra={"fields": {"logs": len(self._logs)}})
            except (Malformed, OSError) as error:
                _log.error("logs_unreadable: %s; the lines read before still hold", error)
        return self._logs

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def add_line(folder: Path, line: str) -> None:
    """Add a line to `logs.txt` in one durable step, once the file with it reads well; Malformed changes nothing."""
    path = folder / LOGS_FILE
    before = path.read_bytes()
    after = before + (b"" if before.endswith(b"\n") or not before else b"\n") + f"{line}\n".encode()
    parse_logs(after)
    replace_file(path, after)
