from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasequeue import LeaseQueue
from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from tests.support.workers import Worker, workers


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """``worker(database, ...)`` starts a supervised worker; all of them end with the test."""
    yield from workers()


@pytest.fixture
def lq(database: Any) -> Iterator[LeaseQueue]:
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()


@pytest.fixture
def link(database: Any) -> Iterator[Link]:
    made = Link(Settings.parse(database.url), application_name="test", bound_seconds=20.0)
    made.connect()
    yield made
    made.close()
