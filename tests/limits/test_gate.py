"""The gate, a step at a time: what fits is claimed, what does not waits, and no wake is lost."""

from __future__ import annotations

import datetime as dt
import time

import psycopg
import pytest

from leasequeue.db.program import run
from leasequeue.limit import Limit
from leasequeue.ops.limits import set_limit, unset_limit
from leasequeue.worker.gate import SPARE_MIN, claim_suspect
from tests.limits.hand import Hands, put, rule
from tests.support.databases import Database
from tests.support.waiting import until


def _wakes(database: Database) -> int:
    return int(database.scalar("SELECT count(*) FROM leasequeue_wake"))


def test_no_more_than_fit_and_the_rest_as_slots_become_free(database: Database, hand: Hands) -> None:
    ids = put(database, "user:7", 5, limit=2)
    one, two = hand(), hand()

    first = one.gated()
    assert [job.id for job in first] == ids[:2]
    two.nothing_for(0.2)
    assert one.complete(first[:1]) == 1
    (third,) = two.gated_until(1)
    assert third.id == ids[2]
    assert one.complete(first[1:]) == 1
    assert two.complete([third]) == 1
    rest = two.gated_until(2)
    assert [job.id for job in rest] == ids[3:]


def test_limit_one_is_serial_in_order_of_id(database: Database, hand: Hands) -> None:
    ids = [id for _ in range(10) for id in put(database, "s", 2, limit=1)]
    one, two = hand(), hand()

    seen: list[int] = []
    while len(seen) < len(ids):
        (job,) = one.gated_until(1)
        assert two.gated() == []
        seen.append(job.id)
        one.complete([job])
        one, two = two, one
    assert seen == ids


def test_no_more_rows_are_locked_than_may_run(database: Database, hand: Hands) -> None:
    """Each locked row is written to; under a serial key with a thousand waiting, that was what a claim cost."""
    put(database, "s", 50, limit=1)
    one = hand()

    def locked() -> int:
        return int(database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'g' AND xmax <> '0'::xid"))

    one.complete(one.gated(20))
    before = locked()
    assert before == 19  # the limit comes with the rows, and was not known before
    for _ in range(3):
        one.complete(one.gated_until(1, k=20))
    assert locked() == before - 3

    rule(database, "s", running=4)
    one.gate.read_rules(one.link)
    assert len(one.gated_until(4, k=20)) == 4  # what an operator says is above what the rows bring


def test_a_job_of_the_future_does_not_stall_the_ready_ones_of_its_key(database: Database, hand: Hands) -> None:
    later = put(database, "s", 1, limit=1, delay_seconds=0.6)
    now = put(database, "s", 2, limit=1)
    one = hand()

    for id in now:
        (job,) = one.gated_until(1, seconds=0.4)
        assert job.id == id
        one.complete([job])
    (job,) = one.gated_until(1)
    assert [job.id] == later


def test_a_retry_frees_its_slot_at_once_and_comes_back_when_it_is_due(database: Database, hand: Hands) -> None:
    first, second = put(database, "s", 2, limit=1)
    one = hand()
    (job,) = one.gated()
    assert job.id == first

    assert one.retry(job, 0.4) == 1
    (other,) = one.gated_until(1, seconds=0.3)
    assert other.id == second
    one.complete([other])
    (again,) = one.gated_until(1)
    assert again.id == first
    assert again.term > job.term


def test_a_lost_holder_frees_its_key_with_its_lease(database: Database, hand: Hands) -> None:
    put(database, "s", 2, limit=1)
    dead, one = hand(ttl_seconds=0.5), hand()
    (lost,) = dead.gated()
    one.nothing_for(0.2)

    until(one.sweep, 5)
    (again,) = one.gated_until(1)
    assert again.id == lost.id  # it is the older one
    assert dead.complete([lost]) == 0


def test_a_release_puts_it_back_to_the_gate(database: Database, hand: Hands) -> None:
    put(database, "k", 3, limit=2)
    one, two = hand(), hand()
    held = one.gated()

    assert one.release(held) == 2
    again = two.gated_until(2)
    assert [job.id for job in again] == [job.id for job in held]
    assert database.execute("SELECT DISTINCT attempt FROM leasequeue_job WHERE state = 'l'") == [(1,)]


def test_a_row_that_is_locked_by_somebody_keeps_a_wake(database: Database, hand: Hands) -> None:
    (id,) = put(database, "k", 1, limit=1)
    one = hand()
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("SELECT FROM leasequeue_job WHERE id = %s FOR UPDATE", (id,))
        assert one.gated() == []
        conn.rollback()
    (job,) = one.gated_until(1, seconds=2.0)
    assert job.id == id


def test_a_bucket_that_is_held_puts_the_wake_off(database: Database, hand: Hands) -> None:
    put(database, "k", 1, limit=1)
    one = hand()
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("SELECT FROM leasequeue_bucket FOR UPDATE")
        one.nothing_for(0.1)
        conn.rollback()
    assert len(one.gated_until(1, seconds=2.0)) == 1


def test_other_keys_pass_a_hundred_thousand_of_a_saturated_one(database: Database, hand: Hands) -> None:
    database.execute(
        "WITH i AS (INSERT INTO leasequeue_job (task, state, limit_key, limit_max) "
        "SELECT 't', 'g', 'busy', 1 FROM generate_series(1, 100000) RETURNING queue, limit_key) "
        "INSERT INTO leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM i"
    )
    one = hand()
    assert len(one.gated()) == 1
    put(database, "other", 200)

    begun = time.perf_counter()
    jobs = one.gated_until(200, k=100)
    took = time.perf_counter() - begun
    print(f"200 jobs of another key behind 100,000 saturated ones: {took * 1000:.0f} ms")
    assert {job.key for job in jobs} == {"other"}
    assert took < 1.0


def test_many_wakes_of_one_key_do_not_keep_another_waiting(database: Database, hand: Hands) -> None:
    put(database, "busy", 1, limit=1)
    one = hand()
    assert len(one.gated()) == 1
    database.execute("INSERT INTO leasequeue_wake (queue, key) SELECT 'default', 'busy' FROM generate_series(1, 20000)")
    put(database, "other", 1)

    begun = time.perf_counter()
    (job,) = one.gated_until(1)
    took = time.perf_counter() - begun
    print(f"one job behind 20,000 wakes of another key: {took * 1000:.0f} ms")
    assert job.key == "other"
    assert took < 5.0


@pytest.mark.parametrize("keys", [2, 4, 10])
@pytest.mark.parametrize("k", [1, 10])
def test_nor_do_those_of_a_few_keys(database: Database, hand: Hands, keys: int, k: int) -> None:
    for key in range(keys):
        put(database, f"busy{key}", 2, limit=1)
    one = hand()
    assert len(one.gated_until(keys, k=20)) == keys
    one.nothing_for(0.2)
    database.execute(
        "INSERT INTO leasequeue_wake (queue, key) SELECT 'default', 'busy' || i %% %s FROM generate_series(1, 6000) AS i",
        (keys,),
    )
    put(database, "other", 1)
    turns = 1
    while not (rows := one.gated(k=k)):
        turns += 1
    assert [job.key for job in rows] == ["other"]
    assert turns <= 20


def test_no_more_keys_are_taken_than_give_the_jobs_that_are_wanted(database: Database, hand: Hands) -> None:
    for key in range(60):
        put(database, f"k{key}", 1, limit=1)
    last = database.scalar("SELECT max(id) FROM leasequeue_wake")
    assert len(hand().gated(k=20)) == 20
    assert _wakes(database) == 40
    untouched = database.scalar(f"SELECT count(*) FROM leasequeue_wake WHERE id <= {last}")
    assert untouched == 40 - SPARE_MIN


def test_where_most_keys_give_nothing_more_are_taken_each_time(database: Database, hand: Hands) -> None:
    database.execute(
        "INSERT INTO leasequeue_wake (queue, key) SELECT 'default', 'gone' || i FROM generate_series(1, 3000) AS i"
    )
    put(database, "other", 1)
    one = hand()
    turns = 0
    while not (jobs := one.gated(k=1)):
        turns += 1
        assert turns < 30  # 600, if no more were taken
    assert jobs[0].key == "other"
    assert turns > 5


def test_keys_of_any_characters(database: Database, hand: Hands) -> None:
    keys = [
        "NULL",
        "a,b",
        "{a}",
        'say "a"',
        "back\\slash",
        '\\"',
        " ",
        "ünï",
        "\U0001f600",
        "'; --",
        "%(key)s",
        "%",
        "a:b",
    ]
    for key in keys:
        put(database, key, 3, limit=1)
    one = hand()
    for _ in range(3):
        jobs = one.gated_until(len(keys), k=50)
        assert sorted(job.key for job in jobs) == sorted(keys)
        assert one.complete(jobs) == len(keys)
    until(lambda: one.gated() == [] and _wakes(database) == 0, 5)


# Limits beside the jobs


def test_a_rule_goes_before_what_the_jobs_bring_along(database: Database, hand: Hands) -> None:
    put(database, "user:7", 5, limit=1)
    put(database, "user:8", 5, limit=1)
    rule(database, "user", 2)
    rule(database, "user:8", 4)
    one = hand()

    jobs = one.gated(20)
    assert sorted(job.key for job in jobs) == ["user:7"] * 2 + ["user:8"] * 4


def test_a_limit_of_zero_holds_all(database: Database, hand: Hands) -> None:
    put(database, "user:7", 2)
    rule(database, "user", 0)
    one = hand()

    one.nothing_for(0.2)
    # Nothing runs whose end would wake it.
    assert database.execute("SELECT parked FROM leasequeue_wake") == [("user:7",)]
    rule(database, "user", 1)
    database.execute("INSERT INTO leasequeue_wake (queue, key) VALUES ('default', 'user:7')")
    one.gate.read_rules(one.link)
    assert len(one.gated_until(1)) == 1


@pytest.mark.parametrize("name", ["user", "user:7", "task:t", "queue:default"])
def test_who_takes_the_wake_of_a_changed_limit_knows_the_change(database: Database, hand: Hands, name: str) -> None:
    (first, second) = put(database, "user:7", 2)
    rule(database, name, 0)
    one = hand()
    one.nothing_for(0.2)
    with psycopg.connect(database.direct_url, prepare_threshold=None) as conn:
        run(conn, set_limit, database.schema, name, Limit(1), "ann")
        one.nothing_for(0.2)  # the change may be as slow as it likes: it counts from its commit on
    # What it has in mind is 0. Parked, the key would be looked at in 5 s or 30 s. The wake is older than what was taken last.
    assert [job.id for job in one.gated_until(1, seconds=4)] == [first]
    one.nothing_for(0.2)
    with psycopg.connect(database.direct_url, prepare_threshold=None) as conn:
        run(conn, unset_limit, database.schema, name)
    assert [job.id for job in one.gated_until(1, seconds=4)] == [second]


def test_a_limit_of_the_task_stands_above_the_keys(database: Database, hand: Hands) -> None:
    for user in range(20):
        put(database, f"user:{user}", 2, limit=1, task="send")
    put(database, "user:1", 1, task="other")
    rule(database, "task:send", 3)
    one = hand()

    jobs = [job for _ in range(5) for job in one.gated(30)]
    sending = [job for job in jobs if job.task == "send"]
    assert len(sending) == 3
    done = len(sending)
    while done < 40:
        one.complete(sending)
        sending = [job for job in one.gated_until(1, k=30) if job.task == "send"]
        done += len(sending)
        running = database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l' AND task = 'send'")
        assert running <= 3


def test_a_limit_of_the_queue_stands_above_all(database: Database, hand: Hands) -> None:
    for user in range(10):
        put(database, f"user:{user}", 3)
    rule(database, "queue:default", 4)
    one, two = hand(), hand()
    done, held = 0, one.gated(30) + two.gated(30)
    assert len(held) == 4
    while done < 30:
        mine = [job for job in held if job in held]
        done += one.complete(mine) + two.complete(mine)
        held = one.gated(30)
        held += two.gated(30)
        assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") <= 4
        if not held and done < 30:
            held = one.gated_until(1, k=30, seconds=3.0)


@pytest.mark.parametrize("above", ["queue:default", "task:t"])
def test_keys_that_a_limit_above_blocks_are_parked_once(database: Database, hand: Hands, above: str) -> None:
    """And are not looked at again and again: each look would park them once more, until the table is full of wakes."""
    for user in range(5):
        put(database, f"user:{user}")
    rule(database, above, 1)
    one = hand()
    running = one.gated(30)
    assert len(running) == 1
    one.nothing_for(0.5)
    parked = database.execute("SELECT key, parked FROM leasequeue_wake ORDER BY key")
    assert parked == [(f"user:{user}", above) for user in range(5) if f"user:{user}" != running[0].key]
    for _ in range(4):
        one.complete(running)
        running = one.gated(30)
        assert len(running) == 1, "the end of a job lets the next go, in one turn of the claimer"
    one.complete(running)
    assert one.gated(30) == []
    assert _wakes(database) == 0


# Rates


def test_no_window_has_more_starts_than_the_rate_allows(database: Database, hand: Hands) -> None:
    put(database, "r", 60, rate=(10, 0.3))
    one, two = hand(), hand()
    starts: list[float] = []
    end = time.monotonic() + 10
    while len(starts) < 60:
        assert time.monotonic() < end
        for each in (one, two):
            jobs = each.gated(7)
            each.complete(jobs)
            starts += [time.monotonic()] * len(jobs)
    stamps = [
        at
        for at, count in database.execute(
            "SELECT extract(epoch FROM at)::float8, count FROM leasequeue_admission ORDER BY at"
        )
        for _ in range(count)
    ]
    assert all(later - first >= 0.3 for first, later in zip(stamps, stamps[10:], strict=False))
    spread = starts[-1] - starts[0]
    print(f"60 starts at 10 per 0.3 s took {spread:.2f} s (at least 1.5)")
    assert 1.4 < spread < 4


def test_a_rate_and_a_limit_of_one_key(database: Database, hand: Hands) -> None:
    put(database, "r", 6, limit=2, rate=(3, 0.4))
    one = hand()
    first = one.gated()
    assert len(first) == 2
    one.complete(first)
    assert len(one.gated()) == 1  # the third token; the next when the first leaves the window
    assert len(one.gated_until(1)) == 1


def test_a_rate_of_the_queue(database: Database, hand: Hands) -> None:
    for user in range(8):
        put(database, f"user:{user}", 1)
    rule(database, "queue:default", None, 3, 0.5)
    one = hand()
    begun = time.monotonic()
    assert len(one.gated(20)) == 3
    one.gated_until(5, k=20)
    assert 0.9 < time.monotonic() - begun < 3


# Whose turn it is


def test_keys_share_a_claim_however_many_wait_under_each(database: Database, hand: Hands) -> None:
    put(database, "fair:big", 3000)
    small = put(database, "fair:small", 10)
    one = hand()
    jobs = [job for _ in range(3) for job in one.gated(10)]

    got = [job.id for job in jobs if job.key == "fair:small"]
    assert got == small[: len(got)]
    assert len(got) >= 9
    assert any(job.key == "fair:big" for job in jobs[:10])


def test_within_a_key_the_best_priority_goes_first(database: Database, hand: Hands) -> None:
    low = put(database, "s", 2, limit=1)
    (high,) = put(database, "s", 1, limit=1, priority=10)
    one = hand()
    seen = []
    for _ in range(3):
        (job,) = one.gated_until(1)
        seen.append(job.id)
        one.complete([job])
    assert seen == [high, *low]


def test_a_key_of_two_queues_is_handed_on(database: Database, hand: Hands) -> None:
    put(database, "shared", 20, limit=1, queue="a")
    put(database, "shared", 20, limit=1, queue="b")
    one, two = hand("a"), hand("b")
    order: list[str] = []
    end = time.monotonic() + 20
    while len(order) < 40 and time.monotonic() < end:
        for each, queue in ((one, "a"), (two, "b")):
            jobs = each.gated(5, queue)
            assert len(jobs) <= 1
            running = database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'")
            assert running == len(jobs)
            order += [queue] * each.complete(jobs)
    assert len(order) == 40
    both = order[: max(order.index("a"), order.index("b")) + 30]
    assert 10 <= both.count("a") <= len(both) - 10, order


def test_a_queue_that_nobody_serves_does_not_keep_the_key(database: Database, hand: Hands) -> None:
    put(database, "shared", 3, limit=1, queue="a")
    put(database, "shared", 3, limit=1, queue="b")
    one, two = hand("a"), hand("b")
    (held,) = one.gated(5, "a")
    assert two.gated(5, "b") == []  # it waits for a's turn to end, and then is gone
    two.close()
    one.complete([held])
    for _ in range(2):
        one.complete(one.gated_until(1, queue="a", seconds=8))


# Nothing is left over


def test_no_wake_is_left_when_all_is_done(database: Database, hand: Hands) -> None:
    for key in range(30):
        put(database, f"k{key}", 3, limit=1)
    put(database, "r", 5, rate=(5, 0.1))
    one = hand()
    done = 0
    while done < 95:
        done += one.complete(one.gated_until(1, k=20))
    until(lambda: one.gated() == [] and _wakes(database) == 0, 5)


def test_a_job_without_a_limit_leaves_no_wake(database: Database) -> None:
    put(database, None, 5)
    assert _wakes(database) == 0
    assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'r'") == 5


def test_truncated_buckets_come_back(database: Database, hand: Hands) -> None:
    database.execute("TRUNCATE leasequeue_bucket")
    put(database, "k", 1, limit=1)
    one = hand()
    assert len(one.gated_until(1)) == 1


def test_a_scheduled_job_waits_at_the_gate_too(database: Database, hand: Hands) -> None:
    run_at = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.4)
    (id,) = put(database, "k", 1, limit=1, run_at=run_at)
    one = hand()
    one.nothing_for(0.1)
    (job,) = one.gated_until(1)
    assert job.id == id


def test_one_that_is_due_later_does_not_bound_those_that_are_due_now(database: Database, hand: Hands) -> None:
    put(database, "k", 1, limit=1, priority=10, delay_seconds=3600.0)
    put(database, "k", 5, limit=5)
    rule(database, "task:another", 1)  # so that the fuller statement is needed
    one = hand()
    assert len(one.gated()) == 5


def test_nothing_is_fetched_ahead_where_a_rate_counts_it(database: Database, hand: Hands) -> None:
    put(database, "r", 50, rate=(40, 3600.0))
    one = hand()
    rows = one.gate.claim(one.link, "default", 50, one.me, time.monotonic(), free=3)
    assert len(rows) == 3


def test_a_suspect_has_the_next_slot_of_its_key(database: Database, hand: Hands) -> None:
    put(database, "s", 3, limit=1)
    dead, one = hand(ttl_seconds=0.2), hand()
    for _ in range(2):
        dead.gated_until(1)
        until(one.sweep, 5)
    assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'q'") == 1
    one.nothing_for(0.3)
    params = {"me": one.me, "ttl": 30.0, "queues": ["default"]}
    rows, waiting = claim_suspect(one.link, one.gate_sql, params)
    assert (len(rows), waiting) == (1, True)
    assert rows[0][0] == database.scalar("SELECT min(id) FROM leasequeue_job")
    rows, waiting = claim_suspect(one.link, one.gate_sql, params)
    assert (rows, waiting) == ([], False)


def test_wakes_of_a_queue_that_nobody_serves_take_no_slot_of_a_task_limit(database: Database, hand: Hands) -> None:
    rule(database, "task:send", 1)
    for key in range(30):
        put(database, f"a:{key}", 1, task="send", queue="a")
    for key in range(10):
        put(database, f"b:{key}", 1, task="send", queue="b")
    one, two = hand("a"), hand("b")
    held = one.gated_until(1, queue="a")
    for _ in range(3):
        one.gated(10, "a")  # all of a's keys are parked under the task's limit, and nobody comes for them
    one.complete(held)
    begun = time.monotonic()
    done = 0
    while done < 10:
        done += two.complete(two.gated_until(1, queue="b", seconds=20))
    assert time.monotonic() - begun < 15


def test_a_suspect_that_is_buried_gives_its_place_to_the_next(database: Database, hand: Hands) -> None:
    put(database, "s", 2, limit=1)
    dead, one = hand(ttl_seconds=0.2), hand()
    for _ in range(2):
        dead.gated_until(1)
        until(one.sweep, 5)
    one.nothing_for(0.2)  # the suspect is next
    assert len(one.link.run(one.sql.bury, {"max_abandoned": 2})) == 1
    assert len(one.gated_until(1, seconds=3)) == 1


def test_a_hot_key_does_not_stay_at_a_place_that_it_found_empty(database: Database, hand: Hands) -> None:
    ids = put(database, "k", 400, limit=400)
    one, two = hand(), hand()
    held = [job for _ in range(80) for job in one.gated_until(1, k=1)]
    key = one.gate._keys._keys["default", "k"]
    assert key.lane is not None
    # Rows come back far below its floor; it takes one of them, somebody else the next.
    assert one.release(held[2:4]) == 2
    key.lane.rescan()
    (again,) = one.gated_until(1, k=1)
    assert again.id == held[2].id
    (other,) = two.gated_until(1, k=1)
    assert other.id == held[3].id
    database.execute("UPDATE leasequeue_job SET available_at = now() + interval '1 h' WHERE state = 'g'")
    database.execute("INSERT INTO leasequeue_wake (queue, key) VALUES ('default', 'k')")
    assert one.gated(1) == []
    # Nothing waits any more but one that comes back from below that place.
    assert one.release(held[:1]) == 1
    (back,) = one.gated_until(1, k=1, seconds=8)
    assert back.id == ids[0]
