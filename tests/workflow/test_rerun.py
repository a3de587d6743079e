"""What runs again, and that nothing is lost while it is decided."""

from __future__ import annotations

import pytest

from leasequeue.db.program import Checked, run
from leasequeue.db.rerun import Now, choose, rerun
from leasequeue.db.workers import purges
from leasequeue.db.workflows import cancel_workflow
from leasequeue.errors import WorkflowRefused
from tests.support.databases import Database
from tests.workflow.hands import ENDS, Aside, claim, clear_the_way, ended, failure, flow, held_back, live, success

Kinds = dict[str, dict[str, str]]


def now(**states: str) -> dict[str, Now]:
    """Steps by their state: one letter for a live one, else what became of it."""
    return {
        name: Now(number, state if len(state) == 1 else None, state if len(state) > 1 else None)
        for number, (name, state) in enumerate(states.items())
    }


@pytest.mark.parametrize(
    ("steps", "parents", "from_step", "wanted"),
    [
        # What failed and what fell with it, not what succeeded beside it.
        (
            {"a": "succeeded", "b": "failed", "c": "cancelled"},
            {"b": {"a": "x"}, "c": {"b": "x"}},
            None,
            {"b": 0, "c": 1},
        ),
        # What went on all the same is not run twice.
        ({"a": "failed", "b": "succeeded"}, {"b": {"a": "c"}}, None, {"a": 0}),
        # What fired is armed anew, and what was not needed behind it too.
        ({"a": "failed", "b": "succeeded"}, {"b": {"a": "f"}}, None, {"a": 0, "b": 1}),
        (
            {"a": "succeeded", "b": "skipped", "c": "skipped"},
            {"b": {"a": "f"}, "c": {"b": "x"}},
            "a",
            {"a": 0, "b": 1, "c": 1},
        ),
        # One step and what is behind it, however it ended; not what comes after another that failed.
        (
            {"a": "succeeded", "z": "failed", "b": "succeeded", "c": "cancelled"},
            {"b": {"a": "x"}, "c": {"b": "x", "z": "x"}},
            "a",
            {"a": 0, "b": 1},
        ),
        # A live parent is waited for.
        ({"a": "failed", "z": "l", "b": "cancelled"}, {"b": {"a": "x", "z": "x"}}, None, {"a": 0, "b": 2}),
        # A live child that waits stays.
        ({"a": "succeeded", "z": "l", "b": "b"}, {"b": {"a": "x", "z": "x"}}, "a", {"a": 0}),
    ],
)
def test_what_runs_again(steps: dict[str, str], parents: Kinds, from_step: str | None, wanted: dict[str, int]) -> None:
    found = choose(1, now(**steps), {name: parents.get(name, {}) for name in steps}, from_step)
    assert {name: found.pending[name] for name in found.names} == wanted


@pytest.mark.parametrize("kind", ["x", "c"])
def test_what_comes_after_a_step_that_is_to_stop_is_not_run_again_to_be_cancelled(
    database: Database, kind: str
) -> None:
    id, _ = flow(database, {"a": {}, "b": {"a": kind}})
    claim(database)
    with database.connect() as conn:
        run(conn, cancel_workflow, "public", id, "cancelled", "ann", Checked())
    assert ended(database) == {"b": "cancelled"}
    with database.connect() as conn:
        if kind == "x":
            with pytest.raises(WorkflowRefused, match="after 'a', which was asked to stop and has not ended"):
                run(conn, rerun, "public", id, None, Checked())
        else:
            assert set(run(conn, rerun, "public", id, None, Checked())) == {"b"}


@pytest.mark.parametrize(
    ("steps", "parents", "from_step", "why"),
    [
        ({"a": "succeeded"}, {}, None, "nothing"),
        ({"a": "succeeded"}, {}, "b", "no step 'b'"),
        ({"a": "r"}, {}, "a", "has not ended"),
        ({"a": "succeeded", "b": "l"}, {"b": {"a": "x"}}, "a", "'b'.*has been released"),
        ({"a": "failed", "b": "cancelled"}, {"b": {"a": "x"}}, "b", "'a', which it comes after, ended as failed"),
    ],
)
def test_what_does_not(steps: dict[str, str], parents: Kinds, from_step: str | None, why: str) -> None:
    with pytest.raises(WorkflowRefused, match=why):
        choose(1, now(**steps), {name: parents.get(name, {}) for name in steps}, from_step)


def again(database: Database, workflow: int, from_step: str | None = None) -> dict[str, int]:
    with database.connect() as conn:
        return run(conn, rerun, "public", workflow, from_step, Checked())


@pytest.mark.direct_only  # row locks and snapshots
def test_a_parent_that_ends_while_its_child_is_replaced_counts_for_the_new_one(database: Database) -> None:
    """complete p: snapshot | retry: lock p, new child, new edge, children raised, commit | complete p: lock, count edges."""
    id, ids = flow(database, {"q": {}, "p": {}, "s": {"p": "x", "q": "x"}})
    pairs = claim(database)
    database.execute(ENDS.fail, failure(pairs[ids["q"]]))
    assert ended(database) == {"q": "failed", "s": "cancelled"}
    go_on = clear_the_way(database)
    completing = Aside(database, held_back(ENDS.succeed_plainly), success(pairs[ids["p"]])).waits()
    new = again(database, id)
    go_on()
    assert "division by zero" in str(completing.ends().error)
    assert live(database) == {"p": "l", "q": "r", "s": "b2"}
    database.execute(ENDS.succeed_plainly, success(pairs[ids["p"]]))
    database.execute(ENDS.succeed_plainly, success(claim(database)[new["q"]]))
    assert live(database) == {"s": "r0"}


def test_a_child_that_waits_waits_for_the_new_parent(database: Database) -> None:
    id, ids = flow(database, {"a": {}, "z": {}, "b": {"a": "x", "z": "x"}})
    pairs = claim(database)
    database.execute(ENDS.succeed_plainly, success(pairs[ids["a"]]))
    assert live(database) == {"z": "l", "b": "b1"}
    new = again(database, id, "a")
    assert live(database) == {"z": "l", "b": "b2", "a": "r"}
    database.execute(ENDS.succeed_plainly, success(pairs[ids["z"]]))
    assert live(database) == {"b": "b1", "a": "r"}
    database.execute(ENDS.fail, failure(claim(database)[new["a"]]))
    assert (live(database), ended(database)["b"]) == ({}, "cancelled")
    third = again(database, id)
    assert set(third) == {"a", "b"}
    database.execute(ENDS.succeed_plainly, success(claim(database)[third["a"]]))
    assert live(database) == {"b": "r0"}
    links = database.execute("SELECT meta -> 'retry_of' FROM leasequeue_job")
    assert links == [(ids["b"],)]


def test_a_new_job_does_not_inherit_what_was_asked_of_the_old_one(database: Database) -> None:
    id, ids = flow(database, {"a": {}})
    past = '{"snoozed": 2, "cancel_requested_at": "2026-01-01", "cancel_requested_by": "ann", "put_back": 3, "mine": 1}'
    database.execute("UPDATE leasequeue_job SET meta = meta || %s::jsonb", (past,))
    database.execute(ENDS.fail, failure(claim(database)[ids["a"]]))
    again(database, id)
    (meta,) = (meta for (meta,) in database.execute("SELECT meta FROM leasequeue_job"))
    assert meta.items() >= {"step": "a", "mine": 1, "retry_of": ids["a"]}.items()
    assert meta.keys().isdisjoint({"snoozed", "cancel_requested_at", "cancel_requested_by", "put_back"})


def test_old_workflows_go_with_their_edges_and_live_ones_stay(database: Database) -> None:
    old, ids = flow(database, {"a": {}, "b": {"a": "x"}})
    database.execute(ENDS.fail, failure(claim(database)[ids["a"]]))
    again(database, old)
    database.execute(ENDS.cancel_steps, {"workflow": old, "reason": "test"})
    living, _ = flow(database, {"a": {}, "b": {"a": "x"}})
    flow(database, {"a": {}})
    database.execute(
        "UPDATE leasequeue_workflow SET created_at = now() - interval '100 days' WHERE id <= %s", (living,)
    )
    purge = purges("public")[-1]
    assert len(database.execute(purge.text, {"keep": purge.keep_seconds, "limit": purge.limit})) == 1
    assert database.execute("SELECT count(*) FROM leasequeue_workflow") == [(2,)]
    assert database.execute("SELECT count(*) FROM leasequeue_step") == [(3,)]
    assert database.execute("SELECT count(*) FROM leasequeue_edge") == [(1,)]
