"""What a sequencer counts, and who is told of the stages of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Trace(Protocol):
    """Is told when a stage of a batch of `count` entries ends; the bench measures with it. None costs nothing.

    Stages, in order: locked, decided, built, committed, signed, checked, delivered.
    """

    def __call__(self, stage: str, count: int, /) -> None: ...


@dataclass(slots=True)
class Counters:
    """What happened since the start; read by the metrics. `followed` are batches that other nodes wrote."""

    batches: int = 0
    receipts: int = 0
    replays: int = 0
    refused: int = 0
    busy: int = 0
    recoveries: int = 0
    abandoned: int = 0
    forgotten: int = 0
    shared_sessions: int = 0
    followed: int = 0
    stalls: int = 0
