"""Jobs under limits against plain ones, by the same statements that a worker runs, in one run.

    python -m benchmarks.limits [--rounds 3] [--seconds 10]

Each case is a loop of claims at the gate and completions, set against the loop of plain claims and completions of the same
round; the figures are medians of these ratios. The last case holds a snapshot open and watches one hot set of keys decay,
with the floors of hot keys and without.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks import ground
from benchmarks.drain import bare, fill
from leasequeue.db.arrays import numbers, texts
from leasequeue.db.connect import Link
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.urls import Settings
from leasequeue.worker import hotkeys
from leasequeue.worker.gate import Gate
from leasequeue.worker.relay import FEW

LOAD = """WITH i AS (
    INSERT INTO leasequeue_job (task, state, limit_key, limit_max)
    SELECT 'noop', 'g', %s || i %% %s, %s FROM generate_series(1, %s) AS i RETURNING queue, limit_key
)
INSERT INTO leasequeue_wake (queue, key) SELECT DISTINCT queue, limit_key FROM i"""


class Looper:
    """Claims at the gate and completes, on a connection of its own."""

    def __init__(self, url: str, k: int = 500) -> None:
        self.link = Link(Settings.parse(url), application_name="benchmark")
        self.link.connect()
        self.gate = Gate(gate_statements("public"), ["default"], False, 60.0)
        self.gate.read_rules(self.link)
        self.sql = job_statements("public")
        self.me = uuid.uuid4()
        self.k = k

    def claim(self) -> list[tuple[Any, ...]]:
        return self.gate.claim(self.link, "default", self.k, self.me, time.monotonic())

    def complete(self, rows: list[tuple[Any, ...]]) -> int:
        return len(self.link.run(self.sql.complete_linked, {**_ends(rows), "me": self.me}))

    def follow(self, rows: list[tuple[Any, ...]]) -> tuple[int, list[tuple[Any, ...]]]:
        """Complete some and claim what comes after them in one transaction, as a worker does with few; how many, and those."""
        followed = self.gate.follow(self.link, _ends(rows), self.me, {"default": self.k}, time.monotonic())
        return len(followed.done), [row for each in followed.rows.values() for row in each]

    def drain(self, jobs: int, done: list[int]) -> None:
        """Until so many are done by all who share ``done``."""
        rows: list[tuple[Any, ...]] = []
        while sum(done) < jobs:
            rows = rows or self.claim()
            if 0 < len(rows) <= FEW:
                count, rows = self.follow(rows)
                done.append(count)
            elif rows:
                done.append(self.complete(rows))
                rows = []


def _ends(rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    """As a worker's completer gives them."""
    return {
        "ids": numbers([row[0] for row in rows]), "terms": numbers([row[1] for row in rows]),
        "results": texts([None] * len(rows)), "kept": numbers([True] * len(rows)),
    }  # fmt: skip


def load(conn: ground.Connection, prefix: str, keys: int, limit: int | None, jobs: int) -> None:
    conn.execute("TRUNCATE leasequeue_job, leasequeue_finished, leasequeue_wake")
    conn.execute(LOAD, (prefix, keys, limit, jobs))
    for table in ("job", "wake"):
        conn.execute(f"VACUUM ANALYZE leasequeue_{table}".encode())
    conn.execute("CHECKPOINT")


def gated(url: str, jobs: int, loopers: int = 1) -> float:
    """Jobs per second through the gate."""
    done: list[int] = []
    made = [Looper(url) for _ in range(loopers)]
    threads = [threading.Thread(target=each.drain, args=(jobs, done)) for each in made]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begun
    for each in made:
        each.link.close()
    return jobs / took


def behind_saturated(conn: ground.Connection, url: str) -> tuple[float, float]:
    """1,000 jobs of other keys behind 100,000 of a saturated one: ms to the first, jobs per second."""
    load(conn, "busy", 1, 1, 100_000)
    looper = Looper(url)
    assert len(looper.claim()) == 1
    conn.execute(LOAD.replace("TRUNCATE", ""), ("other", 500, None, 1000))
    begun = time.perf_counter()
    first, done = 0.0, 0
    while done < 1000:
        rows = looper.claim()
        first = first or (time.perf_counter() - begun if rows else 0.0)
        done += looper.complete(rows) if rows else 0
    took = time.perf_counter() - begun
    looper.link.close()
    return first * 1000, 1000 / took


def refill(conn: ground.Connection, url: str) -> float:
    """Milliseconds from the completion of a serial job to the next lease, both with their commits."""
    load(conn, "serial", 1, 1, 300)
    looper = Looper(url, k=10)
    rows = looper.claim()
    taken = []
    for _ in range(200):
        begun = time.perf_counter()
        _, rows = looper.follow(rows)
        rows = rows or looper.claim()
        taken.append((time.perf_counter() - begun) * 1000)
    looper.link.close()
    return statistics.median(taken)


def decay(conn: ground.Connection, url: str, seconds: float, floors: bool) -> tuple[float, float]:
    """200 hot keys, limit 1, under a held snapshot: jobs per second in the first and the last two seconds."""
    load(conn, "hot", 200, 1, 400_000)
    before, hotkeys.HOT_AFTER = hotkeys.HOT_AFTER, hotkeys.HOT_AFTER if floors else 10**9
    with ground.connect(url) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM leasequeue_queue")
        looper = Looper(url)
        if not floors:
            looper.gate.rescan = lambda: None  # type: ignore[method-assign]
        begun, windows, done = time.perf_counter(), list[int](), 0
        while time.perf_counter() - begun < seconds:
            rows = looper.claim()
            done = looper.complete(rows) if rows else 0
            place = int((time.perf_counter() - begun) / 2)
            windows += [0] * (place + 1 - len(windows))
            windows[place] += done
        holder.execute("ROLLBACK")
        looper.link.close()
    hotkeys.HOT_AFTER = before
    return windows[0] / 2, windows[int(seconds / 2) - 1] / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the snapshot is held")
    words = parser.parse_args()
    with ground.server() as running:
        url = ground.database(running)
        with ground.connect(url) as conn:
            cases: dict[str, Callable[[], float]] = {
                "20,000 keys x 5 jobs, limit 1": lambda: _case(conn, url, "k", 20_000, 1, 100_000),
                "100,000 keys x 5 jobs, limit 1, two claimers": lambda: _case(conn, url, "k", 100_000, 1, 500_000, 2),
                "one key, limit 500": lambda: _case(conn, url, "one", 1, 500, 50_000),
                "one serial key": lambda: _case(conn, url, "s", 1, 1, 500),
            }
            ratios: dict[str, list[float]] = {name: [] for name in cases}
            for _ in range(words.rounds):
                fill(conn, "noop", 100_000)
                plain = bare(url, 100_000)
                print(f"plain jobs: {plain:,.0f}/s", flush=True)
                for name, case in cases.items():
                    rate = case()
                    ratios[name].append(rate / plain)
                    print(f"  {name}: {rate:,.0f}/s, {rate / plain:.3f} of plain", flush=True)
            for name, found in ratios.items():
                print(f"{name}: median {statistics.median(found):.3f} of plain")
            first, rate = behind_saturated(conn, url)
            print(f"1,000 jobs of other keys behind 100,000 saturated ones: first after {first:.0f} ms, {rate:,.0f}/s")
            print(f"a slot is filled again {refill(conn, url):.1f} ms after its job's completion was sent")
            for floors in (True, False):
                begin, end = decay(conn, url, words.seconds, floors)
                with_ = "with" if floors else "without"
                print(f"200 hot keys under a held snapshot {with_} floors: {begin:,.0f} -> {end:,.0f}/s", flush=True)


def _case(conn: ground.Connection, url: str, prefix: str, keys: int, limit: int, jobs: int, loopers: int = 1) -> float:
    load(conn, prefix, keys, limit, jobs)
    return gated(url, jobs, loopers)


if __name__ == "__main__":
    main()
