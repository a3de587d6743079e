"""The kinds of connection that carry a job, and what is said of everything else.

A driver that was never imported cannot have made the object, so none is imported for the question.
"""

from __future__ import annotations

import abc
import sys
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from leasequeue.errors import ConfigurationError

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


class Psycopg2(Protocol):
    """A psycopg2 connection, by what only that has."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any: ...
    def set_client_encoding(self, encoding: str, /) -> None: ...
    def get_dsn_parameters(self) -> dict[str, str]: ...


class DjangoConnection(Protocol):
    """Django's ``connection`` or one of its ``connections``."""

    @property
    def vendor(self) -> str: ...
    @property
    def in_atomic_block(self) -> bool: ...
    def cursor(self) -> Any: ...


class Opens(abc.ABC):
    """What opens transactions of its own: a LeaseQueue."""

    @abc.abstractmethod
    def begin(self) -> AbstractContextManager[Connection]: ...

    @abc.abstractmethod
    def abegin(self) -> AbstractAsyncContextManager[AsyncConnection]: ...


if TYPE_CHECKING:
    SyncConn: TypeAlias = (
        Connection | Session | scoped_session[Any] | psycopg.Connection[Any] | Psycopg2 | DjangoConnection | Opens
    )
    AsyncConn: TypeAlias = (
        AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any] | Opens
    )
else:
    # Naming the real ones would import every driver.
    SyncConn = AsyncConn = Any

SYNC_KINDS = (
    "a SQLAlchemy Connection, Session or scoped_session, a psycopg.Connection, a psycopg2 connection, "
    "Django's connection, or the LeaseQueue itself (a transaction of its own)"
)
ASYNC_KINDS = (
    "a SQLAlchemy AsyncConnection, AsyncSession or async_scoped_session, a psycopg.AsyncConnection, "
    "or the LeaseQueue itself (a transaction of its own)"
)


DJANGO = "django"

_SYNC = (
    ("leasequeue.db.kinds", "Opens"),
    ("sqlalchemy", "Connection"),
    ("sqlalchemy.orm", "Session"),
    ("sqlalchemy.orm", "scoped_session"),
    ("psycopg", "Connection"),
    ("psycopg2.extensions", "connection"),
)
_ASYNC = (
    ("leasequeue.db.kinds", "Opens"),
    ("sqlalchemy.ext.asyncio", "AsyncConnection"),
    ("sqlalchemy.ext.asyncio", "AsyncSession"),
    ("sqlalchemy.ext.asyncio", "async_scoped_session"),
    ("psycopg", "AsyncConnection"),
)


def sync_kind(conn: object) -> str:
    """The name of the synchronous kind, as ``module.class`` of its base, or ``DJANGO``.

    Raises:
        ConfigurationError: it is none; the message says what to do instead.
    """
    kind = _find(conn, _SYNC) or (DJANGO if _looks_like_django(conn) else None)
    if kind is not None:
        return kind
    if _find(conn, _ASYNC):
        raise ConfigurationError(
            f"{_name(conn)} is asynchronous: await the method of the same name with a leading 'a' "
            f"(enqueue -> aenqueue, enqueue_many -> aenqueue_many, complete -> acomplete)"
        )
    raise ConfigurationError(f"{_unusable(conn)} Accepted: {SYNC_KINDS}.")


def async_kind(conn: object) -> str:
    """The name of the asynchronous kind; raises as :func:`sync_kind` does."""
    kind = _find(conn, _ASYNC)
    if kind is not None:
        return kind
    if _find(conn, _SYNC) or _looks_like_django(conn):
        raise ConfigurationError(
            f"{_name(conn)} is synchronous: call the method of the same name without the leading 'a' "
            f"(aenqueue -> enqueue, aenqueue_many -> enqueue_many, acomplete -> complete), "
            f"or give an asynchronous connection: {ASYNC_KINDS}"
        )
    raise ConfigurationError(f"{_unusable(conn)} Accepted: {ASYNC_KINDS}.")


def _find(conn: object, kinds: tuple[tuple[str, str], ...]) -> str | None:
    return next((f"{module}.{name}" for module, name in kinds if _is(conn, module, name)), None)


def _is(conn: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(conn, kind)


def _looks_like_django(conn: object) -> bool:
    # `django.db.connection` is a proxy of a class of its own that passes attributes on.
    return "django.db" in sys.modules and all(
        hasattr(conn, name) for name in ("vendor", "in_atomic_block", "settings_dict", "cursor")
    )


def _name(conn: object) -> str:
    return f"{type(conn).__module__}.{type(conn).__qualname__}"


def _unusable(conn: object) -> str:
    name = _name(conn)
    if isinstance(conn, type):
        return f"The class {conn.__qualname__} was given where one of its objects is wanted."
    if _is(conn, "sqlalchemy", "Engine") or _is(conn, "sqlalchemy.ext.asyncio", "AsyncEngine"):
        return (
            f"{name} is an engine, and a job belongs into a transaction: open one "
            f"(`with engine.begin() as conn:`) and give that connection."
        )
    if _is(conn, "sqlalchemy.orm", "sessionmaker") or _is(conn, "sqlalchemy.ext.asyncio", "async_sessionmaker"):
        return f"{name} makes sessions: call it, and give the session."
    if _is(conn, "psycopg_pool", "ConnectionPool") or _is(conn, "psycopg_pool", "AsyncConnectionPool"):
        return f"{name} is a pool: take a connection from it (`with pool.connection() as conn:`)."
    if any(
        _is(conn, module, cursor)
        for module, cursor in (
            ("psycopg", "Cursor"),
            ("psycopg", "AsyncCursor"),
            ("psycopg2.extensions", "cursor"),
        )
    ):
        return f"{name} is a cursor: give its connection."
    if type(conn).__module__.partition(".")[0] == "asyncpg":
        return f"{name} is a bare asyncpg connection, which is accepted only within SQLAlchemy's AsyncEngine."
    return f"{name} is no connection that can carry a job."
