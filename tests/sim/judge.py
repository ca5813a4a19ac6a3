"""The end of a world: the real verifier judges all that is left of it, with the key document of the end.

Where keys changed or witnesses saw it, also in pieces, every receipt that was handed out, and every answer given again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from gateway.client.batch import cut_batch
from gateway.ledger.cosigned import add_checkpoint_body
from gateway.ledger.history import stored_answer
from gateway.ledger.tree import prove_consistency
from gateway.signer import Signer
from tests.core.requests import ORIGIN
from verifier.keyring import Keyring, covers
from verifier.receipt import check_receipt
from verifier.replay.auditor import Auditor
from verifier.replay.ledger import check_ledger
from verifier.replay.source import Source, open_source
from verifier.verdict import Report

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tests.sim.node import Process
    from tests.sim.simulation import Simulation

_RAM = Path("/dev/shm")
PIECES_MAX = 2


def judge(simulation: Simulation, process: Process) -> None:
    """Let the real verifier judge the ledger, and what was told of it."""
    size, note = process.sequencer.confirmed.size, process.sequencer.confirmed.note
    if simulation.config.is_rotating:
        simulation.keeper.publish()
    with TemporaryDirectory(dir=_RAM if _RAM.is_dir() else None) as folder:
        file = Path(folder) / "audit.ledger"
        _write(simulation, file, size, note)
        report = check_ledger(file, simulation.keeper.keyring, note, has_rules=True)
        wanted = _verdict(simulation, size)
        simulation.must((report.exit_code, _faults(report)) == wanted, "audit", report.as_text())
        if simulation.config.is_policed:
            _unasked(simulation, file, note)
        if simulation.config.is_rotating or simulation.witnessed_by:
            _in_pieces(simulation, process.signer, Path(folder), size, report)
    if simulation.config.is_rotating:
        _answers_again(simulation, process)
        _receipts(simulation, process)


def _unasked(simulation: Simulation, file: Path, note: bytes) -> None:
    """Who does not ask the rules again never calls valid what they judged, and finds nothing else."""
    report = check_ledger(file, simulation.keeper.keyring, note)
    count = report.facts["rulings"]
    assert isinstance(count, dict), "figures"
    wanted = (3, {"rules_not_rederived"}) if count["count"] else (0, set[str]())
    simulation.must((report.exit_code, _faults(report)) == wanted, "audit", report.as_text())


def _verdict(simulation: Simulation, size: int) -> tuple[int, set[str]]:
    """Return exit code and findings that are due: what an engine that failed said can't be derived again."""
    is_open = any(seq < size for seq in simulation.checker.unruled)
    return (3, {"rules_not_rederived"}) if is_open else (0, set[str]())


def _faults(report: Report) -> set[str]:
    return {one.code for one in report.findings if one.outcome > 0}


def _write(simulation: Simulation, file: Path, size: int, note: bytes) -> None:
    leaves = b"".join(leaf + b"\n" for leaf in simulation.database.disk.leaves[:size])
    file.write_bytes(f"tallystick-ledger/v1 {ORIGIN} {size}\n".encode() + leaves + b"\n" + note)


# -- in pieces ---------------------------------------------------------------------------------------------------------


def _in_pieces(simulation: Simulation, signer: Signer, folder: Path, size: int, whole: Report) -> None:
    """An audit that is stopped and gone on from, also after it was killed, says in the end what one in one go says."""
    rng, keyring, last = simulation.rng, simulation.keeper.keyring, whole
    heads = [head.size for head in simulation.database.disk.heads if head.size <= size]
    cuts = sorted({rng.choice(heads) for _ in range(rng.randint(1, PIECES_MAX))} | {size})
    for cut in cuts:
        file = folder / f"{cut}.ledger"
        note = Signer.sign_checkpoint(signer, cut, simulation.checker.roots.at[cut])
        _write(simulation, file, cut, note)
        if rng.random() < 0.3:
            _killed(file, keyring, folder / "state")
        last = check_ledger(file, keyring, note, folder=folder / "state", has_rules=True)
        wanted = _verdict(simulation, cut)[0] if _is_good(simulation, cut) else 3  # what only a disowned key signed
        simulation.must(last.exit_code == wanted, "audit", f"to {cut} of {cuts}: {last.as_text()}")
    same = _told(last) == _told(whole)
    simulation.must(same, "audit", f"in pieces {cuts}: {last.as_text()}\nin one go: {whole.as_text()}")


def _killed(file: Path, keyring: Keyring, folder: Path) -> None:
    """Read some of a file with the saved position, and be killed before it is saved."""
    auditor = Auditor(keyring, folder=folder, has_rules=True)
    with open_source(file, auditor.size) as source:
        auditor.read(_broken(source))
    auditor.close()


def _broken(source: Source) -> Source:
    leaves = source.leaves

    def some() -> Iterator[bytes]:
        for count, leaf in enumerate(leaves):
            if count == 5:
                raise OSError("killed")
            yield leaf

    source.leaves = some()
    return source


def _told(report: Report) -> object:
    facts = {name: value for name, value in report.facts.items() if name != "start"}
    findings = {(one.code, one.outcome, one.text, one.seq) for one in report.findings}
    return facts, findings, report.level, report.completeness


# -- receipts ----------------------------------------------------------------------------------------------------------


def _answers_again(simulation: Simulation, process: Process) -> None:
    """Whoever asks again gets the same bytes, whatever keys are in force by now."""
    confirmed = process.sequencer.confirmed
    for seq, body in simulation.bodies.items():
        again = stored_answer(process.store, process.signer, confirmed, seq, 200).body()
        simulation.must(again == body, "I4", f"entry {seq} is answered in another way after its keys were changed")


def _receipts(simulation: Simulation, process: Process) -> None:
    """Every receipt holds under the key document of the end, and under that of its time."""
    keeper, checker = simulation.keeper, simulation.checker
    for seq, body in simulation.bodies.items():
        cut = cut_batch(body)
        receipt = cut.receipts[0] if cut else body.partition(b'"receipt":')[2][:-1]
        size = _size(receipt)
        is_good = _is_good(simulation, size)
        report = check_receipt(receipt, keeper.keyring)
        wanted = (0,) if is_good else (0, 3)
        simulation.must(report.exit_code in wanted, "I17", f"size {size}: {report.as_text()}")
        checker.count(f"receipt {report.exit_code}")
        if not is_good:
            _proven(simulation, process, receipt, size)
        if keeper.versions:  # one of them each: time is short
            _under_older(simulation, receipt, simulation.rng.choice(keeper.versions), seq, size)


def _is_good(simulation: Simulation, size: int, known: Container[str] | None = None) -> bool:
    """Say whether a log key signed a size that was never disowned, of those that are `known`."""
    keys = simulation.checker.signers("log", size)
    return any(key.status != "compromised" for key in keys if known is None or key.vkey in known)


def _under_older(simulation: Simulation, receipt: bytes, keyring: Keyring, seq: int, size: int) -> None:
    """A document of its time, or any that knows who had to sign, says the same of a receipt."""
    assert keyring.document is not None, "a key document is pinned"
    checker, lines = simulation.checker, keyring.document.keys
    known = {line.key.vkey for line in lines}
    signed = {key.vkey for key in checker.signers("log", size)}
    demanded = {line.key.vkey for line in lines if line.purpose == "log" and covers(line, size)}
    if demanded and demanded <= signed and checker.signers("receipt", seq)[0].vkey in known:
        report = check_receipt(receipt, keyring)
        wanted = (0,) if _is_good(simulation, size, known) else (0, 3)
        simulation.must(report.exit_code in wanted, "I17", f"size {size}, by an older one: {report.as_text()}")


def _size(receipt: bytes) -> int:
    return int(receipt.split(b'"proof":"')[1].split(b"\\n\\n")[1].split(b"\\n")[1])


def _proven(simulation: Simulation, process: Process, receipt: bytes, size: int) -> None:
    """What only a disowned key signed counts with a proof that it lies in the tree that the document names."""
    keyring = simulation.keeper.keyring
    assert keyring.document is not None, "a key document is pinned"
    for line in keyring.document.keys:
        if line.final_note is not None and line.final_size is not None and size <= (line.to_size or 0):
            if size < line.from_size or size >= line.final_size:
                continue
            hashes = prove_consistency(process.store, size, line.final_size)
            proof = add_checkpoint_body(size, hashes, line.final_note)
            report = check_receipt(receipt, keyring, others=[proof])
            simulation.must(report.exit_code == 0, "I17", f"with a proof from {size}: {report.as_text()}")
            simulation.checker.count("proven after theft")
            return
