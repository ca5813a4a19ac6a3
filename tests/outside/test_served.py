"""The door that other people's readers are sent to (test_tiles.py) is whole also where none of them is installed."""

from pathlib import Path
from urllib.request import urlopen

from tests.outside.served import SIZES, leaf, served
from verifier.merkle import leaf_hash


def test_the_door_for_others_serves_checkpoints_tiles_and_entries(tmp_path: Path) -> None:
    with served(tmp_path, SIZES[:3]) as found:
        for size, url in found.urls.items():
            part = "" if size == 256 else f".p/{size}"
            assert _read(f"{url}/checkpoint") == found.note(size)
            assert _read(f"{url}/tile/0/000{part}") == b"".join(leaf_hash(leaf(index)) for index in range(size))
            assert leaf(size - 1) in _read(f"{url}/tile/entries/000{part}")


def _read(url: str) -> bytes:
    with urlopen(url, timeout=30) as answer:
        data: bytes = answer.read()
    return data
