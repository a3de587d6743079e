"""What is read of leases and schedules for people: their rows, and the last of what happened to them.

As in ``inspect``: bounded by a LIMIT over an index, nothing locked, times as seconds and JSON as text.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.names import qualify

_LEASES = """SELECT name, slot, slots, holder::text, term, owner, extract(epoch FROM acquired_at)::float8,
    extract(epoch FROM renewed_at)::float8, extract(epoch FROM expires_at)::float8,
    coalesce(holder IS NOT NULL AND expires_at > clock_timestamp(), false), extract(epoch FROM clock_timestamp())::float8
FROM {s}.leasequeue_lease WHERE %(name)s::text IS NULL OR name = %(name)s::text ORDER BY name, slot LIMIT %(limit)s"""

_LEASE_EVENTS = """SELECT event, slot, term, owner, extract(epoch FROM at)::float8, count, reason
FROM {s}.leasequeue_lease_event WHERE name = %(name)s ORDER BY id DESC LIMIT %(limit)s"""

# Who asks is known by having been refused: a candidate writes that once a minute for as long as it stands.
_CONTENDERS = """SELECT name, owner, reason, term, extract(epoch FROM at)::float8, total FROM (
    SELECT DISTINCT ON (name, owner) name, owner, reason, term, at, sum(count) OVER (PARTITION BY name, owner) AS total
    FROM (
        SELECT name, owner, reason, term, at, count FROM {s}.leasequeue_lease_event
        WHERE event = 'refused' AND at > now() - %(seconds)s * interval '1 second'
          AND (%(name)s::text IS NULL OR name = %(name)s::text)
        ORDER BY at DESC LIMIT %(limit)s
    ) AS recent
    ORDER BY name, owner, at DESC
) AS last ORDER BY name, at DESC"""

# Started and succeeded are those of the jobs of the last due times that have one; a queue that keeps no history has none.
_SCHEDULES = """SELECT schedule.name, task, queue, spec::text, catch_up, overlap, version, decorated, release,
    extract(epoch FROM deployed_at)::float8, extract(epoch FROM next_at)::float8, extract(epoch FROM fired_at)::float8,
    extract(epoch FROM paused_at)::float8, last.started, last.succeeded, last.late, missed.count,
    EXISTS (
        SELECT FROM {s}.leasequeue_worker AS worker WHERE worker.expires_at > clock_timestamp()
        AND CASE WHEN schedule.decorated THEN jsonb_exists(worker.schedules, schedule.name)
            ELSE jsonb_exists(worker.tasks, schedule.task) END),
    extract(epoch FROM clock_timestamp())::float8, args::text, priority, schedule.job_id
FROM {s}.leasequeue_schedule AS schedule
CROSS JOIN LATERAL (
    SELECT extract(epoch FROM max(coalesce(job.claimed_at, finished.started_at)))::float8 AS started,
        extract(epoch FROM max(finished.finished_at) FILTER (WHERE finished.outcome = 'succeeded'))::float8 AS succeeded,
        extract(epoch FROM max(run.decided_at - run.due_at))::float8 AS late
    FROM (
        SELECT job_id, due_at, decided_at FROM {s}.leasequeue_tick AS tick
        WHERE tick.schedule = schedule.name AND tick.job_id IS NOT NULL ORDER BY tick.due_at DESC LIMIT 20
    ) AS run
    LEFT JOIN {s}.leasequeue_job AS job ON job.id = run.job_id
    LEFT JOIN {s}.leasequeue_finished AS finished ON finished.id = run.job_id
) AS last
CROSS JOIN LATERAL (
    SELECT count(*) FROM (
        SELECT outcome FROM {s}.leasequeue_tick AS tick
        WHERE tick.schedule = schedule.name AND tick.due_at > now() - interval '1 day'
        ORDER BY tick.due_at DESC LIMIT 1000
    ) AS recent WHERE outcome = 'missed'
) AS missed
WHERE %(name)s::text IS NULL OR schedule.name = %(name)s::text
ORDER BY coalesce(schedule.next_at < now() - interval '5 s', false) DESC, schedule.name LIMIT %(limit)s"""

_TICKS = """SELECT extract(epoch FROM due_at)::float8, tick.outcome, tick.job_id, reason,
    extract(epoch FROM decided_at)::float8, decided_by, finished.outcome AS ended, job.state::text
FROM {s}.leasequeue_tick AS tick
LEFT JOIN {s}.leasequeue_job AS job ON job.id = tick.job_id
LEFT JOIN {s}.leasequeue_finished AS finished ON finished.id = tick.job_id
WHERE tick.schedule = %(name)s ORDER BY tick.due_at DESC LIMIT %(limit)s"""

_TEMPLATES = {
    "leases": _LEASES,
    "lease_events": _LEASE_EVENTS,
    "contenders": _CONTENDERS,
    "schedules": _SCHEDULES,
    "ticks": _TICKS,
}


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    return {name: text.format(s=quoted) for name, text in _TEMPLATES.items()}
