-- Many ledgers in one database, several gateways on each. History is only ever added to; records are what decisions
-- depend on. Keys are compared as UTF-8 bytes. What is random or already small is not compressed.

-- `genesis` is the RFC 6962 leaf hash of entry 0, written with it.
CREATE TABLE tallystick.ledger (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin text COLLATE "C" NOT NULL UNIQUE,
    genesis bytea
);

-- One row for each ledger, size 0 before entry 0. Whoever writes locks it first. `manner` is what the last start said
-- of durability and rules; `fence` goes up when somebody found out that a batch did not land, so that it never will.
CREATE TABLE tallystick.head (
    ledger integer PRIMARY KEY REFERENCES tallystick.ledger,
    size bigint NOT NULL DEFAULT 0,
    root bytea NOT NULL DEFAULT '',
    prev_hash bytea NOT NULL DEFAULT '',
    time_ms bigint NOT NULL DEFAULT 0,
    epoch bigint NOT NULL DEFAULT 0,
    batch_id text COLLATE "C" NOT NULL DEFAULT '',
    seal bytea NOT NULL DEFAULT '',
    is_clean boolean NOT NULL DEFAULT true,
    manner text NOT NULL DEFAULT '',
    fence bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

CREATE TABLE tallystick.entry (
    ledger integer NOT NULL,
    seq bigint NOT NULL,
    leaf bytea NOT NULL,
    PRIMARY KEY (ledger, seq)
);

-- `hashes` are the tree nodes completed by the batch's leaves, 32 bytes each, in the order they become complete.
CREATE TABLE tallystick.batch (
    ledger integer NOT NULL,
    size bigint NOT NULL,
    first_seq bigint NOT NULL,
    root bytea NOT NULL,
    time_ms bigint NOT NULL,
    epoch bigint NOT NULL,
    batch_id text COLLATE "C" NOT NULL,
    hashes bytea NOT NULL,
    PRIMARY KEY (ledger, size),
    UNIQUE (ledger, batch_id)
);

-- Written after the batch: nothing is signed before its commit. `signatures` are 64 bytes for each leaf, in order.
CREATE TABLE tallystick.signed (
    ledger integer NOT NULL,
    size bigint NOT NULL,
    note bytea NOT NULL,
    signatures bytea NOT NULL,
    PRIMARY KEY (ledger, size)
);

CREATE TABLE tallystick.record (
    ledger integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    due_ms bigint,
    PRIMARY KEY (ledger, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What may be forgotten when, by kind (a key's beginning up to its first slash).
CREATE INDEX record_due ON tallystick.record (ledger, split_part(key, '/', 1), due_ms, key) WHERE due_ms IS NOT NULL;

-- The record changes of the newest batches, for the nodes that follow; older ones are pruned. `rows` is JSON, [key, size
-- of the value or null when deleted, due time or null]; `bodies` are the values end to end.
CREATE TABLE tallystick.journal (
    ledger integer NOT NULL,
    size bigint NOT NULL,
    seal bytea NOT NULL,
    rows bytea NOT NULL,
    bodies bytea NOT NULL,
    PRIMARY KEY (ledger, size)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- Who serves a ledger, by the database's clock: a start asks whom it would make unfit. A node commits its own row when it
-- wants to know that what it saw is durable: the log is one stream, so whoever has this row's `barrier` has everything
-- before it. It takes the row away when it stops in order.
CREATE TABLE tallystick.node (
    ledger integer NOT NULL,
    node text COLLATE "C" NOT NULL,
    manner text NOT NULL,
    version text NOT NULL,
    started_ms bigint NOT NULL,
    seen_ms bigint NOT NULL,
    barrier bigint NOT NULL,
    PRIMARY KEY (ledger, node)
) WITH (fillfactor = 10);

-- Whose turn it is at what only one node does; a hint, by the database's clock.
CREATE TABLE tallystick.duty (
    ledger integer NOT NULL,
    name text COLLATE "C" NOT NULL,
    holder text COLLATE "C" NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (ledger, name)
) WITH (fillfactor = 10);

ALTER TABLE tallystick.batch ALTER COLUMN hashes SET STORAGE EXTERNAL;
ALTER TABLE tallystick.signed ALTER COLUMN signatures SET STORAGE EXTERNAL;
ALTER TABLE tallystick.journal ALTER COLUMN rows SET STORAGE EXTERNAL, ALTER COLUMN bodies SET STORAGE EXTERNAL;

CREATE FUNCTION tallystick.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'TS003', MESSAGE = format('%s is history: a row never changes and is never deleted', TG_TABLE_NAME);
END $$;

CREATE TRIGGER history BEFORE UPDATE OR DELETE ON tallystick.entry FOR EACH ROW EXECUTE FUNCTION tallystick.refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE ON tallystick.batch FOR EACH ROW EXECUTE FUNCTION tallystick.refuse_change();
CREATE TRIGGER history BEFORE UPDATE OR DELETE ON tallystick.signed FOR EACH ROW EXECUTE FUNCTION tallystick.refuse_change();
CREATE TRIGGER kept BEFORE TRUNCATE ON tallystick.entry FOR EACH STATEMENT EXECUTE FUNCTION tallystick.refuse_change();
CREATE TRIGGER kept BEFORE TRUNCATE ON tallystick.batch FOR EACH STATEMENT EXECUTE FUNCTION tallystick.refuse_change();
CREATE TRIGGER kept BEFORE TRUNCATE ON tallystick.signed FOR EACH STATEMENT EXECUTE FUNCTION tallystick.refuse_change();
