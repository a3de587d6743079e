"""What unique keys promise, over every kind of connection."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from leasequeue import DuplicateJob, LeaseQueue, Task

from .kinds import Bench

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def send(lq: LeaseQueue) -> Task[..., None]:
    @lq.task(name="send", unique_key=lambda user_id: f"u{user_id}" if user_id else None)
    def send(user_id: int, text: str = "") -> None: ...

    return send


def rows(database: Any, columns: str = "id, args ->> 'text'") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = database.execute(f"SELECT {columns} FROM leasequeue_job ORDER BY id")
    return found


@pytest.mark.direct_only  # the statement is that of test_enqueue, which goes through the pooler
def test_a_function_makes_the_key_of_the_arguments(bench: Bench, database: Any, send: Any) -> None:
    jobs = [bench.enqueue(send, 7), bench.enqueue(send, user_id=7), bench.enqueue(send, 8), bench.enqueue(send, 0)]
    jobs += [bench.enqueue(send, 0)]
    with pytest.raises(DuplicateJob, match=f"job {jobs[0].id} already has the unique key 'u7'") as caught:
        bench.enqueue(send.options(on_conflict="raise"), 7)
    assert (caught.value.key, caught.value.job_id) == ("u7", jobs[0].id)
    bench.commit()
    assert [job.created for job in jobs] == [True, False, True, True, True]
    assert [key for (key,) in rows(database, "unique_key")] == ["u7", "u8", None, None]


def test_the_last_call_replaces_one_that_waits(bench: Bench, database: Any, send: Any) -> None:
    last = send.options(on_conflict="replace")
    first = bench.enqueue(last.options(delay=HOUR, max_attempts=3), 7, "first")
    bench.commit()
    again = bench.enqueue(last.options(delay=2 * HOUR, priority=4, limit_key="k", limit=1), 7, "again")
    bench.commit()
    assert ((first.created, first.replaced), (again.created, again.replaced)) == ((True, False), (False, True))
    assert first.id == again.id
    columns = "id, args ->> 'text', priority, max_attempts, state, limit_key, available_at - now() > '1 hour'"
    assert rows(database, columns) == [(first.id, "again", 4, None, "g", "k", True)]
    assert database.execute("SELECT key FROM leasequeue_wake") == [("k",)]

    database.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = gen_random_uuid(), term = 1, expires_at = now() + '1 h'"
    )
    late = bench.enqueue(last, 7, "late")
    bench.commit()
    assert (late.id, late.created, late.replaced) == (first.id, False, False), "one that runs stays as it is"
    assert rows(database) == [(first.id, "again")]


def test_a_key_for_a_period(bench: Bench, database: Any, send: Any) -> None:
    hourly = send.options(unique_for=HOUR, priority=2)
    first, again = bench.enqueue(hourly, 7, "first"), bench.enqueue(hourly, 7, "again")
    bench.commit()
    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert rows(database, "id, unique_key, args ->> 'text', priority") == [(first.id, None, "first", 2)]
    replaced = bench.enqueue(hourly.options(on_conflict="replace"), 7, "replaced")
    assert (replaced.id, replaced.created, replaced.replaced) == (first.id, False, True)
    bench.commit()
    assert rows(database) == [(first.id, "replaced")]

    database.execute("DELETE FROM leasequeue_job")  # it has ended: its period has not
    late = bench.enqueue(hourly.options(on_conflict="replace"), 7, "late")
    assert (late.id, late.created, late.replaced) == (first.id, False, False)
    with pytest.raises(DuplicateJob, match="period"):
        bench.enqueue(hourly.options(on_conflict="raise"), 7)
    bench.commit()
    database.execute("UPDATE leasequeue_hold SET expires_at = now()")
    later = bench.enqueue(hourly, 7, "later")
    bench.commit()
    assert later.created
    assert rows(database) == [(later.id, "later")]
    assert database.execute("SELECT job_id, expires_at > now() + '59 min' FROM leasequeue_hold") == [(later.id, True)]


@pytest.mark.direct_only  # the statements are those of the test before
def test_a_key_for_a_period_and_for_life(bench: Bench, database: Any, send: Any) -> None:
    both = send.options(unique_for=HOUR, unique="until_started", on_conflict="replace")
    first = bench.enqueue(both, 7, "first")
    bench.commit()
    assert first.created
    database.execute("UPDATE leasequeue_hold SET expires_at = now()")
    again = bench.enqueue(both, 7, "again")
    bench.commit()
    assert (again.id, again.created, again.replaced) == (first.id, False, True), "its period is over, it lives"
    assert rows(database, "id, args ->> 'text', unique_key, unique_until") == [(first.id, "again", "u7", "s")]
    database.execute("UPDATE leasequeue_job SET unique_key = NULL")
    later = bench.enqueue(both, 7, "later")
    bench.rollback()
    assert later.created
    assert rows(database) == [(first.id, "again")]
    assert database.execute("SELECT count(*) FROM leasequeue_hold WHERE expires_at > now()") == [(0,)]


def test_many_of_all_sorts_report_truly(bench: Bench, database: Any, lq: LeaseQueue, send: Any) -> None:
    held = bench.enqueue(send, 2, "held")
    bench.commit()
    last, hourly = send.options(on_conflict="replace"), send.options(unique_for=HOUR)
    calls = [
        (send.call(1, "a"), True, False),
        (send.call(2, "b"), False, False),
        (last.call(3, "c"), True, False),
        (send.call(0, "d"), True, False),
        (last.call(2, "e"), False, True),
        (last.call(3, "f"), False, True),
        (hourly.call(4, "g"), True, False),
        (send.call(1, "h"), False, False),
        (last.call(1, "i"), False, True),
        (hourly.options(on_conflict="replace").call(4, "j"), False, True),
        (hourly.options(unique="until_finished").call(5, "k"), True, False),
        (hourly.options(unique="until_finished").call(2, "l"), False, False),
        (send.call(5, "m"), False, False),
        (hourly.call(4, "n"), False, False),
    ]
    found = bench.enqueue_many(lq, [call for call, _, _ in calls])
    bench.commit()

    assert [(job.created, job.replaced) for job in found] == [each[1:] for each in calls]
    one, _, three, zero, *_ = (job.id for job in found)
    assert {job.id for job in found[1::3]} >= {held.id}
    assert dict(rows(database)) == {
        held.id: "e", one: "i", three: "f", zero: "d", found[6].id: "j", found[10].id: "k",
    }  # fmt: skip
    assert database.execute("SELECT unique_key FROM leasequeue_hold ORDER BY 1") == [("u4",), ("u5",)]
    with pytest.raises(DuplicateJob) as caught:
        bench.enqueue_many(lq, [send.call(9), send.options(on_conflict="raise").call(1)])
    assert caught.value.job_id == one
    bench.rollback()
    assert len(rows(database)) == 6
