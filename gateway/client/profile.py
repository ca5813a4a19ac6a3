"""The profile folder: who this agent is, which gateway it talks to, and what it pinned.

    agent.key, agent.pass   its private key (made by keys.files; mode 0600)
    gateway.json            {"authority", "origin", "url"}
    root.vkey               the root key, pinned by a person when joining: the one thing that came from outside
    keys.note               the key document, signed by that root; a newer one takes its place when it is needed
    seen.note               the newest checkpoint this agent has verified (seen.py)
    opened.json             in a session's folder only: the receipt of the entry that opened it

The root key is never fetched. Everything else that comes from the gateway is checked against it, so whoever can answer
at the gateway's address can refuse service and nothing more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.client.errors import ProfileError
from gateway.client.seen import Seen, read_bounded
from keys.files import KeyFileError, load_key, replace_file
from keys.signing import SigningKey
from verifier.entries import AUTHORITY, ORIGIN
from verifier.keyring import Keyring, open_key_document, open_keyring
from verifier.wire import Malformed, encode_canonical, parse_json

HOME_VARIABLE = "TALLYSTICK_HOME"
AGENT_KEY, ADDRESS, ROOT, KEYS, SEEN = "agent.key", "gateway.json", "root.vkey", "keys.note", "seen.note"
OPENED = "opened.json"
KEYS_PATH = "/.well-known/tallystick-keys"  # where a gateway publishes the key document
ADDRESS_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Address:
    """Where the gateway is (`url`), which ledger it keeps (`origin`), and the name it is signed for (`authority`)."""

    url: str
    origin: str
    authority: str


@dataclass(frozen=True, slots=True)
class Profile:
    """An opened profile. `home` is None for one that lives in memory (tests, the demo)."""

    address: Address
    key: SigningKey
    keyring: Keyring
    home: Path | None = None

    @property
    def genesis(self) -> bytes:
        """The pinned hash of entry 0, which is also the root of the ledger at size 1."""
        genesis = self.keyring.genesis(self.address.origin)
        if genesis is None:
            raise ProfileError(f"the key document is of another ledger than {self.address.origin}; join again")
        return genesis

    def open_seen(self) -> Seen:
        """Return this profile's memory of checkpoints, with the one on disk already in it."""
        path = None if self.home is None else self.home / SEEN
        return Seen(path, self.keyring, self.address.origin, self.genesis)


def default_home() -> Path:
    """Return the folder in $TALLYSTICK_HOME, else ~/.tallystick."""
    return Path(os.environ.get(HOME_VARIABLE) or Path.home() / ".tallystick")


def open_profile(home: Path | None = None) -> Profile:
    """Return the profile in `home` (default_home by default); ProfileError says what is wrong and what to do."""
    folder = default_home() if home is None else home
    if not (folder / ADDRESS).exists():
        raise ProfileError(f"{folder} holds no profile; make one with: tallystick join URL --root VKEY --home {folder}")
    try:
        address = parse_address(read_bounded(folder / ADDRESS, ADDRESS_BYTES_MAX))
        root = read_bounded(folder / ROOT).decode("utf-8").strip()
        keyring = open_keyring(root=root, document=read_bounded(folder / KEYS))
        return Profile(address, load_key(folder / AGENT_KEY, purpose="agent"), keyring, folder)
    except (Malformed, UnicodeDecodeError, OSError) as error:
        raise ProfileError(f"the profile in {folder} can't be used: {error}") from error
    except KeyFileError as error:
        raise ProfileError(str(error)) from error


def write_profile(home: Path, address: Address, *, root: str, document: bytes) -> Keyring:
    """Write (or refresh) all of a profile but its key; return the keyring that the root accepted.

    A key document older than the one already there, or of another root or ledger, is refused: an old document may lack
    the line that disowns a stolen key.
    """
    keyring = open_keyring(root=root, document=document)
    if keyring.genesis(address.origin) is None:
        raise Malformed(f"the key document is not of {address.origin}")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_refreshes(home, keyring, root)
    replace_file(home / ROOT, root.encode() + b"\n")
    replace_file(home / KEYS, document)
    replace_file(home / ADDRESS, encode_address(address))
    return keyring


def refreshed(profile: Profile, document: bytes) -> Keyring | None:
    """Return the keyring with a newer key document of the pinned root, and keep that; None when it is not newer.

    Malformed: it is not of this root and ledger, or older than the one that is pinned.
    """
    pinned = profile.keyring
    assert pinned.root is not None, "a profile pins a root"
    keyring = replace(pinned, document=open_key_document(document, pinned.root))
    if keyring.genesis(profile.address.origin) != profile.genesis:
        raise Malformed("the key document is of another ledger")
    if (keyring.version or 0) < (pinned.version or 0):
        raise Malformed(f"key document version {keyring.version} is older than {pinned.version}, which is pinned")
    if keyring.version == pinned.version:
        return None
    if profile.home is not None:
        _check_refreshes(profile.home, keyring, pinned.root.vkey)
        replace_file(profile.home / KEYS, document)
    return keyring


def encode_address(address: Address) -> bytes:
    """Return the bytes of gateway.json."""
    return encode_canonical({"authority": address.authority, "origin": address.origin, "url": address.url}) + b"\n"


def parse_address(content: bytes) -> Address:
    """Return the address in gateway.json; Malformed names the member."""
    value = parse_json(content, bytes_max=ADDRESS_BYTES_MAX)
    if set(value) != {"authority", "origin", "url"}:
        raise Malformed("gateway.json has exactly the members authority, origin and url")
    url, origin, authority = value["url"], value["origin"], value["authority"]
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise Malformed("url: begins with http:// or https://")
    if not ORIGIN.check(origin) or not AUTHORITY.check(authority):
        raise Malformed(f"origin: {ORIGIN.bound}; authority: {AUTHORITY.bound}")
    return Address(url.rstrip("/"), str(origin), str(authority))


def _check_refreshes(home: Path, keyring: Keyring, root: str) -> None:
    if not (home / ROOT).exists():
        return
    if read_bounded(home / ROOT).decode("utf-8").strip() != root:
        raise Malformed(f"{home} is pinned to another root key; choose another folder with --home")
    old = open_keyring(root=root, document=read_bounded(home / KEYS)).version or 0
    if (keyring.version or 0) < old:
        raise Malformed(f"the gateway offers key document version {keyring.version}, older than {old}, which is here")
