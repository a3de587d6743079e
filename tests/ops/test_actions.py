from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.errors import ActionRefused, ConfigurationError, JobNotFound, OutcomeUnknown, SchemaMismatch
from leasequeue.ops import actions
from leasequeue.ops.asking import Desk
from leasequeue.ops.query import show_job
from tests.ops.conftest import Rows
from tests.support.databases import Database
from tests.support.waiting import until


def _then(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen between the first try and the second, instead of the pause."""
    monkeypatch.setattr(actions, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _seconds: happens()))


def test_a_scheduled_job_is_made_ready(desk: Desk, rows: Rows) -> None:
    id = rows.job(available_at="=now() + interval '1 hour'", attempt=2)
    done = actions.retry(desk, id)
    assert (done.change, done.new_id, done.queue) == ("made available", None, "default")
    row = show_job(desk, id).row
    assert (row.state, row.attempt) == ("ready", 2)


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "expired"])
def test_a_job_that_ended_badly_is_enqueued_again(database: Database, desk: Desk, rows: Rows, outcome: str) -> None:
    old = rows.finished(900, outcome, meta='{"put_back": 4, "own": true}')
    done = actions.retry(desk, old)
    assert done.change == "enqueued again"
    assert done.new_id is not None
    again = show_job(desk, done.new_id)
    assert (again.row.state, again.row.attempt, again.args) == ("ready", 0, {"n": 1})
    assert again.meta == {"own": True, "retry_of": 900}
    assert show_job(desk, old).retried_as == done.new_id
    with pytest.raises(ActionRefused, match=f"retried before, as job {done.new_id}; say --again") as caught:
        actions.retry(desk, old)
    assert caught.value.state == outcome
    assert actions.retry(desk, old, again=True).new_id not in (None, done.new_id)
    assert database.scalar("SELECT count(*) FROM leasequeue_job") == 2


def test_two_retries_at_once_make_one_job(database: Database, rows: Rows) -> None:
    rows.finished(900, "failed")

    def retry(_: int) -> object:
        link = Link(Settings.parse(database.direct_url), application_name="test", bound_seconds=20.0)
        link.connect()
        try:
            return actions.retry(Desk(link, database.schema), 900).new_id
        except ActionRefused:
            return None
        finally:
            link.close()

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(retry, range(4)))
    assert sum(new_id is not None for new_id in made) == 1
    assert database.scalar("SELECT count(*) FROM leasequeue_job") == 1


def test_what_cannot_be_retried_says_why(desk: Desk, rows: Rows) -> None:
    refused = {
        rows.job(): "it is ready already, since",
        rows.leased(): "it runs, attempt 1, on a worker without a row",
        rows.job(state="q"): "its process died",
        rows.job(state="b"): "it waits for a limit",
        rows.finished(901, "succeeded"): "it succeeded at",
    }
    for id, why in refused.items():
        with pytest.raises(ActionRefused, match=f"cannot retry job {id}: {why}"):
            actions.retry(desk, id)
    with pytest.raises(JobNotFound):
        actions.retry(desk, 12345)


@pytest.mark.parametrize("state", ["r", "q", "g", "b"])
def test_a_job_that_waits_is_cancelled_at_once(database: Database, desk: Desk, rows: Rows, state: str) -> None:
    id = rows.job(state=state, args='{"n": 2}', unique_key="u")
    assert actions.cancel(desk, id, by="ann@box").change == "cancelled"
    found = show_job(desk, id)
    assert (found.row.state, found.error, found.args) == ("cancelled", "cancelled by ann@box", {"n": 2})
    assert database.scalar("SELECT count(*) FROM leasequeue_job") == 0
    with pytest.raises(ActionRefused, match="it has ended: cancelled at"):
        actions.cancel(desk, id)


def test_a_running_job_is_asked_to_stop(desk: Desk, rows: Rows) -> None:
    id = rows.leased()
    assert actions.cancel(desk, id).change == "asked to stop"
    assert show_job(desk, id).cancel_requested_at is not None
    with pytest.raises(ActionRefused, match="its worker was asked to stop at"):
        actions.cancel(desk, id)


def test_a_job_whose_lease_has_expired_is_anyones_to_cancel(desk: Desk, rows: Rows) -> None:
    id = rows.leased(seconds=-1)
    assert actions.cancel(desk, id).change == "cancelled"


def test_a_job_that_is_claimed_at_that_moment_is_asked_to_stop(
    database: Database, desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = rows.job()
    claim = database.connect()
    claim.execute(
        "UPDATE leasequeue_job SET state = 'l', holder = gen_random_uuid(), term = 1, expires_at = now() + interval '1 min'"
    )
    _then(monkeypatch, claim.commit)
    assert actions.cancel(desk, id).change == "asked to stop"


def test_a_job_that_ends_at_that_moment_has_ended(
    database: Database, desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = rows.leased()
    completion = database.connect()
    completion.execute("DELETE FROM leasequeue_job")
    completion.execute(
        "INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at) "
        "VALUES (%s, 'default', 't', '{}', 'succeeded', 1, 0, now())",
        [id],
    )
    _then(monkeypatch, completion.commit)
    with pytest.raises(ActionRefused, match="it has ended: succeeded"):
        actions.cancel(desk, id)


def test_a_row_that_stays_locked_is_not_waited_for(
    database: Database, desk: Desk, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LOCKED_SECONDS", 0.2)
    id = rows.job()
    holder = database.connect()
    holder.execute("SELECT 1 FROM leasequeue_job FOR UPDATE")
    with pytest.raises(ActionRefused, match=r"\(ready\) has been locked by another transaction for 0.2 s"):
        actions.cancel(desk, id)
    holder.rollback()
    assert actions.cancel(desk, id).change == "cancelled"


@pytest.mark.direct_only  # through a pooler the cut-off statement keeps one of its two connections
def test_an_answer_that_never_came_is_unknown(database: Database, rows: Rows) -> None:
    rows.finished(900, "failed")
    holder = database.connect()
    holder.execute("SELECT 1 FROM leasequeue_finished FOR UPDATE")
    link = Link(Settings.parse(database.url), application_name="cut off", bound_seconds=0.3)
    link.connect()
    with pytest.raises(
        OutcomeUnknown, match="whether job 900 was changed is not known: see `leasequeue jobs show 900`"
    ):
        actions.retry(Desk(link, database.schema), 900)
    link.close()
    holder.rollback()
    until(
        lambda: not database.scalar("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cut off'"),
        what="the server to notice that its client is gone",
    )


def test_tables_that_went_away(database: Database, desk: Desk) -> None:
    database.execute("ALTER TABLE leasequeue_job RENAME TO away")
    with pytest.raises(SchemaMismatch, match="leasequeue migrate"):
        actions.retry(desk, 1)
    with pytest.raises(SchemaMismatch):
        Desk(desk.link, database.schema)


def test_a_user_without_the_right(database: Database) -> None:
    role = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    try:
        database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        link = Link(_as(database.direct_url, role), application_name="test")
        link.connect()
        desk = Desk(link, database.schema)
        with pytest.raises(ConfigurationError, match=r"permission denied for .*: GRANT what is missing"):
            actions.retry(desk, 1)
        link.close()
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def _as(url: str, role: str) -> Settings:
    settings = Settings.parse(url)
    return Settings(settings.hosts, settings.dbname, role, "x", settings.options)
