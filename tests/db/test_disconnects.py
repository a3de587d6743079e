"""Which errors mean that a connection is of no use, over the drivers, with their real errors."""

from __future__ import annotations

import asyncio

import asyncpg  # type: ignore[import-untyped]  # ships no types
import psycopg
import psycopg2
import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from leasequeue.db.disconnects import is_disconnect
from leasequeue.db.urls import Settings
from leasequeue.errors import DatabaseUnavailable, LeaseQueueError, OutcomeUnknown

DIE = "SELECT pg_terminate_backend(pg_backend_pid())"
WRONG = "SELECT 1 / 0"
READ_ONLY = ("SET TRANSACTION READ ONLY", "CREATE TABLE t (a int)")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemy(direct_url: str, driver: str) -> None:
    engine = sqlalchemy.create_engine(Settings.parse(direct_url).url(driver), poolclass=sqlalchemy.NullPool)
    for statements, lost in (((DIE,), True), ((WRONG,), False), (READ_ONLY, True)):
        with engine.connect() as conn:
            for statement in statements[:-1]:
                conn.execute(sqlalchemy.text(statement))
            with pytest.raises(DBAPIError) as raised:
                conn.execute(sqlalchemy.text(statements[-1]))
        assert is_disconnect(raised.value) is lost


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_sqlalchemy_async(direct_url: str, driver: str) -> None:
    async def provoke(*statements: str) -> BaseException:
        engine = create_async_engine(Settings.parse(direct_url).url(driver), poolclass=sqlalchemy.NullPool)
        async with engine.connect() as conn:
            for statement in statements[:-1]:
                await conn.execute(sqlalchemy.text(statement))
            with pytest.raises(DBAPIError) as raised:
                await conn.execute(sqlalchemy.text(statements[-1]))
        return raised.value

    assert is_disconnect(asyncio.run(provoke(DIE)))
    assert not is_disconnect(asyncio.run(provoke(WRONG)))
    assert is_disconnect(asyncio.run(provoke(*READ_ONLY)))


def test_psycopg(direct_url: str) -> None:
    with psycopg.connect(direct_url, autocommit=True) as conn:
        with pytest.raises(psycopg.Error) as wrong:
            conn.execute(WRONG)
        with pytest.raises(psycopg.Error) as lost:
            conn.execute(DIE)
        with pytest.raises(psycopg.Error) as closed:
            conn.execute("SELECT 1")
    with pytest.raises(psycopg.Error) as refused:
        psycopg.connect("host=127.0.0.1 port=1")
    assert not is_disconnect(wrong.value)
    assert is_disconnect(lost.value)
    assert is_disconnect(closed.value)
    assert is_disconnect(refused.value)


def test_psycopg2(direct_url: str) -> None:
    conn = psycopg2.connect(direct_url)
    with conn.cursor() as cursor:
        with pytest.raises(psycopg2.Error) as wrong:
            cursor.execute(WRONG)
        conn.rollback()
        with pytest.raises(psycopg2.Error) as lost:
            cursor.execute(DIE)
    with pytest.raises(psycopg2.Error) as closed:
        conn.cursor()
    conn.close()
    assert not is_disconnect(wrong.value)
    assert is_disconnect(lost.value)
    assert is_disconnect(closed.value)


def test_asyncpg(direct_url: str) -> None:
    async def provoke() -> list[BaseException]:
        conn = await asyncpg.connect(direct_url)
        seen: list[BaseException] = []
        for statement in (WRONG, DIE, "SELECT 1"):
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)) as raised:
                await conn.execute(statement)
            seen.append(raised.value)
        return seen

    wrong, lost, closed = asyncio.run(provoke())
    assert not is_disconnect(wrong)
    assert is_disconnect(lost)
    assert is_disconnect(closed)


def test_our_own_and_others() -> None:
    assert is_disconnect(DatabaseUnavailable("x"))
    assert is_disconnect(OutcomeUnknown("x"))
    assert is_disconnect(ConnectionResetError())
    assert not is_disconnect(LeaseQueueError("x"))
    assert not is_disconnect(ValueError("server closed the connection"))
