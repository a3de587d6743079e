"""What a workflow's enqueue, and what is done in a handler's transaction, promise over every kind of connection."""

from __future__ import annotations

import json
import uuid
from typing import Any

import psycopg
import pytest

from leasequeue import ConfigurationError, JobContext, LeaseLost, LeaseQueue, continues, fires
from leasequeue.job import Held
from leasequeue.workflow import Step, Workflow, WorkflowHandle

from .kinds import Bench
from .test_complete import ME, hold


@pytest.fixture
def wf(lq: LeaseQueue) -> Workflow:
    @lq.task(name="send", limit_key=lambda user_id: f"user:{user_id}" if user_id > 5 else None, limit=1)
    def send(user_id: int) -> None: ...

    made = lq.workflow("mail")
    a = made.add("a", send.options(priority=3).call(1))
    many = made.add_many("part", [send.call(i) for i in range(4, 7)], after=a)
    made.add("join", send.call(2), after=[continues(many), a])
    made.add("alarm", send.options(queue="alarms").call(3), after=fires(many))
    return made


def enqueue(bench: Bench, wf: Workflow) -> WorkflowHandle:
    handle: WorkflowHandle = bench._settle((wf.aenqueue if bench.is_async else wf.enqueue)(bench.conn))
    return handle


def rows(database: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = database.execute(
        "SELECT meta ->> 'step', queue, priority, state::text, pending, children, limit_key, meta ->> 'flow' "
        "FROM leasequeue_job ORDER BY id"
    )
    return found


def test_a_workflow_exists_as_a_whole_or_not_at_all(bench: Bench, database: Any, wf: Workflow) -> None:
    enqueue(bench, wf)
    assert rows(database) == [], "seen before the commit"
    bench.rollback()
    handle = enqueue(bench, wf)
    bench.commit()
    assert rows(database) == [
        ("a", "default", 3, "r", None, 4, None, "mail"),
        ("part-0", "default", 0, "b", 1, 2, None, "mail"),
        ("part-1", "default", 0, "b", 1, 2, None, "mail"),
        ("part-2", "default", 0, "b", 1, 2, "user:6", "mail"),
        ("join", "default", 0, "b", 4, None, None, "mail"),
        ("alarm", "alarms", 0, "b", 3, None, None, "mail"),
    ]
    edges = database.execute(
        "SELECT on_failure::text, count(*) FROM leasequeue_edge JOIN leasequeue_job ON id = child_id GROUP BY 1 ORDER BY 1"
    )
    assert edges == [("c", 3), ("f", 3), ("x", 4)]
    steps = database.execute(
        "SELECT name, job_id FROM leasequeue_step WHERE workflow = %s ORDER BY job_id", (handle.id,)
    )
    assert dict(steps) == handle.jobs


def test_a_step_completes_and_adds_in_one_transaction(
    bench: Bench, database: Any, lq: LeaseQueue, wf: Workflow
) -> None:
    handle = enqueue(bench, wf)
    bench.commit()
    id = handle.jobs["a"]
    hold(database, id)
    text = json.dumps({"id": handle.id, "name": "mail", "step": "a"})
    ctx = JobContext(Held(id, 5, ME), "send", "default", 1, 8, schema=database.schema, linked=True, step=text, home=lq)
    step = ctx.workflow
    assert isinstance(step, Step)
    assert (step.id, step.name, step.step) == (handle.id, "mail", "a")
    send = lq.registry["send"]
    add = step.aadd if bench.is_async else step.add
    bench._settle(add("late", send.call(7), conn=bench.conn, after=["a", "part-0"]))
    bench.complete(ctx, {"n": 1})
    bench.commit()
    assert {row[0]: (row[3], row[4]) for row in rows(database)} == {
        "part-0": ("r", 0), "part-1": ("r", 0), "part-2": ("g", 0), "join": ("b", 3), "alarm": ("b", 3), "late": ("b", 1),
    }  # fmt: skip
    assert database.execute("SELECT outcome, result FROM leasequeue_finished") == [("succeeded", {"n": 1})]


def test_a_step_that_is_lost_is_refused(bench: Bench, database: Any, wf: Workflow) -> None:
    handle = enqueue(bench, wf)
    bench.commit()
    id = handle.jobs["a"]
    hold(database, id, holder=uuid.uuid4())
    ctx = JobContext(Held(id, 5, ME), "send", "default", 1, 8, schema=database.schema, linked=True)
    with pytest.raises(LeaseLost):
        bench.complete(ctx)
    bench.rollback()
    assert len(rows(database)) == 6


def test_autocommit_is_refused_before_a_step_is_written(database: Any, wf: Workflow) -> None:
    with psycopg.connect(database.url, autocommit=True, prepare_threshold=None) as conn:
        with pytest.raises(ConfigurationError, match="autocommit"):
            wf.enqueue(conn)
        assert rows(database) == []
        with conn.transaction():
            wf.enqueue(conn)
    assert len(rows(database)) == 6
