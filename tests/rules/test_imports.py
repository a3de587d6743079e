"""What an application loads when it imports the queue, and what the supervisor and the workers do: nothing that they do not
need. Import contracts do not see it, since what is imported inside a function is an import to them."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.databases import Database

NOT_LOADED = {
    "alembic", "apscheduler", "click", "cronsim", "rich", "sqlalchemy", "tenacity",
    "leasequeue.cli", "leasequeue.cron", "leasequeue.lease.keeper", "leasequeue.ops", "leasequeue.worker",
}  # fmt: skip

SCRIPT = """
import json, sys, time
import psycopg
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
    print(f"{took * 1000:.0f} ms over psycopg, {len(loaded)} modules")
    assert NOT_LOADED & set(loaded) == set()
    assert {"leasequeue.queue", "leasequeue.lease.offers"} <= set(loaded)


def _loaded(script: str, names: set[str], *words: str) -> list[str]:
    """Which of the modules a script has loaded at its end."""
    end = f"\nimport sys; print(*{names!r} & set(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script + end, *words], capture_output=True, text=True, check=True)
    return done.stderr.split()


SUPERVISOR = """
import leasequeue.worker.supervisor
from leasequeue.db.schedules import schedule_statements
from leasequeue.db.urls import Settings
from leasequeue.db.workers import worker_statements
Settings.from_json(Settings.parse("postgresql://user@host/dbname").to_json()).params()
schedule_statements("queue").fire.text
worker_statements("queue")
"""


def test_the_supervisor_loads_no_sqlalchemy() -> None:
    """It is half of what a supervisor would import: a third of a second and 15 MB."""
    assert _loaded(SUPERVISOR, {"alembic", "click", "leasequeue.queue", "rich", "sqlalchemy"}) == []


def test_a_worker_loads_no_sqlalchemy() -> None:
    """Its application may; see also tests/process/test_imports.py, where one works."""
    names = {"alembic", "click", "cronsim", "rich", "sqlalchemy"}
    assert _loaded("import leasequeue.worker.process", names) == []


COMMANDS = """
import sys
from leasequeue.cli.main import main
for words in (["status"], ["jobs", "list"], ["queues"], ["schedules"], ["limits"], ["leases"], ["workflows"]):
    try:
        main([*words, *sys.argv[1:]])
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


def test_commands_that_ask_load_no_sqlalchemy(database: Database) -> None:
    given = ("--url", database.url, "--schema", database.schema)
    assert _loaded(COMMANDS, {"alembic", "sqlalchemy", "leasequeue.worker"}, *given) == []
