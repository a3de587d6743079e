from __future__ import annotations

import json

from tests.cli.conftest import Run
from tests.ops.conftest import Rows
from tests.support.databases import Database

_KEYS = {
    "database", "schema", "schema_version", "at", "workers", "workers_capped", "queues", "queues_capped", "failures",
    "refused", "failures_capped", "not_read", "warnings",
}  # fmt: skip


def test_for_people(run: Run, database: Database, rows: Rows) -> None:
    rows.worker('{"default": 4}', '{"running": 2, "completed": 1234, "unknown": {"new": 3}}')
    rows.worker(pid=12, seconds=-60)
    rows.job()
    rows.job(queue="mail")
    rows.failure("report", message="no such user")
    done = run("status", "--url", database.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "! queue 'mail': 1 ready, and no live worker serves it" in done.stdout
    assert "! task 'new': put back 3 time(s)" in done.stdout
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    assert lines["default"][1] == "1"
    assert lines["default"][-3:] == ["1,", "4", "slots"]
    assert lines["mail"][-1] == "NONE"
    assert "2/4" in lines["box:11"]
    assert "1,234" in lines["box:11"]
    assert "EXPIRED" in lines["box:12"]
    assert lines["report"][1:3] == ["1", "1"]
    assert "ValueError: no such user" in done.stdout


def test_an_empty_database(run: Run, database: Database) -> None:
    done = run("status", "--url", database.url)
    assert "No worker is running: start one with `leasequeue worker APP`." in done.stdout
    assert "No attempt has failed" in done.stdout


def test_for_programs(run: Run, database: Database, rows: Rows) -> None:
    rows.worker(counters='{"unknown": {"new": 3}}')
    rows.job(queue="mail", available_at="=now() - interval '1 minute'")
    found = json.loads(run("status", "--json", "--url", database.url).stdout)
    assert set(found) == _KEYS
    assert found["schema_version"] == 1
    mail = next(queue for queue in found["queues"] if queue["name"] == "mail")
    assert (mail["ready"], mail["workers"], mail["capped"]) == (1, 0, [])
    assert 60 <= mail["oldest_ready_seconds"] < 120
    assert found["workers"][0]["unknown"] == {"new": 3}
    assert [(warning["kind"], warning["subject"]) for warning in found["warnings"]] == [
        ("unserved", "mail"),
        ("unknown_task", "new"),
    ]
