-- make_available
WITH k AS MATERIALIZED (
    SELECT id, available_at FROM "app".leasequeue_job
    WHERE id = %(id)s AND state IN ('r', 'g') AND available_at > now() FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job AS job SET available_at = clock_timestamp()
    FROM k WHERE job.id = k.id
    RETURNING job.id, extract(epoch FROM k.available_at)::float8 AS was_due, job.queue, job.limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT queue, limit_key FROM u WHERE limit_key IS NOT NULL
)
SELECT id, was_due, queue FROM u;

-- retry_finished
WITH old AS MATERIALIZED (
    SELECT id, queue, task, args, meta, options FROM "app".leasequeue_finished
    WHERE id = %(id)s AND outcome IN ('failed', 'cancelled', 'expired')
      AND (%(again)s OR meta -> 'retried_as' IS NULL) AND options -> 'workflow' IS NULL
    FOR UPDATE
), new AS (
    INSERT INTO "app".leasequeue_job (queue, task, args, meta, priority, max_attempts, state,
        limit_key, limit_max, rate_max, rate_seconds)
    SELECT queue, task, args, coalesce(meta, '{}') - ARRAY['put_back', 'returned', 'retried_as', 'skipped', 'progress', 'snoozed', 'cancel_requested_at',
            'cancel_requested_by', 'unique_key']
            || jsonb_build_object('retry_of', id),
        coalesce((options ->> 'priority')::smallint, 0), (options ->> 'max_attempts')::int,
        CASE WHEN options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END::"char", options ->> 'limit_key',
        (options ->> 'limit_max')::int, (options ->> 'rate_max')::int, (options ->> 'rate_seconds')::float8
    FROM old RETURNING id, queue, limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT queue, limit_key FROM new WHERE limit_key IS NOT NULL
)
UPDATE "app".leasequeue_finished AS job
SET meta = coalesce(job.meta, '{}') || jsonb_build_object('retried_as', new.id)
FROM old, new WHERE job.id = old.id RETURNING new.id, new.queue;

-- cancel_waiting
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = %(id)s AND children IS NULL AND (state <> 'l' OR expires_at < now())
    FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
    %(reason)s::text
FROM d RETURNING id, queue;

-- request_cancel
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = %(id)s AND state = 'l' AND cancel_requested_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job SET cancel_requested_at = clock_timestamp(),
        meta = coalesce(meta, '{}') || jsonb_build_object('cancel_requested_by', %(by)s::text)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue
)
SELECT id, queue, CASE WHEN %(notify)s THEN pg_notify('leasequeue:app', 'cancel:' || id)::text END FROM u;

-- cancel_state
SELECT state::text, cancel_requested_at IS NOT NULL, children IS NOT NULL
FROM "app".leasequeue_job WHERE id = %(id)s
UNION ALL
SELECT 'f', NULL, NULL FROM "app".leasequeue_finished WHERE id = %(id)s;

-- lock_joined
SELECT id FROM "app".leasequeue_job
WHERE id = %(id)s AND children IS NOT NULL AND (state <> 'l' OR expires_at < now()) FOR UPDATE SKIP LOCKED;

-- rest
SELECT pg_sleep(0.02);

-- create_schema
CREATE SCHEMA IF NOT EXISTS "app";
