"""As it is, the whole step: the jobs are tasks, their due times rows. No leader: any worker fires, each due time once.

``leasequeue worker scheduled:lq`` runs it, in each service; ``python scheduled.py`` serves the pages.
"""

from __future__ import annotations

import threading

from common import SERVICE, SWEEP_SECONDS, URL, create_table, serve
from sqlalchemy import text

from leasequeue import LeaseQueue, current_job

create_table()
lq = LeaseQueue()
lq.configure(url=URL)

INSERT = text("INSERT INTO sweep (service, job, due_at) VALUES (:service, :job, :due_at)")


@lq.schedule(f"*/{SWEEP_SECONDS} * * * * *", name="sweep", arguments={"job": "sweep"})
@lq.schedule("0 21 * * *", name="daily", arguments={"job": "daily"})
@lq.schedule("0 9 * * mon", name="weekly", arguments={"job": "weekly"})
@lq.task(name="run")
def run(job: str) -> None:
    this = current_job()
    with lq.begin() as conn:
        conn.execute(INSERT, {"service": SERVICE, "job": job, "due_at": this.tick})
        this.complete(conn)  # the effect and the end of the job in one transaction


if __name__ == "__main__":
    serve(lambda: {"leads": None, "since": None, "term": None})
    threading.Event().wait()
