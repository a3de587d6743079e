"""Every kind of connection behind one synchronous face, so that the contract is written once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import Delete, Insert, Update, column, create_engine, make_url, table, text, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from leasequeue import Call, Job, JobContext, LeaseQueue, Task

T = TypeVar("T")

_DICTS: Any = dict_row

_WRITE = update(table("anything", column("c"))).values(c=1)


class Bench:
    """An open connection of one kind in a transaction of its own."""

    def __init__(
        self,
        conn: Any,
        *,
        commit: Callable[[], Any],
        rollback: Callable[[], Any],
        execute: Callable[[Any], Any],
        run: Callable[[Any], Any] | None = None,
    ) -> None:
        self.conn = conn
        self._commit, self._rollback, self._execute, self._run = commit, rollback, execute, run

    @property
    def is_async(self) -> bool:
        return self._run is not None

    def _settle(self, value: Any) -> Any:
        return value if self._run is None else self._run(value)

    def commit(self) -> None:
        self._settle(self._commit())

    def rollback(self) -> None:
        self._settle(self._rollback())

    def execute(self, sql: str) -> None:
        """A statement of the application's own."""
        self._settle(self._execute(sql))

    def enqueue(self, task: Task[..., T], /, *args: Any, **kwargs: Any) -> Job[T]:
        method = task.aenqueue if self.is_async else task.enqueue
        job: Job[T] = self._settle(method(self.conn, *args, **kwargs))
        return job

    def enqueue_many(self, lq: LeaseQueue, calls: list[Call[Any]]) -> list[Job[Any]]:
        method = lq.aenqueue_many if self.is_async else lq.enqueue_many
        jobs: list[Job[Any]] = self._settle(method(self.conn, calls))
        return jobs

    def complete(self, ctx: JobContext, result: object = None) -> None:
        method = ctx.acomplete if self.is_async else ctx.complete
        self._settle(method(self.conn, result))


def sqlalchemy_url(url: str, driver: str) -> Any:
    return make_url(url).set(drivername=f"postgresql+{driver}")


def connect_args(driver: str) -> dict[str, Any]:
    """No server-side prepared statement may outlive its transaction: the suite also runs through a pooler."""
    if driver == "psycopg":
        return {"prepare_threshold": None}
    if driver == "asyncpg":
        return {
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: f"contract_{uuid.uuid4().hex}",
        }
    return {}


@contextmanager
def _engine(url: str, driver: str) -> Iterator[Any]:
    engine = create_engine(sqlalchemy_url(url, driver), poolclass=NullPool, connect_args=connect_args(driver))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _connection(url: str, driver: str) -> Iterator[Bench]:
    with _engine(url, driver) as engine, engine.connect() as conn:
        yield Bench(conn, commit=conn.commit, rollback=conn.rollback, execute=lambda sql: conn.execute(text(sql)))


@contextmanager
def _session(url: str, driver: str) -> Iterator[Bench]:
    with _engine(url, driver) as engine, Session(engine) as session:
        yield Bench(
            session,
            commit=session.commit,
            rollback=session.rollback,
            execute=lambda sql: session.execute(text(sql)),
        )


@contextmanager
def _scoped_session(url: str, driver: str) -> Iterator[Bench]:
    with _engine(url, driver) as engine:
        scoped = scoped_session(sessionmaker(engine))
        try:
            yield Bench(
                scoped,
                commit=scoped.commit,
                rollback=scoped.rollback,
                execute=lambda sql: scoped.execute(text(sql)),
            )
        finally:
            scoped.remove()


class RoutingSession(Session):
    """The usual routing: what writes goes to the primary, all else (``text()`` too) to the replica."""

    primary: Any
    replica: Any
    writes: tuple[type, ...] = (Insert, Update, Delete)

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **kwargs: Any) -> Any:
        if self._flushing or isinstance(clause, self.writes):
            return self.primary
        return self.replica


class DocumentedRoutingSession(RoutingSession):
    """The recipe of SQLAlchemy's documentation, which does not name Insert."""

    writes = (Update, Delete)


@contextmanager
def _routing(url: str, kind: type[RoutingSession]) -> Iterator[Bench]:
    with _engine(url, "psycopg") as primary:
        session = kind()
        session.primary = primary
        # Whatever is sent to the replica fails: nobody listens there.
        session.replica = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing", poolclass=NullPool)

        def execute(sql: str) -> None:
            session.connection(bind_arguments={"clause": _WRITE}).execute(text(sql))

        with session:
            yield Bench(session, commit=session.commit, rollback=session.rollback, execute=execute)


@contextmanager
def _async(url: str, driver: str, shape: str) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        run = runner.run
        engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool, connect_args=connect_args(driver))
        conn: Any
        if shape == "connection":
            conn = engine.connect()
            run(_start(conn))
        elif shape == "session":
            conn = AsyncSession(engine)
        else:
            conn = async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        try:
            yield Bench(
                conn,
                commit=conn.commit,
                rollback=conn.rollback,
                execute=lambda sql: conn.execute(text(sql)),
                run=run,
            )
        finally:
            run(conn.remove() if shape == "scoped" else conn.close())
            run(engine.dispose())


async def _start(conn: Any) -> None:
    await conn.start()


@contextmanager
def _psycopg(url: str) -> Iterator[Bench]:
    # A row factory of the caller's must not matter.
    with psycopg.connect(url, row_factory=_DICTS) as conn:
        try:
            yield Bench(conn, commit=conn.commit, rollback=conn.rollback, execute=conn.execute)
        finally:
            conn.rollback()


@contextmanager
def _psycopg_async(url: str) -> Iterator[Bench]:
    with asyncio.Runner() as runner:
        conn = runner.run(psycopg.AsyncConnection.connect(url, row_factory=_DICTS))
        try:
            yield Bench(conn, commit=conn.commit, rollback=conn.rollback, execute=conn.execute, run=runner.run)
        finally:
            runner.run(conn.close())


@contextmanager
def _psycopg2(url: str) -> Iterator[Bench]:
    import psycopg2
    from psycopg2.extras import RealDictCursor

    conn = psycopg2.connect(url, cursor_factory=RealDictCursor)

    def execute(sql: str) -> None:
        with conn.cursor() as cursor:
            cursor.execute(sql)

    try:
        yield Bench(conn, commit=conn.commit, rollback=conn.rollback, execute=execute)
    finally:
        conn.close()


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    """Django's ``connection``: the same proxy as ``django.db.connection``, over a database of this test's
    own.
    """
    import django  # type: ignore[import-untyped]  # ships no types
    from django.conf import settings  # type: ignore[import-untyped]  # ships no types
    from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]  # ships no types
    from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped]  # ships no types

    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = urlsplit(url)
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path.lstrip("/"),
                "USER": parts.username or "",
                "PASSWORD": parts.password or "",
                "HOST": parts.hostname or "",
                "PORT": parts.port or "",
                "DISABLE_SERVER_SIDE_CURSORS": True,
            }
        }
    )
    try:
        yield ConnectionProxy(handler, "default")
    finally:
        handler.close_all()


@contextmanager
def _django(url: str) -> Iterator[Bench]:
    with django_connection(url) as conn:
        conn.set_autocommit(False)

        def execute(sql: str) -> None:
            with conn.cursor() as cursor:
                cursor.execute(sql)

        try:
            yield Bench(conn, commit=conn.commit, rollback=conn.rollback, execute=execute)
        finally:
            conn.rollback()


KINDS: dict[str, Callable[[str], Any]] = {
    "Connection": lambda url: _connection(url, "psycopg"),
    "Connection-psycopg2": lambda url: _connection(url, "psycopg2"),
    "Session": lambda url: _session(url, "psycopg"),
    "scoped_session": lambda url: _scoped_session(url, "psycopg"),
    "routing Session": lambda url: _routing(url, RoutingSession),
    "documented routing Session": lambda url: _routing(url, DocumentedRoutingSession),
    "AsyncConnection": lambda url: _async(url, "psycopg", "connection"),
    "AsyncSession": lambda url: _async(url, "psycopg", "session"),
    "async_scoped_session": lambda url: _async(url, "psycopg", "scoped"),
    "AsyncConnection-asyncpg": lambda url: _async(url, "asyncpg", "connection"),
    "AsyncSession-asyncpg": lambda url: _async(url, "asyncpg", "session"),
    "async_scoped_session-asyncpg": lambda url: _async(url, "asyncpg", "scoped"),
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
    "psycopg2": _psycopg2,
    "Django": _django,
}
