"""The program behind ``ctx.complete(conn)``: a job's end in the transaction of its effects.

Locks: the job's row, ``FOR UPDATE``; of a job with children then theirs (``db/ends.py``), until the transaction ends. The
settings it changes are local to the transaction.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Text,
    bindparam,
    case,
    cast,
    delete,
    func,
    insert,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from leasequeue.db.ends import end_statements
from leasequeue.db.names import qualify
from leasequeue.db.program import sqlstate
from leasequeue.db.statement import Program, Statement, Target
from leasequeue.db.tables import tables
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
            {
                "p_id": held.id,
                "p_term": held.term,
                "p_holder": str(held.holder),
                "p_result": result,
                "p_keep": keep,
            },
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


def _bounded(setting: str) -> Any:
    return literal_column(_bounded_text(setting))


def _bounded_text(setting: str) -> str:
    own = f"extract(epoch FROM nullif(current_setting('{setting}', true), '')::interval) * 1000"
    return (
        f"CASE WHEN current_setting('{setting}', true) IS NOT NULL THEN "
        f"set_config('{setting}', least({_REST}, nullif({own}, 0))::bigint::text, true) ELSE '' END"
    )


def _meta(job: Any) -> Any:
    # That somebody asked for its end stays with a job, as in the statements of the workers.
    asked = func.jsonb_build_object(literal_column("'cancel_requested_at'"), job.c.cancel_requested_at)
    kept = func.coalesce(job.c.meta, cast(literal_column("'{}'"), JSONB)).op("||")(asked)
    return case((job.c.cancel_requested_at.is_(None), job.c.meta), else_=kept).label("meta")


_HOLD = f"""WITH k AS MATERIALIZED (
    SELECT id, expires_at FROM {{s}}.leasequeue_job
    WHERE id = %(id)s::bigint AND state = 'l' AND holder = %(holder)s::text::uuid AND term = %(term)s::bigint
    FOR UPDATE
)
SELECT 1 / count(*), max({_bounded_text("idle_in_transaction_session_timeout")}), max({_bounded_text("transaction_timeout")})
FROM k AS leasequeue_job"""


@functools.cache
def _hold(schema: str) -> Statement:
    return Statement(_HOLD.format(s=qualify(schema).replace("%", "%%")))


@functools.cache
def _succeed(schema: str) -> Statement:
    # The drivers differ in how they send a uuid, not in how they send a text.
    return Statement(end_statements(schema).succeed_within.replace("%(me)s", "%(me)s::text::uuid"))


@functools.cache
def _complete(schema: str) -> Statement:
    known = tables(schema)
    job, finished = known.job, known.finished
    k = (
        select(job.c.id)
        .where(
            job.c.id == bindparam("p_id", type_=BigInteger),
            job.c.term == bindparam("p_term", type_=BigInteger),
            job.c.holder == cast(bindparam("p_holder", type_=Text), UUID),
            job.c.state == literal_column("'l'"),
            job.c.children.is_(None),
            job.c.limit_key.is_(None),
        )
        .with_for_update()
        .cte("k")
    )
    # The settings stand in RETURNING, which is evaluated for each deleted row; in a CTE that nobody reads
    # they would have no effect.
    d = (
        delete(job)
        .where(job.c.id == k.c.id)
        .returning(
            job.c.id,
            job.c.queue,
            job.c.task,
            job.c.args,
            job.c.attempt,
            job.c.abandoned,
            job.c.created_at,
            job.c.claimed_at,
            _meta(job),
            _bounded("idle_in_transaction_session_timeout").label("idle"),
            _bounded("transaction_timeout").label("whole"),
        )
        .cte("d")
    )
    # 1/0 where no row was held: the error aborts the transaction in the server, whatever the handler does
    # with it.
    proof = select(literal_column("1 / count(*)").label("held")).select_from(d).cte("proof")
    # p_keep is compared to the proof, not put beside it: a constant false would let the planner skip the
    # proof.
    wanted = case((cast(bindparam("p_keep", type_=Boolean), Boolean), literal_column("1")), else_=literal_column("0"))
    history: dict[str, Any] = {
        "id": d.c.id,
        "queue": d.c.queue,
        "task": d.c.task,
        "args": d.c.args,
        "outcome": literal_column("'succeeded'"),
        "attempt": d.c.attempt,
        "abandoned": d.c.abandoned,
        "enqueued_at": d.c.created_at,
        "started_at": d.c.claimed_at,
        "result": cast(bindparam("p_result", type_=Text), JSONB),
        "meta": d.c.meta,
    }
    rows = (
        select(*history.values())
        .select_from(proof.outerjoin(d, true()))  # from the proof: it is read even if nothing was deleted
        .where(proof.c.held == wanted)
    )
    return Statement(insert(finished).from_select(list(history), rows))


def statements(schema: str) -> dict[str, str]:
    """The statement by its name, as a DBAPI cursor gets it."""
    return {"complete_held": _complete(schema).text, "hold": _hold(schema).text}
