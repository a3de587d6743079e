"""What the command line and the dashboard read. Bounded reads only: no statement here counts or sorts a big table.

Every scan follows an index in its order and stops at a LIMIT that the caller gives, so that five million rows cost what
the limit costs. Where a filter has no index (a task's name), the scan looks through a *window* of so many rows, and the
answer says how many were looked at. Which queues and priorities exist is found by stepping from one index entry to the
next different one, not by DISTINCT.

Nothing is locked. Times come as seconds since 1970 (float8) and JSON as text: any SQL may have written the rows, and one
value that the driver cannot load (``infinity``, an integer of 5,000 digits) would hide all the others.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.names import qualify

PREVIEW_CHARS = 200

# The priorities of q.name that have ready or scheduled rows, best first.
_LANES = """
        WITH RECURSIVE lane AS (
            (SELECT priority FROM {s}.leasequeue_job WHERE state = 'r' AND queue = q.name
             ORDER BY priority DESC LIMIT 1)
            UNION ALL
            SELECT (SELECT priority FROM {s}.leasequeue_job
                    WHERE state = 'r' AND queue = q.name AND priority < lane.priority
                    ORDER BY priority DESC LIMIT 1)
            FROM lane WHERE lane.priority IS NOT NULL
        )"""

# One priority of a queue, in the order in which it is claimed (ready) or will become due (scheduled).
_IN_LANE = """{{s}}.leasequeue_job
                WHERE state = 'r' AND queue = q.name AND priority = lane.priority AND available_at {due} now()
                ORDER BY available_at, id"""
_READY = _IN_LANE.format(due="<=")
_SCHEDULED = _IN_LANE.format(due=">")

_QUEUES = """WITH RECURSIVE found AS (
    (SELECT queue FROM {s}.leasequeue_job WHERE state = 'r' ORDER BY queue LIMIT 1)
    UNION ALL
    SELECT (SELECT queue FROM {s}.leasequeue_job WHERE state = 'r' AND queue > found.queue ORDER BY queue LIMIT 1)
    FROM found WHERE found.queue IS NOT NULL
)
SELECT queue FROM found WHERE queue IS NOT NULL LIMIT %(limit)s"""

_PAUSED = """SELECT name, extract(epoch FROM paused_at)::float8, extract(epoch FROM resume_at)::float8
FROM {s}.leasequeue_queue
WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now()) ORDER BY name LIMIT %(limit)s"""


def _count_lanes(rows: str) -> str:
    return f"""(
            SELECT count(*) FROM (
                SELECT FROM lane CROSS JOIN LATERAL (
                SELECT FROM {rows} LIMIT %(cap)s + 1
                ) AS one WHERE lane.priority IS NOT NULL LIMIT %(cap)s + 1
            ) AS counted)"""


_QUEUE_COUNTS = f"""SELECT q.name, counts.ready, extract(epoch FROM now() - counts.oldest)::float8, counts.scheduled
FROM unnest(%(queues)s::text[]) AS q (name)
CROSS JOIN LATERAL ({_LANES}
    SELECT {_count_lanes(_READY)} AS ready, {_count_lanes(_SCHEDULED)} AS scheduled, (
            SELECT min(first.available_at) FROM lane CROSS JOIN LATERAL (
                SELECT available_at FROM {_READY} LIMIT 1
            ) AS first) AS oldest
) AS counts"""

_HELD = """SELECT 'l', queue, count(*), count(*) FILTER (WHERE expires_at < now())
FROM (SELECT queue, expires_at FROM {s}.leasequeue_job WHERE state = 'l' ORDER BY id LIMIT %(cap)s + 1) AS leased
GROUP BY queue
UNION ALL
SELECT 'q', queue, count(*), 0
FROM (SELECT queue FROM {s}.leasequeue_job WHERE state = 'q' ORDER BY id LIMIT %(cap)s + 1) AS suspect
GROUP BY queue
UNION ALL
SELECT 'g', queue, count(*), 0
FROM (SELECT queue FROM {s}.leasequeue_job WHERE state = 'g' ORDER BY limit_key, queue LIMIT %(cap)s + 1) AS waiting
GROUP BY queue"""

# Blocked jobs have no index of their own: those are found that are among the oldest or the newest live jobs. Returns queue, how
# many, and how many rows were looked at.
_SEEN = """WITH seen AS MATERIALIZED (
    (SELECT id, queue, task, state FROM {s}.leasequeue_job ORDER BY id LIMIT %(window)s)
    UNION (SELECT id, queue, task, state FROM {s}.leasequeue_job ORDER BY id DESC LIMIT %(window)s)
)"""
_BLOCKED = f"""{_SEEN}
SELECT queue, count(*), (SELECT count(*) FROM seen) FROM seen WHERE state = 'b' GROUP BY queue"""

# The oldest blocked ones, as far as none of the jobs that they come after is there any more. What ends a parent counts its
# children down in the same transaction, so nothing will ever release these.
_ORPHANS = f"""{_SEEN}
SELECT id, queue, task FROM (SELECT id, queue, task FROM seen WHERE state = 'b' ORDER BY id LIMIT 1000) AS blocked
WHERE (SELECT 1 FROM {{s}}.leasequeue_edge AS edge JOIN {{s}}.leasequeue_job AS parent ON parent.id = edge.parent_id
    WHERE edge.child_id = blocked.id LIMIT 1) IS NULL
ORDER BY id LIMIT %(limit)s"""

# Limits of 0 that are in force (what an operator set goes before what the code says), and what waits under them: exact keys
# are looked up; for the rest so many waiting jobs are looked through.
_HELD_BY_ZERO = """WITH zero AS MATERIALIZED (
    SELECT name FROM (
        SELECT DISTINCT ON (name) name, max_running FROM {s}.leasequeue_limit
        WHERE max_running IS NOT NULL ORDER BY name, declared
    ) AS in_force WHERE max_running = 0 ORDER BY name LIMIT %(limit)s
), waiting AS MATERIALIZED (
    SELECT limit_key, queue, task FROM {s}.leasequeue_job
    WHERE state = 'g' AND EXISTS (SELECT FROM zero) ORDER BY limit_key, queue LIMIT %(window)s
)
SELECT name, exact + beneath FROM (
    SELECT zero.name, (
            SELECT count(*) FROM (SELECT FROM {s}.leasequeue_job WHERE state = 'g' AND limit_key = zero.name
                LIMIT %(window)s) AS one) AS exact, (
            SELECT count(*) FROM waiting WHERE limit_key <> zero.name AND ('task:' || task = zero.name
                OR 'queue:' || queue = zero.name OR (split_part(limit_key, ':', 1) = zero.name AND NOT EXISTS (
                    SELECT FROM {s}.leasequeue_limit AS own WHERE own.name = waiting.limit_key
                    AND own.max_running IS NOT NULL)))) AS beneath
    FROM zero
) AS held WHERE exact + beneath > 0 ORDER BY 1"""

# The wake of each queue that is due for longest, where that is for long.
_OVERDUE_WAKES = """SELECT q.name, first.key, extract(epoch FROM now() - first.due_at)::float8
FROM unnest(%(queues)s::text[]) AS q (name)
CROSS JOIN LATERAL (
    SELECT key, due_at FROM {s}.leasequeue_wake
    WHERE queue = q.name AND due_at < now() - %(seconds)s::float8 * interval '1 second' ORDER BY due_at, id LIMIT 1
) AS first ORDER BY 1"""

# Limits, and of two of one name which is in force, value by value.
_LIMITS = """SELECT l.name, l.declared, l.max_running, l.rate_max, l.rate_seconds, l.app,
    extract(epoch FROM l.deployed_at)::float8, extract(epoch FROM l.updated_at)::float8, l.updated_by,
    NOT l.declared OR o.name IS NULL OR (l.max_running IS NOT NULL AND o.max_running IS NULL)
        OR (l.rate_max IS NOT NULL AND o.rate_max IS NULL)
FROM {s}.leasequeue_limit AS l LEFT JOIN {s}.leasequeue_limit AS o ON o.name = l.name AND NOT o.declared
WHERE %(names)s::text[] IS NULL OR l.name = ANY(%(names)s::text[]) ORDER BY l.name, l.declared LIMIT %(limit)s"""

# What runs (l) and waits (g) under a name. An exact key is looked up; for the rest so many rows are looked through.
_LIMIT_COUNTS = """SELECT state::text, count(*) FILTER (WHERE limit_key = %(name)s::text OR CASE %(about)s::text
        WHEN 'prefix' THEN starts_with(limit_key, %(name)s::text || ':')
        WHEN 'queue' THEN queue = %(word)s::text WHEN 'task' THEN task = %(word)s::text ELSE false END), count(*)
FROM (
    (SELECT state, limit_key, queue, task FROM {s}.leasequeue_job
     WHERE state = 'l' AND limit_key IS NOT NULL AND (%(exact)s::text IS NULL OR limit_key = %(exact)s::text)
     LIMIT %(cap)s + 1)
    UNION ALL
    (SELECT state, limit_key, queue, task FROM {s}.leasequeue_job
     WHERE state = 'g' AND (%(exact)s::text IS NULL OR limit_key = %(exact)s::text) LIMIT %(cap)s + 1)
) AS job GROUP BY state"""

_LIMIT_OWN = """(SELECT limit_max, rate_max, rate_seconds FROM {s}.leasequeue_job
 WHERE state = 'g' AND limit_key = %(key)s ORDER BY limit_key, queue, priority DESC, available_at, id LIMIT 1)
UNION ALL
(SELECT limit_max, rate_max, rate_seconds FROM {s}.leasequeue_job
 WHERE state = 'l' AND limit_key = %(key)s ORDER BY limit_key, term LIMIT 1)
LIMIT 1"""

_LIMIT_SPENT = """SELECT coalesce(sum(count), 0)::bigint FROM {s}.leasequeue_admission
WHERE name = %(name)s AND at > clock_timestamp() - %(seconds)s::float8 * interval '1 second'"""

_WORKERS = """SELECT id::text, host, pid, version, release, queues::text, tasks::text, counters::text,
    extract(epoch FROM started_at)::float8, extract(epoch FROM renewed_at)::float8,
    extract(epoch FROM expires_at)::float8, expires_at > now(), extract(epoch FROM now())::float8
FROM {s}.leasequeue_worker ORDER BY expires_at > now() DESC, host, pid LIMIT %(limit)s"""

_NOW = "SELECT extract(epoch FROM now())::float8"

_RECENT = """SELECT task, job_id, failed_at, error_type, left(message, 200) AS message FROM {s}.leasequeue_failure
    WHERE failed_at > now() - %(seconds)s::float8 * interval '1 second' ORDER BY failed_at DESC LIMIT %(cap)s + 1"""

# A refused completion is noted as a failure of that type; it is no failure of the task.
_FAILURES = f"""SELECT task, error_type = 'LeaseLost', count(*), count(DISTINCT job_id),
    extract(epoch FROM max(failed_at))::float8,
    (array_agg(error_type ORDER BY failed_at DESC))[1], (array_agg(message ORDER BY failed_at DESC))[1]
FROM ({_RECENT}) AS recent GROUP BY 1, 2 ORDER BY 3 DESC, 1 LIMIT 200"""

_EXPIRED = """SELECT task, count(*), extract(epoch FROM max(finished_at))::float8 FROM (
    SELECT task, finished_at FROM {s}.leasequeue_finished
    WHERE outcome = 'expired' AND outcome <> 'succeeded'
      AND finished_at > now() - %(seconds)s::float8 * interval '1 second' ORDER BY finished_at DESC LIMIT %(cap)s
) AS recent GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20"""

# The worker that holds a row: all holders of a process share their first twelve bytes with its id.
_HOLDING = "LEFT JOIN {s}.leasequeue_worker AS worker ON worker.id = (left(job.holder::text, 28) || '00000000')::uuid"

_STATE = """CASE job.state WHEN 'r' THEN CASE WHEN job.available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END"""

# The columns of a list, the same for live and finished jobs.
_LIVE_ROW = f"""job.id, {_STATE}, job.queue, job.task, left(job.args::text, {PREVIEW_CHARS + 1}), job.priority,
    job.attempt, job.max_attempts, job.abandoned, extract(epoch FROM job.created_at)::float8,
    extract(epoch FROM job.available_at)::float8, extract(epoch FROM job.claimed_at)::float8,
    extract(epoch FROM job.expires_at)::float8, NULL::float8, worker.host || ':' || worker.pid, NULL::text,
    job.progress::text"""
_FINISHED_ROW = f"""job.id, job.outcome, job.queue, job.task, left(job.args::text, {PREVIEW_CHARS + 1}), NULL::smallint,
    job.attempt, NULL::int, job.abandoned, extract(epoch FROM job.enqueued_at)::float8, NULL::float8,
    extract(epoch FROM job.started_at)::float8, NULL::float8, extract(epoch FROM job.finished_at)::float8, NULL::text,
    left(job.error, {PREVIEW_CHARS + 1}), (job.meta -> 'progress')::text"""

_WANTED = "(%(queue)s::text IS NULL OR queue = %(queue)s) AND (%(task)s::text IS NULL OR task = %(task)s)"


def _list(looked_at: str, order: str, *, live: bool = True, more: str = "true") -> str:
    """Look at a window of rows, keep those wanted, return whole rows for only so many.

    The first column says how many rows were looked at. There is always a row; its id is NULL where nothing was found.
    """
    table, row, joined = ("leasequeue_job", _LIVE_ROW, _HOLDING) if live else ("leasequeue_finished", _FINISHED_ROW, "")
    return f"""WITH seen AS MATERIALIZED ({looked_at}
), wanted AS MATERIALIZED (
    SELECT id FROM seen AS job WHERE {more} AND {_WANTED} ORDER BY {order} LIMIT %(limit)s
)
SELECT seen.count, {row}
FROM (SELECT count(*) FROM seen) AS seen
LEFT JOIN {{s}}.{table} AS job ON job.id = ANY(ARRAY(SELECT id FROM wanted))
{joined}
ORDER BY {order}"""


def _list_lanes(rows: str, order: str) -> str:
    return _list(
        f"""
    SELECT job.* FROM unnest(%(queues)s::text[]) AS q (name)
    CROSS JOIN LATERAL ({_LANES}
        SELECT one.* FROM lane CROSS JOIN LATERAL (
                SELECT id, queue, task, priority, available_at FROM {rows} LIMIT %(window)s
        ) AS one WHERE lane.priority IS NOT NULL
    ) AS job""",
        order,
    )


def _newest(where: str) -> str:
    return f"""
    SELECT id, queue, task, state FROM {{s}}.leasequeue_job WHERE {where} ORDER BY id DESC LIMIT %(window)s"""


def _history(where: str) -> str:
    return f"""
    SELECT id, queue, task, outcome, finished_at FROM {{s}}.leasequeue_finished
    WHERE {where} ORDER BY finished_at DESC LIMIT %(window)s"""


_LATEST = "job.finished_at DESC, job.id DESC"

_LIST_LIVE = _list(_newest("true"), "job.id DESC")
_LIST_READY = _list_lanes(_READY, "job.priority DESC, job.available_at, job.id")
_LIST_SCHEDULED = _list_lanes(_SCHEDULED, "job.available_at, job.id")
_LIST_LEASED = _list(_newest("state = 'l'"), "job.id DESC")
_LIST_SUSPECT = _list(_newest("state = 'q'"), "job.id DESC")
# These states have no index of their own.
_LIST_WAITING = _list(_newest("true"), "job.id DESC", more="state IN ('g', 'b')")
_LIST_SUCCEEDED = _list(_history("true"), _LATEST, live=False, more="outcome = 'succeeded'")
# Said twice: the second is what the planner needs to see that the partial index has the rows.
_LIST_UNHAPPY = _list(_history("outcome = %(outcome)s AND outcome <> 'succeeded'"), _LATEST, live=False)

_JOB = f"""SELECT {_LIVE_ROW}, job.args::text, job.meta::text, job.unique_key, job.limit_key, job.holder::text, job.term,
    extract(epoch FROM job.cancel_requested_at)::float8, NULL::text, extract(epoch FROM now())::float8, NULL::text,
    extract(epoch FROM job.start_by)::float8
FROM {{s}}.leasequeue_job AS job {_HOLDING} WHERE job.id = %(id)s"""

_FINISHED_JOB = f"""SELECT {_FINISHED_ROW}, job.args::text, job.meta::text, NULL::text, NULL::text, NULL::text, NULL::bigint,
    NULL::float8, job.result::text, extract(epoch FROM now())::float8, job.error
FROM {{s}}.leasequeue_finished AS job WHERE job.id = %(id)s"""

# Taken first, ordered then: with ORDER BY and LIMIT on the table itself the planner may walk all failures by age.
_JOB_FAILURES = """WITH found AS MATERIALIZED (
    SELECT attempt, error_type, message, traceback, worker, started_at, failed_at, retry_at
    FROM {s}.leasequeue_failure WHERE job_id = %(id)s LIMIT 1000
)
SELECT attempt, error_type, message, traceback, worker, extract(epoch FROM started_at)::float8,
    extract(epoch FROM failed_at)::float8, extract(epoch FROM retry_at)::float8
FROM found ORDER BY failed_at DESC, attempt DESC LIMIT %(limit)s"""

_TEMPLATES = {
    "now": _NOW,
    "workers": _WORKERS,
    "queues": _QUEUES,
    "paused": _PAUSED,
    "queue_counts": _QUEUE_COUNTS,
    "held": _HELD,
    "blocked": _BLOCKED,
    "orphans": _ORPHANS,
    "held_by_zero": _HELD_BY_ZERO,
    "overdue_wakes": _OVERDUE_WAKES,
    "limits": _LIMITS,
    "limit_counts": _LIMIT_COUNTS,
    "limit_own": _LIMIT_OWN,
    "limit_spent": _LIMIT_SPENT,
    "failures": _FAILURES,
    "expired": _EXPIRED,
    "list_live": _LIST_LIVE,
    "list_ready": _LIST_READY,
    "list_scheduled": _LIST_SCHEDULED,
    "list_leased": _LIST_LEASED,
    "list_suspect": _LIST_SUSPECT,
    "list_waiting": _LIST_WAITING,
    "list_succeeded": _LIST_SUCCEEDED,
    "list_unhappy": _LIST_UNHAPPY,
    "job": _JOB,
    "finished_job": _FINISHED_JOB,
    "job_failures": _JOB_FAILURES,
}


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    return {name: text.format(s=quoted) for name, text in _TEMPLATES.items()}
