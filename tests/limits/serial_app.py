"""An application with serial keys and nothing else that stands at a gate, so that jobs follow each other."""

from __future__ import annotations

from sqlalchemy import text

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()

CREATE = "CREATE TABLE IF NOT EXISTS went (place bigserial, job bigint, key text)"
_WENT = text("INSERT INTO went (job, key) VALUES (:job, :key)")


def _note(key: str) -> None:
    with lq.begin() as conn:
        conn.execute(_WENT, {"job": current_job().id, "key": key})


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
