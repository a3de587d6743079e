"""ctx.complete(conn): what is particular to SQLAlchemy, and to isolation levels."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from leasequeue import JobContext, LeaseLost
from leasequeue.db.program import sqlstate
from leasequeue.job import Held

ME = uuid.uuid4()


@pytest.fixture
def ctx(database: Any) -> JobContext:
    database.execute("CREATE TABLE effect (n integer)")
    ((id,),) = database.execute(
        "INSERT INTO leasequeue_job (task, state, holder, term, expires_at, attempt, claimed_at) "
        f"VALUES ('send', 'l', '{ME}', 5, now() + interval '30 s', 1, now()) RETURNING id"
    )
    return JobContext(Held(id, 5, ME), "send", "default", 1, 8, schema=database.schema)


@pytest.fixture
def engine(database: Any) -> Iterator[Engine]:
    made = create_engine(
        database.url.replace("postgresql:", "postgresql+psycopg:"),
        poolclass=NullPool,
        connect_args={"prepare_threshold": None},
    )
    yield made
    made.dispose()


@pytest.mark.parametrize("shape", ["session", "connection"])
def test_a_refusal_inside_a_savepoint_ends_the_whole_transaction(
    engine: Engine, database: Any, ctx: JobContext, shape: str
) -> None:
    database.execute("UPDATE leasequeue_job SET term = 6")
    with Session(engine) if shape == "session" else engine.connect() as conn:
        conn.execute(text("INSERT INTO effect VALUES (1)"))
        with pytest.raises(LeaseLost), conn.begin_nested():
            ctx.complete(conn)
        # A handler that swallowed it and goes on:
        with contextlib.suppress(SQLAlchemyError):
            conn.execute(text("INSERT INTO effect VALUES (2)"))
        with contextlib.suppress(SQLAlchemyError):
            conn.commit()
        conn.rollback()
    assert database.execute("SELECT count(*) FROM effect") == [(0,)]


def test_a_completion_inside_a_savepoint_counts(engine: Engine, database: Any, ctx: JobContext) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            ctx.complete(session)
        session.commit()
    assert database.execute("SELECT outcome FROM leasequeue_finished") == [("succeeded",)]


@pytest.mark.parametrize("is_now", ["limit_key = 'k'", "children = 1"])
def test_a_job_whose_end_is_more_than_its_context_knows_is_refused(
    engine: Engine, database: Any, ctx: JobContext, is_now: str
) -> None:
    """Ended plainly, its key would not be woken, or its child would wait for ever."""
    database.execute(f"UPDATE leasequeue_job SET {is_now}")
    with Session(engine) as session, pytest.raises(LeaseLost):
        ctx.complete(session)
    assert database.execute("SELECT state::text FROM leasequeue_job") == [("l",)]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_the_higher_isolation_levels(engine: Engine, database: Any, ctx: JobContext, level: str) -> None:
    with engine.connect().execution_options(isolation_level=level) as conn:
        conn.execute(text("SELECT count(*) FROM effect"))  # the snapshot is taken
        database.execute("UPDATE leasequeue_job SET term = 6")
        conn.execute(text("INSERT INTO effect VALUES (1)"))
        with pytest.raises((LeaseLost, DBAPIError)) as refused:
            ctx.complete(conn)
        assert isinstance(refused.value, LeaseLost) or sqlstate(refused.value) == "40001"
        conn.commit()
        database.execute("UPDATE leasequeue_job SET term = 5")
        ctx.complete(conn)
        conn.commit()
    assert database.execute("SELECT count(*) FROM effect") == [(0,)]
    assert database.execute("SELECT outcome FROM leasequeue_finished") == [("succeeded",)]
