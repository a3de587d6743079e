"""What is no connection is refused with a sentence that says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from leasequeue import ConfigurationError, LeaseQueue

from .kinds import KINDS, django_connection, sqlalchemy_url


@pytest.fixture
def send(lq: LeaseQueue) -> Any:
    @lq.task(name="send")
    def send() -> None: ...

    return send


def refused(send: Any, conn: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        send.enqueue(conn)
    return str(error.value)


def arefused(send: Any, conn: Any) -> str:
    with pytest.raises(ConfigurationError) as error:
        asyncio.run(send.aenqueue(conn))
    return str(error.value)


def test_something_else(send: Any) -> None:
    for conn in (None, 5, "postgresql://h/d", object()):
        assert "psycopg.Connection" in refused(send, conn)
        assert "psycopg.AsyncConnection" in arefused(send, conn)
    assert "The class Session" in refused(send, Session)


def test_what_makes_connections(send: Any) -> None:
    engine = create_engine("postgresql+psycopg://h/d")
    assert "with engine.begin() as conn" in refused(send, engine)
    assert "with engine.begin() as conn" in arefused(send, create_async_engine("postgresql+psycopg://h/d"))
    assert "call it" in refused(send, sessionmaker(engine))
    assert "call it" in arefused(send, async_sessionmaker())


def test_a_cursor(send: Any, database: Any) -> None:
    with psycopg.connect(database.url) as conn, conn.cursor() as cursor:
        assert "give its connection" in refused(send, cursor)


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_twin_is_named(send: Any, database: Any, kind: str) -> None:
    with KINDS[kind](database.url) as bench:
        if bench.is_async:
            assert "enqueue -> aenqueue" in refused(send, bench.conn)
        else:
            assert "aenqueue -> enqueue" in arefused(send, bench.conn)


def test_django_in_and_out_of_an_atomic_block(send: Any, database: Any) -> None:
    with django_connection(database.url) as conn:
        send.enqueue(conn)  # autocommit: there at once
        assert database.execute("SELECT count(*) FROM leasequeue_job") == [(1,)]
        with atomic(conn):
            send.enqueue(conn)
            assert database.execute("SELECT count(*) FROM leasequeue_job") == [(1,)]
    assert database.execute("SELECT count(*) FROM leasequeue_job") == [(2,)]


@contextmanager
def atomic(conn: Any) -> Iterator[None]:
    # transaction.atomic() looks the connection up by its alias in django.db.connections; this is what it
    # does.
    conn.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    conn.in_atomic_block = True
    try:
        yield
        conn.in_atomic_block = False
        conn.commit()
    finally:
        conn.set_autocommit(True)


def test_the_lease_queue_itself(send: Any, lq: LeaseQueue, database: Any) -> None:
    async def one() -> int:
        try:
            return int((await send.aenqueue(lq)).id)
        finally:
            await lq.adispose()

    ids = [send.enqueue(lq).id, asyncio.run(one()), *(job.id for job in lq.enqueue_many(lq, [send.call()]))]
    assert database.execute("SELECT id FROM leasequeue_job ORDER BY id") == [(id,) for id in ids]


def test_a_session_bound_to_an_outer_transaction(send: Any, database: Any) -> None:
    """SQLAlchemy's recipe for a suite: each test in a transaction that is rolled back."""
    engine = create_engine(sqlalchemy_url(database.direct_url, "psycopg"))
    with engine.connect() as conn:
        outer = conn.begin()
        with Session(conn, join_transaction_mode="create_savepoint") as session:
            send.enqueue(session)
            session.commit()
            send.enqueue(session)
            session.rollback()
        assert conn.exec_driver_sql("SELECT count(*) FROM leasequeue_job").scalar() == 1
        outer.rollback()
    engine.dispose()
    assert database.execute("SELECT count(*) FROM leasequeue_job") == [(0,)]
