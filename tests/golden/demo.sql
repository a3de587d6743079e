-- create_effects
CREATE TABLE demo_effect (
    line integer NOT NULL, service text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    words integer NOT NULL, digest text NOT NULL, logged_at timestamptz);

-- insert_effect
INSERT INTO demo_effect (line, service, words, digest, logged_at)
VALUES (:line, :service, :words, :digest, :logged_at);

-- held_by
SELECT job.id FROM leasequeue_job AS job JOIN leasequeue_worker AS worker
ON job.holder BETWEEN worker.id AND (left(worker.id::text, -8) || 'ffffffff')::uuid
WHERE job.state = 'l' AND worker.release = %(service)s;

-- taken_over
SELECT (SELECT count(*) FROM leasequeue_finished WHERE id = ANY(%(ids)s::bigint[]))
    + (SELECT count(*) FROM leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND term > %(term)s);

-- read_back
SELECT
    (SELECT count(*) FROM demo_effect),
    (SELECT count(DISTINCT line) FROM demo_effect),
    (SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'),
    (SELECT count(*) FROM leasequeue_finished WHERE outcome <> 'succeeded') + (SELECT count(*) FROM leasequeue_job),
    (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM demo_effect),
    (SELECT count(*) FROM leasequeue_finished WHERE attempt > 1),
    (SELECT count(DISTINCT service) FROM demo_effect);
