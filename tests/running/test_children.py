"""``executor="process"``: child processes that may die, hang or grow, and take nothing with them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.process.app import CREATE
from tests.running.conftest import enqueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.direct_only  # what is between the worker and the database has no part in it
Start = Callable[..., Worker]

DONE = "SELECT outcome, attempt, abandoned, error, result FROM leasequeue_finished WHERE id = %s"


def ended(database: Database, id: int, seconds: float = 30.0) -> tuple[Any, ...]:
    return until(lambda: database.execute(DONE, (id,)), seconds, f"job {id} to end")[0]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_job_is_at_home_in_a_child(database: Database, worker: Start) -> None:
    """Context, lifespan, middleware and output; a child serves five jobs, by ``process_jobs``."""
    database.execute(CREATE)
    ids = enqueue(database, "look", '{"n": 3}', 7)
    started = worker(database, queues=(("default", 1),))
    results = [ended(database, id)[4] for id in ids]
    (pid,) = started.serving(database)
    first = results[0]
    assert first | {"pid": 0, "parent": pid, "state": 0, "middleware": 0} == {
        "pid": 0, "parent": pid, "state": 0, "id": ids[0], "attempt": 1, "n": 3, "task": "look", "middleware": 0,
    }  # fmt: skip
    assert first["state"] == {"pid": first["pid"]} != {"pid": pid}
    assert first["middleware"] == first["pid"]
    assert {result["parent"] for result in results} == {pid}
    pids = [result["pid"] for result in results]
    assert pids[:5] == [pids[0]] * 5
    assert pids[5:] == [pids[5]] * 2
    assert pids[0] != pids[5]
    assert f"printed by {ids[6]}\n" in started.log
    assert f"printed by {ids[6]} to stderr\n" in started.log
    # Its own transaction, committed: also where the child dies before it could say so.
    (whole,) = enqueue(database, "pcomplete")
    (dying,) = enqueue(database, "pcomplete", '{"then": "die"}')
    assert ended(database, whole)[::4] == ("succeeded", "by itself")
    assert ended(database, dying)[::4] == ("succeeded", "by itself")
    until(lambda: "is completed, but its handler raised afterwards: ProcessDied" in started.log, 5)
    assert database.scalar("SELECT count(*) FROM effect") == 2
    assert started.stop() == 0
    until(lambda: not any(map(alive, pids)), 5, "the children to be gone")


DEATHS = {
    "segfault": "was killed by SIGSEGV",
    "kill": "was killed by SIGKILL (the out-of-memory killer does that",
    "exit": "ended by itself with status 3",
    "memory": "MiB of memory, above process_memory_mib=400",
}


def test_a_death_fails_one_attempt(database: Database, worker: Start) -> None:
    """And one in a C function that keeps the interpreter, so that it hears nothing: after its timeout and the grace."""
    ids = {how: enqueue(database, "crash", json.dumps({"how": how}))[0] for how in DEATHS}
    (hung,) = enqueue(database, "psleep", '{"seconds": 600}')
    others = enqueue(database, "look", times=3)
    started = worker(database, queues=(("default", 3),))
    for how, words in DEATHS.items():
        outcome, attempt, abandoned, error, _ = ended(database, ids[how])
        assert (outcome, attempt, abandoned) == ("failed", 1, 0), how
        assert error.startswith("ProcessDied: the process that ran job")
        assert words in error
        said = database.scalar("SELECT (meta -> 'progress') - 'at' FROM leasequeue_finished WHERE id = %s", (ids[how],))
        assert said == {"done": 1.0, "total": 4.0, "note": how}
    for other in others:
        assert ended(database, other)[:3] == ("succeeded", 1, 0)
    outcome, attempt, abandoned, error, _ = ended(database, hung)
    assert (outcome, attempt, abandoned) == ("failed", 1, 0)
    assert error == "TimeoutError: ran longer than its timeout of 0.5 s; its process was killed"
    took = "SELECT extract(epoch FROM finished_at - started_at)::float8 FROM leasequeue_finished WHERE id = %s"
    print(f"the hung one: killed and written {database.scalar(took, (hung,)):.1f} s after its claim")
    assert "another is started" not in started.log  # no worker process died
    assert database.scalar("SELECT count(*) FROM leasequeue_job") == 0
    assert started.stop() == 0


def test_one_that_has_grown_is_replaced(database: Database, worker: Start) -> None:
    started = worker(database, queues=(("default", 1),))
    first, second = enqueue(database, "bloat", '{"mib": 0}', 2)
    pid = ended(database, first)[4]
    assert ended(database, second)[4] == pid
    (big,) = enqueue(database, "bloat", '{"mib": 450}')
    assert ended(database, big)[4] == pid
    pages = Path(f"/proc/{pid}/statm")
    until(lambda: int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 450 << 20, 10, "it to grow")
    (after,) = enqueue(database, "bloat", '{"mib": 0}')
    assert ended(database, after)[4] != pid
    assert started.stop() == 0


@pytest.mark.process
def test_no_child_outlives_its_worker(database: Database, worker: Start, tmp_path: Path) -> None:
    """Killed, with a child that hears nothing; and ended in order, with one that is killed with what it started."""
    started = worker(database, ttl_seconds=10.0, shutdown_timeout_seconds=0.5)
    enqueue(database, "pspawn", json.dumps({"marks": str(tmp_path)}))
    until(lambda: (tmp_path / "pids").exists(), 20, "the child to hang")
    child, program = map(int, until(lambda: (tmp_path / "pids").read_text(), 5).split())
    (pid,) = started.serving(database)
    os.kill(pid, signal.SIGKILL)
    at = time.monotonic()
    until(lambda: not alive(child), 5, "the child to die with its worker")
    print(f"gone {time.monotonic() - at:.3f} s after its worker process")
    os.kill(program, signal.SIGKILL)
    (tmp_path / "pids").unlink()
    until(lambda: (tmp_path / "pids").exists(), 20, "another to run it, alone")
    child, program = map(int, until(lambda: (tmp_path / "pids").read_text(), 5).split())
    assert started.stop() == 0
    until(lambda: not alive(child) and not alive(program), 5, "the child and its program to be killed")
