"""The records of a ledger file: what they say against the entries they came from, and against the seal over them.

Hot records are compared as a start does it. Cold ones (answers that were given, spent nonces and approvals, ends) are
not sealed: each is made again from the entry it names. What may be forgotten when is only counted on by the store.
"""

from __future__ import annotations

from contextlib import suppress
from hmac import compare_digest

import orjson

from gateway.core.facts import status_of
from gateway.core.intake import fingerprint
from gateway.core.record_codec import decode_record
from gateway.core.record_keys import (
    COLD_PREFIXES,
    HOT_PREFIXES,
    broken_name,
    burnt_key,
    ended_key,
    idempotency_key,
    nonce_key,
)
from gateway.core.records import Burnt, Cosigned, Ended, Idempotency, Nonce, Record, due_ms_of
from gateway.core.refusal import BY_NAME
from gateway.core.wait import ACCEPTED
from gateway.errors import Fatal
from gateway.fsck.findings import Flaws
from gateway.ledger.evidence import check_records
from gateway.ledger.live import Live
from gateway.ledger.seal import Seal
from gateway.store.contract import RecordChange, StoredHead
from gateway.store.raw import RawFile, RawRecord
from gateway.store.recent import kind_of
from gateway.store.sqlite import Reader
from verifier.checkpoint import parse_checkpoint
from verifier.entries import WINDOW_S_MAX, full_type, rows_of
from verifier.request import content_digest, parse_signature_input
from verifier.wire import JsonObject, Malformed, encode_base64

_OK = 200
_WAITING = (full_type("wait.queued"), full_type("wait.polled"))


class Records:
    """The records of one moment of a file, and what is wrong with them. `seal_key` None: the seal can't be checked."""

    def __init__(self, file: RawFile, reader: Reader, flaws: Flaws, seal_key: bytes | None) -> None:
        self._file, self._reader, self._flaws, self._seal_key = file, reader, flaws, seal_key
        self._hot: dict[str, Record] = {}
        self._sealed: list[RecordChange] = []
        self._due: set[int] = set()  # of each record that may be forgotten one day: its key and due time, hashed
        self._idempotency_ms = self._skew_ms = 0
        self._young: set[str] | None = None
        self.is_seal_whole = False

    def check(self) -> int:
        """Check every record and return how many there are. Holds one moment of the file while it reads."""
        self._take_numbers()
        with self._file.moment():
            head = self._file.head()
            count = self._take_rows()
            self._check_fading()
        if head is not None:
            self._check_hot(head)
        return count

    def _take_numbers(self) -> None:
        numbers = self._leaf(0).get("parameters")
        if isinstance(numbers, dict):
            self._idempotency_ms = int(str(numbers.get("idempotencyMs", 0)))
            self._skew_ms = int(str(numbers.get("skewMs", 0)))

    def _take_rows(self) -> int:
        count = 0
        try:
            for record in self._file.records():
                self._take(record)
                count += 1
        except ValueError as error:
            self._flaws.say("journal_malformed", str(error))
        return count

    def _take(self, row: RawRecord) -> None:
        """Decode one record; a hot one is kept for `_check_hot`, a cold one compared with its entry at once."""
        try:
            record = decode_record(row.key, row.value)
        except Malformed as error:
            self._flaws.say("record_malformed", f"the record {row.key}: {error}")
            return
        if due_ms_of(record) != row.due_ms:
            self._flaws.say("due_differs", f"the record {row.key} is due at another time than it says")
        elif row.due_ms is not None:
            self._due.add(hash((row.due_ms, row.key)))
        if row.key.startswith(HOT_PREFIXES):
            self._hot[row.key] = record
            self._sealed.append((row.key, row.value, due_ms_of(record)))
        elif row.key.startswith(COLD_PREFIXES) and not self._is_of_entry(row.key, record):
            self._flaws.say("cold_record_differs", f"the record {row.key} says what no entry of the ledger says")

    def _check_hot(self, head: StoredHead) -> None:
        try:
            check_records(self._reader, Live(self._hot.items()), head.size)
        except Fatal as error:
            self._flaws.say("record_differs", str(error))
        except AssertionError:
            self._flaws.say("record_differs", "entry 0 and the records don't belong together")
        if self._seal_key is None or head.size == 1:  # entry 0 alone bears no seal
            return
        seal = Seal(self._seal_key, self._sealed, head.time_ms)
        self.is_seal_whole = compare_digest(seal.mark(head.size, head.root), head.seal)
        if not self.is_seal_whole:
            self._flaws.say("seal_broken", "the records are not those that the last batch left", head.size)

    def _is_of_entry(self, key: str, record: Record) -> bool:
        match record:
            case Idempotency():
                return self._is_answered(key, record)
            case Nonce():
                return self._is_spent(key, record)
            case Burnt():
                return self._is_burnt(key, record)
            case Ended():
                return self._is_ended(key, record)
            case Cosigned():
                return self._is_cosigned(record)
        return False

    def _is_cosigned(self, record: Cosigned) -> bool:
        """Say whether what witnesses signed is a checkpoint of this very tree; their keys are a policy's matter."""
        try:
            checkpoint = parse_checkpoint(record.note.encode())
        except Malformed:
            return False
        batch = self._reader.batch_at(checkpoint.size)
        if batch is None or checkpoint.root != batch.root:
            return False
        return (record.size, record.root) == (checkpoint.size, encode_base64(batch.root))

    def _is_answered(self, key: str, record: Idempotency) -> bool:
        leaf, asked = self._asked(record.seq)
        if key != idempotency_key(str(leaf.get("actor")), str(asked.get("idempotencyKey"))):
            return False
        path, query, body = (str(asked.get(name, "")) for name in ("path", "query", "body"))
        printed = fingerprint(str(asked.get("method")), path, query, content_digest(body.encode()))
        until_ms = _time_ms(leaf) + self._idempotency_ms
        return (record.fingerprint, record.status, record.until_ms) == (printed, _status(leaf), until_ms)

    def _is_spent(self, key: str, record: Nonce) -> bool:
        leaf, asked = self._asked(record.seq)
        try:
            signed = parse_signature_input(str(asked.get("signatureInput")))
        except Malformed:
            return False
        if key == nonce_key(str(leaf.get("actor")), signed.nonce):
            return record.until_ms == signed.expires * 1_000 + self._skew_ms
        # A request that was sent again got this entry's answer, and spent a nonce that stands in no entry.
        last_ms = _time_ms(leaf) + self._idempotency_ms + WINDOW_S_MAX * 1_000 + 2 * self._skew_ms
        return _time_ms(leaf) < record.until_ms <= last_ms and key not in self._own_nonces()

    def _is_burnt(self, key: str, record: Burnt) -> bool:
        """Say whether the entry used the approval that the key names, which holds for so long."""
        rows = rows_of(self._leaf(record.seq).get("approvals"))
        used = {(str(row.get("approver")), str(row.get("nonce"))) for row in rows}
        ends = {
            (str(one.get("approver")), str(one.get("nonce"))): one.get("expiresAtMs") for one in self._given(record)
        }
        return any(key == burnt_key(*one) and ends.get(one) == record.until_ms for one in used)

    def _given(self, record: Burnt) -> list[JsonObject]:
        """Return the statements of approval in the body that an entry answers, or in its command of a batch."""
        _, asked = self._asked(record.seq)
        batch, index = asked.get("batch"), asked.get("index")
        if isinstance(batch, int):
            _, asked = self._asked(batch)
        body: JsonObject = orjson.loads(str(asked.get("body", "{}")))
        command = rows_of(body.get("commands"))[index] if isinstance(index, int) else body
        return [one for row in rows_of(command.get("approvals")) if isinstance(one := row.get("statement"), dict)]

    def _own_nonces(self) -> set[str]:
        """Return the places of the nonces in entries so young that these are still remembered."""
        head = self._file.head()
        if self._young is None and head is not None:
            self._young, seq = set(), head.size
            since_ms = head.time_ms - WINDOW_S_MAX * 1_000 - 2 * self._skew_ms
            while seq > 0 and _time_ms(self._leaf(seq := seq - 1)) >= since_ms:
                leaf, asked = self._asked(seq)
                with suppress(Malformed):
                    signed = parse_signature_input(str(asked.get("signatureInput")))
                    self._young.add(nonce_key(str(leaf.get("actor")), signed.nonce))
        return self._young or set()

    def _is_ended(self, key: str, record: Ended) -> bool:
        """Say whether an entry ended, in this way and then, the lease or ticket that the key names, or broke the token.

        Who held it stands somewhere in that entry, under a name of its type.
        """
        leaf = self._leaf(record.seq)
        names = {str(leaf.get(name)) for name in ("leaseId", "ticketId", "fromLeaseId")}
        if isinstance(token := leaf.get("fencingToken", leaf.get("seenToken")), int):
            names.add(broken_name(token))
        is_so = f".{record.how}/" in str(leaf.get("type"))
        is_then = record.until_ms == _time_ms(leaf) + self._idempotency_ms
        return is_so and is_then and key in map(ended_key, names) and record.actor in leaf.values()

    def _asked(self, seq: int) -> tuple[JsonObject, JsonObject]:
        """Return an entry and the request that it answers; empty where there is none."""
        leaf = self._leaf(seq)
        asked = leaf.get("request")
        return leaf, asked if isinstance(asked, dict) else {}

    def _leaf(self, seq: int) -> JsonObject:
        """Return the members of an entry, which the walk over the history has judged before; none where it is gone."""
        try:
            value = orjson.loads(self._file.leaves(seq, seq + 1).get(seq, b"{}"))
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def _check_fading(self) -> None:
        """Each row must be readable, and each record that is due one day must stand in one of that due time."""
        for number, due_ms, kind, keys in self._file.fading():
            listed = _key_list(keys, kind)
            if listed is None:
                self._flaws.say("fading_malformed", f"row {number} of what may be forgotten is malformed")
            else:
                self._due.difference_update(hash((due_ms, key)) for key in listed)
        if self._due:
            self._flaws.say("fading_malformed", f"{len(self._due)} records would never be forgotten")


def _time_ms(leaf: JsonObject) -> int:
    time_ms = leaf.get("timeMs")
    return time_ms if isinstance(time_ms, int) else -1


def _status(leaf: JsonObject) -> int:
    """Return the status that an entry was answered with."""
    if "error" in leaf:
        return status_of(leaf) if str(leaf["error"]) in BY_NAME else 0
    return ACCEPTED if leaf.get("type") in _WAITING else _OK


def _key_list(keys: bytes, kind: str) -> list[str] | None:
    """Return the keys of a row of `fading`; None unless it is a list of keys of its kind."""
    try:
        listed = orjson.loads(keys)
    except ValueError:
        return None
    is_good = isinstance(listed, list) and all(isinstance(key, str) and kind_of(key) == kind for key in listed)
    return listed if is_good else None
