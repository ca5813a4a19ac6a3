"""A log that signs whatever it is told to, and the requests that it shows its checkpoints with."""

from collections.abc import Sequence
from pathlib import Path

from gateway.witness.books import Books, add_line
from gateway.witness.commands import KEY_FILE, make_witness
from gateway.witness.shelf import Shelf
from gateway.witness.witness import Answer, Witness
from keys.files import load_key
from keys.signing import SigningKey
from verifier.checkpoint import checkpoint_text
from verifier.merkle import leaf_hash
from verifier.note import Note, SignatureLine, VerifierKey, encode_note, make_vkey, parse_vkey, signature_line
from verifier.replay.tree import Tree
from verifier.wire import encode_base64

ORIGIN = "log.example/a"
NOW_S = 1_800_000_000


def line_by(key: SigningKey, name: str, text: str) -> SignatureLine:
    return signature_line(make_vkey(name, key.public_key), key.sign(text.encode()))


def body_of(old: int, path: Sequence[bytes], note: bytes) -> bytes:
    rows = "".join(f"{encode_base64(part)}\n" for part in path)
    return f"old {old}\n{rows}\n".encode() + note


class Log:
    """A tree with a key. Two of them with other `words` are two histories of one log from entry `fork` on."""

    def __init__(
        self, words: str = "leaf", *, fork: int = 0, size: int = 40, seed: int = 1, origin: str = ORIGIN
    ) -> None:
        self.origin = origin
        self.key = SigningKey(bytes([seed]) * 32)
        self.tree = Tree()
        for index in range(size):
            self.tree.append(leaf_hash(f"{words if index >= fork else 'leaf'}-{index}".encode()))

    @property
    def vkey(self) -> VerifierKey:
        return make_vkey(self.origin, self.key.public_key)

    def note(self, size: int) -> bytes:
        return self.sign(checkpoint_text(self.origin, size, self.tree.root(size)))

    def sign(self, text: str) -> bytes:
        return encode_note(Note(text, (line_by(self.key, self.origin, text),)))

    def request(self, old: int, size: int) -> bytes:
        """The honest request of a log whose newest witnessed size is `old`."""
        return body_of(old, self.tree.consistency(old, size), self.note(size))


class Post:
    """A witness in a folder, without its door. `now_s` is its clock."""

    def __init__(self, folder: Path, *logs: Log, name: str = "witness.example/t1") -> None:
        self.folder = folder
        if not (folder / KEY_FILE).exists():
            make_witness(folder, name)
            for log in logs:
                add_line(folder, f"log {log.vkey.vkey}")
        self.now_s = NOW_S
        self.vkey = parse_vkey((folder / "witness.vkey").read_text().strip())
        self.shelf = Shelf(folder, self.vkey)
        key = load_key(folder / KEY_FILE, purpose="witness")
        self.witness = Witness(key, self.vkey, books=Books(folder), shelf=self.shelf, clock_s=lambda: self.now_s)

    def add(self, body: bytes) -> Answer:
        return self.witness.add(body)

    def again(self) -> "Post":
        """The same witness after a stop and a start."""
        self.shelf.close()
        return Post(self.folder)
