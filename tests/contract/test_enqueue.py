"""What enqueue promises, over every kind of connection."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from leasequeue import InvalidArguments, LeaseQueue, SchemaMismatch, Task

from .kinds import Bench

UTC = dt.UTC


@pytest.fixture
def send(lq: LeaseQueue) -> Task[..., None]:
    @lq.task(name="send")
    def send(user_id: int, channel: str = "email") -> None: ...

    return send


def jobs(database: Any, columns: str = "id") -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = database.execute(f"SELECT {columns} FROM leasequeue_job ORDER BY id")
    return rows


def test_a_job_exists_once_its_transaction_has_committed(bench: Bench, database: Any, send: Task[..., None]) -> None:
    job = bench.enqueue(send, 7, channel="sms")
    assert jobs(database) == [], "seen before the commit"
    bench.commit()

    assert jobs(database, "id, task, queue, args, priority, state, attempt, available_at = created_at") == [
        (job.id, "send", "default", {"user_id": 7, "channel": "sms"}, 0, "r", 0, True)
    ]
    assert job.created
    assert (job.task, job.queue) == ("send", "default")


def test_only_the_arguments_given_are_stored(bench: Bench, database: Any, send: Task[..., None]) -> None:
    bench.enqueue(send, user_id=7)
    bench.commit()
    assert jobs(database, "args") == [({"user_id": 7},)]


def test_a_job_of_a_rolled_back_transaction_is_never_seen(bench: Bench, database: Any, send: Task[..., None]) -> None:
    bench.enqueue(send, 1)
    bench.rollback()
    job = bench.enqueue(send, 2)
    bench.commit()
    assert jobs(database, "id, args") == [(job.id, {"user_id": 2})]


def test_options(bench: Bench, database: Any, send: Task[..., None]) -> None:
    later = dt.datetime(2099, 1, 2, 3, 4, 5, 678, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    options = send.options(queue="mail", priority=-100, max_attempts=3)
    bench.enqueue(options.options(delay=dt.timedelta(minutes=5, milliseconds=250)), 1)
    bench.enqueue(options.options(run_at=later, priority=100), 2)
    bench.enqueue(send.options(run_at=dt.datetime(1990, 1, 1, tzinfo=UTC)), 3)
    bench.enqueue(send.options(delay=dt.timedelta(0)), 4)
    bench.commit()

    rows = jobs(database, "queue, priority, max_attempts, available_at - created_at, available_at")
    assert [row[:3] for row in rows] == [
        ("mail", -100, 3),
        ("mail", 100, 3),
        ("default", 0, None),
        ("default", 0, None),
    ]
    assert rows[0][3] == dt.timedelta(minutes=5, milliseconds=250)
    assert rows[1][4] == later
    assert rows[2][3] == rows[3][3] == dt.timedelta(0), "never due before it was enqueued"


def test_a_priority_is_noted_once_per_queue(bench: Bench, database: Any, send: Task[..., None]) -> None:
    for _ in range(2):
        bench.enqueue(send.options(priority=5), 1)
        bench.enqueue(send.options(priority=5, queue="mail"), 1)
        bench.enqueue(send, 1)
        bench.commit()
    lanes = database.execute("SELECT queue, priority FROM leasequeue_lane ORDER BY queue")
    assert lanes == [("default", 5), ("mail", 5)]


def test_many_keep_the_order_of_the_calls(bench: Bench, database: Any, lq: LeaseQueue, send: Any) -> None:
    @lq.task(name="other", queue="slow", max_attempts=2)
    def other(text: str) -> None: ...

    hour = dt.timedelta(hours=1)
    calls = [
        send.call(0),
        other.call("a"),
        send.options(priority=9, delay=hour).call(1),
        other.options(max_attempts=4).call("ä \\ \" ' {} NULL %s %(x)s :y"),
        send.options(run_at=dt.datetime(1990, 1, 1, tzinfo=UTC)).call(2),
    ] * 20
    found = bench.enqueue_many(lq, calls)
    bench.commit()

    assert all(job.created for job in found)
    ids = [job.id for job in found]
    assert ids == sorted(set(ids))
    rows = jobs(database, "id, task, queue, args, priority, max_attempts, available_at - created_at")
    assert [row[0] for row in rows] == ids
    assert rows[:5] == [
        (ids[0], "send", "default", {"user_id": 0}, 0, None, dt.timedelta(0)),
        (ids[1], "other", "slow", {"text": "a"}, 0, None, dt.timedelta(0)),
        (ids[2], "send", "default", {"user_id": 1}, 9, None, hour),
        (ids[3], "other", "slow", {"text": "ä \\ \" ' {} NULL %s %(x)s :y"}, 0, 4, dt.timedelta(0)),
        (ids[4], "send", "default", {"user_id": 2}, 0, None, dt.timedelta(0)),
    ]
    assert database.execute("SELECT queue, priority FROM leasequeue_lane") == [("default", 9)]


def test_many_of_none(bench: Bench, lq: LeaseQueue) -> None:
    assert bench.enqueue_many(lq, []) == []


def test_a_unique_key_finds_the_live_job(bench: Bench, database: Any, send: Task[..., None]) -> None:
    first = bench.enqueue(send.options(unique_key="u7"), 7)
    again = bench.enqueue(send.options(unique_key="u7"), 8)
    bench.commit()
    later = bench.enqueue(send.options(unique_key="u7"), 9)
    other = bench.enqueue(send.options(unique_key="u8"), 9)
    bench.commit()

    assert (first.created, again.created, later.created, other.created) == (True, False, False, True)
    assert first.id == again.id == later.id
    assert jobs(database, "id, args, unique_key") == [
        (first.id, {"user_id": 7}, "u7"),
        (other.id, {"user_id": 9}, "u8"),
    ]


def test_unique_keys_among_many(bench: Bench, database: Any, lq: LeaseQueue, send: Any) -> None:
    held = bench.enqueue(send.options(unique_key="b"), 0)
    bench.commit()
    calls = [
        send.options(unique_key=key).call(number) if key else send.call(number)
        for number, key in enumerate(["c", None, "b", "a", "c", None])
    ]
    found = bench.enqueue_many(lq, calls)
    bench.commit()

    assert [job.created for job in found] == [True, True, False, True, False, True]
    assert found[2].id == held.id
    assert found[4].id == found[0].id
    rows = {id: (args["user_id"], key) for id, args, key in jobs(database, "id, args, unique_key")}
    assert rows == {
        held.id: (0, "b"),
        found[0].id: (0, "c"),
        found[1].id: (1, None),
        found[3].id: (3, "a"),
        found[5].id: (5, None),
    }


def test_wrong_arguments_write_nothing(bench: Bench, database: Any, lq: LeaseQueue, send: Any) -> None:
    with pytest.raises(InvalidArguments, match="user_id"):
        bench.enqueue(send)
    with pytest.raises(InvalidArguments, match="colour"):
        bench.enqueue_many(lq, [*(send.call(n) for n in range(6)), send.call(6, colour="red")])
    bench.enqueue(send, 1)
    bench.commit()
    assert len(jobs(database)) == 1, "the transaction is not spoilt, and holds only what was right"


def test_missing_tables_are_named(bench: Bench, database: Any, lq: LeaseQueue) -> None:
    elsewhere = LeaseQueue(schema="no such schema")

    @elsewhere.task(name="send")
    def send() -> None: ...

    with pytest.raises(SchemaMismatch, match="leasequeue migrate"):
        bench.enqueue(send)
    bench.execute("SELECT 1")  # the look did not spoil the transaction
