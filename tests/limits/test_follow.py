"""The end of a job and the claim of the next one of its key in one transaction."""

from __future__ import annotations

import time
import uuid
from typing import Any

import psycopg
import pytest

from leasequeue.worker import hotkeys
from tests.limits.hand import Hands, put, rule
from tests.support.databases import Database

_WAKES = "SELECT key FROM leasequeue_wake WHERE due_at <= clock_timestamp()"
_LEASED = "SELECT count(*) FROM leasequeue_job WHERE state = 'l'"


def test_the_next_of_a_serial_key_follows_in_order_and_without_a_wake(database: Database, hand: Hands) -> None:
    ids = put(database, "k", 5, limit=1)
    one = hand()
    jobs = one.gated()
    ran = []
    while jobs:
        assert len(jobs) == 1
        assert database.scalar(_LEASED) == 1
        ran.append(jobs[0].id)
        done, jobs = one.follow(jobs)
        assert done == ran[-1:]
        assert not jobs or database.execute(_WAKES) == []
    assert ran == ids
    finished = "SELECT id FROM leasequeue_finished WHERE outcome = 'succeeded' ORDER BY id"
    assert [id for (id,) in database.execute(finished)] == ids


@pytest.mark.parametrize("locks", [True, False])
def test_a_claim_that_is_not_committed_is_not_left_out_of_the_count(
    database: Database, hand: Hands, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    # B: holds the bucket, leases job 2 in term t ──────────────────────────────────> commits
    # A:                                            ends 1, leases 3 in term t + 1
    # A hot key is counted from the smallest term that was seen while its bucket was held. Without the bucket A has seen t + 1,
    # and never counts job 2.
    monkeypatch.setattr(hotkeys, "HOT_AFTER", 0)
    ids = put(database, "k", 4, limit=2)
    one = hand()
    first = one.gated_until(1, k=1)
    if not locks:
        lock = "WHERE limit_key IS NOT NULL)) ORDER BY id FOR UPDATE SKIP LOCKED"
        assert lock in one.gate_sql.succeed_before_next
        loose = lock.removesuffix(" FOR UPDATE SKIP LOCKED")
        one.use(succeed_before_next=one.gate_sql.succeed_before_next.replace(lock, loose))
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("SELECT FROM leasequeue_bucket WHERE id = hashtext('k') & 16383 FOR UPDATE")
        conn.execute(
            "UPDATE leasequeue_job SET state = 'l', holder = %s, term = nextval('leasequeue_term'), "
            "expires_at = now() + interval '1 min', attempt = 1, claimed_at = now() WHERE id = %s",
            (uuid.uuid4(), ids[1]),
        )
        done, followers = one.follow(first)
    assert done == ids[:1]
    assert [job.id for job in followers] == ([] if locks else ids[2:3])
    database.execute("INSERT INTO leasequeue_wake (queue, key) VALUES ('default', 'k')")
    one.gated_until(1, k=1) if locks else one.gated(1)
    one.gated(1)
    assert database.scalar(_LEASED) == (2 if locks else 3)


def test_a_busy_bucket_leaves_a_wake_and_the_end_is_written(database: Database, hand: Hands) -> None:
    ids = put(database, "k", 2, limit=1)
    one = hand()
    first = one.gated()
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("SELECT FROM leasequeue_bucket WHERE id = hashtext('k') & 16383 FOR UPDATE")
        assert one.follow(first) == (ids[:1], [])
    assert database.execute(_WAKES) == [("k",)]
    assert [job.id for job in one.gated_until(1)] == ids[1:]


def test_a_lost_lease_ends_nothing_and_nothing_follows(database: Database, hand: Hands) -> None:
    put(database, "k", 2, limit=1)
    one = hand()
    first = one.gated()
    database.execute("UPDATE leasequeue_job SET term = nextval('leasequeue_term') WHERE state = 'l'")
    assert one.follow(first) == ([], [])
    assert database.scalar(_LEASED) == 1


def test_a_key_that_another_queue_waits_for_is_handed_on(database: Database, hand: Hands) -> None:
    put(database, "k", 3, limit=1)
    (theirs,) = put(database, "k", 1, limit=1, queue="other")
    one = hand("default", "other")
    first = one.gated()
    assert one.gated(queue="other") == []  # parked under the key
    done, followers = one.follow(first)
    assert (len(done), followers) == (1, [])
    assert one.gated() == []
    assert [job.id for job in one.gated_until(1, queue="other")] == [theirs]


@pytest.mark.parametrize("how", ["a rate in its rows", "a rule with a rate", "a limit above", "priorities", "no room"])
def test_what_it_does_not_know_is_left_to_the_gate(database: Database, hand: Hands, how: str) -> None:
    fields: dict[str, Any] = {"rate": (100, 10.0)} if how == "a rate in its rows" else {}
    ids = put(database, "k", 2, limit=1, **fields)
    one = hand()
    first = one.gated()
    if how == "a rule with a rate":
        rule(database, "k", rate=100, seconds=10.0)
    elif how == "a limit above":
        rule(database, "queue:default", 5)
    elif how == "priorities":
        (urgent,) = put(database, "k", 1, limit=1, priority=5)
        ids = [ids[0], urgent]
    one.gate.read_rules(one.link)
    database.execute("DELETE FROM leasequeue_wake")
    assert one.follow(first, room=0 if how == "no room" else 10) == (ids[:1], [])
    assert database.execute(_WAKES) == [("k",)]
    assert [job.id for job in one.gated_until(1)] == ids[1:]


def test_as_many_follow_as_have_ended(database: Database, hand: Hands) -> None:
    ids = put(database, "k", 9, limit=3) + put(database, "other", 2, limit=1)
    one = hand()
    first = one.gated_until(4)
    assert {job.id for job in first} == {*ids[:3], ids[9]}
    done, followers = one.follow(first)
    assert (len(done), {job.id for job in followers}) == (4, {*ids[3:6], ids[10]})
    done, followers = one.follow(followers[:1])
    assert (len(done), len(followers)) == (1, 1)
    assert database.scalar(_LEASED) == 4


def test_a_limit_that_was_lowered_is_kept_to(database: Database, hand: Hands) -> None:
    put(database, "k", 6, limit=3)
    one = hand()
    first = one.gated_until(3)
    rule(database, "k", 1)
    one.gate.read_rules(one.link)
    done, followers = one.follow(first[:1])
    assert (len(done), followers) == (1, [])
    done, followers = one.follow(first[1:])
    assert (len(done), len(followers)) == (2, 1)
    assert database.scalar(_LEASED) == 1


def test_nothing_follows_where_other_keys_wait_or_more_is_to_be_asked(database: Database, hand: Hands) -> None:
    for key in range(4):
        put(database, f"k:{key}", 1, limit=1)
    put(database, "k", 1, limit=1, queue="other")
    one = hand("default", "other")
    assert one.gate.follows("default")

    def look(*queues: str) -> None:
        one.gate.due(one.link.run, list(queues), time.monotonic(), float("-inf"), hurried=False)

    look("default", "other")
    assert not one.gate.follows("default")
    jobs = one.gated(3) + one.gated(queue="other")
    look("other")
    assert (one.gate.follows("default"), one.gate.follows("other")) == (False, True)  # the fourth is still to come
    jobs += one.gated_until(4 - len(jobs) + 1)
    one.gated()
    assert one.gate.follows("default")
    put(database, "k:1", 1, limit=1, priority=5)
    one.follow([job for job in jobs if job.key == "k:1"])
    assert not one.gate.follows("default")
    assert one.gate.follows("other")
    rule(database, "task:t", 5)
    one.gate.read_rules(one.link)
    assert not one.gate.follows("other")
