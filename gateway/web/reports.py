"""Reports of checkpoints: how anybody can stop a gateway that has two histories, and nobody can stop an honest one."""

from __future__ import annotations

import logging

import orjson

from gateway.core.dispute import is_contradiction, open_own_checkpoint
from gateway.core.record_keys import DISPUTE_KEY
from gateway.ledger.cosigned import own_note
from gateway.ledger.sequencer import Sequencer
from gateway.web.connection import Reply
from gateway.web.house import JSON, House
from gateway.web.problem import Refusable
from gateway.web.reads import root_at
from gateway.web.routes import Call, plain
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.note import encode_note, line_matches
from verifier.wire import Malformed

_log = logging.getLogger("tallystick.reports")
_EVERYBODY = "everybody"
_NOTE_BYTES_MAX = 20_480  # with the lines of as many witnesses as there may be; of these none becomes part of an entry


async def report(house: House, call: Call) -> Reply:
    """Take a checkpoint that somebody holds, and stop granting when our own log key contradicts us in it.

    Only our own signature counts. Without it nobody, whatever they claim, can stop this ledger; with it the ledger has
    two histories, by theft of the key or by an old back-up, and granting on either would break promises.
    """
    if not call.request.headers.get("Content-Type", "").startswith("text/plain"):
        raise Refusable("content_type_wrong", "A checkpoint is sent as text/plain.")
    body = await call.request.read(house.body_seconds)
    _check_claim(house, body)
    house.reports.take(call.request.remote)
    house.all_reports.take(_EVERYBODY)
    found = _our_checkpoint(house, body)
    is_contradiction = await _contradicts(house, found)
    if is_contradiction:
        was_disputed = is_disputed(house.sequencer)
        await house.sequencer.dispute(encode_note(found.note), found)
        if not was_disputed:
            log_dispute(f"a checkpoint of {found.size} entries was shown")
    call.fields["isContradiction"] = is_contradiction
    return plain(orjson.dumps({"ok": True, "isContradiction": is_contradiction, "size": found.size}), JSON)


def is_disputed(sequencer: Sequencer) -> bool:
    """Say whether a second history was proven, so that nothing is granted any more."""
    return sequencer.view.get(DISPUTE_KEY) is not None


def log_dispute(what: str) -> None:
    """Tell the operator, who must act: nothing in the gateway can."""
    _log.error("this ledger is disputed and grants nothing: %s that our log key signed over another history", what)


def _check_claim(house: House, body: bytes) -> None:
    """Turn away what does not even claim to be ours, before it costs others anything.

    Everybody shares one allowance of verifications. If any bytes could use it up, a stranger could keep the one who
    holds the proof of a second history from showing it.
    """
    if len(body) > _NOTE_BYTES_MAX:
        raise Refusable("not_a_checkpoint", f"A checkpoint has {_NOTE_BYTES_MAX} bytes at most.")
    try:
        checkpoint = parse_checkpoint(body)
    except Malformed as error:
        raise Refusable("not_a_checkpoint", str(error)) from None
    keys = house.signer.own_keys(checkpoint.size)
    if not any(line_matches(line, key) for line in checkpoint.note.lines for key in keys):
        raise Refusable("not_a_checkpoint", "No signature line is by a log key of this ledger that may sign this size.")


def _our_checkpoint(house: House, body: bytes) -> Checkpoint:
    """Return the checkpoint in `body`, with our own lines alone, if our log key signed it: one in whose bounds it lies,
    and not disowned.

    Else a thief of the key, or whoever finds a retired one, could stop this ledger with what no reader would believe.
    """
    try:
        checkpoint = parse_checkpoint(body)
        own_keys = house.signer.own_keys
        return open_own_checkpoint(own_note(checkpoint, own_keys), own_keys(checkpoint.size))
    except Malformed as error:
        raise Refusable("not_a_checkpoint", str(error)) from None


async def _contradicts(house: House, found: Checkpoint) -> bool:
    """Say whether the (size, root) is not ours. What we signed we had committed, so a larger tree is not ours."""
    if not await house.news.reached(found.size):  # Busy while that is not known: then nothing is concluded from it
        return is_contradiction(found, None)
    return is_contradiction(found, await house.reads.call(lambda reader: root_at(reader, found.size)))
