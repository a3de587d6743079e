"""Fenced transactions beside renewals and takers, in real time."""

from __future__ import annotations

import datetime as dt
import threading
import time

import pytest
from sqlalchemy import text

from leasequeue import Lease, LeaseLost, Refused
from leasequeue.lease.hold import BUSY
from tests.lease.conftest import Make
from tests.support.databases import Database
from tests.support.waiting import until

TTL = dt.timedelta(seconds=2)


def test_a_fenced_transaction_of_two_and_a_half_ttls(database: Database, make: Make) -> None:
    """It keeps its lease by its own renewals, and takers out until it commits."""
    database.execute("CREATE TABLE written (term bigint, at timestamptz DEFAULT clock_timestamp())")
    holder, other = make(database), make(database)
    lease = holder.try_lease("x", ttl=TTL)
    assert isinstance(lease, Lease)
    refusals: list[Refused] = []
    with holder.begin() as conn:
        lease.fence(conn)
        began = time.monotonic()
        while time.monotonic() - began < 2.5 * TTL.total_seconds():
            conn.execute(text("SELECT pg_sleep(0.2)"))
            refused = other.try_lease("x", ttl=TTL)
            assert isinstance(refused, Refused)
            refusals.append(refused)
        conn.execute(text("INSERT INTO written (term) VALUES (:term)"), {"term": lease.term})
    lease.check()
    lease.release()
    after = other.try_lease("x", ttl=TTL)
    assert isinstance(after, Lease)
    assert database.execute("SELECT term FROM written") == [(lease.term,)]
    assert database.scalar("SELECT max(at) FROM written") < database.scalar("SELECT acquired_at FROM leasequeue_lease")
    assert {refused.reason for refused in refusals} == {"held"}
    print(f"{len(refusals)} refusals in {2.5 * TTL.total_seconds():.0f} s, the lease kept")


def test_a_contender_is_told_that_it_is_busy(database: Database, make: Make) -> None:
    """The holder is gone, its fenced transaction is not: nobody takes the row before that ends."""
    database.execute("CREATE TABLE written (term bigint)")
    holder, other = make(database), make(database)
    lease = holder.try_lease("x", ttl=TTL)
    assert isinstance(lease, Lease)
    with holder.begin() as conn:
        lease.fence(conn)
        lease._keeper.drop(lease)  # as if its renewals did not come through any more
        conn.execute(text("INSERT INTO written VALUES (:term)"), {"term": lease.term})
        expired = "SELECT clock_timestamp() > expires_at FROM leasequeue_lease"
        until(lambda: (conn.execute(text("SELECT 1")), database.scalar(expired))[1], 5)
        refused = other.try_lease("x", ttl=TTL)
        assert isinstance(refused, Refused)
        assert refused.reason == BUSY
        assert "busy in a fenced transaction" in str(refused)
        assert f"term {lease.term}" in str(refused)
    taken = other.try_lease("x", ttl=TTL)
    assert isinstance(taken, Lease)
    with pytest.raises(LeaseLost), holder.begin() as conn:
        lease.fence(conn)
    assert database.execute("SELECT term FROM written") == [(lease.term,)]
    reasons = database.execute(
        "SELECT reason FROM leasequeue_lease_event WHERE event IN ('refused', 'taken over') ORDER BY id"
    )
    assert reasons[0] == (BUSY,)
    assert f"whose term {lease.term} expired" in reasons[1][0]


def test_an_idle_fenced_transaction_is_ended_by_the_server(database: Database, make: Make) -> None:
    """A machine that was cut off in the middle of one would keep takers out for as long as its connection lives."""
    lq = make(database)
    lease = lq.try_lease("x", ttl=TTL)
    assert isinstance(lease, Lease)
    ended = threading.Event()

    def fenced() -> None:
        try:
            with lq.begin() as conn:
                lease.fence(conn)
                lease._keeper.drop(lease)
                assert ended.wait(20)
                conn.execute(text("SELECT 1"))
        except Exception:  # noqa: BLE001  # the connection is gone, in the words of whichever is between
            return
        raise AssertionError("the server left it open")

    thread = threading.Thread(target=fenced)
    thread.start()
    other = make(database)
    began = time.monotonic()
    until(lambda: other.try_lease("x", ttl=TTL), 15, "the row to become free")
    took = time.monotonic() - began
    ended.set()
    thread.join(30)
    print(f"free {took:.1f} s after the fence, with a ttl of {TTL.total_seconds():.0f} s")
    assert took < 2 * TTL.total_seconds() + 1


def test_hammered(database: Database, make: Make) -> None:
    """Holders that come and go, with fenced transactions that outlive their leases: no term writes after a later one."""
    database.execute("CREATE TABLE written (id bigint GENERATED ALWAYS AS IDENTITY, term bigint)")
    until_at = time.monotonic() + 6
    at_last = until_at + 60
    refused = committed = 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal refused, committed
        lq = make(database)
        # For 6 s, and on a machine that stalls until something was committed that can be judged.
        while (now := time.monotonic()) < until_at or (committed <= 3 and now < at_last):
            lease = lq.try_lease("x", ttl=TTL, owner=f"worker {number}")
            if not lease:
                time.sleep(0.01)  # a busy candidate, not a wait for something
                continue
            if number % 2:
                lease._keeper.drop(lease)  # this one is never renewed
            try:
                with lq.begin() as conn:
                    lease.fence(conn)
                    conn.execute(text("SELECT pg_sleep(:s)"), {"s": 0.05 if number < 2 else 1.2})
                    conn.execute(text("INSERT INTO written (term) VALUES (:term)"), {"term": lease.term})
                with lock:
                    committed += 1
            except LeaseLost:
                with lock:
                    refused += 1
            if number % 2 == 0:
                lease.release()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    terms = [term for (term,) in database.execute("SELECT term FROM written ORDER BY id")]
    assert len(terms) == committed > 3
    assert terms == sorted(terms), "a write of an old term came after one of a later term"
