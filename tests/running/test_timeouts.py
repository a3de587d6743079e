"""Timeouts: soft, hard, and ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.ops import status
from leasequeue.ops.asking import Desk
from tests.running.conftest import enqueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.direct_only  # nothing here depends on what is between
Start = Callable[..., Worker]

RUNNING = "SELECT count(*) FROM leasequeue_job WHERE state = 'l'"


def test_a_thread_is_interrupted_and_goes_on_to_the_next_job(database: Database, worker: Start, tmp_path: Path) -> None:
    (spin,) = enqueue(database, "spin", json.dumps({"marks": str(tmp_path)}))
    (swallow,) = enqueue(database, "swallow_exception")
    started = worker(database, queues=(("default", 2),))
    failed = "SELECT attempt, error_type, message, traceback FROM leasequeue_failure WHERE job_id = %s"
    for id, line in ((spin, "in spin"), (swallow, "in swallow_exception")):
        ((attempt, kind, message, trace),) = until(lambda id=id: database.execute(failed, (id,)), 10)  # type: ignore[misc]
        assert (attempt, kind, message) == (1, "TimeoutError", "ran longer than its timeout of 0.5 s")
        assert line in trace
    assert (tmp_path / f"{spin}.timeout").exists()
    (after,) = enqueue(database, "work", '{"seconds": 0.1}')
    done = "SELECT result FROM leasequeue_finished WHERE id = %s AND outcome = 'succeeded'"
    until(lambda: database.execute(done, (after,)) == [("done",)], 10)
    assert started.stop() == 0


def test_who_ignores_his_timeout_is_said_and_his_end_is_refused(
    database: Database, worker: Start, tmp_path: Path
) -> None:
    """One of two slots is lost until he ends; the job has failed by then, and its late end does not count."""
    flag = tmp_path / "end"
    (id,) = enqueue(database, "zombie", json.dumps({"flag": str(flag)}))
    started = worker(database, queues=(("default", 2),), ttl_seconds=1.5)
    until(lambda: "goes on: its slot is lost" in started.log, 15, "it to be reported")
    finished = "SELECT outcome, attempt, error FROM leasequeue_finished WHERE id = %s"
    ((outcome, attempt, error),) = until(lambda: database.execute(finished, (id,)), 5, "the attempt to be ended")
    assert (outcome, attempt) == ("failed", 1)
    assert "timeout of 0.3 s, and its thread did not stop when told to" in error
    counters = "SELECT counters ->> 'lost_slots', counters -> 'overstaying' FROM leasequeue_worker WHERE pid = %s"
    (pid,) = started.serving(database)
    until(lambda: database.execute(counters, (pid,)) == [("1", {"zombie": 1})], 5, "its row to say it")
    link = Link(Settings.parse(database.url), application_name="test")
    link.connect()
    found = status.status(Desk(link, database.schema))
    link.close()
    assert [worker.lost_slots for worker in found.workers] == [1]
    (warning,) = [each for each in found.warnings if each.kind == "lost_slots"]
    assert "zombie" in warning.message
    # The other slot serves.
    enqueue(database, "work", '{"seconds": 0.01}', 5)
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished WHERE task = 'work'") == 5, 10)
    flag.touch()
    refused = "SELECT message FROM leasequeue_failure WHERE job_id = %s AND error_type = 'LeaseLost'"
    ((message,),) = until(lambda: database.execute(refused, (id,)), 10, "its end to be refused")
    assert "went on after its timeout" in message
    until(lambda: database.execute(counters, (pid,)) == [("0", {})], 5, "its slot to be free again")
    assert database.scalar("SELECT count(*) FROM leasequeue_finished WHERE id = %s", (id,)) == 1
    assert started.stop() == 0


def test_the_soft_timeout_comes_before(database: Database, worker: Start, tmp_path: Path) -> None:
    for task in ("slow", "aslow", "pslow", "quiet"):
        enqueue(database, task, '{"seconds": 1.0}')
    for task in ("slow", "aslow", "pslow"):
        enqueue(database, task, '{"seconds": 0.01}')
    started = worker(database, env={"SOFT_MARKS": str(tmp_path)})
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'") == 7, 20)
    marks = dict(path.name.split(".") for path in tmp_path.iterdir())
    assert sorted(marks) == ["aslow", "pslow", "slow"]
    (pid,) = started.serving(database)
    assert marks["slow"] == marks["aslow"] == str(pid)
    assert marks["pslow"] != str(pid)  # where the application's state is
    assert "(quiet) runs past its soft timeout of 0.2 s" in started.log
    assert database.scalar(RUNNING) == 0
    assert started.stop() == 0
