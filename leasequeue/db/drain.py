"""The statements of ``leasequeue.testing``: they run on the test's own connection, in its transaction.

How a job ends is written by the workers' own statements, so that a test finds the rows that production would write.
Locks: the row of each job that is taken, until the test's transaction ends.
"""

from __future__ import annotations

import functools
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from leasequeue.db.core import WRITE
from leasequeue.db.ends import end_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.names import fill
from leasequeue.db.program import run
from leasequeue.db.statement import Program, Statement, Target

# Jobs under limits too: one runs at a time. One row at a time, since the handler of one may enqueue a better one. The lease
# is of a day: what complete(conn) bounds by it (idle_in_transaction_session_timeout) must not end the test's own transaction.
_TAKE_READY = """UPDATE {s}.leasequeue_job SET state = 'l', holder = %(me)s, term = nextval('{seq}'),
    expires_at = clock_timestamp() + interval '1 day', attempt = attempt + 1, claimed_at = clock_timestamp(),
    unique_key = CASE WHEN unique_until = 's' THEN NULL ELSE unique_key END
WHERE id = (
    SELECT id FROM {s}.leasequeue_job
    WHERE state IN ('r', 'g')
      AND available_at <= coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second')
      AND (%(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[]))
    ORDER BY priority DESC, available_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, term, queue, task, args::text, attempt, abandoned, max_attempts,
    extract(epoch FROM coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second') - now())::float8,
    coalesce(start_by < coalesce(%(now)s::timestamptz, now() + %(shift)s::float8 * interval '1 second'), false),
    CASE WHEN workflow IS NOT NULL THEN jsonb_build_object('id', workflow, 'name', meta ->> 'flow', 'step', meta ->> 'step')
        ::text WHEN limit_key IS NOT NULL OR children IS NOT NULL THEN '' END"""

_LIST_LIVE = """SELECT id, queue, task, args::text, state::text, available_at::text,
    task = ANY(%(tasks)s::text[]) AND args = %(args)s::jsonb AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
FROM {s}.leasequeue_job ORDER BY id"""


@functools.cache
def _statement(schema: str, name: str) -> Statement:
    own = statements(schema).get(name)
    theirs = end_statements(schema) if name.endswith("_within") else job_statements(schema)
    return Statement(own or getattr(theirs, name))


def _one(target: Target, statement: Statement, params: dict[str, Any]) -> Program[list[tuple[Any, ...]]]:
    return (yield statement, params)


def execute(conn: Connection | Session, schema: str, name: str, **params: Any) -> list[tuple[Any, ...]]:
    """Run a statement of this module, or of the workers' (``leasequeue.db.jobs``), by its name.

    On a Session it runs on the connection to which the session writes, as an enqueue does.
    """
    return run(conn, _one, _statement(schema, name), params)


def connection_of(conn: Connection | Session) -> Connection:
    """The connection itself: of a Session the one on which it writes, with what was pending flushed."""
    if isinstance(conn, Connection):
        return conn
    conn.flush()
    return conn.connection(bind_arguments={"clause": WRITE})


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return fill(schema, {"take_ready": _TAKE_READY, "list_live": _LIST_LIVE})
