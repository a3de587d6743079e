"""What an operator does to a single job: retry it now, cancel it.

Locks: the job's row, or the row of its history; one row in each statement, so none can deadlock. A row that somebody else
has locked is skipped, not waited for: it is being claimed, renewed or ended right now, and the caller reads what came of
it. A history row alone is waited for: only another retry locks it, for the length of one statement.

An operator does not hold a leased job, so nothing here ends a lease that lasts: cancelling asks its holder (which is told
by its next renewal). An expired lease is anyone's, as it is for the sweep.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.names import qualify

_MAKE_AVAILABLE = """WITH k AS MATERIALIZED (
    SELECT id, available_at FROM {s}.leasequeue_job
    WHERE id = %(id)s AND state = 'r' AND available_at > now() FOR UPDATE SKIP LOCKED
)
UPDATE {s}.leasequeue_job AS job SET available_at = clock_timestamp()
FROM k WHERE job.id = k.id RETURNING job.id, extract(epoch FROM k.available_at)::float8, job.queue"""

# The new job carries a link to the old one and the old one to the new, so that a second retry is noticed. What the
# history does not keep (priority, max_attempts, unique_key) is the default again.
_RETRY_FINISHED = """WITH old AS MATERIALIZED (
    SELECT id, queue, task, args, meta FROM {s}.leasequeue_finished
    WHERE id = %(id)s AND outcome IN ('failed', 'cancelled', 'expired')
      AND (%(again)s OR meta -> 'retried_as' IS NULL)
    FOR UPDATE
), new AS (
    INSERT INTO {s}.leasequeue_job (queue, task, args, meta)
    SELECT queue, task, args, coalesce(meta, '{{}}') - ARRAY['put_back', 'returned', 'retried_as']
        || jsonb_build_object('retry_of', id)
    FROM old RETURNING id, queue
)
UPDATE {s}.leasequeue_finished AS job
SET meta = coalesce(job.meta, '{{}}') || jsonb_build_object('retried_as', new.id)
FROM old, new WHERE job.id = old.id RETURNING new.id, new.queue"""

_CANCEL_WAITING = """WITH k AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_job WHERE id = %(id)s AND (state <> 'l' OR expires_at < now())
    FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {s}.leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM k))
    RETURNING id, queue, task, args, attempt, abandoned, created_at, claimed_at, meta
)
INSERT INTO {s}.leasequeue_finished
    (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, finished_at, meta, error)
SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, %(reason)s
FROM d RETURNING id, queue"""

_REQUEST_CANCEL = """WITH k AS MATERIALIZED (
    SELECT id FROM {s}.leasequeue_job WHERE id = %(id)s AND state = 'l' AND cancel_requested_at IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {s}.leasequeue_job SET cancel_requested_at = clock_timestamp()
WHERE id = ANY(ARRAY(SELECT id FROM k)) RETURNING id, queue"""

# For the database of `leasequeue dev` alone: elsewhere a schema is its owner's to make.
_CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS {s}"

_TEMPLATES = {
    "make_available": _MAKE_AVAILABLE,
    "retry_finished": _RETRY_FINISHED,
    "cancel_waiting": _CANCEL_WAITING,
    "request_cancel": _REQUEST_CANCEL,
    "create_schema": _CREATE_SCHEMA,
}


@cache
def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, with the quoted schema name filled in; not to be changed. Cached per schema."""
    quoted = qualify(schema).replace("%", "%%")
    return {name: text.format(s=quoted) for name, text in _TEMPLATES.items()}
