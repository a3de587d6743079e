"""Programs, and the drivers that run them over every kind of connection that a caller brings.

A *program* is a generator: it yields a :class:`Statement` with its parameters, is sent the rows, and returns
its result. It holds the logic once, for sync and async, and knows nothing of the connection but a
:class:`Target`.

    run(conn, program, ...)          Connection, Session, scoped_session, psycopg, psycopg2, Django, a LeaseQueue
    await arun(conn, program, ...)   AsyncConnection, AsyncSession, async_scoped_session, psycopg async, a LeaseQueue

The transaction is the caller's: nothing here begins, commits or rolls back. A DBAPI cursor gets a statement as text. What runs
on SQLAlchemy's connections stands in ``core.py``, which is imported when the first of them comes; a LeaseQueue counts as one,
since its transactions are over its engine.

A caller's connection is used as its kind allows: by one thread at a time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, MutableSet
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar, cast
from weakref import WeakSet

from leasequeue.db import kinds
from leasequeue.db.kinds import AsyncConn, SyncConn
from leasequeue.db.load import load_sqlalchemy
from leasequeue.db.statement import Copy, Params, Program, Rows, Statement, Target, drive
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
P = ParamSpec("P")

_Drive: TypeAlias = Callable[[Any, Any, Any, Any], Any]


class Checked:
    """The databases whose tables have been looked at: tuples and names by value, objects (a pool of SQLAlchemy's) by weak
    reference. Thread-safe.
    """

    def __init__(self) -> None:
        self._objects: WeakSet[Any] = WeakSet()
        self._named: set[object] = set()

    def __contains__(self, database: object) -> bool:
        return database in self._of(database)

    def add(self, database: object) -> None:
        self._of(database).add(database)

    def discard(self, database: object) -> None:
        self._of(database).discard(database)

    def _of(self, database: object) -> MutableSet[Any]:
        return self._named if isinstance(database, tuple | str) else self._objects


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
        drive = _drive_of(kinds.sync_kind(conn))
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
        drive = _adrive_of(kinds.async_kind(conn))
        if conn.__class__ is kind:  # as above
            _ADRIVES[kind] = drive
    return cast(T, await drive(conn, program, args, kwargs))


def _drive_of(kind: str) -> _Drive:
    drive = _DRIVE_OF.get(kind)
    if drive is None:
        load_sqlalchemy()
        from leasequeue.db import core

        drive = core.DRIVES[kind]
    return drive


def _adrive_of(kind: str) -> _Drive:
    drive = _ADRIVE_OF.get(kind)
    if drive is None:
        load_sqlalchemy()
        from leasequeue.db import core

        drive = core.ADRIVES[kind]
    return drive


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


# DBAPI cursors. Each is asked for plain tuples, whatever row factory the caller's connection has.


def _on_psycopg(conn: psycopg.Connection[Any], program: Any, args: Any, kwargs: Any) -> Any:
    import psycopg
    from psycopg.rows import tuple_row

    info = conn.info
    with psycopg.Cursor(conn, row_factory=tuple_row) as cursor:

        def execute(statement: Statement, params: Params) -> Rows:
            sql: Any = statement.text
            if isinstance(statement, Copy):
                with cursor.copy(sql) as stream:
                    for piece in params["data"]:
                        stream.write(piece)
                return []
            # Never prepared: behind a transaction pooler the name would be looked up on another server.
            cursor.execute(sql, params, prepare=False)
            return cursor.fetchall() if cursor.description else []

        return drive(program(_psycopg_target(info), *args, **kwargs), execute)


async def _on_psycopg_async(conn: psycopg.AsyncConnection[Any], program: Any, args: Any, kwargs: Any) -> Any:
    import psycopg
    from psycopg.rows import tuple_row

    info = conn.info
    async with psycopg.AsyncCursor(conn, row_factory=tuple_row) as cursor:

        async def execute(statement: Statement, params: Params) -> Rows:
            sql: Any = statement.text
            if isinstance(statement, Copy):
                async with cursor.copy(sql) as stream:
                    for piece in params["data"]:
                        await stream.write(piece)
                return []
            await cursor.execute(sql, params, prepare=False)
            return await cursor.fetchall() if cursor.description else []

        return await _adrive(program(_psycopg_target(info), *args, **kwargs), execute)


def _psycopg_target(info: psycopg.ConnectionInfo) -> Target:
    from psycopg.pq import PipelineStatus

    # There is no COPY in a pipeline.
    return Target((info.host, info.port, info.dbname), copies=info.pipeline_status == PipelineStatus.OFF)


def _on_psycopg2(conn: Any, program: Any, args: Any, kwargs: Any) -> Any:
    from psycopg2.extensions import cursor as plain_cursor

    dsn = conn.get_dsn_parameters()
    database = (dsn.get("host"), dsn.get("port"), dsn.get("dbname"))
    with conn.cursor(cursor_factory=plain_cursor) as cursor:
        return drive(program(Target(database, copies=True), *args, **kwargs), _execute_on(cursor))


def _on_django(conn: Any, program: Any, args: Any, kwargs: Any) -> Any:
    if conn.vendor != "postgresql":
        raise ConfigurationError(f"Django's connection {conn.alias!r} is {conn.vendor}: jobs live in PostgreSQL")
    named = conn.settings_dict
    database = (conn.alias, named.get("HOST"), named.get("PORT"), named.get("NAME"))
    with conn.cursor() as cursor:
        return drive(program(Target(database), *args, **kwargs), _execute_on(cursor))


def _execute_on(cursor: Any) -> Callable[[Statement, Params], Rows]:
    def execute(statement: Statement, params: Params) -> Rows:
        if isinstance(statement, Copy):
            cursor.copy_expert(statement.text, io.StringIO("".join(params["data"])))
            return []
        cursor.execute(statement.text, params)
        return list(cursor.fetchall()) if cursor.description else []

    return execute


_DRIVE_OF: dict[str, _Drive] = {
    "psycopg.Connection": _on_psycopg,
    "psycopg2.extensions.connection": _on_psycopg2,
    kinds.DJANGO: _on_django,
}
_ADRIVE_OF: dict[str, _Drive] = {
    "psycopg.AsyncConnection": _on_psycopg_async,
}
# By class, so that the question what a connection is gets asked once.
_DRIVES: dict[type, _Drive] = {}
_ADRIVES: dict[type, _Drive] = {}
