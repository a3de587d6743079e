"""The database goes away, breaks off, falls silent or refuses writes under load; what is left is counted from it."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
import pytest

from tests.support.databases import Database
from tests.support.proxy import Proxy
from tests.support.server import Server
from tests.support.waiting import until
from tests.support.workers import Worker

pytestmark = pytest.mark.process
Start = Callable[..., Worker]

FINISHED = "SELECT count(*) FROM leasequeue_finished"
TAKEN_UP = (
    "SELECT extract(epoch FROM min(started_at))::float8 FROM leasequeue_finished WHERE started_at >= to_timestamp(%s)"
)
LIVE = "SELECT count(*) FROM leasequeue_job"
SILENT = re.compile(r"\[(\d+)\] leasequeue: the database does not answer")


class Load:
    """Enqueues no-ops all the time on a connection of its own, through outages.

    Attributes:
        acknowledged: the ids that the database said it had committed.
        returned: when the first connection after an outage succeeded, in seconds since the epoch.
    """

    def __init__(self, url: str) -> None:
        self.acknowledged: list[int] = []
        self.returned: list[float] = []
        self._url = url
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        conn: psycopg.Connection[tuple[int]] | None = None
        while not self._over.wait(0.005 if conn else 0.01):
            try:
                if conn is None:
                    conn = psycopg.Connection.connect(
                        self._url, autocommit=True, prepare_threshold=None, connect_timeout=2
                    )
                    self.returned.append(time.time())
                rows = conn.execute("INSERT INTO leasequeue_job (task) VALUES ('noop'), ('anoop') RETURNING id")
                self.acknowledged += [id for (id,) in rows]
            except psycopg.Error:
                if conn is not None:
                    conn.close()
                conn = None
        if conn is not None:
            conn.close()


@contextmanager
def load(database: Database) -> Iterator[Load]:
    running = Load(database.direct_url)
    try:
        yield running
    finally:
        running.stop()


def assert_each_once(database: Database, acknowledged: list[int]) -> None:
    """Every job that was acknowledged is there, and every job there is, is there once."""
    counts = Counter(
        id for (id,) in database.execute("SELECT id FROM leasequeue_finished UNION ALL SELECT id FROM leasequeue_job")
    )
    assert {id: n for id, n in counts.items() if n != 1} == {}
    assert [id for id in acknowledged if id not in counts] == []


def advisory_locks(database: Database) -> int:
    return int(database.scalar("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"))


def progress(database: Database, seconds: float = 10.0, jobs: int = 20) -> None:
    """So many more jobs finish."""
    before = database.scalar(FINISHED)
    until(lambda: database.scalar(FINISHED) >= before + jobs, seconds, "jobs to finish")


def drained(database: Database, seconds: float = 20.0) -> None:
    until(lambda: database.scalar(LIVE) == 0, seconds, "every job to finish", every=0.05)


def connections(database: Database) -> list[tuple[int, str, int]]:
    """Server process, what it is for, and the port of the worker's end."""
    return [
        (pid, name, port)
        for pid, name, port in database.execute(
            "SELECT pid, application_name, client_port FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'leasequeue%' ORDER BY pid"
        )
    ]


@pytest.mark.parametrize("how", ["restart_immediate", "kill9_postmaster"])
def test_work_goes_on_within_a_second_of_the_return(
    how: str, own_server: Server, own_database: Database, worker: Start
) -> None:
    database = own_database
    started = worker(database, processes=2, ttl_seconds=10.0).standing_by()
    before = set(started.children())
    took = []
    with load(database) as running:
        progress(database)
        for outages in (1, 2):
            getattr(own_server, how)()
            at = until(partial(_nth, running.returned, outages), 10, "the load to be connected again")
            took.append(until(partial(database.scalar, TAKEN_UP, (at,)), 10, "a job to be taken up") - at)
            progress(database)
            assert advisory_locks(database) == 0
    drained(database)
    assert_each_once(database, running.acknowledged)
    assert set(started.children()) == before, started.log[-4000:]
    assert started.stop() == 0
    print(f"{how}: taken up {', '.join(f'{t:.3f}' for t in took)} s after the return; {len(running.acknowledged)} jobs")
    assert max(took) < 1.25


@pytest.mark.direct_only  # it counts the worker's own connections
def test_each_connection_is_terminated_in_turn(database: Database, worker: Start) -> None:
    started = worker(database, processes=1, ttl_seconds=10.0).standing_by()
    before = set(started.children())
    with load(database) as running:
        progress(database)
        until(lambda: len(connections(database)) == 5, 5, "all connections")
        for pid, name, _ in connections(database):
            database.execute("SELECT pg_terminate_backend(%s)", (pid,))
            until(partial(_replaced, database, pid, name), 10, f"{name} to connect again")
            progress(database)
            assert advisory_locks(database) == 0
    drained(database)
    assert_each_once(database, running.acknowledged)
    assert set(started.children()) == before, started.log[-4000:]
    assert database.execute("SELECT error_type, message FROM leasequeue_failure") == []
    assert database.execute("SELECT DISTINCT attempt, abandoned FROM leasequeue_finished") == [(1, 0)]


@pytest.mark.direct_only  # it counts the worker's own connections
def test_three_connections_a_process_and_two_of_the_supervisor(database: Database, worker: Start) -> None:
    started = worker(database, processes=2).started()
    most: Counter[str] = Counter()
    with load(database):
        deadline = time.monotonic() + 3

        def watched() -> bool:
            for name, count in Counter(name for _, name, _ in connections(database)).items():
                most[name] = max(most[name], count)
            return time.monotonic() > deadline

        until(watched, 5)
    print(f"connections of 2 processes: {dict(most)}")
    assert most.pop("leasequeue supervisor") == 1
    assert most.pop("leasequeue ticker") == 1
    assert most == {"leasequeue claimer": 2, "leasequeue completer": 2, "leasequeue renewer": 2}
    assert started.stop() == 0


@pytest.mark.direct_only  # the proxy stands before the server itself
@pytest.mark.parametrize(
    ("what", "pattern"),
    [("claim", r"SET state = 'l'.*LATERAL"), ("completion", r"INSERT INTO .*leasequeue_finished.*'succeeded'")],
)
def test_lost_replies(what: str, pattern: str, database: Database, worker: Start) -> None:
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        started = worker(database, url=url, ttl_seconds=20.0).started()
        # Claims that take nothing are hit too, so all are until one took something.
        over = threading.Event()
        lost = proxy.lose_reply(pattern, times=1000, when=lambda _: not over.is_set())
        database.execute("INSERT INTO leasequeue_job (task) SELECT 'noop' FROM generate_series(1, 5)")
        if what == "claim":
            until(lambda: "that a claim had taken when its connection broke" in started.log, 10)
        else:
            assert lost.wait(30)
        over.set()
        at = time.monotonic()
        drained(database, 10)
        took = time.monotonic() - at
        print(f"{what}: all 5 finished {took:.3f} s after the last lost reply")
        assert started.stop() == 0
        assert database.execute("SELECT error_type, message FROM leasequeue_failure") == []
        rows = database.execute("SELECT attempt, abandoned, count(*) FROM leasequeue_finished GROUP BY 1, 2")
        assert rows == [(1, 0, 5)], started.log[-4000:]
        assert "refused:" not in started.log
        assert "was killed" not in started.log
        assert took < 2.5


@pytest.mark.direct_only  # the proxy stands before the server itself
def test_a_silent_database(database: Database, worker: Start) -> None:
    with Proxy(database.server.host, database.server.port) as proxy:
        url = database.server.url(database.name, host=proxy.host, port=proxy.port)
        # The ttl outlasts the silence, so no lease may be lost in it; a shorter one could rightly be swept by a request
        # that was sent before the silence and reached the server after it.
        started = worker(database, url=url, ttl_seconds=30.0, log_level="info")
        until(lambda: "started: database" in started.log, 20)
        (serving,) = until(lambda: started.serving(database), 10)
        with load(database) as running:
            progress(database)
            proxy.blackhole()
            until(lambda: str(serving) in SILENT.findall(started.log), 8, "the worker to say that nothing answers")
            held = time.monotonic() + 5
            until(lambda: time.monotonic() > held, 6)
            proxy.restore()
            at = time.monotonic()
            progress(database, 10, 1)
            took = time.monotonic() - at
            progress(database)
        drained(database)
        assert_each_once(database, running.acknowledged)
        said = Counter(SILENT.findall(started.log))
        print(f"taken up {took:.3f} s after the silence; said {said[str(serving)]} times")
        assert said[str(serving)] == 1, started.log[-4000:]
        assert serving in started.children()
        assert database.scalar("SELECT max(attempt) FROM leasequeue_finished") == 1, started.log[-5000:]
        assert took < 1.25


@pytest.mark.direct_only  # a pooler's own server connections keep the old setting
def test_a_read_only_database(database: Database, worker: Start) -> None:
    started = worker(database, ttl_seconds=10.0).standing_by()
    before = set(started.children())
    with load(database) as running:
        progress(database)
        database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
        for pid, _, _ in connections(database):
            database.execute("SELECT pg_terminate_backend(%s)", (pid,))
        until(lambda: "read-only" in started.log, 10, "the worker to meet it")
        # What is enqueued now stays: nothing can be claimed.
        finished = until(lambda: _at_rest(database), 10, "work to stop")
        database.execute(f"ALTER DATABASE {database.name} RESET default_transaction_read_only")
        at = time.monotonic()
        until(lambda: database.scalar(FINISHED) > finished, 10, "work to go on")
        took = time.monotonic() - at
        progress(database)
    drained(database)
    assert_each_once(database, running.acknowledged)
    assert set(started.children()) == before, started.log[-4000:]
    assert started.stop() == 0
    print(f"work went on {took:.3f} s after writes were allowed again; said {len(SILENT.findall(started.log))} times")
    assert took < 1.5


def _nth(values: list[float], n: int) -> float | None:
    return values[n] if len(values) > n else None


def _replaced(database: Database, pid: int, name: str) -> bool:
    """Whether another server process serves this part of the worker."""
    there = connections(database)
    return any(c[1] == name for c in there) and all(c[0] != pid for c in there)


def _at_rest(database: Database) -> int | None:
    """The number of finished jobs once none has finished for half a second while some wait."""
    quiet = "SELECT clock_timestamp() - max(finished_at) > interval '0.5 s' FROM leasequeue_finished"
    return int(database.scalar(FINISHED)) if database.scalar(quiet) and database.scalar(LIVE) else None
