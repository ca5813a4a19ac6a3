"""Private key files: how they are made, what is checked before one is used, and what to do when a check fails.

House rules of this file:

* A private key lies on disk as encrypted PKCS#8 only, made exclusively, mode 0600, never through a symbolic link.
* `cryptography` stretches a PKCS#8 passphrase with 2,048 rounds only, so a human passphrase would be guessed. The
  passphrase is 32 random bytes as hex in a file of its own; a passphrase of any other form is refused.
* That encryption (PBES2, AES-CBC) has no checksum: one damaged byte can open as *another* key. So the file ends with
  its public key, and a private key that doesn't match it is refused.
* A file states its purpose between its two PEM blocks, where other tools read past it. The line guards against a mix-up
  and against nobody else: it is not signed, and a file without it is taken for what it is used as.
* A secret comes from a file or a systemd credential. It is never an argument (every user of the machine reads argv),
  never in the environment, and never in an error text: texts name the file, its purpose and what to do next.
* Checks are made on the opened descriptor, so the file that was checked is the file that is read.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from pathlib import Path

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from keys.signing import SEED_BYTES, SigningKey
from verifier.sig import is_strict_key, is_valid

CUSTODY = "custody"  # the purpose of keys that a gateway keeps for its agents, and the folder they are in
PASSPHRASE_BYTES = 32  # as many random bits as the key has itself
SECRET_FILE_BYTES_MAX = 4_096  # a PKCS#8 Ed25519 key has about 320 bytes, a passphrase file 65
CREDENTIALS_VARIABLE = "CREDENTIALS_DIRECTORY"  # set by systemd for LoadCredential= and LoadCredentialEncrypted=

_PASSPHRASE = re.compile(rb"[0-9a-f]{64}")
_PRIVATE_BEGINS = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
_PRIVATE_ENDS = b"-----END ENCRYPTED PRIVATE KEY-----\n"
_PURPOSE = re.compile(rb"(?:purpose: ([a-z]{1,32})\n)?")
_ALIKE = frozenset({"agent", "operator"})  # both sign requests, and an operator's profile holds its key as agent.key
_PROBE = b"tallystick key probe, no newline at the end: never a note"


class KeyFileError(Exception):
    """A key file can't be made or used. The text is for the person at the terminal and never holds a secret."""


def passphrase_path(path: Path) -> Path:
    """Return the passphrase file that belongs beside the key file `path`: `log.key` → `log.pass`."""
    return path.with_suffix(".pass") if path.suffix == ".key" else path.with_name(path.name + ".pass")


def new_key(path: Path, *, purpose: str = "private") -> SigningKey:
    """Make a key: `path` (encrypted) and its passphrase file, both new, both mode 0600.

    The passphrase is written first: stopped half-way, this leaves a passphrase without a key, never a key that nobody
    can open. KeyFileError when either file exists; nothing is ever overwritten.
    """
    seed = secrets.token_bytes(SEED_BYTES)
    _write_pair(path, seed, purpose)
    return SigningKey(seed)


def new_key_in(folder: Path, *, purpose: str) -> SigningKey:
    """Make a key as `new_key` does, in the file `<its DID>.key` of `folder`."""
    seed = secrets.token_bytes(SEED_BYTES)
    key = SigningKey(seed)
    _write_pair(folder / f"{key.did}.key", seed, purpose)
    return key


def _write_pair(path: Path, seed: bytes, purpose: str) -> None:
    passphrase_file = passphrase_path(path)
    for file in (path, passphrase_file):
        if os.path.lexists(file):
            raise _exists(file, purpose)
    passphrase = secrets.token_hex(PASSPHRASE_BYTES).encode("ascii")
    _create(passphrase_file, passphrase + b"\n", f"passphrase of the {purpose} key")
    try:
        write_key(path, seed, passphrase, purpose=purpose)
    except BaseException:
        passphrase_file.unlink(missing_ok=True)
        raise


def copy_key(source: Path, target: Path) -> None:
    """Copy a key file and its passphrase file to `target`, durable on return; a key that is there is never replaced.

    The passphrase comes first, and each file appears whole, so what was stopped half-way is done again by the same
    call. KeyFileError when `target`, or another passphrase for it, exists.
    """
    if os.path.lexists(target):
        raise _exists(target, "private")
    for from_path, to_path in ((passphrase_path(source), passphrase_path(target)), (source, target)):
        content = _read_secret(from_path, "private key")
        if os.path.lexists(to_path) and _read_secret(to_path, "private key") != content:
            raise _exists(to_path, "private")
        stage = to_path.with_name(f".{to_path.name}.{secrets.token_hex(4)}")
        _create(stage, content, "private key")
        os.replace(stage, to_path)
        sync_folder(to_path.parent)


def write_key(path: Path, seed: bytes, passphrase: bytes, *, purpose: str = "private") -> None:
    """Write the 32-byte `seed` to the new file `path`, durable on return; `passphrase` is 64 lower-case hex digits.

    The file states `purpose`, unless that is "private", which is none.
    """
    if not _PASSPHRASE.fullmatch(passphrase):
        raise KeyFileError(_weak_passphrase(f"the {purpose} key {path}"))
    key = Ed25519PrivateKey.from_private_bytes(seed)
    private_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
    stated = b"" if purpose == "private" else f"purpose: {purpose}\n".encode("ascii")
    _create(path, private_pem + stated + _public_pem(key), f"{purpose} key")


def load_key(path: Path, passphrase_file: Path | None = None, *, purpose: str = "private") -> SigningKey:
    """Return the key in `path` after every check, or raise KeyFileError: also when it states another `purpose`.

    The passphrase comes from `passphrase_file`, else from the file beside the key, else from the systemd credential
    `<stem>.pass`. Source: docs/protocol.md, keys.
    """
    private_pem, stated, public_pem = _split(_read_secret(path, f"{purpose} key"), path, purpose)
    _check_purpose(stated, path, purpose)
    passphrase = _read_passphrase(passphrase_file or _find_passphrase(path, purpose), purpose)
    loaded = _decrypt(private_pem, passphrase, path, purpose)
    if _public_pem(loaded) != public_pem:
        raise KeyFileError(f"the {purpose} key file {path} is damaged. Restore it from your back-up.")
    return _probed(loaded, path, purpose)


# -- making ------------------------------------------------------------------------------------------------------------


def _create(path: Path, content: bytes, what: str) -> None:
    """Write a new file that only its owner can read; file and folder are synced, so that it survives a power cut."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise _open_error(error, path, what) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        sync_folder(path.parent)
    except BaseException as error:
        path.unlink(missing_ok=True)  # ours: O_EXCL made it
        if isinstance(error, OSError):
            raise _open_error(error, path, what) from error
        raise


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Make `path` hold `content`: the old bytes or the new ones after any crash, the new ones once this returns.

    The order is the promise: the bytes are on the disk before the name means them, and the name before we return. Who
    may read it is `mode` without what the umask takes; nothing of a file that was left half written is used.
    """
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable: a new file's name is part of its folder, not of the file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_secret(path: Path, what: str) -> bytes:
    """Return the file's bytes after checking what was opened: regular, ours, closed to others, short."""
    try:
        with open(path, "rb", opener=_open_unfollowed) as file:
            _check_owner_and_mode(os.fstat(file.fileno()), path, what)
            content = file.read(SECRET_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _open_error(error, path, what) from error
    if len(content) > SECRET_FILE_BYTES_MAX:
        raise KeyFileError(
            f"the {what} file {path} is longer than {SECRET_FILE_BYTES_MAX} bytes. Is this the right file?"
        )
    return content


def _open_unfollowed(path: str, flags: int) -> int:
    """Open without following a link, and without hanging on a pipe planted under this name."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _check_owner_and_mode(found: os.stat_result, path: Path, what: str) -> None:
    """Refuse a file that somebody else could have written or read."""
    if not stat.S_ISREG(found.st_mode):
        raise KeyFileError(_irregular(path, what))
    # systemd hands credentials over as root-owned files, readable by the service through an ACL (shown as group r).
    is_credential = _is_credential(path)
    owners = {os.geteuid(), 0} if is_credential else {os.geteuid()}
    if found.st_uid not in owners:
        raise KeyFileError(
            f"the {what} file {path} belongs to user id {found.st_uid}, and this runs as {os.geteuid()}. "
            f"Run as the owner, or: chown {os.geteuid()} {path}"
        )
    excess = stat.S_IMODE(found.st_mode) & (0o037 if is_credential else 0o077)
    if excess:
        raise KeyFileError(
            f"the {what} file {path} has mode {stat.S_IMODE(found.st_mode):04o}, so others may have read or changed "
            f"it. If nobody did: chmod 600 {path}"
        )


def _is_credential(path: Path) -> bool:
    folder = os.environ.get(CREDENTIALS_VARIABLE)
    return bool(folder) and path.absolute().parent == Path(folder or "").absolute()


def _find_passphrase(path: Path, purpose: str) -> Path:
    """Return the first place that holds a passphrase for `path`; a dangling link counts, so that it is refused."""
    beside = passphrase_path(path)
    folder = os.environ.get(CREDENTIALS_VARIABLE)
    places = [beside, Path(folder) / beside.name] if folder else [beside]
    for place in places:
        if os.path.lexists(place):
            return place
    raise KeyFileError(
        f"no passphrase for the {purpose} key {path}. Put its passphrase file at {beside} (mode 0600), name it, or "
        f"hand it over as the systemd credential {beside.name}."
    )


def read_credential(name: str) -> str | None:
    """Return the one line of the systemd credential `name`, None where there is none of that name.

    KeyFileError when others may read or change it, or when it is not one printable ASCII line.
    """
    folder = os.environ.get(CREDENTIALS_VARIABLE)
    path = Path(folder or "") / name
    if not folder or not os.path.lexists(path):
        return None
    line = _read_secret(path, f"credential {name}").removesuffix(b"\n")
    if not line or not line.isascii() or not line.decode("ascii").isprintable():
        raise KeyFileError(f"the credential file {path} must hold one line of printable ASCII characters")
    return line.decode("ascii")


def _read_passphrase(path: Path, purpose: str) -> bytes:
    content = _read_secret(path, f"passphrase of the {purpose} key")
    passphrase = content.removesuffix(b"\n")
    if not _PASSPHRASE.fullmatch(passphrase):
        raise KeyFileError(_weak_passphrase(f"the passphrase file {path}"))
    return passphrase


def _split(content: bytes, path: Path, purpose: str) -> tuple[bytes, str | None, bytes]:
    """Return private half, stated purpose and public half; tell a truncated, plain or foreign file by its frame."""
    private, end, rest = content.partition(_PRIVATE_ENDS)
    if private.startswith(_PRIVATE_BEGINS) and end and rest:
        stated = _PURPOSE.match(rest)
        assert stated is not None, "the pattern matches nothing, too"
        return private + end, stated[1].decode("ascii") if stated[1] else None, rest[stated.end() :]
    if private.startswith(_PRIVATE_BEGINS):
        text = "is cut short. Restore it from your back-up."
    elif private.startswith(b"-----BEGIN PRIVATE KEY-----"):
        text = "is not encrypted. Treat the key as exposed and make a new one: tallystick keys new"
    else:
        text = "is not an encrypted key file of ours. Make a key with: tallystick keys new"
    raise KeyFileError(f"the {purpose} key file {path} {text}")


def _check_purpose(stated: str | None, path: Path, purpose: str) -> None:
    """Refuse a file made for another purpose; "private" expects none."""
    if stated is None or purpose in ("private", stated) or {stated, purpose} <= _ALIKE:
        return
    raise KeyFileError(
        f"the key file {path} was made as the {stated} key, and a {purpose} key is needed; purposes never mix. Name "
        f"the {purpose} key, or make one with: tallystick keys new --purpose {purpose}"
    )


def _public_pem(key: Ed25519PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _decrypt(pem: bytes, passphrase: bytes, path: Path, purpose: str) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm, InternalError) as error:  # Internal: a damaged key type
        # The library's text stays out: it may quote what it read.
        raise KeyFileError(
            f"the {purpose} key file {path} does not open with its passphrase: the passphrase belongs to another key, "
            f"or the file is damaged. Check that both files come from the same `keys new` or the same back-up."
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"the {purpose} key file {path} holds no Ed25519 key. Make one with: tallystick keys new")
    return key


def _probed(loaded: Ed25519PrivateKey, path: Path, purpose: str) -> SigningKey:
    """Return the signing key once two libraries agree on its public half and a probe signature verifies strictly."""
    key = SigningKey(loaded.private_bytes_raw())
    is_agreed = loaded.public_key().public_bytes_raw() == key.public_key
    if not (is_agreed and is_strict_key(key.public_key) and is_valid(key.public_key, _PROBE, key.sign(_PROBE))):
        raise KeyFileError(
            f"the {purpose} key in {path} fails its self-test. Do not use it on this machine: run the tests "
            f"(`make test`), then restore the key from your back-up or make a new one."
        )
    return key


# -- texts -------------------------------------------------------------------------------------------------------------


def _exists(path: Path, purpose: str) -> KeyFileError:
    return KeyFileError(
        f"{path} exists, and a {purpose} key or passphrase file is never overwritten. Choose another name, or move "
        f"the old file away first."
    )


def _weak_passphrase(what: str) -> str:
    return (
        f"{what} needs a passphrase of {2 * PASSPHRASE_BYTES} lower-case hex digits, as `tallystick keys new` makes "
        f"it; a passphrase that a person chose is too weak for this file format."
    )


def _open_error(error: OSError, path: Path, what: str) -> KeyFileError:
    """Turn what the operating system said into a sentence with a next step."""
    if isinstance(error, FileExistsError):
        return _exists(path, what)
    if path.is_symlink():
        return KeyFileError(f"the {what} file {path} is a symbolic link, and none is followed. Name the file itself.")
    if isinstance(error, IsADirectoryError):
        return KeyFileError(_irregular(path, what))
    if isinstance(error, FileNotFoundError):
        return KeyFileError(_missing(path, what))
    if isinstance(error, PermissionError):
        return KeyFileError(f"no permission for the {what} file {path}. Run as the user that owns it.")
    return KeyFileError(f"the {what} file {path} can't be used: {error.strerror}. Check the disk and the path.")


def _irregular(path: Path, what: str) -> str:
    return f"the {what} file {path} is not a regular file. Name the file itself."


def _missing(path: Path, what: str) -> str:
    if not path.parent.is_dir():
        return f"the folder of the {what} file {path} does not exist. Make it: mkdir -p -m 700 {path.parent}"
    return f"the {what} file {path} does not exist. Check the name, or make a key with: tallystick keys new"
