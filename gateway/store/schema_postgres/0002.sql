-- The write path. Whatever a client believes, these compare it with what is here, in the transaction that writes.
-- SQLSTATE TS001: the head is not the expected one. TS002: settings would break a promise. TS003: history can't be so.

-- Raise TS002 when a commit in this session would not be as durable as its entries say, or when this is not the session
-- that was checked at its beginning (a pool in between handed out another).
CREATE FUNCTION tallystick.check_fit(link text, is_replicated boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    names text := current_setting('synchronous_standby_names');
BEGIN
    IF current_setting('tallystick.link', true) IS DISTINCT FROM link THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = 'another session of the server answers than the one that was checked: a pool of transactions lies in between; connect directly, or pool sessions';
    END IF;
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = 'this server is a stand-by; connect to the primary';
    END IF;
    IF current_setting('synchronous_commit') <> 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = format('synchronous_commit is %s, must be on', current_setting('synchronous_commit'));
    END IF;
    IF current_setting('client_min_messages') IN ('error', 'fatal', 'panic') THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = format('client_min_messages is %s, must be warning: what is not replicated would look as if it were', current_setting('client_min_messages'));
    END IF;
    IF is_replicated AND (names = '' OR position('*' IN names) > 0) THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = format('synchronous_standby_names is "%s", must name stand-bys (and not *): ALTER SYSTEM SET synchronous_standby_names = ''ANY 1 (NAME, NAME)''; SELECT pg_reload_conf()', names);
    END IF;
END $$;

-- Take the head, and look up records by key and roots by size as they are after that. Every statement in here sees what
-- was committed before it, so the look-ups come after the lock in time, too.
CREATE FUNCTION tallystick.take(
    of_ledger integer, link text, is_replicated boolean, keys text[], sizes bigint[],
    OUT size bigint, OUT root bytea, OUT prev_hash bytea, OUT time_ms bigint, OUT epoch bigint, OUT batch_id text,
    OUT seal bytea, OUT manner text, OUT fence bigint, OUT wall_ms bigint,
    OUT found_keys text[], OUT found_values bytea[], OUT found_sizes bigint[], OUT found_roots bytea[]
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    PERFORM tallystick.check_fit(link, is_replicated);
    SELECT h.size, h.root, h.prev_hash, h.time_ms, h.epoch, h.batch_id, h.seal, h.manner, h.fence
        INTO size, root, prev_hash, time_ms, epoch, batch_id, seal, manner, fence
        FROM tallystick.head h WHERE h.ledger = of_ledger FOR UPDATE;
    wall_ms := floor(extract(epoch FROM clock_timestamp()) * 1000);
    SELECT array_agg(r.key), array_agg(r.value) INTO found_keys, found_values
        FROM tallystick.record r WHERE r.ledger = of_ledger AND r.key = ANY (keys);
    SELECT array_agg(b.size), array_agg(b.root) INTO found_sizes, found_roots
        FROM tallystick.batch b WHERE b.ledger = of_ledger AND b.size = ANY (sizes);
END $$;

-- Write one batch, if the head is as `was_…` says. `keys`, `vals`, `dues` (-1: none) are records to write, `gone` those
-- to delete; `rows` and `bodies` say the same for the journal.
CREATE FUNCTION tallystick.append(
    of_ledger integer, link text, is_replicated boolean, my_manner text,
    was_size bigint, was_root bytea, was_epoch bigint, was_fence bigint,
    new_size bigint, new_root bytea, new_prev_hash bytea, new_time_ms bigint, new_epoch bigint, new_batch_id text,
    new_seal bytea, leaves bytea[], new_hashes bytea,
    keys text[], vals bytea[], dues bigint[], gone text[], new_rows bytea, new_bodies bytea,
    signed_sizes bigint[], notes bytea[], signature_lists bytea[]
) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    h tallystick.head%ROWTYPE;
    is_start boolean := new_epoch > was_epoch OR was_size = 0;
BEGIN
    PERFORM tallystick.check_fit(link, is_replicated);
    SELECT * INTO h FROM tallystick.head WHERE ledger = of_ledger FOR UPDATE;
    IF (h.size, h.root, h.epoch, h.fence) IS DISTINCT FROM (was_size, was_root, was_epoch, was_fence) THEN
        RAISE EXCEPTION USING ERRCODE = 'TS001', MESSAGE = format('the head is at size %s of epoch %s, not at size %s of epoch %s as expected', h.size, h.epoch, was_size, was_epoch);
    END IF;
    IF NOT is_start AND h.manner <> my_manner THEN
        RAISE EXCEPTION USING ERRCODE = 'TS002', MESSAGE = format('this node writes "%s", the last start on this ledger said "%s" (durability and rules): give all nodes of the ledger the same', my_manner, h.manner);
    END IF;
    IF cardinality(leaves) = 0 OR new_size <> was_size + cardinality(leaves) OR new_epoch < was_epoch OR new_time_ms < h.time_ms THEN
        RAISE EXCEPTION USING ERRCODE = 'TS003', MESSAGE = format('a batch that ends at size %s can''t follow size %s', new_size, was_size);
    END IF;
    UPDATE tallystick.head SET size = new_size, root = new_root, prev_hash = new_prev_hash, time_ms = new_time_ms,
        epoch = new_epoch, batch_id = new_batch_id, seal = new_seal, is_clean = false,
        manner = CASE WHEN is_start THEN my_manner ELSE h.manner END
        WHERE ledger = of_ledger;
    IF was_size = 0 THEN
        UPDATE tallystick.ledger SET genesis = sha256('\x00'::bytea || leaves[1]) WHERE id = of_ledger;
    END IF;
    INSERT INTO tallystick.entry SELECT of_ledger, was_size + one.at - 1, one.leaf FROM unnest(leaves) WITH ORDINALITY AS one (leaf, at);
    INSERT INTO tallystick.batch VALUES (of_ledger, new_size, was_size, new_root, new_time_ms, new_epoch, new_batch_id, new_hashes);
    INSERT INTO tallystick.journal VALUES (of_ledger, new_size, new_seal, new_rows, new_bodies);
    PERFORM tallystick.keep_signed(of_ledger, signed_sizes, notes, signature_lists);
    PERFORM tallystick.change_records(of_ledger, keys, vals, dues, gone);
END $$;

-- Keep signatures of batches that exist; one that is already kept stays as it was first.
CREATE FUNCTION tallystick.keep_signed(of_ledger integer, sizes bigint[], notes bytea[], signature_lists bytea[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF cardinality(sizes) > 0 THEN
        INSERT INTO tallystick.signed
            SELECT of_ledger, one.size, one.note, one.signatures
            FROM unnest(sizes, notes, signature_lists) AS one (size, note, signatures)
            JOIN tallystick.batch b ON b.ledger = of_ledger AND b.size = one.size
            ORDER BY one.size
            ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- Change records, always in order of key. Who calls has the head.
CREATE FUNCTION tallystick.change_records(of_ledger integer, keys text[], vals bytea[], dues bigint[], gone text[])
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    IF cardinality(gone) > 0 THEN
        DELETE FROM tallystick.record WHERE ledger = of_ledger AND key = ANY (gone);
    END IF;
    IF cardinality(keys) > 0 THEN
        INSERT INTO tallystick.record AS r
            SELECT of_ledger, one.key, one.value, nullif(one.due_ms, -1)
            FROM unnest(keys, vals, dues) AS one (key, value, due_ms)
            ORDER BY one.key COLLATE "C"
            ON CONFLICT (ledger, key) DO UPDATE SET value = excluded.value, due_ms = excluded.due_ms;
    END IF;
END $$;

-- Forget at most `count_max` records of these kinds that are due, oldest first, and say how many. Who calls has the head.
CREATE FUNCTION tallystick.forget(of_ledger integer, kinds text[], by_ms bigint, count_max bigint)
RETURNS bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    count bigint;
BEGIN
    WITH due AS (
        SELECT one.key FROM unnest(kinds) AS wanted (kind)
        CROSS JOIN LATERAL (
            SELECT r.key, r.due_ms FROM tallystick.record r
            WHERE r.ledger = of_ledger AND split_part(r.key, '/', 1) = wanted.kind AND r.due_ms <= by_ms
            ORDER BY r.due_ms, r.key LIMIT count_max
        ) AS one
        ORDER BY one.due_ms, one.key LIMIT count_max
    )
    DELETE FROM tallystick.record r USING due WHERE r.ledger = of_ledger AND r.key = due.key;
    GET DIAGNOSTICS count = ROW_COUNT;
    RETURN count;
END $$;
