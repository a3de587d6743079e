from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.workers import Worker, workers

pytestmark = pytest.mark.process


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """``worker(database, ttl_seconds=2.0, ...)`` starts a supervised worker; all of them end with the test."""
    yield from workers()
