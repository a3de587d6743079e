"""Workflows as an application uses them; run inside of a test's transaction, or by hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from leasequeue import (
    ConfigurationError,
    JobFailed,
    LeaseQueue,
    ResultTimeout,
    Task,
    WorkflowRefused,
    batch,
    chain,
    continues,
    current_job,
    fires,
    group,
)
from leasequeue.testing import drain
from tests.support.databases import Database


@pytest.fixture
def lq(database: Database) -> Iterator[LeaseQueue]:
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()


@pytest.fixture
def conn(database: Database) -> Iterator[Connection]:
    engine = create_engine(
        database.url.replace("postgresql:", "postgresql+psycopg:"),
        poolclass=NullPool,
        connect_args={"prepare_threshold": None},
    )
    with engine.connect() as opened:
        yield opened
        opened.rollback()


class Kit:
    """Tasks that note what ran, in order."""

    def __init__(self, lq: LeaseQueue) -> None:
        self.ran: list[str] = []
        self.lq = lq

        @lq.task(name="say", max_attempts=1)
        def say(word: str) -> str:
            self.ran.append(word)
            return word.upper()

        @lq.task(name="boom", max_attempts=1)
        def boom(word: str = "boom") -> None:
            self.ran.append(word)
            raise ValueError(word)

        @lq.task(name="gather", max_attempts=1)
        def gather() -> dict[str, Any]:
            step = current_job().workflow
            assert step is not None
            self.ran.append(step.step)
            return step.results()

        self.say: Task[..., str] = say
        self.boom: Task[..., None] = boom
        self.gather: Task[..., dict[str, Any]] = gather


@pytest.fixture
def kit(lq: LeaseQueue) -> Kit:
    return Kit(lq)


def outcomes(conn: Connection, lq: LeaseQueue) -> dict[str, str]:
    rows = conn.exec_driver_sql(
        "SELECT coalesce(meta ->> 'step', task), CASE WHEN meta ? 'skipped' THEN 'skipped' ELSE outcome END "
        "FROM leasequeue_finished"
    )
    return {str(name): str(outcome) for name, outcome in rows}


def test_a_join_runs_when_all_have_and_reads_their_results(conn: Connection, lq: LeaseQueue, kit: Kit) -> None:
    wf = lq.workflow("report")
    first = wf.add("first", kit.say.call("first"))
    parts = wf.add_many("part", [kit.say.call(f"p{i}") for i in range(3)], after=first)
    wf.add("join", kit.gather.call(), after=parts)
    handle = wf.enqueue(conn)
    assert list(handle.jobs) == ["first", "part-0", "part-1", "part-2", "join"]
    rows = conn.exec_driver_sql("SELECT state::text, pending, children FROM leasequeue_job ORDER BY id").all()
    assert rows == [("r", None, 3), ("b", 1, 1), ("b", 1, 1), ("b", 1, 1), ("b", 3, None)]
    drained = drain(conn, lq=lq)
    assert kit.ran == ["first", "p0", "p1", "p2", "join"]
    assert drained.jobs[-1].result == {"part-0": "P0", "part-1": "P1", "part-2": "P2"}
    assert set(outcomes(conn, lq).values()) == {"succeeded"}


def test_what_a_failure_means_is_said_by_each_edge(conn: Connection, lq: LeaseQueue, kit: Kit) -> None:
    wf = lq.workflow()
    bad = wf.add("bad", kit.boom.call())
    good = wf.add("good", kit.say.call("good"))
    wf.add("cancelled", kit.say.call("cancelled"), after=[good, bad])
    wf.add("cancelled too", kit.say.call("cancelled too"), after="cancelled")
    wf.add("goes on", kit.say.call("goes on"), after=[continues(bad), good])
    wf.add("goes on behind", kit.say.call("goes on behind"), after=continues("cancelled too"))
    wf.add("alarm", kit.say.call("alarm"), after=fires(bad, good))
    wf.add("no alarm", kit.say.call("no alarm"), after=fires(good))
    wf.add("behind no alarm", kit.say.call("behind no alarm"), after="no alarm")
    wf.enqueue(conn)
    drain(conn, lq=lq, raise_errors=False)
    assert sorted(kit.ran) == ["alarm", "boom", "goes on", "goes on behind", "good"]
    assert outcomes(conn, lq) == {
        "bad": "failed",
        "good": "succeeded",
        "cancelled": "cancelled",
        "cancelled too": "cancelled",
        "goes on": "succeeded",
        "goes on behind": "succeeded",
        "alarm": "succeeded",
        "no alarm": "skipped",
        "behind no alarm": "skipped",
    }
    errors: dict[str, str] = dict(
        conn.exec_driver_sql("SELECT meta ->> 'step', error FROM leasequeue_finished WHERE outcome = 'cancelled'").all()
    )
    assert "(boom), which it comes after, ended as failed" in errors["cancelled"]
    assert "was cancelled in turn" in errors["cancelled too"]
    assert errors["no alarm"].startswith("NotNeeded:")


def test_short_forms(conn: Connection, lq: LeaseQueue, kit: Kit) -> None:
    chain(
        kit.say.call("a"), group(kit.say.call("b"), chain(kit.say.call("c"), kit.say.call("d"))), kit.gather.call()
    ).enqueue(conn)
    drained = drain(conn, lq=lq)
    assert kit.ran == ["a", "b", "c", "d", "5:gather"]
    assert drained.jobs[-1].result == {"2:say": "B", "4:say": "D"}
    kit.ran.clear()
    batch(
        [kit.say.call("x"), kit.boom.call()], on_completed=kit.say.call("done"), on_failure=kit.say.call("oh")
    ).enqueue(conn)
    drain(conn, lq=lq, raise_errors=False)
    assert sorted(kit.ran) == ["boom", "done", "oh", "x"]
    kit.ran.clear()
    batch([kit.say.call("x")], on_completed=kit.say.call("done"), on_failure=kit.say.call("oh")).enqueue(conn)
    drain(conn, lq=lq)
    assert kit.ran == ["x", "done"]


@pytest.mark.parametrize(
    "kind", ["circle", "unknown", "double", "itself", "mixed", "fires twice", "key", "held key", "no call", "empty"]
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    conn: Connection, database: Database, lq: LeaseQueue, kit: Kit, kind: str
) -> None:
    wf = lq.workflow()
    say = kit.say.call("x")
    with pytest.raises(ConfigurationError) as refused:  # noqa: PT012  # some are refused by add, some by enqueue
        if kind == "circle":
            wf.add("a", say, after="c")
            wf.add("b", say, after="a")
            wf.add("c", say, after="b")
            wf.add("behind", say, after="c")
        elif kind == "unknown":
            wf.add("a", say, after="nobody")
        elif kind == "double":
            wf.add("a", say)
            wf.add("a", say)
        elif kind == "itself":
            wf.add("a", say, after="a")
        elif kind == "mixed":
            wf.add("a", say)
            wf.add("b", say, after=[fires("a"), "c"])
        elif kind == "fires twice":
            wf.add("a", say)
            wf.add("b", say, after=fires("a"))
            wf.add("c", say, after="b")
            wf.add("d", say, after=fires("c"))
        elif kind == "key":
            wf.add("a", kit.say.options(unique_key="k").call("x"))
        elif kind == "held key":
            wf.add("a", kit.say.options(unique_key="k", unique_for=dt.timedelta(hours=1)).call("x"))
        elif kind == "no call":
            wf.add("a", kit.say)  # type: ignore[arg-type]
        wf.enqueue(conn)
    said = str(refused.value)
    wanted = {"circle": "'a' -> 'b' -> 'c' -> 'a'", "unknown": "'nobody'", "double": "'a'", "itself": "itself"}
    assert wanted.get(kind, "") in said
    assert conn.exec_driver_sql("SELECT count(*) FROM leasequeue_workflow").scalar() == 0


def test_steps_are_added_while_it_runs(conn: Connection, lq: LeaseQueue, kit: Kit) -> None:
    @lq.task(name="spread", max_attempts=1)
    def spread(n: int) -> None:
        step = current_job().workflow
        assert step is not None
        with lq.begin() as own:
            parts = step.add_many("part", [kit.say.call(f"p{i}") for i in range(n)], conn=own, after=step.step)
            step.add("join", kit.gather.call(), conn=own, after=parts)
            step.add("at once", kit.say.call("at once"), conn=own, after="before")
            step.add("never", kit.say.call("never"), conn=own, after="bad")
            step.add("behind never", kit.say.call("x"), conn=own, after="never")
            step.add("fired", kit.say.call("fired"), conn=own, after=fires("bad", step.step))
            step.add("not fired", kit.say.call("not fired"), conn=own, after=fires("before"))
            with pytest.raises(WorkflowRefused, match="'before' already"):
                step.add("before", kit.say.call("again"), conn=own)
            step.add("before", kit.say.call("again"), conn=own, exist_ok=True)
            with pytest.raises(WorkflowRefused, match="'nobody'"):
                step.add("x", kit.say.call("again"), conn=own, after="nobody")
        assert step.result("before") == "BEFORE"
        with pytest.raises(JobFailed, match="failed"):
            step.result("bad")

    wf = lq.workflow("late")
    wf.add("before", kit.say.call("before"))
    wf.add("bad", kit.boom.call())
    wf.add("spread", spread.call(2), after=[continues("bad"), "before"])
    wf.enqueue(conn)
    drained = drain(conn, lq=lq, raise_errors=False)
    assert [str(ran.error) for ran in drained.jobs if ran.error] == ["boom"]
    assert sorted(kit.ran) == ["at once", "before", "boom", "fired", "join", "p0", "p1"]
    found = outcomes(conn, lq)
    assert (found["never"], found["behind never"], found["not fired"]) == ("cancelled", "cancelled", "skipped")


def test_status_result_cancel_and_retry(database: Database, lq: LeaseQueue, kit: Kit) -> None:
    wf = lq.workflow("whole")
    wf.add("a", kit.say.call("a"))
    wf.add("b", kit.boom.call(), after="a")
    wf.add("c", kit.say.call("c"), after="b")
    wf.add("other", kit.say.options(queue="elsewhere").call("other"), after="a")
    handle = wf.enqueue(lq)
    again = lq.workflow_of(handle.id)
    assert again.status().state == "running"
    assert again.status().counts == {"ready": 1, "waiting": 3}
    work(lq, database)
    status = again.status()
    assert (status.state, status.counts) == ("running", {"succeeded": 1, "failed": 1, "cancelled": 1, "ready": 1})
    assert again.result("a") == "A"
    with pytest.raises(JobFailed, match="boom"):
        again.result("b")
    with pytest.raises(ResultTimeout):
        again.result("other", dt.timedelta(0))
    again.cancel()
    assert again.status().counts == {"succeeded": 1, "failed": 1, "cancelled": 2}
    rows = {row.name: row for row in again.steps()}
    assert (rows["c"].after, rows["c"].state) == ({"b": "x"}, "cancelled")

    new = again.retry()
    assert set(new) == {"b", "c", "other"}
    assert again.status().counts == {"succeeded": 1, "ready": 2, "waiting": 1}
    with pytest.raises(WorkflowRefused, match="nothing"):
        again.retry()
    with pytest.raises(WorkflowRefused, match="behind 'a', has been released"):
        again.retry("a")
    work(lq, database, ("default", "elsewhere"))
    assert again.status().counts == {"succeeded": 2, "failed": 1, "cancelled": 1}
    new = again.retry("a")
    assert set(new) == {"a", "b", "c", "other"}
    assert again.status().counts == {"ready": 1, "waiting": 3}
    work(lq, database, ("default", "elsewhere"))
    assert again.status().counts == {"succeeded": 2, "failed": 1, "cancelled": 1}
    assert kit.ran == ["a", "boom", "boom", "other", "a", "boom", "other"]


def work(lq: LeaseQueue, database: Database, queues: tuple[str, ...] = ("default",)) -> None:
    """What a worker would do, and commit it."""
    with lq.engine.connect() as conn, conn.begin():
        while drain(conn, lq=lq, raise_errors=False, queues=queues).jobs:
            pass
