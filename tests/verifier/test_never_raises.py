"""Any bytes in any place end in a report: receipts, pins, keys, ledgers, other files, and the command line."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.verifier import admissions, key_stories, maker
from tests.verifier.judging import audit, pins
from verifier import __main__ as command
from verifier.compare import check_compare
from verifier.keyring import open_keyring
from verifier.receipt import check_receipt
from verifier.verdict import Report
from verifier.wire import Malformed

WORKED = maker.worked()
FULL = pins(WORKED)
FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def mutated(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """A good file with a piece replaced, cut out, doubled, or moved; or any bytes."""
    original = draw(st.sampled_from(originals))
    start = draw(st.integers(0, len(original)))
    stop = draw(st.integers(start, min(len(original), start + 40)))
    piece = draw(
        st.binary(max_size=12) | st.sampled_from([b'"', b"\\u0000", b"\xff", b"\n", b"{" * 50, b"0", b"=", b"+"])
    )
    whole = original[:start] + piece + original[stop:]
    return draw(st.sampled_from([whole, original[:start], original[start:], piece, original[:stop] + original[start:]]))


RECEIPTS = [WORKED.receipt(seq, witnesses=("w1", "w2")) for seq in (0, 5, 6, 10)]
RECEIPTS += [maker.busy().receipt(seq) for seq in (10, 15, 16, 19)]
STAFFED = maker.staffed()
RECEIPTS += [maker.keyed().receipt(seq, 7) for seq in (5, 6)]
RECEIPTS += [STAFFED.receipt(seq) for seq in (7, 13, 16, 17, 19, 21, 24, 26, 32)]
RECEIPTS += [maker.canonical({**STAFFED.envelope(17), "signatures": []})]
ADMITTED = admissions.day()
RECEIPTS += [ADMITTED.receipt(seq) for seq in (9, 12, 15, 20, 21, 23, 37, 42)]
EXPORTS = [WORKED.export(), maker.busy().export(), maker.opened().export(), STAFFED.export(), ADMITTED.export()]
POLICIES, KEYS = [maker.policy(), maker.policy(None)], [WORKED.keys(), WORKED.keys(version=2)]
CHECKPOINTS = [WORKED.checkpoint(), WORKED.checkpoint(7, ("w1", "w2", "w3"))]


def is_whole(report: Report) -> bool:
    """A report can always be printed in both forms, and its exit code is one of the five."""
    text, parsed = report.as_text(), json.loads(report.as_json())
    return text.isascii() and parsed["exitCode"] == report.exit_code and report.exit_code in range(5)


@FEW
@given(mutated(RECEIPTS), st.sampled_from(["signed", "included", "witnessed"]), st.none() | st.integers())
def test_any_receipt_ends_in_a_report(receipt: bytes, level: str, now_ms: int | None) -> None:
    report = check_receipt(receipt, FULL, level=level, now_ms=now_ms)
    assert is_whole(report)
    assert report.exit_code != 4


KEYED = maker.keyed()
KEYED_PINS = pins(KEYED, keys=KEYED.keys(lines=maker.keyed_lines()))
FORK = maker.Ledger(leaves=WORKED.leaves[:9], time_ms=WORKED.time_ms, counter=700)
FORK.grant(maker.ALICE, "lock:fork")
COMPARED = [*RECEIPTS[:4], *CHECKPOINTS, WORKED.consistency(7), FORK.checkpoint(), FORK.receipt(9), KEYED.receipt(5)]
EVIDENCE = [evidence for evidence in [check_compare(WORKED.checkpoint(10), FORK.checkpoint(), FULL)[1]] if evidence]


@FEW
@given(mutated(COMPARED), mutated(COMPARED), st.none() | mutated([WORKED.consistency(7)]))
def test_any_two_files_compared_end_in_a_report(a: bytes, b: bytes, proof: bytes | None) -> None:
    report, evidence = check_compare(a, b, FULL, proof=proof)
    assert is_whole(report)
    assert (evidence is not None) == (report.exit_code == 4)
    if evidence is not None:
        assert check_compare(evidence, None, FULL)[0].exit_code == 4


@FEW
@given(mutated(EVIDENCE))
def test_any_evidence_ends_in_a_report(evidence: bytes) -> None:
    assert is_whole(check_compare(evidence, None, FULL)[0])


PRIVATE = [
    maker.canonical(
        {
            "type": "tallystick/private/1",
            "leafHash": maker.leaf_hash(WORKED.leaves[5]).hex(),
            "fields": [{"name": "reasonDigest", "salt": "A" * 43 + "=", "value": "x"}, {"name": "a", "salt": None}],
        }
    )
]


@FEW
@given(st.sampled_from(RECEIPTS), mutated(PRIVATE))
def test_any_private_file_ends_in_a_report(receipt: bytes, private: bytes) -> None:
    report = check_receipt(receipt, FULL, private=private)
    assert is_whole(report)
    assert report.exit_code in (0, 1, 2)


DISOWNED = pins(key_stories.HONEST, keys=key_stories.HONEST.keys(2, key_stories.DISOWNED))
AT_HAND = [key_stories.proof(9)(), key_stories.note(17)(), key_stories.HONEST.receipt(6, 9)]


@FEW
@given(mutated(AT_HAND), mutated(AT_HAND))
def test_any_files_about_a_disowned_key_end_in_a_report(receipt: bytes, other: bytes) -> None:
    """And none makes valid what the thief alone has signed."""
    assert is_whole(check_receipt(receipt, DISOWNED, others=[other]))
    stolen = check_receipt(key_stories.THIEVES.receipt(6, 9), DISOWNED, others=[receipt, other])
    assert is_whole(stolen) and stolen.exit_code != 0


@FEW
@given(mutated([KEYED.keys(lines=maker.keyed_lines()), key_stories.HONEST.keys(2, key_stories.DISOWNED)]))
def test_any_document_with_disowned_keys_is_pinned_or_malformed(document: bytes) -> None:
    try:
        keyring = open_keyring(root=maker.root_vkey(), document=document)
    except Malformed:
        return
    assert is_whole(check_receipt(RECEIPTS[1], keyring))


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
PLACES = ["leaf", "path", "batch", "signatures", "statement", "delegations", "request", "commands"]


@FEW
@given(st.sampled_from(PLACES), ANY_JSON)
def test_any_value_in_a_part_of_a_session_or_a_batch_ends_in_a_report(place: str, value: Any) -> None:
    """Correctly encoded and hashed around it, so that the reader of the part itself meets the value."""
    if place in ("statement", "delegations"):
        chain = value if place == "delegations" else [{"statement": value, "signature": "A" * 86 + "=="}]
        ledger = maker.opened()
        members = {"verbs": ["lease"], "expiresAtMs": ledger.time_ms + 9, "endsIfIdleAtMs": ledger.time_ms + 9}
        body = {"delegations": chain}
        seq = ledger.decision("session.opened", maker.SESSION, "session.open", body, members)
        receipt, keyring = ledger.receipt(seq), pins(ledger)
    else:
        ledger, keyring = maker.Ledger(leaves=list(STAFFED.leaves)), pins(STAFFED)
        if place in ("request", "commands"):
            header = ledger.value(16)
            header["request"] = value if place == "request" else {**header["request"], "body": json.dumps(value)}
            ledger.leaves[16] = maker.canonical(header)
        whole = ledger.envelope(17)
        if place in ("batch", "signatures"):
            whole[place] = value
        elif place in ("leaf", "path"):
            whole["batch"][place] = value
        receipt = maker.canonical(whole)
    report = check_receipt(receipt, keyring)
    assert is_whole(report)
    assert (report.exit_code == 0) == ((place, value) == ("signatures", []))


@FEW
@given(mutated(RECEIPTS[:4] + CHECKPOINTS))
def test_any_other_file_of_step_12_ends_in_a_report_and_convicts_nobody(other: bytes) -> None:
    report = check_receipt(RECEIPTS[1], FULL, others=[other])
    assert is_whole(report)
    assert report.exit_code != 4


@FEW
@given(mutated(EXPORTS), st.none() | mutated(CHECKPOINTS))
def test_any_export_and_checkpoint_end_in_a_report(export: bytes, checkpoint: bytes | None) -> None:
    report = audit(export, FULL, checkpoint)
    assert is_whole(report)
    assert report.exit_code != 4 or checkpoint is not None


@FEW
@given(st.lists(st.sampled_from(WORKED.leaves), max_size=40))
def test_any_order_of_genuine_entries_ends_in_a_report(leaves: list[bytes]) -> None:
    """Doubled, dropped and shuffled entries, under the log's own signature: wrong unless they are the beginning."""
    ledger = maker.Ledger(leaves=leaves)
    report = audit(ledger.export(), FULL)
    assert is_whole(report)
    assert (report.exit_code == 1) == (leaves != WORKED.leaves[: len(leaves)])


@FEW
@given(mutated(POLICIES), mutated(KEYS), st.text(max_size=60) | st.just(maker.root_vkey()))
def test_any_pins_are_a_keyring_or_malformed(policy: bytes, keys: bytes, root: str) -> None:
    for document in (keys, KEYS[0]):
        try:
            keyring = open_keyring(root=root, document=document, policy=policy)
        except Malformed:
            continue
        assert is_whole(check_receipt(RECEIPTS[1], keyring))


@FEW
@given(
    st.lists(
        st.sampled_from(
            [
                "receipt",
                "compare",
                "ledger",
                "--private",
                "--proof",
                "--json",
                "--policy",
                "--root",
                "--keys",
                "--level",
                "signed",
                "--now",
                "1",
                "--also",
                "--jobs",
                "--checkpoint",
                "FILE",
                "OTHER",
                "@FILE",
                "@",
                "-",
                "",
                "\x00",
                "é\n",
                "--min-keys-version",
                "2",
            ]
        ),
        max_size=9,
    ),
    st.binary(max_size=80),
)
def test_any_command_line_ends_in_an_exit_code(tmp_path: Path, words: list[str], content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    line = [word.replace("FILE", str(file)).replace("OTHER", str(tmp_path)) for word in words]
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            code = command.main(line)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else -1
    assert code in (0, 1, 2, 3)


def test_a_leaf_cannot_write_to_the_terminal_of_its_reader() -> None:
    """Control characters, right-to-left marks and colours arrive as visible escapes, in both forms."""
    ledger = maker.Ledger(leaves=WORKED.leaves[:5])
    ledger.entry("lease.granted", maker.ALICE.did, {"\x1b[31mred\u202e": 1, "\x7f": "\u009b2J"})
    body = json.dumps({"ledger": maker.ORIGIN, "actorDid": maker.ALICE.did, "\x1b[2J\u202e\x7f": 1})
    ledger.leaves = ledger.leaves[:5]
    ledger.grant(maker.ALICE, "lock:a", raw_body=body)
    report = check_receipt(ledger.receipt(5), FULL)
    for text in (report.as_text(), report.as_json()):
        assert text.isascii() and not any(character in text for character in "\x1b\x7f\u202e\u009b")
    assert "body_malformed" in report.as_text()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_no_verdict_is_exit_2_and_one_sentence(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def stop(*_: object, **__: object) -> Report:
        raise error

    monkeypatch.setattr(command, "check_receipt", stop)
    (tmp_path / "policy").write_bytes(maker.policy())
    (tmp_path / "receipt").write_bytes(RECEIPTS[0])
    assert command.main(["receipt", str(tmp_path / "receipt"), "--policy", str(tmp_path / "policy")]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"tallystick-verify: stopped by {error.__name__}; nothing was judged\n")


@pytest.mark.parametrize("hole", [b"[" * 100_000, b'{"a":' * 50_000, b'{"n":' + b"9" * 200_000 + b"}", b'"' * 262_144])
def test_depth_and_digits_are_bounded_before_any_parser_sees_them(hole: bytes) -> None:
    report = check_receipt(hole, FULL)
    assert (report.exit_code, [finding.step for finding in report.findings]) == (1, [2])
