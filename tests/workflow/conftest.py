from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leasequeue import LeaseQueue
from tests.support.databases import Database
from tests.support.workers import Worker, workers


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """``worker(database, ttl_seconds=2.0, ...)`` starts a supervised worker; all of them end with the test."""
    yield from workers()


@pytest.fixture
def lq(database: Database) -> Iterator[LeaseQueue]:
    """A LeaseQueue of its own for each test."""
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()
