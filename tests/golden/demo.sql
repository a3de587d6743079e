-- create_effects
CREATE TABLE "app".demo_effect (
    line integer NOT NULL, service text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    words integer NOT NULL, digest text NOT NULL, logged_at timestamptz);

-- insert_effect
INSERT INTO "app".demo_effect (line, service, words, digest, logged_at)
VALUES (:line, :service, :words, :digest, :logged_at);

-- progress
SELECT (SELECT count(*) FROM "app".demo_effect),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory');

-- held_by
SELECT job.id FROM "app".leasequeue_job AS job JOIN "app".leasequeue_worker AS worker
ON job.holder BETWEEN worker.id AND (left(worker.id::text, -8) || 'ffffffff')::uuid
WHERE job.state = 'l' AND worker.release = %(service)s;

-- taken_over
SELECT (SELECT count(*) FROM "app".leasequeue_finished WHERE id = ANY(%(ids)s::bigint[]))
    + (SELECT count(*) FROM "app".leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND term > %(term)s);

-- newest_term
SELECT last_value FROM "app".leasequeue_term;

-- read_back
SELECT
    (SELECT count(*) FROM "app".demo_effect),
    (SELECT count(DISTINCT line) FROM "app".demo_effect),
    (SELECT count(*) FROM "app".leasequeue_finished WHERE outcome = 'succeeded'),
    (SELECT count(*) FROM "app".leasequeue_finished WHERE outcome <> 'succeeded')
        + (SELECT count(*) FROM "app".leasequeue_job),
    (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM "app".demo_effect),
    (SELECT count(*) FROM "app".leasequeue_finished WHERE attempt > 1);
