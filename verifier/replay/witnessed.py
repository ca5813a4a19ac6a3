"""Entries that show a checkpoint: of a second history, or of this one with the signatures of witnesses.

The gateway's clock alone says when an entry was written. A cosignature says when somebody else had seen everything
below a size: what lies below it was not written later, and what comes after its record not earlier. A time counts when
a quorum of the reader's policy says it, so that no single witness with a wrong clock convicts anybody.
Source: docs/protocol.md 12.9, 15.8, 15.12, 17.6, 32.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from verifier.checkpoint import Checkpoint, parse_checkpoint
from verifier.entries import Leaf
from verifier.note import VerifierKey, cosignature_time_s, is_signed_once, line_is_valid, line_matches, parse_vkey
from verifier.policy import Policy, is_quorum_met
from verifier.replay.signing import Keys
from verifier.replay.state import State
from verifier.replay.things import Faults
from verifier.wire import Malformed, encode_base64

TIMES_MAX = 65_536  # of how many of the last entries the time is remembered, as long as no record covers them
LATER_MS = 5_000  # the second of the cosignature is not over before its 999th millisecond
EARLIER_MS = 30_000
RootSeen = Callable[[int, int], bytes | None]  # by size and by the seq of who speaks of it


class Witnessed:
    """What the records of witnessed checkpoints have covered, and the times of the entries that they have not yet."""

    def __init__(self) -> None:
        self.size = 0  # of the largest tree recorded
        self.after_ms = 0  # what comes now is not earlier than this
        self.remarks: list[tuple[str, str]] = []  # about the entry that was looked at last
        self.waiting: tuple[int, int] | None = None  # seq and timeMs of the first entry not covered that is no record
        self._times: deque[int] = deque(maxlen=TIMES_MAX)  # of the last entries; of a record its complement
        self._end = 0  # the seq after the last of them

    def faults(self, leaf: Leaf, *, is_record: bool) -> Faults:
        """An entry is not earlier than what was cosigned before it."""
        if leaf.time_ms < self.after_ms and not is_record:
            yield "earlier_than_cosignature", f"timeMs is below {self.after_ms}, 30 s before a cosignature (17.6)"
        if self.remarks and not is_record:
            self.remarks = []
        self._times.append(~leaf.time_ms if is_record else leaf.time_ms)
        self._end = leaf.seq + 1
        if self.waiting is None and not is_record:
            self.waiting = leaf.seq, leaf.time_ms

    def time_ms(self, seq: int) -> int | None:
        """Return when an entry was written, None when that is no longer known."""
        place = seq - self._end + len(self._times)
        if not 0 <= place < len(self._times):
            return None
        time_ms = self._times[place]
        return ~time_ms if time_ms < 0 else time_ms

    def cover(self, size: int) -> None:
        """The entries below `size` are recorded as witnessed."""
        if size <= self.size:
            return
        self.size, self.waiting = size, None
        while self._times and self._end - len(self._times) < size:
            self._times.popleft()
        start = self._end - len(self._times)
        found = next((place for place, time_ms in enumerate(self._times) if time_ms >= 0), None)
        if found is not None:
            self.waiting = start + found, self._times[found]

    def late(self, witness_ms: int, now_ms: int, size: int) -> Iterator[tuple[str, str]]:
        """Yield a remark when entries below `size` were not witnessed within the published bound."""
        if self.waiting is not None and self.waiting[0] < size and now_ms - self.waiting[1] > witness_ms:
            text = (
                f"entries {self.waiting[0]} to {size - 1} were not below a witnessed checkpoint within {witness_ms} ms"
            )
            yield "unwitnessed", f"{text} (17.6)"


def record_faults(state: State, witnessed: Witnessed, leaf: Leaf, root_seen: RootSeen, policy: Policy | None) -> Faults:
    """`checkpoint.witnessed`: a checkpoint of this very ledger, signed by its keys, at a time that fits its entries."""
    witnessed.remarks = []
    try:
        shown = parse_checkpoint(leaf.text("checkpoint").encode("utf-8"))
    except Malformed as error:
        yield "record_wrong", str(error)
        return
    wrong = list(_record_errors(state.keys, shown, leaf, root_seen))
    yield from wrong
    if wrong:
        return
    if policy is not None and any(_is_forged(shown, key) for key in policy.witnesses.values()):
        yield "witness_invalid", "a line of a pinned witness is not valid (13.3)"
    times = None if policy is None else _cosigned_s(shown, policy)
    if policy is not None and policy.quorum is not None and times is None:
        return  # by no quorum of the reader's: it covers nothing
    if times is not None:
        last_ms, (late_s, early_s) = witnessed.time_ms(shown.size - 1), times
        if last_ms is not None and last_ms > late_s * 1000 + 999 + LATER_MS:
            yield (
                "later_than_cosignature",
                f"entry {shown.size - 1} says {last_ms}, and was cosigned at {late_s} s (17.6)",
            )
        witnessed.after_ms = max(witnessed.after_ms, early_s * 1000 - EARLIER_MS)
    witnessed.remarks = [*witnessed.late(state.numbers["witnessMs"], leaf.time_ms, shown.size)]
    witnessed.cover(shown.size)


def _record_errors(keys: Keys, shown: Checkpoint, leaf: Leaf, root_seen: RootSeen) -> Faults:
    if shown.origin != leaf.origin or root_seen(shown.size, leaf.seq) != shown.root:
        yield "record_wrong", "the checkpoint is not this ledger's at its size (17.6)"
    elif (leaf.number("size"), leaf.text("root")) != (shown.size, encode_base64(shown.root)):
        yield "record_wrong", "size and root are not those of the checkpoint shown (17.6)"
    elif not all(is_signed_once(shown.note, key) for key in keys.of_log(shown.size)):
        yield "log_line_missing", "a log key in force at this size has not signed the checkpoint, or not once (15.8)"


def _cosigned_s(checkpoint: Checkpoint, policy: Policy) -> tuple[int, int] | None:
    """Return by when, and not before when, a quorum saw a checkpoint, in seconds; None when no quorum has signed it."""
    signed = {name: _times_s(checkpoint, key) for name, key in policy.witnesses.items()}
    first, last = ({name: pick(times) for name, times in signed.items() if times} for pick in (min, max))
    by = next(
        (s for s in sorted(first.values()) if is_quorum_met(policy, {it for it in first if first[it] <= s})), None
    )
    since = next(
        (s for s in sorted(last.values(), reverse=True) if is_quorum_met(policy, {it for it in last if last[it] >= s})),
        None,
    )
    return None if by is None or since is None else (by, since)


def _is_forged(checkpoint: Checkpoint, key: VerifierKey) -> bool:
    note = checkpoint.note
    return any(line_matches(line, key) and not line_is_valid(line, key, note.text) for line in note.lines)


def _times_s(checkpoint: Checkpoint, key: VerifierKey) -> list[int]:
    note = checkpoint.note
    lines = [line for line in note.lines if line_matches(line, key) and line_is_valid(line, key, note.text)]
    return [cosignature_time_s(line) for line in lines]


def dispute_faults(keys: Keys, leaf: Leaf, root_seen: RootSeen) -> Faults:
    """Yield (code, text) of why a `ledger.disputed` proves no second history.

    What a log key signed outside its sizes, or at all once it is disowned, nobody believes, so it stops nothing.
    """
    try:
        shown = parse_checkpoint(leaf.text("checkpoint").encode("utf-8"))
    except Malformed as error:
        yield "dispute_unproven", str(error)
        return
    good = [parse_vkey(key.vkey) for key in keys.all if key.purpose == "log" and key.speaks(shown.size)]
    if shown.origin != leaf.origin or not any(is_signed_once(shown.note, key) for key in good):
        yield (
            "dispute_unproven",
            "the checkpoint shown is not of this ledger and signed by a log key of its (12.9, 15.12)",
        )
    if (leaf.number("size"), leaf.text("root")) != (shown.size, encode_base64(shown.root)):
        yield "dispute_unproven", "size and root are not those of the checkpoint shown"
    if root_seen(shown.size, leaf.seq) == shown.root:
        yield "dispute_unproven", "the checkpoint shown is this ledger's own, so it contradicts nothing"
