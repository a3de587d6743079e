"""Workflows in real worker processes."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasequeue import LeaseQueue, batch, chain, continues, fires, group
from leasequeue.workflow import WorkflowHandle
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker
from tests.workflow import app

# Whole workers are slow to start; the statements and the hammer are tested behind a pooler, too.
pytestmark = [pytest.mark.process, pytest.mark.direct_only]
Start = Callable[..., Worker]
APP = "tests.workflow.app:lq"
MANY = int(os.environ.get("LEASEQUEUE_FAN", "10000"))
SOON = dt.timedelta(seconds=20)


@pytest.fixture
def lq(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeaseQueue]:
    """The application's own, towards the test's database."""
    made = LeaseQueue()
    made.configure(url=database.url)
    for task in app.lq.registry:
        monkeypatch.setattr(task, "home", made)
        made.registry.add(task)
    yield made
    made.dispose()


def finished(handle: WorkflowHandle, seconds: float = 30.0) -> str:
    until(lambda: handle.status().state != "running", seconds, "the workflow to end")
    return handle.status().state


@pytest.mark.direct_only  # a rate, and its ratio to another
def test_ten_thousand_and_a_join_beside_ten_thousand_plain(database: Database, lq: LeaseQueue, worker: Start) -> None:
    began = time.monotonic()
    wf = lq.workflow("fan")
    root = wf.add("root", app.noop.call(0))
    wf.add("join", app.total.call(), after=wf.add_many("part", [app.noop.call(i) for i in range(MANY)], after=root))
    handle = wf.enqueue(lq)
    enqueued = time.monotonic() - began
    database.execute("VACUUM ANALYZE leasequeue_job, leasequeue_edge, leasequeue_step")
    started = worker(database, app=APP, processes=2).started()
    assert finished(handle, 120) == "succeeded"
    assert handle.result("join") == sum(range(MANY))
    with lq.begin() as conn:
        lq.enqueue_many(conn, [app.plain.call(i) for i in range(MANY)])
    until(lambda: not database.scalar("SELECT count(*) FROM leasequeue_job"), 60, "the plain jobs to end")
    assert started.stop() == 0
    took = "SELECT extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM leasequeue_finished WHERE task "
    whole = MANY / database.scalar(took + "<> 'plain'")
    fan = MANY / database.scalar(took + "= 'noop' AND meta ->> 'step' <> 'root'")
    plain = MANY / database.scalar(took + "= 'plain'")
    print(
        f"{MANY:,} enqueued in {enqueued:.1f} s; the fan {fan:,.0f}/s, from root to join {whole:,.0f}/s, plain {plain:,.0f}/s: "
        f"{fan / plain:.2f} and {whole / plain:.2f}"
    )


def test_chains_groups_batches_and_results(database: Database, lq: LeaseQueue, worker: Start) -> None:
    worker(database, app=APP).started()
    first = chain(app.noop.call(1), group(app.noop.call(2), app.noop.call(3)), app.total.call()).enqueue(lq)
    assert first.result("4:total", SOON) == 5
    second = batch([app.fail.call(), app.noop.call(1)], on_completed=app.noop.call(7), on_failure=app.noop.call(8))
    handle = second.enqueue(lq)
    assert handle.result("on_failure", SOON) == 8
    assert handle.result("on_completed", SOON) == 7
    assert finished(handle) == "failed"
    wf = lq.workflow("async")
    one = wf.add("one", app.noop.call(20))
    wf.add("join", app.atotal.call(), after=one)
    assert wf.enqueue(lq).result("join", SOON) == 40
    wf = lq.workflow()
    wf.add("spread", app.spread.call(3))
    third = wf.enqueue(lq)
    assert third.result("spread", SOON) == 3
    assert third.result("join", SOON) == 3
    assert finished(third) == "succeeded"


def test_a_step_in_a_child_process_reads_results_and_completes(
    database: Database, lq: LeaseQueue, worker: Start
) -> None:
    worker(database, app=APP).started()
    wf = lq.workflow("apart")
    total = wf.add("total", app.ptotal.call(), after=wf.add_many("part", [app.noop.call(i) for i in (3, 4)]))
    wf.add("behind", app.total.call(), after=total)
    handle = wf.enqueue(lq)
    assert handle.result("total", SOON) == 7
    assert handle.result("behind", SOON) == 7
    assert finished(handle) == "succeeded"


def test_a_step_whose_process_dies_runs_again_and_one_that_dies_often_cascades(
    database: Database, lq: LeaseQueue, worker: Start
) -> None:
    worker(database, app=APP, max_abandoned=1).started()
    wf = lq.workflow()
    dies = wf.add("dies", app.die_once.call())
    wf.add("behind", app.noop.call(1), after=dies)
    wf.add("anyway", app.noop.call(2), after=continues(dies))
    wf.add("alarm", app.noop.call(3), after=fires(dies))
    handle = wf.enqueue(lq)
    assert finished(handle) == "failed"
    assert handle.status().counts == {"cancelled": 1, "failed": 1, "succeeded": 2}


def test_a_held_completion_holds_up_its_siblings_and_nobody_else(
    database: Database, lq: LeaseQueue, worker: Start, tmp_path: Path
) -> None:
    flag = str(tmp_path / "flag")
    started = worker(database, app=APP, ttl_seconds=6.0).started()
    wf = lq.workflow("held")
    held = wf.add("held", app.hold.call(flag))
    siblings = [wf.add(f"sibling {i}", app.beside.call(flag)) for i in range(3)]
    wf.add("join", app.noop.call(9), after=[held, *siblings])
    handle = wf.enqueue(lq)
    until(lambda: Path(flag + ".held").exists(), 20, "the held completion")
    beside = "SELECT count(*) FROM leasequeue_job WHERE task = 'beside' AND state = 'l'"
    # Each has slept for its second, and its end was tried.
    held_at = Path(flag + ".held").stat().st_mtime
    until(lambda: time.time() - held_at > 1.5 and database.scalar(beside) == 3, 10, "the siblings")
    other = lq.workflow("other")
    other.add("join", app.total.call(), after=other.add_many("part", [app.noop.call(i) for i in range(5)]))
    began = time.monotonic()
    assert other.enqueue(lq).result("join", SOON) == 10
    with lq.begin() as conn:
        lq.enqueue_many(conn, [app.plain.call(i) for i in range(50)])
    until(
        lambda: database.scalar("SELECT count(*) FROM leasequeue_finished WHERE task = 'plain'") == 50, 10, "plain jobs"
    )
    took = time.monotonic() - began
    live = database.execute(beside)
    Path(flag).touch()
    began = time.monotonic()
    assert finished(handle) == "succeeded"
    print(
        f"others took {took:.2f} s beside it; {live[0][0]} siblings waited, and ended {time.monotonic() - began:.2f} s after"
    )
    assert live == [(3,)]
    assert started.log.count("cannot be written yet") == 0
    assert started.stop() == 0


def test_cancel_and_retry_while_it_runs(database: Database, lq: LeaseQueue, worker: Start) -> None:
    worker(database, app=APP, ttl_seconds=1.5).started()
    wf = lq.workflow()
    naps = wf.add("naps", app.nap.call(30.0))
    wf.add("behind", app.noop.call(1), after=naps)
    wf.add("alarm", app.noop.call(1), after=fires(naps))
    handle = wf.enqueue(lq)
    until(lambda: handle.status().counts.get("running"), 20, "the nap to begin")
    handle.cancel()
    assert finished(handle) == "cancelled"
    assert handle.status().counts == {"cancelled": 3}
