from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.limits.hand import Hand, Hands
from tests.support.databases import Database
from tests.support.workers import Worker, workers


@pytest.fixture
def hand(database: Database) -> Iterator[Hands]:
    """``hand("default", "mail")`` makes a claimer for these queues; all of them end with the test."""
    made: list[Hand] = []

    def make(*queues: str, ttl_seconds: float = 30.0, url: str | None = None) -> Hand:
        made.append(Hand(database, *queues, ttl_seconds=ttl_seconds, url=url))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    """``worker(database, ttl_seconds=2.0, ...)`` starts a supervised worker; all of them end with the test."""
    yield from workers()
