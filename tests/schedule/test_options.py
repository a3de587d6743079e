"""What a task says of its jobs beside their arguments holds for those that a schedule makes, too."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest

from leasequeue import ConfigurationError, LeaseQueue
from leasequeue.ops.schedules import definitions_from_json
from leasequeue.schedule import to_json
from tests.schedule.conftest import MakeHand
from tests.schedule.hand import worker_row
from tests.support.databases import Database

HOUR = dt.timedelta(hours=1)
JOB = (
    "SELECT max_attempts, state, limit_key, limit_max, rate_max, rate_seconds, priority, "
    "extract(epoch FROM start_by - (meta ->> 'tick')::timestamptz)::float8 FROM leasequeue_job"
)
WANTED = (3, "g", "user:7", 2, 10, 60.0, 5, 3600.0)
WAKES = "SELECT queue, key, due_at <= clock_timestamp() FROM leasequeue_wake"


@pytest.fixture
def lq(database: Database) -> Iterator[LeaseQueue]:
    made = LeaseQueue(schema=database.schema)
    made.configure(url=database.url)
    yield made
    made.dispose()


def _task(lq: LeaseQueue) -> Any:
    @lq.task(name="job", expires=HOUR)
    def job(user: int) -> None: ...

    return job.options(max_attempts=3, priority=5, limit=2, rate="10/1m", limit_key="user:7")


def _fired(database: Database, hand: MakeHand, *definitions: Any) -> None:
    worker_row(database, schedules=["s"])
    ticker = hand(database, definitions)
    ticker.step()
    database.execute("UPDATE leasequeue_schedule SET next_at = date_trunc('minute', now()) - interval '10 minutes'")
    ticker.step()
    assert database.execute(JOB) == [WANTED]
    assert database.execute(WAKES) == [("default", "user:7", True)]
    assert database.execute("SELECT queue, priority FROM leasequeue_lane") == [("default", 5)]


def test_a_decorated_one(database: Database, hand: MakeHand, lq: LeaseQueue) -> None:
    lq.schedule("* * * * *", name="s", arguments={"user": 7})(_task(lq))
    _fired(database, hand, *definitions_from_json(json.loads(json.dumps(to_json(lq.definitions())))))
    (row,) = database.execute(
        "SELECT meta -> 'releases' IS NOT NULL, meta -> 'options' ->> 'limit_key' FROM leasequeue_schedule"
    )
    assert row == (True, "user:7")
    ticker = hand(database, lq.definitions())
    ticker.step()
    assert database.scalar("SELECT version FROM leasequeue_schedule") == 1, "read back, it is the same definition"


def test_one_that_was_added_and_changed(database: Database, hand: MakeHand, lq: LeaseQueue) -> None:
    task = _task(lq)
    lq.schedules.add(lq, "s", "* * * * *", task.options(max_attempts=2).call(user=7))
    lq.schedules.update(lq, "s", call=task.call(user=7))
    lq.schedules.update(lq, "s", jitter=dt.timedelta(0), overlap="skip")
    _fired(database, hand)
    database.execute("DELETE FROM leasequeue_job")
    lq.schedules.run_now(lq, "s")
    assert database.execute(JOB) == [WANTED]
    assert len(database.execute(WAKES)) == 2


def test_a_deadline_of_its_own_and_what_is_said_by_name_alone(database: Database, lq: LeaseQueue) -> None:
    from leasequeue.db.statement import Target, drive
    from leasequeue.ops import schedules as ops

    at = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
    lq.schedules.add(lq, "s", "0 0 1 1 *", _task(lq).options(expires=at).call(user=7))
    lq.schedules.run_now(lq, "s")
    assert database.scalar("SELECT start_by FROM leasequeue_job") == at
    options = "SELECT meta -> 'options' FROM leasequeue_schedule"

    def change(**changes: str) -> None:
        conn = database.connect(autocommit=True)
        program = ops.change(Target("here"), database.schema, "s", changes, {}, "an operator")
        drive(program, lambda statement, params: conn.execute(statement.text.encode(), params).fetchall())

    change(args='{"user": 8}')  # its key was made of the old one
    assert database.scalar(options) == {"max_attempts": 3, "start_by": at.isoformat()}
    change(task="other")
    assert database.scalar(options) is None


def test_what_a_schedule_cannot_hand_on_is_refused(database: Database, lq: LeaseQueue) -> None:
    @lq.task(name="one", unique_key=lambda user: f"u{user}" if user else None)
    def one(user: int) -> None: ...

    @lq.task(name="daily", unique_key="daily", unique_for=HOUR)
    def daily() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'one': task one has a unique key \('u7'\).*overlap='skip'"):
        lq.schedule("* * * * *", arguments={"user": 7})(one)
    with pytest.raises(ConfigurationError, match="has a unique key"):
        lq.schedule("* * * * *")(daily)
    with pytest.raises(ConfigurationError, match="has a unique key"):
        lq.schedules.add(lq, "s", "* * * * *", daily.call())
    with pytest.raises(ConfigurationError, match="leave delay and run_at out"):
        lq.schedules.add(lq, "s", "* * * * *", one.options(delay=HOUR).call(0))
    assert lq.definitions() == []
    lq.schedules.add(lq, "s", "* * * * *", one.call(0))
    with pytest.raises(ConfigurationError, match="has a unique key"):
        lq.schedules.update(lq, "s", call=one.call(7))
    assert database.scalar("SELECT args FROM leasequeue_schedule") == {"user": 0}
