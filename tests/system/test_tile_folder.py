"""A tile directory on a disk: killed at any moment, followed, served by a stranger's web server, pruned."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.export import ExportError, TileFolder, backup
from gateway.retention import Retention, open_retention, prune
from gateway.store.contract import StoredCheckpoint, StoredEntry
from gateway.store.sqlite import Reader
from gateway.web.reads import bundle_bytes, tile_bytes
from gateway.web.tiles import tiles_of
from keys.files import load_key
from keys.publish import document_hash, publish
from keys.retention import publish_retention, sign_retention
from tests.core.requests import ORIGIN, key_of
from tests.system.process import free_port
from tests.web.world import make, world
from tests.world import World
from verifier.checkpoint import parse_checkpoint
from verifier.keyring import Keyring, open_key_document
from verifier.note import make_vkey, parse_vkey
from verifier.replay.ledger import check_ledger
from verifier.wire import Malformed

ENTRIES = 540
ROOT_KEY = make_vkey(f"{ORIGIN}/root", key_of("root").public_key)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    return asyncio.run(_make(tmp_path_factory.mktemp("ledger")))


async def _make(data: Path) -> World:
    world = World(data, "sqlite", rate_burst=100_000, rate_per_second=100_000, held_per_principal=65_536)
    async with world:
        for start in range(0, ENTRIES, 20):
            await asyncio.gather(*(world.acquire("A", f"lock:{start + at}") for at in range(20)))
    return world


class Upto:
    """A reader of the same ledger as it was when its newest checkpoint had at most `size` entries."""

    def __init__(self, reader: Reader, size: int) -> None:
        self._reader, self.size = reader, size

    def last_note(self, size_max: int) -> bytes | None:
        return self._reader.last_note(min(size_max, self.size))

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        return self._reader.entries(start, stop)

    def nodes(self, wanted: Any) -> dict[tuple[int, int], bytes]:
        return self._reader.nodes(wanted)

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        return self._reader.batch_of(seq)

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        return self._reader.batch_at(size)


@pytest.fixture
def reader(made: World) -> Iterator[Reader]:
    with closing(Reader(made.path)) as opened:
        yield opened


def verified_size(folder: Path, keyring: Keyring, reader: Reader) -> int:
    """Check a directory as a stranger would, its hash tiles too; return the size of its checkpoint."""
    report = check_ledger(folder, keyring)
    assert report.exit_code == 0, report.as_text()
    size = parse_checkpoint((folder / "checkpoint").read_bytes()).size
    for tile in tiles_of(size):
        path = folder / tile.path
        whole = path if path.exists() else folder / tile.path.partition(".p/")[0]
        wanted = bundle_bytes(reader, tile) if tile.level is None else tile_bytes(reader, tile)
        assert whole.read_bytes().startswith(wanted), tile.path
    return size


def contents(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class _Killed(BaseException):
    pass


def killed_at(step: int, act: Callable[[], object]) -> bool:
    """Do something in a process of its own that dies, without a word, at its n-th change of the disk.

    Returns whether it came so far.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os._exit(9)
            return real(*arguments, **named)

        return call

    for name in ("replace", "fsync", "mkdir", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    try:
        act()
    finally:
        os._exit(0)


def test_killed_at_any_moment_a_directory_verifies_at_its_old_or_its_new_checkpoint(
    made: World, reader: Reader, tmp_path: Path
) -> None:
    old, whole = tmp_path / "old", tmp_path / "whole"
    old_size = TileFolder(old).update(Upto(reader, 300)).size
    shutil.copytree(old, whole)
    TileFolder(whole).update(reader)
    assert verified_size(whole, made.keyring, reader) > old_size
    sizes, step = set(), 0
    while True:
        step += 1
        folder = tmp_path / f"at-{step}"
        shutil.copytree(old, folder)
        has_died = killed_at(step, lambda folder=folder: TileFolder(folder).update(reader))  # type: ignore[misc]
        sizes.add(verified_size(folder, made.keyring, reader))
        TileFolder(folder).update(reader)
        assert contents(whole).items() <= contents(folder).items(), "the next export finishes it"
        assert not list(folder.rglob("*.new")), "what was half written is gone"
        if not has_died:
            break
        shutil.rmtree(folder)
    assert step > 15 and len(sizes) == 2 and min(sizes) == old_size


def test_partial_tiles_go_when_their_full_tile_is_there(made: World, reader: Reader, tmp_path: Path) -> None:
    folder = TileFolder(tmp_path / "tiles")
    for size in (100, 200, 300, ENTRIES):
        folder.update(Upto(reader, size))
        verified_size(tmp_path / "tiles", made.keyring, reader)
    partial = {path.parent.name for path in (tmp_path / "tiles" / "tile" / "0").rglob("*.p/*")}
    assert partial == {"002.p"}


def test_each_file_and_each_new_folder_is_synced_before_the_checkpoint_names_it(
    made: World, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, str]] = []
    real_replace, real_fsync = os.replace, os.fsync

    def replace(source: Any, target: Any) -> None:
        log.append(("named", str(target)))
        real_replace(source, target)

    def fsync(descriptor: int) -> None:
        log.append(("synced", os.readlink(f"/proc/self/fd/{descriptor}")))
        real_fsync(descriptor)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "fsync", fsync)
    folder = tmp_path / "tiles"
    TileFolder(folder).update(reader)
    last = log.index(("named", str(folder / "checkpoint")))
    files = [target for what, target in log[:last] if what == "named"]
    for file in files:
        at = log.index(("named", file))
        assert ("synced", f"{file}.new") in log[:at], "the bytes before the name"
        assert ("synced", str(Path(file).parent)) in log[at:last], "the name before the checkpoint"
    made_folders = {path for path in folder.rglob("*") if path.is_dir()} | {folder}
    for path in made_folders:
        assert ("synced", str(path.parent)) in log[:last], f"{path.name} is a name in its folder"


@pytest.mark.parametrize("place", ["checkpoint", "tile", "tile/entries", "tile/0/000"])
def test_a_symbolic_link_inside_is_refused(reader: Reader, tmp_path: Path, place: str) -> None:
    folder, elsewhere = tmp_path / "tiles", tmp_path / "elsewhere"
    TileFolder(folder).update(reader)
    (folder / place).rename(elsewhere)
    (folder / place).symlink_to(elsewhere)
    before = sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(ExportError, match="is a symbolic link"):
        TileFolder(folder).update(reader)
    assert sorted((path, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()) == before


def test_another_history_is_never_written_over(made: World, reader: Reader, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = asyncio.run(_small(tmp_path / "other"))
    folder = TileFolder(tmp_path / "tiles")
    folder.update(reader)
    with closing(Reader(other.path)) as small, pytest.raises(ExportError, match="that this ledger does not contain"):
        TileFolder(tmp_path / "tiles").update(small)
    with pytest.raises(ExportError, match="that this ledger does not contain"):
        TileFolder(tmp_path / "tiles").update(Upto(reader, 100))
    assert verified_size(tmp_path / "tiles", made.keyring, reader) > ENTRIES


async def _small(data: Path) -> World:
    world = World(data, "sqlite", agents=("A",), ttl_max_ms=40_000)
    async with world:
        await world.acquire("A", "lock:other")
    return world


# -- served ------------------------------------------------------------------------------------------------------------


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """Serve a folder with the standard library's server, which knows nothing of ledgers."""
    port = free_port()
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def fetched(url: str) -> bytes | None:
    for _ in range(200):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError:
            return None
        except urllib.error.URLError:
            time.sleep(0.05)  # the server is not there yet
    raise AssertionError(f"{url} never answered")


def copied(url: str, folder: Path) -> Path:
    """Fetch what a checkpoint needs, as a C2SP client does: the partial tile, and if it is gone the full one."""
    folder.mkdir(parents=True)
    note = fetched(f"{url}/checkpoint")
    assert note is not None
    (folder / "checkpoint").write_bytes(note)
    for tile in tiles_of(parse_checkpoint(note).size):
        for path in (tile.path, tile.path.partition(".p/")[0]):
            body = fetched(f"{url}/{path}")
            if body is not None:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(body)
                break
        else:
            raise AssertionError(f"{tile.path} is not served")
    return folder


@pytest.mark.system
def test_served_by_a_plain_web_server_it_verifies_while_it_is_followed(
    made: World, reader: Reader, tmp_path: Path
) -> None:
    data, tiles = tmp_path / "data", tmp_path / "tiles"
    data.mkdir()
    backup(made.path, data / "ledger.sqlite3")
    TileFolder(tiles).update(Upto(reader, 100))
    command = [sys.executable, "-m", "gateway", "ledger", "export", "--tiles", str(tiles), "--data", str(data)]
    with web_server(tiles) as url:
        assert verified_size(copied(url, tmp_path / "first"), made.keyring, reader) <= 100
        with subprocess.Popen([*command, "--follow", "0.2"], stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            assert " entries of " in follower.stdout.readline()
            assert verified_size(copied(url, tmp_path / "second"), made.keyring, reader) > ENTRIES
            asyncio.run(_grow(data))
            assert follower.stdout.readline().endswith(" entries\n")
            follower.send_signal(signal.SIGINT)
            assert follower.wait(10) == 0
        with closing(Reader(data / "ledger.sqlite3")) as grown:
            assert verified_size(copied(url, tmp_path / "third"), made.keyring, grown) > ENTRIES + 10


async def _grow(data: Path) -> None:
    world = World(data, "sqlite", rate_burst=100_000, rate_per_second=100_000, held_per_principal=65_536)
    async with world:
        for number in range(10):
            await world.acquire("B", f"lock:more-{number}")


# -- pruned ------------------------------------------------------------------------------------------------------------


def policy(world: World, minimum: int, origin: str = ORIGIN) -> Retention:
    return Retention(origin, world.genesis, minimum)


def test_a_policy_is_signed_by_the_root_and_its_minimum_never_goes_back(made: World, tmp_path: Path) -> None:
    (tmp_path / "root.vkey").write_text(ROOT_KEY.vkey + "\n")
    assert open_retention(tmp_path) is None
    note = sign_retention(policy(made, 300), key_of("root"), ROOT_KEY)
    assert note.decode().startswith(
        f"tallystick-retention/v1\norigin {ORIGIN}\ngenesis {made.genesis.hex()}\nminimum 300\n\n"
    )
    publish_retention(tmp_path, note, ROOT_KEY)
    assert open_retention(tmp_path) == policy(made, 300)
    with pytest.raises(Malformed, match="what was dropped does not come back"):
        publish_retention(tmp_path, sign_retention(policy(made, 299), key_of("root"), ROOT_KEY), ROOT_KEY)
    (tmp_path / "retention.note").write_bytes(sign_retention(policy(made, 900), key_of("A"), ROOT_KEY))
    with pytest.raises(Malformed, match="no valid signature"):
        open_retention(tmp_path)


def test_pruning_takes_full_bundles_below_both_bounds_and_nothing_else(
    made: World, reader: Reader, tmp_path: Path
) -> None:
    folder = tmp_path / "tiles"
    TileFolder(folder).update(reader)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for minimum, below in ((255, 9_999), (9_999, 255), (0, 0)):
        with pytest.raises(ExportError, match="no full bundle of 256 entries"):
            prune(folder, policy(made, minimum), below)
    with pytest.raises(ExportError, match="no tiles of another/log"):
        prune(folder, policy(made, 9_999, "another/log"), 9_999)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert prune(folder, policy(made, 300), 9_999) == (1, 256)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert before.keys() - after.keys() == {folder / "tile" / "entries" / "000"}
    assert TileFolder(folder).update(reader).size > ENTRIES, "and an export does not bring it back"
    assert not (folder / "tile" / "entries" / "000").exists()
    assert check_ledger(folder, made.keyring).exit_code != 0, "who begins at entry 0 is told that it is not there"


async def test_the_gateway_denies_bundles_below_the_published_minimum_and_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    made = make(data, rate_burst=100_000, rate_per_second=100_000, held_per_principal=65_536)
    async with world(data, made) as place:
        await place.agent("a")
        for start in range(0, 520, 52):
            await asyncio.gather(*(place.acquire("a", f"lock:{start + at}") for at in range(52)))
        assert (await place.get("/main/tile/entries/000")).status == 200
        tiles = ["ledger", "prune", "--tiles", str(tmp_path / "tiles"), "--below", "9999", "--data", str(data)]
        assert main(["ledger", "export", "--tiles", str(tmp_path / "tiles"), "--data", str(data)]) == 0
        assert main(tiles) == 1
        assert "without a published policy nothing is pruned" in capsys.readouterr().err
        assert main(["keys", "retention", "--data", str(data), "--minimum", "300"]) == 0
        assert main(["keys", "retention", "--data", str(data), "--minimum", "299"]) == 1
        assert "what was dropped does not come back" in capsys.readouterr().err
        denied = await place.get("/main/tile/entries/000")
        assert (denied.status, denied.json["code"]) == (410, "bundle_pruned")
        assert (await place.get("/main/tile/entries/001")).status == 200, "it ends at 512"
        assert (await place.get("/main/tile/0/000")).status == 200, "hashes are never denied"
        assert (await place.get("/api/v1/acp/ledger/receipts/5")).status == 200, "nor receipts"
        assert main(tiles) == 0
        assert "1 bundles removed" in capsys.readouterr().out
        with closing(Reader(data / "ledger.sqlite3")) as reader:
            assert len(reader.entries(0, 256)) == 256, "the database keeps all"
    root = load_key(data / "root" / "root.key")
    document = open_key_document((data / "public" / "keys.note").read_bytes(), parse_vkey(made.root_vkey))
    publish(data / "public", replace(document, version=2, previous=document_hash(document)), root)
    found = open_retention(data / "public")
    assert found is not None and found.minimum == 300, "a new key document leaves the policy where it is"
