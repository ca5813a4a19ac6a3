"""Our witness and an independent log; an independent witness and our log: each pair speaks C2SP tlog-witness."""

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.ledger.cosigned import Gathering, Witness
from gateway.ledger.history import Confirmed
from gateway.ledger.witness_ask import Alarm, Exchange, Standing, Tree
from gateway.ledger.witness_http import HttpWeb
from gateway.ledger.witness_start import look_around
from gateway.witness.shelf import origin_hash
from tests.outside.served import signer
from tests.outside.tools import HERE, peer, peers_python, run
from tests.system.process import free_port, until
from tests.witness.logbook import Log, Post
from tests.witness.process import Server
from verifier.checkpoint import parse_checkpoint
from verifier.note import VerifierKey, line_is_valid, parse_vkey
from verifier.proof import Proof, encode_proof

LOG = Log(size=300, origin="gateway.example/main")
FORK = Log("other", fork=5, size=300, origin="gateway.example/main")


# -- our witness, their client -----------------------------------------------------------------------------------------


def step(log: Log, size: int, status: int, *, old: int | None = 0) -> dict[str, object]:
    proofs = {str(n): [part.hex() for part in log.tree.consistency(n, size)] for n in range(size + 1)}
    name = f"{'fork' if log is FORK else 'log'}-{size}"
    return {"note": name, "old": old, "proofs": proofs, "status": status}


def test_an_independent_client_gets_our_cosignatures_and_its_fork_does_not(tmp_path: Path) -> None:
    python, folder = peers_python(), tmp_path / "w"
    post = Post(folder, LOG)
    vkey = post.vkey.vkey
    post.shelf.close()
    steps = [
        *(step(LOG, size, 200) for size in (0, 1, 7, 7, 255, 256, 257)),
        step(LOG, 300, 200, old=None),  # 409 with 257, then the right proof
        step(FORK, 300, 422),
        step(LOG, 300, 200),
    ]
    (tmp_path / "steps.json").write_text(json.dumps(steps))
    for one in steps:
        log = FORK if str(one["note"]).startswith("fork") else LOG
        (tmp_path / f"{one['note']}.note").write_bytes(log.note(int(str(one["note"]).split("-")[1])))
    with Server(folder) as server:
        told = run(python, str(HERE / "feed.py"), server.url, vkey, str(tmp_path))
    assert told.returncode == 0, told.stderr
    assert told.stdout.splitlines() == [f"{one['note']}: {one['status']}" for one in steps]


def test_proofbundle_counts_our_witness_and_no_other(tmp_path: Path) -> None:
    tool, index = peer("proofbundle"), 123
    post = Post(tmp_path / "w", LOG)
    assert post.add(LOG.request(0, 300)).status == 200
    note = post.witness.newest(origin_hash(LOG.origin))
    assert note is not None
    (tmp_path / "leaf").write_bytes(b"leaf-%d" % index)
    path = LOG.tree.path(index, 300)
    (tmp_path / "cosigned").write_bytes(encode_proof(Proof(index, path, note)))
    (tmp_path / "alone").write_bytes(encode_proof(Proof(index, path, LOG.note(300))))

    def verdict(proof: str, witness: str) -> int:
        return run(
            *(tool, "verify-proof", "--payload-file", str(tmp_path / "leaf"), "--log-vkey", LOG.vkey.vkey),
            *("--witness-vkey", witness, "--threshold", "1", str(tmp_path / proof)),
        ).returncode

    other = Post(tmp_path / "other", LOG)
    assert verdict("cosigned", post.vkey.vkey) == 0
    assert verdict("alone", post.vkey.vkey) != 0
    assert verdict("cosigned", other.vkey.vkey) != 0
    post.shelf.close()
    other.shelf.close()


# -- their witness, and ours, and our client ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """A witness that runs: where it is, and its key."""

    url: str
    key: VerifierKey


@contextmanager
def ours(folder: Path) -> Iterator[Place]:
    post = Post(folder, LOG)
    post.shelf.close()
    with Server(folder) as server:
        yield Place(server.url, post.vkey)


@contextmanager
def aics(folder: Path) -> Iterator[Place]:
    """`aics-witness init`, `add-log`, `serve`."""
    folder.mkdir()
    tool, config, port = peer("aics-witness"), str(folder / "witness.json"), free_port()
    made = run(tool, "init", "--config", config, "--name", "witness.example/aics", "--listen", f"127.0.0.1:{port}")
    assert made.returncode == 0, made.stderr
    added = run(tool, "add-log", "--config", config, "--origin", LOG.origin, "--vkey", LOG.vkey.vkey)
    assert added.returncode == 0, added.stderr
    url = f"http://127.0.0.1:{port}"
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([tool, "serve", "--config", config], stderr=log) as served,
    ):
        try:
            until(lambda: is_answering(url), served, folder / "log")
            yield Place(url, parse_vkey(made.stdout.strip()))
        finally:
            served.terminate()


def is_answering(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


class Client:
    """Our gateway's client of one witness, with a log beneath it that may go to another history."""

    def __init__(self, place: Place, web: HttpWeb) -> None:
        self.place = place
        self.witness = Witness("w", place.key, place.url)
        self.standing = Standing(self.witness)
        self.disputes: list[bytes] = []
        self.ledger = SimpleNamespace(confirmed=None, time_ms=0, dispute=self._dispute)
        self.log = LOG
        own_keys = signer().own_keys
        self.exchange = Exchange(
            cast(Any, self.ledger), LOG.origin, web=web, tree=Tree(self._prove, self._root_at), own_keys=own_keys,
            timeout_ms=5_000,
        )  # fmt: skip

    async def _dispute(self, note: bytes, checkpoint: object) -> None:
        self.disputes.append(note)

    async def _prove(self, old: int, size: int) -> Sequence[bytes]:
        return self.log.tree.consistency(old, size)

    async def _root_at(self, size: int) -> bytes:
        return self.log.tree.root(size)

    async def show(self, size: int) -> None:
        """Have a checkpoint cosigned, and see that the line holds."""
        note = self.log.note(size)
        self.ledger.confirmed = Confirmed(size, self.log.tree.root(size), note)
        self.ledger.time_ms = now_ms = int(time.time() * 1_000)  # a foreign process has the wall clock
        line = await self.exchange.line(self.standing, Gathering(self.ledger.confirmed, 0, now_ms, 0))
        self.standing.size = size
        assert line_is_valid(line, self.place.key, parse_checkpoint(note).note.text)


@asynccontextmanager
async def client(place: Place) -> AsyncIterator[Client]:
    web = HttpWeb()
    yield Client(place, web)
    await web.close()


@pytest.mark.parametrize("kind", [ours, aics], ids=["ours", "aics-witness"])
async def test_our_client_gets_lines_of_a_witness_and_finds_where_it_stands(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "w") as place:
        async with client(place) as one:
            for size in (1, 7, 7, 255, 256, 257):
                await one.show(size)
            one.standing.size = 0  # a gateway that starts without a memory is told by a 409
            await one.show(300)
            one.standing.size = 299
            await one.show(300)


@pytest.mark.parametrize("kind", [ours, aics], ids=["ours", "aics-witness"])
async def test_our_client_learns_from_a_witness_that_there_is_a_second_history(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "w") as place:
        async with client(place) as one:
            await one.show(200)
            one.log = FORK
            with pytest.raises(Alarm):
                await one.show(250)
            assert [parse_checkpoint(note).size for note in one.disputes] == [200]


@pytest.mark.parametrize("kind", [ours, aics], ids=["ours", "aics-witness"])
async def test_a_start_sees_what_a_witness_has_seen(tmp_path: Path, kind: Any) -> None:
    with kind(tmp_path / "w") as place:
        async with client(place) as one:
            await one.show(200)
            web = HttpWeb()
            witnesses = cast(Any, SimpleNamespace(members=(one.witness,)))
            [sighting] = await look_around(witnesses, LOG.origin, web, signer().own_keys, 5_000)
            await web.close()
            assert sighting.checkpoint is not None
            assert (sighting.checkpoint.size, sighting.checkpoint.root) == (200, LOG.tree.root(200))
