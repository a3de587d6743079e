"""The ledger as a gate writes it: each transaction begins with the fence of the leader's lease."""

from __future__ import annotations

import datetime as dt
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import InterfaceError, OperationalError

from leasequeue.db import gate as sql
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


class Ledger:
    """Rows of ``leasequeue_tick``. Thread-safe.

    Each method goes on through an outage of the database for as long as the lease is held, and raises ``LeaseLost`` when it
    is held no more: then nothing was written, or it is not known whether.
    """

    def __init__(self, lq: LeaseQueue) -> None:
        self._lq = lq

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
        said = False
        while True:
            lease.check()
            try:
                with self._lq.begin() as conn:
                    lease.fence(conn)
                    return work(conn)
            except (OperationalError, InterfaceError, DatabaseUnavailable) as error:
                if not said:
                    log.warning("the ledger cannot be written, trying again while the lease is held: %s", error)
                said = True
                lease.lost.wait(RETRY_SECONDS)


def now() -> dt.datetime:
    """The clock that APScheduler goes by: this machine's."""
    return dt.datetime.now(dt.UTC)


def _by(lease: Lease) -> str:
    return f"{socket.gethostname()}:{os.getpid()} in term {lease.term}"
