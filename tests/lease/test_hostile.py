"""Callbacks that hang, threads that do not start, releases beside renewals, queues that are disposed of: who is told what."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text

from leasequeue import ConfigurationError, Leader, Lease, LeaseLost, LeaseQueueError
from leasequeue.db.urls import Settings
from leasequeue.lease import leader as module
from tests.lease.conftest import Make
from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = pytest.mark.direct_only  # what happens within the process; the ways to the database are tested beside this
TTL = dt.timedelta(seconds=2)


def taken(database: Database, make: Make, name: str = "x") -> Lease:
    lease = make(database).try_lease(name, ttl=TTL)
    assert isinstance(lease, Lease), str(lease)
    return lease


def test_a_release_beside_a_renewal_of_its_own(database: Database, make: Make) -> None:
    """The renewal has the row locked for a moment: the release waits for it, and does not take it for lost."""
    lease = taken(database, make)
    renewal = database.connect()
    renewal.execute("SELECT FROM leasequeue_lease FOR NO KEY UPDATE")
    releasing = threading.Thread(target=lease.release)
    releasing.start()
    until(lambda: lease._released, 5)
    renewal.rollback()
    releasing.join(30)
    assert database.scalar("SELECT holder FROM leasequeue_lease") is None


def test_a_release_that_stays_locked_is_said(database: Database, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    lease = taken(database, make)
    stranger = database.connect()
    stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")
    lease.release()
    assert "was not released: its row is locked by another transaction" in caplog.text
    stranger.rollback()


def test_an_on_lost_that_hangs_keeps_nobody_from_leading(database: Database, make: Make) -> None:
    go = threading.Event()
    with make(database).leader("s", ttl=TTL, on_lost=lambda _: go.wait(30)) as first:
        assert first.wait(30)
        first.resign()
        with make(database).leader("s", ttl=TTL) as second:
            assert second.wait(3 * TTL.total_seconds()), "nobody leads"
            assert not first.is_leader
        go.set()


def test_a_question_that_hangs_is_a_no(database: Database, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEALTH_SECONDS", 0.2)
    go, hang, lost = threading.Event(), threading.Event(), threading.Event()

    def eligible() -> bool:
        if hang.is_set():
            go.wait(30)
        return True

    with make(database).leader("s", ttl=TTL, eligible=eligible, on_lost=lambda _: lost.set()) as first:
        assert first.wait(30)
        hang.set()
        assert lost.wait(30), "on_lost waits for the answer"
        with make(database).leader("s", ttl=TTL) as second:
            assert second.wait(30)
        at = time.monotonic()
    assert time.monotonic() - at < 5, "the end waits for the answer"
    go.set()


def test_duties_that_cannot_begin(database: Database, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system starts no thread at that moment: the lease is given back, and the candidate stands again."""
    real = threading.Thread.start
    failed = threading.Event()

    def start(self: threading.Thread) -> None:
        if self.name == "leasequeue-leader-duties" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    begun = threading.Event()
    with make(database).leader("s", ttl=TTL, on_elected=lambda _: begun.set()) as me:
        assert failed.wait(30)
        assert begun.wait(30)
        assert me.is_leader


def test_a_thread_that_cannot_start_takes_no_lease(
    database: Database, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is held that nobody would renew, and the next question starts what is missing."""
    real = threading.Thread.start
    failed = threading.Event()

    def start(self: threading.Thread) -> None:
        if self.name == "leasequeue-lease-renewer" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    lq = make(database)
    with pytest.raises(RuntimeError, match="new thread"):
        lq.try_lease("x", ttl=TTL)
    assert failed.is_set()
    assert database.scalar("SELECT count(*) FROM leasequeue_lease") == 0
    lease = lq.try_lease("x", ttl=TTL)
    assert isinstance(lease, Lease)
    renewed = database.scalar("SELECT renewed_at FROM leasequeue_lease")
    until(lambda: database.scalar("SELECT renewed_at FROM leasequeue_lease") > renewed, 3)


@pytest.mark.parametrize("how", ["release", "dispose"])
def test_on_lost_comes_before_another_leads_whoever_ends_it(database: Database, make: Make, how: str) -> None:
    order: list[str] = []
    lq = make(database)
    with lq.leader("s", ttl=dt.timedelta(seconds=15), on_lost=lambda _: order.append("lost")) as first:
        assert first.wait(30)
        elected: Callable[[Leader], None] = lambda _: order.append("elected")  # noqa: E731
        with make(database).leader("s", ttl=TTL, on_elected=elected) as second:
            first.lease.release() if how == "release" else lq.dispose_leases()
            assert second.wait(30)
            until(lambda: "elected" in order, 5)
    assert order[:2] == ["lost", "elected"]


def test_duties_of_an_old_term_do_not_pass_as_those_of_a_later_one(database: Database, make: Make) -> None:
    database.execute("CREATE TABLE written (term bigint)")
    lq, go, refused = make(database), threading.Event(), threading.Event()
    terms: list[int | None] = []

    def duties(me: Leader) -> None:
        terms.append(me.term)
        if len(terms) > 1:
            return
        go.wait(20)
        assert not me.is_leader
        assert me.term is None
        try:
            with lq.begin() as conn:
                me.fence(conn)
                conn.execute(text("INSERT INTO written VALUES (1)"))
        except LeaseLost:
            refused.set()

    with lq.leader("s", ttl=TTL, on_elected=duties) as me:
        until(lambda: terms, 5)
        me.resign()
        with make(database).leader("s", ttl=TTL) as second:
            assert second.wait(30)
        assert not me.wait(1.5), "it stands while the duties of its last term still run"
        go.set()
        assert refused.wait(30)
        until(lambda: len(terms) == 2, 10, "it to be elected again")
    assert database.scalar("SELECT count(*) FROM written") == 0


def test_waiting_ends_with_standing(database: Database, make: Make) -> None:
    blocker = taken(database, make, "s")
    me = make(database).leader("s", ttl=TTL)
    me.start()
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(me.wait()))
    waiting.start()
    me.stop()
    waiting.join(30)
    assert answers == [False]
    assert not me.wait()
    me.start()
    with pytest.raises(ConfigurationError, match="stands already"):
        me.start()
    me.stop()
    blocker.release()


def test_who_waits_while_the_queue_is_disposed_of(database: Database, make: Make) -> None:
    blocker = taken(database, make)
    lq = make(database)
    caught: list[LeaseQueueError | None] = []

    def wait() -> None:
        try:
            with lq.lease("x", ttl=TTL, wait=None):
                caught.append(None)
        except LeaseQueueError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_lease_event WHERE event = 'refused'") > 0, 5)
    lq.dispose_leases()
    waiter.join(30)
    assert len(caught) == 1
    assert "were closed" in str(caught[0])
    blocker.release()
    assert isinstance(lq.try_lease("x", ttl=TTL), Lease), "the next use makes another keeper"


def test_one_that_the_server_refuses_takes_no_other_with_it(database: Database, make: Make) -> None:
    lq = make(database)
    leases = {name: lq.try_lease(name, ttl=TTL) for name in ("bad", "a", "b", "c")}
    database.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; "
        "CREATE TRIGGER no BEFORE UPDATE ON leasequeue_lease FOR EACH ROW WHEN (OLD.name = 'bad') EXECUTE FUNCTION no()"
    )
    bad = leases.pop("bad")
    assert isinstance(bad, Lease)
    assert bad.lost.wait(30)
    older = "SELECT count(*) FROM leasequeue_lease WHERE name <> 'bad' AND renewed_at > acquired_at + interval '3 s'"
    until(lambda: database.scalar(older) == 3, 10)
    for lease in leases.values():
        assert isinstance(lease, Lease)
        lease.check()
    lq.dispose_leases()
    assert database.scalar("SELECT count(*) FROM leasequeue_lease WHERE holder IS NULL") == 3


def test_a_fence_outside_of_a_transaction_is_an_error(database: Database, make: Make) -> None:
    lease = taken(database, make)
    with psycopg.connect(database.url, autocommit=True) as conn, pytest.raises(ConfigurationError, match="autocommit"):
        lease.fence(conn)
    engine = create_engine(Settings.parse(database.url).url("psycopg"), isolation_level="AUTOCOMMIT")
    with engine.connect() as conn, pytest.raises(ConfigurationError, match="autocommit"):
        lease.fence(conn)
    engine.dispose()
    with lease._keeper._run() as run:
        assert run("SELECT 1", {}) == [(1,)]


def test_a_slot_that_is_locked_hides_no_other(database: Database, make: Make) -> None:
    lq = make(database)
    first = lq.try_lease("pool", ttl=TTL, slots=3)
    assert isinstance(first, Lease)
    first.release()
    stranger = database.connect()
    stranger.execute("SELECT FROM leasequeue_lease FOR UPDATE")
    second = lq.try_lease("pool", ttl=TTL, slots=3)
    assert isinstance(second, Lease), str(second)
    assert second.slot == 1
    stranger.rollback()


def test_any_reason_can_be_written(database: Database, make: Make) -> None:
    lease = taken(database, make)
    lease.release("a NUL \0 and a lone surrogate \ud800 " + "x" * 1000)
    reason: Any = database.scalar("SELECT reason FROM leasequeue_lease_event WHERE event = 'released'")
    assert reason.startswith("a NUL \\0 and a lone surrogate \\ud800 xx")
    assert len(reason) == 500


def test_a_fence_that_is_refused_is_a_loss(database: Database, make: Make) -> None:
    """The server has said it: nothing may pass after that, not even for the rest of the trusted time."""
    lq = make(database)
    lease = lq.try_lease("x", ttl=dt.timedelta(seconds=30))
    assert isinstance(lease, Lease)
    database.execute("UPDATE leasequeue_lease SET holder = gen_random_uuid(), term = term + 1")
    with pytest.raises(LeaseLost), lq.begin() as conn:
        lease.fence(conn)
    assert lease.lost.is_set()
    with pytest.raises(LeaseLost, match="refused by the server"):
        lease.check()


def test_callbacks_that_take_no_argument_are_refused_at_once(make: Make) -> None:
    lq = make("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(ConfigurationError, match=r"def on_lost\(me\)"):
        lq.leader("s", on_elected=lambda me: None, on_lost=lambda: None)  # type: ignore[arg-type,misc]
    lq.leader("s", on_elected=print)
