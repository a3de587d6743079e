"""What one schedule, one transaction or one backlog does to the others: nothing."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from leasequeue.cron import Spec
from leasequeue.db.schedules import Definition, canonical
from leasequeue.ops.release import Release
from tests.schedule.conftest import MakeHand
from tests.schedule.hand import jobs, ledger, outcomes, schedule_row, worker_row
from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = pytest.mark.direct_only  # what is between the ticker and the database does not matter here
SECOND = {"cron": "* * * * * *", "tz": "UTC"}
DAILY = canonical(json.dumps(Spec.make("@daily", "UTC").to_json()))
CODE = Definition("code", "job", "{}", "default", 0, DAILY, decorated=True)


def test_a_definition_that_cannot_be_written_stops_no_firing(
    database: Database, hand: MakeHand, caplog: pytest.LogCaptureFixture
) -> None:
    """Its row is locked by somebody's transaction, while a new release wants to write it."""
    worker_row(database, ["job"], ["code"])
    schedule_row(database, "other", SECOND)
    first = hand(database, [CODE], Release("1"))
    first.turns_until(lambda: database.scalar("SELECT count(*) FROM leasequeue_schedule") == 2)
    held = database.connect()
    held.execute("UPDATE leasequeue_schedule SET paused_at = now() WHERE name = 'code'")
    ticker = hand(database, [dataclasses.replace(CODE, args='{"n": 1}')], Release("2"))
    ticker.turns_until(lambda: len(outcomes(database, "other")) >= 3)
    assert ticker.unwritten == 1
    assert "schedule 'code' could not be dealt with" in caplog.text
    held.rollback()
    ticker.turns_until(lambda: ticker.unwritten == 0)
    assert database.scalar("SELECT args FROM leasequeue_schedule WHERE name = 'code'") == {"n": 1}


def test_one_that_the_server_refuses_stops_no_other(database: Database, hand: MakeHand) -> None:
    worker_row(database, ["job", "bad"])
    schedule_row(database, "bad", SECOND, task="bad")
    schedule_row(database, "good", SECOND)
    database.execute(
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; "
        "CREATE TRIGGER no BEFORE INSERT ON leasequeue_job FOR EACH ROW WHEN (NEW.task = 'bad') EXECUTE FUNCTION no()"
    )
    bad = dataclasses.replace(CODE, name="code", args=r'{"a": "\u0000"}')
    ticker = hand(database, [bad, dataclasses.replace(CODE, name="fine")])
    ticker.turns_until(lambda: len(outcomes(database, "good")) >= 3 and ticker.unwritten == 1)
    assert database.scalar("SELECT count(*) FROM leasequeue_schedule WHERE name = 'fine'") == 1


def test_any_number_of_dead_ones_hides_nobody(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    for names, columns, values in (
        ("vanished", "task, spec, next_at", "'gone', '{\"every\": 60}', now() - interval '1 day'"),
        ("ended", "task, spec", '\'job\', \'{"every": 60, "end": "2020-01-01T00:00:00+00:00"}\''),
    ):
        database.execute(
            f"INSERT INTO leasequeue_schedule (name, {columns}) SELECT '{names} ' || n, {values} "
            f"FROM generate_series(1, 2100) AS n"
        )
    ticker = hand(database)
    ticker.step()
    schedule_row(database, "zz", SECOND)
    ticker.turns_until(lambda: outcomes(database, "zz"), 20)


def test_a_backlog_starves_nobody(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    for name, catch_up in (("latest", "latest"), ("all", "all")):
        schedule_row(database, name, {"every": 1}, catch_up=catch_up)
    schedule_row(database, "other", SECOND)
    ticker = hand(database)
    ticker.turns_until(lambda: outcomes(database, "other"))
    database.execute("UPDATE leasequeue_schedule SET next_at = now() - interval '12 hours' WHERE name <> 'other'")
    ticker._poll_due = 0.0
    since = len(ledger(database, "other"))
    ticker.run_until(time.monotonic() + 5)
    late = database.scalar(
        "SELECT max(decided_at - due_at) FROM (SELECT * FROM leasequeue_tick WHERE schedule = 'other' "
        "ORDER BY due_at OFFSET %s) AS since",
        (since,),
    )
    print(f"at most {late.total_seconds() * 1000:.0f} ms late beside a backlog of 86,400 due times")
    assert late.total_seconds() < 1.0
    ticker.turns_until(lambda: {"fired"} & set(outcomes(database, "latest")), 60)
    assert set(outcomes(database, "latest")) == {"coalesced", "fired"}


def test_what_came_due_in_a_pause_is_not_run_by_the_resume(database: Database, hand: MakeHand) -> None:
    from leasequeue import LeaseQueue

    lq = LeaseQueue()
    lq.configure(url=database.url)
    worker_row(database)
    schedule_row(database, "s", {"every": 1})
    ticker = hand(database)
    ticker.turns_until(lambda: outcomes(database, "s"))
    before = jobs(database, "s")
    lq.schedules.pause(lq, "s")
    due = "SELECT now() > next_at + interval '2 s' FROM leasequeue_schedule"
    until(lambda: database.scalar(due), 10)  # and nobody ticks
    lq.schedules.resume(lq, "s")
    assert outcomes(database, "s").count("paused") >= 2
    assert jobs(database, "s") == before
    ticker.turns_until(lambda: jobs(database, "s") > before)
    lq.dispose()


def test_a_run_by_hand_hides_no_live_job_from_the_overlap(database: Database, hand: MakeHand) -> None:
    from leasequeue import LeaseQueue

    lq = LeaseQueue()
    lq.configure(url=database.url)
    worker_row(database)
    schedule_row(database, "s", {"every": 1}, overlap="skip")
    ticker = hand(database)
    ticker.turns_until(lambda: jobs(database, "s") == 1)
    id = lq.schedules.run_now(lq, "s")
    database.execute("DELETE FROM leasequeue_job WHERE id = %s", (id,))
    count = len(ledger(database, "s"))
    ticker.turns_until(lambda: len(ledger(database, "s")) > count)
    assert outcomes(database, "s")[-1] == "overlapped"
    lq.dispose()
