"""A held snapshot: claims stay as quick as they were, and late commits are found.

    python -m benchmarks.snapshot [--seconds 120] [--rate 6000 | --full]

One transaction keeps a snapshot for the whole run, so no dead row can be vacuumed. Jobs come by ``enqueue_many`` (one
timestamp for all of a call) in two priorities, from a producer that keeps a backlog (full load) or keeps a rate; four more
enqueue single jobs in transactions that commit 0.2 to 8 s late. Shown for each ten seconds: jobs per second and the mean
time of a claim statement; at the end, how late the late ones were claimed and started, against the promise of 2d + 1 s.
"""

from __future__ import annotations

import argparse
import itertools
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from benchmarks import ground
from benchmarks.app import lq, noop, stamp

LATE_SECONDS = (0.2, 1.0, 3.0, 8.0)
WINDOW_SECONDS = 10.0


class Producers:
    """What enqueues. ``late`` maps a job's id to how long its commit was held back and when it came."""

    def __init__(self, url: str, rate: float | None) -> None:
        self._url = url
        self._rate = rate
        self._stop = threading.Event()
        self.made = 0
        self.finished = 0
        self.late: dict[int, tuple[float, float]] = {}
        self._threads = [threading.Thread(target=self._bulk)]
        self._threads += [threading.Thread(target=self._hold, args=(seed,)) for seed in range(4)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _bulk(self) -> None:
        begun = time.monotonic()
        low = [noop.options(priority=0).call(i=i) for i in range(300)]
        high = [noop.options(priority=5).call(i=i) for i in range(300)]
        with ground.connect(self._url) as conn:
            for calls in itertools.cycle((low, high)):
                if self._stop.is_set():
                    return
                ahead = self.made - self.finished > 20_000
                if self._rate is not None:
                    ahead = ahead or self.made > self._rate * (time.monotonic() - begun)
                if ahead:
                    self._stop.wait(0.005)
                    continue
                lq.enqueue_many(conn, calls)
                self.made += len(calls)

    def _hold(self, seed: int) -> None:
        choose = random.Random(seed)  # noqa: S311  # which delay comes next is no secret
        with psycopg.connect(self._url, prepare_threshold=None) as conn:
            while not self._stop.is_set():
                delay = choose.choice(LATE_SECONDS)
                id = stamp.options(priority=5).enqueue(conn).id
                self._stop.wait(delay)
                conn.commit()
                self.late[id] = (delay, time.time())
                self._stop.wait(0.2)


def run(url: str, seconds: float, rate: float | None) -> bool:
    """Measure, print, and say whether the bars hold."""
    lq.configure(url=url)
    producers = Producers(url, rate)
    # A short ttl makes the worker tell its counters every two seconds.
    with ground.connect(url) as conn, ground.worker(url, "--queues", "default=10", "--ttl", "6"):
        with psycopg.connect(url) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM leasequeue_job")
            producers.start()
            means = windows(conn, seconds, lambda done: setattr(producers, "finished", done))
            producers.stop()
            time.sleep(2 * max(LATE_SECONDS) + 2.0)
    with ground.connect(url) as conn:
        late = _lateness(conn, producers.late)
    means = [mean for mean in means if mean]
    first, last = means[0], means[-1]
    print(f"claim statement: first {first:.2f} ms, last {last:.2f} ms, ratio {last / first:.2f}")
    kept = True
    for delay, waits in sorted(late.items()):
        claimed, started = (max(each) for each in zip(*waits, strict=True))
        kept = kept and claimed <= 2 * delay + 1
        print(
            f"committed {delay:g} s late: {len(waits)} jobs, worst claimed after {claimed:.2f} s, started after "
            f"{started:.2f} s, promised {2 * delay + 1:.1f} s"
        )
    return kept and last <= 1.3 * first


def windows(conn: ground.Connection, seconds: float, heard: Callable[[int], None] = lambda _: None) -> list[float]:
    """The mean time of a claim in each ten seconds, in milliseconds, 0.0 where there was none; prints the rest.

    Args:
        heard: called with how many jobs are finished, four times a second.
    """
    found = []
    until = time.monotonic() + seconds
    before = _counters(conn)
    while time.monotonic() < until:
        begun = time.monotonic()
        while time.monotonic() < begun + WINDOW_SECONDS:
            heard(_counters(conn)[2])
            time.sleep(0.25)
        now = _counters(conn)
        claims, spent, done = (after - earlier for after, earlier in zip(now, before, strict=True))
        before = now
        found.append(spent / claims if claims else 0.0)
        print(f"{done / WINDOW_SECONDS:8,.0f} jobs/s, {claims:6,} claims of {found[-1]:.2f} ms", flush=True)
    return found


def _counters(conn: ground.Connection) -> tuple[int, int, int]:
    row: Any = conn.execute(
        "SELECT sum((counters ->> 'claims')::int), sum((counters ->> 'claim_ms')::int), "
        "sum((counters ->> 'completed')::int) FROM leasequeue_worker"
    ).fetchone()
    return tuple(int(value or 0) for value in row)  # type: ignore[return-value]  # three of them


def _lateness(conn: ground.Connection, late: dict[int, tuple[float, float]]) -> dict[float, list[tuple[float, float]]]:
    """By how late they were committed: seconds from the commit to the claim, and to the start of the handler."""
    rows: Any = conn.execute(
        "SELECT id, extract(epoch FROM started_at)::float8, result::text FROM leasequeue_finished WHERE result IS NOT NULL"
    ).fetchall()
    found: dict[float, list[tuple[float, float]]] = {}
    seen = {int(id): (float(claimed), float(result)) for id, claimed, result in rows}
    for id, (delay, committed) in late.items():
        claimed, started = seen.get(id, (float("inf"), float("inf")))
        found.setdefault(delay, []).append((claimed - committed, started - committed))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--rate", type=float, default=6000.0)
    parser.add_argument("--full", action="store_true", help="as fast as the worker takes them")
    words = parser.parse_args()
    with ground.server() as running:
        kept = run(ground.database(running), words.seconds, None if words.full else words.rate)
    raise SystemExit(0 if kept else 1)


if __name__ == "__main__":
    main()
