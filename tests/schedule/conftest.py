from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.schedule.hand import Hand
from tests.support.databases import Database
from tests.support.workers import Worker, workers

MakeHand = Callable[..., Hand]


@pytest.fixture
def hand() -> Iterator[MakeHand]:
    """``hand(database)``: a ticker of its own, connected."""
    made: list[Hand] = []

    def make(database: Database, *args: Any) -> Hand:
        made.append(Hand(database, *args))
        return made[-1]

    yield make
    for each in made:
        each.link.close()


@pytest.fixture
def worker() -> Iterator[Callable[..., Worker]]:
    yield from workers()
