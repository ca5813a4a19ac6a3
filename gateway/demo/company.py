"""One operator's people: sessions that end with their hands full, a program without a key, many commands at once.

It plays beside the swarm, against the same gateway, and everything is decided into the swarm's ledger:

* Mia, a session, takes a file and falls silent. Noa stands in line and is served when the ledger gives Mia up.
* Kim, a session, works on another file when the operator revokes it. Lou stands in line and is served in that moment.
* `nightly` has no key, only a token, and takes a lease with one HTTP request.
* Pat takes and gives back many files with one signature, and hands on the receipt of one command alone.
"""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.client import Agent, Grant, Session, SessionEnded, Ticket, acquiring, releasing
from gateway.client.profile import Profile, open_profile
from gateway.client.receipts import receipt_in
from gateway.demo.recorder import Record, RecordingTransport
from keys.files import CUSTODY, new_key_in
from keys.signing import SigningKey
from keys.token import digest_of, new_token
from verifier.entries import ACTION_PATHS

FOLDER = "repo:burst/company"
LEFT, REVOKED, LOCK = f"{FOLDER}/left.py", f"{FOLDER}/revoked.py", "lock:nightly/deploy"
FILES = 24
TTL_MS = 120_000  # far longer than a session that falls silent lives
WAIT_MS = 60_000
ANSWER_SECONDS_MAX = 30


@dataclass(frozen=True, slots=True)
class Company:
    """What happened, as the receipts say: who held and who came after, and the two receipts that are handed on."""

    operator: str
    silent: Grant
    after_silence: bytes
    revoked: Grant
    after_revocation: bytes
    was_told: str
    custodial: bytes
    command: bytes

    def lines(self) -> list[str]:
        """Tell it."""
        return [
            "Mia, a session, fell silent with left.py in her hands: the ledger gave it back, and Noa, in line, got it.",
            f"Kim, a session, was revoked with revoked.py in his: Lou got it at once, Kim was told {self.was_told}.",
            f"nightly, which has an API key and no key of its own, took {LOCK} with one HTTP request.",
            f"Pat took {FILES} files and gave them back: {2 * FILES} commands, one signature.",
        ]


@asynccontextmanager
async def operating(data: Path, record: Record) -> AsyncIterator[Agent]:
    """Yield the operator that was made with the ledger; whom it lets act is watched like everybody else."""
    profile = replace(open_profile(data / "operator"), home=None)
    async with Agent(profile, connect=lambda url: RecordingTransport(url, record)) as operator:
        yield operator


async def play(operator: Agent, pins: Profile, data: Path, record: Record) -> Company:
    """Play all of it at the same time and return what came of it."""
    async with asyncio.TaskGroup() as group:
        silence = group.create_task(_silence(operator, pins, record))
        revocation = group.create_task(_revocation(operator, pins, record))
        custodial = group.create_task(_custodial(operator, pins, data, record))
        command = group.create_task(_batch(pins, record))
    silent, after_silence = silence.result()
    revoked, after_revocation, was_told = revocation.result()
    return Company(
        operator.did, silent, after_silence, revoked, after_revocation, was_told, custodial.result(), command.result()
    )


async def _silence(operator: Agent, pins: Profile, record: Record) -> tuple[Grant, bytes]:
    async with _session(operator, "mia") as mia:
        held = await mia.acquire(LEFT, ttl_ms=TTL_MS)
    async with agent(pins, record) as noa:  # from here on nothing is heard of Mia, and nobody says so
        async with noa.lease(LEFT, ttl_ms=TTL_MS, wait_ms=WAIT_MS) as lease:
            return held, lease.receipt


async def _revocation(operator: Agent, pins: Profile, record: Record) -> tuple[Grant, bytes, str]:
    async with _session(operator, "kim") as kim, agent(pins, record) as lou:
        held = await kim.acquire(REVOKED, ttl_ms=TTL_MS)
        ticket = await lou.acquire(REVOKED, ttl_ms=TTL_MS, wait=True)
        assert isinstance(ticket, Ticket), "Kim holds it"
        await operator.close_session(kim.did, "went-astray")
        after = await lou.claim(ticket)
        assert isinstance(after, Grant), "it was offered in the same moment"
        await lou.release(REVOKED, after.lease_id)
        try:
            await kim.renew(held.lease_id)
        except SessionEnded as told:
            return held, after.receipt.data, told.code
    raise RuntimeError("a session that was revoked renewed its lease")


async def _custodial(operator: Agent, pins: Profile, data: Path, record: Record) -> bytes:
    """Let a program act that can't sign: the gateway's machine keeps its key, an API key stands for it."""
    did = await asyncio.to_thread(lambda: new_key_in(data / CUSTODY, purpose=CUSTODY).did)
    token = new_token("live")
    await operator.add_agent(did, "nightly", is_custodial=True)
    await operator.issue_api_key(digest_of(token), "live", name="nightly", agent=did)
    receipt = await asyncio.to_thread(_post, pins.address.url, token, {"resource": LOCK, "ttlMs": TTL_MS})
    record.keep(receipt)
    return receipt


def _post(url: str, token: str, members: dict[str, object]) -> bytes:
    """Take a lease as any HTTP client would."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    asked = urllib.request.Request(url + ACTION_PATHS["lease.acquire"], json.dumps(members).encode(), headers)
    with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS_MAX) as answer:
        receipt = receipt_in(answer.read())
    assert receipt is not None, "a decision is answered with its receipt"
    return receipt


async def _batch(pins: Profile, record: Record) -> bytes:
    names = [f"{FOLDER}/{number}.py" for number in range(FILES)]
    async with agent(pins, record) as pat:
        outcomes = await pat.batch([*map(acquiring, names), *map(releasing, names)])
    return outcomes[FILES // 2].receipt.data


def _session(operator: Agent, name: str) -> Session:
    """A session that nobody closes when its program ends."""
    return operator.open_session(name=name, resources=[f"{FOLDER}/**"], verbs=["lease"], is_kept=True)


def agent(pins: Profile, record: Record) -> Agent:
    """Return an agent with a fresh key."""
    profile = replace(pins, key=SigningKey.generate(), home=None)
    return Agent(profile, connect=lambda url: RecordingTransport(url, record))
