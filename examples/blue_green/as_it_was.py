"""As it was: the leader is who gets an advisory lock. Do not copy this: both services lead.

The lock is taken on whichever connection the pool gives out, and belongs to its session. When the connection goes back, the
pool resets it, and the reset releases all advisory locks of the session. The flag stays. And the job that would notice runs
only where the flag says so.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import signal

import asyncpg
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from common import SERVICE, SWEEP_SECONDS, URL, create_table, serve

LOCK = 42


class Service:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.active = False
        self.since: str | None = None

    async def elect(self) -> None:
        self.active = await self.pool.fetchval("SELECT pg_try_advisory_lock($1)", LOCK)
        if self.active:
            self.since = dt.datetime.now(dt.UTC).isoformat()

    async def run(self, job: str) -> None:
        if not self.active:
            return
        now = dt.datetime.now(dt.UTC)
        due_at = now.replace(second=now.second - now.second % SWEEP_SECONDS, microsecond=0)
        await self.pool.execute("INSERT INTO sweep (service, job, due_at) VALUES ($1, $2, $3)", SERVICE, job, due_at)

    async def heal(self) -> None:
        if self.active:  # like every job: only on the leader
            await self.pool.fetchval("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = $1", LOCK)


async def main() -> None:
    create_table()
    async with asyncpg.create_pool(URL, min_size=1, max_size=4) as pool:
        service = Service(pool)
        await service.elect()
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(service.run, CronTrigger(second=f"*/{SWEEP_SECONDS}", timezone="UTC"), ["sweep"], id="sweep")
        scheduler.add_job(service.run, CronTrigger(hour=21, timezone="UTC"), ["daily"], id="daily")
        scheduler.add_job(service.run, CronTrigger(day_of_week="mon", hour=9, timezone="UTC"), ["weekly"], id="weekly")
        scheduler.add_job(service.heal, CronTrigger(second="*/30", timezone="UTC"), id="heal")
        scheduler.start()
        serve(lambda: {"leads": service.active, "since": service.since, "term": None})
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        await stopped.wait()
        scheduler.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
