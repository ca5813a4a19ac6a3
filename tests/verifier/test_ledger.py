"""Whole ledgers: an honest day is valid and complete; every lie of a cheating gateway is a finding at its entry."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.verifier import maker
from tests.verifier.judging import audit, faults, of_ledger, pins, remarks
from tests.verifier.maker import ALICE, BOB, LOG, OPERATOR, ORIGIN, STRANGER, Ledger, b64
from verifier.keyring import open_keyring
from verifier.replay.audit import Audit
from verifier.replay.judged import judge_afar
from verifier.replay.ledger import check_ledger
from verifier.replay.once import Once
from verifier.replay.relations import Relations
from verifier.replay.source import open_source, tile_path
from verifier.verdict import Outcome, Report

WORKED = maker.worked()


def judge(content: bytes, checkpoint: bytes | None = None) -> Report:
    return audit(content, pins(WORKED), checkpoint)


def test_an_honest_day_is_valid_and_its_completeness_unknown_without_a_pinned_size() -> None:
    report = judge(WORKED.export())
    assert (report.exit_code, report.level, report.completeness) == (0, "included", "unknown")
    assert (faults(report), remarks(report)) == ([], ["not_witnessed", "decisions_not_redecided"])
    assert report.statement == (f"15 entries of {ORIGIN}, signed requests checked: 9",)
    assert report.facts == {
        "origin": ORIGIN,
        "size": 15,
        "root": WORKED.root().hex(),
        "requests": 9,
        "custodial": 0,
        "unexplained": 0,
        "outstanding": {"count": 0, "oldestMs": 0},
        "slowestEndMs": 500,
        "start": 0,
        "keysVersion": 1,
        "admissions": {"allowed": 0, "denied": 0, "unpoliced": 0, "shadowed": 0},
        "usage": {},
        "rulings": {"count": 0, "derivedAgain": 0},
    }


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_ledger_with_keys_that_the_gateway_holds_says_of_how_many_entries_consent_is_not_proven(jobs: int) -> None:
    ledger = maker.staffed()
    report = audit(ledger.export(), pins(ledger), jobs=jobs)
    count = sum("custody" in ledger.value(seq) for seq in range(len(ledger.leaves)))
    assert (faults(report), report.facts["custodial"]) == ([], count)
    assert report.statement[1:] == (f"key held by the gateway: consent not proven, in {count} of these entries",)
    assert count >= 3, "two enrolments by API key and a grant"


def test_a_ledger_is_complete_to_a_pinned_or_witnessed_size() -> None:
    pinned = judge(WORKED.export(), WORKED.checkpoint(12))
    assert (pinned.exit_code, pinned.completeness) == (0, "to size 12 of the given checkpoint")
    witnessed = judge(WORKED.export(WORKED.checkpoint(witnesses=("w1", "w2"))))
    assert (witnessed.exit_code, witnessed.completeness) == (0, "to size 15, witnessed 2/3")
    assert witnessed.level == "witnessed 2/3"


def test_two_processes_find_what_one_finds() -> None:
    ledger = maker.worked()
    ledger.grant(ALICE, "lock:x", signer=BOB)
    content, keyring = ledger.export(), pins(ledger)
    assert audit(content, keyring, jobs=2) == audit(content, keyring, jobs=1)
    assert faults(audit(content, keyring, jobs=2)) == [(10, "request_signature_invalid")]


# --- lies in the bytes: the export no longer gives the signed root ---


def without(seq: int) -> bytes:
    return rebuilt([leaf for index, leaf in enumerate(WORKED.leaves) if index != seq], size=15)


def rebuilt(leaves: list[bytes], size: int | None = None, checkpoint: bytes | None = None) -> bytes:
    """An export of these leaves under the honest checkpoint."""
    head = f"tallystick-ledger/v1 {ORIGIN} {len(leaves) if size is None else size}\n".encode()
    return head + b"".join(leaf + b"\n" for leaf in leaves) + b"\n" + (checkpoint or WORKED.checkpoint())


def swapped(one: int, two: int) -> bytes:
    leaves = list(WORKED.leaves)
    leaves[one], leaves[two] = leaves[two], leaves[one]
    return rebuilt(leaves)


def edited(seq: int, old: bytes, new: bytes) -> bytes:
    assert WORKED.leaves[seq].count(old) >= 1
    return rebuilt([leaf.replace(old, new) if n == seq else leaf for n, leaf in enumerate(WORKED.leaves)])


BYTES = [  # the export, and findings that must be among those reported: (step, seq, code)
    ("an entry dropped", without(8), [(9, 8, "chain_broken"), (9, 8, "seq_differs"), (8, None, "truncated")]),
    ("two entries swapped", swapped(6, 7), [(9, 6, "seq_differs"), (9, 6, "chain_broken"), (8, None, "root_differs")]),
    (
        "a body edited",
        edited(5, b"lock:deploy", b"lock:employ"),
        [(10, 5, "request_signature_invalid"), (9, 6, "chain_broken"), (8, None, "root_differs")],
    ),
    (
        "an entry twice",
        rebuilt([*WORKED.leaves, WORKED.leaves[-1]]),
        [(9, 15, "seq_differs"), (8, None, "root_differs")],
    ),
    ("more entries than promised", rebuilt([*WORKED.leaves, WORKED.leaves[-1]], size=15), [(2, None, "too_long")]),
    (
        "entry 0 twice",
        rebuilt([WORKED.leaves[0], *WORKED.leaves]),
        [(9, 1, "seq_differs"), (9, 1, "genesis_differs"), (8, None, "root_differs")],
    ),
    ("the tail cut", rebuilt(WORKED.leaves[:12], size=15), [(8, None, "truncated"), (8, None, "root_differs")]),
    ("the tail cut with a fitting promise", rebuilt(WORKED.leaves[:12]), [(8, None, "root_differs")]),
    ("a line that is no leaf", rebuilt([*WORKED.leaves[:7], b"{}", *WORKED.leaves[8:]]), [(9, 7, "leaf_malformed")]),
    ("a line above its bound", rebuilt([*WORKED.leaves[:7], b"x" * 65_536]), [(2, None, "source_malformed")]),
    ("no checkpoint", rebuilt(WORKED.leaves)[: -len(WORKED.checkpoint())], [(4, None, "checkpoint_malformed")]),
    ("a file cut inside a leaf", WORKED.export()[:9_000], [(4, None, "checkpoint_malformed")]),
    (
        "a checkpoint of a stranger",
        rebuilt(WORKED.leaves, checkpoint=WORKED.checkpoint(log=STRANGER)),
        [(5, None, "log_signature_missing")],
    ),
]


@pytest.mark.parametrize(("content", "wanted"), [row[1:] for row in BYTES], ids=[row[0] for row in BYTES])
def test_changed_bytes_are_found(content: bytes, wanted: list[tuple[int, int | None, str]]) -> None:
    report = judge(content)
    found = [(finding.step, finding.seq, finding.code) for finding in report.findings]
    assert (report.exit_code, report.level, report.completeness) == (1, "none", "unknown")
    assert set(wanted) <= set(found)


def test_an_export_is_read_no_further_than_it_promises(tmp_path: Path) -> None:
    """Whoever hands over an endless file costs its reader one line more than the first line says."""
    path = tmp_path / "long.export"
    path.write_bytes(rebuilt(WORKED.leaves[:3] * 40_000, size=3))
    with open_source(path) as source:
        assert len(list(source.leaves)) == 3
        assert (source.is_longer, source.checkpoint) == (True, b"")


def test_a_report_says_that_nothing_was_decided_again() -> None:
    for content in (WORKED.export(), b"nonsense"):
        report = judge(content)
        assert "decisions_not_redecided" in remarks(report)
        assert "note decisions_not_redecided" in report.as_text() and "decisions_not_redecided" in report.as_json()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"tallystick-ledger/v2 x 1\n", b"tallystick-ledger/v1 x 01\n\n", b"\xff"]
)
def test_what_is_no_export_is_invalid(content: bytes) -> None:
    report = judge(content)
    assert (faults(report), report.exit_code) == ([(2, "source_malformed")], 1)


# --- lies with the log's signature on them: the gateway itself cheats, everything is linked and signed ---


def lie(tell: Callable[[Ledger], Any]) -> list[tuple[int, int | None, str]]:
    ledger = maker.opened()
    ledger.time_ms += 500
    tell(ledger)
    return of_ledger(ledger)


def nonce_reused(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", nonce="n" * 22)
    ledger.grant(ALICE, "lock:b", nonce="n" * 22)


def key_reused(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", idempotencyKey="once")
    ledger.time_ms += 86_399_999
    ledger.grant(ALICE, "lock:b", idempotencyKey="once")


def token_reused(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a")
    ledger.grant(ALICE, "lock:b", change=lambda leaf: leaf.update(fencingToken=leaf["fencingToken"] - 1))


def token_ahead(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.update(fencingToken=leaf["fencingToken"] + 1))


def anchor_forged(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", anchor=f"{ORIGIN} 4 {b64(bytes(32))}")


def released_twice(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    ledger.release(ALICE, seq)


def expired_after_release(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.release(ALICE, seq)
    ledger.time_ms += 30_000
    ledger.expire(seq)


def renewed_with_another_token(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.renew(ALICE, seq, change=lambda leaf: leaf.update(fencingToken=leaf["fencingToken"] + 1))


def renewed_by_another(ledger: Ledger) -> None:
    ledger.renew(BOB, ledger.grant(ALICE, "lock:a"))


def expired_for_another(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.time_ms += 30_000
    ledger.expire(seq, holder=BOB.did)


def granted_twice(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.grant(BOB, "lock:b", "lock:c")


def renewed_other_resources(ledger: Ledger) -> None:
    seq = ledger.grant(ALICE, "lock:a")
    ledger.renew(ALICE, seq, change=lambda leaf: leaf.update(resources=["lock:b"]))


def one_seq_granted_twice(ledger: Ledger) -> None:
    """Two grants that claim one seq, its release, and a grant of what the first one named."""
    ledger.grant(ALICE, "lock:a")
    ledger.grant(ALICE, "lock:b", change=lambda leaf: leaf.update(seq=5, leaseId="L5"))
    ledger.decision(
        "lease.released",
        ALICE,
        "lease.release",
        {"resource": "lock:b"},
        {"resources": ["lock:b"], "leaseId": "L5", "grantSeq": 5, "fencingToken": ledger.token}
        | {"grantedAtMs": ledger.time_ms},
    )
    ledger.grant(BOB, "lock:a")


def cited_no_grant(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a")
    members = {**ledger.later(5, "resources", "fencingToken", "grantedAtMs"), "leaseId": "L4", "grantSeq": 4}
    ledger.decision("lease.released", ALICE, "lease.release", {"resource": "lock:a"}, members)


def foreign_authority(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", authority="gateway.example.org")


def evidence_missing(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.pop("request"))


def evidence_malformed(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", tag="web-bot-auth")


def stranger_acts(ledger: Ledger) -> None:
    ledger.grant(STRANGER, "lock:a")


def removed_acts(ledger: Ledger) -> None:
    ledger.remove(ALICE)
    ledger.grant(ALICE, "lock:a")


def agent_adds_agent(ledger: Ledger) -> None:
    """The leaf says that ALICE answers for herself, as an operator would."""
    ledger.add(STRANGER, by=ALICE, change=lambda leaf: leaf.update(onBehalfOf=ALICE.did))


def operator_leases(ledger: Ledger) -> None:
    """An operator changes who acts, and holds nothing itself."""
    ledger.grant(OPERATOR, "lock:a")


def time_backwards(ledger: Ledger) -> None:
    ledger.time_ms -= 501
    ledger.grant(ALICE, "lock:a")


def epochs_interleaved(ledger: Ledger) -> None:
    ledger.start()
    ledger.epoch -= 1
    ledger.grant(ALICE, "lock:a")
    ledger.epoch += 1
    ledger.grant(ALICE, "lock:b")


def epoch_skipped(ledger: Ledger) -> None:
    ledger.epoch += 1
    ledger.start()


def started_without_epoch(ledger: Ledger) -> None:
    ledger.epoch -= 1
    ledger.start()


def holiday_twice(ledger: Ledger) -> None:
    seq = ledger.start()
    members = {"untilMs": ledger.time_ms, "startedSeq": seq - 1, "reason": "start"}
    ledger.entry("lease.holiday", "gateway", members)


def genesis_of_another(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.update(genesis="ab" * 32))


def prev_of_another(ledger: Ledger) -> None:
    ledger.grant(ALICE, "lock:a", change=lambda leaf: leaf.update(prev="ab" * 32))


def origin_of_another(ledger: Ledger) -> None:
    ledger.entry("service.started", "gateway", {"cause": "start", "isClean": True, "gapMs": 500}, other_origin)


def other_origin(leaf: dict[str, Any]) -> None:
    leaf.update(origin="other.example/x", epoch=leaf["epoch"] + 1)


LIES: list[tuple[Callable[[Ledger], Any], list[tuple[int, int | None, str]]]] = [
    (nonce_reused, [(10, 6, "nonce_reused")]),
    (key_reused, [(10, 6, "idempotency_key_reused")]),
    (token_reused, [(10, 6, "token_not_rising")]),
    (token_ahead, [(10, 5, "token_wrong")]),
    (anchor_forged, [(10, 5, "anchor_root_wrong")]),
    (released_twice, [(10, 7, "citation_wrong")]),
    (expired_after_release, [(10, 7, "citation_wrong")]),
    (renewed_with_another_token, [(10, 6, "token_wrong")]),
    (renewed_by_another, [(10, 6, "holder_wrong")]),
    (expired_for_another, [(10, 6, "holder_wrong")]),
    (granted_twice, [(10, 6, "double_grant")]),
    (one_seq_granted_twice, [(9, 6, "seq_differs"), (10, 5, "anchor_wrong"), (10, 8, "double_grant")]),
    (renewed_other_resources, [(10, 6, "citation_wrong")]),
    (cited_no_grant, [(10, 6, "citation_wrong")]),
    (foreign_authority, [(10, 5, "authority_wrong")]),
    (evidence_missing, [(10, 5, "evidence_missing")]),
    (evidence_malformed, [(10, 5, "evidence_malformed")]),
    (stranger_acts, [(10, 5, "agent_unknown")]),
    (removed_acts, [(10, 6, "agent_removed")]),
    (agent_adds_agent, [(10, 5, "on_behalf_wrong"), (10, 5, "operator_required")]),
    (operator_leases, [(10, 5, "agent_unknown")]),
    (time_backwards, [(9, 5, "time_backwards")]),
    (epochs_interleaved, [(9, 7, "epoch_wrong"), (9, 8, "epoch_wrong")]),
    (epoch_skipped, [(9, 5, "epoch_wrong")]),
    (started_without_epoch, [(9, 5, "epoch_wrong")]),
    (holiday_twice, [(10, 7, "citation_wrong")]),
    (genesis_of_another, [(9, 5, "genesis_differs")]),
    (prev_of_another, [(9, 5, "chain_broken")]),
    (origin_of_another, [(9, 5, "origin_differs")]),
]


@pytest.mark.parametrize(("tell", "wanted"), LIES, ids=[tell.__name__ for tell, _ in LIES])
def test_a_lie_under_the_logs_own_signature_is_found_at_its_entry(
    tell: Callable[[Ledger], Any], wanted: list[tuple[int, int | None, str]]
) -> None:
    assert lie(tell) == wanted


def test_what_is_allowed_though_it_looks_like_a_lie() -> None:
    """A key is free after 24 hours, a nonce after its window; a removed agent may come back."""
    ledger = maker.opened()
    ledger.grant(ALICE, "lock:a", idempotencyKey="once", nonce="n" * 22)
    ledger.grant(BOB, "lock:b", idempotencyKey="once", nonce="n" * 22)
    ledger.time_ms += 86_400_000
    ledger.expire(5)
    ledger.expire(6)
    again = ledger.grant(ALICE, "lock:d", idempotencyKey="once", nonce="n" * 22)
    ledger.returned(again, ledger.remove(ALICE))
    ledger.add(ALICE)
    ledger.grant(ALICE, "lock:e")
    assert of_ledger(ledger) == []


def test_one_actor_may_hold_a_resource_under_two_leases_and_the_next_waits_for_both() -> None:
    ledger = maker.opened()
    one, two = ledger.grant(ALICE, "lock:a"), ledger.grant(ALICE, "lock:a", "lock:b")
    ledger.release(ALICE, one)
    taken = maker.Ledger(list(ledger.leaves), ledger.time_ms, ledger.epoch, ledger.token, ledger.counter)
    taken.grant(BOB, "lock:a")
    assert of_ledger(taken) == [(10, 8, "double_grant")]
    ledger.release(ALICE, two)
    ledger.grant(BOB, "lock:a")
    assert of_ledger(ledger) == []


def test_under_dev_too_a_key_acts_only_while_an_operator_has_added_it() -> None:
    """The throw-away gateway writes a signed agent.added on first use, so no ledger needs an exception."""
    ledger = Ledger()
    ledger.open(isDev=True)
    ledger.grant(STRANGER, "lock:a")
    ledger.add(STRANGER)
    ledger.grant(STRANGER, "lock:b")
    removed = ledger.remove(STRANGER)
    ledger.returned(1, removed)
    ledger.returned(3, removed)
    ledger.grant(STRANGER, "lock:c")
    assert of_ledger(ledger) == [(10, 1, "agent_unknown"), (10, 7, "agent_removed")]


def test_an_unknown_type_ends_the_check_there_and_is_no_lie() -> None:
    ledger = maker.opened()
    ledger.entry("lease.lent", "gateway", {"novelty": 1})
    ledger.grant(ALICE, "lock:a", signer=BOB)
    report = audit(ledger.export(), pins(ledger), ledger.checkpoint())
    assert (faults(report), report.exit_code) == ([(9, "type_unknown")], 3)
    assert report.completeness == "chain and tree to size 7 of the given checkpoint; checked to 4"


# --- pins ---


def test_a_ledger_below_the_given_checkpoint_is_invalid_never_complete() -> None:
    """Scenario 52."""
    short = Ledger(leaves=WORKED.leaves[:12])
    report = judge(short.export(), WORKED.checkpoint())
    assert (faults(report), report.exit_code, report.completeness) == ([(8, "truncated")], 1, "unknown")


def test_an_empty_ledger_is_never_complete() -> None:
    """Scenario 52."""
    empty = Ledger()
    report = judge(empty.export())
    assert (faults(report), report.exit_code, report.completeness) == ([(9, "empty")], 3, "unknown")
    pinned = judge(empty.export(), WORKED.checkpoint())
    assert (faults(pinned), pinned.exit_code) == ([(9, "empty"), (8, "truncated")], 1)
    zero = judge(empty.export(), empty.checkpoint())
    assert (zero.exit_code, zero.completeness) == (3, "unknown")


def test_a_ledger_and_a_checkpoint_of_another_history_prove_a_split_view() -> None:
    other = maker.opened()
    while len(other.leaves) < 12:
        other.grant(BOB, f"lock:n{len(other.leaves)}")
    report = judge(WORKED.export(), other.checkpoint())
    assert (faults(report), report.exit_code) == ([(12, "two_roots")], 4)


def test_a_checkpoint_that_nobody_pinned_signed_is_no_pin() -> None:
    report = judge(WORKED.export(), WORKED.checkpoint(log=STRANGER))
    assert (faults(report), report.exit_code, report.completeness) == ([(5, "log_signature_missing")], 1, "unknown")


def test_the_pinned_root_and_genesis_must_be_entry_0s() -> None:
    other = pins(WORKED, keys=WORKED.keys(genesis="ab" * 32))
    assert faults(audit(WORKED.export(), other)) == [(9, "genesis_differs")]
    ledger = Ledger()
    ledger.open(root=STRANGER.vkey(f"{ORIGIN}/root"))
    assert of_ledger(ledger) == [(9, 0, "root_differs")]


def test_a_policy_alone_is_enough_for_a_ledger() -> None:
    report = audit(WORKED.export(), open_keyring(policy=maker.policy()))
    assert (report.exit_code, remarks(report)) == (0, ["size_not_checked", "not_witnessed", "decisions_not_redecided"])


def test_another_origin_is_not_pinned() -> None:
    policy = f"log {LOG.vkey('other.example/x')}\nquorum none\n".encode()
    assert faults(audit(WORKED.export(), open_keyring(policy=policy))) == [(5, "origin_unknown")]


def test_a_checkpoint_of_another_pinned_log_is_no_checkpoint_of_this_ledger() -> None:
    """The reader pins two logs; the other one's genuine signature says nothing about these entries."""
    text = f"other.example/x\n15\n{b64(WORKED.root())}\n"
    other = f"{text}\n{STRANGER.note_line('other.example/x', text)}".encode()
    policy = f"log {LOG.vkey(ORIGIN)}\nlog {STRANGER.vkey('other.example/x')}\nquorum none\n".encode()
    for content, checkpoint in ((WORKED.export(other), None), (WORKED.export(), other)):
        report = audit(content, open_keyring(policy=policy), checkpoint)
        assert (faults(report), report.completeness) == ([(5, "origin_differs")], "unknown")


def test_what_must_not_come_again_is_forgotten_when_it_may() -> None:
    """Memory follows live state: a year of nonces leaves only those of the last minutes."""
    once = Once(1_000)
    for time_ms in range(0, 100_000, 10):
        assert not once.is_again(f"nonce {time_ms}", time_ms, time_ms + 500)
        assert once.is_again(f"nonce {time_ms}", time_ms, time_ms + 500)
    assert len(once._until) <= 102 and len(once._order) <= 204
    assert once.is_again("nonce 99990", 100_489, 100_490) and not once.is_again("nonce 99990", 100_490, 100_491)


def test_ended_leases_leave_nothing_behind() -> None:
    relations = Relations()
    for leaf_bytes in WORKED.leaves[:13]:
        [entry] = judge_afar([leaf_bytes], frozenset())
        assert entry.leaf is not None
        relations.open(entry.leaf, entry.leaf_hash) if entry.leaf.seq == 0 else list(
            relations.faults(entry.leaf, entry)
        )
    state = relations.state
    assert (state.lease, bool(state.leases), state.leases_of, state.names_held) == ({}, False, {}, {})


def test_a_forged_ledger_does_not_fill_memory_with_complaints() -> None:
    leaves = [b"{}"] * 3_000
    report = judge(rebuilt(leaves))
    assert len(report.findings) <= 1_010


def test_no_fault_hides_behind_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who makes his own remarks, by a session with two users say, must not use up the places of what convicts him."""
    monkeypatch.setattr("verifier.replay.audit.REMARKS_MAX", 2)
    monkeypatch.setattr("verifier.replay.audit.FINDINGS_MAX", 4)
    known = Audit(pins(WORKED))
    for number in range(5):
        known.say(10, "session_shared", "a remark", number, Outcome.VALID)
    known.say(9, "type_unknown", "something new", 5, Outcome.INDETERMINATE)
    for number in range(6, 9):
        known.say(10, "double_grant", "a fault", number)
    said = [(finding.seq, finding.code) for finding in known.findings]
    assert said == [(0, "session_shared"), (1, "session_shared"), (5, "type_unknown"), (6, "double_grant")]


def test_decisions_that_failed_are_counted_and_nobody_is_accused() -> None:
    ledger = maker.opened()
    failed = {"action": "lease.acquire", "error": "decision_failed", "number": 901}
    for _ in range(2):
        ledger.decision("decision.failed", ALICE, "lease.acquire", {"resources": ["lock:a"]}, failed)
    report = audit(ledger.export(), pins(ledger))
    assert (report.exit_code, faults(report), report.facts["unexplained"]) == (0, [], 2)
    assert "decisions that failed, and nobody can say whether they had to: 2" in report.as_text()


# --- tile directories ---


def tiles(ledger: Ledger, folder: Path) -> Path:
    """Write bundles as a tile server would; hash tiles are not needed, the tree is computed."""
    (folder / "tile/entries").mkdir(parents=True)
    (folder / "checkpoint").write_bytes(ledger.checkpoint())
    bundle = b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in ledger.leaves)
    partial = folder / f"tile/entries/000.p/{len(ledger.leaves)}"
    partial.parent.mkdir()
    partial.write_bytes(bundle)
    return folder


def test_a_tile_directory_is_read_like_an_export(tmp_path: Path) -> None:
    report = check_ledger(tiles(WORKED, tmp_path), pins(WORKED), WORKED.checkpoint(9))
    assert (report.exit_code, report.completeness) == (0, "to size 9 of the given checkpoint")
    assert report.facts == judge(WORKED.export()).facts


def test_a_partial_bundle_may_have_become_a_longer_one(tmp_path: Path) -> None:
    """A server may drop the partial tile once the full one exists; its prefix is taken."""
    folder = tiles(WORKED, tmp_path)
    (folder / "checkpoint").write_bytes(WORKED.checkpoint(12))
    (folder / "tile/entries/000.p/15").rename(folder / "tile/entries/000")
    assert check_ledger(folder, pins(WORKED)).facts["size"] == 12


def piped(bundle: Path) -> None:
    bundle.unlink()
    os.mkfifo(bundle)


def unfolded(bundle: Path) -> None:
    bundle.unlink()
    bundle.mkdir()


def linked(bundle: Path) -> None:
    shutil.move(bundle, f"{bundle}0")
    bundle.symlink_to(f"{bundle}0")


DAMAGE: list[tuple[str, Callable[[Path], Any], tuple[int, str]]] = [
    ("a bundle is missing", lambda b: b.unlink(), (2, "source_malformed")),
    ("a bundle has a tail", lambda b: b.write_bytes(b.read_bytes() + b"x"), (2, "source_malformed")),
    ("a bundle is cut", lambda b: b.write_bytes(b.read_bytes()[:-1]), (2, "source_malformed")),
    ("a bundle is empty", lambda b: b.write_bytes(b""), (2, "source_malformed")),
    ("a bundle is a link", linked, (2, "source_malformed")),
    ("a bundle is a pipe", piped, (2, "source_malformed")),
    ("a bundle is a directory", unfolded, (2, "source_malformed")),
    ("a bundle is altered", lambda b: b.write_bytes(b.read_bytes().replace(b"lock:", b"mock:")), (9, "leaf_malformed")),
]


@pytest.mark.parametrize(("damage", "wanted"), [row[1:] for row in DAMAGE], ids=[row[0] for row in DAMAGE])
def test_a_damaged_tile_directory_is_invalid(
    tmp_path: Path, damage: Callable[[Path], Any], wanted: tuple[int, str]
) -> None:
    folder = tiles(WORKED, tmp_path)
    damage(folder / "tile/entries/000.p/15")
    report = check_ledger(folder, pins(WORKED))
    assert report.exit_code == 1
    assert wanted in faults(report)


def test_a_checkpoint_that_is_a_pipe_holds_nobody_up(tmp_path: Path) -> None:
    folder = tiles(WORKED, tmp_path)
    (folder / "checkpoint").unlink()
    os.mkfifo(folder / "checkpoint")
    assert faults(check_ledger(folder, pins(WORKED))) == [(2, "source_malformed")]


def test_a_missing_path_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path / "no\0name"):
        report = check_ledger(path, pins(WORKED))
        assert (report.exit_code, report.level) == (2, "none")


def test_a_directory_without_checkpoint_is_invalid(tmp_path: Path) -> None:
    assert check_ledger(tmp_path, pins(WORKED)).exit_code == 1


def test_tile_numbers_are_spelt_as_c2sp_does() -> None:
    names = {0: "000", 5: "005", 999: "999", 1_000: "x001/000", 1_234_067: "x001/x234/067"}
    assert {number: tile_path(number) for number in names} == names
