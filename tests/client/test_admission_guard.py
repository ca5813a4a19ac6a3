"""One admission, one act: whatever else is shown, by whom, how often and after which crash."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from gateway.client import approval
from gateway.client.admission import Admission
from gateway.client.admission_guard import EARLY_MS, AdmissionGuard, Deed, answer_admission, sign_act
from gateway.client.errors import AnswerRefused, Fenced, FenceStale
from gateway.client.fence import Answer, FenceGuard, SignedWrite, answer_challenge, sign_write
from gateway.client.fence_memory import KEPT_MS, Memory
from gateway.client.guards.carrier import LINE_CHARACTERS_MAX, receipt_in_lines, receipt_lines
from keys.signing import SigningKey
from tests.client.world import ALICE, BOB, FILE, ORIGIN, Book, LocalGateway, ManualClock, key
from verifier.keyring import Keyring
from verifier.note import (
    KIND_COSIGNATURE,
    Note,
    cosignature_message,
    encode_note,
    make_vkey,
    parse_note,
    signature_line,
)
from verifier.policy import parse_policy
from verifier.proof import Proof, encode_proof
from verifier.wire import JsonObject, encode_canonical, parse_json

DOES = b"the new content"
WRITE = Deed("file.write", (FILE,))
LEASES = "/api/v1/acp/coordination/leases?holder=me"
RULES: JsonObject = {
    "version": 3, "digest": "ab" * 32, "mode": "enforce", "engine": "cedar/4.12.0", "decision": "allow",
    "matched": ["may-write"], "obligations": [],
}  # fmt: skip
WITNESS = key(77)
WITNESS_VKEY = make_vkey("witness.example/w", WITNESS.public_key, KIND_COSIGNATURE)


@pytest.fixture
def gateway() -> LocalGateway:
    found = LocalGateway(Book(), ManualClock())
    found.views[LEASES] = {"ok": True, "leases": []}
    return found


@pytest.fixture
def guard(gateway: LocalGateway) -> Iterator[AdmissionGuard]:
    made = new_guard(gateway)
    yield made
    made.close()


def new_guard(gateway: LocalGateway, path: Path | Memory | None = None, **options: Any) -> AdmissionGuard:
    options = {"rules": "any", "wall_ms": gateway.clock.wall_ms, "busy_ms": 1, **options}
    return AdmissionGuard(options.pop("keyring", gateway.book.keyring), ORIGIN, path, **options)


async def admitted(
    gateway: LocalGateway, holder: SigningKey = ALICE, *names: str, mode: str = "write", operation: str = "file.write"
) -> Admission:
    """Take a lease on `names` (whoever had it let it run out) and ask for an admission of DOES under it."""
    gateway.clock.jump(300_000)
    async with gateway.agent(holder) as agent:
        await agent.acquire(names or FILE, mode="write")
        return await agent.admit(operation, names or FILE, mode=mode, arguments=DOES)


def use(
    guard: AdmissionGuard,
    admission: Admission | bytes,
    holder: SigningKey = ALICE,
    act: Deed = WRITE,
    content: bytes = DOES,
    proof: Answer | SignedWrite | None = None,
) -> str:
    """Answer a challenge and act; return whose admission it was."""
    receipt = admission if isinstance(admission, bytes) else admission.receipt.data
    if proof is None:
        challenge = guard.challenge()
        proof = Answer(challenge, answer_admission(holder, challenge, receipt))
    with guard.permit(receipt, proof, act, content) as verified:
        return verified.leaf.actor


def refused(code: str, guard: AdmissionGuard, *arguments: Any, **named: Any) -> str:
    with pytest.raises(Fenced) as caught:
        use(guard, *arguments, **named)
    assert caught.value.code == code, caught.value
    return str(caught.value)


# -- once --------------------------------------------------------------------------------------------------------------


async def test_an_admission_is_used_once(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    assert use(guard, admission) == ALICE.did
    assert "good for one execution" in refused("used", guard, admission)
    assert use(guard, await admitted(gateway)) == ALICE.did


async def test_an_act_that_failed_has_used_its_admission_up(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    proof = sign_act(ALICE, DOES, admission.receipt.data)
    with pytest.raises(OSError, match="disk"), guard.permit(admission.receipt.data, proof, WRITE, DOES):
        raise OSError("disk")
    refused("used", guard, admission, proof=proof)


async def test_what_was_refused_uses_nothing_up(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    refused("other_content", guard, admission, content=b"something else")
    refused("not_proven", guard, admission, BOB)
    use(guard, admission)


async def test_two_guards_on_one_file_let_it_through_once(gateway: LocalGateway, tmp_path: Path) -> None:
    path = tmp_path / "guard.sqlite3"
    here, there = new_guard(gateway, path), new_guard(gateway, path)
    admission = await admitted(gateway)
    proof = sign_act(ALICE, DOES, admission.receipt.data)
    with here.permit(admission.receipt.data, proof, WRITE, DOES):
        refused("busy", there, admission)
    refused("used", there, admission)
    here.close()
    there.close()
    later = new_guard(gateway, path)
    refused("used", later, admission)
    later.close()


_VICTIM = """
import os, signal, sys
from pathlib import Path
from gateway.client.admission_guard import Deed, AdmissionGuard
from gateway.client.fence import SignedWrite
from verifier.keyring import open_keyring
folder, now_ms, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
keyring = open_keyring(root=(folder / "root").read_text(), document=(folder / "keys").read_bytes())
guard = AdmissionGuard(keyring, "gateway.example/main", folder / "guard.sqlite3", rules="any", wall_ms=lambda: now_ms)
content = (folder / "content").read_bytes()
proof = SignedWrite(b"", (folder / "signature").read_bytes())
with guard.permit((folder / "receipt").read_bytes(), proof, Deed("file.write", ("repo:app/src/a.py",)), content):
    (folder / "written").open("ab").write(content)
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_kill_9_in_the_middle_of_the_write_and_the_same_again(gateway: LocalGateway, tmp_path: Path) -> None:
    """The process dies with its write half done; the next one does not do it a second time."""
    admission = await admitted(gateway)
    receipt = admission.receipt.data
    (tmp_path / "root").write_text(gateway.book.root_vkey.vkey)
    (tmp_path / "keys").write_bytes(gateway.book.document)
    (tmp_path / "content").write_bytes(DOES)
    (tmp_path / "receipt").write_bytes(receipt)
    (tmp_path / "signature").write_bytes(sign_act(ALICE, DOES, receipt).signature)

    def run(how: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-c", _VICTIM, str(tmp_path), str(gateway.clock.wall_ms()), how]
        return subprocess.run(
            arguments, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip

    assert run("die").returncode == -signal.SIGKILL
    again = run("live")
    assert again.returncode == 1
    assert "was used before" in again.stderr
    assert (tmp_path / "written").read_bytes() == DOES


# -- what it is of -----------------------------------------------------------------------------------------------------


async def test_only_this_very_content(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    for content in (b"", DOES + b" ", DOES[:-1], sha256(DOES).digest()):
        refused("other_content", guard, admission, content=content)
    receipt = admission.receipt.data
    proof = sign_act(ALICE, DOES, receipt)
    with pytest.raises(ValueError, match="once"), guard.permit(receipt, proof, WRITE, DOES, digest="0" * 64):
        pass
    with guard.permit(receipt, proof, WRITE, digest=sha256(DOES).hexdigest()):
        pass


@pytest.mark.parametrize(
    "act",
    [
        Deed("file.delete", (FILE,)),
        Deed("file.write", (FILE,), "delete"),
        Deed("file.write", (FILE,), "append"),
        Deed("file.write", ("repo:app/src/b.py",)),
        Deed("file.write", (FILE, "repo:app/src/b.py")),
        Deed("file.write", ("repo:app/src/**",)),
        Deed("file.write", ("REPO:app/src/a.py".lower().replace("a.py", "A.py"),)),
        Deed("file.write", ()),
    ],
)
async def test_only_this_operation_mode_and_names(gateway: LocalGateway, guard: AdmissionGuard, act: Deed) -> None:
    refused("other_act", guard, await admitted(gateway), act=act)


async def test_of_several_names_some_may_be_touched_and_case_folds_as_the_entry_says(
    gateway: LocalGateway, guard: AdmissionGuard
) -> None:
    gateway.desk.folding.add("repo")
    admission = await admitted(gateway, ALICE, FILE, "repo:app/src/b.py")
    use(guard, admission, act=Deed("file.write", ("repo:APP/src/B.py",)))


async def test_a_lease_is_no_admission_and_neither_is_a_denial(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    async with gateway.agent(ALICE) as agent:
        grant = await agent.acquire(FILE)
        assert "admits nothing" in refused("not_admitted", guard, grant.receipt.data)
        await agent.release(FILE)
        with pytest.raises(FenceStale) as denied:
            await agent.admit("file.write", FILE, arguments=DOES, lease=grant)
    refused("not_admitted", guard, denied.value.receipt.data)


# -- who ---------------------------------------------------------------------------------------------------------------


async def test_a_receipt_is_no_ticket_for_somebody_else(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    """Receipts are public: B shows A's, and answers with the only key it has."""
    admission = await admitted(gateway)
    receipt = admission.receipt.data
    refused("not_proven", guard, admission, BOB)
    refused("not_proven", guard, admission, proof=sign_act(BOB, DOES, receipt))
    refused("not_proven", guard, admission, proof=Answer("made-up", b"\0" * 64))
    challenge = guard.challenge()
    answer = Answer(challenge, answer_admission(ALICE, challenge, receipt))
    refused("other_content", guard, admission, content=b"x", proof=answer)
    refused("not_proven", guard, admission, proof=answer)  # a challenge is answered once


async def test_what_was_signed_for_a_fence_guard_opens_no_admission(
    gateway: LocalGateway, guard: AdmissionGuard
) -> None:
    receipt = (await admitted(gateway)).receipt.data
    challenge = guard.challenge()
    refused("not_proven", guard, receipt, proof=Answer(challenge, answer_challenge(ALICE, challenge, FILE, receipt)))
    refused("not_proven", guard, receipt, proof=sign_write(ALICE, DOES, FILE, receipt))


async def test_every_flipped_byte_is_refused(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    receipt = (await admitted(gateway)).receipt.data
    for at in range(0, len(receipt), 7):
        changed = bytearray(receipt)
        changed[at] ^= 1
        with pytest.raises((Fenced, AnswerRefused)):
            use(guard, bytes(changed))
    use(guard, receipt)


async def foreign_lease(gateway: LocalGateway) -> tuple[Book, bytes]:
    """A ledger of another gateway, and a receipt of it."""
    other = LocalGateway(Book("other.example/main", seed=151), gateway.clock)
    async with other.agent(ALICE) as agent:
        return other.book, (await agent.acquire(FILE)).receipt.data


async def test_a_receipt_of_another_ledger(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    other, foreign = await foreign_lease(gateway)
    with pytest.raises(AnswerRefused):
        use(guard, foreign)
    with pytest.raises(Fenced, match="is not of"):
        AdmissionGuard(other.keyring, ORIGIN)
    with pytest.raises(Fenced, match="belongs to the ledger"):
        AdmissionGuard(other.keyring, other.origin, guard.memory)


async def test_a_policy_that_pins_other_logs_does_not_let_their_ledgers_in(gateway: LocalGateway) -> None:
    """Where no receipt key speaks (a batch may leave it out) the log of another ledger alone would carry a receipt."""
    other, foreign = await foreign_lease(gateway)
    for kind in (new_guard(gateway), FenceGuard(gateway.book.keyring, ORIGIN, wall_ms=gateway.clock.wall_ms)):
        kind._keyring = Keyring(policy=parse_policy(f"log {other.log_vkey.vkey}\nquorum none\n".encode()))
        with pytest.raises(Fenced, match=r"is of other\.example/main"):
            kind.opened(foreign)
        kind.close()


# -- until when --------------------------------------------------------------------------------------------------------


async def test_it_ends_earlier_by_the_guards_clock(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    left_ms = admission.valid_until_ms - gateway.clock.wall_ms()
    gateway.clock.jump(left_ms - EARLY_MS)
    assert "over, or nearly" in refused("expired", guard, admission)
    gateway.clock.jump(-1)
    use(guard, admission)


async def test_a_guard_whose_clock_is_behind_refuses_and_says_so(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    gateway.clock.jump(-EARLY_MS - 1)
    assert "5001 ms behind" in refused("clock_behind", guard, admission)
    gateway.clock.jump(1)
    use(guard, admission)


async def test_a_clock_set_back_brings_no_admission_back(gateway: LocalGateway, tmp_path: Path) -> None:
    """The newest entry that was shown is a time that has come; what ended before it stays ended."""
    guard = new_guard(gateway, tmp_path / "guard.sqlite3")
    never_used = await admitted(gateway)
    then_ms = gateway.clock.wall_ms()
    use(guard, await admitted(gateway))  # five minutes later
    guard.close()
    later = new_guard(gateway, tmp_path / "guard.sqlite3", wall_ms=lambda: then_ms)
    assert "later entry" in refused("expired", later, never_used)
    later.close()


async def test_a_clock_that_was_ahead_for_a_while_makes_nothing_usable_twice(
    gateway: LocalGateway, tmp_path: Path
) -> None:
    """What was forgotten too early may have been used: refused, until newer admissions come."""
    admission, path = await admitted(gateway), tmp_path / "guard.sqlite3"
    guard = new_guard(gateway, path)
    use(guard, admission)
    ahead_ms = admission.valid_until_ms + KEPT_MS
    with guard.memory.admitted((), _never(ahead_ms), lambda: ahead_ms):
        pass
    assert guard.memory.connection.execute("SELECT name FROM used").fetchall() == [("a day later",)]
    assert "may have been used" in refused("expired", guard, admission)
    guard.close()


def _never(now_ms: int) -> Any:
    from gateway.client.fence_memory import Use

    return Use("a day later", now_ms + 86_400_000)


async def test_what_is_over_is_forgotten(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    for _ in range(4):
        use(guard, await admitted(gateway))
    assert guard.memory.connection.execute("SELECT count(*) FROM used").fetchone() == (1,)


async def test_what_ends_while_it_waits_for_its_turn_is_over(gateway: LocalGateway) -> None:
    admission = await admitted(gateway)
    times = iter([0, 0, admission.valid_until_ms])
    now_ms = gateway.clock.wall_ms()
    guard = new_guard(gateway, wall_ms=lambda: max(now_ms, next(times, admission.valid_until_ms)))
    refused("expired", guard, admission)
    guard.close()


# -- fences ------------------------------------------------------------------------------------------------------------


async def test_41_after_42_is_refused(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    """Scenarios 11, L1, L46: A was admitted and stalls, B took the lease over and wrote; A's admission still runs."""
    old = await admitted(gateway)
    async with gateway.agent(ALICE) as agent:
        await agent.release(FILE)
    async with gateway.agent(BOB) as agent:
        await agent.acquire(FILE)
        new = await agent.admit("file.write", FILE, arguments=DOES)
    use(guard, new, BOB)
    assert f"token {old.fencing_token} is older than {new.fencing_token}" in refused("stale_fence", guard, old)


@pytest.mark.parametrize("is_fence_first", [True, False])
async def test_both_guards_share_one_memory(gateway: LocalGateway, tmp_path: Path, is_fence_first: bool) -> None:
    admissions = new_guard(gateway, tmp_path / "guard.sqlite3")
    fences = FenceGuard(gateway.book.keyring, ORIGIN, admissions.memory, wall_ms=gateway.clock.wall_ms)
    async with gateway.agent(ALICE) as agent:
        old = await agent.acquire(FILE)
        admission = await agent.admit("file.write", FILE, arguments=DOES)
        await agent.release(FILE)
    async with gateway.agent(BOB) as agent:
        new = await agent.acquire(FILE)
        newer = await agent.admit("file.write", FILE, arguments=DOES)
    if is_fence_first:
        fences.check(new.receipt.data, FILE, sign_write(BOB, DOES, FILE, new.receipt.data))
        refused("stale_fence", admissions, admission)
    else:
        use(admissions, newer, BOB)
        with pytest.raises(Fenced, match="is older than"):
            fences.check(old.receipt.data, FILE, sign_write(ALICE, DOES, FILE, old.receipt.data))
    admissions.close()


async def test_what_is_read_without_a_lease_is_compared_by_its_time_and_recorded_nowhere(
    gateway: LocalGateway, guard: AdmissionGuard
) -> None:
    gateway.clock.jump(300_000)
    read = Deed("file.write", (FILE,), "read")
    async with gateway.agent(ALICE) as agent:
        first = await agent.admit("file.write", FILE, mode="read", arguments=DOES)
        second = await agent.admit("file.write", FILE, mode="read", arguments=DOES)
    use(guard, first, act=read)
    assert guard.memory.connection.execute("SELECT count(*) FROM fence").fetchone() == (0,)
    gateway.clock.jump(1)
    async with gateway.agent(BOB) as agent:
        await agent.acquire(FILE)
        use(guard, await agent.admit("file.write", FILE, arguments=DOES), BOB)
    refused("stale_fence", guard, second, act=read)


def test_a_file_of_the_guard_before_is_taken_over_with_all_its_tokens(gateway: LocalGateway, tmp_path: Path) -> None:
    path = tmp_path / "fence.sqlite3"
    fence = FenceGuard(gateway.book.keyring, ORIGIN, path)
    fence.memory.connection.executescript("DROP TABLE used; DROP TABLE times; PRAGMA user_version = 2;")
    fence.memory.connection.execute("INSERT INTO fence VALUES ('repo:a', 'repo:a', 0, 'exclusive', 'write', 'A', 42)")
    fence.close()
    guard = new_guard(gateway, path)
    guard.close()
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT token FROM fence").fetchone() == (42,)
        assert file.execute("SELECT count(*) FROM times").fetchone() == (1,)
        assert file.execute("PRAGMA user_version").fetchone() == (3,)


# -- rules and witnesses -----------------------------------------------------------------------------------------------


async def test_by_itself_it_wants_rules_that_are_enforced(gateway: LocalGateway) -> None:
    guard = new_guard(gateway, rules="enforce")
    assert "under no rules" in refused("unpoliced", guard, await admitted(gateway))
    shadow: JsonObject = {**RULES, "mode": "shadow"}
    for said in (shadow, {**shadow, "decision": "deny", "matched": []}):
        gateway.desk.gate.rules = said
        assert "only watch" in refused("unpoliced", guard, await admitted(gateway))
    gateway.desk.gate.rules = RULES
    use(guard, await admitted(gateway))
    guard.close()
    assert AdmissionGuard(gateway.book.keyring, ORIGIN)._rules == "enforce"


async def test_one_rule_set_may_be_pinned(gateway: LocalGateway) -> None:
    gateway.desk.gate.rules = RULES
    guard = new_guard(gateway, rules="enforce", rules_digest="cd" * 32)
    refused("other_rules", guard, await admitted(gateway))
    guard.close()
    guard = new_guard(gateway, rules="any", rules_digest="ab" * 32)
    use(guard, await admitted(gateway))
    gateway.desk.gate.rules = None
    refused("other_rules", guard, await admitted(gateway))
    guard.close()


def witnessed(gateway: LocalGateway, seq: int, witness: SigningKey = WITNESS) -> bytes:
    """Return the receipt of an entry in a checkpoint that a witness cosigned."""
    note, time_s = parse_note(gateway.book.checkpoint()), gateway.clock.wall_ms() // 1_000
    payload = time_s.to_bytes(8, "big") + witness.sign(cosignature_message(time_s, note.text))
    cosigned = encode_note(Note(note.text, (*note.lines, signature_line(WITNESS_VKEY, payload))))
    size = gateway.book.tree.size
    proof = encode_proof(Proof(seq, gateway.book.tree.path(seq, size), cosigned, None))
    return encode_canonical({**gateway.book.receipt(seq), "proof": proof.decode()})


def policy_of(gateway: LocalGateway, quorum: str = "w") -> Keyring:
    text = f"log {gateway.book.log_vkey.vkey}\nwitness w {WITNESS_VKEY.vkey}\nquorum {quorum}\n"
    return replace(gateway.book.keyring, policy=parse_policy(text.encode()))


async def test_what_is_irreversible_waits_for_witnesses(gateway: LocalGateway) -> None:
    gateway.desk.classes["repo"] = "irreversible"
    about = approval.Act(ORIGIN, ALICE.did, "file.write", (FILE,), "write", sha256(DOES).hexdigest())
    approved = approval.approve(key(21), about, genesis=gateway.book.genesis, now_ms=gateway.clock.wall_ms())
    async with gateway.agent(ALICE) as agent:
        await agent.acquire(FILE)
        admission = await agent.admit("file.write", FILE, arguments=DOES, approvals=[approved])
    good = witnessed(gateway, admission.seq)
    without = new_guard(gateway)
    assert "this guard has no policy" in refused("unwitnessed", without, admission)
    refused("unwitnessed", without, good)
    without.close()
    nobody = new_guard(gateway, keyring=policy_of(gateway, "none"))
    refused("unwitnessed", nobody, good)
    nobody.close()
    guard = new_guard(gateway, keyring=policy_of(gateway))
    assert "its receipt is included" in refused("unwitnessed", guard, admission)
    with pytest.raises((Fenced, AnswerRefused)):
        use(guard, witnessed(gateway, admission.seq, BOB))
    use(guard, good)
    refused("used", guard, witnessed(gateway, admission.seq))
    guard.close()


async def test_a_service_may_want_witnesses_for_everything(gateway: LocalGateway) -> None:
    guard = new_guard(gateway, keyring=policy_of(gateway), level="witnessed")
    admission = await admitted(gateway)
    refused("unwitnessed", guard, admission)
    use(guard, witnessed(gateway, admission.seq))
    guard.close()


@pytest.mark.parametrize("named", [{"rules": "shadow"}, {"level": "signed"}])
def test_settings_that_do_not_exist_are_refused(gateway: LocalGateway, named: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rules is"):
        new_guard(gateway, **named)


# -- carrier -----------------------------------------------------------------------------------------------------------


async def test_a_receipt_in_a_header_is_the_same_receipt(gateway: LocalGateway, guard: AdmissionGuard) -> None:
    admission = await admitted(gateway)
    lines = receipt_lines(admission.receipt.data)
    assert [len(line) < 3_000 for line in lines] == [True]
    assert parse_json(receipt_in_lines(lines), bytes_max=10**6) == parse_json(admission.receipt.data, bytes_max=10**6)
    use(guard, receipt_in_lines(lines))


async def test_a_receipt_of_64_names_takes_more_lines_which_a_proxy_may_join(gateway: LocalGateway) -> None:
    names = [f"repo:{sha256(bytes([at])).hexdigest() * 3}" for at in range(64)]
    receipt = (await admitted(gateway, ALICE, *names)).receipt.data
    lines = receipt_lines(receipt)
    assert max(map(len, lines)) == LINE_CHARACTERS_MAX or len(lines) == 1
    for spelled in (lines, (", ".join(lines),), (",".join(lines),)):
        assert parse_json(receipt_in_lines(spelled), bytes_max=10**6) == parse_json(receipt, bytes_max=10**6)


def test_a_receipt_that_unfolds_beyond_its_bound_is_not_unfolded() -> None:
    import zlib

    bomb = b64encode(zlib.compress(b'{"payload":"' + b"a" * 50_000_000 + b'"}', 9)).decode()
    for text, code in (
        (bomb.replace("+", "-").replace("/", "_").rstrip("=")[:7_000], "receipt_malformed"),
        ("a" * (LINE_CHARACTERS_MAX * 5), "receipt_too_large"),
        ("ä", "receipt_malformed"),
        ("AAAA", "receipt_malformed"),
        ("", "receipt_malformed"),
    ):
        with pytest.raises(Fenced) as caught:
            receipt_in_lines((text,))
        assert caught.value.code == code
