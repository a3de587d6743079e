"""One connection of our own, and what can be said for certain when it fails.

    closed ──connect──> open ──run──> open
                          │ ├── nothing was sent, or it was rolled back ──> closed, DatabaseUnavailable
                          │ └── sent, and no answer ─────────────────────> closed, OutcomeUnknown
                          └── the server refuses the statement ──────────> open, the psycopg.Error

Nothing depends on a session of the server: every statement is a transaction of its own, unprepared, so that it may
go to another server connection each time. It runs in READ COMMITTED: as it is where that is the server's default, within
``BEGIN ISOLATION LEVEL READ COMMITTED`` elsewhere. That default is asked for at connect; behind a pooler a later
statement may meet another one, whose only effect is a serialization failure: it is then run again, explicitly.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

import psycopg
from psycopg.rows import tuple_row

from leasequeue.db.dial import Dialled, dial
from leasequeue.db.disconnects import is_disconnect, is_read_only, never_ran
from leasequeue.db.meanwhile import Connection
from leasequeue.db.urls import Host, Settings
from leasequeue.db.watchdog import Watchdog, shared
from leasequeue.errors import DatabaseUnavailable, OutcomeUnknown

__all__ = ["Link", "Watchdog", "is_disconnect", "readable"]

CONNECT_SECONDS = 5.0
CONNECT_SECONDS_MAX = 30.0

# A write that is refused after this long on one connection is a failover, and no sequel of the refusal before.
_RECENTLY_SECONDS = 60.0

_READ_COMMITTED = "BEGIN ISOLATION LEVEL READ COMMITTED"

# Between BEGIN and COMMIT this process may be stopped, and its rows would stay locked for as long. One message, two
# statements; local to the transaction.
_IDLE_SECONDS = 10
_BOUNDED = f"; SELECT set_config('idle_in_transaction_session_timeout', '{_IDLE_SECONDS}s', true)"

# A peer that vanished is noticed by the kernel in some 20 s even where nobody sends anything.
_KEEPALIVE: dict[str, str | int] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "client_encoding": "utf8",
}


T = TypeVar("T")


class Execute(Protocol):
    """Runs one statement of a transaction; see ``Link.run`` for what comes back."""

    def __call__(self, sql: str, params: Mapping[str, object] | None = None, /) -> list[tuple[Any, ...]]: ...


class Link:
    """A psycopg connection of our own, used by one thread at a time.

    After a fork the child's copy is closed: it shares no socket with its parent and may connect for itself.

    Args:
        settings: where to; ``connect_timeout`` among them bounds :meth:`connect` (5 s by default, 30 s at most).
        application_name: seen in ``pg_stat_activity``, unless the settings name one.
        watchdog: None: the one of this process.
        bound_seconds: how long a statement may take, its transmission included, before the socket is shut.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        application_name: str,
        watchdog: Watchdog | None = None,
        bound_seconds: float = 5.0,
    ) -> None:
        self.settings = settings
        self.generation = 0
        """Counts the successful connects."""
        self._extra = {"application_name": application_name, **_KEEPALIVE}
        self._watchdog = watchdog or shared
        self._bound_seconds = bound_seconds
        self._last_good: Host | None = None
        self._write_refusals = 0  # in a row
        self._connected_at = 0.0
        self._begin: str | None = None
        self._conn: Connection | None = None
        self._payloads: deque[str] = deque()
        _all.add(self)

    # The connection

    @property
    def connected(self) -> bool:
        """Whether there is a connection, as far as is known: a broken one is noticed by its next use."""
        return self._conn is not None

    @property
    def host(self) -> Host | None:
        """The host last connected to; None before the first time."""
        return self._last_good

    @property
    def pid(self) -> int:
        """The server process as the login named it; a transaction pooler names one that does not exist.

        Raises:
            DatabaseUnavailable: not connected.
        """
        return self._open().pgconn.backend_pid

    def fileno(self) -> int:
        """The socket.

        Raises:
            DatabaseUnavailable: not connected.
        """
        return self._open().pgconn.socket

    def connect(self) -> None:
        """Connect, unless connected. All hosts are tried, the last good one first.

        A host that cannot be written to is taken only if no other answers, and no more after a statement was
        refused for that reason.

        Raises:
            DatabaseUnavailable: no host would do within ``connect_timeout``; the message says what each said.
        """
        if self._conn is not None:
            return
        given = self.settings.option("connect_timeout")
        seconds = float(given) if given and given.isdigit() and int(given) > 0 else CONNECT_SECONDS
        self._adopt(
            dial(
                self.settings,
                self._extra,
                seconds=min(seconds, CONNECT_SECONDS_MAX),
                first=self._last_good,
                must_write=self._write_refusals > 0,
            )
        )

    def _adopt(self, found: Dialled) -> None:
        conn = Connection(found.pgconn, tuple_row)
        conn.autocommit = True
        conn.prepare_threshold = None  # a name prepared on one server connection is unknown on the next
        conn.add_notify_handler(lambda notify: self._payloads.append(notify.payload))
        self._payloads.clear()
        self._cursor = conn.cursor(binary=True)  # a row of a claim is read in 0.2 us instead of 1.3
        self._plain = conn.cursor()
        self._is_readable = _asker(conn.pgconn.socket)
        self._watch = self._watchdog.watch(conn.pgconn.socket)
        self._last_good = found.host
        facts = found.facts
        self._begin = None if facts.isolation == "read committed" else _READ_COMMITTED
        if facts.leaked or (self._write_refusals > 1 and not facts.read_only):
            # Another client of the pooler left default_transaction_read_only behind on a server connection: on the
            # one that was asked, or, where this one says it is writable and writes fail again and again, on others.
            self._begin = _READ_COMMITTED + " READ WRITE"
        self._conn = conn
        self._connected_at = time.monotonic()
        self.generation += 1

    def close(self) -> None:
        """Close; may be called again, and never waits for the server."""
        conn, self._conn = self._conn, None
        if conn is not None:
            self._watchdog.forget(self._watch)  # before the descriptor can become somebody else's
            with contextlib.suppress(psycopg.Error):
                conn.close()

    def _open(self) -> Connection:
        if self._conn is None:
            raise DatabaseUnavailable(
                f"not connected to {self.settings.masked}: call connect() first (a connection is closed by the "
                f"failure of a statement, and in the child of a fork)"
            )
        return self._conn

    # Statements

    def run(
        self,
        sql: str,
        params: Mapping[str, object] | None = None,
        *,
        bound_seconds: float | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run one statement in a READ COMMITTED transaction of its own.

        Args:
            sql: with ``%(name)s`` where there are parameters; a ``%`` is itself where there are none.
            bound_seconds: None: the bound of this Link.
            meanwhile: called once the statement is under way, while the server works on it; it must be quick and not raise.
                It may not be called where the statement fails.

        Returns:
            Its rows, in its order; an empty list where it yields none. Values come in the binary format: what
            psycopg has no binary loader for (``xid8``, ``pg_lsn``, ``regclass``) comes as bytes: cast it to text.

        Raises:
            DatabaseUnavailable: it has had no effect: nothing was sent, or it was rolled back for certain (the
                database is read-only, for instance).
            OutcomeUnknown: it was sent, and the connection broke or the bound was passed.
            psycopg.Error: the server refused the statement, or its parameters cannot be sent; still connected.
        """
        conn = self._open()
        if self._is_readable(0):
            self._take_input(conn)  # the end of the connection, most likely: seen before anything is sent
        watchdog, watch = self._watchdog, self._watch
        watchdog.arm(watch, self._bound_seconds if bound_seconds is None else bound_seconds)
        try:
            conn.meanwhile = meanwhile
            rows = self._execute(sql, params) if self._begin is None else self._execute_within(sql, params)
        except BaseException as error:
            conn.meanwhile = None
            hit = watchdog.disarm(watch)
            if isinstance(error, psycopg.errors.SerializationFailure) and self._begin is None and not hit:
                self._begin = _READ_COMMITTED
                return self.run(sql, params, bound_seconds=bound_seconds, meanwhile=meanwhile)
            self._failed(error, hit)
            raise
        if watchdog.disarm(watch):
            self.close()  # the answer came while the line was being cut
        return rows

    def transact(self, steps: Callable[[Execute], T], *, bound_seconds: float | None = None) -> T:
        """Run several statements in one READ COMMITTED transaction.

        Args:
            steps: called with what runs one statement, as :meth:`run` does; what it returns is returned. It must be quick,
                and free of effects beside its statements: it may run for a transaction that is then rolled back.
            bound_seconds: of the whole; None: the bound of this Link.

        Raises:
            as :meth:`run`: DatabaseUnavailable before the COMMIT was sent, OutcomeUnknown after. Whatever ``steps`` raises
            rolls the transaction back.
        """
        conn = self._open()
        if self._is_readable(0):
            self._take_input(conn)
        watchdog, watch = self._watchdog, self._watch
        watchdog.arm(watch, self._bound_seconds if bound_seconds is None else bound_seconds)
        try:
            found = self._execute_steps(steps)
        except BaseException as error:
            hit = watchdog.disarm(watch)
            self._failed(error, hit, explicit=True)
            raise
        if watchdog.disarm(watch):
            self.close()
        return found

    def _execute_steps(self, steps: Callable[[Execute], T]) -> T:
        self._committing = False
        self._plain.execute(((self._begin or _READ_COMMITTED) + _BOUNDED).encode())
        try:
            found = steps(self._execute)
        except Exception:
            if not self._cursor.connection.closed:
                self._plain.execute(b"ROLLBACK")
            raise
        self._committing = True
        self._plain.execute(b"COMMIT")
        return found

    def _execute(self, sql: str, params: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        cursor = self._cursor
        cursor.execute(sql, params)  # type: ignore[call-overload,unused-ignore]  # it wants literals; ours are made once per schema
        if cursor.rownumber is None:
            return []
        try:
            return cursor.fetchall()
        except Exception as error:
            # It is committed by now, and what it returned is lost.
            raise _Unreadable(f"{type(error).__name__}: {error}") from error

    def _execute_within(self, sql: str, params: Mapping[str, object] | None) -> list[tuple[Any, ...]]:
        return self._execute_steps(lambda execute: execute(sql, params))

    def _failed(self, error: BaseException, hit: bool, explicit: bool = False) -> None:
        """Raise what the caller is to know; return where the error itself says it and the connection is sound."""
        pgconn = self._cursor.connection.pgconn
        broken = hit or pgconn.status != psycopg.pq.ConnStatus.OK
        idle = not broken and pgconn.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if idle and not (isinstance(error, _Unreadable) or is_disconnect(error) or is_read_only(error)):
            return
        self.close()
        if isinstance(error, _Unreadable):
            raise OutcomeUnknown(f"the statement was answered, but that cannot be read ({error})") from error
        if not isinstance(error, psycopg.Error):
            return  # an interrupt in the middle of a statement: the caller's
        said = self.settings.hide(str(error).strip())
        if is_read_only(error):
            recently = time.monotonic() - self._connected_at < _RECENTLY_SECONDS
            self._write_refusals = self._write_refusals + 1 if recently else 1
            raise DatabaseUnavailable(
                f"{self._last_good} is read-only ({said}): looking for one that can be written to"
            ) from error
        rolled_back = (explicit or self._begin is not None) and not self._committing
        if rolled_back or (not hit and never_ran(error)):
            raise DatabaseUnavailable(f"{self._last_good}: the statement was not carried out: {said}") from error
        why = "no answer within its bound, so the connection was shut" if hit else said
        raise OutcomeUnknown(f"{self._last_good}: a statement was sent and its outcome is unknown: {why}") from error

    # Notifications

    @property
    def has_heard(self) -> bool:
        """Whether notifications came with what was read so far; :meth:`notifications` gives them without waiting."""
        return bool(self._payloads)

    def notifications(self, timeout_seconds: float, wake_fd: int | None = None) -> list[str]:
        """Wait for notifications on the channels listened to.

        Args:
            timeout_seconds: the longest wait; 0 looks without waiting.
            wake_fd: a descriptor that ends the wait when it becomes readable. It is not read.

        Returns:
            The payloads, in the order of their arrival, each once; empty at the timeout or a wake-up.

        Raises:
            DatabaseUnavailable: the connection is lost. Nothing was sent, so nothing is unknown.
        """
        conn = self._open()
        until = time.monotonic() + timeout_seconds
        fd = conn.pgconn.socket
        fds = [fd] if wake_fd is None else [fd, wake_fd]
        while True:
            if not self._payloads:
                ready = readable(fds, max(0.0, until - time.monotonic()))
                if fd in ready:
                    self._take_input(conn)
                if not self._payloads and fd in ready and wake_fd not in ready and time.monotonic() < until:
                    continue  # a notice, or half of a message
            found = list(self._payloads)
            self._payloads.clear()
            return found

    def _take_input(self, conn: Connection) -> None:
        """Take what came unasked; raises DatabaseUnavailable when it was the end."""
        try:
            while True:
                conn.pgconn.consume_input()
                while (notify := conn.pgconn.notifies()) is not None:
                    self._payloads.append(notify.extra.decode("utf-8", "replace"))
                if not self._is_readable(0):
                    return
        except psycopg.Error as error:
            self._lost(error)

    def _lost(self, error: psycopg.Error) -> NoReturn:
        said = self.settings.hide(str(error).strip())
        self.close()
        raise DatabaseUnavailable(f"{self._last_good}: the connection was lost while idle: {said}") from error

    def _after_fork(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            # Closing it would say good-bye to the server on the socket that the parent goes on using; only this
            # process's descriptor goes. The object must live on, or its end would do the same.
            _inherited.append(conn)
            with contextlib.suppress(OSError, psycopg.Error):
                os.close(conn.pgconn.socket)


class _Unreadable(Exception):
    """The server's answer cannot be made into Python objects."""


def readable(fds: list[int], seconds: float) -> list[int]:
    """Those of ``fds`` with something to read (or at their end), after at most that long."""
    if not hasattr(select, "poll"):
        return select.select(fds, [], [], seconds)[0]
    poll = select.poll()  # not select(): an application may well have more than 1,024 descriptors
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(seconds * 1000)]


def _asker(fd: int) -> Callable[[float], object]:
    """A function that says whether ``fd`` has something to read, made once since it is asked before each statement."""
    if not hasattr(select, "poll"):
        return lambda seconds: readable([fd], seconds)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll


_all: weakref.WeakSet[Link] = weakref.WeakSet()
_inherited: list[object] = []


def _after_fork() -> None:
    for link in list(_all):
        link._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
