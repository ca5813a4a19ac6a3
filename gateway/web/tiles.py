"""Paths and contents of C2SP tlog-tiles: which nodes a tile holds, and where it lies.

Pure. Partial tiles are never stored: a tile of width W is the first W hashes of the full one, so each is computed from
the ledger's nodes when asked for, and every size that was ever signed can be served.
Source: C2SP tlog-tiles; docs/protocol.md, reading the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TILE_WIDTH = 256
LEVEL_MAX = 6  # 8 × 7 levels of hashes would be a ledger of 2^56 entries
_PATH = re.compile(r"tile/(entries|0|[1-9][0-9]?)/((?:x[0-9]{3}/){0,5}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile, or with `level` None one entry bundle. `width` counts its hashes or entries, 1 to 256."""

    level: int | None
    index: int
    width: int

    @property
    def is_full(self) -> bool:
        """Whether its bytes can never change."""
        return self.width == TILE_WIDTH

    @property
    def start(self) -> int:
        """Return the position of its first hash in its level (of its first entry, for a bundle)."""
        return self.index * TILE_WIDTH

    @property
    def path(self) -> str:
        """Return where it lies below the ledger's prefix, such as `tile/0/x001/234.p/17`."""
        level = "entries" if self.level is None else str(self.level)
        partial = "" if self.is_full else f".p/{self.width}"
        return f"tile/{level}/{_grouped(self.index)}{partial}"


def parse_tile_path(path: str) -> Tile | None:
    """Return the tile that `path` names, or None when it is not the one spelling of any tile."""
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    level = None if match[1] == "entries" else int(match[1])
    tile = Tile(level, int(match[2].replace("x", "").replace("/", "")), int(match[3] or TILE_WIDTH))
    is_known = (level is None or level <= LEVEL_MAX) and tile.width <= TILE_WIDTH
    return tile if is_known and tile.path == path else None


def size_of(tile: Tile) -> int:
    """Return how many entries a ledger has at least that has every hash of the tile."""
    return (tile.start + tile.width) << (8 * (tile.level or 0))


def node_positions(tile: Tile) -> list[tuple[int, int]]:
    """Return (level, index) of the tree's nodes in a hash tile, in order; level 0 of the tree are the leaf hashes."""
    assert tile.level is not None, "a bundle holds entries, not hashes"
    return [(8 * tile.level, tile.start + offset) for offset in range(tile.width)]


def tiles_of(size: int) -> Iterator[Tile]:
    """Yield every tile and bundle of a ledger of `size` entries, the widest of each only."""
    for level in (None, *range(LEVEL_MAX + 1)):
        hashes = size >> (8 * (level or 0))
        for index in range(-(-hashes // TILE_WIDTH)):
            yield Tile(level, index, min(TILE_WIDTH, hashes - index * TILE_WIDTH))


def bundle(leaves: Sequence[bytes]) -> bytes:
    """Return the entry bundle of `leaves`: each preceded by its length as two big-endian bytes."""
    return b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in leaves)


def _grouped(index: int) -> str:
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.append(f"x{index % 1000:03d}")
    return "/".join(reversed(groups))
