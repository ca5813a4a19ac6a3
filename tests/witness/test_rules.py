"""The rules of a witness: every status of C2SP tlog-witness, and no way to two histories."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.witness.books import Books, add_line
from gateway.witness.shelf import CLAIMS_MAX, Shelf, origin_hash
from gateway.witness.submission import BODY_BYTES_MAX, CHECKPOINT_BYTES_MAX
from gateway.witness.witness import CLOCK_BACK_SECONDS_MAX, SIZE, Witness
from keys.signing import SigningKey
from tests.system.process import run_module
from tests.witness.logbook import NOW_S, ORIGIN, Log, Post, body_of, line_by
from verifier.checkpoint import checkpoint_text, parse_checkpoint
from verifier.merkle import EMPTY_ROOT
from verifier.note import (
    KIND_COSIGNATURE,
    Note,
    cosignature_time_s,
    encode_note,
    is_signed_once,
    make_vkey,
    parse_note,
)

HONEST, OTHER = Log(), Log("other", fork=5)
STRANGER = Log(seed=9)  # the same origin, a key that nobody pinned


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path / "witness", HONEST)


def changed(body: bytes, old: bytes, new: bytes) -> bytes:
    assert body.count(old) == 1
    return body.replace(old, new)


def two_lines(log: Log, size: int, second: Log) -> bytes:
    text = checkpoint_text(log.origin, size, log.tree.root(size))
    return encode_note(Note(text, (line_by(log.key, log.origin, text), line_by(second.key, log.origin, text))))


# -- 200 ---------------------------------------------------------------------------------------------------------------


def test_the_vector_of_the_specification_gets_its_line_byte_for_byte(tmp_path: Path) -> None:
    """Three to seven of c2sp.md, by a witness of the vector's key at the vector's time."""
    log = Log(seed=1, size=7, origin="gateway.example/ledger")
    key = SigningKey(b"\2" * 32)
    vkey = make_vkey("witness.example/w1", key.public_key, KIND_COSIGNATURE)
    (tmp_path / "logs.txt").write_text(f"log {log.vkey.vkey}\n")
    shelf = Shelf(tmp_path, vkey)
    witness = Witness(key, vkey, books=Books(tmp_path), shelf=shelf, clock_s=lambda: 1_700_000_000)
    assert witness.add(log.request(0, 3)).status == 200
    answer = witness.add(VECTOR_REQUEST.encode())
    assert (answer.status, answer.text) == (200, VECTOR_LINE)
    assert witness.newest("3fd6b6ec41a0573fce983e923388156eaea937d0519dc491016108a1c3fa593f") is not None


VECTOR_LINE = (
    "— witness.example/w1 3xwKNQAAAABlU/EABihqxDLwtXSLaRPAp/L5SGjrQB5C7UzKXtkpy21P2dmWhfWrhscYIAEOOwnjnuY/"
    "imCHmLUQeqGrhDkqifKQCQ==\n"
)
VECTOR_REQUEST = """\
old 3
/KifV8n4yOtAR6f/nTM6z54PM4SyCyVbzqsPIW3Momc=
92g2MlrsVpnY1x+OQunUfFwpsIBZuiljhPfKQK06QK4=
YKU+7Q3oepDI5ZQnxZxGJTwzp2oJUCpRgBMAknt+a9w=
jq5r07Ogfx917nKlMWKebrMeQuYvdg5H3lKlPDZB7yM=

gateway.example/ledger
7
CwB/uRXrmyoUb1SxyG7FO2ZPjkVbdmCwtu4T7cDZIcA=

— gateway.example/ledger 3llI1JuZQoj35bRL9qVdbiipE4WNOEe1nfpJZ4lPazEGpAyBuy9OMXr5rqg0zuvq/rEAh/tN7+y69mcFrD+U0ecSRAY=
"""


def test_an_accepted_checkpoint_gets_one_valid_line_of_now_and_is_kept_whole(post: Post) -> None:
    answer = post.add(HONEST.request(0, 10))
    assert (answer.status, answer.code) == (200, "cosigned")
    checkpoint = parse_note(HONEST.note(10))
    line = parse_note(f"{checkpoint.text}\n{answer.text}".encode()).lines
    whole = replace(checkpoint, lines=(*checkpoint.lines, *line))
    assert is_signed_once(whole, post.vkey)
    assert cosignature_time_s(line[0]) == NOW_S
    assert post.witness.newest(origin_hash(ORIGIN)) == encode_note(whole)


def test_sizes_grow_from_nothing_to_any_size_and_the_same_size_gets_a_fresh_time(post: Post) -> None:
    assert post.add(HONEST.request(0, 0)).status == 200
    for old, size in [(0, 1), (1, 7), (7, 8), (8, 8), (8, 33), (33, 40)]:
        post.now_s += 10
        assert post.add(HONEST.request(old, size)).status == 200, (old, size)
    first = post.add(HONEST.request(40, 40)).text
    post.now_s += 1
    assert post.add(HONEST.request(40, 40)).text != first


def test_every_line_of_a_trusted_key_is_kept_and_no_other(tmp_path: Path) -> None:
    """During a rotation two keys sign; what strangers add is not carried on."""
    second = Log(seed=3)
    post = Post(tmp_path, HONEST, second)
    note = parse_note(two_lines(HONEST, 4, second))
    noise = line_by(STRANGER.key, "somebody.example", note.text)
    body = body_of(0, (), encode_note(replace(note, lines=(noise, *note.lines))))
    assert post.add(body).status == 200
    kept = post.witness.newest(origin_hash(ORIGIN))
    assert kept is not None
    assert parse_note(kept).lines[:2] == note.lines
    assert len(parse_note(kept).lines) == 3


# -- 400, 403, 404 -----------------------------------------------------------------------------------------------------

GOOD = HONEST.request(0, 3)
WIDE = "".join(f"— n{number}.example {'A' * 300}\n" for number in range(60))
MALFORMED = {
    "empty": b"",
    "no old": GOOD.replace(b"old 0\n", b""),
    "a leading zero": GOOD.replace(b"old 0", b"old 00"),
    "a sign": GOOD.replace(b"old 0", b"old -0"),
    "a size beyond every tree": GOOD.replace(b"old 0", b"old 18446744073709551615"),
    "old twice": GOOD.replace(b"old 0\n", b"old 0\nold 0\n"),
    "line ends of another system": GOOD.replace(b"\n", b"\r\n"),
    "no empty line": GOOD.replace(b"old 0\n\n", b"old 0\n"),
    "a hash of 31 bytes": GOOD.replace(b"old 0\n", b"old 0\n" + b"A" * 40 + b"AA==\n"),
    "64 hashes": body_of(0, [EMPTY_ROOT] * 64, HONEST.note(3)),
    "no signature line": GOOD.partition("—".encode())[0],
    "a checkpoint's size with a zero": HONEST.sign(f"{ORIGIN}\n03\n").join([b"old 0\n\n", b""]),
    "no final newline": GOOD[:-1],
    "a byte that is no UTF-8": GOOD.replace(b"old", b"ol\xff"),
    "old above the checkpoint": GOOD.replace(b"old 0", b"old 4"),
    "a checkpoint of 16 KiB": GOOD + WIDE.encode(),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_is_400_and_changes_nothing(post: Post, what: str) -> None:
    assert (post.add(MALFORMED[what]).status, post.witness.newest(origin_hash(ORIGIN))) == (400, None)


def test_the_bound_of_a_checkpoint_leaves_room_for_the_longest_proof() -> None:
    assert len(body_of(2**53 - 1, [EMPTY_ROOT] * 63, b"")) + CHECKPOINT_BYTES_MAX <= BODY_BYTES_MAX


def test_an_unknown_origin_is_404(post: Post) -> None:
    answer = post.add(Log(origin="log.example/b").request(0, 3))
    assert (answer.status, answer.code) == (404, "origin_unknown")


def with_lines(text_of: bytes, *lines_of: bytes) -> bytes:
    """The first note's text under the lines of the others."""
    return b"\n\n".join([text_of.split(b"\n\n")[0], b"".join(note.split(b"\n\n")[1] for note in lines_of)])


UNSIGNED = {
    "no line of a trusted key": STRANGER.note(3),
    "a line that does not verify": changed(HONEST.note(3), b"\n3\n", b"\n4\n"),
    "a good line and a bad one of the same key": with_lines(HONEST.note(3), HONEST.note(3), HONEST.note(4)),
    "a bad line before the good one": with_lines(HONEST.note(3), HONEST.note(4), HONEST.note(3)),
}


@pytest.mark.parametrize("what", UNSIGNED)
def test_a_checkpoint_that_no_trusted_key_signed_is_403_and_no_evidence(post: Post, what: str) -> None:
    assert post.add(body_of(0, (), UNSIGNED[what])).status == 403
    assert post.shelf.evidence(ORIGIN) == []


def test_one_bad_line_of_two_trusted_keys_refuses_the_note(tmp_path: Path) -> None:
    second = Log(seed=3)
    post = Post(tmp_path, HONEST, second)
    bad = HONEST.note(3) + second.note(4).split(b"\n\n")[1]
    assert post.add(body_of(0, (), bad)).status == 403
    assert post.add(body_of(0, (), two_lines(HONEST, 3, second))).status == 200


def test_a_log_that_is_added_later_is_answered_without_a_start(post: Post) -> None:
    late = Log(origin="log.example/late", seed=4)
    assert post.add(late.request(0, 3)).status == 404
    add_line(post.folder, f"log {late.vkey.vkey}")
    assert post.add(late.request(0, 3)).status == 200


# -- 409, 422 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", [0, 9, 11])
def test_another_old_size_is_409_with_ours(post: Post, old: int) -> None:
    post.add(HONEST.request(0, 10))
    answer = post.add(HONEST.request(old, 20))
    assert (answer.status, answer.text, answer.kind) == (409, "10\n", SIZE)


def test_a_first_request_that_expects_more_is_409_with_zero(post: Post) -> None:
    assert (post.add(HONEST.request(3, 10)).text) == "0\n"


@pytest.mark.parametrize(
    ("what", "first", "body"),
    [
        ("another history", 10, OTHER.request(10, 20)),
        ("a proof of other sizes", 10, body_of(10, HONEST.tree.consistency(9, 20), HONEST.note(20))),
        ("no proof", 10, body_of(10, (), HONEST.note(20))),
        ("a proof where none is needed", 0, body_of(0, HONEST.tree.consistency(3, 20), HONEST.note(20))),
        ("a proof for the same size", 10, body_of(10, [EMPTY_ROOT], HONEST.note(10))),
        ("the same size, another root", 10, body_of(10, (), OTHER.note(10))),
        ("no entries and another root", 0, body_of(0, (), HONEST.sign(checkpoint_text(ORIGIN, 0, b"\7" * 32)))),
    ],
)
def test_what_does_not_extend_the_kept_tree_is_422_and_kept_as_evidence(
    post: Post, what: str, first: int, body: bytes
) -> None:
    if first:
        post.add(HONEST.request(0, first))
    before = post.witness.newest(origin_hash(ORIGIN))
    assert post.add(body).status == 422, what
    assert post.witness.newest(origin_hash(ORIGIN)) == before
    assert [path.read_bytes() for path in post.shelf.evidence(ORIGIN) if path.name.startswith("claim")] == [body]


@pytest.mark.parametrize(("old", "status"), [(10, 422), (3, 409)])
def test_two_roots_of_one_size_are_proven_by_a_file_of_their_own(post: Post, old: int, status: int) -> None:
    post.add(HONEST.request(0, 10))
    assert post.add(OTHER.request(old, 10)).status == status
    proof = json.loads(post.shelf.evidence(ORIGIN)[-1].read_bytes())
    assert (proof["type"], proof["origin"]) == ("tallystick/evidence/1", ORIGIN)
    ours, theirs = (parse_checkpoint(proof[name].encode()) for name in "ab")
    assert (ours.size, ours.root, theirs.size) == (theirs.size, HONEST.tree.root(10), 10)
    assert theirs.root == OTHER.tree.root(10)
    assert is_signed_once(theirs.note, HONEST.vkey)


def test_evidence_is_bounded_and_failing_requests_never_crowd_out_a_proof(post: Post) -> None:
    post.add(HONEST.request(0, 10))
    for number in range(CLAIMS_MAX + 5):
        assert post.add(body_of(10, [number.to_bytes(32, "big")], HONEST.note(20))).status == 422
    assert len(post.shelf.evidence(ORIGIN)) == CLAIMS_MAX
    post.add(OTHER.request(10, 10))
    assert len(post.shelf.evidence(ORIGIN)) == CLAIMS_MAX + 1
    post.add(OTHER.request(10, 10))  # the same again is no news
    assert len(post.shelf.evidence(ORIGIN)) == CLAIMS_MAX + 1


# -- time, order, memory -----------------------------------------------------------------------------------------------


def test_a_clock_that_is_a_little_back_repeats_its_time_and_one_far_back_stops(post: Post) -> None:
    post.add(HONEST.request(0, 10))
    post.now_s -= CLOCK_BACK_SECONDS_MAX
    answer = post.add(HONEST.request(10, 20))
    assert cosignature_time_s(parse_note(f"x\n\n{answer.text}".encode()).lines[0]) == NOW_S
    post.now_s -= 1
    answer = post.add(HONEST.request(20, 30))
    assert (answer.status, answer.code, answer.retry_after_s) == (503, "clock_back", 60)


def test_of_many_parallel_requests_for_one_origin_each_size_is_cosigned_for_one_history(post: Post) -> None:
    """Two histories race from every size; whoever is first decides, and the other gets 409 or 422."""
    post.add(HONEST.request(0, 5))
    bodies = [log.request(old, size) for log in (HONEST, OTHER) for old in range(5, 15) for size in range(old + 1, 17)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(post.add, bodies * 3))
    assert {answer.status for answer in answers} <= {200, 409, 422}
    cosigned = [body for body, answer in zip(bodies * 3, answers, strict=True) if answer.status == 200]
    roots = {(c.size, c.root) for c in (parse_checkpoint(body.partition(b"\n\n")[2]) for body in cosigned)}
    assert len({size for size, _ in roots}) == len(roots) > 0
    trees = [log for log in (HONEST, OTHER) if all(log.tree.root(size) == root for size, root in roots)]
    assert len(trees) == 1, "all that was cosigned is of one history"


def test_the_evidence_file_proves_it_to_the_real_verifier(post: Post, tmp_path: Path) -> None:
    post.add(HONEST.request(0, 10))
    post.add(OTHER.request(10, 10))
    (tmp_path / "policy").write_text(f"log {HONEST.vkey.vkey}\nquorum none\n")
    told = run_module("verifier", "compare", str(post.shelf.evidence(ORIGIN)[-1]), "--policy", str(tmp_path / "policy"))
    assert told.returncode == 4, told.stdout
    assert "two_roots" in told.stdout


def test_no_flipped_bit_of_a_good_request_is_cosigned_or_raises(post: Post) -> None:
    post.add(HONEST.request(0, 10))
    good = HONEST.request(10, 20)
    for at in range(len(good)):
        for bit in (0, 5):
            body = bytearray(good)
            body[at] ^= 1 << bit
            assert post.add(bytes(body)).status in (400, 403, 404, 409, 422), (at, bit)
    assert post.add(good).status == 200
