"""Tasks that need more than "try again": see docs/retries-timeouts-cancellation.md."""

from __future__ import annotations

import datetime as dt
import os
import time

from tenacity import retry_if_exception_type, wait_fixed, wait_random

from leasequeue import Cancel, Fail, JobContext, JobInterrupted, LeaseQueue, Retry, Snooze, current_job

lq = LeaseQueue()


class Busy(Exception):
    """The other side may have time later."""


# Only what is worth it is tried again, after a second and a bit; three times in all.
@lq.task(name="fetch", wait=wait_fixed(0.5) + wait_random(0, 0.5), retry=retry_if_exception_type(Busy), max_attempts=3)
def fetch(page: str) -> str:
    if page == "moved":
        raise LookupError("there is no such page")  # no Busy: failed for good, at once
    if current_job().attempt < 3:
        raise Busy("come back later")
    return f"{page} at attempt {current_job().attempt}"


# The handler itself says how its job goes on.
@lq.task(name="order")
def order(state: str) -> str:
    ctx = current_job()
    if state == "unpaid" and ctx.attempt == 1:
        raise Retry(after=dt.timedelta(seconds=1), reason="not paid yet")  # spends an attempt
    if state == "embargoed":
        raise Snooze(dt.timedelta(hours=12), reason="not before tomorrow")  # spends none
    if state == "withdrawn":
        raise Cancel("the customer has withdrawn it")
    if state == "broken":
        raise Fail("no such article")  # no attempt will help
    return "sent"


def too_long(ctx: JobContext) -> None:
    print(f"{ctx.task} takes long", flush=True)


# A coroutine would be cancelled; in a thread, JobTimeout is raised.
@lq.task(
    name="report",
    soft_timeout=dt.timedelta(seconds=0.5),
    on_soft_timeout=too_long,
    timeout=dt.timedelta(seconds=1),
    max_attempts=1,
)
def report() -> None:
    try:
        while True:
            time.sleep(0.05)
    except JobInterrupted:  # no Exception: the usual `except Exception` does not swallow it
        print("report cleans up", flush=True)
        raise


# In a process of its own, which may die and is killed when it must end.
@lq.task(name="convert", executor="process", timeout=dt.timedelta(seconds=20), max_attempts=1)
def convert(file: str) -> str:
    if file == "malicious":
        os.abort()  # as a fault in a C library does
    return f"{file} converted"


# Looks at `cancelled` where it can stop.
@lq.task(name="export")
def export() -> str:
    ctx = current_job()
    for _ in range(1000):
        if ctx.cancelled.wait(0.05):
            return "half of it"
    return "all of it"
