"""Interleavings of two sessions, forced, with the statement that is broken in one place beside ours."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
import pytest

from leasequeue.db.connect import Execute
from tests.limits.hand import Hand, Hands, put, rule
from tests.support.databases import Database
from tests.support.waiting import until

T = TypeVar("T")


def delayed(one: Hand, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None]) -> None:
    """Let something happen in its next transaction, between BEGIN and the first statement."""
    transact = one.link.transact

    def slowly(steps: Callable[[Execute], T]) -> T:
        def late(execute: Execute) -> T:
            monkeypatch.undo()
            meanwhile()
            return steps(execute)

        return transact(late)

    monkeypatch.setattr(one.link, "transact", slowly)


_WANTED = {"admit_next": 1, "admit_one": 2, "admit": 1}
"""How many jobs of the key are asked for, so that this is the statement."""


@pytest.fixture(params=_WANTED)
def admit(request: pytest.FixtureRequest, database: Database) -> str:
    """The statement that admits a key alone: the shorter ones, and, where the queue has priorities, the fuller one."""
    if request.param == "admit":
        database.execute("INSERT INTO leasequeue_lane (queue, priority) VALUES ('default', 5)")
    return str(request.param)


@pytest.mark.parametrize("with_lock", [True, False])
def test_nobody_claims_between_the_lock_of_the_bucket_and_the_count(
    database: Database, hand: Hands, admit: str, with_lock: bool
) -> None:
    # B: takes a wake and the bucket ── snapshot ── (slow) ────────────── counts in that snapshot, leases
    # A:                                             claims the one slot, commits
    # Without the lock, and so where the count stands in the statement that takes it, B counts none and leases the second.
    put(database, "k", 1, limit=1)
    put(database, "k", 1, limit=1)
    one, two = hand(), hand()
    old, new = {
        "admit": ("FROM given CROSS JOIN LATERAL", "FROM given CROSS JOIN pg_sleep(0.7) CROSS JOIN LATERAL"),
        "admit_one": ("AS ranked\n    FROM (", "AS ranked\n    FROM pg_sleep(0.7) CROSS JOIN LATERAL ("),
        "admit_next": ("\nFROM (SELECT (count", "\nFROM pg_sleep(0.7) CROSS JOIN LATERAL (SELECT (count"),
    }[admit]
    text = getattr(two.gate_sql, admit)
    assert old in text
    two.use(**{admit: text.replace(old, new)})
    if not with_lock:
        lock = "ORDER BY id FOR UPDATE SKIP LOCKED\n), gone AS"
        assert lock in two.gate_sql.take_wakes
        for each in (one, two):
            each.use(take_wakes=each.gate_sql.take_wakes.replace(lock, "ORDER BY id\n), gone AS"))
    database.execute("DELETE FROM leasequeue_wake WHERE id > (SELECT min(id) FROM leasequeue_wake)")

    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(two.gated(_WANTED[admit]))))
    thread.start()
    counting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
    until(lambda: database.scalar(counting) == 1, 5)
    database.execute("INSERT INTO leasequeue_wake (queue, key) VALUES ('default', 'k')")
    meanwhile = one.gated(1)
    thread.join()
    assert (len(meanwhile), found) == ((0, [1]) if with_lock else (1, [1]))
    assert database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == (1 if with_lock else 2)


@pytest.mark.parametrize("by_id_only", [False, True])
def test_a_late_completion_frees_no_slot(database: Database, hand: Hands, by_id_only: bool) -> None:
    # A: claims ── its lease runs out ──────────────────────── completes
    # B:                               sweeps, claims the same job ────── still runs it
    put(database, "k", 2, limit=1)
    late, one = hand(ttl_seconds=0.3), hand()
    (old,) = late.gated()
    until(one.sweep, 5)
    (held,) = one.gated_until(1)
    assert held.id == old.id

    if by_id_only:
        pairs = "((id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))) IS TRUE"
        fence = f"AND holder = %(me)s AND {pairs}"
        assert fence in late.sql.complete_linked
        loose = "AND %(me)s::uuid IS NOT NULL AND %(terms)s::bigint[] IS NOT NULL"
        late.sql = late.sql._replace(complete_linked=late.sql.complete_linked.replace(fence, loose))
    assert late.complete([old]) == int(by_id_only)
    second = one.gated()  # while the first still runs here
    assert len(second) == int(by_id_only)


@pytest.mark.parametrize("with_wake", [True, False])
def test_a_sweep_wakes_the_key(database: Database, hand: Hands, with_wake: bool) -> None:
    put(database, "k", 1, limit=1)
    dead, one = hand(ttl_seconds=0.2), hand()
    assert len(dead.gated()) == 1
    if not with_wake:
        old = "FROM u WHERE limit_key IS NOT NULL"
        assert old in one.sql.sweep
        one.sql = one.sql._replace(sweep=one.sql.sweep.replace(old, "FROM u WHERE false"))
    until(one.sweep, 5)
    assert len(one.gated()) == int(with_wake)


@pytest.mark.parametrize("with_wake", [True, False])
def test_a_row_that_was_locked_for_a_moment_is_not_forgotten(
    database: Database, hand: Hands, admit: str, with_wake: bool
) -> None:
    # Somebody: locks the waiting row ───────────────────> rolls back
    # B:                               takes its wake, skips the row
    put(database, "k", 1, limit=1)
    one = hand()
    if not with_wake:
        old, new = {
            "admit": ("OR (t.fits > t.taken AND t.blocked = 0)", ""),
            "leave_wake": ("WHERE NOT %(seen)s OR EXISTS", "WHERE NOT %(seen)s AND EXISTS"),
        }[name := "admit" if admit == "admit" else "leave_wake"]
        text = getattr(one.gate_sql, name)
        assert old in text
        one.use(**{name: text.replace(old, new)})
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("SELECT FROM leasequeue_job FOR UPDATE")
        assert one.gated(_WANTED[admit]) == []
    if with_wake:
        assert len(one.gated_until(1, seconds=3)) == 1
    else:
        one.nothing_for(0.5)


@pytest.mark.parametrize("sliding", [True, False])
def test_the_window_of_a_rate_slides(database: Database, hand: Hands, sliding: bool) -> None:
    # Five started just before the hour. A window that begins with the hour would let five more through at once.
    put(database, "r", 5, rate=(5, 3600.0))
    database.execute(
        "INSERT INTO leasequeue_admission (name, at, count, until) "
        "SELECT 'r', date_trunc('hour', now()) - interval '1 ms', 5, now() + interval '2 hours'"
    )
    one = hand()
    if not sliding:
        old = "start.at > clock_timestamp() - bounds.seconds * interval '1 second'"
        new = "start.at > to_timestamp(floor(extract(epoch FROM clock_timestamp()) / bounds.seconds) * bounds.seconds)"
        assert old in one.gate_sql.admit_under
        one.use(admit_under=one.gate_sql.admit_under.replace(old, new))
    assert len(one.gated()) == (0 if sliding else 5)


@pytest.mark.parametrize("looks_above", [True, False])
def test_a_key_does_not_hide_the_limit_of_its_task(database: Database, hand: Hands, looks_above: bool) -> None:
    for user in range(9):
        put(database, f"user:{user}", 1, limit=1, task="send")
    rule(database, "task:send", 4)
    one = hand()
    if not looks_above:
        old = "task_name IS NOT NULL AND of_task > task_free"
        assert old in one.gate_sql.admit_under
        one.use(admit_under=one.gate_sql.admit_under.replace(old, "false"))
    assert len(one.gated(20)) == (4 if looks_above else 9)


@pytest.mark.parametrize("with_wake", [True, False])
def test_a_completion_wakes_its_key(database: Database, hand: Hands, with_wake: bool) -> None:
    put(database, "k", 2, limit=1)
    one = hand()
    if not with_wake:
        old = "FROM d WHERE limit_key IS NOT NULL"
        assert old in one.sql.complete_linked
        one.sql = one.sql._replace(complete_linked=one.sql.complete_linked.replace(old, "FROM d WHERE false"))
    one.complete(one.gated_until(1))
    assert len(one.gated()) == int(with_wake)


@pytest.mark.parametrize("by_statement", [True, False])
@pytest.mark.parametrize("way", ["follow", "admit_one", "admit", "admit_under"])
def test_what_came_after_begin_is_looked_at_too(
    database: Database, hand: Hands, monkeypatch: pytest.MonkeyPatch, way: str, by_statement: bool
) -> None:
    # A: BEGIN ── (slow) ──────────────────────────────────────────────────── frees the slot, or takes the wake of that
    # Somebody:     enqueues job 2
    # B:                            takes the wake of job 2: nothing is free
    # By the time of its transaction job 2 is not due yet for A, which is the last that looks at the key.
    if way == "admit":
        database.execute("INSERT INTO leasequeue_lane (queue, priority) VALUES ('default', 5)")
    elif way == "admit_under":
        rule(database, "queue:default", 5)
    put(database, "k", 1, limit=1)
    one, two = hand(), hand()
    if not by_statement:
        for name in ("admit_next", "admit_one", "leave_wake", "admit", "admit_under"):
            text = getattr(one.gate_sql, name)
            assert "<= statement_timestamp()" in text
            one.use(**{name: text.replace("statement_timestamp()", "now()")})
    first = one.gated()
    new: list[int] = []

    def enqueued_and_looked_at() -> None:
        new.extend(put(database, "k", 1, limit=1))
        assert two.gated() == []

    if way == "follow":
        delayed(one, monkeypatch, enqueued_and_looked_at)
        found = one.follow(first)[1]
    else:
        with psycopg.connect(database.direct_url) as conn:  # an end that is written before BEGIN, and committed after
            conn.execute("DELETE FROM leasequeue_job WHERE id = %s", (first[0].id,))
            conn.execute("INSERT INTO leasequeue_wake (queue, key) VALUES ('default', 'k')")

            def ended_as_well() -> None:
                enqueued_and_looked_at()
                conn.commit()

            delayed(one, monkeypatch, ended_as_well)
            found = one.gated()
    assert [job.id for job in found] == (new if by_statement else [])
    assert database.scalar("SELECT count(*) FROM leasequeue_wake") == 0
