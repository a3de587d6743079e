"""A worker that has nothing to do: it costs little, and is late for nothing."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

import pytest

from tests.process.app import nap, noop
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

Start = Callable[..., Worker]

RESTED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasequeue claimer' AND datname = current_database() "
DONE = "SELECT count(*) FROM leasequeue_finished"


def _rest(worker: Worker, database: Database) -> None:
    """Until its claimer looks around only once a second."""
    until(lambda: "notifications arrive" in worker.log, 20, "the proof that notifications arrive")
    until(
        lambda: database.scalar(RESTED + "AND query_start < clock_timestamp() - interval '0.3 s'"), 20, "a long pause"
    )


@pytest.mark.direct_only
def test_it_costs_little_and_is_late_for_nothing(database: Database, worker: Start) -> None:
    one = worker(database, ttl_seconds=30.0).started()
    _rest(one, database)
    commits = "SELECT pg_stat_clear_snapshot(), xact_commit FROM pg_stat_database WHERE datname = current_database()"
    before, begun = int(database.execute(commits)[0][1]), time.monotonic()
    time.sleep(4.0)  # what is tested is a rate
    rate = (int(database.execute(commits)[0][1]) - before) / (time.monotonic() - begun)
    print(f"an idle worker: {rate:.1f} transactions a second")
    assert rate < 10

    kinds = (("announced", 0.25), ("soon", 0.25), ("plain SQL", 1.25), ("announced after a rest", 0.25))
    for done, (kind, bound) in enumerate(kinds, 1):
        _rest(one, database)
        due = time.monotonic()
        if kind == "plain SQL":
            database.execute("INSERT INTO leasequeue_job (task, args) VALUES ('noop', '{}')")
        else:
            delay = 0.4 if kind == "soon" else 0.0
            with database.connect() as conn:
                noop.options(delay=dt.timedelta(seconds=delay)).enqueue(conn)
            due = time.monotonic() + delay
        until(lambda: database.scalar(DONE) == done, 10, f"the job ({kind})", every=0.005)  # noqa: B023
        late = time.monotonic() - due
        print(f"{kind}: ended {late * 1000:.0f} ms after it was due")
        assert late < bound, kind


@pytest.mark.direct_only
def test_a_queue_that_is_full_does_not_wait_for_one_that_is_idle(database: Database, worker: Start) -> None:
    """Nobody tells the claimer that a slot is free; it must look, however quiet its other queue is."""
    one = worker(database, queues=(("full", 1), ("idle", 1)), ttl_seconds=30.0).started()
    until(lambda: "notifications arrive" in one.log, 20, "the proof that notifications arrive")
    with database.connect() as conn:
        first = nap.options(queue="full").enqueue(conn, 5.0).id
        second = nap.options(queue="full").enqueue(conn, 0.0).id
    until(lambda: database.scalar(DONE) == 2, 20, "both to end")
    gap = database.scalar(
        "SELECT extract(epoch FROM b.started_at - a.finished_at)::float8 "
        "FROM leasequeue_finished AS a, leasequeue_finished AS b WHERE a.id = %s AND b.id = %s", (first, second),
    )  # fmt: skip
    print(f"its slot was free for {gap * 1000:.0f} ms")
    assert gap < 0.3
