"""The bench of engines, nodes and ledgers, in tiny sizes: it runs to its end, and its figures fit one another."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from bench.gateway_bench import Child
from bench.nodes_bench import ROWS, WAYS, Bench, Round, Row, Way, one_round, tables
from bench.nodes_stages import Traced, cut_of
from bench.site import FILE, LOCAL, Database, Site
from bench.traced_node import STAGES
from bench.updates import Updates
from gateway.ledger.batches import BATCH_MAX
from tests.pg.conftest import database_url as database_url
from tests.pg.server import shared_server

pytestmark = [pytest.mark.postgres, pytest.mark.system]
RECEIPTS = 512
FILE_ROW = Row("a file", FILE)
ROW = Row("two nodes, the same resources", LOCAL, nodes=2, common=3)


def site_on(folder: Path, url: str, site: Site) -> Site:
    """Give a site the run's one server, in place of one of its own."""
    folder.mkdir()
    site.databases[LOCAL] = Database(shared_server(), (shared_server(),), url)
    return site


@pytest.fixture
def load() -> Iterator[Child]:
    child = Child("bench.load")
    yield child
    child.stop()


def test_a_round_of_each_way_ends_in_tables(tmp_path: Path, database_url: str, load: Child) -> None:
    measured: dict[Way, dict[Row, list[Round]]] = {way: {FILE_ROW: [], ROW: []} for way in WAYS}
    peers: dict[str, list[Updates]] = {}
    with site_on(tmp_path / "site", database_url, Site(tmp_path / "site")) as site:
        said = list(one_round(Bench(site, load), measured, peers, RECEIPTS, seconds=1))
        nodes = site.ledger(LOCAL, "one", 2).nodes
    assert len(said) == 4 and len(nodes) == 2 and not any(node.is_alive for node in nodes)
    for way, rows in measured.items():
        for row, (one,) in rows.items():
            check(one, of_a_file=row is FILE_ROW)
            if way is WAYS[1]:
                assert one.entries >= one.receipts + one.receipts // WAYS[1].commands, "a batch has a header besides"
    printed = list(tables(measured, peers))
    assert all(row.what in line for row, line in zip([FILE_ROW, ROW] * 2, rows_of(printed), strict=False))
    assert {one.commits > 0 < one.per_second for results in peers.values() for one in results} == {True}


def check(one: Round, *, of_a_file: bool) -> None:
    """A round did what it was told, and no figure contradicts another."""
    assert one.receipts == RECEIPTS <= one.entries
    assert one.receipts / BATCH_MAX <= one.commits <= one.entries
    assert 0 < one.p50_ms <= one.p99_ms <= one.wall_s * 1e3
    assert one.gateways_s > 0 < one.load_s
    assert (one.database_s == 0) is of_a_file
    assert min(getattr(one, field.name) for field in fields(one)) >= 0


def rows_of(printed: list[str]) -> list[str]:
    """Return the rows of the first tables without their heads; each has as many cells as its head."""
    tables = "\n".join(printed).split("\n\n")
    found = [text.splitlines() for text in tables if text.startswith("| ")]
    assert all(len({line.count("|") for line in lines}) == 1 for lines in found)
    return [line for lines in found for line in lines[2:]]


def test_a_batch_is_cut_into_its_stages(tmp_path: Path, database_url: str) -> None:
    with site_on(tmp_path / "site", database_url, Site(tmp_path / "site", Traced)) as site:
        cut = cut_of(site, LOCAL, 1, RECEIPTS)
    assert set(cut.stages_ms) == set(STAGES.values()) and min(cut.stages_ms.values()) > 0
    assert 1 <= cut.per_batch["receipts"] <= BATCH_MAX
    assert cut.per_batch["round trips"] >= 2, "one takes the head, one commits"
    assert 0 < cut.shares["loop's thread at work"] <= cut.shares["whole process at work"]


def test_rows_differ_and_compare_with_a_file() -> None:
    assert len({row.what for row in ROWS}) == len(ROWS) and ROWS[0].place == FILE
