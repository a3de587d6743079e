"""``leasequeue.testing.drain`` does what handlers and strategies say, as a worker does."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from tenacity import retry_if_exception_type, wait_fixed

from leasequeue import Cancel, Fail, LeaseQueue, Retry, Snooze
from leasequeue.testing import MovableClock, adrain, drain
from tests.support.databases import Database

pytestmark = pytest.mark.direct_only  # the statements are the workers'; the connection is the test's


@pytest.fixture
def connection(database: Database) -> Iterator[Connection]:
    engine = create_engine(database.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with engine.connect() as opened:
        transaction = opened.begin()
        yield opened
        transaction.rollback()
    engine.dispose()


@pytest.fixture
def lq() -> LeaseQueue:
    return LeaseQueue(schema="public")


WORDS = {
    "retry": Retry(60, "later"),
    "snooze": Snooze(dt.timedelta(hours=1)),
    "cancel": Cancel("why"),
    "fail": Fail("no"),
}


@pytest.mark.parametrize("raise_errors", [True, False])
def test_words(connection: Connection, lq: LeaseQueue, raise_errors: bool) -> None:
    @lq.task()
    def say(what: str) -> None:
        raise WORDS[what]

    ids = {what: say.enqueue(connection, what).id for what in WORDS}
    clock = MovableClock()
    drained = drain(connection, lq=lq, now=clock, raise_errors=raise_errors)
    assert [ran.outcome for ran in drained.jobs] == ["retried", "snoozed", "cancelled", "failed"]
    assert drained.of("snoozed")[0].error is WORDS["snooze"]
    due = "extract(epoch FROM available_at - now())::int"
    live = f"SELECT id, state::text, attempt, {due}, meta FROM leasequeue_job ORDER BY id"
    rows = [tuple(row) for row in connection.execute(text(live))]
    (retried, snoozed) = rows
    assert retried[:3] == (ids["retry"], "r", 1)
    assert 60 <= retried[3] <= 62
    assert snoozed[:3] == (ids["snooze"], "r", 0)
    assert 3600 <= snoozed[3] <= 3602
    assert snoozed[4] == {"snoozed": 1}
    ended = connection.execute(text("SELECT outcome, error FROM leasequeue_finished ORDER BY id"))
    assert [tuple(row) for row in ended] == [("cancelled", "Cancelled: why"), ("failed", "Fail: no")]
    clock.move(dt.timedelta(minutes=2))
    assert [ran.outcome for ran in drain(connection, lq=lq, now=clock).jobs] == ["retried"]


def test_strategies(connection: Connection, lq: LeaseQueue) -> None:
    @lq.task(wait=wait_fixed(600), retry=retry_if_exception_type(OSError), max_attempts=2)
    def break_down(how: str) -> None:
        raise {"os": OSError, "key": KeyError}[how]

    break_down.enqueue(connection, "os")
    break_down.enqueue(connection, "key")
    clock = MovableClock()
    outcomes = [ran.outcome for ran in drain(connection, lq=lq, now=clock, raise_errors=False).jobs]
    assert outcomes == ["retried", "failed"]
    assert len(drain(connection, lq=lq, now=clock, raise_errors=False)) == 0
    clock.move(dt.timedelta(seconds=601))
    assert [ran.outcome for ran in drain(connection, lq=lq, now=clock, raise_errors=False).jobs] == ["failed"]
    break_down.enqueue(connection, "key")
    with pytest.raises(KeyError):
        drain(connection, lq=lq)


def test_asynchronously(database: Database, lq: LeaseQueue) -> None:
    @lq.task()
    async def say(what: str) -> None:
        raise WORDS[what]

    async def main() -> list[str]:
        engine = create_async_engine(database.url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        async with engine.connect() as conn:
            for what in WORDS:
                await say.aenqueue(conn, what)
            drained = await adrain(conn, lq=lq)
            await conn.rollback()
        await engine.dispose()
        return [ran.outcome for ran in drained.jobs]

    assert asyncio.run(main()) == ["retried", "snoozed", "cancelled", "failed"]
