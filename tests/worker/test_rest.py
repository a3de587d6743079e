"""The pauses of a claimer that has nothing to do: they become long only where nothing is lost by it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from leasequeue.db import peek
from leasequeue.db.connect import Link
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.urls import Settings
from leasequeue.worker.gate import Gate
from leasequeue.worker.lanes import Lanes
from leasequeue.worker.rest import HEARD_MAX_SECONDS, POLL_MAX_SECONDS, POLL_MIN_SECONDS, Rest
from tests.support.databases import Database

SOON = "now() + interval '0.3 s'"


class Sleeper:
    """What a claimer has to do with its rest, on a real database."""

    def __init__(self, database: Database) -> None:
        self.link = Link(Settings.parse(database.url), application_name="rest")
        self.link.connect()
        self.lanes = Lanes(job_statements(database.schema), ["default", "other"])
        gate = Gate(gate_statements(database.schema), ["default", "other"], False, 30.0)
        self.rest = Rest(peek.statements(database.schema)["idle"], self.lanes, gate)
        self.look()

    def look(self) -> bool:
        now = time.monotonic()
        self.lanes.read(self.link.run, now)
        return self.rest.is_quiet(self.link.run, ["default", "other"], now)

    def pauses(self, count: int, heard: bool = True) -> list[float]:
        """The pauses after as many looks."""
        found = []
        for _ in range(count):
            self.look()
            found.append(self.rest.seconds(heard))
        return found


@pytest.fixture
def sleeper(database: Database) -> Iterator[Sleeper]:
    one = Sleeper(database)
    yield one
    one.link.close()


def test_pauses_grow_and_become_long_only_where_somebody_would_be_heard(sleeper: Sleeper) -> None:
    pauses = sleeper.pauses(30)
    assert pauses[0] == POLL_MIN_SECONDS
    assert pauses == sorted(pauses)
    assert pauses[-1] == HEARD_MAX_SECONDS
    sleeper.rest.over()
    assert not sleeper.rest.is_long
    assert sleeper.pauses(30, heard=False)[-1] == POLL_MAX_SECONDS


def test_what_is_due_and_cannot_be_had_keeps_them_short(database: Database, sleeper: Sleeper) -> None:
    """Another has it locked, and says nothing when it lets go."""
    database.execute("INSERT INTO leasequeue_job (task) VALUES ('noop')")
    assert not sleeper.look()
    assert sleeper.pauses(30)[-1] == POLL_MAX_SECONDS


@pytest.mark.parametrize(
    "sql",
    [
        f"INSERT INTO leasequeue_job (task, available_at) VALUES ('noop', {SOON})",
        f"INSERT INTO leasequeue_job (task, queue, available_at) VALUES ('noop', 'other', {SOON})",
        f"INSERT INTO leasequeue_wake (key, queue, due_at) VALUES ('k', 'other', {SOON})",
    ],
)
def test_what_is_known_to_become_due_ends_one_in_time(database: Database, sleeper: Sleeper, sql: str) -> None:
    sleeper.pauses(30)
    database.execute(sql)
    begun = time.monotonic()
    (pause,) = sleeper.pauses(1)
    assert 0.1 < pause <= 0.302
    time.sleep(max(0.0, begun + 0.310 - time.monotonic()))  # what is tested is a time
    assert not sleeper.look()


def test_what_becomes_due_later_than_the_next_look_does_not(database: Database, sleeper: Sleeper) -> None:
    sleeper.pauses(30)
    database.execute("INSERT INTO leasequeue_job (task, available_at) VALUES ('noop', now() + interval '1 hour')")
    assert sleeper.pauses(1) == [HEARD_MAX_SECONDS]
