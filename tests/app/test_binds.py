"""Sessions with several engines, and tables that go away after they were checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

from leasequeue import ConfigurationError, LeaseQueue, SchemaMismatch


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "user"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(database: Any) -> Iterator[Engine]:
    made = create_engine(
        database.url.replace("postgresql:", "postgresql+psycopg:"),
        poolclass=NullPool,
        connect_args={"prepare_threshold": None},
    )
    yield made
    made.dispose()


@pytest.fixture
def send(database: Any) -> Any:
    lq = LeaseQueue(schema=database.schema)

    @lq.task(name="send")
    def send() -> None: ...

    return send


def test_an_engine_per_class(engine: Engine, send: Any, database: Any) -> None:
    with Session(binds={User: engine}) as session:
        with pytest.raises(ConfigurationError, match="bind_arguments"):
            send.enqueue(session)
        send.enqueue(session.connection(bind_arguments={"bind": engine}))
        session.commit()
    with Session(engine, binds={User: create_engine("postgresql+psycopg://nobody@127.0.0.1:1/x")}) as session:
        send.enqueue(session)
        session.commit()
    assert database.execute("SELECT count(*) FROM leasequeue_job") == [(2,)]


@pytest.mark.parametrize(
    "change",
    ["DROP TABLE leasequeue_job", "ALTER TABLE leasequeue_job RENAME COLUMN args TO arguments"],
)
def test_tables_that_change_after_they_were_checked(engine: Engine, send: Any, database: Any, change: str) -> None:
    with engine.begin() as conn:
        send.enqueue(conn)
    database.execute(change)
    with pytest.raises(SchemaMismatch, match="leasequeue migrate"), engine.begin() as conn:
        send.enqueue(conn)
