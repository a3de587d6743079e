"""What an application loads when it imports the queue, and what the supervisor does: nothing that they do not need."""

from __future__ import annotations

import json
import subprocess
import sys

NOT_LOADED = {
    "alembic", "apscheduler", "click", "cronsim", "rich", "tenacity",
    "leasequeue.cli", "leasequeue.cron", "leasequeue.lease.keeper", "leasequeue.ops", "leasequeue.worker",
}  # fmt: skip

SCRIPT = """
import json, sys, time
import psycopg, sqlalchemy, sqlalchemy.dialects.postgresql
before = set(sys.modules)
began = time.perf_counter()
from leasequeue import LeaseQueue
took = time.perf_counter() - began
LeaseQueue()
print(json.dumps([took, sorted(set(sys.modules) - before)]))
"""


def test_the_queue_loads_little() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    took, loaded = json.loads(done.stdout)
    print(f"{took * 1000:.0f} ms over SQLAlchemy and psycopg, {len(loaded)} modules")
    assert NOT_LOADED & set(loaded) == set()
    assert {"leasequeue.queue", "leasequeue.lease.offers"} <= set(loaded)


SUPERVISOR = """
import sys
import leasequeue.worker.supervisor
from leasequeue.db.schedules import schedule_statements
from leasequeue.db.urls import Settings
from leasequeue.db.workers import worker_statements
Settings.from_json(Settings.parse("postgresql://user@host/dbname").to_json()).params()
schedule_statements("queue").fire.text
worker_statements("queue")
print(*{"alembic", "click", "leasequeue.queue", "rich", "sqlalchemy"} & set(sys.modules))
"""


def test_the_supervisor_loads_no_sqlalchemy() -> None:
    """It is half of what a supervisor would import: a third of a second and 15 MB. Import contracts do not see it, since
    what is imported inside a function is an import to them."""
    done = subprocess.run([sys.executable, "-c", SUPERVISOR], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
