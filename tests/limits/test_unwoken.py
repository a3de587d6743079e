"""A key whose wake is gone is found and woken; one that has what wakes it is left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest

from leasequeue.errors import OutcomeUnknown
from leasequeue.worker import chores
from leasequeue.worker.chores import Expiry, Purge, Sweep, Unwoken, for_all
from tests.limits.hand import Hand, Hands, put, rule
from tests.support.databases import Database
from tests.support.waiting import until

if TYPE_CHECKING:
    from leasequeue.db.connect import Link

Look: TypeAlias = Callable[[Hand], None]


@pytest.fixture
def look(database: Database, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Looks as often as it takes to have been everywhere, in steps of three keys."""
    monkeypatch.setattr(chores, "UNWOKEN_LOOK", 3)
    monkeypatch.setattr(chores, "UNWOKEN_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(chores, "UNWOKEN_SHARE", 0.0)
    monkeypatch.setattr(chores, "UNWOKEN_CHANCE", 0.0)

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


def test_a_wake_of_another_time_hides_nothing(
    database: Database, hand: Hands, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that somebody pulls forward has its wake where it was; so has one from before a clock went back."""
    put(database, "moved", 1, limit=1, delay_seconds=86400.0)
    put(database, "two", 1, limit=2)
    database.execute("DELETE FROM leasequeue_wake WHERE key = 'two'")
    put(database, "two", 1, limit=2, delay_seconds=86400.0)
    database.execute("UPDATE leasequeue_job SET available_at = now() - interval '1 min' WHERE limit_key = 'moved'")
    database.execute("UPDATE leasequeue_job SET available_at = now() - interval '1 min' WHERE available_at < now()")
    one = hand()
    one.nothing_for(0.3)
    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        look(one)
    assert sorted(job.key for job in one.gated_until(2, k=20)) == ["moved", "two"]
    assert "2 limit key(s)" in caplog.text


def test_a_suspect_counts_as_what_runs(
    database: Database, hand: Hands, look: Look, caplog: pytest.LogCaptureFixture
) -> None:
    put(database, "k", 2, limit=1)
    one = hand()
    (first,) = one.gated()
    one.nothing_for(0.2)
    database.execute(
        "UPDATE leasequeue_job SET state = 'q', holder = NULL, expires_at = NULL WHERE id = %s", (first.id,)
    )
    _long_due(database)
    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        look(one)
    assert database.execute("SELECT FROM leasequeue_wake") == []
    assert caplog.text == ""


def test_a_free_slot_beside_one_that_runs_is_found_in_the_end(
    database: Database, hand: Hands, look: Look, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(database, "k", 3, limit=2)
    one = hand()
    assert len(one.gated(k=1)) == 1
    database.execute("DELETE FROM leasequeue_wake")
    _long_due(database)
    one.nothing_for(0.2)
    monkeypatch.setattr(chores, "UNWOKEN_CHANCE", 0.5)

    def woken() -> bool:
        look(one)
        return bool(database.scalar("SELECT count(*) > 0 FROM leasequeue_wake"))

    with caplog.at_level(logging.WARNING, "leasequeue.worker"):
        until(woken, 20, "a go that wakes it")
    assert len(one.gated_until(1)) == 1
    assert caplog.text == ""  # most likely it was as it should be


def test_a_look_that_takes_too_long_is_tried_with_less(
    database: Database, hand: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chores, "UNWOKEN_EVERY_SECONDS", 0.0)
    one = hand()
    asked: list[int] = []

    class Slow:
        def run(self, _sql: str, params: dict[str, Any], bound_seconds: float) -> list[tuple[Any, ...]]:
            asked.append(params["look"])
            if params["look"] > 500:
                raise OutcomeUnknown(f"no answer within {bound_seconds}")
            return one.link.run(_sql, params, bound_seconds=bound_seconds)

    unwoken = Unwoken(one.gate_sql.wake_unwoken)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            unwoken(cast("Link", Slow()))
    unwoken(cast("Link", Slow()))
    assert asked == [2000, 1000, 500]


def test_every_process_that_serves_queues_does_it() -> None:
    assert {Expiry, Purge, Sweep, Unwoken} == {type(chore) for chore in for_all("public", lambda: None, 3, {})}
