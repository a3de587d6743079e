"""How long the history of steps is kept, what is said where it is gone, and that old workflows are purged at a pace."""

from __future__ import annotations

from typing import Any

import pytest

from leasequeue import LeaseQueue, WorkflowRefused
from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.db.workers import purge_queue, purges
from leasequeue.steps import state_of
from leasequeue.worker.chores import Purge
from leasequeue.workflow import WorkflowHandle
from leasequeue.workflow.step import Step
from tests.support.databases import Database
from tests.workflow.hands import ENDS, claim, flow, success

OLD = "now() - interval '200 days'"


def _purge_history(database: Database) -> int:
    count = 0
    of_queue = purge_queue(database.schema, 60.0)
    for purge in (*(each for each in purges(database.schema) if each.walks), of_queue):
        params = {"keep": purge.keep_seconds, "limit": 1000, "look": 1000, "after": 0.0, "queue": "default"}
        ((_, gone, _),) = database.execute(purge.text, params)
        count += gone
    return count


def test_the_history_of_a_step_stays_as_long_as_its_workflow(database: Database, lq: LeaseQueue) -> None:
    id, ids = flow(database, {"a": {}, "b": {"a": "x"}})
    database.execute(ENDS.succeed_plainly, success(claim(database)[ids["a"]]))
    plain = (
        "INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, options) "
        "VALUES (%s, 'default', 't', '{}', %s, 1, 0, now(), '{\"priority\": 3}')"
    )
    database.execute(plain, (10_001, "succeeded"))
    database.execute(plain, (10_002, "failed"))
    database.execute(f"UPDATE leasequeue_finished SET finished_at = {OLD}")
    assert _purge_history(database) == 2
    step = Step(lq, ids["b"], id, None, "b")
    assert step.results() == {"a": 1}
    assert WorkflowHandle(lq, id).status().counts == {"ready": 1, "succeeded": 1}

    database.execute("DELETE FROM leasequeue_step WHERE name = 'a'")
    assert _purge_history(database) == 1


def test_a_result_that_is_gone_is_said_and_not_left_out(database: Database, lq: LeaseQueue) -> None:
    id, ids = flow(database, {"a": {}, "c": {}, "b": {"a": "x", "c": "x"}, "alarm": {"a": "f", "d": "f"}, "d": {}})
    pairs = claim(database)
    database.execute(ENDS.succeed_plainly, success(pairs[ids["c"]]))
    database.execute(ENDS.succeed, success(pairs[ids["a"]]))
    assert Step(lq, ids["alarm"], id, None, "alarm").results() == {"a": 1}, "one that lives yet is not gone"
    database.execute("DELETE FROM leasequeue_finished WHERE id = %s", (ids["a"],))
    step = Step(lq, ids["b"], id, None, "b")
    for ask in (step.results, lambda: step.result("a")):
        with pytest.raises(
            WorkflowRefused, match=rf"step 'a' of workflow {id} \(job {ids['a']}\) has no result: its his"
        ):
            ask()
    assert step.result("c") == 1


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        ("succeeded gone", "gone"),
        ("gone cancelled", "gone"),
        ("gone failed", "failed"),
        ("gone ready", "running"),
        ("succeeded cancelled skipped", "cancelled"),
        ("succeeded skipped", "succeeded"),
    ],
)
def test_the_state_of_the_whole(states: str, wanted: str) -> None:
    assert state_of(dict.fromkeys(states.split(), 1)) == wanted


@pytest.fixture
def link(database: Database) -> Any:
    made = Link(Settings.parse(database.url), application_name="test", bound_seconds=20.0)
    made.connect()
    yield made
    made.close()


def test_each_purge_goes_on_while_it_finds_its_full_size(
    database: Database, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(25):
        flow(database, {"a": {}})
    database.execute("DELETE FROM leasequeue_job")
    database.execute(f"UPDATE leasequeue_workflow SET created_at = {OLD}")
    purge = Purge("public", {})
    place = len(purges("public")) - 1
    purge._next = place
    left = []
    for again in (True, True, False):
        purge._due = 0.0
        purge(link)
        left.append(database.scalar("SELECT count(*) FROM leasequeue_workflow"))
        assert (purge._next == place) is again
    assert left == [15, 5, 0]

    def too_slow(*_: Any, **__: Any) -> Any:
        raise TimeoutError

    run = link.run
    monkeypatch.setattr(link, "run", too_slow)
    for _ in range(2):  # one that runs into its bound takes less the next time, and the others get their turn
        purge._next, purge._due = place, 0.0
        with pytest.raises(TimeoutError):
            purge(link)
        assert purge._next == 0
    assert purge._limits[place] == 2
    monkeypatch.setattr(link, "run", run)
    purge._next, purge._due = place, 0.0
    purge(link)
    assert purge._limits[place] == 4


def test_what_stays_does_not_hold_up_the_purge_of_the_history(database: Database, link: Link) -> None:
    """Many steps of live workflows, and behind them what is old: it comes to that, a piece at a time, and begins again."""
    flow(database, {f"s{n}": {} for n in range(30)})
    pairs = claim(database)
    database.execute(ENDS.succeed_plainly, success(*pairs.values()))
    database.execute(f"UPDATE leasequeue_finished SET finished_at = {OLD} + id * interval '1 s'")
    database.execute(
        "INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at, finished_at) "
        f"SELECT 10000 + n, 'default', 't', '{{}}', 'succeeded', 1, 0, now(), {OLD} + interval '1 h' + n * interval '1 s' "
        "FROM generate_series(1, 5) AS n"
    )
    purge = Purge("public", {})
    purge._purges = [(each._replace(limit=2), params) for each, params in purge._purges]
    left = []
    for _ in range(7):
        purge._limits[0], purge._next, purge._due = 2, 0, 0.0
        purge(link)
        left.append(database.scalar("SELECT count(*) FROM leasequeue_finished"))
    assert left == [35, 35, 35, 33, 31, 30, 30]
    assert 0.0 < purge._after[0] < 2e9
