"""What a Link says when things break: *not carried out* only where that is certain, *unknown* otherwise."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from leasequeue.db.connect import Link
from leasequeue.errors import DatabaseUnavailable, OutcomeUnknown
from tests.db.conftest import Execute, MakeLink
from tests.db.wire import Wire
from tests.support.pgbouncer import PgBouncer
from tests.support.server import Server
from tests.support.waiting import until


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.host, server.port) as proxy:
        yield proxy


@pytest.fixture
def wired(wire: Wire, server: Server, direct_url: str, make_link: MakeLink) -> Link:
    """A Link that goes over ``wire``, unencrypted so that it can be read."""
    dbname = direct_url.rpartition("/")[2]
    return make_link(server.url(dbname, host="127.0.0.1", port=wire.port) + "?sslmode=disable&gssencmode=disable")


def is_certain(error: DatabaseUnavailable) -> bool:
    return not isinstance(error, OutcomeUnknown)


# The connection is ended


def test_terminated_while_idle(link: Link, execute: Execute) -> None:
    """Its end is seen before anything is sent, so it is certain that nothing was carried out."""
    execute("SELECT pg_terminate_backend(%s, 5000)", [link.pid])
    select.select([link.fileno()], [], [], 10)
    with pytest.raises(DatabaseUnavailable, match="while idle") as raised:
        link.run("SELECT 1")
    assert is_certain(raised.value)
    assert not link.connected
    link.connect()
    assert link.run("SELECT 1") == [(1,)]


def test_terminated_in_a_statement(link: Link) -> None:
    with pytest.raises(OutcomeUnknown):
        link.run("SELECT pg_terminate_backend(pg_backend_pid())")
    assert not link.connected


def test_the_reply_is_lost(wired: Link, wire: Wire, execute: Execute) -> None:
    execute("CREATE TABLE t (a int)")
    wire.on_reply = lambda _: None
    with pytest.raises(OutcomeUnknown):
        wired.run("INSERT INTO t VALUES (1)")
    assert not wired.connected
    assert until(lambda: execute("SELECT a FROM t"), 5) == [(1,)], "it was committed, nobody could know"


def test_the_reply_is_lost_between_the_rows_and_the_end(wired: Link, wire: Wire) -> None:
    """The rows came, but not the message that says the transaction is committed: that is no success."""
    ready = b"Z\x00\x00\x00\x05I"

    def all_but_the_end(data: bytes) -> bytes | None:
        assert data.endswith(ready)
        wire.answer_then_cut(data[: -len(ready)])
        return None

    wire.on_reply = all_but_the_end
    with pytest.raises(OutcomeUnknown):
        wired.run("SELECT 1")


def test_the_server_refuses_and_hangs_up(wired: Link, wire: Wire) -> None:
    """A pooler that says it has not passed the statement on."""

    def refuse(_: bytes) -> bytes | None:
        wire.refuse("08P01", "query_wait_timeout")
        return None

    wire.on_request = refuse
    with pytest.raises(DatabaseUnavailable, match="query_wait_timeout") as raised:
        wired.run("SELECT 1")
    assert is_certain(raised.value)
    assert not wired.connected


# The watchdog


def test_a_statement_that_takes_too_long(link: Link, execute: Execute) -> None:
    started = time.monotonic()
    with pytest.raises(OutcomeUnknown, match="within its bound"):
        link.run("SELECT pg_sleep(30)", bound_seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 2
    assert not link.connected
    link.connect()
    assert link.run("SELECT 1 FROM pg_sleep(0.5)") == [(1,)], "the next one has its own bound"


def test_a_stopped_server_process(link: Link, server: Server) -> None:
    """SIGSTOP: the kernel still acknowledges what is sent; only the watchdog bounds it."""
    pid = link.pid
    try:
        # A container numbers its processes by itself: the same number may be somebody else's here.
        if server.kind == "docker" or not Path(f"/proc/{pid}/comm").read_text().startswith("postgres"):
            pytest.skip(f"process {pid} of the {server.kind} server is not to be seen from here")
        os.kill(pid, signal.SIGSTOP)
    except OSError as error:
        pytest.skip(f"the server's processes cannot be stopped from here: {error!r}")
    try:
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="within its bound"):
            link.run("SELECT 1", bound_seconds=0.5)
        assert 0.5 <= time.monotonic() - started < 2
        started = time.monotonic()
        link.connect()
        assert link.run("SELECT 1") == [(1,)]
        assert time.monotonic() - started < 2
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_does_not_read(wired: Link, wire: Wire) -> None:
    """The bound holds for sending too: 64 MB do not fit into the sockets' buffers."""
    release = threading.Event()

    def hold(data: bytes) -> bytes | None:
        release.wait(20)
        return None

    wire.on_request = hold
    try:
        started = time.monotonic()
        with pytest.raises(OutcomeUnknown):
            wired.run("SELECT length(%(a)s)", {"a": "x" * 64_000_000}, bound_seconds=0.5)
        assert time.monotonic() - started < 3
    finally:
        release.set()


# Read-only


def _terminate(execute: Execute, pid: int) -> None:
    execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


def test_a_read_only_server_is_left(link: Link, make_link: MakeLink, direct_url: str, execute: Execute) -> None:
    link.run("CREATE TABLE t (a int)")
    dbname = execute("SELECT current_database()")[0][0]
    execute(f'ALTER DATABASE "{dbname}" SET default_transaction_read_only = on')
    other = make_link(direct_url)
    assert other.run("SELECT 1") == [(1,)], "where nothing better answers it will do, for reading"
    with pytest.raises(DatabaseUnavailable, match="is read-only") as raised:
        other.run("INSERT INTO t VALUES (1)")
    assert is_certain(raised.value)
    assert not other.connected
    with pytest.raises(DatabaseUnavailable, match="it is read-only, and read-write is wanted"):
        other.connect()
    execute(f'ALTER DATABASE "{dbname}" RESET default_transaction_read_only')
    other.connect()
    other.run("INSERT INTO t VALUES (1)")
    assert link.run("SELECT a FROM t") == [(1,)]


def test_read_only_left_behind_by_another_client_of_the_pooler(
    make_pgbouncer: Callable[..., PgBouncer], make_link: MakeLink, direct_url: str, execute: Execute
) -> None:
    execute("CREATE TABLE t (a int)")
    url = make_pgbouncer(pool_size=1).url(direct_url.rpartition("/")[2])
    link = make_link(url)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as leaky:
        leaky.execute("SET default_transaction_read_only = on")
    with pytest.raises(DatabaseUnavailable, match="is read-only"):
        link.run("INSERT INTO t VALUES (1)")
    link.connect()
    link.run("INSERT INTO t VALUES (2)")
    fresh = make_link(url)
    fresh.run("INSERT INTO t VALUES (3)")
    assert execute("SELECT a FROM t") == [(2,), (3,)]


def test_read_only_left_behind_where_the_probe_does_not_see_it(
    make_pgbouncer: Callable[..., PgBouncer], make_link: MakeLink, direct_url: str, execute: Execute
) -> None:
    """The second refusal in a row is no failover: from then on READ WRITE is asked for. The first one may be."""
    execute("CREATE TABLE t (a int)")
    url = make_pgbouncer(pool_size=1).url(direct_url.rpartition("/")[2])
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as leaky:

        def leak(value: str) -> None:
            leaky.execute(f"SET default_transaction_read_only = {value}")  # type: ignore[call-overload,unused-ignore]

        link = make_link(url)
        for _ in range(2):
            leak("on")
            assert link.run("SELECT current_setting('transaction_read_only')") == [("on",)], "a plain statement"
            with pytest.raises(DatabaseUnavailable, match="is read-only"):
                link.run("INSERT INTO t VALUES (1)")
            leak("off")
            link.connect()
        leak("on")
        link.run("INSERT INTO t VALUES (2)")
    assert execute("SELECT a FROM t") == [(2,)]


def test_all_slots_of_a_pooler_are_taken(
    make_pgbouncer: Callable[..., PgBouncer], make_link: MakeLink, direct_url: str
) -> None:
    """pgbouncer would keep a statement waiting for two minutes; here it is bounded, for connecting too."""
    url = make_pgbouncer(pool_size=1).url(direct_url.rpartition("/")[2])
    link, late = make_link(url), make_link(url + "?connect_timeout=1", connect=False)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as busy, busy.transaction():
        busy.execute("SELECT 1")
        started = time.monotonic()
        with pytest.raises(DatabaseUnavailable, match="no statement was answered within 1 s"):
            late.connect()
        with pytest.raises(OutcomeUnknown):
            link.run("SELECT 1", bound_seconds=0.3)
        assert time.monotonic() - started < 5
    late.connect()
    assert late.run("SELECT 1") == [(1,)]
