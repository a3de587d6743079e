-- leases
SELECT name, slot, slots, holder::text, term, owner, extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM renewed_at)::float8, extract(epoch FROM expires_at)::float8,
    coalesce(holder IS NOT NULL AND expires_at > clock_timestamp(), false), extract(epoch FROM clock_timestamp())::float8
FROM "app".leasequeue_lease WHERE %(name)s::text IS NULL OR name = %(name)s::text ORDER BY name, slot LIMIT %(limit)s;

-- lease_events
SELECT event, slot, term, owner, extract(epoch FROM at)::float8, count, reason
FROM "app".leasequeue_lease_event WHERE name = %(name)s ORDER BY id DESC LIMIT %(limit)s;

-- contenders
SELECT name, owner, reason, term, extract(epoch FROM at)::float8, total FROM (
    SELECT DISTINCT ON (name, owner) name, owner, reason, term, at, sum(count) OVER (PARTITION BY name, owner) AS total
    FROM (
        SELECT name, owner, reason, term, at, count FROM "app".leasequeue_lease_event
        WHERE event = 'refused' AND at > now() - %(seconds)s * interval '1 second'
          AND (%(name)s::text IS NULL OR name = %(name)s::text)
        ORDER BY at DESC LIMIT %(limit)s
    ) AS recent
    ORDER BY name, owner, at DESC
) AS last ORDER BY name, at DESC;

-- schedules
SELECT schedule.name, task, queue, spec::text, catch_up, overlap, version, decorated, release,
    extract(epoch FROM deployed_at)::float8, extract(epoch FROM next_at)::float8, extract(epoch FROM fired_at)::float8,
    extract(epoch FROM paused_at)::float8, last.started, last.succeeded, last.late, missed.count,
    EXISTS (
        SELECT FROM "app".leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
        AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
            ELSE jsonb_exists(worker.tasks, schedule.task) END),
    extract(epoch FROM clock_timestamp())::float8, args::text, priority, schedule.job_id
FROM "app".leasequeue_schedule AS schedule
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM max(coalesce(job.claimed_at, finished.started_at)))::float8 AS started,
        extract(epoch FROM max(finished.finished_at) FILTER (WHERE finished.outcome = 'succeeded'))::float8 AS succeeded,
        extract(epoch FROM max(run.decided_at - run.due_at))::float8 AS late
    FROM (
        SELECT job_id, due_at, decided_at FROM "app".leasequeue_tick AS tick
        WHERE tick.schedule = schedule.name AND tick.job_id IS NOT NULL ORDER BY tick.due_at DESC LIMIT 20
    ) AS run
    LEFT JOIN "app".leasequeue_job AS job ON job.id = run.job_id
    LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = run.job_id
) AS last
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT outcome FROM "app".leasequeue_tick AS tick
        WHERE tick.schedule = schedule.name AND tick.due_at > now() - interval '1 day'
        ORDER BY tick.due_at DESC LIMIT 1000
    ) AS recent WHERE outcome = 'missed'
) AS missed
WHERE %(name)s::text IS NULL OR schedule.name = %(name)s::text
ORDER BY coalesce(schedule.next_at < now() - interval '5 s', false) DESC, schedule.name LIMIT %(limit)s;

-- ticks
SELECT extract(epoch FROM due_at)::float8, tick.outcome, tick.job_id, reason,
    extract(epoch FROM decided_at)::float8, decided_by, finished.outcome AS ended, job.state::text
FROM "app".leasequeue_tick AS tick
LEFT JOIN "app".leasequeue_job AS job ON job.id = tick.job_id
LEFT JOIN "app".leasequeue_finished AS finished ON finished.id = tick.job_id
WHERE tick.schedule = %(name)s ORDER BY tick.due_at DESC LIMIT %(limit)s;
