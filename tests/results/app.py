"""The application whose results and progress are asked for."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid

from leasequeue import LeaseQueue, current_job

lq = LeaseQueue()


@dataclasses.dataclass
class Invoice:
    number: uuid.UUID
    due: dt.date
    lines: list[tuple[str, int]]


@lq.task(name="bill")
def bill(number: uuid.UUID, lines: int = 2) -> Invoice:
    return Invoice(number, dt.date(2026, 1, 2), [(f"line {n}", n) for n in range(lines)])


@lq.task(name="abill")
async def abill(number: uuid.UUID) -> Invoice | None:
    return None


@lq.task(name="break_down", max_attempts=1)
def break_down(why: str) -> int:
    current_job().progress(1, 3, "begun")
    current_job().progress(2, 3, "nearly\0 there")
    raise ValueError(why)


@lq.task(name="crawl")
def crawl(seconds: float) -> None:
    """Says a great deal, then waits to be stopped."""
    ctx = current_job()
    for page in range(100_000):
        ctx.progress(page + 1, 400_000, f"page {page}")
    ctx.cancelled.wait(seconds)
