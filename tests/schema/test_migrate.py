"""``leasequeue migrate``: alone, twice, several at once, beside a host's own history, and where it cannot work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import NullPool, create_engine

import leasequeue
from leasequeue import schema
from leasequeue.db import migration
from leasequeue.db.names import qualify
from leasequeue.db.urls import Settings
from leasequeue.errors import ConfigurationError, DatabaseUnavailable, SchemaMismatch
from leasequeue.ops.migrate import migrate, offline_sql
from tests.support.databases import Templates
from tests.support.pgbouncer import PgBouncer
from tests.support.server import Server
from tests.support.waiting import until

from .catalog import WEIRD, catalog, create_schema


def _run(url: str, name: str = "public", wait_seconds: float = 30.0) -> str:
    said: list[str] = []
    migrate(Settings.parse(url), name, said.append, wait_seconds=wait_seconds)
    (line,) = said
    return line


def _revisions(url: str, name: str = "public") -> list[str]:
    with psycopg.connect(url) as conn:
        rows = conn.execute(f"SELECT version_num FROM {qualify(name)}.leasequeue_alembic_version".encode()).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize("name", ["public", WEIRD])
def test_twice(direct_url: str, name: str) -> None:
    if name != "public":
        create_schema(direct_url, name)

    assert _run(direct_url, name).endswith("created the tables, version 1")
    first = catalog(direct_url, name)
    assert _run(direct_url, name).endswith("the tables have version 1 already, nothing to do")

    assert catalog(direct_url, name) == first
    assert _revisions(direct_url, name) == ["0001"]


@pytest.mark.parametrize("name", ["public", WEIRD])
def test_the_script_makes_the_same(direct_url: str, name: str, server: Server, templates: Templates) -> None:
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("needs psql")
    by_psql = templates.empty()
    try:
        for url in (direct_url, server.url(by_psql)):
            if name != "public":
                create_schema(url, name)
        _run(direct_url, name)
        command = [psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", server.url(by_psql)]
        done = subprocess.run(command, input=offline_sql(name), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert catalog(server.url(by_psql), name) == catalog(direct_url, name)
        assert _run(server.url(by_psql), name).endswith("nothing to do")
    finally:
        server.drop_database(by_psql)


def test_a_missing_schema_says_what_to_run(direct_url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _run(direct_url, WEIRD)
    statement = next(line for line in str(caught.value).splitlines() if "CREATE SCHEMA" in line)
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute(statement.encode())
    assert "created" in _run(direct_url, WEIRD)


def test_where_a_host_made_the_tables_nothing_is_written(direct_url: str) -> None:
    with psycopg.connect(direct_url) as conn:
        schema.install(conn)
    before = catalog(direct_url, "public")

    assert _run(direct_url).endswith("nothing to do")

    assert catalog(direct_url, "public") == before


def test_after_the_tables_were_dropped_they_come_back(direct_url: str) -> None:
    _run(direct_url)
    with psycopg.connect(direct_url) as conn:
        for each in schema.statements(1, 0, "public"):
            conn.execute(each.encode())

    assert "created" in _run(direct_url)

    assert _revisions(direct_url) == ["0001"]


def test_tables_of_a_later_age(direct_url: str) -> None:
    _run(direct_url)
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute("COMMENT ON TABLE leasequeue_job IS 'leasequeue schema version 2'")
        assert _run(direct_url).endswith("the tables have version 2 already, nothing to do")
        conn.execute("COMMENT ON TABLE leasequeue_job IS 'leasequeue schema version 3'")
        with pytest.raises(SchemaMismatch, match="upgrade the leasequeue package"):
            _run(direct_url)


def test_tables_whose_comment_is_lost(direct_url: str) -> None:
    """As after `pg_restore --no-comments`: what is said to be run mends it."""
    _run(direct_url)
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute("COMMENT ON TABLE leasequeue_job IS NULL")
        before = catalog(direct_url, "public")
        with pytest.raises(ConfigurationError, match="restore without comments") as caught:
            _run(direct_url)
        assert catalog(direct_url, "public") == before
        (cure,) = (line for line in str(caught.value).splitlines() if "COMMENT ON TABLE" in line)
        conn.execute(cure.encode())
    assert _run(direct_url).endswith("nothing to do")


def test_several_processes_at_once(direct_url: str) -> None:
    program = (
        "import sys; from leasequeue.db.urls import Settings; from leasequeue.ops.migrate import migrate\n"
        "settings = Settings.parse(sys.argv[1]); print('ready', flush=True); sys.stdin.readline()\n"
        "migrate(settings, 'public', print)"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program, direct_url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in running]

    assert [process.returncode for process in running] == [0] * 4, [errors for _, errors in ended]
    assert sorted("created" in said for said, _ in ended) == [False, False, False, True]
    assert all("created" in said or "nothing" in said for said, _ in ended)
    assert _revisions(direct_url) == ["0001"]


@pytest.mark.parametrize("version_table_exists", [False, True])
@pytest.mark.parametrize("first", ["commits", "rolls back"])
def test_the_second_waits_for_the_first(direct_url: str, first: str, version_table_exists: bool) -> None:
    """Interleaved on purpose: the first stands still just before its commit, the second waits for its lock."""
    engine = create_engine(Settings.parse(direct_url).url("psycopg"), poolclass=NullPool)
    if version_table_exists:
        with engine.begin() as conn:
            migration.lock(conn, "public")
    with engine.connect() as conn, ThreadPoolExecutor(1) as pool, psycopg.connect(direct_url, autocommit=True) as watch:
        transaction = conn.begin()
        migration.lock(conn, "public")
        schema.install(conn)
        second = pool.submit(_run, direct_url)

        def waits() -> bool:
            query = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return watch.execute(query.encode()).fetchall() == [(1,)]

        until(waits, 10, "the second run to wait for the first")
        if first == "commits":
            transaction.commit()
            assert "nothing" in second.result(20)
        else:
            transaction.rollback()
            assert "created" in second.result(20)
    assert "nothing to do" in _run(direct_url)


def test_the_wait_is_bounded_and_changes_nothing(direct_url: str) -> None:
    with psycopg.connect(direct_url) as conn:
        conn.execute("CREATE TABLE leasequeue_alembic_version (version_num varchar(32) NOT NULL)")
        conn.commit()
        before = catalog(direct_url, "public")
        conn.execute("LOCK TABLE leasequeue_alembic_version")
        with pytest.raises(DatabaseUnavailable, match=r"held its lock for 0\.2 s"):
            _run(direct_url, wait_seconds=0.2)
    assert catalog(direct_url, "public") == before


def test_the_settings_of_the_connection_stay(direct_url: str, pgbouncer: PgBouncer) -> None:
    """Through a pooler: what was set for the wait is gone when the next client gets the connection."""
    name = direct_url.rsplit("/", 1)[1].split("?")[0]
    assert "created" in _run(pgbouncer.url(name))
    for _ in range(4):
        with psycopg.connect(pgbouncer.url(name), prepare_threshold=None) as conn:
            assert conn.execute("SHOW lock_timeout").fetchall() == [("0",)]


def test_who_may_not_is_told_what_to_grant(direct_url: str) -> None:
    role = "may_not_" + direct_url.rsplit("/", 1)[1].split("?")[0]
    with psycopg.connect(direct_url, autocommit=True) as conn:
        conn.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'".encode())
        try:
            conn.execute("CREATE SCHEMA app")
            with pytest.raises(ConfigurationError, match=rf'GRANT USAGE, CREATE ON SCHEMA "app" TO "{role}"') as caught:
                _run(make_conninfo(direct_url, user=role, password="secret"), "app")
            assert "secret" not in str(caught.value)
        finally:
            conn.execute(f"DROP ROLE {role}".encode())


def test_no_server() -> None:
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1") as caught:
        _run("postgresql://someone:secret@127.0.0.1:1/nothing")
    assert "secret" not in str(caught.value)


def test_a_read_only_server(direct_url: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="migrate on the primary"):
        _run(direct_url + "?options=-c%20default_transaction_read_only%3Don")


def test_the_scripts_of_a_wheel_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str) -> None:
    """An installed wheel has the scripts inside of the package; a path with a percent sign works too."""
    package = tmp_path / "100%s of it" / "leasequeue"
    package.mkdir(parents=True)
    monkeypatch.setattr(leasequeue, "__file__", str(package / "__init__.py"))
    with pytest.raises(ConfigurationError, match="no migrations"):
        offline_sql("public")
    here = Path(__file__).resolve().parents[2] / "migrations"
    shutil.copytree(here, package / "_migrations", ignore=shutil.ignore_patterns("__pycache__"))
    assert "created" in _run(direct_url)
