"""The ledger's own keys over time: the root announces, retires and disowns them, an operator brings what it signed.

An entry about a key is believed for nothing but its number: the root's signature is checked again, and the refusal that
was due is found from the entries before. What follows from it are the sizes between which each key may sign.
Source: docs/protocol.md 15.7 to 15.10.
"""

from __future__ import annotations

from hashlib import sha256

from verifier.did import encode_did
from verifier.entries import Leaf
from verifier.note import parse_vkey
from verifier.replay.people import People
from verifier.replay.signing import Keys, LedgerKey, lines_of, public_key_of
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.statement import open_key_statement
from verifier.wire import JsonObject, Malformed

IN_FORCE_MAX = 2  # keys of one purpose: readers have time to fetch the document that names the new one
_CALLED_FOR = "the entries before call for the refusal {} (15.10)"
KEY_ACTIONS = ("key.announce", "key.retire", "key.compromise")
ENDED = {"key.retired": "retired", "key.compromised": "compromised"}


def opening_faults(_state: State, leaf: Leaf) -> Faults:
    """Entry 0: its key lines are of this ledger, bounded by nothing yet, each key once, and one of either purpose."""
    lines, root = lines_of(leaf), leaf.text("root")
    good = [line for line in lines if line is not None and line.text.endswith(" 0 - active")]
    public = {line.key.public_key for line in good} | {public_key_of(root)}
    if len(good) != len(lines) or len(public) != len(good) + 1 or b"" in public:
        yield "opening_key_wrong", "keys of entry 0 are lines of this ledger's keys, `0 - active`, and differ (15.8)"
    elif {line.purpose for line in good} < {"log", "receipt"}:
        yield "opening_key_wrong", "entry 0 names no log key, or no receipt key (15.8)"


def key_faults(state: State, leaf: Leaf) -> Faults:
    """`key.announced`, `key.retired`, `key.compromised`: the root wants it, and nothing refuses it; then it is so."""
    keys = state.keys
    yield from _statement_faults(keys, leaf.text("statement"))
    error = key_error(state, leaf)
    if error is not None and error != "operator_required":  # that is said of the actor
        yield error, _CALLED_FOR.format(error)
    purpose, vkey = leaf.text("purpose"), leaf.text("key")
    ended = ENDED.get(leaf.entry_type.name)
    if ended is None:
        keys.add(LedgerKey(purpose, vkey, public_key_of(vkey), leaf.seq))
        keys.committed.pop(purpose, None)
        if "next" in leaf.value:
            keys.committed[purpose] = leaf.text("next")
        return
    key = keys.named(purpose, vkey)
    if key is None:
        return
    if leaf.number("announcedSeq") != key.announced_seq:
        yield "citation_wrong", f"announcedSeq is not {key.announced_seq}, which announced the key (15.10)"
    key.ended_seq, key.status = leaf.seq, ended


def refused_key_faults(state: State, asked: JsonObject | None) -> Faults:
    """A refusal about a key: the root has stated what was asked for. That it is about this key, the evidence shows."""
    if asked is not None:
        yield from _statement_faults(state.keys, str(asked["statement"]))


def _statement_faults(keys: Keys, note: str) -> Faults:
    try:
        open_key_statement(note.encode(), parse_vkey(keys.root), keys.origin, keys.genesis)
    except Malformed as error:
        yield "key_statement_invalid", f"{error} (15.7)"


def key_error(state: State, leaf: Leaf) -> str | None:
    """Return the refusal that `key.announce`, `key.retire` or `key.compromise` calls for."""
    keys, purpose = state.keys, leaf.text("purpose")
    if leaf.actor not in state.people.operators:
        return "operator_required"
    if leaf.action != "key.announce":
        if keys.named(purpose, leaf.text("key")) is None:
            return "key_unknown"
        return "key_last" if len(keys.in_force(purpose)) == 1 else None
    public_key = public_key_of(leaf.text("key"))
    if _is_known(keys, state.people, public_key):
        return "key_known"
    if keys.committed.get(purpose) not in (None, sha256(public_key).hexdigest()):
        return "key_not_committed"
    return "key_overlap" if len(keys.in_force(purpose)) >= IN_FORCE_MAX else None


def _is_known(keys: Keys, people: People, public_key: bytes) -> bool:
    """Say whether a raw key has a role here, or ever signed for the ledger: a signature must have one sense."""
    did = encode_did(public_key)
    is_anybody = did in people.operators or did in people.sessions or did == people.enroller
    return keys.is_own(did) or is_anybody or people.agent(did) is not None
