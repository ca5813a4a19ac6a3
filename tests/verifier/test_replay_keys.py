"""The ledger's own keys: every step that the root and an operator take is judged anew, and so is every refusal."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.judging import audit, faults, pins, remarks
from tests.verifier.maker import (
    ALICE,
    BOB,
    ENROLLER,
    LOG,
    OPERATOR,
    ORIGIN,
    RECEIPT,
    ROOT,
    Json,
    Key,
    key_line,
    key_name,
)
from tests.verifier.scene import NUMBERS, Scene

LOG2, LOG3, RECEIPT2, SESSION = Key(71), Key(72), Key(73), Key(74)
FIRST = 5  # the first free seq


def digest(key: Key) -> str:
    return sha256(key.public).hexdigest()


class Steps(Scene):
    """A ledger with an operator, two agents, and words for what the root does."""

    def statement(self, verb: str, purpose: str, key: Key, following: str | None = None, root: Key = ROOT) -> str:
        what = f"{verb} {purpose} {key.vkey(key_name(purpose))}" + (
            "" if verb != "announce" else f" {following or '-'}"
        )
        text = f"tallystick-key/v1\norigin {ORIGIN}\ngenesis {self.genesis}\n{what}\n"
        return text + "\n" + root.note_line(f"{ORIGIN}/root", text)

    def bring(self, key: Key, purpose: str = "log", following: Key | None = None, **over: Any) -> int:
        note = over.pop("note", None) or self.statement(
            "announce", purpose, key, None if following is None else digest(following), over.pop("root", ROOT)
        )
        said: Json = {"purpose": purpose, "key": key.vkey(key_name(purpose)), "statement": note}
        said |= {} if following is None else {"next": digest(following)}
        return self.decision(
            "key.announced", over.pop("by", OPERATOR), "key.announce", {"statement": note}, said, **over
        )

    def end(self, verb: str, key: Key, announced: int = 0, purpose: str = "log", **over: Any) -> int:
        note = self.statement(verb, purpose, key, None, over.pop("root", ROOT))
        said = {"purpose": purpose, "key": key.vkey(key_name(purpose)), "announcedSeq": announced, "statement": note}
        name = {"retire": "key.retired", "compromise": "key.compromised"}[verb]
        return self.decision(name, over.pop("by", OPERATOR), f"key.{verb}", {"statement": note}, said)

    def deny_key(self, verb: str, key: Key, error: str, purpose: str = "log", **over: Any) -> int:
        note = over.pop("note", None) or self.statement(verb, purpose, key, None, over.pop("root", ROOT))
        name = {"announce": "announcement", "retire": "retirement", "compromise": "disowning"}[verb] + ".refused"
        said = {"purpose": purpose, "key": key.vkey(key_name(purpose)), "error": error, "number": NUMBERS[error]}
        return self.decision(name, over.pop("by", OPERATOR), f"key.{verb}", {"statement": note}, said)

    def signed(self, *logs: Key, size: int | None = None) -> bytes:
        """A checkpoint with a line by each of these log keys."""
        text, _, _ = self.checkpoint(size).decode().partition("\n\n")
        text += "\n"
        return f"{text}\n{''.join(log.note_line(ORIGIN, text) for log in logs)}".encode()


def steps(**over: Any) -> Steps:
    ledger = Steps()
    ledger.open(**over)
    ledger.time_ms += 10
    ledger.start()
    ledger.time_ms += 1_000
    ledger.add(ALICE)
    ledger.add(BOB)
    return ledger


def lines(*rows: str) -> list[str]:
    """Lines of a key document with the first receipt key."""
    return [*rows, key_line("receipt", RECEIPT)]


def judged(ledger: Steps, *logs: Key, document: list[str], version: int = 1) -> Any:
    content = ledger.export(ledger.signed(*logs))
    return audit(content, pins(ledger, keys=ledger.keys(version, document)))


def found(ledger: Steps) -> list[tuple[int | None, str]]:
    """(seq, code) of what is wrong with the entries, whatever a document would say."""
    report = audit(ledger.export(), maker_pins(ledger))
    return [(f.seq, f.code) for f in report.findings if f.seq is not None and f.outcome]


def maker_pins(ledger: Steps) -> Any:
    return pins(ledger, keys=ledger.keys())


# --- a life of keys ---


def lived() -> Steps:
    """Rotations of both keys, a theft, and every refusal, in the order of the protocol."""
    ledger = steps(nextKeys={"log": digest(LOG2)})
    ledger.deny_key("announce", LOG2, "operator_required", by=ALICE)
    ledger.deny_key("announce", LOG, "key_known")
    ledger.deny_key("announce", ROOT, "key_known")
    ledger.deny_key("announce", ENROLLER, "key_known")
    ledger.deny_key("announce", ALICE, "key_known", purpose="receipt")
    ledger.deny_key("announce", OPERATOR, "key_known")
    ledger.deny_key("announce", LOG3, "key_not_committed")
    ledger.deny_key("retire", LOG2, "key_unknown")
    ledger.deny_key("retire", LOG, "key_last")
    ledger.deny_key("compromise", LOG, "key_last")
    second = ledger.bring(LOG2, following=LOG3)
    ledger.grant(ALICE, "lock:a")
    ledger.deny_key("announce", LOG3, "key_overlap")
    ledger.deny_key("compromise", LOG, "operator_required", by=BOB)
    ledger.end("retire", LOG)
    ledger.deny_key("retire", LOG, "key_unknown")
    ledger.deny_key("announce", LOG, "key_known")
    third = ledger.bring(LOG3)
    ledger.end("compromise", LOG2, second)
    ledger.deny_key("announce", LOG2, "key_known")
    ledger.bring(Key(75))  # nothing was committed to any more
    ledger.end("retire", LOG3, third)
    ledger.end("retire", RECEIPT, 0, "receipt") if ledger.bring(RECEIPT2, "receipt") else None
    return ledger


def test_a_life_of_keys_is_found_again() -> None:
    ledger = lived()
    assert found(ledger) == []
    report = audit(ledger.export(ledger.signed(Key(75))), pins(ledger, keys=ledger.keys(7, document_of(ledger))))
    assert (faults(report), report.exit_code) == ([], 0)
    assert "key_document_older" not in remarks(report)


def document_of(ledger: Steps) -> list[str]:
    """The document that the ledger's own entries call for, written out from their members."""
    rows = {
        LOG.vkey(ORIGIN): ["log", 0, "-", "active"],
        RECEIPT.vkey(f"{ORIGIN}/receipt"): ["receipt", 0, "-", "active"],
    }
    for seq in range(len(ledger.leaves)):
        value = ledger.value(seq)
        match value["type"].split("/")[1]:
            case "key.announced":
                rows[value["key"]] = [value["purpose"], seq + 1, "-", "active"]
            case "key.retired" | "key.compromised" as name:
                rows[value["key"]][2:] = [seq, name.removeprefix("key.")]
    final = f" {len(ledger.leaves)} {maker.b64(ledger.root())}"
    return [
        f"key {purpose} {vkey} {start} {stop} {status}{final * (status == 'compromised' and purpose == 'log')}"
        for vkey, (purpose, start, stop, status) in rows.items()
    ]


def test_a_position_keeps_what_was_committed_to() -> None:
    """Each entry of that life judged by an audit that went on from the one before: see test_replay_position.py."""
    from verifier.replay.auditor import Auditor
    from verifier.replay.source import Source

    ledger = lived()
    auditor = Auditor(maker_pins(ledger))
    for size in range(1, len(ledger.leaves) + 1):
        source = Source(ORIGIN, size, iter(ledger.leaves[size - 1 : size]), ledger.checkpoint(size), size - 1)
        report = auditor.read(source)
    assert [f for f in report.findings if f.seq is not None and f.outcome] == []


def test_a_key_of_the_ledger_is_rightly_refused_any_other_role() -> None:
    ledger = steps()
    used_up(ledger)
    for key in (LOG, LOG2, RECEIPT, ROOT):
        ledger.no("agent.refused", OPERATOR, "agent.add", {"agent": key.did}, "key_taken")
        ledger.no("operator.refused", OPERATOR, "operator.add", {"operator": key.did}, "key_taken")
    assert found(ledger) == []


# --- lies ---

Tell = Callable[[Steps], object]


def both(ledger: Steps) -> int:
    return ledger.bring(LOG2)


def of_a_session(ledger: Steps) -> None:
    ledger.open_session(SESSION, ALICE)
    ledger.bring(SESSION)


def uncommitted(ledger: Steps) -> None:
    ledger.bring(LOG2, following=LOG3)
    ledger.end("retire", LOG)
    ledger.bring(Key(80))


def unstated(ledger: Steps) -> None:
    ledger.deny_key("announce", LOG, "key_known", root=ALICE)


def used_up(ledger: Steps) -> Steps:
    ledger.bring(LOG2)
    ledger.end("retire", LOG)
    return ledger


LIES: list[tuple[str, Tell, list[str]]] = [
    ("an agent with a log key", lambda it: it.add(LOG), ["key_taken"]),
    ("an agent with an announced key", lambda it: (both(it), it.add(LOG2)), ["key_taken"]),
    ("an agent with a retired key", lambda it: used_up(it).add(LOG), ["key_taken"]),
    ("an agent with the root's key", lambda it: it.add(ROOT), ["key_taken"]),
    ("an operator with a receipt key", lambda it: it.add_operator(RECEIPT), ["key_taken"]),
    ("a session with a receipt key", lambda it: it.open_session(RECEIPT, ALICE), ["session_taken"]),
    ("a fresh key refused as taken", lambda it: it.no("agent.refused", OPERATOR, "agent.add",
        {"agent": LOG2.did}, "key_taken"), ["refusal_wrong"]),
    ("announced by an operator without the root", lambda it: it.bring(LOG2, root=ALICE), ["key_statement_invalid"]),
    ("announced by an agent", lambda it: it.bring(LOG2, by=ALICE), ["leaf_malformed"]),
    ("announced though it is known", lambda it: it.bring(LOG), ["key_known"]),
    ("announced though it is an agent", lambda it: it.bring(ALICE, "receipt"), ["key_known"]),
    ("announced though it is a session", of_a_session, ["key_known"]),
    ("a third key", lambda it: (both(it), it.bring(LOG3)), ["key_overlap"]),
    ("not the one committed to", uncommitted, ["key_not_committed"]),
    ("the last one retired", lambda it: it.end("retire", LOG), ["key_last"]),
    ("one retired that never was", lambda it: it.end("retire", LOG2), ["key_unknown"]),
    ("retired twice", lambda it: (both(it), it.end("retire", LOG), it.end("retire", LOG)), ["key_unknown"]),
    ("retired without the root", lambda it: (both(it), it.end("retire", LOG, root=BOB)), ["key_statement_invalid"]),
    ("disowned without it", lambda it: (both(it), it.end("compromise", LOG, root=BOB)), ["key_statement_invalid"]),
    ("another announcement cited", lambda it: (both(it), it.end("retire", LOG, announced=3)), ["citation_wrong"]),
    ("refused though nothing refuses it", lambda it: it.deny_key("announce", LOG2, "key_overlap"), ["refusal_wrong"]),
    ("refused for what comes later", lambda it: it.deny_key("announce", LOG, "key_overlap"), ["refusal_wrong"]),
    ("the operator refused as none", lambda it: it.deny_key("announce", LOG, "operator_required"), ["refusal_wrong"]),
    ("known though it is fresh", lambda it: it.deny_key("announce", LOG2, "key_known"), ["refusal_wrong"]),
    ("a commitment that never was", lambda it: it.deny_key("announce", LOG2, "key_not_committed"), ["refusal_wrong"]),
    ("the last of two", lambda it: (both(it), it.deny_key("retire", LOG, "key_last")), ["refusal_wrong"]),
    ("unknown, in force", lambda it: (both(it), it.deny_key("compromise", LOG, "key_unknown")), ["refusal_wrong"]),
    ("refused what the root did not state", unstated, ["key_statement_invalid"]),
    (
        "refused another key than was asked for",
        lambda it: it.deny_key("announce", LOG, "key_known", note=it.statement("announce", "log", LOG2)),
        ["body_differs"],
    ),
    (
        "refused another action than was asked for",
        lambda it: it.deny_key("announce", LOG, "key_known", note=it.statement("retire", "log", LOG)),
        ["body_differs"],
    ),
    ("an error of another type", lambda it: it.deny_key("retire", LOG, "key_known"), ["error_unknown"]),
]  # fmt: skip


@pytest.mark.parametrize(("tell", "wanted"), [row[1:] for row in LIES], ids=[row[0] for row in LIES])
def test_a_lie_about_keys_is_found(tell: Tell, wanted: list[str]) -> None:
    ledger = steps()
    tell(ledger)
    assert found(ledger) == [(len(ledger.leaves) - 1, code) for code in wanted]


def test_a_removed_agent_s_key_may_be_announced_and_a_live_one_s_not() -> None:
    ledger = steps()
    ledger.remove(ALICE)
    ledger.bring(ALICE)
    assert found(ledger) == []


RECEIPT_LINE = key_line("receipt", RECEIPT).removeprefix("key ")
OPENINGS: list[tuple[str, list[str]]] = [
    ("bounded already", [f"log {LOG.vkey(ORIGIN)} 3 - active", RECEIPT_LINE]),
    ("no receipt key", [f"log {LOG.vkey(ORIGIN)} 0 - active"]),
    ("one key twice", [f"log {LOG.vkey(ORIGIN)} 0 - active", f"receipt {LOG.vkey(ORIGIN + '/receipt')} 0 - active"]),
    ("the root signs checkpoints", [f"log {ROOT.vkey(ORIGIN)} 0 - active", RECEIPT_LINE]),
    ("another ledger's key", [f"log {LOG.vkey('other.example/log')} 0 - active", RECEIPT_LINE]),
    ("no key line at all", ["log key", "receipt key"]),
]  # fmt: skip


@pytest.mark.parametrize("keys", [row[1] for row in OPENINGS], ids=[row[0] for row in OPENINGS])
def test_the_keys_of_entry_0_are_lines_of_its_own(keys: list[str]) -> None:
    assert (0, "opening_key_wrong") in found(steps(keys=keys))


# --- the document beside the ledger ---


def rotated() -> Steps:
    ledger = steps()
    second = ledger.bring(LOG2)  # 5
    ledger.end("retire", LOG)  # 6
    ledger.bring(LOG3)  # 7
    ledger.end("compromise", LOG2, second)  # 8
    ledger.grant(ALICE, "lock:a")  # 9
    return ledger


R = rotated()
FINAL = f"10 {maker.b64(R.root())}"
GOOD = [
    key_line("log", LOG, "0 6 retired"),
    key_line("log", LOG2, f"6 8 compromised {FINAL}"),
    key_line("log", LOG3, "8 - active"),
]


def final(size: int, root: bytes) -> list[str]:
    return [GOOD[0], key_line("log", LOG2, f"6 8 compromised {size} {maker.b64(root)}"), GOOD[2]]


OLD1 = [key_line("log", LOG)]
OLD2 = [key_line("log", LOG), key_line("log", LOG2, "6 - active")]
DOCUMENTS: list[tuple[str, list[str], list[str], list[str]]] = [  # key lines, faults, notes
    ("as the ledger has it", GOOD, [], []),
    ("of the beginning", OLD1, [], ["key_document_older"] * 3),
    ("of the overlap", OLD2, [], ["key_document_older"] * 3),
    ("before the theft was known", [GOOD[0], key_line("log", LOG2, "6 - active"), GOOD[2]], [], ["key_document_older"]),
    ("with a key that nobody announced", [*GOOD, key_line("log", Key(90), "9 - active")], ["key_line_unannounced"], []),
    ("with one that a later entry may announce", [*GOOD, key_line("log", Key(90), "11 - active")], [], []),
    ("retired later", [key_line("log", LOG, "0 7 retired"), *GOOD[1:]], ["key_line_wrong"], []),
    ("announced earlier", [*GOOD[:2], key_line("log", LOG3, "7 - active")], ["key_line_wrong"], []),
    ("disowned, though retired", [key_line("log", LOG, f"0 6 compromised {FINAL}"), *GOOD[1:]], ["key_line_wrong"], []),
    ("ended, though it is in force", [*GOOD[:2], key_line("log", LOG3, "8 9 retired")], ["key_line_wrong"], []),
    ("ended by an entry that may come", [*GOOD[:2], key_line("log", LOG3, "8 12 retired")], [], []),
    ("without a key of entry 0", GOOD[1:], ["key_line_wrong"], []),
    ("with the last step and not the one before", [GOOD[0], GOOD[2]], ["key_line_wrong"], []),
    ("still active, though a later step is shown", [key_line("log", LOG), *GOOD[1:]], ["key_line_wrong"], []),
    ("a final tree below the theft", final(8, R.root(8)), ["key_line_wrong"], []),
    ("a final tree of another history", final(10, bytes(32)), ["key_line_wrong"], []),
    ("a final tree that is not here yet", final(99, bytes(32)), [], []),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "wrong", "notes"), [row[1:] for row in DOCUMENTS], ids=[row[0] for row in DOCUMENTS])
def test_the_document_and_the_ledger_say_the_same(rows: list[str], wrong: list[str], notes: list[str]) -> None:
    report = audit(R.export(R.signed(LOG3)), pins(R, keys=R.keys(5, lines(*rows))))
    said = [f.code for f in report.findings if f.code.startswith("key_")]
    assert sorted(said) == sorted(wrong + notes)
    assert all(f.step == 6 for f in report.findings if f.code.startswith("key_line"))


@pytest.mark.parametrize(
    ("is_retired", "logs", "exit_code"),
    [(True, (LOG2,), 3), (False, (LOG2,), 1), (False, (LOG,), 1), (False, (LOG, LOG2), 0)],
    ids=["after the retirement", "old line missing", "new line missing", "both lines"],
)
def test_a_reader_with_the_document_of_the_overlap_is_not_told_invalid(
    is_retired: bool, logs: tuple[Key, ...], exit_code: int
) -> None:
    """The document does not know of the retirement; the entries do, so they say who had to sign."""
    ledger = steps()
    ledger.bring(LOG2)
    ledger.grant(ALICE, "lock:a")
    if is_retired:
        ledger.end("retire", LOG)
    report = audit(ledger.export(ledger.signed(*logs)), pins(ledger, keys=ledger.keys(2, lines(*OLD2))))
    missing = [finding.outcome for finding in report.findings if finding.code == "log_line_missing"]
    assert report.exit_code == exit_code and max(missing, default=0) == {0: 0, 1: 2, 3: 1}[exit_code]


# --- disputes ---


def shown(ledger: Steps, log: Key, size: int = 3) -> bytes:
    text = f"{ORIGIN}\n{size}\n{maker.b64(bytes(range(32)))}\n"
    return (text + "\n" + log.note_line(ORIGIN, text)).encode()


@pytest.mark.parametrize(
    ("log", "size", "wanted"),
    [(LOG, 3, []), (LOG2, 3, [(9, "dispute_unproven")]), (LOG3, 9, []), (LOG3, 3, [(9, "dispute_unproven")]),
     (LOG, 7, [(9, "dispute_unproven")]), (LOG2, 7, [(9, "dispute_unproven")]), (LOG3, 500, [])],
    ids=["retired", "disowned, outside", "in force", "in force, outside", "retired, outside", "disowned", "too long"],
)  # fmt: skip
def test_a_log_key_convicts_of_a_second_history_where_it_may_speak(log: Key, size: int, wanted: list[Any]) -> None:
    ledger = rotated()
    del ledger.leaves[9:]
    ledger.dispute(shown(ledger, log, size))
    assert found(ledger) == wanted
