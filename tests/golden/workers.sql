-- register
INSERT INTO "app".leasequeue_worker (
    id, host, pid, version, release, queues, tasks, schedules, expires_at, counters)
VALUES (%(id)s, %(host)s, %(pid)s, %(version)s, %(release)s, %(queues)s::jsonb, %(tasks)s::jsonb, %(schedules)s::jsonb,
    clock_timestamp() + %(ttl)s * interval '1 second', %(counters)s::jsonb)
ON CONFLICT (id) DO UPDATE SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + %(ttl)s * interval '1 second', counters = excluded.counters
RETURNING id;

-- unregister
DELETE FROM "app".leasequeue_worker WHERE id = %(id)s RETURNING id;

-- count_minute
INSERT INTO "app".leasequeue_stat (worker, minute, counts)
VALUES (%(id)s, date_trunc('minute', clock_timestamp()), %(counts)s::jsonb)
ON CONFLICT (worker, minute) DO UPDATE SET counts = excluded.counts
RETURNING minute;

-- purge_0
WITH seen AS MATERIALIZED (
    SELECT id, finished_at, options -> 'workflow' IS NOT NULL AND EXISTS (
        SELECT FROM "app".leasequeue_step AS step WHERE step.job_id = finished.id) AS stays
    FROM "app".leasequeue_finished AS finished
    WHERE finished_at < now() - %(keep)s * interval '1 second' AND finished_at >= to_timestamp(%(after)s) AND outcome = 'succeeded'
    ORDER BY finished_at LIMIT %(look)s
), gone AS (
    DELETE FROM "app".leasequeue_finished WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM "app".leasequeue_finished
        WHERE id = ANY(ARRAY(SELECT id FROM seen WHERE NOT stays ORDER BY finished_at LIMIT %(limit)s))
        FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT count(*)::int, (SELECT count(*) FROM gone)::int, extract(epoch FROM max(finished_at))::float8 FROM seen;

-- purge_1
WITH seen AS MATERIALIZED (
    SELECT id, finished_at, options -> 'workflow' IS NOT NULL AND EXISTS (
        SELECT FROM "app".leasequeue_step AS step WHERE step.job_id = finished.id) AS stays
    FROM "app".leasequeue_finished AS finished
    WHERE finished_at < now() - %(keep)s * interval '1 second' AND finished_at >= to_timestamp(%(after)s)
    ORDER BY finished_at LIMIT %(look)s
), gone AS (
    DELETE FROM "app".leasequeue_finished WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM "app".leasequeue_finished
        WHERE id = ANY(ARRAY(SELECT id FROM seen WHERE NOT stays ORDER BY finished_at LIMIT %(limit)s))
        FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT count(*)::int, (SELECT count(*) FROM gone)::int, extract(epoch FROM max(finished_at))::float8 FROM seen;

-- purge_2
DELETE FROM "app".leasequeue_failure WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_failure WHERE failed_at < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_3
DELETE FROM "app".leasequeue_lease WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_lease WHERE renewed_at < now() - %(keep)s * interval '1 second' AND (holder IS NULL OR expires_at < now() - interval '90 days')
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_4
DELETE FROM "app".leasequeue_lease_event WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_lease_event WHERE at < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_5
DELETE FROM "app".leasequeue_tick WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_tick WHERE decided_at < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_6
DELETE FROM "app".leasequeue_stat WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_stat WHERE minute < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_7
DELETE FROM "app".leasequeue_worker WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_worker WHERE expires_at < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_8
DELETE FROM "app".leasequeue_hold WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_hold WHERE expires_at < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_9
DELETE FROM "app".leasequeue_admission WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_admission WHERE until < now() - %(keep)s * interval '1 second'
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_10
DELETE FROM "app".leasequeue_wake WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM "app".leasequeue_wake WHERE due_at < now() - %(keep)s * interval '1 second' AND NOT EXISTS (
        SELECT FROM "app".leasequeue_job AS job
        WHERE job.limit_key = leasequeue_wake.key AND job.queue = leasequeue_wake.queue AND job.state = 'g')
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1;

-- purge_11
WITH old AS MATERIALIZED (
    SELECT id FROM "app".leasequeue_workflow AS workflow
    WHERE created_at < now() - %(keep)s * interval '1 second' AND NOT EXISTS (
        SELECT FROM "app".leasequeue_step AS step JOIN "app".leasequeue_job AS job ON job.id = step.job_id
        WHERE step.workflow = workflow.id)
    ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM "app".leasequeue_step WHERE workflow = ANY(ARRAY(SELECT id FROM old)) RETURNING job_id
), above AS (
    DELETE FROM "app".leasequeue_edge WHERE child_id = ANY(ARRAY(SELECT job_id FROM steps)) RETURNING 1
), below AS (
    DELETE FROM "app".leasequeue_edge
    WHERE parent_id = ANY(ARRAY(SELECT job_id FROM steps)) AND NOT child_id = ANY(ARRAY(SELECT job_id FROM steps)) RETURNING 1
)
DELETE FROM "app".leasequeue_workflow WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1;

-- purge_queue
WITH seen AS MATERIALIZED (
    SELECT id, finished_at, options -> 'workflow' IS NOT NULL AND EXISTS (
        SELECT FROM "app".leasequeue_step AS step WHERE step.job_id = finished.id) AS stays
    FROM "app".leasequeue_finished AS finished
    WHERE finished_at < now() - %(keep)s * interval '1 second' AND finished_at >= to_timestamp(%(after)s) AND queue = %(queue)s
    ORDER BY finished_at LIMIT %(look)s
), gone AS (
    DELETE FROM "app".leasequeue_finished WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM "app".leasequeue_finished
        WHERE id = ANY(ARRAY(SELECT id FROM seen WHERE NOT stays ORDER BY finished_at LIMIT %(limit)s))
        FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT count(*)::int, (SELECT count(*) FROM gone)::int, extract(epoch FROM max(finished_at))::float8 FROM seen;
