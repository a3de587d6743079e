"""What ``lq.lease`` and ``lq.try_lease`` promise, on real connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import socket
import threading
import time
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from leasequeue import (
    ConfigurationError,
    DatabaseUnavailable,
    Lease,
    LeaseLost,
    LeaseQueue,
    LeaseRefused,
    Refused,
)
from leasequeue.db.leases import lease_statements
from leasequeue.db.urls import Settings
from leasequeue.lease import keeper
from tests.lease.conftest import Make
from tests.support.databases import Database
from tests.support.server import Server
from tests.support.waiting import until

TTL = dt.timedelta(seconds=2)
LISTENS = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%lease%%' AND datname = current_database()"
ASKED = "SELECT count(*) FROM leasequeue_lease_event WHERE event = 'refused'"


def taken(lq: LeaseQueue, name: str = "x", **words: object) -> Lease:
    found = lq.try_lease(name, ttl=TTL, **words)  # type: ignore[arg-type]
    assert isinstance(found, Lease), str(found)
    return found


def events(database: Database, name: str = "x") -> list[tuple[str, int | None, str | None]]:
    return [
        (event, term, reason)
        for event, term, reason in database.execute(
            "SELECT event, term, reason FROM leasequeue_lease_event WHERE name = %s ORDER BY id", (name,)
        )
    ]


def test_one_holds_it_and_the_other_is_told_who(database: Database, make: Make) -> None:
    one, other = make(database), make(database)
    with one.lease("x", ttl=TTL, owner="blue") as lease:
        refused = other.try_lease("x", ttl=TTL)
        assert isinstance(refused, Refused)
        assert not refused
        (occupant,) = refused.occupants
        assert (occupant.owner, occupant.term) == ("blue", lease.term)
        assert occupant.since is not None
        assert occupant.until is not None
        assert dt.timedelta(0) < occupant.until - occupant.since <= TTL + dt.timedelta(milliseconds=1)
        words = ("'x' is held by blue", f"in term {lease.term}", "since 2", "until 2")
        assert all(word in str(refused) for word in words), str(refused)
        with pytest.raises(LeaseRefused, match="held by blue") as raised, other.lease("x", ttl=TTL):
            pass
        assert isinstance(raised.value.refusal, Refused)
    assert not lease.is_held
    with pytest.raises(LeaseLost, match="it was released"):
        lease.check()
    assert taken(other).term > lease.term


def test_terms_grow_over_release_restart_and_pruning(database: Database, make: Make) -> None:
    terms = []
    for prune in (False, True, False):
        lease = taken(make(database))
        terms.append(lease.term)
        lease.release()
        lease.release()
        if prune:
            database.execute("DELETE FROM leasequeue_lease")
    # A clock that stands far ahead, or a row of another life: the next is greater all the same.
    database.execute("UPDATE leasequeue_lease SET term = 9000000000000000000")
    terms.append(taken(make(database)).term)
    assert terms == sorted(set(terms))
    assert terms[-1] == 9_000_000_000_000_000_001


def test_it_is_renewed_for_as_long_as_the_block_lasts(database: Database, make: Make) -> None:
    with make(database).lease("x", ttl=TTL) as lease:
        first = database.scalar("SELECT expires_at FROM leasequeue_lease")
        until(lambda: database.scalar("SELECT expires_at FROM leasequeue_lease") > first + TTL, 10)
        lease.check()
        assert dt.timedelta(0) < lease.remaining <= TTL - dt.timedelta(seconds=1)
    assert database.execute("SELECT holder, owner, expires_at FROM leasequeue_lease") == [(None, None, None)]


def test_an_operator_takes_it_away(database: Database, make: Make) -> None:
    told = threading.Event()
    force = lease_statements("public").force
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(LeaseLost, match="released by an operator"))
        lease = stack.enter_context(make(database).lease("x", ttl=TTL, on_lost=lambda _: told.set()))
        promised = database.scalar("SELECT expires_at FROM leasequeue_lease")
        database.execute(force, {"name": "x", "slot": None, "reason": "taken away by somebody"})
        busy = make(database).try_lease("x", ttl=TTL)
        assert not busy, "before the time that its holder was promised is over"
        assert lease.lost.wait(30)
        assert told.wait(30)
        assert not lease.is_held
    after = until(lambda: make(database).try_lease("x", ttl=TTL), 10, "the lease to become free")
    assert isinstance(after, Lease)
    assert database.scalar("SELECT acquired_at FROM leasequeue_lease") >= promised
    kinds = [event for event, _, _ in events(database) if event != "refused"]
    until(lambda: "lost" in [event for event, _, _ in events(database)], 5)
    assert kinds[:2] == ["acquired", "released"]


def test_trust_ends_before_the_row_does(own_server: Server, own_database: Database, make: Make) -> None:
    """The database goes away: nothing is known of the lease any more, and that is as good as lost."""
    lease = make(own_database).try_lease("x", ttl=dt.timedelta(seconds=3))
    assert isinstance(lease, Lease)
    until(lambda: own_database.scalar("SELECT renewed_at > acquired_at FROM leasequeue_lease"), 5)
    own_server.stop()
    assert lease.lost.wait(30)
    at = time.time()
    with pytest.raises(LeaseLost, match="not renewed in time"):
        lease.check()
    own_server.start()
    expires = own_database.scalar("SELECT extract(epoch FROM expires_at) FROM leasequeue_lease")
    print(f"lost {float(expires) - at:.2f} s before the row's end")
    assert at < float(expires)
    reason = "SELECT reason FROM leasequeue_lease_event WHERE event = 'lost'"
    assert "in doubt" in until(lambda: own_database.execute(reason), 10, "the loss to be written down")[0][0]


@pytest.mark.parametrize("wait", [0.0, 0.5])
def test_an_error_is_no_refusal(make: Make, wait: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    lq = make(f"postgresql://nobody@127.0.0.1:{port}/nothing")
    with pytest.raises(DatabaseUnavailable), lq.lease("x", ttl=TTL, wait=dt.timedelta(seconds=wait)):
        pass
    with pytest.raises(DatabaseUnavailable):
        lq.try_lease("x", ttl=TTL)


def test_no_tables_is_said(direct_url: str, make: Make) -> None:
    from leasequeue import SchemaMismatch

    with pytest.raises(SchemaMismatch, match="leasequeue migrate"):
        make(direct_url).try_lease("x", ttl=TTL)


def test_what_cannot_be_is_refused_before_anything_is_asked(make: Make) -> None:
    lq = make("postgresql://nobody@127.0.0.1:1/nothing")
    given: list[tuple[dict[str, Any], str]] = [
        ({"ttl": dt.timedelta(seconds=1)}, "2 s to a day"),
        ({"ttl": 30}, "timedelta"),
        ({"slots": 0}, "slots"),
        ({"slots": True}, "slots"),
        ({"owner": ""}, "owner"),
    ]
    for words, match in given:
        with pytest.raises(ConfigurationError, match=match):
            lq.lease("x", **words)
    with pytest.raises(ConfigurationError, match="512"):
        lq.lease("x" * 513)
    with pytest.raises(ConfigurationError, match="wait"):
        lq.lease("x", wait=dt.timedelta(seconds=-1))


def test_hand_over(database: Database, make: Make) -> None:
    """A clean release reaches who waits: by a notification where one can arrive, otherwise by its next question."""
    took = []
    for _ in range(5):
        lease = taken(make(database))
        got: list[float] = []

        def follow(got: list[float] = got) -> None:
            with make(database).lease("x", ttl=TTL, wait=None):
                got.append(time.monotonic())

        waiter = threading.Thread(target=follow)
        waiter.start()
        until(lambda: database.scalar(ASKED) > 0, 5)
        if database.via == "direct":
            until(lambda: database.scalar(LISTENS) > 0, 5)
        at = time.monotonic()
        lease.release()
        waiter.join(30)
        took.append(got[0] - at)
        database.execute("DELETE FROM leasequeue_lease_event")
    print(f"handed over after {', '.join(f'{each * 1000:.0f}' for each in sorted(took))} ms ({database.via})")
    assert sorted(took)[2] < (0.1 if database.via == "direct" else 0.5)


def test_never_more_holders_than_slots(database: Database, make: Make) -> None:
    slots, inside, most, lock, terms = 3, 0, 0, threading.Lock(), []

    def work(lq: LeaseQueue) -> None:
        nonlocal inside, most
        for _ in range(4):
            with lq.lease("pool", ttl=TTL, slots=slots, wait=None) as lease:
                with lock:
                    inside += 1
                    most = max(most, inside)
                    terms.append((lease.slot, lease.term))
                held = database_count(database)
                with lock:
                    inside -= 1
                assert held <= slots

    threads = [threading.Thread(target=work, args=(make(database),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(terms) == 32
    assert 1 < most <= slots
    assert {slot for slot, _ in terms} == {0, 1, 2}
    for slot in range(slots):
        mine = [term for each, term in terms if each == slot]
        assert len(mine) == len(set(mine))


def database_count(database: Database) -> int:
    with psycopg.connect(database.direct_url, autocommit=True) as conn:
        row = conn.execute("SELECT count(*) FROM leasequeue_lease WHERE expires_at > clock_timestamp()").fetchone()
    assert row is not None
    return int(row[0])


def test_another_number_of_slots_is_an_error(database: Database, make: Make) -> None:
    lq = make(database)
    taken(lq, slots=2)
    with pytest.raises(ConfigurationError, match=r"has 2 slots and 1 were asked for.*leases resize x 1"):
        lq.try_lease("x", ttl=TTL)


def test_refusals_are_few_rows(database: Database, make: Make) -> None:
    lease = taken(make(database))
    before = database.scalar("SELECT date_trunc('minute', clock_timestamp())")
    for _ in range(40):
        assert not make(database).try_lease("x", ttl=TTL, owner="cron")
    waiter = make(database)
    assert not waiter.try_lease("x", ttl=TTL, owner="other")
    with pytest.raises(LeaseRefused), waiter.lease("x", ttl=TTL, owner="other", wait=dt.timedelta(seconds=1)):
        pass
    minutes = 1 + (database.scalar("SELECT date_trunc('minute', clock_timestamp())") > before)
    rows = database.execute(
        "SELECT owner, count(*), sum(count) FROM leasequeue_lease_event WHERE event = 'refused' GROUP BY owner ORDER BY owner"
    )
    assert [(owner, number <= minutes) for owner, number, _ in rows] == [("cron", True), ("other", True)]
    assert rows[0][2] == 40
    assert 3 <= rows[1][2] <= 10
    lease.release()


def test_a_foreign_lock_delays_a_renewal_and_loses_nothing(database: Database, make: Make) -> None:
    lease = taken(make(database))
    stranger = database.connect()
    stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")
    renewed = database.scalar("SELECT renewed_at FROM leasequeue_lease")
    left = lease.remaining
    # Its renewals find the row locked; trust is not extended meanwhile.
    until(lambda: lease.remaining < left - dt.timedelta(seconds=0.4), 5)
    assert database.scalar("SELECT renewed_at FROM leasequeue_lease") == renewed
    stranger.rollback()
    until(lambda: database.scalar("SELECT renewed_at FROM leasequeue_lease") > renewed, 1, "the next renewal")
    lease.check()


def test_a_foreign_lock_that_outlasts_trust_costs_the_lease(database: Database, make: Make) -> None:
    lease = taken(make(database))
    stranger = database.connect()
    stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")
    assert lease.lost.wait(30)
    expires = database.scalar("SELECT expires_at FROM leasequeue_lease")
    assert database.scalar("SELECT clock_timestamp()") < expires
    stranger.rollback()
    until(lambda: database.scalar("SELECT clock_timestamp() > %s", (expires,)), 5)
    assert database.scalar("SELECT expires_at FROM leasequeue_lease") == expires, "renewed after it was given up"


@pytest.mark.direct_only  # behind the pooler the server process is not ours alone
def test_its_connections_are_terminated(database: Database, make: Make) -> None:
    lease = taken(make(database))
    kill = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'leasequeue lease%%'"
    )
    assert until(lambda: database.scalar(kill) >= 1, 5)
    renewed = database.scalar("SELECT renewed_at FROM leasequeue_lease")
    until(lambda: database.scalar("SELECT renewed_at FROM leasequeue_lease") > renewed, 3)
    lease.check()
    lease.release()
    assert taken(make(database)).term > lease.term


def test_a_full_pool_of_the_application_is_no_matter(database: Database) -> None:
    engine = create_engine(Settings.parse(database.url).url("psycopg"), pool_size=1, max_overflow=0, pool_timeout=0.1)
    lq = LeaseQueue()
    lq.configure(engine=engine)
    with engine.connect():
        lease = taken(lq)
        renewed = database.scalar("SELECT renewed_at FROM leasequeue_lease")
        until(lambda: database.scalar("SELECT renewed_at FROM leasequeue_lease") > renewed, 3)
        lease.release()
    engine.dispose()


@pytest.mark.direct_only  # counts connections of the server
def test_nothing_held_keeps_no_connection(database: Database, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "FRONT_IDLE_SECONDS", 0.2)
    lq = make(database)
    ours = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'leasequeue lease%%'"
    )
    many = [taken(lq, f"x{number}") for number in range(5)]
    assert database.scalar(ours) <= 2
    for each in many:
        each.release()
    until(lambda: database.scalar(ours) == 0, 5, "the connections to be closed")
    assert taken(lq).is_held


def test_the_name_of_the_machine_does_not_matter(
    database: Database, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lq = make(database)
    one = taken(lq, "one")
    monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
    two = taken(lq, "two")
    assert two.owner.startswith("renamed:")
    assert one.owner != two.owner
    renewed = database.scalar("SELECT renewed_at FROM leasequeue_lease WHERE name = 'one'")
    until(lambda: database.scalar("SELECT renewed_at FROM leasequeue_lease WHERE name = 'one'") > renewed, 3)
    assert not lq.try_lease("one", ttl=TTL), "the same process asks again, under another name"
    assert database.scalar("SELECT count(DISTINCT holder) FROM leasequeue_lease") == 2


# Async


def test_async_twins(database: Database, make: Make) -> None:
    one, other = make(database), make(database)

    async def story() -> None:
        async with one.alease("x", ttl=TTL) as lease:
            assert not await other.atry_lease("x", ttl=TTL)
            with pytest.raises(LeaseRefused):
                async with other.alease("x", ttl=TTL):
                    pass
            async with one.abegin() as conn:
                await lease.afence(conn)
            follow = asyncio.create_task(_hold(other))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(follow), 0.5)
        assert await asyncio.wait_for(follow, 5) > lease.term
        held = await other.atry_lease("y", ttl=TTL)
        assert isinstance(held, Lease)
        await held.arelease()
        await one.adispose()
        await other.adispose()

    asyncio.run(story())


async def _hold(lq: LeaseQueue) -> int:
    async with lq.alease("x", ttl=TTL, wait=None) as lease:
        return lease.term


def test_a_cancelled_bid_leaves_nothing_behind(database: Database, make: Make) -> None:
    lq = make(database)

    async def story() -> None:
        for _ in range(10):
            asking = asyncio.create_task(lq.atry_lease("x", ttl=TTL))
            await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(story())
    other = make(database)
    until(lambda: other.try_lease("x", ttl=TTL), 1.5, "the lease to be free, sooner than by its expiry")
