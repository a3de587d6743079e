"""Waiting for a job: what it returned, how it ended, or at once that nobody can know."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from leasequeue import (
    ConfigurationError,
    Job,
    JobCancelled,
    JobExpired,
    JobFailed,
    LeaseQueue,
    NoResult,
    ResultTimeout,
    ResultUnavailable,
)
from leasequeue.db.program import run
from leasequeue.db.results import read_job
from leasequeue.testing import drain
from tests.results import app
from tests.support.waiting import until
from tests.support.workers import Worker

APP = "tests.results.app:lq"
SOON = dt.timedelta(seconds=20)
NOW = dt.timedelta(0)
NUMBER = uuid.UUID(int=7)

END = """WITH d AS (DELETE FROM leasequeue_job WHERE id = %s RETURNING *)
INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, result, error, meta)
SELECT id, queue, task, args, %s, 3, 1, created_at, %s, %s, %s FROM d"""


def end(
    database: Any, id: int, outcome: str, result: str | None = None, error: str | None = None, meta: str | None = None
) -> None:
    database.execute(END, [id, outcome, result, error, meta])


@pytest.fixture
def bill(lq: LeaseQueue) -> Any:
    @lq.task(name="bill")
    def bill(number: uuid.UUID) -> app.Invoice:
        raise NotImplementedError

    return bill


@pytest.mark.process
def test_what_a_worker_made_of_it(database: Any, lq: LeaseQueue, worker: Callable[..., Worker]) -> None:
    bill = lq.task(name="bill")(app.bill.function)
    abill = lq.task(name="abill")(app.abill.function)
    broken = lq.task(name="break_down")(app.break_down.function)
    worker(database, app=APP)
    wanted = app.Invoice(NUMBER, dt.date(2026, 1, 2), [("line 0", 0), ("line 1", 1)])
    jobs = [bill.enqueue(lq, NUMBER), abill.enqueue(lq, NUMBER), broken.enqueue(lq, "no ink\nleft")]
    assert jobs[0].result(SOON) == wanted, "rebuilt by the annotation"
    assert jobs[1].result(SOON) is None
    with pytest.raises(JobFailed, match=r"has failed after 1 attempt.*ValueError: no ink") as caught:
        jobs[2].result(SOON)
    failed = caught.value
    assert (failed.job_id, failed.task, failed.attempts, failed.retried_as) == (jobs[2].id, "break_down", 1, None)
    assert (failed.error_type, failed.error_message) == ("ValueError", "no ink\nleft")
    assert failed.traceback is not None
    assert "raise ValueError(why)" in failed.traceback
    said = jobs[2].progress()
    assert said is not None
    assert (said.done, said.total, said.note, said.fraction) == (2, 3, "nearly\\x00 there", 2 / 3), "the last value"
    assert jobs[0].progress() is None

    async def again() -> None:
        assert await (await bill.aenqueue(lq, NUMBER)).aresult(SOON) == wanted
        with pytest.raises(JobFailed):
            await lq.job(jobs[2].id).aresult()
        assert await jobs[2].aprogress() == said
        await lq.adispose()

    asyncio.run(again())
    elsewhere = LeaseQueue(schema=database.schema)
    elsewhere.configure(url=database.url)
    raw = elsewhere.job(jobs[0].id).result(NOW)
    assert raw == {"number": str(NUMBER), "due": "2026-01-02", "lines": [["line 0", 0], ["line 1", 1]]}
    elsewhere.dispose()


def test_inside_the_enqueuing_transaction_it_raises_at_once(lq: LeaseQueue, bill: Any) -> None:
    with lq.begin() as conn:
        job = bill.enqueue(conn, NUMBER)
        with pytest.raises(ResultUnavailable, match="has not committed yet"):
            job.result()
    with pytest.raises(ResultTimeout, match=r"has not ended within 0 s, it is ready"):
        job.result(NOW)
    with lq.engine.connect() as conn:
        gone = bill.enqueue(conn, NUMBER)
        conn.rollback()
    with pytest.raises(ResultUnavailable, match="or was rolled back"):
        gone.result()
    with pytest.raises(ResultUnavailable):
        gone.progress()


def test_how_it_ended(database: Any, lq: LeaseQueue, bill: Any) -> None:
    jobs = [bill.enqueue(lq, NUMBER) for _ in range(6)]
    end(database, jobs[0].id, "cancelled", error="cancelled by ann")
    end(database, jobs[1].id, "expired", error="Expired: it was to start by then")
    end(database, jobs[2].id, "failed", error="Abandoned: its process died", meta='{"retried_as": 77}')
    end(database, jobs[3].id, "succeeded", '{"number": "x"}')
    database.execute("DELETE FROM leasequeue_job WHERE id = %s", [jobs[4].id])  # as of a queue with keep=0
    with pytest.raises(JobCancelled, match=r"was cancelled \(cancelled by ann\)"):
        jobs[0].result()
    with pytest.raises(JobExpired, match=r"was not run \(Expired"):
        jobs[1].result()
    with pytest.raises(JobFailed, match="enqueued again as job 77, ask that one") as failed:
        jobs[2].result()
    assert (failed.value.attempts, failed.value.retried_as, failed.value.traceback) == (2, 77, None)
    with pytest.raises(Exception, match="the stored result"):
        jobs[3].result()
    with pytest.raises(ResultUnavailable, match="keep=0"):
        jobs[4].result()
    database.execute("UPDATE leasequeue_job SET available_at = now() + interval '1 h'")
    begun = time.monotonic()
    with pytest.raises(ResultTimeout, match="it is scheduled") as late:
        jobs[5].result(dt.timedelta(seconds=0.3))
    assert 0.3 <= time.monotonic() - begun < 5
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, NoResult)
    with pytest.raises(ConfigurationError, match="timeout is a timedelta"):
        jobs[5].result(3)
    with pytest.raises(ConfigurationError, match=r"use lq\.job\(5\)"):
        Job(5, True, "t", "q").result()


@pytest.mark.direct_only  # what the row's task decides is the same on any way
def test_the_task_of_the_row_says_what_comes_back(database: Any, lq: LeaseQueue, bill: Any) -> None:
    @lq.task(name="when")
    def when() -> dt.date:
        raise NotImplementedError

    first = when.options(unique_key="k").enqueue(lq)
    found = bill.options(unique_key="k").enqueue(lq, NUMBER)
    assert (found.id, found.created) == (first.id, False)
    end(database, first.id, "succeeded", '"2026-01-02"')
    assert found.result(NOW) == lq.job(first.id).result(NOW) == dt.date(2026, 1, 2)


@pytest.mark.direct_only  # a pooler does not change what a snapshot is
def test_a_job_that_ends_is_seen_at_every_moment(database: Any, lq: LeaseQueue, bill: Any) -> None:
    """``leasequeue_job`` is left and ``leasequeue_finished`` entered in one commit; two looks could miss it."""
    jobs = [bill.enqueue(lq, NUMBER) for _ in range(100)]
    with ThreadPoolExecutor(1) as pool:

        def end_all() -> None:
            for job in jobs:
                end(database, job.id, "succeeded")

        ending = pool.submit(end_all)
        for job in jobs:
            seen = run(lq, read_job, lq.schema, job.id, lq.checked)
            while seen is not None and not seen.ended:
                seen = run(lq, read_job, lq.schema, job.id, lq.checked)
            assert seen is not None
        ending.result()

    # The broken way, interleaved: a look at the history, the end, a look at the live jobs.
    last = bill.enqueue(lq, NUMBER)
    looks = []
    for table in ("leasequeue_finished", "leasequeue_job"):
        with lq.begin() as conn:
            looks.append(conn.execute(text(f"SELECT id FROM {table} WHERE id = {last.id}")).fetchall())
        if table == "leasequeue_finished":
            end(database, last.id, "succeeded")
    assert looks == [[], []], "two statements do miss it"


@pytest.mark.direct_only  # a drained test has one connection
def test_a_drained_test_does_not_wait_for_itself(database: Any, lq: LeaseQueue, bill: Any) -> None:
    @lq.task(name="parent")
    def parent() -> str:
        job = bill.enqueue(lq, NUMBER)
        with pytest.raises(ResultTimeout, match="it is ready"):
            job.result()
        return "did not hang"

    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as conn:
        parent.enqueue(conn)
        drained = drain(conn, lq=lq, raise_errors=False)
        assert drained.jobs[0].result == "did not hang"
        conn.rollback()
    engine.dispose()


@pytest.mark.process
@pytest.mark.direct_only  # the worker's writes are the same statement on any way
def test_progress_is_shown_while_it_runs(database: Any, lq: LeaseQueue, worker: Callable[..., Worker]) -> None:
    from click.testing import CliRunner

    from leasequeue.cli.main import main

    crawl = lq.task(name="crawl")(app.crawl.function)
    started = worker(database, app=APP)
    job = crawl.enqueue(lq, 30.0)
    until(lambda: (said := job.progress()) is not None and said.done == 100_000, 20, "the newest value to be written")
    said = job.progress()
    assert said is not None
    assert (said.total, said.note, said.fraction) == (400_000, "page 99999", 0.25)
    assert said.at is not None
    shown = CliRunner().invoke(main, ["jobs", "show", str(job.id), "--url", database.url])
    assert "100000/400000 (25 %), page 99999 (" in shown.output
    listed = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["jobs", "list", "--url", database.url])
    assert "100000/400000 (25 %)" in listed.output
    writes = database.scalar("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'leasequeue_job'")
    assert writes < 40, "100,000 values, one write a second"
    started.stop()
    assert job.progress() is None, "put back by the shutdown: the next attempt begins without it"
