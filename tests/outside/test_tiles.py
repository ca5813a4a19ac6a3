"""What our gateway serves of a ledger, read over HTTP by four programs that share nothing with us.

Six sizes of one ledger, at the ends of batches: one leaf, one short of a tile, a tile, one more, a full second level,
and 70,000. Each program verifies checkpoints and tiles at each size, and consistency between every two.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from keys.signing import SigningKey
from tests.outside.served import LOG_VKEY, ORIGIN, SIZES, Served, leaf, served
from tests.outside.tools import HERE, build_go, peer, peers_python, run
from verifier.note import make_vkey

PAIRS = len(SIZES) * (len(SIZES) + 1) // 2
OTHER_VKEY = make_vkey(ORIGIN, SigningKey(b"\2" * 32).public_key).vkey


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    peers_python()
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


def check(ledger: Served, name: str, *command: str) -> None:
    """The program finds every size and every pair good, and refuses the checkpoints of a key that it does not know."""
    good = run(*command, LOG_VKEY, *ledger.urls.values())
    assert (good.returncode, good.stderr) == (0, ""), good.stderr
    lines = good.stdout.splitlines()
    assert lines[-1] == f"{name}: {PAIRS} pairs are consistent"
    assert [line.split(",")[0] for line in lines[:-1]] == [f"{name}: {size} entries" for size in SIZES]
    assert run(*command, OTHER_VKEY, *ledger.urls.values()).returncode != 0


def test_go_sumdb_reads_every_tile_and_entry(ledger: Served, tmp_path: Path) -> None:
    check(ledger, "go sumdb", build_go("tiles.go", tmp_path))


def test_aics_tlog_reads_every_tile_and_entry(ledger: Served) -> None:
    check(ledger, "aics-tlog", peers_python(), str(HERE / "aics.py"))


def test_tlog_scales_reads_roots_and_proofs(ledger: Served) -> None:
    check(ledger, "tlog-scales", peers_python(), str(HERE / "scales.py"))


@pytest.mark.parametrize("size", SIZES)
def test_proofbundle_verifies_first_middle_and_last_entry(ledger: Served, tmp_path: Path, size: int) -> None:
    tool = peer("proofbundle")
    for index in sorted({0, size // 2, size - 1}):
        (tmp_path / "leaf").write_bytes(leaf(index))
        (tmp_path / "wrong").write_bytes(leaf(index + 1))
        (tmp_path / "proof").write_bytes(ledger.proof(index, size))
        verdicts = [
            run(
                *(tool, "verify-proof", "--payload-file", str(tmp_path / name)),
                *("--log-vkey", LOG_VKEY, "--expected-origin", ORIGIN, str(tmp_path / "proof")),
            ).returncode
            for name in ("leaf", "wrong")
        ]
        assert verdicts[0] == 0 != verdicts[1], index
