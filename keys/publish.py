"""Publishes a key document in every form at once: stage, read back through the verifier, then one `os.replace`.

House rules of this file:

* One source: every form is made from one KeyDocument, never edited by hand, never merged with what lies there.
* The published folder is a symbolic link to a folder named by version. A new set becomes visible by replacing that
  link, which is atomic: a reader or a power cut meets the old set or the new one, never half of each. Older folders
  stay, because the next version needs its predecessor's hash.
* The version never goes back, and a folder never changes ledger or root. A thief of the log key gains nothing by
  publishing, since readers check the root's signature; the rules here guard the operator against himself.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from keys.files import sync_folder
from keys.forms import (
    FORM_FILES,
    NOTE_FILE,
    check_forms,
    did_document,
    jwks,
    policy_text,
    published_forms,
    root_vkey,
    signed_key_document,
)
from keys.retention import RETENTION_FILE
from keys.signing import SigningKey
from verifier.keyring import KeyDocument, key_document_text, open_key_document
from verifier.note import VerifierKey
from verifier.wire import TEXT_BYTES_MAX, Malformed

__all__ = [
    "PublishError",
    "did_document",
    "document_hash",
    "jwks",
    "policy_text",
    "publish",
    "read_forms",
    "root_vkey",
    "signed_key_document",
]


class PublishError(Exception):
    """Nothing was published, and what was published before is untouched. The text says what to do next."""


def document_hash(document: KeyDocument) -> bytes:
    """Return the 32-byte SHA-256 of the document's text, which its successor names as `previous`."""
    return hashlib.sha256(key_document_text(document).encode("utf-8")).digest()


def publish(folder: Path, document: KeyDocument, root: SigningKey) -> None:
    """Publish `document`, signed by `root`, as `folder`; durable and visible as a whole on return.

    `folder` may not exist yet, be empty, or be what an earlier call made. PublishError when the set does not read back
    as it should, the version would go back, or the folder belongs to another ledger or root.
    """
    key = root_vkey(document.origin, root.public_key)
    forms = published_forms(document, signed_key_document(document, root), key)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        _check_successor(folder, document, key)
        stage = _stage(folder, document.version, {**forms, **_retained(folder)})
        try:
            _check_stage(stage, document, key)
            _switch(folder, stage)
        except BaseException:
            if not _is_published(folder, stage):
                shutil.rmtree(stage, ignore_errors=True)
            raise


def read_forms(folder: Path) -> dict[str, bytes]:
    """Return the published files of `folder` by name; one that is missing, a link or too long is left out.

    The link is followed once, so all files are of one set, whatever is published meanwhile.
    """
    here = folder.resolve()
    found = {name: _read(here / name) for name in FORM_FILES}
    return {name: content for name, content in found.items() if content is not None}


def _read(path: Path) -> bytes | None:
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
            content = file.read(TEXT_BYTES_MAX + 1)
    except OSError:
        return None
    return content if len(content) <= TEXT_BYTES_MAX else None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one publisher at a time look at the version and replace it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_successor(folder: Path, document: KeyDocument, root: VerifierKey) -> None:
    """Refuse to replace anything but an earlier version of the same ledger's keys under the same root."""
    if not os.path.lexists(folder) or _is_empty(folder):
        return
    if not folder.is_symlink():
        raise PublishError(
            f"{folder} is not a folder that this command made, so it can't be replaced as a whole. Choose a new path; "
            f"if it holds published keys: mv {folder} {folder}.old && ln -s {folder.name}.old {folder}"
        )
    try:
        current = open_key_document(_read(folder / NOTE_FILE) or b"", root)
    except Malformed as error:
        raise PublishError(
            f"{folder / NOTE_FILE} does not open under this root key of {document.origin}: {error}. Use the root key "
            f"and origin it was published with, or choose a new path."
        ) from error
    _check_version(current, document, folder)


def _is_empty(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and next(folder.iterdir(), None) is None


def _check_version(current: KeyDocument, document: KeyDocument, folder: Path) -> None:
    if document.version <= current.version:
        raise PublishError(
            f"{folder} already holds version {current.version}, and a version never goes back. Publish version "
            f"{current.version + 1} with --previous {folder / NOTE_FILE}"
        )
    if document.genesis != current.genesis:
        raise PublishError(f"{folder} belongs to a ledger with another genesis. Choose a new path for a new ledger.")
    if document.version == current.version + 1 and document.previous != document_hash(current):
        raise PublishError(f"version {document.version} names another predecessor than {folder / NOTE_FILE}. Name it.")


def _stage(folder: Path, version: int, forms: Mapping[str, bytes]) -> Path:
    """Write the whole set, synced, into a new folder beside `folder`; world-readable, for it is public."""
    stage = Path(tempfile.mkdtemp(prefix=f"{folder.name}.v{version}-", dir=folder.parent))
    stage.chmod(0o755)
    for name, content in forms.items():
        with open(stage / name, "xb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(stage)
    return stage


def _retained(folder: Path) -> dict[str, bytes]:
    """Return the retention policy as it was published: it is of the ledger and its root, not of a set of keys."""
    note = _read(folder / RETENTION_FILE)
    return {} if note is None else {RETENTION_FILE: note}


def _check_stage(stage: Path, document: KeyDocument, root: VerifierKey) -> None:
    """Read the staged files from the disk as a stranger would, before anybody can see them."""
    files = read_forms(stage)
    for row in check_forms(files, root):
        if row.problem is not None:
            raise PublishError(f"{row.file} does not read back: {row.problem}. Nothing was published.")
    if key_document_text(open_key_document(files[NOTE_FILE], root)) != key_document_text(document):
        raise PublishError(f"{NOTE_FILE} reads back as another document. Nothing was published.")


def _switch(folder: Path, stage: Path) -> None:
    """Make `folder` mean `stage`, in one step that a power cut can't split."""
    link = folder.parent / f".{folder.name}.{secrets.token_hex(8)}"
    link.symlink_to(stage.name)
    try:
        if _is_empty(folder):
            folder.rmdir()
        os.replace(link, folder)
    except BaseException:
        link.unlink(missing_ok=True)
        raise
    sync_folder(folder.parent)


def _is_published(folder: Path, stage: Path) -> bool:
    return folder.is_symlink() and os.readlink(folder) == stage.name
