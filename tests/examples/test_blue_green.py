"""``examples/blue_green``: two services, killed, stopped, deployed and cut off; every due time counted from the database."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from apscheduler.triggers.cron import CronTrigger

from leasequeue.cron import Spec
from leasequeue.embedded.watch import free_port
from tests.support.databases import Database
from tests.support.waiting import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.direct_only,  # what goes through a pooler is tested with the leases and the ticker; this takes seconds
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "blue_green"
TTL = 2.0


class Service:
    """One of the services as a process (with its children) of its own."""

    def __init__(self, kind: str, name: str, url: str, log: Path) -> None:
        self.kind, self.name, self.log = kind, name, log
        self.port = free_port()
        scheduled = [
            "-m",
            "leasequeue.cli.main",
            "worker",
            "scheduled:lq",
            "--ttl",
            f"{TTL:g}",
            "--shutdown-timeout",
            "3",
        ]
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", *(scheduled if kind == "scheduled" else [f"{kind}.py"])],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=EXAMPLE, start_new_session=True,
                env=os.environ | {
                    "DATABASE_URL": url, "SERVICE": name, "PORT": str(self.port), "SWEEP_SECONDS": "1",
                    "TTL_SECONDS": f"{TTL:g}",
                },
            )  # fmt: skip

    def page(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
            return json.load(answer)

    def leads(self) -> bool:
        return self.page("/leader")["leads"] is True

    def started(self) -> Service:
        def is_there() -> bool:
            if self.kind == "scheduled":
                return "started: database" in self.log.read_text()
            return bool(self.page("/leader"))

        until(lambda: self.process.poll() is not None or is_there(), 20, f"{self.name} to serve", every=0.05)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def signal(self, number: int) -> None:
        """To all of it, as a machine that loses power or is suspended."""
        os.killpg(self.process.pid, number)

    def stop(self) -> None:
        """As a deploy does: SIGTERM to the main process."""
        self.process.send_signal(signal.SIGTERM)
        self.ended()

    def ended(self) -> None:
        assert self.process.wait(60) == 0, self.log.read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()


Start = Callable[[str, str, Database], Service]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Service] = []

    def make(kind: str, name: str, database: Database) -> Service:
        made.append(Service(kind, name, database.url, tmp_path / f"{len(made)}-{name}.log"))
        return made[-1]

    yield make
    for each in made:
        each.close()
        print(f"---- {each.name}\n{each.log.read_text()[-4000:]}")


def ran_at(database: Database) -> None:
    """Wait until a sweep ran that is due from now on."""
    count = "SELECT count(*) FROM sweep WHERE job = 'sweep' AND due_at > %s"
    now = database.scalar("SELECT clock_timestamp()")
    until(lambda: database.scalar(count, (now,)), 15, "sweeps to go on")


def begin(start: Start, kind: str, database: Database) -> tuple[Service, Service]:
    """The one that leads, and the other; of two workers, neither does."""
    services = [start(kind, name, database) for name in ("blue", "green")]
    for each in services:
        each.started()
    if kind == "gated":
        until(lambda: any(each.leads() for each in services), 10, "one of them to lead", every=0.05)
        services.sort(key=lambda each: not each.leads())
        assert [each.leads() for each in services] == [True, False]
    ran_at(database)
    return services[0], services[1]


def taken_over(database: Database, kind: str, survivor: Service, since: float) -> float:
    """Wait until the survivor leads, has run a sweep, and nothing of before is open; seconds since then."""
    if kind == "gated":
        until(survivor.leads, 10, f"{survivor.name} to lead", every=0.05)
    led = time.time()
    sweeps = "SELECT count(*) FROM sweep WHERE service = %s AND at > to_timestamp(%s)"
    until(lambda: database.scalar(sweeps, (survivor.name, since)), 10, f"a sweep by {survivor.name}")
    if kind == "scheduled":
        open_jobs = "SELECT count(*) FROM leasequeue_job WHERE CAST(meta ->> 'tick' AS timestamptz) <= to_timestamp(%s)"
        until(lambda: database.scalar(open_jobs, (since,)) == 0, 10, "no due time of before to be open")
        led = time.time()
    took = led - since
    print(f"{kind}: taken over after {took:.2f} s with a ttl of {TTL:g} s")
    return took


def expected(kind: str, job: str, after: dt.datetime, until_: dt.datetime) -> set[dt.datetime]:
    """All due times of the period, from the schedule alone."""
    if kind == "scheduled":
        cron = {"sweep": "*/1 * * * * *", "daily": "0 21 * * *", "weekly": "0 9 * * mon"}[job]
        return set(Spec.make(cron, "UTC").between(after, until_, 1000))
    triggers: dict[str, dict[str, Any]] = {
        "sweep": {"second": "*/1"},
        "daily": {"hour": 21},
        "weekly": {"day_of_week": "mon", "hour": 9},
    }
    trigger = CronTrigger(timezone="UTC", **triggers[job])
    found, at = set(), trigger.get_next_fire_time(after, after + dt.timedelta(days=8))
    while at is not None and at <= until_:
        found.add(at.astimezone(dt.UTC))
        at = trigger.get_next_fire_time(at, at + dt.timedelta(days=8))
    return found


def account(database: Database, kind: str, *services: Service) -> Counter[str]:
    """Each due time has its row, each that ran its one effect; counts the outcomes."""
    now = database.scalar("SELECT clock_timestamp()")
    until(
        lambda: database.scalar("SELECT max(due_at) > %s FROM leasequeue_tick WHERE schedule = 'sweep'", (now,)),
        15,
        "a due time after now",
    )
    for service in services:
        service.process.send_signal(signal.SIGTERM)
    for service in services:
        service.ended()
    rows = database.execute("SELECT schedule, due_at, outcome, reason FROM leasequeue_tick ORDER BY due_at")
    effects = database.execute("SELECT job, due_at, count(*) FROM sweep GROUP BY 1, 2")
    assert [row for row in effects if row[2] != 1] == []
    (begun, last) = database.execute("SELECT min(due_at), max(due_at) FROM leasequeue_tick WHERE schedule = 'sweep'")[0]
    if kind == "scheduled":
        begun -= dt.timedelta(microseconds=1)  # a schedule begins with its first due time, a gate with its own row
    ran = set()
    for job in ("sweep", "daily", "weekly"):
        settled = {due_at for name, due_at, outcome, _ in rows if name == job and outcome != "redefined"}
        assert settled == expected(kind, job, begun, last), job
        ran |= {(job, at) for name, at, outcome, _ in rows if name == job and outcome in ("fired", "caught_up")}
    if kind == "scheduled":  # a job that had not begun when its worker was stopped waits for the next worker
        ran -= {
            (job, at)
            for job, at in database.execute(
                "SELECT args ->> 'job', CAST(meta ->> 'tick' AS timestamptz) FROM leasequeue_job WHERE meta ->> 'tick' > %s",
                (now.astimezone(dt.UTC).isoformat(),),
            )
        }
    assert {(job, at) for job, at, _ in effects} == ran
    assert all(reason for _, _, outcome, reason in rows if outcome != "fired"), rows
    outcomes = Counter(outcome for _, _, outcome, _ in rows)
    print(dict(outcomes))
    return outcomes


def test_as_it_was_both_lead_and_nobody_holds_the_lock(start: Start, database: Database) -> None:
    # One after the other: at the same moment the second finds the lock held for as long as the first's connection is out.
    services = [start("as_it_was", name, database).started() for name in ("blue", "green")]
    assert [service.leads() for service in services] == [True, True]
    assert database.scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
    doubles = (
        "SELECT count(*) FROM (SELECT FROM sweep GROUP BY job, due_at HAVING count(DISTINCT service) = 2) AS doubled"
    )
    until(lambda: database.scalar(doubles), 10, "a sweep that ran twice")
    assert {run["service"] for run in services[0].page("/runs")} == {"blue", "green"}


@pytest.mark.parametrize("kind", ["gated", "scheduled"])
class TestAsItIs:
    def test_the_one_that_fires_is_killed(self, start: Start, database: Database, kind: str) -> None:
        blue, green = begin(start, kind, database)
        at = time.time()
        blue.signal(signal.SIGKILL)
        assert taken_over(database, kind, green, at) < TTL + 1.0
        account(database, kind, green)

    def test_the_one_that_fires_is_stopped_for_longer_than_its_lease(
        self, start: Start, database: Database, kind: str
    ) -> None:
        blue, green = begin(start, kind, database)
        at = time.time()
        blue.signal(signal.SIGSTOP)
        assert taken_over(database, kind, green, at) < TTL + 1.0
        until(lambda: time.time() > at + TTL + 0.5, 10, "the ttl to be over")
        blue.signal(signal.SIGCONT)
        if kind == "gated":
            until(lambda: not blue.leads(), 2, "blue to know that it leads no more")
        else:
            ran_at(database)
        account(database, kind, blue, green)
        if kind == "gated":  # one may have been on its way to its thread, where it finds that it may not begin
            assert blue.log.read_text().rpartition("leads no more")[2].count("Running job") <= 1

    def test_green_is_deployed_and_blue_is_stopped(self, start: Start, database: Database, kind: str) -> None:
        blue, green = begin(start, kind, database)
        at = time.time()
        blue.stop()
        assert taken_over(database, kind, green, at) < TTL + 1.0
        outcomes = account(database, kind, green)
        assert outcomes["missed"] == 0

    def test_the_database_is_restarted(self, start: Start, own_database: Database, kind: str) -> None:
        blue, green = begin(start, kind, own_database)
        own_database.server.restart_immediate()
        ran_at(own_database)
        account(own_database, kind, blue, green)
