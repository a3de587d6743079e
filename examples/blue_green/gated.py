"""As it is, the small step: APScheduler stays, and a LeaderGate decides which of the services fires."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger
from common import SERVICE, SWEEP_SECONDS, TTL, URL, create_table, serve
from sqlalchemy import text

from leasequeue import LeaseQueue
from leasequeue.contrib.apscheduler import LeaderGate, current_run, settles

lq = LeaseQueue()
lq.configure(url=URL)

scheduler = BackgroundScheduler(timezone="UTC")
gate = LeaderGate(scheduler, lq, "scheduler", ttl=TTL, owner=SERVICE)

INSERT = text("INSERT INTO sweep (service, job, due_at) VALUES (:service, :job, :due_at)")


@settles  # the effect and the ledger's row in one transaction: a kill leaves both or none
def run(job: str) -> None:
    this = current_run()
    with lq.begin() as conn:
        this.settle(conn)
        conn.execute(INSERT, {"service": SERVICE, "job": job, "due_at": this.due_at})


def leader() -> dict[str, Any]:
    since = gate.since
    return {"leads": gate.is_leader, "since": since.isoformat() if since else None, "term": gate.term}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    create_table()
    scheduler.add_job(run, CronTrigger(second=f"*/{SWEEP_SECONDS}", timezone="UTC"), ["sweep"], id="sweep")
    scheduler.add_job(run, CronTrigger(hour=21, timezone="UTC"), ["daily"], id="daily")
    scheduler.add_job(run, CronTrigger(day_of_week="mon", hour=9, timezone="UTC"), ["weekly"], id="weekly")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve(leader)
    with gate:
        stopped.wait()


if __name__ == "__main__":
    main()
