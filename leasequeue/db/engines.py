"""The engines of one LeaseQueue: the configured one, and those made of its settings at first use."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from leasequeue.db.load import load_sqlalchemy
from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from leasequeue.db.urls import Settings


class Source(Protocol):
    """Where the database is."""

    def engine(self) -> Engine | AsyncEngine | None: ...
    def settings(self) -> Settings: ...


_ASYNCIO = "sqlalchemy.ext.asyncio"

# No server-side prepared statements: behind a transaction pooler their names are looked up on another server.
# The ping costs a round trip per checkout, and saves a failed enqueue after each restart of the server.
_OPTIONS: dict[str, Any] = {"connect_args": {"prepare_threshold": None}, "pool_pre_ping": True}


class Engines:
    """Thread-safe; one synchronous engine, and one asynchronous per event loop (a connection belongs to its
    loop).
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._making = threading.Lock()
        self._sync: Engine | None = None
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = WeakKeyDictionary()

    def sync(self) -> Engine:
        engine = self._sync
        if engine is not None:
            return engine
        load_sqlalchemy()
        from sqlalchemy import Engine, create_engine

        given = self._source.engine()
        if isinstance(given, Engine):
            return given
        self._refuse_other(given)
        with self._making:
            if self._sync is None:
                self._sync = create_engine(self._source.settings().url("psycopg"), **_OPTIONS)
            return self._sync

    def asynchronous(self) -> AsyncEngine:
        load_sqlalchemy(_ASYNCIO)
        from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

        given = self._source.engine()
        if isinstance(given, AsyncEngine):
            return given
        self._refuse_other(given)
        loop = asyncio.get_running_loop()
        with self._making:
            engine = self._async.get(loop)
            if engine is None:
                engine = create_async_engine(self._source.settings().url("psycopg"), **_OPTIONS)
                self._async[loop] = engine
            return engine

    @staticmethod
    def _refuse_other(given: object) -> None:
        if given is None:
            return
        load_sqlalchemy(_ASYNCIO)
        from sqlalchemy import Engine
        from sqlalchemy.ext.asyncio import AsyncEngine

        if not isinstance(given, Engine | AsyncEngine):
            raise ConfigurationError(
                f"configure(engine=...) takes a SQLAlchemy Engine or AsyncEngine, not {type(given).__qualname__}"
            )

    def dispose(self) -> None:
        with self._making:
            engine, self._sync = self._sync, None
        if engine is not None:
            engine.dispose()

    async def adispose(self) -> None:
        with self._making:
            engine = self._async.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.dispose()
