-- create
INSERT INTO "app".leasequeue_workflow (name) VALUES (%(name)s::text)
RETURNING id, pg_current_xact_id()::text;

-- xact
SELECT name, pg_current_xact_id()::text FROM "app".leasequeue_workflow WHERE id = %(workflow)s::bigint;

-- add_edges
INSERT INTO "app".leasequeue_edge (parent_id, child_id, on_failure)
SELECT parent_id, child_id, on_failure::"char"
FROM unnest(%(parents)s::bigint[], %(children)s::bigint[], %(kinds)s::text[]) AS e (parent_id, child_id, on_failure);

-- add_steps
INSERT INTO "app".leasequeue_step (workflow, name, job_id)
SELECT %(workflow)s::bigint, name, id FROM unnest(%(names)s::text[], %(ids)s::bigint[]) AS e (name, id);

-- lock_parents
SELECT step.name, job.id
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND step.name = ANY(%(names)s::text[])
ORDER BY job.id FOR NO KEY UPDATE OF job;

-- look
SELECT step.name, step.job_id, CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END FROM "app".leasequeue_step AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
    LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND step.name = ANY(%(names)s::text[]);

-- conditional
WITH RECURSIVE up (id) AS (
    SELECT id FROM unnest(%(ids)s::bigint[]) AS given (id)
    UNION SELECT edge.parent_id FROM up JOIN "app".leasequeue_edge AS edge ON edge.child_id = up.id WHERE edge.on_failure = 'x'
)
SELECT 1 FROM up JOIN "app".leasequeue_edge AS edge ON edge.child_id = up.id WHERE edge.on_failure = 'f' LIMIT 1;

-- raise
UPDATE "app".leasequeue_job AS job SET children = coalesce(job.children, 0) + e.n
FROM unnest(%(ids)s::bigint[], %(counts)s::int[]) AS e (id, n) WHERE job.id = e.id;

-- never
WITH d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(),
    CASE WHEN skipped THEN meta || jsonb_build_object('skipped', true) ELSE meta END, options, error
FROM d JOIN unnest(%(ids)s::bigint[], %(skipped)s::boolean[], %(errors)s::text[]) AS e (id, skipped, error) USING (id);

-- parents
SELECT step.name, finished.task, finished.outcome, finished.result::text,
    finished.id IS NULL AND job.id IS NULL, edge.parent_id
FROM "app".leasequeue_edge AS edge
JOIN "app".leasequeue_step AS step ON step.job_id = edge.parent_id
LEFT JOIN "app".leasequeue_job AS job ON job.id = edge.parent_id
LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = edge.parent_id
WHERE edge.child_id = %(id)s::bigint ORDER BY edge.parent_id;

-- result
SELECT step.job_id, finished.task, CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END, finished.result::text, finished.error,
    finished.attempt FROM "app".leasequeue_step AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
    LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND step.name = %(name)s::text;

-- find
SELECT id, name, extract(epoch FROM created_at)::float8 FROM "app".leasequeue_workflow
WHERE id = %(workflow)s::bigint;

-- count
SELECT CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END AS state, count(*)::int FROM "app".leasequeue_step AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
    LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint GROUP BY 1;

-- list_steps
SELECT step.name, step.job_id, coalesce(job.task, finished.task), CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END,
    coalesce(job.attempt, finished.attempt), left(finished.error, 500), extract(epoch FROM finished.finished_at)::float8
FROM "app".leasequeue_step AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
    LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY step.job_id LIMIT %(limit)s::int;

-- list_edges
SELECT edge.parent_id, edge.child_id, edge.on_failure::text
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_edge AS edge ON edge.child_id = step.job_id
WHERE step.workflow = %(workflow)s::bigint ORDER BY edge.child_id, edge.parent_id LIMIT %(limit)s::int;

-- stop_steps
WITH k AS MATERIALIZED (
    SELECT job.id
    FROM "app".leasequeue_step AS step JOIN "app".leasequeue_job AS job ON job.id = step.job_id
    WHERE step.workflow = %(workflow)s::bigint AND job.state = 'l' AND job.cancel_requested_at IS NULL
    ORDER BY job.id FOR NO KEY UPDATE OF job SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job SET cancel_requested_at = clock_timestamp(),
        meta = coalesce(meta, jsonb_build_object()) || jsonb_build_object('cancel_requested_by', %(by)s::text)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) AND state = 'l' RETURNING id
)
SELECT id, pg_notify('leasequeue:app', 'cancel:' || id)::text FROM u;

-- not_stopped
SELECT count(*)::int
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_job AS job ON job.id = step.job_id
WHERE step.workflow = %(workflow)s::bigint AND job.cancel_requested_at IS NULL;

-- step_of_job
SELECT step.workflow, step.name, workflow.name
FROM "app".leasequeue_step AS step JOIN "app".leasequeue_workflow AS workflow ON workflow.id = step.workflow
WHERE step.job_id = %(id)s::bigint;

-- recent
SELECT workflow.id, workflow.name, extract(epoch FROM workflow.created_at)::float8, counts.states::text
FROM (
    SELECT id, name, created_at FROM "app".leasequeue_workflow ORDER BY created_at DESC LIMIT %(limit)s::int
) AS workflow
CROSS JOIN LATERAL (
    SELECT jsonb_object_agg(state, n) AS states FROM (
        SELECT CASE WHEN finished.meta ->> 'skipped' IS NOT NULL THEN 'skipped'
        WHEN finished.id IS NOT NULL THEN finished.outcome
        WHEN job.id IS NULL THEN 'gone' WHEN job.state = 'l' THEN 'running' WHEN job.state = 'q' THEN 'suspect'
        WHEN job.state IN ('g', 'b') THEN 'waiting' WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END AS state, count(*) AS n
        FROM (
            SELECT job_id FROM "app".leasequeue_step
            WHERE leasequeue_step.workflow = workflow.id LIMIT %(cap)s::int
        ) AS step LEFT JOIN "app".leasequeue_job AS job ON job.id = step.job_id
        LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = step.job_id
        GROUP BY 1
    ) AS counted
) AS counts
ORDER BY workflow.created_at DESC;
