"""What may start of the keys whose buckets are held, where no rate and no limit above the keys counts (``db/gates.py``).

Each statement counts what runs under each key, leases what still fits, and leaves the wakes that are needed after that.

What is due is judged by the time of the statement, when the buckets are held, not by ``now()`` of the transaction: whoever held
a bucket between the two may have taken the wake of a job that came meanwhile, and would be the last to look at it.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.jobs import CHILDLESS, CLAIMED, ENDED, HISTORY, LOCKED, TAKE
from leasequeue.db.names import fill

GIVEN = """given AS MATERIALIZED (
    SELECT * FROM unnest(%(keys)s::text[], %(running)s::int[], %(priorities)s::smallint[], %(floors)s::float8[],
        %(floor_ids)s::bigint[], %(terms)s::bigint[], %(others)s::int[], %(rates)s::int[], %(seconds)s::float8[],
        %(quotas)s::int[]) AS given (key, running, priority, floor_at, floor_id, term, others, rate, seconds, quota)
)"""


# What runs under the key, over all queues, and what waits to be run alone, which is next; the smallest term of it; how much of
# it in other queues. A sequence that is behind a term that was seen says that the database is another one by now (behind a
# pooler a failover breaks no connection).
def _used(key: str, term: str) -> str:
    return f"""SELECT (count(*) + (SELECT count(*) FROM {{s}}.leasequeue_job
                WHERE state = 'q' AND limit_key = {key} AND queue = %(queue)s))::int AS used,
            min(term) AS oldest, count(*) FILTER (WHERE queue <> %(queue)s)::int AS elsewhere
        FROM {{s}}.leasequeue_job WHERE holder IS NOT NULL AND limit_key = {key}
            AND term >= CASE WHEN {term} > 0 AND (SELECT last_value FROM {{s}}.leasequeue_term) >= %(term)s
                THEN {term} ELSE 0 END"""


USED = _used("given.key", "given.term")

# Each priority that is in use is read by itself, in the order of the index; where the floor is of that priority, from there.
_FROM_FLOOR = """(available_at, id) >= (
            CASE WHEN lane.priority = k.priority THEN to_timestamp(k.floor_at) ELSE '-infinity' END,
            CASE WHEN lane.priority = k.priority THEN k.floor_id ELSE 0 END)"""
_WAITING = f"""limit_key = k.key AND queue = %(queue)s AND priority = lane.priority AND state = 'g'
          AND available_at <= statement_timestamp() AND {_FROM_FLOOR}"""
LANES = """lane AS MATERIALIZED (
    SELECT priority FROM {s}.leasequeue_lane WHERE queue = %(queue)s AND priority <> 0 UNION SELECT 0::smallint
    ORDER BY priority DESC
)"""

# A row that brings a limit along is held to it where no rule says another for its key.
CANDIDATES = f"""cand AS MATERIALIZED (
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
            WHERE limit_key = t.key AND queue = %(queue)s AND state = 'g' AND available_at <= statement_timestamp()
            OFFSET t.taken)"""

SOON = f"""soon AS (
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

LEASE = f"""u AS (
    {TAKE}
    WHERE id = ANY(ARRAY(SELECT id FROM pick)) {CLAIMED}, limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest FROM u JOIN k ON k.key = u.limit_key"""

_UNRATED = "FROM (SELECT * FROM taken WHERE key NOT IN (SELECT key FROM rated)) AS t"

# No rate among the keys, no limit above them, no other queue parked under them. A key whose rows bring a rate is left as it
# was, and comes back as a row without an id: it is for the next statement.
_ADMIT = f"""WITH {GIVEN}, {LANES}, k AS MATERIALIZED (
    SELECT given.*, used.*, coalesce(given.running, 2147483647) - used.used AS mine
    FROM given CROSS JOIN LATERAL ({USED}) AS used
), {CANDIDATES}, pick AS MATERIALIZED (
    SELECT cand.id, cand.key FROM cand JOIN k ON k.key = cand.key
    WHERE cand.rate_max IS NULL AND cand.turn <= coalesce(k.running, cand.limit_max, 2147483647) - k.used
    ORDER BY cand.priority DESC, cand.turn LIMIT %(k)s
), rated AS MATERIALIZED (
    SELECT DISTINCT key FROM cand WHERE rate_max IS NOT NULL
), {_TAKEN}, {SOON.replace("FROM taken AS t", _UNRATED)}, {LEASE}
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, key, NULL, NULL, NULL, NULL
FROM rated"""


# The same for one key, where the queue has no priority but 0. A serial key has a transaction for each of its jobs, and most of
# what that costs is the planning of this. A row comes back in any case, with what it takes to say whether a wake is to be left;
# that is seldom so, and a statement of its own.
_ADMIT_ONE = f"""WITH k AS MATERIALIZED (
    SELECT used.*, EXISTS (SELECT FROM {{s}}.leasequeue_lane WHERE queue = %(queue)s AND priority <> 0) AS ranked
    FROM ({_used("%(key)s", "%(key_term)s::bigint")}) AS used
), cand AS MATERIALIZED (
    SELECT id, available_at, limit_max, rate_max FROM {{s}}.leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND priority = 0 AND state = 'g' AND available_at <= statement_timestamp()
      AND (available_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
    ORDER BY available_at, id
    LIMIT (SELECT CASE WHEN ranked THEN 0 ELSE greatest(0, least(%(running)s::int - used, %(quota)s)) END FROM k)
    FOR UPDATE SKIP LOCKED
), u AS (
    {TAKE}
    WHERE id = ANY(ARRAY(
        SELECT c.id FROM (
            SELECT id, limit_max, rate_max, row_number() OVER (ORDER BY available_at, id) AS turn FROM cand
        ) AS c WHERE c.rate_max IS NULL
            AND c.turn <= coalesce(%(running)s::int, c.limit_max, 2147483647) - (SELECT used FROM k))) {CLAIMED},
        limit_key, limit_max, rate_max, rate_seconds
)
SELECT u.*, k.oldest, k.ranked, k.used, k.elsewhere, c.*
FROM k CROSS JOIN (SELECT count(*)::int, max(limit_max), bool_or(rate_max IS NOT NULL) FROM cand) AS c LEFT JOIN u ON true"""

# The same for one job, where there is one to be had; otherwise nothing comes back, and ``admit_one`` has to say why.
_ADMIT_NEXT = f"""{TAKE}
FROM ({_used("%(key)s", "%(key_term)s::bigint")}) AS k
WHERE id = (
    SELECT id FROM {{s}}.leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND priority = 0 AND state = 'g' AND available_at <= statement_timestamp()
      AND (available_at, id) >= (to_timestamp(%(floor_at)s), %(floor_id)s)
      AND NOT EXISTS (SELECT FROM {{s}}.leasequeue_lane WHERE queue = %(queue)s AND priority <> 0)
    ORDER BY available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
  AND rate_max IS NULL AND k.used < coalesce(%(running)s::int, limit_max, 2147483647)
{CLAIMED}, limit_key, limit_max, rate_max, rate_seconds, k.oldest, k.used, k.elsewhere"""

# Where rows of the key may wait that were not leased. ``seen``: only where it is seen that some do.
_LEAVE_WAKE = """INSERT INTO {s}.leasequeue_wake (queue, key, due_at, parked, whole)
SELECT %(queue)s, %(key)s, clock_timestamp() + %(seconds)s * interval '1 second',
    CASE WHEN %(parked)s::boolean THEN %(key)s END, %(whole)s
WHERE NOT %(seen)s OR EXISTS (SELECT FROM {s}.leasequeue_job
    WHERE limit_key = %(key)s AND queue = %(queue)s AND state = 'g' AND available_at <= statement_timestamp())"""

# The first statement of a transaction in which the next job of a key takes the place of one that has succeeded: the end of that
# one, as ``db/jobs.py`` writes it, and the bucket of its key, instead of a wake that is taken again in a moment. ``next``: the
# second statement may be ``admit_one``. It may not where somebody else has the bucket, or where other queues wait for the key.
_SUCCEED_BEFORE_NEXT = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {ENDED}, limit_key
), b AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_bucket WHERE id = ANY(ARRAY(
        SELECT hashtext(limit_key) & 16383 FROM d WHERE limit_key IS NOT NULL)) ORDER BY id FOR UPDATE SKIP LOCKED
), freed AS MATERIALIZED (
    SELECT queue, limit_key, ((hashtext(limit_key) & 16383) IN (SELECT id FROM b)) IS TRUE
        AND NOT EXISTS (SELECT FROM {{s}}.leasequeue_wake WHERE parked = limit_key) AS next
    FROM d WHERE limit_key IS NOT NULL GROUP BY queue, limit_key
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key) SELECT queue, limit_key FROM freed WHERE NOT next
), f AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, result)
    SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
        r.result::jsonb
    FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[], %(kept)s::boolean[]) AS r (id, result, kept) ON r.id = d.id
    WHERE r.kept
)
SELECT d.id, d.queue, d.limit_key, coalesce(freed.next, false)
FROM d LEFT JOIN freed ON freed.queue = d.queue AND freed.limit_key = d.limit_key"""


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement for one schema; parameters are named in the texts above."""
    texts = {
        "admit": _ADMIT, "admit_one": _ADMIT_ONE, "admit_next": _ADMIT_NEXT, "leave_wake": _LEAVE_WAKE,
        "succeed_before_next": _SUCCEED_BEFORE_NEXT,
    }  # fmt: skip
    return fill(schema, texts)
