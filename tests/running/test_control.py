"""What a handler says of its job, in threads, on the loop and in child processes; and what strategies make of errors."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest

from tests.running.conftest import enqueue
from tests.support.databases import Database
from tests.support.waiting import until
from tests.support.workers import Worker

Start = Callable[..., Worker]

LIVE = """SELECT state::text, attempt, round(extract(epoch FROM available_at - now()) / 3600)::int, meta
FROM leasequeue_job WHERE id = %s"""
DONE = "SELECT outcome, attempt, error, meta FROM leasequeue_finished WHERE id = %s"
FAILURES = (
    "SELECT attempt, error_type, message, length(traceback) FROM leasequeue_failure WHERE job_id = %s ORDER BY attempt"
)


@pytest.mark.direct_only  # what is said goes into rows, by the statements of every other test
def test_the_words_of_handlers(database: Database, worker: Start) -> None:
    """Every word over every kind of handler, all of them at once."""
    words = ("retry", "retry_now", "snooze", "snooze_until", "cancel", "fail", "long")
    ids: dict[tuple[str, str], int] = {}
    for task in ("say", "asay", "psay"):
        for what in words:
            (ids[task, what],) = enqueue(database, task, f'{{"what": "{what}"}}')
    (ids["asay", "group"],) = enqueue(database, "asay", '{"what": "group"}')
    strategic = {
        (task, kind): enqueue(database, task, f'{{"kind": "{kind}"}}')[0]
        for task, kind in (("strategic", "os"), ("strategic", "soon"), ("strategic", "other"), ("pstrategic", "os"),
                           ("pstrategic", "other"))
    }  # fmt: skip
    started = worker(database, queues=(("default", 3),))
    unsettled = (
        "SELECT count(*) FROM leasequeue_job WHERE state = 'l' OR available_at < now() + interval '100 s' "
        "AND task NOT LIKE '%%strategic'"
    )
    until(lambda: database.scalar(unsettled) == 0, 60, "every job to be settled", every=0.1)

    def live(id: int) -> tuple[Any, ...]:
        return database.execute(LIVE, (id,))[0]

    def done(id: int) -> tuple[Any, ...]:
        return database.execute(DONE, (id,))[0]

    for task in ("say", "asay", "psay"):
        assert live(ids[task, "retry"]) == ("r", 1, 1, None), task
        ((attempt, kind, message, _),) = database.execute(FAILURES, (ids[task, "retry"],))
        assert (attempt, kind, message) == (1, "Retry", "the other side rests")
        # It spends attempts, of which there are two.
        assert done(ids[task, "retry_now"])[:2] == ("failed", 2)
        assert [row[:2] for row in database.execute(FAILURES, (ids[task, "retry_now"],))] == [
            (1, "Retry"),
            (2, "Retry"),
        ]
        assert live(ids[task, "snooze"]) == ("r", 0, 1, {"snoozed": 1})
        assert live(ids[task, "snooze_until"]) == ("r", 0, 2, {"snoozed": 1})
        assert done(ids[task, "cancel"]) == ("cancelled", 1, "Cancelled: nobody wants it", None)
        assert done(ids[task, "fail"]) == ("failed", 1, "Fail: it cannot work", None)
        assert database.execute(FAILURES, (ids[task, "snooze"],)) == []
    assert done(ids["asay", "group"])[0] == "cancelled"
    # Both attempts of the failing one may need the default wait between them: the first is there at least.
    for task in ("say", "psay"):
        _, kind, message, size = database.execute(FAILURES, (ids[task, "long"],))[0]
        assert kind == "ValueError"
        assert len(message) <= 20_100
        assert message.startswith("xxx")
        assert message.endswith("xxx")
        assert 1_000 < size <= 20_100

    assert live(strategic["strategic", "os"])[:2] == ("r", 1)
    due = database.scalar(
        "SELECT available_at - now() FROM leasequeue_job WHERE id = %s", (strategic["strategic", "os"],)
    )
    assert dt.timedelta(seconds=1700) < due <= dt.timedelta(seconds=1801)
    assert live(strategic["strategic", "soon"])[:2] == ("r", 1)
    assert done(strategic["strategic", "other"])[:2] == ("failed", 1)
    assert live(strategic["pstrategic", "os"])[:2] == ("r", 1)
    assert done(strategic["pstrategic", "other"])[:2] == ("failed", 1)
    assert started.stop() == 0


@pytest.mark.direct_only  # what it is about is in the row
def test_a_snooze_spends_no_attempt_and_is_counted(database: Database, worker: Start) -> None:
    (id,) = enqueue(database, "say", '{"what": "snooze"}')
    started = worker(database)
    for count in (1, 2, 3):
        wanted = ("r", 0, 1, {"snoozed": count})
        until(lambda wanted=wanted: database.execute(LIVE, (id,)) == [wanted], 10, f"snooze {count}")  # type: ignore[misc]
        database.execute("UPDATE leasequeue_job SET available_at = now() WHERE id = %s", (id,))
    # One that is to be cancelled meanwhile does not sleep on.
    database.execute("UPDATE leasequeue_job SET cancel_requested_at = now(), available_at = now() WHERE id = %s", (id,))
    until(lambda: database.execute(DONE, (id,))[0][0] == "cancelled", 10)
    assert started.stop() == 0
