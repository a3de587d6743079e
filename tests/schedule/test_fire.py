"""The firing statement and the ticker, step by step on a real database."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import Any

import psycopg
import pytest

from leasequeue.db.schedules import schedule_statements
from tests.schedule.conftest import MakeHand
from tests.schedule.hand import jobs, ledger, outcomes, schedule_row, worker_row
from tests.support.databases import Database
from tests.support.waiting import until

SECOND = {"cron": "* * * * * *", "tz": "UTC"}
MINUTE = {"cron": "* * * * *", "tz": "UTC"}
FAR = {"cron": "0 0 1 1 *", "tz": "UTC"}


def back(database: Database, name: str, interval: str) -> None:
    """As if nobody had run for so long."""
    database.execute(
        "UPDATE leasequeue_schedule SET next_at = date_trunc('minute', now()) - %s::interval WHERE name = %s",
        (interval, name),
    )


def test_a_plain_insert_is_a_schedule(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "s", SECOND, args='{"n": 1}')
    ticker = hand(database)
    ticker.step()
    due = database.scalar("SELECT next_at FROM leasequeue_schedule")
    assert due is not None
    ticker.run_until(time.monotonic() + 2.2)
    rows = ledger(database, "s")
    assert 2 <= len(rows) <= 3
    assert [at for at, _ in rows] == [due + dt.timedelta(seconds=n) for n in range(len(rows))]
    assert set(outcomes(database, "s")) == {"fired"}
    made = database.execute(
        "SELECT task, args, queue, meta ->> 'schedule', (meta ->> 'tick')::timestamptz, unique_key "
        "FROM leasequeue_job ORDER BY id"
    )
    assert made == [("job", {"n": 1}, "default", "s", at, None) for at, _ in rows]
    early = "SELECT count(*) FROM leasequeue_tick WHERE decided_at < due_at"
    assert database.scalar(early) == 0
    assert database.scalar("SELECT job_id = (SELECT max(id) FROM leasequeue_job) FROM leasequeue_schedule")


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_after_78_minutes_of_suspension(database: Database, hand: MakeHand, catch_up: str) -> None:
    worker_row(database)
    schedule_row(database, "s", MINUTE, catch_up=catch_up)
    ticker = hand(database)
    ticker.step()
    back(database, "s", "78 minutes")
    ticker.step()
    rows = ledger(database, "s")
    assert len(rows) in (79, 80)  # with the present minute, and the next where it begins just now
    assert [at for at, _ in rows] == [rows[0][0] + dt.timedelta(minutes=n) for n in range(len(rows))]
    *before, last = [outcome for _, outcome in rows]
    assert last in ("fired", "missed") if catch_up == "none" else last in ("fired", "caught_up")
    expected = {"latest": "coalesced", "all": "caught_up", "none": "missed"}[catch_up]
    assert set(before[:-1]) == {expected}
    assert jobs(database, "s") == sum(outcome in ("fired", "caught_up") for _, outcome in rows)
    assert database.scalar("SELECT count(*) FROM leasequeue_tick WHERE outcome <> 'fired' AND reason IS NULL") == 0
    assert database.scalar("SELECT next_at > now() FROM leasequeue_schedule")


def test_many_due_times_go_in_pieces(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "s", SECOND)
    ticker = hand(database)
    ticker.step()
    back(database, "s", "30 minutes")
    ticker.step()
    assert 0 < len(ledger(database, "s")) < 1000, "the others have their turn between the pieces"
    ticker.turns_until(lambda: "fired" in outcomes(database, "s"), 20)
    rows = ledger(database, "s")
    assert len(rows) > 1800
    assert [at for at, _ in rows] == [rows[0][0] + dt.timedelta(seconds=n) for n in range(len(rows))]
    assert jobs(database, "s") == 1
    assert outcomes(database, "s")[-1] == "fired"


def test_twenty_tickers_fire_each_due_time_once(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "s", SECOND)
    hand(database).step()
    tickers = [hand(database) for _ in range(20)]
    end = time.monotonic() + 5
    threads = [threading.Thread(target=ticker.run_until, args=(end,)) for ticker in tickers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    rows = ledger(database, "s")
    assert len(rows) >= 4
    assert [at for at, _ in rows] == [rows[0][0] + dt.timedelta(seconds=n) for n in range(len(rows))]
    assert jobs(database, "s") == len(rows)
    assert database.scalar("SELECT count(DISTINCT meta ->> 'tick') FROM leasequeue_job") == len(rows)


def test_a_firing_waits_for_nothing(database: Database, hand: MakeHand) -> None:
    """An application's transaction holds the key that such a tick would have, and locks one schedule: the others go on."""
    worker_row(database)
    names = [f"s{number}" for number in range(5)]
    for name in names:
        schedule_row(database, name, SECOND)
    ticker = hand(database)
    ticker.step()
    held = database.connect()
    for name in names:
        for second in range(10):
            held.execute(
                "INSERT INTO leasequeue_job (task, unique_key) SELECT 'job', %s || to_char("
                "(date_trunc('second', now()) + %s * interval '1 s') AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS')",
                (f"{name} ", second),
            )
    held.execute("SELECT FROM leasequeue_schedule WHERE name = 's0' FOR UPDATE")
    began = time.monotonic()
    ticker.run_until(began + 4)
    assert outcomes(database, "s0") == []
    for name in names[1:]:
        assert len(outcomes(database, name)) >= 3, name
    late = database.scalar("SELECT max(decided_at - due_at) FROM leasequeue_tick")
    print(f"latest {late.total_seconds() * 1000:.0f} ms after the due time, beside a transaction that holds everything")
    assert late < dt.timedelta(seconds=0.5)
    held.rollback()
    ticker.turns_until(lambda: outcomes(database, "s0"), 6)
    assert set(outcomes(database, "s0")) == {"coalesced", "fired"}


def test_a_locked_schedule_is_said(
    database: Database, hand: MakeHand, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leasequeue.worker import tick

    monkeypatch.setattr(tick, "OVERDUE_SECONDS", 0.3)
    worker_row(database)
    schedule_row(database, "s", SECOND)
    ticker = hand(database)
    ticker.step()
    held = database.connect()
    held.execute("SELECT FROM leasequeue_schedule FOR UPDATE")
    ticker.run_until(time.monotonic() + 3)
    assert caplog.text.count("'s' is due since") == 1
    assert "locked by another transaction" in caplog.text


def test_a_broken_row_stops_no_other(database: Database, hand: MakeHand, caplog: pytest.LogCaptureFixture) -> None:
    worker_row(database)
    schedule_row(database, "good", SECOND)
    hand(database).step()
    past = "2026-01-01T00:00:00Z"
    specs: list[dict[str, Any]] = [
        {"cron": "* * * * *", "tz": "Atlantis/Center"},
        {"cron": "61 * * * *", "tz": "UTC"},
        {},
        {"every": -5},
        {"tz": 5},
    ]
    for number, spec in enumerate(specs):
        schedule_row(database, f"bad{number}", spec, next_at=past)
    schedule_row(database, "nobody", SECOND, task="gone", next_at=past)
    for never in ("infinity", "0044-03-15 BC"):
        with pytest.raises(psycopg.errors.CheckViolation):
            schedule_row(database, "never", SECOND, next_at=never)
    ticker = hand(database)
    ticker.run_until(time.monotonic() + 2.5)
    assert len(outcomes(database, "good")) >= 2
    assert database.scalar("SELECT count(*) FROM leasequeue_tick WHERE schedule <> 'good'") == 0
    for name in ("bad0", "bad1", "bad2", "bad3", "bad4"):
        assert f"schedule '{name}' cannot be read" in caplog.text
    assert "Atlantis/Center" in caplog.text


def test_one_that_nobody_knows_waits_and_is_caught_up(database: Database, hand: MakeHand) -> None:
    schedule_row(database, "s", SECOND, catch_up="latest")
    schedule_row(database, "code", SECOND, decorated=True)
    ticker = hand(database)
    ticker.run_until(time.monotonic() + 2.2)
    assert outcomes(database, "s") == outcomes(database, "code") == []
    assert jobs(database, "s") == 0, "fired into the void"
    # Its task is known, and the one of the code is not registered.
    id = worker_row(database)
    ticker.run_until(time.monotonic() + 1.2)
    assert set(outcomes(database, "s")) == {"coalesced", "fired"}
    assert outcomes(database, "code") == []
    database.execute("UPDATE leasequeue_worker SET schedules = '[\"code\"]' WHERE id = %s", (id,))
    ticker.run_until(time.monotonic() + 1.2)
    assert "fired" in outcomes(database, "code")
    database.execute("UPDATE leasequeue_worker SET expires_at = now()")
    before = outcomes(database, "s")
    ticker.step()
    ticker.run_until(time.monotonic() + 1.2)
    assert len(outcomes(database, "s")) <= len(before) + 1


def test_overlap(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "skip", SECOND, overlap="skip")
    schedule_row(database, "queue", SECOND)
    ticker = hand(database)
    ticker.run_until(time.monotonic() + 3.2)
    assert outcomes(database, "skip")[:2] == ["fired", "overlapped"]
    reason = database.scalar("SELECT min(reason) FROM leasequeue_tick WHERE outcome = 'overlapped'")
    live = database.scalar("SELECT job_id FROM leasequeue_schedule WHERE name = 'skip'")
    assert reason == f"job {live} of an earlier due time still lives"
    assert jobs(database, "skip") == 1
    assert set(outcomes(database, "queue")) == {"fired"}
    database.execute("DELETE FROM leasequeue_job WHERE meta ->> 'schedule' = 'skip'")
    ticker.run_until(time.monotonic() + 1.2)
    assert outcomes(database, "skip")[-1] in ("fired", "overlapped")
    assert outcomes(database, "skip").count("fired") == 2


def test_a_paused_one_is_accounted_for(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "s", SECOND)
    ticker = hand(database)
    ticker.step()
    known = schedule_statements("public")
    ticker.link.run(known.pause.text, {"name": "s", "paused": True, "by": "a test"})
    ticker.run_until(time.monotonic() + 2.2)
    assert set(outcomes(database, "s")) == {"paused"}
    ticker.link.run(known.pause.text, {"name": "s", "paused": False, "by": "a test"})
    ticker.run_until(time.monotonic() + 2.2)
    rows = ledger(database, "s")
    found = [outcome for _, outcome in rows]
    resumed = len([outcome for outcome in found if outcome == "paused"])
    assert set(found[:resumed]) == {"paused"}
    assert set(found[resumed:]) <= {"coalesced", "fired"}  # a busy machine is late, and says so
    assert found[-1] == "fired"
    assert [at for at, _ in rows] == [rows[0][0] + dt.timedelta(seconds=n) for n in range(len(rows))]


def test_a_due_time_that_stands_in_the_ledger_runs_no_more(database: Database, hand: MakeHand) -> None:
    """The clock was set back, or the schedule was removed and added again: what ran has run, and nothing is stuck."""
    worker_row(database)
    schedule_row(database, "s", MINUTE, catch_up="all")
    ticker = hand(database)
    ticker.step()
    back(database, "s", "5 minutes")
    ticker.step()
    first = jobs(database, "s")
    assert first >= 6
    back(database, "s", "10 minutes")
    ticker.step()
    assert jobs(database, "s") - first == 5
    assert len(ledger(database, "s")) == jobs(database, "s")
    assert database.scalar("SELECT next_at > now() FROM leasequeue_schedule")


def test_a_priority_and_a_jitter(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    schedule_row(database, "s", SECOND, priority=7, queue="mail", jitter_seconds=5.0)
    ticker = hand(database)
    ticker.run_until(time.monotonic() + 3.2)
    assert database.execute("SELECT queue, priority FROM leasequeue_lane") == [("mail", 7)]
    rows = database.execute("SELECT priority, available_at - (meta ->> 'tick')::timestamptz FROM leasequeue_job")
    assert {priority for priority, _ in rows} == {7}
    assert all(dt.timedelta(0) <= delay < dt.timedelta(seconds=5.1) for _, delay in rows)
    assert len({delay for _, delay in rows}) == len(rows)


def test_an_ended_one_rests(database: Database, hand: MakeHand) -> None:
    worker_row(database)
    end = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=2.5)).isoformat()
    schedule_row(database, "s", SECOND | {"end": end})
    ticker = hand(database)
    ticker.run_until(time.monotonic() + 4)
    assert 2 <= len(ledger(database, "s")) <= 3
    assert database.scalar("SELECT next_at FROM leasequeue_schedule") is None
    ticker.step()
    assert until(lambda: ticker.would_pause > 0, 1)
