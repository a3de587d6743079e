"""Programs, and the drivers that run them over every kind of connection that a caller brings.

A *program* is a generator: it yields a :class:`Statement` with its parameters, is sent the rows, and returns
its result. It holds the logic once, for sync and async, and knows nothing of the connection but a
:class:`Target`.

    run(conn, program, ...)          Connection, Session, scoped_session, psycopg, psycopg2, Django, a
    LeaseQueue await arun(conn, program, ...)   AsyncConnection, AsyncSession, async_scoped_session, psycopg
    async, a LeaseQueue

The transaction is the caller's: nothing here begins, commits or rolls back. On SQLAlchemy a Core construct is
executed, never ``text()``: the usual routing session sends ``text()`` to the replica, and ``%(name)s`` is a
syntax error on asyncpg. A DBAPI cursor gets the same construct rendered once.

A caller's connection is used as its kind allows: by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakSet

from sqlalchemy import Connection, Pool, TwoPhaseTransaction, column, table, update
from sqlalchemy.exc import UnboundExecutionError

from leasequeue.db import kinds, notify
from leasequeue.db.kinds import AsyncConn, Opens, SyncConn
from leasequeue.db.statement import Params, Program, Rows, Statement, Target, drive
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

T = TypeVar("T")
P = ParamSpec("P")


class _CoreTarget(Target):
    """A connection of SQLAlchemy's, which tells when it commits, and what kind of transaction it is in."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.engine.pool)
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


class Checked:
    """The databases whose tables have been looked at: pools by weak reference, all else by value.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._pools: WeakSet[Pool] = WeakSet()
        self._named: set[object] = set()

    def __contains__(self, database: object) -> bool:
        return database in self._pools if isinstance(database, Pool) else database in self._named

    def add(self, database: object) -> None:
        self._pools.add(database) if isinstance(database, Pool) else self._named.add(database)

    def discard(self, database: object) -> None:
        self._pools.discard(database) if isinstance(database, Pool) else self._named.discard(database)


def sqlstate(error: BaseException) -> str | None:
    """The server's code for an error of any driver, also as SQLAlchemy or Django wrap it, or None."""
    for each in (error, getattr(error, "orig", None), error.__cause__):
        for name in ("sqlstate", "pgcode"):
            code = getattr(each, name, None)
            if isinstance(code, str):
                return code
    return None


def run(
    conn: SyncConn,
    program: Callable[Concatenate[Target, P], Program[T]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a program over a synchronous connection, in its transaction.

    Raises:
        ConfigurationError: not an accepted kind of connection, or an asynchronous one.
        whatever the program raises; errors of the driver are thrown into it first.
    """
    kind = type(conn)
    drive = _DRIVES.get(kind)
    if drive is None:
        drive = _DRIVE_OF[kinds.sync_kind(conn)]
        if conn.__class__ is kind:  # not a proxy, which may stand for something else the next time
            _DRIVES[kind] = drive
    return cast(T, drive(conn, program, args, kwargs))


async def arun(
    conn: AsyncConn,
    program: Callable[Concatenate[Target, P], Program[T]],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a program over an asynchronous connection, in its transaction. Raises as :func:`run` does."""
    kind = type(conn)
    drive = _ADRIVES.get(kind)
    if drive is None:
        drive = _ADRIVE_OF[kinds.async_kind(conn)]
        if conn.__class__ is kind:  # as above
            _ADRIVES[kind] = drive
    return cast(T, await drive(conn, program, args, kwargs))


async def _adrive(program: Program[T], execute: Callable[[Statement, Params], Any]) -> T:
    try:
        statement, params = next(program)
        while True:
            try:
                rows = await execute(statement, params)
            except Exception as error:  # noqa: BLE001  # as in drive
                statement, params = program.throw(error)
            else:
                statement, params = program.send(rows)
    except StopIteration as stop:
        return cast(T, stop.value)


# SQLAlchemy. Async kinds run the same functions inside of run_sync: one greenlet for the whole program.


def _on_connection(conn: Connection, program: Any, args: Any, kwargs: Any) -> Any:
    def execute(statement: Statement, params: Params) -> Rows:
        result = conn.execute(statement.core, params)
        return cast(Rows, result.fetchall()) if result.returns_rows else []  # a Row is a tuple

    return drive(program(_CoreTarget(conn), *args, **kwargs), execute)


def _on_session(session: Session, program: Any, args: Any, kwargs: Any) -> Any:
    # The connection on which the session would write. Asked for with an Update: each routing session sends
    # that to the primary, also one after the recipe in SQLAlchemy's documentation, which forgets Insert. All
    # statements of the program go there, the SELECTs too: a replica would answer them from the past.
    try:
        conn = session.connection(bind_arguments={"clause": _WRITE})
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


# DBAPI cursors. Each is asked for plain tuples, whatever row factory the caller's connection has.


def _on_psycopg(conn: psycopg.Connection[Any], program: Any, args: Any, kwargs: Any) -> Any:
    import psycopg
    from psycopg.rows import tuple_row

    info = conn.info
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:

        def execute(statement: Statement, params: Params) -> Rows:
            # Never prepared: behind a transaction pooler the name would be looked up on another server.
            sql: Any = statement.text
            cursor.execute(sql, params, prepare=False)
            return cursor.fetchall() if cursor.description else []

        return drive(program(Target((info.host, info.port, info.dbname)), *args, **kwargs), execute)


async def _on_psycopg_async(conn: psycopg.AsyncConnection[Any], program: Any, args: Any, kwargs: Any) -> Any:
    import psycopg
    from psycopg.rows import tuple_row

    info = conn.info
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:

        async def execute(statement: Statement, params: Params) -> Rows:
            sql: Any = statement.text
            await cursor.execute(sql, params, prepare=False)
            return await cursor.fetchall() if cursor.description else []

        return await _adrive(program(Target((info.host, info.port, info.dbname)), *args, **kwargs), execute)


def _on_psycopg2(conn: Any, program: Any, args: Any, kwargs: Any) -> Any:
    from psycopg2.extensions import cursor as plain_cursor

    dsn = conn.get_dsn_parameters()
    database = (dsn.get("host"), dsn.get("port"), dsn.get("dbname"))
    with conn.cursor(cursor_factory=plain_cursor) as cursor:
        return drive(program(Target(database), *args, **kwargs), _execute_on(cursor))


def _on_django(conn: Any, program: Any, args: Any, kwargs: Any) -> Any:
    if conn.vendor != "postgresql":
        raise ConfigurationError(f"Django's connection {conn.alias!r} is {conn.vendor}: jobs live in PostgreSQL")
    named = conn.settings_dict
    database = (conn.alias, named.get("HOST"), named.get("PORT"), named.get("NAME"))
    with conn.cursor() as cursor:
        return drive(program(Target(database), *args, **kwargs), _execute_on(cursor))


def _execute_on(cursor: Any) -> Callable[[Statement, Params], Rows]:
    def execute(statement: Statement, params: Params) -> Rows:
        cursor.execute(statement.text, params)
        return list(cursor.fetchall()) if cursor.description else []

    return execute


# A transaction of its own.


def _on_own(own: Opens, program: Any, args: Any, kwargs: Any) -> Any:
    with own.begin() as conn:
        return _on_connection(conn, program, args, kwargs)


async def _on_own_async(own: Opens, program: Any, args: Any, kwargs: Any) -> Any:
    async with own.abegin() as conn:
        return await conn.run_sync(_on_connection, program, args, kwargs)


# Never executed: it only asks a session where it would write.
_WRITE = update(table("leasequeue_job", column("state"))).values(state="r")

_DRIVE_OF: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "leasequeue.db.kinds.Opens": _on_own,
    "sqlalchemy.Connection": _on_connection,
    "sqlalchemy.orm.Session": _on_session,
    "sqlalchemy.orm.scoped_session": _on_scoped,
    "psycopg.Connection": _on_psycopg,
    "psycopg2.extensions.connection": _on_psycopg2,
    kinds.DJANGO: _on_django,
}
_ADRIVE_OF: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "leasequeue.db.kinds.Opens": _on_own_async,
    "sqlalchemy.ext.asyncio.AsyncConnection": _on_async_connection,
    "sqlalchemy.ext.asyncio.AsyncSession": _on_async_session,
    "sqlalchemy.ext.asyncio.async_scoped_session": _on_async_scoped,
    "psycopg.AsyncConnection": _on_psycopg_async,
}
# By class, so that the question what a connection is gets asked once.
_DRIVES: dict[type, Callable[[Any, Any, Any, Any], Any]] = {}
_ADRIVES: dict[type, Callable[[Any, Any, Any, Any], Any]] = {}
