"""`tallystick join`: makes the profile that pins one gateway's root key.

The root key comes from a person, over another way than the gateway's address. Everything fetched here is checked under
it: the key document by its signature, the newest checkpoint by the log key of that document, entry 0 by both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from gateway.client.agent import Agent
from gateway.client.errors import ClientError, ProfileError
from gateway.client.profile import AGENT_KEY, KEYS_PATH, Address, open_profile, write_profile
from gateway.client.seen import read_bounded
from gateway.client.transport import HttpTransport
from keys.files import KeyFileError, new_key
from verifier.keyring import open_key_document
from verifier.note import parse_vkey
from verifier.wire import Malformed

FETCH_MS = 10_000
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Joined:
    """The finished profile; `is_dev` None when entry 0 could not be read (a members' ledger before enrolment)."""

    home: Path
    did: str
    origin: str
    size: int
    is_new_key: bool
    is_dev: bool | None


def read_root(text: str) -> str:
    """Return the root vkey of the option --root: the text itself, or the first line of @FILE."""
    if not text.startswith("@"):
        return text.strip()
    try:
        return read_bounded(Path(text[1:])).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError, Malformed) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Malformed(f"--root: {text[1:]} can't be read: {why}") from error


def authority_of(url: str) -> str:
    """Return host[:port] of a URL as it is signed: lower case, without the scheme's own port."""
    wrong = Malformed("URL: write http://host:port or https://host, without a path")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise wrong
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return host if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{parts.port}"


async def join(url: str, root: str, home: Path) -> Joined:
    """Make or refresh the profile in `home`; an existing key is kept. Malformed: url or root; ProfileError: else."""
    authority = authority_of(url)
    try:
        root_key = parse_vkey(root)
    except Malformed as error:
        raise Malformed(f"--root: {error}; to read it from a file write @FILE") from error
    document = await _fetch(url, authority)
    try:
        origin = open_key_document(document, root_key).origin
        write_profile(home, Address(url.rstrip("/"), origin, authority), root=root, document=document)
        is_new_key = not (home / AGENT_KEY).exists()
        if is_new_key:
            new_key(home / AGENT_KEY, purpose="agent")
    except (Malformed, KeyFileError) as error:
        raise ProfileError(f"{url} can't be joined: {error}") from error
    return await _check(home, is_new_key)


async def _fetch(url: str, authority: str) -> bytes:
    async with HttpTransport(url) as transport:
        reply = await transport.send("GET", KEYS_PATH, {"host": authority}, None, FETCH_MS)
    if reply.status != 200:
        raise ProfileError(f"{url} answers {reply.status} for {KEYS_PATH}: is it a Tallystick gateway?")
    return reply.unverified_body


async def _check(home: Path, is_new_key: bool) -> Joined:
    """Verify the newest checkpoint, and take from entry 0 the name that requests are signed for."""
    profile = open_profile(home)
    async with Agent.open(profile) as agent:
        checkpoint = await agent.check_history()
        try:
            opening = (await agent.receipt(0)).leaf.value
        except ClientError:
            opening = {}
    authorities = opening.get("authorities")
    if isinstance(authorities, list) and profile.address.authority not in authorities:
        address = replace(profile.address, authority=str(authorities[0]))
        root = read_bounded(home / "root.vkey").decode().strip()
        write_profile(home, address, root=root, document=read_bounded(home / "keys.note"))
    is_dev = opening["isDev"] is True if "isDev" in opening else None
    return Joined(home, agent.did, profile.address.origin, checkpoint.size, is_new_key, is_dev)
