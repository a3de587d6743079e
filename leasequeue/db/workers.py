"""The statements about worker processes themselves: their rows, their statistics, and what has a retention.

A worker's row is written by that worker only; nobody waits for anybody. The purges take what no one has locked.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from leasequeue.db.names import qualify

_REGISTER = """INSERT INTO {s}.leasequeue_worker (
    id, host, pid, version, release, queues, tasks, schedules, expires_at, counters)
VALUES (%(id)s, %(host)s, %(pid)s, %(version)s, %(release)s, %(queues)s::jsonb, %(tasks)s::jsonb, %(schedules)s::jsonb,
    clock_timestamp() + %(ttl)s * interval '1 second', %(counters)s::jsonb)
ON CONFLICT (id) DO UPDATE SET renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + %(ttl)s * interval '1 second', counters = excluded.counters
RETURNING id"""

_UNREGISTER = "DELETE FROM {s}.leasequeue_worker WHERE id = %(id)s RETURNING id"

_COUNT_MINUTE = """INSERT INTO {s}.leasequeue_stat (worker, minute, counts)
VALUES (%(id)s, date_trunc('minute', clock_timestamp()), %(counts)s::jsonb)
ON CONFLICT (worker, minute) DO UPDATE SET counts = excluded.counts
RETURNING minute"""

_PURGE = """DELETE FROM {s}.{table} WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {s}.{table} WHERE {column} < now() - %(keep)s * interval '1 second'{more}
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED)) RETURNING 1"""

# What is left of a workflow once it is old and none of its jobs lives.
_PURGE_WORKFLOWS = """WITH old AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_workflow AS workflow
    WHERE created_at < now() - %(keep)s * interval '1 second' AND NOT EXISTS (
        SELECT FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
        WHERE step.workflow = workflow.id)
    ORDER BY created_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), steps AS (
    DELETE FROM {s}.leasequeue_step WHERE workflow = ANY(ARRAY(SELECT id FROM old)) RETURNING job_id
), above AS (
    DELETE FROM {s}.leasequeue_edge WHERE child_id = ANY(ARRAY(SELECT job_id FROM steps)) RETURNING 1
), below AS (
    DELETE FROM {s}.leasequeue_edge
    WHERE parent_id = ANY(ARRAY(SELECT job_id FROM steps)) AND NOT child_id = ANY(ARRAY(SELECT job_id FROM steps)) RETURNING 1
)
DELETE FROM {s}.leasequeue_workflow WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING 1"""

DAY = 86_400.0
WORKFLOWS_SECONDS = 90 * DAY
PURGE_ROWS = 2000
PURGE_WORKFLOWS = 10
"""At a time: each may have thousands of steps."""


# The history of a step stays as long as the workflow's own rows: steps that run yet read it, and the state of the whole is
# told by it. So this walks: it looks at so many rows from a time on, or it would step over all that stay each time. Returns
# one row: how many it looked at, how many went, and the time of the last.
_PURGE_HISTORY = """WITH seen AS MATERIALIZED (
    SELECT id, finished_at, options -> 'workflow' IS NOT NULL AND EXISTS (
        SELECT FROM {s}.leasequeue_step AS step WHERE step.job_id = finished.id) AS stays
    FROM {s}.leasequeue_finished AS finished
    WHERE finished_at < now() - %(keep)s * interval '1 second' AND finished_at >= to_timestamp(%(after)s){more}
    ORDER BY finished_at LIMIT %(look)s
), gone AS (
    DELETE FROM {s}.leasequeue_finished WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {s}.leasequeue_finished
        WHERE id = ANY(ARRAY(SELECT id FROM seen WHERE NOT stays ORDER BY finished_at LIMIT %(limit)s))
        FOR UPDATE SKIP LOCKED)) RETURNING 1
)
SELECT count(*)::int, (SELECT count(*) FROM gone)::int, extract(epoch FROM max(finished_at))::float8 FROM seen"""

# Of a queue that nobody serves, whose jobs are gone. A job that comes to wait there later brings a wake of its own.
_NOBODY_WAITS = """ AND NOT EXISTS (
        SELECT FROM {s}.leasequeue_job AS job
        WHERE job.limit_key = leasequeue_wake.key AND job.queue = leasequeue_wake.queue AND job.state = 'g')"""


class Retention(NamedTuple):
    """What grows, and how long it stays, in seconds."""

    table: str
    column: str
    keep_seconds: float
    more: str = ""


RETENTIONS = (
    Retention("leasequeue_finished", "finished_at", 7 * DAY, " AND outcome = 'succeeded'"),
    Retention("leasequeue_finished", "finished_at", 90 * DAY),
    Retention("leasequeue_failure", "failed_at", 90 * DAY),
    Retention(
        "leasequeue_lease", "renewed_at", 90 * DAY, " AND (holder IS NULL OR expires_at < now() - interval '90 days')"
    ),
    Retention("leasequeue_lease_event", "at", 90 * DAY),
    Retention("leasequeue_tick", "decided_at", 400 * DAY),
    Retention("leasequeue_stat", "minute", 30 * DAY),
    Retention("leasequeue_worker", "expires_at", 1 * DAY),
    Retention("leasequeue_hold", "expires_at", 0.0),
    Retention("leasequeue_admission", "until", 0.0),
    Retention("leasequeue_wake", "due_at", 1 * DAY, _NOBODY_WAITS),
)

_FINISHED_OF_QUEUE = " AND queue = %(queue)s"

NOTIFY = "SELECT pg_notify(%(channel)s, %(payload)s)"
BACKEND_PID = "SELECT pg_backend_pid()"


def listen(channel: str) -> str:
    """LISTEN for a hint, to be run without parameters; only the claimer's connection does, and nothing depends on it."""
    return 'LISTEN "' + channel.replace('"', '""') + '"'


class WorkerStatements(NamedTuple):
    """The statements for one schema, ready for ``Link.run``."""

    register: str
    unregister: str
    count_minute: str


@cache
def worker_statements(schema: str) -> WorkerStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    return WorkerStatements(_REGISTER.format(s=quoted), _UNREGISTER.format(s=quoted), _COUNT_MINUTE.format(s=quoted))


class PurgeStatement(NamedTuple):
    """A purge: ``keep`` (seconds) and ``limit`` (rows) are its parameters. Where ``limit`` rows went, more may be left.

    Attributes:
        walks: it is of the history, with two more parameters: ``look`` at so many rows that end ``after`` a time.
    """

    text: str
    keep_seconds: float
    limit: int = PURGE_ROWS
    walks: bool = False


def _purge(schema: str, retention: Retention) -> PurgeStatement:
    quoted = qualify(schema).replace("%", "%%")
    walks = retention.table == "leasequeue_finished"
    text = (_PURGE_HISTORY if walks else _PURGE).format(
        s=quoted, table=retention.table, column=retention.column, more=retention.more.format(s=quoted)
    )
    return PurgeStatement(text, retention.keep_seconds, walks=walks)


@cache
def purges(schema: str) -> tuple[PurgeStatement, ...]:
    """Each purge, but for those of single queues."""
    workflows = _PURGE_WORKFLOWS.format(s=qualify(schema).replace("%", "%%"))
    plain = [_purge(schema, each) for each in RETENTIONS]
    return (*plain, PurgeStatement(workflows, WORKFLOWS_SECONDS, PURGE_WORKFLOWS))


def purge_queue(schema: str, keep_seconds: float) -> PurgeStatement:
    """Purges the history of one ``queue`` that has a retention of its own."""
    return _purge(schema, Retention("leasequeue_finished", "finished_at", keep_seconds, _FINISHED_OF_QUEUE))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    named = worker_statements(schema)._asdict()
    named |= {f"purge_{i}": purge.text for i, purge in enumerate(purges(schema))}
    return named | {"purge_queue": purge_queue(schema, 0.0).text}
