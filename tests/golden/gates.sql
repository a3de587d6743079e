-- peek_wakes
SELECT lane.queue
FROM unnest(%(queues)s::text[], %(floors)s::float8[], %(floor_ids)s::bigint[]) AS lane (queue, floor_at, floor_id)
WHERE (SELECT true FROM "app".leasequeue_wake AS wake
    WHERE wake.queue = lane.queue AND wake.due_at <= now()
      AND (wake.due_at, wake.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY wake.due_at, wake.id LIMIT 1);

-- take_wakes
WITH w AS MATERIALIZED (
    SELECT id, key, due_at, whole, given, hashtext(key) & 16383 AS bucket FROM "app".leasequeue_wake
    WHERE queue = %(queue)s AND due_at <= now() AND (due_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY due_at, id LIMIT %(scan)s FOR UPDATE SKIP LOCKED
), read AS MATERIALIZED (
    SELECT count(*)::int AS count, min(due_at) AS first_at, (array_agg(id))[1] AS first_id, max(due_at) AS last_at FROM w
), named AS MATERIALIZED (
    SELECT key, bool_or(whole) AS whole, bool_or(given) AS given, bucket FROM w GROUP BY key, bucket
    ORDER BY min(due_at), min(id) LIMIT %(most)s
), b AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_bucket WHERE id = ANY(ARRAY(SELECT bucket FROM named)) ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM "app".leasequeue_wake WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS TRUE))
), late AS (
    UPDATE "app".leasequeue_wake SET due_at = clock_timestamp() + interval '20 ms', parked = NULL WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS NOT TRUE))
), p AS MATERIALIZED (
    SELECT parked, count(DISTINCT queue)::int AS others FROM "app".leasequeue_wake
    WHERE parked = ANY(ARRAY(SELECT key FROM named)) AND queue <> %(queue)s GROUP BY parked
)
SELECT key, whole, CASE WHEN given THEN 0 ELSE
        coalesce((SELECT others FROM p WHERE p.parked = named.key), 0) END,
    read.count, extract(epoch FROM read.first_at)::float8, read.first_id, extract(epoch FROM read.last_at)::float8
FROM named CROSS JOIN read WHERE (bucket IN (SELECT id FROM b)) IS TRUE;

-- take_wakes_under
WITH w AS MATERIALIZED (
    SELECT id, key, due_at, whole, given, hashtext(key) & 16383 AS bucket FROM "app".leasequeue_wake
    WHERE queue = %(queue)s AND due_at <= now() AND (due_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY due_at, id LIMIT %(scan)s FOR UPDATE SKIP LOCKED
), read AS MATERIALIZED (
    SELECT count(*)::int AS count, min(due_at) AS first_at, (array_agg(id))[1] AS first_id, max(due_at) AS last_at FROM w
), named AS MATERIALIZED (
    SELECT key, bool_or(whole) AS whole, bool_or(given) AS given, bucket FROM w GROUP BY key, bucket
    ORDER BY min(due_at), min(id) LIMIT %(most)s
), b AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_bucket WHERE id = ANY(ARRAY(SELECT bucket FROM named UNION SELECT hashtext(name) & 16383 FROM unnest(%(above)s::text[]) AS above (name))) ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM "app".leasequeue_wake WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS TRUE))
), late AS (
    UPDATE "app".leasequeue_wake SET due_at = clock_timestamp() + interval '20 ms', parked = NULL WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS NOT TRUE))
), p AS MATERIALIZED (
    SELECT parked, count(DISTINCT queue)::int AS others FROM "app".leasequeue_wake
    WHERE parked = ANY(ARRAY(SELECT key FROM named)) AND queue <> %(queue)s GROUP BY parked
)
SELECT key, whole, CASE WHEN given THEN 0 ELSE
        coalesce((SELECT others FROM p WHERE p.parked = named.key), 0) END,
    read.count, extract(epoch FROM read.first_at)::float8, read.first_id, extract(epoch FROM read.last_at)::float8
FROM named CROSS JOIN read WHERE (bucket IN (SELECT id FROM b)) IS TRUE
UNION ALL
SELECT above.name, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest(%(above)s::text[]) AS above (name) JOIN b ON b.id = hashtext(above.name) & 16383;

-- take_suspect
WITH q AS MATERIALIZED (
    SELECT id, queue, task, limit_key, limit_max, rate_max, rate_seconds FROM "app".leasequeue_job
    WHERE state = 'q' AND limit_key IS NOT NULL AND NOT id = ANY(%(tried)s::bigint[]) AND queue = ANY(%(queues)s::text[])
      AND available_at <= now() AND queue <> ALL (ARRAY(
        SELECT name FROM "app".leasequeue_queue
        WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now())))
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
), names AS (
    SELECT limit_key AS name FROM q UNION SELECT 'task:' || task FROM q UNION SELECT 'queue:' || queue FROM q
), b AS (
    SELECT id FROM "app".leasequeue_bucket WHERE id = ANY(ARRAY(SELECT hashtext(name) & 16383 FROM names))
    ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT q.id, q.queue, q.task, q.limit_key, q.limit_max, q.rate_max, q.rate_seconds,
    (SELECT count(*) FROM b) = (SELECT count(DISTINCT hashtext(name) & 16383) FROM names)
FROM q;

-- admit_suspect
WITH under AS MATERIALIZED (
    SELECT n.name, n.rate, n.seconds,
        greatest(0, least(coalesce(n.running, 2147483647) - used.used, coalesce(n.rate - spent.spent, 2147483647))) AS free
    FROM unnest(%(names)s::text[], %(running)s::int[], %(rates)s::int[], %(seconds)s::float8[])
        AS n (name, running, rate, seconds)
    CROSS JOIN LATERAL (SELECT (CASE WHEN n.name = %(key)s THEN
            (SELECT count(*) FROM "app".leasequeue_job WHERE holder IS NOT NULL AND limit_key = n.name)
        ELSE (SELECT count(*)::int AS used FROM "app".leasequeue_job
        WHERE holder IS NOT NULL AND limit_key IS NOT NULL
            AND CASE WHEN n.name LIKE 'task:%%' THEN task = substr(n.name, 6) ELSE queue = substr(n.name, 7) END) END)::int AS used) AS used
    CROSS JOIN LATERAL (SELECT coalesce(sum(start.count), 0)::int AS spent, min(start.at) AS first_start
        FROM "app".leasequeue_admission AS start
        WHERE start.name = n.name AND start.at > clock_timestamp() - n.seconds * interval '1 second') AS spent
), admitted AS (
    INSERT INTO "app".leasequeue_admission (name, at, count, until)
    SELECT name, clock_timestamp(), 1, clock_timestamp() + 2 * seconds * interval '1 second' FROM under
    WHERE rate IS NOT NULL AND NOT EXISTS (SELECT FROM under WHERE free <= 0)
)
UPDATE "app".leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('"app".leasequeue_term')), expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{}') - 'unique_key' || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END, progress = NULL WHERE id = ANY(ARRAY(SELECT %(id)s::bigint WHERE NOT EXISTS (SELECT FROM under WHERE free <= 0))) AND state = 'q'
RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END;

-- wake_unwoken
WITH RECURSIVE walk AS (
    SELECT first.*, 1 AS n FROM (
        SELECT limit_key AS key, queue FROM "app".leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (%(key)s::text, %(queue)s::text) ORDER BY limit_key, queue LIMIT 1
    ) AS first
    UNION ALL
    SELECT next.*, walk.n + 1 FROM walk CROSS JOIN LATERAL (
        SELECT limit_key, queue FROM "app".leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (walk.key, walk.queue) ORDER BY limit_key, queue LIMIT 1
    ) AS next WHERE walk.n < %(look)s
), waiting AS MATERIALIZED (
    SELECT key, queue FROM walk
    WHERE EXISTS (SELECT FROM "app".leasequeue_job AS job WHERE job.limit_key = walk.key AND job.queue = walk.queue
            AND job.state = 'g' AND job.available_at < now() - %(seconds)s * interval '1 second')
), unwoken AS MATERIALIZED (
    SELECT key, queue FROM (
        SELECT key, queue, false AS wakes FROM waiting UNION ALL
        SELECT key, queue, true FROM "app".leasequeue_wake
        WHERE key BETWEEN (SELECT min(key) FROM waiting) AND (SELECT max(key) FROM waiting)
            AND due_at < now() + %(soon)s * interval '1 second'
    ) AS each GROUP BY key, queue HAVING NOT bool_or(wakes)
), judged AS MATERIALIZED (
    SELECT key, queue,
        EXISTS (SELECT FROM "app".leasequeue_job AS job WHERE job.limit_key = unwoken.key AND job.holder IS NOT NULL)
        OR EXISTS (SELECT FROM "app".leasequeue_job AS job WHERE job.state = 'q' AND job.limit_key = unwoken.key)
        OR EXISTS (SELECT FROM "app".leasequeue_admission AS one WHERE one.until > now()
            AND (one.name IN (unwoken.key, 'queue:' || unwoken.queue) OR one.name LIKE 'task:%%')) AS busy
    FROM unwoken
), woken AS MATERIALIZED (
    SELECT key, queue, busy FROM judged WHERE NOT busy OR random() < %(chance)s
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, whole) SELECT queue, key, true FROM woken
)
SELECT max(key) FILTER (WHERE n = %(look)s), max(queue) FILTER (WHERE n = %(look)s) FROM walk
UNION ALL
SELECT key, queue FROM woken WHERE NOT busy;

-- rules
SELECT name, declared, max_running, rate_max, rate_seconds FROM "app".leasequeue_limit;

-- fill_buckets
INSERT INTO "app".leasequeue_bucket (id) SELECT generate_series(0, 16383)
WHERE (SELECT count(*) FROM "app".leasequeue_bucket) < 16384 ON CONFLICT DO NOTHING;
