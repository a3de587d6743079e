"""What pausing queues and setting limits promise, over every kind of connection: they are part of its transaction."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from leasequeue import ConfigurationError, LeaseQueue

from .kinds import Bench


@pytest.fixture(autouse=True)
def _empty(database: Any) -> None:
    for table in ("queue", "limit", "wake"):
        database.execute(f"DELETE FROM leasequeue_{table}")


def call(bench: Bench, lq: LeaseQueue, method: str, *args: Any, **words: Any) -> Any:
    found = getattr(lq, ("a" if bench.is_async else "") + method)(bench.conn, *args, **words)
    return bench._settle(found) if bench.is_async else found


def test_a_queue_is_paused_and_resumed_with_the_transaction(bench: Bench, database: Any, lq: LeaseQueue) -> None:
    paused = "SELECT name, resume_at, updated_by FROM leasequeue_queue WHERE paused_at IS NOT NULL"
    assert call(bench, lq, "pause_queue", "mail", by="ann") is True
    assert database.execute(paused) == []
    bench.commit()
    assert database.execute(paused) == [("mail", None, "ann")]
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert call(bench, lq, "pause_queue", "mail", later, by="bob") is False
    bench.commit()
    assert database.execute(paused) == [("mail", later, "bob")]
    with pytest.raises(ConfigurationError, match="is over already"):
        call(bench, lq, "pause_queue", "mail", later - dt.timedelta(hours=2))
    bench.rollback()
    with pytest.raises(ConfigurationError, match="timezone-aware"):
        call(bench, lq, "pause_queue", "mail", dt.datetime(2030, 1, 1))  # noqa: DTZ001  # as asked
    assert call(bench, lq, "resume_queue", "mail") is True
    bench.rollback()
    assert database.execute(paused) == [("mail", later, "bob")]
    assert call(bench, lq, "resume_queue", "mail") is True
    bench.commit()
    assert database.execute(paused) == []
    assert call(bench, lq, "resume_queue", "mail") is False
    assert call(bench, lq, "resume_queue", "none such") is False
    bench.commit()
    assert call(bench, lq, "pause_queue", "mail") is True


def test_a_limit_and_its_wakes_come_with_the_transaction(bench: Bench, database: Any, lq: LeaseQueue) -> None:
    database.execute("INSERT INTO leasequeue_job (task, state, limit_key) VALUES ('t', 'g', 'user:7'), ('t', 'g', 'x')")
    limits = "SELECT name, max_running, rate_max, rate_seconds, updated_by FROM leasequeue_limit"
    call(bench, lq, "set_limit", "user", limit=5, rate="100/10s", by="ann")
    assert database.execute(limits) == []
    bench.rollback()
    call(bench, lq, "set_limit", "user:7", limit=0, by="ann")
    bench.commit()
    assert database.execute(limits) == [("user:7", 0, None, None, "ann")]
    assert database.execute("DELETE FROM leasequeue_wake RETURNING key") == [("user:7",)]
    call(bench, lq, "set_limit", "user:7", rate="5/m", by="bob")
    bench.commit()
    assert database.execute(limits) == [("user:7", None, 5, 60.0, "bob")]
    for words in ({}, {"limit": -1}, {"rate": "fast"}):
        with pytest.raises(ConfigurationError):
            call(bench, lq, "set_limit", "user:7", **words)
    assert call(bench, lq, "unset_limit", "user:7") is True
    bench.commit()
    assert database.execute(limits) == []
    assert call(bench, lq, "unset_limit", "user:7") is False
    bench.commit()
    assert database.execute("SELECT key FROM leasequeue_wake") == [("user:7",)] * 2
