"""Each race forced, step by step; and what is left of the statement without its safeguard."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from leasequeue.db.complete import complete_held
from leasequeue.db.program import run
from leasequeue.errors import LeaseLost, WorkflowChanged
from leasequeue.job import Held
from tests.support.databases import Database
from tests.workflow.broken import BROKEN
from tests.workflow.hands import (
    ENDS,
    ME,
    Aside,
    add,
    claim,
    clear_the_way,
    ended,
    failure,
    flow,
    held_back,
    live,
    success,
)

pytestmark = pytest.mark.direct_only  # what is forced are row locks and snapshots; the hammer runs through a pooler too


def broken(name: str) -> str:
    (text,) = BROKEN[name].values()
    return text.format(s='"public"')


@pytest.mark.parametrize("checked", [True, False])
def test_a_child_that_is_added_between_snapshot_and_lock_is_not_lost(database: Database, checked: bool) -> None:
    """complete: snapshot | add: lock parent, raise children, insert edge, commit | complete: lock parent, count edges."""
    id, ids = flow(database, {"a": {}})
    pair = claim(database)[ids["a"]]
    sql = ENDS.succeed_plainly if checked else broken("no check for late children")
    go_on = clear_the_way(database)
    completing = Aside(database, held_back(sql), success(pair)).waits()
    with database.connect() as conn:
        add(conn, id, "late", {"a": "x"})
    go_on()
    completing.ends()
    if not checked:
        assert ended(database) == {"a": "succeeded"}
        assert live(database) == {"late": "b1"}, "the control must lose the child, or this test forces nothing"
        return
    assert isinstance(completing.error, psycopg.errors.DivisionByZero)
    assert live(database) == {"a": "l", "late": "b1"}
    database.execute(ENDS.succeed_plainly, success(pair))
    assert live(database) == {"late": "r0"}


@pytest.mark.parametrize("checked", [True, False])
def test_a_child_that_is_added_behind_a_step_that_falls_falls_too(database: Database, checked: bool) -> None:
    """add: lock b, raise | fail a: snapshot, b falls, waits for b | add: insert, commit | fail: b has more than was seen."""
    id, ids = flow(database, {"a": {}, "b": {"a": "x"}, "c": {"b": "x"}})
    pair = claim(database)[ids["a"]]
    sql = ENDS.fail_within if checked else broken("a cascade without the check")
    adding = database.connect()
    add(adding, id, "late", {"b": "x"})  # b is locked, nothing of it is seen
    failing = Aside(database, sql.replace("'150ms'", "'10s'"), failure(pair)).waits()
    adding.commit()
    failing.ends()
    if not checked:
        assert ended(database) == {"a": "failed", "b": "cancelled", "c": "cancelled"}
        assert live(database) == {"late": "b1"}, "the control must lose the child, or this test forces nothing"
        return
    assert isinstance(failing.error, psycopg.errors.DivisionByZero)
    assert live(database) == {"a": "l", "b": "b1", "c": "b1", "late": "b1"}
    database.execute(ENDS.fail, failure(pair))
    assert ended(database) == {"a": "failed", "b": "cancelled", "c": "cancelled", "late": "cancelled"}


@pytest.mark.parametrize("locked", [True, False])
def test_two_parents_that_end_at_the_same_moment_count_twice(database: Database, locked: bool) -> None:
    """a ends: counts b down, not committed | c ends: snapshot from before | a commits | c counts down from what it reads."""
    _, ids = flow(database, {"a": {}, "c": {}, "b": {"a": "x", "c": "x"}})
    pairs = claim(database)
    first = database.connect()
    first.execute(ENDS.succeed_plainly.replace("'150ms'", "'10s'").encode(), success(pairs[ids["a"]]))
    sql = ENDS.succeed_plainly if locked else broken("counted down without a row lock")
    second = Aside(database, sql.replace("'150ms'", "'10s'"), success(pairs[ids["c"]])).waits()
    first.commit()
    second.ends()
    assert second.error is None
    assert live(database) == {"b": "r0"} if locked else {"b": "b1"}


def test_one_that_asks_for_living_parents_sees_the_other_alive(database: Database) -> None:
    _, ids = flow(database, {"a": {}, "c": {}, "b": {"a": "x", "c": "x"}})
    pairs = claim(database)
    first = database.connect()
    first.execute(broken("NOT EXISTS without a lock").encode(), success(pairs[ids["a"]]))
    database.execute(broken("NOT EXISTS without a lock"), success(pairs[ids["c"]]))
    first.commit()
    assert live(database) == {"b": "b2"}, "the control must leave the child waiting for nobody"


def test_the_wait_for_a_childs_row_is_bounded_and_leaves_no_setting_behind(database: Database) -> None:
    _, ids = flow(database, {"a": {}, "b": {"a": "x"}, "z": {"b": "x"}})
    pair = claim(database)[ids["a"]]
    holder = database.connect()
    holder.execute("SELECT 1 FROM leasequeue_job WHERE id = %s FOR UPDATE", (ids["b"],))
    conn = database.connect(autocommit=True)
    for sql, params in (
        (ENDS.succeed_plainly, success(pair)),
        (ENDS.succeed, success(pair)),
        (ENDS.fail, failure(pair)),
    ):
        began = time.monotonic()
        with pytest.raises(psycopg.errors.LockNotAvailable):
            conn.execute(sql.encode(), params)
        assert 0.1 < time.monotonic() - began < 2.0
        assert conn.execute("SHOW lock_timeout").fetchone() == ("0",)
    assert database.execute(ENDS.blocked, {"ids": [ids["a"]], "deep": False}) == [(ids["a"],)]
    holder.rollback()
    assert database.execute(ENDS.blocked, {"ids": [ids["a"]], "deep": False}) == []
    holder.execute("SELECT 1 FROM leasequeue_job WHERE id = %s FOR UPDATE", (ids["z"],))
    assert database.execute(ENDS.blocked, {"ids": [ids["a"]], "deep": False}) == []
    assert database.execute(ENDS.blocked, {"ids": [ids["a"]], "deep": True}) == [(ids["a"],)]


def test_a_parent_that_is_being_completed_is_waited_for_by_who_adds(database: Database) -> None:
    """complete(conn) holds the parent: the adder waits, and then finds it ended."""
    id, ids = flow(database, {"a": {}})
    pair = claim(database)[ids["a"]]
    completing = database.connect()
    run(completing, complete_held, "public", Held(*pair, ME), "1", True, True)
    adder = Aside(
        database,
        "SELECT job.id FROM leasequeue_step AS step JOIN leasequeue_job AS job ON job.id = step.job_id "
        "WHERE step.workflow = %(w)s ORDER BY job.id FOR NO KEY UPDATE OF job",
        {"w": id},
    ).waits()
    completing.commit()
    assert adder.ends().rows == []
    with database.connect() as conn:
        add(conn, id, "late", {"a": "x"})
    assert live(database) == {"late": "r"}


def test_complete_within_a_transaction_needs_no_second_try(database: Database) -> None:
    """The handler's snapshot is from before the child; the statement that counts has one of its own."""
    id, ids = flow(database, {"a": {}})
    pair = claim(database)[ids["a"]]
    completing = database.connect()
    completing.execute("SELECT count(*) FROM leasequeue_job")
    with database.connect() as conn:
        add(conn, id, "late", {"a": "x"})
    run(completing, complete_held, "public", Held(*pair, ME), "1", True, True)
    assert live(database) == {"a": "l", "late": "b1"}
    completing.commit()
    assert (ended(database), live(database)) == ({"a": "succeeded"}, {"late": "r0"})


def test_under_repeatable_read_a_late_child_is_an_error_that_says_so(database: Database) -> None:
    id, ids = flow(database, {"a": {}})
    pair = claim(database)[ids["a"]]
    completing = database.connect()
    completing.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    completing.execute("SELECT count(*) FROM leasequeue_job")
    with database.connect() as conn:
        add(conn, id, "late", {"a": "x"})
    with pytest.raises((WorkflowChanged, psycopg.errors.SerializationFailure)):
        run(completing, complete_held, "public", Held(*pair, ME), "1", True, True)
    completing.rollback()
    assert live(database) == {"a": "l", "late": "b1"}


def test_a_plain_job_with_a_child_from_plain_sql_does_not_lose_it(database: Database) -> None:
    """As if a child was inserted by hand while it ran: the plain statement leaves it, complete(conn) refuses."""
    ((id,),) = database.execute("INSERT INTO leasequeue_job (task) VALUES ('t') RETURNING id")
    pair = claim(database)[id]
    database.execute("UPDATE leasequeue_job SET children = 1 WHERE id = %s", (id,))
    ((child,),) = database.execute(
        "INSERT INTO leasequeue_job (task, state, pending) VALUES ('t', 'b', 1) RETURNING id"
    )
    database.execute("INSERT INTO leasequeue_edge (parent_id, child_id) VALUES (%s, %s)", (id, child))
    conn = database.connect()
    with pytest.raises(LeaseLost):
        run(conn, complete_held, "public", Held(*pair, ME), None, True, False)
    conn.rollback()
    run(conn, complete_held, "public", Held(*pair, ME), None, True, True)
    conn.commit()
    assert database.execute("SELECT id, state::text FROM leasequeue_job") == [(child, "r")]


@pytest.mark.parametrize("what", ["cancel", "bury", "expire", "expire_held", "cancel_steps"])
def test_whatever_ends_a_parent_ends_what_falls_with_it(database: Database, what: str) -> None:
    id, ids = flow(database, {"a": {}, "b": {"a": "x"}, "c": {"a": "c"}, "d": {"b": "c"}, "e": {"a": "f"}})
    params: dict[str, Any] = {"id": ids["a"], "reason": "by hand", "max_abandoned": 3, "workflow": id}
    if what == "bury":
        database.execute("UPDATE leasequeue_job SET state = 'q', abandoned = 3 WHERE id = %s", (ids["a"],))
    if what == "expire":
        database.execute("UPDATE leasequeue_job SET start_by = now() - interval '1 s' WHERE id = %s", (ids["a"],))
    if what == "expire_held":
        database.execute("UPDATE leasequeue_job SET start_by = now() WHERE id = %s", (ids["a"],))
        params = success(claim(database)[ids["a"]])
    rows = database.execute(getattr(ENDS, what), params)
    outcome = {"cancel": "cancelled", "bury": "failed", "cancel_steps": "cancelled"}.get(what, "expired")
    if what == "cancel_steps":
        assert ended(database) == dict.fromkeys("abcde", "cancelled")
        return
    assert {row[0]: row[3] for row in rows} == {ids["a"]: True, ids["b"]: False}
    assert ended(database) == {"a": outcome, "b": "cancelled"}
    assert live(database) == {"c": "r0", "d": "r0", "e": "r0"}


def test_a_stale_pair_ends_nothing_and_a_child_with_a_limit_goes_to_its_gate(database: Database) -> None:
    _, ids = flow(database, {"a": {}, "b": {"a": "x"}})
    database.execute("UPDATE leasequeue_job SET limit_key = 'k' WHERE id = %s", (ids["b"],))
    id, term = claim(database)[ids["a"]]
    for sql in (ENDS.succeed_plainly, ENDS.succeed):
        assert database.execute(sql, success((id, term - 1))) == []
    assert database.execute(ENDS.fail, failure((id, term - 1))) == []
    # The end of an old claim beside that of the new one: once, with the result of the new one.
    params = success((id, term - 1), (id, term)) | {"results": ['"old"', '"new"']}
    database.execute(ENDS.succeed_plainly, params)
    assert database.execute("SELECT result FROM leasequeue_finished") == [("new",)]
    assert live(database) == {"b": "g0"}
    assert database.execute("SELECT queue, key FROM leasequeue_wake") == [("default", "k")]
