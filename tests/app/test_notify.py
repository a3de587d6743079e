"""The ration of NOTIFY, read by a connection that listens."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from leasequeue import LeaseQueue, Task
from leasequeue.db import notify
from leasequeue.db.names import channel

pytestmark = pytest.mark.direct_only  # a listener needs a connection of its own


class Ear:
    """Listens, and counts what has been committed so far."""

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        self._conn = conn
        self._channel = channel(schema)
        conn.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))

    def heard(self) -> list[str]:
        # Notifications are delivered in commit order: once our own marker is here, all earlier ones are.
        self._conn.execute("SELECT pg_notify(%s, 'marker')", [self._channel])
        payloads: list[str] = []
        for each in self._conn.notifies(timeout=5):
            if each.payload == "marker":
                return payloads
            payloads.append(each.payload)
        raise AssertionError("the marker did not arrive")


@pytest.fixture
def ear(database: Any) -> Ear:
    return Ear(database.connect(autocommit=True), database.schema)


@pytest.fixture
def lq(database: Any) -> Iterator[LeaseQueue]:
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()


@pytest.fixture
def send(lq: LeaseQueue) -> Task[..., None]:
    @lq.task(name="send")
    def send(user_id: int) -> None: ...

    return send


@pytest.fixture
def engine(database: Any) -> Iterator[Engine]:
    made = create_engine(database.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    yield made
    made.dispose()


@pytest.fixture(autouse=True)
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that a slow machine does not leave the interval between two lines of a test.
    monkeypatch.setattr(notify, "INTERVAL_SECONDS", 60.0)


def test_the_second_commit_in_the_interval_is_silent(engine: Engine, ear: Ear, send: Any) -> None:
    for queue in ("default", "mail"):
        for _ in range(3):
            with engine.begin() as conn:
                send.options(queue=queue).enqueue(conn, 1)
    assert ear.heard() == ["default", "mail"]


def test_after_the_interval_it_notifies_again(
    engine: Engine, ear: Ear, send: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "INTERVAL_SECONDS", 0.0)
    for _ in range(2):
        with engine.begin() as conn:
            send.enqueue(conn, 1)
    assert ear.heard() == ["default", "default"]


def test_a_transaction_that_rolled_back_silences_nobody(engine: Engine, ear: Ear, send: Any) -> None:
    with engine.connect() as conn:
        send.enqueue(conn, 1)
        conn.rollback()
        assert ear.heard() == []
        send.enqueue(conn, 2)
        conn.commit()
    assert ear.heard() == ["default"]


def test_an_open_transaction_silences_nobody(engine: Engine, ear: Ear, send: Any) -> None:
    with engine.connect() as slow, engine.connect() as quick:
        send.enqueue(slow, 1)
        send.enqueue(quick, 2)
        quick.commit()
        assert ear.heard() == ["default"]
        slow.commit()


def test_a_savepoint_that_rolled_back_silences_nobody(engine: Engine, ear: Ear, send: Any) -> None:
    with Session(engine) as session:
        with session.begin_nested() as savepoint:
            send.enqueue(session, 1)
            savepoint.rollback()
        send.enqueue(session, 2)
        session.commit()
    assert ear.heard() == ["default"]


def test_autocommit_is_rationed_too(engine: Engine, ear: Ear, send: Any) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        for _ in range(3):
            send.enqueue(conn, 1)
    assert ear.heard() == ["default"]


def test_what_is_due_later_wakes_nobody(engine: Engine, ear: Ear, lq: LeaseQueue, send: Any) -> None:
    later = send.options(delay=dt.timedelta(hours=1))
    with engine.begin() as conn:
        later.enqueue(conn, 1)
        lq.enqueue_many(conn, [later.call(1), later.call(2)])
    assert ear.heard() == []


def test_many_notify_once_per_queue(engine: Engine, ear: Ear, lq: LeaseQueue, send: Any) -> None:
    with engine.begin() as conn:
        lq.enqueue_many(conn, [send.options(queue=f"q{n % 2}").call(n) for n in range(50)])
    assert sorted(ear.heard()) == ["q0", "q1"]


def test_a_bare_driver_connection_always_notifies(database: Any, ear: Ear, send: Any) -> None:
    with database.connect() as conn:
        for _ in range(2):
            send.enqueue(conn, 1)
            conn.commit()
    assert ear.heard() == ["default", "default"]


def test_two_phase_transactions_notify_nobody_and_can_be_prepared(
    engine: Engine, database: Any, ear: Ear, send: Any
) -> None:
    if int(database.execute("SHOW max_prepared_transactions")[0][0]) == 0:
        pytest.skip("this server has max_prepared_transactions = 0")
    with engine.connect() as conn:
        transaction = conn.begin_twophase()
        send.enqueue(conn, 1)
        transaction.prepare()
        transaction.commit()
    assert ear.heard() == []
    assert database.execute("SELECT count(*) FROM leasequeue_job") == [(1,)]


def test_a_two_phase_transaction_is_recognised(engine: Engine, send: Any) -> None:
    with engine.connect() as conn:
        transaction = conn.begin_twophase()
        send.enqueue(conn, 1)
        # PREPARE refuses a transaction that has notified, whatever the server's limit; so ask what was sent.
        assert notify._PENDING not in conn.info
        transaction.rollback()
        assert conn.execute(text("SELECT 1")).scalar() == 1
