"""The keys of a running gateway: listed, asked for at the door, found in their folder, published."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.app import running
from gateway.config import Settings
from gateway.errors import StartError
from gateway.keyroom import KeyFolder, key_files, load_signer, unpublished
from keys.files import copy_key, load_key, new_key, passphrase_path
from keys.publish import publish, read_forms
from keys.rotation import commitment, next_document, signed_statement
from keys.signing import SigningKey
from tests.web.test_problems import check_problem
from tests.web.world import ORIGIN, Reply, World, make, world
from verifier.entries import ACTION_PATHS
from verifier.keyring import KeyLine, open_key_document
from verifier.note import make_vkey, parse_vkey
from verifier.statement import KeyStatement

SETTINGS = Settings(listen_port=0, metrics_port=0)
KEYS_PATH = "/api/v1/acp/keys"


def root_of(folder: Path) -> SigningKey:
    return load_key(folder / "root" / "root.key", purpose="root")


async def state(place: World, verb: str, purpose: str, key: SigningKey, following: str | None = None) -> Reply:
    """Bring the real root's statement, as the operator."""
    name = ORIGIN if purpose == "log" else f"{ORIGIN}/{purpose}"
    statement = KeyStatement(verb, purpose, make_vkey(name, key.public_key), following)
    note = signed_statement(statement, root_of(place.folder), ORIGIN, place.made.genesis)
    return await place.send(place.signed(place.operator, f"key.{verb}", statement=note))


def install(place: World, purpose: str = "log") -> SigningKey:
    """Put the next key where the gateway looks for it."""
    source = place.folder / "root" / f"next-{purpose}.key"
    copy_key(source, place.folder / "keys" / f"{purpose}.2.key")
    return load_key(source, purpose=purpose)


# -- the list ----------------------------------------------------------------------------------------------------------


async def test_the_keys_of_a_new_ledger_and_what_must_come_next(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        told = (await place.get(KEYS_PATH)).json
        assert [(row["purpose"], row["announcedSeq"]) for row in told["keys"]] == [("log", 0), ("receipt", 0)]
        assert all(set(row) == {"purpose", "key", "announcedSeq"} for row in told["keys"])
        hashes = {
            purpose: commitment(load_key(folder / "root" / f"next-{purpose}.key", purpose=purpose).public_key)
            for purpose in ("log", "receipt")
        }
        assert told["next"] == hashes


async def test_a_change_is_told_and_its_answer_says_what_became_of_the_key(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        key, old = install(place), load_key(folder / "keys" / "log.key", purpose="log")
        reply = await state(place, "announce", "log", key, "ab" * 32)
        assert reply.status == 200 and reply.json["ledgerKey"]["next"] == "ab" * 32
        announced = place.gateway.house.sequencer.confirmed.size - 1
        ended = await state(place, "compromise", "log", old)
        assert ended.json["ledgerKey"]["announcedSeq"] == 0
        told = (await place.get(KEYS_PATH)).json
        rows = {row["key"]: row for row in told["keys"]}
        assert rows[make_vkey(ORIGIN, key.public_key).vkey]["announcedSeq"] == announced
        disowned = rows[make_vkey(ORIGIN, old.public_key).vkey]
        assert (disowned["endedSeq"], disowned["isCompromised"]) == (announced + 1, True)
        assert told["next"]["log"] == "ab" * 32


async def test_the_list_of_a_members_ledger_is_for_members(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder, is_public=False)) as place:
        check_problem(await place.get(KEYS_PATH), "signature_missing", 401)
        assert (await place.send(place.signed_read(place.operator, KEYS_PATH))).status == 200


# -- the door ----------------------------------------------------------------------------------------------------------


async def test_a_key_that_came_just_now_is_found_and_one_that_did_not_leaves_no_entry(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        size = place.gateway.house.sequencer.confirmed.size
        key = load_key(folder / "root" / "next-log.key", purpose="log")
        check_problem(await state(place, "announce", "log", key), "key_unready", 409)
        assert place.gateway.house.sequencer.confirmed.size == size
        install(place)
        assert (await state(place, "announce", "log", key)).status == 200


async def test_a_statement_for_another_action_is_turned_away(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        key = load_key(folder / "keys" / "log.key", purpose="log")
        statement = KeyStatement("retire", "log", make_vkey(ORIGIN, key.public_key))
        note = signed_statement(statement, root_of(folder), ORIGIN, place.made.genesis)
        for action in ("key.announce", "key.compromise"):
            reply = await place.send(place.signed(place.operator, action, statement=note))
            check_problem(reply, "key_statement_invalid", 400)


async def test_an_unreadable_file_in_the_folder_is_no_key_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        key = install(place)
        (folder / "keys" / "log.2.key").chmod(0o644)
        with caplog.at_level(logging.WARNING, "tallystick.keys"):
            check_problem(await state(place, "announce", "log", key), "key_unready", 409)
        assert "chmod 600" in caplog.text


async def test_a_key_that_is_used_for_something_else_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        key = install(place, "receipt")
        assert (await state(place, "announce", "receipt", key)).status == 200
        for suffix in ("key", "pass"):
            shutil.copy(folder / "keys" / f"receipt.2.{suffix}", folder / "keys" / f"log.2.{suffix}")
        path = folder / "keys" / "log.2.key"
        path.write_bytes(path.read_bytes().replace(b"purpose: receipt", b"purpose: log"))
        with caplog.at_level(logging.WARNING, "tallystick.keys"):
            check_problem(await state(place, "announce", "log", key), "key_unready", 409)
        assert "one purpose" in caplog.text


async def test_a_stranger_learns_nothing_of_the_folder(tmp_path: Path) -> None:
    """Old statements are public; who has no account here is turned away before anything is looked for."""
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        place.operator = SigningKey.generate()
        reply = await state(place, "announce", "log", SigningKey.generate())
        check_problem(reply, "agent_unknown", 401, "number")


def test_every_action_of_keys_is_a_post_below_one_path() -> None:
    assert [ACTION_PATHS[f"key.{verb}"] for verb in ("announce", "retire", "compromise")] == [
        f"{KEYS_PATH}/{verb}" for verb in ("announce", "retire", "compromise")
    ]


# -- the folders -------------------------------------------------------------------------------------------------------


def test_key_files_are_numbered_and_nothing_else_is_one(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    names = ("log.key", "log.2.key", "log.10.key", "log.0.key", "log.x.key", "xlog.key", "log.key.bak", "receipt.key")
    for name in names:
        (tmp_path / "keys" / name).touch()
    assert [path.name for path in key_files(tmp_path, "log")] == ["log.key", "log.2.key", "log.10.key"]


def test_one_key_under_two_names_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data")
    keys = tmp_path / "data" / "keys"
    copy_key(keys / "log.key", keys / "log.2.key")
    with pytest.raises(StartError, match="one key twice"):
        load_signer(tmp_path / "data", ORIGIN)


def test_a_folder_without_a_receipt_key_is_refused(tmp_path: Path) -> None:
    make(tmp_path / "data")
    for path in (tmp_path / "data" / "keys").glob("receipt.*"):
        path.unlink()
    with pytest.raises(StartError, match="no receipt key"):
        load_signer(tmp_path / "data", ORIGIN)


async def test_a_start_names_the_key_in_force_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    async with world(folder, make(folder)) as place:
        key = install(place)
        assert (await state(place, "announce", "log", key)).status == 200
    path = folder / "keys" / "log.2.key"
    passphrase_path(path).unlink()
    path.rename(tmp_path / "elsewhere.key")
    with pytest.raises(StartError) as refused:
        async with running(folder, SETTINGS):
            raise AssertionError("it must not start")
    assert make_vkey(ORIGIN, key.public_key).vkey in str(refused.value) and "bring back" in str(refused.value)


async def test_a_key_that_lies_there_too_early_signs_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    new_key(folder / "keys" / "log.7.key", purpose="log")
    async with world(folder, made) as place:
        assert place.gateway.house.sequencer.confirmed.note.count("\u2014 ".encode()) == 1
        signer = place.gateway.house.signer
        stranger = make_vkey(ORIGIN, SigningKey.generate().public_key)
        assert not KeyFolder(folder, signer).has("log", stranger)


# -- what is published -------------------------------------------------------------------------------------------------


async def test_a_start_with_a_document_that_lags_behind_says_how_to_publish(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    async with world(folder, made) as place:
        assert (await state(place, "announce", "log", install(place))).status == 200
    with caplog.at_level(logging.WARNING, "tallystick.keys"):
        async with world(folder, made) as place:
            lines = place.gateway.house.signer.lines
    assert f"tallystick keys rotate --data {folder}" in caplog.text
    caplog.clear()
    document = open_key_document(read_forms(folder / "public")["keys.note"], parse_vkey(made.root_vkey))
    following = next_document(document, lines, {})
    assert following is not None and unpublished(following, lines) == []
    publish(folder / "public", following, root_of(folder))
    with caplog.at_level(logging.WARNING, "tallystick.keys"):
        async with world(folder, made):
            pass
    assert "does not show" not in caplog.text


async def test_an_older_document_is_never_served_after_a_newer_one(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made = make(folder)
    first = tmp_path / "first"
    shutil.copytree(folder / "public", first)
    async with world(folder, made) as place:
        assert (await state(place, "announce", "log", install(place))).status == 200
        document = open_key_document(read_forms(folder / "public")["keys.note"], parse_vkey(made.root_vkey))
        following = next_document(document, place.gateway.house.signer.lines, {})
        assert following is not None
        publish(folder / "public", following, root_of(folder))
        newest = (await place.get("/.well-known/tallystick-keys")).body
        assert b"\nversion 2\n" in newest
        (folder / "public").unlink()
        (folder / "public").symlink_to(first)
        assert (await place.get("/.well-known/tallystick-keys")).body == newest


def test_a_line_is_unpublished_when_any_bound_differs(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    document = open_key_document(read_forms(tmp_path / "data" / "public")["keys.note"], parse_vkey(made.root_vkey))
    line = next(line for line in document.keys if line.purpose == "log")
    assert unpublished(document, [line]) == []
    for other in (
        replace(line, to_size=9, status="retired"),
        replace(line, from_size=1),
        KeyLine("log", make_vkey(ORIGIN, SigningKey.generate().public_key)),
    ):
        assert unpublished(document, [other]) == [other]
