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

# What is left of a workflow once it is old and none of its jobs lives. A few at a time: each may have thousands of steps.
_PURGE_WORKFLOWS = """WITH old AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_workflow AS workflow
    WHERE created_at < now() - %(keep)s * interval '1 second' AND NOT EXISTS (
        SELECT FROM {s}.leasequeue_step AS step JOIN {s}.leasequeue_job AS job ON job.id = step.job_id
        WHERE step.workflow = workflow.id)
    ORDER BY created_at LIMIT least(%(limit)s, 10) FOR UPDATE SKIP LOCKED
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


@cache
def purges(schema: str) -> tuple[tuple[str, float], ...]:
    """Text and age in seconds of each purge; ``limit`` is its other parameter."""
    quoted = qualify(schema).replace("%", "%%")
    plain = [(_PURGE.format(s=quoted, table=r.table, column=r.column, more=r.more), r.keep_seconds) for r in RETENTIONS]
    return (*plain, (_PURGE_WORKFLOWS.format(s=quoted), WORKFLOWS_SECONDS))


@cache
def purge_queue(schema: str) -> str:
    """Purges the history of one queue that has a retention of its own."""
    quoted = qualify(schema).replace("%", "%%")
    return _PURGE.format(s=quoted, table="leasequeue_finished", column="finished_at", more=_FINISHED_OF_QUEUE)


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    named = worker_statements(schema)._asdict()
    named |= {f"purge_{i}": text for i, (text, _) in enumerate(purges(schema))}
    return named | {"purge_queue": purge_queue(schema)}
