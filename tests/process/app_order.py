"""The application of the tests of order and spread."""

from __future__ import annotations

import datetime as dt
import os

from leasequeue import LeaseQueue, current_job

AGEING = dt.timedelta(seconds=0.2)

lq = LeaseQueue()
lq.queue("aged", ageing=AGEING)
lq.limit("user", 2)


@lq.task(name="sleeper")
def sleeper(seconds: float) -> int:
    """Sleeps; which process did it is the result."""
    current_job().cancelled.wait(seconds)
    return os.getpid()
