-- enqueue_one
INSERT INTO "app".leasequeue_job (queue, task, args) VALUES (%(p_queue)s, %(p_task)s, CAST(%(p_args)s AS JSONB)) RETURNING "app".leasequeue_job.id, pg_notify(%(p_channel)s, "app".leasequeue_job.queue) AS notified;

-- enqueue_one_full
WITH lane AS 
(INSERT INTO "app".leasequeue_lane (queue, priority) SELECT %(p_queue)s AS anon_1, CAST(%(p_priority)s AS SMALLINT) AS anon_2 
WHERE NOT (EXISTS (SELECT * 
FROM "app".leasequeue_lane 
WHERE "app".leasequeue_lane.queue = %(p_queue)s AND "app".leasequeue_lane.priority = CAST(%(p_priority)s AS SMALLINT)))), 
wake AS 
(INSERT INTO "app".leasequeue_wake (queue, key, due_at) SELECT %(p_queue)s AS anon_1, CAST(%(p_limit_key)s AS TEXT) AS anon_3, greatest(now(), coalesce(CAST(%(p_run_at)s AS TIMESTAMP WITH TIME ZONE), now() + (CAST(%(p_delay)s AS DOUBLE PRECISION) * interval '1 second'))) AS greatest_1)
 INSERT INTO "app".leasequeue_job (queue, task, args, priority, available_at, state, max_attempts, unique_key, limit_key, meta, start_by, unique_until, limit_max, rate_max, rate_seconds) VALUES (%(p_queue)s, %(p_task)s, CAST(%(p_args)s AS JSONB), CAST(%(p_priority)s AS SMALLINT), greatest(now(), coalesce(CAST(%(p_run_at)s AS TIMESTAMP WITH TIME ZONE), now() + (CAST(%(p_delay)s AS DOUBLE PRECISION) * interval '1 second'))), 'g', CAST(%(p_max_attempts)s AS INTEGER), %(p_unique_key)s, CAST(%(p_limit_key)s AS TEXT), CAST(%(p_meta)s AS JSONB), coalesce(CAST(%(p_start_by)s AS TIMESTAMP WITH TIME ZONE), greatest(now(), coalesce(CAST(%(p_run_at)s AS TIMESTAMP WITH TIME ZONE), now() + (CAST(%(p_delay)s AS DOUBLE PRECISION) * interval '1 second'))) + (CAST(%(p_expires)s AS DOUBLE PRECISION) * interval '1 second')), CAST(%(p_unique_until)s AS "char"), CAST(%(p_limit_max)s AS INTEGER), CAST(%(p_rate_max)s AS INTEGER), CAST(%(p_rate_seconds)s AS DOUBLE PRECISION)) ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING "app".leasequeue_job.id;

-- find_keys
SELECT "app".leasequeue_job.id, "app".leasequeue_job.unique_key 
FROM "app".leasequeue_job 
WHERE "app".leasequeue_job.unique_key = any(CAST(%(p_keys)s::TEXT[] AS TEXT[]));

-- enqueue_many
INSERT INTO "app".leasequeue_job (queue, task, args, priority, available_at, max_attempts, meta, start_by, unique_until) SELECT kind.queue, kind.task, CAST(each.args AS JSONB) AS args, CAST(kind.priority AS SMALLINT) AS priority, greatest(now(), coalesce(kind.run_at, now() + (kind.delay * interval '1 second'))) AS greatest_1, kind.max_attempts, CAST(kind.meta AS JSONB) AS meta, coalesce(kind.start_by, greatest(now(), coalesce(kind.run_at, now() + (kind.delay * interval '1 second'))) + (kind.expires * interval '1 second')) AS coalesce_1, CAST(kind.unique_until AS "char") AS unique_until 
FROM unnest(CAST(%(p_args)s::TEXT[] AS TEXT[]), CAST(%(p_kind)s::INTEGER[] AS INTEGER[])) WITH ORDINALITY AS each(args, kind, place) JOIN unnest(CAST(%(p_queue)s::TEXT[] AS TEXT[]), CAST(%(p_task)s::TEXT[] AS TEXT[]), CAST(%(p_priority)s::INTEGER[] AS INTEGER[]), CAST(%(p_run_at)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_delay)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_max_attempts)s::INTEGER[] AS INTEGER[]), CAST(%(p_meta)s::TEXT[] AS TEXT[]), CAST(%(p_start_by)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_expires)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_unique_until)s::TEXT[] AS TEXT[]), CAST(%(p_limit_key)s::TEXT[] AS TEXT[]), CAST(%(p_limit_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_seconds)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[])) WITH ORDINALITY AS kind(queue, task, priority, run_at, delay, max_attempts, meta, start_by, expires, unique_until, limit_key, limit_max, rate_max, rate_seconds, place) ON kind.place = each.kind ORDER BY each.place RETURNING "app".leasequeue_job.id;

-- enqueue_many_keyed
WITH wake AS 
(INSERT INTO "app".leasequeue_wake (queue, key, due_at) SELECT DISTINCT kind.queue AS queue, kind.limit_key AS limit_key, greatest(now(), coalesce(kind.run_at, now() + (kind.delay * interval '1 second'))) AS greatest_1 
FROM unnest(CAST(%(p_queue)s::TEXT[] AS TEXT[]), CAST(%(p_task)s::TEXT[] AS TEXT[]), CAST(%(p_priority)s::INTEGER[] AS INTEGER[]), CAST(%(p_run_at)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_delay)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_max_attempts)s::INTEGER[] AS INTEGER[]), CAST(%(p_meta)s::TEXT[] AS TEXT[]), CAST(%(p_start_by)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_expires)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_unique_until)s::TEXT[] AS TEXT[]), CAST(%(p_limit_key)s::TEXT[] AS TEXT[]), CAST(%(p_limit_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_seconds)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[])) WITH ORDINALITY AS kind(queue, task, priority, run_at, delay, max_attempts, meta, start_by, expires, unique_until, limit_key, limit_max, rate_max, rate_seconds, place) 
WHERE kind.limit_key IS NOT NULL)
 INSERT INTO "app".leasequeue_job (queue, task, args, priority, available_at, max_attempts, meta, start_by, unique_until, unique_key, limit_key, limit_max, rate_max, rate_seconds, state) SELECT kind.queue, kind.task, CAST(each.args AS JSONB) AS args, CAST(kind.priority AS SMALLINT) AS priority, greatest(now(), coalesce(kind.run_at, now() + (kind.delay * interval '1 second'))) AS greatest_1, kind.max_attempts, CAST(kind.meta AS JSONB) AS meta, coalesce(kind.start_by, greatest(now(), coalesce(kind.run_at, now() + (kind.delay * interval '1 second'))) + (kind.expires * interval '1 second')) AS coalesce_1, CAST(kind.unique_until AS "char") AS unique_until, each.unique_key, kind.limit_key, kind.limit_max, kind.rate_max, kind.rate_seconds, CAST(CASE WHEN (kind.limit_key IS NULL) THEN 'r' ELSE 'g' END AS "char") AS anon_1 
FROM unnest(CAST(%(p_args)s::TEXT[] AS TEXT[]), CAST(%(p_kind)s::INTEGER[] AS INTEGER[]), CAST(%(p_unique_key)s::TEXT[] AS TEXT[])) WITH ORDINALITY AS each(args, kind, unique_key, place) JOIN unnest(CAST(%(p_queue)s::TEXT[] AS TEXT[]), CAST(%(p_task)s::TEXT[] AS TEXT[]), CAST(%(p_priority)s::INTEGER[] AS INTEGER[]), CAST(%(p_run_at)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_delay)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_max_attempts)s::INTEGER[] AS INTEGER[]), CAST(%(p_meta)s::TEXT[] AS TEXT[]), CAST(%(p_start_by)s::TIMESTAMP WITH TIME ZONE[] AS TIMESTAMP WITH TIME ZONE[]), CAST(%(p_expires)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[]), CAST(%(p_unique_until)s::TEXT[] AS TEXT[]), CAST(%(p_limit_key)s::TEXT[] AS TEXT[]), CAST(%(p_limit_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_max)s::INTEGER[] AS INTEGER[]), CAST(%(p_rate_seconds)s::DOUBLE PRECISION[] AS DOUBLE PRECISION[])) WITH ORDINALITY AS kind(queue, task, priority, run_at, delay, max_attempts, meta, start_by, expires, unique_until, limit_key, limit_max, rate_max, rate_seconds, place) ON kind.place = each.kind ORDER BY each.place ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING RETURNING "app".leasequeue_job.id, "app".leasequeue_job.unique_key;

-- lanes
INSERT INTO "app".leasequeue_lane (queue, priority) SELECT given.queue, CAST(given.priority AS SMALLINT) AS priority 
FROM unnest(CAST(%(p_queue)s::TEXT[] AS TEXT[]), CAST(%(p_priority)s::INTEGER[] AS INTEGER[])) AS given(queue, priority) 
WHERE NOT (EXISTS (SELECT * 
FROM "app".leasequeue_lane 
WHERE "app".leasequeue_lane.queue = given.queue AND "app".leasequeue_lane.priority = CAST(given.priority AS SMALLINT)));

-- wake
SELECT pg_notify(%(p_channel)s, queue) AS pg_notify_1 
FROM unnest(CAST(%(p_queue)s::TEXT[] AS TEXT[])) AS queue;
