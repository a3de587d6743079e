"""What an operator does to a single job: retry it now, cancel it.

Locks: the job's row, or the row of its history; one row in each statement, so none can deadlock. A row that somebody else
has locked is skipped, not waited for: it is being claimed, renewed or ended right now, and the caller reads what came of
it. A history row alone is waited for: only another retry locks it, for the length of one statement.

An operator does not hold a leased job, so nothing here ends a lease that lasts: cancelling asks its holder (which is told
by its next renewal). An expired lease is anyone's, as it is for the sweep.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.jobs import CHILDLESS, FAILED, HISTORY, OF_ITS_PAST, wake
from leasequeue.db.names import CANCEL, channel, qualify

_MAKE_AVAILABLE = """WITH k AS MATERIALIZED (
    SELECT id, available_at FROM {s}.leasequeue_job
    WHERE id = %(id)s AND state IN ('r', 'g') AND available_at > now() FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE {s}.leasequeue_job AS job SET available_at = clock_timestamp()
    FROM k WHERE job.id = k.id
    RETURNING job.id, extract(epoch FROM k.available_at)::float8 AS was_due, job.queue, job.limit_key
), w AS (
    INSERT INTO {s}.leasequeue_wake (queue, key) SELECT queue, limit_key FROM u WHERE limit_key IS NOT NULL
)
SELECT id, was_due, queue FROM u"""

# The new job carries a link to the old one and the old one to the new, so that a second retry is noticed. Its unique key
# is not taken again: another job may hold it by now.
_RETRY_FINISHED = f"""WITH old AS MATERIALIZED (
    SELECT id, queue, task, args, meta, options FROM {{s}}.leasequeue_finished
    WHERE id = %(id)s AND outcome IN ('failed', 'cancelled', 'expired')
      AND (%(again)s OR meta -> 'retried_as' IS NULL) AND options -> 'workflow' IS NULL
    FOR UPDATE
), new AS (
    INSERT INTO {{s}}.leasequeue_job (queue, task, args, meta, priority, max_attempts, state,
        limit_key, limit_max, rate_max, rate_seconds)
    SELECT queue, task, args, coalesce(meta, '{{{{}}}}') - {OF_ITS_PAST}
            || jsonb_build_object('retry_of', id),
        coalesce((options ->> 'priority')::smallint, 0), (options ->> 'max_attempts')::int,
        CASE WHEN options ->> 'limit_key' IS NULL THEN 'r' ELSE 'g' END::"char", options ->> 'limit_key',
        (options ->> 'limit_max')::int, (options ->> 'rate_max')::int, (options ->> 'rate_seconds')::float8
    FROM old RETURNING id, queue, limit_key
), w AS (
    INSERT INTO {{s}}.leasequeue_wake (queue, key) SELECT queue, limit_key FROM new WHERE limit_key IS NOT NULL
)
UPDATE {{s}}.leasequeue_finished AS job
SET meta = coalesce(job.meta, '{{{{}}}}') || jsonb_build_object('retried_as', new.id)
FROM old, new WHERE job.id = old.id RETURNING new.id, new.queue"""

_CANCEL_WAITING = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE id = %(id)s AND children IS NULL AND (state <> 'l' OR expires_at < now())
    FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {FAILED}
), {wake("d")}
INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
    %(reason)s::text
FROM d RETURNING id, queue"""

# The holder's process hears of it by a notification, where it listens; else by its next renewal.
_REQUEST_CANCEL = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE id = %(id)s AND state = 'l' AND cancel_requested_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
), u AS (
    UPDATE {{s}}.leasequeue_job SET cancel_requested_at = clock_timestamp(),
        meta = coalesce(meta, '{{{{}}}}') || jsonb_build_object('cancel_requested_by', %(by)s::text)
    WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue
)
SELECT id, queue, CASE WHEN %(notify)s THEN pg_notify('{{channel}}', '{CANCEL}' || id)::text END FROM u"""

# Of a cancel that has changed nothing: what there is.
_CANCEL_STATE = """SELECT state::text, cancel_requested_at IS NOT NULL, children IS NOT NULL
FROM {s}.leasequeue_job WHERE id = %(id)s
UNION ALL
SELECT 'f', NULL, NULL FROM {s}.leasequeue_finished WHERE id = %(id)s"""

# One that others wait for, and that is not leased: it is ended by db/ends.py.
_LOCK_JOINED = """SELECT id FROM {s}.leasequeue_job
WHERE id = %(id)s AND children IS NOT NULL AND (state <> 'l' OR expires_at < now()) FOR UPDATE SKIP LOCKED"""

# A pause for a program, which cannot make one itself on an asynchronous connection.
_REST = "SELECT pg_sleep(0.02)"

# For the database of `leasequeue dev` alone: elsewhere a schema is its owner's to make.
_CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS {s}"

_TEMPLATES = {
    "make_available": _MAKE_AVAILABLE,
    "retry_finished": _RETRY_FINISHED,
    "cancel_waiting": _CANCEL_WAITING,
    "request_cancel": _REQUEST_CANCEL,
    "cancel_state": _CANCEL_STATE,
    "lock_joined": _LOCK_JOINED,
    "rest": _REST,
    "create_schema": _CREATE_SCHEMA,
}


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    literal = channel(schema).replace("'", "''").replace("%", "%%")
    return {name: text.format(s=quoted, channel=literal) for name, text in _TEMPLATES.items()}
