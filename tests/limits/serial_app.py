"""An application with serial keys and nothing else that stands at a gate, so that jobs follow each other."""

from __future__ import annotations

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()

CREATE = "CREATE TABLE IF NOT EXISTS went (place bigserial, job bigint, key text)"
# As the driver takes it, without SQLAlchemy's text(): the tests start hundreds of workers, and most never need SQLAlchemy.
_WENT = "INSERT INTO went (job, key) VALUES (%(job)s, %(key)s)"


def _note(key: str) -> None:
    with lq.begin() as conn:
        conn.exec_driver_sql(_WENT, {"job": current_job().id, "key": key})


@lq.task(name="step", limit=1, limit_key=lambda key: key)
def step(key: str) -> None:
    _note(key)


@lq.task(name="astep", limit=1, limit_key=lambda key: key)
async def astep(key: str) -> None:
    """On the loop."""


@lq.task(name="plain")
def plain() -> None:
    _note("plain")


@lq.task(name="apart", queue="apart")
def apart() -> None:
    _note("apart")
