"""Cancelling steps and workflows from an application: what falls with them, and who hears of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leasequeue import LeaseQueue, WorkflowRefused
from leasequeue.db.connect import Link
from leasequeue.db.ends import end_statements
from leasequeue.db.names import channel
from leasequeue.db.urls import Settings
from leasequeue.worker.chores import Expiry
from leasequeue.workflow import WorkflowHandle
from tests.support.databases import Database
from tests.support.waiting import until
from tests.workflow.hands import add, claim, ended, flow, live


def test_a_step_that_waits_falls_with_what_comes_after_it(database: Database, lq: LeaseQueue) -> None:
    steps: dict[str, dict[str, str]] = {"a": {}, "b": {"a": "x"}, "c": {"b": "x"}, "d": {"b": "c"}, "e": {"b": "f"}}
    _, ids = flow(database, steps)
    with lq.engine.connect() as conn, conn.begin() as transaction:
        assert lq.cancel(conn, ids["b"], by="ann") == "cancelled"
        transaction.rollback()
    assert ended(database) == {}
    with lq.begin() as conn:
        assert lq.cancel(conn, ids["b"], by="ann") == "cancelled"
        assert lq.cancel(conn, ids["b"]) == "had finished"
    assert ended(database) == {"b": "cancelled", "c": "cancelled"}
    assert live(database) == {"a": "r", "d": "r0", "e": "r0"}
    errors = dict(database.execute("SELECT id, error FROM leasequeue_finished"))
    assert errors[ids["b"]] == "cancelled by ann"
    assert errors[ids["c"]].startswith(f"Cascade: job {ids['b']} ")
    assert lq.cancel(lq, ids["a"]) == "cancelled"


def test_a_step_that_is_given_a_child_at_that_moment(database: Database, lq: LeaseQueue) -> None:
    """Its row is locked by who adds the child; once that has committed, the child falls too."""
    id, ids = flow(database, {"a": {}, "b": {"a": "x"}})
    with database.connect() as adding:
        add(adding, id, "late", {"a": "x"})
        assert lq.cancel(lq, ids["a"]) == "locked"
        adding.commit()
    assert lq.cancel(lq, ids["a"]) == "cancelled"
    assert ended(database) == {"a": "cancelled", "b": "cancelled", "late": "cancelled"}


def test_cancelling_a_workflow_tells_the_workers_and_says_who(database: Database, lq: LeaseQueue) -> None:
    id, ids = flow(database, {"a": {}, "b": {}, "c": {"a": "x"}})
    claim(database)
    with database.connect(autocommit=True) as listening:
        listening.execute(f'LISTEN "{channel("public")}"'.encode())
        WorkflowHandle(lq, id).cancel(by="ann")
        heard: set[str] = set()

        def all_heard() -> bool:
            heard.update(each.payload for each in listening.notifies(timeout=0.1))
            return len(heard) == 2

        until(all_heard, 10, "both notifications")
    assert heard == {f"cancel:{ids['a']}", f"cancel:{ids['b']}"}
    rows = database.execute(
        "SELECT cancel_requested_at IS NOT NULL, meta ->> 'cancel_requested_by' FROM leasequeue_job"
    )
    assert rows == [(True, "ann")] * 2
    assert ended(database) == {"c": "cancelled"}


@pytest.fixture
def link(database: Database) -> Any:
    made = Link(Settings.parse(database.url), application_name="test", bound_seconds=20.0)
    made.connect()
    yield made
    made.close()


def test_a_workflow_that_is_not_there_is_not_said_to_be_cancelled(database: Database, lq: LeaseQueue) -> None:
    @lq.task(name="t")
    def noop() -> None: ...

    async def cancel_aside(handle: WorkflowHandle) -> None:
        try:
            await handle.acancel()
        finally:
            await lq.adispose()

    with lq.begin() as conn:
        wf = lq.workflow("flow")
        wf.add("a", noop.call())
        handle = wf.enqueue(conn)
        for ask in (
            handle.cancel,
            handle.status,
            lambda: handle.result("a"),
            lambda: asyncio.run(cancel_aside(handle)),
        ):
            with pytest.raises(WorkflowRefused, match="has not committed"):
                ask()
    handle.cancel()
    assert ended(database) == {"a": "cancelled"}
    handle.cancel()  # nothing is left to do


def test_what_was_asked_to_stop_and_is_back_to_wait_ends(database: Database, link: Link) -> None:
    """Its attempt has failed, was released or swept; a limit of 0 or a paused queue would keep it for ever."""
    _, ids = flow(database, {"a": {}, "b": {"a": "x"}})
    more = "cancel_requested_at, meta) VALUES ('t', "
    asked = f"now(), '{json.dumps({'cancel_requested_by': 'ann'})}')"
    held = "gen_random_uuid(), 1, now() + interval '1 h'"
    for columns, values in (
        ("state, available_at,", "'r', now() + interval '1 h', "),
        ("state, limit_key,", "'g', 'k', "),
        ("state, abandoned,", "'q', 1, "),
        ("state, holder, term, expires_at,", f"'l', {held}, "),
    ):
        database.execute(f"INSERT INTO leasequeue_job (task, {columns} {more}{values}{asked}")
    database.execute("INSERT INTO leasequeue_job (task) VALUES ('untouched')")
    database.execute("UPDATE leasequeue_job SET cancel_requested_at = now() WHERE id = %s", (ids["a"],))
    Expiry("public", end_statements("public"))(link)
    left = database.execute("SELECT task, state::text FROM leasequeue_job ORDER BY id")
    assert left == [("t", "l"), ("untouched", "r")]
    rows = database.execute("SELECT outcome, meta ->> 'cancel_requested_by', error FROM leasequeue_finished")
    assert sorted(outcome for outcome, _, _ in rows) == ["cancelled"] * 5
    assert sum(by == "ann" for _, by, _ in rows) == 3
    assert sum(error.startswith("Cancelled: on request, while it ran; ") for _, _, error in rows) == 4
    assert database.execute("SELECT key FROM leasequeue_wake") == [("k",)]
