"""The application that the tests of workflows run in worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()


@lq.task(name="noop")
def noop(i: int = 0) -> int:
    return i


@lq.task(name="plain")
def plain(i: int = 0) -> None:
    """Nothing."""


@lq.task(name="total")
def total() -> int:
    step = current_job().workflow
    assert step is not None
    return int(sum(step.results().values()))


@lq.task(name="atotal")
async def atotal() -> int:
    step = current_job().workflow
    assert step is not None
    assert (step.name, step.step) == ("async", "join")
    return int(sum((await step.aresults()).values()) + await step.aresult("one"))


@lq.task(name="ptotal", executor="process", max_attempts=1)
def ptotal() -> int:
    """In a process of its own: completes with the sum of the results before it."""
    job = current_job()
    step = job.workflow
    assert step is not None
    found = int(sum(step.results().values()))
    with lq.begin() as conn:
        job.complete(conn, found)
    return found


@lq.task(name="fail", max_attempts=1)
def fail() -> None:
    raise ValueError("as asked")


@lq.task(name="die_once", max_attempts=3)
def die_once() -> str:
    """The first time its process dies with it."""
    if current_job().attempt == 1:
        os._exit(1)
    return "survived"


@lq.task(name="hold")
def hold(flag: str) -> None:
    """Completes, and keeps the transaction open until the flag is there."""
    with lq.begin() as conn:
        current_job().complete(conn, "held")
        Path(flag + ".held").touch()
        until = time.monotonic() + 30
        while not Path(flag).exists() and time.monotonic() < until:
            time.sleep(0.01)


@lq.task(name="spread")
def spread(n: int) -> int:
    """Adds a fan behind itself, and a join, and completes in the same transaction."""
    job = current_job()
    step = job.workflow
    assert step is not None
    with lq.begin() as conn:
        parts = step.add_many("part", [noop.call(i) for i in range(n)], conn=conn, after=step.step)
        step.add("join", total.call(), conn=conn, after=parts)
        job.complete(conn, n)
    return n


@lq.task(name="beside")
def beside(flag: str) -> None:
    """Ends a second after the completion of ``hold`` has begun."""
    while not Path(flag + ".held").exists():
        if current_job().cancelled.wait(0.01):
            return
    current_job().cancelled.wait(1.0)


@lq.task(name="nap")
def nap(seconds: float) -> Any:
    current_job().cancelled.wait(seconds)
    return "woke up"
