"""The application of the schedules' process tests: some that are due each second, and what they see of their tick."""

from __future__ import annotations

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()


@lq.schedule("* * * * * *", name="s0")
@lq.schedule("* * * * * *", name="s1")
@lq.schedule("* * * * * *", name="s2", catch_up="all")
@lq.task(name="tick")
def tick() -> str:
    found = current_job().tick
    return "none" if found is None else found.isoformat()
