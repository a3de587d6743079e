-- upcoming
SELECT name, CAST(spec AS text), version, next_at, paused_at IS NOT NULL, task, catch_up, catch_up_seconds,
    jitter_seconds, decorated, EXISTS (
    SELECT FROM "app".leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
    AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
        ELSE jsonb_exists(worker.tasks, schedule.task) END), clock_timestamp()
FROM "app".leasequeue_schedule AS schedule
WHERE (next_at IS NULL AND meta ->> 'ended' IS DISTINCT FROM CAST(version AS text))
    OR next_at <= clock_timestamp() + CAST(%(within)s AS float8) * interval '1 s'
ORDER BY CASE WHEN next_at IS NULL THEN 1 WHEN paused_at IS NOT NULL OR EXISTS (
    SELECT FROM "app".leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
    AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
        ELSE jsonb_exists(worker.tasks, schedule.task) END) THEN 0 ELSE 2 END, next_at LIMIT 2000;

-- fire
WITH s AS MATERIALIZED (
    SELECT name, task, args, queue, priority, overlap, job_id, meta -> 'options' AS options
    FROM "app".leasequeue_schedule AS schedule
    WHERE name = CAST(%(name)s AS text) AND next_at = CAST(%(seen)s AS timestamptz) AND version = CAST(%(version)s AS bigint)
      AND (paused_at IS NOT NULL) = CAST(%(paused)s AS boolean) AND CAST(%(newest)s AS timestamptz) <= clock_timestamp()
      AND (CAST(%(paused)s AS boolean) OR EXISTS (
    SELECT FROM "app".leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
    AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
        ELSE jsonb_exists(worker.tasks, schedule.task) END))
    FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT s.*, due.due_at, due.outcome, due.reason, due.tick, due.delay,
        due.runs AND NOT (s.overlap = 'skip' AND live.id IS NOT NULL) AS runs,
        due.runs AND s.overlap = 'skip' AND live.id IS NOT NULL AS overlaps
    FROM s CROSS JOIN unnest(CAST(%(due_at)s AS timestamptz[]), CAST(%(outcome)s AS text[]), CAST(%(reason)s AS text[]),
        CAST(%(tick)s AS text[]), CAST(%(runs)s AS boolean[]), CAST(%(delay)s AS float8[]))
        AS due (due_at, outcome, reason, tick, runs, delay)
    LEFT JOIN "app".leasequeue_job AS live ON live.id = s.job_id
    WHERE NOT EXISTS (
        SELECT FROM "app".leasequeue_tick AS settled WHERE settled.schedule = s.name AND settled.due_at = due.due_at)
), j AS (
    INSERT INTO "app".leasequeue_job (queue, task, args, priority, available_at, meta, max_attempts, start_by, state, limit_key, limit_max, rate_max, rate_seconds)
    SELECT queue, task, args, priority, greatest(clock_timestamp(), due_at + delay * interval '1 second'),
        jsonb_build_object('schedule', name, 'tick', tick),
        CAST(options ->> 'max_attempts' AS integer),
        coalesce(CAST(options ->> 'start_by' AS timestamptz),
            due_at + delay * interval '1 second' + CAST(options ->> 'expires_seconds' AS float8) * interval '1 second'),
        CAST(CASE WHEN options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END AS "char"), options ->> 'limit_key',
        CAST(options ->> 'limit_max' AS integer), CAST(options ->> 'rate_max' AS integer),
        CAST(options ->> 'rate_seconds' AS float8)
    FROM due WHERE runs ORDER BY due_at
    RETURNING id, meta ->> 'tick' AS tick, pg_notify(CAST(%(channel)s AS text), queue) AS notified,
        queue, limit_key, available_at
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, available_at FROM j WHERE limit_key IS NOT NULL
), lane AS (
    INSERT INTO "app".leasequeue_lane (queue, priority)
    SELECT queue, priority FROM s WHERE priority <> 0 AND NOT EXISTS (
        SELECT FROM "app".leasequeue_lane AS known WHERE known.queue = s.queue AND known.priority = s.priority)
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, job_id, reason, decided_at, decided_by)
    SELECT due.name, due.due_at, CASE WHEN due.overlaps THEN 'overlapped' ELSE due.outcome END, j.id,
        CASE WHEN due.overlaps THEN 'job ' || due.job_id || ' of an earlier due time still lives' ELSE due.reason END,
        clock_timestamp(), CAST(%(by)s AS text)
    FROM due LEFT JOIN j ON j.tick = due.tick
    RETURNING due_at, outcome, job_id
), u AS (
    UPDATE "app".leasequeue_schedule AS schedule
    SET next_at = CAST(%(next_at)s AS timestamptz), meta = CASE WHEN CAST(%(next_at)s AS timestamptz) IS NULL
        THEN coalesce(meta, '{}') || jsonb_build_object('ended', version) ELSE meta END,
        fired_at = coalesce((SELECT max(due_at) FROM due WHERE runs), fired_at),
        job_id = coalesce((SELECT max(id) FROM j), schedule.job_id)
    FROM s WHERE schedule.name = s.name
    RETURNING schedule.name
)
SELECT t.due_at, t.outcome, t.job_id FROM u LEFT JOIN t ON true;

-- begin
UPDATE "app".leasequeue_schedule SET next_at = CAST(%(next_at)s AS timestamptz), meta = CASE WHEN CAST(%(next_at)s AS timestamptz) IS NULL
        THEN coalesce(meta, '{}') || jsonb_build_object('ended', version) ELSE meta END
WHERE name = ANY(ARRAY(SELECT name FROM "app".leasequeue_schedule
    WHERE name = CAST(%(name)s AS text) AND next_at IS NULL AND version = CAST(%(version)s AS bigint) FOR UPDATE SKIP LOCKED)) RETURNING name;

-- read
SELECT name, task, CAST(args AS text), queue, priority, CAST(spec AS text), catch_up, catch_up_seconds, overlap, jitter_seconds, version, decorated, release, CAST(extract(epoch FROM deployed_at) AS float8), CAST(extract(epoch FROM next_at) AS float8), CAST(extract(epoch FROM paused_at) AS float8), CAST(meta AS text), clock_timestamp() FROM "app".leasequeue_schedule WHERE name = CAST(%(name)s AS text);

-- now
SELECT clock_timestamp();

-- insert
WITH i AS (
    INSERT INTO "app".leasequeue_schedule (name, task, args, queue, priority, spec, catch_up, catch_up_seconds, overlap, jitter_seconds, decorated, release, deployed_at, next_at, meta)
    VALUES (CAST(%(name)s AS text), CAST(%(task)s AS text), CAST(CAST(%(args)s AS text) AS jsonb), CAST(%(queue)s AS text), CAST(%(priority)s AS integer),
    CAST(CAST(%(spec)s AS text) AS jsonb), CAST(%(catch_up)s AS text), CAST(%(catch_up_seconds)s AS float8),
    CAST(%(overlap)s AS text), CAST(%(jitter_seconds)s AS float8), CAST(%(decorated)s AS boolean), CAST(%(release)s AS text),
    CAST(%(deployed_at)s AS timestamptz), CAST(%(next_at)s AS timestamptz), CAST(CAST(%(meta)s AS text) AS jsonb)) ON CONFLICT DO NOTHING RETURNING name, version
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
    SELECT name, clock_timestamp(), 'redefined', 'added', clock_timestamp(), CAST(%(by)s AS text)
    FROM i WHERE 'added' IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT version FROM i;

-- update
WITH u AS (
    UPDATE "app".leasequeue_schedule SET (task, args, queue, priority, spec, catch_up, catch_up_seconds, overlap, jitter_seconds, decorated, release, deployed_at, next_at, meta) = ROW (CAST(%(task)s AS text), CAST(CAST(%(args)s AS text) AS jsonb), CAST(%(queue)s AS text), CAST(%(priority)s AS integer),
    CAST(CAST(%(spec)s AS text) AS jsonb), CAST(%(catch_up)s AS text), CAST(%(catch_up_seconds)s AS float8),
    CAST(%(overlap)s AS text), CAST(%(jitter_seconds)s AS float8), CAST(%(decorated)s AS boolean), CAST(%(release)s AS text),
    CAST(%(deployed_at)s AS timestamptz), CAST(%(next_at)s AS timestamptz), CAST(CAST(%(meta)s AS text) AS jsonb)),
        version = version + 1, updated_at = clock_timestamp()
    WHERE name = ANY(ARRAY(SELECT name FROM "app".leasequeue_schedule
        WHERE name = CAST(%(name)s AS text) AND version = CAST(%(version)s AS bigint) FOR UPDATE SKIP LOCKED))
    RETURNING name, version
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
    SELECT name, clock_timestamp(), 'redefined', CAST(%(changed)s AS text), clock_timestamp(), CAST(%(by)s AS text)
    FROM u WHERE CAST(%(changed)s AS text) IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT version FROM u;

-- pause
WITH u AS (
    UPDATE "app".leasequeue_schedule
    SET paused_at = CASE WHEN CAST(%(paused)s AS boolean) THEN coalesce(paused_at, clock_timestamp()) END, version = version + 1,
        updated_at = clock_timestamp()
    WHERE name = CAST(%(name)s AS text) AND (paused_at IS NOT NULL) <> CAST(%(paused)s AS boolean) RETURNING name, version
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
    SELECT name, clock_timestamp(), 'redefined', CASE WHEN CAST(%(paused)s AS boolean) THEN 'paused' ELSE 'resumed' END, clock_timestamp(), CAST(%(by)s AS text)
    FROM u WHERE CASE WHEN CAST(%(paused)s AS boolean) THEN 'paused' ELSE 'resumed' END IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT version FROM u;

-- remove
WITH d AS (
    DELETE FROM "app".leasequeue_schedule WHERE name = CAST(%(name)s AS text) RETURNING name, version
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, reason, decided_at, decided_by)
    SELECT name, clock_timestamp(), 'redefined', 'removed', clock_timestamp(), CAST(%(by)s AS text)
    FROM d WHERE 'removed' IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT version FROM d;

-- run_now
WITH s AS MATERIALIZED (
    SELECT name, task, args, queue, priority, clock_timestamp() AS due_at, meta -> 'options' AS options
    FROM "app".leasequeue_schedule
    WHERE name = CAST(%(name)s AS text) FOR UPDATE
), j AS (
    INSERT INTO "app".leasequeue_job (queue, task, args, priority, available_at, meta, max_attempts, start_by, state, limit_key, limit_max, rate_max, rate_seconds)
    SELECT queue, task, args, priority, due_at, jsonb_build_object('schedule', name, 'tick',
        to_char(due_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"')),
        CAST(options ->> 'max_attempts' AS integer),
        coalesce(CAST(options ->> 'start_by' AS timestamptz),
            due_at + CAST(options ->> 'expires_seconds' AS float8) * interval '1 second'),
        CAST(CASE WHEN options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END AS "char"), options ->> 'limit_key',
        CAST(options ->> 'limit_max' AS integer), CAST(options ->> 'rate_max' AS integer),
        CAST(options ->> 'rate_seconds' AS float8)
    FROM s RETURNING id, pg_notify(CAST(%(channel)s AS text), queue) AS notified, queue, limit_key, available_at
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, available_at FROM j WHERE limit_key IS NOT NULL
), lane AS (
    INSERT INTO "app".leasequeue_lane (queue, priority)
    SELECT queue, priority FROM s WHERE priority <> 0 AND NOT EXISTS (
        SELECT FROM "app".leasequeue_lane AS known WHERE known.queue = s.queue AND known.priority = s.priority)
), t AS (
    INSERT INTO "app".leasequeue_tick (schedule, due_at, outcome, job_id, reason, decided_at, decided_by)
    SELECT s.name, s.due_at, 'fired', j.id, 'run by hand', clock_timestamp(), CAST(%(by)s AS text) FROM s, j
)
UPDATE "app".leasequeue_schedule AS schedule SET fired_at = s.due_at,
    job_id = CASE WHEN EXISTS (SELECT FROM "app".leasequeue_job AS live WHERE live.id = schedule.job_id)
        THEN schedule.job_id ELSE j.id END
FROM s, j WHERE schedule.name = s.name RETURNING j.id;
