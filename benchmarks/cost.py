"""What a worker costs that has nothing to do, and what it has grown to after a million jobs.

    python -m benchmarks.cost [--seconds 60] [--jobs 1000000]

Idle: the share of a core that the worker takes (supervisor, process and its spare), and its connections' backends, as the
kernel counts it, and transactions per minute. Memory: what is resident in the process that runs jobs, after 10,000 and after a
million jobs that do nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import ground
from benchmarks.drain import paused, resumed

CHUNK = 50_000
_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += parents.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        fields = _stat(pid)
        total += int(fields[11]) + int(fields[12]) if fields else 0
    return total / _TICK


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def _stat(pid: int) -> list[str]:
    """From the state on; empty where there is no such process any more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def _one(conn: ground.Connection, sql: str) -> int:
    ((value,),) = conn.execute(sql.encode()).fetchall()
    return int(str(value))


def _backends(conn: ground.Connection) -> list[int]:
    rows = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'leasequeue%' AND datname = current_database()"
    ).fetchall()
    return [int(str(pid)) for (pid,) in rows]


def idle(url: str, seconds: float) -> None:
    commits = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    with ground.connect(url) as conn, paused(conn, url) as worker:
        resumed(conn)
        time.sleep(10)  # its first looks and its spare process are behind it
        workers, backends = tree(worker.pid), _backends(conn)
        before = cpu_seconds(workers), cpu_seconds(backends), _one(conn, commits)
        begun = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begun
        spent = cpu_seconds(workers) - before[0], cpu_seconds(backends) - before[1]
        time.sleep(1.5)  # until the statistics are there
        transactions = _one(conn, commits) - before[2]
        print(
            f"idle for {took:.0f} s, {len(workers)} processes, {len(backends)} connections: worker {spent[0] / took:.2%} "
            f"of a core, its backends {spent[1] / took:.2%}, {transactions * 60 / took:,.0f} transactions a minute", flush=True,
        )  # fmt: skip


def memory(url: str, jobs: int) -> None:
    with ground.connect(url) as conn, paused(conn, url) as worker:
        resumed(conn)
        done, found = 0, dict[int, float]()
        for mark in (10_000, jobs):
            while done < mark:
                count = min(CHUNK, mark - done)
                conn.execute(
                    "INSERT INTO leasequeue_job (task, args) "
                    "SELECT 'noop', jsonb_build_object('i', i) FROM generate_series(1, %s) AS i", (count,),
                )  # fmt: skip
                done += count
                while _one(conn, "SELECT count(*) FROM (SELECT FROM leasequeue_job LIMIT 1) AS one"):
                    time.sleep(0.1)
            time.sleep(3)
            found[mark] = max(resident_mib(pid) for pid in tree(worker.pid))
            print(f"after {mark:,} jobs: {found[mark]:.1f} MiB resident in the process that runs them", flush=True)
    print(f"{jobs:,} against 10,000 jobs: {found[jobs] / found[10_000]:.3f} of the memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    words = parser.parse_args()
    with ground.server() as running:
        url = ground.database(running)
        idle(url, words.seconds)
        memory(url, words.jobs)


if __name__ == "__main__":
    main()
