"""Which errors say that the connection is of no use any more, whichever driver raised them."""

from __future__ import annotations

from leasequeue.errors import DatabaseUnavailable

_STATES = ("25006", "57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04")

# What pgbouncer says of a statement that it has not passed on; libpq's code for all of it is 08P01.
_NOT_PASSED_ON = (
    "query_wait_timeout",
    "server login has been failing",
    "cannot connect to server",
    "no more connections allowed",
    "database does not allow connections",
    "transaction blocks not allowed in statement pooling mode",
)


def is_disconnect(error: BaseException) -> bool:
    """Whether the connection must be thrown away and another made.

    True for a lost connection, a server that shuts down or is starting, and one that is read-only (SQLSTATE 25006:
    after a failover the pool still holds connections to the old primary). Knows the errors of psycopg, psycopg2,
    asyncpg and SQLAlchemy, and our own.
    """
    if isinstance(error, DatabaseUnavailable | ConnectionError):
        return True
    if getattr(error, "connection_invalidated", False):
        return True
    original = getattr(error, "orig", None)  # SQLAlchemy's, around the driver's
    if isinstance(original, BaseException) and is_disconnect(original):
        return True
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if state:
        return str(state) in _STATES or str(state).startswith("08")
    if any(base.__name__ in ("OperationalError", "InterfaceError") for base in type(error).__mro__):
        return any(piece in str(error).lower() for piece in _LOST)
    cause = error.__cause__  # SQLAlchemy's asyncpg adapter keeps the driver's error there
    return cause is not None and cause is not error and is_disconnect(cause)


_LOST = (
    "connection already closed",
    "connection is closed",
    "connection is lost",
    "connection not open",
    "connection refused",
    "connection reset",
    "connection timed out",
    "connection timeout",
    "connection was closed",
    "could not connect",
    "could not receive data",
    "could not send data",
    "connection failed",
    "connection is bad",
    "eof detected",
    "server closed the connection",
    "terminating connection",
    "the connection is closed",
)


def never_ran(error: BaseException) -> bool:
    """Whether a pooler says that it has not passed the statement on to a server."""
    text = str(error)
    return any(piece in text for piece in _NOT_PASSED_ON)


def is_read_only(error: BaseException) -> bool:
    """The server cannot be written to: a standby (which also refuses ``READ WRITE``), or one made read-only."""
    state = getattr(error, "sqlstate", None)
    return state == "25006" or (state == "0A000" and "read-write mode" in str(error))
