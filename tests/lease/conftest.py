from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leasequeue import LeaseQueue
from tests.support.databases import Database

Make = Callable[..., LeaseQueue]


@pytest.fixture
def make() -> Iterator[Make]:
    """``make(database)``: a LeaseQueue as another process would have it: nothing shared with the others."""
    made: list[LeaseQueue] = []

    def build(where: Database | str) -> LeaseQueue:
        lq = LeaseQueue()
        lq.configure(url=where if isinstance(where, str) else where.url)
        made.append(lq)
        return lq

    yield build
    for each in made:
        each.dispose()
