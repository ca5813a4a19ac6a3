"""Many commands in one request: a header that has the evidence, then the answer to each command, in order.

The answers follow without a gap, and nothing is settled before the last of them. Each is judged as if it had come by
itself; here it is asked whether it stands where it must, and answers what was asked.
Source: docs/protocol.md 31.
"""

from __future__ import annotations

from verifier.entries import Leaf, body_difference, command_body, rows_of
from verifier.replay.judged import Judged
from verifier.replay.things import Faults
from verifier.wire import JsonObject


class Batch:
    """The batch whose answers are under way, if there is one."""

    __slots__ = ("_entry", "_header", "_left")

    def __init__(self) -> None:
        self._header: Leaf | None = None
        self._entry: Judged | None = None
        self._left = 0

    def __bool__(self) -> bool:
        """Say whether an answer has still to come."""
        return self._left > 0

    def begin(self, leaf: Leaf, entry: Judged) -> None:
        # Its answers ask for nothing else of it, and a position that is saved need not know of more classes.
        self._header, self._entry = leaf._replace(request=None), entry._replace(leaf=None, anchor=None, chain=None)
        self._left = leaf.number("count")

    def place_faults(self, leaf: Leaf) -> Faults:
        """Do answers follow their batch, all of them, and nothing else? One that is malformed was told as such."""
        header, is_due = self._header, self._left > 0
        last = -1 if header is None else header.seq + header.number("count")
        is_answer = header is not None and leaf.batch is not None and leaf.batch[0] == header.seq and leaf.seq <= last
        if header is not None and is_due and is_answer:
            self._left = last - leaf.seq
            return
        self._left = 0
        if is_due:
            yield "batch_broken", "an answer to each command of the batch comes right after it, and nothing else (31.2)"
        if leaf.batch is not None:
            self._header = self._entry = None
            yield "batch_afar", "request names a batch that this entry does not follow (31.2)"

    def answer_faults(self, leaf: Leaf) -> Faults:
        """What an answer has in common with its batch, and what its command asked."""
        header, body = self._header, None if self._entry is None else self._entry.asked
        if header is None or leaf.batch is None:
            return
        if _sides(leaf) != _sides(header):
            yield "batch_differs", "time, actor and custody of a command are those of its batch (31.2)"
        if header.value["isAtomic"] is True and "error" in leaf.value:
            yield "batch_refusal_due", "an atomic batch with a refusal in it is refused as a whole (31.4)"
        command = None if body is None else _command(body, leaf.batch[1])
        if body is None or command is None:  # said of the batch
            return
        if command["action"] != leaf.action:
            yield "body_differs", f"command {leaf.batch[1]} of the batch asks for another action (31.2)"
            return
        asked = command_body(body, leaf.batch[1])
        difference = body_difference(leaf, asked)
        if difference is not None:
            yield "body_differs", f"member {difference} of the leaf is not what its command asks for (31.2)"
        if self.answer(leaf).is_blind and leaf.number("grantedAtMs") >= (self._created_s + 1) * 1000:
            yield "released_unseen", "without leaseId no lease ends that was granted after the batch was signed (31.3)"

    def answer(self, leaf: Leaf) -> Judged:
        """Return an answer with what its batch knows of it."""
        assert self._entry is not None and leaf.batch is not None, "of an answer in its place"
        body = self._entry.asked
        command = None if body is None else _command(body, leaf.batch[1])
        is_blind = command is not None and leaf.entry_type.name == "lease.released" and "leaseId" not in command
        given = self._entry.given[leaf.batch[1] :][:1]
        return self._entry._replace(leaf=leaf, faults=(), anchor=None, asked=command, is_blind=is_blind, given=given)

    @property
    def is_known(self) -> bool:
        """Say whether the header of the entry looked at is at hand."""
        return self._entry is not None

    @property
    def _created_s(self) -> int:
        return 0 if self._entry is None else self._entry.created_s


def _command(body: JsonObject, index: int) -> JsonObject | None:
    commands = rows_of(body["commands"])
    return commands[index] if index < len(commands) else None


def _sides(leaf: Leaf) -> tuple[object, ...]:
    return leaf.time_ms, leaf.actor, leaf.principal, leaf.on_behalf_of, leaf.value.get("custody")
