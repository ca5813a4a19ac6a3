"""MCP over stdio: `tallystick mcp` as a real process, with the official client and with bare lines."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from gateway.client.agent import Agent
from gateway.client.profile import OPENED, open_profile, write_profile
from gateway.mcp import stdio
from gateway.mcp.protocol import INVALID_REQUEST, MESSAGE_BYTES_MAX, PARSE_ERROR, TOO_MANY
from gateway.mcp.tools import TOOLS
from keys.files import new_key, replace_file
from tests.mcp.test_http import STORY, Scene, chief_of, until
from tests.mcp.world import LEGACY, META, MODERN, legacy, profile_of, structured
from tests.web.world import World

ROOT = Path(__file__).resolve().parents[2]
NAME = "repo:app/src/a.py"
pytestmark = pytest.mark.system


class Process:
    """A running `tallystick mcp` and its three streams."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin and process.stdout and process.stderr
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    async def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        for message in messages:
            self.stdin.write((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        await self.stdin.drain()

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            message: dict[str, Any] = json.loads(await self.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        return message

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        await self.send(message)
        return await self.receive()

    async def end(self) -> tuple[int, bytes, bytes]:
        """Close the input; return the exit code and what was still printed."""
        self.stdin.close()
        return await self.ended()

    async def ended(self) -> tuple[int, bytes, bytes]:
        async with asyncio.timeout(10):
            said, logged = await asyncio.gather(self.stdout.read(), self.stderr.read())
            return await self.process.wait(), said, logged


def command(home: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "gateway", "mcp", "--home", str(home), *options]


@contextlib.asynccontextmanager
async def bridge(home: Path, *options: str) -> AsyncIterator[Process]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command(home, *options), cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, limit=1 << 20
    )
    try:
        yield Process(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def call(name: str, request_id: int | str = 7, **arguments: Any) -> dict[str, Any]:
    return legacy("tools/call", name=name, arguments=arguments) | {"id": request_id}


def said(message: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = message["result"]["structuredContent"]
    return answer


@pytest.fixture
async def home(gateway: World, tmp_path: Path) -> Path:
    """The profile of an enrolled agent."""
    await profile_of(gateway, tmp_path / "home")
    return tmp_path / "home"


# -- the official client -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["underscored", "dotted"])
@pytest.mark.parametrize(("mode", "version"), [("auto", MODERN), ("legacy", LEGACY)])
async def test_the_official_client_calls_every_tool(
    gateway: World, tmp_path: Path, mode: str, version: str, spelling: Any
) -> None:
    keys = {who: await profile_of(gateway, tmp_path / who) for who in ("a", "b")}
    async with contextlib.AsyncExitStack() as stack:
        clients = {
            who: await stack.enter_async_context(official(tmp_path / who, mode, "--names", spelling)) for who in keys
        }
        dids = {who: key.did for who, key in keys.items()}
        played = Scene(gateway, spelling, clients, dids, await chief_of(gateway))
        for client in clients.values():
            assert client.protocol_version == version
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == [tool.spelled(spelling) for tool in TOOLS]
        for who, action, arguments, outcome in STORY:
            answer = await played.call(who, action, **arguments(played))
            assert outcome == answer.get("error") or (answer["ok"] and outcome in answer), (action, answer)
            played.facts |= answer
    gateway.audit()


@contextlib.asynccontextmanager
async def official(home: Path, mode: str, *options: str) -> AsyncIterator[Client]:
    program, *arguments = command(home, *options)
    parameters = StdioServerParameters(command=program, args=arguments, cwd=ROOT, env=dict(os.environ))
    async with Client(parameters, mode=mode) as client:
        yield client


async def test_underscores_are_the_default_and_dots_are_understood(home: Path) -> None:
    async with official(home, "auto") as client:
        assert (await client.list_tools()).tools[0].name == "coordination_lease_acquire"
        answer = await client.call_tool("coordination.trust.get", {})
        assert structured(answer, "coordination.trust.get")["ok"] is True


# -- the process -------------------------------------------------------------------------------------------------------


async def test_the_end_of_input_is_the_end_and_nothing_but_messages_was_printed(home: Path) -> None:
    """Scenario 46."""
    async with bridge(home) as process:
        await process.ask(legacy("ping"))
        await process.ask(call("coordination_lease_acquire", resource=NAME))
        assert await process.end() == (0, b"", b"")


async def test_without_any_input_it_ends_too(home: Path) -> None:
    async with bridge(home) as process:
        assert await process.end() == (0, b"", b"")


async def test_without_a_profile_it_says_so_and_where_on_standard_error(tmp_path: Path) -> None:
    async with bridge(tmp_path / "nowhere") as process:
        code, printed, logged = await process.ended()
    assert (code, printed) == (78, b"")
    assert b"tallystick join" in logged


async def test_stray_prints_go_to_standard_error(home: Path, tmp_path: Path) -> None:
    """A module that prints at every call is put in the way of the bridge."""
    stray = tmp_path / "stray.py"
    stray.write_text(
        "import os, sys, runpy\n"
        "import gateway.mcp.bridge as bridge\n"
        "read = bridge.AgentCaller.read\n"
        "def loud(*a, **k):\n"
        "    print('stray'); os.write(1, b'stray\\n'); os.system('echo stray')\n"
        "    return read(*a, **k)\n"
        "bridge.AgentCaller.read = loud\n"
        "sys.exit(bridge.main(sys.argv[1:]))\n"
    )
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        sys.executable, str(stray), "--home", str(home), env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=pipe, stdout=pipe, stderr=pipe,
    )  # fmt: skip
    process = Process(started)
    assert said(await process.ask(call("coordination_trust_get")))["ok"] is True
    code, printed, logged = await process.end()
    assert (code, printed, logged.count(b"stray")) == (0, b"", 3)


async def test_a_gateway_that_is_away_is_told_by_the_call_and_tools_are_listed(gateway: World, tmp_path: Path) -> None:
    home = tmp_path / "home"
    await profile_of(gateway, home)
    address = json.loads((home / "gateway.json").read_text())
    (home / "gateway.json").write_text(json.dumps(address | {"url": "http://127.0.0.1:9"}))
    async with bridge(home) as process:
        assert len((await process.ask(legacy("tools/list")))["result"]["tools"]) == len(TOOLS)
        answer = said(await process.ask(call("coordination_trust_get")))
        assert (answer["ok"], answer["error"], answer["retry"]) == (False, "unreachable", "same_request")
        code, printed, _ = await process.end()
        assert (code, printed) == (0, b"")


async def test_a_later_process_goes_on_with_the_intention_of_an_earlier_one(gateway: World, home: Path) -> None:
    """Scenario 40."""
    arguments = {"resource": NAME, "idempotencyKey": "one-intention"}
    answers = []
    for _ in range(2):
        async with bridge(home) as process:
            answers.append(said(await process.ask(call("coordination_lease_acquire", **arguments))))
    assert answers[0] == answers[1]
    assert gateway.types().count("lease.granted") == 1


# -- messages ----------------------------------------------------------------------------------------------------------


async def test_what_is_no_message_is_told_and_the_next_is_answered(home: Path) -> None:
    async with bridge(home) as process:
        for line, code in (
            (b"{", PARSE_ERROR),
            (b"[]", INVALID_REQUEST),
            (b'"' + b"x" * (3 * MESSAGE_BYTES_MAX) + b'"', INVALID_REQUEST),
            (b"[" * 50_000, INVALID_REQUEST),
            (b"\xff\xfe", PARSE_ERROR),
        ):
            await process.send(line)
            assert (await process.receive())["error"]["code"] == code
        await process.send(b"", b"   ", b"\r")
        assert await process.ask(legacy("ping")) == {"jsonrpc": "2.0", "id": 7, "result": {}}


async def test_a_call_and_a_line_without_its_end_are_both_finished(home: Path) -> None:
    async with bridge(home) as process:
        process.stdin.write(json.dumps(legacy("ping")).encode())
        _, printed, _ = await process.end()
    assert json.loads(printed)["result"] == {}


async def test_both_eras_are_served_side_by_side(home: Path) -> None:
    async with bridge(home) as process:
        old = await process.ask(legacy("tools/list"))
        new = await process.ask(legacy("tools/list", _meta=META))
    assert "resultType" not in old["result"]
    assert new["result"]["resultType"] == "complete"


# -- several calls, and calling them off -------------------------------------------------------------------------------


async def waiting(gateway: World, process: Process) -> None:
    """Let somebody else hold the name, and the process stand in line and claim its turn, as request "w"."""
    await gateway.acquire("other", NAME, ttlMs=600_000)
    queued = said(await process.ask(call("coordination_lease_acquire", resource=NAME, wait=True)))
    ticket = queued["ticket"]["ticketId"]
    await process.send(call("coordination_wait_claim", "w", ticketId=ticket, waitSeconds=20))
    await until(lambda: len(gateway.gateway.house.sequencer.parking) == 1)


async def test_calls_overtake_one_that_waits(gateway: World, home: Path) -> None:
    async with bridge(home) as process:
        await waiting(gateway, process)
        assert (await process.ask(legacy("ping")))["id"] == 7
        again = await process.ask(legacy("ping") | {"id": "w"})
        assert again["error"]["code"] == INVALID_REQUEST, "its id is taken"


async def test_a_wait_that_is_called_off_leaves_and_gets_no_answer(gateway: World, home: Path) -> None:
    parking = gateway.gateway.house.sequencer.parking
    async with bridge(home) as process:
        await waiting(gateway, process)
        await process.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "w"}})
        await until(lambda: len(parking) == 0)
        assert (await process.ask(legacy("ping")))["id"] == 7
        code, printed, _ = await process.end()
    assert (code, printed, parking.tally.left) == (0, b"", 1)


async def test_the_end_of_input_calls_off_what_waits(gateway: World, home: Path) -> None:
    parking = gateway.gateway.house.sequencer.parking
    async with bridge(home) as process:
        await waiting(gateway, process)
        code, printed, _ = await process.end()
    assert (code, printed) == (0, b"")
    await until(lambda: len(parking) == 0)


async def test_a_call_under_way_at_the_end_of_input_is_answered(gateway: World, home: Path) -> None:
    async with bridge(home) as process:
        await process.send(call("coordination_lease_acquire", resource=NAME))
        _, printed, _ = await process.end()
    assert said(json.loads(printed))["lease"]["resource"] == NAME


async def test_a_host_that_is_killed_while_a_call_waits_takes_the_process_along(
    gateway: World, home: Path, tmp_path: Path
) -> None:
    """The host is a shell of its own between us and the bridge; only it holds the pipes. Scenario 46."""
    host = tmp_path / "host.py"
    host.write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "for line in sys.stdin.buffer:\n"
        "    child.stdin.write(line); child.stdin.flush()\n"
    )
    await gateway.acquire("other", NAME, ttlMs=600_000)
    queued = await queued_ticket(gateway, home)
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        sys.executable, str(host), *command(home), cwd=ROOT, stdin=pipe, stdout=pipe
    )
    assert started.stdin and started.stdout
    child = int(await started.stdout.readline())
    claim = call("coordination_wait_claim", ticketId=queued, waitSeconds=20)
    started.stdin.write(json.dumps(claim).encode() + b"\n")
    parking = gateway.gateway.house.sequencer.parking
    await until(lambda: len(parking) == 1)
    started.send_signal(signal.SIGKILL)
    await started.wait()
    await until(lambda: len(parking) == 0)
    await until(lambda: not is_running(child))


async def queued_ticket(gateway: World, home: Path) -> str:
    async with bridge(home) as process:
        queued = said(await process.ask(call("coordination_lease_acquire", resource=NAME, wait=True)))
        return str(queued["ticket"]["ticketId"])


def is_running(pid: int) -> bool:
    """Say whether a process lives; one that has ended and that nobody waits for does not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_too_many_calls_at_once_are_refused_and_none_is_lost(gateway: World, home: Path) -> None:
    await gateway.acquire("other", NAME, ttlMs=600_000)
    async with bridge(home) as process:
        count = stdio.CALLS_MAX + 5
        looks = [call("coordination_wait", number, resource=NAME, waitSeconds=2) for number in range(count)]
        await process.send(*looks)
        answers = [await process.receive() for _ in looks]
    refused = [answer for answer in answers if "error" in answer]
    assert sorted(answer["id"] for answer in answers) == list(range(count))
    assert [answer["error"]["code"] for answer in refused] == [TOO_MANY] * 5


# -- what it is made of ------------------------------------------------------------------------------------------------


def test_the_bridge_needs_no_database_and_nobody_of_ours_needs_the_official_package() -> None:
    """Each in a process of its own: what is imported there is what such a machine must have."""
    for module, absent in (
        ("gateway.mcp.bridge", {"sqlite_utils", "orjson", "prometheus_client", "uvloop", "mcp", "pydantic"}),
        ("gateway.app", {"mcp", "mcp_types", "pydantic", "starlette", "jsonschema"}),
    ):
        assert imported_with(module) & absent == set(), module


def imported_with(module: str) -> set[str]:
    program = f"import sys, {module}; print(*sorted(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(re.findall(r"[\w]+", done.stdout))


# -- a session as the agent --------------------------------------------------------------------------------------------


async def test_a_sessions_folder_is_a_profile_and_only_it_beats(gateway: World, home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "session"
    document = (gateway.folder / "public" / "keys.note").read_bytes()
    write_profile(folder, open_profile(home).address, root=gateway.made.root_vkey, document=document)
    did = new_key(folder / "agent.key", purpose="agent").did
    async with Agent.open(home) as agent, agent.open_session(profile=open_profile(folder), is_kept=True) as session:
        replace_file(folder / OPENED, session.opened.data)
    async with bridge(folder) as process:
        beaten = said(await process.ask(call("coordination_session_beat", activity="reading")))
        taken = said(await process.ask(call("coordination_lease_acquire", resource=NAME)))
    assert beaten["session"]["did"] == taken["lease"]["holder"] == did
    assert taken["lease"]["endsIfIdleAtMs"] > taken["lease"]["grantedAtMs"]
