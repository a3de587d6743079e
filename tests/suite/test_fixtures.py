"""The tests' own ground: databases, pgbouncer, outages and the proxy do what the other tests rely on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.support.databases import Database
from tests.support.pgbouncer import PgBouncer
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import until


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.server.host, database.server.port) as running:
        yield running


def through(proxy: Proxy, database: Database) -> psycopg.Connection[tuple[object, ...]]:
    url = database.server.url(database.name, host=proxy.host, port=proxy.port)
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def test_a_database_has_the_tables_and_nothing_else(database: Database) -> None:
    assert database.scalar("SELECT count(*) FROM leasequeue_job") == 0
    with database.connect(direct=False) as conn:
        assert conn.execute("SELECT count(*) FROM leasequeue_finished").fetchone() == (0,)
        same = conn.info.backend_pid == conn.execute("SELECT pg_backend_pid()").fetchall()[0][0]
    assert same == (database.via == "direct")


def test_databases_are_of_one_test_each(database: Database) -> None:
    assert database.scalar("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'") == 0
    database.execute("CREATE TABLE mine ()")


def test_direct_url_is_empty(direct_url: str) -> None:
    with psycopg.connect(direct_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


@pytest.mark.needs_pgbouncer
def test_the_second_run_has_two_server_connections(database: Database, pgbouncer: PgBouncer) -> None:
    assert database.via == "pgbouncer"
    first, second, third = (database.connect(direct=False) for _ in range(3))
    first.execute("SELECT 1")  # in transactions: each holds a server connection
    second.execute("SELECT 1")
    got = threading.Event()

    def ask() -> None:
        third.execute("SELECT 1")
        got.set()

    thread = threading.Thread(target=ask)
    thread.start()
    until(
        lambda: any(row[0] == database.name and row[3] == 1 for row in pgbouncer.admin("SHOW POOLS")),
        5,
        "the third client to wait",
    )
    assert not got.is_set()
    first.rollback()
    assert got.wait(30)
    thread.join()


@pytest.mark.needs_pgbouncer
def test_other_pgbouncers(database: Database, make_pgbouncer: Callable[..., PgBouncer]) -> None:
    other = make_pgbouncer(pool_mode="session", pool_size=1)
    with psycopg.connect(other.url(database.name), autocommit=True) as conn:
        pids = {conn.execute("SELECT pg_backend_pid()").fetchall()[0][0] for _ in range(5)}
    assert len(pids) == 1


@pytest.mark.direct_only  # the proxy reads the protocol between client and server, whoever the client is
class TestProxy:
    def test_passes_on(self, proxy: Proxy, database: Database) -> None:
        with through(proxy, database) as conn:
            assert conn.execute("SELECT %s::int + 1", [1]).fetchone() == (2,)
            assert conn.execute("SELECT repeat('x', 3000000)").fetchall()[0][0] == "x" * 3_000_000
            with conn.transaction():
                conn.execute("CREATE TABLE t ()")
            with conn.cursor().copy("COPY (SELECT generate_series(1, 1000)) TO STDOUT") as copy:
                assert len(list(copy.rows())) == 1000
        until(lambda: proxy.connections == 0, 5)

    def test_drops(self, proxy: Proxy, database: Database) -> None:
        conn = through(proxy, database)
        assert proxy.drop() == 1
        with pytest.raises(psycopg.OperationalError):
            conn.execute("SELECT 1")
        with through(proxy, database) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)

    def test_refuses(self, proxy: Proxy, database: Database) -> None:
        proxy.refusing = True
        with pytest.raises(psycopg.OperationalError):
            through(proxy, database)
        proxy.restore()
        through(proxy, database).close()

    def test_swallows_until_restored(self, proxy: Proxy, database: Database) -> None:
        conn = through(proxy, database)
        proxy.blackhole()
        answered = threading.Event()

        def ask() -> None:
            conn.execute("SELECT 1")
            answered.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert not answered.wait(0.3)
        proxy.restore()
        assert answered.wait(30)
        thread.join()
        conn.close()

    def test_accepts_new_connections_and_never_answers(self, proxy: Proxy, database: Database) -> None:
        proxy.blackhole()
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(url, connect_timeout=2)

    @pytest.mark.parametrize("params", [None, {"a": 1}], ids=["simple", "extended"])
    def test_loses_the_reply_of_a_statement_that_was_executed(
        self, proxy: Proxy, database: Database, params: dict[str, int] | None
    ) -> None:
        database.execute("CREATE TABLE t (a int)")
        lost = proxy.lose_reply("INSERT INTO t")
        conn = through(proxy, database)
        conn.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError):
            conn.execute("INSERT INTO t VALUES (%(a)s)" if params else "INSERT INTO t VALUES (1)", params)
        assert lost.wait(30)
        assert lost.statement is not None
        assert lost.statement.startswith("INSERT INTO t")
        assert database.scalar("SELECT count(*) FROM t") == 1, "the server has committed"
        with through(proxy, database) as again:  # once only
            again.execute("INSERT INTO t VALUES (2)")

    def test_loses_the_reply_of_a_commit(self, proxy: Proxy, database: Database) -> None:
        database.execute("CREATE TABLE t (a int)")
        lost = proxy.lose_reply(r"^\s*COMMIT")
        conn = through(proxy, database)
        with pytest.raises(psycopg.OperationalError), conn.transaction():
            conn.execute("INSERT INTO t VALUES (1)")
        assert lost.wait(30)
        assert database.scalar("SELECT count(*) FROM t") == 1


@pytest.mark.direct_only  # outages are the server's
@pytest.mark.process
@pytest.mark.parametrize("outage", ["restart_immediate", "kill9_postmaster", "stop"])
def test_outages(outage: str, outage_server: Server, database: Database) -> None:
    conn = database.connect(autocommit=True)
    database.execute("CREATE TABLE t AS SELECT 1 AS a")
    getattr(outage_server, outage)()
    with pytest.raises(psycopg.OperationalError):
        conn.execute("SELECT 1")
    if outage == "stop":
        with pytest.raises(psycopg.OperationalError):
            database.connect()
        outage_server.start()
    with psycopg.connect(outage_server.url(database.name)) as again:
        assert again.execute("SELECT a FROM t").fetchone() == (1,)


@pytest.mark.process
def test_a_server_of_ones_own(own_server: Server, own_database: Database) -> None:
    own_server.kill9_postmaster()
    assert own_database.scalar("SELECT count(*) FROM leasequeue_job") == 0
