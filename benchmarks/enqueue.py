"""What an enqueue costs beyond the INSERT that it is: against the raw INSERT and COPY of the same rows on the same connection.

    python -m benchmarks.enqueue [--singles 2000] [--rounds 5]

One at a time: a transaction each, with its commit, through one SQLAlchemy connection; an INSERT in SQLAlchemy's own words and
as text, and a task's ``enqueue``. Many: 10,000 and 100,000 in one transaction, by COPY through psycopg and by ``enqueue_many``
on the same connection, of rows and calls that are there already; and with the time that it takes to make them. Tables are
emptied before each, and all take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from benchmarks import ground
from benchmarks.app import lq, noop

MANY = (10_000, 100_000)
_JOB = sa.table("leasequeue_job", sa.column("task"), sa.column("args", JSONB))
_TEXT = sa.text("INSERT INTO leasequeue_job (task, args) VALUES (:task, CAST(:args AS jsonb)) RETURNING id")


def one_by_one(engine: sa.Engine, jobs: int) -> dict[str, float]:
    """Jobs per second of each way."""

    def core(conn: sa.Connection, i: int) -> None:
        conn.execute(sa.insert(_JOB).values(task="noop", args={"i": i}).returning(sa.column("id"))).scalar()

    def text(conn: sa.Connection, i: int) -> None:
        conn.execute(_TEXT, {"task": "noop", "args": json.dumps({"i": i})}).scalar()

    def enqueue(conn: sa.Connection, i: int) -> None:
        noop.enqueue(conn, i)

    ways: dict[str, Callable[[sa.Connection, int], None]] = {
        "INSERT, Core": core, "INSERT, text": text, "enqueue": enqueue,
    }  # fmt: skip
    spent = dict.fromkeys(ways, 0.0)
    with engine.connect() as conn:
        for i in range(-20, jobs):
            # In turns, job by job: what the disk does at the moment is the same for all of them.
            for name, way in ways.items():
                begun = time.perf_counter()
                with conn.begin():
                    way(conn, i)
                spent[name] += time.perf_counter() - begun if i >= 0 else 0.0
    return {name: jobs / seconds for name, seconds in spent.items()}


def copy(conn: psycopg.Connection[Any], rows: list[tuple[str, str]]) -> None:
    with (
        conn.transaction(),
        conn.cursor() as cursor,
        cursor.copy("COPY leasequeue_job (task, args) FROM STDIN") as stream,
    ):
        for row in rows:
            stream.write_row(row)


def _empty(conn: psycopg.Connection[Any]) -> None:
    conn.execute("TRUNCATE leasequeue_job")
    conn.execute("CHECKPOINT")


def many(url: str, jobs: int) -> dict[str, float]:
    """Jobs per second of each way."""
    found = {}
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as conn:
        _empty(conn)
        made = time.perf_counter()
        rows = [("noop", json.dumps({"i": i})) for i in range(jobs)]
        begun = time.perf_counter()
        copy(conn, rows)
        ended = time.perf_counter()
        found["COPY"], found["COPY, rows made"] = jobs / (ended - begun), jobs / (ended - made)
        _empty(conn)
        made = time.perf_counter()
        calls = [noop.call(i) for i in range(jobs)]
        begun = time.perf_counter()
        with conn.transaction():
            lq.enqueue_many(conn, calls)
        ended = time.perf_counter()
        found["enqueue_many"], found["enqueue_many, calls made"] = jobs / (ended - begun), jobs / (ended - made)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--singles", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    words = parser.parse_args()
    rates: dict[tuple[int, str], list[float]] = {}
    with ground.server() as running:
        url = ground.database(running)
        lq.configure(url=url)
        engine = sa.create_engine(
            url.replace("postgresql:", "postgresql+psycopg:", 1), connect_args={"prepare_threshold": None}
        )
        for number in range(1, words.rounds + 1):
            for size, found in [(1, one_by_one(engine, words.singles)), *((size, many(url, size)) for size in MANY)]:
                for name, rate in found.items():
                    rates.setdefault((size, name), []).append(rate)
                print(
                    f"round {number}, {size:,}: " + "; ".join(f"{n} {r:,.0f}/s" for n, r in found.items()), flush=True
                )
        engine.dispose()
    medians = {key: statistics.median(of) for key, of in rates.items()}
    for size, name, against in [
        (1, "enqueue", "INSERT, Core"), (1, "enqueue", "INSERT, text"),
        *((size, "enqueue_many", "COPY") for size in MANY),
        *((size, "enqueue_many, calls made", "COPY, rows made") for size in MANY),
    ]:  # fmt: skip
        ratio = statistics.median(a / b for a, b in zip(rates[size, name], rates[size, against], strict=True))
        print(
            f"{size:,} at a time: {name} {medians[size, name]:,.0f}/s, {against} {medians[size, against]:,.0f}/s: {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
