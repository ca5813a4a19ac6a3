-- One ledger in one file. History is only ever added to; records are what decisions depend on.
-- Life of an entry: docs/architecture.md, store.

CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    size INTEGER NOT NULL,
    root BLOB NOT NULL,
    prev_hash BLOB NOT NULL,
    time_ms INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    batch_id TEXT NOT NULL,
    is_clean INTEGER NOT NULL,
    -- The keyed sum over the hot records as the last batch left them; the store only keeps it (gateway/ledger/seal.py).
    seal BLOB NOT NULL DEFAULT x''
) STRICT;

CREATE TABLE entry (
    seq INTEGER PRIMARY KEY,
    leaf BLOB NOT NULL
) STRICT;

-- `hashes` are the tree nodes completed by the batch's leaves, 32 bytes each, in the order they become complete.
CREATE TABLE batch (
    size INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    root BLOB NOT NULL,
    time_ms INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    batch_id TEXT NOT NULL,
    hashes BLOB NOT NULL
) STRICT;

-- Written after the batch: nothing is signed before its commit. `signatures` are 64 bytes for each leaf, in order.
CREATE TABLE signed (
    size INTEGER PRIMARY KEY,
    note BLOB NOT NULL,
    signatures BLOB NOT NULL
) STRICT;

CREATE TABLE record (
    key TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    due_ms INTEGER
) STRICT, WITHOUT ROWID;

-- Record changes of the last some hundred batches, until they are folded into `record`; the newest wins.
-- `rows` is JSON, [key, size of the value or null when deleted, due time or null]; `bodies` are the values end to end.
CREATE TABLE journal (
    number INTEGER PRIMARY KEY,
    rows BLOB NOT NULL,
    bodies BLOB NOT NULL
) STRICT;

-- What may be forgotten when: the keys (a JSON list) of one kind that one batch left due at one moment. A key whose due
-- time changed since stands here too often, which is seen when its turn comes.
CREATE TABLE fading (
    number INTEGER PRIMARY KEY,
    due_ms INTEGER NOT NULL,
    kind TEXT NOT NULL,
    keys BLOB NOT NULL
) STRICT;

CREATE INDEX fading_due ON fading (due_ms);

CREATE TRIGGER entry_is_history BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'an entry never changes'); END;
CREATE TRIGGER entry_is_kept BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'an entry is never deleted'); END;
CREATE TRIGGER batch_is_history BEFORE UPDATE ON batch BEGIN SELECT RAISE(ABORT, 'a batch never changes'); END;
CREATE TRIGGER batch_is_kept BEFORE DELETE ON batch BEGIN SELECT RAISE(ABORT, 'a batch is never deleted'); END;
CREATE TRIGGER signed_is_history BEFORE UPDATE ON signed BEGIN SELECT RAISE(ABORT, 'a signature never changes'); END;
CREATE TRIGGER signed_is_kept BEFORE DELETE ON signed BEGIN SELECT RAISE(ABORT, 'a signature is never deleted'); END;
