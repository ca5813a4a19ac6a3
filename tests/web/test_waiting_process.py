"""Waiting at a real process that is killed: everybody keeps their place, and what was answered stays true."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.client.signing import Draft, new_idempotency_key, new_nonce, sign_request
from keys.signing import SigningKey
from tests.system.process import Gateway
from tests.web.world import Message, Reply, parse_reply, send_raw
from verifier.entries import ACTION_PATHS
from verifier.wire import decode_base64, encode_base64, encode_canonical

pytestmark = pytest.mark.system
ORIGIN = "localhost/dev"


class Client:
    """One key and the gateway it asks, on which any key may act."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._key = gateway, SigningKey.generate()
        note = (gateway.data / "public" / "keys.note").read_text("utf-8")
        genesis = next(line.split()[1] for line in note.splitlines() if line.startswith("genesis "))
        self._anchor = f"{ORIGIN} 1 {encode_base64(bytes.fromhex(genesis))}"

    def message(self, action: str, *, key: str | None = None, prefer: str = "", **members: Any) -> bytes:
        body = encode_canonical({"ledger": ORIGIN, "actorDid": self._key.did, **members})
        authority = f"127.0.0.1:{self._gateway.port}"
        draft = Draft("POST", authority, ACTION_PATHS[action], "", self._anchor, body, key or new_idempotency_key())
        fields = sign_request(draft, self._key, created_s=int(time.time()), nonce=new_nonce())
        message = Message("POST", draft.path, tuple(fields.items()), body)
        return (message.adding("Prefer", prefer) if prefer else message).encode()

    async def ask(self, action: str, **options: Any) -> Reply:
        return await send_raw(self._gateway.url, self.message(action, **options))


def leaf_of(reply: Reply) -> Any:
    return json.loads(decode_base64(reply.json["receipt"]["payload"]))


async def test_a_kill_costs_nobody_the_place_in_line(tmp_path: Path) -> None:
    """Scenarios L12, L30: claims, places and holders meet kill -9; then the turn comes as if nothing had been."""
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        holder, first, second = Client(gateway), Client(gateway), Client(gateway)
        held = leaf_of(await holder.ask("lease.acquire", resource="lock:x", ttlMs=60_000))
        queued = [await one.ask("lease.acquire", resource="lock:x", wait=True, key="q") for one in (first, second)]
        tickets = [str(leaf_of(reply)["ticketId"]) for reply in queued]
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(first.message("wait.claim", ticketId=tickets[0], key="c", prefer="wait=10"))
        await writer.drain()
        polled = await second.ask("wait.claim", ticketId=tickets[1], key="p")
        assert polled.status == 202
        gateway.kill()
        assert await reader.read() == b"", "who was parked was answered nothing, so nothing was decided"
        writer.close()
        gateway.start()
        again = [await one.ask("lease.acquire", resource="lock:x", wait=True, key="q") for one in (first, second)]
        assert [reply.body for reply in again] == [reply.body for reply in queued]
        assert (await second.ask("wait.claim", ticketId=tickets[1], key="p")).body == polled.body
        waiting = asyncio.create_task(first.ask("wait.claim", ticketId=tickets[0], key="c", prefer="wait=10"))
        assert (await holder.ask("lease.release", resource="lock:x", leaseId=held["leaseId"])).status == 200
        leaf = leaf_of(await asyncio.wait_for(waiting, 9))
        assert (leaf["type"], leaf["ticketId"]) == ("tallystick/lease.claimed/1", tickets[0])
        assert leaf["fencingToken"] > held["fencingToken"]
        late = await second.ask("wait.claim", ticketId=tickets[1])
        assert (late.status, leaf_of(late)["position"]) == (202, 1)
        report = await asyncio.to_thread(gateway.verify_ledger, tmp_path / "out.ledger")
        assert report, "the real verifier accepts all of it"


async def test_a_signal_sends_parked_claims_away_and_ends_at_once(tmp_path: Path) -> None:
    """Scenario 45."""
    with Gateway(tmp_path / "data", "--metrics-port", "0") as gateway:
        holder, waiter = Client(gateway), Client(gateway)
        await holder.ask("lease.acquire", resource="lock:x", ttlMs=60_000)
        ticket_id = str(leaf_of(await waiter.ask("lease.acquire", resource="lock:x", wait=True))["ticketId"])
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(waiter.message("wait.claim", ticketId=ticket_id, prefer="wait=20"))
        await writer.drain()
        await holder.ask("lease.acquire", resource="lock:y")  # a round trip later the claim is parked
        started_s = time.monotonic()
        assert await asyncio.to_thread(gateway.stop) == 0
        assert time.monotonic() - started_s < 5
        reply = parse_reply(await reader.read())
        writer.close()
        assert (reply.status, reply.json["code"]) == (503, "draining")
        gateway.start()
        assert (await waiter.ask("wait.claim", ticketId=ticket_id)).status == 202
