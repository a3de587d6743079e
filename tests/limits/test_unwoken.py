"""A key whose wake is gone is found and woken; one that has what wakes it is left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

import pytest

from leasequeue.worker import chores
from leasequeue.worker.chores import Unwoken
from tests.limits.hand import Hand, Hands, put, rule
from tests.support.databases import Database

Look: TypeAlias = Callable[[Hand], None]


@pytest.fixture
def look(database: Database, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Looks as often as it takes to have been everywhere, in steps of three keys."""
    monkeypatch.setattr(chores, "UNWOKEN_LOOK", 3)
    monkeypatch.setattr(chores, "UNWOKEN_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(chores, "UNWOKEN_SHARE", 0.0)

    def look(hand: Hand) -> None:
        unwoken = Unwoken(hand.gate_sql.wake_unwoken)
        for _ in range(1 + int(database.scalar("SELECT count(DISTINCT (limit_key, queue)) FROM leasequeue_job")) // 3):
            unwoken(hand.link)

    return look


def _long_due(database: Database) -> None:
    database.execute("UPDATE leasequeue_job SET available_at = available_at - interval '1 min'")


def test_each_key_that_lost_its_wake_runs_again(
    database: Database, hand: Hands, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    for key in range(10):
        put(database, f"k{key}", 2, limit=1)
    _long_due(database)
    database.execute("DELETE FROM leasequeue_wake WHERE key <> 'k4'")
    one = hand()
    assert [job.key for job in one.gated(k=20)] == ["k4"]
    one.nothing_for(0.3)
    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        look(one)
    assert sorted(job.key for job in one.gated_until(9, k=20)) == [f"k{key}" for key in range(10) if key != 4]
    assert "had jobs that were due and nothing that would have started them; they are woken now: 'k" in caplog.text
    assert "'k4'" not in caplog.text


def test_a_key_that_will_be_woken_is_left_alone(database: Database, hand: Hands, look: Look) -> None:
    put(database, "running", 2, limit=1)
    put(database, "rated", 3, rate=(1, 60.0))
    rule(database, "stopped", 0)
    put(database, "stopped", 1)
    one = hand()
    assert len(one.gated_until(2)) == 2
    one.nothing_for(0.2)
    put(database, "later", 1, limit=1, delay_seconds=3600.0)
    put(database, "waking", 1, limit=1)
    before = database.execute("SELECT id FROM leasequeue_wake ORDER BY id")
    _long_due(database)
    database.execute("UPDATE leasequeue_job SET available_at = now() + interval '1 hour' WHERE limit_key = 'later'")
    look(one)
    assert database.execute("SELECT id FROM leasequeue_wake ORDER BY id") == before


def test_one_that_is_not_due_yet_is_left_alone_without_a_wake(database: Database, hand: Hands, look: Look) -> None:
    put(database, "k", 1, limit=1)
    database.execute("DELETE FROM leasequeue_wake")
    database.execute("UPDATE leasequeue_job SET available_at = now() + interval '1 hour'")
    one = hand()
    look(one)
    assert database.execute("SELECT FROM leasequeue_wake") == []
    database.execute("UPDATE leasequeue_job SET available_at = now() - interval '1 min'")
    look(one)
    assert len(one.gated_until(1)) == 1
