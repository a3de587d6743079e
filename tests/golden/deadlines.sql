-- expire_waiting
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job
    WHERE start_by < now() AND state <> 'l' AND state IN ('r', 'g', 'q') AND children IS NULL
    ORDER BY start_by LIMIT 500 FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, start_by
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
), f AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
    SELECT id, queue, task, args, 'expired', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        'Expired: it was to start by ' || to_char(start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z'
    FROM d RETURNING id, task, queue
)
SELECT id, task, queue FROM f
UNION ALL (SELECT NULL, NULL, NULL FROM "app".leasequeue_job
    WHERE start_by < now() AND state <> 'l' AND (state = 'b' OR children IS NOT NULL) ORDER BY start_by LIMIT 1);

-- cancel_asked
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job
    WHERE cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NULL
    ORDER BY cancel_requested_at LIMIT 500 FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
), f AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
    SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        'Cancelled: on request, while it ran; that attempt has ended otherwise, and there is no other'
    FROM d RETURNING id, task, queue
)
SELECT id, task, queue FROM f
UNION ALL (SELECT NULL, NULL, NULL FROM "app".leasequeue_job
    WHERE cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NOT NULL ORDER BY cancel_requested_at LIMIT 1);
