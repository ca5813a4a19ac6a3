"""Checks that a larger tree still contains the smaller one this client knew, from the public hash tiles.

The gateway is not asked for a proof: any consistency proof can be built from tiles, and tiles can be fetched from a
mirror as well. What comes back is not trusted; either the hashes fold into both signed roots or they don't.
Source: C2SP tlog-tiles; RFC 6962 section 2.1.2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from gateway.client.errors import AnswerRefused
from verifier.checkpoint import Checkpoint
from verifier.merkle import HASH_BYTES, is_consistent, node_hash
from verifier.replay.tree import complete_nodes, consistency_ranges, fold

TILE_WIDTH = 256
TILE_LEVELS = 8  # levels of the tree in one level of tiles

# Returns the bytes of the tile at a path such as "tile/0/x001/234.p/17".
FetchTile = Callable[[str], Awaitable[bytes]]


async def is_extension(fetch: FetchTile, old: Checkpoint, new: Checkpoint) -> bool:
    """Return whether `new` (the larger, both verified) contains every entry of `old`, in place.

    AnswerRefused when a tile has the wrong length; False when the hashes don't fit: there is no one
    history.
    """
    tiles = _Tiles(fetch, new.size)
    path = [await tiles.subtree(start, stop) for start, stop in consistency_ranges(old.size, new.size)]
    return is_consistent(old.size, old.root, new.size, new.root, path)


class _Tiles:
    """Hashes of one tree of `size` entries, each tile fetched once."""

    def __init__(self, fetch: FetchTile, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._tiles: dict[tuple[int, int], Sequence[bytes]] = {}

    async def subtree(self, start: int, stop: int) -> bytes:
        return fold([await self._node(level, index) for level, index in complete_nodes(start, stop)])

    async def _node(self, level: int, index: int) -> bytes:
        """Fold the 2^(level % 8) hashes of one tile that lie below node (level, index)."""
        tile_level, height = divmod(level, TILE_LEVELS)
        number, offset = divmod(index << height, TILE_WIDTH)
        hashes = (await self._tile(tile_level, number))[offset : offset + (1 << height)]
        while len(hashes) > 1:
            hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
        return hashes[0]

    async def _tile(self, level: int, number: int) -> Sequence[bytes]:
        if (level, number) not in self._tiles:
            width = min(TILE_WIDTH, (self._size >> (TILE_LEVELS * level)) - number * TILE_WIDTH)
            content = await self._fetch(tile_path(level, number, width))
            if len(content) != width * HASH_BYTES:
                raise AnswerRefused(f"a hash tile has {len(content)} bytes instead of {width * HASH_BYTES}")
            self._tiles[level, number] = [content[at : at + HASH_BYTES] for at in range(0, len(content), HASH_BYTES)]
        return self._tiles[level, number]


def tile_path(level: int, number: int, width: int) -> str:
    """Return where a hash tile lies below the ledger's prefix; groups of three digits, all but the last with an x."""
    groups = [f"{number % 1000:03}"]
    while number := number // 1000:
        groups.insert(0, f"x{number % 1000:03}")
    return f"tile/{level}/{'/'.join(groups)}" + ("" if width == TILE_WIDTH else f".p/{width}")
