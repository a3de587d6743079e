"""What ctx.complete(conn) promises, over every kind of connection."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest

from leasequeue import JobContext, LeaseLost, LeaseQueue
from leasequeue.job import Held

from .kinds import Bench

ME = uuid.UUID("7d1b8a7e-0000-4000-8000-000000000001")


@pytest.fixture
def ctx(database: Any, lq: LeaseQueue) -> JobContext:
    """A job that this process holds in term 5, for 30 seconds."""

    @lq.task(name="send")
    def send(user_id: int) -> None: ...

    job = send.enqueue(lq, 7)
    hold(database, job.id)
    database.execute("CREATE TABLE effect (n integer)")
    return JobContext(Held(job.id, 5, ME), "send", "default", 1, 8, schema=database.schema)


def hold(database: Any, id: int, *, term: int = 5, holder: uuid.UUID = ME, ttl_seconds: float = 30) -> None:
    database.execute(
        f"UPDATE leasequeue_job SET state = 'l', holder = '{holder}', term = {term}, attempt = 1, "
        f"claimed_at = now(), expires_at = clock_timestamp() + interval '{ttl_seconds} s' WHERE id = {id}"
    )


def count(database: Any, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}")[0][0])


def test_effects_and_completion_are_one_commit(bench: Bench, database: Any, ctx: JobContext) -> None:
    bench.execute("INSERT INTO effect VALUES (1)")
    bench.complete(ctx, {"sent": ["ä", 1]})
    assert ctx.completed
    assert count(database, "leasequeue_finished") == 0, "seen before the commit"
    bench.commit()

    assert count(database, "leasequeue_job") == 0
    rows = database.execute(
        "SELECT id, queue, task, args, outcome, attempt, abandoned, result, started_at IS NOT NULL, "
        "enqueued_at <= started_at FROM leasequeue_finished"
    )
    assert rows == [(ctx.id, "default", "send", {"user_id": 7}, "succeeded", 1, 0, {"sent": ["ä", 1]}, True, True)]
    assert count(database, "effect") == 1


def test_a_rolled_back_completion_leaves_the_job_held(bench: Bench, database: Any, ctx: JobContext) -> None:
    bench.complete(ctx)
    bench.rollback()
    assert database.execute("SELECT state, term FROM leasequeue_job") == [("l", 5)]
    assert count(database, "leasequeue_finished") == 0


@pytest.mark.parametrize("taken", ["another holder", "another term", "released", "gone"])
def test_a_refusal_aborts_the_transaction_even_if_swallowed(
    bench: Bench, database: Any, ctx: JobContext, taken: str
) -> None:
    if taken == "another holder":
        hold(database, ctx.id, holder=uuid.uuid4())
    elif taken == "another term":
        hold(database, ctx.id, term=6)
    elif taken == "released":
        database.execute("UPDATE leasequeue_job SET state = 'r', holder = NULL, expires_at = NULL")
    else:
        database.execute("DELETE FROM leasequeue_job")
    left = count(database, "leasequeue_job")

    bench.execute("INSERT INTO effect VALUES (1)")
    with pytest.raises(LeaseLost) as lost:
        bench.complete(ctx)
    assert lost.value.term == 5
    assert not ctx.completed
    try:
        bench.commit()  # as a handler that has swallowed the error would
    except Exception:  # noqa: BLE001  # some drivers refuse to commit what is aborted, and may
        bench.rollback()

    assert count(database, "effect") == 0
    assert count(database, "leasequeue_finished") == 0
    assert count(database, "leasequeue_job") == left


def test_a_queue_without_history_gets_none(bench: Bench, database: Any, ctx: JobContext) -> None:
    ctx.keep = False
    bench.complete(ctx)
    bench.commit()
    assert count(database, "leasequeue_job") == count(database, "leasequeue_finished") == 0


def test_a_refusal_without_history_aborts_too(bench: Bench, database: Any, ctx: JobContext) -> None:
    ctx.keep = False
    hold(database, ctx.id, term=6)
    with pytest.raises(LeaseLost):
        bench.complete(ctx)


SETTINGS = ("idle_in_transaction_session_timeout", "transaction_timeout")


def settings(bench: Bench, database: Any) -> list[str | None]:
    """The two time bounds as the bench's transaction sees them, written to a table by that transaction."""
    bench.execute("CREATE TABLE seen AS SELECT " + ", ".join(f"current_setting('{s}', true) AS {s}" for s in SETTINGS))
    bench.commit()
    found = database.execute("SELECT * FROM seen")[0]
    database.execute("DROP TABLE seen")
    return list(found)


def milliseconds(setting: str) -> int:
    units = {"ms": 1, "s": 1000, "min": 60_000}
    number = setting.rstrip("mins")
    return int(number) * units[setting[len(number) :] or "ms"]


def test_the_transaction_is_bounded_by_the_rest_of_the_lease(bench: Bench, database: Any, ctx: JobContext) -> None:
    before = settings(bench, database)
    bench.complete(ctx)
    for setting in settings(bench, database):
        if setting is not None:  # None: this server does not know it
            assert 20_000 < milliseconds(setting) <= 30_000
    assert settings(bench, database) == before, "it outlived the transaction"


def test_a_smaller_bound_of_the_caller_stays(bench: Bench, database: Any, ctx: JobContext) -> None:
    bench.execute("SET LOCAL idle_in_transaction_session_timeout = '7s'")
    bench.complete(ctx)
    assert settings(bench, database)[0] == "7s"


def test_a_lease_that_has_run_out_leaves_a_second(bench: Bench, database: Any, ctx: JobContext) -> None:
    hold(database, ctx.id, ttl_seconds=-5)
    bench.execute("SET LOCAL idle_in_transaction_session_timeout = '1min'")
    bench.complete(ctx)
    assert settings(bench, database)[0] == "1s"


def test_a_result_carries_rich_values(bench: Bench, database: Any, ctx: JobContext) -> None:
    bench.complete(ctx, dt.timedelta(seconds=1))
    bench.commit()
    assert database.execute("SELECT result IS NOT NULL FROM leasequeue_finished") == [(True,)]
