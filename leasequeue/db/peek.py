"""Looks at what is due, without taking anything. Plain reads, bounded by the lanes that they name; they wait for no lock.

A lane of jobs is a queue with a priority, one of wakes a queue; each is read from its floor on, as by a claim.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.names import fill

# Not EXISTS: of that the planner may make a join, for which it reads, and sorts, all that is ready, where its statistics are of
# a table that was empty. A value is looked up for each lane by itself.
_READY = """SELECT true FROM {s}.leasequeue_job AS job
    WHERE job.queue = lane.queue AND job.priority = lane.priority AND job.state = 'r' AND job.available_at <= now()
      AND (job.available_at, job.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY job.available_at, job.id LIMIT 1"""

_WOKEN = """SELECT true FROM {s}.leasequeue_wake AS wake
    WHERE wake.queue = lane.queue AND wake.due_at <= now()
      AND (wake.due_at, wake.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY wake.due_at, wake.id LIMIT 1"""

# Which of many queues have something for us: one round trip.
PEEK = f"""SELECT DISTINCT lane.queue
FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
    AS lane (queue, priority, floor_at, floor_id)
WHERE ({_READY})"""

PEEK_WAKES = f"""SELECT lane.queue
FROM unnest(%(queues)s::text[], %(floors)s::float8[], %(floor_ids)s::bigint[]) AS lane (queue, floor_at, floor_id)
WHERE ({_WOKEN})"""

# Both in one round trip, for whoever has nothing to do: whether anything is due, and after how many seconds something will be
# that is known already. No further ahead than it will look again, so that few dead entries can lie in between.
_IDLE = f"""SELECT EXISTS (
    SELECT FROM unnest(%(queues)s::text[], %(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
        AS lane (queue, priority, floor_at, floor_id)
    WHERE ({_READY})
) OR EXISTS (
    SELECT FROM unnest(%(wake_queues)s::text[], %(wake_floors)s::float8[], %(wake_floor_ids)s::bigint[])
        AS lane (queue, floor_at, floor_id)
    WHERE ({_WOKEN})
), (
    SELECT extract(epoch FROM min(at) - now())::float8 FROM (
        SELECT (
            SELECT available_at FROM {{s}}.leasequeue_job AS job
            WHERE job.queue = lane.queue AND job.priority = lane.priority AND job.state = 'r' AND job.available_at > now()
              AND job.available_at <= now() + %(ahead)s * interval '1 second'
            ORDER BY job.available_at LIMIT 1)
        FROM unnest(%(queues)s::text[], %(priorities)s::smallint[]) AS lane (queue, priority)
        UNION ALL
        SELECT (
            SELECT due_at FROM {{s}}.leasequeue_wake AS wake
            WHERE wake.queue = lane.queue AND wake.due_at > now()
              AND wake.due_at <= now() + %(ahead)s * interval '1 second'
            ORDER BY wake.due_at LIMIT 1)
        FROM unnest(%(wake_queues)s::text[]) AS lane (queue)
    ) AS next (at)
)"""


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each of those that no other module takes over."""
    return fill(schema, {"idle": _IDLE})
