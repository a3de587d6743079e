"""The statements of ``leasequeue demo``: one table of effects, and what is read back from it."""

from __future__ import annotations

CREATE_EFFECTS = """CREATE TABLE demo_effect (
    line integer NOT NULL, service text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(),
    words integer NOT NULL, digest text NOT NULL, logged_at timestamptz)"""

INSERT_EFFECT = """INSERT INTO demo_effect (line, service, words, digest, logged_at)
VALUES (:line, :service, :words, :digest, :logged_at)"""

CREATE_DATABASE = 'CREATE DATABASE "{name}"'
DROP_DATABASE = 'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'

PROGRESS = "SELECT count(*) FROM demo_effect"
ADVISORY_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"

HELD_BY = """SELECT job.id FROM leasequeue_job AS job JOIN leasequeue_worker AS worker
ON job.holder BETWEEN worker.id AND (left(worker.id::text, -8) || 'ffffffff')::uuid
WHERE job.state = 'l' AND worker.release = %(service)s"""

TAKEN_OVER = """SELECT (SELECT count(*) FROM leasequeue_finished WHERE id = ANY(%(ids)s::bigint[]))
    + (SELECT count(*) FROM leasequeue_job WHERE id = ANY(%(ids)s::bigint[]) AND state = 'l' AND term > %(term)s)"""
NEWEST_TERM = "SELECT last_value FROM leasequeue_term"

READ_BACK = """SELECT
    (SELECT count(*) FROM demo_effect),
    (SELECT count(DISTINCT line) FROM demo_effect),
    (SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'),
    (SELECT count(*) FROM leasequeue_finished WHERE outcome <> 'succeeded') + (SELECT count(*) FROM leasequeue_job),
    (SELECT extract(epoch FROM max(at) - min(at))::float8 FROM demo_effect),
    (SELECT count(*) FROM leasequeue_finished WHERE attempt > 1),
    (SELECT count(DISTINCT service) FROM demo_effect)"""


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return {
        "create_effects": CREATE_EFFECTS,
        "insert_effect": INSERT_EFFECT,
        "held_by": HELD_BY,
        "taken_over": TAKEN_OVER,
        "read_back": READ_BACK,
    }
