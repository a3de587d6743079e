"""In which order jobs of several priorities run, and how they spread, with real workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.process.app_order import AGEING, lq, sleeper
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.process
Start = Callable[..., Worker]

APP = "tests.process.app_order:lq"
HELD = "SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND priority {which} 0"
INSERT = (
    "INSERT INTO leasequeue_job (task, args, queue, priority) "
    "SELECT 'sleeper', jsonb_build_object('seconds', %s::float8), %s, %s FROM generate_series(1, %s)"
)


@pytest.mark.direct_only  # who claims what is settled by the claimers; a pooler changes none of it
def test_a_thousand_sleepers_are_spread(database: Database, worker: Start) -> None:
    """Four processes with ten slots each: nobody has twice or half of an even share, nor holds more than it can start."""
    worker(database, app=APP, processes=4, queues=(("default", 10),), ttl_seconds=30.0).started(60.0)
    database.execute(INSERT, (0.05, "default", 0, 1000))
    held: list[int] = []

    def over() -> bool:
        held.extend(
            count
            for (count,) in database.execute("SELECT count(*) FROM leasequeue_job WHERE state = 'l' GROUP BY holder")
        )
        return bool(database.scalar("SELECT count(*) = 1000 FROM leasequeue_finished"))

    until(over, 60, "the last sleeper", every=0.05)
    shares = [n for (n,) in database.execute("SELECT count(*) FROM leasequeue_finished GROUP BY result ORDER BY 1")]
    print(f"shares of 1,000: {shares}; held at once by one process: at most {max(held)}")
    assert len(shares) == 4
    assert min(shares) >= 125
    assert max(shares) <= 500
    assert max(held) <= 2 * 10


@pytest.mark.direct_only
def test_slots_are_kept_for_high_ones(database: Database, worker: Start) -> None:
    """In a worker that serves one queue alone, and at the same time in one that serves another queue beside."""
    alone = worker(database, app=APP, queues=(("alone", 3),), reserved=(("alone", 1),), ttl_seconds=6.0)
    with_another = worker(
        database, app=APP, queues=(("beside", 3), ("other", 1)), reserved=(("beside", 1),), ttl_seconds=6.0
    )
    for started, queue in ((alone, "alone"), (with_another, "beside")):
        assert f"{queue}=3:high=1" in started.started().log
    # Whichever was first has written them.
    assert "limits of the code: 'user': 2 at once" in alone.log + with_another.log
    declared = database.execute("SELECT name, app, max_running FROM leasequeue_limit WHERE declared")
    assert declared == [("user", APP, 2)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda queue: _slots_are_kept(database, queue), ("alone", "beside")))


def _slots_are_kept(database: Database, queue: str) -> None:
    of_mine = "FROM leasequeue_worker WHERE jsonb_exists(queues, %s) LIMIT 1"
    reserved = f"SELECT counters -> 'reserved' {of_mine}"
    until(lambda: database.scalar(reserved, (queue,)) == {queue: 1}, 10)
    database.execute(INSERT, (60.0, queue, 0, 5))
    database.execute(INSERT, (60.0, queue, -5, 1))

    def held(which: str) -> int:
        return int(database.scalar(f"{HELD.format(which=which)} AND queue = %s", (queue,)))

    until(lambda: held("<=") == 2, 10, "the slots that are for all to be taken")
    done = "SELECT count(*) FROM leasequeue_finished WHERE queue = %s"
    for count in (1, 2):
        database.execute(INSERT, (0.0, queue, 10, 1))
        until(lambda n=count: database.scalar(done, (queue,)) == n, 10, "the high one")  # type: ignore[misc]
        assert held("<=") == 2
    # More high ones than are reserved wait for a slot like any other; low ones take none that is reserved.
    database.execute(INSERT, (60.0, queue, 10, 3))
    until(lambda: held(">") == 1, 10, "one of the three")
    waited = database.scalar("SELECT max(started_at - enqueued_at) FROM leasequeue_finished WHERE queue = %s", (queue,))
    print(f"{queue}: a high one waited for {waited} at most")
    claims = f"SELECT (counters ->> 'claims')::int {of_mine}"
    seen = database.scalar(claims, (queue,))
    until(lambda: database.scalar(claims, (queue,)) > seen + 1, 60, "more claims")
    assert (held("<="), held(">")) == (2, 1)


@pytest.mark.direct_only
def test_a_flood_a_pause_and_a_limit_that_is_changed(database: Database, worker: Start) -> None:
    """Three things in one worker, each in queues of its own and judged by the server's clock: they wait, most of the time."""
    slots = {"aged": 2, "plain": 2, "paused": 2, "known": 2, "limited": 10}
    conn = database.connect(autocommit=True)
    lq.set_limit(conn, "user:7", limit=0)
    worker(database, app=APP, queues=tuple(slots.items()), ttl_seconds=30.0).started()
    database.execute("SELECT 1")  # the connection that the three share is made by one of them
    with ThreadPoolExecutor(3) as pool:
        parts = [
            pool.submit(part, database)
            for part in (
                _a_flood_starves_no_low_one_where_jobs_age,
                _a_paused_queue_is_left_alone_until_it_resumes_by_itself,
                _a_limit_is_changed_while_jobs_run_and_wait,
            )
        ]
    for part in parts:
        part.result()


def _a_flood_starves_no_low_one_where_jobs_age(database: Database) -> None:
    """By the server's clock: nothing that became due more than 10 spans after the low job ran before it. In the queue that
    does not age the low job waits for as long as the flood lasts: the same flood, so it does starve jobs."""
    queues = ("aged", "plain")
    over = threading.Event()

    def flood() -> None:
        conn = database.connect(autocommit=True)
        while not over.wait(0.1):  # 2 slots and 20 ms: at most 100 jobs a second of each queue
            for queue in queues:
                conn.execute(INSERT, (0.02, queue, 10, 16))

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished WHERE queue = 'aged'") > 20, 20)
        for queue in queues:
            database.execute(INSERT, (0.02, queue, 0, 1))
        low = "SELECT available_at FROM leasequeue_job WHERE priority = 0 AND queue = %s"
        ((due,),) = database.execute(low, ("aged",))
        done = "SELECT started_at FROM leasequeue_finished WHERE queue = 'aged' AND enqueued_at = %s"
        ((began,),) = until(lambda: database.execute(done, (due,)), 60, "the low one to run in spite of the flood")
        assert database.execute(low, ("plain",)), "where nothing ages it starves"
    finally:
        over.set()
        thread.join(30)
    late = database.scalar(
        "SELECT max(enqueued_at) FROM leasequeue_finished WHERE queue = 'aged' AND started_at < %s AND enqueued_at > %s",
        (began, due),
    )
    promised = 10 * AGEING
    print(f"ran {began - due} after it was due; the last that went before it became due {late - due} after it")
    assert late - due <= promised * 1.5, "promised is 2 s; the rest is what a claim does not know to the second"


def _a_paused_queue_is_left_alone_until_it_resumes_by_itself(database: Database) -> None:
    """Judged by the server's clock: nothing of it starts between the pause, once it is known, and its end."""
    database.execute("INSERT INTO leasequeue_queue (name, paused_at) VALUES ('paused', now())")
    renewed = "SELECT count(*) FROM leasequeue_finished WHERE queue = %s"
    # The claimer reads it together with everything else, once a second: it knows when two such rounds have gone by.
    for count in (1, 2):
        database.execute(INSERT, (0.0, "known", count, 1))  # a priority that is new, so that it has to be read
        until(lambda n=count: database.scalar(renewed, ("known",)) == n, 20)  # type: ignore[misc]
    ((resumes,),) = database.execute(
        "UPDATE leasequeue_queue SET resume_at = clock_timestamp() + interval '2 s' RETURNING resume_at"
    )
    database.execute(INSERT, (0.0, "paused", 0, 3))
    until(lambda: database.scalar(renewed, ("paused",)) == 3, 20, "it to resume by itself")
    began = database.scalar("SELECT min(started_at) FROM leasequeue_finished WHERE queue = 'paused'")
    assert began >= resumes


def _a_limit_is_changed_while_jobs_run_and_wait(database: Database) -> None:
    """The code says 2 for each user. An operator holds one of them, lets one at a time through, and takes that back."""
    conn = database.connect(autocommit=True)
    of_queue = sleeper.options(queue="limited")
    ids = [of_queue.options(limit_key="user:7", limit=9).enqueue(conn, 0.1).id for _ in range(16)]
    done = "SELECT count(*) FROM leasequeue_finished WHERE id = ANY(%s)"
    other = [of_queue.options(limit_key="user:8", limit=9).enqueue(conn, 0.0).id]
    until(lambda: database.scalar(done, (other,)) == 1, 20, "another user's job")
    assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE id = ANY(%s) AND state = 'g'", (ids,)) == 16
    lq.set_limit(conn, "user:7", limit=1)
    until(lambda: database.scalar(done, (ids,)) >= 4, 20, "the first ones to pass")
    seen = database.scalar("SELECT max(id) FROM leasequeue_finished WHERE id = ANY(%s)", (ids,))
    lq.unset_limit(conn, "user:7")
    until(lambda: database.scalar(done, (ids,)) == 16, 30, "all of them")
    together = (
        "SELECT max(n) FROM (SELECT (SELECT count(*) FROM leasequeue_finished AS b WHERE b.id = ANY(%(ids)s) AND "
        "b.id <= %(last)s AND b.started_at <= a.started_at AND b.finished_at > a.started_at) AS n "
        "FROM leasequeue_finished AS a WHERE a.id = ANY(%(ids)s) AND a.id <= %(last)s) AS at"
    )
    assert database.scalar(together, {"ids": ids, "last": seen}) == 1
    assert database.scalar(together, {"ids": ids, "last": ids[-1]}) == 2
