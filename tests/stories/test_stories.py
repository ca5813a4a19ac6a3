"""docs/stories/ is what the code does: made again, checked offline, and every command is one."""

from __future__ import annotations

import argparse
import re
import shlex
from typing import Any

import pytest

from gateway.client.commands import _COMMANDS
from tests.house.docs import STORIES
from tests.stories import pages, stampede
from tests.stories.pages import build
from tests.stories.teller import digest
from verifier.__main__ import main as verify
from verifier.keyring import Keyring, open_keyring
from verifier.receipt import check_receipt
from verifier.replay.ledger import check_ledger
from verifier.verdict import Outcome

_RUN = re.compile(r"^```\n\$ (tallystick-verify [^\n]*)\n(.*?)^```", re.S | re.M)


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    """What a stranger pins: the two files that lie beside the stories."""
    return open_keyring(root=(STORIES / "root.vkey").read_text().strip(), document=(STORIES / "keys.note").read_bytes())


def test_the_pages_and_receipts_are_those_of_a_run_today() -> None:
    """Scenarios 3, 11, 35, L1, L48: the whole ledger was audited when they were made."""
    kept = {path.relative_to(STORIES).as_posix(): path.read_bytes() for path in STORIES.rglob("*") if path.is_file()}
    assert kept.keys() == build().files.keys()
    assert [name for name, data in kept.items() if build().files[name] != data] == [], "run `make docs`"


def test_every_receipt_convinces_a_stranger_and_no_other_bytes_do(keyring: Keyring) -> None:
    receipts = sorted(STORIES.glob("*/*.json"))
    assert len(receipts) >= 16
    for path in receipts:
        data = path.read_bytes()
        assert check_receipt(data, keyring).outcome is Outcome.VALID, path
        at = data.index(b'"payload":"') + 200
        flipped = data[:at] + (b"A" if data[at : at + 1] != b"A" else b"B") + data[at + 1 :]
        assert check_receipt(flipped, keyring).outcome is Outcome.INVALID, path


def test_the_ledger_beside_them_is_decided_again(keyring: Keyring) -> None:
    report = check_ledger(STORIES / "ledger.export", keyring)
    assert (report.outcome, report.exit_code) == (Outcome.VALID, 0), report.as_text()


def test_what_the_pages_tell_to_run_says_what_they_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(STORIES)
    printed = 0
    for page in STORIES.glob("*.md"):
        for command, told in re.findall(
            r"^```\n\$ (tallystick-verify [^\n]*)\n(.*?)^```", page.read_text(), re.S | re.M
        ):
            assert verify(shlex.split(command)[1:]) == 0
            assert capsys.readouterr().out == told
            printed += 1
    assert printed == len(pages.STORIES) + 1
    (block,) = re.findall(r"^```bash\n(.*?)^```", (STORIES / "README.md").read_text(), re.S | re.M)
    assert verify(shlex.split(block)[1:]) == 0


@pytest.mark.parametrize("number", range(len(pages.STORIES)))
def test_what_is_typed_asks_for_what_was_asked(number: int) -> None:
    """Each command is parsed by the command line itself, and compared with the request that was sent for it."""
    told = build().tellers[number]
    assert told.bodies
    for asked, body in told.bodies:
        said, _, command = asked.rpartition(" | ")
        for member, value in typed(parsed(command), body["action"]).items():
            assert body.get(member) == value, (asked, member)
        if said:
            assert digest(shlex.split(said)[1]) == body["argumentsDigest"]


def parsed(command: str) -> argparse.Namespace:
    _, *words = shlex.split(command)
    name = " ".join(words[:2]) if " ".join(words[:2]) in _COMMANDS else words[0]
    parser, _ = _COMMANDS[name]()
    return parser.parse_args(words[len(name.split()) :])


def typed(words: argparse.Namespace, action: str) -> dict[str, Any]:
    """Return the members of a body that the words of a command say."""
    if action == "wait.claim":
        return {"ticketId": words.ticket}
    if action == "lease.break":
        return {"resource": words.resource, "seenToken": words.token, "reason": words.reason}
    (resource,) = words.resources
    if action == "coordination.admit":
        fence = {"leaseId": words.lease, "fencingToken": words.token} if words.lease else {}
        return {"operation": words.operation, "resource": resource, **fence}
    line = words.wait or words.give_up if "give_up" in words else None  # `run` holds, and waits only if it must
    return {"resource": resource, "ttlMs": words.ttl} | ({"wait": True, "giveUpMs": line} if line else {})


def test_fifty_make_one_grant_and_a_line() -> None:
    page = (STORIES / "stampede.md").read_text()
    waits = [min(800, 25 << number) for number in range(8)]
    assert f"| `waitMs` | {' | '.join(map(str, waits))} |" in page
    assert page.count("stands in line**") == 1 and len(stampede.CROWD) == 50
