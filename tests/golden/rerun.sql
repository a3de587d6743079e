-- bound
SELECT set_config('lock_timeout', '2s', true);

-- lock
SELECT id FROM "app".leasequeue_workflow WHERE id = %(workflow)s::bigint FOR UPDATE;

-- lock_live
SELECT job.id
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY job.id FOR NO KEY UPDATE OF job;

-- read_steps
SELECT step.name, step.job_id, job.state::text,
    CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped' ELSE finished.outcome END,
    job.cancel_requested_at IS NOT NULL
FROM "app".leasequeue_step AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY step.job_id;

-- read_edges
SELECT edge.parent_id, edge.child_id, edge.on_failure::text
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_edge AS edge ON edge.child_id = step.job_id
WHERE step.workflow = %(workflow)s::bigint;

-- insert
WITH new AS (
    INSERT INTO "app".leasequeue_job (queue, task, args, meta, priority, max_attempts, limit_key, limit_max, rate_max,
        rate_seconds, workflow, pending, children, state)
    SELECT old.queue, old.task, old.args,
        coalesce(old.meta, jsonb_build_object()) - ARRAY['put_back', 'returned', 'retried_as', 'skipped', 'progress', 'snoozed', 'cancel_requested_at',
            'cancel_requested_by', 'unique_key']
            || jsonb_build_object('retry_of', old.id),
        coalesce((old.options ->> 'priority')::smallint, 0), (old.options ->> 'max_attempts')::int,
        old.options ->> 'limit_key', (old.options ->> 'limit_max')::int, (old.options ->> 'rate_max')::int,
        (old.options ->> 'rate_seconds')::float8, %(workflow)s::bigint, nullif(e.pending, 0), nullif(e.children, 0),
        CASE WHEN e.pending > 0 THEN 'b' WHEN old.options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END::"char"
    FROM unnest(%(ids)s::bigint[], %(pending)s::int[], %(children)s::int[]) WITH ORDINALITY
        AS e (id, pending, children, place)
    JOIN "app".leasequeue_finished AS old ON old.id = e.id ORDER BY e.place
    RETURNING id, queue, limit_key, state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM new WHERE state = 'g'
)
SELECT id FROM new;

-- forget_edges
DELETE FROM "app".leasequeue_edge
WHERE parent_id = ANY(%(ids)s::bigint[]) OR (child_id = ANY(%(ids)s::bigint[]) AND NOT parent_id = ANY(%(live)s::bigint[]));

-- add_edges
INSERT INTO "app".leasequeue_edge (parent_id, child_id, on_failure)
SELECT parent_id, child_id, on_failure::"char"
FROM unnest(%(parents)s::bigint[], %(children)s::bigint[], %(kinds)s::text[]) AS e (parent_id, child_id, on_failure);

-- count_edges
UPDATE "app".leasequeue_job AS job
SET children = nullif(coalesce(job.children, 0) + e.children, 0), pending = nullif(coalesce(job.pending, 0) + e.pending, 0)
FROM unnest(%(ids)s::bigint[], %(children)s::int[], %(pending)s::int[]) AS e (id, children, pending) WHERE job.id = e.id;

-- replace
WITH e AS (
    SELECT * FROM unnest(%(names)s::text[], %(old)s::bigint[], %(new)s::bigint[]) AS e (name, old, new)
), step AS (
    UPDATE "app".leasequeue_step AS step SET job_id = e.new FROM e
    WHERE step.workflow = %(workflow)s::bigint AND step.name = e.name
)
UPDATE "app".leasequeue_finished AS job
SET meta = coalesce(job.meta, jsonb_build_object()) || jsonb_build_object('retried_as', e.new)
FROM e WHERE job.id = e.old;
