"""Ends that the claimer writes: by whole workers, beside ready jobs, and when the connection breaks in between."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import psycopg
import pytest

from leasequeue.errors import OutcomeUnknown
from leasequeue.worker.gate import Followed
from leasequeue.worker.hand import Claimed, Ended, Outcome
from leasequeue.worker.relay import FEW, LONG_SECONDS, Relay
from tests.limits.hand import Hand, Hands, put
from tests.limits.serial_app import CREATE, apart, astep, lq, plain, step
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.waiting import until
from tests.support.workers import Worker

APP = "tests.limits.serial_app:lq"


def claimed(one: Hand) -> list[Claimed]:
    rows = one.gate.claim(one.link, "default", 10, one.me, time.monotonic())
    return [Claimed(row, one.me, "default", None, time.monotonic()) for row in rows]


def write(relay: Relay, one: Hand, room: Mapping[str, int] | None = None) -> Followed:
    return relay.write(one.link, one.gate, one.me, room or {"default": 10}, time.monotonic())


@pytest.fixture
def told() -> list[Ended]:
    """What the completer was told."""
    return []


@pytest.fixture
def relay(told: list[Ended]) -> Relay:
    made = Relay(told.append, lambda queue: True)
    made.open({"default"})
    return made


def test_it_takes_few_and_only_while_it_is_open(
    database: Database, hand: Hands, relay: Relay, told: list[Ended]
) -> None:
    for key in range(FEW + 2):
        put(database, f"k:{key}", 1, limit=1)
    woken: list[bool] = []
    relay.wake = lambda: woken.append(True)
    jobs = claimed(hand())
    assert len(jobs) == FEW + 2
    relay.open({"another"})
    relay.offer(Ended(jobs[0], Outcome.SUCCEEDED))
    assert (told.pop().outcome, bool(relay)) == (Outcome.SUCCEEDED, False)
    relay.open({"default"})
    relay.offer(Ended(jobs[0], Outcome.FAILED))
    assert told.pop().outcome is Outcome.FAILED
    for job in jobs:
        relay.offer(Ended(job, Outcome.SUCCEEDED))
    assert (len(told), len(woken), bool(relay)) == (2, FEW, True)
    relay.close()
    assert (len(told), bool(relay)) == (FEW + 2, False)
    relay.offer(Ended(jobs[0], Outcome.SUCCEEDED))
    assert len(told) == FEW + 3


def test_what_has_waited_long_goes_to_the_completer_and_after_its_end_it_takes_nothing(
    database: Database, hand: Hands, relay: Relay, told: list[Ended]
) -> None:
    put(database, "k", 1, limit=1)
    ended = Ended(claimed(hand())[0], Outcome.SUCCEEDED)
    relay.offer(ended)
    relay.look(time.monotonic())
    assert told == []
    relay.look(time.monotonic() + 2 * LONG_SECONDS)
    assert told == [ended]
    relay.open({"default"})
    relay.offer(ended)
    relay.end()
    assert told == [ended] * 2
    relay.open({"default"})  # by a claimer that still had a turn to end
    relay.offer(ended)
    assert told == [ended] * 3


def test_what_the_database_refuses_goes_to_the_completer(
    database: Database, hand: Hands, relay: Relay, told: list[Ended]
) -> None:
    for key in ("a", "b"):
        put(database, key, 2, limit=1)
    one = hand()
    bad, good = claimed(one)
    relay.offer(Ended(bad, Outcome.SUCCEEDED, result='"\\u0000"'))
    relay.offer(Ended(good, Outcome.SUCCEEDED))
    assert write(relay, one) == Followed([], {}, set())
    assert [(ended.job, ended.outcome, ended.job.unknown) for ended in told] == [
        (bad, Outcome.SUCCEEDED, False),
        (good, Outcome.SUCCEEDED, False),
    ]
    assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 2


def test_what_was_claimed_as_another_holder_or_is_lost_goes_to_the_completer(
    database: Database, hand: Hands, relay: Relay, told: list[Ended]
) -> None:
    for key in ("a", "b", "c"):
        put(database, key, 2, limit=1)
    one = hand()
    older, lost, own = claimed(one)
    older.holder = uuid.uuid4()
    database.execute("UPDATE leasequeue_job SET term = term + 1 WHERE id = %s", (lost.id,))
    for job in (older, lost, own):
        relay.offer(Ended(job, Outcome.SUCCEEDED))
    followed = write(relay, one)
    assert (followed.done, [len(rows) for rows in followed.rows.values()]) == ([own.id], [1])
    assert [(ended.job, ended.outcome) for ended in told] == [
        (older, Outcome.SUCCEEDED),
        (lost, Outcome.SUCCEEDED),
        (own, Outcome.WRITTEN),
    ]


@pytest.mark.direct_only  # the proxy stands before the server itself
@pytest.mark.parametrize(("pattern", "unknown"), [(r"'succeeded'", False), (r"^COMMIT", True)])
def test_an_answer_that_is_lost(
    database: Database, hand: Hands, relay: Relay, told: list[Ended], pattern: str, unknown: bool
) -> None:
    put(database, "a", 2, limit=1)
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        one = hand(url=url)
        (job,) = claimed(one)
        relay.offer(Ended(job, Outcome.SUCCEEDED))
        proxy.lose_reply(pattern)
        with pytest.raises(Exception) as caught:  # noqa: PT011  # which of the two, is what is asked
            write(relay, one)
    assert (type(caught.value) is OutcomeUnknown, job.unknown) == (unknown, unknown)
    assert [ended.outcome for ended in told] == [Outcome.SUCCEEDED]


# By whole workers


def _enqueue(database: Database, calls: list[Any]) -> None:
    database.execute(CREATE)
    with psycopg.connect(database.direct_url, prepare_threshold=None) as conn:
        lq.enqueue_many(conn, calls)


def _finished(database: Database) -> int:
    return int(database.scalar("SELECT count(*) FROM leasequeue_finished"))


def _in_order(database: Database, key: str) -> list[int]:
    went = [job for (job,) in database.execute("SELECT job FROM went WHERE key = %s ORDER BY place", (key,))]
    assert went == sorted(set(went))
    return went


def test_serial_keys_run_in_order_each_job_once(database: Database, worker: Callable[..., Worker]) -> None:
    _enqueue(database, [step.call(key) for _ in range(40) for key in ("a", "b")] + [astep.call("c") for _ in range(40)])
    started = worker(database, app=APP, queues=(("default", 8),))
    until(lambda: _finished(database) == 120, 60, "all to run")
    assert [len(_in_order(database, key)) for key in ("a", "b")] == [40, 40]
    rows = database.execute("SELECT attempt, abandoned, outcome, count(*) FROM leasequeue_finished GROUP BY 1, 2, 3")
    assert rows == [(1, 0, "succeeded", 120)]
    assert started.stop() == 0
    assert database.execute("SELECT id FROM leasequeue_job") == []


@pytest.mark.direct_only  # whose turn it is, is the claimer's to say
@pytest.mark.parametrize("slots", [1, 2])
def test_serial_keys_leave_ready_jobs_their_turn(database: Database, worker: Callable[..., Worker], slots: int) -> None:
    _enqueue(database, [step.call(key) for _ in range(300) for key in ("a", "b")])
    worker(database, app=APP, queues=(("default", slots),))
    until(lambda: _finished(database) > 20, 30, "some to run")
    _enqueue(database, [plain.call() for _ in range(10)])
    until(lambda: database.scalar("SELECT count(*) FROM went WHERE key = 'plain'") == 10, 30, "the ready jobs to run")
    place = database.scalar("SELECT count(*) FROM went WHERE place < (SELECT max(place) FROM went WHERE key = 'plain')")
    assert place < 300, "they came when the keys had nothing left"


@pytest.mark.direct_only  # the proxy stands before the server itself
@pytest.mark.parametrize("pattern", [r"'succeeded'", r"^COMMIT"])
def test_lost_answers_lose_no_job_and_run_none_twice(
    database: Database, worker: Callable[..., Worker], pattern: str
) -> None:
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        started = worker(database, app=APP, url=url, ttl_seconds=20.0).started()
        _enqueue(database, [astep.call("a") for _ in range(60)])  # which has no transaction of its own to lose
        until(lambda: _finished(database) >= 5, 30, "some to run")
        lost = [proxy.lose_reply(pattern) for _ in range(3)]
        for each in lost:
            assert each.wait(30)
        until(lambda: _finished(database) == 60, 60, "all to run")
        ran = database.execute("SELECT id FROM leasequeue_finished ORDER BY started_at")
        assert ran == sorted(ran)
        assert database.execute("SELECT attempt, abandoned, count(*) FROM leasequeue_finished GROUP BY 1, 2") == [
            (1, 0, 60)
        ]
        assert "refused:" not in started.log
        assert started.stop() == 0


@pytest.mark.direct_only  # what the claimer reads is what matters
def test_ends_do_not_wait_for_a_claimer_that_is_refused(database: Database, worker: Callable[..., Worker]) -> None:
    _enqueue(database, [plain.call()])
    started = worker(database, app=APP, queues=(("default", 4),))
    until(lambda: _finished(database) == 1, 30, "the worker to serve")
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("LOCK TABLE went")
        _enqueue(database, [step.call("a"), step.call("b")])
        until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 2, 10)
        database.execute("ALTER TABLE leasequeue_queue RENAME TO away")
        until(lambda: "claimer: the database refused" in started.log, 10)
        conn.commit()
        until(lambda: _finished(database) == 3, 5, "what has ended to be written")
        assert "away" in {name for (name,) in database.execute("SELECT relname FROM pg_class")}
    database.execute("ALTER TABLE away RENAME TO leasequeue_queue")


@pytest.mark.direct_only  # how the claimer goes on is what matters
def test_a_claim_that_was_full_does_not_keep_keys_from_going_on(
    database: Database, worker: Callable[..., Worker]
) -> None:
    _enqueue(database, [apart.call()])
    worker(database, app=APP, queues=(("default", 4), ("apart", 1), ("idle", 1)))
    until(lambda: _finished(database) == 1, 30, "the worker to serve")
    _enqueue(database, [step.call("a") for _ in range(40)])
    until(lambda: _finished(database) == 41, 30, "all to run")
    wakes = database.scalar("SELECT last_value FROM pg_sequences WHERE sequencename = 'leasequeue_wake_id_seq'")
    assert wakes < 20


@pytest.mark.direct_only  # what the claimer waits for is what matters
@pytest.mark.parametrize("stops", [True, False])
def test_ends_do_not_wait_for_a_claimer_that_hangs(
    database: Database, worker: Callable[..., Worker], stops: bool
) -> None:
    _enqueue(database, [plain.call()])
    started = worker(database, app=APP, queues=(("default", 4),), ttl_seconds=30.0, shutdown_timeout_seconds=20.0)
    until(lambda: _finished(database) == 1, 30, "the worker to serve")
    with psycopg.connect(database.direct_url) as slow, psycopg.connect(database.direct_url) as conn:
        conn.execute("LOCK TABLE went")
        _enqueue(database, [step.call("a"), step.call("b")])
        until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 2, 10)
        slow.execute("LOCK TABLE leasequeue_queue")
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'leasequeue_queue'::regclass"
        until(lambda: database.scalar(waiting) == 1, 10, "the claimer to wait")
        if stops:
            started.signal(signal.SIGTERM)
            until(lambda: "stopping: claims end" in started.log, 10, "the worker to hear of it")
        conn.commit()
        until(lambda: _finished(database) == 3, 2, "what has ended to be written")
        assert database.scalar(waiting) == 1
        slow.commit()
    assert started.stop() == 0
