"""What is known of one job to whoever waits for it: one statement, one snapshot, over the application's own engine.

A job that ends leaves ``leasequeue_job`` and enters ``leasequeue_finished`` in one commit. Two statements could look at the
one before and at the other after it was kept (or in the other order), and find nothing; one statement sees either.
Nothing is locked.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from leasequeue.db.enqueue import check_version
from leasequeue.db.names import fill
from leasequeue.db.program import Checked
from leasequeue.db.statement import Program, Statement, Target

_READ = """SELECT CASE state WHEN 'r' THEN CASE WHEN available_at <= now() THEN 'ready' ELSE 'scheduled' END
        WHEN 'l' THEN 'leased' WHEN 'q' THEN 'suspect' ELSE 'waiting' END AS state,
    false AS ended, task, queue, attempt, CAST(NULL AS text) AS result, CAST(NULL AS text) AS error,
    CAST(progress AS text) AS progress, CAST(NULL AS text) AS retried_as
FROM {s}.leasequeue_job WHERE id = CAST(%(id)s AS bigint)
UNION ALL
SELECT outcome, true, task, queue, attempt - abandoned, CAST(result AS text), error, CAST(meta -> 'progress' AS text),
    meta ->> 'retried_as'
FROM {s}.leasequeue_finished WHERE id = CAST(%(id)s AS bigint)"""

# Taken first, ordered then, as for the command line.
_FAILURE = """WITH found AS MATERIALIZED (
    SELECT attempt, error_type, traceback, failed_at FROM {s}.leasequeue_failure
    WHERE job_id = CAST(%(id)s AS bigint) AND error_type <> 'LeaseLost' LIMIT 1000
)
SELECT error_type, traceback FROM found ORDER BY failed_at DESC, attempt DESC LIMIT 1"""


class Seen(NamedTuple):
    """A job as it stands.

    Attributes:
        state: ``ready``, ``scheduled``, ``leased``, ``suspect`` or ``waiting``; of one that has ended its outcome.
        attempt: the number of the last attempt; of one that has ended those that did not end with their process.
        result, progress: JSON text.
        error: why it ended so, ``Type: message``.
        retried_as: the id of the job that repeats it.
        traceback: of its last failed attempt, where that is the error.
    """

    state: str
    ended: bool
    task: str
    queue: str
    attempt: int
    result: str | None
    error: str | None
    progress: str | None
    retried_as: int | None
    traceback: str | None = None


def read_job(target: Target, schema: str, id: int, checked: Checked) -> Program[Seen | None]:
    """The job, live or finished; None where there is none that this transaction can see.

    Raises:
        SchemaMismatch: the tables are missing or of another version.
    """
    if target.database not in checked:
        yield from check_version(target, schema, checked)
    rows = yield _statement(schema, "read_job"), {"id": id}
    if not rows:
        return None
    state, ended, task, queue, attempt, result, error, progress, again = rows[0]
    retried_as = int(again) if again is not None and again.isdecimal() else None
    found = Seen(state, ended, task, queue, attempt, result, error, progress, retried_as)
    if found.state != "failed" or found.error is None:
        return found
    rows = yield _statement(schema, "read_failure"), {"id": id}
    if rows and found.error.startswith(f"{rows[0][0]}: "):
        return found._replace(traceback=rows[0][1])
    return found


@functools.cache
def _statement(schema: str, name: str) -> Statement:
    return Statement(statements(schema)[name])


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return fill(schema, {"read_job": _READ, "read_failure": _FAILURE})
