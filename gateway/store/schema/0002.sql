-- Views for people: what is live, as of the last commit. Nothing in the gateway reads them.
-- A record is what the newest journal row says, else what the table says; see `journal` in 0001.sql.

CREATE VIEW live_record AS
WITH
    change AS (
        SELECT
            journal.number AS number,
            item.id AS place,
            json_extract(item.value, '$[0]') AS key,
            json_extract(item.value, '$[1]') AS size,
            sum(ifnull(json_extract(item.value, '$[1]'), 0)) OVER (PARTITION BY journal.number ORDER BY item.id) AS stop
        FROM journal, json_each(CAST(journal.rows AS TEXT)) AS item
    ),
    newest AS (
        SELECT number, key, size, stop, row_number() OVER (PARTITION BY key ORDER BY number DESC, place DESC) AS age
        FROM change
    )
SELECT key, CAST(substr(journal.bodies, stop - size + 1, size) AS TEXT) AS value
FROM newest JOIN journal USING (number) WHERE age = 1 AND size IS NOT NULL
UNION ALL
SELECT key, CAST(value AS TEXT) AS value FROM record WHERE key NOT IN (SELECT key FROM change);

CREATE VIEW leases AS
SELECT
    json_extract(value, '$.leaseId') AS lease_id,
    json_extract(value, '$.holder') AS holder,
    json_extract(value, '$.principal') AS principal,
    json_extract(value, '$.onBehalfOf') AS on_behalf_of,
    json_extract(value, '$.resources') AS resources,
    json_extract(value, '$.mode') AS mode,
    json_extract(value, '$.fencingToken') AS fencing_token,
    json_extract(value, '$.grantSeq') AS grant_seq,
    json_extract(value, '$.grantedAtMs') AS granted_at_ms,
    json_extract(value, '$.ttlMs') AS ttl_ms,
    json_extract(value, '$.expiresAtMs') AS expires_at_ms,
    json_extract(value, '$.holdUntilMs') AS hold_until_ms,
    json_extract(value, '$.giver') AS giver,
    json_extract(value, '$.giverUntilMs') AS giver_until_ms
FROM live_record WHERE key GLOB 'lease/*';

CREATE VIEW waits AS
SELECT
    json_extract(value, '$.actor') AS actor,
    json_extract(value, '$.principal') AS principal,
    json_extract(value, '$.resource') AS resource,
    json_extract(value, '$.waits') AS waits,
    json_extract(value, '$.sinceMs') AS since_ms,
    json_extract(value, '$.refusedAtMs') AS refused_at_ms,
    json_extract(value, '$.leaseId') AS lease_id,
    json_extract(value, '$.untilMs') AS until_ms
FROM live_record WHERE key GLOB 'wait/*';

CREATE VIEW operators AS
SELECT
    json_extract(value, '$.did') AS did,
    json_extract(value, '$.name') AS name,
    json_extract(value, '$.addedSeq') AS added_seq,
    json_extract(value, '$.removedSeq') AS removed_seq
FROM live_record WHERE key GLOB 'operator/*';

CREATE VIEW agents AS
SELECT
    json_extract(value, '$.did') AS did,
    json_extract(value, '$.name') AS name,
    json_extract(value, '$.addedSeq') AS added_seq,
    json_extract(value, '$.removedSeq') AS removed_seq,
    json_extract(value, '$.operator') AS operator,
    json_extract(value, '$.isCustodial') AS is_custodial,
    json_extract(value, '$.keyDigest') AS key_digest,
    json_extract(value, '$.trialUntilMs') AS trial_until_ms
FROM live_record WHERE key GLOB 'agent/*';

CREATE VIEW apikeys AS
SELECT
    json_extract(value, '$.digest') AS digest,
    json_extract(value, '$.kind') AS kind,
    json_extract(value, '$.name') AS name,
    json_extract(value, '$.agent') AS agent,
    json_extract(value, '$.operator') AS operator,
    json_extract(value, '$.issuedSeq') AS issued_seq,
    json_extract(value, '$.revokedSeq') AS revoked_seq,
    json_extract(value, '$.usedBy') AS used_by
FROM live_record WHERE key GLOB 'apikey/*';

CREATE VIEW sessions AS
SELECT
    json_extract(value, '$.did') AS did,
    json_extract(value, '$.name') AS name,
    json_extract(value, '$.principal') AS principal,
    json_extract(value, '$.onBehalfOf') AS on_behalf_of,
    json_extract(value, '$.verbs') AS verbs,
    json_extract(value, '$.resources') AS resources,
    json_extract(value, '$.openedSeq') AS opened_seq,
    json_extract(value, '$.expiresAtMs') AS expires_at_ms,
    json_extract(value, '$.idleByMs') AS idle_by_ms,
    json_extract(value, '$.activity') AS activity,
    json_extract(value, '$.anchorSize') AS anchor_size,
    json_extract(value, '$.signedS') AS signed_s,
    json_extract(value, '$.sharedSeq') AS shared_seq,
    json_extract(value, '$.endedSeq') AS ended_seq
FROM live_record WHERE key GLOB 'session/*';

CREATE VIEW tickets AS
SELECT
    json_extract(value, '$.ticketId') AS ticket_id,
    json_extract(value, '$.actor') AS actor,
    json_extract(value, '$.principal') AS principal,
    json_extract(value, '$.onBehalfOf') AS on_behalf_of,
    json_extract(value, '$.resources') AS resources,
    json_extract(value, '$.mode') AS mode,
    json_extract(value, '$.ttlMs') AS ttl_ms,
    json_extract(value, '$.seq') AS seq,
    json_extract(value, '$.queuedAtMs') AS queued_at_ms,
    json_extract(value, '$.pollByMs') AS poll_by_ms,
    json_extract(value, '$.giveUpByMs') AS give_up_by_ms,
    json_extract(value, '$.claimByMs') AS claim_by_ms,
    json_extract(value, '$.passes') AS passes,
    json_extract(value, '$.reserveAtMs') AS reserve_at_ms,
    json_extract(value, '$.reserveUntilMs') AS reserve_until_ms,
    json_extract(value, '$.isPassed') AS is_passed
FROM live_record WHERE key GLOB 'ticket/*';

CREATE VIEW schemes AS
SELECT
    json_extract(value, '$.name') AS name,
    json_extract(value, '$.className') AS class_name,
    json_extract(value, '$.isFolding') AS is_folding,
    json_extract(value, '$.isUnicode') AS is_unicode,
    json_extract(value, '$.lockDelayMs') AS lock_delay_ms,
    json_extract(value, '$.maxHoldMs') AS max_hold_ms,
    json_extract(value, '$.seq') AS seq
FROM live_record WHERE key GLOB 'scheme/*';

CREATE VIEW trust AS
SELECT
    json_extract(value, '$.did') AS did,
    json_extract(value, '$.trust') AS trust,
    json_extract(value, '$.trustSeq') AS trust_seq,
    json_extract(value, '$.gainSinceMs') AS gain_since_ms,
    json_extract(value, '$.gained') AS gained,
    json_extract(value, '$.held') AS held
FROM live_record WHERE key GLOB 'principal/*';
