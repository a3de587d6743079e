"""Every statement runs in READ COMMITTED, whatever the database's default, and whoever changes it when."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from leasequeue.db.connect import Link
from leasequeue.errors import DatabaseUnavailable, OutcomeUnknown
from tests.db.conftest import Execute, MakeLink
from tests.db.wire import Wire
from tests.support.pgbouncer import PgBouncer
from tests.support.server import Server
from tests.support.waiting import until

LEVELS = ["read committed", "repeatable read", "serializable"]


def _default(execute: Execute, level: str) -> None:
    dbname = execute("SELECT current_database()")[0][0]
    execute(f"ALTER DATABASE \"{dbname}\" SET default_transaction_isolation = '{level}'")


@pytest.fixture(params=["direct", "pgbouncer"])
def url(request: pytest.FixtureRequest, direct_url: str) -> str:
    if request.param == "direct":
        return direct_url
    make: Callable[..., PgBouncer] = request.getfixturevalue("make_pgbouncer")
    return make(pool_mode="transaction", pool_size=2).url(direct_url.rpartition("/")[2])


def _conflict(link: Link, execute: Execute) -> None:
    """An update that waits for another's row lock: in any stricter level it fails when that one commits."""
    outcome: list[object] = []

    def update() -> None:
        try:
            outcome.append(link.run("UPDATE t SET a = a + 1 RETURNING a"))
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            outcome.append(error)

    execute("BEGIN")
    execute("UPDATE t SET a = a + 10")
    waiter = threading.Thread(target=update)
    waiter.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    until(lambda: execute(waits), 10, "the update to wait")
    execute("COMMIT")
    waiter.join(30)
    assert outcome == [[(11,)]]


@pytest.mark.parametrize("level", LEVELS)
def test_the_default_does_not_matter(make_link: MakeLink, url: str, execute: Execute, level: str) -> None:
    _default(execute, level)
    link = make_link(url)
    assert link.run("SELECT current_setting('transaction_isolation')") == [("read committed",)]
    execute("CREATE TABLE t (a int)")
    execute("INSERT INTO t VALUES (0)")
    _conflict(link, execute)
    with pytest.raises(psycopg.errors.UndefinedTable):
        link.run("SELECT FROM nowhere")
    assert link.run("SELECT pg_backend_pid() > 0") == [(True,)], "rolled back and usable"
    assert execute("SELECT FROM pg_stat_activity WHERE state LIKE 'idle in%' AND datname = current_database()") == []


def test_a_default_that_changes_behind_the_pooler(
    make_link: MakeLink, make_pgbouncer: Callable[..., PgBouncer], direct_url: str, execute: Execute
) -> None:
    """Another client leaves a SET behind on the shared server connection, after we asked."""
    url = make_pgbouncer(pool_size=1).url(direct_url.rpartition("/")[2])
    execute("CREATE TABLE t (a int)")
    execute("INSERT INTO t VALUES (0)")
    link = make_link(url)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as leaky:
        leaky.execute("SET default_transaction_isolation = 'serializable'")
    assert link.run("SELECT current_setting('transaction_isolation')") == [("serializable",)]
    _conflict(link, execute)
    assert link.run("SELECT current_setting('transaction_isolation')") == [("read committed",)]


def test_what_is_certain_in_an_explicit_transaction(
    server: Server, direct_url: str, make_link: MakeLink, execute: Execute
) -> None:
    """Lost before COMMIT was sent: rolled back, for certain. Lost after: unknown."""
    execute("CREATE TABLE t (a int)")
    _default(execute, "repeatable read")
    with Wire(server.host, server.port) as wire:
        dbname = direct_url.rpartition("/")[2]
        url = server.url(dbname, host="127.0.0.1", port=wire.port) + "?sslmode=disable&gssencmode=disable"
        link = make_link(url)
        wire.on_request = lambda data: None if b"INSERT" in data else data
        with pytest.raises(DatabaseUnavailable, match="not carried out") as raised:
            link.run("INSERT INTO t VALUES (1)")
        assert not isinstance(raised.value, OutcomeUnknown)
        wire.on_request = lambda data: data
        link.connect()
        wire.on_reply = lambda data: None if b"COMMIT" in data else data
        with pytest.raises(OutcomeUnknown):
            link.run("INSERT INTO t VALUES (2)")
        assert until(lambda: execute("SELECT a FROM t"), 5) == [(2,)]


def test_a_process_that_stops_in_the_middle_locks_nothing_for_long(
    make_link: MakeLink, url: str, execute: Execute, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between BEGIN and COMMIT the process is stopped: the server ends the transaction, and the row is free."""
    from leasequeue.db import connect

    bound = connect._BOUNDED
    assert "10s" in bound
    monkeypatch.setattr(connect, "_BOUNDED", bound.replace("10s", "1s"))
    _default(execute, "repeatable read")
    execute("CREATE TABLE t (a int)")
    execute("INSERT INTO t VALUES (0)")
    link = make_link(url)
    setting = "SELECT current_setting('idle_in_transaction_session_timeout')"
    assert link.run(setting) == [("1s",)]
    real = link._plain

    class Stopped:
        """A cursor that goes no further than BEGIN."""

        def execute(self, statement: bytes) -> None:
            if statement == b"COMMIT":
                free = "SELECT count(*) FROM (SELECT FROM t FOR UPDATE SKIP LOCKED) AS free"
                assert execute(free) == [(0,)]
                until(lambda: execute(free) == [(1,)], 10, "the row to become free")
            real.execute(statement)

    monkeypatch.setattr(link, "_plain", Stopped())
    with pytest.raises(DatabaseUnavailable):
        link.run("UPDATE t SET a = 1 RETURNING a")
    assert execute("SELECT a FROM t") == [(0,)]
    assert execute(setting) == [("0",)]
