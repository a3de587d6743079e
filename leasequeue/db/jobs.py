"""The statements by which workers hold jobs. Each runs alone, in READ COMMITTED, on a connection of our own.

The states of a row::

    r ready ──claim──> l leased ──complete──> (finished)
    ^                  │ │ │
    │<──retry, release─┘ │ └──process died──> q suspect ──claim_suspect──> l
    └────sweep (expired)─┘                       └──bury (too often)──> (finished, failed)

Locks: every statement takes its rows in id order with SKIP LOCKED and waits for nobody, so no two of them can
deadlock, and an application that keeps a job's row locked (``complete(conn)``) delays no other job. A row that is
missing from a result is therefore *lost* only if :data:`READ_HELD` misses it too.

A job that passes a gate (``limit_key``) never becomes ready: it waits in state ``g`` and is claimed by ``db/gates.py``.
Whatever takes such a row off the state ``l``, or puts it to the gate, inserts a wake for its key in the same statement. A job
that has ``children`` is ended by ``db/ends.py`` alone.

Every write to a held row goes through one predicate, FENCE: state, holder and the pair (id, term). The pairs are
compared as pairs: two independent lists would let (1, 101) of an old claim pass for (1, 102). ``IS TRUE`` keeps that comparison
a lookup in a hash table; a join is what the planner makes of it otherwise, and where it thinks that few rows are held, one
that compares each row with each pair (2,000 ends: 300 ms instead of 20).

Times: ``now()`` where an index is searched, ``clock_timestamp()`` for a new expiry, both the database's.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from leasequeue.db.names import fill
from leasequeue.db.peek import PEEK

FENCE = (
    "id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder = %(me)s "
    "AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE"
)

CLAIMED = (
    "RETURNING id, term, task, args::text, attempt, abandoned, max_attempts, "
    "extract(epoch FROM available_at)::float8, priority, queue, cancel_requested_at IS NOT NULL, "
    "meta ->> 'tick', extract(epoch FROM start_by - clock_timestamp())::float8, "
    "CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')"
    "::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END"
)

# One term for a whole batch: nextval in a subselect runs once, and not at all when nothing is claimed. A key that is kept until
# the start stays in the row's meta, for the case that the job never starts (KEY_BACK); where there is none to keep, what an
# earlier attempt left there goes.
TAKE = (
    "UPDATE {s}.leasequeue_job SET state = 'l', holder = %(me)s, term = (SELECT nextval('{seq}')), "
    "expires_at = clock_timestamp() + %(ttl)s * interval '1 second', attempt = attempt + 1, claimed_at = clock_timestamp(), "
    "unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END, "
    "meta = CASE WHEN unique_until = 's' THEN coalesce(meta, '{{}}') - 'unique_key'"
    " || jsonb_strip_nulls(jsonb_build_object('unique_key', unique_key)) ELSE meta END"
)

# How far it was when its process died stays with a suspect until it runs again, or is buried.
TAKE_SUSPECT = f"{TAKE}, progress = NULL"

# A lane is one priority of a queue, read from its floor on. The inner LIMIT bounds each index scan, the outer one
# stops at k rows over all lanes, best first; rows are locked one at a time as they are pulled, so no lane is locked
# beyond what is taken.
_CLAIM = f"""{TAKE}
WHERE id = ANY(ARRAY(
    SELECT ready.id
    FROM unnest(%(priorities)s::smallint[], %(floors)s::float8[], %(floor_ids)s::bigint[])
        AS lane (priority, floor_at, floor_id)
    CROSS JOIN LATERAL (
        SELECT id FROM {{s}}.leasequeue_job
        WHERE queue = %(queue)s AND priority = lane.priority AND state = 'r' AND available_at <= now()
          AND (available_at, id) >= (to_timestamp(lane.floor_at), lane.floor_id)
        ORDER BY available_at, id LIMIT %(k)s FOR UPDATE SKIP LOCKED
    ) AS ready
    LIMIT %(k)s))
{CLAIMED}"""

# Not while its queue is paused, nor before the delay of one that was put back.
SUSPECT_NOW = """queue = ANY(%(queues)s::text[])
      AND available_at <= now() AND queue <> ALL (ARRAY(
        SELECT name FROM {s}.leasequeue_queue
        WHERE paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now())))"""

_CLAIM_SUSPECT = f"""{TAKE_SUSPECT}
WHERE id = ANY(ARRAY(
    SELECT id FROM {{s}}.leasequeue_job WHERE state = 'q' AND limit_key IS NULL AND {SUSPECT_NOW}
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED))
{CLAIMED}"""

_PEEK = PEEK

# The database's clock (what an empty scan that begins later has not seen is not older than that), the queues that are paused,
# and the priorities in use. Those that plain SQL wrote are found by asking for each of the 201, within a window of
# availability: never a walk over the dead entries of a whole priority.
_LANES = """SELECT extract(epoch FROM now())::float8, ARRAY(
    SELECT name FROM {s}.leasequeue_queue
    WHERE name = ANY(%(queues)s::text[]) AND paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > now())
), coalesce(array_agg(queue), '{{}}'), coalesce(array_agg(priority), '{{}}') FROM (
    SELECT queue, priority FROM {s}.leasequeue_lane WHERE queue = ANY(%(queues)s::text[])
    UNION
    SELECT q.queue, p.priority::smallint
    FROM unnest(%(queues)s::text[]) AS q (queue)
    CROSS JOIN generate_series(-100, 100) AS p (priority)
    WHERE %(probes)s::boolean AND (
        SELECT true FROM {s}.leasequeue_job AS job
        WHERE job.queue = q.queue AND job.priority = p.priority AND job.state = 'r' AND job.available_at <= now()
          AND job.available_at >= coalesce(now() - %(window)s::float8 * interval '1 second', '-infinity'::timestamptz)
        ORDER BY job.available_at, job.id LIMIT 1)
) AS lane"""

LOCKED = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR UPDATE SKIP LOCKED
)"""

# The same for what has never started, with the keys that it had until its start: of several with one key, the first.
_KEPT = "CASE WHEN unique_until = 's' THEN meta ->> 'unique_key' END AS key"
_OWN = "own AS MATERIALIZED (SELECT DISTINCT ON (key) id, key FROM k WHERE key IS NOT NULL ORDER BY key, id)"
_UNSTARTED = f"""WITH k AS MATERIALIZED (
    SELECT id, {_KEPT} FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR UPDATE SKIP LOCKED
), {_OWN}"""

KEY_WAIT = "100ms"
# Not where a live job has taken the key meanwhile. One that is being enqueued with it, in a transaction that goes on, cannot
# be seen: the update waits for that one, at most so long (local to the statement's own transaction), and fails; or fails
# with a unique violation. It is then run without the keys. The subselect runs for rows that had a key, and once.
_KEY_BACK = f"""unique_key = CASE WHEN job.unique_until = 's' AND %(keys)s::boolean
            AND (SELECT set_config('lock_timeout', '{KEY_WAIT}', true)) IS NOT NULL
        THEN (SELECT own.key FROM own WHERE own.id = job.id AND NOT EXISTS (
            SELECT FROM {{s}}.leasequeue_job AS other WHERE other.unique_key = own.key))
        ELSE job.unique_key END"""

# Where a row goes that is not held any more, and the wake for its key: its slot is free, and it may wait for one itself.
_WAITS = "CASE WHEN limit_key IS NULL THEN 'r' ELSE 'g' END::\"char\""
_WAITS_BACK = "CASE WHEN limit_key IS NULL OR %(back)s <> 'r' THEN %(back)s ELSE 'g' END::\"char\""


def wake(freed: str) -> str:
    """A CTE that wakes the keys of the rows of another one, which returns ``queue`` and ``limit_key``."""
    return f"""w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM {freed} WHERE limit_key IS NOT NULL
)"""


# What a retry of a job from the history needs to know again.
_OPTIONS = """nullif(jsonb_strip_nulls(jsonb_build_object('priority', nullif(priority, 0), 'max_attempts', max_attempts,
        'limit_key', limit_key, 'limit_max', limit_max, 'rate_max', rate_max, 'rate_seconds', rate_seconds,
        'workflow', workflow)), '{{}}')"""

# What of ``meta`` is of the job that has ended, not of the one that is made of it by a retry.
OF_ITS_PAST = """ARRAY['put_back', 'returned', 'retried_as', 'skipped', 'progress', 'snoozed', 'cancel_requested_at',
            'cancel_requested_by', 'unique_key']"""

HISTORY = "id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at"
_OF_END = "id, queue, task, args, attempt, abandoned, created_at, claimed_at"
# That somebody asked for its end stays with a job, also where it has come to another one.
_ASKED = """CASE WHEN cancel_requested_at IS NULL THEN meta
        ELSE coalesce(meta, '{{}}') || jsonb_build_object('cancel_requested_at', cancel_requested_at) END"""
ENDED = f"{_OF_END}, {_ASKED} AS meta, term"
# How far it was says something of a job that has not succeeded.
_META = f"""CASE WHEN progress IS NULL THEN {_ASKED}
        ELSE coalesce({_ASKED}, '{{{{}}}}') || jsonb_build_object('progress', progress) END AS meta"""
FAILED = f"{_OF_END}, {_META}, term, limit_key, {_OPTIONS} AS options"
CHILDLESS = "id = ANY(ARRAY(SELECT id FROM k)) AND children IS NULL"

# What the history says of a job that was not started in time.
EXPIRED = "'Expired: it was to start by ' || to_char(start_by AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS') || 'Z'"

# And of one that was asked to stop, and whose attempt has then failed, was released or was lost: there is no other.
ASKED_BEFORE = "'Cancelled: on request, while it ran; that attempt has ended otherwise, and there is no other'"

_COMPLETE = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {ENDED}
)
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta)
SELECT id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta FROM d
RETURNING id"""

_COMPLETE_WITH_RESULTS = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {ENDED}
)
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, result)
SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
    r.result::jsonb
FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[]) AS r (id, result) ON r.id = d.id
RETURNING id"""

_COMPLETE_UNKEPT = f"""{LOCKED}
DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING id"""

# Of a job that passed a gate: its slot is free. Of a step of a workflow see db/ends.py.
_COMPLETE_LINKED = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {ENDED}, limit_key,
        CASE WHEN workflow IS NOT NULL THEN {_OPTIONS} END AS options
), {wake("d")}, f AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, result)
    SELECT d.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        r.result::jsonb
    FROM d JOIN unnest(%(ids)s::bigint[], %(results)s::text[], %(kept)s::boolean[]) AS r (id, result, kept) ON r.id = d.id
    WHERE r.kept
)
SELECT id FROM d"""

_ERRORS = (
    "unnest(%(ids)s::bigint[], %(delays)s::float8[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[]) "
    "AS e (id, delay, type, message, traceback)"
)

_RETRY = f"""{LOCKED}, u AS (
    UPDATE {{s}}.leasequeue_job AS job
    SET state = {_WAITS}, holder = NULL, expires_at = NULL, progress = NULL,
        available_at = clock_timestamp()
            + CASE WHEN job.cancel_requested_at IS NULL THEN e.delay ELSE 0 END * interval '1 second'
    FROM {_ERRORS}
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND e.id = job.id
    RETURNING job.id, job.attempt, job.queue, job.task, job.term, job.claimed_at, job.available_at,
        e.type, e.message, e.traceback, job.limit_key
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
INSERT INTO {{s}}.leasequeue_failure
    (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at, retry_at)
SELECT id, attempt, queue, task, type, message, traceback, %(worker)s, term, claimed_at, clock_timestamp(), available_at FROM u
RETURNING job_id"""

_FAIL = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {FAILED}
), {wake("d")}, e AS (
    SELECT * FROM {_ERRORS}
), f AS (
    INSERT INTO {{s}}.leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at)
    SELECT d.id, attempt, queue, task, type, message, traceback, %(worker)s, term, claimed_at, clock_timestamp()
    FROM d JOIN e ON e.id = d.id
)
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
SELECT d.id, queue, task, args, %(outcome)s, attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
    type || ': ' || message
FROM d JOIN e ON e.id = d.id
RETURNING id"""

# Claimed, and too late to be started: no attempt is spent on it.
_EXPIRE = f"""{LOCKED}, d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {FAILED}, start_by
), {wake("d")}
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
SELECT id, queue, task, args, 'expired', attempt - 1, abandoned, created_at, NULL, clock_timestamp(), meta, options, {EXPIRED}
FROM d RETURNING id"""

# Back untouched: what was claimed but never started has spent no attempt. A suspect goes back among the suspects.
_RELEASE = f"""{_UNSTARTED}, u AS (
    UPDATE {{s}}.leasequeue_job AS job SET state = {_WAITS_BACK}, holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        {_KEY_BACK}
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue, limit_key
), {wake("u")}
SELECT id FROM u"""

# Back for another release of the application: the delay doubles with each time, from half a second to a minute.
_PUT_BACK = f"""{_UNSTARTED}, u AS (
    UPDATE {{s}}.leasequeue_job AS job SET state = {_WAITS_BACK}, holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        {_KEY_BACK},
        available_at = clock_timestamp()
            + least(60, 0.5 * 2 ^ least(10, coalesce((meta ->> 'put_back')::int, 0))) * interval '1 second',
        meta = coalesce(meta, '{{{{}}}}') || jsonb_build_object('put_back', coalesce((meta ->> 'put_back')::int, 0) + 1)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue, limit_key, available_at
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u"""

# What was claimed as ready although a limit is on it (plain SQL wrote it, or the limit is newer) goes to its gate, unstarted.
_DIVERT = f"""{_UNSTARTED}, u AS (
    UPDATE {{s}}.leasequeue_job AS job SET state = 'g', holder = NULL, expires_at = NULL, attempt = attempt - 1,
        limit_key = d.key, limit_max = d.running, rate_max = d.rate, rate_seconds = d.seconds,
        {_KEY_BACK}
    FROM unnest(%(ids)s::bigint[], %(keys_of)s::text[], %(running)s::int[], %(rates)s::int[], %(seconds)s::float8[])
        AS d (id, key, running, rate, seconds)
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND d.id = job.id
    RETURNING job.id, job.queue, job.limit_key, job.priority
), {wake("u")}, lane AS (
    INSERT INTO {{s}}.leasequeue_lane (queue, priority) SELECT DISTINCT u.queue, u.priority FROM u
    WHERE u.priority <> 0 AND NOT EXISTS (
        SELECT FROM {{s}}.leasequeue_lane AS l WHERE l.queue = u.queue AND l.priority = u.priority)
)
SELECT id FROM u"""

# Its handler wants to be called again later. No attempt is spent; what waits behind its key goes on meanwhile. One that is to
# be cancelled comes at once: the claim sees it.
_SNOOZE = f"""{LOCKED}, u AS (
    UPDATE {{s}}.leasequeue_job AS job
    SET state = {_WAITS}, holder = NULL, expires_at = NULL, progress = NULL, attempt = attempt - 1,
        available_at = CASE WHEN job.cancel_requested_at IS NULL THEN greatest(clock_timestamp(),
            coalesce(e.until, clock_timestamp() + e.delay * interval '1 second')) ELSE clock_timestamp() END,
        meta = coalesce(job.meta, '{{{{}}}}')
            || jsonb_build_object('snoozed', coalesce((job.meta ->> 'snoozed')::int, 0) + 1)
    FROM unnest(%(ids)s::bigint[], %(delays)s::float8[], %(untils)s::timestamptz[]) AS e (id, delay, until)
    WHERE job.id = ANY(ARRAY(SELECT id FROM k)) AND e.id = job.id
    RETURNING job.id, job.queue, job.limit_key, job.available_at
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, clock_timestamp() FROM u WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM u WHERE limit_key IS NOT NULL
)
SELECT id FROM u"""

_RENEW = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {{s}}.leasequeue_job SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, cancel_requested_at IS NOT NULL"""

_READ_HELD = f"SELECT id FROM {{s}}.leasequeue_job WHERE {FENCE}"
_READ_CANCELLED = f"{_READ_HELD} AND cancel_requested_at IS NOT NULL"

# An attempt's number is spent by exactly one run, so (id, attempt) says whether a history row is that run's own.
_READ_FINISHED = """SELECT id FROM {s}.leasequeue_finished
WHERE id = ANY(%(ids)s::bigint[])
  AND ((id, attempt) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(attempts)s::int[]))) IS TRUE"""

_READ_NOW = """SELECT id, state::text, holder::text, term, NULL::text FROM {s}.leasequeue_job WHERE id = ANY(%(ids)s::bigint[])
UNION ALL
SELECT id, 'f', NULL, NULL, outcome FROM {s}.leasequeue_finished WHERE id = ANY(%(ids)s::bigint[])"""

_NOTE_REFUSAL = """INSERT INTO {s}.leasequeue_failure
    (job_id, attempt, queue, task, error_type, message, worker, term, failed_at)
SELECT *, clock_timestamp() FROM (SELECT %(id)s::bigint, %(attempt)s::int, %(queue)s, %(task)s, %(type)s, %(message)s,
    %(worker)s, %(term)s::bigint) AS refused RETURNING job_id"""

# A claim whose answer never came may have committed; its rows carry a holder that nobody uses any more.
_RELEASE_STRAYS = f"""WITH k AS MATERIALIZED (
    SELECT id, {_KEPT} FROM {{s}}.leasequeue_job
    WHERE state = 'l' AND holder = %(holder)s AND NOT id = ANY(%(known)s::bigint[])
    ORDER BY id FOR UPDATE SKIP LOCKED
), {_OWN}, u AS (
    UPDATE {{s}}.leasequeue_job AS job SET state = {_WAITS}, holder = NULL, expires_at = NULL, progress = NULL,
        attempt = attempt - 1,
        {_KEY_BACK}
    WHERE id = ANY(ARRAY(SELECT id FROM k)) AND state = 'l' AND holder = %(holder)s RETURNING id, queue, limit_key
), {wake("u")}
SELECT id FROM u"""

# With a row of NULLs where suspects wait for their burial: who does both asks once.
_SWEEP = f"""WITH u AS (
    UPDATE {{s}}.leasequeue_job SET state = CASE WHEN abandoned >= 1 THEN 'q' ELSE {_WAITS} END,
        holder = NULL, expires_at = NULL, abandoned = abandoned + 1,
        progress = CASE WHEN abandoned >= 1 THEN progress END
    WHERE id = ANY(ARRAY(
        SELECT id FROM {{s}}.leasequeue_job WHERE state = 'l' AND expires_at < now()
        ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED))
    RETURNING id, task, queue, abandoned, state, limit_key
), {wake("u")}
SELECT id, task, queue, abandoned, state::text FROM u
UNION ALL (SELECT NULL, NULL, NULL, NULL, NULL FROM {{s}}.leasequeue_job
    WHERE state = 'q' AND abandoned >= %(max_abandoned)s LIMIT 1)"""

# A process died. What had started there is suspect; what had not goes back as if never claimed, five times at most.
# All holders of a process share their first twelve bytes, so a range names them.
_RELEASE_DEAD = f"""WITH k AS MATERIALIZED (
    SELECT id, (id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[])) AS started,
        coalesce((meta ->> 'returned')::int, 0) AS returned, {_KEPT}
    FROM {{s}}.leasequeue_job WHERE state = 'l' AND holder BETWEEN %(first)s AND %(last)s
    ORDER BY id FOR UPDATE SKIP LOCKED
), {_OWN.replace("key IS NOT NULL", "key IS NOT NULL AND NOT started")}, u AS (
    UPDATE {{s}}.leasequeue_job AS job
    SET state = CASE WHEN (k.started AND %(suspect)s) OR k.returned >= 5 THEN 'q' ELSE {_WAITS_BACK} END::"char",
        holder = NULL, expires_at = NULL,
        progress = CASE WHEN (k.started AND %(suspect)s) OR k.returned >= 5 THEN job.progress END,
        abandoned = abandoned + (k.started AND %(suspect)s)::int,
        attempt = attempt - (NOT k.started OR NOT %(suspect)s)::int,
        meta = CASE WHEN k.started THEN job.meta
            ELSE coalesce(job.meta, '{{{{}}}}') || jsonb_build_object('returned', k.returned + 1) END,
        {_KEY_BACK}
    FROM k WHERE job.id = k.id AND job.state = 'l' AND job.holder BETWEEN %(first)s AND %(last)s
    RETURNING job.id, k.started, job.abandoned, job.task, job.queue, job.attempt, job.term, job.claimed_at,
        job.limit_key
), {wake("u")}, f AS (
    INSERT INTO {{s}}.leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, worker, term, started_at, failed_at)
    SELECT id, attempt, queue, task, 'ProcessDied', %(reason)s, %(worker)s, term, claimed_at, clock_timestamp()
    FROM u WHERE started AND %(suspect)s
)
SELECT id, started, abandoned, task FROM u"""

_BURY = f"""WITH d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE id = ANY(ARRAY(
        SELECT id FROM {{s}}.leasequeue_job WHERE state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NULL
        ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED)) AND children IS NULL
    RETURNING {FAILED}
), {wake("d")}, f AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
    SELECT id, queue, task, args, 'failed', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        'Abandoned: the process that ran it died or was lost ' || abandoned || ' times'
    FROM d RETURNING id, task
)
SELECT id, task FROM f
UNION ALL (SELECT NULL, NULL FROM {{s}}.leasequeue_job
    WHERE state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NOT NULL LIMIT 1)"""

_COUNT_SUSPECTS = f"""SELECT count(*) FROM (
    SELECT FROM {{s}}.leasequeue_job WHERE state = 'q' AND {SUSPECT_NOW} LIMIT 100) AS counted"""

# The supervisor renews for a child whose interpreter does not answer: only the pairs on its page.
_RENEW_FOR = """WITH k AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_job
    WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND holder BETWEEN %(first)s AND %(last)s
      AND ((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {s}.leasequeue_job SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second'
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, task"""


class JobStatements(NamedTuple):
    """The statements for one schema, ready for ``Link.run``. Parameters are named in the texts above."""

    claim: str
    claim_suspect: str
    peek: str
    lanes: str
    complete: str
    complete_with_results: str
    complete_unkept: str
    complete_linked: str
    retry: str
    fail: str
    expire: str
    release: str
    put_back: str
    divert: str
    snooze: str
    renew: str
    read_held: str
    read_cancelled: str
    read_finished: str
    read_now: str
    note_refusal: str
    release_strays: str
    sweep: str
    release_dead: str
    bury: str
    count_suspects: str
    renew_for: str


@cache
def job_statements(schema: str) -> JobStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    return JobStatements(**fill(schema, {name: globals()[f"_{name.upper()}"] for name in JobStatements._fields}))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return job_statements(schema)._asdict()
