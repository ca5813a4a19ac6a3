"""Puts the witnesses of a gateway together: the file that names them, what is asked before a start, and the work after.

`witnesses.txt` in the data directory switches witnessing on. Without it a gateway runs as well, and only its clients
can notice that it has two histories.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gateway.clock import Clocks
from gateway.config import Settings
from gateway.errors import Busy, Fatal, StartError, Unfit
from gateway.export import cosigned_of
from gateway.ledger.batches import Seen
from gateway.ledger.cosigned import WITNESSES_FILE, OwnKeys, Witnesses, open_own, open_witnesses, served_policy
from gateway.ledger.history import Confirmed
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.tree import prove_consistency
from gateway.ledger.witness import Pace, Witnessing
from gateway.ledger.witness_ask import Tree
from gateway.ledger.witness_http import HttpWeb
from gateway.ledger.witness_start import check_clock, check_sightings, is_heard, look_around
from gateway.ledger.worker import Worker
from gateway.service import Ledger
from gateway.signer import Signer
from gateway.stores import LedgerReader
from gateway.web.metrics import Metrics
from gateway.web.reads import ReadThread, root_at
from verifier.did import encode_did
from verifier.keyring import KeyDocument, Keyring, covers
from verifier.note import VerifierKey, encode_note
from verifier.wire import TEXT_BYTES_MAX, Malformed

WITNESS_FIGURES = {
    "size": "Entries below the checkpoint that a witness cosigned last.",
    "alarm": "1 while a person has to look at a witness.",
    "success_seconds": "Log time at which a witness cosigned last, 0 if never.",
}
DUTY, DUTY_MS, DUTY_LOOK_SECONDS = "witness", 15_000, 4.0
DUTY_BACK_SECONDS = 2.0
_log = logging.getLogger("tallystick.witness")


@dataclass(slots=True)
class Watch:
    """The witnesses of one gateway, if it has any. `sizes` are what they showed before the start, by their names."""

    witnesses: Witnesses | None = None
    web: HttpWeb | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    witnessing: Witnessing | None = None

    def newest(self) -> Confirmed | None:
        """Return the newest checkpoint that their quorum cosigned."""
        return None if self.witnessing is None else self.witnessing.newest

    def policy(self, published: Callable[[], bytes]) -> Callable[[], bytes]:
        """Return what gives the policy that is served, from the one that is published with the log keys alone."""
        return lambda: served_policy(published(), self.witnesses)


def load_witnesses(folder: Path, ledger: Ledger, document: KeyDocument) -> Witnesses | None:
    """Return the witnesses of a data directory, None where there is no file. StartError when it can't be used."""
    path = folder / WITNESSES_FILE
    try:
        with path.open("rb") as file:
            witnesses = open_witnesses(file.read(TEXT_BYTES_MAX + 1))
        Keyring(ledger.root, document, replace(witnesses.policy, logs=()))
    except FileNotFoundError:
        return None
    except (Malformed, OSError) as error:
        raise StartError(f"{path} can't be used: {error}") from error
    actors = {ledger.enroller, *ledger.operators}
    for one in witnesses.members:
        if encode_did(one.key.public_key) in actors:
            raise StartError(
                f"{path}: witness {one.name} has the key of an operator or of the gateway; it needs its own"
            )
    return witnesses


def with_published(own_keys: OwnKeys, document: KeyDocument) -> OwnKeys:
    """Return `own_keys` with the log keys that `document` (of this ledger's root) has in force at a size, too.

    A copy from before a rotation does not know the newer key, and that one signed what its witnesses hold.
    """

    def keys(size: int) -> Sequence[VerifierKey]:
        lines = (line for line in document.keys if line.purpose == "log" and line.status != "compromised")
        return [*own_keys(size), *(line.key for line in lines if covers(line, size))]

    return keys


async def open_watch(
    stack: AsyncExitStack, witnesses: Witnesses | None, settings: Settings, reader: LedgerReader, signer: Signer,
    document: KeyDocument, clock: Clocks, *, is_clock_accepted: bool,
) -> Watch:  # fmt: skip
    """Ask the witnesses what they have seen of the ledger, before anything is written to it.

    Fatal when one has seen more than is there, or the wall clock is not that of the witnesses.
    """
    if witnesses is None:
        _log.info("without a witness only clients can notice that this ledger was restored from an older copy")
        return Watch()
    web = HttpWeb()
    stack.push_async_callback(web.close)
    own_keys = with_published(signer.own_keys, document)
    seen = await look_around(witnesses, signer.origin, web, own_keys, settings.witness_timeout_ms)
    head = reader.head()  # afterwards: meanwhile another node may have written, and had it witnessed
    assert head is not None, "a ledger that was opened"
    check_sightings(witnesses, seen, head.size, lambda size: root_at(reader, size), settings.witness_required)
    shown = {one.witness.name: one.checkpoint for one in seen if one.checkpoint is not None}
    kept = open_own(_kept(reader) or b"", signer.origin, signer.own_keys)
    known = [*shown.values(), *([] if kept is None else [kept])]
    check_clock(witnesses, known, clock.now_ms(), is_accepted=is_clock_accepted)
    return Watch(witnesses, web, {name: checkpoint.size for name, checkpoint in shown.items()})


def asking(
    watch: Watch, settings: Settings, signer: Signer, document: Callable[[], KeyDocument]
) -> Callable[[], Awaitable[Seen]] | None:
    """Return what asks the witnesses again; None where there are none.

    For a node that reads the ledger anew, perhaps from a server that lacks what another one had confirmed.
    """
    witnesses, web = watch.witnesses, watch.web
    if witnesses is None or web is None:
        return None

    async def ask() -> Seen:
        own_keys = with_published(signer.own_keys, document())
        seen = await look_around(witnesses, signer.origin, web, own_keys, settings.witness_timeout_ms)
        if settings.witness_required and not is_heard(witnesses, seen):
            raise Unfit("too few witnesses say what they have seen of this ledger; check that they answer")
        return lambda read, size: check_sightings(witnesses, seen, size, partial(root_at, read), is_required=False)

    return ask


async def begin_witnessing(
    stack: AsyncExitStack, watch: Watch, settings: Settings, ledger: Ledger, sequencer: Sequencer, signer: Signer,
    reads: ReadThread, clock: Clocks, duty: Duty | None,
) -> None:  # fmt: skip
    """Begin to have checkpoints cosigned, where there are witnesses; leaving the stack ends it.

    `duty` says whose turn it is, None: always ours.
    """
    if watch.witnesses is None or watch.web is None:
        return
    pace = Pace(
        refresh_ms=settings.witness_refresh_ms,
        entry_ms=settings.witness_entry_ms,
        timeout_ms=settings.witness_timeout_ms,
        overdue_ms=ledger.parameters.witness_ms,
    )
    watch.witnessing = Witnessing(
        sequencer, ledger.origin, watch.witnesses,
        web=watch.web, tree=tree_of(reads), clock=clock, pace=pace, own_keys=signer.own_keys,
        **({} if duty is None else {"is_on_duty": duty.is_ours}),
    )  # fmt: skip
    await watch.witnessing.start(sequencer.cosigned, watch.sizes)
    if duty is not None:
        stack.push_async_callback(_end, asyncio.create_task(duty.run(watch.witnessing), name="duty"))
    stack.push_async_callback(_end, asyncio.create_task(watch.witnessing.run(), name="witnessing"))


class Duty:
    """Which node of a ledger has its checkpoints cosigned: whoever holds the duty, and asks for it again in time.

    Two of them would only ask the witnesses twice. Who has it not takes over what the other one got.
    """

    def __init__(self, reader: LedgerReader, clock: Clocks) -> None:
        self._reader, self._clock = reader, clock
        self._worker = Worker("tallystick-duty")  # a silent database keeps a daemon's thread, and nobody from stopping
        self._holder = secrets.token_hex(8)
        self._until_ms = 0

    def is_ours(self) -> bool:
        """Say whether it is this node's turn."""
        return self._clock.boottime_ms() < self._until_ms

    async def run(self, witnessing: Witnessing) -> None:
        """Ask for it until cancelled, then give it back."""
        try:
            while True:
                try:
                    await self._look(witnessing)
                except (Busy, Fatal, Malformed) as error:
                    _log.warning("who has checkpoints cosigned is not known now: %s", error)
                await asyncio.sleep(DUTY_LOOK_SECONDS)
        finally:
            if self.is_ours():
                self._until_ms = 0
                with suppress(Busy, TimeoutError):
                    async with asyncio.timeout(DUTY_BACK_SECONDS):
                        await self._worker.call(partial(self._reader.take_duty, DUTY, self._holder, 0))
            self._worker.shutdown(wait=False)

    async def _look(self, witnessing: Witnessing) -> None:
        begun_ms = self._clock.boottime_ms()
        if await self._worker.call(partial(self._reader.take_duty, DUTY, self._holder, DUTY_MS)):
            if not self.is_ours():
                _log.info("this node has the ledger's checkpoints cosigned")
            self._until_ms = begun_ms + DUTY_MS
            return
        self._until_ms = 0
        kept = await self._worker.call(partial(_kept, self._reader))
        if kept is not None:
            await witnessing.learn(kept)


def _kept(reader: LedgerReader) -> bytes | None:
    """Return the newest cosigned note that a gateway of this ledger kept."""
    found = cosigned_of(reader)
    return None if found is None else encode_note(found.note)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def tree_of(reads: ReadThread) -> Tree:
    """Return this ledger's tree as the read thread sees it: what is asked for a witness holds up no commit."""

    async def prove(old: int, size: int) -> Sequence[bytes]:
        return await reads.call(lambda reader: prove_consistency(reader, old, size))

    async def root(size: int) -> bytes:
        return await reads.call(lambda reader: root_at(reader, size))

    return Tree(prove, root)


def show_witnesses(metrics: Metrics, watch: Watch) -> None:
    """Offer how it goes with the witnesses; nothing where there are none."""
    state = watch.witnessing
    if state is None:
        return
    gauges: tuple[tuple[str, str, Callable[[], float]], ...] = (
        ("witnessed_size", "Entries below the newest checkpoint that a quorum of witnesses cosigned.",
         lambda: state.newest.size if state.newest else 0),
        ("witness_lag_entries", "Entries that no quorum has cosigned yet.", lambda: state.lag_entries),
        ("witness_lag_seconds", "How long the oldest of them has waited.", lambda: state.lag_ms / 1_000),
        ("witness_overdue", "1 when that is longer than entry 0 promises (witnessMs).", lambda: state.is_overdue),
    )  # fmt: skip
    for name, text, value in gauges:
        metrics.gauge(name, text, value)
    text = "Times a witness proved a second history."
    metrics.counter("witness_contradictions", text, lambda: state.contradictions)
    text = "Requests to a witness that brought no line."
    metrics.labelled("witness_failures", text, "witness", partial(state.figures, "failures"))
    for name, text in WITNESS_FIGURES.items():
        metrics.labelled_gauge(f"witness_{name}", text, "witness", partial(state.figures, name))
