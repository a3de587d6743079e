"""What an application loads when it imports the queue: nothing that only workers, commands or leases need."""

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
