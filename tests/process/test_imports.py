"""What a worker process has imported when it runs a job: not what neither the job nor the worker needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = [pytest.mark.process, pytest.mark.direct_only]  # nothing of it is the connection's


def test_a_worker_loads_no_sqlalchemy(database: Database, worker: Callable[..., Worker]) -> None:
    """Neither to start, claim, run and complete, nor in the child process of a task that has one."""
    database.execute("INSERT INTO leasequeue_job (task) VALUES ('loaded'), ('loaded_apart')")
    worker(database)
    ended = "SELECT count(*) FROM leasequeue_finished WHERE outcome = 'succeeded'"
    until(lambda: database.scalar(ended) == 2, 30, "the two jobs")
    assert database.execute("SELECT task, result::text FROM leasequeue_finished ORDER BY task") == [
        ("loaded", "[]"),
        ("loaded_apart", "[]"),
    ]
