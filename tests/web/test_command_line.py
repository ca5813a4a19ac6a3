"""The operator's commands: what they make, what they refuse, what they print."""

import asyncio
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from gateway.__main__ import COMMANDS, main
from gateway.client.profile import open_profile
from gateway.config import Settings, load_settings
from gateway.export import await_signed, extent_of
from gateway.store.sqlite import Reader
from gateway.stores import open_reader
from keys.files import load_key
from tests.web.world import AUTHORITY, ORIGIN, World, make, world
from verifier.checkpoint import parse_checkpoint
from verifier.entries import parse_leaf
from verifier.keyring import open_keyring
from verifier.merkle import leaf_hash
from verifier.note import is_signed_once
from verifier.receipt import check_receipt

FILES = [
    "keys/enroller.key", "keys/enroller.pass", "keys/log.key", "keys/log.pass", "keys/receipt.key", "keys/receipt.pass",
    "ledger.sqlite3", "operator/agent.key", "operator/agent.pass", "operator/gateway.json", "operator/keys.note",
    "operator/root.vkey", "public/did.json", "public/jwks.json", "public/keys.note", "public/policy.txt",
    "public/root.vkey", "public/vkeys.txt", "root/root.key", "root/root.pass", "tallystick.json",
]  # fmt: skip


def init(folder: Path, *options: str) -> int:
    return main(["init", "--data", str(folder), "--origin", ORIGIN, "--authority", AUTHORITY, *options])


def entry_zero(folder: Path) -> bytes:
    with closing(Reader(folder / "ledger.sqlite3")) as reader:
        return reader.entries(0, 1)[0].leaf


@pytest.mark.parametrize("name", ["clock", "manner"])
def test_what_an_operator_accepts_is_said_for_one_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted: list[dict[str, object]] = []

    async def serve(folder: Path, settings: Settings, **how: object) -> None:
        accepted.append({word: how[f"is_{word}_accepted"] for word in ("clock", "manner")})

    monkeypatch.setattr("gateway.administration.serve_until_stopped", serve)
    assert init(tmp_path / "data") == 0
    for options in ([f"--accept-{name}"], []):
        assert main(["serve", "--data", str(tmp_path / "data"), *options]) == 0
    assert accepted == [{"clock": name == "clock", "manner": name == "manner"}, {"clock": False, "manner": False}]


def test_init_makes_everything_and_tells_what_to_move_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "data"
    assert init(folder) == 0
    assert [name for name in FILES if not (folder / name).is_file()] == []
    out = capsys.readouterr().out
    root = (folder / "public" / "root.vkey").read_text("ascii").strip()
    assert root in out and leaf_hash(entry_zero(folder)).hex() in out
    assert f"Move offline now, and keep two copies: {folder}/root/" in out
    for command in (
        "tallystick serve --data",
        "tallystick agent add DID",
        f"tallystick join https://{AUTHORITY} --root",
    ):
        assert command in out
    for secret in folder.rglob("*.pass"):
        assert secret.read_text("ascii").strip() not in out


def test_entry_0_is_alone_at_size_1_signed_and_named_by_the_key_document(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    init(folder, "--parameter", "rateBurst=7")
    leaf = entry_zero(folder)
    value = parse_leaf(leaf).value
    root = (folder / "public" / "root.vkey").read_text("ascii").strip()
    keyring = open_keyring(root=root, document=(folder / "public" / "keys.note").read_bytes())
    with closing(Reader(folder / "ledger.sqlite3")) as reader:
        note = reader.last_note(1)
    assert note is not None
    checkpoint = parse_checkpoint(note)
    assert (checkpoint.size, checkpoint.root, keyring.genesis(ORIGIN)) == (1, leaf_hash(leaf), leaf_hash(leaf))
    (log_line,) = keyring.log_keys(ORIGIN)
    assert is_signed_once(checkpoint.note, log_line.key)
    assert (value["root"], value["isPublic"], value["isDev"], value["authorities"]) == (root, False, False, [AUTHORITY])
    assert isinstance(value["parameters"], dict) and value["parameters"]["rateBurst"] == 7
    assert value["operators"] == [load_key(folder / "operator" / "agent.key").did]


def test_secrets_are_for_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    init(folder)
    assert folder.stat().st_mode & 0o077 == 0
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.rglob("*.key")} == {
        "log.key": "0o600", "receipt.key": "0o600", "enroller.key": "0o600", "root.key": "0o600", "agent.key": "0o600",
        "seal.key": "0o600", "next-log.key": "0o600", "next-receipt.key": "0o600",
    }  # fmt: skip
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.rglob("*.pass"))


def test_the_operators_profile_opens_and_points_at_this_gateway(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    init(folder)
    profile = open_profile(folder / "operator")
    assert profile.address.origin == ORIGIN
    assert profile.genesis == leaf_hash(entry_zero(folder))
    assert load_settings(folder).listen_port == 8420


@pytest.mark.parametrize(
    ("options", "url", "authority"),
    [
        ([], "http://127.0.0.1:8420", "127.0.0.1:8420"),
        (["--authority", "gateway.example"], "https://gateway.example", "gateway.example"),
        (["--authority", "gateway:8420"], "http://gateway:8420", "gateway:8420"),
        (["--authority", "localhost"], "http://localhost", "localhost"),
        (["--authority", "b.example", "--authority", "127.0.0.1:8420"], "https://b.example", "b.example"),
    ],
)
def test_the_join_command_and_the_operators_profile_name_an_authority(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], url: str, authority: str
) -> None:
    folder = tmp_path / "data"
    assert main(["init", "--data", str(folder), "--origin", ORIGIN, *options]) == 0
    out = capsys.readouterr().out
    assert f"tallystick join {url} --root" in out
    assert ("must pass the header `Host: " in out) == url.startswith("https:")
    address = open_profile(folder / "operator").address
    assert (address.url, address.authority) == (url, authority)
    assert authority in str(parse_leaf(entry_zero(folder)).value["authorities"])


def test_a_taken_port_is_named_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = ["--listen", f"127.0.0.1:{port}", "--metrics-port", "0"]
        says = f"tallystick serve: port {port} is in use; choose another with --listen HOST:PORT\n"
        assert main(["serve", "--dev", "--data", str(tmp_path / "dev"), *options]) == 1
        assert capsys.readouterr() == ("", says)
        assert list(tmp_path.iterdir()) == []
        assert init(tmp_path / "data") == 0
        capsys.readouterr()
        assert main(["serve", "--data", str(tmp_path / "data"), *options]) == 1
        assert says in capsys.readouterr().err


def test_a_taken_metrics_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert init(tmp_path / "data", "--metrics-port", str(port)) == 0
        assert main(["serve", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]) == 1
    assert f"metrics port {port} is in use; choose another with --metrics-port N" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["a ledger", "any file", "a file in its place"])
def test_init_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
    folder = tmp_path / "data"
    if what == "a ledger":
        init(folder)
    elif what == "any file":
        folder.mkdir()
        (folder / "x").write_text("mine")
    else:
        folder.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert init(folder) == 1
    assert "never overwrites" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "127.0.0.1:0"], "needs a port"),
        (["--listen", "127.0.0.1:x"], "listenPort must be"),
        (["--listen", "8420"], "--listen is HOST:PORT, such as 127.0.0.1:8420; found '8420'"),
        (["--listen", ":8420"], "--listen is HOST:PORT"),
        (["--authority", "UPPER"], "--authority must be"),
        (["--parameter", "rateBurst=many"], "--parameter is NAME=N"),
        (["--parameter", "colour=7"], "--parameter is NAME=N"),
        (["--parameter", "rateBurst=" + "9" * 5000], "--parameter is NAME=N"),
        (["--parameter", "rateBurst=-1"], "found 'rateBurst=-1'"),
        (["--parameter", "ttlMinMs=999"], "--parameter ttlMinMs must be 1,000 to 30,000 (ms), found 999"),
        (["--parameter", "ttlMaxMs=3600001"], "--parameter ttlMaxMs must be 30,000 to 3,600,000 (ms), found 3600001"),
        (["--parameter", "skewMs=60000"], "--parameter skewMs must be 30,000 (ms), found 60000"),
        (["--parameter", "ratePerSecond=0"], "--parameter ratePerSecond must be 1 to 1,000,000"),
        (["--parameter", "sweepMs=0"], "--parameter sweepMs must be 10 to"),
        (["--parameter", "stampedeMaxMs=24"], "stampedeMaxMs must not be below stampedeBaseMs, found 24 with"),
        (["--parameter", "maxHoldMs=3599999"], "maxHoldMs must not be below ttlMaxMs, found 3,599,999 with"),
        (["--metrics-port", "70000"], "metricsPort must be"),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert init(tmp_path / "data", *options) == 1
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_origin_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--data", str(tmp_path / "data"), "--origin", "https://x"]) == 1
    assert "--origin must be" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_serve_without_a_ledger_names_init(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scenario 58: no key is ever made silently; a start without keys is refused."""
    assert main(["serve", "--data", str(tmp_path / "data")]) == 1
    assert "tallystick init --data" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


async def test_an_export_of_a_running_gateway_verifies_and_ends_at_a_signed_checkpoint(
    public: World, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        await public.acquire("a", f"lock:{number}")
    monkeypatch.setattr("gateway.ledger_commands.await_signed", lambda _: None)  # it would hold this gateway up, too
    assert main(["ledger", "export", "--data", str(public.folder), "--out", str(tmp_path / "export")]) == 0
    assert main(["ledger", "export", "--data", str(public.folder), "--tiles", str(tmp_path / "tiles")]) == 0
    assert main(["ledger", "stats", "--json", "--data", str(public.folder)]) == 0
    out = capsys.readouterr().out
    size = public.gateway.house.sequencer.confirmed.size
    exported = int((tmp_path / "export").read_bytes().split(b"\n")[0].split()[-1])
    assert size - 1 <= exported <= size, "the last batch's signature is stored with the next batch"
    assert json.loads(out[out.index("{") :])["entries"] == exported
    for copy in ("export", "tiles"):
        report = verify(tmp_path / copy, public.folder)
        assert report.returncode == 0, report.stdout
    assert not list(tmp_path.glob("*.new"))  # noqa: ASYNC240  # a test may block


async def test_an_export_waits_for_the_newest_checkpoint_and_says_what_it_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the gateway sweeps once in a minute: it keeps the last signature when it has another batch, or stops."""
    made = make(tmp_path / "data", sweep_ms=60_000)
    command = ["ledger", "export", str(tmp_path / "export"), "--data", str(tmp_path / "data")]
    async with world(tmp_path / "data", made) as place:
        await place.acquire("a", "lock:x")
        reader = open_reader(tmp_path / "data")
        committed = place.gateway.house.sequencer.confirmed.size
        lacks = committed - extent_of(reader).size
        assert lacks == 1
        monkeypatch.setattr("gateway.ledger_commands.await_signed", lambda it: await_signed(it, 0.1))
        assert main(command) == 0
        assert "1 newer entry is committed, their checkpoint is not kept yet; run again\n" in capsys.readouterr().out
        waiting = asyncio.create_task(asyncio.to_thread(await_signed, reader, 30.0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await place.acquire("a", "lock:y")
        await asyncio.wait_for(waiting, 10)
        assert extent_of(reader).size >= committed
        reader.close()
    assert main(command) == 0
    assert "newer" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["export", "{}/no/where", "--data", "{}/data"], "{}/no/where does not exist, or its folder does not"),
        (["export", "{}/data/public", "--data", "{}/data"], "{}/data/public is a folder; name a file"),
        (["export", "--tiles", "{}/file", "--data", "{}/data"], "{}/file"),
        (["export", "{}/file/x", "--data", "{}/data"], "{}/file/x leads through a file as if it were a folder"),
        (["backup", "{}/no/where", "--data", "{}/data"], "{}/no/where does not exist, or its folder does not"),
        (["stats", "--data", "{}/bad"], "the store can't be read: file is not a database"),
        (["backup", "{}/copy", "--data", "{}/bad"], "the ledger can't be read (file is not a database)"),
    ],
)
def test_a_wrong_path_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], says: str
) -> None:
    init(tmp_path / "data")
    capsys.readouterr()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "ledger.sqlite3").write_text("no database" * 100)
    assert main(["ledger", *(word.format(tmp_path) for word in command)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"tallystick ledger {command[0]}: {says.format(tmp_path)}") and "Errno" not in said
    assert not list(tmp_path.glob("*.new"))


def verify(copy: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the verifier as a stranger would."""
    root = (folder / "public" / "root.vkey").read_text("ascii").strip()
    command = ["-m", "verifier", "ledger", str(copy), "--root", root, "--keys", str(folder / "public" / "keys.note")]
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)


async def test_a_stopped_gateways_export_is_whole_and_a_changed_byte_is_refused(tmp_path: Path) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await place.acquire("a", "lock:x")
        size = place.gateway.house.sequencer.confirmed.size
    assert main(["ledger", "export", str(tmp_path / "export"), "--data", str(tmp_path / "data")]) == 0
    content = (tmp_path / "export").read_bytes()
    assert content.startswith(f"tallystick-ledger/v1 {ORIGIN} {size}\n".encode())
    assert verify(tmp_path / "export", tmp_path / "data").returncode == 0
    (tmp_path / "export").write_bytes(content.replace(b"lock:x", b"lock:y", 1))
    assert verify(tmp_path / "export", tmp_path / "data").returncode == 1


async def test_tiles_are_brought_up_to_date_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.ledger_commands.await_signed", lambda _: None)  # it would hold this gateway up, too
    made = make(tmp_path / "data", rate_burst=10_000, rate_per_second=10_000)
    async with world(tmp_path / "data", made) as place:
        key = await place.agent("a")
        for number in range(260):
            assert (await place.send(place.signed(key, "lease.acquire", resource=f"lock:{number}"))).status == 200
            if number in (100, 200):
                assert main(["ledger", "export", "--data", str(place.folder), "--tiles", str(tmp_path / "tiles")]) == 0
    assert main(["ledger", "export", "--data", str(tmp_path / "data"), "--tiles", str(tmp_path / "tiles")]) == 0
    report = verify(tmp_path / "tiles", tmp_path / "data")
    assert report.returncode == 0, report.stdout
    assert (tmp_path / "tiles" / "tile" / "0" / "000").stat().st_size == 8_192


async def test_a_backup_of_a_running_gateway_opens_and_serves(public: World, tmp_path: Path) -> None:
    reply = await public.acquire("a", "lock:x")
    copy = tmp_path / "copy.sqlite3"
    assert main(["ledger", "backup", str(copy), "--data", str(public.folder)]) == 0
    assert copy.stat().st_mode & 0o077 == 0
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("SELECT max(seq) FROM entry").fetchone()[0] == int(
            re.findall(r"index (\d+)", reply.json["receipt"]["proof"])[0]
        )
    assert main(["ledger", "backup", str(copy), "--data", str(public.folder)]) == 1


async def test_a_restore_by_the_steps_of_the_manual_decides_again(tmp_path: Path) -> None:
    folder, old = tmp_path / "data", tmp_path / "old"
    made = make(folder)
    async with world(folder, made) as place:
        assert (await place.acquire("a", "lock:x")).status == 200
        assert main(["ledger", "backup", str(tmp_path / "copy"), "--data", str(folder)]) == 0
        agents = place.agents
    old.mkdir()
    for path in folder.glob("ledger.sqlite3*"):
        if path.suffix != ".lock":
            path.rename(old / path.name)
    (tmp_path / "copy").rename(folder / "ledger.sqlite3")
    assert main(["ledger", "stats", "--data", str(folder)]) == 0
    async with world(folder, made) as place:
        place.agents = agents
        assert (await place.acquire("a", "lock:y")).status == 200


async def test_stats_are_a_table_for_people_and_json_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path / "data")
    async with world(tmp_path / "data", made) as place:
        await place.acquire("a", "lock:x")
        size = place.gateway.house.sequencer.confirmed.size
    capsys.readouterr()
    assert main(["ledger", "stats", "--json", "--data", str(tmp_path / "data")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["entries"], found["committed"], found["signatures"]) == (size, size, size)
    assert found["batches"] == found["batchesSigned"] <= size
    assert sum(found["entriesByType"].values()) == size and found["entriesByType"]["lease.granted"] == 1
    assert [line.split(" ")[0] for line in found["keysInForce"]] == ["log", "receipt"]
    assert found["witnessedSize"] is None and found["lastTime"].endswith(" UTC") and found["walBytes"] >= 0
    assert main(["ledger", "stats", "--data", str(tmp_path / "data")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"entries +\d+", line) for line in lines)
    assert any(re.fullmatch(r"  lease\.granted +1", line) for line in lines)


@pytest.mark.parametrize("command", ["export", "backup", "stats", "fsck"])
def test_a_missing_ledger_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    where = [str(tmp_path / "out")] if command in ("export", "backup") else []
    assert main(["ledger", command, *where, "--data", str(tmp_path / "nothing")]) == 1
    assert "tallystick init" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name:<17}{command.summary}" in out for name, command in COMMANDS.items())
    assert max(len(line) for line in out.splitlines()) <= 120


def test_no_command_and_an_unknown_one_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main([]), main(["fly"])) == (2, 2)
    assert "there is no command 'fly'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["init", "serve", "ledger", "keys", "agent", "join", "lease", "wait", "run"])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: tallystick {name}" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_a_missing_extra_prints_the_pip_command(
    name: str, command: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> object:
        raise ModuleNotFoundError("No module named 'aiohttp'", name="aiohttp")

    monkeypatch.setattr("gateway.__main__.import_module", missing)
    assert main([name]) == 2
    assert f"pip install 'tallystick[{COMMANDS[name].extra}]'" in capsys.readouterr().err


async def test_the_operator_enrols_lists_and_removes_through_the_client(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line in a process of its own against a gateway in this one."""
    from gateway.client.profile import Address, encode_address
    from keys.signing import SigningKey

    made = make(tmp_path / "data")
    home = tmp_path / "data" / "operator"
    async with world(tmp_path / "data", made) as place:
        (home / "gateway.json").write_bytes(encode_address(Address(place.gateway.url, ORIGIN, AUTHORITY)))
        did = SigningKey.generate().did

        async def run(*arguments: str) -> tuple[int | None, str]:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway", "agent", *arguments, "--home", str(home),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            out, _ = await process.communicate()
            return process.returncode, out.decode()

        added = await run("add", did, "--name", "builder")
        assert added[0] == 0 and "agent.added" in added[1]
        assert f"{did}  builder  in force" in (await run("list"))[1]
        assert (await run("remove", did))[0] == 0
        listed = json.loads((await run("list", "--json"))[1])
        assert listed["ok"] is True
        assert [(row["did"], "removedSeq" in row) for row in listed["agents"]] == [(did, True)]
        again = await run("remove", did)
        assert again[0] == 1 and "tallystick agent remove: " in again[1] and "never enrolled, or removed" in again[1]
        for wrong in (("not-a-key",), (did, "--name", "no label")):
            code, text = await run("add", *wrong)
            assert code == 2 and text.startswith("tallystick agent add: ")
        (home / "gateway.json").write_bytes(encode_address(Address("http://127.0.0.1:1", ORIGIN, AUTHORITY)))
        assert (await run("list"))[0] == 69
        size = place.gateway.house.sequencer.confirmed.size
        receipts = [(await place.get(f"/api/v1/acp/ledger/receipts/{seq}")).body for seq in range(size)]
    assert all(check_receipt(receipt, place.keyring).exit_code == 0 for receipt in receipts)


# -- without psycopg ---------------------------------------------------------------------------------------------------


def without_psycopg(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command where the extra `postgres` is not installed."""
    (folder / "psycopg.py").write_text("raise ModuleNotFoundError(\"No module named 'psycopg'\", name='psycopg')\n")
    return subprocess.run(
        [sys.executable, "-m", "gateway", *words], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )  # fmt: skip


@pytest.mark.parametrize("words", ["db", "db migrate", "db check", "db copy", "node", "node add"])
def test_help_on_databases_needs_no_psycopg(words: str, tmp_path: Path) -> None:
    done = without_psycopg(tmp_path, *words.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: tallystick {words}")


@pytest.mark.parametrize("command", ["migrate", "check"])
def test_a_command_on_a_database_names_what_to_install(command: str, tmp_path: Path) -> None:
    done = without_psycopg(tmp_path, "db", command, "--store", "postgresql://tally@127.0.0.1/x")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tallystick db {command}: psycopg can't be used") and "Traceback" not in done.stderr
    assert done.stderr.endswith("    pip install 'tallystick[gateway,postgres]'\n")
