-- make_available
WITH k AS MATERIALIZED (
    SELECT id, available_at FROM "app".leasequeue_job
    WHERE id = %(id)s AND state = 'r' AND available_at > now() FOR UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_job AS job SET available_at = clock_timestamp()
FROM k WHERE job.id = k.id RETURNING job.id, extract(epoch FROM k.available_at)::float8, job.queue;

-- retry_finished
WITH old AS MATERIALIZED (
    SELECT id, queue, task, args, meta FROM "app".leasequeue_finished
    WHERE id = %(id)s AND outcome IN ('failed', 'cancelled', 'expired')
      AND (%(again)s OR meta -> 'retried_as' IS NULL)
    FOR UPDATE
), new AS (
    INSERT INTO "app".leasequeue_job (queue, task, args, meta)
    SELECT queue, task, args, coalesce(meta, '{}') - ARRAY['put_back', 'returned', 'retried_as']
        || jsonb_build_object('retry_of', id)
    FROM old RETURNING id, queue
)
UPDATE "app".leasequeue_finished AS job
SET meta = coalesce(job.meta, '{}') || jsonb_build_object('retried_as', new.id)
FROM old, new WHERE job.id = old.id RETURNING new.id, new.queue;

-- cancel_waiting
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = %(id)s AND (state <> 'l' OR expires_at < now())
    FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, meta
)
INSERT INTO "app".leasequeue_finished
    (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, %(reason)s
FROM d RETURNING id, queue;

-- request_cancel
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = %(id)s AND state = 'l' AND cancel_requested_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_job SET cancel_requested_at = clock_timestamp()
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue;

-- create_schema
CREATE SCHEMA IF NOT EXISTS "app";
