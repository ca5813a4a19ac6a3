"""`tallystick keys new|show|publish|check|retention`: makes keys, shows their public halves, publishes and checks key
documents, and says from which entry on entries are served for ever.

Exit codes: 0 done or in agreement, 1 refused or in disagreement (the reason on standard error), 2 wrong usage.
No option takes a secret: other users of the machine can read the arguments of every process.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from keys.did import PUBLIC_KEY_CHARS_MAX, parse_public_key
from keys.files import KeyFileError, load_key, new_key, passphrase_path
from keys.forms import NOTE_FILE, ROOT_FILE, FormCheck, check_forms, root_vkey
from keys.publish import PublishError, document_hash, publish, read_forms
from keys.retention import RETENTION_FILE, Retention, publish_retention, sign_retention
from keys.signing import SigningKey
from verifier.did import encode_did, thumbprint
from verifier.keyring import KeyDocument, KeyLine, Keyring, open_key_document
from verifier.note import VerifierKey, make_vkey, parse_vkey
from verifier.wire import TEXT_BYTES_MAX, Malformed, decode_decimal, decode_hex

EXIT_OK, EXIT_REFUSED = 0, 1
PUBLIC_SUFFIXES = (".pub", ".vkey")

# Purposes never mix: a signature under one could be replayed as another. The text is what to do with the new key.
PURPOSES = {
    "log": "Signs checkpoints. Keep it on the gateway; publish it with: tallystick keys publish --log …",
    "receipt": "Signs receipts. Keep it on the gateway; publish it with: tallystick keys publish --receipt …",
    "root": "Signs key documents only. Move both files offline, to two different places; readers pin its vkey.",
    "agent": "Signs an agent's requests. Give the DID to an operator, who enrols it.",
    "witness": "Cosigns checkpoints. Make it with: tallystick witness init, which publishes its vkey, too.",
    "export": "Signs receipts that you write for other tools (tallystick receipt export), and nothing else.",
    "operator": "Signs what changes the rules. Name its DID when the ledger is opened; keep it away from the gateway.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; texts for people go to standard error when something is refused."""
    arguments = build_parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except (KeyFileError, PublishError, Malformed) as error:
        print(f"tallystick keys: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tallystick keys: {error.filename}: {error.strerror}. Check the path and the disk.", file=sys.stderr)
    return EXIT_REFUSED


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="tallystick keys", description="Make keys, show their public halves, publish and check key documents."
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_new(commands)
    _add_show(commands)
    _add_publish(commands)
    _add_check(commands)
    _add_retention(commands)
    return parser


def _add_new(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    new = commands.add_parser(
        "new",
        help="make a private key and its passphrase file",
        description="Make an encrypted private key FILE and, beside it, a file with its random passphrase, both mode "
        "0600. Nothing is overwritten.",
    )
    new.add_argument("--purpose", required=True, choices=list(PURPOSES), help="what the key is for; purposes never mix")
    new.add_argument("--out", required=True, type=Path, metavar="FILE", help="the new key file, such as keys/log.key")
    new.set_defaults(command=_new)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = commands.add_parser(
        "show",
        help="show the public half of a key in every form",
        description="Print did:key, thumbprint, hex and, when a name is known, verifier key. KEY is a private key "
        "file, a .pub or .vkey file, or the text of a did:key, verifier key or 'ssh-ed25519 …' line.",
    )
    show.add_argument("key", metavar="KEY", help="a file or the text of a public key")
    show.add_argument("--name", help="print the verifier key under this name, such as ledger.example/main")
    show.add_argument("--passphrase", type=Path, metavar="FILE", help="passphrase file of a private key file")
    show.set_defaults(command=_show)


def _add_publish(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    publishing = commands.add_parser(
        "publish",
        help="sign a key document and write all its published forms",
        description="Sign the ledger's key document with the root key and write all published forms as DIR: keys.note, "
        "root.vkey, vkeys.txt, policy.txt, jwks.json, did.json. Everything is read back through the verifier before "
        "it becomes visible. The version never goes back.",
    )
    publishing.add_argument("--origin", required=True, help="the ledger's origin, such as ledger.example/main")
    publishing.add_argument("--genesis", required=True, metavar="HEX", help="leaf hash of its entry 0, 64 hex digits")
    for purpose in ("log", "receipt", "root"):
        publishing.add_argument(f"--{purpose}", required=True, type=Path, metavar="FILE", help=f"{purpose} key file")
    publishing.add_argument("--root-passphrase", type=Path, metavar="FILE", help="if not beside the root key file")
    publishing.add_argument("--out", required=True, type=Path, metavar="DIR", help="the published folder")
    publishing.add_argument("--version", default="1", metavar="N", help="version of the document (default 1)")
    publishing.add_argument("--previous", type=Path, metavar="FILE", help="keys.note of version N-1, if N is not 1")
    publishing.set_defaults(command=_publish)


def _add_check(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    check = commands.add_parser(
        "check",
        help="check that all published files agree with each other",
        description="Check that every published file in DIR names exactly the keys of the signed key document. "
        "Without --root the root key is taken from DIR itself, which proves agreement but not origin.",
    )
    check.add_argument("folder", type=Path, metavar="DIR", help="the published folder")
    check.add_argument("--root", metavar="VKEY|@FILE", help="the root key you pin, as text or in a file")
    check.set_defaults(command=_check)


def _add_retention(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    retention = commands.add_parser(
        "retention",
        help="say from which entry on entries are served for ever",
        description="Sign and publish the ledger's retention policy: bundles of entries below the minimum may then be "
        "refused by the gateway and pruned from static copies. Hashes, receipts and the database keep everything. The "
        "minimum never goes back.",
    )
    retention.add_argument("--data", required=True, type=Path, metavar="DIR", help="the data directory")
    retention.add_argument("--minimum", required=True, metavar="N", help="the first entry that stays served")
    retention.add_argument(
        "--root-folder", type=Path, metavar="DIR", help="the folder with root.key and root.pass (default: DATA/root)"
    )
    retention.set_defaults(command=_retention)


# -- commands ----------------------------------------------------------------------------------------------------------


def _new(arguments: argparse.Namespace) -> int:
    key = new_key(arguments.out, purpose=arguments.purpose)
    print(f"made the {arguments.purpose} key {arguments.out} and its passphrase {passphrase_path(arguments.out)}")
    _print_public(key.public_key, None)
    print(PURPOSES[arguments.purpose])
    return EXIT_OK


def _show(arguments: argparse.Namespace) -> int:
    text: str = arguments.key
    path = Path(text)
    if not os.path.lexists(path):
        _print_public(_parse_argument(text), _vkey_of(text, arguments.name))
    elif path.suffix in PUBLIC_SUFFIXES:
        line = _read_line(path)
        _print_public(parse_public_key(line), _vkey_of(line, arguments.name))
    else:
        public_key = load_key(path, arguments.passphrase).public_key
        _print_public(public_key, make_vkey(arguments.name, public_key) if arguments.name else None)
    return EXIT_OK


def _publish(arguments: argparse.Namespace) -> int:
    root = load_key(arguments.root, arguments.root_passphrase, purpose="root")
    document = _next_document(arguments, root)
    publish(arguments.out, document, root)
    key = root_vkey(document.origin, root.public_key)
    _print_table(check_forms(read_forms(arguments.out), key))
    print(f"published version {document.version} as {arguments.out}; readers pin this root key:\n{key.vkey}")
    return EXIT_OK


def _check(arguments: argparse.Namespace) -> int:
    files = _forms_in(arguments.folder)
    pinned: str | None = arguments.root
    root = parse_vkey(_text_or_file(pinned) if pinned is not None else _line_of(files.get(ROOT_FILE, b""), ROOT_FILE))
    rows = check_forms(files, root)
    _print_table(rows)
    if pinned is None:
        print(f"The root key was taken from {arguments.folder} itself. To prove origin too, add --root VKEY.")
    return EXIT_OK if all(row.problem is None for row in rows) else EXIT_REFUSED


def _retention(arguments: argparse.Namespace) -> int:
    public: Path = arguments.data / "public"
    root = load_key((arguments.root_folder or arguments.data / "root") / "root.key", purpose="root")
    note = read_forms(public).get(NOTE_FILE, b"")
    pinned = parse_vkey(_read_line(public / ROOT_FILE))
    document = open_key_document(note, pinned)
    key = root_vkey(document.origin, root.public_key)
    policy = Retention(document.origin, document.genesis, decode_decimal(arguments.minimum))
    publish_retention(public, sign_retention(policy, root, key), pinned)
    print(f"{public}/{RETENTION_FILE}: entries below {policy.minimum} may be refused by who serves {policy.origin}")
    return EXIT_OK


def _forms_in(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise PublishError(f"there is no folder {folder}. Name the published folder, such as DATA/public.")
    files = read_forms(folder)
    if not files and (folder / "public").is_dir():
        raise PublishError(f"{folder} holds no published files. Did you mean {folder / 'public'}?")
    return files


# -- the next key document ---------------------------------------------------------------------------------------------


def _next_document(arguments: argparse.Namespace, root: SigningKey) -> KeyDocument:
    """Return the document to publish: of version 1, or the previous one's lines under the next version."""
    version = _version(arguments.version)
    if (version == 1) != (arguments.previous is None):
        raise PublishError(f"version {version}: every version but 1, and only those, needs --previous FILE.")
    key = root_vkey(arguments.origin, root.public_key)
    lines = _key_lines(arguments)
    previous = None if arguments.previous is None else _open_previous(arguments.previous, key, version)
    document = KeyDocument(
        origin=arguments.origin,
        genesis=_genesis(arguments.genesis),
        version=version,
        previous=None if previous is None else document_hash(previous),
        keys=lines if previous is None else _carried(previous, lines),
    )
    Keyring(key, document)  # refuses one key for two purposes before anything is signed
    return document


def _version(text: str) -> int:
    try:
        version = decode_decimal(text)
    except Malformed as error:
        raise Malformed(f"--version: {error}") from error
    if version < 1:
        raise Malformed("--version: versions begin at 1")
    return version


def _genesis(text: str) -> bytes:
    try:
        return decode_hex(text, 32)
    except Malformed as error:
        raise Malformed(f"--genesis: {error}. It is the leaf hash of entry 0") from error


def _key_lines(arguments: argparse.Namespace) -> tuple[KeyLine, ...]:
    """Return the lines of the log and the receipt key, open from the first entry on."""
    log = load_key(arguments.log, purpose="log").public_key
    receipt = load_key(arguments.receipt, purpose="receipt").public_key
    return (
        KeyLine("log", make_vkey(arguments.origin, log)),
        KeyLine("receipt", make_vkey(f"{arguments.origin}/receipt", receipt)),
    )


def _open_previous(path: Path, root: VerifierKey, version: int) -> KeyDocument:
    previous = open_key_document(_read_file(path), root)
    if previous.version != version - 1:
        raise PublishError(f"{path} is version {previous.version}, and version {version} follows {version - 1} only.")
    return previous


def _carried(previous: KeyDocument, current: tuple[KeyLine, ...]) -> tuple[KeyLine, ...]:
    """Return the previous document's lines, once the keys in use are all among its active ones.

    A line that silently vanished would turn every receipt under its key invalid, so nothing is dropped, and a new key
    comes in only through a rotation, whose ledger entries fix the sizes.
    """
    active = {(line.purpose, line.key) for line in previous.keys if line.status == "active"}
    for line in current:
        if (line.purpose, line.key) not in active:
            raise PublishError(
                f"the {line.purpose} key is not an active one of the previous document. A change of keys is a "
                f"rotation with entries in the ledger, which this command does not make. Use the published key."
            )
    return previous.keys


# -- reading and printing ----------------------------------------------------------------------------------------------


def _parse_argument(text: str) -> bytes:
    try:
        return parse_public_key(text)
    except Malformed as error:
        raise Malformed(f"{error}. No file has that name either") from error


def _vkey_of(text: str, name: str | None) -> VerifierKey | None:
    """Return the verifier key to show: under `name`, else the one that `text` is itself, else none."""
    if name is not None:
        return make_vkey(name, parse_public_key(text))
    return parse_vkey(text) if "+" in text and not text.startswith(("did:", "ssh-")) else None


def _print_public(public_key: bytes, vkey: VerifierKey | None) -> None:
    print(f"did         {encode_did(public_key)}")
    print(f"thumbprint  {thumbprint(public_key)}")
    print(f"hex         {public_key.hex()}")
    if vkey is not None:
        print(f"vkey        {vkey.vkey}")


def _print_table(rows: Sequence[FormCheck]) -> None:
    for row in rows:
        print(f"{row.file:<12}{'ok' if row.problem is None else 'WRONG':<7}{row.problem or row.text}")


def _text_or_file(value: str) -> str:
    return _read_line(Path(value[1:])) if value.startswith("@") else value


def _read_line(path: Path) -> str:
    return _line_of(_read_file(path), str(path))


def _line_of(content: bytes, name: str) -> str:
    """Return the one line of a public key file, without its line end."""
    try:
        text = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise Malformed(f"{name} is not text. A public key file holds one line") from error
    if not text or "\n" in text or len(text) > PUBLIC_KEY_CHARS_MAX:
        raise Malformed(f"{name} does not hold exactly one line of at most {PUBLIC_KEY_CHARS_MAX} characters")
    return text


def _read_file(path: Path) -> bytes:
    with open(path, "rb") as file:
        content = file.read(TEXT_BYTES_MAX + 1)
    if len(content) > TEXT_BYTES_MAX:
        raise Malformed(f"{path} is longer than {TEXT_BYTES_MAX} bytes. Is this the right file?")
    return content


if __name__ == "__main__":
    sys.exit(main())
