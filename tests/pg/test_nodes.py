"""Two nodes of one ledger at peace, and the auditor itself: it sees each thing that it is there to see."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.stage import Stage, wired
from tests.pg.audit import check_answers, check_grants, check_once, check_order, check_tree
from tests.pg.server import fresh_database, shared_server
from verifier.entries import parse_leaf
from verifier.replay.source import open_source

pytestmark = [pytest.mark.postgres, pytest.mark.system]


async def test_two_nodes_serve_one_ledger_and_the_auditor_sees_what_would_be_wrong(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        database = stack.enter_context(fresh_database()).rpartition("/")[2]
        _, urls = wired(shared_server(), database, 2, stack)
        stage = await stack.enter_async_context(Stage(tmp_path, urls))
        leaves = await stage.play(lambda: stage.crowd.until(150))
        assert {node.is_alive for node in stage.nodes} == {True}
    answers = stage.crowd.answers
    with open_source(tmp_path / "ledger.export") as source:
        texts = [bytes(leaf) for leaf in source.leaves]
    granted = [leaf for leaf in leaves if leaf.type == "tallystick/lease.granted/1"]
    with pytest.raises(AssertionError):
        check_answers(answers, [*texts[:-2], texts[-1], texts[-2]])
    with pytest.raises(AssertionError, match="one receipt answers one request"):
        check_answers([*answers, answers[0]], texts)
    with pytest.raises(AssertionError, match="two histories"):
        check_tree(answers, [texts[0], texts[2], texts[1], *texts[3:]])
    with pytest.raises(AssertionError, match="beyond"):
        check_tree(answers, texts[:-10])
    with pytest.raises(AssertionError, match="was asked for after"):
        late = replace(answers[-1], receipt=answers[0].receipt)
        check_order([*answers, late])
    with pytest.raises(AssertionError):
        check_once([*leaves, next(leaf for leaf in leaves if leaf.request)])
    with pytest.raises(AssertionError, match=r"double grant|token"):
        check_grants([*granted, granted[0]])
    assert parse_leaf(texts[-1]) == leaves[-1]
