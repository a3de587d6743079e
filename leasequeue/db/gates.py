"""The statements by which jobs pass a gate: limits on how many run at once, how many start in a span, and whose turn it is.

A job under a limit waits in state ``g`` and is never in the index of ready jobs, so however many wait, the others pay nothing
for them. What makes it runnable (its enqueue, a slot that becomes free, a token of a rate) inserts a **wake**, a row
``(queue, due_at, key)``, in its own transaction: nothing is updated, so nothing waits. A claim at the gate is one READ
COMMITTED transaction of two statements::

    take_wakes   takes due wakes of the queue, and for each of their keys the row of its **bucket** (the hash of the key)
    admit        in a new snapshot: counts what runs under each key, leases what still fits, and leaves the wakes that are
                 needed after that

Two statements, because the count must see whatever the last holder of the bucket committed: in the snapshot of the first it
would be one short, and one job too many would run. There is no counter: what is in use is what is leased.

Nothing here waits for a lock. A bucket that somebody else holds puts its wake off by 20 ms; a waiting row that somebody else
has locked leaves a wake for a little later. A wake that was consumed is therefore replaced whenever something could still be
done for its key::

    more rows may fit                  a wake that is due now
    a row was locked by somebody       in 100 ms
    the rate is used up                when its oldest start leaves the window
    a limit above (of the task or the queue) is used up,
    or another queue runs under this key                        **parked** under that name: whoever next finds room under
                                                                it unparks it; due by itself in 5 s
    the limit is 0, so that no end of a job will wake the key  in 30 s
    a hot key was read from its floor and gave less than fits   in 1 s, to read the whole key once

Who takes a wake for the whole key reads the limits again before the second statement: those of ``db/limits.py``, which a
change of a limit leaves, are of that kind.

Where the end of a job and the claim of the next one of its key are one transaction (``succeed_before_next``, then
``admit_one``), the bucket is taken with the end, and there is no wake between the two.

A key that is used in several queues is handed on between them: who finds another queue parked under it lets that one go first,
by a wake that says so (``given``) and is not handed on again.

Under a held snapshot dead index entries pile up at the head of each of these indexes. The wakes have a floor and a ladder as
the lanes of ready jobs do (``worker/floor.py``); a hot key has a floor for its rows, and one for the terms that are
counted: no job that runs under it can have a smaller term than the smallest that was seen while its bucket was held.

Locks: wakes, then buckets in id order, then jobs; with an end, its own job before the bucket; all with SKIP LOCKED.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from leasequeue.db import admission, admission_under
from leasequeue.db.admission_under import LEFT, RUNNING, SPENT
from leasequeue.db.jobs import CLAIMED, SUSPECT_NOW, TAKE_SUSPECT
from leasequeue.db.names import fill
from leasequeue.db.peek import PEEK_WAKES


# Which queues have a wake that is due: one look for all of them.
# What is read once is looked up by IN ... IS TRUE, in a hash table, and never joined: how many wakes are due is not in the
# statistics, and where the planner thinks that there is one, a join compares each with each (600 wakes: 160 ms instead of 8).
def _take_wakes(buckets: str) -> str:
    return f"""WITH w AS MATERIALIZED (
    SELECT id, key, due_at, whole, given, hashtext(key) & 16383 AS bucket FROM {{s}}.leasequeue_wake
    WHERE queue = %(queue)s AND due_at <= now() AND (due_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY due_at, id LIMIT %(scan)s FOR UPDATE SKIP LOCKED
), read AS MATERIALIZED (
    SELECT count(*)::int AS count, min(due_at) AS first_at, (array_agg(id))[1] AS first_id, max(due_at) AS last_at FROM w
), named AS MATERIALIZED (
    SELECT key, bool_or(whole) AS whole, bool_or(given) AS given, bucket FROM w GROUP BY key, bucket
    ORDER BY min(due_at), min(id) LIMIT %(most)s
), b AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_bucket WHERE id = ANY(ARRAY({buckets})) ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{s}}.leasequeue_wake WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS TRUE))
), late AS (
    UPDATE {{s}}.leasequeue_wake SET due_at = clock_timestamp() + interval '20 ms', parked = NULL WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS NOT TRUE))
), p AS MATERIALIZED (
    SELECT parked, count(DISTINCT queue)::int AS others FROM {{s}}.leasequeue_wake
    WHERE parked = ANY(ARRAY(SELECT key FROM named)) AND queue <> %(queue)s GROUP BY parked
)
SELECT key, whole, CASE WHEN given THEN 0 ELSE
        coalesce((SELECT others FROM p WHERE p.parked = named.key), 0) END,
    read.count, extract(epoch FROM read.first_at)::float8, read.first_id, extract(epoch FROM read.last_at)::float8
FROM named CROSS JOIN read WHERE (bucket IN (SELECT id FROM b)) IS TRUE"""


_TAKE_WAKES = _take_wakes("SELECT bucket FROM named")

# With the buckets of the limits above; those that were got come as rows without facts.
_TAKE_WAKES_UNDER = f"""{
    _take_wakes(
        "SELECT bucket FROM named UNION SELECT hashtext(name) & 16383 FROM unnest(%(above)s::text[]) AS above (name)"
    )
}
UNION ALL
SELECT above.name, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest(%(above)s::text[]) AS above (name) JOIN b ON b.id = hashtext(above.name) & 16383"""

# A suspect passes the gate too, alone: the bucket of each limit that it is under first, the count in a new snapshot then.
_TAKE_SUSPECT = f"""WITH q AS MATERIALIZED (
    SELECT id, queue, task, limit_key, limit_max, rate_max, rate_seconds FROM {{s}}.leasequeue_job
    WHERE state = 'q' AND limit_key IS NOT NULL AND NOT id = ANY(%(tried)s::bigint[]) AND {SUSPECT_NOW}
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
), names AS (
    SELECT limit_key AS name FROM q UNION SELECT 'task:' || task FROM q UNION SELECT 'queue:' || queue FROM q
), b AS (
    SELECT id FROM {{s}}.leasequeue_bucket WHERE id = ANY(ARRAY(SELECT hashtext(name) & 16383 FROM names))
    ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT q.id, q.queue, q.task, q.limit_key, q.limit_max, q.rate_max, q.rate_seconds,
    (SELECT count(*) FROM b) = (SELECT count(DISTINCT hashtext(name) & 16383) FROM names)
FROM q"""

_ADMIT_SUSPECT = f"""WITH under AS MATERIALIZED (
    SELECT n.name, n.rate, n.seconds,
        {LEFT.format(running="n.running", used="used.used", rate="n.rate", spent="spent.spent")} AS free
    FROM unnest(%(names)s::text[], %(running)s::int[], %(rates)s::int[], %(seconds)s::float8[])
        AS n (name, running, rate, seconds)
    CROSS JOIN LATERAL (SELECT (CASE WHEN n.name = %(key)s THEN
            (SELECT count(*) FROM {{s}}.leasequeue_job WHERE holder IS NOT NULL AND limit_key = n.name)
        ELSE ({RUNNING.format(name="n.name")}) END)::int AS used) AS used
    CROSS JOIN LATERAL ({SPENT.format(name="n.name", seconds="n.seconds")}) AS spent
), admitted AS (
    INSERT INTO {{s}}.leasequeue_admission (name, at, count, until)
    SELECT name, clock_timestamp(), 1, clock_timestamp() + 2 * seconds * interval '1 second' FROM under
    WHERE rate IS NOT NULL AND NOT EXISTS (SELECT FROM under WHERE free <= 0)
)
{TAKE_SUSPECT} WHERE id = ANY(ARRAY(SELECT %(id)s::bigint WHERE NOT EXISTS (SELECT FROM under WHERE free <= 0))) AND state = 'q'
{CLAIMED}"""

# Keys whose jobs wait, have been due for a while, and have no wake that is due soon, in the order of the index, from behind a
# place. They are woken; the first row says how far this has come (NULL: to the end). Where something runs under the key, or a
# rate may have put its wake off, that is most likely as it should be: such a key is woken now and then all the same, since a
# look costs little, but nothing is said of it. A far wake alone says nothing: it may be another job's, of a clock that went
# wrong, or of a job that somebody has moved.
# Wakes have no index by key, and may be many or none whatever the statistics say: grouped, they are read once in any plan.
_WAKE_UNWOKEN = """WITH RECURSIVE walk AS (
    SELECT first.*, 1 AS n FROM (
        SELECT limit_key AS key, queue FROM {s}.leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (%(key)s::text, %(queue)s::text) ORDER BY limit_key, queue LIMIT 1
    ) AS first
    UNION ALL
    SELECT next.*, walk.n + 1 FROM walk CROSS JOIN LATERAL (
        SELECT limit_key, queue FROM {s}.leasequeue_job
        WHERE state = 'g' AND (limit_key, queue) > (walk.key, walk.queue) ORDER BY limit_key, queue LIMIT 1
    ) AS next WHERE walk.n < %(look)s
), waiting AS MATERIALIZED (
    SELECT key, queue FROM walk
    WHERE EXISTS (SELECT FROM {s}.leasequeue_job AS job WHERE job.limit_key = walk.key AND job.queue = walk.queue
            AND job.state = 'g' AND job.available_at < now() - %(seconds)s * interval '1 second')
), unwoken AS MATERIALIZED (
    SELECT key, queue FROM (
        SELECT key, queue, false AS wakes FROM waiting UNION ALL
        SELECT key, queue, true FROM {s}.leasequeue_wake
        WHERE key BETWEEN (SELECT min(key) FROM waiting) AND (SELECT max(key) FROM waiting)
            AND due_at < now() + %(soon)s * interval '1 second'
    ) AS each GROUP BY key, queue HAVING NOT bool_or(wakes)
), judged AS MATERIALIZED (
    SELECT key, queue,
        EXISTS (SELECT FROM {s}.leasequeue_job AS job WHERE job.limit_key = unwoken.key AND job.holder IS NOT NULL)
        OR EXISTS (SELECT FROM {s}.leasequeue_job AS job WHERE job.state = 'q' AND job.limit_key = unwoken.key)
        OR EXISTS (SELECT FROM {s}.leasequeue_admission AS one WHERE one.until > now()
            AND (one.name IN (unwoken.key, 'queue:' || unwoken.queue) OR one.name LIKE 'task:%%')) AS busy
    FROM unwoken
), woken AS MATERIALIZED (
    SELECT key, queue, busy FROM judged WHERE NOT busy OR random() < %(chance)s
), w AS (
    INSERT INTO {s}.leasequeue_wake (queue, key, whole) SELECT queue, key, true FROM woken
)
SELECT max(key) FILTER (WHERE n = %(look)s), max(queue) FILTER (WHERE n = %(look)s) FROM walk
UNION ALL
SELECT key, queue FROM woken WHERE NOT busy"""

# Every rule, for a claimer that keeps them in mind for a second.
_RULES = "SELECT name, declared, max_running, rate_max, rate_seconds FROM {s}.leasequeue_limit"

# A host's tests may truncate every table between them; the rows of the buckets come back.
_FILL_BUCKETS = """INSERT INTO {s}.leasequeue_bucket (id) SELECT generate_series(0, 16383)
WHERE (SELECT count(*) FROM {s}.leasequeue_bucket) < 16384 ON CONFLICT DO NOTHING"""


class GateStatements(NamedTuple):
    """The statements for one schema, ready for ``Link``. Parameters are named in the texts above."""

    peek_wakes: str
    take_wakes: str
    take_wakes_under: str
    admit: str
    admit_one: str
    admit_next: str
    leave_wake: str
    succeed_before_next: str
    admit_under: str
    take_suspect: str
    admit_suspect: str
    wake_unwoken: str
    rules: str
    fill_buckets: str


@cache
def gate_statements(schema: str) -> GateStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    return GateStatements(**statements(schema), **admission.statements(schema), **admission_under.statements(schema))


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each of those that stand here."""
    texts = {
        "peek_wakes": PEEK_WAKES, "take_wakes": _TAKE_WAKES, "take_wakes_under": _TAKE_WAKES_UNDER,
        "take_suspect": _TAKE_SUSPECT, "admit_suspect": _ADMIT_SUSPECT, "wake_unwoken": _WAKE_UNWOKEN, "rules": _RULES,
        "fill_buckets": _FILL_BUCKETS,
    }  # fmt: skip
    return fill(schema, texts)
