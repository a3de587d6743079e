"""leasequeue.testing in SQLAlchemy's recipe: a Session joined into an external transaction, rolled back at the end."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from leasequeue import ConfigurationError, LeaseQueue, UnknownTask, current_job
from leasequeue.testing import (
    MovableClock,
    aassert_enqueued,
    adrain,
    assert_enqueued,
    drain,
    fake_job,
)
from tests.support.databases import Database

OPTIONS: dict[str, Any] = {"poolclass": NullPool, "connect_args": {"prepare_threshold": None}}
TABLES = ("person", "leasequeue_job", "leasequeue_finished", "leasequeue_failure")


class Base(DeclarativeBase):
    pass


class Person(Base):
    __tablename__ = "person"
    name: Mapped[str] = mapped_column(primary_key=True)
    greeted: Mapped[int] = mapped_column(default=0)


@pytest.fixture
def engine(database: Database) -> Iterator[Engine]:
    database.execute("CREATE TABLE person (name text PRIMARY KEY, greeted integer NOT NULL)")
    made = create_engine(database.url.replace("postgresql:", "postgresql+psycopg:"), **OPTIONS)
    yield made
    made.dispose()
    left = {table: database.scalar(f"SELECT count(*) FROM {table}") for table in TABLES}
    assert left == dict.fromkeys(TABLES, 0), "something was committed"


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as opened:
        transaction = opened.begin()
        yield opened
        transaction.rollback()


@pytest.fixture
def session(connection: Connection) -> Iterator[Session]:
    with Session(bind=connection, join_transaction_mode="create_savepoint") as opened:
        yield opened


@pytest.fixture
def lq() -> LeaseQueue:
    return LeaseQueue(schema="public")  # no URL: a connection of its own would be an error


GREET = text("UPDATE person SET greeted = greeted + 1 WHERE name = :name")


def count(conn: Connection | Session, table: str, where: str = "true") -> int:
    return int(conn.execute(text(f"SELECT count(*) FROM {table} WHERE {where}")).scalar_one())


def test_a_handler_sees_the_tests_rows_and_the_test_sees_its_effects(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def greet(name: str) -> str:
        with lq.begin() as conn:
            assert conn.execute(GREET, {"name": name}).rowcount == 1
        return f"hello {name}, attempt {current_job().attempt}"

    ada = Person(name="ada")
    session.add(ada)
    greet.enqueue(session, "ada")
    assert_enqueued(session, greet.call("ada"))
    drained = drain(session, lq=lq)
    assert [(ran.outcome, ran.result) for ran in drained.jobs] == [("succeeded", "hello ada, attempt 1")]
    assert ada.greeted == 1
    assert_enqueued(session, greet.call("ada"), count=0)
    assert count(session, "leasequeue_finished", "result = '\"hello ada, attempt 1\"'") == 1
    assert len(drain(session, lq=lq)) == 0
    session.commit()  # only releases its savepoint


def test_a_bare_connection_will_do(connection: Connection, lq: LeaseQueue) -> None:
    @lq.task(queue="off")
    def nothing() -> None:
        pass

    lq.queue("off", keep=0)
    nothing.enqueue(connection)
    assert len(drain(connection, lq=lq, queues=["on"])) == 0
    assert len(drain(connection, lq=lq, queues=["off"])) == 1
    assert count(connection, "leasequeue_job") == count(connection, "leasequeue_finished") == 0


def test_what_handlers_enqueue_is_drained_best_first(session: Session, lq: LeaseQueue) -> None:
    seen: list[int] = []

    @lq.task()
    def each(n: int) -> None:
        seen.append(n)
        if n == 2:
            each.options(priority=9).enqueue(session, 10)
            each.enqueue(lq, 11)
            session.commit()

    for n in (1, 2, 3):
        each.enqueue(session, n)
    each.options(priority=5).enqueue(session, 0)
    assert len(drain(session, lq=lq)) == 6
    assert seen == [0, 1, 2, 10, 3, 11]


def test_an_endless_chain_is_an_error(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def again() -> None:
        again.enqueue(session)

    again.enqueue(session)
    with pytest.raises(AssertionError, match=r"5 jobs ran and .*again.* is ready still"):
        drain(session, lq=lq, limit=5)


def test_complete_in_the_handlers_transaction(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def greet(name: str) -> None:
        with lq.begin() as conn:
            conn.execute(GREET, {"name": name})
            current_job().complete(conn, "done")

    @lq.task()
    def undone() -> None:
        with lq.begin() as conn:
            current_job().complete(conn)
            conn.get_nested_transaction().rollback()  # type: ignore[union-attr]

    session.add(Person(name="ada"))
    greet.enqueue(session, "ada")
    assert drain(session, lq=lq).jobs[0].outcome == "succeeded"
    assert count(session, "leasequeue_finished", "result = '\"done\"'") == 1
    undone.enqueue(session)
    with pytest.raises(RuntimeError, match="rolled back"):
        drain(session, lq=lq)


def test_an_error_is_raised_with_the_jobs_name(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def fail(x: int) -> None:
        raise ValueError("no")

    job = fail.enqueue(session, 7)
    with pytest.raises(ValueError, match="no") as raised:
        drain(session, lq=lq)
    (note,) = raised.value.__notes__
    assert f"job {job.id}" in note
    assert fail.name in note
    assert '{"x": 7}' in note


@pytest.mark.parametrize("how", ["flush", "statement", "pending", "commits"])
def test_a_failed_statement_of_the_session_itself(session: Session, lq: LeaseQueue, how: str) -> None:
    @lq.task()
    def twice() -> None:
        if how == "statement":
            session.execute(text("INSERT INTO person VALUES ('ada', 2)"))
        if how == "commits":
            session.add(Person(name="bob"))
            session.commit()
            raise ValueError
        session.add(Person(name="ada"))
        if how == "flush":
            session.flush()

    session.execute(text("INSERT INTO person VALUES ('ada', 1)"))
    twice.enqueue(session)
    (ran,) = drain(session, lq=lq, raise_errors=False).jobs
    assert ran.outcome == "retried"
    assert isinstance(ran.error, ValueError if how == "commits" else IntegrityError)
    assert count(session, "leasequeue_failure") == 1
    assert count(session, "person") == (2 if how == "commits" else 1)


@pytest.mark.parametrize("start", [None, dt.datetime(2090, 1, 1, tzinfo=dt.UTC)])
def test_retries_wait_for_the_clock(session: Session, lq: LeaseQueue, start: dt.datetime | None) -> None:
    @lq.task(max_attempts=2)
    def fail() -> None:
        with lq.begin() as conn:
            conn.execute(text("INSERT INTO person VALUES ('ada', 1), ('ada', 2)"))

    clock = MovableClock(start)
    fail.enqueue(session)
    (first,) = drain(session, lq=lq, now=clock, raise_errors=False).jobs
    assert (first.outcome, first.attempt) == ("retried", 1)
    assert isinstance(first.error, IntegrityError)
    assert len(drain(session, lq=lq, now=clock, raise_errors=False)) == 0
    clock.move(dt.timedelta(hours=1, minutes=1))
    (second,) = drain(session, lq=lq, now=clock, raise_errors=False).jobs
    assert (second.outcome, second.attempt) == ("failed", 2)
    assert count(session, "leasequeue_failure") == 2
    assert count(session, "leasequeue_finished", "outcome = 'failed'") == 1


def test_delayed_jobs_wait_for_the_clock(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def later() -> None:
        pass

    later.options(delay=dt.timedelta(days=1)).enqueue(session)
    clock = MovableClock()
    assert len(drain(session, lq=lq)) == len(drain(session, lq=lq, now=clock)) == 0
    clock.move(dt.timedelta(hours=23))
    assert len(drain(session, lq=lq, now=clock)) == 0
    clock.move(dt.timedelta(hours=1))
    assert len(drain(session, lq=lq, now=clock)) == 1


def test_old_arguments_are_upgraded(session: Session, lq: LeaseQueue) -> None:
    seen: list[str] = []

    @lq.task(name="mail", upgrade=lambda old: {"address": old["to"]})
    def mail(address: str) -> None:
        seen.append(address)

    session.execute(text("INSERT INTO leasequeue_job (task, args) VALUES ('mail', jsonb_build_object('to', 'ada'))"))
    drain(session, lq=lq)
    assert seen == ["ada"]


def test_what_cannot_be_run_is_said(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    async def waits() -> None: ...

    waits.enqueue(session)
    with pytest.raises(ConfigurationError, match=r"await adrain"):
        drain(session, lq=lq)
    with pytest.raises(ConfigurationError, match="timezone-aware"):
        drain(session, lq=lq, now=dt.datetime(2030, 1, 1))  # noqa: DTZ001  # the point
    session.execute(text("INSERT INTO leasequeue_job (task) VALUES ('nobody')"))
    with pytest.raises(UnknownTask, match="nobody"):
        drain(session, lq=lq)


def test_a_failed_assertion_lists_what_is_there(session: Session, lq: LeaseQueue) -> None:
    @lq.task()
    def greet(name: str) -> None: ...

    with pytest.raises(AssertionError, match=r"found 0\. Live jobs:\n  none"):
        assert_enqueued(session, greet.call("ada"))
    greet.options(queue="slow").enqueue(session, "bob")
    with pytest.raises(AssertionError, match=r'\{"name": "bob"\} in \'slow\', state r'):
        assert_enqueued(session, greet.call("ada"))
    assert_enqueued(session, greet.call("bob"), queue="slow", lq=lq)
    with pytest.raises(AssertionError, match="in queue 'default', found 0"):
        assert_enqueued(session, greet.call("bob"), queue="default")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_async(database: Database, engine: Engine, lq: LeaseQueue, driver: str) -> None:
    @lq.task()
    async def agreet(name: str) -> str:
        async with lq.abegin() as conn:
            assert (await conn.execute(GREET, {"name": name})).rowcount == 1
            await current_job().acomplete(conn, "done")
        await greet.aenqueue(lq, name)
        return "told"

    @lq.task()
    def greet(name: str) -> int:
        with lq.begin() as conn:
            return conn.execute(GREET, {"name": name}).rowcount

    @lq.task(max_attempts=1)
    async def mistaken() -> None:
        with lq.begin():
            pass

    async def main() -> None:
        options = OPTIONS
        if driver == "asyncpg":
            options = {
                "poolclass": NullPool,
                "connect_args": {"statement_cache_size": 0, "prepared_statement_cache_size": 0},
            }
        aengine = create_async_engine(database.url.replace("postgresql:", f"postgresql+{driver}:"), **options)
        async with aengine.connect() as connection:
            transaction = await connection.begin()
            async with AsyncSession(
                bind=connection, join_transaction_mode="create_savepoint", expire_on_commit=False
            ) as session:
                session.add(Person(name="ada"))
                await agreet.aenqueue(session, "ada")
                await aassert_enqueued(session, agreet.call("ada"))
                drained = await adrain(session, lq=lq)
                assert [(ran.task, ran.result) for ran in drained.jobs] == [(agreet.name, "told"), (greet.name, 1)]
                found = await session.execute(select(Person.greeted).execution_options(populate_existing=True))
                assert found.scalar_one() == 2
                await mistaken.aenqueue(session)
                (ran,) = (await adrain(session, lq=lq, raise_errors=False, now=MovableClock())).jobs
                assert ran.outcome == "failed"
                assert "lq.abegin()" in str(ran.error)
                with pytest.raises(ConfigurationError, match="await adrain"):
                    drain(session, lq=lq)  # type: ignore[arg-type]
            await transaction.rollback()
        await aengine.dispose()

    asyncio.run(main())


def test_a_job_that_is_none() -> None:
    with pytest.raises(ConfigurationError, match="fake_job"):
        current_job()
    with fake_job(attempt=3, task="greet") as job:
        assert current_job() is job
        assert (job.attempt, job.task, job.completed) == (3, "greet", False)
        current_job().complete(None, {"n": 1})  # type: ignore[arg-type]
        assert job.completed
        assert job.result == {"n": 1}
    with pytest.raises(ConfigurationError):
        current_job()
