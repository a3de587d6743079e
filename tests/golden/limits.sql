-- set
INSERT INTO "app".leasequeue_limit (name, declared, max_running, rate_max, rate_seconds, updated_by)
VALUES (CAST(%(name)s AS text), false, CAST(%(running)s AS integer), CAST(%(rate)s AS integer), CAST(%(rate_seconds)s AS float8), CAST(%(by)s AS text))
ON CONFLICT (name, declared) DO UPDATE SET max_running = excluded.max_running, rate_max = excluded.rate_max,
    rate_seconds = excluded.rate_seconds, updated_at = clock_timestamp(), updated_by = excluded.updated_by
RETURNING name;

-- unset
DELETE FROM "app".leasequeue_limit WHERE name = CAST(%(name)s AS text) AND NOT declared RETURNING name;

-- wake_key
WITH RECURSIVE found AS (
    (SELECT queue FROM "app".leasequeue_job WHERE state = 'g' AND limit_key = CAST(%(name)s AS text) ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM "app".leasequeue_job WHERE state = 'g' AND limit_key = CAST(%(name)s AS text) AND queue > found.queue
            ORDER BY queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
INSERT INTO "app".leasequeue_wake (queue, key, due_at, whole)
SELECT queue, CAST(%(name)s AS text), clock_timestamp(), true FROM found WHERE queue IS NOT NULL RETURNING queue;

-- wake_many
WITH RECURSIVE pair AS (
    (SELECT limit_key, queue, 1 AS place FROM "app".leasequeue_job
     WHERE state = 'g' AND (limit_key, queue) > (CAST(%(after_key)s AS text), CAST(%(after_queue)s AS text))
     ORDER BY limit_key, queue LIMIT 1)
    UNION ALL
    SELECT next.limit_key, next.queue, pair.place + 1 FROM pair CROSS JOIN LATERAL (
        SELECT limit_key, queue FROM "app".leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (pair.limit_key, pair.queue)
        ORDER BY limit_key, queue LIMIT 1
    ) AS next WHERE pair.place < CAST(%(piece)s AS integer)
), looked AS MATERIALIZED (
    SELECT limit_key, queue, place FROM pair
), w AS (
    INSERT INTO "app".leasequeue_wake (queue, key, due_at, whole)
    SELECT queue, limit_key, clock_timestamp(), true FROM looked
    WHERE limit_key = CAST(%(name)s AS text) OR CASE CAST(%(kind)s AS text)
        WHEN 'prefix' THEN starts_with(limit_key, CAST(%(name)s AS text) || ':')
        WHEN 'queue' THEN queue = CAST(%(word)s AS text)
        ELSE (SELECT bool_or(first.task = CAST(%(word)s AS text)) OR count(*) = CAST(%(look)s AS integer) FROM (
            SELECT job.task FROM "app".leasequeue_job AS job
            WHERE job.state = 'g' AND job.limit_key = looked.limit_key AND job.queue = looked.queue
            LIMIT CAST(%(look)s AS integer)) AS first) END
    RETURNING key
)
SELECT last.limit_key, last.queue, last.place, (SELECT CAST(count(*) AS integer) FROM w)
FROM looked AS last ORDER BY last.place DESC LIMIT 1;

-- read_app
SELECT version, release, CAST(extract(epoch FROM deployed_at) AS float8), CAST(releases AS text)
FROM "app".leasequeue_app WHERE name = CAST(%(app)s AS text);

-- read_declared
SELECT name, max_running, rate_max, rate_seconds, app = CAST(%(app)s AS text), app FROM "app".leasequeue_limit
WHERE declared AND (app = CAST(%(app)s AS text) OR name = ANY(CAST(%(names)s AS text[]))) ORDER BY name;

-- now
SELECT CAST(extract(epoch FROM clock_timestamp()) AS float8);

-- add_app
INSERT INTO "app".leasequeue_app (name) VALUES (CAST(%(app)s AS text)) ON CONFLICT DO NOTHING RETURNING name;

-- declare
WITH a AS MATERIALIZED (
    SELECT name FROM "app".leasequeue_app WHERE name = CAST(%(app)s AS text) AND version = CAST(%(version)s AS bigint) FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE "app".leasequeue_app AS app SET version = app.version + 1, release = CAST(%(release)s AS text),
        deployed_at = to_timestamp(CAST(%(deployed_at)s AS float8)), releases = CAST(CAST(%(releases)s AS text) AS jsonb)
    FROM a WHERE app.name = a.name RETURNING app.name
), gone AS (
    DELETE FROM "app".leasequeue_limit WHERE declared AND app = CAST(%(app)s AS text) AND EXISTS (SELECT FROM a)
        AND name <> ALL (CAST(%(names)s AS text[])) RETURNING name
), put AS (
    INSERT INTO "app".leasequeue_limit AS l
        (name, declared, max_running, rate_max, rate_seconds, app, deployed_at, updated_by)
    SELECT d.name, true, d.running, d.rate, d.seconds, CAST(%(app)s AS text), to_timestamp(CAST(%(deployed_at)s AS float8)),
        CAST(%(by)s AS text)
    FROM a CROSS JOIN unnest(CAST(%(names)s AS text[]), CAST(%(running)s AS integer[]), CAST(%(rates)s AS integer[]),
        CAST(%(seconds)s AS float8[])) AS d (name, running, rate, seconds)
    ON CONFLICT (name, declared) DO UPDATE SET max_running = excluded.max_running, rate_max = excluded.rate_max,
        rate_seconds = excluded.rate_seconds, deployed_at = excluded.deployed_at, updated_at = clock_timestamp(),
        updated_by = excluded.updated_by
    WHERE l.app = excluded.app AND (l.max_running, l.rate_max, l.rate_seconds)
        IS DISTINCT FROM (excluded.max_running, excluded.rate_max, excluded.rate_seconds)
    RETURNING l.name
)
SELECT 'app', name FROM u UNION ALL SELECT 'gone', name FROM gone UNION ALL SELECT 'put', name FROM put;
