"""The statements that pause and resume a queue.

Locks: the queue's row, one in each statement. Somebody else's transaction that has just paused or resumed the same queue is
waited for, to its end; nothing else ever locks the row, and a claimer reads it without a lock.

Each parameter is cast, since asyncpg wants its type.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from leasequeue.db.names import fill
from leasequeue.db.statement import Statement

_NAME = "CAST(%(name)s AS text)"
_PAUSED = "{q}.paused_at IS NOT NULL AND ({q}.resume_at IS NULL OR {q}.resume_at > clock_timestamp())"

# By seconds or until a time. No row where that is over already. A queue that is paused keeps the time since when.
_PAUSE = f"""WITH asked AS MATERIALIZED (
    SELECT coalesce(CAST(%(resume_at)s AS timestamptz), clock_timestamp() + CAST(%(seconds)s AS float8) * interval '1 second')
        AS resume_at
), was AS (
    SELECT FROM {{s}}.leasequeue_queue AS q WHERE name = {_NAME} AND {_PAUSED.format(q="q")}
), u AS (
    INSERT INTO {{s}}.leasequeue_queue AS q (name, paused_at, resume_at, updated_by)
    SELECT {_NAME}, clock_timestamp(), resume_at, CAST(%(by)s AS text)
    FROM asked WHERE resume_at IS NULL OR resume_at > clock_timestamp()
    ON CONFLICT (name) DO UPDATE SET resume_at = excluded.resume_at, updated_by = excluded.updated_by,
        paused_at = CASE WHEN {_PAUSED.format(q="q")} THEN q.paused_at ELSE excluded.paused_at END
    RETURNING resume_at
)
SELECT NOT EXISTS (SELECT FROM was), CAST(extract(epoch FROM resume_at) AS float8) FROM u"""

_RESUME = f"""WITH k AS MATERIALIZED (
    SELECT name, {_PAUSED.format(q="q")} AS paused FROM {{s}}.leasequeue_queue AS q
    WHERE name = {_NAME} AND paused_at IS NOT NULL FOR UPDATE
)
UPDATE {{s}}.leasequeue_queue AS q SET paused_at = NULL, resume_at = NULL, updated_by = CAST(%(by)s AS text)
FROM k WHERE q.name = k.name RETURNING k.paused"""


class QueueStatements(NamedTuple):
    """The statements for one schema."""

    pause: Statement
    resume: Statement


@functools.cache
def queue_statements(schema: str) -> QueueStatements:
    """The statements with the quoted schema name filled in; cached."""
    texts = fill(schema, {name: globals()[f"_{name.upper()}"] for name in QueueStatements._fields})
    return QueueStatements(*map(Statement, texts.values()))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return {name: each.text for name, each in queue_statements(schema)._asdict().items()}
