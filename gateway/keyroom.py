"""What the data directory has of the ledger's keys: the private ones in `keys/`, the published forms in `public/`.

Both may change while the gateway runs: a rotation puts a key file into `keys/` and publishes a new document. Which key
signs is the ledger's to say, never the folder's (signer.py), so a file that lies there too much or too early does
nothing.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.errors import StartError
from gateway.signer import Signer, key_name
from keys.files import KeyFileError, load_key
from keys.publish import read_forms
from keys.signing import SigningKey
from verifier.entries import PURPOSES
from verifier.keyring import KeyDocument, KeyLine, open_key_document
from verifier.note import VerifierKey, make_vkey
from verifier.wire import Malformed

KEYS, PUBLIC, SEAL_KEY = "keys", "public", "seal.key"
_NUMBERED = r"{purpose}(?:\.[1-9][0-9]{{0,5}})?\.key"
# By the status that the document should show: the command that, run again, publishes it.
_PUBLISHING = {"active": "rotate", "retired": "retire", "compromised": "compromise"}
_log = logging.getLogger("tallystick.keys")


def key_files(folder: Path, purpose: str) -> list[Path]:
    """Return the key files of a purpose in `keys/` of a data directory: `log.key`, then `log.2.key` and so on."""
    pattern = re.compile(_NUMBERED.format(purpose=purpose))
    found = (path for path in (folder / KEYS).iterdir() if pattern.fullmatch(path.name))
    return sorted(found, key=lambda path: (len(path.name), path.name))


def load_signer(folder: Path, origin: str) -> Signer:
    """Return a signer with all private keys of a data directory. StartError or KeyFileError when one can't be used."""
    found = {purpose: [load_key(path, purpose=purpose) for path in key_files(folder, purpose)] for purpose in PURPOSES}
    seal = load_key(folder / KEYS / SEAL_KEY, purpose="seal")
    for purpose, keys in found.items():
        if not keys:
            raise StartError(f"{folder / KEYS} has no {purpose} key; bring back {purpose}.key and its passphrase")
    every = [key.public_key for keys in (*found.values(), [seal]) for key in keys]
    if len(set(every)) < len(every):
        raise StartError(f"{folder / KEYS} has one key twice, under two names; take the wrong file away")
    return Signer(origin, log=found["log"], receipt=found["receipt"], seal=seal)


class KeyFolder:
    """The private keys of a running gateway, those included that are put there meanwhile."""

    def __init__(self, folder: Path, signer: Signer) -> None:
        self._folder = folder
        self._signer = signer

    def has(self, purpose: str, key: VerifierKey) -> bool:
        """Say whether the private half of a key of this purpose is here; one that came just now is taken along."""
        if not self._signer.has(key):
            self._look_again(purpose, key)
        return self._signer.has(key)

    def _look_again(self, purpose: str, wanted: VerifierKey) -> None:
        for path in key_files(self._folder, purpose):
            try:
                key = load_key(path, purpose=purpose)
            except KeyFileError as error:
                _log.warning("a key file can't be used: %s", error)
                continue
            if self._vkey(purpose, key) != wanted:
                continue
            if self._signer.is_used(key.public_key):
                _log.warning("the key in %s is used for something else here, and a key has one purpose", path)
            else:
                self._signer.take(purpose, key)

    def _vkey(self, purpose: str, key: SigningKey) -> VerifierKey:
        return make_vkey(key_name(self._signer.origin, purpose), key.public_key)


class PublicFolder:
    """The published forms, read again when a new set of them was published. What does not fit is not served."""

    def __init__(self, folder: Path, root: VerifierKey, origin: str, genesis: bytes) -> None:
        """StartError unless what is published now is of this ledger and its root."""
        self._folder = folder / PUBLIC
        self._root, self._origin, self._genesis = root, origin, genesis
        self._mark = self._look()
        try:
            self._document, self._forms = self._open()
        except Malformed as error:
            raise StartError(
                f"{self._folder} holds the keys of another ledger, or damaged ones: {error}; restore the newest folder"
                " that was published"
            ) from error

    @property
    def document(self) -> KeyDocument:
        """Return the newest document that was published."""
        self._refresh()
        return self._document

    def form(self, name: str) -> Callable[[], bytes]:
        """Return what gives the newest bytes of one published file."""

        def newest() -> bytes:
            self._refresh()
            return self._forms.get(name, b"")

        return newest

    def _refresh(self) -> None:
        mark = self._look()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            document, forms = self._open()
            if document.version < self._document.version:
                raise Malformed(f"version {document.version} is older than {self._document.version}")
        except Malformed as error:
            _log.error("what was published just now is not served: %s", error)
            return
        self._document, self._forms = document, forms
        _log.info("serving version %d of the key document", document.version)

    def _look(self) -> tuple[int, int]:
        """Return what changes when another set is published: which file keys.note is."""
        try:
            found = os.stat(self._folder / "keys.note")
        except OSError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def _open(self) -> tuple[KeyDocument, dict[str, bytes]]:
        forms = read_forms(self._folder)
        document = open_key_document(forms.get("keys.note", b""), self._root)
        if (document.origin, document.genesis) != (self._origin, self._genesis):
            raise Malformed("keys.note is of another ledger")
        return document, forms


def unpublished(document: KeyDocument, lines: Sequence[KeyLine]) -> list[KeyLine]:
    """Return the lines of the ledger that a document does not show, or shows otherwise."""
    shown = {(line.key, line.from_size, line.to_size, line.status) for line in document.keys}
    return [line for line in lines if (line.key, line.from_size, line.to_size, line.status) not in shown]


def warn_of_unpublished(document: KeyDocument, lines: Sequence[KeyLine], folder: Path) -> None:
    """Tell the operator when readers are told something else of the keys than the ledger says."""
    for line in unpublished(document, lines):
        command = f"tallystick keys {_PUBLISHING[line.status]} --data {folder}"
        _log.warning(
            "version %d of the key document does not show that the %s key %s is %s; publish it with: %s",
            document.version, line.purpose, line.key.vkey, line.status, command,
        )  # fmt: skip
