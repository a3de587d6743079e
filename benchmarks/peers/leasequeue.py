"""leasequeue by the same protocol, in its own variants."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata

import psycopg

from benchmarks import ground
from benchmarks.app import lq
from benchmarks.peers.protocol import Cannot, Client, Peer, Place, Workers
from benchmarks.peers.script import client
from leasequeue.db.urls import Settings
from leasequeue.ops.migrate import migrate

START_SECONDS = 30.0
REST_SECONDS = 4.0
"""From when the processes have told the database of themselves until the spare one has started too, and all is at rest."""


class LeaseQueuePeer(Peer):
    """``leasequeue worker`` as it ships: its queue is paused while it starts, and is let go."""

    pace = 60_000
    left_sql = "SELECT count(*) FROM leasequeue_job"
    done_sql = "SELECT sum(n_tup_del) FROM pg_stat_user_tables WHERE relname = 'leasequeue_job'"

    def __init__(self, name: str, task: str, queue: str, settings: str, *, variant: bool = True) -> None:
        self.name, self.settings, self.variant = name, settings, variant
        self._task, self._queue = task, queue

    def install(self, say: Callable[[str], None]) -> None:
        """It is here."""

    def version(self) -> str:
        return f"{metadata.version('leasequeue')}, Python {platform.python_version()}, psycopg {psycopg.__version__}"

    def prepare(self, place: Place) -> None:
        migrate(Settings.parse(place.direct), "public", lambda _: None)

    def client(self, place: Place) -> contextlib.AbstractContextManager[Client]:
        return client([sys.executable, "-m", "benchmarks.peers.scripts.run_leasequeue", self._task], place)

    @contextlib.contextmanager
    def worker(self, place: Place, processes: int = 1) -> Iterator[Workers]:
        words = ["--queues", f"{self._queue}=10", "--processes", str(processes)]
        with ground.connect(place.direct) as conn:
            lq.pause_queue(conn, self._queue)
            with ground.worker(place.url, *words) as process:
                _wait(conn, process, processes)
                time.sleep(REST_SECONDS)
                yield _Workers(conn, self._queue)


def _wait(conn: ground.Connection, process: subprocess.Popen[bytes], processes: int) -> None:
    """Until so many processes are there."""
    until = time.monotonic() + START_SECONDS
    while True:
        ((count,),) = conn.execute("SELECT count(*) FROM leasequeue_worker").fetchall()
        if int(str(count)) >= processes:
            return
        if process.poll() is not None:
            raise Cannot(f"its process ended with status {process.returncode}")
        if time.monotonic() > until:
            raise Cannot(f"{count} of {processes} processes were there after {START_SECONDS:g} s")
        time.sleep(0.05)


class _Workers:
    def __init__(self, conn: ground.Connection, queue: str) -> None:
        self._conn = conn
        self._queue = queue

    def go(self) -> None:
        lq.resume_queue(self._conn, self._queue)

    def stamps(self) -> dict[int, float]:
        if self._queue == "bare":
            raise Cannot("when a handler started is read from the history, and this one keeps none")
        rows = self._conn.execute(
            "SELECT (result -> 0)::int8, (result -> 1)::float8 FROM leasequeue_finished WHERE task LIKE '%mark'"
        ).fetchall()
        return {int(str(number)): float(str(at)) for number, at in rows}


PEERS = (
    LeaseQueuePeer(
        "leasequeue", "noop", "default", "as it ships: 10 slots, sync handlers, history kept", variant=False
    ),
    LeaseQueuePeer("leasequeue-async", "anoop", "default", "10 slots, async handlers, history kept"),
    LeaseQueuePeer("leasequeue-no-history", "bare_noop", "bare", "10 slots, sync handlers, keep=0"),
    LeaseQueuePeer("leasequeue-async-no-history", "bare_anoop", "bare", "10 slots, async handlers, keep=0"),
)
