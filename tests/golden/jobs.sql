-- claim
UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END
WHERE id = ANY(ARRAY(
    SELECT ready.id
    FROM unnest(%(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
        AS lane (priority, floor_at, floor_id)
    CROSS JOIN LATERAL (
        SELECT id FROM "app".leasequeue_job
        WHERE queue = %(queue)s AND priority = lane.priority AND state = 'r' AND available_at <= now()
          AND (available_at, id) >= (to_timestamp(lane.floor_at), lane.floor_id)
        ORDER BY available_at, id LIMIT %(k)s FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT %(k)s))
RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END;

-- claim_suspect
UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END, progress = NULL
WHERE id = ANY(ARRAY(
    SELECT id FROM "app".leasequeue_job WHERE state = 'q' AND limit_key IS NULL AND queue = ANY(%(queues)s::text[])
      AND available_at <= now() AND queue <> ALL (ARRAY(
        SELECT name FROM "app".leasequeue_queue
        WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now())))
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED))
RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END;

-- peek
SELECT DISTINCT lane.queue
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
    AS lane (queue, priority, floor_at, floor_id)
WHERE (SELECT true FROM "app".leasequeue_job AS job
    WHERE job.queue = lane.queue AND job.priority = lane.priority AND job.state = 'r' AND job.available_at <= now()
      AND (job.available_at, job.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY job.available_at, job.id LIMIT 1);

-- lanes
SELECT extract(epoch FROM now())::float8, ARRAY(
    SELECT name FROM "app".leasequeue_queue
    WHERE name = ANY(%(queues)s::text[]) AND paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now())
), coalesce(array_agg(queue), '{}'), coalesce(array_agg(priority), '{}') FROM (
    SELECT queue, priority FROM "app".leasequeue_lane WHERE queue = ANY(%(queues)s::text[])
    UNION
    SELECT q.queue, p.priority::smallint
    FROM unnest(%(queues)s::text[]) AS q (queue)
    CROSS JOIN generate_series(-100, 100) AS p (priority)
    WHERE %(probes)s::boolean AND (
        SELECT true FROM "app".leasequeue_job AS job
        WHERE job.queue = q.queue AND job.priority = p.priority AND job.state = 'r' AND job.available_at <= now()
          AND job.available_at >= coalesce(now() - %(window)s::float8 * interval '1 second', '-infinity'::timestamptz)
        ORDER BY job.available_at, job.id LIMIT 1)
) AS lane;

-- complete
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END AS meta, term
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta)
SELECT id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta FROM d
RETURNING id;

-- complete_with_results
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END AS meta, term
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, result)
SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
    r.result::jsonb
FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[]) AS r (id, result) ON r.id = d.id
RETURNING id;

-- complete_unkept
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
)
DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id;

-- complete_linked
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END AS meta, term, limit_key,
        CASE WHEN workflow IS NOT NULL THEN nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') END AS options
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
), f AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, result)
    SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        r.result::jsonb
    FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[], %(kept)s::boolean[]) AS r (id, result, kept) ON r.id = d.id
    WHERE r.kept
)
SELECT id FROM d;

-- retry
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job AS job
    SET state = CASE WHEN limit_key IS NULL THEN 'r' ELSE 'g' END::"char", holder = NULL, expires_at = NULL, progress = NULL,
        available_at = clock_timestamp()
            + CASE WHEN job.cancel_requested_at IS NULL THEN e.delay ELSE 0 END * interval '1 second'
    FROM unnest(%(ids)s::bigint[], %(delays)s::float8[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[]) AS e (id, delay, type, message, traceback)
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND e.id = job.id
    RETURNING job.id, job.attempt, job.queue, job.task, job.term, job.claimed_at, job.available_at,
        e.type, e.message, e.traceback, job.limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
INSERT INTO "app".leasequeue_failure
    (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at, retry_at)
SELECT id, attempt, queue, task, type, message, traceback, %(worker)s, term, claimed_at, clock_timestamp(), available_at FROM u
RETURNING job_id;

-- fail
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
), e AS (
    SELECT * FROM unnest(%(ids)s::bigint[], %(delays)s::float8[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[]) AS e (id, delay, type, message, traceback)
), f AS (
    INSERT INTO "app".leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at)
    SELECT d.id, attempt, queue, task, type, message, traceback, %(worker)s, term, claimed_at, clock_timestamp()
    FROM d JOIN e ON e.id = d.id
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
SELECT d.id, queue, task, args, %(outcome)s, attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
    type || ': ' || message
FROM d JOIN e ON e.id = d.id
RETURNING id;

-- expire
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options, start_by
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
)
INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
SELECT id, queue, task, args, 'expired', attempt - 1, abandoned, created_at, NULL, clock_timestamp(), meta, options, 'Expired: it was to start by ' || to_char(start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z'
FROM d RETURNING id;

-- release
WITH k AS MATERIALIZED (
    SELECT id, CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL ORDER BY key, id), u AS (
    UPDATE "app".leasequeue_job AS job SET state = CASE WHEN limit_key IS NULL OR %(back)s <> 'r' THEN %(back)s ELSE 'g' END::"char", holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM "app".leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue, limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u;

-- put_back
WITH k AS MATERIALIZED (
    SELECT id, CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL ORDER BY key, id), u AS (
    UPDATE "app".leasequeue_job AS job SET state = CASE WHEN limit_key IS NULL OR %(back)s <> 'r' THEN %(back)s ELSE 'g' END::"char", holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM "app".leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END,
        available_at = clock_timestamp()
            + least(60, 0.5 * 2 ^ least(10, coalesce((meta ->> 'put_back')::int, 0))) * interval '1 second',
        meta = coalesce(meta, '{}') || jsonb_build_object('put_back', coalesce((meta ->> 'put_back')::int, 0) + 1)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue, limit_key, available_at
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u;

-- divert
WITH k AS MATERIALIZED (
    SELECT id, CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL ORDER BY key, id), u AS (
    UPDATE "app".leasequeue_job AS job SET state = 'g', holder = NULL, expires_at = NULL, attempt = attempt - 1,
        limit_key = d.key, limit_max = d.running, rate_max = d.rate, rate_seconds = d.seconds,
        unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM "app".leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END
    FROM unnest(%(ids)s::bigint[], %(keys_of)s::text[], %(running)s::int[], %(rates)s::int[], %(seconds)s::float8[])
        AS d (id, key, running, rate, seconds)
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND d.id = job.id
    RETURNING job.id, job.queue, job.limit_key, job.priority
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM u WHERE limit_key IS NOT NULL
), lane AS (
    INSERT INTO "app".leasequeue_lane (queue, priority) SELECT DISTINCT u.queue, u.priority FROM u
    WHERE u.priority <> 0 AND NOT EXISTS (
        SELECT FROM "app".leasequeue_lane AS l WHERE l.queue = u.queue AND l.priority = u.priority)
)
SELECT id FROM u;

-- snooze
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_job AS job
    SET state = CASE WHEN limit_key IS NULL THEN 'r' ELSE 'g' END::"char", holder = NULL, expires_at = NULL, progress = NULL, attempt = attempt - 1,
        available_at = CASE WHEN job.cancel_requested_at IS NULL THEN greatest(clock_timestamp(),
            coalesce(e.until, clock_timestamp() + e.delay * interval '1 second')) ELSE clock_timestamp() END,
        meta = coalesce(job.meta, '{}')
            || jsonb_build_object('snoozed', coalesce((job.meta ->> 'snoozed')::int, 0) + 1)
    FROM unnest(%(ids)s::bigint[], %(delays)s::float8[], %(untils)s::timestamptz[]) AS e (id, delay, until)
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND e.id = job.id
    RETURNING job.id, job.queue, job.limit_key, job.available_at
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u;

-- renew
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_job SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, cancel_requested_at IS NOT NULL;

-- read_held
SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE;

-- read_cancelled
SELECT id FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE AND cancel_requested_at IS NOT NULL;

-- read_finished
SELECT id FROM "app".leasequeue_finished
WHERE id = ANY(%(ids)s::bigint[])
  AND ((id, attempt) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::int[]))) IS TRUE;

-- read_now
SELECT id, state::text, holder::text, term, NULL::text FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[])
UNION ALL
SELECT id, 'f', NULL, NULL, outcome FROM "app".leasequeue_finished WHERE id = ANY(%(ids)s::bigint[]);

-- note_refusal
INSERT INTO "app".leasequeue_failure
    (job_id, attempt, queue, task, error_type, message, worker, term, failed_at)
SELECT *, clock_timestamp() FROM (SELECT %(id)s::bigint, %(attempt)s::int, %(queue)s, %(task)s, %(type)s, %(message)s,
    %(worker)s, %(term)s::bigint) AS refused RETURNING job_id;

-- release_strays
WITH k AS MATERIALIZED (
    SELECT id, CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key FROM "app".leasequeue_job
    WHERE state = 'l' AND holder = %(holder)s AND NOT id = ANY(%(known)s::bigint[])
    ORDER BY id FOR UPDATE SKIP LOCKED
), own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL ORDER BY key, id), u AS (
    UPDATE "app".leasequeue_job AS job SET state = CASE WHEN limit_key IS NULL THEN 'r' ELSE 'g' END::"char", holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM "app".leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END
    WHERE id = ANY(ARRAY(SELECT id FROM k)) AND state = 'l' AND holder = %(holder)s RETURNING id, queue, limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u;

-- sweep
WITH u AS (
    UPDATE "app".leasequeue_job SET state = CASE WHEN abandoned >= 1 THEN 'q' ELSE CASE WHEN limit_key IS NULL THEN 'r' ELSE 'g' END::"char" END,
        holder = NULL, expires_at = NULL, abandoned = abandoned + 1,
        progress = CASE WHEN abandoned >= 1 THEN progress END
    WHERE id = ANY(ARRAY(
        SELECT id FROM "app".leasequeue_job WHERE state = 'l' AND expires_at < now()
        ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED))
    RETURNING id, task, queue, abandoned, state, limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM u WHERE limit_key IS NOT NULL
)
SELECT id, task, queue, abandoned, state::text FROM u
UNION ALL (SELECT NULL, NULL, NULL, NULL, NULL FROM "app".leasequeue_job
    WHERE state = 'q' AND abandoned >= %(max_abandoned)s LIMIT 1);

-- release_dead
WITH k AS MATERIALIZED (
    SELECT id, (id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[])) AS started,
        coalesce((meta ->> 'returned')::int, 0) AS returned, CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key
    FROM "app".leasequeue_job WHERE state = 'l' AND holder BETWEEN %(first)s AND %(last)s
    ORDER BY id FOR UPDATE SKIP LOCKED
), own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL AND NOT started ORDER BY key, id), u AS (
    UPDATE "app".leasequeue_job AS job
    SET state = CASE WHEN (k.started AND %(suspect)s) OR k.returned >= 5 THEN 'q' ELSE CASE WHEN limit_key IS NULL OR %(back)s <> 'r' THEN %(back)s ELSE 'g' END::"char" END::"char",
        holder = NULL, expires_at = NULL,
        progress = CASE WHEN (k.started AND %(suspect)s) OR k.returned >= 5 THEN job.progress END,
        abandoned = abandoned + (k.started AND %(suspect)s)::int,
        attempt = attempt - (NOT k.started OR NOT %(suspect)s)::int,
        meta = CASE WHEN k.started THEN job.meta
            ELSE coalesce(job.meta, '{}') || jsonb_build_object('returned', k.returned + 1) END,
        unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM "app".leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END
    FROM k WHERE job.id = k.id AND job.state = 'l' AND job.holder BETWEEN %(first)s AND %(last)s
    RETURNING job.id, k.started, job.abandoned, job.task, job.queue, job.attempt, job.term, job.claimed_at,
        job.limit_key
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM u WHERE limit_key IS NOT NULL
), f AS (
    INSERT INTO "app".leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, worker, term, started_at, failed_at)
    SELECT id, attempt, queue, task, 'ProcessDied', %(reason)s, %(worker)s, term, claimed_at, clock_timestamp()
    FROM u WHERE started AND %(suspect)s
)
SELECT id, started, abandoned, task FROM u;

-- bury
WITH d AS (
    DELETE FROM "app".leasequeue_job WHERE id = ANY(ARRAY(
        SELECT id FROM "app".leasequeue_job WHERE state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NULL
        ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED)) AND children IS NULL
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, CASE WHEN progress IS NULL THEN CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END
        ELSE coalesce(CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END, '{}') || jsonb_build_object('progress', progress) END AS meta, term, limit_key, nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{}') AS options
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM d WHERE limit_key IS NOT NULL
), f AS (
    INSERT INTO "app".leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, options, error)
    SELECT id, queue, task, args, 'failed', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        'Abandoned: the process that ran it died or was lost ' || abandoned || ' times'
    FROM d RETURNING id, task
)
SELECT id, task FROM f
UNION ALL (SELECT NULL, NULL FROM "app".leasequeue_job
    WHERE state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NOT NULL LIMIT 1);

-- count_suspects
SELECT count(*) FROM (
    SELECT FROM "app".leasequeue_job WHERE state = 'q' AND queue = ANY(%(queues)s::text[])
      AND available_at <= now() AND queue <> ALL (ARRAY(
        SELECT name FROM "app".leasequeue_queue
        WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now()))) LIMIT 100) AS counted;

-- renew_for
WITH k AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_job
    WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder BETWEEN %(first)s AND %(last)s
      AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE "app".leasequeue_job SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, task;
