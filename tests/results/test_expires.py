"""Deadlines: what is not started in time ends as expired, whoever finds it so, and never runs late."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine

from leasequeue import ConfigurationError, LeaseQueue
from leasequeue.db.connect import Link
from leasequeue.db.ends import end_statements
from leasequeue.ops.asking import Desk
from leasequeue.ops.query import show_job
from leasequeue.ops.status import status
from leasequeue.testing import MovableClock, drain
from leasequeue.worker.chores import Expiry
from tests.support.waiting import until
from tests.support.workers import Worker

SECOND = dt.timedelta(seconds=1)
HISTORY = "SELECT id, outcome, attempt, started_at IS NULL, error FROM leasequeue_finished ORDER BY id"


@pytest.fixture
def report(lq: LeaseQueue) -> Any:
    @lq.task(name="report", expires=60 * SECOND)
    def report(n: int = 0) -> int:
        return n

    return report


def test_a_deadline_counts_from_when_the_job_is_due(database: Any, lq: LeaseQueue, report: Any) -> None:
    fixed = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)
    jobs = [
        report.enqueue(lq),
        report.options(delay=600 * SECOND).enqueue(lq),
        report.options(expires=fixed).enqueue(lq),
        *lq.enqueue_many(lq, [report.options(delay=600 * SECOND, expires=5 * SECOND).call(), report.options(
            expires=fixed).call()]),
    ]  # fmt: skip
    found = dict(
        database.execute("SELECT id, start_by - available_at FROM leasequeue_job WHERE start_by < '2098-01-01'")
    )
    assert [found.get(job.id) for job in jobs] == [60 * SECOND, 60 * SECOND, None, 5 * SECOND, None]
    assert database.execute("SELECT count(*) FROM leasequeue_job WHERE start_by = %s", [fixed]) == [(2,)]
    for wrong in (0, SECOND * 0, -SECOND, dt.datetime(2099, 1, 1), dt.timedelta(days=99_999)):  # noqa: DTZ001
        with pytest.raises(ConfigurationError, match="expires is a positive timedelta"):
            report.options(expires=wrong)


def test_a_chore_ends_what_waits_in_bounded_batches(database: Any, lq: LeaseQueue, link: Link, report: Any) -> None:
    late = "start_by = now() - interval '1 s'"
    waiting = [report.enqueue(lq, n) for n in range(4)]
    kept = [report.enqueue(lq, n) for n in range(5)]
    ids = [job.id for job in waiting]
    for state, more, id in (
        ("r", "", ids[0]),
        ("r", ", available_at = now() + interval '1 h', attempt = 2", ids[1]),
        ("g", ", limit_key = 'k'", ids[2]),
        ("q", ", abandoned = 1", ids[3]),
        ("l", ", holder = gen_random_uuid(), term = 1, expires_at = now() + interval '1 h'", kept[0].id),
        ("b", ", pending = 1", kept[1].id),
        ("r", ", children = 1", kept[2].id),
    ):
        database.execute(f"UPDATE leasequeue_job SET {late}, state = '{state}'{more} WHERE id = {id}")
    database.execute(f"UPDATE leasequeue_job SET {late} WHERE id = {kept[3].id}")
    held = database.connect()
    held.execute(f"SELECT FROM leasequeue_job WHERE id = {kept[3].id} FOR UPDATE")  # it is being claimed
    Expiry(lq.schema, end_statements(lq.schema))(link)
    held.rollback()

    rows = database.execute(HISTORY)
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (id, "expired", n) for id, n in zip(ids, [0, 2, 0, 0], strict=True)
    ]
    assert all(row[4].startswith("Expired: it was to start by 2") and row[4].endswith("Z") for row in rows)
    assert database.execute("SELECT id FROM leasequeue_job ORDER BY id") == [(job.id,) for job in kept]
    assert database.execute("SELECT key FROM leasequeue_wake") == [("k",)]

    lq.enqueue_many(lq, [report.call(n) for n in range(600)])
    database.execute(f"UPDATE leasequeue_job SET {late}")
    Expiry(lq.schema, end_statements(lq.schema))(link)
    assert database.execute(f"SELECT count(*) FROM ({HISTORY}) AS all_of_them") == [(504,)]
    desk = Desk(link, lq.schema)
    (warning,) = [each for each in status(desk).warnings if each.kind == "expired_jobs"]
    assert warning.message.startswith("task 'report': 504 job(s) expired within the last hour")
    assert show_job(desk, kept[4].id).start_by or show_job(desk, kept[4].id).row.state == "expired"


@pytest.mark.process
@pytest.mark.direct_only  # the deadline is the worker's own clock; the chore's is tested above
def test_what_is_claimed_too_late_does_not_run(database: Any, worker: Callable[..., Worker]) -> None:
    started = worker(database, queues=(("default", 1),)).started()
    first = "INSERT INTO leasequeue_job (task, args, priority) VALUES ('nap', '{\"seconds\": 1.5}', 1)"
    database.execute(first)
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 1, 10, "the first to run")
    late = "INSERT INTO leasequeue_job (task, start_by) SELECT 'noop', now() + interval '0.7 s' FROM generate_series(1, 20)"
    database.execute(late)
    database.execute("INSERT INTO leasequeue_job (task, start_by) VALUES ('noop', now() + interval '1 min')")
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job") == 0, 20, "all to end")
    outcomes = database.execute("SELECT outcome, count(*) FROM leasequeue_finished GROUP BY 1 ORDER BY 1")
    assert outcomes == [("expired", 20), ("succeeded", 2)]
    assert database.scalar("SELECT count(*) FROM leasequeue_failure") == 0
    assert started.stop() == 0


@pytest.mark.direct_only  # as above
def test_an_executor_that_got_it_in_time_and_starts_it_late(
    database: Any, lq: LeaseQueue, report: Any, link: Link
) -> None:
    """Claimed before its deadline, in a thread's hand after it: the completer writes it, by the fence."""
    import time
    import uuid

    from leasequeue.db.jobs import job_statements
    from leasequeue.loop import Outage
    from leasequeue.worker.complete import Completer
    from leasequeue.worker.execute import Executor
    from leasequeue.worker.hand import Claimed, Ended, Hand, Outcome

    report.enqueue(lq, 1)
    sql, me = job_statements(lq.schema), uuid.uuid4()
    claim = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0], "k": 1, "me": me, "ttl": 60.0}
    sent = time.monotonic()
    (row,) = link.run(sql.claim, claim)
    job = Claimed(row, me, "default", lq.registry["report"], sent)
    assert job.start_by is not None
    assert 59 < job.start_by - sent < 60.01
    executor = Executor(lq, [], None, lambda ended: None, lambda ended: None, 30.0, None)  # type: ignore[arg-type]  # no page, no pool
    ended = executor.prepare(job, job.start_by + 0.001)
    assert isinstance(ended, Ended)
    assert ended.outcome is Outcome.EXPIRED
    ends = end_statements(lq.schema)
    completer = Completer(link, Outage(), sql, None, Hand(), lambda queue: True, "me", "r", ends)  # type: ignore[arg-type]
    completer._write((Outcome.EXPIRED, me, ""), [ended])
    executor.loop.close()
    assert job.acknowledged
    ((_, outcome, attempt, unstarted, error),) = database.execute(HISTORY)
    assert (outcome, attempt, unstarted) == ("expired", 0, True)
    assert error.startswith("Expired: it was to start by ")


def test_a_drained_test_has_deadlines_too(database: Any, report: Any, lq: LeaseQueue) -> None:
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as conn:
        report.enqueue(conn, 1)
        report.options(delay=50 * SECOND).enqueue(conn, 2)
        clock = MovableClock()
        clock.move(70 * SECOND)
        drained = drain(conn, lq=lq, now=clock)
        assert [(ran.outcome, ran.result) for ran in drained.jobs] == [("expired", None), ("succeeded", 2)]
        conn.rollback()
    engine.dispose()
