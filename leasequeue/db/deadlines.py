"""The statements that end what waits without being claimed: what was to start by a time that is past, and what is cancelled.

A job that waits (ready, at a gate, or suspect) ends as expired without having been claimed; one that is claimed too late
ends by ``JobStatements.expire``, from the hands of its holder. Which of both finds it makes no difference: a job whose
``start_by`` is past does not begin. Jobs that wait for parents, or for which others wait, are ended where workflows are.

A job that was asked to stop while it ran, and is back to wait since its attempt has failed, was released or was lost, would be
cancelled by its next claim; under a limit, or in a paused queue, that may never come.

Locks: the rows, oldest first, with SKIP LOCKED: it waits for nobody, and what is being claimed is its claimer's.
"""

from __future__ import annotations

from functools import cache

from leasequeue.db.jobs import ASKED_BEFORE, CHILDLESS, EXPIRED, FAILED, HISTORY, wake
from leasequeue.db.names import qualify

_EXPIRE_WAITING = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job
    WHERE start_by < now() AND state <> 'l' AND state IN ('r', 'g', 'q') AND children IS NULL
    ORDER BY start_by LIMIT 500 FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {FAILED}, start_by
), {wake("d")}, f AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
    SELECT id, queue, task, args, 'expired', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        {EXPIRED}
    FROM d RETURNING id, task, queue
)
SELECT id, task, queue FROM f
UNION ALL (SELECT NULL, NULL, NULL FROM {{s}}.leasequeue_job
    WHERE start_by < now() AND state <> 'l' AND (state = 'b' OR children IS NOT NULL) ORDER BY start_by LIMIT 1)"""

_CANCEL_ASKED = f"""WITH k AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job
    WHERE cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NULL
    ORDER BY cancel_requested_at LIMIT 500 FOR UPDATE SKIP LOCKED
), d AS (
    DELETE FROM {{s}}.leasequeue_job WHERE {CHILDLESS} RETURNING {FAILED}
), {wake("d")}, f AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options, error)
    SELECT id, queue, task, args, 'cancelled', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options,
        {ASKED_BEFORE}
    FROM d RETURNING id, task, queue
)
SELECT id, task, queue FROM f
UNION ALL (SELECT NULL, NULL, NULL FROM {{s}}.leasequeue_job
    WHERE cancel_requested_at IS NOT NULL AND state <> 'l' AND children IS NOT NULL ORDER BY cancel_requested_at LIMIT 1)"""


@cache
def cancel_asked(schema: str) -> str:
    """Ends at most 500 jobs that were asked to stop and do not run. Returns as :func:`expire_waiting` does."""
    return _CANCEL_ASKED.format(s=qualify(schema).replace("%", "%%"))


@cache
def expire_waiting(schema: str) -> str:
    """Ends at most 500 jobs. Returns id, task, queue of each, and at last NULLs where there are some for ``db/ends.py``."""
    return _EXPIRE_WAITING.format(s=qualify(schema).replace("%", "%%"))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return {"expire_waiting": expire_waiting(schema), "cancel_asked": cancel_asked(schema)}
