"""Has our checkpoints cosigned by witnesses, off everybody's path.

House rules of this file:

* Nobody who asks for a decision waits for a witness. Each witness is at most one task, one connection and one bounded
  answer; one that is dead or slow holds up no other, only what needs its own line.
* Only what is confirmed is submitted: committed, and signed. A crash can't undo what a witness has seen.
* All witnesses are asked about the same checkpoint until their quorum is there; then about the newest. The whole note
  is kept, and now and then written into the ledger.
* A size that a witness tells is a hint. What counts is a checkpoint there with our own valid signature: if that is not
  of this ledger, this ledger has a second history, and grants nothing from then on.
* 400, 403, 404, 413 and 422 are alarms: a person has to look, and after a long rest the witness's own checkpoint is
  read before anything is sent to it again. Everything else is tried again, ever more slowly.

Source: docs/protocol.md 32; C2SP tlog-witness v1.0.0; docs/adr/0037.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.clock import Clocks
from gateway.errors import Busy, Fatal
from gateway.ledger.cosigned import Gathering, OwnKeys, Witnesses, open_own, valid_lines
from gateway.ledger.history import Confirmed
from gateway.ledger.witness_ask import Alarm, Exchange, Ledger, Overtaken, Standing, Tree
from gateway.ledger.witness_http import Unanswered, Web
from verifier.checkpoint import parse_checkpoint
from verifier.note import SignatureLine
from verifier.policy import is_quorum_met
from verifier.wire import Malformed

POLL_MS = 250  # how often it is looked whether there is something to do: two comparisons
ROUND_MS = 1_000  # between two checkpoints: witnesses of the public network allow some 10 requests a second for all
BACKOFF_MS_MAX = 60_000
ALARM_REST_MS = 600_000
WITNESSED = "checkpoint.witnessed"
Work: TypeAlias = Coroutine[Any, Any, None]
_log = logging.getLogger("tallystick.witness")


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in ms: between two cosignatures of a quiet ledger, between two entries, for one request, and until an
    entry that no witness has seen is an alarm."""

    refresh_ms: int
    entry_ms: int
    timeout_ms: int
    overdue_ms: int


class Witnessing:
    """Asks the witnesses of one gateway. `start` once, then `run` until cancelled; `newest` is what they gave.

    Of the nodes of a ledger one asks at a time. While this one is not `is_on_duty`, somebody tells it with `learn` what
    another one got.
    """

    def __init__(
        self, ledger: Ledger, origin: str, witnesses: Witnesses, *,
        web: Web, tree: Tree, clock: Clocks, pace: Pace, own_keys: OwnKeys,
        is_on_duty: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.standings = tuple(map(Standing, witnesses.members))
        self.newest: Confirmed | None = None
        """The newest checkpoint that the quorum cosigned, with the whole note."""
        self._ledger = ledger
        self._origin = origin
        self._policy = witnesses.policy
        self._exchange = Exchange(ledger, origin, web=web, tree=tree, own_keys=own_keys, timeout_ms=pace.timeout_ms)
        self._tree = tree
        self._clock = clock
        self._pace = pace
        self._own_keys = own_keys
        self._is_on_duty = is_on_duty
        self._gathering: Gathering | None = None
        self._seen_size, self._seen_ms = ledger.confirmed.size, clock.boottime_ms()  # as `learn` saw it last
        self._covered_ms = clock.boottime_ms()  # all that was confirmed by then is below `newest`
        self._newest_begun_ms = 0
        self._newest_others = 0
        self._entered_others = 0
        self._entered_ms: int | None = None
        self._is_entering = False
        self._is_overdue = False

    async def start(self, kept: bytes | None, sizes: Mapping[str, int]) -> None:
        """Go on from the note that was kept; `sizes` are those that the witnesses showed at the start, by name."""
        for standing in self.standings:
            standing.size = sizes.get(standing.witness.name, 0)
        if kept is not None:
            await self.learn(kept)

    async def learn(self, kept: bytes) -> None:
        """Take over a note that was kept, if it is newer, of this tree, and the quorum of today stands for it."""
        confirmed, now_ms = self._ledger.confirmed, self._clock.boottime_ms()
        checkpoint = open_own(kept, self._origin, self._own_keys)
        known = 0 if self.newest is None else self.newest.size
        if checkpoint is not None and known < checkpoint.size <= confirmed.size:
            is_met = is_quorum_met(self._policy, valid_lines(checkpoint, self._policy.witnesses).keys())
            if is_met and await self._tree.root_at(checkpoint.size) == checkpoint.root:
                self.newest = Confirmed(checkpoint.size, checkpoint.root, kept)
        if self.newest is not None and self.newest.size >= self._seen_size:
            self._covered_ms = max(self._covered_ms, self._seen_ms)
            self._seen_size, self._seen_ms = confirmed.size, now_ms

    # -- figures ------------------------------------------------------------------------------------------------------

    @property
    def lag_entries(self) -> int:
        """Return how many confirmed entries no quorum has cosigned yet."""
        return self._ledger.confirmed.size - (self.newest.size if self.newest else 0)

    @property
    def lag_ms(self) -> int:
        """Return how long the oldest of them has waited, at most: counted from the start for those before it."""
        return self._clock.boottime_ms() - self._covered_ms if self.lag_entries else 0

    @property
    def contradictions(self) -> int:
        """Return how often a witness showed that this ledger has a second history."""
        return self._exchange.contradictions

    @property
    def is_overdue(self) -> bool:
        """Say whether that is longer than entry 0 promises."""
        return self._is_overdue

    def figures(self, name: str) -> dict[str, float]:
        """Return one number of each witness, by the policy's name."""
        reads: Mapping[str, Callable[[Standing], float]] = {
            "size": lambda one: one.size,
            "failures": lambda one: one.failures,
            "success_seconds": lambda one: one.success_ms / 1_000,
            "alarm": lambda one: bool(one.alarm),
        }
        return {one.witness.name: float(reads[name](one)) for one in self.standings}

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Ask for ever. Nothing that a witness does ends it."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    for work in self.turn():
                        tasks.create_task(work)
                except Exception:
                    _log.exception("a look at what is to be witnessed failed")
                await asyncio.sleep(POLL_MS / 1_000)

    def turn(self) -> list[Work]:
        """Look what is to be done now, and return it: one piece for each witness to be asked, one for an entry."""
        self._measure()
        if not self._is_on_duty():
            return []
        gathering, now_ms = self._picked(), self._clock.boottime_ms()
        work: list[Work] = []
        for standing in self.standings:
            is_free = not standing.is_asked and standing.rests_until_ms <= now_ms
            if is_free and standing.witness.name not in gathering.asked:
                standing.is_asked = True
                work.append(self._ask(standing, gathering))
        if self._is_entry_due():
            self._is_entering = True
            work.append(self._enter())
        return work

    def _measure(self) -> None:
        """Tell it once when entries have waited for too long, and once when that is over."""
        if self.lag_entries == 0:
            self._covered_ms = self._clock.boottime_ms()
        is_overdue = self.lag_ms > self._pace.overdue_ms
        if is_overdue and not self._is_overdue:
            _log.critical(
                "no quorum of witnesses has seen the last %d entries for longer than the %d s that entry 0 promises"
                " (witnessMs); see above which of them fail",
                self.lag_entries,
                self._pace.overdue_ms // 1_000,
            )
        if self._is_overdue and not is_overdue:
            _log.warning("the quorum of witnesses has seen the entries that were overdue")
        self._is_overdue = is_overdue

    def _picked(self) -> Gathering:
        """Return the checkpoint that witnesses are asked about: the newest, once there is no more to come of the last
        one, or a quiet ledger's again. Then the older lines stay until newer ones come."""
        current, confirmed, now_ms = self._gathering, self._ledger.confirmed, self._clock.boottime_ms()
        if current is not None and not self._is_over(current, confirmed, now_ms):
            return current
        others = confirmed.size - self._ledger.entries.get(WITNESSED, 0)
        lines = current.lines if current is not None and current.is_of(confirmed) else {}
        self._gathering = Gathering(confirmed, now_ms, self._ledger.time_ms, others, dict(lines))
        return self._gathering

    def _is_over(self, current: Gathering, confirmed: Confirmed, now_ms: int) -> bool:
        age_ms = now_ms - current.begun_ms
        if current.is_of(confirmed):
            return age_ms >= self._pace.refresh_ms
        is_settled = is_quorum_met(self._policy, current.lines.keys()) or not any(
            one.is_asked for one in self.standings
        )
        return age_ms >= ROUND_MS and (is_settled or age_ms >= self._pace.timeout_ms)

    async def _ask(self, standing: Standing, gathering: Gathering) -> None:
        """Ask one witness for its line; whatever comes of it, others go on."""
        try:
            self._take(standing, gathering, await self._exchange.line(standing, gathering))
        except Overtaken:
            standing.rests_until_ms = self._clock.boottime_ms() + ROUND_MS
        except Alarm as alarm:
            self._ring(standing, str(alarm))
        except (Unanswered, Malformed) as error:
            self._back_off(standing, str(error), getattr(error, "retry_after_s", 0))
        except Exception as error:
            _log.exception("asking witness %s failed", standing.witness.name)
            self._back_off(standing, type(error).__name__)
        finally:
            standing.is_asked = False

    # -- what came of it ----------------------------------------------------------------------------------------------

    def _take(self, standing: Standing, gathering: Gathering, line: SignatureLine) -> None:
        """Count a line in; with the quorum there is a newest witnessed checkpoint."""
        if standing.alarm or standing.failures_in_a_row:
            _log.warning("witness %s answers again", standing.witness.name)
        standing.alarm, standing.failures_in_a_row = "", 0
        standing.size, standing.success_ms = gathering.target.size, self._ledger.time_ms
        gathering.lines[standing.witness.name] = line
        gathering.asked.add(standing.witness.name)
        note = gathering.note(self._policy)
        if note is not None and gathering.begun_ms >= self._newest_begun_ms:
            self._publish(gathering, note)

    def _publish(self, gathering: Gathering, note: bytes) -> None:
        self.newest = Confirmed(gathering.target.size, gathering.target.root, note)
        self._newest_begun_ms, self._newest_others = gathering.begun_ms, gathering.others
        self._covered_ms = max(self._covered_ms, gathering.begun_ms)
        self._ledger.keep_cosigned(note, parse_checkpoint(note))

    def _ring(self, standing: Standing, why: str) -> None:
        """A person must look; said once for each reason."""
        name = standing.witness.name
        if why != standing.alarm:
            _log.critical("witness %s: %s. It is asked again in %d minutes", name, why, ALARM_REST_MS // 60_000)
        standing.alarm = why
        standing.failures += 1
        standing.failures_in_a_row += 1
        standing.rests_until_ms = self._clock.boottime_ms() + ALARM_REST_MS

    def _back_off(self, standing: Standing, why: str, retry_after_s: int = 0) -> None:
        """Leave a witness alone for a while, twice as long each time; said the first time."""
        if not standing.failures_in_a_row:
            _log.warning("witness %s gives no cosignature: %s; trying again", standing.witness.name, why)
        pause_ms = min(BACKOFF_MS_MAX, 1_000 << min(standing.failures_in_a_row, 10))
        standing.failures += 1
        standing.failures_in_a_row += 1
        standing.rests_until_ms = self._clock.boottime_ms() + max(pause_ms, 1_000 * retry_after_s)

    # -- into the ledger ----------------------------------------------------------------------------------------------

    def _is_entry_due(self) -> bool:
        """Say whether the newest cosigned checkpoint goes into the ledger now: not more often than the pace, and not
        when it covers nothing new but entries of its own kind, or a quiet ledger would grow for ever."""
        if self.newest is None or self._is_entering:
            return False
        is_time = self._entered_ms is None or self._clock.boottime_ms() - self._entered_ms >= self._pace.entry_ms
        return is_time and self._newest_others > self._entered_others

    async def _enter(self) -> None:
        newest, others = self.newest, self._newest_others
        assert newest is not None, "there is something to enter"
        try:
            await self._ledger.witness(newest.note, parse_checkpoint(newest.note))
            self._entered_others = others
        except (Busy, Fatal) as error:
            _log.warning("a witnessed checkpoint is entered another time: %s", error)
            if isinstance(error, Busy) and error.reason == "outcome_unknown":
                self._entered_others = others  # it may be there; a newer one comes with the next entry of others
        except Exception:
            _log.exception("a witnessed checkpoint could not be entered")
        finally:
            self._entered_ms = self._clock.boottime_ms()
            self._is_entering = False
