"""What every store promises, whatever engine is below.

A store keeps one ledger: its entries, the hashes of its tree, the batches they came in, what was signed, and the
records that decisions depend on. It never decides, never signs and never calls the core.

Who calls. A sequencer owns the writing half (`load`, `records`, `lock`, `look`, `commit`, `unlock`, `news`, `confirm`,
`landed`, `keep`) and calls it from one thread, one call at a time. The reading half (`entries`, `nodes`, `batch_of`,
`batch_at`) may be called by anybody beside it, from any thread, through a reader of the engine. Where `is_shared`, the
sequencers of several nodes write the same ledger, each through a store of its own.

The order of calls. `load`, then `records`, `entries`, `nodes`, ... show the ledger as of `load`, until the next `lock`.
`lock` takes the head: until `commit` or `unlock` nobody else moves it. `commit` gives it back however it ends.

Durable when. `commit` returns only when the batch would survive what `durability` names: the loss of power ("file",
"local"), and the loss of this server too ("replicated"). Before it returns, this store's readers see none of it;
afterwards every reader sees all of it. Entries, hashes, batches and signatures are never changed.

Confirmed when. What another node wrote may be seen before it is as durable as that: a primary shows what no stand-by
has if somebody cancelled its wait. Everything that was seen is durable once a `commit` or a `confirm` that began later
returned. So nothing that `news` or `lock` tells of others is shown to anybody before that.

Isolation. A batch is decided on what `lock` confirmed. `commit` compares the head in the store with the head it
was decided on (size, root and epoch) inside the same transaction, so that two sequencers can never both write.

Called twice. After HeadMoved, or Unknown that did not land, the sequencer loads again and decides again: deciding is
pure, and nothing of the first attempt is left. `keep` may repeat anything it did before.

Errors. `Busy`: nothing happened (disk full, file locked, server away); the requests are answered with 503 and reads go
on. `Unfit`, a Busy: the engine's settings would break a promise. `HeadMoved`: nothing happened, but what the sequencer
knows of the ledger is not what the store holds, and the store can't or won't tell the difference (a new connection, a
head that others moved too far, another history): load again. `Unknown`: the outcome of a commit could not be found out;
ask `landed`. `Fatal`: the store is broken or is not what it says. Not found is None, or an absent key.
A store never retries; the sequencer does, at most twice. Then a batch that still did not land is Busy, and a head that
still moves is Fatal, or Busy where `is_shared`. A client retries after Busy.

Units. Times are integer milliseconds of log time. Hashes are 32 bytes, signatures 64. Keys are text, compared as
UTF-8 bytes. A range [start, stop) excludes its end and may reach past the end of the ledger.

Source: docs/architecture.md, store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

HASH_BYTES = 32
SIGNATURE_BYTES = 64

# (key, value or None when deleted, due time or None). The value's bytes are the caller's business.
RecordChange: TypeAlias = tuple[str, bytes | None, int | None]


@dataclass(frozen=True, slots=True)
class StoredHead:
    """The end of the ledger: entries, root over them, SHA-256 of the last leaf, its time and epoch, its batch.

    `seal` is the caller's word on the records as the batch left them; the store only keeps it.
    """

    size: int
    root: bytes
    prev_hash: bytes
    time_ms: int
    epoch: int
    batch_id: str
    seal: bytes = b""


@dataclass(frozen=True, slots=True)
class SignedBatch:
    """What was signed over the batch that ends at `size`: the checkpoint note, and each leaf's signature in order."""

    size: int
    note: bytes
    signatures: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One finished batch: entries, the tree hashes they complete, record changes, and signatures of earlier batches.

    `head` is the head afterwards. `hashes` are in the order of `node_position`, beginning with the first leaf's.
    """

    head: StoredHead
    leaves: tuple[bytes, ...]
    hashes: tuple[bytes, ...]
    changes: tuple[RecordChange, ...]
    signed: tuple[SignedBatch, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """One entry. `signature` is None until it is kept, which is with the next batch or at idle."""

    seq: int
    leaf: bytes
    signature: bytes | None


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """One batch as committed. `note` is None until it is kept; the root is what any checkpoint of this size says."""

    first_seq: int
    size: int
    root: bytes
    note: bytes | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a store holds at start. `unsigned` are batches without kept signatures, oldest first.

    `is_clean` says that the last thing done to the store was a `keep` with `is_closing`.
    """

    head: StoredHead | None
    is_clean: bool
    unsigned: tuple[StoredCheckpoint, ...]


@dataclass(frozen=True, slots=True)
class Locked:
    """What `lock` found: the records that exist among the asked keys, the roots of the asked sizes that are batches.

    `moved` are the batches that other nodes wrote after the head that the sequencer saw, oldest first; records and
    roots are those after them. `signed` of each is empty. `wall_ms` is the store's own wall clock, read after the head
    was taken, in ms since 1970; None where it has none and the node's own counts.
    """

    records: Mapping[str, bytes]
    roots: Mapping[int, bytes]
    moved: tuple[StoredBatch, ...] = ()
    wall_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Upkeep:
    """Work that may be done at any time, twice, or not at all.

    Keep signatures and record changes; forget at most `forget_max` records whose key begins with one of
    `forget_prefixes` (each is a key's beginning up to its first slash) and that were due at or before `forget_due_ms`.
    """

    signed: tuple[SignedBatch, ...] = ()
    changes: tuple[RecordChange, ...] = ()
    forget_prefixes: tuple[str, ...] = ()
    forget_due_ms: int = 0
    forget_max: int = 0
    is_closing: bool = False


class Reading(Protocol):
    """The half of a store that anybody may call beside the sequencer."""

    def entries(self, start: int, stop: int) -> list[StoredEntry]:
        """Return the entries [start, stop) that exist, in order."""

    def nodes(self, wanted: Sequence[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
        """Return the hash of each complete subtree (level, index); those beyond the tree are absent."""

    def batch_of(self, seq: int) -> StoredCheckpoint | None:
        """Return the batch that holds entry `seq`."""

    def batch_at(self, size: int) -> StoredCheckpoint | None:
        """Return the batch whose tree has exactly `size` entries."""

    def last_note(self, size_max: int) -> bytes | None:
        """Return the newest kept checkpoint note of at most `size_max` entries."""


class Store(Reading, Protocol):
    """A whole store. The page above is part of this type.

    `durability` is the word that every leaf carries: "memory", "file" (one file on this machine), "local" (the disk of
    a database server) or "replicated" (a stand-by's too). `is_shared` says whether other nodes may write the ledger.
    """

    @property
    def durability(self) -> str:
        """Return what a commit of this engine survives."""

    @property
    def is_shared(self) -> bool:
        """Say whether the ledger may be written by several nodes."""

    def load(self) -> Loaded:
        """Return what the store holds, read afresh from it. Called at start and again in recovery."""

    def records(self, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield (key, value) of every record whose key begins with one of the prefixes, in order of key."""

    def lock(self, seen: StoredHead | None, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        """Take the head, tell what others wrote after `seen`, and look up records by key and roots by size.

        One that is still taken is given back first. HeadMoved, Busy, Unfit, Fatal; then the head is not taken.
        """

    def look(self, keys: Sequence[str], sizes: Sequence[int]) -> Locked:
        """Look up more, while the head is taken. After an error the head is not taken any more."""

    def commit(self, batch: StoredBatch, expected: StoredHead | None) -> None:
        """Write the batch durably if the head is `expected` (None: the store is empty), and give the head back.

        HeadMoved, Busy, Unfit, Unknown. `expected` is the head that `lock` took.
        """

    def unlock(self) -> None:
        """Give the head back without a write. Does nothing when it is not taken; never raises."""

    def news(self, seen: StoredHead) -> tuple[StoredBatch, ...]:
        """Return the batches after `seen`, oldest first, without taking the head. HeadMoved, Busy, Fatal.

        Not all at once where there are many: who got some asks again.
        """

    def listen(self, hint: Callable[[], None]) -> None:
        """Call `hint`, from any thread, when another node may have written; nothing where the store is not shared.

        Late, twice, for nothing, or never: correctness never rests on it. Called once, before the first `load`.
        """

    def confirm(self) -> None:
        """Return when all that could be seen before this call is as durable as a commit. Busy, Unknown: perhaps not."""

    def unsigned(self) -> tuple[StoredCheckpoint, ...]:
        """Return the batches whose signatures are not kept, oldest first."""

    def landed(self, batch_id: str) -> bool:
        """Say whether that batch was committed; asked at once after Unknown, and confirmed if it was.

        Busy: it can't be found out yet, and who asked loads again. Anything else raised means: not found out.
        """

    def keep(self, upkeep: Upkeep) -> int:
        """Do the upkeep and return how many records were forgotten. Busy, Unknown: nothing lost, try another time."""

    def close(self) -> None:
        """Give the store back. Nothing is written; closing twice is allowed."""


def node_count(size: int) -> int:
    """Return how many subtrees are complete in a tree of `size` leaves, the leaves included."""
    return 2 * size - size.bit_count()


def node_position(level: int, index: int) -> int:
    """Return the place of a subtree's hash when hashes are written as they become complete.

    Each leaf is followed by the subtrees that it completes, lowest first, so the order never changes and a batch
    only ever appends. (Go's sumdb numbers its stored hashes in the same way.)
    """
    return node_count(((index + 1) << level) - 1) + level
