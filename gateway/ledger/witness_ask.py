"""One exchange with one witness: our newest checkpoint goes there, its cosignature comes back, or what is wrong.

What a witness says is believed as far as signatures go: its line under the key that is pinned for it, and a checkpoint
of ours that it shows under our own. Its status and the size in a 409 are hints.
Source: docs/protocol.md 32.2 to 32.4; C2SP tlog-witness v1.0.0.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gateway.errors import Busy
from gateway.ledger.cosigned import (
    WITNESSES_FILE,
    Gathering,
    OwnKeys,
    Witness,
    add_checkpoint_body,
    open_own,
    origin_path,
    own_note,
    read_cosignature,
    told_size,
)
from gateway.ledger.history import Confirmed
from gateway.ledger.witness_http import Answer, Unanswered, Web
from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.note import SignatureLine, cosignature_time_s
from verifier.wire import Malformed

LATE_MS_MAX = 5_000  # an auditor convicts entries that are later than a cosignature above them by more
EARLY_MS_MAX = 30_000  # or earlier than one below them by more (docs/protocol.md 32.6)
ALARMS: Mapping[int, str] = {
    400: "it finds the request malformed",
    403: "it does not know our log key: add the log to it again, with the key lines of the newest key document",
    404: "it does not know this log: have it added there",
    413: "the request is too large for it",
    422: "it holds a tree that our proof does not lead from",
}
_log = logging.getLogger("tallystick.witness")


class Alarm(Exception):
    """A witness said or sent what is not put right by asking again; the text says what a person should do."""


class Overtaken(Exception):
    """Somebody else has submitted a newer checkpoint of ours meanwhile, as feeders of public witnesses do."""


class Ledger(Protocol):
    """What is asked of the sequencer."""

    @property
    def confirmed(self) -> Confirmed: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def entries(self) -> Mapping[str, int]: ...
    async def catch_up(self) -> None: ...
    async def witness(self, note: bytes, checkpoint: Checkpoint) -> None: ...
    async def dispute(self, note: bytes, checkpoint: Checkpoint) -> None: ...
    def keep_cosigned(self, note: bytes, checkpoint: Checkpoint) -> None: ...


@dataclass(frozen=True, slots=True)
class Tree:
    """Our own tree, read beside the sequencer: consistency proofs, and the root at a size."""

    prove: Callable[[int, int], Awaitable[Sequence[bytes]]]
    root_at: Callable[[int], Awaitable[bytes]]


@dataclass(slots=True)
class Standing:
    """How it goes with one witness. `size` is what it last had, `success_ms` the log time of its last line.

    `alarm` is why it is left alone, "" while it is not.
    """

    witness: Witness
    size: int = 0
    failures: int = 0
    failures_in_a_row: int = 0
    success_ms: int = 0
    rests_until_ms: int = 0
    alarm: str = ""
    is_asked: bool = False


class Exchange:
    """Asks witnesses for their lines; keeps nothing but what it writes into their standings."""

    def __init__(
        self, ledger: Ledger, origin: str, *, web: Web, tree: Tree, own_keys: OwnKeys, timeout_ms: int
    ) -> None:
        self.contradictions = 0
        """How often a witness showed that this ledger has a second history."""
        self._ledger = ledger
        self._origin = origin
        self._web = web
        self._tree = tree
        self._own_keys = own_keys
        self._timeout_ms = timeout_ms

    async def line(self, standing: Standing, gathering: Gathering) -> SignatureLine:
        """Return a witness's line over the checkpoint that is gathered for.

        Alarm: a person has to look. Unanswered, Malformed: another time. Overtaken: with a newer one.
        """
        if standing.alarm:
            await self._look(standing)
        answer = await self._submit(standing, gathering.target)
        if answer.status == 409:
            standing.size = told_size(answer.body)
            if standing.size > gathering.target.size:
                await self._check_ahead(standing, standing.size)
            answer = await self._submit(standing, gathering.target)
        return await self._opened(standing, gathering, answer)

    async def _check_ahead(self, standing: Standing, told: int) -> None:
        """Raise what is to be thought of a witness that says it has more than it was sent."""
        await self._reach(told)
        if told <= self._ledger.confirmed.size:
            raise Overtaken
        await self._look(standing)
        raise Unanswered(
            f"it says that it has {told} entries, more than there are, and shows no such checkpoint of ours"
        )

    async def _submit(self, standing: Standing, target: Confirmed) -> Answer:
        """Send a checkpoint, with the proof from what the witness has."""
        old = min(standing.size, target.size)
        proof = await self._tree.prove(old, target.size) if 0 < old < target.size else ()
        body = add_checkpoint_body(old, proof, target.note)
        return await self._web.ask("POST", f"{standing.witness.url}/add-checkpoint", body, self._timeout_ms)

    async def _opened(self, standing: Standing, gathering: Gathering, answer: Answer) -> SignatureLine:
        """Return the line in the answer to a submission."""
        if answer.status == 200:
            return self._verified(standing, gathering, answer.body)
        if answer.status == 422:
            with suppress(Unanswered):  # it is an alarm all the same
                await self._look(standing)
        if answer.status in ALARMS:
            raise Alarm(f"{answer.status}: {ALARMS[answer.status]}")
        why = "409 twice: somebody else submits this log" if answer.status == 409 else f"status {answer.status}"
        raise Unanswered(f"it answers {why}", answer.retry_after_s)

    def _verified(self, standing: Standing, gathering: Gathering, body: bytes) -> SignatureLine:
        """Return the line if it is the witness's own, and of a time that this ledger's entries may stand beside."""
        try:
            line = read_cosignature(body, standing.witness.key, parse_checkpoint(gathering.target.note).note.text)
        except Malformed as error:
            raise Alarm(f"{error}; compare its key with {WITNESSES_FILE}") from error
        time_ms = 1_000 * cosignature_time_s(line)
        if time_ms + 999 + LATE_MS_MAX < gathering.log_ms or time_ms - EARLY_MS_MAX > self._ledger.time_ms:
            off_s = (time_ms - self._ledger.time_ms) / 1_000
            raise Unanswered(f"its clock is {off_s:+.0f} s off ours, so its line can't stand in the ledger")
        return line

    async def _look(self, standing: Standing) -> None:
        """Read the witness's own checkpoint; Alarm when it proves that this ledger has a second history."""
        url = f"{standing.witness.url}/{origin_path(self._origin)}"
        answer = await self._web.ask("GET", url, None, self._timeout_ms)
        shown = open_own(answer.body, self._origin, self._own_keys) if answer.status == 200 else None
        if shown is None:
            return
        await self._reach(shown.size)
        if shown.size > self._ledger.confirmed.size or await self._tree.root_at(shown.size) != shown.root:
            await self._dispute(shown)
            raise Alarm("it holds a checkpoint of ours that is not of this ledger")
        standing.size = shown.size

    async def _reach(self, size: int) -> None:
        """Know all of this ledger before it is called shorter than `size`: another node may have written and shown it.

        Unanswered while that can't be found out.
        """
        if size > self._ledger.confirmed.size:
            try:
                await self._ledger.catch_up()
            except Busy as busy:
                raise Unanswered(f"whether this ledger has {size} entries is not known now: {busy}") from busy

    async def _dispute(self, shown: Checkpoint) -> None:
        """Stop all grants: our own key speaks against us."""
        if not self.contradictions:
            _log.critical(
                "this ledger is disputed and grants nothing: a witness holds a checkpoint of %d entries that our log"
                " key signed over another history, as after the restore of an older back-up",
                shown.size,
            )
        self.contradictions += 1
        await self._ledger.dispute(own_note(shown, self._own_keys), shown)
