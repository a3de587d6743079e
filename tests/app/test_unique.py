"""A unique key while another transaction holds it (cases 27 and 53), by two connections interleaved on
purpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from leasequeue import Job, LeaseQueue
from tests.support.waiting import until

pytestmark = pytest.mark.direct_only  # the first connection holds its server connection while the second waits


@pytest.fixture
def lq(database: Any) -> Iterator[LeaseQueue]:
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()


@pytest.fixture
def send(lq: LeaseQueue) -> Any:
    @lq.task(name="send")
    def send(user_id: int) -> None: ...

    return send.options(unique_key="u7")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def wait_for_the_lock(database: Any) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    until(lambda: database.execute(waiting) == [(1,)], seconds=10, what="the second enqueue waits for the key")


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("ends_in", ["rollback", "commit"])
def test_the_second_waits_for_the_first(
    database: Any, lq: LeaseQueue, send: Any, pool: ThreadPoolExecutor, ends_in: str, bulk: bool
) -> None:
    def second() -> Job[Any]:
        if bulk:
            return lq.enqueue_many(lq, [send.call(2)])[0]
        job: Job[Any] = send.enqueue(lq, 2)
        return job

    with lq.engine.connect() as conn:
        first = send.enqueue(conn, 1)
        waiting: Future[Job[Any]] = pool.submit(second)
        wait_for_the_lock(database)
        getattr(conn, ends_in)()
        job = waiting.result(timeout=10)

    rows = database.execute("SELECT id, args FROM leasequeue_job")
    if ends_in == "commit":
        assert (job.id, job.created) == (first.id, False)
        assert rows == [(first.id, {"user_id": 1})]
    else:
        assert job.created
        assert rows == [(job.id, {"user_id": 2})], "the key was free again: the second one is the job"


def test_a_key_is_free_once_its_job_is_gone(database: Any, lq: LeaseQueue, send: Any) -> None:
    first = send.enqueue(lq, 1)
    database.execute("DELETE FROM leasequeue_job")
    again = send.enqueue(lq, 2)
    assert again.created
    assert again.id != first.id


def test_two_bulks_over_the_same_keys_do_not_deadlock(lq: LeaseQueue, send: Any) -> None:
    keys = [f"k{n}" for n in range(300)]
    with ThreadPoolExecutor(2) as pool:
        ways = [keys, keys[::-1]] * 3
        found = list(
            pool.map(lambda order: lq.enqueue_many(lq, [send.options(unique_key=k).call(1) for k in order]), ways)
        )
    ids = [{key: job.id for key, job in zip(order, jobs, strict=True)} for order, jobs in zip(ways, found, strict=True)]
    assert all(each == ids[0] for each in ids)
    assert sum(job.created for jobs in found for job in jobs) == len(keys)
