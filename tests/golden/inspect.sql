-- now
SELECT extract(epoch FROM now())::float8;

-- workers
SELECT id::text, host, pid, version, release, queues::text, tasks::text, counters::text,
    extract(epoch FROM started_at)::float8, extract(epoch FROM renewed_at)::float8,
    extract(epoch FROM expires_at)::float8, expires_at > now(), extract(epoch FROM now())::float8
FROM "app".leasequeue_worker ORDER BY expires_at > now() DESC, host, pid LIMIT %(limit)s;

-- queues
WITH RECURSIVE found AS (
    (SELECT queue FROM "app".leasequeue_job WHERE state = 'r' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM "app".leasequeue_job WHERE state = 'r' AND queue > found.queue ORDER BY queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL LIMIT %(limit)s;

-- paused
SELECT name, extract(epoch FROM paused_at)::float8, extract(epoch FROM resume_at)::float8
FROM "app".leasequeue_queue
WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now()) ORDER BY name LIMIT %(limit)s;

-- queue_counts
SELECT q.name, counts.ready, extract(epoch FROM now() - counts.oldest)::float8, counts.scheduled
FROM unnest(%(queues)s::text[]) AS q (name)
CROSS JOIN LATERAL (
        WITH RECURSIVE lane AS (
            (SELECT priority FROM "app".leasequeue_job WHERE state = 'r' AND queue = q.name
             ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT priority FROM "app".leasequeue_job
                    WHERE state = 'r' AND queue = q.name AND priority < lane.priority
                    ORDER BY priority DESC LIMIT 1)
            FROM lane WHERE lane.priority IS NOT NULL
        )
    SELECT (
            SELECT count(*) FROM (
                SELECT FROM lane CROSS JOIN LATERAL (
                SELECT FROM "app".leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at <= now()
                ORDER BY available_at, id LIMIT %(cap)s + 1
                ) AS one WHERE lane.priority IS NOT NULL LIMIT %(cap)s + 1
            ) AS counted) AS ready, (
            SELECT count(*) FROM (
                SELECT FROM lane CROSS JOIN LATERAL (
                SELECT FROM "app".leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at > now()
                ORDER BY available_at, id LIMIT %(cap)s + 1
                ) AS one WHERE lane.priority IS NOT NULL LIMIT %(cap)s + 1
            ) AS counted) AS scheduled, (
            SELECT min(first.available_at) FROM lane CROSS JOIN LATERAL (
                SELECT available_at FROM "app".leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at <= now()
                ORDER BY available_at, id LIMIT 1
            ) AS first) AS oldest
) AS counts;

-- held
SELECT 'l', queue, count(*), count(*) FILTER (WHERE expires_at < now())
FROM (SELECT queue, expires_at FROM "app".leasequeue_job WHERE state = 'l' ORDER BY id LIMIT %(cap)s + 1) AS leased
GROUP BY queue
UNION ALL
SELECT 'q', queue, count(*), 0
FROM (SELECT queue FROM "app".leasequeue_job WHERE state = 'q' ORDER BY id LIMIT %(cap)s + 1) AS suspect
GROUP BY queue
UNION ALL
SELECT 'g', queue, count(*), 0
FROM (SELECT queue FROM "app".leasequeue_job WHERE state = 'g' ORDER BY limit_key, queue LIMIT %(cap)s + 1) AS waiting
GROUP BY queue;

-- blocked
WITH seen AS MATERIALIZED (
    (SELECT id, queue, task, state FROM "app".leasequeue_job ORDER BY id LIMIT %(window)s)
    UNION (SELECT id, queue, task, state FROM "app".leasequeue_job ORDER BY id DESC LIMIT %(window)s)
)
SELECT queue, count(*), (SELECT count(*) FROM seen) FROM seen WHERE state = 'b' GROUP BY queue;

-- orphans
WITH seen AS MATERIALIZED (
    (SELECT id, queue, task, state FROM "app".leasequeue_job ORDER BY id LIMIT %(window)s)
    UNION (SELECT id, queue, task, state FROM "app".leasequeue_job ORDER BY id DESC LIMIT %(window)s)
)
SELECT id, queue, task FROM (SELECT id, queue, task FROM seen WHERE state = 'b' ORDER BY id LIMIT 1000) AS blocked
WHERE (SELECT 1 FROM "app".leasequeue_edge AS edge JOIN "app".leasequeue_job AS parent ON parent.id = edge.parent_id
    WHERE edge.child_id = blocked.id LIMIT 1) IS NULL
ORDER BY id LIMIT %(limit)s;

-- held_by_zero
WITH zero AS MATERIALIZED (
    SELECT name FROM (
        SELECT DISTINCT ON (name) name, max_running FROM "app".leasequeue_limit
        WHERE max_running IS NOT NULL ORDER BY name, declared
    ) AS in_force WHERE max_running = 0 ORDER BY name LIMIT %(limit)s
), waiting AS MATERIALIZED (
    SELECT limit_key, queue, task FROM "app".leasequeue_job
    WHERE state = 'g' AND EXISTS (SELECT FROM zero) ORDER BY limit_key, queue LIMIT %(window)s
)
SELECT name, exact + beneath FROM (
    SELECT zero.name, (
            SELECT count(*) FROM (SELECT FROM "app".leasequeue_job WHERE state = 'g' AND limit_key = zero.name
                LIMIT %(window)s) AS one) AS exact, (
            SELECT count(*) FROM waiting WHERE limit_key <> zero.name AND ('task:' || task = zero.name
                OR 'queue:' || queue = zero.name OR (split_part(limit_key, ':', 1) = zero.name AND NOT EXISTS (
                    SELECT FROM "app".leasequeue_limit AS own WHERE own.name = waiting.limit_key
                    AND own.max_running IS NOT NULL)))) AS beneath
    FROM zero
) AS held WHERE exact + beneath > 0 ORDER BY 1;

-- overdue_wakes
SELECT q.name, first.key, extract(epoch FROM now() - first.due_at)::float8
FROM unnest(%(queues)s::text[]) AS q (name)
CROSS JOIN LATERAL (
    SELECT key, due_at FROM "app".leasequeue_wake
    WHERE queue = q.name AND due_at < now() - %(seconds)s::float8 * interval '1 second' ORDER BY due_at, id LIMIT 1
) AS first ORDER BY 1;

-- limits
SELECT l.name, l.declared, l.max_running, l.rate_max, l.rate_seconds, l.app,
    extract(epoch FROM l.deployed_at)::float8, extract(epoch FROM l.updated_at)::float8, l.updated_by,
    NOT l.declared OR o.name IS NULL OR (l.max_running IS NOT NULL AND o.max_running IS NULL)
        OR (l.rate_max IS NOT NULL AND o.rate_max IS NULL)
FROM "app".leasequeue_limit AS l LEFT JOIN "app".leasequeue_limit AS o ON o.name = l.name AND NOT o.declared
WHERE %(names)s::text[] IS NULL OR l.name = ANY(%(names)s::text[]) ORDER BY l.name, l.declared LIMIT %(limit)s;

-- limit_counts
SELECT state::text, count(*) FILTER (WHERE limit_key = %(name)s::text OR CASE %(about)s::text
        WHEN 'prefix' THEN starts_with(limit_key, %(name)s::text || ':')
        WHEN 'queue' THEN queue = %(word)s::text WHEN 'task' THEN task = %(word)s::text ELSE false END), count(*)
FROM (
    (SELECT state, limit_key, queue, task FROM "app".leasequeue_job
     WHERE state = 'l' AND limit_key IS NOT NULL AND (%(exact)s::text IS NULL OR limit_key = %(exact)s::text)
     LIMIT %(cap)s + 1)
    UNION ALL
    (SELECT state, limit_key, queue, task FROM "app".leasequeue_job
     WHERE state = 'g' AND (%(exact)s::text IS NULL OR limit_key = %(exact)s::text) LIMIT %(cap)s + 1)
) AS job GROUP BY state;

-- limit_own
(SELECT limit_max, rate_max, rate_seconds FROM "app".leasequeue_job
 WHERE state = 'g' AND limit_key = %(key)s ORDER BY limit_key, queue, priority DESC, available_at, id LIMIT 1)
UNION ALL
(SELECT limit_max, rate_max, rate_seconds FROM "app".leasequeue_job
 WHERE state = 'l' AND limit_key = %(key)s ORDER BY limit_key, term LIMIT 1)
LIMIT 1;

-- limit_spent
SELECT coalesce(sum(count), 0)::bigint FROM "app".leasequeue_admission
WHERE name = %(name)s AND at > clock_timestamp() - %(seconds)s::float8 * interval '1 second';

-- failures
SELECT task, error_type = 'LeaseLost', count(*), count(DISTINCT job_id),
    extract(epoch FROM max(failed_at))::float8,
    (array_agg(error_type ORDER BY failed_at DESC))[1], (array_agg(message ORDER BY failed_at DESC))[1]
FROM (SELECT task, job_id, failed_at, error_type, left(message, 200) AS message FROM "app".leasequeue_failure
    WHERE failed_at > now() - %(seconds)s::float8 * interval '1 second' ORDER BY failed_at DESC LIMIT %(cap)s + 1) AS recent GROUP BY 1, 2 ORDER BY 3 DESC, 1 LIMIT 200;

-- expired
SELECT task, count(*), extract(epoch FROM max(finished_at))::float8 FROM (
    SELECT task, finished_at FROM "app".leasequeue_finished
    WHERE outcome = 'expired' AND outcome <> 'succeeded'
      AND finished_at > now() - %(seconds)s::float8 * interval '1 second' ORDER BY finished_at DESC LIMIT %(cap)s
) AS recent GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20;

-- list_live
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, state FROM "app".leasequeue_job WHERE true ORDER BY id DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.id DESC;

-- list_ready
WITH seen AS MATERIALIZED (
    SELECT job.* FROM unnest(%(queues)s::text[]) AS q (name)
    CROSS JOIN LATERAL (
        WITH RECURSIVE lane AS (
            (SELECT priority FROM "app".leasequeue_job WHERE state = 'r' AND queue = q.name
             ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT priority FROM "app".leasequeue_job
                    WHERE state = 'r' AND queue = q.name AND priority < lane.priority
                    ORDER BY priority DESC LIMIT 1)
            FROM lane WHERE lane.priority IS NOT NULL
        )
        SELECT one.* FROM lane CROSS JOIN LATERAL (
                SELECT id, queue, task, priority, available_at FROM "app".leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at <= now()
                ORDER BY available_at, id LIMIT %(window)s
        ) AS one WHERE lane.priority IS NOT NULL
    ) AS job
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.priority DESC, job.available_at, job.id LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.priority DESC, job.available_at, job.id;

-- list_scheduled
WITH seen AS MATERIALIZED (
    SELECT job.* FROM unnest(%(queues)s::text[]) AS q (name)
    CROSS JOIN LATERAL (
        WITH RECURSIVE lane AS (
            (SELECT priority FROM "app".leasequeue_job WHERE state = 'r' AND queue = q.name
             ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT priority FROM "app".leasequeue_job
                    WHERE state = 'r' AND queue = q.name AND priority < lane.priority
                    ORDER BY priority DESC LIMIT 1)
            FROM lane WHERE lane.priority IS NOT NULL
        )
        SELECT one.* FROM lane CROSS JOIN LATERAL (
                SELECT id, queue, task, priority, available_at FROM "app".leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at > now()
                ORDER BY available_at, id LIMIT %(window)s
        ) AS one WHERE lane.priority IS NOT NULL
    ) AS job
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.available_at, job.id LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.available_at, job.id;

-- list_leased
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, state FROM "app".leasequeue_job WHERE state = 'l' ORDER BY id DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.id DESC;

-- list_suspect
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, state FROM "app".leasequeue_job WHERE state = 'q' ORDER BY id DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.id DESC;

-- list_waiting
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, state FROM "app".leasequeue_job WHERE true ORDER BY id DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE state IN ('g', 'b') AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_job AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid
ORDER BY job.id DESC;

-- list_succeeded
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, outcome, finished_at FROM "app".leasequeue_finished
    WHERE true ORDER BY finished_at DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE outcome = 'succeeded' AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.finished_at DESC, job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, job.outcome, job.queue, job.task, left(job.args::text, 201), NULL::smallint,
    job.attempt, NULL::int, job.abandoned, extract(epoch FROM job.enqueued_at)::float8, NULL::float8,
    extract(epoch FROM job.started_at)::float8, NULL::float8, extract(epoch FROM job.finished_at)::float8, NULL::text,
    left(job.error, 201), (job.meta -> 'progress')::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_finished AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))

ORDER BY job.finished_at DESC, job.id DESC;

-- list_unhappy
WITH seen AS MATERIALIZED (
    SELECT id, queue, task, outcome, finished_at FROM "app".leasequeue_finished
    WHERE outcome = %(outcome)s AND outcome <> 'succeeded' ORDER BY finished_at DESC LIMIT %(window)s
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE true AND (%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s) ORDER BY job.finished_at DESC, job.id DESC LIMIT %(limit)s
)
SELECT seen.count, job.id, job.outcome, job.queue, job.task, left(job.args::text, 201), NULL::smallint,
    job.attempt, NULL::int, job.abandoned, extract(epoch FROM job.enqueued_at)::float8, NULL::float8,
    extract(epoch FROM job.started_at)::float8, NULL::float8, extract(epoch FROM job.finished_at)::float8, NULL::text,
    left(job.error, 201), (job.meta -> 'progress')::text
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN "app".leasequeue_finished AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))

ORDER BY job.finished_at DESC, job.id DESC;

-- job
SELECT job.id, CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END, job.queue, job.task, left(job.args::text, 201), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text, job.args::text, job.meta::text, job.unique_key, job.limit_key, job.holder::text, job.term,
    extract(epoch FROM job.cancel_requested_at)::float8, NULL::text, extract(epoch FROM now())::float8, NULL::text,
    extract(epoch FROM job.start_by)::float8
FROM "app".leasequeue_job AS job LEFT JOIN "app".leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid WHERE job.id = %(id)s;

-- finished_job
SELECT job.id, job.outcome, job.queue, job.task, left(job.args::text, 201), NULL::smallint,
    job.attempt, NULL::int, job.abandoned, extract(epoch FROM job.enqueued_at)::float8, NULL::float8,
    extract(epoch FROM job.started_at)::float8, NULL::float8, extract(epoch FROM job.finished_at)::float8, NULL::text,
    left(job.error, 201), (job.meta -> 'progress')::text, job.args::text, job.meta::text, NULL::text, NULL::text, NULL::text, NULL::bigint,
    NULL::float8, job.result::text, extract(epoch FROM now())::float8, job.error
FROM "app".leasequeue_finished AS job WHERE job.id = %(id)s;

-- job_failures
WITH found AS MATERIALIZED (
    SELECT attempt, error_type, message, traceback, worker, started_at, failed_at, retry_at
    FROM "app".leasequeue_failure WHERE job_id = %(id)s LIMIT 1000
)
SELECT attempt, error_type, message, traceback, worker, extract(epoch FROM started_at)::float8,
    extract(epoch FROM failed_at)::float8, extract(epoch FROM retry_at)::float8
FROM found ORDER BY failed_at DESC, attempt DESC LIMIT %(limit)s;
