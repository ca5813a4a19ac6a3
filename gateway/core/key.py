"""Keys of the gateway over time: the root announces, retires and disowns what signs checkpoints and receipts.

Two signatures are needed for each step: the root's under the statement, which says what shall be, and an operator's
under the request, which brings it. Neither of them alone changes anything. From which tree, and up to which, a key
counts follows from the number of its entry alone, so every reader of the ledger finds the same bounds.

At most two keys of a purpose are in force, so that readers have time to fetch the new document; never none.
Source: docs/protocol.md 15.7 to 15.10; security.md §14.
"""

from __future__ import annotations

from hashlib import sha256

from gateway.core import refusal
from gateway.core.authority import is_agent, is_operator, is_spoken_for
from gateway.core.draft import Draft
from gateway.core.intake import SignedRequest
from gateway.core.lookup import keys_at, ledger_key_at
from gateway.core.outcome import Context, Decision, granted, refused
from gateway.core.record_keys import ROOT_KEY, key_in_ledger, keys_key
from gateway.core.records import Keys, LedgerKey, Root
from gateway.core.refusal import Refusal
from verifier.did import encode_did
from verifier.entries import PURPOSES
from verifier.keyring import KeyLine
from verifier.note import VerifierKey, parse_vkey
from verifier.statement import KeyStatement, open_key_statement
from verifier.wire import JsonObject

OVERLAP_MAX = 2  # keys of one purpose in force: the old one and the new one


def announce(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Put a key in force beside the one that is. It counts from the next entry on."""
    stated = _stated(draft, request, context)
    said: JsonObject = {"purpose": stated.purpose, "key": stated.key.vkey}
    why = _unannounceable(draft, request.actor, stated, context.t_ms)
    if why is not None:
        return refused("announcement.refused", why, said)
    keys = keys_at(draft, stated.purpose)
    draft.put(_place(stated.key), LedgerKey(stated.purpose, stated.key.vkey, context.seq))
    draft.put(keys_key(stated.purpose), Keys(stated.purpose, (*keys.in_force, stated.key.vkey), stated.next))
    following: JsonObject = {} if stated.next is None else {"next": stated.next}
    return granted("key.announced", {**said, **following, "statement": request.text("statement")})


def retire(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Take a key out of force. What it signed so far stays as true as it was."""
    return _end(draft, request, context, is_compromised=False)


def compromise(draft: Draft, request: SignedRequest, context: Context) -> Decision:
    """Disown a key that somebody else may have. What it signed needs other proof from now on."""
    return _end(draft, request, context, is_compromised=True)


def line_of(key: LedgerKey) -> KeyLine:
    """Return the bounds of a key as the key document states them; what a disowned one signed last stands there only."""
    return KeyLine(key.purpose, parse_vkey(key.vkey), key.from_size, key.to_size, _status(key))


def first_records(root: str, lines: tuple[str, ...], following: JsonObject) -> dict[str, Root | LedgerKey | Keys]:
    """Return the records that entry 0 makes of its `root`, its key lines, and the hashes of the next keys."""
    keys = [LedgerKey(purpose, vkey, 0) for purpose, vkey, *_ in (line.split(" ") for line in lines)]
    records: dict[str, Root | LedgerKey | Keys] = {ROOT_KEY: Root(root)}
    records |= {_place(parse_vkey(key.vkey)): key for key in keys}
    for purpose in PURPOSES:
        in_force = tuple(key.vkey for key in keys if key.purpose == purpose)
        committed = following.get(purpose)
        records[keys_key(purpose)] = Keys(purpose, in_force, committed if isinstance(committed, str) else None)
    return records


def _end(draft: Draft, request: SignedRequest, context: Context, *, is_compromised: bool) -> Decision:
    stated = _stated(draft, request, context)
    said: JsonObject = {"purpose": stated.purpose, "key": stated.key.vkey}
    why = _unendable(draft, request.actor, stated)
    known = ledger_key_at(draft, _did(stated.key))
    if why is not None or known is None:
        return refused(
            "disowning.refused" if is_compromised else "retirement.refused", why or refusal.KEY_UNKNOWN, said
        )
    keys = keys_at(draft, stated.purpose)
    left = tuple(vkey for vkey in keys.in_force if vkey != known.vkey)
    draft.put(_place(stated.key), known._replace(ended_seq=context.seq, is_compromised=is_compromised))
    draft.put(keys_key(stated.purpose), keys._replace(in_force=left))
    said |= {"announcedSeq": known.announced_seq, "statement": request.text("statement")}
    return granted("key.compromised" if is_compromised else "key.retired", said)


def _stated(draft: Draft, request: SignedRequest, context: Context) -> KeyStatement:
    """Return what the root states. The door has turned away what it didn't sign; here that would be a failed decision.

    Malformed: not a statement of this ledger's root, or of another verb than the action.
    """
    root = draft.get(ROOT_KEY)
    assert isinstance(root, Root), "entry 0 names the root"
    note, origin, genesis = request.text("statement").encode(), request.text("ledger"), bytes.fromhex(context.genesis)
    stated = open_key_statement(note, parse_vkey(root.vkey), origin, genesis)
    assert request.action == f"key.{stated.verb}", "the door compares the statement with the action"
    return stated


def _unannounceable(draft: Draft, actor: str, stated: KeyStatement, t_ms: int) -> Refusal | None:
    keys = keys_at(draft, stated.purpose)
    if not is_operator(draft, actor):
        return refusal.OPERATOR_REQUIRED
    if _is_known(draft, stated.key, t_ms):
        return refusal.KEY_KNOWN
    if keys.next_hash is not None and sha256(stated.key.public_key).hexdigest() != keys.next_hash:
        return refusal.KEY_NOT_COMMITTED
    return refusal.KEY_OVERLAP if len(keys.in_force) >= OVERLAP_MAX else None


def _unendable(draft: Draft, actor: str, stated: KeyStatement) -> Refusal | None:
    in_force = keys_at(draft, stated.purpose).in_force
    if not is_operator(draft, actor):
        return refusal.OPERATOR_REQUIRED
    if stated.key.vkey not in in_force:
        return refusal.KEY_UNKNOWN
    return refusal.KEY_LAST if len(in_force) == 1 else None


def _is_known(draft: Draft, key: VerifierKey, t_ms: int) -> bool:
    """Say whether this raw key has a role here, or ever signed for the ledger: a signature must have one sense."""
    did = _did(key)
    return is_agent(draft, did) or is_operator(draft, did) or is_spoken_for(draft, did, t_ms)


def _status(key: LedgerKey) -> str:
    if key.ended_seq is None:
        return "active"
    return "compromised" if key.is_compromised else "retired"


def _did(key: VerifierKey) -> str:
    return encode_did(key.public_key)


def _place(key: VerifierKey) -> str:
    return key_in_ledger(_did(key))
