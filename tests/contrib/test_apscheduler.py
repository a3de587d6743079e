"""A scheduler behind a LeaderGate, in this process: what becomes of each due time, and what is refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import text

from leasequeue import LeaseQueue
from leasequeue.contrib.apscheduler import LeaderGate, current_run, settles
from leasequeue.contrib.apscheduler.accounting import Owed, judge, owed
from leasequeue.errors import ConfigurationError
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.waiting import until

direct_only = pytest.mark.direct_only  # the ledger's statements are plain ones; what a pooler does is tested elsewhere
TTL = dt.timedelta(seconds=3)
SECOND = dt.timedelta(seconds=1)
EACH_SECOND = "APScheduler cron[second='*/1'] in UTC"
NOON = dt.datetime(2026, 11, 30, 12, tzinfo=dt.UTC)

Make = Callable[..., LeaderGate]


@pytest.fixture
def make() -> Iterator[Make]:
    """``make(database, scheduler, **options)`` makes a gate that is stopped with the test."""
    made: list[tuple[LeaderGate, LeaseQueue]] = []

    def gate(database: Database, scheduler: Any, *, url: str | None = None, **options: Any) -> LeaderGate:
        lq = LeaseQueue()
        lq.configure(url=url or database.url)
        made.append((LeaderGate(scheduler, lq, ttl=TTL, **options), lq))
        return made[-1][0]

    yield gate
    for each, lq in made:
        if each.scheduler.running:
            each.stop()
        lq.dispose()


def cron() -> CronTrigger:
    return CronTrigger(second="*/1", timezone="UTC")


def ledger(database: Database, job: str) -> list[tuple[dt.datetime, str, str | None]]:
    rows = database.execute(
        "SELECT due_at, outcome, reason FROM leasequeue_tick WHERE schedule = %s ORDER BY 1", (job,)
    )
    return [(due_at.astimezone(dt.UTC), outcome, reason) for due_at, outcome, reason in rows]


def outcomes(database: Database, job: str) -> Counter[str]:
    return Counter(outcome for _, outcome, _ in ledger(database, job))


def defined(database: Database, job: str, seconds_ago: float, definition: str = EACH_SECOND) -> None:
    """As a leader leaves it that was killed before it ran anything."""
    database.execute(
        "INSERT INTO leasequeue_tick (schedule, due_at, outcome, reason) "
        "VALUES (%s, date_trunc('second', now()) + interval '500 ms' - %s * interval '1 s', 'redefined', %s)",
        (job, seconds_ago, definition),
    )


def without_gaps(database: Database, job: str) -> None:
    settled = [due_at for due_at, outcome, _ in ledger(database, job) if outcome != "redefined"]
    assert [b - a for a, b in pairwise(settled)] == [SECOND] * (len(settled) - 1)


# Pure


def test_what_is_owed_is_walked_from_row_to_row() -> None:
    trigger = IntervalTrigger(seconds=10, timezone="UTC")
    at = [NOON + dt.timedelta(seconds=seconds) for seconds in range(0, 100, 10)]
    shifted = at[5] + dt.timedelta(seconds=3)
    now = shifted + dt.timedelta(seconds=25)
    found = owed(trigger, at[0], [at[0], at[1], at[3], shifted], now)
    assert found.times == (at[2], at[4], at[5], shifted + SECOND * 10, shifted + SECOND * 20)
    assert found.is_last
    assert found.next_at == shifted + SECOND * 30
    assert owed(trigger, at[0], at, at[9] + SECOND) == Owed((), False, at[9] + SECOND * 10)
    # A row from a clock that is ahead of this one.
    assert owed(cron(), at[0], [at[0], at[0] + SECOND], at[0] + SECOND / 2).next_at == at[0] + SECOND * 2


def test_what_is_too_much_to_walk_is_said() -> None:
    found = owed(cron(), NOON, [], NOON + SECOND * 100, most=10)
    assert (len(found.times), found.beyond, found.next_at) == (10, NOON + SECOND * 10, NOON + SECOND * 100)
    ticks = judge(found, NOON + SECOND * 100, "latest", paused=False, grace_seconds=1, coalesce=True).ticks
    assert ticks[-1].outcome == "missed"
    assert "more than 10" in str(ticks[-1].reason)


def test_a_trigger_that_ends() -> None:
    trigger = DateTrigger(NOON, timezone="UTC")
    assert owed(trigger, NOON, [], NOON + SECOND) == Owed((NOON,), True, None)
    assert owed(trigger, NOON, [NOON], NOON + SECOND) == Owed((), False, None)


# What cannot be kept


@pytest.mark.parametrize(
    ("trigger", "id", "why"),
    [
        (CronTrigger(second="*/1", jitter=3), "a", "has jitter"),
        (cron(), None, "drawn by chance"),
    ],
)
def test_jobs_that_no_other_process_knows_are_refused(trigger: Any, id: str | None, why: str) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(print, trigger, id=id)
    gate = LeaderGate(scheduler, LeaseQueue())
    with pytest.raises(ConfigurationError, match=why):
        gate.start()
    assert not scheduler.running


def test_schedulers_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="BackgroundScheduler or an AsyncIOScheduler"):
        LeaderGate(object(), LeaseQueue())
    with pytest.raises(ConfigurationError, match="BackgroundScheduler or an AsyncIOScheduler"):
        LeaderGate(BlockingScheduler(timezone="UTC"), LeaseQueue())
    with pytest.raises(ConfigurationError, match="catch_up is one of"):
        LeaderGate(BackgroundScheduler(timezone="UTC"), LeaseQueue(), catch_up="some")
    pooled = BackgroundScheduler(timezone="UTC", executors={"default": ProcessPoolExecutor(1)})
    with pytest.raises(ConfigurationError, match="process pool"):
        LeaderGate(pooled, LeaseQueue()).start()
    with pytest.raises(ConfigurationError, match="no job of a scheduler"):
        current_run()


def test_the_package_loads_no_apscheduler() -> None:
    code = "import sys, leasequeue, leasequeue.contrib, leasequeue.cli.main; sys.exit('apscheduler' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# What becomes of due times


@direct_only
@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_what_fell_between_two_leaders(database: Database, make: Make, catch_up: str) -> None:
    scheduler = BackgroundScheduler(timezone="UTC")
    ran: list[dt.datetime] = []
    scheduler.add_job(
        lambda: ran.append(current_run().due_at), cron(), id="sweep", misfire_grace_time=2, max_instances=3
    )
    defined(database, "sweep", 6)
    gate = make(database, scheduler, catch_up=catch_up)
    gate.start()
    until(lambda: outcomes(database, "sweep")["fired"] >= 1, 10, "the first due time of this leader")
    gate.stop()
    found = outcomes(database, "sweep")
    assert found["redefined"] == 1
    if catch_up == "latest":
        assert found["caught_up"] == 1
        assert found["coalesced"] >= 4
    elif catch_up == "all":
        assert found["caught_up"] >= 5
        assert found.keys() == {"redefined", "caught_up", "fired"}
    else:
        assert found["caught_up"] == 1
        assert found["missed"] >= 3
    without_gaps(database, "sweep")
    assert sorted(ran) == [at for at, outcome, _ in ledger(database, "sweep") if outcome in ("fired", "caught_up")]


@direct_only
def test_what_apscheduler_drops_has_its_reason(database: Database, make: Make) -> None:
    scheduler = BackgroundScheduler(timezone="UTC", executors={"default": ThreadPoolExecutor(1)})
    busy, go_on = threading.Event(), threading.Event()

    def blocks() -> None:
        busy.set()
        go_on.wait(20)

    late = CronTrigger(second="*/1", timezone="UTC")
    scheduler.add_job(blocks, cron(), id="blocks")
    scheduler.add_job(lambda: None, late, id="waits", max_instances=30, misfire_grace_time=1)
    gate = make(database, scheduler)
    gate.start()
    assert busy.wait(10)
    until(lambda: outcomes(database, "blocks")["overlapped"] >= 2, 10, "due times beside the one that runs")
    go_on.set()
    until(lambda: outcomes(database, "waits")["missed"] >= 1, 10, "what waited for too long")
    scheduler.pause()
    last = ledger(database, "blocks")[-1][0]
    until(lambda: dt.datetime.now(dt.UTC) > last + SECOND * 3, 10, "due times to go by")
    scheduler.resume()
    until(lambda: outcomes(database, "blocks")["coalesced"] >= 1, 10, "what was coalesced")
    until(lambda: ledger(database, "blocks")[-1][1] == "fired", 10, "the run that stands for it")
    gate.stop()
    for job in ("blocks", "waits"):
        without_gaps(database, job)
        assert all(reason for _, outcome, reason in ledger(database, job) if outcome != "fired")


@direct_only
def test_two_gates_one_fires_and_the_other_goes_on_in_its_phase(database: Database, make: Make) -> None:
    ran: list[tuple[str, dt.datetime]] = []
    gates = {}
    for name in ("blue", "green"):
        scheduler = BackgroundScheduler(timezone="UTC")
        # An interval begins when its process does: each has a phase of its own.
        scheduler.add_job(
            lambda name=name: ran.append((name, current_run().due_at)), IntervalTrigger(seconds=1), id="sweep"
        )
        gates[name] = make(database, scheduler, owner=name)
    gates["blue"].start()
    until(lambda: gates["blue"].is_leader, 10)
    gates["green"].start()
    until(lambda: len(ran) >= 1, 10, "a run")
    assert not gates["green"].is_leader
    gates["blue"].stop()
    assert gates["blue"].term is None
    until(lambda: {name for name, _ in ran} == {"blue", "green"}, 10, "green to run")
    gates["green"].stop()
    assert sorted(at for _, at in ran) == [at for at, outcome, _ in ledger(database, "sweep") if outcome != "redefined"]
    without_gaps(database, "sweep")


@direct_only
def test_another_trigger_begins_its_times_anew(database: Database, make: Make) -> None:
    defined(database, "daily", 3 * 86400, "APScheduler cron[hour='9'] in UTC")
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(lambda: None, CronTrigger(hour=10, timezone="UTC"), id="daily")
    gate = make(database, scheduler)
    gate.start()
    until(lambda: gate.is_leader, 10)
    assert [(outcome, reason) for _, outcome, reason in ledger(database, "daily")] == [
        ("redefined", "APScheduler cron[hour='9'] in UTC"),
        ("redefined", "APScheduler cron[hour='10'] in UTC"),
    ]
    scheduler.reschedule_job("daily", trigger=CronTrigger(hour=11, timezone="UTC"))
    until(lambda: outcomes(database, "daily")["redefined"] == 3, 10, "the change to be written")


@direct_only
def test_a_commit_whose_answer_was_lost_counts(database: Database, make: Make) -> None:
    """The row is there and it is ours: the job runs, once."""
    ran: list[dt.datetime] = []
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(lambda: ran.append(current_run().due_at), cron(), id="sweep")
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        gate = make(database, scheduler, url=url)
        gate.start()
        until(lambda: gate.is_leader, 10)
        lost = proxy.lose_reply("^COMMIT")
        assert lost.wait(10)
        count = len(ran)
        until(lambda: len(ran) >= count + 2, 10, "runs after it")
        gate.stop()
    assert ran == [at for at, outcome, _ in ledger(database, "sweep") if outcome in ("fired", "caught_up")]
    without_gaps(database, "sweep")


@direct_only
def test_a_function_that_settles_leaves_both_or_none(database: Database, make: Make) -> None:
    database.execute("CREATE TABLE effect (due_at timestamptz)")
    scheduler = BackgroundScheduler(timezone="UTC")
    gate = make(database, scheduler)
    calls: list[dt.datetime] = []

    @settles
    def sweep() -> None:
        this = current_run()
        calls.append(this.due_at)
        with gate.lq.begin() as conn:
            this.settle(conn)
            conn.execute(text("INSERT INTO effect VALUES (:at)"), {"at": this.due_at})
            if len(calls) == 1:
                raise ValueError("as asked")

    scheduler.add_job(sweep, cron(), id="sweep")
    gate.start()
    until(lambda: outcomes(database, "sweep")["fired"] >= 1 and len(calls) >= 2, 10, "a run that succeeds")
    gate.stop()
    rows = ledger(database, "sweep")
    assert [reason for at, _, reason in rows if at == calls[0]] == ["its function failed: ValueError"]
    effects = [at for (at,) in database.execute("SELECT due_at FROM effect ORDER BY 1")]
    assert effects == [at for at, outcome, _ in rows if outcome in ("fired", "caught_up")]


@direct_only
def test_an_asyncio_scheduler(database: Database, make: Make) -> None:
    ran: list[dt.datetime] = []
    loop_threads = set()

    async def sweep() -> None:
        loop_threads.add(threading.current_thread())
        ran.append(current_run().due_at)

    async def main() -> None:
        scheduler = AsyncIOScheduler(timezone="UTC")
        scheduler.add_job(sweep, cron(), id="sweep", max_instances=3)
        scheduler.add_job(lambda: ran.append(current_run().due_at), cron(), id="in_thread", max_instances=3)
        for job in ("sweep", "in_thread"):
            defined(database, job, 3)
        async with make(database, scheduler, catch_up="all"):
            while not all(outcomes(database, job)["fired"] for job in ("sweep", "in_thread")):
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(main(), 15))
    assert loop_threads == {threading.current_thread()}
    for job in ("sweep", "in_thread"):
        without_gaps(database, job)
        assert outcomes(database, job)["caught_up"] >= 2
    rows = ledger(database, "sweep") + ledger(database, "in_thread")
    assert sorted(ran) == sorted(at for at, outcome, _ in rows if outcome in ("fired", "caught_up"))
