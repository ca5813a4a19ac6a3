"""`tallystick witness`: a third party makes one, adds a log, serves it and looks at it."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.__main__ import main
from tests.system.process import ROOT
from tests.witness.logbook import ORIGIN, Log, Post
from tests.witness.process import Server
from verifier.note import KIND_COSIGNATURE, parse_vkey
from verifier.wire import encode_base64

LOG, OTHER = Log(), Log("other", fork=5)


def test_init_makes_a_witness_key_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "w"
    assert main(["witness", "init", "--data", str(folder), "--name", "witness.example/w1"]) == 0
    vkey = parse_vkey((folder / "witness.vkey").read_text().strip())
    assert (vkey.name, vkey.kind) == ("witness.example/w1", KIND_COSIGNATURE)
    assert vkey.vkey in capsys.readouterr().out
    assert folder.stat().st_mode & 0o077 == 0
    assert main(["witness", "init", "--data", str(folder), "--name", "witness.example/w2"]) == 1
    assert "holds a witness already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["init", "--data", "{}/new", "--name", "a b"], "--name"),
        (["add", "--data", "{}/w", "--log", "nonsense"], "vkey"),
        (["add", "--data", "{}/w", "--replay", Log(origin="a/root").vkey.vkey], "--url"),
        (["add", "--data", "{}/none", "--log", LOG.vkey.vkey], "logs.txt"),
        (["serve", "--data", "{}/none"], "tallystick witness init"),
        (["serve", "--data", "{}/w", "--listen", "8430"], "HOST:PORT"),
        (["show", "--data", "{}/none"], "tallystick witness init"),
    ],
)
def test_what_can_not_be_done_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    Post(tmp_path / "w", LOG).shelf.close()
    assert main(["witness", *(part.format(tmp_path) for part in arguments)]) == 1
    assert text in capsys.readouterr().err


def test_show_prints_size_root_time_and_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    post = Post(tmp_path, LOG, Log(origin="log.example/b", seed=2))
    post.add(LOG.request(0, 10))
    post.add(OTHER.request(10, 10))
    assert main(["witness", "show", "--data", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    for part in (
        f"witness   {post.vkey.vkey}\n",
        f"origin    {ORIGIN}\n",
        "size      10\n",
        f"root      {encode_base64(LOG.tree.root(10))}\n",
        "cosigned  2027-01-15T08:00:00Z\n",
        "size      0, never cosigned\n",
        "/proof-",
        "/claim-",
    ):
        assert part in shown
    post.shelf.close()


@pytest.mark.system
def test_a_served_witness_answers_notices_a_new_log_and_stops_in_order(tmp_path: Path) -> None:
    assert main(["witness", "init", "--data", str(tmp_path / "w"), "--name", "witness.example/w1"]) == 0
    with Server(tmp_path / "w") as server:
        assert server.add(LOG.request(0, 10))[0] == 404
        assert main(["witness", "add", "--data", str(tmp_path / "w"), "--log", LOG.vkey.vkey]) == 0
        assert server.add(LOG.request(0, 10))[0] == 200
        assert server.stop(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("serving", "stopped")
    assert [line["status"] for line in lines if line.get("path") == "/add-checkpoint"] == [404, 200]


@pytest.mark.system
def test_a_second_server_on_the_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    Post(tmp_path / "w", LOG).shelf.close()
    with Server(tmp_path / "w"):
        second = Server(tmp_path / "w", name="second")
        with pytest.raises(RuntimeError, match="another process serves"):
            second.start()


def test_a_witness_needs_no_package_of_a_gateway() -> None:
    code = "import sys, gateway.witness.commands; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"orjson", "sqlite_utils", "uvloop", "prometheus_client"} & set(told.stdout.split()) == set()
