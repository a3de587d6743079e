"""Drain a backlog of jobs that do nothing, history kept, against a bare psycopg loop of the same two statements.

    python -m benchmarks.drain [--jobs 100000] [--rounds 3] [--task noop|anoop]

The rounds are interleaved; the figure is the ratio of the medians.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import Any

from benchmarks import ground
from leasequeue.db.jobs import job_statements


def fill(conn: ground.Connection, task: str, jobs: int, queue: str = "default") -> None:
    conn.execute("TRUNCATE leasequeue_job, leasequeue_finished")
    conn.execute(
        "INSERT INTO leasequeue_job (queue, task, args) "
        "SELECT %s, %s, jsonb_build_object('i', i) FROM generate_series(1, %s) AS i",
        (queue, task, jobs),
    )
    conn.execute("VACUUM ANALYZE leasequeue_job")
    conn.execute("CHECKPOINT")


START_SECONDS = 5.0
"""A worker with its spare process has started, and is at rest."""


@contextlib.contextmanager
def paused(conn: ground.Connection, url: str, *words: str, queue: str = "default") -> Iterator[subprocess.Popen[bytes]]:
    """A worker that has started, is at rest, and takes no job before :func:`resumed`."""
    conn.execute(_PAUSE, (queue,))
    with ground.worker(url, "--queues", f"{queue}=10", *words) as process:
        time.sleep(START_SECONDS)
        yield process


def resumed(conn: ground.Connection) -> None:
    conn.execute("UPDATE leasequeue_queue SET paused_at = NULL")


def drained(url: str, jobs: int, *words: str) -> float:
    """Jobs per second of a worker that has started: from the first end to the last, as the history tells them."""
    with ground.connect(url) as conn, paused(conn, url, *words):
        resumed(conn)
        while conn.execute("SELECT FROM leasequeue_job LIMIT 1").fetchall():
            time.sleep(0.25)  # a look costs the server what it takes from the worker
        ((rate,),) = conn.execute(_RATE).fetchall()
        return float(str(rate))


_PAUSE = """INSERT INTO leasequeue_queue (name, paused_at) VALUES (%s, now())
ON CONFLICT (name) DO UPDATE SET paused_at = now()"""
_RATE = "SELECT count(*) / extract(epoch FROM max(finished_at) - min(finished_at)) FROM leasequeue_finished"


def bare(url: str, jobs: int, batch: int = 500, *, history: bool = True) -> float:
    """Jobs per second of the same claim and complete statements in a loop, without anything else."""
    sql = job_statements("public")
    complete = (sql.complete if history else sql.complete_unkept).encode()
    me = uuid.uuid4()
    claim: dict[str, Any] = {
        "me": me, "ttl": 30.0, "queue": "default", "priorities": [0], "floor_ids": [0], "k": batch,
    }  # fmt: skip
    floor = float("-inf")
    done = 0
    with ground.connect(url) as conn:
        begun = time.perf_counter()
        while done < jobs:
            rows = conn.execute(sql.claim.encode(), claim | {"floors": [floor]}).fetchall()
            floor = min(float(str(row[7])) for row in rows)
            ids, terms = [row[0] for row in rows], [row[1] for row in rows]
            done += len(conn.execute(complete, {"ids": ids, "terms": terms, "me": me}).fetchall())
        return jobs / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", choices=("noop", "anoop"), default="noop")
    words = parser.parse_args()
    ours, loop = [], []
    with ground.server() as running:
        for number in range(1, words.rounds + 1):
            url = ground.database(running)
            with ground.connect(url) as conn:
                fill(conn, words.task, words.jobs)
                loop.append(bare(url, words.jobs))
                fill(conn, words.task, words.jobs)
            ours.append(drained(url, words.jobs))
            print(f"round {number}: worker {ours[-1]:,.0f} jobs/s, bare loop {loop[-1]:,.0f} jobs/s", flush=True)
    ratio = statistics.median(ours) / statistics.median(loop)
    print(
        f"drain of {words.jobs:,} {words.task} jobs, history kept, one process: {statistics.median(ours):,.0f} jobs/s; "
        f"bare loop: {statistics.median(loop):,.0f} jobs/s; ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
