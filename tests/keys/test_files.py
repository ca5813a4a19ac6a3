"""Key files: made exclusively, encrypted, checked before use, and every refusal says what to do without a secret."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

import keys.files
from keys.files import KeyFileError, copy_key, load_key, new_key, passphrase_path, read_credential, write_key
from keys.signing import SigningKey

SEED = bytes(range(32))
PASSPHRASE = b"5a" * 32
OTHER_USER = 65_534


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs these tests under systemd gets the same answers."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A good key file with its passphrase beside it."""
    path = tmp_path / "log.key"
    write_key(path, SEED, PASSPHRASE)
    write_secret(tmp_path / "log.pass", PASSPHRASE + b"\n")
    return path


def write_secret(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o600)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(path: Path, passphrase_file: Path | None = None) -> str:
    """Return the text of the refusal, after checking that it names the file and holds no secret."""
    with pytest.raises(KeyFileError) as caught:
        load_key(path, passphrase_file, purpose="log")
    text = str(caught.value)
    assert PASSPHRASE.decode() not in text
    assert SEED.hex() not in text
    return text


# -- making ------------------------------------------------------------------------------------------------------------


def test_a_new_key_is_two_private_files_that_open_again(tmp_path: Path) -> None:
    path = tmp_path / "log.key"
    made = new_key(path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.key", "log.pass"]
    assert [mode_of(path), mode_of(tmp_path / "log.pass")] == [0o600, 0o600]
    assert load_key(path).public_key == made.public_key


def test_the_passphrase_is_32_random_bytes_as_hex_and_another_one_for_each_key(tmp_path: Path) -> None:
    new_key(tmp_path / "a.key")
    new_key(tmp_path / "b.key")
    first, second = (tmp_path / name for name in ("a.pass", "b.pass"))
    assert len(bytes.fromhex(first.read_text().removesuffix("\n"))) == 32
    assert first.read_bytes() != second.read_bytes()


def test_the_file_is_encrypted_pkcs8_that_other_tools_open_with_the_passphrase_file(key_file: Path) -> None:
    pem = key_file.read_bytes()
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    opened = load_pem_private_key(pem, PASSPHRASE)
    assert isinstance(opened, Ed25519PrivateKey)
    assert opened.private_bytes_raw() == SEED


def test_the_mode_is_0600_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0o000, 0o377):
        before = os.umask(umask)
        try:
            new_key(tmp_path / f"umask-{umask:o}.key")
        finally:
            os.umask(before)
        assert mode_of(tmp_path / f"umask-{umask:o}.key") == 0o600


@pytest.mark.parametrize("existing", ["log.key", "log.pass"])
def test_nothing_is_overwritten_and_nothing_is_left_behind(tmp_path: Path, existing: str) -> None:
    (tmp_path / existing).write_bytes(b"precious")
    with pytest.raises(KeyFileError, match="never overwritten"):
        new_key(tmp_path / "log.key")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(existing, b"precious")]


@pytest.mark.parametrize("planted", ["log.key", "log.pass"])
def test_a_planted_link_is_not_written_through(tmp_path: Path, planted: str) -> None:
    target = tmp_path / "elsewhere"
    (tmp_path / planted).symlink_to(target)
    with pytest.raises(KeyFileError, match="never overwritten"):
        new_key(tmp_path / "log.key")
    assert not target.exists()


def test_a_link_planted_after_the_first_look_is_not_written_through_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look before is politeness; O_EXCL and O_NOFOLLOW are the promise."""
    (tmp_path / "log.key").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(os.path, "lexists", lambda path: False)
    with pytest.raises(KeyFileError, match="never overwritten"):
        new_key(tmp_path / "log.key")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log.key"]


def test_a_full_disk_leaves_no_half_key_and_no_lonely_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    def fail_on_the_key(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 3:  # passphrase file, its folder, key file
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_on_the_key)
    with pytest.raises(KeyFileError, match="No space left on device"):
        new_key(tmp_path / "log.key")
    assert list(tmp_path.iterdir()) == []


def test_the_file_and_then_its_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"),
    )
    new_key(tmp_path / "log.key")
    assert synced == ["file", "folder", "file", "folder"]


def test_a_missing_folder_is_named_with_the_command_that_makes_it(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    with pytest.raises(KeyFileError, match=f"mkdir -p -m 700 {folder}"):
        new_key(folder / "log.key")


@pytest.mark.parametrize("human", [b"correct horse battery staple", b"", b"5A" * 32, b"5a" * 31, b"5a" * 32 + b"\n"])
def test_a_passphrase_that_keys_new_did_not_make_is_refused(tmp_path: Path, human: bytes) -> None:
    with pytest.raises(KeyFileError, match="64 lower-case hex digits"):
        write_key(tmp_path / "log.key", SEED, human)
    assert list(tmp_path.iterdir()) == []


PASSPHRASE_NAMES = [("log.key", "log.pass"), ("log", "log.pass"), ("log.pem", "log.pem.pass"), ("a.b.key", "a.b.pass")]


@pytest.mark.parametrize(("name", "expected"), PASSPHRASE_NAMES)
def test_the_passphrase_lies_beside_the_key(tmp_path: Path, name: str, expected: str) -> None:
    assert passphrase_path(tmp_path / name) == tmp_path / expected
    new_key(tmp_path / name)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([name, expected])


# -- where the passphrase comes from -----------------------------------------------------------------------------------


def test_a_named_passphrase_file_wins_over_the_one_beside_the_key(key_file: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "safe" / "pass"
    elsewhere.parent.mkdir()
    (tmp_path / "log.pass").rename(elsewhere)
    write_secret(tmp_path / "log.pass", b"00" * 32 + b"\n")
    assert load_key(key_file, elsewhere).public_key == SigningKey(SEED).public_key
    assert "does not open with its passphrase" in refusal(key_file)


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o600])
def test_a_systemd_credential_opens_the_key(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """systemd gives credentials mode 0400 or, through an ACL, 0440; both belong to root or the service's user."""
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (tmp_path / "log.pass").rename(credentials / "log.pass")
    (credentials / "log.pass").chmod(mode)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert load_key(key_file).public_key == SigningKey(SEED).public_key


@pytest.mark.parametrize("mode", [0o404, 0o420, 0o444, 0o602])
def test_a_credential_that_others_can_read_or_write_is_refused(
    key_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (tmp_path / "log.pass").rename(credentials / "log.pass")
    (credentials / "log.pass").chmod(mode)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert f"has mode {mode:04o}" in refusal(key_file)


def test_without_a_passphrase_both_places_are_named(key_file: Path, tmp_path: Path) -> None:
    (tmp_path / "log.pass").unlink()
    assert refusal(key_file) == (
        f"no passphrase for the log key {key_file}. Put its passphrase file at {tmp_path / 'log.pass'} (mode 0600), "
        "name it, or hand it over as the systemd credential log.pass."
    )


def test_a_final_newline_in_the_passphrase_file_is_optional(key_file: Path, tmp_path: Path) -> None:
    """A credential store may drop it."""
    write_secret(tmp_path / "log.pass", PASSPHRASE)
    assert load_key(key_file).public_key == SigningKey(SEED).public_key


# -- what is refused at load -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.key", "log.pass"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o660, 0o644, 0o777])
def test_a_file_open_to_others_is_refused_with_the_chmod_to_run(key_file: Path, mode: int, name: str) -> None:
    file = key_file.with_name(name)
    file.chmod(mode)
    text = refusal(key_file)
    assert f"{file} has mode {mode:04o}" in text
    assert text.endswith(f"chmod 600 {file}")


def test_a_file_that_only_its_owner_can_read_is_accepted(key_file: Path) -> None:
    key_file.chmod(0o400)
    assert load_key(key_file).public_key == SigningKey(SEED).public_key


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["log.key", "log.pass"])
def test_a_file_of_another_user_is_refused(key_file: Path, name: str) -> None:
    file = key_file.with_name(name)
    os.chown(file, OTHER_USER, -1)
    text = refusal(key_file)
    assert f"{file} belongs to user id {OTHER_USER}" in text
    assert "Run as the owner, or: chown" in text


def test_the_owner_is_compared_with_the_running_user(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same promise for those who do not run tests as root."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"{key_file} belongs to user id {os.getuid()}, and this runs as {os.getuid() + 1}" in refusal(key_file)


@pytest.mark.parametrize("name", ["log.key", "log.pass"])
def test_a_symbolic_link_is_refused_even_to_a_good_file(key_file: Path, name: str) -> None:
    file = key_file.with_name(name)
    file.rename(file.with_name("real"))
    file.symlink_to("real")
    assert f"{file} is a symbolic link, and none is followed" in refusal(key_file)


@pytest.mark.parametrize("name", ["log.key", "log.pass"])
def test_a_pipe_is_refused_and_does_not_hang(key_file: Path, name: str) -> None:
    file = key_file.with_name(name)
    file.unlink()
    os.mkfifo(file, 0o600)
    assert "is not a regular file" in refusal(key_file)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.key").mkdir()
    assert refusal(tmp_path / "log.key") == (
        f"the log key file {tmp_path / 'log.key'} is not a regular file. Name the file itself."
    )


def test_a_missing_key_says_so(tmp_path: Path) -> None:
    assert "log.key does not exist. Check the name, or make a key with: tallystick keys new" in refusal(
        tmp_path / "log.key"
    )


def test_a_long_file_is_refused_unread(key_file: Path) -> None:
    write_secret(key_file, key_file.read_bytes() + b"#" * keys.files.SECRET_FILE_BYTES_MAX)
    assert "is longer than 4096 bytes. Is this the right file?" in refusal(key_file)


def test_a_wrong_passphrase_is_told_from_a_damaged_frame(key_file: Path, tmp_path: Path) -> None:
    write_secret(tmp_path / "log.pass", b"00" * 32 + b"\n")
    assert "does not open with its passphrase: the passphrase belongs to another key" in refusal(key_file)


def test_a_human_passphrase_file_is_refused_before_it_is_tried(key_file: Path, tmp_path: Path) -> None:
    write_secret(tmp_path / "log.pass", b"correct horse battery staple\n")
    text = refusal(key_file)
    assert "needs a passphrase of 64 lower-case hex digits" in text
    assert "horse" not in text


def test_every_truncation_is_refused(key_file: Path) -> None:
    content = key_file.read_bytes()
    for length in range(len(content)):
        write_secret(key_file, content[:length])
        assert f"the log key file {key_file} is " in refusal(key_file)


def test_no_changed_byte_opens_as_another_key(key_file: Path) -> None:
    """PKCS#8 encryption has no checksum: without the public key in the file, some of these would open as new keys.

    A changed byte may be another spelling of the same PEM; whatever opens must be the same key.
    """
    content = key_file.read_bytes()
    public_key = SigningKey(SEED).public_key
    refused = 0
    for index in range(len(content)):
        write_secret(key_file, content[:index] + bytes([content[index] ^ 0x01]) + content[index + 1 :])
        try:
            assert load_key(key_file).public_key == public_key
        except KeyFileError:
            refused += 1
    assert refused > len(content) - 20


def test_no_changed_bit_of_the_iv_escapes_as_another_error(key_file: Path) -> None:
    """In CBC a bit of the IV is a bit of the first block, which holds the key's type: the library meets all sorts.

    Found by the test above: with the type of Ed448 on 32 bytes, cryptography raises InternalError.
    """
    content = key_file.read_bytes()
    lines = content.split(b"\n")
    der = bytearray(base64.b64decode(b"".join(lines[1:5])))
    assert der[82:84] == b"\x04\x10", "the IV is the octet string of 16 bytes at offset 84"
    texts = set()
    for bit in range(128):
        der[84 + bit // 8] ^= 1 << bit % 8
        private = b"\n".join([lines[0], base64.b64encode(der), *lines[5:]])
        der[84 + bit // 8] ^= 1 << bit % 8
        write_secret(key_file, private)
        try:
            assert load_key(key_file).public_key == SigningKey(SEED).public_key
        except KeyFileError as error:
            texts.add(str(error).removeprefix(f"the private key file {key_file} ").split(" ")[0])
    assert texts == {"does"}, "the file does not open with its passphrase"


def test_the_private_half_of_one_file_and_the_public_half_of_another_are_refused(key_file: Path) -> None:
    other = key_file.with_name("other.key")
    write_key(other, bytes(32), PASSPHRASE)
    begin = b"-----BEGIN PUBLIC KEY-----"
    private, public = key_file.read_bytes().split(begin)[0], other.read_bytes().split(begin)[1]
    write_secret(key_file, private + begin + public)
    assert refusal(key_file) == f"the log key file {key_file} is damaged. Restore it from your back-up."


def encrypted_p256() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSPHRASE))


def plain(form: PrivateFormat) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(SEED).private_bytes(Encoding.PEM, form, NoEncryption())


FOREIGN: list[tuple[str, Callable[[], bytes], str]] = [
    ("not encrypted", lambda: plain(PrivateFormat.PKCS8), "is not encrypted. Treat the key as exposed"),
    ("an OpenSSH key", lambda: plain(PrivateFormat.OpenSSH), "is not an encrypted key file of ours"),
    ("another curve", lambda: encrypted_p256() + b"public", "holds no Ed25519 key"),
    ("empty", lambda: b"", "is not an encrypted key file of ours"),
    ("binary", lambda: bytes(range(256)), "is not an encrypted key file of ours"),
    ("without its public half", encrypted_p256, "is cut short"),
]


@pytest.mark.parametrize(("name", "content", "expected"), FOREIGN, ids=[row[0] for row in FOREIGN])
def test_a_foreign_file_is_refused_by_its_kind(
    key_file: Path, name: str, content: Callable[[], bytes], expected: str
) -> None:
    write_secret(key_file, content())
    assert f"the log key file {key_file} {expected}" in refusal(key_file)


@pytest.mark.parametrize("broken", ["is_valid", "is_strict_key"])
def test_a_key_that_fails_its_probe_is_refused(key_file: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    monkeypatch.setattr(keys.files, broken, lambda *args: False)
    assert "fails its self-test" in refusal(key_file)


def test_a_library_that_derives_another_public_key_is_caught(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys.files, "SigningKey", lambda seed: SigningKey(bytes(32)))
    assert "fails its self-test" in refusal(key_file)


@pytest.mark.parametrize("purpose", ["private", "root"])
def test_openssl_opens_the_file_with_the_passphrase_file(tmp_path: Path, purpose: str) -> None:
    """The back-up must be readable without us, also with the line that states the purpose."""
    key_file = tmp_path / "log.key"
    new_key(key_file, purpose=purpose)
    command = ["openssl", "pkey", "-in", str(key_file), "-passin", f"file:{tmp_path / 'log.pass'}", "-pubout"]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl on this machine")
    assert result.stdout.startswith(b"-----BEGIN PUBLIC KEY-----\n"), result.stderr


# -- the purpose -------------------------------------------------------------------------------------------------------

PURPOSE_CASES = [
    ("root", "root", True),
    ("root", "private", True),
    ("private", "root", True),
    ("agent", "operator", True),
    ("operator", "agent", True),
    ("agent", "root", False),
    ("operator", "root", False),
    ("root", "agent", False),
    ("log", "receipt", False),
]


@pytest.mark.parametrize(("made", "wanted", "is_accepted"), PURPOSE_CASES)
def test_a_key_opens_for_its_own_purpose_only(tmp_path: Path, made: str, wanted: str, is_accepted: bool) -> None:
    path = tmp_path / "some.key"
    key = new_key(path, purpose=made)
    if is_accepted:
        assert load_key(path, purpose=wanted).public_key == key.public_key
        return
    with pytest.raises(KeyFileError, match=f"was made as the {made} key, and a {wanted} key is needed"):
        load_key(path, purpose=wanted)


def test_no_cut_and_no_changed_byte_of_a_file_with_a_purpose_opens_it_for_another(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    new_key(path, purpose="root")
    content = path.read_bytes()
    start = content.index(b"purpose: root\n")
    assert content[:start].endswith(b"-----END ENCRYPTED PRIVATE KEY-----\n")
    for length in range(len(content)):
        write_secret(path, content[:length])
        with pytest.raises(KeyFileError):
            load_key(path, purpose="root")
    for index in range(start, start + len(b"purpose: root\n")):
        write_secret(path, content[:index] + bytes([content[index] ^ 0x01]) + content[index + 1 :])
        with pytest.raises(KeyFileError):
            load_key(path, purpose="root")


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copied_key_is_the_key_with_its_passphrase_and_the_source_stays(tmp_path: Path) -> None:
    source, target = tmp_path / "next-log.key", tmp_path / "log.2.key"
    key = new_key(source, purpose="log")
    copy_key(source, target)
    assert load_key(target, purpose="log").did == key.did == load_key(source, purpose="log").did
    assert {path.stat().st_mode & 0o777 for path in (target, passphrase_path(target))} == {0o600}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["log.2.key", "log.2.pass", "next-log.key", "next-log.pass"]


def test_a_copy_that_was_stopped_between_its_files_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "next-log.key", tmp_path / "log.2.key"
    key = new_key(source, purpose="log")
    replaced: list[Path] = []

    def stop_at_the_second(one: Path, other: Path) -> None:
        replaced.append(other)
        if len(replaced) == 2:
            raise KeyboardInterrupt
        os.rename(one, other)

    monkeypatch.setattr("keys.files.os.replace", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        copy_key(source, target)
    monkeypatch.undo()
    assert passphrase_path(target).exists() and not target.exists()
    copy_key(source, target)
    assert load_key(target, purpose="log").did == key.did


def test_a_copy_replaces_neither_a_key_nor_the_passphrase_of_another(tmp_path: Path) -> None:
    source, target = tmp_path / "a.key", tmp_path / "b.key"
    new_key(source, purpose="log")
    other = new_key(target, purpose="log")
    with pytest.raises(KeyFileError, match="never overwritten"):
        copy_key(source, target)
    target.rename(tmp_path / "c.key")
    with pytest.raises(KeyFileError, match="never overwritten"):
        copy_key(source, target)
    (tmp_path / "c.key").rename(target)
    assert load_key(target, purpose="log").did == other.did


def test_a_credential_is_one_line_that_nobody_else_can_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_credential("database.pass") is None, "no credentials at all"
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_credential("database.pass") is None, "none of this name"
    file = tmp_path / "database.pass"
    file.write_bytes(b"s3cret\n")
    file.chmod(0o440)  # as systemd hands it over
    assert read_credential("database.pass") == "s3cret"
    for content, mode in ((b"s3cret\n", 0o444), (b"", 0o400), (b"two\nlines\n", 0o400), ("é".encode(), 0o400)):
        file.chmod(0o600)
        file.write_bytes(content)
        file.chmod(mode)
        with pytest.raises(KeyFileError) as error:
            read_credential("database.pass")
        assert "s3cret" not in str(error.value)
