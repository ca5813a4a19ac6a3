"""`tallystick keys`: what it prints, its exit codes, and that no secret is ever printed or taken as an argument."""

from __future__ import annotations

import base64
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from keys.__main__ import PURPOSES, build_parser, main
from keys.files import load_key, write_key
from keys.forms import FORM_FILES
from keys.publish import document_hash, read_forms
from keys.signing import SigningKey
from tests.keys.publishing import (
    GENESIS,
    LOG,
    NEXT_LOG,
    ORIGIN,
    RECEIPT,
    ROOT,
    ROOT_VKEY,
    first,
    published_version,
)
from verifier.did import thumbprint
from verifier.keyring import key_document_text, open_key_document
from verifier.note import make_vkey

REPOSITORY = Path(__file__).parents[2]
PASSPHRASE = b"5a" * 32
SSH_BLOB = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + LOG.public_key
SSH = f"ssh-ed25519 {base64.b64encode(SSH_BLOB).decode()}"


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the command: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


class Cli:
    """Runs the command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse ends --help and wrong usage like this
            code = stop.code if isinstance(stop.code, int) else 1
        captured = self._capsys.readouterr()
        assert PASSPHRASE.decode() not in captured.out + captured.err
        return Result(code, captured.out, captured.err)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    yield Cli(capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with log, receipt, root and other key files, whose seeds are known."""
    for name, number in (("root", 1), ("log", 2), ("receipt", 3), ("other", 4)):
        write_key(tmp_path / f"{name}.key", bytes([number]) * 32, PASSPHRASE)
        (tmp_path / f"{name}.pass").write_bytes(PASSPHRASE + b"\n")
        (tmp_path / f"{name}.pass").chmod(0o600)
    return tmp_path


def publish_arguments(folder: Path, **changes: object) -> list[object]:
    values: dict[str, object] = {
        "origin": ORIGIN,
        "genesis": GENESIS.hex(),
        "log": folder / "log.key",
        "receipt": folder / "receipt.key",
        "root": folder / "root.key",
        "out": folder / "public",
        **changes,
    }
    return ["publish", *(word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value))]


def public_lines(key: SigningKey, *vkey_names: str) -> str:
    lines = [
        f"did         {key.did}",
        f"thumbprint  {thumbprint(key.public_key)}",
        f"hex         {key.public_key.hex()}",
    ]
    lines += [f"vkey        {make_vkey(name, key.public_key).vkey}" for name in vkey_names]
    return "\n".join(lines) + "\n"


# -- new ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("purpose", PURPOSES)
def test_new_makes_two_private_files_and_says_what_to_do_with_the_key(cli: Cli, tmp_path: Path, purpose: str) -> None:
    path = tmp_path / f"{purpose}.key"
    result = cli("new", "--purpose", purpose, "--out", path)
    key = load_key(path)
    assert result == Result(
        0,
        f"made the {purpose} key {path} and its passphrase {path.with_suffix('.pass')}\n"
        + public_lines(key)
        + PURPOSES[purpose]
        + "\n",
        "",
    )
    assert [stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()] == [0o600, 0o600]
    assert (tmp_path / f"{purpose}.pass").read_text().strip() not in result.out


def test_new_refuses_to_overwrite(cli: Cli, folder: Path) -> None:
    before = (folder / "log.key").read_bytes()
    result = cli("new", "--purpose", "log", "--out", folder / "log.key")
    assert (result.code, result.out) == (1, "")
    assert "a log key or passphrase file is never overwritten. Choose another name" in result.err
    assert (folder / "log.key").read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["new", "--out", "x.key"],
        ["new", "--purpose", "log"],
        ["new", "--purpose", "custody", "--out", "x.key"],
        ["show"],
        ["publish"],
        ["check"],
        ["rotate"],
        [],
        ["new", "--purpose", "log", "--out", "x.key", "--passphrase", "secret"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_with_the_usage_and_makes_nothing(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("usage: tallystick keys")
    assert list(tmp_path.iterdir()) == []


# -- show --------------------------------------------------------------------------------------------------------------


def test_show_reads_a_private_key_file_and_prints_its_public_half(cli: Cli, folder: Path) -> None:
    assert cli("show", folder / "log.key") == Result(0, public_lines(LOG), "")


def test_show_prints_the_verifier_key_under_a_name(cli: Cli, folder: Path) -> None:
    assert cli("show", folder / "log.key", "--name", ORIGIN) == Result(0, public_lines(LOG, ORIGIN), "")


def test_show_takes_a_passphrase_file_kept_elsewhere(cli: Cli, folder: Path) -> None:
    (folder / "log.pass").rename(folder / "elsewhere")
    assert cli("show", folder / "log.key").code == 1
    assert cli("show", folder / "log.key", "--passphrase", folder / "elsewhere") == Result(0, public_lines(LOG), "")


SHOWN_TEXTS = [
    ("did", LOG.did, ()),
    ("vkey", make_vkey(ORIGIN, LOG.public_key).vkey, (ORIGIN,)),
]


@pytest.mark.parametrize(("name", "text", "vkeys"), SHOWN_TEXTS, ids=[row[0] for row in SHOWN_TEXTS])
def test_show_reads_the_text_of_a_public_key(cli: Cli, name: str, text: str, vkeys: tuple[str, ...]) -> None:
    assert cli("show", text) == Result(0, public_lines(LOG, *vkeys), "")
    assert cli("show", text, "--name", "other.example") == Result(0, public_lines(LOG, "other.example"), "")


def test_show_reads_an_ssh_line_and_a_pub_file_alike(cli: Cli, tmp_path: Path) -> None:
    for name, content in (("a.pub", f"{SSH} me@host\n"), ("b.pub", f"{SSH} me@host\r\n"), ("c.pub", SSH)):
        (tmp_path / name).write_text(content, newline="")
    results = [cli("show", SSH), *(cli("show", tmp_path / name) for name in ("a.pub", "b.pub", "c.pub"))]
    assert results == [Result(0, public_lines(LOG), "")] * 4


def test_show_prints_the_published_thumbprint_and_did_vectors(cli: Cli) -> None:
    """RFC 8037 A.3 and the did:key report."""
    rfc_8037 = SigningKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert "thumbprint  kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k\n" in cli("show", rfc_8037.did).out
    did = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
    assert cli("show", did).out.startswith(f"did         {did}\n")


SHOW_REFUSED = [
    ("nonsense", "nonsense", "expected did:key:z6Mk…, a verifier key"),
    ("a missing file", "keys/log.key", "No file has that name either"),
    ("a security key", "sk-ssh-ed25519@openssh.com AAAA", "security-key (sk-)"),
    ("an RSA key", "ssh-rsa AAAA", "Make one with: ssh-keygen -t ed25519"),
    ("a small-order vkey", "a+cd59c1d3+AQEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "prime-order subgroup"),
]


@pytest.mark.parametrize(("name", "text", "expected"), SHOW_REFUSED, ids=[row[0] for row in SHOW_REFUSED])
def test_show_refuses_what_is_no_good_public_key(cli: Cli, name: str, text: str, expected: str) -> None:
    result = cli("show", text)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("tallystick keys: ")
    assert expected in result.err


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe", SSH.encode() + b"\nmore\n", b"x" * 2_000, b"x" * 70_000])
def test_show_refuses_a_public_key_file_that_is_not_one_line(cli: Cli, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pub").write_bytes(content)
    result = cli("show", tmp_path / "a.pub")
    assert (result.code, result.out) == (1, "")
    assert str(tmp_path / "a.pub") in result.err


def test_show_refuses_a_bad_name_for_the_verifier_key(cli: Cli) -> None:
    assert cli("show", LOG.did, "--name", "two words").code == 1


def test_show_names_the_chmod_for_an_open_key_file(cli: Cli, folder: Path) -> None:
    (folder / "log.key").chmod(0o644)
    result = cli("show", folder / "log.key")
    assert (result.code, result.out) == (1, "")
    assert result.err.endswith(f"chmod 600 {folder / 'log.key'}\n")


# -- publish -----------------------------------------------------------------------------------------------------------


def test_publish_writes_the_first_document_and_prints_the_root_to_pin(cli: Cli, folder: Path) -> None:
    result = cli(*publish_arguments(folder))
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[0] == f"keys.note   ok     version 1 of {ORIGIN}, 2 keys, signed by {ORIGIN}/root"
    assert result.out.splitlines()[-1] == ROOT_VKEY.vkey
    opened = open_key_document(read_forms(folder / "public")["keys.note"], ROOT_VKEY)
    assert key_document_text(opened) == key_document_text(first())


def test_publish_takes_the_root_passphrase_from_another_place(cli: Cli, folder: Path) -> None:
    (folder / "root.pass").rename(folder / "safe")
    assert cli(*publish_arguments(folder)).code == 1
    assert cli(*publish_arguments(folder, root_passphrase=folder / "safe")).code == 0


def test_publish_follows_its_predecessor(cli: Cli, folder: Path) -> None:
    note = folder / "public" / "keys.note"
    assert cli(*publish_arguments(folder)).code == 0
    assert cli(*publish_arguments(folder, version=2, previous=note)).code == 0
    opened = open_key_document(note.read_bytes(), ROOT_VKEY)
    assert (opened.version, opened.previous, opened.keys) == (2, document_hash(first()), first().keys)


PUBLISH_REFUSED = [
    ("no predecessor", {"version": 2}, "needs --previous FILE"),
    ("a predecessor of version 1", {"version": 1, "previous": "public/keys.note"}, "needs --previous FILE"),
    ("the version again", {}, "already holds version 1, and a version never goes back"),
    ("a version skipped", {"version": 3, "previous": "public/keys.note"}, "is version 1, and version 3 follows 2 only"),
    ("version zero", {"version": 0, "previous": "public/keys.note"}, "--version: versions begin at 1"),
    ("a version in words", {"version": "two"}, "--version: "),
    ("short genesis", {"genesis": "ab"}, "--genesis: "),
    ("capital genesis", {"genesis": "AB" * 32}, "--genesis: "),
    ("a bad origin", {"origin": "two words"}, "a key name is not empty"),
    ("one key twice", {"receipt": "log.key", "out": "new"}, "pinned for two purposes"),
    ("the root as log key", {"log": "root.key", "out": "new"}, "pinned for two purposes"),
    ("another root", {"root": "other.key", "version": 2, "previous": "public/keys.note"}, "no valid signature"),
    ("another log key", {"log": "other.key", "version": 2, "previous": "public/keys.note"}, "is a rotation"),
    ("no such file", {"version": 2, "previous": "none"}, "none: No such file or directory"),
    ("another genesis", {"genesis": "00" * 32, "version": 2, "previous": "public/keys.note"}, "another genesis"),
]


@pytest.mark.parametrize(("name", "changes", "expected"), PUBLISH_REFUSED, ids=[row[0] for row in PUBLISH_REFUSED])
def test_publish_refuses_what_does_not_follow_and_leaves_the_old_set(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, changes: dict[str, object], expected: str
) -> None:
    monkeypatch.chdir(folder)
    assert cli(*publish_arguments(folder)).code == 0
    before = read_forms(folder / "public")
    result = cli(*publish_arguments(folder, **changes))
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("tallystick keys: ")
    assert expected in result.err
    assert read_forms(folder / "public") == before
    assert not (folder / "new").exists()


@pytest.mark.parametrize("purpose", ["log", "receipt", "root"])
def test_publish_names_the_purpose_of_the_key_file_that_is_open_to_others(cli: Cli, folder: Path, purpose: str) -> None:
    (folder / f"{purpose}.key").chmod(0o640)
    result = cli(*publish_arguments(folder))
    assert result.code == 1
    assert f"the {purpose} key file {folder / purpose}.key has mode 0640" in result.err
    assert not (folder / "public").exists()


# -- check -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "file"])
def test_check_prints_a_table_under_the_pinned_root(cli: Cli, folder: Path, form: str) -> None:
    cli(*publish_arguments(folder))
    (folder / "pinned").write_text(ROOT_VKEY.vkey + "\n")
    result = cli("check", folder / "public", "--root", ROOT_VKEY.vkey if form == "text" else f"@{folder / 'pinned'}")
    assert result == Result(
        0,
        f"keys.note   ok     version 1 of {ORIGIN}, 2 keys, signed by {ORIGIN}/root\n"
        f"root.vkey   ok     thumbprint {thumbprint(ROOT.public_key)}\n"
        "vkeys.txt   ok     2 keys\n"
        "policy.txt  ok     1 key, quorum none\n"
        "jwks.json   ok     2 keys\n"
        "did.json    ok     did:web:ledger.example, 2 keys\n",
        "",
    )


def test_check_without_a_root_says_what_it_did_not_prove(cli: Cli, folder: Path) -> None:
    cli(*publish_arguments(folder))
    result = cli("check", folder / "public")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith(
        f"The root key was taken from {folder / 'public'} itself. To prove origin too, add --root VKEY.\n"
    )


@pytest.mark.parametrize("file", ["keys.note", "vkeys.txt", "policy.txt", "jwks.json", "did.json"])
def test_check_marks_the_file_that_disagrees_and_exits_1(cli: Cli, folder: Path, file: str) -> None:
    cli(*publish_arguments(folder))
    path = folder / "public" / file
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    result = cli("check", folder / "public", "--root", ROOT_VKEY.vkey)
    assert (result.code, result.err) == (1, "")
    wrong = [row.split()[0] for row in result.out.splitlines() if " WRONG " in row]
    assert wrong == ([file] if file != "keys.note" else list(FORM_FILES))
    assert len(result.out.splitlines()) == 6


def test_check_under_another_root_calls_everything_wrong(cli: Cli, folder: Path) -> None:
    cli(*publish_arguments(folder))
    other = make_vkey(f"{ORIGIN}/root", NEXT_LOG.public_key)
    result = cli("check", folder / "public", "--root", other.vkey)
    assert result.code == 1
    assert result.out.count(" WRONG ") == 6


@pytest.mark.parametrize("root", ["nonsense", "@/nowhere", ""])
def test_check_refuses_a_root_that_it_can_not_read(cli: Cli, folder: Path, root: str) -> None:
    assert cli("check", folder / "nowhere", "--root", root).code == 1


def test_check_of_a_missing_folder_is_a_refusal(cli: Cli, tmp_path: Path) -> None:
    result = cli("check", tmp_path / "nowhere")
    assert (result.code, result.out) == (1, "")
    assert f"there is no folder {tmp_path / 'nowhere'}." in result.err


def test_check_of_a_data_folder_points_to_its_published_folder(cli: Cli, folder: Path) -> None:
    assert cli(*publish_arguments(folder)).code == 0
    result = cli("check", folder)
    assert (result.code, result.out) == (1, "")
    assert f"{folder} holds no published files. Did you mean {folder / 'public'}?" in result.err


@pytest.mark.parametrize("role", ["root", "log", "receipt"])
def test_publish_refuses_a_key_made_for_another_purpose(cli: Cli, folder: Path, role: str) -> None:
    assert cli("new", "--purpose", "agent", "--out", folder / "agent.key").code == 0
    result = cli(*publish_arguments(folder, **{role: folder / "agent.key"}))
    assert (result.code, result.out) == (1, "")
    assert f"was made as the agent key, and a {role} key is needed" in result.err
    assert not (folder / "public").exists()


# -- help and whole life -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([], ["make a private key", "show the public half", "sign a key document", "agree with each other"]),
        (["new"], [f"--purpose {{{','.join(PURPOSES)}}}", "--out FILE", "Nothing is overwritten"]),
        (["show"], ["KEY", "--name NAME", "--passphrase FILE", "ssh-ed25519"]),
        (["publish"], ["--genesis HEX", "--version N", "--previous FILE", "--root-passphrase FILE", "never goes back"]),
        (["check"], ["DIR", "--root VKEY|@FILE", "proves agreement but not origin"]),
    ],
)
def test_help_exits_0_and_names_every_option(cli: Cli, command: list[str], expected: list[str]) -> None:
    result = cli(*command, "--help")
    assert (result.code, result.err) == (0, "")
    text = " ".join(result.out.split())
    assert [part for part in expected if part not in text] == []


def test_no_option_takes_a_secret_as_its_value() -> None:
    """Whoever adds --seed or --password has to read the rule at the top of keys/__main__.py first."""
    assert re.findall(r"--(?:seed|secret|password|private)", build_parser().format_help()) == []


def test_python_m_keys_makes_publishes_and_checks(tmp_path: Path) -> None:
    """The whole life in real processes, as a person types it."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "keys", *arguments]
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)

    files = {purpose: str(tmp_path / f"{purpose}.key") for purpose in ("log", "receipt", "root")}
    for purpose, file in files.items():
        assert run("new", "--purpose", purpose, "--out", file).returncode == 0
    out = str(tmp_path / "public")
    key_arguments = [word for purpose, file in files.items() for word in (f"--{purpose}", file)]
    published = run("publish", "--origin", ORIGIN, "--genesis", GENESIS.hex(), *key_arguments, "--out", out)
    assert (published.returncode, published.stderr) == (0, "")
    root = published.stdout.splitlines()[-1]
    assert run("check", out, "--root", root).returncode == 0
    (tmp_path / "public" / "jwks.json").write_bytes(b"{}")
    assert run("check", out, "--root", root).returncode == 1
    assert run("chekc").returncode == 2


def test_the_known_keys_of_these_tests_are_the_ones_in_the_files(folder: Path) -> None:
    """Guards the fixtures: the documents compared above hold the keys of the files."""
    names = {"root": ROOT, "log": LOG, "receipt": RECEIPT, "other": NEXT_LOG}
    assert {name: load_key(folder / f"{name}.key").did for name in names} == {n: key.did for n, key in names.items()}


def test_published_version_is_read_under_the_pinned_root(cli: Cli, folder: Path) -> None:
    cli(*publish_arguments(folder))
    assert published_version(folder / "public") == 1
