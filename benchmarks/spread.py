"""How the drain changes with the size of the arguments, and with the number of worker processes.

    python -m benchmarks.spread [--rounds 3] [--jobs 100000]

Arguments of 10 B to 100 KB are text that does not compress to nothing; of the longer ones there are fewer jobs, so that a
round takes a minute or so.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks import ground
from benchmarks.drain import drained

SIZES = {10: 1.0, 1_000: 1.0, 10_000: 0.2, 100_000: 0.02}
"""Characters, and the share of the jobs."""

PROCESSES = (1, 2, 4, 8)

# Digits of hashes: they compress by half, as JSON does.
_FILL = """INSERT INTO leasequeue_job (task, args)
SELECT 'text', jsonb_build_object('text', (
    SELECT left(string_agg(md5(i::text || n::text), ''), %(size)s) FROM generate_series(1, %(size)s / 32 + 1) AS n))
FROM generate_series(1, %(jobs)s) AS i"""


def payload(conn: ground.Connection, url: str, size: int, jobs: int) -> float:
    _empty(conn)
    conn.execute(_FILL, {"size": size, "jobs": jobs})
    _rest(conn)
    return drained(url, jobs)


def processes(conn: ground.Connection, url: str, count: int, jobs: int) -> float:
    _empty(conn)
    conn.execute(
        "INSERT INTO leasequeue_job (task, args) SELECT 'noop', jsonb_build_object('i', i) FROM generate_series(1, %s) AS i",
        (jobs,),
    )
    _rest(conn)
    return drained(url, jobs, "--processes", str(count))


def _empty(conn: ground.Connection) -> None:
    conn.execute("TRUNCATE leasequeue_job, leasequeue_finished")


def _rest(conn: ground.Connection) -> None:
    conn.execute("VACUUM ANALYZE leasequeue_job")
    conn.execute("CHECKPOINT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    words = parser.parse_args()
    found: dict[str, list[float]] = {}

    def note(name: str, rate: float) -> None:
        found.setdefault(name, []).append(rate)
        print(f"  {name}: {rate:,.0f} jobs/s", flush=True)

    with ground.server() as running:
        url = ground.database(running)
        with ground.connect(url) as conn:
            for number in range(1, words.rounds + 1):
                print(f"round {number}", flush=True)
                for size, share in SIZES.items():
                    note(f"arguments of {size:,} B", payload(conn, url, size, int(words.jobs * share)))
                for count in PROCESSES:
                    note(f"{count} processes", processes(conn, url, count, words.jobs))
    for name, rates in found.items():
        print(f"{name}: median {statistics.median(rates):,.0f} jobs/s")


if __name__ == "__main__":
    main()
