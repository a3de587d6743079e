"""The same as ``db/admission.py``, with rates, limits above the keys, or other queues that wait for the same keys."""

from __future__ import annotations

from functools import cache

from leasequeue.db.admission import CANDIDATES, GIVEN, LANES, LEASE, SOON, USED
from leasequeue.db.names import fill

SPENT = """SELECT coalesce(sum(start.count), 0)::int AS spent, min(start.at) AS first_start
        FROM {{s}}.leasequeue_admission AS start
        WHERE start.name = {name} AND start.at > clock_timestamp() - {seconds} * interval '1 second'"""

# What runs under a limit on a whole task or queue.
RUNNING = """SELECT count(*)::int AS used FROM {{s}}.leasequeue_job
        WHERE holder IS NOT NULL AND limit_key IS NOT NULL
            AND CASE WHEN {name} LIKE 'task:%%' THEN task = substr({name}, 6) ELSE queue = substr({name}, 7) END"""

LEFT = """greatest(0, least(coalesce({running}, 2147483647) - {used}, coalesce({rate} - {spent}, 2147483647)))"""

_ABOVE = f"""above AS MATERIALIZED (
    SELECT a.name, a.rate, a.seconds, spent.spent, spent.first_start, a.held,
        CASE WHEN a.held THEN {LEFT.format(running="a.running", used="used.used", rate="a.rate", spent="spent.spent")}
            ELSE 0 END AS free
    FROM unnest(%(above)s::text[], %(held)s::boolean[], %(above_running)s::int[], %(above_rates)s::int[],
        %(above_seconds)s::float8[]) AS a (name, held, running, rate, seconds)
    CROSS JOIN LATERAL ({RUNNING.format(name="a.name")}) AS used
    CROSS JOIN LATERAL ({SPENT.format(name="a.name", seconds="a.seconds")}) AS spent
)"""

# A key that has the name of a limit above it (task:NAME) has its rate counted there.
_KEYS = f"""k AS MATERIALIZED (
    SELECT counted.*, CASE WHEN others > 0 THEN greatest(0, free - others) ELSE free END AS mine
    FROM (
        SELECT given.key, given.priority, given.floor_at, given.floor_id, given.term, given.others, given.quota,
            bounds.running, bounds.rate, bounds.seconds, used.*, spent.spent, spent.first_start,
            {LEFT.format(running="bounds.running", used="used.used", rate="bounds.rate", spent="spent.spent")} AS free
        FROM given LEFT JOIN LATERAL (
            SELECT limit_max, rate_max, rate_seconds FROM {{s}}.leasequeue_job AS job
            WHERE job.limit_key = given.key AND job.queue = %(queue)s AND job.state = 'g'
                AND job.available_at <= statement_timestamp()
            ORDER BY job.priority DESC, job.available_at, job.id LIMIT 1
        ) AS head ON true
        CROSS JOIN LATERAL (SELECT coalesce(given.running, head.limit_max) AS running,
            CASE WHEN given.key = ANY(%(above)s::text[]) THEN NULL ELSE coalesce(given.rate, head.rate_max) END AS rate,
            CASE WHEN given.rate IS NULL THEN head.rate_seconds ELSE given.seconds END AS seconds) AS bounds
        CROSS JOIN LATERAL ({USED}) AS used
        CROSS JOIN LATERAL ({SPENT.format(name="given.key", seconds="bounds.seconds")}) AS spent
    ) AS counted
)"""

_JUDGED = """fits AS (
    SELECT cand.*, task.name AS task_name, task.free AS task_free,
        row_number() OVER (PARTITION BY cand.task ORDER BY cand.priority DESC, cand.turn, cand.key) AS of_task
    FROM cand LEFT JOIN above AS task ON task.name = 'task:' || cand.task
), judged AS MATERIALIZED (
    SELECT fits.*, CASE WHEN task_name IS NOT NULL AND of_task > task_free THEN task_name
        WHEN queue.name IS NOT NULL AND count(*) FILTER (WHERE task_name IS NULL OR of_task <= task_free)
            OVER (ORDER BY priority DESC, turn, key ROWS UNBOUNDED PRECEDING) > queue.free THEN queue.name END AS blocked_by
    FROM fits LEFT JOIN above AS queue ON queue.name = 'queue:' || %(queue)s
), pick AS MATERIALIZED (
    SELECT id, key, task FROM judged WHERE blocked_by IS NULL ORDER BY priority DESC, turn, key LIMIT %(k)s
)"""

_TAKEN_JUDGED = """taken AS MATERIALIZED (
    SELECT k.*, coalesce(c.found, 0) AS found, coalesce(p.taken, 0) AS taken,
        k.mine - coalesce(c.blocked, 0) AS fits, coalesce(c.blocked, 0) AS blocked
    FROM k LEFT JOIN (
        SELECT key, count(*) FILTER (WHERE blocked_by IS NULL)::int AS found,
            count(*) FILTER (WHERE blocked_by IS NOT NULL)::int AS blocked FROM judged GROUP BY key
    ) AS c ON c.key = k.key
    LEFT JOIN (SELECT key, count(*)::int AS taken FROM pick GROUP BY key) AS p ON p.key = k.key
)"""

# The keys whose rows were read but do not fit under a limit above.
_PARK = """park AS (
    INSERT INTO {s}.leasequeue_wake (queue, key, due_at, parked)
    SELECT DISTINCT ON (j.key) %(queue)s, j.key,
        CASE WHEN NOT a.held THEN clock_timestamp() + interval '20 ms'
            WHEN a.rate <= a.spent + (SELECT count(*) FROM pick
                    WHERE a.name IN ('task:' || pick.task, 'queue:' || %(queue)s))
                THEN coalesce(a.first_start, clock_timestamp()) + a.seconds * interval '1 second' + interval '1 ms'
            ELSE clock_timestamp() + interval '5 s' END,
        CASE WHEN a.held THEN a.name END
    FROM judged AS j JOIN above AS a ON a.name = j.blocked_by ORDER BY j.key, j.turn
)"""

_AFTER_RATE = """rated AS (
    INSERT INTO {s}.leasequeue_wake (queue, key, due_at)
    SELECT %(queue)s, t.key, coalesce(t.first_start, clock_timestamp()) + t.seconds * interval '1 second' + interval '1 ms'
    FROM taken AS t WHERE t.rate <= t.spent + t.taken
)"""

# Of this queue and of the others as many as there is room for: one that is woken for nothing is parked again, and one of a
# queue that nobody serves takes the place of none.
_UNPARK = """room AS MATERIALIZED (
    SELECT a.name, greatest(0, a.free - (SELECT count(*) FROM pick
        WHERE a.name IN ('task:' || pick.task, 'queue:' || %(queue)s))) AS free FROM above AS a
), unpark AS (
    UPDATE {s}.leasequeue_wake SET parked = NULL, due_at = clock_timestamp(), given = true WHERE id = ANY(
        ARRAY(SELECT w.id FROM taken AS t JOIN {s}.leasequeue_wake AS w ON w.parked = t.key
            WHERE t.free > 0 AND t.others > 0 AND w.queue <> %(queue)s FOR UPDATE OF w SKIP LOCKED)
        || ARRAY(SELECT w.id FROM room CROSS JOIN LATERAL (
            SELECT id FROM {s}.leasequeue_wake WHERE parked = room.name AND queue = %(queue)s
            ORDER BY id LIMIT room.free FOR UPDATE SKIP LOCKED) AS w)
        || ARRAY(SELECT w.id FROM room CROSS JOIN LATERAL (
            SELECT id FROM {s}.leasequeue_wake WHERE parked = room.name AND queue <> %(queue)s
            ORDER BY id LIMIT room.free FOR UPDATE SKIP LOCKED) AS w))
)"""

_NOTE = """admitted AS (
    INSERT INTO {s}.leasequeue_admission (name, at, count, until)
    SELECT t.key, clock_timestamp(), t.taken, clock_timestamp() + 2 * t.seconds * interval '1 second' FROM taken AS t
    WHERE t.rate IS NOT NULL AND t.taken > 0 AND NOT t.key = ANY(%(above)s::text[])
    UNION ALL SELECT a.name, clock_timestamp(), count(*), clock_timestamp() + 2 * a.seconds * interval '1 second'
    FROM above AS a JOIN pick ON a.name IN ('task:' || pick.task, 'queue:' || %(queue)s)
    WHERE a.rate IS NOT NULL GROUP BY a.name, a.seconds
), old AS (
    DELETE FROM {s}.leasequeue_admission WHERE id = ANY(ARRAY(
        SELECT a.id FROM {s}.leasequeue_admission AS a
        JOIN (SELECT key AS name, seconds FROM k UNION ALL SELECT name, seconds FROM above) AS r ON r.name = a.name
        WHERE a.at < clock_timestamp() - 2 * r.seconds * interval '1 second' LIMIT 200 FOR UPDATE OF a SKIP LOCKED))
)"""

_ADMIT_UNDER = (
    f"WITH {GIVEN}, {LANES}, {_ABOVE}, {_KEYS}, {CANDIDATES}, {_JUDGED}, {_TAKEN_JUDGED}, {SOON}, {_PARK}, "
    f"{_AFTER_RATE}, {_UNPARK}, {_NOTE}, {LEASE}"
)


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement for one schema; parameters are named in the texts above."""
    return fill(schema, {"admit_under": _ADMIT_UNDER})
