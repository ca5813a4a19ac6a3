-- Views for people: what is live, as of the last commit, in all ledgers of the database. The gateway reads none of them.

CREATE VIEW tallystick.live_record AS
SELECT origin, key, convert_from(value, 'UTF8')::json AS value
FROM tallystick.record JOIN tallystick.ledger ON id = ledger;

CREATE VIEW tallystick.leases AS
SELECT
    origin,
    value ->> 'leaseId' AS lease_id,
    value ->> 'holder' AS holder,
    value ->> 'principal' AS principal,
    value ->> 'onBehalfOf' AS on_behalf_of,
    value ->> 'resources' AS resources,
    value ->> 'mode' AS mode,
    (value ->> 'fencingToken')::bigint AS fencing_token,
    (value ->> 'grantSeq')::bigint AS grant_seq,
    (value ->> 'grantedAtMs')::bigint AS granted_at_ms,
    (value ->> 'ttlMs')::bigint AS ttl_ms,
    (value ->> 'expiresAtMs')::bigint AS expires_at_ms,
    (value ->> 'holdUntilMs')::bigint AS hold_until_ms,
    value ->> 'giver' AS giver,
    (value ->> 'giverUntilMs')::bigint AS giver_until_ms
FROM tallystick.live_record WHERE key >= 'lease/' AND key < 'lease0';

CREATE VIEW tallystick.waits AS
SELECT
    origin,
    value ->> 'actor' AS actor,
    value ->> 'principal' AS principal,
    value ->> 'resource' AS resource,
    (value ->> 'waits')::bigint AS waits,
    (value ->> 'sinceMs')::bigint AS since_ms,
    (value ->> 'refusedAtMs')::bigint AS refused_at_ms,
    value ->> 'leaseId' AS lease_id,
    (value ->> 'untilMs')::bigint AS until_ms
FROM tallystick.live_record WHERE key >= 'wait/' AND key < 'wait0';

CREATE VIEW tallystick.operators AS
SELECT
    origin,
    value ->> 'did' AS did,
    value ->> 'name' AS name,
    (value ->> 'addedSeq')::bigint AS added_seq,
    (value ->> 'removedSeq')::bigint AS removed_seq
FROM tallystick.live_record WHERE key >= 'operator/' AND key < 'operator0';

CREATE VIEW tallystick.agents AS
SELECT
    origin,
    value ->> 'did' AS did,
    value ->> 'name' AS name,
    (value ->> 'addedSeq')::bigint AS added_seq,
    (value ->> 'removedSeq')::bigint AS removed_seq,
    value ->> 'operator' AS operator,
    (value ->> 'isCustodial')::boolean AS is_custodial,
    value ->> 'keyDigest' AS key_digest,
    (value ->> 'trialUntilMs')::bigint AS trial_until_ms
FROM tallystick.live_record WHERE key >= 'agent/' AND key < 'agent0';

CREATE VIEW tallystick.apikeys AS
SELECT
    origin,
    value ->> 'digest' AS digest,
    value ->> 'kind' AS kind,
    value ->> 'name' AS name,
    value ->> 'agent' AS agent,
    value ->> 'operator' AS operator,
    (value ->> 'issuedSeq')::bigint AS issued_seq,
    (value ->> 'revokedSeq')::bigint AS revoked_seq,
    value ->> 'usedBy' AS used_by
FROM tallystick.live_record WHERE key >= 'apikey/' AND key < 'apikey0';

CREATE VIEW tallystick.sessions AS
SELECT
    origin,
    value ->> 'did' AS did,
    value ->> 'name' AS name,
    value ->> 'principal' AS principal,
    value ->> 'onBehalfOf' AS on_behalf_of,
    value ->> 'verbs' AS verbs,
    value ->> 'resources' AS resources,
    (value ->> 'openedSeq')::bigint AS opened_seq,
    (value ->> 'expiresAtMs')::bigint AS expires_at_ms,
    (value ->> 'idleByMs')::bigint AS idle_by_ms,
    value ->> 'activity' AS activity,
    (value ->> 'anchorSize')::bigint AS anchor_size,
    (value ->> 'signedS')::bigint AS signed_s,
    (value ->> 'sharedSeq')::bigint AS shared_seq,
    (value ->> 'endedSeq')::bigint AS ended_seq
FROM tallystick.live_record WHERE key >= 'session/' AND key < 'session0';

CREATE VIEW tallystick.tickets AS
SELECT
    origin,
    value ->> 'ticketId' AS ticket_id,
    value ->> 'actor' AS actor,
    value ->> 'principal' AS principal,
    value ->> 'onBehalfOf' AS on_behalf_of,
    value ->> 'resources' AS resources,
    value ->> 'mode' AS mode,
    (value ->> 'ttlMs')::bigint AS ttl_ms,
    (value ->> 'seq')::bigint AS seq,
    (value ->> 'queuedAtMs')::bigint AS queued_at_ms,
    (value ->> 'pollByMs')::bigint AS poll_by_ms,
    (value ->> 'giveUpByMs')::bigint AS give_up_by_ms,
    (value ->> 'claimByMs')::bigint AS claim_by_ms,
    (value ->> 'passes')::bigint AS passes,
    (value ->> 'reserveAtMs')::bigint AS reserve_at_ms,
    (value ->> 'reserveUntilMs')::bigint AS reserve_until_ms,
    (value ->> 'isPassed')::boolean AS is_passed
FROM tallystick.live_record WHERE key >= 'ticket/' AND key < 'ticket0';

CREATE VIEW tallystick.schemes AS
SELECT
    origin,
    value ->> 'name' AS name,
    value ->> 'className' AS class_name,
    (value ->> 'isFolding')::boolean AS is_folding,
    (value ->> 'isUnicode')::boolean AS is_unicode,
    (value ->> 'lockDelayMs')::bigint AS lock_delay_ms,
    (value ->> 'maxHoldMs')::bigint AS max_hold_ms,
    (value ->> 'seq')::bigint AS seq
FROM tallystick.live_record WHERE key >= 'scheme/' AND key < 'scheme0';

CREATE VIEW tallystick.trust AS
SELECT
    origin,
    value ->> 'did' AS did,
    (value ->> 'trust')::bigint AS trust,
    (value ->> 'trustSeq')::bigint AS trust_seq,
    (value ->> 'gainSinceMs')::bigint AS gain_since_ms,
    (value ->> 'gained')::bigint AS gained,
    (value ->> 'held')::bigint AS held
FROM tallystick.live_record WHERE key >= 'principal/' AND key < 'principal0';
