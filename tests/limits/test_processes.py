"""Limits kept by whole workers: their processes, their crashes, and what they say."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from leasequeue import LeaseQueue
from tests.limits.app import CREATE, by_user, few, for_tenant, free, killer, lq, rated, serial, serial_apart
from tests.limits.hand import rule
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

APP = "tests.limits.app:lq"
_ONCE = pytest.mark.direct_only  # whole workers are slow to start; the gate itself is tested either way


def _most_at_once(database: Database, key: str) -> int:
    """The most that ran at one moment, by the intervals that the handlers wrote."""
    return int(
        database.scalar(
            "SELECT max(running) FROM (SELECT sum(step) OVER (ORDER BY at, step) AS running FROM ("
            "  SELECT began AS at, 1 AS step FROM ran WHERE key = %s UNION ALL SELECT ended, -1 FROM ran WHERE key = %s"
            ") AS steps) AS counted",
            (key, key),
        )
    )


def _ran(database: Database, key: str | None = None) -> int:
    """How many jobs ran; without those of the schedule, which go on all the time, unless they are asked for."""
    counted = (
        "SELECT count(DISTINCT job) FROM ran WHERE CASE WHEN %s::text IS NULL THEN key <> 'ticking' ELSE key = %s END"
    )
    return int(database.scalar(counted, (key, key)))


@pytest.fixture
def app(database: Database) -> LeaseQueue:
    database.execute(CREATE)
    return lq


def _enqueue(database: Database, calls: list[object]) -> None:
    import psycopg

    with psycopg.connect(database.direct_url, prepare_threshold=None) as conn:
        lq.enqueue_many(conn, calls)  # type: ignore[arg-type]  # calls of several tasks


def test_limits_hold_over_all_processes(database: Database, app: LeaseQueue, worker: Callable[..., Worker]) -> None:
    _enqueue(database, [by_user.call(n % 5, 0.02) for n in range(60)])
    _enqueue(database, [few.call(0.02) for _ in range(30)])
    _enqueue(database, [free.call() for _ in range(100)])
    for _ in range(2):
        worker(database, app=APP, processes=2, queues=(("default", 8),))

    until(lambda: _ran(database) == 190, 60, "all to run")
    assert all(_most_at_once(database, f"user:{user}") <= 2 for user in range(5))
    assert _most_at_once(database, "few") <= 3
    assert database.scalar("SELECT count(DISTINCT pid) FROM ran") > 1


@_ONCE
def test_serial_keys_run_in_order(database: Database, app: LeaseQueue, worker: Callable[..., Worker]) -> None:
    for _ in range(20):
        _enqueue(database, [serial.call(name) for name in ("a", "b", "c")])
    worker(database, app=APP, processes=2)

    until(lambda: _ran(database) == 60, 60, "all to run")
    for name in ("a", "b", "c"):
        assert _most_at_once(database, name) == 1
        jobs = [job for (job,) in database.execute("SELECT job FROM ran WHERE key = %s ORDER BY began", (name,))]
        assert jobs == sorted(jobs)


@_ONCE
def test_a_serial_key_goes_on_where_its_jobs_complete_in_child_processes(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    _enqueue(database, [serial_apart.call("apart") for _ in range(3)])
    worker(database, app=APP)
    until(lambda: _ran(database, "apart") == 3, 40, "all to run")
    assert _most_at_once(database, "apart") == 1
    assert {pid for (pid,) in database.execute("SELECT pid FROM ran WHERE key = 'apart'")}.isdisjoint(
        pid for (pid,) in database.execute("SELECT pid FROM leasequeue_worker")
    )


@_ONCE
def test_a_crashed_holder_frees_its_key(database: Database, app: LeaseQueue, worker: Callable[..., Worker]) -> None:
    _enqueue(database, [serial.call("s", 60.0), serial.call("s", 0.0)])
    first = worker(database, app=APP, ttl_seconds=2.0).started()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND task = 'serial'") == 1)
    first.kill_tree()
    database.execute('UPDATE leasequeue_job SET args = \'{"name": "s"}\'')
    worker(database, app=APP, ttl_seconds=2.0)
    until(lambda: _ran(database) == 2, 20, "both to run")


@_ONCE
def test_jobs_that_kill_their_process_run_alone_and_within_their_limit(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    _enqueue(database, [killer.call(1), killer.call(0), killer.call(1)])
    worker(database, app=APP, processes=2, ttl_seconds=2.0)
    until(lambda: _ran(database, "killers") == 3, 60, "all to run in the end")
    assert _most_at_once(database, "killers") == 1


@_ONCE
def test_rates_and_tenants(database: Database, app: LeaseQueue, worker: Callable[..., Worker]) -> None:
    _enqueue(database, [rated.call() for _ in range(15)])
    _enqueue(database, [for_tenant.call("big", 0.01) for _ in range(3000)])
    _enqueue(database, [for_tenant.call("small", 0.01) for _ in range(10)])
    worker(database, app=APP, queues=(("default", 4),))

    until(lambda: _ran(database, "small") == 10, 60, "the small tenant's jobs")
    assert _ran(database, "big") < 200
    until(lambda: _ran(database, "rated") == 15, 30)
    began = [
        at for (at,) in database.execute("SELECT extract(epoch FROM at)::float8 FROM leasequeue_admission ORDER BY at")
    ]
    assert len(began) >= 3


@_ONCE
def test_plain_sql_and_schedules_pass_the_gate(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    args = '{"name": "sql", "seconds": 0.01}'
    database.execute(
        "INSERT INTO leasequeue_job (task, args) SELECT 'serial', %s::jsonb FROM generate_series(1, 10)", (args,)
    )
    worker(database, app=APP, processes=2)
    until(lambda: _ran(database, "sql") == 10 and _ran(database, "ticking") >= 2, 60, "all to run")
    assert _most_at_once(database, "sql") == 1
    assert _most_at_once(database, "ticking") == 1


@_ONCE
def test_a_limit_of_the_queue_that_comes_later(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    worker(database, app=APP, processes=2).started()
    rule(database, "queue:default", 2)
    until(
        lambda: database.scalar("SELECT clock_timestamp() > max(updated_at) + interval '2 s' FROM leasequeue_limit"),
        20,
        "every worker to have read the limit",
    )  # fmt: skip
    _enqueue(database, [free.call(0.02) for _ in range(40)])
    until(lambda: _ran(database, "free") == 40, 60, "all to run")
    assert _most_at_once(database, "free") <= 2


@_ONCE
def test_ready_and_limited_jobs_share_the_slots(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    _enqueue(database, [free.call(0.01) for _ in range(300)])
    _enqueue(database, [by_user.call(user, 0.01) for user in range(300)])
    worker(database, app=APP, queues=(("default", 2),))
    until(lambda: _ran(database) == 600, 60, "all to run")
    keys = [key == "free" for (key,) in database.execute("SELECT key FROM ran ORDER BY began LIMIT 200")]
    print(f"of the first 200 jobs {sum(keys)} were without a limit")
    assert 60 < sum(keys) < 140


@_ONCE
def test_a_worker_that_is_stopped_lets_go_of_its_keys(
    database: Database, app: LeaseQueue, worker: Callable[..., Worker]
) -> None:
    _enqueue(database, [serial.call("s", 30.0), serial.call("s")])
    first = worker(database, app=APP, shutdown_timeout_seconds=0.5).started()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND task = 'serial'") == 1)
    first.signal(signal.SIGTERM)
    first.process.wait(30)
    assert database.execute("SELECT state::text FROM leasequeue_job WHERE task = 'serial'") == [("g",), ("g",)]
