"""Statements with one safeguard taken out. Each loses children, doubles or wrongs them; the tests must notice."""

from __future__ import annotations

from leasequeue.db import ends
from leasequeue.db.jobs import FAILED, FENCE, HISTORY


def _without(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, f"the statement has changed: {old!r} is not in it any more"
        text = text.replace(old, new)
    return text


_CHECK = ends._CHECK
_PLAIN_CHECK = """1 / ((SELECT count(*) FROM links WHERE parent_id NOT IN (SELECT id FROM others))
        = (SELECT coalesce(sum(children), 0) FROM gone))::int"""
_UNLOCKED = (
    ("    ORDER BY job.id FOR UPDATE OF job\n), gone", "    ORDER BY job.id\n), gone"),
    ("SELECT job.id, t.counted", "SELECT job.id, job.pending AS was, t.counted"),
    ("SET pending = job.pending - locked.counted", "SET pending = greatest(locked.was - locked.counted, 0)"),
    ("job.pending > locked.counted", "locked.was > locked.counted"),
)

# Whoever ends asks whether another parent lives, and sees those that are ending at the same moment as alive.
_NOT_EXISTS = f"""WITH mine AS MATERIALIZED (
    SELECT id FROM {{s}}.leasequeue_job WHERE {FENCE} ORDER BY id FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM {{s}}.leasequeue_job WHERE id = ANY(ARRAY(SELECT id FROM mine)) RETURNING {FAILED}
), released AS (
    UPDATE {{s}}.leasequeue_job AS job SET state = 'r', pending = 0
    WHERE job.state = 'b' AND job.id IN (
        SELECT child_id FROM {{s}}.leasequeue_edge WHERE parent_id IN (SELECT id FROM mine) AND on_failure <> 'f')
      AND NOT EXISTS (
        SELECT FROM {{s}}.leasequeue_edge AS edge JOIN {{s}}.leasequeue_job AS parent ON parent.id = edge.parent_id
        WHERE edge.child_id = job.id AND parent.id NOT IN (SELECT id FROM mine))
    RETURNING job.id
), history AS (
    INSERT INTO {{s}}.leasequeue_finished ({HISTORY}, meta, options)
    SELECT id, queue, task, args, 'succeeded', attempt, abandoned, created_at, claimed_at, clock_timestamp(), meta, options
    FROM gone
)
SELECT id, task, queue, true, 1, (SELECT count(*) FROM released) FROM gone"""

BROKEN: dict[str, dict[str, str]] = {
    "no check for late children": {"succeed_plainly": _without(ends.SUCCEED_PLAINLY, (_PLAIN_CHECK, "1"))},
    "a cascade without the check": {"fail": _without(ends.FAIL, (_CHECK, "1"))},
    "counted down without a row lock": {"succeed_plainly": _without(ends.SUCCEED_PLAINLY, *_UNLOCKED)},
    "NOT EXISTS without a lock": {"succeed_plainly": _NOT_EXISTS},
}
