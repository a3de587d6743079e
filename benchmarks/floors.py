"""Five cases that defeat a floor which is kept too simply, each under a held snapshot: claims stay as quick as they were.

    python -m benchmarks.floors [CASE ...] [--seconds 180] [--postgres /usr/lib/postgresql/15/bin]

one-timestamp   calls of enqueue_many with 50,000 jobs, so that very many stand at one place of the index
never-full      6,000 jobs a second in small calls: no claim ever gets as many as it asks for
old-low         an old job of low priority that nobody can have (its row is locked), beside 300,000 dead ones of high priority
empty           polls that find nothing, after two million jobs
planner         two priorities at full load; for a server whose planner has no skip scan: PostgreSQL 14 to 17 (--postgres)

Shown for each ten seconds: jobs per second and the mean time of a claim; at the end the last ten seconds against the first. In
``old-low`` and ``empty`` the first come before what makes the dead entries. The exit status is 1 where one is above 1.3.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import pwd
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg

from benchmarks import ground
from benchmarks.app import lq, noop
from benchmarks.snapshot import windows
from leasequeue.db.urls import Settings
from leasequeue.ops.migrate import migrate

BAR = 1.3
AHEAD = 60_000
"""So many jobs are enqueued beyond those that are finished, at full load."""

Means = list[float]


class Load:
    """Enqueues in a thread of its own, in calls of ``size``, in turn of each of the priorities.

    Args:
        rate: jobs a second; None: as long as fewer than ``AHEAD`` are left.
    """

    def __init__(self, url: str, size: int, rate: float | None = None, priorities: tuple[int, ...] = (0,)) -> None:
        self._url, self._size, self._rate, self._priorities = url, size, rate, priorities
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        calls = [[noop.options(priority=each).call(i) for i in range(self._size)] for each in self._priorities]
        made, begun = 0, time.monotonic()
        with ground.connect(self._url) as conn:
            for some in itertools.cycle(calls):
                while self._is_ahead(conn, made, time.monotonic() - begun):
                    if self._stop.wait(0.005 if self._rate else 0.1):
                        return
                if self._stop.is_set():
                    return
                lq.enqueue_many(conn, some)
                made += len(some)

    def _is_ahead(self, conn: ground.Connection, made: int, seconds: float) -> bool:
        if self._rate is not None:
            return made > self._rate * seconds
        return made - finished(conn) > AHEAD

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def finished(conn: ground.Connection) -> int:
    """By the workers' counters: a count of the rows would cost more and more."""
    ((count,),) = conn.execute(
        "SELECT coalesce(sum((counters ->> 'completed')::int), 0) FROM leasequeue_worker"
    ).fetchall()
    return int(str(count))


def burst(conn: ground.Connection, jobs: int, priority: int) -> None:
    """So many at once, and until they are done."""
    before = finished(conn)
    for first in range(0, jobs, 100_000):
        conn.execute(
            "INSERT INTO leasequeue_job (task, args, priority) "
            "SELECT 'noop', jsonb_build_object('i', i), %s FROM generate_series(1, %s) AS i",
            (priority, min(100_000, jobs - first)),
        )
    while finished(conn) - before < jobs:
        time.sleep(0.5)
    print(f"  {jobs:,} jobs were done in between", flush=True)


def one_timestamp(url: str, conn: ground.Connection, seconds: float) -> Means:
    with Load(url, 50_000):
        return windows(conn, seconds)


def never_full(url: str, conn: ground.Connection, seconds: float) -> Means:
    with Load(url, 60, rate=6_000):
        return windows(conn, seconds)


def planner(url: str, conn: ground.Connection, seconds: float) -> Means:
    with Load(url, 300, priorities=(0, 5)):
        return windows(conn, seconds)


def old_low(url: str, conn: ground.Connection, seconds: float) -> Means:
    conn.execute("INSERT INTO leasequeue_lane (queue, priority) VALUES ('default', -5), ('default', 5)")
    with psycopg.connect(url) as other:
        conn.execute(
            "INSERT INTO leasequeue_job (task, priority, available_at) VALUES ('noop', -5, now() - interval '1 day')"
        )
        locked = other.execute("SELECT state::text FROM leasequeue_job WHERE priority = -5 FOR UPDATE").fetchall()
        if locked != [("r",)]:
            raise SystemExit("a poll fell in between: the old job is claimed; run it again")
        with Load(url, 30, rate=3_000, priorities=(5,)):
            first = windows(conn, 10)
            burst(conn, 300_000, 5)
            return first + windows(conn, seconds)


def empty(_url: str, conn: ground.Connection, seconds: float) -> Means:
    first = windows(conn, 10)
    burst(conn, 2_000_000, 0)
    return first + windows(conn, seconds)


CASES: dict[str, Callable[[str, ground.Connection, float], Means]] = {
    "one-timestamp": one_timestamp, "never-full": never_full, "old-low": old_low, "empty": empty, "planner": planner,
}  # fmt: skip


def measure(name: str, url: str, seconds: float) -> float:
    """The last ten seconds against the first."""
    print(f"{name}:", flush=True)
    # A short ttl makes the worker tell its counters every two seconds; polls that nothing ends are the harder case.
    with ground.connect(url) as conn, ground.worker(url, "--queues", "default=10", "--ttl", "6", "--poll-only"):
        while not conn.execute("SELECT FROM leasequeue_worker").fetchall():
            time.sleep(0.1)
        with psycopg.connect(url) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM leasequeue_job")
            means = [mean for mean in CASES[name](url, conn, seconds) if mean]
    print(f"{name}: first {means[0]:.2f} ms, last {means[-1]:.2f} ms, ratio {means[-1] / means[0]:.2f}", flush=True)
    return means[-1] / means[0]


@contextlib.contextmanager
def debian(programs: Path) -> Iterator[str]:
    """The URL of a fresh database, with the tables, on a server of these programs with default durability."""
    account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="leasequeue-bench-") as folder:
        data = Path(folder) / "data"
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)

        def run(*command: str) -> None:
            user = {"user": account.pw_uid, "group": account.pw_gid} if account else {}
            subprocess.run(
                [str(programs / command[0]), *command[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL, **user
            )

        run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust")
        options = f"-c listen_addresses= -c unix_socket_directories={folder}"
        run("pg_ctl", "-D", str(data), "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            url = f"postgresql://postgres@/postgres?host={folder}"
            with ground.connect(url) as conn:
                print(f"PostgreSQL {conn.info.server_version // 10_000}", flush=True)
            migrate(Settings.parse(url), "public", lambda _: None)
            yield url
        finally:
            run("pg_ctl", "-D", str(data), "-m", "fast", "stop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all, if none is named")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--postgres", type=Path, help="programs of another server, in place of the embedded one")
    words = parser.parse_args()
    if unknown := set(words.case) - set(CASES):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    ratios: dict[str, float] = {}
    for name in words.case or CASES:
        if words.postgres:
            with debian(words.postgres) as url:
                ratios[name] = measure(name, url, words.seconds)
        else:
            with ground.server() as running:
                ratios[name] = measure(name, ground.database(running), words.seconds)
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    raise SystemExit(int(max(ratios.values()) > BAR))


if __name__ == "__main__":
    main()
