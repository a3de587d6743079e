"""``leasequeue.schema`` itself: what it refuses, ``install``, and what the tables take and refuse from plain SQL."""

from __future__ import annotations

import shlex

import psycopg
import pytest
from psycopg import errors
from psycopg.rows import DictRow, dict_row
from sqlalchemy import NullPool, create_engine
from sqlalchemy.orm import Session

from leasequeue import schema
from leasequeue.db.names import channel, qualify
from leasequeue.db.tables import tables
from leasequeue.db.urls import Settings
from leasequeue.db.version import VERSION, check
from leasequeue.errors import ConfigurationError, SchemaMismatch
from tests.support.databases import Database

from .catalog import WEIRD, catalog, create_schema


class _Context:
    as_sql = False


class _Op:
    """Only counts; what is executed is seen by the tests that run Alembic."""

    def __init__(self) -> None:
        self.executed: list[object] = []

    def get_context(self) -> _Context:
        return _Context()

    def execute(self, sqltext: object) -> None:
        self.executed.append(sqltext)


@pytest.mark.parametrize(("since", "to"), [(0, 2), (-1, 1), (2, 1), (True, 1)])
def test_unknown_versions_are_refused(since: int, to: int) -> None:
    with pytest.raises(ConfigurationError, match="no schema version"):
        schema.statements(since, to, "app")


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_a_name_that_no_schema_has_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="give the name of an existing one"):
        schema.statements(0, 1, name)


def test_the_wrong_direction_is_refused_before_anything_is_executed() -> None:
    op = _Op()
    with pytest.raises(ConfigurationError, match="downwards"):
        schema.upgrade(op, since=1, to=0, schema="app")
    with pytest.raises(ConfigurationError, match="upwards"):
        schema.downgrade(op, since=0, to=1, schema="app")
    assert op.executed == []


def test_one_statement_each() -> None:
    op = _Op()
    schema.upgrade(op, since=0, to=1, schema="app")
    assert len(op.executed) == len(schema.statements(0, 1, "app"))
    for each in schema.statements(0, 1, "app") + schema.statements(1, 0, "app"):
        assert ";" not in each
        assert '"app".leasequeue_' in each
    assert schema.statements(1, 1, "app") == []


def test_names_are_quoted() -> None:
    assert qualify(WEIRD) == '"we ""ird Schema.x%:y"'
    assert len(channel("x" * 200).encode()) <= 63
    assert channel("a") != channel("b")
    assert channel("x" * 200) != channel("x" * 201)


@pytest.mark.parametrize("name", ["public", WEIRD])
@pytest.mark.parametrize("kind", ["psycopg", "autocommit", "connection", "session"])
def test_install_twice(direct_url: str, kind: str, name: str) -> None:
    if name != "public":
        create_schema(direct_url, name)
    before = catalog(direct_url, name)
    for _ in range(2):
        if kind in ("psycopg", "autocommit"):
            with psycopg.Connection[DictRow].connect(
                direct_url, autocommit=kind == "autocommit", row_factory=dict_row
            ) as conn:
                schema.install(conn, name)
        else:
            engine = create_engine(Settings.parse(direct_url).url("psycopg"), poolclass=NullPool)
            if kind == "connection":
                with engine.begin() as connection:
                    schema.install(connection, name)
            else:
                with Session(engine) as session, session.begin():
                    schema.install(session, name)
    with psycopg.connect(direct_url) as conn:
        for each in schema.statements(1, 0, name):
            conn.execute(each.encode())
    assert catalog(direct_url, name) == before


def test_install_stays_in_the_callers_transaction(direct_url: str) -> None:
    before = catalog(direct_url, "public")
    with psycopg.connect(direct_url) as conn:
        schema.install(conn)
        conn.rollback()
    assert catalog(direct_url, "public") == before


def test_install_refuses_tables_of_a_later_age(direct_url: str) -> None:
    with psycopg.connect(direct_url) as conn:
        schema.install(conn)
        conn.execute("COMMENT ON TABLE leasequeue_job IS 'leasequeue schema version 9'")
        with pytest.raises(SchemaMismatch, match="upgrade the leasequeue package"):
            schema.install(conn)


def test_what_a_mismatch_says_can_be_pasted() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        check(None, WEIRD)
    assert shlex.split(str(caught.value).split("`")[1]) == ["leasequeue", "migrate", "--schema", WEIRD]


def test_include_name_knows_ours_by_their_exact_names() -> None:
    def seen(name: str | None, type_: str, table: str | None = None) -> bool:
        return schema.include_name(name, type_, {"schema_name": None, "table_name": table})

    assert not seen("leasequeue_job", "table")
    assert not seen("leasequeue_alembic_version", "table")
    assert not seen("leasequeue_term", "sequence")
    assert not seen("leasequeue_job_ready", "index", "leasequeue_job")
    assert not seen("leasequeue_job_pkey", "unique_constraint", "leasequeue_job")
    assert seen("leasequeue_report", "table")
    assert seen("leasequeue_report_key", "index", "leasequeue_report")
    assert seen("customer", "table")
    assert seen("name", "column", "customer")
    assert seen(None, "schema")
    assert seen("app", "schema")


def test_plain_sql_is_a_whole_enqueue(database: Database) -> None:
    ((job,),) = database.execute(
        "INSERT INTO leasequeue_job (task, args) VALUES ('send_reminder', '{\"user_id\": 7}') "
        "RETURNING to_jsonb(leasequeue_job)"
    )

    assert job["id"] == 1
    assert (job["queue"], job["priority"], job["state"], job["attempt"], job["abandoned"]) == ("default", 0, "r", 0, 0)
    assert job["args"] == {"user_id": 7}
    assert job["available_at"] == job["created_at"]
    empty = ("holder", "term", "expires_at", "max_attempts", "unique_key", "limit_key", "claimed_at", "meta")
    assert [job[name] for name in empty] == [None] * len(empty)


_LONG = "repeat('x', 513)"


@pytest.mark.direct_only  # what a table refuses does not depend on the way to it
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("queue", "''"), ("queue", _LONG), ("queue", "repeat('é', 257)"), ("queue", "NULL"),
        ("unique_key", "''"), ("unique_key", _LONG), ("limit_key", _LONG),
        ("priority", "101"), ("priority", "-101"), ("priority", "40000"),
        ("available_at", "'-infinity'"), ("available_at", "'infinity'"), ("available_at", "'1969-12-31'"),
        ("available_at", "NULL"),
        ("state", "'x'"), ("state", "'l'"), ("max_attempts", "0"), ("meta", "'[]'"), ("args", "NULL"),
    ],
)  # fmt: skip
def test_a_job_is_refused(database: Database, column: str, value: str) -> None:
    with pytest.raises((errors.IntegrityError, errors.NumericValueOutOfRange)):
        database.execute(f"INSERT INTO leasequeue_job (task, {column}) VALUES ('t', {value})")


@pytest.mark.direct_only  # as above
@pytest.mark.parametrize(
    "statement",
    [
        f"INSERT INTO leasequeue_job (task) VALUES ({_LONG})",
        "INSERT INTO leasequeue_job (task) VALUES ('')",
        f"INSERT INTO leasequeue_lease (name, term) VALUES ({_LONG}, 1)",
        "INSERT INTO leasequeue_lease (name, slot, term) VALUES ('a', -1, 1)",
        "INSERT INTO leasequeue_lease (name, slots, term) VALUES ('a', 0, 1)",
        "INSERT INTO leasequeue_lease_event (name, slot, event) VALUES ('a', 0, 'stolen')",
        f"INSERT INTO leasequeue_schedule (name, task, spec) VALUES ({_LONG}, 't', '{{}}')",
        "INSERT INTO leasequeue_tick (schedule, due_at, outcome) VALUES ('a', now(), 'forgotten')",
        f"INSERT INTO leasequeue_queue (name) VALUES ({_LONG})",
        "INSERT INTO leasequeue_finished (id, queue, task, args, outcome, attempt, abandoned, enqueued_at) "
        "VALUES (1, 'q', 't', '{}', 'vanished', 1, 0, now())",
    ],
)
def test_a_row_is_refused(database: Database, statement: str) -> None:
    with pytest.raises(errors.CheckViolation):
        database.execute(statement)


@pytest.mark.direct_only  # as above
def test_the_longest_key_is_taken(database: Database) -> None:
    database.execute(
        "INSERT INTO leasequeue_job (task, queue, unique_key) SELECT x, x, x FROM repeat(chr(233), 256) AS x"
    )
    with pytest.raises(errors.UniqueViolation):
        database.execute("INSERT INTO leasequeue_job (task, unique_key) VALUES ('t', repeat(chr(233), 256))")


@pytest.mark.direct_only  # as above
def test_the_version_is_a_comment(database: Database) -> None:
    found = database.scalar("SELECT obj_description('leasequeue_job'::regclass, 'pg_class')")
    assert found == f"leasequeue schema version {VERSION}"


@pytest.mark.direct_only  # as above
def test_rows_can_be_deleted_under_a_publication_of_all_tables(database: Database) -> None:
    """A host that replicates logically publishes our tables too; the server then wants a replica identity of each."""
    names = [table.name for table in tables("public").metadata.tables.values()]
    lacking = database.execute(
        "SELECT relname FROM pg_class AS c WHERE relname = ANY(%(names)s) AND relreplident <> 'f' "
        "AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)",
        {"names": names},
    )
    assert lacking == []
    with psycopg.connect(database.direct_url) as conn:
        conn.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        for name in names:
            conn.execute(f"DELETE FROM {name}".encode())
