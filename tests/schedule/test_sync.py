"""Which release decides what a schedule is, and what is done to schedules at run time."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest

from leasequeue import (
    ConfigurationError,
    DuplicateSchedule,
    InvalidArguments,
    LeaseQueue,
    ScheduleRefused,
    SchemaMismatch,
)
from leasequeue.cron import Spec
from leasequeue.db.schedules import Definition, Row, canonical, read
from leasequeue.db.statement import Target, drive
from leasequeue.ops.release import Release
from leasequeue.ops.schedules import Synced, sync
from tests.schedule.conftest import MakeHand
from tests.schedule.hand import Hand
from tests.support.databases import Database

NINE = canonical(json.dumps(Spec.make("0 9 * * *", "UTC").to_json()))
TEN = canonical(json.dumps(Spec.make("0 10 * * *", "UTC").to_json()))
OLD = Definition("s", "job", "{}", "default", 0, NINE, decorated=True)
NEW = dataclasses.replace(OLD, spec=TEN)


@pytest.fixture
def write(database: Database, hand: MakeHand) -> Writer:
    return Writer(hand(database))


class Writer:
    """What supervisors do at their start."""

    def __init__(self, ticker: Hand) -> None:
        self._ticker = ticker

    def __call__(self, definition: Definition, release: Release) -> str:
        done: Synced = self._ticker._drive(sync(Target("here"), "public", definition, release, "a test"))
        return done.change

    def row(self) -> Row:
        found = drive(read("public", "s"), lambda statement, params: self._ticker.link.run(statement.text, params))
        assert found is not None
        return found


def test_blue_and_green_start_again_and_again(database: Database, write: Writer) -> None:
    """The newer definition stays, whichever side is restarted; named by release."""
    blue, green = Release("2026.1"), Release("2026.2")
    assert write(OLD, blue) == "added"
    assert write(OLD, blue) == "unchanged"
    assert write(NEW, green) == "changed"
    for _ in range(2):
        assert write(OLD, blue) == "kept"
        assert write(NEW, green) == "unchanged"
    row = write.row()
    assert (row.definition, row.release) == (NEW, "2026.2")
    events = database.execute("SELECT outcome, reason, decided_by FROM leasequeue_tick ORDER BY due_at")
    assert [event[::2] for event in events] == [("redefined", "a test")] * 2
    assert events[0][1] == "added"
    assert "redefined by release 2026.2: spec was" in events[1][1]
    # Rolled back by a deployment of its own: that is a newer one.
    assert write(OLD, Release("2026.1-again")) == "changed"
    assert write(NEW, green) == "kept"
    assert write(NEW, dataclasses.replace(green, force=True)) == "changed"


def test_what_was_written_by_hand_stays_until_something_newer(write: Writer) -> None:
    named, by_hand = Release("r3"), Release(force=True)
    assert write(OLD, named) == "added"
    assert write(NEW, by_hand) == "changed"
    assert write(OLD, named) == "kept", "a restart of the release that was overridden"
    assert write(OLD, Release("r4")) == "changed"


def test_releases_without_a_name(write: Writer) -> None:
    """Each definition is then a release of its own, as old as its first appearance."""
    nameless = Release()
    assert write(OLD, nameless) == "added"
    assert write(NEW, nameless) == "changed"
    assert write(OLD, nameless) == "kept"
    assert write(NEW, nameless) == "unchanged"


def test_the_time_of_deployment_decides_where_it_is_said(write: Writer) -> None:
    now = dt.datetime.now(dt.UTC)
    assert write(NEW, Release("b", now)) == "added"
    assert write(OLD, Release("a", now - dt.timedelta(hours=1))) == "kept"
    assert write(OLD, Release("c", now + dt.timedelta(hours=1))) == "changed"
    assert write(NEW, Release("b", now)) == "kept"


def test_one_release_that_is_edited_in_place(write: Writer) -> None:
    """As in development, where its name is always the same."""
    for definition, change in ((OLD, "added"), (NEW, "changed"), (OLD, "changed"), (OLD, "unchanged")):
        assert write(definition, Release("dev")) == change


def test_next_at_survives_what_does_not_change_the_times(database: Database, write: Writer) -> None:
    write(OLD, Release("1"))
    database.execute("UPDATE leasequeue_schedule SET next_at = '2031-01-01T09:00:00Z', paused_at = now()")
    paused = database.scalar("SELECT paused_at FROM leasequeue_schedule")
    assert write(OLD, Release("2")) == "unchanged"
    assert write(dataclasses.replace(OLD, args='{"n": 1}'), Release("3")) == "changed"
    next_at = dt.datetime(2031, 1, 1, 9, tzinfo=dt.UTC)
    assert database.execute("SELECT next_at, paused_at, release FROM leasequeue_schedule") == [(next_at, paused, "3")]
    assert write(NEW, Release("4")) == "changed"
    assert database.scalar("SELECT next_at < now() + interval '25 hours' FROM leasequeue_schedule")
    assert database.scalar("SELECT paused_at FROM leasequeue_schedule") == paused, "a pause survives a deploy"


def test_what_is_due_stays_due_over_a_redefinition(database: Database, write: Writer) -> None:
    write(OLD, Release("1"))
    database.execute("UPDATE leasequeue_schedule SET next_at = now() - interval '1 minute'")
    before = database.scalar("SELECT next_at FROM leasequeue_schedule")
    assert write(NEW, Release("2")) == "changed"
    assert database.scalar("SELECT next_at FROM leasequeue_schedule") == before


def test_one_of_that_name_was_added_at_run_time(database: Database, write: Writer) -> None:
    database.execute("INSERT INTO leasequeue_schedule (name, task, spec) VALUES ('s', 'other', %s)", (TEN,))
    assert write(OLD, Release("1")) == "kept"
    assert database.execute("SELECT task, decorated FROM leasequeue_schedule") == [("other", False)]


# Decorated


def test_the_decorator_says_what_is_wrong() -> None:
    lq = LeaseQueue(tz="Europe/Kyiv")

    @lq.schedule("0 21 * * *", name="evening", arguments={"n": 2}, overlap="skip", jitter=dt.timedelta(minutes=1))
    @lq.schedule(every=dt.timedelta(minutes=15))
    @lq.task(name="nudge", queue="mail")
    def nudge(n: int = 1) -> None: ...

    by_name = {definition.name: definition for definition in lq.definitions()}
    assert by_name.keys() == {"nudge", "evening"}
    assert json.loads(by_name["evening"].spec) == {"cron": "0 21 * * *", "tz": "Europe/Kyiv"}
    assert json.loads(by_name["nudge"].spec)["every"] == 900
    assert by_name["evening"].args == '{"n": 2}'
    assert (by_name["evening"].queue, by_name["evening"].overlap) == ("mail", "skip")
    assert by_name["evening"].jitter_seconds == 60
    assert all(definition.decorated for definition in by_name.values())
    assert nudge.name == "nudge"

    with pytest.raises(DuplicateSchedule, match="name="):
        lq.schedule("@daily")(nudge)
    with pytest.raises(InvalidArguments, match="m"):
        lq.schedule("@daily", name="x", arguments={"m": 1})(nudge)
    with pytest.raises(ConfigurationError, match=r"above @lq\.task"):
        lq.schedule("@daily")(lambda: None)  # type: ignore[type-var]
    given: list[tuple[dict[str, Any], str]] = [
        ({"when": "61 * * * *"}, "no cron"),
        ({"when": "@daily", "tz": "Mars/Base"}, "Mars/Base"),
        ({}, "neither"),
        ({"when": "@daily", "every": dt.timedelta(1)}, "both"),
        ({"when": "@daily", "name": "y", "catch_up": "some"}, "latest"),
        ({"when": "@daily", "name": "y", "catch_up": "all", "overlap": "skip"}, "choose one"),
        ({"when": "@daily", "name": "y", "jitter": dt.timedelta(days=2)}, "at most a day"),
        ({"when": "@daily", "name": "", "overlap": "skip"}, "name"),
        ({"when": "@daily", "start": dt.datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001  # what is refused
    ]
    for words, match in given:
        with pytest.raises(ConfigurationError, match=match):
            lq.schedule(**words)(nudge)


# At run time


@pytest.fixture
def lq(database: Database) -> Iterator[LeaseQueue]:
    made = LeaseQueue(tz="Europe/Kyiv")
    made.configure(url=database.url)

    @made.schedule("@daily", name="of the code")
    @made.task(name="job")
    def job(n: int = 0) -> None: ...

    yield made
    made.dispose()


def test_rows_at_run_time(database: Database, lq: LeaseQueue) -> None:
    job = lq.registry["job"]
    with lq.begin() as conn:
        lq.schedules.add(
            conn, "tenant 7", "0 8 * * *", job.options(queue="mail", priority=3).call(n=7), catch_up="none"
        )
        assert database.execute("SELECT name FROM leasequeue_schedule") == [], "seen before the commit"
    columns = "name, task, args, queue, priority, spec, catch_up, decorated, version"
    assert database.execute(f"SELECT {columns} FROM leasequeue_schedule") == [
        ("tenant 7", "job", {"n": 7}, "mail", 3, {"cron": "0 8 * * *", "tz": "Europe/Kyiv"}, "none", False, 1)
    ]
    assert database.scalar("SELECT next_at > now() FROM leasequeue_schedule")
    with pytest.raises(DuplicateSchedule, match="added at run time"):
        lq.schedules.add(lq, "tenant 7", None, job.call(), every=dt.timedelta(hours=1))
    lq.schedules.update(lq, "tenant 7", tz="Asia/Tokyo")
    lq.schedules.update(lq, "tenant 7", when="0 9 * * *", end=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    assert database.scalar("SELECT spec FROM leasequeue_schedule") == {
        "cron": "0 9 * * *", "tz": "Asia/Tokyo", "end": "2100-01-01T00:00:00+00:00",
    }  # fmt: skip
    lq.schedules.update(lq, "tenant 7", every=dt.timedelta(hours=1), end=None, catch_up="latest")
    lq.schedules.update(lq, "tenant 7", call=job.call(n=8))
    assert database.execute(f"SELECT {columns} FROM leasequeue_schedule") == [
        ("tenant 7", "job", {"n": 8}, "default", 0, {"every": 3600, "tz": "Asia/Tokyo"}, "latest", False, 5)
    ]
    changes = database.execute("SELECT reason FROM leasequeue_tick WHERE outcome = 'redefined' ORDER BY due_at")
    assert [reason.partition(":")[0] for (reason,) in changes] == ["added"] + ["redefined"] * 4
    assert lq.schedules.pause(lq, "tenant 7")
    assert not lq.schedules.pause(lq, "tenant 7")
    id = lq.schedules.run_now(lq, "tenant 7")
    assert database.execute("SELECT id, args FROM leasequeue_job") == [(id, {"n": 8})]
    assert database.execute("SELECT job_id, outcome, reason FROM leasequeue_tick WHERE job_id IS NOT NULL") == [
        (id, "fired", "run by hand")
    ]
    assert lq.schedules.resume(lq, "tenant 7")
    lq.schedules.remove(lq, "tenant 7")
    last = database.execute(
        "SELECT reason FROM leasequeue_tick WHERE outcome = 'redefined' ORDER BY due_at DESC LIMIT 3"
    )
    assert last == [("removed",), ("resumed",), ("paused",)]
    assert database.scalar("SELECT count(*) FROM leasequeue_tick WHERE decided_by IS NULL") == 0
    for act in (lq.schedules.remove, lq.schedules.pause, lq.schedules.resume, lq.schedules.run_now):
        with pytest.raises(ScheduleRefused, match="none of that name"):
            act(lq, "tenant 7")
    with pytest.raises(ConfigurationError, match="timedelta, not 900"):
        lq.schedules.update(lq, "x", every=900)
    with pytest.raises(ConfigurationError, match="to change"):
        lq.schedules.update(lq, "x", color="red")


def test_async_twins(database: Database, lq: LeaseQueue) -> None:
    job = lq.registry["job"]

    async def story() -> int:
        async with lq.abegin() as conn:
            await lq.schedules.aadd(conn, "a", "@hourly", job.call(n=1))
            await lq.schedules.aupdate(conn, "a", overlap="skip")
            assert await lq.schedules.apause(conn, "a")
            assert await lq.schedules.aresume(conn, "a")
            id = await lq.schedules.arun_now(conn, "a")
            await lq.schedules.aremove(conn, "a")
        await lq.adispose()
        return id

    id = asyncio.run(story())
    assert database.scalar("SELECT id FROM leasequeue_job") == id
    assert database.scalar("SELECT count(*) FROM leasequeue_schedule") == 0


def test_one_of_the_code_is_changed_in_the_code(database: Database, lq: LeaseQueue, hand: MakeHand) -> None:
    hand(database, lq.definitions()).step()
    with pytest.raises(ScheduleRefused, match="change it there"):
        lq.schedules.update(lq, "of the code", overlap="skip")
    with pytest.raises(ScheduleRefused, match="would come back"):
        lq.schedules.remove(lq, "of the code")
    with pytest.raises(DuplicateSchedule, match="in the code"):
        lq.schedules.add(lq, "of the code", "@daily", lq.registry["job"].call())
    assert lq.schedules.pause(lq, "of the code")


def test_no_tables_is_said(direct_url: str) -> None:
    lq = LeaseQueue()
    lq.configure(url=direct_url)
    with pytest.raises(SchemaMismatch, match="leasequeue migrate"):
        lq.schedules.pause(lq, "s")
    lq.dispose()
