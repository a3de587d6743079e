"""What a Link does while the database is well."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psycopg
import pytest

from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.errors import DatabaseUnavailable, OutcomeUnknown
from tests.db.conftest import Execute, MakeLink
from tests.support.waiting import until


def test_rows_and_no_rows(link: Link) -> None:
    link.run("CREATE TABLE t (a int)")
    assert link.run("INSERT INTO t VALUES (1), (2)") == []
    assert link.run("SELECT a FROM t WHERE a >= %(from)s ORDER BY a", {"from": 1}) == [(1,), (2,)]
    assert link.run("SELECT a FROM t WHERE a = 9") == []
    assert link.run("SELECT FROM t") == [(), ()]
    assert link.run("SELECT '100%'") == [("100%",)]


def test_each_statement_is_committed(link: Link, execute: Execute) -> None:
    link.run("CREATE TABLE t (a int)")
    link.run("INSERT INTO t VALUES (1)")
    assert execute("SELECT a FROM t") == [(1,)]
    state = "SELECT state, application_name FROM pg_stat_activity WHERE pid = %s"
    assert execute(state, [link.pid]) == [("idle", "leasequeue test")]


def test_a_refused_statement_leaves_it_connected(link: Link) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        link.run("SELECT FROM nowhere")
    with pytest.raises(psycopg.ProgrammingError):
        link.run("SELECT %(missing)s", {})
    with pytest.raises(psycopg.DataError):
        link.run("SELECT %(a)s::text", {"a": "a NUL \0"})
    with pytest.raises(UnicodeEncodeError):
        link.run("SELECT %(a)s::text", {"a": "a lone surrogate \ud800"})
    assert link.connected
    assert link.run("SELECT 1") == [(1,)]


def test_an_answer_that_cannot_be_read_was_carried_out_all_the_same(link: Link, execute: Execute) -> None:
    link.run("CREATE TABLE t (a timestamptz)")
    with pytest.raises(OutcomeUnknown, match="answered, but that cannot be read"):
        link.run("INSERT INTO t VALUES ('-infinity') RETURNING a")
    assert not link.connected
    assert execute("SELECT count(*) FROM t") == [(1,)]


def test_nothing_is_prepared(link: Link) -> None:
    for _ in range(20):
        link.run("SELECT %(a)s::int", {"a": 1})
    assert link.run("SELECT count(*) FROM pg_prepared_statements") == [(0,)]


def test_text_is_utf8_whatever_the_environment(
    make_link: MakeLink, direct_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    assert make_link(direct_url).run("SELECT %(a)s", {"a": "Київ 🐘"}) == [("Київ 🐘",)]


def test_something_else_is_done_while_the_server_works(link: Link, execute: Execute) -> None:
    seen: list[str] = []

    def look() -> None:
        seen.append(execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [link.pid])[0][0])

    assert link.run("SELECT 1 FROM pg_sleep(0.3)", meanwhile=look) == [(1,)]
    assert seen == ["active"]  # sent before, answered after
    assert link.run("SELECT 2") == [(2,)]
    assert seen == ["active"]  # and once
    with pytest.raises(psycopg.ProgrammingError):
        link.run("SELECT %(missing)s", {}, meanwhile=look)
    assert link.run("SELECT 3") == [(3,)]
    assert seen == ["active"]  # nor by the statement after one that could not be sent


def test_life(make_link: MakeLink, direct_url: str) -> None:
    link = make_link(direct_url, connect=False)
    assert (link.connected, link.generation) == (False, 0)
    for use in (lambda: link.run("SELECT 1"), link.fileno, lambda: link.pid, lambda: link.notifications(0)):
        with pytest.raises(DatabaseUnavailable, match="not connected"):
            use()
    link.connect()
    assert (link.connected, link.generation) == (True, 1)
    assert link.run("SELECT pg_backend_pid()") == [(link.pid,)]
    link.connect()
    assert link.generation == 1, "connected already"
    link.close()
    link.close()
    assert not link.connected
    link.connect()
    assert link.generation == 2


# Notifications


def test_notifications(link: Link, execute: Execute) -> None:
    link.run("LISTEN c")
    execute("SELECT pg_notify('c', n::text) FROM generate_series(1, 3) AS n")
    assert link.notifications(10) == ["1", "2", "3"]
    assert link.notifications(0) == []
    execute("NOTIFY c, 'x'")
    link.run("SELECT 1")  # takes it from the socket on its way
    assert link.notifications(10) == ["x"]
    link.run("NOTIFY c, 'own'")
    assert link.notifications(10) == ["own"]


def test_a_wait_ends_at_its_timeout_by_a_notification_or_by_the_other_descriptor(link: Link, execute: Execute) -> None:
    link.run("LISTEN c")
    started = time.monotonic()
    assert link.notifications(0.1) == []
    assert 0.1 <= time.monotonic() - started < 0.5
    read, write = os.pipe()
    try:
        os.write(write, b"w")
        started = time.monotonic()
        assert link.notifications(10, read) == []
        assert time.monotonic() - started < 5
        assert os.read(read, 1) == b"w", "it is its owner's to read"
        answer: list[list[str]] = []
        waiter = threading.Thread(target=lambda: answer.append(link.notifications(10, read)))
        waiter.start()
        execute("NOTIFY c, 'y'")
        waiter.join(30)
        assert answer == [["y"]]
    finally:
        os.close(read)
        os.close(write)


def test_waiting_on_a_lost_connection(link: Link, execute: Execute) -> None:
    execute("SELECT pg_terminate_backend(%s)", [link.pid])
    with pytest.raises(DatabaseUnavailable) as raised:
        link.notifications(10)
    assert not isinstance(raised.value, OutcomeUnknown)
    assert not link.connected


# Forks

_FORK = """
import os, sys
from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
from leasequeue.errors import DatabaseUnavailable
link = Link(Settings.parse(sys.argv[1]), application_name="fork")
link.connect()
pid = link.pid
child = os.fork()
if child == 0:
    assert not link.connected
    try:
        link.run("SELECT 1")
    except DatabaseUnavailable:
        link.connect()
    assert link.pid != pid
    assert link.run("SELECT pg_backend_pid()") == [(link.pid,)]
    try:
        link.run("SELECT pg_sleep(30)", bound_seconds=0.1)  # the watchdog has a thread of its own there
    except DatabaseUnavailable:
        print("child ok", flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert link.run("SELECT pg_backend_pid()") == [(pid,)]
link.close()
print("parent ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_shares_no_connection(direct_url: str) -> None:
    done = subprocess.run([sys.executable, "-c", _FORK, direct_url], capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["child ok", "parent ok"], done.stderr


def test_an_interrupt_leaves_no_statement_behind(direct_url: str, execute: Execute) -> None:
    """Ctrl-C in a statement: the connection is sound afterwards, or closed."""
    script = """
import signal, sys, _thread, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever whoever started the tests has made of it
from leasequeue.db.connect import Link
from leasequeue.db.urls import Settings
link = Link(Settings.parse(sys.argv[1]), application_name="interrupt", bound_seconds=900)
link.connect()
threading.Thread(target=lambda: (sys.stdin.readline(), _thread.interrupt_main())).start()
try:
    link.run("SELECT pg_sleep(600)")
except KeyboardInterrupt:
    if not link.connected:
        link.connect()
    print(link.run("SELECT 1"))
link.close()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, direct_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        running = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'interrupt' AND query LIKE %s"
        until(lambda: execute(running + " AND state = 'active'", ["SELECT pg_sleep%"]), 10, "the statement")
        out, _ = process.communicate("go\n", timeout=120)  # far less than the statement would take
    assert out.strip() == "[(1,)]"
    until(lambda: not execute(running, ["SELECT pg_sleep%"]), 30, "the server to be rid of it")


def test_settings_reach_the_server(make_link: MakeLink, direct_url: str) -> None:
    link = make_link(direct_url + "?application_name=mine")
    assert link.run("SELECT current_setting('application_name')") == [("mine",)]
    assert link.settings == Settings.parse(direct_url + "?application_name=mine")
