"""Tiles have exactly one spelling each, and hold the hashes that C2SP tlog-tiles says."""

import pytest

from gateway.web.tiles import Tile, bundle, node_positions, parse_tile_path, size_of, tiles_of

ONE_SPELLING = [
    ("tile/0/000", Tile(0, 0, 256)),
    ("tile/0/273.p/112", Tile(0, 273, 112)),
    ("tile/1/001.p/17", Tile(1, 1, 17)),
    ("tile/entries/x001/x234/067", Tile(None, 1234067, 256)),
    ("tile/entries/x001/234.p/255", Tile(None, 1234, 255)),
]
NO_TILE = [
    "tile/0/0",
    "tile/00/000",
    "tile/0/000.p/0",
    "tile/0/000.p/256",
    "tile/0/000.p/01",
    "tile/0/x000/001",
    "tile/0/001/x234",
    "tile/7/000",
    "tile/0/000/",
    "tile/0/000\n",
    "tile/0/٠٠٠",
    "tile/x/000",
    "tile/-1/000",
    "",
]


@pytest.mark.parametrize(("path", "tile"), ONE_SPELLING)
def test_a_path_and_its_tile_are_the_same_thing(path: str, tile: Tile) -> None:
    assert parse_tile_path(path) == tile
    assert tile.path == path


@pytest.mark.parametrize("path", NO_TILE)
def test_any_other_spelling_is_no_tile(path: str) -> None:
    assert parse_tile_path(path) is None


def test_a_ledger_of_70000_has_the_tiles_of_the_specification() -> None:
    tiles = [tile.path for tile in tiles_of(70_000)]
    hashes = [path for path in tiles if "entries" not in path]
    assert hashes[:273] == [Tile(0, index, 256).path for index in range(273)]
    assert hashes[273:] == ["tile/0/273.p/112", "tile/1/000", "tile/1/001.p/17", "tile/2/000.p/1"]
    assert tiles[:2] == ["tile/entries/000", "tile/entries/001"]
    assert tiles[273] == "tile/entries/273.p/112"


@pytest.mark.parametrize(("size", "widths"), [(1, [1]), (255, [255]), (256, [256]), (257, [256, 1])])
def test_the_last_tile_is_as_wide_as_the_ledger_allows(size: int, widths: list[int]) -> None:
    assert [tile.width for tile in tiles_of(size) if tile.level == 0] == widths
    assert [tile.width for tile in tiles_of(size) if tile.level is None] == widths
    assert all(size_of(tile) <= size for tile in tiles_of(size))
    assert all(
        size_of(tile) == size
        for tile in tiles_of(size)
        if not tile.level and tile.width == widths[-1] and tile.index == len(widths) - 1
    )


def test_a_tile_above_level_zero_names_the_roots_of_full_tiles() -> None:
    assert node_positions(Tile(1, 1, 2)) == [(8, 256), (8, 257)]


def test_a_bundle_is_lengths_and_entries() -> None:
    assert bundle([b"ab", b""]) == b"\x00\x02ab\x00\x00"
