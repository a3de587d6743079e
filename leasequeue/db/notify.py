"""The ration of NOTIFY: at most one notifying commit per process, database and queue in a short interval.

Every commit that notifies waits for one lock of the whole instance, so a busy enqueuer must not notify each
time.
A notification is only a hint: a worker that just got one looks, and polls again within that time.

What counts is the *commit*. A transaction that notified and is still open, or rolled back, has woken nobody,
and must silence nobody. SQLAlchemy says when a transaction commits (an event of the engine, listened to once
per engine); a bare DBAPI connection does not, so there nothing is saved.

    notify in the statement --> pending, on the connection --commit--> stamped --interval--> forgotten
                                      |-- rollback, also to a savepoint --> forgotten at once
"""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event

INTERVAL_SECONDS = 0.020

_PENDING = "leasequeue_notified"

Key = tuple[str, str]

_stamps: WeakKeyDictionary[Engine, dict[Key, float]] = WeakKeyDictionary()


def ration(connection: Connection, channel: str, queue: str) -> bool:
    """Whether to notify in the connection's transaction; True also notes it as pending there.

    A savepoint that is made and rolled back as raw SQL is not seen; its notification is missed, and the poll
    finds the job.

    Thread-safe: two threads at the same moment may both get True, which costs one notification.
    """
    engine = connection.engine
    stamps = _stamps.get(engine)
    if stamps is None:
        stamps = _listen(engine)
    key = (channel, queue)
    now = time.monotonic()
    if now - stamps.get(key, -1.0) < INTERVAL_SECONDS:
        return False
    # The one place where SQLAlchemy knows it of the connection's options and of its engine's.
    if connection._is_autocommit_isolation():
        stamps[key] = now  # the statement is its own transaction; no event will come
        return True
    pending: set[Key] = connection.info.setdefault(_PENDING, set())
    if key in pending:
        return False  # it is in this transaction already, and shares its fate
    pending.add(key)
    return True


def _listen(engine: Engine) -> dict[Key, float]:
    stamps = _stamps.setdefault(engine, {})
    # An engine with other execution options is an object of its own over the same pool; listening is
    # idempotent.
    for name, listener in (
        ("commit", _committing),
        ("rollback", _rolled_back),
        ("rollback_savepoint", _rolled_back),
    ):
        if not event.contains(engine, name, listener):
            event.listen(engine, name, listener)
    return stamps


def _committing(connection: Connection) -> None:
    # Called just before COMMIT is sent. One that fails silences the queue for the interval: the poll finds
    # the job.
    pending = connection.info.pop(_PENDING, None)
    if pending:
        now = time.monotonic()
        stamps = _stamps.setdefault(connection.engine, {})
        if len(stamps) > 1000:  # queue names made on the fly must not grow for ever
            stamps.clear()
        for key in pending:
            stamps[key] = now


def _rolled_back(connection: Connection, *_: Any) -> None:
    connection.info.pop(_PENDING, None)
