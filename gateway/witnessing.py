"""Puts the witnesses of a gateway together: the file that names them, what is asked before a start, and the work after.

`witnesses.txt` in the data directory switches witnessing on. Without it a gateway runs as well, and only its clients
can notice that it has two histories.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gateway.clock import Clocks
from gateway.config import Settings
from gateway.errors import StartError
from gateway.ledger.cosigned import WITNESSES_FILE, OwnKeys, Witnesses, open_own, open_witnesses, served_policy
from gateway.ledger.history import Confirmed, kept_cosigned
from gateway.ledger.sequencer import Sequencer
from gateway.ledger.tree import prove_consistency
from gateway.ledger.witness import Pace, Witnessing
from gateway.ledger.witness_ask import Tree
from gateway.ledger.witness_http import HttpWeb
from gateway.ledger.witness_start import check_clock, check_sightings, look_around
from gateway.service import Ledger
from gateway.signer import Signer
from gateway.store.contract import Store
from gateway.web.metrics import Metrics
from gateway.web.reads import ReadThread, root_at
from verifier.did import encode_did
from verifier.keyring import KeyDocument, Keyring, covers
from verifier.note import VerifierKey
from verifier.wire import TEXT_BYTES_MAX, Malformed

WITNESS_FIGURES = {
    "size": "Entries below the checkpoint that a witness cosigned last.",
    "alarm": "1 while a person has to look at a witness.",
    "success_seconds": "Log time at which a witness cosigned last, 0 if never.",
}
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
    stack: AsyncExitStack, witnesses: Witnesses | None, settings: Settings, store: Store, signer: Signer,
    document: KeyDocument, clock: Clocks, *, is_clock_accepted: bool,
) -> Watch:  # fmt: skip
    """Ask the witnesses what they have seen of the ledger in `store`, before anything is written to it.

    Fatal when one has seen more than is there, or the wall clock is not that of the witnesses.
    """
    if witnesses is None:
        _log.info("without a witness only clients can notice that this ledger was restored from an older copy")
        return Watch()
    web = HttpWeb()
    stack.push_async_callback(web.close)
    head = store.load().head
    assert head is not None, "a ledger that was opened"
    own_keys = with_published(signer.own_keys, document)
    seen = await look_around(witnesses, signer.origin, web, own_keys, settings.witness_timeout_ms)
    check_sightings(witnesses, seen, head.size, lambda size: root_at(store, size), settings.witness_required)
    shown = {one.witness.name: one.checkpoint for one in seen if one.checkpoint is not None}
    kept = open_own(kept_cosigned(store) or b"", signer.origin, signer.own_keys)
    known = [*shown.values(), *([] if kept is None else [kept])]
    check_clock(witnesses, known, clock.now_ms(), is_accepted=is_clock_accepted)
    return Watch(witnesses, web, {name: checkpoint.size for name, checkpoint in shown.items()})


async def begin_witnessing(
    stack: AsyncExitStack, watch: Watch, settings: Settings, ledger: Ledger, sequencer: Sequencer, signer: Signer,
    reads: ReadThread, clock: Clocks,
) -> None:  # fmt: skip
    """Begin to have checkpoints cosigned, where there are witnesses; leaving the stack ends it."""
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
    )  # fmt: skip
    await watch.witnessing.start(sequencer.cosigned, watch.sizes)
    stack.push_async_callback(_end, asyncio.create_task(watch.witnessing.run(), name="witnessing"))


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
