"""What lease.fence(conn) promises, over every kind of connection."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from leasequeue import ConfigurationError, Lease, LeaseLost, LeaseQueue

from .kinds import Bench


@pytest.fixture
def lease(database: Any, lq: LeaseQueue) -> Iterator[Lease]:
    database.execute("DELETE FROM leasequeue_lease")
    database.execute("CREATE TABLE effect (n integer)")
    held = lq.try_lease("fenced", ttl=dt.timedelta(seconds=30))
    assert isinstance(held, Lease)
    yield held
    lq.dispose_leases()


def fence(bench: Bench, lease: Lease) -> None:
    if bench.is_async:
        bench._settle(lease.afence(bench.conn))
    else:
        lease.fence(bench.conn)


def test_a_fenced_write_commits_and_keeps_takers_out(bench: Bench, database: Any, lease: Lease, lq: LeaseQueue) -> None:
    fence(bench, lease)
    bench.execute("INSERT INTO effect VALUES (1)")
    # A renewal passes beside it; whoever would take the row finds it locked, even when it has expired.
    renewed = database.execute("UPDATE leasequeue_lease SET renewed_at = clock_timestamp() RETURNING 1")
    assert renewed == [(1,)]
    takes = "SELECT count(*) FROM (SELECT FROM leasequeue_lease FOR UPDATE SKIP LOCKED) AS free"
    assert database.execute(takes) == [(0,)]
    bench.commit()
    assert database.execute(takes) == [(1,)]
    assert database.execute("SELECT n FROM effect") == [(1,)]


@pytest.mark.parametrize("now", ["another term", "another holder", "expired", "gone"])
def test_a_refused_fence_aborts_the_transaction_even_if_swallowed(
    bench: Bench, database: Any, lease: Lease, now: str
) -> None:
    database.execute(
        {
            "another term": "UPDATE leasequeue_lease SET term = term + 1",
            "another holder": "UPDATE leasequeue_lease SET holder = gen_random_uuid()",
            "expired": "UPDATE leasequeue_lease SET expires_at = clock_timestamp()",
            "gone": "DELETE FROM leasequeue_lease",
        }[now]
    )
    bench.execute("INSERT INTO effect VALUES (1)")
    with pytest.raises(LeaseLost, match=f"term {lease.term}"):
        fence(bench, lease)
    try:
        bench.commit()
    except Exception:  # noqa: BLE001  # some drivers say that there is nothing to commit, some do it in silence
        bench.rollback()
    assert database.execute("SELECT n FROM effect") == []


def test_an_expired_lease_is_refused_in_a_transaction_that_began_before(
    bench: Bench, database: Any, lease: Lease
) -> None:
    """now() is the clock of the transaction's start: the fence asks the present one."""
    bench.execute("INSERT INTO effect VALUES (1)")
    database.execute("UPDATE leasequeue_lease SET expires_at = clock_timestamp()")
    with pytest.raises(LeaseLost):
        fence(bench, lease)
    bench.rollback()


def test_a_stricter_level_is_an_error(bench: Bench, database: Any, lease: Lease) -> None:
    bench.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with pytest.raises(ConfigurationError, match="REPEATABLE READ"):
        fence(bench, lease)
    bench.rollback()
    assert database.execute("SELECT count(*) FROM leasequeue_lease WHERE holder IS NOT NULL") == [(1,)]
