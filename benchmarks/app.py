"""The application under measurement."""

from __future__ import annotations

import time

from leasequeue import LeaseQueue

lq = LeaseQueue()


@lq.task(name="noop")
def noop(i: int = 0) -> None:
    """Nothing."""


@lq.task(name="anoop")
async def anoop(i: int = 0) -> None:
    """Nothing, on the loop."""


@lq.task(name="text")
def text(text: str) -> None:
    """Nothing, with a longer argument."""


@lq.task(name="stamp")
def stamp() -> float:
    """When it was started, by this machine's clock."""
    return time.time()


lq.queue("bare", keep=0)


@lq.task(name="bare_noop", queue="bare")
def bare_noop(i: int = 0) -> None:
    """Nothing, in a queue without a history."""


@lq.task(name="bare_anoop", queue="bare")
async def bare_anoop(i: int = 0) -> None:
    """Nothing, on the loop, in a queue without a history."""


@lq.task(name="mark")
def mark(number: int) -> tuple[int, float]:
    """Which it is, and when it was started, by this machine's clock."""
    return number, time.time()


@lq.task(name="amark")
async def amark(number: int) -> tuple[int, float]:
    """The same, on the loop."""
    return number, time.time()
