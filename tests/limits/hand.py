"""A claimer at the gate that is driven by hand: the worker's own ``Gate`` and statements, a step at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from leasequeue.db.connect import Link
from leasequeue.db.enqueue import enqueue_many
from leasequeue.db.gates import gate_statements
from leasequeue.db.jobs import job_statements
from leasequeue.db.program import Checked, run
from leasequeue.db.urls import Settings
from leasequeue.job import NewJob
from leasequeue.worker.gate import Gate
from tests.support.databases import Database
from tests.support.waiting import until


class Taken(NamedTuple):
    """A claimed job, as much of it as these tests look at."""

    id: int
    term: int
    task: str
    priority: int
    queue: str
    key: str


class Hand:
    """One process at the gates of some queues."""

    def __init__(self, database: Database, *queues: str, ttl_seconds: float = 30.0, url: str | None = None) -> None:
        self.link = Link(Settings.parse(url or database.url), application_name="leasequeue claimer")
        self.link.connect()
        self.me = uuid.uuid4()
        self.ttl_seconds = ttl_seconds
        self.sql = job_statements(database.schema)
        self.gate_sql = gate_statements(database.schema)
        self.queues = queues or ("default",)
        self.use()

    def use(self, **statements: str) -> None:
        """Begin anew at the gates, with these statements instead of ours."""
        self.gate_sql = self.gate_sql._replace(**statements)
        self.gate = Gate(self.gate_sql, self.queues, True, self.ttl_seconds)
        self.gate.connected()
        self.gate.read_rules(self.link)

    def gated(self, k: int = 10, queue: str = "default") -> list[Taken]:
        """One transaction at the gate."""
        rows = self.gate.claim(self.link, queue, k, self.me, time.monotonic())
        return [Taken(row[0], row[1], row[2], row[8], row[9], row[14]) for row in rows]

    def gated_until(self, wanted: int, k: int = 10, queue: str = "default", seconds: float = 10.0) -> list[Taken]:
        """Claim until so many are there, as a worker that polls."""
        found: list[Taken] = []

        def enough() -> bool:
            found.extend(self.gated(k, queue))
            return len(found) >= wanted

        until(enough, seconds, f"{wanted} jobs to pass the gate ({len(found)} did)")
        return found

    def nothing_for(self, seconds: float, queue: str = "default") -> None:
        """Ask for that long, and get nothing."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.gated(10, queue) == []
            time.sleep(0.005)  # as a poll would

    def follow(self, jobs: Iterable[Taken], room: int = 10) -> tuple[list[int], list[Taken]]:
        """Complete these, and claim what comes after them, in one transaction: which were completed, and the next ones."""
        jobs = list(jobs)
        ends: dict[str, Any] = {"ids": [job.id for job in jobs], "terms": [job.term for job in jobs]}
        ends |= {"results": [None] * len(jobs), "kept": [True] * len(jobs)}
        found = self.gate.follow(self.link, ends, self.me, dict.fromkeys(self.queues, room), time.monotonic())
        rows = [row for each in found.rows.values() for row in each]
        return found.done, [Taken(row[0], row[1], row[2], row[8], row[9], row[14]) for row in rows]

    def complete(self, jobs: Iterable[Taken]) -> int:
        listed = list(jobs)
        params = self._held(listed) | {"results": [None] * len(listed), "kept": [True] * len(listed)}
        return len(self.link.run(self.sql.complete_linked, params))

    def retry(self, job: Taken, delay_seconds: float) -> int:
        failure = {"delays": [delay_seconds], "types": ["E"], "messages": [""], "tracebacks": [None], "worker": "hand"}
        return len(self.link.run(self.sql.retry, self._held([job]) | failure))

    def release(self, jobs: Sequence[Taken]) -> int:
        return len(self.link.run(self.sql.release, self._held(jobs) | {"back": "r", "keys": True}))

    def sweep(self) -> int:
        return len(self.link.run(self.sql.sweep, {"max_abandoned": 1000}))

    def _held(self, jobs: Sequence[Taken]) -> dict[str, Any]:
        return {"ids": [job.id for job in jobs], "terms": [job.term for job in jobs], "me": self.me}

    def close(self) -> None:
        self.link.close()


def put(database: Database, key: str | None, count: int = 1, *, limit: int | None = None, **fields: Any) -> list[int]:
    """Enqueue jobs under a key by the application's own program, in a transaction of their own; the ids."""
    rate = fields.pop("rate", (None, None))
    job = NewJob(
        fields.pop("task", "t"), fields.pop("queue", "default"), "{}",
        limit_key=key, limit_max=limit, rate_max=rate[0], rate_seconds=rate[1], **fields,
    )  # fmt: skip
    import psycopg

    with psycopg.connect(database.direct_url, prepare_threshold=None) as conn:
        return [
            found if isinstance(found, int) else found.id
            for found in run(conn, enqueue_many, database.schema, [job] * count, Checked())
        ]


def rule(
    database: Database, name: str, running: int | None = None, rate: int | None = None, seconds: float | None = None
) -> None:
    """Set a limit beside the jobs."""
    database.execute(
        "INSERT INTO leasequeue_limit (name, declared, max_running, rate_max, rate_seconds) VALUES (%s, false, %s, %s, %s) "
        "ON CONFLICT (name, declared) DO UPDATE SET max_running = excluded.max_running, rate_max = excluded.rate_max, "
        "rate_seconds = excluded.rate_seconds",
        (name, running, rate, seconds),
    )


Hands = Callable[..., Hand]
