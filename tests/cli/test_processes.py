"""The commands as an operator starts them, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.conftest import Run
from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]

Start = Callable[..., "Command"]


class Command:
    """A ``leasequeue`` command that goes on until it is told to stop."""

    def __init__(self, log: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
        self._log = log
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("LEASEQUEUE_", "DATABASE_URL"))
        }
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leasequeue.cli.main", *words],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=ROOT, env={**clean, **env}, start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    def said(self, text: str, seconds: float = 30.0) -> None:
        try:
            until(lambda: text in self.log or self.process.poll() is not None, seconds, f"it to say {text!r}")
        finally:
            assert text in self.log, self.log

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Command] = []

    def make(*words: str, **env: str) -> Command:
        made.append(Command(tmp_path / f"log{len(made)}", words, env))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
            each.process.wait()


def _job(run: Run, url: str, id: int) -> Any:
    return json.loads(run("jobs", "show", str(id), "--json", "--url", url).stdout)


def test_a_worker_and_what_operators_see_of_it(run: Run, database: Database, start: Start) -> None:
    insert = "INSERT INTO leasequeue_job (task, args) VALUES (%s, %s) RETURNING id"
    double = database.scalar(insert, ["double", '{"n": 21}'])
    broken = database.scalar(insert, ["broken", "{}"])
    nap = database.scalar(insert, ["nap", '{"seconds": 60}'])
    database.scalar(insert, ["of_tomorrow", "{}"])
    url = database.url
    worker = start("worker", "tests.cli.app:lq", "--queues", "default=4", "--ttl", "3", LEASEQUEUE_URL=url)
    worker.said("started: database")
    until(lambda: _job(run, url, double)["result"] == 42, what="the first job to succeed")
    until(lambda: _job(run, url, broken)["row"]["state"] == "failed", what="the second to fail")
    failed = _job(run, url, broken)
    assert failed["error"] == "ValueError: no such user"
    assert "raise ValueError" in failed["failures"][0]["traceback"]

    until(lambda: _job(run, url, nap)["row"]["worker"], what="the third to run on a worker that has a row")
    (line,) = run("jobs", "cancel", str(nap), "--url", url).stdout.splitlines()
    assert line.startswith(f"job {nap} is running: its worker is asked to stop it")
    until(lambda: _job(run, url, nap)["row"]["state"] == "cancelled", what="the handler to stop")

    def seen() -> Any:
        found = json.loads(run("status", "--json", "--url", url).stdout)
        kinds = {warning["kind"] for warning in found["warnings"]}
        return found if kinds == {"unknown_task"} and found["workers"][0]["completed"] else None

    found = until(seen, what="the unknown task to be reported, and nothing else")
    assert [each["task"] for each in found["failures"] if each["last_type"] == "ValueError"] == ["broken"]
    assert found["workers"][0]["queues"] == {"default": 4}
    assert sorted(found["workers"][0]["tasks"]) == ["broken", "double", "nap"]

    again = json.loads(run("jobs", "retry", str(broken), "--json", "--url", url).stdout)[0]["new_id"]
    until(lambda: _job(run, url, again)["row"]["state"] == "failed", what="the retried job to fail again")
    assert worker.stop() == 0
    assert json.loads(run("status", "--json", "--url", url).stdout)["workers"] == []


@pytest.mark.direct_only  # the application is what is wrong
@pytest.mark.parametrize(
    ("app", "why"),
    [
        ("tests.cli.app:nothing", "there is tests.cli.app:lq"),
        ("tests.cli.app:make", "add () to call it"),
        ("tests.cli.nowhere:lq", "there is no module 'tests.cli.nowhere'"),
        ("tests.cli.app", "APP is module:attr or module:factory()"),
    ],
)
def test_an_application_that_cannot_be_loaded(database: Database, start: Start, app: str, why: str) -> None:
    worker = start("worker", app, "--url", database.url)
    assert worker.process.wait(30) == 78
    assert why in worker.log
    assert "Traceback" not in worker.log


def test_dev_brings_its_own_database_and_takes_it_away(run: Run, start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    words = ("dev", "tests.cli.app:make()", "--folder", str(folder), "--schema", "jobs")
    dev = start(*words, LEASEQUEUE_SCHEMA="jobs")
    dev.said("started: database", 90.0)
    assert "created the tables, version 1" in dev.log
    file = folder / "url"
    assert file.stat().st_mode & 0o777 == 0o600
    url = file.read_text().strip()
    assert url not in dev.log
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        row = conn.execute(
            "INSERT INTO jobs.leasequeue_job (task, args) VALUES ('double', '{\"n\": 4}') RETURNING id"
        ).fetchone()
        assert row is not None

    def result() -> Any:
        shown = run("jobs", "show", str(row[0]), "--json", LEASEQUEUE_URL_FILE=str(file), LEASEQUEUE_SCHEMA="jobs")
        return json.loads(shown.stdout)["result"]

    assert until(result, what="the job to succeed") == 8
    assert dev.stop() == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url, connect_timeout=2, prepare_threshold=None)
    # The second time all is there, and a shell that was set up for this folder may start it.
    dev = start(*words, LEASEQUEUE_URL_FILE=str(file))
    dev.said("started: database", 60.0)
    assert "nothing to do" in dev.log
    assert dev.stop() == 0


def test_a_url_of_another_database_than_the_applications_is_refused(start: Start) -> None:
    other = "postgresql://nobody:secret@127.0.0.1:1/elsewhere"
    command = start("worker", "tests.cli.app_engine:lq", "--url", other)
    assert command.process.wait(30) == 78
    assert "of_the_application and --url names" in command.log
    assert "another database" in command.log
    assert "secret" not in command.log
