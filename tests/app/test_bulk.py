"""100,000 jobs in one call."""

from __future__ import annotations

from typing import Any

import pytest

from leasequeue import LeaseQueue
from leasequeue.db import enqueue


@pytest.mark.direct_only  # the contract suite runs the statement through the pooler; this one is about size
def test_a_hundred_thousand_in_one_call(database: Any) -> None:
    lq = LeaseQueue(schema=database.schema)
    lq.configure(url=database.url)

    @lq.task(name="send")
    def send(user_id: int) -> None: ...

    jobs = lq.enqueue_many(lq, [send.call(n) for n in range(100_000)])
    lq.dispose()
    assert len(jobs) == 100_000
    wrong = database.execute(
        f"SELECT count(*) FILTER (WHERE (args->>'user_id')::bigint <> id - {jobs[0].id}), count(*), "
        f"count(DISTINCT available_at) FROM leasequeue_job"
    )
    assert wrong == [(0, 100_000, 1)], "ids in the order of the calls, one transaction, one time"
    assert [job.id for job in jobs] == list(range(jobs[0].id, jobs[0].id + 100_000))


def test_chunks_are_bounded_in_rows_and_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    from leasequeue.job import NewJob

    monkeypatch.setattr(enqueue, "CHUNK_ROWS", 3)
    monkeypatch.setattr(enqueue, "CHUNK_CHARS", 10)
    sizes = [1, 1, 1, 1, 9, 1, 1, 50, 1]
    jobs = [NewJob("t", "q", "x" * size) for size in sizes]
    assert enqueue.chunks(jobs, list(range(len(jobs)))) == [[0, 1, 2], [3, 4], [5, 6], [7], [8]]
