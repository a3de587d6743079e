"""The application of the process tests: each task writes when it ran, by the server's clock."""

from __future__ import annotations

import datetime as dt
import os
import signal
import time

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()

CREATE = (
    "CREATE TABLE IF NOT EXISTS ran (job bigint, attempt int, key text, pid int, began timestamptz, ended timestamptz)"
)
# As the driver takes it, without SQLAlchemy's text(): the tests start hundreds of workers, and most never need SQLAlchemy.
_RAN = """INSERT INTO ran (job, attempt, key, pid, began, ended)
VALUES (%(job)s, %(attempt)s, %(key)s, %(pid)s, %(began)s, clock_timestamp())"""


def _work(key: str, seconds: float) -> None:
    with lq.begin() as conn:
        began = conn.exec_driver_sql("SELECT clock_timestamp()").scalar()
    time.sleep(seconds)  # the work
    ctx = current_job()
    with lq.begin() as conn:
        conn.exec_driver_sql(
            _RAN, {"job": ctx.id, "attempt": ctx.attempt, "key": key, "pid": os.getpid(), "began": began}
        )


@lq.task(name="by_user", limit=2, limit_key=lambda user: f"user:{user}")
def by_user(user: int, seconds: float = 0.0) -> None:
    _work(f"user:{user}", seconds)


@lq.task(name="serial", limit=1, limit_key=lambda name: name)
def serial(name: str, seconds: float = 0.0) -> None:
    _work(name, seconds)


@lq.task(name="few", limit=3)
def few(seconds: float = 0.0) -> None:
    _work("few", seconds)


@lq.task(name="rated", rate=(5, dt.timedelta(seconds=0.5)))
def rated() -> None:
    _work("rated", 0.0)


@lq.task(name="for_tenant", fair_key=lambda tenant: tenant)
def for_tenant(tenant: str, seconds: float = 0.0) -> None:
    _work(tenant, seconds)


@lq.task(name="free")
def free(seconds: float = 0.0) -> None:
    _work("free", seconds)


@lq.task(name="killer", limit=1, limit_key="killers")
def killer(times: int) -> None:
    """Kills its process, so many times."""
    with lq.begin() as conn:
        before = conn.exec_driver_sql(
            "SELECT abandoned FROM leasequeue_job WHERE id = %(id)s", {"id": current_job().id}
        )
        if before.scalar_one() < times:
            os.kill(os.getpid(), signal.SIGKILL)
    _work("killers", 0.0)


@lq.task(name="serial_apart", limit=1, limit_key=lambda name: f"apart:{name}", executor="process")
def serial_apart(name: str) -> None:
    """In a process of its own, completed with its effect."""
    ctx = current_job()
    with lq.begin() as conn:
        began = conn.exec_driver_sql("SELECT clock_timestamp()").scalar()
        conn.exec_driver_sql(
            _RAN, {"job": ctx.id, "attempt": ctx.attempt, "key": name, "pid": os.getpid(), "began": began}
        )
        ctx.complete(conn)


@lq.schedule(every=dt.timedelta(seconds=1), name="often")
@lq.task(name="ticking", limit=1)
def ticking() -> None:
    _work("ticking", 1.3)
