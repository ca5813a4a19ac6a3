"""What a profile remembers: pins, the key, and the history that was proven."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.client.errors import AnswerRefused, ProfileError, SplitView
from gateway.client.history import TILE_WIDTH, is_extension, tile_path
from gateway.client.join import authority_of, read_root
from gateway.client.profile import (
    Address,
    default_home,
    encode_address,
    open_profile,
    parse_address,
    write_profile,
)
from gateway.client.seen import SIZES_MAX, Seen, open_checkpoint
from gateway.web.tiles import Tile
from keys.files import new_key
from tests.client.world import ALICE, AUTHORITY, ORIGIN, Book, key
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.keyring import KeyDocument, KeyLine, key_document_text
from verifier.merkle import leaf_hash
from verifier.note import Note, encode_note, signature_line
from verifier.replay.tree import Tree
from verifier.wire import Malformed

ADDRESS = Address("https://gateway.example", ORIGIN, AUTHORITY)


def grown(book: Book, count: int) -> Book:
    for _ in range(count):
        book.append("ledger.disputed", {"checkpoint": "x", "size": 1, "root": "x"}, actor="gateway", time_ms=0)
    return book


def seen(book: Book, path: Path | None = None) -> Seen:
    return Seen(path, book.keyring, book.origin, book.genesis)


def checkpoint(book: Book, size: int | None = None) -> Checkpoint:
    return parse_checkpoint(book.checkpoint(size))


# -- seen.note ---------------------------------------------------------------------------------------------------------


def test_a_newcomer_is_anchored_in_the_pinned_entry_0() -> None:
    book = grown(Book(), 3)
    assert seen(book).anchor == f"{ORIGIN} 1 {encode_root(book, 1)}"


def encode_root(book: Book, size: int) -> str:
    return book.checkpoint(size).decode().split("\n")[2]


def test_only_what_was_proven_survives_the_process(tmp_path: Path) -> None:
    book, path = grown(Book(), 5), tmp_path / "seen.note"
    memory = seen(book, path)
    memory.remember(checkpoint(book, 4))
    assert not path.exists()
    memory.prove(checkpoint(book, 3))
    assert path.read_bytes() == book.checkpoint(3)
    assert memory.anchor.split(" ")[1] == "4"
    again = seen(book, path)
    assert (again.newest.size, again.proven.size) == (3, 3)


def test_the_file_never_moves_back(tmp_path: Path) -> None:
    """Two processes of one profile: the one with the older memory leaves the newer file alone."""
    book, path = grown(Book(), 5), tmp_path / "seen.note"
    older, newer = seen(book, path), seen(book, path)
    newer.prove(checkpoint(book, 5))
    older.prove(checkpoint(book, 3))
    assert path.read_bytes() == book.checkpoint(5)
    assert older.newest.size == 5, "and what the other one saw counts here too"


def test_two_processes_that_were_shown_two_histories_find_out(tmp_path: Path) -> None:
    book, path = grown(Book(), 5), tmp_path / "seen.note"
    other = Book()
    other.append("ledger.disputed", {"checkpoint": "other", "size": 1, "root": "x"}, actor="gateway", time_ms=0)
    grown(other, 4)
    here, there = seen(book, path), seen(book, path)
    here.prove(checkpoint(book, 4))
    with pytest.raises(SplitView) as split:
        there.prove(checkpoint(other, 4))
    assert {split.value.ours, split.value.theirs} == {book.checkpoint(4), other.checkpoint(4)}
    assert path.read_bytes() == book.checkpoint(4)


def test_a_smaller_checkpoint_is_no_contradiction_and_another_root_is() -> None:
    book = grown(Book(), 5)
    memory = seen(book)
    memory.remember(checkpoint(book, 5))
    memory.remember(checkpoint(book, 3))
    assert memory.newest.size == 5
    with pytest.raises(SplitView):
        memory.remember(parse_checkpoint(book.checkpoint(3, root=bytes(32))))


def test_the_memory_of_sizes_is_bounded_and_keeps_the_newest() -> None:
    book = grown(Book(), SIZES_MAX + 5)
    memory = seen(book)
    for size in range(2, SIZES_MAX + 5):
        memory.remember(checkpoint(book, size))
    assert len(memory._by_size) == SIZES_MAX
    with pytest.raises(SplitView):
        memory.remember(parse_checkpoint(book.checkpoint(SIZES_MAX + 4, root=bytes(32))))


@pytest.mark.parametrize("content", [b"", b"not a note", b"\xff" * 70_000])
def test_a_damaged_memory_is_named_and_not_thrown_away(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "seen.note"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=r"seen\.note can't be used"):
        seen(Book(), path)
    assert path.read_bytes() == content


def test_a_checkpoint_counts_only_under_a_pinned_log_key_that_is_not_compromised() -> None:
    book = grown(Book(), 3)
    assert open_checkpoint(book.checkpoint(), book.keyring, ORIGIN).size == 4
    thief = Book(seed=201)
    with pytest.raises(Malformed):
        open_checkpoint(thief.checkpoint(), book.keyring, ORIGIN)
    with pytest.raises(Malformed):
        open_checkpoint(book.checkpoint(), book.keyring, "gateway.example/other")
    stolen = KeyLine("log", book.log_vkey, status="compromised", final_size=9, final_root=bytes(32))
    book.key_lines = (stolen, book.key_lines[1])
    with pytest.raises(Malformed):
        open_checkpoint(book.checkpoint(), book.keyring, ORIGIN)


# -- history -----------------------------------------------------------------------------------------------------------


def big_tree(count: int) -> Tree:
    tree = Tree()
    for number in range(count):
        tree.append(leaf_hash(b"%d" % number))
    return tree


class Tiles:
    """Serves the hash tiles of a tree, as a gateway or a mirror would, and counts."""

    def __init__(self, tree: Tree, size: int) -> None:
        self.served: list[str] = []
        self._bytes = {
            tile_path(level, number, width): b"".join(
                tree.node(8 * level, number * TILE_WIDTH + at) for at in range(width)
            )
            for level in range(3)
            for number in range(-(-(size >> 8 * level) // TILE_WIDTH))
            for width in [min(TILE_WIDTH, (size >> 8 * level) - number * TILE_WIDTH)]
        }

    async def fetch(self, path: str) -> bytes:
        self.served.append(path)
        return self._bytes[path]


SIZES = [
    (1, 2),
    (1, 70_000),
    (2, 3),
    (255, 256),
    (256, 257),
    (255, 70_000),
    (256, 65_536),
    (300, 70_000),
    (65_535, 65_537),
]
TREE = big_tree(70_000)


def head(size: int, root: bytes | None = None) -> Checkpoint:
    return Checkpoint(ORIGIN, size, TREE.root(size) if root is None else root, Note("", ()))


@pytest.mark.parametrize(("old", "new"), SIZES)
async def test_growth_is_proven_from_a_handful_of_tiles(old: int, new: int) -> None:
    tiles = Tiles(TREE, new)
    assert await is_extension(tiles.fetch, head(old), head(new))
    assert len(tiles.served) == len(set(tiles.served)) <= 8


@pytest.mark.parametrize(("old", "new"), SIZES)
async def test_a_tree_that_changed_anything_old_is_no_extension(old: int, new: int) -> None:
    assert not await is_extension(Tiles(TREE, new).fetch, head(old, root=bytes(32)), head(new))
    assert not await is_extension(Tiles(TREE, new).fetch, head(old), head(new, root=bytes(32)))


@pytest.mark.parametrize("change", [lambda tile: tile[:-1], lambda tile: tile + bytes(32), lambda tile: b""])
async def test_a_tile_of_another_length_is_refused_though_its_hashes_would_do(change: Callable[[bytes], bytes]) -> None:
    tiles = Tiles(TREE, 300)

    async def fetch(path: str) -> bytes:
        return change(await tiles.fetch(path))

    with pytest.raises(AnswerRefused, match="a hash tile has"):
        await is_extension(fetch, head(255), head(300))


@pytest.mark.parametrize("number", [0, 7, 999, 1_000, 1_234_067, 999_999_999])
@pytest.mark.parametrize("width", [1, 255, 256])
def test_tile_paths_are_those_the_gateway_serves(number: int, width: int) -> None:
    assert tile_path(1, number, width) == Tile(1, number, width).path


# -- profile -----------------------------------------------------------------------------------------------------------


def made(home: Path, book: Book, address: Address = ADDRESS) -> Path:
    write_profile(home, address, root=book.root_vkey.vkey, document=book.document)
    if not (home / "agent.key").exists():
        new_key(home / "agent.key")
    return home


def test_a_profile_opens_as_it_was_written(tmp_path: Path) -> None:
    book = Book()
    profile = open_profile(made(tmp_path / "home", book))
    assert (profile.address, profile.genesis, profile.home) == (ADDRESS, book.genesis, tmp_path / "home")
    assert profile.keyring == book.keyring
    assert os.stat(tmp_path / "home").st_mode & 0o777 == 0o700


def test_a_missing_profile_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="tallystick join"):
        open_profile(tmp_path)


DAMAGES = [
    ("gateway.json", b"{}"),
    ("gateway.json", b"x" * 5_000),
    ("root.vkey", b"nonsense"),
    ("keys.note", b"nonsense"),
    ("agent.key", b"nonsense"),
    ("agent.pass", b"short"),
]


@pytest.mark.parametrize(("name", "content"), DAMAGES)
def test_a_damaged_profile_is_a_sentence_and_no_traceback(tmp_path: Path, name: str, content: bytes) -> None:
    home = made(tmp_path / "home", Book())
    (home / name).write_bytes(content)
    with pytest.raises(ProfileError):
        open_profile(home)


def test_a_document_of_another_root_key_is_never_written(tmp_path: Path) -> None:
    book, thief = Book(), Book(seed=201)
    home = made(tmp_path / "home", book)
    with pytest.raises(Malformed, match="signature"):
        write_profile(home, ADDRESS, root=book.root_vkey.vkey, document=thief.document)
    with pytest.raises(Malformed, match="another root key"):
        write_profile(home, ADDRESS, root=thief.root_vkey.vkey, document=thief.document)
    assert open_profile(home).keyring == book.keyring


def test_an_older_key_document_is_refused(tmp_path: Path) -> None:
    """The gateway serves yesterday's document, which lacks the line that disowns a stolen key."""
    book = Book()
    newer = KeyDocument(ORIGIN, book.genesis, 2, bytes(32), book.key_lines)
    text = key_document_text(newer)
    signed = encode_note(Note(text, (signature_line(book.root_vkey, book.root.sign(text.encode())),)))
    home = tmp_path / "home"
    write_profile(home, ADDRESS, root=book.root_vkey.vkey, document=signed)
    with pytest.raises(Malformed, match="version 1, older than 2"):
        write_profile(home, ADDRESS, root=book.root_vkey.vkey, document=book.document)


@pytest.mark.parametrize(
    "content",
    [
        b'{"authority":"h","origin":"o/x"}',
        b'{"authority":"h","origin":"o/x","url":"ftp://h"}',
        b'{"authority":"H","origin":"o/x","url":"http://h"}',
        b'{"authority":"h","origin":"O","url":"http://h"}',
        b'{"authority":"h","origin":"o/x","url":"http://h","more":1}',
    ],
)
def test_a_wrong_address_is_refused(content: bytes) -> None:
    with pytest.raises(Malformed):
        parse_address(content)


def test_an_address_survives_its_file() -> None:
    assert parse_address(encode_address(ADDRESS)) == ADDRESS


def test_the_home_is_the_variable_or_a_folder_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TALLYSTICK_HOME", str(tmp_path))
    assert default_home() == tmp_path
    monkeypatch.delenv("TALLYSTICK_HOME")
    assert default_home() == Path.home() / ".tallystick"


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://127.0.0.1:8420", "127.0.0.1:8420"),
        ("https://Gateway.Example", "gateway.example"),
        ("https://gateway.example:443/", "gateway.example"),
        ("http://gateway.example:443", "gateway.example:443"),
        ("http://[::1]:80", "[::1]"),
    ],
)
def test_the_authority_is_the_host_as_it_is_signed(url: str, authority: str) -> None:
    assert authority_of(url) == authority


@pytest.mark.parametrize("url", ["gateway.example", "ftp://x", "http://", "http://x/path", "http://x/?q=1"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Malformed, match="http"):
        authority_of(url)


def test_the_root_key_comes_from_the_word_or_from_a_file(tmp_path: Path) -> None:
    vkey = Book().root_vkey.vkey
    (tmp_path / "root.vkey").write_text(f"{vkey}\n")
    assert read_root(vkey) == read_root(f"@{tmp_path}/root.vkey") == vkey
    with pytest.raises(Malformed, match="can't be read"):
        read_root(f"@{tmp_path}/missing")
    assert key(1).did == ALICE.did
