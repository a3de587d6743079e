"""Pickup latency: from the return of the enqueuing commit to the start of the handler, on an idle worker.

    python -m benchmarks.latency [--jobs 200] [--every-ms 50]

Direct with LISTEN, and through pgbouncer in transaction mode where it is installed.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks import ground
from benchmarks.app import lq, stamp


def measure(url: str, direct_url: str, jobs: int, every_seconds: float) -> list[float]:
    """Latencies in milliseconds."""
    sent: dict[int, float] = {}
    found: dict[int, float] = {}
    with ground.worker(url, "--queues", "default=4"), ground.connect(direct_url) as reader, ground.connect(url) as conn:
        warm = stamp.enqueue(conn).id
        _wait(reader, [warm])
        for _ in range(jobs):
            id = stamp.enqueue(conn).id
            sent[id] = time.time()
            time.sleep(every_seconds)
        _wait(reader, list(sent))
        for row, result in reader.execute("SELECT id, result::text FROM leasequeue_finished"):
            found[int(str(row))] = float(str(result))
    return [max(0.0, found[id] - at) * 1000 for id, at in sent.items()]


def _wait(reader: ground.Connection, ids: list[int]) -> None:
    until = time.monotonic() + 30.0
    while time.monotonic() < until:
        ((count,),) = reader.execute("SELECT count(*) FROM leasequeue_finished WHERE id = ANY(%s)", (ids,)).fetchall()
        if count == len(ids):
            return
        time.sleep(0.02)
    raise SystemExit(f"not all of {len(ids)} jobs were finished in 30 s")


def show(name: str, latencies: list[float]) -> None:
    ordered = sorted(latencies)
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    print(f"{name}: p50 {statistics.median(ordered):.1f} ms, p99 {p99:.1f} ms, {len(ordered)} jobs", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--every-ms", type=float, default=50.0)
    words = parser.parse_args()
    from tests.support.pgbouncer import PgBouncer, Unavailable
    from tests.support.server import EmbeddedServer

    running = EmbeddedServer("a measurement", {"fsync": "on", "synchronous_commit": "on"})
    try:
        url = running.url(_database(running))
        lq.configure(url=url)
        show("direct, LISTEN", measure(url, url, words.jobs, words.every_ms / 1000))
        try:
            bouncer = PgBouncer(running)
        except Unavailable as error:
            print(f"through pgbouncer: skipped, {error}")
            return
        try:
            name = _database(running)
            url = running.url(name)
            show("pgbouncer, transaction mode", measure(bouncer.url(name), url, words.jobs, words.every_ms / 1000))
        finally:
            bouncer.close()
    finally:
        running.close()


def _database(running: object) -> str:
    from leasequeue.db.urls import Settings
    from leasequeue.ops.migrate import migrate
    from tests.support.server import EmbeddedServer

    assert isinstance(running, EmbeddedServer)
    name = f"latency_{time.monotonic_ns()}"
    running.create_database(name)
    migrate(Settings.parse(running.url(name)), "public", lambda _: None)
    return name


if __name__ == "__main__":
    main()
