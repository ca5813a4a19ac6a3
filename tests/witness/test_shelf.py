"""What a witness remembers survives a stop, is on the disk before it is said, and is never believed from elsewhere."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.witness.books import Books, parse_logs
from gateway.witness.shelf import ShelfError, origin_hash
from keys import files as key_files
from tests.witness.logbook import ORIGIN, Log, Post
from verifier.wire import Malformed

LOG, OTHER = Log(), Log("other", fork=5)


def state_file(post: Post) -> Path:
    return post.folder / "state" / f"{origin_hash(ORIGIN)}.note"


def test_a_start_knows_what_was_cosigned(tmp_path: Path) -> None:
    post = Post(tmp_path, LOG)
    post.add(LOG.request(0, 10))
    again = post.again()
    assert again.add(LOG.request(0, 20)).text == "10\n"
    assert again.add(OTHER.request(10, 20)).status == 422
    assert again.add(LOG.request(10, 20)).status == 200


def test_a_second_process_may_not_use_the_folder(tmp_path: Path) -> None:
    post = Post(tmp_path, LOG)
    with pytest.raises(ShelfError, match="another process"):
        Post(tmp_path)
    post.again().shelf.close()


@pytest.mark.parametrize("what", ["cut", "foreign", "renamed", "of another witness"])
def test_a_note_that_is_not_this_witnesss_own_stops_the_start(tmp_path: Path, what: str) -> None:
    post = Post(tmp_path / "a", LOG)
    post.add(LOG.request(0, 10))
    file = state_file(post)
    match what:
        case "cut":
            file.write_bytes(file.read_bytes()[:-20])
        case "foreign":
            file.write_bytes(LOG.note(10))
        case "renamed":
            file.rename(file.with_name("0" * 64 + ".note"))
        case _:
            other = Post(tmp_path / "b", LOG)
            other.add(LOG.request(0, 5))
            file.write_bytes(state_file(other).read_bytes())
    with pytest.raises(ShelfError):
        post.again()


def test_a_half_written_file_of_a_killed_witness_is_overlooked(tmp_path: Path) -> None:
    post = Post(tmp_path, LOG)
    post.add(LOG.request(0, 10))
    Path(f"{state_file(post)}.new").write_bytes(b"half")
    again = post.again()
    assert again.add(LOG.request(10, 20)).status == 200


def test_bytes_name_and_folder_are_durable_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post = Post(tmp_path, LOG)
    did: list[str] = []

    def told(what: str, function: Callable[..., None]) -> Callable[..., None]:
        def tell(*arguments: object) -> None:
            did.append(what)
            function(*arguments)

        return tell

    fsync, sync_folder = os.fsync, key_files.sync_folder
    monkeypatch.setattr(os, "fsync", told("sync", fsync))
    monkeypatch.setattr(os, "replace", told("give the bytes their name", os.replace))
    monkeypatch.setattr(key_files, "sync_folder", told("of the folder:", sync_folder))
    assert post.add(LOG.request(0, 10)).status == 200
    did.append("answer")
    assert did == ["sync", "give the bytes their name", "of the folder:", "sync", "answer"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_after_a_failed_write_nothing_is_cosigned_until_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    """The disk may hold the first history by now: to sign the second one would be two."""
    post = Post(tmp_path, LOG)
    post.add(LOG.request(0, 5))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, broken, fail)
        assert post.add(LOG.request(5, 10)).code == "state_lost"
    assert post.shelf.is_lost
    assert post.add(OTHER.request(5, 10)).code == "state_lost"
    again = post.again()
    assert again.add(OTHER.request(5, 10)).status == 200, "the rename never happened, so the disk says 5"


# -- logs.txt ----------------------------------------------------------------------------------------------------------

ROOT = Log(origin="log.example/c/root", seed=7).vkey.vkey
WITNESS_KEY = "witness.example/w1+df1c0a35+BIE5dw6ofRdfVqNUZsNMfszLjYqRtO43ol32D1uPybOU"
WRONG = {
    "another word": f"logs {LOG.vkey.vkey}",
    "no key": "log",
    "a witness's key": f"log {WITNESS_KEY}",
    "a key twice": f"log {LOG.vkey.vkey}\nlog {LOG.vkey.vkey}",
    "one key under two names": f"log {LOG.vkey.vkey}\nlog {Log(origin='log.example/b').vkey.vkey}",
    "no address": f"replay {ROOT}",
    "an address of a file": f"replay {ROOT} file:///etc/passwd",
    "a replay with a log's key": f"replay {LOG.vkey.vkey} http://log.example/a",
    "both words for one origin": f"replay {ROOT} http://a.example\nlog {Log(origin='log.example/c', seed=8).vkey.vkey}",
    "both words the other way": f"log {Log(origin='log.example/c', seed=8).vkey.vkey}\nreplay {ROOT} http://a.example",
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_line_is_refused_by_its_number(what: str) -> None:
    with pytest.raises(Malformed, match=r"logs\.txt"):
        parse_logs(f"{WRONG[what]}\n".encode())


def test_a_good_file_is_read(tmp_path: Path) -> None:
    second = Log(seed=3)
    text = (
        f"# comment\n\n log {LOG.vkey.vkey}  http://log.example/a/\nlog {second.vkey.vkey}\nreplay {ROOT} https://c\n"
    )
    logs = parse_logs(text.encode())
    assert logs[ORIGIN].keys == (LOG.vkey, second.vkey)
    assert logs[ORIGIN].url == "http://log.example/a"
    assert logs["log.example/c"].root is not None


def test_an_edit_that_went_wrong_leaves_the_lines_before_in_force(tmp_path: Path) -> None:
    post = Post(tmp_path, LOG)
    known = Books(tmp_path)
    (tmp_path / "logs.txt").write_text("log\n")
    assert known.get(ORIGIN) is not None
    (tmp_path / "logs.txt").write_text("")
    assert known.get(ORIGIN) is None
    post.shelf.close()
