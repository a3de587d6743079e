"""The program behind ``ctx.complete(conn)``: a job's end in the transaction of its effects.

Locks: the job's row, ``FOR UPDATE``; of a job with children then theirs (``db/ends.py``), until the transaction ends. The
settings it changes are local to the transaction.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from leasequeue.db.ends import end_statements
from leasequeue.db.names import fill
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.errors import LeaseLost, WorkflowChanged

if TYPE_CHECKING:
    from leasequeue.job import Held

_DIVISION_BY_ZERO = "22012"


def complete_held(
    target: Target, schema: str, held: Held, result: str | None, keep: bool, linked: bool = False
) -> Program[None]:
    """Delete the held row and write its history, or abort the transaction in the server.

    Args:
        linked: it passed a gate, or others may wait for it. A job that was none of these when it was claimed and is under
            a limit or has a child now (by plain SQL: the library's own are linked from the start) is refused like one that
            is lost: without a wake for its key, or with a child that waits for ever, its end would be wrong. Its next
            attempt knows.

    Raises:
        LeaseLost: the row is not held any more, neither by this holder nor in this term.
        WorkflowChanged: a step was added, at that very moment, behind one that would be cancelled by this end.
    """
    if linked:
        yield from _complete_linked(target, schema, held, result, keep)
        return
    try:
        yield (
            _complete(schema),
            {"id": held.id, "term": held.term, "holder": str(held.holder), "result": result, "keep": keep},
        )
    except Exception as error:
        if sqlstate(error) == _DIVISION_BY_ZERO:
            target.doom()
            raise LeaseLost(f"job {held.id}", held.term, "its completion was refused by the server") from error
        raise


def _complete_linked(target: Target, schema: str, held: Held, result: str | None, keep: bool) -> Program[None]:
    # Two statements: while the row is locked nobody can add a child, and the second one's snapshot (in READ COMMITTED)
    # has every child that was added before. So the check for late ones finds none, but behind what falls with it.
    try:
        yield _hold(schema), {"id": held.id, "term": held.term, "holder": str(held.holder)}
    except Exception as error:
        if sqlstate(error) == _DIVISION_BY_ZERO:
            target.doom()
            raise LeaseLost(f"job {held.id}", held.term, "its completion was refused by the server") from error
        raise
    try:
        yield (
            _succeed(schema),
            {
                "ids": [held.id], "terms": [held.term], "me": str(held.holder), "results": [result], "kept": [keep],
            },
        )  # fmt: skip
    except Exception as error:
        if sqlstate(error) == _DIVISION_BY_ZERO:
            target.doom()
            raise WorkflowChanged(held.id) from error
        raise


# What is left of the lease, and what the caller's own setting allows, in milliseconds. The settings are read
# as intervals ('500ms', '1min', '0'), since pg_settings would compute them all. A setting that this server
# does not know reads as NULL and is left alone.
_REST = "greatest(1000, ceil(extract(epoch FROM leasequeue_job.expires_at - clock_timestamp()) * 1000))"


def _bounded(setting: str) -> str:
    own = f"extract(epoch FROM nullif(current_setting('{setting}', true), '')::interval) * 1000"
    return (
        f"CASE WHEN current_setting('{setting}', true) IS NOT NULL THEN "
        f"set_config('{setting}', least({_REST}, nullif({own}, 0))::bigint::text, true) ELSE '' END"
    )


_IDLE = _bounded("idle_in_transaction_session_timeout")
_WHOLE = _bounded("transaction_timeout")

# The drivers differ in how they send a uuid, not in how they send a text.
_HELD = "id = %(id)s::bigint AND state = 'l' AND holder = %(holder)s::text::uuid AND term = %(term)s::bigint"

_HOLD = f"""WITH k AS MATERIALIZED (
    SELECT id, expires_at FROM {{s}}.leasequeue_job
    WHERE {_HELD}
    FOR UPDATE
)
SELECT 1 / count(*), max({_IDLE}), max({_WHOLE})
FROM k AS leasequeue_job"""

# That somebody asked for its end stays with a job, as in the statements of the workers.
_META = """CASE WHEN leasequeue_job.cancel_requested_at IS NULL THEN leasequeue_job.meta ELSE
        coalesce(leasequeue_job.meta, '{{}}'::jsonb)
            || jsonb_build_object('cancel_requested_at', leasequeue_job.cancel_requested_at) END"""

# The settings stand in RETURNING, which is evaluated for each deleted row; in a CTE that nobody reads they would have no
# effect. 1/0 where no row was held: the error aborts the transaction in the server, whatever the handler does with it. It is
# selected from the proof, which is read so even if nothing was deleted; and ``keep`` is compared to the proof, not put beside
# it: a constant false would let the planner skip the proof.
_COMPLETE = f"""WITH k AS (
    SELECT id FROM {{s}}.leasequeue_job
    WHERE {_HELD}
        AND children IS NULL AND limit_key IS NULL
    FOR UPDATE
), d AS (
    DELETE FROM {{s}}.leasequeue_job USING k WHERE leasequeue_job.id = k.id
    RETURNING leasequeue_job.id, queue, task, args, attempt, abandoned, created_at, claimed_at,
        {_META} AS meta,
        {_IDLE} AS idle,
        {_WHOLE} AS whole
), proof AS (
    SELECT 1 / count(*) AS held FROM d
)
INSERT INTO {{s}}.leasequeue_finished
    (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, started_at, result, meta)
SELECT d.id, d.queue, d.task, d.args, 'succeeded', d.attempt, d.abandoned, d.created_at, d.claimed_at,
    %(result)s::text::jsonb, d.meta
FROM proof LEFT JOIN d ON true
WHERE proof.held = CASE WHEN %(keep)s::boolean THEN 1 ELSE 0 END"""


@functools.cache
def _hold(schema: str) -> Statement:
    return Statement(statements(schema)["hold"])


@functools.cache
def _complete(schema: str) -> Statement:
    return Statement(statements(schema)["complete_held"])


@functools.cache
def _succeed(schema: str) -> Statement:
    return Statement(end_statements(schema).succeed_within.replace("%(me)s", "%(me)s::text::uuid"))


def statements(schema: str) -> dict[str, str]:
    """Name and text of each statement, for the golden files."""
    return fill(schema, {"complete_held": _COMPLETE, "hold": _HOLD})
