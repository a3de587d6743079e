"""A unique key while another transaction holds it (cases 27 and 53), by two connections interleaved on
purpose.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from leasequeue import ConfigurationError, DatabaseUnavailable, InvalidArguments, Job, LeaseQueue
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
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (wait_event_type = 'Lock' OR wait_event = 'PgSleep')"
    )
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


# A key for a period, and replacing: the same two connections.


@pytest.mark.parametrize("ends_in", ["rollback", "commit"])
def test_the_second_waits_for_the_first_to_take_the_period(
    database: Any, lq: LeaseQueue, send: Any, pool: ThreadPoolExecutor, ends_in: str
) -> None:
    hourly = send.options(unique_for=dt.timedelta(hours=1))
    with lq.engine.connect() as conn:
        first = hourly.enqueue(conn, 1)
        waiting: Future[Job[Any]] = pool.submit(hourly.enqueue, lq, 2)
        wait_for_the_lock(database)
        getattr(conn, ends_in)()
        job = waiting.result(timeout=10)
    assert job.created is (ends_in == "rollback")
    assert database.execute("SELECT id FROM leasequeue_job") == [(job.id,)]
    assert database.execute("SELECT job_id FROM leasequeue_hold") == [(job.id,)]
    assert (job.id == first.id) is (ends_in == "commit")


@pytest.mark.parametrize("way", ["life", "period"])
@pytest.mark.parametrize("then", ["claimed", "ended", "nothing"])
def test_a_call_that_replaces_goes_by_what_the_row_says_after_the_wait(
    database: Any, lq: LeaseQueue, send: Any, pool: ThreadPoolExecutor, then: str, way: str
) -> None:
    """A claim has the row locked and has not committed. What the call saw before, a row that waits, is no reason."""
    last = send.options(on_conflict="replace", unique_for=dt.timedelta(hours=1) if way == "period" else None)
    first = last.enqueue(lq, 1)
    claimer = database.connect()
    what = {
        "claimed": "UPDATE leasequeue_job SET state = 'l', holder = gen_random_uuid(), term = 1, expires_at = now() + '1 h'",
        "ended": "DELETE FROM leasequeue_job",
        "nothing": "SELECT FROM leasequeue_job FOR UPDATE",
    }[then]
    claimer.execute(what)
    waiting: Future[Job[Any]] = pool.submit(last.enqueue, lq, 2)
    wait_for_the_lock(database)
    claimer.commit()
    job = waiting.result(timeout=10)
    rows = database.execute("SELECT id, args -> 'user_id' FROM leasequeue_job")
    if then == "ended" and way == "life":
        assert (job.created, rows) == (True, [(job.id, 2)]), "the key is free: this is the job"
    else:
        assert (job.id, job.created, job.replaced) == (first.id, False, then == "nothing")
        assert rows == {"claimed": [(first.id, 1)], "ended": [], "nothing": [(first.id, 2)]}[then]


def test_two_transactions_with_opposite_orders_cost_one_of_them(
    lq: LeaseQueue, send: Any, pool: ThreadPoolExecutor, database: Any
) -> None:
    """What docs/uniqueness.md says of them: the server ends one, and the other goes on."""
    a, b = send.options(unique_key="a"), send.options(unique_key="b")
    with lq.engine.connect() as one, lq.engine.connect() as two:
        a.enqueue(one, 1)
        b.enqueue(two, 1)
        waiting: Future[Job[Any]] = pool.submit(b.enqueue, one, 2)
        wait_for_the_lock(database)
        errors: list[str] = []
        for attempt in (lambda: a.enqueue(two, 2), lambda: waiting.result(timeout=10)):
            try:
                attempt()
            except OperationalError as error:
                errors.append(str(error))
                two.rollback()
        assert ["deadlock detected" in error for error in errors] == [True]


def test_a_claim_frees_a_key_that_is_kept_until_started(database: Any, lq: LeaseQueue, send: Any) -> None:
    from leasequeue.db.jobs import job_statements

    started = send.options(unique="until_started")
    first, again = started.enqueue(lq, 1), started.enqueue(lq, 2)
    claim: Any = job_statements(lq.schema).claim
    lanes = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0]}
    params = lanes | {"k": 1, "me": uuid.uuid4(), "ttl": 9.0}
    assert len(database.execute(claim, params)) == 1
    later = started.enqueue(lq, 3)
    assert (again.id, again.created, later.created) == (first.id, False, True)
    database.execute(
        "UPDATE leasequeue_job SET state = 'r', holder = NULL, expires_at = NULL WHERE id = %s", [first.id]
    )  # as for a retry
    assert database.execute("SELECT id, unique_key FROM leasequeue_job ORDER BY id") == [
        (first.id, None),
        (later.id, "u7"),
    ]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"unique": "until_started"}, "say what a unique_key does"),
        ({"on_conflict": "raise"}, "say what a unique_key does"),
        ({"unique_key": "k", "unique": "until_done"}, "'until_finished' or 'until_started'"),
        ({"unique_key": "k", "on_conflict": "ignore"}, "'existing', 'replace' or 'raise'"),
        ({"unique_key": "k", "unique_for": dt.timedelta(0)}, "positive timedelta"),
        ({"unique_key": "k", "unique_for": 60}, "positive timedelta"),
        ({"unique_key": "k" * 513}, "512 bytes"),
        ({"unique_key": lambda nobody: "k"}, "has no such parameter"),
        ({"unique_key": 7}, "a text or a plain function"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], wrong: str) -> None:
    lq = LeaseQueue()

    def send(user_id: int) -> None: ...

    with pytest.raises(ConfigurationError, match=wrong):
        lq.task(name="send", **options)(send)
    plain = lq.task(name="plain")(send)
    with pytest.raises(ConfigurationError, match=wrong):
        plain.options(**options)
    with pytest.raises(InvalidArguments, match="unique_key"):
        plain.options(unique_key=lambda user_id: 7).call(1)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["life", "period"])
@pytest.mark.parametrize("bulk", [False, True])
def test_a_call_that_finds_the_job_running_locks_it_not(
    database: Any, lq: LeaseQueue, send: Any, bulk: bool, way: str
) -> None:
    """In a long transaction of the application: the running job must be renewed and completed meanwhile."""
    last = send.options(on_conflict="replace", unique_for=dt.timedelta(hours=1) if way == "period" else None)
    first = last.enqueue(lq, 1)
    database.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = gen_random_uuid(), term = 1, expires_at = now() + '1 h'"
    )
    with lq.engine.connect() as conn:
        job = lq.enqueue_many(conn, [last.call(2)])[0] if bulk else last.enqueue(conn, 2)
        assert (job.id, job.created, job.replaced) == (first.id, False, False)
        assert database.execute("SELECT id FROM leasequeue_job FOR UPDATE SKIP LOCKED") == [(first.id,)]


@pytest.mark.parametrize("way", ["life", "period"])
@pytest.mark.parametrize("bulk", [False, True])
def test_a_job_that_is_claimed_during_the_call_is_not_locked_by_it(
    database: Any, lq: LeaseQueue, send: Any, pool: ThreadPoolExecutor, bulk: bool, way: str
) -> None:
    """The call's snapshot says that the job waits; when its turn comes, a worker has it, and has to renew and complete it."""
    last = send.options(on_conflict="replace", unique_for=dt.timedelta(hours=1) if way == "period" else None)
    first = last.enqueue(lq, 1)
    claimer = database.connect()
    claimer.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = gen_random_uuid(), term = 1, expires_at = now() + '1 h'"
    )
    with lq.engine.connect() as conn:
        waiting = pool.submit(lambda: lq.enqueue_many(conn, [last.call(2)])[0] if bulk else last.enqueue(conn, 2))
        wait_for_the_lock(database)
        claimer.commit()
        job = waiting.result(timeout=10)
        assert (job.id, job.created, job.replaced) == (first.id, False, False)
        assert database.execute("SELECT id FROM leasequeue_job FOR UPDATE SKIP LOCKED") == [(first.id,)]


def test_a_row_that_stays_locked_is_said(
    database: Any, lq: LeaseQueue, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasequeue.db import unique

    monkeypatch.setattr(unique, "LOCKED_SECONDS", 0.1)
    last = send.options(on_conflict="replace")
    last.enqueue(lq, 1)
    somebody = database.connect()
    somebody.execute("SELECT FROM leasequeue_job FOR UPDATE")
    with pytest.raises(DatabaseUnavailable, match="locked"):
        last.enqueue(lq, 2)
    somebody.rollback()
    assert last.enqueue(lq, 2).replaced
