"""README.md beside this file says of every scenario which test tells it, or why none can yet."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scenarios.citations import ROOT, citations, cited

NUMBERS = (
    *(str(number) for number in range(1, 65) if number not in {7, 13, 22, 25, 27, 34, 38, 42, 50, 51, 53, 57, 59}),
    *(f"L{number}" for number in (*range(1, 53), *range(54, 62)) if number not in {4, 9, 11, 18, 26, 29, 31, 35, 49}),
)
_ROW = re.compile(r"\| (L?\d+) \| ([^|]+) \| ([^|]+) \|")
_NODE = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)?)`")


def rows() -> list[tuple[str, str]]:
    """Return number and last cell of each row."""
    lines = Path(__file__).with_name("README.md").read_text("utf-8").splitlines()
    return [(row[1], row[3]) for line in lines if (row := _ROW.fullmatch(line))]


def test_every_scenario_has_one_row_with_a_test_or_a_reason() -> None:
    assert [number for number, _ in rows()] == list(NUMBERS)
    for number, cell in rows():
        assert _NODE.search(cell) or cell.startswith("not yet: "), f"scenario {number} has neither test nor reason"


def test_every_test_that_is_named_exists_and_cites_its_scenario() -> None:
    known = citations()
    named = {number: _NODE.findall(cell) for number, cell in rows()}
    assert {
        number: [node for node in nodes if node not in known.get(number, [])] for number, nodes in named.items()
    } == {number: [] for number in named}


def test_every_test_of_the_page_is_there() -> None:
    """The stories without a number cite nothing, so their names are looked up."""
    page = Path(__file__).with_name("README.md").read_text("utf-8")
    for node in _NODE.findall(page):
        file, _, name = node.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8") if name else (ROOT / file).exists(), node


def test_a_docstring_cites_what_a_person_reads() -> None:
    assert cited("Scenarios L12, L43 and 43 (etcd#8382): twice.") == ["L12", "L43", "43"]
    assert cited("As in scenario 7.") == ["7"]
    assert cited("Scenes 1 and 2; 3 scenarios.") == []
