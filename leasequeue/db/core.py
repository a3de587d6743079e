"""How a program runs over a connection or session of SQLAlchemy's; imported when the first one arrives (``program.py``).

The transaction is the caller's, but where the caller gives a LeaseQueue: that opens one of its own, over its own engine.

Async kinds run the same functions inside of ``run_sync``: one greenlet for the whole program.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, TwoPhaseTransaction, column, table, update
from sqlalchemy.exc import DBAPIError, UnboundExecutionError
from sqlalchemy.util import await_only

from leasequeue.db import notify
from leasequeue.db.statement import Copy, Params, Rows, Statement, Target, drive
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from leasequeue.db.kinds import Opens

_COPIES = ("psycopg", "psycopg2")
"""Drivers over which COPY is known to work here."""

WRITE = update(table("leasequeue_job", column("state"))).values(state="r")
"""Never executed: it only asks a session where it would write."""


class _CoreTarget(Target):
    """A connection of SQLAlchemy's, which tells when it commits, and what kind of transaction it is in."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.engine.pool, copies=connection.dialect.driver in _COPIES)
        self._connection = connection

    def may_notify(self, channel: str, queue: str) -> bool:
        connection = self._connection
        if isinstance(connection.get_transaction(), TwoPhaseTransaction):
            return False  # PREPARE TRANSACTION refuses a transaction that has notified
        return notify.ration(connection, channel, queue)

    def doom(self) -> None:
        """SQLAlchemy knows of savepoints, and refuses to go on with an invalidated connection until the whole transaction
        has been rolled back."""
        if self._connection.in_nested_transaction():
            self._connection.invalidate()


def _on_connection(conn: Connection, program: Any, args: Any, kwargs: Any) -> Any:
    def execute(statement: Statement, params: Params) -> Rows:
        if isinstance(statement, Copy):
            _copy(conn, statement.text, params["data"])
            return []
        result = conn.execute(statement.core, params)
        return cast(Rows, result.fetchall()) if result.returns_rows else []  # a Row is a tuple

    return drive(program(_CoreTarget(conn), *args, **kwargs), execute)


def _copy(conn: Connection, sql: str, data: Iterable[str]) -> None:
    # SQLAlchemy has no words for it: the driver's own cursor, in the transaction that the statement before has begun. What goes
    # wrong is told as SQLAlchemy tells it, and a connection that is lost is known to be so.
    driver: Any = conn.connection.driver_connection
    try:
        if conn.dialect.is_async:
            await_only(_copy_async(driver, sql, data))
        else:
            with driver.cursor() as cursor:
                if conn.dialect.driver == "psycopg2":
                    cursor.copy_expert(sql, io.StringIO("".join(data)))
                else:
                    with cursor.copy(sql) as stream:
                        for piece in data:
                            stream.write(piece)
    except conn.dialect.loaded_dbapi.Error as error:
        lost = conn.dialect.is_disconnect(error, conn.connection.dbapi_connection, None)
        if lost:
            conn.invalidate(error)
        raise DBAPIError.instance(
            sql, None, error, conn.dialect.loaded_dbapi.Error, connection_invalidated=lost, dialect=conn.dialect
        ) from error


async def _copy_async(driver: Any, sql: str, data: Iterable[str]) -> None:
    async with driver.cursor() as cursor, cursor.copy(sql) as stream:
        for piece in data:
            await stream.write(piece)


def _on_session(session: Session, program: Any, args: Any, kwargs: Any) -> Any:
    # The connection on which the session would write. Asked for with an Update: each routing session sends
    # that to the primary, also one after the recipe in SQLAlchemy's documentation, which forgets Insert. All
    # statements of the program go there, the SELECTs too: a replica would answer them from the past.
    try:
        conn = session.connection(bind_arguments={"clause": WRITE})
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "this Session has engines for some classes (binds=...) and none for the queue's tables: give it "
            "a bind for everything else, or hand over session.connection(bind_arguments={'bind': engine}) "
            "instead, which is part of the same transaction"
        ) from error
    return _on_connection(conn, program, args, kwargs)


def _on_scoped(scoped: scoped_session[Any], program: Any, args: Any, kwargs: Any) -> Any:
    return _on_session(scoped(), program, args, kwargs)


async def _on_async_connection(conn: AsyncConnection, program: Any, args: Any, kwargs: Any) -> Any:
    return await conn.run_sync(_on_connection, program, args, kwargs)


async def _on_async_session(session: AsyncSession, program: Any, args: Any, kwargs: Any) -> Any:
    return await session.run_sync(_on_session, program, args, kwargs)


async def _on_async_scoped(scoped: async_scoped_session[Any], program: Any, args: Any, kwargs: Any) -> Any:
    return await scoped().run_sync(_on_session, program, args, kwargs)


# A transaction of its own.


def _on_own(own: Opens, program: Any, args: Any, kwargs: Any) -> Any:
    with own.begin() as conn:
        return _on_connection(conn, program, args, kwargs)


async def _on_own_async(own: Opens, program: Any, args: Any, kwargs: Any) -> Any:
    async with own.abegin() as conn:
        return await conn.run_sync(_on_connection, program, args, kwargs)


DRIVES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "leasequeue.db.kinds.Opens": _on_own,
    "sqlalchemy.Connection": _on_connection,
    "sqlalchemy.orm.Session": _on_session,
    "sqlalchemy.orm.scoped_session": _on_scoped,
}
ADRIVES: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "leasequeue.db.kinds.Opens": _on_own_async,
    "sqlalchemy.ext.asyncio.AsyncConnection": _on_async_connection,
    "sqlalchemy.ext.asyncio.AsyncSession": _on_async_session,
    "sqlalchemy.ext.asyncio.async_scoped_session": _on_async_scoped,
}
