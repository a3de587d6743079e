from __future__ import annotations

import re
import time

import pytest

from leasequeue.db import inspect
from leasequeue.ops import attention, query, status
from leasequeue.ops.asking import Desk
from tests.ops.conftest import Rows
from tests.support.databases import Database


def _kinds(found: status.Status) -> list[tuple[str, str]]:
    return [(warning.kind, warning.subject) for warning in found.warnings]


def test_an_empty_database_has_nothing_to_say(desk: Desk) -> None:
    found = status.status(desk)
    assert (found.workers, found.queues, found.failures, found.warnings, found.not_read) == ((), (), (), (), ())
    assert found.schema_version == 1
    assert "secret" not in found.database


def test_queues_are_counted_over_all_priorities(desk: Desk, rows: Rows) -> None:
    for priority in (-100, 0, 7, 100):
        rows.job(priority=priority, available_at="=now() - interval '50 seconds'")
        rows.job(priority=priority, available_at="=now() + interval '1 hour'")
    rows.job(queue="mail", state="q")
    rows.job(queue="a", available_at="=now() + interval '1 hour'")
    rows.leased(queue="b")
    rows.leased(queue="b", seconds=-5)
    found = {queue.name: queue for queue in status.status(desk).queues}
    assert list(found) == ["a", "b", "default", "mail"]
    default = found["default"]
    assert (default.ready, default.scheduled, default.leased, default.suspect) == (4, 4, 0, 0)
    assert default.oldest_ready_seconds is not None
    assert 50 <= default.oldest_ready_seconds < 60
    assert (found["a"].ready, found["a"].oldest_ready_seconds, found["a"].scheduled) == (0, None, 1)
    assert (found["b"].leased, found["b"].expired) == (2, 1)
    assert found["mail"].suspect == 1


def test_a_count_stops_at_its_cap_and_says_so(desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "COUNT_CAP", 3)
    monkeypatch.setattr(status, "COUNT_FLOOR", 1)
    for priority in (0, 1):
        for _ in range(3):
            rows.job(priority=priority)
    for _ in range(3):
        rows.job(queue="exact")
        rows.leased(queue="exact")
    found = {queue.name: queue for queue in status.status(desk).queues}
    assert (found["default"].ready, found["default"].capped) == (3, ("ready",))
    assert (found["exact"].ready, found["exact"].leased, found["exact"].capped) == (3, 3, ())
    rows.leased(queue="exact")
    (exact,) = (queue for queue in status.status(desk).queues if queue.name == "exact")
    assert exact.capped == ("leased",)


def test_a_queue_that_no_live_worker_serves_is_named(desk: Desk, rows: Rows) -> None:
    rows.worker('{"default": 4}')
    rows.worker('{"mail": 9}', pid=12, seconds=-5)  # it is gone
    rows.job()
    rows.job(queue="mail")
    rows.job(queue="report", available_at="=now() + interval '1 day'")
    found = status.status(desk)
    assert [warning for warning in _kinds(found) if warning[0] == "unserved"] == [
        ("unserved", "mail"),
        ("unserved", "report"),
    ]
    message = next(warning.message for warning in found.warnings if warning.subject == "mail")
    assert "1 ready" in message
    assert "leasequeue worker APP --queues mail=10" in message
    served = {queue.name: (queue.workers, queue.slots) for queue in found.queues}
    assert served == {"default": (1, 4), "mail": (0, 0), "report": (0, 0)}


def test_leases_of_lost_workers_are_named_where_nobody_can_take_them_up(desk: Desk, rows: Rows) -> None:
    rows.leased(seconds=-5)
    assert ("expired_leases", "default") in _kinds(status.status(desk))
    rows.worker()
    assert _kinds(status.status(desk)) == []


def test_workers_show_their_load_and_what_they_do_not_know(desk: Desk, rows: Rows) -> None:
    counters = '{"held": 7, "running": 3, "completed": 20, "refused": 1, "unknown": {"new_task": 5}, "wake": "polling"}'
    rows.worker('{"default": 4, "mail": 2}', counters)
    rows.worker(counters=counters, pid=12)
    rows.worker(counters='{"unknown": {"old": 1}}', pid=13, seconds=-5)
    found = status.status(desk)
    first = found.workers[0]
    assert (first.host, first.pid, first.live, first.slots, first.running, first.held) == ("box", 11, True, 6, 3, 7)
    assert (first.tasks, first.wake, first.unknown) == (("t",), "polling", {"new_task": 5})
    assert 0 <= first.age_seconds < 60
    assert [worker.live for worker in found.workers] == [True, True, False]
    assert _kinds(found) == [("unknown_task", "new_task"), ("expired_worker", "box:13")]
    assert "put back 10 time(s)" in found.warnings[0].message


def test_failures_of_the_last_hour_by_task(desk: Desk, rows: Rows) -> None:
    rows.failure("mail", job=1, message="older", ago=120)
    rows.failure("mail", job=1, message="newest", ago=5)
    rows.failure("mail", job=2, message="oldest", ago=300)
    rows.failure("report")
    rows.failure("gone", ago=4000)
    rows.failure("mail", type="LeaseLost", message="late", ago=1)
    found = status.status(desk)
    assert [(each.task, each.failures, each.jobs) for each in found.failures] == [("mail", 3, 2), ("report", 1, 1)]
    assert (found.failures[0].last_type, found.failures[0].last_message) == ("ValueError", "newest")
    assert [(each.task, each.failures) for each in found.refused] == [("mail", 1)]
    assert _kinds(found) == [("refused", "mail")]


def test_a_part_that_takes_too_long_is_left_out_and_named(database: Database, desk: Desk, rows: Rows) -> None:
    rows.job()
    conn = database.connect()
    conn.execute("LOCK TABLE leasequeue_failure IN ACCESS EXCLUSIVE MODE")
    try:
        found = status.status(desk, section_seconds=0.3)
    finally:
        conn.rollback()
    assert found.not_read == ("failures",)
    assert ("not_read", "failures") in _kinds(found)
    assert [queue.ready for queue in found.queues] == [1]
    assert status.status(desk).not_read == ()


def test_paused_queues_are_marked(database: Database, desk: Desk) -> None:
    database.execute("INSERT INTO leasequeue_queue (name, paused_at) VALUES ('mail', now())")
    database.execute(
        "INSERT INTO leasequeue_queue (name, paused_at, resume_at) VALUES ('x', now(), now() - interval '1 s')"
    )
    (queue,) = status.status(desk).queues
    assert queue.name == "mail"
    assert queue.paused_at is not None


def test_blocked_jobs_are_counted_and_their_queues_named(desk: Desk, rows: Rows) -> None:
    rows.job(queue="steps", state="b")
    rows.job(queue="steps", state="b")
    found = status.status(desk)
    (queue,) = found.queues
    assert (queue.name, queue.blocked, queue.capped) == ("steps", 2, ())
    (unserved, _) = found.warnings
    assert (unserved.kind, unserved.subject) == ("unserved", "steps")
    assert "2 blocked by other jobs" in unserved.message


def test_blocked_jobs_without_a_parent_are_named(
    database: Database, desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.worker()
    first, parent = rows.job(state="b"), rows.leased(children=1)
    second = rows.job(state="b")
    edge = "INSERT INTO leasequeue_edge (parent_id, child_id) VALUES (%s, %s)"
    database.execute(edge, [parent, second])
    database.execute(edge, [999_999, first])  # it has ended, or was deleted by hand
    found = status.status(desk)
    assert _kinds(found) == [("orphans", "default")]
    assert f"1 blocked job(s) wait for jobs none of which is there any more (their rows were deleted): {first} (t)" in (
        found.warnings[0].message
    )
    # Only so many of the oldest and of the newest are looked at, and that is said.
    monkeypatch.setattr(attention, "BLOCKED_WINDOW", 1)
    (queue,) = status.status(desk).queues
    assert (queue.blocked, queue.capped) == (2, ("blocked",))


def test_what_a_limit_of_0_holds_is_named(database: Database, desk: Desk, rows: Rows) -> None:
    rows.worker()
    for key, task in (("user:7", "t"), ("user:7", "t"), ("user:8", "t"), ("user", "t"), ("task:x", "x"), ("k", "y")):
        rows.job(task, state="g", limit_key=key)
    limit = "INSERT INTO leasequeue_limit (name, declared, max_running) VALUES (%s, %s, %s)"
    for row in (
        ("user", False, 0), ("user:8", True, 3),  # the longer name counts
        ("task:y", True, 0), ("task:x", True, 0), ("task:x", False, 5),  # what an operator said counts
        ("queue:default", True, 1), ("idle", False, 0),
    ):  # fmt: skip
        database.execute(limit, row)
    found = status.status(desk)
    assert _kinds(found) == [("held", "task:y"), ("held", "user")]
    assert [warning.message.partition(";")[0] for warning in found.warnings] == [
        "limit 'task:y' is 0: 1 job(s) wait for it to be raised",
        "limit 'user' is 0: 3 job(s) wait for it to be raised",
    ]


def test_a_wake_that_nobody_takes_is_named_where_a_slot_is_free(database: Database, desk: Desk, rows: Rows) -> None:
    for queue, seconds in (("default", 20), ("mail", 50), ("mail", 40), ("paused", 50), ("unserved", 50)):
        database.execute(
            "INSERT INTO leasequeue_wake (queue, key, due_at) VALUES (%s, 'k' || %s, now() - %s * interval '1 s')",
            [queue, seconds, seconds],
        )
    database.execute("INSERT INTO leasequeue_queue (name, paused_at) VALUES ('paused', now())")
    busy = rows.worker('{"default": 4, "mail": 1, "paused": 1}', '{"running": 6}')
    assert _kinds(status.status(desk)) == [], "all slots are in use: it waits for one"
    database.execute("UPDATE leasequeue_worker SET counters = '{\"running\": 5}' WHERE id = %s", [busy])
    (warning,) = status.status(desk).warnings
    assert (warning.kind, warning.subject) == ("wakes", "mail")
    assert "limit key 'k50' was to be looked at 50 s ago" in warning.message


_BIG = 300_000
_HISTORY = 100_000


@pytest.mark.direct_only  # it reads plans; a pooler changes none of them
def test_what_a_question_costs_follows_its_limits_not_the_table(database: Database, desk: Desk) -> None:
    """Every statement on 300,000 rows, with the statistics of an empty table and again with true ones."""
    database.execute("ANALYZE leasequeue_job, leasequeue_finished, leasequeue_failure")
    database.execute(
        f"""INSERT INTO leasequeue_job (queue, task, priority, available_at)
        SELECT 'q' || i % 5, 't', i % 3, now() + (random() - 0.5) * interval '1 hour' FROM generate_series(1, {_BIG}) AS i"""
    )
    database.execute(
        f"""INSERT INTO leasequeue_finished
            (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, finished_at)
        SELECT i, 'q', 't', '{{}}', CASE WHEN i % 50 = 0 THEN 'failed' ELSE 'succeeded' END, 1, 0, now(),
            now() - random() * interval '10 days' FROM generate_series(1, {_HISTORY}) AS i"""
    )
    database.execute(
        f"""INSERT INTO leasequeue_failure (job_id, attempt, queue, task, error_type, message, failed_at)
        SELECT i, 1, 'q', 't', 'E', 'm', now() - random() * interval '1 hour' FROM generate_series(1, {_HISTORY}) AS i"""
    )
    params = {
        "queues": [f"q{i}" for i in range(5)], "cap": 100, "limit": 20, "window": 100, "seconds": 3600.0, "id": 5,
        "queue": None, "task": None, "outcome": "failed",
        "names": None, "name": "user", "about": "prefix", "word": "user", "exact": None, "key": "user:7",
    }  # fmt: skip
    for statistics in ("stale", "true"):
        for name, text in inspect.statements(database.schema).items():
            plan = "\n".join(row[0] for row in desk.link.run("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) " + text, params))
            scanned = re.findall(r"Seq Scan on (leasequeue_(?:job|finished|failure))\b", plan)
            assert not scanned, f"{name}, {statistics} statistics:\n{plan}"
            # The first line of buffers is the whole statement's. Twice 15 lanes of 101 rows are the most that is read.
            buffers = sum(map(int, re.findall(r"(?:hit|read)=(\d+)", plan.partition("Buffers:")[2].split("\n")[0])))
            assert buffers < 8_000, f"{name}, {statistics} statistics:\n{plan}"
        database.execute("VACUUM ANALYZE leasequeue_job, leasequeue_finished, leasequeue_failure")
    began = time.monotonic()
    found = status.status(desk)
    assert found.not_read == ()
    assert sum(queue.ready + queue.scheduled for queue in found.queues) == _BIG
    assert found.failures_capped
    for state in (None, *query.STATES):
        query.list_jobs(desk, state=state, task="none such")
    assert time.monotonic() - began < 20.0  # some 1.5 s on two idle cores
