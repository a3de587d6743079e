"""What is the most that these statements could give: pgbench with no Python, a bare psycopg loop, and the worker, in turn.

    python -m benchmarks.bounds [--jobs 100000] [--rounds 3]

All three run the same claim and complete statements with 500 jobs to a claim, on one connection (the worker: on its three),
with the history kept and without one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from benchmarks import ground
from benchmarks.compare.drain import LOOK_SECONDS
from benchmarks.compare.record import steady
from benchmarks.drain import bare, drained, fill, paused, resumed
from leasequeue.db.jobs import job_statements
from leasequeue.embedded.ground import programs

BATCH = 500
_TPS = re.compile(r"tps = ([0-9.]+) \(without initial connection time\)")


def script(complete: str) -> str:
    """The two statements as pgbench runs them: what the first returns goes into the second, and the floor into the next."""
    sql = job_statements("public")
    me = f"'{uuid.uuid4()}'"
    claim = {
        "me": me, "ttl": "30.0", "queue": "'default'", "priorities": "'{0}'", "floors": "'{:floor}'", "floor_ids": "'{0}'",
        "k": str(BATCH),
    }  # fmt: skip
    ends = {"me": me, "ids": "':ids'", "terms": "':terms'"}
    return (
        f"WITH taken (id, term, task, args, attempt, abandoned, max_attempts, at) AS ({_filled(sql.claim, claim)})\n"
        "SELECT array_agg(id) AS ids, array_agg(term) AS terms, min(at) AS floor FROM taken \\gset\n"
        f"{_filled(complete, ends)};\n"
    )


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"%\((\w+)\)s", lambda found: values[found[1]], text).replace("%%", "%")


def pgbench(url: str, jobs: int, complete: str) -> float:
    """Jobs per second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.sql"
        path.write_text(script(complete))
        command = [
            str(programs() / "bin" / "pgbench"), "--no-vacuum", "--protocol=simple", "--client=1", "--define=floor=0",
            f"--transactions={jobs // BATCH}", f"--file={path}", url,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _TPS.search(done.stdout)
    if done.returncode or found is None:
        raise SystemExit(f"pgbench failed: {done.stderr.strip() or done.stdout.strip()}")
    return float(found[1]) * BATCH


def drained_unkept(url: str, jobs: int) -> float:
    """Jobs per second of a worker that keeps no history, by looks at what is left."""
    with ground.connect(url) as conn, paused(conn, url, queue="bare"):
        samples = [_left(conn)]
        resumed(conn)
        while samples[-1][1]:
            time.sleep(LOOK_SECONDS)
            samples.append(_left(conn))
    return steady(samples, jobs)


def _left(conn: ground.Connection) -> tuple[float, int]:
    ((at, left),) = conn.execute(
        "SELECT extract(epoch FROM now())::float8, (SELECT count(*) FROM leasequeue_job)"
    ).fetchall()
    return float(str(at)), int(str(left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    sql = job_statements("public")
    with ground.server() as running:
        url = ground.database(running)
        found: dict[str, list[float]] = {}

        def run(name: str, task: str, way: Callable[[], float]) -> None:
            with ground.connect(url) as conn:
                fill(conn, task, words.jobs, "bare" if task == "bare_noop" else "default")
            found.setdefault(name, []).append(way())
            print(f"  {name}: {found[name][-1]:,.0f} jobs/s", flush=True)

        for number in range(1, words.rounds + 1):
            print(f"round {number}", flush=True)
            run("pgbench, history kept", "noop", lambda: pgbench(url, words.jobs, sql.complete))
            run("bare loop, history kept", "noop", lambda: bare(url, words.jobs))
            run("worker, history kept", "noop", lambda: drained(url, words.jobs))
            run("pgbench, no history", "noop", lambda: pgbench(url, words.jobs, sql.complete_unkept))
            run("bare loop, no history", "noop", lambda: bare(url, words.jobs, history=False))
            run("worker, no history", "bare_noop", lambda: drained_unkept(url, words.jobs))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    for history in ("history kept", "no history"):
        worker = medians[f"worker, {history}"]
        print(
            f"{history}: {worker / medians[f'bare loop, {history}']:.2f} of the bare loop, "
            f"{worker / medians[f'pgbench, {history}']:.2f} of pgbench"
        )


if __name__ == "__main__":
    main()
