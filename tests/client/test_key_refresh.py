"""The ledger changes its keys while an agent works: the key document is fetched once more, and believed as far as
the pinned root signed it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.client.errors import AnswerRefused, Fenced
from gateway.client.fence import FenceGuard, sign_write
from gateway.client.profile import KEYS, KEYS_PATH, open_profile, refreshed, write_profile
from gateway.client.receipts import has_other_signers
from gateway.client.transport import Reply
from keys.files import new_key
from keys.rotation import Final
from keys.signing import SigningKey
from tests.client.world import ALICE, FILE, Book, LocalGateway, ManualClock, Request, key
from verifier.checkpoint import checkpoint_text
from verifier.keyring import KeyDocument, KeyLine, Keyring, key_document_text, open_keyring
from verifier.note import Note, VerifierKey, encode_note, make_vkey, signature_line
from verifier.wire import JsonObject, Malformed, encode_canonical


class Rotating(Book):
    """A ledger whose log key was announced and retired at sizes that a test sets; its document may lag behind."""

    def __init__(self) -> None:
        self.lines: list[tuple[KeyLine, SigningKey]] = []
        self.told: tuple[KeyLine, ...] = ()
        self.version = 1
        super().__init__()
        self.lines = [(KeyLine("log", self.log_vkey), self.log)]
        self.told = self.key_lines

    def announce(self, seed: int) -> VerifierKey:
        new = key(seed)
        vkey = make_vkey(self.origin, new.public_key)
        self.lines.append((KeyLine("log", vkey, len(self.leaves)), new))
        return vkey

    def end(self, vkey: VerifierKey, status: str = "retired") -> None:
        size = len(self.leaves)
        self.lines = [
            (replace(line, to_size=size, status=status), one) if line.key == vkey else (line, one)
            for line, one in self.lines
        ]

    def publish(self, final: Final | None = None) -> None:
        """Let the document say what the ledger says."""
        shown = [
            replace(line, final_size=final.size, final_root=final.root) if final and line.to_size is not None else line
            for line, _ in self.lines
        ]
        self.told, self.version = (*shown, KeyLine("receipt", self.receipt_vkey)), self.version + 1

    @property
    def document(self) -> bytes:
        previous = None if self.version == 1 else bytes(32)
        told = self.told or self.key_lines
        text = key_document_text(KeyDocument(self.origin, self.genesis, self.version, previous, told))
        return encode_note(Note(text, (signature_line(self.root_vkey, self.root.sign(text.encode())),)))

    def checkpoint(self, size: int | None = None, root: bytes | None = None) -> bytes:
        size = self.tree.size if size is None else size
        text = checkpoint_text(self.origin, size, self.tree.root(size) if root is None else root)
        signing = [
            (line.key, one) for line, one in self.lines
            if line.from_size <= size and (line.to_size is None or size <= line.to_size)
        ]  # fmt: skip
        return encode_note(Note(text, tuple(signature_line(vkey, one.sign(text.encode())) for vkey, one in signing)))


@dataclass
class Publishing(LocalGateway):
    """Serves the key document, `after` so many times that it was asked for the old one."""

    fetched: int = 0
    document: bytes | None = None
    after: int = 0
    newer: bytes | None = None

    def _open(self, request: Request) -> Reply:
        if request.target != KEYS_PATH:
            return super()._open(request)
        self.fetched += 1
        if self.newer is not None and self.fetched > self.after:
            return Reply(200, {}, self.newer)
        return Reply(200, {}, self.document if self.document is not None else self.book.document)


@pytest.fixture
def book() -> Rotating:
    return Rotating()


@pytest.fixture
def gateway(book: Rotating) -> Publishing:
    clock = ManualClock()
    clock.is_automatic = True
    return Publishing(book, clock)


async def test_an_overlap_asks_nothing_of_anybody(book: Rotating, gateway: Publishing) -> None:
    async with gateway.agent() as agent:
        book.announce(150)
        await agent.acquire(FILE)
    assert gateway.fetched == 0


async def test_a_key_that_is_not_known_is_looked_up_once_and_the_answer_counts(
    book: Rotating, gateway: Publishing
) -> None:
    async with gateway.agent() as agent:
        first = await agent.acquire(FILE)
        second = book.announce(150)
        book.end(book.log_vkey)
        book.publish()
        receipt = (await agent.acquire(FILE)).receipt
        assert receipt.checkpoint.note.lines[0].key_id == second.key_id
        assert gateway.fetched == 1 and agent.caller.profile.keyring.version == agent.profile.keyring.version == 2
        await agent.acquire(FILE)
        assert (await agent.receipt(first.receipt.seq)).seq == first.receipt.seq
        assert gateway.fetched == 1, "from then on it is known"


async def test_a_known_key_that_is_missed_is_looked_up_too(book: Rotating, gateway: Publishing) -> None:
    """The reader fetched the document of the overlap; the key that was retired since is missing on checkpoints."""
    book.announce(150)
    book.publish()
    async with gateway.agent() as agent:
        book.end(book.log_vkey)
        book.publish()
        await agent.acquire(FILE)
        assert gateway.fetched == 1 and agent.caller.profile.keyring.version == 3


async def test_a_moment_between_entry_and_document_is_waited_for(book: Rotating, gateway: Publishing) -> None:
    async with gateway.agent() as agent:
        gateway.document = book.document
        book.announce(150)
        book.end(book.log_vkey)
        book.publish()
        gateway.newer, gateway.after = book.document, 3
        await agent.acquire(FILE)
        assert gateway.fetched == 4


async def test_two_steps_of_a_rotation_that_nobody_saw_are_looked_up_both(book: Rotating, gateway: Publishing) -> None:
    """The document of the announcement is newer than the pinned one, and not yet what the ledger says."""
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        book.announce(150)
        book.publish()
        gateway.document = book.document
        book.end(book.log_vkey)
        book.publish()
        gateway.newer, gateway.after = book.document, 3
        await agent.acquire(FILE)
        assert (agent.profile.keyring.version, gateway.fetched) == (3, 4)


async def test_calls_of_one_agent_at_the_same_time_all_go_on_with_what_one_of_them_found(
    book: Rotating, gateway: Publishing
) -> None:
    async with gateway.agent() as agent:
        await agent.acquire(FILE)
        book.announce(150)
        book.end(book.log_vkey)
        gateway.document = book.document
        book.publish()
        gateway.newer, gateway.after = book.document, 4
        await asyncio.gather(*(agent.acquire(f"{FILE}-{number}") for number in range(3)))
        assert agent.profile.keyring.version == 2


async def test_without_a_newer_document_the_answer_is_refused_after_a_while(
    book: Rotating, gateway: Publishing
) -> None:
    async with gateway.agent() as agent:
        gateway.document = book.document
        book.announce(150)
        book.end(book.log_vkey)
        before = gateway.clock.steady_ms()
        with pytest.raises(AnswerRefused, match="does not verify"):
            await agent.acquire(FILE)
        assert gateway.clock.steady_ms() - before <= 3_000 and gateway.fetched > 1
        assert agent.caller.profile.keyring.version == 1


@pytest.mark.parametrize("lie", ["another root", "older", "another ledger", "nonsense"])
async def test_a_document_that_the_root_did_not_sign_or_an_older_one_changes_nothing(
    book: Rotating, gateway: Publishing, lie: str
) -> None:
    book.publish()
    async with gateway.agent() as agent:
        book.announce(150)
        book.end(book.log_vkey)
        book.publish()
        gateway.document = document_of(book, lie)
        with pytest.raises(AnswerRefused):
            await agent.acquire(FILE)
        assert agent.caller.profile.keyring.version == 2


def document_of(book: Rotating, lie: str) -> bytes:
    lines = tuple(line for line, _ in book.lines)
    version, genesis, root = 9, book.genesis, book.root
    match lie:
        case "another root":
            root = key(160)
        case "older":
            version = 1
        case "another ledger":
            genesis = bytes(32)
        case _:
            return b"nonsense"
    text = key_document_text(KeyDocument(book.origin, genesis, version, bytes(32) if version > 1 else None, lines))
    line = signature_line(make_vkey(f"{book.origin}/root", root.public_key), root.sign(text.encode()))
    return encode_note(Note(text, (line,)))


async def test_what_no_other_key_signed_is_refused_without_a_look(book: Rotating, gateway: Publishing) -> None:
    """A lie by the known key is a lie; nothing is fetched for it."""
    async with gateway.agent() as agent:
        seq = (await agent.acquire(FILE)).receipt.seq
        forged = dict(book.receipt(seq), payload=book.receipt(0)["payload"])
        with pytest.raises(AnswerRefused):
            await agent.caller.open_receipt(encode_canonical(forged))
    assert gateway.fetched == 0


async def test_the_newer_document_stays_in_the_profile(book: Rotating, gateway: Publishing, tmp_path: Path) -> None:
    address = book.profile(ALICE).address
    write_profile(tmp_path, address, root=book.root_vkey.vkey, document=book.document)
    new_key(tmp_path / "agent.key", purpose="agent")
    async with gateway.agent(home=tmp_path) as agent:
        book.announce(150)
        book.end(book.log_vkey)
        book.publish()
        await agent.acquire(FILE)
    assert (tmp_path / KEYS).read_bytes() == book.document
    assert open_profile(tmp_path).keyring.version == 2


async def test_memory_outlives_the_key_that_signed_it_also_a_stolen_one(
    book: Rotating, gateway: Publishing, tmp_path: Path
) -> None:
    """What was proven under a key that is disowned later must be in the newest history all the same."""
    address = book.profile(ALICE).address
    write_profile(tmp_path, address, root=book.root_vkey.vkey, document=book.document)
    new_key(tmp_path / "agent.key", purpose="agent")
    async with gateway.agent(home=tmp_path) as agent:
        await agent.acquire(FILE)
        await agent.prove_history()
        book.announce(150)
        book.end(book.log_vkey, "compromised")
        await agent.caller.fetch("/main/checkpoint")
        book.append("ledger.disputed", {"checkpoint": "x", "size": 1, "root": "x"}, actor="gateway", time_ms=0)
        book.publish(Final(book.tree.size, book.tree.root(book.tree.size)))
        await agent.acquire(FILE)
    again = open_profile(tmp_path)
    assert again.keyring.version == 2 and again.open_seen().proven.size > 1
    async with gateway.agent(home=tmp_path) as agent:
        await agent.acquire(FILE)


def test_a_document_of_the_same_version_is_no_news(book: Rotating) -> None:
    profile = book.profile(ALICE)
    assert refreshed(profile, book.document) is None
    with pytest.raises(Malformed, match="root"):
        refreshed(profile, document_of(book, "another root"))


def test_what_counts_as_other_signers(book: Rotating) -> None:
    pins: Keyring = open_keyring(root=book.root_vkey.vkey, document=book.document)
    origin = book.origin
    assert not has_other_signers(book.checkpoint(), pins, origin)
    assert not has_other_signers(encode_canonical(book.receipt(0)), pins, origin)
    stranger: JsonObject = {**book.receipt(0), "signatures": [{"keyid": "x", "sig": "x"}]}
    assert has_other_signers(encode_canonical(stranger), pins, origin)
    for nonsense in (b"", b"{}", b"nonsense", b'{"proof":1}', b"\xff"):
        assert not has_other_signers(nonsense, pins, origin)
    book.announce(150)
    book.append("ledger.disputed", {"checkpoint": "x", "size": 1, "root": "x"}, actor="gateway", time_ms=0)
    assert has_other_signers(book.checkpoint(), pins, origin), "one more"
    book.end(book.log_vkey)
    book.append("ledger.disputed", {"checkpoint": "x", "size": 1, "root": "x"}, actor="gateway", time_ms=0)
    assert has_other_signers(encode_canonical(book.receipt(0)), pins, origin), "one less"


async def test_a_guard_goes_on_after_a_rotation_with_the_newer_document(
    book: Rotating, gateway: Publishing, tmp_path: Path
) -> None:
    """It fetches nothing by itself, says what it lacks, and never takes an older document or another ledger's."""
    guard = FenceGuard(
        open_keyring(root=book.root_vkey.vkey, document=book.document), book.origin, tmp_path / "fence",
        wall_ms=gateway.clock.wall_ms,
    )  # fmt: skip
    older = open_keyring(root=book.root_vkey.vkey, document=book.document)
    async with gateway.agent(ALICE) as agent:
        book.announce(150)
        book.end(book.log_vkey)
        book.publish()
        receipt = (await agent.acquire(FILE)).receipt.data
    write = sign_write(ALICE, b"content", FILE, receipt)
    with pytest.raises(AnswerRefused, match="renew_keyring"):
        guard.check(receipt, FILE, write)
    guard.renew_keyring(open_keyring(root=book.root_vkey.vkey, document=book.document))
    assert guard.check(receipt, FILE, write).leaf.actor == ALICE.did
    with pytest.raises(Fenced, match="version 1 is older than 2"):
        guard.renew_keyring(older)
    elsewhere = document_of(book, "another ledger")
    with pytest.raises(Fenced, match="another root or ledger"):
        guard.renew_keyring(open_keyring(root=book.root_vkey.vkey, document=elsewhere))
    with pytest.raises(AnswerRefused) as refused:
        guard.check(b"{}", FILE, write)
    assert "renew_keyring" not in str(refused.value), "no rotation explains this"
    guard.close()
