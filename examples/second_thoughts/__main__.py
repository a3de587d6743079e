"""A worker, some jobs, and what becomes of each: ``python -m examples.second_thoughts [URL]``.

Without a URL it runs on a Postgres of its own (the ``embedded`` extra). The tables must be there, or it makes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, create_engine, text

from examples.second_thoughts.application import convert, export, fetch, lq, order, report
from leasequeue import schema

LIVE = text("SELECT state::text, attempt, meta FROM leasequeue_job WHERE id = :id")
DONE = text("SELECT outcome, attempt, coalesce(result #>> '{}', error) FROM leasequeue_finished WHERE id = :id")


@contextmanager
def database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    from leasequeue import embedded

    with tempfile.TemporaryDirectory() as folder, embedded.start(Path(folder) / "data", temporary=True) as server:
        yield server.url()


def what_became_of(conn: Connection, id: int, seconds: float) -> str:
    """Wait until the job has ended, or rests for long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done = conn.execute(DONE, {"id": id}).one_or_none()
        if done is not None:
            return f"{done[0]}, attempt {done[1]}: {done[2]}"
        live = conn.execute(LIVE, {"id": id}).one_or_none()
        if live is not None and live[0] == "r" and (live[2] or {}).get("snoozed"):
            return f"waits, attempt {live[1]}, snoozed {live[2]['snoozed']} time(s)"
        time.sleep(0.05)
    return "goes on"


def main(given: str | None) -> None:
    with database(given) as url:
        lq.configure(url=url)
        with create_engine(url.replace("postgresql:", "postgresql+psycopg:")).begin() as conn:
            if not conn.execute(text("SELECT to_regclass('leasequeue_job')")).scalar_one():
                schema.install(conn)
        jobs = {
            "fetch busy": fetch.enqueue(lq, "front"),
            "fetch moved": fetch.enqueue(lq, "moved"),
            "order paid": order.enqueue(lq, "paid"),
            "order unpaid": order.enqueue(lq, "unpaid"),
            "order embargoed": order.enqueue(lq, "embargoed"),
            "order withdrawn": order.enqueue(lq, "withdrawn"),
            "order broken": order.enqueue(lq, "broken"),
            "report": report.enqueue(lq),
            "convert": convert.enqueue(lq, "letter"),
            "convert malicious": convert.enqueue(lq, "malicious"),
            "export": export.enqueue(lq),
        }
        command = [sys.executable, "-m", "leasequeue.cli.main", "worker", "examples.second_thoughts.application:lq"]
        worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "LEASEQUEUE_URL": url})
        try:
            with lq.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
                running = text("SELECT 1 FROM leasequeue_job WHERE id = :id AND state = 'l'")
                until = time.monotonic() + 60
                while (
                    conn.execute(running, {"id": jobs["export"].id}).one_or_none() is None and time.monotonic() < until
                ):
                    time.sleep(0.05)
                print(f"cancel of export: {lq.cancel(lq, jobs['export'].id)}", flush=True)
                for name, job in jobs.items():
                    print(f"{name}: {what_became_of(conn, job.id, 60)}", flush=True)
        finally:
            worker.terminate()
            worker.wait()
            lq.dispose()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
