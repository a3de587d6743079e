"""The attacks that broke an earlier draft of the design, on a real server with real workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasequeue.db.jobs import job_statements
from tests.process.app import CREATE
from tests.process.test_death import FINISHED, LIVE, enqueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.process
Start = Callable[..., Worker]


def test_a_held_completion_delays_no_other_renewal(database: Database, worker: Start, tmp_path: Path) -> None:
    """Ten jobs are renewed past three ttls while an eleventh keeps its row locked by its own ``complete(conn)``."""
    database.execute(CREATE)
    flag = tmp_path / "go"
    # Its own transaction is bounded by the rest of its lease, so the ttl must leave room for three of the others.
    started = worker(database, ttl_seconds=6.0, queues=(("default", 12),)).started()
    enqueue(database, "hold_complete", f'{{"flag": "{flag}"}}')
    until(lambda: Path(f"{flag}.held").exists(), 10, "the row to be locked")
    others = enqueue(database, "nap", '{"seconds": 60}', 10)
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 11, 10)
    first = dict(database.execute("SELECT id, expires_at FROM leasequeue_job WHERE id = ANY(%s)", (others,)))

    def all_renewed() -> bool:
        rows = database.execute(
            "SELECT id, expires_at FROM leasequeue_job WHERE id = ANY(%s) AND state = 'l'", (others,)
        )
        return len(rows) == 10 and all(expires > first[id] for id, expires in rows)

    until(all_renewed, 5, "the ten others to be renewed while the eleventh is locked")
    flag.touch()
    until(lambda: database.scalar(FINISHED) == 1, 10)
    assert "is lost" not in started.log
    assert "refused:" not in started.log


def test_a_swallowed_refusal_commits_nothing(database: Database, worker: Start, tmp_path: Path) -> None:
    database.execute(CREATE)
    flag = tmp_path / "go"
    first = worker(database, ttl_seconds=1.5).started()
    enqueue(database, "late_effect", f'{{"flag": "{flag}"}}')
    until(lambda: Path(f"{flag}.running").exists(), 10)
    pid = until(lambda: first.serving(database), 5)[0]
    os.kill(pid, signal.SIGSTOP)
    second = worker(database, ttl_seconds=1.5).started()
    until(lambda: database.scalar(FINISHED) == 1, 15, "the second to take it over and finish it")
    flag.touch()
    os.kill(pid, signal.SIGCONT)
    # Its text, not the file: that is there before it is written.
    said = until(lambda: Path(f"{flag}.swallowed").read_text(), 10, "the refusal")
    assert said.startswith("LeaseLost")
    assert first.stop() == 0
    assert second.stop() == 0
    assert database.execute("SELECT attempt FROM effect") == [(2,)]
    assert database.scalar(FINISHED) == 1


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_one_bad_row_costs_the_others_nothing(database: Database, worker: Start) -> None:
    """A batch of 51 with four rows that no driver or parser likes: the other 47 succeed at the first attempt."""
    with pytest.raises(Exception, match="available_at_check"):
        database.execute("INSERT INTO leasequeue_job (task, available_at) VALUES ('noop', '-infinity')")
    # The CHECK keeps it out; a host that dropped the CHECK must not lose its batches either.
    database.execute("ALTER TABLE leasequeue_job DROP CONSTRAINT leasequeue_job_available_at_check")
    good = enqueue(database, "noop", '{"i": 1}', 24)
    (infinite,) = database.execute(
        "INSERT INTO leasequeue_job (task, available_at) VALUES ('noop', '-infinity') RETURNING id"
    )[0]
    (digits,) = enqueue(database, "noop", '{"i": ' + "9" * 5000 + "}")
    (deep,) = enqueue(database, "noop", '{"i": ' + "[" * 3000 + "]" * 3000 + "}")
    (lone,) = enqueue(database, "surrogate")
    good += enqueue(database, "noop", '{"i": 2}', 23)
    worker(database, queues=(("default", 60),)).started()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 50, 20)
    rows = database.execute("SELECT id, outcome, attempt FROM leasequeue_finished")
    found = {id: (outcome, attempt) for id, outcome, attempt in rows}
    assert len(good) == 47
    assert {found[id] for id in (*good, infinite)} == {("succeeded", 1)}
    assert found[digits][0] == found[deep][0] == "failed"
    until(lambda: database.execute("SELECT 1 FROM leasequeue_failure WHERE job_id = %s", (lone,)), 5)
    message = database.execute("SELECT message FROM leasequeue_failure WHERE job_id = %s", (lone,))[0][0]
    assert "lone surrogate" in message


@pytest.mark.direct_only  # statements only; how they travel does not matter
def test_a_stale_pair_of_the_same_holder_is_refused(database: Database) -> None:
    """(1, 101) is stale, (1, 102) and (2, 101) are held: two independent lists would let (1, 101) through."""
    sql = job_statements("public")
    ids = enqueue(database, "noop", times=2)
    me = "00000000-0000-4000-8000-000000000001"
    database.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = %s, expires_at = now() + interval '1 hour', attempt = 1, "
        "term = CASE WHEN id = %s THEN 102 ELSE 101 END",
        (me, ids[0]),
    )
    for name in ("complete", "complete_unkept", "release", "put_back", "read_held"):
        params = {"ids": [ids[0]], "terms": [101], "me": me, "back": "r", "keys": True}
        assert database.execute(getattr(sql, name), params) == [], name
    both = {"ids": ids, "terms": [101, 101], "me": me}
    assert database.execute(sql.renew, both | {"ttl": 30.0}) == [(ids[1], False)]
    assert database.execute(sql.complete, both) == [(ids[1],)]
    assert database.scalar("SELECT term FROM leasequeue_job") == 102


@pytest.mark.direct_only  # as above
def test_two_independent_lists_would_accept_it(database: Database) -> None:
    """The broken variant: the same fence with ids and terms compared apart lets the stale pair through."""
    sql = job_statements("public").read_held
    broken = sql.replace(
        "(id, term) IN (SELECT * FROM unnest(%(ids)s::bigint[], %(terms)s::bigint[]))",
        "term = ANY(%(terms)s::bigint[])",
    )
    assert broken != sql
    ids = enqueue(database, "noop", times=2)
    me = "00000000-0000-4000-8000-000000000001"
    database.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = %s, expires_at = now() + interval '1 hour', term = 100 + id",
        (me,),
    )
    stale = {"ids": ids, "terms": [100 + ids[1], 100 + ids[0]], "me": me}
    assert database.execute(sql, stale) == []
    assert len(database.execute(broken, stale)) == 2


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_other_default_isolation_levels(database: Database, worker: Start, level: str) -> None:
    database.execute(CREATE)
    database.execute(f"ALTER DATABASE \"{database.name}\" SET default_transaction_isolation = '{level}'")
    enqueue(database, "noop", times=1500)
    enqueue(database, "effect", times=100)
    started = [worker(database, processes=2).started(), worker(database).started()]
    until(lambda: database.scalar(FINISHED) == 1600, 60)
    assert database.scalar("SELECT max(attempt) FROM leasequeue_finished") == 1
    assert database.scalar("SELECT count(DISTINCT job) FROM effect") == 100
    assert all(each.stop() == 0 for each in started)


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_a_rolled_back_completion_is_a_failed_attempt(database: Database, worker: Start) -> None:
    """The handler returns, its transaction did not commit: the server ended it when the lease had run out."""
    database.execute(CREATE)
    worker(database, ttl_seconds=1.0).started()
    enqueue(database, "hold_complete", '{"flag": "/nonexistent/never", "seconds": 3}')
    failures = "SELECT error_type FROM leasequeue_failure"
    until(lambda: database.execute(failures), 15, "the failed attempt")
    assert database.scalar("SELECT count(*) FROM effect") == 0
    assert database.scalar(FINISHED) == 0


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_unknown_tasks_and_arguments_go_back_unspent(database: Database, worker: Start) -> None:
    unknown = enqueue(database, "of_another_release")
    unknown += enqueue(database, "noop", '{"new_argument": 1}')
    enqueue(database, "noop", times=20)
    started = worker(database).started()
    until(lambda: database.scalar(FINISHED) == 20, 15)
    put_back = "SELECT count(*) FROM leasequeue_job WHERE (meta ->> 'put_back')::int >= 3 AND attempt = 0"
    until(lambda: database.scalar(put_back) == 2, 15, "both to be put back three times")
    assert started.log.count("jobs of task 'of_another_release' are put back") == 1
    assert started.log.count("jobs of task 'noop' are put back") == 1

    def counted() -> Any:
        return database.scalar("SELECT counters -> 'unknown' ->> 'of_another_release' FROM leasequeue_worker LIMIT 1")

    until(counted, 10, "the worker's row to tell it")
    assert database.scalar(LIVE) == 2


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_failures_are_kept_and_end(database: Database, worker: Start) -> None:
    # The second one only when all is started: its next attempt comes a second later, and must not be over by then.
    (id,) = enqueue(database, "fail", '{"message": "no such house"}')
    database.execute("UPDATE leasequeue_job SET max_attempts = 1")
    started = worker(database).started()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 1, 15)
    (other,) = enqueue(database, "fail")
    assert database.execute("SELECT id, outcome, error FROM leasequeue_finished") == [
        (id, "failed", "ValueError: no such house")
    ]
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_failure WHERE job_id = %s", (other,)) == 1, 5)
    ((state, waits),) = database.execute(
        "SELECT state::text, available_at > now() FROM leasequeue_job WHERE id = %s", (other,)
    )
    assert (state, waits) == ("r", True)
    ((trace, worker_name),) = database.execute(
        "SELECT traceback, worker FROM leasequeue_failure WHERE job_id = %s", (other,)
    )
    assert "raise ValueError" in trace
    assert worker_name
    assert started.stop() == 0


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_a_cancelled_job_does_not_run_again(database: Database, worker: Start) -> None:
    """Asked to stop while it was held, then given back by a failure or a sweep: the next claim ends it."""
    (id,) = enqueue(database, "nap", '{"seconds": 60}')
    database.execute("UPDATE leasequeue_job SET cancel_requested_at = now()")
    started = worker(database).started()
    until(lambda: database.execute("SELECT 1 FROM leasequeue_finished"), 10)
    assert database.execute("SELECT id, outcome FROM leasequeue_finished") == [(id, "cancelled")]
    assert started.stop() == 0


def test_a_cancel_reaches_a_running_job(database: Database, worker: Start) -> None:
    (id,) = enqueue(database, "nap", '{"seconds": 60}')
    (other,) = enqueue(database, "anap", '{"seconds": 60}')
    started = worker(database, ttl_seconds=2.0).started()
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_job WHERE state = 'l'") == 2, 10)
    database.execute("UPDATE leasequeue_job SET cancel_requested_at = now()")
    until(lambda: database.scalar("SELECT count(*) FROM leasequeue_finished") == 2, 10)
    rows = database.execute("SELECT id, outcome FROM leasequeue_finished ORDER BY id")
    assert rows == [(id, "cancelled"), (other, "cancelled")]
    assert started.stop() == 0


@pytest.mark.direct_only  # it is about what is written, not about how that travels
def test_a_result_with_a_character_that_cannot_be_stored_succeeds(database: Database, worker: Start) -> None:
    """The work is done; a lone surrogate in what it returned must not have it done again."""
    (id,) = enqueue(database, "give_surrogate")
    started = worker(database).started()
    until(lambda: database.execute("SELECT 1 FROM leasequeue_finished"), 10)
    rows = database.execute("SELECT id, outcome, attempt, result FROM leasequeue_finished")
    assert rows == [(id, "succeeded", 1, "a lone surrogate: \\ud800, and a NUL: \\x00")]
    assert started.stop() == 0
