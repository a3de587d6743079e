"""What the database refuses to write of an end: which end it is then, and in which words."""

from __future__ import annotations

import logging
import time
import uuid
from typing import Any

import pytest

from leasequeue import LeaseQueue
from leasequeue.db.connect import Link
from leasequeue.db.ends import end_statements
from leasequeue.db.jobs import job_statements
from leasequeue.loop import Outage
from leasequeue.worker.complete import Completer
from leasequeue.worker.hand import Claimed, Ended, Failure, Hand, Outcome

HISTORY = "SELECT outcome, error FROM leasequeue_finished"


@pytest.fixture
def job(lq: LeaseQueue, link: Link) -> Claimed:
    """One that runs, in its last attempt."""

    @lq.task(name="work", max_attempts=1)
    def work() -> None: ...

    work.enqueue(lq)
    me = uuid.uuid4()
    params = {"queue": "default", "priorities": [0], "floors": [0.0], "floor_ids": [0], "k": 1, "me": me, "ttl": 60.0}
    (row,) = link.run(job_statements(lq.schema).claim, params)
    return Claimed(row, me, "default", work, time.monotonic())


@pytest.fixture
def completer(lq: LeaseQueue, link: Link) -> Completer:
    sql, ends = job_statements(lq.schema), end_statements(lq.schema)
    return Completer(link, Outage(), sql, None, Hand(), lambda queue: True, "me", "r", ends)  # type: ignore[arg-type]


def refuse(database: Any, condition: str) -> None:
    """As a constraint or a trigger of the host would."""
    database.execute(f"ALTER TABLE leasequeue_finished ADD CONSTRAINT hosts_own CHECK (NOT ({condition}))")


@pytest.mark.parametrize(
    ("outcome", "refused", "wanted", "said"),
    [
        (Outcome.CANCELLED, "error LIKE '%asked%'", "cancelled", "EndRefused: the database refused the end of this job (ca"),
        (Outcome.SUCCEEDED, "outcome = 'succeeded'", "failed", "EndRefused: the database refused the end of this job (su"),
    ],
)  # fmt: skip
def test_an_end_that_is_refused_keeps_its_outcome(
    database: Any, job: Claimed, completer: Completer, outcome: Outcome, refused: str, wanted: str, said: str
) -> None:
    refuse(database, refused)
    failure = Failure("Cancelled", "as asked", None) if outcome is Outcome.CANCELLED else None
    completer._write((outcome, job.holder, ""), [Ended(job, outcome, failure=failure)])
    ((found, error),) = database.execute(HISTORY)
    assert found == wanted
    assert error.startswith(said)
    assert "hosts_own" in error
    assert job.acknowledged


def test_a_result_that_is_refused_is_called_that(database: Any, job: Claimed, completer: Completer) -> None:
    refuse(database, "result IS NOT NULL")
    completer._write((Outcome.SUCCEEDED, job.holder, "result"), [Ended(job, Outcome.SUCCEEDED, result="1")])
    ((found, error),) = database.execute(HISTORY)
    assert found == "failed"
    assert error.startswith("ResultRefused: the database refused what the job returned: ")


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.EXPIRED, Outcome.FAILED_FOR_GOOD])
def test_one_that_is_refused_altogether_is_left_to_its_lease(
    database: Any, job: Claimed, completer: Completer, outcome: Outcome, caplog: pytest.LogCaptureFixture
) -> None:
    refuse(database, "true")
    database.execute("UPDATE leasequeue_job SET start_by = now()")
    failure = None if outcome is Outcome.EXPIRED else Failure("E", "m", None)
    with caplog.at_level(logging.ERROR):
        completer._write((outcome, job.holder, ""), [Ended(job, outcome, failure=failure)])
    assert "the database refused the end of this job" in caplog.text
    assert "its lease will expire" in caplog.text
    assert job.acknowledged
    assert database.execute("SELECT state::text FROM leasequeue_job") == [("l",)]
    assert database.execute(HISTORY) == []
