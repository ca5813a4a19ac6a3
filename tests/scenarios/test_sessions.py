"""Sessions: who they are, who may end them, and that what they held comes back once, however they end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gateway.client.delegation import delegate
from keys.signing import SigningKey
from tests.core.requests import ORIGIN, key_of
from tests.scenarios.stage import Stage, did, kind, stage
from tests.system.process import ROOT, Gateway, run_cli
from tests.web.world import Message, Reply, World, make, world
from verifier.wire import decode_base64

IDLE_MS = 120_000


async def opened(scene: Stage, agent: str, name: str, ttl_ms: int = 3_600_000) -> None:
    """Let `agent` lend to a session of this name, which opens itself."""
    row = delegate(key_of(agent), did(name), origin=ORIGIN, now_ms=scene.now_ms, ttl_ms=ttl_ms).row
    assert kind(await scene.does(name, "session.open", delegations=[row])) == "session.opened"


async def test_sessions_that_die_give_everything_back_once(tmp_path: Path) -> None:
    """Scenario 36 (bernstein#4706): one goes with its agent, one's time is over, one falls silent; each time who waits
    is served, the waits of the dead close no circle, and after a restart nothing comes back a second time."""
    async with stage(tmp_path) as scene:
        await opened(scene, "C", "orphan")
        await opened(scene, "B", "over", ttl_ms=90_000)
        await opened(scene, "A", "silent")
        held = [await scene.acquire(name, f"repo:{name}", ttlMs=3_000_000) for name in ("orphan", "over", "silent")]
        await scene.acquire("D", "repo:d", ttlMs=3_000_000)
        await scene.queue("orphan", "repo:d")
        ticket = await scene.queue("A", "repo:orphan")
        await scene.does("op", "agent.remove", agent=did("C"))
        assert kind(await scene.claim("A", ticket)) == "lease.claimed"
        assert kind(await scene.acquire("D", "repo:orphan")) == "lease.refused", "it would have been a circle before"
        await served_after(scene, "repo:over", 90_000)
        await served_after(scene, "repo:silent", IDLE_MS - 90_000)
        await scene.world.restart()
        await scene.wait(IDLE_MS)
        ended = {leaf.text("session"): leaf.text("reason") for leaf in scene.entries("session.ended")}
        assert ended == {did("orphan"): "revoked", did("over"): "expired", did("silent"): "idle"}
        returned = [leaf.text("leaseId") for leaf in scene.entries("lease.returned")]
        assert returned == [lease.text("leaseId") for lease in held]
        (gone,) = [leaf for leaf in scene.entries("wait.removed") if leaf.text("reason") == "holder_gone"]
        assert gone.text("ticketId") == scene.entries("wait.queued")[0].text("ticketId")


async def served_after(scene: Stage, name: str, ms: int) -> None:
    """Let D come late and stand in line; after `ms` in all it is served, and a moment before it is not."""
    await scene.wait(ms - 10_000)
    ticket = await scene.queue("D", name)
    await scene.wait(9_999)
    assert kind(await scene.claim("D", ticket)) == "wait.polled"
    await scene.wait(1)
    assert kind(await scene.claim("D", ticket)) == "lease.claimed"


async def test_a_session_whose_program_crashed_is_retired_by_its_agent(tmp_path: Path) -> None:
    """Scenario 10 (mcp_agent_mail#249): nobody else can, who did it is on record, and the living are left alone."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        agent = await place.agent("a")
        crashed, alive = [await place.session(agent) for _ in range(2)]
        lease = await take(place, crashed, "repo:x", ttlMs=600_000)
        other = await take(place, alive, "repo:y", ttlMs=600_000)
        foreign = await place.ask("b", "session.close", session=crashed.did)
        assert (foreign.status, foreign.json["error"]) == (403, "session_not_yours")
        assert (await place.acquire("b", "repo:x")).json["holder"] == crashed.did
        closed = await place.ask("a", "session.close", session=crashed.did, reason="crashed")
        assert (leaf(closed)["actor"], leaf(closed)["session"], leaf(closed)["leases"]) == (agent.did, crashed.did, 1)
        assert place.types()[-2:] == ["session.closed", "lease.returned"]
        assert (await place.acquire("b", "repo:x")).status == 200
        late = await place.send(place.signed(crashed, "lease.renew", leaseId=lease, ttlMs=60_000))
        assert (late.status, late.json["code"]) == (403, "session_ended")
        renewed = await place.send(place.signed(alive, "lease.renew", leaseId=other, ttlMs=60_000))
        assert renewed.status == 200
        place.audit()


LATE = """
import asyncio, sys
from pathlib import Path
from gateway.client import Agent

async def work() -> None:
    async with Agent.open(Path(sys.argv[1])) as agent:
        print("ready", flush=True)
        sys.stdin.readline()
        await agent.acquire("lock:late")

asyncio.run(work())
"""


def test_two_processes_with_one_session_key_are_flagged(tmp_path: Path) -> None:
    """Scenario 20 (AgentParty#3): both act, nobody is refused; the list says so, and so does the auditor."""
    home, one, two = (tmp_path / name for name in ("home", "one", "two"))
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        gateway.join(home)
        gateway.cli(home, "lease", "acquire", "lock:own")  # its first decision enrols it here
        gateway.cli(home, "session", "open", "--name", "one", "--into", str(one))
        shutil.copytree(one, two)
        with subprocess.Popen(
            [sys.executable, "-c", LATE, str(two)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as late:
            assert late.stdout is not None and late.stdout.readline() == b"ready\n"
            for number in range(2):  # the second one is signed with a history that has the first
                gateway.cli(one, "lease", "acquire", f"lock:early/{number}")
            assert "SHARED" not in gateway.cli(home, "session", "list").stdout
            time.sleep(1.1)  # signatures count whole seconds
            late.communicate(b"go\n", 30)
        assert late.returncode == 0
        assert "SHARED: two processes use its key" in gateway.cli(home, "session", "list").stdout
        report = gateway.verify_ledger(tmp_path / "ledger.export")
    notes = [finding for finding in rows(report["findings"]) if finding["code"] == "session_shared"]
    assert [finding["outcome"] for finding in notes] == ["valid"]


def test_a_key_in_two_ledgers_acts_in_each_by_what_was_said_there(tmp_path: Path) -> None:
    """What an operator of one ledger lends opens a session there, and is refused by its name in the other."""
    here_home, there_home, lent = tmp_path / "here-home", tmp_path / "there-home", tmp_path / "lent.json"
    with (
        Gateway(tmp_path / "here", "--metrics-port", "0", "--origin", "localhost/here") as here,
        Gateway(tmp_path / "there", "--metrics-port", "0", "--origin", "localhost/there") as there,
    ):
        here.join(here_home)
        there_home.mkdir(mode=0o700)
        for name in ("agent.key", "agent.pass"):
            shutil.copy2(here_home / name, there_home / name)
        there.join(there_home)
        for gateway, home in ((here, here_home), (there, there_home)):
            gateway.cli(home, "lease", "acquire", "lock:own")  # its first decision enrols it here
        key = json.loads(here.cli(here_home, "agent", "init", "--json").stdout)["did"]
        there.cli(there.data / "operator", "session", "delegate", key, "--out", str(lent))
        opening = ("session", "open", "--parent", str(lent), "--json", "--home")
        refused = run_cli(*opening, str(here_home))
        assert (refused.returncode, json.loads(refused.stdout)["error"]) == (77, "delegation_wrong_ledger")
        assert run_cli(*opening, str(there_home)).returncode == 0
        here.verify_ledger(tmp_path / "here.export")
        there.verify_ledger(tmp_path / "there.export")


async def test_a_captured_request_is_worth_nothing_to_another_process(tmp_path: Path) -> None:
    """Scenario 20 (mcp_agent_mail#259): the very bytes again, the same request under another name, one word changed."""
    async with world(tmp_path / "data", make(tmp_path / "data")) as place:
        session, thief = await place.session(await place.agent("a")), await place.agent("thief")
        caught = place.signed(session, "lease.acquire", resource="repo:x")
        first = await place.send(caught)
        size = place.gateway.house.sequencer.confirmed.size
        again = await place.send(caught)
        assert (again.status, again.json["code"]) == (409, "nonce_reused")
        changed = place.signed(session, "lease.acquire", resource="repo:x")
        told = await place.send(
            Message("POST", changed.target, changed.fields, changed.body.replace(b"repo:x", b"repo:y"))
        )
        assert (told.status, told.json["code"]) == (400, "digest_mismatch")
        posing = place.signed(thief, "lease.acquire", actorDid=session.did, resource="repo:y")
        assert (await place.send(posing)).json["code"] == "actor_mismatch"
        assert place.gateway.house.sequencer.confirmed.size == size
        assert first.status == 200
        place.audit()


async def take(place: World, key: SigningKey, name: str, **members: Any) -> str:
    """Take a lease with a key; return its id."""
    reply = await place.send(place.signed(key, "lease.acquire", resource=name, **members))
    assert reply.status == 200, reply.body
    return str(reply.json["lease"]["leaseId"])


def leaf(reply: Reply) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(decode_base64(reply.json["receipt"]["payload"]))
    return value


def rows(value: object) -> list[dict[str, Any]]:
    assert isinstance(value, list)
    return value
