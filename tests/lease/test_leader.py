"""Leader election: who leads, for how long, and what becomes of a leader that cannot."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
import time

import pytest

from leasequeue import AsyncLeader, Leader, LeaseLost, LeaseQueue
from leasequeue.lease import leader as module
from tests.lease.conftest import Make
from tests.support.databases import Database
from tests.support.waiting import until

TTL = dt.timedelta(seconds=2)


class Log:
    """What happened to a candidate, with the database's view at that moment."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.lines: list[str] = []

    def elected(self, me: Leader) -> None:
        self.lines.append(f"elected {me.term}")

    def lost(self, me: Leader) -> None:
        assert not me.is_leader
        self.lines.append("lost")


def test_one_leads_and_the_next_follows(database: Database, make: Make) -> None:
    one, other = Log(database), Log(database)
    with make(database).leader("s", ttl=TTL, on_elected=one.elected, on_lost=one.lost) as first:
        assert first.wait(30)
        term = first.term
        first.check()
        with first._make_keeper()._run() as run:  # its own connection works beside the renewals
            assert run("SELECT 1", {}) == [(1,)]
        with make(database).leader("s", ttl=TTL, on_elected=other.elected, on_lost=other.lost) as second:
            assert not second.wait(0.5)
            with pytest.raises(LeaseLost, match="does not lead"):
                second.check()
            first.stop()
            at = time.monotonic()
            assert second.wait(30)
            took = time.monotonic() - at
            assert second.term is not None
            assert term is not None
            assert second.term > term
    assert one.lines == [f"elected {term}", "lost"]
    assert other.lines[-1] == "lost"
    print(f"the next led {took * 1000:.0f} ms after the release ({database.via})")
    assert took < (0.1 if database.via == "direct" else 0.5)


def test_a_leader_whose_duties_fail_lets_another_lead(database: Database, make: Make) -> None:
    tried = threading.Event()

    def cannot(me: Leader) -> None:
        tried.set()
        raise RuntimeError("the scheduler does not start")

    log = Log(database)
    with make(database).leader("s", ttl=TTL, on_elected=cannot, on_lost=log.lost) as first:
        assert tried.wait(30)
        with make(database).leader("s", ttl=TTL) as second:
            assert second.wait(30), "the one that cannot still leads"
            assert not first.is_leader
    assert "lost" in log.lines
    reasons = database.execute("SELECT reason FROM leasequeue_lease_event WHERE event = 'released' ORDER BY id")
    assert ("on_elected failed: RuntimeError",) in reasons


def test_duties_that_never_return_hide_no_loss(database: Database, make: Make) -> None:
    """on_elected may run for ever; on_lost is called all the same, and before the row can be taken."""
    release, lost = threading.Event(), []

    def on_lost(_: Leader) -> None:
        lost.append(database.scalar("SELECT clock_timestamp() < expires_at FROM leasequeue_lease"))

    stranger = database.connect()
    with make(database).leader("s", ttl=TTL, on_elected=lambda _: release.wait(20), on_lost=on_lost) as me:
        assert me.wait(30)
        stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")  # no renewal passes
        until(lambda: lost, 5, "on_lost")
        assert not me.is_leader
        stranger.rollback()
        release.set()
        assert me.wait(30), "it stands again"
    assert lost[0] is True


def test_only_who_is_eligible_leads(database: Database, make: Make) -> None:
    healthy = threading.Event()
    log = Log(database)

    def eligible() -> bool:
        if healthy.is_set():
            return True
        raise ConnectionError("the health check itself fails")

    with make(database).leader("s", ttl=TTL, eligible=eligible, owner="sick", on_lost=log.lost) as me:
        refused = "SELECT reason FROM leasequeue_lease_event WHERE event = 'refused' AND owner = 'sick'"
        assert until(lambda: database.execute(refused), 5) == [("ineligible",)]
        assert database.scalar("SELECT count(*) FROM leasequeue_lease") == 0
        healthy.set()
        assert me.wait(30)
        with make(database).leader("s", ttl=TTL) as second:
            healthy.clear()
            assert second.wait(30), "a leader that is not eligible any more leads on"
            assert not me.is_leader
            assert log.lines == ["lost"]


def test_it_resigns_and_stands_again(database: Database, make: Make) -> None:
    with make(database).leader("s", ttl=TTL) as me:
        assert me.wait(30)
        first = me.term
        me.resign()
        until(lambda: me.term not in (None, first), 10)
    assert database.execute("SELECT reason FROM leasequeue_lease_event WHERE event = 'released' ORDER BY id")[0] == (
        "it resigned",
    )


def test_a_slow_on_lost_is_said(database: Database, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    with make(database).leader("s", ttl=TTL, on_lost=lambda _: go.wait(20)) as me:
        assert me.wait(30)
        stranger = database.connect()
        stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")
        over = "SELECT clock_timestamp() > expires_at FROM leasequeue_lease"
        until(lambda: database.scalar(over), 10)
        stranger.rollback()
        go.set()
        until(lambda: "could be taken by another" in caplog.text, 5)


def test_it_stands_through_an_outage(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.02)
    with make("postgresql://nobody@127.0.0.1:1/nothing").leader("s", ttl=TTL) as me:
        until(lambda: "standing for leadership failed" in caplog.text, 5)
        assert not me.wait(0.3)
        assert not me.is_leader
    assert caplog.text.count("standing for leadership failed") == 1, "once a minute"


def test_the_async_twin(database: Database, make: Make) -> None:
    lines: list[str] = []

    async def story(lq: LeaseQueue, other: LeaseQueue) -> None:
        async def elected(me: AsyncLeader) -> None:
            lines.append(f"elected {me.term}")

        async def lost(me: AsyncLeader) -> None:
            lines.append(f"lost {me.is_leader}")

        async with lq.aleader("s", ttl=TTL, on_elected=elected, on_lost=lost) as me:
            assert await me.wait(30)
            me.check()
            async with lq.abegin() as conn:
                await me.afence(conn)
            term = me.term
            async with other.aleader("s", ttl=TTL, eligible=lambda: True) as second:
                assert not await second.wait(0.3)
                me.resign()
                assert await second.wait(30)
                assert second.term is not None
                assert term is not None
                assert second.term > term
        await lq.adispose()

    asyncio.run(story(make(database), make(database)))
    assert lines[0].startswith("elected ")
    assert lines[1] == "lost False"
