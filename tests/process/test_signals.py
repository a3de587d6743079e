"""How a worker ends, and what it tells those who started it: signals, PID 1, systemd, health, exit statuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.test_death import enqueue
from tests.support.databases import Database
from tests.support.server import Server
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = [pytest.mark.process, pytest.mark.direct_only]  # how a worker ends does not depend on what is between
Start = Callable[..., Worker]

EXIT_CONFIGURATION = 78
RUNNING = "SELECT count(*) FROM leasequeue_job WHERE state = 'l'"


def running(database: Database, jobs: int) -> None:
    """So many handlers run, by the worker's own word."""
    said = "SELECT coalesce(sum((counters ->> 'running')::int), 0) FROM leasequeue_worker"
    until(lambda: database.scalar(said) == jobs, 10, f"{jobs} handlers to run")


def rows(database: Database) -> list[tuple[Any, ...]]:
    return database.execute("SELECT task, state::text, attempt, abandoned FROM leasequeue_job ORDER BY id")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_whole_group_is_told_to_stop(
    number: signal.Signals, database: Database, worker: Start, tmp_path: Path
) -> None:
    # A ttl that outlasts any pause of a busy machine: here, only the signals are to end anything.
    started = worker(database, queues=(("default", 2),), ttl_seconds=30.0).started()
    enqueue(database, "nap", json.dumps({"seconds": 1, "marks": str(tmp_path)}), 2)
    until(lambda: len(list(tmp_path.iterdir())) == 2, 5, "the two to begin")
    enqueue(database, "nap", '{"seconds": 1.001}', 5)
    started.signal_group(number)
    # Once more within a second: the same one.
    until(lambda: "stopping: claims end" in started.log, 5)
    started.signal_group(number)
    assert started.process.wait(60) == 0, started.log[-4000:]
    assert "stopping now" not in started.log
    assert database.execute("SELECT outcome, attempt FROM leasequeue_finished") == [("succeeded", 1)] * 2
    assert rows(database) == [("nap", "r", 0, 0)] * 5
    assert database.scalar("SELECT count(*) FROM leasequeue_worker") == 0


def test_jobs_that_wait_for_a_slot_go_back_unspent(database: Database, worker: Start, tmp_path: Path) -> None:
    started = worker(database, queues=(("default", 1),)).started()
    enqueue(database, "noop", times=100)  # it learns that handlers are quick, and fetches ahead
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 100, 10)
    enqueue(database, "nap", json.dumps({"seconds": 1, "marks": str(tmp_path)}), 60)
    until(lambda: list(tmp_path.iterdir()), 5, "one to begin")
    started.signal_group(signal.SIGTERM)
    assert started.process.wait(60) == 0, started.log[-4000:]
    finished = database.scalar("SELECT count(*) FROM leasequeue_finished WHERE task = 'nap' AND attempt = 1")
    assert finished >= 1
    assert rows(database) == [("nap", "r", 0, 0)] * (60 - finished)


def test_a_second_signal_means_now(database: Database, worker: Start) -> None:
    started = worker(database, shutdown_timeout_seconds=30.0).started()
    enqueue(database, "stubborn", '{"seconds": 20}', 2)
    enqueue(database, "anap", '{"seconds": 20}', 2)
    running(database, 4)
    started.signal_group(signal.SIGTERM)
    first = time.monotonic()
    until(lambda: time.monotonic() - first > 1.1, 3)
    started.signal_group(signal.SIGTERM)
    assert started.process.wait(60) == 0, started.log[-4000:]
    took = time.monotonic() - first
    assert "stopping now" in started.log
    assert rows(database) == [("stubborn", "r", 0, 0)] * 2 + [("anap", "r", 0, 0)] * 2
    assert database.execute("SELECT error_type FROM leasequeue_failure") == []
    print(f"ended {took - 1.1:.2f} s after the second signal")
    assert took - 1.1 < 5.0


def test_what_outlasts_the_timeout_goes_back(database: Database, worker: Start) -> None:
    started = worker(database, shutdown_timeout_seconds=1.0).started()
    enqueue(database, "stubborn", '{"seconds": 30}')
    enqueue(database, "anap", '{"seconds": 30}')
    running(database, 2)
    started.signal_group(signal.SIGTERM)
    at = time.monotonic()
    assert started.process.wait(60) == 0, started.log[-4000:]
    took = time.monotonic() - at
    assert rows(database) == [("stubborn", "r", 0, 0), ("anap", "r", 0, 0)]
    assert database.scalar("SELECT count(*) FROM leasequeue_worker") == 0
    print(f"ended {took:.2f} s after the signal with a timeout of 1 s")
    assert took < 1.0 + 5.0


def test_as_pid_1_it_ends_and_reaps(database: Database, worker: Start, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root and unshare")
    within = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*within, "true"], check=False).returncode != 0:
        pytest.skip("this machine lets even root make no PID namespace")
    started = worker(database, within=within, app="tests.process.app_orphans:lq").started()
    (init,) = started.children()
    enqueue(database, "orphan", '{"seconds": 1}')
    until(lambda: "sleep" in _children(init), 10, "the orphan to come to PID 1")
    until(lambda: "sleep" not in _children(init), 10, "the orphan to be reaped")
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 1, 5)
    enqueue(database, "nap", json.dumps({"seconds": 0.5, "marks": str(tmp_path)}))
    until(lambda: list(tmp_path.iterdir()), 5, "the job to begin: one that has not goes back")
    os.kill(init, signal.SIGTERM)
    assert started.process.wait(60) == 0, started.log[-4000:]
    assert database.scalar("SELECT count(*) FROM leasequeue_finished") == 2, started.log[-4000:]
    assert database.scalar("SELECT count(*) FROM leasequeue_worker") == 0


def _children(pid: int) -> dict[str, int]:
    """The names of its children, zombies too."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        except OSError:
            continue  # reaped meanwhile
    return found


def test_systemd_is_told(database: Database, worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(20)
        started = worker(database, env={"NOTIFY_SOCKET": str(path)})
        assert listener.recv(100) == b"READY=1"
        assert "started: database" in started.log
        started.signal(signal.SIGTERM)
        assert listener.recv(100) == b"STOPPING=1"
        assert started.process.wait(60) == 0


def test_health(own_server: Server, own_database: Database, worker: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    started = worker(own_database, http=("127.0.0.1", port))

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    until(lambda: status("readyz") == 200, 20, "the worker to be ready")
    assert status("healthz") == 200
    assert status("anything") == 404
    enqueue(own_database, "nap", '{"seconds": 0.5}')
    until(lambda: own_database.scalar(RUNNING) == 1, 5)
    own_server.stop()
    at = time.monotonic()
    until(lambda: status("readyz") == 503, 25, "the worker to be not ready", every=0.1)
    print(f"not ready {time.monotonic() - at:.1f} s after the database was stopped")
    assert status("healthz") == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
        (process,) = json.load(answer)["processes"]
    # A turn that goes on for long counts as hanging, and one that broke off with the connection must not.
    assert all(seconds < 5 for seconds in process["turn_seconds"].values()), process
    own_server.start()
    at = time.monotonic()
    until(lambda: status("readyz") == 200, 10, "the worker to be ready again")
    print(f"ready {time.monotonic() - at:.2f} s after its return")
    assert started.stop() == 0


def test_an_application_without_tasks_is_refused(database: Database, worker: Start) -> None:
    started = worker(database, app="tests.process.app_no_tasks:lq")
    assert started.process.wait(20) == EXIT_CONFIGURATION
    assert "registers no task" in started.log
    assert "imports=[" in started.log
    assert "Traceback" not in started.log


def test_missing_tables_are_refused(direct_url: str) -> None:
    started = Worker(direct_url)
    try:
        assert started.process.wait(20) == EXIT_CONFIGURATION
        assert "leasequeue migrate" in started.log
        assert "Traceback" not in started.log
    finally:
        started.close()
