"""The ledger as a gate writes it: each transaction begins with a bound on its statements and the fence of the leader's lease.

try ──done──> the result
 ^ └──disconnect──> again, until GIVE_UP_SECONDS ──> DatabaseUnavailable
 │                        │      or the lease is lost ──> LeaseLost
 └────────────────────────┘
any other error (a full disk, a statement beyond its bound) is raised at once: a second try would meet it as well
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from leasequeue.db import gate as sql
from leasequeue.db.disconnects import is_disconnect
from leasequeue.db.gate import Known, Tick
from leasequeue.db.program import run
from leasequeue.errors import DatabaseUnavailable

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from leasequeue.lease import Lease
    from leasequeue.queue import LeaseQueue

T = TypeVar("T")

log = logging.getLogger("leasequeue.gate")

LOOK_BACK = 100
"""How many of a job's last rows are looked at for gaps between them."""

BATCH = 500
RETRY_SECONDS = 0.1
GIVE_UP_SECONDS = 30.0
"""How long an executor's thread waits for a database that is away: renewals, on their own connection, may go on meanwhile."""

STATEMENT_SECONDS = 10.0
"""The server's bound for each statement: an executor's thread must not wait for a lock for ever."""

SAY_EVERY_SECONDS = 60.0


class Ledger:
    """Rows of ``leasequeue_tick``. Thread-safe.

    Each method goes on through an outage of the database while the lease is held, for ``GIVE_UP_SECONDS`` at most, and says
    once a minute what is wrong.

    Raises:
        LeaseLost: the lease is held no more. Nothing was written, or it is not known whether.
        DatabaseUnavailable: the outage took too long; as above.
        whatever else the database says: at once, and nothing was written.
    """

    def __init__(self, lq: LeaseQueue) -> None:
        self._lq = lq
        self._lock = threading.Lock()
        self._say_at = 0.0

    def write(self, lease: Lease, job_id: str, ticks: Sequence[Tick]) -> None:
        """Settle due times that do not run; what is settled already stays as it is."""
        for place in range(0, len(ticks), BATCH):
            batch = ticks[place : place + BATCH]

            def work(conn: Connection, batch: Sequence[Tick] = batch) -> None:
                run(conn, sql.record, self._lq.schema, job_id, batch, _by(lease))

            self._through(lease, work)

    def claim(self, lease: Lease, job_id: str, tick: Tick) -> bool:
        """Settle a due time that is to run; False: it is settled by somebody else. To be called once for each in a term."""
        return self._through(lease, lambda conn: self._claim(conn, lease, job_id, tick))

    def claim_in(self, conn: Connection, lease: Lease, job_id: str, tick: Tick) -> bool:
        """The same in the caller's transaction, and no second try."""
        lease.fence(conn)
        return self._claim(conn, lease, job_id, tick)

    def known(self, lease: Lease, job_id: str) -> Known:
        """What it knows of a job. No leader of an earlier term writes to it any more."""
        return self._through(lease, lambda conn: run(conn, sql.known, self._lq.schema, job_id, LOOK_BACK))

    def _claim(self, conn: Connection, lease: Lease, job_id: str, tick: Tick) -> bool:
        return run(conn, sql.claim, self._lq.schema, job_id, tick, _by(lease))

    def _through(self, lease: Lease, work: Callable[[Connection], T]) -> T:
        until = time.monotonic() + GIVE_UP_SECONDS
        while True:
            lease.check()
            try:
                with self._lq.begin() as conn:
                    run(conn, sql.bound, self._lq.schema, STATEMENT_SECONDS)
                    lease.fence(conn)
                    return work(conn)
            except Exception as error:
                if not is_disconnect(error):
                    raise
                if time.monotonic() >= until:
                    raise DatabaseUnavailable(
                        f"the ledger could not be reached for {GIVE_UP_SECONDS:g} s, while the lease was renewed: look at the "
                        f"database that lq.engine is connected to ({_plain(error)})"
                    ) from error
                self._say(error)
                lease.lost.wait(RETRY_SECONDS)

    def _say(self, error: Exception) -> None:
        """Once a minute, for all threads together."""
        with self._lock:
            if time.monotonic() < self._say_at:
                return
            self._say_at = time.monotonic() + SAY_EVERY_SECONDS
        log.warning("the ledger cannot be reached, trying again for %g s at most: %s", GIVE_UP_SECONDS, _plain(error))


def now() -> dt.datetime:
    """The clock that APScheduler goes by: this machine's."""
    return dt.datetime.now(dt.UTC)


def _plain(error: Exception) -> str:
    """Without the statement and its parameters, which SQLAlchemy appends."""
    return str(getattr(error, "orig", None) or error).strip()


def _by(lease: Lease) -> str:
    return f"{socket.gethostname()}:{os.getpid()} in term {lease.term}"
