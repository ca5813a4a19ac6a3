"""The guard on the protected side: an older token of somebody else never writes."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.fence import (
    CHALLENGES_MAX,
    LATE_MS,
    Answer,
    FenceGuard,
    Permit,
    SignedWrite,
    answer_challenge,
    sign_write,
)
from gateway.client.trust import Grant
from keys.signing import SigningKey
from tests.client.world import ALICE, BOB, FILE, ORIGIN, Book, LocalGateway, ManualClock
from verifier.entries import CLASSES, MODES, covers, key_of, may_share, overlaps, scheme_of

TTL_MS = 30_000


@pytest.fixture
def gateway() -> LocalGateway:
    return LocalGateway(Book(), ManualClock())


@pytest.fixture
def guard(gateway: LocalGateway) -> Iterator[FenceGuard]:
    with_memory = new_guard(gateway)
    yield with_memory
    with_memory.close()


def new_guard(gateway: LocalGateway, path: Path | None = None) -> FenceGuard:
    return FenceGuard(gateway.book.keyring, ORIGIN, path, wall_ms=gateway.clock.wall_ms, busy_ms=1)


def executed(guard: FenceGuard, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
    return guard.memory.connection.execute(statement, values)


async def grant_to(gateway: LocalGateway, holder: SigningKey, *names: str, mode: str = "write") -> Grant:
    """Grant the file (or `names`) to `holder`; whoever had it let it run out."""
    gateway.clock.jump(TTL_MS)
    async with gateway.agent(holder) as agent:
        return await agent.acquire(names or FILE, mode=mode, ttl_ms=TTL_MS)


def write(guard: FenceGuard, holder: SigningKey, grant: Grant, resource: str = FILE, mode: str = "write") -> None:
    """Ask for a challenge, answer it, write."""
    challenge = guard.challenge()
    receipt = grant.receipt.data
    answer = Answer(challenge, answer_challenge(holder, challenge, resource, receipt))
    assert guard.check(receipt, resource, answer, mode=mode).leaf.actor == holder.did


async def test_41_after_42_is_refused(gateway: LocalGateway, guard: FenceGuard) -> None:
    """Scenarios 11, L1, L46: A stalls, its lease runs out, B gets a newer one and writes; A wakes up and may not."""
    old = await grant_to(gateway, ALICE)
    write(guard, ALICE, old)
    new = await grant_to(gateway, BOB)
    assert new.fencing_token > old.fencing_token
    write(guard, BOB, new)
    with pytest.raises(Fenced, match=f"token {old.fencing_token} is older than {new.fencing_token}"):
        write(guard, ALICE, old)
    write(guard, BOB, new)
    newest = await grant_to(gateway, ALICE)
    write(guard, ALICE, newest)
    with pytest.raises(Fenced):
        write(guard, BOB, new)


async def test_the_memory_survives_a_restart(gateway: LocalGateway, tmp_path: Path) -> None:
    path = tmp_path / "fence.sqlite3"
    old, new = await grant_to(gateway, ALICE), await grant_to(gateway, BOB)
    first = new_guard(gateway, path)
    write(first, BOB, new)
    first.close()
    second = new_guard(gateway, path)
    with pytest.raises(Fenced):
        write(second, ALICE, old)
    write(second, BOB, new)
    second.close()


async def test_a_newer_token_cannot_slip_in_while_a_write_is_under_way(gateway: LocalGateway, tmp_path: Path) -> None:
    """Scenario 12: the check and the write are one step; another process waits, and after it the old one is refused."""
    path = tmp_path / "fence.sqlite3"
    old, new = await grant_to(gateway, ALICE), await grant_to(gateway, BOB)
    here, there = new_guard(gateway, path), new_guard(gateway, path)
    challenge = here.challenge()
    answer = Answer(challenge, answer_challenge(ALICE, challenge, FILE, old.receipt.data))
    with here.permit(old.receipt.data, FILE, answer), pytest.raises(Fenced, match="busy"):
        write(there, BOB, new)
    write(there, BOB, new)
    with pytest.raises(Fenced, match="older"):
        write(here, ALICE, old)
    here.close()
    there.close()


def test_a_newer_token_of_another_process_may_come_between_recording_and_writing(
    gateway: LocalGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fence.sqlite3"
    here, there = new_guard(gateway, path), new_guard(gateway, path)
    turns = iter((None, there))

    def begin() -> None:
        if (other := next(turns)) is not None:
            other.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", "B", 42)], FILE)
        here.memory.connection.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(here.memory, "begin", begin)
    with pytest.raises(Fenced, match="token 41 is older than 42"):
        here.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", "A", 41)], FILE)
    here.close()
    there.close()


async def test_a_token_stays_seen_though_its_write_failed(gateway: LocalGateway, guard: FenceGuard) -> None:
    old, new = await grant_to(gateway, ALICE), await grant_to(gateway, BOB)
    challenge = guard.challenge()
    answer = Answer(challenge, answer_challenge(BOB, challenge, FILE, new.receipt.data))
    with pytest.raises(OSError, match="disk"), guard.permit(new.receipt.data, FILE, answer):
        raise OSError("disk")
    with pytest.raises(Fenced):
        write(guard, ALICE, old)


async def test_the_own_older_receipt_is_no_danger(gateway: LocalGateway, guard: FenceGuard) -> None:
    old, new = await grant_to(gateway, ALICE), await grant_to(gateway, ALICE)
    write(guard, ALICE, new)
    write(guard, ALICE, old)


async def test_a_receipt_is_no_ticket_for_somebody_else(gateway: LocalGateway, guard: FenceGuard) -> None:
    """Receipts are public: B shows A's receipt, and answers with the only key it has."""
    grant = await grant_to(gateway, ALICE)
    challenge = guard.challenge()
    stolen = Answer(challenge, answer_challenge(BOB, challenge, FILE, grant.receipt.data))
    with pytest.raises(Fenced, match="did not prove"):
        guard.check(grant.receipt.data, FILE, stolen)


async def test_an_answer_counts_once_for_one_object_and_one_receipt(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE)
    receipt = grant.receipt.data
    challenge = guard.challenge()
    answer = Answer(challenge, answer_challenge(ALICE, challenge, FILE, receipt))
    guard.check(receipt, FILE, answer)
    with pytest.raises(Fenced, match="not open"):
        guard.check(receipt, FILE, answer)
    other = guard.challenge()
    with pytest.raises(Fenced, match="did not prove"):
        guard.check(receipt, FILE, Answer(other, answer_challenge(ALICE, other, "repo:app/src/b.py", receipt)))
    with pytest.raises(Fenced, match="not open"):
        guard.check(receipt, FILE, Answer("made-up", answer_challenge(ALICE, "made-up", FILE, receipt)))


async def test_open_challenges_are_bounded(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE)
    first = guard.challenge()
    for _ in range(CHALLENGES_MAX):
        guard.challenge()
    with pytest.raises(Fenced, match="not open"):
        guard.check(grant.receipt.data, FILE, Answer(first, answer_challenge(ALICE, first, FILE, grant.receipt.data)))


async def test_a_signed_write_proves_its_holder_and_its_content(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE)
    receipt = grant.receipt.data
    signed = sign_write(ALICE, b"content", FILE, receipt)
    assert guard.check(receipt, FILE, signed).seq == grant.receipt.seq
    other = sign_write(ALICE, b"other content", FILE, receipt)
    for wrong in (SignedWrite(other.digest, signed.signature), sign_write(BOB, b"content", FILE, receipt)):
        with pytest.raises(Fenced, match="did not prove"):
            guard.check(receipt, FILE, wrong)


async def test_a_receipt_that_does_not_verify_is_refused_and_leaves_no_trace(
    gateway: LocalGateway, guard: FenceGuard
) -> None:
    old, new = await grant_to(gateway, ALICE), await grant_to(gateway, BOB)
    forged = new.receipt.data.replace(b'"sig":"', b'"sig":"A')
    challenge = guard.challenge()
    with pytest.raises(AnswerRefused):
        guard.check(forged, FILE, Answer(challenge, answer_challenge(BOB, challenge, FILE, forged)))
    write(guard, ALICE, old)


async def test_only_grants_open_the_door(gateway: LocalGateway, guard: FenceGuard) -> None:
    await grant_to(gateway, ALICE)
    async with gateway.agent(ALICE) as agent:
        released = await agent.release(FILE)
    with pytest.raises(Fenced, match="grants nothing"):
        guard.check(released.data, FILE, sign_write(ALICE, b"", FILE, released.data))


async def test_a_lease_opens_only_what_it_covers(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE)
    with pytest.raises(Fenced, match="does not cover"):
        write(guard, ALICE, grant, "repo:app/src/b.py")


async def test_an_ended_lease_is_refused_once_no_clock_can_excuse_it(gateway: LocalGateway, guard: FenceGuard) -> None:
    """Protocol 8.5; before that, an ended lease without a successor is harmless, for tokens order the writers."""
    grant = await grant_to(gateway, ALICE)
    gateway.clock.jump(TTL_MS + LATE_MS - 1)
    write(guard, ALICE, grant)
    gateway.clock.jump(1)
    with pytest.raises(Fenced, match="newest renewal"):
        write(guard, ALICE, grant)


async def test_the_receipt_of_a_renewal_carries_the_same_token(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE)
    async with gateway.agent(ALICE) as agent:
        renewed = await agent.renew(grant.lease_id, ttl_ms=TTL_MS)
    write(guard, ALICE, renewed)
    write(guard, ALICE, grant)


async def test_a_guard_is_pinned_to_one_ledger(gateway: LocalGateway, tmp_path: Path) -> None:
    path = tmp_path / "fence.sqlite3"
    new_guard(gateway, path).close()
    other = Book("gateway.example/other", seed=151)
    with pytest.raises(Fenced, match=r"belongs to the ledger gateway\.example/main"):
        FenceGuard(other.keyring, other.origin, path)
    with pytest.raises(Fenced, match="is not of"):
        FenceGuard(other.keyring, ORIGIN)


def test_a_file_that_kept_one_name_of_each_set_is_refused_and_left_alone(gateway: LocalGateway, tmp_path: Path) -> None:
    path = tmp_path / "fence.sqlite3"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(
            "CREATE TABLE pinned (ledger TEXT NOT NULL) STRICT; CREATE TABLE fence (resource TEXT NOT NULL, "
            "class TEXT NOT NULL, mode TEXT NOT NULL, actor TEXT NOT NULL, token INTEGER NOT NULL) STRICT;"
        )
    before = path.read_bytes()
    with pytest.raises(Fenced, match=r"schema 0, and this guard reads 3: .* begin a new file once the leases"):
        new_guard(gateway, path)
    assert path.read_bytes() == before


TREE = "repo:app/**"
TOKENS = [  # the class; what was recorded and what comes, as name, mode, actor, token; whether it may write
    ("a newer token of another", "exclusive", (FILE, "write", "A", 41), (FILE, "write", "B", 42), True),
    ("an older token of another", "exclusive", (FILE, "write", "A", 42), (FILE, "write", "B", 41), False),
    ("the same token of another", "exclusive", (FILE, "write", "A", 42), (FILE, "write", "B", 42), False),
    ("an older token of its own", "exclusive", (FILE, "write", "A", 42), (FILE, "write", "A", 41), True),
    ("a read below a read of another", "read-safe", (FILE, "read", "A", 42), (FILE, "read", "B", 41), True),
    ("a read below a write of another", "read-safe", (FILE, "write", "A", 42), (FILE, "read", "B", 41), False),
    ("a write below a read of another", "read-safe", (FILE, "read", "A", 42), (FILE, "write", "B", 41), False),
    ("an append below an append of another", "append-only", (FILE, "append", "A", 42), (FILE, "append", "B", 41), True),
    ("a read of an exclusive scheme", "exclusive", (FILE, "read", "A", 42), (FILE, "read", "B", 41), False),
    ("a read of an unknown class", "new-class", (FILE, "read", "A", 42), (FILE, "read", "B", 41), False),
    ("an older token on the sub-tree", "exclusive", (FILE, "write", "A", 42), (TREE, "write", "B", 41), False),
    ("an older token below a sub-tree", "exclusive", (TREE, "write", "A", 42), (FILE, "write", "B", 41), False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("scheme_class", "recorded", "comes", "is_allowed"), [row[1:] for row in TOKENS], ids=[row[0] for row in TOKENS]
)
def test_bare_tokens_between_trusted_callers_follow_the_same_rule(
    guard: FenceGuard,
    scheme_class: str,
    recorded: tuple[str, str, str, int],
    comes: tuple[str, str, str, int],
    is_allowed: bool,
) -> None:
    def show(name: str, mode: str, actor: str, token: int) -> None:
        guard.check_token_between_trusted_callers([Permit(name, scheme_class, mode, actor, token)], FILE)

    show(*recorded)
    if is_allowed:
        show(*comes)
    else:
        with pytest.raises(Fenced, match=r"older than 42|the same as 42"):
            show(*comes)


def test_what_is_remembered_of_a_folding_scheme_is_not_forgotten_for_one_that_does_not_fold(guard: FenceGuard) -> None:
    """A's s:a meant s:A too; the newer ones of B and C did not, so they don't stand in for it."""
    for actor, token, is_folding in (("A", 42, True), ("B", 43, False), ("C", 44, False)):
        permit = Permit("s:a", "exclusive", "write", actor, token, is_folding)
        guard.check_token_between_trusted_callers([permit], "s:a")
    with pytest.raises(Fenced, match="older than 42"):
        guard.check_token_between_trusted_callers([Permit("s:A", "exclusive", "write", "D", 41)], "s:A")


def test_an_own_older_receipt_does_not_lower_what_others_must_exceed(guard: FenceGuard) -> None:
    for actor, token in (("A", 43), ("A", 41)):
        guard.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", actor, token)], FILE)
    with pytest.raises(Fenced, match="token 42 is older than 43"):
        guard.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", "B", 42)], FILE)


def test_a_bare_token_opens_only_what_it_covers(guard: FenceGuard) -> None:
    with pytest.raises(Fenced, match="does not cover"):
        guard.check_token_between_trusted_callers([Permit("repo:lib/**", "exclusive", "write", "A", 1)], FILE)


def test_a_crowd_of_actors_leaves_two_rows_and_forgets_nobody_that_matters(guard: FenceGuard) -> None:
    for token in range(1, 40):
        guard.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", f"A{token}", token)], FILE)
    for late in (1, 20, 38):
        with pytest.raises(Fenced):
            guard.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", f"A{late}", late)], FILE)
    guard.check_token_between_trusted_callers([Permit(FILE, "exclusive", "write", "A39", 39)], FILE)
    assert executed(guard, "SELECT count(*) FROM fence").fetchone() == (2,)


# -- modes, sub-trees, spellings ---------------------------------------------------------------------------------------


async def test_a_lease_on_a_subtree_opens_what_lies_below_and_fences_it(
    gateway: LocalGateway, guard: FenceGuard
) -> None:
    """Scenario 11, on a folder: A's lease on the tree is older than B's on one file of it, so A writes nowhere in it.

    Both can't have lived at once: that B's began proves that A's had ended.
    """
    old = await grant_to(gateway, ALICE, "repo:app/**")
    write(guard, ALICE, old, "repo:app/src/a.py")
    write(guard, ALICE, old, "repo:app/**")
    with pytest.raises(Fenced, match="does not cover"):
        write(guard, ALICE, old, "repo:apple")
    new = await grant_to(gateway, BOB, FILE)
    write(guard, BOB, new)
    for name in (FILE, "repo:app/README", "repo:app/**"):
        with pytest.raises(Fenced, match=f"which {BOB.did} has shown for {FILE}"):
            write(guard, ALICE, old, name)


async def test_a_lease_on_a_file_does_not_open_its_folder(gateway: LocalGateway, guard: FenceGuard) -> None:
    grant = await grant_to(gateway, ALICE, FILE)
    with pytest.raises(Fenced, match="does not cover"):
        write(guard, ALICE, grant, "repo:app/**")


async def test_a_newer_lease_on_the_subtree_fences_the_file(gateway: LocalGateway, guard: FenceGuard) -> None:
    old = await grant_to(gateway, ALICE, FILE)
    write(guard, BOB, await grant_to(gateway, BOB, "repo:**"), "repo:somewhere/else")
    with pytest.raises(Fenced, match="older"):
        write(guard, ALICE, old)


async def test_one_file_in_two_spellings_has_one_fence_where_the_scheme_folds(
    gateway: LocalGateway, guard: FenceGuard
) -> None:
    """Scenarios 24 and 29: the leaf says that the scheme folds; elsewhere the two are two files."""
    gateway.desk.folding = {"win"}
    old = await grant_to(gateway, ALICE, "win:Src/A.py")
    write(guard, ALICE, old, "win:src/a.PY")
    new = await grant_to(gateway, BOB, "win:src/a.py")
    write(guard, BOB, new, "win:SRC/A.py")
    with pytest.raises(Fenced, match="older"):
        write(guard, ALICE, old, "win:Src/A.py")
    elsewhere = await grant_to(gateway, ALICE, "repo:Src/A.py")
    write(guard, BOB, await grant_to(gateway, BOB, "repo:src/a.py"), "repo:src/a.py")
    write(guard, ALICE, elsewhere, "repo:Src/A.py")
    with pytest.raises(Fenced, match="does not cover"):
        write(guard, ALICE, elsewhere, "repo:src/a.py")


@pytest.mark.parametrize(("is_folding", "older", "newer"), [(False, "win:A", "win:A"), (True, "win:a", "win:A")])
async def test_a_change_of_folding_lets_nobody_past(
    gateway: LocalGateway, guard: FenceGuard, is_folding: bool, older: str, newer: str
) -> None:
    """The scheme began or ceased to fold between the two leases, and both may be about one object."""
    gateway.desk.folding = {"win"} if is_folding else set()
    old = await grant_to(gateway, BOB, older)
    gateway.clock.jump(TTL_MS)
    gateway.desk.folding ^= {"win"}
    write(guard, ALICE, await grant_to(gateway, ALICE, newer), newer)
    with pytest.raises(Fenced, match="older"):
        write(guard, BOB, old, newer)


@pytest.mark.parametrize(
    ("older", "newer", "shown_for", "written"),
    [
        (["m:1", "m:2"], ["m:1", "m:2"], "m:1", "m:2"),  # the other name of the same set
        (["m:2"], ["m:1", "m:2"], "m:1", "m:2"),
        (["m:1", "m:2"], ["m:1"], "m:1", "m:2"),  # the older lease was over as a whole
        (["w:x/c"], ["w:x", "w:x/**"], "w:x", "w:x/c"),  # two names that cover the object
        (["a:1", "b:1"], ["b:**", "c:1"], "c:1", "a:1"),
    ],
)
async def test_every_name_of_a_set_is_recorded_and_compared(
    gateway: LocalGateway, guard: FenceGuard, older: list[str], newer: list[str], shown_for: str, written: str
) -> None:
    old = await grant_to(gateway, BOB, *older)
    write(guard, BOB, old, written)
    write(guard, ALICE, await grant_to(gateway, ALICE, *newer), shown_for)
    with pytest.raises(Fenced, match="older"):
        write(guard, BOB, old, written)


async def test_a_set_that_is_refused_leaves_no_name_behind(gateway: LocalGateway, guard: FenceGuard) -> None:
    """All or nothing, in one transaction: 256 names, of which the last is fenced."""
    names = [f"m:{number:03}" for number in range(256)]
    bystander = await grant_to(gateway, BOB, names[0])
    old = await grant_to(gateway, ALICE, *names)
    write(guard, BOB, await grant_to(gateway, BOB, names[-1]), names[-1])
    with pytest.raises(Fenced, match="older"):
        write(guard, ALICE, old, names[0])
    write(guard, BOB, bystander, names[0])
    newest = await grant_to(gateway, ALICE, *names)
    write(guard, ALICE, newest, names[7])
    with closing(executed(guard, "SELECT resource FROM fence WHERE token = ?", (newest.fencing_token,))) as rows:
        assert [name for (name,) in rows] == names


async def test_readers_of_a_read_safe_scheme_pass_in_any_order_until_somebody_writes(
    gateway: LocalGateway, guard: FenceGuard
) -> None:
    gateway.desk.classes = {"repo": "read-safe"}
    alices = await grant_to(gateway, ALICE, mode="read")
    async with gateway.agent(BOB) as bob:
        bobs = await bob.acquire(FILE, mode="read", ttl_ms=TTL_MS)
    write(guard, BOB, bobs, mode="read")
    write(guard, ALICE, alices, mode="read")
    with pytest.raises(Fenced, match="is for read, not for write"):
        write(guard, ALICE, alices)
    writer = await grant_to(gateway, BOB)
    write(guard, BOB, writer)
    with pytest.raises(Fenced, match="older"):
        write(guard, ALICE, alices, mode="read")


async def test_the_token_from_before_a_downgrade_writes_no_more_once_a_reader_came(
    gateway: LocalGateway, guard: FenceGuard
) -> None:
    """Security §3: a change of mode brings a new token, and the old one is stale like any other."""
    gateway.desk.classes = {"repo": "read-safe"}
    writing = await grant_to(gateway, ALICE)
    write(guard, ALICE, writing)
    async with gateway.agent(ALICE) as agent, gateway.agent(BOB) as bob:
        reading = await agent.renew(writing.lease_id, mode="read", ttl_ms=TTL_MS)
        bobs = await bob.acquire(FILE, mode="read", ttl_ms=TTL_MS)
    assert reading.fencing_token > writing.fencing_token
    write(guard, BOB, bobs, mode="read")
    write(guard, ALICE, reading, mode="read")
    with pytest.raises(Fenced, match=f"token {writing.fencing_token} is older"):
        write(guard, ALICE, writing)


async def test_an_upgraded_lease_fences_the_readers_that_were_there(gateway: LocalGateway, guard: FenceGuard) -> None:
    gateway.desk.classes = {"repo": "read-safe"}
    async with gateway.agent(ALICE) as agent, gateway.agent(BOB) as bob:
        bobs = await bob.acquire(FILE, mode="read", ttl_ms=TTL_MS)
        mine = await agent.acquire(FILE, mode="read", ttl_ms=TTL_MS)
        await bob.release(FILE)
        upgraded = await agent.renew(mine.lease_id, mode="write", ttl_ms=TTL_MS)
    write(guard, ALICE, upgraded)
    with pytest.raises(Fenced, match="older"):
        write(guard, BOB, bobs, mode="read")


async def test_a_lease_that_was_handed_over_is_the_givers_no_more(gateway: LocalGateway, guard: FenceGuard) -> None:
    """Security §11; and the receipt of the taking over opens the guard like that of any grant."""
    given = await grant_to(gateway, ALICE)
    write(guard, ALICE, given)
    async with gateway.agent(ALICE) as agent, gateway.agent(BOB) as bob:
        await agent.transfer(given, BOB.did, "shift-over")
        taken = await bob.accept(given.lease_id, ttl_ms=TTL_MS)
    write(guard, BOB, taken)
    with pytest.raises(Fenced, match=f"token {given.fencing_token} is older than {taken.fencing_token}"):
        write(guard, ALICE, given)


async def test_a_claimed_and_an_extended_lease_open_the_guard(gateway: LocalGateway, guard: FenceGuard) -> None:
    gateway.clock.is_automatic = True
    await grant_to(gateway, ALICE)
    async with gateway.agent(BOB) as bob:
        claimed = await bob.wait_for(FILE, ttl_ms=TTL_MS, wait_ms=60_000)
        assert claimed.receipt.type == "tallystick/lease.claimed/1"
        extended = await bob.acquire(FILE, ttl_ms=TTL_MS)
    assert extended.receipt.type == "tallystick/lease.extended/1"
    write(guard, BOB, claimed)
    write(guard, BOB, extended)


async def test_a_broken_lease_is_fenced_by_its_successor(gateway: LocalGateway, guard: FenceGuard) -> None:
    """Scenario L48: the break lists the token it killed; the holder that works on is stopped at the next write."""
    old = await grant_to(gateway, ALICE)
    write(guard, ALICE, old)
    async with gateway.agent(BOB) as operator:
        broken = await operator.break_lease(FILE, old.fencing_token, "holder-gone")
        assert broken.leaf.number("fencingToken") == old.fencing_token
        new = await operator.acquire(FILE, ttl_ms=TTL_MS)
    with pytest.raises(Fenced, match="grants nothing"):
        guard.check(broken.data, FILE, sign_write(BOB, b"", FILE, broken.data))
    write(guard, BOB, new)
    with pytest.raises(Fenced, match="older"):
        write(guard, ALICE, old)


# -- against the plainest guard ----------------------------------------------------------------------------------------

NAMES = [f"s:{path}" for path in ("a", "A", "a/b", "a/B", "a/b/c", "b", "ab", "**", "a/**", "A/**", "a/b/**", "b/**")]
OTHERS = ["t:1", "t:x/Y", "t:x/**"]


@dataclass
class NaiveGuard:
    """Keeps every lease it was shown, whole, and looks through all of it each time."""

    shown: list[list[Permit]]

    def is_fenced(self, lease: list[Permit]) -> bool:
        return any(self._excludes(seen, mine) for each in self.shown for seen in each for mine in lease)

    def _excludes(self, seen: Permit, mine: Permit) -> bool:
        if seen.actor == mine.actor or seen.token < mine.token:
            return False
        is_folding = seen.is_folding or mine.is_folding
        classes = (seen.scheme_class, mine.scheme_class)
        return overlaps(key_of(seen.resource, is_folding), key_of(mine.resource, is_folding)) and not all(
            may_share(each, seen.mode, mine.mode) for each in classes
        )


def random_lease(chance: random.Random, is_folding: bool | None) -> list[Permit]:
    """Return a lease on one to four names; class and folding are one for all names of a scheme."""
    names = {*chance.sample(NAMES, chance.randint(1, 3)), *chance.sample(OTHERS, chance.randint(0, 1))}
    rows = {
        scheme: (chance.choice(CLASSES), chance.random() < 0.5 if is_folding is None else is_folding)
        for scheme in ("s", "t")
    }
    mode, actor, token = chance.choice(MODES), chance.choice("ABCD"), chance.randint(1, 60)
    return [
        Permit(name, rows[scheme_of(name)][0], mode, actor, token, rows[scheme_of(name)][1]) for name in sorted(names)
    ]


@pytest.mark.parametrize("seed", range(45))
def test_the_guard_answers_as_one_that_forgets_nothing(guard: FenceGuard, seed: int) -> None:
    """Scenario 26: sets, sub-trees, all classes and modes, few actors, any order of tokens; two rows suffice.

    A third of the runs fold, a third don't, and in a third it changes from lease to lease.
    """
    chance = random.Random(seed)
    naive = NaiveGuard([])
    outcomes: list[bool] = []
    for _ in range(150):
        lease = random_lease(chance, (None, False, True)[seed % 3])
        is_fenced = naive.is_fenced(lease)
        try:
            guard.check_token_between_trusted_callers(lease, chance.choice(lease).resource)
            assert not is_fenced, lease
            naive.shown.append(lease)
        except Fenced:
            assert is_fenced, lease
        outcomes.append(is_fenced)
    assert set(outcomes) == {True, False}
    rows = executed(guard, "SELECT count(*) FROM fence GROUP BY resource, is_folding, class, mode").fetchall()
    assert max(count for (count,) in rows) <= 2


def test_a_permit_covers_by_key() -> None:
    for name in NAMES:
        for other in NAMES:
            for is_folding in (False, True):
                permit = Permit(name, "exclusive", "write", "A", 1, is_folding)
                wanted = covers(key_of(name, is_folding), key_of(other, is_folding))
                assert permit.covers(other) is wanted
