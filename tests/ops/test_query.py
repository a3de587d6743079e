from __future__ import annotations

import uuid

import pytest

from leasequeue.errors import ConfigurationError, JobNotFound
from leasequeue.ops import query
from leasequeue.ops.asking import Desk
from tests.ops.conftest import Rows
from tests.support.databases import Database


def _ids(found: query.JobList) -> list[int]:
    return [job.id for job in found.jobs]


def test_ready_jobs_come_as_they_will_be_claimed(desk: Desk, rows: Rows) -> None:
    late = rows.job(available_at="=now() - interval '1 second'")
    early = rows.job(available_at="=now() - interval '9 seconds'")
    first = rows.job(priority=5)
    other = rows.job(queue="mail", priority=-1)
    rows.job(available_at="=now() + interval '1 hour'")
    found = query.list_jobs(desk, state="ready")
    assert _ids(found) == [first, early, late, other]
    assert found.complete
    assert _ids(query.list_jobs(desk, state="ready", queue="mail")) == [other]
    assert _ids(query.list_jobs(desk, state="ready", limit=2)) == [first, early]
    assert not query.list_jobs(desk, state="ready", limit=2).complete


def test_each_state_is_listed(desk: Desk, rows: Rows) -> None:
    made = {
        "ready": rows.job(),
        "scheduled": rows.job(available_at="=now() + interval '1 hour'"),
        "leased": rows.leased(),
        "suspect": rows.job(state="q"),
        "waiting": rows.job(state="g"),
        "succeeded": rows.finished(101, "succeeded"),
        "failed": rows.finished(102, "failed", error="ValueError: no"),
        "cancelled": rows.finished(103, "cancelled"),
        "expired": rows.finished(104, "expired"),
    }
    for state, id in made.items():
        found = query.list_jobs(desk, state=state)
        assert _ids(found) == [id], state
        assert found.jobs[0].state == state
        assert _ids(query.list_jobs(desk, state=state, task="t", queue="default")) == [id]
        assert _ids(query.list_jobs(desk, state=state, task="other")) == []
        assert _ids(query.list_jobs(desk, state=state, queue="other")) == []
    live = [made[state] for state in query.LIVE_STATES]
    assert _ids(query.list_jobs(desk)) == sorted(live, reverse=True)
    assert query.list_jobs(desk, state="failed").jobs[0].error_preview == "ValueError: no"


def test_a_search_that_stopped_says_so(desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = rows.job("rare")
    for _ in range(5):
        rows.job("common")
    assert _ids(query.list_jobs(desk, task="rare", limit=2)) == [wanted]
    monkeypatch.setattr(query, "WINDOW", 3)
    found = query.list_jobs(desk, task="rare", limit=2)
    assert (found.jobs, found.looked_at, found.complete) == ((), 3, False)


def test_a_job_shows_who_holds_it(desk: Desk, rows: Rows) -> None:
    worker = rows.worker()
    holder = uuid.UUID(bytes=worker.bytes[:12] + b"\1\2\3\4")
    id = rows.leased(holder, args='{"user": 7}', meta='{"put_back": 3, "retry_of": 9}', unique_key="u")
    found = query.show_job(desk, id)
    assert (found.row.state, found.row.worker, found.holder, found.term) == ("leased", "box:11", str(holder), 7)
    assert (found.args, found.put_back, found.retry_of, found.unique_key) == ({"user": 7}, 3, 9, "u")
    assert query.list_jobs(desk, state="leased").jobs[0].worker == "box:11"


def test_a_finished_job_shows_its_failures(desk: Desk, rows: Rows) -> None:
    rows.finished(5, "failed", error="ValueError: no", meta='{"retried_as": 8}')
    rows.failure("t", job=5, message="first", ago=60)
    rows.failure("t", job=5, message="second", ago=5)
    found = query.show_job(desk, 5)
    assert (found.row.state, found.error, found.retried_as, found.args) == ("failed", "ValueError: no", 8, {"n": 1})
    assert [failure.message for failure in found.failures] == ["second", "first"]
    assert found.failures[0].traceback == "Traceback ..."


def test_there_is_no_such_job(desk: Desk) -> None:
    with pytest.raises(JobNotFound, match="17") as caught:
        query.show_job(desk, 17)
    assert caught.value.state is None


def test_rows_that_python_cannot_read_hide_no_others(database: Database, desk: Desk, rows: Rows) -> None:
    forever = rows.job(created_at="infinity", claimed_at="-infinity")
    digits = rows.job(args='{"n": ' + "9" * 5000 + "}")
    deep = rows.job(args='{"a":' * 3000 + "1" + "}" * 3000)
    far = rows.job(available_at="200000-01-01", meta='{"put_back": "x"}')
    assert _ids(query.list_jobs(desk)) == [far, deep, digits, forever]
    row = query.show_job(desk, forever).row
    assert row.created_at is not None
    assert row.created_at.year == 9999
    assert "9999" in query.show_job(desk, digits).args
    assert query.show_job(desk, deep).args
    assert query.show_job(desk, far).put_back == 0
    assert len(query.list_jobs(desk).jobs[2].args_preview) <= 200


def test_a_state_or_limit_that_there_is_not(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match="there is no state 'done'; there are ready"):
        query.list_jobs(desk, state="done")
    with pytest.raises(ConfigurationError, match="1 to 1000"):
        query.list_jobs(desk, limit=0)
