"""API keys on their way between a person, a file and the environment: never an argument where that can be helped.

Every user of a machine can read the arguments of its processes. So a token comes from a file (`@FILE`) or from
$TALLYSTICK_API_KEY, and goes to a file of mode 0600 or, once, to standard output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gateway.client.errors import ProfileError
from gateway.client.seen import read_bounded
from keys.token import kind_of
from verifier.wire import Malformed

VARIABLE = "TALLYSTICK_API_KEY"
_FILE_BYTES_MAX = 4_096


def read_token(text: str | None) -> str:
    """Return the token of an option: in @FILE, in the environment (None), or the text itself, of which we warn.

    Malformed when there is none, or when it is not spelled as one; nothing of it is repeated.
    """
    token = _token(text)
    if kind_of(token) is None:
        raise Malformed(f"this is no API key as one is spelled ({len(token)} characters); copy it again, unchanged")
    return token


def _token(text: str | None) -> str:
    if text is None:
        token = os.environ.get(VARIABLE, "").strip()
        if not token:
            raise Malformed(f"name the API key: --key @FILE, or set {VARIABLE}")
        return token
    if text.startswith("@"):
        try:
            return read_bounded(Path(text[1:]), _FILE_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it holds no API key"
            raise Malformed(f"{text[1:]} can't be read: {why}") from error
    print(f"other users of this machine can read an API key given like that; use @FILE or {VARIABLE}", file=sys.stderr)
    return text


def check_new(path: Path | None) -> None:
    """ProfileError when a token could not be kept there: better said before it is issued than after."""
    if path is None:
        return
    if os.path.lexists(path):
        raise ProfileError(f"{path} exists, and nothing is overwritten: name another file. Nothing was sent.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ProfileError(f"{path} can't be written: choose another folder. Nothing was sent.")


def write_token(path: Path, token: str) -> None:
    """Write a new file that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii") as file:
            file.write(f"{token}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ProfileError(f"{path} can't be written: {error.strerror}") from error
