"""What a gateway asks its witnesses before it writes a word: whether they have seen more of this ledger than it has.

A ledger that was restored from an older copy looks whole from inside. If it went on, it would give numbers, tokens and
leases a second time, under the same keys. Its witnesses remember. Only a checkpoint with our own valid signature
counts: a size alone, or somebody else's word, keeps no gateway from starting.

Source: docs/protocol.md 32.7; security.md §6, §7.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.clock import BEHIND_MS_MAX
from gateway.errors import Fatal
from gateway.ledger.cosigned import OwnKeys, Witness, Witnesses, open_own, origin_path, valid_lines
from gateway.ledger.witness_http import Unanswered, Web
from verifier.checkpoint import Checkpoint
from verifier.note import cosignature_time_s
from verifier.policy import is_quorum_met

GAP_MS_MAX = 86_400_000  # between the newest witnessed time and the wall clock, without an operator's word
_log = logging.getLogger("tallystick.witness")


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one witness showed: a checkpoint of ours, or None. `trouble` is why nothing is known of it, else ""."""

    witness: Witness
    checkpoint: Checkpoint | None = None
    trouble: str = ""


async def look_around(
    witnesses: Witnesses, origin: str, web: Web, own_keys: OwnKeys, timeout_ms: int
) -> list[Sighting]:
    """Read what every witness shows of this log, all at once. Never raises: who does not answer has a `trouble`."""
    looks = (_look(one, origin, web, own_keys, timeout_ms) for one in witnesses.members)
    return list(await asyncio.gather(*looks))


async def _look(witness: Witness, origin: str, web: Web, own_keys: OwnKeys, timeout_ms: int) -> Sighting:
    try:
        answer = await web.ask("GET", f"{witness.url}/{origin_path(origin)}", None, timeout_ms)
    except Unanswered as error:
        return Sighting(witness, trouble=str(error))
    if answer.status == 404:
        return Sighting(witness)
    checkpoint = open_own(answer.body, origin, own_keys) if answer.status == 200 else None
    if checkpoint is None:
        return Sighting(witness, trouble=f"status {answer.status} without a checkpoint that our log key signed")
    return Sighting(witness, checkpoint)


def check_sightings(
    witnesses: Witnesses, sightings: Sequence[Sighting], size: int, root_at: Callable[[int], bytes], is_required: bool
) -> None:
    """Fatal when a witness has seen what is not in this ledger of `size` entries; when too few of them answer it is a
    warning, or Fatal where that `is_required`."""
    for one in sightings:
        if one.checkpoint is not None:
            _check_sighting(one.witness, one.checkpoint, size, root_at)
        elif one.trouble:
            _log.warning("witness %s could not be asked what it has seen: %s", one.witness.name, one.trouble)
    if is_heard(witnesses, sightings):
        return
    if is_required:
        raise Fatal(
            "too few witnesses say what they have seen, so nobody could notice that this ledger is an older copy; check"
            " that they answer, or set witnessRequired to false for this start"
        )
    _log.warning("too few witnesses say what they have seen; this ledger may be an older copy without anybody noticing")


def is_heard(witnesses: Witnesses, sightings: Sequence[Sighting]) -> bool:
    """Say whether as many witnesses answered as the policy's quorum has."""
    return is_quorum_met(witnesses.policy, {one.witness.name for one in sightings if not one.trouble})


def _check_sighting(witness: Witness, seen: Checkpoint, size: int, root_at: Callable[[int], bytes]) -> None:
    if seen.size > size:
        raise Fatal(
            f"witness {witness.name} holds a checkpoint of {seen.size} entries that our log key signed, and this ledger"
            f" ends at {size}: an older copy was put in place of it. Bring back the newest file. If that is lost, this"
            " ledger is at its end: open a new one, and never serve this copy"
        )
    if root_at(seen.size) != seen.root:
        raise Fatal(
            f"witness {witness.name} holds a checkpoint of {seen.size} entries that our log key signed, and the first"
            f" {seen.size} entries of this ledger are others: it is another history under the same keys. Find out who"
            " ran it; bring back the file that the witness has seen, or open a new ledger"
        )


def check_clock(witnesses: Witnesses, checkpoints: Iterable[Checkpoint], now_ms: int, *, is_accepted: bool) -> None:
    """Fatal when the wall clock is behind the newest time that a witness signed, or more than a day after it.

    An operator's word overrules it (`is_accepted`): a gateway may have been away for long, or a witness be wrong.
    """
    times = [
        (1_000 * cosignature_time_s(line), name)
        for checkpoint in checkpoints
        for name, line in valid_lines(checkpoint, witnesses.policy.witnesses).items()
    ]
    if not times or is_accepted:
        return
    newest_ms, name = max(times)
    if newest_ms - now_ms > BEHIND_MS_MAX or now_ms - newest_ms > GAP_MS_MAX:
        off = f"{(now_ms - newest_ms) / 1_000:+.0f} s"
        raise Fatal(
            f"this machine's clock is {off} from the newest time that a witness signed ({name}); set the clock. If it"
            " is right, because this gateway was away for more than a day, start once with --accept-clock"
        )
