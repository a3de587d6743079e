"""A large backlog against a small one: what a claim costs, and how quickly a worker drains.

    python -m benchmarks.backlog [--ready 5000000] [--scheduled 5000000] [--rounds 3] [--jobs 100000]

The same claim and complete statements as a worker's in a bare loop, and then a worker, on a table that holds a few thousand
ready jobs and nothing else, and on one that holds millions, half of them scheduled for later. In turn, in one run; the small
table is filled again for each round, the large one loses what is done. Filling takes some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from typing import Any, NamedTuple

from benchmarks import ground
from benchmarks.drain import paused, resumed
from leasequeue.db.jobs import job_statements

CHUNK = 500_000
BATCH = 500
SMALL = 10_000


class Loop(NamedTuple):
    """Jobs per second, and the times of the claim statements in milliseconds, sorted."""

    rate: float
    claims: list[float]

    def quantile(self, share: float) -> float:
        return self.claims[min(len(self.claims) - 1, int(len(self.claims) * share))]


def fill(conn: ground.Connection, jobs: int, later: bool = False) -> None:
    """In pieces, so that no statement is a minute long, and with progress where there are many."""
    due = "now() + interval '1 day' + i * interval '1 ms'" if later else "now()"
    for first in range(0, jobs, CHUNK):
        conn.execute(
            "INSERT INTO leasequeue_job (task, args, available_at) "  # noqa: S608  # one of two constants
            f"SELECT 'noop', jsonb_build_object('i', i), {due} FROM generate_series(1, %s) AS i".encode(),
            (min(CHUNK, jobs - first),),
        )
        if jobs > CHUNK:
            kind = "scheduled" if later else "ready"
            print(f"\r  {min(jobs, first + CHUNK):>12,} of {jobs:,} {kind} jobs are there", end="", flush=True)
    if jobs > CHUNK:
        print(flush=True)


def rest(conn: ground.Connection) -> None:
    conn.execute("VACUUM ANALYZE leasequeue_job")
    conn.execute("CHECKPOINT")


def loop(url: str, jobs: int) -> Loop:
    """Claim and complete so many, with a floor as a worker keeps one."""
    sql = job_statements("public")
    me = uuid.uuid4()
    claim: dict[str, Any] = {
        "me": me, "ttl": 30.0, "queue": "default", "priorities": [0], "floor_ids": [0], "k": BATCH,
    }  # fmt: skip
    floor, done, claims = float("-inf"), 0, list[float]()
    with ground.connect(url) as conn:
        begun = time.perf_counter()
        while done < jobs:
            asked = time.perf_counter()
            rows = conn.execute(sql.claim.encode(), claim | {"floors": [floor]}).fetchall()
            claims.append((time.perf_counter() - asked) * 1000)
            floor = min(float(str(row[7])) for row in rows)
            ids, terms = [row[0] for row in rows], [row[1] for row in rows]
            done += len(conn.execute(sql.complete.encode(), {"ids": ids, "terms": terms, "me": me}).fetchall())
        return Loop(done / (time.perf_counter() - begun), sorted(claims))


def looped_small(url: str, jobs: int) -> Loop:
    """The same on a table that never holds more than ``SMALL``; refilling is not counted."""
    found: list[Loop] = []
    with ground.connect(url) as conn:
        for _ in range(max(1, jobs // SMALL)):
            conn.execute("TRUNCATE leasequeue_job")
            fill(conn, SMALL)
            rest(conn)
            found.append(loop(url, SMALL))
    return Loop(statistics.median(each.rate for each in found), sorted(ms for each in found for ms in each.claims))


def drained(url: str, jobs: int) -> float:
    """Jobs per second of one worker process, over the first so many that it finishes."""
    with ground.connect(url) as conn:
        conn.execute("TRUNCATE leasequeue_finished")
        with paused(conn, url):
            resumed(conn)
            while True:
                time.sleep(0.1)
                ((done,),) = conn.execute("SELECT count(*) FROM leasequeue_finished").fetchall()
                if int(str(done)) >= jobs:
                    break
        ((rate,),) = conn.execute(
            "SELECT count(*) / extract(epoch FROM max(finished_at) - min(finished_at)) FROM leasequeue_finished"
        ).fetchall()
        return float(str(rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ready", type=int, default=5_000_000)
    parser.add_argument("--scheduled", type=int, default=5_000_000)
    parser.add_argument("--jobs", type=int, default=100_000, help="done in each round")
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    if words.ready < words.jobs * words.rounds * 3:
        parser.error("there must be more ready jobs than all rounds take: three times --jobs times --rounds")
    loops: dict[str, list[Loop]] = {"small": [], "large": []}
    rates: dict[str, list[float]] = {"small": [], "large": []}
    with ground.server() as running:
        small, large = ground.database(running), ground.database(running)
        with ground.connect(large) as conn:
            fill(conn, words.ready)
            fill(conn, words.scheduled, later=True)
            print("  VACUUM ANALYZE", flush=True)
            rest(conn)
        for number in range(1, words.rounds + 1):
            loops["small"].append(looped_small(small, words.jobs))
            loops["large"].append(loop(large, words.jobs))
            with ground.connect(small) as conn:
                conn.execute("TRUNCATE leasequeue_job")
                fill(conn, words.jobs)
                rest(conn)
            rates["small"].append(drained(small, words.jobs))
            rates["large"].append(drained(large, words.jobs))
            for name in ("small", "large"):
                last = loops[name][-1]
                print(
                    f"round {number}, {name}: loop {last.rate:,.0f} jobs/s, claim of {BATCH} p50 {last.quantile(0.5):.1f} ms, "
                    f"p99 {last.quantile(0.99):.1f} ms; worker {rates[name][-1]:,.0f} jobs/s", flush=True,
                )  # fmt: skip
    rate = _ratio([[each.rate for each in loops[name]] for name in ("large", "small")])
    p99 = _ratio([[each.quantile(0.99) for each in loops[name]] for name in ("large", "small")])
    worker = _ratio([rates["large"], rates["small"]])
    print(
        f"{words.ready + words.scheduled:,} jobs against {SMALL:,} (worker: against {words.jobs:,}): loop {rate:.2f}, "
        f"p99 of a claim {p99:.2f}, worker {worker:.2f}"
    )


def _ratio(of: list[list[float]]) -> float:
    large, small = map(statistics.median, of)
    return large / small


if __name__ == "__main__":
    main()
