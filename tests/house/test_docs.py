"""The documents equal the code: generated tables, clause numbers, links, decision records."""

import re
import tomllib

import pytest

from gateway.core.intake import REJECTIONS
from gateway.web.problem import ROWS
from tests.house import docs, example
from verifier.keyring import open_keyring
from verifier.receipt import check_receipt
from verifier.verdict import Outcome

ROOT = docs.ROOT
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
PROTOCOL = (ROOT / "docs/protocol.md").read_text("utf-8")
NUMBERS = [chapter or clause for chapter, clause in re.findall(r"^(?:## (\d+)\. |(\d+\.\d+) )", PROTOCOL, re.MULTILINE)]
ADRS = sorted((ROOT / "docs/adr").glob("*.md"))


@pytest.mark.parametrize("name", docs.DOCUMENTS)
def test_generated_tables_equal_the_code(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert docs.rendered(text) == text, "run `make docs`"


def test_every_generated_block_is_in_a_document() -> None:
    blocks = [found for name in docs.DOCUMENTS for found in docs.block_names((ROOT / name).read_text("utf-8"))]
    assert sorted(blocks) == sorted(docs.BLOCKS)


def test_a_table_that_differs_is_noticed() -> None:
    block = docs.BLOCKS["refusals"]()
    text = f"<!-- generated: refusals -->\n\n{block.replace('409', '410')}\n<!-- end generated -->"
    assert docs.rendered(text) == f"<!-- generated: refusals -->\n\n{block}\n<!-- end generated -->"


def test_every_rejection_of_the_core_is_a_row_of_the_problem_table() -> None:
    assert {code: ROWS[code].status if code in ROWS else None for code in REJECTIONS} == dict(REJECTIONS)


def test_the_files_of_the_example_equal_the_code() -> None:
    assert {path.name: path.read_bytes() for path in docs.EXAMPLE.iterdir()} == example.files(), "run `make docs`"


def test_the_example_is_valid_and_one_changed_byte_is_not() -> None:
    made = example.build()
    keyring = open_keyring(root=made.root_vkey, document=made.keys)
    report = check_receipt(made.receipt, keyring)
    assert (report.outcome, report.level, report.direct_signature) == (Outcome.VALID, "included", "valid")
    changed = bytearray(made.receipt)
    changed[made.receipt.index(b'"payload": "') + 100] ^= 1
    assert check_receipt(bytes(changed), keyring).outcome is Outcome.INVALID


def test_every_clause_number_stands_once() -> None:
    assert len(NUMBERS) > 100
    assert len(NUMBERS) == len(set(NUMBERS))


def test_the_code_cites_clauses_that_exist() -> None:
    cited = {
        (path.relative_to(ROOT).as_posix(), number)
        for folder in ("verifier", "keys", "gateway", "tests", "bench")
        for path in (ROOT / folder).rglob("*.py")
        for number in re.findall(r"(?:protocol\.md|SPEC) (\d+(?:\.\d+)?)", path.read_text("utf-8"))
    }
    assert cited
    assert sorted(pair for pair in cited if pair[1] not in NUMBERS) == []


def test_the_ladder_in_the_document_has_its_twelve_steps() -> None:
    ladder = PROTOCOL.partition("16.2 ")[2].partition("16.3 ")[0]
    assert re.findall(r"^\| (\d+) \|", ladder, re.MULTILINE) == [str(step) for step in range(1, 13)]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()] == []


def test_decision_records_are_numbered_without_a_gap() -> None:
    assert [path.name[:4] for path in ADRS] == [f"{number:04}" for number in range(1, len(ADRS) + 1)]


def test_every_dependency_has_a_decision_record_with_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    lines = [line for group in [project["project"]["dependencies"], *groups] for line in group if isinstance(line, str)]
    names = {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in lines}
    records = "\n".join(path.read_text("utf-8") for path in ADRS)
    assert sorted(name for name in names if not re.search(rf"`{re.escape(name)}`", records)) == []
