from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker, workers


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """``worker(database, ...)`` starts a supervised worker of the application of these tests, and waits until it serves."""
    made = workers()
    make = next(made)

    def start(database: Database, **options: Any) -> Worker:
        started: Worker = make(database, app="tests.running.app:lq", **options)
        # Its spare is not waited for: each process imports the application, and the machine may be busy.
        until(lambda: "started: database" in started.log, 60, "the worker to serve")
        return started

    yield start
    for _ in made:
        pass


def enqueue(database: Database, task: str, args: str = "{}", times: int = 1) -> list[int]:
    rows = database.execute(
        "INSERT INTO leasequeue_job (task, args) SELECT %s, %s::jsonb FROM generate_series(1, %s) RETURNING id",
        (task, args, times),
    )
    return [id for (id,) in rows]
