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


@lq.task(name="stamp")
def stamp() -> float:
    """When it was started, by this machine's clock."""
    return time.time()
