"""Processes die, stop and hang; after each, every job has ended once or is still live, counted from the database."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.app import CREATE
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.process
Start = Callable[..., Worker]

FINISHED = "SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'"
LIVE = "SELECT count(*) FROM leasequeue_job"


def enqueue(database: Database, task: str, args: str = "{}", times: int = 1, priority: int = 0) -> list[int]:
    """By plain SQL, as from psql."""
    rows = database.execute(
        "INSERT INTO leasequeue_job (task, args, priority) SELECT %s, %s::jsonb, %s FROM generate_series(1, %s) RETURNING id",
        (task, args, priority, times),
    )
    return [id for (id,) in rows]


def started_pids(database: Database) -> list[int]:
    return [pid for (pid,) in database.execute("SELECT pid FROM leasequeue_worker")]


def advisory_locks(database: Database) -> int:
    return int(database.scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))


def test_a_killed_process_costs_less_than_a_second(database: Database, worker: Start) -> None:
    """The quickest of three deaths: beside other tests on two cores, a process waits for a second now and then."""
    started = worker(database, processes=2, ttl_seconds=20.0).standing_by()
    took: list[float] = []
    while not took or (min(took) >= 1.0 and len(took) < 3):
        until(lambda: len(started.serving(database)) == 2, 10, "both to serve")
        victim = started.serving(database)[0]
        enqueue(database, "nap", '{"seconds": 1}', 20)
        took.append(_death(database, victim))
        until(lambda: database.scalar(FINISHED) == 20 * len(took), 40, "all to finish")
    assert advisory_locks(database) == 0
    assert started.stop() == 0
    assert database.scalar(LIVE) == 0
    print(f"running again after {', '.join(f'{seconds:.3f}' for seconds in took)} s")
    assert min(took) < 1.0


@pytest.mark.direct_only  # how the dead is found does not depend on the way
def test_a_process_that_dies_before_there_is_a_spare_is_no_worse_than_one_that_starts(
    database: Database, worker: Start, tmp_path: Path
) -> None:
    enqueue(database, "nap", json.dumps({"seconds": 1, "marks": str(tmp_path)}), 4)
    started = worker(database, ttl_seconds=20.0)
    # Begun, not only claimed: what has not begun goes to any process.
    until(lambda: len(list(tmp_path.iterdir())) == 4, 20, "all to begin")
    (serving,) = until(lambda: started.serving(database), 5, "the row of the process")
    assert "stands by" not in started.log
    took = _death(database, serving)
    assert "stands by" in started.log
    until(lambda: database.scalar(FINISHED) == 4, 20, "all to finish")
    print(f"running again after {took:.3f} s")
    assert database.execute("SELECT max(attempt) FROM leasequeue_finished") == [(2,)]
    assert took < 5.0


def _death(database: Database, victim: int) -> float:
    """Kill a process that runs jobs; the seconds until one of them runs again."""
    mine = "SELECT id FROM leasequeue_job WHERE state = 'l' AND holder BETWEEN %s AND %s"
    (first,) = (row[0] for row in database.execute("SELECT id FROM leasequeue_worker WHERE pid = %s", (victim,)))
    last = f"{str(first)[:-8]}ffffffff"
    held = until(lambda: [i for (i,) in database.execute(mine, (first, last))], 5, "jobs on the victim")
    at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    again = "SELECT count(*) FROM leasequeue_job WHERE id = ANY(%s) AND state = 'l' AND NOT holder BETWEEN %s AND %s"
    until(lambda: database.scalar(again, (held, first, last)) >= 1, 5, "a job of the dead to run again")
    return time.monotonic() - at


def test_a_killed_tree_costs_one_ttl(database: Database, worker: Start) -> None:
    dead = worker(database, ttl_seconds=2.0).started()
    ids = enqueue(database, "nap", '{"seconds": 60}', 5)
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 5, 5)
    survivor = worker(database, ttl_seconds=2.0, shutdown_timeout_seconds=1.0).started()
    at = time.monotonic()
    dead.kill_tree()
    again = "SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND attempt = 2"
    until(lambda: database.scalar(again) == 5, 10, "all of its jobs to run again")
    took = time.monotonic() - at
    print(f"all running again after {took:.3f} s with a ttl of 2 s")
    assert survivor.stop() == 0
    # They saw that they should stop, and went back without an attempt spent.
    assert database.execute("SELECT id, state::text, attempt FROM leasequeue_job ORDER BY id") == [
        (i, "r", 1) for i in ids
    ]
    assert took < 2.0 + 1.0


def test_children_of_a_killed_supervisor_finish_and_end(database: Database, worker: Start, tmp_path: Path) -> None:
    started = worker(database).standing_by()
    children = started.children()
    enqueue(database, "nap", json.dumps({"seconds": 1, "marks": str(tmp_path)}), 5)
    # Not by their rows: what is leased and has not begun goes back, and nobody is left to take it.
    until(lambda: len(list(tmp_path.iterdir())) == 5, 5, "the five to begin")
    started.process.kill()
    started.process.wait()
    until(lambda: database.scalar(FINISHED) == 5, 10)
    until(lambda: not any(Path(f"/proc/{pid}").exists() and _alive(pid) for pid in children), 10, "the children to end")
    assert database.scalar("SELECT max(attempt) FROM leasequeue_finished") == 1


def test_the_late_completion_of_a_stopped_process_is_refused_and_said(database: Database, worker: Start) -> None:
    stopped = worker(database, ttl_seconds=1.5).started()
    enqueue(database, "nap", '{"seconds": 0.5}')
    pid = until(lambda: stopped.serving(database), 5)[0]
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 1, 5)
    os.kill(pid, signal.SIGSTOP)
    other = worker(database, ttl_seconds=1.5).started()
    until(lambda: database.scalar(FINISHED) == 1, 15, "the other to take it over")
    os.kill(pid, signal.SIGCONT)
    refusals = "SELECT message FROM leasequeue_failure WHERE error_type = 'LeaseLost'"
    until(lambda: database.execute(refusals), 10, "the refusal to be written")
    assert "refused:" in stopped.log
    assert database.scalar(FINISHED) == 1
    assert database.scalar("SELECT attempt FROM leasequeue_finished") == 2
    other.stop()


@pytest.mark.direct_only  # what is between the process and the server has no part in it
def test_a_blocked_event_loop_loses_no_lease(database: Database, worker: Start) -> None:
    started = worker(database, ttl_seconds=1.0, processes=1).standing_by()
    watcher = worker(database, ttl_seconds=1.0).started()
    enqueue(database, "block_loop", '{"seconds": 3.2}', 2)
    until(lambda: database.scalar(FINISHED) == 2, 20)
    assert database.execute("SELECT attempt, abandoned FROM leasequeue_finished") == [(1, 0), (1, 0)]
    assert "is lost" not in started.log + watcher.log


@pytest.mark.direct_only  # what is between the process and the server has no part in it
def test_a_handler_that_holds_the_interpreter_loses_no_lease(database: Database, worker: Start) -> None:
    started = worker(database, ttl_seconds=1.5).started()
    watcher = worker(database, ttl_seconds=1.5).started()
    enqueue(database, "hold_gil", '{"seconds": 4.5}')
    until(lambda: database.scalar(FINISHED) == 1, 20)
    assert database.execute("SELECT attempt, abandoned FROM leasequeue_finished") == [(1, 0)]
    assert "its leases are renewed for it: hold_gil" in started.log + watcher.log


@pytest.mark.direct_only  # what is between the process and the server has no part in it
def test_a_killer_takes_nobody_with_it(database: Database, worker: Start) -> None:
    enqueue(database, "nap", '{"seconds": 0.001}', 500)
    (killer,) = enqueue(database, "die")
    enqueue(database, "nap", '{"seconds": 0.001}', 500)
    started = worker(database, processes=2, ttl_seconds=10.0).standing_by()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 1001, 60)
    rows = database.execute("SELECT attempt, count(*) FROM leasequeue_finished WHERE id <> %s GROUP BY 1", (killer,))
    assert sum(count for _, count in rows) == 1000
    assert {attempt for attempt, _ in rows} <= {1, 2}
    ((outcome, abandoned, error),) = database.execute(
        "SELECT outcome, abandoned, error FROM leasequeue_finished WHERE id = %s", (killer,)
    )
    assert (outcome, abandoned) == ("failed", 3), error
    until(lambda: len(started.serving(database)) >= 2, 15, "two processes to serve again")
    assert started.stop() == 0


def test_a_claim_in_flight_is_released_within_a_second_of_its_process(database: Database, worker: Start) -> None:
    """The process dies while its claim waits in the server; the claim commits after the first release."""
    started = worker(database, ttl_seconds=30.0).standing_by()
    pid = until(lambda: started.serving(database), 5)[0]
    database.execute(
        "CREATE FUNCTION slow_term() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.state = 'l' AND OLD.state = 'r' AND NEW.attempt = 1 THEN PERFORM pg_sleep(1); END IF; "
        "RETURN NEW; END $$"
    )
    database.execute("CREATE TRIGGER slow BEFORE UPDATE ON leasequeue_job FOR EACH ROW EXECUTE FUNCTION slow_term()")
    enqueue(database, "noop")
    asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    until(lambda: database.scalar(asleep) == 1, 5, "the claim to be in flight")
    os.kill(pid, signal.SIGKILL)
    until(lambda: database.scalar(asleep) == 0, 5, "the claim to end in the server")
    at = time.monotonic()
    held = "SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND attempt = 1 AND clock_timestamp() > claimed_at"
    until(lambda: database.scalar(held) == 0, 5, "the claim to be released")
    took = time.monotonic() - at
    print(f"released {took:.3f} s after the claim had committed")
    until(lambda: database.scalar(FINISHED) == 1, 15, "the job to run elsewhere")
    assert took < 1.0
    assert database.scalar("SELECT attempt FROM leasequeue_finished") == 1


def test_a_process_stopped_inside_complete_frees_its_row_within_the_ttl(database: Database, worker: Start) -> None:
    database.execute(CREATE)
    started = worker(database, ttl_seconds=2.0).started()
    other = worker(database, ttl_seconds=2.0).started()
    enqueue(database, "stop_in_complete")
    at = time.monotonic()
    until(lambda: database.scalar(FINISHED) == 1, 15, "another to finish it")
    took = time.monotonic() - at
    print(f"finished elsewhere after {took:.2f} s with a ttl of 2 s")
    assert took < 2 * 2.0 + 2.0
    assert database.execute("SELECT attempt FROM effect") == [(2,)]
    for pid in (*started.children(), *other.children()):
        os.kill(pid, signal.SIGCONT)


def _alive(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"
