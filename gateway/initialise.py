"""Makes a data directory: keys, entry 0, key document, the operator's client profile.

Everything is made in a folder beside the wanted one and renamed at the end, so a directory that was made half is never
taken for a ledger. Nothing that exists is ever overwritten: entry 0 can be written once, and its keys are its identity.
It is written last: in a database it stays for ever. So there the folder is renamed first, with a note in it that nobody
knows yet whether entry 0 is there, for if it is, its keys must not be lost. Who runs `init` again finds that out.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import unicodedata
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.client.profile import Address, write_profile
from gateway.config import Settings, load_settings, save_settings
from gateway.core.append import Imprint, build_batch
from gateway.core.opening import Opening, opened
from gateway.core.parameters import Parameters
from gateway.core.record_codec import encode_record
from gateway.errors import Busy, Fatal, HeadMoved, StartError, Unknown
from gateway.ledger.checkpoint import encode_leaf, sign_batch
from gateway.ledger.tree import EMPTY_EDGE, Growth
from gateway.signer import Signer
from gateway.store.contract import Store, StoredBatch, StoredHead, Upkeep
from gateway.stores import LEDGER_FILE as LEDGER_FILE
from gateway.stores import create_store, durability_of, open_store, origin_of, reaching
from keys.files import CUSTODY, new_key, replace_file, sync_folder
from keys.forms import root_vkey, signed_key_document
from keys.publish import publish
from keys.signing import SigningKey
from verifier.entries import AUTHORITY, ORIGIN, PURPOSES, ZERO_HASH, parse_leaf
from verifier.keyring import KeyDocument, KeyLine
from verifier.merkle import leaf_hash

ENROLLER_FILE = "keys/enroller.key"
SEAL_FILE = "keys/seal.key"
DOUBT_FILE = "entry0.unknown"  # the note: the batch of entry 0, and what is told when it is there
DEFAULT_DEV_ORIGIN = "localhost/dev"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class InitialiseError(Exception):
    """Nothing was made; the text says why and what to do."""


class InDoubt(InitialiseError):
    """Nobody knows whether entry 0 was written."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the operator asked for."""

    folder: Path
    origin: str
    authorities: tuple[str, ...]
    settings: Settings
    is_public: bool
    is_dev: bool
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Made:
    """What the operator must know afterwards; nothing of it is secret."""

    folder: Path
    root_vkey: str
    genesis: bytes
    operator: str
    url: str


@dataclass(frozen=True, slots=True)
class _Keys:
    root: SigningKey
    log: SigningKey
    receipt: SigningKey
    operator: SigningKey
    enroller: SigningKey
    seal: SigningKey
    next_keys: Mapping[str, SigningKey]


def default_authorities(origin: str, settings: Settings) -> tuple[str, ...]:
    """Return the names that requests may be signed for when none is given: the address here, the origin's host."""
    host, port = settings.listen_host, settings.listen_port
    here = f"{host}:{port}"
    names = {origin.partition("/")[0]}
    if host in LOOPBACK:
        names.add(f"localhost:{port}")
    return (here, *sorted(names - {here}))


def public_url(authority: str) -> str:
    """Return where clients find a gateway that is called `authority`: a bare name has TLS, by a proxy in front."""
    host, _, port = authority.rpartition(":")
    return f"http://{authority}" if (port.isdecimal() and host) or authority in LOOPBACK else f"https://{authority}"


def initialise(plan: Plan, now_ms: int) -> Made:
    """Make the data directory of `plan`; entry 0 gets the time `now_ms`. InitialiseError when it can't be made."""
    if (plan.folder / DOUBT_FILE).exists() and (found := _found_out(plan)) is not None:
        return found
    _check(plan)
    stage = plan.folder.with_name(f".{plan.folder.name}.new-{secrets.token_hex(4)}")
    stage.mkdir(mode=0o700, parents=True)
    try:
        made, batch, signer = _fill(stage, plan, now_ms)
        store = create_store(stage, plan.settings, plan.origin)
        if plan.settings.store:
            return _open_in_database(stage, plan, store, made, batch, signer)
        _write(store, batch, signer)
        os.replace(stage, plan.folder)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        raise
    sync_folder(plan.folder.parent)
    return made


def _open_in_database(stage: Path, plan: Plan, store: Store, made: Made, batch: StoredBatch, signer: Signer) -> Made:
    """Put the folder in its place, and write entry 0. What is not known to have failed leaves the folder there."""
    folder = plan.folder
    told = {"rootVkey": made.root_vkey, "genesis": made.genesis.hex(), "operator": made.operator, "url": made.url}
    replace_file(stage / DOUBT_FILE, json.dumps({"batchId": batch.head.batch_id, **told}).encode())
    os.replace(stage, folder)
    sync_folder(folder.parent)
    try:
        with reaching(plan.settings):
            _write(store, batch, signer)
    except InDoubt as error:
        raise InDoubt(
            f"{error}. {folder} stays, for if it was, these are the ledger's keys. Run this again when `tallystick db"
            f" check --store {plan.settings.store}` says fit: it finds out, and ends what was begun or begins anew"
        ) from error
    except (InitialiseError, StartError, Busy, Fatal):
        shutil.rmtree(folder)
        raise
    return _ended(made)


def _found_out(plan: Plan) -> Made | None:
    """Return what an earlier run made, if its entry 0 is there; else it never will be, and its folder is taken away."""
    folder, settings = plan.folder, load_settings(plan.folder)
    if (origin_of(folder), settings.store) != (plan.origin, plan.settings.store):
        raise InitialiseError(
            f"{folder} has the keys of {origin_of(folder)} in {settings.store}, and nobody knows yet whether that was"
            " opened. Run its `init` again, or choose another directory"
        )
    note = json.loads((folder / DOUBT_FILE).read_bytes())
    with reaching(settings), closing(open_store(folder, settings)) as store:
        has_landed = store.landed(note["batchId"])
    if has_landed:
        return _ended(Made(folder, note["rootVkey"], bytes.fromhex(note["genesis"]), note["operator"], note["url"]))
    shutil.rmtree(folder)
    return None


def _ended(made: Made) -> Made:
    """Take the note away: entry 0 is there."""
    (made.folder / DOUBT_FILE).unlink()
    sync_folder(made.folder)
    return made


def _check(plan: Plan) -> None:
    folder = plan.folder
    if os.path.lexists(folder) and not (folder.is_dir() and next(folder.iterdir(), None) is None):
        raise InitialiseError(f"{folder} exists and is not empty; `init` never overwrites. Choose another directory.")
    if not ORIGIN.check(plan.origin):
        raise InitialiseError(f"--origin must be {ORIGIN.bound}")
    wrong = [name for name in plan.authorities if not AUTHORITY.check(name)]
    if wrong or not plan.authorities:
        raise InitialiseError(f"--authority must be {AUTHORITY.bound}")
    if plan.settings.listen_port == 0:
        raise InitialiseError("--listen needs a port: clients are told where to go, and entry 0 names it")


def _fill(stage: Path, plan: Plan, now_ms: int) -> tuple[Made, StoredBatch, Signer]:
    """Make all but the ledger."""
    for name in ("keys", "root", "operator", CUSTODY):
        (stage / name).mkdir(mode=0o700)
    keys = _Keys(
        root=new_key(stage / "root" / "root.key", purpose="root"),
        log=new_key(stage / "keys" / "log.key", purpose="log"),
        receipt=new_key(stage / "keys" / "receipt.key", purpose="receipt"),
        operator=new_key(stage / "operator" / "agent.key", purpose="operator"),
        enroller=new_key(stage / ENROLLER_FILE, purpose="enroller"),
        seal=new_key(stage / SEAL_FILE, purpose="seal"),
        next_keys={purpose: new_key(stage / "root" / f"next-{purpose}.key", purpose=purpose) for purpose in PURPOSES},
    )
    signer = Signer(plan.origin, log=(keys.log,), receipt=(keys.receipt,), seal=keys.seal)
    lines = signer.lines
    leaf, batch = _entry_zero(plan, keys, lines, now_ms)
    document = KeyDocument(plan.origin, leaf_hash(leaf), 1, None, lines)
    publish(stage / "public", document, keys.root)
    save_settings(stage, plan.settings)
    return _profile(stage, plan, keys, document), batch, signer


def _entry_zero(plan: Plan, keys: _Keys, lines: tuple[KeyLine, ...], now_ms: int) -> tuple[bytes, StoredBatch]:
    """Return the leaf of entry 0 and the batch that holds it alone, so that its hash is the root at size 1."""
    opening = Opening(
        root=root_vkey(plan.origin, keys.root.public_key).vkey,
        keys=tuple(sorted(line.text for line in lines)),
        operators=(keys.operator.did,),
        enroller=keys.enroller.did,
        authorities=plan.authorities,
        is_public=plan.is_public,
        is_dev=plan.is_dev,
        unicode_version=unicodedata.unidata_version,
        parameters=plan.parameters,
        next_keys={purpose: sha256(key.public_key).hexdigest() for purpose, key in keys.next_keys.items()},
    )
    imprint = Imprint(plan.origin, ZERO_HASH, durability_of(plan.settings))
    built = build_batch(
        EMPTY_VIEW,
        (),
        None,
        batch_id=secrets.token_hex(16),
        t_ms=now_ms,
        epoch=0,
        imprint=imprint,
        parameters=plan.parameters,
        encode=encode_leaf,
        steps=(opened(opening),),
    )
    (leaf,) = built.leaves
    parse_leaf(leaf)  # what we are about to write for ever must be what every reader accepts
    growth = Growth(EMPTY_EDGE, (leaf_hash(leaf),))
    head = StoredHead(1, growth.root, sha256(leaf).digest(), now_ms, 0, built.batch_id)
    changes = tuple((key, encode_record(record) if record else None, due_ms) for key, record, due_ms in built.changes)
    return leaf, StoredBatch(head, built.leaves, growth.hashes, changes)


def _write(store: Store, batch: StoredBatch, signer: Signer) -> None:
    """Commit entry 0, then sign its checkpoint and keep it: size 1 is every newcomer's anchor. InDoubt: perhaps.

    A start signs again what was not kept.
    """
    try:
        if store.load().head is not None:
            raise InitialiseError(f"there is a ledger {signer.origin} in that database; choose another --origin")
        store.commit(batch, None)
        with suppress(Busy, Unknown):
            store.keep(Upkeep(signed=(sign_batch(signer, 1, batch.head.root, batch.leaves),), is_closing=True))
    except HeadMoved as moved:
        raise InitialiseError(
            f"nothing was written ({moved}). Try again; if somebody made a ledger {signer.origin} meanwhile, choose"
            " another --origin"
        ) from moved
    except Unknown as unknown:
        raise InDoubt(f"whether entry 0 was written could not be found out ({unknown})") from unknown
    finally:
        store.close()


def _profile(stage: Path, plan: Plan, keys: _Keys, document: KeyDocument) -> Made:
    """Make the operator's client profile, with which `tallystick agent add` works at once."""
    root = root_vkey(plan.origin, keys.root.public_key).vkey
    url = public_url(plan.authorities[0])
    address = Address(url, plan.origin, plan.authorities[0])
    write_profile(stage / "operator", address, root=root, document=signed_key_document(document, keys.root))
    return Made(plan.folder, root, document.genesis, keys.operator.did, url)


class _EmptyView:
    """A ledger without records."""

    def get(self, key: str) -> None:
        return None

    def near(self, term: str) -> tuple[()]:
        return ()

    def due(self, t_ms: int, limit: int) -> tuple[()]:
        return ()


EMPTY_VIEW = _EmptyView()
