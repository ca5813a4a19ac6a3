"""The steps of a change of keys (gateway/key_commands.py). Each leaves something that the next run finds:

1. the key that comes next is copied from the root's folder into `keys/`, where the gateway looks for it;
2. the key after it is made, and stays with the root;
3. the root states what shall be, the operator brings it, and the ledger has the entry;
4. a key document that says what the ledger says is signed and published.

The root never takes anybody's word for what the ledger says: the gateway only names entries, and each is believed as
far as its receipt proves it and the root's own statement stands in it.
Source: docs/protocol.md 15.7 to 15.11; docs/operating.md, changing keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gateway.client.agent import Agent
from gateway.client.errors import ClientError
from gateway.client.office import rows_in
from gateway.client.profile import refreshed
from gateway.config import load_settings
from gateway.core.key import line_of
from gateway.core.records import LedgerKey
from gateway.keyroom import KEYS, PUBLIC, key_files
from gateway.ledger.cosigned import WITNESSES_FILE, open_witnesses, valid_lines
from gateway.signer import key_name
from keys.files import copy_key, load_key, new_key, passphrase_path, sync_folder
from keys.forms import NOTE_FILE, root_vkey, signed_key_document
from keys.publish import publish, read_forms
from keys.rotation import Final, commitment, next_document, signed_statement
from keys.signing import SigningKey
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import Leaf, full_type
from verifier.keyring import KeyDocument, KeyLine, covers, open_key_document
from verifier.note import VerifierKey, encode_note, is_signed_once, make_vkey
from verifier.policy import Policy, is_quorum_met
from verifier.statement import KeyStatement, open_key_statement
from verifier.wire import Malformed

LOOK_MS = 2_000  # between two looks for a witnessed checkpoint
FETCH_MS = 10_000
# How what a key is to become is called in the ledger, and which entry says that it did.
_ENDINGS = {"retire": "key.retired", "compromise": "key.compromised"}


class RotationError(ClientError):
    """Nothing more was done; the text says why, and what to do."""


class Stated(NamedTuple):
    """What the ledger says of its keys: each key there ever was, and by purpose the hash of the next one."""

    keys: tuple[LedgerKey, ...]
    following: Mapping[str, str]

    @property
    def lines(self) -> tuple[KeyLine, ...]:
        return tuple(map(line_of, self.keys))

    def in_force(self, purpose: str) -> tuple[KeyLine, ...]:
        """Return the lines of a purpose in force, the oldest first."""
        return tuple(line for line in self.lines if line.purpose == purpose and line.to_size is None)

    def disowned(self, purpose: str) -> tuple[KeyLine, ...]:
        return tuple(line for line in self.lines if line.purpose == purpose and line.status == "compromised")


@dataclass(frozen=True, slots=True)
class Office:
    """Where keys are changed: the data directory, the folder of the root and its key, the operator's agent."""

    data: Path
    root_folder: Path
    root: SigningKey
    agent: Agent

    @property
    def origin(self) -> str:
        return self.agent.profile.address.origin

    @property
    def genesis(self) -> bytes:
        return self.agent.profile.genesis

    @property
    def root_key(self) -> VerifierKey:
        return root_vkey(self.origin, self.root.public_key)

    def published(self) -> KeyDocument:
        """Return the document that readers get now."""
        return open_key_document(read_forms(self.data / PUBLIC).get(NOTE_FILE, b""), self.root_key)


# -- what the ledger says ----------------------------------------------------------------------------------------------


async def stated(office: Office) -> Stated:
    """Return what the ledger says of its keys, each word of it proven by a receipt and stated by the root.

    Which keys signed those receipts the published document may not know yet, so the gateway is taken at its word first.
    Its word ends where the document has spoken, and if the root did not state just this in the ledger, nothing comes
    of it.
    """
    rows = rows_in(await office.agent.ledger_keys(), "keys")
    told = [key for row in rows if (key := _told(row)) is not None]
    _presume(office, told)
    first = await office.agent.receipt(0)
    if first.leaf_hash != office.genesis:
        raise RotationError("the gateway's entry 0 is not the one that the profile pins; do not go on")
    opened = first.leaf
    known = {key.vkey: key for key in map(_first, _texts(opened, "keys"))}
    following = opened.value.get("nextKeys")
    committed = {name: str(value) for name, value in following.items()} if isinstance(following, dict) else {}
    for seq in sorted(_numbers(rows, "announcedSeq") - {0}):
        leaf, stating = await _statement_at(office, seq, "key.announced")
        known[stating.key.vkey] = LedgerKey(stating.purpose, stating.key.vkey, leaf.seq)
        committed[stating.purpose] = stating.next or ""
    for seq in sorted(_numbers(rows, "endedSeq")):
        leaf, stating = await _statement_at(office, seq, *_ENDINGS.values())
        ended = known.get(stating.key.vkey)
        if ended is None:
            raise RotationError(f"entry {seq} ends a key that no entry announced; audit the ledger before you go on")
        is_compromised = leaf.type == full_type("key.compromised")
        known[ended.vkey] = ended._replace(ended_seq=leaf.seq, is_compromised=is_compromised)
    ordered = sorted(known.values(), key=lambda key: (key.announced_seq, key.vkey))
    if {key._replace(is_compromised=False) for key in ordered} != set(told):
        raise RotationError("the gateway tells of keys that the root never stated; audit the ledger before you go on")
    return Stated(tuple(ordered), {purpose: text for purpose, text in committed.items() if text})


def _presume(office: Office, keys: Sequence[LedgerKey]) -> None:
    """Judge receipts by these bounds of keys, for the time of this command. What the document says of a key stays.

    A disowned key counts within its bounds here: what comes of it is the root's own statement, or what it published.
    """
    document, caller = office.published(), office.agent.caller
    ended = {line.key for line in document.keys if line.to_size is not None}
    lines = [line for line in map(line_of, keys) if line.key not in ended]
    presumed = {line.key: line for line in (*document.keys, *lines)}
    bounds = [KeyLine(line.purpose, line.key, line.from_size, line.to_size) for line in presumed.values()]
    told = tuple(replace(line, status="active" if line.to_size is None else "retired") for line in bounds)
    caller.pin(replace(caller.profile.keyring, document=replace(document, keys=told)))


def _told(row: Mapping[str, object]) -> LedgerKey | None:
    """Return a key as the gateway tells of it, unverified."""
    purpose, vkey, announced, ended = (row.get(name) for name in ("purpose", "key", "announcedSeq", "endedSeq"))
    if not isinstance(purpose, str) or not isinstance(vkey, str) or not isinstance(announced, int):
        return None
    return LedgerKey(purpose, vkey, announced, ended if isinstance(ended, int) else None)


async def _statement_at(office: Office, seq: int, *types: str) -> tuple[Leaf, KeyStatement]:
    leaf = (await office.agent.receipt(seq)).leaf
    if leaf.type not in map(full_type, types):
        raise RotationError(f"the gateway says that entry {seq} is about a key, but it is {leaf.type}; do not go on")
    note = leaf.text("statement").encode()
    return leaf, open_key_statement(note, office.root_key, office.origin, office.genesis)


def _first(text: str) -> LedgerKey:
    purpose, vkey, *_ = text.split(" ")
    return LedgerKey(purpose, vkey, 0)


def _numbers(rows: Sequence[Mapping[str, object]], name: str) -> set[int]:
    return {number for row in rows if isinstance(number := row.get(name), int)}


def _texts(leaf: Leaf, name: str) -> list[str]:
    values = leaf.value[name]
    return [str(value) for value in values] if isinstance(values, list) else []


# -- steps -------------------------------------------------------------------------------------------------------------


async def announce(office: Office, purpose: str) -> None:
    """Put the key that comes next in force."""
    now = await stated(office)
    used = {line.key.public_key for line in now.lines}
    key = installed(office, purpose, now.following.get(purpose), used)
    after = _kept(office, purpose, used | {key.public_key})
    vkey = make_vkey(key_name(office.origin, purpose), key.public_key)
    receipt = await _bring(office, KeyStatement("announce", purpose, vkey, commitment(after.public_key)))
    print(f"entry {receipt}: the {purpose} key {vkey.vkey} is in force beside the older one")
    tidy(office, purpose)


async def end(office: Office, verb: str, line: KeyLine) -> None:
    """Retire or disown a key in force. The checkpoint over that entry has no line of a log key that it ends."""
    now = await stated(office)
    before = office.agent.caller.seen.newest.size
    ended = [key._replace(ended_seq=before) if key.vkey == line.key.vkey else key for key in now.keys]
    _presume(office, ended if line.purpose == "log" else now.keys)
    receipt = await _bring(office, KeyStatement(verb, line.purpose, line.key))
    done = "retired" if verb == "retire" else "disowned"
    print(f"entry {receipt}: the {line.purpose} key {line.key.vkey} is {done}")


async def _bring(office: Office, statement: KeyStatement) -> int:
    note = signed_statement(statement, office.root, office.origin, office.genesis)
    return (await office.agent.state_key(statement.verb, note)).seq


async def publish_stated(office: Office) -> None:
    """Publish what the ledger says of its keys, if readers are told anything else."""
    now, document = await stated(office), office.published()
    finals = {line.key: await _final(office, line) for line in now.disowned("log")}
    following = next_document(document, now.lines, {key: final for key, final in finals.items() if final is not None})
    if following is None:
        print(f"version {document.version} of the key document says all that the ledger says")
        return
    publish(office.data / PUBLIC, following, office.root)
    with suppress(ClientError, Malformed):  # the operator's own profile finds it by itself another time
        refreshed(office.agent.profile, signed_key_document(following, office.root))
    others = ""
    if load_settings(office.data).store:
        others = ". Other nodes serve it when they have the folder that public leads to, and the link"
    print(f"published version {following.version} of the key document; the gateway serves it now{others}")


def installed(office: Office, purpose: str, committed: str | None, used: set[bytes]) -> SigningKey:
    """Return the key that comes next, after it was put into `keys/`: that of the root's folder, or one left there.

    Where the ledger names no hash, any key will do that was not used before.
    """

    def is_next(key: SigningKey) -> bool:
        return key.public_key not in used and committed in (None, commitment(key.public_key))

    for path in key_files(office.data, purpose):
        key = load_key(path, purpose=purpose)
        if is_next(key):
            return key
    for path in _next_files(office.root_folder, purpose):
        key = load_key(path, purpose=purpose)
        if is_next(key):
            copy_key(path, _free(office.data / KEYS, purpose, 2, path))
            return key
    if committed is None:
        return new_key(_free(office.data / KEYS, purpose, 2), purpose=purpose)
    raise RotationError(
        f"{office.root_folder} has no {purpose} key of hash {committed}, which the ledger wants next. `tallystick init`"
        f" made it as next-{purpose}.key: name the folder that it was moved to with --root-folder."
    )


def _kept(office: Office, purpose: str, used: set[bytes]) -> SigningKey:
    """Return the key after the next one, which stays with the root: one that was made before, or a new one."""
    for path in _next_files(office.root_folder, purpose):
        key = load_key(path, purpose=purpose)
        if key.public_key not in used:
            return key
    return new_key(_free(office.root_folder, f"next-{purpose}", 1), purpose=purpose)


def tidy(office: Office, purpose: str) -> None:
    """Take what is in `keys/` now out of the root's folder: a private key lies in one place."""
    here = {load_key(path, purpose=purpose).public_key for path in key_files(office.data, purpose)}
    for path in _next_files(office.root_folder, purpose):
        if load_key(path, purpose=purpose).public_key in here:
            path.unlink()
            passphrase_path(path).unlink(missing_ok=True)
            sync_folder(office.root_folder)


def _next_files(folder: Path, purpose: str) -> list[Path]:
    return sorted(folder.glob(f"next-{purpose}*.key"), key=lambda path: (len(path.name), path.name))


def _free(folder: Path, stem: str, number: int, source: Path | None = None) -> Path:
    """Return the first free name `<stem>.key`, `<stem>.2.key` and so on, from a number on.

    What was stopped half-way left a passphrase without its key: that of `source` is gone on with, others are let lie.
    """
    while True:
        path = folder / (f"{stem}.key" if number == 1 else f"{stem}.{number}.key")
        beside = passphrase_path(path)
        is_begun = (
            source is not None and beside.exists() and beside.read_bytes() == passphrase_path(source).read_bytes()
        )
        if not path.exists() and (is_begun or not beside.exists()):
            return path
        number += 1


# -- the tree after a theft --------------------------------------------------------------------------------------------


async def _final(office: Office, line: KeyLine) -> Final | None:
    """Return the tree that the line of a disowned log key shall name: a witnessed one, or for now the newest there is.

    Such a tree has the entry in it that disowned the key, so that key did not sign it, and others did.
    """
    assert line.to_size is not None, "a disowned key is not in force"
    witnessed = await _witnessed(office, line)
    if witnessed is not None:
        return Final(witnessed.size, witnessed.root, encode_note(witnessed.note))
    newest = await office.agent.check_history()
    return Final(newest.size, newest.root) if newest.size > line.to_size else None


async def _witnessed(office: Office, line: KeyLine) -> Checkpoint | None:
    """Return the newest cosigned checkpoint if it proves that the key was disowned before."""
    policy = policy_of(office)
    if policy is None:
        return None
    _, slash, path = office.origin.partition("/")
    try:
        found = parse_checkpoint(await office.agent.caller.fetch(f"{slash}{path}/witnessed"))
    except (ClientError, Malformed):
        return None
    others = [one for one in (await stated(office)).lines if one.purpose == "log" and one.status != "compromised"]
    is_signed = any(covers(one, found.size) and is_signed_once(found.note, one.key) for one in others)
    is_met = is_quorum_met(policy, set(valid_lines(found, policy.witnesses)))
    is_later = line.to_size is not None and found.size > line.to_size
    return found if found.origin == office.origin and is_signed and is_met and is_later else None


def policy_of(office: Office) -> Policy | None:
    path = office.data / WITNESSES_FILE
    return open_witnesses(path.read_bytes()).policy if path.exists() else None


async def await_witnessed(office: Office, purpose: str, wait_ms: int) -> bool:
    """Wait until the document can prove each disowning; say whether it can. Without witnesses it never will."""
    clock = office.agent.clock
    until_ms = clock.steady_ms() + wait_ms
    waiting = [line for line in (await stated(office)).disowned(purpose) if not is_proven(office, line)]
    while waiting and clock.steady_ms() < until_ms:
        waiting = [line for line in waiting if await _witnessed(office, line) is None]
        if waiting:
            await clock.sleep(LOOK_MS)
    return not waiting


def is_proven(office: Office, line: KeyLine) -> bool:
    return any(shown.key == line.key and shown.final_note is not None for shown in office.published().keys)
