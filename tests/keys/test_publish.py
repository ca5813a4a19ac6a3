"""A published set is whole or absent: read back before anybody sees it, switched in one step, never to an older one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import keys.forms
import keys.publish
from keys.forms import FORM_FILES, check_forms, published_forms, signed_key_document
from keys.publish import PublishError, document_hash, publish, read_forms
from keys.signing import SigningKey
from tests.keys.publishing import (
    LOG,
    LOG_LINE,
    NEXT_LOG,
    ORIGIN,
    RECEIPT_LINE,
    ROOT,
    ROOT_VKEY,
    disowned,
    first,
    published_version,
    rotated,
    successor,
)
from verifier.keyring import KeyDocument, KeyLine
from verifier.note import make_vkey

Files = dict[str, bytes]


def snapshot(folder: Path) -> Files:
    """Everything a reader can see: the files of the folder, through the link."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())} if folder.exists() else {}


def problems(folder: Path) -> list[str]:
    rows = check_forms(read_forms(folder), ROOT_VKEY)
    return [f"{row.file}: {row.problem}" for row in rows if row.problem is not None]


def leftovers(folder: Path) -> list[str]:
    """Names beside the published folder that belong to no published version."""
    current = os.readlink(folder) if folder.is_symlink() else ""
    return [path.name for path in folder.parent.iterdir() if path.name not in (folder.name, current)]


# -- the good case -----------------------------------------------------------------------------------------------------


def test_a_first_set_is_six_world_readable_files_that_agree(tmp_path: Path) -> None:
    publish(tmp_path / "public", first(), ROOT)
    assert sorted(snapshot(tmp_path / "public")) == sorted(FORM_FILES)
    assert problems(tmp_path / "public") == []
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "public").iterdir()}
    assert modes == {0o644}
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o755


def test_missing_parents_are_made_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    publish(tmp_path / "a" / "b" / "public", first(), ROOT)
    (tmp_path / "empty").mkdir()
    publish(tmp_path / "empty", first(), ROOT)
    assert [problems(tmp_path / "a" / "b" / "public"), problems(tmp_path / "empty")] == [[], []]


def test_publishing_is_deterministic(tmp_path: Path) -> None:
    publish(tmp_path / "one", rotated(), ROOT)
    publish(tmp_path / "two", rotated(), ROOT)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_a_moved_parent_takes_its_published_folder_along(tmp_path: Path) -> None:
    """The link is relative, so a restored back-up at another place works."""
    (tmp_path / "old").mkdir()
    publish(tmp_path / "old" / "public", first(), ROOT)
    (tmp_path / "old").rename(tmp_path / "new")
    assert problems(tmp_path / "new" / "public") == []


@pytest.mark.parametrize(
    "make", [rotated, disowned, lambda: successor(first())], ids=["rotated", "disowned", "same keys"]
)
def test_the_next_version_replaces_the_set_and_keeps_its_predecessor(
    tmp_path: Path, make: Callable[[], KeyDocument]
) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    before, old = snapshot(folder), folder.resolve()
    publish(folder, make(), ROOT)
    assert published_version(folder) == 2
    assert problems(folder) == []
    assert snapshot(old) == before


def test_a_version_may_be_skipped_by_a_folder_that_missed_one(tmp_path: Path) -> None:
    publish(tmp_path / "mirror", first(), ROOT)
    publish(tmp_path / "mirror", successor(rotated()), ROOT)
    assert published_version(tmp_path / "mirror") == 3


# -- what is refused, with the old set untouched -----------------------------------------------------------------------


OTHER_ROOT = SigningKey(b"\x09" * 32)
OTHER_LEDGER = replace(rotated(), genesis=bytes(32))
OTHER_PAST = replace(rotated(), previous=bytes(32))
REFUSED = [
    ("the same version again", first(), ROOT, "already holds version 1, and a version never goes back"),
    ("another version 1", replace(first(), keys=(LOG_LINE,)), ROOT, "Publish version 2 with --previous"),
    ("another genesis", OTHER_LEDGER, ROOT, "belongs to a ledger with another genesis"),
    ("another predecessor", OTHER_PAST, ROOT, "version 2 names another predecessor than"),
    ("another root", rotated(), OTHER_ROOT, "does not open under this root key of ledger.example/main"),
    ("version 2 without a predecessor", replace(rotated(), previous=None), ROOT, "another predecessor"),
]


@pytest.mark.parametrize(("name", "document", "root", "text"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_does_not_follow_is_refused_and_the_old_set_stays(
    tmp_path: Path, name: str, document: KeyDocument, root: SigningKey, text: str
) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    before = snapshot(folder)
    with pytest.raises(PublishError, match=text):
        publish(folder, document, root)
    assert snapshot(folder) == before
    assert leftovers(folder) == []


def test_the_version_goes_back_neither_by_one_nor_by_many(tmp_path: Path) -> None:
    second = rotated()
    third = successor(second)
    publish(tmp_path / "public", third, ROOT)
    for older in (first(), second, third):
        with pytest.raises(PublishError, match="already holds version 3"):
            publish(tmp_path / "public", older, ROOT)
    assert published_version(tmp_path / "public") == 3


def test_a_damaged_current_document_is_not_replaced_blindly(tmp_path: Path) -> None:
    """Its version can't be known, so going on could go back."""
    publish(tmp_path / "public", first(), ROOT)
    (tmp_path / "public" / "keys.note").write_bytes(b"damaged")
    with pytest.raises(PublishError, match="does not open under this root key"):
        publish(tmp_path / "public", rotated(), ROOT)


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "index.html").write_bytes(b"mine")
    with pytest.raises(PublishError, match="not a folder that this command made"):
        publish(tmp_path / "www", first(), ROOT)
    assert snapshot(tmp_path / "www") == {"index.html": b"mine"}


def test_the_advice_for_a_restored_copy_works(tmp_path: Path) -> None:
    """A copy that followed the link is a plain folder; two commands make it replaceable again."""
    publish(tmp_path / "original" / "public", first(), ROOT)
    copy = tmp_path / "public"
    copy.mkdir()
    for name, content in snapshot(tmp_path / "original" / "public").items():
        (copy / name).write_bytes(content)
    with pytest.raises(PublishError) as refused:
        publish(copy, rotated(), ROOT)
    command = str(refused.value).rpartition(": ")[2]
    assert os.system(command) == 0  # it names only paths of this test
    publish(copy, rotated(), ROOT)
    assert [problems(copy), published_version(copy)] == [[], 2]


def with_keys(*lines: KeyLine) -> KeyDocument:
    return replace(first(), keys=lines)


LOG_AS_RECEIPT = KeyLine("receipt", make_vkey(f"{ORIGIN}/receipt", LOG.public_key))
LONG_LINE = KeyLine("custodial", make_vkey(f"{ORIGIN}/{'x' * 70_000}", LOG.public_key))
MALFORMED = [
    ("one key for two purposes", with_keys(LOG_LINE, LOG_AS_RECEIPT)),
    ("the root as log key", with_keys(KeyLine("log", make_vkey(ORIGIN, ROOT.public_key)))),
    ("a log key under a foreign name", with_keys(KeyLine("log", make_vkey("other", LOG.public_key)))),
    ("a version of zero", replace(first(), version=0)),
    ("a later version without a predecessor", replace(first(), version=2)),
    ("a retired key without its size", with_keys(replace(LOG_LINE, status="retired"), RECEIPT_LINE)),
    ("a status that nobody knows", with_keys(replace(LOG_LINE, status="resting"), RECEIPT_LINE)),
    ("more than 64 KiB", with_keys(LONG_LINE)),
]


@pytest.mark.parametrize("document", [row[1] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_a_document_that_no_reader_would_accept_is_not_published(tmp_path: Path, document: KeyDocument) -> None:
    with pytest.raises(PublishError, match=r"keys\.note does not read back: .* Nothing was published"):
        publish(tmp_path / "public", document, ROOT)
    assert list(tmp_path.iterdir()) == []


# -- read-back catches what the makers or the disk get wrong -----------------------------------------------------------


def corrupting_stage(file: str) -> Callable[[Path, int, Files], Path]:
    """A disk that flips one bit of one staged file."""
    stage = keys.publish._stage

    def stage_and_corrupt(folder: Path, version: int, forms: Files) -> Path:
        staged = stage(folder, version, forms)
        content = (staged / file).read_bytes()
        (staged / file).write_bytes(content[:40] + bytes([content[40] ^ 0x04]) + content[41:])
        return staged

    return stage_and_corrupt


@pytest.mark.parametrize("file", FORM_FILES)
def test_a_bit_that_flips_on_the_disk_is_caught_before_anybody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    before = snapshot(folder)
    monkeypatch.setattr(keys.publish, "_stage", corrupting_stage(file))
    with pytest.raises(PublishError, match=f"{file} does not read back"):
        publish(folder, rotated(), ROOT)
    assert snapshot(folder) == before
    assert leftovers(folder) == []


BROKEN_MAKERS: list[tuple[str, Callable[[KeyDocument], object]]] = [
    ("jwks", lambda document: b'{"keys": []}\n'),
    ("did_document", lambda document: b"{}\n"),
    ("policy_text", lambda document: "quorum none\n"),
    ("vkeys_text", lambda document: ""),
    ("vkeys_text", lambda document: make_vkey(ORIGIN, NEXT_LOG.public_key).vkey + "\n"),
]


@pytest.mark.parametrize(("maker", "broken"), BROKEN_MAKERS)
def test_a_form_whose_maker_is_wrong_is_caught_by_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, maker: str, broken: Callable[[KeyDocument], object]
) -> None:
    """Comparing bytes with the same maker's output would find nothing here."""
    monkeypatch.setattr(keys.forms, maker, broken)
    with pytest.raises(PublishError, match="does not read back"):
        publish(tmp_path / "public", first(), ROOT)
    assert list(tmp_path.iterdir()) == []


def test_a_set_that_agrees_with_itself_but_not_with_the_document_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = successor(first())
    forms = published_forms(other, signed_key_document(other, ROOT), ROOT_VKEY)
    monkeypatch.setattr(keys.publish, "published_forms", lambda document, note, root: forms)
    with pytest.raises(PublishError, match=r"keys\.note reads back as another document"):
        publish(tmp_path / "public", first(), ROOT)
    assert list(tmp_path.iterdir()) == []


# -- killed at any moment ----------------------------------------------------------------------------------------------


def publish_and_die(folder: Path, document: KeyDocument, die_at: int) -> bool:
    """Publish in a child that is killed at its `die_at`-th call into the system; say whether it lived to the end."""
    child = os.fork()
    if child == 0:
        calls = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal calls
            if event == "open" or event.startswith(("os.", "fcntl.", "shutil.", "tempfile.")):
                calls += 1
                if calls > die_at:
                    os._exit(9)

        sys.addaudithook(count)
        publish(folder, document, ROOT)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_killed_at_any_system_call_the_reader_sees_the_old_set_or_the_new_one_whole(tmp_path: Path) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    old = snapshot(folder)
    publish(tmp_path / "reference", rotated(), ROOT)
    new = snapshot(tmp_path / "reference")
    seen: list[Files] = []
    die_at = 0
    while not publish_and_die(folder, rotated(), die_at):
        seen.append(snapshot(folder))
        assert seen[-1] in (old, new)
        if seen[-1] == new:  # the switch was made; what is left is syncing the folder
            break
        die_at += 1
    assert len(seen) > 20, "each staged file is opened, and the link is made and replaced"
    assert seen[:-1].count(old) == len(seen) - 1
    assert snapshot(folder) == new


def test_after_a_kill_the_next_attempt_succeeds(tmp_path: Path) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    assert not publish_and_die(folder, rotated(), 15)
    assert published_version(folder) == 1
    publish(folder, rotated(), ROOT)
    assert [problems(folder), published_version(folder)] == [[], 2]


def test_a_failed_switch_leaves_the_old_set_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "public"
    publish(folder, first(), ROOT)
    before = snapshot(folder)

    def fail(source: object, target: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="Input/output error"):
        publish(folder, rotated(), ROOT)
    assert snapshot(folder) == before
    assert leftovers(folder) == []


def test_files_folder_and_link_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that survives a power cut must not lead to files that did not."""
    done: list[str] = []
    replace_file, sync = os.replace, os.fsync

    def note_sync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def note_replace(source: Path, target: Path) -> None:
        done.append("switch")
        replace_file(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    publish(tmp_path / "public", first(), ROOT)
    assert done == ["file"] * len(FORM_FILES) + ["folder", "switch", "folder"]


def test_two_publishers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looking at the version and replacing it nobody else may publish, or the version could go back."""
    stage = keys.publish._stage
    refused: list[str] = []

    def another_publisher_knocks(folder: Path, version: int, forms: Files) -> Path:
        descriptor = os.open(folder.parent, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)
        refused.append(folder.name)
        return stage(folder, version, forms)

    monkeypatch.setattr(keys.publish, "_stage", another_publisher_knocks)
    publish(tmp_path / "public", first(), ROOT)
    assert refused == ["public"]
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # free again
    os.close(descriptor)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_links_and_long_files_are_not_read_and_a_pipe_neither_hangs_nor_says_anything(tmp_path: Path) -> None:
    publish(tmp_path / "public", first(), ROOT)
    folder = tmp_path / "public"
    for name in ("jwks.json", "did.json", "vkeys.txt"):
        (folder / name).unlink()
    (tmp_path / "elsewhere").write_bytes(b"secret")
    (folder / "jwks.json").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "did.json")
    (folder / "vkeys.txt").write_bytes(b"x" * 65_537)
    files = read_forms(folder)
    assert sorted(files) == ["did.json", "keys.note", "policy.txt", "root.vkey"]
    assert files["did.json"] == b""


def test_a_missing_folder_reads_as_nothing(tmp_path: Path) -> None:
    assert read_forms(tmp_path / "nowhere") == {}


def test_the_document_hash_is_the_sha256_of_the_signed_text(tmp_path: Path) -> None:
    """Checked with another tool's eyes: the text is what stands before the last empty line."""
    publish(tmp_path / "public", first(), ROOT)
    text = (tmp_path / "public" / "keys.note").read_bytes().rpartition(b"\n\n")[0] + b"\n"
    assert hashlib.sha256(text).digest() == document_hash(first())


def test_a_set_that_is_read_while_the_next_is_published_is_still_one_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read, seen = tmp_path / "public", keys.publish._read, [0]
    publish(folder, first(), ROOT)
    before = read_forms(folder)

    def read_slowly(path: Path) -> bytes | None:
        seen[0] += 1
        if seen[0] == 2:
            monkeypatch.undo()
            publish(folder, rotated(), ROOT)
        return read(path)

    monkeypatch.setattr(keys.publish, "_read", read_slowly)
    assert read_forms(folder) == before != read_forms(folder)
