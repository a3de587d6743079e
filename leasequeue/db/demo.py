"""The statements of ``leasequeue demo``: one table of effects, and what is read back from it."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from leasequeue.db.names import qualify

_CREATE_EFFECTS = """CREATE TABLE {s}.demo_effect (
    line integer NOT NULL, service text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    words integer NOT NULL, digest text NOT NULL, logged_at timestamptz)"""

_INSERT_EFFECT = """INSERT INTO {s}.demo_effect (line, service, words, digest, logged_at)
VALUES (:line, :service, :words, :digest, :logged_at)"""

_PROGRESS = """SELECT (SELECT count(*) FROM {s}.demo_effect),
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')"""

# Every holder id of a process begins with the first twelve bytes of its worker's id.
_HELD_BY = """SELECT job.id FROM {s}.leasequeue_job AS job JOIN {s}.leasequeue_worker AS worker
ON job.holder BETWEEN worker.id AND (left(worker.id::text, -8) || 'ffffffff')::uuid
WHERE job.state = 'l' AND worker.release = %(service)s"""

_TAKEN_OVER = """SELECT (SELECT count(*) FROM {s}.leasequeue_finished WHERE id = ANY(%(ids)s::bigint[]))
    + (SELECT count(*) FROM {s}.leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND term > %(term)s)"""

_NEWEST_TERM = "SELECT last_value FROM {s}.leasequeue_term"

_READ_BACK = """SELECT
    (SELECT count(*) FROM {s}.demo_effect),
    (SELECT count(DISTINCT line) FROM {s}.demo_effect),
    (SELECT count(*) FROM {s}.leasequeue_finished WHERE outcome = 'succeeded'),
    (SELECT count(*) FROM {s}.leasequeue_finished WHERE outcome <> 'succeeded')
        + (SELECT count(*) FROM {s}.leasequeue_job),
    (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM {s}.demo_effect),
    (SELECT count(*) FROM {s}.leasequeue_finished WHERE attempt > 1)"""

DROP_DATABASE = 'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'


class DemoStatements(NamedTuple):
    """The statements for one schema; ``insert_effect`` takes ``:name`` parameters, the others ``Link.run``'s."""

    create_effects: str
    insert_effect: str
    progress: str
    held_by: str
    taken_over: str
    newest_term: str
    read_back: str


@cache
def demo_statements(schema: str) -> DemoStatements:
    """The statements with the quoted schema name filled in; cached per schema."""
    quoted = qualify(schema)
    return DemoStatements(*(globals()[f"_{name.upper()}"].format(s=quoted) for name in DemoStatements._fields))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return demo_statements(schema)._asdict()
