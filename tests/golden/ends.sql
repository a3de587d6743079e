-- succeed
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), fires AS MATERIALIZED (
    SELECT job.id, job.pending, e.ended
    FROM (
        SELECT edge.child_id, count(*) AS ended FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
        WHERE mine.children IS NOT NULL AND edge.on_failure = 'f' GROUP BY edge.child_id
    ) AS e
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = e.child_id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
    ORDER BY job.id FOR UPDATE OF job
), falling (id) AS (
    SELECT id FROM fires WHERE pending <= ended
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, NOT own AND on_failure = 'f', (own OR on_failure = 'c')::int FROM links WHERE own OR on_failure = 'c' OR NOT own AND on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'succeeded' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN coalesce(gone.meta, jsonb_build_object()) || jsonb_build_object('skipped', true) ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE given.result::jsonb END, CASE WHEN mine.id IS NULL THEN 'NotNeeded: none of the jobs whose failure it waited for has failed' ELSE NULL END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(results)s::text[], %(kept)s::boolean[])
        AS given (id, term, result, kept) ON given.id = gone.id AND given.term = gone.term
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR given.kept
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- succeed_plainly
WITH bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), links AS MATERIALIZED (
    SELECT parent_id, child_id, on_failure FROM "app".leasequeue_edge
    WHERE parent_id = ANY(ARRAY(SELECT id FROM mine WHERE children IS NOT NULL))
), others AS MATERIALIZED (
    SELECT parent_id AS id FROM links WHERE on_failure = 'f'
), locked AS MATERIALIZED (
    SELECT job.id, t.counted
    FROM bound
    CROSS JOIN (
        SELECT child_id, count(*)::int AS counted FROM links WHERE parent_id NOT IN (SELECT id FROM others) GROUP BY child_id
    ) AS t
    JOIN "app".leasequeue_job AS job ON job.id = t.child_id
    WHERE job.id = ANY(ARRAY(SELECT DISTINCT child_id FROM links)) AND job.state = 'b' AND bound.lock_timeout IS NOT NULL
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine WHERE id NOT IN (SELECT id FROM others))) RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, children
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = job.pending - locked.counted, available_at = greatest(job.available_at, now()),
        state = CASE WHEN job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r' ELSE 'g' END::"char"
    FROM locked WHERE job.id = locked.id
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result)
    SELECT gone.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
        options, given.result::jsonb
    FROM gone JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(results)s::text[], %(kept)s::boolean[])
        AS given (id, term, result, kept) ON given.id = gone.id AND given.term = gone.term
    WHERE gone.workflow IS NOT NULL OR given.kept
), checked AS (
    SELECT 1 / ((SELECT count(*) FROM links WHERE parent_id NOT IN (SELECT id FROM others))
        = (SELECT coalesce(sum(children), 0) FROM gone))::int AS ok, (SELECT count(*) FROM released WHERE state <> 'b') AS ready
)
SELECT gone.id, gone.task, gone.queue, true, checked.ok, checked.ready FROM gone CROSS JOIN checked
UNION ALL SELECT DISTINCT id, NULL, NULL, NULL::boolean, 1, 0 FROM others;

-- fail
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), failures AS (
    INSERT INTO "app".leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at)
    SELECT gone.id, attempt, queue, task, type, message, traceback, %(worker)s::text, gone.term, claimed_at,
        clock_timestamp()
    FROM gone JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[])
        AS given (id, term, type, message, traceback) ON given.id = gone.id AND given.term = gone.term
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE %(outcome)s::text END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || %(outcome)s::text END ELSE given.type || ': ' || given.message END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[])
        AS given (id, term, type, message, traceback) ON given.id = gone.id AND given.term = gone.term
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- cancel
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = %(id)s::bigint AND (state <> 'l' OR expires_at < now()) FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'cancelled' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'cancelled' END ELSE %(reason)s::text END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- cancel_steps
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT job_id FROM "app".leasequeue_step WHERE workflow = %(workflow)s::bigint)) AND workflow = %(workflow)s::bigint AND (state <> 'l' OR expires_at < now()) ORDER BY id FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'cancelled' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'cancelled' END ELSE %(reason)s::text END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- bury
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NOT NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'failed' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'failed' END ELSE 'Abandoned: the process that ran it died or was lost ' || gone.abandoned || ' times' END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- expire
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE start_by < now() AND state <> 'l' AND (state = 'b' OR children IS NOT NULL) ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'expired' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'expired' END ELSE 'Expired: it was to start by ' || to_char(gone.start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z' END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- cancel_asked
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NOT NULL ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'cancelled' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'cancelled' END ELSE 'Cancelled: on request, while it ran; that attempt has ended otherwise, and there is no other' END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- expire_held
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT set_config('lock_timeout', '150ms', true) AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'expired' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt - 1 END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE NULL END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'expired' END ELSE 'Expired: it was to start by ' || to_char(gone.start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z' END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- blocked
WITH RECURSIVE behind (root, id) AS (
    SELECT parent_id, child_id FROM "app".leasequeue_edge WHERE parent_id = ANY(%(ids)s::bigint[])
    UNION
    SELECT behind.root, edge.child_id
    FROM behind JOIN "app".leasequeue_edge AS edge ON edge.parent_id = behind.id
    WHERE edge.on_failure = 'x' AND %(deep)s
), waiting AS MATERIALIZED (
    SELECT behind.root, job.id FROM behind JOIN "app".leasequeue_job AS job ON job.id = behind.id WHERE job.state = 'b'
), free AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM waiting)) ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT root FROM waiting WHERE id NOT IN (SELECT id FROM free);

-- succeed_within
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT '' AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), fires AS MATERIALIZED (
    SELECT job.id, job.pending, e.ended
    FROM (
        SELECT edge.child_id, count(*) AS ended FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
        WHERE mine.children IS NOT NULL AND edge.on_failure = 'f' GROUP BY edge.child_id
    ) AS e
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = e.child_id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
    ORDER BY job.id FOR UPDATE OF job
), falling (id) AS (
    SELECT id FROM fires WHERE pending <= ended
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, NOT own AND on_failure = 'f', (own OR on_failure = 'c')::int FROM links WHERE own OR on_failure = 'c' OR NOT own AND on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'succeeded' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN coalesce(gone.meta, jsonb_build_object()) || jsonb_build_object('skipped', true) ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE given.result::jsonb END, CASE WHEN mine.id IS NULL THEN 'NotNeeded: none of the jobs whose failure it waited for has failed' ELSE NULL END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(results)s::text[], %(kept)s::boolean[])
        AS given (id, term, result, kept) ON given.id = gone.id AND given.term = gone.term
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR given.kept
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- fail_within
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT '' AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), failures AS (
    INSERT INTO "app".leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at)
    SELECT gone.id, attempt, queue, task, type, message, traceback, %(worker)s::text, gone.term, claimed_at,
        clock_timestamp()
    FROM gone JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[])
        AS given (id, term, type, message, traceback) ON given.id = gone.id AND given.term = gone.term
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE %(outcome)s::text END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || %(outcome)s::text END ELSE given.type || ': ' || given.message END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[])
        AS given (id, term, type, message, traceback) ON given.id = gone.id AND given.term = gone.term
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- expire_within
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT '' AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'expired' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt - 1 END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE NULL END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'expired' END ELSE 'Expired: it was to start by ' || to_char(gone.start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z' END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;

-- cancel_within
WITH RECURSIVE bound AS MATERIALIZED (
    SELECT '' AS lock_timeout
), mine AS MATERIALIZED (
    SELECT id, children FROM "app".leasequeue_job WHERE id = %(id)s::bigint AND (state <> 'l' OR expires_at < now()) FOR UPDATE SKIP LOCKED
), falling (id) AS (
    SELECT job.id
    FROM mine JOIN "app".leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'
    UNION
    SELECT job.id
    FROM falling JOIN "app".leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN "app".leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN "app".leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, on_failure = 'f', (on_failure = 'c')::int FROM links WHERE on_failure = 'c' OR on_failure = 'f'
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN "app".leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM "app".leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, workflow, start_by
), released AS (
    UPDATE "app".leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE 'cancelled' END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE gone.attempt END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE gone.claimed_at END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN gone.meta ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE NULL::jsonb END, CASE WHEN mine.id IS NULL THEN 'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || 'cancelled' END ELSE %(reason)s::text END
    FROM gone LEFT JOIN mine ON mine.id = gone.id
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR true
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT 1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int AS ok) AS checked;
