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

A key that is used in several queues is handed on between them: who finds another queue parked under it lets that one go first,
by a wake that says so (``given``) and is not handed on again.

Under a held snapshot dead index entries pile up at the head of each of these indexes. The wakes have a floor and a ladder as
the lanes of ready jobs do (``worker/floor.py``); a hot key has a floor for its rows, and one for the terms that are
counted: no job that runs under it can have a smaller term than the smallest that was seen while its bucket was held.

Locks: wakes, then buckets in id order, then jobs; all with SKIP LOCKED.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from leasequeue.db.jobs import CLAIMED, SUSPECT_NOW, TAKE, TAKE_SUSPECT
from leasequeue.db.names import qualify

# Which queues have a wake that is due: one look for all of them.
_PEEK_WAKES = """SELECT lane.queue
FROM unnest(%(queues)s::text[], %(floors)s::float8[], %(floor_ids)s::bigint[]) AS lane (queue, floor_at, floor_id)
WHERE EXISTS (
    SELECT FROM {s}.leasequeue_wake AS wake
    WHERE wake.queue = lane.queue AND wake.due_at <= now()
      AND (wake.due_at, wake.id) >= (to_timestamp(lane.floor_at), lane.floor_id)
    ORDER BY wake.due_at, wake.id LIMIT 1)"""

# What is read once is looked up by IN ... IS TRUE, in a hash table, and never joined: how many wakes are due is not in the
# statistics, and where the planner thinks that there is one, a join compares each with each (600 wakes: 160 ms instead of 8).
_TAKE_WAKES = """WITH w AS MATERIALIZED (
    SELECT id, key, due_at, whole, given, hashtext(key) & 16383 AS bucket FROM {s}.leasequeue_wake
    WHERE queue = %(queue)s AND due_at <= now() AND (due_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY due_at, id LIMIT %(scan)s FOR UPDATE SKIP LOCKED
), named AS MATERIALIZED (
    SELECT key, bool_or(whole) AS whole, bool_or(given) AS given, bucket FROM w GROUP BY key, bucket
    ORDER BY min(due_at), min(id) LIMIT %(most)s
), b AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_bucket WHERE id = ANY(ARRAY(
        SELECT bucket FROM named UNION SELECT hashtext(name) & 16383 FROM unnest(%(above)s::text[]) AS above (name)))
    ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {s}.leasequeue_wake WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS TRUE))
), late AS (
    UPDATE {s}.leasequeue_wake SET due_at = clock_timestamp() + interval '20 ms', parked = NULL WHERE id = ANY(ARRAY(
        SELECT id FROM w WHERE (key IN (SELECT key FROM named)) IS TRUE AND (bucket IN (SELECT id FROM b)) IS NOT TRUE))
), p AS MATERIALIZED (
    SELECT parked, count(DISTINCT queue)::int AS others FROM {s}.leasequeue_wake
    WHERE parked = ANY(ARRAY(SELECT key FROM named)) AND queue <> %(queue)s GROUP BY parked
)
SELECT key, whole, CASE WHEN given THEN 0 ELSE coalesce((SELECT others FROM p WHERE p.parked = named.key), 0) END,
    (SELECT count(*)::int FROM w),
    (SELECT extract(epoch FROM min(due_at))::float8 FROM w), (SELECT id FROM w ORDER BY due_at, id LIMIT 1),
    (SELECT extract(epoch FROM max(due_at))::float8 FROM w)
FROM named WHERE (bucket IN (SELECT id FROM b)) IS TRUE
UNION ALL
SELECT above.name, NULL, NULL, NULL, NULL, NULL, NULL
FROM unnest(%(above)s::text[]) AS above (name) JOIN b ON b.id = hashtext(above.name) & 16383"""

_GIVEN = """given AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(running)s::int[], %(priorities)s::smallint[], %(floors)s::float8[],
        %(floor_ids)s::bigint[], %(terms)s::bigint[], %(others)s::int[], %(rates)s::int[], %(seconds)s::float8[],
        %(quotas)s::int[]) AS given (key, running, priority, floor_at, floor_id, term, others, rate, seconds, quota)
)"""

# What runs under the key, over all queues, and what waits to be run alone, which is next; the smallest term of it; how much of
# it in other queues. A sequence that is behind a term that was seen says that the database is another one by now (behind a
# pooler a failover breaks no connection).
_USED = """SELECT (count(*) + (SELECT count(*) FROM {s}.leasequeue_job
                WHERE state = 'q' AND limit_key = given.key AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM {s}.leasequeue_job WHERE holder IS NOT NULL AND limit_key = given.key
            AND term >= CASE WHEN given.term > 0 AND (SELECT last_value FROM {s}.leasequeue_term) >= %(term)s
                THEN given.term ELSE 0 END"""

# Each priority that is in use is read by itself, in the order of the index; where the floor is of that priority, from there.
_FROM_FLOOR = """(available_at, id) >= (
            CASE WHEN lane.priority = k.priority THEN to_timestamp(k.floor_at) ELSE '-infinity' END,
            CASE WHEN lane.priority = k.priority THEN k.floor_id ELSE 0 END)"""
_WAITING = f"""limit_key = k.key AND queue = %(queue)s AND priority = lane.priority AND state = 'g'
          AND available_at <= now() AND {_FROM_FLOOR}"""
_LANES = """lane AS MATERIALIZED (
    SELECT priority FROM {s}.leasequeue_lane WHERE queue = %(queue)s AND priority <> 0 UNION SELECT 0::smallint
    ORDER BY priority DESC
)"""

# A row that brings a limit along is held to it where no rule says another for its key.
_CANDIDATES = f"""cand AS MATERIALIZED (
    SELECT k.key, one.id, one.task, one.priority, one.limit_max, one.rate_max, one.rate_seconds,
        row_number() OVER (PARTITION BY k.key ORDER BY one.priority DESC, one.available_at, one.id) AS turn
    FROM k CROSS JOIN LATERAL (
        SELECT job.id, job.task, lane.priority, job.available_at, job.limit_max, job.rate_max, job.rate_seconds
        FROM lane CROSS JOIN LATERAL (
            SELECT id, task, available_at, limit_max, rate_max, rate_seconds FROM {{s}}.leasequeue_job WHERE {_WAITING}
            ORDER BY available_at, id LIMIT greatest(0, least(k.mine, k.quota)) FOR UPDATE SKIP LOCKED
        ) AS job LIMIT greatest(0, least(k.mine, k.quota))
    ) AS one
)"""

_TAKEN = """taken AS MATERIALIZED (
    SELECT k.*, coalesce(c.found, 0) AS found, coalesce(p.taken, 0) AS taken,
        least(k.mine, coalesce(k.running, c.limit_max, 2147483647) - k.used) AS fits, 0 AS blocked
    FROM k LEFT JOIN (
        SELECT key, count(*)::int AS found, max(limit_max) AS limit_max FROM cand GROUP BY key
    ) AS c ON c.key = k.key
    LEFT JOIN (SELECT key, count(*)::int AS taken FROM pick GROUP BY key) AS p ON p.key = k.key
)"""

# Whether rows wait that this statement did not lease: locked by somebody, or beyond what fits. It is not asked where a limit
# above the key has blocked some: the key is parked there, and to look before there is room would only park it once more.
_MORE_WAIT = """EXISTS (SELECT FROM {s}.leasequeue_job
            WHERE limit_key = t.key AND queue = %(queue)s AND state = 'g' AND available_at <= now() OFFSET t.taken)"""

_SOON = f"""soon AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at, parked, whole)
    SELECT %(queue)s, t.key,
        CASE WHEN t.taken < least(t.fits, t.found) OR (t.taken = t.quota AND t.fits > t.taken) THEN clock_timestamp()
            WHEN t.fits > t.taken AND t.floor_at > '-infinity' THEN clock_timestamp() + interval '1 s'
            WHEN t.fits > t.taken AND t.blocked = 0 THEN clock_timestamp() + interval '100 ms'
            WHEN t.used = 0 AND t.fits <= 0 AND t.others = 0 THEN clock_timestamp() + interval '30 s'
            ELSE clock_timestamp() + interval '5 s' END,
        CASE WHEN t.fits <= t.taken THEN t.key END,
        t.found < t.quota AND t.fits > t.taken AND t.floor_at > '-infinity'
    FROM taken AS t
    WHERE t.taken < least(t.fits, t.found) OR (t.taken = t.quota AND t.fits > t.taken)
        OR (t.fits > t.taken AND t.floor_at > '-infinity')
        OR ((t.elsewhere > 0 OR t.others > 0 OR (t.fits > t.taken AND t.blocked = 0) OR (t.used = 0 AND t.fits <= 0))
            AND {_MORE_WAIT})
)"""

_LEASE = f"""u AS (
    {TAKE}
    WHERE id = ANY(ARRAY(SELECT id FROM pick)) {CLAIMED}, limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest FROM u JOIN k ON k.key = u.limit_key"""

_UNRATED = "FROM (SELECT * FROM taken WHERE key NOT IN (SELECT key FROM rated)) AS t"

# No rate among the keys, no limit above them, no other queue parked under them. A key whose rows bring a rate is left as it
# was, and comes back as a row without an id: it is for the next statement.
_ADMIT = f"""WITH {_GIVEN}, {_LANES}, k AS MATERIALIZED (
    SELECT given.*, used.*, coalesce(given.running, 2147483647) - used.used AS mine
    FROM given CROSS JOIN LATERAL ({_USED}) AS used
), {_CANDIDATES}, pick AS MATERIALIZED (
    SELECT cand.id, cand.key FROM cand JOIN k ON k.key = cand.key
    WHERE cand.rate_max IS NULL AND cand.turn <= coalesce(k.running, cand.limit_max, 2147483647) - k.used
    ORDER BY cand.priority DESC, cand.turn LIMIT %(k)s
), rated AS MATERIALIZED (
    SELECT DISTINCT key FROM cand WHERE rate_max IS NOT NULL
), {_TAKEN}, {_SOON.replace("FROM taken AS t", _UNRATED)}, {_LEASE}
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, key, NULL, NULL, NULL, NULL
FROM rated"""


# With rates, limits above the keys, or other queues that wait for the same keys.

_SPENT = """SELECT coalesce(sum(start.count), 0)::int AS spent, min(start.at) AS first_start
        FROM {{s}}.leasequeue_admission AS start
        WHERE start.name = {name} AND start.at > clock_timestamp() - {seconds} * interval '1 second'"""

# What runs under a limit on a whole task or queue.
_RUNNING = """SELECT count(*)::int AS used FROM {{s}}.leasequeue_job
        WHERE holder IS NOT NULL AND limit_key IS NOT NULL
            AND CASE WHEN {name} LIKE 'task:%%' THEN task = substr({name}, 6) ELSE queue = substr({name}, 7) END"""

_LEFT = """greatest(0, least(coalesce({running}, 2147483647) - {used}, coalesce({rate} - {spent}, 2147483647)))"""

_ABOVE = f"""above AS MATERIALIZED (
    SELECT a.name, a.rate, a.seconds, spent.spent, spent.first_start, a.held,
        CASE WHEN a.held THEN {_LEFT.format(running="a.running", used="used.used", rate="a.rate", spent="spent.spent")}
            ELSE 0 END AS free
    FROM unnest(%(above)s::text[], %(held)s::boolean[], %(above_running)s::int[], %(above_rates)s::int[],
        %(above_seconds)s::float8[]) AS a (name, held, running, rate, seconds)
    CROSS JOIN LATERAL ({_RUNNING.format(name="a.name")}) AS used
    CROSS JOIN LATERAL ({_SPENT.format(name="a.name", seconds="a.seconds")}) AS spent
)"""

# A key that has the name of a limit above it (task:NAME) has its rate counted there.
_KEYS = f"""k AS MATERIALIZED (
    SELECT counted.*, CASE WHEN others > 0 THEN greatest(0, free - others) ELSE free END AS mine
    FROM (
        SELECT given.key, given.priority, given.floor_at, given.floor_id, given.term, given.others, given.quota,
            bounds.running, bounds.rate, bounds.seconds, used.*, spent.spent, spent.first_start,
            {_LEFT.format(running="bounds.running", used="used.used", rate="bounds.rate", spent="spent.spent")} AS free
        FROM given LEFT JOIN LATERAL (
            SELECT limit_max, rate_max, rate_seconds FROM {{s}}.leasequeue_job AS job
            WHERE job.limit_key = given.key AND job.queue = %(queue)s AND job.state = 'g' AND job.available_at <= now()
            ORDER BY job.priority DESC, job.available_at, job.id LIMIT 1
        ) AS head ON true
        CROSS JOIN LATERAL (SELECT coalesce(given.running, head.limit_max) AS running,
            CASE WHEN given.key = ANY(%(above)s::text[]) THEN NULL ELSE coalesce(given.rate, head.rate_max) END AS rate,
            CASE WHEN given.rate IS NULL THEN head.rate_seconds ELSE given.seconds END AS seconds) AS bounds
        CROSS JOIN LATERAL ({_USED}) AS used
        CROSS JOIN LATERAL ({_SPENT.format(name="given.key", seconds="bounds.seconds")}) AS spent
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
    f"WITH {_GIVEN}, {_LANES}, {_ABOVE}, {_KEYS}, {_CANDIDATES}, {_JUDGED}, {_TAKEN_JUDGED}, {_SOON}, {_PARK}, "
    f"{_AFTER_RATE}, {_UNPARK}, {_NOTE}, {_LEASE}"
)

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
        {_LEFT.format(running="n.running", used="used.used", rate="n.rate", spent="spent.spent")} AS free
    FROM unnest(%(names)s::text[], %(running)s::int[], %(rates)s::int[], %(seconds)s::float8[])
        AS n (name, running, rate, seconds)
    CROSS JOIN LATERAL (SELECT (CASE WHEN n.name = %(key)s THEN
            (SELECT count(*) FROM {{s}}.leasequeue_job WHERE holder IS NOT NULL AND limit_key = n.name)
        ELSE ({_RUNNING.format(name="n.name")}) END)::int AS used) AS used
    CROSS JOIN LATERAL ({_SPENT.format(name="n.name", seconds="n.seconds")}) AS spent
), admitted AS (
    INSERT INTO {{s}}.leasequeue_admission (name, at, count, until)
    SELECT name, clock_timestamp(), 1, clock_timestamp() + 2 * seconds * interval '1 second' FROM under
    WHERE rate IS NOT NULL AND NOT EXISTS (SELECT FROM under WHERE free <= 0)
)
{TAKE_SUSPECT} WHERE id = ANY(ARRAY(SELECT %(id)s::bigint WHERE NOT EXISTS (SELECT FROM under WHERE free <= 0))) AND state = 'q'
{CLAIMED}"""

# Every rule, for a claimer that keeps them in mind for a second.
_RULES = "SELECT name, declared, max_running, rate_max, rate_seconds FROM {s}.leasequeue_limit"

# A host's tests may truncate every table between them; the rows of the buckets come back.
_FILL_BUCKETS = """INSERT INTO {s}.leasequeue_bucket (id) SELECT generate_series(0, 16383)
WHERE (SELECT count(*) FROM {s}.leasequeue_bucket) < 16384 ON CONFLICT DO NOTHING"""


class GateStatements(NamedTuple):
    """The statements for one schema, ready for ``Link``. Parameters are named in the texts above."""

    peek_wakes: str
    take_wakes: str
    admit: str
    admit_under: str
    take_suspect: str
    admit_suspect: str
    rules: str
    fill_buckets: str


@cache
def gate_statements(schema: str) -> GateStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    quoted = qualify(schema)
    literal = f"{quoted}.leasequeue_term".replace("'", "''").replace("%", "%%")
    texts = {
        name: globals()[f"_{name.upper()}"].format(s=quoted.replace("%", "%%"), seq=literal)
        for name in GateStatements._fields
    }
    return GateStatements(**texts)


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return gate_statements(schema)._asdict()
