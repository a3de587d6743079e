from __future__ import annotations

import json

import pytest

from leasequeue.errors import ScheduleRefused
from leasequeue.ops import attention, status, timetable
from leasequeue.ops.asking import Desk
from leasequeue.ops.timetable import ScheduleRow
from tests.ops.conftest import Rows
from tests.support.databases import Database

HOURLY = '{"cron": "0 * * * *", "tz": "UTC"}'
FAR = '{"every": 3153600000}'  # a hundred years from 1970: no due time before the one in the row


class Plans:
    """Writes schedules by plain SQL; the task ``t`` is known to the worker of ``Rows.worker``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, name: str, spec: str = FAR, task: str = "t", next_in: str | None = "10 minutes", **columns: object
    ) -> None:
        names = ["name", "spec", "task", *columns]
        self._database.execute(
            f"INSERT INTO leasequeue_schedule (next_at, {', '.join(names)}) "
            f"VALUES (now() + %s::interval, {', '.join(['%s'] * len(names))})",
            [next_in, name, spec, task, *columns.values()],
        )

    def tick(self, schedule: str, ago: str, outcome: str = "fired", late: str = "0 s", job: int | None = None) -> None:
        self._database.execute(
            "INSERT INTO leasequeue_tick (schedule, due_at, outcome, job_id, decided_at, reason, decided_by) "
            "SELECT %s, due, %s, %s, due + %s::interval, 'why', 'box:1' FROM (SELECT now() - %s::interval AS due) AS d",
            [schedule, outcome, job, late, ago],
        )


@pytest.fixture
def plans(database: Database) -> Plans:
    return Plans(database)


def read(desk: Desk, name: str) -> ScheduleRow:
    return timetable.show_schedule(desk, name).row


def test_there_is_none(desk: Desk) -> None:
    assert timetable.list_schedules(desk) == ()
    with pytest.raises(ScheduleRefused, match="there is none of that name; `leasequeue schedules` lists them"):
        timetable.show_schedule(desk, "nightly")


def test_one_that_lives(desk: Desk, rows: Rows, plans: Plans) -> None:
    rows.worker()
    plans.add("b", HOURLY, next_in="5 seconds", args='{"n": 1}', priority=3, queue="mail", catch_up="all")
    plans.add("a", '{"every": 900}', next_in="5 seconds")
    first, second = timetable.list_schedules(desk)
    assert [(row.name, row.state, row.when, row.problem) for row in (first, second)] == [
        ("a", "live", "every 15 min", None),
        ("b", "live", "0 * * * * UTC", None),
    ]
    assert (second.args, second.priority, second.queue, second.catch_up, second.overlap) == (
        {"n": 1}, 3, "mail", "all", "queue",
    )  # fmt: skip
    assert second.served
    assert not second.decorated
    assert second.next_at is not None
    assert second.at is not None
    assert abs((second.next_at - second.at).total_seconds()) <= 5
    assert (second.last_fired_at, second.last_started_at, second.late_seconds, second.missed) == (None, None, None, 0)


@pytest.mark.direct_only  # it is about what stands in the row
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ('{"cron": "0 * * * *", "tz": "Mars/Olympus"}', "the time zone 'Mars/Olympus' is not known here"),
        ('{"cron": "61 * * * *", "tz": "UTC"}', "61"),
        ('{"cron": "often", "tz": "UTC"}', "often"),
        ('{"cron": "0 * * * *"}', ""),
        ('{"every": -1}', ""),
        ('{"every": "soon"}', ""),
        ('{"cron": "* * * * *", "every": 60, "tz": "UTC"}', "both"),
        ("{}", "neither"),
        ("[1]", "stored as an object"),
        ("null", "stored as an object"),
        ('"text"', "stored as an object"),
        ('{"every": 1' + "0" * 6000 + "}", ""),
        ('{"every": 60, "weekdays": true}', "weekdays"),
        (json.dumps({"cron": "\x1b[2J\n" * 300, "tz": "UTC"}), ""),
    ],
)
def test_times_that_nobody_can_read(desk: Desk, rows: Rows, plans: Plans, spec: str, why: str) -> None:
    rows.worker()
    plans.add("odd", spec)
    plans.add("sound")
    odd, sound = timetable.list_schedules(desk)
    assert (odd.state, sound.state) == ("broken", "live")
    assert odd.problem is not None
    assert odd.problem.startswith("its times cannot be read, so it does not run: ")
    assert why in odd.problem
    assert len(odd.problem) < 1000
    assert len(odd.when) <= 80


def test_paused_ended_overdue(desk: Desk, database: Database, rows: Rows, plans: Plans) -> None:
    rows.worker()
    plans.add("paused", next_in="-1 hour")
    database.execute("UPDATE leasequeue_schedule SET paused_at = now() - interval '5 minutes'")
    plans.add("ended", '{"every": 60, "end": "2020-01-01T00:00:00+00:00"}', next_in=None)
    plans.add("never", '{"cron": "0 0 30 2 *", "tz": "UTC"}', next_in=None)
    plans.add("last", '{"every": 60, "end": "2020-01-01T00:00:00+00:00"}', next_in="-5 s")
    plans.add("begins", next_in=None)  # plain SQL wrote it: a worker gives it its first due time
    plans.add("overdue", next_in="-11 seconds")
    plans.add("due", next_in="-5 seconds")
    found = {row.name: row.state for row in timetable.list_schedules(desk)}
    assert found == {
        "paused": "paused", "ended": "ended", "never": "ended", "last": "live", "begins": "live", "overdue": "overdue",
        "due": "live",
    }  # fmt: skip
    ((name, sentence),) = timetable.problems(timetable.list_schedules(desk))
    assert name == "overdue"
    assert sentence.startswith("schedule 'overdue': it is due since 1")
    assert "was not fired" in sentence


def test_those_that_nobody_serves(desk: Desk, database: Database, rows: Rows, plans: Plans) -> None:
    plans.add("by task", task="unknown")
    plans.add("in the code", decorated=True)
    plans.add("in another's code", decorated=True)
    plans.add("known", task="t")
    plans.add("over", '{"every": 60, "end": "2020-01-01T00:00:00+00:00"}', "unknown", None)
    plans.add("paused", decorated=True, paused_at="2026-01-01")
    assert {row.state for row in timetable.list_schedules(desk) if row.name not in ("over", "paused")} == {"vanished"}
    rows.worker(seconds=-5)  # one that is gone serves nothing
    assert not read(desk, "known").served
    rows.worker()
    database.execute("UPDATE leasequeue_worker SET schedules = '[\"in the code\"]'")
    found = {row.name: (row.state, row.served) for row in timetable.list_schedules(desk)}
    assert found == {
        "by task": ("vanished", False),
        "in another's code": ("vanished", False),
        "in the code": ("live", True),
        "known": ("live", True),
        "over": ("ended", False),
        "paused": ("paused", False),
    }
    assert read(desk, "by task").problem == (
        "no live worker knows its task 'unknown', so it does not run: bring it back, or "
        "`leasequeue schedules remove 'by task'`"
    )
    problem = read(desk, "in another's code").problem
    assert problem is not None
    assert problem.startswith("no live worker registers it")
    assert """`leasequeue schedules remove 'in another'"'"'s code'`""" in problem


def test_a_clock_that_was_set_back(desk: Desk, rows: Rows, plans: Plans) -> None:
    rows.worker()
    plans.add("-x", HOURLY, next_in="5 hours")
    row = read(desk, "-x")
    assert row.state == "live"
    assert row.problem is not None
    assert "the database's clock was set back" in row.problem
    assert "`leasequeue schedules run -- -x`" in row.problem


def test_times_that_no_datetime_holds(desk: Desk, database: Database, rows: Rows, plans: Plans) -> None:
    rows.worker()
    for at in ("infinity", "-infinity", "20000-01-01", "0001-01-01 BC"):
        plans.add(at)
        database.execute("UPDATE leasequeue_schedule SET deployed_at = %s, fired_at = %s WHERE name = %s", [at, at, at])
    assert len(timetable.list_schedules(desk)) == 4


def test_what_became_of_it(desk: Desk, database: Database, rows: Rows, plans: Plans) -> None:
    rows.worker()
    plans.add("nightly")
    plans.add("other")
    ended, live, waiting = rows.job(), rows.leased(), rows.job()
    rows.finished(ended, "succeeded")
    database.execute("DELETE FROM leasequeue_job WHERE id = %s", [ended])
    database.execute("UPDATE leasequeue_finished SET started_at = now() - interval '50 minutes', finished_at = now()")
    plans.tick("nightly", "3 days", "missed")
    plans.tick("nightly", "3 hours", "missed")
    plans.tick("nightly", "2 hours", "coalesced")
    plans.tick("nightly", "1 hour", job=ended, late="90 s")
    plans.tick("nightly", "30 minutes", "caught_up", job=live, late="2 s")
    plans.tick("nightly", "20 minutes", job=waiting)
    plans.tick("nightly", "10 minutes", job=999_999)
    plans.tick("other", "10 minutes", "missed")
    found = timetable.show_schedule(desk, "nightly", 5)
    assert [(tick.outcome, tick.job_id, tick.job) for tick in found.ticks] == [
        ("fired", 999_999, None),
        ("fired", waiting, "ready"),
        ("caught_up", live, "leased"),
        ("fired", ended, "succeeded"),
        ("coalesced", None, None),
    ]
    assert [round(tick.late_seconds) for tick in found.ticks] == [0, 0, 2, 90, 0]
    assert (found.ticks[0].reason, found.ticks[0].decided_by) == ("why", "box:1")
    row = found.row
    assert (row.late_seconds, row.missed) == (90.0, 1)
    assert row.at is not None
    assert row.last_started_at is not None
    assert (row.at - row.last_started_at).total_seconds() < 60  # the leased one was claimed just now
    assert row.last_succeeded_at is not None


def test_status_warns_of_each(desk: Desk, rows: Rows, plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.worker()
    plans.add("sound")
    plans.add("broken", "{}")
    plans.add("lost", task="unknown")
    warnings = [each for each in status.status(desk).warnings if each.kind == "schedule"]
    assert [each.subject for each in warnings] == ["broken", "lost"]
    assert warnings[0].message.startswith("schedule 'broken': its times cannot be read, so it does not run: ")
    monkeypatch.setattr(attention, "SCHEDULES_NAMED", 1)
    first, rest = status.status(desk).warnings
    assert first.subject == "broken"
    assert rest.message == "1 more schedules need a look: `leasequeue schedules` names them"


def test_status_does_not_wait_for_schedules(database: Database, desk: Desk, plans: Plans) -> None:
    plans.add("broken", "{}")
    conn = database.connect()
    conn.execute("LOCK TABLE leasequeue_schedule IN ACCESS EXCLUSIVE MODE")
    try:
        found = status.status(desk, section_seconds=0.3)
    finally:
        conn.rollback()
    assert found.not_read == ("schedules",)
    assert [each.kind for each in found.warnings] == ["not_read"]
    assert [each.kind for each in status.status(desk).warnings] == ["schedule"]
