"""Each story about keys over time has its verdict, in both forms of the report, and for the checkpoint alone."""

from __future__ import annotations

import pytest

from tests.verifier import maker
from tests.verifier.judging import faults, pins
from tests.verifier.key_stories import STORIES, Story
from verifier.checkpoint import parse_checkpoint
from verifier.keyring import Keyring
from verifier.receipt import check_receipt
from verifier.signers import check_signers
from verifier.verdict import Outcome

EXIT_CODES = {"valid": 0, "indeterminate": 3, "invalid": 1}
by_story = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)


def pinned(story: Story) -> Keyring:
    return pins(maker.opened(), story.quorum, maker.opened().keys(story.version, story.lines))


def test_the_stories_are_enough_and_none_is_told_twice() -> None:
    assert len({story.name for story in STORIES}) == len(STORIES) > 50
    assert {story.verdict for story in STORIES} == EXIT_CODES.keys()


@by_story
def test_a_receipt_is_judged_as_told(story: Story) -> None:
    receipt = story.ledger.receipt(story.seq, story.size, story.witnesses, story.logs, story.key)
    report = check_receipt(receipt, pinned(story), others=[make() for make in story.also])
    found = [code for step, code in faults(report) if step < 12]
    assert (found, report.exit_code) == ([*story.codes], EXIT_CODES[story.verdict])
    assert report.level.startswith("witnessed" if story.witnesses and story.verdict == "valid" else report.level)


@by_story
def test_so_is_its_checkpoint_alone(story: Story) -> None:
    """Whoever reads ledgers or compares files asks the same function; without the receipt's own path."""
    checkpoint = parse_checkpoint(story.ledger.checkpoint(story.size, story.witnesses, story.logs))
    signers = check_signers(checkpoint, pinned(story), [make() for make in story.also])
    found = [finding.code for finding in signers.findings if finding.outcome is not Outcome.VALID]
    assert found == [code for code in story.codes if code not in ("seq_outside_key", "receipt_key_unknown")]
    assert signers.is_signed == (not found)


@by_story
def test_a_thief_gains_nothing_by_leaving_things_out(story: Story) -> None:
    """Without the other files, and without the checkpoint on the line, nothing becomes valid that was not."""
    receipt = story.ledger.receipt(story.seq, story.size, story.witnesses, story.logs, story.key)
    bare = [" ".join(line.split(" ")[:8]) for line in story.lines]
    keyring = pins(maker.opened(), story.quorum, maker.opened().keys(story.version, bare))
    for judged in (check_receipt(receipt, pinned(story)), check_receipt(receipt, keyring)):
        assert judged.exit_code != 0 or story.verdict == "valid"


@by_story
def test_a_line_by_a_stranger_changes_no_verdict(story: Story) -> None:
    logs = story.logs if isinstance(story.logs, tuple) else (story.logs,)
    noisy = (*logs, maker.Key(60))
    receipt = story.ledger.receipt(story.seq, story.size, story.witnesses, noisy, story.key)
    report = check_receipt(receipt, pinned(story), others=[make() for make in story.also])
    assert report.exit_code == EXIT_CODES[story.verdict]
