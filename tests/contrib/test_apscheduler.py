"""A scheduler behind a LeaderGate, in this process: what becomes of each due time, and what is refused."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED
from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from sqlalchemy import event, text

from leasequeue import LeaseQueue
from leasequeue.contrib.apscheduler import LeaderGate, current_run, settles
from leasequeue.contrib.apscheduler import ledger as ledgers
from leasequeue.contrib.apscheduler.accounting import Owed, judge, owed
from leasequeue.db.gate import Tick
from leasequeue.errors import ConfigurationError, DatabaseUnavailable
from leasequeue.lease.handle import Lease
from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.waiting import until

direct_only = pytest.mark.direct_only  # the ledger's statements are plain ones; what a pooler does is tested elsewhere
TTL = dt.timedelta(seconds=3)
SECOND = dt.timedelta(seconds=1)
STEP = dt.timedelta(milliseconds=250)
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


def often() -> IntervalTrigger:
    seconds: Any = STEP.total_seconds()  # its annotation knows whole ones only
    return IntervalTrigger(seconds=seconds, timezone="UTC")


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


def without_gaps(database: Database, make: Make, job: str, trigger: Any, step: dt.timedelta = SECOND) -> None:
    """What a leader could not settle any more before it resigned, as on a machine that stalls, is left to the next one:
    each due time has its row once another has been elected, which has the job paused and so leaves nothing itself."""
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(print, trigger, id=job, next_run_time=None)
    gate = make(database, scheduler)
    gate.start()
    until(lambda: gate.since, 30, "the next leader")
    gate.stop()
    settled = [due_at for due_at, outcome, _ in ledger(database, job) if outcome != "redefined"]
    assert [b - a for a, b in pairwise(settled)] == [step] * (len(settled) - 1)


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
        (OrTrigger([cron(), CronTrigger(second="*/1", jitter=3)]), "a", "has jitter"),
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


def test_jobs_that_no_other_process_knows_are_removed_later_too(caplog: pytest.LogCaptureFixture) -> None:
    lq = LeaseQueue()
    lq.configure(url="postgresql://nobody@127.0.0.1:1/nothing")  # it never leads, and checks all the same
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_job(print, cron(), id="changed")
    gate = LeaderGate(scheduler, lq, ttl=TTL)
    gate.start()
    try:
        scheduler.add_job(print, cron(), name="anonymous")
        scheduler.add_job(print, CronTrigger(second="*/1", jitter=3), id="jittered")
        scheduler.reschedule_job("changed", trigger=CronTrigger(second="*/1", jitter=3))
        store = MemoryJobStore()
        other = BackgroundScheduler(timezone="UTC")
        other.add_jobstore(store)
        other.start(paused=True)
        other.add_job(print, cron(), name="brought")
        scheduler.add_jobstore(store, "brought")
        scheduler.add_job(print, cron(), id="good")
        assert [job.id for job in scheduler.get_jobs()] == ["good"]
        scheduler.add_executor(ProcessPoolExecutor(1), "pool")
        assert "pool" not in scheduler._executors
        other.shutdown()
    finally:
        gate.stop()
        lq.dispose()
    said = [
        record.message
        for record in caplog.records
        if record.name == "leasequeue.gate" and record.levelno == logging.ERROR
    ]
    assert len(said) == 5
    for words in (
        "'anonymous' has an id",
        "'jittered' has jitter",
        "'changed' has jitter",
        "'brought' has an id",
        "process pool",
    ):
        assert [words in each for each in said].count(True) == 1, words


@direct_only
def test_a_job_that_came_past_the_check_is_not_run(
    database: Database, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """As another process puts it into a shared job store: no event of this one tells of it."""
    scheduler = BackgroundScheduler(timezone="UTC")
    ran: list[str] = []
    scheduler.add_job(lambda: ran.append("good"), often(), id="good")
    gate = make(database, scheduler)
    gate.start()
    until(lambda: len(ran) >= 1, 10, "a run")
    with scheduler._listeners_lock:
        listeners, scheduler._listeners = scheduler._listeners, []
    scheduler.add_job(lambda: ran.append("anonymous"), often())
    scheduler._listeners = listeners
    until(lambda: "drawn by chance" in caplog.text, 10, "the refusal")
    count = len(ran)
    until(lambda: len(ran) >= count + 2, 10, "the others to go on")
    gate.stop()
    assert set(ran) == {"good"}


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
        lambda: ran.append(current_run().due_at), cron(), id="sweep", misfire_grace_time=60, max_instances=3
    )
    defined(database, "sweep", 120 if catch_up == "none" else 6)
    gate = make(database, scheduler, catch_up=catch_up)
    began = dt.datetime.now(dt.UTC)
    gate.start()
    until(lambda: outcomes(database, "sweep")["fired"] >= 1, 30, "the first due time of this leader")
    gate.stop()
    # What it found when it was elected; what came due since is judged by how quick this machine is.
    fell = [outcome for due_at, outcome, _ in ledger(database, "sweep") if due_at <= began]
    assert fell[0] == "redefined"
    assert outcomes(database, "sweep")["redefined"] == 1
    if catch_up == "all":
        assert len(fell) >= 6
        assert set(fell[1:]) == {"caught_up"}
    else:
        settled = [outcome for _, outcome, _ in ledger(database, "sweep") if outcome != "redefined"]
        left = settled[: settled.index("caught_up")]
        assert len(left) >= len(fell) - 2, "one run stands for all of them"
        missed = left.count("missed")
        assert left == ["missed"] * missed + ["coalesced"] * (len(left) - missed)
        assert 60 <= missed <= 120 if catch_up == "none" else missed == 0
        assert len(left) - missed >= 4
    without_gaps(database, make, "sweep", cron())
    assert sorted(ran) == [at for at, outcome, _ in ledger(database, "sweep") if outcome in ("fired", "caught_up")]


@direct_only
def test_what_apscheduler_drops_has_its_reason(database: Database, make: Make) -> None:
    scheduler = BackgroundScheduler(timezone="UTC", executors={"default": ThreadPoolExecutor(1)})
    busy, go_on = threading.Event(), threading.Event()

    def blocks() -> None:
        busy.set()
        go_on.wait(20)

    scheduler.add_job(blocks, often(), id="blocks")
    scheduler.add_job(lambda: None, often(), id="waits", max_instances=30, misfire_grace_time=1)
    gate = make(database, scheduler)
    gate.start()
    assert busy.wait(30)
    until(lambda: outcomes(database, "blocks")["overlapped"] >= 6, 10, "due times beside the one that runs")
    go_on.set()
    until(lambda: outcomes(database, "waits")["missed"] >= 1, 10, "what waited for too long")
    scheduler.pause()
    last = ledger(database, "blocks")[-1][0]
    until(lambda: dt.datetime.now(dt.UTC) > last + STEP * 4, 10, "due times to go by")
    scheduler.resume()
    until(lambda: outcomes(database, "blocks")["coalesced"] >= 1, 10, "what was coalesced")
    until(lambda: ledger(database, "blocks")[-1][1] == "fired", 10, "the run that stands for it")
    gate.stop()
    for job in ("blocks", "waits"):
        without_gaps(database, make, job, often(), STEP)
        assert all(reason for _, outcome, reason in ledger(database, job) if outcome != "fired")


@direct_only
def test_two_gates_one_fires_and_the_other_goes_on_in_its_phase(database: Database, make: Make) -> None:
    ran: list[tuple[str, dt.datetime]] = []
    gates = {}
    for name in ("blue", "green"):
        scheduler = BackgroundScheduler(timezone="UTC")
        # An interval begins when its process does: each has a phase of its own.
        scheduler.add_job(lambda name=name: ran.append((name, current_run().due_at)), often(), id="sweep")
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
    rows = [row for row in ledger(database, "sweep") if row[1] != "redefined"]
    assert sorted(at for _, at in ran) == [at for at, outcome, _ in rows if outcome in ("fired", "caught_up")]
    assert all(outcome in ("fired", "caught_up", "coalesced") for _, outcome, _ in rows)
    without_gaps(database, make, "sweep", often(), STEP)


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
    scheduler.add_job(lambda: ran.append(current_run().due_at), often(), id="sweep")
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        gate = make(database, scheduler, url=url)
        gate.start()
        until(lambda: gate.is_leader, 10)
        lost = proxy.lose_reply("^COMMIT")
        assert lost.wait(30)
        count = len(ran)
        until(lambda: len(ran) >= count + 2, 10, "runs after it")
        gate.stop()
    assert ran == [at for at, outcome, _ in ledger(database, "sweep") if outcome in ("fired", "caught_up")]
    without_gaps(database, make, "sweep", often(), STEP)


@direct_only
@pytest.mark.parametrize("why", ["full disk", "lock", "outage"])
def test_a_row_that_cannot_be_written_is_not_waited_for_without_end(
    database: Database, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Nor is the run begun; it is said, and written once that can be done. The lease is renewed all the time."""
    monkeypatch.setattr(ledgers, "STATEMENT_SECONDS", 0.3)
    monkeypatch.setattr(ledgers, "GIVE_UP_SECONDS", 0.5)
    ran: list[dt.datetime] = []
    failed: list[tuple[dt.datetime, BaseException]] = []
    tries: list[bool] = []
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.add_listener(lambda event: failed.append((event.scheduled_run_time, event.exception)), EVENT_JOB_ERROR)
    gate = make(database, scheduler)

    def of_the_run(*_: object) -> None:
        if threading.current_thread().name.startswith("ThreadPoolExecutor"):
            tries.append(True)
            if why == "outage":
                raise DatabaseUnavailable("as asked")

    gate.start()
    until(lambda: gate.is_leader, 10)
    term = gate.term
    event.listen(gate.lq.engine, "begin", of_the_run)
    blocker = database.connect() if why == "lock" else None
    if blocker is not None:
        blocker.execute("LOCK TABLE leasequeue_tick IN SHARE MODE")
    if why == "full disk":
        database.execute(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN IF NEW.outcome = 'fired' THEN RAISE 'no space left' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$"
        )
        database.execute(
            "CREATE TRIGGER full_disk BEFORE INSERT ON leasequeue_tick FOR EACH ROW EXECUTE FUNCTION full_disk()"
        )
    scheduler.add_job(lambda: ran.append(current_run().due_at), often(), id="sweep")
    try:
        until(lambda: failed, 10, "a run to be given up")
        assert ran == []
        assert len(tries) <= len(failed) + 1 or why == "outage"
    finally:  # or a thread that waits for it would keep the test from its end
        event.remove(gate.lq.engine, "begin", of_the_run)
        if blocker is not None:
            blocker.close()
    if why == "full disk":
        database.execute("DROP TRIGGER full_disk ON leasequeue_tick")
    until(lambda: ran, 10, "a run after it")
    gate.stop()
    assert gate.leader.term is None
    name = {"full disk": "DiskFull", "lock": "QueryCanceled", "outage": "DatabaseUnavailable"}[why]
    assert f"does not run: its row in the ledger could not be written ({name})" in caplog.text
    assert (caplog.text.count("cannot be reached, trying again") == 1) is (why == "outage")
    assert f"in term {term}" in database.scalar("SELECT max(decided_by) FROM leasequeue_tick WHERE outcome = 'fired'")
    first = failed[0][0].astimezone(dt.UTC)
    rows = {at: outcome for at, outcome, _ in ledger(database, "sweep")}
    assert first not in ran
    if why != "lock":  # whose row may have waited for the same lock
        assert rows[first] == "missed"


@direct_only
@pytest.mark.parametrize("broken", [False, True], ids=["fenced", "broken"])
@pytest.mark.parametrize("settled", [False, True], ids=["plain", "settles"])
def test_a_leader_of_the_past_begins_nothing(
    database: Database, make: Make, monkeypatch: pytest.MonkeyPatch, settled: bool, broken: bool
) -> None:
    """Stopped after it looked at its own clock; another leads when it goes on. Only the fence knows.

    Without it the run is one of two leaders' at a time: shown by the variant that is broken on purpose.
    """
    database.execute("CREATE TABLE effect (due_at timestamptz)")
    at_the_door, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def checked(lease: Lease) -> None:
        if threading.current_thread().name.startswith("ThreadPoolExecutor"):
            at_the_door.set()
            assert go_on.wait(20)

    def effect(lq: LeaseQueue) -> None:
        with lq.begin() as conn:
            if settled:
                current_run().settle(conn)
            conn.execute(text("INSERT INTO effect VALUES (:at)"), {"at": current_run().due_at})

    past, present = (BackgroundScheduler(timezone="UTC") for _ in range(2))
    gate, other = make(database, past), make(database, present)
    past.add_job((settles if settled else lambda it: it)(lambda: effect(gate.lq)), often(), id="sweep")
    past.add_listener(lambda _: ended.set(), EVENT_JOB_ERROR | EVENT_JOB_EXECUTED)
    monkeypatch.setattr(Lease, "check", checked)
    if broken:
        monkeypatch.setattr(Lease, "fence", lambda lease, conn: None)
    gate.start()
    assert at_the_door.wait(30)
    term = gate.term
    other.start()

    def taken() -> bool:
        if not other.is_leader:
            database.execute("UPDATE leasequeue_lease SET expires_at = clock_timestamp() WHERE term = %s", (term,))
        return other.is_leader

    until(taken, 10, "the other to lead")
    go_on.set()
    assert ended.wait(30)
    gate.stop()
    other.stop()
    of_the_past = database.execute(
        "SELECT due_at FROM leasequeue_tick WHERE decided_by LIKE %s AND outcome IN ('fired', 'caught_up')",
        (f"% in term {term}",),
    )
    effects = database.execute("SELECT due_at FROM effect")
    assert (len(of_the_past), len(effects)) == ((1, 1) if broken else (0, 0))


@direct_only
def test_a_function_that_settles_leaves_both_or_none(
    database: Database, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE effect (due_at timestamptz)")
    scheduler = BackgroundScheduler(timezone="UTC")
    gate = make(database, scheduler)
    calls: list[dt.datetime] = []
    noted: list[dt.datetime] = []
    note = gate.note

    def spy(job_id: str, ticks: Sequence[Tick]) -> None:
        noted.extend(tick.due_at for tick in ticks)
        note(job_id, ticks)

    monkeypatch.setattr(gate, "note", spy)

    @settles
    def sweep() -> None:
        this = current_run()
        calls.append(this.due_at)
        with gate.lq.begin() as conn:
            this.settle(conn)
            conn.execute(text("INSERT INTO effect VALUES (:at)"), {"at": this.due_at})
            if len(calls) == 1:
                raise ValueError("as asked")

    scheduler.add_job(sweep, often(), id="sweep", misfire_grace_time=None, coalesce=False, max_instances=9)
    gate.start()
    until(lambda: outcomes(database, "sweep")["fired"] >= 2, 10, "runs that succeed")
    gate.stop()
    rows = ledger(database, "sweep")
    assert noted == calls[:1]  # what is settled is not settled again
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

    asyncio.run(asyncio.wait_for(main(), 60))
    assert loop_threads == {threading.current_thread()}
    for job in ("sweep", "in_thread"):
        without_gaps(database, make, job, cron())
        assert outcomes(database, job)["caught_up"] >= 2
    rows = ledger(database, "sweep") + ledger(database, "in_thread")
    assert sorted(ran) == sorted(at for at, outcome, _ in rows if outcome in ("fired", "caught_up"))
