"""Exports: never beyond the newest stored checkpoint, and a failure leaves what was there before."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gateway.export import ExportError, export_file, export_tiles, extent_of
from gateway.signer import Signer
from gateway.store.contract import StoredCheckpoint, StoredEntry
from keys.signing import SigningKey
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.merkle import leaf_hash, node_hash
from verifier.replay.tree import complete_nodes, fold

ORIGIN = "gateway.example/main"
KEYS = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3)]
SIGNER = Signer(ORIGIN, log=KEYS[:1], receipt=KEYS[1:2], seal=KEYS[2])


class Shelf:
    """A reader of `total` made-up entries, of which a checkpoint of `signed` is stored; it can fail at an entry."""

    def __init__(self, total: int, signed: int, fails_at: int | None = None) -> None:
        self.leaves = [f'{{"seq":{seq}}}'.encode() for seq in range(total)]
        self.signed = signed
        self.fails_at = fails_at
        self.asked_up_to = 0

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        self.asked_up_to = max(self.asked_up_to, stop)
        if self.fails_at is not None and stop > self.fails_at:
            raise OSError(5, "the disk failed")
        return [StoredEntry(seq, leaf, None) for seq, leaf in enumerate(self.leaves[start:stop], start)]

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        return {node: self.node(*node) for node in wanted}

    def node(self, level: int, index: int) -> bytes:
        if level == 0:
            return leaf_hash(self.leaves[index])
        return node_hash(self.node(level - 1, 2 * index), self.node(level - 1, 2 * index + 1))

    def root(self, size: int) -> bytes:
        return fold([self.node(*node) for node in complete_nodes(0, size)])

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        raise NotImplementedError

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        raise NotImplementedError

    def last_note(self, size_max: int) -> bytes | None:
        if not self.signed:
            return None
        return SIGNER.sign_checkpoint(self.signed, self.root(self.signed))


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A place for an export; nothing temporary may be left beside it."""
    yield tmp_path / "export"
    assert not list(tmp_path.rglob("*.new"))


def test_an_export_is_header_leaves_and_the_note_as_it_is(out: Path) -> None:
    shelf = Shelf(total=7, signed=5)
    extent = export_file(shelf, out)
    note = shelf.last_note(10)
    assert note is not None
    leaves = b"".join(leaf + b"\n" for leaf in shelf.leaves[:5])
    assert out.read_bytes() == f"tallystick-ledger/v1 {ORIGIN} 5\n".encode() + leaves + b"\n" + note
    assert (extent.origin, extent.size, extent.note) == (ORIGIN, 5, note)


@pytest.mark.parametrize("signed", [1, 255, 256, 257, 300])
def test_nothing_beyond_the_newest_stored_checkpoint_is_ever_read(out: Path, tmp_path: Path, signed: int) -> None:
    shelf = Shelf(total=310, signed=signed)
    export_file(shelf, out)
    assert shelf.asked_up_to == signed
    export_tiles(shelf, tmp_path / "tiles")
    assert shelf.asked_up_to == signed
    hashes = b"".join(
        (tmp_path / "tiles" / name).read_bytes()
        for name in (["tile/0/000"] if signed >= 256 else [])
        + ([f"tile/0/{signed // 256:03d}.p/{signed % 256}"] if signed % 256 else [])
    )
    assert hashes == b"".join(leaf_hash(leaf) for leaf in shelf.leaves[:signed])


def test_a_failure_leaves_the_export_that_was_there(out: Path) -> None:
    out.write_bytes(b"yesterday's")
    with pytest.raises(OSError, match="the disk failed"):
        export_file(Shelf(total=600, signed=600, fails_at=300), out)
    assert out.read_bytes() == b"yesterday's"


def test_a_failure_half_way_leaves_the_tile_directory_at_its_old_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    export_tiles(Shelf(total=100, signed=100), folder)
    before = (folder / "checkpoint").read_bytes()
    with pytest.raises(OSError, match="the disk failed"):
        export_tiles(Shelf(total=600, signed=600, fails_at=300), folder)
    assert (folder / "checkpoint").read_bytes() == before
    assert (folder / "tile" / "0" / "000.p" / "100").is_file(), "the old checkpoint's tiles are still there"


def test_a_full_tile_is_not_written_twice(tmp_path: Path) -> None:
    folder = tmp_path / "tiles"
    export_tiles(Shelf(total=300, signed=300), folder)
    full = folder / "tile" / "0" / "000"
    written = full.stat().st_mtime_ns
    export_tiles(Shelf(total=310, signed=310), folder)
    assert full.stat().st_mtime_ns == written
    assert (folder / "tile" / "0" / "001.p" / "54").is_file()


def test_a_ledger_without_a_checkpoint_exports_nothing(out: Path) -> None:
    with pytest.raises(ExportError, match="no signed checkpoint yet"):
        export_file(Shelf(total=3, signed=0), out)
    with pytest.raises(ExportError):
        extent_of(Shelf(total=0, signed=0))
    assert not out.exists()


def cosigned(shelf: Shelf, size: int, root: bytes | None = None) -> Checkpoint:
    """What a gateway keeps: its own line and one of a witness, which is not judged here."""
    note = SIGNER.sign_checkpoint(size, shelf.root(size) if root is None else root)
    return parse_checkpoint(note + b"\xe2\x80\x94 witness.example/w AAAAAAAAAAA=\n")


def test_an_export_takes_the_cosigned_checkpoint_if_that_reaches_as_far() -> None:
    shelf = Shelf(total=7, signed=5)
    extent = extent_of(shelf, cosigned(shelf, 5))
    assert extent.is_witnessed and extent.size == 5 and b"witness.example/w" in extent.note
    older = extent_of(shelf, cosigned(shelf, 3))
    assert (older.size, older.is_witnessed) == (5, False)


def test_an_export_may_end_exactly_where_witnesses_have_seen_it(out: Path, tmp_path: Path) -> None:
    shelf = Shelf(total=600, signed=600)
    extent = extent_of(shelf, cosigned(shelf, 300), is_witnessed=True)
    export_file(shelf, out, extent)
    assert out.read_bytes().count(b"\n") == 1 + 300 + extent.note.count(b"\n") + 1
    folder = tmp_path / "tiles"
    export_tiles(shelf, folder, extent)
    assert (folder / "checkpoint").read_bytes() == extent.note
    assert (folder / "tile/entries/001.p/44").exists() and not (folder / "tile/entries/002.p").exists()
    export_tiles(shelf, folder)
    with pytest.raises(ExportError, match="of which 300 are witnessed"):
        export_tiles(shelf, folder, extent)


@pytest.mark.parametrize("kept", [None, "beyond", "another root"])
def test_what_is_kept_as_cosigned_is_this_ledger_s_or_nothing(kept: str | None) -> None:
    shelf, longer = Shelf(total=7, signed=5), Shelf(total=7, signed=7)
    shown = {"beyond": cosigned(longer, 7), "another root": cosigned(shelf, 5, bytes(32))}.get(kept or "")
    assert not extent_of(shelf, shown).is_witnessed
    with pytest.raises(ExportError, match="leave out --witnessed"):
        extent_of(shelf, shown, is_witnessed=True)
