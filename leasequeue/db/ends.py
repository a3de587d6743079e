"""The statements that end a job which others wait for: a step of a workflow, or any row with ``children``.

A waiting child (state ``b``) counts in ``pending`` the parents that have not ended; an edge says what a parent's end means:

    x cascade    success counts it down; any other end cancels the child, and all that waits for it by such edges
    c continue   any end counts it down
    f fire       any end but success releases the child at once, for one run; where none of its parents ends so, it is
                 cancelled with the last of them (its history says ``skipped``)

A child has edges of the kinds x and c, or of f alone. At zero it is released: ready, or to its gate with a wake. What is no
success is failed for good, cancelled, expired or buried, each with a statement here; they differ in *mine*, the rows that
end of themselves, and in what is written of those.

**A child added late.** The edges are read in the statement's snapshot, ``children`` on the locked row, which may be newer.
Whoever adds a child locks the parent, raises ``children`` and inserts the edge in one transaction; so where the rows that
end say more children than edges are seen, one was added since the snapshot, and the statement fails (1/0) to be run again
with a new one. That holds for mine and for every row that falls with it. Edges are kept until the workflow is purged.

Locks, in this order: mine in id order, with SKIP LOCKED; children that wait for a failure, where mine have succeeded; then
what falls and what is counted down, in id order. The last two are waited for, each row at most LOCK_WAIT (``lock_timeout``,
local to the statement's own transaction; the statement reads it, or it would have no effect). Who adds children locks the
parents in id order, too. Where the orders differ all the same (an edge from a later id to an earlier one, after a retry),
the bound or the server's deadlock error ends one of the two, and it is run again.

``*_within`` are the same for a transaction that is not our own: there no setting may be changed.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import psycopg

from leasequeue.db.jobs import ASKED_BEFORE, EXPIRED, FAILED, FENCE, HISTORY
from leasequeue.db.names import qualify

LOCK_WAIT = "150ms"

CONTENDED_STATES = ("22012", "55P03", "40P01")
"""SQLSTATEs of a statement here that is to be run again: a child came late, a lock did not come, a deadlock."""

CONTENDED = tuple(psycopg.errors.lookup(state) for state in CONTENDED_STATES)
"""The same as psycopg raises them."""

_SET = f"SELECT set_config('lock_timeout', '{LOCK_WAIT}', true) AS lock_timeout"
_UNSET = "SELECT '' AS lock_timeout"

# Those whose failure nobody has to wait for any more: each of the parents named succeeds here, or has before.
_NOT_NEEDED = """fires AS MATERIALIZED (
    SELECT job.id, job.pending, e.ended
    FROM (
        SELECT edge.child_id, count(*) AS ended FROM mine JOIN {{s}}.leasequeue_edge AS edge ON edge.parent_id = mine.id
        WHERE mine.children IS NOT NULL AND edge.on_failure = 'f' GROUP BY edge.child_id
    ) AS e
    CROSS JOIN bound
    JOIN {{s}}.leasequeue_job AS job ON job.id = e.child_id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
    ORDER BY job.id FOR UPDATE OF job
), falling (id) AS (
    SELECT id FROM fires WHERE pending <= ended"""

_CASCADE = """falling (id) AS (
    SELECT job.id
    FROM mine JOIN {{s}}.leasequeue_edge AS edge ON edge.parent_id = mine.id
    JOIN {{s}}.leasequeue_job AS job ON job.id = edge.child_id
    WHERE mine.children IS NOT NULL AND edge.on_failure = 'x' AND job.state = 'b'"""

_CHECK = """1 / ((SELECT count(*) FROM links) = (SELECT coalesce(sum(children), 0) FROM mine)
        + (SELECT coalesce(sum(children), 0) FROM locked WHERE falls))::int"""


class _Own(NamedTuple):
    """What is written of the rows that end of themselves: SQL expressions over ``gone`` and ``given``."""

    given: str
    outcome: str
    error: str
    result: str = "NULL::jsonb"
    kept: str = "true"
    also: str = ""
    attempt: str = "gone.attempt"
    started: str = "gone.claimed_at"


def _end(mine: str, own: _Own, *, succeeded: bool, bounded: bool = True, check: str = _CHECK) -> str:
    # What an edge means that leads from mine, or from what falls with it: counted down, or fired.
    counts = "own OR on_failure = 'c'" if succeeded else "on_failure = 'c'"
    fires = "NOT own AND on_failure = 'f'" if succeeded else "on_failure = 'f'"
    why = (
        "'NotNeeded: none of the jobs whose failure it waited for has failed'"
        if succeeded
        else "'Cascade: job ' || parent.id || ' (' || parent.task || '), which it comes after, ' || "
        "CASE WHEN parent_mine.id IS NULL THEN 'was cancelled in turn' ELSE 'ended as ' || " + own.outcome + " END"
    )
    meta = (
        "coalesce(gone.meta, jsonb_build_object()) || jsonb_build_object('skipped', true)" if succeeded else "gone.meta"
    )
    return f"""WITH RECURSIVE bound AS MATERIALIZED (
    {_SET if bounded else _UNSET}
), mine AS MATERIALIZED (
    SELECT id, children FROM {{s}}.leasequeue_job WHERE {mine} FOR UPDATE SKIP LOCKED
), {_NOT_NEEDED.format() if succeeded else _CASCADE.format()}
    UNION
    SELECT job.id
    FROM falling JOIN {{s}}.leasequeue_edge AS edge ON edge.parent_id = falling.id
    JOIN {{s}}.leasequeue_job AS job ON job.id = edge.child_id
    WHERE edge.on_failure = 'x' AND job.state = 'b'
), fallen AS MATERIALIZED (
    SELECT id FROM falling EXCEPT SELECT id FROM mine
), links AS MATERIALIZED (
    SELECT edge.parent_id, edge.child_id, edge.on_failure, ending.own
    FROM (SELECT id, true AS own FROM mine WHERE children IS NOT NULL UNION ALL SELECT id, false FROM fallen) AS ending
    JOIN {{s}}.leasequeue_edge AS edge ON edge.parent_id = ending.id
), locked AS MATERIALIZED (
    SELECT job.id, job.children, t.falls, t.fired, t.counted
    FROM (
        SELECT id, bool_or(falls) AS falls, bool_or(fired) AS fired, sum(counted)::int AS counted FROM (
            SELECT id, true AS falls, false AS fired, 0 AS counted FROM fallen
            UNION ALL
            SELECT child_id, false, {fires}, ({counts})::int FROM links WHERE {counts} OR {fires}
        ) AS each WHERE id NOT IN (SELECT id FROM mine) GROUP BY id
    ) AS t
    CROSS JOIN bound
    JOIN {{s}}.leasequeue_job AS job ON job.id = t.id
    WHERE job.state = 'b' AND bound.lock_timeout IS NOT NULL
      AND job.id = ANY(ARRAY(SELECT id FROM fallen UNION SELECT child_id FROM links))
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM {{s}}.leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine UNION ALL SELECT id FROM locked WHERE falls))
    RETURNING {FAILED}, workflow, start_by
), released AS (
    UPDATE {{s}}.leasequeue_job AS job
    SET pending = CASE WHEN locked.fired THEN 0 ELSE job.pending - locked.counted END,
        state = CASE WHEN NOT locked.fired AND job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r'
            ELSE 'g' END::"char",
        available_at = greatest(job.available_at, now())
    FROM locked WHERE job.id = locked.id AND NOT locked.falls
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
){own.also}, history AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, result, error)
    SELECT gone.id, gone.queue, gone.task, gone.args, CASE WHEN mine.id IS NULL THEN 'cancelled' ELSE {own.outcome} END,
        CASE WHEN mine.id IS NULL THEN gone.attempt ELSE {own.attempt} END, gone.abandoned, gone.created_at,
        CASE WHEN mine.id IS NULL THEN gone.claimed_at ELSE {own.started} END, clock_timestamp(),
        CASE WHEN mine.id IS NULL THEN {meta} ELSE gone.meta END, gone.options,
        CASE WHEN mine.id IS NULL THEN NULL ELSE {own.result} END, CASE WHEN mine.id IS NULL THEN {why} ELSE {own.error} END
    FROM gone LEFT JOIN mine ON mine.id = gone.id{own.given}
    LEFT JOIN (SELECT child_id, min(parent_id) AS parent_id FROM links WHERE on_failure = 'x' GROUP BY child_id) AS cause
        ON cause.child_id = gone.id
    LEFT JOIN gone AS parent ON parent.id = cause.parent_id
    LEFT JOIN mine AS parent_mine ON parent_mine.id = parent.id
    WHERE mine.id IS NULL OR gone.workflow IS NOT NULL OR {own.kept}
)
SELECT gone.id, gone.task, gone.queue, mine.id IS NOT NULL, checked.ok, (SELECT count(*) FROM released WHERE state <> 'b')
FROM gone LEFT JOIN mine ON mine.id = gone.id CROSS JOIN (SELECT {check} AS ok) AS checked"""


# The common case, planned in a third of the time (nothing is prepared, so each execution is planned): those of mine that have
# succeeded and that nobody waits for to fail. The others come back with NULL for whether they are mine, and are not touched.
SUCCEED_PLAINLY = f"""WITH bound AS MATERIALIZED (
    {_SET}
), mine AS MATERIALIZED (
    SELECT id, children FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR UPDATE SKIP LOCKED
), links AS MATERIALIZED (
    SELECT parent_id, child_id, on_failure FROM {{s}}.leasequeue_edge
    WHERE parent_id = ANY(ARRAY(SELECT id FROM mine WHERE children IS NOT NULL))
), others AS MATERIALIZED (
    SELECT parent_id AS id FROM links WHERE on_failure = 'f'
), locked AS MATERIALIZED (
    SELECT job.id, t.counted
    FROM bound
    CROSS JOIN (
        SELECT child_id, count(*)::int AS counted FROM links WHERE parent_id NOT IN (SELECT id FROM others) GROUP BY child_id
    ) AS t
    JOIN {{s}}.leasequeue_job AS job ON job.id = t.child_id
    WHERE job.id = ANY(ARRAY(SELECT DISTINCT child_id FROM links)) AND job.state = 'b' AND bound.lock_timeout IS NOT NULL
    ORDER BY job.id FOR UPDATE OF job
), gone AS (
    DELETE FROM {{s}}.leasequeue_job
    WHERE id = ANY(ARRAY(SELECT id FROM mine WHERE id NOT IN (SELECT id FROM others))) RETURNING {FAILED}, workflow, children
), released AS (
    UPDATE {{s}}.leasequeue_job AS job
    SET pending = job.pending - locked.counted, available_at = greatest(job.available_at, now()),
        state = CASE WHEN job.pending > locked.counted THEN 'b' WHEN job.limit_key IS NULL THEN 'r' ELSE 'g' END::"char"
    FROM locked WHERE job.id = locked.id
    RETURNING job.queue, job.limit_key, job.available_at, job.state
), woken AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key, due_at)
    SELECT queue, limit_key, now() FROM gone WHERE limit_key IS NOT NULL
    UNION SELECT queue, limit_key, available_at FROM released WHERE state = 'g'
), history AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, result)
    SELECT gone.id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta,
        options, given.result::jsonb
    FROM gone JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(results)s::text[], %(kept)s::boolean[])
        AS given (id, term, result, kept) ON given.id = gone.id AND given.term = gone.term
    WHERE gone.workflow IS NOT NULL OR given.kept
), checked AS (
    SELECT 1 / ((SELECT count(*) FROM links WHERE parent_id NOT IN (SELECT id FROM others))
        = (SELECT coalesce(sum(children), 0) FROM gone))::int AS ok, (SELECT count(*) FROM released WHERE state <> 'b') AS ready
)
SELECT gone.id, gone.task, gone.queue, true, checked.ok, checked.ready FROM gone CROSS JOIN checked
UNION ALL SELECT DISTINCT id, NULL, NULL, NULL::boolean, 1, 0 FROM others"""

_RESULTS = _Own(
    given="""
    LEFT JOIN unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(results)s::text[], %(kept)s::boolean[])
        AS given (id, term, result, kept) ON given.id = gone.id AND given.term = gone.term""",
    outcome="'succeeded'",
    error="NULL",
    result="given.result::jsonb",
    kept="given.kept",
)
_ERRORS = """unnest(%(ids)s::bigint[], %(terms)s::bigint[], %(types)s::text[], %(messages)s::text[], %(tracebacks)s::text[])
        AS given (id, term, type, message, traceback) ON given.id = gone.id AND given.term = gone.term"""
_FAILURES = _Own(
    given=f"""
    LEFT JOIN {_ERRORS}""",
    outcome="%(outcome)s::text",
    error="given.type || ': ' || given.message",
    also=f""", failures AS (
    INSERT INTO {{s}}.leasequeue_failure
        (job_id, attempt, queue, task, error_type, message, traceback, worker, term, started_at, failed_at)
    SELECT gone.id, attempt, queue, task, type, message, traceback, %(worker)s::text, gone.term, claimed_at,
        clock_timestamp()
    FROM gone JOIN {_ERRORS}
)""",
)

_HELD = f"{FENCE} ORDER BY id"
_WAITING = "(state <> 'l' OR expires_at < now())"

SUCCEED = _end(_HELD, _RESULTS, succeeded=True)
FAIL = _end(_HELD, _FAILURES, succeeded=False)
_SUCCEED_WITHIN = _end(_HELD, _RESULTS, succeeded=True, bounded=False)
_FAIL_WITHIN = _end(_HELD, _FAILURES, succeeded=False, bounded=False)
_CANCELLED = _Own("", "'cancelled'", "%(reason)s::text")
_CANCEL = _end(f"id = %(id)s::bigint AND {_WAITING}", _CANCELLED, succeeded=False)
_CANCEL_WITHIN = _end(f"id = %(id)s::bigint AND {_WAITING}", _CANCELLED, succeeded=False, bounded=False)
_CANCEL_STEPS = _end(
    "id = ANY(ARRAY(SELECT job_id FROM {s}.leasequeue_step WHERE workflow = %(workflow)s::bigint)) "
    f"AND workflow = %(workflow)s::bigint AND {_WAITING} ORDER BY id",
    _CANCELLED,
    succeeded=False,
)
_BURY = _end(
    "state = 'q' AND abandoned >= %(max_abandoned)s AND children IS NOT NULL ORDER BY id LIMIT 100",
    _Own(
        "",
        "'failed'",
        "'Abandoned: the process that ran it died or was lost ' || gone.abandoned || ' times'",
    ),
    succeeded=False,
)
_EXPIRED = _Own("", "'expired'", EXPIRED.replace("start_by", "gone.start_by"))
_EXPIRE = _end(
    "start_by < now() AND state <> 'l' AND (state = 'b' OR children IS NOT NULL) ORDER BY id LIMIT 100",
    _EXPIRED,
    succeeded=False,
)
_CANCEL_ASKED = _end(
    "cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NOT NULL ORDER BY id LIMIT 100",
    _Own("", "'cancelled'", ASKED_BEFORE),
    succeeded=False,
)
_TOO_LATE = _EXPIRED._replace(attempt="gone.attempt - 1", started="NULL")  # claimed, and not begun
_EXPIRE_HELD = _end(_HELD, _TOO_LATE, succeeded=False)
_EXPIRE_WITHIN = _end(_HELD, _TOO_LATE, succeeded=False, bounded=False)

# Which of these jobs have a child, or something that would fall with one, whose row somebody holds locked. Waits for nobody.
_BLOCKED = """WITH RECURSIVE behind (root, id) AS (
    SELECT parent_id, child_id FROM {s}.leasequeue_edge WHERE parent_id = ANY(%(ids)s::bigint[])
    UNION
    SELECT behind.root, edge.child_id
    FROM behind JOIN {s}.leasequeue_edge AS edge ON edge.parent_id = behind.id
    WHERE edge.on_failure = 'x' AND %(deep)s
), waiting AS MATERIALIZED (
    SELECT behind.root, job.id FROM behind JOIN {s}.leasequeue_job AS job ON job.id = behind.id WHERE job.state = 'b'
), free AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM waiting)) ORDER BY id FOR UPDATE SKIP LOCKED
)
SELECT DISTINCT root FROM waiting WHERE id NOT IN (SELECT id FROM free)"""


class EndStatements(NamedTuple):
    """The statements for one schema.

    ``succeed_plainly`` ends those for whose failure nobody waits, ``succeed`` any. All but ``blocked`` return a row for each
    job that ended: id, task, queue, whether it was one of mine (else it fell; NULL: it is for ``succeed``), 1, and how many
    children were released by the statement. They raise DivisionByZero where a child was added late, and LockNotAvailable or
    DeadlockDetected where a child's row is held by somebody else: run again.
    """

    succeed: str
    succeed_plainly: str
    fail: str
    cancel: str
    cancel_steps: str
    bury: str
    expire: str
    cancel_asked: str
    expire_held: str
    blocked: str
    succeed_within: str
    fail_within: str
    expire_within: str
    cancel_within: str


@cache
def end_statements(schema: str) -> EndStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    own = {"SUCCEED": SUCCEED, "SUCCEED_PLAINLY": SUCCEED_PLAINLY, "FAIL": FAIL}
    texts = {
        name: (own.get(name.upper()) or globals()[f"_{name.upper()}"]).format(s=quoted)
        for name in EndStatements._fields
    }
    return EndStatements(**texts)


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return end_statements(schema)._asdict()
