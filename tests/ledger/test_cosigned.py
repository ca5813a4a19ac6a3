"""The file of the witnesses, and every text that goes between a log and a witness."""

from __future__ import annotations

import base64
import hashlib

import pytest

from gateway.ledger.cosigned import (
    Gathering,
    add_checkpoint_body,
    open_own,
    open_witnesses,
    origin_path,
    own_note,
    read_cosignature,
    served_policy,
    told_size,
    valid_lines,
)
from gateway.ledger.history import Confirmed
from keys.signing import SigningKey
from tests.core.requests import NOW_MS, ORIGIN, key_of
from tests.ledger.witness_fake import FakeWitness, policy_of
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.entries import COSIGNED_CHARACTERS_MAX
from verifier.note import Note, encode_note, make_vkey, signature_line
from verifier.policy import parse_policy
from verifier.wire import Malformed

# The vector of the C2SP page: log seed 01 x 32, witness seed 02 x 32, entries "leaf-0" to "leaf-6".
LOG = make_vkey("gateway.example/ledger", SigningKey(b"\x01" * 32).public_key)
NOTE = """\
gateway.example/ledger
7
CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=

— gateway.example/ledger 3llI1JuZQoj35bRL9qVdbiipE4WNOEe1nfpJZ4lPazEGpAyBuy9OMXr5rqg0zuvq/rEAh/tN7+y69mcFrD+U0ecSRAY=
""".encode()
LINE = (
    "— witness.example/w1 3xwKNQAAAABlU/EABihqxDLwtXSLaRPAp/L5SGjrQB5C7UzKXtkpy21P"
    "2dmWhfWrhscYIAEOOwnjnuY/imCHmLUQeqGrhDkqifKQCQ==\n"
).encode()
PROOF = (
    "/KifV8n4yOtAR6f/nTM6z54PM4SyCyVbzqsPIW3Momc=",
    "92g2MlrsVpnY1x+OQunUfFwpsIBZuiljhPfKQK06QK4=",
    "YKU+7Q3oepDI5ZQnxZxGJTwzp2oJUCpRgBMAknt+a9w=",
    "jq5r07Ogfx917nKlMWKebrMeQuYvdg5H3lKlPDZB7yM=",
)
W1 = FakeWitness("w1", lambda: NOW_MS)
W2 = FakeWitness("w2", lambda: NOW_MS)
URLS = "witness w1 {} https://w.example/a/"
LOG_LINE = make_vkey(ORIGIN, key_of("log").public_key)


def own(size: int, *, root: bytes = b"\x05" * 32, times: int = 1, key: str = "log") -> bytes:
    text = checkpoint_text(ORIGIN, size, root)
    line = signature_line(make_vkey(ORIGIN, key_of(key).public_key), key_of(key).sign(text.encode()))
    return encode_note(Note(text, (line,) * times))


def test_the_request_is_that_of_the_published_vector() -> None:
    body = add_checkpoint_body(3, [base64.b64decode(row) for row in PROOF], NOTE)
    assert body == b"old 3\n" + "\n".join(PROOF).encode() + b"\n\n" + NOTE
    assert add_checkpoint_body(0, (), NOTE) == b"old 0\n\n" + NOTE


def test_the_answer_of_the_published_vector_is_a_line_of_its_witness() -> None:
    key = make_vkey("witness.example/w1", SigningKey(b"\x02" * 32).public_key, 4)
    line = read_cosignature(LINE, key, NOTE.partition(b"\n\n")[0].decode() + "\n")
    assert line.name == "witness.example/w1" and int.from_bytes(line.signature[:8], "big") == 1_700_000_000


def test_a_log_is_shown_under_the_hash_of_its_origin() -> None:
    digest = "3fd6b6ec41a0573fce983e923388156eaea937d0519dc491016108a1c3fa593f"
    assert origin_path("gateway.example/ledger") == f"{digest}/checkpoint"


@pytest.mark.parametrize(("body", "size"), [(b"0\n", 0), (b"7\n", 7), (b"9007199254740991\n", 2**53 - 1)])
def test_a_409_tells_a_size(body: bytes, size: int) -> None:
    assert told_size(body) == size


@pytest.mark.parametrize(
    "body",
    [b"", b"7", b"07\n", b"+7\n", b" 7\n", b"7\r\n", b"7\n\n", b"-1\n", b"seven\n", b"\xff\n", "٧\n".encode(),
     b"9" * 17 + b"\n", b"7\n8\n", b"1e3\n"],
)  # fmt: skip
def test_what_is_no_size_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        told_size(body)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_the_file_is_a_policy_with_a_url_on_each_line_of_a_witness() -> None:
    found = open_witnesses(b"# ours\n\n" + policy_of([W1, W2], 2))
    assert [(one.name, one.key, one.url) for one in found.members] == [
        ("w1", W1.vkey, "http://w1.example"),
        ("w2", W2.vkey, "http://w2.example"),
    ]
    assert found.policy.quorum == "enough"


def test_a_url_is_a_prefix_whether_or_not_it_ends_with_a_slash() -> None:
    for url in ("https://w.example/a", "https://w.example/a/", "\thttps://w.example/a/ "):
        text = f"  witness \t w1 {W1.vkey.vkey} {url}\nquorum w1\n"
        assert open_witnesses(text.encode()).members[0].url == "https://w.example/a"


def test_a_line_of_a_log_means_nothing_here() -> None:
    assert open_witnesses(f"log {LOG.vkey}\n".encode() + policy_of([W1], 1)).members[0].name == "w1"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "exactly one quorum"),
        ("quorum none\n", "remove the file"),
        (f"{W1.line}\nquorum none\n", "remove the file"),
        (f"witness w1 {W1.vkey.vkey}\nquorum w1\n", "witness w1 has no URL"),
        (f"witness w1 {W1.vkey.vkey} w1.example\nquorum w1\n", "witness w1 has no URL"),
        (f"witness w1 {W1.vkey.vkey} ftp://w1.example\nquorum w1\n", "witness w1 has no URL"),
        (f"witness w1 {W1.vkey.vkey} https://ä.example\nquorum w1\n", "witness w1 has no URL"),
        (f"{W1.line}\nwitness w2 {W1.vkey.vkey} https://x\nquorum w1\n", "same public key"),
        (f"{W1.line}\nquorum w2\n", "must be a witness or group"),
        (f"{W1.line} more\nquorum w1\n", "expected log, witness"),
        (f"witness w1 {LOG.vkey} https://x\nquorum w1\n", "kind 4"),
        (f"{W1.line}\nquorum w1", "ends with a newline"),
    ],
)
def test_a_file_that_can_t_be_used_says_why(text: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        open_witnesses(text.encode())


def many(count: int) -> list[FakeWitness]:
    return [FakeWitness(f"w{number}", lambda: NOW_MS) for number in range(count)]


def test_more_witnesses_than_can_be_asked_are_refused() -> None:
    assert len(open_witnesses(policy_of(many(32), 3)).members) == 32
    with pytest.raises(Malformed, match="at most 32"):
        open_witnesses(policy_of(many(33), 3))


def test_names_so_long_that_the_note_would_fit_no_entry_are_refused() -> None:
    rows = []
    for number in range(32):
        key = make_vkey(f"witness.example/{'x' * 400}{number}", key_of(f"long {number}").public_key, 4)
        rows.append(f"witness w{number} {key.vkey} https://w{number}.example")
    with pytest.raises(Malformed, match="don't fit one entry"):
        open_witnesses("\n".join([*rows, "quorum w1", ""]).encode())


def test_the_largest_note_of_an_accepted_file_fits_one_entry() -> None:
    witnesses = many(32)
    text = checkpoint_text(ORIGIN, 2**53 - 1, b"\x05" * 32)
    lines = "".join(one.signed(text).decode() for one in witnesses)
    assert len(own(2**53 - 1, times=2).decode() + lines) <= COSIGNED_CHARACTERS_MAX


def test_readers_are_told_our_logs_and_the_witnesses_we_ask() -> None:
    published = f"# made from version 3\nlog {LOG_LINE.vkey}\nquorum none\n".encode()
    text = served_policy(
        published, open_witnesses(b"# ours \xe2\x80\xa8 \xff\nlog %b\n" % LOG.vkey.encode() + policy_of([W1, W2], 2))
    )
    policy = parse_policy(text)
    assert (policy.logs, dict(policy.witnesses)) == ((LOG_LINE,), {"w1": W1.vkey, "w2": W2.vkey})
    assert policy.quorum == "enough" and text.count(b"quorum") == 1
    assert served_policy(published, None) == published


# -- what counts -------------------------------------------------------------------------------------------------------


def test_only_a_key_that_may_speak_for_the_size_makes_a_checkpoint_ours() -> None:
    assert open_own(own(9), ORIGIN, lambda size: [LOG_LINE] if size <= 9 else []) == parse_checkpoint(own(9))
    assert open_own(own(10), ORIGIN, lambda size: [LOG_LINE] if size <= 9 else []) is None
    for note in (own(9, key="thief"), own(9, times=2), b"", own(9)[:-1], own(9) + b"\n"):
        assert open_own(note, ORIGIN, lambda size: [LOG_LINE]) is None
    assert open_own(own(9), "gateway.example/other", lambda size: [LOG_LINE]) is None


def test_what_speaks_against_us_is_our_own_valid_line_alone() -> None:
    note = own(9) + W1.signed(checkpoint_text(ORIGIN, 9, b"\x05" * 32)) + "— junk AAAAAAAA\n".encode() * 20
    assert own_note(parse_checkpoint(note), lambda size: [LOG_LINE]) == own(9)


def test_a_line_counts_once_and_only_if_it_verifies() -> None:
    text = checkpoint_text(ORIGIN, 9, b"\x05" * 32)
    good, bad = W1.signed(text), W2.signed(text, key_of("thief"))
    keys = {"w1": W1.vkey, "w2": W2.vkey}
    assert list(valid_lines(parse_checkpoint(own(9) + good + bad), keys)) == ["w1"]
    assert list(valid_lines(parse_checkpoint(own(9) + good + good), keys)) == []


def test_the_whole_note_has_our_lines_first_and_the_witnesses_in_the_order_of_the_policy() -> None:
    witnesses = open_witnesses(policy_of([W1, W2], 1))
    note = own(9)
    text = parse_checkpoint(note).note.text
    gathering = Gathering(Confirmed(9, hashlib.sha256(b"").digest(), note), 0, NOW_MS, 5)
    assert gathering.note(witnesses.policy) is None
    for one in (W2, W1):
        gathering.lines[one.name] = read_cosignature(one.signed(text), one.vkey, text)
    assert gathering.note(witnesses.policy) == note + W1.signed(text) + W2.signed(text)
